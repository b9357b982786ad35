/* Reads and writes safetensors files in bounded memory; hf.c, checkpoints and export use it. The README of
 * huggingface/safetensors describes the format. The checks are those of its reference reader, and also refuse duplicate
 * keys. Input may be hostile. */
#ifndef OX_ENGINE_SAFETENSORS_H
#define OX_ENGINE_SAFETENSORS_H

#include "base/file.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ox_dtype { OX_DTYPE_F32, OX_DTYPE_F16, OX_DTYPE_BF16, OX_DTYPE_OTHER };
uint32_t ox_dtype_bytes(enum ox_dtype dtype); /* 0 for OTHER */
const char *ox_dtype_name(enum ox_dtype dtype); /* "F32", "F16", "BF16" */
/* The format that a word of --save-dtype names: F16 for "fp16", BF16 for "bf16", else F32. */
enum ox_dtype ox_dtype_of_word(const char *word);

enum { OX_ST_RANK_MAX = 8 };

struct ox_st_entry {
    char *name;
    enum ox_dtype dtype;
    char dtype_text[16];
    uint32_t rank;
    uint64_t shape[OX_ST_RANK_MAX];
    uint64_t count;          /* elements */
    uint64_t offset, bytes;  /* absolute, in the file */
};

struct ox_st_file;
OX_MUST enum ox_status ox_st_open(const char *path, struct ox_st_file **out);
void ox_st_close(struct ox_st_file **file);
uint32_t ox_st_count(const struct ox_st_file *file);
const struct ox_st_entry *ox_st_entry(const struct ox_st_file *file, uint32_t idx);
/* The entry of that name; NULL: there is none. */
const struct ox_st_entry *ox_st_find(const struct ox_st_file *file, const char *name);
const char *ox_st_path(const struct ox_st_file *file);

/* Reads elements [first, first + count) into out[count] as fp32, converted from F32, F16 or BF16. */
OX_MUST enum ox_status ox_st_read_f32(const struct ox_st_file *file, const struct ox_st_entry *entry,
                                      uint64_t first, uint64_t count, float *out);
/* Reads bytes [first, first + bytes) of the tensor as they are. */
OX_MUST enum ox_status ox_st_read_bytes(const struct ox_st_file *file, const struct ox_st_entry *entry, uint64_t first,
                                        uint64_t bytes, void *out);
/* Compares the file with what its checkpoint lists of it; to be called once all is read. What was read in the order of
 * the file is not read again. A difference is OX_E_CORRUPT. So is a file that was written to since it was opened. */
OX_MUST enum ox_status ox_st_verify(const struct ox_st_file *file);

/* One tensor to write. */
struct ox_st_spec {
    const char *name;
    enum ox_dtype dtype;
    uint32_t rank;
    uint64_t shape[OX_ST_RANK_MAX];
};

/* Creates the file at `path` with its whole header and reserves its full size, so that a full disk is found here. The
 * header is padded so that the data begins at a multiple of 4096, with large tensors first. Tensors can then be written
 * in any order. */
struct ox_st_writer;
OX_MUST enum ox_status ox_st_create(const char *path, const struct ox_st_spec *specs, uint32_t spec_count,
                                    struct ox_st_writer **out);
/* Lets other processes write a part of the file: ox_st_join opens the file that one of them has created with the same
 * specs. ox_st_share lets that one finish without having written all. A joined file is never deleted. */
OX_MUST enum ox_status ox_st_join(const char *path, const struct ox_st_spec *specs, uint32_t spec_count,
                                  struct ox_st_writer **out);
void ox_st_share(struct ox_st_writer *writer);
/* Writes `bytes` bytes of tensor spec_idx, in its dtype, from byte_offset on. */
OX_MUST enum ox_status ox_st_write(struct ox_st_writer *writer, uint32_t spec_idx, uint64_t byte_offset,
                                   const void *data, uint64_t bytes);
/* Syncs and closes the file; unless it is shared every byte must have been written, which is asserted by their count.
 * Frees the writer, even on failure. */
OX_MUST enum ox_status ox_st_finish(struct ox_st_writer **writer);
void ox_st_discard(struct ox_st_writer **writer);

/* The size in bytes of a file of these tensors. */
uint64_t ox_st_file_bytes(const struct ox_st_spec *specs, uint32_t spec_count);

#ifdef __cplusplus
}
#endif
#endif
