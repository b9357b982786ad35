/* Writes down the order of sums by following the tree from its root. */
#include "offload/proof/sums.h"
#include "offload/proof/sizes.h"

#include <stddef.h>

/* A step of the model, and what of it the rank has: leaves [first, past). */
struct tree {
    uint64_t micro_batches, leaves, first, past;
    struct ox_proof_sum_step *steps;
    uint32_t count;
};

/* Where shares are not whole, earlier ones are larger. */
static uint64_t quotient_up(uint64_t total, uint64_t count) {
    return (total + count - 1) / count;
}

/* The tree of all micro-batches, each of which counts so often, as one of `count` ranks, or copies, sees it. */
static struct tree tree_among(const struct ox_plan_input *input, uint64_t times, uint64_t count, uint64_t rank_idx) {
    const struct ox_plan_ranks *const ranks = &input->ranks;
    const uint64_t leaves = (ranks->sum_groups > 1 ? ranks->sum_groups : 1) * times;
    const uint64_t given = ranks->micro_batches > 0 ? ranks->micro_batches : input->model.micro_batches;
    return (struct tree){.micro_batches = given * times, .leaves = leaves,
                         .first = quotient_up(leaves * rank_idx, count),
                         .past = quotient_up(leaves * (rank_idx + 1), count)};
}

/* That of the step, whose leaves are those of the first group of rows, then those of the second ... */
static struct tree tree_of(const struct ox_plan_input *input, uint64_t count, uint64_t rank_idx) {
    return tree_among(input, ox_proof_row_groups(input), count, rank_idx);
}

/* That of one group of rows, as the rank sees it. */
static struct tree tree_of_rows(const struct ox_plan_input *input) {
    const uint64_t of_batch = ox_proof_ranks(input) / ox_proof_contexts(input);
    return tree_among(input, 1, of_batch, ox_proof_rank_of(input) % of_batch);
}

/* The first micro-batch of a leaf, counted from the rank's first. */
static int64_t begin_of(const struct tree *tree, uint64_t leaf) {
    return (int64_t)quotient_up(tree->micro_batches * leaf, tree->leaves) -
           (int64_t)quotient_up(tree->micro_batches * tree->first, tree->leaves);
}

/* Where a node of several leaves is split. */
static uint64_t split_of(uint64_t a, uint64_t b) {
    uint64_t left = 1;
    while (left * 2 < b - a) {
        left *= 2;
    }
    return a + left;
}

/* ---- steps ----------------------------------------------------------------------------------------- */

static void put(struct tree *tree, enum ox_proof_sum_kind kind, uint32_t slot, uint32_t mb_idx) {
    tree->steps[tree->count++] = (struct ox_proof_sum_step){kind, slot, mb_idx};
}

/* Sums the leaves [a, b) in a slot. */
static void sum_node(struct tree *tree, uint64_t a, uint64_t b, uint32_t slot) {
    if (b - a == 1) {
        for (int64_t i = begin_of(tree, a); i < begin_of(tree, b); i++) {
            put(tree, i == begin_of(tree, a) ? SUM_BEGINS : SUM_ADDS, slot, (uint32_t)i);
        }
        return;
    }
    sum_node(tree, a, split_of(a, b), slot);
    sum_node(tree, split_of(a, b), b, slot + 1);
    put(tree, SUM_FOLDS, slot, OX_NONE);
}

/* Sums what the rank has of the leaves [a, b), in slots from this one on; returns the next free slot. */
static uint32_t sum_parts(struct tree *tree, uint64_t a, uint64_t b, uint32_t slot) {
    if (b <= tree->first || a >= tree->past) {
        return slot;
    }
    if (a >= tree->first && b <= tree->past) {
        sum_node(tree, a, b, slot);
        return slot + 1;
    }
    slot = sum_parts(tree, a, split_of(a, b), slot);
    return sum_parts(tree, split_of(a, b), b, slot);
}

uint32_t ox_proof_sum_steps(const struct ox_plan_input *input, struct ox_proof_sum_step *out) {
    struct tree tree = tree_of_rows(input);
    tree.steps = out;
    sum_parts(&tree, 0, tree.leaves, 0);
    put(&tree, SUM_JOINS, 0, OX_NONE);
    return tree.count - 1;
}

/* ---- parts ----------------------------------------------------------------------------------------- */

static uint32_t parts_of(const struct tree *tree, uint64_t a, uint64_t b) {
    if (b <= tree->first || a >= tree->past) {
        return 0;
    }
    return a >= tree->first && b <= tree->past ? 1 : parts_of(tree, a, split_of(a, b)) +
                                                         parts_of(tree, split_of(a, b), b);
}

static uint32_t parts_among(const struct ox_plan_input *input, uint32_t count, uint32_t idx) {
    const struct tree tree = tree_of(input, count, idx);
    return parts_of(&tree, 0, tree.leaves);
}

/* How many sum along an axis, of all copies: ranks, those that divide experts as one, or the copies. */
static uint32_t summing(const struct ox_plan_input *input, uint32_t axis) {
    return axis == OX_AXIS_SHARD   ? ox_proof_ranks(input)
           : axis == OX_AXIS_SLICE ? ox_proof_ranks(input) / ox_proof_experts(input) : ox_proof_copies(input);
}

uint32_t ox_proof_parts(const struct ox_plan_input *input, uint32_t axis, uint32_t member_idx) {
    return axis == OX_AXIS_COPY
               ? parts_among(input, ox_proof_copies(input), member_idx)
               : parts_among(input, summing(input, axis),
                             ox_proof_copy_of(input) * ox_proof_members(input, axis) + member_idx);
}

uint32_t ox_proof_rounds(const struct ox_plan_input *input, uint32_t axis) {
    const uint32_t count = summing(input, axis);
    uint32_t rounds = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t parts = parts_among(input, count, i);
        rounds = parts > rounds ? parts : rounds;
    }
    return rounds;
}

/* ---- slots ----------------------------------------------------------------------------------------- */

static uint32_t slots_of(const struct tree *tree, uint64_t a, uint64_t b, int64_t done) {
    const bool apart = b <= tree->first || a >= tree->past, within = a >= tree->first && b <= tree->past;
    if (apart || (within && begin_of(tree, a) >= done)) {
        return 0;
    }
    if (within && (b - a == 1 || begin_of(tree, b) <= done)) {
        return 1;
    }
    return slots_of(tree, a, split_of(a, b), done) + slots_of(tree, split_of(a, b), b, done);
}

uint32_t ox_proof_sums_after(const struct ox_plan_input *input, uint32_t count) {
    const struct tree tree = tree_of_rows(input);
    return slots_of(&tree, 0, tree.leaves, count);
}
