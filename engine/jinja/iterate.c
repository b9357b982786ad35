/* Owns iteration: every kind of value that gives items one after the other. */
#include "engine/jinja/value_internal.h"

struct iterator *ox_ji_new_iterator(struct run *run,
                                    bool (*next)(struct run *, struct iterator *, struct value *)) {
    struct iterator *const iterator = ox_ji_new(run, sizeof *iterator);
    if (iterator != NULL) {
        iterator->next = next;
    }
    return iterator;
}

bool ox_ji_next(struct run *run, struct iterator *iterator, struct value *out) {
    *out = MISSING;
    if (!ox_ji_spend(run, 1) || !ox_ji_enter(run)) {
        return false;
    }
    const bool ok = iterator->next(run, iterator, out);
    run->depth--;
    return ok;
}

/* ---- the kinds ------------------------------------------------------------------------------------------------- */

bool ox_ji_view_item(struct run *run, enum view_kind kind, const struct entry *entry, struct value *out) {
    if (kind == VIEW_ITEMS) {
        return ox_ji_pair(run, entry->key, entry->item, out);
    }
    *out = kind == VIEW_KEYS ? entry->key : entry->item;
    return true;
}

/* The item at `index`, which is below the length; not of strings, whose code points lie at no known offset. */
bool ox_ji_item_at(struct run *run, struct value sequence, size_t index, struct value *out) {
    switch (sequence.kind) {
    case V_LIST:
    case V_TUPLE:
        *out = sequence.as.list->items[index];
        return true;
    case V_DICT:
        *out = sequence.as.dict->entries[index].key;
        return true;
    case V_VIEW:
        return ox_ji_view_item(run, sequence.as.view->kind, &sequence.as.view->dict->entries[index], out);
    case V_RANGE:
        *out = ox_ji_int(sequence.as.range->start + (int64_t)index * sequence.as.range->step);
        return true;
    case V_STRING: {
        const size_t begin = ox_ji_byte_of_point(sequence.as.string, index);
        size_t end = begin;
        ox_ji_next_point(sequence.as.string->data, &end);
        return ox_ji_spend(run, begin / 64) && ox_ji_string_at(run, sequence.as.string->data + begin, end - begin, out);
    }
    default:
        return ox_ji_fail(run, "'%s' object is not subscriptable", ox_ji_type_name(sequence));
    }
}

static bool next_of_sequence(struct run *run, struct iterator *iterator, struct value *out) {
    int64_t length = 0;
    if (!ox_ji_length(run, iterator->source, &length)) {
        return false;
    }
    return (int64_t)iterator->at >= length || ox_ji_item_at(run, iterator->source, iterator->at++, out);
}

static bool next_reversed(struct run *run, struct iterator *iterator, struct value *out) {
    return iterator->at == 0 || ox_ji_item_at(run, iterator->source, --iterator->at, out);
}

static bool next_point(struct run *run, struct iterator *iterator, struct value *out) {
    const struct string *const string = iterator->source.as.string;
    if (iterator->at >= string->bytes) {
        return true;
    }
    const size_t begin = iterator->at;
    ox_ji_next_point(string->data, &iterator->at);
    return ox_ji_string_at(run, string->data + begin, iterator->at - begin, out);
}

bool ox_ji_is_iterable(struct value value) {
    return ox_ji_has_length(value) || value.kind == V_ITERATOR || value.kind == V_LOOP || value.kind == V_SELF;
}

bool ox_ji_iterate(struct run *run, struct value value, struct iterator **out) {
    if (value.kind == V_ITERATOR) {
        *out = value.as.iterator;
        return true;
    }
    if (!ox_ji_has_length(value)) {
        return ox_ji_fail(run, "'%s' object is not iterable", ox_ji_type_name(value));
    }
    *out = ox_ji_new_iterator(run, value.kind == V_STRING ? next_point : next_of_sequence);
    if (*out != NULL) {
        (*out)->source = value;
    }
    return *out != NULL;
}

bool ox_ji_reversed(struct run *run, struct value value, struct iterator **out) {
    int64_t length = 0;
    if (!ox_ji_has_length(value)) {
        return ox_ji_fail(run, "'%s' object is not reversible", ox_ji_type_name(value));
    }
    *out = ox_ji_new_iterator(run, next_reversed);
    if (*out == NULL || !ox_ji_length(run, value, &length)) {
        return false;
    }
    (*out)->source = value;
    (*out)->at = (size_t)length;
    return true;
}

/* ---- whole sequences ------------------------------------------------------------------------------------------- */

bool ox_ji_to_list(struct run *run, struct value value, struct list **out) {
    struct iterator *iterator = NULL;
    *out = ox_ji_new_list(run, 0);
    if (*out == NULL || !ox_ji_iterate(run, value, &iterator)) {
        return false;
    }
    for (;;) {
        struct value item = MISSING;
        if (!ox_ji_next(run, iterator, &item)) {
            return false;
        }
        if (item.kind == V_MISSING) {
            return true;
        }
        if (!ox_ji_append(run, *out, item)) {
            return false;
        }
    }
}

static bool contains_by_search(struct run *run, struct value container, struct value item, bool *out) {
    struct iterator *iterator = NULL;
    *out = false;
    if (!ox_ji_iterate(run, container, &iterator)) {
        return false;
    }
    while (!*out) {
        struct value other = MISSING;
        if (!ox_ji_next(run, iterator, &other)) {
            return false;
        }
        if (other.kind == V_MISSING) {
            return true;
        }
        if (!ox_ji_equal(run, other, item, out)) {
            return false;
        }
    }
    return true;
}

bool ox_ji_contains(struct run *run, struct value container, struct value item, bool *out) {
    struct value found = MISSING;
    switch (container.kind) {
    case V_STRING:
        if (item.kind != V_STRING) {
            return ox_ji_fail(run, "'in <string>' requires string as left operand, not %s", ox_ji_type_name(item));
        }
        *out = ox_ji_find(container.as.string, item.as.string, 0) != SIZE_MAX;
        return ox_ji_spend(run, container.as.string->bytes / 64);
    case V_DICT:
        if (!ox_ji_dict_get(run, container.as.dict, item, &found)) {
            return false;
        }
        *out = found.kind != V_MISSING;
        return true;
    case V_VIEW:
        if (container.as.view->kind == VIEW_KEYS) {
            if (!ox_ji_dict_get(run, container.as.view->dict, item, &found)) {
                return false;
            }
            *out = found.kind != V_MISSING;
            return true;
        }
        return contains_by_search(run, container, item, out);
    default:
        if (!ox_ji_is_iterable(container)) {
            return ox_ji_fail(run, "argument of type '%s' is not iterable", ox_ji_type_name(container));
        }
        return contains_by_search(run, container, item, out);
    }
}
