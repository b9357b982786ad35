/* Activations: checkpoints between forward and backward, and what crosses between the ranks of a pipeline, or between
 * parts of a model.
 *
 * What arrives from another rank takes its place in the list where it can be there, not where it is used: when each
 * rank's work begins and ends is followed without the time of transfers (ox_pipe_time), and a transfer is listed on
 * both sides as soon as what it carries has been made. So no rank waits in its list for one that waits for it; the
 * proof shows it of every list. */
#include "offload/plan/builder.h"

#include <stdlib.h>
#include <string.h>

/* ---- activation checkpoints ------------------------------------------------------------------- */

/* Names activations of one micro-batch: an activation checkpoint, which is the input of a stage, or what another part
 * of the model takes from this stage or gives to it. */
struct act {
    uint32_t stage_idx, mb_idx;
};

uint32_t *ox_build_act_slot(const struct ox_builder *b, uint32_t *slots, uint32_t stage_idx, uint32_t mb_idx) {
    return &slots[stage_idx * b->plan->micro_batches + mb_idx];
}

/* Whether the input stays in compute memory. It also does where a block keeps activations, which take more room. */
static bool act_stays(const struct ox_builder *b, uint32_t stage_idx) {
    return b->in->placement.act_tier == OX_TIER_DEVICE || b->in->placement.act_tier == b->compute ||
           b->scratch->keeps[stage_idx];
}

static void move_act(struct ox_builder *b, enum ox_move what, struct act act, enum ox_lane_id route, uint32_t source,
                     uint32_t target) {
    struct ox_task *const task = ox_build_move(b, what, route, source, target);
    task->stage_idx = act.stage_idx;
    task->mb_idx = act.mb_idx;
    ox_build_count_move(b, task);
}

/* Whether the backward of a stage starts from the input of this one. */
static bool starts_backward(const struct ox_builder *b, uint32_t stage_idx) {
    uint32_t last = stage_idx; /* of those that would */
    while (last + 1 < b->in->model.stage_count && ox_build_stage(b, last + 1)->starts_back == last + 1 - stage_idx) {
        last++;
    }
    return b->train && last >= b->first_back && ox_build_stage(b, stage_idx)->saves_input;
}

/* Writes what is in host memory to the drives. */
static void spool_act(struct ox_builder *b, uint32_t stage_idx, uint32_t mb_idx) {
    const uint64_t bytes = ox_build_stage(b, stage_idx)->input_bytes;
    uint32_t *const slot = ox_build_act_slot(b, b->scratch->act, stage_idx, mb_idx);
    const uint32_t spool = ox_build_stage_buf(b, OX_BUF_ACT, OX_TIER_NVME, bytes, stage_idx);
    b->plan->spool_bytes[ox_plan_spool_act(b->plan, stage_idx, mb_idx)] = ox_align_up(bytes, OX_IO_ALIGN_BYTES);
    move_act(b, OX_MOVE_ACT, (struct act){stage_idx, mb_idx}, OX_LANE_NVME_WRITE, *slot, spool);
    *ox_build_act_slot(b, b->scratch->act_spool, stage_idx, mb_idx) = spool;
    *slot = OX_NONE;
}

void ox_build_save_act(struct ox_builder *b, uint32_t stage_idx, uint32_t mb_idx, uint32_t x) {
    if (!starts_backward(b, stage_idx)) {
        return;
    }
    const uint64_t bytes = ox_build_stage(b, stage_idx)->input_bytes;
    uint32_t *const slot = ox_build_act_slot(b, b->scratch->act, stage_idx, mb_idx);
    *slot = x;
    if (act_stays(b, stage_idx)) {
        return;
    }
    /* The host needs the routes when it updates, and by then the device's buffer has other uses. */
    if (!ox_build_unified(b)) {
        *slot = ox_build_stage_buf(b, OX_BUF_ACT, OX_TIER_HOST, bytes, stage_idx);
        move_act(b, OX_MOVE_ACT, (struct act){stage_idx, mb_idx}, OX_LANE_D2H, x, *slot);
    }
    if (b->in->placement.act_tier == OX_TIER_NVME) {
        spool_act(b, stage_idx, mb_idx);
    }
}

uint32_t ox_build_load_act(struct ox_builder *b, uint32_t stage_idx, uint32_t mb_idx) {
    const uint64_t bytes = ox_build_stage(b, stage_idx)->input_bytes;
    uint32_t at = *ox_build_act_slot(b, b->scratch->act, stage_idx, mb_idx);
    if (act_stays(b, stage_idx)) {
        return at;
    }
    if (b->in->placement.act_tier == OX_TIER_NVME) {
        at = ox_build_stage_buf(b, OX_BUF_ACT, OX_TIER_HOST, bytes, stage_idx);
        const uint32_t spool = *ox_build_act_slot(b, b->scratch->act_spool, stage_idx, mb_idx);
        move_act(b, OX_MOVE_ACT, (struct act){stage_idx, mb_idx}, OX_LANE_NVME_READ, spool, at);
        if (ox_build_unified(b)) {
            return at;
        }
    }
    const uint32_t target = ox_build_stage_buf(b, OX_BUF_ACT, OX_TIER_DEVICE, bytes, stage_idx);
    move_act(b, OX_MOVE_ACT, (struct act){stage_idx, mb_idx}, OX_LANE_H2D, at, target);
    return target;
}

uint32_t ox_build_dx_buf(struct ox_builder *b, uint32_t stage_idx) {
    uint64_t bytes = ox_build_stage(b, stage_idx)->output_bytes;
    for (uint32_t i = stage_idx + 1; i > b->first_back && ox_plan_computes(b->in, i - 1); i--) {
        bytes = ox_max_u64(bytes, ox_build_stage(b, i - 1)->input_bytes);
    }
    return ox_build_buf(b, OX_BUF_ACT, b->compute, bytes, OX_NONE);
}

/* ---- the ranks of a pipeline ------------------------------------------------------------------------ */

/* Whether the stage's input is made by another rank, and its gradient goes back to one. */
static bool comes_from_rank(const struct ox_builder *b, uint32_t stage_idx) {
    return stage_idx > 0 && ox_plan_computes(b->in, stage_idx) && !ox_plan_computes(b->in, stage_idx - 1);
}
static bool goes_to_rank(const struct ox_builder *b, uint32_t stage_idx) {
    return stage_idx > 0 && !ox_plan_computes(b->in, stage_idx) && ox_plan_computes(b->in, stage_idx - 1);
}

/* Sends the input of a stage, or its gradient, to the rank that computes another stage, or receives it from there. */
static void transfer(struct ox_builder *b, enum ox_move what, struct act act, uint32_t other_stage, uint32_t source,
                     uint32_t target) {
    const enum ox_lane_id lane = source == OX_NONE ? OX_LANE_LINK_IN : OX_LANE_LINK_OUT;
    struct ox_task *const task = ox_build_move(b, what, lane, source, target);
    task->stage_idx = act.stage_idx;
    task->mb_idx = act.mb_idx;
    task->peer = ox_plan_stage_owner(b->in, other_stage);
    ox_build_count_move(b, task);
}

/* ---- a head's units of another rank ----------------------------------------------------------------------- */

static bool lends(const struct ox_builder *b, uint32_t unit_idx) {
    return ox_build_holds(b, unit_idx) && ox_plan_borrower(b->in, unit_idx) != OX_NONE;
}

/* Sends what a head's rank borrows or gives back, or receives it; the caller fills in the gradient and counts. */
static struct ox_task *loan(struct ox_builder *b, enum ox_move what, uint32_t unit_idx, uint32_t source,
                            uint32_t target) {
    const enum ox_lane_id lane = source == OX_NONE ? OX_LANE_LINK_IN : OX_LANE_LINK_OUT;
    const uint32_t owner = ox_plan_owner(&b->in->ranks, unit_idx), borrower = ox_plan_borrower(b->in, unit_idx);
    struct ox_task *const task = ox_build_move(b, what, lane, source, target);
    task->unit_idx = unit_idx;
    task->last = what == OX_MOVE_GRAD;
    task->peer = ox_build_holds(b, unit_idx) ? borrower : owner;
    return task;
}

void ox_build_borrow(struct ox_builder *b) {
    const struct ox_plan_stage *const first = ox_build_stage(b, 0);
    for (uint32_t k = 0; k < first->unit_count; k++) {
        const uint32_t unit_idx = first->units[k].unit_idx;
        if (ox_build_borrows(b, unit_idx)) {
            const uint32_t at = ox_build_buf(b, OX_BUF_GATHERED, b->compute,
                                             ox_plan_whole_weight_bytes(b->in, unit_idx), unit_idx);
            ox_build_count_move(b, loan(b, OX_MOVE_WEIGHTS, unit_idx, OX_NONE, at));
            b->scratch->gathered[unit_idx] = at;
        }
    }
}

void ox_build_lend(struct ox_builder *b, uint32_t unit_idx, uint32_t at) {
    if (lends(b, unit_idx)) {
        struct ox_task *const task = loan(b, OX_MOVE_WEIGHTS, unit_idx, at, OX_NONE);
        if (ox_build_homes(b, unit_idx)->weights == b->compute && ox_build_rules(b, unit_idx)->lo_in_state &&
            !ox_build_rules(b, unit_idx)->gathers) {
            ox_build_reads(task, b->scratch->state_home[unit_idx], OX_USE_STATE);
        }
        ox_build_count_move(b, task);
    }
}

void ox_build_give_back(struct ox_builder *b, uint32_t grad_idx) {
    struct ox_task *const task = loan(b, OX_MOVE_GRAD, ox_build_grad(b, grad_idx)->unit_idx,
                                      b->scratch->grad_live[grad_idx], OX_NONE);
    task->grad_idx = grad_idx;
    ox_build_count_move(b, task);
}

/* ---- what arrives ------------------------------------------------------------------------------------------- */

/* Receives the input of a stage. Where its activation checkpoint has its home in host memory or beyond, it goes there
 * at once, and compute takes it from there. */
static void receive_act(struct ox_builder *b, struct act act) {
    const uint64_t bytes = ox_build_stage(b, act.stage_idx)->input_bytes;
    const bool saved = starts_backward(b, act.stage_idx), away = saved && !act_stays(b, act.stage_idx);
    const uint32_t buf_idx = ox_build_stage_buf(b, OX_BUF_ACT, away ? OX_TIER_HOST : b->compute, bytes, act.stage_idx);
    transfer(b, OX_MOVE_OUTSIDE_ACT, act, act.stage_idx - 1, OX_NONE, buf_idx);
    *ox_build_act_slot(b, b->scratch->arrived, act.stage_idx, act.mb_idx) = buf_idx;
    if (saved) {
        *ox_build_act_slot(b, b->scratch->act, act.stage_idx, act.mb_idx) = buf_idx;
    }
    if (away && b->in->placement.act_tier == OX_TIER_NVME) {
        spool_act(b, act.stage_idx, act.mb_idx);
    }
}

static void receive_dx(struct ox_builder *b, struct act act) {
    const uint32_t dx = ox_build_dx_buf(b, act.stage_idx - 1);
    transfer(b, OX_MOVE_OUTSIDE_DX, act, act.stage_idx, OX_NONE, dx);
    *ox_build_act_slot(b, b->scratch->arrived_dx, act.stage_idx, act.mb_idx) = dx;
}

/* What the head's rank has summed goes the way that the rank's own sum of it would. */
static void receive_grad(struct ox_builder *b, uint32_t grad_idx) {
    struct ox_task *const task = loan(b, OX_MOVE_GRAD, ox_build_grad(b, grad_idx)->unit_idx, OX_NONE,
                                      ox_build_grad_take(b, grad_idx));
    task->grad_idx = grad_idx;
    ox_build_count_move(b, task);
    ox_build_grad_end(b, 0, grad_idx);
}

/* What makes a transfer, as an entry of times: the input of a stage is made by the forward before; the gradient of the
 * input of a stage by its backward, or by the head, as the last of a sum is. */
static uint64_t made_at(const struct ox_builder *b, const struct ox_build_arrival *arrival) {
    const uint32_t maker = arrival->what == OX_ARRIVES_ACT ? arrival->stage_idx - 1 : arrival->stage_idx;
    const bool backward = arrival->what == OX_ARRIVES_DX && ox_build_stage(b, maker)->kind != OX_PLAN_HEAD;
    return b->scratch->times.end[ox_pipe_entry(&b->in->model, maker, arrival->mb_idx, backward)];
}

static int by_time(const void *a, const void *b, void *context) {
    const struct ox_builder *const builder = context;
    const struct ox_build_arrival *const left = a, *const right = b;
    const uint64_t x = made_at(builder, left), y = made_at(builder, right);
    return x != y ? (x < y ? -1 : 1)
           : left->what != right->what           ? (left->what < right->what ? -1 : 1)
           : left->stage_idx != right->stage_idx ? (left->stage_idx < right->stage_idx ? -1 : 1)
           : left->mb_idx != right->mb_idx       ? (left->mb_idx < right->mb_idx ? -1 : 1)
                                                 : (left->nth < right->nth ? -1 : 1);
}

/* Lists the gradients of units on loan, which the head's rank gives in the order of its stage units. */
static void list_grads(struct ox_builder *b) {
    const uint32_t head_idx = b->plan->stage_count - 1;
    const struct ox_plan_stage *const head = ox_build_stage(b, head_idx);
    for (uint32_t k = 0; k < head->unit_count && b->train; k++) {
        const struct ox_plan_stage_unit *const use = &head->units[k];
        if (use->grad_idx != OX_NONE && lends(b, use->unit_idx)) {
            b->scratch->arrivals[b->arrival_count++] = (struct ox_build_arrival){
                head_idx, b->plan->micro_batches - 1, OX_ARRIVES_GRAD, k};
        }
    }
}

/* Lists what arrives from other ranks, in the order in which it is made. */
static void list_arrivals(struct ox_builder *b) {
    struct ox_plan_scratch *const s = b->scratch;
    for (uint32_t i = 1; i < b->plan->stage_count; i++) {
        const bool is_dx = goes_to_rank(b, i) && b->train && i > b->first_back;
        for (uint32_t mb_idx = 0; mb_idx < b->plan->micro_batches && (comes_from_rank(b, i) || is_dx); mb_idx++) {
            s->arrivals[b->arrival_count++] = (struct ox_build_arrival){i, mb_idx,
                                                                       is_dx ? OX_ARRIVES_DX : OX_ARRIVES_ACT, 0};
        }
    }
    list_grads(b);
    qsort_r(s->arrivals, b->arrival_count, sizeof *s->arrivals, by_time, b);
}

/* No rank may wait for a commit of all before it has done what others wait for in front of theirs: the last update
 * comes at the latest where forward meets its unit first. */
static void set_commit_time(struct ox_builder *b) {
    for (uint32_t i = 0; i < b->in->model.unit_count; i++) {
        const struct ox_plan_unit *const unit = ox_build_unit(b, i);
        if (unit->trained) {
            const uint64_t entry = ox_pipe_entry(&b->in->model, unit->stage_idx, 0, false);
            b->commit_time = ox_max_u64(b->commit_time, b->scratch->times.begin[entry]);
        }
    }
}

static void commit_by(struct ox_builder *b, uint64_t time) {
    if (!b->committed && time > b->commit_time) {
        b->committed = true;
        ox_build_pipe_commit(b);
    }
}

void ox_build_end_visits(struct ox_builder *b) {
    if (ox_plan_pipe(b->in) > 1) {
        commit_by(b, UINT64_MAX);
    }
}

void ox_build_visits(struct ox_builder *b) {
    struct ox_plan_scratch *const s = b->scratch;
    const size_t acts = (size_t)b->plan->stage_count * b->plan->micro_batches * sizeof *s->arrived;
    if (ox_plan_pipe(b->in) > 1) {
        memset(s->arrived, 0xff, acts); /* OX_NONE */
        memset(s->arrived_dx, 0xff, acts);
        b->in_circle = !ox_pipe_time(b->in, b->train, &s->room, s->visits, &s->times);
        list_arrivals(b);
        set_commit_time(b);
    }
    b->visit_count = ox_pipe_visits(b->in, ox_plan_pipe_at(b->in), b->train, &s->room, s->visits);
}

/* Receives what was made by this time. Where ranks wait for each other in a circle, for which the proof refuses the
 * plan, it is all that arrives. */
static void receive_until(struct ox_builder *b, uint64_t time) {
    const struct ox_plan_scratch *const s = b->scratch;
    for (; b->arrived < b->arrival_count && (b->in_circle || made_at(b, &s->arrivals[b->arrived]) <= time);
         b->arrived++) {
        const struct ox_build_arrival *const arrival = &s->arrivals[b->arrived];
        if (arrival->what == OX_ARRIVES_GRAD) {
            receive_grad(b, ox_build_stage(b, arrival->stage_idx)->units[arrival->nth].grad_idx);
            continue;
        }
        (arrival->what == OX_ARRIVES_DX ? receive_dx
                                        : receive_act)(b, (struct act){arrival->stage_idx, arrival->mb_idx});
    }
}

/* What is made while the task runs has its place by then, so that nobody waits for memory that the task still uses. */
void ox_build_before(struct ox_builder *b, uint32_t stage_idx, uint32_t mb_idx, bool backward) {
    if (ox_plan_pipe(b->in) > 1) {
        const uint64_t entry = ox_pipe_entry(&b->in->model, stage_idx, mb_idx, backward);
        receive_until(b, b->scratch->times.end[entry] - 1);
        commit_by(b, b->scratch->times.begin[entry]);
    }
}

/* What is made when the task ends is received before the task's own result is sent: two ranks may send to each
 * other, each into the place of what it sends. */
void ox_build_after(struct ox_builder *b, uint32_t stage_idx, uint32_t mb_idx, bool backward) {
    if (ox_plan_pipe(b->in) > 1) {
        receive_until(b, b->scratch->times.end[ox_pipe_entry(&b->in->model, stage_idx, mb_idx, backward)]);
    }
}

/* What is made until all ranks meet behind their forwards is received before: each waits there for the last of them. */
void ox_build_before_sharing(struct ox_builder *b) {
    uint64_t time = 0;
    for (uint32_t i = 0; i < b->plan->stage_count; i++) {
        for (uint32_t k = 0; k < b->plan->micro_batches; k++) {
            time = ox_max_u64(time, b->scratch->times.end[ox_pipe_entry(&b->in->model, i, k, false)]);
        }
    }
    receive_until(b, time);
    commit_by(b, time);
}

/* Brings what has arrived to where compute reads it. */
static void bring_x(struct ox_builder *b, uint32_t stage_idx, uint32_t mb_idx) {
    uint32_t *const slot = ox_build_act_slot(b, b->scratch->arrived, stage_idx, mb_idx);
    if (*slot != OX_NONE && b->plan->bufs[*slot].tier != b->compute) {
        const uint64_t bytes = ox_build_stage(b, stage_idx)->input_bytes;
        const uint32_t target = ox_build_stage_buf(b, OX_BUF_ACT, OX_TIER_DEVICE, bytes, stage_idx);
        move_act(b, OX_MOVE_ACT, (struct act){stage_idx, mb_idx}, OX_LANE_H2D, *slot, target);
        *slot = target;
    }
}

/* ---- the ends of a stage ----------------------------------------------------------------------------- */

void ox_build_take_x(struct ox_builder *b, uint32_t stage_idx, uint32_t mb_idx, uint32_t mb_past) {
    struct ox_plan_scratch *const s = b->scratch;
    if (stage_idx == 0 && ox_plan_has_outside_input(&b->in->model)) {
        const uint32_t x = ox_build_stage_buf(b, OX_BUF_ACT, b->compute, ox_build_stage(b, 0)->input_bytes, 0);
        move_act(b, OX_MOVE_OUTSIDE_ACT, (struct act){0, mb_idx}, OX_LANE_H2D, OX_NONE, x);
        s->x[mb_idx] = x;
        ox_build_save_act(b, 0, mb_idx, x);
    } else if (comes_from_rank(b, stage_idx)) {
        OX_ASSERT(*ox_build_act_slot(b, s->arrived, stage_idx, mb_idx) != OX_NONE);
        bring_x(b, stage_idx, mb_idx);
        s->x[mb_idx] = *ox_build_act_slot(b, s->arrived, stage_idx, mb_idx);
        if (mb_idx + 1 < mb_past && b->in->placement.prefetch_depth > 0) {
            bring_x(b, stage_idx, mb_idx + 1);
        }
    }
}

void ox_build_pass_on(struct ox_builder *b, uint32_t stage_idx, uint32_t mb_idx, uint32_t y) {
    const struct act act = {stage_idx + 1, mb_idx};
    b->scratch->x[mb_idx] = y;
    if (stage_idx + 1 == b->in->model.stage_count) {
        move_act(b, OX_MOVE_OUTSIDE_ACT, (struct act){stage_idx, mb_idx}, OX_LANE_D2H, y, OX_NONE);
    } else if (goes_to_rank(b, stage_idx + 1)) {
        transfer(b, OX_MOVE_OUTSIDE_ACT, act, act.stage_idx, y, OX_NONE);
    } else {
        ox_build_save_act(b, stage_idx + 1, mb_idx, y);
    }
}

void ox_build_begin_dx(struct ox_builder *b, uint32_t stage_idx, uint32_t mb_idx) {
    if (stage_idx + 1 == b->in->model.stage_count) {
        const uint32_t dx = ox_build_dx_buf(b, stage_idx);
        move_act(b, OX_MOVE_OUTSIDE_DX, (struct act){stage_idx, mb_idx}, OX_LANE_H2D, OX_NONE, dx);
        b->scratch->dx[mb_idx] = dx;
    } else if (goes_to_rank(b, stage_idx + 1)) {
        b->scratch->dx[mb_idx] = *ox_build_act_slot(b, b->scratch->arrived_dx, stage_idx + 1, mb_idx);
    }
}

void ox_build_end_dx(struct ox_builder *b, uint32_t stage_idx, uint32_t mb_idx) {
    const struct act act = {stage_idx, mb_idx};
    if (stage_idx == 0 && ox_plan_has_outside_input(&b->in->model)) {
        move_act(b, OX_MOVE_OUTSIDE_DX, act, OX_LANE_D2H, b->scratch->dx[mb_idx], OX_NONE);
    } else if (comes_from_rank(b, stage_idx) && stage_idx > b->first_back) {
        transfer(b, OX_MOVE_OUTSIDE_DX, act, stage_idx - 1, b->scratch->dx[mb_idx], OX_NONE);
    }
}

/* ---- stages that may have no rows ---------------------------------------------------------------- */

/* Stages that may have no rows, such as a group of experts: the forward of a stage before them finds how many they
 * have, and backward leaves out the transfers of weights that nothing would read. The list is the same in every step;
 * the tasks ask when they are issued.
 *
 * A transfer asks where the answer comes before it in the list. The first transfers of backward are listed while the
 * last forwards still run, and do not ask. Where ranks have slices each gives its own to the others, whose rows it does
 * not know: nobody asks there. */

static struct ox_build_routes *routes_of(const struct ox_builder *b, uint32_t stage_idx, uint32_t mb_first) {
    return &b->scratch->routes[stage_idx * b->plan->micro_batches + mb_first];
}

/* Whether weights of the stage's units move before compute reads them. */
static bool moves_weights(const struct ox_builder *b, const struct ox_plan_stage *stage) {
    bool moves = false;
    for (uint32_t nth = 0; nth < stage->unit_count; nth++) {
        moves = moves || ox_build_homes(b, stage->units[nth].unit_idx)->weights != b->compute;
    }
    return moves;
}

/* Whether some stage behind this one asks it. */
static bool is_asked(const struct ox_builder *b, uint32_t stage_idx) {
    bool asked = false;
    for (uint32_t i = stage_idx + 1; i < b->in->model.stage_count && ox_build_stage(b, i)->routed_back == i - stage_idx;
         i++) {
        asked = asked || (i >= b->first_back && ox_plan_computes(b->in, i) && moves_weights(b, ox_build_stage(b, i)));
    }
    return asked && b->train && ox_plan_holders(b->in) == 1;
}

/* Whether the next visit, of another stage, finds weights of this one where they are: it may have rows. */
static bool hands_on(const struct ox_builder *b, const struct ox_pipe_visit *visit) {
    const struct ox_plan_stage *const stage = ox_build_stage(b, visit->stage_idx);
    const bool is_last = visit + 1 == b->scratch->visits + b->visit_count;
    bool hands = false;
    for (uint32_t i = 0; !is_last && visit[1].stage_idx != visit->stage_idx && i < stage->unit_count; i++) {
        const struct ox_plan_stage *const next = ox_build_stage(b, visit[1].stage_idx);
        for (uint32_t k = 0; k < next->unit_count; k++) {
            hands = hands || next->units[k].unit_idx == stage->units[i].unit_idx;
        }
    }
    return hands;
}

void ox_build_set_asks(struct ox_builder *b, const struct ox_pipe_visit *visit) {
    const uint32_t back = ox_build_stage(b, visit->stage_idx)->routed_back;
    b->asks = (struct ox_task){.asks_stage = OX_NONE};
    if (!visit->backward || back == 0 || hands_on(b, visit) || !ox_plan_computes(b->in, visit->stage_idx - back)) {
        return;
    }
    const struct ox_build_routes *const routes = routes_of(b, visit->stage_idx - back, visit->mb_first);
    if (routes->task != 0 && routes->mb_past == visit->mb_past) {
        b->asks_buf = routes->buf_idx;
        b->asks.asks_stage = visit->stage_idx;
        b->asks.asks = routes->task;
        b->asks.mb_first = visit->mb_first;
        b->asks.mb_past = visit->mb_past;
    }
}

void ox_build_ask(const struct ox_builder *b, struct ox_task *task) {
    if (b->asks.asks_stage != OX_NONE) {
        ox_build_reads(task, b->asks_buf, OX_USE_ROUTES);
        task->asks_stage = b->asks.asks_stage;
        task->asks = b->asks.asks;
        task->mb_first = b->asks.mb_first;
        task->mb_past = b->asks.mb_past;
    }
}

uint32_t ox_build_routes_begin(struct ox_builder *b, const struct ox_pipe_visit *visit) {
    const uint64_t bytes = ox_build_stage(b, visit->stage_idx)->routes_bytes;
    return bytes > 0 && is_asked(b, visit->stage_idx)
               ? ox_build_stage_buf(b, OX_BUF_SMALL, b->compute, bytes * (visit->mb_past - visit->mb_first),
                                    visit->stage_idx)
               : OX_NONE;
}

void ox_build_routes_leave(struct ox_task *task, uint32_t buf_idx, uint32_t mb_first) {
    if (buf_idx != OX_NONE) {
        (task->mb_idx == mb_first ? ox_build_writes : ox_build_updates)(task, buf_idx, OX_USE_ROUTES);
        task->mb_first = mb_first;
    }
}

/* Called behind the last of these tasks, and what it gave to others. */
void ox_build_routes_end(struct ox_builder *b, const struct ox_pipe_visit *visit, uint32_t buf_idx) {
    if (buf_idx == OX_NONE) {
        return;
    }
    uint32_t at = buf_idx, task_idx = b->plan->task_count;
    if (!ox_build_unified(b)) {
        at = ox_build_stage_buf(b, OX_BUF_SMALL, OX_TIER_HOST, b->plan->bufs[buf_idx].bytes, visit->stage_idx);
        struct ox_task *const task = ox_build_move(b, OX_MOVE_ROUTES, OX_LANE_D2H, buf_idx, at);
        task->stage_idx = visit->stage_idx;
        task->mb_first = visit->mb_first;
        task->mb_past = visit->mb_past;
        ox_build_count_move(b, task);
    } else {
        /* There is no move to wait for, so the forward that wrote them is the task to wait for. */
        const struct ox_task *task = &b->plan->tasks[task_idx - 1];
        while (task->kind != OX_TASK_FORWARD || task->stage_idx != visit->stage_idx) {
            task--;
        }
        task_idx = (uint32_t)(task - b->plan->tasks);
    }
    *routes_of(b, visit->stage_idx, visit->mb_first) =
        (struct ox_build_routes){.buf_idx = at, .task = task_idx + 1, .mb_past = visit->mb_past};
}
