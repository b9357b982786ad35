/* The executor of a step: issues the tasks of a plan in the order of its list. */
#ifndef OX_ENGINE_STEP_EXECUTOR_H
#define OX_ENGINE_STEP_EXECUTOR_H

#include "engine/step/rank/rank.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Runs a plan and drains all lanes. ox_rank_end has to follow with the status of all ranks together, once all have
 * returned: it says what the step leaves behind. */
OX_MUST enum ox_status ox_rank_run(struct ox_rank *rank, const struct ox_plan *plan,
                                   const struct ox_step_input *input);
OX_MUST enum ox_status ox_rank_end(struct ox_rank *rank, enum ox_status status);
/* As these two, for the pending update alone. */
OX_MUST enum ox_status ox_rank_run_pending(struct ox_rank *rank);
OX_MUST enum ox_status ox_rank_end_pending(struct ox_rank *rank, enum ox_status status);
/* Notes the counters at the beginning of a step, from which its result is worked out. */
void ox_rank_begin_counting(struct ox_rank *rank);
/* Adds traffic and seconds of the step to the result, and traffic of the step to `out`. */
void ox_rank_times(const struct ox_rank *rank, struct ox_rank_times *out);
void ox_rank_add_result(struct ox_rank *rank, struct ox_step_result *out);
void ox_rank_add_traffic(const struct ox_rank *rank, uint64_t out[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]);
/* The losses of all micro-batches of the last step or evaluation, so many doubles apart. */
const double *ox_rank_losses(const struct ox_rank *rank, uint32_t *stride);
/* Adds up the losses of each micro-batch's groups of rows, in their order, and returns them like ox_rank_losses: after
 * an evaluation, when nothing else looks at them. */
const double *ox_rank_join_losses(const struct ox_rank *rank, uint32_t *stride);
struct ox_batch ox_rank_batch(struct ox_rank *rank, uint32_t mb_idx);
/* Takes the micro-batches of a rank that has the same. */
void ox_rank_copy_batches(struct ox_rank *rank, const struct ox_rank *from);
/* Before a step: notes which have several documents, and brings rows into the order of row groups. */
void ox_rank_take_batches(struct ox_rank *rank, const struct ox_plan *plan);
/* Makes room for the logits that a test requests, where it does, and copies them after the step. */
OX_MUST enum ox_status ox_rank_make_logits(struct ox_rank *rank, const struct ox_step_input *input);
OX_MUST enum ox_status ox_rank_take_logits(struct ox_rank *rank, const struct ox_step_input *input,
                                           enum ox_status status);

/* Queues a NARROW or WIDEN on its lane. */
OX_MUST enum ox_status ox_recode_issue(struct ox_rank *rank, const struct ox_plan *plan, const struct ox_task *task,
                                       struct ox_lane *lane);

/* A task for a host lane; the lane's owner is the rank. */
struct ox_host_task {
    const struct ox_plan *plan;
    uint32_t task_idx;
    bool idle; /* it does not work in this step */
};
enum ox_status ox_host_task_run(void *rank, const void *host_task);

#ifdef __cplusplus
}
#endif
#endif
