/* Owns the two ways to put values into a text: str.format() and the operator %. */
#include "engine/jinja/ast_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH_MAX = 100000, PRECISION_MAX = 100, NUMBER_BYTES = 512 };

/* One field, whichever way it was written. */
struct spec {
    char fill[4];
    size_t fill_bytes;
    char align; /* < > ^ =, or 0 */
    char sign;  /* + - or blank */
    bool alternate, zero;
    char grouping; /* , or _, or 0 */
    int64_t width, precision; /* precision: -1 for none */
    char type;                /* 0 for none */
};

static bool is_integer(struct value value) {
    return value.kind == V_INT || value.kind == V_BOOL;
}

static int64_t integer_of(struct value value) {
    return value.kind == V_BOOL ? value.as.truth : value.as.integer;
}

static bool unsupported(struct run *run) {
    return ox_ji_fail(run, "this format of a value is not supported here");
}

/* ---- numbers --------------------------------------------------------------------------------------------------- */

/* Puts separators between groups of the digits that begin the text. */
static void group_digits(char text[NUMBER_BYTES], char separator, size_t size) {
    char out[2 * NUMBER_BYTES];
    const size_t digits = strspn(text, size == 3 ? "0123456789" : "0123456789abcdefABCDEF");
    size_t used = 0;
    for (size_t i = 0; i < digits; i++) {
        if (i > 0 && (digits - i) % size == 0) {
            out[used++] = separator;
        }
        out[used++] = text[i];
    }
    snprintf(out + used, sizeof out - used, "%s", text + digits);
    snprintf(text, NUMBER_BYTES, "%.*s", NUMBER_BYTES - 1, out);
}

static void binary_digits(uint64_t magnitude, char text[NUMBER_BYTES]) {
    size_t used = 0;
    for (int bit = 63; bit >= 0; bit--) {
        if ((magnitude >> bit) != 0 || bit == 0) {
            text[used++] = (char)('0' + (magnitude >> bit & 1));
        }
    }
    text[used] = '\0';
}

/* The digits of an integer, without its sign, after the prefix of '#'. */
static bool integer_digits(struct run *run, const struct spec *spec, int64_t integer, char text[NUMBER_BYTES]) {
    const uint64_t magnitude = integer < 0 ? -(uint64_t)integer : (uint64_t)integer;
    switch (spec->type) {
    case 0:
    case 'd':
    case 'n':
        snprintf(text, NUMBER_BYTES, "%" PRIu64, magnitude);
        return true;
    case 'x':
        snprintf(text, NUMBER_BYTES, "%" PRIx64, magnitude);
        return true;
    case 'X':
        snprintf(text, NUMBER_BYTES, "%" PRIX64, magnitude);
        return true;
    case 'o':
        snprintf(text, NUMBER_BYTES, "%" PRIo64, magnitude);
        return true;
    case 'b':
        binary_digits(magnitude, text);
        return true;
    default:
        return unsupported(run);
    }
}

static bool real_digits(struct run *run, const struct spec *spec, double real, char text[NUMBER_BYTES]) {
    const int precision = spec->precision < 0 ? 6 : (int)spec->precision;
    const double magnitude = fabs(real);
    if (isnan(real) || isinf(real)) {
        snprintf(text, NUMBER_BYTES, "%s", isnan(real) ? "nan" : "inf");
        return spec->type != '%' || unsupported(run);
    }
    if (spec->alternate) {
        return unsupported(run);
    }
    switch (spec->type) {
    case 0:
        ox_ji_float_text(magnitude, text);
        return spec->precision < 0 || unsupported(run);
    case 'f':
    case 'F':
        snprintf(text, NUMBER_BYTES, "%.*f", precision, magnitude);
        return true;
    case 'e':
        snprintf(text, NUMBER_BYTES, "%.*e", precision, magnitude);
        return true;
    case 'E':
        snprintf(text, NUMBER_BYTES, "%.*E", precision, magnitude);
        return true;
    case 'g':
        snprintf(text, NUMBER_BYTES, "%.*g", precision, magnitude);
        return true;
    case 'G':
        snprintf(text, NUMBER_BYTES, "%.*G", precision, magnitude);
        return true;
    case '%':
        snprintf(text, NUMBER_BYTES, "%.*f%%", precision, magnitude * 100);
        return true;
    default:
        return unsupported(run);
    }
}

/* ---- padding --------------------------------------------------------------------------------------------------- */

static bool put_fill(struct run *run, const struct spec *spec, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        if (!ox_ji_spend(run, 1) || !ox_ji_put(run, spec->fill, spec->fill_bytes)) {
            return false;
        }
    }
    return true;
}

/* Writes head and body, padded to the width; with the alignment '=' between the two. */
static bool put_padded(struct run *run, const struct spec *spec, const char *head, const struct string *body) {
    const int64_t missing = spec->width - (int64_t)strlen(head) - (int64_t)body->points;
    const int64_t before = missing <= 0 ? 0 : spec->align == '>' ? missing : spec->align == '^' ? missing / 2 : 0;
    const int64_t between = missing > 0 && spec->align == '=' ? missing : 0;
    return put_fill(run, spec, before) && ox_ji_put_text(run, head) && put_fill(run, spec, between) &&
           ox_ji_put_string(run, body) && put_fill(run, spec, missing - before - between);
}

static bool put_number(struct run *run, struct spec spec, struct value value) {
    char text[NUMBER_BYTES], head[8];
    const bool is_real = value.kind == V_FLOAT || (spec.type != 0 && strchr("eEfFgG%", spec.type) != NULL);
    const double real = value.kind == V_FLOAT ? value.as.real : (double)integer_of(value);
    const bool negative = value.kind == V_FLOAT ? signbit(real) && !isnan(real) : integer_of(value) < 0;
    if (!is_real && spec.precision >= 0) {
        return ox_ji_fail(run, "Precision not allowed in integer format specifier");
    }
    if (is_real && fabs(real) > 1e300 && isfinite(real)) {
        return unsupported(run);
    }
    if (!(is_real ? real_digits(run, &spec, real, text) : integer_digits(run, &spec, integer_of(value), text))) {
        return false;
    }
    const bool is_decimal = is_real || spec.type == 0 || spec.type == 'd';
    if (spec.grouping != 0 && (spec.zero || spec.type == 'n' || (spec.grouping == ',' && !is_decimal))) {
        return unsupported(run);
    }
    if (spec.grouping != 0) {
        group_digits(text, spec.grouping, is_decimal ? 3 : 4);
    }
    const char *const prefix = !spec.alternate || is_decimal ? "" : spec.type == 'x'   ? "0x"
                                                                : spec.type == 'X' ? "0X"
                                                                : spec.type == 'o' ? "0o"
                                                                                   : "0b";
    snprintf(head, sizeof head, "%s%s", negative ? "-" : spec.sign == '+' ? "+" : spec.sign == ' ' ? " " : "", prefix);
    spec.align = (char)(spec.align == 0 ? spec.zero ? '=' : '>' : spec.align);
    const struct string body = {.data = text, .bytes = strlen(text), .points = strlen(text)};
    return put_padded(run, &spec, head, &body);
}

static bool put_text(struct run *run, struct spec spec, const struct string *string) {
    struct value cut = {.kind = V_STRING, .as.string = string};
    spec.align = (char)(spec.align == 0 ? '<' : spec.align);
    if (spec.precision >= 0 && (int64_t)string->points > spec.precision &&
        !ox_ji_string_slice(run, string, 0, spec.precision, 1, &cut)) {
        return false;
    }
    return put_padded(run, &spec, "", cut.as.string);
}

/* ---- str.format() ---------------------------------------------------------------------------------------------- */

static bool read_number(const char *text, size_t *at, int64_t *out) {
    const size_t begin = *at;
    *out = 0;
    while (text[*at] >= '0' && text[*at] <= '9' && *out <= WIDTH_MAX) {
        *out = *out * 10 + (text[(*at)++] - '0');
    }
    return *at > begin;
}

/* Reads [[fill]align][sign][#][0][width][grouping][.precision][type]. */
static bool read_spec(struct run *run, const char *text, struct spec *spec) {
    size_t at = 0;
    *spec = (struct spec){.fill = " ", .fill_bytes = 1, .precision = -1};
    if (text[0] != '\0') {
        size_t next = 0;
        ox_ji_next_point(text, &next);
        if (text[next] != '\0' && strchr("<>^=", text[next]) != NULL) {
            memcpy(spec->fill, text, next);
            spec->fill_bytes = next;
            spec->align = text[next];
            at = next + 1;
        } else if (strchr("<>^=", text[0]) != NULL) {
            spec->align = text[0];
            at = 1;
        }
    }
    const bool has_fill = spec->align != 0;
    if (text[at] != '\0' && strchr("+- ", text[at]) != NULL) {
        spec->sign = text[at++];
    }
    at += spec->alternate = text[at] == '#';
    if (text[at] == '0') {
        spec->zero = true;
        at++;
        if (!has_fill) {
            spec->fill[0] = '0';
        }
    }
    read_number(text, &at, &spec->width);
    if (text[at] == ',' || text[at] == '_') {
        spec->grouping = text[at++];
    }
    if (text[at] == '.' && (at++, !read_number(text, &at, &spec->precision))) {
        return ox_ji_fail(run, "Format specifier missing precision");
    }
    if (text[at] != '\0') {
        spec->type = text[at++];
    }
    if (text[at] != '\0' || spec->width > WIDTH_MAX || spec->precision > PRECISION_MAX) {
        return ox_ji_fail(run, "Invalid format specifier");
    }
    return true;
}

/* format(value, text) */
static bool put_field(struct run *run, struct value value, const char *text) {
    struct spec spec;
    if (text[0] == '\0') {
        return ox_ji_put_value(run, value);
    }
    if (!read_spec(run, text, &spec)) {
        return false;
    }
    if (value.kind == V_STRING) {
        if ((spec.type != 0 && spec.type != 's') || spec.sign != 0 || spec.align == '=' || spec.alternate ||
            spec.grouping != 0) {
            return ox_ji_fail(run, "this format is not one of texts");
        }
        return put_text(run, spec, value.as.string);
    }
    if (is_integer(value) || value.kind == V_FLOAT) {
        return spec.type == 'c' || spec.type == 'n' ? unsupported(run) : put_number(run, spec, value);
    }
    return ox_ji_fail(run, "unsupported format string passed to %s.__format__", ox_ji_type_name(value));
}

/* What one replacement field names, and the state of automatic numbering. */
struct formatting {
    struct run *run;
    const struct arguments *given;
    int64_t automatic; /* the next number; -1 once fields are numbered by hand */
    bool was_automatic;
};

static bool positional(struct formatting *formatting, int64_t index, struct value *out) {
    if (index >= (int64_t)formatting->given->count) {
        return ox_ji_fail(formatting->run, "Replacement index %" PRId64 " out of range", index);
    }
    *out = formatting->given->positional[index];
    return true;
}

/* The value that the first part of a field's name names. */
static bool find_value(struct formatting *formatting, const char *name, size_t bytes, struct value *out) {
    struct run *const run = formatting->run;
    if (bytes == 0) {
        if (formatting->automatic < 0) {
            return ox_ji_fail(run, "cannot switch from manual field specification to automatic field numbering");
        }
        formatting->was_automatic = true;
        return positional(formatting, formatting->automatic++, out);
    }
    if (strspn(name, "0123456789") >= bytes) {
        if (formatting->was_automatic || bytes > 6) {
            return ox_ji_fail(run, "cannot switch from automatic field numbering to manual field specification");
        }
        formatting->automatic = -1;
        return positional(formatting, strtol(name, NULL, 10), out);
    }
    struct value key = MISSING;
    *out = MISSING;
    if (!ox_ji_string(run, name, bytes, &key) ||
        (formatting->given->keywords != NULL && !ox_ji_dict_get(run, formatting->given->keywords, key, out))) {
        return false;
    }
    return out->kind != V_MISSING || ox_ji_fail(run, "KeyError: %.*s", bytes > 60 ? 60 : (int)bytes, name);
}

/* Follows .name and [key] after the first part. */
static bool follow(struct run *run, const char *at, const char *end, struct value *value) {
    while (at < end) {
        const bool is_attribute = *at == '.';
        const size_t bytes = is_attribute ? strcspn(at + 1, ".[") : strcspn(at + 1, "]");
        struct value key = MISSING;
        const bool is_closed = is_attribute || at + 1 + bytes < end;
        if ((!is_attribute && *at != '[') || bytes == 0 || at + 1 + bytes > end || !is_closed) {
            return ox_ji_fail(run, "Empty attribute in format string");
        }
        if (!ox_ji_string(run, at + 1, bytes, &key)) {
            return false;
        }
        if (!is_attribute && strspn(at + 1, "0123456789") >= bytes && bytes < 10) {
            key = ox_ji_int(strtol(at + 1, NULL, 10));
        }
        if (!(is_attribute ? ox_ji_getattr(run, *value, key, value) : ox_ji_getitem(run, *value, key, value))) {
            return false;
        }
        at += 1 + bytes + !is_attribute;
    }
    return true;
}

/* One field, NUL-terminated: name, then !conversion, then :spec. */
static bool put_replacement(struct formatting *formatting, char *field) {
    struct run *const run = formatting->run;
    struct value value = MISSING;
    char *const colon = strchr(field, ':');
    const char *const spec = colon == NULL ? "" : colon + 1;
    if (colon != NULL) {
        *colon = '\0';
    }
    char *const mark = strchr(field, '!');
    const char conversion = mark == NULL ? '\0' : mark[1];
    if (mark != NULL) {
        if (conversion == '\0' || mark[2] != '\0' || (conversion != 's' && conversion != 'r')) {
            return ox_ji_fail(run, "this conversion in a format is not supported here");
        }
        *mark = '\0';
    }
    const size_t first = strcspn(field, ".[");
    if (!find_value(formatting, field, first, &value) || !follow(run, field + first, field + strlen(field), &value)) {
        return false;
    }
    if (conversion != '\0') {
        const struct capture capture = ox_ji_capture(run);
        if (!(conversion == 'r' ? ox_ji_put_repr(run, value) : ox_ji_put_value(run, value)) ||
            !ox_ji_capture_end(run, capture, &value)) {
            return false;
        }
    }
    return put_field(run, value, spec);
}

bool ox_ji_format(struct run *run, const struct string *format, const struct arguments *given, struct value *out) {
    enum { FIELD_BYTES_MAX = 256 };
    struct formatting formatting = {.run = run, .given = given};
    const struct capture capture = ox_ji_capture(run);
    for (size_t at = 0; at < format->bytes;) {
        const char c = format->data[at];
        const bool doubled = at + 1 < format->bytes && format->data[at + 1] == c;
        if ((c == '{' || c == '}') && !doubled) {
            char field[FIELD_BYTES_MAX];
            const size_t begin = at + 1;
            const char *const close = c == '}' ? NULL : memchr(format->data + begin, '}', format->bytes - begin);
            const size_t bytes = close == NULL ? 0 : (size_t)(close - format->data) - begin;
            if (close == NULL || bytes >= sizeof field) {
                return ox_ji_fail(run, "Single '%c' encountered in format string", c);
            }
            memcpy(field, format->data + begin, bytes);
            field[bytes] = '\0';
            if (strlen(field) != bytes || strchr(field, '{') != NULL) {
                return ox_ji_fail(run, "a field inside a field is not supported here");
            }
            if (!ox_ji_spend(run, 1) || !put_replacement(&formatting, field)) {
                return false;
            }
            at = begin + bytes + 1;
            continue;
        }
        if (!ox_ji_put(run, &c, 1)) {
            return false;
        }
        at += 1 + (c == '{' || c == '}');
    }
    return ox_ji_capture_end(run, capture, out);
}

/* ---- the operator % -------------------------------------------------------------------------------------------- */

struct percent {
    struct run *run;
    const struct string *format;
    struct value values;
    size_t at, used; /* in the format; how many values of a tuple were taken */
};

static char peek(const struct percent *percent) {
    return percent->at < percent->format->bytes ? percent->format->data[percent->at] : '\0';
}

static bool take_value(struct percent *percent, struct value *out) {
    const bool is_tuple = percent->values.kind == V_TUPLE;
    if (percent->used >= (is_tuple ? percent->values.as.list->count : 1)) {
        return ox_ji_fail(percent->run, "not enough arguments for format string");
    }
    *out = is_tuple ? percent->values.as.list->items[percent->used] : percent->values;
    percent->used++;
    return true;
}

/* %(name)s */
static bool take_named(struct percent *percent, struct value *out) {
    const size_t begin = percent->at + 1;
    size_t end = begin;
    struct value key = MISSING;
    while (end < percent->format->bytes && percent->format->data[end] != ')' && percent->format->data[end] != '(') {
        end++;
    }
    if (end == percent->format->bytes || percent->format->data[end] == '(') {
        return ox_ji_fail(percent->run, "incomplete format key");
    }
    if (percent->values.kind != V_DICT) {
        return ox_ji_fail(percent->run, "format requires a mapping");
    }
    percent->at = end + 1;
    if (!ox_ji_string_at(percent->run, percent->format->data + begin, end - begin, &key) ||
        !ox_ji_dict_get(percent->run, percent->values.as.dict, key, out)) {
        return false;
    }
    return out->kind != V_MISSING || ox_ji_fail(percent->run, "KeyError in a format");
}

static bool read_flags(struct percent *percent, struct spec *spec) {
    *spec = (struct spec){.fill = " ", .fill_bytes = 1, .align = '>', .precision = -1};
    bool left = false;
    for (char c; (c = peek(percent)) != '\0' && strchr("-+ 0#", c) != NULL; percent->at++) {
        left = left || c == '-';
        spec->zero = spec->zero || c == '0';
        spec->alternate = spec->alternate || c == '#';
        spec->sign = (char)(c == '+' || (c == ' ' && spec->sign != '+') ? c : spec->sign);
    }
    while (peek(percent) >= '0' && peek(percent) <= '9' && spec->width <= WIDTH_MAX) {
        spec->width = spec->width * 10 + (percent->format->data[percent->at++] - '0');
    }
    if (peek(percent) == '.') {
        spec->precision = 0;
        percent->at++;
        while (peek(percent) >= '0' && peek(percent) <= '9' && spec->precision <= WIDTH_MAX) {
            spec->precision = spec->precision * 10 + (percent->format->data[percent->at++] - '0');
        }
    }
    spec->align = left ? '<' : '>';
    spec->zero = spec->zero && !left;
    return (spec->width <= WIDTH_MAX && spec->precision <= WIDTH_MAX && peek(percent) != '*') ||
           unsupported(percent->run);
}

static bool put_percent_number(struct percent *percent, struct spec spec, struct value value) {
    struct run *const run = percent->run;
    const bool wants_integer = strchr("diuxXo", spec.type) != NULL;
    if (value.kind == V_UNDEFINED) {
        return ox_ji_fail_undefined(run, value.as.undefined);
    }
    if (!is_integer(value) && value.kind != V_FLOAT) {
        return ox_ji_fail(run, "%%%c format: a number is required, not %s", spec.type, ox_ji_type_name(value));
    }
    if (wants_integer && value.kind == V_FLOAT) {
        if (strchr("diu", spec.type) == NULL || !isfinite(value.as.real) || fabs(value.as.real) >= 9.2e18) {
            return ox_ji_fail(run, "%%%c format: an integer is required, not float", spec.type);
        }
        value = ox_ji_int((int64_t)value.as.real);
    }
    if ((wants_integer && (spec.precision >= 0 || spec.alternate)) || spec.precision > PRECISION_MAX) {
        return unsupported(run);
    }
    spec.type = (char)(strchr("iu", spec.type) != NULL ? 'd' : spec.type);
    if (spec.zero) {
        spec.fill[0] = '0';
        spec.align = '=';
        spec.zero = false;
    }
    if (value.kind == V_FLOAT && !isfinite(value.as.real)) {
        return unsupported(run);
    }
    return put_number(run, spec, value);
}

static bool put_conversion(struct percent *percent) {
    struct run *const run = percent->run;
    struct value value = MISSING;
    struct spec spec;
    const bool is_named = peek(percent) == '(';
    if ((is_named && !take_named(percent, &value)) || !read_flags(percent, &spec)) {
        return false;
    }
    while (peek(percent) != '\0' && strchr("hlL", peek(percent)) != NULL) {
        percent->at++;
    }
    spec.type = peek(percent);
    percent->at++;
    if (spec.type == '%') {
        return ox_ji_put(run, "%", 1);
    }
    if (spec.type == '\0' || strchr("srdiuxXoeEfFgG", spec.type) == NULL) {
        return spec.type == 'c' || spec.type == 'a' ? unsupported(run)
                                                    : ox_ji_fail(run, "unsupported format character");
    }
    if (!is_named && !take_value(percent, &value)) {
        return false;
    }
    if (spec.type != 's' && spec.type != 'r') {
        return put_percent_number(percent, spec, value);
    }
    const struct capture capture = ox_ji_capture(run);
    return (spec.type == 'r' ? ox_ji_put_repr(run, value) : ox_ji_put_value(run, value)) &&
           ox_ji_capture_end(run, capture, &value) && put_text(run, spec, value.as.string);
}

bool ox_ji_percent(struct run *run, const struct string *format, struct value values, struct value *out) {
    struct percent percent = {.run = run, .format = format, .values = values};
    if (format->is_markup) {
        return ox_ji_fail(run, "%% of a text that is marked as safe is not supported here");
    }
    const struct capture capture = ox_ji_capture(run);
    while (percent.at < format->bytes) {
        const size_t begin = percent.at;
        while (percent.at < format->bytes && format->data[percent.at] != '%') {
            percent.at++;
        }
        if (!ox_ji_put(run, format->data + begin, percent.at - begin)) {
            return false;
        }
        if (percent.at < format->bytes && (percent.at++, !put_conversion(&percent))) {
            return false;
        }
    }
    const bool all_used = values.kind == V_TUPLE ? percent.used == values.as.list->count : percent.used == 1;
    const bool may_be_unused = values.kind == V_DICT || values.kind == V_LIST || values.kind == V_UNDEFINED;
    if (!all_used && !may_be_unused) {
        return ox_ji_fail(run, "not all arguments converted during string formatting");
    }
    return ox_ji_capture_end(run, capture, out);
}
