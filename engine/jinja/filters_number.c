/* Owns the filters of numbers. */
#include "engine/jinja/ast_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static bool is_integer(struct value value) {
    return value.kind == V_INT || value.kind == V_BOOL;
}

static int64_t integer_of(struct value value) {
    return value.kind == V_BOOL ? value.as.truth : value.as.integer;
}

bool ox_ji_filter_abs(struct call *call) {
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

bool ox_ji_filter_int(struct call *call) {
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

bool ox_ji_filter_float(struct call *call) {
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

bool ox_ji_filter_round(struct call *call) {
    const struct value self = call->self, method = call->arguments[1];
    int64_t precision = 0;
    if (call->arguments[0].kind != V_MISSING && !ox_ji_as_index(call->run, call->arguments[0], &precision)) {
        return false;
    }
    const bool common = method.kind == V_MISSING || (method.kind == V_STRING && ox_ji_string_is(method.as.string, "common"));
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

bool ox_ji_filter_filesizeformat(struct call *call) {
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
