#include "engine/generate/stops.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Copies one text of the list to `out`, unescaped; returns what follows it. */
static const char *take_text(const char *list, char *out, size_t *bytes) {
    *bytes = 0;
    while (*list != '\0' && *list != ',') {
        const bool escaped = *list == '\\' && list[1] != '\0' && strchr("nt\\,", list[1]) != NULL;
        list += escaped;
        out[(*bytes)++] = !escaped ? *list : *list == 'n' ? '\n' : *list == 't' ? '\t' : *list;
        list++;
    }
    return list;
}

enum ox_status ox_stop_texts_open(const char *list, struct ox_stop_texts *out) {
    *out = (struct ox_stop_texts){.room = malloc(2 * strlen(list) + 2)};
    if (out->room == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for the texts of --stop");
    }
    char *at = out->room;
    for (const char *rest = list; *list != '\0' && rest != NULL;) {
        if (out->count == OX_STOP_TEXTS_MAX) {
            ox_stop_texts_close(out);
            return ox_fail(OX_E_CONFIG, "--stop: gives more than %d texts; leave some out", OX_STOP_TEXTS_MAX);
        }
        size_t bytes = 0;
        rest = take_text(rest, at, &bytes);
        if (bytes == 0) {
            ox_stop_texts_close(out);
            return ox_fail(OX_E_CONFIG, "--stop: a text is empty; give one that ends the answer (its comma is \\,)");
        }
        out->texts[out->count] = at;
        out->bytes[out->count++] = bytes;
        at += bytes;
        rest = *rest == ',' ? rest + 1 : NULL;
    }
    return OX_OK;
}

void ox_stop_texts_close(struct ox_stop_texts *stops) {
    free(stops->room);
    memset(stops, 0, sizeof *stops);
}

size_t ox_stop_longest(const struct ox_stop_texts *stops) {
    size_t longest = 0;
    for (size_t i = 0; i < stops->count; i++) {
        longest = stops->bytes[i] > longest ? stops->bytes[i] : longest;
    }
    return longest;
}

size_t ox_stop_find(const struct ox_stop_texts *stops, const char *text, size_t bytes) {
    size_t earliest = bytes;
    for (size_t i = 0; i < stops->count; i++) {
        const char *const found = memmem(text, bytes, stops->texts[i], stops->bytes[i]);
        const size_t at = found != NULL ? (size_t)(found - text) : bytes;
        earliest = at < earliest ? at : earliest;
    }
    return earliest;
}

size_t ox_stop_pending(const struct ox_stop_texts *stops, const char *text, size_t bytes) {
    size_t longest = 0;
    for (size_t i = 0; i < stops->count; i++) {
        for (size_t part = stops->bytes[i] - 1; part > longest; part--) {
            if (part <= bytes && memcmp(text + bytes - part, stops->texts[i], part) == 0) {
                longest = part;
                break;
            }
        }
    }
    return longest;
}
