/* Owns the filters that give items one after the other: what they do happens when an item is asked for. */
#include "engine/jinja/builtins_internal.h"

#include <string.h>

/* What an iterator of this file does with the items of its source. */
struct picking {
    struct value source;
    const struct builtin *builtin; /* the filter of map, the test of select; NULL: truth */
    struct arguments given;        /* the builtin's */
    struct value attribute, fallback;
    bool by_attribute, negated, started;
    const struct string *unknown; /* a name that is no filter or test, which fails when it is used */
    int64_t count; /* batch: items of a group; slice: groups */
    struct value fill;
    struct list *all; /* slice: all items */
    int64_t at, offset;
    bool case_sensitive;
    struct dict *keys; /* unique: those seen */
};

static bool give(struct call *call, const struct picking *picking,
                 bool (*next)(struct run *, struct iterator *, struct value *)) {
    struct iterator *const iterator = ox_ji_new_iterator(call->run, next);
    struct picking *const kept = ox_ji_new(call->run, sizeof *kept);
    if (iterator == NULL || kept == NULL) {
        return false;
    }
    *kept = *picking;
    kept->source = call->self;
    iterator->detail = kept;
    *call->out = (struct value){.kind = V_ITERATOR, .as.iterator = iterator};
    return true;
}

/* Begins with the source's items when the first is asked for. An empty source, whatever its kind, has none. */
static bool begin(struct run *run, struct iterator *iterator, struct picking *picking, bool empty_is_none,
                  bool *has_items) {
    bool truth = true;
    if (!picking->started) {
        picking->started = true;
        if (empty_is_none && !ox_ji_truth(run, picking->source, &truth)) {
            return false;
        }
        if (truth && !ox_ji_iterate(run, picking->source, &iterator->inner)) {
            return false;
        }
    }
    *has_items = iterator->inner != NULL;
    return true;
}

/* ---- map, select ----------------------------------------------------------------------------------------------- */

static bool apply_picked(struct run *run, const struct picking *picking, struct value item, struct value *out) {
    if (picking->unknown != NULL) {
        return ox_ji_fail(run, "No filter or test named '%.*s'.",
                          picking->unknown->bytes > 60 ? 60 : (int)picking->unknown->bytes, picking->unknown->data);
    }
    return ox_ji_apply(run, picking->builtin, item, &picking->given, out);
}

static bool next_mapped(struct run *run, struct iterator *iterator, struct value *out) {
    struct picking *const picking = (struct picking *)iterator->detail;
    struct value item = MISSING;
    bool has_items = false;
    if (!begin(run, iterator, picking, true, &has_items)) {
        return false;
    }
    if (has_items && !ox_ji_next(run, iterator->inner, &item)) {
        return false;
    }
    if (item.kind == V_MISSING) {
        return true;
    }
    return picking->by_attribute ? ox_ji_follow(run, item, picking->attribute, picking->fallback, out)
                                 : apply_picked(run, picking, item, out);
}

static bool selects(struct run *run, const struct picking *picking, struct value item, bool *out) {
    struct value result = MISSING;
    if (picking->by_attribute && !ox_ji_follow(run, item, picking->attribute, MISSING, &item)) {
        return false;
    }
    if (picking->builtin == NULL && picking->unknown == NULL) {
        result = item;
    } else if (!apply_picked(run, picking, item, &result)) {
        return false;
    }
    if (!ox_ji_truth(run, result, out)) {
        return false;
    }
    *out = *out != picking->negated;
    return true;
}

static bool next_selected(struct run *run, struct iterator *iterator, struct value *out) {
    struct picking *const picking = (struct picking *)iterator->detail;
    bool has_items = false;
    if (!begin(run, iterator, picking, true, &has_items)) {
        return false;
    }
    while (has_items) {
        struct value item = MISSING;
        bool is_selected = false;
        if (!ox_ji_next(run, iterator->inner, &item)) {
            return false;
        }
        if (item.kind == V_MISSING) {
            return true;
        }
        if (!selects(run, picking, item, &is_selected)) {
            return false;
        }
        if (is_selected) {
            *out = item;
            return true;
        }
    }
    return true;
}

/* Takes the name of a filter or test and its arguments from those that were given, from `first` on. */
static bool take_builtin(struct call *call, size_t first, struct picking *picking, bool is_filter) {
    const struct value name = call->given->positional[first];
    picking->given = (struct arguments){.positional = call->given->positional + first + 1,
                                        .count = call->given->count - first - 1,
                                        .keywords = call->given->keywords};
    if (name.kind == V_UNDEFINED) {
        return ox_ji_fail_undefined(call->run, name.as.undefined);
    }
    if (name.kind != V_STRING) {
        return ox_ji_fail(call->run, "the name of a filter or test must be a text");
    }
    picking->builtin = is_filter ? ox_ji_find_filter(name.as.string) : ox_ji_find_test(name.as.string);
    picking->unknown = picking->builtin == NULL ? name.as.string : NULL;
    return true;
}

bool ox_ji_filter_map(struct call *call) {
    struct picking picking = {.attribute = MISSING, .fallback = MISSING};
    const struct dict *const keywords = call->given->keywords;
    if (call->given->count > 0) {
        return take_builtin(call, 0, &picking, true) && give(call, &picking, next_mapped);
    }
    picking.attribute = keywords == NULL ? MISSING : ox_ji_dict_find(keywords, "attribute");
    if (picking.attribute.kind == V_MISSING) {
        return ox_ji_fail(call->run, "map requires a filter argument");
    }
    picking.fallback = ox_ji_dict_find(keywords, "default");
    picking.by_attribute = true;
    if (keywords->count != 1 + (size_t)(picking.fallback.kind != V_MISSING)) {
        return ox_ji_fail(call->run, "Unexpected keyword argument of map");
    }
    return give(call, &picking, next_mapped);
}

static bool select_items(struct call *call, bool by_attribute, bool negated) {
    struct picking picking = {.by_attribute = by_attribute, .negated = negated, .attribute = MISSING};
    if (by_attribute) {
        if (call->given->count == 0) {
            return ox_ji_fail(call->run, "Missing parameter for attribute name");
        }
        picking.attribute = call->given->positional[0];
    }
    return (call->given->count <= by_attribute || take_builtin(call, by_attribute, &picking, false)) &&
           give(call, &picking, next_selected);
}

bool ox_ji_filter_select(struct call *call) {
    return select_items(call, false, false);
}

bool ox_ji_filter_reject(struct call *call) {
    return select_items(call, false, true);
}

bool ox_ji_filter_selectattr(struct call *call) {
    return select_items(call, true, false);
}

bool ox_ji_filter_rejectattr(struct call *call) {
    return select_items(call, true, true);
}

/* ---- unique, items --------------------------------------------------------------------------------------------- */

static bool next_unique(struct run *run, struct iterator *iterator, struct value *out) {
    struct picking *const picking = (struct picking *)iterator->detail;
    bool has_items = false;
    if (!begin(run, iterator, picking, false, &has_items)) {
        return false;
    }
    for (;;) {
        struct value key = MISSING, seen = MISSING;
        if (!ox_ji_next(run, iterator->inner, out)) {
            return false;
        }
        if (out->kind == V_MISSING) {
            return true;
        }
        if (!ox_ji_follow(run, *out, picking->attribute, MISSING, &key) ||
            (!picking->case_sensitive && key.kind == V_STRING &&
             !ox_ji_change_case(run, key.as.string, CASE_LOWER, &key)) ||
            !ox_ji_dict_get(run, picking->keys, key, &seen)) {
            return false;
        }
        if (seen.kind == V_MISSING) {
            return ox_ji_dict_set(run, picking->keys, key, NONE);
        }
    }
}

bool ox_ji_filter_unique(struct call *call) {
    struct picking picking = {.attribute = call->arguments[1], .keys = ox_ji_new_dict(call->run)};
    if (call->arguments[0].kind != V_MISSING && !ox_ji_truth(call->run, call->arguments[0], &picking.case_sensitive)) {
        return false;
    }
    return picking.keys != NULL && give(call, &picking, next_unique);
}

static bool next_pair(struct run *run, struct iterator *iterator, struct value *out) {
    const struct picking *const picking = iterator->detail;
    if (picking->source.kind == V_UNDEFINED) {
        return true;
    }
    if (picking->source.kind != V_DICT) {
        return ox_ji_fail(run, "Can only get item pairs from a mapping.");
    }
    const struct dict *const dict = picking->source.as.dict;
    if (iterator->at >= dict->count) {
        return true;
    }
    const struct entry *const entry = &dict->entries[iterator->at++];
    return ox_ji_pair(run, entry->key, entry->item, out);
}

bool ox_ji_filter_items(struct call *call) {
    return give(call, &(struct picking){0}, next_pair);
}

/* ---- batch, slice ---------------------------------------------------------------------------------------------- */

static bool next_batch(struct run *run, struct iterator *iterator, struct value *out) {
    struct picking *const picking = (struct picking *)iterator->detail;
    struct list *const batch = ox_ji_new_list(run, 0);
    bool has_items = false;
    if (batch == NULL || !begin(run, iterator, picking, false, &has_items)) {
        return false;
    }
    /* The item that found the last batch full begins this one. */
    if (iterator->source.kind != V_MISSING && !ox_ji_append(run, batch, iterator->source)) {
        return false;
    }
    for (;;) {
        struct value item = MISSING;
        if (!ox_ji_next(run, iterator->inner, &item)) {
            return false;
        }
        if (item.kind == V_MISSING) {
            break;
        }
        if ((int64_t)batch->count == picking->count) {
            iterator->source = item;
            *out = ox_ji_list(batch);
            return true;
        }
        if (!ox_ji_append(run, batch, item)) {
            return false;
        }
    }
    iterator->source = MISSING;
    if (batch->count == 0) {
        return true;
    }
    while (picking->fill.kind != V_NONE && (int64_t)batch->count < picking->count) {
        if (!ox_ji_append(run, batch, picking->fill)) {
            return false;
        }
    }
    *out = ox_ji_list(batch);
    return true;
}

static bool next_slice(struct run *run, struct iterator *iterator, struct value *out) {
    struct picking *const picking = (struct picking *)iterator->detail;
    struct list *const part = ox_ji_new_list(run, 0);
    if (part == NULL || (picking->all == NULL && !ox_ji_to_list(run, picking->source, &picking->all))) {
        return false;
    }
    if (picking->count == 0) {
        return ox_ji_fail(run, "integer division or modulo by zero");
    }
    if (picking->at >= picking->count) {
        return true;
    }
    const int64_t length = (int64_t)picking->all->count;
    const int64_t each = length / picking->count, extra = length % picking->count;
    const int64_t first = picking->offset + picking->at * each;
    picking->offset += picking->at < extra;
    const int64_t end = picking->offset + (picking->at + 1) * each;
    for (int64_t i = first; i < end; i++) {
        if (!ox_ji_append(run, part, picking->all->items[i])) {
            return false;
        }
    }
    if (picking->fill.kind != V_NONE && picking->at >= extra && !ox_ji_append(run, part, picking->fill)) {
        return false;
    }
    picking->at++;
    *out = ox_ji_list(part);
    return true;
}

static bool divide(struct call *call, bool (*next)(struct run *, struct iterator *, struct value *)) {
    struct picking picking = {.fill = call->arguments[1].kind == V_MISSING ? NONE : call->arguments[1]};
    return ox_ji_as_index(call->run, call->arguments[0], &picking.count) && give(call, &picking, next);
}

bool ox_ji_filter_batch(struct call *call) {
    return divide(call, next_batch);
}

bool ox_ji_filter_slice(struct call *call) {
    return divide(call, next_slice);
}
