/* What the two readers of documents share: the files, and the bytes of the one that is being read. */
#ifndef OX_ENGINE_DOCUMENTS_INTERNAL_H
#define OX_ENGINE_DOCUMENTS_INTERNAL_H

#include "engine/data/documents.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_DOCUMENTS_READ_BYTES = 1 << 20, OX_DOCUMENTS_ROW_BYTES_MAX = 64 << 20 };

struct ox_documents_file {
    char *path;
    uint64_t bytes;
    uint64_t inode, modified_ns, changed_ns;
};

enum ox_rows_place {
    OX_ROWS_START,  /* of a file                                */
    OX_ROWS_LINES,  /* it has rows by line                      */
    OX_ROWS_FIRST,  /* behind the [ of an array                 */
    OX_ROWS_BEHIND, /* behind a row of the array                */
    OX_ROWS_CLOSED, /* behind the ]                             */
};

struct ox_documents {
    struct ox_documents_config config;
    char *separator;
    size_t root_bytes; /* of the paths, before the names in the folder */
    struct ox_documents_file *files;
    uint32_t file_count;
    uint64_t bytes;
    /* The file that is open; fd -1: the next one is to be opened. */
    uint32_t file_idx;
    int fd;
    bool is_at_end; /* the buffer holds its last bytes */
    uint64_t file_hash, file_read_bytes;
    char *buffer; /* [begin, end) is not used up yet */
    size_t begin, end, capacity;
    uint64_t offset; /* of `begin` in the file */
    bool in_document;
    enum ox_rows_place place;
    uint64_t line;
    uint64_t hash; /* of the files read */
    bool any;
};

/* Reads on until `wanted` bytes are in the buffer or the file ends. */
OX_MUST enum ox_status ox_documents_fill(struct ox_documents *documents, size_t wanted);
/* Steps over bytes of the buffer. */
void ox_documents_skip(struct ox_documents *documents, size_t bytes);
/* The next piece of the open file; *found false: none, and the file is used up. */
OX_MUST enum ox_status ox_documents_next_text(struct ox_documents *documents, struct ox_document *out, bool *found);
OX_MUST enum ox_status ox_documents_next_row(struct ox_documents *documents, struct ox_document *out, bool *found);

static inline bool ox_is_blank(char character) {
    return character == ' ' || (character >= '\t' && character <= '\r');
}

#ifdef __cplusplus
}
#endif
#endif
