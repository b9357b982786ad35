/* --dpo as a user meets it, on the model, rows and results of tests/golden/make/golden_dpo.py: losses, norms, rewards
 * and log-probabilities of ten steps are those of TRL's DPOTrainer, of several losses and forms of rows, and with an
 * adapter; the same bits in every home, on ranks, in every --dtype, after interruptions; evaluation sets; what is
 * refused. */
#include "base/file.h"
#include "base/json.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_mpi.h"
#include "tests/kit/test.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 10, USUAL_STEPS = 12 };
static const char common[] = "--dpo --max-seq-length 47 --per-device-train-batch-size 2 --compute-threads 1 "
                             "--optimizer-threads 1 --host-mem 64MiB";
static const char as_trl[] = "--data-order sequential --max-steps 10 --gradient-accumulation-steps 2 --eval-fraction 0 "
                             "--learning-rate 2e-3 --lr-scheduler-type constant --weight-decay 0 --adam-beta2 0.999";
static const char usual[] = "--gradient-accumulation-steps 2 --sum-groups 2 --learning-rate 1e-3 "
                            "--eval-fraction 0.2 --eval-steps 6 --save-total-limit 0";

static struct sys_args args;
static struct sys_process process;

static void begin(const char *rows, const char *output, const char *words) {
    sys_args_begin(&args, "train");
    sys_args_add(&args, "--model tests/golden/dpo");
    sys_args_word(&args, "--data=%s", rows);
    sys_args_word(&args, "--output=%s", test_path(output));
    sys_args_add(&args, common);
    sys_args_add(&args, words);
}

/* The usual run, of so many steps. */
static void begin_usual(const char *output, int steps) {
    begin("tests/golden/dpo/texts.jsonl", output, usual);
    sys_args_word(&args, "--max-steps=%d", steps);
}

static void train(const char *output, int steps, const char *more) {
    begin_usual(output, steps);
    sys_args_add(&args, more);
    sys_run_well(&args, &process);
}

/* The lines of a type in metrics.jsonl, as a list of objects. */
static json_t *lines_of(const char *output, const char *type) {
    char *const text = files_read(test_pathf("%s/metrics.jsonl", output), NULL);
    json_t *const lines = json_array();
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        json_t *const row = json_loads(line, 0, NULL);
        if (strcmp(json_string_value(json_object_get(row, "type")), type) == 0) {
            json_array_append(lines, row);
        }
        json_decref(row);
    }
    free(text);
    return lines;
}

/* ---- beside TRL -------------------------------------------------------------------------------------------------- */

static void check_run(const char *name, const json_t *of) {
    static const struct {
        const char *key;
        double limit;
    } keys[] = {{"loss", 2e-5}, {"grad_norm", 2e-4}, {"rewards/chosen", 2e-5}, {"rewards/rejected", 2e-5},
                {"rewards/margins", 4e-5}, {"rewards/accuracies", 0}, {"logps/chosen", 6e-5},
                {"logps/rejected", 6e-5}};
    char rows[128];
    snprintf(rows, sizeof rows, "tests/golden/dpo/%s.jsonl", json_string_value(json_object_get(of, "rows")));
    begin(rows, name, as_trl);
    sys_args_add(&args, json_string_value(json_object_get(of, "options")));
    if (json_is_true(json_object_get(of, "adapter"))) {
        sys_args_add(&args, "--adapter tests/golden/dpo/adapter");
    }
    sys_run_well(&args, &process);
    json_t *const steps = lines_of(name, "step");
    printf("%s\n", name);
    CHECK(json_array_size(steps) == STEPS);
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        double worst = 0;
        for (size_t i = 0; i < STEPS; i++) {
            const double want = json_number_value(json_array_get(json_object_get(of, keys[k].key), i));
            const json_t *const got = json_object_get(json_array_get(steps, i), keys[k].key);
            CHECK(json_is_number(got));
            worst = fmax(worst, fabs(json_number_value(got) - want));
        }
        printf("  %-20s %9.2e  of %9.2e\n", keys[k].key, worst, keys[k].limit);
        CHECK(worst <= keys[k].limit);
    }
    json_decref(steps);
    files_remove_folder(test_path(name));
}

/* A line of the log has the means since the last one, as TRL's. */
static void check_line(void) {
    begin("tests/golden/dpo/texts.jsonl", "line", as_trl);
    sys_args_add(&args, "--logging-steps 5");
    sys_run_well(&args, &process);
    json_t *const steps = lines_of("line", "step");
    double margin = 0, right = 0;
    for (size_t i = 5; i < STEPS; i++) {
        margin += json_number_value(json_object_get(json_array_get(steps, i), "rewards/margins")) / 5;
        right += json_number_value(json_object_get(json_array_get(steps, i), "rewards/accuracies")) / 5;
    }
    CHECK(sys_said(&process, plain_pathf("rewards/accuracies %.4f | rewards/margins %.4f", right, margin)));
    json_decref(steps);
    files_remove_folder(test_path("line"));
}

/* How much of the sequences is padding is said, with the length that cuts none of the answers. */
static void check_padding(void) {
    sys_args_begin(&args, "tokenize");
    sys_args_add(&args, "--dpo --model tests/golden/dpo --data tests/golden/dpo/texts.jsonl --max-seq-length 512");
    sys_run_well(&args, &process);
    const long enough = sys_number_after(process.outcome.err, "the rest is padding, and --max-seq-length ", 0);
    CHECK(enough > 1);
    for (long i = 0; i < 2 && enough > 1; i++) {
        args.count--;
        sys_args_word(&args, "%ld", enough - i);
        sys_run_well(&args, &process);
        CHECK(sys_said(&process, "longer than --max-seq-length") == (i == 1));
        CHECK(!sys_said(&process, "the rest is padding"));
    }
}

static void test_beside_trl(void) {
    check_padding();
    check_line();
    json_t *golden = NULL, *of;
    const char *name;
    REQUIRE_OK(ox_json_load("tests/golden/dpo/golden.json", 1 << 20, &golden));
    json_object_foreach(json_object_get(golden, "runs"), name, of) {
        check_run(name, of);
    }
    json_decref(golden);
}

/* ---- the same bits ----------------------------------------------------------------------------------------------- */

/* Compares the rewards and log-probabilities of all lines of a type, which sys_same_runs does not. */
static bool same_parts(const char *a, const char *b, const char *type) {
    json_t *const left = lines_of(a, type), *const right = lines_of(b, type);
    bool same = json_array_size(left) == json_array_size(right) && json_array_size(left) > 0;
    size_t idx, parts = 0;
    json_t *line, *value;
    const char *key;
    json_array_foreach(left, idx, line) {
        json_object_foreach(line, key, value) {
            const bool is_part = strchr(key, '/') != NULL;
            parts += is_part;
            same = same && (!is_part || json_equal(value, json_object_get(json_array_get(right, idx), key)));
        }
    }
    same = same && parts == 6 * json_array_size(left);
    json_decref(left);
    json_decref(right);
    return same;
}

static void check_same(const char *name, const char *words, const char *more, const char *drive, unsigned processes) {
    static struct sys_args launched;
    begin_usual(name, USUAL_STEPS);
    sys_args_add(&args, words);
    sys_args_add(&args, more);
    if (drive != NULL) {
        sys_args_drive(&args, drive, "32MiB");
    }
    if (processes > 1) {
        sys_mpi_begin(&launched, processes, &args, SYS_MPI_END_OTHERS);
    }
    sys_run_well(processes > 1 ? &launched : &args, &process);
    CHECK(sys_same_runs("plain", name, USUAL_STEPS));
    CHECK(same_parts("plain", name, "step") && same_parts("plain", name, "eval"));
    files_remove_folder(test_path(name));
    if (drive != NULL) {
        files_remove_folder(test_path(drive));
    }
}

static void test_places(void) {
    static const char *const kinds[] = {"--dtype fp32", "--dtype bf16", "--dtype fp16", "--lora-r 4 --lora-alpha 8",
                                        "--dtype fp16 --lora-r 4 --group *.lora_B.weight:lr=4x --dpo-loss robust "
                                        "--dpo-label-smoothing 0.1 --lr-scheduler-type cosine",
                                        "--freeze layers.0 --dpo-loss ipo --dpo-sft-coef 0.5"};
    static const struct {
        const char *words, *drive;
        unsigned processes;
    } places[] = {{"--device-mem 8MiB", NULL, 1},
                  {"--weights-tier nvme --state-tier nvme", "drive", 1},
                  {"--ranks 2", NULL, 1},
                  {"--mesh dp=2,pp=2", NULL, 1},
                  {"--device-mem 8MiB --ranks 2 --sharding full_shard", "drive", 1},
                  {"--ranks 2", "drive", 2}};
    enum { PLACES = sizeof places / sizeof *places };
    const char *const missing = sys_mpi_missing();
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        train("plain", USUAL_STEPS, kinds[i]);
        for (unsigned k = 0; k < PLACES; k++) {
            if (test_takes(i * PLACES + k, 5) && (places[k].processes == 1 || missing == NULL)) {
                check_same("placed", kinds[i], places[k].words, places[k].drive, places[k].processes);
            }
        }
        files_remove_folder(test_path("plain"));
    }
}

/* Ended by a signal at its start, which is within the reference's pass or right behind it, and killed later. */
static void test_interrupted(void) {
    train("plain", USUAL_STEPS, "");
    for (int i = 0; i < 4; i++) {
        const int signal_number = i % 2 == 0 ? SIGTERM : SIGKILL;
        begin_usual("cut", USUAL_STEPS);
        sys_args_leash(&args);
        if (i < 3) {
            sys_args_drive(&args, "drive", "32MiB");
        }
        sys_start(&args, &process);
        CHECK(sys_await(&process, i == 0 || i == 3 ? "starting from" : "step 5/"));
        kill(process.pid, signal_number);
        sys_wait(&process);
        begin_usual("cut", USUAL_STEPS);
        if (i < 3) {
            sys_args_drive(&args, "drive", "32MiB");
        }
        sys_args_add(&args, "--resume-from-checkpoint latest");
        sys_run_well(&args, &process);
        CHECK(sys_same_runs("plain", "cut", USUAL_STEPS));
        files_remove_folder(test_path("cut"));
        files_remove_folder(test_path("drive"));
    }
    /* What an earlier pass left of the same weights is used, the rest is added, and the bits are the same. */
    train("short", 3, "--eval-windows 2");
    files_make_folder("cut");
    size_t bytes = 0;
    char *const part = files_read("short/reference.bin", &bytes);
    files_write("cut/reference.bin", part, bytes);
    train("cut", USUAL_STEPS, "");
    CHECK(sys_said(&process, "reference: log-probabilities of "));
    CHECK(sys_same_runs("plain", "cut", USUAL_STEPS));
    /* What was computed in another --dtype is not, while nothing has moved yet. */
    train("narrow", USUAL_STEPS, "--dtype bf16");
    files_make_folder("other");
    files_write("other/reference.bin", part, bytes);
    free(part);
    train("other", USUAL_STEPS, "--dtype bf16");
    CHECK(sys_same_runs("narrow", "other", USUAL_STEPS));
    /* A run goes on from a checkpoint in another folder, with the reference of the one that made it. */
    train("fork", USUAL_STEPS + 1, plain_pathf("--resume-from-checkpoint %s", test_pathf("plain/checkpoint-%d",
                                                                                         USUAL_STEPS)));
    CHECK(ox_path_is_file(test_path("fork/reference.bin")) && !sys_said(&process, "reference: log-prob"));
    files_remove_folder(test_path("fork"));
    files_remove_folder(test_path("cut"));
    files_remove_folder(test_path("short"));
}

/* After test_interrupted: one of two processes is killed, in the reference's pass or later, which ends both; they go on
 * from their stores. */
static void test_processes_killed(void) {
    static struct sys_args launched;
    for (int i = 0; i < 2 && sys_mpi_missing() == NULL; i++) {
        for (int part = 0; part < 2; part++) {
            begin_usual("cut", USUAL_STEPS);
            sys_args_add(&args, "--ranks 2");
            sys_args_add(&args, part == 0 ? "" : "--resume-from-checkpoint latest");
            sys_args_drive(&args, "drive", "32MiB");
            sys_mpi_begin(&launched, 2, &args, SYS_MPI_END_OTHERS);
            if (part == 0) {
                struct sys_mpi_run run;
                sys_start(&launched, &process);
                CHECK(sys_mpi_find(&process, 2, &run) && sys_await(&process, i == 0 ? "starting from" : "step 5/"));
                kill(run.pids[i], SIGKILL);
                sys_mpi_wait(&process, &run, 0);
                CHECK(process.outcome.exit_status != 0);
            } else {
                sys_run_well(&launched, &process);
            }
        }
        CHECK(sys_same_runs("plain", "cut", USUAL_STEPS));
        files_remove_folder(test_path("cut"));
        files_remove_folder(test_path("drive"));
    }
}

/* ---- evaluation, reports ----------------------------------------------------------------------------------------- */

static void test_sets(void) {
    begin("tests/golden/dpo/chats.jsonl", "sets",
          "--max-steps 4 --eval-steps 2 --report-to all --dpo-sft-coef 0.5 "
          "--eval-data dev=tests/golden/dpo/texts.jsonl,odd=tests/golden/dpo/implicit.jsonl");
    sys_run_well(&args, &process);
    json_t *const evals = lines_of("sets", "eval");
    const json_t *const last = json_array_get(evals, json_array_size(evals) - 1);
    static const char *const keys[] = {"rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins",
                                       "logps/chosen", "logps/rejected", "nll_loss"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const double all = json_number_value(json_object_get(last, plain_pathf("eval_%s", keys[i])));
        const double dev = json_number_value(json_object_get(last, plain_pathf("eval_dev_%s", keys[i])));
        const double odd = json_number_value(json_object_get(last, plain_pathf("eval_odd_%s", keys[i])));
        CHECK(fabs(all - (32 * dev + 32 * odd) / 64) < 1e-9 && dev != odd); /* as many pairs of each */
    }
    CHECK(json_is_null(json_object_get(last, "perplexity")));
    json_decref(evals);
    CHECK(sys_said(&process, "rewards/accuracies ") && !sys_said(&process, "perplexity"));
    char *const gauges = files_read("sets/metrics.prom", NULL);
    CHECK(strstr(gauges, "\noffload_rewards_margins ") != NULL && strstr(gauges, "\noffload_eval_rewards_chosen "));
    CHECK(strstr(gauges, "\noffload_eval_dev_logps_chosen ") != NULL);
    free(gauges);
}

/* ---- what is refused --------------------------------------------------------------------------------------------- */

/* ---- eval -------------------------------------------------------------------------------------------------------- */

static json_t *evaluate(const char *words) {
    json_t *result = NULL;
    sys_args_begin(&args, "eval");
    sys_args_add(&args, "--dpo --data=tests/golden/dpo/texts.jsonl --format=json --max-seq-length 47 "
                        "--per-device-train-batch-size 2 --compute-threads 1 --dpo-sft-coef 0.5");
    sys_args_add(&args, words);
    sys_run_well(&args, &process);
    result = json_loads(process.outcome.out, 0, NULL);
    CHECK(result != NULL);
    return result;
}

/* What a run says of its evaluation set, by the checkpoint of that step and the model that the run began with, which is
 * found by the run's folder; and of a model beside itself. */
static void test_eval(void) {
    static const char *const keys[] = {"loss",           "rewards/chosen", "rewards/rejected", "rewards/accuracies",
                                       "rewards/margins", "logps/chosen",  "logps/rejected",   "nll_loss"};
    for (int adapts = 0; adapts <= 1; adapts++) {
        begin("tests/golden/dpo/implicit.jsonl", "run",
              "--max-steps 4 --eval-steps 0 --eval-windows 0 --dpo-sft-coef 0.5 "
              "--eval-data tests/golden/dpo/texts.jsonl");
        sys_args_add(&args, adapts ? "--lora-r 4 --learning-rate 2e-2" : "--learning-rate 2e-3");
        sys_run_well(&args, &process);
        json_t *const evals = lines_of("run", "eval");
        const json_t *const said = json_array_get(evals, json_array_size(evals) - 1);
        char words[OX_PATH_BYTES];
        for (int i = 0; i < 3; i++) {
            static const char *const more[] = {"", "--reference tests/golden/dpo --ranks 2",
                                               "--reference tests/golden/dpo --device-mem 8MiB"};
            snprintf(words, sizeof words, "--model %s %s", test_path("run/checkpoint-4"), more[i]);
            json_t *const got = evaluate(words);
            for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
                const json_t *const want = json_object_get(said, plain_pathf("eval_%s", keys[k]));
                const double value = json_number_value(json_object_get(got, keys[k]));
                if (!json_is_number(want) || value != json_number_value(want)) {
                    printf("%s: %.17g, the run said %.17g\n", keys[k], value, json_number_value(want));
                    CHECK(false);
                }
            }
            CHECK(json_integer_value(json_object_get(got, "pairs")) > 20);
            json_decref(got);
        }
        json_decref(evals);
        files_remove_folder(test_path("run"));
    }
    json_t *const same = evaluate("--model tests/golden/dpo --reference tests/golden/dpo");
    CHECK(json_number_value(json_object_get(same, "rewards/margins")) == 0);
    CHECK(fabs(json_number_value(json_object_get(same, "loss")) - log(2) -
               0.5 * json_number_value(json_object_get(same, "nll_loss"))) < 1e-6);
    json_decref(same);
    sys_args_begin(&args, "eval");
    sys_args_add(&args, "--dpo --model tests/golden/dpo --data tests/golden/dpo/texts.jsonl");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 2 && sys_said(&process, "give --reference DIR"));
}

static void refuse(const char *rows, const char *words, const char *said) {
    begin(rows, "refused", words);
    sys_run(&args, &process);
    if (process.outcome.exit_status != 2 || !sys_said(&process, said)) {
        sys_complain(&process, said);
    }
}

static void test_refused(void) {
    static const struct {
        const char *row, *said;
    } rows[] = {
        {"{\"prompt\": \"a\", \"chosen\": \"b\"}", "rows.jsonl:2: \"rejected\" is missing"},
        {"{\"prompt\": \"a\", \"rejected\": \"b\", \"chosen\": null}", "rows.jsonl:2: \"chosen\" is null"},
        {"{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": [{\"role\": \"user\", \"content\": \"b\"}]}",
         "rows.jsonl:2: \"rejected\" must be a text"},
        {"{\"prompt\": \"a\", \"chosen\": [], \"rejected\": []}", "\"chosen\" must be a text or a list of at least"},
        {"{\"prompt\": [1], \"chosen\": \"b\", \"rejected\": \"c\"}", "\"prompt\" must be a text, as the answers"},
        {"{\"chosen\": [{\"role\": \"user\", \"content\": \"b\"}], \"rejected\": [{\"role\": \"user\", \"content\": "
         "\"c\"}]}", "begin with different messages"},
        {"{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\", \"label\": false}", "is a bad example"},
        {"{\"text\": \"a\"}", "\"chosen\" is missing; --dpo trains on rows of"},
        {"7", "a row must be an object"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        files_write_text("rows.jsonl", plain_pathf("{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n%s\n",
                                                   rows[i].row));
        refuse(test_path("rows.jsonl"), "", rows[i].said);
    }
    files_write_text("rows.jsonl", "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"b\"}\n{\"prompt\": \"a\"}\n"
                     "{\"prompt\": \"a\", \"chosen\": \"\", \"rejected\": \"c\"}\n"
                     "{\"prompt\": \"Hi\", \"chosen\": [{\"role\": \"assistant\", \"content\": \"b\"}], \"rejected\": "
                     "[{\"role\": \"assistant\", \"content\": \"c\"}]}\n");
    begin(test_path("rows.jsonl"), "skipped", "--max-steps 2 --skip-bad-rows 1 --eval-fraction 0");
    sys_run_well(&args, &process);
    CHECK(sys_said(&process, "1 row has the same answer twice") && sys_said(&process, "1 row has an empty answer"));
    CHECK(sys_said(&process, "left out (1 of at most 1)") && sys_said(&process, "6 documents"));
    static const struct {
        const char *words, *said;
    } options[] = {{"--train-on last", "all of an answer counts"}, {"--column-text t", "rows have \"prompt\""},
                   {"--packing pack", "--packing: with --dpo"}, {"--overlong split", "--overlong split"},
                   {"--z-loss-coef 1e-4", "--z-loss-coef"}, {"--label-smoothing-factor 0.1", "--dpo-label-smoothing"},
                   {"--dpo-loss hinge --dpo-label-smoothing 0.1", "is for --dpo-loss sigmoid and robust"},
                   {"--dpo-loss nll", "leave it out"},
                   {"--precompute-ref-log-probs false", "is so with --dpo"},
                   {"--ref-model x", "is what the run begins with"}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        refuse("tests/golden/dpo/texts.jsonl", options[i].words, options[i].said);
    }
    refuse(sys_write_text(4000), "", "--dpo trains on JSON lines");
    static const struct {
        const char *words, *said;
    } alone[] = {{"", "`offload train --dpo` trains on it as one"}, {"--beta 0.2", "means nothing without --dpo"},
                 {"--dpo --batch-size 129", "at most 128"}};
    for (size_t i = 0; i < sizeof alone / sizeof *alone; i++) {
        sys_args_train(&args, "tests/golden/dpo", "tests/golden/dpo/texts.jsonl", "refused");
        sys_args_add(&args, alone[i].words);
        sys_run(&args, &process);
        if (process.outcome.exit_status != 2 || !sys_said(&process, alone[i].said)) {
            sys_complain(&process, alone[i].said);
        }
    }
    /* A reference that is damaged, or of other rows, when the weights have moved on. */
    train("moved", 4, "");
    begin("tests/golden/dpo/implicit.jsonl", "moved", usual);
    sys_args_add(&args, "--max-steps 6 --resume-from-checkpoint latest");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 2 && sys_said(&process, "lacks the reference's log-probabilities"));
    files_write_text("moved/reference.bin", "damaged");
    begin_usual("moved", 6);
    sys_args_add(&args, "--resume-from-checkpoint latest");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status != 0 && sys_said(&process, "reference.bin: is damaged"));
}

int main(void) {
    test_beside_trl();
    test_places();
    test_interrupted();
    test_processes_killed();
    test_sets();
    test_eval();
    test_refused();
    return test_end();
}
