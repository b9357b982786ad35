/* A rank: one device with its memory, lanes and optimizer, which executes its plan of every step. An engine has one or
 * several (engine.c); all but that file see a single one. */
#ifndef OX_ENGINE_RANK_INTERNAL_H
#define OX_ENGINE_RANK_INTERNAL_H

#include "engine/model/units.h"
#include "engine/step/engine.h"
#include "engine/step/optim_stream.h"
#include "engine/step/order.h"
#include "engine/step/tracing.h"
#include "kernels/comm/comm.h"
#include "nvme/transfers.h"
#include "offload/plan/cases.h"
#include "offload/plan/sums.h"
#include "offload/plan/tier.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_RUN_AHEAD_TASKS = 64, OX_CHAOS_NS_MAX = 300000, OX_CHUNK_SLOTS_MAX = 8 };

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
    bool finite, overflow;
    bool committed;
    struct ox_optim_hyper hyper;
    uint32_t facts;          /* enum ox_fact, those of the step: known before the first task is issued */
    bool pending_stays;      /* the update of the step before is not committed */
    bool counts_come;        /* a task copies the counts of updates on the device */
    uint64_t weights_step;   /* the step whose planes compute uses, committed or not; 0: the last commit */
    struct ox_optim_hyper speculative_hyper;
    uint64_t speculative_nonfinite_count;
    bool stopped;            /* ranks have agreed to stop before the optimizer begins */
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

/* What an UPDATE task does. */
struct ox_update_args {
    const struct ox_optim_hyper *hyper; /* NULL: it only brings the planes of base_step to the target */
    bool from_store;                   /* all planes come from the drives, whatever memory holds */
    bool stays;                        /* it is not committed: only what the drives must have is written */
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
    struct ox_lane *lanes[OX_LANE_COUNT]; /* the first `lane_count` of them */
    uint32_t lane_count;
    struct ox_comm *comm; /* this rank's endpoint; NULL with one rank */
    struct ox_pool *optim_pool, *reduce_pool;
    struct ox_mark *marks;      /* per task of the largest plan */
    struct ox_tracing *tracing; /* NULL: nothing is recorded */

    /* the drives */
    struct ox_store *store;                       /* the engine's; NULL: none */
    struct ox_store_port *read_port, *write_port; /* one per lane that transfers */
    struct ox_stream *stream;                     /* NULL without a store */
    struct ox_chunk_slots chunk_slots;
    uint32_t spool_first; /* its spool extents among those of all ranks */
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
    struct ox_chunk_sums *sums; /* by the chunk's number in the plan's table; NULL: memory is not verified */
    uint64_t *gathered;         /* hashes of what was gathered, by buffer; NULL where nothing is, or not verified */
    struct ox_order order; /* whether the next step speculates */
    struct ox_tee_state tee;
    struct ox_rank_traffic traffic;
};

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

/* Whether compute reads lo beside hi. */
static inline bool ox_rank_reads_lo(const struct ox_rank *rank, uint32_t unit_idx) {
    return ox_plan_lo_travels(&rank->plan->input, unit_idx);
}

/* Whether the task works in this step; else it does nothing when its lane comes to it. */
static inline bool ox_rank_works(const struct ox_rank *rank, const struct ox_task *task) {
    return ox_task_works(task, rank->step.facts, ox_rank_due_now(rank, task));
}

/* ---- what an engine has of a configuration: engine/step/plans.c ---- */

bool ox_engine_on_cpu(const struct ox_engine_config *config);
/* The shape and formats of compute. */
struct ox_shape ox_engine_shape(const struct ox_engine_config *config);
/* How many floats each of the two rotary tables has. */
uint64_t ox_engine_rope_floats(const struct ox_engine_config *config);

/* ---- opening and closing: engine/step/rank.c ---- */

/* Reserves all that the rank's plans need. `config` has the rank's part of threads and micro-batches. `plan` and
 * `whole`, the table of whole units, outlive the rank. */
OX_MUST enum ox_status ox_rank_open(const struct ox_engine_config *config, const struct ox_engine_plan *plan,
                                    const struct ox_shard_table *whole, struct ox_rank **out);
void ox_rank_close(struct ox_rank **rank);
/* Opens the rank's ports and its optimizer's stream. The store outlives the rank. */
OX_MUST enum ox_status ox_rank_connect_store(struct ox_rank *rank, struct ox_store *store);
void ox_rank_disconnect_store(struct ox_rank *rank);

/* ---- a step: engine/step/step.c ---- */

/* Runs a plan and drains all lanes. ox_rank_end has to follow with the status of all ranks together, once all have
 * returned: it says what the step leaves behind. */
OX_MUST enum ox_status ox_rank_run(struct ox_rank *rank, const struct ox_plan *plan,
                                   const struct ox_step_input *input);
OX_MUST enum ox_status ox_rank_end(struct ox_rank *rank, enum ox_status status);
/* As these two, for the pending update alone. */
OX_MUST enum ox_status ox_rank_run_pending(struct ox_rank *rank);
OX_MUST enum ox_status ox_rank_end_pending(struct ox_rank *rank, enum ox_status status);
/* Adds traffic and seconds of the step to the result, and traffic of the step to `out`. */
void ox_rank_times(const struct ox_rank *rank, struct ox_rank_times *out);
void ox_rank_add_result(struct ox_rank *rank, struct ox_step_result *out);
void ox_rank_add_traffic(const struct ox_rank *rank, uint64_t out[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]);
/* The losses of all micro-batches of the last step or evaluation. */
const double *ox_rank_losses(const struct ox_rank *rank);
struct ox_batch ox_rank_batch(struct ox_rank *rank, uint32_t mb_idx);

/* ---- planes between steps: engine/step/chunks.c; units and chunks are those of the rank ---- */

void ox_rank_chunk_view(struct ox_rank *rank, uint32_t unit_idx, uint32_t chunk_idx, struct ox_chunk_view *out);
OX_MUST enum ox_status ox_rank_chunk_get(struct ox_rank *rank, uint32_t unit_idx, uint32_t chunk_idx,
                                         struct ox_chunk_view *out);
OX_MUST enum ox_status ox_rank_chunk_put(struct ox_rank *rank, uint32_t unit_idx, uint32_t chunk_idx,
                                         const struct ox_chunk_view *view);
/* Puts the planes of a unit's first chunks, as a speculative update has saved them, back to where they live, on all
 * threads of the optimizer. */
OX_MUST enum ox_status ox_rank_return_saved(struct ox_rank *rank, uint32_t unit_idx, uint32_t chunk_count);
/* Between load_begin and load_end chunks that are put go to the store too. load_end waits for what is in flight. */
void ox_rank_load_begin(struct ox_rank *rank, uint64_t step);
OX_MUST enum ox_status ox_rank_load_end(struct ox_rank *rank);
/* Writes what the store misses of the step to be committed, between load_begin and load_end: planes that live in memory
 * alone. */
OX_MUST enum ox_status ox_rank_put_missing(struct ox_rank *rank);
void ox_rank_grad_read(const struct ox_rank *rank, uint32_t unit_idx, uint64_t first, uint64_t count, float *out);
void ox_rank_tee(struct ox_rank *rank, const struct ox_tee *tee);

/* ---- the trace: engine/step/tracing.c ---- */

OX_MUST enum ox_status ox_rank_trace(struct ox_rank *rank, const struct ox_tracing_config *config);
void ox_rank_trace_pause(struct ox_rank *rank, bool pause);
void ox_rank_trace_span(struct ox_rank *rank, enum ox_trace_span span, uint64_t step, uint64_t begin_ns);

/* A task for a host lane; the lane's owner is the rank. */
struct ox_host_task {
    const struct ox_plan *plan;
    uint32_t task_idx;
    bool idle; /* it does not work in this step */
};
enum ox_status ox_host_task_run(void *rank, const void *host_task);

/* ---- other ranks: engine/step/link.c ---- */

/* How long ranks wait for each other. */
struct ox_comm_limits ox_link_limits(const struct ox_engine_config *config);
/* Puts NCCL over the rank's endpoint, if all ranks can; all call it at once, each from its own thread. */
OX_MUST enum ox_status ox_link_open_nccl(struct ox_rank *rank);
/* Compares with the other ranks what a step begins with. Together with ox_link_agree it is where several ranks look at
 * a stop, so that either all stop or none; OX_E_ABORTED then. Without other ranks these four do nothing. */
OX_MUST enum ox_status ox_link_begin(struct ox_rank *rank);
/* Compares what the norm has come to, and sets step.stopped if any rank is asked to stop. */
OX_MUST enum ox_status ox_link_agree(struct ox_rank *rank);
/* Waits until all ranks have come here in the update of the step; `what` names the place in messages. */
OX_MUST enum ox_status ox_link_meet(struct ox_rank *rank, const char *what);
/* Ends what the other ranks wait for, after a failure whose text is this thread's. */
void ox_link_abort(struct ox_rank *rank, enum ox_status status);
/* Runs a task of lane LINK. */
OX_MUST enum ox_status ox_link_run(struct ox_rank *rank, const struct ox_plan *plan, const struct ox_task *task);

/* ---- steps that overlap: engine/step/overlap.c ---- */

/* Determines the facts of the step, with step.input set. `own_work`: a forward follows; else a pending update is
 * finished alone. */
void ox_overlap_begin_step(struct ox_rank *rank, bool own_work);
struct ox_update_args ox_overlap_update_args(const struct ox_rank *rank, const struct ox_task *task);
/* Called after an UPDATE task has updated its unit; `nonfinite_count` of its parameters are not finite. */
OX_MUST enum ox_status ox_overlap_updated(struct ox_rank *rank, const struct ox_task *task,
                                          uint64_t nonfinite_count);
/* Called before a speculative update replaces the planes of a chunk, which it saves. */
void ox_overlap_saves(struct ox_rank *rank, uint32_t unit_idx, uint32_t chunk_idx);
/* Makes what the step has saved obsolete: its updates hold, or memory has other planes by now. */
void ox_overlap_forget_saved(struct ox_rank *rank);
OX_MUST enum ox_status ox_overlap_begin_transaction(struct ox_rank *rank, const struct ox_task *task);
OX_MUST enum ox_status ox_overlap_commit(struct ox_rank *rank, const struct ox_task *task);
/* Bytes that should cross each link in this step or evaluation. */
void ox_overlap_planned(const struct ox_rank *rank, uint64_t out[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]);
/* Adds the bytes of a pending update that is finished alone. */
void ox_overlap_plan_finish(const struct ox_rank *rank, uint64_t out[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]);
/* Called after all lanes have drained with `status`, which it returns unless it finds something worse. */
OX_MUST enum ox_status ox_overlap_end_step(struct ox_rank *rank, enum ox_status status);
/* As ox_overlap_end_step, for an update that was finished alone or within an evaluation. */
OX_MUST enum ox_status ox_overlap_end_finish(struct ox_rank *rank, enum ox_status status);
/* Called before a step and before planes are read: after a failure it reads the last commit back. */
OX_MUST enum ox_status ox_overlap_make_ready(struct ox_rank *rank);
/* Called where the store was opened again, which holds the last commit alone, while the rank is at a step that was
 * kept: the steps since the commit are lost, and all calls fail until that is accepted. */
void ox_rank_lose_kept(struct ox_rank *rank);
/* As ox_engine_roll_back. */
OX_MUST enum ox_status ox_rank_roll_back(struct ox_rank *rank);
/* Reads the planes that compute uses, as of the step's weights_step, to [hi | lo] of the whole unit; waits. */
OX_MUST enum ox_status ox_rank_read_planes(struct ox_rank *rank, struct ox_store_port *port, uint32_t unit_idx,
                                           unsigned char *target);
/* Reads a unit as of `step` (0: the last commit) to where it lives; *stop not 0 aborts it (NULL: it cannot be
 * aborted). */
OX_MUST enum ox_status ox_rank_load_unit(struct ox_rank *rank, uint32_t unit_idx, uint64_t step,
                                         const volatile sig_atomic_t *stop);

/* Counts bytes that crossed a link; copies within unified memory cross none. */
void ox_rank_count(struct ox_rank *rank, enum ox_link link, enum ox_traffic_kind kind, uint64_t bytes);

/* Checks the counts of units updated on the device, after all lanes have drained without failure. */
OX_MUST enum ox_status ox_overlap_check_counts(struct ox_rank *rank);

/* Host-resident planes of a unit. */
struct ox_resident ox_rank_resident(const struct ox_rank *rank, uint32_t unit_idx);

/* Copies a chunk's elements between the unit's state in host memory and a state of the chunk alone. */
enum ox_state_direction { OX_STATE_TO_CHUNK, OX_STATE_TO_UNIT };
void ox_state_copy(const struct ox_rank *rank, uint32_t unit_idx, const struct ox_chunk *chunk, void *chunk_state,
                   enum ox_state_direction way);

/* Opens the optimizer's stream; the store is open. */
OX_MUST enum ox_status ox_optim_open(struct ox_rank *rank);
/* Updates one unit, chunk by chunk; its writes may be in flight when it returns, and reads of the unit after it. */
OX_MUST enum ox_status ox_optim_run(struct ox_rank *rank, const struct ox_plan *plan, const struct ox_task *task);
/* Issues the update of one unit as operations of the compute lane, where the unit's state lives on the device. */
OX_MUST enum ox_status ox_optim_issue(struct ox_rank *rank, const struct ox_plan *plan, const struct ox_task *task,
                                      struct ox_lane *lane);
/* Waits for all transfers of the stream and empties it; the first failure wins. */
OX_MUST enum ox_status ox_optim_drain(struct ox_rank *rank);
/* Bytes that a chunk reads from the drives, or writes. */
uint64_t ox_optim_transfer_bytes(const struct ox_rank *rank, const struct ox_stream_chunk *chunk, bool write);
/* Places the stream's slots in the plan's buffer for them. */
void ox_optim_set_slots(struct ox_rank *rank, const struct ox_plan *plan, const struct ox_task *task);

/* ---- checksums over planes in memory: engine/step/guard.c ---- */

/* Makes room for the sums of all chunks, if memory is to be verified. */
OX_MUST enum ox_status ox_guard_open(struct ox_rank *rank);
/* Whether the unit's chunks have sums: planes of it live in host memory and are updated there. */
bool ox_guard_covers(const struct ox_rank *rank, uint32_t unit_idx);
/* Keeps the sums of a chunk that was put into memory. */
void ox_guard_put(struct ox_rank *rank, uint32_t unit_idx, uint32_t chunk_idx, const struct ox_chunk_view *view);
/* Keeps what is known of a chunk whose planes are about to be replaced and saved. */
void ox_guard_save(struct ox_rank *rank, uint32_t unit_idx, uint32_t chunk_idx);
/* Compares a chunk that was saved, before it is put into memory again; OX_E_MEMORY if it has changed. Its sums are
 * those of memory from then on. Several threads may do so, each with other chunks. */
OX_MUST enum ox_status ox_guard_saved(struct ox_rank *rank, uint32_t unit_idx, uint32_t chunk_idx,
                                      const struct ox_chunk_view *view);
/* Keeps no sums of a unit whose update failed half-way: its planes are no state any more. */
void ox_guard_forget(struct ox_rank *rank, uint32_t unit_idx);
/* Compares a chunk that was copied from memory; OX_E_MEMORY if it has changed. */
OX_MUST enum ox_status ox_guard_get(struct ox_rank *rank, uint32_t unit_idx, uint32_t chunk_idx,
                                    const struct ox_chunk_view *view);
/* Whether an update takes all planes of a unit from the store, which memory then need not equal. */
static inline bool ox_unit_from_store(const struct ox_unit_run *run) {
    return run->source.hi == NULL && run->source.state == NULL;
}
/* Compares what an update has read with what was written before, unless it came from the store, and keeps the sums of
 * what it has written; OX_E_MEMORY, likewise. */
OX_MUST enum ox_status ox_guard_updated(struct ox_rank *rank, const struct ox_unit_run *run, uint32_t chunk_idx,
                                        const struct ox_update_sums *sums);

/* Keeps a hash of weights that were gathered into a buffer of compute memory. */
void ox_guard_gathered(struct ox_rank *rank, uint32_t buf_idx, const void *weights, uint64_t bytes);
/* Lets the lane compare gathered weights behind the last task that reads them; the lane fails with OX_E_MEMORY if they
 * have changed. */
OX_MUST enum ox_status ox_guard_issue(struct ox_rank *rank, const struct ox_plan *plan, uint32_t task_idx,
                                      struct ox_lane *lane);

/* Where an iteration over the roles of a unit is. */
struct ox_role_walk {
    const struct ox_tensor *next; /* NULL: at the start */
    struct ox_range range;
    bool decay;
};
/* Goes to the next role, because decay differs between roles; the gaps between roles stay zero, and tensors that are
 * not trained as they are. Others of one role are neighbours without a gap and form one span, because one may begin
 * within a block of eight-bit moments. */
bool ox_next_role(const struct ox_rank *rank, uint32_t unit_idx, struct ox_range within, struct ox_role_walk *walk);

/* Index of a unit's first partial sum among those of the norm, which are in the order of units. */
uint64_t ox_norm_partials_first(const struct ox_rank *rank, uint32_t unit_idx);

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

/* A rank of an engine, for tests. */
struct ox_rank *ox_engine_rank(const struct ox_engine *engine, uint32_t idx);

#ifdef __cplusplus
}
#endif
#endif
