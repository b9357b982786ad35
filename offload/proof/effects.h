/* Inside the second half of the proof (plan_meaning*.c): what buffers hold, by name, and what a task may ask of its
 * uses. Nothing here shares code or working data with the builder. */
#ifndef OX_OFFLOAD_PLAN_MEANING_H
#define OX_OFFLOAD_PLAN_MEANING_H

#include "offload/plan/internal.h"

#include "base/bytes.h"

/* What a buffer holds. Zero is nothing: whatever the last step left there may not be read. */
enum what {
    NOTHING,
    PLANES,   /* of a unit; count: a version */
    STATE,    /* likewise */
    JOINED,   /* fp32 weights of a unit */
    ACT,      /* input of a unit; count: micro-batch */
    ACT_GRAD, /* gradient of the input of a unit; count: micro-batch */
    KEPT,     /* what the backward of a unit needs of its forward; count: micro-batch */
    SUM,      /* fp32 gradient of a unit over the first `count` micro-batches */
    TOTAL,    /* the whole sum of both uses of tied weights, fp32 */
    PACKED,   /* the whole sum in bf16 */
    REDUCED,  /* the whole sum as the optimizer takes it, its norm counted; count: the version that it leads to */
    BATCH,    /* one micro-batch; count: which */
    BATCHES,  /* all of them */
    LOSSES,   /* of the first `count` micro-batches */
    PARTIALS, /* partial norms of a unit, on the device */
    NORMS,    /* those of `count` units */
    FACTOR,   /* the global norm is known */
    COUNTS,   /* how many parameters are not finite, of `count` units updated on the device */
    WRITTEN,  /* the drives have all that the step computes with */
    CONSTANT, WORK, STAGE,
};

/* Versions of planes and state: what the step before found, what this step computes with, what it leads to. */
enum { OLD, CURRENT, NEW };

struct content {
    uint8_t what;
    uint32_t unit_idx, count;
};

enum access { READS = 1, WRITES = 2, UPDATES = READS | WRITES };

struct meaning {
    const struct ox_plan *plan;
    const struct ox_plan_input *in;
    struct content *held; /* per buffer */
    uint8_t *updated;     /* per unit: its version */
    uint8_t *reduced;     /* per unit: whether its norm is counted */
    bool train, tied;
    bool overlap;         /* what the step before has left is updated here */
    bool begun;           /* the store's transaction */
    uint32_t commit_count, written_count;
    uint32_t device_count; /* units updated on the device */
    const struct ox_task *task; /* the one in work */
    uint32_t met_count;         /* of its uses */
    const char *wrong;          /* the first violation */
};

static inline void object(struct meaning *m, const char *what) {
    m->wrong = m->wrong == NULL ? what : m->wrong;
}

static inline struct content of(enum what what, uint32_t unit_idx, uint32_t count) {
    const struct content content = {(uint8_t)what, unit_idx, count};
    return content;
}

static inline bool same(struct content a, struct content b) {
    return a.what == b.what && a.unit_idx == b.unit_idx && a.count == b.count;
}

/* ---- facts of the input ----------------------------------------------------------------------- */

static inline enum ox_tier compute_tier(const struct meaning *m) {
    return m->in->budget.unified ? OX_TIER_HOST : OX_TIER_DEVICE;
}

/* The head's use of tied weights goes by the index after the last unit. */
static inline bool is_second_use(const struct meaning *m, uint32_t unit_idx) {
    return unit_idx == m->plan->unit_count;
}

static inline uint64_t elems_of(const struct meaning *m, uint32_t unit_idx) {
    return is_second_use(m, unit_idx) ? m->in->model.tied_elems : m->in->model.unit_elems[unit_idx];
}

static inline const struct ox_homes *homes_of(const struct meaning *m, uint32_t unit_idx) {
    return &m->in->table->shards[is_second_use(m, unit_idx) ? 0 : unit_idx].homes;
}

/* Where a unit is updated: all that it needs is there. */
static inline bool is_on_device(const struct meaning *m, uint32_t unit_idx) {
    return homes_of(m, unit_idx)->state == OX_TIER_DEVICE && !m->in->model.eval_only;
}

/* True when the finished sum is rounded to bf16 on the device; the two of tied weights are first added, where their
 * optimizer is. */
static inline bool leaves_packed(const struct meaning *m, uint32_t unit_idx) {
    const bool added_on_host = m->tied && unit_idx == 0 && !is_on_device(m, 0);
    return m->in->model.grad_bf16 && !added_on_host && !is_second_use(m, unit_idx);
}

/* All micro-batches and uses, before it is rounded. */
static inline struct content whole_sum(const struct meaning *m, uint32_t unit_idx) {
    const bool added = m->tied && unit_idx == 0 && is_on_device(m, 0);
    return added ? of(TOTAL, 0, 0) : of(SUM, unit_idx, m->plan->micro_batches);
}

static inline struct content finished_sum(const struct meaning *m, uint32_t unit_idx) {
    return leaves_packed(m, unit_idx) ? of(PACKED, unit_idx, 0) : whole_sum(m, unit_idx);
}

/* True for the blocks whose backward does not recompute: the last ones, in training. */
static inline bool keeps(const struct meaning *m, uint32_t unit_idx) {
    const uint32_t block_past = m->plan->unit_count - 1;
    return m->train && unit_idx >= 1 && unit_idx < block_past &&
           block_past - unit_idx <= m->in->placement.kept_units;
}

static inline uint64_t bytes_of(const struct meaning *m, struct content content, bool at_home) {
    const struct ox_plan_model *const model = &m->in->model;
    const uint64_t micro_batches = m->plan->micro_batches;
    switch ((enum what)content.what) {
    case PLANES:
        return at_home && ox_plan_lo_in_state(m->in, content.unit_idx) ? elems_of(m, content.unit_idx) * OX_HI_BYTES
                                                                       : ox_plan_weight_bytes(m->in, content.unit_idx);
    case STATE:
        return ox_shard_state_bytes(m->in->table, elems_of(m, content.unit_idx));
    case JOINED:
    case SUM:
    case TOTAL:
        return elems_of(m, content.unit_idx) * 4;
    case PACKED:
        return elems_of(m, content.unit_idx) * 2;
    case REDUCED:
        return elems_of(m, content.unit_idx) * (model->grad_bf16 ? 2 : 4);
    case ACT:
    case ACT_GRAD:
        return model->act_bytes;
    case KEPT:
        return model->kept_bytes;
    case BATCH:
        return model->batch_bytes;
    case BATCHES:
        return model->batch_bytes * micro_batches;
    case LOSSES:
        return 8 * micro_batches;
    case PARTIALS:
        return 8 * ox_div_up(elems_of(m, content.unit_idx), OX_SHARD_ALIGN_ELEMS);
    case COUNTS:
        return 8 * (uint64_t)m->plan->unit_count;
    case CONSTANT:
        return model->const_bytes;
    case STAGE:
        return ox_plan_stream_bytes(m->in);
    default:
        return 0;
    }
}

enum ox_buf_kind ox_meaning_kind(enum what what);

/* ---- one use ---------------------------------------------------------------------------------- */

/* The use of the task in work with this role; NULL, and an objection, when it is not as it must be. */
static inline const struct ox_use *meet(struct meaning *m, enum ox_role_of_use role, enum access access,
                                 enum ox_tier tier) {
    const int at = ox_task_find_use(m->task, role);
    if (at < 0) {
        object(m, "lacks a use that its work needs");
        return NULL;
    }
    const struct ox_use *const use = &m->task->uses[at];
    m->met_count++;
    if (use->read != ((access & READS) != 0) || use->write != ((access & WRITES) != 0)) {
        object(m, "reads what it should write, or writes what it should read");
        return NULL;
    }
    if (m->plan->bufs[use->buf_idx].tier != tier) {
        object(m, "works on a buffer of the wrong tier");
        return NULL;
    }
    return use;
}

static inline void wants(struct meaning *m, enum ox_role_of_use role, enum ox_tier tier, struct content content) {
    const struct ox_use *const use = meet(m, role, READS, tier);
    if (use != NULL && !same(m->held[use->buf_idx], content)) {
        object(m, "reads a buffer that holds something else than its work needs");
    }
}

static inline void put(struct meaning *m, uint32_t buf_idx, struct content content) {
    const struct ox_buf *const buf = &m->plan->bufs[buf_idx];
    if (buf->kind != ox_meaning_kind((enum what)content.what) || buf->bytes < bytes_of(m, content, buf->resident)) {
        object(m, "writes to a buffer of another kind, or one that is too small");
    }
    m->held[buf_idx] = content;
}

static inline void makes(struct meaning *m, enum ox_role_of_use role, enum ox_tier tier, struct content content) {
    const struct ox_use *const use = meet(m, role, WRITES, tier);
    if (use != NULL) {
        put(m, use->buf_idx, content);
    }
}

static inline void turns(struct meaning *m, enum ox_role_of_use role, enum ox_tier tier,
                         const struct content from_to[2]) {
    const struct ox_use *const use = meet(m, role, UPDATES, tier);
    if (use == NULL) {
        return;
    }
    if (!same(m->held[use->buf_idx], from_to[0])) {
        object(m, "adds to a buffer that holds something else than its work needs");
    }
    put(m, use->buf_idx, from_to[1]);
}

/* The buffer that the executor knows by name must be the one used. */
static inline void names(struct meaning *m, enum ox_role_of_use role, uint32_t buf_idx) {
    const int at = ox_task_find_use(m->task, role);
    if (at >= 0 && m->task->uses[at].buf_idx != buf_idx) {
        object(m, "uses another buffer than the one of that name");
    }
}

/* Planes as the kernels of a unit read them: lo may lie in the state. */
static inline void wants_planes(struct meaning *m, uint32_t unit_idx, bool is_table) {
    wants(m, is_table ? OX_USE_TABLE : OX_USE_WEIGHTS, compute_tier(m), of(PLANES, unit_idx, CURRENT));
    if (homes_of(m, unit_idx)->weights == compute_tier(m) && ox_plan_lo_in_state(m->in, unit_idx)) {
        wants(m, is_table ? OX_USE_TABLE_STATE : OX_USE_STATE, compute_tier(m), of(STATE, unit_idx, CURRENT));
    }
}

static inline void wants_batch(struct meaning *m) {
    const bool whole = m->in->budget.unified;
    wants(m, OX_USE_BATCH, compute_tier(m), whole ? of(BATCHES, OX_NONE, 0) : of(BATCH, OX_NONE, m->task->mb_idx));
    if (whole) {
        names(m, OX_USE_BATCH, m->plan->batch_host_buf);
    }
}

static inline void adds_gradient(struct meaning *m, enum ox_role_of_use role, uint32_t unit_idx) {
    const uint32_t mb_idx = m->task->mb_idx;
    const struct content sums[2] = {of(SUM, unit_idx, mb_idx), of(SUM, unit_idx, mb_idx + 1)};
    turns(m, role, compute_tier(m), sums);
}

static inline void needs_room(struct meaning *m, uint64_t bytes, bool constants) {
    const int at = ox_task_find_use(m->task, OX_USE_WORK);
    makes(m, OX_USE_WORK, compute_tier(m), of(WORK, OX_NONE, 0));
    if (at >= 0 && m->plan->bufs[m->task->uses[at].buf_idx].bytes < bytes) {
        object(m, "has less room to work in than it needs");
    }
    if (constants) {
        wants(m, OX_USE_CONST, compute_tier(m), of(CONSTANT, OX_NONE, 0));
        names(m, OX_USE_CONST, m->plan->const_buf);
    }
}

/* ---- tasks, by sort (plan_meaning_work.c, plan_meaning_optim.c) -------------------------------- */

void ox_meaning_forward(struct meaning *m, uint32_t unit_idx);
void ox_meaning_head(struct meaning *m, uint32_t unit_idx);
void ox_meaning_backward(struct meaning *m, uint32_t unit_idx);
/* Copies, reads and writes. */
void ox_meaning_transfer(struct meaning *m, uint32_t unit_idx);

void ox_meaning_reduce(struct meaning *m, uint32_t unit_idx);
void ox_meaning_device_reduce(struct meaning *m, uint32_t unit_idx);
void ox_meaning_norm_save(struct meaning *m, uint32_t unit_idx);
void ox_meaning_norm(struct meaning *m);
void ox_meaning_adam(struct meaning *m, uint32_t unit_idx);
void ox_meaning_device_adam(struct meaning *m, uint32_t unit_idx);
void ox_meaning_updated(struct meaning *m);
/* How many units are updated on the device. */
uint32_t ox_meaning_device_units(const struct meaning *m);
void ox_meaning_begin(struct meaning *m);
void ox_meaning_written(struct meaning *m);
void ox_meaning_commit(struct meaning *m);

#endif
