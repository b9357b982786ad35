/* A run against transformers' own Trainer (tests/golden/trainer.json): the same options, by the same names, give the
 * same rates, losses, norms and epochs over 20 steps, with the Trainer's decay groups, a warmup, micro-batches of
 * unequal rows and epochs that end with a step that is not full. Also which runs of earlier versions go on as they
 * began. */
#include "base/json.h"
#include "engine/hf/hf.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 20, ROWS = 57, STEPS_PER_EPOCH = 10, ROWS_PER_STEP = 6 };

static json_t *golden;
static struct sys_args args;
static struct sys_process process;

static double number(const char *key, size_t idx) {
    const json_t *const value = json_array_get(json_object_get(golden, key), idx);
    CHECK(json_is_number(value));
    return json_number_value(value);
}

/* Writes a file for each row, so that each is a document. */
static void write_rows(void) {
    size_t idx, at;
    const json_t *row, *id;
    files_make_folder("rows");
    json_array_foreach(json_object_get(golden, "rows"), idx, row) {
        unsigned char bytes[64];
        CHECK(json_array_size(row) <= sizeof bytes);
        json_array_foreach(row, at, id) {
            bytes[at] = (unsigned char)json_integer_value(id);
        }
        files_write(test_pathf("rows/%03zu", idx), bytes, json_array_size(row));
    }
    CHECK(idx == ROWS);
}

/* The run of the golden file; an option that `more` has is left out. */
static void begin(const char *output, const char *more) {
    const char *name;
    json_t *value;
    sys_args_begin(&args, "train");
    sys_args_word(&args, "--model=tests/golden/%s", json_string_value(json_object_get(golden, "model")));
    sys_args_word(&args, "--data=%s", test_path("rows"));
    sys_args_word(&args, "--output_dir=%s", test_path(output));
    sys_args_word(&args, "--max_seq_length=%d", (int)json_integer_value(json_object_get(golden, "seq")));
    sys_args_add(&args, "--data-format bytes --packing pad --data-order sequential --eval-fraction 0");
    json_object_foreach(json_object_get(golden, "options"), name, value) {
        if (strstr(more, name) == NULL) {
            sys_args_word(&args, "--%s=%s", name, json_string_value(value));
        }
    }
    sys_args_add(&args, more);
}

static char *run(const char *output, const char *more) {
    begin(output, more);
    sys_run_well(&args, &process);
    return sys_curve(test_path(output), "step");
}

/* The largest difference of a run's losses from the Trainer's. */
static double apart(const char *curve) {
    double worst = 0;
    for (unsigned step = 0; step < STEPS; step++) {
        const double loss = sys_metric(curve, step + 1, "loss");
        worst = fmax(worst, isnan(loss) ? INFINITY : fabs(loss - number("losses", step)));
    }
    return worst;
}

static void test_same(void) {
    char *curve = run("same", "--save-steps 9");
    double worst_norm = 0;
    for (unsigned step = 0; step < STEPS; step++) {
        const double rate = sys_metric(curve, step + 1, "learning_rate");
        const double norm = sys_metric(curve, step + 1, "grad_norm");
        CHECK(fabs(rate - number("learning_rates", step)) < 1e-15);
        CHECK(sys_metric(curve, step + 1, "epoch") == number("epochs", step));
        CHECK(sys_metric(curve, step + 1, "steps_per_epoch") == STEPS_PER_EPOCH);
        worst_norm = fmax(worst_norm, fabs(norm - number("grad_norms", step)));
    }
    printf("losses within %.1e of the Trainer's, norms within %.1e\n", apart(curve), worst_norm);
    CHECK(apart(curve) < 1e-5 && worst_norm < 1e-5);
    CHECK(sys_curve_from(curve, STEPS + 1)[0] == '\0');
    free(curve);
    /* The comparison would see other decay groups and another warmup. */
    curve = run("no-decay", "--no-decay-embeddings");
    CHECK(apart(curve) > 1e-4);
    free(curve);
    curve = run("no-warmup", "--warmup_steps=1");
    CHECK(apart(curve) > 1e-4);
    free(curve);
}

/* ---- epochs ----------------------------------------------------------------------------------------- */

/* The targets of rows from `first` up to `past`, which count over all epochs. */
static double targets(size_t first, size_t past) {
    double sum = 0;
    for (size_t i = first; i < past; i++) {
        sum += (double)json_array_size(json_array_get(json_object_get(golden, "rows"), i % ROWS)) - 1;
    }
    return sum;
}

/* An epoch trains every row once; its last step has three rows. Half an epoch is half of its steps. */
static void test_epochs(void) {
    char *curve = sys_curve(test_path("same"), "step");
    CHECK(sys_metric(curve, STEPS_PER_EPOCH - 1, "tokens") == targets(48, 54));
    CHECK(sys_metric(curve, STEPS_PER_EPOCH, "tokens") == targets(54, ROWS));
    CHECK(sys_metric(curve, STEPS_PER_EPOCH + 1, "tokens") == targets(0, ROWS_PER_STEP));
    CHECK(sys_metric(curve, STEPS, "tokens_seen") == 2 * targets(0, ROWS));
    free(curve);
    curve = run("half", "--num_train_epochs=0.5");
    CHECK(!isnan(sys_metric(curve, 5, "loss")) && sys_curve_from(curve, 6)[0] == '\0');
    free(curve);
    curve = run("count", "--max-steps 11"); /* a number of steps has epochs too */
    CHECK(sys_metric(curve, STEPS_PER_EPOCH, "tokens") == targets(54, ROWS) && sys_curve_from(curve, 12)[0] == '\0');
    free(curve);
}

/* A run that began when steps took rows of two epochs goes on with that: 2 * 57 rows are 19 whole steps. */
static void test_old_run(void) {
    files_copy_folder("same/checkpoint-9", test_path("old"));
    files_replace_text("old/trainer_state.json", "\"format_version\": 4", "\"format_version\": 3");
    files_replace_text("old/trainer_state.json", "\"checksum\"", "\"unknown\""); /* they had none */
    begin("of-old", "--save-steps 18");
    sys_args_word(&args, "--resume=%s", test_path("old"));
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.err, "resumed at step 9 of 19") != NULL);
    char *const curve = sys_curve(test_path("of-old"), "step");
    CHECK(sys_metric(curve, 10, "tokens") == targets(54, 60) && sys_curve_from(curve, STEPS)[0] == '\0');
    CHECK(sys_metric(curve, 19, "tokens") == targets(108, 114));
    free(curve);
}

/* ---- log lines -------------------------------------------------------------------------------------- */

/* A line has the mean loss of the steps since the last one, as a line of the Trainer's log has. A number below 1 is a
 * share of all steps, rounded up: 0.16 of 20 steps is every 4th, 0.41 every 9th. */
static void test_log_lines(void) {
    begin("lines", "--logging_steps=0.16 --save_steps=0.41");
    sys_run_well(&args, &process);
    CHECK(files_exist(test_path("lines/checkpoint-9")) && files_exist(test_path("lines/checkpoint-18")) &&
          !files_exist(test_path("lines/checkpoint-8")));
    const size_t count = json_array_size(json_object_get(golden, "logged_every_4"));
    CHECK(count == STEPS / 4);
    for (size_t i = 0; i < count; i++) {
        const char *const line = strstr(process.outcome.err, plain_pathf("step %zu/20 | loss ", 4 * (i + 1)));
        double loss = 0;
        CHECK(line != NULL && sscanf(line, "step %*u/20 | loss %lf", &loss) == 1);
        CHECK(fabs(loss - number("logged_every_4", i)) < 6e-5); /* it has four places */
        CHECK(strstr(line, plain_pathf(" | epoch %.4g | ", number("epochs", 4 * i + 3))) != NULL);
    }
    CHECK(strstr(process.outcome.err, "step 3/20") == NULL && sys_said(&process, ": 20 steps, 10 an epoch\n"));
}

/* ---- defaults --------------------------------------------------------------------------------------- */

/* Given weights begin with a small rate and a warmup, fresh ones do not; a resumed run keeps what it chose. */
static void test_defaults(void) {
    static const char words[] =
        "--data-format bytes --packing pad --max-seq-length 29 --eval-fraction 0 --max-steps 40 --save-steps 20";
    const char *const model = plain_pathf("tests/golden/%s", json_string_value(json_object_get(golden, "model")));
    char *curves[2];
    for (int i = 0; i < 2; i++) {
        sys_args_train(&args, model, test_path("rows"), i == 0 ? "given" : "fresh");
        sys_args_add(&args, words);
        sys_args_add(&args, i == 0 ? "" : "--from-scratch");
        sys_run_well(&args, &process);
        CHECK(strstr(process.outcome.err, i == 0 ? "weights are given" : "weights are fresh") != NULL);
        curves[i] = sys_curve(test_path(i == 0 ? "given" : "fresh"), "step");
    }
    /* 3 % of 40 steps, rounded down, is one. */
    CHECK(sys_metric(curves[0], 1, "learning_rate") == 0);
    CHECK(sys_metric(curves[0], 2, "learning_rate") == 2e-5 && sys_metric(curves[1], 1, "learning_rate") == 1e-4);
    sys_args_train(&args, model, test_path("rows"), "on");
    sys_args_add(&args, words);
    sys_args_word(&args, "--resume=%s", test_path("given/checkpoint-20"));
    sys_run_well(&args, &process);
    char *const on = sys_curve(test_path("on"), "step");
    CHECK(strstr(process.outcome.err, "warning") == NULL);
    CHECK(strcmp(on, sys_curve_from(curves[0], 21)) == 0);
    free(on);
    free(curves[0]);
    free(curves[1]);
}

/* The log names what the run chose, not what is given. A run of few steps has no chosen warmup, whose first step would
 * change nothing; a share that is given is rounded up, as the Trainer rounds it. */
static void test_choices(void) {
    static const struct {
        const char *name, *words, *says;
        double first_rate;
    } cases[] = {
        {"own-rate", "--learning-rate 1e-4 --max-steps 40",
         "\nwarmup over 1 step: chosen because weights are given (--warmup-steps)\n", 0},
        {"own-warmup", "--warmup-steps 0 --max-steps 1",
         "\nlearning rate 2e-05: chosen because weights are given (--learning-rate)\n", 2e-5},
        {"short", "--max-steps 33", "\nlearning rate 2e-05, warmup over 0 steps: chosen because", 2e-5},
        {"share", "--warmup-ratio 0.03 --max-steps 1", "\nlearning rate 2e-05: chosen because", 0},
        {"decay", "--lr-scheduler-type warmup_stable_decay --decay-steps 40 --max-steps 40",
         "\nlearning rate 2e-05, warmup over 0 steps: chosen because", 2e-5},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        sys_args_train(&args, plain_pathf("tests/golden/%s", json_string_value(json_object_get(golden, "model"))),
                       test_path("rows"), cases[i].name);
        sys_args_add(&args, "--data-format bytes --packing pad --max-seq-length 29 --eval-fraction 0");
        sys_args_add(&args, cases[i].words);
        sys_run_well(&args, &process);
        CHECK(strstr(process.outcome.err, cases[i].says) != NULL);
        char *const curve = sys_curve(test_path(cases[i].name), "step");
        CHECK(sys_metric(curve, 1, "learning_rate") == cases[i].first_rate);
        free(curve);
    }
}

/* ---- decay groups ----------------------------------------------------------------------------------- */

/* A matrix decays, embeddings too; norms and biases do not. */
static void test_decay_groups(void) {
    const char *name;
    const json_t *names;
    json_object_foreach(json_object_get(golden, "decayed"), name, names) {
        struct ox_hf_folder *folder = NULL;
        uint32_t decayed = 0;
        REQUIRE_OK(ox_hf_open(plain_pathf("tests/golden/%s", name), false, &folder));
        const struct ox_model *const model = ox_hf_model(folder);
        for (uint32_t i = 0; i < model->tensor_count; i++) {
            decayed += model->tensors[i].decay;
        }
        CHECK(decayed == json_array_size(names));
        for (size_t i = 0; i < json_array_size(names); i++) {
            const int64_t idx = ox_model_find_tensor(model, json_string_value(json_array_get(names, i)));
            CHECK(idx >= 0 && model->tensors[idx].decay);
        }
        ox_hf_close(&folder);
    }
    CHECK(json_object_size(json_object_get(golden, "decayed")) >= 9);
}

int main(void) {
    REQUIRE_OK(ox_json_load("tests/golden/trainer.json", 1 << 20, &golden));
    write_rows();
    test_same();
    test_epochs();
    test_old_run();
    test_log_lines();
    test_defaults();
    test_choices();
    test_decay_groups();
    json_decref(golden);
    return test_end();
}
