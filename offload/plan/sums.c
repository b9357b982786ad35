#include "offload/plan/sums.h"

#include "base/assert.h"
#include "base/bytes.h"

/* ---- the tree ------------------------------------------------------------------------------------- */

/* The end of the largest node that begins at leaf `first` and ends at `past` or before. Nodes are blocks of a power of
 * two of leaves that begin at a multiple of their size, and at the right border what is left of such a block. */
static uint32_t node_past(const struct ox_sums *sums, uint32_t first, uint32_t past) {
    const uint32_t largest = first == 0 ? sums->groups : first & (0 - first), left = sums->groups - first;
    if (past == sums->groups && left <= largest) {
        return past;
    }
    const uint32_t count = largest < past - first ? largest : past - first;
    return first + (UINT32_C(1) << (31 - __builtin_clz(count)));
}

/* How many largest nodes there are within these leaves: what is stacked when they are summed. */
static uint32_t node_count(const struct ox_sums *sums, uint32_t first, uint32_t past) {
    uint32_t count = 0;
    for (; first < past; first = node_past(sums, first, past)) {
        count++;
    }
    return count;
}

/* ---- a rank --------------------------------------------------------------------------------------- */

/* The first micro-batch of a leaf, within the step. */
static uint32_t leaf_first(const struct ox_sums *sums, uint32_t leaf) {
    return (uint32_t)ox_div_up((uint64_t)sums->micro_batches * leaf, sums->groups);
}

struct ox_sum_node ox_sums_leaves(const struct ox_sums *sums) {
    OX_ASSERT(sums->rank < sums->ranks && sums->ranks <= sums->groups && sums->groups <= sums->micro_batches);
    const uint64_t groups = sums->groups;
    return (struct ox_sum_node){(uint32_t)ox_div_up(groups * sums->rank, sums->ranks),
                                (uint32_t)ox_div_up(groups * (sums->rank + 1), sums->ranks)};
}

uint32_t ox_sums_first(const struct ox_sums *sums) {
    return leaf_first(sums, ox_sums_leaves(sums).first);
}

uint32_t ox_sums_count(const struct ox_sums *sums) {
    const struct ox_sum_node leaves = ox_sums_leaves(sums);
    return leaf_first(sums, leaves.past) - leaf_first(sums, leaves.first);
}

/* ---- micro-batches -------------------------------------------------------------------------------- */

uint32_t ox_sums_leaf(const struct ox_sums *sums, uint32_t mb_idx) {
    const uint64_t at = (uint64_t)ox_sums_first(sums) + mb_idx;
    return (uint32_t)(at * sums->groups / sums->micro_batches);
}

bool ox_sums_begins_leaf(const struct ox_sums *sums, uint32_t mb_idx) {
    return leaf_first(sums, ox_sums_leaf(sums, mb_idx)) == ox_sums_first(sums) + mb_idx;
}

bool ox_sums_ends_leaf(const struct ox_sums *sums, uint32_t mb_idx) {
    return leaf_first(sums, ox_sums_leaf(sums, mb_idx) + 1) == ox_sums_first(sums) + mb_idx + 1;
}

uint32_t ox_sums_slot(const struct ox_sums *sums, uint32_t mb_idx) {
    return node_count(sums, ox_sums_leaves(sums).first, ox_sums_leaf(sums, mb_idx));
}

uint32_t ox_sums_occupied(const struct ox_sums *sums, uint32_t count) {
    if (count == 0) {
        return 0;
    }
    const uint32_t leaf = ox_sums_leaf(sums, count - 1);
    return ox_sums_ends_leaf(sums, count - 1) ? node_count(sums, ox_sums_leaves(sums).first, leaf + 1)
                                              : ox_sums_slot(sums, count - 1) + 1;
}

uint32_t ox_sums_folds(const struct ox_sums *sums, uint32_t mb_idx) {
    return ox_sums_slot(sums, mb_idx) + 1 - ox_sums_occupied(sums, mb_idx + 1);
}

uint32_t ox_sums_slots(const struct ox_sums *sums, uint32_t mb_first, uint32_t mb_past) {
    uint32_t most = ox_sums_occupied(sums, mb_first);
    for (uint32_t mb_idx = mb_first; mb_idx < mb_past; mb_idx++) {
        const uint32_t slots = ox_sums_slot(sums, mb_idx) + 1;
        most = slots > most ? slots : most;
    }
    return most;
}

/* ---- parts ---------------------------------------------------------------------------------------- */

uint32_t ox_sums_part_count(const struct ox_sums *sums) {
    const struct ox_sum_node leaves = ox_sums_leaves(sums);
    return node_count(sums, leaves.first, leaves.past);
}

struct ox_sum_node ox_sums_part(const struct ox_sums *sums, uint32_t part) {
    const struct ox_sum_node leaves = ox_sums_leaves(sums);
    struct ox_sum_node node = {leaves.first, node_past(sums, leaves.first, leaves.past)};
    for (uint32_t i = 0; i < part; i++) {
        node = (struct ox_sum_node){node.past, node_past(sums, node.past, leaves.past)};
    }
    OX_ASSERT(node.past <= leaves.past && node.first < node.past);
    return node;
}

/* How many parts another rank has. */
static uint32_t parts_of(const struct ox_sums *sums, uint32_t rank) {
    struct ox_sums other = *sums;
    other.rank = rank;
    return ox_sums_part_count(&other);
}

uint32_t ox_sums_rounds(const struct ox_sums *sums) {
    uint32_t most = 0;
    for (uint32_t rank = 0; rank < sums->ranks; rank++) {
        const uint32_t parts = parts_of(sums, rank);
        most = parts > most ? parts : most;
    }
    return most;
}

uint32_t ox_sums_givers(const struct ox_sums *sums, uint32_t part) {
    uint32_t count = 0;
    for (uint32_t rank = sums->span_first; rank < ox_sums_span_past(sums); rank++) {
        count += parts_of(sums, rank) > part;
    }
    return count;
}

uint32_t ox_sums_parts(const struct ox_sums *sums) {
    uint32_t count = 0;
    for (uint32_t rank = sums->span_first; rank < ox_sums_span_past(sums); rank++) {
        count += parts_of(sums, rank);
    }
    return count;
}

uint32_t ox_sums_place(const struct ox_sums *sums, uint32_t rank, uint32_t part) {
    uint32_t place = 0;
    for (uint32_t i = 0; i < part; i++) {
        place += ox_sums_givers(sums, i);
    }
    for (uint32_t i = sums->span_first; i < rank; i++) {
        place += parts_of(sums, i) > part;
    }
    return place;
}

uint32_t ox_sums_place_of(const struct ox_sums *sums, uint32_t leaf) {
    struct ox_sums other = *sums;
    for (other.rank = sums->span_first; other.rank < ox_sums_span_past(sums); other.rank++) {
        for (uint32_t part = 0; part < ox_sums_part_count(&other); part++) {
            if (ox_sums_part(&other, part).first == leaf) {
                return ox_sums_place(sums, other.rank, part);
            }
        }
    }
    OX_ASSERT(!"no part begins with this leaf");
    return 0;
}

/* The leaves of all ranks of the span. */
static struct ox_sum_node span_leaves(const struct ox_sums *sums) {
    struct ox_sums first = *sums, last = *sums;
    first.rank = sums->span_first;
    last.rank = ox_sums_span_past(sums) - 1;
    return (struct ox_sum_node){ox_sums_leaves(&first).first, ox_sums_leaves(&last).past};
}

uint32_t ox_sums_top_folds(const struct ox_sums *sums, struct ox_sum_node part) {
    const uint32_t first = span_leaves(sums).first;
    return node_count(sums, first, part.first) + 1 - node_count(sums, first, part.past);
}

uint32_t ox_sums_nodes(const struct ox_sums *sums) {
    const struct ox_sum_node leaves = span_leaves(sums);
    return node_count(sums, leaves.first, leaves.past);
}
