/* The fixed order in which the gradient of a step is summed, so that the number of ranks changes no bit of it.
 *
 * The micro-batches of a step are cut into `groups` leaves of successive micro-batches. Each leaf is summed by itself,
 * from zero, in ascending order. Then leaves are joined in a tree: a node of leaves [a, b) splits at a + the largest
 * power of two below b - a, and its sum is that of its left side plus that of its right side. A rank has successive
 * leaves; where shares are not whole, earlier ones are larger, so that the first rank has most to do. The largest nodes
 * that lie within a rank's leaves are its parts, which it sums alone; the top of the tree, over the parts of all ranks,
 * joins them.
 *
 * A rank follows the tree with a stack of sums, the slots of an accumulator: a leaf is summed in the slot above those
 * of all nodes that are still to be joined, and as long as the two topmost slots are the two sides of a node, the upper
 * one is added to the lower one, which is a fold. Its parts remain in the end.
 *
 * Micro-batches are numbered within their rank, leaves within the step. All functions are pure. */
#ifndef OX_OFFLOAD_SUMS_H
#define OX_OFFLOAD_SUMS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A rank's place in a step: ranks <= groups <= micro_batches, and all at least 1. The parts of `span_count` ranks from
 * `span_first` on, among which the rank is, are joined: all, or of copies that divide the ranks the ranks of one copy,
 * which may leave several nodes. The sums of these are joined as if each copy were a rank. */
struct ox_sums {
    uint32_t micro_batches; /* of the step */
    uint32_t groups;
    uint32_t ranks, rank;
    uint32_t span_first, span_count; /* 0 of them: all */
};

/* Leaves [first, past). */
struct ox_sum_node {
    uint32_t first, past;
};

/* The leaves of a rank, and how many micro-batches come before those of the rank. */
struct ox_sum_node ox_sums_leaves(const struct ox_sums *sums);
uint32_t ox_sums_first(const struct ox_sums *sums);
/* How many micro-batches the rank has. */
uint32_t ox_sums_count(const struct ox_sums *sums);

/* The leaf of a micro-batch, and whether the micro-batch is the leaf's first or last one. */
uint32_t ox_sums_leaf(const struct ox_sums *sums, uint32_t mb_idx);
bool ox_sums_begins_leaf(const struct ox_sums *sums, uint32_t mb_idx);
bool ox_sums_ends_leaf(const struct ox_sums *sums, uint32_t mb_idx);

/* The slot in which the micro-batch is summed, and how many folds follow it. */
uint32_t ox_sums_slot(const struct ox_sums *sums, uint32_t mb_idx);
uint32_t ox_sums_folds(const struct ox_sums *sums, uint32_t mb_idx);
/* How many slots hold a sum after the first `count` micro-batches and their folds. */
uint32_t ox_sums_occupied(const struct ox_sums *sums, uint32_t count);
/* The most slots that hold a sum at any time from micro-batch `mb_first` until `mb_past`, the sums before included. */
uint32_t ox_sums_slots(const struct ox_sums *sums, uint32_t mb_first, uint32_t mb_past);

/* How many parts the rank has, and the leaves of one. */
uint32_t ox_sums_part_count(const struct ox_sums *sums);
struct ox_sum_node ox_sums_part(const struct ox_sums *sums, uint32_t part);
/* The most parts that any rank of the step has, whatever the span. Over the ranks of the span: how many ranks have part
 * `part`, and how many parts there are. */
uint32_t ox_sums_rounds(const struct ox_sums *sums);
uint32_t ox_sums_givers(const struct ox_sums *sums, uint32_t part);
uint32_t ox_sums_parts(const struct ox_sums *sums);
/* Where part `part` of a rank lies among all of the span, if first parts come first, and equal ones in order of ranks;
 * and where that part lies which begins with a leaf. */
uint32_t ox_sums_place(const struct ox_sums *sums, uint32_t rank, uint32_t part);
uint32_t ox_sums_place_of(const struct ox_sums *sums, uint32_t leaf);
/* How many folds follow a part in the top of the tree, where the parts of the span are stacked in ascending order; and
 * how many nodes are left in the end, one where the span is all ranks. */
uint32_t ox_sums_top_folds(const struct ox_sums *sums, struct ox_sum_node part);
uint32_t ox_sums_nodes(const struct ox_sums *sums);
/* The ranks of the span: from this one on, until this one. */
static inline uint32_t ox_sums_span_past(const struct ox_sums *sums) {
    return sums->span_count > 0 ? sums->span_first + sums->span_count : sums->ranks;
}

/* ---- exchanges of low rank ------------------------------------------------------------------------------ */

/* Which parts of a gradient copies of a model exchange as products of two thin matrices (PowerSGD, arXiv 1905.13727),
 * and how large these are.
 *
 * A block is the whole rows of one matrix that lie in the rank's slice of the gradient: M, (rows, cols). Each copy
 * gives the others P = M Q, (rows, rank), then Q = M^T P, (cols, rank). What is in no block (vectors, ragged ends,
 * matrices for which that would save too little) is raw: it travels as it is, with P. */

/* A matrix of a unit, (rows, cols) behind one another, row by row, from element `first` of its flat vector on. */
struct ox_low_rank_matrix {
    uint64_t first;
    uint32_t rows, cols;
};

/* How copies exchange gradients. Matrices are those of all units, of each unit in order; unit i has those from
 * first_of[i] to first_of[i + 1]. Not owned. */
struct ox_low_rank {
    uint32_t rank;   /* at least 1; a block has less where it has fewer rows or columns */
    double min_rate; /* a block is sent so where that is as many times smaller; above 0 */
    const struct ox_low_rank_matrix *matrices;
    const uint32_t *first_of;
};

struct ox_low_rank_block {
    uint64_t first; /* of the slice */
    uint32_t rows, cols, rank;
    uint32_t matrix_idx, row_first; /* its matrix, of all; its first row there */
};

/* Elements: of all blocks; of their P and their Q; and raw. */
struct ox_low_rank_sizes {
    uint64_t blocks, p, q, raw;
    uint32_t count; /* blocks */
};

struct ox_plan_input;

/* Sets the next block of a gradient's slice, in order; `*block` is the one before, or zeros for the first. false: there
 * is none, also without low_rank or with one copy. */
bool ox_low_rank_next(const struct ox_plan_input *input, uint32_t grad_idx, struct ox_low_rank_block *block);
struct ox_low_rank_sizes ox_low_rank_sizes(const struct ox_plan_input *input, uint32_t grad_idx);
/* Whether copies exchange the gradient so: the whole of it would have a block. A slice that has none is all raw, as all
 * ranks do the same. */
bool ox_low_rank_used(const struct ox_plan_input *input, uint32_t grad_idx);
/* Floats that a rank keeps between steps, twice, the ones of the last step and those of this one: residuals of blocks,
 * then their Q, in whole blocks of a drive. And those that an exchange takes: P with raw of the rank, then of all
 * copies; Q likewise. */
uint64_t ox_low_rank_kept(const struct ox_low_rank_sizes *sizes);
static inline uint64_t ox_low_rank_room(const struct ox_low_rank_sizes *sizes, uint32_t copies) {
    return (1 + (uint64_t)copies) * (sizes->p + sizes->raw + sizes->q);
}
/* Bytes that a rank gives to each other copy: P with what is raw, and Q. */
uint64_t ox_low_rank_given_bytes(const struct ox_plan_input *input, uint32_t grad_idx);
/* The extents that a store has of what a rank keeps, one for each gradient that has a block in its slice, in order; a
 * transaction writes them whole. Returns how many; `out` may be NULL. And their bytes. */
struct ox_extent_spec;
uint32_t ox_low_rank_extents(const struct ox_plan_input *input, struct ox_extent_spec *out);
uint64_t ox_low_rank_stored_bytes(const struct ox_plan_input *input);
/* Bytes of memory that the task of such an exchange moves: it adds the residual, multiplies twice, writes the sum and
 * the next residual, and adds what all copies sent. 0 for other tasks. */
struct ox_task;
double ox_low_rank_memory_bytes(const struct ox_plan_input *input, const struct ox_task *task);

#ifdef __cplusplus
}
#endif
#endif
