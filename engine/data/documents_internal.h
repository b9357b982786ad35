/* The files of documents and the buffer of the open one. documents.c owns them; documents_text.c and documents_rows.c
 * take documents from the buffer. */
#ifndef OX_ENGINE_DOCUMENTS_INTERNAL_H
#define OX_ENGINE_DOCUMENTS_INTERNAL_H

#include "engine/data/documents.h"
#include "engine/data/unpack.h"

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
    OX_ROWS_START,     /* at the start of a file          */
    OX_ROWS_LINES,     /* in a file with one row per line */
    OX_ROWS_FIRST,     /* after the [ of an array         */
    OX_ROWS_AFTER_ROW, /* after a row of the array        */
    OX_ROWS_AFTER_COMMA, /* after the comma behind a row    */
    OX_ROWS_CLOSED,    /* after the ] of the array        */
};

struct ox_documents {
    struct ox_documents_config config;
    char *separator;
    size_t root_bytes; /* length of the part of the paths that is the folder */
    struct ox_documents_file *files;
    uint32_t file_count;
    uint64_t bytes;
    /* The open file; fd is -1 when file_idx is the next file to open. */
    uint32_t file_idx;
    int fd;
    struct ox_unpacker *unpacker; /* of the open file */
    size_t block_bytes; /* how much is read at a time: OX_DOCUMENTS_READ_BYTES, or less of a small file */
    bool is_at_end;     /* the file's last bytes are in the buffer */
    uint64_t file_hash, file_read_bytes;
    char *buffer; /* bytes [begin, end) are read but not yet used */
    size_t begin, end, capacity;
    uint64_t offset; /* bytes of the file before buffer[begin] */
    bool in_document;
    enum ox_rows_place place;
    uint64_t line;
    uint64_t hash; /* hash of the files read so far */
    bool any;      /* a document was found */
};

/* Reads until `wanted` bytes are in the buffer or the file ends. */
OX_MUST enum ox_status ox_documents_fill(struct ox_documents *documents, size_t wanted);
/* Drops the first `bytes` of the buffer. */
void ox_documents_skip(struct ox_documents *documents, size_t bytes);
/* Find the next piece of the open file; *found is false at the end of the file. */
OX_MUST enum ox_status ox_documents_next_text(struct ox_documents *documents, struct ox_document *out, bool *found);
OX_MUST enum ox_status ox_documents_next_row(struct ox_documents *documents, struct ox_document *out, bool *found);

static inline bool ox_is_blank(char character) {
    return character == ' ' || (character >= '\t' && character <= '\r');
}

#ifdef __cplusplus
}
#endif
#endif
