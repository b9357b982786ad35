/* Checkpoints: folders that transformers can load, with the optimizer state and run state for a bit-exact resume.
 * They are written and read chunk by chunk, in bounded memory. The trainer saves and resumes with them; export and
 * inspect read them.
 *
 *     checkpoint-<step>/   config.json, model*.safetensors (+ index), tokenizer files of the source model,
 *                          optimizer.safetensors: <name>.exp_avg, <name>.exp_avg_sq if the optimizer has
 *                          one, <name>.ema if the state has averages, and, if the weights are saved as
 *                          BF16, <name>.master; all in F32, which
 *                          represents every format of the state exactly; the file is not there where weights are
 *                          saved alone, or are all that is kept of an older checkpoint
 *                          powersgd.safetensors of a run with exchanges of low rank: what they keep
 *                          trainer_state.json: struct ox_run_state, and the names, sizes and XXH3-128 of
 *                          all other files
 *     latest               text: the newest checkpoint's name; replaced by rename
 *     best                 a link to the checkpoint with the smallest loss of those that were saved right after an
 *                          evaluation; replaced by rename
 *
 * A folder is written as checkpoint-<step>.tmp. Every file is synced, read back from the drive and compared with what
 * was written; then the folder is renamed, and only then are older checkpoints deleted. A checkpoint that does not fit
 * on the file system is refused before anything is written. */
#ifndef OX_ENGINE_CHECKPOINT_H
#define OX_ENGINE_CHECKPOINT_H

#include "engine/step/engine.h"
#include "engine/hf/hf.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The scale of the loss that a state has; 0: none. */
struct ox_run_state;
double ox_run_state_scale(const struct ox_run_state *state);

/* The progress of a run. The store's root begins its metadata with this struct, so it has a fixed size and no pointers.
 * Version 2 had zeros in place of optimizer and moments, which mean AdamW in fp32, the only choice then. A run keeps
 * the version that it began with: before version 4 the first step of a warmup had a rate above 0, and a step took rows
 * of two epochs. */
enum { OX_RUN_STATE_VERSION = 4, OX_RUN_STATE_OLDEST = 2, OX_RUN_STATE_NAMES_FORMAT = 3, OX_RUN_STATE_EPOCHS = 4 };
struct ox_run_state {
    uint16_t version;
    uint16_t scale_code; /* 0: the loss is not scaled by what the steps find; else 1 + log2 of its scale */
    uint16_t optimizer; /* enum ox_optim_kind */
    uint16_t moments;   /* enum ox_moments */
    uint64_t run_id[2];
    uint64_t branch;          /* a random number, new whenever a run continues from a checkpoint that the user
                                 named: steps can be compared only within a branch */
    uint64_t step;            /* steps of the run, skipped ones included                  */
    uint64_t optimizer_steps; /* updates applied: steps less the skipped ones             */
    uint64_t cursor;          /* windows drawn from the data so far                       */
    uint64_t seed;
    uint64_t data_fingerprint;
    uint64_t tokens_seen;     /* targets that counted                                     */
    /* In the upper halves of these two versions without a scale had zeros. */
    uint32_t nonfinite_steps, overflow_steps;  /* skipped: bad ones; those that overflowed at the loss scale */
    uint32_t nonfinite_in_row, growth_tracker; /* bad ones in a row; since the scale has changed, others in a row */
    uint64_t numerics_hash;   /* hash of all options that may change bits: a resume with other ones is reported */
    double best_eval_loss;    /* infinity before the first evaluation                     */
};

/* The newest evaluation of a run; step 0: none. */
struct ox_last_eval {
    uint64_t step;
    double loss;
};

struct ox_checkpoint_save {
    const char *output_dir;
    const char *source_model;       /* folder whose companion files (tokenizer ...) are copied; "": none */
    const char *tokenizer_file;     /* copied as tokenizer.json, whatever its name; NULL: none */
    const json_t *original_config;  /* or NULL */
    const char *base_model;         /* of adapters, which alone are saved: ox_hf_set_base */
    uint64_t base_hash;
    const struct ox_hf_tokens *tokens; /* what is said of them beside the weights; NULL: nothing */
    const json_t *source_config;    /* config.json of the model, for that, and for the format of an export */
    struct ox_last_eval eval;
    enum ox_dtype weights_dtype;    /* F32, F16 or BF16 (BF16 writes the plane `hi` unchanged) */
    uint64_t shard_bytes_max;
    uint64_t total_limit, state_limit; /* as for ox_checkpoint_keep */
    bool weights_alone;             /* no optimizer.safetensors: nothing resumes from it */
};

/* Space that a folder takes beside files of known size: tokenizer files, headers of many shards, the folder itself. */
#define OX_CHECKPOINT_BESIDE_BYTES ((uint64_t)16 << 20)
/* Computes the size of a checkpoint's weights and, unless they are alone, its optimizer state. */
OX_MUST enum ox_status ox_checkpoint_bytes(const struct ox_model *model, struct ox_state_format format,
                                           enum ox_dtype weights_dtype, bool alone, uint64_t *bytes);
/* Refuses to write files of `file_bytes` if the file system of `folder` has no room for them and what lies beside. */
OX_MUST enum ox_status ox_checkpoint_check_space(const char *folder, uint64_t file_bytes);

/* If the engine has a team (engine/step/team.h), all its processes call the functions that take an engine, with the
 * same arguments, and each call returns the same status on all of them. A checkpoint is written by all: the first
 * process creates its files, each writes its own chunks, and when all are written the first one completes it. So
 * output_dir is a folder that all processes reach. When weights are filled, each process reads what it has of them. */

/* Saves a checkpoint and makes it the latest. A failure removes everything it wrote and leaves older checkpoints
 * untouched; failing only to write `latest` is a warning. If a complete checkpoint of this run, branch and step exists,
 * it stays as it is. Another folder of that name is renamed to checkpoint-<step>.old-1 and so on, with a warning. Each
 * save deletes .tmp folders that crashes left, and the oldest complete checkpoints of this branch beyond the limit. */
OX_MUST enum ox_status ox_checkpoint_write(struct ox_engine *engine, const struct ox_run_state *state,
                                           const struct ox_checkpoint_save *save);

/* Saves the same checkpoint, byte for byte, while training goes on, for an engine with a store. It reads nothing of its
 * own but frozen units, when it opens. Opening creates the files and sets the engine's tee. The optimizer of the next
 * step that is applied then passes on each chunk as it was before its update, which is what this checkpoint needs, and
 * waits while the chunk is written. After the last chunk a thread syncs, reads back, renames and deletes. Evaluations
 * and skipped steps do not matter. `save->output_dir` must outlive the tee, and the engine too. Only one tee at a time,
 * and no ox_checkpoint_write until it is closed. */
struct ox_checkpoint_tee;
OX_MUST enum ox_status ox_checkpoint_tee_open(struct ox_engine *engine, const struct ox_run_state *state,
                                              const struct ox_checkpoint_save *save, struct ox_checkpoint_tee **out);
/* Whether the checkpoint is complete or has failed, so that close does not wait. Call it between steps. */
bool ox_checkpoint_tee_ready(struct ox_checkpoint_tee *tee);
/* Reads the missing chunks from the engine, which must not have applied a step since open. */
void ox_checkpoint_tee_fill(struct ox_checkpoint_tee *tee);
/* Ends the tee, between steps. If all chunks are written, it waits for the thread and returns the result like
 * ox_checkpoint_write. If some are missing, it gives up the checkpoint: OX_E_ABORTED. With several processes all close
 * it between the same steps, and if one of them lacks chunks all give up. *seconds is how long the optimizer waited for
 * the tee. */
OX_MUST enum ox_status ox_checkpoint_tee_close(struct ox_checkpoint_tee **tee, double *seconds);

/* Refuses a file, or a link that leads to no folder, in the place of a checkpoint. */
OX_MUST enum ox_status ox_checkpoint_check_places(const char *output_dir);
/* Records in a complete checkpoint an evaluation of its step that came after the save. */
OX_MUST enum ox_status ox_checkpoint_record_eval(const char *path, double best_eval_loss,
                                                 const struct ox_last_eval *eval);
/* Lets `best` lead to the best checkpoint of a branch of a run, and deletes its oldest ones beyond `total_limit` (0:
 * none), which counts the best one and the newest; neither is ever deleted. Those that are left and older than the
 * `state_limit` newest ones (0: none) lose their optimizer's state. A failure is a warning. */
void ox_checkpoint_keep(const char *output_dir, const struct ox_run_state *newest, uint64_t total_limit,
                        uint64_t state_limit);
/* Refuses to resume from a checkpoint of weights alone: OX_E_CONFIG naming the newest one beside it that has more. */
OX_MUST enum ox_status ox_checkpoint_check_state(const char *path);
/* The best checkpoint of the branch, and its loss: of the complete ones whose last evaluation is of their own step the
 * one with the smallest loss, of equal ones the first. False if there is none; nothing is said of damaged ones. */
bool ox_checkpoint_find_best(const char *output_dir, const struct ox_run_state *branch, char *path, double *loss);
/* Records in the newest checkpoint which one is the result of the run, for ox_checkpoint_find_newest: the one at
 * `result`, in the same folder. */
OX_MUST enum ox_status ox_checkpoint_record_result(const char *newest, const char *result);

/* Removes unfinished checkpoints that crashes left, because their space may be needed. Nobody else may be saving there.
 * Each save begins with this. */
OX_MUST enum ox_status ox_checkpoint_sweep(const char *output_dir);

/* Finds the newest complete checkpoint of a run folder: the one that `latest` names, else that of the highest step. Its
 * path goes to `path` (OX_PATH_BYTES). A folder without a valid trainer_state.json, or with a file missing or cut off,
 * is incomplete and skipped with a warning. OX_E_CONFIG if there is none. */
OX_MUST enum ox_status ox_checkpoint_find_latest(const char *output_dir, char *path);
/* Finds the newest checkpoint alike, or the one that it names as the result of the run, but skips none: one that is
 * not complete is OX_E_CORRUPT, with its path in `path` and a text that names the damage and what could be taken
 * instead. For commands that are asked for a run's result. */
OX_MUST enum ox_status ox_checkpoint_find_newest(const char *output_dir, char *path);
/* Finds the complete checkpoint of the highest step in one branch of a run, and ignores `latest`. */
OX_MUST enum ox_status ox_checkpoint_find_branch(const char *output_dir, const uint64_t run_id[2], uint64_t branch,
                                                 char *path);
/* Reads the run state of a checkpoint whose files are all there, with their sizes. OX_E_CORRUPT if
 * not, OX_E_CONFIG if it is no checkpoint of this program. */
OX_MUST enum ox_status ox_checkpoint_check_complete(const char *path, struct ox_run_state *state);
/* Whether `path` is a folder directly in `output_dir`, after resolving links. */
bool ox_checkpoint_is_in(const char *output_dir, const char *path);
/* Makes the checkpoint at `path`, in this folder, the latest; does nothing if its name is not checkpoint-N. */
OX_MUST enum ox_status ox_checkpoint_make_latest(const char *output_dir, const char *path);
/* Whether `name` is a checkpoint in the folder that this program wrote, complete or not: a fresh start may delete
 * it. */
bool ox_checkpoint_is_ours(const char *output_dir, const char *name);
/* Deletes such a checkpoint; if that is interrupted, ox_checkpoint_sweep deletes the rest. */
OX_MUST enum ox_status ox_checkpoint_remove(const char *output_dir, const char *name);

OX_MUST enum ox_status ox_checkpoint_read_state(const char *path, struct ox_run_state *state);
/* Reads every file listed in trainer_state.json and compares its hash; a difference is OX_E_CORRUPT naming the file. */
OX_MUST enum ox_status ox_checkpoint_verify(const char *path);
/* Verifies all files even if some are damaged: calls `seen` for each, on the caller's thread, and returns the first
 * failure. */
typedef void ox_checkpoint_seen(void *context, const char *name, uint64_t bytes, enum ox_status status);
OX_MUST enum ox_status ox_checkpoint_verify_each(const char *path, ox_checkpoint_seen *seen, void *context);

/* Refuses to train what was frozen when the checkpoint was saved: OX_E_CONFIG naming a tensor. More may be frozen. */
OX_MUST enum ox_status ox_checkpoint_check_trained(const char *path, const struct ox_model *model);

/* Loads a checkpoint's planes into the engine, between the caller's load_begin and load_commit. The load is exact if
 * the optimizer and format are those of the engine. Another format is rounded, and planes that the other optimizer did
 * not have begin at zero, with a warning. */
OX_MUST enum ox_status ox_checkpoint_load(struct ox_engine *engine, const char *path);
/* Loads a checkpoint as ox_checkpoint_load does; one of adapters beside the weights of the folder `base`, where that is
 * not NULL, instead of the one that the checkpoint names. */
OX_MUST enum ox_status ox_checkpoint_load_on(struct ox_engine *engine, const char *path, const char *base);

/* Fill the engine's planes with the weights of a Hugging Face folder, or with fresh ones by seed; moments are zero. A
 * weight that is not finite is OX_E_CORRUPT naming file and tensor. */
OX_MUST enum ox_status ox_engine_load_weights(struct ox_engine *engine, const struct ox_hf_folder *folder);
OX_MUST enum ox_status ox_engine_init_weights(struct ox_engine *engine, uint64_t seed);

/* Exports the weights alone, from a checkpoint or any model folder, as a Hugging Face folder at `path`, which must not
 * exist. It converts to `dtype` (F32, F16 or BF16) in bounded memory, without an engine. From a checkpoint it uses the
 * exact masters, whichever dtype its weights have; they are rounded to nearest, ties to even. A weight that F16 cannot
 * hold is OX_E_CONFIG naming its tensor. The adapters of the source, or of the folder `adapter` (or NULL), are merged
 * into the weights, each of which is rounded once. With `averages` those of the checkpoint are taken. */
OX_MUST enum ox_status ox_export_folder(const char *source, const char *adapter, bool averages, const char *path,
                                        enum ox_dtype dtype, uint64_t shard_bytes_max);

/* Writes a checkpoint of layers that shared their weights as one of layers that each have their own: at `path`, which
 * must not exist, with the same progress, so that a run can go on from it. The weights are the same; each layer gets
 * the moments of what it shared. Each sees from then on its own part of the gradient, which was the sum of `n` layers':
 * with SCALE the first moments are divided by n and the second ones by n^2. *layers: how many shared, at most. */
enum ox_unlock_moments { OX_UNLOCK_SCALE, OX_UNLOCK_COPY, OX_UNLOCK_ZERO, OX_UNLOCK_COUNT };
#define OX_UNLOCK_CHOICES "scale|copy|zero"
OX_MUST enum ox_status ox_checkpoint_unlock(const char *source, const char *path, enum ox_unlock_moments moments,
                                            uint32_t *layers);

/* Exports the mean of the weights of `count` checkpoints or model folders alike, without adapters: sums in double, in
 * the order given, rounded to float32 as PyTorch rounds and then to `dtype`. config.json and the tokenizer are those of
 * the last one. Folders of other models are OX_E_CONFIG. */
OX_MUST enum ox_status ox_export_mean(const char *const *sources, uint32_t count, const char *path, enum ox_dtype dtype,
                                      uint64_t shard_bytes_max);

/* Lists the complete checkpoints of a run's folder, the oldest first; the caller frees *paths. None is no error. */
OX_MUST enum ox_status ox_checkpoint_list(const char *output_dir, char (**paths)[OX_PATH_BYTES], uint32_t *count);

/* The format in which a folder is exported if no other is asked for: that of its weights, or of the model with which
 * the run began whose checkpoint it is. */
OX_MUST enum ox_status ox_export_dtype(const char *source, enum ox_dtype *dtype);

#ifdef __cplusplus
}
#endif
#endif
