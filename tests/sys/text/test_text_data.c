/* Texts and rows of every form: the numbers of targets are those counted by hand, packing and overlong documents follow
 * the options, evaluations add up, and a plan counts the steps of a text, and writes nothing. */
#include "base/file.h"
#include "engine/data/files.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

enum { LINE = SYS_PATH_BYTES + 64 };

static struct sys_args args;
static struct sys_process process;
static const char *model_path;

static bool said(const char *words) {
    return strstr(process.outcome.err, words) != NULL;
}

static void begin(const char *command, const char *data, const char *words) {
    sys_args_begin(&args, command);
    sys_args_word(&args, "--model=%s", model_path);
    sys_args_word(&args, "--data=%s", data);
    sys_args_add(&args, words);
}

/* Trains into the new folder `name`; returns the curve of its steps, which the caller frees. */
static char *train(const char *name) {
    const char *const output = test_path(name);
    sys_args_word(&args, "--output=%s", output);
    sys_args_add(&args, "--from-scratch --eval-fraction 0 --compute-threads 1");
    sys_run_well(&args, &process);
    return sys_curve(output, "step");
}

static void remove_run(const char *name) {
    files_remove_folder(name);
}

/* ---- forms ------------------------------------------------------------------------------------------ */

#define ASK(text) "{\"role\":\"user\",\"content\":\"" text "\"}"
#define SAY(text) "{\"role\":\"assistant\",\"content\":\"" text "\"}"

/* One document per row, all in one batch: a step has the targets of the whole data. */
static const struct form {
    const char *name, *text, *words;
    unsigned documents, targets;
} forms[] = {
    /* Bytes and EOS of each, less the first, which nothing predicts: 3 + 4 + 3. White space at the ends is removed. */
    {"separated.txt", "abc\n\nde f\n\n\n\n xyz\n\n", "--document-separator \\n\\n", 3, 10},
    {"separated.md", "abc<|x|>de f<|x|>\nxyz\n", "--document-separator <|x|> --add-eos off", 3, 7},
    /* BOS comes first instead. */
    {"bos.txt", "abc|de f|xyz", "--document-separator | --add-bos on", 3, 13},
    {"whole.txt", "abc\n\nde f", "", 1, 9},
    /* "the" and " cat" are 1 + 4. */
    {"texts.jsonl", "{\"text\":\"one two\"}\n{\"text\":\"abc\"}\n\n{\"text\":\"the cat\"}", "", 3, 15},
    /* " b c" and EOS, "d" and EOS. */
    {"prompts.jsonl", "{\"prompt\":\"Q: a\",\"completion\":\" b c\"}\n{\"prompt\":\"Q\",\"completion\":\"d\"}\n", "", 2,
     7},
    {"prompts.ndjson", "{\"prompt\":\"Q: a\",\"completion\":\" b c\"}\n{\"prompt\":\"Q\",\"completion\":\"d\"}\n",
     "--add-eos off", 2, 5},
    /* Each answer and the token that ends it, not the newline behind: "yo", "o", "k", " the", "n"; "x". */
    {"messages.jsonl",
     "{\"messages\":[" ASK("hi") "," SAY("yo") "," ASK("a") "," SAY("ok then") "]}\n"
     "{\"messages\":[{\"role\":\"system\",\"content\":\"long words\"}," ASK("a") "," SAY("x") "]}\n",
     "", 2, 10},
    {"sharegpt.jsonl",
     "{\"conversations\":[{\"from\":\"human\",\"value\":\"a\"},{\"from\":\"gpt\",\"value\":\"bcd\"}]}\n", "", 1, 4},
    {"alpaca.json",
     "[{\"instruction\":\"add\",\"input\":\"1 2\",\"output\":\"3\"},\n"
     " {\"instruction\":\"say\", \"output\":\"abc\"}]\n",
     "", 2, 6},
    /* Ids as they are: 3 of the first, 2 that have labels, and without padding 1. */
    {"ids.jsonl",
     "{\"input_ids\":[5,6,7,8]}\n{\"input_ids\":[5,6,7],\"labels\":[-100,6,7]}\n"
     "{\"input_ids\":[0,5,6],\"attention_mask\":[0,1,1]}\n", "", 3, 6},
    /* All in one: 8 + 5 + 2. */
    {"mixed.jsonl",
     "{\"messages\":[" ASK("hi") "," SAY("yo") "," ASK("a") "," SAY("ok then") "]}\n{\"text\":\"the cat\"}\n"
     "{\"instruction\":\"say\",\"output\":\"a\"}\n",
     "", 3, 15},
};

/* Expects two steps with `targets` each, which begin near the loss of an untrained model. */
static void check_steps(const char *name, const char *curve, unsigned targets) {
    for (unsigned step = 1; step <= 2; step++) {
        const double loss = sys_metric(curve, step, "loss"), tokens = sys_metric(curve, step, "tokens");
        if (!(fabs(loss - log(SYS_VOCAB)) < 1) || tokens != targets) {
            printf("%s: step %u has loss %f and %.0f targets, which must be %u\n", name, step, loss, tokens, targets);
            test_failure_count++;
        }
    }
}

static void test_form(const struct form *form) {
    files_write_text(form->name, form->text);
    const char *const path = test_path(form->name);
    begin("train", path, "--packing pad --max-seq-length 96 --max-steps 2");
    sys_args_word(&args, "--batch-size=%u", form->documents);
    sys_args_add(&args, form->words);
    char *const curve = train("form");
    check_steps(form->name, curve, form->targets);
    CHECK(sys_number_after(process.outcome.err, "training: ", -1) == form->documents);
    CHECK(said("; tokenized in "));
    free(curve);
    remove_run("form");
}

/* Files in folders of folders, in the order of their names; a README beside rows is left out. */
static void test_folders(void) {
    const char *folder = test_path("rows");
    files_make_folder(folder);
    files_make_folder("rows/more");
    files_write_text("rows/README.md", "These are rows.\n");
    files_write_text("rows/a.jsonl", forms[7].text);
    files_write_text("rows/b.ndjson", forms[8].text);
    files_write_text("rows/more/c.json", forms[9].text);
    begin("train", folder, "--packing pad --max-seq-length 96 --max-steps 2 --batch-size 5");
    char *curve = train("folder");
    check_steps("rows", curve, 10 + 4 + 6);
    free(curve);
    remove_run("folder");

    folder = files_make_folder("texts");
    files_make_folder("texts/more");
    files_write_text("texts/a.txt", "abc\n\nde f");
    files_write_text("texts/more/b.md", "xyz");
    begin("train", folder, "--packing pad --max-seq-length 96 --max-steps 2 --batch-size 3");
    sys_args_add(&args, "--document-separator \\n\\n");
    curve = train("folder");
    check_steps("texts", curve, 10);
    free(curve);
    remove_run("folder");
}

/* Half of one source and twice the other make an epoch; two epochs have all of the one, and four times the other. */
static void test_weights(void) {
    const char *const texts = files_write_text("weighed.txt", "a|bb|ccc|dddd");
    const char *const rows = files_write_text(
        "weighed.jsonl", "{\"text\":\"12345\"}\n{\"text\":\"123456\"}\n{\"prompt\":\"1\",\"completion\":\"2\"}");
    sys_args_begin(&args, "train");
    sys_args_word(&args, "--model=%s", model_path);
    sys_args_word(&args, "--data=%s:0.5", texts);
    sys_args_word(&args, "--data=%s:2", rows);
    sys_args_add(&args, "--document-separator | --packing pad --max-seq-length 16 --batch-size 8 --num-train-epochs 2");
    char *const curve = train("weights");
    double sum = 0;
    for (unsigned step = 1; step <= 2; step++) {
        CHECK(fabs(sys_metric(curve, step, "loss") - log(SYS_VOCAB)) < 1);
        sum += sys_metric(curve, step, "tokens");
    }
    CHECK(sum == 1 + 2 + 3 + 4 + 4 * (5 + 6 + 2));
    CHECK(sys_curve_from(curve, 3)[0] == '\0');
    const char *const output = test_path("weights/checkpoint-2");
    CHECK(files_exist(output));
    free(curve);
    remove_run("weights");
}

/* ---- rows ------------------------------------------------------------------------------------------- */

/* Makes `count` documents of `bytes` letters each, one after the other. */
static void add_documents(char *text, unsigned count, unsigned bytes) {
    static unsigned letter;
    char *at = text + strlen(text);
    for (unsigned i = 0; i < count; i++) {
        for (unsigned k = 0; k < bytes; k++) {
            letter = letter * 1103515245u + 12345u;
            *at++ = (char)('a' + (letter >> 16) % 5); /* letters that no merge joins */
        }
        *at++ = '|';
    }
    *at = '\0';
}

/* The loss of the first of one or two steps over all of the data. */
static double loss_with(const char *data, const char *words, double targets) {
    begin("train", data, "--document-separator | --max-seq-length 32 --max-steps 1");
    sys_args_add(&args, words);
    char *const curve = train("mode");
    const double loss = sys_metric(curve, 1, "loss"), tokens = sys_metric(curve, 1, "tokens");
    if (tokens != targets) {
        printf("%s: %.0f targets instead of %.0f\n", words, tokens, targets);
        test_failure_count++;
    }
    free(curve);
    remove_run("mode");
    return loss;
}

static bool near(double a, double b) {
    return fabs(a - b) < 2e-6;
}

static void test_packing(void) {
    char text[512] = "";
    const char *path;
    /* 21 and 13 tokens with EOS, two of which fill 32 places. */
    add_documents(text, 4, 20);
    add_documents(text, 4, 12);
    path = files_write_text("packed.txt", text);
    const double pad = loss_with(path, "--packing pad --batch-size 8", 4 * 20 + 4 * 12),
                 packed = loss_with(path, "--packing pack --batch-size 4", 4 * 20 + 4 * 12),
                 unmasked = loss_with(path, "--packing pack --batch-size 4 --document-mask off", 4 * 20 + 4 * 12),
                 /* 128 targets, of which seven are the first of a document: 21, 42, 63, 84, 97, 110 and 123. */
                 stream = loss_with(path, "--packing stream --batch-size 4", 128 - 7),
                 one_text = loss_with(path, "--packing stream --batch-size 4 --document-mask off", 128),
                 chosen = loss_with(path, "--batch-size 4", 128 - 7);
    CHECK(near(pad, packed) && unmasked == packed);
    CHECK(!near(stream, packed) && !near(stream, one_text) && !near(one_text, packed));
    CHECK(chosen == stream);
}

/* If a row has room for one document only, packing and padding give the same run. */
static void test_lone_documents(void) {
    static const char *const packings[] = {"--packing pad", "--packing pack"};
    char text[512] = "";
    const char *path;
    char *curves[2];
    add_documents(text, 9, 20);
    path = files_write_text("lone.txt", text);
    for (int i = 0; i < 2; i++) {
        begin("train", path, "--document-separator | --max-seq-length 24 --batch-size 2 --max-steps 6");
        sys_args_add(&args, packings[i]);
        curves[i] = train(i == 0 ? "padded" : "packed");
        CHECK(sys_metric(curves[i], 6, "tokens") == 40);
    }
    CHECK(sys_same_text("losses", curves[0], curves[1]));
    CHECK(sys_same_checkpoint(test_path("padded/checkpoint-6"), test_path("packed/checkpoint-6")));
    free(curves[0]);
    free(curves[1]);
    remove_run("padded");
    remove_run("packed");
}

static void test_overlong(void) {
    static const char warning[] = "longer than --max-seq-length 32; ";
    char text[512] = "";
    const char *path;
    add_documents(text, 1, 70);
    add_documents(text, 1, 10);
    path = files_write_text("long.txt", text);
    loss_with(path, "--packing pad --batch-size 2 --overlong truncate", 32 + 10);
    CHECK(said(" 1 document") && sys_number_after(process.outcome.err, warning, -1) == 71 - 33);
    loss_with(path, "--packing pad --batch-size 1 --overlong drop", 10);
    CHECK(sys_number_after(process.outcome.err, warning, -1) == 71);
    loss_with(path, "--packing pad --batch-size 4 --overlong split", 32 + 32 + 6 + 10);
    CHECK(!said(warning));
    loss_with(path, "--packing pack --batch-size 3 --overlong split", 32 + 32 + 6 + 10);
    loss_with(path, "--packing pad --batch-size 4", 32 + 32 + 6 + 10);
    CHECK(!said(warning));
    /* A conversation keeps its beginning: 10 tokens before the answer's header, 11 of it, 12 of the answer. */
    files_write_text("long.jsonl", "{\"messages\":[" ASK("hi") "," SAY("0123456789abcdef") "]}\n");
    path = test_path("long.jsonl");
    loss_with(path, "--batch-size 1", 33 - 21);
    CHECK(sys_number_after(process.outcome.err, warning, -1) == 21 + 18 - 33);
}

static unsigned files_below(const char *folder) {
    struct ox_files files;
    REQUIRE_OK(ox_files_list(folder, &files));
    const unsigned count = files.count + files.left[OX_LEFT_HIDDEN].count;
    ox_files_free(&files);
    return count;
}

/* Data that would train nothing is refused before the plan is printed, and leaves nothing behind. */
static void refuse_untrained(const char *words, const char *says) {
    begin("train", test_path("silent.jsonl"), words);
    sys_args_word(&args, "--output=%s", test_path("untrained"));
    sys_args_word(&args, "--nvme=%s:64MiB", test_path("store"));
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 2 && said(says));
    CHECK(!said("model: ") && files_below(test_path("store")) == 0);
}

/* Rows that train nothing are left out and counted; data of such rows alone is refused. */
static void test_untrained(void) {
    files_write_text("mixed.jsonl", "{\"messages\":[" ASK("hi") "]}\n{\"messages\":[" ASK("a") "," SAY("x") "]}\n"
                                    "{\"messages\":[" ASK("0123456789012345678901234567890123456789") "," SAY("y")
                                    "]}\n");
    begin("train", test_path("mixed.jsonl"), "--packing pad --max-seq-length 32 --num-train-epochs 2");
    free(train("untrained"));
    CHECK(said("mixed.jsonl:1: the first row without a token to be trained on; a conversation needs a message of the "
               "role assistant"));
    CHECK(said("training: 1 of 3 documents has no token to be trained on and is left out: it has no assistant turn"));
    CHECK(said("training: 1 of 3 documents has no token to be trained on within --max-seq-length 32 and is left out"));
    CHECK(said("step 2/2 | loss ") && !said("is skipped"));
    remove_run("untrained");
    files_write_text("silent.jsonl", "{\"messages\":[" ASK("hi") "]}\n{\"messages\":[" ASK("a") "]}\n");
    static const char none[] = "silent.jsonl: no document has a token to be trained on";
    static const char stream[] = "--from-scratch --max-seq-length 8 --packing stream";
    REQUIRE_OK(ox_folder_make(test_path("store")));
    refuse_untrained("--from-scratch --max-seq-length 32", none);
    CHECK(!files_exist("untrained"));
    refuse_untrained(stream, none);
    CHECK(!files_exist("untrained"));
    files_write_text("silent.jsonl", "{\"messages\":[" ASK("0123456789012345678901234567890123456789") "," SAY("y")
                                     "]}\n");
    refuse_untrained("--from-scratch --max-seq-length 32", none);
    CHECK(!files_exist("untrained"));
    files_write_text("silent.jsonl", "{\"text\":\"short\"}\n");
    refuse_untrained(stream, "tokens are not one window of --max-seq-length 8 + 1");
    CHECK(!files_exist("untrained"));
    /* What the user made stays. */
    REQUIRE_OK(ox_folder_make(test_path("untrained")));
    refuse_untrained(stream, "not one window");
    CHECK(files_exist("untrained") && files_below(test_path("untrained")) == 0);
    remove_run("untrained");
}

/* ---- evaluation ------------------------------------------------------------------------------------- */

static json_t *evaluate(const char *words) {
    sys_args_add(&args, words);
    sys_args_add(&args, "--format json --compute-threads 1");
    sys_run_well(&args, &process);
    json_t *const said_json = json_loads(process.outcome.out, JSON_REJECT_DUPLICATES, NULL);
    CHECK(said_json != NULL);
    return said_json;
}

static double number(const json_t *object, const char *key) {
    const json_t *const value = json_object_get(object, key);
    CHECK(json_is_number(value));
    return json_number_value(value);
}

/* Tokens and windows of an evaluation of one text, and its mean. */
static double expect_counts(const char *data, const char *words, double tokens, double windows) {
    begin("eval", data, "--seq-len 32");
    json_t *const json = evaluate(words);
    const double mean = number(json, "mean_nll");
    if (number(json, "tokens") != tokens || number(json, "windows") != windows) {
        printf("%s: %.0f tokens in %.0f windows instead of %.0f in %.0f\n", words, number(json, "tokens"),
               number(json, "windows"), tokens, windows);
        test_failure_count++;
    }
    CHECK(fabs(number(json, "perplexity") - exp(mean)) < 1e-9);
    CHECK(json_object_get(json, "files") == NULL);
    json_decref(json);
    return mean;
}

/* Every token but the first counts once, unless windows share none. */
static void test_window_stride(const char *text) {
    const double whole = expect_counts(text, "", 999, 32), /* 31 * 32 + 7 */
                 apart = expect_counts(text, "--stride 33", 30 * 32 + 9, 31), /* 30 * 33 + 10 tokens */
                 eighth = expect_counts(text, "--stride 8", 999, 1 + 121), /* 32 + 967 */
                 single = expect_counts(text, "--stride 1 --batch-size 8", 999, 1 + 967);
    CHECK(apart != whole && eighth != whole && single != eighth);
    CHECK(expect_counts(text, "--stride 32", 999, 32) == whole);
    expect_counts(text, "--stride 8 --max-windows 3", 32 + 8 + 8, 3);
    expect_counts(text, "--bos-per-window", 1000, 32);
    expect_counts(text, "--add-bos on --add-eos on", 1001, 32);
}

static double mean_of_one(const char *data) {
    begin("eval", data, "--seq-len 64");
    json_t *const json = evaluate("");
    const double mean = number(json, "mean_nll");
    json_decref(json);
    return mean;
}

static void check_files(const json_t *json, const char *const *paths, const double *means) {
    const json_t *const files = json_object_get(json, "files");
    double tokens = 0, data_tokens = 0, windows = 0, sum = 0;
    CHECK(json_array_size(files) == 3);
    for (size_t i = 0; i < 3; i++) {
        const json_t *const file = json_array_get(files, i);
        const char *const path = json_string_value(json_object_get(file, "path"));
        CHECK(path != NULL && strcmp(path, paths[i]) == 0);
        if (number(file, "mean_nll") != means[i]) {
            printf("%s: %.17g beside others, %.17g alone\n", paths[i], number(file, "mean_nll"), means[i]);
            test_failure_count++;
        }
        tokens += number(file, "tokens");
        data_tokens += number(file, "data_tokens");
        CHECK(number(file, "coverage") == number(file, "tokens") / number(file, "data_tokens"));
        windows += number(file, "windows");
        sum += number(file, "tokens") * number(file, "mean_nll");
    }
    CHECK(number(json, "tokens") == tokens && number(json, "windows") == windows);
    CHECK(number(json, "data_tokens") == data_tokens && number(json, "coverage") == tokens / data_tokens);
    CHECK(fabs(number(json, "mean_nll") - sum / tokens) < 1e-12);
    CHECK(fabs(number(json, "perplexity") - exp(sum / tokens)) < 1e-9);
}

/* The figures of a file do not depend on the other files, and they add up. */
static void test_several(const char *text) {
    char line[LINE];
    files_write_text("eval-rows.jsonl", forms[4].text);
    const char *const rows = test_path("eval-rows.jsonl");
    files_write_text("eval-chats.jsonl", forms[7].text);
    const char *const chats = test_path("eval-chats.jsonl");
    const char *const paths[] = {text, rows, chats};
    double means[3];
    for (int i = 0; i < 3; i++) {
        means[i] = mean_of_one(paths[i]);
    }
    begin("eval", text, "--seq-len 64");
    sys_args_word(&args, "--eval-data=%s", rows);
    sys_args_word(&args, "--eval_data=%s", chats);
    json_t *const json = evaluate("");
    check_files(json, paths, means);
    begin("eval", text, "--seq-len 64 --compute-threads 1");
    sys_args_word(&args, "--data=%s", rows);
    sys_args_word(&args, "--data=%s", chats);
    sys_run_well(&args, &process);
    for (int i = 0; i < 3; i++) {
        snprintf(line, sizeof line, "%s: loss %.6f | perplexity %.4f | ", paths[i], means[i], exp(means[i]));
        CHECK(strstr(process.outcome.out, line) != NULL);
    }
    snprintf(line, sizeof line, "total: loss %.6f | perplexity %.4f | %.0f of %.0f tokens predicted, %.4g %% | %.0f "
             "windows | ", number(json, "mean_nll"), number(json, "perplexity"), number(json, "tokens"),
             number(json, "data_tokens"), 100 * number(json, "coverage"), number(json, "windows"));
    CHECK(strstr(process.outcome.out, line) != NULL);
    json_decref(json);
}

/* Rows of every form have the loss that the run measured of the same weights: the same BOS, EOS and masks. */
static void test_like_the_run(const char *text) {
    for (size_t i = 4; i < sizeof forms / sizeof *forms; i++) {
        const char *const path = files_write_text(forms[i].name, forms[i].text);
        begin("train", text, "--max-seq-length 96 --packing pad --max-steps 1 --eval-steps 1 --save-dtype fp32");
        sys_args_word(&args, "--eval-data=%s", path);
        sys_args_add(&args, forms[i].words);
        free(train("measured"));
        char *const curve = sys_curve(test_path("measured"), "eval");
        const char *const fresh = model_path;
        model_path = test_path("measured/checkpoint-1");
        begin("eval", path, "--seq-len 96 --packing pad");
        json_t *const json = evaluate(forms[i].words);
        if (!(fabs(number(json, "mean_nll") - sys_metric(curve, 1, "eval_loss")) < 1e-9) ||
            number(json, "tokens") != sys_metric(curve, 1, "tokens")) {
            printf("%s: eval says %.9f of %.0f tokens, the run %s\n", path, number(json, "mean_nll"),
                   number(json, "tokens"), curve);
            test_failure_count++;
        }
        model_path = fresh;
        json_decref(json);
        free(curve);
        remove_run("measured");
    }
}

static void test_eval(void) {
    char text[2048] = "";
    add_documents(text, 1, 1000);
    text[1000] = '\0'; /* without a document separator */
    const char *const path = files_write_text("eval.txt", text);
    begin("train", path, "--max-seq-length 64 --batch-size 4 --max-steps 30 --learning-rate 1e-2 --save-dtype fp32");
    free(train("trained"));
    const char *const fresh = model_path;
    model_path = test_path("trained/checkpoint-30");
    test_window_stride(path);
    test_several(path);
    model_path = fresh;
    remove_run("trained");
    test_like_the_run(path);
}

/* ---- plans ------------------------------------------------------------------------------------------ */

static bool told(const char *words) {
    return strstr(process.outcome.out, words) != NULL || said(words);
}

/* A plan tokenizes, so that it knows its steps (1010 bytes with EOS are 31 rows), and writes nothing. */
static void test_plans(void) {
    static const char *const commands[][2] = {{"plan", ""}, {"train", "--dry-run --output"}};
    char text[2048] = "";
    const char *output;
    add_documents(text, 10, 100);
    const char *const path = files_write_text("planned.txt", text);
    output = test_path("planned");
    const char *const cache = test_path("planned-cache");
    for (int i = 0; i < 4; i++) {
        begin(commands[i % 2][0], path, "--from-scratch --max-seq-length 32 --eval-fraction 0");
        sys_args_add(&args, i < 2 ? "" : "--max-steps 7");
        sys_args_add(&args, commands[i % 2][1]);
        if (i % 2 == 1) {
            sys_args_word(&args, "%s", output);
        }
        const unsigned before = files_below(test_folder());
        sys_run_well(&args, &process);
        CHECK(files_below(test_folder()) == before && !files_exist(output));
        CHECK(told("31 steps, 1 epoch of 31 steps") == (i < 2));
        CHECK(told("7 steps, 0.2258 epochs of 31 steps") == (i >= 2));
    }
    /* Tokens that exist are counted as they are. */
    begin("tokenize", path, "");
    sys_args_word(&args, "--data-cache=%s", cache);
    sys_run_well(&args, &process);
    begin("plan", path, "--from-scratch --max-seq-length 32 --eval-fraction 0");
    sys_args_word(&args, "--data-cache=%s", cache);
    sys_run_well(&args, &process);
    CHECK(told("31 steps") && told("from the cache"));
}

/* A tokenizer given by --tokenizer is copied into the checkpoint, so that the folder is complete. */
static void test_other_tokenizer(void) {
    char *before = NULL, *after = NULL;
    size_t before_bytes = 0, after_bytes = 0;
    const char *const text = files_write_text("some.txt", "one two three");
    sys_args_begin(&args, "train");
    sys_args_word(&args, "--model=%s/config.json", model_path);
    const char *const saved = test_path("mine.json"); /* whatever its name */
    REQUIRE_OK(ox_file_copy(test_path("speaker/tokenizer.json"), saved));
    sys_args_word(&args, "--tokenizer=%s", saved);
    sys_args_word(&args, "--data=%s", text);
    sys_args_add(&args, "--max-seq-length 8 --max-steps 1");
    free(train("other"));
    REQUIRE_OK(ox_file_read(saved, 1 << 20, &before, &before_bytes));
    REQUIRE_OK(ox_file_read(test_path("other/checkpoint-1/tokenizer.json"), 1 << 20, &after, &after_bytes));
    CHECK(before_bytes == after_bytes && memcmp(before, after, before_bytes) == 0);
    free(before);
    free(after);
    remove_run("other");
}

/* Up to so many rows that cannot be used are left out, named and counted, also from a cache; one more is the error. */
static void test_bad_rows(void) {
    const char *const data = files_write_text(
        "bad.jsonl", "{\"text\":\"one two\"}\n{\"text\":7}\n{\"text\":\"abc\"}\n{\"prompt\":\"x\"}\n"
                     "{\"text\":\"the\n{\"input_ids\":[5,99999]}\n{\"text\":\"the cat\"}\n");
    const char *const good = files_write_text(
        "good.jsonl", "{\"text\":\"one two\"}\n{\"text\":\"abc\"}\n{\"text\":\"the cat\"}\n");
    begin("train", data, "--max-steps 2 --max-seq-length 8 --skip-bad-rows 4");
    sys_args_word(&args, "--data-cache=%s", test_path("bad-cache"));
    char *const curve = train("bad-run");
    CHECK(said("bad.jsonl:2: ") && said("bad.jsonl:4: ") && said("bad.jsonl:5:") && said("bad.jsonl:6: "));
    CHECK(said("left out (4 of at most 4)") && strstr(process.outcome.out, "4 rows were left out") != NULL);
    begin("train", good, "--max-steps 2 --max-seq-length 8");
    char *const same = train("good-run");
    CHECK(strcmp(curve, same) == 0); /* trained as if they were not there */
    begin("train", data, "--max-steps 2 --max-seq-length 8 --skip-bad-rows 4");
    sys_args_word(&args, "--data-cache=%s", test_path("bad-cache"));
    char *const again = train("again-run");
    CHECK(strcmp(curve, again) == 0 && said("4 rows were left out when the cache was made"));
    begin("tokenize", data, "--skip-bad-rows 3");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 2 && said("bad.jsonl:6: ") && said("3 rows before it were left out"));
    begin("tokenize", data, "");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 2 && said("bad.jsonl:2: "));
    free(curve);
    free(same);
    free(again);
    remove_run("bad-run");
    remove_run("good-run");
    remove_run("again-run");
}

int main(void) {
    model_path = sys_write_speaker();
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        test_form(&forms[i]);
    }
    test_folders();
    test_weights();
    test_packing();
    test_lone_documents();
    test_overlong();
    test_untrained();
    test_eval();
    test_plans();
    test_other_tokenizer();
    test_bad_rows();
    return test_end();
}
