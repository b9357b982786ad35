/* The last line of stderr, where that is a terminal: it says how far something has come. The next one is written over
 * it, and messages appear above it. It fits the width that the terminal has at the time. Any thread may call these
 * functions. */
#ifndef OX_TOOLS_STATUS_LINE_H
#define OX_TOOLS_STATUS_LINE_H

#include "base/status.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_STATUS_PARTS_MAX = 20, OX_STATUS_PART_BYTES = 160 };

/* A line in parts. Where a terminal is too narrow for all of them, the part whose `drop` is highest goes first; one
 * that is left alone is cut. */
struct ox_status_line {
    unsigned count;
    struct ox_status_part {
        char text[OX_STATUS_PART_BYTES];
        unsigned drop;
    } parts[OX_STATUS_PARTS_MAX];
};
/* Adds a part; an empty one is left out. */
void ox_status_add(struct ox_status_line *line, unsigned drop, const char *format, ...) OX_PRINTF(3, 4);

/* Whether stderr is a terminal that can write over a line. */
bool ox_status_is_live(void);
/* Shows the line in place of the one before; where stderr is no such terminal, prints it whole. */
void ox_status_show(const struct ox_status_line *line);
/* Prints the line above the one that is shown, whose place is then free: it stays. Else as ox_status_show. */
void ox_status_log(const struct ox_status_line *line);
/* Prints text on stderr, above the line that is shown; on such a terminal it breaks between words. */
void ox_status_say(const char *format, ...) OX_PRINTF(1, 2);
/* Takes the line away, as before other output; keeps it, as at the end. */
void ox_status_clear(void);
void ox_status_keep(void);

/* The text with its lines broken between words to fit the terminal that `fd` is, later parts indented; as it is where
 * `fd` is no terminal, so that other programs find whole lines. The caller frees it; NULL: no memory. */
char *ox_wrap(const char *text, int fd);

#ifdef __cplusplus
}
#endif
#endif
