/* The engine: a model, its plans, its memory and its store as one thing that can do a step.
 *
 *     ox_engine_plan_open      what fits, as plans; reserves nothing         (offload plan, --dry-run)
 *     ox_engine_open           arenas, lanes, device: everything is reserved here
 *     ox_engine_store_create   or ox_engine_store_open: the NVMe tier, when there is one
 *     ox_engine_chunk_put      initial weights, chunk by chunk; then ox_engine_load_commit
 *     ox_engine_step           forward, backward, norm, optimizer, commit
 *
 * One thread calls; the lanes work. A step allocates nothing. */
#ifndef OX_ENGINE_ENGINE_H
#define OX_ENGINE_ENGINE_H

#include "cpu_optim/optim.h"
#include "engine/model/model.h"
#include "kernels/cuda.h"
#include "nvme/store.h"
#include "offload/sim/machine_profile.h"
#include "offload/plan/plan.h"
#include "offload/search/placement.h"

#include <signal.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ox_engine_config {
    const struct ox_model *model; /* outlives the engine */
    /* numerics */
    uint32_t batch, seq, micro_batches; /* sequences per micro-batch, tokens per sequence, per step */
    bool fp32;      /* compute with the exact master; else with its bfloat16 plane */
    bool grad_bf16; /* finished gradients leave the device rounded to bfloat16     */
    struct ox_state_format state; /* optimizer, and how its moments are kept; q8 not with fp32 */
    bool decay_embeddings;
    bool decay_all; /* norms and biases too */
    bool eval_only; /* weights alone: for ox_engine_eval */
    enum ox_device_kind device;
    uint32_t compute_threads; /* of the CPU device; a GPU has its own */
    /* placement: no bit depends on it */
    struct ox_plan_budget budget; /* nvme_bytes = sum of nvme_bytes below; drive_speeds outlive the engine */
    struct ox_placement_request request;
    const struct ox_machine *machine; /* that the plan is to be fast on; NULL: a nominal one. Outlives the opening */
    uint32_t machine_compute_threads, machine_optimizer_threads; /* there; 0: as many as it has cores */
    uint64_t chunk_elems;
    const char *const *nvme_folders; /* these two and io outlive the engine */
    const uint64_t *nvme_bytes;
    uint32_t nvme_count;
    const struct ox_io_backend *io; /* required with nvme_count > 0 */
    uint32_t queue_depth;
    uint32_t optimizer_threads;
    enum ox_isa isa;
    const volatile sig_atomic_t *stop; /* not 0: weights that are being loaded are given up; may be NULL */
    struct ox_cuda_config cuda; /* which GPU, where that is the device; its path outlives the engine */
    uint64_t chaos_seed; /* not 0: random delays on every lane, and transient memory is poisoned before each step */
};

struct ox_engine_plan {
    struct ox_plan_input input;
    struct ox_shard_table table;
    struct ox_plan *train, *eval;
    struct ox_plan *eval_after_step; /* where steps overlap, else NULL */
    uint64_t *unit_elems;
    struct ox_plan_unit *units; /* these three are input.model's */
    struct ox_plan_grad *grads;
    uint32_t *stages;
};

/* On OX_E_CONFIG for lack of budget *out is the nearest plan that exists (train alone), for its ledger; close it. */
OX_MUST enum ox_status ox_engine_plan_open(const struct ox_engine_config *config, struct ox_engine_plan **out);
void ox_engine_plan_close(struct ox_engine_plan **plan);
/* What all its plans need of a tier, one at a time. */
uint64_t ox_engine_plan_peak_bytes(const struct ox_engine_plan *plan, enum ox_tier tier);

/* How the simulator sees a plan of this configuration; `machine` is that of the configuration, which is not NULL. */
struct ox_sim_setup;
void ox_engine_sim_setup(const struct ox_engine_config *config, const struct ox_plan_input *input,
                         struct ox_sim_setup *out);

struct ox_engine;

/* Reserves everything. Takes over `*plan` and sets it to NULL, also on failure. */
OX_MUST enum ox_status ox_engine_open(const struct ox_engine_config *config, struct ox_engine_plan **plan,
                                      struct ox_engine **out);
void ox_engine_close(struct ox_engine **engine);
const struct ox_engine_plan *ox_engine_plan_of(const struct ox_engine *engine);
/* What it was opened with, and the threads of the optimizer, for work on planes between steps. */
const struct ox_engine_config *ox_engine_config_of(const struct ox_engine *engine);
struct ox_pool *ox_engine_pool(const struct ox_engine *engine);

/* ---- the store ---------------------------------------------------------------------------------- */

OX_MUST enum ox_status ox_engine_store_create(struct ox_engine *engine, const uint64_t run_id[2]);
/* Opens, recovers, and loads what lives in memory from the last commit; where nothing was committed yet (a start that
 * was cut short), nothing is loaded, and the store's info says so. */
OX_MUST enum ox_status ox_engine_store_open(struct ox_engine *engine, const uint64_t run_id[2]);
/* NULL without a store. */
const struct ox_store *ox_engine_store(const struct ox_engine *engine);

/* ---- planes, between steps ------------------------------------------------------------------------ */

/* One chunk of a unit in scratch memory, all planes; `values` is room for as many floats, in which one plane after
 * another is read or written as fp32. */
struct ox_chunk_view {
    uint64_t first, count; /* elements of the unit's flat vector */
    struct ox_state_format format;
    uint16_t *hi;
    struct ox_state_planes state; /* lo begins it: one piece, as in the store */
    uint64_t state_bytes;
    float *values;
};

/* The planes as numbers; the second moment is one of those optimizers alone that have it. */
enum ox_plane { OX_PLANE_MASTER, OX_PLANE_M, OX_PLANE_V, OX_PLANE_COUNT };
bool ox_plane_exists(enum ox_optim_kind kind, enum ox_plane plane);

uint32_t ox_engine_chunk_count(const struct ox_engine *engine, uint32_t unit_idx);
/* Sets first, count and pointers; content is undefined. One view exists at a time. */
void ox_engine_chunk_view(struct ox_engine *engine, uint32_t unit_idx, uint32_t chunk_idx,
                          struct ox_chunk_view *out);
/* hi, lo and moments all zero, which in every format is the number zero. */
void ox_chunk_clear(const struct ox_chunk_view *view);
/* A plane into `values`, and back: what was got is set without loss, other numbers are rounded to the format. Returns
 * how many of them it cannot hold. */
void ox_chunk_values_get(const struct ox_chunk_view *view, enum ox_plane plane);
OX_MUST uint64_t ox_chunk_values_set(const struct ox_chunk_view *view, enum ox_plane plane);
/* Fills the view from wherever the planes live; nothing is pending (ox_engine_finish_update). */
OX_MUST enum ox_status ox_engine_chunk_get(struct ox_engine *engine, uint32_t unit_idx, uint32_t chunk_idx,
                                           struct ox_chunk_view *out);
/* Writes the view to wherever the planes live. All chunks between load_begin and load_commit: drives then take what was
 * put while the next view is filled, so a put view is not touched again, and a failure may come with a later chunk or
 * the commit. */
OX_MUST enum ox_status ox_engine_load_begin(struct ox_engine *engine, uint64_t step);
OX_MUST enum ox_status ox_engine_chunk_put(struct ox_engine *engine, uint32_t unit_idx, uint32_t chunk_idx,
                                           const struct ox_chunk_view *view);
OX_MUST enum ox_status ox_engine_load_commit(struct ox_engine *engine, const void *meta, uint32_t meta_bytes);

/* A held gradient of the last step, before clipping, as fp32; requires its home in memory. For tests. */
void ox_engine_grad_read(const struct ox_engine *engine, uint32_t unit_idx, uint64_t first, uint64_t count,
                         float *out);

/* ---- steps --------------------------------------------------------------------------------------- */

/* The tokens of micro-batch mb_idx, (batch * seq) each, to be filled before a step; a target of -1 is not counted.
 * ox_engine_batch sets the positions to 0..seq-1 of each sequence. A caller with several documents in a sequence lets
 * them begin again at 0 with each: a document is then placed and attended to on its own. */
struct ox_batch {
    int32_t *ids, *targets, *positions;
};
struct ox_batch ox_engine_batch(struct ox_engine *engine, uint32_t mb_idx);

struct ox_step_result;
struct ox_step_input {
    uint64_t step;          /* of the run, from 1: names the transaction            */
    uint64_t target_count;  /* counted targets of all micro-batches together, > 0    */
    struct ox_optim_settings adam; /* of every optimizer; grad_scale is set by clipping */
    double max_grad_norm;   /* 0 = no clipping                                       */
    const void *meta;       /* kept in the store's root                               */
    uint32_t meta_bytes;
    /* The step's update stays in memory: it is neither written nor committed, and a failure falls back behind it. Where
     * ox_plan_may_stay_in_memory. */
    bool in_memory;
    const volatile sig_atomic_t *stop; /* not 0: abort the step if the optimizer has not begun; may be NULL */
    float *logits;          /* (rows, vocab) of micro-batch 0, or NULL; for tests      */
    /* Told loss, norm and scale on the caller's thread before the optimizer begins, when what `meta` points to may
     * still change; or NULL. */
    void (*decided)(void *context, const struct ox_step_result *result);
    void *context;
};

struct ox_step_result {
    double loss;            /* mean over counted targets */
    double grad_norm;       /* before clipping */
    double grad_scale;      /* 1 when not clipped */
    bool finite;            /* false: the step was skipped, nothing has changed */
    bool committed;         /* to the store, within this call: this step, or where steps overlap the one before */
    double seconds;
    double lane_busy_seconds[OX_LANE_COUNT], lane_wait_seconds[OX_LANE_COUNT];
    /* Bytes that did cross, counted where they did, with those of an update finished alone since the step before. */
    uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT];
    /* That the plan foresees for such a step: the plan's own figures, but where steps overlap for the first one, and
     * for those about a clipped one. */
    uint64_t planned[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT];
};

/* On failure all lanes are drained, the transaction is aborted, and the last commit stands: the next call begins with
 * it, also where planes live in memory. OX_E_ABORTED: `stop`.
 *
 * Where the plan lets steps overlap, a step's update and its commit happen in the next call, of this or of
 * ox_engine_eval. A failure of that loses a step that was told of: every call then fails until ox_engine_roll_back.
 * `meta` is kept for the commit. A stopped call leaves the update of the step before it pending. */
OX_MUST enum ox_status ox_engine_step(struct ox_engine *engine, const struct ox_step_input *input,
                                      struct ox_step_result *out);

/* Finishes and commits an update that is pending; nothing happens where there is none. Before planes are read or
 * loaded, and before the engine is closed when the last step is to stay. */
OX_MUST enum ox_status ox_engine_finish_update(struct ox_engine *engine);

/* Bytes of updates that were finished alone since the last step and stand in no step's result yet. */
void ox_engine_finished_traffic(const struct ox_engine *engine, uint64_t out[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]);

/* Takes note that steps since the last commit are gone (ox_store_info says which it is), and reads it back. */
OX_MUST enum ox_status ox_engine_roll_back(struct ox_engine *engine);

/* Commits what steps have left in memory alone; nothing happens where there is none, nor without a store. On failure
 * memory stays as it is. */
OX_MUST enum ox_status ox_engine_persist(struct ox_engine *engine, const void *meta, uint32_t meta_bytes);

/* Shown every chunk as it was before the optimizer changes it: all planes, from wherever they live, and `values` as
 * room. So a checkpoint of the last commit costs no reads of its own. Units come in the plan's order and chunks in
 * theirs, once each, or twice alike where a speculative update is done again; a skipped step shows none, a failed one
 * may have shown some, and only the step's result tells. The call comes on a thread of the engine, one at a time. The
 * view's planes may not be written and are valid until the call returns: the chunk is updated after it, while transfers
 * and the chunks before it go on. */
struct ox_tee {
    void (*chunk)(void *context, uint32_t unit_idx, uint32_t chunk_idx, const struct ox_chunk_view *view);
    void *context;
};
/* Between steps; copied; NULL clears. What is shown is what the last step leads to, whenever its successor's update
 * runs: where steps overlap that is within the next two. Without a store nothing streams and none is called: planes are
 * then read between steps with ox_engine_chunk_get. */
void ox_engine_tee(struct ox_engine *engine, const struct ox_tee *tee);

struct ox_eval_result {
    double loss_sum;  /* over the counted targets: not the mean */
    bool with_update; /* the update of the step before was pending and ran within the forward */
    uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]; /* bytes that did cross, as in struct ox_step_result */
    uint64_t planned[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT];
};

/* Loss alone, over the batches as filled. What a step has left pending is updated and committed on the way, unit by
 * unit as the next step would do it; a failure of that, and `stop`, leave what they leave in a step. */
OX_MUST enum ox_status ox_engine_eval(struct ox_engine *engine, const struct ox_step_input *input,
                                      struct ox_eval_result *out);

/* Seconds of the device's operations by group since the last call; a GPU tells none. */
void ox_engine_take_op_seconds(struct ox_engine *engine, struct ox_ops_seconds *out);

#ifdef __cplusplus
}
#endif
#endif
