/* Reads the tokens that the files beside a tokenizer.json add to it, as transformers does: tokenizer_config.json
 * (added_tokens_decoder, the named special tokens, the extra ones) and, where that has no added_tokens_decoder,
 * special_tokens_map.json, whose names precede, and added_tokens.json. */
#include "engine/text/tokenizer_internal.h"

#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_BYTES_MAX = 64 << 20, BESIDE_MAX = 1 << 20 };

static const char *const standard[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                       "pad_token", "cls_token", "mask_token"};
enum { STANDARD_COUNT = sizeof standard / sizeof *standard };

static enum ox_status no_memory(void) {
    return ox_fail(OX_E_NOMEM, "no memory for the added tokens");
}

static enum ox_status load_optional(const char *folder, const char *name, char *path, json_t **out) {
    enum ox_status status = ox_path_join(folder, name, path);
    if (status == OX_OK && ox_path_exists(path)) {
        status = ox_json_load_large(path, CONFIG_BYTES_MAX, out);
    }
    return status == OX_OK && *out != NULL && !json_is_object(*out)
               ? ox_fail(OX_E_CONFIG, "%s: must be a JSON object", path)
               : status;
}

/* The text of a token that is a text or an object with "content"; NULL for anything else. */
static const char *text_of(const json_t *value) {
    return json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
}

static bool flag_of(const json_t *token, const char *key, bool otherwise) {
    const json_t *const value = json_object_get(token, key);
    return json_is_boolean(value) ? json_is_true(value) : otherwise;
}

/* Appends the token that `value` describes, which is special if it says so, or if `special`. */
static enum ox_status append(struct ox_tok_beside *beside, const json_t *value, const char *text, bool special,
                             int64_t id) {
    const bool is_special = special || flag_of(value, "special", false);
    if (text[0] == '\0') {
        return OX_OK;
    }
    if (beside->count == BESIDE_MAX) {
        return ox_fail(OX_E_CONFIG, "the files beside a tokenizer.json add more than %d tokens", BESIDE_MAX);
    }
    enum ox_status status = ox_tok_reserve((void **)&beside->tokens, &beside->capacity, beside->count + 1,
                                           sizeof *beside->tokens);
    char *const copy = status == OX_OK ? strdup(text) : NULL;
    if (copy == NULL) {
        return status == OX_OK ? no_memory() : status;
    }
    beside->tokens[beside->count++] =
        (struct ox_tok_beside_token){.token = {.text = copy,
                                               .bytes = strlen(text),
                                               .single_word = flag_of(value, "single_word", false),
                                               .lstrip = flag_of(value, "lstrip", false),
                                               .rstrip = flag_of(value, "rstrip", false),
                                               .normalized = flag_of(value, "normalized", !is_special),
                                               .special = is_special},
                                     .id = id,
                                     .order = beside->count};
    return OX_OK;
}

/* ---- sets ------------------------------------------------------------------------------------------------------ */

/* Sets of texts are objects that have them as keys: folders have been published with 65,000 added tokens. */
static int add_text(json_t *set, const char *text) {
    return text != NULL ? json_object_set_new_nocheck(set, text, json_true()) : 0;
}

static bool has_text(const json_t *set, const char *text) {
    return json_object_get(set, text) != NULL;
}

static int add_listed(json_t *set, const json_t *list) {
    int failed = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        failed |= add_text(set, text_of(json_array_get(list, i)));
    }
    return failed;
}

/* ---- names ----------------------------------------------------------------------------------------------------- */

static bool is_standard(const char *key) {
    for (int i = 0; i < STANDARD_COUNT; i++) {
        if (strcmp(standard[i], key) == 0) {
            return true;
        }
    }
    return false;
}

/* Whether a key names a token of a model's own, such as image_token. */
static bool is_own_name(const char *key) {
    const size_t bytes = strlen(key);
    return bytes > 6 && strcmp(key + bytes - 6, "_token") == 0 && !is_standard(key);
}

/* Sets in `named`, in the order in which they are added: the standard tokens, then those of the model's own; and in the
 * set `named_texts` their texts. */
static enum ox_status collect_names(const json_t *config, json_t *named, json_t *named_texts) {
    const json_t *const extra = json_object_get(config, "extra_special_tokens");
    const char *key;
    json_t *value;
    int failed = 0;
    for (int i = 0; i < STANDARD_COUNT; i++) {
        value = json_object_get(config, standard[i]);
        failed |= text_of(value) != NULL && json_object_set(named, standard[i], value) != 0;
    }
    for (int texts = 0; texts < 2; texts++) { /* objects precede texts */
        json_object_foreach((json_t *)config, key, value) {
            if (is_own_name(key) && text_of(value) != NULL && json_is_string(value) == (texts == 1)) {
                failed |= json_object_set(named, key, value) != 0;
            }
        }
    }
    json_object_foreach((json_t *)extra, key, value) {
        failed |= text_of(value) != NULL && json_object_set(named, key, value) != 0;
    }
    json_object_foreach(named, key, value) {
        failed |= add_text(named_texts, text_of(value)) != 0;
    }
    return failed != 0 ? no_memory() : OX_OK;
}

/* Takes the names of special_tokens_map.json into the configuration, where they replace others, but for texts of a
 * model's own names. They are special, whatever they say. */
static enum ox_status take_map(json_t *config, const json_t *map) {
    const char *key;
    json_t *value;
    int failed = 0;
    json_object_foreach((json_t *)map, key, value) {
        if (json_is_object(value) && strcmp(key, "extra_special_tokens") != 0) {
            failed |= json_object_set_new(value, "special", json_true()) != 0;
        }
        if (json_is_array(value) && strcmp(key, "extra_special_tokens") == 0 &&
            json_is_array(json_object_get(config, key))) {
            failed |= json_array_extend(json_object_get(config, key), value) != 0;
        } else if (!(is_own_name(key) && json_is_string(json_object_get(config, key)))) {
            failed |= json_object_set(config, key, value) != 0;
        }
    }
    return failed != 0 ? no_memory() : OX_OK;
}

/* ---- tokens with ids ------------------------------------------------------------------------------------------- */

static int compare_ids(const void *a, const void *b) {
    const struct ox_tok_beside_token *const left = a, *const right = b;
    return left->id != right->id ? (left->id < right->id ? -1 : 1) : left->order < right->order ? -1 : 1;
}

static enum ox_status take_decoder(const char *where, const json_t *decoder, const json_t *named_texts,
                                   struct ox_tok_beside *out) {
    const char *key;
    json_t *value;
    enum ox_status status = json_is_object(decoder) ? OX_OK
                                                    : ox_fail(OX_E_CONFIG, "%s: \"added_tokens_decoder\" must be an "
                                                              "object of tokens by id", where);
    json_object_foreach((json_t *)decoder, key, value) {
        char *end = NULL;
        const long long id = strtoll(key, &end, 10);
        const char *const text = json_is_object(value) ? text_of(value) : NULL;
        if (text == NULL || end == key || *end != '\0' || id < 0) {
            return ox_fail(OX_E_CONFIG, "%s: in \"added_tokens_decoder\" \"%.80s\" must be an id, and what it names an "
                           "object with a text \"content\"", where, key);
        }
        OX_THEN(status, append(out, value, text, has_text(named_texts, text), id));
    }
    return status;
}

/* The files that take_added reads. */
struct legacy {
    const json_t *config, *map, *added, *listed, *named_texts;
};

enum { ID_BYTES = 24 };

static const char *id_text(json_int_t id, char text[ID_BYTES]) {
    snprintf(text, ID_BYTES, "%" JSON_INTEGER_FORMAT, id);
    return text;
}

static int add_ids(json_t *set, const json_t *list) {
    char text[ID_BYTES];
    int failed = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        failed |= add_text(set, id_text(json_integer_value(json_object_get(json_array_get(list, i), "id")), text));
    }
    return failed;
}

/* Adds the texts that name standard tokens, and those of any token of special_tokens_map.json: what an object of
 * tokenizer_config.json names, transformers does not see here. */
static int add_named_plainly(json_t *set, const struct legacy *from) {
    const json_t *const extra = json_object_get(from->config, "extra_special_tokens");
    int failed = 0;
    for (int i = 0; i < STANDARD_COUNT; i++) {
        const json_t *const other = json_object_get(from->map, standard[i]);
        failed |= add_text(set, other != NULL ? text_of(other)
                                              : json_string_value(json_object_get(from->config, standard[i])));
    }
    for (size_t i = 0; i < json_array_size(extra); i++) {
        failed |= add_text(set, json_string_value(json_array_get(extra, i)));
    }
    return failed;
}

/* added_tokens.json: ids by text. An id that tokenizer.json gives to an added token is that one's. */
static enum ox_status take_added(const char *where, const struct legacy *from, struct ox_tok_beside *out) {
    const char *key;
    json_t *value, *const listed_ids = json_object(), *const plain = json_object();
    char text[ID_BYTES];
    enum ox_status status = add_ids(listed_ids, from->listed) == 0 && add_named_plainly(plain, from) == 0
                                ? OX_OK : no_memory();
    json_object_foreach((json_t *)from->added, key, value) {
        if (status == OX_OK && (!json_is_integer(value) || json_integer_value(value) < 0)) {
            status = ox_fail(OX_E_CONFIG, "%s: the id of \"%.80s\" must be a number from 0", where, key);
        }
        if (status != OX_OK || has_text(listed_ids, id_text(json_integer_value(value), text))) {
            continue;
        }
        const bool special = has_text(plain, key);
        json_t *const flags = json_pack("{s:b}", "normalized", (int)!special);
        status = flags == NULL ? no_memory()
                               : append(out, flags, key, special || has_text(from->named_texts, key),
                                        json_integer_value(value));
        json_decref(flags);
    }
    json_decref(listed_ids);
    json_decref(plain);
    return status;
}

/* Named and extra tokens that no list has. One that is named twice takes the flags of the second. */
static enum ox_status take_names(const json_t *config, const json_t *named, const json_t *named_texts,
                                 const json_t *listed, struct ox_tok_beside *out) {
    const json_t *const list = json_object_get(config, "extra_special_tokens");
    const char *key;
    json_t *value, *const there = json_object(); /* what transformers knows before it adds these */
    int failed = add_listed(there, listed);
    for (size_t i = 0; i < out->count; i++) {
        failed |= add_text(there, out->tokens[i].token.text);
    }
    enum ox_status status = failed == 0 ? OX_OK : no_memory();
    json_object_foreach((json_t *)named, key, value) {
        OX_THEN(status, has_text(there, text_of(value)) ? OX_OK : append(out, value, text_of(value), true, -1));
    }
    for (size_t i = 0; i < json_array_size(list) && status == OX_OK; i++) {
        json_t *const one = json_array_get(list, i);
        const char *const text = text_of(one);
        if (text != NULL && !has_text(there, text)) {
            status = append(out, one, text, json_is_string(one) || has_text(named_texts, text), -1);
        }
    }
    json_decref(there);
    return status;
}

/* ---- the whole ------------------------------------------------------------------------------------------------- */

enum ox_status ox_tok_beside_open(const char *folder, const json_t *listed, struct ox_tok_beside *out) {
    char path[OX_PATH_BYTES];
    json_t *map = NULL, *added = NULL, *const named = json_object(), *const named_texts = json_object();
    *out = (struct ox_tok_beside){0};
    enum ox_status status = named != NULL ? load_optional(folder, "tokenizer_config.json", out->where, &out->config)
                                          : no_memory();
    if (status == OX_OK && out->config == NULL && (out->config = json_object()) == NULL) {
        status = no_memory();
    }
    json_t *const config = out->config;
    const json_t *const decoder = json_object_get(config, "added_tokens_decoder");
    if (status == OX_OK && json_object_get(config, "extra_special_tokens") == NULL &&
        json_object_get(config, "additional_special_tokens") != NULL &&
        json_object_set(config, "extra_special_tokens", json_object_get(config, "additional_special_tokens")) != 0) {
        status = no_memory();
    }
    if (status == OX_OK && decoder == NULL) {
        status = load_optional(folder, "special_tokens_map.json", path, &map);
        OX_THEN(status, take_map(config, map));
    }
    OX_THEN(status, collect_names(config, named, named_texts));
    if (status == OX_OK && decoder == NULL) {
        status = load_optional(folder, "added_tokens.json", path, &added);
        const struct legacy from = {config, map, added, listed, named_texts};
        OX_THEN(status, take_added(path, &from, out));
    } else if (status == OX_OK) {
        status = take_decoder(out->where, decoder, named_texts, out);
    }
    if (status == OX_OK && out->count > 0) {
        qsort(out->tokens, out->count, sizeof *out->tokens, compare_ids);
    }
    if (status == OX_OK && json_object_get(config, "extra_special_tokens") == NULL &&
        json_object_get(map, "additional_special_tokens") != NULL &&
        json_object_set(config, "extra_special_tokens", json_object_get(map, "additional_special_tokens")) != 0) {
        status = no_memory();
    }
    OX_THEN(status, take_names(config, named, named_texts, listed, out));
    json_decref(named);
    json_decref(named_texts);
    json_decref(map);
    json_decref(added);
    return status;
}

void ox_tok_beside_close(struct ox_tok_beside *beside) {
    for (size_t i = 0; i < beside->count; i++) {
        free(beside->tokens[i].token.text);
    }
    free(beside->tokens);
    json_decref(beside->config);
    *beside = (struct ox_tok_beside){0};
}
