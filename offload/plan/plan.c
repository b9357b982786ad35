/* Memory of a plan, and small queries. */
#include "offload/plan/internal.h"

#include "base/assert.h"
#include "base/bytes.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

uint32_t ox_plan_generations(const struct ox_plan_budget *budget) {
    OX_ASSERT(budget->generations <= 3);
    return budget->generations == 0 ? 2 : budget->generations;
}

int ox_task_find_nth_use(const struct ox_task *task, enum ox_use_role role, uint32_t nth) {
    for (int i = 0; i < task->use_count; i++) {
        if (task->uses[i].role == role && task->uses[i].nth == nth) {
            return i;
        }
    }
    return -1;
}

int ox_task_find_use(const struct ox_task *task, enum ox_use_role role) {
    return ox_task_find_nth_use(task, role, 0);
}

uint32_t ox_plan_spool_grad(const struct ox_plan *plan, uint32_t grad_idx) {
    OX_ASSERT(grad_idx < plan->grad_count);
    return grad_idx;
}

uint32_t ox_plan_spool_act(const struct ox_plan *plan, uint32_t stage_idx, uint32_t mb_idx) {
    OX_ASSERT(stage_idx < plan->stage_count && mb_idx < plan->micro_batches);
    return plan->grad_count + stage_idx * plan->micro_batches + mb_idx;
}

static uint64_t planes_bytes(const struct ox_plan_input *input, uint32_t unit_idx, uint64_t elems) {
    return ox_shard_hi_bytes(&input->table->shards[unit_idx], elems) +
           (ox_plan_lo_travels(input, unit_idx) ? elems * OX_LO_BYTES : 0);
}

uint64_t ox_plan_weight_bytes(const struct ox_plan_input *input, uint32_t unit_idx) {
    return planes_bytes(input, unit_idx, input->table->shards[unit_idx].elem_count);
}

uint64_t ox_plan_whole_weight_bytes(const struct ox_plan_input *input, uint32_t unit_idx) {
    return planes_bytes(input, unit_idx, input->model.units[unit_idx].elem_count);
}

/* A gather among `count` ranks brings what the rank does not have of `whole` bytes, and gives what it has to each of
 * the others. */
static struct ox_peer_bytes gather_bytes(uint32_t count, uint64_t own, uint64_t whole) {
    return (struct ox_peer_bytes){.in = whole - own, .out = own * (count - 1)};
}

/* The partial square sums of a unit, of which the holders of its experts have all. */
static struct ox_peer_bytes partial_bytes(const struct ox_plan_input *input, uint32_t unit_idx) {
    return gather_bytes(ox_plan_holders(input), ox_plan_partials_bytes(input, unit_idx),
                        input->model.units[unit_idx].elem_count / OX_GROUP_ELEMS * sizeof(double));
}

uint64_t ox_plan_grad_divided(const struct ox_plan_input *input, uint32_t grad_idx, enum ox_axis axis) {
    return axis == OX_AXIS_COPY ? ox_plan_grad_slice(input, grad_idx) : input->model.grads[grad_idx].elem_count;
}

/* A rank that has the part gives the others their slices of it, and gets its own slice from each other that has it. */
static struct ox_peer_bytes exchange_bytes(const struct ox_plan_input *input, uint32_t grad_idx, uint32_t part,
                                           enum ox_axis axis) {
    const struct ox_sums sums = ox_plan_sums_along(input, axis);
    const uint64_t own = ox_plan_grad_cut(input, grad_idx, axis);
    const bool gives = ox_sums_part_count(&sums) > part;
    const enum ox_exchange_dtype dtype = ox_plan_exchange_dtype(input, axis);
    const uint64_t own_bytes = ox_exchange_bytes(dtype, own);
    return (struct ox_peer_bytes){
        .in = (ox_sums_givers(&sums, part) - gives) * own_bytes,
        .out = gives ? ox_exchange_bytes(dtype, ox_plan_grad_divided(input, grad_idx, axis)) - own_bytes : 0};
}

static struct ox_peer_bytes gathered_weight_bytes(const struct ox_plan_input *input, uint32_t unit_idx,
                                                  enum ox_tier from) {
    const uint64_t whole = ox_plan_whole_weight_bytes(input, unit_idx);
    if (from == OX_TIER_HOST && !input->budget.unified) {
        return (struct ox_peer_bytes){.up = whole};
    }
    return gather_bytes(ox_plan_holders_of(input, unit_idx), ox_plan_weight_bytes(input, unit_idx), whole);
}

/* The total of the square sums of each unit that is trained goes from those who hold it to all of the pipeline; before
 * that those of the groups of features to all ranks of a coordinate. */
static struct ox_peer_bytes total_bytes(const struct ox_plan_input *input, enum ox_axis axis) {
    const bool of_groups = axis == OX_AXIS_TENSOR;
    uint64_t own = 0, all = 0;
    for (uint32_t i = 0; i < input->model.unit_count; i++) {
        const bool here = ox_plan_owner(&input->ranks, i) == ox_plan_pipe_at(input);
        const uint32_t tensor = ox_plan_tensor_owner(&input->ranks, i);
        const uint64_t bytes = input->model.units[i].trained ? sizeof(double) : 0;
        own += here && (!of_groups || tensor == ox_plan_tensor_at(input)) ? bytes : 0;
        all += !of_groups || (tensor != OX_NONE && here) ? bytes : 0;
    }
    return gather_bytes(ox_plan_group(input, axis).count, own, all);
}

uint32_t ox_plan_borrower(const struct ox_plan_input *input, uint32_t unit_idx) {
    const uint32_t last = input->model.stage_count - 1;
    const struct ox_plan_stage *const head = &input->model.stages[last];
    for (uint32_t k = 1; k < head->unit_count && head->kind == OX_PLAN_HEAD; k++) {
        if (head->units[k].unit_idx == unit_idx &&
            ox_plan_owner(&input->ranks, unit_idx) != ox_plan_stage_owner(input, last)) {
            return ox_plan_stage_owner(input, last);
        }
    }
    return OX_NONE;
}

/* Reports of the rank's groups of rows, of all of its micro-batches. */
static uint64_t own_reports_bytes(const struct ox_plan_input *input) {
    return (uint64_t)input->model.micro_batches * ox_plan_own_row_groups(input) * ox_plan_report_bytes(&input->model);
}

/* What ranks give of their reports: of a pipeline each what its stages have left. */
static struct ox_peer_bytes losses_bytes(const struct ox_plan_input *input, bool of_stages) {
    const bool gives = ox_plan_tensor_at(input) == 0; /* ranks with other groups of features have the same */
    const uint64_t own = gives ? (uint64_t)input->model.micro_batches * ox_plan_own_row_groups(input) : 0;
    uint64_t all = 0;
    for (uint32_t at = 0; at < ox_plan_pipe(input); at++) {
        all += ox_plan_given_report_bytes(input, at, of_stages);
    }
    return gather_bytes(ox_plan_rank_count(input),
                        own * ox_plan_given_report_bytes(input, ox_plan_pipe_at(input), of_stages),
                        ox_plan_sums(input).micro_batches * all);
}

/* A rank gets a piece from each other member of its group, and gives one to each. */
static struct ox_peer_bytes row_bytes(const struct ox_plan_input *input, const struct ox_task *task) {
    const struct ox_plan_cut *const cut = ox_plan_task_cut(input, task);
    if (cut->kind == OX_CUT_ROUND || cut->kind == OX_CUT_SHIFT) {
        return (struct ox_peer_bytes){.in = cut->bytes, .out = cut->bytes};
    }
    const uint64_t count = ox_plan_group(input, (enum ox_axis)cut->axis).count;
    return gather_bytes((uint32_t)count, cut->bytes / count, cut->bytes);
}

struct ox_peer_bytes ox_plan_peer_bytes(const struct ox_plan *plan, const struct ox_plan_input *input,
                                        const struct ox_task *task) {
    const enum ox_axis axis = (enum ox_axis)task->axis;
    const enum ox_exchange_dtype dtype = ox_plan_exchange_dtype(input, axis);
    OX_ASSERT(task->lane == OX_LANE_LINK && task->kind == OX_TASK_MOVE);
    switch ((enum ox_move)task->move) {
    case OX_MOVE_WEIGHTS:
        return gathered_weight_bytes(input, task->unit_idx, plan->rules[task->unit_idx].gather_tier);
    case OX_MOVE_GRAD:
        return task->last ? gather_bytes(ox_plan_copies(input),
                                         ox_exchange_bytes(dtype, ox_plan_grad_cut(input, task->grad_idx, axis)),
                                         ox_exchange_bytes(dtype, ox_plan_grad_divided(input, task->grad_idx, axis)))
                          : exchange_bytes(input, task->grad_idx, task->slot, axis);
    case OX_MOVE_SUM: /* each rank has one part */
        return exchange_bytes(input, task->grad_idx, 0, axis);
    case OX_MOVE_PARTIALS:
        return axis == OX_AXIS_PIPE || axis == OX_AXIS_TENSOR ? total_bytes(input, axis)
                                                              : partial_bytes(input, task->unit_idx);
    case OX_MOVE_LOSSES:
        return losses_bytes(input, task->last);
    case OX_MOVE_LOW_RANK:
        return gather_bytes(ox_plan_copies(input), ox_low_rank_given_bytes(input, task->grad_idx),
                            ox_low_rank_given_bytes(input, task->grad_idx) * ox_plan_copies(input));
    case OX_MOVE_ROWS:
        return row_bytes(input, task);
    default:
        OX_ASSERT(!"moves nothing between ranks");
        return (struct ox_peer_bytes){0};
    }
}

struct ox_sums ox_plan_sums(const struct ox_plan_input *input) {
    const uint32_t micro_batches = input->ranks.micro_batches, row_groups = ox_plan_row_groups(input);
    return (struct ox_sums){
        .micro_batches = (micro_batches > 0 ? micro_batches : input->model.micro_batches) * row_groups,
        .groups = ox_plan_sum_groups(input) * row_groups,
        .ranks = ox_plan_data_ranks(input),
        .rank = input->ranks.idx % ox_plan_data_ranks(input)};
}

struct ox_sums ox_plan_row_sums(const struct ox_plan_input *input) {
    const uint32_t row_groups = ox_plan_row_groups(input);
    const uint32_t of_batch = ox_plan_data_ranks(input) / ox_plan_contexts(input);
    struct ox_sums sums = ox_plan_sums(input);
    sums.micro_batches /= row_groups;
    sums.groups /= row_groups;
    sums.ranks = of_batch;
    sums.rank %= of_batch;
    return sums;
}

struct ox_sums ox_plan_sums_along(const struct ox_plan_input *input, enum ox_axis axis) {
    const struct ox_rank_group holders = ox_plan_group(input, OX_AXIS_SHARD);
    const struct ox_rank_group copies = ox_plan_group(input, OX_AXIS_COPY);
    struct ox_sums sums = ox_plan_sums(input);
    if (axis != OX_AXIS_COPY) {
        const uint32_t as_one = axis == OX_AXIS_SLICE ? ox_plan_experts(input) : 1; /* they have summed as one */
        sums.span_first = holders.first % sums.ranks / as_one;
        sums.span_count = holders.count / as_one;
        sums.ranks /= as_one;
        sums.rank /= as_one;
    } else {
        sums.ranks = copies.count;
        sums.rank = copies.idx;
    }
    return sums;
}

bool ox_plan_rank_holds(const struct ox_plan_ranks *ranks, uint32_t rank, uint32_t unit_idx) {
    const struct ox_mesh mesh = ox_plan_mesh_of(ranks);
    const uint32_t owner = ox_plan_tensor_owner(ranks, unit_idx), expert = ox_plan_expert_owner(ranks, unit_idx);
    return ox_mesh_at(&mesh, rank, OX_AXIS_PIPE) == ox_plan_owner(ranks, unit_idx) &&
           (owner == OX_NONE || owner == ox_mesh_at(&mesh, rank, OX_AXIS_TENSOR)) &&
           (expert == OX_NONE || expert == ox_mesh_at(&mesh, rank, OX_AXIS_EXPERT));
}

bool ox_plan_leads_store(const struct ox_plan_input *input) {
    const struct ox_plan_ranks *const ranks = &input->ranks;
    const uint32_t per_store = ranks->per_store > 0 ? ranks->per_store : ox_plan_rank_count(input);
    const uint32_t first = ranks->idx / per_store * per_store;
    return ox_plan_tensor_at(input) == 0 || ranks->idx < first + ox_plan_data_ranks(input);
}

/* Numbers the chunks of a rank's table for a store that `per_store` ranks in a row have for themselves: of each unit
 * those that some of them hold, which are successive ones. */
static void number_stored(const struct ox_plan_ranks *ranks, const struct ox_shard_table *whole,
                          struct ox_shard_table *table) {
    const struct ox_mesh mesh = ox_plan_mesh_of(ranks);
    const uint32_t first = ranks->idx / ranks->per_store * ranks->per_store, past = first + ranks->per_store;
    uint32_t chunk_count = 0;
    for (uint32_t i = 0; i < whole->unit_count; i++) {
        uint32_t begin = UINT32_MAX, end = 0;
        for (uint32_t rank = first; rank < past; rank++) {
            const struct ox_rank_group group = ox_mesh_group(&mesh, rank, ox_plan_shard_axis(ranks, i));
            if (ox_plan_rank_holds(ranks, rank, i)) {
                begin = (uint32_t)ox_min_u64(begin, ox_shard_first_chunk(whole, i, group.count, group.idx));
                end = (uint32_t)ox_max_u64(end, ox_shard_first_chunk(whole, i, group.count, group.idx + 1));
            }
        }
        struct ox_shard *const own = &table->shards[i];
        own->chunk_first = chunk_count + (own->chunk_count > 0 ? own->chunk_first - whole->shards[i].chunk_first - begin
                                                               : 0);
        chunk_count += end > begin && begin != UINT32_MAX ? end - begin : 0;
    }
    table->chunk_count = chunk_count;
}

enum ox_status ox_plan_table_open(const struct ox_shard_table *whole, const struct ox_plan_ranks *ranks,
                                  struct ox_shard_table *out) {
    const struct ox_mesh mesh = ox_plan_mesh_of(ranks);
    const struct ox_rank_group holders = ox_mesh_group(&mesh, ranks->idx, OX_AXIS_SHARD);
    const enum ox_status status = ox_shard_table_slice(whole, holders.count, holders.idx, out);
    for (uint32_t i = 0; i < whole->unit_count && status == OX_OK; i++) {
        const struct ox_rank_group group = ox_mesh_group(&mesh, ranks->idx, ox_plan_shard_axis(ranks, i));
        ox_shard_slice(&whole->shards[i], group.count, group.idx, &out->shards[i]); /* of experts other ranks */
        if (!ox_plan_rank_holds(ranks, ranks->idx, i)) { /* a slice without chunks */
            out->shards[i].elem_first = out->shards[i].elem_count = out->shards[i].chunk_count = 0;
            out->shards[i].chunk_first = whole->shards[i].chunk_first;
        }
    }
    if (status == OX_OK && ranks->per_store > 0 && ranks->per_store < ranks->count) {
        number_stored(ranks, whole, out);
    }
    return status;
}

uint64_t ox_plan_report_bytes(const struct ox_plan_model *model) {
    return ox_plan_loss_bytes(model) + model->report_doubles * sizeof(double);
}

uint32_t ox_plan_reporters(const struct ox_plan_input *input, uint32_t at) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < input->model.stage_count && input->model.report_doubles > 0; i++) {
        count += input->model.stages[i].reports && ox_plan_stage_owner(input, i) == at;
    }
    return count;
}

bool ox_plan_has_reports(const struct ox_plan_input *input) {
    return ox_plan_computes(input, input->model.stage_count - 1) ||
           ox_plan_reporters(input, ox_plan_pipe_at(input)) > 0;
}

uint64_t ox_plan_given_report_bytes(const struct ox_plan_input *input, uint32_t at, bool of_stages) {
    const struct ox_plan_model *const model = &input->model;
    const uint64_t head = ox_plan_stage_owner(input, model->stage_count - 1) == at ? ox_plan_loss_bytes(model) : 0;
    uint32_t all = 0;
    if (ox_plan_pipe(input) == 1) {
        return ox_plan_report_bytes(model);
    }
    for (uint32_t i = 0; i < ox_plan_pipe(input); i++) {
        all += ox_plan_reporters(input, i);
    }
    return head + (of_stages && all > 0 ? model->report_doubles / all * ox_plan_reporters(input, at) * sizeof(double)
                                        : 0);
}

uint64_t ox_plan_reports_bytes(const struct ox_plan_input *input) {
    return ox_plan_sums(input).micro_batches * ox_plan_report_bytes(&input->model) +
           input->model.pooled_doubles * sizeof(double);
}

uint32_t ox_plan_tiles_max(const struct ox_plan_input *input) {
    struct ox_sums sums = ox_plan_row_sums(input);
    uint32_t fewest = input->model.micro_batches;
    for (sums.rank = 0; sums.rank < sums.ranks; sums.rank++) {
        fewest = (uint32_t)ox_min_u64(fewest, ox_sums_count(&sums));
    }
    const bool in_groups = ox_plan_pipe(input) == 1 || input->placement.schedule == OX_PIPE_VERTICAL;
    return input->model.pooled_doubles > 0 || !in_groups ? 1 : fewest;
}

enum ox_exchange_dtype ox_plan_exchange_dtype(const struct ox_plan_input *input, enum ox_axis axis) {
    const bool outermost = (axis == OX_AXIS_COPY) == (ox_plan_copies(input) > 1);
    return outermost ? input->ranks.exchange : OX_EXCHANGE_FP32;
}

uint64_t ox_plan_grad_slice(const struct ox_plan_input *input, uint32_t grad_idx) {
    const struct ox_plan_grad *const grad = &input->model.grads[grad_idx];
    const struct ox_shard *const slice = &input->table->shards[grad->unit_idx];
    return ox_min_u64(slice->elem_first + slice->elem_count, grad->elem_count) -
           ox_min_u64(slice->elem_first, grad->elem_count);
}

uint64_t ox_plan_grad_cut_first(const struct ox_plan_input *input, uint32_t grad_idx, uint32_t idx) {
    const uint32_t unit_idx = input->model.grads[grad_idx].unit_idx;
    const struct ox_shard *const shard = &input->table->shards[unit_idx];
    const uint64_t cut = !shard->whole        ? ox_shard_cut(input->table, unit_idx, ox_plan_copies(input), idx)
                         : idx > shard->adder ? shard->elem_count : 0;
    return ox_min_u64(cut, ox_plan_grad_slice(input, grad_idx));
}

uint64_t ox_plan_grad_cut(const struct ox_plan_input *input, uint32_t grad_idx, enum ox_axis axis) {
    const uint32_t idx = ox_plan_group(input, OX_AXIS_COPY).idx;
    return axis != OX_AXIS_COPY
               ? ox_plan_grad_slice(input, grad_idx)
               : ox_plan_grad_cut_first(input, grad_idx, idx + 1) - ox_plan_grad_cut_first(input, grad_idx, idx);
}

uint64_t ox_plan_part_offset(const struct ox_plan_input *input, uint32_t grad_idx, enum ox_axis axis, uint32_t part) {
    const enum ox_axis inner = ox_plan_grad_axis(input, grad_idx);
    if (axis != OX_AXIS_COPY || !ox_plan_exchanges_along(input, grad_idx, inner)) {
        return part * input->model.grads[grad_idx].elem_count * sizeof(float);
    }
    const struct ox_sums within = ox_plan_sums_along(input, inner);
    const struct ox_sums over = ox_plan_sums_along(input, OX_AXIS_COPY);
    return ox_sums_place_of(&within, ox_sums_part(&over, part).first) * ox_plan_grad_slice(input, grad_idx) *
           sizeof(float);
}

struct ox_plan_recode ox_plan_recode(const struct ox_plan_input *input, const struct ox_task *task) {
    const enum ox_axis axis = (enum ox_axis)task->axis;
    const struct ox_sums sums = ox_plan_sums_along(input, axis);
    const bool gives = task->kind == OX_TASK_NARROW;
    const uint32_t parts = task->last ? 1 : gives ? ox_sums_part_count(&sums) : ox_sums_parts(&sums);
    /* The finished sum is given in cuts and comes whole; parts are given whole and come in cuts. */
    const uint64_t count = task->last == gives ? ox_plan_grad_cut(input, task->grad_idx, axis)
                                               : ox_plan_grad_divided(input, task->grad_idx, axis);
    return (struct ox_plan_recode){.parts = parts, .count = count, .elems = parts * count};
}

enum ox_traffic_kind ox_task_traffic(const struct ox_task *task) {
    static const enum ox_traffic_kind kinds[OX_MOVE_COUNT] = {
        [OX_MOVE_WEIGHTS] = OX_TRAFFIC_WEIGHTS, [OX_MOVE_PLANES] = OX_TRAFFIC_WEIGHTS,
        [OX_MOVE_ACT] = OX_TRAFFIC_ACTIVATIONS, [OX_MOVE_GRAD] = OX_TRAFFIC_GRADS,
        [OX_MOVE_BATCH] = OX_TRAFFIC_OTHER,     [OX_MOVE_LOSSES] = OX_TRAFFIC_OTHER,
        [OX_MOVE_PARTIALS] = OX_TRAFFIC_OTHER,  [OX_MOVE_NONFINITE] = OX_TRAFFIC_OTHER,
        [OX_MOVE_OUTSIDE_ACT] = OX_TRAFFIC_ACTIVATIONS, [OX_MOVE_OUTSIDE_DX] = OX_TRAFFIC_ACTIVATIONS,
        [OX_MOVE_SUM] = OX_TRAFFIC_GRADS,       [OX_MOVE_ROWS] = OX_TRAFFIC_ACTIVATIONS,
        [OX_MOVE_LOW_RANK] = OX_TRAFFIC_GRADS,  [OX_MOVE_ROUTES] = OX_TRAFFIC_OTHER};
    if (task->kind == OX_TASK_MOVE && task->move == OX_MOVE_ROWS && task->slot > 0) {
        return OX_TRAFFIC_TOKENS;
    }
    if (task->kind != OX_TASK_MOVE) {
        return ox_task_updates_on_host(task) ? OX_TRAFFIC_STATE : OX_TRAFFIC_OTHER;
    }
    OX_ASSERT(task->move < OX_MOVE_COUNT);
    return kinds[task->move];
}

/* Bytes of a gradient on this route. Partial sums and gradients that are added to another move in fp32; of partial sums
 * all occupied slots move, of finished ones the rank's slice. A sum to which another is added on the host moves to the
 * host in fp32 too, and is rounded there. */
static uint64_t moved_grad_bytes(const struct ox_plan_input *input, const struct ox_task *task) {
    const struct ox_plan_grad *const grad = &input->model.grads[task->grad_idx];
    const bool added = !ox_plan_adds_at_rest(grad) || task->lane == OX_LANE_NVME_WRITE;
    const bool rounded = input->model.grad_bf16 && task->last && grad->added_to == OX_NONE && added;
    return task->last ? ox_plan_grad_slice(input, task->grad_idx) * (rounded ? 2 : 4)
                      : grad->elem_count * 4 * (task->slot + 1) * ox_plan_sums_of(input, task->grad_idx);
}

/* Bytes that another part of the model hands over or takes. Activations that leave, and gradients that arrive, are
 * those of the stage's output; the others are those of its input. */
static uint64_t outside_bytes(const struct ox_plan_stage *stage, const struct ox_task *task) {
    const bool leaves = task->lane == OX_LANE_D2H, is_gradient = task->move == OX_MOVE_OUTSIDE_DX;
    if (task->lane == OX_LANE_LINK_IN || task->lane == OX_LANE_LINK_OUT) {
        return stage->input_bytes;
    }
    return leaves != is_gradient ? stage->output_bytes : stage->input_bytes;
}

/* Bytes of a unit on loan, and of what the head's rank has summed of its gradient. */
static uint64_t loan_bytes(const struct ox_plan_input *input, const struct ox_task *task) {
    const struct ox_sums sums = ox_plan_sums(input);
    return task->move == OX_MOVE_WEIGHTS ? ox_plan_whole_weight_bytes(input, task->unit_idx)
                                         : ox_sums_part_count(&sums) * sizeof(float) *
                                               input->model.grads[task->grad_idx].elem_count;
}

uint64_t ox_plan_move_bytes(const struct ox_plan_input *input, const struct ox_task *task) {
    const struct ox_plan_model *const model = &input->model;
    const bool between = task->lane == OX_LANE_LINK_IN || task->lane == OX_LANE_LINK_OUT;
    const bool of_drives = task->lane == OX_LANE_NVME_READ || task->lane == OX_LANE_NVME_WRITE;
    OX_ASSERT(task->kind == OX_TASK_MOVE && task->lane != OX_LANE_LINK);
    if (between && (task->move == OX_MOVE_WEIGHTS || task->move == OX_MOVE_GRAD)) {
        return loan_bytes(input, task);
    }
    switch ((enum ox_move)task->move) {
    case OX_MOVE_WEIGHTS:
    case OX_MOVE_PLANES:
        return ox_plan_weight_bytes(input, task->unit_idx);
    case OX_MOVE_ACT: /* drives transfer whole pages */
        return ox_align_up(model->stages[task->stage_idx].input_bytes, of_drives ? OX_IO_ALIGN_BYTES : 1);
    case OX_MOVE_GRAD:
        return moved_grad_bytes(input, task);
    case OX_MOVE_BATCH:
        return model->batch_bytes;
    case OX_MOVE_LOSSES:
        return task->lane == OX_LANE_H2D ? ox_plan_sums(input).micro_batches * ox_plan_report_bytes(model)
                                         : own_reports_bytes(input);
    case OX_MOVE_PARTIALS:
        return ox_plan_partials_bytes(input, task->unit_idx);
    case OX_MOVE_NONFINITE:
        return model->unit_count * sizeof(uint64_t);
    case OX_MOVE_ROUTES:
        return model->stages[task->stage_idx].routes_bytes * (task->mb_past - task->mb_first);
    case OX_MOVE_OUTSIDE_ACT:
    case OX_MOVE_OUTSIDE_DX:
        return outside_bytes(&model->stages[task->stage_idx], task);
    default:
        OX_ASSERT(!"moves nothing known");
        return 0;
    }
}

uint64_t ox_plan_partials_bytes(const struct ox_plan_input *input, uint32_t unit_idx) {
    return input->table->shards[unit_idx].elem_count / OX_GROUP_ELEMS * sizeof(double);
}

uint64_t ox_plan_norm_bytes(const struct ox_plan_input *input) {
    uint64_t groups = 0;
    for (uint32_t i = 0; i < input->model.unit_count; i++) {
        groups += input->model.units[i].trained ? input->model.units[i].elem_count / OX_GROUP_ELEMS : 0;
    }
    return ox_max_u64(groups, 1) * sizeof(double);
}

uint32_t ox_plan_home_weights(const struct ox_plan *plan, uint32_t unit_idx) {
    OX_ASSERT(unit_idx < plan->unit_count);
    return ((const struct ox_plan_full *)plan)->scratch.weights_home[unit_idx];
}

uint32_t ox_plan_home_state(const struct ox_plan *plan, uint32_t unit_idx) {
    OX_ASSERT(unit_idx < plan->unit_count);
    return ((const struct ox_plan_full *)plan)->scratch.state_home[unit_idx];
}

uint32_t ox_plan_replaced(const struct ox_plan *plan, uint32_t unit_idx) {
    OX_ASSERT(unit_idx < plan->unit_count);
    return ((const struct ox_plan_full *)plan)->scratch.replaced[unit_idx];
}

uint32_t ox_plan_home_grad(const struct ox_plan *plan, uint32_t grad_idx) {
    OX_ASSERT(grad_idx < plan->grad_count);
    return ((const struct ox_plan_full *)plan)->scratch.grad_home[grad_idx];
}

static uint64_t chunk_elems_max(const struct ox_plan_input *input) {
    uint64_t elems_max = 0;
    for (uint32_t i = 0; i < input->model.unit_count; i++) {
        const uint64_t elems = ox_min_u64(input->table->shards[i].chunk_elems, input->model.units[i].elem_count);
        elems_max = ox_max_u64(elems_max, elems);
    }
    return elems_max;
}

/* Bytes of the largest chunk with so many bytes of a number for each element. Fixed units take a chunk's room of the
 * others, whose sizes they may have. */
static uint64_t chunk_bytes_max(const struct ox_plan_input *input, uint32_t number_bytes) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < input->model.unit_count; i++) {
        const struct ox_shard *const shard = &input->table->shards[i];
        const struct ox_state_sizes *const sizes = shard->fixed ? &input->table->sizes : &shard->sizes;
        const uint64_t elems = ox_min_u64(shard->chunk_elems, input->model.units[i].elem_count);
        bytes = ox_max_u64(bytes, ox_shard_chunk_layout(sizes, elems, number_bytes).bytes);
    }
    return bytes;
}

uint64_t ox_plan_scratch_bytes(const struct ox_plan_input *input) {
    return chunk_bytes_max(input, sizeof(float));
}

uint64_t ox_plan_stream_slot_bytes(const struct ox_plan_input *input) {
    return chunk_bytes_max(input, input->model.grad_bf16 ? sizeof(uint16_t) : sizeof(float));
}

uint64_t ox_plan_stream_bytes(const struct ox_plan_input *input) {
    return ox_plan_stream_slot_bytes(input) * input->placement.stream_slots + chunk_elems_max(input) * sizeof(float);
}

/* All arrays of a plan lie in one allocation, so that building allocates nothing. */
struct tables {
    unsigned char *base; /* NULL while only measuring */
    uint64_t used;
};

static void *place(struct tables *memory, uint64_t count, uint64_t size) {
    memory->used = ox_align_up(memory->used, 16);
    void *const at = memory->base == NULL ? NULL : memory->base + memory->used;
    memory->used += count * size;
    return at;
}

/* The arrays that the executor needs; the others serve the builder alone. */
static void place_kept(struct tables *memory, struct ox_plan_full *full) {
    struct ox_plan *const plan = &full->plan;
    struct ox_plan_scratch *const scratch = &full->scratch;
    plan->tasks = place(memory, plan->task_cap, sizeof *plan->tasks);
    plan->bufs = place(memory, plan->buf_cap, sizeof *plan->bufs);
    plan->spool_bytes = place(memory, plan->spool_count, sizeof *plan->spool_bytes);
    plan->rules = place(memory, plan->unit_count, sizeof *plan->rules);
    scratch->weights_home = place(memory, plan->unit_count, sizeof(uint32_t));
    scratch->state_home = place(memory, plan->unit_count, sizeof(uint32_t));
    scratch->replaced = place(memory, plan->unit_count, sizeof(uint32_t));
    scratch->grad_home = place(memory, plan->grad_count, sizeof(uint32_t));
    scratch->residual = place(memory, plan->grad_count, sizeof(uint32_t));
}

static void place_plan(struct tables *memory, struct ox_plan_full *full) {
    const struct ox_plan *const plan = &full->plan;
    struct ox_plan_scratch *const scratch = &full->scratch;
    const uint64_t stages = plan->stage_count, micro_batches = plan->micro_batches, bufs = plan->buf_cap;
    place_kept(memory, full);
    scratch->begun = place(memory, bufs, sizeof(uint32_t));
    scratch->ends = place(memory, plan->task_cap, sizeof(uint32_t));
    scratch->next_end = place(memory, bufs, sizeof(uint32_t));
    scratch->last_use = place(memory, bufs, sizeof *scratch->last_use);
    scratch->turns = place(memory, bufs, sizeof *scratch->turns);
    scratch->nth = place(memory, bufs, sizeof(uint32_t));
    for (int tier = 0; tier < OX_TIER_NVME; tier++) {
        scratch->events[tier] = place(memory, 2 * bufs, sizeof(uint32_t));
        scratch->known[tier] = place(memory, OX_ARENAS_KNOWN, sizeof *scratch->known[tier]);
    }
    scratch->mb_sums = place(memory, micro_batches + 1, sizeof *scratch->mb_sums);
    scratch->tracks = place(memory, bufs, sizeof *scratch->tracks);
    scratch->segments = place(memory, bufs + 2, sizeof *scratch->segments);
    scratch->segment_of = place(memory, bufs, sizeof(uint32_t));
    scratch->packed = place(memory, 3 * bufs, sizeof(uint64_t));
    scratch->items = place(memory, bufs, sizeof *scratch->items);
    scratch->heads = place(memory, 2 * bufs + OX_PACK_HEADS_MORE, sizeof(uint32_t));
    scratch->grad_spool = place(memory, plan->grad_count, sizeof(uint32_t));
    scratch->grad_live = place(memory, plan->grad_count, sizeof(uint32_t));
    scratch->grad_speculative = place(memory, plan->grad_count, sizeof(uint32_t));
    scratch->partials = place(memory, plan->unit_count, sizeof(uint32_t));
    scratch->keeps = place(memory, stages, sizeof(bool));
    scratch->fetched = place(memory, plan->unit_count, sizeof(uint32_t));
    scratch->gathered = place(memory, plan->unit_count, sizeof(uint32_t));
    scratch->weights_at = place(memory, scratch->visit_cap, sizeof *scratch->weights_at);
    scratch->act = place(memory, stages * micro_batches, sizeof(uint32_t));
    scratch->act_spool = place(memory, stages * micro_batches, sizeof(uint32_t));
    scratch->kept = place(memory, stages * micro_batches, sizeof(uint32_t));
    scratch->routes = place(memory, stages * micro_batches, sizeof *scratch->routes);
    scratch->x = place(memory, micro_batches, sizeof(uint32_t));
    scratch->dx = place(memory, micro_batches, sizeof(uint32_t));
    scratch->batch = place(memory, micro_batches, sizeof(uint32_t));
    scratch->room.sweeps = place(memory, scratch->visit_cap, sizeof *scratch->room.sweeps);
    scratch->room.stages = place(memory, stages + 1, sizeof(uint32_t));
    scratch->room.runs = place(memory, stages + 1, sizeof(uint32_t));
    scratch->visits = place(memory, scratch->visit_cap, sizeof *scratch->visits);
    const uint64_t passes = scratch->of_pipe ? scratch->visit_cap : 0;
    scratch->times.begin = place(memory, passes, sizeof(uint64_t));
    scratch->times.end = place(memory, passes, sizeof(uint64_t));
    scratch->arrivals = place(memory, passes > 0 ? passes + OX_STAGE_UNITS_MAX : 0, sizeof *scratch->arrivals);
    scratch->arrived = place(memory, passes, sizeof(uint32_t));
    scratch->arrived_dx = place(memory, passes, sizeof(uint32_t));
}

/* Asserts that the gradient of the first use and those that are added to it form one list, all of it of this unit. */
static void check_addends(const struct ox_plan_model *model, uint32_t first_idx) {
    uint32_t left = model->grad_count, before = OX_NONE;
    const bool in_turn = model->grads[first_idx].in_turn;
    for (uint32_t i = first_idx; i != OX_NONE; i = model->grads[i].addend, left--) {
        const struct ox_plan_grad *const grad = &model->grads[i];
        OX_ASSERT(left > 0 && grad->unit_idx == model->grads[first_idx].unit_idx);
        OX_ASSERT(grad->added_to == (in_turn ? before : i == first_idx ? OX_NONE : first_idx));
        OX_ASSERT(grad->elem_count <= model->grads[first_idx].elem_count && grad->in_turn == in_turn);
        OX_ASSERT(!in_turn || grad->elem_count == model->grads[first_idx].elem_count);
        before = i;
    }
}

/* Asserts that units, gradients and stages of a model refer to each other consistently. */
static void check_model(const struct ox_plan_model *model) {
    uint32_t use_count = 0;
    OX_ASSERT(model->unit_count >= 1 && model->stage_count >= 1 && model->micro_batches >= 1);
    for (uint32_t i = 0; i < model->unit_count; i++) {
        const struct ox_plan_unit *const unit = &model->units[i];
        OX_ASSERT(unit->order_idx < model->unit_count && model->order[unit->order_idx] == i);
        OX_ASSERT(unit->trained == (unit->grad_idx != OX_NONE) && unit->trained == (unit->update_idx != OX_NONE));
        OX_ASSERT(!unit->trained || (unit->grad_idx < model->grad_count && model->grads[unit->grad_idx].unit_idx == i));
        OX_ASSERT(!unit->trained || model->grads[unit->grad_idx].elem_count == unit->elem_count);
        if (unit->trained) {
            check_addends(model, unit->grad_idx);
        }
    }
    for (uint32_t i = 0; i < model->stage_count; i++) {
        const struct ox_plan_stage *const stage = &model->stages[i];
        OX_ASSERT(stage->unit_count >= 1 && stage->unit_count <= OX_STAGE_UNITS_MAX);
        OX_ASSERT(stage->routed_back == 0 || (stage->kind == OX_PLAN_BLOCK && stage->routed_back <= i &&
                                              model->stages[i - stage->routed_back].routes_bytes > 0));
        for (uint32_t k = 0; k < stage->unit_count; k++) {
            const struct ox_plan_stage_unit *const use = &stage->units[k];
            OX_ASSERT(use->unit_idx < model->unit_count && model->units[use->unit_idx].stage_idx <= i);
            const bool trains = use->grad_idx != OX_NONE;
            OX_ASSERT(!trains || (use->grad_idx < model->grad_count &&
                                  model->grads[use->grad_idx].unit_idx == use->unit_idx));
            use_count += trains;
        }
    }
    OX_ASSERT(use_count == model->grad_count); /* one for each use that trains */
    OX_ASSERT(model->eval_only || model->update_count > 0);
}

/* Asserts that what ranks divide fits together. */
static void check_ranks(const struct ox_plan_input *input) {
    OX_ASSERT(ox_plan_row_groups(input) % ox_plan_contexts(input) == 0);
    OX_ASSERT(ox_plan_holders(input) * ox_plan_copies(input) * ox_plan_tensors(input) * ox_plan_pipe(input) ==
              ox_plan_rank_count(input));
    OX_ASSERT(ox_plan_experts(input) == 1 || (ox_plan_holders(input) % ox_plan_experts(input) == 0 &&
                                              input->ranks.expert_of != NULL && ox_plan_own_row_groups(input) == 1 &&
                                              !input->ranks.library_sums));
    OX_ASSERT(ox_plan_tensors(input) == 1 || (input->ranks.tensor_groups % ox_plan_tensors(input) == 0 &&
                                              input->ranks.group_of != NULL));
    OX_ASSERT(!input->ranks.library_sums || (input->ranks.sum_groups == ox_plan_data_ranks(input) &&
                                             input->ranks.exchange == OX_EXCHANGE_FP32 &&
                                             (ox_plan_holders(input) == 1 || ox_plan_copies(input) == 1)));
}

enum ox_status ox_plan_open(const struct ox_plan_input *input, struct ox_plan **out) {
    *out = NULL;
    const uint64_t units = input->model.unit_count, grads = input->model.grad_count;
    const uint64_t stages = input->model.stage_count, micro_batches = input->model.micro_batches;
    uint64_t uses = 0, cuts = 0, routes = 0;
    for (uint32_t i = 0; i < stages; i++) {
        const struct ox_plan_stage *const stage = &input->model.stages[i];
        uses += stage->unit_count;
        routes += stage->routes_bytes > 0;
        cuts += ox_max_u64(stage->forward.cut_count, stage->forward_kept.cut_count) +
                ox_max_u64(stage->backward.cut_count, stage->backward_kept.cut_count);
    }
    check_model(&input->model);
    check_ranks(input);
    /* The most tasks, which is also the most buffers. Each micro-batch has six per stage (forward, save, write; read,
     * load, backward) and two where its activations arrive or leave. Each tile, of which there are at most as many as
     * micro-batches, has twelve for each use of a unit, which has a gradient: three forward; three for weights and six
     * for gradients backward; and one for each stage that says which others have rows. A step has nine per unit:
     * transfers of planes, the updates and what goes with them. With
     * several sum groups each gradient has a task to clear and one to fold for each of them. Where ranks have slices, a
     * tile also gathers the weights for two visits of each use, and a step narrows, exchanges, widens and adds the
     * parts of each gradient and gathers square sums and losses. Each cut of a pass has two tasks; where there are
     * groups of rows, each gradient has one that joins their sums. */
    const uint64_t groups = ox_plan_sum_groups(input), folds = groups > 1 ? 2 * groups * grads : 0;
    const uint64_t visits = micro_batches * 2 * stages;
    const uint64_t gathers = ox_plan_holders(input) > 1 ? micro_batches * 2 * uses : 0;
    const struct ox_sums sums = ox_plan_sums(input);
    const uint64_t exchanges = ox_plan_data_ranks(input) > 1 ? 2 * grads * (ox_sums_rounds(&sums) + 4) + units + 1 : 0;
    const uint64_t transfers = ox_plan_pipe(input) > 1 ? micro_batches * stages * 5 + 3 + 2 * OX_STAGE_UNITS_MAX
                                                                : 0; /* and what brings them */
    const uint64_t borders = ox_plan_has_outside_input(&input->model) + ox_plan_has_outside_output(&input->model);
    const uint64_t tasks =
        micro_batches * (stages * 6 + uses * 12 + 1 + routes + 2 * borders + 2 * cuts) + units * 9 + folds + gathers +
        exchanges + transfers + grads + 64 + (input->ranks.low_rank != NULL ? 2 * grads : 0);
    if (tasks > UINT32_MAX / 16) {
        return ox_fail(OX_E_CONFIG, "plan: %llu micro-batches of %llu stages are too many tasks; use fewer, larger "
                       "micro-batches", (unsigned long long)micro_batches, (unsigned long long)stages);
    }
    struct ox_plan_full shape = {0};
    shape.plan.unit_count = (uint32_t)units;
    shape.plan.grad_count = (uint32_t)grads;
    shape.plan.stage_count = (uint32_t)stages;
    shape.plan.micro_batches = (uint32_t)micro_batches;
    shape.plan.task_cap = (uint32_t)tasks;
    shape.plan.buf_cap = (uint32_t)(tasks + (ox_plan_holders(input) > 1 ? 7 : 6) * units + 16);
    shape.plan.spool_count = (uint32_t)(grads + stages * micro_batches);
    shape.scratch.visit_cap = (uint32_t)visits;
    shape.scratch.of_pipe = ox_plan_pipe(input) > 1;
    struct tables memory = {.base = NULL, .used = sizeof shape};
    place_plan(&memory, &shape);
    memory.base = calloc(1, memory.used);
    if (memory.base == NULL) {
        char text[OX_SIZE_TEXT_BYTES];
        return ox_fail(OX_E_NOMEM, "plan: no memory for its %s of tasks", ox_size_text(memory.used, text));
    }
    struct ox_plan_full *const full = (struct ox_plan_full *)memory.base;
    *full = shape;
    memory.used = sizeof shape;
    place_plan(&memory, full);
    full->memory_bytes = memory.used;
    *out = &full->plan;
    return OX_OK;
}

void ox_plan_shrink(struct ox_plan **plan_ptr) {
    const struct ox_plan_full *const old = (const struct ox_plan_full *)*plan_ptr;
    const struct ox_plan *const plan = &old->plan;
    struct ox_plan_full shape = {.plan = *plan};
    shape.plan.task_cap = plan->task_count;
    shape.plan.buf_cap = plan->buf_count;
    struct tables memory = {.base = NULL, .used = sizeof shape};
    place_kept(&memory, &shape);
    memory.base = malloc(memory.used);
    if (memory.base == NULL) {
        return;
    }
    struct ox_plan_full *const full = (struct ox_plan_full *)memory.base;
    *full = shape;
    memory.used = sizeof shape;
    place_kept(&memory, full);
    full->memory_bytes = memory.used;
    memcpy(full->plan.tasks, plan->tasks, plan->task_count * sizeof *plan->tasks);
    memcpy(full->plan.bufs, plan->bufs, plan->buf_count * sizeof *plan->bufs);
    memcpy(full->plan.spool_bytes, plan->spool_bytes, plan->spool_count * sizeof *plan->spool_bytes);
    memcpy(full->plan.rules, plan->rules, plan->unit_count * sizeof *plan->rules);
    memcpy(full->scratch.weights_home, old->scratch.weights_home, plan->unit_count * sizeof(uint32_t));
    memcpy(full->scratch.state_home, old->scratch.state_home, plan->unit_count * sizeof(uint32_t));
    memcpy(full->scratch.replaced, old->scratch.replaced, plan->unit_count * sizeof(uint32_t));
    memcpy(full->scratch.grad_home, old->scratch.grad_home, plan->grad_count * sizeof(uint32_t));
    memcpy(full->scratch.residual, old->scratch.residual, plan->grad_count * sizeof(uint32_t));
    ox_plan_close(plan_ptr);
    *plan_ptr = &full->plan;
}

static bool same_tasks(const struct ox_plan *a, const struct ox_plan *b) {
    bool same = a->task_count == b->task_count;
    for (uint32_t i = 0; i < a->task_count && same; i++) {
        const struct ox_task *const one = &a->tasks[i], *const other = &b->tasks[i];
        same = one->use_count == other->use_count && memcmp(one, other, offsetof(struct ox_task, uses)) == 0;
        for (uint32_t k = 0; k < one->use_count && same; k++) {
            const struct ox_use *const x = &one->uses[k], *const y = &other->uses[k];
            same = x->buf_idx == y->buf_idx && x->role == y->role && x->nth == y->nth && x->read == y->read &&
                   x->write == y->write;
        }
    }
    return same;
}

/* The lists beside tasks: buffers, spool extents, and where homes are. */
static bool same_lists(const struct ox_plan *a, const struct ox_plan *b) {
    const struct ox_plan_scratch *const one = &((const struct ox_plan_full *)a)->scratch;
    const struct ox_plan_scratch *const other = &((const struct ox_plan_full *)b)->scratch;
    const size_t units = a->unit_count * sizeof(uint32_t);
    return a->buf_count == b->buf_count && memcmp(a->bufs, b->bufs, a->buf_count * sizeof *a->bufs) == 0 &&
           memcmp(a->spool_bytes, b->spool_bytes, a->spool_count * sizeof *a->spool_bytes) == 0 &&
           memcmp(one->weights_home, other->weights_home, units) == 0 &&
           memcmp(one->state_home, other->state_home, units) == 0 &&
           memcmp(one->replaced, other->replaced, units) == 0 &&
           memcmp(one->residual, other->residual, a->grad_count * sizeof(uint32_t)) == 0 &&
           memcmp(one->grad_home, other->grad_home, a->grad_count * sizeof(uint32_t)) == 0;
}

bool ox_plan_same(const struct ox_plan *a, const struct ox_plan *b) {
    /* All numbers of a plan but those of its lists. */
    struct ox_plan one = *a, other = *b;
    one.tasks = other.tasks = NULL;
    one.bufs = other.bufs = NULL;
    one.spool_bytes = other.spool_bytes = NULL;
    one.rules = other.rules = NULL;
    one.task_cap = other.task_cap = one.buf_cap = other.buf_cap = 0;
    return memcmp(&one, &other, sizeof one) == 0 && same_tasks(a, b) && same_lists(a, b);
}

uint64_t ox_plan_memory_bytes(const struct ox_plan *plan) {
    return ((const struct ox_plan_full *)plan)->memory_bytes;
}

void ox_plan_close(struct ox_plan **plan) {
    free(*plan);
    *plan = NULL;
}

void ox_plans_close(struct ox_plans *plans) {
    ox_plan_close(&plans->eval_after_step);
    ox_plan_close(&plans->eval);
    ox_plan_close(&plans->train);
}
