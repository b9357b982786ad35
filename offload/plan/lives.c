/* When buffers live: from their first use to their last, and some until the next of their kind has left. From this
 * alone follows what an arena needs, so plans whose buffers take and give back their space in the same order need the
 * same; a search meets few such orders among many plans. */
#include "offload/plan/internal.h"

#include "base/bytes.h"

#include <string.h>

/* Whether the buffer gets its place by its life: one that is not resident, in an arena. */
static bool is_placed(const struct ox_buf *buf) {
    return !buf->resident && buf->tier != OX_TIER_NVME;
}

/* Whether a buffer that leaves with its last task takes turns with the next: one that goes to the drives or, after its
 * optimizer on the host, to the device, where transfers run ahead; and a gradient that leaves the device, where the
 * placement has room for it. */
static bool takes_turns(const struct ox_placement *placement, const struct ox_task *last) {
    const bool moves = last->kind == OX_TASK_MOVE;
    if (moves && last->move == OX_MOVE_GRAD && last->lane == OX_LANE_D2H) {
        return placement->grads_alternate;
    }
    return placement->prefetch_depth > 0 &&
           (last->lane == OX_LANE_NVME_WRITE || (moves && last->move == OX_MOVE_PLANES));
}

void ox_plan_follow_lives(struct ox_plan_full *full, uint32_t task_idx, const struct ox_placement *placement) {
    struct ox_plan_scratch *const scratch = &full->scratch;
    const struct ox_task *const task = &full->plan.tasks[task_idx];
    const bool turns = takes_turns(placement, task);
    for (uint32_t j = 0; j < task->use_count; j++) {
        const uint32_t buf_idx = task->uses[j].buf_idx;
        struct ox_buf *const buf = &full->plan.bufs[buf_idx];
        const bool first = buf->first_task_idx == OX_NONE;
        if (first) {
            buf->first_task_idx = task_idx;
        }
        if (first && is_placed(buf)) {
            scratch->begun[scratch->begun_count++] = buf_idx;
        }
        if (first || buf->last_task_idx != task_idx) {
            buf->last_task_idx = task_idx;
            scratch->last_use[buf_idx] = (uint8_t)j;
            scratch->turns[buf_idx] = turns;
        }
    }
}

/* Notes with which tasks buffers end to live, which is known when the list is complete: those of a task in the order of
 * its uses. */
static void end_lives(struct ox_plan_full *full) {
    struct ox_plan_scratch *const scratch = &full->scratch;
    memset(scratch->ends, 0xff, full->plan.task_count * sizeof *scratch->ends); /* OX_NONE */
    for (uint32_t i = 0; i < scratch->begun_count; i++) {
        const uint32_t buf_idx = scratch->begun[i];
        uint32_t *at = &scratch->ends[full->plan.bufs[buf_idx].last_task_idx];
        while (*at != OX_NONE && scratch->last_use[*at] < scratch->last_use[buf_idx]) {
            at = &scratch->next_end[*at];
        }
        scratch->next_end[buf_idx] = *at;
        *at = buf_idx;
    }
}

/* One arena while its events are listed. */
struct arena {
    struct ox_plan_full *full;
    enum ox_tier tier;
    uint32_t *events;
    uint32_t count, begun;
    uint64_t key, live, live_most;
    uint32_t left_last[OX_BUF_KIND_COUNT]; /* per kind: the last buffer that left and keeps its space; or OX_NONE */
};

/* Adds a number to the key: odd constants, so that no number is lost. */
static void mix(struct arena *a, uint64_t number) {
    a->key = (a->key ^ number) * UINT64_C(0x9e3779b97f4a7c15);
    a->key ^= a->key >> 29;
}

static void take(struct arena *a, uint32_t buf_idx) {
    const struct ox_buf *const buf = &a->full->plan.bufs[buf_idx];
    a->events[a->count++] = 2 * buf_idx;
    a->full->scratch.nth[buf_idx] = a->begun++;
    mix(a, 2 * buf->bytes);
    a->live += buf->bytes;
    if (a->live > a->live_most) {
        a->live_most = a->live;
        a->full->plan.fullest_task[a->tier] = buf->first_task_idx;
    }
}

static void give_back(struct arena *a, uint32_t buf_idx) {
    a->events[a->count++] = 2 * buf_idx + 1;
    mix(a, 2 * (uint64_t)a->full->scratch.nth[buf_idx] + 1);
    a->live -= a->full->plan.bufs[buf_idx].bytes;
}

/* Frees the space of a buffer after its last task. That of one which takes turns is kept until the next such buffer has
 * left: so the next unit's has another place, and is filled there while this one is still on its way. */
static void leave(struct arena *a, uint32_t buf_idx) {
    uint32_t *const before = &a->left_last[a->full->plan.bufs[buf_idx].kind];
    if (!a->full->scratch.turns[buf_idx]) {
        give_back(a, buf_idx);
        return;
    }
    if (*before != OX_NONE) {
        give_back(a, *before);
    }
    *before = buf_idx;
}

void ox_plan_list_lives(struct ox_plan_full *full, struct ox_arena_lives out[OX_TIER_NVME]) {
    const struct ox_plan *const plan = &full->plan;
    struct ox_plan_scratch *const scratch = &full->scratch;
    struct arena arenas[OX_TIER_NVME];
    uint32_t next = 0;
    end_lives(full);
    for (int tier = 0; tier < OX_TIER_NVME; tier++) {
        arenas[tier] = (struct arena){.full = full, .tier = (enum ox_tier)tier, .events = scratch->events[tier],
                                      .key = 1};
        memset(arenas[tier].left_last, 0xff, sizeof arenas[tier].left_last); /* OX_NONE */
    }
    for (uint32_t i = 0; i < plan->task_count; i++) {
        for (; next < scratch->begun_count && plan->bufs[scratch->begun[next]].first_task_idx == i; next++) {
            take(&arenas[plan->bufs[scratch->begun[next]].tier], scratch->begun[next]);
        }
        for (uint32_t at = scratch->ends[i]; at != OX_NONE; at = scratch->next_end[at]) {
            leave(&arenas[plan->bufs[at].tier], at);
        }
    }
    for (int tier = 0; tier < OX_TIER_NVME; tier++) {
        scratch->event_count[tier] = arenas[tier].count;
        out[tier] = (struct ox_arena_lives){.key = arenas[tier].key, .live_most = arenas[tier].live_most};
    }
}
