/* Training that is interrupted all the time: every part of a run has options of its own (processes and ranks and what
 * they divide, memories, drives, order of updates, how often it persists and saves, delays of its lanes) and is killed,
 * stopped or frozen at a moment of its own. What was told of is lost only as far as promised, and the run ends with the
 * bytes of one process that nothing disturbed. Then comes the next run, with other numbers.
 *
 * Stores on drives belong to a number of processes, and those of several to a number of ranks. Others go on from the
 * newest checkpoint that was told of, on a branch; without one, or where that start was cut off, `latest` may refuse
 * and name the number that it needs, which the next part takes. Runs of two processes need mpirun and the MPI plugin.
 *
 * The seed decides all draws; when a process is hit also depends on the machine.
 *
 *     test_soak [--seconds N] [--seed N] */
#include "base/prng/prng.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_mpi.h"
#include "tests/kit/test.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { INTERRUPTIONS = 12, HANG_SECONDS = 900, SLOWNESS = 8 };
#else
enum { INTERRUPTIONS = 30, HANG_SECONDS = 200, SLOWNESS = 1 };
#endif
enum { TEAM_INTERRUPTIONS = 8, PROCESSES = 2, NO_STEP = -1, HISTORY = 12 };

static const char common_words[] =
    "--global-batch-size 8 --batch-size 1 --max-seq-length 16 --learning-rate 3e-3 --lr-scheduler-type cosine"
    " --warmup-steps 4 --max-grad-norm 0.5 --eval-steps 10 --eval-windows 4";

static struct sys_args args, launched;
static struct sys_process process;
static struct sys_mpi_run team; /* the processes of a part; one alone is its own launcher */
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
    unsigned steps, sum_groups, drives, processes_max;
    bool single; /* one generation */
};

/* A folder with weights of a model, which four steps have made. */
static const char *base_of(const char *model) {
    static char folder[SYS_PATH_BYTES]; /* of the run */
    char config[SYS_PATH_BYTES];
    snprintf(config, sizeof config, "%s", sys_write_model(model));
    if (!files_exist(test_pathf("base-%s/checkpoint-4/config.json", model))) {
        sys_args_train(&args, config, text_path, plain_pathf("base-%s", model));
        sys_args_add(&args, common_words);
        sys_args_add(&args, "--max-steps 4 --sum-groups 8");
        sys_run_well(&args, &process);
    }
    snprintf(folder, sizeof folder, "%s", test_pathf("base-%s/checkpoint-4", model));
    return folder;
}

static struct run draw_run(unsigned processes_max) {
    static const char *const models[] = {"llama", "gpt2"};
    static const struct {
        const char *words, *model; /* NULL: any */
    } numbers[] = {
        {"", NULL},
        {"--dtype bf16", NULL},
        {"--dtype bf16 --moments q8", NULL},
        {"--dtype bf16 --grad-dtype bf16 --moments bf16", NULL},
        {"--dtype fp16 --initial-scale-power 26 --loss-scale-window 9", NULL},
        {"--optimizer lion --data-order sequential", NULL},
        {"--optimizer sgd --dtype bf16", NULL},
        {"--optimizer muon --dtype bf16 --moments bf16", NULL},
        {"--dtype bf16 --freeze layers.0 --freeze *.k_proj.weight", "llama"},
        {"--ema-decay 0.9 --label-smoothing-factor 0.1", NULL},
        {"--share-layers all --dtype bf16", "llama"},
        {"--tensor-groups 2", "untied"},
        {"--context-groups 2", NULL},
        {"--tensor-groups 2 --context-groups 2 --context-parallel-mode ring", "untied"},
        {"--dtype bf16 --tensor-groups 2 --idle-experts skip", "mixtral"},
        {"--experts-per-unit 4", "deepseek"},
        {"--dtype bf16 --moments q8 --experts-per-unit 8", "deepseek"},
        {"--experts-per-unit 1", "mixtral"},
        {"--dtype bf16 --idle-experts skip --experts-per-unit 2", "mixtral"},
        {"--optimizer muon --experts-per-unit all", "deepseek"}};
    static const struct {
        const char *words, *model, *chunks;
    } based[] = { /* beside a base with weights */
        {"--dtype bf16 --lora-r 3 --lora-target-modules v_proj,embed_tokens,lm_head", "llama", "2048"},
        {"--lora-r 2 --lora-dropout 0.2 --lora-target-modules o_proj,lm_head --lora-modules-to-save input_layernorm",
         "untied", "4096"},
        {"--dtype bf16 --base-dtype q8 --lora-r 3 --lora-target-modules all-linear", "llama", "65536"},
        {"--base-dtype q8 --freeze layers.0 --freeze layers.1", "untied", "65536"}};
    enum { FRESH = sizeof numbers / sizeof *numbers, BASED = sizeof based / sizeof *based };
    const unsigned nth = draw(FRESH + BASED), of_base = nth - FRESH;
    static const unsigned groups[] = {1, 2, 4, 4, 8}, group_count = sizeof groups / sizeof *groups;
    static const char *const chunks[] = {"2048", "4096", "8192"};
    const char *const any = DRAW_FROM(models), *const chunk = DRAW_FROM(chunks);
    struct run run = {.chunks = chunk};
    if (nth < FRESH) {
        run.model = sys_write_model(numbers[nth].model != NULL ? numbers[nth].model : any);
        run.numbers = numbers[nth].words;
    } else {
        run = (struct run){.model = base_of(based[of_base].model), .numbers = based[of_base].words,
                           .chunks = based[of_base].chunks};
    }
    run.steps = (40 + draw(160)) / SLOWNESS + 10;
    const bool rows = strstr(run.numbers, "--context-groups") != NULL;
    run.processes_max = processes_max = rows ? 1 : processes_max;
    run.sum_groups = processes_max > 1 ? groups[1 + draw(group_count - 1)] : DRAW_FROM(groups);
    run.drives = draw(4);
    run.single = run.drives > 0 && processes_max == 1 && one_in(5); /* several processes need two generations */
    return run;
}

/* What a part of a run is divided among, and what stores on drives are. */
struct layout {
    unsigned processes, ranks;
    bool experts; /* ranks divide them */
    const char *axis; /* for each of so many ranks two divide features, rows or both: "tp", "cp"; NULL: nothing */
};

/* Whether so many ranks can divide the experts of the run's model: each has units of them, and as many sums. */
static bool can_divide(const struct run *run, unsigned ranks) {
    const char *const words = strstr(run->numbers, "--experts-per-unit ");
    const unsigned each = words != NULL ? (unsigned)strtoul(words + strlen("--experts-per-unit "), NULL, 10) : 0;
    const unsigned units = each > 0 ? (strstr(run->model, "mixtral") != NULL ? 8 : 16) / each : 0;
    return ranks > 1 && units > 0 && units % ranks == 0 && run->sum_groups % ranks == 0;
}

static struct layout draw_layout(const struct run *run) {
    const unsigned processes = one_in(3) ? 1 : run->processes_max;
    struct layout layout = {.processes = processes, .ranks = processes * (1 + draw(run->sum_groups / processes))};
    const bool in_rows = strstr(run->numbers, "--context-groups") != NULL;
    const bool rows = in_rows && (layout.ranks > 1 || one_in(2)); /* several data ranks have one group of them each */
    const bool features = strstr(run->numbers, "--tensor-groups") != NULL && processes == 1 && rows == in_rows &&
                          one_in(2); /* and so have ranks that divide features */
    layout.axis = features && rows ? "cp=2,tp" : features ? "tp" : rows ? "cp" : NULL;
    layout.experts = processes == 1 && can_divide(run, layout.ranks) && one_in(2); /* whose store has all of them */
    return layout;
}

/* Whether a part can take the stores that another has left. */
static bool fits(const struct layout *layout, const struct layout *stores) {
    return layout->processes == stores->processes && (layout->processes == 1 || layout->ranks == stores->ranks);
}

enum { BY_KILL, BY_SIGNAL, BY_TWO_SIGNALS, BY_KILL_WHILE_STOPPING, BY_FILE, BY_KILL_LAUNCHER, BY_FREEZE, WAY_COUNT,
       WAY_NONE = WAY_COUNT };
static const char *const way_names[] = {"kill", "signal", "two signals", "kill while stopping", "trigger file",
                                        "kill of the launcher", "freeze", "undisturbed"};

static struct {
    unsigned parts, of_several, interruptions, resumes, branches, changes, refusals, repeated, starts_over, runs;
    unsigned by[WAY_COUNT];
    unsigned long steps;
} counts;

/* ---- parts ------------------------------------------------------------------------------------------------ */

/* How a part is to end before its time. */
struct disturbance {
    int way;      /* WAY_NONE: it is not disturbed */
    unsigned who; /* a bit for each process */
    bool at_start;
    enum sys_mpi_loss loss;
};

/* One part of a run, from a start to an end. */
struct part {
    struct layout layout;
    struct disturbance disturbance;
    unsigned save_steps, persist_steps;
    long origin_step; /* of the checkpoint that it is to begin with; NO_STEP: it goes on with what is newest */
};

/* What is known of a run between two parts. */
struct known {
    long least_step;      /* a resume from an earlier step is a loss */
    long told_step;       /* the last step that a part reported, or went on from */
    long saved_step;      /* the newest checkpoint that was reported */
    bool lacks_words;     /* since the last start mpirun may have kept some to itself */
    struct layout stores; /* of the last part that began, or that a refusal has named */
    unsigned refusals;    /* one after the other */
};

static bool is_alone(const struct part *part) {
    return part->layout.processes == 1;
}

static void begin(const struct run *run, const char *name) {
    alarm(HANG_SECONDS); /* for this part */
    sys_args_train(&args, run->model, text_path, name);
    sys_args_add(&args, common_words);
    sys_args_add(&args, run->numbers);
    sys_args_word(&args, "--max-steps=%u", run->steps);
    sys_args_word(&args, "--sum-groups=%u", run->sum_groups);
}

/* Adds where planes live and when they are updated; updates in backward need two slots on the drives. */
static void draw_places(const struct run *run) {
    static const char *const stored[] = {
        "", "--state-tier nvme", "--device-mem 8MiB --host-mem 64MiB",
        "--device-mem 8MiB --host-mem 64MiB --weights-tier nvme --state-tier nvme --grads-tier nvme",
        "--device-mem 8MiB --host-mem 64MiB --state-tier nvme --activation-tier nvme",
        "--state-tier nvme --grads-tier nvme --prefetch-depth 0",
        "--device-mem 16MiB --host-mem 64MiB --state-tier device"};
    static const char *const in_memory[] = {"", "--device-mem 8MiB --host-mem 64MiB",
                                            "--device-mem 16MiB --host-mem 64MiB --device-state-units 1"};
    const unsigned in_host = strstr(run->numbers, "muon") != NULL; /* then the last ones are refused */
    const bool held = run->single || strstr(run->numbers, "--tensor-groups") != NULL; /* as ranks may divide them */
    static const char *const overlaps[] = {"auto", "auto", "off", "held", "speculative"};
    sys_args_add(&args, run->drives > 0 ? stored[draw(sizeof stored / sizeof *stored - in_host)]
                                        : in_memory[draw(sizeof in_memory / sizeof *in_memory - in_host)]);
    const char *const overlap = run->drives > 0 ? DRAW_FROM(overlaps) : "auto";
    sys_args_word(&args, "--optimizer-overlap=%s",
                  held && strcmp(overlap, "speculative") == 0 ? "held" : overlap);
}

static void draw_sharding(const struct run *run, const struct layout *layout) {
    static const char *const shardings[] = {"auto", "full_shard", "shard_grad_op", "zero2", "zero1", "shared"};
    const unsigned ranks = layout->ranks, count = sizeof shardings / sizeof *shardings - (layout->processes > 1);
    if (layout->axis != NULL) {
        sys_args_word(&args, "--mesh=dp=%u,%s=2", ranks, layout->axis);
    } else {
        sys_args_word(&args, "--ranks=%u", ranks);
    }
    if (layout->experts) { /* which as many divide as all else */
        sys_args_word(&args, "--expert-parallel-size=%u", ranks);
        sys_args_word(&args, "--sharding=%s", shardings[draw(5)]);
        sys_args_word(&args, "--tiles=%u", draw(2));
        return;
    }
    sys_args_word(&args, "--sharding=%s", run->drives == 0 && one_in(7) ? "no_shard" : shardings[draw(count)]);
    sys_args_word(&args, "--tiles=%u", draw(ranks > 4 ? 2 : 3)); /* a rank has one micro-batch, or at least two */
}

/* Begins the next part of the run, with options that change none of its bits. */
static void begin_part(const struct run *run, const char *origin, struct part *part) {
    static const unsigned saves[] = {0, 5, 13, 25, 50}, persists[] = {1, 1, 2, 3, 7};
    static const char *const backends[] = {"auto", "auto", "threads"};
    part->save_steps = DRAW_FROM(saves);
    part->persist_steps = DRAW_FROM(persists);
    begin(run, "soaked");
    sys_args_add(&args, origin);
    draw_places(run);
    draw_sharding(run, &part->layout);
    sys_args_word(&args, "--save-steps=%u", part->save_steps);
    sys_args_word(&args, "--save-total-limit=%u", draw(4));
    sys_args_word(&args, "--compute-threads=%u", 1 + draw(2));
    sys_args_word(&args, "--optimizer-threads=%u", 1 + draw(2));
    sys_args_word(&args, "--io-backend=%s", DRAW_FROM(backends));
    sys_args_word(&args, "--chunk-elems=%s", run->chunks);
    sys_args_word(&args, "--kept-blocks=%s", one_in(3) ? "0" : "auto");
    sys_args_add(&args, one_in(4) ? "--stop-grace-seconds 0" : "");
    sys_args_add(&args, one_in(6) ? "--trace on --trace-bytes 4MiB" : "");
    if (one_in(6)) {
        sys_args_word(&args, "--chaos-seed=%u", 1 + draw(1000));
    }
    if (run->drives > 0) {
        sys_args_word(&args, "--persist-steps=%u", part->persist_steps);
        sys_args_word(&args, "--store-generations=%d", run->single ? 1 : 2);
    }
    for (unsigned i = 0; i < run->drives; i++) {
        sys_args_drive(&args, test_pathf("soaked-drive-%u", i), "32MiB");
    }
    sys_args_add(&args, part->disturbance.way == BY_FREEZE ? "--comm-timeout 4" : "");
}

static void start_part(struct part *part) {
    const unsigned processes = part->layout.processes;
    if (is_alone(part)) {
        sys_start(&args, &process);
        team = (struct sys_mpi_run){.launcher = process.pid, .count = 1, .pids = {process.pid}};
        return;
    }
    sys_mpi_begin(&launched, processes, &args, part->disturbance.loss);
    sys_start(&launched, &process);
    if (!sys_mpi_find(&process, processes, &team)) {
        part->disturbance.way = WAY_NONE; /* there is nothing left to disturb */
    }
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
static void await_moment(const struct part *part, const struct known *known) {
    static const char resumed[] = "\nresumed at step ";
    char words[64];
    long from = known->told_step > 0 ? known->told_step : 0;
    if (part->disturbance.at_start) {
        pause_us(draw((is_alone(part) ? 80000 : 700000) * SLOWNESS));
        return;
    }
    if (known->lacks_words && sys_await(&process, resumed)) {
        from = sys_number_after(process.outcome.err, resumed, from);
    }
    if (part->save_steps > 0 && one_in(3)) {
        snprintf(words, sizeof words, "\nstep %ld/", (from / part->save_steps + 1) * part->save_steps);
    } else {
        snprintf(words, sizeof words, "\nstep %ld/", from + 1 + (long)draw(12));
    }
    if (sys_await(&process, words)) {
        pause_us(draw(20000 * SLOWNESS));
    }
}

/* Processes that start MPI can neither be left alone nor tell which of them is frozen. */
static struct disturbance draw_disturbance(const struct layout *layout) {
    static const int ways[] = {BY_KILL, BY_KILL, BY_KILL, BY_KILL, BY_KILL, BY_SIGNAL, BY_SIGNAL, BY_TWO_SIGNALS,
                               BY_KILL_WHILE_STOPPING, BY_FILE};
    static const int team_ways[] = {BY_KILL, BY_KILL, BY_KILL, BY_KILL_LAUNCHER, BY_FREEZE, BY_SIGNAL,
                                    BY_TWO_SIGNALS, BY_KILL_WHILE_STOPPING, BY_FILE};
    struct disturbance it = {.way = DRAW_FROM(ways), .who = 1, .at_start = one_in(4), .loss = SYS_MPI_END_OTHERS};
    if (layout->processes > 1) {
        it.way = DRAW_FROM(team_ways);
        it.at_start = it.at_start && it.way != BY_FREEZE;
        it.who = 1 + draw(it.way == BY_FREEZE ? 2 : 3);
        it.loss = it.way == BY_FREEZE || (it.way == BY_KILL && !it.at_start && one_in(2)) ? SYS_MPI_KEEP_OTHERS
                  : one_in(2) ? SYS_MPI_END_AT_ONCE : SYS_MPI_END_OTHERS;
    }
    return it;
}

static void send(unsigned who, int signal_number) {
    for (unsigned i = 0; i < team.count; i++) {
        if ((who >> i & 1) != 0) {
            kill(team.pids[i], signal_number);
        }
    }
}

/* Stops a process until the other has ended by itself, which mpirun then waits for. */
static void freeze(unsigned who) {
    send(who, SIGSTOP);
    while (kill(team.pids[who == 1 ? 1 : 0], 0) == 0) {
        pause_us(2000);
    }
    send(who, one_in(2) ? SIGCONT : SIGKILL);
}

static void interrupt(const struct disturbance *it) {
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR2};
    const int signal_number = DRAW_FROM(signals);
    counts.interruptions++;
    counts.by[it->way]++;
    if (it->way == BY_FILE && files_exist("soaked")) {
        files_write_text("soaked/offload.stop", "");
    } else if (it->way == BY_KILL_LAUNCHER) {
        kill(team.launcher, SIGKILL);
    } else if (it->way == BY_FREEZE) {
        freeze(it->who);
    } else {
        send(it->who, it->way == BY_KILL ? SIGKILL : signal_number);
    }
    if (it->way == BY_TWO_SIGNALS || it->way == BY_KILL_WHILE_STOPPING) {
        pause_us(draw(8000 * SLOWNESS));
        send(it->who, it->way == BY_TWO_SIGNALS ? SIGTERM : SIGKILL);
    }
}

/* ---- what a part has said ---------------------------------------------------------------------------------- */

/* What the last parts of the run did. */
static struct {
    char lines[HISTORY][256];
    unsigned count;
} history;

static long max_long(long a, long b) {
    return a > b ? a : b;
}

static void complain(const char *what, const struct known *known) {
    printf("seed %llu, part %u: %s; told of step %ld, at least %ld; exit status %d, signal %d:\n",
           (unsigned long long)draws.seed, counts.parts, what, known->told_step, known->least_step,
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

/* What a process says that another one has left. */
static bool says_lost(const char *text) {
    return strstr(text, "resume from the last commit") != NULL;
}

/* Warnings that belong to what the test asks for. */
static bool is_expected_warning(const struct run *run, const struct part *part, const char *line) {
    return (!is_alone(part) && part->disturbance.way != WAY_NONE && says_lost(line)) ||
           (part->disturbance.way == BY_FREEZE && (strstr(line, " has not completed in ") != NULL ||
                                                   strstr(line, ": a flush took ") != NULL)) ||
           strstr(line, "is withdrawn, because another process has not committed it") != NULL ||
           strstr(line, ": is of another branch of this run; it was renamed to ") != NULL ||
           strstr(line, "has no effect: part of the state lives on the drives") != NULL ||
           strstr(line, "has no effect: updates in backward") != NULL ||
           strstr(line, "; --router-aux-loss-coef balances them") != NULL ||
           strstr(line, "offload.stop: existed before the run began") != NULL ||
           strstr(line, "the store belongs to a branch that the run has left") != NULL ||
           (run->single && (strstr(line, "--store-generations 1") != NULL ||
                            strstr(line, "was interrupted before it overwrote anything") != NULL));
}

/* A start whose stores are those of other processes or ranks names the number that they need. */
static const char processes_words[] = "which only as many can open; start ", ranks_words[] = " ranks; give --ranks ";

static bool says_refusal(const char *text) {
    return strstr(text, processes_words) != NULL || strstr(text, ranks_words) != NULL;
}

static bool says_no_run(const char *text) {
    return strstr(text, "holds no run") != NULL || strstr(text, "neither a complete checkpoint") != NULL;
}

static bool is_expected_error(const struct part *part, const char *line) {
    return (part->disturbance.way != WAY_NONE && says_lost(line)) || says_refusal(line) || says_no_run(line);
}

/* Checks the lines with a warning, and the errors of several processes; how one alone ends, its status tells. */
static void check_lines(const struct run *run, const struct part *part, const struct known *known) {
    char line[2048];
    for (const char *at = process.outcome.err; *at != '\0'; at += strcspn(at, "\n"), at += *at == '\n') {
        snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
        if (strstr(line, "warning:") != NULL && !is_expected_warning(run, part, line)) {
            complain("a warning", known);
        }
        const bool fails = strncmp(line, "offload: process ", 17) == 0 || strstr(line, "Segmentation") != NULL;
        if (!is_alone(part) && fails && !is_expected_error(part, line)) {
            complain("an error", known);
        }
        if (strstr(line, "Sanitizer: ") != NULL || strstr(line, "runtime error: ") != NULL) {
            complain("what a sanitizer has found", known);
        }
    }
}

/* Checks where the part went on. */
static void take_start(const struct run *run, const struct part *part, struct known *known) {
    const bool fresh = sys_said(&process, "starting from ");
    const long resumed = fresh ? 0 : sys_number_after(process.outcome.err, "resumed at step ", NO_STEP);
    if (resumed == NO_STEP) {
        return;
    }
    counts.resumes += !fresh;
    counts.repeated += resumed < known->told_step;
    if (resumed < known->least_step || (resumed > known->told_step + 1 && !known->lacks_words) ||
        (part->origin_step != NO_STEP && resumed != part->origin_step)) {
        complain("resumed elsewhere", known);
    }
    known->stores = part->layout;
    known->refusals = 0;
    known->lacks_words = false;
    known->told_step = resumed;
    known->least_step = run->single ? known->least_step : resumed; /* a kill then means the newest checkpoint */
}

/* Takes what the part reported of its steps and checkpoints, and with that what the next one must find. */
static void take_words(const struct run *run, const struct part *part, struct known *known) {
    take_start(run, part, known);
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
    known->lacks_words = known->lacks_words || (!is_alone(part) && part->disturbance.way != WAY_NONE);
    check_lines(run, part, known);
}

static void remember(const char *origin, const struct part *part, const struct known *known) {
    char *const line = history.lines[history.count++ % HISTORY];
    snprintf(line, sizeof history.lines[0], "%u processes, %u ranks; %s; %s%s of %u; exit status %d, signal %d; "
             "told of step %ld, at least %ld; %.60s", part->layout.processes, part->layout.ranks,
             strncmp(origin, "--resume=", 9) == 0 ? "branch" : origin, way_names[part->disturbance.way],
             part->disturbance.at_start ? " at the start" : "", part->disturbance.who, process.outcome.exit_status,
             process.outcome.signal_number, known->told_step, known->least_step,
             sys_said(&process, "resumed at step ") ? strstr(process.outcome.err, "resumed at step ") : "");
    line[strcspn(line, "\n")] = '\0';
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

/* True when the process found nothing to go on with, and nothing was to be found. */
static bool had_nothing(const struct known *known) {
    return says_no_run(process.outcome.err) && known->least_step <= 0;
}

/* Whether drives have files of a store of so many processes. */
static bool has_stores(const struct run *run, unsigned processes) {
    for (unsigned i = 0; i < run->drives * processes; i++) {
        const char *const drive = test_pathf("soaked-drive-%u", i / processes);
        const char *const own = plain_pathf("%s/process-%u-of-%u", drive, i % processes, processes);
        if (files_count(processes > 1 ? own : drive, "offload-store-", "") > 0) {
            return true;
        }
    }
    return false;
}

/* Takes the advice of a part that was refused because the stores are of others; false if it was not. */
static bool take_refusal(const struct run *run, const struct part *part, struct known *known) {
    const struct layout own = part->layout;
    const unsigned processes = (unsigned)sys_number_after(process.outcome.err, processes_words, 0);
    const unsigned ranks = (unsigned)sys_number_after(process.outcome.err, ranks_words, 0);
    if (!says_refusal(process.outcome.err)) {
        return false;
    }
    const bool of_others = processes > 0 ? has_stores(run, processes) && !has_stores(run, own.processes)
                                         : own.processes > 1 && ranks != own.ranks && has_stores(run, own.processes);
    counts.refusals++;
    known->refusals++; /* of processes, then of ranks, and then there is nothing to refuse */
    if (!of_others || part->origin_step != NO_STEP || known->refusals > 2 ||
        (part->disturbance.way == WAY_NONE && process.outcome.exit_status != 2)) {
        complain("refused", known);
    }
    if (ranks > 0) {
        known->stores = (struct layout){.processes = own.processes, .ranks = ranks};
    } else if (processes != known->stores.processes) {
        known->stores = (struct layout){.processes = processes, .ranks = processes};
    }
    return true;
}

/* Draws what the next part is divided among, and where it goes on. Other processes than those of the stores begin a
 * branch at the newest checkpoint, and try `latest` now and then. With the same ones it is the other way round. */
static const char *draw_origin(const struct run *run, bool resuming, struct known *known, struct part *part) {
    part->layout = draw_layout(run);
    part->origin_step = NO_STEP;
    if (!resuming) {
        known->stores = part->layout;
        return "--overwrite-output-dir";
    }
    const bool is_kept = run->drives > 0 && (known->refusals > 0 || one_in(2));
    if (is_kept && !fits(&part->layout, &known->stores)) {
        part->layout = known->stores;
    }
    const bool changes = run->drives > 0 && !fits(&part->layout, &known->stores);
    const char *const path = test_pathf("soaked/checkpoint-%ld", known->saved_step);
    if (known->saved_step > 0 && (changes ? !one_in(6) : one_in(12)) && files_exist(path)) {
        counts.branches++;
        counts.changes += changes;
        known->least_step = part->origin_step = known->saved_step; /* the branch, or what it was to replace */
        return plain_pathf("--resume=%s", path);
    }
    return "--resume latest";
}

static bool is_complete(const struct part *part) {
    const bool says_so = is_alone(part) || strstr(process.outcome.out, "model folder: ") != NULL ||
                         strstr(process.outcome.out, "adapter folder: ") != NULL;
    return says_so && !sys_said(&process, "\nstopped ") && (!is_alone(part) || process.outcome.exit_status == 0);
}

/* Runs a part, and interrupts it if asked to. Returns false when the run is complete or a check has failed. */
static bool run_part(const struct run *run, bool interrupted, struct known *known, bool *resuming) {
    struct part part = {.disturbance.way = WAY_NONE};
    const char *const origin = draw_origin(run, *resuming, known, &part);
    part.disturbance = interrupted ? draw_disturbance(&part.layout) : part.disturbance;
    begin_part(run, origin, &part);
    counts.parts++;
    counts.of_several += !is_alone(&part);
    start_part(&part);
    if (part.disturbance.way != WAY_NONE) {
        await_moment(&part, known);
        interrupt(&part.disturbance);
    }
    sys_mpi_wait(&process, &team, 0);
    take_words(run, &part, known);
    remember(origin, &part, known);
    const int status = process.outcome.exit_status;
    if (is_complete(&part)) {
        if (part.disturbance.way == WAY_NONE && status > 0) {
            complain("complete, but ended with an error", known);
        }
        return false;
    }
    if (*resuming && had_nothing(known)) {
        counts.starts_over++;
        *resuming = false;
        known->told_step = 0;
        return true;
    }
    if (!take_refusal(run, &part, known) &&
        (part.disturbance.way == WAY_NONE || (is_alone(&part) && status > 0 && status < 128))) {
        complain("cannot go on", known);
    }
    *resuming = true;
    return test_failure_count == 0;
}

/* Ends the program that did not end, and the test. */
static void on_alarm(int signal_number) {
    static const char text[] = "the program hangs\n";
    (void)signal_number;
    if (team.launcher == process.pid) {
        sys_mpi_end(&team);
    }
    kill(process.pid, SIGKILL);
    _exit(write(STDOUT_FILENO, text, sizeof text - 1) > 0 ? 1 : 2);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* How long parts are interrupted: for so many seconds, or so many times where that is 0. */
static struct {
    double began, seconds;
    unsigned interruptions;
} limits;

static bool is_time_over(void) {
    return limits.seconds > 0 ? now() - limits.began >= limits.seconds : counts.interruptions >= limits.interruptions;
}

static void test_run(unsigned processes_max) {
    draws.count = (uint64_t)(counts.runs + 1) << 32; /* the machine decides how many the runs before have taken */
    const struct run run = draw_run(processes_max);
    struct known known = {.saved_step = NO_STEP};
    bool resuming = false;
    history.count = 0;
    begin(&run, "expected");
    sys_run_well(&args, &process);
    while (run_part(&run, !is_time_over(), &known, &resuming)) {
        continue;
    }
    if (test_failure_count == 0 && !sys_same_runs("expected", "soaked", run.steps)) {
        complain("other bytes", &known);
    }
    counts.runs++;
    remove_soaked(&run);
    files_remove_folder("expected");
}

static void report(void) {
    printf("seed %llu, %.0f s: %u runs brought to the end by %u parts, %u of them of several processes, %lu steps; "
           "%u interruptions (", (unsigned long long)draws.seed, now() - limits.began, counts.runs, counts.parts,
           counts.of_several, counts.steps, counts.interruptions);
    for (int way = 0; way < WAY_COUNT; way++) {
        printf("%s%s %u", way > 0 ? ", " : "", way_names[way], counts.by[way]);
    }
    printf("); %u resumes, %u of them with steps to repeat, %u branches, %u of them for other processes, %u refusals, "
           "%u starts over; %s\n", counts.resumes, counts.repeated, counts.branches, counts.changes, counts.refusals,
           counts.starts_over, test_failure_count > 0 ? "FAILED" : "nothing lost");
}

/* Runs of one process and of several take turns at random. */
static void test_for_seconds(bool alone) {
    do {
        test_run(alone || one_in(3) ? 1 : PROCESSES);
    } while (test_failure_count == 0 && !is_time_over());
}

/* Fewer parts are of several processes, because mpirun takes longer to start and to end them. */
static void test_few(bool alone) {
    limits.interruptions = alone ? 0 : TEAM_INTERRUPTIONS / test_stride(4);
    while (test_failure_count == 0 && !is_time_over()) {
        test_run(PROCESSES);
    }
    limits.interruptions += INTERRUPTIONS / test_stride(8);
    while (test_failure_count == 0 && !is_time_over()) {
        test_run(1);
    }
}

int main(int argc, char **argv) {
    const bool alone = sys_mpi_missing() != NULL;
    limits.began = now();
    draws.seed = 207; /* its first run has drives, and is of two processes most of the time */
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seconds") == 0) {
            limits.seconds = strtod(argv[i + 1], NULL);
        } else if (strcmp(argv[i], "--seed") == 0) {
            draws.seed = strtoull(argv[i + 1], NULL, 10);
        }
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGALRM, on_alarm);
    text_path = sys_write_text(20000);
    if (limits.seconds > 0) {
        test_for_seconds(alone);
    } else {
        test_few(alone);
    }
    report();
    return test_end();
}
