/* The proof of a plan: what the builder writes is believed only after this has followed it. It is independent of the
 * builder: it reads a plan, its input and the definitions in plan.h and shard.h as data, states every size and every
 * rule itself, and links without any file of the builder (tests/unit/offload/proof/test_proof_alone.c). */
#ifndef OX_OFFLOAD_PROOF_H
#define OX_OFFLOAD_PROOF_H

#include "offload/plan/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Proves, from the task list alone: within the arenas; nothing read before it was written and has arrived; no
 * two uses in conflict without an order; no byte given to a new buffer while an old one may still be used;
 * every dependency on an earlier task. Then that the work is a step: every task finds exactly what it needs, every
 * unit's gradient is summed in order, counted once in the norm and applied once, every home is left as the
 * optimizer made it, and the store is committed once, at the end. An evaluation leaves gradients as it found them.
 * Sizes must be exact, neither short nor larger than what they hold: buffers, spool extents, peaks, the store's share,
 * and the traffic of every task, link and kind. OX_E_CONFIG with the first violation in words. */
OX_MUST enum ox_status ox_proof_check(const struct ox_plan *plan, const struct ox_plan_input *input);

/* Proves that an evaluation finds what training has left and the other way round: homes, batches and constants lie
 * alike, and the one has no memory of its own where the other keeps something. */
OX_MUST enum ox_status ox_proof_check_pair(const struct ox_plan *train, const struct ox_plan *eval);

#ifdef __cplusplus
}
#endif
#endif
