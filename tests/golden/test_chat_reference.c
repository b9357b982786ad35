/* Conversations with Qwen3's own tokenizer, which is not part of the project: ids and masks equal those of
 * transformers, by the hash in tests/golden/chat/qwen3_real.json that tests/golden/make/golden_chat.py --real wrote. */
#include "base/file.h"
#include "base/json.h"
#include "engine/text/chat.h"
#include "tests/kit/test.h"

#include <string.h>

enum { FILE_BYTES_MAX = 64 << 20 };

struct totals {
    uint64_t rows, ids, trained, hash;
};

static void hash_byte(struct totals *totals, uint8_t byte) {
    totals->hash = (totals->hash ^ byte) * UINT64_C(0x100000001b3); /* FNV-1a */
}

static void add_row(struct ox_chat_renderer *renderer, const char *line, size_t bytes, struct totals *totals) {
    struct ox_chat chat = {0};
    struct ox_ids ids = {0};
    struct ox_id_mask trained = {0};
    char where[64];
    snprintf(where, sizeof where, "row %llu", (unsigned long long)totals->rows);
    REQUIRE_OK(ox_chat_read_line(where, line, bytes, NULL, &chat));
    REQUIRE_OK(ox_chat_render(renderer, where, &chat, &ids, &trained));
    CHECK(ids.count == trained.count);
    for (size_t i = 0; i < ids.count; i++) {
        for (unsigned shift = 0; shift < 32; shift += 8) {
            hash_byte(totals, (uint8_t)((uint32_t)ids.ids[i] >> shift));
        }
        hash_byte(totals, trained.marks[i]);
        totals->trained += trained.marks[i];
    }
    totals->rows++;
    totals->ids += ids.count;
    ox_id_mask_free(&trained);
    ox_ids_free(&ids);
    ox_chat_free(&chat);
}

static void compare(struct ox_chat_renderer *renderer, const char *path) {
    struct totals totals = {.hash = UINT64_C(0xcbf29ce484222325)};
    json_t *expected = NULL;
    char *text = NULL;
    size_t bytes = 0;
    uint64_t rows = 0, ids = 0, trained = 0;
    const char *hash = NULL;
    char found[17];
    REQUIRE_OK(ox_json_load("tests/golden/chat/qwen3_real.json", FILE_BYTES_MAX, &expected));
    REQUIRE_OK(ox_json_get_u64("expected", expected, "rows", true, &rows));
    REQUIRE_OK(ox_json_get_u64("expected", expected, "ids", true, &ids));
    REQUIRE_OK(ox_json_get_u64("expected", expected, "trained", true, &trained));
    REQUIRE_OK(ox_json_get_string("expected", expected, "fnv1a", true, &hash));
    REQUIRE_OK(ox_file_read(path, FILE_BYTES_MAX, &text, &bytes));
    for (const char *line = text; line < text + bytes;) {
        const char *const end = memchr(line, '\n', (size_t)(text + bytes - line));
        const size_t length = end != NULL ? (size_t)(end - line) : (size_t)(text + bytes - line);
        add_row(renderer, line, length, &totals);
        line += length + 1;
    }
    snprintf(found, sizeof found, "%016llx", (unsigned long long)totals.hash);
    printf("%llu rows, %llu ids, %llu of them trained\n", (unsigned long long)totals.rows,
           (unsigned long long)totals.ids, (unsigned long long)totals.trained);
    CHECK(totals.rows == rows && totals.ids == ids && totals.trained == trained);
    CHECK(strcmp(found, hash) == 0);
    free(text);
    json_decref(expected);
}

int main(void) {
    const char *const data = test_data_folder();
    struct ox_tokenizer *tokenizer = NULL;
    struct ox_chat_renderer *renderer = NULL;
    char path[OX_PATH_BYTES];
    if (data == NULL) {
        test_skip("the real tokenizers are not there; set OX_TEST_DATA to their folder");
    }
    struct ox_chat_options options = {0};
    struct ox_template *chat_template = NULL;
    REQUIRE_OK(ox_path_join(data, "tokenizers/qwen3", path));
    REQUIRE_OK(ox_tokenizer_open(path, &tokenizer));
    REQUIRE_OK(ox_template_open(path, "", &chat_template));
    options.chat_template = chat_template;
    REQUIRE_OK(ox_chat_open(tokenizer, &options, &renderer));
    REQUIRE_OK(ox_path_join(data, "text/instruct/v1_sft_demo.jsonl", path));
    compare(renderer, path);
    ox_chat_close(&renderer);
    ox_template_close(&chat_template);
    ox_tokenizer_close(&tokenizer);
    return test_end();
}
