#include "tools/start/status_line.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utf8proc.h>

enum { LINE_BYTES = OX_STATUS_PARTS_MAX * (OX_STATUS_PART_BYTES + 3) + 1, COLUMNS_USUAL = 80, ECHO_COLUMNS = 2 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct ox_status_line shown; /* no part: nothing is shown */
static unsigned shown_columns;

static const char separator[] = " | ";

/* ---- text in columns -------------------------------------------------------------------------------- */

/* The columns of a text; *cut is the number of its bytes that fit into `most` of them. */
static unsigned columns_of(const char *text, unsigned most, size_t *cut) {
    unsigned columns = 0;
    *cut = 0;
    for (size_t at = 0; text[at] != '\0';) {
        utf8proc_int32_t letter = 0;
        const utf8proc_ssize_t bytes = utf8proc_iterate((const utf8proc_uint8_t *)text + at, -1, &letter);
        columns += bytes > 0 ? (unsigned)utf8proc_charwidth(letter) : 1;
        at += bytes > 0 ? (size_t)bytes : 1;
        if (columns <= most) {
            *cut = at;
        }
    }
    return columns;
}

static unsigned terminal_columns(void) {
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : COLUMNS_USUAL;
}

static void join(const struct ox_status_line *line, unsigned drop_from, char text[LINE_BYTES]) {
    size_t used = 0;
    text[0] = '\0';
    for (unsigned i = 0; i < line->count; i++) {
        if (line->parts[i].drop < drop_from) {
            used += (size_t)snprintf(text + used, LINE_BYTES - used, "%s%s", used > 0 ? separator : "",
                                     line->parts[i].text);
        }
    }
}

/* Writes what fits into `most` columns; returns how many it takes. */
static unsigned fit(const struct ox_status_line *line, unsigned most, char text[LINE_BYTES]) {
    unsigned lowest = ~0u, from = 0, columns = 0;
    size_t cut = 0;
    for (unsigned i = 0; i < line->count; i++) {
        from = line->parts[i].drop >= from ? line->parts[i].drop + 1 : from;
        lowest = line->parts[i].drop < lowest ? line->parts[i].drop : lowest;
    }
    for (; from > lowest; from--) {
        join(line, from, text);
        columns = columns_of(text, most, &cut);
        if (columns <= most || from == lowest + 1) {
            break;
        }
    }
    text[columns > most ? cut : strlen(text)] = '\0';
    return columns_of(text, most, &cut);
}

/* ---- the terminal ----------------------------------------------------------------------------------- */

/* Goes to the first column of what is shown, and clears it. A terminal that became narrower has broken it into several
 * rows. */
static void erase(unsigned columns) {
    if (shown_columns > columns) {
        fprintf(stderr, "\r\033[%uA\033[J", (shown_columns - 1) / columns);
    } else if (shown.count > 0) {
        fputs("\r\033[K", stderr);
    }
    shown_columns = 0;
}

/* Two columns stay free, because a terminal shows ^C there. */
static void draw(unsigned columns) {
    char text[LINE_BYTES];
    if (shown.count > 0) {
        shown_columns = fit(&shown, columns > ECHO_COLUMNS ? columns - ECHO_COLUMNS : 0, text);
        fputs(text, stderr);
    }
}

/* ---- texts ------------------------------------------------------------------------------------------ */

/* Writes a line in parts of at most `columns`; a longer word ends a longer part. */
static void put_wrapped(FILE *out, const char *line, size_t bytes, size_t columns) {
    enum { HANGING = 4 };
    const size_t indent = strspn(line, " ");
    size_t room = columns, lead = 0;
    while (bytes > room) {
        size_t at = room;
        while (at > 0 && line[at] != ' ') {
            at--;
        }
        const size_t word = strcspn(line + at + 1, " \n");
        if (at > indent && word > columns - indent - HANGING && columns > indent + HANGING) {
            at += 1 + word; /* it fits nowhere, so it stays with what it belongs to */
        } else if (at <= indent) {
            at = room + strcspn(line + room, " \n");
        }
        if (at >= bytes) {
            break;
        }
        fprintf(out, "%*s%.*s\n", (int)lead, "", (int)at, line);
        line += at + 1;
        bytes -= at + 1;
        lead = indent + HANGING;
        room = columns > lead + HANGING ? columns - lead : columns;
    }
    fprintf(out, "%*s%.*s", (int)lead, "", (int)bytes, line);
}

char *ox_wrap(const char *text, int fd) {
    struct winsize size;
    char *wrapped = NULL;
    size_t bytes = 0;
    const bool is_terminal = isatty(fd) == 1 && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    FILE *const out = is_terminal ? open_memstream(&wrapped, &bytes) : NULL;
    if (out == NULL) {
        return is_terminal ? NULL : strdup(text);
    }
    for (const char *line = text; *line != '\0';) {
        const size_t length = strcspn(line, "\n");
        put_wrapped(out, line, length, size.ws_col);
        line += length;
        if (*line == '\n') {
            fputc(*line++, out);
        }
    }
    if (fclose(out) != 0) {
        free(wrapped);
        wrapped = NULL;
    }
    return wrapped;
}

/* ---- public ----------------------------------------------------------------------------------------- */

void ox_status_add(struct ox_status_line *line, unsigned drop, const char *format, ...) {
    if (line->count == OX_STATUS_PARTS_MAX) {
        return;
    }
    struct ox_status_part *const part = &line->parts[line->count];
    va_list args;
    va_start(args, format);
    vsnprintf(part->text, sizeof part->text, format, args);
    va_end(args);
    for (char *at = part->text; *at != '\0'; at++) {
        *at = (unsigned char)*at < 0x20 ? ' ' : *at;
    }
    part->drop = drop;
    line->count += part->text[0] != '\0';
}

bool ox_status_is_live(void) {
    const char *const kind = getenv("TERM");
    return isatty(STDERR_FILENO) == 1 && kind != NULL && strcmp(kind, "dumb") != 0;
}

void ox_status_show(const struct ox_status_line *line) {
    char text[LINE_BYTES];
    pthread_mutex_lock(&mutex);
    if (ox_status_is_live()) {
        const unsigned columns = terminal_columns();
        erase(columns);
        shown = *line;
        draw(columns);
    } else {
        join(line, ~0u, text);
        fprintf(stderr, "%s\n", text);
    }
    pthread_mutex_unlock(&mutex);
}

void ox_status_log(const struct ox_status_line *line) {
    ox_status_show(line);
    ox_status_keep();
}

void ox_status_say(const char *format, ...) {
    char *text = NULL;
    va_list args;
    va_start(args, format);
    const bool made = vasprintf(&text, format, args) >= 0;
    va_end(args);
    char *const wrapped = made && ox_status_is_live() ? ox_wrap(text, STDERR_FILENO) : NULL;
    fflush(stdout); /* in one file with standard error, what was printed before stands before */
    pthread_mutex_lock(&mutex);
    const unsigned columns = shown.count > 0 ? terminal_columns() : COLUMNS_USUAL;
    erase(columns);
    fputs(wrapped != NULL ? wrapped : made ? text : format, stderr);
    draw(columns);
    pthread_mutex_unlock(&mutex);
    free(wrapped);
    free(made ? text : NULL);
}

void ox_status_clear(void) {
    pthread_mutex_lock(&mutex);
    erase(shown.count > 0 ? terminal_columns() : COLUMNS_USUAL);
    shown.count = 0;
    pthread_mutex_unlock(&mutex);
}

void ox_status_keep(void) {
    pthread_mutex_lock(&mutex);
    if (shown.count > 0) {
        const unsigned columns = terminal_columns();
        erase(columns);
        draw(columns);
        fputs("\n", stderr);
    }
    shown.count = 0;
    shown_columns = 0;
    pthread_mutex_unlock(&mutex);
}
