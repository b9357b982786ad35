/* Documents of text files and JSON rows, one after another in bounded memory, whatever the size of the files. */
#ifndef OX_ENGINE_DOCUMENTS_H
#define OX_ENGINE_DOCUMENTS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ox_document_format {
    OX_DOCUMENTS_TEXT, /* a file is one document, or several parted by a separator */
    OX_DOCUMENTS_ROWS, /* JSON lines, or one JSON array of rows                     */
};

struct ox_documents_config {
    enum ox_document_format format;
    const char *separator; /* of texts: bytes that part documents, which then lose (ASCII) white space at both ends;
                              empty ones are left out. With no bytes a file is a document, as it stands. Copied */
    size_t separator_bytes;
    /* A text longer than this is given in pieces, cut behind a newline that a letter follows, or before it; 0: a
     * document is always one piece. Without such a place the piece grows. */
    size_t piece_bytes;
    bool cut_before;
};

/* A piece of a document, valid until the next call; its path as long as the documents are open. */
struct ox_document {
    const char *text; /* UTF-8 as found (not checked here), not NUL-terminated; of rows: the JSON of one row */
    size_t bytes;
    bool begins, ends; /* the document */
    const char *path;
    uint64_t line;   /* of rows, where they begin, from 1; of texts 0 */
    uint64_t offset; /* of the piece in its file                      */
};

struct ox_documents;

/* `path`: a file, or a folder whose regular files are walked in name order, recursively (for rows: those that end in
 * .jsonl, .ndjson or .json). Links in a folder are left out with a warning. What is no regular file, or holds no byte
 * at all, is OX_E_CONFIG. A byte-order mark at the start of a file is stepped over. */
OX_MUST enum ox_status ox_documents_open(const char *path, const struct ox_documents_config *config,
                                         struct ox_documents **out);
void ox_documents_close(struct ox_documents **documents);
/* *found false: that was all; if there was no document at all, that is OX_E_CONFIG. A row of more than 64 MiB, or a
 * text that cannot be cut and is longer than 128 MiB, is OX_E_CONFIG naming file and line or byte. */
OX_MUST enum ox_status ox_documents_next(struct ox_documents *documents, struct ox_document *out, bool *found);
/* Of all files together. */
uint64_t ox_documents_bytes(const struct ox_documents *documents);
/* Files by name, size and times of change, as they were at open: equal when nothing was written since (ctime cannot be
 * set back). *newest is the latest change in nanoseconds since 1970: what is examined less than 2 s after it may change
 * once more without showing. */
uint64_t ox_documents_stamp(const struct ox_documents *documents, uint64_t *newest);
/* Hash of all contents, read anew. */
OX_MUST enum ox_status ox_documents_hash(const struct ox_documents *documents, uint64_t *hash);
/* The same of what ox_documents_next has read, when it has come to the end. */
uint64_t ox_documents_hash_read(const struct ox_documents *documents);
/* Whether `path` looks like rows, by the ending .jsonl, .ndjson or .json; of a folder, all its files that are not
 * hidden and no README or LICENSE. Where only some do, that is OX_E_CONFIG: the others would go unread. */
OX_MUST enum ox_status ox_documents_are_rows(const char *path, bool *rows);

#ifdef __cplusplus
}
#endif
#endif
