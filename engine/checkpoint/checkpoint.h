/* Checkpoints: a folder that transformers loads, plus what a bit-exact resume needs, streamed chunk by chunk.
 *
 *     checkpoint-<step>/   config.json, model*.safetensors (+ index), tokenizer files of the source model,
 *                          optimizer.safetensors: <name>.exp_avg, <name>.exp_avg_sq where the optimizer has
 *                          one, and, when the weights are saved as BF16, <name>.master; all F32, which holds
 *                          every format of the state exactly
 *                          trainer_state.json: struct ox_run_state, and the names, sizes and XXH3-128 of
 *                          all other files
 *     latest               text: the newest checkpoint's name; replaced by rename
 *
 * A folder is written as checkpoint-<step>.tmp, every file synced and read back from the drive, where it must be what
 * was written, then renamed; older ones are deleted only after. What does not fit on the file system is refused before
 * a byte is written. */
#ifndef OX_ENGINE_CHECKPOINT_H
#define OX_ENGINE_CHECKPOINT_H

#include "engine/step/engine.h"
#include "engine/hf/hf.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where a run stands; the meta in the store's root begins with the same struct. Fixed size, no pointers. Version 2 had
 * zeros in the place of optimizer and moments, which is what it knew: AdamW in fp32. */
enum { OX_RUN_STATE_VERSION = 3, OX_RUN_STATE_OLDEST = 2 };
struct ox_run_state {
    uint32_t version;
    uint16_t optimizer; /* enum ox_optim_kind */
    uint16_t moments;   /* enum ox_moments */
    uint64_t run_id[2];
    uint64_t branch;          /* drawn anew whenever a run goes on from a checkpoint that the user named: steps
                                 are compared within a branch only */
    uint64_t step;            /* of the run: batches consumed                            */
    uint64_t optimizer_steps; /* applied updates: step less the skipped ones             */
    uint64_t cursor;          /* windows drawn from the data so far                       */
    uint64_t seed;
    uint64_t data_fingerprint;
    uint64_t tokens_seen;     /* counted targets                                          */
    uint64_t nonfinite_steps, nonfinite_in_row;
    uint64_t numerics_hash;   /* of all options that may change bits: a resume with others says so */
    double best_eval_loss;    /* infinity before the first evaluation                     */
};

struct ox_checkpoint_save {
    const char *output_dir;
    const char *source_model;       /* its companions (tokenizer ...) are copied; "" = none */
    const json_t *original_config;  /* or NULL */
    enum ox_dtype weights_dtype;    /* F32 or BF16 (BF16 writes `hi` as it is) */
    uint64_t shard_bytes_max;
    uint64_t total_limit;           /* checkpoints kept, the newest included; 0 = all */
};

/* Saves and makes it the latest. On failure nothing of it stays and older checkpoints are untouched; a failure to
 * write `latest` alone is a warning. A checkpoint of this run, branch and step that exists already and is complete
 * is left as it is; another folder of its name is renamed to checkpoint-<step>.old-1 and so on, with a warning. The
 * total limit deletes complete checkpoints of this branch with a lower step; each save deletes what crashes left as
 * .tmp. */
OX_MUST enum ox_status ox_checkpoint_write(struct ox_engine *engine, const struct ox_run_state *state,
                                           const struct ox_checkpoint_save *save);

/* The same folder, byte for byte, without reads of its own and with little waiting, for an engine with a store: open
 * creates the files and sets the engine's tee; the optimizer of the next step that is taken shows each chunk as it was,
 * which is as this checkpoint needs it, and waits while the chunk is written; once all are, a thread syncs, reads back,
 * renames and deletes. Evaluations and skipped steps change nothing. `save->output_dir` outlives the tee, which ends
 * before the engine does. One at a time, and no ox_checkpoint_write meanwhile. */
struct ox_checkpoint_tee;
OX_MUST enum ox_status ox_checkpoint_tee_open(struct ox_engine *engine, const struct ox_run_state *state,
                                              const struct ox_checkpoint_save *save, struct ox_checkpoint_tee **out);
/* Between steps: whether close would not have to wait, because it is complete or has failed. */
bool ox_checkpoint_tee_ready(struct ox_checkpoint_tee *tee);
/* Takes the chunks that were not shown yet from the engine, which must stand where it stood at open. */
void ox_checkpoint_tee_fill(struct ox_checkpoint_tee *tee);
/* Between steps: waits for the thread where all chunks are in; gives up a checkpoint where some are missing, which is
 * OX_E_ABORTED. Returns what came of it, as ox_checkpoint_write does; *seconds is how long the optimizer waited. */
OX_MUST enum ox_status ox_checkpoint_tee_close(struct ox_checkpoint_tee **tee, double *seconds);

/* Path of the newest complete checkpoint of a run folder into `path` (OX_PATH_BYTES); OX_E_CONFIG when there
 * is none. `latest` is a hint that goes first, then the highest step; a folder without a valid
 * trainer_state.json or with a file missing or cut off is not complete and is passed over with a warning. */
OX_MUST enum ox_status ox_checkpoint_find_latest(const char *output_dir, char *path);
/* The same among the checkpoints of one branch of a run, whatever `latest` says: the highest step. */
OX_MUST enum ox_status ox_checkpoint_find_branch(const char *output_dir, const uint64_t run_id[2], uint64_t branch,
                                                 char *path);
/* Whether `path` is a folder that lies directly in `output_dir`, links followed. */
bool ox_checkpoint_is_in(const char *output_dir, const char *path);
/* Makes the checkpoint at `path` of this folder the latest; nothing happens when its name is not checkpoint-N. */
OX_MUST enum ox_status ox_checkpoint_make_latest(const char *output_dir, const char *path);
/* Whether `name` is a checkpoint, or an unfinished one, that this program has written into the folder: what a fresh
 * start may delete. */
bool ox_checkpoint_is_ours(const char *output_dir, const char *name);

OX_MUST enum ox_status ox_checkpoint_read_state(const char *path, struct ox_run_state *state);
/* Reads every file named in trainer_state.json and compares its hash; OX_E_CORRUPT names the file. */
OX_MUST enum ox_status ox_checkpoint_verify(const char *path);
/* The same, without stopping at a damaged file: `seen` is told of each, and the first failure is returned. */
typedef void ox_checkpoint_seen(void *context, const char *name, uint64_t bytes, enum ox_status status);
OX_MUST enum ox_status ox_checkpoint_verify_each(const char *path, ox_checkpoint_seen *seen, void *context);

/* Puts a checkpoint's planes into the engine (between load_begin and load_commit of the caller): exactly, when it was
 * saved by the engine's optimizer and format. From another format it is rounded, and what another optimizer did not
 * have begins at zero; a warning says so. */
OX_MUST enum ox_status ox_checkpoint_load(struct ox_engine *engine, const char *path);

/* Initial planes from a Hugging Face folder, or fresh ones by seed; moments zero. A weight that is no finite
 * number is OX_E_CORRUPT naming file and tensor. */
OX_MUST enum ox_status ox_engine_load_weights(struct ox_engine *engine, const struct ox_hf_folder *folder);
OX_MUST enum ox_status ox_engine_init_weights(struct ox_engine *engine, uint64_t seed);

/* Weights alone, as a Hugging Face folder at `path` (which must not exist): export from a checkpoint folder
 * or from any model folder, converting dtype (F32 or BF16), in bounded memory, without an engine. F32 from a
 * checkpoint takes the exact masters, whichever dtype its weights have. */
OX_MUST enum ox_status ox_export_folder(const char *source, const char *path, enum ox_dtype dtype,
                                        uint64_t shard_bytes_max);

#ifdef __cplusplus
}
#endif
#endif
