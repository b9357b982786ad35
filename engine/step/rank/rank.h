/* A rank: one device with its memory, lanes and optimizer, which executes its plan of every step. An engine has one or
 * several; the rooms of a step see a single one. This is the state that they share. */
#ifndef OX_ENGINE_STEP_RANK_H
#define OX_ENGINE_STEP_RANK_H

#include "base/bytes.h"
#include "engine/model/units.h"
#include "engine/step/engine.h"
#include "engine/step/order.h"
#include "kernels/comm/comm.h"
#include "nvme/transfers.h"
#include "offload/plan/cases.h"
#include "offload/plan/sums.h"
#include "offload/plan/tier.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_CHAOS_NS_MAX = 300000, OX_CHUNK_SLOTS_MAX = 8 };

/* The planes of a unit that live in host memory; NULL where they do not. `weights_lo`: the copy of lo behind hi, if the
 * state is elsewhere. `state`: the state of all elements of the unit in one piece. */
struct ox_resident {
    uint16_t *hi, *weights_lo;
    void *state;
};

/* What the tasks of a step share. The issuing thread writes it before the step, the NORM task within. */
struct ox_step_state {
    const struct ox_step_input *input;
    const struct ox_plan *plan;
    float loss_scale;  /* what each target's loss is multiplied by */
    double unscale;    /* undoes the part of it that is the input's loss_scale */
    double loss, grad_norm, grad_scale;
    double values[OX_PAIR_VALUES];
    bool finite, overflow;
    bool committed;
    struct ox_optim_hyper hyper;
    uint32_t facts;          /* enum ox_fact, those of the step: known before the first task is issued */
    bool pending_stays;      /* the update of the step before is not committed */
    bool counts_come;        /* a task copies the counts of updates on the device */
    uint64_t weights_step;   /* the step whose planes compute uses, committed or not; 0: the last commit */
    struct ox_optim_hyper speculative_hyper;
    uint64_t speculative_nonfinite_count;
    uint64_t left_out[OX_LINK_COUNT]; /* bytes of weights that no expert would have read */
    uint64_t left_tokens[OX_LINK_COUNT]; /* by how much rows to experts of other ranks stay below the plan's bound */
    bool stopped;            /* ranks have agreed to stop before the optimizer begins */
    uint64_t link_calls[2];  /* tasks of lane LINK so far: for which the device waits for the host, and its own */
};

/* The update of a step that is decided, and waits for the next step or was interrupted in it. */
struct ox_pending {
    bool exists;
    bool begun;      /* its transaction is open */
    bool again;      /* speculative updates are repeated */
    bool stays;      /* it is not committed */
    bool failed;     /* without a store: it was begun and failed, so some planes in memory are new and others not */
    uint64_t step, base_step; /* the step that it leads to, and the one that it begins with */
    struct ox_optim_hyper hyper;
    uint32_t meta_bytes;
    unsigned char meta[OX_STORE_META_BYTES_MAX];
};
/* Whether what is said of a pending update can be true together: it leads on from the step that it begins with, a
 * transaction needs a store, and with a store a failure goes back to the commit instead. */
static inline bool ox_pending_is_valid(const struct ox_pending *pending, bool has_store) {
    return pending->exists ? pending->step > pending->base_step && (has_store ? !pending->failed : !pending->begun)
                           : !pending->failed;
}

/* What an UPDATE task does. */
struct ox_update_args {
    const struct ox_optim_hyper *hyper; /* NULL: it only brings the planes of base_step to the target */
    bool from_store;                   /* all planes come from the drives, whatever memory holds */
    bool stays;                        /* it is not committed: only what the drives must have is written */
    const uint8_t *routed;             /* what routers said of experts in the update's step; NULL: not noted */
    uint64_t base_step;                /* the step whose planes it begins with */
};

/* Slots for the chunks that are read or written between steps: as many whole chunks as fit into the arena's scratch, so
 * that drives transfer some while another is filled. A slot's operations are one group. */
struct ox_chunk_slots {
    struct ox_transfers transfers;
    uint32_t at; /* slot of the last view */
};

/* Per unit: what of its update is still pending, and what was when the step began (enum ox_due); and how many of its
 * chunks the step has updated speculatively, after it saved what it replaces in memory. */
struct ox_due_units {
    uint8_t *pending, *now;
    uint32_t *saved_chunks;
};

/* Which update the planes in memory have come to, and what has to be done before they are used. */
struct ox_planes_state {
    uint64_t step;      /* step of the last update, pending or committed */
    bool must_restore;  /* planes in memory may not be those of the last commit */
    bool must_take_back; /* those of speculative units may not be those of `step` */
    uint64_t lost_step; /* the step that was pending when a later one failed; 0 = none */
};
/* Whether the planes are said to be at one step: a lost step is later than the one that they have gone back to, and
 * nothing is pending on planes of another step. */
static inline bool ox_planes_state_is_valid(const struct ox_planes_state *planes, const struct ox_pending *pending) {
    return (planes->lost_step == 0 || planes->lost_step > planes->step) &&
           (!pending->exists || pending->step == planes->step);
}

struct ox_tee_state {
    struct ox_tee to; /* chunk is NULL: none */
    uint64_t step;    /* the step whose planes it sees */
    float *values;    /* scratch of one chunk, behind the stream's slots */
};

/* What a chunk's planes in memory have to be. */
struct ox_chunk_sums {
    struct ox_plane_sums planes, saved; /* saved: those of what a speculative update has replaced */
    bool known, saved_known;
};

struct ox_rank_traffic {
    uint64_t crossed[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]; /* atomic, as all lanes count */
    /* Traffic of updates that were finished alone since the last step; the next step's figures include it. */
    uint64_t finished[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT], finished_planned[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT];
};

/* Counters when the step began. */
struct ox_rank_before {
    uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT];
    struct ox_lane_stats lanes[OX_LANE_COUNT];
    uint64_t peer_wait_ns;
};

/* Scratch of Muon for the largest matrix; all NULL: another optimizer. */
struct ox_muon_room {
    float *host;
    uint64_t host_bytes;
    bool pinned; /* host is, for copies of the lane */
    float *device; /* what iterates: a matrix, and its scratch */
    uint64_t device_bytes;
    struct ox_lane *lane; /* the device's; NULL: the processor iterates */
};

struct ox_rank {
    /* its number, its configuration and its plan */
    uint32_t idx;
    bool leads; /* begins, commits and aborts the transactions of its process's store */
    struct ox_engine_config config; /* with its part of threads and micro-batches */
    const struct ox_engine_plan *plan;
    const struct ox_shard_table *whole; /* the table of whole units, of which plan->table has the rank's slices */
    struct ox_shape shape;
    uint64_t batch_bytes;

    /* what executes the plan */
    struct ox_device *device;
    struct ox_ops ops;
    struct ox_tiers tiers;
    struct ox_lane *lanes[OX_LANE_COUNT]; /* the first `lane_count` of them; NULL where no plan has tasks for it */
    uint32_t lane_count;
    /* The host's part of lane LINK, where that is one of the device: watches its calls, and makes those that need the
     * host, all in list order; NULL: LINK is a lane of the host (engine/step/link/ordered.c). */
    struct ox_lane *link_host;
    struct ox_comm *comm; /* this rank's endpoint; NULL with one rank */
    struct ox_comm *along[OX_AXIS_COUNT]; /* its endpoint with its group on an axis: `comm` where that has all ranks;
                                             NULL where it has this one alone */
    struct ox_comm *pipe; /* its endpoint for transfers with other coordinates of the pipeline; NULL: there are none */
    struct ox_lane *routes_lane; /* with host memory: of rounds of experts on a GPU (engine/step/link/routes.c) */
    unsigned char *routes;
    uint64_t routes_bytes;
    double *reports;      /* of a pipeline's stages, on their way between ranks; NULL: none */
    double *totals;       /* of the units' square sums, on their way between these: what it has and what it gets */
    struct ox_pool *optim_pool, *reduce_pool;
    struct ox_muon_room muon;
    struct ox_mark *marks;      /* per task of the largest plan */
    struct ox_tracing *tracing; /* NULL: nothing is recorded */

    /* the drives */
    struct ox_store *store;                       /* the engine's; NULL: none */
    struct ox_store_port *read_port, *write_port; /* one per lane that transfers */
    struct ox_stream *stream;                     /* NULL without a store */
    struct ox_chunk_slots chunk_slots;
    uint32_t spool_first; /* its spool extents among those of all ranks */
    uint32_t residual_first; /* its extents of what exchanges of low rank keep, among all */
    bool loading; /* between load_begin and load_commit: chunks go to the store too */

    /* the step that runs */
    struct ox_step_state step;
    uint32_t loss_first;  /* how many losses of a step come before those of its micro-batches */
    bool *packed;         /* per micro-batch: some sequence has several documents */
    float *logits_buffer; /* device memory, while a step runs whose logits are requested */
    struct ox_rank_before before;

    /* what a step leaves for the next */
    struct ox_pending pending;
    struct ox_due_units due;
    struct ox_planes_state planes;
    bool low_rank_half; /* which half of what exchanges of low rank keep is of the last step */
    bool residuals_lost; /* memory has those of a later step than the planes */
    struct ox_chunk_sums *sums; /* by the chunk's number in the plan's table; NULL: memory is not verified */
    uint64_t *gathered;         /* hashes of what was gathered, by buffer; NULL where nothing is, or not verified */
    struct ox_order order; /* whether the next step speculates */
    struct ox_routing *routing; /* what routers said of experts (engine/step/planes/routing.h); NULL: not noted */
    struct ox_tee_state tee;
    struct ox_rank_traffic traffic;
};

/* As ox_rank_state_format. */
static inline struct ox_state_format ox_unit_state_format(const struct ox_engine_config *config, uint32_t unit_idx) {
    struct ox_state_format format = config->state;
    format.kind = config->model->units[unit_idx].one_moment ? OX_OPTIM_SGD : format.kind;
    return format;
}

/* Adds bytes by link and kind to others. */
static inline void ox_traffic_add(const uint64_t bytes[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT],
                                  uint64_t sum[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]) {
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            sum[link][kind] += bytes[link][kind];
        }
    }
}

/* What of the task's unit was due when the step began. */
static inline enum ox_due ox_rank_due_now(const struct ox_rank *rank, const struct ox_task *task) {
    return task->unit_idx < rank->plan->table.unit_count ? (enum ox_due)rank->due.now[task->unit_idx] : OX_DUE_NOTHING;
}

/* How a unit's weights are kept. Where nothing is trained each has its master, unless the user asks for eight bits. */
static inline enum ox_unit_format ox_rank_format(const struct ox_rank *rank, uint32_t unit_idx) {
    const enum ox_unit_format format = rank->config.model->units[unit_idx].format;
    return rank->config.eval_only && format != OX_FORMAT_Q8 ? OX_FORMAT_MASTER : format;
}

/* What the plan has decided of a unit. */
static inline const struct ox_unit_rules *ox_rank_rules(const struct ox_rank *rank, uint32_t unit_idx) {
    return &rank->plan->train->rules[unit_idx];
}

/* The format of a unit's state: of matrices that Muon updates that with one moment, as of SGD. */
static inline struct ox_state_format ox_rank_state_format(const struct ox_rank *rank, uint32_t unit_idx) {
    return ox_unit_state_format(&rank->config, unit_idx);
}

/* Whether the task works in this step; else it does nothing when its lane comes to it. */
static inline bool ox_rank_works(const struct ox_rank *rank, const struct ox_task *task) {
    return ox_task_works(task, rank->step.facts, ox_rank_due_now(rank, task));
}

/* Whether updates may wait for the next step. */
static inline bool ox_rank_overlaps(const struct ox_rank *rank) {
    return rank->plan->input.placement.overlap && !rank->config.eval_only;
}
/* Whether an update that a step carries takes all planes of the unit from the drives; `facts`: of that step. */
bool ox_rank_from_store(const struct ox_rank *rank, uint32_t facts, uint32_t unit_idx);

/* ---- what an engine has of a configuration ---- */

bool ox_engine_on_cpu(const struct ox_engine_config *config);
/* The shape and formats of compute. */
struct ox_shape ox_engine_shape(const struct ox_engine_config *config);
/* Rows of a micro-batch as it is given, and of a rank's row groups, where there are several: those lie behind it. */
static inline uint64_t ox_engine_batch_rows(const struct ox_shape *shape) {
    return (uint64_t)shape->batch * shape->seq;
}
static inline uint64_t ox_engine_group_rows(const struct ox_shape *shape) {
    return (uint64_t)shape->groups.count * shape->rows;
}
/* Bytes of ids, positions and targets of a micro-batch, of positions in the order of all row groups, where ranks divide
 * heads, and behind them the reference's log-probabilities. */
static inline uint64_t ox_engine_batch_ids_bytes(const struct ox_shape *shape) {
    const uint64_t given = ox_engine_batch_rows(shape), in_order = ox_shape_head_ranks(shape) > 1 ? given : 0;
    return ox_align_up(((given + ox_engine_group_rows(shape)) * 3 + in_order) * sizeof(int32_t), sizeof(double));
}
/* How many floats each of the two rotary tables has. */
uint64_t ox_engine_rope_floats(const struct ox_engine_config *config);

/* ---- what moves: traffic.c ---- */

/* Bytes that should cross each link in this step or evaluation. */
void ox_rank_planned(const struct ox_rank *rank, uint64_t out[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]);
/* Adds the bytes of a pending update that is finished alone. */
void ox_rank_plan_finish(const struct ox_rank *rank, uint64_t out[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]);
/* Counts bytes that crossed a link; copies within unified memory cross none. */
void ox_rank_count(struct ox_rank *rank, enum ox_link link, enum ox_traffic_kind kind, uint64_t bytes);

/* A buffer of the training plan that stays where it is; NULL for OX_NONE. */
unsigned char *ox_rank_resident_ptr(const struct ox_rank *rank, uint32_t buf_idx);
/* Host-resident planes of a unit. */
struct ox_resident ox_rank_resident(const struct ox_rank *rank, uint32_t unit_idx);

/* Index of a unit's first partial sum among those of the norm, which are in the order of units. */
uint64_t ox_norm_partials_first(const struct ox_rank *rank, uint32_t unit_idx);
/* The total of a unit's partial sums; of a block that of its experts' units too, which then have none of their own.
 * That of a unit which the rank does not hold came from those that do, in the place of its first partial sum. */
double ox_norm_total(const struct ox_rank *rank, const double *partials, uint32_t unit_idx);
/* The square of the norm: the totals of all units, first to last. */
double ox_norm_square_sum(const struct ox_rank *rank, const double *partials);

/* The slice of a unit that the rank owns; with one rank all of it. */
static inline uint64_t ox_slice_elems(const struct ox_rank *rank, uint32_t unit_idx) {
    return rank->plan->table.shards[unit_idx].elem_count;
}
static inline uint64_t ox_slice_first(const struct ox_rank *rank, uint32_t unit_idx) {
    return rank->plan->table.shards[unit_idx].elem_first;
}
uint64_t ox_grad_elems(const struct ox_rank *rank, uint32_t grad_idx);
uint64_t ox_unit_elems(const struct ox_rank *rank, uint32_t unit_idx);
/* The gradient of a unit's own weights, among all gradients. */
uint32_t ox_unit_grad_idx(const struct ox_rank *rank, uint32_t unit_idx);

#ifdef __cplusplus
}
#endif
#endif
