/* Finds where one document of a text ends and the next begins, and where a long one can be cut. */
#include "engine/data/documents_internal.h"
#include "engine/text/text.h"

#include <inttypes.h>
#include <string.h>

enum { CHARACTER_BYTES = 4 };

/* The longest piece of text, because tokenizing needs up to about forty bytes of memory per byte. */
static const size_t text_bytes_max = (size_t)128 << 20;

/* What is known about the document at the begin of the buffer. */
struct extent {
    size_t bytes;    /* its bytes in the buffer, as far as no separator can begin in them */
    bool is_whole;   /* the document ends after `bytes` */
    size_t searched; /* there is no cut before this offset */
};

/* Whether a letter follows the newline, with all its bytes inside the text. */
static bool letter_follows(const char *text, size_t bytes, size_t newline) {
    size_t at = newline + 1;
    size_t length = bytes - at < CHARACTER_BYTES ? bytes - at : CHARACTER_BYTES;
    length = ox_utf8_valid(text + at, length); /* whole characters */
    return length > 0 && ox_unicode_is_letter(ox_utf8_next(text, &at));
}

/* Finds the last cut up to `wanted`, else the first one after it; 0 for none. */
static size_t find_cut(const char *text, struct extent *extent, size_t wanted, bool before) {
    if (extent->searched == 0) {
        extent->searched = wanted + before;
        for (size_t end = extent->searched; end > 0;) {
            const char *const newline = memrchr(text, '\n', end);
            if (newline == NULL) {
                break;
            }
            end = (size_t)(newline - text);
            if (letter_follows(text, extent->bytes, end) && end + !before > 0) {
                return end + !before;
            }
        }
    }
    for (size_t from = extent->searched; from < extent->bytes; from++) {
        const char *const newline = memchr(text + from, '\n', extent->bytes - from);
        if (newline == NULL) {
            break;
        }
        from = (size_t)(newline - text);
        if (letter_follows(text, extent->bytes, from)) {
            return from + !before;
        }
    }
    /* A newline this near the end may still become a cut, when its letter has been read. */
    if (extent->bytes > extent->searched + CHARACTER_BYTES + 1) {
        extent->searched = extent->bytes - CHARACTER_BYTES - 1;
    }
    return 0;
}

/* Looks for the end of the document in what the buffer holds. */
static void find_end(const struct ox_documents *documents, struct extent *extent) {
    const char *const text = documents->buffer + documents->begin;
    const size_t held = documents->end - documents->begin;
    const size_t separator_bytes = documents->config.separator_bytes;
    if (separator_bytes > 0) {
        const char *const found =
            memmem(text + extent->bytes, held - extent->bytes, documents->separator, separator_bytes);
        if (found != NULL) {
            extent->bytes = (size_t)(found - text);
            extent->is_whole = true;
            return;
        }
    }
    const size_t open = separator_bytes > 0 && !documents->is_at_end ? separator_bytes - 1 : 0;
    extent->bytes = held > extent->bytes + open ? held - open : extent->bytes;
    extent->is_whole = documents->is_at_end;
}

/* Makes the first `bytes` of the buffer the next piece. */
static void emit(struct ox_documents *documents, size_t bytes, bool ends, struct ox_document *out) {
    *out = (struct ox_document){.text = documents->buffer + documents->begin,
                                .bytes = bytes,
                                .begins = !documents->in_document,
                                .ends = ends,
                                .offset = documents->offset};
    documents->in_document = !ends;
}

/* Makes the rest of the document the next piece, unless it is empty, and skips the separator after it. */
static void emit_rest(struct ox_documents *documents, const struct extent *extent, struct ox_document *out,
                      bool *found) {
    const char *const text = documents->buffer + documents->begin;
    size_t bytes = extent->bytes;
    while (documents->config.separator_bytes > 0 && bytes > 0 && ox_is_blank(text[bytes - 1])) {
        bytes--;
    }
    *found = bytes > 0;
    if (bytes > 0) {
        emit(documents, bytes, true, out);
    }
    const bool has_separator = documents->end - documents->begin > extent->bytes;
    ox_documents_skip(documents, extent->bytes + (has_separator ? documents->config.separator_bytes : 0));
}

static enum ox_status fail_long(const struct ox_documents *documents) {
    return ox_fail(
        OX_E_CONFIG,
        "%s: the text at byte %" PRIu64 " has more than %zu MiB in one piece (no line in it begins with a "
        "letter, or the tokenizer does not allow cuts); give a --document-separator, or divide the file",
        documents->files[documents->file_idx].path, documents->offset, text_bytes_max >> 20);
}

/* Reads the next piece of the document that begins or continues here; *found is false if it is empty. */
static enum ox_status next_piece(struct ox_documents *documents, struct ox_document *out, bool *found) {
    const size_t wanted = documents->config.piece_bytes;
    struct extent extent = {0};
    size_t needed = wanted > 0 ? wanted + documents->config.separator_bytes + 2 * CHARACTER_BYTES : 1;
    for (;;) {
        const enum ox_status status = ox_documents_fill(documents, needed);
        if (status != OX_OK) {
            return status;
        }
        find_end(documents, &extent);
        while (documents->config.separator_bytes > 0 && !documents->in_document && extent.bytes > 0 &&
               ox_is_blank(documents->buffer[documents->begin])) {
            ox_documents_skip(documents, 1);
            extent.bytes--;
        }
        if (wanted > 0 && extent.bytes > wanted + (extent.is_whole ? 0 : CHARACTER_BYTES + 1)) {
            const size_t cut =
                find_cut(documents->buffer + documents->begin, &extent, wanted, documents->config.cut_before_newline);
            if (cut > 0) {
                emit(documents, cut, false, out);
                ox_documents_skip(documents, cut);
                *found = true;
                return OX_OK;
            }
        }
        if (extent.bytes > text_bytes_max) {
            return fail_long(documents);
        }
        if (extent.is_whole) {
            emit_rest(documents, &extent, out, found);
            return OX_OK;
        }
        needed = documents->end - documents->begin + 1;
    }
}

enum ox_status ox_documents_next_text(struct ox_documents *documents, struct ox_document *out, bool *found) {
    enum ox_status status = OX_OK;
    *found = false;
    while (status == OX_OK && !*found) {
        status = ox_documents_fill(documents, 1);
        if (status != OX_OK || documents->begin == documents->end) {
            return status;
        }
        status = next_piece(documents, out, found);
    }
    return status;
}
