/* Owns arithmetic as Python does it. Integers have 64 bits here; what would need more is refused. */
#include "engine/jinja/ast_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_integer(struct value value) {
    return value.kind == V_INT || value.kind == V_BOOL;
}

static int64_t integer_of(struct value value) {
    return value.kind == V_BOOL ? value.as.truth : value.as.integer;
}

static bool is_number(struct value value) {
    return is_integer(value) || value.kind == V_FLOAT;
}

static double real_of(struct value value) {
    return value.kind == V_FLOAT ? value.as.real : (double)integer_of(value);
}

static bool too_large(struct run *run) {
    return ox_ji_fail(run, "an integer beyond 64 bits is not supported here");
}

bool ox_ji_as_index(struct run *run, struct value value, int64_t *out) {
    if (!is_integer(value)) {
        return value.kind == V_UNDEFINED
                   ? ox_ji_fail_undefined(run, value.as.undefined)
                   : ox_ji_fail(run, "'%s' object cannot be interpreted as an integer", ox_ji_type_name(value));
    }
    *out = integer_of(value);
    return true;
}

/* ---- integers -------------------------------------------------------------------------------------------------- */

static bool power(struct run *run, int64_t base, int64_t exponent, struct value *out) {
    int64_t result = 1;
    if (exponent < 0) {
        if (base == 0) {
            return ox_ji_fail(run, "0.0 cannot be raised to a negative power");
        }
        *out = ox_ji_float(pow((double)base, (double)exponent));
        return true;
    }
    for (; exponent > 0; exponent--) {
        if (base == 0 || base == 1 || base == -1) { /* only the exponent's parity counts, and its being 0 */
            result = base == -1 && exponent % 2 == 0 ? 1 : base;
            break;
        }
        if (__builtin_mul_overflow(result, base, &result)) {
            return too_large(run);
        }
    }
    *out = ox_ji_int(result);
    return true;
}

static bool divide_integers(struct run *run, char symbol, int64_t a, int64_t b, struct value *out) {
    const int64_t exact_max = INT64_C(1) << 53;
    if (b == 0) {
        return ox_ji_fail(run, symbol == '/' ? "division by zero" : "integer division or modulo by zero");
    }
    if (symbol == '/') {
        if (a > exact_max || a < -exact_max || b > exact_max || b < -exact_max) {
            return ox_ji_fail(run, "dividing integers beyond 2**53 is not supported here");
        }
        *out = ox_ji_float((double)a / (double)b);
        return true;
    }
    if (a == INT64_MIN && b == -1) {
        *out = ox_ji_int(0);
        return symbol == '%' || too_large(run);
    }
    const bool adjust = a % b != 0 && (a < 0) != (b < 0); /* towards negative infinity */
    *out = ox_ji_int(symbol == '%' ? a % b + (adjust ? b : 0) : a / b - adjust);
    return true;
}

static bool binary_integers(struct run *run, char symbol, int64_t a, int64_t b, struct value *out) {
    int64_t result = 0;
    bool overflow = false;
    switch (symbol) {
    case '+':
        overflow = __builtin_add_overflow(a, b, &result);
        break;
    case '-':
        overflow = __builtin_sub_overflow(a, b, &result);
        break;
    case '*':
        overflow = __builtin_mul_overflow(a, b, &result);
        break;
    case '^':
        return power(run, a, b, out);
    default:
        return divide_integers(run, symbol, a, b, out);
    }
    *out = ox_ji_int(result);
    return !overflow || too_large(run);
}

/* ---- reals ----------------------------------------------------------------------------------------------------- */

static bool divide_reals(struct run *run, char symbol, double a, double b, struct value *out) {
    if (b == 0) {
        return ox_ji_fail(run, symbol == '/' ? "float division by zero"
                               : symbol == '%' ? "float modulo" : "float floor division by zero");
    }
    if (symbol == '/') {
        *out = ox_ji_float(a / b);
        return true;
    }
    double rest = fmod(a, b);
    double quotient = (a - rest) / b;
    if (rest != 0 && (b < 0) != (rest < 0)) {
        rest += b;
        quotient -= 1;
    } else if (rest == 0) {
        rest = copysign(0, b);
    }
    if (symbol == '%') {
        *out = ox_ji_float(rest);
        return true;
    }
    double whole = floor(quotient);
    whole += quotient - whole > 0.5;
    *out = ox_ji_float(quotient == 0 ? copysign(0, a / b) : whole);
    return true;
}

static bool binary_reals(struct run *run, char symbol, double a, double b, struct value *out) {
    switch (symbol) {
    case '+':
        *out = ox_ji_float(a + b);
        return true;
    case '-':
        *out = ox_ji_float(a - b);
        return true;
    case '*':
        *out = ox_ji_float(a * b);
        return true;
    case '^': {
        const double result = pow(a, b);
        if ((a == 0 && b < 0) || (isnan(result) && !isnan(a) && !isnan(b)) ||
            (isinf(result) && isfinite(a) && isfinite(b))) {
            return ox_ji_fail(run, "the power of these numbers is no finite real");
        }
        *out = ox_ji_float(result);
        return true;
    }
    default:
        return divide_reals(run, symbol, a, b, out);
    }
}

/* ---- sequences ------------------------------------------------------------------------------------------------- */

static bool add_strings(struct run *run, const struct string *left, const struct string *right, struct value *out) {
    struct value a = {.kind = V_STRING, .as.string = left};
    struct value b = {.kind = V_STRING, .as.string = right};
    const bool markup = left->is_markup || right->is_markup;
    if (markup && ((!left->is_markup && !ox_ji_escape(run, left, &a)) ||
                   (!right->is_markup && !ox_ji_escape(run, right, &b)))) {
        return false;
    }
    if (!ox_ji_concat(run, a.as.string, b.as.string, out)) {
        return false;
    }
    ((struct string *)out->as.string)->is_markup = markup;
    return true;
}

static bool add_lists(struct run *run, struct value left, struct value right, struct value *out) {
    const size_t count = left.as.list->count + right.as.list->count;
    struct list *const list = ox_ji_new_list(run, count);
    if (list == NULL || !ox_ji_spend(run, count)) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        list->items[i] = i < left.as.list->count ? left.as.list->items[i]
                                                 : right.as.list->items[i - left.as.list->count];
    }
    list->count = count;
    *out = (struct value){.kind = left.kind, .as.list = list};
    return true;
}

static bool repeat(struct run *run, struct value sequence, int64_t times, struct value *out) {
    times = times < 0 ? 0 : times;
    if (sequence.kind == V_STRING) {
        const struct string *const string = sequence.as.string;
        const struct capture capture = ox_ji_capture(run);
        for (int64_t i = 0; string->bytes > 0 && i < times; i++) {
            if (!ox_ji_spend(run, 1) || !ox_ji_put_string(run, string)) {
                return false;
            }
        }
        if (!ox_ji_capture_end(run, capture, out)) {
            return false;
        }
        ((struct string *)out->as.string)->is_markup = string->is_markup;
        return true;
    }
    struct list *const list = ox_ji_new_list(run, 0);
    for (int64_t i = 0; list != NULL && sequence.as.list->count > 0 && i < times; i++) {
        for (size_t k = 0; k < sequence.as.list->count; k++) {
            if (!ox_ji_append(run, list, sequence.as.list->items[k])) {
                return false;
            }
        }
    }
    *out = (struct value){.kind = sequence.kind, .as.list = list};
    return list != NULL;
}

static bool is_sequence(struct value value) {
    return value.kind == V_STRING || value.kind == V_LIST || value.kind == V_TUPLE;
}

static bool refuse(struct run *run, char symbol, struct value left, struct value right) {
    if (symbol == '+' && is_sequence(left)) {
        return ox_ji_fail(run, "can only concatenate %s (not \"%s\") to %s", ox_ji_type_name(left),
                          ox_ji_type_name(right), ox_ji_type_name(left));
    }
    const char name[] = {symbol == '\\' ? '/' : symbol == '^' ? '*' : symbol, '\0'};
    return ox_ji_fail(run, "unsupported operand type(s) for %s%s: '%s' and '%s'", name,
                      symbol == '\\' || symbol == '^' ? name : "", ox_ji_type_name(left), ox_ji_type_name(right));
}

bool ox_ji_binary(struct run *run, char symbol, struct value left, struct value right, struct value *out) {
    if (symbol == '%' && left.kind == V_STRING) {
        return ox_ji_percent(run, left.as.string, right, out);
    }
    if (left.kind == V_UNDEFINED || right.kind == V_UNDEFINED) {
        return ox_ji_fail_undefined(run, left.kind == V_UNDEFINED ? left.as.undefined : right.as.undefined);
    }
    if (is_integer(left) && is_integer(right)) {
        return binary_integers(run, symbol, integer_of(left), integer_of(right), out);
    }
    if (is_number(left) && is_number(right)) {
        return binary_reals(run, symbol, real_of(left), real_of(right), out);
    }
    if (symbol == '+' && left.kind == right.kind && left.kind == V_STRING) {
        return add_strings(run, left.as.string, right.as.string, out);
    }
    if (symbol == '+' && left.kind == right.kind && is_sequence(left)) {
        return add_lists(run, left, right, out);
    }
    if (symbol == '*' && ((is_sequence(left) && is_integer(right)) || (is_integer(left) && is_sequence(right)))) {
        return is_sequence(left) ? repeat(run, left, integer_of(right), out)
                                 : repeat(run, right, integer_of(left), out);
    }
    if (left.kind == V_VIEW || right.kind == V_VIEW || (symbol != '+' && left.kind == V_DICT)) {
        return ox_ji_fail(run, "this operation on dicts is not supported here");
    }
    return refuse(run, symbol, left, right);
}

bool ox_ji_negate(struct run *run, struct value value, bool plus, struct value *out) {
    if (value.kind == V_UNDEFINED) {
        return ox_ji_fail_undefined(run, value.as.undefined);
    }
    if (!is_number(value)) {
        return ox_ji_fail(run, "bad operand type for unary %s: '%s'", plus ? "+" : "-", ox_ji_type_name(value));
    }
    if (value.kind == V_FLOAT) {
        *out = ox_ji_float(plus ? value.as.real : -value.as.real);
        return true;
    }
    return plus ? (*out = ox_ji_int(integer_of(value)), true)
                : binary_integers(run, '-', 0, integer_of(value), out);
}

/* ---- numbers in texts ------------------------------------------------------------------------------------------ */

/* Copies an ASCII number without the white space around it and without "_" between digits; false for other texts. */
static bool clean_number(const struct string *string, char *text, size_t bytes_max) {
    size_t begin = 0;
    size_t end = string->bytes;
    size_t used = 0;
    while (begin < end && ox_ji_is_space((unsigned char)string->data[begin])) {
        begin++;
    }
    while (end > begin && ox_ji_is_space((unsigned char)string->data[end - 1])) {
        end--;
    }
    for (size_t i = begin; i < end; i++) {
        const char c = string->data[i];
        if (c == '_') {
            const bool between = i > begin && i + 1 < end && strchr("_+-.", string->data[i - 1]) == NULL &&
                                 strchr("_+-.", string->data[i + 1]) == NULL;
            if (!between) {
                return false;
            }
            continue;
        }
        if (c == '\0' || (unsigned char)c >= 0x80 || used + 1 >= bytes_max) {
            return false;
        }
        text[used++] = c;
    }
    text[used] = '\0';
    return used > 0;
}

bool ox_ji_parse_int(const struct string *string, int base, int64_t *out, bool *overflow) {
    char text[128];
    *overflow = false;
    if (!clean_number(string, text, sizeof text)) {
        return false;
    }
    const char *at = text + (text[0] == '-' || text[0] == '+');
    const char mark = (char)(at[0] == '0' ? at[1] | 0x20 : 0);
    const int marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (marked != 0 && (base == marked || base == 0)) {
        base = marked;
        at += 2;
    } else if (base == 0) {
        base = 10;
        if (at[0] == '0' && strspn(at, "0") != strlen(at)) {
            return false; /* a leading zero is not decimal in Python */
        }
    }
    int64_t result = 0;
    if (*at == '\0') {
        return false;
    }
    for (; *at != '\0'; at++) {
        const char c = (char)(*at | 0x20);
        const int digit = *at >= '0' && *at <= '9' ? *at - '0' : c >= 'a' && c <= 'z' ? c - 'a' + 10 : 99;
        if (digit >= base) {
            return false;
        }
        *overflow = *overflow || __builtin_mul_overflow(result, base, &result) ||
                    __builtin_sub_overflow(result, digit, &result);
    }
    *overflow = *overflow || (text[0] != '-' && result == INT64_MIN);
    *out = text[0] == '-' || *overflow ? result : -result;
    return true;
}

bool ox_ji_parse_float(const struct string *string, double *out) {
    static const char *const words[] = {"inf", "infinity", "nan"};
    char text[512];
    char *end = NULL;
    if (!clean_number(string, text, sizeof text)) {
        return false;
    }
    const char *const digits = text + (text[0] == '-' || text[0] == '+');
    bool is_word = false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        is_word = is_word || strcasecmp(digits, words[i]) == 0;
    }
    if (!is_word && strspn(digits, "0123456789.eE+-") != strlen(digits)) {
        return false; /* strtod also knows hexadecimal numbers */
    }
    *out = strtod(text, &end);
    return *end == '\0' && end != text;
}
