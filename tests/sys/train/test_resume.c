/* A run that stops and resumes equals one that never stopped: at every step, from checkpoint and from store, under
 * another placement too. Also what is refused, what is warned of and what is kept. */
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STEPS = 8, LINE = SYS_PATH_BYTES + 32 };

static const char common_words[] =
    "--gradient-accumulation-steps 4 --batch-size 1 --max-seq-length 24"
    " --lr-scheduler-type cosine --warmup-steps 2 --max-grad-norm 0.5 --eval-steps 3 --eval-windows 8"
    " --compute-threads 1 --max-steps 8";
/* Defaults, unless the arguments of a test name the option. */
static const char *const defaults[][2] = {{"--learning-rate", "3e-3"}, {"--chunk-elems", "4096"}};
static const char on_drives[] = " --device-mem 4MiB --host-mem 4MiB --weights-tier nvme --state-tier nvme"
                                " --grads-tier nvme --activation-tier nvme";

/* Arguments that decide the numerics of all runs in a part of the test. */
static const char *numerics = "";

static struct sys_args args;
static struct sys_process process;
static const char *model_path, *text_path;
static const char *expected_folder, *expected_checkpoint;
static char *expected_steps, *expected_evals;

/* Runs in folder `name`, with a store if `drives` is not 0. */
static void begin(const char *name, int drives, const char *words) {
    sys_args_train(&args, model_path, text_path, name);
    sys_args_add(&args, common_words);
    sys_args_add(&args, numerics);
    sys_args_add(&args, words);
    for (int i = 0; i < 2; i++) {
        if (strstr(words, defaults[i][0]) == NULL) {
            sys_args_word(&args, "%s=%s", defaults[i][0], defaults[i][1]);
        }
    }
    for (int i = 0; i < drives; i++) {
        sys_args_drive(&args, test_pathf("%s-drive-%d", name, i), "32MiB");
    }
}

static void remove_run(const char *name) {
    files_remove_folder(name);
    for (int i = 0; i < 2; i++) {
        files_remove_folder(test_pathf("%s-drive-%d", name, i));
    }
}

static void copy_run(const char *from, const char *to) {
    static const char *const parts[] = {"", "-drive-0", "-drive-1"};
    const char *source;
    for (int i = 0; i < 3; i++) {
        source = test_pathf("%s%s", from, parts[i]);
        if (files_exist(source)) {
            files_copy_folder(source, test_pathf("%s%s", to, parts[i]));
        }
    }
}

static bool said(const char *words) {
    return strstr(process.outcome.err, words) != NULL;
}

/* Checks the end of the program's output and its status. */
static void expect(int exit_status, const char *words) {
    if (process.outcome.exit_status != exit_status || !said(words)) {
        printf("expected status %d and \"%s\", got %d:\n%s\n", exit_status, words, process.outcome.exit_status,
               process.outcome.err);
        test_failure_count++;
    }
}

/* Checks that losses and evaluations from step `from` on, and the final files, equal those of the undisturbed run. */
static void compare(const char *name, unsigned from) {
    const char *const folder = test_path(name);
    const char *const checkpoint = test_pathf("%s/checkpoint-%d", folder, STEPS);
    char *const steps = sys_curve(folder, "step"), *const evals = sys_curve(folder, "eval");
    const unsigned first_eval = (from + 2) / 3 * 3; /* evaluations are at 3, 6 and 8 */
    const bool same =
        sys_same_text("losses", sys_curve_from(expected_steps, from), steps) &&
        sys_same_text("evaluations", sys_curve_from(expected_evals, first_eval > STEPS ? STEPS : first_eval), evals) &&
        sys_same_checkpoint(expected_checkpoint, checkpoint);
    if (!same) {
        printf("    in %s, from step %u on\n%s\n", name, from, process.outcome.err);
        test_failure_count++;
    }
    free(steps);
    free(evals);
}

static void make_expected(const char *words) {
    numerics = words;
    remove_run("expected");
    free(expected_steps);
    free(expected_evals);
    expected_folder = test_path("expected");
    expected_checkpoint = test_pathf("%s/checkpoint-%d", expected_folder, STEPS);
    begin("expected", 0, "--save-steps 1");
    sys_run_well(&args, &process);
    expected_steps = sys_curve(expected_folder, "step");
    expected_evals = sys_curve(expected_folder, "eval");
    CHECK(sys_curve_from(expected_steps, STEPS)[0] != '\0' && sys_curve_from(expected_evals, 6)[0] != '\0');
}

/* ---- at every step --------------------------------------------------------------------------------- */

/* A checkpoint of each step, taken into a folder of its own, under one placement and another. */
static void test_named_checkpoints(void) {
    static const char *const words[] = {"", " --tiles 4 --optimizer-threads 2", on_drives};
    for (unsigned step = 1; step < STEPS; step++) {
        begin("named", step % 3 == 2 ? 1 : 0, words[step % 3]);
        sys_args_word(&args, "--resume-from-checkpoint=%s/checkpoint-%u", expected_folder, step);
        sys_run_well(&args, &process);
        CHECK(sys_number_after(process.outcome.err, "resumed at step ", -1) == (long)step);
        CHECK(!said("warning"));
        compare("named", step + 1);
        remove_run("named");
    }
}

/* USR2 is sent before the program can take it, so it ends right after its first step. */
static void run_one_step(void) {
    sigset_t set, old;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, &old);
    sys_start(&args, &process);
    kill(process.pid, SIGUSR2);
    sigprocmask(SIG_SETMASK, &old, NULL);
    sys_wait(&process);
    if (process.outcome.exit_status != 0) {
        printf("one step: exit status %d\n%s\n", process.outcome.exit_status, process.outcome.err);
        exit(1);
    }
}

/* Runs one process for each step. Several `placements` take turns. */
static void test_chain(const char *name, int drives, const char *const *placements, unsigned placement_count) {
    const char *const latest = test_pathf("%s/latest", test_path(name));
    for (unsigned step = 1; step <= STEPS; step++) {
        char saved[64];
        begin(name, drives, placements[step % placement_count]);
        sys_args_add(&args, step > 1 ? "--save-steps 0 --resume latest" : "--save-steps 0");
        run_one_step();
        snprintf(saved, sizeof saved, "/checkpoint-%u in ", step);
        CHECK(said(saved));
        CHECK(files_exist(latest));
        CHECK(!said("warning"));
        CHECK(step == 1 || sys_number_after(process.outcome.err, "resumed at step ", -1) == (long)step - 1);
        CHECK(step == 1 || said("the store's last commit") == (drives > 0));
    }
    compare(name, 1);
}

static void test_chains(void) {
    static const char *const plain[] = {""};
    static const char *const in_memory[] = {" --tiles 4 --prefetch-depth 0", " --device-mem 4MiB", " --tiles 2",
                                            " --device-mem 16MiB --device-state-units 2",
                                            " --device-mem 16MiB --state-tier device"};
    static const char *const tiers[] = {" --device-mem 4MiB --host-mem 4MiB --activation-tier host --tiles 1",
                                        on_drives, " --tiles 4 --prefetch-depth 0",
                                        " --device-mem 8MiB --weights-tier device --state-tier nvme --tiles 2",
                                        " --device-mem 4MiB --grads-tier nvme --io-backend threads --queue-depth 2",
                                        " --device-mem 16MiB --state-tier device",
                                        " --device-mem 16MiB --device-state-units 2 --state-tier nvme"};
    test_chain("by-checkpoint", 0, plain, 1);
    remove_run("by-checkpoint");
    test_chain("by-checkpoint", 0, in_memory, 5);
    remove_run("by-checkpoint");
    test_chain("by-store", 1, plain, 1);
    remove_run("by-store");
    test_chain("by-store", 2, tiers, 7);
    remove_run("by-store");
}

/* ---- the store and the checkpoint beside each other ----------------------------------------------- */

/* A run with a store, stopped after its third step. */
static void stop_at_three(const char *words) {
    for (int step = 1; step <= 3; step++) {
        begin("start", 1, words);
        sys_args_add(&args, step > 1 ? "--resume latest" : "");
        run_one_step();
    }
}

static void go_on(int drives, const char *words) {
    copy_run("start", "copy");
    begin("copy", drives, words);
    sys_args_add(&args, "--resume latest");
    sys_run(&args, &process);
}

/* Checks that the run of the copy is complete. */
static void end_well(void) {
    CHECK(said("resumed at step 3 ") && said("  the run       5 steps left, after step 3 of 8, "));
    compare("copy", 1);
    remove_run("copy");
}

static void go_on_well(const char *words) {
    go_on(1, words);
    expect(0, "the store's last commit");
    end_well();
}

/* Other settings do not discard a whole store; a checkpoint can be named instead. */
static void refuse_then_name(int drives, const char *words, const char *sign) {
    const char *checkpoint;
    go_on(drives, words);
    expect(2, sign);
    begin("copy", 1, "");
    sys_args_add(&args, "--resume latest");
    sys_run_well(&args, &process);
    CHECK(said("the store's last commit"));
    end_well();
    copy_run("start", "copy");
    begin("copy", drives, words);
    checkpoint = test_path("copy/checkpoint-3");
    sys_args_word(&args, "--resume=%s", checkpoint);
    sys_run_well(&args, &process);
    CHECK(said("/checkpoint-3\n"));
    end_well();
}

static void test_other_placements(void) {
    stop_at_three(" --save-steps 0 --tiles 1");
    go_on_well(on_drives);
    go_on_well(" --tiles 4 --activation-tier nvme");
    go_on_well(" --device-mem 4MiB --host-mem 4MiB --tiles 2 --grads-tier nvme");
    refuse_then_name(1, " --chunk-elems 8192", ", now 8192; give those of the run, or go on from a checkpoint: "
                                               "--resume-from-checkpoint ");
    refuse_then_name(2, "", "copy-drive-1");
    /* Without the drives' folders a run does not resume by itself; a checkpoint can be named. */
    go_on(0, "");
    expect(2, "start-drive-0), but no --nvme is given");
    begin("copy", 0, "");
    sys_args_word(&args, "--resume=%s", test_path("copy/checkpoint-3"));
    sys_run_well(&args, &process);
    end_well();
    /* Without the checkpoint the store is enough; then the store is removed too. */
    files_remove_folder("start/checkpoint-3");
    files_remove_folder("start/checkpoint-2");
    files_remove_folder("start/checkpoint-1");
    go_on_well("");
    go_on(0, "");
    expect(2, "but no --nvme is given");
    remove_run("copy");
    remove_run("start");
    /* A checkpoint of another run in the folder does not count. */
    stop_at_three(" --save-steps 0 --tiles 1");
    files_copy_folder("expected/checkpoint-6", "start/checkpoint-6");
    const char *const latest = test_path("start/latest");
    CHECK(!files_same(latest, "expected/latest"));
    files_remove_folder("start/checkpoint-3");
    go_on_well("");
    remove_run("start");
}

/* ---- what is kept, refused and told --------------------------------------------------------------- */

static void test_total_limit(void) {
    begin("limit", 0, "--save-steps 1 --save-total-limit 3");
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.out, " per token at step 8\n") != NULL);
    for (unsigned step = 1; step <= STEPS; step++) {
        CHECK(files_exist(test_pathf("limit/checkpoint-%u", step)) == (step > STEPS - 3));
        CHECK(!files_exist(test_pathf("limit/checkpoint-%u.tmp", step)));
    }
    const char *const latest = test_path("expected/latest");
    CHECK(files_same("limit/latest", latest));
    compare("limit", 1);
    /* A finished run that is resumed has nothing left to do and changes nothing. */
    begin("limit", 0, "--save-steps 1 --save-total-limit 3 --resume latest");
    sys_run_well(&args, &process);
    CHECK(said("resumed at step 8 of 8 from ") && said(": nothing left to do\n"));
    compare("limit", 1);
    sys_args_begin(&args, "train");
    sys_args_word(&args, "--config=%s", test_path("limit/config.resolved.yaml"));
    sys_args_add(&args, "--resume latest --compute-threads 3");
    sys_run_well(&args, &process);
    CHECK(said("resumed at step 8 of 8 from ") && !said("other training options"));
    sys_args_begin(&args, "train");
    sys_args_word(&args, "--config=%s", test_path("limit/config.resolved.yaml"));
    sys_args_add(&args, "--resume latest --max-steps 4 --warmup-steps 6");
    sys_run_well(&args, &process);
    CHECK(said("resumed at step 8 from ") && said(": nothing left to do, the run ends at step 4\n"));
    CHECK(said("  the run       nothing is left: step 8 is done, and the run ends at step 4\n"));
    /* The options of a run are in its folder. */
    sys_args_begin(&args, "train");
    sys_args_word(&args, "--output=%s", test_path("limit"));
    sys_args_add(&args, "--resume latest");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 2 && said("--model is missing; --config ") &&
          said("/limit/config.resolved.yaml has the options of the run\n"));
    remove_run("limit");
}

static void test_refusals(void) {
    begin("none", 0, "--resume latest");
    sys_run(&args, &process);
    expect(2, "holds no run to go on with");
    CHECK(!files_exist("none") && !said("memory at its fullest"));
    begin("none", 0, "");
    const char *const folder = test_path("nowhere");
    sys_args_word(&args, "--resume=%s", folder);
    sys_run(&args, &process);
    expect(2, "nowhere");

    begin("again", 1, "");
    sys_run_well(&args, &process);
    begin("again", 1, "");
    sys_run(&args, &process);
    expect(2, "already holds a run");
    compare("again", 1); /* nothing was touched */
    /* The folder of another run's store is refused as well. */
    const char *const guest = test_path("guest-drive-0");
    files_copy_folder("again-drive-0", guest);
    CHECK(unlink(test_path("guest-drive-0/offload-store.finished")) == 0); /* as of a run that was stopped */
    begin("guest", 1, "");
    sys_run(&args, &process);
    expect(2, "holds the store of another run");
    CHECK(!files_exist("guest/run.json"));
    remove_run("guest");
    /* A store that another run could take for that of a finished one gets no steps. */
    const char *const note = test_path("again-drive-0/offload-store.finished");
    CHECK(unlink(note) == 0 && mkdir(note, 0777) == 0);
    begin("again", 1, "--resume latest");
    sys_run(&args, &process);
    expect(1, "offload-store.finished: says that the run has finished, and cannot be removed");
    CHECK(rmdir(test_path("again-drive-0/offload-store.finished")) == 0);
    files_write_text("again/notes.txt", "");
    begin("again", 1, "--overwrite-output-dir");
    sys_run_well(&args, &process);
    CHECK(said("starting from fresh weights"));
    CHECK(files_exist("again/notes.txt"));
    compare("again", 1);
    remove_run("again");
}

static void test_changed_options(void) {
    begin("changed", 0, "--learning-rate 1e-3");
    sys_args_word(&args, "--resume=%s/checkpoint-4", expected_folder);
    sys_run_well(&args, &process);
    CHECK(said("checkpoint-4: was made with other training options: --learning-rate 0.003, now 0.001; from here on"));
    char *const steps = sys_curve(test_path("changed"), "step");
    CHECK(strcmp(sys_curve_from(steps, 5), sys_curve_from(expected_steps, 5)) != 0);
    CHECK(sys_curve_from(steps, STEPS)[0] != '\0');
    free(steps);
    remove_run("changed");
}

/* A run that was given relative paths goes on from its config.resolved.yaml in any folder. */
static void test_other_folder(void) {
    char *const program = realpath(getenv("OX_BIN") != NULL ? getenv("OX_BIN") : "build/offload", NULL);
    char *const folder = getcwd(NULL, 0);
    CHECK(program != NULL && setenv("OX_BIN", program, 1) == 0);
    files_make_folder("away-drive");
    CHECK(chdir(test_folder()) == 0);
    sys_args_begin(&args, "train");
    sys_args_word(&args, "--model=%s", strrchr(model_path, '/') + 1);
    sys_args_word(&args, "--data=./%s:0.5", strrchr(text_path, '/') + 1);
    sys_args_word(&args, "--eval-data=%s", strrchr(text_path, '/') + 1);
    sys_args_word(&args, "--chat-template=%s", strrchr(text_path, '/') + 1);
    sys_args_add(&args, "--output away --nvme away-drive:32MiB --device-mem 4MiB --host-mem 4MiB --data-cache tokens"
                        " --max-seq-length 24 --compute-threads 1 --max-steps 2 --global-batch-size 2");
    sys_run_well(&args, &process);
    CHECK(chdir("/") == 0);
    sys_args_begin(&args, "train");
    sys_args_word(&args, "--config=%s", test_path("away/config.resolved.yaml"));
    sys_args_add(&args, "--max-steps 3 --resume-from-checkpoint latest --global-batch-size 4");
    sys_run_well(&args, &process);
    CHECK(said("resumed at step 2 of 3 from the store's last commit"));
    CHECK(said("warning: the store: was made with other training options: --max-steps 2, now 3; "
               "--gradient-accumulation-steps 2, now 4; from here on"));
    CHECK(files_exist("away/checkpoint-3"));
    char *const record = files_read("away/config.resolved.yaml", NULL), line[LINE];
    snprintf(line, sizeof line, "\nchat_template: \"%s\"\n", text_path);
    CHECK(strstr(record, line) != NULL);
    free(record);
    CHECK(chdir(folder) == 0);
    free(folder);
    free(program);
    files_remove_folder("away-drive");
    files_remove_folder("away");
}

/* A run that began before the warmup began at 0 goes on as it began, also from its own checkpoints. */
static void test_old_run(void) {
    files_copy_folder("expected/checkpoint-1", test_path("old"));
    files_replace_text("old/trainer_state.json", "\"format_version\": 4", "\"format_version\": 3");
    files_replace_text("old/trainer_state.json", "\"checksum\"", "\"unknown\""); /* they had none */
    begin("of-old", 0, "--save-steps 1");
    sys_args_word(&args, "--resume=%s", test_path("old"));
    sys_run_well(&args, &process);
    CHECK(said("the run began with an earlier version") && !said("warning"));
    char *const steps = sys_curve(test_path("of-old"), "step");
    CHECK(sys_metric(steps, 2, "learning_rate") == 3e-3 && sys_metric(expected_steps, 2, "learning_rate") == 1.5e-3);
    free(steps);
    files_replace_text("of-old/checkpoint-2/trainer_state.json", "\"format_version\": 3", "\"format_version\": 3");
    remove_run("of-old");
    files_remove_folder("old");
}

/* ---- formats of the state -------------------------------------------------------------------------- */

static void expect_inspected(const char *path, const char *optimizer, const char *moments) {
    char line[2][64];
    sys_args_begin(&args, "inspect");
    sys_args_word(&args, "%s", path);
    sys_run_well(&args, &process);
    snprintf(line[0], sizeof line[0], "%-16s  %s\n", "optimizer", optimizer);
    snprintf(line[1], sizeof line[1], "%-16s  %s\n", "moments", moments);
    CHECK(strstr(process.outcome.out, line[0]) != NULL && strstr(process.outcome.out, line[1]) != NULL);
}

/* A store with another format is refused, not replaced; a checkpoint is converted, with a warning. */
static void test_other_format(void) {
    numerics = " --dtype bf16 --moments q8";
    stop_at_three(" --save-steps 0");
    expect_inspected(test_path("start/checkpoint-3"), "adamw", "q8");
    expect_inspected(test_path("start-drive-0"), "adamw", "q8");
    CHECK(strstr(process.outcome.out, "\nstep_before       2\n") != NULL); /* the other generation */
    numerics = " --dtype bf16 --optimizer lion";
    go_on(1, "");
    expect(2, "was made with other settings: --optimizer adamw, now lion; --moments q8, now f32; give those of the "
              "run");
    begin("copy", 1, "");
    sys_args_word(&args, "--resume=%s", test_path("copy/checkpoint-3"));
    sys_run_well(&args, &process);
    CHECK(said("has the state of adamw with q8 moments, but the run continues with lion and f32 moments\n"));
    CHECK(said("was made with other training options: --optimizer adamw, now lion; --moments q8, now f32; from here"));
    expect_inspected(test_path("copy/checkpoint-8"), "lion", "f32");
    expect_inspected(test_path("copy-drive-0"), "lion", "f32");
    numerics = " --dtype bf16 --moments bf16";
    begin("back", 0, "");
    sys_args_word(&args, "--resume=%s", test_path("copy/checkpoint-8"));
    sys_run_well(&args, &process);
    CHECK(said("continues with adamw and bf16 moments; its numbers are rounded; the second moments begin at "
               "zero\n"));
    remove_run("back");
    remove_run("copy");
    remove_run("start");
}

static bool holds(const char *name, const char *words) {
    char *const text = files_read(name, NULL);
    const bool found = strstr(text, words) != NULL;
    free(text);
    return found;
}

/* Epochs end where the data does, whatever the size of a step was before; the rate ends its schedule there, and log,
 * plan and metrics name the same steps, of which a share is counted. Of 41 sequences two steps take 8 each, and then
 * each takes 3, where a run that always had those would take 28 steps. */
static void test_epochs(bool drive) {
    static const char *const sizes[] = {"8", "8", "3"};
    static const double peak = 1e-3;
    char text[41 * 24 + 2];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    const char *const path = files_write_text("sequences.txt", text);
    for (int i = 0; i < 3; i++) {
        sys_args_train(&args, model_path, path, "epochs");
        sys_args_add(&args, "--batch-size 1 --max-seq-length 24 --num-train-epochs 2 --learning-rate 1e-3"
                            " --lr-scheduler-type linear --warmup-steps 0 --compute-threads 1 --eval-fraction 0"
                            " --save-steps 0.2");
        sys_args_word(&args, "--gradient-accumulation-steps=%s", sizes[i]);
        sys_args_add(&args, i > 0 ? "--resume latest" : "");
        if (drive) {
            sys_args_drive(&args, "epochs-drive-0", "32MiB");
        }
        if (i < 2) {
            run_one_step();
        } else {
            sys_run(&args, &process);
        }
    }
    expect(0, "16 sequences were taken in 2 steps, and what is left of --num-train-epochs 2 takes 23 steps of 3");
    CHECK(said("resumed at step 2 of 25 from ") && said("\nstep 25/25 | "));
    CHECK(said("  the run       23 steps left, after step 2 of 25, 2 epochs of 14 steps; "));
    CHECK(holds("epochs/plan.txt", " a step, 23 steps left, after step 2 of 25, 2 epochs of 14 steps\n"));
    CHECK(holds("epochs/checkpoint-25/trainer_state.json", "\"cursor\": 82,"));
    CHECK(files_exist("epochs/checkpoint-5") && !files_exist("epochs/checkpoint-6"));
    char *const curve = sys_curve(test_path("epochs"), "step");
    CHECK(fabs(sys_metric(curve, 3, "learning_rate") / peak - 23 / 28.0) < 1e-12);
    CHECK(fabs(sys_metric(curve, 25, "learning_rate") / peak - 1 / 28.0) < 1e-12);
    free(curve);
    remove_run("epochs");
}

/* A damaged checkpoint is reported and not loaded. */
static void test_damage(void) {
    const char *const copy = test_path("damaged");
    files_copy_folder("expected/checkpoint-4", copy);
    files_patch("damaged/optimizer.safetensors", -5, "\1", 1);
    begin("from-damaged", 0, "");
    sys_args_word(&args, "--resume=%s", copy);
    sys_run(&args, &process);
    expect(1, "optimizer.safetensors");
    remove_run("from-damaged");
    files_remove_folder(copy);
}

/* A stop after the last step leaves its evaluation out, says so, and a resume makes it. The machine decides whether the
 * stop comes in time. */
static void test_stop_at_end(void) {
    begin("late", 0, "");
    sys_args_word(&args, "--eval-data=%s", text_path); /* instead of a tenth of it */
    sys_interrupt(&args, &process, "\nsaved ", SIGTERM);
    const bool evaluated = sys_said(&process, "\neval at step 8 ");
    if (evaluated == sys_said(&process, "stopped by SIGTERM after step 8 of 8, before its evaluation; ")) {
        sys_complain(&process, "a stop after the last step");
    }
    begin("late", 0, "");
    sys_args_add(&args, "--resume latest");
    sys_args_word(&args, "--eval-data=%s", text_path);
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.out, "held-out loss ") != NULL);
    remove_run("late");
}

int main(void) {
    model_path = sys_write_model("llama");
    text_path = sys_write_text(24000);
    make_expected("");
    test_named_checkpoints();
    test_chains();
    test_other_placements();
    test_total_limit();
    test_refusals();
    test_changed_options();
    test_other_folder();
    test_old_run();
    test_damage();
    test_epochs(false);
    test_epochs(true);
    test_other_format();
    test_stop_at_end();
    make_expected(" --dtype bf16 --moments q8");
    test_named_checkpoints();
    if (test_takes(0, 3)) { /* `make test`: at most one of these and those of the last run */
        test_chains();
    }
    make_expected(" --freeze layers.0 --freeze *.q_proj.weight --group *.k_proj.weight:lr=0.1x "
                  "--group *norm.weight:weight_decay=0.5 --neftune-noise-alpha 5 --label-smoothing-factor 0.1 "
                  "--z-loss-coef 1e-3");
    test_named_checkpoints();
    if (test_takes(1, 3)) {
        test_chains();
    }
    free(expected_steps);
    free(expected_evals);
    return test_end();
}
