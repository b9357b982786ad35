/* Owns the output of a rendering and the strings of templates: UTF-8 that is indexed by code points. */
#include "engine/jinja/value_internal.h"

#include "base/assert.h"

#include <stdlib.h>
#include <string.h>

/* ---- UTF-8 ----------------------------------------------------------------------------------------------------- */

static bool starts_point(char byte) {
    return ((unsigned char)byte & 0xC0) != 0x80;
}

size_t ox_ji_count_points(const char *data, size_t bytes) {
    size_t points = 0;
    for (size_t i = 0; i < bytes; i++) {
        points += starts_point(data[i]);
    }
    return points;
}

uint32_t ox_ji_next_point(const char *data, size_t *at) {
    const unsigned char *const s = (const unsigned char *)data + *at;
    if (s[0] < 0x80) {
        *at += 1;
        return s[0];
    }
    if (s[0] < 0xE0) {
        *at += 2;
        return (uint32_t)(s[0] & 0x1F) << 6 | (s[1] & 0x3F);
    }
    if (s[0] < 0xF0) {
        *at += 3;
        return (uint32_t)(s[0] & 0x0F) << 12 | (uint32_t)(s[1] & 0x3F) << 6 | (s[2] & 0x3F);
    }
    *at += 4;
    return (uint32_t)(s[0] & 0x07) << 18 | (uint32_t)(s[1] & 0x3F) << 12 | (uint32_t)(s[2] & 0x3F) << 6 |
           (s[3] & 0x3F);
}

size_t ox_ji_encode_point(uint32_t point, char out[4]) {
    if (point < 0x80) {
        out[0] = (char)point;
        return 1;
    }
    if (point < 0x800) {
        out[0] = (char)(0xC0 | point >> 6);
        out[1] = (char)(0x80 | (point & 0x3F));
        return 2;
    }
    if (point < 0x10000) {
        out[0] = (char)(0xE0 | point >> 12);
        out[1] = (char)(0x80 | (point >> 6 & 0x3F));
        out[2] = (char)(0x80 | (point & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | point >> 18);
    out[1] = (char)(0x80 | (point >> 12 & 0x3F));
    out[2] = (char)(0x80 | (point >> 6 & 0x3F));
    out[3] = (char)(0x80 | (point & 0x3F));
    return 4;
}

bool ox_ji_is_utf8(const char *data, size_t bytes) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    for (size_t i = 0; i < bytes;) {
        const unsigned char first = (unsigned char)data[i];
        const size_t size = first < 0x80   ? 1
                            : first < 0xC2 ? 0
                            : first < 0xE0 ? 2
                            : first < 0xF0 ? 3
                            : first < 0xF5 ? 4
                                           : 0;
        if (size == 0 || bytes - i < size) {
            return false;
        }
        for (size_t k = 1; k < size; k++) {
            if (starts_point(data[i + k])) {
                return false;
            }
        }
        const uint32_t point = ox_ji_next_point(data, &i);
        if (point < least[size] || (point >= 0xD800 && point < 0xE000) || point > 0x10FFFF) {
            return false;
        }
    }
    return true;
}

bool ox_ji_is_space(uint32_t point) {
    return (point >= 0x09 && point <= 0x0D) || (point >= 0x1C && point <= 0x20) || point == 0x85 || point == 0xA0 ||
           point == 0x1680 || (point >= 0x2000 && point <= 0x200A) || point == 0x2028 || point == 0x2029 ||
           point == 0x202F || point == 0x205F || point == 0x3000;
}

/* ---- output ---------------------------------------------------------------------------------------------------- */

bool ox_ji_put(struct run *run, const char *text, size_t bytes) {
    if (bytes > run->output_capacity - run->output_bytes) {
        size_t capacity = run->output_capacity < 4096 ? 4096 : run->output_capacity;
        while (capacity - run->output_bytes < bytes) {
            if (capacity > SIZE_MAX / 2) {
                return ox_ji_fail(run, "no memory for the text");
            }
            capacity *= 2;
        }
        if (!ox_ji_count_memory(&run->memory, capacity - run->output_capacity)) {
            return ox_ji_fail(run, "the text takes more memory than its limit");
        }
        char *const output = realloc(run->output, capacity);
        if (output == NULL) {
            run->no_memory = true;
            return ox_ji_fail(run, "no memory for %zu bytes of text", capacity);
        }
        run->output = output;
        run->output_capacity = capacity;
    }
    if (bytes > 0) {
        memcpy(run->output + run->output_bytes, text, bytes);
        run->output_bytes += bytes;
    }
    return ox_ji_spend(run, bytes / 64);
}

bool ox_ji_put_text(struct run *run, const char *text) {
    return ox_ji_put(run, text, strlen(text));
}

bool ox_ji_put_string(struct run *run, const struct string *string) {
    return ox_ji_put(run, string->data, string->bytes);
}

struct capture ox_ji_capture(struct run *run) {
    if (run->capture_count++ == 0) {
        run->root_bytes = run->output_bytes;
    }
    return (struct capture){.begin = run->output_bytes};
}

bool ox_ji_capture_end(struct run *run, struct capture capture, struct value *out) {
    OX_ASSERT(run->capture_count > 0 && capture.begin <= run->output_bytes);
    run->capture_count--;
    const size_t bytes = run->output_bytes - capture.begin;
    run->output_bytes = capture.begin;
    return ox_ji_string(run, bytes > 0 ? run->output + capture.begin : "", bytes, out);
}

/* ---- making strings -------------------------------------------------------------------------------------------- */

static bool new_string(struct run *run, struct string string, struct value *out) {
    struct string *const made = ox_ji_new(run, sizeof *made);
    if (made == NULL) {
        return false;
    }
    *made = string;
    *out = (struct value){.kind = V_STRING, .as.string = made};
    return true;
}

bool ox_ji_string_at(struct run *run, const char *data, size_t bytes, struct value *out) {
    return ox_ji_spend(run, bytes / 64) &&
           new_string(run, (struct string){.data = data, .bytes = bytes, .points = ox_ji_count_points(data, bytes)},
                      out);
}

static char *take_text(struct run *run, const struct string *before, size_t bytes) {
    char *const text = ox_ji_take_text(&run->memory, before == NULL ? NULL : before->data,
                                       before == NULL ? 0 : before->bytes, bytes);
    if (text == NULL) {
        run->no_memory = !run->memory.refused;
        ox_ji_fail(run, run->no_memory ? "no memory for a text" : "the texts take more memory than their limit");
    }
    return text;
}

bool ox_ji_string(struct run *run, const char *text, size_t bytes, struct value *out) {
    char *const data = take_text(run, NULL, bytes);
    if (data == NULL) {
        return false;
    }
    if (bytes > 0) {
        memcpy(data, text, bytes);
    }
    return ox_ji_string_at(run, data, bytes, out);
}

bool ox_ji_string_of(struct run *run, const char *text, struct value *out) {
    return ox_ji_string(run, text, strlen(text), out);
}

bool ox_ji_concat(struct run *run, const struct string *left, const struct string *right, struct value *out) {
    char *const tail = take_text(run, left, right->bytes);
    if (tail == NULL) {
        return false;
    }
    if (right->bytes > 0) {
        memcpy(tail, right->data, right->bytes);
    }
    return ox_ji_spend(run, right->bytes / 64) &&
           new_string(run,
                      (struct string){.data = tail - left->bytes,
                                      .bytes = left->bytes + right->bytes,
                                      .points = left->points + right->points},
                      out);
}

bool ox_ji_string_equal(const struct string *left, const struct string *right) {
    return left->bytes == right->bytes && (left->bytes == 0 || memcmp(left->data, right->data, left->bytes) == 0);
}

bool ox_ji_string_is(const struct string *string, const char *text) {
    return string->bytes == strlen(text) && memcmp(string->data, text, string->bytes) == 0;
}

/* ---- parts of strings ------------------------------------------------------------------------------------------ */

size_t ox_ji_byte_of_point(const struct string *string, size_t index) {
    if (string->bytes == string->points || index >= string->points) {
        return index < string->points ? index : string->bytes;
    }
    size_t at = 0;
    for (; index > 0; index--) {
        ox_ji_next_point(string->data, &at);
    }
    return at;
}

bool ox_ji_string_slice(struct run *run, const struct string *string, int64_t begin, int64_t count, int64_t step,
                        struct value *out) {
    if (count <= 0) {
        return ox_ji_string_of(run, "", out);
    }
    if (step == 1) {
        const size_t first = ox_ji_byte_of_point(string, (size_t)begin);
        const struct string tail = {.data = string->data + first,
                                    .bytes = string->bytes - first,
                                    .points = string->points - (size_t)begin};
        return ox_ji_spend(run, string->bytes / 64) &&
               ox_ji_string_at(run, tail.data, ox_ji_byte_of_point(&tail, (size_t)count), out);
    }
    /* The offsets of all code points, so that any step is as fast. */
    size_t *const offsets = ox_ji_new(run, (string->points + 1) * sizeof *offsets);
    if (offsets == NULL) {
        return false;
    }
    for (size_t i = 0, at = 0; i < string->points; i++) {
        offsets[i] = at;
        ox_ji_next_point(string->data, &at);
    }
    offsets[string->points] = string->bytes;
    const struct capture capture = ox_ji_capture(run);
    for (int64_t i = 0; i < count; i++) {
        const size_t at = (size_t)(begin + i * step);
        if (!ox_ji_spend(run, 1) || !ox_ji_put(run, string->data + offsets[at], offsets[at + 1] - offsets[at])) {
            return false;
        }
    }
    return ox_ji_capture_end(run, capture, out);
}

size_t ox_ji_find(const struct string *string, const struct string *needle, size_t from) {
    if (from > string->bytes || needle->bytes > string->bytes - from) {
        return SIZE_MAX;
    }
    if (needle->bytes == 0) {
        return from;
    }
    const char *const found = memmem(string->data + from, string->bytes - from, needle->data, needle->bytes);
    return found == NULL ? SIZE_MAX : (size_t)(found - string->data);
}

size_t ox_ji_find_last(const struct string *string, const struct string *needle, size_t until) {
    if (until > string->bytes || needle->bytes > until) {
        return SIZE_MAX;
    }
    for (size_t at = until - needle->bytes + 1; at-- > 0;) {
        if (needle->bytes == 0 || memcmp(string->data + at, needle->data, needle->bytes) == 0) {
            return at;
        }
    }
    return SIZE_MAX;
}

static bool is_stripped(const struct string *points, uint32_t point) {
    if (points == NULL) {
        return ox_ji_is_space(point);
    }
    for (size_t at = 0; at < points->bytes;) {
        if (ox_ji_next_point(points->data, &at) == point) {
            return true;
        }
    }
    return false;
}

bool ox_ji_strip(struct run *run, const struct string *string, const struct string *points, unsigned sides,
                 struct value *out) {
    size_t begin = 0;
    size_t end = string->bytes;
    while ((sides & STRIP_LEFT) != 0 && begin < end) {
        size_t next = begin;
        if (!is_stripped(points, ox_ji_next_point(string->data, &next))) {
            break;
        }
        begin = next;
    }
    while ((sides & STRIP_RIGHT) != 0 && end > begin) {
        size_t last = end - 1;
        while (!starts_point(string->data[last])) {
            last--;
        }
        size_t at = last;
        if (!is_stripped(points, ox_ji_next_point(string->data, &at))) {
            break;
        }
        end = last;
    }
    return ox_ji_spend(run, (string->bytes - (end - begin)) / 8) &&
           ox_ji_string_at(run, string->data + begin, end - begin, out);
}

bool ox_ji_replace(struct run *run, const struct string *string, const struct string *const change[2], int64_t count,
                   struct value *out) {
    const struct capture capture = ox_ji_capture(run);
    size_t at = 0;
    while (count != 0) {
        const size_t found = ox_ji_find(string, change[0], at);
        if (found == SIZE_MAX) {
            break;
        }
        if (!ox_ji_spend(run, 1) || !ox_ji_put(run, string->data + at, found - at) ||
            !ox_ji_put_string(run, change[1])) {
            return false;
        }
        at = found + change[0]->bytes;
        count -= count > 0;
        if (change[0]->bytes == 0) { /* an empty text stands before every code point and at the end */
            if (at == string->bytes) {
                break;
            }
            size_t next = at;
            ox_ji_next_point(string->data, &next);
            if (!ox_ji_put(run, string->data + at, next - at)) {
                return false;
            }
            at = next;
        }
    }
    return ox_ji_put(run, string->data + at, string->bytes - at) && ox_ji_capture_end(run, capture, out);
}

bool ox_ji_escape(struct run *run, const struct string *string, struct value *out) {
    const struct capture capture = ox_ji_capture(run);
    for (size_t i = 0; i < string->bytes; i++) {
        const char c = string->data[i];
        const char *const entity = c == '&'    ? "&amp;"
                                   : c == '<'  ? "&lt;"
                                   : c == '>'  ? "&gt;"
                                   : c == '"'  ? "&#34;"
                                   : c == '\'' ? "&#39;"
                                               : NULL;
        if (!(entity != NULL ? ox_ji_put_text(run, entity) : ox_ji_put(run, &c, 1))) {
            return false;
        }
    }
    if (!ox_ji_capture_end(run, capture, out)) {
        return false;
    }
    ((struct string *)out->as.string)->is_markup = true;
    return true;
}
