/* Conversations through published chat templates and real tokenizers, which are not part of the project: ids and masks
 * equal those of transformers, by the hashes in tests/golden/chat/real.json that tests/golden/make/golden_masks.py
 * wrote. */
#include "base/file.h"
#include "base/json.h"
#include "engine/text/chat.h"
#include "tests/kit/files.h"
#include "tests/kit/test.h"

#include <string.h>

enum { FILE_BYTES_MAX = 256 << 20, TOKENIZERS_MAX = 8, SHOWN_MAX = 20 };

static const char *data;
static json_t *references; /* all lines of references.jsonl */

/* One template with its tokenizer, and what is found of it. */
struct subject {
    const json_t *expected;
    struct ox_chat_renderer *ids_alone, *masks;
    uint64_t rows, ids, masked, trained, hash_ids, hash_masks;
    size_t unmasked_idx; /* in the list of rows without a mask */
};

static void hash_byte(uint64_t *hash, uint8_t byte) {
    *hash = (*hash ^ byte) * UINT64_C(0x100000001b3); /* FNV-1a */
}

/* ---- tokenizers ------------------------------------------------------------------------------------------------ */

/* A real tokenizer with the special tokens of its templates. */
static struct ox_tokenizer *open_tokenizer(const char *name, json_t *special) {
    struct ox_tokenizer *tokenizer = NULL;
    const char *text = NULL;
    char *whole = NULL;
    size_t bytes = 0;
    json_t *id = NULL;
    json_t *json = NULL;
    char path[OX_PATH_BYTES];
    snprintf(path, sizeof path, "%s/tokenizers/%s/tokenizer.json", data, name);
    REQUIRE_OK(ox_file_read(path, FILE_BYTES_MAX, &whole, &bytes)); /* more values than ox_json_load reads */
    REQUIRE_OK(ox_json_parse(path, whole, bytes, &json));
    free(whole);
    json_object_foreach(special, text, id) {
        json_t *const token = json_pack("{s:O,s:s,s:b,s:b,s:b,s:b,s:b}", "id", id, "content", text, "single_word", 0,
                                        "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1);
        CHECK(json_array_append_new(json_object_get(json, "added_tokens"), token) == 0);
    }
    files_make_folder(name);
    const char *const made = test_pathf("%s/tokenizer.json", name);
    CHECK(json_dump_file(json, made, JSON_COMPACT) == 0);
    json_decref(json);
    REQUIRE_OK(ox_tokenizer_open(made, &tokenizer));
    return tokenizer;
}

/* ---- rows ------------------------------------------------------------------------------------------------------ */

/* Whether training data may have the conversation; golden_masks.py takes the same. */
static bool is_usable(const json_t *row) {
    const json_t *const messages = json_object_get(row, "messages");
    bool usable = json_array_size(messages) > 0;
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *const message = json_array_get(messages, i);
        const json_t *const content = json_object_get(message, "content");
        const bool calls = json_array_size(json_object_get(message, "tool_calls")) > 0;
        usable = usable && json_is_string(json_object_get(message, "role")) &&
                 (json_is_string(content) || (calls && (content == NULL || json_is_null(content))));
    }
    return usable;
}

/* Whether the reference has no mask of the row. */
static bool is_unmasked(struct subject *subject, size_t number) {
    const json_t *const list = json_object_get(subject->expected, "unmasked");
    const bool listed =
        (size_t)json_integer_value(json_array_get(list, subject->unmasked_idx)) == number &&
        subject->unmasked_idx < json_array_size(list);
    subject->unmasked_idx += listed;
    return listed;
}

static void add_masks(struct subject *subject, const char *where, const struct ox_chat *chat,
                      const struct ox_ids *expected) {
    struct ox_ids ids = {0};
    struct ox_id_mask trained = {0};
    if (ox_chat_render(subject->masks, where, chat, &ids, &trained) != OX_OK) {
        printf("%s: refused: %s\n", where, ox_error_text());
        test_failure_count++;
    }
    CHECK(ids.count == expected->count &&
          (ids.count == 0 || memcmp(ids.ids, expected->ids, ids.count * sizeof *ids.ids) == 0));
    for (size_t i = 0; i < trained.count; i++) {
        hash_byte(&subject->hash_masks, trained.marks[i]);
        subject->trained += trained.marks[i];
    }
    subject->masked++;
    ox_id_mask_free(&trained);
    ox_ids_free(&ids);
}

static void add_row(struct subject *subject, size_t number, const json_t *row) {
    struct ox_chat chat = {0};
    struct ox_ids ids = {0};
    struct ox_id_mask all = {0};
    char where[160];
    snprintf(where, sizeof where, "%.100s, line %zu", json_string_value(json_object_get(row, "template")), number + 1);
    json_t *const taken = json_pack("{s:O,s:O,s:O}", "messages", json_object_get(row, "messages"), "tools",
                                    json_object_get(row, "tools"), "chat_template_kwargs",
                                    json_object_get(row, "kwargs"));
    REQUIRE_OK(ox_chat_read(where, taken, NULL, &chat));
    if (ox_chat_render(subject->ids_alone, where, &chat, &ids, &all) == OX_OK) {
        subject->rows++;
        subject->ids += ids.count;
        for (size_t i = 0; i < ids.count; i++) {
            for (unsigned shift = 0; shift < 32; shift += 8) {
                hash_byte(&subject->hash_ids, (uint8_t)((uint32_t)ids.ids[i] >> shift));
            }
        }
        if (!is_unmasked(subject, number)) {
            add_masks(subject, where, &chat, &ids);
        }
    }
    json_decref(taken);
    ox_id_mask_free(&all);
    ox_ids_free(&ids);
    ox_chat_free(&chat);
}

/* ---- templates ------------------------------------------------------------------------------------------------- */

static uint64_t count_in(const json_t *expected, const char *key) {
    return (uint64_t)json_integer_value(json_object_get(expected, key));
}

static bool same_hash(const json_t *expected, const char *key, uint64_t hash) {
    char text[17];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    return strcmp(text, json_string_value(json_object_get(expected, key))) == 0;
}

static void check_subject(const struct subject *subject) {
    const json_t *const expected = subject->expected;
    const bool same_ids = count_in(expected, "rows") == subject->rows && count_in(expected, "ids") == subject->ids &&
                          same_hash(expected, "fnv1a_ids", subject->hash_ids);
    const bool same_masks = count_in(expected, "masked") == subject->masked &&
                            count_in(expected, "trained") == subject->trained &&
                            same_hash(expected, "fnv1a_masks", subject->hash_masks);
    if (!same_ids || !same_masks) {
        printf("%s: the %s differ: %llu rows, %llu ids, %llu masked, %llu trained\n",
               json_string_value(json_object_get(expected, "name")), same_ids ? "masks" : "ids",
               (unsigned long long)subject->rows, (unsigned long long)subject->ids, (unsigned long long)subject->masked,
               (unsigned long long)subject->trained);
        test_failure_count++;
    }
}

static void compare(const json_t *expected, const struct ox_tokenizer *tokenizer) {
    const char *const name = json_string_value(json_object_get(expected, "name"));
    struct subject subject = {
        .expected = expected, .hash_ids = UINT64_C(0xcbf29ce484222325), .hash_masks = UINT64_C(0xcbf29ce484222325)};
    struct ox_template *chat_template = NULL;
    char path[OX_PATH_BYTES];
    snprintf(path, sizeof path, "%s/templates/%s.jinja", data, name);
    files_make_folder("template");
    CHECK(json_dump_file(json_object_get(expected, "tokens"), test_path("template/tokenizer_config.json"), 0) == 0);
    REQUIRE_OK(ox_template_open(test_path("template"), path, &chat_template));
    struct ox_chat_options options = {.chat_template = chat_template,
                                      .now = {.tm_year = 126, .tm_mon = 10, .tm_mday = 20, .tm_hour = 15, .tm_min = 4,
                                              .tm_sec = 5, .tm_wday = 5, .tm_yday = 323},
                                      .parse_special = true};
    REQUIRE_OK(ox_chat_open(tokenizer, &options, &subject.masks));
    options.train_on = OX_TRAIN_ON_PROMPTS;
    REQUIRE_OK(ox_chat_open(tokenizer, &options, &subject.ids_alone));
    for (size_t i = 0; i < json_array_size(references); i++) {
        const json_t *const row = json_array_get(references, i);
        if (strcmp(json_string_value(json_object_get(row, "template")), name) == 0 && is_usable(row)) {
            add_row(&subject, i, row);
        }
    }
    check_subject(&subject);
    ox_chat_close(&subject.masks);
    ox_chat_close(&subject.ids_alone);
    ox_template_close(&chat_template);
}

static void read_references(void) {
    char path[OX_PATH_BYTES];
    char *text = NULL;
    size_t bytes = 0;
    snprintf(path, sizeof path, "%s/templates/references.jsonl", data);
    REQUIRE_OK(ox_file_read(path, FILE_BYTES_MAX, &text, &bytes));
    references = json_array();
    for (const char *line = text; line < text + bytes;) {
        const char *const end = memchr(line, '\n', (size_t)(text + bytes - line));
        json_error_t error;
        json_t *const row = json_loadb(line, (size_t)(end - line), JSON_ALLOW_NUL, &error);
        CHECK(row != NULL && json_array_append_new(references, row) == 0);
        line = end + 1;
    }
    free(text);
}

int main(void) {
    data = test_data_folder();
    if (data == NULL) {
        test_skip("the real tokenizers are not there; set OX_TEST_DATA to their folder");
    }
    json_t *expected = NULL;
    const char *name = NULL;
    json_t *special = NULL;
    REQUIRE_OK(ox_json_load("tests/golden/chat/real.json", FILE_BYTES_MAX, &expected));
    read_references();
    const json_t *const templates = json_object_get(expected, "templates");
    uint64_t rows = 0, masked = 0;
    json_object_foreach(json_object_get(expected, "special"), name, special) {
        struct ox_tokenizer *tokenizer = open_tokenizer(name, special);
        for (size_t i = 0; i < json_array_size(templates); i++) {
            const json_t *const one = json_array_get(templates, i);
            if (strcmp(json_string_value(json_object_get(one, "tokenizer")), name) == 0) {
                compare(one, tokenizer);
                rows += count_in(one, "rows");
                masked += count_in(one, "masked");
            }
        }
        ox_tokenizer_close(&tokenizer);
    }
    printf("%zu templates, %llu rows, %llu of them with masks\n", json_array_size(templates), (unsigned long long)rows,
           (unsigned long long)masked);
    json_decref(references);
    json_decref(expected);
    return test_end();
}
