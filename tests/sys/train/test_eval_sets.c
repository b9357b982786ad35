/* Several evaluation sets with names: each has the figures that it has alone, the whole those of all; and weights that
 * are shares of tokens. */
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct sys_args args;
static struct sys_process process;
static const char *model_path, *data_path, *dev_path, *test_set_path;

static void train(const char *name, const char *words, int status) {
    sys_args_begin(&args, "train");
    sys_args_word(&args, "--model=%s", model_path);
    sys_args_word(&args, "--output=%s", test_path(name));
    sys_args_add(&args, "--from-scratch --compute-threads 1 --max-seq-length 8 --eval-steps 2");
    sys_args_add(&args, strstr(words, "--save-steps") == NULL ? "--save-steps 0" : "");
    sys_args_add(&args, words);
    sys_run(&args, &process);
    if (process.outcome.exit_status != status) {
        sys_complain(&process, words);
    }
}

/* The number under a key of the last evaluation in metrics.jsonl; NaN where there is none. */
static double last_eval(const char *name, const char *key) {
    char *const text = files_read(test_pathf("%s/metrics.jsonl", name), NULL);
    double found = NAN;
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        json_t *const row = json_loads(line, 0, NULL);
        const json_t *const value = json_object_get(row, key);
        if (strcmp(json_string_value(json_object_get(row, "type")), "eval") == 0) {
            found = json_is_number(value) ? json_number_value(value) : NAN;
        }
        json_decref(row);
    }
    free(text);
    return found;
}

/* The smallest of them. */
static double best_eval(const char *name, const char *key) {
    char *const text = files_read(test_pathf("%s/metrics.jsonl", name), NULL);
    double found = NAN;
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        json_t *const row = json_loads(line, 0, NULL);
        if (strcmp(json_string_value(json_object_get(row, "type")), "eval") == 0) {
            found = fmin(found, json_number_value(json_object_get(row, key)));
        }
        json_decref(row);
    }
    free(text);
    return found;
}

static void test_sets(void) {
    train("both", plain_pathf("--data %s --max-steps 4 --eval-data dev=%s,test_2=%s --report-to all", data_path,
                              dev_path, test_set_path), 0);
    CHECK(sys_said(&process, "  dev | loss ") && sys_said(&process, "  test_2 | loss "));
    train("dev", plain_pathf("--data %s --max-steps 4 --eval-data %s", data_path, dev_path), 0);
    train("test", plain_pathf("--data %s --max-steps 4 --eval-data only=%s", data_path, test_set_path), 0);
    const double dev = last_eval("both", "eval_dev_loss"), test = last_eval("both", "eval_test_2_loss");
    const double dev_tokens = last_eval("both", "eval_dev_tokens");
    const double test_tokens = last_eval("both", "eval_test_2_tokens");
    CHECK(dev > 0 && test > 0 && dev != test);
    CHECK(dev == last_eval("dev", "eval_loss") && test == last_eval("test", "eval_loss"));
    CHECK(test == last_eval("test", "eval_only_loss") && isnan(last_eval("dev", "eval_dev_loss")));
    CHECK(dev_tokens + test_tokens == last_eval("both", "tokens"));
    const double both = (dev * dev_tokens + test * test_tokens) / (dev_tokens + test_tokens);
    CHECK(fabs(both - last_eval("both", "eval_loss")) < 1e-12);
    char *const gauges = files_read("both/metrics.prom", NULL);
    CHECK(strstr(gauges, "offload_eval_dev_loss ") != NULL && strstr(gauges, "offload_eval_test_2_loss ") != NULL);
    free(gauges);
    /* `eval` with the run's options measures each, with the losses of the run. */
    sys_args_begin(&args, "eval");
    sys_args_word(&args, "--config=%s", test_path("both/config.resolved.yaml"));
    sys_args_word(&args, "--model=%s", test_path("both/checkpoint-4"));
    sys_args_add(&args, "--format json");
    sys_run_well(&args, &process);
    json_t *const json = json_loads(process.outcome.out, 0, NULL), *const files = json_object_get(json, "files");
    for (size_t i = 0; i < 2; i++) {
        const json_t *const file = json_array_get(files, i);
        CHECK(fabs(json_number_value(json_object_get(file, "mean_nll")) - (i == 0 ? dev : test)) < 1e-12);
        CHECK(json_number_value(json_object_get(file, "tokens")) == (i == 0 ? dev_tokens : test_tokens));
    }
    json_decref(json);
}

/* The best checkpoint by one set alone, also after a resume that finds what was before in the run's folder. */
static void test_best_by_set(void) {
    char words[1024];
    snprintf(words, sizeof words, "--data %s --eval-data dev=%s,test_2=%s --save-steps 2 --save-total-limit 1 "
             "--load-best-model-at-end --learning-rate 0.5 --lr-scheduler-type constant --metric-for-best-model ",
             data_path, dev_path, test_set_path);
    static const char *const metrics[] = {"eval_dev_loss", "test_2_loss", "loss"};
    for (int i = 0; i < 3; i++) {
        char name[16], key[32];
        snprintf(name, sizeof name, "best%d", i);
        snprintf(key, sizeof key, "%s%s", i == 0 ? "" : "eval_", metrics[i]);
        train(name, plain_pathf("%s%s --max-steps 6", words, metrics[i]), 0);
        sys_args_begin(&args, "train");
        sys_args_word(&args, "--config=%s", test_pathf("%s/config.resolved.yaml", name));
        sys_args_word(&args, "--output=%s", test_path(name));
        sys_args_add(&args, "--resume-from-checkpoint latest --max-steps 10");
        sys_run_well(&args, &process);
        const double best = best_eval(name, key);
        char *const state = files_read(test_pathf("%s/best/trainer_state.json", name), NULL);
        json_t *const json = json_loads(state, 0, NULL);
        CHECK(json_number_value(json_object_get(json, "last_eval_loss")) == best);
        CHECK(isnan(last_eval(name, "judged_loss")) == (i == 2));
        json_decref(json);
        free(state);
    }
    train("refused", plain_pathf("%seval_tst_loss --max-steps 6", words), 2);
    CHECK(sys_said(&process, "'eval_tst_loss' is not one of eval_loss, eval_perplexity, eval_dev_loss, "
                             "eval_test_2_loss"));
}

static void test_refused(void) {
    train("refused", plain_pathf("--data %s --max-steps 1 --eval-data a=%s,a=%s", data_path, dev_path, dev_path), 2);
    CHECK(sys_said(&process, "the name a is given twice"));
    train("refused", plain_pathf("--data %s --max-steps 1 --eval-data a=%s,b=nothing", data_path, dev_path), 2);
    CHECK(sys_said(&process, "--eval-data nothing"));
    train("refused", plain_pathf("--data %s --max-steps 1 --eval-data a=,b=%s", data_path, dev_path), 2);
    CHECK(sys_said(&process, "is no NAME=PATH"));
    /* A file of such a name is a path. */
    files_write_text("a=b", "some words in a file with an odd name, enough for a row or two\n");
    sys_args_begin(&args, "eval");
    sys_args_word(&args, "--model=%s", test_path("both/checkpoint-4"));
    sys_args_word(&args, "--data=%s", test_path("a=b"));
    sys_args_add(&args, "--max-seq-length 8");
    sys_run_well(&args, &process);
}

/* The scarcer source for its share gives one pass. */
static void test_mixture(void) {
    train("mixed", plain_pathf("--data %s:3 --data %s:1 --mixture tokens --max-steps 1 --eval-fraction 0 --add-eos off "
                               "--add-bos off", test_path("short.txt"), test_path("long.txt")), 0);
    CHECK(sys_said(&process, "short.txt: 75 % of the tokens, 1 passes"));
    CHECK(sys_said(&process, "long.txt: 25 % of the tokens, 0.08333 passes"));
    train("passes", plain_pathf("--data %s:3 --data %s:1 --max-steps 1 --eval-fraction 0", test_path("short.txt"),
                                test_path("long.txt")), 0);
    CHECK(!sys_said(&process, "% of the tokens"));
}

/* Bytes that the tokenizer has no merges for, so many tokens. */
static void write_digits(const char *name, size_t count) {
    char *const text = malloc(count + 1);
    for (size_t i = 0; i < count; i++) {
        text[i] = (char)('0' + i * 7 % 10);
    }
    text[count] = '\0';
    files_write_text(name, text);
    free(text);
}

/* What a run held out of plain texts, which have EOS behind each and a last window that is not full, has the loss of
 * the run when `eval` measures it by the run's options. */
static void test_held_out(void) {
    json_t *json = NULL;
    char words[SYS_PATH_BYTES + 128], text[2048] = "";
    for (int i = 0; i < 12; i++) {
        snprintf(text + strlen(text), sizeof text - strlen(text), "%sthe cat %d and the words of it",
                 i > 0 ? "###" : "", i * 37);
    }
    snprintf(words, sizeof words, "--data %s --document-separator ### --eval-fraction 0.3 --max-steps 4 "
             "--eval-windows 0 --save-steps 4", files_write_text("parts.txt", text));
    train("held", words, 0);
    const double loss = last_eval("held", "eval_loss"), tokens = last_eval("held", "tokens");
    sys_args_begin(&args, "eval");
    sys_args_word(&args, "--config=%s", test_path("held/config.resolved.yaml"));
    sys_args_word(&args, "--model=%s", test_path("held/checkpoint-4"));
    sys_args_add(&args, "--format json");
    sys_run_well(&args, &process);
    json = json_loads(process.outcome.out, 0, NULL);
    CHECK(fabs(json_number_value(json_object_get(json, "mean_nll")) - loss) < 1e-12);
    CHECK(json_number_value(json_object_get(json, "tokens")) == tokens && tokens > 0);
    CHECK(json_number_value(json_object_get(json, "data_tokens")) > tokens);
    json_decref(json);
}

int main(void) {
    model_path = sys_write_speaker();
    data_path = files_write_text("data.txt", "the cat and one two of the cat and the words that are long in a row of "
                                             "text which goes on for a while so that there are some rows of it\n");
    dev_path = files_write_text("dev.txt", "one two the cat in some words, and then some more of the same\n");
    test_set_path = files_write_text("test.txt", "abc def ghi jkl mno pqr stu vwx yz 0123456789 and once more abc\n");
    write_digits("short.txt", 400);
    write_digits("long.txt", 1600);
    test_sets();
    test_best_by_set();
    test_refused();
    test_mixture();
    test_held_out();
    return test_end();
}
