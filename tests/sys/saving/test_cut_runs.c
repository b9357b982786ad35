/* --tensor-groups as users meet it: recorded with the run, kept by a resume, refused from a store with another number,
 * and the same bits with a store, without one, and over ranks. */
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>

static const char words[] = "--gradient-accumulation-steps 2 --batch-size 1 --max-seq-length 24 --compute-threads 1"
                            " --learning-rate 3e-3 --save-steps 2 --chunk-elems 4096";
static const char on_drives[] = "--device-mem 4MiB --host-mem 4MiB --weights-tier nvme --state-tier nvme";

static struct sys_args args;
static struct sys_process process;
static const char *model_path, *text_path;

static void begin(const char *name, const char *more) {
    sys_args_train(&args, model_path, text_path, name);
    sys_args_add(&args, words);
    sys_args_add(&args, more);
}

static void check_same(const char *what, const char *a, const char *b) {
    char *const curves[] = {sys_curve(test_path(a), "step"), sys_curve(test_path(b), "step")};
    CHECK(sys_same_text(what, curves[0], curves[1]) && curves[0][0] != '\0');
    free(curves[0]);
    free(curves[1]);
}

/* Runs of one number of groups have the same bits; of another one, other bits and nearly the same losses. */
static void test_same_bits(void) {
    begin("whole", "--max-steps 4");
    sys_run_well(&args, &process);
    begin("cut", "--max-steps 4 --tensor-groups 2");
    sys_run_well(&args, &process);
    begin("drives", "--max-steps 4 --tensor-groups 2");
    sys_args_add(&args, on_drives);
    sys_args_drive(&args, "drive", "32MiB");
    sys_run_well(&args, &process);
    begin("ranks", "--max-steps 4 --tensor-groups 2 --sum-groups 2 --ranks 2");
    sys_run_well(&args, &process);
    begin("one", "--max-steps 4 --tensor-groups 2 --sum-groups 2");
    sys_run_well(&args, &process);
    check_same("a run with a store and one without", "cut", "drives");
    CHECK(sys_same_runs("cut", "drives", 4));
    check_same("a run of two ranks and of one", "one", "ranks");
    char *const curves[] = {sys_curve(test_path("whole"), "step"), sys_curve(test_path("cut"), "step")};
    CHECK(strcmp(curves[0], curves[1]) != 0);
    for (unsigned step = 1; step <= 4; step++) {
        const double a = sys_metric(curves[0], step, "loss"), b = sys_metric(curves[1], step, "loss");
        CHECK(a - b < 1e-5 && b - a < 1e-5);
    }
    free(curves[0]);
    free(curves[1]);
}

/* From its store the run above goes on with its groups alone, named or not; from its checkpoint with any. */
static void test_resume(void) {
    begin("drives", "--max-steps 6 --tensor-groups 1 --resume-from-checkpoint latest");
    sys_args_add(&args, on_drives);
    sys_args_drive(&args, "drive", "32MiB");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 2);
    if (!sys_said(&process, "was made with other settings: --tensor-groups 2, now 1; give those of the run, or go on "
                            "from a checkpoint: --resume-from-checkpoint ")) {
        sys_complain(&process, "a store of other groups");
    }
    begin("drives", "--max-steps 6 --resume-from-checkpoint latest");
    sys_args_add(&args, on_drives);
    sys_args_drive(&args, "drive", "32MiB");
    sys_run_well(&args, &process);
    CHECK(sys_said(&process, "in 2 groups of features (--tensor-groups)"));
    begin("other", "--max-steps 6 --tensor-groups 1");
    sys_args_word(&args, "--resume-from-checkpoint=%s", test_path("cut/checkpoint-4"));
    sys_run_well(&args, &process);
    if (!sys_said(&process, "was made with other training options: --max-steps 4, now 6; --tensor-groups 2, now 1; "
                            "from here on the run differs")) {
        sys_complain(&process, "a checkpoint of other groups");
    }
}

/* What cannot be cut is refused before anything is written. */
static void test_refused(void) {
    begin("refused", "--max-steps 4 --tensor-groups 3");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 2);
    if (!sys_said(&process, "--tensor-groups 3: 4 attention heads cannot be cut into 3 groups of features; use 1 or "
                            "2") ||
        files_exist(test_path("refused"))) {
        sys_complain(&process, "three groups of four heads");
    }
}

int main(void) {
    model_path = sys_write_model("llama");
    text_path = sys_write_text(4000);
    test_same_bits();
    test_resume();
    test_refused();
    return test_end();
}
