/* Faults that meet a run which has had one: a tiny run is killed, and the process that goes on from there is killed
 * again, or has a call that fails, at every system call on files of the run and of its drive. It goes on in one of
 * these ways: from the last commit, from a checkpoint because the store is damaged, as a new branch, or over again
 * where the run had not begun. The third process reaches the bits of the undisturbed run; no more is lost than one
 * fault may cost.
 *
 * The suite takes every STRIDE-th call of the second process, at another offset for each case.
 *
 *     test_run_twice [STRIDE] */
#include "tests/kit/calls.h"
#include "tests/kit/files.h"
#include "tests/kit/run/tiny_run.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STRIDE = 120, QUICK = 1 };
#else
enum { STRIDE = 24, QUICK = 8 };
#endif

/* ---- the first fault --------------------------------------------------------------------------------------------- */

/* A kill at this percentage of the calls that change something, whether the store is damaged then, and how to go on. */
static const struct first {
    const char *name;
    unsigned percent;
    bool damaged;
    enum tiny_start start;
} firsts[] = {
    {"killed within its start", 8, false, TINY_RESUME},
    {"killed in its first step", 30, false, TINY_RESUME},
    {"killed at its checkpoint", 60, false, TINY_RESUME},
    {"killed near its end", 85, false, TINY_RESUME},
    {"killed, its store damaged", 85, true, TINY_RESUME},
    {"killed, then a new branch", 85, false, TINY_BRANCH},
    {"killed, its store damaged, then a new branch", 85, true, TINY_BRANCH},
};
enum { FIRST_COUNT = sizeof firsts / sizeof *firsts };

static const char *const expected_warnings[] = {
    "the store is not used", "the store belongs to a branch that the run has left", "the store holds no commit", NULL};

static struct tiny_told *told_first, *told_second, *told_both; /* shared */
static uint64_t change_count; /* of a run that nothing disturbs */
static struct {
    uint64_t pairs, kills, failed, unnoticed;
} counts;

static bool is_in_run(const char *path) {
    return strncmp(path, tiny_folder(), strlen(tiny_folder())) == 0; /* its drive is beside it, with a longer name */
}

static const struct ox_io_backend *begin(const struct ox_io_backend *inner) {
    calls_arm(true);
    return inner;
}

static void end(void) {
    calls_arm(false);
}

static const struct tiny_seam seam = {.begin = begin, .end = end};

static void count_changes(void) {
    calls_set(&(struct call_rule){.fault = CALL_DIES_AFTER, .idx = UINT64_MAX});
    CHECK(tiny_run("threads", TINY_FRESH, &seam, told_first) == TINY_DONE);
    change_count = calls_seen->changes;
    tiny_end_well("threads", told_first, "undisturbed");
}

/* Leaves what the second process finds, and returns how that starts. */
static enum tiny_start make_first(const struct first *first) {
    calls_set(&(struct call_rule){.fault = CALL_DIES_AFTER, .idx = change_count * first->percent / 100});
    CHECK(tiny_run("threads", TINY_FRESH, &seam, told_first) == TINY_KILLED);
    if (first->damaged) {
        static const char zeros[2 << 20]; /* all rings */
        files_patch(test_pathf("%s-drive/offload-store-0.ox", tiny_folder()), 0, zeros, sizeof zeros);
    }
    return told_first->began != 0 ? first->start : TINY_OVERWRITE;
}

/* ---- the second -------------------------------------------------------------------------------------------------- */

/* What both processes have told of: a step that the second began with stands. */
static void take_both(void) {
    const struct tiny_told *const last = told_second->began != 0 ? told_second : told_first;
    const uint64_t saved = told_first->saved_step;
    memcpy(told_both, last, sizeof *told_both);
    told_both->status = told_second->status;
    memcpy(told_both->text, told_second->text, sizeof told_both->text);
    told_both->saved_step = saved > last->saved_step ? saved : (uint64_t)last->saved_step;
    /* A checkpoint that was under way when the first was killed cannot be made once the step after it is committed. */
    const bool left_behind = saved < TINY_SAVED_STEP && told_second->begin_step > TINY_SAVED_STEP;
    told_both->warnings = told_first->warnings + told_second->warnings + left_behind;
}

/* Returns false when the second process makes no such call. */
static bool inject(const struct first *first, const struct call_rule *rule) {
    static const char *const faults[] = {
        [CALL_FAILS] = "fails at", [CALL_IS_SHORT] = "is short at", [CALL_DIES_BEFORE] = "is killed before",
        [CALL_DIES_WITHIN] = "is killed within", [CALL_DIES_AFTER] = "is killed after"};
    char what[160];
    const bool dies = rule->fault >= CALL_DIES_BEFORE;
    const enum tiny_start start = make_first(first);
    snprintf(what, sizeof what, "%s; the next %s %s %llu%s", first->name, faults[rule->fault],
             dies ? "call" : call_names[rule->call], (unsigned long long)rule->idx,
             rule->persistent ? " and from then on" : "");
    calls_set(rule);
    const enum tiny_end ended = tiny_run("threads", start, &seam, told_second);
    const bool was_hit = calls_seen->hits > 0;
    CHECK(ended != TINY_FAILED || (was_hit && told_second->text[0] != '\0'));
    counts.pairs += was_hit;
    counts.kills += ended == TINY_KILLED;
    counts.failed += ended == TINY_FAILED;
    counts.unnoticed += was_hit && ended == TINY_DONE;
    take_both();
    if (start == TINY_OVERWRITE && told_second->began == 0) { /* what was before may be gone, or still be there */
        told_both->step = told_both->begin_step = told_both->saved_step = 0;
        told_both->began = 0;
        told_both->warnings = 1;
    }
    tiny_end_well("threads", told_both, what);
    return was_hit;
}

static void sweep(const struct first *first, uint64_t offset, uint64_t stride) {
    static const struct {
        enum call call;
        enum call_fault fault;
        int error;
        bool persistent;
    } ways[] = {
        {CALL_WRITE, CALL_DIES_BEFORE, 0, false}, {CALL_WRITE, CALL_DIES_WITHIN, 0, false},
        {CALL_WRITE, CALL_DIES_AFTER, 0, false},  {CALL_OPEN, CALL_FAILS, EIO, false},
        {CALL_READ, CALL_FAILS, EIO, true},       {CALL_WRITE, CALL_FAILS, EIO, true},
        {CALL_WRITE, CALL_FAILS, ENOSPC, false},  {CALL_SYNC, CALL_FAILS, EIO, false},
        {CALL_FLUSH, CALL_FAILS, EIO, false},     {CALL_RENAME, CALL_FAILS, EIO, true},
        {CALL_ALLOCATE, CALL_FAILS, ENOSPC, true}, {CALL_REMOVE, CALL_FAILS, EIO, true},
        {CALL_MAKE, CALL_FAILS, ENOSPC, false},
    };
    for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (!test_takes(i + (unsigned)offset, 2)) {
            continue;
        }
        struct call_rule rule = {.call = ways[i].call, .fault = ways[i].fault, .error = ways[i].error,
                                 .persistent = ways[i].persistent, .idx = (offset + 7 * i) % stride};
        while (test_failure_count < 10 && inject(first, &rule)) {
            rule.idx += stride;
        }
    }
}

int main(int argc, char **argv) {
    const uint64_t given = argc == 2 ? strtoull(argv[1], NULL, 10) : 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    tiny_single_thread(argv);
    calls_seen = tiny_shared(sizeof *calls_seen);
    calls_options.picks = is_in_run;
    told_first = tiny_shared(sizeof *told_first);
    told_second = tiny_shared(sizeof *told_second);
    told_both = tiny_shared(sizeof *told_both);
    tiny_begin(TINY_IN_MEMORY);
    count_changes();
    tiny_expect_warnings(expected_warnings);
    for (unsigned i = 0; i < FIRST_COUNT; i++) {
        sweep(&firsts[i], i * 5, given > 0 ? given : STRIDE * test_stride(QUICK));
    }
    printf("%llu calls that change something; %llu pairs of faults: %llu kills, %llu ended the run, %llu did not; %llu "
           "times went on, %llu times began anew, %llu steps lost\n", (unsigned long long)change_count,
           (unsigned long long)counts.pairs, (unsigned long long)counts.kills, (unsigned long long)counts.failed,
           (unsigned long long)counts.unnoticed, (unsigned long long)tiny_counts.resumed,
           (unsigned long long)tiny_counts.started_over, (unsigned long long)tiny_counts.steps_lost);
    CHECK(counts.kills > 0 && counts.failed > 0 && counts.unnoticed > 0);
    return test_end();
}
