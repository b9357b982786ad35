/* The trainer's inside, and the functions that the files trainer*.c share. */
#ifndef OX_ENGINE_TRAINER_INTERNAL_H
#define OX_ENGINE_TRAINER_INTERNAL_H

#include "base/file.h"
#include "engine/config/mesh_words.h"
#include "engine/run/host_memory.h"
#include "engine/run/predict.h"
#include "engine/report/experts.h"
#include "engine/report/scalars.h"
#include "engine/run/schedule.h"
#include "engine/run/trainer.h"
#include "engine/data/reference.h"
#include "engine/data/windows.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a commit keeps in the store's root: the state of the run, and the line of metrics.jsonl for its last step,
 * because a process may end between the commit and that line. */
struct ox_commit_note {
    struct ox_run_state state;
    double loss, grad_norm, grad_scale, learning_rate;
    uint64_t tokens; /* tokens of that step; 0: no step led to this state */
};

enum { OX_ARITHMETIC_BYTES = 256, OX_FORMATS_BYTES = 2 * OX_LAYERS_MAX + 40 };

/* run.json: identity of the run, the branch that it is on and where that began, and its drives. There is a copy beside
 * it, and each has a checksum since version 5. */
struct ox_run_identity {
    uint64_t run_id[2];
    uint64_t branch;              /* as in struct ox_run_state */
    uint64_t parent[2];           /* the run whose checkpoint this one began with; 0 = none */
    char from[OX_PATH_BYTES];     /* what the branch began with: a checkpoint's name in the folder, a path, or "" */
    char nvme[OX_CONFIG_NVME_MAX][OX_CONFIG_TEXT_BYTES];
    uint32_t nvme_count;
    int64_t clock_s; /* when the run began, as in struct ox_config */
    bool has_clock;  /* runs that began before version 3 have none */
    bool holds_whole; /* what it holds out begins with a document; before version 4 it could cut one in two */
    bool starting;    /* what it begins with is not committed yet: its stores may be half made, and hold nothing */
    bool clearing;    /* what the run has left is being removed, for a new run in its place; `starting` is set too */
    bool finished;    /* it took all its steps, and its last checkpoint has all that its stores have */
    bool from_scratch, knows_origin; /* it began with fresh weights; earlier versions did not record that */
    char formats[OX_FORMATS_BYTES]; /* how units are kept, a letter for each (trainer_options.c); "": as masters */
    char arithmetic[OX_ARITHMETIC_BYTES]; /* what computes (ox_cpu_gemms_text, ox_cuda_gemms_text); "": not known */
    bool is_from_copy, is_outdated; /* run.json could not be read; the two are not both this */
};

enum { OX_NO_BYTES_BYTES = 1200 };
/* Data for training and for evaluation. */
struct ox_trainer_input {
    char tokenizer_path[OX_PATH_BYTES], cache_dir[OX_PATH_BYTES]; /* "": none */
    char no_bytes[OX_NO_BYTES_BYTES]; /* as in struct ox_corpus_config */
    struct ox_data *data[OX_CONFIG_DATA_MAX];
    struct ox_eval_sets eval_sets;              /* --eval-data */
    struct ox_data *eval_data[OX_EVAL_SETS_MAX]; /* of each set */
    uint64_t bad_rows; /* of all of them: left out because they cannot be used */
    uint32_t data_count;                                          /* 0: not opened yet */
    uint32_t vocab;                                               /* ids are below it */
    int64_t clock_s;                                              /* when the run began, as in struct ox_config */
    bool holds_whole;                                             /* as in struct ox_run_identity */
    struct ox_hf_tokens tokens;                                   /* for saved folders; has_tokens: they are known */
    bool has_tokens;
    json_t *saved_config;                                         /* config.json with them, or NULL */
    bool said_template;                                           /* the log names the chat template */
    bool has_prompts, has_rows;                                   /* some data has */
    struct ox_windows *train, *eval;                              /* eval: NULL where nothing is evaluated */
    struct ox_windows *eval_more[OX_EVAL_SETS_MAX]; /* of the sets behind the first one, whose windows `eval` is */
    bool leaves_nothing;                                          /* no token cache in the output folder */
    bool eval_alone;                                              /* `offload eval`: texts are used as they are */
};

/* The drives of --nvme. */
struct ox_trainer_drives {
    const char *folders[OX_CONFIG_NVME_MAX]; /* of this process's store */
    const char *paths[OX_CONFIG_NVME_MAX];   /* as the options have them */
    uint64_t bytes[OX_CONFIG_NVME_MAX];      /* what that may take */
    uint64_t all_bytes[OX_CONFIG_NVME_MAX];  /* what the stores of all processes may take */
    char (*own)[OX_PATH_BYTES]; /* folders of this process alone, where there are several processes; else NULL */
    uint64_t speeds[OX_MACHINE_DRIVES_MAX]; /* as the machine has them */
};

/* Where steps are reported. */
struct ox_trainer_reports {
    struct ox_metrics *metrics;
    struct ox_tensorboard *tensorboard; /* NULL: not asked for */
    struct ox_prometheus *prometheus;   /* NULL: not asked for */
    struct ox_energy *energy;           /* NULL: nothing counts it */
    struct ox_energy_used used;         /* by the end of the last step */
};

/* How often the state is committed to the store. */
struct ox_trainer_persist {
    uint64_t steps, logged_steps; /* a commit every `steps` steps; the number that the log has last named */
    uint64_t last_step;           /* the last one that is committed, or will be within the next step */
    struct ox_persist_times times;
};

/* Checkpoints: the last one, and the one that is being written while the run goes on. */
struct ox_trainer_saving {
    uint64_t last_step;            /* step + 1 of the last complete checkpoint; 0: none */
    bool failed;                   /* the last attempt to end with a checkpoint failed */
    bool taken;                    /* something else is in the folder's place, which may get no checkpoint */
    struct ox_checkpoint_tee *tee; /* fills a checkpoint that is not complete yet; or NULL */
    struct ox_run_state tee_state;
    uint64_t tee_begin_ns; /* when it began, by ox_clock_ns */
    double tee_seconds;    /* how long training has waited for it so far */
    uint64_t count;        /* checkpoints of this process */
    double stall_seconds;  /* how long training has waited for them */
};

/* What evaluations have shown, alike on all processes: trainer_best.c. */
struct ox_trainer_best {
    struct ox_early_stop stop;
    double saved_loss; /* the smallest of the checkpoints that were saved right after an evaluation; NaN: none */
    bool told;         /* that the run ends early */
};

struct ox_trainer {
    struct ox_config config;
    uint64_t opened_ns; /* when the trainer was opened, by ox_clock_ns */
    struct ox_host_claim claim; /* what the process takes of host memory */
    char memory_files[320];     /* folders of the run that are memory, for claim.files */
    bool is_over;               /* the plan is the nearest one, over the budget */
    char nearest[OX_ERROR_TEXT_BYTES]; /* then: what would fit */
    char refusals[2 * OX_ERROR_TEXT_BYTES]; /* of a plan alone: why `train` would not start, a line each */
    uint64_t given_host_bytes, given_device_bytes; /* as the options have them, before 0 becomes what is free */
    struct ox_hf_folder *folder;
    uint64_t base_hash; /* of a model with adapters: ox_hf_base_hash */
    struct ox_trainer_input input;
    struct ox_reference reference; /* of preferences: parts of input.train, input.eval, input.eval_more */
    struct ox_rate_schedule schedule;
    bool chose_rate, chose_warmup; /* they are no options of the user */
    const char *chosen_for;        /* "given" or "fresh" weights */
    bool begins_given;             /* it began, or begins, with given weights */
    uint64_t max_steps;
    struct ox_engine_config engine_config;
    struct ox_cuda_device_info gpu;  /* zero if none is used, or none was looked for */
    uint64_t gpu_process_bytes;      /* its memory that the process takes beside the arena; measured where it can be */
    char no_gpu[256];                /* why none was found, if one was looked for; else "" */
    struct ox_engine_plan *plan;     /* until the engine takes it over */
    struct ox_mesh_choice mesh_choice; /* of --mesh auto; zeros where it was not asked */
    struct ox_shardings_tried sharding_choice; /* likewise of --sharding */
    bool any_tensor_groups; /* neither options nor a run that is resumed say how many groups of features there are */
    bool any_context_mode;  /* nor whether keys and values of row groups go round in a ring */
    struct ox_engine *engine;
    struct ox_machine machine;       /* the machine that the plan is made for */
    struct ox_measured measured;     /* how that was measured; its day is "" where it was not */
    struct ox_prediction prediction; /* for the plan, or for the nearest one */
    struct ox_trainer_drives drives;
    struct ox_team *team;  /* engine_config has it too */
    int32_t *foreign_rows; /* scratch for rows that a rank of another process has; NULL with one process */
    bool made_store;       /* this start has created the store */
    bool made_run;         /* and has written the first run.json */
    bool may_be_committed; /* and has begun to commit what the run begins with */
    bool starts_over;      /* there was nothing to resume */
    char began_with[OX_CONFIG_TEXT_BYTES]; /* of a resumed run, the --model of its beginning; "": not known */
    int lock_fd; /* the run's folder, locked until the end by the first process; -1: not yet */
    struct ox_run_identity identity;
    struct ox_run_state left_off; /* what is resumed, as the plan sees it before the start; run_id 0: not seen */
    struct ox_run_state state;
    struct ox_commit_note note; /* note of the last commit; after a resume, as found in the store */
    struct ox_trainer_reports reports;
    struct ox_last_eval last_eval;
    struct ox_trainer_best best;
    const struct ox_trainer_events *events;
    const struct ox_trainer_hooks *hooks;
    uint32_t gemm_count; /* kinds of GEMMs that gemms.txt has of this process */
    uint64_t retried_step, retry_count; /* the last step that was repeated after a drive failed; how many were */
    struct ox_trainer_persist persist;
    struct ox_trainer_saving saving;
    enum ox_update_order last_order; /* of the last step; OX_UPDATES_AFTER before the first */
    struct ox_expert_watch *experts; /* NULL before the first step of a mixture */
    unsigned told_of_orders;         /* a bit for each order that the log has named */
    bool told_of_save, told_of_stop; /* that offload.save or offload.stop cannot be removed */
    bool told_of_time;               /* that --max-time is over */
    bool stepped;        /* this process has taken a step */
    bool is_torn;        /* a step or its commit failed: the engine's planes must not be saved as this state */
    double step_seconds; /* time of the last step, by which a stop may wait for the next one */
    char result[OX_PATH_BYTES];
};

/* ---- several processes: trainer_team.c; with one they do nothing and succeed ---- */

/* What is asked for from outside. */
struct ox_asked {
    bool save, finish;
    int stop; /* signal number */
};

/* Joins the processes that a launcher has started, and compares what they were started with. */
OX_MUST enum ox_status ox_trainer_join(struct ox_trainer *trainer);
/* Whether this process writes the run's folder. */
bool ox_trainer_leads(const struct ox_trainer *trainer);
/* Waits for all processes, and fails on all of them if it failed on one: what follows is then done by none. */
OX_MUST enum ox_status ox_trainer_agree(const struct ox_trainer *trainer, enum ox_status status, const char *what);
/* Whether it is true for any process. */
OX_MUST enum ox_status ox_trainer_any(const struct ox_trainer *trainer, bool mine, const char *what, bool *out);
/* Compares data, model, plan and number of steps, before anything is reserved. */
OX_MUST enum ox_status ox_trainer_compare(const struct ox_trainer *trainer);
/* Lets the first process do something, and then the others, which find what it has left in its cache. */
OX_MUST enum ox_status ox_trainer_in_turn(struct ox_trainer *trainer, enum ox_status (*fn)(struct ox_trainer *),
                                          const char *what);
OX_MUST enum ox_status ox_trainer_share_machine(struct ox_trainer *trainer);
/* Checks that all see the run's folder, where the first process has written run.json. */
OX_MUST enum ox_status ox_trainer_check_shared(const struct ox_trainer *trainer);
/* Adds what is asked of other processes, and takes what the first one has decided by its clock. */
OX_MUST enum ox_status ox_trainer_agree_asked(struct ox_trainer *trainer, struct ox_asked *asked);
/* If the run's stores are those of another number of processes, that number; else 0. */
uint32_t ox_run_other_processes(const struct ox_trainer *trainer);
/* Removes such stores, once the state that they held is in a store of this number of processes. */
OX_MUST enum ox_status ox_run_remove_others(const struct ox_trainer *trainer);
/* Sets *stop to the signal of any process. */
OX_MUST enum ox_status ox_trainer_agree_stop(const struct ox_trainer *trainer, int *stop);

/* Sets ranks and what they divide in trainer->engine_config, whose device is known. */
OX_MUST enum ox_status ox_trainer_set_ranks(struct ox_trainer *trainer);
/* How many machines the processes of the run are on. Budgets and threads are given for each. */
uint32_t ox_trainer_machines(const struct ox_trainer *trainer);
/* And on how many of the machines of a profile ranks would be that one process plans. */
uint32_t ox_trainer_planned_machines(const struct ox_trainer *trainer);
/* Makes trainer->plan, for what ranks divide by the options, or for what is the fastest; returns as
 * ox_engine_plan_open. */
OX_MUST enum ox_status ox_trainer_open_plan(struct ox_trainer *trainer);
/* A way to divide the model among the ranks of a mesh; `copies` as in struct ox_engine_config. `usual`: one of those of
 * which one is usually the fastest. */
struct ox_division {
    const char *name;
    enum ox_sharding sharding;
    uint32_t copies;
    bool usual;
};
enum { OX_DIVISIONS_MAX = OX_SHARDINGS_MAX };
/* Writes those that the ranks can have, from the least memory on, and returns how many there are. */
uint32_t ox_trainer_divisions(const struct ox_trainer *trainer, struct ox_division out[OX_DIVISIONS_MAX]);
/* Refuses what low-rank exchanges between processes cannot have, and lets the ranks of a process divide a copy unless
 * the user says how; then, when copies are known, sets how they exchange. */
OX_MUST enum ox_status ox_trainer_divide_low_rank(struct ox_trainer *trainer, uint32_t ranks);
OX_MUST enum ox_status ox_trainer_set_low_rank(struct ox_trainer *trainer, uint32_t ranks);
/* Makes trainer->plan for a division and predicts its steps; and for a sharding, with the copies that are set, their
 * mean time alone. */
OX_MUST enum ox_status ox_trainer_try_division(struct ox_trainer *trainer, const struct ox_division *division,
                                               struct ox_prediction *prediction);
OX_MUST enum ox_status ox_trainer_time_sharding(struct ox_trainer *trainer, enum ox_sharding sharding,
                                                double *seconds);
/* Plans a mesh that is set and predicts its steps; with context ranks in each of the modes that may be and have the
 * same bits, and leaves the faster one. `beats` as in struct ox_mesh_ask. */
OX_MUST enum ox_status ox_trainer_time_mesh(struct ox_trainer *trainer, struct ox_mesh_tried *mesh, double beats);
/* Makes trainer->plan for the division whose steps are the fastest, and says why. */
OX_MUST enum ox_status ox_trainer_choose_sharding(struct ox_trainer *trainer);
/* Warns of folders of the run that anyone on the machine may write to. */
void ox_trainer_warn_open_folders(const struct ox_trainer *trainer);
/* Refuses drives and an output folder that a run cannot use, before anything is measured or planned. */
OX_MUST enum ox_status ox_trainer_check_places(const struct ox_trainer *trainer);
/* Hash of everything that may change bits. */
uint64_t ox_trainer_numerics_hash(const struct ox_trainer *trainer);

/* ---- what is minimised: trainer_numerics.c ---- */

/* Lets units with matrices be parted for Muon, if that is the optimizer; before what is frozen is known. */
void ox_trainer_mark_matrices(struct ox_trainer *trainer);
/* Refuses a model of which some experts that are units of their own have matrices for Muon, but their block has none:
 * the norm counts them in its place. */
OX_MUST enum ox_status ox_trainer_check_hosts(const struct ox_model *model);
/* Refuses groups of features of a mesh with that optimizer. */
OX_MUST enum ox_status ox_trainer_check_muon_groups(const struct ox_trainer *trainer);
/* Sets what Muon asks of the engine, if that is the optimizer: a part of ox_trainer_set_ranks. OX_E_CONFIG names what
 * does not go with it. */
OX_MUST enum ox_status ox_trainer_set_muon(struct ox_trainer *trainer);
/* OX_E_CONFIG where ranks are to divide experts that the model does not have. */
OX_MUST enum ox_status ox_trainer_need_experts(const struct ox_model_config *model, uint32_t ranks);
/* Experts that ranks divide: into how many a unit they are grouped. OX_EXPERTS_AUTO: not said, 0: in their blocks'.
 * OX_E_CONFIG where they cannot be. `ranks`: of those that have the same features; `tensors`: those that divide
 * features, 0 or 1: none do; `tensor_groups`: of features, of which each has as many experts; 0: 1. */
enum { OX_EXPERTS_AUTO = UINT32_MAX };
OX_MUST enum ox_status ox_trainer_group_experts(const struct ox_model_config *model, uint32_t ranks,
                                                uint32_t tensors, uint64_t tensor_groups, uint32_t *per_unit);
/* Refuses what such ranks cannot do, and sets what they divide. `of_data`: ranks that divide micro-batches. */
OX_MUST enum ox_status ox_trainer_set_experts(struct ox_trainer *trainer, uint32_t of_data);
/* Refuses what ranks that divide groups of features cannot do. */
OX_MUST enum ox_status ox_trainer_check_tensors(struct ox_trainer *trainer);
/* Settles how ranks see each other's keys and values. `recorded`: --context-parallel-mode of the run that goes on; 0:
 * none does. */
void ox_trainer_set_context_mode(struct ox_trainer *trainer, int recorded);
/* Refuses ranks that cannot divide the heads of attention where the mode asks for it. */
OX_MUST enum ox_status ox_trainer_check_heads(const struct ox_trainer *trainer);
/* Sets into how many groups of rows sequences are cut. `of_batch`: ranks with micro-batches of their own; OX_E_CONFIG
 * names what does not go with it. */
OX_MUST enum ox_status ox_trainer_set_context_groups(struct ox_trainer *trainer, uint32_t of_batch,
                                                     uint32_t sum_groups);
/* Refuses dropout of adapters where there is none. */
OX_MUST enum ox_status ox_trainer_check_dropout(const struct ox_trainer *trainer);
struct ox_objective ox_trainer_objective(const struct ox_config *config);
/* Names what the head left of a step beside its loss; returns how many parts there are. */
uint32_t ox_trainer_parts(const struct ox_trainer *trainer, const double *values,
                          struct ox_report_part parts[OX_REPORT_PARTS_MAX]);
/* Refuses options of preferences without --dpo, and those that do not go with it. */
OX_MUST enum ox_status ox_trainer_check_pairs(const struct ox_config *config);
/* Sequences that options count as one: 2 of a preference, else 1. */
uint32_t ox_trainer_unit(const struct ox_config *config);
/* Hash of `seed` and of the objective; `seed` itself where it is cross-entropy alone. */
uint64_t ox_trainer_objective_hash(const struct ox_config *config, uint64_t seed);
/* The factor of the balance loss of routers: as told, or as config.json asks for it. */
double ox_trainer_balance(const struct ox_config *config, const struct ox_model_config *model);
/* What makes updates depend on how the tokens of the whole step were routed, in words of options; NULL: nothing. */
const char *ox_trainer_routes(const struct ox_config *config);
/* Refuses options of routers where the model has none (OX_E_CONFIG), and warns of an optimizer that harms experts. */
OX_MUST enum ox_status ox_trainer_check_routers(const struct ox_config *config, const struct ox_model *model);
/* Its part about biases of the choice, which move with the update of their unit: so it depends on how experts are
 * grouped. */
OX_MUST enum ox_status ox_trainer_check_bias(const struct ox_config *config, const struct ox_model *model);
/* Claims the folder, makes or reads the identity, loads weights or state: the engine is then at trainer->state. */
OX_MUST enum ox_status ox_trainer_start(struct ox_trainer *trainer);

/* ---- the run's folder: trainer_folder.c ---- */

/* Locks the folder, which exists, until the process ends; OX_E_BUSY if another process has it. */
OX_MUST enum ox_status ox_run_lock(struct ox_trainer *trainer);
/* OX_E_BUSY: another process trains in the run's folder, which this one has not locked. */
OX_MUST enum ox_status ox_run_check_unlocked(const struct ox_trainer *trainer);
OX_MUST enum ox_status ox_run_read_identity(const char *output_dir, struct ox_run_identity *identity);
/* As ox_run_read_identity; if both copies are lost, from the checkpoints and the store, with a warning. */
OX_MUST enum ox_status ox_run_find_identity(const struct ox_trainer *trainer, struct ox_run_identity *identity);
/* Refuses a resume in a folder where no run has left anything. */
OX_MUST enum ox_status ox_run_check_traces(const char *output_dir);
OX_MUST enum ox_status ox_run_write_identity(const char *output_dir, const struct ox_run_identity *identity);
/* Removes run.json and its copy; the folder then holds no run. */
void ox_run_forget_identity(const char *output_dir);
/* Draws random words, none of them 0. */
OX_MUST enum ox_status ox_run_draw(uint64_t *words, uint32_t count);
/* Records the configuration's drives by their real paths; returns whether they differ from those recorded before. */
bool ox_run_record_drives(struct ox_run_identity *identity, const struct ox_trainer *trainer);
bool ox_run_has_store(const struct ox_trainer *trainer);
/* Sets trainer->left_off to what a resume would go on from, without a word; the drives are known. It may be an older
 * state than the start then finds. */
OX_MUST enum ox_status ox_run_look_ahead(struct ox_trainer *trainer);
/* Refuses drives that hold store files of another run. */
OX_MUST enum ox_status ox_run_check_stores(const struct ox_trainer *trainer);
/* Whether the run has finished and its stores are gone, so that its last checkpoint is what it goes on from. */
bool ox_run_is_released(const struct ox_trainer *trainer);
/* Refuses to resume on its own without the drives that hold the last commit. */
OX_MUST enum ox_status ox_run_check_drives_given(const struct ox_trainer *trainer);
/* Refuses inputs of the run that ox_run_clear would remove. */
OX_MUST enum ox_status ox_run_check_inputs(const struct ox_trainer *trainer);
/* Refuses to write into the model folder, or below it. A run that did so before may go on. */
OX_MUST enum ox_status ox_run_check_beside_model(const struct ox_trainer *trainer, const char *flag, const char *path);
/* Refuses a folder in the place of a file of the run, which could be neither written nor removed, and a file in the
 * place of a checkpoint. */
OX_MUST enum ox_status ox_run_check_names(const char *output_dir);
/* Removes what a run has written into its folder, and nothing else, but for run.json and its copy. */
OX_MUST enum ox_status ox_run_clear(const char *output_dir);
/* Fails if the folder was deleted, moved or replaced since it was locked. If there is still a place for a checkpoint,
 * which is where it was moved to, or its old place if that is free, that is the output folder from then on. */
OX_MUST enum ox_status ox_run_check_folder(struct ox_trainer *trainer);
/* Removes the trigger files that an earlier process may have left. */
void ox_run_clear_triggers(const char *output_dir);

/* ---- what a start leaves that was cut off: trainer_remains.c ---- */

/* Makes a resume of the latest state a fresh start if nothing was committed, and says so. */
OX_MUST enum ox_status ox_trainer_start_over(struct ox_trainer *trainer);
/* Whether the folder has a run that certainly committed nothing, so that a fresh start may take its place. */
OX_MUST enum ox_status ox_run_find_remains(const struct ox_trainer *trainer, bool *out);
/* Notes, in run.json and beside the stores, that the run has taken all its steps and that its checkpoint has what the
 * stores have: another run may take their place. A failure is only a warning. */
void ox_run_note_finished(struct ox_trainer *trainer);
/* Whether the store in the folder is of a run that has finished, whose last checkpoint is still there. */
bool ox_run_store_is_finished(const char *folder);
/* Fails because of a store of another run: it is in use (OX_E_BUSY), or what may be done with it. */
OX_MUST enum ox_status ox_run_refuse_store(const char *folder);
/* Removes stores of other runs that have finished, and says so. */
OX_MUST enum ox_status ox_run_take_places(const struct ox_trainer *trainer);
/* Whether a resume of the latest state would start over, because nothing was saved of the steps that were taken. */
bool ox_run_saved_nothing(const char *output_dir);

/* ---- data and rows: trainer_data.c ---- */

/* Checks that the paths of --data and similar options exist, and finds the tokenizer. */
OX_MUST enum ox_status ox_trainer_check_data(struct ox_trainer *trainer);
/* Sets *ready to false if text must be tokenized first. */
OX_MUST enum ox_status ox_trainer_data_ready(struct ox_trainer *trainer, bool *ready);
/* Opens all sources as tokens; ox_trainer_open_data also opens trainer->input.train and trainer->input.eval. Data that
 * it refuses leaves no cache behind in a new output folder. */
OX_MUST enum ox_status ox_trainer_open_sources(struct ox_trainer *trainer);
OX_MUST enum ox_status ox_trainer_open_data(struct ox_trainer *trainer);
void ox_trainer_close_data(struct ox_trainer *trainer);
bool ox_trainer_has_conversations(const struct ox_trainer *trainer); /* the data, which is open, has some */
uint64_t ox_trainer_data_fingerprint(const struct ox_trainer *trainer);
/* The windows that the options describe, without sources; `chat`: defaults are those for conversations. The data is
 * open. */
OX_MUST enum ox_status ox_trainer_windows_config(const struct ox_trainer *trainer, bool chat,
                                                 struct ox_windows_config *out);
/* Finds the token of each source where what a run held out begins, with config.held_share for its --eval-fraction;
 * where it held nothing out, warns and takes all. */
OX_MUST enum ox_status ox_trainer_find_held(struct ox_trainer *trainer, uint64_t *borders);
/* Logs how documents fill the rows, and what is lost; in preview.c. */
void ox_trainer_log_rows(const struct ox_windows *windows, const char *what, uint32_t seq);

/* ---- trainer_plan.c ---- */

/* Whether the plan is for the machine of a profile that was asked for. */
bool ox_trainer_is_elsewhere(const struct ox_trainer *trainer);
/* Notes in trainer->refusals why `train` would refuse budgets and places: here, or with a --profile on that machine. */
OX_MUST enum ox_status ox_trainer_note_refusals(struct ox_trainer *trainer);
/* What `train` checks once plan and steps are known: room, wear, trace. A plan alone notes them, else they fail. */
OX_MUST enum ox_status ox_trainer_check_later(struct ox_trainer *trainer);

/* Refuses drives that have less free than what the stores will take, unless there are some already, and warns of those
 * that have less than --nvme gives. */
OX_MUST enum ox_status ox_trainer_check_drive_space(const struct ox_trainer *trainer);

/* ---- trainer_options.c ---- */

/* Checks options whose range depends on the model. */
OX_MUST enum ox_status ox_trainer_check_counts(const struct ox_config *config, const struct ox_model *model);
/* What the run that is resumed recorded of options that a run chooses when it begins; zeros if none is, or if it has no
 * record. */
struct ox_recorded {
    uint64_t sum_groups, tensor_groups, context_groups, chunk_elems, store_generations;
    int context_mode; /* --context-parallel-mode */
    char experts_per_unit[24]; /* "": not known */
};
struct ox_recorded ox_trainer_recorded(const struct ox_trainer *trainer);
/* Groups the experts of the model that was opened as --experts-per-unit says, or as the run that is resumed has them;
 * a new run's plan chooses. And cuts it into --tensor-groups, or those of that run. */
OX_MUST enum ox_status ox_trainer_group(struct ox_trainer *trainer);
/* Lets layers share their weights (--share-layers), which must be the same where a run begins with some. */
OX_MUST enum ox_status ox_trainer_share_layers(struct ox_trainer *trainer);
/* The planner's kept units for --kept-blocks; below 0: planned. */
int32_t ox_trainer_kept_stages(const struct ox_config *config, const struct ox_model *model);
/* The ranks of that run, which had so many processes. */
uint32_t ox_trainer_recorded_ranks(const struct ox_trainer *trainer, uint32_t processes);
/* And how many of them divided its layers, features and experts, at least 1 each. */
struct ox_mesh_sizes ox_trainer_recorded_mesh(const struct ox_trainer *trainer);

/* Chooses how units that are frozen are kept: for a run that begins by the weights that it begins with, for one that is
 * resumed as run.json has it of the run that it goes on from, where that is known and the unit is still frozen; else
 * they have masters. The second writes that to the trainer's identity; returns whether it differs. */
OX_MUST enum ox_status ox_trainer_choose_formats(struct ox_trainer *trainer);
/* A config.json alone does not say which layout the files of a mixture have: a resumed run keeps that of its
 * checkpoint. */
OX_MUST enum ox_status ox_trainer_take_layout(struct ox_trainer *trainer);
bool ox_trainer_record_formats(struct ox_trainer *trainer);

/* Writes to `folder` the folder of the run whose checkpoint that is, also where it is behind a link in the run. */
void ox_run_of_checkpoint(const char *checkpoint, char folder[OX_PATH_BYTES]);
/* Sets trainer->began_with to the --model with which the run began whose checkpoint or store `origin` is, and warns if
 * another one is given now: the weights are the run's. OX_E_CONFIG: adapters would be scaled otherwise. */
OX_MUST enum ox_status ox_trainer_look_at_model(struct ox_trainer *trainer, const char *origin);
/* Writes config.resolved.yaml: without options that delete or that say how this process started, its paths absolute.
 * Its model is the one that the run began with. */
OX_MUST enum ox_status ox_trainer_record_options(const struct ox_trainer *trainer);
enum { OX_OPTIONS_LINE_BYTES = 640 };
/* Writes to `text` (OX_OPTIONS_LINE_BYTES) and returns the options that differ from those recorded beside the
 * checkpoint `origin`, or in the run's folder where it names the store: with `data` those that decide the tokens, else
 * those that the numerics hash covers. "" if none is known to differ. */
const char *ox_trainer_options_text(const struct ox_trainer *trainer, const char *origin, bool data, char *text);

/* Where a whole store was refused because it was made with other settings, says which differ from the recorded ones and
 * how to go on, from `checkpoint` ("": there is none). Returns `refusal`. */
OX_MUST enum ox_status ox_trainer_explain_store(const struct ox_trainer *trainer, const char *checkpoint,
                                                enum ox_status refusal);

/* ---- trainer_arithmetic.c ---- */

#define OX_GEMMS_NAME "gemms.txt"
/* The name under which --eval-ema reports what the averages of the weights give, beside sets of --eval-data. */
#define OX_EMA_SET "ema"
#define OX_REFERENCE_NAME "reference.bin"

/* Sets what computes in trainer->identity, and tells of a change; returns whether it differs. */
bool ox_trainer_record_arithmetic(struct ox_trainer *trainer);
/* Called after steps and evaluations: writes gemms.txt anew if the GPU has come across other GEMMs, and tells of
 * algorithms that differ from those that an earlier process of the run has left there. A failure is only a warning. */
void ox_trainer_record_gemms(struct ox_trainer *trainer);

/* ---- how often a step is committed: trainer_save.c ---- */

enum { OX_PERSIST_LINE_BYTES = 384 };
/* Writes a line about how often the state is persisted; "" if every step is. */
const char *ox_trainer_persist_text(const struct ox_trainer *trainer, char *text);
/* Called when the engine is at trainer->state, which is committed; logs what was decided. */
void ox_trainer_persist_start(struct ox_trainer *trainer);
/* Whether `step`, which is the next one, stays uncommitted. */
bool ox_trainer_leaves_uncommitted(const struct ox_trainer *trainer, const struct ox_run_state *next);
/* Notes the time of a usual step. */
void ox_trainer_persist_note(struct ox_trainer *trainer, const struct ox_step_result *result, double seconds);
/* Commits the current state, unless it is committed. A failing drive is only a warning, because memory has
 * the state. */
void ox_trainer_persist(struct ox_trainer *trainer);

/* ---- trainer_save.c ---- */

/* Finds what saved folders say of the tokenizer: the chat template of the run, if it has conversations or names one,
 * and the tokens that end a text. A tokenizer that cannot be read is a warning here. */
OX_MUST enum ox_status ox_trainer_find_tokens(struct ox_trainer *trainer);
void ox_trainer_drop_tokens(struct ox_trainer *trainer);

/* Finishes and commits a pending update. If that fails, the engine is at an earlier step than the run, and nothing is
 * saved until both agree again. */
OX_MUST enum ox_status ox_trainer_finish_update(struct ox_trainer *trainer);
/* Whether ox_trainer_save_behind has to read planes before the next step. */
bool ox_trainer_save_waits(const struct ox_trainer *trainer);

/* Ends the run: commits its state to the store and saves it as a checkpoint, which is complete on return, unless it was
 * saved already. If that fails while only memory has the state, it is tried again (--save-wait-seconds). */
OX_MUST enum ox_status ox_trainer_save(struct ox_trainer *trainer);
/* Saves; a failure is only a warning, because the state is not at risk. */
void ox_trainer_save_or_warn(struct ox_trainer *trainer);
/* Begins a checkpoint that the next step's optimizer fills chunk by chunk while the run goes on. Without a store of two
 * generations nothing streams the chunks, so it saves at once. First waits for an earlier checkpoint. */
void ox_trainer_save_behind(struct ox_trainer *trainer);
/* Called after each step: reports a checkpoint that was completed or has failed meanwhile. */
void ox_trainer_save_poll(struct ox_trainer *trainer);
/* Saves before a run ends by a failure that has not touched its state; returns that failure. */
OX_MUST enum ox_status ox_trainer_save_and_fail(struct ox_trainer *trainer, enum ox_status failure);

/* ---- trainer_room.c ---- */

/* Counts what store, checkpoints and caches may still take in folders that are memory (tmpfs and the like), and names
 * these folders in trainer->memory_files. */
uint64_t ox_trainer_memory_files(struct ox_trainer *trainer);

enum { OX_ROOM_LINE_BYTES = 384 };
/* Writes a line about the room that checkpoints take. */
const char *ox_trainer_room_text(const struct ox_trainer *trainer, char *text);
/* Refuses a run whose next checkpoint does not fit on the file system of its folder. */
OX_MUST enum ox_status ox_trainer_check_room(const struct ox_trainer *trainer);

/* Finds a folder, which does not exist, that takes a checkpoint where the run's folder takes none: beside that, or in
 * the folder of temporary files. False if there is none with room for it, and with several processes. */
bool ox_trainer_find_elsewhere(const struct ox_trainer *trainer, char *path);
/* Saves the state there; on success `path` (OX_PATH_BYTES) is the checkpoint. */
OX_MUST enum ox_status ox_trainer_save_elsewhere(struct ox_trainer *trainer, const struct ox_checkpoint_save *how,
                                                 char *path);

/* ---- trainer_reports.c ---- */

/* Refuses a --trace-bytes that is too small for the plan. */
OX_MUST enum ox_status ox_trainer_check_trace(const struct ox_trainer *trainer);
/* Opens the reports, when the engine is at trainer->state. */
OX_MUST enum ox_status ox_trainer_open_reports(struct ox_trainer *trainer);
/* Called when the run has gone back to trainer->state: removes reports of later steps, or marks them as undone. */
OX_MUST enum ox_status ox_trainer_rewind_reports(struct ox_trainer *trainer);
void ox_trainer_report_step(struct ox_trainer *trainer, struct ox_step_report *report);
void ox_trainer_report_save(struct ox_trainer *trainer, const struct ox_save_report *report);
void ox_trainer_report_eval(struct ox_trainer *trainer, const struct ox_eval_report *report);
/* Makes what was reported so far survive a power cut. */
void ox_trainer_sync_reports(struct ox_trainer *trainer);
void ox_trainer_close_reports(struct ox_trainer *trainer);

enum { OX_WEAR_LINE_BYTES = 320 };
/* Writes a line about what the run writes to a drive; "" without drives, or if the number of steps is not known. */
const char *ox_trainer_wear_text(const struct ox_trainer *trainer, char *text);
/* Bytes of the state, of all ranks, that a step writes which stays uncommitted. */
uint64_t ox_trainer_kept_bytes(const struct ox_trainer *trainer);
/* Refuses a run that would use up too much of a drive; the number of steps is known. */
OX_MUST enum ox_status ox_trainer_check_wear(const struct ox_trainer *trainer);

/* ---- trainer.c ---- */

/* What so many ranks take beside the budgets. */
uint64_t ox_trainer_beside_bytes(const struct ox_engine_config *engine, uint64_t ranks);

/* The input for a prediction of the current plan. */
struct ox_predict_input ox_trainer_predict_input(const struct ox_trainer *trainer);
/* Whether the run's model has low-rank adapters, which it alone trains and saves. */
bool ox_trainer_has_adapters(const struct ox_trainer *trainer);
/* Opens trainer->folder, and limits the sequence to what the model can attend to. */
OX_MUST enum ox_status ox_trainer_open_model(struct ox_trainer *trainer, bool weights);
/* Opens the model, looks at what --data and the like name, and fills trainer->engine_config. */
OX_MUST enum ox_status ox_trainer_prepare(struct ox_trainer *trainer, bool weights);
/* Whether the run began with a version whose warmup and epochs meant otherwise, and goes on with those. */
bool ox_trainer_is_old(const struct ox_trainer *trainer);
/* Sets the number of steps and the schedule, once the data is open or --max-steps is given. */
void ox_trainer_set_steps(struct ox_trainer *trainer);
/* Does so before the run begins, and counts again what its files take of memory, of which the steps decide: a budget
 * that is given is refused if it does not fit with them, and an automatic one shrinks, for which it plans again. */
OX_MUST enum ox_status ox_trainer_fit_steps(struct ox_trainer *trainer);
/* What is left of a run, as far as it is known: `steps` from step `from` on, to `end` (0: not known). A run that begins
 * has all of it left. */
struct ox_trainer_left {
    uint64_t from, steps, end;
    bool seen; /* it is resumed, and its state was seen */
};
struct ox_trainer_left ox_trainer_left(const struct ox_trainer *trainer);
/* The epoch of the run's cursor; the data is open. */
double ox_trainer_epoch(const struct ox_trainer *trainer);
/* The rows of the step that begins at `cursor`: the last step of an epoch has what is left of it. */
uint64_t ox_trainer_step_rows(const struct ox_trainer *trainer, uint64_t cursor);

/* ---- trainer_best.c: when a run evaluates and saves, and which checkpoint is the best ---- */

/* Refuses options that contradict each other there. */
OX_MUST enum ox_status ox_trainer_check_best(const struct ox_trainer *trainer);
/* Whether the run evaluates at all; whether it does after the step that led to `state`, and whether it saves then. With
 * --save-strategy best it may save where it evaluates. The end of a run is apart. */
bool ox_trainer_evaluates(const struct ox_trainer *trainer);
bool ox_trainer_evaluates_at(const struct ox_trainer *trainer, const struct ox_run_state *state);
bool ox_trainer_saves_at(const struct ox_trainer *trainer, const struct ox_run_state *state);
/* About how many steps lie between two of them in a run of `end` steps; 0: only at the end. */
uint64_t ox_trainer_eval_every(const struct ox_trainer *trainer, uint64_t end);
uint64_t ox_trainer_save_every(const struct ox_trainer *trainer, uint64_t end);
/* Finds what earlier evaluations of the run have shown, in its reports and checkpoints: at a start, and after going
 * back to a commit. All processes call it. */
OX_MUST enum ox_status ox_trainer_find_best(struct ox_trainer *trainer);
/* What --metric-for-best-model names of an evaluation. */
double ox_trainer_judged(const struct ox_trainer *trainer, const struct ox_eval_report *report);
/* Counts an evaluation for early stopping. */
void ox_trainer_judge(struct ox_trainer *trainer, double loss);
/* Whether the run ends because evaluations no longer improve; says so once. */
bool ox_trainer_ends_early(struct ox_trainer *trainer);
/* Whether the newest evaluation is of this step, and better than every checkpoint that has one. */
bool ox_trainer_is_best(const struct ox_trainer *trainer);
/* Notes that the checkpoint of `step` was saved with that evaluation. */
void ox_trainer_note_saved(struct ox_trainer *trainer, const struct ox_last_eval *eval, uint64_t step);
/* At the end of a run: lets `best` lead to the best checkpoint, and makes it the result if that is asked for. */
void ox_trainer_take_best(struct ox_trainer *trainer, bool complete);
/* Whether --max-time is over; says so once. */
bool ox_trainer_is_out_of_time(struct ox_trainer *trainer);

/* ---- trainer_run.c ---- */

/* Fills the batches with at most `window_max` rows from `cursor` on; targets of the other rows are not counted. */
OX_MUST enum ox_status ox_trainer_fill(struct ox_trainer *trainer, struct ox_windows *windows, uint64_t cursor,
                                       uint64_t window_max, uint64_t *target_count);

/* Warns of files that are trained and evaluated both (trainer_options.c). */
void ox_trainer_warn_of_measured(const struct ox_trainer *trainer);

/* ---- evaluate.c ---- */

/* Warns of a loss of given weights that is well above that of guessing; `what` names it. */
void ox_trainer_warn_loss(const struct ox_trainer *trainer, const char *what, double loss);
/* Where rows are preferences: finds in the run's folder what the reference says of them, or computes it with the
 * weights that the run begins with, which the engine then still has. OX_E_CONFIG where it is not known and the weights
 * have moved on. */
OX_MUST enum ox_status ox_trainer_find_reference(struct ox_trainer *trainer);
/* Evaluates on the held-out rows of a run. */
OX_MUST enum ox_status ox_trainer_eval(struct ox_trainer *trainer, struct ox_eval_report *out);

#ifdef __cplusplus
}
#endif
#endif
