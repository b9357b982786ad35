/* `offload tokenize --show` prints, for users and as JSON, what training will read; a run uses the tokens that it has
 * cached. */
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <jansson.h>
#include <string.h>

static struct sys_args args;
static struct sys_process process;
static const char *model_path, *chats_path;

static const char chats[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"yo\"},"
    "{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"ok then\"}]}\n"
    "{\"conversations\":[{\"from\":\"human\",\"value\":\"a\"},{\"from\":\"gpt\",\"value\":\"b\\tc\"}]}\n"
    "{\"prompt\":\"Q: a\",\"completion\":\" b c\"}\n"
    "{\"text\":\"the cat\"}\n";

static void begin(const char *command, const char *data, const char *words) {
    sys_args_begin(&args, command);
    sys_args_word(&args, "--model=%s", model_path);
    sys_args_word(&args, "--data=%s", data);
    sys_args_add(&args, words);
}

static void show(const char *data, const char *words) {
    begin("tokenize", data, "--show --data-order sequential");
    sys_args_add(&args, words);
    sys_run_well(&args, &process);
}

/* ---- for a person ----------------------------------------------------------------------------------- */

static void expect_shown(const char *expected) {
    CHECK(sys_same_text("what is shown", expected, process.outcome.out));
}

static void test_chats(void) {
    show(chats_path, "--seq-len 64 --packing pad --max-windows 9");
    expect_shown("sequence 0: 64 positions, 8 targets\n"
                 "  document 1: 50 tokens, 8 trained\n"
                 "    masked   \"<|im_start|>user\\nhi<|im_end|>\\n<|im_start|>assistant\\n\"\n"
                 "              261 117 115 101 114 10 104 105 262 10 261 97 115 115 105 115 116 97 110 116 10\n"
                 "    trained  \"yo<|im_end|>\"\n"
                 "              121 111 262\n"
                 "    masked   \"\\n<|im_start|>user\\na<|im_end|>\\n<|im_start|>assistant\\n\"\n"
                 "              10 261 117 115 101 114 10 97 262 10 261 97 115 115 105 115 116 97 110 116 10\n"
                 "    trained  \"ok then<|im_end|>\"\n"
                 "              111 107 258 110 262\n"
                 "sequence 1: 64 positions, 4 targets\n"
                 "  document 1: 24 tokens, 4 trained\n"
                 "    masked   \"<|im_start|>user\\na<|im_end|>\\n<|im_start|>assistant\\n\"\n"
                 "              261 117 115 101 114 10 97 262 10 261 97 115 115 105 115 116 97 110 116 10\n"
                 "    trained  \"b\\tc<|im_end|>\"\n"
                 "              98 9 99 262\n"
                 "sequence 2: 64 positions, 5 targets\n"
                 "  document 1: 9 tokens, 5 trained\n"
                 "    masked   \"Q: a\"\n"
                 "              81 58 32 97\n"
                 "    trained  \" b c<|endoftext|>\"\n"
                 "              32 98 32 99 259\n"
                 "sequence 3: 64 positions, 5 targets\n"
                 "  document 1: 6 tokens, 5 trained\n"
                 "    masked   \"the\"\n"
                 "              257\n"
                 "    trained  \" cat<|endoftext|>\"\n"
                 "              32 99 97 116 259\n"
                 "4 documents | 91 tokens | 23 may be trained | 4 sequences of 64, 34.0 % of the positions used\n");
}

/* One sequence by default. Documents of a row are kept apart, and a cut document is marked. */
static void test_rows(void) {
    show(chats_path, "--seq-len 90");
    CHECK(strncmp(process.outcome.out, "sequence 0: 90 positions, 22 targets\n  document 1: ", 51) == 0);
    CHECK(strstr(process.outcome.out, "  document 4: 6 tokens, 5 trained\n") != NULL);
    CHECK(strstr(process.outcome.out, "sequence 1:") == NULL);
    show(chats_path, "--seq-len 22 --packing pad");
    CHECK(strncmp(process.outcome.out, "sequence 0: 22 positions, 2 targets\n  document 1: 23 tokens, 2 trained\n",
                  71) == 0);
    CHECK(strstr(process.outcome.err, "are longer than --max-seq-length 22") != NULL);
    show(chats_path, "--seq-len 2000"); /* the model attends to 256 */
    CHECK(strncmp(process.outcome.out, "sequence 0: 256 positions, 22 targets\n", 38) == 0);
    CHECK(strstr(process.outcome.out, " 1 sequence of 256, ") != NULL);
    CHECK(strstr(process.outcome.err, "using 256") != NULL);
    const char *const path = files_write_text("parted.txt", "the cat\n\n\n\nsat\n\n");
    show(path, "--seq-len 8 --document-separator \\n\\n");
    /* 6 and 4 tokens with their ends; the stream of 8 + 1 is cut in the second. */
    expect_shown("sequence 0: 8 positions, 7 targets\n"
                 "  document 1: 6 tokens, 5 trained\n"
                 "    masked   \"the\"\n"
                 "              257\n"
                 "    trained  \" cat<|endoftext|>\"\n"
                 "              32 99 97 116 259\n"
                 "  document 2: 3 tokens, 2 trained\n"
                 "    masked   \"s\"\n"
                 "              115\n"
                 "    trained  \"at\"\n"
                 "              97 116\n"
                 "2 documents | 10 tokens | 10 may be trained | 1 sequence of 8, 100.0 % of the positions used\n");
}

/* ---- for a program ---------------------------------------------------------------------------------- */

static const char *text_of(json_int_t id, char *byte) {
    static const char *const names[] = {"he",           "the",          " the", "<|endoftext|>", "<|startoftext|>",
                                        "<|im_start|>", "<|im_end|>"};
    byte[0] = (char)id;
    byte[1] = '\0';
    return id < 256 ? byte : id < SYS_VOCAB ? names[id - 256] : "?";
}

/* The texts of all ids, such as "/|t*h": a * before an id that is predicted, a | before each other id, and a / where
 * positions begin again. The unused rest of a row is left out: no text here has a byte 0. */
static void read_row(const json_t *row, size_t seq, char *out, size_t room) {
    const json_t *const ids = json_object_get(row, "ids"), *const targets = json_object_get(row, "targets"),
                       *const positions = json_object_get(row, "positions");
    json_int_t before = -1, next_place = 0;
    size_t used = 0;
    CHECK(json_array_size(ids) == seq && json_array_size(targets) == seq && json_array_size(positions) == seq);
    for (size_t i = 0; i < seq && used < room; i++) {
        char byte[2];
        const json_int_t id = json_integer_value(json_array_get(ids, i)),
                         place = json_integer_value(json_array_get(positions, i));
        CHECK(place == 0 || place == next_place);
        if (before >= 0 && (place == 0 || id == 0)) { /* the id before it is no input */
            used += (size_t)snprintf(out + used, room - used, "*%s", text_of(before, byte));
            before = -1;
        }
        if (id != 0) {
            CHECK(before < 0 || before == id);
            used += (size_t)snprintf(out + used, room - used, "%s%c%s", place == 0 ? "/" : "", before >= 0 ? '*' : '|',
                                     text_of(id, byte));
        }
        before = json_integer_value(json_array_get(targets, i));
        next_place = place + 1;
        CHECK(id != 0 || before < 0);
    }
    if (before >= 0 && used < room) {
        char byte[2];
        snprintf(out + used, room - used, "*%s", text_of(before, byte));
    }
}

#define USER(text)   "|<|im_start|>|u|s|e|r|\n" text "|<|im_end|>|\n"
#define ANSWER(text) "|<|im_start|>|a|s|s|i|s|t|a|n|t|\n" text "*<|im_end|>"

static const char *expect_row(const char *line, json_int_t number, size_t seq, const char *expected) {
    char text[4096] = "";
    json_t *const row = json_loadb(line, strcspn(line, "\n"), JSON_REJECT_DUPLICATES, NULL);
    CHECK(row != NULL && json_integer_value(json_object_get(row, "sequence")) == number);
    read_row(row, seq, text, sizeof text);
    CHECK(sys_same_text("rows", expected, text));
    json_decref(row);
    line += strcspn(line, "\n");
    return *line == '\n' ? line + 1 : line;
}

static void test_json(void) {
    /* The longest two documents, 51 and 25 tokens, fill a row, and the others are in the next. */
    show(chats_path, "--seq-len 74 --max-windows 3 --format json");
    const char *line = expect_row(process.outcome.out, 0, 74,
                                  "/" USER("|h|i") ANSWER("*y*o") "|\n" USER("|a") ANSWER("*o*k* the*n") "/" USER("|a")
                                      ANSWER("*b*\t*c"));
    line = expect_row(line, 1, 74, "/|Q|:| |a* *b* *c*<|endoftext|>/|the* *c*a*t*<|endoftext|>");
    CHECK(*line == '\0');
    /* As a stream, the first token of a document is no target. */
    show(chats_path, "--seq-len 26 --max-windows 3 --format json --packing stream");
    line = expect_row(process.outcome.out, 0, 26, "/" USER("|h|i") ANSWER("*y*o") "|\n|<|im_start|>");
    line = expect_row(line, 1, 26, "/|u|s|e|r|\n|a|<|im_end|>|\n" ANSWER("*o*k* the*n") "|\n/|<|im_start|>");
    line = expect_row(line, 2, 26, "/|u|s|e|r|\n|a|<|im_end|>|\n" ANSWER("*b*\t*c") "|\n/|Q|:");
    CHECK(*line == '\0');
    /* Without borders a row continues into the next document. */
    show(chats_path, "--seq-len 90 --format json --packing stream --document-mask off");
    line = expect_row(process.outcome.out, 0, 90,
                      "/" USER("|h|i") ANSWER("*y*o") "|\n" USER("|a") ANSWER("*o*k* the*n") "|\n" USER("|a")
                          ANSWER("*b*\t*c") "|\n|Q|:| |a* *b* *c*<|endoftext|>*the* *c*a*t*<|endoftext|>");
    CHECK(*line == '\0');
    show(chats_path, "--seq-len 24 --max-windows 2 --format json --packing stream --bos-per-window");
    line = expect_row(process.outcome.out, 0, 24, "/|<|startoftext|>" USER("|h|i") ANSWER("*y*o"));
}

/* ---- what is kept ----------------------------------------------------------------------------------- */

static void test_cache(void) {
    const char *const cache = test_path("kept/tokens");
    files_make_folder("kept");
    begin("tokenize", chats_path, "--seq-len 64");
    sys_args_word(&args, "--data-cache=%s", cache);
    sys_run_well(&args, &process);
    CHECK(strcmp(process.outcome.out, "4 documents | 91 tokens | 23 may be trained | 2 sequences of 64, 68.0 % of the "
                                      "positions used\n") == 0);
    CHECK(strstr(process.outcome.err, "tokenized in") != NULL);
    begin("train", chats_path, "--from-scratch --seq-len 64 --max-steps 1 --eval-fraction 0");
    sys_args_word(&args, "--data-cache=%s", cache);
    sys_args_word(&args, "--output=%s", test_path("run"));
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.err, "4 documents, 91 tokens, 23 of them trained; from the cache") != NULL);
    CHECK(strstr(process.outcome.err, "tokenized") == NULL);
    CHECK(!files_exist("run/cache"));
    show(chats_path, "--seq-len 64"); /* keeps nothing */
    CHECK(strstr(process.outcome.err, "tokenized in") != NULL);
}

static void expect_refused(const char *words) {
    sys_run(&args, &process);
    if (process.outcome.exit_status != 2 || strstr(process.outcome.err, words) == NULL) {
        printf("expected 2 and \"%s\", got %d:\n%s\n", words, process.outcome.exit_status, process.outcome.err);
        test_failure_count++;
    }
    CHECK(process.outcome.out[0] == '\0');
}

/* A text that is less than one sequence is shown, though training would refuse it. */
static void test_short(void) {
    begin("tokenize", files_write_text("short.txt", "The drive waits."), "--show --seq-len 512");
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.out, "sequence 0: ") != NULL && strstr(process.outcome.out, "1 document | ") != NULL);
    CHECK(sys_said(&process, "training would refuse this: ") && sys_said(&process, "not one window of "));
    begin("tokenize", test_path("short.txt"), "--seq-len 512");
    sys_run_well(&args, &process);
}

static void test_refusals(void) {
    const char *const path = files_write_text("bad.jsonl", "{\"text\":\"a\"}\n{\"txt\":\"a\"}\n");
    begin("tokenize", path, "--show");
    expect_refused("bad.jsonl:2");
    begin("tokenize", chats_path, "--show --chat-template klingon");
    expect_refused("klingon");
    const char *const model = sys_write_model("llama");
    sys_args_begin(&args, "tokenize");
    sys_args_word(&args, "--model=%s", model);
    sys_args_word(&args, "--data=%s", chats_path);
    sys_args_add(&args, "--show");
    expect_refused("--tokenizer");
}

/* ---- counted ---------------------------------------------------------------------------------------- */

static json_int_t counted(const json_t *counts, const char *key) {
    return json_integer_value(json_object_get(counts, key));
}

/* What is counted equals what a run with the same options says, rows without a trained token included. */
static void count_as_train(const char *data, const char *words, json_int_t dropped) {
    char line[256];
    begin("tokenize", data, "--format json");
    sys_args_add(&args, words);
    sys_run_well(&args, &process);
    json_t *const counts = json_loads(process.outcome.out, 0, NULL);
    begin("train", data, "--from-scratch --max-steps 1 --eval-fraction 0 --compute-threads 1 --host-mem 64MiB");
    sys_args_word(&args, "--output=%s", test_path("counted"));
    sys_args_add(&args, words);
    sys_run_well(&args, &process);
    snprintf(line, sizeof line, ": %d documents, %d tokens, %d of them trained; ", (int)counted(counts, "documents"),
             (int)counted(counts, "tokens"), (int)counted(counts, "trained_tokens"));
    CHECK(strstr(process.outcome.err, line) != NULL);
    snprintf(line, sizeof line, "training: %d of %d documents has no token to be trained on", (int)dropped,
             (int)counted(counts, "documents"));
    CHECK(counted(counts, "dropped_documents") == dropped);
    CHECK((strstr(process.outcome.err, line) != NULL) == (dropped > 0));
    snprintf(line, sizeof line, " in %d sequence", (int)counted(counts, "sequences"));
    CHECK(strstr(process.outcome.err, line) != NULL);
    json_decref(counts);
    files_remove_folder("counted");
}

static void test_counts(void) {
    static const char asked[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"nothing to train\"}]}\n";
    char rows[sizeof chats + sizeof asked];
    snprintf(rows, sizeof rows, "%s%s", chats, asked);
    const char *const path = files_write_text("more.jsonl", rows);
    count_as_train(path, "--seq-len 64", 1);
    count_as_train(path, "--seq-len 64 --packing pad", 1);
    count_as_train(path, "--seq-len 32 --packing stream", 1);
    count_as_train(chats_path, "--seq-len 32 --packing stream", 0);
    count_as_train(chats_path, "--seq-len 64 --add-eos off --chat-template llama2 --parse-special", 0);
    /* A text that is too short to train on can be counted. */
    begin("tokenize", files_write_text("short.txt", "the cat"), "");
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.out, "1 document | 6 tokens | 6 may be trained | 0 sequences of ") != NULL);
    CHECK(strstr(process.outcome.err, "warning: training would refuse this: ") != NULL);
}

int main(void) {
    model_path = sys_write_speaker();
    chats_path = files_write_text("chats.jsonl", chats);
    test_chats();
    test_rows();
    test_short();
    test_json();
    test_cache();
    test_refusals();
    test_counts();
    return test_end();
}
