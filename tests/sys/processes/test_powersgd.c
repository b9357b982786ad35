/* `--powersgd-rank`: processes exchange gradients of matrices in low rank. The run says that it is inexact, repeats its
 * bits, also where it goes on from a checkpoint or a store after all were killed, in fp16, and where processes divide
 * layers; goes on with another number of processes, and is refused within one. */
#include "tests/kit/files.h"
#include "tests/kit/run/sys_mpi.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 16, SAVED = 8 };

static const char low_rank[] = " --powersgd-rank 2 --powersgd-start-step 2 --powersgd-min-rate 1.1";
static struct sys_args args, launched;
static struct sys_process process;
static const char *text_path;

/* A run with these words, in the test's folder under this name. */
static void begin(const char *output, unsigned steps, const char *words) {
    sys_args_train(&args, sys_write_model("llama"), text_path, output);
    sys_args_add(&args, "--global-batch-size 8 --batch-size 1 --max-seq-length 16 --learning-rate 3e-3"
                 " --eval-windows 12 --compute-threads 1 --chunk-elems 2048 --seed 11 --sum-groups 8"
                 " --lr-scheduler-type constant");
    sys_args_add(&args, strstr(words, "--dtype") == NULL ? "--dtype fp32" : "");
    sys_args_word(&args, "--save-steps=%d", SAVED);
    sys_args_word(&args, "--max-steps=%u", steps);
    sys_args_add(&args, words);
}

static void launch(unsigned processes) {
    if (processes > 1) {
        sys_mpi_begin(&launched, processes, &args, SYS_MPI_END_OTHERS);
    }
}

static char *run(unsigned processes, const char *output, unsigned steps, const char *words) {
    begin(output, steps, words);
    launch(processes);
    sys_run_well(processes > 1 ? &launched : &args, &process);
    return sys_curve(test_path(output), "step");
}

static void refuse(unsigned processes, const char *words, const char *text) {
    begin("refused", STEPS, words);
    launch(processes);
    sys_run(processes > 1 ? &launched : &args, &process);
    CHECK(process.outcome.exit_status != 0 && strstr(process.outcome.err, text) != NULL);
    files_remove_folder(test_path("refused"));
}

static bool file_has(const char *path, const char *words) {
    char *const text = files_read(path, NULL);
    const bool has = strstr(text, words) != NULL;
    free(text);
    return has;
}

static double apart(const char *expected, const char *found, unsigned first) {
    double worst = 0;
    for (unsigned step = first; step <= STEPS; step++) {
        const double loss = sys_metric(expected, step, "loss"), other = sys_metric(found, step, "loss");
        CHECK(isfinite(loss) && isfinite(other));
        worst = fmax(worst, fabs(other - loss) / loss);
    }
    return worst;
}

/* Goes on from the checkpoint at SAVED, with so many processes, in a folder of its own. */
static char *go_on(unsigned processes, const char *output, const char *words) {
    char all[512];
    snprintf(all, sizeof all, "%s --resume-from-checkpoint %s/checkpoint-%d", words, test_path("whole"), SAVED);
    return run(processes, output, STEPS, all);
}

/* All processes are killed behind this line of the run, which then goes on from its checkpoint, or its store. */
static char *kill_and_resume(const char *words, const char *behind, const char *again) {
    char all[384];
    begin("killed", STEPS, words);
    launch(2);
    sys_args_leash(&launched);
    sys_start(&launched, &process);
    CHECK(sys_await(&process, behind));
    struct sys_mpi_run started;
    CHECK(sys_mpi_find(&process, 2, &started));
    sys_mpi_end(&started);
    sys_wait(&process);
    CHECK(process.outcome.exit_status != 0);
    snprintf(all, sizeof all, "--resume latest%s %s", low_rank, again);
    char *const curve = run(2, "killed", STEPS, all);
    files_remove_folder(test_path("killed"));
    return curve;
}

/* On drives a run has the bits of memory, also where it was killed: its store has each process's own residuals, of
 * which it takes the mean where a checkpoint of the same step has that. */
static void check_drives(const char *fresh, const char *whole) {
    static const char *const places[] = {"--state-tier nvme", "--state-tier nvme --weights-tier nvme"};
    static const char *const moments[] = {"step 6/16", "step 8/16", "step 12/16"};
    for (size_t i = 0; i < sizeof moments / sizeof *moments; i++) {
        char words[512], drive[256];
        if (!test_takes((unsigned)i, 3)) {
            continue;
        }
        snprintf(drive, sizeof drive, "--nvme %s:32MiB %s", files_make_folder("drive"), places[i % 2]);
        snprintf(words, sizeof words, "%s %s", fresh, drive);
        char *const killed = kill_and_resume(words, moments[i], drive);
        CHECK(strstr(process.outcome.err, "the store's last commit") != NULL);
        CHECK(apart(whole, killed, SAVED + 1) == 0);
        free(killed);
        files_remove_folder(test_path("drive"));
    }
}

/* Losses with a factor: steps overflow, and a run from a checkpoint has the bits of the run that went on. */
static void check_fp16(const char *fresh) {
    static const char fp16[] = "--dtype fp16 --initial-scale-power 26 --loss-scale-window 5";
    char words[384], again[512];
    snprintf(words, sizeof words, "%s %s", fresh, fp16);
    char *const whole_run = run(2, "fp16", STEPS, words);
    snprintf(again, sizeof again, "%s %s --resume-from-checkpoint %s/checkpoint-%d", low_rank, fp16, test_path("fp16"),
             SAVED);
    char *const resumed = run(2, "fp16-on", STEPS, again);
    CHECK(apart(whole_run, resumed, SAVED + 1) == 0);
    free(whole_run);
    free(resumed);
}

/* Layers in two processes each: a checkpoint has the residuals of all. */
static void check_pipeline(const char *fresh, const char *whole) {
    char words[384], again[512];
    snprintf(words, sizeof words, "%s --mesh dp=2,pp=2", fresh);
    char *const piped = run(4, "piped", STEPS, words);
    CHECK(apart(whole, piped, 1) == 0);
    snprintf(again, sizeof again, "%s --resume-from-checkpoint %s/checkpoint-%d", low_rank, test_path("piped"),
             SAVED);
    char *const resumed = run(2, "piped-on", STEPS, again);
    CHECK(apart(whole, resumed, SAVED + 1) == 0);
    free(piped);
    free(resumed);
}

int main(void) {
    char fresh[256], again[256];
    sys_mpi_require();
    text_path = sys_write_text(40000);
    snprintf(fresh, sizeof fresh, "--from-scratch%s", low_rank);
    snprintf(again, sizeof again, "%s", low_rank);
    char *const exact = run(2, "exact", STEPS, "--from-scratch");
    char *const whole = run(2, "whole", STEPS, fresh);
    CHECK(strstr(process.outcome.err, "inexact; from step 3 on 2 copies") != NULL);
    CHECK(file_has("whole/plan.txt", "copies exchange gradients in rank 2 (PowerSGD): inexact"));
    CHECK(file_has("whole/plan.txt", "low-rank"));
    CHECK(file_has("whole/metrics.jsonl", "\"inexact_exchange\":\"low rank (PowerSGD)\""));
    CHECK(strstr(process.outcome.out, "gradients travelled in low rank (PowerSGD): inexact") != NULL);
    CHECK(file_has("whole/config.resolved.yaml", "powersgd_rank: 2"));
    for (unsigned step = 1; step <= 3; step++) { /* the gradient of step 3 alone is of low rank */
        CHECK(sys_metric(exact, step, "loss") == sys_metric(whole, step, "loss"));
    }
    const double far = apart(exact, whole, 4);
    CHECK(far > 1e-7 && far < 0.05);
    char few[320];
    snprintf(few, sizeof few, "%s --save-optimizer-limit 1", fresh);
    char *const twice = run(2, "twice", STEPS, few);
    CHECK(files_exist("whole/checkpoint-8/powersgd.safetensors"));
    CHECK(!files_exist("twice/checkpoint-8/powersgd.safetensors")); /* nor the optimizer's state */
    CHECK(files_exist("twice/checkpoint-16/powersgd.safetensors"));
    CHECK(sys_same_text("the same run twice", whole, twice));
    char *const resumed = go_on(2, "two", again);
    CHECK(apart(whole, resumed, SAVED + 1) == 0);
    char *const killed = kill_and_resume(fresh, "checkpoint-8", "");
    CHECK(apart(whole, killed, SAVED + 1) == 0);
    char *const four = go_on(4, "four", again);
    const double others = apart(whole, four, SAVED + 1);
    printf("two processes from exact sums: losses within %.1e; four from two: %.1e\n", far, others);
    CHECK(others < 1e-4);
    free(go_on(1, "one", ""));
    CHECK(strstr(process.outcome.err, "is left out") != NULL);
    refuse(1, fresh, "needs several processes; within one, sums are exact and cost no network");
    char piped[320];
    snprintf(piped, sizeof piped, "%s --ranks 4 --pipeline-parallel-size 2", fresh);
    refuse(2, piped, "needs several processes with the same layers");
    check_drives(fresh, whole);
    check_fp16(fresh);
    check_pipeline(fresh, whole);
    free(exact);
    free(whole);
    free(twice);
    free(resumed);
    free(killed);
    free(four);
    return test_end();
}
