/* What each task needs in its buffers and leaves in them. */
#include "offload/proof/effects.h"

/* ---- what several kinds of tasks need --------------------------------------------------------------- */

void ox_effects_need_planes(struct effects *e, enum ox_use_role role, uint32_t unit_idx) {
    const enum ox_tier tier = ox_effects_compute_tier(e);
    if (ox_proof_divides(e->in, unit_idx) || ox_proof_borrows(e->in, unit_idx)) {
        ox_effects_need(e, role, tier, ox_content(GATHERED, unit_idx, 0));
        return;
    }
    ox_effects_need(e, role, tier, ox_content(PLANES, unit_idx, CURRENT));
    if (ox_proof_homes(e->in, unit_idx)->weights == tier && ox_proof_lo_in_state(e->in, unit_idx)) {
        ox_effects_need(e, OX_USE_STATE, tier, ox_content(STATE, unit_idx, CURRENT));
    }
}

/* The weights of all stage units: as planes, or in a block cast, where it does not read them as they are. `back`: those
 * that an embedding's backward reads. */
static void need_weights(struct effects *e, const struct ox_plan_stage *stage, bool back) {
    for (e->nth = 0; e->nth < stage->unit_count; e->nth++) {
        const uint32_t unit_idx = stage->units[e->nth].unit_idx;
        if (!ox_proof_has(e->in, unit_idx) || (back && !stage->units[e->nth].read_back)) {
            continue;
        }
        if (stage->kind == OX_PLAN_BLOCK && ox_proof_cast_bytes(e->in, unit_idx) > 0) {
            ox_effects_need(e, OX_USE_CAST, ox_effects_compute_tier(e), ox_content(CAST, unit_idx, 0));
        } else {
            if (ox_proof_is_narrow(e->in, unit_idx)) {
                ox_effects_reject(e, "reads weights in place that only a cast reads");
            }
            ox_effects_need_planes(e, OX_USE_WEIGHTS, unit_idx);
        }
    }
    e->nth = 0;
}

static void need_batch(struct effects *e) {
    const bool whole = e->in->budget.unified;
    ox_effects_need(e, OX_USE_BATCH, ox_effects_compute_tier(e),
             whole ? ox_content(BATCHES, OX_NONE, 0) : ox_content(BATCH, OX_NONE, e->task->mb_idx));
    if (whole) {
        ox_effects_need_buffer(e, OX_USE_BATCH, e->plan->batch_host_buf);
    }
}

/* ---- passes of several phases ------------------------------------------------------------------------- */

/* The phase of a pass that the task does, of how many. */
struct phase {
    const struct ox_plan_pass *pass;
    bool first, last, backward;
};

static struct phase phase_of(struct effects *e, const struct ox_plan_pass *pass, bool backward) {
    if (e->task->phase > pass->cut_count) {
        ox_effects_reject(e, "does a phase that its pass does not have");
    }
    return (struct phase){.pass = pass, .first = e->task->phase == 0, .last = e->task->phase >= pass->cut_count,
                          .backward = backward};
}

/* What a buffer of the pass must hold before a phase that is not the first. What other ranks have written to, the cut
 * has brought. */
static struct ox_content before_phase(const struct effects *e, const struct phase *phase, enum ox_holding what) {
    const struct ox_plan_cut *const cut = &phase->pass->cuts[e->task->phase - 1];
    const enum ox_holding crossed = cut->role == OX_USE_KEPT ? PART_KEPT : ROOM;
    return ox_content_within(what, e->task, phase->backward, e->task->phase - 1u, what == crossed);
}

/* Demands a buffer that all phases of the pass use: the first finds from_to[0], or with NOTHING sets it, and the last
 * leaves from_to[1]. `what`: what it holds in between. */
static void use_through(struct effects *e, const struct phase *phase, enum ox_use_role role, enum ox_holding what,
                        const struct ox_content from_to[2]) {
    const enum ox_tier tier = ox_effects_compute_tier(e);
    if (e->wrong != NULL) {
        return;
    }
    const struct ox_content after = phase->last ? from_to[1] : ox_content_within(what, e->task, phase->backward,
                                                                                 e->task->phase, false);
    if (phase->first && from_to[0].what == NOTHING) {
        ox_effects_fill(e, role, tier, after);
        return;
    }
    const struct ox_content of_phase[2] = {phase->first ? from_to[0] : before_phase(e, phase, what), after};
    ox_effects_change(e, role, tier, of_phase);
}

static void fill_through(struct effects *e, const struct phase *phase, enum ox_use_role role, enum ox_holding what,
                         struct ox_content content) {
    const struct ox_content from_to[2] = {ox_content(NOTHING, 0, 0), content};
    use_through(e, phase, role, what, from_to);
}

/* ---- sums -------------------------------------------------------------------------------------------- */

/* Whether what a buffer holds is a sum of the gradient whose next step is what the task does. */
static bool is_next_step(const struct effects *e, struct ox_content held, uint32_t grad_idx,
                         enum ox_proof_sum_kind kind) {
    const struct ox_proof_sum_step *const next = &e->sum_steps[held.count];
    return held.what == SUM && held.idx == grad_idx && held.count < ox_effects_steps(e, grad_idx) &&
           next->kind == kind && next->slot == e->task->slot && next->mb_idx == e->task->mb_idx;
}

/* Demands that the task does the next step of a sum. */
static void do_sum_step(struct effects *e, enum ox_use_role role, uint32_t grad_idx, enum ox_proof_sum_kind kind) {
    const struct ox_use *const use = ox_effects_find(e, role, UPDATES, ox_effects_compute_tier(e));
    if (use == NULL) {
        return;
    }
    const struct ox_content held = e->held[use->buf_idx];
    if (!is_next_step(e, held, grad_idx, kind)) {
        ox_effects_reject(e, "is not the next step of the sum that it adds to");
        return;
    }
    ox_effects_hold(e, use->buf_idx, ox_content(SUM, grad_idx, held.count + 1));
}

/* A phase that is not the only one: the first finds the sum before this step, or sets it; the last completes the step.
 */
static void add_in_phases(struct effects *e, const struct phase *phase, uint32_t grad_idx) {
    enum { PHASES = OX_PLAN_CUTS_MAX + 1 };
    const enum ox_proof_sum_kind kind = e->task->begins ? SUM_BEGINS : SUM_ADDS;
    const struct ox_use *const use = ox_effects_use(e, OX_USE_GRAD);
    const bool sets = phase->first && use != NULL && !use->read;
    if (ox_effects_find(e, OX_USE_GRAD, sets ? WRITES : UPDATES, ox_effects_compute_tier(e)) == NULL) {
        return;
    }
    const struct ox_content held = sets ? ox_content(SUM, grad_idx, 0) : e->held[use->buf_idx];
    const uint32_t steps = phase->first ? held.count : held.count / PHASES;
    const struct ox_content wanted = phase->first ? ox_content(SUM, grad_idx, steps)
                                                  : ox_content(PART_SUM, grad_idx, steps * PHASES + e->task->phase - 1);
    if (!ox_content_same(held, wanted) || !is_next_step(e, ox_content(SUM, grad_idx, steps), grad_idx, kind)) {
        ox_effects_reject(e, "is not the next step of the sum that it adds to");
        return;
    }
    ox_effects_hold(e, use->buf_idx, phase->last ? ox_content(SUM, grad_idx, steps + 1)
                                                 : ox_content(PART_SUM, grad_idx, steps * PHASES + e->task->phase));
}

/* The first step of a sum sets the first slot, whatever the buffer has held. */
static void add_gradient(struct effects *e, const struct phase *phase, uint32_t grad_idx) {
    const struct ox_use *const use = ox_effects_use(e, OX_USE_GRAD);
    if (!phase->first || !phase->last) {
        add_in_phases(e, phase, grad_idx);
        return;
    }
    if (use == NULL || use->read) {
        do_sum_step(e, OX_USE_GRAD, grad_idx, e->task->begins ? SUM_BEGINS : SUM_ADDS);
        return;
    }
    if (!e->task->begins || !is_next_step(e, ox_content(SUM, grad_idx, 0), grad_idx, SUM_BEGINS)) {
        ox_effects_reject(e, "does not begin the sum that it sets");
        return;
    }
    ox_effects_fill(e, OX_USE_GRAD, ox_effects_compute_tier(e), ox_content(SUM, grad_idx, 1));
}

/* The gradients from the stage's uses of its units. */
static void add_gradients(struct effects *e, const struct phase *phase, const struct ox_plan_stage *stage) {
    for (e->nth = 0; e->nth < stage->unit_count; e->nth++) {
        if (stage->units[e->nth].grad_idx != OX_NONE && ox_proof_has(e->in, stage->units[e->nth].unit_idx)) {
            add_gradient(e, phase, stage->units[e->nth].grad_idx);
        }
    }
    e->nth = 0;
}

/* The last fold may bring the finished sum to another buffer, which needs room for that alone. */
static void fold(struct effects *e, uint32_t grad_idx) {
    const enum ox_tier tier = ox_effects_compute_tier(e);
    const enum ox_proof_sum_kind kind = e->task->last ? SUM_JOINS : SUM_FOLDS;
    if (ox_effects_use(e, OX_USE_TARGET) == NULL) {
        do_sum_step(e, OX_USE_GRAD, grad_idx, kind);
        return;
    }
    const struct ox_content from = ox_content(SUM, grad_idx, ox_effects_steps(e, grad_idx) - 1);
    if (!ox_effects_sums_alone(e, grad_idx) || !is_next_step(e, from, grad_idx, kind) || e->task->slot != 0) {
        ox_effects_reject(e, "takes a sum away that is not finished");
    }
    ox_effects_need(e, OX_USE_GRAD, tier, from);
    ox_effects_fill(e, OX_USE_TARGET, tier, ox_content_sum(e, grad_idx));
}

/* Demands scratch of exactly the size of the pass, and with `constants` the constant tables. */
static void use_scratch(struct effects *e, const struct phase *phase, bool constants) {
    const struct ox_use *const use = ox_effects_use(e, OX_USE_SCRATCH);
    fill_through(e, phase, OX_USE_SCRATCH, ROOM, ox_content(WORK, OX_NONE, 0));
    if (use != NULL) {
        ox_effects_need_bytes(e, use->buf_idx, phase->pass->scratch_bytes);
    }
    if (constants) {
        ox_effects_need(e, OX_USE_CONST, ox_effects_compute_tier(e), ox_content(CONSTANT, OX_NONE, 0));
        ox_effects_need_buffer(e, OX_USE_CONST, e->plan->const_buf);
    }
}

/* Who asks belongs to a stage that may have no rows in backward, and reads what the stage before it has said of these
 * micro-batches. It waits for the task that has brought that to host memory. */
void ox_effects_asks(struct effects *e) {
    const struct ox_task *const task = e->task;
    if (task->asks_stage == OX_NONE) {
        return;
    }
    const struct ox_plan_stage *const stage = ox_effects_stage(e, task->asks_stage);
    const struct ox_use *const use = ox_effects_use(e, OX_USE_ROUTES);
    bool has_unit = false;
    for (uint32_t k = 0; k < stage->unit_count; k++) {
        has_unit = has_unit || stage->units[k].unit_idx == task->unit_idx;
    }
    if (!has_unit || stage->routed_back == 0 || !e->train || ox_proof_holders(e->in) > 1) {
        ox_effects_reject(e, "asks for the rows of a stage that always has some, or of another unit's");
        return;
    }
    ox_effects_need(e, OX_USE_ROUTES, OX_TIER_HOST,
                    ox_content_routes(task->asks_stage - stage->routed_back, task->mb_first, task->mb_past));
    if (use != NULL && e->only[use->buf_idx].by != task->asks) {
        ox_effects_reject(e, "does not wait for the task that knows who has rows");
    }
}

/* A forward that leaves how many rows the stages behind it have, of one micro-batch after the other. */
static void leave_routes(struct effects *e, const struct ox_plan_stage *stage, uint32_t stage_idx) {
    const uint32_t first = e->task->mb_first, mb_idx = e->task->mb_idx;
    const struct ox_content from_to[2] = {ox_content_routes(stage_idx, first, mb_idx),
                                          ox_content_routes(stage_idx, first, mb_idx + 1)};
    if (ox_effects_use(e, OX_USE_ROUTES) == NULL && first == 0) {
        return;
    }
    if (!e->train || stage->routes_bytes == 0 || first > mb_idx) {
        ox_effects_reject(e, "leaves rows of stages that always have some");
    } else if (first == mb_idx) {
        ox_effects_fill(e, OX_USE_ROUTES, ox_effects_compute_tier(e), from_to[1]);
    } else {
        ox_effects_change(e, OX_USE_ROUTES, ox_effects_compute_tier(e), from_to);
    }
}

/* ---- kernels ---------------------------------------------------------------------------------- */

/* Backward overwrites what forward kept with gradients, so that nothing may be read there any more. */
static void use_up_kept(struct effects *e, const struct phase *phase, uint32_t stage_idx) {
    const struct ox_use *const use = ox_effects_find(e, OX_USE_KEPT, UPDATES, ox_effects_compute_tier(e));
    if (use == NULL) {
        return;
    }
    if (!ox_content_same(e->held[use->buf_idx], phase->first ? ox_content(KEPT, stage_idx, e->task->mb_idx)
                                                             : before_phase(e, phase, PART_KEPT))) {
        ox_effects_reject(e, "does not find what its forward kept");
    }
    e->held[use->buf_idx] = phase->last ? ox_content(NOTHING, 0, 0)
                                        : ox_content_within(PART_KEPT, e->task, phase->backward, e->task->phase, false);
}

/* A stage that reports writes its part of the micro-batch's report; no loss is there yet, or those of earlier tiles. */
static void report(struct effects *e, const struct ox_plan_stage *stage) {
    if (!e->train || !stage->reports || ox_proof_output_leaves(e->in)) {
        return;
    }
    const struct ox_content held = e->held[e->plan->loss_buf];
    ox_effects_fill(e, OX_USE_LOSS, ox_effects_compute_tier(e),
                    held.what == LOSSES ? held : ox_content(LOADS, OX_NONE, held.what == LOADS ? held.count + 1 : 1));
    ox_effects_need_buffer(e, OX_USE_LOSS, e->plan->loss_buf);
}

/* The first head, or its first phase, pools what all micro-batches of the step have reported, for every backward. */
static void pool_reports(struct effects *e, bool first) {
    const bool all = ox_proof_all_ranks(e->in) > 1;
    first = first && e->task->mb_idx == 0;
    if (e->train && e->in->model.pooled_doubles > 0 && first && !ox_proof_shares_in_pipe(e->in) &&
        !ox_content_same(e->held[e->plan->loss_buf], ox_content_loads(e, all))) {
        ox_effects_reject(e, "pools reports that are not complete");
    }
}

static void forward(struct effects *e, uint32_t stage_idx) {
    const struct ox_plan_stage *const stage = ox_effects_stage(e, stage_idx);
    const enum ox_tier tier = ox_effects_compute_tier(e);
    const uint32_t next_idx = ox_proof_next_stage(e->in, stage_idx);
    if (stage->kind == OX_PLAN_HEAD) {
        ox_effects_reject(e, "makes activations of a stage that gives the loss");
        return;
    }
    const struct phase phase = phase_of(e, e->keeps[stage_idx] ? &stage->forward_kept : &stage->forward, false);
    need_weights(e, stage, false);
    if (stage->kind == OX_PLAN_BLOCK) {
        ox_effects_need(e, OX_USE_X, tier, ox_content(ACT, stage_idx, e->task->mb_idx));
        use_scratch(e, &phase, true);
    } else if (phase.pass->scratch_bytes > 0) {
        use_scratch(e, &phase, false);
    }
    need_batch(e);
    fill_through(e, &phase, OX_USE_Y, PART_ACT, ox_content(ACT, next_idx, e->task->mb_idx));
    if (phase.last) { /* what crosses comes before the choice of experts */
        report(e, stage);
    }
    if (e->keeps[stage_idx]) {
        fill_through(e, &phase, OX_USE_KEPT, PART_KEPT, ox_content(KEPT, stage_idx, e->task->mb_idx));
    }
    if (phase.last) {
        leave_routes(e, stage, stage_idx);
    }
}

static void head(struct effects *e, uint32_t stage_idx) {
    const enum ox_tier tier = ox_effects_compute_tier(e);
    const uint32_t mb_idx = e->task->mb_idx;
    const struct ox_plan_stage *const stage = ox_effects_stage(e, stage_idx);
    if (stage->kind != OX_PLAN_HEAD) {
        ox_effects_reject(e, "belongs to a stage that computes no loss");
        return;
    }
    const struct phase phase = phase_of(e, e->train ? &stage->backward : &stage->forward, e->train);
    need_weights(e, stage, false);
    ox_effects_need(e, OX_USE_X, tier, ox_content(ACT, stage_idx, mb_idx));
    need_batch(e);
    use_scratch(e, &phase, false);
    pool_reports(e, phase.first);
    if ((mb_idx > 0 || !phase.first) &&
        !ox_content_same(e->held[e->plan->loss_buf], ox_content(LOSSES, OX_NONE, mb_idx))) {
        ox_effects_reject(e, "adds to losses of micro-batches that were not computed");
    }
    ox_effects_fill(e, OX_USE_LOSS, tier, ox_content(LOSSES, OX_NONE, mb_idx + phase.last));
    ox_effects_need_buffer(e, OX_USE_LOSS, e->plan->loss_buf);
    if (e->train) {
        fill_through(e, &phase, OX_USE_DX, PART_ACT, ox_content(ACT_GRAD, stage_idx, mb_idx));
        add_gradients(e, &phase, stage);
    }
}

/* Backward reads what is pooled of all forward passes. In a pipeline the first that does pools it itself, from the
 * reports of all ranks. */
static void read_pooled(struct effects *e) {
    const enum ox_tier tier = ox_effects_compute_tier(e);
    const struct ox_content shared[2] = {ox_content(ALL_LOSSES, OX_NONE, 0), ox_content(ALL_LOSSES, OX_NONE, 1)};
    if (!ox_proof_shares_in_pipe(e->in)) {
        ox_effects_need(e, OX_USE_LOSS, tier, ox_content(LOSSES, OX_NONE, e->plan->micro_batches));
    } else if (!e->pooled) {
        ox_effects_change(e, OX_USE_LOSS, tier, shared);
        e->pooled = true;
    } else {
        ox_effects_need(e, OX_USE_LOSS, tier, shared[1]);
    }
    ox_effects_need_buffer(e, OX_USE_LOSS, e->plan->loss_buf);
}

static void backward(struct effects *e, uint32_t stage_idx) {
    const struct ox_plan_stage *const stage = ox_effects_stage(e, stage_idx);
    const enum ox_tier tier = ox_effects_compute_tier(e);
    const uint32_t mb_idx = e->task->mb_idx;
    const struct phase phase = phase_of(e, e->keeps[stage_idx] ? &stage->backward_kept : &stage->backward, true);
    need_weights(e, stage, stage->kind == OX_PLAN_EMBEDDING);
    if (stage->kind == OX_PLAN_BLOCK) {
        ox_effects_need(e, OX_USE_X, tier, ox_content(ACT, stage_idx - stage->starts_back, mb_idx));
        use_scratch(e, &phase, true);
    } else if (phase.pass->scratch_bytes > 0) {
        use_scratch(e, &phase, false);
    }
    need_batch(e);
    const struct ox_content from_to[2] = {ox_content(ACT_GRAD, ox_proof_next_stage(e->in, stage_idx), mb_idx),
                                          ox_content(ACT_GRAD, stage_idx, mb_idx)};
    use_through(e, &phase, OX_USE_DX, PART_ACT, from_to);
    add_gradients(e, &phase, stage);
    if (stage->reports && e->in->model.pooled_doubles > 0 && !ox_proof_output_leaves(e->in)) {
        read_pooled(e);
    }
    if (e->keeps[stage_idx]) {
        use_up_kept(e, &phase, stage_idx);
    }
}

/* Sums of a gradient are those of the ranks that divide it, or of copies. */
static void check_axis(struct effects *e, uint32_t grad_idx) {
    if (e->task->axis != OX_AXIS_COPY && e->task->axis != ox_proof_grad_axis(e->in, grad_idx)) {
        ox_effects_reject(e, "is about sums of other ranks than those that divide the gradient");
    }
}

/* SUM_PARTS: all parts are added, in the order of the tree, so that the sum is the first of them or the target's. Where
 * the sum goes on over copies its nodes stay where their first parts are. */
static void sum_parts(struct effects *e, uint32_t grad_idx) {
    const enum ox_tier tier = ox_effects_compute_tier(e);
    const uint32_t axis = e->task->axis, rounds = ox_proof_rounds(e->in, axis);
    const bool away = ox_effects_use(e, OX_USE_TARGET) != NULL;
    const bool goes_on = axis != OX_AXIS_COPY && ox_proof_copies(e->in) > 1;
    check_axis(e, grad_idx);
    const struct ox_content from_to[2] = {ox_content(axis == OX_AXIS_COPY ? COPY_PARTS : PARTS, grad_idx, rounds),
                                          ox_content(goes_on ? NODES : SLICE, grad_idx, 0)};
    ox_effects_change(e, OX_USE_GRAD, tier, from_to);
    if (away && goes_on) {
        ox_effects_reject(e, "takes a sum away that goes on over copies");
    }
    if (away && e->wrong == NULL) {
        e->held[ox_effects_use(e, OX_USE_GRAD)->buf_idx] = ox_content(NOTHING, 0, 0);
        ox_effects_fill(e, OX_USE_TARGET, tier, from_to[1]);
    }
}

/* NARROW: what the rank gives is rounded before it travels: all its parts, or its cut of the finished sum. */
static void narrow(struct effects *e, uint32_t grad_idx) {
    const enum ox_tier tier = ox_effects_compute_tier(e);
    const uint32_t axis = e->task->axis;
    const bool nodes = axis == OX_AXIS_COPY && ox_proof_divides(e->in, ox_effects_grad(e, grad_idx)->unit_idx);
    check_axis(e, grad_idx);
    if (!ox_proof_narrows(e->in, axis) || (e->task->last && ox_proof_copies(e->in) == 1)) {
        ox_effects_reject(e, "rounds a sum that travels as it is");
    }
    const struct ox_content parts = nodes ? ox_content(NODES, grad_idx, 0) : ox_content_own_sum(e, grad_idx);
    ox_effects_need(e, OX_USE_SOURCE, tier, e->task->last ? ox_content(SLICE, grad_idx, 0) : parts);
    ox_effects_fill(e, OX_USE_TARGET, tier, ox_content(e->task->last ? NARROW_SLICE : NARROW_OWN, grad_idx, 0));
}

/* WIDEN: what has arrived, in all rounds, comes back to float32. */
static void widen(struct effects *e, uint32_t grad_idx) {
    const enum ox_tier tier = ox_effects_compute_tier(e);
    const uint32_t axis = e->task->axis, rounds = ox_proof_rounds(e->in, axis);
    const enum ox_holding parts = axis == OX_AXIS_COPY ? COPY_PARTS : PARTS;
    check_axis(e, grad_idx);
    ox_effects_need(e, OX_USE_SOURCE, tier, e->task->last ? ox_content(NARROW_COMPLETE, grad_idx, 0)
                                                          : ox_content(NARROW_PARTS, grad_idx, rounds));
    ox_effects_fill(e, OX_USE_TARGET, tier,
                    e->task->last ? ox_content_sum(e, grad_idx) : ox_content(parts, grad_idx, rounds));
}

/* GRAD_ADD: the gradients of other uses of the weights are added to this one; in turn the sum of all that backward has
 * finished before it. */
static void add_other_uses(struct effects *e, uint32_t grad_idx) {
    const enum ox_tier tier = ox_effects_compute_tier(e);
    const struct ox_content from_to[2] = {ox_content_sum(e, grad_idx), ox_content(TOTAL, grad_idx, 0)};
    const struct ox_plan_grad *const grad = ox_effects_grad(e, grad_idx);
    ox_effects_change(e, OX_USE_GRAD, tier, from_to);
    ox_effects_need_addends(e, tier, grad_idx);
    if (grad->in_turn && grad->addend != OX_NONE) {
        e->nth = 1;
        ox_effects_need(e, OX_USE_GRAD, tier, ox_effects_whole_sum(e, grad->addend));
        e->nth = 0;
    }
}

/* ---- any task -------------------------------------------------------------------------------------- */

void ox_effects_follow(struct effects *e) {
    const enum ox_tier tier = ox_effects_compute_tier(e);
    const uint32_t unit_idx = e->task->unit_idx, stage_idx = e->task->stage_idx, grad_idx = e->task->grad_idx;
    const bool on_device = e->task->lane == OX_LANE_COMPUTE;
    switch ((enum ox_task_kind)e->task->kind) {
    case OX_TASK_CAST:
        if (ox_proof_cast_bytes(e->in, unit_idx) == 0) {
            ox_effects_reject(e, "casts planes that compute reads as they are");
        }
        ox_effects_need_planes(e, OX_USE_WEIGHTS, unit_idx);
        ox_effects_asks(e);
        ox_effects_fill(e, OX_USE_CAST, tier, ox_content(CAST, unit_idx, 0));
        break;
    case OX_TASK_FORWARD:
        forward(e, stage_idx);
        break;
    case OX_TASK_HEAD:
        head(e, stage_idx);
        break;
    case OX_TASK_BACKWARD:
        backward(e, stage_idx);
        break;
    case OX_TASK_GRAD_FOLD:
        fold(e, grad_idx);
        break;
    case OX_TASK_SUM_PARTS:
        sum_parts(e, grad_idx);
        break;
    case OX_TASK_NARROW:
        narrow(e, grad_idx);
        break;
    case OX_TASK_WIDEN:
        widen(e, grad_idx);
        break;
    case OX_TASK_GRAD_ADD:
        add_other_uses(e, grad_idx);
        break;
    case OX_TASK_GRAD_PACK:
        ox_effects_need(e, OX_USE_SOURCE, tier, ox_effects_whole_sum(e, grad_idx));
        ox_effects_fill(e, OX_USE_TARGET, tier, ox_content(PACKED, grad_idx, 0));
        break;
    case OX_TASK_REDUCE:
        (on_device ? ox_effects_device_reduce : ox_effects_reduce)(e, unit_idx);
        break;
    case OX_TASK_NORM:
        ox_effects_norm(e);
        break;
    case OX_TASK_BEGIN:
        ox_effects_begin_transaction(e);
        break;
    case OX_TASK_UPDATE:
        (on_device ? ox_effects_device_adam : ox_effects_adam)(e, unit_idx);
        break;
    case OX_TASK_WRITTEN:
        ox_effects_written(e);
        break;
    case OX_TASK_COMMIT:
        ox_effects_commit(e);
        break;
    default:
        ox_effects_move(e, unit_idx);
    }
}
