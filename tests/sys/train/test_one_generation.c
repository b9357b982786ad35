/* A store of one generation takes half the space and gives the same bits. A killed run resumes from the last commit
 * where the store is whole, and from the last checkpoint where a write was cut short, and ends with the bytes of the
 * undisturbed run. */
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include "base/prng/prng.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { STEPS = 400, SAVE_STEPS = 20, KILLS = 40 };

static const char words[] = "--gradient-accumulation-steps 2 --max-seq-length 16 --learning-rate 3e-3"
                            " --lr-scheduler-type cosine --eval-windows 4 --compute-threads 1 --optimizer-threads 1"
                            " --chunk-elems 8192 --weights-tier nvme --state-tier nvme";

static struct sys_args args;
static struct sys_process process;
static const char *model_path, *text_path;

static void begin(const char *command, const char *name, unsigned generations, const char *more) {
    sys_args_begin(&args, command);
    sys_args_word(&args, "--model=%s", model_path);
    sys_args_word(&args, "--data=%s", text_path);
    sys_args_word(&args, "--output=%s", test_path(name));
    sys_args_word(&args, "--store-generations=%u", generations);
    sys_args_word(&args, "--max-steps=%u", STEPS);
    sys_args_word(&args, "--save-steps=%u", SAVE_STEPS);
    sys_args_add(&args, words);
    sys_args_add(&args, more);
    sys_args_drive(&args, test_pathf("%s-drive", name), "32MiB");
}

static long planned_bytes(unsigned generations) {
    begin("plan", "planned", generations, "--format json");
    sys_run_well(&args, &process);
    const char *const peak = strstr(process.outcome.out, "\"peak_bytes\"");
    return peak == NULL ? -1 : strtol(strstr(peak, "\"nvme\":") + 7, NULL, 10);
}

static void compare(const char *name) {
    const char *const left = test_pathf("two/checkpoint-%u", STEPS);
    const char *const right = test_pathf("%s/checkpoint-%u", name, STEPS);
    CHECK(sys_same_checkpoint(left, right));
    char *const a = sys_curve(test_path("two"), "step");
    char *const b = sys_curve(test_path(name), "step");
    CHECK(sys_same_text(name, a, b));
    free(b);
    free(a);
}

static void test_room_and_bits(void) {
    const long two = planned_bytes(2), one = planned_bytes(1);
    printf("drive: %ld bytes with two generations, %ld with one\n", two, one);
    CHECK(one > 0 && two > one && two - one > one / 4);
    begin("train", "two", 2, "");
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.err, "--store-generations 1") == NULL);
    begin("train", "one", 1, "");
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.err, "goes back to its last checkpoint") != NULL);
    compare("one");
}

static void pause_us(unsigned microseconds) {
    const struct timespec time = {.tv_nsec = (long)microseconds * 1000};
    nanosleep(&time, NULL);
}

/* Kills the run after a drawn step, at a drawn moment; it must resume each time. */
static void test_kills(void) {
    unsigned from_store = 0, from_checkpoint = 0;
    long told = 0;
    for (uint64_t i = 0, ended = 0; ended == 0; i++) {
        uint32_t draw[4];
        char wait_for[64];
        ox_philox(5, 9, i, draw);
        begin("train", "killed", 1, i > 0 ? "--resume-from-checkpoint latest" : "");
        sys_start(&args, &process);
        /* Beyond the next checkpoint: the run moves on. */
        const long target = told + SAVE_STEPS + 1 + (long)(draw[0] % 8);
        snprintf(wait_for, sizeof wait_for, "\nstep %ld/", target);
        if (i < KILLS && sys_await(&process, wait_for)) {
            pause_us(draw[1] % 12000);
            kill(process.pid, SIGKILL);
        }
        sys_wait(&process);
        const char *const err = process.outcome.err;
        from_store += strstr(err, "from the store's last commit") != NULL;
        from_checkpoint += i > 0 && strstr(err, "the store is not used") != NULL;
        if (process.outcome.signal_number != SIGKILL && process.outcome.exit_status != 0) {
            printf("%s\n", err);
            CHECK(process.outcome.exit_status == 0);
            return;
        }
        const long resumed = sys_number_after(err, "resumed at step ", 0);
        CHECK(resumed >= told / SAVE_STEPS * SAVE_STEPS - SAVE_STEPS);
        told = sys_number_after(err, "\nstep ", resumed);
        ended = process.outcome.signal_number != SIGKILL; /* the last reported step may not be saved yet */
    }
    printf("went on from the store %u times, from a checkpoint %u times\n", from_store, from_checkpoint);
    CHECK(from_store + from_checkpoint > 2);
    compare("killed");
}

int main(void) {
    model_path = sys_write_model("llama");
    text_path = sys_write_text(8192);
    test_room_and_bits();
    test_kills();
    begin("train", "one", 2, "--resume-from-checkpoint latest");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 2 && strstr(process.outcome.err, "--store-generations") != NULL);
    return test_end();
}
