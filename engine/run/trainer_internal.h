/* The trainer's inside, shared by trainer.c (opening), trainer_start.c (fresh or resumed), trainer_run.c and
 * trainer_save.c. */
#ifndef OX_ENGINE_TRAINER_INTERNAL_H
#define OX_ENGINE_TRAINER_INTERNAL_H

#include "base/file.h"
#include "engine/run/persist.h"
#include "engine/run/predict.h"
#include "engine/report/scalars.h"
#include "engine/run/schedule.h"
#include "engine/run/trainer.h"
#include "engine/data/windows.h"

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

/* What the run learns from, and what it is evaluated on. */
struct ox_trainer_input {
    char tokenizer_path[OX_PATH_BYTES], cache_dir[OX_PATH_BYTES]; /* "": none */
    struct ox_data *data[OX_CONFIG_DATA_MAX], *eval_data;         /* eval_data: of --eval-data, or NULL */
    uint32_t data_count;                                          /* 0: not opened yet */
    uint32_t vocab;                                               /* ids are below it */
    struct ox_windows *train, *eval;                              /* eval: NULL where nothing is evaluated */
    bool eval_alone;                                              /* `offload eval`: texts are taken as they stand */
};

/* The drives of --nvme. */
struct ox_trainer_drives {
    const char *folders[OX_CONFIG_NVME_MAX];
    uint64_t bytes[OX_CONFIG_NVME_MAX];
    uint64_t speeds[OX_MACHINE_DRIVES_MAX]; /* as the machine has them */
};

/* Where steps are reported. */
struct ox_trainer_reports {
    struct ox_metrics *metrics;
    struct ox_tensorboard *tensorboard; /* NULL: not asked for */
    struct ox_prometheus *prometheus;   /* likewise */
};

/* How often the state is committed to the store. */
struct ox_trainer_persist {
    uint64_t steps, logged_steps; /* a commit every `steps` steps; the number that the log names */
    uint64_t last_step;           /* the last one that is committed, or will be within the next step */
    struct ox_persist_times times;
};

/* Checkpoints: the last one, and the one that is being written while the run goes on. */
struct ox_trainer_saving {
    uint64_t last_step;            /* step + 1 of the last complete checkpoint; 0: none */
    bool failed;                   /* the last attempt to end with a checkpoint failed */
    struct ox_checkpoint_tee *tee; /* of a checkpoint that is not complete yet, or NULL */
    struct ox_run_state tee_state;
    uint64_t tee_begin_ns; /* of ox_clock_ns */
    double tee_seconds;    /* that training has waited for it so far */
};

struct ox_trainer {
    struct ox_config config;
    struct ox_hf_folder *folder;
    struct ox_trainer_input input;
    struct ox_schedule schedule;
    uint64_t max_steps;
    struct ox_engine_config engine_config;
    struct ox_cuda_device_info gpu;  /* zero where none is used, or none was looked for */
    char no_gpu[256];                /* why there is none, where one was looked for; else "" */
    struct ox_engine_plan *plan;     /* until the engine takes it over */
    struct ox_engine *engine;
    struct ox_machine machine;       /* that the plan is for */
    struct ox_prediction prediction; /* of the plan, or of the nearest one */
    struct ox_trainer_drives drives;
    int lock_fd; /* of the run's folder, locked until the end; -1: not yet */
    struct ox_run_identity identity;
    struct ox_run_state state;
    struct ox_commit_note note; /* of the last commit; as found in the store after a resume from it */
    struct ox_trainer_reports reports;
    const struct ox_trainer_events *events;
    const struct ox_trainer_hooks *hooks;
    uint64_t retried_step, retry_count; /* the last step that was taken again after a drive failed; how many */
    struct ox_trainer_persist persist;
    struct ox_trainer_saving saving;
    bool stepped;        /* this process has taken a step */
    bool is_torn;        /* a step or its commit failed: the engine's planes must not be saved as this state */
    double step_seconds; /* of the last step: whether a stop can wait for the next one */
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
/* Removes run.json: there is no run any more. */
void ox_run_forget_identity(const char *output_dir);
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


/* The engine's view of a configuration; `model` outlives it. */
OX_MUST enum ox_status ox_trainer_engine_config(struct ox_trainer *trainer, const struct ox_model *model);

/* ---- the device: trainer_device.c ---- */

/* Decides what `auto` leaves open, in trainer->config too, and sets the device's budget. A GPU that is asked for and
 * not there is OX_E_DEVICE; a plan alone for a GPU and memory that are named needs none. */
OX_MUST enum ox_status ox_trainer_pick_device(struct ox_trainer *trainer);
/* Makes trainer->machine one that computes on that device. */
void ox_trainer_fit_machine(struct ox_trainer *trainer);
/* `seed` and what of the GPU and its libraries may change bits. */
uint64_t ox_trainer_gpu_hash(const struct ox_trainer *trainer, uint64_t seed);
enum { OX_DEVICE_LINE_BYTES = 384 };
/* What a run computes on, in words. */
const char *ox_trainer_device_text(const struct ox_trainer *trainer, char text[OX_DEVICE_LINE_BYTES]);

/* ---- data and rows: trainer_data.c ---- */

/* Whether what --data and the like name is there, and which tokenizer reads it. */
OX_MUST enum ox_status ox_trainer_check_data(struct ox_trainer *trainer);
/* False where text must be tokenized first. */
OX_MUST enum ox_status ox_trainer_data_ready(struct ox_trainer *trainer, bool *ready);
/* All sources as tokens; with ox_trainer_open_data also trainer->input.train and trainer->input.eval. */
OX_MUST enum ox_status ox_trainer_open_sources(struct ox_trainer *trainer);
OX_MUST enum ox_status ox_trainer_open_data(struct ox_trainer *trainer);
void ox_trainer_close_data(struct ox_trainer *trainer);
uint64_t ox_trainer_data_fingerprint(const struct ox_trainer *trainer);
/* As the options say, without sources; `chat`: what they leave open is as conversations have it. The data is open. */
OX_MUST enum ox_status ox_trainer_windows_config(const struct ox_trainer *trainer, bool chat,
                                                 struct ox_windows_config *out);
/* To the log: how documents fill the rows, and what is lost. */
void ox_trainer_log_rows(const struct ox_windows *windows, const char *what, uint32_t seq);
/* Fills the batches with the rows from `cursor` on, at most `window_max`; the rest is not counted. */
OX_MUST enum ox_status ox_trainer_fill(struct ox_trainer *trainer, struct ox_windows *windows, uint64_t cursor,
                                       uint64_t window_max, uint64_t *target_count);

/* ---- trainer_persist.c ---- */

enum { OX_PERSIST_LINE_BYTES = 256 };
/* A line about how often the state is persisted; "" where every step is. */
const char *ox_trainer_persist_text(const struct ox_trainer *trainer, char *text);
/* The engine stands at trainer->state, which is committed; tells what was decided. */
void ox_trainer_persist_start(struct ox_trainer *trainer);
/* Whether this step, the next one, stays in memory. */
bool ox_trainer_stays_in_memory(const struct ox_trainer *trainer, uint64_t step);
/* What a step took that is like most. */
void ox_trainer_persist_note(struct ox_trainer *trainer, const struct ox_step_result *result, double seconds);
/* Commits where the run stands, unless it is. A drive that refuses is only told of: memory has the state. */
void ox_trainer_persist(struct ox_trainer *trainer);

/* ---- trainer_save.c ---- */

/* Commits what is pending. When that fails the engine stands before where the run does, and nothing is saved until they
 * agree again. */
OX_MUST enum ox_status ox_trainer_finish_update(struct ox_trainer *trainer);
/* True where ox_trainer_save_behind reads planes before the next step after all. */
bool ox_trainer_save_waits(const struct ox_trainer *trainer);

/* Where the run ends: its state in the store and as a checkpoint, complete on return, unless it is the last one
 * saved. */
OX_MUST enum ox_status ox_trainer_save(struct ox_trainer *trainer);
/* Saves; a failure is a warning and the run goes on, because the state is not at risk. */
void ox_trainer_save_or_warn(struct ox_trainer *trainer);
/* Begins a checkpoint that the next step's optimizer fills chunk by chunk while the run goes on. Without a store of two
 * generations nothing streams the chunks, so it saves at once. First waits for an earlier checkpoint. */
void ox_trainer_save_behind(struct ox_trainer *trainer);
/* After each step: reports a checkpoint that has become complete or has failed meanwhile. */
void ox_trainer_save_poll(struct ox_trainer *trainer);
/* Before a run ends by a fault that has not touched its state: the work of this process is kept. Returns the fault. */
OX_MUST enum ox_status ox_trainer_save_and_fail(struct ox_trainer *trainer, enum ox_status failure);

/* ---- trainer_reports.c ---- */

/* Refuses a --trace-bytes that is too little for the plan. */
OX_MUST enum ox_status ox_trainer_check_trace(const struct ox_trainer *trainer);
/* The engine stands at trainer->state. */
OX_MUST enum ox_status ox_trainer_open_reports(struct ox_trainer *trainer);
/* The run has gone back to trainer->state: what is said of later steps is cut off, or marked as undone. */
OX_MUST enum ox_status ox_trainer_rewind_reports(struct ox_trainer *trainer);
void ox_trainer_report_step(struct ox_trainer *trainer, const struct ox_step_report *report);
void ox_trainer_report_eval(struct ox_trainer *trainer, const struct ox_eval_report *report);
void ox_trainer_close_reports(struct ox_trainer *trainer);

/* ---- trainer_wear.c ---- */

enum { OX_WEAR_LINE_BYTES = 320 };
/* A line about what the run writes to a drive; "" without one, or while the number of steps is not known. */
const char *ox_trainer_wear_text(const struct ox_trainer *trainer, char *text);
/* Refuses what would use up too much of a drive; the number of steps is known. */
OX_MUST enum ox_status ox_trainer_check_wear(const struct ox_trainer *trainer);

/* ---- trainer.c ---- */

/* What a prediction of the present plan needs. */
struct ox_predict_input ox_trainer_predict_input(const struct ox_trainer *trainer);
/* Opens trainer->folder. */
OX_MUST enum ox_status ox_trainer_open_model(struct ox_trainer *trainer, bool weights);
/* A longer window than the model can attend to is the common surprise of the default: says so and goes on. */
void ox_trainer_cap_sequence(struct ox_trainer *trainer);
/* Number of steps and schedule, once the data is open or --max-steps says. */
void ox_trainer_set_steps(struct ox_trainer *trainer);
/* Loss over the first `limit` rows (0: all) of an epoch: its sum over the targets that count. */
struct ox_eval_sum {
    double loss;
    uint64_t targets, batches;
    bool with_update; /* of the step before */
    uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT];
};
OX_MUST enum ox_status ox_trainer_eval_rows(struct ox_trainer *trainer, struct ox_windows *windows, uint64_t limit,
                                            struct ox_eval_sum *out);
OX_MUST enum ox_status ox_trainer_eval(struct ox_trainer *trainer, struct ox_eval_report *out);

#ifdef __cplusplus
}
#endif
#endif
