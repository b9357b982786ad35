/* Each lane has a ring of the tasks that were issued, in order. The lane's thread fills in times; the issuing thread
 * collects tasks that have ended and passes them to the writer of the file. They share no lock: each thread writes its
 * own counters and reads those of the other, and once a lane is drained the issuing thread owns all of the ring. */

#include "engine/step/rank/recorder.h"

#include "base/assert.h"
#include "base/clock.h"
#include "offload/trace/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RING_LEN = 4 * OX_RUN_AHEAD_TASKS, CACHE_LINE_BYTES = 64 };
/* Records go to the file this often, so that a killed run loses no more than that. */
static const uint64_t FLUSH_NS = 100000000;

/* What the two threads exchange about a task, in one cache line; the plan has the rest. */
struct entry {
    _Alignas(CACHE_LINE_BYTES) const struct ox_mark *mark; /* set when the task is issued */
    uint64_t last_seq; /* number of the task's last job, atomic; 0: not yet known */
    uint64_t queued_ns, started_ns, ended_ns, waited_ns;
    uint32_t task_idx;
    bool idle;
    bool has_parts; /* set by the lane: lane_log.parts_ns has the parts of its time */
};
_Static_assert(sizeof(struct entry) == CACHE_LINE_BYTES, "an entry is a line");

/* Numbers count all entries ever: collected <= running <= issued. */
struct lane_log {
    struct entry ring[RING_LEN];
    uint64_t (*parts_ns)[OX_TRACE_PART_COUNT]; /* per entry; NULL except on the optimizer's lane */
    uint64_t epoch_ns;
    _Alignas(CACHE_LINE_BYTES) uint64_t issued; /* atomic, set by the issuing thread     */
    uint64_t collected;                         /* used by the issuing thread alone      */
    _Alignas(CACHE_LINE_BYTES) uint64_t running; /* atomic, set by the lane            */
    uint64_t seen_issued;                        /* used by the lane alone, as the rest */
    uint64_t seen_seq, seen_end_ns;              /* number and end of its last job     */
};

/* Transfers of the optimizer's stream. Chunks are joined into one record until FLOW_NS have passed, the unit changes,
 * or the drives were idle for a while, so that there are few records however small chunks are. */
enum { FLOW_NS = 20000000, FLOW_NS_MIN = 1000000 };
struct flow {
    bool open;
    uint64_t begin_ns, end_ns, idle_ns, bytes;
    uint32_t unit_idx, chunk_count;
};

struct ox_tracing {
    struct ox_rank *rank;
    struct ox_trace_writer *writer;
    struct lane_log logs[OX_LANE_COUNT];
    struct flow flows[2];        /* reads, written by the reader's thread; writes, by the writer's thread */
    const struct ox_plan *plan;  /* plan of the current span; NULL: there is none */
    uint8_t span;
    uint64_t epoch_ns, begin_ns; /* time 0 of the trace; begin of the span */
    uint64_t steps_left;         /* steps still to record; UINT64_MAX: all */
    uint64_t step;
    bool paused;
    uint64_t missed;             /* tasks whose ring was full */
    uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]; /* counters when the span began */
    float *predicted; /* seconds of each task of training */
    uint64_t flushed_ns;
    uint64_t adam_parts_ns[RING_LEN][OX_TRACE_PART_COUNT];
};

static uint8_t plan_of(const struct ox_tracing *tracing) {
    static const uint8_t plans[] = {[OX_PLAN_TRAIN] = OX_TRACE_TRAIN, [OX_PLAN_EVAL] = OX_TRACE_EVAL,
                                    [OX_PLAN_EVAL_AFTER_STEP] = OX_TRACE_EVAL_AFTER_STEP};
    return plans[tracing->plan->kind];
}

void ox_tracing_label(const struct ox_task *task, char text[OX_RANGE_BYTES]) {
    const uint32_t unit_idx = ox_task_number(task);
    int used = snprintf(text, OX_RANGE_BYTES, "%s", ox_task_name(task));
    if (unit_idx != OX_NONE && used < OX_RANGE_BYTES) {
        used += snprintf(text + used, (size_t)(OX_RANGE_BYTES - used), " unit %u", unit_idx);
    }
    if (task->mb_idx != OX_NONE && used < OX_RANGE_BYTES) {
        snprintf(text + used, (size_t)(OX_RANGE_BYTES - used), ", batch %u", task->mb_idx);
    }
}

/* ---- the lanes' side --------------------------------------------------------------------------------- */

/* Whether the task at `running` is issued. Reads the issuing thread's counter only if the value seen last is
 * used up. */
static bool is_issued(struct lane_log *log) {
    if (log->running == log->seen_issued) {
        log->seen_issued = __atomic_load_n(&log->issued, __ATOMIC_ACQUIRE);
    }
    return log->running < log->seen_issued;
}

/* Sets the end of tasks whose last job has run. */
static void end_tasks(struct lane_log *log) {
    for (; is_issued(log); __atomic_store_n(&log->running, log->running + 1, __ATOMIC_RELEASE)) {
        struct entry *const entry = &log->ring[log->running % RING_LEN];
        const uint64_t last_seq = __atomic_load_n(&entry->last_seq, __ATOMIC_ACQUIRE);
        if (last_seq == 0 || log->seen_seq < last_seq) {
            return;
        }
        entry->ended_ns = log->seen_end_ns;
        if (entry->started_ns == 0) { /* no job of it ran */
            entry->started_ns = log->seen_end_ns;
        }
    }
}

/* The lane's observer. When a job of a later task comes, the issue of the earlier task was already published, so the
 * job before was the last of the earlier task. */
static void on_job(void *context, const struct ox_job_times *times) {
    struct lane_log *const log = context;
    const uint64_t begin_ns = times->begin_ns - log->epoch_ns;
    end_tasks(log);
    if (log->running < log->seen_issued) {
        struct entry *const entry = &log->ring[log->running % RING_LEN];
        if (times->wait) {
            entry->waited_ns += times->end_ns - times->begin_ns;
        } else if (entry->started_ns == 0) {
            entry->started_ns = begin_ns > entry->queued_ns ? begin_ns : entry->queued_ns;
        }
    }
    log->seen_seq = times->seq;
    log->seen_end_ns = times->end_ns - log->epoch_ns;
}

/* Called on the lane's thread within a job of the task, so all earlier tasks have ended. */
void ox_tracing_parts(struct ox_tracing *tracing, uint32_t task_idx, const uint64_t parts_ns[OX_TRACE_PART_COUNT]) {
    if (tracing == NULL || tracing->plan == NULL) {
        return;
    }
    struct lane_log *const log = &tracing->logs[tracing->plan->tasks[task_idx].lane];
    const uint64_t issued = __atomic_load_n(&log->issued, __ATOMIC_ACQUIRE);
    for (uint64_t i = log->running; i < issued && log->parts_ns != NULL; i++) {
        struct entry *const entry = &log->ring[i % RING_LEN];
        if (entry->task_idx == task_idx) {
            entry->has_parts = true;
            memcpy(log->parts_ns[i % RING_LEN], parts_ns, sizeof *log->parts_ns);
            return;
        }
    }
}

/* ---- the optimizer's stream: on its threads ----------------------------------------------------------- */

static void put_flow(struct ox_tracing *tracing, struct flow *flow, bool write) {
    if (!flow->open) {
        return;
    }
    flow->open = false;
    const struct ox_trace_record record = {
        .type = OX_TRACE_FLOW, .plan = plan_of(tracing), .lane = OX_LANE_ADAM,
        .link = write ? OX_LINK_NVME_WRITE : OX_LINK_NVME_READ, .traffic = OX_TRAFFIC_STATE, .span = tracing->span,
        .step = tracing->step, .task_idx = flow->chunk_count, .unit_idx = flow->unit_idx,
        .mb_idx = OX_NONE, .bytes = flow->bytes, .queued_ns = flow->begin_ns, .started_ns = flow->begin_ns,
        .ended_ns = flow->end_ns, .waited_ns = flow->idle_ns};
    ox_trace_writer_put(tracing->writer, &record);
}

void ox_tracing_transfer(struct ox_tracing *tracing, const struct ox_tracing_transfer *transfer) {
    if (tracing == NULL || tracing->plan == NULL) {
        return;
    }
    struct flow *const flow = &tracing->flows[transfer->write];
    const uint32_t unit_idx = transfer->unit_idx;
    const uint64_t since_ns = transfer->busy_since_ns - tracing->epoch_ns;
    const uint64_t gap_ns = flow->open && since_ns > flow->end_ns ? since_ns - flow->end_ns : 0;
    if (flow->unit_idx != unit_idx || flow->end_ns - flow->begin_ns >= FLOW_NS ||
        (gap_ns > 0 && flow->end_ns - flow->begin_ns >= FLOW_NS_MIN)) {
        put_flow(tracing, flow, transfer->write);
    }
    if (!flow->open) {
        *flow = (struct flow){.open = true, .unit_idx = unit_idx,
                              .begin_ns = since_ns > flow->end_ns ? since_ns : flow->end_ns};
    } else {
        flow->idle_ns += gap_ns;
    }
    flow->end_ns = transfer->end_ns - tracing->epoch_ns;
    flow->bytes += transfer->bytes;
    flow->chunk_count++;
}

void ox_tracing_read(struct ox_tracing *tracing, uint32_t unit_idx, uint64_t begin_ns, uint64_t bytes) {
    if (tracing == NULL || tracing->plan == NULL) {
        return;
    }
    struct flow *const flow = &tracing->flows[0]; /* the stream's reader is idle now */
    put_flow(tracing, flow, false);
    *flow = (struct flow){.open = true, .begin_ns = begin_ns - tracing->epoch_ns, .bytes = bytes, .chunk_count = 1,
                          .end_ns = ox_clock_ns() - tracing->epoch_ns, .unit_idx = unit_idx};
    put_flow(tracing, flow, false);
}

/* ---- the issuing thread's side ------------------------------------------------------------------------ */

/* Publishes to the lane which job is the last of the task issued last, by its mark. */
static void publish(struct lane_log *log) {
    struct entry *const entry = &log->ring[(log->issued - 1) % RING_LEN];
    if (log->issued > log->collected && entry->last_seq == 0) {
        __atomic_store_n(&entry->last_seq, entry->mark->seq, __ATOMIC_RELEASE);
    }
}

/* The link of a lane's moves. The optimizer's lane reads and writes over several links, so it has none. */
static uint8_t link_of(const struct ox_plan_budget *budget, uint8_t lane) {
    const enum ox_link link = ox_lane_link((enum ox_lane_id)lane);
    const bool within = budget->unified && (link == OX_LINK_H2D || link == OX_LINK_D2H);
    return link == OX_LINK_COUNT || within ? OX_TRACE_NO_LINK : (uint8_t)link;
}

/* Makes a task's record. It belongs to the current span, because no task is left at the end of a span. */
static struct ox_trace_record record_of(const struct ox_tracing *tracing, const struct entry *entry) {
    const struct ox_task *const task = &tracing->plan->tasks[entry->task_idx];
    const uint8_t plan = plan_of(tracing);
    return (struct ox_trace_record){
        .type = OX_TRACE_TASK, .plan = plan, .lane = task->lane, .kind = (uint8_t)ox_task_word(task),
        .last = task->last,
        .link = link_of(&tracing->rank->config.budget, task->lane),
        .traffic = (uint8_t)ox_task_traffic(task), .span = tracing->span,
        .idle = entry->idle, .step = tracing->step, .task_idx = entry->task_idx,
        .unit_idx = ox_task_number(task), .mb_idx = task->mb_idx, .bytes = entry->idle ? 0 : task->bytes,
        .queued_ns = entry->queued_ns,
        .started_ns = entry->started_ns, .ended_ns = entry->ended_ns, .waited_ns = entry->waited_ns,
        .predicted_seconds = plan == OX_TRACE_TRAIN ? (double)tracing->predicted[entry->task_idx] : 0};
}

/* Turns the record of a task into the record of its parts, and puts it. */
static void put_parts(struct ox_tracing *tracing, struct ox_trace_record record, const uint64_t *parts_ns) {
    uint64_t work_ns = record.ended_ns - record.started_ns;
    for (int i = 0; i < OX_TRACE_PART_COUNT; i++) {
        record.parts_ns[i] = parts_ns[i] < work_ns ? parts_ns[i] : work_ns;
        work_ns -= record.parts_ns[i];
    }
    record.type = OX_TRACE_PARTS;
    record.parts_ns[OX_TRACE_PART_WORK] = work_ns;
    ox_trace_writer_put(tracing->writer, &record);
}

static void collect(struct ox_tracing *tracing, struct lane_log *log) {
    for (const uint64_t ended = __atomic_load_n(&log->running, __ATOMIC_ACQUIRE); log->collected < ended;
         log->collected++) {
        const struct entry *const entry = &log->ring[log->collected % RING_LEN];
        const struct ox_trace_record record = record_of(tracing, entry);
        ox_trace_writer_put(tracing->writer, &record);
        if (entry->has_parts) {
            put_parts(tracing, record, log->parts_ns[log->collected % RING_LEN]);
        }
    }
}

static void flush(struct ox_tracing *tracing, uint64_t now_ns) {
    if (now_ns - tracing->flushed_ns >= FLUSH_NS) {
        ox_trace_writer_flush(tracing->writer);
        tracing->flushed_ns = now_ns;
    }
}

static void read_traffic(const struct ox_rank *rank, uint64_t out[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]) {
    for (int i = 0; i < OX_LINK_COUNT * OX_TRAFFIC_KIND_COUNT; i++) {
        const int link = i / OX_TRAFFIC_KIND_COUNT, kind = i % OX_TRAFFIC_KIND_COUNT;
        out[link][kind] = __atomic_load_n(&rank->traffic.crossed[link][kind], __ATOMIC_SEQ_CST);
    }
}

static void observe(struct ox_tracing *tracing, bool on) {
    struct ox_rank *const rank = tracing->rank;
    for (uint32_t i = 0; i < rank->lane_count; i++) {
        if (rank->lanes[i] != NULL) {
            ox_lane_observe(rank->lanes[i], on ? on_job : NULL, on ? &tracing->logs[i] : NULL);
        }
    }
}

void ox_tracing_begin(struct ox_tracing *tracing, const struct ox_plan *plan, enum ox_trace_span span, uint64_t step) {
    if (tracing == NULL || tracing->paused || tracing->steps_left == 0) {
        return;
    }
    tracing->plan = plan;
    tracing->span = (uint8_t)span;
    tracing->step = step;
    tracing->begin_ns = ox_clock_ns() - tracing->epoch_ns;
    read_traffic(tracing->rank, tracing->traffic);
}

void ox_tracing_issue(struct ox_tracing *tracing, uint32_t task_idx, bool idle, const struct ox_mark *mark) {
    if (tracing == NULL || tracing->plan == NULL) {
        return;
    }
    const struct ox_task *const task = &tracing->plan->tasks[task_idx];
    struct lane_log *const log = &tracing->logs[task->lane];
    const uint64_t now_ns = ox_clock_ns() - tracing->epoch_ns;
    if (log->issued > 0) {
        publish(log);
    }
    if (log->issued - log->collected >= RING_LEN / 2 || now_ns - tracing->flushed_ns >= FLUSH_NS) {
        collect(tracing, log);
        flush(tracing, now_ns);
    }
    if (log->issued - log->collected == RING_LEN) {
        tracing->missed++;
        return;
    }
    log->ring[log->issued % RING_LEN] =
        (struct entry){.mark = mark, .task_idx = task_idx, .idle = idle, .queued_ns = now_ns};
    __atomic_store_n(&log->issued, log->issued + 1, __ATOMIC_RELEASE);
}

static void put_bytes(struct ox_tracing *tracing, struct ox_trace_record record, enum ox_trace_type type,
                      uint64_t bytes) {
    record.type = (uint8_t)type;
    record.bytes = bytes;
    ox_trace_writer_put(tracing->writer, &record);
}

/* Puts what crossed links in the span, and what should have crossed if that differs from the plan's traffic. */
static void put_traffic(struct ox_tracing *tracing, struct ox_trace_record record) {
    uint64_t now[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT], planned[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT];
    uint64_t usual[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT] = {{0}};
    read_traffic(tracing->rank, now);
    if (tracing->span != OX_TRACE_SPAN_UPDATE) {
        memcpy(usual, tracing->plan->traffic, sizeof usual);
    }
    memcpy(planned, usual, sizeof planned);
    if (tracing->span != OX_TRACE_SPAN_UPDATE && !record.failed) {
        ox_rank_planned(tracing->rank, planned);
    } else if (tracing->span == OX_TRACE_SPAN_UPDATE) {
        ox_rank_plan_finish(tracing->rank, planned);
    }
    for (uint8_t link = 0; link < OX_LINK_COUNT; link++) {
        for (uint8_t kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            const uint64_t bytes = now[link][kind] - tracing->traffic[link][kind];
            record.link = link;
            record.traffic = kind;
            if (bytes > 0) {
                put_bytes(tracing, record, OX_TRACE_BYTES, bytes);
            }
            if (planned[link][kind] != usual[link][kind]) {
                put_bytes(tracing, record, OX_TRACE_PLANNED, planned[link][kind]);
            }
        }
    }
}

static void collect_all(struct ox_tracing *tracing, enum ox_status status) {
    for (int i = 0; i < OX_LANE_COUNT; i++) {
        struct lane_log *const log = &tracing->logs[i];
        if (status == OX_OK && log->issued > 0) {
            publish(log);
        }
        end_tasks(log);
        collect(tracing, log);
        if (status != OX_OK) {
            log->running = log->seen_issued = log->collected = log->issued; /* the others never ran */
        }
    }
    for (int i = 0; i < 2; i++) {
        put_flow(tracing, &tracing->flows[i], i == 1);
    }
}

void ox_tracing_end(struct ox_tracing *tracing, enum ox_status status) {
    if (tracing == NULL || tracing->plan == NULL) {
        return;
    }
    collect_all(tracing, status);
    const struct ox_trace_record record = {
        .type = OX_TRACE_END, .plan = plan_of(tracing), .link = OX_TRACE_NO_LINK, .span = tracing->span,
        .failed = status != OX_OK, .step = tracing->step,
        .bytes = ox_trace_writer_dropped(tracing->writer) + tracing->missed, .queued_ns = tracing->begin_ns,
        .started_ns = tracing->begin_ns, .ended_ns = ox_clock_ns() - tracing->epoch_ns};
    put_traffic(tracing, record);
    ox_trace_writer_put(tracing->writer, &record); /* after all records of the span */
    flush(tracing, record.ended_ns);
    tracing->plan = NULL;
    if (tracing->span == OX_TRACE_SPAN_STEP && tracing->steps_left != UINT64_MAX && --tracing->steps_left == 0) {
        observe(tracing, false);
    }
}

void ox_rank_trace_pause(struct ox_rank *rank, bool pause) {
    struct ox_tracing *const tracing = rank->tracing;
    if (tracing != NULL && tracing->paused != pause && tracing->steps_left > 0) {
        tracing->paused = pause;
        observe(tracing, !pause);
    }
}

void ox_rank_trace_span(struct ox_rank *rank, enum ox_trace_span span, uint64_t step, uint64_t begin_ns) {
    struct ox_tracing *const tracing = rank->tracing;
    if (tracing == NULL || tracing->paused || tracing->steps_left == 0) {
        return;
    }
    const uint64_t started_ns = begin_ns > tracing->epoch_ns ? begin_ns - tracing->epoch_ns : 0;
    const struct ox_trace_record record = {
        .type = OX_TRACE_END, .link = OX_TRACE_NO_LINK, .span = (uint8_t)span, .step = step,
        .bytes = ox_trace_writer_dropped(tracing->writer) + tracing->missed, .queued_ns = started_ns,
        .started_ns = started_ns, .ended_ns = ox_clock_ns() - tracing->epoch_ns};
    ox_trace_writer_put(tracing->writer, &record);
    flush(tracing, record.ended_ns);
}

/* ---- opening ------------------------------------------------------------------------------------------- */

/* Wall-clock time at a moment of the monotonic clock. Both clocks are read until nothing came between the readings, so
 * that files of several ranks agree to some microseconds. */
static uint64_t unix_ns_at(uint64_t clock_ns) {
    uint64_t least_ns = UINT64_MAX, unix_ns = 0;
    for (int i = 0; i < 16 && least_ns > 1000; i++) {
        struct timespec now;
        const uint64_t before_ns = ox_clock_ns();
        clock_gettime(CLOCK_REALTIME, &now);
        const uint64_t between_ns = ox_clock_ns() - before_ns;
        if (between_ns < least_ns) {
            least_ns = between_ns;
            unix_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec -
                      (before_ns + between_ns / 2 - clock_ns);
        }
    }
    return unix_ns;
}

static enum ox_status open_writer(struct ox_tracing *tracing, const struct ox_tracing_config *config) {
    const struct ox_engine_plan *const plan = tracing->rank->plan;
    struct ox_trace_header *head = NULL;
    enum ox_status status = ox_trace_header_open(
        &(struct ox_plans){.train = plan->train, .eval = plan->eval, .eval_after_step = plan->eval_after_step},
        &plan->input.budget, &head);
    if (status != OX_OK) {
        return status;
    }
    head->epoch_unix_ns = unix_ns_at(tracing->epoch_ns);
    head->run_ahead = OX_RUN_AHEAD_TASKS;
    head->max_steps = config->max_steps;
    head->rated_bytes = config->rated_bytes;
    if (config->predicted != NULL) {
        ox_trace_header_predict(head, config->predicted);
        for (uint32_t i = 0; i < plan->train->task_count; i++) {
            tracing->predicted[i] = (float)head->plans[OX_TRACE_TRAIN].tasks[i].predicted_seconds;
        }
    }
    snprintf(head->title, sizeof head->title, "%s", config->title);
    status = ox_trace_writer_open(config->path, head, config->bytes_max, &tracing->writer);
    ox_trace_header_close(&head);
    return status;
}

enum ox_status ox_rank_trace(struct ox_rank *rank, const struct ox_tracing_config *config) {
    OX_ASSERT(rank->tracing == NULL);
    struct ox_tracing *const tracing = aligned_alloc(CACHE_LINE_BYTES, sizeof *tracing);
    if (tracing == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory for the trace", config->path);
    }
    memset(tracing, 0, sizeof *tracing);
    tracing->predicted = calloc(rank->plan->train->task_count + 1u, sizeof *tracing->predicted);
    if (tracing->predicted == NULL) {
        free(tracing);
        return ox_fail(OX_E_NOMEM, "%s: no memory for the trace", config->path);
    }
    tracing->rank = rank;
    tracing->epoch_ns = ox_clock_ns();
    tracing->steps_left = config->steps_max > 0 ? config->steps_max : UINT64_MAX;
    const enum ox_status status = open_writer(tracing, config);
    if (status != OX_OK) {
        free(tracing->predicted);
        free(tracing);
        return status;
    }
    for (int i = 0; i < OX_LANE_COUNT; i++) {
        tracing->logs[i].epoch_ns = tracing->epoch_ns;
    }
    tracing->logs[OX_LANE_ADAM].parts_ns = tracing->adam_parts_ns;
    observe(tracing, true);
    rank->tracing = tracing;
    return OX_OK;
}

void ox_tracing_close(struct ox_tracing **tracing_ptr) {
    struct ox_tracing *const tracing = *tracing_ptr;
    if (tracing == NULL) {
        return;
    }
    observe(tracing, false);
    ox_trace_writer_close(&tracing->writer);
    free(tracing->predicted);
    free(tracing);
    *tracing_ptr = NULL;
}
