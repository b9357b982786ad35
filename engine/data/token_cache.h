/* The token cache: one file with a text's tokens, loss mask and document borders, so that a text is tokenized once.
 * corpus.c writes it and data.c reads it; docs/token-cache.md describes it. Every block has a checksum, so that the
 * model never trains on bytes that the disk has changed.
 *
 *     blocks of OX_CACHE_BLOCK_BYTES:  u64 XXH3 of the rest, seeded by (file's salt, block index); then the payload
 *     block 0            magic "OXTOKENS", struct ox_cache_header's fields, u64 salt; zeros
 *     token blocks       u32 per token: id | trained << 31 | begins << 30
 *     document blocks    u64 per document: its first token
 *
 * All integers are little-endian. A file is written under a temporary name in its folder, synced and renamed. */
#ifndef OX_ENGINE_TOKEN_CACHE_H
#define OX_ENGINE_TOKEN_CACHE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    OX_CACHE_VERSION = 1,
    OX_CACHE_BLOCK_BYTES = 16384,
    OX_CACHE_TOKENS_PER_BLOCK = (OX_CACHE_BLOCK_BYTES - 8) / 4,
    OX_CACHE_DOCUMENTS_PER_BLOCK = (OX_CACHE_BLOCK_BYTES - 8) / 8,
    OX_CACHE_TRAINED_BIT = 31, /* in a token's word */
    OX_CACHE_BEGINS_BIT = 30,  /* in a token's word */
    OX_CACHE_MAGIC_OFFSET = 8, /* in the file */
    OX_CACHE_PAIRS = 4,        /* in is_chat */
};
#define OX_CACHE_MAGIC "OXTOKENS" /* 8 bytes, without the NUL */

struct ox_cache_header {
    uint32_t version;
    uint32_t untrained_count; /* rows that were left out, because none of their tokens may be a target   */
    uint64_t token_count, document_count, trained_count;
    uint64_t key[2];      /* hashes of how it was made and from which contents; the opener compares them */
    uint64_t source_bytes;
    uint64_t longest;     /* tokens of the longest document                                              */
    uint32_t vocab;       /* the largest id + 1                                                          */
    uint16_t is_chat;     /* 1: prompts with completions or ids with masks, 2: conversations; 0: neither; plus
                             OX_CACHE_PAIRS: documents 2 k and 2 k + 1 are a preference                      */
    uint16_t bad_count;   /* rows that were left out, because they cannot be used                        */
};

/* ---- writing ---------------------------------------------------------------------------------------------------- */

struct ox_cache_writer;

/* Starts a cache that gets the name `path` at commit. With path NULL it is an unnamed file in `folder`, gone when its
 * last descriptor is closed. The table of documents is kept on disk too, so memory does not grow with the text. */
OX_MUST enum ox_status ox_cache_create(const char *path, const char *folder, struct ox_cache_writer **out);
/* Adds `count` tokens to the current document, or with `begins` to a new one. A document without tokens is left out.
 * trained[count] is 1 or 0 for each token; NULL means that all are trained. */
OX_MUST enum ox_status ox_cache_add(struct ox_cache_writer *writer, bool begins, const int32_t *ids,
                                    const uint8_t *trained, size_t count);
/* The number of tokens added so far. */
uint64_t ox_cache_token_count(const struct ox_cache_writer *writer);
/* The largest id added so far + 1; 0 without tokens. */
uint32_t ox_cache_id_limit(const struct ox_cache_writer *writer);
/* Writes the header, syncs the file and renames it. untrained_count, key, source_bytes, vocab, is_chat and bad_count
 * come from `header`, the other counts from the writer. `fd` is NULL, except for an unnamed file: its descriptor goes
 * to *fd, for the caller to close. The writer is freed, even on failure. After a failed ox_cache_add, call
 * ox_cache_discard instead. */
OX_MUST enum ox_status ox_cache_commit(struct ox_cache_writer **writer, const struct ox_cache_header *header, int *fd);
void ox_cache_discard(struct ox_cache_writer **writer);

/* Removes temporary files that killed processes left in a folder for caches: those that no process has locked. Each
 * writer begins with this. */
void ox_cache_sweep(const char *path);

/* ---- reading ---------------------------------------------------------------------------------------------------- */

/* Reads the header of an open file, which errors call `where`. A wrong checksum, version, size or count is
 * OX_E_CORRUPT. */
OX_MUST enum ox_status ox_cache_read_header(int fd, const char *where, struct ox_cache_header *header, uint64_t *salt);

struct ox_cache_file {
    int fd;
    const char *where;
    uint64_t salt;
    struct ox_cache_header header;
};
/* Verifies the blocks of the last `bytes_max` bytes, where the documents are. */
OX_MUST enum ox_status ox_cache_verify(const struct ox_cache_file *file, uint64_t bytes_max);
/* Read token words, or the first tokens of documents, as they are in the file. Both verify the checksum of every block
 * that they read: OX_E_CORRUPT. */
OX_MUST enum ox_status ox_cache_read_tokens(const struct ox_cache_file *file, uint64_t first, uint64_t count,
                                            uint32_t *words);
OX_MUST enum ox_status ox_cache_read_documents(const struct ox_cache_file *file, uint64_t first, uint64_t count,
                                               uint64_t *begins);

#ifdef __cplusplus
}
#endif
#endif
