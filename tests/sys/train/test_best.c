/* When a run evaluates and saves, which checkpoint is its best one, and when it ends early; through resumes too. What
 * the Trainer does otherwise, and what its users ask for, is in docs/coming-from.md. */
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct sys_args args;
static struct sys_process process;
static const char *model, *text;

/* A run of 24 steps of 2 sequences, 3 epochs of 8, whose rate is so high that evaluations go up and down. */
static void begin(const char *output, const char *more) {
    sys_args_train(&args, model, text, output);
    sys_args_add(&args, "--max-seq-length 32 --per-device-train-batch-size 2 --learning-rate 0.03 "
                 "--eval-fraction 0.2 --lr-scheduler-type constant --seed 5 --gradient-accumulation-steps 1");
    sys_args_add(&args, more);
}

static void run(const char *output, const char *more) {
    begin(output, more);
    sys_run_well(&args, &process);
}

/* The steps of the checkpoints of a run, ascending, as "4 8 12". */
static const char *checkpoints(const char *output) {
    static char names[512];
    size_t used = 0;
    names[0] = '\0';
    for (unsigned step = 1; step <= 100; step++) {
        if (access(test_pathf("%s/checkpoint-%u/trainer_state.json", output, step), R_OK) == 0) {
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%u", used > 0 ? " " : "", step);
        }
    }
    return names;
}

/* The step that `best` leads to; 0: there is no such link. */
static unsigned best_of(const char *output) {
    char to[64] = "";
    const bool is_link = readlink(test_pathf("%s/best", output), to, sizeof to - 1) > 0;
    return is_link ? (unsigned)strtoul(to + strlen("checkpoint-"), NULL, 10) : 0;
}

static void check_names(const char *output, const char *expected) {
    if (strcmp(checkpoints(output), expected) != 0) {
        printf("%s has the checkpoints %s instead of %s\n", output, checkpoints(output), expected);
        test_failure_count++;
    }
}

/* The step of the smallest loss of those evaluations whose step is a multiple of `every` or the last one. */
static unsigned smallest(const char *output, unsigned every, unsigned last) {
    char *const curve = sys_curve(test_path(output), "eval");
    unsigned best = 0;
    for (unsigned step = 1; step <= last; step++) {
        const double loss = sys_metric(curve, step, "eval_loss");
        if (!isnan(loss) && (step % every == 0 || step == last) &&
            (best == 0 || loss < sys_metric(curve, best, "eval_loss"))) {
            best = step;
        }
    }
    free(curve);
    return best;
}

static unsigned eval_count(const char *output) {
    char *const curve = sys_curve(test_path(output), "eval");
    unsigned count = 0;
    for (const char *at = curve; (at = strchr(at, '\n')) != NULL; at++) {
        count++;
    }
    free(curve);
    return count;
}

/* ---- when ------------------------------------------------------------------------------------------------- */

static void test_strategies(void) {
    run("steps", "--max-steps 20 --eval-steps 4 --save-steps 8");
    check_names("steps", "8 16 20");
    CHECK(eval_count("steps") == 5);
    run("none", "--max-steps 20 --eval-strategy no --save-strategy no --save-steps 2 --eval-steps 2");
    check_names("none", "20");
    CHECK(eval_count("none") == 0 && best_of("none") == 0);
    run("delay", "--max-steps 20 --eval-steps 4 --eval-delay 9 --eval-on-start");
    char *const curve = sys_curve(test_path("delay"), "eval");
    CHECK(!isnan(sys_metric(curve, 0, "eval_loss")) && !isnan(sys_metric(curve, 12, "eval_loss")) &&
          !isnan(sys_metric(curve, 16, "eval_loss")) && isnan(sys_metric(curve, 8, "eval_loss")));
    CHECK(eval_count("delay") == 4); /* 0, 12, 16 and the end */
    free(curve);
}

/* Epochs end with a step that is not full, and after a resume with another accumulation at other steps. */
static void test_epochs(void) {
    run("epochs", "--num-train-epochs 3 --eval-strategy epoch --save-strategy epoch --eval-delay 2");
    char *const curve = sys_curve(test_path("epochs"), "step");
    const unsigned each = (unsigned)sys_metric(curve, 1, "steps_per_epoch");
    char expected[64];
    snprintf(expected, sizeof expected, "%u %u %u", each, 2 * each, 3 * each);
    check_names("epochs", expected);
    CHECK(each > 2 && eval_count("epochs") == 2);
    free(curve);
}

/* ---- the best one ------------------------------------------------------------------------------------------- */

static void test_best(void) {
    /* Among saved ones: step 4, 12, ... may be better, and are not there. */
    run("kept", "--max-steps 30 --eval-steps 2 --save-steps 6 --save-total-limit 2");
    const unsigned best = smallest("kept", 6, 30), before = smallest("kept", 6, 24);
    char expected[64];
    /* The last step is saved before it is evaluated: what was best until then stays beside it. */
    snprintf(expected, sizeof expected, "%u 30", before);
    check_names("kept", expected);
    CHECK(best_of("kept") == best && best > 0);
    /* Each checkpoint is the best so far, but the last one. */
    run("best", "--max-steps 30 --eval-steps 2 --save-strategy best");
    char *const curve = sys_curve(test_path("best"), "eval");
    double least = INFINITY;
    char names[256] = "";
    for (unsigned step = 2, used = 0; step <= 30; step += 2) {
        const double loss = sys_metric(curve, step, "eval_loss");
        if (loss < least || step == 30) {
            used += (unsigned)snprintf(names + used, sizeof names - used, "%s%u", used > 0 ? " " : "", step);
        }
        least = loss < least ? loss : least;
    }
    free(curve);
    check_names("best", names);
    CHECK(best_of("best") == smallest("best", 2, 30));
    /* The result is the best one, for whoever names the run; a resume goes on from the last one. */
    run("loaded", "--max-steps 30 --eval-steps 2 --save-strategy best --load-best-model-at-end");
    char folder[64];
    snprintf(folder, sizeof folder, "loaded/checkpoint-%u\n", smallest("loaded", 2, 30));
    CHECK(strstr(process.outcome.out, folder) != NULL);
    sys_args_begin(&args, "inspect");
    sys_args_word(&args, "%s", test_path("loaded"));
    sys_run_well(&args, &process);
    folder[strlen(folder) - 1] = '\0';
    CHECK(strstr(process.outcome.out, folder) != NULL);
}

/* A run that is cut off where it may be, and goes on, keeps the same checkpoints as one that is not. */
static void test_resumed(void) {
    static const char options[] = "--max-steps 30 --eval-steps 2 --save-strategy best --save-total-limit 3";
    run("whole", options);
    char expected[512];
    snprintf(expected, sizeof expected, "%s", checkpoints("whole"));
    begin("parts", options);
    sys_args_drive(&args, "parts-drive", "16MiB");
    for (unsigned at = 7; at <= 21; at += 7) {
        char words[64];
        snprintf(words, sizeof words, "step %u/30", at);
        sys_args_leash(&args);
        sys_start(&args, &process);
        CHECK(sys_await(&process, words));
        kill(process.pid, SIGKILL);
        sys_wait(&process);
        begin("parts", options);
        sys_args_drive(&args, "parts-drive", "16MiB");
        sys_args_add(&args, "--resume-from-checkpoint latest");
    }
    sys_run_well(&args, &process);
    check_names("parts", expected);
    CHECK(best_of("parts") == best_of("whole"));
    char *const first = sys_curve(test_path("whole"), "eval"), *const second = sys_curve(test_path("parts"), "eval");
    CHECK(sys_same_text("evaluations", first, second));
    free(first);
    free(second);
}

/* ---- an early end --------------------------------------------------------------------------------------------- */

/* The step at which a run ends by its evaluations, 2 steps apart: as the header of --early-stopping-threshold says,
 * worked out here from the losses alone. 0: it does not. */
static unsigned end_of(const char *curve, unsigned patience, double threshold) {
    double than = sys_metric(curve, 2, "eval_loss");
    unsigned stale = 0;
    for (unsigned step = 4; step <= 60; step += 2) {
        const double loss = sys_metric(curve, step, "eval_loss");
        stale = loss < than - threshold ? 0 : stale + 1;
        than = stale == 0 ? loss : than;
        if (stale == patience) {
            return step;
        }
    }
    return 0;
}

static void test_early(void) {
    run("long", "--max-steps 60 --eval-steps 2");
    char *const curve = sys_curve(test_path("long"), "eval");
    const unsigned expected = end_of(curve, 3, 0.02);
    CHECK(expected > 6 && expected < 60 && expected != end_of(curve, 3, 0));
    static const char options[] = "--max-steps 60 --eval-steps 2 --save-steps 4 --early-stopping-patience 3 "
                                  "--early-stopping-threshold 0.02";
    run("early", options);
    CHECK(sys_said(&process, "the run ends early, at step "));
    char last[64];
    snprintf(last, sizeof last, "/checkpoint-%u/trainer_state.json", expected);
    CHECK(access(test_pathf("early%s", last), R_OK) == 0);
    char *const steps = sys_curve(test_path("early"), "step");
    CHECK(!isnan(sys_metric(steps, expected, "loss")) && isnan(sys_metric(steps, expected + 1, "loss")));
    free(steps);
    /* Going on needs more patience; the count goes on through a resume. */
    begin("early", options);
    sys_args_add(&args, "--resume-from-checkpoint latest");
    sys_run_well(&args, &process);
    CHECK(sys_said(&process, "the run ends early, at step "));
    begin("early", "--max-steps 60 --eval-steps 2 --save-steps 4 --early-stopping-patience 4 "
          "--early-stopping-threshold 0.02 --resume-from-checkpoint latest");
    sys_run_well(&args, &process);
    const unsigned later = end_of(curve, 4, 0.02);
    char *const more = sys_curve(test_path("early"), "step");
    CHECK(isnan(sys_metric(more, (later > 0 ? later : 60) + 1, "loss")) &&
          !isnan(sys_metric(more, later > 0 ? later : 60, "loss")));
    free(more);
    free(curve);
}

static void test_time(void) {
    begin("timed", "--max-steps 1000000 --max-time 1s --save-steps 0 --eval-steps 0");
    sys_run_well(&args, &process);
    CHECK(sys_said(&process, "(--max-time)") && sys_said(&process, "--resume-from-checkpoint latest goes on"));
    CHECK(strstr(process.outcome.out, "/checkpoint-") != NULL);
}

int main(void) {
    model = sys_write_model("llama");
    text = sys_write_text(700);
    test_strategies();
    test_epochs();
    test_best();
    test_resumed();
    test_early();
    test_time();
    return test_end();
}
