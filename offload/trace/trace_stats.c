#include "offload/trace/trace_stats_internal.h"

#include "base/assert.h"
#include "base/bytes.h"

#include <stdlib.h>
#include <string.h>

const char *ox_trace_cause_name(const struct ox_trace_header *head, uint32_t cause) {
    static const char *const names[] = {"issue", "start", "done"};
    OX_ASSERT(cause < OX_TRACE_CAUSE_COUNT);
    if (cause >= OX_TRACE_CAUSE_ISSUE) {
        return names[cause - OX_TRACE_CAUSE_ISSUE];
    }
    const bool part = cause >= OX_TRACE_CAUSE_PART;
    const struct ox_trace_names *const table = &head->names[part ? OX_TRACE_PART_NAMES : OX_TRACE_LANES];
    const uint32_t idx = part ? cause - OX_TRACE_CAUSE_PART : cause;
    return idx < table->count ? table->text[idx] : "";
}

/* ---- steps ---------------------------------------------------------------------------------------- */

static void add_task(struct ox_trace_step *step, const struct ox_trace_record *record) {
    step->task_count += step->tasks[record->task_idx] == NULL;
    step->tasks[record->task_idx] = record;
}

static void add_record(struct ox_trace_step *step, const struct ox_trace_record *record) {
    switch ((enum ox_trace_type)record->type) {
    case OX_TRACE_TASK:
        add_task(step, record);
        break;
    case OX_TRACE_PARTS:
        step->parts[record->task_idx] = record;
        break;
    case OX_TRACE_FLOW:
        step->flows[step->flow_count++] = record;
        break;
    case OX_TRACE_BYTES:
        step->bytes[record->link][record->traffic] = record->bytes;
        break;
    case OX_TRACE_PLANNED:
        step->planned[record->link][record->traffic] = record->bytes;
        break;
    case OX_TRACE_END:
        break;
    }
}

/* Assigns records to spans. A span's records come before its end record; if that record was lost, they belong to
 * none. */
static void fill_steps(const struct ox_trace *trace, struct ox_trace_steps *steps) {
    uint32_t ended = 0;
    for (uint64_t i = 0; i < trace->count && ended < steps->count; i++) {
        const struct ox_trace_record *const record = &trace->records[i];
        struct ox_trace_step *const next = &steps->steps[ended];
        if (record->type == OX_TRACE_END) {
            ended++;
        } else if (record->span == next->span && record->plan == next->plan && record->step == next->step) {
            add_record(next, record);
        }
    }
}

/* Whether the span runs a whole plan, as steps and evaluations do; other spans should move what their own records
 * say. */
static bool is_plan(const struct ox_trace_step *step) {
    return step->span == OX_TRACE_SPAN_STEP || step->span == OX_TRACE_SPAN_EVAL;
}

/* Allocates a span; at most `flow_count` flow records belong to it. */
static enum ox_status make_step(const struct ox_trace *trace, const struct ox_trace_record *record,
                                uint32_t flow_count, struct ox_trace_step *out) {
    const uint32_t task_count = trace->head->plans[record->plan].task_count;
    *out = (struct ox_trace_step){.step = record->step, .begin_ns = record->started_ns, .end_ns = record->ended_ns,
                                  .plan = record->plan, .span = record->span, .failed = record->failed,
                                  .dropped = record->bytes};
    if (is_plan(out)) {
        memcpy(out->planned, trace->head->plans[record->plan].traffic, sizeof out->planned);
    }
    out->tasks = calloc(task_count + 1u, sizeof *out->tasks);
    out->parts = calloc(task_count + 1u, sizeof *out->parts);
    out->flows = calloc(flow_count + 1u, sizeof *out->flows);
    return out->tasks != NULL && out->parts != NULL && out->flows != NULL
               ? OX_OK : ox_fail(OX_E_NOMEM, "trace: no memory for its steps");
}

/* How many tasks the span has: all of its plan, or those of the carried update. */
static uint32_t task_count_of(const struct ox_trace *trace, const struct ox_trace_step *step) {
    const struct ox_trace_plan *const plan = &trace->head->plans[step->plan];
    uint32_t count = 0;
    for (uint32_t i = 0; i < plan->task_count; i++) {
        count += is_plan(step) || (step->span == OX_TRACE_SPAN_UPDATE && plan->tasks[i].carried);
    }
    return count;
}

static uint64_t wall(const struct ox_trace_step *step) {
    return step->end_ns - step->begin_ns;
}

struct length {
    const struct ox_trace_step *step;
    uint32_t idx;
};

/* Steps that should have moved the same bytes stand together, the shortest first. */
static int by_work_and_length(const void *a, const void *b) {
    const struct length *const left = a, *const right = b;
    const int work = memcmp(left->step->planned, right->step->planned, sizeof left->step->planned);
    if (work != 0) {
        return work;
    }
    if (wall(left->step) != wall(right->step)) {
        return wall(left->step) < wall(right->step) ? -1 : 1;
    }
    return left->idx < right->idx ? -1 : left->idx > right->idx;
}

/* Returns the step of median length among those that did what most did. A run's first step carries no update, nor does
 * one behind a save: either says little about the others, however long it took. */
static uint32_t typical_of(struct length *lengths, uint32_t count) {
    uint32_t typical_idx = UINT32_MAX, most = 0, newest_idx = 0;
    qsort(lengths, count, sizeof *lengths, by_work_and_length);
    for (uint32_t first = 0, end = 0; first < count; first = end) {
        uint32_t newest_here = 0;
        for (; end < count && memcmp(lengths[end].step->planned, lengths[first].step->planned,
                                     sizeof lengths->step->planned) == 0; end++) {
            newest_here = lengths[end].idx > newest_here ? lengths[end].idx : newest_here;
        }
        if (end - first > most || (end - first == most && newest_here > newest_idx)) {
            typical_idx = lengths[first + (end - first - 1) / 2].idx;
            most = end - first;
            newest_idx = newest_here;
        }
    }
    return typical_idx;
}

static enum ox_status find_typical(const struct ox_trace *trace, struct ox_trace_steps *steps) {
    struct length *const lengths = calloc(steps->count + 1u, sizeof *lengths);
    if (lengths == NULL) {
        return ox_fail(OX_E_NOMEM, "trace: no memory for %u steps", steps->count);
    }
    for (uint32_t i = 0; i < steps->count; i++) {
        struct ox_trace_step *const step = &steps->steps[i];
        const uint32_t task_count = task_count_of(trace, step);
        step->whole = !step->failed && task_count > 0 && step->task_count == task_count;
        if (step->whole && step->span == OX_TRACE_SPAN_STEP) {
            lengths[steps->whole_count++] = (struct length){.step = step, .idx = i};
        }
    }
    steps->typical_idx = typical_of(lengths, steps->whole_count);
    free(lengths);
    return OX_OK;
}

enum ox_status ox_trace_steps_open(const struct ox_trace *trace, struct ox_trace_steps **out) {
    *out = NULL;
    uint32_t count = 0;
    for (uint64_t i = 0; i < trace->count; i++) {
        count += trace->records[i].type == OX_TRACE_END;
    }
    struct ox_trace_steps *steps = calloc(1, sizeof *steps);
    enum ox_status status = OX_OK;
    if (steps != NULL) {
        steps->steps = calloc(count + 1u, sizeof *steps->steps);
    }
    if (steps == NULL || steps->steps == NULL) {
        status = ox_fail(OX_E_NOMEM, "trace: no memory for %u steps", count);
    }
    uint32_t flow_count = 0;
    for (uint64_t i = 0; status == OX_OK && i < trace->count; i++) {
        const struct ox_trace_record *const record = &trace->records[i];
        flow_count += record->type == OX_TRACE_FLOW;
        if (record->type == OX_TRACE_END) {
            status = make_step(trace, record, flow_count, &steps->steps[steps->count++]);
            flow_count = 0;
        }
    }
    if (status == OX_OK) {
        fill_steps(trace, steps);
        status = find_typical(trace, steps);
    }
    if (status != OX_OK) {
        ox_trace_steps_close(&steps);
    }
    *out = steps;
    return status;
}

void ox_trace_steps_close(struct ox_trace_steps **steps_ptr) {
    struct ox_trace_steps *const steps = *steps_ptr;
    if (steps == NULL) {
        return;
    }
    for (uint32_t i = 0; i < steps->count; i++) {
        free(steps->steps[i].tasks);
        free(steps->steps[i].parts);
        free(steps->steps[i].flows);
    }
    free(steps->steps);
    free(steps);
    *steps_ptr = NULL;
}

/* ---- who waited for whom ------------------------------------------------------------------------------ */

static uint64_t clamp(uint64_t value, uint64_t low, uint64_t high) {
    return value < low ? low : value > high ? high : value;
}

static void consider(const struct ox_trace_chain *chain, uint32_t candidate, uint64_t until_ns, uint32_t *best) {
    const struct ox_trace_record *const *const tasks = chain->step->tasks;
    if (candidate == OX_TRACE_NO_TASK || tasks[candidate] == NULL || tasks[candidate]->ended_ns > until_ns) {
        return;
    }
    if (*best == OX_TRACE_NO_TASK || tasks[candidate]->ended_ns > tasks[*best]->ended_ns) {
        *best = candidate;
    }
}

uint32_t ox_trace_held_by(const struct ox_trace_chain *chain, uint32_t idx) {
    const struct ox_trace_plan *const plan = &chain->head->plans[chain->step->plan];
    const uint64_t started_ns = chain->step->tasks[idx]->started_ns;
    uint32_t best = OX_TRACE_NO_TASK;
    for (uint32_t lane = 0; lane < chain->head->names[OX_TRACE_LANES].count; lane++) {
        if (plan->tasks[idx].deps[lane] > 0) {
            consider(chain, plan->tasks[idx].deps[lane] - 1, started_ns, &best);
        }
    }
    consider(chain, chain->previous[idx], started_ns, &best);
    if (chain->norm_idx < idx) {
        consider(chain, chain->norm_idx, started_ns, &best);
    }
    if (chain->head->run_ahead > 0 && idx >= chain->head->run_ahead) {
        consider(chain, idx - chain->head->run_ahead, started_ns, &best);
    }
    return best;
}

/* Adds `ns` of a task to its lane and, in proportion, to what it waited for inside; returns the lane's part. */
uint64_t ox_trace_add_time(const struct ox_trace_chain *chain, uint32_t idx, uint64_t ns,
                           uint64_t causes[OX_TRACE_CAUSE_COUNT]) {
    const struct ox_trace_record *const parts = chain->step->parts[idx];
    const uint8_t lane = chain->step->tasks[idx]->lane;
    uint64_t all_ns = 0, left_ns = ns;
    for (int i = 0; i < OX_TRACE_PARTS_MAX && parts != NULL; i++) {
        all_ns += parts->parts_ns[i];
    }
    for (int i = 0; i < OX_TRACE_PARTS_MAX && all_ns > 0; i++) {
        const double share = (double)ox_min_u64(parts->parts_ns[i], all_ns) / (double)all_ns;
        const uint64_t part_ns = ox_min_u64((uint64_t)(share * (double)ns), left_ns);
        if (i != OX_TRACE_PART_WORK) {
            causes[OX_TRACE_CAUSE_PART + i] += part_ns;
            left_ns -= part_ns;
        }
    }
    causes[lane] += left_ns;
    return left_ns;
}

/* Divides [from_ns, until_ns], at the end of which task `idx` started, among what held it up: `causes` gets the time by
 * lane and cause, `kinds` (may be NULL) the time of tasks by kind. */
static void share_out(const struct ox_trace_chain *chain, uint32_t idx, uint64_t from_ns, uint64_t until_ns,
                      uint64_t causes[OX_TRACE_CAUSE_COUNT], uint64_t *kinds) {
    const struct ox_trace_record *const *const tasks = chain->step->tasks;
    while (until_ns > from_ns) {
        const uint32_t cause = ox_trace_held_by(chain, idx);
        const uint64_t ended_ns =
            cause == OX_TRACE_NO_TASK ? from_ns : clamp(tasks[cause]->ended_ns, from_ns, until_ns);
        const uint64_t queued_ns = clamp(tasks[idx]->queued_ns, ended_ns, until_ns);
        causes[OX_TRACE_CAUSE_ISSUE] += queued_ns - ended_ns;
        causes[OX_TRACE_CAUSE_START] += until_ns - queued_ns;
        if (cause == OX_TRACE_NO_TASK) {
            return;
        }
        const uint64_t started_ns = clamp(tasks[cause]->started_ns, from_ns, ended_ns);
        const uint64_t work_ns = ox_trace_add_time(chain, cause, ended_ns - started_ns, causes);
        if (kinds != NULL) {
            kinds[tasks[cause]->kind] += work_ns;
        }
        until_ns = started_ns;
        idx = cause;
    }
}

static void analyze_lanes(const struct ox_trace_chain *chain, struct ox_trace_analysis *out) {
    const struct ox_trace_step *const step = chain->step;
    const uint32_t lane_count = chain->head->names[OX_TRACE_LANES].count;
    uint64_t past_ns[OX_TRACE_LANES_MAX]; /* the end of each lane's previous task */
    for (uint32_t lane = 0; lane < lane_count; lane++) {
        past_ns[lane] = step->begin_ns;
    }
    for (uint32_t i = 0; i < chain->head->plans[step->plan].task_count; i++) {
        const struct ox_trace_record *const task = step->tasks[i];
        if (task == NULL) {
            continue;
        }
        uint64_t *const past = &past_ns[task->lane];
        const uint64_t started_ns = clamp(task->started_ns, *past, step->end_ns);
        const uint64_t ended_ns = clamp(task->ended_ns, started_ns, step->end_ns);
        share_out(chain, i, *past, started_ns, out->held_ns[task->lane], NULL);
        uint64_t *const held = out->held_ns[task->lane];
        const uint64_t work_ns = ox_trace_add_time(chain, i, ended_ns - started_ns, held);
        held[task->lane] -= work_ns;
        out->busy_ns[task->lane] += work_ns;
        *past = ended_ns;
    }
    for (uint32_t lane = 0; lane < lane_count; lane++) {
        out->held_ns[lane][OX_TRACE_CAUSE_DONE] += step->end_ns - past_ns[lane];
    }
}

uint32_t ox_trace_last_task(const struct ox_trace_chain *chain) {
    const struct ox_trace_step *const step = chain->step;
    uint32_t last = OX_TRACE_NO_TASK;
    for (uint32_t i = 0; i < chain->head->plans[step->plan].task_count; i++) {
        consider(chain, step->tasks[i] != NULL ? i : OX_TRACE_NO_TASK, step->end_ns, &last);
    }
    return last;
}

static void analyze_chain(const struct ox_trace_chain *chain, struct ox_trace_analysis *out) {
    const struct ox_trace_step *const step = chain->step;
    const uint32_t last = ox_trace_last_task(chain);
    if (last == OX_TRACE_NO_TASK) {
        out->chain_ns[OX_TRACE_CAUSE_DONE] = out->wall_ns;
        return;
    }
    const struct ox_trace_record *const task = step->tasks[last];
    const uint64_t started_ns = clamp(task->started_ns, step->begin_ns, task->ended_ns);
    out->chain_ns[OX_TRACE_CAUSE_DONE] = step->end_ns - task->ended_ns;
    out->chain_kind_ns[task->kind] += ox_trace_add_time(chain, last, task->ended_ns - started_ns, out->chain_ns);
    share_out(chain, last, step->begin_ns, started_ns, out->chain_ns, out->chain_kind_ns);
}

static void analyze_kinds(const struct ox_trace_chain *chain, struct ox_trace_analysis *out) {
    const struct ox_trace_plan *const plan = &chain->head->plans[chain->step->plan];
    for (uint32_t i = 0; i < plan->task_count; i++) {
        const struct ox_trace_record *const task = chain->step->tasks[i];
        const double end = plan->tasks[i].predicted_begin + plan->tasks[i].predicted_seconds;
        out->predicted_seconds = end > out->predicted_seconds ? end : out->predicted_seconds;
        if (task != NULL) {
            out->kind_ns[task->kind] += task->ended_ns - task->started_ns;
            out->kind_bytes[task->kind] += task->bytes;
            out->kind_count[task->kind]++;
            out->kind_predicted[task->kind] += task->predicted_seconds;
            for (int part = 0; part < OX_TRACE_PARTS_MAX && chain->step->parts[i] != NULL; part++) {
                out->kind_part_ns[task->kind][part] += chain->step->parts[i]->parts_ns[part];
            }
        }
    }
}

/* The norm task, for which the issue waits because it decides whether and how the optimizer runs; or
 * OX_TRACE_NO_TASK. */
static uint32_t find_norm(const struct ox_trace_header *head, const struct ox_trace_plan *plan) {
    for (uint32_t i = 0; i < plan->task_count; i++) {
        if (strcmp(head->names[OX_TRACE_TASKS].text[plan->tasks[i].kind], "norm") == 0) {
            return i;
        }
    }
    return OX_TRACE_NO_TASK;
}

enum ox_status ox_trace_chain_open(const struct ox_trace_header *head, const struct ox_trace_step *step,
                                   struct ox_trace_chain *out) {
    const struct ox_trace_plan *const plan = &head->plans[step->plan];
    uint32_t last[OX_TRACE_LANES_MAX];
    *out = (struct ox_trace_chain){.head = head, .step = step, .norm_idx = find_norm(head, plan)};
    out->previous = malloc((plan->task_count + 1u) * sizeof *out->previous);
    if (out->previous == NULL) {
        return ox_fail(OX_E_NOMEM, "trace: no memory to analyze step %llu", (unsigned long long)step->step);
    }
    for (int i = 0; i < OX_TRACE_LANES_MAX; i++) {
        last[i] = OX_TRACE_NO_TASK;
    }
    for (uint32_t i = 0; i < plan->task_count; i++) {
        out->previous[i] = last[plan->tasks[i].lane];
        last[plan->tasks[i].lane] = i;
    }
    return OX_OK;
}

void ox_trace_chain_close(struct ox_trace_chain *chain) {
    free(chain->previous);
    *chain = (struct ox_trace_chain){0};
}

enum ox_status ox_trace_analyze(const struct ox_trace_header *head, const struct ox_trace_step *step,
                                struct ox_trace_analysis *out) {
    struct ox_trace_chain chain;
    const enum ox_status status = ox_trace_chain_open(head, step, &chain);
    *out = (struct ox_trace_analysis){.wall_ns = wall(step)};
    if (status == OX_OK) {
        analyze_lanes(&chain, out);
        analyze_chain(&chain, out);
        analyze_kinds(&chain, out);
    }
    ox_trace_chain_close(&chain);
    return status;
}

/* ---- memory -------------------------------------------------------------------------------------- */

struct change {
    uint64_t ns;
    uint32_t buf_idx;
    bool begins;
};

/* At equal times ends come first, because a new buffer may take over the memory. */
static int by_time(const void *a, const void *b) {
    const struct change *const left = a, *const right = b;
    if (left->ns != right->ns) {
        return left->ns < right->ns ? -1 : 1;
    }
    return (int)left->begins - (int)right->begins;
}

static uint32_t list_changes(const struct ox_trace_plan *plan, const struct ox_trace_step *step, uint32_t tier,
                             struct change *changes) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < plan->buf_count; i++) {
        const struct ox_trace_buf *const buf = &plan->bufs[i];
        const struct ox_trace_record *const first = step->tasks[buf->first_task_idx];
        const struct ox_trace_record *const last = step->tasks[buf->last_task_idx];
        if (buf->tier != tier || buf->resident || first == NULL || last == NULL) {
            continue;
        }
        const uint64_t begin_ns = clamp(first->started_ns, step->begin_ns, step->end_ns);
        const uint64_t end_ns = clamp(last->ended_ns, begin_ns, step->end_ns);
        changes[count++] = (struct change){.ns = begin_ns, .buf_idx = i, .begins = true};
        changes[count++] = (struct change){.ns = end_ns, .buf_idx = i};
    }
    qsort(changes, count, sizeof *changes, by_time);
    return count;
}

enum ox_status ox_trace_memory(const struct ox_trace_header *head, const struct ox_trace_step *step,
                               uint32_t tier, struct ox_trace_moment **moments, uint32_t *count) {
    const struct ox_trace_plan *const plan = &head->plans[step->plan];
    struct change *const changes = calloc(2 * (size_t)plan->buf_count + 1, sizeof *changes);
    *moments = calloc(2 * (size_t)plan->buf_count + 1, sizeof **moments);
    *count = 0;
    if (changes == NULL || *moments == NULL) {
        free(changes);
        free(*moments);
        *moments = NULL;
        return ox_fail(OX_E_NOMEM, "trace: no memory for what the arenas held");
    }
    struct ox_trace_moment now = {0};
    for (uint32_t i = 0; i < plan->buf_count; i++) {
        if (plan->bufs[i].tier == tier && plan->bufs[i].resident) {
            now.bytes[plan->bufs[i].kind] += plan->bufs[i].bytes;
        }
    }
    (*moments)[(*count)++] = now;
    const uint32_t change_count = list_changes(plan, step, tier, changes);
    for (uint32_t i = 0; i < change_count; i++) {
        const struct ox_trace_buf *const buf = &plan->bufs[changes[i].buf_idx];
        now.ns = changes[i].ns - step->begin_ns;
        now.bytes[buf->kind] += changes[i].begins ? buf->bytes : (uint64_t)0 - buf->bytes;
        const bool same = (*moments)[*count - 1].ns == now.ns;
        *count += !same;
        (*moments)[*count - 1] = now;
    }
    free(changes);
    return OX_OK;
}
