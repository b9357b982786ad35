/* Lanes and marks: work that finishes later runs on a lane and returns a mark. Joining a mark is the only way to wait,
 * whether a host thread, a CUDA stream or an io_uring ring does the work. Every folder above base uses them.
 *
 * A lane is FIFO. The memory that a job reads and writes belongs to the lane until the job's mark is done, also on
 * failure. After its first failure a lane skips all later jobs, so that it drains quickly; a lane that waits for a
 * failed mark fails too, so every joiner gets the first cause with its text. ox_lane_reset makes a drained lane usable
 * again. */
#ifndef OX_BASE_LANE_H
#define OX_BASE_LANE_H

#include "base/status.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ox_lane;

/* Names job `seq` of `lane`. {NULL, 0} is always done. */
struct ox_mark {
    struct ox_lane *lane;
    uint64_t seq;
};

/* Time spent by a lane since it was opened. */
struct ox_lane_stats {
    uint64_t busy_ns; /* running jobs                              */
    uint64_t wait_ns; /* waiting for a mark of another lane */
    uint64_t job_count;
};

/* Start and end of a job, or of a wait for another lane. */
struct ox_job_times {
    uint64_t seq;                /* job number on */
    uint64_t begin_ns, end_ns;   /* by ox_clock_ns */
    bool wait;                   /* true: a wait for another lane's mark */
    uint64_t device_ns;          /* duration by the device's own clock; 0: none */
};

/* Called on the lane's thread after each job and wait, before its mark is done, so it must be quick. */
typedef void ox_lane_observer(void *context, const struct ox_job_times *times);

struct ox_lane_ops {
    enum ox_status (*wait)(struct ox_lane *, struct ox_mark after);
    enum ox_status (*poll)(struct ox_lane *, uint64_t seq, bool *done);
    enum ox_status (*join)(struct ox_lane *, uint64_t seq);
    enum ox_status (*drain)(struct ox_lane *);
    void (*reset)(struct ox_lane *);
    void (*close)(struct ox_lane *);
};

struct ox_lane {
    const struct ox_lane_ops *ops;
    const char *label; /* shown in traces and errors: "compute", "nvme.read", "adam"; static storage */
    pthread_mutex_t lock; /* guards what follows, and what the implementation changes beside it */
    struct ox_lane_stats stats;
    ox_lane_observer *observer; /* or NULL */
    void *observer_context;
};

/* Sets *done. Returns the status of the marked work once it is done, OX_OK before. */
OX_MUST enum ox_status ox_mark_poll(struct ox_mark mark, bool *done);

/* Blocks until the marked work is done and returns its status. On failure ox_error_text() of this thread is the
 * work's. */
OX_MUST enum ox_status ox_mark_join(struct ox_mark mark);

/* Delays jobs submitted to `lane` after this call until `after` is done. Does not block. */
OX_MUST enum ox_status ox_lane_wait(struct ox_lane *lane, struct ox_mark after);

/* Blocks until the lane is empty; returns its first failure. */
OX_MUST enum ox_status ox_lane_drain(struct ox_lane *lane);

/* Forgets a failure. Requires a drained lane. */
void ox_lane_reset(struct ox_lane *lane);

void ox_lane_stats(struct ox_lane *lane, struct ox_lane_stats *out);

/* Reports later jobs to `observer`; NULL ends that. A running job reports to the observer that was set when it began,
 * so drain the lane before freeing `context`. */
void ox_lane_observe(struct ox_lane *lane, ox_lane_observer *observer, void *context);

/* Drains and frees the lane and sets *lane to NULL; accepts *lane == NULL. */
void ox_lane_close(struct ox_lane **lane);

/* ---- host lanes: one thread each ------------------------------------------------------------ */

enum { OX_JOB_ARGS_BYTES = 256 };

/* A job. `owner` comes from the lane's configuration, `args` is a copy of what was submitted. */
typedef enum ox_status ox_job_fn(void *owner, const void *args);

struct ox_host_lane_config {
    const char *label;
    void *owner;           /* passed to every job */
    /* Called on the lane's thread when it fails first, in a job or in what it waits for, with its error text; or NULL.
     */
    void (*failed)(void *owner, enum ox_status status);
    uint32_t queue_len;    /* pending jobs and waits at most; submit blocks at that */
    uint64_t chaos_seed;   /* not 0: delay every job at random, up to chaos_ns_max */
    uint64_t chaos_ns_max;
};

OX_MUST enum ox_status ox_host_lane_open(const struct ox_host_lane_config *config,
                                         struct ox_lane **out);

/* Queues a job with a copy of `args_bytes` (at most OX_JOB_ARGS_BYTES) from `args`. `done` may be NULL. */
OX_MUST enum ox_status ox_host_lane_submit(struct ox_lane *lane, ox_job_fn *fn, const void *args,
                                           size_t args_bytes, struct ox_mark *done);

/* Sleeps for up to ns_max, mostly far less; seed, label and turn decide how long. Does nothing with seed 0. Tests use
 * it to vary timing. */
void ox_chaos_delay(uint64_t seed, const char *label, uint64_t turn, uint64_t ns_max);

/* ---- ranges: names of what threads do, for a profiler that watches the process ------------------ */

/* What tells the profiler: a range of the calling thread begins or ends, ranges nest; the thread's own name. */
struct ox_ranges {
    void (*begin)(const char *name);
    void (*end)(void);
    void (*name_thread)(const char *name);
};

/* For whoever has found a profiler: tells `ranges` from here on, which stay valid to the end of the process. */
void ox_ranges_use(const struct ox_ranges *ranges);
bool ox_ranges_used(void);

/* These do nothing unless ranges are used. */
void ox_range_begin(const char *name);
void ox_range_end(void);
void ox_range_name_thread(const char *name);

/* The task of the work that the calling thread queues next, for lanes that run it later; "": none. */
enum { OX_RANGE_BYTES = 64 };
void ox_range_set_task(const char *name);
const char *ox_range_task(void);

#ifdef __cplusplus
}
#endif
#endif
