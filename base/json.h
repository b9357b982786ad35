/* Owns the parsing of JSON (jansson) and typed access to it. Errors name the file, the key and the expected type.
 * Duplicate keys are refused; the caller limits the size. Model files, documents and machine profiles go through it. */
#ifndef OX_BASE_JSON_H
#define OX_BASE_JSON_H

#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Parses `bytes` of text; `where` names the source in errors. The caller owns *out (json_decref). An integer beyond 64
 * bits, as in tokenizer_config.json of Llama-3, turns all numbers of the text to doubles. */
OX_MUST enum ox_status ox_json_parse(const char *where, const char *text, size_t bytes, json_t **out);

/* Parses one line of a file of lines, which may hold any value. `where` names file and line; an error adds the
 * column. */
OX_MUST enum ox_status ox_json_parse_line(const char *where, const char *text, size_t bytes, json_t **out);

/* Refuses a text of more than OX_JSON_VALUES_MAX values, which in memory take up to a hundred times the bytes of the
 * text: OX_E_CONFIG, as for a file that is too large. It counts without building any. */
enum { OX_JSON_VALUES_MAX = 500000 };
OX_MUST enum ox_status ox_json_check_values(const char *where, const char *text, size_t bytes);

/* Reads and parses a file of at most `bytes_max` and OX_JSON_VALUES_MAX values; the caller owns *out. */
OX_MUST enum ox_status ox_json_load(const char *path, size_t bytes_max, json_t **out);
/* Does so for a file of any number of values, as a tokenizer's may be: memory for them is what the process may have. */
OX_MUST enum ox_status ox_json_load_large(const char *path, size_t bytes_max, json_t **out);

/* Writes `value` as JSON, shortened by "...", into `text` (OX_JSON_EXCERPT_BYTES) for a message; returns `text`. */
enum { OX_JSON_EXCERPT_BYTES = 80 };
const char *ox_json_excerpt(const json_t *value, char *text);

/* A number for a report: JSON null when it is not finite. */
json_t *ox_json_number(double value);
/* Words of 64 bits, which JSON numbers cannot represent, as a string of 16 hexadecimal digits each; at most two. */
json_t *ox_json_hex(const uint64_t *words, uint32_t count);
/* A string for a report; where `text` is not UTF-8, as file names may be, every byte beyond ASCII becomes '?'. */
json_t *ox_json_text(const char *text);

/* The getters read object[key]. A missing key is an error where `required`; else it leaves *value alone, so set a
 * default first. JSON null counts as missing. A wrong type or range is an error that names `where` and the key. */
OX_MUST enum ox_status ox_json_get_u64(const char *where, const json_t *object, const char *key,
                                       bool required, uint64_t *value);
OX_MUST enum ox_status ox_json_get_double(const char *where, const json_t *object, const char *key,
                                          bool required, double *value);
OX_MUST enum ox_status ox_json_get_bool(const char *where, const json_t *object, const char *key,
                                        bool required, bool *value);
/* *value belongs to the object. */
OX_MUST enum ox_status ox_json_get_string(const char *where, const json_t *object, const char *key,
                                          bool required, const char **value);
/* Reads what ox_json_hex makes of `count` words; the key is required. Another text is OX_E_CORRUPT. */
OX_MUST enum ox_status ox_json_get_hex(const char *where, const json_t *object, const char *key, uint32_t count,
                                       uint64_t *words);

#ifdef __cplusplus
}
#endif
#endif
