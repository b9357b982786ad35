/* A start of two processes of which one is killed at a system call that creates, fills, syncs or removes something in
 * the run's folder or on its drives: each of both in turn, before the call and after it, at a new run, a new run in the
 * place of one that it deletes, a branch from one of the run's own checkpoints, and a new run from a checkpoint of
 * another. The other process notices and ends by itself, or is ended with it. After each kill either way leads on:
 * `latest`, or the same command again. Both end with the bits of the undisturbed run of one process.
 *
 * A start waits more than it computes, and `make test-all` takes thousands, in parts (tests/kit/parts.h). */
#include "tests/kit/calls.h"
#include "tests/kit/files.h"
#include "tests/kit/parts.h"
#include "tests/kit/run/sys_mpi.h"
#include "tests/kit/run/tiny_run.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <string.h>

enum { PROCESSES = 2, PARTS = 5 };
/* About as many calls as the start of each makes, so that one kill or two of each are in `make test`. */
static const unsigned strides[PROCESSES] = {300, 100};
enum what { NEW, OVERWRITE, BRANCH, BRANCH_NEW, WHAT_COUNT };
static const char *const what_names[WHAT_COUNT] = {"a new run", "a new run in the place of one", "a branch",
                                                   "a new run from a checkpoint"};
static const enum tiny_start starts[WHAT_COUNT] = {TINY_FRESH, TINY_OVERWRITE, TINY_BRANCH, TINY_BRANCH_NEW};
static const char *const options[][2] = {{"sum-groups", "2"}, {"host-mem", "16MiB"}, {NULL, NULL}};

/* What dies next: which process, and at which of its calls. */
static struct target {
    unsigned process;
    struct call_rule rule;
} *target; /* shared, as these are */
static struct tiny_told *told;
static uint64_t kill_count, again_count;
static struct test_part part;

static bool is_below(const char *path, const char *folder) {
    const size_t bytes = strlen(folder);
    return strncmp(path, folder, bytes) == 0 && (path[bytes] == '/' || path[bytes] == '\0');
}

static bool is_of_run(const char *path) {
    return is_below(path, tiny_folder()) || is_below(path, tiny_drive(0));
}

static const struct ox_io_backend *begin(const struct ox_io_backend *inner) {
    if (tiny_process_idx() == target->process) {
        calls_set(&target->rule);
        calls_arm(true);
    }
    return inner;
}

/* The start is over with the first step. */
static void step(uint64_t number) {
    (void)number;
    calls_arm(false);
}

static void end(void) {
    calls_arm(false);
}

static const struct tiny_seam seam = {.begin = begin, .end = end, .step = step};

/* Puts a run with a checkpoint of its first steps, and stores beyond that, where the next start finds it. */
static void put_run(void) {
    const char *const folder = test_path("kept"), *const drive = test_path("kept-drive");
    if (!files_exist(folder)) {
        CHECK(tiny_run("threads", TINY_FRESH, NULL, told) == TINY_DONE);
        files_remove_folder(test_pathf("%s/checkpoint-%d", tiny_folder(), TINY_STEPS));
        files_copy_folder(tiny_folder(), folder);
        files_copy_folder(tiny_drive(0), drive);
        return;
    }
    files_copy_folder(folder, tiny_folder());
    files_copy_folder(drive, tiny_drive(0));
}

static bool is_run(const char *json) {
    const char *const path = test_pathf("%s/run.json", tiny_folder());
    char *const now = json != NULL && files_exist(path) ? files_read(path, NULL) : NULL;
    const bool same = now != NULL && strcmp(json, now) == 0;
    free(now);
    return same;
}

/* Gives the same command again. A new run that has come to its steps is refused, which names `latest`. */
static void start_again(enum what what, const char *text) {
    const bool is_new = what == NEW || what == OVERWRITE;
    const uint64_t step_before = told->step;
    const enum tiny_end ended = tiny_run("threads", is_new ? TINY_FRESH : starts[what], NULL, told);
    const bool refused = is_new && strstr(told->text, "already holds a run; add --resume-from-checkpoint") != NULL;
    if (ended != TINY_DONE && !refused) {
        printf("%s: the same command again: %s\n", text, told->text);
        test_failure_count++;
    }
    again_count += ended == TINY_DONE;
    told->step = ended == TINY_DONE ? told->step : step_before;
}

/* Returns false if the start ends before that call. */
static bool kill_at(enum what what, unsigned process, enum call_fault fault, uint64_t idx) {
    char text[128], *old_run = NULL;
    const bool keeps = !test_all() || (idx + fault) % 4 < 2; /* the other one is left alone */
    snprintf(text, sizeof text, "%s, process %u killed %s call %llu, the other %s", what_names[what], process,
             fault == CALL_DIES_BEFORE ? "before" : "after", (unsigned long long)idx, keeps ? "left" : "ended");
    target->process = PROCESSES; /* none */
    if (what == BRANCH || what == OVERWRITE) {
        put_run();
        old_run = files_read(test_pathf("%s/run.json", tiny_folder()), NULL);
    }
    target->process = process;
    target->rule = (struct call_rule){.fault = fault, .idx = idx};
    *calls_seen = (struct calls_seen){0};
    tiny_set_loss(keeps ? SYS_MPI_KEEP_OTHERS : SYS_MPI_END_AT_ONCE);
    const enum tiny_end ended = tiny_run("threads", starts[what], &seam, told);
    tiny_set_loss(SYS_MPI_END_AT_ONCE);
    const bool killed = calls_seen->hits > 0;
    CHECK(killed || ended == TINY_DONE);
    kill_count += killed;
    if (what == OVERWRITE && is_run(old_run)) {
        told->step = TINY_STEPS; /* it has not begun to delete that one */
    } else if (what == BRANCH || what == BRANCH_NEW) {
        told->step = told->step > TINY_SAVED_STEP ? told->step : TINY_SAVED_STEP;
    }
    told->warnings = what == BRANCH_NEW; /* it has neither lines nor a checkpoint of the steps before */
    const bool lost = what == BRANCH_NEW && !files_exist(test_pathf("%s/run.json", tiny_folder()));
    if (killed && (lost || idx / 2 % 2 == 0)) { /* without run.json nothing says which checkpoint that was */
        start_again(what, text);
    }
    told->warnings = what == BRANCH_NEW;
    tiny_end_well("threads", told, text);
    free(old_run);
    return killed;
}

static void sweep(enum what what, unsigned process, enum call_fault fault) {
    const unsigned stride = test_stride(strides[process]) * part.count;
    uint64_t idx = test_first(strides[process]) + part.idx;
    while (test_failure_count < 10 && kill_at(what, process, fault, idx)) {
        idx += stride;
    }
    printf("%s, process %u: about %llu calls\n", what_names[what], process, (unsigned long long)calls_seen->changes);
}

int main(int argc, char **argv) {
    (void)argc;
    tiny_single_thread(argv);
    sys_mpi_require();
    setvbuf(stdout, NULL, _IOLBF, 0);
    tiny_set_processes(PROCESSES);
    tiny_set_options(options);
    calls_seen = tiny_shared(sizeof *calls_seen);
    calls_options.picks = is_of_run;
    target = tiny_shared(sizeof *target);
    tiny_process(&seam);
    if (!parts_begin(PARTS, argv, &part)) {
        return test_end();
    }
    told = tiny_shared(sizeof *told);
    tiny_begin(TINY_IN_MEMORY);
    for (enum what what = NEW; what < WHAT_COUNT; what++) {
        for (unsigned process = 0; process < PROCESSES; process++) {
            const bool before = test_all() || (what + process) % 2 == 0, after = test_all() || !before;
            if (before) {
                sweep(what, process, CALL_DIES_BEFORE);
            }
            if (after) {
                sweep(what, process, CALL_DIES_AFTER);
            }
        }
    }
    printf("%llu kills, %llu starts begun again\n", (unsigned long long)kill_count, (unsigned long long)again_count);
    CHECK(kill_count > 0 && again_count > 0);
    return test_end();
}
