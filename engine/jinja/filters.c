/* Owns the table of filters, and the filters of numbers. The others are in filters_text.c, filters_sequence.c and
 * filters_pick.c. */
#include "engine/jinja/builtins_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- numbers --------------------------------------------------------------------------------------------------- */

static bool is_integer(struct value value) {
    return value.kind == V_INT || value.kind == V_BOOL;
}

static int64_t integer_of(struct value value) {
    return value.kind == V_BOOL ? value.as.truth : value.as.integer;
}

static bool filter_abs(struct call *call) {
    const struct value self = call->self;
    if (self.kind == V_FLOAT) {
        *call->out = ox_ji_float(fabs(self.as.real));
        return true;
    }
    if (!is_integer(self)) {
        return ox_ji_fail(call->run, "bad operand type for abs(): '%s'", ox_ji_type_name(self));
    }
    *call->out = ox_ji_int(integer_of(self));
    return integer_of(self) >= 0 || ox_ji_negate(call->run, self, false, call->out);
}

/* int() of a real; false where Python raises OverflowError or ValueError. */
static bool truncate_real(double real, int64_t *out, bool *too_large) {
    *too_large = isfinite(real) && fabs(real) >= 9223372036854775808.0;
    if (!isfinite(real) || *too_large) {
        return false;
    }
    *out = (int64_t)real;
    return true;
}

static bool filter_int(struct call *call) {
    const struct value self = call->self;
    int64_t base = 10, result = 0;
    bool too_large = false;
    double real = 0;
    if (call->arguments[1].kind != V_MISSING && !ox_ji_as_index(call->run, call->arguments[1], &base)) {
        return false;
    }
    bool ok = false;
    switch (self.kind) {
    case V_UNDEFINED:
        return ox_ji_fail_undefined(call->run, self.as.undefined);
    case V_BOOL:
    case V_INT:
        result = integer_of(self);
        ok = true;
        break;
    case V_FLOAT:
        if (isinf(self.as.real)) {
            return ox_ji_fail(call->run, "cannot convert float infinity to integer");
        }
        ok = truncate_real(self.as.real, &result, &too_large);
        break;
    case V_STRING:
        if (base != 0 && (base < 2 || base > 36)) {
            return ox_ji_fail(call->run, "int() base %lld is not supported here", (long long)base);
        }
        ok = ox_ji_parse_int(self.as.string, (int)base, &result, &too_large) ||
             (ox_ji_parse_float(self.as.string, &real) && truncate_real(real, &result, &too_large));
        break;
    default:
        break;
    }
    if (too_large) {
        return ox_ji_fail(call->run, "an integer beyond 64 bits is not supported here");
    }
    *call->out = ok ? ox_ji_int(result) : call->arguments[0].kind == V_MISSING ? ox_ji_int(0) : call->arguments[0];
    return true;
}

static bool filter_float(struct call *call) {
    const struct value self = call->self;
    double real = 0;
    bool ok = true;
    switch (self.kind) {
    case V_UNDEFINED:
        return ox_ji_fail_undefined(call->run, self.as.undefined);
    case V_BOOL:
    case V_INT:
        real = (double)integer_of(self);
        break;
    case V_FLOAT:
        real = self.as.real;
        break;
    case V_STRING:
        ok = ox_ji_parse_float(self.as.string, &real);
        break;
    default:
        ok = false;
        break;
    }
    *call->out = ok ? ox_ji_float(real)
                    : call->arguments[0].kind == V_MISSING ? ox_ji_float(0) : call->arguments[0];
    return true;
}

/* ---- round ----------------------------------------------------------------------------------------------------- */

/* Rounds half to even in the decimal places of the number's exact value. */
static bool round_real(struct run *run, double real, int64_t precision, struct value *out) {
    char text[512];
    if (precision < 0) {
        return ox_ji_fail(run, "rounding to less than units is not supported here");
    }
    if (precision > 100 || !isfinite(real)) {
        *out = ox_ji_float(real);
        return true;
    }
    snprintf(text, sizeof text, "%.*f", (int)precision, real);
    *out = ox_ji_float(strtod(text, NULL));
    return true;
}

static bool round_to(struct run *run, double real, int64_t precision, bool up, struct value *out) {
    const double scale = pow(10, (double)precision);
    const double scaled = real * scale;
    if (precision < 0 || precision > 22 || !isfinite(scaled) || fabs(scaled) >= 9007199254740992.0) {
        return ox_ji_fail(run, "rounding this number is not supported here");
    }
    *out = ox_ji_float((up ? ceil(scaled) : floor(scaled)) / scale);
    return true;
}

static bool filter_round(struct call *call) {
    const struct value self = call->self, method = call->arguments[1];
    int64_t precision = 0;
    if (call->arguments[0].kind != V_MISSING && !ox_ji_as_index(call->run, call->arguments[0], &precision)) {
        return false;
    }
    const bool common =
        method.kind == V_MISSING || (method.kind == V_STRING && ox_ji_string_is(method.as.string, "common"));
    const bool up = method.kind == V_STRING && ox_ji_string_is(method.as.string, "ceil");
    if (!common && !up && !(method.kind == V_STRING && ox_ji_string_is(method.as.string, "floor"))) {
        return ox_ji_fail(call->run, "method must be common, ceil or floor");
    }
    if (self.kind == V_UNDEFINED) {
        return ox_ji_fail_undefined(call->run, self.as.undefined);
    }
    if (self.kind != V_FLOAT && !is_integer(self)) {
        return ox_ji_fail(call->run, "type %s doesn't define __round__ method", ox_ji_type_name(self));
    }
    if (common && is_integer(self)) {
        if (precision < 0) {
            return ox_ji_fail(call->run, "rounding to less than units is not supported here");
        }
        *call->out = ox_ji_int(integer_of(self));
        return true;
    }
    const double real = self.kind == V_FLOAT ? self.as.real : (double)integer_of(self);
    return common ? round_real(call->run, real, precision, call->out)
                  : round_to(call->run, real, precision, up, call->out);
}

static bool filter_filesizeformat(struct call *call) {
    static const char *const units[2][8] = {{"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"},
                                            {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"}};
    char text[64];
    bool binary = false;
    double bytes = 0;
    if (call->arguments[0].kind != V_MISSING && !ox_ji_truth(call->run, call->arguments[0], &binary)) {
        return false;
    }
    if (call->self.kind == V_FLOAT) {
        bytes = call->self.as.real;
    } else if (is_integer(call->self)) {
        bytes = (double)integer_of(call->self);
    } else if (call->self.kind != V_STRING || !ox_ji_parse_float(call->self.as.string, &bytes)) {
        return ox_ji_fail(call->run, "filesizeformat takes a number");
    }
    const double base = binary ? 1024 : 1000;
    if (bytes == 1) {
        return ox_ji_string_of(call->run, "1 Byte", call->out);
    }
    if (!isfinite(bytes) || fabs(bytes) > 1e15) {
        return ox_ji_fail(call->run, "this size is not supported here");
    }
    if (bytes < base) {
        snprintf(text, sizeof text, "%lld Bytes", (long long)bytes);
        return ox_ji_string_of(call->run, text, call->out);
    }
    double unit = base * base;
    size_t i = 0;
    while (bytes >= unit) {
        unit *= base;
        i++;
    }
    snprintf(text, sizeof text, "%.1f %s", base * bytes / unit, units[binary][i]);
    return ox_ji_string_of(call->run, text, call->out);
}

/* ---- the table ------------------------------------------------------------------------------------------------- */

/* In alphabetical order. An entry without a function is a filter of jinja2 that is refused here. */
static const struct builtin filters[] = {
    {"abs", filter_abs, "", 0, 0, MARKUP_PLAIN, false},
    {"attr", ox_ji_filter_attr, "name", 1, 0, MARKUP_PLAIN, false},
    {"batch", ox_ji_filter_batch, "linecount fill_with", 1, 0, MARKUP_PLAIN, false},
    {"capitalize", ox_ji_filter_capitalize, "", 0, 0, MARKUP_KEPT, false},
    {"center", ox_ji_filter_center, "width", 0, 0, MARKUP_KEPT, false},
    {"count", ox_ji_filter_length, "", 0, 0, MARKUP_PLAIN, false},
    {"d", ox_ji_filter_default, "default_value boolean", 0, 0, MARKUP_PLAIN, false},
    {"default", ox_ji_filter_default, "default_value boolean", 0, 0, MARKUP_PLAIN, false},
    {"dictsort", ox_ji_filter_dictsort, "case_sensitive by reverse", 0, 0, MARKUP_PLAIN, false},
    {"e", ox_ji_filter_escape, "", 0, 0, MARKUP_KEPT, false},
    {"escape", ox_ji_filter_escape, "", 0, 0, MARKUP_KEPT, false},
    {"filesizeformat", filter_filesizeformat, "binary", 0, 0, MARKUP_PLAIN, false},
    {"first", ox_ji_filter_first, "", 0, 0, MARKUP_REFUSED, false},
    {"float", filter_float, "default", 0, 0, MARKUP_PLAIN, false},
    {"forceescape", ox_ji_filter_forceescape, "", 0, 0, MARKUP_KEPT, false},
    {"format", ox_ji_filter_format, "*", 0, 0, MARKUP_REFUSED, false},
    {"groupby", ox_ji_filter_groupby, "attribute default case_sensitive", 1, 0, MARKUP_REFUSED, false},
    {"indent", ox_ji_filter_indent, "width first blank", 0, 0, MARKUP_REFUSED, false},
    {"int", filter_int, "default base", 0, 0, MARKUP_PLAIN, false},
    {"items", ox_ji_filter_items, "", 0, 0, MARKUP_PLAIN, false},
    {"join", ox_ji_filter_join, "d attribute", 0, 0, MARKUP_PLAIN, false},
    {"last", ox_ji_filter_last, "", 0, 0, MARKUP_REFUSED, false},
    {"length", ox_ji_filter_length, "", 0, 0, MARKUP_PLAIN, false},
    {"list", ox_ji_filter_list, "", 0, 0, MARKUP_REFUSED, false},
    {"lower", ox_ji_filter_lower, "", 0, 0, MARKUP_KEPT, false},
    {"map", ox_ji_filter_map, "*", 0, 0, MARKUP_REFUSED, false},
    {"max", ox_ji_filter_max, "case_sensitive attribute", 0, 0, MARKUP_REFUSED, false},
    {"min", ox_ji_filter_min, "case_sensitive attribute", 0, 0, MARKUP_REFUSED, false},
    {"pprint", NULL, "*", 0, 0, MARKUP_PLAIN, false},
    {"random", NULL, "*", 0, 0, MARKUP_PLAIN, false},
    {"reject", ox_ji_filter_reject, "*", 0, 0, MARKUP_REFUSED, false},
    {"rejectattr", ox_ji_filter_rejectattr, "*", 0, 0, MARKUP_REFUSED, false},
    {"replace", ox_ji_filter_replace, "old new count", 2, 0, MARKUP_PLAIN, false},
    {"reverse", ox_ji_filter_reverse, "", 0, 0, MARKUP_REFUSED, false},
    {"round", filter_round, "precision method", 0, 0, MARKUP_PLAIN, false},
    {"safe", ox_ji_filter_safe, "", 0, 0, MARKUP_KEPT, false},
    {"select", ox_ji_filter_select, "*", 0, 0, MARKUP_REFUSED, false},
    {"selectattr", ox_ji_filter_selectattr, "*", 0, 0, MARKUP_REFUSED, false},
    {"slice", ox_ji_filter_slice, "slices fill_with", 1, 0, MARKUP_REFUSED, false},
    {"sort", ox_ji_filter_sort, "reverse case_sensitive attribute", 0, 0, MARKUP_REFUSED, false},
    {"string", ox_ji_filter_string, "", 0, 0, MARKUP_KEPT, false},
    {"striptags", NULL, "*", 0, 0, MARKUP_PLAIN, false},
    {"sum", ox_ji_filter_sum, "attribute start", 0, 0, MARKUP_REFUSED, false},
    {"title", ox_ji_filter_title, "", 0, 0, MARKUP_PLAIN, false},
    {"tojson", ox_ji_filter_tojson, "ensure_ascii indent separators sort_keys", 0, 0, MARKUP_PLAIN, false},
    {"trim", ox_ji_filter_trim, "chars", 0, 0, MARKUP_KEPT, false},
    {"truncate", ox_ji_filter_truncate, "length killwords end leeway", 0, 0, MARKUP_REFUSED, false},
    {"unique", ox_ji_filter_unique, "case_sensitive attribute", 0, 0, MARKUP_REFUSED, false},
    {"upper", ox_ji_filter_upper, "", 0, 0, MARKUP_KEPT, false},
    {"urlencode", ox_ji_filter_urlencode, "", 0, 0, MARKUP_PLAIN, false},
    {"urlize", NULL, "*", 0, 0, MARKUP_PLAIN, false},
    {"wordcount", ox_ji_filter_wordcount, "", 0, 0, MARKUP_PLAIN, false},
    {"wordwrap", NULL, "*", 0, 0, MARKUP_PLAIN, false},
    {"xmlattr", NULL, "*", 0, 0, MARKUP_PLAIN, false},
};

const struct builtin *ox_ji_find_filter(const struct string *name) {
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++) {
        if (ox_ji_string_is(name, filters[i].name)) {
            return &filters[i];
        }
    }
    return NULL;
}
