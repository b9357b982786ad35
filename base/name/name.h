/* How near names are to each other: for "did you mean". */
#ifndef OX_BASE_NAME_NAME_H
#define OX_BASE_NAME_NAME_H

#include <ctype.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_NAME_BYTES = 64 };

/* A letter as names are compared: capitals count as small letters, and '_' as '-'. */
static inline char ox_name_folded(char letter) {
    return letter == '_' ? '-' : (char)tolower((unsigned char)letter);
}

/* The number of edits that turn one name into the other: insertions, deletions, replacements, swaps of neighbours. */
unsigned ox_name_distance(const char *a, const char *b);
/* Writes the nearest of `names`, which any of `separators` separate, to `nearest`; false if none is near. */
bool ox_name_nearest(const char *names, const char *separators, const char *text, char nearest[OX_NAME_BYTES]);
/* Writes to `near` (of `bytes`) what a path that does not exist may mean: the path with the nearest name in its folder
 * in place of the first part that is missing; "" if none is near. Returns whether the folder of that part is one that
 * the path names: not the current one. */
bool ox_name_near_path(const char *path, char *near, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
