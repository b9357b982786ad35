/* A training step as data: a static list of tasks, their lanes and dependencies, and the arena offset of every
 * buffer. A plan is a pure function of its input (no clock, no device); the checker proves it, and the
 * executor runs it as it is.
 *
 * The list is in issue order. A task depends only on earlier ones, and lanes are FIFO, so a step cannot
 * deadlock. The uses of a task state what it reads and writes; dependencies follow from them, and from the
 * space that buffers inherit from one another. */
#ifndef OX_OFFLOAD_PLAN_H
#define OX_OFFLOAD_PLAN_H

#include "base/planes.h"
#include "base/status.h"
#include "offload/plan/choices.h"
#include "offload/plan/mesh.h"
#include "offload/plan/pass.h"
#include "offload/plan/shard.h"
#include "offload/plan/sums.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ox_lane_id {
    OX_LANE_COMPUTE,    /* the device's kernels                               */
    OX_LANE_H2D,        /* host to device copies; what arrives from another part of the model */
    OX_LANE_D2H,        /* device to host copies; what leaves for another part                */
    OX_LANE_NVME_READ,  /* weights, spooled gradients and activations arrive  */
    OX_LANE_NVME_WRITE, /* spooled gradients and activations leave            */
    OX_LANE_REDUCE,     /* norms of finished gradients, on the host           */
    OX_LANE_ADAM,       /* the optimizer, with its own reads and writes       */
    OX_LANE_LINK,       /* what ranks do together, on the host or a GPU       */
    OX_LANE_LINK_IN,    /* what arrives from another rank of the pipeline     */
    OX_LANE_LINK_OUT,   /* what leaves for another rank of the pipeline       */
    OX_LANE_COUNT,
    OX_LANE_OF_ONE_COUNT = OX_LANE_LINK,    /* lanes of a step without other ranks */
    OX_LANE_OF_DATA_COUNT = OX_LANE_LINK_IN /* lanes of a step without a pipeline */
};
/* The executor issues at most as many tasks of a list before the first of them has ended (ox_plan_window). */
enum { OX_RUN_AHEAD_TASKS = 64 };
const char *ox_lane_name(enum ox_lane_id lane);

enum ox_task_kind {
    OX_TASK_MOVE,      /* h2d, d2h, nvme.read, nvme.write: copies what enum ox_move says from one tier to another;
                          link: brings it together from the parts that the ranks have                      */
    OX_TASK_CAST,      /* compute: makes weights in the format of compute of their planes */
    OX_TASK_FORWARD,   /* compute: a stage, one micro-batch                                */
    OX_TASK_HEAD,      /* compute: final norm, head, loss, and in training their backward  */
    OX_TASK_BACKWARD,  /* compute: a stage, one micro-batch, from its input or from what forward kept */
    OX_TASK_GRAD_FOLD, /* compute: adds the slot above to a slot, there or at its target; if last, it joins the sums
                          that the slot has of the rank's groups of rows, in the order of the tree */
    OX_TASK_SUM_PARTS, /* compute: adds the parts of a gradient's slice that the ranks have summed, in the order of the
                          tree, in place or to its target                                  */
    OX_TASK_NARROW,    /* compute: rounds what the rank gives to others of a sum to the type of exchanges: all its parts
                          of it, or, if last, its cut of the finished one                  */
    OX_TASK_WIDEN,     /* compute: and back to float32, once it has been exchanged: the parts of the rank's cut, or the
                          whole slice                                                      */
    OX_TASK_GRAD_ADD,  /* compute: adds the gradients of other uses of a unit to that of its first use, where the sum
                          stays on the device; in turn: the sum so far to that of one more use */
    OX_TASK_GRAD_PACK, /* compute: rounds a finished sum to bf16                           */
    OX_TASK_REDUCE,    /* reduce: square sums of a finished gradient, to which those of other uses are added first;
                          compute: square sums of a gradient on the device                 */
    OX_TASK_NORM,      /* reduce: global norm, clip factor, and whether the step is finite */
    OX_TASK_BEGIN,     /* adam: the store's transaction begins                             */
    OX_TASK_UPDATE,    /* adam: updates a unit chunk by chunk, from its homes to its homes; compute: updates a unit
                          whose state lives on the device                                  */
    OX_TASK_WRITTEN,   /* adam: waits until all that the lane wrote is on the drives       */
    OX_TASK_COMMIT,    /* adam: the store's transaction ends                               */
    OX_TASK_KIND_COUNT
};

/* What a MOVE carries. Its lane is the route, its uses are source and target. What comes from the store or from another
 * part of the model has no source, because neither is a buffer; what leaves for another part has no target. */
enum ox_move {
    OX_MOVE_WEIGHTS,   /* planes of a unit, or of the rank's slice of it, to where compute reads them; link: those
                          of the whole unit, from the slices of all ranks; link.in and link.out: of a whole unit that
                          a head has on loan (ox_plan_borrower)                                      */
    OX_MOVE_PLANES,    /* planes of a unit that lives on the device, to its optimizer on the host and back */
    OX_MOVE_ACT,       /* activation checkpoint: the input of a stage                                */
    OX_MOVE_GRAD,      /* partial or finished sum; link: a part of each rank's sum, or of each copy's, cut into
                          slices, to the ranks whose slices they are, or the finished sum of all slices; link.in and
                          link.out: the rank's sum of one on loan, to where the unit is              */
    OX_MOVE_BATCH,     /* tokens of a micro-batch                                                    */
    OX_MOVE_LOSSES,    /* reports of the rank's micro-batches; link: those of all ranks, which h2d brings back
                          where backward reads what they say                                         */
    OX_MOVE_PARTIALS,  /* square sums of a gradient that the device made; link: those of a unit, from all ranks */
    OX_MOVE_NONFINITE, /* how many parameters of units updated on the device are no longer finite */
    OX_MOVE_OUTSIDE_ACT, /* activations of a micro-batch, from another part of the model (h2d) or to one (d2h);
                            the input of a stage, from another rank (link.in) or to one (link.out)         */
    OX_MOVE_OUTSIDE_DX,  /* the gradient of such activations; it goes the other way                             */
    OX_MOVE_SUM, /* link: the library adds the sums that all ranks have of a gradient, and each gets its slice  */
    OX_MOVE_ROWS, /* link: what a phase of a pass leaves for the next one of other ranks (struct ox_plan_cut) */
    OX_MOVE_LOW_RANK, /* link: copies sum their slice of a gradient as products of thin matrices */
    OX_MOVE_ROUTES, /* d2h: how many rows stages have that may have none, as the stage before them has found */
    OX_MOVE_COUNT
};

/* What a buffer is to the task that uses it. A task of a stage has weights, state, cast weights and accumulator of
 * each of its stage units, whose number is ox_use.nth. */
enum ox_use_role {
    OX_USE_SOURCE, OX_USE_TARGET, /* what a MOVE reads and what it writes                  */
    OX_USE_WEIGHTS,               /* planes of a unit                                      */
    OX_USE_STATE,                 /* lo and moments of a unit, where memory is their home  */
    OX_USE_CAST,                  /* weights in the format of compute                      */
    OX_USE_X, OX_USE_Y, OX_USE_DX, /* activations in and out, gradient of activations       */
    OX_USE_KEPT,                  /* what forward keeps for backward, which overwrites it    */
    OX_USE_GRAD,                  /* accumulator, or finished sum; nth of GRAD_ADD and REDUCE: 0 is that of the unit's
                                     first use, to which the others are added in their order */
    OX_USE_SCRATCH, OX_USE_BATCH,
    OX_USE_LOSS,                  /* reports of micro-batches                              */
    OX_USE_NORM, OX_USE_CONST, OX_USE_STREAM,
    OX_USE_COUNTS,                /* per unit, how many parameters are not finite          */
    OX_USE_WRITTEN,               /* the drives hold all planes that the step computes with */
    OX_USE_REPLACED,              /* takes the planes of the task's unit as they were before a speculative update */
    OX_USE_ROUTES,                /* how many rows stages have that may have none */
    OX_USE_RESIDUAL               /* what LOW_RANK has not sent, and Q */
};

enum ox_buf_kind {
    OX_BUF_WEIGHTS, OX_BUF_STATE, OX_BUF_GRAD, OX_BUF_ACT, OX_BUF_KEPT, OX_BUF_CAST, OX_BUF_SCRATCH, OX_BUF_BATCH,
    OX_BUF_STREAM, /* slots of the optimizer's stream */
    OX_BUF_SMALL, /* losses, partial norms, constant tables */
    OX_BUF_GATHERED, /* planes of a whole unit, of which each rank has a slice */
    OX_BUF_REPLACED, /* planes of a unit, hi and then state, as they were before its speculative update */
    OX_BUF_RESIDUAL, /* what exchanges of low rank keep, of the last step and of this one */
    OX_BUF_KIND_COUNT
};
const char *ox_buf_name(enum ox_buf_kind kind);

enum { OX_NONE = UINT32_MAX };

struct ox_buf {
    uint64_t bytes, offset; /* in its tier's arena, aligned to OX_IO_ALIGN_BYTES */
    uint32_t first_task_idx, last_task_idx; /* its first and last use; a resident buffer lives through the whole plan */
    uint32_t unit_idx;                      /* or OX_NONE */
    uint32_t stage_idx;                     /* for activations; else OX_NONE */
    uint32_t grad_idx;                      /* for a gradient; else OX_NONE */
    uint8_t kind;                           /* enum ox_buf_kind */
    uint8_t tier;                           /* DEVICE or HOST */
    bool resident;                          /* keeps its place between steps; weights, state, batches and
                                               constants keep their content too */
};

struct ox_use {
    uint32_t buf_idx;
    uint8_t role;
    uint8_t nth; /* tells uses of one role apart: the number of the stage unit, or of the gradient; else 0 */
    bool read;   /* needs what the buffer holds */
    bool write;  /* changes it; an update both reads and writes */
};

enum { OX_TASK_USES_MAX = 46 }; /* backward with weights and gradients of 18 stage units, and what else a pass has */

/* What a step meets when it begins. One list of tasks serves every step of a run. Most tasks always work; tasks of the
 * optimizer depend on how the step before ended and on what this one may assume, so each names the facts that it
 * requires (ox_task.when). If all of them hold it works, else it does nothing when its lane comes to it. The last two
 * facts are about the task's unit, the others about the step. The update of the step before is pending until the
 * tasks that carry it have ended. */
enum ox_fact {
    OX_FACT_OWN_WORK = 1 << 0,    /* a forward follows: the step does more than finish a pending update */
    OX_FACT_SPECULATES = 1 << 1,  /* some units are updated in the step's own backward    */
    OX_FACT_COMMITS = 1 << 2,     /* the step's own update is written to the store */
    OX_FACT_BEGIN_DUE = 1 << 3,   /* the pending update's transaction has still to begin */
    OX_FACT_COMMIT_DUE = 1 << 4,  /* that transaction has still to be committed */
    OX_FACT_COUNTS_DUE = 1 << 5,  /* an update is pending: the counts of its units on the device have to be copied */
    OX_FACT_FROM_MEMORY = 1 << 6, /* no pending update has to take planes from the drives that live in memory */
    OX_FACT_DUE = 1 << 7,         /* the unit's carried update has still to run */
    OX_FACT_WANTED = 1 << 8,      /* the unit's update is due, or a forward needs its planes */
    OX_FACT_STATE_DUE = 1 << 9,   /* the unit's hi was updated ahead of its state, which has still to follow */
    OX_FACTS_OF_UNIT = OX_FACT_DUE | OX_FACT_WANTED | OX_FACT_STATE_DUE,
    OX_FACT_EXACT = 1 << 10,      /* copies exchange whole sums, where ranks.low_rank has another way */
    OX_FACT_LOW_RANK = 1 << 11,   /* they exchange thin matrices there */
    OX_FACTS_ALL = (1 << 12) - 1
};
/* What of a unit the pending update has still to make. */
enum ox_due { OX_DUE_NOTHING, OX_DUE_ALL, OX_DUE_STATE };

const char *ox_fact_name(enum ox_fact fact); /* such as "commit-due" */

struct ox_task {
    uint8_t kind, lane;
    uint8_t move;      /* MOVE: enum ox_move */
    uint8_t axis;      /* SUM_PARTS, NARROW, WIDEN, MOVE on LINK: enum ox_axis, along which ranks do it; reports: all
                          ranks do, 0. PARTIALS along the pipeline are the totals of all units */
    bool last;         /* for gradients: the finished sum, not a partial one; for reports of a pipeline's ranks: also
                          what stages report */
    bool carried;      /* part of the update of the step before, which overlaps this step */
    bool begins;       /* HEAD, BACKWARD: its micro-batch is the first of a slot, which is set and not added to */
    uint8_t phase;     /* FORWARD, HEAD, BACKWARD: which phase of the pass; ROWS: the one behind which it comes */
    uint8_t pass;      /* ROWS: enum ox_plan_pass_kind; else 0 */
    uint8_t use_count;
    uint16_t when;     /* enum ox_fact: must all hold in a step for the task to work */
    uint32_t unit_idx; /* or OX_NONE */
    uint32_t stage_idx; /* FORWARD, HEAD, BACKWARD, MOVE of activations: index into ox_plan_model.stages; else
                           OX_NONE. At the end of a part of a model: the stage whose input or output moves; between
                           ranks on both sides the stage whose input it is */
    uint32_t grad_idx; /* GRAD_*, MOVE of a gradient: index into ox_plan_model.grads; else OX_NONE */
    uint32_t mb_idx;   /* micro-batch, or OX_NONE */
    uint32_t peer;     /* LINK_IN, LINK_OUT: the coordinate of the pipeline whose rank, in the place of this one,
                          sends or receives it; so ranks of a coordinate may have one list. Else OX_NONE */
    /* WEIGHTS (not on LINK), CAST: the stage for which alone it works, in the backward of micro-batches [mb_first,
     * mb_past), or OX_NONE. Where that stage has no rows in any of these the task does nothing: its target is not read.
     * What it reads as ROUTES says so, once the task `asks` - 1 has ended, for which the issuing thread waits. ROUTES:
     * the micro-batches that it brings; FORWARD that leaves them: the first of these. */
    uint32_t asks_stage, asks, mb_first, mb_past;
    uint32_t slot;     /* of an accumulator (offload/plan/sums.h): the slot that is set or added to; MOVE of a
                          partial sum: the last slot that travels, of a part: which one; ROWS of experts: the round;
                          else 0 */
    uint64_t bytes;    /* bytes that cross a link; 0 for work */
    uint32_t deps[OX_LANE_COUNT]; /* per lane: 1 + index of the latest task that must end first; 0 = none */
    struct ox_use uses[OX_TASK_USES_MAX];
};

/* The word that users read for a task, which says more than its kind: "read", "upload", "act-save" ... A trace stores
 * the number of the word. */
enum { OX_TASK_WORD_COUNT = 55 };
uint32_t ox_task_word(const struct ox_task *task);
const char *ox_task_word_name(uint32_t word);
const char *ox_task_name(const struct ox_task *task);

/* The number that lists of tasks and buffers show under "unit": that of the stage for what computes and for
 * activations; for a gradient the gradient's, because a unit may have several. */
static inline uint32_t ox_task_number(const struct ox_task *task) {
    return task->grad_idx != OX_NONE ? task->grad_idx : task->stage_idx != OX_NONE ? task->stage_idx : task->unit_idx;
}
static inline uint32_t ox_buf_number(const struct ox_buf *buf) {
    return buf->grad_idx != OX_NONE ? buf->grad_idx : buf->stage_idx != OX_NONE ? buf->stage_idx : buf->unit_idx;
}

enum ox_link {
    OX_LINK_NVME_READ, OX_LINK_NVME_WRITE, OX_LINK_H2D, OX_LINK_D2H,
    OX_LINK_PEER_IN, OX_LINK_PEER_OUT, /* from and to other ranks; what a rank has itself does not count */
    OX_LINK_COUNT,
    OX_LINK_OF_ONE_COUNT = OX_LINK_PEER_IN /* links of a step without other ranks */
};
enum ox_traffic_kind {
    OX_TRAFFIC_WEIGHTS, OX_TRAFFIC_STATE, OX_TRAFFIC_GRADS, OX_TRAFFIC_ACTIVATIONS, OX_TRAFFIC_OTHER,
    OX_TRAFFIC_TOKENS, /* rows that cross to their experts and back: a plan has a bound */
    OX_TRAFFIC_KIND_COUNT
};
const char *ox_link_name(enum ox_link link);
const char *ox_traffic_name(enum ox_traffic_kind kind);
/* The link that the moves of a lane cross; OX_LINK_COUNT for lanes that move nothing, or move over several links. */
enum ox_link ox_lane_link(enum ox_lane_id lane);
/* The kind of traffic under which the bytes of a task are counted. */
enum ox_traffic_kind ox_task_traffic(const struct ox_task *task);

/* A unit: the part of a model whose weights, state and gradient travel together. What moves is a unit, what computes is
 * a stage. Units may differ in everything. */
struct ox_plan_unit {
    uint64_t elem_count;
    bool trained;       /* else it has no gradient, no moments and no update, and its planes stay as they are */
    uint32_t grad_idx;  /* the gradient from its first use, to which those of other uses are added; OX_NONE unless
                           it is trained */
    uint32_t stage_idx; /* the first stage that uses it: backward has its whole gradient after this one */
    uint32_t order_idx; /* its place in the order of forward */
    uint32_t update_idx; /* its place among the units that are trained, which are updated in this order; or OX_NONE */
    double update_flops; /* of products that its update makes of whole matrices; else 0 */
};

/* A gradient: one sum over the micro-batches, with an accumulator and a home. There is one for each use of a unit;
 * before the update the others are added to that of the first use, from its first element on, in the order of a list
 * that begins with its `addend`. Backward finishes them in this order.
 * Stages that share a unit add in turn: a finished gradient stays in compute memory, and the one that backward finishes
 * next takes it up there. So one sum leaves, however many stages there are. */
struct ox_plan_grad {
    uint32_t unit_idx;   /* the unit that has these weights */
    uint32_t added_to;   /* the gradient that this one is added to, or OX_NONE */
    uint32_t addend;     /* the gradient that is added next; in turn: the one added to this one; or OX_NONE */
    uint64_t elem_count;
    bool in_turn;        /* as the others of the unit, which have as many elements */
};
/* Whether others are added where the finished gradient waits for the optimizer; and whether its sum goes on in another
 * one. */
static inline bool ox_plan_adds_at_rest(const struct ox_plan_grad *grad) {
    return !grad->in_turn && grad->addend != OX_NONE;
}
static inline bool ox_plan_goes_on(const struct ox_plan_grad *grad) {
    return grad->in_turn && grad->added_to != OX_NONE;
}

/* What the plan needs to know of a model at one batch shape. */
struct ox_plan_model {
    const struct ox_plan_unit *units;
    const struct ox_plan_grad *grads;
    /* Stages in the order of forward; backward is the reverse. A list that does not begin with an embedding or does not
     * end with a head is a part of a model: for each micro-batch its input arrives from another part, or its output
     * leaves for one, and in training the gradient of either goes the other way. */
    const struct ox_plan_stage *stages;
    const uint32_t *order; /* units in the order in which forward first uses them, each once: order[order_idx] */
    uint32_t unit_count, grad_count, stage_count;
    uint32_t update_count;      /* units that are trained */
    uint32_t micro_batches;     /* per step */
    /* A micro-batch's report: what the head leaves, and behind it so many doubles that its stages report. Behind
     * the reports of all micro-batches of the step lie `pooled_doubles` that backward reads and that follow from all
     * reports, so that then no backward may begin before every forward has ended: the step has one tile. The first
     * head makes them; in a pipeline the first backward that reads them, on each of the ranks. */
    uint32_t report_doubles, pooled_doubles;
    uint64_t batch_bytes;       /* ids, positions, targets, one micro-batch */
    uint32_t loss_values;       /* doubles that the head leaves of a micro-batch; 0: 1 */
    uint64_t const_bytes;       /* tables that stay on the device */
    const struct ox_precision *precision; /* the row of --dtype */
    bool grouped;    /* several heads of queries share one of keys and values, for predictions */
    bool grad_bf16;  /* how a finished gradient leaves the device */
    bool eval_only;  /* no state, no gradients: only EVAL plans can be built */
};

static inline uint64_t ox_plan_loss_bytes(const struct ox_plan_model *model) {
    return sizeof(double) * (model->loss_values > 0 ? model->loss_values : 1);
}
/* Whether the input of the first stage arrives from another part of the model. */
static inline bool ox_plan_has_outside_input(const struct ox_plan_model *model) {
    return model->stages[0].kind != OX_PLAN_EMBEDDING;
}
/* Whether the output of the last stage leaves for another part of the model, which then has the loss. */
static inline bool ox_plan_has_outside_output(const struct ox_plan_model *model) {
    return model->stages[model->stage_count - 1].kind != OX_PLAN_HEAD;
}
/* Sets `order` and the places of units from the stages' uses and from which units are trained; each unit must have a
 * use. Returns how many are trained. */
uint32_t ox_plan_order_units(const struct ox_plan_stage *stages, uint32_t stage_count, struct ox_plan_unit *units,
                             uint32_t *order);
/* The first stage with a backward: the first that trains something, because no gradient is wanted below it; where the
 * input arrives from another part of the model, the first. A whole model without anything to train has none:
 * stage_count. */
uint32_t ox_plan_first_back(const struct ox_plan_model *model);

struct ox_plan_budget {
    bool unified;          /* host memory is device memory; device_bytes is unused */
    uint64_t device_bytes, host_bytes;
    uint64_t device_beside_bytes; /* --device-mem less device_bytes; a refusal adds it to the advised --device-mem */
    uint64_t nvme_bytes;   /* 0 = no store */
    uint64_t nvme_fixed_bytes; /* part of nvme_bytes that the store's own tables take */
    const uint64_t *drive_bytes; /* each drive's part of nvme_bytes; NULL = only the sum counts */
    const uint64_t *drive_speeds; /* relative (ox_machine_drive_speeds): bytes are shared accordingly; NULL = alike */
    const char *const *drive_paths; /* their folders, for texts; NULL: not known */
    uint32_t drive_count;
    uint32_t generations; /* copies of the state on drives: 2; 1 if the user gave up crash safety; 3; 0 = 2 */
};
/* Generations of the state on drives, 1 to 3. */
uint32_t ox_plan_generations(const struct ox_plan_budget *budget);

/* What ranks divide among themselves, and what each has whole. No bit of a result depends on it. */
enum ox_sharding {
    OX_SHARDING_FULL,    /* weights, gradients and state in slices; weights are gathered for each pass (ZeRO-3) */
    OX_SHARDING_STEP,    /* the same, but a gathered unit stays whole until its last use in the step (SHARD_GRAD_OP) */
    OX_SHARDING_GRAD,    /* whole weights on every device; gradients and state in slices (ZeRO-2) */
    OX_SHARDING_STATE,   /* whole weights and gradients on every device; state in slices (ZeRO-1) */
    OX_SHARDING_NONE,    /* every rank has everything (DDP) */
    OX_SHARDING_SHARED,  /* as FULL, but every device takes the slices of all ranks from host memory itself */
    OX_SHARDING_COUNT
};

const char *ox_sharding_name(enum ox_sharding sharding); /* as --sharding: "full_shard" ... */

/* The ranks that do a step together, and which of them the plan is for. Zeros are one rank with one sum group. */
struct ox_plan_ranks {
    uint32_t count, idx;
    /* Copies of the model: ranks in a row divide one among them, by `sharding`, and sums go first over these and then
     * over the copies (HYBRID_SHARD). A divisor of `count`; 0: 1. With NONE each rank is a copy, whatever it says. */
    uint32_t copies;
    /* The step's micro-batches are cut into as many groups, each of which is summed by itself; the sums are then joined
     * in a tree. The result depends on this number and not on `count`, which is at most as large. */
    uint32_t sum_groups;
    uint32_t micro_batches; /* per step, of all ranks; ox_plan_model has those of this rank */
    /* The rows of every sequence are cut into as many groups (0: 1), and all that adds up rows is done for each group
     * by itself, so that a gradient has a leaf for each group of rows and each sum group: those of the first group of
     * rows come first. Reports are of a micro-batch's group of rows, in the same order. Results depend on this number.
     */
    uint32_t context_groups;
    /* Ranks that divide the groups of rows of the same micro-batches, each as many in a row; 0: 1. A divisor of
     * context_groups and of the ranks of a coordinate, which lie (rows, micro-batches). */
    uint32_t contexts;
    uint32_t per_store; /* ranks in a row that share a store, as those of a process do; 0: all */
    /* Coordinates of the pipeline, a divisor of `count`; 0: 1. Each has stages and units of its own. The ranks of one
     * coordinate lie in a row, divide the step's micro-batches and hold its units, by `sharding` and `copies`. */
    uint32_t pipe;
    const uint32_t *pipe_of; /* the owner map: the coordinate of each unit; NULL with one. Not owned */
    /* Features are cut into as many groups (0: 1), of which each of the `tensors` ranks that divide them (0: 1; a
     * divisor) has as many in a row. Those ranks have the same micro-batches, and what crosses between them is cuts of
     * passes. Results depend on tensor_groups alone. */
    uint32_t tensor_groups, tensors;
    const uint32_t *group_of; /* the group of each unit, OX_NONE: none, every rank has it; NULL with one. Not owned */
    /* Ranks that divide the experts of every layer, which are units of their own: a divisor of those that divide a
     * copy; 0: 1. Each has as many micro-batches, whose rows cross to the ranks that have their experts, which sum over
     * all of them. Those that have the same experts of a copy divide their units. */
    uint32_t experts;
    const uint32_t *expert_of; /* which of them has a unit, OX_NONE: all divide it; NULL with one. Not owned */
    enum ox_sharding sharding;
    /* The library of the communication adds the sums of ranks, in an order of its own, so that a run is not
     * reproducible. A rank then has one group: sum_groups is `count`. All ranks have slices, or all are copies. */
    bool library_sums;
    /* In what ranks exchange sums on the outermost axis of data, between copies if there are several. All but float32
     * round each part of a sum, so that the result depends on `count`. Not with library_sums. */
    enum ox_exchange_dtype exchange;
    /* How copies exchange gradients once a step has the fact; NULL: as whole sums. In float32. Not owned. */
    const struct ox_low_rank *low_rank;
};

/* The axes on which these ranks lie: those that divide units, their copies, and the coordinates of a pipeline. */
static inline struct ox_mesh ox_plan_mesh_of(const struct ox_plan_ranks *ranks) {
    const uint32_t count = ranks->count > 0 ? ranks->count : 1, given = ranks->copies > 0 ? ranks->copies : 1;
    const uint32_t pipe = ranks->pipe > 0 ? ranks->pipe : 1, tensors = ranks->tensors > 0 ? ranks->tensors : 1;
    const uint32_t of_data = count / pipe / tensors;
    const uint32_t copies = ranks->sharding == OX_SHARDING_NONE ? of_data : given;
    return (struct ox_mesh){
        .size = {[OX_AXIS_SHARD] = of_data / copies, [OX_AXIS_COPY] = copies, [OX_AXIS_TENSOR] = tensors,
                 [OX_AXIS_PIPE] = pipe},
        .contexts = ranks->contexts > 0 ? ranks->contexts : 1,
        .experts = ranks->experts > 0 ? ranks->experts : 1};
}
/* The coordinate of the pipeline that holds a unit. */
static inline uint32_t ox_plan_owner(const struct ox_plan_ranks *ranks, uint32_t unit_idx) {
    return ranks->pipe > 1 ? ranks->pipe_of[unit_idx] : 0;
}
/* Which of the ranks that divide groups of features has a unit; OX_NONE: each of them. */
static inline uint32_t ox_plan_tensor_owner(const struct ox_plan_ranks *ranks, uint32_t unit_idx) {
    const uint32_t group = ranks->tensors > 1 ? ranks->group_of[unit_idx] : OX_NONE;
    return group == OX_NONE ? OX_NONE : group / (ranks->tensor_groups / ranks->tensors);
}
/* Which of those that divide experts has a unit; OX_NONE: each a slice. */
static inline uint32_t ox_plan_expert_owner(const struct ox_plan_ranks *ranks, uint32_t unit_idx) {
    return ranks->experts > 1 ? ranks->expert_of[unit_idx] : OX_NONE;
}
/* The axis along which ranks of a copy divide a unit: all of them, or those that have the same experts. */
static inline enum ox_axis ox_plan_shard_axis(const struct ox_plan_ranks *ranks, uint32_t unit_idx) {
    return ox_plan_expert_owner(ranks, unit_idx) == OX_NONE ? OX_AXIS_SHARD : OX_AXIS_SLICE;
}
/* Whether a rank has a unit, or a slice of it. */
bool ox_plan_rank_holds(const struct ox_plan_ranks *ranks, uint32_t rank, uint32_t unit_idx);

/* In which order a pipeline does its stages (offload/plan/schedule.h). */
enum ox_pipe_schedule {
    OX_PIPE_VERTICAL,    /* all micro-batches of a tile through one stage before the next */
    OX_PIPE_GPIPE,       /* each micro-batch forward through all stages, then each one backward */
    OX_PIPE_1F1B,        /* one forward and one backward in turn */
    OX_PIPE_INTERLEAVED, /* the same, with several runs of stages on each coordinate */
    OX_PIPE_COUNT
};
const char *ox_pipe_schedule_name(enum ox_pipe_schedule schedule); /* as --pipeline-schedule: "vertical", "1f1b" ... */

/* How tasks and buffers are placed and ordered. No bit of a result depends on it. */
struct ox_placement {
    OX_NUMBER_ROWS(OX_NUMBER_FIELD)
    enum ox_tier act_tier; /* home of activation checkpoints */
    /* In which order the ranks of a pipeline do their stages, and with INTERLEAVED in how many runs of stages each has
     * its own; 0: 1. */
    enum ox_pipe_schedule schedule;
    uint32_t chunks;
    uint32_t window; /* tasks that are issued before the first of them has ended; 0: OX_RUN_AHEAD_TASKS. For tests */
    /* With `overlap` the update of a step runs within the forward that follows, of the next step or of an evaluation:
     * the forward of a unit waits for the update of that unit alone. Of the last `speculative_units`, or of as many
     * that are spread evenly over all units, those whose rules say `speculative` are updated in the step's own
     * backward, before the norm is known. What they replace must stay until then: on the drives, for which a store
     * needs two generations, or in memory. */
    bool overlap;
    OX_SWITCH_ROWS(OX_SWITCH_FIELD)
};

/* EVAL_AFTER_STEP: where steps overlap, the first evaluation after a step, whose forward carries that step's update;
 * the gradients stay in their homes until it ends. */
enum ox_plan_kind { OX_PLAN_TRAIN, OX_PLAN_EVAL, OX_PLAN_EVAL_AFTER_STEP };

struct ox_plan_input {
    struct ox_plan_model model;
    struct ox_plan_budget budget;
    struct ox_placement placement;
    struct ox_plan_ranks ranks;
    const struct ox_shard_table *table; /* with the homes of every unit */
};

/* How many tasks of a list are issued before the first of them has ended: what the proof takes for an edge, and the
 * executor for its bound. */
static inline uint32_t ox_plan_window(const struct ox_plan_input *input) {
    return input->placement.window > 0 ? input->placement.window : OX_RUN_AHEAD_TASKS;
}
static inline uint32_t ox_plan_rank_count(const struct ox_plan_input *input) {
    return input->ranks.count > 0 ? input->ranks.count : 1;
}
static inline struct ox_mesh ox_plan_mesh(const struct ox_plan_input *input) {
    return ox_plan_mesh_of(&input->ranks);
}
/* The ranks with which the rank of the plan does something along an axis. */
static inline struct ox_rank_group ox_plan_group(const struct ox_plan_input *input, enum ox_axis axis) {
    const struct ox_mesh mesh = ox_plan_mesh(input);
    return ox_mesh_group(&mesh, input->ranks.idx, axis);
}
/* Coordinates of the pipeline, and that of the rank; ranks that divide groups of features, and which the rank is; how
 * many ranks have the same of both, which divide the micro-batches and lie in a row. */
static inline uint32_t ox_plan_pipe(const struct ox_plan_input *input) {
    return ox_plan_mesh(input).size[OX_AXIS_PIPE];
}
static inline uint32_t ox_plan_pipe_at(const struct ox_plan_input *input) {
    return ox_plan_group(input, OX_AXIS_PIPE).idx;
}
static inline uint32_t ox_plan_tensors(const struct ox_plan_input *input) {
    return ox_plan_mesh(input).size[OX_AXIS_TENSOR];
}
static inline uint32_t ox_plan_tensor_at(const struct ox_plan_input *input) {
    return ox_plan_group(input, OX_AXIS_TENSOR).idx;
}
static inline uint32_t ox_plan_data_ranks(const struct ox_plan_input *input) {
    return ox_plan_rank_count(input) / ox_plan_pipe(input) / ox_plan_tensors(input);
}
/* How many ranks of a coordinate divide the rows of the same micro-batches; groups of rows, of all and of a rank. */
static inline uint32_t ox_plan_contexts(const struct ox_plan_input *input) {
    return ox_plan_mesh(input).contexts;
}
static inline uint32_t ox_plan_row_groups(const struct ox_plan_input *input) {
    return input->ranks.context_groups > 0 ? input->ranks.context_groups : 1;
}
static inline uint32_t ox_plan_own_row_groups(const struct ox_plan_input *input) {
    return ox_plan_row_groups(input) / ox_plan_contexts(input);
}
/* Ranks that divide experts; and whether one of them has a unit, so that no other computes with it. */
static inline uint32_t ox_plan_experts(const struct ox_plan_input *input) {
    return ox_plan_mesh(input).experts;
}
static inline bool ox_plan_is_expert(const struct ox_plan_input *input, uint32_t unit_idx) {
    return ox_plan_expert_owner(&input->ranks, unit_idx) != OX_NONE;
}
/* Whether a unit of the rank's stages is one of its groups of features, or of none; and of its experts, or of none. */
static inline bool ox_plan_has_group(const struct ox_plan_input *input, uint32_t unit_idx) {
    const uint32_t owner = ox_plan_tensor_owner(&input->ranks, unit_idx);
    const uint32_t expert = ox_plan_expert_owner(&input->ranks, unit_idx);
    return (owner == OX_NONE || owner == ox_plan_tensor_at(input)) &&
           (expert == OX_NONE || expert == ox_plan_group(input, OX_AXIS_EXPERT).idx);
}
/* Sums that a slot of an accumulator has side by side: one for each of the rank's groups of rows, or for each rank
 * whose rows the unit's experts take. */
static inline uint32_t ox_plan_sums_of(const struct ox_plan_input *input, uint32_t grad_idx) {
    return ox_plan_own_row_groups(input) *
           (ox_plan_is_expert(input, input->model.grads[grad_idx].unit_idx) ? ox_plan_experts(input) : 1);
}
/* Whether the rank holds the unit, and whether it computes the stage, with those of its units that it holds. A unit
 * that others hold has no buffer, gradient or task in the plan. */
static inline bool ox_plan_holds(const struct ox_plan_input *input, uint32_t unit_idx) {
    return (input->ranks.pipe <= 1 && input->ranks.tensors <= 1 && input->ranks.experts <= 1) ||
           ox_plan_rank_holds(&input->ranks, input->ranks.idx, unit_idx);
}
static inline uint32_t ox_plan_stage_owner(const struct ox_plan_input *input, uint32_t stage_idx) {
    return ox_plan_owner(&input->ranks, input->model.stages[stage_idx].units[0].unit_idx);
}
static inline bool ox_plan_computes(const struct ox_plan_input *input, uint32_t stage_idx) {
    return input->ranks.pipe <= 1 || ox_plan_stage_owner(input, stage_idx) == ox_plan_pipe_at(input);
}
/* The coordinate whose head computes with a unit of another one, as where its table is that of the embedding, which has
 * it; OX_NONE: none does. The unit is on loan then: in every step the head's rank gets it whole, from the rank of the
 * same micro-batches, before its first head, and gives what it has summed of its gradient back behind its last. */
uint32_t ox_plan_borrower(const struct ox_plan_input *input, uint32_t unit_idx);
/* How many ranks hold a copy together, each a slice; how many of them a unit, which experts may be; and how many such
 * copies there are. */
static inline uint32_t ox_plan_holders(const struct ox_plan_input *input) {
    return ox_plan_mesh(input).size[OX_AXIS_SHARD];
}
static inline uint32_t ox_plan_holders_of(const struct ox_plan_input *input, uint32_t unit_idx) {
    return ox_plan_group(input, ox_plan_shard_axis(&input->ranks, unit_idx)).count;
}
static inline uint32_t ox_plan_copies(const struct ox_plan_input *input) {
    return ox_plan_mesh(input).size[OX_AXIS_COPY];
}
/* Opens the shard table of a rank: its slices, or all of it where every rank has everything. */
OX_MUST enum ox_status ox_plan_table_open(const struct ox_shard_table *whole, const struct ox_plan_ranks *ranks,
                                          struct ox_shard_table *out);
/* Whether ranks have slices of the weights, so that a unit is gathered in compute memory before compute reads it; and
 * whether a unit that was gathered stays until its last use in the step, or, resident, beyond it. */
static inline bool ox_plan_gathers(const struct ox_plan_input *input, uint32_t unit_idx) {
    return ox_plan_holders_of(input, unit_idx) > 1;
}
static inline bool ox_plan_keeps_gathered(const struct ox_plan_input *input, uint32_t unit_idx) {
    return ox_plan_gathers(input, unit_idx) && input->ranks.sharding != OX_SHARDING_FULL &&
           input->ranks.sharding != OX_SHARDING_SHARED;
}
static inline bool ox_plan_has_resident_gathered(const struct ox_plan_input *input, uint32_t unit_idx) {
    return ox_plan_keeps_gathered(input, unit_idx) && input->ranks.sharding != OX_SHARDING_STEP;
}
/* Whether a unit whose home is host memory is gathered there, from where every device takes the slices of all ranks. */
static inline bool ox_plan_shares_host(const struct ox_plan_input *input) {
    return input->ranks.sharding == OX_SHARDING_SHARED && ox_plan_data_ranks(input) > 1;
}
/* Links and lanes of a step, of which those between ranks come last; and groups of micro-batches that are summed. */
static inline int ox_plan_link_count(const struct ox_plan_input *input) {
    return ox_plan_rank_count(input) > 1 ? OX_LINK_COUNT : OX_LINK_OF_ONE_COUNT;
}
static inline int ox_plan_lane_count(const struct ox_plan_input *input) {
    return ox_plan_pipe(input) > 1 ? OX_LANE_COUNT
           : ox_plan_rank_count(input) > 1 ? OX_LANE_OF_DATA_COUNT : OX_LANE_OF_ONE_COUNT;
}
static inline uint32_t ox_plan_sum_groups(const struct ox_plan_input *input) {
    return input->ranks.sum_groups > 0 ? input->ranks.sum_groups : 1;
}

/* Bytes of a micro-batch's report, and of the buffer with those of all micro-batches of the step. */
uint64_t ox_plan_report_bytes(const struct ox_plan_model *model);
uint64_t ox_plan_reports_bytes(const struct ox_plan_input *input);
/* How many stages report that a coordinate of the pipeline computes. Where it computes the head or one of these, its
 * ranks have reports of their own. */
uint32_t ox_plan_reporters(const struct ox_plan_input *input, uint32_t at);
bool ox_plan_has_reports(const struct ox_plan_input *input);
/* Bytes of a micro-batch's report that a coordinate gives to others: what its head leaves and, `of_stages`, its
 * stages. With one coordinate all of it. */
uint64_t ox_plan_given_report_bytes(const struct ox_plan_input *input, uint32_t at, bool of_stages);
/* The order in which gradients are summed, and what of it belongs to the rank of the plan. What it calls micro-batches
 * are the groups of rows of micro-batches. */
struct ox_sums ox_plan_sums(const struct ox_plan_input *input);
/* The same for one group of rows alone: the rank sums each of its own like that, and then joins the sums of these. */
struct ox_sums ox_plan_row_sums(const struct ox_plan_input *input);
/* The cut that a task OX_MOVE_ROWS is. */
static inline const struct ox_plan_cut *ox_plan_task_cut(const struct ox_plan_input *input,
                                                         const struct ox_task *task) {
    return &ox_plan_stage_pass(&input->model.stages[task->stage_idx], (enum ox_plan_pass_kind)task->pass)
                ->cuts[task->phase];
}
/* What of it is joined along an axis: the parts of the ranks of a copy, then those of the copies. */
struct ox_sums ox_plan_sums_along(const struct ox_plan_input *input, enum ox_axis axis);
/* The most tiles that a step can have: each has a micro-batch, also on the rank that has the fewest; one where backward
 * reads what the whole step reports, and in schedules of a pipeline that have their own order of micro-batches. */
uint32_t ox_plan_tiles_max(const struct ox_plan_input *input);
/* The axis along which ranks of a copy divide a gradient, as they do its unit. */
static inline enum ox_axis ox_plan_grad_axis(const struct ox_plan_input *input, uint32_t grad_idx) {
    return ox_plan_shard_axis(&input->ranks, input->model.grads[grad_idx].unit_idx);
}
/* Whether the ranks exchange their sums of a gradient along an axis, after which each has that of its slice; or any. */
static inline bool ox_plan_exchanges_along(const struct ox_plan_input *input, uint32_t grad_idx, enum ox_axis axis) {
    return ox_plan_group(input, axis).count > 1 && (axis == OX_AXIS_COPY || axis == ox_plan_grad_axis(input, grad_idx));
}
static inline bool ox_plan_exchanges(const struct ox_plan_input *input, uint32_t grad_idx) {
    return ox_plan_exchanges_along(input, grad_idx, ox_plan_grad_axis(input, grad_idx)) ||
           ox_plan_exchanges_along(input, grad_idx, OX_AXIS_COPY);
}
/* In what ranks exchange sums along an axis. */
enum ox_exchange_dtype ox_plan_exchange_dtype(const struct ox_plan_input *input, enum ox_axis axis);
/* Elements of a gradient that are divided along an axis: all, or among copies the slice that they have. */
uint64_t ox_plan_grad_divided(const struct ox_plan_input *input, uint32_t grad_idx, enum ox_axis axis);
/* Where a part of the rank's own sums lies, in bytes: in a slot of its accumulator, or, if it is a node that the
 * holders of its copy have added up, where the first part of the node was added. */
uint64_t ox_plan_part_offset(const struct ox_plan_input *input, uint32_t grad_idx, enum ox_axis axis, uint32_t part);
/* What a NARROW or WIDEN works on: so many parts of so many numbers each, and the numbers of all. */
struct ox_plan_recode {
    uint32_t parts;
    uint64_t count, elems;
};
struct ox_plan_recode ox_plan_recode(const struct ox_plan_input *input, const struct ox_task *task);
/* Elements of a finished gradient that the rank has: those of its slice of the unit. And those that it adds up along an
 * axis: the same; of the sums of copies its cut of the slice, and the cuts are gathered then. */
uint64_t ox_plan_grad_slice(const struct ox_plan_input *input, uint32_t grad_idx);
uint64_t ox_plan_grad_cut(const struct ox_plan_input *input, uint32_t grad_idx, enum ox_axis axis);
/* Where the cut of copy `idx` begins in the slice, in elements; for `idx` = the number of copies it is the end. */
uint64_t ox_plan_grad_cut_first(const struct ox_plan_input *input, uint32_t grad_idx, uint32_t idx);

struct ox_unit_rules;

struct ox_plan {
    enum ox_plan_kind kind;
    struct ox_task *tasks;
    struct ox_buf *bufs;
    uint32_t task_count, task_cap, buf_count, buf_cap;
    uint32_t micro_batches, unit_count, grad_count, stage_count;
    struct ox_unit_rules *rules; /* unit_count: what the input decides about each (offload/plan/rules.h) */
    uint64_t peak_bytes[OX_TIER_COUNT];     /* arena size needed; NVME: state and spool */
    uint64_t live_bytes[OX_TIER_NVME];      /* of peak_bytes what buffers have at most at a time, among them those that
                                               keep their space until the next of their kind has left */
    uint64_t resident_bytes[OX_TIER_COUNT]; /* part of peak_bytes held between steps, at the front of the arena */
    uint64_t stored_weight_bytes; /* part of resident_bytes[NVME] that is hi; the rest is state. All generations */
    uint32_t fullest_task[OX_TIER_COUNT];   /* the task at which the buffers of an arena sum up to most */
    uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]; /* per step, in bytes */
    /* Indexes of buffers that the executor finds by name; OX_NONE if the plan has no such buffer. Without a head there
     * are no losses. */
    uint32_t loss_buf, loss_host_buf, norm_buf, const_buf, stream_buf;
    uint32_t counts_buf, nonfinite_buf; /* what updates on the device count per unit, there and on the host */
    uint32_t written_buf;    /* without bytes: its uses make tasks wait for the writes of the step before */
    uint32_t batch_host_buf; /* host: all micro-batches, in order */
    /* Spool extents of the store: one for each gradient, then one for each (stage, micro-batch) activation
     * checkpoint; 0 bytes where nothing is spooled. */
    uint64_t *spool_bytes;
    uint32_t spool_count;
};

/* Allocates memory for the largest plan of this input; the caller closes the plan. */
OX_MUST enum ox_status ox_plan_open(const struct ox_plan_input *input, struct ox_plan **out);
void ox_plan_close(struct ox_plan **plan);

/* Frees memory that the last build left unused; the plan cannot be built again. If there is no memory for the smaller
 * copy, the plan stays as it is. */
void ox_plan_shrink(struct ox_plan **plan);

/* Whether two plans of inputs with as many units, gradients and stages are the same to whoever runs them. */
bool ox_plan_same(const struct ox_plan *a, const struct ox_plan *b);

/* Heap bytes of a plan, its lists included. */
uint64_t ox_plan_memory_bytes(const struct ox_plan *plan);

/* Writes the plan. A small budget is no error: peak_bytes says what the plan needs, and the caller compares. Resident
 * buffers come first and lie at the same offsets in all plans of the same input. */
void ox_plan_build(struct ox_plan *plan, const struct ox_plan_input *input, enum ox_plan_kind kind);

/* ox_plan_build in two parts, for a search that rejects most of its plans: measure writes tasks and peaks; complete
 * adds offsets and dependencies, and takes the same input. `as_measured`: the offsets are those that were measured, for
 * a plan that is only simulated; to look for better ones takes longer than that. */
void ox_plan_measure(struct ox_plan *plan, const struct ox_plan_input *input, enum ox_plan_kind kind);
void ox_plan_complete(struct ox_plan *plan, const struct ox_plan_input *input, bool as_measured);

/* What an update on the host reads and writes. Where steps overlap, the plan's `traffic` is that of the usual step: the
 * speculative units were updated by the step before, the others are updated now. */
struct ox_adam_work {
    bool updates;       /* else it only reads planes from the drives to where forward needs them */
    bool from_store;    /* a speculative update is repeated: all planes are read from the drives, also those that live
                           in memory */
    bool grad_at_rest;  /* the gradient is read from its home, else from the host buffer it was just copied to */
    bool stays;         /* the step is not committed: only planes that the drives must have are written */
};
/* Adds to `traffic` the bytes that one unit's update moves over the links of the drives. */
void ox_plan_adam_traffic(const struct ox_plan *plan, const struct ox_plan_input *input, uint32_t unit_idx,
                          struct ox_adam_work work, uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]);

/* Index of the task's use with this role, the first one or the nth; -1: there is none. */
int ox_task_find_use(const struct ox_task *task, enum ox_use_role role);
int ox_task_find_nth_use(const struct ox_task *task, enum ox_use_role role, uint32_t nth);

/* Index of a spool extent. */
uint32_t ox_plan_spool_grad(const struct ox_plan *plan, uint32_t grad_idx);
uint32_t ox_plan_spool_act(const struct ox_plan *plan, uint32_t stage_idx, uint32_t mb_idx);

/* Bytes that a rank gets from others and gives to them, and those that its device takes from host memory, where it and
 * the others have them. */
struct ox_peer_bytes {
    uint64_t in, out, up;
};
/* Returns the bytes of a task of the lane LINK. */
struct ox_peer_bytes ox_plan_peer_bytes(const struct ox_plan *plan, const struct ox_plan_input *input,
                                        const struct ox_task *task);

/* Bytes that a MOVE of another lane carries, also where they do not count as traffic. */
uint64_t ox_plan_move_bytes(const struct ox_plan_input *input, const struct ox_task *task);

/* Whether the task is an update on the host, not on the device. */
static inline bool ox_task_updates_on_host(const struct ox_task *task) {
    return task->kind == OX_TASK_UPDATE && task->lane == OX_LANE_ADAM;
}

/* How many stages are blocks. */
uint32_t ox_plan_block_count(const struct ox_plan_model *model);

/* Bytes of the planes that travel to compute (precision): of the rank's slice of a unit, which is the unit
 * where ranks divide no weights, and of the whole unit. */
uint64_t ox_plan_weight_bytes(const struct ox_plan_input *input, uint32_t unit_idx);
uint64_t ox_plan_whole_weight_bytes(const struct ox_plan_input *input, uint32_t unit_idx);
/* Bytes of the partial sums of the norm: of the rank's slice of a unit's gradient, and of all units. */
uint64_t ox_plan_partials_bytes(const struct ox_plan_input *input, uint32_t unit_idx);
uint64_t ox_plan_norm_bytes(const struct ox_plan_input *input);
/* The resident buffers that hold weights, state or gradient at home; OX_NONE where the home is not memory. */
uint32_t ox_plan_home_weights(const struct ox_plan *plan, uint32_t unit_idx);
uint32_t ox_plan_home_state(const struct ox_plan *plan, uint32_t unit_idx);
uint32_t ox_plan_home_grad(const struct ox_plan *plan, uint32_t grad_idx);
uint32_t ox_plan_residual(const struct ox_plan *plan, uint32_t grad_idx);
/* The resident buffer that has what the unit's speculative update replaced, or OX_NONE. */
uint32_t ox_plan_replaced(const struct ox_plan *plan, uint32_t unit_idx);

/* Bytes of host memory behind the resident part that loading and saving need: one chunk (struct ox_chunk_layout, with
 * fp32 values). They are part of peak_bytes. */
uint64_t ox_plan_scratch_bytes(const struct ox_plan_input *input);

/* Bytes of the slot that one chunk takes in the optimizer's stream (struct ox_chunk_layout, with gradients). */
uint64_t ox_plan_stream_slot_bytes(const struct ox_plan_input *input);
/* Bytes of the optimizer's slots, and of a chunk in fp32 in which a checkpoint reads the planes. */
uint64_t ox_plan_stream_bytes(const struct ox_plan_input *input);

/* The plans of one input; eval_after_step where steps overlap, else NULL. */
struct ox_plans {
    struct ox_plan *train, *eval, *eval_after_step;
    bool spare_host; /* host memory was short for none of the plans among which these were chosen */
};
void ox_plans_close(struct ox_plans *plans);

/* ---- for people (offload/plan/print.c) ------------------------------------------------------- */

/* Bytes per tier by owner at the tier's fullest moment. `turns` is the space that buffers keep until the next of their
 * kind has left; `unused` is alignment and gaps, on drives the store's own tables. */
struct ox_ledger {
    uint64_t bytes[OX_TIER_COUNT][OX_BUF_KIND_COUNT];
    uint64_t turns[OX_TIER_COUNT];
    uint64_t unused[OX_TIER_COUNT];
};
void ox_plan_ledger(const struct ox_plan *plan, struct ox_ledger *out);

enum ox_plan_detail {
    OX_PLAN_BRIEF, /* ledger, homes, traffic */
    OX_PLAN_LANES, /* and how many tasks and buffers there are */
    OX_PLAN_TASKS, /* and every task */
};
/* The plan as text. free() the text. */
OX_MUST enum ox_status ox_plan_text(const struct ox_plan *plan, const struct ox_plan_input *input,
                                    enum ox_plan_detail detail, char **text);

#ifdef __cplusplus
}
#endif
#endif
