/* Reads tokens from disk: token files of llm.c and llmq, bytes as tokens, and this program's token cache. corpus.c
 * opens them, windows.c reads them row by row. */
#ifndef OX_ENGINE_DATA_H
#define OX_ENGINE_DATA_H

#include "base/status.h"
#include "engine/data/files.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* AUTO finds the kind by the magic number: llm.c (20240520, 20240801), llmq ("BIN.TOK\n") and our cache
 * (engine/data/token_cache.h), else bytes as tokens. A folder stands for the files that ox_files_list finds, joined in
 * name order. A cache is a single file. */
enum ox_data_kind { OX_DATA_AUTO, OX_DATA_BYTES, OX_DATA_LLMC, OX_DATA_LLMQ, OX_DATA_CACHE };

/* Files are read window by window instead of mapped, so that their pages do not count as the run's memory and a file
 * that shrinks during a run is an error instead of a signal. */
struct ox_data;

/* Opens a file or folder. A wrong header or size is OX_E_CORRUPT naming the file. */
OX_MUST enum ox_status ox_data_open(const char *path, enum ox_data_kind kind, struct ox_data **out);
/* Opens files of one kind, which is not AUTO; takes over *files, which is left empty. */
OX_MUST enum ox_status ox_data_open_files(struct ox_files *files, enum ox_data_kind kind, struct ox_data **out);
/* Opens a cache by its descriptor, which the data owns from now on, even if this fails. Messages call it `where`. */
OX_MUST enum ox_status ox_data_open_fd(int fd, const char *where, struct ox_data **out);
void ox_data_close(struct ox_data **data);
uint64_t ox_data_token_count(const struct ox_data *data);
enum ox_data_kind ox_data_kind_of(const struct ox_data *data);
/* A hash of sizes and content samples (for a cache, of its key and counts). Checkpoints keep it, so that a resume with
 * other data is noticed. */
uint64_t ox_data_fingerprint(const struct ox_data *data);
/* Finds the kind that AUTO means for a file or folder; files of several kinds in one folder are OX_E_CONFIG. */
OX_MUST enum ox_status ox_data_find_kind(const char *path, enum ox_data_kind *kind);
OX_MUST enum ox_status ox_data_kind_of_files(const struct ox_files *files, enum ox_data_kind *kind);
OX_MUST enum ox_status ox_data_kind_of_file(const char *path, enum ox_data_kind *kind);

enum {
    OX_TOKEN_TRAINED = 1, /* may be a target                */
    OX_TOKEN_BEGINS = 2,  /* the first token of a document  */
};

/* Reads the tokens [first, first + count) into tokens[count] and their OX_TOKEN_* bits into marks[count], which may be
 * NULL. An id outside [0, vocab) is OX_E_CORRUPT naming file, position and id; so is a block of a cache that does not
 * match its checksum. Any thread may call. */
OX_MUST enum ox_status ox_data_read(const struct ox_data *data, uint64_t first, uint64_t count, uint32_t vocab,
                                    int32_t *tokens, uint8_t *marks);

/* Documents cover all tokens without gaps, none is empty, and the first begins with token 0. A cache keeps the
 * documents of its text; in the other kinds every file with tokens is one document. ox_data_documents writes the first
 * token of document first + i to begins[i]. */
uint64_t ox_data_document_count(const struct ox_data *data);
OX_MUST enum ox_status ox_data_documents(const struct ox_data *data, uint64_t first, uint64_t count, uint64_t *begins);
/* Rows that a cache leaves out, because none of their tokens may be a target. */
uint64_t ox_data_untrained_count(const struct ox_data *data);
/* Whether the documents are conversations, or prompts with completions; false if it is not a cache. */
bool ox_data_is_chat(const struct ox_data *data);
/* Whether documents 2 k and 2 k + 1 are the better and the worse answer of a preference. */
bool ox_data_is_pairs(const struct ox_data *data);
bool ox_data_has_conversations(const struct ox_data *data); /* that a chat template has rendered */
/* Whether every token may be a target, as far as is known without reading them. */
bool ox_data_all_trained(const struct ox_data *data);
/* Whether any token may be a target, as far as is known without reading them. */
bool ox_data_may_train(const struct ox_data *data);
/* Copies the header of a cache; call it for a cache only. */
struct ox_cache_header;
void ox_data_cache_header(const struct ox_data *data, struct ox_cache_header *out);
/* Verifies a cache that can be made again from its text, up to a size that takes seconds; damage is OX_E_CORRUPT. If
 * damage shows later, at a read, the file is deleted as well, so that the next start makes it again. */
OX_MUST enum ox_status ox_data_verify_cache(struct ox_data *data);

#ifdef __cplusplus
}
#endif
#endif
