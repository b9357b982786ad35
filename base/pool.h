/* A fixed set of threads that split one loop at a time, for the optimizer, CPU kernels and data. The work is divided by
 * index and thread count alone, so results do not depend on timing. */
#ifndef OX_BASE_POOL_H
#define OX_BASE_POOL_H

#include "base/nodes.h"
#include "base/status.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Whether a flag that asks for an end is raised; NULL: never. In any thread, while the handler of a signal raises it in
 * another, with __atomic_store_n. */
static inline bool ox_is_raised(const volatile sig_atomic_t *flag) {
    return flag != NULL && __atomic_load_n(flag, __ATOMIC_RELAXED) != 0;
}

/* Processors online, at least 1: the default number of threads. */
uint32_t ox_processor_count(void);

struct ox_pool;

/* Computes share `idx` of `count`; 0 <= idx < count. */
typedef void ox_pool_fn(void *context, uint32_t idx, uint32_t count);

/* Starts thread_count - 1 threads; the caller of ox_pool_run is the remaining one. */
OX_MUST enum ox_status ox_pool_open(uint32_t thread_count, struct ox_pool **out);

/* As ox_pool_open, with threads bound to memory nodes, each node getting a run of neighbouring shares. With one node
 * nothing is bound. The first ox_pool_run binds its caller for good; threads that the caller starts later inherit
 * that. */
OX_MUST enum ox_status ox_pool_open_on(const struct ox_nodes *nodes, uint32_t thread_count, struct ox_pool **out);
uint32_t ox_pool_size(const struct ox_pool *pool);

/* Calls fn once per share on all threads and returns when all have ended. One caller at a time. */
void ox_pool_run(struct ox_pool *pool, ox_pool_fn *fn, void *context);

/* As ox_pool_run for a loop whose shares are ox_pool_range(total, grain, idx, count). One grain is all done by the
 * caller: no thread is woken to find its share empty. */
void ox_pool_run_grains(struct ox_pool *pool, uint64_t total, uint64_t grain, ox_pool_fn *fn, void *context);

/* Calls fn for items [0, item_count), which must not touch each other, and returns when all have ended. One caller at a
 * time. Threads take the next item when they are free, so one that is held up elsewhere does not hold up the rest, and
 * one that wakes when no item is left is not waited for. Which thread runs an item must not change its result; `thread`
 * is below the pool's size, and no two calls at one time have the same: it is for scratch alone. */
typedef void ox_pool_item_fn(void *context, uint32_t item, uint32_t thread);
void ox_pool_items(struct ox_pool *pool, uint32_t item_count, ox_pool_item_fn *fn, void *context);

void ox_pool_close(struct ox_pool **pool);

/* The half-open range of [0, total) that belongs to share `idx` of `count`. Every border inside is a multiple of
 * `grain`. */
struct ox_range {
    uint64_t begin, end;
};
struct ox_range ox_pool_range(uint64_t total, uint64_t grain, uint32_t idx, uint32_t count);

#ifdef __cplusplus
}
#endif
#endif
