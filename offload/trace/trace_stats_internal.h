/* What follows a chain of tasks back through a step, for one rank (trace_stats.c) and for several (trace_ranks.c). */
#ifndef OX_OFFLOAD_TRACE_STATS_INTERNAL_H
#define OX_OFFLOAD_TRACE_STATS_INTERNAL_H

#include "offload/trace/trace_stats.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_TRACE_NO_TASK = UINT32_MAX };

struct ox_trace_chain {
    const struct ox_trace_header *head;
    const struct ox_trace_step *step;
    uint32_t *previous; /* per task: the previous one on its lane, or OX_TRACE_NO_TASK */
    uint32_t norm_idx;  /* tasks after it are issued only when it is done */
};
/* The caller closes it with ox_trace_chain_close(), which takes one that is all zero. */
OX_MUST enum ox_status ox_trace_chain_open(const struct ox_trace_header *head, const struct ox_trace_step *step,
                                           struct ox_trace_chain *out);
void ox_trace_chain_close(struct ox_trace_chain *chain);

/* The task that this one waited for last: a dependency, the previous task of its lane, or a task that held up the
 * issue; OX_TRACE_NO_TASK: none. */
uint32_t ox_trace_held_by(const struct ox_trace_chain *chain, uint32_t idx);
/* The task of the step that ended last; OX_TRACE_NO_TASK: none was recorded. */
uint32_t ox_trace_last_task(const struct ox_trace_chain *chain);
/* Adds `ns` of a task to `causes`: its lane, or the parts that were waits. Returns what is left without waits. */
uint64_t ox_trace_add_time(const struct ox_trace_chain *chain, uint32_t idx, uint64_t ns,
                           uint64_t causes[OX_TRACE_CAUSE_COUNT]);

#ifdef __cplusplus
}
#endif
#endif
