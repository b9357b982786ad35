/* Reads files that may be compressed with gzip, zstd or xz, as told by their first bytes, from their begin to their end
 * in bounded memory. documents.c reads texts and rows through it. */
#ifndef OX_ENGINE_UNPACK_H
#define OX_ENGINE_UNPACK_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ox_unpacker;

/* Reads the open file `fd`, which the caller keeps and closes, from its first byte on; `path` is for errors. */
OX_MUST enum ox_status ox_unpack_open(int fd, const char *path, struct ox_unpacker **out);
void ox_unpack_close(struct ox_unpacker **unpacker);
bool ox_unpack_is_packed(const struct ox_unpacker *unpacker);
/* The bytes of the file that are used up. */
uint64_t ox_unpack_used_bytes(const struct ox_unpacker *unpacker);
/* Reads the next `bytes` bytes; *got is less only at the end. A compressed file that ends early or is damaged is
 * OX_E_CORRUPT with its place; one that unpacks to what no text does is OX_E_CONFIG. */
OX_MUST enum ox_status ox_unpack_read(struct ox_unpacker *unpacker, void *data, size_t bytes, size_t *got);

/* Reads the first *got, at most `bytes`, bytes of a file as ox_unpack_read gives them. *all tells whether these are
 * all; `packed` (may be NULL) whether the file is compressed. */
OX_MUST enum ox_status ox_unpack_start(const char *path, void *start, size_t bytes, size_t *got, bool *all,
                                       bool *packed);
/* Reads all bytes of a file as ox_file_read does: at most bytes_max, with a NUL behind them; the caller frees *data. */
OX_MUST enum ox_status ox_unpack_file(const char *path, size_t bytes_max, char **data, size_t *bytes);
/* The bytes of a name without the ending of a compressed file: 7 of "a.jsonl.gz"; all of another name. */
size_t ox_unpack_name_bytes(const char *path);

#ifdef __cplusplus
}
#endif
#endif
