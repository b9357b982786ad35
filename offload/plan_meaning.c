/* The second half of the proof: what a plan computes is a training step.
 *
 * The first half (plan_check.c) shows that uses in conflict have an order and that no byte is shared, so the list
 * may be followed one task at a time. Here that is done with what buffers hold by name instead of numbers: the
 * planes of unit 3, the sum of its gradient over two micro-batches. A task finds in its buffers exactly what it
 * needs, in a tier where it can be touched, or the plan is wrong; at the end every unit's home must hold
 * what Adam made of it. Nothing here shares code or working data with the builder. */
#include "offload/plan_internal.h"

#include "base/bytes.h"

#include <stdlib.h>
#include <string.h>

/* What a buffer holds. Zero is nothing: whatever the last step left there may not be read. */
enum what {
    NOTHING,
    PLANES,   /* of a unit; count: a version */
    STATE,    /* likewise */
    JOINED,   /* fp32 weights of a unit */
    ACT,      /* input of a unit; count: micro-batch */
    ACT_GRAD, /* gradient of the input of a unit; count: micro-batch */
    SUM,      /* fp32 gradient of a unit over the first `count` micro-batches */
    PACKED,   /* the whole sum in bf16 */
    REDUCED,  /* the whole sum as the optimizer takes it, its norm counted; count: the version that it leads to */
    BATCH,    /* one micro-batch; count: which */
    BATCHES,  /* all of them */
    LOSSES,   /* of the first `count` micro-batches */
    NORMS,    /* partial norms of `count` units */
    FACTOR,   /* the global norm is known */
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
    bool train, tied, overlap;
    bool begun;           /* the store's transaction */
    uint32_t commit_count, written_count;
    const struct ox_task *task; /* the one in work */
    uint32_t met_count;         /* of its uses */
    const char *wrong;          /* the first violation */
};

static void object(struct meaning *m, const char *what) {
    m->wrong = m->wrong == NULL ? what : m->wrong;
}

static struct content of(enum what what, uint32_t unit_idx, uint32_t count) {
    return (struct content){.what = (uint8_t)what, .unit_idx = unit_idx, .count = count};
}

static bool same(struct content a, struct content b) {
    return a.what == b.what && a.unit_idx == b.unit_idx && a.count == b.count;
}

/* ---- facts of the input ----------------------------------------------------------------------- */

static enum ox_tier compute_tier(const struct meaning *m) {
    return m->in->budget.unified ? OX_TIER_HOST : OX_TIER_DEVICE;
}

/* The head's use of tied weights goes by the index after the last unit. */
static bool is_second_use(const struct meaning *m, uint32_t unit_idx) {
    return unit_idx == m->plan->unit_count;
}

static uint64_t elems_of(const struct meaning *m, uint32_t unit_idx) {
    return is_second_use(m, unit_idx) ? m->in->model.tied_elems : m->in->model.unit_elems[unit_idx];
}

static const struct ox_homes *homes_of(const struct meaning *m, uint32_t unit_idx) {
    return &m->in->table->shards[is_second_use(m, unit_idx) ? 0 : unit_idx].homes;
}

/* True when the finished sum leaves the device in bf16; the two of tied weights are first added on the host. */
static bool leaves_packed(const struct meaning *m, uint32_t unit_idx) {
    return m->in->model.grad_bf16 && !(m->tied && (unit_idx == 0 || is_second_use(m, unit_idx)));
}

static struct content finished_sum(const struct meaning *m, uint32_t unit_idx) {
    return leaves_packed(m, unit_idx) ? of(PACKED, unit_idx, 0) : of(SUM, unit_idx, m->plan->micro_batches);
}

static uint64_t bytes_of(const struct meaning *m, struct content content, bool at_home) {
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
        return elems_of(m, content.unit_idx) * 4;
    case PACKED:
        return elems_of(m, content.unit_idx) * 2;
    case REDUCED:
        return elems_of(m, content.unit_idx) * (model->grad_bf16 ? 2 : 4);
    case ACT:
    case ACT_GRAD:
        return model->act_bytes;
    case BATCH:
        return model->batch_bytes;
    case BATCHES:
        return model->batch_bytes * micro_batches;
    case LOSSES:
        return 8 * micro_batches;
    case CONSTANT:
        return model->const_bytes;
    case STAGE:
        return ox_plan_stage_bytes(m->in);
    default:
        return 0;
    }
}

static enum ox_buf_kind kind_of(enum what what) {
    static const uint8_t kinds[] = {
        [NOTHING] = OX_BUF_SMALL, [PLANES] = OX_BUF_WEIGHTS, [STATE] = OX_BUF_STATE,    [JOINED] = OX_BUF_JOINED,
        [ACT] = OX_BUF_ACT,       [ACT_GRAD] = OX_BUF_ACT,   [SUM] = OX_BUF_GRAD,       [PACKED] = OX_BUF_GRAD,
        [REDUCED] = OX_BUF_GRAD,  [BATCH] = OX_BUF_BATCH,    [BATCHES] = OX_BUF_BATCH,  [LOSSES] = OX_BUF_SMALL,
        [NORMS] = OX_BUF_SMALL,   [FACTOR] = OX_BUF_SMALL,   [CONSTANT] = OX_BUF_SMALL, [WORK] = OX_BUF_WORK,
        [STAGE] = OX_BUF_STAGE,   [WRITTEN] = OX_BUF_SMALL,
    };
    return (enum ox_buf_kind)kinds[what];
}

/* ---- one use ---------------------------------------------------------------------------------- */

/* The use of the task in work with this role; NULL, and an objection, when it is not as it must be. */
static const struct ox_use *meet(struct meaning *m, enum ox_role_of_use role, enum access access,
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

static void wants(struct meaning *m, enum ox_role_of_use role, enum ox_tier tier, struct content content) {
    const struct ox_use *const use = meet(m, role, READS, tier);
    if (use != NULL && !same(m->held[use->buf_idx], content)) {
        object(m, "reads a buffer that holds something else than its work needs");
    }
}

static void put(struct meaning *m, uint32_t buf_idx, struct content content) {
    const struct ox_buf *const buf = &m->plan->bufs[buf_idx];
    if (buf->kind != kind_of((enum what)content.what) || buf->bytes < bytes_of(m, content, buf->resident)) {
        object(m, "writes to a buffer of another kind, or one that is too small");
    }
    m->held[buf_idx] = content;
}

static void makes(struct meaning *m, enum ox_role_of_use role, enum ox_tier tier, struct content content) {
    const struct ox_use *const use = meet(m, role, WRITES, tier);
    if (use != NULL) {
        put(m, use->buf_idx, content);
    }
}

static void turns(struct meaning *m, enum ox_role_of_use role, enum ox_tier tier, const struct content from_to[2]) {
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
static void names(struct meaning *m, enum ox_role_of_use role, uint32_t buf_idx) {
    const int at = ox_task_find_use(m->task, role);
    if (at >= 0 && m->task->uses[at].buf_idx != buf_idx) {
        object(m, "uses another buffer than the one of that name");
    }
}

/* Planes as the kernels of a unit read them: in one memory lo may lie in the state. */
static void wants_planes(struct meaning *m, uint32_t unit_idx, bool is_table) {
    wants(m, is_table ? OX_USE_TABLE : OX_USE_WEIGHTS, compute_tier(m), of(PLANES, unit_idx, CURRENT));
    if (m->in->budget.unified && ox_plan_lo_in_state(m->in, unit_idx)) {
        wants(m, is_table ? OX_USE_TABLE_STATE : OX_USE_STATE, OX_TIER_HOST, of(STATE, unit_idx, CURRENT));
    }
}

static void wants_batch(struct meaning *m) {
    const bool whole = m->in->budget.unified;
    wants(m, OX_USE_BATCH, compute_tier(m), whole ? of(BATCHES, OX_NONE, 0) : of(BATCH, OX_NONE, m->task->mb_idx));
    if (whole) {
        names(m, OX_USE_BATCH, m->plan->batch_host_buf);
    }
}

static void adds_gradient(struct meaning *m, enum ox_role_of_use role, uint32_t unit_idx) {
    const uint32_t mb_idx = m->task->mb_idx;
    turns(m, role, compute_tier(m),
          (const struct content[]){of(SUM, unit_idx, mb_idx), of(SUM, unit_idx, mb_idx + 1)});
}

static void needs_room(struct meaning *m, bool constants) {
    makes(m, OX_USE_WORK, compute_tier(m), of(WORK, OX_NONE, 0));
    if (constants) {
        wants(m, OX_USE_CONST, compute_tier(m), of(CONSTANT, OX_NONE, 0));
        names(m, OX_USE_CONST, m->plan->const_buf);
    }
}

/* ---- kernels ---------------------------------------------------------------------------------- */

static void follow_forward(struct meaning *m, uint32_t unit_idx) {
    const enum ox_tier tier = compute_tier(m);
    if (unit_idx == 0) {
        wants_planes(m, 0, false);
    } else {
        wants(m, OX_USE_JOINED, tier, of(JOINED, unit_idx, 0));
        wants(m, OX_USE_X, tier, of(ACT, unit_idx, m->task->mb_idx));
        needs_room(m, true);
    }
    wants_batch(m);
    makes(m, OX_USE_Y, tier, of(ACT, unit_idx + 1, m->task->mb_idx));
}

static void follow_head(struct meaning *m, uint32_t unit_idx) {
    const enum ox_tier tier = compute_tier(m);
    const uint32_t mb_idx = m->task->mb_idx;
    if (unit_idx + 1 != m->plan->unit_count) {
        object(m, "is not of the last unit");
        return;
    }
    wants_planes(m, unit_idx, false);
    if (m->tied) {
        wants_planes(m, 0, true);
    }
    wants(m, OX_USE_X, tier, of(ACT, unit_idx, mb_idx));
    wants_batch(m);
    needs_room(m, false);
    if (mb_idx > 0 && !same(m->held[m->plan->loss_buf], of(LOSSES, OX_NONE, mb_idx))) {
        object(m, "follows losses that are not there");
    }
    makes(m, OX_USE_LOSS, tier, of(LOSSES, OX_NONE, mb_idx + 1));
    names(m, OX_USE_LOSS, m->plan->loss_buf);
    if (m->train) {
        makes(m, OX_USE_DX, tier, of(ACT_GRAD, unit_idx, mb_idx));
        adds_gradient(m, OX_USE_GRAD, unit_idx);
        if (m->tied) {
            adds_gradient(m, OX_USE_GRAD_HEAD, m->plan->unit_count);
        }
    }
}

static void follow_backward(struct meaning *m, uint32_t unit_idx) {
    const enum ox_tier tier = compute_tier(m);
    const uint32_t mb_idx = m->task->mb_idx;
    if (unit_idx > 0) {
        wants(m, OX_USE_JOINED, tier, of(JOINED, unit_idx, 0));
        wants(m, OX_USE_X, tier, of(ACT, unit_idx, mb_idx));
        needs_room(m, true);
    }
    wants_batch(m);
    turns(m, OX_USE_DX, tier,
          (const struct content[]){of(ACT_GRAD, unit_idx + 1, mb_idx), of(ACT_GRAD, unit_idx, mb_idx)});
    adds_gradient(m, OX_USE_GRAD, unit_idx);
}

/* ---- transfers -------------------------------------------------------------------------------- */

struct route {
    enum ox_tier from, to;
};

static void moves(struct meaning *m, struct route route, struct content content) {
    wants(m, OX_USE_SOURCE, route.from, content);
    makes(m, OX_USE_TARGET, route.to, content);
}

static void follow_upload(struct meaning *m, uint32_t unit_idx) {
    moves(m, (struct route){OX_TIER_HOST, OX_TIER_DEVICE}, of(PLANES, unit_idx, CURRENT));
    if (ox_plan_lo_in_state(m->in, unit_idx)) {
        wants(m, OX_USE_STATE, OX_TIER_HOST, of(STATE, unit_idx, CURRENT));
    }
}

static void follow_read(struct meaning *m, uint32_t unit_idx) {
    if (m->in->budget.nvme_bytes == 0 || homes_of(m, unit_idx)->weights != OX_TIER_NVME) {
        object(m, "reads from drives what does not live there");
    }
    if (m->overlap) { /* else nothing has been written since the last commit */
        wants(m, OX_USE_WRITTEN, OX_TIER_NVME, of(WRITTEN, OX_NONE, 0));
        names(m, OX_USE_WRITTEN, m->plan->written_buf);
    }
    makes(m, OX_USE_TARGET, OX_TIER_HOST, of(PLANES, unit_idx, CURRENT));
}

static void needs_spool(struct meaning *m, uint32_t spool_idx, uint64_t bytes) {
    if (m->plan->spool_bytes[spool_idx] < bytes) {
        object(m, "moves more than its spool extent holds");
    }
}

static void follow_act(struct meaning *m, enum ox_task_kind kind, uint32_t unit_idx) {
    const enum ox_tier tier = compute_tier(m);
    const struct route route = kind == OX_TASK_ACT_SAVE    ? (struct route){tier, OX_TIER_HOST}
                               : kind == OX_TASK_ACT_WRITE ? (struct route){OX_TIER_HOST, OX_TIER_NVME}
                               : kind == OX_TASK_ACT_READ  ? (struct route){OX_TIER_NVME, OX_TIER_HOST}
                                                           : (struct route){OX_TIER_HOST, tier};
    if (kind == OX_TASK_ACT_WRITE || kind == OX_TASK_ACT_READ) {
        needs_spool(m, ox_plan_spool_act(m->plan, unit_idx, m->task->mb_idx), m->in->model.act_bytes);
    }
    moves(m, route, of(ACT, unit_idx, m->task->mb_idx));
}

/* A gradient leaves (partial, or finished and marked `last`), or comes back, always as an fp32 sum. */
static void follow_grad(struct meaning *m, enum ox_task_kind kind, uint32_t unit_idx) {
    const enum ox_tier tier = compute_tier(m);
    const struct route route = kind == OX_TASK_GRAD_SAVE    ? (struct route){tier, OX_TIER_HOST}
                               : kind == OX_TASK_GRAD_WRITE ? (struct route){OX_TIER_HOST, OX_TIER_NVME}
                               : kind == OX_TASK_GRAD_READ  ? (struct route){OX_TIER_NVME, OX_TIER_HOST}
                                                            : (struct route){OX_TIER_HOST, tier};
    const int at = ox_task_find_use(m->task, OX_USE_SOURCE);
    const struct content source = at < 0 ? of(NOTHING, OX_NONE, 0) : m->held[m->task->uses[at].buf_idx];
    const bool leaves = kind == OX_TASK_GRAD_SAVE || kind == OX_TASK_GRAD_WRITE;
    const bool at_rest = kind == OX_TASK_GRAD_WRITE && !is_second_use(m, unit_idx);
    struct content whole = finished_sum(m, unit_idx);
    if (at_rest) {
        whole = of(REDUCED, unit_idx, NEW);
    }
    if (source.unit_idx != unit_idx ||
        (leaves && (m->task->last ? !same(source, whole)
                                  : source.what != SUM || source.count >= m->plan->micro_batches)) ||
        (!leaves && (source.what != SUM || m->task->last))) {
        object(m, "moves something else than the gradient that it names");
    }
    if (route.from == OX_TIER_NVME || route.to == OX_TIER_NVME) {
        needs_spool(m, ox_plan_spool_grad(m->plan, unit_idx), bytes_of(m, source, false));
    }
    moves(m, route, source);
}

/* ---- norm and optimizer ----------------------------------------------------------------------- */

static void follow_reduce(struct meaning *m, uint32_t unit_idx) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < m->plan->unit_count; i++) {
        count += m->reduced[i];
    }
    if (m->reduced[unit_idx]++ != 0) {
        object(m, "counts a gradient twice in the norm");
    }
    turns(m, OX_USE_GRAD, OX_TIER_HOST,
          (const struct content[]){finished_sum(m, unit_idx), of(REDUCED, unit_idx, NEW)});
    if (unit_idx == 0 && m->tied) {
        wants(m, OX_USE_GRAD_HEAD, OX_TIER_HOST, of(SUM, m->plan->unit_count, m->plan->micro_batches));
    }
    makes(m, OX_USE_NORM, OX_TIER_HOST, of(NORMS, OX_NONE, count + 1));
    names(m, OX_USE_NORM, m->plan->norm_buf);
}

static void follow_norm(struct meaning *m) {
    turns(m, OX_USE_NORM, OX_TIER_HOST,
          (const struct content[]){of(NORMS, OX_NONE, m->plan->unit_count), of(FACTOR, OX_NONE, 0)});
    names(m, OX_USE_NORM, m->plan->norm_buf);
    wants(m, OX_USE_LOSS, OX_TIER_HOST, of(LOSSES, OX_NONE, m->plan->micro_batches));
    names(m, OX_USE_LOSS, m->plan->loss_host_buf);
}

/* The optimizer turns a version into the next: after the norm, or where steps overlap that of the step before to what
 * this one computes with, and of the last units also that to the next, from a gradient that has just been reduced. */
static void follow_adam(struct meaning *m, uint32_t unit_idx) {
    const struct ox_homes *const homes = homes_of(m, unit_idx);
    const uint32_t from = m->task->before ? OLD : CURRENT, to = from + 1;
    const bool early = m->overlap && !m->task->before;
    if (m->updated[unit_idx]++ != from) {
        object(m, "updates a unit twice, or not in the order of steps");
    }
    if (early && unit_idx + m->in->placement.early_units < m->plan->unit_count) {
        object(m, "updates a unit before the norm is known that is to wait for it");
    }
    if (early && (m->in->budget.nvme_bytes == 0 || ox_plan_generations(&m->in->budget) < 2)) {
        object(m, "replaces before the norm is known what the step may have to begin with again");
    }
    if (early && (m->plan->stage_buf == OX_NONE || !m->plan->bufs[m->plan->stage_buf].resident)) {
        object(m, "leaves writes in flight in memory that is given away before the commit");
    }
    if (!m->overlap) {
        wants(m, OX_USE_NORM, OX_TIER_HOST, of(FACTOR, OX_NONE, 0));
    }
    wants(m, OX_USE_GRAD, early ? OX_TIER_HOST : homes->grad, of(REDUCED, unit_idx, to));
    if (homes->state == OX_TIER_HOST) {
        turns(m, OX_USE_STATE, OX_TIER_HOST,
              (const struct content[]){of(STATE, unit_idx, from), of(STATE, unit_idx, to)});
    }
    if (homes->weights != OX_TIER_NVME) {
        turns(m, OX_USE_WEIGHTS, OX_TIER_HOST,
              (const struct content[]){of(PLANES, unit_idx, from), of(PLANES, unit_idx, to)});
    } else if (m->task->before) {
        makes(m, OX_USE_TARGET, OX_TIER_HOST, of(PLANES, unit_idx, to));
    }
    if (m->in->budget.nvme_bytes > 0) {
        makes(m, OX_USE_STAGE, OX_TIER_HOST, of(STAGE, OX_NONE, 0));
        names(m, OX_USE_STAGE, m->plan->stage_buf);
        if (!m->begun) {
            object(m, "writes to the store outside of a transaction");
        }
    }
}

/* That of the step before ends before this one's begins. */
static void follow_begin(struct meaning *m) {
    const bool in_order = m->task->before ? m->commit_count == 0 : !m->overlap || m->commit_count == 1;
    if (m->begun || m->in->budget.nvme_bytes == 0 || !in_order) {
        object(m, "begins a transaction while another one is under way");
    }
    m->begun = true;
    makes(m, OX_USE_STAGE, OX_TIER_HOST, of(STAGE, OX_NONE, 0));
    names(m, OX_USE_STAGE, m->plan->stage_buf);
    if (!m->overlap) {
        wants(m, OX_USE_NORM, OX_TIER_HOST, of(FACTOR, OX_NONE, 0));
    }
}

/* Behind the updates of all units, and within the transaction. */
static void ends_transaction(struct meaning *m) {
    const uint32_t version = m->task->before ? CURRENT : NEW;
    if (!m->begun) {
        object(m, "ends a transaction that has not begun");
    }
    for (uint32_t i = 0; i < m->plan->unit_count; i++) {
        if (m->updated[i] != version) {
            object(m, "ends a transaction before all units are updated");
        }
    }
    makes(m, OX_USE_STAGE, OX_TIER_HOST, of(STAGE, OX_NONE, 0));
    names(m, OX_USE_STAGE, m->plan->stage_buf);
}

static void follow_written(struct meaning *m) {
    if (!m->task->before || m->written_count++ != 0) {
        object(m, "waits for writes that nobody reads");
    }
    ends_transaction(m);
    makes(m, OX_USE_WRITTEN, OX_TIER_NVME, of(WRITTEN, OX_NONE, 0));
    names(m, OX_USE_WRITTEN, m->plan->written_buf);
}

static void follow_commit(struct meaning *m) {
    m->commit_count++;
    if (!m->task->before && m->task != &m->plan->tasks[m->plan->task_count - 1]) {
        object(m, "commits before the step has ended");
    }
    ends_transaction(m);
    m->begun = false;
}

/* ---- one task --------------------------------------------------------------------------------- */

enum scope { OF_STEP, OF_UNIT, OF_GRADIENT };

/* What every task of a sort has in common. */
static const struct rule {
    uint8_t lane, scope;
    bool of_batch;   /* names a micro-batch */
    bool train_only; /* no part of an evaluation */
} rules[OX_TASK_KIND_COUNT] = {
    [OX_TASK_BATCH] = {OX_LANE_H2D, OF_STEP, true, false},
    [OX_TASK_READ] = {OX_LANE_NVME_READ, OF_UNIT, false, false},
    [OX_TASK_UPLOAD] = {OX_LANE_H2D, OF_UNIT, false, false},
    [OX_TASK_JOIN] = {OX_LANE_COMPUTE, OF_UNIT, false, false},
    [OX_TASK_FORWARD] = {OX_LANE_COMPUTE, OF_UNIT, true, false},
    [OX_TASK_HEAD] = {OX_LANE_COMPUTE, OF_UNIT, true, false},
    [OX_TASK_BACKWARD] = {OX_LANE_COMPUTE, OF_UNIT, true, true},
    [OX_TASK_ACT_SAVE] = {OX_LANE_D2H, OF_UNIT, true, true},
    [OX_TASK_ACT_WRITE] = {OX_LANE_NVME_WRITE, OF_UNIT, true, true},
    [OX_TASK_ACT_READ] = {OX_LANE_NVME_READ, OF_UNIT, true, true},
    [OX_TASK_ACT_LOAD] = {OX_LANE_H2D, OF_UNIT, true, true},
    [OX_TASK_GRAD_ZERO] = {OX_LANE_COMPUTE, OF_GRADIENT, false, true},
    [OX_TASK_GRAD_PACK] = {OX_LANE_COMPUTE, OF_GRADIENT, false, true},
    [OX_TASK_GRAD_SAVE] = {OX_LANE_D2H, OF_GRADIENT, false, true},
    [OX_TASK_GRAD_WRITE] = {OX_LANE_NVME_WRITE, OF_GRADIENT, false, true},
    [OX_TASK_GRAD_READ] = {OX_LANE_NVME_READ, OF_GRADIENT, false, true},
    [OX_TASK_GRAD_LOAD] = {OX_LANE_H2D, OF_GRADIENT, false, true},
    [OX_TASK_REDUCE] = {OX_LANE_REDUCE, OF_UNIT, false, true},
    [OX_TASK_NORM] = {OX_LANE_REDUCE, OF_STEP, false, true},
    [OX_TASK_BEGIN] = {OX_LANE_ADAM, OF_STEP, false, true},
    [OX_TASK_DOWNLOAD] = {OX_LANE_D2H, OF_UNIT, false, true},
    [OX_TASK_ADAM] = {OX_LANE_ADAM, OF_UNIT, false, true},
    [OX_TASK_REFRESH] = {OX_LANE_H2D, OF_UNIT, false, true},
    [OX_TASK_LOSS] = {OX_LANE_D2H, OF_STEP, false, false},
    [OX_TASK_WRITTEN] = {OX_LANE_ADAM, OF_STEP, false, true},
    [OX_TASK_COMMIT] = {OX_LANE_ADAM, OF_STEP, false, true},
};

static bool fits_rule(const struct meaning *m) {
    const struct ox_task *const task = m->task;
    const struct rule *const rule = &rules[task->kind];
    const uint32_t unit_past =
        rule->scope == OF_STEP ? 0 : m->plan->unit_count + (rule->scope == OF_GRADIENT && m->tied);
    const bool of_optimizer = task->kind == OX_TASK_BEGIN || task->kind == OX_TASK_ADAM ||
                              task->kind == OX_TASK_DOWNLOAD || task->kind == OX_TASK_REFRESH ||
                              task->kind == OX_TASK_WRITTEN || task->kind == OX_TASK_COMMIT;
    return task->lane == rule->lane && (m->train || !rule->train_only) &&
           (!task->before || (m->overlap && of_optimizer)) &&
           (unit_past == 0 ? task->unit_idx == OX_NONE : task->unit_idx < unit_past) &&
           (rule->of_batch ? task->mb_idx < m->plan->micro_batches : task->mb_idx == OX_NONE);
}

static void follow_transfer(struct meaning *m, uint32_t unit_idx) {
    const enum ox_tier tier = compute_tier(m);
    const enum ox_task_kind kind = (enum ox_task_kind)m->task->kind;
    switch (kind) {
    case OX_TASK_BATCH:
        wants(m, OX_USE_SOURCE, OX_TIER_HOST, of(BATCHES, OX_NONE, 0));
        names(m, OX_USE_SOURCE, m->plan->batch_host_buf);
        makes(m, OX_USE_TARGET, tier, of(BATCH, OX_NONE, m->task->mb_idx));
        break;
    case OX_TASK_READ:
        follow_read(m, unit_idx);
        break;
    case OX_TASK_UPLOAD:
        follow_upload(m, unit_idx);
        break;
    case OX_TASK_DOWNLOAD:
        moves(m, (struct route){OX_TIER_DEVICE, OX_TIER_HOST}, of(PLANES, unit_idx, m->task->before ? OLD : CURRENT));
        break;
    case OX_TASK_REFRESH:
        moves(m, (struct route){OX_TIER_HOST, OX_TIER_DEVICE}, of(PLANES, unit_idx, m->task->before ? CURRENT : NEW));
        break;
    case OX_TASK_LOSS:
        moves(m, (struct route){tier, OX_TIER_HOST}, of(LOSSES, OX_NONE, m->plan->micro_batches));
        names(m, OX_USE_TARGET, m->plan->loss_host_buf);
        break;
    case OX_TASK_ACT_SAVE:
    case OX_TASK_ACT_WRITE:
    case OX_TASK_ACT_READ:
    case OX_TASK_ACT_LOAD:
        follow_act(m, kind, unit_idx);
        break;
    default:
        follow_grad(m, kind, unit_idx);
    }
}

static void follow(struct meaning *m) {
    const enum ox_tier tier = compute_tier(m);
    const uint32_t unit_idx = m->task->unit_idx;
    switch ((enum ox_task_kind)m->task->kind) {
    case OX_TASK_JOIN:
        wants_planes(m, unit_idx, false);
        makes(m, OX_USE_JOINED, tier, of(JOINED, unit_idx, 0));
        break;
    case OX_TASK_FORWARD:
        follow_forward(m, unit_idx);
        break;
    case OX_TASK_HEAD:
        follow_head(m, unit_idx);
        break;
    case OX_TASK_BACKWARD:
        follow_backward(m, unit_idx);
        break;
    case OX_TASK_GRAD_ZERO:
        makes(m, OX_USE_GRAD, tier, of(SUM, unit_idx, 0));
        break;
    case OX_TASK_GRAD_PACK:
        wants(m, OX_USE_SOURCE, tier, of(SUM, unit_idx, m->plan->micro_batches));
        makes(m, OX_USE_TARGET, tier, of(PACKED, unit_idx, 0));
        break;
    case OX_TASK_REDUCE:
        follow_reduce(m, unit_idx);
        break;
    case OX_TASK_NORM:
        follow_norm(m);
        break;
    case OX_TASK_BEGIN:
        follow_begin(m);
        break;
    case OX_TASK_ADAM:
        follow_adam(m, unit_idx);
        break;
    case OX_TASK_WRITTEN:
        follow_written(m);
        break;
    case OX_TASK_COMMIT:
        follow_commit(m);
        break;
    default:
        follow_transfer(m, unit_idx);
    }
}

/* ---- begin and end ---------------------------------------------------------------------------- */

/* The gradients of the step before, for its optimizer. */
static void begin_gradients(struct meaning *m) {
    for (uint32_t i = 0; i < m->plan->buf_count; i++) {
        const struct ox_buf *const buf = &m->plan->bufs[i];
        if (m->overlap && buf->resident && buf->kind == OX_BUF_GRAD && buf->unit_idx < m->plan->unit_count &&
            buf->tier == homes_of(m, buf->unit_idx)->grad) {
            m->held[i] = of(REDUCED, buf->unit_idx, CURRENT);
        }
    }
}

/* What the step finds: weights and state in their homes, one of each, the batches and the constants. */
static bool begin(struct meaning *m) {
    const struct ox_plan *const plan = m->plan;
    uint32_t expected = 0, found = 0;
    for (uint32_t i = 0; i < plan->unit_count; i++) {
        const struct ox_homes *const homes = homes_of(m, i);
        expected += (homes->weights != OX_TIER_NVME) + (homes->state == OX_TIER_HOST && !m->in->model.eval_only);
    }
    for (uint32_t i = 0; i < plan->buf_count; i++) {
        const struct ox_buf *const buf = &plan->bufs[i];
        const bool weights = buf->resident && buf->kind == OX_BUF_WEIGHTS;
        if (!weights && !(buf->resident && buf->kind == OX_BUF_STATE)) {
            continue;
        }
        if (buf->unit_idx >= plan->unit_count) {
            return false;
        }
        const struct ox_homes *const homes = homes_of(m, buf->unit_idx);
        m->held[i] = of(weights ? PLANES : STATE, buf->unit_idx, m->overlap ? OLD : CURRENT);
        uint8_t *const seen = weights ? m->updated : m->reduced;
        if (buf->tier != (weights ? homes->weights : homes->state) || seen[buf->unit_idx]++ != 0 ||
            buf->bytes < bytes_of(m, m->held[i], true)) {
            return false;
        }
        found++;
    }
    memset(m->updated, m->overlap ? OLD : CURRENT, plan->unit_count);
    memset(m->reduced, 0, plan->unit_count);
    begin_gradients(m);
    if (plan->const_buf >= plan->buf_count || plan->batch_host_buf >= plan->buf_count ||
        plan->loss_buf >= plan->buf_count || plan->loss_host_buf >= plan->buf_count) {
        return false;
    }
    m->held[plan->const_buf] = of(CONSTANT, OX_NONE, 0);
    m->held[plan->batch_host_buf] = of(BATCHES, OX_NONE, 0);
    return found == expected && plan->bufs[plan->const_buf].resident && plan->bufs[plan->batch_host_buf].resident &&
           plan->bufs[plan->loss_host_buf].resident;
}

/* The version that a unit has at the end: with overlap only the last ones have gone on. */
static uint32_t last_version(const struct meaning *m, uint32_t unit_idx) {
    const bool early = unit_idx + m->in->placement.early_units >= m->plan->unit_count;
    return m->train && (!m->overlap || early) ? NEW : CURRENT;
}

/* Where a unit's gradient must still be at the end of a step whose optimizer has not run, or may have to run again. */
static bool gradient_stays(const struct meaning *m, uint32_t unit_idx) {
    for (uint32_t i = 0; i < m->plan->buf_count; i++) {
        if (m->plan->bufs[i].resident && same(m->held[i], of(REDUCED, unit_idx, NEW)) &&
            m->plan->bufs[i].tier == homes_of(m, unit_idx)->grad) {
            return true;
        }
    }
    return false;
}

/* What the step leaves: every home as the optimizer made it, or the gradient for one to come; all losses; and one
 * commit where there is a store. */
static const char *end(const struct meaning *m) {
    const struct ox_plan *const plan = m->plan;
    for (uint32_t i = 0; i < plan->unit_count; i++) {
        if (m->updated[i] != last_version(m, i)) {
            return "a unit is not updated exactly once";
        }
        if (m->overlap && !gradient_stays(m, i)) {
            return "a gradient does not stay for the optimizer of the step";
        }
    }
    for (uint32_t i = 0; i < plan->buf_count; i++) {
        const struct content held = m->held[i];
        if (plan->bufs[i].resident && (held.what == PLANES || held.what == STATE) &&
            held.count != last_version(m, held.unit_idx)) {
            return "the home of a unit does not hold what the optimizer made";
        }
    }
    if (!same(m->held[plan->loss_host_buf], of(LOSSES, OX_NONE, plan->micro_batches))) {
        return "the losses do not arrive";
    }
    const bool store = m->train && m->in->budget.nvme_bytes > 0;
    const bool overlap = store && m->overlap;
    if (m->commit_count != store || m->written_count != overlap ||
        m->begun != (overlap && m->in->placement.early_units > 0)) {
        return "the step is not committed exactly once";
    }
    return NULL;
}

static enum ox_status follow_all(struct meaning *m) {
    if (!begin(m)) {
        return ox_fail(OX_E_CONFIG, "plan is wrong: what lives through the step is not what the homes say; please "
                       "report this");
    }
    for (uint32_t i = 0; i < m->plan->task_count; i++) {
        m->task = &m->plan->tasks[i];
        m->met_count = 0;
        if (!fits_rule(m)) {
            return ox_plan_fault(m->plan, i, "has a lane, a unit or a micro-batch that its sort cannot have");
        }
        follow(m);
        if (m->met_count != m->task->use_count) {
            object(m, "has uses that its work does not know");
        }
        if (m->wrong != NULL) {
            return ox_plan_fault(m->plan, i, m->wrong);
        }
    }
    const char *const wrong = end(m);
    return wrong == NULL ? OX_OK : ox_fail(OX_E_CONFIG, "plan is wrong: %s; please report this", wrong);
}

enum ox_status ox_plan_check_meaning(const struct ox_plan *plan, const struct ox_plan_input *input) {
    struct meaning m = {.plan = plan, .in = input};
    m.train = plan->kind == OX_PLAN_TRAIN;
    m.tied = input->model.tied_elems > 0;
    m.overlap = m.train && input->placement.overlap;
    m.held = calloc(plan->buf_count + 1u, sizeof *m.held);
    m.updated = calloc(plan->unit_count + 1u, 1);
    m.reduced = calloc(plan->unit_count + 1u, 1);
    const enum ox_status status = m.held == NULL || m.updated == NULL || m.reduced == NULL
                                      ? ox_fail(OX_E_NOMEM, "plan checker: no memory for %u buffers", plan->buf_count)
                                      : follow_all(&m);
    free(m.reduced);
    free(m.updated);
    free(m.held);
    return status;
}
