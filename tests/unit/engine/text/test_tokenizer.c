/* Small tokenizers against the results of the original library (tests/golden/tokenizers/, made by
 * tests/golden/make/golden_tokenizers.py), files that must be refused, long texts, and two threads on one tokenizer. */
#include "base/file.h"
#include "base/json.h"
#include "engine/text/tokenizer.h"
#include "tests/kit/files.h"
#include "tests/kit/test.h"

#include <pthread.h>
#include <string.h>

enum { FILE_BYTES_MAX = 1 << 20, LONG_RUN = 100000 };

static const char golden[] = "tests/golden/tokenizers";

/* ---- golden files -------------------------------------------------------------------------------------------- */

static bool same_ids(const json_t *expected, const struct ox_ids *ids) {
    bool same = json_array_size(expected) == ids->count;
    for (size_t i = 0; i < ids->count && same; i++) {
        same = json_integer_value(json_array_get(expected, i)) == ids->ids[i];
    }
    return same;
}

static const json_t *value_or(const json_t *row, const char *key, const char *otherwise) {
    const json_t *const value = json_object_get(row, key);
    return value != NULL ? value : json_object_get(row, otherwise);
}

/* The ids of the row's text in one mode, and what they decode to. */
static bool row_holds(struct ox_encoder *encoder, const json_t *row, const char *key, bool parse_special, bool post) {
    const json_t *const text = json_object_get(row, "text");
    struct ox_ids ids = {0};
    REQUIRE_OK(ox_encode(encoder, json_string_value(text), json_string_length(text), parse_special, post, &ids));
    const bool same = same_ids(value_or(row, key, "ids"), &ids);
    ox_ids_free(&ids);
    return same;
}

static bool decoding_holds(const struct ox_tokenizer *tokenizer, const json_t *row, const char *key,
                           bool skip_special) {
    const json_t *const list = json_object_get(row, "ids");
    const json_t *const expected = value_or(row, key, "text");
    struct ox_ids ids = {.ids = calloc(json_array_size(list) + 1, sizeof *ids.ids), .count = json_array_size(list)};
    char *text = NULL;
    size_t bytes = 0;
    for (size_t i = 0; i < ids.count; i++) {
        ids.ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    }
    REQUIRE_OK(ox_decode(tokenizer, ids.ids, ids.count, skip_special, &text, &bytes));
    const bool same = bytes == json_string_length(expected) && text[bytes] == '\0' &&
                      memcmp(text, json_string_value(expected), bytes) == 0;
    if (!same) {
        printf("decoded as \"%s\"\n", text);
    }
    free(text);
    ox_ids_free(&ids);
    return same;
}

static void test_golden(const char *name) {
    char path[OX_PATH_BYTES];
    struct ox_tokenizer *tokenizer = NULL;
    struct ox_encoder *encoder = NULL;
    char *text = NULL;
    size_t bytes = 0, number = 0;
    snprintf(path, sizeof path, "%s/%s.json", golden, name);
    REQUIRE_OK(ox_tokenizer_open(path, &tokenizer));
    REQUIRE_OK(ox_encoder_open(tokenizer, &encoder));
    snprintf(path, sizeof path, "%s/%s.jsonl", golden, name);
    REQUIRE_OK(ox_file_read(path, FILE_BYTES_MAX, &text, &bytes));
    for (const char *line = text; line < text + bytes; number++) {
        const char *const end = memchr(line, '\n', (size_t)(text + bytes - line));
        json_error_t error;
        json_t *const row = json_loadb(line, (size_t)(end - line), JSON_ALLOW_NUL, &error);
        CHECK(row != NULL);
        for (int again = 0; again < 2; again++) { /* from the cache too */
            if (!row_holds(encoder, row, "ids", true, false) ||
                !row_holds(encoder, row, "ids_with_special", true, true) ||
                !row_holds(encoder, row, "ids_plain", false, false) ||
                !decoding_holds(tokenizer, row, "decoded", false) ||
                !decoding_holds(tokenizer, row, "decoded_skip", true)) {
                printf("%s, line %zu differs\n", name, number + 1);
                test_failure_count++;
            }
        }
        json_decref(row);
        line = end + 1;
    }
    CHECK(number > 40);
    free(text);
    ox_encoder_close(&encoder);
    ox_tokenizer_close(&tokenizer);
}

/* ---- refusals ------------------------------------------------------------------------------------------------ */

/* One part of a small file that opens. */
struct part {
    const char *key, *json;
};
static const struct part parts[] = {
    {"added_tokens", "[{\"id\":4,\"content\":\"<x>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                     "\"normalized\":false,\"special\":true}]"},
    {"normalizer", "null"},
    {"pre_tokenizer", "null"},
    {"post_processor", "null"},
    {"decoder", "{\"type\":\"Fuse\"}"},
    {"model", "{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"aa\":3},\"merges\":[\"a b\",\"a a\"]}"},
};

static enum ox_status open_with(const char *key, const char *json, struct ox_tokenizer **out) {
    static char text[1 << 16];
    size_t used = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const bool here = strcmp(parts[i].key, key) == 0;
        used += (size_t)snprintf(text + used, sizeof text - used, "%c\"%s\":%s", i == 0 ? '{' : ',', parts[i].key,
                                 here ? json : parts[i].json);
    }
    used += (size_t)snprintf(text + used, sizeof text - used, "}");
    files_write("tokenizer.json", text, used);
    return ox_tokenizer_open(test_path("tokenizer.json"), out);
}

static void refused(const char *key, const char *json, const char *words) {
    struct ox_tokenizer *tokenizer = NULL;
    const enum ox_status status = open_with(key, json, &tokenizer);
    if (status != OX_E_CONFIG || tokenizer != NULL || strstr(ox_error_text(), words) == NULL ||
        strstr(ox_error_text(), "tokenizer.json") == NULL) {
        printf("%s: %s: expected a refusal with '%s', got %s: %s\n", key, json, words, ox_status_name(status),
               status == OX_OK ? "" : ox_error_text());
        test_failure_count++;
    }
    ox_tokenizer_close(&tokenizer);
}

/* A text of which nothing is left has no marks either. */
static void test_vanished(void) {
    static const struct ox_text_part halves[] = {{.end = 1, .marked = true}, {.end = 2}};
    struct ox_tokenizer *tokenizer = NULL;
    struct ox_encoder *encoder = NULL;
    struct ox_ids ids = {0};
    struct ox_id_mask marks = {0};
    REQUIRE_OK(open_with("normalizer", "null", &tokenizer));
    REQUIRE_OK(ox_encoder_open(tokenizer, &encoder));
    REQUIRE_OK(ox_encode_parts(encoder, "??", halves, 2, &ids, &marks));
    CHECK(ids.count == 0 && marks.count == 0);
    ox_ids_free(&ids);
    ox_id_mask_free(&marks);
    ox_encoder_close(&encoder);
    ox_tokenizer_close(&tokenizer);
}

/* Where unknown letters vanish, newlines before and after them join, and a replacement may join a newline. Such a text
 * cannot be cut there. */
static void test_cuts(void) {
    static const struct {
        const char *unk;
        enum ox_cuts cuts;
    } cases[] = {{"null", OX_CUTS_NONE}, {"\"\\n\"", OX_CUTS_NONE}, {"\"a\"", OX_CUTS_AFTER_NEWLINE}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ox_tokenizer *tokenizer = NULL;
        char model[256];
        snprintf(model, sizeof model,
                 "{\"type\":\"BPE\",\"unk_token\":%s,\"vocab\":{\"\\n\":0,\"\\n\\n\":1,\"a\":2,\"b\":3},"
                 "\"merges\":[\"\\n \\n\"]}",
                 cases[i].unk);
        REQUIRE_OK(open_with("model", model, &tokenizer));
        CHECK(ox_tokenizer_cuts(tokenizer) == cases[i].cuts);
        ox_tokenizer_close(&tokenizer);
    }
}

static void test_models(void) {
    static const struct {
        const char *json, *words;
    } bad[] = {
        {"null", "vocab"},
        {"{\"type\":\"Unigram\",\"vocab\":[]}", "\"Unigram\" is not supported"},
        {"{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}", "vocab"},
        {"{\"vocab\":{\"a\":-1},\"merges\":[]}", "id -1"},
        {"{\"vocab\":{\"a\":99999999},\"merges\":[]}", "99999999"},
        {"{\"vocab\":{\"a\":1.5},\"merges\":[]}", "1.5"},
        {"{\"vocab\":{\"a\":\"1\"},\"merges\":[]}", "\"1\""},
        {"{\"vocab\":{\"a\":1,\"b\":1},\"merges\":[]}", "names both \"a\" and \"b\""},
        {"{\"vocab\":{\"a\":0,\"b\":1},\"merges\":[\"a b\"]}", "the joined token is not in the vocabulary"},
        {"{\"vocab\":{\"a\":0,\"ab\":1},\"merges\":[\"a b\"]}", "the second is not"},
        {"{\"vocab\":{\"a\":0,\"aa\":1},\"merges\":[\"a a\",\"a  a\"]}", "merge 1"},
        {"{\"vocab\":{\"a\":0,\"aa\":1},\"merges\":[\"aa\"]}", "one space"},
        {"{\"vocab\":{\"a\":0,\"aa\":1},\"merges\":[[\"a\",\"a\"],\"a a\"]}", "a list of two texts"},
        {"{\"vocab\":{\"a\":0,\"aa\":1},\"merges\":[[\"a\"]]}", "a list of two texts"},
        {"{\"vocab\":{\"a\":0},\"merges\":[7]}", "merge 0 is 7"},
        {"{\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1}", "dropout"},
        {"{\"vocab\":{\"a\":0},\"merges\":[],\"end_of_word_suffix\":\"</w>\"}", "end_of_word_suffix"},
        {"{\"vocab\":{\"a\":0},\"merges\":[],\"continuing_subword_prefix\":\"##\"}", "continuing_subword_prefix"},
        {"{\"vocab\":{\"a\":0},\"merges\":[],\"byte_fallback\":1}", "byte_fallback"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        refused("model", bad[i].json, bad[i].words);
    }
}

static void test_steps(void) {
    static const struct {
        const char *key, *json, *words;
    } bad[] = {
        {"normalizer", "{\"type\":\"Lowercase\"}", "normalizer type \"Lowercase\""},
        {"normalizer", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Nmt\"}]}", "\"Nmt\""},
        {"normalizer", "{\"type\":\"Sequence\"}", "normalizers"},
        {"normalizer", "{}", "type"},
        {"normalizer", "[]", "type"},
        {"normalizer", "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"x\"}", "empty pattern"},
        {"normalizer", "{\"type\":\"Replace\",\"pattern\":\"x\",\"content\":\"x\"}", "pattern"},
        {"pre_tokenizer", "{\"type\":\"Whitespace\"}", "pre_tokenizer type \"Whitespace\""},
        {"pre_tokenizer", "{\"type\":\"ByteLevel\"}", "add_prefix_space"},
        {"pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"xy\"}", "one character"},
        {"pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"x\"}", "prepend_scheme"},
        {"pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"add_prefix_space\":false}", "prefix_space"},
        {"pre_tokenizer", "{\"type\":\"Split\",\"pattern\":{\"String\":\"x\"},\"behavior\":\"isolated\"}", "isolated"},
        {"pre_tokenizer",
         "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
         "{\"type\":\"Digits\"}]}",
         "after ByteLevel"},
        {"decoder", "{\"type\":\"WordPiece\"}", "decoder type \"WordPiece\""},
        {"decoder", "{\"type\":\"Strip\",\"content\":\" \",\"start\":-1,\"stop\":0}", "start"},
        {"decoder", "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"x\"},\"content\":\"\"}", "pattern"},
        {"post_processor", "{\"type\":\"BertProcessing\"}", "post_processor type \"BertProcessing\""},
        {"post_processor",
         "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}}],\"special_tokens\":{}}",
         "\"<s>\""},
        {"post_processor", "{\"type\":\"TemplateProcessing\",\"single\":[],\"special_tokens\":{}}",
         "no place for the text"},
        {"post_processor",
         "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"s\"}},{\"Sequence\":{\"id\":\"A\"}}]"
         ","
         "\"special_tokens\":{\"s\":{\"ids\":[77]}}}",
         "id 77"},
        {"added_tokens", "[{\"id\":4,\"content\":\"<x>\"}]", "single_word"},
        {"added_tokens", "[7]", "content"},
        {"added_tokens", "null", "must be a list"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        refused(bad[i].key, bad[i].json, bad[i].words);
    }
}

/* Expressions that the two regex libraries read differently. */
static void test_expressions(void) {
    static const char *const bad[] = {"\\\\w+",     "\\\\bx",      "^x",      "x$",       "[a[bc]]", "[a&&b]",
                                      "[\\\\S]",    "[[:alpha:]]", "x{2}+",   "x{2,3}?",  "x{,3}",   "(?m:x)",
                                      "(*UTF)",     "\\\\h",       "x(?i)y",  "\\\\1",    "[]x]",    "\\\\pL",
                                      "\\\\xff",    "(",           "[a",      "\\\\",     "x**",     "(?<n>x)",
                                      "\\\\p{Xyz}", "x{",          "\\\\u12", "(?P<n>x)", "\\\\R",   "[\\\\w]"};
    static const char *const good[] = {"",
                                       "x",
                                       "\\\\s+(?!\\\\S)",
                                       "[^\\\\s\\\\p{L}]",
                                       "x{2}y",
                                       "(?i:'s|'t)",
                                       "\\\\x{4e00}",
                                       "\\\\u4e00",
                                       "\\\\x41",
                                       "x++y",
                                       "[\\\\[\\\\]]",
                                       "(?i)x",
                                       "\\\\d+\\\\D",
                                       ".",
                                       "(a|b)",
                                       "\\\\/\\\\-"};
    char json[256];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(json, sizeof json, "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},\"behavior\":\"Isolated\"}",
                 bad[i]);
        refused("pre_tokenizer", json, "expression");
    }
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct ox_tokenizer *tokenizer = NULL;
        snprintf(json, sizeof json, "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},\"behavior\":\"Isolated\"}",
                 good[i]);
        REQUIRE_OK(open_with("pre_tokenizer", json, &tokenizer));
        ox_tokenizer_close(&tokenizer);
    }
}

static void test_added_refusals(void) {
    static const char form[] = "{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":%s,\"rstrip\":false,"
                               "\"normalized\":false,\"special\":true}";
    char one[512], list[2048];
    snprintf(one, sizeof one, form, 9, "<x>", "false");
    snprintf(list, sizeof list, "[%s]", one);
    refused("added_tokens", list, "has the id 9, but its position means 4");
    snprintf(one, sizeof one, form, 1, "a", "false");
    snprintf(list, sizeof list, "[%s]", one);
    refused("added_tokens", list, "has the id 1, but its position means 0");
    snprintf(one, sizeof one, form, 4, "<x>", "false");
    const int used = snprintf(list, sizeof list, "[%s,", one);
    snprintf(one, sizeof one, form, 4, "<x>", "true");
    snprintf(list + used, sizeof list - (size_t)used, "%s]", one);
    refused("added_tokens", list, "twice");
}

static void test_broken_files(void) {
    struct ox_tokenizer *tokenizer = NULL;
    char path[OX_PATH_BYTES];
    char *text = NULL;
    size_t bytes = 0;
    CHECK(ox_tokenizer_open("/nonexistent", &tokenizer) == OX_E_CONFIG);
    CHECK(open_with("model", "{\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}", &tokenizer) == OX_E_CORRUPT);
    CHECK(strstr(ox_error_text(), "duplicate") != NULL);
    /* Nested deeper than the reader goes, and as deep as it goes. */
    char deep[5000];
    memset(deep, '[', sizeof deep);
    deep[sizeof deep - 1] = '\0';
    CHECK(open_with("normalizer", deep, &tokenizer) == OX_E_CORRUPT);
    char nested[60000] = "";
    size_t used = 0;
    for (int i = 0; i < 900; i++) {
        used += (size_t)snprintf(nested + used, sizeof nested - used, "{\"type\":\"Sequence\",\"normalizers\":[");
    }
    used += (size_t)snprintf(nested + used, sizeof nested - used, "{\"type\":\"Nmt\"}");
    for (int i = 0; i < 900; i++) {
        used += (size_t)snprintf(nested + used, sizeof nested - used, "]}");
    }
    refused("normalizer", nested, "\"Nmt\"");
    /* Every cut of a whole file is refused or, never, read. */
    snprintf(path, sizeof path, "%s/gpt2_prefix.json", golden);
    REQUIRE_OK(ox_file_read(path, FILE_BYTES_MAX, &text, &bytes));
    for (size_t cut = 0; cut + 2 < bytes; cut += 97) {
        files_write("tokenizer.json", text, cut);
        CHECK(ox_tokenizer_open(test_path("tokenizer.json"), &tokenizer) == OX_E_CORRUPT && tokenizer == NULL);
    }
    free(text);
}

/* ---- what the rest of the program asks ----------------------------------------------------------------------- */

static void test_answers(void) {
    struct ox_tokenizer *tokenizer = NULL;
    struct ox_encoder *encoder = NULL;
    struct ox_ids ids = {0};
    REQUIRE_OK(open_with("", "", &tokenizer));
    const uint64_t plain = ox_tokenizer_fingerprint(tokenizer);
    CHECK(ox_tokenizer_vocab_count(tokenizer) == 5 && ox_tokenizer_bos(tokenizer) == -1);
    CHECK(ox_tokenizer_eos(tokenizer) == -1 && !ox_tokenizer_adds_bos(tokenizer));
    CHECK(ox_tokenizer_find(tokenizer, "ab", 2) == 2 && ox_tokenizer_find(tokenizer, "<x>", 3) == 4);
    CHECK(ox_tokenizer_find(tokenizer, "zz", 2) == -1 && ox_tokenizer_find(tokenizer, "", 0) == -1);
    CHECK(strcmp(ox_tokenizer_token(tokenizer, 3), "aa") == 0 && ox_tokenizer_token(tokenizer, 5) == NULL);
    CHECK(ox_tokenizer_is_special(tokenizer, 4) && !ox_tokenizer_is_special(tokenizer, 0));
    CHECK(!ox_tokenizer_is_special(tokenizer, UINT32_MAX));
    REQUIRE_OK(ox_encoder_open(tokenizer, &encoder));
    REQUIRE_OK(ox_encode(encoder, "ab", 2, true, true, &ids));
    CHECK(ids.count == 1 && ids.ids[0] == 2);
    CHECK(ox_encode(encoder, "ab\xc3(", 4, true, true, &ids) == OX_E_CORRUPT && ids.count == 1);
    CHECK(strstr(ox_error_text(), "byte 2") != NULL);
    CHECK(ox_encode(encoder, "\xed\xa0\x80", 3, true, true, &ids) == OX_E_CORRUPT);
    char *text = NULL;
    size_t bytes = 0;
    const int32_t odd[] = {0, 99, -1};
    CHECK(ox_decode(tokenizer, odd, 3, false, &text, &bytes) == OX_E_CONFIG && text == NULL);
    REQUIRE_OK(ox_decode(tokenizer, odd, 2, false, &text, &bytes)); /* an id that names none is left out */
    CHECK(bytes == 1 && strcmp(text, "a") == 0);
    free(text);
    ox_ids_free(&ids);
    ox_encoder_close(&encoder);
    ox_tokenizer_close(&tokenizer);

    files_write_text(
        "tokenizer_config.json",
        "{\"bos_token\":{\"content\":\"<x>\"},\"eos_token\":\"ab\",\"add_bos_token\":true,\"add_eos_token\":true,"
        "\"model_max_length\":1000000000000000019884624838656}");
    REQUIRE_OK(ox_tokenizer_open(test_folder(), &tokenizer));
    CHECK(ox_tokenizer_bos(tokenizer) == 4 && ox_tokenizer_eos(tokenizer) == 2 && ox_tokenizer_adds_bos(tokenizer));
    CHECK(ox_tokenizer_fingerprint(tokenizer) != plain);
    REQUIRE_OK(ox_encoder_open(tokenizer, &encoder));
    REQUIRE_OK(ox_encode(encoder, "a", 1, true, true, &ids));
    CHECK(ids.count == 3 && ids.ids[0] == 4 && ids.ids[1] == 0 && ids.ids[2] == 2);
    ox_ids_free(&ids);
    ox_encoder_close(&encoder);
    ox_tokenizer_close(&tokenizer);
}

/* A tokenizer's files may have more values than OX_JSON_VALUES_MAX. */
static void test_many_beside(void) {
    struct ox_tokenizer *tokenizer = NULL;
    FILE *const file = fopen(test_path("tokenizer_config.json"), "wb");
    fputs("{\"added_tokens_decoder\":{", file);
    for (int i = 0; i < 75000; i++) {
        fprintf(file, "%s\"%d\":{\"content\":\"<extra %d>\",\"lstrip\":false,\"normalized\":false,\"rstrip\":false,"
                "\"single_word\":false,\"special\":true}", i > 0 ? "," : "", 1000 + i, i);
    }
    fputs("}}", file);
    fclose(file);
    REQUIRE_OK(ox_tokenizer_open(test_folder(), &tokenizer));
    CHECK(ox_tokenizer_find(tokenizer, "<extra 74999>", 13) >= 0);
    ox_tokenizer_close(&tokenizer);
}

static void test_beside(void) {
    struct ox_tokenizer *tokenizer = NULL;
    REQUIRE_OK(open_with("", "", &tokenizer));
    ox_tokenizer_close(&tokenizer);
    const char *const bad[][2] = {{"tokenizer_config.json", "{\"added_tokens_decoder\":[]}"},
                                  {"tokenizer_config.json", "{\"added_tokens_decoder\":{\"x\":{\"content\":\"a\"}}}"},
                                  {"tokenizer_config.json", "{\"added_tokens_decoder\":{\"7\":{}}}"},
                                  {"tokenizer_config.json", "[]"},
                                  {"special_tokens_map.json", "[]"},
                                  {"added_tokens.json", "{\"a\":\"b\"}"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        files_write_text(bad[i][0], bad[i][1]);
        CHECK(ox_tokenizer_open(test_folder(), &tokenizer) == OX_E_CONFIG);
        CHECK(strstr(ox_error_text(), bad[i][0]) != NULL);
        remove(test_path(bad[i][0]));
    }
    test_many_beside();
    files_write_text("tokenizer_config.json", "{\"bos_token\":null}");
    files_write_text("config.json", "{\"bos_token_id\":77,\"eos_token_id\":[3,2]}");
    REQUIRE_OK(ox_tokenizer_open(test_folder(), &tokenizer));
    CHECK(ox_tokenizer_bos(tokenizer) == -1 && ox_tokenizer_eos(tokenizer) == 3);
    ox_tokenizer_close(&tokenizer);
    remove(test_path("tokenizer_config.json"));
    remove(test_path("config.json"));
}

/* An unk_token that the vocabulary lacks is an error when it is needed, and not before. */
static void test_missing_unknown(void) {
    struct ox_tokenizer *tokenizer = NULL;
    struct ox_encoder *encoder = NULL;
    struct ox_ids ids = {0};
    REQUIRE_OK(open_with("model", "{\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"d\":3},\"merges\":[],\"unk_token\":\"?\"}",
                         &tokenizer));
    REQUIRE_OK(ox_encoder_open(tokenizer, &encoder));
    REQUIRE_OK(ox_encode(encoder, "ab", 2, true, false, &ids));
    CHECK(ox_encode(encoder, "az", 2, true, false, &ids) == OX_E_CONFIG && ids.count == 2);
    ox_ids_free(&ids);
    ox_encoder_close(&encoder);
    ox_tokenizer_close(&tokenizer);
}

/* ---- long texts and threads ---------------------------------------------------------------------------------- */

/* A run of one character: what a shorter run is made of, many times over, and nothing quadratic. */
static void test_runs(const char *name) {
    static const char *const units[] = {"a", " ", "\n", "!", "\xcc\x81", "\xcc\xa7\xcc\x81", "<s>", "\xe4\xbd\xa0"};
    char path[OX_PATH_BYTES];
    struct ox_tokenizer *tokenizer = NULL;
    struct ox_encoder *encoder = NULL;
    struct ox_ids ids = {0};
    char *const text = malloc(LONG_RUN);
    snprintf(path, sizeof path, "%s/%s.json", golden, name);
    REQUIRE_OK(ox_tokenizer_open(path, &tokenizer));
    REQUIRE_OK(ox_encoder_open(tokenizer, &encoder));
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        const size_t each = strlen(units[i]);
        const size_t bytes = LONG_RUN / each * each;
        for (size_t at = 0; at < bytes; at += each) {
            memcpy(text + at, units[i], each);
        }
        ids.count = 0;
        REQUIRE_OK(ox_encode(encoder, text, bytes, true, false, &ids));
        CHECK(ids.count <= bytes * 3 + 1);
    }
    free(text);
    ox_ids_free(&ids);
    ox_encoder_close(&encoder);
    ox_tokenizer_close(&tokenizer);
}

struct worker {
    const struct ox_tokenizer *tokenizer;
    struct ox_ids ids;
};

static void *encode_often(void *argument) {
    static const char text[] =
        "the memory keeps what the device needs <s> h\xc3\xa9llo \xe4\xbd\xa0\xe5\xa5\xbd e\xcc\x81 1234";
    struct worker *const worker = argument;
    struct ox_encoder *encoder = NULL;
    REQUIRE_OK(ox_encoder_open(worker->tokenizer, &encoder));
    for (int i = 0; i < 200; i++) {
        char *back = NULL;
        size_t bytes = 0;
        worker->ids.count = 0;
        REQUIRE_OK(ox_encode(encoder, text, sizeof text - 1, true, true, &worker->ids));
        REQUIRE_OK(ox_decode(worker->tokenizer, worker->ids.ids, worker->ids.count, true, &back, &bytes));
        free(back);
    }
    ox_encoder_close(&encoder);
    return NULL;
}

static void test_threads(void) {
    struct ox_tokenizer *tokenizer = NULL;
    char path[OX_PATH_BYTES];
    snprintf(path, sizeof path, "%s/qwen.json", golden);
    REQUIRE_OK(ox_tokenizer_open(path, &tokenizer));
    struct worker workers[2] = {{.tokenizer = tokenizer}, {.tokenizer = tokenizer}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        CHECK(pthread_create(&threads[i], NULL, encode_often, &workers[i]) == 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
    }
    CHECK(workers[0].ids.count > 10 && workers[0].ids.count == workers[1].ids.count);
    CHECK(memcmp(workers[0].ids.ids, workers[1].ids.ids, workers[0].ids.count * sizeof(int32_t)) == 0);
    ox_ids_free(&workers[0].ids);
    ox_ids_free(&workers[1].ids);
    ox_tokenizer_close(&tokenizer);
}

int main(void) {
    static const char *const names[] = {"llama3",         "nemo",  "qwen",    "gpt2_prefix",      "mistral",
                                        "gemma",          "steps", "removed", "metaspace_always", "metaspace_first",
                                        "metaspace_never"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        test_golden(names[i]);
    }
    test_runs("qwen");
    test_runs("mistral");
    test_runs("steps");
    test_models();
    test_vanished();
    test_cuts();
    test_steps();
    test_expressions();
    test_added_refusals();
    test_broken_files();
    test_answers();
    remove(test_path("tokenizer_config.json"));
    test_beside();
    test_missing_unknown();
    test_threads();
    return test_end();
}
