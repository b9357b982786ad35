/* Owns the table of global functions. */
#include "engine/jinja/ast_internal.h"

#include <stdlib.h>
#include <string.h>

static bool make_range(struct call *call) {
    enum { RANGE_MAX = 100000 }; /* the sandbox's own limit */
    int64_t start = 0, stop = 0, step = 1;
    struct range *const range = ox_ji_new(call->run, sizeof *range);
    const bool has_start = call->arguments[1].kind != V_MISSING;
    if (range == NULL || !ox_ji_as_index(call->run, call->arguments[has_start], &stop) ||
        (has_start && !ox_ji_as_index(call->run, call->arguments[0], &start)) ||
        (call->arguments[2].kind != V_MISSING && !ox_ji_as_index(call->run, call->arguments[2], &step))) {
        return false;
    }
    if (step == 0) {
        return ox_ji_fail(call->run, "range() arg 3 must not be zero");
    }
    const __int128 distance = step > 0 ? (__int128)stop - start : (__int128)start - stop;
    const __int128 size = step > 0 ? (__int128)step : -(__int128)step;
    const __int128 count = distance <= 0 ? 0 : (distance - 1) / size + 1;
    if (count > RANGE_MAX) {
        return ox_ji_fail(call->run, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).",
                          RANGE_MAX);
    }
    *range = (struct range){.start = start, .stop = stop, .step = step, .count = (int64_t)count};
    *call->out = (struct value){.kind = V_RANGE, .as.range = range};
    return true;
}

/* dict(): of a dict or pairs, and of keywords. */
static bool collect(struct call *call, struct dict **out) {
    struct run *const run = call->run;
    const struct arguments *const given = call->given;
    struct dict *const dict = ox_ji_new_dict(run);
    *out = dict;
    if (dict == NULL || given->count > 1) {
        return dict != NULL && ox_ji_fail(run, "dict expected at most 1 argument, got %zu", given->count);
    }
    if (given->count == 1 && given->positional[0].kind == V_DICT) {
        const struct dict *const from = given->positional[0].as.dict;
        for (size_t i = 0; i < from->count; i++) {
            if (!ox_ji_dict_set(run, dict, from->entries[i].key, from->entries[i].item)) {
                return false;
            }
        }
    } else if (given->count == 1) {
        struct list *pairs = NULL, *pair = NULL;
        if (!ox_ji_to_list(run, given->positional[0], &pairs)) {
            return false;
        }
        for (size_t i = 0; i < pairs->count; i++) {
            if (!ox_ji_to_list(run, pairs->items[i], &pair)) {
                return false;
            }
            if (pair->count != 2) {
                return ox_ji_fail(run, "dictionary update sequence element has length %zu; 2 is required", pair->count);
            }
            if (!ox_ji_dict_set(run, dict, pair->items[0], pair->items[1])) {
                return false;
            }
        }
    }
    for (size_t i = 0; given->keywords != NULL && i < given->keywords->count; i++) {
        if (!ox_ji_dict_set(run, dict, given->keywords->entries[i].key, given->keywords->entries[i].item)) {
            return false;
        }
    }
    return true;
}

static bool make_dict(struct call *call) {
    struct dict *dict = NULL;
    if (!collect(call, &dict)) {
        return false;
    }
    *call->out = (struct value){.kind = V_DICT, .as.dict = dict};
    return true;
}

static bool make_namespace(struct call *call) {
    struct name_space *const space = ox_ji_new(call->run, sizeof *space);
    if (space == NULL || !collect(call, &space->dict)) {
        return false;
    }
    for (size_t i = 0; i < space->dict->count; i++) {
        const struct value key = space->dict->entries[i].key;
        if (key.kind == V_STRING && key.as.string->bytes > 0 && key.as.string->data[0] == '_') {
            return ox_ji_fail(call->run, "Chat templates cannot store underscore-prefixed attributes on a namespace");
        }
    }
    *call->out = (struct value){.kind = V_NAMESPACE, .as.space = space};
    return true;
}

static bool make_joiner(struct call *call) {
    struct joiner *const joiner = ox_ji_new(call->run, sizeof *joiner);
    if (joiner == NULL) {
        return false;
    }
    joiner->separator = call->arguments[0];
    *call->out = (struct value){.kind = V_JOINER, .as.joiner = joiner};
    return joiner->separator.kind != V_MISSING || ox_ji_string_of(call->run, ", ", &joiner->separator);
}

static bool make_cycler(struct call *call) {
    struct cycler *const cycler = ox_ji_new(call->run, sizeof *cycler);
    struct list *const items = ox_ji_new_list(call->run, call->given->count);
    if (call->given->count == 0 || call->given->keywords != NULL) {
        return ox_ji_fail(call->run, "at least one item has to be provided");
    }
    for (size_t i = 0; items != NULL && i < call->given->count; i++) {
        if (!ox_ji_append(call->run, items, call->given->positional[i])) {
            return false;
        }
    }
    if (cycler == NULL || items == NULL) {
        return false;
    }
    cycler->items = items;
    *call->out = (struct value){.kind = V_CYCLER, .as.cycler = cycler};
    return true;
}

static bool raise_exception(struct call *call) {
    struct value message = MISSING;
    return ox_ji_to_string(call->run, call->arguments[0], &message) &&
           ox_ji_raise(call->run, message.as.string);
}

/* ---- strftime_now ---------------------------------------------------------------------------------------------- */

enum { DATE_FORMAT_BYTES_MAX = 1000, DATE_BYTES_MAX = 8000 };

/* The format for strftime: a time without a zone has none to print, and no microseconds. */
static bool date_format(struct run *run, const struct string *string, char *out) {
    size_t used = 0;
    if (string->bytes > DATE_FORMAT_BYTES_MAX / 8 || (string->bytes > 0 && memchr(string->data, '\0', string->bytes))) {
        return ox_ji_fail(run, "the format of strftime_now is too long");
    }
    for (size_t i = 0; i < string->bytes; i++) {
        const char next = i + 1 < string->bytes ? string->data[i + 1] : '\0';
        if (string->data[i] == '%' && (next == 'z' || next == 'Z')) {
            i++;
        } else if (string->data[i] == '%' && next == 'f') {
            memcpy(out + used, "000000", 6);
            used += 6;
            i++;
        } else {
            out[used++] = string->data[i];
            if (string->data[i] == '%' && next != '\0') {
                out[used++] = string->data[++i];
            }
        }
    }
    out[used++] = '|'; /* an empty date is told from one that does not fit */
    out[used] = '\0';
    return true;
}

static bool strftime_now(struct call *call) {
    char format[DATE_FORMAT_BYTES_MAX];
    char date[DATE_BYTES_MAX];
    const struct value text = call->arguments[0];
    if (text.kind != V_STRING) {
        return ox_ji_fail(call->run, "strftime() argument 1 must be str, not %s", ox_ji_type_name(text));
    }
    if (!date_format(call->run, text.as.string, format)) {
        return false;
    }
    const size_t bytes = strftime(date, sizeof date, format, &call->run->input->now);
    return bytes > 0 ? ox_ji_string(call->run, date, bytes - 1, call->out)
                     : ox_ji_fail(call->run, "the date of strftime_now is too long");
}

static const struct builtin functions[] = {
    {"cycler", make_cycler, "*", 0, 0, MARKUP_PLAIN, false},
    {"dict", make_dict, "*", 0, 0, MARKUP_PLAIN, false},
    {"joiner", make_joiner, "sep", 0, 0, MARKUP_PLAIN, false},
    {"lipsum", NULL, "*", 0, 0, MARKUP_PLAIN, false},
    {"namespace", make_namespace, "*", 0, 0, MARKUP_PLAIN, false},
    {"raise_exception", raise_exception, "message", 1, 0, MARKUP_PLAIN, false},
    {"range", make_range, "_ _ _", 1, 0, MARKUP_PLAIN, false},
    {"strftime_now", strftime_now, "format", 1, 0, MARKUP_PLAIN, false},
};

const struct builtin *ox_ji_find_function(const struct string *name) {
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        if (ox_ji_string_is(name, functions[i].name)) {
            return &functions[i];
        }
    }
    return NULL;
}
