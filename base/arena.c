#include "base/arena.h"

#include "base/bytes.h"
#include "base/pool.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

/* A share is whole huge pages, because less is not worth a thread. */
enum { SHARE_BYTES = 2 << 20 };

static void touch(void *context, uint32_t idx, uint32_t count) {
    const struct ox_arena *const arena = context;
    const struct ox_range share = ox_pool_range(arena->bytes, SHARE_BYTES, idx, count);
    for (uint64_t at = share.begin; at < share.end; at += OX_IO_ALIGN_BYTES) {
        ((volatile unsigned char *)arena->base)[at] = 0;
    }
}

enum ox_status ox_arena_open(const char *label, uint64_t bytes, struct ox_pool *pool, struct ox_arena *out) {
    *out = (struct ox_arena){0};
    if (bytes == 0) {
        return OX_OK;
    }
    const uint64_t mapped = ox_align_up(bytes, OX_IO_ALIGN_BYTES);
    void *const base = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        char text[OX_SIZE_TEXT_BYTES];
        return ox_fail_errno(OX_E_NOMEM, errno, "%s arena: cannot reserve %s", label,
                             ox_size_text(mapped, text));
    }
    /* Advise only: rounding the arena up to whole huge pages would exceed the budget. */
    (void)madvise(base, mapped, MADV_HUGEPAGE);
    (void)madvise(base, mapped, MADV_DONTFORK);
    *out = (struct ox_arena){.base = base, .bytes = mapped};
    if (pool != NULL) {
        ox_pool_run(pool, touch, out);
    } else {
        touch(out, 0, 1);
    }
    return OX_OK;
}

void ox_arena_close(struct ox_arena *arena) {
    if (arena->base != NULL) {
        munmap(arena->base, arena->bytes);
    }
    *arena = (struct ox_arena){0};
}

void *ox_bump_alloc(struct ox_bump *bump, uint64_t bytes) {
    void *const at = bump->base == NULL ? NULL : bump->base + bump->bytes;
    bump->bytes += ox_align_up(bytes, 64);
    return at;
}
