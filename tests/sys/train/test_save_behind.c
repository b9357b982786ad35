/* Checkpoints that training does not wait for. With a drive they have the bytes of those without one, at every step. A
 * process killed while one is pending is resumed to the same end, and a stopped process completes it. */
#include "engine/checkpoint/checkpoint.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { STEPS = 60, SAVE_STEPS = 10, KILLS = 5 };

static struct sys_args args;
static struct sys_process process;
static const char *model_path, *text_path;

static void begin(const char *name, bool drive, const char *more) {
    sys_args_train(&args, model_path, text_path, name);
    sys_args_word(&args, "--max-steps=%d", STEPS);
    sys_args_add(&args, "--gradient-accumulation-steps 2 --max-seq-length 16 --learning-rate 3e-3 --eval-windows 4"
                        " --compute-threads 1 --optimizer-threads 1 --chunk-elems 2048");
    sys_args_add(&args, more);
    if (drive) {
        sys_args_drive(&args, test_pathf("%s-drive", name), "32MiB");
    }
}

static bool is_there(const char *name, int step, const char *suffix) {
    return files_exist(test_pathf("%s/checkpoint-%d%s", name, step, suffix));
}

static void compare(const char *name, int step) {
    const char *const left = test_pathf("expected/checkpoint-%d", step);
    const char *const right = test_pathf("%s/checkpoint-%d", name, step);
    CHECK(sys_same_checkpoint(left, right) && ox_checkpoint_verify(right) == OX_OK);
}

static void check_clean(const char *name) {
    for (int step = 0; step <= STEPS; step++) {
        CHECK(!is_there(name, step, ".tmp"));
    }
}

/* Saves at each step or at some steps, with and without a drive, give the same bytes and messages. */
static void test_same(void) {
    begin("expected", false, "--save-steps 10 --save-dtype bf16");
    sys_run_well(&args, &process);
    begin("behind", true, "--save-steps 10 --save-dtype bf16");
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.err, "warning") == NULL);
    const char *said = process.outcome.err;
    for (int step = SAVE_STEPS; step <= STEPS; step += SAVE_STEPS) {
        char words[64];
        snprintf(words, sizeof words, "behind/checkpoint-%d in ", step);
        said = said != NULL ? strstr(said, words) : NULL;
        CHECK(said != NULL);
        compare("behind", step);
    }
    check_clean("behind");
    begin("often", true, "--save-steps 1 --save-dtype bf16 --save-total-limit 15 --state-tier nvme");
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.err, "warning") == NULL);
    for (int step = STEPS - 10; step <= STEPS; step += SAVE_STEPS) {
        compare("often", step);
    }
    CHECK(!is_there("often", STEPS - 15, "") && is_there("often", STEPS - 14, ""));
    check_clean("often");
}

/* Waits until a checkpoint is being written; returns false if the process has ended before. */
static bool await_tmp(const char *name, int from) {
    for (;;) {
        for (int step = from; step < STEPS; step += SAVE_STEPS) {
            if (is_there(name, step, ".tmp")) {
                return true;
            }
        }
        if (is_there(name, STEPS, "")) {
            return false;
        }
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
}

static void test_killed(void) {
    unsigned kills = 0, left = 0;
    bool more = true;
    for (int i = 0; more && i < KILLS; i++) {
        begin("killed", true, "--save-steps 10 --save-dtype bf16");
        sys_args_add(&args, i > 0 ? "--resume latest" : "");
        sys_start(&args, &process);
        more = await_tmp("killed", SAVE_STEPS * (i + 1));
        nanosleep(&(struct timespec){.tv_nsec = 700000 * (i % 3)}, NULL);
        kill(process.pid, SIGKILL);
        sys_wait(&process);
        kills += process.outcome.signal_number == SIGKILL;
        for (int step = SAVE_STEPS; step < STEPS; step += SAVE_STEPS) {
            left += is_there("killed", step, ".tmp");
            if (is_there("killed", step, "")) {
                compare("killed", step);
            }
        }
    }
    begin("killed", true, "--save-steps 10 --save-dtype bf16 --resume latest");
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.err, "warning") == NULL && kills > 0);
    compare("killed", STEPS);
    check_clean("killed");
    printf("%u kills, %u unfinished checkpoints left by them\n", kills, left);
}

/* A checkpoint that is being written is completed when the run stops, and so is that of the last step. */
static void test_stopped(void) {
    begin("stopped", true, "--save-steps 10 --save-dtype bf16");
    sys_start(&args, &process);
    CHECK(await_tmp("stopped", SAVE_STEPS));
    kill(process.pid, SIGTERM);
    sys_wait(&process);
    CHECK(process.outcome.exit_status == 128 + SIGTERM && strstr(process.outcome.err, "warning") == NULL);
    compare("stopped", SAVE_STEPS);
    check_clean("stopped");
}

/* Neither checkpoint is lost when an unrelated folder takes the new one's name. */
static void test_in_the_way(void) {
    begin("crowded", true, "--save-steps 40 --save-dtype bf16");
    sys_start(&args, &process);
    CHECK(sys_await(&process, "\nstep "));
    files_make_folder("crowded/checkpoint-40");
    sys_wait(&process);
    CHECK(process.outcome.exit_status == 0 && strstr(process.outcome.err, "checkpoint-40.old-1") != NULL);
    CHECK(is_there("crowded", 40, ".old-1"));
    compare("crowded", 40);
}

int main(void) {
    model_path = sys_write_model("llama");
    text_path = sys_write_text(40000);
    test_same();
    test_killed();
    test_stopped();
    test_in_the_way();
    return test_end();
}
