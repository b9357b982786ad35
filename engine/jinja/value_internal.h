/* The values of templates, their memory, and the state of one rendering. Every function that can fail returns false
 * after ox_ji_fail recorded why; callers pass the failure on at once. */
#ifndef OX_ENGINE_JINJA_VALUE_H
#define OX_ENGINE_JINJA_VALUE_H

#include "engine/jinja/jinja.h"

/* ---- memory (memory.c) ---------------------------------------------------------------------------------------- */

/* Memory that is handed out piece by piece and freed as a whole. */
struct region {
    struct chunk *chunks; /* the newest first */
    char *next, *end;     /* what is free in the newest */
};
struct memory {
    struct region objects;
    struct region texts; /* apart from the objects, so that a text can be extended where it ends */
    uint64_t bytes, bytes_max;
    bool refused; /* by bytes_max, not by the machine */
};
/* Returns zeroed memory of `bytes`, aligned for any object; NULL when there is none. */
void *ox_ji_take(struct memory *memory, size_t bytes);
/* Returns room for `bytes` of text after a copy of `before`, so that result - before_bytes is the whole. Where `before`
 * ends at the region's end and room follows, it is continued there instead of copied. NULL when there is no memory. */
char *ox_ji_take_text(struct memory *memory, const char *before, size_t before_bytes, size_t bytes);
/* Counts `bytes` of memory that the caller has from malloc. */
bool ox_ji_count_memory(struct memory *memory, size_t bytes);
void ox_ji_free_memory(struct memory *memory);

/* ---- values --------------------------------------------------------------------------------------------------- */

enum value_kind {
    V_MISSING, /* no value: an argument that was not given */
    V_UNDEFINED,
    V_NONE,
    V_BOOL,
    V_INT,
    V_FLOAT,
    V_STRING,
    V_LIST,
    V_TUPLE,
    V_DICT,
    V_VIEW,      /* what keys(), values() and items() of a dict return */
    V_RANGE,
    V_ITERATOR,  /* gives each item once: what most filters of sequences return */
    V_NAMESPACE,
    V_MACRO,
    V_FUNCTION,  /* a global function */
    V_METHOD,    /* a method bound to its object */
    V_LOOP,      /* the variable `loop` */
    V_JOINER,
    V_CYCLER,
    V_SELF,      /* the variable `self`: the template, of which nothing is to be had */
    V_KIND_COUNT
};

struct value {
    enum value_kind kind;
    union {
        bool truth;
        int64_t integer;
        double real;
        const struct string *string;
        const struct list *list; /* V_LIST and V_TUPLE */
        const struct dict *dict;
        const struct view *view;
        const struct range *range;
        const struct undefined *undefined;
        struct iterator *iterator;
        struct name_space *space;
        const struct macro *macro;
        const struct builtin *function;
        const struct method *method;
        struct loop *loop;
        struct joiner *joiner;
        struct cycler *cycler;
    } as;
};

struct string {
    const char *data; /* UTF-8, not NUL-terminated */
    size_t bytes;
    size_t points;  /* code points; equal to bytes where all is ASCII */
    bool is_markup; /* escaped for HTML (the filters safe and escape): `+` escapes what is added to it */
};

struct list {
    struct value *items;
    size_t count, capacity;
    bool is_group; /* a tuple of the filter groupby, whose items are also called grouper and list */
};

struct entry {
    struct value key, item;
};
struct dict {
    struct entry *entries; /* in the order of insertion */
    size_t count, capacity;
    uint32_t *slots; /* entry index + 1 by hash, once there are many entries; a power of two, at least twice as many */
    size_t slot_count;
};

enum view_kind { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS };
struct view {
    enum view_kind kind;
    const struct dict *dict;
};

struct range {
    int64_t start, stop, step, count;
};

/* Why a value is undefined, for the error of whoever uses it. */
struct undefined {
    const char *hint;       /* the whole message, or NULL */
    const char *owner;      /* what was asked for an attribute, as "dict object"; NULL: a variable */
    struct value name;      /* the variable, attribute or element */
    bool is_unsafe;         /* the attribute exists, but the sandbox denies it */
};

struct name_space {
    struct dict *dict;
};

struct joiner {
    struct value separator;
    bool used;
};
struct cycler {
    const struct list *items;
    size_t at;
};

#define NONE ((struct value){.kind = V_NONE})
#define MISSING ((struct value){.kind = V_MISSING})

static inline struct value ox_ji_bool(bool truth) {
    struct value out;
    out.kind = V_BOOL;
    out.as.truth = truth;
    return out;
}
static inline struct value ox_ji_int(int64_t integer) {
    struct value out;
    out.kind = V_INT;
    out.as.integer = integer;
    return out;
}
static inline struct value ox_ji_float(double real) {
    struct value out;
    out.kind = V_FLOAT;
    out.as.real = real;
    return out;
}

/* ---- the state of a rendering --------------------------------------------------------------------------------- */

/* Where in the template something stands. */
struct place {
    uint32_t line, column;
};

struct run {
    const struct ox_jinja *jinja;
    const struct ox_jinja_input *input;
    struct ox_jinja_limits limits;
    struct memory memory;
    uint64_t steps;
    uint32_t depth;
    struct place place; /* where the evaluated node stands */
    /* The output. A part that is captured (a macro, a string being built) stands above what came before it, until it is
     * taken off as a string. */
    char *output;
    size_t output_bytes, output_capacity;
    uint32_t capture_count;
    size_t root_bytes; /* what of the output is no capture, while there are captures */
    struct ox_jinja_span *spans;
    size_t span_count, span_capacity;
    const struct dict *variables; /* the caller's */
    struct scope *spare_scopes; /* to be used again, linked by `outer` */
    struct binding *spare_bindings;
    /* The failure. */
    bool no_memory, raised, stopped;
    char *error;
};

/* Records why the rendering fails, unless it failed already; returns false. */
bool ox_ji_fail(struct run *run, const char *format, ...) OX_PRINTF(2, 3);
/* The argument of raise_exception. */
bool ox_ji_raise(struct run *run, const struct string *message);
/* Fails as jinja2 does when an undefined value is used. */
bool ox_ji_fail_undefined(struct run *run, const struct undefined *undefined);
/* Counts `steps`; false beyond the limit. */
bool ox_ji_spend(struct run *run, uint64_t steps);
/* ox_ji_take that fails the rendering. */
void *ox_ji_new(struct run *run, size_t bytes);
bool ox_ji_enter(struct run *run); /* one level deeper; each success is followed by run->depth-- */

/* ---- output and strings (text.c) ------------------------------------------------------------------------------ */

bool ox_ji_put(struct run *run, const char *text, size_t bytes);
bool ox_ji_put_text(struct run *run, const char *text); /* NUL-terminated */
bool ox_ji_put_string(struct run *run, const struct string *string);
/* Begins to capture the output; ox_ji_capture_end takes what came since then as a string. */
struct capture {
    size_t begin;
};
struct capture ox_ji_capture(struct run *run);
bool ox_ji_capture_end(struct run *run, struct capture capture, struct value *out);

bool ox_ji_string(struct run *run, const char *text, size_t bytes, struct value *out); /* copies the bytes */
bool ox_ji_string_of(struct run *run, const char *text, struct value *out);            /* NUL-terminated */
/* A string over bytes that live as long as the rendering. */
bool ox_ji_string_at(struct run *run, const char *data, size_t bytes, struct value *out);
bool ox_ji_concat(struct run *run, const struct string *left, const struct string *right, struct value *out);
bool ox_ji_string_equal(const struct string *left, const struct string *right);
bool ox_ji_string_is(const struct string *string, const char *text);
/* Code points [begin, end) every `step`; indices as Python's slices give them after adjustment. */
bool ox_ji_string_slice(struct run *run, const struct string *string, int64_t begin, int64_t count, int64_t step,
                        struct value *out);
size_t ox_ji_count_points(const char *data, size_t bytes);
/* Decodes one code point of valid UTF-8 and moves *at past it. */
uint32_t ox_ji_next_point(const char *data, size_t *at);
size_t ox_ji_encode_point(uint32_t point, char out[4]);
bool ox_ji_is_utf8(const char *data, size_t bytes);
bool ox_ji_is_space(uint32_t point); /* as str.isspace() */
/* Offset in bytes of the code point `index`. */
size_t ox_ji_byte_of_point(const struct string *string, size_t index);
/* Finds `needle` at or after `from` bytes; returns its offset or SIZE_MAX. */
size_t ox_ji_find(const struct string *string, const struct string *needle, size_t from);
/* The last one that ends at or before `until` bytes. */
size_t ox_ji_find_last(const struct string *string, const struct string *needle, size_t until);

enum strip { STRIP_LEFT = 1, STRIP_RIGHT = 2 };
/* Strips white space, or the code points of `points` where it is not NULL. */
bool ox_ji_strip(struct run *run, const struct string *string, const struct string *points, unsigned sides,
                 struct value *out);
bool ox_ji_replace(struct run *run, const struct string *string, const struct string *const change[2], int64_t count,
                   struct value *out);

/* The lines of a text as str.splitlines() has them. */
bool ox_ji_split_lines(struct run *run, const struct string *string, bool keep_ends, struct list **out);

enum casing { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_CAPITALIZE, CASE_SWAP, CASE_FOLD };
bool ox_ji_change_case(struct run *run, const struct string *string, enum casing casing, struct value *out);
/* jinja's filter title, whose words differ from str.title(). */
bool ox_ji_title_words(struct run *run, const struct string *string, struct value *out);
bool ox_ji_is_printable(uint32_t point);
/* The answer of str.isalpha() and the like; `name` is the method's name. */
bool ox_ji_classify(const struct string *string, const char *name);
bool ox_ji_is_word_point(uint32_t point); /* \w of Python's expressions */
bool ox_ji_escape(struct run *run, const struct string *string, struct value *out); /* for HTML; gives markup */

/* ---- lists and dicts (value.c) -------------------------------------------------------------------------------- */

struct list *ox_ji_new_list(struct run *run, size_t capacity);
bool ox_ji_append(struct run *run, struct list *list, struct value item);
static inline struct value ox_ji_list(const struct list *list) {
    struct value out;
    out.kind = V_LIST;
    out.as.list = list;
    return out;
}
static inline struct value ox_ji_tuple(const struct list *list) {
    struct value out;
    out.kind = V_TUPLE;
    out.as.list = list;
    return out;
}
bool ox_ji_pair(struct run *run, struct value first, struct value second, struct value *out); /* a tuple */

struct dict *ox_ji_new_dict(struct run *run);
/* Fails on a key that Python cannot hash. */
bool ox_ji_dict_set(struct run *run, struct dict *dict, struct value key, struct value item);
/* *item is V_MISSING where there is none. */
bool ox_ji_dict_get(struct run *run, const struct dict *dict, struct value key, struct value *item);
struct value ox_ji_dict_find(const struct dict *dict, const char *key); /* V_MISSING for none */

bool ox_ji_truth(struct run *run, struct value value, bool *out);
bool ox_ji_measure(struct run *run, struct loop *loop); /* counts the items: an iterator is read to its end */
bool ox_ji_equal(struct run *run, struct value left, struct value right, bool *out);
/* *out is negative, zero or positive; fails where Python's `operator` fails. Values of NaN give *out = 2. */
enum { UNORDERED = 2 };
bool ox_ji_order(struct run *run, struct value left, struct value right, const char *symbol, int *out);
const char *ox_ji_type_name(struct value value);  /* "str" */
const char *ox_ji_owner_name(struct value value); /* "str object", as errors call it */
bool ox_ji_length(struct run *run, struct value value, int64_t *out); /* len() */
bool ox_ji_has_length(struct value value);
bool ox_ji_undefined(struct run *run, const char *owner, struct value name, struct value *out);
bool ox_ji_undefined_because(struct run *run, const char *hint, struct value *out);
/* Sorts stably by `keys`, which has as many items as `list`. */
bool ox_ji_sort(struct run *run, struct list *list, struct list *keys, bool reverse);

/* ---- text of values (repr.c, json.c) -------------------------------------------------------------------------- */

bool ox_ji_put_value(struct run *run, struct value value); /* writes str(value) */
bool ox_ji_put_repr(struct run *run, struct value value);  /* writes repr(value) */
bool ox_ji_to_string(struct run *run, struct value value, struct value *out);
enum { FLOAT_TEXT_BYTES = 40 };
void ox_ji_float_text(double real, char text[FLOAT_TEXT_BYTES]); /* repr(float) */

struct json_style {
    bool ensure_ascii, sort_keys, has_indent;
    const struct string *indent; /* one level, where has_indent */
    const struct string *item_separator, *key_separator;
};
bool ox_ji_put_json(struct run *run, struct value value, const struct json_style *style, uint32_t level);
bool ox_ji_from_json(struct run *run, const json_t *json, struct value *out);

/* ---- items one after the other (iterate.c) --------------------------------------------------------------------- */

/* A source of items. `next` sets *out, to V_MISSING at the end. */
struct iterator {
    bool (*next)(struct run *run, struct iterator *iterator, struct value *out);
    struct value source;
    size_t at;               /* the index of the next item; of a string, its offset in bytes */
    struct iterator *inner;  /* where the items come from, for iterators over iterators */
    const void *detail;      /* what `next` needs besides */
    size_t number;
};
/* Begins to iterate; fails as iter() does. An iterator continues where it is. */
bool ox_ji_iterate(struct run *run, struct value value, struct iterator **out);
bool ox_ji_is_iterable(struct value value);
bool ox_ji_next(struct run *run, struct iterator *iterator, struct value *out);
struct iterator *ox_ji_new_iterator(struct run *run,
                                    bool (*next)(struct run *, struct iterator *, struct value *));
bool ox_ji_to_list(struct run *run, struct value value, struct list **out); /* list(value), a new list */
bool ox_ji_item_at(struct run *run, struct value sequence, size_t index, struct value *out); /* index < length */
bool ox_ji_contains(struct run *run, struct value container, struct value item, bool *out);
bool ox_ji_reversed(struct run *run, struct value value, struct iterator **out);
bool ox_ji_view_item(struct run *run, enum view_kind kind, const struct entry *entry, struct value *out);

/* ---- operators and attributes (operators.c, attributes.c) ------------------------------------------------------ */

bool ox_ji_binary(struct run *run, char symbol, struct value left, struct value right, struct value *out);
bool ox_ji_negate(struct run *run, struct value value, bool plus, struct value *out);
bool ox_ji_as_index(struct run *run, struct value value, int64_t *out); /* an int or bool, or TypeError */
bool ox_ji_parse_int(const struct string *string, int base, int64_t *out, bool *too_large); /* int(text, base) */
bool ox_ji_parse_float(const struct string *string, double *out);                           /* float(text) */

bool ox_ji_getattr(struct run *run, struct value object, struct value name, struct value *out); /* object.name */
bool ox_ji_getitem(struct run *run, struct value object, struct value key, struct value *out);  /* object[key] */
/* Only what Python's object has as an attribute; sets *out to V_MISSING for none. */
bool ox_ji_attribute(struct run *run, struct value object, const struct string *name, struct value *out);
/* object[begin:end:step]; missing parts are none. */
bool ox_ji_slice(struct run *run, struct value object, const struct value parts[3], struct value *out);
/* Follows "a.b.0", as the filters with an attribute do. */
bool ox_ji_follow(struct run *run, struct value object, struct value path, struct value fallback, struct value *out);

#endif
