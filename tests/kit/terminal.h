/* A terminal of so many columns, as far as a status line needs one: text that is written over, rows that are cleared,
 * and lines that are broken anew when the terminal gets another width. */
#ifndef OX_TESTS_TERMINAL_H
#define OX_TESTS_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>

enum { TERMINAL_LINES_MAX = 512, TERMINAL_CELLS_MAX = 1024, TERMINAL_TEXT_BYTES = 1 << 16 };

struct terminal {
    int master, slave; /* the two ends; the slave is what a program writes to */
    unsigned columns;
    unsigned line, cell; /* the cursor; a line takes as many rows as it has to */
    bool written;        /* the last thing was a letter: behind the last column, the cursor is still in its row */
    unsigned line_count;
    unsigned lengths[TERMINAL_LINES_MAX];
    unsigned cells[TERMINAL_LINES_MAX][TERMINAL_CELLS_MAX]; /* letters; 0: the right half of a wide one */
};

/* Opens the two ends; what cannot be done ends the test. */
void terminal_open(struct terminal *terminal, unsigned columns);
void terminal_close(struct terminal *terminal);
void terminal_resize(struct terminal *terminal, unsigned columns);
/* Takes what was written to the terminal; a sequence that a terminal of this kind does not know ends the test. */
void terminal_put(struct terminal *terminal, const char *text, size_t bytes);
/* Takes what the slave was given so far. */
void terminal_take(struct terminal *terminal);
/* Writes the rows that can be seen, each with a newline, to `text` (TERMINAL_TEXT_BYTES) and returns it. */
const char *terminal_rows(const struct terminal *terminal, char *text);

#endif
