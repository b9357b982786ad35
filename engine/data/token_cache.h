/* The token cache: a text's tokens, masks and document borders in one file, so that a text is tokenized once. Every
 * block carries a checksum, so that a disk that lies is noticed and not learned from; docs/token-cache.md.
 *
 *     blocks of OX_CACHE_BLOCK_BYTES:  u64 XXH3 of the rest, seeded by (file's salt, block index); then the payload
 *     block 0            magic "OXTOKENS", u32 version, u32 0, struct ox_cache_header's fields, u64 salt; zeros
 *     token blocks       u32 per token: id | trained << 31 | begins << 30
 *     document blocks    u64 per document: its first token
 *
 * All integers are little-endian. A file is written under a temporary name beside its place, synced and renamed; what a
 * killed process left of that kind is removed by the next writer in the folder. */
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
    OX_CACHE_TRAINED_BIT = 31, /* of a token's word */
    OX_CACHE_BEGINS_BIT = 30,
    OX_CACHE_MAGIC_OFFSET = 8, /* in the file */
};
#define OX_CACHE_MAGIC "OXTOKENS" /* 8 bytes, without the NUL */

struct ox_cache_header {
    uint64_t token_count, document_count, trained_count;
    uint64_t key[2];      /* what it was made from and how: who opens it compares                  */
    uint64_t source_bytes;
    uint64_t longest;     /* tokens of the longest document                                        */
    uint32_t vocab;       /* every id is below it: one more than the largest                       */
    uint32_t is_chat;     /* documents are conversations, or prompts with completions              */
};

/* ---- writing ---------------------------------------------------------------------------------------------------- */

struct ox_cache_writer;

/* Into `path` at commit, or with path == NULL into an unnamed file in `folder`, which is gone when the last descriptor
 * is. Documents are staged on disk too: memory does not grow with the text. */
OX_MUST enum ox_status ox_cache_create(const char *path, const char *folder, struct ox_cache_writer **out);
/* Adds to the open document, `begins` opens one first; one that ends without tokens is left out. trained (may be NULL:
 * all): 1 or 0 each. */
OX_MUST enum ox_status ox_cache_add(struct ox_cache_writer *writer, bool begins, const int32_t *ids,
                                    const uint8_t *trained, size_t count);
/* Tokens so far. */
uint64_t ox_cache_token_count(const struct ox_cache_writer *writer);
/* One more than the largest id so far, 0 without tokens. */
uint32_t ox_cache_id_limit(const struct ox_cache_writer *writer);
/* Counts are the writer's; key, source_bytes, vocab and is_chat come from `header`. Syncs and renames; *fd (not NULL
 * with an unnamed file, else NULL) is its descriptor, the caller's to close. The writer is gone afterwards, also on
 * failure. A writer whose ox_cache_add failed is only to be discarded. */
OX_MUST enum ox_status ox_cache_commit(struct ox_cache_writer **writer, const struct ox_cache_header *header, int *fd);
void ox_cache_discard(struct ox_cache_writer **writer);

/* ---- reading ---------------------------------------------------------------------------------------------------- */

/* The header of an open file; `where` names it. OX_E_CORRUPT for a wrong checksum, version, size or count. */
OX_MUST enum ox_status ox_cache_read_header(int fd, const char *where, struct ox_cache_header *header, uint64_t *salt);

/* Both verify every block they touch. Words as in the file. */
struct ox_cache_file {
    int fd;
    const char *where;
    uint64_t salt;
    struct ox_cache_header header;
};
OX_MUST enum ox_status ox_cache_read_tokens(const struct ox_cache_file *file, uint64_t first, uint64_t count,
                                            uint32_t *words);
OX_MUST enum ox_status ox_cache_read_documents(const struct ox_cache_file *file, uint64_t first, uint64_t count,
                                               uint64_t *begins);

#ifdef __cplusplus
}
#endif
#endif
