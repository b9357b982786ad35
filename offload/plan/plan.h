/* A training step as data: a static list of tasks, their lanes and dependencies, and the arena offset of every
 * buffer. Building it is a pure function of its input (no clock, no device); the checker proves it; the
 * executor obeys it.
 *
 * The list is in issue order: a task depends only on earlier ones, and lanes are FIFO, so it cannot
 * deadlock. What a task reads and writes is stated by its uses; dependencies follow from them, and from the
 * space that buffers inherit from one another. */
#ifndef OX_OFFLOAD_PLAN_H
#define OX_OFFLOAD_PLAN_H

#include "base/status.h"
#include "offload/plan/shard.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ox_lane_id {
    OX_LANE_COMPUTE,    /* the device's kernels                               */
    OX_LANE_H2D,        /* host to device copies                              */
    OX_LANE_D2H,        /* device to host copies                              */
    OX_LANE_NVME_READ,  /* weights, spooled gradients and activations arrive  */
    OX_LANE_NVME_WRITE, /* spooled gradients and activations leave            */
    OX_LANE_REDUCE,     /* norms of finished gradients, on the host           */
    OX_LANE_ADAM,       /* the optimizer, with its own reads and writes       */
    OX_LANE_COUNT
};
const char *ox_lane_name(enum ox_lane_id lane);

enum ox_task_kind {
    OX_TASK_MOVE,      /* h2d, d2h, nvme.read, nvme.write: bytes from one tier to another; enum ox_move says of what */
    OX_TASK_JOIN,      /* compute: fp32 weights from planes, where the device joins        */
    OX_TASK_FORWARD,   /* compute: a unit, one micro-batch                                 */
    OX_TASK_HEAD,      /* compute: final norm, head, loss, and in training their backward  */
    OX_TASK_BACKWARD,  /* compute: a unit, one micro-batch, from its checkpoint or from what forward kept */
    OX_TASK_GRAD_ZERO, /* compute: start of an accumulator                                 */
    OX_TASK_GRAD_ADD,  /* compute: the second use of tied weights to the first, where the sum stays on the device */
    OX_TASK_GRAD_PACK, /* compute: finished sum to bf16                                    */
    OX_TASK_REDUCE,    /* reduce: square sums of a finished gradient, after that of a second use was added to it;
                          compute: those of a gradient that stays on the device            */
    OX_TASK_NORM,      /* reduce: global norm, clip factor, and whether the step is finite */
    OX_TASK_BEGIN,     /* adam: the store's transaction begins                             */
    OX_TASK_UPDATE,    /* adam: a unit, chunk by chunk, from its homes to its homes; compute: a unit whose state lives
                          on the device                                                    */
    OX_TASK_WRITTEN,   /* adam: waits until all that it wrote has reached the drives       */
    OX_TASK_COMMIT,    /* adam: the store's transaction ends                               */
    OX_TASK_KIND_COUNT
};

/* What a MOVE carries. Its lane is its route; its uses are source and target, but for what comes from the store, which
 * is no buffer. */
enum ox_move {
    OX_MOVE_WEIGHTS,   /* planes of a unit, to where compute reads them                              */
    OX_MOVE_PLANES,    /* planes of a unit that lives on the device, to its optimizer on the host and back */
    OX_MOVE_ACT,       /* activation checkpoint: the input of a unit                                 */
    OX_MOVE_GRAD,      /* partial or finished sum                                                    */
    OX_MOVE_BATCH,     /* tokens of a micro-batch                                                    */
    OX_MOVE_LOSSES,    /* losses of all micro-batches                                                */
    OX_MOVE_PARTIALS,  /* square sums of a gradient that stays on the device                         */
    OX_MOVE_NONFINITE, /* how many parameters of units updated on the device are not finite any more */
    OX_MOVE_COUNT
};

/* What a buffer is to the task that uses it. */
enum ox_use_role {
    OX_USE_SOURCE, OX_USE_TARGET, /* of a copy, read or write                              */
    OX_USE_WEIGHTS,               /* planes of the task's unit                             */
    OX_USE_STATE,                 /* lo and moments of the task's unit, where memory is their home */
    OX_USE_TABLE, OX_USE_TABLE_STATE, /* planes (and state, for lo) of the unit whose table a tied head uses */
    OX_USE_JOINED,                /* fp32 weights                                          */
    OX_USE_X, OX_USE_Y, OX_USE_DX, /* activations in and out, gradient of activations       */
    OX_USE_KEPT,                  /* what forward leaves to backward, which uses it up       */
    OX_USE_GRAD, OX_USE_GRAD_HEAD, /* accumulators; the second is that of tied weights' use in the head */
    OX_USE_WORK, OX_USE_BATCH, OX_USE_LOSS, OX_USE_NORM, OX_USE_CONST, OX_USE_STREAM,
    OX_USE_COUNTS,                /* parameters that are not finite, per unit              */
    OX_USE_WRITTEN                /* the drives hold all planes that the step computes with */
};

enum ox_buf_kind {
    OX_BUF_WEIGHTS, OX_BUF_STATE, OX_BUF_GRAD, OX_BUF_ACT, OX_BUF_KEPT, OX_BUF_JOINED, OX_BUF_WORK, OX_BUF_BATCH,
    OX_BUF_STREAM, /* slots of the optimizer's stream */
    OX_BUF_SMALL, /* losses, partial norms, constant tables */
    OX_BUF_KIND_COUNT
};
const char *ox_buf_name(enum ox_buf_kind kind);

enum { OX_NONE = UINT32_MAX };

struct ox_buf {
    uint64_t bytes, offset; /* in its tier's arena, aligned to OX_IO_ALIGN_BYTES */
    uint32_t first_task_idx, last_task_idx; /* of its uses; a resident one lives through the whole plan */
    uint32_t unit_idx;                      /* or OX_NONE */
    uint32_t grad_idx;                      /* of a gradient; else OX_NONE */
    uint8_t kind;                           /* enum ox_buf_kind */
    uint8_t tier;                           /* DEVICE or HOST */
    bool resident;                          /* keeps its place between steps; weights, state, batches and
                                               constants keep their content too */
};

struct ox_use {
    uint32_t buf_idx;
    uint8_t role;
    bool read;  /* needs what the buffer holds */
    bool write; /* changes it; both for an update */
};

enum { OX_TASK_USES_MAX = 12 };

struct ox_task {
    uint8_t kind, lane;
    uint8_t move;      /* MOVE: enum ox_move */
    bool last;         /* gradients: the finished sum, not a partial one */
    bool carried;      /* of the update of the step before, which overlaps */
    uint8_t use_count;
    uint16_t when;     /* facts of a step that must all hold for the task to work in it (offload/plan/cases.h) */
    uint32_t unit_idx; /* or OX_NONE */
    uint32_t grad_idx; /* GRAD_*, MOVE of a gradient: which one of the unit's (ox_plan_model.grads); else OX_NONE */
    uint32_t mb_idx;   /* micro-batch, or OX_NONE */
    uint64_t bytes;    /* that cross a link; 0 for work */
    uint32_t deps[OX_LANE_COUNT]; /* per lane: 1 + index of the latest task that must end first; 0 = none */
    struct ox_use uses[OX_TASK_USES_MAX];
};

/* What people are told that a task does, which says more than its kind: "read", "upload", "act-save" ... A trace stores
 * the number of that word. */
enum { OX_TASK_WORD_COUNT = 31 };
uint32_t ox_task_word(const struct ox_task *task);
const char *ox_task_word_name(uint32_t word);
const char *ox_task_name(const struct ox_task *task);

/* The number that lists of tasks and buffers show under "unit": of a gradient it is the gradient's, because a unit may
 * have two. */
static inline uint32_t ox_task_unit_or_grad(const struct ox_task *task) {
    return task->grad_idx == OX_NONE ? task->unit_idx : task->grad_idx;
}
static inline uint32_t ox_buf_unit_or_grad(const struct ox_buf *buf) {
    return buf->grad_idx == OX_NONE ? buf->unit_idx : buf->grad_idx;
}

enum ox_link { OX_LINK_NVME_READ, OX_LINK_NVME_WRITE, OX_LINK_H2D, OX_LINK_D2H, OX_LINK_COUNT };
enum ox_traffic_kind {
    OX_TRAFFIC_WEIGHTS, OX_TRAFFIC_STATE, OX_TRAFFIC_GRADS, OX_TRAFFIC_ACTIVATIONS, OX_TRAFFIC_OTHER,
    OX_TRAFFIC_KIND_COUNT
};
const char *ox_link_name(enum ox_link link);
const char *ox_traffic_name(enum ox_traffic_kind kind);
/* The link that a lane's moves cross; OX_LINK_COUNT for lanes that work. */
enum ox_link ox_lane_link(enum ox_lane_id lane);
/* What the bytes of a task are, mainly. */
enum ox_traffic_kind ox_task_traffic(const struct ox_task *task);

/* What compute does in one task, for predictions. GEMMs of whole matrices and those within heads of attention run
 * at different rates; bytes are those that operations read and write, attention's left out. Those of GEMMs are among
 * them on the CPU, which packs what it multiplies; a GPU moves them while it multiplies. */
struct ox_plan_work {
    double gemm_flops, attention_flops, bytes;
    double gemm_bytes; /* of a GPU's GEMMs */
    uint32_t ops; /* operations, queued one by one */
};

enum ox_plan_unit_kind {
    OX_PLAN_EMBEDDING, /* tokens to activations */
    OX_PLAN_BLOCK,     /* activations to activations; its backward starts from its input, or from what forward kept */
    OX_PLAN_HEAD       /* activations to the loss; in training its backward is part of the same task */
};

/* One pass of a unit over a micro-batch: bytes of its workspace, and what compute does (all zero: no prediction). */
struct ox_plan_pass {
    uint64_t room_bytes;
    struct ox_plan_work work;
};

/* A unit: the part of a model whose weights, state and gradient travel together. Units may differ in everything.
 * Activations are those of one micro-batch. */
struct ox_plan_unit {
    enum ox_plan_unit_kind kind;
    uint32_t stage_idx; /* its place in the order of forward: stages[stage_idx] is this unit */
    uint64_t elem_count;
    uint64_t input_bytes, output_bytes; /* activations; 0 where it takes tokens or gives the loss */
    uint64_t kept_bytes; /* that a block can keep for its backward; 0: it cannot */
    /* The head's `forward` is the loss alone, its `backward` the loss with its gradients. The kept passes are those of
     * a block that keeps what its backward needs. An embedding needs no room. */
    struct ox_plan_pass forward, backward, forward_kept, backward_kept;
    uint32_t grad_idx;       /* the gradient of its weights */
    uint32_t table_unit_idx; /* a head whose table is another unit's (tied weights): that unit; else OX_NONE */
    uint32_t table_grad_idx; /* and the gradient that this use of the table gives; else OX_NONE */
};

/* A gradient: one sum over the micro-batches, with an accumulator and a home. A unit whose weights are used twice has
 * one for each use; the second is added to the first elements of the first before the optimizer takes that. */
struct ox_plan_grad {
    uint32_t unit_idx;   /* whose weights it is the gradient of */
    uint32_t added_to;   /* the gradient that this one is added to, or OX_NONE */
    uint32_t addend;     /* the gradient that is added to this one, or OX_NONE */
    uint64_t elem_count;
};

/* What the plan needs to know of a model at one batch shape. */
struct ox_plan_model {
    const struct ox_plan_unit *units;
    const struct ox_plan_grad *grads;
    const uint32_t *stages; /* units in the order of forward, each once; backward is the reverse */
    uint32_t unit_count, grad_count, stage_count;
    uint32_t micro_batches;     /* per step */
    uint64_t batch_bytes;       /* ids, positions, targets, one micro-batch */
    uint64_t const_bytes;       /* tables that stay on the device */
    bool fp32;       /* compute type: the lo plane travels too */
    bool joins;      /* blocks compute with float32 weights, made of their planes; else with hi as it is */
    bool grad_bf16;  /* how a finished gradient leaves the device */
    bool eval_only;  /* no state, no gradients: there are EVAL plans alone */
};

struct ox_plan_budget {
    bool unified;          /* host memory is device memory; device_bytes is unused */
    uint64_t device_bytes, host_bytes;
    uint64_t device_beside_bytes; /* what --device-mem is more than that, by which a refusal advises it */
    uint64_t nvme_bytes;   /* 0 = no store */
    uint64_t nvme_fixed_bytes; /* of them, what the store's own tables take */
    const uint64_t *drive_bytes; /* of them, each drive's; NULL = only the sum counts */
    const uint64_t *drive_speeds; /* against each other (ox_machine_drive_speeds): each gets its share; NULL = alike */
    uint32_t drive_count;
    uint32_t generations; /* of the state on drives: 2, or 1 where the user gave up crash safety; 0 = 2 */
};
/* 1 or 2. */
uint32_t ox_plan_generations(const struct ox_plan_budget *budget);

/* How to place and order things: numerics never depend on it. */
struct ox_placement {
    uint32_t tiles;          /* k: groups of micro-batches that pass the units together */
    uint32_t prefetch_depth; /* units whose planes travel ahead of the one in work; 0 = none */
    enum ox_tier act_tier;   /* home of activation checkpoints */
    uint32_t stream_slots;    /* chunks in flight in the optimizer's stream */
    /* The optimizer of a step runs within the forward that follows, of the next step or of an evaluation: a unit's
     * forward waits for its own optimizer alone. Of the last `speculative_units` it runs in the step's own backward,
     * before the norm is known (speculative): what it replaces must still be on the drives, so there they ask for two
     * generations. */
    bool overlap;
    uint32_t speculative_units;
    /* The last `kept_units` blocks, whose backward comes first, do not recompute: of every micro-batch their input and
     * what backward needs of their forward stays in compute memory until backward has used it up. A block that can
     * keep nothing recomputes wherever it is. */
    uint32_t kept_units;
};

/* EVAL_AFTER_STEP: the first evaluation after a step that left its update to the forward that follows, where steps
 * overlap; the gradients stay in their homes until its end. */
enum ox_plan_kind { OX_PLAN_TRAIN, OX_PLAN_EVAL, OX_PLAN_EVAL_AFTER_STEP };

struct ox_plan_input {
    struct ox_plan_model model;
    struct ox_plan_budget budget;
    struct ox_placement placement;
    const struct ox_shard_table *table; /* with the homes of every unit */
};

/* Whether, where steps overlap, a unit's optimizer runs in the backward of its own step. */
static inline bool ox_plan_is_speculative(const struct ox_plan_input *input, uint32_t unit_idx) {
    return input->model.units[unit_idx].stage_idx + input->placement.speculative_units >= input->model.stage_count;
}

struct ox_plan {
    enum ox_plan_kind kind;
    struct ox_task *tasks;
    struct ox_buf *bufs;
    uint32_t task_count, task_cap, buf_count, buf_cap;
    uint32_t micro_batches, unit_count, grad_count;
    uint64_t peak_bytes[OX_TIER_COUNT];     /* arena size needed; NVME: state and spool */
    uint64_t resident_bytes[OX_TIER_COUNT]; /* of it, held between steps: the front of the arena */
    uint64_t stored_weight_bytes;           /* of those of NVME, hi; the rest is state. All generations of both */
    uint32_t fullest_task[OX_TIER_COUNT];   /* at which the buffers of an arena together are largest */
    uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]; /* per step, in bytes */
    /* Indexes of buffers the executor asks for by name; OX_NONE where a plan has none. */
    uint32_t loss_buf, loss_host_buf, norm_buf, const_buf, stream_buf;
    uint32_t counts_buf, nonfinite_buf; /* of updates on the device: counts per unit, there and on the host */
    uint32_t written_buf;    /* no bytes: its users wait for what the step before has written */
    uint32_t batch_host_buf; /* host: all micro-batches, in order */
    /* Spool extents of the store: one for each gradient, then one for each (unit, micro-batch) activation
     * checkpoint; 0 bytes where nothing is spooled. */
    uint64_t *spool_bytes;
    uint32_t spool_count;
};

/* Reserves room for the largest plan of this input. */
OX_MUST enum ox_status ox_plan_open(const struct ox_plan_input *input, struct ox_plan **out);
void ox_plan_close(struct ox_plan **plan);

/* Gives back the room that the last build left over; the plan cannot be built again. Should there be no memory for
 * the smaller copy, the plan stays as it is. */
void ox_plan_shrink(struct ox_plan **plan);

/* Heap bytes of a plan, its lists included. */
uint64_t ox_plan_memory_bytes(const struct ox_plan *plan);

/* Writes the plan; never fails for lack of budget: peak_bytes says what it needs, and the caller compares. Resident
 * buffers come first and lie at the same offsets in all plans of the same input. */
void ox_plan_build(struct ox_plan *plan, const struct ox_plan_input *input, enum ox_plan_kind kind);

/* ox_plan_build in two parts, for a search that rejects most of its plans: measure writes tasks, offsets and peaks;
 * complete adds the dependencies and takes the same input. */
void ox_plan_measure(struct ox_plan *plan, const struct ox_plan_input *input, enum ox_plan_kind kind);
void ox_plan_complete(struct ox_plan *plan, const struct ox_plan_input *input);

/* What an update on the host may do. In a plan whose steps overlap, `traffic` is that of a step as most are: the early
 * units of the step before are there already, the others are updated. */
struct ox_adam_work {
    bool updates;       /* else planes are only read to where forward wants them, if the drives are their home */
    bool from_store;    /* all planes are read, whatever memory holds */
    bool grad_at_rest;  /* the gradient is read from its home, else from the memory it left the device to */
    bool in_memory;     /* where every plane has its home: nothing is written */
};
/* Adds to `traffic` what crosses the drives' links for one unit. */
void ox_plan_adam_traffic(const struct ox_plan_input *input, uint32_t unit_idx, struct ox_adam_work work,
                          uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]);

/* Whether a step may stay in memory, uncommitted, though there is a store: every plane has its home there, and no
 * update asks the drives for what it replaces. */
bool ox_plan_may_stay_in_memory(const struct ox_plan_input *input);

/* The index of the use with this role, or -1. */
int ox_task_find_use(const struct ox_task *task, enum ox_use_role role);

/* Index of a spool extent. */
uint32_t ox_plan_spool_grad(const struct ox_plan *plan, uint32_t grad_idx);
uint32_t ox_plan_spool_act(const struct ox_plan *plan, uint32_t unit_idx, uint32_t mb_idx);

/* Bytes that a MOVE carries, counted as traffic or not. */
uint64_t ox_plan_move_bytes(const struct ox_plan_input *input, const struct ox_task *task);

/* Whether the task is an update by the optimizer of the host, not by the device. */
static inline bool ox_task_updates_on_host(const struct ox_task *task) {
    return task->kind == OX_TASK_UPDATE && task->lane == OX_LANE_ADAM;
}

/* How many units are blocks. */
uint32_t ox_plan_block_count(const struct ox_plan_model *model);

/* Bytes of a unit's planes as compute needs them: hi, and lo for fp32. */
uint64_t ox_plan_weight_bytes(const struct ox_plan_input *input, uint32_t unit_idx);
/* Bytes of the partial sums of a unit's gradient norm. */
uint64_t ox_plan_partials_bytes(const struct ox_plan_input *input, uint32_t unit_idx);
/* Whether the unit's state lives on the device, where it is then updated: its weights and its gradient live there too,
 * and nothing of it crosses the link but the partial sums of the norm. */
bool ox_plan_state_on_device(const struct ox_plan_input *input, uint32_t unit_idx);
/* True when lo is read from the state, which lies in the same memory as hi, instead of a copy beside hi. */
bool ox_plan_lo_in_state(const struct ox_plan_input *input, uint32_t unit_idx);
/* Resident buffers of a unit's planes: its home when that is memory, else OX_NONE. */
uint32_t ox_plan_home_weights(const struct ox_plan *plan, uint32_t unit_idx);
uint32_t ox_plan_home_state(const struct ox_plan *plan, uint32_t unit_idx);
uint32_t ox_plan_home_grad(const struct ox_plan *plan, uint32_t grad_idx);

/* Host memory behind the resident part that loading and saving need: one chunk (struct ox_chunk_layout, with fp32
 * values). Part of peak_bytes. */
uint64_t ox_plan_scratch_bytes(const struct ox_plan_input *input);

/* Bytes of the slot that one chunk takes in the optimizer's stream (struct ox_chunk_layout, with gradients). */
uint64_t ox_plan_stream_slot_bytes(const struct ox_plan_input *input);
/* The optimizer's slots, and a chunk in fp32 for who is shown the planes. */
uint64_t ox_plan_stream_bytes(const struct ox_plan_input *input);

/* The plans of one input; eval_after_step where steps overlap, else NULL. */
struct ox_plans {
    struct ox_plan *train, *eval, *eval_after_step;
};
void ox_plans_close(struct ox_plans *plans);

/* ---- for people (offload/plan/print.c) ------------------------------------------------------- */

/* Bytes per tier by owner at the tier's fullest moment; `unused` is alignment and gaps, of drives the
 * store's own tables. */
struct ox_ledger {
    uint64_t bytes[OX_TIER_COUNT][OX_BUF_KIND_COUNT];
    uint64_t unused[OX_TIER_COUNT];
};
void ox_plan_ledger(const struct ox_plan *plan, struct ox_ledger *out);

/* The whole plan as text: ledger, homes, lanes, traffic, and with `tasks` every task. free() the text. */
OX_MUST enum ox_status ox_plan_text(const struct ox_plan *plan, const struct ox_plan_input *input, bool tasks,
                                    char **text);

#ifdef __cplusplus
}
#endif
#endif
