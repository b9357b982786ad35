/* Owns the text of values as Python prints them: str() and repr(). */
#include "engine/jinja/ast_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ox_ji_float_text(double real, char text[FLOAT_TEXT_BYTES]) {
    char digits[FLOAT_TEXT_BYTES];
    if (!isfinite(real)) {
        snprintf(text, FLOAT_TEXT_BYTES, "%s", isnan(real) ? "nan" : real < 0 ? "-inf" : "inf");
        return;
    }
    /* The fewest digits that read back as the same number. */
    for (int precision = 0; precision < 17; precision++) {
        snprintf(digits, sizeof digits, "%.*e", precision, real);
        if (strtod(digits, NULL) == real) {
            break;
        }
    }
    char *const mark = strchr(digits, 'e');
    const int exponent = (int)strtol(mark + 1, NULL, 10);
    *mark = '\0';
    if (exponent < -4 || exponent >= 16) {
        snprintf(text, FLOAT_TEXT_BYTES, "%.25se%c%02d", digits, exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    const int significant = (int)strlen(digits) - (digits[0] == '-') - (strchr(digits, '.') != NULL);
    const int decimals = significant - 1 - exponent;
    snprintf(text, FLOAT_TEXT_BYTES, "%.*f", decimals < 1 ? 1 : decimals, real);
}

static bool put_point_escape(struct run *run, uint32_t point) {
    char text[16];
    const char *const format = point < 0x100 ? "\\x%02" PRIx32 : point < 0x10000 ? "\\u%04" PRIx32 : "\\U%08" PRIx32;
    snprintf(text, sizeof text, format, point);
    return ox_ji_put_text(run, text);
}

static bool put_string_repr(struct run *run, const struct string *string) {
    const bool has_single = string->bytes > 0 && memchr(string->data, '\'', string->bytes) != NULL;
    const bool has_double = string->bytes > 0 && memchr(string->data, '"', string->bytes) != NULL;
    const char quote = has_single && !has_double ? '"' : '\'';
    if ((string->is_markup && !ox_ji_put_text(run, "Markup(")) || !ox_ji_put(run, &quote, 1)) {
        return false;
    }
    for (size_t at = 0; at < string->bytes;) {
        const size_t begin = at;
        const uint32_t point = ox_ji_next_point(string->data, &at);
        const char *const known = point == '\n' ? "\\n" : point == '\r' ? "\\r" : point == '\t' ? "\\t" : NULL;
        bool ok = true;
        if (known != NULL) {
            ok = ox_ji_put_text(run, known);
        } else if (point == (unsigned char)quote || point == '\\') {
            const char escaped[] = {'\\', (char)point};
            ok = ox_ji_put(run, escaped, 2);
        } else if (!ox_ji_is_printable(point)) {
            ok = put_point_escape(run, point);
        } else {
            ok = ox_ji_put(run, string->data + begin, at - begin);
        }
        if (!ok) {
            return false;
        }
    }
    return ox_ji_put(run, &quote, 1) && (!string->is_markup || ox_ji_put_text(run, ")"));
}

static bool put_list_repr(struct run *run, const struct list *list, bool is_tuple) {
    if (!ox_ji_put_text(run, is_tuple ? "(" : "[")) {
        return false;
    }
    for (size_t i = 0; i < list->count; i++) {
        if ((i > 0 && !ox_ji_put_text(run, ", ")) || !ox_ji_put_repr(run, list->items[i])) {
            return false;
        }
    }
    return ox_ji_put_text(run, !is_tuple ? "]" : list->count == 1 ? ",)" : ")");
}

static bool put_dict_repr(struct run *run, const struct dict *dict) {
    if (!ox_ji_put_text(run, "{")) {
        return false;
    }
    for (size_t i = 0; i < dict->count; i++) {
        if ((i > 0 && !ox_ji_put_text(run, ", ")) || !ox_ji_put_repr(run, dict->entries[i].key) ||
            !ox_ji_put_text(run, ": ") || !ox_ji_put_repr(run, dict->entries[i].item)) {
            return false;
        }
    }
    return ox_ji_put_text(run, "}");
}

static bool put_view_repr(struct run *run, const struct view *view) {
    static const char *const names[] = {"dict_keys([", "dict_values([", "dict_items(["};
    if (!ox_ji_put_text(run, names[view->kind])) {
        return false;
    }
    for (size_t i = 0; i < view->dict->count; i++) {
        struct value item = MISSING;
        if ((i > 0 && !ox_ji_put_text(run, ", ")) ||
            !ox_ji_view_item(run, view->kind, &view->dict->entries[i], &item) || !ox_ji_put_repr(run, item)) {
            return false;
        }
    }
    return ox_ji_put_text(run, "])");
}

static bool put_range_repr(struct run *run, const struct range *range) {
    char text[96];
    if (range->step == 1) {
        snprintf(text, sizeof text, "range(%" PRId64 ", %" PRId64 ")", range->start, range->stop);
    } else {
        snprintf(text, sizeof text, "range(%" PRId64 ", %" PRId64 ", %" PRId64 ")", range->start, range->stop,
                 range->step);
    }
    return ox_ji_put_text(run, text);
}

static bool put_number(struct run *run, struct value value) {
    char text[FLOAT_TEXT_BYTES];
    if (value.kind == V_FLOAT) {
        ox_ji_float_text(value.as.real, text);
    } else {
        snprintf(text, sizeof text, "%" PRId64, value.as.integer);
    }
    return ox_ji_put_text(run, text);
}

static bool put_container_repr(struct run *run, struct value value) {
    bool ok = false;
    if (!ox_ji_enter(run)) {
        return false;
    }
    switch (value.kind) {
    case V_LIST:
    case V_TUPLE:
        ok = put_list_repr(run, value.as.list, value.kind == V_TUPLE);
        break;
    case V_DICT:
        ok = put_dict_repr(run, value.as.dict);
        break;
    case V_VIEW:
        ok = put_view_repr(run, value.as.view);
        break;
    default:
        ok = ox_ji_put_text(run, "<Namespace ") && put_dict_repr(run, value.as.space->dict) &&
             ox_ji_put_text(run, ">");
        break;
    }
    run->depth--;
    return ok;
}

bool ox_ji_put_repr(struct run *run, struct value value) {
    if (!ox_ji_spend(run, 1)) {
        return false;
    }
    switch (value.kind) {
    case V_UNDEFINED:
        return ox_ji_put_text(run, "Undefined");
    case V_NONE:
        return ox_ji_put_text(run, "None");
    case V_BOOL:
        return ox_ji_put_text(run, value.as.truth ? "True" : "False");
    case V_INT:
    case V_FLOAT:
        return put_number(run, value);
    case V_STRING:
        return put_string_repr(run, value.as.string);
    case V_LIST:
    case V_TUPLE:
    case V_DICT:
    case V_VIEW:
    case V_NAMESPACE:
        return put_container_repr(run, value);
    case V_RANGE:
        return put_range_repr(run, value.as.range);
    case V_MACRO:
        if (value.as.macro->signature->name != NULL) {
            const struct value name = {.kind = V_STRING, .as.string = value.as.macro->signature->name};
            return ox_ji_put_text(run, "<Macro ") && ox_ji_put_repr(run, name) && ox_ji_put_text(run, ">");
        }
        return ox_ji_put_text(run, "<Macro 'caller'>");
    case V_SELF:
        return ox_ji_put_text(run, "<TemplateReference None>");
    default: /* Python's text has an address in memory */
        return ox_ji_fail(run, "printing an object of type '%s' is not supported here", ox_ji_type_name(value));
    }
}

bool ox_ji_put_value(struct run *run, struct value value) {
    switch (value.kind) {
    case V_STRING:
        return ox_ji_put_string(run, value.as.string);
    case V_UNDEFINED:
        return true;
    default:
        return ox_ji_put_repr(run, value);
    }
}

bool ox_ji_to_string(struct run *run, struct value value, struct value *out) {
    if (value.kind == V_STRING) {
        *out = value;
        return true;
    }
    const struct capture capture = ox_ji_capture(run);
    return ox_ji_put_value(run, value) && ox_ji_capture_end(run, capture, out);
}
