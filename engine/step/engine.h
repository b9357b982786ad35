/* The engine: a model, its plans, its memory and its store as one thing that can do a step.
 *
 * Where a run has several processes (engine/step/team.h), each has an engine, with its ranks and a store of their
 * slices. The calls that open, load, do a step, commit or go back are then collective, and return the same status on
 * all processes.
 *
 *     ox_engine_plan_open      finds plans that fit; reserves nothing        (offload plan, --dry-run)
 *     ox_engine_open           reserves everything: arenas, lanes, device
 *     ox_engine_store_create   or ox_engine_store_open: opens the NVMe tier, if there is one
 *     ox_engine_chunk_put      takes initial weights, chunk by chunk; then ox_engine_load_commit
 *     ox_engine_step           forward, backward, norm, optimizer, commit
 *
 * One thread calls; the lanes work. A step allocates nothing. */
#ifndef OX_ENGINE_ENGINE_H
#define OX_ENGINE_ENGINE_H

#include "cpu_optim/muon.h"
#include "engine/model/units.h"
#include "engine/step/team.h"
#include "kernels/cuda.h"
#include "nvme/store.h"
#include "offload/sim/machine_profile.h"
#include "offload/plan/plan.h"
#include "offload/search/placement.h"

#include <signal.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What carries memory of GPUs between ranks: NCCL where each rank has a GPU of its own and the library is there, else
 * copies by the devices; or one of these whatever there is. */
enum ox_rank_comm { OX_RANK_COMM_AUTO, OX_RANK_COMM_LOCAL, OX_RANK_COMM_NCCL };

struct ox_engine_config {
    const struct ox_model *model; /* outlives the engine */
    /* numerics */
    uint32_t batch, seq, micro_batches; /* sequences per micro-batch, tokens per sequence, per step */
    uint32_t sum_groups; /* of micro-batches, each of which is summed by itself (offload/plan/sums.h); 0: 1 */
    enum ox_compute_dtype dtype; /* row of base/planes.h */
    bool grad_bf16; /* finished gradients leave the device rounded to bfloat16     */
    struct ox_muon muon; /* of that optimizer: then model->config.whole_matrices */
    struct ox_state_format state; /* optimizer and format of its moments; q8 not where lo travels to compute */
    /* Factors of the losses of routers (struct ox_router_report); 0: not trained. A step then has one tile. */
    double router_balance, router_z;
    bool router_rounds; /* logits and weights of routers are rounded to bf16 */
    /* After a step the bias of a choice grows by so much where an expert had fewer rows of the whole step than an even
     * share, and shrinks where it had more (DeepSeek-V3, arXiv 2412.19437, 2.1.2); 0: it stays. */
    double router_bias_rate;
    bool skips_idle; /* experts that no row of a step chose are not updated, and neither are their moments */
    bool decay_embeddings;
    bool decay_all; /* weight decay also for norms and biases */
    struct ox_objective objective; /* of a step, and with pairs of an evaluation */
    bool eval_only; /* holds weights alone, for ox_engine_eval */
    enum ox_device_kind device;
    uint32_t compute_threads; /* threads of the CPU device, of all ranks together; a GPU has its own */
    /* placement: no bit depends on it */
    struct ox_plan_budget budget; /* nvme_bytes = sum of nvme_bytes below; drive_speeds outlive the engine */
    struct ox_placement_request request;
    bool compares; /* the plan is compared and never carried out: of ranks that are alike one stands for all */
    const struct ox_machine *machine; /* the machine to plan for, while plans open; NULL: a nominal one */
    uint32_t machine_compute_threads, machine_optimizer_threads; /* on that machine; 0: one per core */
    uint64_t chunk_elems; /* 0: as ranks divide the model evenly; the plan's table has the number */
    const char *const *nvme_folders; /* these two and io outlive the engine */
    const uint64_t *nvme_bytes;
    uint32_t nvme_count;
    const struct ox_io_backend *io; /* required with nvme_count > 0 */
    uint32_t queue_depth;
    uint32_t optimizer_threads; /* of all ranks together, with the cores that each leaves to its lanes */
    uint32_t lane_cores; /* what the optimizer of each rank leaves of its share to lanes, at most half of that */
    struct ox_team *team;       /* the processes of the run, which divide the ranks; outlives the engine; NULL: one */
    uint32_t ranks;             /* devices that do a step together, of all processes; 0: 1 */
    enum ox_sharding sharding;  /* what they divide; OX_SHARDING_COUNT: the planner chooses */
    uint32_t copies;            /* of the model, each divided among as many ranks in a row; 0: 1 */
    uint32_t store_ranks;       /* of one process, for a plan: as if so many ranks in a row had a store; 0: all */
    uint32_t pipe;              /* coordinates of a pipeline, a divisor of `ranks`, each with stages of its own; 0: 1 */
    enum ox_pipe_schedule schedule; /* in which order they do them */
    uint32_t context_groups;    /* of rows of a sequence, each computed and summed by itself; 0: 1 */
    uint32_t contexts;          /* ranks that divide these groups, a divisor of them and of `ranks` / `pipe`; 0: 1 */
    enum ox_context_mode context_mode; /* how these see each other's keys and values */
    uint32_t tensors;           /* ranks that divide the model's groups of features, a divisor of them and of `ranks` /
                                   `pipe`; 0: 1 */
    uint32_t experts;           /* ranks that divide the experts of every layer, which are units of their own: a
                                   divisor of those that divide a copy of the units; 0: 1 */
    uint32_t pipe_chunks;       /* runs of stages of each, where the schedule is interleaved; 0: 1 */
    uint32_t window;            /* for tests: as in struct ox_placement, with queues no longer than that needs */
    bool library_sums;          /* the gradients of ranks are added by NCCL or MPI, not reproducibly; sum_groups is then
                                   the number of ranks, whatever it says */
    struct ox_low_rank_config {
        uint32_t rank;       /* copies exchange gradients as matrices of so many columns; 0: whole */
        double min_rate;     /* where that is as many times smaller */
        uint64_t start_step; /* from the step behind it on */
        bool warm_start;     /* Q begins as that of the last step, else anew */
    } low_rank; /* not with exchange, library_sums and GPUs */
    enum ox_exchange_dtype exchange; /* in what sums of gradients travel between ranks; not with library_sums */
    enum ox_rank_comm comm;     /* of ranks on GPUs; NCCL carries no memory of the host, which `shared` gathers from */
    bool comm_debug; /* NCCL: ranks agree about each call on their hosts before it begins */
    uint64_t comm_timeout_ns;   /* how long a rank waits for the others before the step fails; 0: ten minutes */
    enum ox_isa isa;
    bool verify_memory; /* updates compare planes in host memory with what the updates before them wrote */
    const volatile sig_atomic_t *stop; /* not 0 aborts the loading of weights; may be NULL */
    struct ox_cuda_config cuda; /* the GPU, if that is the device; its path outlives the engine */
    uint32_t cuda_count; /* number of GPUs assigned to ranks round-robin, starting at `cuda`'s; 0: only that one */
    uint64_t chaos_seed; /* not 0 (tests): random delays on every lane, and poisoned transient memory in each step */
};

/* The row of --dtype on the device of the configuration. */
const struct ox_precision *ox_engine_precision(const struct ox_engine_config *config);

/* The plans of the first rank, and behind `others` those of the ranks after it. */
struct ox_engine_plan {
    struct ox_plan_input input;
    struct ox_shard_table table; /* of the rank's slices */
    struct ox_plan *train, *eval;
    struct ox_plan *eval_after_step; /* where steps overlap, else NULL */
    struct ox_found found;           /* what was chosen for the coordinate that was searched first */
    bool spare_host;                 /* more host memory would have been of no use to any plan that was compared */
    struct ox_engine_plan *others;   /* input.ranks.count - 1; NULL with one rank */
    /* what all ranks share; the first rank's plan owns it */
    struct ox_shard_table whole; /* of whole units, by which the store is laid out */
    uint64_t *drive_bytes;       /* a rank's part of each drive; NULL with one rank */
    uint64_t *unit_elems;
    struct ox_low_rank low_rank; /* input.ranks has it, if it is used, with the matrices of all units */
    struct ox_low_rank_matrix *matrices;
    uint32_t *matrices_of, *matrix_tensors;
    uint32_t *pipe_of, *group_of; /* input.ranks has them: the coordinate of each unit, and its group of features */
    uint32_t *expert_of; /* and which of the ranks that divide experts has it */
    uint32_t *stage_of;  /* the model's stage that each of input.model is, or begins with */
    struct ox_plan_unit *units; /* these four are input.model's */
    struct ox_plan_grad *grads;
    struct ox_plan_stage *stages;
    uint32_t *order;
};
/* The plan of a rank. Where nothing fits only the first rank has a plan, which stands for all. */
static inline const struct ox_engine_plan *ox_engine_plan_at(const struct ox_engine_plan *plan, uint32_t rank) {
    return rank == 0 || plan->others == NULL ? plan : &plan->others[rank - 1];
}

/* If nothing fits the budget, returns OX_E_CONFIG, and *out is the nearest plan that exists (train alone), for its
 * ledger. The caller closes *out. */
OX_MUST enum ox_status ox_engine_plan_open(const struct ox_engine_config *config, struct ox_engine_plan **out);
void ox_engine_plan_close(struct ox_engine_plan **plan);
/* Bytes of a tier that the largest of its plans needs. */
uint64_t ox_engine_plan_peak_bytes(const struct ox_engine_plan *plan, enum ox_tier tier);
/* Bytes of a tier that all ranks need together. */
uint64_t ox_engine_plan_all_bytes(const struct ox_engine_plan *plan, enum ox_tier tier);

/* What one of `ranks` ranks has of so many threads of the optimizer, in a run and in the simulator: an even share less
 * lane_cores, at least one. 0 stays. */
uint32_t ox_engine_optimizer_share(const struct ox_engine_config *config, uint32_t threads, uint32_t ranks);

/* The simulator's setup for a plan of this configuration, whose `machine` may not be NULL. */
struct ox_sim_setup;
void ox_engine_sim_setup(const struct ox_engine_config *config, const struct ox_plan_input *input,
                         struct ox_sim_setup *out);

/* What steps of a configuration take before a placement is chosen. A sketch is a small list of what one rank does with
 * one micro-batch; it holds for each order of stages, and each way to divide what ranks hold, of the same mesh. Needs
 * config->machine. OX_E_CONFIG: the model cannot be divided so. The caller closes it. */
struct ox_engine_sketch;
OX_MUST enum ox_status ox_engine_sketch_open(const struct ox_engine_config *config, struct ox_engine_sketch **out);
void ox_engine_sketch_close(struct ox_engine_sketch **sketch);
/* Seconds of a step: `least`, by compute and by what ranks exchange if nothing else took time, with everything kept;
 * and `likely`, with the waits of the order of stages and what devices have no room for. */
struct ox_engine_times {
    double least, likely;
};
OX_MUST enum ox_status ox_engine_sketch_times(const struct ox_engine_sketch *sketch,
                                              const struct ox_engine_config *config, struct ox_engine_times *out);

struct ox_engine;

/* Bytes of scratch that Muon takes for the largest matrix of a model in a tier, with a device of this kind: beside the
 * arenas, for each rank. Its multiplications and additions for a unit. */
uint64_t ox_muon_bytes(const struct ox_model *model, enum ox_device_kind device, enum ox_tier tier);
double ox_muon_unit_flops(const struct ox_engine_config *config, uint32_t unit_idx);
/* Reserves everything. Takes over `*plan` and sets it to NULL, also on failure. */
OX_MUST enum ox_status ox_engine_open(const struct ox_engine_config *config, struct ox_engine_plan **plan,
                                      struct ox_engine **out);
void ox_engine_close(struct ox_engine **engine);
const struct ox_engine_plan *ox_engine_plan_of(const struct ox_engine *engine);
/* The configuration of the engine, and the threads of its optimizer, for work on planes between steps. */
const struct ox_engine_config *ox_engine_config_of(const struct ox_engine *engine);
struct ox_pool *ox_engine_pool(const struct ox_engine *engine);

/* ---- the store ---------------------------------------------------------------------------------- */

OX_MUST enum ox_status ox_engine_store_create(struct ox_engine *engine, const uint64_t run_id[2]);
/* Opens the store, recovers it, and loads the planes that live in memory from the last commit. If nothing was committed
 * yet (an interrupted start), it loads nothing, and the store's info says so. */
OX_MUST enum ox_status ox_engine_store_open(struct ox_engine *engine, const uint64_t run_id[2]);
/* The open store; NULL without one. */
const struct ox_store *ox_engine_store(const struct ox_engine *engine);

/* ---- planes, between steps ------------------------------------------------------------------------ */

/* One chunk of a unit in scratch memory, with all planes. `values` has room for one float per element, in which one
 * plane after another is read or written as fp32. */
struct ox_chunk_view {
    uint64_t first, count; /* elements of the unit's flat vector */
    struct ox_state_format format;
    uint16_t *hi; /* or what is in its place in the unit's format; lo then has zeros */
    enum ox_unit_format weights;
    struct ox_state_planes state; /* one piece that begins with lo, as in the store */
    uint64_t state_bytes;
    float *values;
};

/* The planes as numbers. Only some optimizers have the second moment, and only some states averages. */
enum ox_plane { OX_PLANE_MASTER, OX_PLANE_M, OX_PLANE_V, OX_PLANE_AVERAGE, OX_PLANE_COUNT };
bool ox_plane_exists(struct ox_state_format format, enum ox_plane plane);

uint32_t ox_engine_chunk_count(const struct ox_engine *engine, uint32_t unit_idx);
/* Whether this process has the chunk, so that it may be viewed, got and put here; and whether it is this one that saves
 * it, where several have a copy. */
bool ox_engine_has_chunk(const struct ox_engine *engine, uint32_t unit_idx, uint32_t chunk_idx);
bool ox_engine_owns_chunk(const struct ox_engine *engine, uint32_t unit_idx, uint32_t chunk_idx);
/* Sets first, count and pointers of a view; its content is undefined. Only one view exists at a time. */
void ox_engine_chunk_view(struct ox_engine *engine, uint32_t unit_idx, uint32_t chunk_idx,
                          struct ox_chunk_view *out);
/* Sets all bytes of hi, lo and moments to zero, which is the number zero in every format. */
void ox_chunk_clear(const struct ox_chunk_view *view);
/* Whether the chunk's unit has the plane: one that is not trained has no moments. */
bool ox_chunk_has_plane(const struct ox_chunk_view *view, enum ox_plane plane);
/* Copies a plane into `values`, and back. Numbers that came from the plane go back without loss; others are rounded to
 * its format. ox_chunk_values_set returns how many of them the format cannot hold. */
void ox_chunk_values_get(const struct ox_chunk_view *view, enum ox_plane plane);
OX_MUST uint64_t ox_chunk_values_set(const struct ox_chunk_view *view, enum ox_plane plane);
/* Fills the view from wherever the planes live. No update may be pending (ox_engine_finish_update), unless the unit is
 * frozen. */
OX_MUST enum ox_status ox_engine_chunk_get(struct ox_engine *engine, uint32_t unit_idx, uint32_t chunk_idx,
                                           struct ox_chunk_view *out);
/* ox_engine_chunk_put writes the view to wherever the planes live. All chunks are put between load_begin and
 * load_commit. Drives write a chunk while the caller fills the next view, so the caller may not touch a view after
 * putting it, and a failure may be returned with a later chunk or with the commit. */
OX_MUST enum ox_status ox_engine_load_begin(struct ox_engine *engine, uint64_t step);
OX_MUST enum ox_status ox_engine_chunk_put(struct ox_engine *engine, uint32_t unit_idx, uint32_t chunk_idx,
                                           const struct ox_chunk_view *view);
OX_MUST enum ox_status ox_engine_load_commit(struct ox_engine *engine, const void *meta, uint32_t meta_bytes);

/* For tests: copies a gradient of the last step, before clipping and without
 * the loss scale, as fp32; its home must be in memory. */
void ox_engine_grad_read(const struct ox_engine *engine, uint32_t unit_idx, uint64_t first, uint64_t count,
                         float *out);

/* ---- steps --------------------------------------------------------------------------------------- */

/* The tokens of micro-batch mb_idx, (batch * seq) each, which the caller fills before a step; a negative target is not
 * counted, and a row whose target is OX_TARGET_PADDING does not count in the losses and loads of routers either. The
 * pointers are NULL if only ranks of other processes have it. ox_engine_batch sets the positions of each sequence to
 * 0..seq-1. If a sequence has several documents, the caller lets positions begin again at 0 with each,
 * which then attends to itself alone. */
struct ox_batch {
    int32_t *ids, *targets, *positions;
    double *reference; /* (batch): log-probabilities of the sequences by the reference; NULL without pairs */
};
struct ox_batch ox_engine_batch(struct ox_engine *engine, uint32_t mb_idx);

/* What exchanges of low rank (low_rank of the configuration) keep of a block of a matrix, between steps. */
struct ox_residual {
    uint32_t tensor_idx, use;        /* the matrix, and which use of its unit the gradient is of */
    uint32_t row_first, rows, cols, rank;
    float *rest, *q;                 /* (rows, cols), and (rank, cols); NULL in a list */
};
typedef enum ox_status ox_residual_fn(void *context, const struct ox_residual *of);
bool ox_engine_has_residuals(const struct ox_engine *engine);
/* Calls `fn` for the blocks of all ranks of this process, or of those of the first copy of the model; ends with its
 * failure. The list has the blocks of that copy, whichever process has them, in an order that all have. */
OX_MUST enum ox_status ox_engine_list_residuals(const struct ox_engine *engine, ox_residual_fn *fn, void *context);
OX_MUST enum ox_status ox_engine_each_residual(struct ox_engine *engine, bool one_copy, ox_residual_fn *fn,
                                               void *context);
/* Replaces the residuals of all copies by their mean: together they have as much left to send as before. All
 * processes call it; without residuals it does nothing. */
OX_MUST enum ox_status ox_engine_average_residuals(struct ox_engine *engine);

struct ox_step_result;
struct ox_step_input {
    uint64_t step;          /* number in the run, from 1: names the transaction     */
    uint64_t target_count;  /* what losses are a mean over, > 0: counted targets of all micro-batches together, or
                               with pairs these */
    struct ox_optim_settings adam; /* settings of any optimizer; clipping sets grad_scale */
    double max_grad_norm;   /* 0 = no clipping                                       */
    /* The loss is multiplied by it, and norm, clipping and update divide by it. An overflow skips the step. 0: 1. */
    double loss_scale;
    const void *meta;       /* kept in the store's root                               */
    uint32_t meta_bytes;
    /* The step's update is not committed, and a failure may lose it: planes that live in memory are not written, those
     * that live on drives are, beside the last commit. Requires ox_plan_may_stay. Where it is false and state lives on
     * the device, the step is committed when it has ended, before the call returns. */
    bool stays;
    const volatile sig_atomic_t *stop; /* not 0 aborts the step if the optimizer has not begun; may be NULL */
    float *logits;          /* (rows, vocab) of micro-batch 0, or NULL; for tests      */
    /* Called with loss, norm and scale on the caller's thread before the optimizer begins, while the bytes of `meta`
     * may still change; or NULL. */
    void (*decided)(void *context, const struct ox_step_result *result);
    void *context;
};

/* What a rank did in a step. */
struct ox_rank_times {
    uint32_t micro_batches;
    double busy_seconds, wait_seconds; /* its compute lane: at work, and waiting for other lanes of the rank */
    double peer_wait_seconds; /* in which its calls waited until all ranks had come; the rank for which the others wait
                                 has the least */
    /* What it did together with others of its group: where its device waited for its host, as in all copies and on all
     * CPUs, and what the device did by itself, in its order. */
    uint64_t host_calls, device_calls;
};

/* When a step updates units: after its norm; held for the next forward; or some in its own backward, and the others
 * held. Where the plan has the last, a run is held while most of its norms are clipped (engine/step/order.h). */
enum ox_update_order { OX_UPDATES_AFTER, OX_UPDATES_HELD, OX_UPDATES_SPECULATIVE, OX_UPDATE_ORDERS };

/* How the routers of a step's mixtures used their experts, over all rows that are no padding. */
struct ox_router_report {
    uint32_t layers, experts, chosen; /* layers: those with a mixture; 0: the model has none */
    /* (layers, stride): first the rows that chose each expert; at `rows_at` all rows. Valid until the next step. */
    const double *loads;
    uint32_t stride, rows_at;
    /* The losses over all layers together, each without its factor. They are no part of `loss`. Where they are trained,
     * their factors times their gradients are part of every gradient. */
    double balance, z;
};

struct ox_step_result {
    double loss;            /* mean over counted targets */
    double values[OX_PAIR_VALUES]; /* means of what the head leaves (ox_objective_values): enum ox_loss_value, or with
                                      pairs enum ox_pair_value; zeros where it leaves the loss alone */
    double grad_norm;       /* before clipping */
    double grad_scale;      /* 1 when not clipped */
    struct ox_router_report routers;
    bool finite;            /* false: the step was skipped, nothing has changed */
    bool overflow;          /* a gradient is infinite or NaN, as too large a loss_scale makes it; so not finite */
    bool committed;         /* this call has committed to the store: this step, or if steps overlap the one before,
                               unless state lives on the device */
    enum ox_update_order order;
    bool speculated;        /* units were updated in backward, and the norm was not clipped, so that counted */
    double seconds;
    double lane_busy_seconds[OX_LANE_COUNT], lane_wait_seconds[OX_LANE_COUNT]; /* sums over the ranks */
    uint32_t rank_count;               /* 0 without a step */
    const struct ox_rank_times *ranks; /* as many; valid until the next step, or the engine closes */
    /* Bytes that crossed links, counted where they did, with those of an update finished alone since the
     * step before. */
    uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT];
    /* Bytes that should have crossed: the plan's figures. If steps overlap, they differ for the first step and for
     * steps around a clipped one. */
    uint64_t planned[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT];
    /* Bytes of weights that the plan has and that were not moved, because their experts had no rows. `planned` is
     * without them. */
    uint64_t left_out[OX_LINK_COUNT];
};

/* On failure all lanes are drained and the transaction is aborted. The next call begins with the last commit, also
 * where planes live in memory. `stop` returns OX_E_ABORTED. With verify_memory, planes in host memory that changed
 * between two updates return OX_E_MEMORY, as they do from ox_engine_chunk_get.
 *
 * If the plan lets steps overlap, the update of a step and its commit run in the next call of ox_engine_step or
 * ox_engine_eval, for which `meta` is copied. If that call fails, a step is lost whose result was already returned:
 * every call then fails until ox_engine_roll_back. A stopped call leaves the update of the step before it pending. */
OX_MUST enum ox_status ox_engine_step(struct ox_engine *engine, const struct ox_step_input *input,
                                      struct ox_step_result *out);

/* Finishes and commits a pending update; does nothing if there is none. Call it before planes are read or loaded, and
 * before the engine is closed, or the last step is lost. */
OX_MUST enum ox_status ox_engine_finish_update(struct ox_engine *engine);

/* Exchanges the weights of all trained tensors with their averages, where the weights live in memory
 * (ox_engine_plan_swaps), and finishes a pending update before; so an evaluation in between is that of the averages. A
 * second call undoes it. Nothing may be trained, saved or committed in between.
 *
 * Where averages live on drives (ox_engine_swaps_from_commit) the weights come back from the last commit, which must be
 * that of the step: ox_engine_persist before. */
OX_MUST enum ox_status ox_engine_swap_averages(struct ox_engine *engine);
bool ox_engine_swaps_from_commit(const struct ox_engine *engine);
/* Whether all weights that ox_engine_swap_averages exchanges live in memory, and a store has room for a commit beside
 * what follows it. */
bool ox_engine_plan_swaps(const struct ox_engine_plan *plan);

/* Bytes of updates that were finished alone since the last step, which no step's result has yet. */
void ox_engine_finished_traffic(const struct ox_engine *engine, uint64_t out[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]);

/* Accepts that the steps since the last commit are lost (ox_store_info names it), and reads the commit back. */
OX_MUST enum ox_status ox_engine_roll_back(struct ox_engine *engine);

/* Commits the steps that are not committed; does nothing if there are none, or no store. On failure the engine stays at
 * its step, except that several processes lose those steps where planes live on drives. */
OX_MUST enum ox_status ox_engine_persist(struct ox_engine *engine, const void *meta, uint32_t meta_bytes);

/* A callback that sees every chunk before the optimizer changes it: all planes, from wherever they live, with `values`
 * as scratch. So a checkpoint of the last commit costs no reads of its own. Units come in the plan's order and chunks
 * in theirs, once each, or twice with the same content if a speculative update is repeated. A skipped step shows none.
 * A failed step may have shown some; only the step's result tells. Calls come on a thread of the engine, one at a time.
 * The view's planes may not be written and are valid until the call returns; the chunk is updated after that, while
 * transfers and the chunks before it go on. */
struct ox_tee {
    void (*chunk)(void *context, uint32_t unit_idx, uint32_t chunk_idx, const struct ox_chunk_view *view);
    void *context;
};
/* Sets the callback between steps; `tee` is copied, NULL clears it. It sees the planes that the last step leads to,
 * when the next step's update runs; if steps overlap, that is within the next two calls. Without a store nothing
 * streams and it is never called: read planes between steps with ox_engine_chunk_get then. */
void ox_engine_tee(struct ox_engine *engine, const struct ox_tee *tee);

struct ox_eval_result {
    double loss_sum;  /* over the counted targets: not the mean */
    const double *losses; /* the sum's parts by micro-batch, in their order; valid until the next call */
    uint32_t loss_values; /* doubles from one to the next: behind the loss are others of the micro-batch */
    bool with_update; /* the update of the step before was pending and ran within the forward */
    uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]; /* bytes that crossed links, as in struct ox_step_result */
    uint64_t planned[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT];
};

/* Computes the loss alone, over the batches as filled. A pending update of the step before runs on the way, unit by
 * unit, and is committed, as the next step would do it; its failure, and `stop`, have the same effect as in a step. */
OX_MUST enum ox_status ox_engine_eval(struct ox_engine *engine, const struct ox_step_input *input,
                                      struct ox_eval_result *out);

/* As ox_cuda_gemm_text, of the GPU of this process's first rank; false on the CPU. */
bool ox_engine_gemm_text(const struct ox_engine *engine, uint32_t idx, char text[OX_CUDA_GEMM_BYTES]);

/* Seconds of the CPU device's operations by group since the last call; none for a GPU. */
void ox_engine_take_op_seconds(struct ox_engine *engine, struct ox_ops_seconds *out);

#ifdef __cplusplus
}
#endif
#endif
