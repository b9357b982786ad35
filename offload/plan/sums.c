#include "offload/plan/plan.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "nvme/store.h"

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

/* ---- exchanges of low rank ------------------------------------------------------------------------------ */

/* The block of a matrix within [first, past) of its unit; no rows: it has none that is worth it. */
static struct ox_low_rank_block block_of(const struct ox_low_rank *how, uint32_t matrix_idx, uint64_t first,
                                         uint64_t past) {
    const struct ox_low_rank_matrix *const matrix = &how->matrices[matrix_idx];
    const uint64_t before = first > matrix->first ? first - matrix->first : 0;
    const uint64_t behind = past > matrix->first ? past - matrix->first : 0;
    const uint64_t row_first = ox_div_up(before, matrix->cols);
    const uint64_t row_past = ox_min_u64(behind / matrix->cols, matrix->rows);
    const uint64_t rows = row_past > row_first ? row_past - row_first : 0, cols = matrix->cols;
    const uint64_t rank = ox_min_u64(how->rank, ox_min_u64(rows, cols));
    const bool pays = rank > 0 && (double)((rows + cols) * rank) * how->min_rate < (double)(rows * cols);
    return (struct ox_low_rank_block){
        .first = matrix->first + row_first * cols - (rows > 0 ? first : 0), .rows = pays ? (uint32_t)rows : 0,
        .cols = matrix->cols, .rank = (uint32_t)rank, .matrix_idx = matrix_idx, .row_first = (uint32_t)row_first};
}

bool ox_low_rank_next(const struct ox_plan_input *input, uint32_t grad_idx, struct ox_low_rank_block *block) {
    const struct ox_low_rank *const how = input->ranks.low_rank;
    const uint32_t unit_idx = input->model.grads[grad_idx].unit_idx;
    if (how == NULL || ox_plan_copies(input) == 1) {
        return false;
    }
    const uint64_t first = input->table->shards[unit_idx].elem_first;
    const uint64_t past = first + ox_plan_grad_slice(input, grad_idx);
    uint32_t i = block->rows == 0 ? how->first_of[unit_idx] : block->matrix_idx + 1;
    for (; i < how->first_of[unit_idx + 1]; i++) {
        *block = block_of(how, i, first, past);
        if (block->rows > 0) {
            return true;
        }
    }
    return false;
}

struct ox_low_rank_sizes ox_low_rank_sizes(const struct ox_plan_input *input, uint32_t grad_idx) {
    struct ox_low_rank_sizes sizes = {0};
    struct ox_low_rank_block block = {0};
    while (ox_low_rank_next(input, grad_idx, &block)) {
        sizes.blocks += (uint64_t)block.rows * block.cols;
        sizes.p += (uint64_t)block.rows * block.rank;
        sizes.q += (uint64_t)block.cols * block.rank;
        sizes.count++;
    }
    sizes.raw = ox_plan_grad_slice(input, grad_idx) - sizes.blocks;
    return sizes;
}

bool ox_low_rank_used(const struct ox_plan_input *input, uint32_t grad_idx) {
    const struct ox_low_rank *const how = input->ranks.low_rank;
    const struct ox_plan_grad *const grad = &input->model.grads[grad_idx];
    bool used = false;
    for (uint32_t i = 0; how != NULL && i < how->first_of[grad->unit_idx + 1] - how->first_of[grad->unit_idx]; i++) {
        used = used || block_of(how, how->first_of[grad->unit_idx] + i, 0, grad->elem_count).rows > 0;
    }
    return used && ox_plan_copies(input) > 1;
}

uint64_t ox_low_rank_kept(const struct ox_low_rank_sizes *sizes) {
    return ox_align_up(sizes->blocks + sizes->q, OX_IO_ALIGN_BYTES / sizeof(float));
}

uint32_t ox_low_rank_extents(const struct ox_plan_input *input, struct ox_extent_spec *out) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < input->model.grad_count; i++) {
        const struct ox_low_rank_sizes sizes = ox_low_rank_sizes(input, i);
        if (sizes.count > 0 && out != NULL) {
            out[count] = (struct ox_extent_spec){.bytes = ox_low_rank_kept(&sizes) * sizeof(float)};
        }
        count += sizes.count > 0;
    }
    return count;
}

uint64_t ox_low_rank_stored_bytes(const struct ox_plan_input *input) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < input->model.grad_count && input->ranks.low_rank != NULL; i++) {
        const struct ox_low_rank_sizes sizes = ox_low_rank_sizes(input, i);
        bytes += ox_low_rank_kept(&sizes) * sizeof(float);
    }
    return bytes;
}

double ox_low_rank_memory_bytes(const struct ox_plan_input *input, const struct ox_task *task) {
    if (task->kind != OX_TASK_MOVE || task->move != OX_MOVE_LOW_RANK) {
        return 0;
    }
    const struct ox_low_rank_sizes sizes = ox_low_rank_sizes(input, task->grad_idx);
    return 36 * (double)sizes.blocks + 8 * (double)ox_low_rank_room(&sizes, ox_plan_copies(input));
}

uint64_t ox_low_rank_given_bytes(const struct ox_plan_input *input, uint32_t grad_idx) {
    const struct ox_low_rank_sizes sizes = ox_low_rank_sizes(input, grad_idx);
    return (sizes.p + sizes.raw + sizes.q) * sizeof(float);
}
