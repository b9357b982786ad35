/* A fixed set of threads that share one loop at a time. The division of the work is a function of
 * the index and the thread count alone, so results do not depend on timing. */
#ifndef OX_BASE_POOL_H
#define OX_BASE_POOL_H

#include "base/nodes.h"
#include "base/status.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Processors online, at least 1: what threads are counted by where nobody says how many. */
uint32_t ox_processor_count(void);

struct ox_pool;

/* Share `idx` of `count`; 0 <= idx < count. */
typedef void ox_pool_fn(void *context, uint32_t idx, uint32_t count);

/* `thread_count` includes the caller of ox_pool_run: 1 starts no thread. */
OX_MUST enum ox_status ox_pool_open(uint32_t thread_count, struct ox_pool **out);

/* The same with threads bound to memory nodes, each node a run of neighbouring shares; with one node nothing is bound.
 * Who calls ox_pool_run is bound by its first call and stays so, and threads it starts later inherit that. */
OX_MUST enum ox_status ox_pool_open_on(const struct ox_nodes *nodes, uint32_t thread_count, struct ox_pool **out);
uint32_t ox_pool_size(const struct ox_pool *pool);

/* Calls fn once per share, on all threads, and returns when all have ended. One caller at a time. */
void ox_pool_run(struct ox_pool *pool, ox_pool_fn *fn, void *context);

void ox_pool_close(struct ox_pool **pool);

/* The half-open range of `total` that share `idx` of `count` owns; every border but the ends is a
 * multiple of `grain`. */
struct ox_range {
    uint64_t begin, end;
};
struct ox_range ox_pool_range(uint64_t total, uint64_t grain, uint32_t idx, uint32_t count);

#ifdef __cplusplus
}
#endif
#endif
