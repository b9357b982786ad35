#include "base/distance.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

enum { NAME_BYTES_MAX = 64 };

static char folded(char letter) {
    return letter == '_' ? '-' : (char)tolower((unsigned char)letter);
}

unsigned ox_name_distance(const char *a, const char *b) {
    unsigned rows[3][NAME_BYTES_MAX + 1];
    char from[NAME_BYTES_MAX], to[NAME_BYTES_MAX]; /* folded */
    const size_t a_len = strlen(a), b_len = strlen(b);
    if (a_len > NAME_BYTES_MAX || b_len > NAME_BYTES_MAX) {
        return NAME_BYTES_MAX;
    }
    for (size_t i = 0; i < a_len; i++) {
        from[i] = folded(a[i]);
    }
    for (size_t j = 0; j < b_len; j++) {
        to[j] = folded(b[j]);
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
