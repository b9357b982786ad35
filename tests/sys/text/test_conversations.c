/* Conversations as users train on them: the line that names the template, what is trained, variables of the template,
 * and the date that a run keeps. */
#include "base/file.h"
#include "base/json.h"
#include "engine/text/tokenizer.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct sys_args args;
static struct sys_process process;
static const char *model_path, *chats_path, *cache_path;

static const char chats[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"yo\"},"
    "{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"ok then\"}]}\n"
    "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":"
    "[{\"name\":\"f\"}]}],\"tools\":[{\"name\":\"f\"}],\"chat_template_kwargs\":{\"end\":\"!\"}}\n";
static const char one_chat[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"yo\"}]}\n";
#define TURNS                                                                                          \
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{{ m.tool_calls }}{{ end }}<|im_end|>\n"  \
    "{% endfor %}"
static const char template_text[] = TURNS "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
static const char dated[] = "{{ strftime_now('%d') }}" TURNS "{% if add_generation_prompt %}<|im_start|>assistant\n"
                            "{% endif %}";
enum { FIRST_DAY = 1795000000, DAY = 86400 };

static void begin(const char *command, const char *words) {
    sys_args_begin(&args, command);
    sys_args_word(&args, "--model=%s", model_path);
    sys_args_word(&args, "--data=%s", chats_path);
    sys_args_add(&args, words);
}

static bool says(const char *words) {
    return strstr(process.outcome.err, words) != NULL;
}

static void write_template(const char *text) {
    files_write_text("speaker/chat_template.jinja", text);
}

static void set_date(int64_t seconds) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)seconds);
    CHECK(setenv("SOURCE_DATE_EPOCH", text, 1) == 0);
}

/* ---- the template and what is trained ------------------------------------------------------------------------ */

static void test_notice(void) {
    write_template(template_text);
    begin("train", "--from-scratch --seq-len 64 --max-steps 1 --eval-fraction 0");
    sys_args_word(&args, "--output=%s", test_path("noted"));
    sys_run_well(&args, &process);
    CHECK(says("chat template: chat_template.jinja of "));
    CHECK(says("; assistant turns found by rendering prefixes; all of them are trained\n"));
    CHECK(says("starting from fresh weights: 1 step, "));
    begin("plan", "--from-scratch --seq-len 64 --max-steps 1 --eval-fraction 0 --train-on last");
    sys_args_word(&args, "--data-cache=%s", cache_path);
    sys_run_well(&args, &process);
    begin("tokenize", "--seq-len 64 --train-on last");
    sys_args_word(&args, "--data-cache=%s", cache_path);
    sys_run_well(&args, &process);
    CHECK(says("; the last one is trained\n"));
    begin("plan", "--from-scratch --seq-len 64 --max-steps 1 --eval-fraction 0 --train-on last");
    sys_args_word(&args, "--data-cache=%s", cache_path);
    sys_run_well(&args, &process);
    CHECK(says("; the last one is trained\n"));
    sys_args_begin(&args, "eval");
    sys_args_word(&args, "--model=%s", test_path("noted/checkpoint-1"));
    sys_args_word(&args, "--data=%s", files_write_text("one.jsonl", one_chat));
    sys_args_add(&args, "--chat-template chatml --seq-len 64 --chat-template-kwargs={}");
    sys_run_well(&args, &process);
    CHECK(says("chat template: built in: chatml; assistant turns by {% generation %}; all of them are trained\n"));
}

static void expect_counts(const char *words, const char *counts) {
    begin("tokenize", "--show --seq-len 64");
    sys_args_add(&args, words);
    sys_run_well(&args, &process);
    if (strstr(process.outcome.out, counts) == NULL) {
        printf("%s: must have '%s', has\n%s\n", words, counts, process.outcome.out);
        test_failure_count++;
    }
}

static void test_trained(void) {
    expect_counts("", "2 documents | 91 tokens | 25 may be trained");
    expect_counts("--train-on last", "2 documents | 91 tokens | 22 may be trained");
    expect_counts("--train-on prompts", "2 documents | 91 tokens | 91 may be trained");
    /* Each end of a turn is a byte longer, but for the row that says otherwise. */
    expect_counts("--chat-template-kwargs={\"end\":\"--\"}", "2 documents | 99 tokens | 29 may be trained");
    begin("tokenize", "--show --chat-template-kwargs=[1]");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 2 && says("--chat-template-kwargs is [1], but must be a JSON object"));
    begin("tokenize", "--show --chat-template-kwargs={");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 2 && says("--chat-template-kwargs"));
}

/* A resume from nothing leaves no folder with tokens behind. */
static void test_no_run(void) {
    begin("train", "--seq-len 64 --resume latest");
    sys_args_word(&args, "--output=%s", test_path("moved"));
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 2 && says("moved: holds no run to go on with"));
    CHECK(!files_exist("moved") && !says("tokenized in"));
}

/* ---- the date ------------------------------------------------------------------------------------------------- */

/* Makes run.json what it was before there were checksums and a copy. */
static void make_older(const char *run) {
    const char *const path = test_pathf("%s/run.json", run);
    files_replace_text(path, "\"version\": 5", "\"version\": 3");
    files_replace_text(path, "\"checksum\"", "\"ch3cksum\"");
    CHECK(unlink(test_pathf("%s/run-copy.json", run)) == 0);
}

static void train(const char *words) {
    begin("train", "--seq-len 64 --eval-fraction 0 --save-steps 1");
    sys_args_word(&args, "--eval-data=%s", chats_path);
    sys_args_word(&args, "--output=%s", test_path("run"));
    sys_args_add(&args, words);
    sys_run_well(&args, &process);
}

static unsigned count_of(const char *words) {
    unsigned count = 0;
    for (const char *at = process.outcome.err; (at = strstr(at, words)) != NULL; at++) {
        count++;
    }
    return count;
}

/* A run that is resumed on a later day goes on with the tokens that it began with; another one does not take them. */
static void test_date(void) {
    write_template(dated);
    set_date(FIRST_DAY);
    train("--max-steps 1 --from-scratch");
    CHECK(says("tokenized in"));
    set_date(FIRST_DAY + 3 * DAY);
    train("--max-steps 2 --resume-from-checkpoint latest");
    CHECK(!says("tokenized in") && count_of("from the cache") == 2 && !says("the data has changed"));
    train("--max-steps 3 --resume-from-checkpoint latest");
    CHECK(!says("tokenized in") && !says("the data has changed"));

    begin("train", "--seq-len 64 --eval-fraction 0 --max-steps 3");
    sys_args_word(&args, "--data-cache=%s", test_path("run/cache"));
    sys_args_word(&args, "--output=%s", test_path("other"));
    sys_args_word(&args, "--resume-from-checkpoint=%s", test_path("run/checkpoint-2"));
    sys_run_well(&args, &process);
    CHECK(!says("tokenized in") && !says("the data has changed"));
    /* Without the cache the same tokens are made again. */
    begin("train", "--seq-len 64 --eval-fraction 0 --max-steps 3");
    sys_args_word(&args, "--data-cache=%s", test_path("empty"));
    sys_args_word(&args, "--output=%s", test_path("again"));
    sys_args_word(&args, "--resume-from-checkpoint=%s", test_path("run/checkpoint-2"));
    sys_run_well(&args, &process);
    CHECK(says("tokenized in") && !says("the data has changed"));
    begin("train", "--from-scratch --seq-len 64 --eval-fraction 0 --max-steps 1");
    sys_args_word(&args, "--data-cache=%s", test_path("run/cache"));
    sys_args_word(&args, "--output=%s", test_path("fresh"));
    sys_run_well(&args, &process);
    CHECK(says("tokenized in"));
    set_date(FIRST_DAY + 3 * DAY + 60); /* the template prints the day alone */
    begin("tokenize", "--seq-len 64");
    sys_args_word(&args, "--data-cache=%s", test_path("run/cache"));
    sys_run_well(&args, &process);
    CHECK(says("from the cache"));
    set_date(FIRST_DAY + 3 * DAY);

    /* A run of an earlier version has no date: it gets one at its next resume. */
    const char *const path = test_path("run/run.json");
    make_older("run");
    files_replace_text(path, "\"clock_s\"", "\"cl0ck_s\"");
    train("--max-steps 4 --resume-from-checkpoint latest");
    CHECK(says("the data has changed"));
    char *const again = files_read(path, NULL);
    CHECK(strstr(again, "\"clock_s\": 1795259200") != NULL);
    free(again);
    set_date(FIRST_DAY + 9 * DAY);
    train("--max-steps 5 --resume-from-checkpoint latest");
    CHECK(!says("the data has changed"));

    CHECK(setenv("SOURCE_DATE_EPOCH", "soon", 1) == 0);
    begin("tokenize", "--show");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 2 && says("SOURCE_DATE_EPOCH is \"soon\""));
    CHECK(unsetenv("SOURCE_DATE_EPOCH") == 0);
}

/* ---- what is held out ---------------------------------------------------------------------------------------- */

/* Writes `count` conversations, whose last answer is longer than the share that is held out. */
static const char *write_rows(const char *name, unsigned count) {
    char text[4096] = "";
    for (unsigned i = 0; i < count; i++) {
        const size_t used = strlen(text);
        snprintf(text + used, sizeof text - used,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},"
                 "{\"role\":\"assistant\",\"content\":\"%s\"}]}\n",
                 i + 1 == count ? "yo yo yo yo" : "yo");
    }
    return files_write_text(name, text);
}

static void train_rows(const char *data, const char *output, const char *words) {
    sys_args_begin(&args, "train");
    sys_args_word(&args, "--model=%s", model_path);
    sys_args_word(&args, "--data=%s", data);
    sys_args_word(&args, "--output=%s", test_path(output));
    sys_args_add(&args, words);
    sys_run_well(&args, &process);
}

/* Whole conversations are held out, the last one at least; a run of an earlier version keeps its own split. */
static void test_held_out(void) {
    write_template(template_text);
    const char *const data = write_rows("rows.jsonl", 8);
    train_rows(data, "held", "--from-scratch --max-steps 1 --max-seq-length 64");
    CHECK(says("held out: 1 document with 12 targets\n") && says("training: 7 documents in "));
    make_older("held");
    files_replace_text("held/run.json", "\"holds_whole_documents\": true", "\"holds_wh0le_documents\": true");
    train_rows(data, "held", "--max-steps 2 --resume-from-checkpoint latest --max-seq-length 64");
    CHECK(says("held out: 1 document with 2 targets\n") && says("training: 8 documents in "));
    train_rows(data, "held", "--max-steps 3 --resume-from-checkpoint latest --max-seq-length 64");
    CHECK(says("training: 8 documents in "));
    train_rows(data, "stream", "--from-scratch --max-steps 1 --packing stream --max-seq-length 4 --eval-fraction 0.05");
    CHECK(says("held out: 1 document with 8 targets\n"));
    char weighted[OX_PATH_BYTES];
    snprintf(weighted, sizeof weighted, "%s:0.25", data);
    train_rows(weighted, "weighted", "--from-scratch --max-steps 1 --max-seq-length 64 --eval-fraction 0");
    CHECK(says("training: 8 documents in 4 sequences of 64 tokens, ") && says("; by weight an epoch has 1\n"));
    train_rows(write_rows("single.jsonl", 1), "single", "--from-scratch --max-steps 1 --max-seq-length 64");
    CHECK(says("nothing is evaluated") && says("training: 1 document in "));
}

/* ---- what is not trained though a row has it ------------------------------------------------------------------ */

#define ASK "{\"role\":\"user\",\"content\":\"hi\"}"
#define KEYS "{\"messages\":[" ASK ",{\"role\":\"assistant\",\"content\":\"yo\",\"reasoning_content\":\"a\"," \
             "\"tool_calls\":[{\"name\":\"f\"}]}],\"tools\":[{\"name\":\"f\"}]}\n"

static void show(const char *rows, const char *words) {
    sys_args_begin(&args, "tokenize");
    sys_args_word(&args, "--model=%s", model_path);
    sys_args_word(&args, "--data=%s", files_write_text("keys.jsonl", rows));
    sys_args_add(&args, words);
    sys_run_well(&args, &process);
}

static void test_unread(void) {
    write_template(template_text); /* reads tool_calls alone */
    show(KEYS KEYS, "--seq-len 64");
    CHECK(says("keys.jsonl: 2 rows have tools, which the chat template does not read") && !says("tool_calls"));
    CHECK(says("keys.jsonl: 2 rows have reasoning, which the chat template does not read"));
    show(KEYS, "--seq-len 64 --chat-template chatml");
    CHECK(says("keys.jsonl: 1 row has tool_calls, which the chat template does not read, so nothing of it is trained; "
               "name a template that reads it with --chat-template\n"));
    show(one_chat, "--seq-len 64");
    CHECK(!says("warning"));
    show("{\"instruction\":\"hi\",\"output\":\"\"}\n", "--seq-len 64");
    CHECK(says("keys.jsonl: 1 row has an empty answer"));
    show("{\"prompt\":\"hi\",\"completion\":\"\"}\n{\"prompt\":\"hi\",\"completion\":\"a\"}\n", "--seq-len 64");
    CHECK(says("keys.jsonl: 1 row has an empty answer"));
}

/* A template of another family trains the letters of its end; one without tags is quiet. */
static void test_letters(void) {
    write_template("{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|eot_id|>{% endfor %}");
    show(one_chat, "--seq-len 64");
    CHECK(says("the chat template ends a turn with <|eot_id|>, which is no token of this tokenizer"));
    write_template("{% for m in messages %}### {{ m.role }}:\n{{ m.content }}\n\n{% endfor %}");
    show(one_chat, "--seq-len 64");
    CHECK(!says("which is no token"));
    write_template(template_text);
    show(one_chat, "--seq-len 64");
    CHECK(!says("which is no token"));
}

/* ---- other forms and bytes ----------------------------------------------------------------------------------- */

static void test_rendered(void) {
    char *text = NULL;
    write_template(template_text);
    show("{\"instruction\":\"hi\",\"output\":\"yo\"}\n{\"conversations\":[{\"from\":\"human\",\"value\":\"hi\"}]}\n"
         "{\"text\":\"a\"}\n", "--render");
    text = process.outcome.out;
    CHECK(strncmp(text, "{\"rendered\":\"<|im_start|>user\\nhi<|im_end|>\\n<|im_start|>assistant\\nyo", 60) == 0);
    CHECK(strstr(text, "\n{\"rendered\":\"<|im_start|>user\\nhi<|im_end|>") != NULL);
    CHECK(strstr(text, "\n{\"error\":") != NULL && strstr(text, "keys.jsonl:3: no template renders") != NULL);
}

/* A config.json is a model of bytes, if it has as many tokens, which a tokenizer beside it makes a surprise. */
static void test_bytes(void) {
    static const char config[] =
        "{\"model_type\": \"llama\", \"vocab_size\": 256, \"hidden_size\": 32, \"intermediate_size\": 64,"
        " \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2}";
    char model[OX_PATH_BYTES];
    files_write_text("speaker/bytes.json", config);
    snprintf(model, sizeof model, "%s/bytes.json", model_path);
    sys_args_begin(&args, "train");
    sys_args_word(&args, "--model=%s", model);
    sys_args_word(&args, "--data=%s", files_write_text("bytes.txt", "some words and some more of them, again"));
    sys_args_word(&args, "--output=%s", test_path("bytes"));
    sys_args_add(&args, "--max-steps 1 --max-seq-length 8");
    sys_run_well(&args, &process);
    CHECK(says("bytes.txt: 39 bytes, one token each\n"));
    CHECK(says("warning: bytes are trained, not the tokens of ") && says("bytes.json names a file; name its folder"));
}

static json_t *load(const char *name) {
    json_t *json = NULL;
    REQUIRE_OK(ox_json_load(test_pathf("kept/checkpoint-3/%s", name), 1 << 20, &json));
    return json;
}

static bool is_ids(const json_t *json, const char *key, const int64_t *expected, size_t count) {
    const json_t *const ids = json_object_get(json, key);
    bool same = json_array_size(ids) == count;
    for (size_t i = 0; i < count && same; i++) {
        same = json_integer_value(json_array_get(ids, i)) == expected[i];
    }
    return same;
}

/* A fresh model is saved with the template of the run, though the tokenizer's folder has others, with the ids of its
 * tokenizer, with all tokens that end a text or a turn, and with the evaluation of its last step. */
static void test_saved(void) {
    static const char words[] = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
                                "{{ c|tojson }}{% endfor %}"
                                "{{ '<|startoftext|>' if m.tool_calls else '<|im_end|>' }}{% endfor %}";
    char *text = NULL;
    size_t bytes = 0;
    files_write_text("speaker/chat_template.json", "{\"chat_template\": \"stale\"}");
    sys_args_begin(&args, "train");
    sys_args_word(&args, "--model=%s/config.json", model_path);
    sys_args_word(&args, "--tokenizer=%s", model_path);
    sys_args_word(&args, "--data=%s", chats_path);
    sys_args_word(&args, "--eval-data=%s", chats_path);
    sys_args_word(&args, "--chat-template=%s", files_write_text("words.jinja", words));
    sys_args_word(&args, "--output=%s", test_path("kept"));
    sys_args_add(&args, "--max-steps 3 --eval-steps 2 --max-seq-length 64");
    sys_run_well(&args, &process);
    REQUIRE_OK(ox_file_read(test_path("kept/checkpoint-3/chat_template.jinja"), 1000, &text, &bytes));
    CHECK(strcmp(text, words) == 0);
    free(text);
    json_t *const tokenizer = load("tokenizer_config.json"), *const config = load("config.json");
    json_t *const generation = load("generation_config.json"), *const state = load("trainer_state.json");
    CHECK(strcmp(json_string_value(json_object_get(tokenizer, "chat_template")), words) == 0);
    CHECK(!files_exist(test_path("kept/checkpoint-3/chat_template.json")));
    struct ox_tokenizer *opened = NULL;
    REQUIRE_OK(ox_tokenizer_open(model_path, &opened));
    const int64_t ends[] = {ox_tokenizer_eos(opened), ox_tokenizer_find(opened, "<|im_end|>", 10),
                            ox_tokenizer_find(opened, "<|startoftext|>", 15)};
    CHECK(is_ids(config, "eos_token_id", ends, 3) && is_ids(generation, "eos_token_id", ends, 3));
    CHECK(json_integer_value(json_object_get(config, "bos_token_id")) == ox_tokenizer_bos(opened));
    ox_tokenizer_close(&opened);
    const json_t *const last = json_object_get(state, "last_eval_loss");
    CHECK(json_integer_value(json_object_get(state, "last_eval_step")) == 3 && json_is_real(last));
    CHECK(json_real_value(json_object_get(state, "best_eval_loss")) <= json_real_value(last));
    json_decref(tokenizer);
    json_decref(config);
    json_decref(generation);
    json_decref(state);
}

/* A file that is no JSON is told of once, however often the run saves. */
static void test_told_once(void) {
    static const char says[] = "the file stays as the model's folder has it";
    files_write_text("speaker/generation_config.json", "{\"eos_token_id\": ");
    sys_args_begin(&args, "train");
    sys_args_word(&args, "--model=%s/config.json", model_path);
    sys_args_word(&args, "--tokenizer=%s", model_path);
    sys_args_word(&args, "--data=%s", chats_path);
    sys_args_word(&args, "--output=%s", test_path("once"));
    sys_args_word(&args, "--chat-template=%s", test_path("words.jinja"));
    sys_args_add(&args, "--max-steps 3 --save-steps 1 --max-seq-length 64");
    sys_run_well(&args, &process);
    const char *const first = strstr(process.outcome.err, says);
    CHECK(first != NULL && strstr(first + 1, says) == NULL);
    CHECK(first != NULL && strstr(first, "\nstep 1/") != NULL);
}

int main(void) {
    model_path = sys_write_speaker();
    chats_path = files_write_text("chats.jsonl", chats);
    cache_path = test_path("cache");
    test_notice();
    test_trained();
    test_no_run();
    test_date();
    test_held_out();
    test_unread();
    test_letters();
    test_rendered();
    test_bytes();
    test_saved();
    test_told_once();
    return test_end();
}
