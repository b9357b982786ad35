/* A run of two processes of which one, both, or the launcher is killed at any moment. All processes are gone soon, also
 * where the launcher leaves the others alone. The run goes on from the stores of its processes and ends with the bytes
 * of the undisturbed run of one rank; no step that was told of is lost. Of a mixture, ranks divide the experts, so that
 * kills land between and in the rounds in which they send each other rows.
 *
 *     test_kill_processes [--count KILLS [FIRST]]    the number of the first kill decides the moments */
#include "base/clock.h"
#include "base/prng/prng.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_mpi.h"
#include "tests/kit/test.h"

#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { KILLS = 24, SAVE_STEPS = 40, HANG_SECONDS = 200 };

static const char common_words[] =
    "--global-batch-size 4 --sum-groups 4 --batch-size 1 --max-seq-length 16 --learning-rate 3e-3"
    " --lr-scheduler-type cosine --warmup-steps 4 --max-grad-norm 0.5 --eval-windows 4 --compute-threads 1"
    " --optimizer-threads 1 --chunk-elems 2048 --eval-steps 10 --save-total-limit 2";

/* The store is of so many ranks, so a run keeps them; and it is of all of them together or of each process. */
static const int rank_counts[] = {2, 4};
static const char *const places[] = {
    "--persist-steps 1",
    "--device-mem 8MiB --host-mem 64MiB --weights-tier nvme --state-tier nvme --grads-tier nvme --tiles 1",
    "--persist-steps 1 --optimizer-overlap held",
    "--persist-steps 1 --state-tier nvme --optimizer-overlap speculative",
    "--persist-steps 1 --state-tier nvme --chaos-seed 5",
    "--persist-steps 1 --device-mem 16MiB --host-mem 64MiB --device-state-units 2 --state-tier nvme"};
enum { PLACE_COUNT = sizeof places / sizeof *places };

enum { FIRST = 1, SECOND = 2, LAUNCHER = 4 };
static const struct victim {
    const char *name;
    unsigned who;
    enum sys_mpi_loss loss;
} victims[] = {
    {"the first", FIRST, SYS_MPI_END_OTHERS},
    {"the second, the first left alone", SECOND, SYS_MPI_KEEP_OTHERS},
    {"both", FIRST | SECOND, SYS_MPI_END_OTHERS},
    {"the second", SECOND, SYS_MPI_END_OTHERS},
    {"the first, the second left alone", FIRST, SYS_MPI_KEEP_OTHERS},
    {"the launcher", LAUNCHER, SYS_MPI_END_OTHERS},
};
enum { VICTIM_COUNT = sizeof victims / sizeof *victims };

/* Steps of a run that is killed many times, or in `make test` a few. */
static unsigned run_steps(void) {
    return test_all() ? 200 : 80;
}

static struct sys_args args, launched;
static struct sys_process process;
static struct sys_mpi_run run;
static const char *model_path, *text_path;
static const char *numerics = ""; /* arguments of all runs that decide numbers */
static bool has_experts; /* which ranks divide, but where each has a copy */

static struct {
    unsigned kills, of[VICTIM_COUNT], resumes, ends, repeated; /* repeated: steps told of that were done again */
    double gone_max[VICTIM_COUNT], gone_sum;
} counts;

/* ---- runs ------------------------------------------------------------------------------------------------ */

static void begin(const char *name, int ranks, const char *words) {
    sys_args_train(&args, model_path, text_path, name);
    sys_args_word(&args, "--ranks=%d", ranks);
    sys_args_word(&args, "--max-steps=%u", run_steps());
    sys_args_word(&args, "--save-steps=%d", SAVE_STEPS);
    sys_args_add(&args, common_words);
    sys_args_add(&args, numerics);
    sys_args_add(&args, words);
}

/* Ends the program that did not end, and the test. */
static void on_alarm(int signal_number) {
    static const char text[] = "the program hangs\n";
    (void)signal_number;
    sys_mpi_end(&run);
    _exit(write(STDOUT_FILENO, text, sizeof text - 1) > 0 ? 1 : 2);
}

static void pause_us(unsigned microseconds) {
    nanosleep(&(struct timespec){.tv_nsec = (long)microseconds * 1000}, NULL);
}

/* The moments decide where the kill lands, not whether the test passes: one in five while processes start, the others
 * some steps later. MPI cannot be left while it starts, so there its launcher has to end the others. */
static void await_moment(uint64_t kill_idx, const struct victim *victim, bool fresh) {
    uint32_t draw[4];
    ox_philox(92, 1, kill_idx, draw);
    if (kill_idx % 5 == 4 && victim->loss == SYS_MPI_END_OTHERS) {
        pause_us(draw[2] % 700000);
    } else if (fresh || sys_await(&process, "\nresumed at step ")) {
        const long begin = fresh ? 0 : sys_number_after(process.outcome.err, "\nresumed at step ", 0);
        if (sys_await(&process, plain_pathf("\nstep %ld/", begin + 1 + (long)(draw[1] % 6)))) {
            pause_us(draw[2] % 20000);
        }
    }
}

static void kill_victim(const struct victim *victim) {
    const pid_t pids[] = {run.pids[0], run.pids[1], run.launcher};
    for (unsigned i = 0; i < 3; i++) {
        if ((victim->who >> i & 1) != 0 && pids[i] != 0) {
            kill(pids[i], SIGKILL);
        }
    }
}

/* Notes how long it took until all were gone. */
static void count_kill(unsigned victim_idx, double seconds) {
    counts.kills++;
    counts.of[victim_idx]++;
    counts.gone_sum += seconds;
    if (seconds > counts.gone_max[victim_idx]) {
        counts.gone_max[victim_idx] = seconds;
    }
}

/* No step that was told of may be lost but the one that is pending when steps overlap. */
static void check_resumed(long *told_step) {
    const long resumed = sys_number_after(process.outcome.err, "resumed at step ", -1);
    if (resumed >= 0) {
        counts.resumes++;
        counts.repeated += resumed < *told_step;
        if (resumed < *told_step - 1) {
            printf("told of step %ld, resumed at %ld: ", *told_step, resumed);
            sys_complain(&process, "a step is lost");
        }
        *told_step = resumed > *told_step ? resumed : *told_step;
    }
    const long told = sys_number_after(process.outcome.err, "\nstep ", -1);
    *told_step = told > *told_step ? told : *told_step;
}

/* A process that is left alone says which one it has lost. */
static bool names_lost(const struct victim *victim) {
    const char *const lost = victim->who == FIRST ? "process 0 (pid " : "process 1 (pid ";
    return victim->loss != SYS_MPI_KEEP_OTHERS || sys_said(&process, lost);
}

/* Whether there is a warning but of a process that was lost, of a step that it had not committed, or of experts that no
 * token chose. */
static bool warns(void) {
    for (const char *at = process.outcome.err; (at = strstr(at, "warning: ")) != NULL; at++) {
        const char *const end = at + strcspn(at, "\n");
        const char *const lost = strstr(at, " has ended; resume from the last commit");
        const char *const withdrawn = strstr(at, "is withdrawn, because another process has not committed it");
        const char *const idle = strstr(at, " experts get no tokens");
        if ((lost == NULL || lost > end) && (withdrawn == NULL || withdrawn > end) && (idle == NULL || idle > end)) {
            return true;
        }
    }
    return false;
}

/* Runs until something is killed, or to the end if enough was. Returns false if the run is complete. */
static bool run_part(unsigned kills_max, unsigned first, long *told_step) {
    static unsigned part;
    const bool fresh = *told_step < 0;
    const unsigned victim_idx = (first + counts.kills) % VICTIM_COUNT;
    const struct victim *const victim = &victims[victim_idx];
    const int ranks = rank_counts[(first + counts.ends) % 2];
    begin("killed", ranks, places[part++ % PLACE_COUNT]);
    const bool copies = (first + counts.ends) % 3 == 1; /* each process has one, which its store holds */
    if (copies) {
        sys_args_word(&args, "--sharding=hybrid_shard");
        sys_args_word(&args, "--shard-size=%d", ranks / 2);
    }
    if (has_experts && (!copies || ranks > 2)) { /* of four ranks without copies two have the same experts */
        sys_args_word(&args, "--expert-parallel-size=2");
    }
    sys_args_add(&args, fresh ? "--overwrite-output-dir" : "--resume latest");
    sys_args_drive(&args, "killed-drive", "32MiB");
    sys_mpi_begin(&launched, 2, &args, victim->loss);
    alarm(HANG_SECONDS); /* for this run */
    sys_start(&launched, &process);
    if (sys_mpi_find(&process, 2, &run) && counts.kills < kills_max) {
        await_moment(first + counts.kills, victim, fresh);
    }
    const bool kills = counts.kills < kills_max;
    const uint64_t begin_ns = ox_clock_ns();
    double seconds = 0;
    if (kills) {
        kill_victim(victim);
        seconds = sys_mpi_wait(&process, &run, begin_ns);
    } else {
        sys_wait(&process);
    }
    alarm(0);
    check_resumed(told_step);
    const bool complete = strstr(process.outcome.out, "model folder: ") != NULL;
    if (kills && !complete) {
        count_kill(victim_idx, seconds);
    }
    const bool bad = kills ? !complete && !names_lost(victim) : !complete || process.outcome.exit_status != 0;
    if (bad || warns() || sys_said(&process, "Segmentation")) {
        printf("%s: ", kills ? victim->name : "nothing killed");
        sys_complain(&process, "cannot go on");
    }
    return !complete && test_failure_count == 0;
}

static void test_kills(unsigned kills_max, unsigned first) {
    memset(&counts, 0, sizeof counts);
    alarm(HANG_SECONDS);
    begin("expected", 1, "");
    sys_run_well(&args, &process);
    while (counts.kills < kills_max && test_failure_count == 0) {
        long told_step = -1;
        while (run_part(kills_max, first, &told_step)) {
            continue;
        }
        counts.ends++;
        if (test_failure_count == 0 && !sys_same_runs("expected", "killed", run_steps())) {
            sys_complain(&process, "other bytes");
        }
        files_remove_folder("killed");
        files_remove_folder("killed-drive");
    }
    for (unsigned i = 0; i < VICTIM_COUNT; i++) {
        printf("%4u kills of %s: all are gone after %.2f s at most\n", counts.of[i], victims[i].name,
               counts.gone_max[i]);
    }
    printf("%u kills, all gone after %.2f s on average; %u resumes, %u steps repeated, %u runs brought to the end\n",
           counts.kills, counts.gone_sum / (counts.kills > 0 ? counts.kills : 1), counts.resumes, counts.repeated,
           counts.ends);
}

int main(int argc, char **argv) {
    const bool counted = argc >= 3 && strcmp(argv[1], "--count") == 0;
    const bool all = test_deep();
    sys_mpi_require();
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGALRM, on_alarm);
    model_path = sys_write_model("llama");
    text_path = sys_write_text(20000);
    const unsigned kills = counted ? (unsigned)strtoul(argv[2], NULL, 10) : all ? 1000 : KILLS / test_stride(6);
    const unsigned first = counted && argc == 4 ? (unsigned)strtoul(argv[3], NULL, 10) : 0;
    test_kills(kills, first);
    files_remove_folder("expected");
    model_path = sys_write_model("deepseek");
    numerics = "--router-aux-loss-coef 0.01 --experts-per-unit 4";
    has_experts = true;
    test_kills((kills + 1) / 2, first);
    return test_end();
}
