/* Training that is interrupted all the time: every process of a run has options of its own (ranks and what they divide,
 * memories, drives, order of updates, how often it persists and saves, delays of its lanes) and is killed or stopped at
 * a moment of its own. What was told of is lost only as far as promised, and the run ends with the bytes of one that
 * nothing disturbed. Then comes the next run, with other numbers.
 *
 * The seed decides all draws; when a process is hit also depends on the machine.
 *
 *     test_soak [--seconds N] [--seed N] */
#include "base/prng/prng.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { INTERRUPTIONS = 12, HANG_SECONDS = 900, SLOWNESS = 8 };
#else
enum { INTERRUPTIONS = 40, HANG_SECONDS = 120, SLOWNESS = 1 };
#endif
enum { NO_STEP = -1, HISTORY = 12 };

static const char common_words[] =
    "--global-batch-size 8 --batch-size 1 --max-seq-length 16 --learning-rate 3e-3 --lr-scheduler-type cosine"
    " --warmup-steps 4 --max-grad-norm 0.5 --eval-steps 10 --eval-windows 4";

static struct sys_args args;
static struct sys_process process;
static const char *text_path;

/* ---- draws ------------------------------------------------------------------------------------------------- */

static struct {
    uint64_t seed, count;
} draws;

/* A number from 0 to below `range`. */
static unsigned draw(unsigned range) {
    uint32_t words[4];
    ox_philox(draws.seed, 1, draws.count++, words);
    return words[0] % range;
}

static bool one_in(unsigned range) {
    return draw(range) == 0;
}

#define DRAW_FROM(list) ((list)[draw(sizeof(list) / sizeof *(list))])

/* What all processes of a run have in common: its numbers, and where its store lies. */
struct run {
    const char *model, *numbers, *chunks;
    unsigned steps, sum_groups, drives;
    bool single; /* one generation */
};

static struct run draw_run(void) {
    static const char *const models[] = {"llama", "gpt2"};
    static const char *const numbers[] = {
        "",
        "--dtype bf16",
        "--dtype bf16 --moments q8",
        "--dtype bf16 --grad-dtype bf16 --moments bf16",
        "--optimizer lion --data-order sequential",
        "--optimizer sgd --dtype bf16"};
    static const unsigned groups[] = {1, 2, 4, 4, 8};
    static const char *const chunks[] = {"2048", "4096", "8192"};
    struct run run = {.model = sys_write_model(DRAW_FROM(models)), .numbers = DRAW_FROM(numbers)};
    run.steps = (40 + draw(160)) / SLOWNESS + 10;
    run.sum_groups = DRAW_FROM(groups);
    run.chunks = DRAW_FROM(chunks);
    run.drives = draw(4);
    run.single = run.drives > 0 && one_in(5);
    return run;
}

/* ---- processes ----------------------------------------------------------------------------------------------- */

/* One process of a run. */
struct part {
    unsigned save_steps, persist_steps;
};

static void begin(const struct run *run, const char *name) {
    alarm(HANG_SECONDS); /* for this process */
    sys_args_train(&args, run->model, text_path, name);
    sys_args_add(&args, common_words);
    sys_args_add(&args, run->numbers);
    sys_args_word(&args, "--max-steps=%u", run->steps);
    sys_args_word(&args, "--sum-groups=%u", run->sum_groups);
}

/* Adds where planes live and when they are updated; updates in backward need every step on the drives. */
static void draw_places(const struct run *run, struct part *part) {
    static const char *const stored[] = {
        "", "--state-tier nvme", "--device-mem 8MiB --host-mem 64MiB",
        "--device-mem 8MiB --host-mem 64MiB --weights-tier nvme --state-tier nvme --grads-tier nvme",
        "--device-mem 8MiB --host-mem 64MiB --state-tier nvme --activation-tier nvme",
        "--state-tier nvme --grads-tier nvme --prefetch-depth 0"};
    static const char *const in_memory[] = {"", "--device-mem 8MiB --host-mem 64MiB",
                                            "--device-mem 16MiB --host-mem 64MiB --device-state-units 1"};
    static const char *const overlaps[] = {"auto", "auto", "off", "held", "speculative"};
    sys_args_add(&args, run->drives > 0 ? DRAW_FROM(stored) : DRAW_FROM(in_memory));
    const char *const overlap = run->drives > 0 ? DRAW_FROM(overlaps) : "auto";
    sys_args_word(&args, "--optimizer-overlap=%s", overlap);
    part->persist_steps = strcmp(overlap, "speculative") == 0 ? 1 : part->persist_steps;
}

static void draw_ranks(const struct run *run) {
    static const char *const shardings[] = {"auto", "full_shard", "shard_grad_op", "zero2", "zero1", "shared"};
    const unsigned ranks = 1 + draw(run->sum_groups);
    sys_args_word(&args, "--ranks=%u", ranks);
    sys_args_word(&args, "--sharding=%s", run->drives == 0 && one_in(7) ? "no_shard" : DRAW_FROM(shardings));
    sys_args_word(&args, "--tiles=%u", draw(ranks > 4 ? 2 : 3)); /* a rank has one micro-batch, or at least two */
}

/* Begins the next process of the run, with options that change none of its bits. */
static struct part begin_part(const struct run *run, const char *origin) {
    static const unsigned saves[] = {0, 5, 13, 25, 50}, persists[] = {1, 1, 2, 3, 7};
    static const char *const backends[] = {"auto", "auto", "threads"};
    struct part part = {.save_steps = DRAW_FROM(saves), .persist_steps = DRAW_FROM(persists)};
    begin(run, "soaked");
    sys_args_add(&args, origin);
    draw_places(run, &part);
    draw_ranks(run);
    sys_args_word(&args, "--save-steps=%u", part.save_steps);
    sys_args_word(&args, "--save-total-limit=%u", draw(4));
    sys_args_word(&args, "--compute-threads=%u", 1 + draw(2));
    sys_args_word(&args, "--optimizer-threads=%u", 1 + draw(2));
    sys_args_word(&args, "--io-backend=%s", DRAW_FROM(backends));
    sys_args_word(&args, "--chunk-elems=%s", run->chunks);
    sys_args_word(&args, "--kept-blocks=%s", one_in(3) ? "0" : "auto");
    sys_args_add(&args, one_in(4) ? "--stop-grace-seconds 0" : "");
    sys_args_add(&args, one_in(6) ? "--trace on --trace-bytes 1MiB" : "");
    if (one_in(6)) {
        sys_args_word(&args, "--chaos-seed=%u", 1 + draw(1000));
    }
    if (run->drives > 0) {
        sys_args_word(&args, "--persist-steps=%u", part.persist_steps);
        sys_args_word(&args, "--store-generations=%d", run->single ? 1 : 2);
    }
    for (unsigned i = 0; i < run->drives; i++) {
        sys_args_drive(&args, test_pathf("soaked-drive-%u", i), "32MiB");
    }
    return part;
}

static void remove_soaked(const struct run *run) {
    files_remove_folder("soaked");
    for (unsigned i = 0; i < run->drives; i++) {
        files_remove_folder(test_pathf("soaked-drive-%u", i));
    }
}

/* ---- interruptions --------------------------------------------------------------------------------------------- */

static void pause_us(unsigned microseconds) {
    const struct timespec time = {.tv_sec = microseconds / 1000000, .tv_nsec = (long)(microseconds % 1000000) * 1000};
    nanosleep(&time, NULL);
}

/* Waits for the moment of an interruption: within the start, or some steps or a save later. */
static void await_moment(const struct part *part, long told_step) {
    char words[64];
    const long from = told_step > 0 ? told_step : 0;
    switch (draw(4)) {
    case 0:
        pause_us(draw(80000 * SLOWNESS));
        return;
    case 1:
        if (part->save_steps > 0) {
            const long save_step = (from / part->save_steps + 1) * part->save_steps;
            snprintf(words, sizeof words, "\nstep %ld/", save_step);
            break;
        }
        snprintf(words, sizeof words, "\nstep %ld/", from + 1);
        break;
    default:
        snprintf(words, sizeof words, "\nstep %ld/", from + 1 + (long)draw(12));
    }
    if (sys_await(&process, words)) {
        pause_us(draw(20000 * SLOWNESS));
    }
}

enum { BY_KILL, BY_SIGNAL, BY_TWO_SIGNALS, BY_KILL_WHILE_STOPPING, BY_FILE, WAY_COUNT };
static const char *const way_names[] = {"kill", "signal", "two signals", "kill while stopping", "trigger file"};

static struct {
    unsigned processes, interruptions, resumes, branches, repeated, starts_over, runs;
    unsigned by[WAY_COUNT];
    unsigned long steps;
} counts;

static int interrupt(void) {
    static const int ways[] = {BY_KILL, BY_KILL, BY_KILL, BY_KILL, BY_KILL, BY_SIGNAL, BY_SIGNAL, BY_TWO_SIGNALS,
                               BY_KILL_WHILE_STOPPING, BY_FILE};
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR2};
    const int way = DRAW_FROM(ways), signal_number = DRAW_FROM(signals);
    counts.interruptions++;
    counts.by[way]++;
    if (way == BY_FILE && files_exist("soaked")) {
        files_write_text("soaked/offload.stop", "");
        return way;
    }
    kill(process.pid, way == BY_KILL ? SIGKILL : signal_number);
    if (way == BY_TWO_SIGNALS || way == BY_KILL_WHILE_STOPPING) {
        pause_us(draw(8000 * SLOWNESS));
        kill(process.pid, way == BY_TWO_SIGNALS ? SIGTERM : SIGKILL);
    }
    return way;
}

/* ---- what a process has said ------------------------------------------------------------------------------- */

/* What is known of a run between two processes. */
struct known {
    long least_step; /* a resume from an earlier step is a loss */
    long told_step;  /* the last step that a process reported, or went on from */
    long saved_step; /* the newest checkpoint that was reported */
};

/* What the last processes of the run did. */
static struct {
    char lines[HISTORY][256];
    unsigned count;
} history;

static long max_long(long a, long b) {
    return a > b ? a : b;
}

static void complain(const char *what, const struct known *known) {
    printf("seed %llu, process %u: %s; told of step %ld, at least %ld; exit status %d, signal %d:\n",
           (unsigned long long)draws.seed, counts.processes, what, known->told_step, known->least_step,
           process.outcome.exit_status, process.outcome.signal_number);
    for (unsigned i = history.count < HISTORY ? 0 : history.count - HISTORY; i < history.count; i++) {
        printf("before: %s\n", history.lines[i % HISTORY]);
    }
    for (int i = 0; i < args.count; i++) {
        printf("%s ", args.words[i]);
    }
    printf("\n%s\n", process.outcome.err);
    test_failure_count++;
}

/* Warnings that belong to what the test asks for. */
static bool is_expected_warning(const struct run *run, const char *line) {
    return strstr(line, "has no effect: part of the state lives on the drives") != NULL ||
           strstr(line, "offload.stop: existed before the run began") != NULL ||
           strstr(line, "the store belongs to a branch that the run has left") != NULL ||
           (run->single && (strstr(line, "--store-generations 1") != NULL ||
                            strstr(line, "was interrupted before it overwrote anything") != NULL));
}

static void check_warnings(const struct run *run, const struct known *known) {
    for (const char *at = strstr(process.outcome.err, "warning:"); at != NULL; at = strstr(at + 1, "warning:")) {
        char line[1024];
        snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
        if (!is_expected_warning(run, line)) {
            complain("a warning", known);
        }
    }
}

/* Checks where the process went on. */
static void take_start(const struct run *run, struct known *known) {
    const bool fresh = sys_said(&process, "starting from ");
    const long resumed = fresh ? 0 : sys_number_after(process.outcome.err, "resumed at step ", NO_STEP);
    if (resumed == NO_STEP) {
        return;
    }
    counts.resumes += !fresh;
    counts.repeated += resumed < known->told_step;
    if (resumed < known->least_step || resumed > known->told_step + 1) {
        complain("resumed elsewhere", known);
    }
    known->told_step = resumed;
    known->least_step = run->single ? known->least_step : resumed; /* a kill then means the newest checkpoint */
}

/* Takes what the process reported of its steps and checkpoints, and with that what the next one must find. */
static void take_words(const struct run *run, const struct part *part, struct known *known) {
    take_start(run, known);
    const long begun = max_long(known->told_step, 0);
    known->told_step = max_long(begun, sys_number_after(process.outcome.err, "\nstep ", NO_STEP));
    counts.steps += (unsigned long)(known->told_step - begun);
    if (sys_said(&process, "\nsaved ")) {
        known->saved_step = sys_number_after(process.outcome.err, "/checkpoint-", NO_STEP);
        known->least_step = max_long(known->least_step, known->saved_step);
    }
    if (run->drives > 0 && !run->single && known->told_step > begun) {
        known->least_step = max_long(known->least_step, known->told_step - (long)part->persist_steps);
    }
    if (sys_said(&process, "\nstopped ")) {
        known->least_step = known->told_step;
    }
    check_warnings(run, known);
}

static void remember(const char *origin, int way, const struct known *known) {
    char *const line = history.lines[history.count++ % HISTORY];
    snprintf(line, sizeof history.lines[0], "%s; %s; exit status %d, signal %d; told of step %ld, at least %ld; %.60s",
             strncmp(origin, "--resume=", 9) == 0 ? "branch" : origin, way >= 0 ? way_names[way] : "undisturbed",
             process.outcome.exit_status, process.outcome.signal_number, known->told_step, known->least_step,
             sys_said(&process, "resumed at step ") ? strstr(process.outcome.err, "resumed at step ") : "");
    line[strcspn(line, "\n")] = '\0';
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

/* True when the process found nothing to go on with, and nothing was to be found. */
static bool had_nothing(const struct known *known) {
    const bool no_run = sys_said(&process, "holds no run") || sys_said(&process, "neither a complete checkpoint");
    return no_run && known->least_step <= 0;
}

/* Where the next process goes on. A new branch begins at the newest checkpoint now and then. */
static const char *draw_origin(struct known *known, bool *resuming) {
    if (!*resuming) {
        return "--overwrite-output-dir";
    }
    const char *const path = test_pathf("soaked/checkpoint-%ld", known->saved_step);
    if (known->saved_step > 0 && one_in(12) && files_exist(path)) {
        counts.branches++;
        known->least_step = known->saved_step; /* the branch, or what it was to replace */
        return plain_pathf("--resume=%s", path);
    }
    return "--resume latest";
}

/* Runs one process, and interrupts it if asked to. Returns false when the run is complete or a check has failed. */
static bool run_part(const struct run *run, bool interrupted, struct known *known, bool *resuming) {
    const char *const origin = draw_origin(known, resuming);
    const struct part part = begin_part(run, origin);
    counts.processes++;
    sys_start(&args, &process);
    if (interrupted) {
        await_moment(&part, known->told_step);
    }
    const int way = interrupted ? interrupt() : -1;
    sys_wait(&process);
    take_words(run, &part, known);
    remember(origin, way, known);
    const int status = process.outcome.exit_status;
    if (status == 0 && !sys_said(&process, "\nstopped ")) {
        return false;
    }
    if (*resuming && had_nothing(known)) {
        counts.starts_over++;
        *resuming = false;
        known->told_step = 0;
        return true;
    }
    if (!interrupted || (status > 0 && status < 128)) {
        complain("cannot go on", known);
    }
    *resuming = true;
    return test_failure_count == 0;
}

/* Ends the program that did not end, and the test. */
static void on_alarm(int signal_number) {
    static const char text[] = "the program hangs\n";
    (void)signal_number;
    kill(process.pid, SIGKILL);
    _exit(write(STDOUT_FILENO, text, sizeof text - 1) > 0 ? 1 : 2);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Interrupts processes until `seconds` are over, or as many as the suite has room for when that is 0. */
static bool is_time_over(double began, double seconds) {
    return seconds > 0 ? now() - began >= seconds : counts.interruptions >= INTERRUPTIONS;
}

static void test_run(double began, double seconds) {
    const struct run run = draw_run();
    struct known known = {.saved_step = NO_STEP};
    bool resuming = false;
    history.count = 0;
    begin(&run, "expected");
    sys_run_well(&args, &process);
    while (run_part(&run, !is_time_over(began, seconds), &known, &resuming)) {
        continue;
    }
    if (test_failure_count == 0 && !sys_same_runs("expected", "soaked", run.steps)) {
        complain("other bytes", &known);
    }
    counts.runs++;
    remove_soaked(&run);
    files_remove_folder("expected");
}

static void report(double seconds) {
    printf("seed %llu, %.0f s: %u runs brought to the end by %u processes, %lu steps; %u interruptions (",
           (unsigned long long)draws.seed, seconds, counts.runs, counts.processes, counts.steps, counts.interruptions);
    for (int way = 0; way < WAY_COUNT; way++) {
        printf("%s%s %u", way > 0 ? ", " : "", way_names[way], counts.by[way]);
    }
    printf("); %u resumes, %u of them with steps to repeat, %u branches, %u starts over; %s\n", counts.resumes,
           counts.repeated, counts.branches, counts.starts_over, test_failure_count > 0 ? "FAILED" : "nothing lost");
}

int main(int argc, char **argv) {
    double seconds = 0;
    const double began = now();
    draws.seed = 1;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seconds") == 0) {
            seconds = strtod(argv[i + 1], NULL);
        } else if (strcmp(argv[i], "--seed") == 0) {
            draws.seed = strtoull(argv[i + 1], NULL, 10);
        }
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGALRM, on_alarm);
    text_path = sys_write_text(20000);
    do {
        test_run(began, seconds);
    } while (test_failure_count == 0 && !is_time_over(began, seconds));
    report(now() - began);
    return test_end();
}
