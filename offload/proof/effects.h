/* Declarations of the second half of the proof (effects*.c): what buffers hold, and what a task may do with them. */
#ifndef OX_OFFLOAD_PROOF_EFFECTS_H
#define OX_OFFLOAD_PROOF_EFFECTS_H

#include "offload/proof/cases.h"
#include "offload/proof/sizes.h"
#include "offload/proof/sums.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a buffer holds. NOTHING is zero: what the last step left in the buffer may not be read. */
enum ox_holding {
    NOTHING,
    PLANES,   /* planes of what the rank has of unit `idx`, in version `count` */
    GATHERED, /* planes of the whole unit `idx`, of which each rank has a part */
    STATE,    /* optimizer state of what the rank has of unit `idx`, in version `count` */
    CAST,     /* weights of unit `idx` in the format of compute */
    ACT,      /* input of stage `idx`, or with OX_NONE the output of the last stage, for micro-batch `count` */
    ACT_GRAD, /* gradient of such activations */
    KEPT,     /* what the backward of stage `idx` needs from its forward of micro-batch `count` */
    SUM,      /* gradient `idx` of the model in fp32, after the first `count` steps of the rank's sum */
    PARTS,    /* what the rank adds up of gradient `idx`, in the first `count` parts of its copy's holders */
    NODES,    /* the same in the sum of these, which is one or more nodes of the tree, where it goes on over copies */
    COPY_PARTS, /* what the rank adds up of the nodes of all copies, in the first `count` of each */
    NARROW_OWN,   /* the parts or nodes that the rank gives of gradient `idx`, in the type of exchanges */
    NARROW_PARTS, /* PARTS or COPY_PARTS in that type: what it got in the first `count` rounds */
    SLICE,    /* what it has added up, in the sum of all ranks */
    NARROW_SLICE, NARROW_COMPLETE, /* SLICE and COMPLETE in the type of exchanges */
    COMPLETE, /* all that it has of gradient `idx` in the sum of all ranks, from all copies */
    TOTAL,    /* gradient `idx`, the whole sum, to which those of other uses of the unit are added */
    PACKED,   /* gradient `idx`, the whole sum in bf16 */
    REDUCED,  /* gradient of unit `idx` as the optimizer takes it, counted in the norm; makes version `count` */
    BATCH,    /* micro-batch `count` */
    BATCHES,  /* all micro-batches */
    LOADS,    /* what the first `count` forward passes of stages that report have reported, before any loss */
    ALL_LOADS, /* what all of all ranks have */
    LOSSES,   /* losses of the rank's first `count` micro-batches, beside such reports */
    ALL_LOSSES, /* losses of the micro-batches of all ranks; with `count` 1 loads are pooled beside them */
    PARTIALS, /* square sums of the gradient of unit `idx`, on the device */
    NORMS,    /* square sums of `count` units, on the host; of `idx` units those of all that hold them */
    TOTALS,   /* those of all units, from all coordinates of the pipeline */
    FACTOR,   /* the clip factor: the global norm is known */
    COUNTS,   /* how many parameters are not finite in `count` units updated on the device */
    WRITTEN,  /* the drives have all that the step computes with */
    REPLACED, /* planes of unit `idx` and its state in version `count`, saved; or hi alone */
    RESIDUAL, /* what exchanges of gradient `idx` in low rank keep; with `count` 1 also of this step */
    ROUTES, /* how many rows the stages behind stage `idx` have in micro-batches [first, count) */
    CONSTANT, WORK, SLOTS,
    /* Within a pass of several phases, whose number and stage `count` and `idx` name (ox_content_within): its scratch,
     * its activations or their gradient, what it keeps; and a gradient that some phases have added to. */
    ROOM, PART_ACT, PART_KEPT, PART_SUM,
};

/* Versions of planes and state: before the carried update, what this step computes with, after this step's update. */
enum { OLD, CURRENT, NEW };

struct ox_content {
    uint8_t what; /* enum ox_holding */
    uint32_t idx, count; /* as enum ox_holding says; idx may be OX_NONE */
    uint32_t first;      /* ROUTES */
};

/* For whom alone a buffer was filled: a stage in the backward of some micro-batches, or with OX_NONE for all. */
struct ox_only {
    uint32_t stage_idx, mb_first, mb_past;
    uint32_t by; /* 1 + the task that filled it */
};

enum ox_access { READS = 1, WRITES = 2, UPDATES = READS | WRITES };

struct effects {
    const struct ox_plan *plan;
    const struct ox_plan_input *in;
    struct ox_proof_case at; /* the case that is followed */
    uint32_t facts;          /* its facts, which decide which tasks work */
    uint8_t *due;            /* per unit: what its carried update has still to make (enum ox_due) */
    struct ox_content *held; /* per buffer */
    struct ox_only *only;    /* per buffer */
    uint64_t *largest_bytes; /* per buffer: size of the largest thing it has held, over all cases */
    uint8_t *updated;        /* per unit: the version it was updated to */
    uint8_t *reduced;        /* per unit: 1: what the rank has of its gradient is counted in the norm; 2: all of it */
    struct ox_proof_sum_step *sum_steps; /* how every gradient is summed */
    uint32_t sum_step_count;
    bool *keeps;             /* per stage: ox_proof_keeps() */
    bool train;
    bool overlap;            /* steps overlap: this one carries the update of the step before */
    bool store;              /* there is one */
    bool writes_pending, writes_own; /* in this case: whether the update is written to the store */
    bool begun;              /* the store's transaction is open */
    uint32_t commit_count, written_count;
    uint32_t arrived_count[2], left_count[2]; /* micro-batches whose activations [0] and gradients of activations [1]
                                                 came from other parts of the model, and went there */
    uint32_t *crossed; /* (4, stage_count): micro-batches of the input of a stage that came from another rank and went
                          to one, then of its gradient */
    uint32_t *loaned;  /* (unit_count), then (grad_count): how often a unit on loan and the sum of a gradient of one
                          came or went */
    uint32_t device_count;   /* units updated on the device */
    bool pooled;             /* of a pipeline: the loads of all ranks, where backward reads them */
    uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT];
    const struct ox_task *task; /* the task that is followed */
    uint32_t nth;               /* which of its uses with one role demands are about: 0 but for the other stage units */
    uint32_t found_count;       /* how many of its uses are checked */
    uint64_t moved_bytes;       /* bytes that it moves over links */
    const char *wrong;          /* the first violation */
};

static inline struct ox_content ox_content(enum ox_holding what, uint32_t idx, uint32_t count) {
    return (struct ox_content){(uint8_t)what, idx, count, 0};
}
static inline struct ox_content ox_content_routes(uint32_t stage_idx, uint32_t mb_first, uint32_t mb_past) {
    return (struct ox_content){ROUTES, stage_idx, mb_past, mb_first};
}

/* What the rank sums of a gradient, after the last step; and the finished sum of what it has of the gradient: these
 * are the same where there are no other ranks. */
static inline uint32_t ox_effects_steps(const struct effects *e, uint32_t grad_idx) {
    return e->sum_step_count + (ox_proof_sums_of(e->in, grad_idx) > 1); /* which are joined in the end */
}
static inline struct ox_content ox_content_own_sum(const struct effects *e, uint32_t grad_idx) {
    return ox_content(SUM, grad_idx, ox_effects_steps(e, grad_idx));
}
/* Whether no other rank adds to what the rank sums of a gradient. */
static inline bool ox_effects_sums_alone(const struct effects *e, uint32_t grad_idx) {
    return ox_proof_ranks(e->in) == 1 ||
           (ox_proof_copies(e->in) == 1 && ox_proof_members(e->in, ox_proof_grad_axis(e->in, grad_idx)) == 1);
}
static inline struct ox_content ox_content_sum(const struct effects *e, uint32_t grad_idx) {
    return ox_effects_sums_alone(e, grad_idx) ? ox_content_own_sum(e, grad_idx)
                                      : ox_content(ox_proof_copies(e->in) == 1 ? SLICE : COMPLETE, grad_idx, 0);
}

/* The losses of the whole step. */
static inline struct ox_content ox_content_losses(const struct effects *e) {
    const bool here = e->pooled && e->in->budget.unified; /* in the same buffer */
    return ox_proof_all_ranks(e->in) > 1 ? ox_content(ALL_LOSSES, OX_NONE, here)
                                     : ox_content(LOSSES, OX_NONE, e->plan->micro_batches);
}

uint32_t ox_effects_own_loads(const struct effects *e);
/* The reports of all stages, of one rank or of all ranks. */
static inline struct ox_content ox_content_loads(const struct effects *e, bool all) {
    return all ? ox_content(ALL_LOADS, OX_NONE, 0) : ox_content(LOADS, OX_NONE, ox_effects_own_loads(e));
}

/* What a buffer of a pass holds behind a phase of a micro-batch that is not its last; with `crossed` behind the cut
 * that follows. */
static inline struct ox_content ox_content_within(enum ox_holding what, const struct ox_task *task, bool backward,
                                                  uint32_t phase, bool crossed) {
    const uint32_t at = 2 * phase + crossed;
    return ox_content(what, task->stage_idx, (2 * task->mb_idx + backward) * (2 * OX_PLAN_CUTS_MAX + 2) + at);
}

static inline bool ox_content_same(struct ox_content a, struct ox_content b) {
    return a.what == b.what && a.idx == b.idx && a.count == b.count && a.first == b.first;
}

static inline const struct ox_plan_unit *ox_effects_unit(const struct effects *e, uint32_t unit_idx) {
    return &e->in->model.units[unit_idx];
}

static inline const struct ox_plan_stage *ox_effects_stage(const struct effects *e, uint32_t stage_idx) {
    return &e->in->model.stages[stage_idx];
}

static inline const struct ox_plan_grad *ox_effects_grad(const struct effects *e, uint32_t grad_idx) {
    return &e->in->model.grads[grad_idx];
}

/* Notes the first violation. */
static inline void ox_effects_reject(struct effects *e, const char *why) {
    e->wrong = e->wrong == NULL ? why : e->wrong;
}

/* The tier where kernels read and write. */
static inline enum ox_tier ox_effects_compute_tier(const struct effects *e) {
    return e->in->budget.unified ? OX_TIER_HOST : OX_TIER_DEVICE;
}

/* How many units are updated on the device. */
static inline uint32_t ox_effects_device_units(const struct effects *e) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < e->plan->unit_count; i++) {
        count += ox_proof_holds(e->in, i) && ox_proof_on_device(e->in, i);
    }
    return count;
}

/* Whether other ranks of the pipeline, and other parts of the model, gave and got all that this step exchanges with
 * them, once for every micro-batch (effects.c). Which of the four counts of `crossed` such a transfer belongs to: of
 * the stage's input or its gradient, to the rank or from it; and whether the rank has such transfers. */
enum { CROSSED_KINDS = 4 };
static inline uint32_t *ox_effects_crossed(const struct effects *e, bool is_gradient, bool leaves, uint32_t stage_idx) {
    return &e->crossed[(2u * is_gradient + leaves) * e->plan->stage_count + stage_idx];
}
bool ox_effects_crosses(const struct effects *e, bool is_gradient, bool leaves, uint32_t stage_idx);
bool ox_effects_exchanged(const struct effects *e);

/* What the buffer of the norm holds, after the square sums of these units (effects_optim.c). */
struct ox_content ox_effects_norms(const struct effects *e);

/* Returns why a step that is not finite may not end here, with its norm; NULL if it may (effects.c). */
const char *ox_effects_unfinite(const struct effects *e);

/* ---- demands of one use: offload/proof/effects_uses.c ---------------------------------------------- */

/* Bytes of what a buffer holds. `at_home`: in the home of a unit's planes, which may have lo elsewhere. */
uint64_t ox_effects_bytes(const struct effects *e, struct ox_content content, bool at_home);
/* The last slot that holds something after the first `count` steps of a sum, of which there is at least one. */
uint32_t ox_effects_last_slot(const struct effects *e, uint32_t count);
/* A gradient summed over all micro-batches and all uses of the weights, before and after it is rounded. */
struct ox_content ox_effects_whole_sum(const struct effects *e, uint32_t grad_idx);
struct ox_content ox_effects_finished_sum(const struct effects *e, uint32_t grad_idx);

/* Demands the finished sums that are added to this gradient, those of other uses of the unit, in their order. */
void ox_effects_need_addends(struct effects *e, enum ox_tier tier, uint32_t grad_idx);

/* The task's use with this role, the one that `nth` says, or NULL. */
const struct ox_use *ox_effects_use(const struct effects *e, enum ox_use_role role);
/* The task's use with this role, which is counted as checked. Rejects the task and returns NULL if there is none, or if
 * access or tier is another. */
const struct ox_use *ox_effects_find(struct effects *e, enum ox_use_role role, enum ox_access access,
                                     enum ox_tier tier);
/* Demands that the use holds `content` and is only read. */
void ox_effects_need(struct effects *e, enum ox_use_role role, enum ox_tier tier, struct ox_content content);
/* Notes that the buffer has held something of this size, for which it must have room. */
void ox_effects_need_bytes(struct effects *e, uint32_t buf_idx, uint64_t bytes);
/* Sets what the buffer holds, and demands that it has room for it. */
void ox_effects_hold(struct effects *e, uint32_t buf_idx, struct ox_content content);
/* Demands that the use is only written; it holds `content` then. */
void ox_effects_fill(struct effects *e, enum ox_use_role role, enum ox_tier tier, struct ox_content content);
/* Demands that the use is updated and holds from_to[0]; it holds from_to[1] then. */
void ox_effects_change(struct effects *e, enum ox_use_role role, enum ox_tier tier,
                       const struct ox_content from_to[2]);
/* Demands that the use is updated, whatever it has held; it holds `content` then. */
void ox_effects_replace(struct effects *e, enum ox_use_role role, enum ox_tier tier, struct ox_content content);
/* Demands that the use, if there is one, is the buffer that the executor knows by name. */
void ox_effects_need_buffer(struct effects *e, enum ox_use_role role, uint32_t buf_idx);
/* Counts what the task moves over a link; within unified memory copies cross none. */
void ox_effects_count(struct effects *e, enum ox_link link, enum ox_traffic_kind kind, uint64_t bytes);

/* Demands that a task for weights asks for its stage what is known there, if it asks (effects_tasks.c). */
void ox_effects_asks(struct effects *e);

/* ---- tasks ------------------------------------------------------------------------------------------ */

/* Moves of any kind (effects_moves.c). */
void ox_effects_move(struct effects *e, uint32_t unit_idx);

/* Norm and optimizer (effects_optim.c). */
void ox_effects_reduce(struct effects *e, uint32_t unit_idx);
void ox_effects_device_reduce(struct effects *e, uint32_t unit_idx);
void ox_effects_norm_save(struct effects *e, uint32_t unit_idx);
void ox_effects_norm_gather(struct effects *e, uint32_t unit_idx);
void ox_effects_totals_gather(struct effects *e);
void ox_effects_norm(struct effects *e);
void ox_effects_adam(struct effects *e, uint32_t unit_idx);
void ox_effects_device_adam(struct effects *e, uint32_t unit_idx);
void ox_effects_nonfinite(struct effects *e);
void ox_effects_begin_transaction(struct effects *e);
void ox_effects_written(struct effects *e);
void ox_effects_commit(struct effects *e);

/* Demands the planes of a unit where kernels read them: gathered, or on loan, or as they are, when lo may lie in the
 * state (effects_tasks.c). */
void ox_effects_need_planes(struct effects *e, enum ox_use_role role, uint32_t unit_idx);

/* Applies the current task to what buffers hold, in the current case (effects_tasks.c). */
void ox_effects_follow(struct effects *e);

#ifdef __cplusplus
}
#endif
#endif
