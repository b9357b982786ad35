/* Declarations that the files of this folder share. */
#ifndef OX_OFFLOAD_PROOF_INTERNAL_H
#define OX_OFFLOAD_PROOF_INTERNAL_H

#include "offload/proof/proof.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns OX_E_CONFIG with a text that names the task and what is wrong with it. */
OX_MUST enum ox_status ox_proof_fault(const struct ox_plan *plan, uint32_t task_idx, const char *what);

/* Checks resident buffers, spool extents and the store's share of the drives: offload/proof/sizes_check.c. */
OX_MUST enum ox_status ox_proof_check_sizes(const struct ox_plan *plan, const struct ox_plan_input *input);

/* Checks what the tasks compute, and the sizes of what they hold and move: offload/proof/effects.c. */
OX_MUST enum ox_status ox_proof_check_effects(const struct ox_plan *plan, const struct ox_plan_input *input);

/* Whether a task sends to another rank of the pipeline or receives from one. */
static inline bool ox_proof_is_transfer(const struct ox_task *task) {
    return task->lane == OX_LANE_LINK_IN || task->lane == OX_LANE_LINK_OUT;
}
/* Checks that the lists of a pipeline's ranks fit together: offload/proof/joint.c. */
OX_MUST enum ox_status ox_proof_check_pipe(const struct ox_plan *const *plans,
                                           const struct ox_plan_input *const *inputs, uint32_t count);

#ifdef __cplusplus
}
#endif
#endif
