/* `offload generate` as users see it: sampling that can be repeated, text as it streams, where it ends, chats, budgets,
 * and error messages. The model is made here and is not trained. */
#include "base/file.h"
#include "base/json.h"
#include "engine/text/chat.h"
#include "engine/hf/hf.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <string.h>
#include <unistd.h>

enum { CONTEXTS = 96, SEEDS = 12, END_OF_TURN = 422 /* <|im_end|> */ };

static const char tokenizer_path[] = "tests/golden/chat/chatml";
/* 440 tokens of which the tokenizer knows 423. */
static const char config_text[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"vocab_size\": 440,"
    " \"hidden_size\": 32, \"intermediate_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"
    " \"num_key_value_heads\": 2, \"max_position_embeddings\": 96, \"rms_norm_eps\": 1e-5,"
    " \"rope_theta\": 10000.0, \"tie_word_embeddings\": true, \"hidden_act\": \"silu\", \"eos_token_id\": null}\n";
static const char tokenizer_config[] =
    "{\"bos_token\": null, \"eos_token\": \"<|endoftext|>\","
    " \"chat_template\": \"{% for m in messages %}<|im_start|>{{ m.role }}\\n{{ m.content }}<|im_end|>\\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\\n{% endif %}"
    "{% if not enable_thinking|default(true) %}<|endoftext|>{% endif %}\"}\n";

static const char *model;
static struct sys_args args;
static struct sys_process process;

/* ---- the model --------------------------------------------------------------------------------------- */

/* Weights as a fresh start has them, but for one that is NaN when `broken`. */
static void write_weights(const char *folder, bool broken) {
    struct ox_hf_folder *config = NULL;
    struct ox_hf_writer *writer = NULL;
    const char *const path = test_pathf("%s/config.json", folder);
    REQUIRE_OK(ox_hf_open(path, false, &config));
    const struct ox_model *const built = ox_hf_model(config);
    REQUIRE_OK(ox_hf_create(folder, built, ox_hf_config(config), OX_DTYPE_F32, UINT64_MAX, &writer));
    for (uint32_t i = 0; i < built->tensor_count; i++) {
        const struct ox_tensor *const tensor = &built->tensors[i];
        float *const values = malloc(tensor->count * sizeof *values);
        for (uint64_t j = 0; j < tensor->count; j++) {
            values[j] = ox_model_init_value(built, tensor, 3, j) * (tensor->rank == 2 ? 10 : 1);
        }
        if (broken && tensor->role == OX_ROLE_FINAL_NORM) {
            values[0] = __builtin_nanf("");
        }
        REQUIRE_OK(ox_hf_write(writer, i, 0, tensor->count, values));
        free(values);
    }
    REQUIRE_OK(ox_hf_finish(&writer));
    ox_hf_close(&config);
}

static const char *make_model(const char *name, bool broken) {
    const char *const folder = files_make_folder(name);
    files_write_text(test_pathf("%s/config.json", folder), config_text);
    files_write_text(test_pathf("%s/tokenizer_config.json", folder), tokenizer_config);
    const char *const from = plain_pathf("%s/tokenizer.json", tokenizer_path);
    REQUIRE_OK(ox_file_copy(from, test_pathf("%s/tokenizer.json", name)));
    write_weights(folder, broken);
    return folder;
}

/* ---- runs -------------------------------------------------------------------------------------------- */

static void begin(const char *folder, const char *prompt) {
    sys_args_begin(&args, "generate");
    sys_args_word(&args, "--model=%s", folder);
    sys_args_add(&args, "--compute-threads 1");
    if (prompt != NULL) {
        sys_args_word(&args, "--prompt=%s", prompt);
    }
}

/* With --format json and these words; json_decref() it. */
static json_t *report_of(const char *prompt, const char *more) {
    begin(model, prompt);
    sys_args_add(&args, more);
    sys_args_add(&args, "--format json");
    sys_run_well(&args, &process);
    json_t *const report = json_loads(process.outcome.out, JSON_ALLOW_NUL, NULL);
    if (report == NULL) {
        printf("not JSON: %s\n", process.outcome.out);
        exit(1);
    }
    CHECK(process.outcome.err[0] == '\0' || strncmp(process.outcome.err, "warning: ", 9) == 0);
    return report;
}

static size_t count_of(const json_t *report, const char *key) {
    CHECK(json_is_integer(json_object_get(report, key)));
    return (size_t)json_integer_value(json_object_get(report, key));
}

static int id_at(const json_t *report, size_t idx) {
    return (int)json_integer_value(json_array_get(json_object_get(report, "ids"), idx));
}

static bool ended_by(const json_t *report, const char *finish) {
    const char *const said = json_string_value(json_object_get(report, "finish"));
    const size_t total = count_of(report, "prompt_tokens") + count_of(report, "new_tokens");
    CHECK(json_array_size(json_object_get(report, "ids")) == total);
    return said != NULL && strcmp(said, finish) == 0;
}

static bool same_ids(const json_t *a, const json_t *b) {
    return json_equal(json_object_get(a, "ids"), json_object_get(b, "ids"));
}

/* ---- sampling and streaming ---------------------------------------------------------------------------- */

static void test_sampling(void) {
    json_t *const one = report_of("The drive", "--max-new-tokens 24 --seed 7"),
                  *const again = report_of("The drive", "--max-new-tokens 24 --seed 7"),
                  *const other = report_of("The drive", "--max-new-tokens 24 --seed 8"),
                  *const greedy = report_of("The drive", "--max-new-tokens 24 --temperature 0"),
                  *const only = report_of("The drive", "--max-new-tokens 24 --top-k 1"),
                  *const nucleus = report_of("The drive", "--max-new-tokens 24 --top-p 0 --seed 9");
    CHECK(same_ids(one, again) && !same_ids(one, other) && !same_ids(one, greedy));
    CHECK(same_ids(greedy, only) && same_ids(greedy, nucleus));
    CHECK(ended_by(greedy, "length") && count_of(greedy, "new_tokens") == 24);
    json_t *const reports[] = {one, again, other, greedy, only, nucleus};
    for (int i = 0; i < 6; i++) {
        json_decref(reports[i]);
    }
}

/* Characters come in pieces, with bytes that belong to none: the streamed text is still the text of the report. */
static void test_streaming(void) {
    unsigned compared = 0;
    for (int seed = 0; seed < SEEDS; seed++) {
        char more[64];
        snprintf(more, sizeof more, "--max-new-tokens 60 --ignore-eos --seed %d", seed);
        json_t *const report = report_of("d\xc3\xa9j\xc3\xa0 vu \xe2\x82\xac", more);
        const char *const text = json_string_value(json_object_get(report, "text"));
        const size_t bytes = strlen(text);
        begin(model, "d\xc3\xa9j\xc3\xa0 vu \xe2\x82\xac");
        sys_args_add(&args, more);
        sys_run_well(&args, &process);
        CHECK(strncmp(text, "d\xc3\xa9j\xc3\xa0 vu \xe2\x82\xac", 13) == 0);
        if (bytes == json_string_length(json_object_get(report, "text"))) { /* else it holds a NUL */
            CHECK(strncmp(process.outcome.out, text, bytes) == 0);
            CHECK(strcmp(process.outcome.out + bytes, text[bytes - 1] == '\n' ? "" : "\n") == 0);
            compared++;
        }
        CHECK(strstr(process.outcome.err, "60 new |") != NULL);
        json_decref(report);
    }
    CHECK(compared > SEEDS / 2);
}

/* ---- where it ends --------------------------------------------------------------------------------------- */

static void test_stops(void) {
    char text[128];
    json_t *const free_run = report_of("The drive", "--max-new-tokens 20 --temperature 0 --ignore-eos");
    const size_t read = count_of(free_run, "prompt_tokens");
    const int stop = id_at(free_run, read + 6);
    size_t until = 1;
    while (id_at(free_run, read + until - 1) != stop) {
        until++;
    }
    snprintf(text, sizeof text, "{\"eos_token_id\": [439, %d]}", stop);
    files_write_text(test_pathf("%s/generation_config.json", model), text);
    json_t *const stopped = report_of("The drive", "--max-new-tokens 20 --temperature 0"),
                  *const ignored = report_of("The drive", "--max-new-tokens 20 --temperature 0 --ignore-eos");
    CHECK(ended_by(stopped, "stop") && count_of(stopped, "new_tokens") == until && same_ids(ignored, free_run));
    CHECK(id_at(stopped, read + until - 1) == stop);
    /* The text ends before the token that stopped it. */
    snprintf(text, sizeof text, "--max-new-tokens %zu --temperature 0 --ignore-eos", until - 1);
    json_t *const before = report_of("The drive", text);
    CHECK(json_equal(json_object_get(stopped, "text"), json_object_get(before, "text")));
    files_write("model/generation_config.json", "{}", 2);
    json_t *const full = report_of("The drive", "--max-new-tokens 1000 --ignore-eos");
    CHECK(ended_by(full, "context") && json_array_size(json_object_get(full, "ids")) == CONTEXTS);
    json_t *const reports[] = {free_run, stopped, ignored, before, full};
    for (int i = 0; i < 5; i++) {
        json_decref(reports[i]);
    }
}

/* ---- logits ------------------------------------------------------------------------------------------------ */

static void test_logits(void) {
    json_t *const report = report_of("The drive waits", "--max-new-tokens 1 --temperature 0 --top-logits 3"),
                  *const whole = report_of("The drive waits", "--max-new-tokens 1 --top-logits 1000000"),
                  *const plain = report_of("The drive waits", "--max-new-tokens 1");
    const json_t *const top = json_object_get(json_object_get(report, "prompt_logits"), "top");
    const json_t *const all = json_object_get(json_object_get(whole, "prompt_logits"), "top");
    CHECK(json_array_size(top) == 3 && json_array_size(all) == 440);
    CHECK(json_integer_value(json_array_get(json_array_get(top, 0), 0)) ==
          id_at(report, count_of(report, "prompt_tokens")));
    double sum = 0, last = 1e30;
    for (size_t i = 0; i < json_array_size(all); i++) {
        const double value = json_number_value(json_array_get(json_array_get(all, i), 1));
        CHECK(value <= last);
        sum += value;
        last = value;
    }
    const double said = json_number_value(json_object_get(json_object_get(report, "prompt_logits"), "sum"));
    CHECK(sum - said < 1e-9 && said - sum < 1e-9);
    CHECK(json_number_value(json_object_get(report, "prompt_mean_nll")) > 1);
    CHECK(json_object_get(plain, "prompt_logits") == NULL && json_object_get(plain, "prompt_mean_nll") == NULL);
    json_decref(report);
    json_decref(whole);
    json_decref(plain);
}

/* ---- chats ------------------------------------------------------------------------------------------------- */

static void render(const char *system, const char *question, const char *kwargs, struct ox_ids *ids) {
    struct ox_tokenizer *tokenizer = NULL;
    struct ox_template *chat_template = NULL;
    struct ox_chat_renderer *renderer = NULL;
    struct ox_chat chat = {0};
    struct ox_id_mask marks = {0};
    char row[512], first[128] = "";
    if (system != NULL) {
        snprintf(first, sizeof first, "{\"role\":\"system\",\"content\":\"%s\"},", system);
    }
    snprintf(row, sizeof row,
             "{\"messages\":[%s{\"role\":\"user\",\"content\":\"%s\"}],\"chat_template_kwargs\":%s}", first, question,
             kwargs);
    REQUIRE_OK(ox_chat_read_line("the test", row, strlen(row), NULL, &chat));
    REQUIRE_OK(ox_tokenizer_open(model, &tokenizer));
    REQUIRE_OK(ox_template_open(model, "", &chat_template));
    REQUIRE_OK(ox_chat_open(tokenizer,
                            &(struct ox_chat_options){.chat_template = chat_template, .generation_prompt = true},
                            &renderer));
    REQUIRE_OK(ox_chat_render(renderer, "the test", &chat, ids, &marks));
    ox_id_mask_free(&marks);
    ox_chat_free(&chat);
    ox_chat_close(&renderer);
    ox_template_close(&chat_template);
    ox_tokenizer_close(&tokenizer);
}

static void check_chat(const char *system, const char *more, const char *kwargs) {
    struct ox_ids expected = {0};
    begin(model, "Who reads?");
    if (system != NULL) {
        sys_args_word(&args, "--system-prompt=%s", system);
    }
    sys_args_add(&args, more);
    sys_args_add(&args, "--format json --chat --max-new-tokens 12 --ignore-eos");
    sys_run_well(&args, &process);
    json_t *report = NULL;
    REQUIRE_OK(ox_json_parse("stdout", process.outcome.out, strlen(process.outcome.out), &report));
    render(system, "Who reads?", kwargs, &expected);
    CHECK(count_of(report, "prompt_tokens") == expected.count && count_of(report, "new_tokens") == 12);
    for (size_t i = 0; i < expected.count; i++) {
        CHECK(id_at(report, i) == expected.ids[i]);
    }
    CHECK(strstr(json_string_value(json_object_get(report, "text")), "Who reads?") == NULL);
    ox_ids_free(&expected);
    json_decref(report);
}

/* The end of a turn stops a chat only: the tokenizer's end of text is another token. */
static void test_end_of_turn(void) {
    unsigned found = 0;
    for (int seed = 0; seed < 40 && found < 2; seed++) {
        char more[96];
        snprintf(more, sizeof more, "--chat --temperature 100 --max-new-tokens 60 --seed %d --ignore-eos", seed);
        json_t *const free_run = report_of("Go", more);
        const size_t read = count_of(free_run, "prompt_tokens");
        size_t at = 0;
        while (at < 60 && id_at(free_run, read + at) != END_OF_TURN && id_at(free_run, read + at) != 420) {
            at++;
        }
        if (at < 60 && id_at(free_run, read + at) == END_OF_TURN) {
            snprintf(more, sizeof more, "--chat --temperature 100 --max-new-tokens 60 --seed %d", seed);
            json_t *const stopped = report_of("Go", more);
            CHECK(ended_by(stopped, "stop") && count_of(stopped, "new_tokens") == at + 1);
            json_decref(stopped);
            found++;
        }
        json_decref(free_run);
    }
    CHECK(found == 2);
}

static void test_chat(void) {
    check_chat(NULL, "", "{}");
    check_chat("Be brief.", "", "{}");
    check_chat("Be brief.", "--chat-template chatml", "{}");
    check_chat("Be brief.", "--no-thinking", "{\"enable_thinking\":false}");
    check_chat(NULL, "--chat-template-kwargs={\"enable_thinking\":false}", "{\"enable_thinking\":false}");
    test_end_of_turn();
}

/* ---- prompts and budgets ----------------------------------------------------------------------------------- */

static void test_prompt_file(void) {
    char option[SYS_PATH_BYTES + 64];
    static const char text[] = "The drive\nwaits";
    const char *const path = test_path("prompt.txt");
    files_write_text(path, text);
    snprintf(option, sizeof option, "--prompt-file=%s --max-new-tokens 5 --seed 3", path);
    json_t *const from_file = report_of(NULL, option);
    json_t *const from_flag = report_of(text, "--max-new-tokens 5 --seed 3");
    CHECK(same_ids(from_file, from_flag));
    json_decref(from_file);
    json_decref(from_flag);
}

static void test_budgets(void) {
    static const char *const dtypes[] = {"fp32", "bf16"};
    for (int i = 0; i < 2; i++) {
        char more[96];
        snprintf(more, sizeof more, "--max-new-tokens 8 --seed 3 --dtype %s", dtypes[i]);
        json_t *const wide = report_of("The drive", more);
        CHECK(process.outcome.err[0] == '\0');
        snprintf(more, sizeof more, "--max-new-tokens 8 --seed 3 --dtype %s --host-mem 156KiB", dtypes[i]);
        json_t *const tight = report_of("The drive", more);
        CHECK(strstr(process.outcome.err, "again for every token") != NULL);
        CHECK(strstr(process.outcome.err, "--host-mem 1MiB") != NULL);
        CHECK(same_ids(wide, tight));
        json_decref(wide);
        json_decref(tight);
    }
}

/* A GPU that other programs have filled is named when the CPU computes instead, and refused where it was requested. */
static void test_full_gpu(void) {
    char *const before = sys_use_emulated();
    begin(model, "The drive");
    sys_args_add(&args, "--max-new-tokens 2 --device auto --quiet");
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.err, "warning: ") == NULL); /* a build with sanitizers speaks of its own */
    setenv("OX_SIMT_USED", "1000000000", 1);
    sys_run_well(&args, &process);
    static const char said[] = "warning: the CPU computes, because the GPU cannot be used: GPU: emulated has ";
    CHECK(strncmp(process.outcome.err, said, strlen(said)) == 0);
    begin(model, "The drive");
    sys_args_add(&args, "--max-new-tokens 2 --device cuda");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 1 && strstr(process.outcome.err, "too little for a run") != NULL);
    unsetenv("OX_SIMT_USED");
    sys_use(before);
}

/* ---- what is wrong ------------------------------------------------------------------------------------------- */

/* Expects one line on stderr with all these words (separated by '|'), nothing on stdout, and this exit status. */
static void check_refused(int exit_status, const char *words) {
    char text[256];
    sys_run(&args, &process);
    const char *const err = process.outcome.err;
    CHECK(process.outcome.exit_status == exit_status);
    CHECK(strncmp(err, "offload: ", 9) == 0 && strchr(err, '\n') == err + strlen(err) - 1);
    CHECK(process.outcome.out[0] == '\0');
    snprintf(text, sizeof text, "%s", words);
    for (char *rest = text, *word = strsep(&rest, "|"); word != NULL; word = strsep(&rest, "|")) {
        if (strstr(err, word) == NULL) {
            printf("no \"%s\" in: %s", word, err);
            test_failure_count++;
        }
    }
}

static void refuse(const char *folder, const char *prompt, const char *more, const char *words) {
    begin(folder, prompt);
    sys_args_add(&args, more);
    check_refused(2, words);
}

/* A model that was trained on bytes has no tokenizer: its ids are bytes, which the report shows as UTF-8. */
static void test_bytes(void) {
    static struct sys_args train;
    const char *const config = sys_write_model("llama"), *const text = sys_write_text(4000);
    sys_args_train(&train, config, text, "of-bytes");
    sys_args_add(&train, "--data-format bytes --max-seq-length 16 --max-steps 1 --compute-threads 1");
    sys_run_well(&train, &process);
    sys_args_begin(&train, "generate");
    sys_args_word(&train, "--model=%s", test_path("of-bytes/checkpoint-1"));
    sys_args_add(&train, "--prompt a\xc3\xa4 --max-new-tokens 5 --format json");
    sys_run_well(&train, &process);
    json_t *const json = json_loads(process.outcome.out, JSON_REJECT_DUPLICATES, NULL);
    const json_t *const ids = json_object_get(json, "ids");
    CHECK(json_integer_value(json_array_get(ids, 0)) == 'a' && json_integer_value(json_array_get(ids, 1)) == 0xc3 &&
          json_integer_value(json_array_get(ids, 2)) == 0xa4 && json_array_size(ids) == 8);
    CHECK(strncmp(json_string_value(json_object_get(json, "text")), "a\xc3\xa4", 3) == 0);
    json_decref(json);
    sys_args_begin(&train, "generate");
    sys_args_word(&train, "--model=%s", test_path("of-bytes/checkpoint-1"));
    sys_args_add(&train, "--prompt a --chat");
    sys_run(&train, &process);
    CHECK(process.outcome.exit_status == 2 && strstr(process.outcome.err, "is a model of bytes") != NULL);
}

static void test_bad_models(void) {
    refuse(test_path("model/config.json"), "The", "", "config.json: is a file without weights; name its folder");
    const char *folder = files_make_folder("bare");
    files_write_text(test_pathf("%s/config.json", folder), config_text);
    refuse(folder, "The", "", "--model|model.safetensors|no weights");
    write_weights(folder, false);
    refuse(folder, "The", "", "tokenizer|--tokenizer|bare");
    refuse(folder, "The", "--tokenizer=/nowhere", "/nowhere");
    begin(folder, "The");
    sys_args_word(&args, "--tokenizer=%s", tokenizer_path);
    sys_args_add(&args, "--max-new-tokens 2");
    sys_run_well(&args, &process);
    refuse(model, "drive gradient", "--tokenizer=tests/golden/chat/mistral-v1", "vocabulary|440|tokenizer");
    files_write_text(test_pathf("%s/generation_config.json", model), "{\"eos_token_id\": \"end\"}");
    refuse(model, "The", "", "generation_config.json|eos_token_id");
    files_write_text(test_pathf("%s/generation_config.json", model), "{}");
    folder = make_model("broken", true);
    begin(folder, "The");
    sys_args_add(&args, "--format json");
    check_refused(1, "not finite|offload inspect");
}

static void test_bad_requests(void) {
    char text[1024];
    memset(text, '!', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    refuse(model, text, "", "prompt|96|shorten");
    refuse(model, "The", "--host-mem 20KiB", "--host-mem 1MiB|--max-new-tokens|keys and values");
    refuse(model, "", "", "--prompt|empty");
    refuse(model, NULL, "", "--prompt|empty");
    refuse(model, "The", "--prompt-file=/nowhere", "--prompt|--prompt-file");
    refuse(model, NULL, "--prompt-file=/nowhere", "/nowhere");
    refuse(model, "The", "--chat --chat-template chatlm", "chatlm|--chat-template|chatml");
    refuse(model, "The", "--chat --chat-template llama3", "llama3|special token");
    refuse(model, NULL, "--chat --format json", "--format json|--prompt");
    refuse(model, "The", "--system-prompt=Brief", "--system-prompt|--chat");
    refuse(model, "The", "--chat-template chatml", "--chat-template|--chat");
    refuse(model, "The", "--top-logits 5", "--top-logits|--format json");
    refuse(model, "The", "--top-p 1.5", "--top-p");
    refuse(model, "The", "--temperature -1", "--temperature");
    files_write_text(test_pathf("%s/tokenizer_config.json", model), "{\"eos_token\": \"<|endoftext|>\"}");
    refuse(model, "The", "--chat", "chat template|--chat-template");
    files_write_text(test_pathf("%s/tokenizer_config.json", model), tokenizer_config);
}

/* Weights that are written to while tokens come: the run does not end as if nothing had been. */
static void test_changed_weights(void) {
    enum { TRIES = 10000, TRY_US = 1000 };
    const char *const folder = make_model("changed", false), *const weights = "changed/model.safetensors";
    files_replace_text("changed/config.json", "\"max_position_embeddings\": 96", "\"max_position_embeddings\": 9000");
    begin(folder, "The");
    sys_args_add(&args, "--max-new-tokens 2000 --ignore-eos");
    args.out_path = files_write_text("text", "");
    sys_start(&args, &process);
    for (int i = 0; i < TRIES && files_size(args.out_path) == 0; i++) {
        usleep(TRY_US);
    }
    files_patch(weights, -1, "x", 1);
    sys_wait(&process);
    CHECK(process.outcome.exit_status == 1);
    CHECK(strstr(process.outcome.err, "model.safetensors: was written to while it was read") != NULL);
}

/* ---- stop texts, penalties, samples, the standard input ------------------------------------------------- */

static void test_stop_texts(void) {
    json_t *const whole = report_of("The drive", "--max-new-tokens 24 --seed 7");
    const char *const text = json_string_value(json_object_get(whole, "text"));
    const size_t bytes = strlen(text), at = bytes - 6;
    char stop[8] = "", words[64];
    memcpy(stop, text + at, 3);
    CHECK(strpbrk(stop, ", \\") == NULL);
    snprintf(words, sizeof words, "--max-new-tokens 24 --seed 7 --stop zzz --stop %s", stop);
    const char *const first = strstr(text + strlen("The drive"), stop);
    json_t *const cut = report_of("The drive", words);
    const char *const kept = json_string_value(json_object_get(cut, "text"));
    CHECK(ended_by(cut, "stop") && first != NULL && strlen(kept) == (size_t)(first - text));
    CHECK(strncmp(kept, text, strlen(kept)) == 0);
    CHECK(count_of(cut, "new_tokens") <= count_of(whole, "new_tokens"));
    begin(model, "The drive");
    sys_args_add(&args, words);
    sys_run_well(&args, &process);
    CHECK(strncmp(process.outcome.out, kept, strlen(kept)) == 0 && process.outcome.out[strlen(kept)] == '\n');
    CHECK(strstr(process.outcome.err, "a text of --stop came") != NULL);
    json_decref(cut);
    json_decref(whole);
}

/* transformers 5.12.1, generate(do_sample=False, max_new_tokens=24, repetition_penalty=1.3) of this model. */
static void test_penalty(void) {
    static const int expected[] = {216, 116, 189, 25, 238, 51, 149, 218, 324, 333, 20, 156,
                                   60, 29, 256, 168, 0, 35, 100, 240, 382, 39, 308, 140};
    json_t *const report = report_of("The drive", "--max-new-tokens 24 --temperature 0 --repetition-penalty 1.3 "
                                                  "--ignore-eos");
    const size_t begin_at = count_of(report, "prompt_tokens");
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        CHECK(id_at(report, begin_at + i) == expected[i]);
    }
    json_decref(report);
    /* With stop_strings=["oπ"] and [">th"] it makes 10 and 15 tokens: these texts are parts of two tokens each. */
    static const char *const stops[] = {"--stop oπ", "--stop >th"};
    static const size_t counts[] = {10, 15};
    for (int i = 0; i < 2; i++) {
        char words[128];
        snprintf(words, sizeof words, "--max-new-tokens 24 --temperature 0 --repetition-penalty 1.3 --ignore-eos %s",
                 stops[i]);
        json_t *const cut = report_of("The drive", words);
        CHECK(count_of(cut, "new_tokens") == counts[i] && ended_by(cut, "stop"));
        json_decref(cut);
    }
}

/* The samples are those of the seeds from --seed on. */
static void test_samples(void) {
    json_t *const all = report_of("The drive", "--max-new-tokens 12 --seed 7 --num-return-sequences 3");
    const json_t *const samples = json_object_get(all, "samples");
    CHECK(json_array_size(samples) == 3);
    for (unsigned i = 0; i < 3; i++) {
        char words[64];
        snprintf(words, sizeof words, "--max-new-tokens 12 --seed %u", 7 + i);
        json_t *const one = report_of("The drive", words);
        const json_t *const sample = json_array_get(samples, i);
        CHECK(same_ids(one, sample));
        CHECK(json_equal(json_object_get(one, "text"), json_object_get(sample, "text")));
        json_decref(one);
    }
    json_decref(all);
    begin(model, "The drive");
    sys_args_add(&args, "--max-new-tokens 12 --seed 7 --num-return-sequences 3 --ignore-eos");
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.err, " read, 36 new | ") != NULL);
    begin(model, "The drive");
    sys_args_add(&args, "--num-return-sequences 2 --temperature 0");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 2 && sys_said(&process, "all samples are the same"));
}

/* Runs the command on what a shell writes to it; its output is in the file "said". */
static bool pipe_into(const char *input, const char *words) {
    return files_run_shell(plain_pathf("printf '%s' | %s generate --model %s --compute-threads 1 --seed 7 "
                                       "--max-new-tokens 8 %s >%s 2>/dev/null", input, sys_program(), model, words,
                                       test_path("said")));
}

static bool said(const char *expected) {
    size_t bytes = 0;
    char *const text = files_read("said", &bytes);
    const bool same = bytes == strlen(expected) && memcmp(text, expected, bytes) == 0;
    free(text);
    return same;
}

static void test_input(void) {
    char one[4096], twice[2 * sizeof one];
    begin(model, "The drive");
    sys_args_add(&args, "--seed 7 --max-new-tokens 8");
    sys_run_well(&args, &process);
    CHECK(pipe_into("The drive", "--prompt -") && said(process.outcome.out));
    CHECK(pipe_into("The drive", "--prompt-file -") && said(process.outcome.out));
    begin(model, "Hello");
    sys_args_add(&args, "--chat --seed 7 --max-new-tokens 8");
    sys_run_well(&args, &process);
    snprintf(one, sizeof one, "%.4000s", process.outcome.out);
    CHECK(pipe_into("Hello\\n", "--chat") && said(one));
    snprintf(twice, sizeof twice, "%s%s", one, one);
    CHECK(pipe_into("Hello\\n/reset\\n\\nHello", "--chat") && said(twice));
    CHECK(pipe_into("Hello\\n/exit\\nHello\\n", "--chat") && said(one));
    CHECK(pipe_into("Hello\\nHello\\n", "--chat") && !said(twice) && !said(one));
}

int main(void) {
    model = make_model("model", false);
    test_sampling();
    test_streaming();
    test_stops();
    test_logits();
    test_chat();
    test_prompt_file();
    test_budgets();
    test_full_gpu();
    test_bytes();
    test_bad_models();
    test_bad_requests();
    test_stop_texts();
    test_penalty();
    test_samples();
    test_input();
    test_changed_weights();
    return test_end();
}
