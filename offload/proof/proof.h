/* The proof of a plan, without which no plan is run. It is independent of the builder: it reads a plan, its input and
 * the types of plan.h and shard.h as data, and states every size, every rule and every case that a step can meet
 * itself. It links without any file of the builder but the names that its messages use
 * (tests/unit/offload/proof/test_proof_alone.c). */
#ifndef OX_OFFLOAD_PROOF_H
#define OX_OFFLOAD_PROOF_H

#include "offload/plan/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Proves a plan from its task list alone. Order and space: buffers lie within their arenas; nothing is read before it
 * was written and has arrived; uses in conflict have an order; no byte goes to a new buffer while an old one may still
 * use it; every dependency is on an earlier task. Work: every task finds exactly what it needs; every unit's gradient
 * is summed in order, counted once in the norm and applied once; every home ends as the optimizer made it; the store is
 * committed once, at the end; an evaluation leaves gradients as it found them. Sizes: buffers, spool extents, peaks,
 * the store's share and the traffic of every task, link and kind are exact, neither too small nor too large. Returns
 * OX_E_CONFIG, with the first violation in words. */
OX_MUST enum ox_status ox_proof_check(const struct ox_plan *plan, const struct ox_plan_input *input);

/* Whether the plan, if it is proven, is proven for a step that begins with these facts (enum ox_fact, those of the
 * step) and in which the carried updates of the units marked in `due` have still to run. The executor asserts this. */
bool ox_proof_covers(const struct ox_plan *plan, const struct ox_plan_input *input, uint32_t facts,
                     const uint8_t *due);

/* Proves that evaluation finds what training left, and the other way round: homes, batches and constants lie at the
 * same offsets, and neither plan uses memory in which the other keeps something. */
OX_MUST enum ox_status ox_proof_check_pair(const struct ox_plan *train, const struct ox_plan *eval);

/* Proves that plans fit together which are those of all ranks of a step, in order, and proven each: the ranks divide
 * its micro-batches, do the same together in the same order, and so never wait for one another for ever. `inputs` may
 * not be the same, because each has the micro-batches and the table of its rank. */
OX_MUST enum ox_status ox_proof_check_ranks(const struct ox_plan *const *plans,
                                            const struct ox_plan_input *const *inputs, uint32_t count);

#ifdef __cplusplus
}
#endif
#endif
