/* From uses to dependencies and offsets.
 *
 * A read waits for the last write of its buffer; a write waits for the last write and for every read since. A
 * buffer takes the lowest gap whose former owners are all past their last use in list order; its first
 * task then waits for those last uses, lane by lane, so that the space is really free when it runs. */
#include "offload/plan_internal.h"

#include "base/assert.h"
#include "base/bytes.h"

#include <string.h>

/* `dep` is 1 + task index, 0 = none. Work on the same lane needs no entry: lanes are FIFO. */
static void add_dep(struct ox_plan *plan, uint32_t task_idx, uint32_t dep) {
    if (dep == 0 || dep - 1 == task_idx) {
        return;
    }
    struct ox_task *const task = &plan->tasks[task_idx];
    const uint8_t lane = plan->tasks[dep - 1].lane;
    if (lane != task->lane && task->deps[lane] < dep) {
        task->deps[lane] = dep;
    }
}

static void derive_use(struct ox_plan_full *full, uint32_t task_idx, const struct ox_use *use) {
    struct ox_plan *const plan = &full->plan;
    struct ox_buf_track *const track = &full->scratch.tracks[use->buf_idx];
    const uint8_t lane = plan->tasks[task_idx].lane;
    add_dep(plan, task_idx, track->written_by);
    if (use->write) {
        for (int i = 0; i < OX_LANE_COUNT; i++) {
            add_dep(plan, task_idx, track->read_by[i]);
            track->read_by[i] = 0;
        }
        track->written_by = task_idx + 1;
    } else {
        track->read_by[lane] = task_idx + 1;
    }
    track->used_by[lane] = task_idx + 1;
    struct ox_buf *const buf = &plan->bufs[use->buf_idx];
    if (buf->first_task_idx == OX_NONE) {
        buf->first_task_idx = task_idx;
    }
    buf->last_task_idx = task_idx;
}

static void derive_deps(struct ox_plan_full *full) {
    struct ox_plan *const plan = &full->plan;
    memset(full->scratch.tracks, 0, plan->buf_count * sizeof *full->scratch.tracks);
    for (uint32_t i = 0; i < plan->buf_count; i++) {
        plan->bufs[i].first_task_idx = OX_NONE;
        plan->bufs[i].last_task_idx = 0;
    }
    for (uint32_t i = 0; i < plan->task_count; i++) {
        memset(plan->tasks[i].deps, 0, sizeof plan->tasks[i].deps);
        for (int j = 0; j < plan->tasks[i].use_count; j++) {
            derive_use(full, i, &plan->tasks[i].uses[j]);
        }
    }
}

/* ---- offsets -------------------------------------------------------------------------------- */

/* The segments of one arena, sorted and gapless; the last one ends where the arena ends so far. */
struct space {
    struct ox_segment *segments;
    uint32_t count;
};

static bool is_free(const struct ox_plan *plan, const struct ox_segment *segment, uint32_t task_idx) {
    return segment->buf_idx == OX_NONE || plan->bufs[segment->buf_idx].last_task_idx < task_idx;
}

/* The first segment of the lowest run of free ones that holds `bytes`; a run at the end may grow. */
static uint32_t find_run(const struct ox_plan *plan, const struct space *space, uint32_t task_idx,
                         uint64_t bytes) {
    uint32_t first = 0;
    uint64_t length = 0;
    for (uint32_t i = 0; i < space->count; i++) {
        if (!is_free(plan, &space->segments[i], task_idx)) {
            first = i + 1;
            length = 0;
            continue;
        }
        length += space->segments[i].end - space->segments[i].begin;
        if (length >= bytes) {
            return first;
        }
    }
    return first;
}

/* The first task of a buffer waits for every use of the buffer that had the space before. */
static void inherit(struct ox_plan_full *full, uint32_t task_idx, uint32_t former_idx) {
    if (former_idx == OX_NONE) {
        return;
    }
    for (int lane = 0; lane < OX_LANE_COUNT; lane++) {
        add_dep(&full->plan, task_idx, full->scratch.tracks[former_idx].used_by[lane]);
    }
}

static void place(struct ox_plan_full *full, struct space *space, uint32_t buf_idx) {
    struct ox_plan *const plan = &full->plan;
    struct ox_buf *const buf = &plan->bufs[buf_idx];
    const uint32_t task_idx = buf->first_task_idx;
    struct ox_segment *const segments = space->segments;
    const uint32_t first = find_run(plan, space, task_idx, buf->bytes);
    const uint64_t begin = first < space->count       ? segments[first].begin
                           : space->count > 0 ? segments[space->count - 1].end : 0;
    const uint64_t end = begin + buf->bytes;
    uint32_t past = first; /* the segments [first, past) are covered, the last of them maybe in part */
    while (past < space->count && segments[past].begin < end) {
        inherit(full, task_idx, segments[past].buf_idx);
        past++;
    }
    const struct ox_segment rest = past > first ? segments[past - 1] : (struct ox_segment){0};
    const bool keeps_rest = past > first && rest.end > end;
    const uint32_t added = 1 + keeps_rest, removed = past - first;
    memmove(&segments[first + added], &segments[past], (space->count - past) * sizeof *segments);
    segments[first] = (struct ox_segment){.begin = begin, .end = end, .buf_idx = buf_idx};
    if (keeps_rest) {
        segments[first + 1] = (struct ox_segment){.begin = end, .end = rest.end, .buf_idx = rest.buf_idx};
    }
    space->count += added - removed;
    buf->offset = begin;
}

static void place_tier(struct ox_plan_full *full, enum ox_tier tier) {
    struct ox_plan *const plan = &full->plan;
    uint64_t resident = 0;
    for (uint32_t i = 0; i < plan->buf_count; i++) {
        struct ox_buf *const buf = &plan->bufs[i];
        if (buf->tier == tier && buf->resident) {
            buf->offset = resident;
            resident += buf->bytes;
        }
    }
    struct space space = {.segments = full->scratch.segments};
    /* Buffers are created with the task that first uses them, so their order is that of first use. */
    for (uint32_t i = 0; i < plan->buf_count; i++) {
        if (plan->bufs[i].tier == tier && !plan->bufs[i].resident && plan->bufs[i].first_task_idx != OX_NONE) {
            place(full, &space, i);
            plan->bufs[i].offset += resident;
        }
    }
    plan->resident_bytes[tier] = resident;
    plan->peak_bytes[tier] = resident + (space.count > 0 ? space.segments[space.count - 1].end : 0);
}

void ox_plan_finish(struct ox_plan_full *full) {
    derive_deps(full);
    place_tier(full, OX_TIER_DEVICE);
    place_tier(full, OX_TIER_HOST);
}
