/* A whole tiny run with interference: it is stopped at every request to its drive, without time to end its step, also
 * when that very request fails; it is asked to save after every step while the drive fails; its data disappear.
 * Wherever planes live and however steps overlap, a checkpoint holds the step in its name, and the next process reaches
 * the bits of the undisturbed run.
 *
 *     test_run_stops [STRIDE] */
#include "tests/kit/store/io_sim.h"
#include "tests/kit/test.h"
#include "tests/kit/run/tiny_run.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STRIDE = 24 };
#else
enum { STRIDE = 9 };
#endif

#define ON_DRIVE {"weights-tier", "nvme"}, {"state-tier", "nvme"}, {"grads-tier", "nvme"}
#define IN_MEMORY {"weights-tier", "host"}, {"state-tier", "host"}, {"grads-tier", "host"}
#define COMMON {"stop-grace-seconds", "0"}
static const char *const waiting[][2] = {COMMON, IN_MEMORY, {"optimizer-overlap", "off"}, {NULL, NULL}};
static const char *const held[][2] = {COMMON, ON_DRIVE, {"optimizer-overlap", "held"}, {"report-to", "all"},
                                      {NULL, NULL}};
static const char *const speculative[][2] = {COMMON, IN_MEMORY, {"optimizer-overlap", "speculative"},
                                             {"speculative-units", "3"}, {"max-grad-norm", "0"},
                                             {"persist-steps", "1"}, {NULL, NULL}};
static const char *const clipped[][2] = {COMMON, IN_MEMORY, {"weights-tier", "device"},
                                         {"optimizer-overlap", "speculative"}, {"speculative-units", "2"},
                                         {"max-grad-norm", "1e-3"}, {"persist-steps", "1"}, {NULL, NULL}};
static const char *const narrow[][2] = {COMMON, ON_DRIVE, {"optimizer-overlap", "speculative"},
                                        {"speculative-units", "2"}, {"max-grad-norm", "0"}, {"dtype", "bf16"},
                                        {"grad-dtype", "bf16"}, {"moments", "q8"}, {"tiles", "2"},
                                        {"prefetch-depth", "0"}, {NULL, NULL}};
static const char *const alone[][2] = {COMMON, ON_DRIVE, {"optimizer-overlap", "held"}, {"store-generations", "1"},
                                       {NULL, NULL}};
static const struct story {
    const char *name;
    const char *const (*options)[2];
    bool may_fail; /* the run can recover from a failure */
} stories[] = {{"off", waiting, true},     {"held", held, true},           {"speculative", speculative, true},
               {"clipped", clipped, true}, {"in few bits", narrow, true}, {"one generation", alone, false}};

static struct ox_trainer_events events; /* the run's process has its own */
static struct shared {
    _Atomic uint64_t requests; /* requests of this process to its drive */
} *shared;
static struct tiny_told *told; /* shared */

/* ---- stopped --------------------------------------------------------------------------------------------- */

static uint64_t stop_at;
static bool stop_fails; /* the request at which the run is stopped fails too */
static const struct ox_io_backend *inner;
static struct ox_io_backend counting;

static enum ox_status count_request(struct ox_io_queue *queue, uint32_t drive_idx, const struct ox_io_req *req) {
    if (atomic_load(&told->began) != 0 && atomic_fetch_add(&shared->requests, 1) == stop_at) {
        kill(getpid(), SIGTERM);
        if (stop_fails) {
            return ox_fail(OX_E_IO, "injected fault: a request of %u bytes", req->bytes);
        }
    }
    return inner->queue_submit(queue, drive_idx, req);
}

static void on_term(int signal_number) {
    events.stop = signal_number;
}

static const struct ox_io_backend *begin_counting(const struct ox_io_backend *backend) {
    signal(SIGTERM, on_term);
    inner = backend;
    counting = *backend;
    counting.queue_submit = count_request;
    return &counting;
}

static void check_stops(const struct story *story, bool fails, uint64_t stride) {
    static const struct tiny_seam seam = {.begin = begin_counting, .events = &events};
    uint64_t stops = 0;
    bool more = true;
    stop_fails = fails;
    for (stop_at = 0; more && test_failure_count < 10; stop_at += stride) {
        char what[128];
        snprintf(what, sizeof what, "%s, stopped at request %llu%s", story->name, (unsigned long long)stop_at,
                 fails ? ", which fails" : "");
        atomic_store(&shared->requests, 0);
        const enum tiny_end end = tiny_run("threads", TINY_FRESH, &seam, told);
        more = atomic_load(&shared->requests) > stop_at;
        stops += told->step < TINY_STEPS;
        CHECK(end != TINY_KILLED);
        if (!fails && (end != TINY_DONE || told->warnings > 0)) {
            printf("%s: %s; %s\n", what, told->text, told->warning);
            test_failure_count++;
        }
        CHECK(fails || told->step == 0 || told->saved_step == told->step);
        tiny_end_well("threads", told, what);
    }
    printf("%s: %llu of %llu stopped before the last step\n", story->name, (unsigned long long)stops,
           (unsigned long long)(stop_at / stride));
    CHECK(stops > 0);
}

/* ---- asked to save while the drive fails ---------------------------------------------------------------------- */

static struct ox_fault_rule rule;
static struct ox_io_backend *fault;

static const struct ox_io_backend *begin_faults(const struct ox_io_backend *backend) {
    REQUIRE_OK(ox_io_fault_open(backend, &fault));
    ox_io_fault_set(fault, &rule);
    return fault;
}

static void end_faults(void) {
    uint64_t calls = 0, hits = 0;
    ox_io_fault_counts(fault, rule.point, &calls, &hits);
    atomic_store(&shared->requests, calls);
    ox_io_fault_close(&fault);
}

static void ask_to_save(uint64_t step) {
    events.save += step > 0;
}

static void check_saves(const struct story *story, uint64_t stride) {
    static const struct tiny_seam seam = {
        .begin = begin_faults, .end = end_faults, .events = &events, .step = ask_to_save};
    static const enum ox_fault_point points[] = {OX_FAULT_ON_READ, OX_FAULT_ON_WRITE, OX_FAULT_ON_FLUSH};
    uint64_t ended = 0, repaired = 0;
    for (int i = 0; i < 3; i++) {
        bool more = true;
        rule = (struct ox_fault_rule){.kind = OX_FAULT_EIO, .point = points[i]};
        const uint64_t step = points[i] == OX_FAULT_ON_FLUSH ? 1 : stride;
        for (; more && test_failure_count < 10; rule.first_idx += step) {
            char what[128];
            snprintf(what, sizeof what, "%s, point %d fails at %llu", story->name, i,
                     (unsigned long long)rule.first_idx);
            const enum tiny_end end = tiny_run("threads", TINY_FRESH, &seam, told);
            more = atomic_load(&shared->requests) > rule.first_idx;
            ended += end == TINY_FAILED;
            repaired += end == TINY_DONE && told->warnings > 0;
            CHECK(end != TINY_KILLED);
            if (end == TINY_DONE && told->warnings > 0) {
                CHECK(strstr(told->warning, "injected fault") != NULL);
            }
            tiny_end_well("threads", told, what);
        }
    }
    printf("%s: %llu faults ended the run, %llu were made good\n", story->name, (unsigned long long)ended,
           (unsigned long long)repaired);
    CHECK(ended > 0 && repaired > 0);
}

/* ---- data that goes away -------------------------------------------------------------------------------------- */

static const char *text;

static const struct ox_io_backend *begin_nothing(const struct ox_io_backend *backend) {
    return backend;
}

static void cut_text(uint64_t step) {
    CHECK(step != TINY_SAVED_STEP || truncate(text, 1) == 0);
}

/* No drive has failed, so the run need not go back: it ends with all that it has done. */
static void check_data(void) {
    static const struct tiny_seam seam = {.begin = begin_nothing, .step = cut_text};
    text = tiny_write_text();
    const enum tiny_end end = tiny_run("threads", TINY_FRESH, &seam, told);
    CHECK(end == TINY_FAILED && strstr(told->text, text) != NULL);
    CHECK(told->step == TINY_SAVED_STEP && told->saved_step == TINY_SAVED_STEP && told->warnings == 0);
    (void)tiny_write_text();
    tiny_end_well("threads", told, "data that goes away");
}

int main(int argc, char **argv) {
    const uint64_t given = argc == 2 ? strtoull(argv[1], NULL, 10) : 0;
    const uint64_t stride = given > 0 ? given : STRIDE * test_stride(8);
    tiny_single_thread(argv);
    shared = tiny_shared(sizeof *shared);
    told = tiny_shared(sizeof *told);
    for (size_t i = 0; i < sizeof stories / sizeof *stories; i++) {
        tiny_set_options(stories[i].options);
        tiny_begin(TINY_IN_MEMORY);
        check_stops(&stories[i], false, stride);
        if (stories[i].may_fail) {
            check_stops(&stories[i], true, stride);
            check_saves(&stories[i], 2 * stride);
        }
        check_data();
    }
    return test_end();
}
