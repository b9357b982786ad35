/* A lane of the CUDA device: a stream and two host threads.
 *
 * The feeder takes operations in order and puts them on the stream. It waits for marks of host lanes itself, so that
 * the thread that issues a step never blocks and the device goes on with what it has; for marks of other streams it
 * makes the stream wait. The watcher waits for the events that marks stand for and reports when they happened; marks
 * are joined on it. Both are host lanes, and the lane has their order and their rules of failure.
 *
 * Mark number t is job t + 1 of the watcher, whose first job chooses the device. The job waits until the feeder has
 * recorded the event, then for the event. If the feeder has failed, it waits until the stream is empty, because a
 * failed mark, too, gives back the buffers of its work. */
#include "kernels/cuda/cuda_device.h"

#include "base/assert.h"
#include "base/clock.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    QUEUE_LEN = 1024, /* operations and waits that may be pending */
    MARK_COUNT = 512, /* marks that may be pending */
};

struct slot {
    cudaEvent_t begin, end;
    struct ox_mark fed; /* mark of the feeder: `end` is recorded */
    uint64_t marked_ns; /* host time of the mark's issue */
};

struct cuda_lane {
    struct ox_lane base;
    struct ox_cuda_device *device;
    cudaStream_t stream;
    struct ox_lane *feeder, *watcher;
    uint64_t mark_count; /* marks issued */
    bool names_task;     /* the range of a task was queued after the last mark; used by the issuing thread */
    struct slot slots[MARK_COUNT];
    /* Used by the feeder. */
    uint64_t fed_count; /* marks recorded */
    bool in_task;       /* the range of a task is open */
    bool begun;         /* the span up to the next mark has its first operation */
    /* Used by the watcher. Times of the device are counted from the last event. */
    cudaEvent_t last;
    uint64_t last_ns;
};

static const struct ox_lane_ops cuda_lane_ops;

static struct cuda_lane *cuda_lane_of(struct ox_lane *lane) {
    OX_ASSERT(lane->ops == &cuda_lane_ops);
    return (struct cuda_lane *)lane;
}

static struct slot *slot_of(struct cuda_lane *lane, uint64_t turn) {
    return &lane->slots[turn % MARK_COUNT];
}

/* The watcher's mark for mark `turn` of the lane. */
static struct ox_mark watched(const struct cuda_lane *lane, uint64_t turn) {
    return (struct ox_mark){.lane = lane->watcher, .seq = turn + 1};
}

/* The earlier mark with the slot of mark `turn`; done if there was none. */
static struct ox_mark mark_before(const struct cuda_lane *lane, uint64_t turn) {
    return turn > MARK_COUNT ? watched(lane, turn - MARK_COUNT) : (struct ox_mark){0};
}

/* Adds the lane's name to the text of its own failure. */
static enum ox_status own(const struct cuda_lane *lane, enum ox_status status) {
    return status == OX_OK ? OX_OK : ox_fail_in(status, "lane %s", lane->base.label);
}

static enum ox_status check(const struct cuda_lane *lane, cudaError_t error, const char *what) {
    return own(lane, ox_cuda_check(error, what));
}

/* The first job of both threads: the runtime has a current device per thread. */
static enum ox_status use_device(void *owner, const void *args) {
    const struct cuda_lane *const lane = owner;
    (void)args;
    return check(lane, cudaSetDevice(lane->device->idx), "choosing the device");
}

/* ---- the feeder ----------------------------------------------------------------------------------- */

struct op_job {
    ox_cuda_fn *run;
    const char *name;
    _Alignas(16) unsigned char args[OX_JOB_ARGS_BYTES - 16];
};
_Static_assert(sizeof(struct op_job) == OX_JOB_ARGS_BYTES, "a job's arguments are one slot of the feeder");

/* Begins the span that ends with the next mark. If many marks are pending, the watcher may still use its slot. */
static enum ox_status begin_span(struct cuda_lane *lane) {
    const uint64_t turn = lane->fed_count + 1;
    const enum ox_status status = ox_mark_join(mark_before(lane, turn));
    lane->begun = true;
    return status == OX_OK ? check(lane, cudaEventRecord(slot_of(lane, turn)->begin, lane->stream), "an event")
                           : status;
}

/* A task's range holds those of its operations, and ends at its mark. A failure skips that end. */
static void end_task(struct cuda_lane *lane) {
    if (lane->in_task) {
        ox_range_end();
    }
    lane->in_task = false;
}

static enum ox_status begin_task(void *owner, const void *args) {
    struct cuda_lane *const lane = owner;
    end_task(lane);
    ox_range_begin(args);
    lane->in_task = true;
    return OX_OK;
}

static enum ox_status run_op(void *owner, const void *args) {
    struct cuda_lane *const lane = owner;
    const struct op_job *const job = args;
    enum ox_status status = lane->begun ? OX_OK : begin_span(lane);
    if (status != OX_OK) {
        return status;
    }
    ox_range_begin(job->name);
    status = own(lane, job->run(&(struct ox_cuda_queue){.stream = lane->stream, .device = lane->device}, job->args));
    ox_range_end();
    const cudaError_t error = cudaGetLastError(); /* also after a failure, to clear it */
    return status == OX_OK ? check(lane, error, "an operation") : status;
}

static enum ox_status record_job(void *owner, const void *args) {
    struct cuda_lane *const lane = owner;
    (void)args;
    enum ox_status status = lane->begun ? OX_OK : begin_span(lane);
    if (status == OX_OK) {
        const struct slot *const slot = slot_of(lane, lane->fed_count + 1);
        status = check(lane, cudaEventRecord(slot->end, lane->stream), "an event");
    }
    lane->fed_count++;
    lane->begun = false;
    end_task(lane);
    return status;
}

struct wait_job {
    struct cuda_lane *other;
    uint64_t turn;
    struct ox_mark fed;
};

/* The event belongs to that mark until its slot goes to a later mark, which happens only when the mark is done; then
 * there is nothing to wait for. */
static enum ox_status wait_job(void *owner, const void *args) {
    struct cuda_lane *const lane = owner;
    const struct wait_job *const job = args;
    struct cuda_lane *const other = job->other;
    enum ox_status status = ox_mark_join(job->fed);
    pthread_mutex_lock(&other->base.lock);
    if (status == OX_OK && other->mark_count - job->turn < MARK_COUNT) {
        const struct slot *const slot = slot_of(other, job->turn);
        status = check(lane, cudaStreamWaitEvent(lane->stream, slot->end, 0), "waiting for another lane");
    }
    pthread_mutex_unlock(&other->base.lock);
    return status;
}

enum ox_status ox_cuda_lane_submit(struct ox_lane *base, const struct ox_cuda_work *work, const void *args,
                                   size_t bytes) {
    struct cuda_lane *const lane = cuda_lane_of(base);
    struct op_job job = {.run = work->run, .name = work->name};
    OX_ASSERT(bytes <= sizeof job.args);
    memcpy(job.args, args, bytes);
    if (ox_ranges_used() && !lane->names_task && ox_range_task()[0] != '\0') {
        const enum ox_status status =
            ox_host_lane_submit(lane->feeder, begin_task, ox_range_task(), OX_RANGE_BYTES, NULL);
        if (status != OX_OK) {
            return status;
        }
        lane->names_task = true;
    }
    return ox_host_lane_submit(lane->feeder, run_op, &job, offsetof(struct op_job, args) + bytes, NULL);
}

/* ---- the watcher ---------------------------------------------------------------------------------- */

/* Converts an event's time to host time. The clocks of host and device drift slowly: no event lies in the future, nor
 * far in the past if the watcher was waiting for it. */
static uint64_t event_ns(struct cuda_lane *lane, cudaEvent_t event) {
    enum { DRIFT_NS = 1000000 };
    float milliseconds = 0.0f;
    const uint64_t now_ns = ox_clock_ns();
    if (cudaEventElapsedTime(&milliseconds, lane->last, event) != cudaSuccess) {
        return now_ns;
    }
    const uint64_t at_ns = lane->last_ns + (uint64_t)(milliseconds < 0.0f ? 0.0 : (double)milliseconds * 1e6);
    return at_ns > now_ns || now_ns - at_ns > DRIFT_NS ? now_ns : at_ns;
}

static void account(struct cuda_lane *lane, const struct slot *slot, uint64_t turn) {
    const uint64_t idle_from_ns = lane->last_ns > slot->marked_ns ? lane->last_ns : slot->marked_ns;
    struct ox_job_times times = {.seq = turn};
    float milliseconds = 0.0f;
    times.end_ns = event_ns(lane, slot->end);
    if (cudaEventElapsedTime(&milliseconds, slot->begin, slot->end) != cudaSuccess || milliseconds < 0.0f) {
        milliseconds = 0.0f;
    }
    const uint64_t busy_ns = (uint64_t)((double)milliseconds * 1e6);
    times.device_ns = busy_ns;
    times.begin_ns = times.end_ns - (busy_ns < times.end_ns - lane->last_ns ? busy_ns : times.end_ns - lane->last_ns);
    lane->last = slot->end;
    lane->last_ns = times.end_ns;
    pthread_mutex_lock(&lane->base.lock);
    lane->base.stats.busy_ns += times.end_ns - times.begin_ns;
    lane->base.stats.wait_ns += times.begin_ns > idle_from_ns ? times.begin_ns - idle_from_ns : 0;
    lane->base.stats.job_count++;
    ox_lane_observer *const observer = lane->base.observer;
    void *const context = lane->base.observer_context;
    pthread_mutex_unlock(&lane->base.lock);
    if (observer != NULL) {
        observer(context, &times);
    }
}

static enum ox_status watch_job(void *owner, const void *args) {
    struct cuda_lane *const lane = owner;
    struct ox_first_failure first = {0};
    uint64_t turn;
    memcpy(&turn, args, sizeof turn);
    pthread_mutex_lock(&lane->base.lock);
    const struct slot slot = *slot_of(lane, turn);
    pthread_mutex_unlock(&lane->base.lock);
    ox_first_failure_note(&first, ox_mark_join(slot.fed));
    if (first.status == OX_OK) {
        ox_first_failure_note(&first, check(lane, cudaEventSynchronize(slot.end), "work on the device"));
    }
    if (first.status == OX_OK) {
        account(lane, &slot, turn);
    } else {
        cudaStreamSynchronize(lane->stream); /* it fails too, or the failure is not the stream's */
    }
    return ox_first_failure_result(&first);
}

enum ox_status ox_cuda_lane_mark(struct ox_lane *base, struct ox_mark *out) {
    struct cuda_lane *const lane = cuda_lane_of(base);
    const uint64_t turn = lane->mark_count + 1; /* only the issuing thread changes the count */
    struct slot *const slot = slot_of(lane, turn);
    struct ox_mark fed = {0}, end = {0};
    lane->names_task = false;
    enum ox_status status = ox_mark_join(mark_before(lane, turn));
    (void)status; /* a failure of the lane is reported by the new mark too */
    /* Count before the slot's event is recorded again: from here on no lane waits for the earlier mark of the slot. */
    pthread_mutex_lock(&lane->base.lock);
    OX_ASSERT(lane->mark_count + 1 == turn);
    lane->mark_count = turn;
    slot->marked_ns = ox_clock_ns();
    pthread_mutex_unlock(&lane->base.lock);
    /* Not under the lock: a full queue waits for the feeder, which takes the lock. */
    status = ox_host_lane_submit(lane->feeder, record_job, NULL, 0, &fed);
    if (status == OX_OK) {
        pthread_mutex_lock(&lane->base.lock);
        slot->fed = fed;
        pthread_mutex_unlock(&lane->base.lock);
        status = ox_host_lane_submit(lane->watcher, watch_job, &turn, sizeof turn, &end);
    }
    OX_ASSERT(status != OX_OK || end.seq == watched(lane, turn).seq);
    *out = (struct ox_mark){.lane = base, .seq = turn};
    return status;
}

/* ---- the lane ------------------------------------------------------------------------------------- */

static enum ox_status lane_wait(struct ox_lane *base, struct ox_mark after) {
    struct cuda_lane *const lane = cuda_lane_of(base);
    if (after.lane->ops != &cuda_lane_ops) {
        return ox_lane_wait(lane->feeder, after);
    }
    struct cuda_lane *const other = cuda_lane_of(after.lane);
    struct wait_job job = {.other = other, .turn = after.seq};
    pthread_mutex_lock(&other->base.lock);
    const bool old = other->mark_count - job.turn >= MARK_COUNT;
    job.fed = slot_of(other, job.turn)->fed;
    pthread_mutex_unlock(&other->base.lock);
    return old ? ox_lane_wait(lane->feeder, after)
               : ox_host_lane_submit(lane->feeder, wait_job, &job, sizeof job, NULL);
}

static enum ox_status lane_poll(struct ox_lane *base, uint64_t seq, bool *done) {
    return ox_mark_poll(watched(cuda_lane_of(base), seq), done);
}

static enum ox_status lane_join(struct ox_lane *base, uint64_t seq) {
    return ox_mark_join(watched(cuda_lane_of(base), seq));
}

/* Even if the feeder or the watcher failed, nothing may be left on the stream. */
static enum ox_status lane_drain(struct ox_lane *base) {
    struct cuda_lane *const lane = cuda_lane_of(base);
    struct ox_first_failure first = {0};
    ox_first_failure_note(&first, ox_lane_drain(lane->feeder));
    ox_first_failure_note(&first, ox_lane_drain(lane->watcher));
    ox_first_failure_note(&first, check(lane, cudaStreamSynchronize(lane->stream), "work on the device"));
    lane->begun = false; /* work before without a mark is over; it is not part of the next span */
    return ox_first_failure_result(&first);
}

static void lane_reset(struct ox_lane *base) {
    struct cuda_lane *const lane = cuda_lane_of(base);
    ox_lane_reset(lane->feeder);
    ox_lane_reset(lane->watcher);
    /* Skipped marks are not recorded; slots count on from the issued marks. */
    lane->fed_count = lane->mark_count;
    lane->begun = false;
}

static void free_events(struct cuda_lane *lane) {
    for (int i = 0; i < MARK_COUNT; i++) {
        if (lane->slots[i].begin != NULL) {
            cudaEventDestroy(lane->slots[i].begin);
        }
        if (lane->slots[i].end != NULL) {
            cudaEventDestroy(lane->slots[i].end);
        }
    }
}

/* Frees a lane that may be half open. The watcher reads the feeder's marks, so the drained feeder is closed after
 * it. */
static void lane_free(struct cuda_lane *lane) {
    if (lane->feeder != NULL) {
        const enum ox_status status = ox_lane_drain(lane->feeder);
        (void)status; /* a caller that needed the status has joined a mark */
    }
    ox_lane_close(&lane->watcher);
    ox_lane_close(&lane->feeder);
    if (lane->stream != NULL) {
        cudaStreamSynchronize(lane->stream);
        cudaStreamDestroy(lane->stream);
    }
    free_events(lane);
    pthread_mutex_destroy(&lane->base.lock);
    free(lane);
}

static void lane_close(struct ox_lane *base) {
    lane_free(cuda_lane_of(base));
}

static const struct ox_lane_ops cuda_lane_ops = {
    .wait = lane_wait,
    .poll = lane_poll,
    .join = lane_join,
    .drain = lane_drain,
    .reset = lane_reset,
    .close = lane_close,
};

static enum ox_status open_stream(struct cuda_lane *lane) {
    cudaError_t error = cudaStreamCreateWithFlags(&lane->stream, cudaStreamNonBlocking);
    for (int i = 0; error == cudaSuccess && i < MARK_COUNT; i++) {
        error = cudaEventCreateWithFlags(&lane->slots[i].begin, cudaEventBlockingSync);
        if (error == cudaSuccess) {
            error = cudaEventCreateWithFlags(&lane->slots[i].end, cudaEventBlockingSync);
        }
    }
    /* Times are counted from here on; the first mark uses this slot only much later. */
    lane->last = lane->slots[0].end;
    if (error == cudaSuccess) {
        error = cudaEventRecord(lane->last, lane->stream);
    }
    if (error == cudaSuccess) {
        error = cudaStreamSynchronize(lane->stream);
    }
    lane->last_ns = ox_clock_ns();
    return check(lane, error, "opening its stream");
}

static enum ox_status open_thread(struct cuda_lane *lane, uint32_t queue_len, struct ox_lane **out) {
    const struct ox_host_lane_config config = {.label = lane->base.label, .owner = lane, .queue_len = queue_len};
    struct ox_mark ready = {0};
    enum ox_status status = ox_host_lane_open(&config, out);
    OX_THEN(status, ox_host_lane_submit(*out, use_device, NULL, 0, &ready));
    return status == OX_OK ? ox_mark_join(ready) : status;
}

enum ox_status ox_cuda_lane_open(struct ox_cuda_device *device, const char *label, struct ox_lane **out) {
    *out = NULL;
    struct cuda_lane *const lane = calloc(1, sizeof *lane);
    if (lane == NULL) {
        return ox_fail(OX_E_NOMEM, "lane %s: no memory for its %zu bytes", label, sizeof *lane);
    }
    lane->base = (struct ox_lane){.ops = &cuda_lane_ops, .label = label};
    lane->device = device;
    pthread_mutex_init(&lane->base.lock, NULL);
    enum ox_status status = open_stream(lane);
    OX_THEN(status, open_thread(lane, QUEUE_LEN, &lane->feeder));
    OX_THEN(status, open_thread(lane, MARK_COUNT + 1, &lane->watcher));
    if (status != OX_OK) {
        lane_free(lane);
        return status;
    }
    *out = &lane->base;
    return OX_OK;
}
