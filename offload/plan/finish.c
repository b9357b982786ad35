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

/* Whether the buffer gets its place by its life: one that is not resident, in an arena. */
static bool is_placed(const struct ox_buf *buf) {
    return !buf->resident && buf->tier != OX_TIER_NVME;
}

void ox_plan_follow_lives(struct ox_plan_full *full, uint32_t task_idx) {
    const struct ox_task *const task = &full->plan.tasks[task_idx];
    struct ox_task_lives lives = {0};
    for (uint32_t j = 0; j < task->use_count; j++) {
        struct ox_buf *const buf = &full->plan.bufs[task->uses[j].buf_idx];
        const bool first = buf->first_task_idx == OX_NONE;
        if (first) {
            buf->first_task_idx = task_idx;
            lives.begin |= is_placed(buf) ? UINT64_C(1) << j : 0;
        }
        if (first || buf->last_task_idx != task_idx) {
            buf->last_task_idx = task_idx;
            full->scratch.last_use[task->uses[j].buf_idx] = (uint8_t)j;
        }
    }
    full->scratch.lives[task_idx] = lives;
}

/* Notes with which tasks buffers end to live, which is known when the list is complete. */
static void end_lives(struct ox_plan_full *full) {
    for (uint32_t i = 0; i < full->plan.buf_count; i++) {
        const struct ox_buf *const buf = &full->plan.bufs[i];
        if (is_placed(buf) && buf->first_task_idx != OX_NONE) {
            full->scratch.lives[buf->last_task_idx].end |= UINT64_C(1) << full->scratch.last_use[i];
        }
    }
}

/* ---- offsets -------------------------------------------------------------------------------- */

/* One arena after its resident part: segments in order of address, without gaps, and the runs of free segments. */
struct space {
    struct ox_segment *segments; /* shared by the arenas */
    uint32_t tail, first_run;
    uint64_t packed_end; /* what is packed lies behind the resident part, which for all others goes up to its end */
    uint64_t resident, end;
    uint64_t live, live_most; /* bytes of buffers in use */
};

struct spaces {
    struct ox_plan_full *full;
    bool measuring; /* only offsets and peaks are needed, no dependencies */
    uint32_t task_idx; /* where the pass over the list is */
    struct space space[OX_TIER_NVME];
    uint32_t segment_count, recycled; /* for all arenas together; recycled: first of a list linked by `next` */
    uint32_t taken_count; /* packed buffers that have had their turn: scratch.items names them */
    const struct ox_placement *placement;
    /* Per tier and kind: the last buffer that left and whose space is not free yet; or OX_NONE. */
    uint32_t left_last[OX_TIER_NVME][OX_BUF_KIND_COUNT];
};

static uint32_t new_segment(struct spaces *s) {
    const struct ox_segment *const segments = s->full->scratch.segments;
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
static uint32_t cut_run(struct spaces *s, struct space *space, uint32_t run, uint64_t end, uint32_t task_idx) {
    struct ox_segment *const segments = space->segments;
    const uint32_t last = segments[run].run_other, past = segments[last].next;
    const uint32_t run_prev = segments[run].run_prev, run_next = segments[run].run_next;
    drop_run(space, run);
    uint32_t at = run;
    while (at != past && segments[at].begin < end) {
        if (!s->measuring) {
            inherit(s->full, task_idx, segments[at].buf_idx);
        }
        if (segments[at].end > end) {
            segments[at].begin = end;
            break;
        }
        const uint32_t next = segments[at].next;
        segments[at].next = s->recycled;
        s->recycled = at;
        at = next;
    }
    if (at != past) {
        segments[at].run_other = segments[last].run_other = OX_NONE;
        set_run(space, at, last, run_prev, run_next);
    }
    return at;
}

static void place(struct spaces *s, uint32_t buf_idx, uint32_t task_idx) {
    struct ox_buf *const buf = &s->full->plan.bufs[buf_idx];
    struct space *const space = &s->space[buf->tier];
    struct ox_segment *const segments = space->segments;
    const uint32_t run = find_run(space, buf->bytes);
    const uint64_t begin = run == OX_NONE ? space->end : segments[run].begin;
    const uint32_t prev = run == OX_NONE ? space->tail : segments[run].prev;
    const uint32_t next = run == OX_NONE ? OX_NONE : cut_run(s, space, run, begin + buf->bytes, task_idx);
    const uint32_t idx = new_segment(s);
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
    s->full->scratch.segment_of[buf_idx] = idx;
    buf->offset = space->resident + begin;
    space->live += buf->bytes;
    if (space->live > space->live_most) {
        space->live_most = space->live;
        s->full->plan.fullest_task[buf->tier] = task_idx;
    }
}

/* Takes a buffer's space where it is packed. Its first task waits for all uses of those that had a part of it. */
static void place_packed(struct spaces *s, uint32_t buf_idx, uint32_t task_idx) {
    struct ox_plan *const plan = &s->full->plan;
    struct ox_buf *const buf = &plan->bufs[buf_idx];
    const struct space *const space = &s->space[buf->tier];
    const uint64_t *const packed = s->full->scratch.packed;
    buf->offset = space->resident - space->packed_end + packed[buf_idx];
    if (s->measuring) {
        return;
    }
    struct ox_pack_item *const taken = s->full->scratch.items;
    for (uint32_t i = 0; i < s->taken_count; i++) {
        const uint32_t at = taken[i].buf_idx;
        const struct ox_buf *const other = &plan->bufs[at];
        if (other->tier == buf->tier && other->first_task_idx < task_idx &&
            packed[at] < packed[buf_idx] + buf->bytes && packed[buf_idx] < packed[at] + other->bytes) {
            inherit(s->full, task_idx, at);
        }
    }
    taken[s->taken_count++].buf_idx = buf_idx;
}

static void give_back(struct spaces *s, uint32_t buf_idx) {
    const struct ox_buf *const buf = &s->full->plan.bufs[buf_idx];
    s->full->scratch.freed[buf_idx] = s->task_idx;
    release(&s->space[buf->tier], s->full->scratch.segment_of[buf_idx]);
    s->space[buf->tier].live -= buf->bytes;
    s->full->scratch.segment_of[buf_idx] = OX_NONE;
}

/* Whether a buffer that leaves with its last task takes turns with the next: one that goes to the drives or, after its
 * optimizer on the host, to the device, where transfers run ahead; and a gradient that leaves the device, where the
 * placement has room for it. */
static bool takes_turns(const struct spaces *s, const struct ox_task *last) {
    const bool moves = last->kind == OX_TASK_MOVE;
    if (moves && last->move == OX_MOVE_GRAD && last->lane == OX_LANE_D2H) {
        return s->placement->grads_alternate;
    }
    return s->placement->prefetch_depth > 0 &&
           (last->lane == OX_LANE_NVME_WRITE || (moves && last->move == OX_MOVE_PLANES));
}

static uint32_t *left_last(struct spaces *s, uint32_t buf_idx) {
    const struct ox_buf *const buf = &s->full->plan.bufs[buf_idx];
    return &s->left_last[buf->tier][buf->kind];
}

/* Frees the space of a buffer after its last task. That of one which takes turns is kept until the next such buffer has
 * left: so the next unit's has another place, and is filled there while this one is still on its way. */
static void end_life(struct spaces *s, uint32_t buf_idx, const struct ox_task *last) {
    if (!takes_turns(s, last)) {
        give_back(s, buf_idx);
        return;
    }
    uint32_t *const before = left_last(s, buf_idx);
    if (*before != OX_NONE) {
        give_back(s, *before);
    }
    *before = buf_idx;
}

static void begin_life(struct spaces *s, uint32_t buf_idx) {
    if (s->full->scratch.packed[buf_idx] != UINT64_MAX) {
        place_packed(s, buf_idx, s->task_idx);
    } else {
        place(s, buf_idx, s->task_idx);
    }
}

/* Gives buffers space in the order of their first use, and frees it after their last use. Most tasks begin and end no
 * life, and are not looked at. */
static void place_all(struct spaces *s) {
    const struct ox_plan *const plan = &s->full->plan;
    for (s->task_idx = 0; s->task_idx < plan->task_count; s->task_idx++) {
        const struct ox_task_lives lives = s->full->scratch.lives[s->task_idx];
        const struct ox_task *const task = &plan->tasks[s->task_idx];
        for (uint64_t left = lives.begin; left != 0; left &= left - 1) {
            begin_life(s, task->uses[__builtin_ctzll(left)].buf_idx);
        }
        for (uint64_t left = lives.end; left != 0; left &= left - 1) {
            const uint32_t buf_idx = task->uses[__builtin_ctzll(left)].buf_idx;
            if (s->full->scratch.segment_of[buf_idx] != OX_NONE) {
                end_life(s, buf_idx, task);
            }
        }
    }
}

/* Begins a pass over the list: the arenas are empty behind their resident parts and what is packed. */
static void begin_pass(struct spaces *s, const uint64_t packed_end[OX_TIER_NVME]) {
    struct ox_plan *const plan = &s->full->plan;
    s->segment_count = s->taken_count = 0;
    s->recycled = OX_NONE;
    for (int tier = 0; tier < OX_TIER_NVME; tier++) {
        for (int kind = 0; kind < OX_BUF_KIND_COUNT; kind++) {
            s->left_last[tier][kind] = OX_NONE;
        }
        s->space[tier] =
            (struct space){.segments = s->full->scratch.segments, .tail = OX_NONE, .first_run = OX_NONE,
                           .packed_end = packed_end[tier], .resident = packed_end[tier]};
    }
    for (uint32_t i = 0; i < plan->buf_count; i++) {
        struct ox_buf *const buf = &plan->bufs[i];
        s->full->scratch.segment_of[i] = OX_NONE;
        if (buf->resident && buf->tier != OX_TIER_NVME) {
            buf->offset = s->space[buf->tier].resident - packed_end[buf->tier];
            s->space[buf->tier].resident += buf->bytes;
        }
    }
}

/* What a pass has led to. */
struct passed {
    uint64_t resident, end, live_most; /* end: of all that is not resident */
};

static void end_pass(const struct spaces *s, const uint64_t packed_end[OX_TIER_NVME],
                     struct passed out[OX_TIER_NVME]) {
    for (int tier = 0; tier < OX_TIER_NVME; tier++) {
        out[tier] = (struct passed){.resident = s->space[tier].resident - packed_end[tier],
                                    .end = packed_end[tier] + s->space[tier].end,
                                    .live_most = s->space[tier].live_most};
    }
}

static void unpack(struct ox_plan_full *full, int tier) {
    for (uint32_t i = 0; i < full->plan.buf_count; i++) {
        if (tier == OX_TIER_NVME || full->plan.bufs[i].tier == tier) {
            full->scratch.packed[i] = UINT64_MAX;
        }
    }
}

/* Offsets by time, and where these leave gaps of more than 3 % of what lives at a time those by size, if they need
 * less. */
static void place_best(struct spaces *s, bool measuring, uint64_t packed_end[OX_TIER_NVME],
                       struct passed out[OX_TIER_NVME]) {
    unpack(s->full, OX_TIER_NVME);
    memset(s->full->scratch.freed, 0xff, s->full->plan.buf_count * sizeof *s->full->scratch.freed);
    begin_pass(s, packed_end);
    place_all(s);
    end_pass(s, packed_end, out);
    for (int tier = 0; tier < OX_TIER_NVME; tier++) {
        const uint64_t enough = out[tier].live_most + (out[tier].resident + out[tier].live_most) / 33;
        const uint64_t most = out[tier].end;
        const uint64_t end =
            most > enough ? ox_plan_pack(s->full, (enum ox_tier)tier, enough, most, measuring) : most;
        if (end < most) {
            packed_end[tier] = out[tier].end = end;
        } else {
            unpack(s->full, tier);
        }
    }
}

void ox_plan_finish(struct ox_plan_full *full, const struct ox_placement *placement, bool measuring) {
    struct ox_plan *const plan = &full->plan;
    struct spaces s = {.full = full, .measuring = true, .placement = placement};
    uint64_t packed_end[OX_TIER_NVME] = {0};
    struct passed passed[OX_TIER_NVME];
    memset(plan->fullest_task, 0, sizeof plan->fullest_task);
    end_lives(full);
    place_best(&s, measuring, packed_end, passed);
    for (int tier = 0; tier < OX_TIER_NVME; tier++) {
        plan->resident_bytes[tier] = passed[tier].resident;
        plan->peak_bytes[tier] = passed[tier].resident + passed[tier].end;
        plan->live_bytes[tier] = passed[tier].resident + passed[tier].live_most;
    }
    if (!measuring) { /* once more, with dependencies */
        uint32_t fullest[OX_TIER_COUNT];
        memcpy(fullest, plan->fullest_task, sizeof fullest);
        s.measuring = false;
        derive_deps(full);
        begin_pass(&s, packed_end);
        place_all(&s);
        memcpy(plan->fullest_task, fullest, sizeof fullest);
    }
}
