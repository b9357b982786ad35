/* Tokens on disk: token files of others, bytes as tokens, and the token cache that text is turned into. */
#ifndef OX_ENGINE_DATA_H
#define OX_ENGINE_DATA_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* AUTO tells by the magic number: llm.c (20240520, 20240801), llmq ("BIN.TOK\n") and our cache
 * (engine/data/token_cache.h), else bytes as tokens. A folder is all its regular files in name order (recursively for
 * BYTES), one after the other; links in it are left out, which is logged. A cache is a single file. */
enum ox_data_kind { OX_DATA_AUTO, OX_DATA_BYTES, OX_DATA_LLMC, OX_DATA_LLMQ, OX_DATA_CACHE };

/* Read window by window, not mapped: the page cache counts on no budget, and a file that shrinks under a run is an
 * error instead of a signal. */
struct ox_data;

/* A damaged header or size is OX_E_CORRUPT naming the file. */
OX_MUST enum ox_status ox_data_open(const char *path, enum ox_data_kind kind, struct ox_data **out);
/* A cache by its descriptor, which is taken over, also on failure; `where` names it in messages. */
OX_MUST enum ox_status ox_data_open_fd(int fd, const char *where, struct ox_data **out);
void ox_data_close(struct ox_data **data);
uint64_t ox_data_token_count(const struct ox_data *data);
enum ox_data_kind ox_data_kind_of(const struct ox_data *data);
/* Hash of size and content samples (of a cache: of key and counts), kept in checkpoints so that a resume with other
 * data is noticed. */
uint64_t ox_data_fingerprint(const struct ox_data *data);
/* What a file on disk is, by its first bytes; BYTES when it is none of the others. */
OX_MUST enum ox_status ox_data_kind_of_file(const char *path, enum ox_data_kind *kind);

enum {
    OX_TOKEN_TRAINED = 1, /* may be a target           */
    OX_TOKEN_BEGINS = 2,  /* the first of its document */
};

/* Tokens [first, first + count); an id outside [0, vocab) is OX_E_CORRUPT naming file, position and id, and so is a
 * block of a cache that does not match its checksum. marks (may be NULL): OX_TOKEN_* of each. Any thread may call. */
OX_MUST enum ox_status ox_data_read(const struct ox_data *data, uint64_t first, uint64_t count, uint32_t vocab,
                                    int32_t *tokens, uint8_t *marks);

/* Documents follow one another without gaps, none is empty, and the first begins with token 0. In a cache they are
 * those of the text; of other kinds every file that holds tokens is one. begins[i] is the first token of document
 * first + i. */
uint64_t ox_data_document_count(const struct ox_data *data);
OX_MUST enum ox_status ox_data_documents(const struct ox_data *data, uint64_t first, uint64_t count, uint64_t *begins);
/* Whether documents are conversations (or prompts with completions), of a cache. */
bool ox_data_is_chat(const struct ox_data *data);
/* Only of a cache. */
struct ox_cache_header;
void ox_data_cache_header(const struct ox_data *data, struct ox_cache_header *out);

#ifdef __cplusplus
}
#endif
#endif
