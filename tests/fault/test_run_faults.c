/* A drive that fails anywhere in a whole tiny run: at every read, write, flush, open and allocation, in six ways, once
 * or from then on. The run repairs what it can and ends normally, or ends in an error that says what failed. The next
 * process then reaches the bits of the undisturbed run, with at most one step lost. The suite takes every STRIDE-th
 * call of each kind, at another offset for each fault.
 *
 *     test_run_faults [STRIDE] */
#include "tests/kit/store/io_sim.h"
#include "tests/kit/test.h"
#include "tests/kit/run/tiny_run.h"

#include <string.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STRIDE = 60, URING = 0, QUICK = 1 };
#else
enum { STRIDE = 12, URING = 1, QUICK = 8 };
#endif
enum { STALL_NS = 100 * 1000, POINT_COUNT = OX_FAULT_ON_OPEN + 1 };

static const enum ox_fault_kind kinds[] = {OX_FAULT_EIO,    OX_FAULT_ENOSPC, OX_FAULT_SHORT,
                                           OX_FAULT_EAGAIN, OX_FAULT_EINTR,  OX_FAULT_STALL};
enum { KIND_COUNT = sizeof kinds / sizeof *kinds };
static const char *const point_names[POINT_COUNT] = {
    [OX_FAULT_ON_READ] = "read", [OX_FAULT_ON_WRITE] = "write", [OX_FAULT_ON_FLUSH] = "flush",
    [OX_FAULT_ON_ALLOCATE] = "allocate", [OX_FAULT_ON_OPEN] = "open"};
static const char *const kind_names[] = {
    [OX_FAULT_EIO] = "EIO", [OX_FAULT_ENOSPC] = "ENOSPC", [OX_FAULT_SHORT] = "short",
    [OX_FAULT_EAGAIN] = "EAGAIN", [OX_FAULT_EINTR] = "EINTR", [OX_FAULT_STALL] = "stall"};

static struct ox_fault_rule rule;
static struct ox_io_backend *fault;
static struct seen {
    uint64_t calls, hits;
} *seen; /* shared */
static struct tiny_told *told; /* shared */
static struct {
    uint64_t injections, unnoticed, warned, failed;
} counts;

static const struct ox_io_backend *begin(const struct ox_io_backend *inner) {
    REQUIRE_OK(ox_io_fault_open(inner, &fault));
    ox_io_fault_set_stall(fault, STALL_NS);
    ox_io_fault_set(fault, &rule);
    return fault;
}

static void end(void) {
    ox_io_fault_counts(fault, rule.point, &seen->calls, &seen->hits);
    ox_io_fault_close(&fault);
}

/* Faults that must change nothing. */
static bool must_repair(void) {
    const bool goes_on = rule.kind == OX_FAULT_SHORT || rule.kind == OX_FAULT_EAGAIN || rule.kind == OX_FAULT_EINTR;
    const bool transfer = rule.point == OX_FAULT_ON_READ || rule.point == OX_FAULT_ON_WRITE;
    return rule.kind == OX_FAULT_STALL || (goes_on && transfer && !rule.persistent);
}

/* Returns false if the run makes no such call. */
static bool inject(const char *io_backend) {
    static const struct tiny_seam seam = {.begin = begin, .end = end};
    const int failures = test_failure_count;
    char what[128];
    snprintf(what, sizeof what, "%s, %s of %s %llu, %s", io_backend, kind_names[rule.kind], point_names[rule.point],
             (unsigned long long)rule.first_idx, rule.persistent ? "from then on" : "once");
    *seen = (struct seen){0};
    const enum tiny_end ended = tiny_run(io_backend, TINY_FRESH, &seam, told);
    const bool hit = seen->hits > 0;
    CHECK(ended != TINY_KILLED);
    if (!hit || must_repair()) {
        CHECK(ended == TINY_DONE && told->warnings == 0);
    }
    if (ended == TINY_FAILED) {
        CHECK(told->status == OX_E_IO || (rule.kind == OX_FAULT_ENOSPC && told->status == OX_E_CONFIG));
        CHECK(strstr(told->text, "injected fault") != NULL);
    } else if (told->warnings > 0) {
        CHECK(strstr(told->warning, "injected fault") != NULL);
    }
    counts.injections += hit;
    counts.failed += ended == TINY_FAILED;
    counts.warned += ended == TINY_DONE && told->warnings > 0;
    counts.unnoticed += hit && ended == TINY_DONE && told->warnings == 0;
    tiny_end_well(io_backend, told, what);
    if (test_failure_count > failures) {
        printf("%s: %s; %s\n", what, told->text, told->warning);
    }
    return hit;
}

static void sweep(const char *io_backend, uint64_t stride) {
    for (int point = 0; point < POINT_COUNT; point++) {
        uint64_t calls = 0;
        for (int i = 0; i < 2 * KIND_COUNT; i++) {
            rule = (struct ox_fault_rule){.kind = kinds[i / 2], .point = (enum ox_fault_point)point,
                                          .persistent = i % 2 == 1};
            /* At least two calls, if there are as many. */
            const uint64_t step = calls > 0 && calls / 2 < stride ? (calls + 1) / 2 : stride;
            rule.first_idx = (uint64_t)i * step / (2 * KIND_COUNT);
            while (test_failure_count < 10 && (calls == 0 || rule.first_idx < calls) && inject(io_backend)) {
                rule.first_idx += step;
            }
            calls = calls == 0 ? seen->calls : calls; /* calls of a run without a fault */
        }
        printf("%s, %s: %llu calls\n", io_backend, point_names[point], (unsigned long long)calls);
        CHECK(calls > 0);
    }
}

int main(int argc, char **argv) {
    const uint64_t given = argc == 2 ? strtoull(argv[1], NULL, 10) : 0;
    const uint64_t stride = given > 0 ? given : STRIDE * test_stride(QUICK);
    tiny_single_thread(argv);
    seen = tiny_shared(sizeof *seen);
    told = tiny_shared(sizeof *told);
    tiny_begin(TINY_IN_MEMORY);
    sweep("threads", stride);
    char why[160];
    if (!URING && given == 0) {
        printf("uring: left out under a sanitizer\n");
    } else if (ox_io_probe(why) == ox_io_uring()) {
        sweep("uring", 2 * stride - 1); /* faults are made above the backend, so only what follows may differ */
    } else {
        printf("uring: skipped: %s\n", why);
    }
    printf("%llu injections: %llu without a trace, %llu with a warning, %llu ended the run; %llu times went on, "
           "%llu times began anew, %llu steps lost\n", (unsigned long long)counts.injections,
           (unsigned long long)counts.unnoticed, (unsigned long long)counts.warned, (unsigned long long)counts.failed,
           (unsigned long long)tiny_counts.resumed, (unsigned long long)tiny_counts.started_over,
           (unsigned long long)tiny_counts.steps_lost);
    CHECK(counts.injections > 1000 / stride && counts.failed > 300 / stride && counts.unnoticed > 300 / stride);
    return test_end();
}
