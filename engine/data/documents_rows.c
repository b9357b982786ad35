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

/* Reads the line that begins here, which is not blank, as a row. */
static enum ox_status next_line(struct ox_documents *documents, struct ox_document *out) {
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
            emit(documents, bytes, out);
            return OX_OK;
        }
        searched = held;
        const enum ox_status status = ox_documents_fill(documents, held + 1);
        if (status != OX_OK) {
            return status;
        }
    }
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
            return next_line(documents, out);
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
