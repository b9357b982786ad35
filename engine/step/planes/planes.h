/* Planes of a rank's units wherever the plan has them: chunk by chunk between steps, and checksums over those that live
 * in memory. Units and chunks are those of the rank. */
#ifndef OX_ENGINE_STEP_PLANES_H
#define OX_ENGINE_STEP_PLANES_H

#include "engine/step/rank/rank.h"
#include "engine/step/stream/optim_stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- between steps: chunks.c ---- */

void ox_rank_chunk_view(struct ox_rank *rank, uint32_t unit_idx, uint32_t chunk_idx, struct ox_chunk_view *out);
OX_MUST enum ox_status ox_rank_chunk_get(struct ox_rank *rank, uint32_t unit_idx, uint32_t chunk_idx,
                                         struct ox_chunk_view *out);
OX_MUST enum ox_status ox_rank_chunk_put(struct ox_rank *rank, uint32_t unit_idx, uint32_t chunk_idx,
                                         const struct ox_chunk_view *view);
/* Puts the planes of a unit's first chunks, as a speculative update has saved them, back to where they live, on all
 * threads of the optimizer. */
OX_MUST enum ox_status ox_rank_return_saved(struct ox_rank *rank, uint32_t unit_idx, uint32_t chunk_count);
/* Between load_begin and load_end chunks that are put go to the store too. load_end waits for what is in flight. */
void ox_rank_load_begin(struct ox_rank *rank, uint64_t step);
/* The same, of a rank that has a step: its chunks are read as of that step while others are written. */
void ox_rank_write_begin(struct ox_rank *rank);
OX_MUST enum ox_status ox_rank_load_end(struct ox_rank *rank);
/* Writes what the store misses of the step to be committed, between load_begin and load_end: planes that live in memory
 * alone. */
OX_MUST enum ox_status ox_rank_put_missing(struct ox_rank *rank);
/* What exchanges of low rank keep, in the extents of the store from residual_first on: writes that of this step, or of
 * the last one, and waits; reads it to that of the last one. Without such exchanges they do nothing. */
OX_MUST enum ox_status ox_rank_write_residuals(struct ox_rank *rank, bool of_step);
OX_MUST enum ox_status ox_rank_read_residuals(struct ox_rank *rank);
void ox_rank_grad_read(const struct ox_rank *rank, uint32_t unit_idx, uint64_t first, uint64_t count, float *out);
/* Reads the planes that compute uses, as of the step's weights_step, to [hi | lo] of the whole unit; waits. */
OX_MUST enum ox_status ox_rank_read_planes(struct ox_rank *rank, struct ox_store_port *port, uint32_t unit_idx,
                                           unsigned char *target);
/* Reads a unit as of `step` (0: the last commit) to where it lives; *stop not 0 aborts it (NULL: it cannot be
 * aborted). */
OX_MUST enum ox_status ox_rank_load_unit(struct ox_rank *rank, uint32_t unit_idx, uint64_t step,
                                         const volatile sig_atomic_t *stop);
/* Makes what the step has saved obsolete: its updates hold, or memory has other planes by now. */
void ox_rank_forget_saved(struct ox_rank *rank);
/* Copies a chunk's elements between the unit's state in host memory and a state of the chunk alone. */
enum ox_state_direction { OX_STATE_TO_CHUNK, OX_STATE_TO_UNIT };
void ox_state_copy(const struct ox_rank *rank, uint32_t unit_idx, const struct ox_chunk *chunk, void *chunk_state,
                   enum ox_state_direction way);

/* Where an iteration over the roles of a unit is. */
struct ox_role_walk {
    const struct ox_tensor *last; /* of what it has gone over; NULL: at the start */
    struct ox_range range;
    uint64_t place; /* of the range's first element, as that of a tensor */
    bool decay;
    struct ox_tensor_group group;
};
/* Goes to the next role, or group within one, because decay and rates differ between them; the gaps between roles stay
 * zero, and tensors that are not trained as they are. Others of one role are neighbours without a gap and form one
 * span, because one may begin within a block of eight-bit moments; groups begin with one. */
bool ox_next_role(const struct ox_rank *rank, uint32_t unit_idx, struct ox_range within, struct ox_role_walk *walk);

/* ---- checksums over planes in memory: guard.c ---- */

/* Makes room for the sums of all chunks, if memory is to be verified. */
OX_MUST enum ox_status ox_guard_open(struct ox_rank *rank);
/* Whether the unit's chunks have sums: planes of it live in host memory and are updated there. */
bool ox_guard_covers(const struct ox_rank *rank, uint32_t unit_idx);
/* Keeps the sums of a chunk that was put into memory. */
void ox_guard_put(struct ox_rank *rank, uint32_t unit_idx, uint32_t chunk_idx, const struct ox_chunk_view *view);
/* Keeps what is known of a chunk whose planes are about to be replaced and saved. */
void ox_guard_save(struct ox_rank *rank, uint32_t unit_idx, uint32_t chunk_idx);
/* Compares a chunk that was saved, before it is put into memory again; OX_E_MEMORY if it has changed. Its sums are
 * those of memory from then on. Several threads may do so, each with other chunks. */
OX_MUST enum ox_status ox_guard_saved(struct ox_rank *rank, uint32_t unit_idx, uint32_t chunk_idx,
                                      const struct ox_chunk_view *view);
/* Keeps no sums of a unit whose update failed half-way: its planes are no state any more. */
void ox_guard_forget(struct ox_rank *rank, uint32_t unit_idx);
/* Compares a chunk that was copied from memory; OX_E_MEMORY if it has changed. */
OX_MUST enum ox_status ox_guard_get(struct ox_rank *rank, uint32_t unit_idx, uint32_t chunk_idx,
                                    const struct ox_chunk_view *view);
/* Whether an update takes all planes of a unit from the store, which memory then need not equal. */
static inline bool ox_unit_from_store(const struct ox_unit_run *run) {
    return run->source.hi == NULL && run->source.state == NULL;
}
/* Compares what an update has read with what was written before, unless it came from the store, and keeps the sums of
 * what it has written; OX_E_MEMORY, likewise. */
OX_MUST enum ox_status ox_guard_updated(struct ox_rank *rank, const struct ox_unit_run *run, uint32_t chunk_idx,
                                        const struct ox_update_sums *sums);

/* Keeps a hash of weights that were gathered into a buffer of compute memory. */
void ox_guard_gathered(struct ox_rank *rank, uint32_t buf_idx, const void *weights, uint64_t bytes);
/* Lets the lane compare gathered weights behind the last task that reads them; the lane fails with OX_E_MEMORY if they
 * have changed. */
OX_MUST enum ox_status ox_guard_issue(struct ox_rank *rank, const struct ox_plan *plan, uint32_t task_idx,
                                      struct ox_lane *lane);

#ifdef __cplusplus
}
#endif
#endif
