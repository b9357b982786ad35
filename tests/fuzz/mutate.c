/* Changes one value of the JSON in an input: it goes away, comes twice, becomes another one of the text, or a value at
 * some border. The choice follows from the seed alone. */
#include "tests/fuzz/fuzz.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH_BYTES = 8 };

struct change {
    unsigned state;
    size_t target, seen; /* the value to change, counted from the root in the order of a walk */
    json_t *root;
};

static unsigned draw(struct change *change, unsigned below) {
    change->state = change->state * 1664525u + 1013904223u;
    return (change->state >> 8) % below;
}

static size_t count_values(const json_t *value) {
    size_t count = 1, index;
    const char *key;
    json_t *child;
    if (json_is_object(value)) {
        json_object_foreach((json_t *)value, key, child) {
            count += count_values(child);
        }
    }
    json_array_foreach(value, index, child) {
        count += count_values(child);
    }
    return count;
}

/* The value that a walk meets as number *left, or NULL. */
static json_t *nth_value(json_t *value, size_t *left) {
    json_t *found = *left == 0 ? value : NULL;
    size_t index;
    const char *key;
    json_t *child;
    *left -= found == NULL;
    if (json_is_object(value)) {
        json_object_foreach(value, key, child) {
            found = found != NULL ? found : nth_value(child, left);
        }
    }
    json_array_foreach(value, index, child) {
        found = found != NULL ? found : nth_value(child, left);
    }
    return found;
}

static json_t *change_number(struct change *change, const json_t *value) {
    static const json_int_t borders[] = {0,
                                         1,
                                         -1,
                                         2,
                                         7,
                                         8,
                                         64,
                                         255,
                                         256,
                                         65535,
                                         65536,
                                         INT32_MAX,
                                         UINT32_MAX,
                                         (json_int_t)UINT32_MAX + 1,
                                         (json_int_t)1 << 53,
                                         INT64_MAX,
                                         INT64_MIN};
    static const double reals[] = {0.0, 0.5, -1.5, 1e-5, 1e300, 5e-324, 0x1p53, 1.0};
    const json_int_t number = json_is_integer(value) ? json_integer_value(value) : 1;
    switch (draw(change, 6)) {
    case 0:
        return json_integer(number < INT64_MAX ? number + 1 : number);
    case 1:
        return json_integer(number > INT64_MIN ? number - 1 : number);
    case 2:
        return json_integer(number < INT64_MAX / 2 && number > INT64_MIN / 2 ? number * 2 : number / 2);
    case 3:
        return json_real(reals[draw(change, sizeof reals / sizeof *reals)]);
    default:
        return json_integer(borders[draw(change, sizeof borders / sizeof *borders)]);
    }
}

static json_t *change_text(struct change *change, const json_t *value) {
    static const char *const texts[] = {"",    " ",  "x", "\n", "\t", "\xc3\xa9", "\xe2\x96\x81", "\xf0\x9f\x98\x80",
                                        "<s>", "%u", "/"};
    const char *const text = json_is_string(value) ? json_string_value(value) : "";
    const char *const extra = texts[draw(change, sizeof texts / sizeof *texts)];
    size_t at = draw(change, (unsigned)strlen(text) + 1);
    while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80) {
        at--;
    }
    switch (draw(change, 4)) {
    case 0:
        return json_string(extra);
    case 1:
        return json_stringn(text, at);
    case 2:
        return json_string(text + at);
    default:
        return json_sprintf("%.*s%s%s", (int)at, text, extra, text + at);
    }
}

/* Another value for one, of its kind as a rule. */
static json_t *replacement(struct change *change, const json_t *value) {
    if (draw(change, 4) == 0) {
        size_t index = draw(change, (unsigned)count_values(change->root));
        const json_t *const other = nth_value(change->root, &index);
        return json_deep_copy(other);
    }
    if (draw(change, 6) == 0) {
        static const char *const kinds[] = {"null", "true", "false", "[]", "{}", "0", "\"\"", "[0]", "-0.0"};
        return json_loads(kinds[draw(change, sizeof kinds / sizeof *kinds)], JSON_DECODE_ANY, NULL);
    }
    if (json_is_boolean(value)) {
        return json_boolean(!json_boolean_value(value));
    }
    return json_is_number(value) ? change_number(change, value) : change_text(change, value);
}

static bool change_member(struct change *change, json_t *object, const char *key, json_t *value) {
    char name[128];
    switch (draw(change, 5)) {
    case 0:
        json_object_del(object, key);
        break;
    case 1: /* the same value under another name */
        snprintf(name, sizeof name, "%.100s%u", key, draw(change, 12));
        json_object_set_new(object, name, json_deep_copy(value));
        break;
    default:
        json_object_set_new(object, key, replacement(change, value));
    }
    return true;
}

static bool change_element(struct change *change, json_t *array, size_t index, json_t *value) {
    switch (draw(change, 5)) {
    case 0:
        json_array_remove(array, index);
        break;
    case 1:
        json_array_insert_new(array, index, json_deep_copy(value));
        break;
    default:
        json_array_set_new(array, index, replacement(change, value));
    }
    return true;
}

static bool change_below(struct change *change, json_t *value) {
    const char *key;
    json_t *child;
    size_t index;
    if (json_is_object(value)) {
        json_object_foreach(value, key, child) {
            if (++change->seen == change->target) {
                return change_member(change, value, key, child);
            }
            if (change_below(change, child)) {
                return true;
            }
        }
    }
    json_array_foreach(value, index, child) {
        if (++change->seen == change->target) {
            return change_element(change, value, index, child);
        }
        if (change_below(change, child)) {
            return true;
        }
    }
    return false;
}

/* The text of one changed JSON, or NULL when this is none with values in it. */
static char *change_json(const char *text, size_t bytes, unsigned seed) {
    json_t *const root = json_loadb(text, bytes, 0, NULL);
    const size_t count = root != NULL ? count_values(root) : 0;
    char *changed = NULL;
    if (count > 1) {
        struct change change = {.state = seed, .root = root};
        for (unsigned i = draw(&change, 3) + 1; i > 0; i--) {
            change.target = 1 + draw(&change, (unsigned)count - 1);
            change.seen = 0;
            change_below(&change, root);
        }
        changed = json_dumps(root, JSON_COMPACT);
    }
    json_decref(root);
    return changed;
}

/* The texts that may be JSON: where they begin, and how long they are. */
enum { TEXTS_MAX = 64 };
static size_t list_texts(enum fuzz_form form, const uint8_t *data, size_t bytes, struct fuzz_part *texts) {
    const char *const separator = form == FUZZ_LINES ? "\n" : FUZZ_SEPARATOR;
    const char *at = (const char *)data, *const end = at + bytes;
    size_t count = 0;
    if (form == FUZZ_HEADER) {
        texts[0] = (struct fuzz_part){at + LENGTH_BYTES, bytes > LENGTH_BYTES ? bytes - LENGTH_BYTES : 0};
        uint64_t header_bytes = 0;
        memcpy(&header_bytes, data, bytes >= LENGTH_BYTES ? LENGTH_BYTES : 0);
        texts[0].bytes = header_bytes < texts[0].bytes ? (size_t)header_bytes : texts[0].bytes;
        return 1;
    }
    while (form != FUZZ_BYTES && at < end && count < TEXTS_MAX) {
        const char *const found = memmem(at, (size_t)(end - at), separator, strlen(separator));
        texts[count++] = (struct fuzz_part){at, (size_t)((found != NULL ? found : end) - at)};
        at = found != NULL ? found + strlen(separator) : end;
    }
    return count;
}

size_t fuzz_mutate_json(enum fuzz_form form, uint8_t *data, size_t bytes, size_t bytes_max, unsigned seed) {
    struct fuzz_part texts[TEXTS_MAX];
    const size_t count = bytes > 0 ? list_texts(form, data, bytes, texts) : 0;
    if (count == 0) {
        return 0;
    }
    const struct fuzz_part old = texts[seed % count];
    char *const changed = change_json(old.text, old.bytes, seed / (unsigned)count);
    const size_t changed_bytes = changed != NULL ? strlen(changed) : 0;
    size_t result = 0;
    if (changed != NULL && bytes - old.bytes + changed_bytes <= bytes_max) {
        uint8_t *const at = data + (old.text - (const char *)data);
        const size_t behind = bytes - (size_t)(at - data) - old.bytes;
        memmove(at + changed_bytes, at + old.bytes, behind);
        memcpy(at, changed, changed_bytes);
        result = bytes - old.bytes + changed_bytes;
        if (form == FUZZ_HEADER) {
            const uint64_t header_bytes = changed_bytes;
            memcpy(data, &header_bytes, sizeof header_bytes);
        }
    }
    free(changed);
    return result;
}
