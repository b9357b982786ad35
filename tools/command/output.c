/* How subcommands print results. */
#include "tools/command/cmd.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum ox_status ox_print_json(FILE *out, json_t *json, size_t flags, const char *what) {
    const int written = json == NULL ? -1 : json_dumpf(json, out, flags);
    json_decref(json);
    fputc('\n', out);
    return written < 0 || ferror(out) ? ox_fail(OX_E_IO, "%s could not be written", what) : OX_OK;
}

/* Writes a line in parts of at most `columns`; a longer word has a part of its own. */
static void put_wrapped(FILE *out, const char *line, size_t bytes, size_t columns) {
    enum { HANGING = 4 };
    const size_t indent = strspn(line, " ");
    size_t room = columns, lead = 0;
    while (bytes > room) {
        size_t at = room;
        while (at > 0 && line[at] != ' ') {
            at--;
        }
        if (at <= indent) {
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

const char *ox_duration_text(double seconds, char *text) {
    const uint64_t whole = seconds > 0 ? (uint64_t)(seconds + 0.5) : 0;
    if (whole >= 3600) {
        snprintf(text, OX_DURATION_TEXT_BYTES, "%" PRIu64 "h%02" PRIu64 "m", whole / 3600, whole / 60 % 60);
    } else if (whole >= 60) {
        snprintf(text, OX_DURATION_TEXT_BYTES, "%" PRIu64 "m%02" PRIu64 "s", whole / 60, whole % 60);
    } else {
        snprintf(text, OX_DURATION_TEXT_BYTES, "%" PRIu64 "s", whole);
    }
    return text;
}
