/* A whole tiny run killed at every operation of its drive, at three moments of each: before the backend sees it, while
 * it is under way, and when it is complete but not yet reported. The next process loses at most one step and ends with
 * the bits of the undisturbed run, also when it is killed in turn.
 *
 * Operations are open, allocate, flush and close of the drive file, and every read and write. In memory all of them
 * are taken; on a drive, where requests outlive a process, every STRIDE-th, at another offset for each moment and
 * backend.
 *
 *     test_kill_every_op [STRIDE IN MEMORY] [STRIDE ON A DRIVE] */
#include "base/assert.h"
#include "tests/kit/test.h"
#include "tests/kit/run/tiny_run.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STRIDE_IN_MEMORY = 16, STRIDE_ON_DRIVE = 96 };
#else
enum { STRIDE_IN_MEMORY = 1, STRIDE_ON_DRIVE = 24 };
#endif

enum { AGAIN = 6 }; /* a resumed process is killed at every AGAIN-th operation only */

enum moment { BEFORE, UNDER_WAY, COMPLETE, MOMENT_COUNT };
static const char *const moment_names[MOMENT_COUNT] = {"before", "under way", "complete"};

/* Where the next process is killed, and how many operations of each moment it has passed. */
struct target {
    enum moment moment;
    uint64_t idx;
    _Atomic uint64_t passed[MOMENT_COUNT];
};

static struct target *target; /* shared */
static const struct ox_io_backend *inner;

__attribute__((noreturn)) static void end_here(void) {
    for (;;) {
        kill(getpid(), SIGKILL);
    }
}

/* Counts an operation; returns whether the process has to end there. */
static bool reached(enum moment moment) {
    return atomic_fetch_add(&target->passed[moment], 1) == target->idx && target->moment == moment;
}

static void pass(enum moment moment) {
    if (reached(moment)) {
        end_here();
    }
}

/* ---- calls that take their time on the caller's thread ---------------------------------------------- */

struct call {
    enum { CALL_OPEN, CALL_ALLOCATE, CALL_FLUSH, CALL_CLOSE } kind;
    const char *path;
    enum ox_drive_mode mode;
    struct ox_drive *drive;
    uint64_t bytes;
    atomic_bool begun;
};

static enum ox_status call_run(struct call *call) {
    atomic_store(&call->begun, true);
    switch (call->kind) {
    case CALL_OPEN:
        return inner->drive_open(inner, call->path, call->mode, &call->drive);
    case CALL_ALLOCATE:
        return inner->drive_allocate(call->drive, call->bytes);
    case CALL_FLUSH:
        return inner->drive_flush(call->drive);
    case CALL_CLOSE:
        inner->drive_close(call->drive);
        break;
    }
    return OX_OK;
}

static void *call_main(void *context) {
    return call_run(context) == OX_OK ? NULL : context;
}

static enum ox_status call_pass(struct call *call) {
    pass(BEFORE);
    if (reached(UNDER_WAY)) {
        pthread_t thread;
        OX_ASSERT(pthread_create(&thread, NULL, call_main, call) == 0);
        while (!atomic_load(&call->begun)) {
            continue;
        }
        end_here();
    }
    const enum ox_status status = call_run(call);
    pass(COMPLETE);
    return status;
}

static enum ox_status drive_open(const struct ox_io_backend *backend, const char *path, enum ox_drive_mode mode,
                                 struct ox_drive **out) {
    struct call call = {.kind = CALL_OPEN, .path = path, .mode = mode};
    (void)backend;
    const enum ox_status status = call_pass(&call);
    *out = call.drive;
    return status;
}

static enum ox_status drive_allocate(struct ox_drive *drive, uint64_t bytes) {
    return call_pass(&(struct call){.kind = CALL_ALLOCATE, .drive = drive, .bytes = bytes});
}

static enum ox_status drive_flush(struct ox_drive *drive) {
    return call_pass(&(struct call){.kind = CALL_FLUSH, .drive = drive});
}

static void drive_close(struct ox_drive *drive) {
    CHECK(call_pass(&(struct call){.kind = CALL_CLOSE, .drive = drive}) == OX_OK);
}

static enum ox_status drive_remove(const struct ox_io_backend *backend, const char *path) {
    (void)backend;
    return inner->drive_remove(inner, path);
}

static enum ox_status queue_open(const struct ox_io_backend *backend, struct ox_drive *const *drives,
                                 uint32_t drive_count, uint32_t depth, struct ox_io_queue **out) {
    (void)backend;
    return inner->queue_open(inner, drives, drive_count, depth, out);
}

/* ---- requests ---------------------------------------------------------------------------------------- */

static enum ox_status queue_submit(struct ox_io_queue *queue, uint32_t drive_idx, const struct ox_io_req *req) {
    pass(BEFORE);
    const enum ox_status status = inner->queue_submit(queue, drive_idx, req);
    if (reached(UNDER_WAY)) {
        inner->queue_kick(queue);
        end_here();
    }
    return status;
}

static enum ox_status queue_reap(struct ox_io_queue *queue, struct ox_io_done *out) {
    const enum ox_status status = inner->queue_reap(queue, out);
    pass(COMPLETE);
    return status;
}

static const struct ox_io_backend *begin(const struct ox_io_backend *backend) {
    static struct ox_io_backend killer;
    inner = backend;
    killer = *backend;
    killer.drive_open = drive_open;
    killer.drive_allocate = drive_allocate;
    killer.drive_flush = drive_flush;
    killer.drive_close = drive_close;
    killer.drive_remove = drive_remove;
    killer.queue_open = queue_open;
    killer.queue_submit = queue_submit;
    killer.queue_reap = queue_reap;
    return &killer;
}

static const struct tiny_seam seam = {.begin = begin};

/* ---- the sweep --------------------------------------------------------------------------------------- */

static struct tiny_told *told; /* shared */
static uint64_t kill_count;

static bool is_killed(const char *io_backend, enum tiny_start start, enum moment moment, uint64_t idx) {
    target->moment = moment;
    target->idx = idx;
    memset(target->passed, 0, sizeof target->passed);
    const enum tiny_end end = tiny_run(io_backend, start, &seam, told);
    CHECK(end != TINY_FAILED && told->warnings == 0);
    kill_count += end == TINY_KILLED;
    return end == TINY_KILLED;
}

/* Returns false if the run ends before that operation. */
static bool kill_at(const char *io_backend, enum moment moment, uint64_t idx) {
    char what[96];
    const bool killed = is_killed(io_backend, TINY_FRESH, moment, idx);
    snprintf(what, sizeof what, "%s, %s, operation %llu", io_backend, moment_names[moment], (unsigned long long)idx);
    tiny_end_well(io_backend, told, what);
    return killed;
}

/* Kills a process at operation `idx` that resumes after one killed at operation `first_idx`. */
static bool kill_again_at(const char *io_backend, uint64_t first_idx, enum moment moment, uint64_t idx) {
    char what[96];
    CHECK(is_killed(io_backend, TINY_FRESH, UNDER_WAY, first_idx));
    const uint64_t step = told->step, saved_step = told->saved_step;
    CHECK(told->began);
    const bool killed = is_killed(io_backend, TINY_RESUME, moment, idx);
    if (!told->began) { /* the process has reported nothing */
        told->step = step;
        told->began = 1;
    }
    told->saved_step = told->saved_step > saved_step ? told->saved_step : saved_step;
    snprintf(what, sizeof what, "%s, operation %llu, then %s, operation %llu", io_backend,
             (unsigned long long)first_idx, moment_names[moment], (unsigned long long)idx);
    tiny_end_well(io_backend, told, what);
    return killed;
}

static void sweep_backend(const char *io_backend, uint64_t stride, uint64_t offset) {
    for (int moment = 0; moment < MOMENT_COUNT; moment++) {
        uint64_t idx = (offset + (uint64_t)moment * stride / MOMENT_COUNT) % stride;
        while (test_failure_count < 5 && kill_at(io_backend, (enum moment)moment, idx)) {
            idx += stride;
        }
        CHECK(target->passed[moment] > 100 || test_failure_count > 0);
        printf("%s, %s: %llu operations\n", io_backend, moment_names[moment],
               (unsigned long long)target->passed[moment]);
    }
    const uint64_t first_idx = target->passed[UNDER_WAY] * 2 / 3;
    for (int moment = 0; moment < MOMENT_COUNT; moment++) {
        uint64_t idx = (offset + (uint64_t)moment) % (AGAIN * stride);
        while (test_failure_count < 5 && kill_again_at(io_backend, first_idx, (enum moment)moment, idx)) {
            idx += AGAIN * stride;
        }
        printf("%s, %s: %llu operations after a kill at operation %llu\n", io_backend, moment_names[moment],
               (unsigned long long)target->passed[moment], (unsigned long long)first_idx);
    }
}

static void sweep(enum tiny_place place, uint64_t stride) {
    char why[160];
    kill_count = 0;
    tiny_counts = (struct tiny_counts){0};
    tiny_begin(place);
    sweep_backend("threads", stride, 0);
    if (ox_io_probe(why) == ox_io_uring()) {
        sweep_backend("uring", stride, stride / (2 * MOMENT_COUNT));
    } else {
        printf("uring: skipped: %s\n", why);
    }
    printf("%s, every %llu: %llu kills, %llu resumed, %llu started over; went on %llu times behind the last step told, "
           "%llu times ahead of it\n", place == TINY_IN_MEMORY ? "in memory" : "on a drive",
           (unsigned long long)stride, (unsigned long long)kill_count, (unsigned long long)tiny_counts.resumed,
           (unsigned long long)tiny_counts.started_over, (unsigned long long)tiny_counts.steps_lost,
           (unsigned long long)tiny_counts.commits_untold);
}

/* The nth argument, or `usual`. */
static uint64_t number(int argc, char **argv, int nth, uint64_t usual) {
    const uint64_t given = argc > nth ? strtoull(argv[nth], NULL, 10) : 0;
    return given > 0 ? given : usual;
}

int main(int argc, char **argv) {
    tiny_single_thread(argv);
    target = tiny_shared(sizeof *target);
    told = tiny_shared(sizeof *told);
    sweep(TINY_IN_MEMORY, number(argc, argv, 1, STRIDE_IN_MEMORY));
    sweep(TINY_ON_DRIVE, number(argc, argv, 2, STRIDE_ON_DRIVE));
    return test_end();
}
