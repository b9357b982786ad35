/* Shared by the files that write and read checkpoints: how chunks cut tensors, and trainer_state.json. */
#ifndef OX_ENGINE_CHECKPOINT_INTERNAL_H
#define OX_ENGINE_CHECKPOINT_INTERNAL_H

#include "base/hash.h"
#include "engine/checkpoint.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The part of one tensor that lies in a chunk: elements [first, first + count) of the tensor, at element `at`
 * of the view. */
struct ox_piece {
    uint32_t tensor_idx;
    uint64_t first, count, at;
};

/* The next part of a tensor of this unit in elements [view->first, view->first + view->count), in order. The
 * first call takes a zeroed piece. False when there is none left. */
bool ox_piece_next(const struct ox_model *model, uint32_t unit_idx, const struct ox_chunk_view *view,
                   struct ox_piece *piece);

/* What optimizer.safetensors holds of each tensor, in this order; the master only beside BF16 weights. */
struct ox_plane_list {
    enum ox_plane planes[OX_PLANE_COUNT];
    uint32_t count;
};
struct ox_plane_list ox_optim_planes(enum ox_optim_kind kind, enum ox_dtype weights_dtype);
enum { OX_OPTIM_NAME_BYTES = OX_TENSOR_NAME_BYTES + 16 };
#define OX_OPTIM_FILE "optimizer.safetensors"
/* "<tensor name>.exp_avg" ...; `name` has OX_OPTIM_NAME_BYTES. */
void ox_optim_name(const struct ox_tensor *tensor, enum ox_plane plane, char *name);
/* The tensor's plane in an optimizer file, or NULL. */
const struct ox_st_entry *ox_optim_find(const struct ox_st_file *file, const struct ox_tensor *tensor,
                                        enum ox_plane plane);

/* Reads weights as ox_hf_read does and refuses one that bfloat16, the compute weight, cannot hold as a finite
 * number, naming file and tensor. */
OX_MUST enum ox_status ox_hf_read_finite(const struct ox_hf_folder *folder, uint32_t tensor_idx,
                                         uint64_t first, uint64_t count, float *out);
OX_MUST enum ox_status ox_check_finite(const char *path, const char *name, uint64_t first, uint64_t count,
                                       const float *values);

/* ---- trainer_state.json ---------------------------------------------------------------------------- */

struct ox_manifest_file {
    char *name;
    uint64_t bytes;
    struct ox_hash128 hash; /* XXH3-128, as `xxhsum -H2` prints it */
};

struct ox_manifest {
    struct ox_run_state state;
    enum ox_dtype weights_dtype;
    struct ox_manifest_file *files; /* by name */
    uint32_t file_count;
};

#define OX_MANIFEST_NAME "trainer_state.json"
/* Lists and hashes every file of the folder. */
OX_MUST enum ox_status ox_manifest_collect(const char *folder, struct ox_manifest *manifest);
OX_MUST enum ox_status ox_manifest_write(const char *folder, const struct ox_manifest *manifest);
/* OX_E_CONFIG: there is none, or it is another program's. OX_E_CORRUPT: it is ours and damaged. */
OX_MUST enum ox_status ox_manifest_read(const char *folder, struct ox_manifest *manifest);
/* Every file is there with its size; the content is not read. */
OX_MUST enum ox_status ox_manifest_check_sizes(const char *folder, const struct ox_manifest *manifest);
void ox_manifest_close(struct ox_manifest *manifest);

/* Refuses what the file system of `folder` has no room for. */
OX_MUST enum ox_status ox_checkpoint_check_space(const char *folder, uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
