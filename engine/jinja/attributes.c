/* Owns object.name, object[key] and slices, as the sandbox of jinja2 answers them. */
#include "engine/jinja/ast_internal.h"

#include <string.h>

static struct value string_value(const struct string *string) {
    return (struct value){.kind = V_STRING, .as.string = string};
}

bool ox_ji_attribute(struct run *run, struct value object, const struct string *name, struct value *out) {
    *out = MISSING;
    if (object.kind == V_LOOP) {
        return ox_ji_loop_attribute(run, object.as.loop, name, out);
    }
    if (object.kind == V_NAMESPACE) {
        return ox_ji_dict_get(run, object.as.space->dict, string_value(name), out);
    }
    if (object.kind == V_TUPLE && object.as.list->is_group) {
        *out = ox_ji_string_is(name, "grouper") ? object.as.list->items[0]
               : ox_ji_string_is(name, "list")  ? object.as.list->items[1]
                                                : MISSING;
        if (out->kind != V_MISSING) {
            return true;
        }
    }
    const struct builtin *const builtin = ox_ji_find_method(object.kind, name);
    if (builtin == NULL) {
        return true;
    }
    if (builtin->is_unsafe) {
        if (!ox_ji_undefined(run, ox_ji_owner_name(object), string_value(name), out)) {
            return false;
        }
        ((struct undefined *)out->as.undefined)->is_unsafe = true;
        return true;
    }
    if (builtin->apply == NULL) {
        return ox_ji_fail(run, "the attribute '%s' of '%s' is not supported here", builtin->name,
                          ox_ji_type_name(object));
    }
    struct method *const method = ox_ji_new(run, sizeof *method);
    if (method == NULL) {
        return false;
    }
    *method = (struct method){.builtin = builtin, .self = object};
    *out = (struct value){.kind = V_METHOD, .as.method = method};
    return true;
}

/* Sets *out to V_MISSING where object[key] raises TypeError or LookupError. */
static bool item_of(struct run *run, struct value object, struct value key, struct value *out) {
    int64_t length = 0, index = 0;
    *out = MISSING;
    switch (object.kind) {
    case V_DICT:
        if (key.kind == V_LIST || key.kind == V_DICT) {
            return true; /* not hashable */
        }
        return ox_ji_dict_get(run, object.as.dict, key, out);
    case V_STRING:
    case V_LIST:
    case V_TUPLE:
    case V_RANGE:
        break;
    default:
        return true;
    }
    if (key.kind != V_INT && key.kind != V_BOOL) {
        return true;
    }
    if (!ox_ji_as_index(run, key, &index) || !ox_ji_length(run, object, &length)) {
        return false;
    }
    index += index < 0 ? length : 0;
    return index < 0 || index >= length || ox_ji_item_at(run, object, (size_t)index, out);
}

bool ox_ji_getattr(struct run *run, struct value object, struct value name, struct value *out) {
    if (object.kind == V_UNDEFINED) {
        return ox_ji_fail_undefined(run, object.as.undefined);
    }
    if (!ox_ji_attribute(run, object, name.as.string, out) ||
        (out->kind == V_MISSING && !item_of(run, object, name, out))) {
        return false;
    }
    return out->kind != V_MISSING || ox_ji_undefined(run, ox_ji_owner_name(object), name, out);
}

bool ox_ji_getitem(struct run *run, struct value object, struct value key, struct value *out) {
    if (object.kind == V_UNDEFINED) {
        return ox_ji_fail_undefined(run, object.as.undefined);
    }
    if (!item_of(run, object, key, out) ||
        (out->kind == V_MISSING && key.kind == V_STRING && !ox_ji_attribute(run, object, key.as.string, out))) {
        return false;
    }
    return out->kind != V_MISSING || ox_ji_undefined(run, ox_ji_owner_name(object), key, out);
}

/* ---- slices ---------------------------------------------------------------------------------------------------- */

static bool slice_bound(struct run *run, struct value part, int64_t fallback, const int64_t range[3], int64_t *out) {
    const int64_t length = range[0], least = range[1], most = range[2];
    *out = fallback;
    if (part.kind == V_NONE) {
        return true;
    }
    if (part.kind != V_INT && part.kind != V_BOOL) {
        return ox_ji_fail(run, "slice indices must be integers or None or have an __index__ method");
    }
    if (!ox_ji_as_index(run, part, out)) {
        return false;
    }
    if (*out < 0) {
        *out = *out < -length ? least : *out + length;
    }
    *out = *out < least ? least : *out > most ? most : *out;
    return true;
}

/* Every part in terms of the range's own numbers, as Python keeps them. */
static bool slice_range(struct run *run, const struct range *from, const int64_t parts[3], int64_t count,
                        struct value *out) {
    struct range *const range = ox_ji_new(run, sizeof *range);
    if (range == NULL) {
        return false;
    }
    *range = (struct range){.start = from->start + parts[0] * from->step, .stop = from->start + parts[1] * from->step,
                            .count = count};
    if (__builtin_mul_overflow(from->step, parts[2], &range->step)) {
        return ox_ji_fail(run, "an integer beyond 64 bits is not supported here");
    }
    *out = (struct value){.kind = V_RANGE, .as.range = range};
    return true;
}

bool ox_ji_slice(struct run *run, struct value object, const struct value parts[3], struct value *out) {
    int64_t length = 0, begin = 0, end = 0, step = 1;
    if (object.kind == V_UNDEFINED) {
        return ox_ji_fail_undefined(run, object.as.undefined);
    }
    if (object.kind != V_STRING && object.kind != V_LIST && object.kind != V_TUPLE && object.kind != V_RANGE) {
        return ox_ji_fail(run, "slices of an object of type '%s' are not supported", ox_ji_type_name(object));
    }
    if (parts[2].kind != V_NONE && parts[2].kind != V_INT && parts[2].kind != V_BOOL) {
        return slice_bound(run, parts[2], 0, (const int64_t[3]){0}, &step);
    }
    if (!ox_ji_length(run, object, &length) || (parts[2].kind != V_NONE && !ox_ji_as_index(run, parts[2], &step))) {
        return false;
    }
    if (step == 0) {
        return ox_ji_fail(run, "slice step cannot be zero");
    }
    step = step < -INT64_MAX ? -INT64_MAX : step;
    const int64_t range[3] = {length, step < 0 ? -1 : 0, step < 0 ? length - 1 : length};
    if (!slice_bound(run, parts[0], step < 0 ? length - 1 : 0, range, &begin) ||
        !slice_bound(run, parts[1], step < 0 ? -1 : length, range, &end)) {
        return false;
    }
    const int64_t count = step > 0 ? (end > begin ? (end - begin - 1) / step + 1 : 0)
                                   : (begin > end ? (begin - end - 1) / -step + 1 : 0);
    if (object.kind == V_STRING) {
        if (!ox_ji_string_slice(run, object.as.string, begin, count, step, out)) {
            return false;
        }
        ((struct string *)out->as.string)->is_markup = object.as.string->is_markup;
        return true;
    }
    if (object.kind == V_RANGE) {
        return slice_range(run, object.as.range, (const int64_t[3]){begin, end, step}, count, out);
    }
    /* Consecutive items are shared: nothing changes a list that a template can see. */
    struct list *const list = ox_ji_new_list(run, step == 1 ? 0 : (size_t)count);
    if (list != NULL && step == 1 && count > 0) {
        list->items = object.as.list->items + begin;
        list->count = list->capacity = (size_t)count;
    }
    for (int64_t i = 0; list != NULL && step != 1 && i < count; i++) {
        if (!ox_ji_append(run, list, object.as.list->items[begin + i * step])) {
            return false;
        }
    }
    *out = (struct value){.kind = object.kind, .as.list = list};
    return list != NULL;
}

/* ---- paths ----------------------------------------------------------------------------------------------------- */

static bool follow_part(struct run *run, struct value part, struct value fallback, struct value *item) {
    if (part.kind == V_STRING && ox_ji_classify(part.as.string, "isdigit")) {
        int64_t index = 0;
        bool overflow = false;
        if (!ox_ji_parse_int(part.as.string, 10, &index, &overflow) || overflow) {
            return ox_ji_fail(run, "the number in an attribute is too large");
        }
        part = ox_ji_int(index);
    }
    if (!ox_ji_getitem(run, *item, part, item)) {
        return false;
    }
    if (item->kind == V_UNDEFINED && fallback.kind != V_MISSING && fallback.kind != V_NONE) {
        *item = fallback;
    }
    return true;
}

bool ox_ji_follow(struct run *run, struct value object, struct value path, struct value fallback, struct value *out) {
    *out = object;
    if (path.kind == V_MISSING || path.kind == V_NONE) {
        return true;
    }
    if (path.kind != V_STRING) {
        return follow_part(run, path, fallback, out);
    }
    const struct string *const text = path.as.string;
    for (size_t begin = 0;;) {
        const char *const dot = begin == text->bytes ? NULL : memchr(text->data + begin, '.', text->bytes - begin);
        const size_t end = dot == NULL ? text->bytes : (size_t)(dot - text->data);
        struct value part = MISSING;
        if (!ox_ji_string_at(run, text->data + begin, end - begin, &part) || !follow_part(run, part, fallback, out)) {
            return false;
        }
        if (dot == NULL) {
            return true;
        }
        begin = end + 1;
    }
}
