/* Arenas: every page is there and zero when an arena opens, and all threads of a pool have provided their part. */
#include "base/arena.h"
#include "base/bytes.h"
#include "base/pool.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { THREADS = 3 };

struct faults {
    long count[THREADS];
};

/* Page faults of the thread that works on a share, so far. */
static void count_faults(void *context, uint32_t idx, uint32_t count) {
    struct rusage usage;
    (void)count;
    const int status = getrusage(RUSAGE_THREAD, &usage);
    ((struct faults *)context)->count[idx] = status == 0 ? usage.ru_minflt : -1;
}

static void check_pages(const struct ox_arena *arena) {
    const size_t count = arena->bytes / OX_IO_ALIGN_BYTES;
    unsigned char *const there = malloc(count);
    size_t missing = 0, written = 0;
    CHECK(there != NULL && mincore(arena->base, arena->bytes, there) == 0);
    for (size_t i = 0; i < count; i++) {
        missing += (there[i] & 1) == 0;
    }
    for (uint64_t i = 0; i < arena->bytes; i++) {
        written += arena->base[i] != 0;
    }
    CHECK(missing == 0 && written == 0);
    free(there);
}

static void test_sizes(struct ox_pool *pool) {
    static const uint64_t sizes[] = {1, 4096, 4097, OX_MIB, 2 * OX_MIB + 1, 6 * OX_MIB, 31 * OX_MIB + 12345};
    struct ox_arena arena;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        REQUIRE_OK(ox_arena_open("test", sizes[i], pool, &arena));
        CHECK(arena.bytes == ox_align_up(sizes[i], OX_IO_ALIGN_BYTES));
        CHECK((uintptr_t)arena.base % OX_IO_ALIGN_BYTES == 0);
        check_pages(&arena);
        ox_arena_close(&arena);
        CHECK(arena.base == NULL && arena.bytes == 0);
    }
    REQUIRE_OK(ox_arena_open("test", 0, pool, &arena));
    CHECK(arena.base == NULL && arena.bytes == 0);
    CHECK(ox_arena_open("test", UINT64_C(1) << 60, pool, &arena) == OX_E_NOMEM && arena.base == NULL);
    CHECK(strstr(ox_error_text(), "test arena: cannot reserve") != NULL);
}

/* With huge pages a share of 8 MiB is at least three of them, without them 2048 pages. */
static void test_threads(struct ox_pool *pool) {
    struct ox_arena arena;
    struct faults before, after;
    ox_pool_run(pool, count_faults, &before);
    REQUIRE_OK(ox_arena_open("test", THREADS * 8 * OX_MIB, pool, &arena));
    ox_pool_run(pool, count_faults, &after);
    for (int i = 0; i < THREADS; i++) {
        CHECK(before.count[i] >= 0 && after.count[i] >= before.count[i] + 3);
    }
    ox_arena_close(&arena);
}

int main(void) {
    struct ox_pool *pool = NULL;
    REQUIRE_OK(ox_pool_open(THREADS, &pool));
    test_sizes(NULL);
    test_sizes(pool);
    test_threads(pool);
    ox_pool_close(&pool);
    return test_end();
}
