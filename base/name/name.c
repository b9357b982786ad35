#include "base/name/name.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LETTERS_MIN = 4 }; /* shorter names are near to everything */

unsigned ox_name_distance(const char *a, const char *b) {
    unsigned rows[3][OX_NAME_BYTES + 1];
    char from[OX_NAME_BYTES], to[OX_NAME_BYTES]; /* folded */
    const size_t a_len = strlen(a), b_len = strlen(b);
    if (a_len > OX_NAME_BYTES || b_len > OX_NAME_BYTES) {
        return OX_NAME_BYTES;
    }
    for (size_t i = 0; i < a_len; i++) {
        from[i] = ox_name_folded(a[i]);
    }
    for (size_t j = 0; j < b_len; j++) {
        to[j] = ox_name_folded(b[j]);
    }
    for (size_t j = 0; j <= b_len; j++) {
        rows[0][j] = (unsigned)j;
    }
    for (size_t i = 1; i <= a_len; i++) {
        unsigned *const row = rows[i % 3];
        const unsigned *const above = rows[(i + 2) % 3], *const above2 = rows[(i + 1) % 3];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= b_len; j++) {
            const bool equal = from[i - 1] == to[j - 1];
            unsigned best = above[j - 1] + (equal ? 0 : 1);
            best = above[j] + 1 < best ? above[j] + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            const bool swapped = i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1];
            if (swapped && above2[j - 2] + 1 < best) {
                best = above2[j - 2] + 1;
            }
            row[j] = best;
        }
    }
    return rows[a_len % 3][b_len];
}

bool ox_name_nearest(const char *names, const char *separators, const char *text, char nearest[OX_NAME_BYTES]) {
    unsigned best = strlen(text) < 6 ? 2 : 3;
    bool found = false;
    for (const char *at = names; *at != '\0'; at += strcspn(at, separators), at += strspn(at, separators)) {
        char own[OX_NAME_BYTES];
        snprintf(own, sizeof own, "%.*s", (int)strcspn(at, separators), at);
        const unsigned distance = ox_name_distance(text, own);
        if (strlen(own) >= LETTERS_MIN && distance < best) {
            best = distance;
            found = true;
            memcpy(nearest, own, sizeof own);
        }
    }
    return found;
}

bool ox_name_near_path(const char *path, char *near, size_t bytes) {
    char folder[PATH_MAX], name[OX_NAME_BYTES + 1];
    size_t kept = 0; /* bytes of the path that are a folder, with the '/' behind it */
    for (const char *slash = strchr(path, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
        if (slash > path && access(folder, F_OK) != 0) {
            break;
        }
        kept = (size_t)(slash - path) + 1;
    }
    const size_t name_bytes = strcspn(path + kept, "/");
    unsigned best = name_bytes < 6 ? 2 : 3;
    snprintf(folder, sizeof folder, "%.*s", kept > 0 ? (int)kept : 1, kept > 0 ? path : ".");
    snprintf(name, sizeof name, "%.*s", (int)name_bytes, path + kept);
    DIR *const entries = name_bytes > 0 && name_bytes < sizeof name ? opendir(folder) : NULL;
    near[0] = '\0';
    for (const struct dirent *entry = NULL; entries != NULL && (entry = readdir(entries)) != NULL;) {
        const unsigned distance = entry->d_name[0] != '.' ? ox_name_distance(name, entry->d_name) : best;
        if (distance < best && strlen(entry->d_name) >= LETTERS_MIN - 1) {
            best = distance;
            snprintf(near, bytes, "%.*s%s%s", (int)kept, path, entry->d_name, path + kept + name_bytes);
        }
    }
    if (entries != NULL) {
        closedir(entries);
    }
    return kept > 0;
}
