#include "base/lane.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/prng/prng.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum ox_status ox_mark_poll(struct ox_mark mark, bool *done) {
    if (mark.lane == NULL) {
        *done = true;
        return OX_OK;
    }
    return mark.lane->ops->poll(mark.lane, mark.seq, done);
}

enum ox_status ox_mark_join(struct ox_mark mark) {
    return mark.lane == NULL ? OX_OK : mark.lane->ops->join(mark.lane, mark.seq);
}

enum ox_status ox_lane_wait(struct ox_lane *lane, struct ox_mark after) {
    if (after.lane == NULL || after.lane == lane) { /* FIFO: earlier jobs of this lane come first anyway */
        return OX_OK;
    }
    return lane->ops->wait(lane, after);
}

enum ox_status ox_lane_drain(struct ox_lane *lane) {
    return lane->ops->drain(lane);
}

void ox_lane_reset(struct ox_lane *lane) {
    lane->ops->reset(lane);
}

void ox_lane_stats(struct ox_lane *lane, struct ox_lane_stats *out) {
    pthread_mutex_lock(&lane->lock);
    *out = lane->stats;
    pthread_mutex_unlock(&lane->lock);
}

void ox_lane_observe(struct ox_lane *lane, ox_lane_observer *observer, void *context) {
    pthread_mutex_lock(&lane->lock);
    lane->observer = observer;
    lane->observer_context = context;
    pthread_mutex_unlock(&lane->lock);
}

void ox_lane_close(struct ox_lane **lane) {
    if (*lane != NULL) {
        (*lane)->ops->close(*lane);
        *lane = NULL;
    }
}

void ox_chaos_delay(uint64_t seed, const char *label, uint64_t turn, uint64_t ns_max) {
    if (seed == 0) {
        return;
    }
    uint64_t label_hash = 0;
    for (const char *at = label; *at != '\0'; at++) {
        label_hash = label_hash * 131 + (unsigned char)*at;
    }
    const double share = ox_uniform(seed, label_hash, turn);
    const uint64_t delay_ns = (uint64_t)(share * share * (double)ns_max);
    const struct timespec delay = {.tv_sec = (time_t)(delay_ns / 1000000000u),
                                   .tv_nsec = (long)(delay_ns % 1000000000u)};
    nanosleep(&delay, NULL);
}

/* ---- ranges --------------------------------------------------------------------------------- */

static const struct ox_ranges *used; /* atomic */
static _Thread_local char range_task[OX_RANGE_BYTES];

static const struct ox_ranges *get_used(void) {
    return __atomic_load_n(&used, __ATOMIC_ACQUIRE);
}

void ox_ranges_use(const struct ox_ranges *ranges) {
    __atomic_store_n(&used, ranges, __ATOMIC_RELEASE);
}

bool ox_ranges_used(void) {
    return get_used() != NULL;
}

void ox_range_begin(const char *name) {
    const struct ox_ranges *const ranges = get_used();
    if (ranges != NULL) {
        ranges->begin(name);
    }
}

void ox_range_end(void) {
    const struct ox_ranges *const ranges = get_used();
    if (ranges != NULL) {
        ranges->end();
    }
}

void ox_range_name_thread(const char *name) {
    const struct ox_ranges *const ranges = get_used();
    if (ranges != NULL) {
        ranges->name_thread(name);
    }
}

void ox_range_set_task(const char *name) {
    snprintf(range_task, sizeof range_task, "%s", name);
}

const char *ox_range_task(void) {
    return range_task;
}

/* ---- host lanes ----------------------------------------------------------------------------- */

struct job {
    ox_job_fn *fn;        /* NULL: the job is to wait for `after` */
    struct ox_mark after;
    _Alignas(16) unsigned char args[OX_JOB_ARGS_BYTES];
};

/* Jobs are numbered from 1. `issued` is the last one queued, `done` the last one ended. */
struct host_lane {
    struct ox_lane base;
    struct ox_host_lane_config config;
    struct job *queue;
    pthread_t thread;
    pthread_cond_t work;     /* signalled when a job is queued or the lane closes */
    pthread_cond_t progress; /* signalled when job `awaited` ends                */
    uint64_t issued, done;
    uint64_t awaited;    /* the first job for whose end a thread sleeps; UINT64_MAX = none */
    uint64_t failed_seq; /* the first failure; 0 = none */
    enum ox_status failure;
    char failure_text[OX_ERROR_TEXT_BYTES];
    bool closing;
};

/* How often a thread gives its processor away before it sleeps: what it waits for is often a short job of a thread that
 * is ready to run, and to sleep and be woken takes as much as several turns. */
enum { YIELDS = 3 };

static void give_turn(struct host_lane *lane) {
    pthread_mutex_unlock(&lane->base.lock);
    sched_yield();
    pthread_mutex_lock(&lane->base.lock);
}

static struct host_lane *host_lane_of(struct ox_lane *lane) {
    return (struct host_lane *)lane;
}

/* Returns the status of job `seq`, which has ended. The caller holds the lock. */
static enum ox_status ended_status(struct host_lane *lane, uint64_t seq) {
    if (lane->failed_seq == 0 || seq < lane->failed_seq) {
        return OX_OK;
    }
    return ox_fail(lane->failure, "%s", lane->failure_text);
}

/* Sleeps until job `seq` has ended. The caller holds the lock. Threads that wait for a later job, as those that drain
 * do, sleep through the ends of those before it. */
static void await(struct host_lane *lane, uint64_t seq) {
    for (int i = 0; i < YIELDS && lane->done < seq; i++) {
        give_turn(lane);
    }
    while (lane->done < seq) {
        lane->awaited = seq < lane->awaited ? seq : lane->awaited;
        pthread_cond_wait(&lane->progress, &lane->base.lock);
    }
}

static enum ox_status host_lane_poll(struct ox_lane *base, uint64_t seq, bool *done) {
    struct host_lane *const lane = host_lane_of(base);
    pthread_mutex_lock(&lane->base.lock);
    *done = lane->done >= seq;
    const enum ox_status status = *done ? ended_status(lane, seq) : OX_OK;
    pthread_mutex_unlock(&lane->base.lock);
    return status;
}

static enum ox_status host_lane_join(struct ox_lane *base, uint64_t seq) {
    struct host_lane *const lane = host_lane_of(base);
    pthread_mutex_lock(&lane->base.lock);
    OX_ASSERT(seq <= lane->issued);
    await(lane, seq);
    const enum ox_status status = ended_status(lane, seq);
    pthread_mutex_unlock(&lane->base.lock);
    return status;
}

static enum ox_status host_lane_drain(struct ox_lane *base) {
    struct host_lane *const lane = host_lane_of(base);
    pthread_mutex_lock(&lane->base.lock);
    const uint64_t last = lane->issued;
    pthread_mutex_unlock(&lane->base.lock);
    return host_lane_join(base, last);
}

static void host_lane_reset(struct ox_lane *base) {
    struct host_lane *const lane = host_lane_of(base);
    pthread_mutex_lock(&lane->base.lock);
    OX_ASSERT(lane->done == lane->issued);
    lane->failed_seq = 0;
    lane->failure = OX_OK;
    lane->failure_text[0] = '\0';
    pthread_mutex_unlock(&lane->base.lock);
}

/* Queues a job, or with fn NULL a wait; blocks while the queue is full. */
static enum ox_status enqueue(struct host_lane *lane, ox_job_fn *fn, struct ox_mark after,
                              const void *args, size_t args_bytes, struct ox_mark *done) {
    OX_ASSERT(args_bytes <= OX_JOB_ARGS_BYTES);
    pthread_mutex_lock(&lane->base.lock);
    OX_ASSERT(!lane->closing);
    while (lane->issued - lane->done >= lane->config.queue_len) {
        await(lane, lane->issued - lane->config.queue_len + 1);
    }
    struct job *const job = &lane->queue[lane->issued % lane->config.queue_len];
    job->fn = fn;
    job->after = after;
    if (args_bytes > 0) {
        memcpy(job->args, args, args_bytes);
    }
    lane->issued++;
    if (done != NULL) {
        *done = (struct ox_mark){.lane = &lane->base, .seq = lane->issued};
    }
    pthread_mutex_unlock(&lane->base.lock);
    /* Without the lock, for which the thread that wakes up would only sleep again. */
    pthread_cond_signal(&lane->work);
    return OX_OK;
}

static enum ox_status host_lane_wait(struct ox_lane *base, struct ox_mark after) {
    return enqueue(host_lane_of(base), NULL, after, NULL, 0, NULL);
}

/* Runs or skips a job. Called without the lock: the queue slot belongs to this thread until `done` passes it. */
static enum ox_status run_job(struct host_lane *lane, const struct job *job, bool skip, struct ox_job_times *times) {
    times->begin_ns = ox_clock_ns();
    times->end_ns = times->begin_ns;
    times->wait = job->fn == NULL;
    if (job->fn == NULL) {
        /* A skipped wait still joins: jobs of the other lane may use memory that is reused when this lane is
         * drained. */
        const enum ox_status status = ox_mark_join(job->after);
        times->end_ns = ox_clock_ns();
        return skip ? OX_OK : status;
    }
    if (skip) {
        return OX_OK;
    }
    ox_chaos_delay(lane->config.chaos_seed, lane->base.label, times->seq, lane->config.chaos_ns_max);
    const enum ox_status status = job->fn(lane->config.owner, job->args);
    times->end_ns = ox_clock_ns();
    return status;
}

/* The lane's thread: runs jobs in order, and skips them after the first failure. */
static void *host_lane_main(void *context) {
    struct host_lane *const lane = context;
    ox_range_name_thread(lane->base.label);
    pthread_mutex_lock(&lane->base.lock);
    for (;;) {
        /* What was issued is done before the lane closes: others wait for those marks. */
        for (int i = 0; i < YIELDS && lane->done == lane->issued && !lane->closing; i++) {
            give_turn(lane);
        }
        while (lane->done == lane->issued && !lane->closing) {
            pthread_cond_wait(&lane->work, &lane->base.lock);
        }
        if (lane->done == lane->issued) {
            break;
        }
        const struct job *const job = &lane->queue[lane->done % lane->config.queue_len];
        const bool skip = lane->failed_seq != 0;
        struct ox_job_times times = {.seq = lane->done + 1};
        ox_lane_observer *const observer = lane->base.observer;
        void *const observer_context = lane->base.observer_context;
        /* A job may take seconds, in which others issue and poll. The queue's place stays taken, as `done` has not
         * moved. */
        pthread_mutex_unlock(&lane->base.lock);

        const enum ox_status status = run_job(lane, job, skip, &times);
        if (status != OX_OK && !skip && lane->config.failed != NULL) {
            lane->config.failed(lane->config.owner, status);
        }
        if (observer != NULL) {
            observer(observer_context, &times);
        }

        pthread_mutex_lock(&lane->base.lock);
        /* Only the first failure is kept: what follows it was skipped, or failed because of it. */
        if (status != OX_OK && lane->failed_seq == 0) {
            lane->failed_seq = times.seq;
            lane->failure = status;
            snprintf(lane->failure_text, sizeof lane->failure_text, "%s", ox_error_text());
        }
        *(times.wait ? &lane->base.stats.wait_ns : &lane->base.stats.busy_ns) += times.end_ns - times.begin_ns;
        lane->base.stats.job_count += !times.wait;
        lane->done = times.seq;
        if (lane->awaited <= lane->done) {
            lane->awaited = UINT64_MAX; /* who waits for a later one says so again */
            pthread_mutex_unlock(&lane->base.lock);
            pthread_cond_broadcast(&lane->progress);
            pthread_mutex_lock(&lane->base.lock);
        }
    }
    pthread_mutex_unlock(&lane->base.lock);
    return NULL;
}

static void host_lane_close(struct ox_lane *base) {
    struct host_lane *const lane = host_lane_of(base);
    pthread_mutex_lock(&lane->base.lock);
    lane->closing = true;
    pthread_cond_signal(&lane->work);
    pthread_mutex_unlock(&lane->base.lock);
    pthread_join(lane->thread, NULL);
    pthread_cond_destroy(&lane->progress);
    pthread_cond_destroy(&lane->work);
    pthread_mutex_destroy(&lane->base.lock);
    free(lane->queue);
    free(lane);
}

static const struct ox_lane_ops host_lane_ops = {
    .wait = host_lane_wait,
    .poll = host_lane_poll,
    .join = host_lane_join,
    .drain = host_lane_drain,
    .reset = host_lane_reset,
    .close = host_lane_close,
};

enum ox_status ox_host_lane_submit(struct ox_lane *lane, ox_job_fn *fn, const void *args,
                                   size_t args_bytes, struct ox_mark *done) {
    OX_ASSERT(lane->ops == &host_lane_ops && fn != NULL);
    return enqueue(host_lane_of(lane), fn, (struct ox_mark){0}, args, args_bytes, done);
}

enum ox_status ox_host_lane_open(const struct ox_host_lane_config *config, struct ox_lane **out) {
    OX_ASSERT(config->queue_len > 0 && config->label != NULL);
    *out = NULL;
    struct host_lane *const lane = calloc(1, sizeof *lane);
    struct job *const queue = calloc(config->queue_len, sizeof *queue);
    if (lane == NULL || queue == NULL) {
        free(lane);
        free(queue);
        return ox_fail(OX_E_NOMEM, "lane %s: no memory for a queue of %u jobs", config->label,
                       config->queue_len);
    }
    lane->base = (struct ox_lane){.ops = &host_lane_ops, .label = config->label};
    lane->config = *config;
    lane->queue = queue;
    lane->awaited = UINT64_MAX;
    pthread_mutex_init(&lane->base.lock, NULL);
    pthread_cond_init(&lane->work, NULL);
    pthread_cond_init(&lane->progress, NULL);
    const int err = pthread_create(&lane->thread, NULL, host_lane_main, lane);
    if (err != 0) {
        free(queue);
        free(lane);
        return ox_fail_errno(OX_E_NOMEM, err, "lane %s: cannot start its thread", config->label);
    }
    *out = &lane->base;
    return OX_OK;
}
