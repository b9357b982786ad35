/* Computes every size from the definitions and not from the builder's code; if the two differ, the plan is refused. */
#include "offload/proof/sizes.h"
#include "offload/proof/sums.h"

#include "base/bytes.h"

/* Bytes of hi and of lo, the two halves of an fp32 parameter (base/planes.h); of an fp32 number; of a square sum. */
enum { HALF_BYTES = 2, WORD_BYTES = 4 };
static const uint64_t SUM_OF_SQUARES_BYTES = 8;

/* ---- planes and state ------------------------------------------------------------------------------ */

/* The part that the one of number `rank_idx` has where so many elements are divided among so many ranks; of a whole
 * unit one of them, `owner`, has all. */
static struct ox_proof_part part_among(const struct ox_shard *shard, uint64_t ranks, uint64_t elems, uint32_t rank_idx,
                                       uint32_t owner) {
    if (shard->whole && ranks > 1) {
        return (struct ox_proof_part){.first = rank_idx > owner ? elems : 0, .count = rank_idx == owner ? elems : 0};
    }
    const uint64_t chunk = shard->chunk_elems;
    const uint64_t chunks = (elems + chunk - 1) / chunk, most = (chunks + ranks - 1) / ranks * chunk;
    const uint64_t before = ranks > 1 ? most * rank_idx : 0;
    const uint64_t first = before < elems ? before : elems, left = elems - first;
    return (struct ox_proof_part){.first = first, .count = left < most ? left : most};
}

struct ox_proof_part ox_proof_part_of(const struct ox_plan_input *input, uint32_t unit_idx, uint32_t rank_idx) {
    const uint32_t holders = ox_proof_members(input, ox_proof_axis_of(input, unit_idx));
    if (!ox_proof_rank_holds(input, rank_idx, unit_idx)) {
        return (struct ox_proof_part){0, 0};
    }
    const struct ox_shard *const shard = &input->table->shards[unit_idx];
    const uint32_t apart = ox_proof_is_expert(input, unit_idx) ? ox_proof_experts(input) : 1;
    return part_among(shard, holders, ox_proof_elems(input, unit_idx), rank_idx / apart % holders,
                      shard->owner % holders);
}

static uint64_t pages(uint64_t bytes) {
    return (bytes + OX_IO_ALIGN_BYTES - 1) / OX_IO_ALIGN_BYTES * OX_IO_ALIGN_BYTES;
}

bool ox_proof_is_narrow(const struct ox_plan_input *input, uint32_t unit_idx) {
    return input->table->shards[unit_idx].hi_per_group != HALF_BYTES * OX_GROUP_ELEMS;
}

uint64_t ox_proof_hi_bytes(const struct ox_plan_input *input, uint32_t unit_idx, uint64_t elems) {
    return pages(elems / OX_GROUP_ELEMS * input->table->shards[unit_idx].hi_per_group);
}

uint32_t ox_proof_cast_bytes(const struct ox_plan_input *input, uint32_t unit_idx) {
    const struct ox_precision *const precision = input->model.precision;
    const uint32_t as_computed = precision->activations == OX_REAL_F32 ? WORD_BYTES : HALF_BYTES;
    return precision->cast_bytes == 0 && ox_proof_is_narrow(input, unit_idx) ? as_computed : precision->cast_bytes;
}

static bool reads_lo(const struct ox_plan_input *input, uint32_t unit_idx) {
    const bool has = input->model.eval_only ? !ox_proof_is_narrow(input, unit_idx)
                                            : ox_proof_has_state(input, unit_idx);
    return input->model.precision->lo_travels && has;
}

static uint64_t bytes_of_planes(const struct ox_plan_input *input, uint32_t unit_idx, uint64_t elems) {
    return ox_proof_hi_bytes(input, unit_idx, elems) + (reads_lo(input, unit_idx) ? elems * HALF_BYTES : 0);
}

uint64_t ox_proof_whole_bytes(const struct ox_plan_input *input, uint32_t unit_idx) {
    return bytes_of_planes(input, unit_idx, ox_proof_elems(input, unit_idx));
}

uint64_t ox_proof_planes_bytes(const struct ox_plan_input *input, uint32_t unit_idx) {
    return bytes_of_planes(input, unit_idx, ox_proof_own_elems(input, unit_idx));
}

bool ox_proof_lo_in_state(const struct ox_plan_input *input, uint32_t unit_idx) {
    const struct ox_homes *const homes = ox_proof_homes(input, unit_idx);
    const bool in_memory = homes->weights == OX_TIER_DEVICE || homes->weights == OX_TIER_HOST;
    const bool has_state = !input->model.eval_only;
    return reads_lo(input, unit_idx) && has_state && in_memory && homes->weights == homes->state;
}

uint64_t ox_proof_weights_home_bytes(const struct ox_plan_input *input, uint32_t unit_idx) {
    return ox_proof_lo_in_state(input, unit_idx)
               ? ox_proof_hi_bytes(input, unit_idx, ox_proof_own_elems(input, unit_idx))
               : ox_proof_planes_bytes(input, unit_idx);
}

/* State in one piece: lo, then moments and scales, each padded to whole pages. */
static uint64_t piece_of_state(const struct ox_state_sizes *sizes, uint64_t elems) {
    const uint64_t groups = elems / OX_GROUP_ELEMS;
    return pages(groups * sizes->lo_per_group) + pages(groups * sizes->rest_per_group);
}

uint64_t ox_proof_state_bytes(const struct ox_plan_input *input, uint32_t unit_idx) {
    return piece_of_state(&input->table->shards[unit_idx].sizes, ox_proof_own_elems(input, unit_idx));
}

uint64_t ox_proof_stored_state_bytes(const struct ox_plan_input *input, uint32_t unit_idx) {
    const uint64_t elems = ox_proof_own_elems(input, unit_idx), chunk = input->table->shards[unit_idx].chunk_elems;
    const struct ox_state_sizes *const sizes = &input->table->shards[unit_idx].sizes;
    return elems / chunk * piece_of_state(sizes, chunk) + piece_of_state(sizes, elems % chunk);
}

/* ---- gradients ------------------------------------------------------------------------------------- */

bool ox_proof_packs(const struct ox_plan_input *input, uint32_t grad_idx) {
    const struct ox_plan_grad *const grad = &input->model.grads[grad_idx];
    const bool second_use = grad->added_to != OX_NONE, first_of_two = grad->addend != OX_NONE && !grad->in_turn;
    return input->model.grad_bf16 && !second_use && (!first_of_two || ox_proof_on_device(input, grad->unit_idx));
}

uint64_t ox_proof_sum_bytes(const struct ox_plan_input *input, uint32_t grad_idx) {
    return input->model.grads[grad_idx].elem_count * WORD_BYTES;
}

/* A gradient may be shorter than the unit, and ends then within the part of some rank. */
static uint64_t elems_within(uint64_t elems, struct ox_proof_part part) {
    const uint64_t left = part.first < elems ? elems - part.first : 0;
    return left < part.count ? left : part.count;
}

static uint64_t slice_elems(const struct ox_plan_input *input, uint32_t grad_idx) {
    const struct ox_plan_grad *const grad = &input->model.grads[grad_idx];
    return elems_within(grad->elem_count, ox_proof_part_of(input, grad->unit_idx, input->ranks.idx));
}

uint64_t ox_proof_slice_bytes(const struct ox_plan_input *input, uint32_t grad_idx) {
    return slice_elems(input, grad_idx) * WORD_BYTES;
}

uint64_t ox_proof_cut_bytes(const struct ox_plan_input *input, uint32_t grad_idx, uint32_t axis) {
    const uint64_t elems = slice_elems(input, grad_idx);
    const uint64_t own = ox_proof_own_elems(input, input->model.grads[grad_idx].unit_idx);
    const struct ox_shard *const shard = &input->table->shards[input->model.grads[grad_idx].unit_idx];
    return WORD_BYTES * (axis != OX_AXIS_COPY
                             ? elems : elems_within(elems, part_among(shard, ox_proof_copies(input), own,
                                                                      ox_proof_copy_of(input), shard->adder)));
}

bool ox_proof_narrows(const struct ox_plan_input *input, uint32_t axis) {
    const bool outermost = ox_proof_copies(input) == 1 ? axis != OX_AXIS_COPY : axis == OX_AXIS_COPY;
    return outermost && input->ranks.exchange != OX_EXCHANGE_FP32;
}

uint64_t ox_proof_exchanged(const struct ox_plan_input *input, uint32_t axis, uint64_t bytes) {
    return ox_proof_narrows(input, axis) ? ox_exchange_bytes(input->ranks.exchange, bytes / WORD_BYTES) : bytes;
}

uint64_t ox_proof_packed_bytes(const struct ox_plan_input *input, uint32_t grad_idx) {
    return slice_elems(input, grad_idx) * HALF_BYTES;
}

uint64_t ox_proof_reduced_bytes(const struct ox_plan_input *input, uint32_t unit_idx) {
    return ox_proof_own_elems(input, unit_idx) * (input->model.grad_bf16 ? HALF_BYTES : WORD_BYTES);
}

/* With several tiles the home also takes fp32 partial sums, all slots that hold one between two tiles, unless the sum
 * stays on the device. */
uint64_t ox_proof_grad_home_bytes(const struct ox_plan_input *input, uint32_t grad_idx) {
    const uint64_t tiles = input->placement.tiles, micro_batches = input->model.micro_batches;
    const struct ox_plan_grad *const grad = &input->model.grads[grad_idx];
    const bool moves_on = grad->in_turn && grad->added_to != OX_NONE; /* in compute memory, to that of another use */
    uint64_t bytes = moves_on ? 0 : ox_proof_packs(input, grad_idx) ? ox_proof_packed_bytes(input, grad_idx)
                                                                   : ox_proof_slice_bytes(input, grad_idx);
    for (uint64_t i = 1; i < tiles && !ox_proof_on_device(input, input->model.grads[grad_idx].unit_idx); i++) {
        const uint32_t sums = ox_proof_sums_after(input, (uint32_t)(micro_batches * i / tiles));
        bytes = ox_max_u64(bytes, sums * ox_proof_sum_bytes(input, grad_idx) * ox_proof_sums_of(input, grad_idx));
    }
    return bytes;
}

bool ox_proof_counts_on_device(const struct ox_plan_input *input, uint32_t unit_idx) {
    if (ox_proof_on_device(input, unit_idx)) {
        return true;
    }
    if (!ox_proof_trained(input, unit_idx)) {
        return false;
    }
    for (uint32_t i = 0; i < input->model.grad_count; i++) {
        const struct ox_plan_grad *const grad = &input->model.grads[i];
        if (grad->unit_idx == unit_idx && grad->addend != OX_NONE && !grad->in_turn) {
            return false; /* the host adds the second use first */
        }
    }
    return input->placement.device_sums && !input->budget.unified;
}

static uint64_t square_sums_bytes(uint64_t elems) {
    const uint64_t groups = elems / OX_GROUP_ELEMS + (elems % OX_GROUP_ELEMS != 0);
    return groups * SUM_OF_SQUARES_BYTES;
}

uint64_t ox_proof_partials_bytes(const struct ox_plan_input *input, uint32_t unit_idx) {
    return square_sums_bytes(ox_proof_own_elems(input, unit_idx));
}

uint64_t ox_proof_whole_partials_bytes(const struct ox_plan_input *input, uint32_t unit_idx) {
    return square_sums_bytes(ox_proof_elems(input, unit_idx));
}

uint64_t ox_proof_norms_bytes(const struct ox_plan_input *input) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < input->model.unit_count; i++) {
        bytes += ox_proof_trained(input, i) ? ox_proof_whole_partials_bytes(input, i) : 0;
    }
    return bytes > 0 ? bytes : SUM_OF_SQUARES_BYTES;
}

/* ---- order ----------------------------------------------------------------------------------------- */

uint32_t ox_proof_first_back(const struct ox_plan_input *input) {
    const struct ox_plan_model *const model = &input->model;
    uint32_t first = ox_proof_input_arrives(input) ? 0 : model->stage_count;
    for (uint32_t i = 0; i < model->stage_count; i++) {
        for (uint32_t k = 0; k < model->stages[i].unit_count; k++) {
            first = model->stages[i].units[k].grad_idx != OX_NONE && i < first ? i : first;
        }
    }
    return first;
}

uint32_t ox_proof_next_stage(const struct ox_plan_input *input, uint32_t stage_idx) {
    return stage_idx + 1 < input->model.stage_count ? stage_idx + 1 : OX_NONE;
}

/* Whether the unit is among the last, and its planes are in memory, where they can be saved. */
static bool can_save(const struct ox_plan_input *input, uint32_t unit_idx) {
    const struct ox_homes *const homes = ox_proof_homes(input, unit_idx);
    return input->placement.saves_replaced && homes->state == OX_TIER_HOST && homes->weights != OX_TIER_NVME;
}

/* Whether one of `count` even steps from the last of `unit_count` units, each rounded up, leads to the unit that has
 * `after` units behind it. */
static bool is_spread(uint64_t unit_count, uint64_t count, uint64_t after) {
    bool found = count >= unit_count;
    for (uint64_t i = 0; i < count && !found; i++) {
        found = (i * unit_count + count - 1) / count == after;
    }
    return found;
}

bool ox_proof_is_speculative(const struct ox_plan_input *input, uint32_t unit_idx) {
    const uint32_t not_before = input->model.update_count - input->model.units[unit_idx].update_idx;
    const bool named = input->placement.speculative_spread
                           ? is_spread(input->model.update_count, input->placement.speculative_units, not_before - 1)
                           : not_before <= input->placement.speculative_units;
    return ox_proof_trained(input, unit_idx) && named && !ox_proof_on_device(input, unit_idx) &&
           (input->budget.nvme_bytes > 0 || can_save(input, unit_idx));
}

bool ox_proof_saves(const struct ox_plan_input *input, uint32_t unit_idx) {
    return ox_proof_is_speculative(input, unit_idx) && can_save(input, unit_idx);
}

bool ox_proof_goes_ahead(const struct ox_plan_input *input, uint32_t unit_idx) {
    const bool allowed =
        input->placement.weights_ahead && !input->model.precision->lo_travels && input->budget.nvme_bytes == 0;
    return allowed && ox_proof_homes(input, unit_idx)->weights == OX_TIER_HOST && ox_proof_saves(input, unit_idx);
}

uint64_t ox_proof_saved_bytes(const struct ox_plan_input *input, uint32_t unit_idx) {
    const uint64_t hi = ox_proof_own_elems(input, unit_idx) * HALF_BYTES;
    const uint64_t state = ox_proof_goes_ahead(input, unit_idx) ? 0 : ox_proof_state_bytes(input, unit_idx);
    return ox_align_up(hi, OX_IO_ALIGN_BYTES) + state;
}

bool ox_proof_keeps(const struct ox_plan_input *input, enum ox_plan_kind kind, uint32_t stage_idx) {
    const struct ox_plan_stage *const stage = &input->model.stages[stage_idx];
    uint32_t behind = 0; /* blocks whose backward comes before this one's */
    for (uint32_t i = stage_idx + 1; i < input->model.stage_count; i++) {
        behind += input->model.stages[i].kind == OX_PLAN_BLOCK && ox_proof_computes(input, i);
    }
    return kind == OX_PLAN_TRAIN && ox_proof_computes(input, stage_idx) && stage->kind == OX_PLAN_BLOCK &&
           stage->kept_bytes > 0 && stage_idx >= ox_proof_first_back(input) &&
           behind < input->placement.kept_units;
}

/* ---- chunks ---------------------------------------------------------------------------------------- */

/* Elements of a unit's largest chunk, which is the unit if that is smaller than a full one. */
static uint64_t chunk_of(const struct ox_plan_input *input, uint32_t unit_idx) {
    const uint64_t of_unit = ox_proof_elems(input, unit_idx), chunk = input->table->shards[unit_idx].chunk_elems;
    return of_unit < chunk ? of_unit : chunk;
}

/* A slot has room for the largest chunk: hi, the state, and a number for each element. */
static uint64_t slot_bytes(const struct ox_plan_input *input, uint64_t number_bytes) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < input->model.unit_count; i++) {
        const struct ox_shard *const shard = &input->table->shards[i];
        const uint64_t elems = chunk_of(input, i);
        const uint64_t state = piece_of_state(shard->fixed ? &input->table->sizes : &shard->sizes, elems);
        const uint64_t own = elems * HALF_BYTES + state + elems * number_bytes;
        bytes = own > bytes ? own : bytes;
    }
    return bytes;
}

uint64_t ox_proof_stream_bytes(const struct ox_plan_input *input) {
    uint64_t elems = 0;
    for (uint32_t i = 0; i < input->model.unit_count; i++) {
        elems = chunk_of(input, i) > elems ? chunk_of(input, i) : elems;
    }
    const uint64_t slot = slot_bytes(input, input->model.grad_bf16 ? HALF_BYTES : WORD_BYTES);
    return input->placement.stream_slots * slot + elems * WORD_BYTES;
}

uint64_t ox_proof_scratch_bytes(const struct ox_plan_input *input) {
    return slot_bytes(input, WORD_BYTES);
}

/* How many rows of a matrix begin at `from` or later and end at `to` or before. */
static uint64_t whole_rows(const struct ox_low_rank_matrix *matrix, uint64_t from, uint64_t to) {
    const uint64_t cols = matrix->cols, begin = matrix->first, end = begin + matrix->rows * cols;
    const uint64_t cut_front = from <= begin ? 0 : ox_min_u64((from - begin + cols - 1) / cols, matrix->rows);
    const uint64_t cut_back = to >= end ? 0 : ox_min_u64((end - to + cols - 1) / cols, matrix->rows);
    return cut_front + cut_back < matrix->rows ? matrix->rows - cut_front - cut_back : 0;
}

/* The columns of P and Q for so many rows of a matrix; 0: they travel whole. */
static uint64_t rank_of(const struct ox_low_rank *how, const struct ox_low_rank_matrix *matrix, uint64_t rows) {
    const uint64_t least = ox_min_u64(rows, matrix->cols), rank = ox_min_u64(how->rank, least);
    return (double)((rows + matrix->cols) * rank) * how->min_rate < (double)(rows * matrix->cols) ? rank : 0;
}

struct ox_proof_low_rank ox_proof_low_rank(const struct ox_plan_input *input, uint32_t grad_idx) {
    const struct ox_low_rank *const how = input->ranks.low_rank;
    const uint32_t unit_idx = input->model.grads[grad_idx].unit_idx, copies = ox_proof_copies(input);
    const struct ox_proof_part own = ox_proof_part_of(input, unit_idx, input->ranks.idx);
    const uint64_t numbers = ox_proof_slice_bytes(input, grad_idx) / 4;
    uint64_t dense = 0, thin = 0, wide = 0;
    bool used = false;
    if (how == NULL || copies == 1 || input->model.eval_only) {
        return (struct ox_proof_low_rank){0};
    }
    for (uint32_t i = how->first_of[unit_idx]; i < how->first_of[unit_idx + 1]; i++) {
        const struct ox_low_rank_matrix *const matrix = &how->matrices[i];
        const uint64_t rows = whole_rows(matrix, own.first, own.first + numbers);
        const uint64_t rank = rank_of(how, matrix, rows);
        used = used || rank_of(how, matrix, whole_rows(matrix, 0, input->model.grads[grad_idx].elem_count)) > 0;
        dense += rank > 0 ? rows * matrix->cols : 0;
        thin += rows * rank;
        wide += matrix->cols * rank;
    }
    if (!used) {
        return (struct ox_proof_low_rank){0};
    }
    const uint64_t sent = 4 * (thin + wide + numbers - dense);
    return (struct ox_proof_low_rank){
        .used = true, .kept = 2 * ox_align_up(4 * (dense + wide), OX_IO_ALIGN_BYTES),
        .room = (copies + 1) * sent, .sent = sent};
}
