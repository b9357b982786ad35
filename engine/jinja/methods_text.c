/* Owns the methods of strings. */
#include "engine/jinja/builtins_internal.h"

#include <inttypes.h>
#include <string.h>

static const struct string *self_of(const struct call *call) {
    return call->self.as.string;
}

static bool answer(struct call *call, bool truth) {
    *call->out = ox_ji_bool(truth);
    return true;
}

static bool string_argument(struct call *call, size_t index, const struct string **out) {
    const struct value value = call->arguments[index];
    if (value.kind != V_STRING) {
        return ox_ji_fail(call->run, "%s() argument must be str, not %s", call->builtin->name, ox_ji_type_name(value));
    }
    *out = value.as.string;
    return true;
}

static bool index_argument(struct call *call, size_t index, int64_t fallback, int64_t *out) {
    *out = fallback;
    return call->arguments[index].kind == V_MISSING || ox_ji_as_index(call->run, call->arguments[index], out);
}

static bool append_part(struct run *run, struct list *list, const struct string *string, size_t begin, size_t end) {
    struct value part = MISSING;
    return ox_ji_string_at(run, string->data + begin, end - begin, &part) && ox_ji_append(run, list, part);
}

/* ---- case and classes ------------------------------------------------------------------------------------------ */

bool ox_ji_method_case(struct call *call) {
    static const struct {
        const char *name;
        enum casing casing;
    } names[] = {{"upper", CASE_UPPER},           {"lower", CASE_LOWER},   {"title", CASE_TITLE},
                 {"capitalize", CASE_CAPITALIZE}, {"swapcase", CASE_SWAP}, {"casefold", CASE_FOLD}};
    size_t i = 0;
    while (strcmp(call->builtin->name, names[i].name) != 0) {
        i++;
    }
    return ox_ji_change_case(call->run, self_of(call), names[i].casing, call->out);
}

bool ox_ji_method_class(struct call *call) {
    return ox_ji_spend(call->run, self_of(call)->bytes / 16) &&
           answer(call, ox_ji_classify(self_of(call), call->builtin->name));
}

/* ---- strip, pad ------------------------------------------------------------------------------------------------ */

bool ox_ji_method_strip(struct call *call) {
    const struct value chars = call->arguments[0];
    const char side = call->builtin->name[0];
    const struct string *points = NULL;
    if (chars.kind != V_MISSING && chars.kind != V_NONE && !string_argument(call, 0, &points)) {
        return false;
    }
    return ox_ji_strip(call->run, self_of(call), points,
                       side == 'l' ? STRIP_LEFT : side == 'r' ? STRIP_RIGHT : STRIP_LEFT | STRIP_RIGHT, call->out);
}

static bool put_times(struct run *run, const struct string *text, int64_t times) {
    for (int64_t i = 0; i < times; i++) {
        if (!ox_ji_spend(run, 1) || !ox_ji_put_string(run, text)) {
            return false;
        }
    }
    return true;
}

bool ox_ji_method_pad(struct call *call) {
    static const struct string space = {.data = " ", .bytes = 1, .points = 1};
    const char side = call->builtin->name[0]; /* center, ljust, rjust */
    const struct string *fill = &space;
    int64_t width = 0;
    if (!ox_ji_as_index(call->run, call->arguments[0], &width) ||
        (call->arguments[1].kind != V_MISSING && !string_argument(call, 1, &fill))) {
        return false;
    }
    if (fill->points != 1) {
        return ox_ji_fail(call->run, "The fill character must be exactly one character long");
    }
    const int64_t missing = width - (int64_t)self_of(call)->points;
    if (missing <= 0) {
        *call->out = call->self;
        return true;
    }
    const int64_t left = side == 'l' ? 0 : side == 'r' ? missing : missing / 2 + (missing & width & 1);
    const struct capture capture = ox_ji_capture(call->run);
    return put_times(call->run, fill, left) && ox_ji_put_string(call->run, self_of(call)) &&
           put_times(call->run, fill, missing - left) && ox_ji_capture_end(call->run, capture, call->out);
}

bool ox_ji_method_zfill(struct call *call) {
    static const struct string zero = {.data = "0", .bytes = 1, .points = 1};
    const struct string *const self = self_of(call);
    int64_t width = 0;
    if (!ox_ji_as_index(call->run, call->arguments[0], &width)) {
        return false;
    }
    const size_t sign = self->bytes > 0 && (self->data[0] == '-' || self->data[0] == '+');
    const struct capture capture = ox_ji_capture(call->run);
    return ox_ji_put(call->run, self->data, sign) && put_times(call->run, &zero, width - (int64_t)self->points) &&
           ox_ji_put(call->run, self->data + sign, self->bytes - sign) &&
           ox_ji_capture_end(call->run, capture, call->out);
}

bool ox_ji_method_expandtabs(struct call *call) {
    const struct string *const self = self_of(call);
    int64_t size = 8, column = 0;
    if (!index_argument(call, 0, 8, &size)) {
        return false;
    }
    const struct capture capture = ox_ji_capture(call->run);
    static const struct string space = {.data = " ", .bytes = 1, .points = 1};
    for (size_t at = 0; at < self->bytes;) {
        const size_t begin = at;
        const uint32_t point = ox_ji_next_point(self->data, &at);
        const int64_t spaces = point == '\t' && size > 0 ? size - column % size : 0;
        if (!(point == '\t' ? put_times(call->run, &space, spaces)
                            : ox_ji_put(call->run, self->data + begin, at - begin))) {
            return false;
        }
        column = point == '\n' || point == '\r' ? 0 : column + (point == '\t' ? spaces : 1);
    }
    return ox_ji_capture_end(call->run, capture, call->out);
}

/* ---- search ---------------------------------------------------------------------------------------------------- */

/* The part [start, end) of the subject that arguments 1 and 2 name, in bytes; *begin_point is its first code point.
 * False in *valid where start is beyond the end. */
struct window {
    struct string text;
    int64_t begin_point;
    bool valid;
};

static bool bound_argument(struct call *call, size_t index, int64_t fallback, int64_t length, int64_t *out) {
    *out = fallback;
    if (call->arguments[index].kind == V_NONE) {
        return true;
    }
    if (!index_argument(call, index, fallback, out)) {
        return false;
    }
    *out += *out < 0 ? length : 0;
    *out = *out < 0 ? 0 : *out;
    return true;
}

static bool window_of(struct call *call, struct window *out) {
    const struct string *const self = self_of(call);
    const int64_t length = (int64_t)self->points;
    int64_t begin = 0, end = length;
    if (!bound_argument(call, 1, 0, length, &begin) || !bound_argument(call, 2, length, length, &end)) {
        return false;
    }
    end = end > length ? length : end;
    *out = (struct window){.begin_point = begin, .valid = begin <= end};
    if (out->valid) {
        const size_t first = ox_ji_byte_of_point(self, (size_t)begin);
        const size_t last = ox_ji_byte_of_point(self, (size_t)end);
        out->text = (struct string){
            .data = self->data + first, .bytes = last - first, .points = (size_t)(end - begin)};
    }
    return ox_ji_spend(call->run, 1 + self->bytes / 64);
}

bool ox_ji_method_find(struct call *call) {
    const char *const name = call->builtin->name; /* find, rfind, index, rindex */
    const struct string *needle = NULL;
    struct window window;
    if (!string_argument(call, 0, &needle) || !window_of(call, &window)) {
        return false;
    }
    size_t found = SIZE_MAX;
    if (window.valid) {
        found = name[0] == 'r' ? ox_ji_find_last(&window.text, needle, window.text.bytes)
                               : ox_ji_find(&window.text, needle, 0);
    }
    if (found == SIZE_MAX && strstr(name, "index") != NULL) {
        return ox_ji_fail(call->run, "substring not found");
    }
    *call->out = ox_ji_int(found == SIZE_MAX
                               ? -1
                               : window.begin_point + (int64_t)ox_ji_count_points(window.text.data, found));
    return true;
}

bool ox_ji_method_count(struct call *call) {
    const struct string *needle = NULL;
    struct window window;
    int64_t count = 0;
    if (!string_argument(call, 0, &needle) || !window_of(call, &window)) {
        return false;
    }
    if (window.valid && needle->bytes == 0) {
        count = (int64_t)window.text.points + 1;
    } else if (window.valid) {
        for (size_t at = 0; (at = ox_ji_find(&window.text, needle, at)) != SIZE_MAX; at += needle->bytes) {
            count++;
        }
    }
    *call->out = ox_ji_int(count);
    return true;
}

static bool has_affix(const struct window *window, const struct string *affix, bool at_end) {
    const size_t bytes = window->text.bytes;
    return window->valid && affix->bytes <= bytes &&
           (affix->bytes == 0 ||
            memcmp(window->text.data + (at_end ? bytes - affix->bytes : 0), affix->data, affix->bytes) == 0);
}

bool ox_ji_method_affix(struct call *call) {
    const bool at_end = call->builtin->name[0] == 'e'; /* endswith, startswith */
    const struct value affix = call->arguments[0];
    struct window window;
    if (!window_of(call, &window)) {
        return false;
    }
    if (affix.kind != V_TUPLE) {
        return affix.kind == V_STRING ? answer(call, has_affix(&window, affix.as.string, at_end))
                                      : ox_ji_fail(call->run, "%s first arg must be str or a tuple of str, not %s",
                                                   call->builtin->name, ox_ji_type_name(affix));
    }
    for (size_t i = 0; i < affix.as.list->count; i++) {
        const struct value one = affix.as.list->items[i];
        if (one.kind != V_STRING) {
            return ox_ji_fail(call->run, "tuple for %s must only contain str", call->builtin->name);
        }
        if (has_affix(&window, one.as.string, at_end)) {
            return answer(call, true);
        }
    }
    return answer(call, false);
}

bool ox_ji_method_remove(struct call *call) {
    const bool at_end = call->builtin->name[6] == 's'; /* removesuffix, removeprefix */
    const struct string *const self = self_of(call);
    const struct window window = {.text = *self, .valid = true};
    const struct string *affix = NULL;
    if (!string_argument(call, 0, &affix)) {
        return false;
    }
    const size_t bytes = has_affix(&window, affix, at_end) ? affix->bytes : 0;
    return ox_ji_string_at(call->run, self->data + (at_end ? 0 : bytes), self->bytes - bytes, call->out);
}

/* ---- replace, split, join -------------------------------------------------------------------------------------- */

bool ox_ji_method_replace(struct call *call) {
    const struct string *old = NULL, *new = NULL;
    int64_t count = -1;
    return string_argument(call, 0, &old) && string_argument(call, 1, &new) && index_argument(call, 2, -1, &count) &&
           ox_ji_replace(call->run, self_of(call), (const struct string *const[2]){old, new}, count, call->out);
}

/* The next run of characters that are no white space, from *at on; false at the end. */
static bool next_word(const struct string *string, size_t *at, size_t *begin) {
    bool found = false;
    while (*at < string->bytes) {
        size_t next = *at;
        const bool is_space = ox_ji_is_space(ox_ji_next_point(string->data, &next));
        if (is_space && found) {
            return true;
        }
        if (!is_space && !found) {
            *begin = *at;
            found = true;
        }
        *at = next;
    }
    return found;
}

static bool split_words(struct run *run, const struct string *string, int64_t limit, struct list *list) {
    size_t at = 0, begin = 0;
    while (next_word(string, &at, &begin)) {
        if (limit-- == 0) {
            return append_part(run, list, string, begin, string->bytes); /* the rest is one part */
        }
        if (!append_part(run, list, string, begin, at)) {
            return false;
        }
    }
    return true;
}

/* All but the last `limit` words are one part, with the white space before and between them. */
static bool rsplit_words(struct run *run, const struct string *string, int64_t limit, struct list *list) {
    size_t at = 0, begin = 0;
    int64_t words = 0;
    while (next_word(string, &at, &begin)) {
        words++;
    }
    at = 0;
    for (int64_t joined = limit < 0 || words <= limit ? 0 : words - limit; joined > 0; joined--) {
        next_word(string, &at, &begin);
        if (joined == 1 && !append_part(run, list, string, 0, at)) {
            return false;
        }
    }
    while (next_word(string, &at, &begin)) {
        if (!append_part(run, list, string, begin, at)) {
            return false;
        }
    }
    return true;
}

static bool split_at(struct run *run, const struct string *string, const struct string *separator, int64_t limit,
                     struct list *list) {
    size_t begin = 0;
    while (limit-- != 0) {
        const size_t found = ox_ji_find(string, separator, begin);
        if (found == SIZE_MAX) {
            break;
        }
        if (!append_part(run, list, string, begin, found)) {
            return false;
        }
        begin = found + separator->bytes;
    }
    return append_part(run, list, string, begin, string->bytes);
}

static bool rsplit_at(struct run *run, const struct string *string, const struct string *separator, int64_t limit,
                      struct list *list) {
    size_t end = string->bytes;
    while (limit-- != 0) {
        const size_t found = ox_ji_find_last(string, separator, end);
        if (found == SIZE_MAX) {
            break;
        }
        if (!append_part(run, list, string, found + separator->bytes, end)) {
            return false;
        }
        end = found;
    }
    if (!append_part(run, list, string, 0, end)) {
        return false;
    }
    for (size_t i = 0; i < list->count / 2; i++) {
        const struct value part = list->items[i];
        list->items[i] = list->items[list->count - 1 - i];
        list->items[list->count - 1 - i] = part;
    }
    return true;
}

bool ox_ji_method_split(struct call *call) {
    const bool from_end = call->builtin->name[0] == 'r';
    const struct value by = call->arguments[0];
    const struct string *separator = NULL;
    struct list *const list = ox_ji_new_list(call->run, 0);
    int64_t limit = -1;
    if (list == NULL || !index_argument(call, 1, -1, &limit) ||
        (by.kind != V_MISSING && by.kind != V_NONE && !string_argument(call, 0, &separator))) {
        return false;
    }
    limit = limit < 0 ? -1 : limit;
    *call->out = ox_ji_list(list);
    if (separator == NULL) {
        return ox_ji_spend(call->run, self_of(call)->bytes / 16) &&
               (from_end ? rsplit_words(call->run, self_of(call), limit, list)
                         : split_words(call->run, self_of(call), limit, list));
    }
    if (separator->bytes == 0) {
        return ox_ji_fail(call->run, "empty separator");
    }
    return from_end ? rsplit_at(call->run, self_of(call), separator, limit, list)
                    : split_at(call->run, self_of(call), separator, limit, list);
}

bool ox_ji_method_partition(struct call *call) {
    const bool from_end = call->builtin->name[0] == 'r';
    const struct string *const self = self_of(call);
    const struct string *separator = NULL;
    struct list *const list = ox_ji_new_list(call->run, 3);
    if (list == NULL || !string_argument(call, 0, &separator)) {
        return false;
    }
    if (separator->bytes == 0) {
        return ox_ji_fail(call->run, "empty separator");
    }
    const size_t found = from_end ? ox_ji_find_last(self, separator, self->bytes) : ox_ji_find(self, separator, 0);
    const size_t none = from_end ? 0 : self->bytes; /* where nothing is found, the whole stands on one side */
    const size_t first = found == SIZE_MAX ? none : found;
    const size_t second = found == SIZE_MAX ? none : found + separator->bytes;
    *call->out = ox_ji_tuple(list);
    return append_part(call->run, list, self, 0, first) && append_part(call->run, list, self, first, second) &&
           append_part(call->run, list, self, second, self->bytes);
}

static bool ends_line(uint32_t point) {
    return (point >= 0x0A && point <= 0x0D) || (point >= 0x1C && point <= 0x1E) || point == 0x85 || point == 0x2028 ||
           point == 0x2029;
}

bool ox_ji_split_lines(struct run *run, const struct string *string, bool keep_ends, struct list **out) {
    size_t begin = 0;
    *out = ox_ji_new_list(run, 0);
    if (*out == NULL) {
        return false;
    }
    for (size_t at = 0; at < string->bytes;) {
        const size_t end = at;
        const uint32_t point = ox_ji_next_point(string->data, &at);
        if (!ends_line(point)) {
            continue;
        }
        at += point == '\r' && at < string->bytes && string->data[at] == '\n';
        if (!append_part(run, *out, string, begin, keep_ends ? at : end)) {
            return false;
        }
        begin = at;
    }
    return begin == string->bytes || append_part(run, *out, string, begin, string->bytes);
}

bool ox_ji_method_splitlines(struct call *call) {
    struct list *list = NULL;
    int64_t keep_ends = 0;
    if ((call->arguments[0].kind != V_MISSING && !ox_ji_as_index(call->run, call->arguments[0], &keep_ends)) ||
        !ox_ji_split_lines(call->run, self_of(call), keep_ends != 0, &list)) {
        return false;
    }
    *call->out = ox_ji_list(list);
    return true;
}

bool ox_ji_method_join(struct call *call) {
    struct list *parts = NULL;
    if (!ox_ji_is_iterable(call->arguments[0])) {
        return ox_ji_fail(call->run, "can only join an iterable");
    }
    if (!ox_ji_to_list(call->run, call->arguments[0], &parts)) {
        return false;
    }
    const struct capture capture = ox_ji_capture(call->run);
    for (size_t i = 0; i < parts->count; i++) {
        if (parts->items[i].kind != V_STRING) {
            return ox_ji_fail(call->run, "sequence item %zu: expected str instance, %s found", i,
                              ox_ji_type_name(parts->items[i]));
        }
        if ((i > 0 && !ox_ji_put_string(call->run, self_of(call))) ||
            !ox_ji_put_string(call->run, parts->items[i].as.string)) {
            return false;
        }
    }
    return ox_ji_capture_end(call->run, capture, call->out);
}

bool ox_ji_method_format(struct call *call) {
    struct arguments given = *call->given;
    if (call->builtin->name[6] == '_') { /* format_map */
        if (given.count != 1 || given.keywords != NULL || given.positional[0].kind != V_DICT) {
            return ox_ji_fail(call->run, "format_map() takes exactly one dict");
        }
        given = (struct arguments){.keywords = (struct dict *)given.positional[0].as.dict};
    }
    return ox_ji_format(call->run, self_of(call), &given, call->out);
}
