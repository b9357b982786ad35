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

#ifdef __cplusplus
}
#endif
#endif
