/* Inside the second half of the proof (effects*.c): what buffers hold, by name, and what a task may do with them. */
#ifndef OX_OFFLOAD_PROOF_EFFECTS_H
#define OX_OFFLOAD_PROOF_EFFECTS_H

#include "offload/plan/cases.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a buffer holds. Zero is nothing: whatever the last step left there may not be read. */
enum ox_holding {
    NOTHING,
    PLANES,   /* of a unit; count: a version */
    STATE,    /* likewise */
    JOINED,   /* fp32 weights of a unit */
    ACT,      /* input of a unit; count: micro-batch */
    ACT_GRAD, /* gradient of the input of a unit; count: micro-batch */
    KEPT,     /* what the backward of a unit needs of its forward; count: micro-batch */
    SUM,      /* a gradient (idx: of the model's grads) over the first `count` micro-batches, fp32 */
    TOTAL,    /* likewise the whole sum, with that of a second use of the weights added */
    PACKED,   /* likewise the whole sum in bf16 */
    REDUCED,  /* of a unit: the whole sum as the optimizer takes it, its norm counted; count: the version it leads to */
    BATCH,    /* one micro-batch; count: which */
    BATCHES,  /* all of them */
    LOSSES,   /* of the first `count` micro-batches */
    PARTIALS, /* partial norms of a unit, on the device */
    NORMS,    /* those of `count` units */
    FACTOR,   /* the global norm is known */
    COUNTS,   /* how many parameters are not finite, of `count` units updated on the device */
    WRITTEN,  /* the drives have all that the step computes with */
    CONSTANT, WORK, SLOTS,
};

/* Versions of planes and state: what the step before found, what this step computes with, what it leads to. */
enum { OLD, CURRENT, NEW };

struct ox_content {
    uint8_t what; /* enum ox_holding */
    uint32_t idx, count; /* idx: of a unit, or of a gradient; or OX_NONE */
};

enum ox_access { READS = 1, WRITES = 2, UPDATES = READS | WRITES };

struct effects {
    const struct ox_plan *plan;
    const struct ox_plan_input *in;
    uint32_t facts;          /* of the case that is followed */
    uint8_t *due;            /* per unit: whether its carried update has still to run */
    struct ox_content *held; /* per buffer */
    uint64_t *largest_bytes; /* per buffer: of all that it has held, in all cases */
    uint8_t *updated;        /* per unit: its version */
    uint8_t *reduced;        /* per unit: whether its norm is counted */
    bool *keeps;             /* per unit: ox_proof_keeps() */
    bool train;
    bool overlap;            /* the update that the step before has left is carried here */
    bool begun;              /* the store's transaction */
    uint32_t commit_count, written_count;
    uint32_t device_count;   /* units updated on the device */
    uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT];
    const struct ox_task *task; /* the one in work */
    uint32_t found_count;       /* of its uses */
    uint64_t moved_bytes;       /* by it */
    const char *wrong;          /* the first violation */
};

/* ---- contents and facts ---------------------------------------------------------------------------- */

struct ox_content ox_content(enum ox_holding what, uint32_t idx, uint32_t count);
bool ox_content_same(struct ox_content a, struct ox_content b);
uint64_t ox_effects_bytes(const struct effects *e, struct ox_content content, bool at_home);
/* Where kernels read and write. */
enum ox_tier ox_effects_compute_tier(const struct effects *e);
const struct ox_plan_unit *ox_effects_unit(const struct effects *e, uint32_t unit_idx);
const struct ox_plan_grad *ox_effects_grad(const struct effects *e, uint32_t grad_idx);
/* All micro-batches and uses of the weights, before and after it is rounded. */
struct ox_content ox_effects_whole_sum(const struct effects *e, uint32_t grad_idx);
struct ox_content ox_effects_finished_sum(const struct effects *e, uint32_t grad_idx);

/* ---- what the task in work does with its uses (effects_uses.c) ------------------------------------- */

/* Whether the fact holds in the case that is followed. */
bool ox_effects_meets(const struct effects *e, enum ox_fact fact);
/* Notes the first violation. */
void ox_effects_reject(struct effects *e, const char *why);
/* The use with this role, or NULL. */
const struct ox_use *ox_effects_use(const struct effects *e, enum ox_use_role role);
/* The same, counted as known; NULL, and a violation, when it is not as it must be. */
const struct ox_use *ox_effects_find_use(struct effects *e, enum ox_use_role role, enum ox_access access,
                                         enum ox_tier tier);
/* The use must hold this and is only read. */
void ox_effects_need_use(struct effects *e, enum ox_use_role role, enum ox_tier tier, struct ox_content content);
/* The use is written and holds this then. */
void ox_effects_fill(struct effects *e, enum ox_use_role role, enum ox_tier tier, struct ox_content content);
/* The use holds the first and then the second. */
void ox_effects_change(struct effects *e, enum ox_use_role role, enum ox_tier tier,
                       const struct ox_content from_to[2]);
/* The buffer holds this from now on, and must have room for it. */
void ox_effects_hold(struct effects *e, uint32_t buf_idx, struct ox_content content);
/* The use is changed, whatever it has held; it holds this then. */
void ox_effects_replace(struct effects *e, enum ox_use_role role, enum ox_tier tier, struct ox_content content);
/* The use, where there is one, must be the buffer that the executor knows by name. */
void ox_effects_need_buffer(struct effects *e, enum ox_use_role role, uint32_t buf_idx);
/* Counts what the task moves over a link; within unified memory nothing crosses one. */
void ox_effects_count(struct effects *e, enum ox_link link, enum ox_traffic_kind kind, uint64_t bytes);

/* Planes as the kernels of a unit read them: lo may lie in the state. */
void ox_effects_need_planes(struct effects *e, uint32_t unit_idx, bool is_table);
void ox_effects_need_batch(struct effects *e);
void ox_effects_add_gradient(struct effects *e, enum ox_use_role role, uint32_t grad_idx);
/* Room to work in of exactly this size, and the constant tables beside it. */
void ox_effects_use_workspace(struct effects *e, uint64_t bytes, bool constants);

/* ---- tasks, by kind (effects_work.c, effects_optim.c) ---------------------------------------------- */

void ox_effects_forward(struct effects *e, uint32_t unit_idx);
void ox_effects_head(struct effects *e, uint32_t unit_idx);
void ox_effects_backward(struct effects *e, uint32_t unit_idx);
/* The gradient of a second use of the weights is added to this one. */
void ox_effects_add_second_use(struct effects *e, uint32_t grad_idx);
void ox_effects_move(struct effects *e, uint32_t unit_idx);

void ox_effects_reduce(struct effects *e, uint32_t unit_idx);
void ox_effects_device_reduce(struct effects *e, uint32_t unit_idx);
void ox_effects_norm_save(struct effects *e, uint32_t unit_idx);
void ox_effects_norm(struct effects *e);
void ox_effects_adam(struct effects *e, uint32_t unit_idx);
void ox_effects_device_adam(struct effects *e, uint32_t unit_idx);
void ox_effects_nonfinite(struct effects *e);
/* How many units are updated on the device. */
uint32_t ox_effects_device_units(const struct effects *e);
void ox_effects_begin_transaction(struct effects *e);
void ox_effects_written(struct effects *e);
void ox_effects_commit(struct effects *e);

#ifdef __cplusplus
}
#endif
#endif
