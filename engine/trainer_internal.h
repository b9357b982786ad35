/* The trainer's inside, shared by trainer.c (opening), trainer_start.c (fresh or resumed) and trainer_run.c. */
#ifndef OX_ENGINE_TRAINER_INTERNAL_H
#define OX_ENGINE_TRAINER_INTERNAL_H

#include "base/file.h"
#include "engine/data.h"
#include "engine/schedule.h"
#include "engine/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the store's root carries: where the run stands, and what metrics.jsonl has to say of its last step, since a
 * process may end between the commit and that line. */
struct ox_commit_note {
    struct ox_run_state state;
    double loss, grad_norm, grad_scale, learning_rate;
    uint64_t tokens; /* 0: no step was taken to get here */
};

/* run.json: who the run is, where it stands among what it was forked from, and which drives it has. */
struct ox_run_identity {
    uint64_t run_id[2];
    uint64_t branch;              /* as in struct ox_run_state */
    uint64_t parent[2];           /* the run whose checkpoint this one began with; 0 = none */
    char from[OX_PATH_BYTES];     /* what the branch began with: a checkpoint's name in the folder, or a path; or "" */
    char nvme[OX_CONFIG_NVME_MAX][OX_CONFIG_TEXT_BYTES];
    uint32_t nvme_count;
};

struct ox_trainer {
    struct ox_config config;
    struct ox_hf_folder *folder;
    struct ox_data *data, *eval_data; /* eval_data == data when held out of it */
    struct ox_sampler train, eval;
    struct ox_schedule schedule;
    uint64_t max_steps;
    struct ox_engine_config engine_config;
    struct ox_engine_plan *plan; /* until the engine takes it over */
    struct ox_engine *engine;
    const char *nvme_folders[OX_CONFIG_NVME_MAX];
    uint64_t nvme_bytes[OX_CONFIG_NVME_MAX];
    int lock_fd; /* of the run's folder, locked until the end; -1 = not yet */
    struct ox_run_identity identity;
    struct ox_run_state state;
    struct ox_commit_note note; /* of the last commit; as found in the store after a resume from it */
    struct ox_metrics *metrics;
    const struct ox_trainer_events *events;
    const struct ox_trainer_hooks *hooks;
    bool stepped;      /* a step was taken by this process */
    bool is_torn;      /* a step failed within: what is in memory is not to be saved */
    bool save_failed;  /* the last attempt to end with a checkpoint */
    double step_seconds; /* of the last one: whether a stop can wait for the next */
    uint64_t saved_step; /* step + 1 of the last checkpoint; 0 = none */
    int32_t *tokens; /* seq + 1 */
    uint8_t *marks;  /* of each: OX_TOKEN_* */
    char result[OX_PATH_BYTES];
};

/* Folder, run identity, then weights or state: afterwards the engine stands at trainer->state. */
OX_MUST enum ox_status ox_trainer_start(struct ox_trainer *trainer);

/* ---- the run's folder: trainer_folder.c ---- */

bool ox_run_exists(const char *output_dir);
/* Until the process ends no other one gets it; OX_E_BUSY. The folder exists. */
OX_MUST enum ox_status ox_run_lock(struct ox_trainer *trainer);
OX_MUST enum ox_status ox_run_read_identity(const char *output_dir, struct ox_run_identity *identity);
OX_MUST enum ox_status ox_run_write_identity(const char *output_dir, const struct ox_run_identity *identity);
/* Random words, none of them 0. */
OX_MUST enum ox_status ox_run_draw(uint64_t *words, uint32_t count);
/* The drives of the configuration, by their real paths; true when they differ from what was recorded. */
bool ox_run_record_drives(struct ox_run_identity *identity, const struct ox_trainer *trainer);
bool ox_run_has_store(const struct ox_trainer *trainer);
/* Refuses store files that are not this run's in the given drives. */
OX_MUST enum ox_status ox_run_check_stores(const struct ox_trainer *trainer);
/* Refuses to go on by itself without the drives that hold what was trained last. */
OX_MUST enum ox_status ox_run_check_drives_given(const struct ox_trainer *trainer);
/* Refuses when what the run reads lies in what ox_run_clear removes. */
OX_MUST enum ox_status ox_run_check_inputs(const struct ox_trainer *trainer);
/* Removes what a run has written into its folder, and nothing else. */
OX_MUST enum ox_status ox_run_clear(const char *output_dir);
/* Removes the trigger files that an earlier process may have left. */
void ox_run_clear_triggers(const char *output_dir);

/* Hash of everything that may change bits. */
uint64_t ox_trainer_numerics_hash(const struct ox_trainer *trainer);

/* The engine's view of a configuration; `model` outlives it. */
OX_MUST enum ox_status ox_trainer_engine_config(struct ox_trainer *trainer, const struct ox_model *model);

/* Fills the batches with the windows from `cursor` on, at most `window_max`; the rest is not counted. */
OX_MUST enum ox_status ox_trainer_fill(struct ox_trainer *trainer, const struct ox_data *data,
                                       const struct ox_sampler *sampler, uint64_t cursor, uint64_t window_max,
                                       uint64_t *target_count);
OX_MUST enum ox_status ox_trainer_eval(struct ox_trainer *trainer, struct ox_eval_report *out);

#ifdef __cplusplus
}
#endif
#endif
