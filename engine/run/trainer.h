/* A training run: from a configuration to a folder of checkpoints, through any interruption. */
#ifndef OX_ENGINE_TRAINER_H
#define OX_ENGINE_TRAINER_H

#include "engine/checkpoint/checkpoint.h"
#include "engine/config/config.h"
#include "engine/mesh/mesh_choice.h"
#include "engine/step/engine.h"
#include "engine/report/metrics.h"
#include "engine/run/advise.h"
#include "engine/run/host_memory.h"
#include "engine/run/predict.h"

#include <signal.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A run of fewer steps says nothing of their order (engine/step/order.h). */
enum { OX_TRAINER_FEW_STEPS = 8 };

/* Requests, set by signal handlers and read between steps; `stop` is read within steps too. */
struct ox_trainer_events {
    volatile sig_atomic_t stop;   /* signal number of the first INT, TERM or HUP: save, then end with 128 + n */
    volatile sig_atomic_t save;   /* USR1: save and go on                                              */
    volatile sig_atomic_t finish; /* USR2: save and end with 0                                         */
};

/* How a run begins. */
struct ox_run_start {
    const struct ox_run_state *state;
    uint64_t max_steps, epoch_steps; /* steps at which it ends; steps of an epoch */
    double epoch;                    /* as in struct ox_step_report */
    const char *origin;              /* what it begins with, for people */
};

/* What a run reports while it goes on, called on the trainer's thread; any may be NULL. `saved` comes when a checkpoint
 * is complete, which may be steps later than its step. */
struct ox_trainer_hooks {
    void *context;
    void (*planned)(void *context, const char *text); /* the text of the plan, once the data is known to train */
    void (*start)(void *context, const struct ox_run_start *start);
    void (*step)(void *context, const struct ox_step_report *report);
    void (*eval)(void *context, const struct ox_eval_report *report);
    void (*saved)(void *context, const char *path, const struct ox_save_report *report);
};

struct ox_trainer;

/* Reads the model's description and makes the plan; reserves and writes nothing. Opens data that is tokens already.
 * Texts are tokenized by ox_trainer_run; until then max_steps is 0 unless the options set it. If nothing fits the
 * budget, returns OX_E_CONFIG, and *out is not NULL: it has the nearest plan that exists, to be shown. */
OX_MUST enum ox_status ox_trainer_open(const struct ox_config *config, struct ox_trainer **out);
void ox_trainer_close(struct ox_trainer **trainer);

const struct ox_engine_plan *ox_trainer_plan(const struct ox_trainer *trainer);
/* In what gradients travel inexactly in a step; NULL: exactly. */
const char *ox_trainer_inexact(const struct ox_trainer *trainer, uint64_t step);
/* The prediction for its steps; for those of the nearest plan if nothing fits the budget. */
const struct ox_prediction *ox_trainer_prediction(const struct ox_trainer *trainer);
/* Predicts what more hardware or a larger step would gain; requires a plan that fits. */
OX_MUST enum ox_status ox_trainer_advise(const struct ox_trainer *trainer, struct ox_advice out[OX_ADVICE_COUNT]);
/* When each task of a rank's plan for training begins and ends, by the simulator, in seconds from the start of the
 * step; of a pipeline also those of the ranks of the other coordinates. The caller closes `out`, in any case. */
OX_MUST enum ox_status ox_trainer_predict_tasks(const struct ox_trainer *trainer, uint32_t rank,
                                                struct ox_predicted_tasks *out);
/* Steps of an epoch, of which the last one may be partial; 0: the data is not open yet. */
uint64_t ox_trainer_epoch_steps(const struct ox_trainer *trainer);
uint64_t ox_trainer_bad_rows(const struct ox_trainer *trainer); /* left out by --skip-bad-rows */
const struct ox_model *ox_trainer_model(const struct ox_trainer *trainer);
/* What a run has used so far, beside what was planned. */
struct ox_run_use {
    uint64_t host_peak_bytes;    /* of this process at its fullest, as the kernel counts it: pages of files that it maps
                                    are in it; 0: not known */
    uint64_t host_planned_bytes; /* the arenas of all ranks, and what the process takes beside them at most */
    uint64_t drive_planned_bytes, drive_read_bytes, drive_written_bytes; /* of this process's store since its opening */
    double step_flops;           /* operations of a step's products: of forward, and of wanted gradients */
    double machine_flops;        /* what the machine's products reach in a second; NaN: not measured, and no profile */
    uint64_t save_count;
    double save_stall_seconds; /* how long training has waited for checkpoints */
    struct ox_energy_used energy; /* of the steps, by the machine's counters */
};
void ox_trainer_use(const struct ox_trainer *trainer, struct ox_run_use *out);
/* What a plan comes to. */
struct ox_verdict {
    bool fits;
    const char *refusals; /* of a plan alone: why `train` would refuse this here, a line each; "" */
    uint64_t steps, epoch_steps; /* of the run and of an epoch; 0: not known */
    uint64_t from_step;          /* where it is resumed; 0: at its beginning, or not known */
    double total_seconds;        /* steps and evaluations that are left; NaN: not known */
    uint64_t used_bytes[OX_TIER_COUNT], given_bytes[OX_TIER_COUNT]; /* of a device, else of all ranks together */
    uint64_t drive_bytes; /* room on drives to have; 0: none are used */
};
void ox_trainer_verdict(const struct ox_trainer *trainer, struct ox_verdict *out);

/* Writes the text of plan.txt: the verdict, which takes the change that helps most from `advice` (or NULL), then model,
 * step, memory, traffic. The caller frees it. */
OX_MUST enum ox_status ox_trainer_plan_text(const struct ox_trainer *trainer, enum ox_plan_detail detail,
                                            const struct ox_advice *advice, char **text);

/* How the context ranks of a plan, where it has any, see each other's keys and values. */
enum ox_context_mode ox_trainer_context_mode(const struct ox_trainer *trainer);
/* What --mesh auto has found; NULL where it was not asked for. */
const struct ox_mesh_choice *ox_trainer_meshes(const struct ox_trainer *trainer);

/* What ranks may divide, as --sharding names it, and what was predicted for it. */
struct ox_sharding_tried {
    const char *name;
    double seconds; /* of a step, on average; infinite: it has no plan */
    enum ox_sim_resource binding; /* what is at its limit for longest, and for which share of the step */
    double binding_share;
};
enum { OX_SHARDINGS_MAX = 7 };
struct ox_shardings_tried {
    struct ox_sharding_tried tried[OX_SHARDINGS_MAX];
    uint32_t count, taken; /* count 0: none were compared */
};
/* What --sharding auto has compared. */
const struct ox_shardings_tried *ox_trainer_shardings(const struct ox_trainer *trainer);

/* What the checkpoints of a run take. */
struct ox_checkpoint_room {
    uint64_t each_bytes, most_bytes; /* one checkpoint; all that are kept at a time */
    uint64_t written, kept;          /* how many are left to write; 0: not known       */
    uint64_t free_bytes;             /* UINT64_MAX: not known                          */
    uint64_t profile_bytes;          /* of the drives of a profile, beside the store; UINT64_MAX: not known */
};
void ox_trainer_room(const struct ox_trainer *trainer, struct ox_checkpoint_room *out);

/* Trains: reserves memory, starts fresh or resumes, steps, evaluates, saves. The run ends with a checkpoint. *ended_by
 * is the signal that ended it, or 0. `events` outlives the call. */
OX_MUST enum ox_status ox_trainer_run(struct ox_trainer *trainer, const struct ox_trainer_events *events,
                                      const struct ox_trainer_hooks *hooks, int *ended_by);
/* Whether the run ended because evaluations no longer improved (--early-stopping-patience), which the log says. */
bool ox_trainer_ended_early(const struct ox_trainer *trainer);
/* Whether a stop came between the last step, whose weights are saved, and the evaluation that belongs to it. */
bool ox_trainer_lacks_eval(const struct ox_trainer *trainer);
/* Path of the checkpoint that the run ended with, or that is its best one if that is asked for; "" before that. */
const char *ox_trainer_result(const struct ox_trainer *trainer);

/* Removes the note in a folder of --nvme that the run whose store is there has finished. A note that stays would let
 * other runs replace the store, whatever it gets from here on. */
OX_MUST enum ox_status ox_run_forget_finished(const char *folder);

/* Whether the folder is that of a run: it has run.json, or its copy. */
bool ox_run_exists(const char *output_dir);
/* Writes to `path` (OX_CONFIG_TEXT_BYTES) what --model means: `model`, or of a run its newest checkpoint. OX_E_CONFIG:
 * there is nothing, or no checkpoint; OX_E_CORRUPT: the newest checkpoint is damaged. */
OX_MUST enum ox_status ox_run_find_model(const char *model, char *path);
/* Writes to `path` likewise what --adapter means: `adapter`, or of a run its newest checkpoint. */
OX_MUST enum ox_status ox_run_find_adapter(const char *adapter, char *path);
/* Writes to `path` (OX_PATH_BYTES) the folder whose tokenizer and chat template a model has with an adapter ("": none):
 * those that the adapter was trained with, if its folder has them, else the model's. */
OX_MUST enum ox_status ox_run_find_tokenizer(const char *model, const char *adapter, char *path);

/* Evaluates a model folder alone, over windows of one source after another: the mean loss of all predicted tokens,
 * which are all but the first of a text unless the options say otherwise. `out` gets the result of all together. Of
 * preferences (loss.dpo) the loss is that of pairs against eval.reference, which is asked first and closed; windows are
 * pairs, parts are as in a run, and there is no perplexity. */
struct ox_eval_source {
    const char *path;
    uint64_t windows, windows_done;
    uint64_t data_tokens; /* all that the source has, also those that are not predicted */
    struct ox_eval_report report;
};
/* Called on the caller's thread; each may be NULL: with what is known of a source after each batch, and with its
 * result. */
struct ox_eval_hooks {
    void *context;
    void (*went)(void *context, const struct ox_eval_source *source);
    void (*seen)(void *context, const struct ox_eval_source *source);
};
OX_MUST enum ox_status ox_evaluate(const struct ox_config *config, const struct ox_eval_hooks *hooks,
                                   struct ox_eval_source *out);

#ifdef __cplusplus
}
#endif
#endif
