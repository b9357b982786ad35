/* A trained model and real text through the program, against PyTorch: perplexities of three texts, and thirty steps of
 * fine-tuning from the text to the saved weights. Then fine-tuning with no options but model and data, which must lower
 * the loss. Neither model nor texts are part of the project. */
#include "base/file.h"
#include "base/json.h"
#include "engine/hf/safetensors.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

enum { REFERENCE_BYTES_MAX = 1 << 20, FINETUNE_BYTES = 400000 };

static const double nll_limit = 1e-6;
/* At most about twenty times what was measured. */
static const double loss_limit = 1e-5, norm_limit = 1e-5, l2_limit = 1e-6;

static struct sys_args args;
static struct sys_process process;
static const char *model_folder;

static json_t *load_reference(const char *name) {
    json_t *json = NULL;
    const char *const path = plain_pathf("%s/%s", model_folder, name);
    REQUIRE_OK(ox_json_load(path, REFERENCE_BYTES_MAX, &json));
    return json;
}

static double number(const json_t *object, const char *key) {
    const json_t *const value = json_object_get(object, key);
    if (!json_is_number(value)) {
        printf("no number \"%s\"\n", key);
        exit(1);
    }
    return json_number_value(value);
}

static void add_data(const char *name) {
    const char *const texts = plain_pathf("%s/text", test_data_folder());
    const char *const path = plain_pathf("%s/%s", texts, name);
    sys_args_word(&args, "--data=%s", path);
}

/* ---- perplexity ------------------------------------------------------------------------------------- */

static void begin_eval(unsigned seq) {
    sys_args_begin(&args, "eval");
    sys_args_word(&args, "--model=%s", model_folder);
    sys_args_word(&args, "--seq-len=%u", seq);
    sys_args_add(&args, "--batch-size 8 --format json");
}

static void check_perplexity(const char *what, const json_t *expected) {
    sys_run_well(&args, &process);
    json_t *const said = json_loads(process.outcome.out, JSON_REJECT_DUPLICATES, NULL);
    const double error = fabs(number(said, "mean_nll") - number(expected, "mean_nll"));
    printf("  %-36s mean nll off by %.2e, perplexity %.6f\n", what, error, number(said, "perplexity"));
    CHECK(error <= nll_limit);
    CHECK(fabs(log(number(said, "perplexity")) - number(said, "mean_nll")) <= 1e-12);
    CHECK(number(said, "tokens") == number(expected, "predicted_tokens"));
    CHECK(number(said, "windows") == number(expected, "windows"));
    json_decref(said);
}

/* A window is BOS and window - 1 ids, all of which are predicted. */
static void check_bos_per_window(const json_t *expected, const char *file) {
    CHECK(number(expected, "bos_per_window") == 1);
    begin_eval((unsigned)number(expected, "window") - 1);
    add_data(file);
    sys_args_word(&args, "--max-windows=%u", (unsigned)number(expected, "windows"));
    sys_args_add(&args, "--bos-per-window");
    check_perplexity(file, expected);
}

static const char story_words[] = "--document-separator <|endoftext|> --add-bos on --add-eos off --document-mask off";

/* BOS and story, one after another as one text; windows of window + 1 ids share none. */
static void check_packing(const json_t *expected, const char *file) {
    begin_eval((unsigned)number(expected, "window"));
    add_data(file);
    sys_args_word(&args, "--max-windows=%u", (unsigned)number(expected, "windows"));
    sys_args_word(&args, "--stride=%u", (unsigned)number(expected, "window") + 1);
    sys_args_add(&args, story_words);
    check_perplexity(file, expected);
}

/* By default windows overlap in one token, so that each but the first is predicted once. The figure is of transformers
 * 5.12.1 and torch 2.14.1 in float32: the sum of cross entropies of logits of ids [128 w, 128 w + 128), for w below 60,
 * divided by 60 * 128. */
static void check_default(void) {
    json_t *const expected = json_pack("{s:f, s:i, s:i}", "mean_nll", 1.4589850103432345, "predicted_tokens", 60 * 128,
                                       "windows", 60);
    begin_eval(128);
    add_data("tinystories/val_sample.txt");
    sys_args_add(&args, "--max-windows 60");
    check_perplexity("every token once", expected);
    json_decref(expected);
}

static void check_perplexities(void) {
    json_t *const reference = load_reference("reference_perplexity.json");
    const json_t *const results = json_object_get(reference, "results");
    unsigned packings = 0, windows = 0;
    for (size_t i = 0; i < json_array_size(results); i++) {
        const json_t *const expected = json_array_get(results, i), *const mode = json_object_get(expected, "mode");
        const char *const file = json_string_value(json_object_get(expected, "file"));
        if (!test_all() && (mode == NULL ? windows : packings) > 0) {
            continue; /* `make test` takes a text of each mode */
        }
        if (mode == NULL) {
            check_bos_per_window(expected, file);
            windows++;
        } else {
            CHECK(strncmp(json_string_value(mode), "llama2c_packing:", 16) == 0);
            check_packing(expected, file);
            packings++;
        }
    }
    CHECK(windows > 0 && packings > 0);
    check_default();
    json_decref(reference);
}

/* ---- fine-tuning ------------------------------------------------------------------------------------ */

/* The first part of the text, as a file of its own. */
static const char *write_beginning(void) {
    char *text = NULL;
    size_t bytes = 0;
    const char *const texts = plain_pathf("%s/text/tinyshakespeare/input.txt", test_data_folder());
    REQUIRE_OK(ox_file_read(texts, 16 << 20, &text, &bytes));
    CHECK(bytes > FINETUNE_BYTES);
    const char *const path = files_write("beginning.txt", text, FINETUNE_BYTES);
    free(text);
    return path;
}

static void run_finetuning(const json_t *steps, const char *output) {
    sys_args_begin(&args, "train");
    sys_args_word(&args, "--model=%s", model_folder);
    sys_args_word(&args, "--data=%s", write_beginning());
    sys_args_word(&args, "--output=%s", output);
    sys_args_word(&args, "--max-steps=%zu", json_array_size(steps));
    sys_args_add(&args, "--max-seq-length 127 --bos-per-window --data-order sequential --eval-fraction 0"
                        " --batch-size 8 --learning-rate 5e-4 --lr-schedule constant --adam-beta1 0.9"
                        " --adam-beta2 0.95 --adam-epsilon 1e-8 --weight-decay 0.1 --decay-all --max-grad-norm 1"
                        " --save-dtype fp32 --logging-steps 10");
    sys_run_well(&args, &process);
}

static void compare_steps(const json_t *steps, const char *output) {
    char *const curve = sys_curve(output, "step");
    double loss_error = 0, norm_error = 0;
    for (unsigned i = 0; i < json_array_size(steps); i++) {
        const json_t *const expected = json_array_get(steps, i);
        const double loss = sys_metric(curve, i + 1, "loss"), norm = sys_metric(curve, i + 1, "grad_norm");
        CHECK(sys_metric(curve, i + 1, "tokens") == 8 * 127);
        CHECK(isfinite(loss) && isfinite(norm));
        loss_error = fmax(loss_error, fabs(loss - number(expected, "loss")));
        norm_error = fmax(norm_error, fabs(norm / number(expected, "grad_norm") - 1));
    }
    CHECK(sys_curve_from(curve, (unsigned)json_array_size(steps) + 1)[0] == '\0');
    printf("  losses of %zu steps off by %.2e, norms by %.2e\n", json_array_size(steps), loss_error, norm_error);
    CHECK(loss_error <= loss_limit);
    CHECK(norm_error <= norm_limit);
    free(curve);
}

static double l2_of(const char *path) {
    struct ox_st_file *file = NULL;
    double sum = 0;
    REQUIRE_OK(ox_st_open(path, &file));
    for (uint32_t i = 0; i < ox_st_count(file); i++) {
        const struct ox_st_entry *const entry = ox_st_entry(file, i);
        float *const values = calloc(entry->count, sizeof *values);
        REQUIRE_OK(ox_st_read_f32(file, entry, 0, entry->count, values));
        for (uint64_t k = 0; k < entry->count; k++) {
            sum += (double)values[k] * values[k];
        }
        free(values);
    }
    ox_st_close(&file);
    return sqrt(sum);
}

static void check_finetuning(void) {
    json_t *const reference = load_reference("reference.json");
    const json_t *const finetune = json_object_get(reference, "finetune"),
                       *const steps = json_object_get(finetune, "trajectory");
    CHECK(json_array_size(steps) > 0);
    const char *const output = test_path("finetuned");
    run_finetuning(steps, output);
    compare_steps(steps, output);
    const char *const weights = test_pathf("finetuned/checkpoint-%zu/model.safetensors", json_array_size(steps));
    const double error = fabs(l2_of(weights) / number(finetune, "param_l2_after") - 1);
    printf("  norm of the saved weights off by %.2e\n", error);
    CHECK(error <= l2_limit);
    json_decref(reference);
}

/* ---- defaults --------------------------------------------------------------------------------------- */

enum { ROWS_BYTES_MAX = 4 << 20 };

/* The first questions and answers of a published set, as prompts and completions: text that the model does not know. */
static const char *write_rows(void) {
    json_t *rows = NULL;
    const size_t count = test_all() ? 200 : 80;
    const char *const published = plain_pathf("%s/text/instruct/alpaca_en_demo.json", test_data_folder());
    REQUIRE_OK(ox_json_load(published, ROWS_BYTES_MAX, &rows));
    CHECK(json_array_size(rows) >= count);
    FILE *const file = fopen(test_path("rows.jsonl"), "w");
    CHECK(file != NULL);
    for (size_t i = 0; i < count; i++) {
        const json_t *const row = json_array_get(rows, i);
        json_t *const out = json_pack("{sOsO}", "prompt", json_object_get(row, "instruction"), "completion",
                                      json_object_get(row, "output"));
        CHECK(out != NULL && json_dumpf(out, file, 0) == 0 && fputc('\n', file) == '\n');
        json_decref(out);
    }
    CHECK(fclose(file) == 0);
    json_decref(rows);
    return test_path("rows.jsonl");
}

static char *tune(const char *rows, const char *name, const char *more) {
    sys_args_begin(&args, "train");
    sys_args_word(&args, "--model=%s", model_folder);
    sys_args_word(&args, "--data=%s", rows);
    sys_args_word(&args, "--output=%s", test_path(name));
    sys_args_add(&args, more);
    sys_run_well(&args, &process);
    return sys_curve(test_path(name), "step");
}

/* Beside a run whose rate is too small to change anything: no step's loss is above what the given weights have on the
 * same rows, as it is at once where a rate is too large. */
static void check_defaults(void) {
    const char *const rows = write_rows();
    char *const curve = tune(rows, "defaults", ""), *const still = tune(rows, "still", "--learning-rate 1e-12");
    double raised = 0;
    unsigned steps = 0;
    while (sys_curve_from(curve, steps + 1)[0] != '\0') {
        steps++;
        raised = fmax(raised, sys_metric(curve, steps, "loss") - sys_metric(still, steps, "loss"));
    }
    const char *const tuned = test_pathf("defaults/checkpoint-%u", steps);
    const double before = sys_eval_loss(model_folder, rows, ""), after = sys_eval_loss(tuned, rows, "");
    printf("  defaults: mean nll %.3f before, %.3f after %u steps; the loss of a step raised by %.3f at most\n", before,
           after, steps, raised);
    CHECK(steps > 20 && raised < 0.05 && after < before - 0.1);
    free(curve);
    free(still);
}

int main(void) {
    if (test_data_folder() == NULL) {
        test_skip("there is no folder of real models beside the project (OX_TEST_DATA)");
    }
    model_folder = plain_pathf("%s/models/stories260K", test_data_folder());
    const char *const path = plain_pathf("%s/reference_perplexity.json", model_folder);
    if (!ox_path_is_file(path)) {
        test_skip("the folder of real models has no models/stories260K");
    }
    check_perplexities();
    check_finetuning();
    check_defaults();
    return test_end();
}
