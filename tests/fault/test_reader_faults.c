/* Readers and writers of files while memory runs out or file calls fail: each allocation and each call in turn, once.
 * The work ends as without the fault, or in a status with a text; no memory leaks, and no temporary file stays. Reads
 * and writes that are cut short or interrupted, and calls that a file system does not know, change nothing; what is
 * interrupted for ever ends in a failure (tests/kit/calls.h). */
#include "base/file.h"
#include "base/hash/hash.h"
#include "base/log.h"
#include "engine/text/chat.h"
#include "engine/text/template.h"
#include "engine/checkpoint/checkpoint_internal.h"
#include "engine/config/config.h"
#include "engine/data/data.h"
#include "engine/data/corpus_internal.h"
#include "engine/hf/hf.h"
#include "engine/data/token_cache.h"
#include "tests/kit/documents.h"
#include "tests/kit/calls.h"
#include "tests/kit/files.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* Faults: a name for messages, and the rule without its call. */
static const struct {
    const char *name;
    enum call_fault fault;
    int error;
    bool persistent;
} faults[] = {{"fails", CALL_FAILS, EIO, false},
              {"is interrupted", CALL_FAILS, EINTR, false},
              {"is interrupted for ever", CALL_FAILS, EINTR, true},
              {"is cut short", CALL_IS_SHORT, EIO, false},
              {"is not known", CALL_FAILS, EOPNOTSUPP, false},
              {"is not known", CALL_FAILS, EINVAL, false}};
enum fault { FAULT_FAIL, FAULT_INTERRUPT, FAULT_INTERRUPTS, FAULT_SHORT, FAULT_UNKNOWN, FAULT_INVALID };

static struct call_rule rule;

/* ---- the work -------------------------------------------------------------------------------------------------- */

/* The outcome of a case, without what differs from run to run. */
static uint64_t digest;

static void see(const void *data, size_t bytes) {
    digest = ox_hash64(data, bytes, digest);
}

static enum ox_status read_data(const char *name, enum ox_data_kind kind) {
    struct ox_data *data = NULL;
    int32_t tokens[512];
    uint8_t marks[512];
    uint64_t begins[128];
    enum ox_status status = ox_data_open(test_path(name), kind, &data);
    if (status != OX_OK) {
        CHECK(data == NULL);
        return status;
    }
    const uint64_t count = ox_data_token_count(data), documents = ox_data_document_count(data);
    CHECK(count <= 512 && documents <= 128);
    status = ox_data_read(data, 0, count, 65536, tokens, marks);
    if (status == OX_OK) {
        status = ox_data_documents(data, 0, documents, begins);
    }
    if (status == OX_OK) {
        const uint64_t fingerprint = ox_data_fingerprint(data);
        see(tokens, count * sizeof *tokens);
        see(marks, count);
        see(begins, documents * sizeof *begins);
        see(&fingerprint, sizeof fingerprint);
    }
    ox_data_close(&data);
    return status;
}

static enum ox_status work_few(void) {
    return read_data("few", OX_DATA_AUTO);
}

static enum ox_status work_many(void) {
    return read_data("many", OX_DATA_BYTES);
}

static enum ox_status work_masked(void) {
    return read_data("masked", OX_DATA_AUTO);
}

static enum ox_status write_cache(const char *path, const char *place, int *fd) {
    static int32_t ids[10000];
    const struct ox_cache_header header = {.key = {1, 2}, .source_bytes = 3, .vocab = 5};
    struct ox_cache_writer *writer = NULL;
    enum ox_status status = ox_cache_create(path, place, &writer);
    if (status != OX_OK) {
        CHECK(writer == NULL);
        return status;
    }
    for (size_t i = 0; status == OX_OK && i < 3000; i++) {
        status = ox_cache_add(writer, true, ids, NULL, i % 3);
    }
    if (status == OX_OK) {
        status = ox_cache_add(writer, true, ids, NULL, sizeof ids / sizeof *ids);
    }
    if (status != OX_OK) {
        ox_cache_discard(&writer);
        return status;
    }
    status = ox_cache_commit(&writer, &header, fd);
    CHECK(writer == NULL);
    return status;
}

static enum ox_status work_cache(void) {
    struct ox_data *data = NULL;
    int fd = -1;
    enum ox_status status = write_cache(test_path("out/cache"), NULL, NULL);
    if (status == OX_OK) {
        status = ox_data_open(test_path("out/cache"), OX_DATA_AUTO, &data);
    }
    ox_data_close(&data);
    if (status == OX_OK) {
        status = write_cache(NULL, test_path("out"), &fd);
    }
    if (status == OX_OK) {
        status = ox_data_open_fd(fd, "tokens", &data);
    }
    if (status == OX_OK) {
        const uint64_t numbers[] = {ox_data_token_count(data), ox_data_document_count(data),
                                    ox_data_fingerprint(data)};
        see(numbers, sizeof numbers);
    }
    ox_data_close(&data);
    return status;
}

static enum ox_status read_documents(const char *name, const struct ox_documents_config *config) {
    struct ox_documents *documents = NULL;
    struct ox_document piece;
    uint64_t hash = 0;
    bool found = true;
    enum ox_status status = documents_open(test_path(name), config, &documents);
    if (status != OX_OK) {
        CHECK(documents == NULL);
        return status;
    }
    while (status == OX_OK && found) {
        status = ox_documents_next(documents, &piece, &found);
        if (status == OX_OK && found) {
            see(piece.text, piece.bytes);
        }
    }
    if (status == OX_OK) {
        status = ox_documents_hash(documents, &hash);
    }
    CHECK(status != OX_OK || hash == ox_documents_hash_read(documents));
    ox_documents_close(&documents);
    return status;
}

static enum ox_status work_texts(void) {
    const struct ox_documents_config config = {.separator = "|", .separator_bytes = 1, .piece_bytes = 8};
    const enum ox_status status = read_documents("texts", &config);
    return status == OX_OK ? read_documents("long", &config) : status;
}

static enum ox_status work_rows(void) {
    const struct ox_documents_config config = {.format = OX_DOCUMENTS_ROWS};
    static const char *const names[] = {"rows", "lines", "array", "blanks"};
    const struct ox_corpus_config folder = {.path = test_path("rows"), .tokenizer = ""};
    struct ox_inputs inputs;
    enum ox_status status = ox_inputs_open(&folder, &inputs);
    CHECK(status != OX_OK || inputs.format == OX_CORPUS_ROWS);
    ox_inputs_close(&inputs);
    for (size_t i = 0; status == OX_OK && i < sizeof names / sizeof *names; i++) {
        status = read_documents(names[i], &config);
    }
    return status;
}

static enum ox_status work_model(void) {
    struct ox_hf_folder *model = NULL;
    float values[16];
    enum ox_status status = ox_hf_open(test_path("model"), true, &model);
    if (status != OX_OK) {
        CHECK(model == NULL);
        return status;
    }
    CHECK(ox_hf_has_weights(model));
    for (uint32_t i = 0; status == OX_OK && i < ox_hf_model(model)->tensor_count; i++) {
        const uint64_t count = ox_hf_model(model)->tensors[i].count;
        status = ox_hf_read(model, i, 0, count < 16 ? count : 16, values);
        see(values, sizeof *values * (size_t)(count < 16 ? count : 16));
    }
    ox_hf_close(&model);
    return status;
}

static enum ox_status use_tokenizer(const char *path, const struct ox_tokenizer *tokenizer, struct ox_ids *ids,
                                    struct ox_id_mask *marks) {
    static const char row[] = "{\"messages\":[{\"role\":\"system\",\"content\":\"one two\"},{\"role\":\"user\","
                              "\"content\":\"Hi <|im_end|> e\xcc\x81 12\"},{\"role\":\"assistant\",\"content\":"
                              "[{\"type\":\"text\",\"text\":\"yes, it is\"}]}]}";
    struct ox_chat_options options = {0};
    struct ox_template *chat_template = NULL;
    struct ox_encoder *encoder = NULL;
    struct ox_chat_renderer *renderer = NULL;
    struct ox_chat chat = {0};
    char *text = NULL;
    size_t bytes = 0;
    enum ox_status status = ox_encoder_open(tokenizer, &encoder);
    if (status == OX_OK) {
        status = ox_encode(encoder, row, sizeof row - 1, true, true, ids);
    }
    if (status == OX_OK) {
        status = ox_decode(tokenizer, ids->ids, ids->count, false, &text, &bytes);
        see(text, status == OX_OK ? bytes : 0);
    }
    if (status == OX_OK) {
        status = ox_template_open(path, "", &chat_template);
    }
    if (status == OX_OK) {
        options.chat_template = chat_template;
        status = ox_chat_open(tokenizer, &options, &renderer);
    }
    if (status == OX_OK) {
        status = ox_chat_read_line("row 1", row, sizeof row - 1, NULL, &chat);
    }
    if (status == OX_OK) {
        status = ox_chat_render(renderer, "row 1", &chat, ids, marks);
    }
    free(text);
    ox_chat_free(&chat);
    ox_chat_close(&renderer);
    ox_template_close(&chat_template);
    ox_encoder_close(&encoder);
    return status;
}

static enum ox_status take_tokenizer(const char *path) {
    struct ox_tokenizer *tokenizer = NULL;
    struct ox_ids ids = {0};
    struct ox_id_mask marks = {0};
    enum ox_status status = ox_tokenizer_open(path, &tokenizer);
    CHECK((status == OX_OK) == (tokenizer != NULL));
    if (status == OX_OK) {
        status = use_tokenizer(path, tokenizer, &ids, &marks);
    }
    if (status == OX_OK) {
        see(ids.ids, ids.count * sizeof *ids.ids);
        see(marks.marks, marks.count);
    }
    ox_ids_free(&ids);
    ox_id_mask_free(&marks);
    ox_tokenizer_close(&tokenizer);
    return status;
}

static enum ox_status work_tokenizer(void) {
    return take_tokenizer("tests/golden/chat/chatml");
}

static enum ox_status work_characters(void) {
    return take_tokenizer("tests/golden/chat/llama2");
}

static enum ox_status work_template(void) {
    static const char row[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\","
                              "\"content\":\"yes\",\"thinking\":null}],\"chat_template_kwargs\":{\"x\":[1,2.5]}}";
    const struct tm now = {.tm_year = 126, .tm_mday = 20};
    struct ox_template *chat_template = NULL;
    struct ox_template_turns turns = {0};
    json_t *json = NULL;
    enum ox_status status = ox_template_open("tests/golden/chat/chatml", "", &chat_template);
    CHECK((status == OX_OK) == (chat_template != NULL));
    if (status == OX_OK) {
        status = ox_json_parse("row 1", row, sizeof row - 1, &json);
    }
    if (status == OX_OK) {
        status = ox_template_render_turns(chat_template, json, &now, &turns);
        see(turns.output.text, status == OX_OK ? turns.output.text_bytes : 0);
        see(&turns.count, sizeof turns.count);
        ox_template_turns_free(&turns);
    }
    json_decref(json);
    ox_template_close(&chat_template);
    return status;
}

static enum ox_status work_config(void) {
    static struct ox_config config;
    char *text = NULL;
    ox_config_init(&config);
    enum ox_status status = ox_config_load_yaml(&config, test_path("run.yaml"), OX_CMD_TRAIN);
    if (status == OX_OK) {
        see(config.files.model, strlen(config.files.model));
        see(&config.train.max_steps, sizeof config.train.max_steps);
        see(config.memory.nvme[1].path, strlen(config.memory.nvme[1].path));
        status = ox_config_to_yaml(&config, OX_CMD_TRAIN, &text);
    }
    if (status == OX_OK) {
        see(text, strlen(text));
        free(text);
    }
    return status;
}

static enum ox_status work_checkpoint(void) {
    struct ox_manifest manifest = {.state = {.version = OX_RUN_STATE_VERSION}, .weights_dtype = OX_DTYPE_F32};
    char path[OX_PATH_BYTES];
    unlink(test_path("run/checkpoint-7/" OX_LISTED_IN)); /* else it is listed */
    enum ox_status status = ox_manifest_collect(test_path("run/checkpoint-7"), &manifest);
    if (status == OX_OK) {
        status = ox_manifest_write(test_path("run/checkpoint-7"), &manifest);
    }
    ox_manifest_close(&manifest);
    if (status == OX_OK) {
        status = ox_manifest_read(test_path("run/checkpoint-7"), &manifest);
        see(&manifest.list.count, sizeof manifest.list.count);
        ox_manifest_close(&manifest);
    }
    if (status == OX_OK) {
        status = ox_checkpoint_verify(test_path("run/checkpoint-7"));
    }
    if (status == OX_OK) {
        status = ox_checkpoint_find_latest(test_path("run"), path);
        see(path, status == OX_OK ? strlen(path) : 0);
    }
    return status;
}

static enum ox_status work_files(void) {
    uint64_t free_bytes = 0;
    char *text = NULL;
    size_t bytes = 0;
    CHECK(ox_folder_remove(test_path("out/made")) == OX_OK || calls_seen->hits > 0);
    CHECK(ox_folder_remove(test_path("out/a")) == OX_OK || calls_seen->hits > 0);
    enum ox_status status = ox_file_replace(test_path("out/copied"), "text", 4);
    if (status == OX_OK) {
        status = ox_file_copy(test_path("long"), test_path("out/copied"));
    }
    if (status == OX_OK) {
        status = ox_file_read(test_path("out/copied"), 1 << 24, &text, &bytes);
    }
    if (status == OX_OK) {
        see(text, bytes);
        free(text);
        status = ox_file_read("/proc/self/maps", 1 << 24, &text, &bytes); /* a file of unknown size */
    }
    if (status == OX_OK) {
        free(text);
        status = ox_folder_make(test_path("out/a/b/c"));
    }
    if (status == OX_OK) {
        status = ox_folder_commit(test_path("out/a/b"), test_path("out/made"));
    }
    if (status == OX_OK) {
        status = ox_folder_free_bytes(test_path("out"), &free_bytes);
    }
    return status == OX_OK ? ox_folder_remove(test_path("out/made")) : status;
}

/* ---- the faults ------------------------------------------------------------------------------------------------ */

struct work {
    const char *name;
    enum ox_status (*run)(void);
};

static int temporaries(void) {
    static const char *const places[] = {"out", "run", "run/checkpoint-7"};
    int count = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        count += (int)files_count(places[i], ".offload", "");
    }
    return count;
}

/* A list of checkpoints that cannot be read to its end is no answer: the highest one may be missing from it. */
static void test_cut_list(void) {
    char path[OX_PATH_BYTES];
    rule = (struct call_rule){.call = CALL_LIST, .fault = CALL_FAILS, .error = EIO};
    calls_set(&rule);
    calls_arm(true);
    const enum ox_status status = ox_checkpoint_find_latest(test_path("listed"), path);
    calls_arm(false);
    CHECK(calls_seen->hits == 1 && status == OX_E_IO && strstr(ox_error_text(), "cannot list the folder") != NULL);
}

/* A manifest whose path is too long is not written, which is a failure. */
static void test_long_path(void) {
    const struct ox_manifest manifest = {.state = {.version = OX_RUN_STATE_VERSION}, .weights_dtype = OX_DTYPE_F32};
    char folder[OX_PATH_BYTES];
    memset(folder, 'a', sizeof folder - 1);
    folder[sizeof folder - 1] = '\0';
    CHECK(ox_manifest_write(folder, &manifest) == OX_E_CONFIG);
}

/* Returns false if there were fewer calls. */
static bool try_one(const struct work *work, enum fault fault, uint64_t expected) {
    digest = 0;
    calls_set(&rule);
    calls_arm(true);
    const enum ox_status status = work->run();
    calls_arm(false);
    const bool must_pass = (fault != FAULT_FAIL && fault != FAULT_INTERRUPTS) || calls_seen->hits == 0;
    const bool known = status >= OX_OK && status < OX_STATUS_COUNT;
    if (!known || (status == OX_OK && digest != expected) || (status != OX_OK && ox_error_text()[0] == '\0') ||
        (status != OX_OK && must_pass) || temporaries() > 0) {
        printf("%s: call %llu of %s %s: %s, %s, %d temporary files: %s\n", work->name, (unsigned long long)rule.idx,
               call_names[rule.call], faults[fault].name, ox_status_name(status),
               digest == expected ? "the same" : "another result", temporaries(), ox_error_text());
        test_failure_count++;
    }
    return calls_seen->hits > 0;
}

static uint64_t tried;

static void try_all(const struct work *work, enum call call, enum fault fault, uint64_t expected) {
    rule = (struct call_rule){.call = call, .fault = faults[fault].fault, .error = faults[fault].error,
                              .persistent = faults[fault].persistent};
    /* The first calls differ most; there are thousands of allocations. */
    for (; try_one(work, fault, expected); rule.idx += 1 + rule.idx / 32) {
        tried++;
    }
}

static void make_long(void) {
    enum { BYTES = (1 << 20) + 50000 };
    char *const text = malloc(BYTES);
    CHECK(text != NULL);
    memset(text, 'a', BYTES);
    files_write("long", text, BYTES);
    files_write("lines", text, BYTES);
    text[0] = '[';
    text[BYTES - 1] = ']';
    files_write("array", text, BYTES);
    memset(text, ' ', BYTES);
    text[BYTES - 1] = '1';
    files_write("blanks", text, BYTES);
    free(text);
}

static void make_model(void) {
    static const char shard[] = "model-00001-of-00001.safetensors";
    char text[1 << 14];
    size_t used = 0;
    struct ox_hf_folder *model = NULL;
    REQUIRE_OK(ox_folder_make(test_path("model")));
    REQUIRE_OK(ox_file_copy("tests/golden/qwen2/config.json", test_path("model/config.json")));
    REQUIRE_OK(ox_file_copy("tests/golden/qwen2/model.safetensors", test_path("model/model.safetensors")));
    REQUIRE_OK(ox_hf_open(test_path("model"), true, &model));
    used += (size_t)snprintf(text, sizeof text, "{\"weight_map\":{");
    for (uint32_t i = 0; i < ox_hf_model(model)->tensor_count; i++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%s\"%s\":\"%s\"", i > 0 ? "," : "",
                                 ox_hf_model(model)->tensors[i].name, shard);
    }
    used += (size_t)snprintf(text + used, sizeof text - used, "}}");
    ox_hf_close(&model);
    CHECK(rename(test_path("model/model.safetensors"), test_path("model/model-00001-of-00001.safetensors")) == 0);
    files_write("model/model.safetensors.index.json", text, used);
}

static void make_inputs(void) {
    static const char *const folders[] = {"few", "many", "texts", "rows", "out", "run/checkpoint-7",
                                          "listed/checkpoint-7"};
    static const char yaml[] = "model: m\ndata: a,b:2\nnvme: [/a:1GiB, /b:2GiB]\noutput: o\nmax_steps: 10\n";
    unsigned char masked[1024 + 40 * 4 + 5] = {0};
    const int32_t header[8] = {0, 0, 2, 4, 40, 50000, 1};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        REQUIRE_OK(ox_folder_make(test_path(folders[i])));
    }
    for (int i = 0; i < 70; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s/%d", i < 3 ? "few" : "many", i);
        files_write(name, &i, 2);
    }
    files_write("many/67", "x", 1);
    memcpy(masked, header, sizeof header);
    memcpy(masked, "BIN.TOK\n", 8);
    memset(masked + 1024 + 160, 0x5a, 5);
    files_write("masked", masked, sizeof masked);
    files_write("texts/a", "one\ntwo\nthree\nfour\n|five", 24);
    files_write("texts/b", "six", 3);
    files_write("rows/a.jsonl", "{\"a\": 1}\n{}\n", 12);
    files_write("rows/b.json", "[{}, 2]", 7);
    files_write("run.yaml", yaml, sizeof yaml - 1);
    files_write("run/checkpoint-7/config.json", "{}", 2);
    files_write("run/latest", "checkpoint-7\n", 13);
    make_long();
    make_model();
}

static void ignore_line(void *context, enum ox_log_level level, const char *line) {
    (void)context;
    (void)level;
    (void)line;
}

int main(void) {
    static const struct work works[] = {
        {"few files", work_few},     {"many files", work_many},       {"masked tokens", work_masked},
        {"cache", work_cache},       {"texts", work_texts},           {"rows", work_rows},
        {"model", work_model},       {"tokenizer", work_tokenizer},   {"characters", work_characters},
        {"template", work_template}, {"config", work_config},         {"checkpoint", work_checkpoint},
        {"files", work_files},
    };
    static const enum call points[] = {
        CALL_MEMORY, CALL_OPEN,   CALL_OPEN_UNNAMED, CALL_STAT, CALL_LIST,     CALL_READ,
        CALL_WRITE,  CALL_SYNC,   CALL_RENAME,       CALL_RENAME_NEW, CALL_ALLOCATE, CALL_TRUNCATE,
        CALL_LOCK,   CALL_MAKE,   CALL_REMOVE,       CALL_SPACE, CALL_RANDOM,
    };
    static const enum call transfers[] = {CALL_READ, CALL_WRITE};
    ox_log_set_sink(ignore_line, NULL);
    calls_options.skips_sync = true; /* nothing here outlives the machine */
    calls_memory_spare_json();
    make_inputs();
    test_cut_list();
    test_long_path();
    for (size_t i = 0; i < sizeof works / sizeof *works; i++) {
        digest = 0;
        REQUIRE_OK(works[i].run());
        const uint64_t expected = digest;
        tried = 0;
        for (size_t j = 0; j < sizeof points / sizeof *points; j++) {
            try_all(&works[i], points[j], FAULT_FAIL, expected);
        }
        for (size_t j = 0; j < 2; j++) {
            try_all(&works[i], transfers[j], FAULT_SHORT, expected);
            try_all(&works[i], transfers[j], FAULT_INTERRUPT, expected);
            try_all(&works[i], transfers[j], FAULT_INTERRUPTS, expected);
        }
        try_all(&works[i], CALL_LOCK, FAULT_INTERRUPTS, expected);
        try_all(&works[i], CALL_ALLOCATE, FAULT_INTERRUPTS, expected);
        try_all(&works[i], CALL_ALLOCATE, FAULT_INTERRUPT, expected);
        try_all(&works[i], CALL_OPEN_UNNAMED, FAULT_UNKNOWN, expected);
        try_all(&works[i], CALL_RENAME_NEW, FAULT_INVALID, expected);
        try_all(&works[i], CALL_ALLOCATE, FAULT_UNKNOWN, expected);
        CHECK(tried > 5);
        printf("%s: %llu faults\n", works[i].name, (unsigned long long)tried);
        fflush(stdout);
    }
    return test_end();
}
