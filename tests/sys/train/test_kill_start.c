/* A start killed at every system call that creates, fills, syncs or removes something in the run's folder or on its
 * drives, before the call, with half of it written, and after it: of a new run, of a branch from one of the run's own
 * checkpoints, of a new run from another's checkpoint, of a resume that makes the store anew, and of a new run in the
 * place of one that it deletes; with one drive and with two. After each kill `latest` leads to the bits of the
 * undisturbed run, and of two new runs one is instead begun again with the same command. Nothing has to be overwritten
 * again, and no checkpoint is lost. Runs without drives, new or in the place of another, are killed up to their first
 * checkpoint. Every third time the run that `latest` leads to is killed at its start as well.
 * `make test-all` takes thousands of calls, in parts.
 *
 *     test_kill_start [STRIDE] */
#include "base/bytes.h"
#include "base/prng/prng.h"
#include "tests/kit/calls.h"
#include "tests/kit/files.h"
#include "tests/kit/parts.h"
#include "tests/kit/run/tiny_run.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STRIDE = 24, QUICK = 1 };
#else
enum { STRIDE = 6, QUICK = 24 };
#endif

enum { PARTS = 4 };

static struct test_part part;
static struct tiny_told *told; /* shared */
static uint64_t kill_count, again_count, twice_count;

enum what { NEW, OVERWRITE, BRANCH, BRANCH_NEW, REBUILD, WHAT_COUNT };
static const char *const what_names[WHAT_COUNT] = {"a new run", "a new run in the place of one", "a branch",
                                                   "a new run from a checkpoint", "a store made anew"};
static const enum tiny_start starts[WHAT_COUNT] = {TINY_FRESH, TINY_OVERWRITE, TINY_BRANCH, TINY_BRANCH_NEW,
                                                   TINY_RESUME};
static unsigned drives;

static bool is_below(const char *path, const char *folder) {
    const size_t bytes = strlen(folder);
    return strncmp(path, folder, bytes) == 0 && (path[bytes] == '/' || path[bytes] == '\0');
}

static bool is_of_run(const char *path) {
    return is_below(path, tiny_folder()) || is_below(path, tiny_drive(0)) || is_below(path, tiny_drive(1));
}

static const struct ox_io_backend *begin(const struct ox_io_backend *inner) {
    calls_arm(true);
    return inner;
}

/* The start is over with the first step. Without drives nothing is committed before the first checkpoint. */
static void step(uint64_t number) {
    if (drives > 0 || number > TINY_SAVED_STEP) {
        calls_arm(false);
    }
}

static void end(void) {
    calls_arm(false);
}

static const struct tiny_seam seam = {.begin = begin, .end = end, .step = step};

/* Makes the run that a start goes on from: with a checkpoint of its first steps, and a store beyond that. */
static void make_run(enum what what) {
    struct call_rule never = {.call = CALL_COUNT};
    calls_set(&never);
    CHECK(tiny_run("threads", TINY_FRESH, NULL, told) == TINY_DONE);
    files_remove_folder(test_pathf("%s/checkpoint-%d", tiny_folder(), TINY_STEPS));
    if (what == REBUILD) {
        char zeros[4096] = {0};
        for (int64_t at = 0; at < 1 << 20; at += (int64_t)sizeof zeros) {
            files_patch(test_pathf("%s/offload-store-0.ox", tiny_drive(0)), at, zeros, sizeof zeros);
        }
    }
}

/* A new run that was cut off, begun again with the same command, is allowed unless it has already got to its steps. */
static bool begin_again(enum tiny_start start) {
    const enum tiny_end ended = tiny_run("threads", start, NULL, told);
    CHECK(ended == TINY_DONE || strstr(told->text, "already holds a run") != NULL);
    again_count += ended == TINY_DONE;
    if (ended != TINY_DONE) {
        memset(told, 0, sizeof *told);
    }
    return ended == TINY_DONE;
}

static bool is_in_run_json(const char *text) {
    const char *const path = test_pathf("%s/run.json", tiny_folder());
    char *const now = files_exist(path) ? files_read(path, NULL) : NULL;
    const bool found = now != NULL && strstr(now, text) != NULL;
    free(now);
    return found;
}

/* What a killed process must have left of a run whose step is known: all of the run that it was to delete, before it
 * began to; without drives, what a checkpoint has. */
static uint64_t kept_step(enum what what, const char *old_run, uint64_t step) {
    if (what == OVERWRITE && is_in_run_json(old_run)) {
        return drives > 0 ? TINY_STEPS : TINY_SAVED_STEP;
    }
    const bool saved = files_exist(test_pathf("%s/checkpoint-%d", tiny_folder(), TINY_SAVED_STEP));
    return drives > 0 ? step : saved && !is_in_run_json("\"clearing\": true") ? TINY_SAVED_STEP : 0;
}

/* Kills the run that goes on too, at some call of its start. */
static void kill_again(enum what what, const char *old_run, uint64_t idx) {
    enum { CALLS = 40 };
    static struct tiny_told *second;
    uint32_t draw[4];
    second = second != NULL ? second : tiny_shared(sizeof *second);
    ox_philox(94, what, idx, draw);
    const enum call_fault fault = draw[0] % 2 == 0 ? CALL_DIES_BEFORE : CALL_DIES_AFTER;
    calls_set(&(struct call_rule){.fault = fault, .idx = draw[1] % CALLS});
    const enum tiny_end ended = tiny_run("threads", TINY_RESUME, &seam, second);
    CHECK(ended != TINY_FAILED || (told->began == 0 && strstr(second->text, "holds no run") != NULL));
    twice_count += ended == TINY_KILLED;
    if (ended == TINY_FAILED) {
        return;
    }
    const uint64_t step = ox_max_u64(told->step, second->step);
    told->began = told->began | second->began;
    told->step = ended == TINY_DONE || drives > 0 ? step : kept_step(what, old_run, step);
    told->saved_step = ox_max_u64(told->saved_step, second->saved_step);
    told->warnings = told->warnings + second->warnings;
}

/* Returns false if the start ends before that call. */
static bool kill_at(enum what what, enum call_fault fault, uint64_t idx) {
    static const char *const moments[] = {
        [CALL_DIES_BEFORE] = "before", [CALL_DIES_WITHIN] = "within", [CALL_DIES_AFTER] = "after"};
    const int failures = test_failure_count;
    char text[128];
    snprintf(text, sizeof text, "%s, killed %s call %llu", what_names[what], moments[fault], (unsigned long long)idx);
    char *old_run = NULL;
    if (what == BRANCH || what == REBUILD || what == OVERWRITE) {
        make_run(what);
        old_run = files_read(test_pathf("%s/run.json", tiny_folder()), NULL);
    }
    calls_set(&(struct call_rule){.fault = fault, .idx = idx});
    const enum tiny_end ended = tiny_run("threads", starts[what], &seam, told);
    const bool killed = ended == TINY_KILLED;
    CHECK(ended != TINY_FAILED);
    kill_count += killed;
    const uint64_t kept = killed ? kept_step(what, old_run, told->step) : told->step;
    const bool is_new = what == NEW || what == OVERWRITE;
    if (!is_new) {
        told->step = told->step > TINY_SAVED_STEP ? told->step : TINY_SAVED_STEP;
    } else if (!killed || kill_count % 2 == 0 || !begin_again(TINY_FRESH)) { /* the calls of a part may all be even */
        told->step = kept;
    } else {
        CHECK(kept == 0); /* only what holds nothing may be begun again */
    }
    if (what == BRANCH_NEW && killed && !files_exist(test_pathf("%s/run.json", tiny_folder()))) {
        (void)begin_again(TINY_BRANCH_NEW); /* without run.json nothing says which checkpoint that was */
    }
    if (killed && kill_count % 3 == 0) {
        kill_again(what, old_run, idx * 3 + fault);
    }
    told->warnings += what == BRANCH_NEW; /* it has neither lines nor a checkpoint of the steps before */
    if (test_failure_count > failures) {
        printf("%s: %s\n", text, told->text);
    }
    tiny_end_well("threads", told, text);
    free(old_run);
    return killed;
}

static void sweep(enum what what, uint64_t stride) {
    uint64_t calls = 0;
    static const char *const unused[] = {"the store is not used", NULL};
    tiny_expect_warnings(what == REBUILD ? unused : NULL);
    for (enum call_fault fault = CALL_DIES_BEFORE; fault <= CALL_DIES_AFTER; fault++) {
        uint64_t idx = test_first((unsigned)stride) + part.idx * stride;
        while (test_failure_count < 10 && kill_at(what, fault, idx)) {
            idx += part.count * stride;
        }
        calls = fault == CALL_DIES_BEFORE ? idx : calls;
    }
    CHECK(calls > 20 || test_failure_count > 0);
    printf("%s: about %llu calls\n", what_names[what], (unsigned long long)calls);
}

int main(int argc, char **argv) {
    const uint64_t given = argc == 2 ? strtoull(argv[1], NULL, 10) : 0;
    tiny_single_thread(argv);
    if (!parts_begin(PARTS, argv, &part)) {
        return test_end();
    }
    calls_seen = tiny_shared(sizeof *calls_seen);
    calls_options.picks = is_of_run;
    told = tiny_shared(sizeof *told);
    for (drives = 0; drives <= 2; drives++) {
        static const char *const in_memory[][2] = {{"weights-tier", "host"}, {"state-tier", "host"},
                                                   {"grads-tier", "host"}, {"host-mem", "16MiB"}, {NULL, NULL}};
        tiny_set_drives(drives);
        tiny_set_options(drives == 0 ? in_memory : NULL);
        tiny_begin(TINY_IN_MEMORY);
        for (enum what what = NEW; what < (drives == 0 ? BRANCH : WHAT_COUNT); what++) {
            sweep(what, given > 0 ? given : STRIDE * test_stride(QUICK));
        }
    }
    printf("%llu kills, %llu of them second ones, %llu new runs begun again\n",
           (unsigned long long)(kill_count + twice_count), (unsigned long long)twice_count,
           (unsigned long long)again_count);
    CHECK(again_count > 0 && twice_count > 0);
    return test_end();
}
