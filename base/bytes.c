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

bool ox_size_parse(const char *text, uint64_t *bytes_out) {
    static const struct {
        const char *name;
        double factor;
    } units[] = {
        {"", 1},        {"b", 1},          {"k", 1024.0},     {"kib", 1024.0},
        {"kb", 1e3},    {"m", 0x1p20},     {"mib", 0x1p20},   {"mb", 1e6},
        {"g", 0x1p30},  {"gib", 0x1p30},   {"gb", 1e9},       {"t", 0x1p40},
        {"tib", 0x1p40}, {"tb", 1e12},
    };
    if (!isdigit((unsigned char)text[0]) && text[0] != '.') {
        return false;
    }
    char *end = NULL;
    const double value = strtod(text, &end);
    while (*end == ' ') {
        end++;
    }
    for (unsigned i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcasecmp(end, units[i].name) == 0) {
            const double bytes = value * units[i].factor;
            if (!(bytes >= 0.0) || bytes > 0x1p62) {
                return false;
            }
            *bytes_out = (uint64_t)llround(bytes);
            return true;
        }
    }
    return false;
}
