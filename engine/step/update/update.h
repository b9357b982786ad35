/* The optimizer's part of a step: units pass it chunk by chunk. */
#ifndef OX_ENGINE_STEP_UPDATE_H
#define OX_ENGINE_STEP_UPDATE_H

#include "engine/step/rank/rank.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Reserves the scratch of Muon, where that is the optimizer: in host memory, and on a GPU, which then iterates. The
 * device is open. */
OX_MUST enum ox_status ox_optim_open_muon(struct ox_rank *rank);
void ox_optim_close_muon(struct ox_rank *rank);
/* Updates a matrix, which is the span, and adds how many of its parameters are no longer finite; for the thread that
 * updates. Fails where the GPU does. */
OX_MUST enum ox_status ox_optim_matrix(struct ox_rank *rank, struct ox_matrix matrix,
                                       const struct ox_update_span *span, const struct ox_optim_hyper *hyper,
                                       uint64_t *bad_count);
/* Opens the optimizer's stream; the store is open. */
OX_MUST enum ox_status ox_optim_open(struct ox_rank *rank);
/* Updates one unit, chunk by chunk; its writes may be in flight when it returns, and reads of the unit after it. */
OX_MUST enum ox_status ox_optim_run(struct ox_rank *rank, const struct ox_plan *plan, const struct ox_task *task);
/* Issues the update of one unit as operations of the compute lane, where the unit's state lives on the device. */
OX_MUST enum ox_status ox_optim_issue(struct ox_rank *rank, const struct ox_plan *plan, const struct ox_task *task,
                                      struct ox_lane *lane);
/* Waits for all transfers of the stream and empties it; the first failure wins. */
OX_MUST enum ox_status ox_optim_drain(struct ox_rank *rank);
/* Places the stream's slots in the plan's buffer for them. */
void ox_optim_set_slots(struct ox_rank *rank, const struct ox_plan *plan, const struct ox_task *task);
/* Lets a reader see the planes that updates make, chunk by chunk, from the next step on; NULL: no longer. */
void ox_rank_tee(struct ox_rank *rank, const struct ox_tee *tee);

#ifdef __cplusplus
}
#endif
#endif
