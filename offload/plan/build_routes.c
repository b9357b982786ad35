/* Stages that may have no rows, such as a group of experts: the forward of a stage before them finds how many they
 * have, and backward leaves out the transfers of weights that nothing would read. The list is the same in every step;
 * the tasks ask when they are issued.
 *
 * A transfer asks where the answer comes before it in the list. The first transfers of backward are listed while the
 * last forwards still run, and do not ask. Where ranks have slices each gives its own to the others, whose rows it does
 * not know: nobody asks there. */
#include "offload/plan/builder.h"

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
    return asked && b->train && !ox_plan_gathers(b->in);
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
        const struct ox_task *task = &b->plan->tasks[task_idx - 1];
        while (task->kind != OX_TASK_FORWARD || task->stage_idx != visit->stage_idx) {
            task--;
        }
        task_idx = (uint32_t)(task - b->plan->tasks);
    }
    *routes_of(b, visit->stage_idx, visit->mb_first) =
        (struct ox_build_routes){.buf_idx = at, .task = task_idx + 1, .mb_past = visit->mb_past};
}
