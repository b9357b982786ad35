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

#ifdef __cplusplus
}
#endif
#endif
