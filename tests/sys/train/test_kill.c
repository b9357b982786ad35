/* A run killed a hundred times, at moments spread over its start, its steps, its commits and its saves, ends with the
 * bytes of the undisturbed run. Each kill loses at most one step, or as many as stay in memory. Then other ways to
 * stop: signals and trigger files.
 *
 *     test_kill [--count KILLS] */
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include "base/file.h"
#include "base/prng/prng.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { KILLS = 100, BLIND_KILLS = 6, SAVE_STEPS = 25, SHORT_STEPS = 12, LINE = SYS_PATH_BYTES + 64 };

static const char common_words[] =
    "--gradient-accumulation-steps 2 --batch-size 1 --max-seq-length 16 --learning-rate 3e-3"
    " --lr-scheduler-type cosine --warmup-steps 4 --max-grad-norm 0.5 --eval-windows 4 --compute-threads 1"
    " --optimizer-threads 1 --chunk-elems 8192";

/* Steps of a run that is killed, where it takes some hundred kills, and where it takes a few. */
static unsigned run_steps(void) {
    return test_all() ? 1000 : 200;
}

/* Arguments that decide the numerics of all runs in a part of the test. */
static const char *numerics = "";

static struct sys_args args;
static struct sys_process process;
static const char *model_path, *text_path;

static void begin(const char *name, unsigned steps, const char *words) {
    sys_args_train(&args, model_path, text_path, name);
    sys_args_word(&args, "--max-steps=%u", steps);
    sys_args_add(&args, common_words);
    sys_args_add(&args, numerics);
    sys_args_add(&args, words);
    sys_args_drive(&args, test_pathf("%s-drive", name), "32MiB");
}

static void remove_run(const char *name) {
    files_remove_folder(name);
    files_remove_folder(test_pathf("%s-drive", name));
}

static void compare(const char *expected, const char *name, unsigned steps) {
    if (!sys_same_runs(expected, name, steps)) {
        sys_complain(&process, name);
    }
}

/* ---- kill -9 ---------------------------------------------------------------------------------------- */

static struct {
    unsigned kills, before_start, while_saving, resumes, starts_over, ends;
    unsigned commits;  /* steps reported by any process */
    unsigned lost;     /* reported steps that the next process had to repeat */
    unsigned restored; /* lines of metrics.jsonl that a killed process had not written */
} counts;

static void pause_us(unsigned microseconds) {
    const struct timespec time = {.tv_sec = microseconds / 1000000, .tv_nsec = (long)(microseconds % 1000000) * 1000};
    nanosleep(&time, NULL);
}

/* Waits for what the draw says: nothing, a number of steps, or the step after which a checkpoint is written; then for
 * a moment of its own. The moments decide where the kill lands, not whether the test passes. */
static void await_moment(uint64_t kill_idx, bool started, long resumed_at) {
    uint32_t draw[4];
    char words[64];
    ox_philox(77, 1, kill_idx, draw);
    if (kill_idx % 4 == 0 || (!started && kill_idx < BLIND_KILLS)) {
        pause_us(draw[0] % (kill_idx % 8 == 0 ? 60000 : 18000));
        return;
    }
    if (!started) { /* on a slow machine no blind kill would ever come after the start */
        resumed_at = 0;
    }
    const long save_at = (resumed_at / SAVE_STEPS + 1) * SAVE_STEPS;
    const bool at_save = kill_idx % 4 == 1 && save_at - resumed_at < 10;
    snprintf(words, sizeof words, "\nstep %ld/", at_save ? save_at : resumed_at + 1 + (long)(draw[1] % 5));
    if (sys_await(&process, words)) {
        pause_us(draw[2] % (at_save ? 10000 : 12000));
    }
}

/* What is known about the run between two processes. */
struct knowledge {
    bool started;   /* a process has reported that the run began */
    long kept_step; /* the step from which a process has resumed: later ones may not resume from an earlier one */
    long told_step; /* the last step reported or found by the last process that got so far */
    long lost_max;  /* most steps that a kill may lose */
};

static long max_long(long a, long b) {
    return a > b ? a : b;
}

/* Placements of a run, and how many steps a kill may lose there. */
static const struct {
    const char *words;
    long lost_max;
} places[] = {
    {" --persist-steps 1", 1},
    {" --device-mem 4MiB --host-mem 4MiB --weights-tier nvme --state-tier nvme --grads-tier nvme --tiles 1", 1},
    {" --persist-steps 3 --device-mem 4MiB --tiles 2 --activation-tier nvme", 3},
    {" --persist-steps 2 --io-backend threads --prefetch-depth 0", 2},
    {" --persist-steps 3 --device-mem 4MiB --host-mem 4MiB --state-tier nvme --grads-tier nvme", 3},
    {" --persist-steps 3 --optimizer-overlap speculative --device-mem 4MiB --host-mem 16MiB", 3},
    {" --persist-steps 2 --optimizer-overlap held --weights-tier nvme", 2},
    {" --persist-steps 2 --device-mem 16MiB --state-tier device", 2},
    {" --persist-steps 1 --device-mem 16MiB --device-state-units 2 --state-tier nvme --optimizer-overlap held", 1}};
enum { PLACES = sizeof places / sizeof *places };

/* Updates that need the routing of a whole step are never speculative. */
static size_t place_of(uint64_t kill_idx) {
    const size_t idx = kill_idx % PLACES;
    const bool routes = strstr(numerics, "--idle-experts") != NULL;
    return routes && strstr(places[idx].words, "speculative") != NULL ? 0 : idx;
}

/* Reads the output of a process. The test looks for two failures: a resume further behind the reported steps than
 * allowed, or ahead of the one step that may have been committed unreported. */
static void take_words(struct knowledge *known, bool resuming, uint64_t kill_idx) {
    const bool began = sys_said(&process, "starting from ");
    const long resumed = began ? 0 : sys_number_after(process.outcome.err, "resumed at step ", -1);
    if (resuming && resumed >= 0) {
        counts.resumes++;
        const long least = max_long(known->kept_step, known->told_step - known->lost_max);
        if (resumed < least || resumed > known->told_step + 1) {
            printf("told of step %ld, ", known->told_step);
            sys_complain(&process, "resumed elsewhere");
        }
        counts.lost += resumed < known->told_step;
        known->kept_step = known->told_step = resumed;
    }
    known->lost_max = resumed >= 0 ? places[place_of(kill_idx)].lost_max : known->lost_max;
    const long told = sys_number_after(process.outcome.err, "\nstep ", -1);
    const long begun = max_long(resumed, 0);
    counts.commits += told > begun ? (unsigned)(told - begun) : 0;
    known->told_step = max_long(known->told_step, told);
    known->started = known->started || resumed >= 0;
    if (sys_said(&process, "warning")) {
        sys_complain(&process, "a warning");
    }
}

static void begin_part(bool resuming, uint64_t kill_idx) {
    begin("killed", run_steps(), "--eval-steps 10 --save-total-limit 2");
    sys_args_word(&args, "--save-steps=%d", SAVE_STEPS);
    sys_args_add(&args, places[place_of(kill_idx)].words);
    sys_args_add(&args, resuming ? "--resume latest" : "");
}

/* Runs one process, and kills it if it is not past `kills_max`. Returns false if the run is complete. */
static bool run_part(struct knowledge *known, bool *resuming, uint64_t kill_idx, unsigned kills_max) {
    begin_part(*resuming, kill_idx);
    sys_start(&args, &process);
    if (kill_idx < kills_max) {
        await_moment(kill_idx, known->started, known->told_step);
        kill(process.pid, SIGKILL);
    }
    sys_wait(&process);
    take_words(known, *resuming, kill_idx);
    if (process.outcome.signal_number == SIGKILL) {
        counts.kills++;
        counts.before_start += !sys_said(&process, "resumed at step ") && !sys_said(&process, "starting from ");
        const long told = sys_number_after(process.outcome.err, "\nstep ", -1);
        counts.while_saving += told > 0 && told % SAVE_STEPS == 0 && !sys_said(&process, "saved ");
        *resuming = true;
        return true;
    }
    if (process.outcome.exit_status == 0) {
        return false;
    }
    /* The process was killed before it made the folder: only then is a resume refused. */
    if (!*resuming || known->started || !sys_said(&process, "holds no run") || files_exist("killed")) {
        sys_complain(&process, "cannot go on");
        exit(1);
    }
    counts.starts_over++;
    *resuming = false;
    return true;
}

static void count_restored(void) {
    char *text = NULL;
    size_t bytes = 0;
    REQUIRE_OK(ox_file_read(test_path("killed/metrics.jsonl"), (size_t)1 << 30, &text, &bytes));
    for (const char *at = strstr(text, "\"seconds\":null"); at != NULL; at = strstr(at + 1, "\"seconds\":null")) {
        counts.restored++;
    }
    free(text);
}

static void test_kills(const char *words, unsigned kills_max) {
    numerics = words;
    begin("expected", run_steps(), "--eval-steps 10 --save-total-limit 2");
    sys_args_word(&args, "--save-steps=%d", SAVE_STEPS);
    sys_run_well(&args, &process);
    while (counts.kills < kills_max && test_failure_count == 0) {
        struct knowledge known = {0};
        bool resuming = false;
        while (run_part(&known, &resuming, counts.kills, kills_max)) {
            continue;
        }
        counts.ends++;
        compare("expected", "killed", run_steps());
        count_restored();
        remove_run("killed"); /* a start that is killed early must not find it */
    }
    printf("%u kills (%u before the run began or went on, %u while saving), %u resumes, %u starts over, "
           "%u steps told of, %u of them lost, %u lines restored, %u runs brought to the end\n",
           counts.kills, counts.before_start, counts.while_saving, counts.resumes, counts.starts_over, counts.commits,
           counts.lost, counts.restored, counts.ends);
    remove_run("expected");
}

/* ---- asked to stop ----------------------------------------------------------------------------------- */

static void begin_short(const char *words) {
    begin("asked", SHORT_STEPS, "--eval-steps 4 --save-steps 0");
    sys_args_leash(&args); /* it has not come to its end when it is asked */
    sys_args_add(&args, words);
}

static bool checkpoint_exists(long step) {
    return files_exist(test_pathf("asked/checkpoint-%ld/trainer_state.json", step));
}

/* Resumes to the end and compares. */
static void end_asked(void) {
    begin_short("--resume latest");
    sys_run_well(&args, &process);
    compare("undisturbed", "asked", SHORT_STEPS);
    remove_run("asked");
}

static void test_signal(int signal_number, int exit_status, const char *words) {
    begin_short(words);
    sys_start(&args, &process);
    CHECK(sys_await(&process, "\nstep 3/"));
    kill(process.pid, signal_number);
    sys_wait(&process);
    const long step = sys_number_after(process.outcome.err, "/checkpoint-", -1);
    if (process.outcome.exit_status != exit_status || step < 3 || step >= SHORT_STEPS || !checkpoint_exists(step)) {
        printf("signal %d, checkpoint of step %ld: ", signal_number, step);
        sys_complain(&process, "expected a saved stop");
    }
    char ending[128]; /* USR2 is no accident, so it is not named */
    snprintf(ending, sizeof ending, "stopped%s%s after step %ld of %d; --resume-from-checkpoint latest goes on\n",
             exit_status != 0 ? " by SIG" : "", exit_status != 0 ? sigabbrev_np(signal_number) : "", step, SHORT_STEPS);
    CHECK(sys_said(&process, ending));
    end_asked();
}

/* USR1: a checkpoint appears and training continues. */
static void test_save_signal(void) {
    begin_short("");
    sys_start(&args, &process);
    CHECK(sys_await(&process, "\nstep 3/"));
    kill(process.pid, SIGUSR1);
    CHECK(sys_await(&process, "saved "));
    sys_wait(&process);
    const char *const saved = strstr(process.outcome.err, "/checkpoint-");
    const long step = saved != NULL ? strtol(saved + strlen("/checkpoint-"), NULL, 10) : -1;
    CHECK(process.outcome.exit_status == 0 && step >= 3 && step < SHORT_STEPS && checkpoint_exists(step));
    compare("undisturbed", "asked", SHORT_STEPS);
    remove_run("asked");
}

static void test_trigger(const char *name, bool ends) {
    const char *const path = test_pathf("asked/%s", name);
    begin_short("");
    sys_start(&args, &process);
    CHECK(sys_await(&process, "\nstep 2/"));
    files_write_text(path, "");
    CHECK(sys_await(&process, "saved "));
    sys_wait(&process);
    const char *const saved = strstr(process.outcome.err, "/checkpoint-");
    const long step = saved != NULL ? strtol(saved + strlen("/checkpoint-"), NULL, 10) : -1;
    CHECK(process.outcome.exit_status == 0 && step >= 2 && step < SHORT_STEPS && checkpoint_exists(step));
    CHECK(!files_exist(path)); /* a trigger file acts once */
    if (ends) {
        CHECK(sys_number_after(process.outcome.err, "\nstep ", -1) == step);
        end_asked();
        return;
    }
    compare("undisturbed", "asked", SHORT_STEPS);
    remove_run("asked");
}

/* If two signals are pending together, the second ends the process at once, and nothing is saved. Two threads may
 * each take one at the same instant, so the test makes a few attempts. */
static void test_second_signal(void) {
    bool seen = false;
    for (int i = 0; i < 5 && !seen; i++) {
        begin_short(i == 0 ? "" : "--overwrite-output-dir");
        sys_start(&args, &process);
        CHECK(sys_await(&process, "\nstep 3/"));
        kill(process.pid, SIGSTOP);
        int status = 0;
        CHECK(waitpid(process.pid, &status, WUNTRACED) == process.pid && WIFSTOPPED(status));
        kill(process.pid, SIGINT);
        kill(process.pid, SIGTERM);
        kill(process.pid, SIGCONT);
        sys_wait(&process);
        const int ended = process.outcome.exit_status;
        if (ended != 128 + SIGINT && ended != 128 + SIGTERM) {
            sys_complain(&process, "ended by two signals");
        }
        seen = sys_said(&process, "\nended at once by a second signal; ");
    }
    CHECK(seen);
    end_asked();
}

/* A run that ignores HUP from its start, as under nohup, goes on. */
static void test_ignored_signal(void) {
    begin_short("");
    signal(SIGHUP, SIG_IGN); /* the run inherits it */
    sys_start(&args, &process);
    signal(SIGHUP, SIG_DFL);
    CHECK(sys_await(&process, "\nstep 3/"));
    kill(process.pid, SIGHUP);
    sys_wait(&process);
    CHECK(process.outcome.exit_status == 0);
    compare("undisturbed", "asked", SHORT_STEPS);
    remove_run("asked");
}

static void test_asked(void) {
    begin("undisturbed", SHORT_STEPS, "--eval-steps 4 --save-steps 0");
    sys_run_well(&args, &process);
    test_signal(SIGTERM, 143, "");
    test_signal(SIGINT, 130, "");
    test_signal(SIGHUP, 129, "");
    test_ignored_signal();
    test_signal(SIGTERM, 143, "--stop-grace-seconds 0"); /* does not wait for the step to end */
    test_signal(SIGUSR2, 0, "");
    test_save_signal();
    test_trigger("offload.save", false);
    test_trigger("offload.stop", true);
    test_second_signal();
}

int main(int argc, char **argv) {
    const bool counted = argc == 3 && strcmp(argv[1], "--count") == 0;
    const unsigned kills = counted ? (unsigned)strtoul(argv[2], NULL, 10) : KILLS / test_stride(14);
    model_path = sys_write_model("llama");
    text_path = sys_write_text(20000);
    test_asked();
    test_kills("", kills * 7 / 10);
    test_kills(" --dtype bf16 --moments q8", kills);
    model_path = sys_write_model("deepseek");
    test_kills(" --router-bias-update-rate 0.05 --idle-experts skip --experts-per-unit 4", kills * 6 / 5);
    return test_end();
}
