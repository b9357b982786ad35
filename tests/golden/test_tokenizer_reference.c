/* Ids and decoded texts against those of the original library, over real tokenizers (which are no part of the project).
 * The speed that is printed decides nothing. */
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "engine/text/tokenizer.h"
#include "tests/kit/test.h"

#include <string.h>

enum { FILE_BYTES_MAX = 64 << 20 };

struct subject {
    const char *name;
    struct ox_tokenizer *tokenizer;
    struct ox_encoder *encoder;
};

static bool same_ids(const json_t *expected, const struct ox_ids *ids) {
    bool same = json_array_size(expected) == ids->count;
    for (size_t i = 0; i < ids->count && same; i++) {
        same = json_integer_value(json_array_get(expected, i)) == ids->ids[i];
    }
    return same;
}

/* Checks the ids of a line, without and with what the post-processor adds, and its decoded text. */
static void compare_line(const struct subject *subject, const json_t *line, size_t number) {
    const json_t *const text = json_object_get(line, "text");
    const json_t *const expected = json_object_get(line, "ids");
    const json_t *const with_special = json_object_get(line, "ids_with_special");
    const json_t *const decoded = json_object_get(line, "decoded");
    struct ox_ids ids = {0};
    struct ox_ids whole = {0};
    char *back = NULL;
    size_t back_bytes = 0;
    REQUIRE_OK(ox_encode(subject->encoder, json_string_value(text), json_string_length(text), true, false, &ids));
    REQUIRE_OK(ox_encode(subject->encoder, json_string_value(text), json_string_length(text), true, true, &whole));
    REQUIRE_OK(ox_decode(subject->tokenizer, ids.ids, ids.count, false, &back, &back_bytes));
    if (!same_ids(expected, &ids) || !same_ids(with_special != NULL ? with_special : expected, &whole)) {
        printf("%s, line %zu (%s): the ids differ\n", subject->name, number,
               json_string_value(json_object_get(line, "kind")));
        test_failure_count++;
    }
    if (back_bytes != json_string_length(decoded) || memcmp(back, json_string_value(decoded), back_bytes) != 0) {
        printf("%s, line %zu: decoded as \"%.200s\"\n", subject->name, number, back);
        test_failure_count++;
    }
    free(back);
    ox_ids_free(&ids);
    ox_ids_free(&whole);
}

static size_t compare_all(const struct subject *subject, const char *path) {
    char *text = NULL;
    size_t bytes = 0;
    size_t number = 0;
    REQUIRE_OK(ox_file_read(path, FILE_BYTES_MAX, &text, &bytes));
    for (const char *line = text; line < text + bytes;) {
        const char *const end = memchr(line, '\n', (size_t)(text + bytes - line));
        const size_t length = end != NULL ? (size_t)(end - line) : (size_t)(text + bytes - line);
        json_error_t error;
        json_t *const json = json_loadb(line, length, JSON_ALLOW_NUL, &error);
        CHECK(json != NULL);
        compare_line(subject, json, ++number);
        json_decref(json);
        line += length + 1;
    }
    free(text);
    return number;
}

/* Encodes a file repeatedly for a short time; decoding must return the text if nothing is lost. */
static double megabytes_per_second(const struct subject *subject, const char *path) {
    char *text = NULL;
    size_t bytes = 0;
    struct ox_ids ids = {0};
    uint64_t best = UINT64_MAX;
    REQUIRE_OK(ox_file_read(path, FILE_BYTES_MAX, &text, &bytes));
    for (int round = 0; round < 3; round++) {
        const uint64_t start = ox_clock_ns();
        ids.count = 0;
        REQUIRE_OK(ox_encode(subject->encoder, text, bytes, true, false, &ids));
        const uint64_t spent = ox_clock_ns() - start;
        best = spent < best ? spent : best;
    }
    char *back = NULL;
    size_t back_bytes = 0;
    REQUIRE_OK(ox_decode(subject->tokenizer, ids.ids, ids.count, false, &back, &back_bytes));
    CHECK(back_bytes == bytes && memcmp(back, text, bytes) == 0);
    free(back);
    free(text);
    ox_ids_free(&ids);
    return (double)bytes / 1e6 / ((double)best / 1e9);
}

static void test_one(const char *data, const char *name) {
    static const char *const texts[] = {"tinyshakespeare/input.txt", "tinystories/val_sample.txt",
                                        "instruct/alpaca_en_demo.json"};
    char folder[OX_PATH_BYTES], path[OX_PATH_BYTES];
    struct subject subject = {.name = name};
    snprintf(folder, sizeof folder, "%.1000s/tokenizers/%s", data, name);
    const uint64_t start = ox_clock_ns();
    REQUIRE_OK(ox_tokenizer_open(folder, &subject.tokenizer));
    const double open_seconds = (double)(ox_clock_ns() - start) / 1e9;
    REQUIRE_OK(ox_encoder_open(subject.tokenizer, &subject.encoder));
    snprintf(path, sizeof path, "%.1100s/reference.jsonl", folder);
    const size_t lines = compare_all(&subject, path);
    CHECK(lines > 0);
    printf("%-10s opened in %.2f s, %zu lines; MB/s:", name, open_seconds, lines);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        snprintf(path, sizeof path, "%.1000s/text/%s", data, texts[i]);
        printf(" %.1f", ox_path_is_file(path) ? megabytes_per_second(&subject, path) : 0.0);
    }
    printf("\n");
    ox_encoder_close(&subject.encoder);
    ox_tokenizer_close(&subject.tokenizer);
}

int main(void) {
    static const char *const names[] = {"gpt2", "qwen3", "llama2_sp", "tok512"};
    const char *const data = test_data_folder();
    char path[OX_PATH_BYTES];
    if (data == NULL) {
        test_skip("no folder of tokenizers ($OX_TEST_DATA)");
    }
    snprintf(path, sizeof path, "%.1000s/tokenizers", data);
    if (!ox_path_is_folder(path)) {
        test_skip("the data folder has no tokenizers");
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        test_one(data, names[i]);
    }
    return test_end();
}
