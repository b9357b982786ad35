/* Declarations of the second half of the proof (effects*.c): what buffers hold, and what a task may do with them. */
#ifndef OX_OFFLOAD_PROOF_EFFECTS_H
#define OX_OFFLOAD_PROOF_EFFECTS_H

#include "offload/plan/cases.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a buffer holds. NOTHING is zero: what the last step left in the buffer may not be read. */
enum ox_holding {
    NOTHING,
    PLANES,   /* planes of unit `idx` in version `count` */
    STATE,    /* optimizer state of unit `idx` in version `count` */
    JOINED,   /* fp32 weights of unit `idx` */
    ACT,      /* input of unit `idx` for micro-batch `count` */
    ACT_GRAD, /* gradient of the input of unit `idx` for micro-batch `count` */
    KEPT,     /* what the backward of unit `idx` needs from its forward of micro-batch `count` */
    SUM,      /* gradient `idx` of the model, summed over the first `count` micro-batches, fp32 */
    TOTAL,    /* gradient `idx`, the whole sum, to which that of a second use of the weights is added */
    PACKED,   /* gradient `idx`, the whole sum in bf16 */
    REDUCED,  /* gradient of unit `idx` as the optimizer takes it, counted in the norm; makes version `count` */
    BATCH,    /* micro-batch `count` */
    BATCHES,  /* all micro-batches */
    LOSSES,   /* losses of the first `count` micro-batches */
    PARTIALS, /* square sums of the gradient of unit `idx`, on the device */
    NORMS,    /* square sums of `count` units, on the host */
    FACTOR,   /* the clip factor: the global norm is known */
    COUNTS,   /* how many parameters are not finite in `count` units updated on the device */
    WRITTEN,  /* the drives have all that the step computes with */
    CONSTANT, WORK, SLOTS,
};

/* Versions of planes and state: before the carried update, what this step computes with, after this step's update. */
enum { OLD, CURRENT, NEW };

struct ox_content {
    uint8_t what; /* enum ox_holding */
    uint32_t idx, count; /* as enum ox_holding says; idx may be OX_NONE */
};

enum ox_access { READS = 1, WRITES = 2, UPDATES = READS | WRITES };

struct effects {
    const struct ox_plan *plan;
    const struct ox_plan_input *in;
    uint32_t facts;          /* facts of the case that is followed */
    uint8_t *due;            /* per unit: whether its carried update has still to run */
    struct ox_content *held; /* per buffer */
    uint64_t *largest_bytes; /* per buffer: size of the largest thing it has held, over all cases */
    uint8_t *updated;        /* per unit: the version it was updated to */
    uint8_t *reduced;        /* per unit: whether its gradient is counted in the norm */
    bool *keeps;             /* per unit: ox_proof_keeps() */
    bool train;
    bool overlap;            /* steps overlap: this one carries the update of the step before */
    bool begun;              /* the store's transaction is open */
    uint32_t commit_count, written_count;
    uint32_t device_count;   /* units updated on the device */
    uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT];
    const struct ox_task *task; /* the task that is followed */
    uint32_t found_count;       /* how many of its uses are checked */
    uint64_t moved_bytes;       /* bytes that it moves over links */
    const char *wrong;          /* the first violation */
};

/* ---- contents and facts ---------------------------------------------------------------------------- */

struct ox_content ox_content(enum ox_holding what, uint32_t idx, uint32_t count);
bool ox_content_same(struct ox_content a, struct ox_content b);
uint64_t ox_effects_bytes(const struct effects *e, struct ox_content content, bool at_home);
/* The tier where kernels read and write. */
enum ox_tier ox_effects_compute_tier(const struct effects *e);
const struct ox_plan_unit *ox_effects_unit(const struct effects *e, uint32_t unit_idx);
const struct ox_plan_grad *ox_effects_grad(const struct effects *e, uint32_t grad_idx);
/* A gradient summed over all micro-batches and both uses of the weights, before and after it is rounded. */
struct ox_content ox_effects_whole_sum(const struct effects *e, uint32_t grad_idx);
struct ox_content ox_effects_finished_sum(const struct effects *e, uint32_t grad_idx);

/* ---- what the task in work does with its uses (effects_uses.c) ------------------------------------- */

/* Whether the fact holds in the case that is followed. */
bool ox_effects_meets(const struct effects *e, enum ox_fact fact);
/* Notes the first violation. */
void ox_effects_reject(struct effects *e, const char *why);
/* The task's use with this role, or NULL. */
const struct ox_use *ox_effects_use(const struct effects *e, enum ox_use_role role);
/* The task's use with this role, which is counted as checked. Rejects the task and returns NULL if there is none, or if
 * access or tier is another. */
const struct ox_use *ox_effects_find_use(struct effects *e, enum ox_use_role role, enum ox_access access,
                                         enum ox_tier tier);
/* Demands that the use holds `content` and is only read. */
void ox_effects_need_use(struct effects *e, enum ox_use_role role, enum ox_tier tier, struct ox_content content);
/* Demands that the use is only written; it holds `content` then. */
void ox_effects_fill(struct effects *e, enum ox_use_role role, enum ox_tier tier, struct ox_content content);
/* Demands that the use is updated and holds from_to[0]; it holds from_to[1] then. */
void ox_effects_change(struct effects *e, enum ox_use_role role, enum ox_tier tier,
                       const struct ox_content from_to[2]);
/* Sets what the buffer holds, and demands that it has room for it. */
void ox_effects_hold(struct effects *e, uint32_t buf_idx, struct ox_content content);
/* Demands that the use is updated, whatever it has held; it holds `content` then. */
void ox_effects_replace(struct effects *e, enum ox_use_role role, enum ox_tier tier, struct ox_content content);
/* Demands that the use, if there is one, is the buffer that the executor knows by name. */
void ox_effects_need_buffer(struct effects *e, enum ox_use_role role, uint32_t buf_idx);
/* Counts what the task moves over a link; within unified memory copies cross none. */
void ox_effects_count(struct effects *e, enum ox_link link, enum ox_traffic_kind kind, uint64_t bytes);

/* Demands the planes of a unit where its kernels read them; lo may lie in the state. */
void ox_effects_need_planes(struct effects *e, uint32_t unit_idx, bool is_table);
void ox_effects_need_batch(struct effects *e);
void ox_effects_add_gradient(struct effects *e, enum ox_use_role role, uint32_t grad_idx);
/* Demands a workspace of exactly this size, and with `constants` the constant tables. */
void ox_effects_use_workspace(struct effects *e, uint64_t bytes, bool constants);

/* ---- tasks, by kind (effects_work.c, effects_optim.c) ---------------------------------------------- */

void ox_effects_forward(struct effects *e, uint32_t unit_idx);
void ox_effects_head(struct effects *e, uint32_t unit_idx);
void ox_effects_backward(struct effects *e, uint32_t unit_idx);
/* GRAD_ADD: the gradient of a second use of the weights is added to this one. */
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
