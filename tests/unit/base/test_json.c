/* JSON files: refusals that name line and place, typed reads, large integers, excerpts, loading. */
#include "base/file.h"
#include "base/json.h"
#include "tests/kit/files.h"
#include "tests/kit/test.h"

#include <string.h>

static enum ox_status parse(const char *text, json_t **out) {
    return ox_json_parse("test", text, strlen(text), out);
}

static void test_refusals(void) {
    static const char *const bad[] = {
        "",
        "{",
        "[1,]",
        "{\"a\":1,\"a\":2}",
        "{\"a\":{\"b\":1,\"b\":1}}",
        "NaN",
        "{\"a\":NaN}",
        "{\"a\":01}",
        "7",
        "{} x",
        "\xef\xbb\xbf{}",
        "{\"a\":\"\\ud800\"}",
        "{\"a\":\"\xff\"}",
        "{\"a\":1e400}",
        "{\"a\":\"\\u0000\"}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_t *value = NULL;
        CHECK(parse(bad[i], &value) == OX_E_CORRUPT && value == NULL);
        CHECK(strncmp(ox_error_text(), "test:", 5) == 0);
    }
    json_t *value = NULL;
    CHECK(ox_json_parse("test", "{}\0", 3, &value) == OX_E_CORRUPT);
}

static enum ox_status parse_line(const char *text, json_t **out) {
    return ox_json_parse_line("rows:7", text, strlen(text), out);
}

static void test_lines(void) {
    json_t *value = NULL;
    REQUIRE_OK(parse_line("7", &value)); /* any value */
    CHECK(json_integer_value(value) == 7);
    json_decref(value);
    value = NULL;
    CHECK(parse_line("{\"a\" 1}", &value) == OX_E_CORRUPT && value == NULL);
    CHECK(strncmp(ox_error_text(), "rows:7:6: not valid JSON: ", 26) == 0);
    CHECK(parse_line("{\"a\":\n1,\n]}", &value) == OX_E_CORRUPT && value == NULL);
    CHECK(strncmp(ox_error_text(), "rows:7: not valid JSON in its line 3: ", 38) == 0);
    CHECK(parse("\xef\xbb\xbf{}", &value) == OX_E_CORRUPT && value == NULL);
    CHECK(strcmp(ox_error_text(), "test:1:1: not valid JSON: a byte-order mark; save it as UTF-8 without one") == 0);
}

/* What people write for JSON is answered with the remedy. */
static void test_slips(void) {
    static const struct {
        const char *text, *says;
    } slips[] = {
        {"{'a': 'b'}", "ast.literal_eval(line))) for line in open('rows')]\" >fixed.jsonl"},
        {"{\"a\": 'b'}", "strings of JSON are in double quotes"},
        {"{\"a\": \"\xe9\"}",
         "it is not UTF-8 text: make it so, if it is Latin-1 by: iconv -f WINDOWS-1252 -t UTF-8 'rows' >"},
        {"{\"a\": NaN}", "near 'NaN'; JSON has no such number: write null, or leave the key out"},
        {"{\"a\": -Infinity}", "JSON has no infinity"},
        {"{\"a\": None}", "JSON has null for it"},
        {"{\"a\": True}", "JSON has true for it"},
        {"{\"a\": 1,}", "remove the comma before it"},
        {"[1,]", "remove the comma before it"},
        {"{a: 1}", "keys of JSON are in double quotes"},
        {"{\"a\": \xe2\x80\x9cx\xe2\x80\x9d}", "plain double quotes"},
        {"{\"a\": 1} {\"b\": 2}", "needs a line of its own"},
        {"{\"a\": \"x\ty\"}", "it is written as \\n, \\t or"},
    };
    json_t *value = NULL;
    for (size_t i = 0; i < sizeof slips / sizeof *slips; i++) {
        CHECK(parse_line(slips[i].text, &value) == OX_E_CORRUPT && value == NULL);
        CHECK(strstr(ox_error_text(), slips[i].says) != NULL || printf("%s\n", ox_error_text()) == 0);
    }
}

static void test_getters(void) {
    json_t *object = NULL;
    REQUIRE_OK(
        parse("{\"n\":12,\"neg\":-1,\"real\":1.5,\"whole\":3.0,\"yes\":true,\"s\":\"text\",\"none\":null,"
              "\"max\":9223372036854775807,\"list\":[1,2,3]}",
              &object));
    uint64_t number = 99;
    double real = 99.0;
    bool flag = false;
    const char *text = "default";
    REQUIRE_OK(ox_json_get_u64("w", object, "n", true, &number));
    CHECK(number == 12);
    REQUIRE_OK(ox_json_get_u64("w", object, "max", true, &number));
    CHECK(number == INT64_MAX);
    REQUIRE_OK(ox_json_get_u64("w", object, "whole", true, &number));
    CHECK(number == 3);
    REQUIRE_OK(ox_json_get_u64("w", object, "absent", false, &number));
    REQUIRE_OK(ox_json_get_u64("w", object, "none", false, &number));
    CHECK(number == 3);
    CHECK(ox_json_get_u64("w", object, "none", true, &number) == OX_E_CONFIG);
    CHECK(ox_json_get_u64("w", object, "absent", true, &number) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), "\"absent\"") != NULL);
    CHECK(ox_json_get_u64("w", object, "neg", false, &number) == OX_E_CONFIG);
    CHECK(ox_json_get_u64("w", object, "real", false, &number) == OX_E_CONFIG);
    CHECK(ox_json_get_u64("file.json", object, "s", false, &number) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), "file.json") != NULL && strstr(ox_error_text(), "\"text\"") != NULL);
    REQUIRE_OK(ox_json_get_double("w", object, "n", true, &real));
    CHECK(real == 12.0);
    REQUIRE_OK(ox_json_get_double("w", object, "real", true, &real));
    CHECK(real == 1.5);
    CHECK(ox_json_get_double("w", object, "yes", true, &real) == OX_E_CONFIG);
    REQUIRE_OK(ox_json_get_bool("w", object, "yes", true, &flag));
    CHECK(flag);
    CHECK(ox_json_get_bool("w", object, "n", true, &flag) == OX_E_CONFIG);
    REQUIRE_OK(ox_json_get_string("w", object, "s", true, &text));
    CHECK(strcmp(text, "text") == 0);
    CHECK(ox_json_get_string("w", object, "list", true, &text) == OX_E_CONFIG);
    json_decref(object);
}

static void test_large_integer(void) {
    json_t *object = NULL;
    uint64_t number = 0;
    REQUIRE_OK(parse("{\"model_max_length\": 1000000000000000019884624838656, \"n\": 7}", &object));
    REQUIRE_OK(ox_json_get_u64("w", object, "n", true, &number));
    CHECK(number == 7);
    CHECK(ox_json_get_u64("w", object, "model_max_length", true, &number) == OX_E_CONFIG);
    json_decref(object);
}

static void test_excerpt(void) {
    char text[OX_JSON_EXCERPT_BYTES];
    json_t *object = NULL;
    REQUIRE_OK(parse("{\"a\":[1,0.1,\"x\"]}", &object));
    CHECK(strcmp(ox_json_excerpt(object, text), "{\"a\":[1,0.1,\"x\"]}") == 0);
    json_decref(object);
    char long_text[400];
    memset(long_text, 'y', sizeof long_text);
    json_t *const string = json_stringn(long_text, sizeof long_text);
    CHECK(strlen(ox_json_excerpt(string, text)) == OX_JSON_EXCERPT_BYTES - 1);
    CHECK(strcmp(text + OX_JSON_EXCERPT_BYTES - 4, "...") == 0);
    json_decref(string);
}

static void test_load(void) {
    char path[OX_PATH_BYTES];
    json_t *object = NULL;
    REQUIRE_OK(ox_path_join(test_folder(), "a.json", path));
    CHECK(ox_json_load(path, 100, &object) == OX_E_CONFIG);
    REQUIRE_OK(ox_file_replace(path, "{\"k\":1}\n", 8));
    CHECK(ox_json_load(path, 7, &object) == OX_E_CONFIG);
    REQUIRE_OK(ox_json_load(path, 8, &object));
    CHECK(json_object_size(object) == 1);
    json_decref(object);
}

/* A list of `count` zeros, one string of commas and quotes among them, which is one value. */
static enum ox_status load_list(size_t count) {
    static const char string[] = "[\",[{,\\\",\"";
    const char *const path = test_path("many.json");
    json_t *list = NULL;
    FILE *const file = fopen(path, "wb");
    fputs(string, file);
    for (size_t i = 0; i < count; i++) {
        fputs(",0", file);
    }
    fputs("]", file);
    fclose(file);
    const enum ox_status status = ox_json_load(path, 1 << 23, &list);
    CHECK(status != OX_OK || json_array_size(list) == count + 1);
    json_decref(list);
    return status;
}

/* Values take many times the bytes of their text, so their number is limited before any is built. */
static void test_values(void) {
    REQUIRE_OK(load_list(OX_JSON_VALUES_MAX - 1));
    CHECK(load_list(OX_JSON_VALUES_MAX) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), "many.json: holds 500001 values of JSON") != NULL);
}

int main(void) {
    test_values();
    test_lines();
    test_slips();
    test_refusals();
    test_getters();
    test_large_integer();
    test_excerpt();
    test_load();
    return test_end();
}
