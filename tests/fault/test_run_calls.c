/* Files of a run beside its store (run.json, metrics.jsonl, plan.txt, config.resolved.yaml, latest, folders of
 * checkpoints). A whole tiny run is killed at every system call that creates, fills, syncs, renames or removes them:
 * before the call, with half of it done where it writes, and after it. Each of these calls also fails, in several ways,
 * once or from then on. The run then ends normally or in an error with a text; the next process reaches the bits of the
 * undisturbed run, with at most one step lost and no reported checkpoint.
 *
 * The calls are those of tests/kit/calls.h on paths of the run. The suite takes every STRIDE-th failure, at
 * another offset for each way, and all kills; `make test` takes fewer of both.
 *
 *     test_run_calls [STRIDE] */
#include "tests/kit/calls.h"
#include "tests/kit/test.h"
#include "tests/kit/run/tiny_run.h"

#include <errno.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { KILL_STRIDE = 12, STRIDE = 60, QUICK_KILLS = 1, QUICK = 1 };
#else
enum { KILL_STRIDE = 1, STRIDE = 6, QUICK_KILLS = 80, QUICK = 32 };
#endif

static const enum call points[] = {CALL_OPEN, CALL_OPEN_UNNAMED, CALL_ALLOCATE, CALL_TRUNCATE, CALL_READ, CALL_WRITE,
                                   CALL_SYNC, CALL_RENAME, CALL_RENAME_NEW, CALL_REMOVE, CALL_MAKE, CALL_CLOSE};
enum { POINT_COUNT = sizeof points / sizeof *points };

/* ---- the runs ---------------------------------------------------------------------------------------- */

static struct tiny_told *told; /* shared */
static struct call_rule rule;
static struct {
    uint64_t kills, injections, unnoticed, warned, failed;
} counts;

static bool is_in_run(const char *path) {
    const size_t bytes = strlen(tiny_folder());
    return strncmp(path, tiny_folder(), bytes) == 0 && (path[bytes] == '/' || path[bytes] == '\0');
}

static const struct ox_io_backend *begin(const struct ox_io_backend *inner) {
    calls_arm(true);
    return inner;
}

static void end(void) {
    calls_arm(false);
}

static const struct tiny_seam seam = {.begin = begin, .end = end};

/* Returns false if the run ends before that call. */
static bool kill_at(enum call_fault fault, uint64_t idx) {
    static const char *const moments[] = {
        [CALL_DIES_BEFORE] = "before", [CALL_DIES_WITHIN] = "within", [CALL_DIES_AFTER] = "after"};
    char what[64];
    calls_set(&(struct call_rule){.fault = fault, .idx = idx});
    snprintf(what, sizeof what, "killed %s call %llu", moments[fault], (unsigned long long)idx);
    const enum tiny_end ended = tiny_run("threads", TINY_FRESH, &seam, told);
    CHECK(ended != TINY_FAILED && told->warnings == 0);
    counts.kills += ended == TINY_KILLED;
    tiny_end_well("threads", told, what);
    return calls_seen->hits > 0;
}

static void sweep_kills(uint64_t stride) {
    for (enum call_fault fault = CALL_DIES_BEFORE; fault <= CALL_DIES_AFTER; fault++) {
        uint64_t idx = test_first((unsigned)stride);
        while (test_failure_count < 10 && kill_at(fault, idx)) {
            idx += stride;
        }
        CHECK(idx > 50 || test_failure_count > 0);
    }
    printf("%llu calls that change something, of", (unsigned long long)calls_seen->changes);
    for (int i = 0; i < POINT_COUNT; i++) {
        printf(" %llu %s", (unsigned long long)calls_seen->calls[points[i]], call_names[points[i]]);
    }
    printf("\n%llu kills\n", (unsigned long long)counts.kills);
}

/* Interrupted and short calls are repeated, if the kernel may return such results. */
static bool must_repair(void) {
    const bool transfer = rule.call == CALL_READ || rule.call == CALL_WRITE;
    return (transfer && rule.fault == CALL_IS_SHORT) || (rule.call == CALL_CLOSE && rule.error == EINTR) ||
           ((transfer || rule.call == CALL_ALLOCATE) && rule.error == EINTR && !rule.persistent);
}

/* Returns false if the run makes no such call. */
static bool inject(void) {
    const int failures = test_failure_count;
    char what[128];
    snprintf(what, sizeof what, "%s %llu, %s, %s", call_names[rule.call], (unsigned long long)rule.idx,
             rule.fault == CALL_IS_SHORT ? "short" : strerror(rule.error), rule.persistent ? "from then on" : "once");
    calls_set(&rule);
    const enum tiny_end ended = tiny_run("threads", TINY_FRESH, &seam, told);
    const bool was_hit = calls_seen->hits > 0;
    CHECK(ended != TINY_KILLED);
    CHECK(ended == TINY_DONE || (told->text[0] != '\0' && told->status != OX_E_CORRUPT));
    if (!was_hit || must_repair()) {
        CHECK(ended == TINY_DONE && told->warnings == 0);
    }
    counts.injections += was_hit;
    counts.failed += ended == TINY_FAILED;
    counts.warned += ended == TINY_DONE && told->warnings > 0;
    counts.unnoticed += was_hit && ended == TINY_DONE && told->warnings == 0;
    tiny_end_well("threads", told, what);
    if (test_failure_count > failures) {
        printf("%s: %s; %s\n", what, told->text, told->warning);
    }
    return was_hit;
}

static void sweep_failures(uint64_t stride) {
    static const struct {
        enum call_fault fault;
        int error;
        bool persistent;
    } ways[] = {{CALL_FAILS, EIO, false},   {CALL_FAILS, EIO, true},    {CALL_FAILS, ENOSPC, false},
                {CALL_FAILS, ENOSPC, true}, {CALL_FAILS, EINTR, false}, {CALL_FAILS, EINTR, true},
                {CALL_IS_SHORT, EIO, false}};
    for (int point = 0; point < POINT_COUNT; point++) {
        for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++) {
            const enum call call = points[point];
            if (ways[i].fault == CALL_IS_SHORT && call != CALL_READ && call != CALL_WRITE) {
                continue;
            }
            rule = (struct call_rule){.call = call, .fault = ways[i].fault, .error = ways[i].error,
                                      .idx = i % stride, .persistent = ways[i].persistent};
            while (test_failure_count < 10 && inject()) {
                rule.idx += stride;
            }
        }
    }
    printf("%llu failures of calls: %llu without a trace, %llu with a warning, %llu ended the run\n",
           (unsigned long long)counts.injections, (unsigned long long)counts.unnoticed,
           (unsigned long long)counts.warned, (unsigned long long)counts.failed);
    CHECK(counts.injections > 600 / stride && counts.failed > 200 / stride && counts.warned > 50 / stride);
}

int main(int argc, char **argv) {
    const uint64_t given = argc == 2 ? strtoull(argv[1], NULL, 10) : 0;
    tiny_single_thread(argv);
    calls_seen = tiny_shared(sizeof *calls_seen);
    calls_options.picks = is_in_run;
    told = tiny_shared(sizeof *told);
    tiny_begin(TINY_IN_MEMORY);
    sweep_kills(given > 0 ? given : KILL_STRIDE * test_stride(QUICK_KILLS));
    sweep_failures(given > 0 ? given : STRIDE * test_stride(QUICK));
    printf("%llu times went on, %llu times began anew, %llu steps lost\n", (unsigned long long)tiny_counts.resumed,
           (unsigned long long)tiny_counts.started_over, (unsigned long long)tiny_counts.steps_lost);
    return test_end();
}
