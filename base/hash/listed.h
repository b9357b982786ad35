/* What a checkpoint says of its own files: name, size and XXH3-128 of each, in the "files" of its trainer_state.json.
 * Checkpoints write this list, and whoever reads one of the files compares it, so that a file which has changed since
 * it was saved is refused by name instead of used. A folder that another program wrote has no list: then nothing is
 * compared. Checkpoints, model folders and tokenizers call it. */
#ifndef OX_BASE_LISTED_H
#define OX_BASE_LISTED_H

#include "base/hash/hash.h"
#include "base/json.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OX_LISTED_IN "trainer_state.json"
enum { OX_LISTED_IN_BYTES_MAX = 16 << 20 };

struct ox_listed_file {
    char *name;
    uint64_t bytes;
    struct ox_hash128 hash; /* as `xxhsum -H2` prints it */
};

struct ox_listed {
    struct ox_listed_file *files;
    uint32_t count;
};

/* Reads the list of a folder; an empty one where the folder has none. A list that is damaged is OX_E_CORRUPT. */
OX_MUST enum ox_status ox_listed_read(const char *folder, struct ox_listed *out);
/* Adds the "files" of a parsed trainer_state.json; `where` is its path, for messages. */
OX_MUST enum ox_status ox_listed_parse(const char *where, const json_t *object, struct ox_listed *list);
OX_MUST enum ox_status ox_listed_add(const char *where, const char *name, struct ox_listed *list);
void ox_listed_close(struct ox_listed *list);

/* Reads a file of the folder and compares it; OX_E_CORRUPT, naming it, when it is missing or has changed. */
OX_MUST enum ox_status ox_listed_verify(const char *folder, const struct ox_listed_file *file);
/* Compares every listed file of a folder but those with tensors, which are large and compared while they are read.
 * A tokenizer.json may be missing. Nothing is compared where `folder` is a file or has no list. */
OX_MUST enum ox_status ox_listed_verify_small(const char *folder);

/* Compares an open file while it is read, so that it need not be read twice. What is read in the order of the file
 * is hashed as it comes; the rest is read at the end. For one thread at a time. */
struct ox_listed_reading;
/* *out is NULL where the file's folder has no list. A file that the list lacks or has with another size is
 * OX_E_CORRUPT. */
OX_MUST enum ox_status ox_listed_open(const char *path, int fd, uint64_t bytes, struct ox_listed_reading **out);
void ox_listed_take(struct ox_listed_reading *reading, uint64_t offset, const void *data, uint64_t bytes);
/* Reads what has not come in order and compares. Further calls return OX_OK. A reading that is NULL is whole. */
OX_MUST enum ox_status ox_listed_finish(struct ox_listed_reading *reading);
void ox_listed_free(struct ox_listed_reading **reading);

#ifdef __cplusplus
}
#endif
#endif
