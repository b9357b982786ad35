/* Per lane a ring of tasks that were issued, in order. The lane's thread fills in times, the issuing thread collects
 * what has ended and hands it to the writer. Between them there is no lock: each has its own numbers and reads those of
 * the other, and once a lane is drained all of it is the issuing thread's. */
#include "engine/tracing.h"

#include "base/assert.h"
#include "base/clock.h"
#include "engine/engine_internal.h"
#include "offload/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RING_LEN = 4 * OX_RUN_AHEAD_TASKS };

struct entry {
    const struct ox_mark *mark; /* set by the issue */
    uint64_t last_seq;          /* of the task's jobs, by atomic access; 0: not known yet to have been issued */
    struct ox_trace_record record;
};

/* Numbers count all entries ever: collected <= running <= issued. */
struct lane_log {
    struct entry ring[RING_LEN];
    uint64_t issued;    /* by atomic access: set by the issuing thread */
    uint64_t running;   /* by atomic access: set by the lane           */
    uint64_t collected; /* the issuing thread's own                    */
    uint64_t seen_seq, seen_end_ns; /* the lane's own: its last job    */
    uint64_t epoch_ns;
};

struct ox_tracing {
    struct ox_engine *engine;
    struct ox_trace_writer *writer;
    struct lane_log logs[OX_LANE_COUNT];
    uint64_t epoch_ns, begin_ns; /* of the step; 0: none is under way */
    uint64_t steps_left;         /* UINT64_MAX: all */
    uint64_t step;               /* the last one of training, which evaluations count with */
    uint64_t missed;             /* tasks whose ring was full */
    uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]; /* as the step found the counters */
    float *predicted; /* seconds of each task of training */
};

/* ---- the lanes' side --------------------------------------------------------------------------------- */

/* Ends tasks whose last job has run. */
static void settle(struct lane_log *log) {
    const uint64_t issued = __atomic_load_n(&log->issued, __ATOMIC_ACQUIRE);
    for (; log->running < issued; __atomic_store_n(&log->running, log->running + 1, __ATOMIC_RELEASE)) {
        struct entry *const entry = &log->ring[log->running % RING_LEN];
        const uint64_t last_seq = __atomic_load_n(&entry->last_seq, __ATOMIC_ACQUIRE);
        if (last_seq == 0 || log->seen_seq < last_seq) {
            return;
        }
        entry->record.ended_ns = log->seen_end_ns;
        if (entry->record.started_ns == 0) { /* nothing of it ran */
            entry->record.started_ns = log->seen_end_ns;
        }
    }
}

/* A job of a later task is met only after the issue of the earlier one was made known, so the job before it was the
 * earlier one's last. */
static void on_job(void *context, const struct ox_job_times *times) {
    struct lane_log *const log = context;
    const uint64_t begin_ns = times->begin_ns - log->epoch_ns;
    settle(log);
    if (log->running < __atomic_load_n(&log->issued, __ATOMIC_ACQUIRE)) {
        struct ox_trace_record *const record = &log->ring[log->running % RING_LEN].record;
        if (times->wait) {
            record->waited_ns += times->end_ns - times->begin_ns;
        } else if (record->started_ns == 0) {
            record->started_ns = begin_ns > record->queued_ns ? begin_ns : record->queued_ns;
        }
    }
    log->seen_seq = times->seq;
    log->seen_end_ns = times->end_ns - log->epoch_ns;
}

/* ---- the issuing thread's side ------------------------------------------------------------------------ */

/* What the issue of the last task has left in its mark. */
static void publish(struct lane_log *log) {
    struct entry *const entry = &log->ring[(log->issued - 1) % RING_LEN];
    if (log->issued > log->collected && entry->last_seq == 0) {
        __atomic_store_n(&entry->last_seq, entry->mark->seq, __ATOMIC_RELEASE);
    }
}

static void collect(struct ox_tracing *tracing, struct lane_log *log) {
    for (const uint64_t ended = __atomic_load_n(&log->running, __ATOMIC_ACQUIRE); log->collected < ended;
         log->collected++) {
        ox_trace_writer_put(tracing->writer, &log->ring[log->collected % RING_LEN].record);
    }
}

static void read_traffic(const struct ox_engine *engine, uint64_t out[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]) {
    for (int i = 0; i < OX_LINK_COUNT * OX_TRAFFIC_KIND_COUNT; i++) {
        const int link = i / OX_TRAFFIC_KIND_COUNT, kind = i % OX_TRAFFIC_KIND_COUNT;
        out[link][kind] = __atomic_load_n(&engine->traffic[link][kind], __ATOMIC_SEQ_CST);
    }
}

static uint8_t link_of(const struct ox_plan_budget *budget, uint8_t lane) {
    static const uint8_t links[OX_LANE_COUNT] = {
        [OX_LANE_COMPUTE] = OX_TRACE_NO_LINK,       [OX_LANE_H2D] = OX_LINK_H2D,
        [OX_LANE_D2H] = OX_LINK_D2H,                [OX_LANE_NVME_READ] = OX_LINK_NVME_READ,
        [OX_LANE_NVME_WRITE] = OX_LINK_NVME_WRITE,  [OX_LANE_REDUCE] = OX_TRACE_NO_LINK,
        [OX_LANE_ADAM] = OX_TRACE_NO_LINK}; /* the optimizer reads and writes several */
    const bool none = budget->unified && (lane == OX_LANE_H2D || lane == OX_LANE_D2H);
    return none ? OX_TRACE_NO_LINK : links[lane];
}

void ox_tracing_issue(struct ox_tracing *tracing, const struct ox_plan *plan, uint32_t task_idx,
                      const struct ox_mark *mark) {
    if (tracing == NULL || tracing->steps_left == 0) {
        return;
    }
    const struct ox_task *const task = &plan->tasks[task_idx];
    const struct ox_engine *const engine = tracing->engine;
    struct lane_log *const log = &tracing->logs[task->lane];
    const uint64_t now_ns = ox_clock_ns() - tracing->epoch_ns;
    if (tracing->begin_ns == 0) {
        tracing->begin_ns = now_ns;
        read_traffic(engine, tracing->traffic);
    }
    const bool train = plan == engine->plan->train;
    tracing->step = train ? engine->step.input->step : tracing->step;
    if (log->issued > 0) {
        publish(log);
    }
    if (log->issued - log->collected >= RING_LEN / 2) {
        collect(tracing, log);
    }
    if (log->issued - log->collected == RING_LEN) {
        tracing->missed++;
    } else {
        log->ring[log->issued % RING_LEN] = (struct entry){
            .mark = mark,
            .record = {.type = OX_TRACE_TASK, .plan = train ? OX_TRACE_TRAIN : OX_TRACE_EVAL,
                       .lane = task->lane, .kind = task->kind, .last = task->last,
                       .link = link_of(&engine->config.budget, task->lane),
                       .traffic = (uint8_t)ox_trace_traffic_of((enum ox_task_kind)task->kind),
                       .step = tracing->step, .task_idx = task_idx, .unit_idx = task->unit_idx,
                       .mb_idx = task->mb_idx, .bytes = task->bytes, .queued_ns = now_ns,
                       .predicted_seconds = train ? (double)tracing->predicted[task_idx] : 0}};
        __atomic_store_n(&log->issued, log->issued + 1, __ATOMIC_RELEASE);
    }
}

static void put_bytes(struct ox_tracing *tracing, struct ox_trace_record record, enum ox_trace_type type,
                      uint64_t bytes) {
    record.type = (uint8_t)type;
    record.bytes = bytes;
    ox_trace_writer_put(tracing->writer, &record);
}

/* What crossed links in the step, and what should have where the plan's own figures are those of other steps. */
static void put_traffic(struct ox_tracing *tracing, const struct ox_plan *plan, struct ox_trace_record record) {
    uint64_t now[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT], planned[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT];
    read_traffic(tracing->engine, now);
    memcpy(planned, plan->traffic, sizeof planned);
    if (record.plan == OX_TRACE_TRAIN && !record.failed) {
        ox_overlap_planned(tracing->engine, planned);
    }
    for (uint8_t link = 0; link < OX_LINK_COUNT; link++) {
        for (uint8_t kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            const uint64_t bytes = now[link][kind] - tracing->traffic[link][kind];
            record.link = link;
            record.traffic = kind;
            if (bytes > 0) {
                put_bytes(tracing, record, OX_TRACE_BYTES, bytes);
            }
            if (planned[link][kind] != plan->traffic[link][kind]) {
                put_bytes(tracing, record, OX_TRACE_PLANNED, planned[link][kind]);
            }
        }
    }
}

void ox_tracing_end(struct ox_tracing *tracing, const struct ox_plan *plan, enum ox_status status) {
    if (tracing == NULL || tracing->begin_ns == 0) {
        return;
    }
    for (int i = 0; i < OX_LANE_COUNT; i++) {
        struct lane_log *const log = &tracing->logs[i];
        if (status == OX_OK && log->issued > 0) {
            publish(log);
        }
        settle(log);
        collect(tracing, log);
        if (status != OX_OK) {
            log->running = log->collected = log->issued; /* what a failure has left behind never ran */
        }
    }
    const bool train = plan == tracing->engine->plan->train;
    const struct ox_trace_record record = {
        .type = OX_TRACE_STEP, .plan = train ? OX_TRACE_TRAIN : OX_TRACE_EVAL, .link = OX_TRACE_NO_LINK,
        .failed = status != OX_OK, .step = tracing->step, .queued_ns = tracing->begin_ns,
        .bytes = ox_trace_writer_dropped(tracing->writer) + tracing->missed, .started_ns = tracing->begin_ns,
        .ended_ns = ox_clock_ns() - tracing->epoch_ns};
    put_traffic(tracing, plan, record);
    ox_trace_writer_put(tracing->writer, &record); /* behind all that belongs to it */
    ox_trace_writer_flush(tracing->writer);
    tracing->begin_ns = 0;
    if (train && tracing->steps_left != UINT64_MAX && --tracing->steps_left == 0) {
        for (int i = 0; i < OX_LANE_COUNT; i++) {
            ox_lane_observe(tracing->engine->lanes[i], NULL, NULL);
        }
    }
}

/* ---- opening ------------------------------------------------------------------------------------------- */

static enum ox_status open_writer(struct ox_tracing *tracing, const struct ox_tracing_config *config) {
    const struct ox_engine_plan *const plan = tracing->engine->plan;
    struct ox_trace_head *head = NULL;
    enum ox_status status = ox_trace_head_open(plan->train, plan->eval, &plan->input.budget, &head);
    if (status != OX_OK) {
        return status;
    }
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    head->epoch_unix_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    head->run_ahead = OX_RUN_AHEAD_TASKS;
    head->max_steps = config->max_steps;
    head->rated_bytes = config->rated_bytes;
    if (config->predicted != NULL) {
        ox_trace_head_predict(head, config->predicted);
        for (uint32_t i = 0; i < plan->train->task_count; i++) {
            tracing->predicted[i] = (float)head->plans[OX_TRACE_TRAIN].tasks[i].predicted_seconds;
        }
    }
    snprintf(head->title, sizeof head->title, "%s", config->title);
    status = ox_trace_writer_open(config->path, head, config->bytes_max, &tracing->writer);
    ox_trace_head_close(&head);
    return status;
}

enum ox_status ox_engine_trace(struct ox_engine *engine, const struct ox_tracing_config *config) {
    OX_ASSERT(engine->tracing == NULL);
    struct ox_tracing *const tracing = calloc(1, sizeof *tracing);
    if (tracing == NULL) {
        return ox_fail(OX_E_NOMEM, "%s: no memory for the trace", config->path);
    }
    tracing->predicted = calloc(engine->plan->train->task_count + 1u, sizeof *tracing->predicted);
    if (tracing->predicted == NULL) {
        free(tracing);
        return ox_fail(OX_E_NOMEM, "%s: no memory for the trace", config->path);
    }
    tracing->engine = engine;
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
        ox_lane_observe(engine->lanes[i], on_job, &tracing->logs[i]);
    }
    engine->tracing = tracing;
    return OX_OK;
}

void ox_tracing_close(struct ox_tracing **tracing_ptr) {
    struct ox_tracing *const tracing = *tracing_ptr;
    if (tracing == NULL) {
        return;
    }
    for (int i = 0; i < OX_LANE_COUNT; i++) {
        ox_lane_observe(tracing->engine->lanes[i], NULL, NULL);
    }
    ox_trace_writer_close(&tracing->writer);
    free(tracing->predicted);
    free(tracing);
    *tracing_ptr = NULL;
}
