/* The order in which a gradient is summed, as the proof states it. The micro-batches of a step are cut into groups, and
 * the group of leaf v begins with micro-batch floor(M v / V). A node of leaves [a, b) is the sum of its left side and
 * its right side, which are split at a + the largest power of two below b - a; a leaf begins as its first micro-batch.
 * A rank sums every node that lies within its leaves. A sum is kept in the lowest slot of the accumulator that is free
 * when it begins, and takes the slot of its left side. */
#ifndef OX_OFFLOAD_PROOF_SUMS_H
#define OX_OFFLOAD_PROOF_SUMS_H

#include "offload/plan/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum ox_proof_sum_kind { SUM_BEGINS, SUM_ADDS, SUM_FOLDS, SUM_JOINS };

/* One step of a sum: a slot is set to a micro-batch, a micro-batch is added to it, or the slot above is. All of that is
 * done for each of the rank's groups of rows by itself; in the end these are joined. */
struct ox_proof_sum_step {
    enum ox_proof_sum_kind kind;
    uint32_t slot;
    uint32_t mb_idx; /* BEGINS, ADDS: within the rank; else OX_NONE */
};

/* Writes all steps of the rank's sums in order and returns how many there are, at most two for each micro-batch. Behind
 * them is the step that joins sums side by side, of a gradient that has several. */
uint32_t ox_proof_sum_steps(const struct ox_plan_input *input, struct ox_proof_sum_step *out);

/* How many slots hold a sum when the first `count` micro-batches of the rank are added and folded. */
uint32_t ox_proof_sums_after(const struct ox_plan_input *input, uint32_t count);

/* How many nodes, which are its parts, member `member_idx` of the ranks along an axis has: they are the first slots of
 * a holder's accumulator, or what is left when the holders of a copy have added theirs. And the most that any rank of
 * the step has, or any copy. */
uint32_t ox_proof_parts(const struct ox_plan_input *input, uint32_t axis, uint32_t member_idx);
uint32_t ox_proof_rounds(const struct ox_plan_input *input, uint32_t axis);

#ifdef __cplusplus
}
#endif
#endif
