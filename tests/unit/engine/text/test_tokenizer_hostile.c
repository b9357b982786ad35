/* Tokenizers that are made to take memory or time without end: refused in a short text, at load or at the text. */
#include "base/file.h"
#include "engine/text/tokenizer.h"
#include "tests/kit/files.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = 250000, ERROR_BYTES_MAX = 400, LONG_BYTES = 100000 };

static const char *write_tokenizer(const char *normalizer, const char *pre) {
    static const char form[] = "{\"normalizer\": %s, \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [%s"
                               "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}]},"
                               "\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": []}}";
    const char *const path = test_path("tokenizer.json");
    FILE *const file = fopen(path, "w");
    CHECK(file != NULL && fprintf(file, form, normalizer, pre) > 0 && fclose(file) == 0);
    return path;
}

static void check_error(const char *words) {
    const char *const text = ox_error_text();
    if (strstr(text, words) == NULL || strlen(text) > ERROR_BYTES_MAX) {
        printf("expected '%s' in a short text:\n%s\n", words, text);
        test_failure_count++;
    }
}

/* Encodes a text of so many bytes, all the same letter; returns the number of ids, or 0 after a refusal with these
 * words. */
static size_t encode_bytes(size_t bytes, const char *normalizer, const char *pre, const char *words) {
    struct ox_tokenizer *tokenizer = NULL;
    struct ox_encoder *encoder = NULL;
    struct ox_ids ids = {0};
    char *const text = malloc(bytes);
    memset(text, 'a', bytes);
    REQUIRE_OK(ox_tokenizer_open(write_tokenizer(normalizer, pre), &tokenizer));
    REQUIRE_OK(ox_encoder_open(tokenizer, &encoder));
    const enum ox_status status = ox_encode(encoder, text, bytes, true, false, &ids);
    const size_t count = ids.count;
    CHECK(status == (words == NULL ? OX_OK : OX_E_CONFIG));
    if (words != NULL) {
        check_error(words);
        CHECK(count == 0);
    }
    ox_ids_free(&ids);
    ox_encoder_close(&encoder);
    ox_tokenizer_close(&tokenizer);
    free(text);
    return count;
}

static size_t encode(const char *normalizer, const char *pre, const char *words) {
    return encode_bytes(TEXT_BYTES, normalizer, pre, words);
}

static const char *split_by(const char *regex) {
    static char text[512];
    snprintf(text, sizeof text, "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"%s\"}, \"behavior\": \"Isolated\", "
             "\"invert\": false},", regex);
    return text;
}

#define REPLACE(from, to) "{\"type\": \"Replace\", \"pattern\": {\"String\": \"" from "\"}, \"content\": \"" to "\"}"
#define SEQUENCE(list) "{\"type\": \"Sequence\", \"normalizers\": [" list "]}"

static void test_growth(void) {
    static const char ten[] = SEQUENCE(REPLACE("a", "aaaaaaaaaa"));
    static const char chain[] = SEQUENCE(REPLACE("a", "aaaaaaaaaa") "," REPLACE("a", "aaaaaaaaaa") ","
                                         REPLACE("a", "aaaaaaaaaa") "," REPLACE("a", "aaaaaaaaaa"));
    CHECK(encode(ten, "", NULL) == 10 * (size_t)TEXT_BYTES);
    (void)encode(chain, "", "a Replace of the tokenizer's normalizer makes more than 16004096 bytes of the text, at ");
}

static void test_backtracking(void) {
    static const char *const patterns[] = {"(a+)+[bc]", "(?:a*)*[bc]", "(?:a{1,1000}){1,1000}[bc]"};
    char words[128];
    for (unsigned i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        snprintf(words, sizeof words, "expression \"%s\" fails at byte 0 of a text of 250000 ", patterns[i]);
        (void)encode("null", split_by(patterns[i]), words);
    }
    CHECK(encode("null", split_by("a+|b"), NULL) == TEXT_BYTES);
    CHECK(encode("null", split_by("b"), NULL) == TEXT_BYTES); /* no match at all */
}

/* Repetitions that may share the same letters in every way: the library does not count their steps within one match,
 * so we bound them in steps. */
static void test_loops(void) {
    enum { BYTES = 100000, MANY_BYTES = 4000000 };
    static const char *const patterns[] = {
        "a*a*[bc]", "a*a*a*[bc]", "a*?a*?a*?[bc]", "(?:a*)(?:a*)[bc]", "a+a+a+a+a+a+a+a+[bc]", "b|a*(?=a*[bc])",
        "a{0,60000}a{0,60000}[bc]", "[a-f]*\\\\p{Ll}*\\\\p{L}*[bc]", "(?:a*b?)*[cd]", "(?:a*a*b)?a*a*[cd]"};
    char words[160];
    for (unsigned i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        snprintf(words, sizeof words, "expression \"%.6s", patterns[i]);
        (void)encode_bytes(BYTES, "null", split_by(patterns[i]), words);
        check_error(" fails at byte 0 of a text of 100000 bytes: match limit exceeded");
    }
    /* The time of one match used to grow with the square of the text: half an hour for this one. */
    (void)encode_bytes(MANY_BYTES, "null", split_by("a*a*[bc]"), " fails at byte 0 of a text of 4000000 bytes: match");
    /* What gives nothing back, or only once, is as fast as before; so is what several loops match in words. */
    static const char *const quick[] = {"a*+a*+[bc]", "a+a*", "[ab]*[ac]+", "(?:b|c)?a+(?!x)", "a{1,3}"};
    for (unsigned i = 0; i < sizeof quick / sizeof *quick; i++) {
        CHECK(encode_bytes(BYTES, "null", split_by(quick[i]), NULL) == BYTES);
    }
}

/* Each match looks through the rest of the text, and succeeds, or fails. */
static void test_squares(void) {
    static const char words[] = "\" takes too long for a text of 250000 bytes: more than 4 s ";
    static const char *const patterns[] = {"a(?=[^b]*[bc])|a", "a(?=[^b]*[bc])"};
    for (unsigned i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        if (test_takes(i, 2)) { /* four seconds each */
            (void)encode("null", split_by(patterns[i]), words);
        }
    }
}

static void test_long_patterns(void) {
    struct ox_tokenizer *tokenizer = NULL;
    char *const regex = malloc(LONG_BYTES + 1), *const pre = malloc(LONG_BYTES + 256);
    memset(regex, 'a', LONG_BYTES);
    regex[LONG_BYTES] = '\0';
    snprintf(pre, LONG_BYTES + 256, "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"%s\"}, "
             "\"behavior\": \"Isolated\", \"invert\": false},", regex);
    CHECK(ox_tokenizer_open(write_tokenizer("null", pre), &tokenizer) == OX_E_CONFIG);
    check_error("aaa...\" is too long: 100000 bytes");
    regex[1000] = '\0';
    memcpy(regex, "(?<name>", 8);
    CHECK(ox_tokenizer_open(write_tokenizer("null", split_by(regex + 700)), &tokenizer) == OX_OK);
    ox_tokenizer_close(&tokenizer);
    regex[300] = '\0';
    CHECK(ox_tokenizer_open(write_tokenizer("null", split_by(regex)), &tokenizer) == OX_E_CONFIG);
    check_error("\") is not supported at byte 0 of the expression \"(?<name>aaaa");
    free(regex);
    free(pre);
}

/* Writes `count` times the form, with commas between, into an open file. */
static void put_tokens(FILE *file, const char *form, int count) {
    for (int i = 0; i < count; i++) {
        fputs(i > 0 ? "," : "", file);
        fprintf(file, form, i, i + 2);
    }
}

/* Many tokens in each of the files that may list them, as models of speech have: no pairs of them are compared, which
 * would take longer than the runner waits. */
static void test_many_added(void) {
    enum { TOKENS = 60000 };
    static const struct {
        const char *name, *begin, *form, *end;
    } parts[] = {
        {"tokenizer.json", "{\"added_tokens\": [",
         "{\"content\": \"<speech_token_%1$d>\", \"id\": %2$d, \"single_word\": false, \"lstrip\": false,"
         " \"rstrip\": false, \"normalized\": false, \"special\": true}",
         "], \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false},"
         "\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": []}}"},
        {"tokenizer_config.json", "{\"additional_special_tokens\": [", "\"<speech_token_%1$d>\"", "]}"},
        {"added_tokens.json", "{", "\"<speech_token_%1$d>\": %2$d", "}"},
    };
    struct ox_tokenizer *tokenizer = NULL;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        FILE *const file = fopen(test_path(parts[i].name), "w");
        CHECK(file != NULL && fputs(parts[i].begin, file) >= 0);
        put_tokens(file, parts[i].form, TOKENS);
        CHECK(fputs(parts[i].end, file) >= 0 && fclose(file) == 0);
    }
    REQUIRE_OK(ox_tokenizer_open(test_folder(), &tokenizer));
    static const char last[] = "<speech_token_59999>";
    CHECK(ox_tokenizer_find(tokenizer, last, sizeof last - 1) == TOKENS + 1);
    ox_tokenizer_close(&tokenizer);
    remove(test_path("tokenizer_config.json"));
    remove(test_path("added_tokens.json"));
}

int main(void) {
    test_many_added();
    test_growth();
    test_backtracking();
    test_loops();
    test_squares();
    test_long_patterns();
    return test_end();
}
