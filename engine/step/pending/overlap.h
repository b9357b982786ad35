/* What a step leaves to the next one: updates that are pending, repeated, rolled back or committed. */
#ifndef OX_ENGINE_STEP_OVERLAP_H
#define OX_ENGINE_STEP_OVERLAP_H

#include "engine/step/rank/rank.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Determines the facts of the step, with step.input set. `own_work`: a forward follows; else a pending update is
 * finished alone. */
void ox_overlap_begin_step(struct ox_rank *rank, bool own_work);
struct ox_update_args ox_overlap_update_args(const struct ox_rank *rank, const struct ox_task *task);
/* Called after an UPDATE task has updated its unit; `nonfinite_count` of its parameters are not finite. */
OX_MUST enum ox_status ox_overlap_updated(struct ox_rank *rank, const struct ox_task *task,
                                          uint64_t nonfinite_count);
/* Called before a speculative update replaces the planes of a chunk, which it saves. */
void ox_overlap_saves(struct ox_rank *rank, uint32_t unit_idx, uint32_t chunk_idx);
OX_MUST enum ox_status ox_overlap_begin_transaction(struct ox_rank *rank, const struct ox_task *task);
OX_MUST enum ox_status ox_overlap_commit(struct ox_rank *rank, const struct ox_task *task);
/* Called after all lanes have drained with `status`, which it returns unless it finds something worse. */
OX_MUST enum ox_status ox_overlap_end_step(struct ox_rank *rank, enum ox_status status);
/* As ox_overlap_end_step, for an update that was finished alone or within an evaluation. */
OX_MUST enum ox_status ox_overlap_end_finish(struct ox_rank *rank, enum ox_status status);
/* Called before a step and before planes are read: after a failure it reads the last commit back. */
OX_MUST enum ox_status ox_overlap_make_ready(struct ox_rank *rank);
/* Called where the store was opened again, which holds the last commit alone, while the rank is at a step that was
 * kept: the steps since the commit are lost, and all calls fail until that is accepted. */
void ox_rank_lose_kept(struct ox_rank *rank);
/* As ox_engine_roll_back. */
OX_MUST enum ox_status ox_rank_roll_back(struct ox_rank *rank);
/* Checks the counts of units updated on the device, after all lanes have drained without failure. */
OX_MUST enum ox_status ox_overlap_check_counts(struct ox_rank *rank);

#ifdef __cplusplus
}
#endif
#endif
