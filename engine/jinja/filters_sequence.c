/* Owns the filters of sequences that read all or one of the items. Filters that give items one after the other are in
 * filters_pick.c. */
#include "engine/jinja/builtins_internal.h"

#include <string.h>

static bool argument_truth(struct call *call, size_t index, bool *out) {
    *out = false;
    return call->arguments[index].kind == V_MISSING || ox_ji_truth(call->run, call->arguments[index], out);
}

/* What an item is compared by: an attribute of it, in lower case unless case counts. */
struct sort_key {
    struct value attribute, fallback;
    bool case_sensitive;
};

static bool fold_case(struct run *run, const struct sort_key *key, struct value *value) {
    return key->case_sensitive || value->kind != V_STRING ||
           ox_ji_change_case(run, value->as.string, CASE_LOWER, value);
}

static bool key_of(struct run *run, const struct sort_key *key, struct value item, struct value *out) {
    return ox_ji_follow(run, item, key->attribute, key->fallback, out) && fold_case(run, key, out);
}

bool ox_ji_filter_length(struct call *call) {
    int64_t length = 0;
    if (!ox_ji_length(call->run, call->self, &length)) {
        return false;
    }
    *call->out = ox_ji_int(length);
    return true;
}

bool ox_ji_filter_list(struct call *call) {
    struct list *list = NULL;
    if (!ox_ji_to_list(call->run, call->self, &list)) {
        return false;
    }
    *call->out = ox_ji_list(list);
    return true;
}

bool ox_ji_filter_default(struct call *call) {
    bool boolean = false, truth = true;
    if (!argument_truth(call, 1, &boolean) || (boolean && !ox_ji_truth(call->run, call->self, &truth))) {
        return false;
    }
    if (call->self.kind != V_UNDEFINED && truth) {
        *call->out = call->self;
        return true;
    }
    *call->out = call->arguments[0];
    return call->arguments[0].kind != V_MISSING || ox_ji_string_of(call->run, "", call->out);
}

bool ox_ji_filter_attr(struct call *call) {
    const struct value name = call->arguments[0];
    if (call->self.kind == V_UNDEFINED) {
        return ox_ji_fail_undefined(call->run, call->self.as.undefined);
    }
    if (name.kind != V_STRING) {
        return ox_ji_fail(call->run, "attribute name must be string, not '%s'", ox_ji_type_name(name));
    }
    return ox_ji_attribute(call->run, call->self, name.as.string, call->out) &&
           (call->out->kind != V_MISSING ||
            ox_ji_undefined(call->run, ox_ji_owner_name(call->self), name, call->out));
}

/* ---- one of the items ------------------------------------------------------------------------------------------ */

bool ox_ji_filter_first(struct call *call) {
    struct iterator *iterator = NULL;
    return ox_ji_iterate(call->run, call->self, &iterator) && ox_ji_next(call->run, iterator, call->out) &&
           (call->out->kind != V_MISSING ||
            ox_ji_undefined_because(call->run, "No first item, sequence was empty.", call->out));
}

bool ox_ji_filter_last(struct call *call) {
    struct iterator *iterator = NULL;
    return ox_ji_reversed(call->run, call->self, &iterator) && ox_ji_next(call->run, iterator, call->out) &&
           (call->out->kind != V_MISSING ||
            ox_ji_undefined_because(call->run, "No last item, sequence was empty.", call->out));
}

static bool extreme(struct call *call, const char *symbol) {
    struct run *const run = call->run;
    struct sort_key key = {.attribute = call->arguments[1], .fallback = MISSING};
    struct iterator *iterator = NULL;
    struct value best_key = MISSING;
    if (!argument_truth(call, 0, &key.case_sensitive) || !ox_ji_iterate(run, call->self, &iterator) ||
        !ox_ji_next(run, iterator, call->out)) {
        return false;
    }
    if (call->out->kind == V_MISSING) {
        return ox_ji_undefined_because(run, "No aggregated item, sequence was empty.", call->out);
    }
    if (!key_of(run, &key, *call->out, &best_key)) {
        return false;
    }
    for (;;) {
        struct value item = MISSING, item_key = MISSING;
        int order = 0;
        if (!ox_ji_next(run, iterator, &item)) {
            return false;
        }
        if (item.kind == V_MISSING) {
            return true;
        }
        if (!key_of(run, &key, item, &item_key) || !ox_ji_order(run, item_key, best_key, symbol, &order)) {
            return false;
        }
        if (order == (symbol[0] == '<' ? -1 : 1)) {
            *call->out = item;
            best_key = item_key;
        }
    }
}

bool ox_ji_filter_min(struct call *call) {
    return extreme(call, "<");
}

bool ox_ji_filter_max(struct call *call) {
    return extreme(call, ">");
}

/* ---- all items in one ------------------------------------------------------------------------------------------ */

bool ox_ji_filter_join(struct call *call) {
    struct run *const run = call->run;
    struct iterator *iterator = NULL;
    struct value between = call->arguments[0];
    if ((between.kind != V_MISSING && !ox_ji_to_string(run, between, &between)) ||
        !ox_ji_iterate(run, call->self, &iterator)) {
        return false;
    }
    const struct capture capture = ox_ji_capture(run);
    for (bool is_first = true;; is_first = false) {
        struct value item = MISSING, text = MISSING;
        if (!ox_ji_next(run, iterator, &item)) {
            return false;
        }
        if (item.kind == V_MISSING) {
            return ox_ji_capture_end(run, capture, call->out);
        }
        if (!ox_ji_follow(run, item, call->arguments[1], MISSING, &item) || !ox_ji_to_string(run, item, &text) ||
            (!is_first && between.kind == V_STRING && !ox_ji_put_string(run, between.as.string)) ||
            !ox_ji_put_string(run, text.as.string)) {
            return false;
        }
    }
}

bool ox_ji_filter_sum(struct call *call) {
    struct iterator *iterator = NULL;
    struct value total = call->arguments[1].kind == V_MISSING ? ox_ji_int(0) : call->arguments[1];
    if (total.kind == V_STRING) {
        return ox_ji_fail(call->run, "sum() can't sum strings [use ''.join(seq) instead]");
    }
    if (!ox_ji_iterate(call->run, call->self, &iterator)) {
        return false;
    }
    for (;;) {
        struct value item = MISSING;
        if (!ox_ji_next(call->run, iterator, &item)) {
            return false;
        }
        if (item.kind == V_MISSING) {
            *call->out = total;
            return true;
        }
        if (!ox_ji_follow(call->run, item, call->arguments[0], MISSING, &item) ||
            !ox_ji_binary(call->run, '+', total, item, &total)) {
            return false;
        }
    }
}

/* ---- order ----------------------------------------------------------------------------------------------------- */

/* The keys of an attribute "name,age" as a list, so that they are compared one after the other. */
static bool keys_of(struct run *run, const struct sort_key *key, struct value item, struct value *out) {
    struct list *const keys = ox_ji_new_list(run, 1);
    const struct value attribute = key->attribute;
    if (keys == NULL) {
        return false;
    }
    *out = ox_ji_list(keys);
    if (attribute.kind != V_STRING) {
        struct value one = MISSING;
        return key_of(run, key, item, &one) && ox_ji_append(run, keys, one);
    }
    const struct string *const text = attribute.as.string;
    for (size_t begin = 0; begin <= text->bytes;) {
        const char *const comma = begin == text->bytes ? NULL : memchr(text->data + begin, ',', text->bytes - begin);
        const size_t end = comma == NULL ? text->bytes : (size_t)(comma - text->data);
        struct sort_key part = *key;
        struct value one = MISSING;
        if (!ox_ji_string_at(run, text->data + begin, end - begin, &part.attribute) ||
            !key_of(run, &part, item, &one) || !ox_ji_append(run, keys, one)) {
            return false;
        }
        begin = end + 1;
    }
    return true;
}

static bool sort_by(struct run *run, const struct sort_key *key, struct list *list, bool multiple, bool reverse,
                    struct list **keys_out) {
    struct list *const keys = ox_ji_new_list(run, list->count);
    for (size_t i = 0; keys != NULL && i < list->count; i++) {
        struct value one = MISSING;
        if (!(multiple ? keys_of(run, key, list->items[i], &one) : key_of(run, key, list->items[i], &one)) ||
            !ox_ji_append(run, keys, one)) {
            return false;
        }
    }
    *keys_out = keys;
    return keys != NULL && ox_ji_sort(run, list, keys, reverse);
}

bool ox_ji_filter_sort(struct call *call) {
    struct sort_key key = {.attribute = call->arguments[2], .fallback = MISSING};
    struct list *list = NULL, *keys = NULL;
    bool reverse = false;
    if (!argument_truth(call, 0, &reverse) || !argument_truth(call, 1, &key.case_sensitive) ||
        !ox_ji_to_list(call->run, call->self, &list) || !sort_by(call->run, &key, list, true, reverse, &keys)) {
        return false;
    }
    *call->out = ox_ji_list(list);
    return true;
}

bool ox_ji_filter_dictsort(struct call *call) {
    struct run *const run = call->run;
    const struct value by = call->arguments[1];
    struct sort_key key = {.attribute = ox_ji_int(0), .fallback = MISSING};
    struct list *list = NULL, *keys = NULL;
    bool reverse = false;
    if (by.kind == V_STRING && ox_ji_string_is(by.as.string, "value")) {
        key.attribute = ox_ji_int(1);
    } else if (by.kind != V_MISSING && !(by.kind == V_STRING && ox_ji_string_is(by.as.string, "key"))) {
        return ox_ji_fail(run, "You can only sort by either \"key\" or \"value\"");
    }
    if (call->self.kind == V_UNDEFINED) {
        return ox_ji_fail_undefined(run, call->self.as.undefined);
    }
    if (call->self.kind != V_DICT) {
        return ox_ji_fail(run, "'%s' object has no attribute 'items'", ox_ji_type_name(call->self));
    }
    const struct view view = {.kind = VIEW_ITEMS, .dict = call->self.as.dict};
    if (!argument_truth(call, 0, &key.case_sensitive) || !argument_truth(call, 2, &reverse) ||
        !ox_ji_to_list(run, (struct value){.kind = V_VIEW, .as.view = &view}, &list) ||
        !sort_by(run, &key, list, false, reverse, &keys)) {
        return false;
    }
    *call->out = ox_ji_list(list);
    return true;
}

/* Starts a group with this key and the attribute's own spelling. */
static bool start_group(struct run *run, const struct sort_key *key, struct value item, struct list *groups,
                        struct list **members) {
    struct value name = MISSING, group = MISSING;
    const struct sort_key exact = {.attribute = key->attribute, .fallback = key->fallback, .case_sensitive = true};
    *members = ox_ji_new_list(run, 0);
    if (*members == NULL || !key_of(run, &exact, item, &name) ||
        !ox_ji_pair(run, name, ox_ji_list(*members), &group)) {
        return false;
    }
    ((struct list *)group.as.list)->is_group = true;
    return ox_ji_append(run, groups, group);
}

bool ox_ji_filter_groupby(struct call *call) {
    struct run *const run = call->run;
    struct sort_key key = {.attribute = call->arguments[0], .fallback = call->arguments[1]};
    struct list *list = NULL, *keys = NULL, *members = NULL;
    struct list *const groups = ox_ji_new_list(run, 0);
    if (groups == NULL || !argument_truth(call, 2, &key.case_sensitive) ||
        !ox_ji_to_list(run, call->self, &list) || !sort_by(run, &key, list, false, false, &keys)) {
        return false;
    }
    for (size_t i = 0; i < list->count; i++) {
        bool same = false;
        if ((i > 0 && !ox_ji_equal(run, keys->items[i - 1], keys->items[i], &same)) ||
            (!same && !start_group(run, &key, list->items[i], groups, &members)) ||
            !ox_ji_append(run, members, list->items[i])) {
            return false;
        }
    }
    *call->out = ox_ji_list(groups);
    return true;
}

bool ox_ji_filter_reverse(struct call *call) {
    struct run *const run = call->run;
    if (call->self.kind == V_STRING) {
        return ox_ji_slice(run, call->self, (const struct value[3]){NONE, NONE, ox_ji_int(-1)}, call->out);
    }
    if (ox_ji_has_length(call->self)) {
        *call->out = (struct value){.kind = V_ITERATOR};
        return ox_ji_reversed(run, call->self, &call->out->as.iterator);
    }
    struct list *list = NULL;
    if (!ox_ji_to_list(run, call->self, &list)) {
        return false;
    }
    for (size_t i = 0; i < list->count / 2; i++) {
        const struct value item = list->items[i];
        list->items[i] = list->items[list->count - 1 - i];
        list->items[list->count - 1 - i] = item;
    }
    *call->out = ox_ji_list(list);
    return true;
}
