/* Shared by the files that write and read checkpoints: how chunks divide tensors, the phases of a save, and
 * trainer_state.json. */
#ifndef OX_ENGINE_CHECKPOINT_INTERNAL_H
#define OX_ENGINE_CHECKPOINT_INTERNAL_H

#include "base/hash/listed.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/step/team.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The part of one tensor in a chunk: elements [first, first + count) of the tensor, at element `at` of the view. */
struct ox_tensor_part {
    uint32_t tensor_idx;
    uint64_t first, count, at;
};

/* Finds the next piece of the unit in elements [view->first, view->first + view->count), in order; each lies in one run
 * in files. Zero *piece before the first call. False if there is none left. */
bool ox_tensor_part_next(const struct ox_model *model, uint32_t unit_idx, const struct ox_chunk_view *view,
                   struct ox_tensor_part *piece);

/* The planes of each tensor in optimizer.safetensors, in the order of the file; the master only where the weights are
 * rounded. One that is not trained has no moments, and no master if its weights, saved as BF16, are its bits. */
struct ox_plane_list {
    enum ox_plane planes[OX_PLANE_COUNT];
    uint32_t count;
    enum ox_dtype weights_dtype;
};
struct ox_plane_list ox_optim_planes(struct ox_state_format format, enum ox_dtype weights_dtype);
/* Whether a checkpoint lists an optimizer file. */
struct ox_manifest;
bool ox_manifest_has_state(const struct ox_manifest *manifest);
/* Deletes the optimizer file of a complete checkpoint, which stays complete whenever that is interrupted. */
OX_MUST enum ox_status ox_checkpoint_drop_state(const char *path);
enum { OX_OPTIM_NAME_BYTES = OX_TENSOR_NAME_BYTES + 16 };
#define OX_OPTIM_FILE "optimizer.safetensors"
#define OX_RESIDUALS_FILE "powersgd.safetensors"
/* Writes that file, of the first copy of the model, after ox_engine_average_residuals; reads it, where it
 * is there. All processes call each. */
OX_MUST enum ox_status ox_checkpoint_write_residuals(struct ox_engine *engine, const char *folder);
OX_MUST enum ox_status ox_checkpoint_read_residuals(struct ox_engine *engine, const char *folder);
/* Writes "<tensor name>.exp_avg" and the like into `name`, of OX_OPTIM_NAME_BYTES. */
void ox_optim_name(const struct ox_tensor *tensor, enum ox_plane plane, char *name);
/* The entry of the tensor's plane in an optimizer file, or NULL. */
const struct ox_st_entry *ox_optim_find(const struct ox_st_file *file, const struct ox_tensor *tensor,
                                        enum ox_plane plane);

/* Reads weights like ox_hf_read, and refuses a value that is not finite as bfloat16, the format of the compute weights:
 * OX_E_CORRUPT naming file and tensor. */
OX_MUST enum ox_status ox_hf_read_finite(const struct ox_hf_folder *folder, uint32_t tensor_idx,
                                         uint64_t first, uint64_t count, float *out);
OX_MUST enum ox_status ox_check_finite(const char *path, const char *name, uint64_t first, uint64_t count,
                                       const float *values);

/* ---- the files of a folder: checkpoint_files.c -------------------------------------------------------- */

struct ox_checkpoint_files;

/* On the first process, checks the free space, makes the folder and creates every file with its full size, so that a
 * full disk is found here. The others come after it and open the same files. After a failure the folder may exist. */
OX_MUST enum ox_status ox_checkpoint_files_open(struct ox_engine *engine, const struct ox_checkpoint_save *save,
                                                const char *folder, struct ox_checkpoint_files **out);
/* Writes all planes of a chunk, with view->values as working memory. Chunks come in any order; one that is already
 * written, or that another process writes, is skipped. */
OX_MUST enum ox_status ox_checkpoint_files_chunk(struct ox_checkpoint_files *files, uint32_t unit_idx,
                                                 uint32_t chunk_idx, const struct ox_chunk_view *view);
/* The number of chunks that this process has yet to write. */
uint64_t ox_checkpoint_files_missing(const struct ox_checkpoint_files *files);
/* Writes the missing chunks, all or those of frozen units, which it reads from the engine; call it between steps. */
OX_MUST enum ox_status ox_checkpoint_files_fill(struct ox_checkpoint_files *files, struct ox_engine *engine,
                                                bool frozen_alone);
/* Syncs the files; when all processes have, the first one reads them back and writes the manifest. `written` is how the
 * writing went; if well, no chunk may be missing. A failure of any process until then is returned by all. Frees *files,
 * even on failure. */
OX_MUST enum ox_status ox_checkpoint_files_finish(struct ox_checkpoint_files **files, const struct ox_run_state *state,
                                                  enum ox_team_channel channel, enum ox_status written);
void ox_checkpoint_files_discard(struct ox_checkpoint_files **files);

/* ---- the phases of a save: checkpoint.c --------------------------------------------------------------- */

/* With several processes all make these calls; each returns the same status on all of them. */
struct ox_checkpoint_job {
    struct ox_team *team;
    struct ox_run_state state;
    struct ox_checkpoint_save save; /* output_dir must outlive the job */
    char path[OX_PATH_BYTES], tmp[OX_PATH_BYTES];
    struct ox_checkpoint_files *files; /* NULL: the checkpoint exists already */
};
/* Begins a save: creates the files. A failure here or in ox_checkpoint_end removes everything. */
OX_MUST enum ox_status ox_checkpoint_begin(struct ox_engine *engine, const struct ox_run_state *state,
                                           const struct ox_checkpoint_save *save, struct ox_checkpoint_job *job);
/* Ends a save: completes the checkpoint, makes it the latest and deletes those beyond the limit. `written` is how the
 * writing of this process's chunks went; a failure of any process, whose text is its thread's, gives the save up. Any
 * thread may call. */
OX_MUST enum ox_status ox_checkpoint_end(struct ox_checkpoint_job *job, enum ox_team_channel channel,
                                         enum ox_status written);

/* Lets `fill`, on the caller's thread, write a temporary folder and renames it to `path`, which must not exist. After
 * a failure it removes the folder that it has made, under either name: renamed, it may not be durable. One that
 * somebody else has put there stays. */
typedef enum ox_status ox_folder_fill(void *context, const char *tmp);
OX_MUST enum ox_status ox_folder_write(const char *path, ox_folder_fill *fill, void *context);

/* Rounds weights of a tensor to halves; OX_E_CONFIG with its name if one is too large for them. */
OX_MUST enum ox_status ox_to_halves(const char *tensor, const float *weights, uint64_t count, uint16_t *out);

/* ---- trainer_state.json ---------------------------------------------------------------------------- */

enum { OX_RESULT_NAME_BYTES = 64 };

struct ox_manifest {
    struct ox_run_state state;
    enum ox_dtype weights_dtype;
    enum ox_dtype model_dtype; /* format of the weights of the model with which the run began: F32, F16, BF16 */
    struct ox_last_eval eval;
    uint32_t shared_layers; /* so many in succession share their weights, whose planes the first one has; 0: none do */
    char result[OX_RESULT_NAME_BYTES]; /* the checkpoint beside it that is the run's result; "": itself */
    struct ox_listed list; /* by name */
    const struct ox_readback *read_back; /* for ox_manifest_collect; may be NULL */
};

/* Callbacks, on the thread that collects the files, that compare the content of a file, read back from the drive, with
 * what was written. `begin` sets *known if the content can be compared; then `bytes` gets all bytes in order, and `end`
 * returns the verdict. */
struct ox_readback {
    enum ox_status (*begin)(void *context, const char *path, bool *known);
    void (*bytes)(void *context, const unsigned char *data, size_t bytes);
    enum ox_status (*end)(void *context, const char *path);
    void *context;
};

/* Lists and hashes every file of the folder, read back from the drive. A file that manifest->read_back does not know
 * must equal its copy in the page cache. */
OX_MUST enum ox_status ox_manifest_collect(const char *folder, struct ox_manifest *manifest);
OX_MUST enum ox_status ox_manifest_write(const char *folder, const struct ox_manifest *manifest);
/* Reads the manifest. OX_E_CONFIG: there is none, or another program wrote it. OX_E_CORRUPT: it is damaged. */
OX_MUST enum ox_status ox_manifest_read(const char *folder, struct ox_manifest *manifest);
/* Checks that every file exists with its size, without reading its content. */
OX_MUST enum ox_status ox_manifest_check_sizes(const char *folder, const struct ox_manifest *manifest);
void ox_manifest_close(struct ox_manifest *manifest);

#ifdef __cplusplus
}
#endif
#endif
