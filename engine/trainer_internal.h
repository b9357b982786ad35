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
    struct ox_run_state state;
    struct ox_commit_note note; /* of the last commit; as found in the store after a resume from it */
    struct ox_metrics *metrics;
    const struct ox_trainer_events *events;
    const struct ox_trainer_hooks *hooks;
    double step_seconds; /* of the last one: whether a stop can wait for the next */
    uint64_t saved_step; /* step + 1 of the last checkpoint; 0 = none */
    int32_t *tokens; /* seq + 1 */
    bool *trained;
    char result[OX_PATH_BYTES];
};

/* Folder, run identity, then weights or state: afterwards the engine stands at trainer->state. */
OX_MUST enum ox_status ox_trainer_start(struct ox_trainer *trainer);

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
