#include "tests/kit/terminal.h"

#include "tests/kit/test.h"

#include <fcntl.h>
#include <pty.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utf8proc.h>

static void give_up(const char *what) {
    printf("terminal: %s\n", what);
    exit(1);
}

void terminal_open(struct terminal *terminal, unsigned columns) {
    struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)columns};
    memset(terminal, 0, sizeof *terminal);
    terminal->columns = columns;
    terminal->line_count = 1;
    if (openpty(&terminal->master, &terminal->slave, NULL, NULL, &size) != 0 ||
        fcntl(terminal->master, F_SETFD, FD_CLOEXEC) != 0 || fcntl(terminal->slave, F_SETFD, FD_CLOEXEC) != 0) {
        give_up("cannot be opened");
    }
}

void terminal_close(struct terminal *terminal) {
    close(terminal->master);
    if (terminal->slave >= 0) {
        close(terminal->slave);
    }
}

void terminal_resize(struct terminal *terminal, unsigned columns) {
    const struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)columns};
    if (ioctl(terminal->master, TIOCSWINSZ, &size) != 0) {
        give_up("cannot be resized");
    }
    terminal->columns = columns;
}

static unsigned row_count(const struct terminal *t, unsigned line) {
    return t->lengths[line] == 0 ? 1 : (t->lengths[line] + t->columns - 1) / t->columns;
}

static unsigned row_of(const struct terminal *t) {
    return t->written && t->cell > 0 && t->cell % t->columns == 0 ? t->cell / t->columns - 1 : t->cell / t->columns;
}

static void put_letter(struct terminal *t, unsigned letter) {
    const unsigned width = (unsigned)utf8proc_charwidth((utf8proc_int32_t)letter);
    if (t->cell + width > TERMINAL_CELLS_MAX) {
        give_up("a line is too long");
    }
    for (unsigned i = 0; i < width; i++) {
        t->cells[t->line][t->cell++] = i == 0 ? letter : 0;
    }
    t->lengths[t->line] = t->cell > t->lengths[t->line] ? t->cell : t->lengths[t->line];
}

static void next_line(struct terminal *t) {
    if (++t->line == TERMINAL_LINES_MAX) {
        give_up("too many lines");
    }
    t->line_count = t->line >= t->line_count ? t->line + 1 : t->line_count;
    t->cell = 0;
}

static void up(struct terminal *t, unsigned rows) {
    unsigned row = row_of(t);
    for (; rows > 0; rows--) {
        if (row > 0) {
            row--;
        } else if (t->line > 0) {
            row = row_count(t, --t->line) - 1;
        }
    }
    t->cell = row * t->columns; /* the sequence comes behind \r */
}

static void clear_from(struct terminal *t, bool lines_too) {
    t->lengths[t->line] = t->cell < t->lengths[t->line] ? t->cell : t->lengths[t->line];
    t->line_count = lines_too ? t->line + 1 : t->line_count;
    for (unsigned i = t->line + 1; lines_too && i < TERMINAL_LINES_MAX; i++) {
        t->lengths[i] = 0;
    }
}

/* Does what the sequence asks for; returns its bytes. */
static size_t sequence(struct terminal *t, const char *text, size_t bytes) {
    unsigned number = 0;
    size_t at = 2;
    if (bytes < 3 || text[1] != '[') {
        give_up("a sequence that is not known");
    }
    for (; at < bytes && text[at] >= '0' && text[at] <= '9'; at++) {
        number = 10 * number + (unsigned)(text[at] - '0');
    }
    switch (at < bytes ? text[at] : '\0') {
    case 'A':
        up(t, number > 0 ? number : 1);
        break;
    case 'J':
        clear_from(t, true);
        break;
    case 'K':
        clear_from(t, false);
        break;
    default:
        give_up("a sequence that is not known");
    }
    return at + 1;
}

void terminal_put(struct terminal *terminal, const char *text, size_t bytes) {
    for (size_t at = 0; at < bytes;) {
        utf8proc_int32_t letter = 0;
        const utf8proc_ssize_t taken =
            utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(bytes - at), &letter);
        const bool writes = (unsigned char)text[at] >= 0x20;
        if (text[at] == '\033') {
            at += sequence(terminal, text + at, bytes - at);
            terminal->written = false;
            continue;
        }
        if (text[at] == '\r') {
            terminal->cell = row_of(terminal) * terminal->columns;
        } else if (text[at] == '\n') {
            next_line(terminal);
        } else {
            put_letter(terminal, taken > 0 ? (unsigned)letter : '?');
        }
        terminal->written = writes;
        at += taken > 0 ? (size_t)taken : 1;
    }
}

/* A bell tells where what was written ends: the kernel hands it over on a thread of its own. */
void terminal_take(struct terminal *terminal) {
    static char text[TERMINAL_TEXT_BYTES];
    bool rung = write(terminal->slave, "\a", 1) != 1;
    while (!rung) {
        const ssize_t got = read(terminal->master, text, sizeof text);
        rung = got <= 0 || text[got - 1] == '\a';
        terminal_put(terminal, text, got > 0 ? (size_t)(got - (text[got - 1] == '\a')) : 0);
    }
}

const char *terminal_rows(const struct terminal *terminal, char *text) {
    size_t used = 0;
    for (unsigned line = 0; line < terminal->line_count; line++) {
        for (unsigned i = 0; i < terminal->lengths[line] && used + 8 < TERMINAL_TEXT_BYTES; i++) {
            const utf8proc_int32_t letter = (utf8proc_int32_t)terminal->cells[line][i];
            if (i > 0 && i % terminal->columns == 0) {
                text[used++] = '\n';
            }
            if (letter != 0) {
                used += (size_t)utf8proc_encode_char(letter, (utf8proc_uint8_t *)text + used);
            }
        }
        text[used++] = '\n';
    }
    text[used] = '\0';
    return text;
}
