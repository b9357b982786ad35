/* The second half of the proof: what a plan computes is a training step.
 *
 * The first half (order.c) shows that uses in conflict have an order and that no byte is shared, so the list
 * may be followed one task at a time. This half does so, with names in the place of numbers: a buffer holds "the
 * planes of unit 3" or "the sum of its gradient over two micro-batches". The plan is wrong unless every task finds in
 * its buffers exactly what it needs, in a tier where it can use it. At the end every unit's home must hold what the
 * optimizer made of it, every buffer must be as large as the largest thing that it has held, and every link must
 * have carried what the plan says.
 *
 * The list is followed once for every case that a step can meet (offload/proof/cases.h), each time without the tasks
 * that do not work in it. */
#include "offload/proof/effects.h"

#include "base/bytes.h"
#include "offload/proof/proof_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- one task --------------------------------------------------------------------------------- */

enum scope { OF_STEP, OF_UNIT, OF_STAGE, OF_GRADIENT };

/* Lanes as bits. */
enum {
    ON_COMPUTE = 1 << OX_LANE_COMPUTE,
    ON_H2D = 1 << OX_LANE_H2D,
    ON_D2H = 1 << OX_LANE_D2H,
    ON_READ = 1 << OX_LANE_NVME_READ,
    ON_WRITE = 1 << OX_LANE_NVME_WRITE,
    ON_REDUCE = 1 << OX_LANE_REDUCE,
    ON_ADAM = 1 << OX_LANE_ADAM,
    ON_LINK = 1 << OX_LANE_LINK,
    ON_LINK_IN = 1 << OX_LANE_LINK_IN,
    ON_LINK_OUT = 1 << OX_LANE_LINK_OUT,
    BETWEEN_RANKS = ON_LINK_IN | ON_LINK_OUT,
    ON_ALL_ROUTES = ON_H2D | ON_D2H | ON_READ | ON_WRITE,
};

/* What all tasks of a kind have in common; for moves, all that carry one thing. */
struct rule {
    uint16_t lanes;
    uint8_t scope;
    bool of_batch;   /* names a micro-batch */
    bool train_only; /* part of an evaluation only where it is carried */
    bool of_update;  /* may be carried: part of the update of the step before */
};
static const struct rule rules[OX_TASK_KIND_COUNT] = {
    [OX_TASK_CAST] = {ON_COMPUTE, OF_UNIT, false, false, false},
    [OX_TASK_FORWARD] = {ON_COMPUTE, OF_STAGE, true, false, false},
    [OX_TASK_HEAD] = {ON_COMPUTE, OF_STAGE, true, false, false},
    [OX_TASK_BACKWARD] = {ON_COMPUTE, OF_STAGE, true, true, false},
    [OX_TASK_GRAD_FOLD] = {ON_COMPUTE, OF_GRADIENT, false, true, false},
    [OX_TASK_SUM_PARTS] = {ON_COMPUTE, OF_GRADIENT, false, true, false},
    [OX_TASK_NARROW] = {ON_COMPUTE, OF_GRADIENT, false, true, false},
    [OX_TASK_WIDEN] = {ON_COMPUTE, OF_GRADIENT, false, true, false},
    [OX_TASK_GRAD_ADD] = {ON_COMPUTE, OF_GRADIENT, false, true, false},
    [OX_TASK_GRAD_PACK] = {ON_COMPUTE, OF_GRADIENT, false, true, false},
    [OX_TASK_REDUCE] = {ON_REDUCE | ON_COMPUTE, OF_UNIT, false, true, false},
    [OX_TASK_NORM] = {ON_REDUCE, OF_STEP, false, true, false},
    [OX_TASK_BEGIN] = {ON_ADAM, OF_STEP, false, true, true},
    [OX_TASK_UPDATE] = {ON_ADAM | ON_COMPUTE, OF_UNIT, false, true, true},
    [OX_TASK_WRITTEN] = {ON_ADAM, OF_STEP, false, true, true},
    [OX_TASK_COMMIT] = {ON_ADAM, OF_STEP, false, true, true},
};
static const struct rule move_rules[OX_MOVE_COUNT] = {
    [OX_MOVE_WEIGHTS] = {ON_READ | ON_H2D | ON_LINK | BETWEEN_RANKS, OF_UNIT, false, false, false},
    [OX_MOVE_PLANES] = {ON_D2H | ON_H2D, OF_UNIT, false, true, true},
    [OX_MOVE_ACT] = {ON_ALL_ROUTES, OF_STAGE, true, true, false},
    [OX_MOVE_GRAD] = {ON_ALL_ROUTES | ON_LINK | BETWEEN_RANKS, OF_GRADIENT, false, true, false},
    [OX_MOVE_BATCH] = {ON_H2D, OF_STEP, true, false, false},
    [OX_MOVE_LOSSES] = {ON_D2H | ON_H2D | ON_LINK, OF_STEP, false, false, false},
    [OX_MOVE_PARTIALS] = {ON_D2H | ON_LINK, OF_UNIT, false, true, false},
    [OX_MOVE_NONFINITE] = {ON_D2H, OF_STEP, false, true, true},
    [OX_MOVE_OUTSIDE_ACT] = {ON_H2D | ON_D2H | BETWEEN_RANKS, OF_STAGE, true, false, false},
    [OX_MOVE_OUTSIDE_DX] = {ON_H2D | ON_D2H | BETWEEN_RANKS, OF_STAGE, true, true, false},
    [OX_MOVE_SUM] = {ON_LINK, OF_GRADIENT, false, true, false},
    [OX_MOVE_ROWS] = {ON_LINK, OF_STAGE, true, false, false},
    [OX_MOVE_LOW_RANK] = {ON_LINK, OF_GRADIENT, false, true, false},
    [OX_MOVE_ROUTES] = {ON_D2H, OF_STAGE, false, true, false},
};

static bool is_gradient_of(const struct effects *e, uint32_t grad_idx, uint32_t unit_idx) {
    return grad_idx < e->plan->grad_count && ox_effects_grad(e, grad_idx)->unit_idx == unit_idx;
}

static const struct rule *rule_of(const struct ox_task *task) {
    return task->kind == OX_TASK_MOVE ? &move_rules[task->move] : &rules[task->kind];
}

/* Whether the task adds a micro-batch to a sum, or begins one with it. */
static bool sums(const struct effects *e) {
    const bool back = e->task->kind == OX_TASK_BACKWARD || (e->task->kind == OX_TASK_HEAD && e->train);
    bool trains = false;
    for (uint32_t k = 0; back && e->task->stage_idx < e->plan->stage_count &&
                         k < ox_effects_stage(e, e->task->stage_idx)->unit_count; k++) {
        const struct ox_plan_stage_unit *const use = &ox_effects_stage(e, e->task->stage_idx)->units[k];
        trains = trains || (use->grad_idx != OX_NONE && ox_proof_has(e->in, use->unit_idx));
    }
    return trains;
}

/* Whether the task works on a slot of an accumulator; others name the first one. */
static bool has_slot(const struct effects *e) {
    return sums(e) || e->task->kind == OX_TASK_GRAD_FOLD ||
           (e->task->kind == OX_TASK_MOVE && e->task->move == OX_MOVE_GRAD);
}

/* Whether the task gathers the totals of all units over a pipeline, or of those that are groups of features. */
static bool is_total(const struct ox_task *task) {
    return task->kind == OX_TASK_MOVE && task->lane == OX_LANE_LINK && task->move == OX_MOVE_PARTIALS &&
           (task->axis == OX_AXIS_PIPE || task->axis == OX_AXIS_TENSOR);
}

/* Whether the task comes between the phases of a pass. */
static bool crosses(const struct ox_task *task) {
    return task->kind == OX_TASK_MOVE && task->move == OX_MOVE_ROWS;
}

/* Whether the task names a phase of a pass of a stage, and which pass; others name the first ones. */
static bool fits_phase(const struct ox_task *task) {
    const bool computes = task->kind == OX_TASK_FORWARD || task->kind == OX_TASK_HEAD || task->kind == OX_TASK_BACKWARD;
    return (task->phase == 0 || computes || crosses(task)) && (task->pass == 0 || crosses(task));
}

/* Whether ranks do the task along an axis, which it names; others name the first one. */
static bool has_axis(const struct effects *e) {
    const bool moves = e->task->kind == OX_TASK_MOVE && e->task->lane == OX_LANE_LINK;
    return e->task->axis < OX_AXIS_COUNT &&
           (e->task->kind == OX_TASK_SUM_PARTS || e->task->kind == OX_TASK_NARROW || e->task->kind == OX_TASK_WIDEN ||
            (moves && (e->task->move == OX_MOVE_GRAD || e->task->move == OX_MOVE_SUM ||
                       e->task->move == OX_MOVE_WEIGHTS || e->task->move == OX_MOVE_LOW_RANK || crosses(e->task))) ||
            is_total(e->task));
}

static bool is_between_ranks(const struct ox_task *task) {
    return task->lane == OX_LANE_LINK_IN || task->lane == OX_LANE_LINK_OUT;
}

/* Whether the rank has the unit, gradient or stage that the task is about; what goes between ranks names a stage of one
 * of the two, or a unit on loan, whose sum the head's rank also adds up. */
static bool is_own(const struct effects *e) {
    const struct ox_task *const task = e->task;
    const bool of_loan = is_between_ranks(task) || task->kind == OX_TASK_GRAD_FOLD;
    const bool of_norm = task->kind == OX_TASK_MOVE && task->lane == OX_LANE_LINK && task->move == OX_MOVE_PARTIALS;
    return (task->unit_idx >= e->plan->unit_count || ox_proof_holds(e->in, task->unit_idx) ||
            (of_norm && ox_proof_knows_norm(e->in, task->unit_idx)) ||
            (of_loan && ox_proof_borrows(e->in, task->unit_idx))) &&
           (task->stage_idx >= e->plan->stage_count || is_between_ranks(task) ||
            ox_proof_computes(e->in, task->stage_idx));
}

/* Whether the task names what the scope says, and nothing else. */
static bool fits_scope(const struct effects *e, enum scope scope) {
    const struct ox_task *const task = e->task;
    const bool of_unit = scope == OF_UNIT || scope == OF_GRADIENT;
    return (of_unit ? task->unit_idx < e->plan->unit_count : task->unit_idx == OX_NONE) &&
           (scope == OF_STAGE ? task->stage_idx < e->plan->stage_count : task->stage_idx == OX_NONE) &&
           (scope == OF_GRADIENT ? is_gradient_of(e, task->grad_idx, task->unit_idx) : task->grad_idx == OX_NONE);
}

/* Whether the task asks for rows as its kind may, waits for an earlier task then, and names micro-batches where it has
 * some. */
static bool fits_asks(const struct effects *e) {
    const struct ox_task *const task = e->task;
    const bool moves = task->kind == OX_TASK_MOVE, asks = task->asks_stage != OX_NONE;
    const bool may = task->kind == OX_TASK_CAST || (moves && task->move == OX_MOVE_WEIGHTS &&
                                                    task->lane != OX_LANE_LINK && !is_between_ranks(task));
    const bool has_first = asks || task->kind == OX_TASK_FORWARD || (moves && task->move == OX_MOVE_ROUTES);
    const bool has_past = asks || (moves && task->move == OX_MOVE_ROUTES);
    return (!asks || (may && task->asks_stage < e->plan->stage_count && task->mb_first < task->mb_past)) &&
           asks == (task->asks != 0) && task->asks <= (uint32_t)(task - e->plan->tasks) &&
           (has_first || task->mb_first == 0) && (has_past || task->mb_past == 0) &&
           task->mb_past <= e->plan->micro_batches && task->mb_first <= e->plan->micro_batches;
}

static bool fits_rule(const struct effects *e) {
    const struct ox_task *const task = e->task;
    const struct rule *const rule = rule_of(task);
    const bool asks_of_unit = (task->when & OX_FACTS_OF_UNIT) != 0;
    return (rule->lanes >> task->lane & 1) != 0 && (task->when & ~OX_FACTS_ALL) == 0 &&
           (!asks_of_unit || task->unit_idx < e->plan->unit_count) &&
           (task->slot == 0 || has_slot(e) || crosses(task)) && fits_phase(task) && (task->axis == 0 || has_axis(e)) &&
           (!task->begins || sums(e)) &&
           (e->train || !rule->train_only || task->carried) &&
           (!task->carried || (e->overlap && rule->of_update)) &&
           fits_scope(e, is_total(task) ? OF_STEP : (enum scope)rule->scope) && is_own(e) &&
           is_between_ranks(task) == (task->peer != OX_NONE) && fits_asks(e) &&
           (rule->scope != OF_UNIT || !rule->train_only || is_total(task) ||
            ox_proof_trained(e->in, task->unit_idx)) &&
           (rule->of_batch ? task->mb_idx < e->plan->micro_batches : task->mb_idx == OX_NONE);
}

/* ---- begin and end ---------------------------------------------------------------------------- */

/* State on the device needs weights and gradient there too, and a device memory of its own. */
static bool homes_agree(const struct effects *e, uint32_t unit_idx) {
    const struct ox_homes *const homes = ox_proof_homes(e->in, unit_idx);
    const bool there =
        !e->in->budget.unified && homes->weights == OX_TIER_DEVICE && homes->grad == OX_TIER_DEVICE;
    return !ox_proof_trained(e->in, unit_idx) || e->in->model.eval_only ||
           (homes->state == OX_TIER_DEVICE ? there : homes->grad != OX_TIER_DEVICE);
}

/* Whether there are buffers for losses where the list has a head, and only there; on a rank that does not compute the
 * head only one for those of others. */
static bool has_loss_buffers(const struct effects *e) {
    const struct ox_plan *const plan = e->plan;
    const bool computes = ox_proof_computes(e->in, plan->stage_count - 1) || ox_proof_own_reporters(e->in) > 0;
    return ox_proof_output_leaves(e->in)
               ? plan->loss_buf == OX_NONE && plan->loss_host_buf == OX_NONE
               : (computes ? plan->loss_buf < plan->buf_count : plan->loss_buf == OX_NONE) &&
                     plan->loss_host_buf < plan->buf_count && plan->bufs[plan->loss_host_buf].resident;
}

/* Whether weights and state that live in memory have one buffer each, in their tier, and the buffers that the executor
 * knows by name exist. This does not depend on the case. */
static bool has_homes(struct effects *e) {
    const struct ox_plan *const plan = e->plan;
    uint32_t expected = 0, found = 0;
    memset(e->reduced, 0, plan->unit_count); /* which homes were seen: 1 for weights, 2 for state */
    for (uint32_t i = 0; i < plan->unit_count; i++) {
        const struct ox_homes *const homes = ox_proof_homes(e->in, i);
        expected += ox_proof_holds(e->in, i) ? (homes->weights != OX_TIER_NVME) +
                                                   (homes->state != OX_TIER_NVME && ox_proof_has_state(e->in, i)) : 0;
        if (!homes_agree(e, i)) {
            return false;
        }
    }
    for (uint32_t i = 0; i < plan->buf_count; i++) {
        const struct ox_buf *const buf = &plan->bufs[i];
        if (!buf->resident || (buf->kind != OX_BUF_WEIGHTS && buf->kind != OX_BUF_STATE)) {
            continue;
        }
        const uint8_t home = buf->kind == OX_BUF_WEIGHTS ? 1 : 2;
        if (buf->unit_idx >= plan->unit_count || (e->reduced[buf->unit_idx] & home) != 0) {
            return false;
        }
        const struct ox_homes *const homes = ox_proof_homes(e->in, buf->unit_idx);
        if (buf->tier != (home == 1 ? homes->weights : homes->state)) {
            return false;
        }
        e->reduced[buf->unit_idx] |= home;
        found++;
    }
    return found == expected && plan->const_buf < plan->buf_count && plan->bufs[plan->const_buf].resident &&
           plan->batch_host_buf < plan->buf_count && plan->bufs[plan->batch_host_buf].resident &&
           has_loss_buffers(e) && plan->norm_buf < plan->buf_count;
}

/* Whether the buffer is the home of the gradient that a unit's optimizer takes. */
static bool is_gradient_home(const struct effects *e, const struct ox_buf *buf) {
    return buf->resident && buf->kind == OX_BUF_GRAD && buf->unit_idx < e->plan->unit_count &&
           buf->grad_idx == ox_effects_unit(e, buf->unit_idx)->grad_idx &&
           buf->tier == ox_proof_homes(e->in, buf->unit_idx)->grad;
}

/* What a buffer holds when the step begins. A unit whose carried update is due has its gradient and the planes of the
 * step before; these may not be read if a speculative update may have replaced them. Where the state alone is due, the
 * weights are those of this step, and memory has hi as it was. */
static struct ox_content first_content(const struct effects *e, uint32_t buf_idx) {
    const struct ox_buf *const buf = &e->plan->bufs[buf_idx];
    const bool of_unit = buf->unit_idx < e->plan->unit_count;
    const uint8_t due = of_unit ? e->due[buf->unit_idx] : OX_DUE_NOTHING;
    if (buf_idx == e->plan->const_buf) {
        return ox_content(CONSTANT, OX_NONE, 0);
    }
    if (buf_idx == e->plan->batch_host_buf && e->at.computes) {
        return ox_content(BATCHES, OX_NONE, 0);
    }
    if (buf_idx == e->plan->written_buf && !e->writes_pending) {
        return ox_content(WRITTEN, OX_NONE, 0);
    }
    if (buf_idx == e->plan->counts_buf && e->device_count > 0) {
        return ox_content(COUNTS, OX_NONE, e->device_count);
    }
    if (!buf->resident || !of_unit) {
        return ox_content(NOTHING, 0, 0);
    }
    if (buf->kind == OX_BUF_RESIDUAL) {
        return ox_content(RESIDUAL, buf->grad_idx, 0);
    }
    if (due != OX_DUE_NOTHING && is_gradient_home(e, buf)) {
        return ox_content(REDUCED, buf->unit_idx, CURRENT);
    }
    if (due == OX_DUE_STATE && buf->kind == OX_BUF_REPLACED) {
        return ox_content(REPLACED, buf->unit_idx, OLD);
    }
    if ((buf->kind != OX_BUF_WEIGHTS && buf->kind != OX_BUF_STATE) ||
        (due != OX_DUE_NOTHING && e->at.clipped && ox_proof_is_speculative(e->in, buf->unit_idx) &&
         !ox_proof_saves(e->in, buf->unit_idx))) {
        return ox_content(NOTHING, 0, 0);
    }
    const bool old = due == OX_DUE_ALL || (due == OX_DUE_STATE && buf->kind == OX_BUF_STATE);
    return ox_content(buf->kind == OX_BUF_WEIGHTS ? PLANES : STATE, buf->unit_idx, old ? OLD : CURRENT);
}

/* How many units were updated on the device before the step was interrupted: their counts are there already. */
static uint32_t counted_units(const struct effects *e) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < e->plan->unit_count && e->at.pending; i++) {
        count += ox_proof_holds(e->in, i) && ox_proof_on_device(e->in, i) && !e->due[i];
    }
    return count;
}

static void begin(struct effects *e) {
    e->facts = ox_proof_facts(e->plan, e->in, e->at);
    e->writes_pending = ox_proof_writes_pending(e->in, e->at);
    e->writes_own = ox_proof_writes_own(e->plan, e->in, e->at);
    e->begun = ox_proof_is_open(e->in, e->at);
    e->commit_count = e->written_count = 0;
    e->pooled = false;
    memset(e->arrived_count, 0, sizeof e->arrived_count);
    memset(e->left_count, 0, sizeof e->left_count);
    memset(e->crossed, 0, CROSSED_KINDS * e->plan->stage_count * sizeof *e->crossed);
    memset(e->loaned, 0, (e->plan->unit_count + e->plan->grad_count) * sizeof *e->loaned);
    e->device_count = counted_units(e);
    e->wrong = NULL;
    memset(e->traffic, 0, sizeof e->traffic);
    memset(e->reduced, 0, e->plan->unit_count);
    for (uint32_t i = 0; i < e->plan->unit_count; i++) {
        e->updated[i] = e->due[i] ? OLD : CURRENT;
    }
    for (uint32_t i = 0; i < e->plan->buf_count; i++) {
        e->held[i] = first_content(e, i);
        e->only[i] = (struct ox_only){.stage_idx = OX_NONE};
    }
}

/* The version that a unit has at the end: with overlap, only speculative updates go beyond what the step computed
 * with. */
static uint32_t last_version(const struct effects *e, uint32_t unit_idx) {
    const bool speculative = e->at.speculates && ox_proof_is_speculative(e->in, unit_idx);
    return speculative || (e->train && !e->overlap && ox_proof_trained(e->in, unit_idx)) ? NEW : CURRENT;
}

/* Whether gradients are still in their homes at the end. Those of the step itself must be, because its update has not
 * run or may have to run again; those of a carried update must be after an evaluation, which may be interrupted. */
static bool gradients_stay(const struct effects *e) {
    const bool own = e->train && e->at.computes;
    uint32_t expected = 0, found = 0;
    for (uint32_t i = 0; i < e->plan->unit_count; i++) {
        expected += ox_proof_updates(e->in, i) && (own || e->due[i]);
    }
    for (uint32_t i = 0; i < e->plan->buf_count; i++) {
        const struct ox_buf *const buf = &e->plan->bufs[i];
        if (is_gradient_home(e, buf) && (own || e->due[buf->unit_idx])) {
            found += ox_content_same(e->held[i], ox_content(REDUCED, buf->unit_idx, own ? NEW : CURRENT));
        }
    }
    return found == expected;
}

/* What a home must hold in the end. The state of a unit whose weights went ahead follows in the next step. */
static struct ox_content last_content(const struct effects *e, const struct ox_buf *buf) {
    const uint32_t last = last_version(e, buf->unit_idx);
    const bool follows = last == NEW && ox_proof_goes_ahead(e->in, buf->unit_idx) && e->overlap;
    return buf->kind == OX_BUF_WEIGHTS ? ox_content(PLANES, buf->unit_idx, last)
                                       : ox_content(STATE, buf->unit_idx, follows ? CURRENT : last);
}

/* Whether every home holds what the optimizer made. */
static bool homes_are_current(const struct effects *e) {
    for (uint32_t i = 0; i < e->plan->buf_count; i++) {
        const struct ox_buf *const buf = &e->plan->bufs[i];
        if (buf->resident && (buf->kind == OX_BUF_WEIGHTS || buf->kind == OX_BUF_STATE) &&
            !ox_content_same(e->held[i], last_content(e, buf))) {
            return false;
        }
    }
    return true;
}

/* Whether what exchanges of low rank keep is of this step where it has made them, and else of the step before; and each
 * gradient that may be exchanged so has a buffer for it. */
static bool all_exchanged(const struct effects *e) {
    const bool own = (e->facts & OX_FACT_LOW_RANK) != 0;
    uint32_t expected = 0, found = 0;
    for (uint32_t i = 0; i < e->plan->grad_count; i++) {
        expected += ox_proof_holds(e->in, ox_effects_grad(e, i)->unit_idx) && ox_proof_low_rank(e->in, i).used;
    }
    for (uint32_t i = 0; i < e->plan->buf_count; i++) {
        const struct ox_buf *const buf = &e->plan->bufs[i];
        found += buf->kind == OX_BUF_RESIDUAL && buf->resident && buf->tier == ox_effects_compute_tier(e) &&
                 ox_content_same(e->held[i], ox_content(RESIDUAL, buf->grad_idx, own));
    }
    return found == expected;
}

/* Whether what speculative updates replaced is saved wherever it is not on the drives. */
static bool replaced_stay(const struct effects *e) {
    uint32_t expected = 0, found = 0;
    for (uint32_t i = 0; i < e->plan->unit_count; i++) {
        expected += e->at.speculates && ox_proof_holds(e->in, i) && ox_proof_saves(e->in, i);
    }
    for (uint32_t i = 0; i < e->plan->buf_count; i++) {
        const struct ox_buf *const buf = &e->plan->bufs[i];
        found += e->at.speculates && buf->resident && buf->kind == OX_BUF_REPLACED &&
                 ox_content_same(e->held[i], ox_content(REPLACED, buf->unit_idx, CURRENT));
    }
    return found == expected;
}

/* Whether the counts of updates on the device reach the host in the step that finishes these updates. */
static bool counts_arrive(const struct effects *e) {
    const bool due = e->overlap ? e->at.pending : e->train;
    const struct ox_content counts = ox_content(COUNTS, OX_NONE, ox_effects_device_units(e));
    return !due || counts.count == 0 || (e->plan->nonfinite_buf < e->plan->buf_count &&
                                         ox_content_same(e->held[e->plan->nonfinite_buf], counts));
}

/* Whether one commit ends a pending update that goes to a store, and the step's own transaction stays open only if the
 * step speculates. */
static bool is_committed_once(const struct effects *e) {
    const bool own = e->writes_own && !e->overlap; /* else the next step commits it */
    return e->commit_count == (uint32_t)(e->writes_pending || own) && e->written_count == e->writes_pending &&
           e->begun == (e->writes_own && e->at.speculates);
}

bool ox_effects_crosses(const struct effects *e, bool is_gradient, bool leaves, uint32_t stage_idx) {
    if (stage_idx == 0 || (is_gradient && (!e->train || stage_idx <= ox_proof_first_back(e->in)))) {
        return false;
    }
    const bool makes = ox_proof_computes(e->in, is_gradient ? stage_idx : stage_idx - 1);
    const bool takes = ox_proof_computes(e->in, is_gradient ? stage_idx - 1 : stage_idx);
    return leaves ? makes && !takes : takes && !makes;
}

/* Whether every unit on loan came or went once, and the sums of its gradients that the head's rank has. */
static bool loans_are_over(const struct effects *e) {
    const struct ox_plan_stage *const head = ox_proof_last_stage(e->in);
    bool all = true;
    for (uint32_t i = 0; i < e->plan->unit_count && all; i++) {
        all = e->loaned[i] == (ox_proof_borrows(e->in, i) || ox_proof_lends(e->in, i) ? 1 : 0);
    }
    for (uint32_t i = 0; i < e->plan->grad_count && all; i++) {
        bool goes = false;
        for (uint32_t k = 0; k < head->unit_count && e->train; k++) {
            goes = goes || (head->units[k].grad_idx == i && e->loaned[head->units[k].unit_idx] > 0);
        }
        all = e->loaned[e->plan->unit_count + i] == (goes ? 1 : 0);
    }
    return all;
}

bool ox_effects_exchanged(const struct effects *e) {
    const uint32_t at_input = ox_proof_input_arrives(e->in) ? e->plan->micro_batches : 0;
    const uint32_t at_output = ox_proof_output_leaves(e->in) ? e->plan->micro_batches : 0;
    bool all = true;
    for (uint32_t i = 0; i < e->plan->stage_count * CROSSED_KINDS && all; i++) {
        const uint32_t stage_idx = i / CROSSED_KINDS;
        const bool is_gradient = (i & 2) != 0, leaves = (i & 1) != 0;
        all = *ox_effects_crossed(e, is_gradient, leaves, stage_idx) ==
              (ox_effects_crosses(e, is_gradient, leaves, stage_idx) ? e->plan->micro_batches : 0);
    }
    return all && loans_are_over(e) && e->arrived_count[0] == at_input && e->left_count[0] == at_output &&
           e->arrived_count[1] == (e->train ? at_output : 0) && e->left_count[1] == (e->train ? at_input : 0);
}

/* Whether the losses of all micro-batches are on the host, where the list has a head. */
static bool losses_arrive(const struct effects *e) {
    return ox_proof_output_leaves(e->in) ||
           ox_content_same(e->held[e->plan->loss_host_buf], ox_content_losses(e));
}

/* Returns what is missing at the end of the step, or NULL: every home as the optimizer made it, or the gradient for an
 * update to come; all losses; what other parts of the model wait for; and with a store one commit. */
static const char *end(const struct effects *e) {
    const struct ox_plan *const plan = e->plan;
    for (uint32_t i = 0; i < plan->unit_count; i++) {
        if (ox_proof_holds(e->in, i) && e->updated[i] != last_version(e, i)) {
            return "a unit is not updated exactly once";
        }
    }
    if (e->overlap && !gradients_stay(e)) {
        return "a gradient does not stay in its home for the update";
    }
    if (!all_exchanged(e)) {
        return "a gradient is not exchanged as the step says";
    }
    if (!replaced_stay(e)) {
        return "what a speculative update replaces is not saved";
    }
    if (!homes_are_current(e)) {
        return "the home of a unit does not hold what the optimizer made";
    }
    if (e->at.computes && !losses_arrive(e)) {
        return "the losses do not reach the host";
    }
    if (e->at.computes && !ox_effects_exchanged(e)) {
        return "another rank or another part of the model does not get every micro-batch";
    }
    if (e->train && e->at.computes &&
        !ox_content_same(e->held[plan->norm_buf], ox_content(FACTOR, OX_NONE, 0))) {
        return "the norm is not known";
    }
    if (!counts_arrive(e)) {
        return "the counts of updates on the device do not reach the host";
    }
    return is_committed_once(e) ? NULL : "the step is not committed exactly once";
}

/* Without overlap nothing has changed by then. With overlap the update of the step before must be whole: the engine
 * forgets it. Speculative updates are taken back from the last commit, which must be that of the step before. Other
 * parts of the model have what they wait for. */
const char *ox_effects_unfinite(const struct effects *e) {
    const char *wrong = NULL;
    for (uint32_t i = 0; i < e->plan->unit_count; i++) {
        const bool is_taken_back = e->at.speculates && ox_proof_is_speculative(e->in, i);
        if (ox_proof_holds(e->in, i) && e->updated[i] != CURRENT && !(is_taken_back && e->updated[i] == NEW)) {
            wrong = "leaves a unit half-updated where the step is not finite";
        }
    }
    if (e->commit_count != e->writes_pending || e->begun != (e->writes_own && e->at.speculates) ||
        (e->overlap && !counts_arrive(e))) {
        wrong = "leaves the update of the step before open where the step is not finite";
    }
    return ox_effects_exchanged(e) ? wrong : "leaves others waiting where the step is not finite";
}

/* ---- one case --------------------------------------------------------------------------------- */

/* Checks when the task works. If only a pending update is finished, no task but carried ones may work. If steps
 * overlap, the step's own updates may run only in a step that speculates. */
static void check_when(struct effects *e) {
    if (!e->task->carried && !e->at.computes) {
        ox_effects_reject(e, "works where a pending update is finished alone");
    }
    if (!e->task->carried && e->overlap && rule_of(e->task)->of_update && !e->at.speculates) {
        ox_effects_reject(e, "updates a unit before the norm is known in a step that does not speculate");
    }
}

static void follow_task(struct effects *e, bool usual) {
    const uint8_t due = e->task->unit_idx < e->plan->unit_count ? e->due[e->task->unit_idx] : OX_DUE_NOTHING;
    e->found_count = 0;
    e->moved_bytes = 0;
    if (ox_proof_works(e->task, e->facts, (enum ox_due)due)) {
        check_when(e);
        ox_effects_follow(e);
        if (e->found_count != e->task->use_count) {
            ox_effects_reject(e, "has uses that its work does not need");
        }
    }
    if (usual && e->moved_bytes != e->task->bytes) {
        ox_effects_reject(e, "states another number of bytes than it moves");
    }
}

static enum ox_status follow_case(struct effects *e, bool usual) {
    char words[OX_PROOF_CASE_TEXT];
    begin(e);
    for (uint32_t i = 0; i < e->plan->task_count; i++) {
        e->task = &e->plan->tasks[i];
        follow_task(e, usual);
        if (e->wrong != NULL) {
            char text[2 * OX_PROOF_CASE_TEXT];
            ox_proof_case_text(e->plan, e->at, words);
            snprintf(text, sizeof text, "%s, where %s", e->wrong, words);
            return ox_proof_fault(e->plan, i, text);
        }
    }
    const char *const wrong = end(e);
    ox_proof_case_text(e->plan, e->at, words);
    return wrong == NULL ? OX_OK
                         : ox_fail(OX_E_CONFIG, "plan is wrong: %s, where %s; please report this", wrong, words);
}

/* ---- sizes and traffic ------------------------------------------------------------------------ */

/* Checks that a buffer that is not resident is as large as the largest thing that it has held. */
static enum ox_status check_sizes(const struct effects *e) {
    for (uint32_t i = 0; i < e->plan->buf_count; i++) {
        const struct ox_buf *const buf = &e->plan->bufs[i];
        const bool spooled = buf->kind == OX_BUF_GRAD && buf->tier == OX_TIER_NVME; /* sized as its extent */
        const uint64_t bytes = ox_align_up(e->largest_bytes[i], OX_IO_ALIGN_BYTES);
        if (!buf->resident && !spooled && bytes > 0 && buf->bytes != bytes) {
            return ox_fail(OX_E_CONFIG, "plan is wrong: buffer %u (%s) of unit %d has %llu bytes and holds %llu; "
                           "please report this", i, ox_buf_name((enum ox_buf_kind)buf->kind), (int)buf->unit_idx,
                           (unsigned long long)buf->bytes, (unsigned long long)e->largest_bytes[i]);
        }
    }
    return OX_OK;
}

static enum ox_status check_traffic(const struct effects *e) {
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            if (e->traffic[link][kind] != e->plan->traffic[link][kind]) {
                return ox_fail(OX_E_CONFIG, "plan is wrong: it states %llu bytes of %s over %s, and its tasks move "
                               "%llu; please report this", (unsigned long long)e->plan->traffic[link][kind],
                               ox_traffic_name((enum ox_traffic_kind)kind), ox_link_name((enum ox_link)link),
                               (unsigned long long)e->traffic[link][kind]);
            }
        }
    }
    return OX_OK;
}

/* ---- all cases -------------------------------------------------------------------------------- */

/* Sets which units are due. An update can be stopped after any unit. The tasks of a unit need nothing of another unit,
 * so checking one half of the units and then the other half shows as much as checking every place to stop. */
enum { HALVES_COUNT = 4 };
static void set_due(struct effects *e, uint32_t nth) {
    for (uint32_t i = 0; i < e->plan->unit_count; i++) {
        const bool is_done = e->at.stopped && (nth >> (i % 2) & 1) == 0;
        e->due[i] = (uint8_t)(is_done || !ox_proof_holds(e->in, i) ? OX_DUE_NOTHING : ox_proof_left(e->in, e->at, i));
    }
}

static enum ox_status follow_all(struct effects *e) {
    e->at = ox_proof_usual(e->plan, e->in);
    if (!ox_proof_occurs(e->plan, e->in, e->at)) {
        return ox_fail(OX_E_CONFIG, "plan is wrong: its steps can neither be committed, as state lives on the device, "
                       "nor stay uncommitted, for which the drives have no slot; please report this");
    }
    set_due(e, 0);
    enum ox_status status = follow_case(e, true);
    status = status == OX_OK ? check_traffic(e) : status;
    for (uint32_t number = 0; number < OX_PROOF_CASES && status == OX_OK; number++) {
        e->at = ox_proof_case_at(number);
        const uint32_t count = !ox_proof_occurs(e->plan, e->in, e->at) ? 0 : e->at.stopped ? HALVES_COUNT : 1;
        for (uint32_t i = 0; i < count && status == OX_OK; i++) {
            set_due(e, i);
            status = follow_case(e, false);
        }
    }
    return status == OX_OK ? check_sizes(e) : status;
}

static enum ox_status check_tasks(struct effects *e) {
    for (uint32_t i = 0; i < e->plan->task_count; i++) {
        e->task = &e->plan->tasks[i];
        if (!fits_rule(e)) {
            return ox_proof_fault(e->plan, i, "has a lane, a unit or a micro-batch that its kind cannot have");
        }
    }
    return OX_OK;
}

static enum ox_status check_all(struct effects *e) {
    if (!has_homes(e)) {
        return ox_fail(OX_E_CONFIG, "plan is wrong: its resident buffers are not what the homes say; please "
                       "report this");
    }
    const enum ox_status status = check_tasks(e);
    return status == OX_OK ? follow_all(e) : status;
}

enum ox_status ox_proof_check_effects(const struct ox_plan *plan, const struct ox_plan_input *input) {
    struct effects e = {.plan = plan, .in = input};
    e.train = plan->kind == OX_PLAN_TRAIN;
    e.store = input->budget.nvme_bytes > 0;
    e.overlap = plan->kind != OX_PLAN_EVAL && input->placement.overlap;
    e.held = calloc(plan->buf_count + 1u, sizeof *e.held);
    e.only = calloc(plan->buf_count + 1u, sizeof *e.only);
    e.largest_bytes = calloc(plan->buf_count + 1u, sizeof *e.largest_bytes);
    e.updated = calloc(3 * (size_t)plan->unit_count, 1);
    e.reduced = e.updated == NULL ? NULL : e.updated + plan->unit_count;
    e.due = e.updated == NULL ? NULL : e.reduced + plan->unit_count;
    e.keeps = calloc(plan->stage_count, sizeof *e.keeps);
    e.loaned = calloc((size_t)plan->unit_count + plan->grad_count, sizeof *e.loaned);
    e.crossed = calloc(CROSSED_KINDS * (size_t)plan->stage_count, sizeof *e.crossed);
    e.sum_steps = calloc(2 * (size_t)plan->micro_batches + 2, sizeof *e.sum_steps);
    for (uint32_t i = 0; i < plan->stage_count && e.keeps != NULL; i++) {
        e.keeps[i] = ox_proof_keeps(input, plan->kind, i);
    }
    e.sum_step_count = e.sum_steps == NULL ? 0 : ox_proof_sum_steps(input, e.sum_steps);
    const bool room = e.sum_steps != NULL && e.held != NULL && e.only != NULL && e.largest_bytes != NULL &&
                      e.updated != NULL && e.keeps != NULL && e.crossed != NULL && e.loaned != NULL;
    const enum ox_status status =
        room ? check_all(&e) : ox_fail(OX_E_NOMEM, "plan checker: no memory for %u buffers", plan->buf_count);
    free(e.sum_steps);
    free(e.loaned);
    free(e.crossed);
    free(e.keeps);
    free(e.updated);
    free(e.largest_bytes);
    free(e.held);
    free(e.only);
    return status;
}
