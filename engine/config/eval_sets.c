/* Divides what --eval-data names into sets. */
#include "engine/config/config.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool is_word(char letter) {
    return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') || (letter >= '0' && letter <= '9') ||
           letter == '_';
}

/* The length of a name with an '=' behind it; 0: there is none. */
static size_t name_bytes_of(const char *text) {
    size_t bytes = 0;
    while (is_word(text[bytes])) {
        bytes++;
    }
    return text[bytes] == '=' ? bytes : 0;
}

/* The end of a path in a list: the next comma with a name behind it. */
static const char *end_of_path(const char *path) {
    const char *at = path;
    while (*at != '\0' && !(*at == ',' && name_bytes_of(at + 1) > 0)) {
        at++;
    }
    return at;
}

enum ox_status ox_config_eval_sets(const char *text, struct ox_eval_sets *out) {
    *out = (struct ox_eval_sets){0};
    if (text[0] == '\0' || name_bytes_of(text) == 0 || access(text, F_OK) == 0) {
        out->count = text[0] != '\0';
        snprintf(out->sets[0].path, sizeof out->sets[0].path, "%s", text);
        return OX_OK;
    }
    for (const char *at = text, *end = NULL; at != NULL; at = *end == ',' ? end + 1 : NULL) {
        const size_t bytes = name_bytes_of(at);
        end = end_of_path(at + bytes + 1);
        if (out->count == OX_EVAL_SETS_MAX) {
            return ox_fail(OX_E_CONFIG, "--eval-data names more than %d sets", OX_EVAL_SETS_MAX);
        }
        struct ox_eval_set *const set = &out->sets[out->count++];
        if (bytes >= sizeof set->name || end == at + bytes + 1) {
            return ox_fail(OX_E_CONFIG, "--eval-data: '%s' is no NAME=PATH with a name of up to %d letters", at,
                           OX_EVAL_NAME_BYTES - 1);
        }
        memcpy(set->name, at, bytes);
        memcpy(set->path, at + bytes + 1, (size_t)(end - at) - bytes - 1);
        for (uint32_t i = 0; i + 1 < out->count; i++) {
            if (strcmp(out->sets[i].name, set->name) == 0) {
                return ox_fail(OX_E_CONFIG, "--eval-data: the name %s is given twice; give each set its own",
                               set->name);
            }
        }
    }
    return OX_OK;
}
