/* The gradients' part of a plan: where a gradient is summed, how a partial sum leaves and comes back between tiles, and
 * how a finished one gets home. */
#include "offload/plan/builder.h"

/* Whether this gradient is added to another on the host. Several uses of the same weights are summed in fp32, where
 * their optimizer runs, so that neither the number of tiles nor the order of units changes a bit; they leave the device
 * unrounded. */
static bool sums_on_host(const struct ox_builder *b, uint32_t grad_idx) {
    const struct ox_plan_grad *const grad = ox_build_grad(b, grad_idx);
    return !grad->in_turn && (grad->addend != OX_NONE || grad->added_to != OX_NONE) &&
           !ox_build_on_device(b, grad->unit_idx);
}

/* Whether the sum goes on in that of another use, in turn, and never waits for the optimizer itself. */
static bool goes_on(const struct ox_builder *b, uint32_t grad_idx) {
    return ox_plan_goes_on(ox_build_grad(b, grad_idx));
}

/* Whether the device rounds the finished gradient to bf16. One that is added to another is rounded with the sum. */
static bool packs(const struct ox_builder *b, uint32_t grad_idx) {
    return b->in->model.grad_bf16 && !sums_on_host(b, grad_idx) && ox_build_grad(b, grad_idx)->added_to == OX_NONE;
}

/* Bytes of a slot, which has a sum for each of the rank's groups of rows, or for each rank whose rows it takes. */
static uint64_t sum_bytes(const struct ox_builder *b, uint32_t grad_idx) {
    return ox_build_grad(b, grad_idx)->elem_count * ox_plan_sums_of(b->in, grad_idx) * sizeof(float);
}

/* Bytes of the rank's slice of a finished gradient, in fp32. */
static uint64_t slice_bytes(const struct ox_builder *b, uint32_t grad_idx) {
    return ox_plan_grad_slice(b->in, grad_idx) * sizeof(float);
}

/* Bytes of a gradient's home. With several tiles it also takes fp32 partial sums, unless these stay on the device; one
 * that goes on has a home for them alone. */
static uint64_t grad_home_bytes(const struct ox_builder *b, uint32_t grad_idx) {
    const struct ox_plan_grad *const grad = ox_build_grad(b, grad_idx);
    const uint64_t partial = ox_build_on_device(b, grad->unit_idx) ? 0 : b->rest_slots * sum_bytes(b, grad_idx);
    const uint64_t finished = goes_on(b, grad_idx) ? 0 : slice_bytes(b, grad_idx) / (packs(b, grad_idx) ? 2 : 1);
    return ox_max_u64(partial, finished);
}

static enum ox_tier grad_tier(const struct ox_builder *b, uint32_t grad_idx) {
    return ox_build_homes(b, ox_build_grad(b, grad_idx)->unit_idx)->grad;
}

static bool grad_on_device(const struct ox_builder *b, uint32_t grad_idx) {
    return ox_build_on_device(b, ox_build_grad(b, grad_idx)->unit_idx);
}

/* True when the kernels add right into the gradient's home, which has room for a single sum. */
static bool grad_is_direct(const struct ox_builder *b, uint32_t grad_idx) {
    return b->slots == 1 && ox_plan_sums_of(b->in, grad_idx) == 1 && !ox_plan_exchanges(b->in, grad_idx) &&
           b->scratch->grad_home[grad_idx] != OX_NONE &&
           grad_tier(b, grad_idx) == b->compute && !packs(b, grad_idx);
}

/* Whether the last addition brings the finished sum to where it waits for the optimizer, so that what it was added of
 * need not wait there with it. */
static bool sums_away(const struct ox_builder *b, uint32_t grad_idx) {
    const bool waits_here = ox_build_holds(b, ox_build_grad(b, grad_idx)->unit_idx) &&
                            (grad_on_device(b, grad_idx) ||
                             (ox_build_unified(b) && grad_tier(b, grad_idx) == OX_TIER_HOST));
    return waits_here && !packs(b, grad_idx) && !goes_on(b, grad_idx);
}

/* ---- homes ------------------------------------------------------------------------------------ */

static uint32_t new_grad_home(struct ox_builder *b, enum ox_tier tier, uint32_t grad_idx, bool resident) {
    const uint32_t buf_idx = ox_build_grad_buf(b, tier, grad_home_bytes(b, grad_idx), grad_idx);
    b->plan->bufs[buf_idx].resident = resident;
    return buf_idx;
}

void ox_build_grad_home(struct ox_builder *b, uint32_t grad_idx) {
    struct ox_plan *const plan = b->plan;
    struct ox_plan_scratch *const s = b->scratch;
    if (ox_low_rank_used(b->in, grad_idx)) { /* in every plan, as it keeps its content between steps */
        const struct ox_low_rank_sizes sizes = ox_low_rank_sizes(b->in, grad_idx);
        s->residual[grad_idx] = ox_build_resident(b, OX_BUF_RESIDUAL, b->compute,
                                                  2 * ox_low_rank_kept(&sizes) * sizeof(float),
                                                  ox_build_grad(b, grad_idx)->unit_idx);
        plan->bufs[s->residual[grad_idx]].grad_idx = grad_idx;
    }
    if (grad_on_device(b, grad_idx)) {
        if (b->in->placement.overlap && ox_build_grad(b, grad_idx)->added_to == OX_NONE) {
            s->grad_home[grad_idx] = new_grad_home(b, OX_TIER_DEVICE, grad_idx, true);
        }
    } else if (goes_on(b, grad_idx) && grad_home_bytes(b, grad_idx) == 0) {
        s->grad_home[grad_idx] = OX_NONE;
    } else if (grad_tier(b, grad_idx) == OX_TIER_HOST) {
        s->grad_home[grad_idx] = new_grad_home(b, OX_TIER_HOST, grad_idx, true);
    } else if (b->train || b->carries) {
        plan->spool_bytes[ox_plan_spool_grad(plan, grad_idx)] =
            ox_align_up(grad_home_bytes(b, grad_idx), OX_IO_ALIGN_BYTES);
        s->grad_spool[grad_idx] = new_grad_home(b, OX_TIER_NVME, grad_idx, b->carries);
    }
}

/* ---- sums ------------------------------------------------------------------------------------- */

/* `partial`: so many slots of a partial sum move; 0: the finished sum. */
static void move_grad(struct ox_builder *b, enum ox_lane_id route, uint32_t grad_idx, uint32_t source, uint32_t target,
                      uint32_t partial) {
    struct ox_task *const task = ox_build_move(b, OX_MOVE_GRAD, route, source, target);
    task->unit_idx = ox_build_grad(b, grad_idx)->unit_idx;
    task->grad_idx = grad_idx;
    task->last = partial == 0;
    task->slot = partial == 0 ? 0 : partial - 1;
    ox_build_count_move(b, task);
}

/* Bytes of an accumulator for the slots that a tile needs; one that stays on the device has those of all tiles. */
static uint64_t accumulator_bytes(const struct ox_builder *b, uint32_t tile, uint32_t grad_idx) {
    const uint32_t slots = grad_on_device(b, grad_idx)
                               ? b->slots : ox_build_slots(b, ox_build_tile_first(b, tile),
                                                           ox_build_tile_first(b, tile + 1));
    return slots * sum_bytes(b, grad_idx);
}

void ox_build_grad_load(struct ox_builder *b, uint32_t tile, uint32_t grad_idx) {
    struct ox_plan_scratch *const s = b->scratch;
    if (grad_is_direct(b, grad_idx) || grad_on_device(b, grad_idx)) {
        return;
    }
    const uint32_t partial = ox_build_occupied(b, tile);
    const uint64_t bytes = accumulator_bytes(b, tile, grad_idx);
    uint32_t at = s->grad_home[grad_idx];
    if (grad_tier(b, grad_idx) == OX_TIER_NVME) {
        at = ox_build_grad_buf(b, OX_TIER_HOST, ox_build_unified(b) ? bytes : partial * sum_bytes(b, grad_idx),
                               grad_idx);
        move_grad(b, OX_LANE_NVME_READ, grad_idx, s->grad_spool[grad_idx], at, partial);
        if (ox_build_unified(b)) {
            s->grad_live[grad_idx] = at;
            return;
        }
    }
    const uint32_t target = ox_build_grad_buf(b, b->compute, bytes, grad_idx);
    move_grad(b, OX_LANE_H2D, grad_idx, at, target, partial);
    s->grad_live[grad_idx] = target;
}

void ox_build_grad_begin(struct ox_builder *b, uint32_t tile, uint32_t grad_idx) {
    struct ox_plan_scratch *const s = b->scratch;
    if (grad_is_direct(b, grad_idx)) {
        s->grad_live[grad_idx] = s->grad_home[grad_idx];
    } else if (tile == 0) {
        s->grad_live[grad_idx] = ox_build_grad_buf(b, b->compute, accumulator_bytes(b, tile, grad_idx), grad_idx);
    }
}

uint32_t ox_build_grad_take(struct ox_builder *b, uint32_t grad_idx) {
    uint32_t *const live = &b->scratch->grad_live[grad_idx];
    const uint64_t part = ox_build_grad(b, grad_idx)->elem_count * sizeof(float); /* groups of rows are joined */
    *live = grad_is_direct(b, grad_idx)
                ? b->scratch->grad_home[grad_idx]
                : ox_build_grad_buf(b, b->compute, ox_sums_part_count(&b->sums) * part, grad_idx);
    return *live;
}

void ox_build_grad_add(struct ox_builder *b, struct ox_task *task, uint32_t grad_idx, uint32_t nth) {
    const struct ox_mb_sum *const sum = &b->scratch->mb_sums[task->mb_idx];
    task->slot = sum->slot;
    task->begins = sum->begins;
    ox_build_nth_use(task, (struct ox_use){
        .buf_idx = b->scratch->grad_live[grad_idx], .role = OX_USE_GRAD, .nth = (uint8_t)nth, .write = true,
        .read = task->mb_idx > 0 || task->phase > 0}); /* where a later group begins, the other slots stay */
}

/* Lets a task, which makes the finished sum, take it to where it waits for the optimizer. */
static void sum_away(struct ox_builder *b, uint32_t grad_idx, struct ox_task *task) {
    uint32_t target = b->scratch->grad_home[grad_idx];
    if (target == OX_NONE) {
        target = ox_build_grad_buf(b, b->compute, slice_bytes(b, grad_idx), grad_idx);
    }
    ox_build_writes(task, target, OX_USE_TARGET);
    b->scratch->grad_live[grad_idx] = target;
}

/* Adds to a slot what is above it, or with `joins` joins the sums of groups of rows, of which the slot then has one.
 * `ends`: this makes the finished sum. */
static void fold(struct ox_builder *b, uint32_t grad_idx, uint32_t slot, bool joins, bool ends) {
    struct ox_task *const task = ox_build_grad_task(b, OX_TASK_GRAD_FOLD, OX_LANE_COMPUTE, grad_idx);
    task->slot = slot;
    task->last = joins;
    if (ends && sums_away(b, grad_idx)) {
        ox_build_reads(task, b->scratch->grad_live[grad_idx], OX_USE_GRAD);
        sum_away(b, grad_idx, task);
    } else {
        ox_build_updates(task, b->scratch->grad_live[grad_idx], OX_USE_GRAD);
    }
}

void ox_build_grad_fold(struct ox_builder *b, uint32_t mb_idx, uint32_t grad_idx) {
    const uint32_t folds = b->scratch->mb_sums[mb_idx].folds, slot = b->scratch->mb_sums[mb_idx].slot;
    const bool last = mb_idx + 1 == b->plan->micro_batches, joins = last && ox_plan_sums_of(b->in, grad_idx) > 1;
    const bool ends = last && !ox_plan_exchanges(b->in, grad_idx);
    for (uint32_t i = 1; i <= folds; i++) {
        fold(b, grad_idx, slot - i, false, ends && !joins && slot == i);
    }
    if (joins) {
        OX_ASSERT(slot == folds); /* one node is left of each group */
        fold(b, grad_idx, 0, true, ends);
    }
}

/* Whether the rank has its slice of the finished sum after the ranks along this axis have summed: there are no copies
 * with which it would have to be summed or gathered. */
static bool ends_along(const struct ox_builder *b, enum ox_axis axis) {
    return axis != OX_AXIS_COPY && ox_plan_copies(b->in) == 1;
}

/* Where sums are exchanged in fewer bits than they are added in: a task makes these of a buffer or back, in compute
 * memory. `last`: of the finished sum. */
static void recode(struct ox_builder *b, enum ox_task_kind kind, uint32_t grad_idx, enum ox_axis axis, bool last,
                   uint32_t source, uint32_t target) {
    struct ox_task *const task = ox_build_grad_task(b, kind, OX_LANE_COMPUTE, grad_idx);
    task->axis = (uint8_t)axis;
    task->last = last;
    ox_build_reads(task, source, OX_USE_SOURCE);
    ox_build_writes(task, target, OX_USE_TARGET);
}

static uint32_t narrow_buf(struct ox_builder *b, uint32_t grad_idx, enum ox_axis axis, uint64_t count, uint64_t elems) {
    const uint64_t bytes = count * ox_exchange_bytes(ox_plan_exchange_dtype(b->in, axis), elems);
    return ox_build_grad_buf(b, b->compute, bytes, grad_idx);
}

static bool is_narrow(const struct ox_builder *b, enum ox_axis axis) {
    return ox_plan_exchange_dtype(b->in, axis) != OX_EXCHANGE_FP32;
}

/* Gathers the finished sum of the rank's slice from the cuts that copies have added up. Each copy takes its own cut as
 * the others get it, so that all have the same weights. */
static void gather_grad(struct ox_builder *b, uint32_t grad_idx) {
    struct ox_plan_scratch *const s = b->scratch;
    const bool narrow = is_narrow(b, OX_AXIS_COPY);
    const uint32_t home = sums_away(b, grad_idx) ? s->grad_home[grad_idx] : OX_NONE;
    const uint32_t target = home != OX_NONE ? home
                                            : ox_build_grad_buf(b, b->compute, slice_bytes(b, grad_idx), grad_idx);
    uint32_t source = s->grad_live[grad_idx], gathered = target;
    /* The wire has half the bytes; both ends convert, so that sums stay in fp32. */
    if (narrow) {
        source = narrow_buf(b, grad_idx, OX_AXIS_COPY, 1, ox_plan_grad_cut(b->in, grad_idx, OX_AXIS_COPY));
        gathered = narrow_buf(b, grad_idx, OX_AXIS_COPY, 1, ox_plan_grad_slice(b->in, grad_idx));
        recode(b, OX_TASK_NARROW, grad_idx, OX_AXIS_COPY, true, s->grad_live[grad_idx], source);
    }
    struct ox_task *const task = ox_build_move(b, OX_MOVE_GRAD, OX_LANE_LINK, source, gathered);
    task->unit_idx = ox_build_grad(b, grad_idx)->unit_idx;
    task->axis = OX_AXIS_COPY;
    task->grad_idx = grad_idx;
    task->last = true;
    ox_build_count_peers(b, task);
    if (narrow) {
        recode(b, OX_TASK_WIDEN, grad_idx, OX_AXIS_COPY, true, gathered, target);
    }
    /* From here on each copy holds the sum of its whole slice, as if there were one copy. */
    s->grad_live[grad_idx] = target;
}

/* Lets the library add the sums of all ranks; the slice of the rank comes to where it waits for the optimizer. */
static void sum_by_library(struct ox_builder *b, uint32_t grad_idx, enum ox_axis axis) {
    struct ox_plan_scratch *const s = b->scratch;
    const uint32_t home = ends_along(b, axis) && sums_away(b, grad_idx) ? s->grad_home[grad_idx] : OX_NONE;
    const uint64_t bytes = ox_plan_grad_cut(b->in, grad_idx, axis) * sizeof(float);
    const uint32_t target = home != OX_NONE ? home : ox_build_grad_buf(b, b->compute, bytes, grad_idx);
    struct ox_task *const task = ox_build_move(b, OX_MOVE_SUM, OX_LANE_LINK, s->grad_live[grad_idx], target);
    task->unit_idx = ox_build_grad(b, grad_idx)->unit_idx;
    task->axis = (uint8_t)axis;
    task->grad_idx = grad_idx;
    task->last = true;
    ox_build_count_peers(b, task);
    s->grad_live[grad_idx] = target;
}

/* Lets every rank get its slice of the parts that the ranks along an axis have summed, and add them. */
static void sum_parts(struct ox_builder *b, uint32_t grad_idx, enum ox_axis axis) {
    struct ox_plan_scratch *const s = b->scratch;
    const struct ox_sums sums = ox_plan_sums_along(b->in, axis);
    const uint32_t rounds = ox_sums_rounds(&sums), own = ox_sums_part_count(&sums);
    const uint64_t cut = ox_plan_grad_cut(b->in, grad_idx, axis);
    const uint32_t parts = ox_build_grad_buf(b, b->compute, ox_sums_parts(&sums) * cut * sizeof(float), grad_idx);
    /* All parts lie side by side until the tree adds them: the order of additions is that of one rank, whoever was
     * first. */
    uint32_t given = s->grad_live[grad_idx], got = parts;
    if (is_narrow(b, axis)) {
        given = narrow_buf(b, grad_idx, axis, own, ox_plan_grad_divided(b->in, grad_idx, axis));
        got = narrow_buf(b, grad_idx, axis, ox_sums_parts(&sums), cut);
        recode(b, OX_TASK_NARROW, grad_idx, axis, false, s->grad_live[grad_idx], given);
    }
    /* Every rank goes through every round, with or without a part of its own, or the others would wait for it. */
    for (uint32_t part = 0; part < rounds; part++) {
        struct ox_task *const task = ox_build_grad_task(b, OX_TASK_MOVE, OX_LANE_LINK, grad_idx);
        task->move = OX_MOVE_GRAD;
        task->axis = (uint8_t)axis;
        task->slot = part;
        if (part < own) {
            ox_build_reads(task, given, OX_USE_SOURCE);
        }
        (part == 0 ? ox_build_writes : ox_build_updates)(task, got, OX_USE_TARGET); /* what came before stays */
        ox_build_count_peers(b, task);
    }
    if (is_narrow(b, axis)) {
        recode(b, OX_TASK_WIDEN, grad_idx, axis, false, got, parts);
    }
    struct ox_task *const sum = ox_build_grad_task(b, OX_TASK_SUM_PARTS, OX_LANE_COMPUTE, grad_idx);
    sum->axis = (uint8_t)axis;
    ox_build_updates(sum, parts, OX_USE_GRAD);
    s->grad_live[grad_idx] = parts;
    if (ends_along(b, axis) && sums_away(b, grad_idx)) {
        sum_away(b, grad_idx, sum);
    }
}

uint32_t ox_plan_residual(const struct ox_plan *plan, uint32_t grad_idx) {
    OX_ASSERT(grad_idx < plan->grad_count);
    return ((const struct ox_plan_full *)plan)->scratch.residual[grad_idx];
}

/* The other way for copies to sum `given`, to where the whole sums would have come. */
static void sum_low_rank(struct ox_builder *b, uint32_t grad_idx, uint32_t given) {
    struct ox_plan_scratch *const s = b->scratch;
    const struct ox_low_rank_sizes sizes = ox_low_rank_sizes(b->in, grad_idx);
    const uint64_t floats = ox_low_rank_room(&sizes, ox_plan_copies(b->in));
    const uint32_t room = ox_build_buf(b, OX_BUF_SCRATCH, b->compute, floats * sizeof(float),
                                       ox_build_grad(b, grad_idx)->unit_idx);
    struct ox_task *const task = ox_build_move(b, OX_MOVE_LOW_RANK, OX_LANE_LINK, given, s->grad_live[grad_idx]);
    task->unit_idx = ox_build_grad(b, grad_idx)->unit_idx;
    task->axis = OX_AXIS_COPY;
    task->grad_idx = grad_idx;
    task->last = true;
    ox_build_updates(task, s->residual[grad_idx], OX_USE_RESIDUAL);
    ox_build_writes(task, room, OX_USE_SCRATCH);
    ox_build_count_peers(b, task);
}

/* Sums within a copy of the model first, then over the copies, of which each rank adds a cut of its slice. */
static void sum_ranks(struct ox_builder *b, uint32_t grad_idx) {
    const bool low_rank = b->scratch->residual[grad_idx] != OX_NONE;
    uint32_t given = OX_NONE;
    const enum ox_axis axes[] = {ox_plan_grad_axis(b->in, grad_idx), OX_AXIS_COPY};
    for (int i = 0; i < 2; i++) {
        if (axes[i] == OX_AXIS_COPY && low_rank) {
            given = b->scratch->grad_live[grad_idx];
            b->when = OX_FACT_EXACT;
        }
        if (ox_plan_exchanges_along(b->in, grad_idx, axes[i])) {
            (b->in->ranks.library_sums ? sum_by_library : sum_parts)(b, grad_idx, axes[i]);
        }
    }
    if (ox_plan_copies(b->in) > 1) {
        gather_grad(b, grad_idx);
    }
    if (low_rank) {
        b->when = OX_FACT_LOW_RANK;
        sum_low_rank(b, grad_idx, given);
    }
    b->when = 0;
}

/* Where the finished gradient of another use lies in host memory. */
static uint32_t addend_at(struct ox_builder *b, uint32_t grad_idx) {
    struct ox_plan_scratch *const s = b->scratch;
    uint32_t at = s->grad_home[grad_idx];
    if (at == OX_NONE) {
        at = ox_build_grad_buf(b, OX_TIER_HOST, slice_bytes(b, grad_idx), grad_idx);
        move_grad(b, OX_LANE_NVME_READ, grad_idx, s->grad_spool[grad_idx], at, 0);
    }
    return at;
}

/* Emits the square sums of a finished gradient in host buffer `at`; the gradients of other uses are added first. */
static void reduce_grad(struct ox_builder *b, uint32_t grad_idx, uint32_t at) {
    const struct ox_plan_grad *const grad = ox_build_grad(b, grad_idx);
    uint32_t addends[OX_TASK_USES_MAX], count = 0;
    for (uint32_t i = grad->in_turn ? OX_NONE : grad->addend; i != OX_NONE; i = ox_build_grad(b, i)->addend) {
        OX_ASSERT(count < OX_TASK_USES_MAX);
        addends[count++] = addend_at(b, i);
    }
    struct ox_task *const task = ox_build_task(b, OX_TASK_REDUCE, OX_LANE_REDUCE, grad->unit_idx, OX_NONE);
    task->last = true;
    ox_build_updates(task, at, OX_USE_GRAD); /* the sum of all uses is rounded in place */
    ox_build_writes(task, b->plan->norm_buf, OX_USE_NORM);
    for (uint32_t i = 0; i < count; i++) {
        ox_build_nth_use(task, (struct ox_use){
            .buf_idx = addends[i], .role = OX_USE_GRAD, .nth = (uint8_t)(1 + i), .read = true});
    }
}

static struct ox_task *pack(struct ox_builder *b, uint32_t grad_idx, uint32_t source, uint32_t target) {
    struct ox_task *const task = ox_build_grad_task(b, OX_TASK_GRAD_PACK, OX_LANE_COMPUTE, grad_idx);
    task->last = true;
    ox_build_reads(task, source, OX_USE_SOURCE);
    ox_build_writes(task, target, OX_USE_TARGET);
    return task;
}

/* Adds the sum of the uses that backward has finished before, in turn. */
static void add_in_turn(struct ox_builder *b, uint32_t grad_idx) {
    const uint32_t before = ox_build_grad(b, grad_idx)->addend;
    if (before != OX_NONE) {
        struct ox_task *const add = ox_build_grad_task(b, OX_TASK_GRAD_ADD, OX_LANE_COMPUTE, grad_idx);
        ox_build_updates(add, b->scratch->grad_live[grad_idx], OX_USE_GRAD);
        ox_build_nth_use(add, (struct ox_use){
            .buf_idx = b->scratch->grad_live[before], .role = OX_USE_GRAD, .nth = 1, .read = true});
    }
}

/* Finishes a sum that stays on the device: adds those of other uses, and brings it into the form that the optimizer
 * takes. */
static void finish_on_device(struct ox_builder *b, uint32_t grad_idx) {
    struct ox_plan_scratch *const s = b->scratch;
    const struct ox_plan_grad *const grad = ox_build_grad(b, grad_idx);
    uint32_t at = s->grad_live[grad_idx];
    /* Another gradient takes this one in when it ends, so it is neither packed nor counted here. */
    if (grad->added_to != OX_NONE) {
        return;
    }
    if (ox_plan_adds_at_rest(grad)) {
        struct ox_task *const add = ox_build_grad_task(b, OX_TASK_GRAD_ADD, OX_LANE_COMPUTE, grad_idx);
        ox_build_updates(add, at, OX_USE_GRAD);
        uint32_t nth = 0;
        for (uint32_t i = grad->addend; i != OX_NONE; i = ox_build_grad(b, i)->addend) {
            ox_build_nth_use(add, (struct ox_use){
                .buf_idx = s->grad_live[i], .role = OX_USE_GRAD, .nth = (uint8_t)++nth, .read = true});
        }
    }
    if (packs(b, grad_idx)) {
        const uint32_t home = s->grad_home[grad_idx];
        const uint32_t packed =
            home != OX_NONE ? home : ox_build_grad_buf(b, OX_TIER_DEVICE, grad_home_bytes(b, grad_idx), grad_idx);
        pack(b, grad_idx, at, packed);
        at = packed;
    }
    /* An update within backward reads it here. Its squares are counted from the packed form, which is what is
     * applied. */
    s->grad_speculative[grad_idx] = at;
    ox_build_device_reduce(b, grad->unit_idx, at);
}

void ox_build_grad_end(struct ox_builder *b, uint32_t tile, uint32_t grad_idx) {
    struct ox_plan_scratch *const s = b->scratch;
    const bool last = tile + 1 == b->in->placement.tiles;
    if (!ox_build_holds(b, ox_build_grad(b, grad_idx)->unit_idx)) {
        ox_build_give_back(b, grad_idx);
        return;
    }
    /* Ranks first: what follows is done with the slice that the rank owns of the whole sum. */
    if (last && ox_plan_exchanges(b->in, grad_idx)) {
        sum_ranks(b, grad_idx);
    }
    if (last && ox_build_grad(b, grad_idx)->in_turn) {
        add_in_turn(b, grad_idx);
    }
    if (last && goes_on(b, grad_idx)) {
        return;
    }
    if (grad_on_device(b, grad_idx)) { /* between tiles it stays where it is */
        if (last) {
            finish_on_device(b, grad_idx);
        }
        return;
    }
    /* Between tiles the parts of the tree that are not complete leave, in fp32; after the last one the sum alone. */
    const bool to_host = grad_tier(b, grad_idx) == OX_TIER_HOST;
    const uint32_t partial = last ? 0 : ox_build_occupied(b, tile + 1);
    uint64_t bytes = last ? slice_bytes(b, grad_idx) : partial * sum_bytes(b, grad_idx);
    uint32_t at = s->grad_live[grad_idx];
    if (last && packs(b, grad_idx)) { /* before it crosses the link, which then carries half */
        bytes /= 2;
        const uint32_t packed = ox_build_unified(b) && to_host ? s->grad_home[grad_idx]
                                                               : ox_build_grad_buf(b, b->compute, bytes, grad_idx);
        pack(b, grad_idx, at, packed);
        at = packed;
    }
    /* Its squares count once, in the sum that nothing is added to any more, as rounded: on the device while it is
     * still there, or on the host once it has arrived. */
    const uint32_t unit_idx = ox_build_grad(b, grad_idx)->unit_idx;
    const bool counts = last && ox_build_grad(b, grad_idx)->added_to == OX_NONE;
    const bool counts_here = counts && ox_build_rules(b, unit_idx)->sums_on_device;
    if (counts_here) {
        ox_build_device_reduce(b, unit_idx, at);
    }
    if (!ox_build_unified(b) || (to_host && at != s->grad_home[grad_idx])) {
        const uint32_t target = to_host ? s->grad_home[grad_idx]
                                        : ox_build_grad_buf(b, OX_TIER_HOST, bytes, grad_idx);
        move_grad(b, OX_LANE_D2H, grad_idx, at, target, partial);
        at = target;
    }
    if (counts && !counts_here) {
        reduce_grad(b, grad_idx, at);
    }
    if (!to_host) { /* after the squares were read: the buffer is free as soon as it is written */
        move_grad(b, OX_LANE_NVME_WRITE, grad_idx, at, s->grad_spool[grad_idx], partial);
    }
    s->grad_speculative[grad_idx] = at; /* where an update within backward finds it without waiting for the drive */
}
