/* Builds the task list of a step: tile by tile, forward through the stages, the head, and back, every micro-batch
 * of the tile through one stage before the next; then the norm, the optimizer unit by unit, the commit.
 *
 * A pass of a tile over one stage is a visit. Transfers that a visit needs (planes, partial gradients) are emitted
 * prefetch_depth visits before its work; list order is issue order, so transfers run ahead
 * exactly as far as memory allows. */
#include "offload/plan/builder.h"

#include <string.h>

enum pass { PASS_FORWARD, PASS_HEAD, PASS_BACKWARD };

struct visit {
    uint32_t idx, tile, stage_idx;
    const struct ox_plan_stage *stage;
    uint32_t mb_first, mb_past;
    bool begins, ends; /* the tile: its first micro-batch, and its last one */
    enum pass pass;
};

/* ---- homes ------------------------------------------------------------------------------------ */

static void place_unit_homes(struct ox_builder *b, uint32_t unit_idx) {
    struct ox_plan_scratch *const s = b->scratch;
    const struct ox_homes *const homes = ox_build_homes(b, unit_idx);
    const struct ox_unit_rules *const rules = ox_build_rules(b, unit_idx);
    const uint64_t elems = b->in->table->shards[unit_idx].elem_count;
    s->weights_home[unit_idx] = s->state_home[unit_idx] = s->replaced[unit_idx] = s->gathered[unit_idx] = OX_NONE;
    if (!ox_build_holds(b, unit_idx)) {
        return;
    }
    if (homes->weights != OX_TIER_NVME) {
        const uint64_t bytes = rules->lo_in_state ? elems * OX_HI_BYTES : ox_plan_weight_bytes(b->in, unit_idx);
        s->weights_home[unit_idx] = ox_build_resident(b, OX_BUF_WEIGHTS, homes->weights, bytes, unit_idx);
    }
    if (homes->state != OX_TIER_NVME && !b->in->model.eval_only &&
        (!b->in->table->shards[unit_idx].fixed || b->in->table->shards[unit_idx].sizes.lo_per_group > 0)) {
        s->state_home[unit_idx] = ox_build_resident(b, OX_BUF_STATE, homes->state,
                                                    ox_shard_unit_state_bytes(b->in->table, unit_idx), unit_idx);
    }
    if (b->in->placement.overlap && !b->in->model.eval_only && rules->saves_replaced) {
        s->replaced[unit_idx] = ox_build_resident(b, OX_BUF_REPLACED, OX_TIER_HOST, rules->replaced_bytes, unit_idx);
    }
    if (ox_plan_has_resident_gathered(b->in, unit_idx)) {
        s->gathered[unit_idx] = ox_build_resident(b, OX_BUF_GATHERED, b->compute,
                                                  ox_plan_whole_weight_bytes(b->in, unit_idx), unit_idx);
    }
}

/* The reports of all micro-batches, where the list ends with a head; on a rank of whose stages none leaves anything
 * only those that it gets from others. */
static void place_losses(struct ox_builder *b) {
    struct ox_plan *const plan = b->plan;
    const uint64_t bytes = ox_plan_reports_bytes(b->in);
    const bool has = ox_plan_has_reports(b->in);
    plan->loss_buf = plan->loss_host_buf = OX_NONE;
    if (!ox_plan_has_outside_output(&b->in->model)) {
        plan->loss_buf = has ? ox_build_resident(b, OX_BUF_SMALL, b->compute, bytes, OX_NONE) : OX_NONE;
        plan->loss_host_buf = ox_build_unified(b) && has
                                  ? plan->loss_buf : ox_build_resident(b, OX_BUF_SMALL, OX_TIER_HOST, bytes, OX_NONE);
    }
}

static void place_homes(struct ox_builder *b) {
    struct ox_plan *const plan = b->plan;
    struct ox_plan_scratch *const s = b->scratch;
    const struct ox_plan_model *const model = &b->in->model;
    for (uint32_t i = 0; i < plan->unit_count; i++) {
        place_unit_homes(b, i);
    }
    for (uint32_t i = 0; i < plan->grad_count; i++) {
        s->grad_home[i] = s->grad_spool[i] = s->grad_live[i] = s->residual[i] = OX_NONE;
        if (!model->eval_only && ox_build_holds(b, model->grads[i].unit_idx)) {
            ox_build_grad_home(b, i);
        }
    }
    ox_build_device_counts(b);
    if (b->carries) {
        plan->written_buf = ox_build_resident(b, OX_BUF_SMALL, OX_TIER_NVME, OX_IO_ALIGN_BYTES, OX_NONE);
    }
    plan->const_buf = ox_build_resident(b, OX_BUF_SMALL, b->compute, ox_max_u64(model->const_bytes, 1), OX_NONE);
    place_losses(b);
    plan->norm_buf = ox_build_resident(b, OX_BUF_SMALL, OX_TIER_HOST, ox_plan_norm_bytes(b->in), OX_NONE);
    plan->batch_host_buf = ox_build_resident(b, OX_BUF_BATCH, OX_TIER_HOST,
                                             model->batch_bytes * plan->micro_batches, OX_NONE);
}

/* ---- weights ---------------------------------------------------------------------------------- */

/* Reads planes from the drives. It waits until the writes of the step before are on the drives, not for the commit;
 * those of a unit that is not trained are there. */
static void read_weights(struct ox_builder *b, uint32_t unit_idx, uint32_t target) {
    struct ox_task *const read = ox_build_move(b, OX_MOVE_WEIGHTS, OX_LANE_NVME_READ, OX_NONE, target);
    read->unit_idx = unit_idx;
    if (b->plan->written_buf != OX_NONE && ox_build_unit(b, unit_idx)->trained) {
        ox_build_reads(read, b->plan->written_buf, OX_USE_WRITTEN);
    }
    ox_build_ask(b, read);
    ox_build_count_move(b, read);
}

/* Whether compute reads lo in the state, because planes and state have their home in compute memory. */
static bool reads_state(const struct ox_builder *b, uint32_t unit_idx) {
    return ox_build_holds(b, unit_idx) && ox_build_homes(b, unit_idx)->weights == b->compute &&
           ox_build_rules(b, unit_idx)->lo_in_state;
}

/* Brings a whole unit together in compute memory; each rank has its slice in `slice`. Returns the unit's buffer. */
static uint32_t gather_weights(struct ox_builder *b, uint32_t unit_idx, uint32_t slice) {
    const uint64_t bytes = ox_plan_whole_weight_bytes(b->in, unit_idx);
    uint32_t *const whole = &b->scratch->gathered[unit_idx];
    if (!ox_plan_has_resident_gathered(b->in, unit_idx)) {
        *whole = ox_build_buf(b, OX_BUF_GATHERED, b->compute, bytes, unit_idx);
    }
    struct ox_task *const task = ox_build_move(b, OX_MOVE_WEIGHTS, OX_LANE_LINK, slice, *whole);
    task->unit_idx = unit_idx;
    task->axis = (uint8_t)ox_plan_shard_axis(&b->in->ranks, unit_idx);
    if (ox_build_rules(b, unit_idx)->lo_in_state && slice == b->scratch->weights_home[unit_idx]) {
        ox_build_reads(task, b->scratch->state_home[unit_idx], OX_USE_STATE);
    }
    ox_build_count_peers(b, task);
    return *whole;
}

/* Copies the planes of a unit, or of the rank's slice, from host memory to the device. */
static uint32_t upload(struct ox_builder *b, uint32_t unit_idx, uint32_t at) {
    const uint64_t bytes = ox_plan_weight_bytes(b->in, unit_idx);
    const uint32_t target = ox_build_buf(b, OX_BUF_WEIGHTS, OX_TIER_DEVICE, bytes, unit_idx);
    struct ox_task *const task = ox_build_move(b, OX_MOVE_WEIGHTS, OX_LANE_H2D, at, target);
    task->unit_idx = unit_idx;
    if (ox_build_rules(b, unit_idx)->lo_in_state) {
        ox_build_reads(task, b->scratch->state_home[unit_idx], OX_USE_STATE);
    }
    ox_build_ask(b, task);
    ox_build_count_move(b, task);
    return target;
}

/* Returns the buffer that has the planes of a unit in compute memory, or those of the rank's slice where they are
 * gathered from, and emits the transfers that fill it. A unit that another stage of the same forward uses again stays:
 * the drives may not have what the carried update makes of it yet. */
static uint32_t fetch_slice(struct ox_builder *b, uint32_t unit_idx, bool first) {
    const enum ox_tier home = ox_build_homes(b, unit_idx)->weights;
    uint32_t at = b->scratch->weights_home[unit_idx];
    const bool carried = b->carries && ox_build_unit(b, unit_idx)->trained;
    if (home == OX_TIER_NVME && carried && !first && !b->written) {
        return b->scratch->fetched[unit_idx];
    }
    if (home == OX_TIER_NVME) {
        at = ox_build_buf(b, OX_BUF_WEIGHTS, OX_TIER_HOST, ox_plan_weight_bytes(b->in, unit_idx), unit_idx);
    }
    if (first && carried) {
        ox_build_adam_carried(b, unit_idx, home == OX_TIER_NVME ? at : OX_NONE);
    } else if (home == OX_TIER_NVME) {
        read_weights(b, unit_idx, at);
    }
    const bool takes_from_host = ox_build_rules(b, unit_idx)->gathers &&
                                 ox_build_rules(b, unit_idx)->gather_tier == OX_TIER_HOST;
    const bool is_there = home == b->compute || takes_from_host || (home == OX_TIER_NVME && ox_build_unified(b));
    b->scratch->fetched[unit_idx] = is_there ? at : upload(b, unit_idx, at);
    return b->scratch->fetched[unit_idx];
}

/* Returns the buffer where compute reads the planes of a unit, and emits the transfers that fill it. `first`: this is
 * the plan's first use of the unit, at which an overlapped optimizer updates it. */
static uint32_t fetch_weights(struct ox_builder *b, uint32_t unit_idx, bool first) {
    if (!ox_build_holds(b, unit_idx) || (ox_plan_keeps_gathered(b->in, unit_idx) && !first)) {
        return b->scratch->gathered[unit_idx];
    }
    const uint32_t at = fetch_slice(b, unit_idx, first);
    return ox_build_rules(b, unit_idx)->gathers ? gather_weights(b, unit_idx, at) : at;
}

/* A kernel's uses of the planes of a stage unit: hi, and where it travels lo, which may lie in the state. */
static void reads_planes(const struct ox_builder *b, struct ox_task *task, const struct visit *visit, uint32_t nth,
                         uint32_t as) {
    const uint32_t unit_idx = visit->stage->units[nth].unit_idx;
    struct ox_use use = {.buf_idx = b->scratch->weights_at[visit->idx][nth], .role = OX_USE_WEIGHTS,
                         .nth = (uint8_t)as, .read = true};
    ox_build_nth_use(task, use);
    if (reads_state(b, unit_idx) && !ox_build_rules(b, unit_idx)->gathers) {
        use.buf_idx = b->scratch->state_home[unit_idx];
        use.role = OX_USE_STATE;
        ox_build_nth_use(task, use);
    }
}

/* Whether a visit reads the weights of a stage unit: an embedding's backward those alone that say so. */
static bool reads_unit(const struct ox_builder *b, const struct visit *visit, uint32_t nth) {
    const bool all = visit->pass != PASS_BACKWARD || visit->stage->kind != OX_PLAN_EMBEDDING;
    return ox_build_has(b, visit->stage, nth) && (all || visit->stage->units[nth].read_back);
}

/* The planes of all stage units that the visit reads. */
static void reads_all_planes(const struct ox_builder *b, struct ox_task *task, const struct visit *visit) {
    for (uint32_t nth = 0; nth < visit->stage->unit_count; nth++) {
        if (reads_unit(b, visit, nth)) {
            reads_planes(b, task, visit, nth, nth);
        }
    }
}

/* Whether a block computes with weights of a stage unit that are cast from its planes. */
static bool casts(const struct ox_builder *b, const struct visit *visit, uint32_t nth) {
    return ox_build_rules(b, visit->stage->units[nth].unit_idx)->cast_bytes > 0;
}

/* Casts the planes of a stage unit to the format of compute, for the tasks of the visit alone. */
static uint32_t cast_weights(struct ox_builder *b, const struct visit *visit, uint32_t nth) {
    const uint32_t unit_idx = visit->stage->units[nth].unit_idx;
    const uint64_t bytes = ox_build_unit(b, unit_idx)->elem_count * ox_build_rules(b, unit_idx)->cast_bytes;
    const uint32_t cast = ox_build_buf(b, OX_BUF_CAST, b->compute, bytes, unit_idx);
    struct ox_task *const task = ox_build_task(b, OX_TASK_CAST, OX_LANE_COMPUTE, unit_idx, OX_NONE);
    reads_planes(b, task, visit, nth, 0);
    ox_build_writes(task, cast, OX_USE_CAST);
    ox_build_ask(b, task);
    return cast;
}

/* ---- visits ----------------------------------------------------------------------------------- */

static uint32_t visits_per_tile(const struct ox_builder *b) {
    return b->visit_count / b->in->placement.tiles;
}

static struct visit visit_at(const struct ox_builder *b, uint32_t idx) {
    const struct ox_pipe_visit *const visit = &b->scratch->visits[idx];
    const struct ox_plan_stage *const stage = &b->in->model.stages[visit->stage_idx];
    /* The last tile that begins with this micro-batch or before it. */
    const uint64_t tiles = b->in->placement.tiles, before = (visit->mb_first + 1) * tiles - 1;
    const uint32_t tile = (uint32_t)(before / b->plan->micro_batches);
    return (struct visit){
        .idx = idx,
        .tile = tile,
        .mb_first = visit->mb_first,
        .mb_past = visit->mb_past,
        .begins = visit->mb_first == ox_build_tile_first(b, tile),
        .ends = visit->mb_past == ox_build_tile_first(b, tile + 1),
        .pass = visit->backward ? PASS_BACKWARD : stage->kind == OX_PLAN_HEAD ? PASS_HEAD : PASS_FORWARD,
        .stage_idx = visit->stage_idx,
        .stage = stage,
    };
}

/* Lets the state of units follow weights that went ahead of it, before backward has the units' gradients. */
static void update_late(struct ox_builder *b, const struct visit *visit) {
    for (uint32_t nth = 0; nth < visit->stage->unit_count; nth++) {
        const uint32_t unit_idx = visit->stage->units[nth].unit_idx;
        if (ox_build_unit(b, unit_idx)->stage_idx == visit->stage_idx) {
            ox_build_adam_late(b, unit_idx);
        }
    }
}

/* Whether the stage trains something of its nth unit, and the rank has that. */
static bool trains(const struct ox_builder *b, const struct visit *visit, uint32_t nth) {
    return visit->stage->units[nth].grad_idx != OX_NONE && ox_build_has(b, visit->stage, nth);
}

/* The planes of a unit that the visit before, of another stage, has too, and that stay; OX_NONE: they are fetched. */
static uint32_t staying(const struct ox_builder *b, const struct visit *visit, uint32_t unit_idx) {
    uint32_t at = OX_NONE;
    if (visit->idx > 0) {
        const struct ox_plan_stage *const before = &b->in->model.stages[b->scratch->visits[visit->idx - 1].stage_idx];
        for (uint32_t nth = 0; nth < before->unit_count && before != visit->stage; nth++) {
            at = before->units[nth].unit_idx == unit_idx ? b->scratch->weights_at[visit->idx - 1][nth] : at;
        }
    }
    return at;
}

static void prepare_visit(struct ox_builder *b, const struct visit *visit) {
    const struct ox_plan_stage *const stage = visit->stage;
    if (b->train && visit->mb_first == 0 && visit->pass == PASS_BACKWARD) {
        update_late(b, visit);
    }
    ox_build_set_asks(b, &b->scratch->visits[visit->idx]);
    for (uint32_t nth = 0; nth < stage->unit_count; nth++) {
        const uint32_t unit_idx = stage->units[nth].unit_idx;
        const bool first = visit->mb_first == 0 && visit->pass != PASS_BACKWARD &&
                           ox_build_unit(b, unit_idx)->stage_idx == visit->stage_idx;
        const uint32_t stays = first ? OX_NONE : staying(b, visit, unit_idx);
        b->scratch->weights_at[visit->idx][nth] =
            !reads_unit(b, visit, nth) ? OX_NONE : stays != OX_NONE ? stays : fetch_weights(b, unit_idx, first);
        if (first) {
            ox_build_lend(b, unit_idx, b->scratch->weights_at[visit->idx][nth]);
        }
    }
    if (b->train && visit->mb_first == 0 && visit->pass == PASS_HEAD) {
        update_late(b, visit);
    }
    const bool adds = b->train && visit->tile > 0 && visit->begins && visit->pass != PASS_FORWARD;
    for (uint32_t nth = 0; adds && nth < stage->unit_count; nth++) {
        if (trains(b, visit, nth)) {
            ox_build_grad_load(b, visit->tile, stage->units[nth].grad_idx);
        }
    }
}

static void load_batch(struct ox_builder *b, uint32_t mb_idx) {
    if (ox_build_unified(b)) {
        b->scratch->batch[mb_idx] = b->plan->batch_host_buf;
        return;
    }
    const uint32_t target = ox_build_buf(b, OX_BUF_BATCH, OX_TIER_DEVICE, b->in->model.batch_bytes, OX_NONE);
    struct ox_task *const task = ox_build_move(b, OX_MOVE_BATCH, OX_LANE_H2D, b->plan->batch_host_buf, target);
    task->mb_idx = mb_idx;
    ox_build_count_move(b, task);
    b->scratch->batch[mb_idx] = target;
}

/* Buffers of a block's pass beside activations. */
struct block_pass {
    uint32_t cast[OX_STAGE_UNITS_MAX]; /* of stage units whose weights are cast; else OX_NONE */
    uint32_t room;
    uint32_t routes; /* where forward leaves who has rows, or OX_NONE */
};

static void begin_block(struct ox_builder *b, const struct visit *visit, const struct ox_plan_pass *pass,
                        struct block_pass *out) {
    for (uint32_t nth = 0; nth < visit->stage->unit_count; nth++) {
        const bool cast = casts(b, visit, nth) && ox_build_has(b, visit->stage, nth);
        out->cast[nth] = cast ? cast_weights(b, visit, nth) : OX_NONE;
    }
    out->room = ox_build_buf(b, OX_BUF_SCRATCH, b->compute, pass->scratch_bytes, OX_NONE);
}

/* What the first phase of a pass writes, later ones add to; where there is such a buffer. */
static void writes_on(struct ox_task *task, uint32_t buf_idx, enum ox_use_role role) {
    if (buf_idx != OX_NONE) {
        (task->phase == 0 ? ox_build_writes : ox_build_updates)(task, buf_idx, role);
    }
}

/* A block's uses of its weights, cast or as planes, and of the rest. */
static void use_block(struct ox_builder *b, struct ox_task *task, const struct visit *visit,
                      const struct block_pass *pass, uint32_t x) {
    for (uint32_t nth = 0; nth < visit->stage->unit_count; nth++) {
        if (!ox_build_has(b, visit->stage, nth)) {
            continue;
        }
        if (pass->cast[nth] == OX_NONE) {
            reads_planes(b, task, visit, nth, nth);
        } else {
            ox_build_nth_use(task, (struct ox_use){.buf_idx = pass->cast[nth], .role = OX_USE_CAST,
                                                   .nth = (uint8_t)nth, .read = true});
        }
    }
    ox_build_reads(task, x, OX_USE_X);
    writes_on(task, pass->room, OX_USE_SCRATCH);
    ox_build_reads(task, b->plan->const_buf, OX_USE_CONST);
}

/* Brings a micro-batch to a stage: its tokens to the rank's first one, and activations from where they are made. */
static void begin_micro_batch(struct ox_builder *b, const struct visit *visit, uint32_t mb_idx) {
    ox_build_before(b, visit->stage_idx, mb_idx, false);
    if (visit->stage_idx == b->first_own) {
        load_batch(b, mb_idx);
    }
    ox_build_take_x(b, visit->stage_idx, mb_idx, visit->mb_past);
}

/* One phase of a stage's forward of a micro-batch. */
static void forward_phase(struct ox_builder *b, const struct visit *visit, const struct block_pass *pass,
                          uint32_t mb_idx, uint32_t phase, uint32_t y) {
    struct ox_plan_scratch *const s = b->scratch;
    const struct ox_plan_stage *const stage = visit->stage;
    const bool keeps = s->keeps[visit->stage_idx];
    struct ox_task *const task = ox_build_stage_task(b, OX_TASK_FORWARD, visit->stage_idx, mb_idx);
    task->phase = (uint8_t)phase;
    if (stage->kind == OX_PLAN_BLOCK) {
        use_block(b, task, visit, pass, s->x[mb_idx]);
    } else {
        reads_all_planes(b, task, visit);
        writes_on(task, pass->room, OX_USE_SCRATCH);
    }
    ox_build_reads(task, s->batch[mb_idx], OX_USE_BATCH);
    writes_on(task, y, OX_USE_Y);
    const bool last = phase == (keeps ? &stage->forward_kept : &stage->forward)->cut_count; /* the choice of experts */
    if (b->train && stage->reports && b->plan->loss_buf != OX_NONE && last) {
        ox_build_writes(task, b->plan->loss_buf, OX_USE_LOSS);
    }
    if (keeps) {
        writes_on(task, *ox_build_act_slot(b, s->kept, visit->stage_idx, mb_idx), OX_USE_KEPT);
    }
    if (last) {
        ox_build_routes_leave(task, pass->routes, visit->mb_first);
    }
    ox_build_cross(b, visit->stage_idx, mb_idx, keeps ? OX_PLAN_FORWARD_KEPT : OX_PLAN_FORWARD, phase, pass->room);
}

static void run_forward(struct ox_builder *b, const struct visit *visit) {
    struct ox_plan_scratch *const s = b->scratch;
    const struct ox_plan_stage *const stage = visit->stage;
    const bool is_block = stage->kind == OX_PLAN_BLOCK, keeps = s->keeps[visit->stage_idx];
    const struct ox_plan_pass *const of = keeps ? &stage->forward_kept : &stage->forward;
    const struct ox_pipe_visit *const own = &s->visits[visit->idx];
    struct block_pass pass = {.room = OX_NONE, .routes = ox_build_routes_begin(b, own)};
    ox_build_set_asks(b, own);
    if (is_block) {
        begin_block(b, visit, of, &pass);
    } else if (of->scratch_bytes > 0) { /* an embedding whose tokens ranks divide, or with an adapter */
        pass.room = ox_build_buf(b, OX_BUF_SCRATCH, b->compute, of->scratch_bytes, OX_NONE);
    }
    for (uint32_t mb_idx = visit->mb_first; mb_idx < visit->mb_past; mb_idx++) {
        begin_micro_batch(b, visit, mb_idx);
        const uint32_t y = ox_build_stage_buf(b, OX_BUF_ACT, b->compute, stage->output_bytes, visit->stage_idx);
        if (keeps) {
            *ox_build_act_slot(b, s->kept, visit->stage_idx, mb_idx) =
                ox_build_stage_buf(b, OX_BUF_KEPT, b->compute, stage->kept_bytes, visit->stage_idx);
        }
        for (uint32_t phase = 0; phase <= of->cut_count; phase++) {
            forward_phase(b, visit, &pass, mb_idx, phase, y);
        }
        ox_build_after(b, visit->stage_idx, mb_idx, false);
        ox_build_pass_on(b, visit->stage_idx, mb_idx, y);
    }
    ox_build_routes_end(b, own, pass.routes);
}

/* ---- the gradients that a stage's backward adds to -------------------------------------------------- */

static void begin_grads(struct ox_builder *b, const struct visit *visit) {
    for (uint32_t nth = 0; nth < visit->stage->unit_count && visit->begins; nth++) {
        if (trains(b, visit, nth)) {
            ox_build_grad_begin(b, visit->tile, visit->stage->units[nth].grad_idx);
        }
    }
}

static void add_grads(struct ox_builder *b, const struct visit *visit, struct ox_task *task) {
    for (uint32_t nth = 0; nth < visit->stage->unit_count; nth++) {
        if (trains(b, visit, nth)) {
            ox_build_grad_add(b, task, visit->stage->units[nth].grad_idx, nth);
        }
    }
}

/* Adds up slots of the accumulators after a micro-batch. */
static void fold_grads(struct ox_builder *b, const struct visit *visit, uint32_t mb_idx) {
    for (uint32_t nth = 0; nth < visit->stage->unit_count; nth++) {
        if (trains(b, visit, nth)) {
            ox_build_grad_fold(b, mb_idx, visit->stage->units[nth].grad_idx);
        }
    }
}

static void end_grads(struct ox_builder *b, const struct visit *visit) {
    for (uint32_t nth = 0; nth < visit->stage->unit_count && visit->ends; nth++) {
        if (trains(b, visit, nth)) {
            ox_build_grad_end(b, visit->tile, visit->stage->units[nth].grad_idx);
        }
    }
}

/* Brings the rank's reports to the host, and those of all ranks together there. */
static void save_losses(struct ox_builder *b) {
    struct ox_plan *const plan = b->plan;
    const bool of_stages = b->train && ox_plan_pipe(b->in) > 1 && b->in->model.report_doubles > 0;
    const bool gives = plan->loss_buf != OX_NONE &&
                       (of_stages || ox_plan_computes(b->in, b->in->model.stage_count - 1));
    if (plan->loss_host_buf != plan->loss_buf && gives) {
        ox_build_count_move(b, ox_build_move(b, OX_MOVE_LOSSES, OX_LANE_D2H, plan->loss_buf, plan->loss_host_buf));
    }
    if (plan->loss_host_buf != OX_NONE && ox_plan_rank_count(b->in) > 1) {
        ox_build_gather_losses(b, gives, of_stages);
    }
}

static void return_reports(struct ox_builder *b) {
    struct ox_plan *const plan = b->plan;
    if (plan->loss_host_buf != plan->loss_buf) {
        ox_build_count_move(b, ox_build_move(b, OX_MOVE_LOSSES, OX_LANE_H2D, plan->loss_host_buf, plan->loss_buf));
    }
}

/* In a pipeline: before the rank's first backward, behind all of its forwards. All ranks have the losses then too. */
static void share_in_pipe(struct ox_builder *b) {
    if (b->train && !b->shared && b->in->model.pooled_doubles > 0 && ox_plan_pipe(b->in) > 1) {
        ox_build_before_sharing(b);
        save_losses(b);
        b->shared = true;
        b->pools = ox_plan_reporters(b->in, ox_plan_pipe_at(b->in)) > 0;
        if (b->pools) {
            return_reports(b);
        }
    }
}

/* Before the first head, which pools them: every rank has the reports of all. */
static void share_reports(struct ox_builder *b) {
    if (b->in->model.pooled_doubles > 0 && ox_plan_rank_count(b->in) > 1 && ox_plan_pipe(b->in) == 1) {
        save_losses(b);
        return_reports(b);
    }
}

static void head_phase(struct ox_builder *b, const struct visit *visit, uint32_t mb_idx, uint32_t phase,
                       uint32_t room) {
    struct ox_plan_scratch *const s = b->scratch;
    struct ox_task *const task = ox_build_stage_task(b, OX_TASK_HEAD, visit->stage_idx, mb_idx);
    task->phase = (uint8_t)phase;
    reads_all_planes(b, task, visit);
    ox_build_reads(task, s->x[mb_idx], OX_USE_X);
    ox_build_reads(task, s->batch[mb_idx], OX_USE_BATCH);
    writes_on(task, room, OX_USE_SCRATCH);
    ox_build_writes(task, b->plan->loss_buf, OX_USE_LOSS);
    if (b->train) {
        writes_on(task, s->dx[mb_idx], OX_USE_DX);
        add_grads(b, visit, task);
    }
    ox_build_cross(b, visit->stage_idx, mb_idx, b->train ? OX_PLAN_BACKWARD : OX_PLAN_FORWARD, phase, room);
}

static void run_head(struct ox_builder *b, const struct visit *visit) {
    struct ox_plan_scratch *const s = b->scratch;
    const struct ox_plan_pass *const pass = b->train ? &visit->stage->backward : &visit->stage->forward;
    const uint32_t room = ox_build_buf(b, OX_BUF_SCRATCH, b->compute, pass->scratch_bytes, OX_NONE);
    if (b->train) { /* a head's phases are its backward too */
        share_reports(b);
        begin_grads(b, visit);
    }
    for (uint32_t mb_idx = visit->mb_first; mb_idx < visit->mb_past; mb_idx++) {
        begin_micro_batch(b, visit, mb_idx);
        if (b->train) {
            s->dx[mb_idx] = ox_build_dx_buf(b, visit->stage_idx);
        }
        for (uint32_t phase = 0; phase <= pass->cut_count; phase++) {
            head_phase(b, visit, mb_idx, phase, room);
        }
        if (b->train) {
            fold_grads(b, visit, mb_idx);
            ox_build_after(b, visit->stage_idx, mb_idx, false);
            ox_build_end_dx(b, visit->stage_idx, mb_idx);
        }
    }
    if (b->train) {
        end_grads(b, visit);
    }
}

/* One phase of a stage's backward of a micro-batch. */
static void backward_phase(struct ox_builder *b, const struct visit *visit, const struct block_pass *pass,
                           uint32_t mb_idx, uint32_t phase, uint32_t x) {
    struct ox_plan_scratch *const s = b->scratch;
    const struct ox_plan_stage *const stage = visit->stage;
    const bool keeps = s->keeps[visit->stage_idx];
    struct ox_task *const task = ox_build_stage_task(b, OX_TASK_BACKWARD, visit->stage_idx, mb_idx);
    task->phase = (uint8_t)phase;
    if (stage->kind == OX_PLAN_BLOCK) {
        use_block(b, task, visit, pass, x);
    } else {
        reads_all_planes(b, task, visit);
        writes_on(task, pass->room, OX_USE_SCRATCH);
    }
    ox_build_reads(task, s->batch[mb_idx], OX_USE_BATCH);
    ox_build_updates(task, s->dx[mb_idx], OX_USE_DX);
    add_grads(b, visit, task);
    if (stage->reports && b->in->model.pooled_doubles > 0 && b->plan->loss_buf != OX_NONE) {
        (b->pools ? ox_build_updates : ox_build_reads)(task, b->plan->loss_buf, OX_USE_LOSS);
        b->pools = false;
    }
    if (keeps) {
        ox_build_updates(task, *ox_build_act_slot(b, s->kept, visit->stage_idx, mb_idx), OX_USE_KEPT);
    }
    ox_build_cross(b, visit->stage_idx, mb_idx, keeps ? OX_PLAN_BACKWARD_KEPT : OX_PLAN_BACKWARD, phase, pass->room);
}

static void run_backward(struct ox_builder *b, const struct visit *visit) {
    const struct ox_plan_stage *const stage = visit->stage;
    const bool is_block = stage->kind == OX_PLAN_BLOCK, keeps = b->scratch->keeps[visit->stage_idx];
    const struct ox_plan_pass *const of = keeps ? &stage->backward_kept : &stage->backward;
    struct block_pass pass = {.room = OX_NONE};
    ox_build_set_asks(b, &b->scratch->visits[visit->idx]);
    if (is_block) {
        begin_block(b, visit, of, &pass);
    } else if (of->scratch_bytes > 0) { /* an embedding with an adapter, or whose tokens and rows ranks divide */
        pass.room = ox_build_buf(b, OX_BUF_SCRATCH, b->compute, of->scratch_bytes, OX_NONE);
    }
    begin_grads(b, visit);
    const uint32_t from = visit->stage_idx - stage->starts_back; /* the stage whose input backward starts from */
    uint32_t next_x = is_block ? ox_build_load_act(b, from, visit->mb_first) : OX_NONE;
    for (uint32_t mb_idx = visit->mb_first; mb_idx < visit->mb_past; mb_idx++) {
        const uint32_t x = next_x;
        const bool more = is_block && mb_idx + 1 < visit->mb_past;
        if (more && b->in->placement.prefetch_depth > 0) {
            next_x = ox_build_load_act(b, from, mb_idx + 1);
        }
        ox_build_before(b, visit->stage_idx, mb_idx, true);
        ox_build_begin_dx(b, visit->stage_idx, mb_idx);
        for (uint32_t phase = 0; phase <= of->cut_count; phase++) {
            backward_phase(b, visit, &pass, mb_idx, phase, x);
        }
        fold_grads(b, visit, mb_idx);
        ox_build_after(b, visit->stage_idx, mb_idx, true);
        ox_build_end_dx(b, visit->stage_idx, mb_idx);
        if (more && b->in->placement.prefetch_depth == 0) {
            next_x = ox_build_load_act(b, from, mb_idx + 1);
        }
    }
    end_grads(b, visit);
}

/* ---- the whole ------------------------------------------------------------------------------------ */

static void sum_nvme(struct ox_builder *b) {
    struct ox_plan *const plan = b->plan;
    const bool store = b->in->budget.nvme_bytes > 0;
    const uint64_t generations = ox_plan_generations(&b->in->budget);
    uint64_t weights = 0, state = 0, spool = 0;
    for (uint32_t i = 0; i < plan->unit_count && store; i++) {
        const uint64_t copies = b->in->table->shards[i].fixed ? 1 : generations;
        weights += copies * ox_shard_hi_bytes(&b->in->table->shards[i], b->in->table->shards[i].elem_count);
        state += copies * ox_shard_stored_bytes(b->in->table, i);
    }
    for (uint32_t i = 0; i < plan->spool_count; i++) {
        spool += plan->spool_bytes[i];
    }
    plan->stored_weight_bytes = weights;
    plan->resident_bytes[OX_TIER_NVME] = weights + state;
    plan->peak_bytes[OX_TIER_NVME] =
        plan->resident_bytes[OX_TIER_NVME] + spool + (store ? b->in->budget.nvme_fixed_bytes : 0);
}

/* Emits the updates that run in backward. They follow their gradient by as many visits as transfers run ahead, so that
 * backward need not wait for them before it sends the next gradient away. */
static void run_speculative(struct ox_builder *b, uint32_t visit_idx, uint32_t depth) {
    const bool end = visit_idx + 1 == b->visit_count;
    const uint32_t past = end ? b->visit_count : visit_idx < depth ? 0 : visit_idx - depth + 1;
    for (uint32_t i = visit_idx < depth ? 0 : visit_idx - depth; b->train && i < past; i++) {
        const struct visit visit = visit_at(b, i);
        const bool finishes = visit.pass != PASS_FORWARD && visit.mb_past == b->plan->micro_batches;
        for (uint32_t nth = visit.stage->unit_count; nth-- > 0 && finishes;) { /* against the order of forward */
            const uint32_t unit_idx = visit.stage->units[nth].unit_idx;
            const struct ox_plan_unit *const unit = ox_build_unit(b, unit_idx);
            if (unit->stage_idx == visit.stage_idx && ox_build_is_speculative(b, unit_idx)) {
                ox_build_adam_speculative(b, unit_idx, b->scratch->grad_speculative[unit->grad_idx]);
            }
        }
    }
}

static void emit_visits(struct ox_builder *b) {
    const uint32_t visit_count = b->visit_count;
    OX_ASSERT(visit_count <= b->scratch->visit_cap);
    /* A partial gradient may not be fetched before the previous tile has sent it away. */
    const uint32_t depth = (uint32_t)ox_min_u64(b->in->placement.prefetch_depth, visits_per_tile(b) - 1);
    uint32_t prepared = 0;
    if (ox_plan_pipe(b->in) > 1) {
        ox_build_pipe_begin(b);
        ox_build_borrow(b);
    }
    for (uint32_t i = 0; i < visit_count; i++) {
        for (; prepared < visit_count && prepared <= i + depth; prepared++) {
            const struct visit ahead = visit_at(b, prepared);
            prepare_visit(b, &ahead);
        }
        const struct visit visit = visit_at(b, i);
        if (visit.pass == PASS_FORWARD) {
            run_forward(b, &visit);
        } else if (visit.pass == PASS_HEAD) {
            run_head(b, &visit);
            if (visit.mb_past == b->plan->micro_batches) { /* the last forward: its update may begin a transaction */
                share_in_pipe(b);
            }
        } else {
            share_in_pipe(b);
            run_backward(b, &visit);
        }
        run_speculative(b, i, depth);
    }
    share_in_pipe(b);
    ox_build_end_visits(b);
    for (uint32_t i = 0; i < b->in->model.unit_count && !b->train; i++) { /* no gradient follows */
        ox_build_adam_late(b, b->in->model.order[i]);
    }
}

/* Asserts that each stage reads what the one before makes: only the first may be an embedding, which takes tokens, and
 * only the last a head, which gives the loss. */
static void check_stages(const struct ox_plan_model *model) {
    for (uint32_t i = 0; i < model->stage_count; i++) {
        const struct ox_plan_stage *const stage = &model->stages[i];
        const bool first = i == 0, last = i + 1 == model->stage_count;
        OX_ASSERT(first || stage->input_bytes == model->stages[i - 1].output_bytes);
        OX_ASSERT(stage->kind == OX_PLAN_EMBEDDING ? first : stage->input_bytes > 0);
        OX_ASSERT(stage->kind == OX_PLAN_HEAD ? last : stage->output_bytes > 0);
        OX_ASSERT(stage->saves_input == (stage->kind == OX_PLAN_BLOCK && stage->starts_back == 0));
        OX_ASSERT(stage->starts_back == 0 || model->stages[i - 1].starts_back + 1 == stage->starts_back);
    }
}

static void check_input(const struct ox_plan *plan, const struct ox_plan_input *input, enum ox_plan_kind kind) {
    const struct ox_plan_model *const model = &input->model;
    OX_ASSERT(plan->unit_count == model->unit_count && plan->grad_count == model->grad_count);
    OX_ASSERT(plan->stage_count == model->stage_count);
    OX_ASSERT(plan->micro_batches == model->micro_batches);
    OX_ASSERT(kind != OX_PLAN_EVAL_AFTER_STEP || (input->placement.overlap && !model->eval_only));
    OX_ASSERT(input->placement.tiles >= 1 && input->placement.tiles <= ox_plan_tiles_max(input));
    OX_ASSERT(input->placement.kept_units <= ox_plan_block_count(model));
    /* A lo that travels has 16 bits, and is found at the front of the state. */
    OX_ASSERT(!model->precision->lo_travels || input->table->sizes.lo_per_group == OX_LO_BYTES * OX_GROUP_ELEMS);
    check_stages(model);
}

/* Marks the blocks that keep what their backward needs: those among the rank's last `kept_units` that can. */
static void choose_kept(struct ox_builder *b) {
    const struct ox_plan_model *const model = &b->in->model;
    uint32_t left = b->train ? b->in->placement.kept_units : 0;
    memset(b->scratch->keeps, 0, model->stage_count * sizeof *b->scratch->keeps);
    for (uint32_t i = model->stage_count; i > b->first_back; i--) {
        const bool is_block = model->stages[i - 1].kind == OX_PLAN_BLOCK && ox_plan_computes(b->in, i - 1);
        b->scratch->keeps[i - 1] = is_block && left > 0 && model->stages[i - 1].kept_bytes > 0;
        left -= is_block && left > 0;
    }
}

/* Sets how many slots the sums of gradients need. */
static void count_slots(struct ox_builder *b) {
    b->sums = ox_plan_row_sums(b->in);
    OX_ASSERT(ox_sums_count(&b->sums) == b->plan->micro_batches);
    for (uint32_t i = 0; i <= b->plan->micro_batches; i++) {
        struct ox_mb_sum *const at = &b->scratch->mb_sums[i];
        *at = (struct ox_mb_sum){.occupied = ox_sums_occupied(&b->sums, i)};
        if (i < b->plan->micro_batches) {
            at->slot = ox_sums_slot(&b->sums, i);
            at->folds = ox_sums_folds(&b->sums, i);
            at->begins = ox_sums_begins_leaf(&b->sums, i);
        }
    }
    b->slots = ox_build_slots(b, 0, b->plan->micro_batches);
    for (uint32_t tile = 1; tile < b->in->placement.tiles; tile++) {
        const uint32_t occupied = ox_build_occupied(b, tile);
        b->rest_slots = occupied > b->rest_slots ? occupied : b->rest_slots;
    }
}

static void list_tasks(struct ox_plan *plan, const struct ox_plan_input *input, enum ox_plan_kind kind) {
    struct ox_plan_full *const full = (struct ox_plan_full *)plan;
    check_input(plan, input, kind);
    plan->kind = kind;
    plan->task_count = plan->buf_count = full->scratch.begun_count = 0;
    for (uint32_t i = 0; i < plan->unit_count; i++) {
        plan->rules[i] = ox_plan_unit_rules(input, i);
    }
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
        .first_back = ox_plan_first_back(&input->model),
        .train = kind == OX_PLAN_TRAIN,
        .carries = kind != OX_PLAN_EVAL && input->placement.overlap,
        .usual = ox_usual_case(input, kind, (struct ox_step_ways){0}),
        .between = ox_plan_commits_between(input),
    };
    while (!ox_plan_computes(input, b.first_own)) {
        b.first_own++;
    }
    memset(full->scratch.routes, 0, (size_t)plan->stage_count * plan->micro_batches * sizeof *full->scratch.routes);
    count_slots(&b);
    choose_kept(&b);
    ox_build_visits(&b);
    place_homes(&b);
    emit_visits(&b);
    if (!b.shared) {
        save_losses(&b);
    }
    if (b.train) {
        ox_build_optimizer(&b);
    }
    ox_build_follow(&b);
    sum_nvme(&b);
}

static void finish(struct ox_plan *plan, const struct ox_plan_input *input, enum ox_plan_finished finished) {
    ox_plan_finish((struct ox_plan_full *)plan, &input->budget, finished);
    plan->peak_bytes[OX_TIER_HOST] = ox_max_u64(
        plan->peak_bytes[OX_TIER_HOST], plan->resident_bytes[OX_TIER_HOST] + ox_plan_scratch_bytes(input));
}

void ox_plan_measure(struct ox_plan *plan, const struct ox_plan_input *input, enum ox_plan_kind kind) {
    list_tasks(plan, input, kind);
    finish(plan, input, OX_PLAN_MEASURED);
}

void ox_plan_complete(struct ox_plan *plan, const struct ox_plan_input *input, bool as_measured) {
    finish(plan, input, as_measured ? OX_PLAN_ORDERED : OX_PLAN_COMPLETE);
}

void ox_plan_build(struct ox_plan *plan, const struct ox_plan_input *input, enum ox_plan_kind kind) {
    list_tasks(plan, input, kind);
    finish(plan, input, OX_PLAN_COMPLETE);
}
