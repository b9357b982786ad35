/* Texts at which generation ends, wherever tokens divide them. `offload generate` calls it. */
#ifndef OX_ENGINE_STOPS_H
#define OX_ENGINE_STOPS_H

#include "base/status.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_STOP_TEXTS_MAX = 64 };
struct ox_stop_texts {
    char *room; /* freed by ox_stop_texts_close */
    const char *texts[OX_STOP_TEXTS_MAX];
    size_t bytes[OX_STOP_TEXTS_MAX];
    size_t count;
};

/* Divides a list at its commas; \n, \t, \\ and \, stand for a line end, a tab, a backslash and a comma. An empty text,
 * or too many, is OX_E_CONFIG. */
OX_MUST enum ox_status ox_stop_texts_open(const char *list, struct ox_stop_texts *out);
void ox_stop_texts_close(struct ox_stop_texts *stops);
size_t ox_stop_longest(const struct ox_stop_texts *stops); /* in bytes */
/* Where the earliest of them begins in text[bytes]; `bytes` if none is there. */
size_t ox_stop_find(const struct ox_stop_texts *stops, const char *text, size_t bytes);
/* How many bytes at the end of a text may be the beginning of one. */
size_t ox_stop_pending(const struct ox_stop_texts *stops, const char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
