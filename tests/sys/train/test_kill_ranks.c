/* A run of several ranks killed at any moment, and resumed with another number of ranks each time, ends with the bytes
 * of the undisturbed run of one; no step that was told of is lost, and nothing hangs. Then other ways to stop: signals,
 * one and two, and a trigger file, with a store and without.
 *
 *     test_kill_ranks [--count KILLS] */
#include "base/prng/prng.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { KILLS = 8, HANG_SECONDS = 600, QUICK = 1 };
#else
enum { KILLS = 40, HANG_SECONDS = 200, QUICK = 6 };
#endif
enum { SAVE_STEPS = 40, SHORT_STEPS = 12 };

static const char common_words[] =
    "--global-batch-size 4 --sum-groups 4 --batch-size 1 --max-seq-length 16 --learning-rate 3e-3"
    " --lr-scheduler-type cosine --warmup-steps 4 --max-grad-norm 0.5 --eval-windows 4 --compute-threads 1"
    " --optimizer-threads 1 --chunk-elems 2048";

static const char *const rank_words[] = {"--ranks=4", "--ranks=1", "--mesh=pp=2", "--mesh=dp=2,pp=2", "--ranks=2",
                                         "--mesh=pp=3", "--ranks=3"};
enum { RANK_WORDS = sizeof rank_words / sizeof *rank_words };
static const char *const places[] = {
    "--persist-steps 1",
    "--device-mem 8MiB --host-mem 64MiB --weights-tier nvme --state-tier nvme --grads-tier nvme --tiles 1",
    "--persist-steps 1 --optimizer-overlap held",
    "--state-tier nvme --optimizer-overlap speculative",
    "--persist-steps 1 --state-tier nvme --chaos-seed 5",
    "--persist-steps 1 --device-mem 16MiB --host-mem 64MiB --state-tier device"};
enum { PLACE_COUNT = sizeof places / sizeof *places };

/* Steps of a run that is killed many times, or in `make test` a few. */
static unsigned run_steps(void) {
    return test_all() ? 200 : 80;
}

static struct sys_args args;
static struct sys_process process;
static const char *model_path, *text_path;
static const char *numerics = ""; /* arguments of all runs that decide numbers */

/* ---- runs ------------------------------------------------------------------------------------------------ */

/* `ranks`: a word of the command. */
static void begin(const char *name, unsigned steps, const char *ranks, const char *words) {
    alarm(HANG_SECONDS); /* for this run */
    sys_args_train(&args, model_path, text_path, name);
    sys_args_word(&args, "--max-steps=%u", steps);
    sys_args_word(&args, "%s", ranks);
    sys_args_add(&args, common_words);
    sys_args_add(&args, numerics);
    sys_args_add(&args, words);
}

static void remove_run(const char *name) {
    files_remove_folder(name);
    files_remove_folder(test_pathf("%s-drive", name));
}

/* Ends the program that did not end, and the test. */
static void on_alarm(int signal_number) {
    static const char text[] = "the program hangs\n";
    (void)signal_number;
    kill(process.pid, SIGKILL);
    _exit(write(STDOUT_FILENO, text, sizeof text - 1) > 0 ? 1 : 2);
}

static void compare(const char *expected, const char *name, unsigned steps) {
    if (!sys_same_runs(expected, name, steps)) {
        sys_complain(&process, name);
    }
}

/* ---- kill -9 ----------------------------------------------------------------------------------------------- */

static struct {
    unsigned kills, resumes, ends, repeated; /* repeated: steps told of that were done again */
} counts;

static void pause_us(unsigned microseconds) {
    const struct timespec time = {.tv_sec = microseconds / 1000000, .tv_nsec = (long)(microseconds % 1000000) * 1000};
    nanosleep(&time, NULL);
}

/* The moments decide where the kill lands, not whether the test passes. */
static void await_moment(uint64_t kill_idx, long told_step) {
    uint32_t draw[4];
    char words[64];
    ox_philox(91, 1, kill_idx, draw);
    snprintf(words, sizeof words, "\nstep %ld/", told_step + 1 + (long)(draw[1] % 6));
    if (kill_idx % 5 == 4 || sys_await(&process, words)) {
        pause_us(draw[2] % 20000);
    }
}

/* Whether there is a warning but of experts that no token chose. */
static bool warns(void) {
    for (const char *at = process.outcome.err; (at = strstr(at, "warning: ")) != NULL; at++) {
        const char *const idle = strstr(at, " experts get no tokens");
        if (idle == NULL || idle > at + strcspn(at, "\n")) {
            return true;
        }
    }
    return false;
}

/* Runs one process, and kills it unless enough were. Returns false if the run is complete. */
static bool run_part(unsigned kills_max, long *told_step) {
    static unsigned part;
    const bool fresh = *told_step < 0;
    begin("killed", run_steps(), rank_words[part % RANK_WORDS], places[part / 4 % PLACE_COUNT]);
    sys_args_add(&args, fresh ? "--overwrite-output-dir" : "--resume latest");
    sys_args_add(&args, "--eval-steps 10 --save-total-limit 2");
    sys_args_word(&args, "--save-steps=%d", SAVE_STEPS);
    sys_args_drive(&args, "killed-drive", "32MiB");
    sys_start(&args, &process);
    part++;
    if (counts.kills < kills_max) {
        await_moment(counts.kills + (fresh ? 0 : 1), fresh ? 0 : *told_step);
        kill(process.pid, SIGKILL);
    }
    sys_wait(&process);
    const long resumed = sys_number_after(process.outcome.err, "resumed at step ", -1);
    if (resumed >= 0) { /* one step may be pending when steps overlap */
        counts.resumes++;
        counts.repeated += resumed < *told_step;
        if (resumed < *told_step - 1 || resumed > *told_step + 1) {
            printf("told of step %ld, resumed at %ld: ", *told_step, resumed);
            sys_complain(&process, "resumed elsewhere");
        }
        *told_step = resumed;
    }
    const long told = sys_number_after(process.outcome.err, "\nstep ", -1);
    *told_step = told > *told_step ? told : *told_step;
    if (warns()) {
        sys_complain(&process, "a warning");
    }
    counts.kills += process.outcome.signal_number == SIGKILL;
    if (process.outcome.signal_number != SIGKILL && process.outcome.exit_status != 0) {
        sys_complain(&process, "cannot go on");
    }
    return process.outcome.exit_status != 0 && test_failure_count == 0;
}

static void test_kills(unsigned kills_max) {
    memset(&counts, 0, sizeof counts);
    begin("expected", run_steps(), "--ranks=1", "--eval-steps 10 --save-total-limit 2");
    sys_args_word(&args, "--save-steps=%d", SAVE_STEPS);
    sys_run_well(&args, &process);
    while (counts.kills < kills_max && test_failure_count == 0) {
        long told_step = -1;
        while (run_part(kills_max, &told_step)) {
            continue;
        }
        counts.ends++;
        compare("expected", "killed", run_steps());
        remove_run("killed");
    }
    printf("%u kills, %u resumes with other ranks, %u steps repeated, %u runs brought to the end\n", counts.kills,
           counts.resumes, counts.repeated, counts.ends);
    remove_run("expected");
}

/* ---- asked to stop ------------------------------------------------------------------------------------------- */

static void begin_short(const char *words, const char *ranks, bool drive) {
    begin("asked", SHORT_STEPS, ranks, "--eval-steps 4 --save-steps 0");
    sys_args_leash(&args); /* it has not come to its end when it is asked */
    sys_args_add(&args, words);
    if (drive) {
        sys_args_drive(&args, "asked-drive", "32MiB");
    }
}

static void end_asked(bool drive) {
    begin_short("--resume latest", "--ranks=3", drive);
    sys_run_well(&args, &process);
    compare("undisturbed", "asked", SHORT_STEPS);
    remove_run("asked");
}

/* Four ranks; of those with a drive two have layers of their own. */
static const char *four(bool drive) {
    return drive ? "--mesh=dp=2,pp=2" : "--ranks=4";
}

/* Stops a run of four ranks by a signal, or without one by the trigger file. It saves the step it ends with. */
static void test_stop(int signal_number, int exit_status, const char *words, bool drive) {
    begin_short(words, four(drive), drive);
    sys_start(&args, &process);
    CHECK(sys_await(&process, "\nstep 3/"));
    if (signal_number != 0) {
        kill(process.pid, signal_number);
    } else {
        files_write_text(test_path("asked/offload.stop"), "");
    }
    sys_wait(&process);
    const long step = sys_number_after(process.outcome.err, "/checkpoint-", -1);
    if (process.outcome.exit_status != exit_status || step < 3 || step >= SHORT_STEPS ||
        !files_exist(test_pathf("asked/checkpoint-%ld/trainer_state.json", step)) || sys_said(&process, "failed")) {
        printf("signal %d, %s, checkpoint of step %ld: ", signal_number, words, step);
        sys_complain(&process, "expected a saved stop");
    }
    end_asked(drive);
}

/* Two signals at once end the process at once; what was saved or committed before stands. */
static void test_second_signal(void) {
    begin_short("", four(true), true);
    sys_start(&args, &process);
    CHECK(sys_await(&process, "\nstep 3/"));
    kill(process.pid, SIGSTOP);
    int status = 0;
    CHECK(waitpid(process.pid, &status, WUNTRACED) == process.pid && WIFSTOPPED(status));
    kill(process.pid, SIGINT);
    kill(process.pid, SIGTERM);
    kill(process.pid, SIGCONT);
    sys_wait(&process);
    if (process.outcome.exit_status != 128 + SIGINT && process.outcome.exit_status != 128 + SIGTERM) {
        sys_complain(&process, "ended by two signals");
    }
    end_asked(true);
}

static void test_asked(void) {
    begin("undisturbed", SHORT_STEPS, "--ranks=1", "--eval-steps 4 --save-steps 0");
    sys_run_well(&args, &process);
    for (int drive = 0; drive < 2; drive++) {
        test_stop(SIGTERM, 143, "", drive == 1);
        test_stop(SIGINT, 130, "--stop-grace-seconds 0", drive == 1); /* within a step, not behind it */
        test_stop(SIGTERM, 143, "--optimizer-overlap held --stop-grace-seconds 0", drive == 1);
        test_stop(SIGTERM, 143, "--optimizer-overlap speculative --stop-grace-seconds 0", drive == 1);
        test_stop(0, 0, "", drive == 1);
    }
    test_second_signal();
}

int main(int argc, char **argv) {
    const bool counted = argc == 3 && strcmp(argv[1], "--count") == 0;
    const unsigned kills = counted ? (unsigned)strtoul(argv[2], NULL, 10) : KILLS / test_stride(QUICK);
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGALRM, on_alarm);
    model_path = sys_write_model("llama");
    text_path = sys_write_text(20000);
    test_asked();
    test_kills(kills);
    model_path = sys_write_model("deepseek");
    numerics = "--router-aux-loss-coef 0.01 --experts-per-unit 4";
    test_kills(kills);
    return test_end();
}
