/* Owns large memory blocks: an arena is one page-aligned reservation of exact size, and a bump allocator hands it out.
 * Models, generate and benches use both. Opening an arena touches every page, so a machine that lacks the memory fails
 * before work is done. Several threads do that in less time than one. */
#ifndef OX_BASE_ARENA_H
#define OX_BASE_ARENA_H

#include "base/status.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ox_pool;

struct ox_arena {
    unsigned char *base;
    uint64_t bytes;
};

/* Reserves `bytes` rounded up to OX_IO_ALIGN_BYTES, zeroed; `label` names the arena in errors. It requests huge pages
 * and goes on without them. The threads of `pool`, or the caller alone where that is NULL, touch one run of pages each;
 * these come from the memory nodes that the thread takes memory from (base/nodes.h). Nothing else may use the pool
 * meanwhile. */
OX_MUST enum ox_status ox_arena_open(const char *label, uint64_t bytes, struct ox_pool *pool, struct ox_arena *out);
void ox_arena_close(struct ox_arena *arena);

/* A bump allocator over memory it does not own; every piece starts on a multiple of 64 bytes. */
struct ox_bump {
    unsigned char *base; /* NULL: only add up sizes */
    uint64_t bytes;      /* handed out so far */
};
/* Returns the next `bytes`; NULL while base is NULL. */
void *ox_bump_alloc(struct ox_bump *bump, uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
