/* The inside of the engine, shared by the files of engine/step. */
#ifndef OX_ENGINE_ENGINE_INTERNAL_H
#define OX_ENGINE_ENGINE_INTERNAL_H

#include "engine/model/units.h"
#include "engine/step/engine.h"
#include "engine/step/optim_stream.h"
#include "engine/step/tracing.h"
#include "nvme/transfers.h"
#include "offload/plan/cases.h"
#include "offload/plan/tier.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_RUN_AHEAD_TASKS = 64, OX_CHAOS_NS_MAX = 300000, OX_CHUNK_SLOTS_MAX = 8 };

/* The planes of a unit that live in host memory; NULL where they do not. `weights_lo`: the copy of lo that
 * lies behind hi when the state is elsewhere. `state`: of all its elements in one piece. */
struct ox_resident {
    uint16_t *hi, *weights_lo;
    void *state;
};

/* What the step's tasks share; written by the issuing thread before, by the NORM task within the step. */
struct ox_step_state {
    const struct ox_step_input *input;
    const struct ox_plan *plan;
    float loss_scale;
    double loss, grad_norm, grad_scale;
    bool finite;
    bool committed;
    struct ox_optim_hyper hyper;
    uint32_t facts;          /* that tasks ask for (offload/plan/cases.h), known before the first one is issued */
    bool pending_in_memory;  /* the update of the step before is not written */
    bool counts_come;        /* what updates on the device count was asked for */
    uint64_t weights_step;   /* of the planes that compute uses, last commit or not; 0: last commit */
    struct ox_optim_hyper speculative_hyper;
    uint64_t speculative_nonfinite_count;
};

/* The update of a step that has been decided on and waits for the next step, or has got part of the way. */
struct ox_pending {
    bool exists;
    bool begun;      /* its transaction */
    bool from_store; /* memory may hold what was updated too early: the last commit is what it begins with */
    bool in_memory;  /* it is not written, and there is no transaction */
    uint64_t step, base_step; /* that it leads to, that it begins with */
    struct ox_optim_hyper hyper;
    uint32_t meta_bytes;
    unsigned char meta[OX_STORE_META_BYTES_MAX];
};

/* What an ADAM task is to do. */
struct ox_update_args {
    const struct ox_optim_hyper *hyper; /* NULL: only bring the planes of base_step to the target */
    bool from_store;                   /* all planes come from the last commit, whatever memory holds */
    bool in_memory;                    /* nothing is written */
    uint64_t base_step;                /* of the planes that it begins with */
};

/* Chunks between steps: the arena's scratch is cut into slots for whole chunks, as many as fit, so that drives transfer
 * some while another is filled. A slot's operations are one group. */
struct ox_chunk_slots {
    struct ox_transfers transfers;
    uint32_t at; /* slot of the view that was asked for last */
};

struct ox_engine {
    struct ox_engine_config config;
    struct ox_engine_plan *plan;
    struct ox_shape shape;
    struct ox_device *device;
    struct ox_ops ops;
    struct ox_tiers tiers;
    struct ox_lane *lanes[OX_LANE_COUNT];
    struct ox_pool *optim_pool, *reduce_pool;
    struct ox_store *store;
    struct ox_store_port *read_port, *write_port; /* one per lane that transfers */
    struct ox_chunk_slots chunk_slots;
    struct ox_stream *stream;                     /* NULL without a store */
    struct ox_mark *marks; /* per task of the larger plan */
    struct ox_tracing *tracing; /* NULL: nothing is recorded */
    bool loading;          /* between load_begin and load_commit: chunks go to the store too */
    uint64_t batch_bytes;
    bool *packed;          /* per micro-batch of the step: sequences have several documents */
    struct ox_step_state step;
    struct ox_pending pending;
    uint8_t *unit_due, *due_now; /* per unit: whether the pending update is still to run; as the step found it */
    uint64_t weights_step;       /* of the last update, pending or committed */
    uint32_t unclipped_steps;         /* since the norm was clipped or not finite */
    bool counts_due;             /* units were updated on the device whose counts have not come */
    bool must_restore;           /* planes in memory may not be those of the last commit */
    uint64_t lost_step;          /* that was pending when a drive failed; 0 = none */
    float *logits_buffer;      /* on the device, while a step runs whose logits are asked for */
    float *tee_values; /* of a chunk, behind the stream's slots */
    struct ox_tee tee; /* chunk is NULL: none */
    uint64_t tee_step; /* whose planes it is to see */
    uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]; /* by atomic access alone: all lanes count */
    /* By updates that were finished alone since the last step; the next one's figures include them. */
    uint64_t finished[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT], finished_planned[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT];
};

/* Whether the task does its work in the step at hand; else it only keeps its place. */
static inline bool ox_engine_works(const struct ox_engine *engine, const struct ox_task *task) {
    const bool due = task->unit_idx < engine->plan->table.unit_count && engine->due_now[task->unit_idx];
    return ox_task_works(task, engine->step.facts, due);
}

/* A task for a host lane; the lane's owner is the engine. */
struct ox_host_task {
    const struct ox_plan *plan;
    uint32_t task_idx;
    bool idle; /* has nothing to do this time */
};
enum ox_status ox_host_task_run(void *engine, const void *host_task);

/* ---- steps that overlap: engine/step/overlap.c ------------------------------------------------------------ */

/* Works out the facts of the step, with step.input set. `own_work`: a forward follows; else what is pending is finished
 * alone. */
void ox_overlap_begin_step(struct ox_engine *engine, bool own_work);
struct ox_update_args ox_overlap_update_args(const struct ox_engine *engine, const struct ox_task *task);
/* An ADAM task has updated its unit, with so many parameters that are not finite. */
OX_MUST enum ox_status ox_overlap_updated(struct ox_engine *engine, const struct ox_task *task,
                                          uint64_t nonfinite_count);
OX_MUST enum ox_status ox_overlap_begin_transaction(struct ox_engine *engine, const struct ox_task *task);
OX_MUST enum ox_status ox_overlap_commit(struct ox_engine *engine, const struct ox_task *task);
/* Bytes that must have crossed each link in this step or evaluation. */
void ox_overlap_planned(const struct ox_engine *engine, uint64_t out[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]);
/* Adds the bytes of a pending update that is finished alone. */
void ox_overlap_plan_finish(const struct ox_engine *engine, uint64_t out[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]);
/* After all lanes have drained with `status`, which is returned unless something worse is found. */
OX_MUST enum ox_status ox_overlap_end_step(struct ox_engine *engine, enum ox_status status);
/* Likewise after a pending update was finished, alone or within an evaluation. */
OX_MUST enum ox_status ox_overlap_end_finish(struct ox_engine *engine, enum ox_status status);
/* Before a step or a reading of planes: after a failure the last commit is read back. */
OX_MUST enum ox_status ox_overlap_make_ready(struct ox_engine *engine);
/* Reads the planes that compute uses, as of the step's weights_step, to [hi | lo] of the whole unit; waits. */
OX_MUST enum ox_status ox_engine_read_planes(struct ox_engine *engine, struct ox_store_port *port, uint32_t unit_idx,
                                             unsigned char *target);
/* Reads a unit from the last commit to where it lives; `stop`, or NULL: not 0 gives it up. */
OX_MUST enum ox_status ox_engine_load_unit(struct ox_engine *engine, uint32_t unit_idx,
                                           const volatile sig_atomic_t *stop);

/* Adds to the counters of what crossed a link; host-device copies of unified memory cross none. */
void ox_engine_count(struct ox_engine *engine, enum ox_link link, enum ox_traffic_kind kind, uint64_t bytes);

/* After all lanes have drained well: what units updated on the device have counted. */
OX_MUST enum ox_status ox_overlap_check_counts(struct ox_engine *engine);

/* Host-resident planes of a unit. */
struct ox_resident ox_engine_resident(const struct ox_engine *engine, uint32_t unit_idx);

/* A chunk's elements in a unit's host-resident state, to or from a state of the chunk alone. */
enum ox_state_direction { OX_STATE_TO_CHUNK, OX_STATE_TO_UNIT };
void ox_state_copy(const struct ox_engine *engine, uint32_t unit_idx, const struct ox_chunk *chunk, void *chunk_state,
                   enum ox_state_direction way);

/* The optimizer's stream, while the store is open. */
OX_MUST enum ox_status ox_optim_open(struct ox_engine *engine);
/* Updates one unit, chunk by chunk; its writes may be in flight when it returns, and reads of the unit after it. */
OX_MUST enum ox_status ox_optim_run(struct ox_engine *engine, const struct ox_plan *plan, const struct ox_task *task);
/* Issues the update of one unit as operations of the compute lane, where the unit's state lives on the device. */
OX_MUST enum ox_status ox_optim_issue(struct ox_engine *engine, const struct ox_plan *plan, const struct ox_task *task,
                                      struct ox_lane *lane);
/* Waits for all transfers of the stream and empties it; the first failure wins. */
OX_MUST enum ox_status ox_optim_drain(struct ox_engine *engine);
/* What a chunk reads from the drives, or writes. */
uint64_t ox_optim_transfer_bytes(const struct ox_engine *engine, const struct ox_stream_chunk *chunk, bool write);
/* The stream's slots in the plan's stage buffer. */
void ox_optim_set_slots(struct ox_engine *engine, const struct ox_plan *plan, const struct ox_task *task);

/* Where a unit's partial sums begin in the norm's, which are in the order of units. */
uint64_t ox_norm_partials_first(const struct ox_engine *engine, uint32_t unit_idx);

uint64_t ox_grad_elems(const struct ox_engine *engine, uint32_t grad_idx);
uint64_t ox_unit_elems(const struct ox_engine *engine, uint32_t unit_idx);

#ifdef __cplusplus
}
#endif
#endif
