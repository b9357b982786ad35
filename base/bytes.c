#include "base/bytes.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

const char *ox_size_text(uint64_t bytes, char *text) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)bytes;
    unsigned unit_idx = 0;
    while (value >= 1024.0 && unit_idx + 1 < sizeof units / sizeof *units) {
        value /= 1024.0;
        unit_idx++;
    }
    const int digits = unit_idx == 0 ? 0 : value < 10.0 ? 2 : value < 100.0 ? 1 : 0;
    snprintf(text, OX_SIZE_TEXT_BYTES, "%.*f %s", digits, value, units[unit_idx]);
    return text;
}

const char *ox_size_flag_text(uint64_t bytes, char *text) {
    if (bytes <= 16 * OX_GIB) {
        snprintf(text, OX_SIZE_TEXT_BYTES, "%" PRIu64 "MiB", bytes / OX_MIB + (bytes % OX_MIB != 0));
    } else {
        snprintf(text, OX_SIZE_TEXT_BYTES, "%.1fGiB", ceil((double)bytes / (double)OX_GIB * 10) / 10);
    }
    return text;
}

const char *ox_count_text(double count, char *text) {
    static const char *const units[] = {"", " k", " M", " B", " T"};
    unsigned unit_idx = 0;
    while (count >= 999.95 && unit_idx + 1 < sizeof units / sizeof *units) {
        count /= 1000.0;
        unit_idx++;
    }
    const int digits = unit_idx == 0 || count >= 1000.0 ? 0 : count < 10.0 ? 3 : count < 100.0 ? 2 : 1;
    snprintf(text, OX_SIZE_TEXT_BYTES, "%.*f%s", digits, count, units[unit_idx]);
    return text;
}

const char *ox_seconds_text(double seconds, char *text) {
    const double magnitude = fabs(seconds);
    if (magnitude >= 100) {
        snprintf(text, OX_SIZE_TEXT_BYTES, "%.0f s", seconds);
    } else if (magnitude >= 1) {
        snprintf(text, OX_SIZE_TEXT_BYTES, "%.2f s", seconds);
    } else if (magnitude >= 1e-3) {
        snprintf(text, OX_SIZE_TEXT_BYTES, magnitude < 0.0995 ? "%.1f ms" : "%.0f ms", seconds * 1e3);
    } else {
        snprintf(text, OX_SIZE_TEXT_BYTES, "%.0f us", seconds * 1e6);
    }
    return text;
}

struct unit {
    const char *name;
    double factor;
};

/* Reads a number and one of `units`, the last of which is NULL. */
static bool parse_with_unit(const char *text, const struct unit *units, uint64_t *out) {
    if (!isdigit((unsigned char)text[0]) && text[0] != '.') {
        return false;
    }
    char *end = NULL;
    const double value = strtod(text, &end);
    while (*end == ' ') {
        end++;
    }
    for (const struct unit *unit = units; unit->name != NULL; unit++) {
        if (strcasecmp(end, unit->name) == 0) {
            const double whole = value * unit->factor;
            if (!(whole >= 0.0) || whole > 0x1p62) {
                return false;
            }
            *out = (uint64_t)llround(whole);
            return true;
        }
    }
    return false;
}

bool ox_size_parse(const char *text, uint64_t *bytes_out) {
    static const struct unit units[] = {
        {"", 1},        {"b", 1},          {"k", 1024.0},     {"kib", 1024.0},
        {"kb", 1e3},    {"m", 0x1p20},     {"mib", 0x1p20},   {"mb", 1e6},
        {"g", 0x1p30},  {"gib", 0x1p30},   {"gb", 1e9},       {"t", 0x1p40},
        {"tib", 0x1p40}, {"tb", 1e12},     {NULL, 0},
    };
    return parse_with_unit(text, units, bytes_out);
}

/* Units of time, the largest first; ox_duration_flag_text writes the first name of each. */
static const struct unit durations[] = {
    {"h", 3600e9}, {"min", 60e9}, {"m", 60e9}, {"s", 1e9}, {"", 1e9}, {"sec", 1e9}, {"ms", 1e6}, {"us", 1e3},
    {"ns", 1}, {NULL, 0},
};

bool ox_duration_parse(const char *text, uint64_t *ns_out) {
    return parse_with_unit(text, durations, ns_out);
}

const char *ox_duration_flag_text(uint64_t ns, char *text) {
    const struct unit *unit = durations;
    while (ns % (uint64_t)unit->factor != 0) {
        unit++;
    }
    snprintf(text, OX_SIZE_TEXT_BYTES, "%" PRIu64 "%s", ns / (uint64_t)unit->factor, unit->name);
    return text;
}
