/* Reads the documents of text files and JSON rows one after another, in bounded memory whatever the size of the files.
 * corpus.c owns them while it makes a token cache. */
#ifndef OX_ENGINE_DOCUMENTS_H
#define OX_ENGINE_DOCUMENTS_H

#include "base/status.h"
#include "engine/data/files.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ox_document_format {
    OX_DOCUMENTS_TEXT, /* a file is one document, or several with a separator between them */
    OX_DOCUMENTS_ROWS, /* a file is JSON lines, or one JSON array of rows                  */
};

struct ox_documents_config {
    enum ox_document_format format;
    const char *separator; /* TEXT: the bytes between documents, copied. Documents then lose ASCII white space at both
                              ends, and empty ones are left out. Without bytes, a file is one document, unchanged */
    size_t separator_bytes;
    /* A text longer than this comes in pieces, cut after a newline that is followed by a letter, or with
     * cut_before_newline before the newline. A piece grows until there is such a place. 0: a document is always one
     * piece. */
    size_t piece_bytes;
    bool cut_before_newline;
};

/* A piece of a document. `text` is valid until the next call, `path` until the documents are closed. */
struct ox_document {
    const char *text; /* the bytes of the file, not checked to be UTF-8 and without a NUL; ROWS: the JSON of one row */
    size_t bytes;
    bool begins, ends; /* the piece begins the document, and ends it */
    const char *path;
    uint64_t line;   /* ROWS: the line where the row begins, from 1; TEXT: 0 */
    uint64_t offset; /* where the piece begins in its file, in bytes         */
};

struct ox_documents;

/* Opens files, which are read in their order. One that is not a regular file, or files without any byte, are
 * OX_E_CONFIG. A byte-order mark at the start of a file is skipped. */
OX_MUST enum ox_status ox_documents_open(const struct ox_files *files, const struct ox_documents_config *config,
                                         struct ox_documents **out);
void ox_documents_close(struct ox_documents **documents);
/* Reads the next piece; *found is false after the last one. After OX_E_NOMEM it may be called again.
 * No document at all is OX_E_CONFIG. So is a row of more than 64 MiB, or a text of more than 128 MiB that cannot be
 * cut; the error names file and line or byte. */
OX_MUST enum ox_status ox_documents_next(struct ox_documents *documents, struct ox_document *out, bool *found);
/* The size of all files together, and how much of it is read; compressed files count as they are. */
uint64_t ox_documents_bytes(const struct ox_documents *documents);
uint64_t ox_documents_bytes_read(const struct ox_documents *documents);
/* A hash of the files' names, sizes, inodes and times of change at open. Two equal stamps mean that nothing was written
 * in between, because ctime cannot be set back. *newest is the latest change in nanoseconds since 1970: a file examined
 * less than 2 s after it may change again within the same clock tick, unnoticed. */
uint64_t ox_documents_stamp(const struct ox_documents *documents, uint64_t *newest);
/* Reads all files again and hashes their contents. */
OX_MUST enum ox_status ox_documents_hash(const struct ox_documents *documents, uint64_t *hash);
/* The hash of the contents as ox_documents_next read them; call it after the last piece. */
uint64_t ox_documents_hash_read(const struct ox_documents *documents);
#ifdef __cplusplus
}
#endif
#endif
