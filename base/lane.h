/* Lanes and marks. Everything that finishes later runs on a lane and hands back a mark; joining a
 * mark is the only way to wait, whatever stands behind it: a host thread, a CUDA stream, a ring.
 *
 * A lane is FIFO. What a job reads and writes belongs to the lane until its mark is done, also on
 * failure. After the first failure a lane skips all later jobs, so that it drains quickly, and a
 * lane that waits for a failed mark fails likewise: the first cause reaches every joiner with its
 * text. ox_lane_reset makes a drained lane usable again. */
#ifndef OX_BASE_LANE_H
#define OX_BASE_LANE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ox_lane;

/* Work number `seq` of `lane`. {NULL, 0} is always done. */
struct ox_mark {
    struct ox_lane *lane;
    uint64_t seq;
};

/* Where a lane's time went since it was opened. */
struct ox_lane_stats {
    uint64_t busy_ns; /* running jobs                              */
    uint64_t wait_ns; /* held up by a mark of another lane          */
    uint64_t job_count;
};

/* When a job or a wait of a lane ran. */
struct ox_job_times {
    uint64_t seq;                /* its number on the lane */
    uint64_t begin_ns, end_ns;   /* of ox_clock_ns */
    bool wait;                   /* it waited for another lane's mark */
    uint64_t device_ns;          /* between the two by a clock of the device's own; 0: it has none */
};

/* Called on the lane's thread, after each job and wait and before its mark is done: it must be quick. */
typedef void ox_lane_observer(void *context, const struct ox_job_times *times);

struct ox_lane_ops {
    enum ox_status (*wait)(struct ox_lane *, struct ox_mark after);
    enum ox_status (*poll)(struct ox_lane *, uint64_t seq, bool *done);
    enum ox_status (*join)(struct ox_lane *, uint64_t seq);
    enum ox_status (*drain)(struct ox_lane *);
    void (*reset)(struct ox_lane *);
    void (*stats)(struct ox_lane *, struct ox_lane_stats *out);
    void (*observe)(struct ox_lane *, ox_lane_observer *observer, void *context); /* NULL: the lane cannot tell */
    void (*close)(struct ox_lane *);
};

struct ox_lane {
    const struct ox_lane_ops *ops;
    const char *label; /* in traces and errors: "compute", "nvme.read", "adam"; static storage */
};

/* Sets *done; the status is that of the marked work when it is done, OX_OK before. */
OX_MUST enum ox_status ox_mark_poll(struct ox_mark mark, bool *done);

/* Blocks until the marked work is done and returns its status; on failure ox_error_text() on this
 * thread is that of the work. */
OX_MUST enum ox_status ox_mark_join(struct ox_mark mark);

/* Jobs submitted to `lane` after this call start only when `after` is done. Does not block. */
OX_MUST enum ox_status ox_lane_wait(struct ox_lane *lane, struct ox_mark after);

/* Blocks until the lane is empty; returns its first failure. */
OX_MUST enum ox_status ox_lane_drain(struct ox_lane *lane);

/* Forgets a failure. Requires a drained lane. */
void ox_lane_reset(struct ox_lane *lane);

void ox_lane_stats(struct ox_lane *lane, struct ox_lane_stats *out);

/* From now on the lane tells `observer`; NULL ends it. A job that runs meanwhile tells who was there when it began, so
 * what an observer looks at may go once the lane is drained. */
void ox_lane_observe(struct ox_lane *lane, ox_lane_observer *observer, void *context);

/* Drains, ends and frees the lane and sets *lane to NULL. Takes NULL. */
void ox_lane_close(struct ox_lane **lane);

/* ---- host lanes: one thread each ------------------------------------------------------------ */

enum { OX_JOB_ARGS_BYTES = 256 };

/* `owner` is the lane's, `args` a copy of what was submitted. */
typedef enum ox_status ox_job_fn(void *owner, const void *args);

struct ox_host_lane_config {
    const char *label;
    void *owner;           /* handed to every job; outlives the lane                               */
    uint32_t queue_len;    /* jobs and waits that may be pending; submit blocks when it is full     */
    uint64_t chaos_seed;   /* not 0: every job starts after a random delay of up to chaos_ns_max    */
    uint64_t chaos_ns_max;
};

OX_MUST enum ox_status ox_host_lane_open(const struct ox_host_lane_config *config,
                                         struct ox_lane **out);

/* Copies `args_bytes` (at most OX_JOB_ARGS_BYTES) from `args` and queues the job. `done` may be NULL. */
OX_MUST enum ox_status ox_host_lane_submit(struct ox_lane *lane, ox_job_fn *fn, const void *args,
                                           size_t args_bytes, struct ox_mark *done);

/* A pause of up to ns_max drawn by seed, label and turn, mostly short; none with seed 0. */
void ox_chaos_delay(uint64_t seed, const char *label, uint64_t turn, uint64_t ns_max);

#ifdef __cplusplus
}
#endif
#endif
