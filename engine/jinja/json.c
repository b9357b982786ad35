/* Owns JSON: values from it, and values to it as Python's json.dumps writes them. */
#include "engine/jinja/value_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- from JSON ------------------------------------------------------------------------------------------------- */

static bool list_from_json(struct run *run, const json_t *json, struct value *out) {
    struct list *const list = ox_ji_new_list(run, json_array_size(json));
    for (size_t i = 0; list != NULL && i < json_array_size(json); i++) {
        struct value item = MISSING;
        if (!ox_ji_from_json(run, json_array_get(json, i), &item) || !ox_ji_append(run, list, item)) {
            return false;
        }
    }
    *out = ox_ji_list(list);
    return list != NULL;
}

static bool dict_from_json(struct run *run, const json_t *json, struct value *out) {
    struct dict *const dict = ox_ji_new_dict(run);
    const char *key = NULL;
    size_t key_bytes = 0;
    json_t *item_json = NULL;
    if (dict == NULL) {
        return false;
    }
    json_object_keylen_foreach((json_t *)json, key, key_bytes, item_json) {
        struct value name = MISSING, item = MISSING;
        if (!ox_ji_string(run, key, key_bytes, &name) || !ox_ji_from_json(run, item_json, &item) ||
            !ox_ji_dict_set(run, dict, name, item)) {
            return false;
        }
    }
    *out = (struct value){.kind = V_DICT, .as.dict = dict};
    return true;
}

bool ox_ji_from_json(struct run *run, const json_t *json, struct value *out) {
    bool ok = false;
    switch (json_typeof(json)) {
    case JSON_NULL:
        *out = NONE;
        return true;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = ox_ji_bool(json_is_true(json));
        return true;
    case JSON_INTEGER:
        *out = ox_ji_int(json_integer_value(json));
        return true;
    case JSON_REAL:
        *out = ox_ji_float(json_real_value(json));
        return true;
    case JSON_STRING:
        return ox_ji_string(run, json_string_value(json), json_string_length(json), out);
    case JSON_ARRAY:
    case JSON_OBJECT:
        break;
    }
    if (ox_ji_enter(run)) {
        ok = json_is_array(json) ? list_from_json(run, json, out) : dict_from_json(run, json, out);
        run->depth--;
    }
    return ok;
}

/* ---- to JSON --------------------------------------------------------------------------------------------------- */

static bool put_unit(struct run *run, uint32_t unit) {
    char text[16];
    snprintf(text, sizeof text, "\\u%04x", (unsigned)unit);
    return ox_ji_put(run, text, 6);
}

static bool put_point(struct run *run, uint32_t point) {
    static const char short_forms[] = "\"\"\\\\\nn\rr\tt\ff\bb";
    for (size_t i = 0; short_forms[i] != '\0'; i += 2) {
        if (point == (unsigned char)short_forms[i]) {
            const char text[] = {'\\', short_forms[i + 1]};
            return ox_ji_put(run, text, 2);
        }
    }
    if (point < 0x10000) {
        return put_unit(run, point);
    }
    return put_unit(run, 0xD800 + ((point - 0x10000) >> 10)) && put_unit(run, 0xDC00 + ((point - 0x10000) & 0x3FF));
}

static bool put_json_string(struct run *run, const struct string *string, bool ensure_ascii) {
    if (!ox_ji_put(run, "\"", 1)) {
        return false;
    }
    size_t plain = 0; /* what needs no escape is written in one piece */
    for (size_t at = 0; at < string->bytes;) {
        const size_t begin = at;
        const uint32_t point = ox_ji_next_point(string->data, &at);
        if (point < 0x20 || point == '"' || point == '\\' || (ensure_ascii && point >= 0x7F)) {
            if (!ox_ji_put(run, string->data + plain, begin - plain) || !put_point(run, point)) {
                return false;
            }
            plain = at;
        }
    }
    return ox_ji_put(run, string->data + plain, string->bytes - plain) && ox_ji_put(run, "\"", 1);
}

static bool put_line(struct run *run, const struct json_style *style, uint32_t level) {
    if (!style->has_indent) {
        return true;
    }
    bool ok = ox_ji_put(run, "\n", 1);
    for (uint32_t i = 0; ok && i < level; i++) {
        ok = ox_ji_put_string(run, style->indent);
    }
    return ok;
}

static bool put_json_list(struct run *run, const struct list *list, const struct json_style *style, uint32_t level) {
    if (list->count == 0) {
        return ox_ji_put(run, "[]", 2);
    }
    bool ok = ox_ji_put(run, "[", 1);
    for (size_t i = 0; ok && i < list->count; i++) {
        ok = (i == 0 || ox_ji_put_string(run, style->item_separator)) && put_line(run, style, level + 1) &&
             ox_ji_put_json(run, list->items[i], style, level + 1);
    }
    return ok && put_line(run, style, level) && ox_ji_put(run, "]", 1);
}

static bool put_json_number(struct run *run, struct value value) {
    if (value.kind == V_FLOAT && !isfinite(value.as.real)) {
        return ox_ji_put_text(run, isnan(value.as.real) ? "NaN" : value.as.real < 0 ? "-Infinity" : "Infinity");
    }
    return ox_ji_put_repr(run, value);
}

static const char *word_of(struct value value) {
    return value.kind == V_NONE ? "null" : value.as.truth ? "true" : "false";
}

static bool put_json_key(struct run *run, struct value key, const struct json_style *style) {
    switch (key.kind) {
    case V_STRING:
        return put_json_string(run, key.as.string, style->ensure_ascii);
    case V_NONE:
    case V_BOOL:
        return ox_ji_put(run, "\"", 1) && ox_ji_put_text(run, word_of(key)) && ox_ji_put(run, "\"", 1);
    case V_INT:
    case V_FLOAT:
        return ox_ji_put(run, "\"", 1) && put_json_number(run, key) && ox_ji_put(run, "\"", 1);
    default:
        return ox_ji_fail(run, "keys must be str, int, float, bool or None, not %s", ox_ji_type_name(key));
    }
}

static bool sorted_entries(struct run *run, const struct dict *dict, struct list **out) {
    struct list *const keys = ox_ji_new_list(run, dict->count);
    struct list *const list = ox_ji_new_list(run, dict->count);
    for (size_t i = 0; keys != NULL && list != NULL && i < dict->count; i++) {
        if (!ox_ji_append(run, keys, dict->entries[i].key) || !ox_ji_append(run, list, ox_ji_int((int64_t)i))) {
            return false;
        }
    }
    *out = list;
    return keys != NULL && list != NULL && ox_ji_sort(run, list, keys, false);
}

static bool put_json_dict(struct run *run, const struct dict *dict, const struct json_style *style, uint32_t level) {
    struct list *order = NULL;
    if (dict->count == 0) {
        return ox_ji_put(run, "{}", 2);
    }
    bool ok = (!style->sort_keys || sorted_entries(run, dict, &order)) && ox_ji_put(run, "{", 1);
    for (size_t i = 0; ok && i < dict->count; i++) {
        const struct entry *const entry = &dict->entries[order != NULL ? (size_t)order->items[i].as.integer : i];
        ok = (i == 0 || ox_ji_put_string(run, style->item_separator)) && put_line(run, style, level + 1) &&
             put_json_key(run, entry->key, style) && ox_ji_put_string(run, style->key_separator) &&
             ox_ji_put_json(run, entry->item, style, level + 1);
    }
    return ok && put_line(run, style, level) && ox_ji_put(run, "}", 1);
}

bool ox_ji_put_json(struct run *run, struct value value, const struct json_style *style, uint32_t level) {
    bool ok = false;
    if (!ox_ji_spend(run, 1)) {
        return false;
    }
    switch (value.kind) {
    case V_NONE:
    case V_BOOL:
        return ox_ji_put_text(run, word_of(value));
    case V_INT:
    case V_FLOAT:
        return put_json_number(run, value);
    case V_STRING:
        return put_json_string(run, value.as.string, style->ensure_ascii);
    case V_LIST:
    case V_TUPLE:
    case V_DICT:
        break;
    default:
        return ox_ji_fail(run, "Object of type %s is not JSON serializable", ox_ji_type_name(value));
    }
    if (ox_ji_enter(run)) {
        ok = value.kind == V_DICT ? put_json_dict(run, value.as.dict, style, level)
                                  : put_json_list(run, value.as.list, style, level);
        run->depth--;
    }
    return ok;
}
