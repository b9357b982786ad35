/* Tensors of a folder that are stored in MXFP4: the matrices of all experts, as two tensors NAME_blocks (experts, out,
 * in / 32, 16) and NAME_scales (experts, out, in / 32). They are read as if there were one tensor NAME (experts, in,
 * out). For the files of this folder. */
#ifndef OX_ENGINE_MXFP4_TENSOR_H
#define OX_ENGINE_MXFP4_TENSOR_H

#include "engine/hf/safetensors.h"
#include "engine/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

enum ox_mxfp4_part { OX_MXFP4_BLOCKS, OX_MXFP4_SCALES, OX_MXFP4_NONE };

/* Which part of a tensor in MXFP4 a name is of, if any; writes the tensor's own name. */
enum ox_mxfp4_part ox_mxfp4_part_of(const char *name, char *whole, size_t bytes);
/* Refuses a part that does not fit the tensor; `path` is its file's. */
OX_MUST enum ox_status ox_mxfp4_check(const char *path, const struct ox_st_entry *entry, enum ox_mxfp4_part part,
                                      const struct ox_tensor *tensor);

/* Where the parts lie. */
struct ox_mxfp4_source {
    const struct ox_st_file *files[2];
    const struct ox_st_entry *entries[2]; /* by part; NULL: none */
};

/* Holds the expert that was read last, whole, because a row of its matrix is spread over all of its blocks. For one
 * thread at a time. */
struct ox_mxfp4_reader;
OX_MUST enum ox_status ox_mxfp4_read(struct ox_mxfp4_reader **reader, const struct ox_mxfp4_source *source,
                                     const struct ox_tensor *tensor, uint64_t first, uint64_t count, float *out);
void ox_mxfp4_close(struct ox_mxfp4_reader **reader);

#ifdef __cplusplus
}
#endif
#endif
