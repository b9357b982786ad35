/* Owns lists and dicts, and what every value has: truth, equality, order, length. */
#include "engine/jinja/value_internal.h"

#include "base/assert.h"

#include <math.h>
#include <string.h>

/* ---- lists ----------------------------------------------------------------------------------------------------- */

struct list *ox_ji_new_list(struct run *run, size_t capacity) {
    struct list *const list = ox_ji_new(run, sizeof *list);
    if (list != NULL && capacity > 0) {
        if (capacity > SIZE_MAX / sizeof *list->items / 4) {
            ox_ji_fail(run, "a list of %zu items is too long", capacity);
            return NULL;
        }
        list->items = ox_ji_new(run, capacity * sizeof *list->items);
        list->capacity = capacity;
        return list->items == NULL ? NULL : list;
    }
    return list;
}

bool ox_ji_append(struct run *run, struct list *list, struct value item) {
    if (list->count == list->capacity) {
        const size_t capacity = list->capacity < 4 ? 4 : list->capacity * 2;
        struct value *const items = ox_ji_new(run, capacity * sizeof *items);
        if (items == NULL) {
            return false;
        }
        if (list->count > 0) {
            memcpy(items, list->items, list->count * sizeof *items);
        }
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = item;
    return ox_ji_spend(run, 1);
}

bool ox_ji_pair(struct run *run, struct value first, struct value second, struct value *out) {
    struct list *const list = ox_ji_new_list(run, 2);
    if (list == NULL) {
        return false;
    }
    list->items[0] = first;
    list->items[1] = second;
    list->count = 2;
    *out = ox_ji_tuple(list);
    return true;
}

/* ---- dicts ----------------------------------------------------------------------------------------------------- */

enum { DICT_PLAIN_MAX = 8 }; /* entries up to this count are searched one by one */

struct dict *ox_ji_new_dict(struct run *run) {
    return ox_ji_new(run, sizeof(struct dict));
}

static uint64_t mix(uint64_t hash, uint64_t bits) {
    hash = (hash ^ bits) * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ hash >> 32;
}

/* Equal values have equal hashes: True, 1 and 1.0 are one key. */
static bool hash_of(struct run *run, struct value key, uint64_t *hash) {
    switch (key.kind) {
    case V_NONE:
    case V_UNDEFINED:
        *hash = mix(*hash, (uint64_t)key.kind);
        return true;
    case V_BOOL:
        *hash = mix(*hash, key.as.truth);
        return true;
    case V_INT:
        *hash = mix(*hash, (uint64_t)key.as.integer);
        return true;
    case V_FLOAT: {
        const double real = key.as.real;
        uint64_t bits = 0;
        memcpy(&bits, &real, sizeof bits);
        const bool is_integer = real >= -9.0e18 && real <= 9.0e18 && real == floor(real);
        *hash = mix(*hash, is_integer ? (uint64_t)(int64_t)real : bits);
        return true;
    }
    case V_STRING: {
        uint64_t text = UINT64_C(0xCBF29CE484222325);
        for (size_t i = 0; i < key.as.string->bytes; i++) {
            text = (text ^ (unsigned char)key.as.string->data[i]) * UINT64_C(0x100000001B3);
        }
        *hash = mix(*hash, text);
        return ox_ji_spend(run, key.as.string->bytes / 64);
    }
    case V_TUPLE:
        if (!ox_ji_enter(run)) {
            return false;
        }
        for (size_t i = 0; i < key.as.list->count; i++) {
            if (!hash_of(run, key.as.list->items[i], hash)) {
                return false;
            }
        }
        run->depth--;
        return true;
    case V_LIST:
    case V_DICT:
    case V_VIEW:
        return ox_ji_fail(run, "unhashable type: '%s'", ox_ji_type_name(key));
    default: /* objects, which equal themselves alone; few are ever keys */
        *hash = mix(*hash, (uint64_t)key.kind);
        return true;
    }
}

static bool same_key(struct run *run, struct value left, struct value right, bool *out) {
    if (left.kind == V_STRING && right.kind == V_STRING) {
        *out = ox_ji_string_equal(left.as.string, right.as.string);
        return true;
    }
    return ox_ji_equal(run, left, right, out);
}

/* Sets *index to that of the entry of `key`, or to the count. */
static bool find_entry(struct run *run, const struct dict *dict, struct value key, size_t *index) {
    uint64_t hash = 0;
    bool same = false;
    if (!hash_of(run, key, &hash)) {
        return false;
    }
    if (dict->slots == NULL) {
        for (*index = 0; *index < dict->count; ++*index) {
            if (!same_key(run, dict->entries[*index].key, key, &same)) {
                return false;
            }
            if (same) {
                return true;
            }
        }
        return true;
    }
    for (size_t slot = hash & (dict->slot_count - 1);; slot = (slot + 1) & (dict->slot_count - 1)) {
        if (dict->slots[slot] == 0) {
            *index = dict->count;
            return true;
        }
        *index = dict->slots[slot] - 1;
        if (!ox_ji_spend(run, 1) || !same_key(run, dict->entries[*index].key, key, &same)) {
            return false;
        }
        if (same) {
            return true;
        }
    }
}

static bool fill_slots(struct run *run, struct dict *dict, size_t slot_count) {
    dict->slots = ox_ji_new(run, slot_count * sizeof *dict->slots);
    dict->slot_count = slot_count;
    for (size_t i = 0; dict->slots != NULL && i < dict->count; i++) {
        uint64_t hash = 0;
        if (!hash_of(run, dict->entries[i].key, &hash)) {
            return false;
        }
        size_t slot = hash & (slot_count - 1);
        while (dict->slots[slot] != 0) {
            slot = (slot + 1) & (slot_count - 1);
        }
        dict->slots[slot] = (uint32_t)i + 1;
    }
    return dict->slots != NULL && ox_ji_spend(run, dict->count);
}

static bool grow(struct run *run, struct dict *dict) {
    const size_t capacity = dict->capacity < 4 ? 4 : dict->capacity * 2;
    if (capacity > UINT32_MAX / 4) {
        return ox_ji_fail(run, "a dict of %zu entries is too large", capacity);
    }
    struct entry *const entries = ox_ji_new(run, capacity * sizeof *entries);
    if (entries == NULL) {
        return false;
    }
    if (dict->count > 0) {
        memcpy(entries, dict->entries, dict->count * sizeof *entries);
    }
    dict->entries = entries;
    dict->capacity = capacity;
    return capacity <= DICT_PLAIN_MAX || fill_slots(run, dict, capacity * 2);
}

bool ox_ji_dict_set(struct run *run, struct dict *dict, struct value key, struct value item) {
    size_t index = 0;
    if (!find_entry(run, dict, key, &index)) {
        return false;
    }
    if (index < dict->count) {
        dict->entries[index].item = item;
        return true;
    }
    if (dict->count == dict->capacity && !grow(run, dict)) {
        return false;
    }
    if (dict->slots != NULL) {
        uint64_t hash = 0;
        if (!hash_of(run, key, &hash)) {
            return false;
        }
        size_t slot = hash & (dict->slot_count - 1);
        while (dict->slots[slot] != 0) {
            slot = (slot + 1) & (dict->slot_count - 1);
        }
        dict->slots[slot] = (uint32_t)dict->count + 1;
    }
    dict->entries[dict->count++] = (struct entry){.key = key, .item = item};
    return ox_ji_spend(run, 1);
}

bool ox_ji_dict_get(struct run *run, const struct dict *dict, struct value key, struct value *item) {
    size_t index = 0;
    if (!find_entry(run, dict, key, &index)) {
        return false;
    }
    *item = index < dict->count ? dict->entries[index].item : MISSING;
    return true;
}

struct value ox_ji_dict_find(const struct dict *dict, const char *key) {
    for (size_t i = 0; i < dict->count; i++) {
        if (dict->entries[i].key.kind == V_STRING && ox_ji_string_is(dict->entries[i].key.as.string, key)) {
            return dict->entries[i].item;
        }
    }
    return MISSING;
}

/* ---- kinds ----------------------------------------------------------------------------------------------------- */

const char *ox_ji_type_name(struct value value) {
    static const char *const names[V_KIND_COUNT] = {
        [V_MISSING] = "missing",  [V_UNDEFINED] = "Undefined",  [V_NONE] = "NoneType",       [V_BOOL] = "bool",
        [V_INT] = "int",          [V_FLOAT] = "float",          [V_STRING] = "str",          [V_LIST] = "list",
        [V_TUPLE] = "tuple",      [V_DICT] = "dict",            [V_VIEW] = "dict_view",      [V_RANGE] = "range",
        [V_ITERATOR] = "generator", [V_NAMESPACE] = "Namespace", [V_MACRO] = "Macro",        [V_FUNCTION] = "function",
        [V_METHOD] = "builtin_function_or_method", [V_LOOP] = "LoopContext", [V_JOINER] = "Joiner",
        [V_CYCLER] = "Cycler",    [V_SELF] = "TemplateReference",
    };
    OX_ASSERT((unsigned)value.kind < V_KIND_COUNT);
    return names[value.kind];
}

const char *ox_ji_owner_name(struct value value) {
    switch (value.kind) {
    case V_NONE:
        return "None";
    case V_STRING:
        return "str object";
    case V_LIST:
        return "list object";
    case V_DICT:
        return "dict object";
    case V_INT:
        return "int object";
    case V_FLOAT:
        return "float object";
    case V_BOOL:
        return "bool object";
    case V_TUPLE:
        return "tuple object";
    case V_ITERATOR:
        return "generator object";
    case V_NAMESPACE:
        return "jinja2.utils.Namespace object";
    default:
        return ox_ji_type_name(value);
    }
}

static bool make_undefined(struct run *run, struct undefined undefined, struct value *out) {
    struct undefined *const made = ox_ji_new(run, sizeof *made);
    if (made == NULL) {
        return false;
    }
    *made = undefined;
    *out = (struct value){.kind = V_UNDEFINED, .as.undefined = made};
    return true;
}

bool ox_ji_undefined(struct run *run, const char *owner, struct value name, struct value *out) {
    return make_undefined(run, (struct undefined){.owner = owner, .name = name}, out);
}

bool ox_ji_undefined_because(struct run *run, const char *hint, struct value *out) {
    return make_undefined(run, (struct undefined){.hint = hint, .name = NONE}, out);
}

bool ox_ji_fail_undefined(struct run *run, const struct undefined *undefined) {
    struct value text = NONE;
    if (undefined->hint != NULL) {
        return ox_ji_fail(run, "%s", undefined->hint);
    }
    const struct capture capture = ox_ji_capture(run);
    if (!ox_ji_put_repr(run, undefined->name) || !ox_ji_capture_end(run, capture, &text)) {
        return false;
    }
    const int bytes = text.as.string->bytes > 500 ? 500 : (int)text.as.string->bytes;
    const char *const name = text.as.string->data;
    if (undefined->is_unsafe) {
        return ox_ji_fail(run, "access to attribute %.*s of '%.*s' object is unsafe.", bytes, name,
                          (int)strcspn(undefined->owner, " "), undefined->owner);
    }
    if (undefined->owner == NULL) {
        return ox_ji_fail(run, "%.*s is undefined", bytes, name);
    }
    if (undefined->name.kind != V_STRING) {
        return ox_ji_fail(run, "%s has no element %.*s", undefined->owner, bytes, name);
    }
    return ox_ji_fail(run, "'%s' has no attribute %.*s", undefined->owner, bytes, name);
}

bool ox_ji_has_length(struct value value) {
    switch (value.kind) {
    case V_UNDEFINED:
    case V_STRING:
    case V_LIST:
    case V_TUPLE:
    case V_DICT:
    case V_VIEW:
    case V_RANGE:
        return true;
    default:
        return false;
    }
}

bool ox_ji_length(struct run *run, struct value value, int64_t *out) {
    switch (value.kind) {
    case V_UNDEFINED:
        *out = 0;
        return true;
    case V_STRING:
        *out = (int64_t)value.as.string->points;
        return true;
    case V_LIST:
    case V_TUPLE:
        *out = (int64_t)value.as.list->count;
        return true;
    case V_DICT:
        *out = (int64_t)value.as.dict->count;
        return true;
    case V_VIEW:
        *out = (int64_t)value.as.view->dict->count;
        return true;
    case V_RANGE:
        *out = value.as.range->count;
        return true;
    default:
        return ox_ji_fail(run, "object of type '%s' has no len()", ox_ji_type_name(value));
    }
}

bool ox_ji_truth(struct run *run, struct value value, bool *out) {
    int64_t length = 0;
    switch (value.kind) {
    case V_MISSING:
    case V_NONE:
        *out = false;
        return true;
    case V_BOOL:
        *out = value.as.truth;
        return true;
    case V_INT:
        *out = value.as.integer != 0;
        return true;
    case V_FLOAT:
        *out = value.as.real != 0;
        return true;
    case V_LOOP:
        *out = true; /* its length, which is read to the end of the items for it */
        return ox_ji_measure(run, value.as.loop);
    default:
        *out = true;
        if (ox_ji_has_length(value)) {
            const bool ok = ox_ji_length(run, value, &length);
            *out = length != 0;
            return ok;
        }
        return true;
    }
}

/* ---- equality and order ---------------------------------------------------------------------------------------- */

static bool is_number(struct value value) {
    return value.kind == V_BOOL || value.kind == V_INT || value.kind == V_FLOAT;
}

static int64_t integer_of(struct value value) {
    return value.kind == V_BOOL ? value.as.truth : value.as.integer;
}

/* Compares an integer with a finite or infinite real, exactly. */
static int order_mixed(int64_t integer, double real) {
    if (real >= 9223372036854775808.0) {
        return -1;
    }
    if (real < -9223372036854775808.0) {
        return 1;
    }
    const int64_t whole = (int64_t)real;
    if (integer != whole) {
        return integer < whole ? -1 : 1;
    }
    const double rest = real - (double)whole;
    return rest > 0 ? -1 : rest < 0 ? 1 : 0;
}

static int order_numbers(struct value left, struct value right) {
    if ((left.kind == V_FLOAT && isnan(left.as.real)) || (right.kind == V_FLOAT && isnan(right.as.real))) {
        return UNORDERED;
    }
    if (left.kind == V_FLOAT && right.kind == V_FLOAT) {
        return (left.as.real > right.as.real) - (left.as.real < right.as.real);
    }
    if (left.kind == V_FLOAT) {
        return -order_mixed(integer_of(right), left.as.real);
    }
    if (right.kind == V_FLOAT) {
        return order_mixed(integer_of(left), right.as.real);
    }
    return (integer_of(left) > integer_of(right)) - (integer_of(left) < integer_of(right));
}

static bool lists_equal(struct run *run, const struct list *left, const struct list *right, bool *out) {
    *out = left->count == right->count;
    if (!ox_ji_enter(run)) {
        return false;
    }
    for (size_t i = 0; *out && i < left->count; i++) {
        if (!ox_ji_equal(run, left->items[i], right->items[i], out)) {
            return false;
        }
    }
    run->depth--;
    return true;
}

static bool dicts_equal(struct run *run, const struct dict *left, const struct dict *right, bool *out) {
    *out = left->count == right->count;
    if (!ox_ji_enter(run)) {
        return false;
    }
    for (size_t i = 0; *out && i < left->count; i++) {
        struct value other = MISSING;
        if (!ox_ji_dict_get(run, right, left->entries[i].key, &other)) {
            return false;
        }
        *out = other.kind != V_MISSING;
        if (*out && !ox_ji_equal(run, left->entries[i].item, other, out)) {
            return false;
        }
    }
    run->depth--;
    return true;
}

static bool ranges_equal(const struct range *left, const struct range *right) {
    return left->count == right->count && (left->count == 0 || left->start == right->start) &&
           (left->count < 2 || left->step == right->step);
}

bool ox_ji_equal(struct run *run, struct value left, struct value right, bool *out) {
    if (!ox_ji_spend(run, 1)) {
        return false;
    }
    if (is_number(left) && is_number(right)) {
        *out = order_numbers(left, right) == 0;
        return true;
    }
    *out = false;
    if (left.kind != right.kind) {
        return true;
    }
    switch (left.kind) {
    case V_MISSING:
    case V_NONE:
    case V_UNDEFINED:
        *out = true;
        return true;
    case V_STRING:
        *out = ox_ji_string_equal(left.as.string, right.as.string);
        return ox_ji_spend(run, left.as.string->bytes / 64);
    case V_LIST:
    case V_TUPLE:
        return lists_equal(run, left.as.list, right.as.list, out);
    case V_DICT:
        return dicts_equal(run, left.as.dict, right.as.dict, out);
    case V_RANGE:
        *out = ranges_equal(left.as.range, right.as.range);
        return true;
    case V_VIEW:
    case V_METHOD:
        return ox_ji_fail(run, "comparing two objects of type '%s' is not supported here", ox_ji_type_name(left));
    default:
        *out = left.as.list == right.as.list; /* identity decides */
        return true;
    }
}

static bool order_lists(struct run *run, const struct list *left, const struct list *right, const char *symbol,
                        int *out) {
    if (!ox_ji_enter(run)) {
        return false;
    }
    for (size_t i = 0; i < left->count && i < right->count; i++) {
        bool same = false;
        if (!ox_ji_equal(run, left->items[i], right->items[i], &same)) {
            return false;
        }
        if (!same) {
            run->depth--;
            return ox_ji_order(run, left->items[i], right->items[i], symbol, out);
        }
    }
    run->depth--;
    *out = (left->count > right->count) - (left->count < right->count);
    return true;
}

bool ox_ji_order(struct run *run, struct value left, struct value right, const char *symbol, int *out) {
    if (left.kind == V_UNDEFINED || right.kind == V_UNDEFINED) {
        return ox_ji_fail_undefined(run, left.kind == V_UNDEFINED ? left.as.undefined : right.as.undefined);
    }
    if (is_number(left) && is_number(right)) {
        *out = order_numbers(left, right);
        return true;
    }
    if (left.kind == V_STRING && right.kind == V_STRING) {
        const struct string *const a = left.as.string;
        const struct string *const b = right.as.string;
        const size_t shared = a->bytes < b->bytes ? a->bytes : b->bytes;
        const int bytes = shared == 0 ? 0 : memcmp(a->data, b->data, shared);
        *out = bytes != 0 ? (bytes > 0) - (bytes < 0) : (a->bytes > b->bytes) - (a->bytes < b->bytes);
        return ox_ji_spend(run, 1 + shared / 64);
    }
    if (left.kind == right.kind && (left.kind == V_LIST || left.kind == V_TUPLE)) {
        return order_lists(run, left.as.list, right.as.list, symbol, out);
    }
    return ox_ji_fail(run, "'%s' not supported between instances of '%s' and '%s'", symbol, ox_ji_type_name(left),
                      ox_ji_type_name(right));
}

/* ---- sorting --------------------------------------------------------------------------------------------------- */

struct sorting {
    struct run *run;
    struct value *items, *keys, *spare_items, *spare_keys;
    bool reverse;
};

/* Merges [begin, middle) and [middle, end), each sorted. */
static bool merge(struct sorting *sorting, size_t begin, size_t middle, size_t end) {
    size_t left = begin;
    size_t right = middle;
    for (size_t at = begin; at < end; at++) {
        int order = 0;
        bool take_right = left == middle;
        if (left < middle && right < end) {
            if (!ox_ji_spend(sorting->run, 1) ||
                !ox_ji_order(sorting->run, sorting->keys[right], sorting->keys[left], "<", &order)) {
                return false;
            }
            take_right = sorting->reverse ? order == 1 : order == -1;
        }
        const size_t from = take_right ? right++ : left++;
        sorting->spare_items[at] = sorting->items[from];
        sorting->spare_keys[at] = sorting->keys[from];
    }
    memcpy(sorting->items + begin, sorting->spare_items + begin, (end - begin) * sizeof *sorting->items);
    memcpy(sorting->keys + begin, sorting->spare_keys + begin, (end - begin) * sizeof *sorting->keys);
    return true;
}

bool ox_ji_sort(struct run *run, struct list *list, struct list *keys, bool reverse) {
    const size_t count = list->count;
    OX_ASSERT(keys->count == count);
    if (count < 2) {
        return true;
    }
    struct sorting sorting = {.run = run, .items = list->items, .keys = keys->items, .reverse = reverse};
    sorting.spare_items = ox_ji_new(run, count * sizeof(struct value));
    sorting.spare_keys = ox_ji_new(run, count * sizeof(struct value));
    if (sorting.spare_items == NULL || sorting.spare_keys == NULL) {
        return false;
    }
    for (size_t width = 1; width < count; width *= 2) {
        for (size_t begin = 0; begin + width < count; begin += 2 * width) {
            const size_t end = count - begin < 2 * width ? count : begin + 2 * width;
            if (!merge(&sorting, begin, begin + width, end)) {
                return false;
            }
        }
    }
    return true;
}
