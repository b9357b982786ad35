/* Shared by the files that write and read checkpoints: how chunks cut tensors, a checkpoint's way from an empty folder
 * to its name, and trainer_state.json. */
#ifndef OX_ENGINE_CHECKPOINT_INTERNAL_H
#define OX_ENGINE_CHECKPOINT_INTERNAL_H

#include "base/hash/hash.h"
#include "engine/checkpoint/checkpoint.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The part of one tensor that lies in a chunk: elements [first, first + count) of the tensor, at element `at`
 * of the view. */
struct ox_tensor_part {
    uint32_t tensor_idx;
    uint64_t first, count, at;
};

/* The next part of a tensor of this unit in elements [view->first, view->first + view->count), in order. The
 * first call takes a zeroed piece. False when there is none left. */
bool ox_tensor_part_next(const struct ox_model *model, uint32_t unit_idx, const struct ox_chunk_view *view,
                   struct ox_tensor_part *piece);

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

/* ---- what was written: checkpoint_sums.c ------------------------------------------------------------- */

struct ox_manifest;

/* Per plane of each tensor the sum of the hashes of its pieces, which may come in any order. */
struct ox_tensor_sums {
    const struct ox_model *model;
    struct ox_plane_list planes;
    uint64_t chunk_elems; /* pieces are parted where the unit's chunks are */
    uint64_t *sums;
};
OX_MUST enum ox_status ox_tensor_sums_open(const struct ox_model *model, struct ox_plane_list planes,
                                          uint64_t chunk_elems, struct ox_tensor_sums *out);
void ox_tensor_sums_close(struct ox_tensor_sums *sums);
/* nth: 0 is the weights, then come the planes of the list. */
void ox_tensor_sums_add(struct ox_tensor_sums *sums, uint32_t nth, const struct ox_tensor_part *piece, const void *data,
                       size_t bytes);
/* ox_manifest_collect, where every tensor must come back from the drive as it was written: else OX_E_CORRUPT. */
OX_MUST enum ox_status ox_tensor_sums_collect(const struct ox_tensor_sums *sums, const char *folder,
                                             struct ox_manifest *manifest);

/* ---- the files of a folder: checkpoint_files.c -------------------------------------------------------- */

struct ox_checkpoint_files;

/* Checks the room, makes the folder and creates every file with its full size; ENOSPC is found here. On failure the
 * folder may be there. */
OX_MUST enum ox_status ox_checkpoint_files_open(struct ox_engine *engine, const struct ox_checkpoint_save *save,
                                                const char *folder, struct ox_checkpoint_files **out);
/* All planes of a chunk; `values` is used up. Chunks come in any order; one that is there already is passed over. */
OX_MUST enum ox_status ox_checkpoint_files_chunk(struct ox_checkpoint_files *files, uint32_t unit_idx,
                                                 uint32_t chunk_idx, const struct ox_chunk_view *view);
uint64_t ox_checkpoint_files_missing(const struct ox_checkpoint_files *files);
/* Takes what is missing from the engine, between steps. */
OX_MUST enum ox_status ox_checkpoint_files_fill(struct ox_checkpoint_files *files, struct ox_engine *engine);
/* With no chunk missing: syncs, reads back, writes the manifest. */
OX_MUST enum ox_status ox_checkpoint_files_finish(struct ox_checkpoint_files **files,
                                                  const struct ox_run_state *state);
void ox_checkpoint_files_discard(struct ox_checkpoint_files **files);

/* ---- a checkpoint in three parts: checkpoint.c -------------------------------------------------------- */

struct ox_checkpoint_job {
    struct ox_run_state state;
    struct ox_checkpoint_save save; /* output_dir outlives the job */
    char path[OX_PATH_BYTES], tmp[OX_PATH_BYTES];
    struct ox_checkpoint_files *files; /* NULL: the checkpoint is there already */
};
/* On failure nothing stays, and so with the others. */
OX_MUST enum ox_status ox_checkpoint_begin(struct ox_engine *engine, const struct ox_run_state *state,
                                           const struct ox_checkpoint_save *save, struct ox_checkpoint_job *job);
/* With no chunk missing: makes it complete, the latest, and deletes what is beyond the limit. Any thread. */
OX_MUST enum ox_status ox_checkpoint_end(struct ox_checkpoint_job *job);
/* Gives it up because of `failure`, which it returns with its text. */
OX_MUST enum ox_status ox_checkpoint_drop(struct ox_checkpoint_job *job, enum ox_status failure);

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
    const struct ox_readback *look; /* while files are collected; NULL: nobody looks */
};

/* Told what comes back of a file that was just written: `begin` says whether it is known what that must be, then come
 * all bytes in order, and `end` judges them. */
struct ox_readback {
    enum ox_status (*begin)(void *context, const char *path, bool *known);
    void (*bytes)(void *context, const unsigned char *data, size_t bytes);
    enum ox_status (*end)(void *context, const char *path);
    void *context;
};

#define OX_MANIFEST_NAME "trainer_state.json"
/* Lists and hashes every file of the folder, read back from the drive. What is not known must be what memory has. */
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
