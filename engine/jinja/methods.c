/* Owns the table of methods, and those of dicts, lists, loops and cyclers. */
#include "engine/jinja/builtins_internal.h"

#include <math.h>
#include <string.h>

/* ---- dicts ----------------------------------------------------------------------------------------------------- */

static bool dict_get(struct call *call) {
    if (!ox_ji_dict_get(call->run, call->self.as.dict, call->arguments[0], call->out)) {
        return false;
    }
    if (call->out->kind == V_MISSING) {
        *call->out = call->arguments[1].kind == V_MISSING ? NONE : call->arguments[1];
    }
    return true;
}

static bool dict_view(struct call *call) {
    const char name = call->builtin->name[0];
    struct view *const view = ox_ji_new(call->run, sizeof *view);
    if (view == NULL) {
        return false;
    }
    *view = (struct view){.kind = name == 'k' ? VIEW_KEYS : name == 'v' ? VIEW_VALUES : VIEW_ITEMS,
                          .dict = call->self.as.dict};
    *call->out = (struct value){.kind = V_VIEW, .as.view = view};
    return true;
}

/* A copy shares its entries: nothing in a template changes a dict. */
static bool same_object(struct call *call) {
    *call->out = call->self;
    return true;
}

/* ---- lists, tuples, ranges ------------------------------------------------------------------------------------- */

static bool list_count(struct call *call) {
    const struct list *const list = call->self.as.list;
    int64_t count = 0;
    for (size_t i = 0; i < list->count; i++) {
        bool same = false;
        if (!ox_ji_equal(call->run, list->items[i], call->arguments[0], &same)) {
            return false;
        }
        count += same;
    }
    *call->out = ox_ji_int(count);
    return true;
}

static bool list_index(struct call *call) {
    const struct list *const list = call->self.as.list;
    int64_t bounds[2] = {0, INT64_MAX};
    for (size_t i = 0; i < 2; i++) {
        if (call->arguments[i + 1].kind != V_MISSING &&
            !ox_ji_as_index(call->run, call->arguments[i + 1], &bounds[i])) {
            return false;
        }
        bounds[i] += bounds[i] < 0 ? (int64_t)list->count : 0;
        bounds[i] = bounds[i] < 0 ? 0 : bounds[i];
    }
    for (int64_t i = bounds[0]; i < (int64_t)list->count && i < bounds[1]; i++) {
        bool same = false;
        if (!ox_ji_equal(call->run, list->items[i], call->arguments[0], &same)) {
            return false;
        }
        if (same) {
            *call->out = ox_ji_int(i);
            return true;
        }
    }
    return ox_ji_fail(call->run, "the value is not in the list");
}

/* ---- numbers --------------------------------------------------------------------------------------------------- */

static bool float_is_integer(struct call *call) {
    *call->out = ox_ji_bool(isfinite(call->self.as.real) && floor(call->self.as.real) == call->self.as.real);
    return true;
}

static bool int_bit_length(struct call *call) {
    const int64_t integer = call->self.kind == V_BOOL ? call->self.as.truth : call->self.as.integer;
    uint64_t magnitude = integer < 0 ? -(uint64_t)integer : (uint64_t)integer;
    int64_t bits = 0;
    for (; magnitude != 0; magnitude >>= 1) {
        bits++;
    }
    *call->out = ox_ji_int(bits);
    return true;
}

/* ---- loops and cyclers ------------------------------------------------------------------------------------------ */

static bool loop_cycle(struct call *call) {
    if (call->given->keywords != NULL || call->given->count == 0) {
        return ox_ji_fail(call->run, "no items for cycling given");
    }
    *call->out = call->given->positional[(uint64_t)call->self.as.loop->index0 % call->given->count];
    return true;
}

static bool loop_changed(struct call *call) {
    struct loop *const loop = call->self.as.loop;
    struct list *const values = ox_ji_new_list(call->run, call->given->count);
    bool same = false;
    if (call->given->keywords != NULL) {
        return ox_ji_fail(call->run, "changed() takes no keyword arguments");
    }
    for (size_t i = 0; values != NULL && i < call->given->count; i++) {
        if (!ox_ji_append(call->run, values, call->given->positional[i])) {
            return false;
        }
    }
    if (values == NULL || (loop->changed.kind != V_MISSING &&
                           !ox_ji_equal(call->run, loop->changed, ox_ji_tuple(values), &same))) {
        return false;
    }
    loop->changed = ox_ji_tuple(values);
    *call->out = ox_ji_bool(!same);
    return true;
}

static bool cycler_current(struct call *call) {
    struct cycler *const cycler = call->self.as.cycler;
    *call->out = cycler->items->items[cycler->at];
    if (call->builtin->name[0] == 'n') {
        cycler->at = (cycler->at + 1) % cycler->items->count;
    } else if (call->builtin->name[0] == 'r') {
        cycler->at = 0;
        *call->out = NONE;
    }
    return true;
}

/* ---- the table ------------------------------------------------------------------------------------------------- */

enum {
    TEXT = 1 << V_STRING,
    LIST = 1 << V_LIST,
    LISTS = 1 << V_LIST | 1 << V_TUPLE,
    DICT = 1 << V_DICT,
    VIEW = 1 << V_VIEW,
    RANGE = 1 << V_RANGE,
    INTEGERS = 1 << V_INT | 1 << V_BOOL,
    REAL = 1 << V_FLOAT,
    NUMBERS = INTEGERS | REAL,
    LOOP = 1 << V_LOOP,
    CYCLER = 1 << V_CYCLER,
    ITERATOR = 1 << V_ITERATOR,
    MACRO = 1 << V_MACRO,
    FUNCTION = 1 << V_FUNCTION,
};

/* By kind, in alphabetical order. Entries without a function are attributes of Python's objects that are refused here;
 * the last field says that a method would change its object. */
static const struct builtin methods[] = {
    {"capitalize", ox_ji_method_case, "", 0, TEXT, MARKUP_KEPT, false},
    {"casefold", ox_ji_method_case, "", 0, TEXT, MARKUP_KEPT, false},
    {"center", ox_ji_method_pad, "_ _", 1, TEXT, MARKUP_REFUSED, false},
    {"count", ox_ji_method_count, "_ _ _", 1, TEXT, MARKUP_PLAIN, false},
    {"encode", NULL, "*", 0, TEXT, MARKUP_PLAIN, false},
    {"endswith", ox_ji_method_affix, "_ _ _", 1, TEXT, MARKUP_PLAIN, false},
    {"expandtabs", ox_ji_method_expandtabs, "tabsize", 0, TEXT, MARKUP_REFUSED, false},
    {"find", ox_ji_method_find, "_ _ _", 1, TEXT, MARKUP_PLAIN, false},
    {"format", ox_ji_method_format, "*", 0, TEXT, MARKUP_REFUSED, false},
    {"format_map", ox_ji_method_format, "*", 0, TEXT, MARKUP_REFUSED, false},
    {"index", ox_ji_method_find, "_ _ _", 1, TEXT, MARKUP_PLAIN, false},
    {"isalnum", ox_ji_method_class, "", 0, TEXT, MARKUP_PLAIN, false},
    {"isalpha", ox_ji_method_class, "", 0, TEXT, MARKUP_PLAIN, false},
    {"isascii", ox_ji_method_class, "", 0, TEXT, MARKUP_PLAIN, false},
    {"isdecimal", ox_ji_method_class, "", 0, TEXT, MARKUP_PLAIN, false},
    {"isdigit", ox_ji_method_class, "", 0, TEXT, MARKUP_PLAIN, false},
    {"isidentifier", ox_ji_method_class, "", 0, TEXT, MARKUP_PLAIN, false},
    {"islower", ox_ji_method_class, "", 0, TEXT, MARKUP_PLAIN, false},
    {"isnumeric", ox_ji_method_class, "", 0, TEXT, MARKUP_PLAIN, false},
    {"isprintable", ox_ji_method_class, "", 0, TEXT, MARKUP_PLAIN, false},
    {"isspace", ox_ji_method_class, "", 0, TEXT, MARKUP_PLAIN, false},
    {"istitle", ox_ji_method_class, "", 0, TEXT, MARKUP_PLAIN, false},
    {"isupper", ox_ji_method_class, "", 0, TEXT, MARKUP_PLAIN, false},
    {"join", ox_ji_method_join, "_", 1, TEXT, MARKUP_REFUSED, false},
    {"ljust", ox_ji_method_pad, "_ _", 1, TEXT, MARKUP_REFUSED, false},
    {"lower", ox_ji_method_case, "", 0, TEXT, MARKUP_KEPT, false},
    {"lstrip", ox_ji_method_strip, "_", 0, TEXT, MARKUP_KEPT, false},
    {"maketrans", NULL, "*", 0, TEXT, MARKUP_PLAIN, false},
    {"partition", ox_ji_method_partition, "_", 1, TEXT, MARKUP_REFUSED, false},
    {"removeprefix", ox_ji_method_remove, "_", 1, TEXT, MARKUP_REFUSED, false},
    {"removesuffix", ox_ji_method_remove, "_", 1, TEXT, MARKUP_REFUSED, false},
    {"replace", ox_ji_method_replace, "_ _ _", 2, TEXT, MARKUP_REFUSED, false},
    {"rfind", ox_ji_method_find, "_ _ _", 1, TEXT, MARKUP_PLAIN, false},
    {"rindex", ox_ji_method_find, "_ _ _", 1, TEXT, MARKUP_PLAIN, false},
    {"rjust", ox_ji_method_pad, "_ _", 1, TEXT, MARKUP_REFUSED, false},
    {"rpartition", ox_ji_method_partition, "_", 1, TEXT, MARKUP_REFUSED, false},
    {"rsplit", ox_ji_method_split, "sep maxsplit", 0, TEXT, MARKUP_REFUSED, false},
    {"rstrip", ox_ji_method_strip, "_", 0, TEXT, MARKUP_KEPT, false},
    {"split", ox_ji_method_split, "sep maxsplit", 0, TEXT, MARKUP_REFUSED, false},
    {"splitlines", ox_ji_method_splitlines, "keepends", 0, TEXT, MARKUP_REFUSED, false},
    {"startswith", ox_ji_method_affix, "_ _ _", 1, TEXT, MARKUP_PLAIN, false},
    {"strip", ox_ji_method_strip, "_", 0, TEXT, MARKUP_KEPT, false},
    {"swapcase", ox_ji_method_case, "", 0, TEXT, MARKUP_KEPT, false},
    {"title", ox_ji_method_case, "", 0, TEXT, MARKUP_KEPT, false},
    {"translate", NULL, "*", 0, TEXT, MARKUP_PLAIN, false},
    {"upper", ox_ji_method_case, "", 0, TEXT, MARKUP_KEPT, false},
    {"zfill", ox_ji_method_zfill, "_", 1, TEXT, MARKUP_REFUSED, false},

    {"clear", NULL, "", 0, DICT | LIST, MARKUP_PLAIN, true},
    {"copy", same_object, "", 0, DICT | LIST, MARKUP_PLAIN, false},
    {"fromkeys", NULL, "*", 0, DICT, MARKUP_PLAIN, false},
    {"get", dict_get, "_ _", 1, DICT, MARKUP_PLAIN, false},
    {"items", dict_view, "", 0, DICT, MARKUP_PLAIN, false},
    {"keys", dict_view, "", 0, DICT, MARKUP_PLAIN, false},
    {"pop", NULL, "", 0, DICT | LIST, MARKUP_PLAIN, true},
    {"popitem", NULL, "", 0, DICT, MARKUP_PLAIN, true},
    {"setdefault", NULL, "", 0, DICT, MARKUP_PLAIN, true},
    {"update", NULL, "", 0, DICT, MARKUP_PLAIN, true},
    {"values", dict_view, "", 0, DICT, MARKUP_PLAIN, false},
    {"isdisjoint", NULL, "*", 0, VIEW, MARKUP_PLAIN, false},
    {"mapping", NULL, "*", 0, VIEW, MARKUP_PLAIN, false},

    {"append", NULL, "", 0, LIST, MARKUP_PLAIN, true},
    {"count", list_count, "_", 1, LISTS, MARKUP_PLAIN, false},
    {"count", NULL, "*", 0, RANGE, MARKUP_PLAIN, false},
    {"extend", NULL, "", 0, LIST, MARKUP_PLAIN, true},
    {"index", list_index, "_ _ _", 1, LISTS, MARKUP_PLAIN, false},
    {"index", NULL, "*", 0, RANGE, MARKUP_PLAIN, false},
    {"insert", NULL, "", 0, LIST, MARKUP_PLAIN, true},
    {"remove", NULL, "", 0, LIST, MARKUP_PLAIN, true},
    {"reverse", NULL, "", 0, LIST, MARKUP_PLAIN, true},
    {"sort", NULL, "", 0, LIST, MARKUP_PLAIN, true},
    {"start", NULL, "*", 0, RANGE, MARKUP_PLAIN, false},
    {"step", NULL, "*", 0, RANGE, MARKUP_PLAIN, false},
    {"stop", NULL, "*", 0, RANGE, MARKUP_PLAIN, false},

    {"as_integer_ratio", NULL, "*", 0, NUMBERS, MARKUP_PLAIN, false},
    {"bit_count", NULL, "*", 0, INTEGERS, MARKUP_PLAIN, false},
    {"bit_length", int_bit_length, "", 0, INTEGERS, MARKUP_PLAIN, false},
    {"conjugate", NULL, "*", 0, NUMBERS, MARKUP_PLAIN, false},
    {"denominator", NULL, "*", 0, INTEGERS, MARKUP_PLAIN, false},
    {"from_bytes", NULL, "*", 0, INTEGERS, MARKUP_PLAIN, false},
    {"fromhex", NULL, "*", 0, REAL, MARKUP_PLAIN, false},
    {"hex", NULL, "*", 0, REAL, MARKUP_PLAIN, false},
    {"imag", NULL, "*", 0, NUMBERS, MARKUP_PLAIN, false},
    {"is_integer", float_is_integer, "", 0, REAL, MARKUP_PLAIN, false},
    {"numerator", NULL, "*", 0, INTEGERS, MARKUP_PLAIN, false},
    {"real", NULL, "*", 0, NUMBERS, MARKUP_PLAIN, false},
    {"to_bytes", NULL, "*", 0, INTEGERS, MARKUP_PLAIN, false},

    {"changed", loop_changed, "*", 0, LOOP, MARKUP_PLAIN, false},
    {"cycle", loop_cycle, "*", 0, LOOP, MARKUP_PLAIN, false},
    {"current", cycler_current, "", 0, CYCLER, MARKUP_PLAIN, false},
    {"next", cycler_current, "", 0, CYCLER, MARKUP_PLAIN, false},
    {"reset", cycler_current, "", 0, CYCLER, MARKUP_PLAIN, false},
    {"close", NULL, "*", 0, ITERATOR, MARKUP_PLAIN, false},
    {"send", NULL, "*", 0, ITERATOR, MARKUP_PLAIN, false},
    {"throw", NULL, "*", 0, ITERATOR, MARKUP_PLAIN, false},
    {"arguments", NULL, "*", 0, MACRO, MARKUP_PLAIN, false},
    {"name", NULL, "*", 0, MACRO, MARKUP_PLAIN, false},
    {"caller", NULL, "*", 0, MACRO, MARKUP_PLAIN, false},
    {"fromkeys", NULL, "*", 0, FUNCTION, MARKUP_PLAIN, false},
};

const struct builtin *ox_ji_find_method(enum value_kind owner, const struct string *name) {
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        if ((methods[i].owners & UINT32_C(1) << owner) != 0 && ox_ji_string_is(name, methods[i].name)) {
            return &methods[i];
        }
    }
    return NULL;
}
