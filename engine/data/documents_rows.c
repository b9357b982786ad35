/* Finds the bytes of one row after another, in JSON lines or in one long array. It does not parse the rows. */
#include "engine/data/documents_internal.h"

#include <inttypes.h>
#include <string.h>

/* The state of a scan over the bytes of a JSON value. It can pause anywhere, when the buffer ends. */
struct scan {
    size_t at; /* offset from the begin of the buffer */
    uint64_t depth, line_count;
    bool in_text, escaped;
};

static enum ox_status fail_at(const struct ox_documents *documents, uint64_t line, const char *what) {
    return ox_fail(OX_E_CONFIG, "%s:%" PRIu64 ": %s", documents->files[documents->file_idx].path, line, what);
}

static enum ox_status fail_long(const struct ox_documents *documents) {
    return ox_fail(OX_E_CONFIG, "%s:%" PRIu64 ": the row has more than %d MiB; divide it",
                   documents->files[documents->file_idx].path, documents->line, OX_DOCUMENTS_ROW_BYTES_MAX >> 20);
}

/* Skips white space; *is_end tells whether the file ends there. */
static enum ox_status skip_blanks(struct ox_documents *documents, bool *is_end) {
    for (;;) {
        while (documents->begin < documents->end && ox_is_blank(documents->buffer[documents->begin])) {
            documents->line += documents->buffer[documents->begin] == '\n';
            ox_documents_skip(documents, 1);
        }
        *is_end = documents->begin == documents->end && documents->is_at_end;
        if (documents->begin < documents->end || documents->is_at_end) {
            return OX_OK;
        }
        const enum ox_status status = ox_documents_fill(documents, 1);
        if (status != OX_OK) {
            return status;
        }
    }
}

/* Makes the first `bytes` of the buffer, without white space at their end, the next row. */
static void emit(struct ox_documents *documents, size_t bytes, struct ox_document *out) {
    const char *const text = documents->buffer + documents->begin;
    size_t length = bytes;
    while (length > 0 && ox_is_blank(text[length - 1])) {
        length--;
    }
    *out = (struct ox_document){.text = text,
                                .bytes = length,
                                .begins = true,
                                .ends = true,
                                .line = documents->line,
                                .offset = documents->offset};
    ox_documents_skip(documents, bytes);
}

/* Scans up to the comma or bracket after the value, or to the end of the buffer; true if the value has ended. */
static bool scan_value(const char *text, size_t bytes, struct scan *scan) {
    for (; scan->at < bytes; scan->at++) {
        const char character = text[scan->at];
        scan->line_count += character == '\n';
        if (scan->in_text) {
            scan->in_text = scan->escaped || character != '"';
            scan->escaped = !scan->escaped && character == '\\';
            continue;
        }
        switch (character) {
        case '"':
            scan->in_text = true;
            break;
        case '{':
        case '[':
            scan->depth++;
            break;
        case '}':
        case ']':
            if (scan->depth == 0) {
                return true;
            }
            scan->depth--;
            break;
        case ',':
            if (scan->depth == 0) {
                return true;
            }
            break;
        default:
            break;
        }
    }
    return false;
}

/* Whether a value that begins in a line of `bytes` does not end in it; *scan is where the line ends. */
static bool is_open(const char *text, size_t bytes, struct scan *scan) {
    return !scan_value(text, bytes, scan) && scan->depth > 0 && !scan->in_text;
}

/* Whether a value that is open where its first line ends closes with one of the next lines. */
static bool closes(const char *text, size_t held, struct scan *scan) {
    for (size_t end = scan->at; end < held;) {
        const char *const newline = memchr(text + end + 1, '\n', held - end - 1);
        end = newline != NULL ? (size_t)(newline - text) : held;
        if (scan_value(text, end, scan) || (scan->depth == 0 && !scan->in_text)) {
            return true;
        }
    }
    return false;
}

/* Refuses a row that is written over several lines, as other programs print JSON for people. In a first line it is
 * looked for with care, in the others only where a line does not end like a row. */
static enum ox_status check_whole(struct ox_documents *documents, size_t bytes, bool is_first) {
    const char *const path = documents->files[documents->file_idx].path;
    const char *const text = documents->buffer + documents->begin;
    struct scan scan = {0};
    size_t end = bytes;
    while (end > 0 && ox_is_blank(text[end - 1])) {
        end--;
    }
    if ((!is_first && end > 0 && text[end - 1] == '}') || !is_open(text, bytes, &scan)) {
        return OX_OK;
    }
    const enum ox_status status = ox_documents_fill(documents, bytes + OX_DOCUMENTS_READ_BYTES);
    if (status != OX_OK || !closes(documents->buffer + documents->begin, documents->end - documents->begin, &scan)) {
        return status;
    }
    return ox_fail(OX_E_CONFIG,
                   "%s:%" PRIu64 ": the row goes on over several lines, but each line must be a row of its own; make "
                   "it so with: jq -c . '%s' >compact.jsonl", path, documents->line, path);
}

/* Reads the line that begins here, which is not blank, as a row. */
static enum ox_status next_line(struct ox_documents *documents, bool is_first, struct ox_document *out) {
    size_t searched = 0;
    for (;;) {
        const char *const text = documents->buffer + documents->begin;
        const size_t held = documents->end - documents->begin;
        const char *const newline = memchr(text + searched, '\n', held - searched);
        const size_t bytes = newline != NULL ? (size_t)(newline - text) : held;
        if (bytes > OX_DOCUMENTS_ROW_BYTES_MAX) {
            return fail_long(documents);
        }
        if (newline != NULL || documents->is_at_end) {
            const enum ox_status whole = check_whole(documents, bytes, is_first);
            if (whole == OX_OK) {
                emit(documents, bytes, out);
            }
            return whole;
        }
        searched = held;
        const enum ox_status status = ox_documents_fill(documents, held + 1);
        if (status != OX_OK) {
            return status;
        }
    }
}

/* Reads the row of the array that begins here. */
static enum ox_status next_element(struct ox_documents *documents, struct ox_document *out) {
    struct scan scan = {0};
    while (!scan_value(documents->buffer + documents->begin, documents->end - documents->begin, &scan)) {
        if (scan.at > OX_DOCUMENTS_ROW_BYTES_MAX) {
            return fail_long(documents);
        }
        if (documents->is_at_end) {
            return fail_at(documents, documents->line, "the array of rows does not end: a ] is missing");
        }
        const enum ox_status status = ox_documents_fill(documents, scan.at + 1);
        if (status != OX_OK) {
            return status;
        }
    }
    if (scan.at == 0) {
        return fail_at(documents, documents->line, "a row of the array is missing");
    }
    if (scan.at > OX_DOCUMENTS_ROW_BYTES_MAX) {
        return fail_long(documents);
    }
    emit(documents, scan.at, out);
    documents->line += scan.line_count;
    documents->place = OX_ROWS_AFTER_ROW;
    return OX_OK;
}

/* Reads what is between two rows of an array; *found tells whether a row begins here. */
static enum ox_status step_in_array(struct ox_documents *documents, bool is_end, bool *found) {
    const char next = is_end ? '\0' : documents->buffer[documents->begin];
    if (documents->place == OX_ROWS_AFTER_COMMA) {
        *found = !is_end;
        return is_end ? fail_at(documents, documents->line, "the array of rows does not end: a ] is missing") : OX_OK;
    }
    if (documents->place == OX_ROWS_CLOSED) {
        return is_end ? OX_OK : fail_at(documents, documents->line, "there is text after the ] of the array of rows");
    }
    if (next == ']') {
        ox_documents_skip(documents, 1);
        documents->place = OX_ROWS_CLOSED;
        return OX_OK;
    }
    if (documents->place == OX_ROWS_AFTER_ROW) {
        if (next != ',') {
            return fail_at(documents, documents->line, "a comma or ] is missing after a row of the array");
        }
        ox_documents_skip(documents, 1);
        documents->place = OX_ROWS_AFTER_COMMA;
        return OX_OK;
    }
    *found = true;
    return OX_OK;
}

enum ox_status ox_documents_next_row(struct ox_documents *documents, struct ox_document *out, bool *found) {
    const bool is_first = documents->place == OX_ROWS_START;
    *found = false;
    for (;;) {
        bool is_end = false;
        enum ox_status status = skip_blanks(documents, &is_end);
        if (status != OX_OK) {
            return status;
        }
        if (is_end && (documents->place == OX_ROWS_START || documents->place == OX_ROWS_LINES ||
                       documents->place == OX_ROWS_CLOSED)) {
            return OX_OK;
        }
        if (documents->place == OX_ROWS_START) {
            const bool is_array = documents->buffer[documents->begin] == '[';
            documents->place = is_array ? OX_ROWS_FIRST : OX_ROWS_LINES;
            if (is_array) {
                ox_documents_skip(documents, 1);
                continue;
            }
        }
        if (documents->place == OX_ROWS_LINES) {
            *found = true;
            return next_line(documents, is_first, out);
        }
        status = step_in_array(documents, is_end, found);
        if (status != OX_OK) {
            return status;
        }
        if (*found) {
            return next_element(documents, out);
        }
    }
}
