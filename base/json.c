#include "base/json.h"

#include "base/bytes.h"
#include "base/file.h"
#include "base/memory.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEX_DIGITS = 16 }; /* digits of a 64-bit word */
enum { WORDS_BYTES = 640 };

struct excerpt {
    char *text;
    size_t filled;
    bool cut;
};

static int append_excerpt(const char *part, size_t bytes, void *context) {
    struct excerpt *const out = context;
    const size_t room = OX_JSON_EXCERPT_BYTES - 4 - out->filled; /* "..." and NUL */
    const size_t taken = bytes < room ? bytes : room;
    memcpy(out->text + out->filled, part, taken);
    out->filled += taken;
    out->cut = taken < bytes;
    return out->cut ? -1 : 0;
}

/* Returns NULL when the key is missing or null; *status is then a failure where it is required. */
static const json_t *find(const char *where, const json_t *object, const char *key, bool required,
                          enum ox_status *status) {
    const json_t *const value = json_object_get(object, key);
    *status = OX_OK;
    if (value != NULL && !json_is_null(value)) {
        return value;
    }
    if (required) {
        *status = ox_fail(OX_E_CONFIG, "%s: the key \"%s\" is missing", where, key);
    }
    return NULL;
}

static enum ox_status fail_type(const char *where, const char *key, const char *expected,
                                const json_t *value) {
    char text[OX_JSON_EXCERPT_BYTES];
    return ox_fail(OX_E_CONFIG, "%s: \"%s\" must be %s, but is %s", where, key, expected,
                   ox_json_excerpt(value, text));
}

const char *ox_json_excerpt(const json_t *value, char *text) {
    struct excerpt out = {.text = text};
    if (value != NULL) {
        json_dump_callback(value, append_excerpt, &out,
                           JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
    }
    memcpy(text + out.filled, out.cut ? "..." : "", out.cut ? 4 : 1);
    return text;
}

json_t *ox_json_number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *ox_json_hex(const uint64_t *words, uint32_t count) {
    char text[2 * HEX_DIGITS + 1] = "";
    for (uint32_t i = 0; i < count; i++) {
        snprintf(text + (size_t)i * HEX_DIGITS, HEX_DIGITS + 1, "%016" PRIx64, words[i]);
    }
    return json_string(text);
}

json_t *ox_json_text(const char *text) {
    json_t *value = json_string(text);
    char *const copy = value == NULL ? strdup(text) : NULL;
    if (copy != NULL) {
        for (char *at = copy; *at != '\0'; at++) {
            *at = (unsigned char)*at < 0x80 ? *at : '?';
        }
        value = json_string(copy);
        free(copy);
    }
    return value;
}

/* Parses, unless there is no memory for the text alone. What was parsed beyond a limit is given back. */
static json_t *parse_within(const char *text, size_t bytes, size_t flags, json_error_t *error) {
    void *const room = malloc(2 * bytes + 1);
    free(room);
    bool exceeded = ox_memory_cap_exceeded(); /* what was built before is not this text's */
    json_t *const value = room != NULL ? json_loadb(text, bytes, flags | JSON_REJECT_DUPLICATES, error) : NULL;
    exceeded = ox_memory_cap_exceeded();
    if (exceeded || room == NULL) {
        json_decref(value);
        *error = (json_error_t){.line = -1}; /* as the library leaves it */
        return NULL;
    }
    return value;
}

static json_t *parse(const char *text, size_t bytes, size_t flags, json_error_t *error) {
    json_t *const value = parse_within(text, bytes, flags, error);
    return value == NULL && json_error_code(error) == json_error_numeric_overflow
               ? parse_within(text, bytes, flags | JSON_DECODE_INT_AS_REAL, error)
               : value;
}

/* What is often written for JSON, by the library's words, and the remedy: %.*s is the file. */
static const struct {
    const char *words, *remedy;
} slips[] = {
    {"unable to decode byte", "; it is not UTF-8 text: make it so, if it is Latin-1 by: iconv -f WINDOWS-1252 -t UTF-8 "
                              "'%.*s' >utf8-text"},
    {"near \'\'\'", "; strings of JSON are in double quotes; if Python printed it: python3 -c \"import ast, json; "
                   "[print(json.dumps(ast.literal_eval(line))) for line in open('%.*s')]\" >fixed.jsonl"},
    {"near \'NaN\'", "; JSON has no such number: write null, or leave the key out"},
    {"near \'Infinity\'", "; JSON has no such number: write null, or leave the key out"},
    {"near \'-\'", "; a minus stands before the digits of a number; JSON has no infinity"},
    {"near \'None\'", "; JSON has null for it"},
    {"near \'True\'", "; JSON has true for it"},
    {"near \'False\'", "; JSON has false for it"},
    {"near \'undefined\'", "; JSON has null for it"},
    {"near \'\xe2\x80\x9c\'", "; strings of JSON are in plain double quotes"},
    {"string or \'}\' expected near \'}\'", "; remove the comma before it"},
    {"unexpected token near \']\'", "; remove the comma before it"},
    {"string or \'}\' expected", "; keys of JSON are in double quotes"},
    {"end of file expected", "; what follows the first value needs a line of its own"},
    {"control character", "; it is written as \\n, \\t or \\u00XX in JSON"},
};

/* The library's text, with a remedy where what was written is a usual slip. The one error that it words in terms of its
 * own interface is replaced. */
static const char *library_text(const char *where, const json_error_t *error, char words[WORDS_BYTES]) {
    size_t bytes = strlen(where), digits = bytes;
    while (digits > 0 && where[digits - 1] >= '0' && where[digits - 1] <= '9') {
        digits--;
    }
    bytes = digits > 1 && where[digits - 1] == ':' ? digits - 1 : bytes; /* without the line */
    if (strstr(error->text, "JSON_ALLOW_NUL") != NULL) {
        return "a string contains \\u0000; remove it";
    }
    snprintf(words, WORDS_BYTES, "%s", error->text);
    for (size_t i = 0; i < sizeof slips / sizeof *slips; i++) {
        if (strstr(error->text, slips[i].words) != NULL) {
            const size_t used = strlen(words);
            snprintf(words + used, WORDS_BYTES - used, slips[i].remedy, (int)bytes, where);
            break;
        }
    }
    return words;
}

/* The library says nothing at all where it finds no memory. */
static bool is_memory(const json_error_t *error) {
    return error->text[0] == '\0' || json_error_code(error) == json_error_out_of_memory;
}

static enum ox_status fail_memory(const char *where, size_t bytes) {
    char size[OX_SIZE_TEXT_BYTES];
    return ox_fail(OX_E_NOMEM, "%s: no memory for the values of %s of JSON", where, ox_size_text(bytes, size));
}

enum ox_status ox_json_parse(const char *where, const char *text, size_t bytes, json_t **out) {
    char words[WORDS_BYTES];
    json_error_t error;
    json_t *const value = parse(text, bytes, 0, &error);
    if (value == NULL && bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
        return ox_fail(OX_E_CORRUPT, "%s:1:1: not valid JSON: a byte-order mark; save it as UTF-8 without one", where);
    }
    if (value == NULL && is_memory(&error)) {
        return fail_memory(where, bytes);
    }
    if (value == NULL) {
        return ox_fail(OX_E_CORRUPT, "%s:%d:%d: not valid JSON: %s", where, error.line, error.column,
                       library_text(where, &error, words));
    }
    *out = value;
    return OX_OK;
}

enum ox_status ox_json_parse_line(const char *where, const char *text, size_t bytes, json_t **out) {
    char words[WORDS_BYTES];
    json_error_t error;
    json_t *const value = parse(text, bytes, JSON_DECODE_ANY, &error);
    if (value == NULL && is_memory(&error)) {
        return fail_memory(where, bytes);
    }
    if (value == NULL && error.line > 1) { /* one row of an array over several lines */
        return ox_fail(OX_E_CORRUPT, "%s: not valid JSON in its line %d: %s", where, error.line,
                       library_text(where, &error, words));
    }
    if (value == NULL) {
        return ox_fail(OX_E_CORRUPT, "%s:%d: not valid JSON: %s", where, error.column,
                       library_text(where, &error, words));
    }
    *out = value;
    return OX_OK;
}

enum ox_status ox_json_check_values(const char *where, const char *text, size_t bytes) {
    size_t count = 0;
    bool quoted = false;
    for (size_t i = 0; i < bytes; i++) {
        if (quoted && text[i] == '\\') {
            i++; /* what follows is no end of the string */
        } else if (quoted) {
            quoted = text[i] != '"';
        } else {
            quoted = text[i] == '"';
            count += text[i] == ',' || text[i] == '[' || text[i] == '{';
        }
    }
    return count <= OX_JSON_VALUES_MAX
               ? OX_OK : ox_fail(OX_E_CONFIG, "%s: holds %zu values of JSON, and this program reads at most %d there; "
                                 "it is not what a model or a run has", where, count, OX_JSON_VALUES_MAX);
}

static enum ox_status load(const char *path, size_t bytes_max, bool counts, json_t **out) {
    char *text = NULL;
    size_t bytes = 0;
    enum ox_status status = ox_file_read(path, bytes_max, &text, &bytes);
    if (status == OX_OK) {
        status = counts ? ox_json_check_values(path, text, bytes) : OX_OK;
        OX_THEN(status, ox_json_parse(path, text, bytes, out));
        free(text);
    }
    return status;
}

enum ox_status ox_json_load(const char *path, size_t bytes_max, json_t **out) {
    return load(path, bytes_max, true, out);
}

enum ox_status ox_json_load_large(const char *path, size_t bytes_max, json_t **out) {
    return load(path, bytes_max, false, out);
}

enum ox_status ox_json_get_u64(const char *where, const json_t *object, const char *key, bool required,
                               uint64_t *value) {
    enum ox_status status;
    const json_t *const found = find(where, object, key, required, &status);
    if (json_is_integer(found) && json_integer_value(found) >= 0) {
        *value = (uint64_t)json_integer_value(found);
        return OX_OK;
    }
    /* With one integer beyond 64 bits in the text, all its integers are doubles. */
    const double real = json_is_real(found) ? json_real_value(found) : -1.0;
    if (real >= 0.0 && real <= 0x1p53 && real == floor(real)) {
        *value = (uint64_t)real;
        return OX_OK;
    }
    return found == NULL ? status : fail_type(where, key, "an integer that is not negative", found);
}

enum ox_status ox_json_get_double(const char *where, const json_t *object, const char *key, bool required,
                                  double *value) {
    enum ox_status status;
    const json_t *const found = find(where, object, key, required, &status);
    if (json_is_number(found)) {
        *value = json_number_value(found);
        return OX_OK;
    }
    return found == NULL ? status : fail_type(where, key, "a number", found);
}

enum ox_status ox_json_get_bool(const char *where, const json_t *object, const char *key, bool required,
                                bool *value) {
    enum ox_status status;
    const json_t *const found = find(where, object, key, required, &status);
    if (json_is_boolean(found)) {
        *value = json_is_true(found);
        return OX_OK;
    }
    return found == NULL ? status : fail_type(where, key, "true or false", found);
}

enum ox_status ox_json_get_string(const char *where, const json_t *object, const char *key, bool required,
                                  const char **value) {
    enum ox_status status;
    const json_t *const found = find(where, object, key, required, &status);
    if (json_is_string(found)) {
        *value = json_string_value(found);
        return OX_OK;
    }
    return found == NULL ? status : fail_type(where, key, "a string", found);
}

enum ox_status ox_json_get_hex(const char *where, const json_t *object, const char *key, uint32_t count,
                               uint64_t *words) {
    const char *text = NULL;
    OX_TRY(ox_json_get_string(where, object, key, true, &text));
    const size_t digits = (size_t)count * HEX_DIGITS;
    bool good = strlen(text) == digits && strspn(text, "0123456789abcdef") == digits;
    for (uint32_t i = 0; good && i < count; i++) {
        good = sscanf(text + (size_t)i * HEX_DIGITS, "%16" SCNx64, &words[i]) == 1;
    }
    return good ? OX_OK
                : ox_fail(OX_E_CORRUPT, "%s: \"%s\" is not a number of %zu hexadecimal digits", where, key, digits);
}
