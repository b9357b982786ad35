/* Builds the task list of a step: tile by tile, forward through the units, the head, and back, every micro-batch
 * of the tile through one unit before the next; then the norm, the optimizer unit by unit, the commit.
 *
 * A pass over one unit is a stage. What a stage needs from elsewhere (planes, partial gradients) is emitted
 * prefetch_depth stages before the work itself; list order is issue order, so the transfer runs ahead
 * exactly as far as memory allows. */
#include "offload/plan/builder.h"

#include <string.h>

enum pass { PASS_FORWARD, PASS_HEAD, PASS_BACKWARD };

struct stage {
    uint32_t idx, tile, unit_idx;
    uint32_t mb_first, mb_past;
    enum pass pass;
};

struct ox_task *ox_build_transfer(struct ox_builder *b, enum ox_task_kind kind, uint32_t unit_idx, uint32_t source,
                                uint32_t target) {
    static const enum ox_lane_id lanes[OX_TASK_KIND_COUNT] = {
        [OX_TASK_READ] = OX_LANE_NVME_READ,       [OX_TASK_UPLOAD] = OX_LANE_H2D,
        [OX_TASK_ACT_SAVE] = OX_LANE_D2H,         [OX_TASK_ACT_WRITE] = OX_LANE_NVME_WRITE,
        [OX_TASK_ACT_READ] = OX_LANE_NVME_READ,   [OX_TASK_ACT_LOAD] = OX_LANE_H2D,
        [OX_TASK_GRAD_SAVE] = OX_LANE_D2H,        [OX_TASK_GRAD_WRITE] = OX_LANE_NVME_WRITE,
        [OX_TASK_GRAD_READ] = OX_LANE_NVME_READ,  [OX_TASK_GRAD_LOAD] = OX_LANE_H2D,
        [OX_TASK_GRAD_PACK] = OX_LANE_COMPUTE,    [OX_TASK_DOWNLOAD] = OX_LANE_D2H,
        [OX_TASK_REFRESH] = OX_LANE_H2D,          [OX_TASK_LOSS] = OX_LANE_D2H,
        [OX_TASK_BATCH] = OX_LANE_H2D,            [OX_TASK_NORM_SAVE] = OX_LANE_D2H,
        [OX_TASK_NONFINITE] = OX_LANE_D2H,
    };
    struct ox_task *const task = new_task(b, kind, lanes[kind], unit_idx, OX_NONE);
    if (source != OX_NONE) {
        reads(task, source, OX_USE_SOURCE);
    }
    writes(task, target, OX_USE_TARGET);
    return task;
}

/* ---- homes ------------------------------------------------------------------------------------ */

/* The head's use of tied weights is added to that of their owner first. */
static bool packs(const struct ox_builder *b, uint32_t unit_idx) {
    return b->in->model.grad_bf16 && !sums_on_host(b, unit_idx) && unit_idx != b->tied_unit;
}

/* Partial sums of several tiles come there too, unless they stay where they are summed. */
static uint64_t grad_home_bytes(const struct ox_builder *b, uint32_t unit_idx) {
    const bool wide = (b->in->placement.tiles > 1 && !on_device(b, unit_idx)) || !packs(b, unit_idx);
    return unit_elems(b, unit_idx) * (wide ? 4 : 2);
}

static enum ox_tier grad_tier(const struct ox_builder *b, uint32_t unit_idx) {
    const uint32_t shard_idx = unit_idx == b->tied_unit ? 0 : unit_idx;
    return b->in->table->shards[shard_idx].homes.grad;
}

/* True when the kernels add right into the gradient's home. */
static bool grad_is_direct(const struct ox_builder *b, uint32_t unit_idx) {
    return b->scratch->grad_home[unit_idx] != OX_NONE && grad_tier(b, unit_idx) == b->compute && !packs(b, unit_idx);
}

static void place_unit_homes(struct ox_builder *b, uint32_t unit_idx) {
    struct ox_plan_scratch *const s = b->scratch;
    const struct ox_homes *const homes = &b->in->table->shards[unit_idx].homes;
    const uint64_t elems = unit_elems(b, unit_idx);
    s->weights_home[unit_idx] = s->state_home[unit_idx] = OX_NONE;
    if (homes->weights != OX_TIER_NVME) {
        const uint64_t bytes = ox_plan_lo_in_state(b->in, unit_idx) ? elems * OX_HI_BYTES
                                                                    : ox_plan_weight_bytes(b->in, unit_idx);
        s->weights_home[unit_idx] = new_resident(b, OX_BUF_WEIGHTS, homes->weights, bytes, unit_idx);
    }
    if (homes->state != OX_TIER_NVME && !b->in->model.eval_only) {
        s->state_home[unit_idx] = new_resident(b, OX_BUF_STATE, homes->state,
                                               ox_shard_state_bytes(b->in->table, elems), unit_idx);
    }
}

/* A gradient that stays on the device is at home where it was summed; only one that waits there for the next step keeps
 * that place between steps. */
static void place_gradient(struct ox_builder *b, uint32_t unit_idx) {
    struct ox_plan *const plan = b->plan;
    struct ox_plan_scratch *const s = b->scratch;
    const uint64_t bytes = grad_home_bytes(b, unit_idx);
    if (on_device(b, unit_idx)) {
        if (b->in->placement.overlap && unit_idx != b->tied_unit) {
            s->grad_home[unit_idx] = new_resident(b, OX_BUF_GRAD, OX_TIER_DEVICE, bytes, unit_idx);
        }
    } else if (grad_tier(b, unit_idx) == OX_TIER_HOST) {
        s->grad_home[unit_idx] = new_resident(b, OX_BUF_GRAD, OX_TIER_HOST, bytes, unit_idx);
    } else if (b->train || b->carries) {
        plan->spool_bytes[ox_plan_spool_grad(plan, unit_idx)] = ox_align_up(bytes, OX_IO_ALIGN_BYTES);
        s->grad_spool[unit_idx] = new_buf(b, OX_BUF_GRAD, OX_TIER_NVME, bytes, unit_idx);
        plan->bufs[s->grad_spool[unit_idx]].resident = b->carries;
    }
}

static void place_homes(struct ox_builder *b) {
    struct ox_plan *const plan = b->plan;
    struct ox_plan_scratch *const s = b->scratch;
    const struct ox_plan_model *const model = &b->in->model;
    uint64_t partials_bytes = 0;
    for (uint32_t i = 0; i < plan->unit_count; i++) {
        place_unit_homes(b, i);
        partials_bytes += ox_plan_partials_bytes(b->in, i);
    }
    for (uint32_t i = 0; i <= plan->unit_count; i++) {
        s->grad_home[i] = s->grad_spool[i] = s->grad_live[i] = OX_NONE;
        if (!model->eval_only && (i != b->tied_unit || model->tied_elems > 0)) {
            place_gradient(b, i);
        }
    }
    ox_build_device_counts(b);
    if (b->carries) {
        plan->written_buf = new_resident(b, OX_BUF_SMALL, OX_TIER_NVME, OX_IO_ALIGN_BYTES, OX_NONE);
    }
    plan->const_buf = new_resident(b, OX_BUF_SMALL, b->compute, ox_max_u64(model->const_bytes, 1), OX_NONE);
    plan->loss_buf = new_resident(b, OX_BUF_SMALL, b->compute, 8 * (uint64_t)plan->micro_batches, OX_NONE);
    plan->loss_host_buf = unified(b) ? plan->loss_buf
                                     : new_resident(b, OX_BUF_SMALL, OX_TIER_HOST,
                                                    8 * (uint64_t)plan->micro_batches, OX_NONE);
    plan->norm_buf = new_resident(b, OX_BUF_SMALL, OX_TIER_HOST, partials_bytes, OX_NONE);
    plan->batch_host_buf = new_resident(b, OX_BUF_BATCH, OX_TIER_HOST,
                                        model->batch_bytes * plan->micro_batches, OX_NONE);
}

/* ---- weights ---------------------------------------------------------------------------------- */

/* What the step before wrote can be read once it is on the drives; the commit need not have ended. */
static void read_weights(struct ox_builder *b, uint32_t unit_idx, uint32_t target) {
    struct ox_task *const read = ox_build_transfer(b, OX_TASK_READ, unit_idx, OX_NONE, target);
    if (b->plan->written_buf != OX_NONE) {
        reads(read, b->plan->written_buf, OX_USE_WRITTEN);
    }
    count(b, read, OX_LINK_NVME_READ, OX_TRAFFIC_WEIGHTS, ox_plan_weight_bytes(b->in, unit_idx));
}

/* The planes of a unit where compute can read them; the transfers that bring them are emitted here. `first`: of all
 * the plan's uses, which is where an overlapped optimizer brings them up to date. */
static uint32_t fetch_weights(struct ox_builder *b, uint32_t unit_idx, bool first) {
    const enum ox_tier home = b->in->table->shards[unit_idx].homes.weights;
    const uint64_t bytes = ox_plan_weight_bytes(b->in, unit_idx);
    uint32_t at = b->scratch->weights_home[unit_idx];
    if (home == OX_TIER_NVME) {
        at = new_buf(b, OX_BUF_WEIGHTS, OX_TIER_HOST, bytes, unit_idx);
    }
    if (first && b->carries) {
        ox_build_adam_carried(b, unit_idx, home == OX_TIER_NVME ? at : OX_NONE);
    } else if (home == OX_TIER_NVME) {
        read_weights(b, unit_idx, at);
    }
    if (home == b->compute || (home == OX_TIER_NVME && unified(b))) {
        return at;
    }
    const uint32_t target = new_buf(b, OX_BUF_WEIGHTS, OX_TIER_DEVICE, bytes, unit_idx);
    struct ox_task *const task = ox_build_transfer(b, OX_TASK_UPLOAD, unit_idx, at, target);
    if (ox_plan_lo_in_state(b->in, unit_idx)) {
        reads(task, b->scratch->state_home[unit_idx], OX_USE_STATE);
    }
    count(b, task, OX_LINK_H2D, OX_TRAFFIC_WEIGHTS, bytes);
    return target;
}

/* Planes as a kernel reads them: beside them, where memory of the device is their home, the state that holds lo. */
static void reads_planes(const struct ox_builder *b, struct ox_task *task, uint32_t unit_idx, uint32_t planes,
                         bool is_table) {
    reads(task, planes, is_table ? OX_USE_TABLE : OX_USE_WEIGHTS);
    if (b->in->table->shards[unit_idx].homes.weights == b->compute && ox_plan_lo_in_state(b->in, unit_idx)) {
        reads(task, b->scratch->state_home[unit_idx], is_table ? OX_USE_TABLE_STATE : OX_USE_STATE);
    }
}

static uint32_t join_weights(struct ox_builder *b, const struct stage *stage) {
    if (!b->in->model.joins) {
        return OX_NONE;
    }
    const uint32_t joined = new_buf(b, OX_BUF_JOINED, b->compute, unit_elems(b, stage->unit_idx) * 4,
                                    stage->unit_idx);
    struct ox_task *const task = new_task(b, OX_TASK_JOIN, OX_LANE_COMPUTE, stage->unit_idx, OX_NONE);
    reads_planes(b, task, stage->unit_idx, b->scratch->weights_at[stage->idx], false);
    writes(task, joined, OX_USE_JOINED);
    return joined;
}

/* A block's weights as its passes read them. */
static void reads_weights(const struct ox_builder *b, struct ox_task *task, const struct stage *stage,
                          uint32_t joined) {
    if (joined == OX_NONE) {
        reads_planes(b, task, stage->unit_idx, b->scratch->weights_at[stage->idx], false);
    } else {
        reads(task, joined, OX_USE_JOINED);
    }
}

/* ---- activation checkpoints ------------------------------------------------------------------- */

static uint32_t *act_slot(const struct ox_builder *b, uint32_t *slots, uint32_t unit_idx, uint32_t mb_idx) {
    return &slots[unit_idx * b->plan->micro_batches + mb_idx];
}

/* What is kept beside an input is larger than the input, so this stays with it. */
static bool act_stays(const struct ox_builder *b, uint32_t unit_idx) {
    return b->in->placement.act_tier == OX_TIER_DEVICE || b->in->placement.act_tier == b->compute ||
           is_kept(b, unit_idx);
}

/* `x` is the input of block unit_idx; sends it home. */
static void save_act(struct ox_builder *b, uint32_t unit_idx, uint32_t mb_idx, uint32_t x) {
    const uint64_t bytes = b->in->model.act_bytes;
    uint32_t *const slot = act_slot(b, b->scratch->act, unit_idx, mb_idx);
    *slot = x;
    if (act_stays(b, unit_idx)) {
        return;
    }
    if (!unified(b)) {
        *slot = new_buf(b, OX_BUF_ACT, OX_TIER_HOST, bytes, unit_idx);
        struct ox_task *const save = ox_build_transfer(b, OX_TASK_ACT_SAVE, unit_idx, x, *slot);
        save->mb_idx = mb_idx;
        count(b, save, OX_LINK_D2H, OX_TRAFFIC_ACTIVATIONS, bytes);
    }
    if (b->in->placement.act_tier == OX_TIER_NVME) {
        const uint32_t spool = new_buf(b, OX_BUF_ACT, OX_TIER_NVME, bytes, unit_idx);
        b->plan->spool_bytes[ox_plan_spool_act(b->plan, unit_idx, mb_idx)] = ox_align_up(bytes, OX_IO_ALIGN_BYTES);
        struct ox_task *const write = ox_build_transfer(b, OX_TASK_ACT_WRITE, unit_idx, *slot, spool);
        write->mb_idx = mb_idx;
        count(b, write, OX_LINK_NVME_WRITE, OX_TRAFFIC_ACTIVATIONS, ox_align_up(bytes, OX_IO_ALIGN_BYTES));
        *act_slot(b, b->scratch->act_spool, unit_idx, mb_idx) = spool;
        *slot = OX_NONE;
    }
}

static uint32_t load_act(struct ox_builder *b, uint32_t unit_idx, uint32_t mb_idx) {
    const uint64_t bytes = b->in->model.act_bytes;
    uint32_t at = *act_slot(b, b->scratch->act, unit_idx, mb_idx);
    if (act_stays(b, unit_idx)) {
        return at;
    }
    if (b->in->placement.act_tier == OX_TIER_NVME) {
        at = new_buf(b, OX_BUF_ACT, OX_TIER_HOST, bytes, unit_idx);
        const uint32_t spool = *act_slot(b, b->scratch->act_spool, unit_idx, mb_idx);
        struct ox_task *const read = ox_build_transfer(b, OX_TASK_ACT_READ, unit_idx, spool, at);
        read->mb_idx = mb_idx;
        count(b, read, OX_LINK_NVME_READ, OX_TRAFFIC_ACTIVATIONS, ox_align_up(bytes, OX_IO_ALIGN_BYTES));
        if (unified(b)) {
            return at;
        }
    }
    const uint32_t target = new_buf(b, OX_BUF_ACT, OX_TIER_DEVICE, bytes, unit_idx);
    struct ox_task *const load = ox_build_transfer(b, OX_TASK_ACT_LOAD, unit_idx, at, target);
    load->mb_idx = mb_idx;
    count(b, load, OX_LINK_H2D, OX_TRAFFIC_ACTIVATIONS, bytes);
    return target;
}

/* ---- gradients -------------------------------------------------------------------------------- */

/* Brings the partial sum of the tiles before back to where kernels add to it. */
static void load_partial(struct ox_builder *b, uint32_t unit_idx) {
    struct ox_plan_scratch *const s = b->scratch;
    if (grad_is_direct(b, unit_idx) || on_device(b, unit_idx)) {
        return;
    }
    const uint64_t bytes = unit_elems(b, unit_idx) * 4;
    uint32_t at = s->grad_home[unit_idx];
    if (grad_tier(b, unit_idx) == OX_TIER_NVME) {
        at = new_buf(b, OX_BUF_GRAD, OX_TIER_HOST, bytes, unit_idx);
        count(b, ox_build_transfer(b, OX_TASK_GRAD_READ, unit_idx, s->grad_spool[unit_idx], at), OX_LINK_NVME_READ,
              OX_TRAFFIC_GRADS, bytes);
        if (unified(b)) {
            s->grad_live[unit_idx] = at;
            return;
        }
    }
    const uint32_t target = new_buf(b, OX_BUF_GRAD, b->compute, bytes, unit_idx);
    count(b, ox_build_transfer(b, OX_TASK_GRAD_LOAD, unit_idx, at, target), OX_LINK_H2D, OX_TRAFFIC_GRADS, bytes);
    s->grad_live[unit_idx] = target;
}

/* The accumulator of a unit at the start of its backward in a tile. */
static uint32_t begin_grad(struct ox_builder *b, const struct stage *stage, uint32_t unit_idx) {
    struct ox_plan_scratch *const s = b->scratch;
    if (grad_is_direct(b, unit_idx)) {
        s->grad_live[unit_idx] = s->grad_home[unit_idx];
    } else if (stage->tile == 0) {
        s->grad_live[unit_idx] = new_buf(b, OX_BUF_GRAD, b->compute, unit_elems(b, unit_idx) * 4, unit_idx);
    }
    if (stage->tile == 0) {
        writes(new_task(b, OX_TASK_GRAD_ZERO, OX_LANE_COMPUTE, unit_idx, OX_NONE), s->grad_live[unit_idx],
               OX_USE_GRAD);
    }
    return s->grad_live[unit_idx];
}

/* Square sums of a finished gradient that lies in host memory at `at`; the table's takes in its second use. */
static void reduce_grad(struct ox_builder *b, uint32_t unit_idx, uint32_t at) {
    struct ox_plan_scratch *const s = b->scratch;
    uint32_t second = OX_NONE;
    if (unit_idx == 0 && b->in->model.tied_elems > 0) {
        second = s->grad_home[b->tied_unit];
        if (second == OX_NONE) {
            const uint64_t bytes = unit_elems(b, b->tied_unit) * 4;
            second = new_buf(b, OX_BUF_GRAD, OX_TIER_HOST, bytes, b->tied_unit);
            count(b, ox_build_transfer(b, OX_TASK_GRAD_READ, b->tied_unit, s->grad_spool[b->tied_unit], second),
                  OX_LINK_NVME_READ, OX_TRAFFIC_GRADS, bytes);
        }
    }
    struct ox_task *const task = new_task(b, OX_TASK_REDUCE, OX_LANE_REDUCE, unit_idx, OX_NONE);
    task->last = true;
    updates(task, at, OX_USE_GRAD); /* the table's is rounded in place */
    writes(task, b->plan->norm_buf, OX_USE_NORM);
    if (second != OX_NONE) {
        reads(task, second, OX_USE_GRAD_HEAD);
    }
}

/* A sum that stays on the device, where it is finished: both uses of tied weights in one, in the form that the
 * optimizer takes. */
static void finish_on_device(struct ox_builder *b, uint32_t unit_idx) {
    struct ox_plan_scratch *const s = b->scratch;
    uint32_t at = s->grad_live[unit_idx];
    if (unit_idx == b->tied_unit) {
        return;
    }
    if (unit_idx == 0 && b->in->model.tied_elems > 0) {
        struct ox_task *const add = new_task(b, OX_TASK_GRAD_ADD, OX_LANE_COMPUTE, unit_idx, OX_NONE);
        updates(add, at, OX_USE_GRAD);
        reads(add, s->grad_live[b->tied_unit], OX_USE_GRAD_HEAD);
    }
    if (packs(b, unit_idx)) {
        const uint32_t home = s->grad_home[unit_idx];
        const uint32_t packed = home != OX_NONE ? home : new_buf(b, OX_BUF_GRAD, OX_TIER_DEVICE,
                                                                 grad_home_bytes(b, unit_idx), unit_idx);
        ox_build_transfer(b, OX_TASK_GRAD_PACK, unit_idx, at, packed)->last = true;
        at = packed;
    }
    s->grad_speculative[unit_idx] = at;
    ox_build_device_reduce(b, unit_idx, at);
}

/* After a tile: sends the accumulator home, finished or partial. */
static void end_grad(struct ox_builder *b, const struct stage *stage, uint32_t unit_idx) {
    struct ox_plan_scratch *const s = b->scratch;
    const bool last = stage->tile + 1 == b->in->placement.tiles;
    if (on_device(b, unit_idx)) {
        if (last) {
            finish_on_device(b, unit_idx);
        }
        return;
    }
    const bool to_host = grad_tier(b, unit_idx) == OX_TIER_HOST;
    uint64_t bytes = unit_elems(b, unit_idx) * 4;
    uint32_t at = s->grad_live[unit_idx];
    if (last && packs(b, unit_idx)) {
        bytes /= 2;
        const uint32_t packed = unified(b) && to_host ? s->grad_home[unit_idx]
                                                      : new_buf(b, OX_BUF_GRAD, b->compute, bytes, unit_idx);
        ox_build_transfer(b, OX_TASK_GRAD_PACK, unit_idx, at, packed)->last = true;
        at = packed;
    }
    if (!unified(b) || (to_host && at != s->grad_home[unit_idx])) {
        const uint32_t target = to_host ? s->grad_home[unit_idx]
                                        : new_buf(b, OX_BUF_GRAD, OX_TIER_HOST, bytes, unit_idx);
        struct ox_task *const save = ox_build_transfer(b, OX_TASK_GRAD_SAVE, unit_idx, at, target);
        save->last = last;
        count(b, save, OX_LINK_D2H, OX_TRAFFIC_GRADS, bytes);
        at = target;
    }
    if (last && unit_idx != b->tied_unit) {
        reduce_grad(b, unit_idx, at);
        if (b->in->model.grad_bf16 && sums_on_host(b, unit_idx)) {
            bytes /= 2; /* rounded by the reduction */
        }
    }
    if (!to_host) {
        struct ox_task *const write = ox_build_transfer(b, OX_TASK_GRAD_WRITE, unit_idx, at, s->grad_spool[unit_idx]);
        write->last = last;
        count(b, write, OX_LINK_NVME_WRITE, OX_TRAFFIC_GRADS, bytes);
    }
    s->grad_speculative[unit_idx] = at;
}

/* ---- stages ----------------------------------------------------------------------------------- */

static uint32_t stages_per_tile(const struct ox_builder *b) {
    return b->train ? 2 * b->head_unit + 1 : b->head_unit + 1;
}

static struct stage stage_at(const struct ox_builder *b, uint32_t idx) {
    const uint32_t per_tile = stages_per_tile(b), tiles = b->in->placement.tiles;
    const uint32_t tile = idx / per_tile, step = idx % per_tile;
    const uint64_t micro_batches = b->plan->micro_batches;
    return (struct stage){
        .idx = idx,
        .tile = tile,
        .mb_first = (uint32_t)(micro_batches * tile / tiles),
        .mb_past = (uint32_t)(micro_batches * (tile + 1) / tiles),
        .pass = step < b->head_unit ? PASS_FORWARD : step == b->head_unit ? PASS_HEAD : PASS_BACKWARD,
        .unit_idx = step <= b->head_unit ? step : 2 * b->head_unit - step,
    };
}

static void prepare_stage(struct ox_builder *b, const struct stage *stage) {
    struct ox_plan_scratch *const s = b->scratch;
    s->weights_at[stage->idx] = s->table_at[stage->idx] = OX_NONE;
    if (stage->pass != PASS_BACKWARD || stage->unit_idx > 0) {
        s->weights_at[stage->idx] = fetch_weights(b, stage->unit_idx, stage->tile == 0 && stage->pass != PASS_BACKWARD);
    }
    const bool tied = b->in->model.tied_elems > 0;
    if (stage->pass == PASS_HEAD && tied) {
        s->table_at[stage->idx] = fetch_weights(b, 0, false);
    }
    if (b->train && stage->tile > 0 && stage->pass != PASS_FORWARD) {
        load_partial(b, stage->unit_idx);
        if (stage->pass == PASS_HEAD && tied) {
            load_partial(b, b->tied_unit);
        }
    }
}

static void load_batch(struct ox_builder *b, uint32_t mb_idx) {
    if (unified(b)) {
        b->scratch->batch[mb_idx] = b->plan->batch_host_buf;
        return;
    }
    const uint64_t bytes = b->in->model.batch_bytes;
    b->scratch->batch[mb_idx] = new_buf(b, OX_BUF_BATCH, OX_TIER_DEVICE, bytes, OX_NONE);
    struct ox_task *const task = ox_build_transfer(b, OX_TASK_BATCH, OX_NONE, b->plan->batch_host_buf,
                                          b->scratch->batch[mb_idx]);
    task->mb_idx = mb_idx;
    count(b, task, OX_LINK_H2D, OX_TRAFFIC_OTHER, bytes);
}

static void run_forward(struct ox_builder *b, const struct stage *stage) {
    struct ox_plan_scratch *const s = b->scratch;
    const struct ox_plan_model *const model = &b->in->model;
    const bool is_block = stage->unit_idx > 0, kept = is_kept(b, stage->unit_idx);
    const uint32_t joined = is_block ? join_weights(b, stage) : OX_NONE;
    const uint64_t work_bytes = kept ? model->work_kept_forward_bytes : model->work_forward_bytes;
    const uint32_t work = is_block ? new_buf(b, OX_BUF_WORK, b->compute, work_bytes, OX_NONE) : OX_NONE;
    for (uint32_t mb_idx = stage->mb_first; mb_idx < stage->mb_past; mb_idx++) {
        if (!is_block) {
            load_batch(b, mb_idx);
        }
        const uint32_t y = new_buf(b, OX_BUF_ACT, b->compute, model->act_bytes, stage->unit_idx);
        struct ox_task *const task = new_task(b, OX_TASK_FORWARD, OX_LANE_COMPUTE, stage->unit_idx, mb_idx);
        if (is_block) {
            reads_weights(b, task, stage, joined);
            reads(task, s->x[mb_idx], OX_USE_X);
            writes(task, work, OX_USE_WORK);
            reads(task, b->plan->const_buf, OX_USE_CONST);
        } else {
            reads_planes(b, task, 0, s->weights_at[stage->idx], false);
        }
        reads(task, s->batch[mb_idx], OX_USE_BATCH);
        writes(task, y, OX_USE_Y);
        s->x[mb_idx] = y;
        if (kept) {
            uint32_t *const slot = act_slot(b, s->kept, stage->unit_idx, mb_idx);
            *slot = new_buf(b, OX_BUF_KEPT, b->compute, model->kept_bytes, stage->unit_idx);
            writes(task, *slot, OX_USE_KEPT);
        }
        if (b->train && stage->unit_idx + 1 < b->head_unit) {
            save_act(b, stage->unit_idx + 1, mb_idx, y);
        }
    }
}

static void run_head(struct ox_builder *b, const struct stage *stage) {
    struct ox_plan_scratch *const s = b->scratch;
    const struct ox_plan_model *const model = &b->in->model;
    const bool tied = model->tied_elems > 0;
    const uint64_t work_bytes = b->train ? model->work_head_bytes : model->work_head_eval_bytes;
    const uint32_t work = new_buf(b, OX_BUF_WORK, b->compute, work_bytes, OX_NONE);
    const uint32_t grad = b->train ? begin_grad(b, stage, b->head_unit) : OX_NONE;
    const uint32_t grad_table = b->train && tied ? begin_grad(b, stage, b->tied_unit) : OX_NONE;
    for (uint32_t mb_idx = stage->mb_first; mb_idx < stage->mb_past; mb_idx++) {
        struct ox_task *const task = new_task(b, OX_TASK_HEAD, OX_LANE_COMPUTE, b->head_unit, mb_idx);
        reads_planes(b, task, b->head_unit, s->weights_at[stage->idx], false);
        if (tied) {
            reads_planes(b, task, 0, s->table_at[stage->idx], true);
        }
        reads(task, s->x[mb_idx], OX_USE_X);
        reads(task, s->batch[mb_idx], OX_USE_BATCH);
        writes(task, work, OX_USE_WORK);
        writes(task, b->plan->loss_buf, OX_USE_LOSS);
        if (b->train) {
            s->dx[mb_idx] = new_buf(b, OX_BUF_ACT, b->compute, model->act_bytes, OX_NONE);
            writes(task, s->dx[mb_idx], OX_USE_DX);
            updates(task, grad, OX_USE_GRAD);
            if (tied) {
                updates(task, grad_table, OX_USE_GRAD_HEAD);
            }
        }
    }
    if (b->train) {
        end_grad(b, stage, b->head_unit);
        if (tied) {
            end_grad(b, stage, b->tied_unit);
        }
    }
}

static void run_backward(struct ox_builder *b, const struct stage *stage) {
    struct ox_plan_scratch *const s = b->scratch;
    const struct ox_plan_model *const model = &b->in->model;
    const bool is_block = stage->unit_idx > 0, kept = is_kept(b, stage->unit_idx);
    const uint32_t joined = is_block ? join_weights(b, stage) : OX_NONE;
    const uint64_t work_bytes = kept ? model->work_kept_backward_bytes : model->work_backward_bytes;
    const uint32_t work = is_block ? new_buf(b, OX_BUF_WORK, b->compute, work_bytes, OX_NONE) : OX_NONE;
    const uint32_t grad = begin_grad(b, stage, stage->unit_idx);
    uint32_t next_x = is_block ? load_act(b, stage->unit_idx, stage->mb_first) : OX_NONE;
    for (uint32_t mb_idx = stage->mb_first; mb_idx < stage->mb_past; mb_idx++) {
        const uint32_t x = next_x;
        const bool more = is_block && mb_idx + 1 < stage->mb_past;
        if (more && b->in->placement.prefetch_depth > 0) {
            next_x = load_act(b, stage->unit_idx, mb_idx + 1);
        }
        struct ox_task *const task = new_task(b, OX_TASK_BACKWARD, OX_LANE_COMPUTE, stage->unit_idx, mb_idx);
        if (is_block) {
            reads_weights(b, task, stage, joined);
            reads(task, x, OX_USE_X);
            writes(task, work, OX_USE_WORK);
            reads(task, b->plan->const_buf, OX_USE_CONST);
        }
        reads(task, s->batch[mb_idx], OX_USE_BATCH);
        updates(task, s->dx[mb_idx], OX_USE_DX);
        updates(task, grad, OX_USE_GRAD);
        if (kept) {
            updates(task, *act_slot(b, s->kept, stage->unit_idx, mb_idx), OX_USE_KEPT);
        }
        if (more && b->in->placement.prefetch_depth == 0) {
            next_x = load_act(b, stage->unit_idx, mb_idx + 1);
        }
    }
    end_grad(b, stage, stage->unit_idx);
}

/* ---- the whole ------------------------------------------------------------------------------------ */

static void sum_nvme(struct ox_builder *b) {
    struct ox_plan *const plan = b->plan;
    const bool store = b->in->budget.nvme_bytes > 0;
    const uint64_t generations = ox_plan_generations(&b->in->budget);
    uint64_t weights = 0, state = 0, spool = 0;
    for (uint32_t i = 0; i < plan->unit_count && store; i++) {
        weights += generations * b->in->model.unit_elems[i] * OX_HI_BYTES;
        state += generations * ox_shard_stored_bytes(b->in->table, i);
    }
    for (uint32_t i = 0; i < plan->spool_count; i++) {
        spool += plan->spool_bytes[i];
    }
    plan->stored_weight_bytes = weights;
    plan->resident_bytes[OX_TIER_NVME] = weights + state;
    plan->peak_bytes[OX_TIER_NVME] =
        plan->resident_bytes[OX_TIER_NVME] + spool + (store ? b->in->budget.nvme_fixed_bytes : 0);
}

/* The optimizers that run in backward. They follow their gradient by as many stages as transfers run ahead, so that
 * backward need not wait for them before it gives the next gradient away. */
static void run_speculative(struct ox_builder *b, uint32_t stage_idx, uint32_t depth) {
    const uint32_t stage_count = stages_per_tile(b) * b->in->placement.tiles;
    const uint32_t head_stage = stage_count - 1 - b->head_unit; /* in the last tile */
    const bool end = stage_idx + 1 == stage_count;
    const uint32_t past = end ? stage_count : stage_idx < depth ? 0 : stage_idx - depth + 1;
    uint32_t i = stage_idx < depth ? 0 : stage_idx - depth;
    for (i = i < head_stage ? head_stage : i; b->train && i < past; i++) {
        const uint32_t unit_idx = stage_at(b, i).unit_idx;
        if (is_speculative(b, unit_idx)) {
            ox_build_adam_speculative(b, unit_idx, b->scratch->grad_speculative[unit_idx]);
        }
    }
}

static void emit_stages(struct ox_builder *b) {
    const uint32_t stage_count = stages_per_tile(b) * b->in->placement.tiles;
    OX_ASSERT(stage_count <= b->scratch->stage_cap);
    /* A partial gradient may not be asked for before the tile before has sent it away. */
    const uint32_t depth = (uint32_t)ox_min_u64(b->in->placement.prefetch_depth, stages_per_tile(b) - 1);
    uint32_t prepared = 0;
    for (uint32_t i = 0; i < stage_count; i++) {
        for (; prepared < stage_count && prepared <= i + depth; prepared++) {
            const struct stage ahead = stage_at(b, prepared);
            prepare_stage(b, &ahead);
        }
        const struct stage stage = stage_at(b, i);
        if (stage.pass == PASS_FORWARD) {
            run_forward(b, &stage);
        } else if (stage.pass == PASS_HEAD) {
            run_head(b, &stage);
        } else {
            run_backward(b, &stage);
        }
        run_speculative(b, i, depth);
    }
}

static void list_tasks(struct ox_plan *plan, const struct ox_plan_input *input, enum ox_plan_kind kind) {
    struct ox_plan_full *const full = (struct ox_plan_full *)plan;
    OX_ASSERT(plan->unit_count == input->model.unit_count && plan->micro_batches == input->model.micro_batches);
    OX_ASSERT(kind != OX_PLAN_EVAL_AFTER_STEP || (input->placement.overlap && !input->model.eval_only));
    OX_ASSERT(input->placement.tiles >= 1 && input->placement.tiles <= plan->micro_batches);
    OX_ASSERT(input->placement.kept_units <= plan->unit_count - 2 &&
              (input->placement.kept_units == 0 || input->model.kept_bytes > 0));
    /* fp32 compute joins hi with a lo of 16 bits, which it finds at the front of the state. */
    OX_ASSERT(!input->model.fp32 || input->model.joins);
    OX_ASSERT(!input->model.fp32 || input->table->sizes.lo_per_group == OX_LO_BYTES * OX_GROUP_ELEMS);
    plan->kind = kind;
    plan->task_count = plan->buf_count = 0;
    plan->stream_buf = plan->written_buf = plan->counts_buf = plan->nonfinite_buf = OX_NONE;
    memset(plan->traffic, 0, sizeof plan->traffic);
    memset(plan->peak_bytes, 0, sizeof plan->peak_bytes);
    memset(plan->resident_bytes, 0, sizeof plan->resident_bytes);
    memset(plan->spool_bytes, 0, plan->spool_count * sizeof *plan->spool_bytes);
    struct ox_builder b = {
        .plan = plan,
        .scratch = &full->scratch,
        .in = input,
        .compute = input->budget.unified ? OX_TIER_HOST : OX_TIER_DEVICE,
        .train = kind == OX_PLAN_TRAIN,
        .carries = kind != OX_PLAN_EVAL && input->placement.overlap,
        .head_unit = plan->unit_count - 1,
        .tied_unit = plan->unit_count,
    };
    place_homes(&b);
    emit_stages(&b);
    if (!unified(&b)) {
        count(&b, ox_build_transfer(&b, OX_TASK_LOSS, OX_NONE, plan->loss_buf, plan->loss_host_buf), OX_LINK_D2H,
              OX_TRAFFIC_OTHER, 8 * (uint64_t)plan->micro_batches);
    }
    if (b.train) {
        ox_build_optimizer(&b);
    }
    sum_nvme(&b);
}

static void finish(struct ox_plan *plan, const struct ox_plan_input *input, bool measuring) {
    ox_plan_finish((struct ox_plan_full *)plan, measuring);
    plan->peak_bytes[OX_TIER_HOST] = ox_max_u64(
        plan->peak_bytes[OX_TIER_HOST], plan->resident_bytes[OX_TIER_HOST] + ox_plan_scratch_bytes(input));
}

void ox_plan_measure(struct ox_plan *plan, const struct ox_plan_input *input, enum ox_plan_kind kind) {
    list_tasks(plan, input, kind);
    finish(plan, input, true);
}

void ox_plan_complete(struct ox_plan *plan, const struct ox_plan_input *input) {
    finish(plan, input, false);
}

void ox_plan_build(struct ox_plan *plan, const struct ox_plan_input *input, enum ox_plan_kind kind) {
    list_tasks(plan, input, kind);
    finish(plan, input, false);
}
