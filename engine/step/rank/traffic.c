/* Bytes that cross links: counted, and what a step should move, which differs with what the step before has left. */
#include "engine/step/rank/rank.h"

#include <string.h>

void ox_rank_count(struct ox_rank *rank, enum ox_link link, enum ox_traffic_kind kind, uint64_t bytes) {
    if (rank->config.budget.unified && (link == OX_LINK_H2D || link == OX_LINK_D2H)) {
        return;
    }
    __atomic_fetch_add(&rank->traffic.crossed[link][kind], bytes, __ATOMIC_RELAXED);
}

bool ox_rank_from_store(const struct ox_rank *rank, uint32_t facts, uint32_t unit_idx) {
    return (facts & OX_FACT_FROM_MEMORY) == 0 && ox_rank_rules(rank, unit_idx)->returns_to_drives;
}

typedef uint64_t traffic_row[OX_TRAFFIC_KIND_COUNT];

/* What an optimizer's task finds in a step: the facts, and what of its unit is due. */
struct finds {
    uint32_t facts;
    enum ox_due due;
    bool stays; /* the update is not committed */
};

static void add_adam(const struct ox_rank *rank, const struct ox_task *task, struct finds finds, traffic_row *out) {
    const struct ox_adam_work work = {.updates = ox_task_has_due(task, finds.due),
                                      .grad_at_rest = !ox_rank_overlaps(rank) || task->carried,
                                      .stays = finds.stays,
                                      .from_store = task->carried &&
                                                    ox_rank_from_store(rank, finds.facts, task->unit_idx)};
    ox_plan_adam_traffic(rank->step.plan, &rank->plan->input, task->unit_idx, work, out);
}

/* Adds what a task moves, if its work differs from step to step. */
static void add_task(const struct ox_rank *rank, const struct ox_task *task, struct finds finds, traffic_row *out) {
    const struct ox_plan_input *const input = &rank->plan->input;
    if (!ox_task_works(task, finds.facts, finds.due)) {
        return;
    }
    if (ox_task_updates_on_host(task)) {
        add_adam(rank, task, finds, out);
    } else if (task->kind == OX_TASK_MOVE && (task->move == OX_MOVE_PLANES || task->move == OX_MOVE_NONFINITE)) {
        out[ox_lane_link((enum ox_lane_id)task->lane)][ox_task_traffic(task)] += ox_plan_move_bytes(input, task);
    } else if (task->kind == OX_TASK_COMMIT) {
        out[OX_LINK_NVME_WRITE][OX_TRAFFIC_STATE] += ox_low_rank_stored_bytes(input);
    } else if (task->lane == OX_LANE_LINK && (task->when & (OX_FACT_EXACT | OX_FACT_LOW_RANK)) != 0) {
        const struct ox_peer_bytes bytes = ox_plan_peer_bytes(rank->step.plan, input, task);
        out[OX_LINK_PEER_IN][ox_task_traffic(task)] += bytes.in;
        out[OX_LINK_PEER_OUT][ox_task_traffic(task)] += bytes.out;
    }
}

static struct finds finds_now(const struct ox_rank *rank, const struct ox_task *task) {
    const struct ox_step_state *const step = &rank->step;
    return (struct finds){.facts = step->facts,
                          .due = ox_rank_due_now(rank, task),
                          .stays = task->carried ? step->pending_stays : step->input->stays};
}

void ox_rank_planned(const struct ox_rank *rank, uint64_t out[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]) {
    const struct ox_plan *const plan = rank->step.plan;
    const struct ox_step_case usual = ox_usual_case(&rank->plan->input, plan->kind, (struct ox_step_ways){0});
    const bool between = ox_plan_commits_between(&rank->plan->input);
    uint64_t usual_bytes[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT] = {{0}};
    memcpy(out, plan->traffic, sizeof plan->traffic);
    for (uint32_t i = 0; i < plan->task_count; i++) {
        const struct ox_task *const task = &plan->tasks[i];
        const enum ox_due due = ox_case_due(usual, plan, task->unit_idx);
        add_task(rank, task, finds_now(rank, task), out);
        add_task(rank, task, (struct finds){.facts = usual.facts, .due = due, .stays = between}, usual_bytes);
    }
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            out[link][kind] -= usual_bytes[link][kind];
        }
        out[link][OX_TRAFFIC_TOKENS] -= rank->step.left_tokens[link];
        out[link][OX_TRAFFIC_WEIGHTS] -= rank->config.budget.unified && link == OX_LINK_H2D
                                             ? 0 : rank->step.left_out[link];
    }
}

void ox_rank_plan_finish(const struct ox_rank *rank, uint64_t out[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]) {
    const struct ox_plan *const plan = rank->step.plan;
    for (uint32_t i = 0; i < plan->task_count; i++) {
        add_task(rank, &plan->tasks[i], finds_now(rank, &plan->tasks[i]), out);
    }
}
