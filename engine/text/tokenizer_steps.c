/* Reads the steps of a tokenizer.json around the model: normalizer, pre-tokenizer, decoder and post-processor, each as
 * a short list. A type or setting that is not supported is refused by name. */
#include "engine/text/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

static const char gpt2_split[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* The list of steps being read, and where it goes. */
struct reader {
    const char *where, *part; /* the file, and the key that is read, such as "normalizer", for errors */
    struct ox_tok_steps *steps;
    bool byte_level; /* pre-tokenizer: ByteLevel was read, so no step may follow */
};

typedef enum ox_status read_step(struct reader *reader, const json_t *json, const char *type);

static enum ox_status refuse_type(const struct reader *reader, const char *type) {
    return ox_fail(OX_E_CONFIG, "%s: the %s type \"%.60s\" is not supported", reader->where, reader->part, type);
}

/* The index of `name` among `count` names, or -1. */
static int index_of(const char *const names[], int count, const char *name) {
    for (int i = 0; i < count; i++) {
        if (strcmp(names[i], name) == 0) {
            return i;
        }
    }
    return -1;
}

static enum ox_status new_step(struct reader *reader, enum ox_tok_step_kind kind, struct ox_tok_step **out) {
    if (reader->steps->count == OX_TOK_STEPS_MAX) {
        return ox_fail(OX_E_CONFIG, "%s: the %s has more than %d steps", reader->where, reader->part, OX_TOK_STEPS_MAX);
    }
    *out = &reader->steps->step[reader->steps->count++];
    memset(*out, 0, sizeof **out);
    (*out)->kind = kind;
    return OX_OK;
}

static enum ox_status set_content(const struct reader *reader, struct ox_tok_step *step, const char *text) {
    step->content = strdup(text);
    step->content_bytes = strlen(text);
    return step->content == NULL ? ox_fail(OX_E_NOMEM, "%s: no memory for the %s", reader->where, reader->part) : OX_OK;
}

static enum ox_status read_content(const struct reader *reader, const json_t *json, const char *key,
                                   struct ox_tok_step *step) {
    const char *text = NULL;
    const enum ox_status status = ox_json_get_string(reader->where, json, key, true, &text);
    return status == OX_OK ? set_content(reader, step, text) : status;
}

/* Reads a text of exactly one character into the step's content. */
static enum ox_status read_char(const struct reader *reader, const json_t *json, const char *key,
                                struct ox_tok_step *step) {
    const enum ox_status status = read_content(reader, json, key, step);
    size_t pos = 0;
    if (status == OX_OK && step->content_bytes > 0) {
        ox_utf8_next(step->content, &pos);
    }
    return status != OX_OK || (pos == step->content_bytes && pos > 0)
               ? status
               : ox_fail(OX_E_CONFIG, "%s: \"%s\" of the %s must be one character", reader->where, key, reader->part);
}

/* Reads "pattern": {"String": text} or, if allowed, {"Regex": text}. */
static enum ox_status read_pattern(const struct reader *reader, const json_t *json, bool regex_allowed,
                                   struct ox_tok_step *step) {
    const json_t *const pattern = json_object_get(json, "pattern");
    const char *const literal = json_string_value(json_object_get(pattern, "String"));
    const char *const regex = json_string_value(json_object_get(pattern, "Regex"));
    if (json_object_size(pattern) != 1 || (literal == NULL && (regex == NULL || !regex_allowed))) {
        char excerpt[OX_JSON_EXCERPT_BYTES];
        return ox_fail(OX_E_CONFIG, "%s: the pattern %s of the %s is not supported", reader->where,
                       ox_json_excerpt(pattern, excerpt), reader->part);
    }
    return literal != NULL ? ox_pattern_open(reader->where, literal, OX_UNICODE_NONE, &step->pattern)
                           : ox_pattern_open(reader->where, regex, OX_UNICODE_REGEX, &step->pattern);
}

/* Reads one step, or all steps of a Sequence, whose members are under the key `list`. */
static enum ox_status read_steps(struct reader *reader, const json_t *json, const char *list, read_step *read) {
    const char *type = NULL;
    if (json == NULL || json_is_null(json)) {
        return OX_OK;
    }
    enum ox_status status = ox_json_get_string(reader->where, json, "type", true, &type);
    if (status != OX_OK) {
        return ox_fail_in(status, "%s", reader->part);
    }
    if (strcmp(type, "Sequence") != 0) {
        return read(reader, json, type);
    }
    const json_t *const members = json_object_get(json, list);
    if (!json_is_array(members)) {
        return ox_fail(OX_E_CONFIG, "%s: the Sequence of the %s needs a list \"%s\"", reader->where, reader->part,
                       list);
    }
    for (size_t i = 0; i < json_array_size(members) && status == OX_OK; i++) {
        status = read_steps(reader, json_array_get(members, i), list, read);
    }
    return status;
}

/* ---- normalizers --------------------------------------------------------------------------------------------- */

static enum ox_status read_replace(struct reader *reader, const json_t *json, bool regex_allowed) {
    struct ox_tok_step *step = NULL;
    enum ox_status status = new_step(reader, OX_TOK_REPLACE, &step);
    OX_THEN(status, read_pattern(reader, json, regex_allowed, step));
    return status == OX_OK ? read_content(reader, json, "content", step) : status;
}

static enum ox_status read_normalizer(struct reader *reader, const json_t *json, const char *type) {
    struct ox_tok_step *step = NULL;
    enum ox_status status;
    if (strcmp(type, "Replace") == 0) {
        return read_replace(reader, json, true);
    }
    if (strcmp(type, "Prepend") == 0) {
        status = new_step(reader, OX_TOK_PREPEND, &step);
        return status == OX_OK ? read_content(reader, json, "prepend", step) : status;
    }
    static const char *const forms[] = {"NFC", "NFD", "NFKC", "NFKD"};
    const int form = index_of(forms, 4, type);
    if (form < 0) {
        return refuse_type(reader, type);
    }
    status = new_step(reader, OX_TOK_FORM, &step);
    if (status == OX_OK) {
        step->compat = form >= 2;
        step->form = ox_form_of(form % 2 == 0, step->compat);
    }
    return status;
}

/* ---- pre-tokenizers ------------------------------------------------------------------------------------------ */

static enum ox_status add_split(struct reader *reader, const char *regex, enum ox_unicode_version version,
                                enum ox_split_behavior behavior) {
    struct ox_tok_step *step = NULL;
    OX_TRY(new_step(reader, OX_TOK_SPLIT, &step));
    step->behavior = behavior;
    return ox_pattern_open(reader->where, regex, version, &step->pattern);
}

static enum ox_status read_byte_level(struct reader *reader, const json_t *json) {
    struct ox_tok_step *step = NULL;
    bool prefix_space = false;
    bool use_regex = true;
    enum ox_status status = ox_json_get_bool(reader->where, json, "add_prefix_space", true, &prefix_space);
    OX_THEN(status, ox_json_get_bool(reader->where, json, "use_regex", false, &use_regex));
    if (status == OX_OK && prefix_space) {
        status = new_step(reader, OX_TOK_PREFIX_SPACE, &step);
    }
    if (status == OX_OK && use_regex) {
        status = add_split(reader, gpt2_split, OX_UNICODE_REGEX, OX_SPLIT_ISOLATED);
    }
    reader->byte_level = true;
    return status;
}

static enum ox_status read_split(struct reader *reader, const json_t *json) {
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    struct ox_tok_step *step = NULL;
    const char *name = NULL;
    enum ox_status status = new_step(reader, OX_TOK_SPLIT, &step);
    OX_THEN(status, read_pattern(reader, json, true, step));
    OX_THEN(status, ox_json_get_bool(reader->where, json, "invert", false, &step->invert));
    OX_THEN(status, ox_json_get_string(reader->where, json, "behavior", true, &name));
    if (status != OX_OK) {
        return status;
    }
    const int behavior = index_of(names, 5, name);
    step->behavior = (enum ox_split_behavior)behavior;
    return behavior < 0
               ? ox_fail(OX_E_CONFIG, "%s: the Split behavior \"%.40s\" is not supported", reader->where, name)
               : OX_OK;
}

static enum ox_status read_scheme(struct reader *reader, const json_t *json, struct ox_tok_step *step) {
    static const char *const names[] = {"always", "first", "never"};
    const char *name = names[OX_PREPEND_ALWAYS];
    bool prefix_space = true;
    enum ox_status status = ox_json_get_string(reader->where, json, "prepend_scheme", false, &name);
    OX_THEN(status, ox_json_get_bool(reader->where, json, "add_prefix_space", false, &prefix_space));
    if (status != OX_OK) {
        return status;
    }
    const int scheme = index_of(names, 3, name);
    if (scheme < 0) {
        return ox_fail(OX_E_CONFIG, "%s: the Metaspace prepend_scheme \"%.40s\" is not supported", reader->where, name);
    }
    step->prepend = (enum ox_prepend_scheme)scheme;
    return prefix_space || step->prepend == OX_PREPEND_NEVER
               ? OX_OK
               : ox_fail(OX_E_CONFIG, "%s: Metaspace has add_prefix_space false but the prepend_scheme \"%s\"",
                         reader->where, name);
}

static enum ox_status read_metaspace(struct reader *reader, const json_t *json) {
    struct ox_tok_step *step = NULL;
    enum ox_status status = new_step(reader, OX_TOK_METASPACE, &step);
    OX_THEN(status, read_char(reader, json, "replacement", step));
    OX_THEN(status, read_scheme(reader, json, step));
    if (status == OX_OK) {
        step->split = true;
        status = ox_json_get_bool(reader->where, json, "split", false, &step->split);
    }
    return status;
}

static enum ox_status read_pre(struct reader *reader, const json_t *json, const char *type) {
    if (reader->byte_level) {
        return ox_fail(OX_E_CONFIG, "%s: a pre_tokenizer (\"%.60s\") after ByteLevel is not supported", reader->where,
                       type);
    }
    if (strcmp(type, "ByteLevel") == 0) {
        return read_byte_level(reader, json);
    }
    if (strcmp(type, "Split") == 0) {
        return read_split(reader, json);
    }
    if (strcmp(type, "Metaspace") == 0) {
        return read_metaspace(reader, json);
    }
    if (strcmp(type, "Digits") == 0) {
        bool individual = false;
        const enum ox_status status = ox_json_get_bool(reader->where, json, "individual_digits", false, &individual);
        const enum ox_split_behavior behavior = individual ? OX_SPLIT_ISOLATED : OX_SPLIT_CONTIGUOUS;
        return status == OX_OK ? add_split(reader, "\\p{N}", OX_UNICODE_DIGITS, behavior) : status;
    }
    return refuse_type(reader, type);
}

/* ---- decoders ------------------------------------------------------------------------------------------------ */

static enum ox_status read_strip(struct reader *reader, const json_t *json) {
    struct ox_tok_step *step = NULL;
    enum ox_status status = new_step(reader, OX_TOK_STRIP, &step);
    OX_THEN(status, read_char(reader, json, "content", step));
    OX_THEN(status, ox_json_get_u64(reader->where, json, "start", true, &step->start));
    return status == OX_OK ? ox_json_get_u64(reader->where, json, "stop", true, &step->stop) : status;
}

static enum ox_status read_decoder(struct reader *reader, const json_t *json, const char *type) {
    static const struct {
        const char *name;
        enum ox_tok_step_kind kind;
    } plain[] = {{"ByteLevel", OX_TOK_BYTE_LEVEL}, {"ByteFallback", OX_TOK_BYTE_FALLBACK}, {"Fuse", OX_TOK_FUSE}};
    struct ox_tok_step *step = NULL;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        if (strcmp(type, plain[i].name) == 0) {
            return new_step(reader, plain[i].kind, &step);
        }
    }
    if (strcmp(type, "Replace") == 0) {
        return read_replace(reader, json, false);
    }
    if (strcmp(type, "Strip") == 0) {
        return read_strip(reader, json);
    }
    return strcmp(type, "Metaspace") == 0 ? read_metaspace(reader, json) : refuse_type(reader, type);
}

/* ---- post-processor ------------------------------------------------------------------------------------------ */

static enum ox_status add_special(const char *where, const json_t *specials, const char *name, struct ox_ids *out) {
    const json_t *const ids = name == NULL ? NULL : json_object_get(json_object_get(specials, name), "ids");
    if (!json_is_array(ids)) {
        return ox_fail(OX_E_CONFIG, "%s: TemplateProcessing uses the special token \"%.60s\" but gives no ids for it",
                       where, name == NULL ? "" : name);
    }
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *const value = json_array_get(ids, i);
        const json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || id >= OX_TOK_ID_LIMIT) {
            return ox_fail(OX_E_CONFIG, "%s: TemplateProcessing gives \"%.60s\" an invalid id", where, name);
        }
        const enum ox_status status = ox_ids_add(out, id);
        if (status != OX_OK) {
            return status;
        }
    }
    return OX_OK;
}

static enum ox_status read_template(const char *where, const json_t *json, struct ox_tok_post *out) {
    const json_t *const single = json_object_get(json, "single");
    const json_t *const specials = json_object_get(json, "special_tokens");
    if (!json_is_array(single) || out->is_template) {
        return ox_fail(OX_E_CONFIG, "%s: the post_processor needs one TemplateProcessing with a list \"single\"",
                       where);
    }
    unsigned texts = 0;
    enum ox_status status = OX_OK;
    for (size_t i = 0; i < json_array_size(single) && status == OX_OK; i++) {
        const json_t *const piece = json_array_get(single, i);
        const json_t *const special = json_object_get(piece, "SpecialToken");
        const char *const text = json_string_value(json_object_get(json_object_get(piece, "Sequence"), "id"));
        if (special != NULL) {
            const char *const name = json_string_value(json_object_get(special, "id"));
            status = add_special(where, specials, name, texts > 0 ? &out->after : &out->before);
        } else if (text == NULL || strcmp(text, "A") != 0 || texts++ > 0) {
            char excerpt[OX_JSON_EXCERPT_BYTES];
            return ox_fail(OX_E_CONFIG, "%s: the piece %s of TemplateProcessing is not supported", where,
                           ox_json_excerpt(piece, excerpt));
        }
    }
    out->is_template = true;
    return status != OX_OK || texts == 1 ? status
                                         : ox_fail(OX_E_CONFIG, "%s: TemplateProcessing has no place for the text",
                                                   where);
}

static enum ox_status read_post(const char *where, const json_t *json, struct ox_tok_post *out) {
    const char *type = NULL;
    if (json == NULL || json_is_null(json)) {
        return OX_OK;
    }
    enum ox_status status = ox_json_get_string(where, json, "type", true, &type);
    if (status != OX_OK) {
        return ox_fail_in(status, "post_processor");
    }
    if (strcmp(type, "ByteLevel") == 0) { /* it changes offsets, not ids */
        return OX_OK;
    }
    if (strcmp(type, "TemplateProcessing") == 0) {
        return read_template(where, json, out);
    }
    const json_t *const members = json_object_get(json, "processors");
    if (strcmp(type, "Sequence") != 0 || !json_is_array(members)) {
        return ox_fail(OX_E_CONFIG, "%s: the post_processor type \"%.60s\" is not supported", where, type);
    }
    for (size_t i = 0; i < json_array_size(members) && status == OX_OK; i++) {
        status = read_post(where, json_array_get(members, i), out);
    }
    return status;
}

/* ---- public -------------------------------------------------------------------------------------------------- */

enum ox_status ox_tok_normalizer_open(const char *where, const json_t *json, struct ox_tok_steps *out) {
    struct reader reader = {.where = where, .part = "normalizer", .steps = out};
    return read_steps(&reader, json, "normalizers", read_normalizer);
}

enum ox_status ox_tok_pre_open(const char *where, const json_t *json, struct ox_tok_steps *out, bool *byte_level) {
    struct reader reader = {.where = where, .part = "pre_tokenizer", .steps = out};
    const enum ox_status status = read_steps(&reader, json, "pretokenizers", read_pre);
    *byte_level = reader.byte_level;
    return status;
}

enum ox_status ox_tok_decoder_open(const char *where, const json_t *json, struct ox_tok_steps *out) {
    struct reader reader = {.where = where, .part = "decoder", .steps = out};
    return read_steps(&reader, json, "decoders", read_decoder);
}

enum ox_status ox_tok_post_open(const char *where, const json_t *json, struct ox_tok_post *out) {
    return read_post(where, json, out);
}

void ox_tok_steps_close(struct ox_tok_steps *steps) {
    for (uint32_t i = 0; i < steps->count; i++) {
        ox_pattern_close(&steps->step[i].pattern);
        free(steps->step[i].content);
    }
    memset(steps, 0, sizeof *steps);
}
