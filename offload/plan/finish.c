/* Derives dependencies and offsets from the uses of tasks.
 *
 * A read waits for the last write of its buffer; a write waits for the last write and for every read since. A
 * buffer takes the lowest gap whose former owners are all past their last use in list order, or, where that leaves gaps
 * of more than 3 % in an arena, its place by size; its first task then waits for those last uses, lane by lane, so that
 * the space is free when it runs. */
#include "offload/plan/internal.h"

#include "base/assert.h"
#include "base/bytes.h"

#include <string.h>

/* Adds a dependency. `dep` is 1 + index of a task of `lane`, 0 = none. A task on its own lane needs none: lanes are
 * FIFO. */
static void add_dep(struct ox_task *task, uint8_t lane, uint32_t dep) {
    if (lane != task->lane && task->deps[lane] < dep) {
        task->deps[lane] = dep;
    }
}

static void derive_use(struct ox_plan_full *full, uint32_t task_idx, const struct ox_use *use) {
    struct ox_task *const task = &full->plan.tasks[task_idx];
    struct ox_buf_track *const track = &full->scratch.tracks[use->buf_idx];
    add_dep(task, track->written_lane, track->written_by);
    if (use->write) {
        for (uint8_t lane = 0; lane < OX_LANE_COUNT; lane++) {
            add_dep(task, lane, track->read_by[lane]);
            track->read_by[lane] = 0;
        }
        track->written_by = task_idx + 1;
        track->written_lane = task->lane;
    } else {
        track->read_by[task->lane] = task_idx + 1;
    }
    track->used_by[task->lane] = task_idx + 1;
}

static void derive_deps(struct ox_plan_full *full) {
    struct ox_plan *const plan = &full->plan;
    memset(full->scratch.tracks, 0, plan->buf_count * sizeof *full->scratch.tracks);
    for (uint32_t i = 0; i < plan->task_count; i++) {
        memset(plan->tasks[i].deps, 0, sizeof plan->tasks[i].deps);
        for (int j = 0; j < plan->tasks[i].use_count; j++) {
            derive_use(full, i, &plan->tasks[i].uses[j]);
        }
    }
}

/* ---- offsets -------------------------------------------------------------------------------- */

enum { MANY = 600 }; /* buffers */

/* One arena after its resident part: segments in order of address, without gaps, and the runs of free segments. */
struct space {
    struct ox_plan_full *full;
    enum ox_tier tier;
    bool measuring; /* only where it ends is needed, no offsets and dependencies */
    struct ox_segment *segments; /* shared by the arenas */
    uint32_t tail, first_run;
    uint32_t segment_count, recycled; /* recycled: first of a list linked by `next` */
    uint64_t resident, end;
};

static uint32_t new_segment(struct space *s) {
    const struct ox_segment *const segments = s->segments;
    uint32_t idx = s->recycled;
    if (idx != OX_NONE) {
        s->recycled = segments[idx].next;
    } else {
        OX_ASSERT(s->segment_count < s->full->plan.buf_cap + 2);
        idx = s->segment_count++;
    }
    return idx;
}

/* Makes a run of the free segments from first to last, and links it between two other runs. */
static void set_run(struct space *space, uint32_t first, uint32_t last, uint32_t run_prev, uint32_t run_next) {
    struct ox_segment *const segments = space->segments;
    segments[first].run_other = last;
    segments[last].run_other = first;
    segments[first].run_prev = run_prev;
    segments[first].run_next = run_next;
    *(run_prev == OX_NONE ? &space->first_run : &segments[run_prev].run_next) = first;
    if (run_next != OX_NONE) {
        segments[run_next].run_prev = first;
    }
}

static void drop_run(struct space *space, uint32_t first) {
    struct ox_segment *const segments = space->segments;
    const uint32_t run_prev = segments[first].run_prev, run_next = segments[first].run_next;
    *(run_prev == OX_NONE ? &space->first_run : &segments[run_prev].run_next) = run_next;
    if (run_next != OX_NONE) {
        segments[run_next].run_prev = run_prev;
    }
}

/* Frees a segment after its buffer's last use: it becomes a run, or part of a neighbour's. */
static void release(struct space *space, uint32_t idx) {
    struct ox_segment *const segments = space->segments;
    const uint32_t prev = segments[idx].prev, next = segments[idx].next;
    uint32_t first = idx, last = idx, run_prev = OX_NONE, run_next = OX_NONE;
    if (next != OX_NONE && segments[next].run_other != OX_NONE) {
        last = segments[next].run_other;
        run_prev = segments[next].run_prev;
        run_next = segments[next].run_next;
        drop_run(space, next);
    }
    if (prev != OX_NONE && segments[prev].run_other != OX_NONE) {
        first = segments[prev].run_other;
        run_prev = segments[first].run_prev;
        run_next = segments[first].run_next;
        drop_run(space, first);
    } else if (last == idx) {
        for (run_next = space->first_run; run_next != OX_NONE && segments[run_next].begin < segments[idx].begin;) {
            run_prev = run_next;
            run_next = segments[run_next].run_next;
        }
    }
    set_run(space, first, last, run_prev, run_next);
}

/* The lowest run of at least `bytes`; else the run at the arena's end, which may grow; OX_NONE if neither exists. */
static uint32_t find_run(const struct space *space, uint64_t bytes) {
    const struct ox_segment *const segments = space->segments;
    for (uint32_t i = space->first_run; i != OX_NONE; i = segments[i].run_next) {
        const uint32_t last = segments[i].run_other;
        if (segments[last].end - segments[i].begin >= bytes || last == space->tail) {
            return i;
        }
    }
    return OX_NONE;
}

/* Makes a buffer's first task wait for every use of the buffer that had the space before. */
static void inherit(struct ox_plan_full *full, uint32_t task_idx, uint32_t former_idx) {
    struct ox_task *const task = &full->plan.tasks[task_idx];
    const uint32_t *const used_by = full->scratch.tracks[former_idx].used_by;
    for (uint8_t lane = 0; lane < OX_LANE_COUNT; lane++) {
        add_dep(task, lane, used_by[lane]);
    }
}

/* Takes the front of a run up to address `end`; the rest stays a run. Returns the first segment after it. */
static uint32_t cut_run(struct space *space, uint32_t run, uint64_t end, uint32_t task_idx) {
    struct ox_segment *const segments = space->segments;
    const uint32_t last = segments[run].run_other, past = segments[last].next;
    const uint32_t run_prev = segments[run].run_prev, run_next = segments[run].run_next;
    drop_run(space, run);
    uint32_t at = run;
    while (at != past && segments[at].begin < end) {
        if (!space->measuring) {
            inherit(space->full, task_idx, segments[at].buf_idx);
        }
        if (segments[at].end > end) {
            segments[at].begin = end;
            break;
        }
        const uint32_t next = segments[at].next;
        segments[at].next = space->recycled;
        space->recycled = at;
        at = next;
    }
    if (at != past) {
        segments[at].run_other = segments[last].run_other = OX_NONE;
        set_run(space, at, last, run_prev, run_next);
    }
    return at;
}

static void place(struct space *space, uint32_t buf_idx) {
    struct ox_buf *const buf = &space->full->plan.bufs[buf_idx];
    struct ox_segment *const segments = space->segments;
    const uint32_t run = find_run(space, buf->bytes);
    const uint64_t begin = run == OX_NONE ? space->end : segments[run].begin;
    const uint32_t prev = run == OX_NONE ? space->tail : segments[run].prev;
    const uint32_t next = run == OX_NONE ? OX_NONE : cut_run(space, run, begin + buf->bytes, buf->first_task_idx);
    const uint32_t idx = new_segment(space);
    segments[idx].begin = begin;
    segments[idx].end = begin + buf->bytes;
    segments[idx].buf_idx = buf_idx;
    segments[idx].prev = prev;
    segments[idx].next = next;
    segments[idx].run_other = OX_NONE;
    if (prev != OX_NONE) {
        segments[prev].next = idx;
    }
    *(next == OX_NONE ? &space->tail : &segments[next].prev) = idx;
    space->end = ox_max_u64(space->end, begin + buf->bytes);
    space->full->scratch.segment_of[buf_idx] = idx;
    buf->offset = space->resident + begin;
}

/* Gives buffers space in the order of their first use, and frees it when they give it back. */
static void place_by_time(struct space *space) {
    const struct ox_plan_scratch *const scratch = &space->full->scratch;
    const uint32_t *const events = scratch->events[space->tier];
    for (uint32_t i = 0; i < scratch->event_count[space->tier]; i++) {
        if ((events[i] & 1) == 0) {
            place(space, events[i] / 2);
        } else {
            release(space, scratch->segment_of[events[i] / 2]);
        }
    }
}

/* Lists the addresses at which packed buffers of the tier begin or end, each once and in order; returns how many. */
static uint32_t list_bounds(const struct space *space, uint64_t *bounds) {
    const struct ox_plan_scratch *const scratch = &space->full->scratch;
    const uint32_t *const events = scratch->events[space->tier];
    uint32_t count = 0, apart = 0;
    for (uint32_t i = 0; i < scratch->event_count[space->tier]; i++) {
        const uint32_t buf_idx = events[i] / 2;
        if ((events[i] & 1) == 0) {
            bounds[count++] = scratch->packed[buf_idx];
            bounds[count++] = scratch->packed[buf_idx] + space->full->plan.bufs[buf_idx].bytes;
        }
    }
    ox_plan_sort(bounds, count, 1);
    for (uint32_t i = 0; i < count; i++) {
        if (apart == 0 || bounds[apart - 1] != bounds[i]) {
            bounds[apart++] = bounds[i];
        }
    }
    return apart;
}

static uint32_t find_bound(const uint64_t *bounds, uint32_t count, uint64_t address) {
    uint32_t low = 0;
    for (uint32_t past = count; low < past;) {
        const uint32_t middle = low + (past - low) / 2;
        *(bounds[middle] < address ? &low : &past) = bounds[middle] < address ? middle + 1 : middle;
    }
    return low;
}

/* Takes the space that packing has found. The first task of a buffer waits for all uses of those that had a part of
 * it last, which have waited for those before them. */
static void place_by_size(const struct space *space) {
    struct ox_plan *const plan = &space->full->plan;
    const struct ox_plan_scratch *const scratch = &space->full->scratch;
    const uint32_t *const events = scratch->events[space->tier];
    uint64_t *const bounds = scratch->packed + plan->buf_cap;
    uint32_t *const had = scratch->heads; /* per part between two bounds: the buffer that had it last, or OX_NONE */
    const uint32_t bound_count = list_bounds(space, bounds);
    memset(had, 0xff, bound_count * sizeof *had); /* OX_NONE */
    for (uint32_t i = 0; i < scratch->event_count[space->tier]; i++) {
        const uint32_t buf_idx = events[i] / 2;
        struct ox_buf *const buf = &plan->bufs[buf_idx];
        if ((events[i] & 1) != 0) {
            continue;
        }
        const uint64_t begin = scratch->packed[buf_idx];
        buf->offset = space->resident + begin;
        uint32_t former = OX_NONE;
        for (uint32_t k = find_bound(bounds, bound_count, begin); bounds[k] < begin + buf->bytes; k++) {
            if (had[k] != OX_NONE && had[k] != former) {
                inherit(space->full, buf->first_task_idx, had[k]);
            }
            former = had[k];
            had[k] = buf_idx;
        }
    }
}

static uint64_t end_by_time(struct space *space) {
    space->segment_count = 0;
    space->recycled = space->tail = space->first_run = OX_NONE;
    space->end = 0;
    place_by_time(space);
    return space->end;
}

/* What is known of the arena with this key: the last one that had its place is forgotten. */
static struct ox_arena_known *find_known(const struct ox_plan_full *full, int tier, uint64_t key) {
    struct ox_arena_known *const known = &full->scratch.known[tier][key % OX_ARENAS_KNOWN];
    if (known->key != key) {
        *known = (struct ox_arena_known){.key = key};
    }
    return known;
}

/* Places what is resident, and returns its bytes. */
static uint64_t place_resident(struct ox_plan *plan, int tier) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < plan->buf_count; i++) {
        struct ox_buf *const buf = &plan->bufs[i];
        if (buf->resident && buf->tier == tier) {
            buf->offset = bytes;
            bytes += buf->bytes;
        }
    }
    return bytes;
}

/* Whether better offsets than those by time may decide what fits this budget: not far below it, where there is room,
 * and not where what lives at a time is more. With many buffers packing takes about as long as building, so it is only
 * asked where they do not fit by time. */
static bool decides(const struct ox_plan_budget *budget, const struct space *space, uint64_t live_most,
                    uint64_t end) {
    const uint64_t bytes = space->tier == OX_TIER_DEVICE ? budget->device_bytes : budget->host_bytes;
    const bool many = space->full->scratch.event_count[space->tier] > 2 * MANY;
    return space->resident + live_most <= bytes && space->resident + end > bytes - (many ? 0 : bytes / 8);
}

/* Finds the peak of an arena, with offsets by time, or, where these leave gaps of more than 3 % of what lives at a
 * time, with those by size, if they need less; then gives its buffers their offsets. */
static void finish_tier(struct ox_plan_full *full, enum ox_tier tier, const struct ox_arena_lives *lives,
                        const struct ox_plan_budget *budget, enum ox_plan_finished finished) {
    struct ox_plan *const plan = &full->plan;
    struct ox_arena_known *const known = find_known(full, tier, lives->key);
    struct space space = {.full = full, .tier = tier, .measuring = true, .segments = full->scratch.segments,
                          .resident = place_resident(plan, tier)};
    if (!known->timed) {
        known->end = end_by_time(&space);
        known->timed = true;
    }
    const uint64_t enough = lives->live_most + (space.resident + lives->live_most) / 33;
    const bool packs = known->end > enough && (finished == OX_PLAN_COMPLETE ||
                                               decides(budget, &space, lives->live_most, known->end));
    const uint64_t end = packs ? ox_plan_pack(full, tier, known, enough, known->end, finished) : known->end;
    plan->resident_bytes[tier] = space.resident;
    plan->peak_bytes[tier] = space.resident + end;
    plan->live_bytes[tier] = space.resident + lives->live_most;
    space.measuring = finished == OX_PLAN_MEASURED;
    if (!space.measuring && end < known->end) {
        place_by_size(&space);
    } else if (!space.measuring) {
        (void)end_by_time(&space);
    }
}

void ox_plan_finish(struct ox_plan_full *full, const struct ox_plan_budget *budget, enum ox_plan_finished finished) {
    struct ox_arena_lives lives[OX_TIER_NVME];
    memset(full->plan.fullest_task, 0, sizeof full->plan.fullest_task);
    ox_plan_list_lives(full, lives);
    if (finished != OX_PLAN_MEASURED) {
        derive_deps(full);
    }
    for (int tier = 0; tier < OX_TIER_NVME; tier++) {
        finish_tier(full, (enum ox_tier)tier, &lives[tier], budget, finished);
    }
}
