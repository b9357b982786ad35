#include "offload/trace/trace_ranks.h"

#include "offload/trace/trace_stats_internal.h"

#include "base/bytes.h"
#include "base/file.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t ox_trace_title_bytes(const char *title) {
    const char *const machine = strstr(title, "; on ");
    return machine != NULL ? (size_t)(machine - title) : strlen(title);
}

static uint32_t find_lane(const struct ox_trace_header *head, const char *name) {
    const struct ox_trace_names *const lanes = &head->names[OX_TRACE_LANES];
    uint32_t lane = 0;
    while (lane < lanes->count && strcmp(lanes->text[lane], name) != 0) {
        lane++;
    }
    return lane;
}

uint32_t ox_trace_link_lane(const struct ox_trace_header *head) {
    return find_lane(head, "link");
}

/* ---- meetings -------------------------------------------------------------------------------------- */

/* Whether ranks have lists of their own, as in a pipeline: then only what all do together are meetings. */
static bool has_transfers(const struct ox_trace_header *head, const struct ox_trace_plan *plan) {
    const uint32_t lane = find_lane(head, "link.in");
    bool has = false;
    for (uint32_t i = 0; i < plan->task_count && !has; i++) {
        has = plan->tasks[i].lane == lane;
    }
    return has;
}

/* Whether all ranks do a task of the link's lane. */
static bool is_of_all(const struct ox_trace_header *head, const struct ox_trace_record *task) {
    const struct ox_trace_names *const kinds = &head->names[OX_TRACE_TASKS];
    return task->kind < kinds->count && strcmp(kinds->text[task->kind], "loss-gather") == 0;
}

/* Finds the next task of the link's lane from *idx on, and moves *idx behind it; returns its record, NULL at the plan's
 * end. */
static const struct ox_trace_record *next_meeting(const struct ox_trace_header *head, const struct ox_trace_step *step,
                                                  uint32_t *idx) {
    const struct ox_trace_plan *const plan = &head->plans[step->plan];
    const uint32_t lane = ox_trace_link_lane(head);
    const bool of_all = has_transfers(head, plan);
    while (*idx < plan->task_count) {
        const struct ox_trace_record *const task = step->tasks[(*idx)++];
        if (task != NULL && task->lane == lane && (!of_all || is_of_all(head, task))) {
            return task;
        }
    }
    return NULL;
}

/* The earliest and the latest times by which the clock of `other` may be moved so that each meeting agrees: neither
 * rank ends it before the other has begun. False if there are none. */
static bool bound_shift(const struct ox_trace_header *heads[2], const struct ox_trace_step *steps[2], int64_t *low,
                        int64_t *high) {
    uint32_t at[2] = {0, 0};
    bool any = false;
    *low = INT64_MIN;
    *high = INT64_MAX;
    for (;;) {
        const struct ox_trace_record *const shown = next_meeting(heads[0], steps[0], &at[0]);
        const struct ox_trace_record *const other = next_meeting(heads[1], steps[1], &at[1]);
        if (shown == NULL || other == NULL) {
            return any;
        }
        if (!shown->idle && !other->idle) {
            const int64_t least = (int64_t)shown->started_ns - (int64_t)other->ended_ns;
            const int64_t most = (int64_t)shown->ended_ns - (int64_t)other->started_ns;
            *low = least > *low ? least : *low;
            *high = most < *high ? most : *high;
            any = true;
        }
    }
}

static const struct ox_trace_step *find_step(const struct ox_trace_steps *steps, uint64_t number) {
    for (uint32_t i = 0; i < steps->count; i++) {
        const struct ox_trace_step *const step = &steps->steps[i];
        if (step->whole && step->span == OX_TRACE_SPAN_STEP && step->step == number) {
            return step;
        }
    }
    return NULL;
}

/* By how much the clock of the rank `idx` is behind that of the rank shown: by their wall clocks, or in the middle of
 * what the meetings of the step allow. */
static int64_t shift_of(const struct ox_trace_ranks *ranks, const struct ox_trace_joint *joint, uint32_t idx,
                        int64_t usual_ns) {
    const struct ox_trace_header *heads[2] = {ranks->ranks[ranks->shown].trace->head, ranks->ranks[idx].trace->head};
    const struct ox_trace_step *steps[2] = {joint->steps[ranks->shown], joint->steps[idx]};
    int64_t low = 0, high = 0;
    if (!bound_shift(heads, steps, &low, &high) || (low <= usual_ns && usual_ns <= high)) {
        return usual_ns;
    }
    return low / 2 + high / 2;
}

void ox_trace_joint_of(const struct ox_trace_ranks *ranks, const struct ox_trace_step *step,
                       struct ox_trace_joint *out) {
    *out = (struct ox_trace_joint){.begin_ns = (int64_t)step->begin_ns, .end_ns = (int64_t)step->end_ns,
                                   .whole = true};
    out->steps[ranks->shown] = step;
    const uint64_t epoch_ns = ranks->ranks[ranks->shown].trace->head->epoch_unix_ns;
    for (uint32_t i = 0; i < ranks->count; i++) {
        if (i == ranks->shown) {
            continue;
        }
        out->steps[i] = find_step(ranks->ranks[i].steps, step->step);
        if (out->steps[i] == NULL) {
            out->whole = false;
            continue;
        }
        const int64_t usual_ns = (int64_t)(ranks->ranks[i].trace->head->epoch_unix_ns - epoch_ns);
        out->shift_ns[i] = shift_of(ranks, out, i, usual_ns);
        const int64_t begin_ns = (int64_t)out->steps[i]->begin_ns + out->shift_ns[i];
        const int64_t end_ns = (int64_t)out->steps[i]->end_ns + out->shift_ns[i];
        out->begin_ns = begin_ns < out->begin_ns ? begin_ns : out->begin_ns;
        out->end_ns = end_ns > out->end_ns ? end_ns : out->end_ns;
        out->moved_ns = ox_max_u64(out->moved_ns, (uint64_t)llabs(out->shift_ns[i] - usual_ns));
    }
}

void ox_trace_joint_waits(const struct ox_trace_ranks *ranks, const struct ox_trace_joint *joint,
                          uint64_t waits[OX_TRACE_RANKS_MAX][OX_TRACE_RANKS_MAX]) {
    uint32_t at[OX_TRACE_RANKS_MAX] = {0};
    memset(waits, 0, sizeof(uint64_t[OX_TRACE_RANKS_MAX][OX_TRACE_RANKS_MAX]));
    for (;;) {
        const struct ox_trace_record *tasks[OX_TRACE_RANKS_MAX];
        int64_t came_ns[OX_TRACE_RANKS_MAX];
        uint32_t last = 0;
        for (uint32_t i = 0; i < ranks->count; i++) {
            tasks[i] = joint->steps[i] == NULL ? NULL
                                               : next_meeting(ranks->ranks[i].trace->head, joint->steps[i], &at[i]);
            if (tasks[i] == NULL) {
                return;
            }
            came_ns[i] = (int64_t)tasks[i]->started_ns + joint->shift_ns[i];
            last = came_ns[i] > came_ns[last] ? i : last;
        }
        for (uint32_t i = 0; i < ranks->count; i++) {
            if (!tasks[i]->idle) {
                waits[i][last] += ox_min_u64((uint64_t)(came_ns[last] - came_ns[i]),
                                             tasks[i]->ended_ns - tasks[i]->started_ns);
            }
        }
    }
}

/* ---- the chain through all ranks ----------------------------------------------------------------------- */

/* A task of a rank. */
struct place {
    uint32_t rank, idx;
};

struct walk {
    const struct ox_trace_ranks *ranks;
    const struct ox_trace_joint *joint;
    struct ox_trace_chain chains[OX_TRACE_RANKS_MAX]; /* all zero where a rank has no such step */
};

static const struct ox_trace_record *task_at(const struct walk *walk, struct place at) {
    return walk->joint->steps[at.rank]->tasks[at.idx];
}

/* A time of a rank's task by the clock of the rank shown, within bounds. */
static uint64_t by_shown(const struct walk *walk, struct place at, uint64_t ns, uint64_t low, uint64_t high) {
    const int64_t moved = (int64_t)ns + walk->joint->shift_ns[at.rank] - walk->joint->begin_ns;
    return ox_min_u64(high, ox_max_u64(low, moved > 0 ? (uint64_t)moved : 0));
}

/* Which meeting of its rank a task is, from 1; 0: none. */
static uint32_t meeting_of(const struct walk *walk, struct place at) {
    const struct ox_trace_header *const head = walk->ranks->ranks[at.rank].trace->head;
    const struct ox_trace_step *const step = walk->joint->steps[at.rank];
    uint32_t count = 0, idx = 0;
    while (next_meeting(head, step, &idx) != NULL && idx - 1 <= at.idx) {
        count++;
        if (idx - 1 == at.idx) {
            return count;
        }
    }
    return 0;
}

/* Finds the place of a meeting on the rank that came to it last; other tasks stay where they are. */
static struct place last_to_come(const struct walk *walk, struct place at) {
    const uint32_t meeting = meeting_of(walk, at);
    struct place last = at;
    for (uint32_t rank = 0; meeting > 0 && rank < walk->ranks->count; rank++) {
        const struct ox_trace_record *task = NULL;
        uint32_t idx = 0;
        for (uint32_t i = 0; i < meeting && walk->joint->steps[rank] != NULL; i++) {
            task = next_meeting(walk->ranks->ranks[rank].trace->head, walk->joint->steps[rank], &idx);
        }
        const struct place other = {rank, idx - 1};
        if (task != NULL && by_shown(walk, other, task->started_ns, 0, UINT64_MAX) >
                                by_shown(walk, last, task_at(walk, last)->started_ns, 0, UINT64_MAX)) {
            last = other;
        }
    }
    return last;
}

static struct place last_of_all(const struct walk *walk) {
    struct place last = {0, OX_TRACE_NO_TASK};
    uint64_t last_ns = 0;
    for (uint32_t rank = 0; rank < walk->ranks->count; rank++) {
        const uint32_t idx = walk->chains[rank].previous == NULL ? OX_TRACE_NO_TASK
                                                                 : ox_trace_last_task(&walk->chains[rank]);
        const struct place at = {rank, idx};
        const uint64_t ended_ns =
            idx == OX_TRACE_NO_TASK ? 0 : by_shown(walk, at, task_at(walk, at)->ended_ns, 0, UINT64_MAX);
        if (idx != OX_TRACE_NO_TASK && (last.idx == OX_TRACE_NO_TASK || ended_ns > last_ns)) {
            last = at;
            last_ns = ended_ns;
        }
    }
    return last;
}

static void follow(const struct walk *walk, struct ox_trace_joint_chain *out) {
    struct place at = last_of_all(walk);
    uint64_t until_ns = at.idx == OX_TRACE_NO_TASK
                            ? 0 : by_shown(walk, at, task_at(walk, at)->ended_ns, 0, out->wall_ns);
    out->chain_ns[OX_TRACE_CAUSE_DONE] = out->wall_ns - until_ns;
    out->rank_ns[at.rank] = out->wall_ns - until_ns;
    while (until_ns > 0) {
        const struct place came = last_to_come(walk, at);
        const struct ox_trace_record *const task = task_at(walk, came);
        const uint64_t started_ns = by_shown(walk, came, task->started_ns, 0, until_ns);
        out->chain_kind_ns[task->kind] +=
            ox_trace_add_time(&walk->chains[at.rank], at.idx, until_ns - started_ns, out->chain_ns);
        const struct place cause = {came.rank, ox_trace_held_by(&walk->chains[came.rank], came.idx)};
        const uint64_t ended_ns = cause.idx == OX_TRACE_NO_TASK
                                      ? 0 : by_shown(walk, cause, task_at(walk, cause)->ended_ns, 0, started_ns);
        const uint64_t queued_ns = by_shown(walk, came, task->queued_ns, ended_ns, started_ns);
        out->chain_ns[OX_TRACE_CAUSE_ISSUE] += queued_ns - ended_ns;
        out->chain_ns[OX_TRACE_CAUSE_START] += started_ns - queued_ns;
        out->rank_ns[came.rank] += until_ns - ended_ns;
        until_ns = ended_ns;
        at = cause;
    }
}

enum ox_status ox_trace_joint_follow(const struct ox_trace_ranks *ranks, const struct ox_trace_joint *joint,
                                     struct ox_trace_joint_chain *out) {
    struct walk walk = {.ranks = ranks, .joint = joint};
    enum ox_status status = OX_OK;
    *out = (struct ox_trace_joint_chain){.wall_ns = (uint64_t)(joint->end_ns - joint->begin_ns)};
    for (uint32_t i = 0; i < ranks->count && status == OX_OK; i++) {
        if (joint->steps[i] != NULL) {
            status = ox_trace_chain_open(ranks->ranks[i].trace->head, joint->steps[i], &walk.chains[i]);
        }
    }
    if (status == OX_OK) {
        follow(&walk, out);
    }
    for (uint32_t i = 0; i < ranks->count; i++) {
        ox_trace_chain_close(&walk.chains[i]);
    }
    return status;
}

/* ---- the files of a run ------------------------------------------------------------------------------ */

/* The part of a title that all ranks have alike, behind "rank R of N"; NULL where the trace is of one rank alone. */
static const char *title_of(const struct ox_trace_header *head, uint32_t *idx, uint32_t *count) {
    int used = 0;
    if (sscanf(head->title, "rank %" SCNu32 " of %" SCNu32 ",%n", idx, count, &used) != 2 || used == 0 ||
        *count < 2 || *count > OX_TRACE_RANKS_MAX || *idx >= *count) {
        return NULL;
    }
    return head->title + used;
}

/* Writes the path of rank `idx`'s file, which stands beside `path`; false if `path` is not that of rank `own`. */
static bool sibling_path(const char *path, uint32_t own, uint32_t idx, char out[OX_PATH_BYTES]) {
    const char *const slash = strrchr(path, '/'), *const name = slash == NULL ? path : slash + 1;
    const int folder_bytes = (int)(name - path);
    char number[16] = "", own_name[32];
    snprintf(number, sizeof number, own == 0 ? "" : "-%" PRIu32, own);
    snprintf(own_name, sizeof own_name, "trace%s.bin", number);
    snprintf(number, sizeof number, idx == 0 ? "" : "-%" PRIu32, idx);
    const int bytes = snprintf(out, OX_PATH_BYTES, "%.*strace%s.bin", folder_bytes, path, number);
    return strcmp(name, own_name) == 0 && bytes < OX_PATH_BYTES;
}

static enum ox_status open_rank(const char *path, uint32_t idx, struct ox_trace_rank *out) {
    *out = (struct ox_trace_rank){.idx = idx};
    enum ox_status status = ox_trace_open(path, 0, &out->trace);
    OX_THEN(status, ox_trace_steps_open(out->trace, &out->steps));
    return status;
}

static void close_rank(struct ox_trace_rank *rank) {
    ox_trace_steps_close(&rank->steps);
    ox_trace_close(&rank->trace);
}

static bool share_a_step(const struct ox_trace_steps *a, const struct ox_trace_steps *b) {
    for (uint32_t i = 0; i < a->count; i++) {
        if (find_step(a, a->steps[i].step) != NULL && find_step(b, a->steps[i].step) != NULL) {
            return true;
        }
    }
    return false;
}

/* Whether two files are of ranks that took the same steps together. */
static enum ox_status check_together(const char *path, const struct ox_trace_rank *a, const struct ox_trace_rank *b) {
    uint32_t idx = 0, a_count = 0, b_count = 0;
    const char *const a_title = title_of(a->trace->head, &idx, &a_count);
    const char *const b_title = title_of(b->trace->head, &idx, &b_count);
    const size_t a_bytes = a_title != NULL ? ox_trace_title_bytes(a_title) : 0; /* their machines may differ */
    if (a_title == NULL || b_title == NULL || ox_trace_title_bytes(b_title) != a_bytes ||
        memcmp(a_title, b_title, a_bytes) != 0 || a_count != b_count || idx != b->idx ||
        memcmp(a->trace->head->names, b->trace->head->names, sizeof a->trace->head->names) != 0) {
        return ox_fail(OX_E_CONFIG, "%s: is of another run", path);
    }
    return share_a_step(a->steps, b->steps)
               ? OX_OK : ox_fail(OX_E_CONFIG, "%s: has no whole step that the rank shown has too", path);
}

/* Opens the files of the other ranks around that of the one shown, which is in out->ranks[0]. */
static void open_others(const char *path, struct ox_trace_ranks *out) {
    const struct ox_trace_rank shown = out->ranks[0];
    char other[OX_PATH_BYTES];
    out->count = 0;
    for (uint32_t idx = 0; idx < out->run_count; idx++) {
        struct ox_trace_rank *const rank = &out->ranks[out->count];
        if (idx == shown.idx) {
            out->shown = out->count++;
            *rank = shown;
            continue;
        }
        sibling_path(path, shown.idx, idx, other);
        enum ox_status status = ox_path_exists(other) ? open_rank(other, idx, rank)
                                                      : ox_fail(OX_E_CONFIG, "%s: is not there", other);
        OX_THEN(status, check_together(other, &shown, rank));
        if (status == OX_OK) {
            out->count++;
        } else {
            ox_log(OX_LOG_WARN, "%s; rank %" PRIu32 " of %" PRIu32 " is left out", ox_error_text(), idx,
                   out->run_count);
            close_rank(rank);
        }
    }
}

enum ox_status ox_trace_ranks_open(const char *path, struct ox_trace_ranks *out) {
    char inside[OX_PATH_BYTES], unused[OX_PATH_BYTES];
    uint32_t idx = 0, count = 0;
    *out = (struct ox_trace_ranks){.count = 1, .run_count = 1};
    enum ox_status status = open_rank(path, 0, &out->ranks[0]);
    if (status == OX_OK && ox_path_is_folder(path)) {
        status = ox_path_join(path, "trace.bin", inside);
        path = inside;
    }
    if (status == OX_OK && title_of(out->ranks[0].trace->head, &idx, &count) != NULL &&
        sibling_path(path, idx, 0, unused)) {
        out->ranks[0].idx = idx;
        out->run_count = count;
        open_others(path, out);
    }
    if (status != OX_OK) {
        ox_trace_ranks_close(out);
    }
    return status;
}

void ox_trace_ranks_close(struct ox_trace_ranks *ranks) {
    for (uint32_t i = 0; i < ranks->count; i++) {
        close_rank(&ranks->ranks[i]);
    }
    *ranks = (struct ox_trace_ranks){0};
}
