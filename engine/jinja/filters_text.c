/* Owns the filters of texts. */
#include "engine/jinja/builtins_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The subject as a string. */
static bool subject(struct call *call, const struct string **out) {
    struct value text = MISSING;
    if (!ox_ji_to_string(call->run, call->self, &text)) {
        return false;
    }
    *out = text.as.string;
    return true;
}

static bool change_case(struct call *call, enum casing casing) {
    const struct string *text = NULL;
    return subject(call, &text) && ox_ji_change_case(call->run, text, casing, call->out);
}

bool ox_ji_filter_upper(struct call *call) {
    return change_case(call, CASE_UPPER);
}

bool ox_ji_filter_lower(struct call *call) {
    return change_case(call, CASE_LOWER);
}

bool ox_ji_filter_capitalize(struct call *call) {
    return change_case(call, CASE_CAPITALIZE);
}

bool ox_ji_filter_title(struct call *call) {
    const struct string *text = NULL;
    return subject(call, &text) && ox_ji_title_words(call->run, text, call->out);
}

bool ox_ji_filter_string(struct call *call) {
    return ox_ji_to_string(call->run, call->self, call->out);
}

bool ox_ji_filter_safe(struct call *call) {
    const struct string *text = NULL;
    if (!subject(call, &text) || !ox_ji_string_at(call->run, text->data, text->bytes, call->out)) {
        return false;
    }
    ((struct string *)call->out->as.string)->is_markup = true;
    return true;
}

bool ox_ji_filter_escape(struct call *call) {
    const struct string *text = NULL;
    if (!subject(call, &text)) {
        return false;
    }
    *call->out = (struct value){.kind = V_STRING, .as.string = text};
    return text->is_markup || ox_ji_escape(call->run, text, call->out);
}

bool ox_ji_filter_forceescape(struct call *call) {
    const struct string *text = NULL;
    return subject(call, &text) && ox_ji_escape(call->run, text, call->out);
}

bool ox_ji_filter_trim(struct call *call) {
    const struct string *text = NULL;
    const struct value chars = call->arguments[0];
    if (!subject(call, &text)) {
        return false;
    }
    if (chars.kind != V_MISSING && chars.kind != V_NONE && chars.kind != V_STRING) {
        return ox_ji_fail(call->run, "strip arg must be None or str");
    }
    return ox_ji_strip(call->run, text, chars.kind == V_STRING ? chars.as.string : NULL, STRIP_LEFT | STRIP_RIGHT,
                       call->out);
}

bool ox_ji_filter_replace(struct call *call) {
    const struct string *text = NULL;
    struct value old = MISSING, new = MISSING;
    int64_t count = -1;
    if (!subject(call, &text) || !ox_ji_to_string(call->run, call->arguments[0], &old) ||
        !ox_ji_to_string(call->run, call->arguments[1], &new)) {
        return false;
    }
    if (call->arguments[2].kind != V_MISSING && call->arguments[2].kind != V_NONE &&
        !ox_ji_as_index(call->run, call->arguments[2], &count)) {
        return false;
    }
    return ox_ji_replace(call->run, text, (const struct string *const[2]){old.as.string, new.as.string}, count,
                         call->out);
}

bool ox_ji_filter_center(struct call *call) {
    const struct string *text = NULL;
    struct value format = MISSING;
    const struct builtin *method = NULL;
    if (!subject(call, &text) || !ox_ji_string_of(call->run, "center", &format)) {
        return false;
    }
    method = ox_ji_find_method(V_STRING, format.as.string);
    struct value width = call->arguments[0].kind == V_MISSING ? ox_ji_int(80) : call->arguments[0];
    const struct arguments given = {.positional = &width, .count = 1};
    return ox_ji_apply(call->run, method, (struct value){.kind = V_STRING, .as.string = text}, &given, call->out);
}

/* ---- indent ---------------------------------------------------------------------------------------------------- */

static bool argument_truth(struct call *call, size_t index, bool *out) {
    *out = false;
    return call->arguments[index].kind == V_MISSING || ox_ji_truth(call->run, call->arguments[index], out);
}

static bool indentation(struct call *call, struct value *out) {
    int64_t width = 4;
    if (call->arguments[0].kind == V_STRING) {
        *out = call->arguments[0];
        return true;
    }
    return (call->arguments[0].kind == V_MISSING || ox_ji_as_index(call->run, call->arguments[0], &width)) &&
           ox_ji_string_of(call->run, " ", out) &&
           ox_ji_binary(call->run, '*', *out, ox_ji_int(width), out);
}

bool ox_ji_filter_indent(struct call *call) {
    struct run *const run = call->run;
    struct value indent = MISSING, newline = MISSING, text = MISSING;
    struct list *lines = NULL;
    bool first = false, blank = false;
    if (!indentation(call, &indent) || !argument_truth(call, 1, &first) || !argument_truth(call, 2, &blank) ||
        !ox_ji_string_of(run, "\n", &newline) || !ox_ji_binary(run, '+', call->self, newline, &text)) {
        return false;
    }
    if (text.kind != V_STRING) {
        return ox_ji_fail(run, "indent() takes a text");
    }
    if (!ox_ji_split_lines(run, text.as.string, false, &lines)) {
        return false;
    }
    const struct capture capture = ox_ji_capture(run);
    for (size_t i = 0; i < lines->count; i++) {
        const struct string *const line = lines->items[i].as.string;
        const bool indented = i == 0 ? first : blank || line->bytes > 0;
        if ((i > 0 && !ox_ji_put(run, "\n", 1)) || (indented && !ox_ji_put_string(run, indent.as.string)) ||
            !ox_ji_put_string(run, line)) {
            return false;
        }
    }
    return ox_ji_capture_end(run, capture, call->out);
}

/* ---- truncate, wordcount, urlencode ---------------------------------------------------------------------------- */

bool ox_ji_filter_truncate(struct call *call) {
    struct run *const run = call->run;
    int64_t length = 255, leeway = 5;
    bool kill = false;
    struct value end = call->arguments[2];
    if ((call->arguments[0].kind != V_MISSING && !ox_ji_as_index(run, call->arguments[0], &length)) ||
        !argument_truth(call, 1, &kill) || (end.kind == V_MISSING && !ox_ji_string_of(run, "...", &end)) ||
        (call->arguments[3].kind != V_MISSING && call->arguments[3].kind != V_NONE &&
         !ox_ji_as_index(run, call->arguments[3], &leeway))) {
        return false;
    }
    if (end.kind != V_STRING || length < (int64_t)end.as.string->points || leeway < 0 ||
        length > INT64_MAX - leeway) {
        return ox_ji_fail(run, "truncate() takes a length not below that of the end");
    }
    int64_t points = 0;
    if (!ox_ji_length(run, call->self, &points)) {
        return false;
    }
    if (points <= length + leeway) {
        *call->out = call->self;
        return true;
    }
    if (call->self.kind != V_STRING) {
        return ox_ji_fail(run, "truncate() of an object of type '%s' is not supported here",
                          ox_ji_type_name(call->self));
    }
    const struct string *const text = call->self.as.string;
    struct value cut = MISSING;
    if (!ox_ji_string_slice(run, text, 0, length - (int64_t)end.as.string->points, 1, &cut)) {
        return false;
    }
    const struct string space = {.data = " ", .bytes = 1, .points = 1};
    const size_t last = kill ? SIZE_MAX : ox_ji_find_last(cut.as.string, &space, cut.as.string->bytes);
    return (last == SIZE_MAX || ox_ji_string_at(run, cut.as.string->data, last, &cut)) &&
           ox_ji_concat(run, cut.as.string, end.as.string, call->out);
}

bool ox_ji_filter_wordcount(struct call *call) {
    const struct string *text = NULL;
    int64_t count = 0;
    bool in_word = false;
    if (!subject(call, &text)) {
        return false;
    }
    for (size_t at = 0; at < text->bytes;) {
        const bool is_word = ox_ji_is_word_point(ox_ji_next_point(text->data, &at));
        count += is_word && !in_word;
        in_word = is_word;
    }
    *call->out = ox_ji_int(count);
    return ox_ji_spend(call->run, text->bytes / 16);
}

bool ox_ji_filter_urlencode(struct call *call) {
    struct run *const run = call->run;
    const struct string *text = NULL;
    if (call->self.kind != V_STRING && ox_ji_is_iterable(call->self)) {
        return ox_ji_fail(run, "urlencode of a sequence or dict is not supported here");
    }
    if (!subject(call, &text)) {
        return false;
    }
    const struct capture capture = ox_ji_capture(run);
    for (size_t i = 0; i < text->bytes; i++) {
        const char c = text->data[i];
        const bool plain = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') ||
                           (c != '\0' && strchr("_.-~/", c) != NULL);
        char code[4];
        snprintf(code, sizeof code, "%%%02X", (unsigned)(unsigned char)c);
        if (!(plain ? ox_ji_put(run, &c, 1) : ox_ji_put(run, code, 3))) {
            return false;
        }
    }
    return ox_ji_capture_end(run, capture, call->out);
}

/* ---- format, tojson -------------------------------------------------------------------------------------------- */

bool ox_ji_filter_format(struct call *call) {
    const struct string *text = NULL;
    const bool has_keywords = call->given->keywords != NULL && call->given->keywords->count > 0;
    if (call->given->count > 0 && has_keywords) {
        return ox_ji_fail(call->run, "can't handle positional and keyword arguments at the same time");
    }
    const struct list list = {.items = call->given->positional, .count = call->given->count};
    const struct value values = has_keywords
                                    ? (struct value){.kind = V_DICT, .as.dict = call->given->keywords}
                                    : ox_ji_tuple(&list);
    return subject(call, &text) && ox_ji_percent(call->run, text, values, call->out);
}

static bool indent_of(struct call *call, struct json_style *style) {
    const struct value indent = call->arguments[1];
    struct value text = MISSING;
    if (indent.kind == V_MISSING || indent.kind == V_NONE) {
        return true;
    }
    style->has_indent = true;
    if (indent.kind == V_STRING) {
        style->indent = indent.as.string;
        return true;
    }
    if (!ox_ji_string_of(call->run, " ", &text) || !ox_ji_binary(call->run, '*', text, indent, &text)) {
        return false;
    }
    style->indent = text.as.string;
    return text.kind == V_STRING || ox_ji_fail(call->run, "indent must be an integer or a text");
}

static bool separators_of(struct call *call, struct json_style *style) {
    static const struct string comma = {.data = ",", .bytes = 1, .points = 1};
    static const struct string comma_space = {.data = ", ", .bytes = 2, .points = 2};
    static const struct string colon = {.data = ": ", .bytes = 2, .points = 2};
    const struct value separators = call->arguments[2];
    struct list *pair = NULL;
    style->item_separator = style->has_indent ? &comma : &comma_space;
    style->key_separator = &colon;
    if (separators.kind == V_MISSING || separators.kind == V_NONE) {
        return true;
    }
    if (!ox_ji_to_list(call->run, separators, &pair)) {
        return false;
    }
    if (pair->count != 2 || pair->items[0].kind != V_STRING || pair->items[1].kind != V_STRING) {
        return ox_ji_fail(call->run, "separators must be two texts");
    }
    style->item_separator = pair->items[0].as.string;
    style->key_separator = pair->items[1].as.string;
    return true;
}

bool ox_ji_filter_tojson(struct call *call) {
    struct json_style style = {0};
    if (!argument_truth(call, 0, &style.ensure_ascii) || !indent_of(call, &style) || !separators_of(call, &style) ||
        !argument_truth(call, 3, &style.sort_keys)) {
        return false;
    }
    const struct capture capture = ox_ji_capture(call->run);
    return ox_ji_put_json(call->run, call->self, &style, 0) && ox_ji_capture_end(call->run, capture, call->out);
}
