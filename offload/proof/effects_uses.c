/* Checks what a task does with the buffers that it uses, and what it finds in them. */
#include "offload/proof/effects.h"

#include "base/bytes.h"
#include "offload/proof/sizes.h"

/* ---- contents -------------------------------------------------------------------------------------- */

struct ox_content ox_content(enum ox_holding what, uint32_t idx, uint32_t count) {
    return (struct ox_content){(uint8_t)what, idx, count};
}

bool ox_content_same(struct ox_content a, struct ox_content b) {
    return a.what == b.what && a.idx == b.idx && a.count == b.count;
}

static enum ox_buf_kind kind_of(enum ox_holding what) {
    static const uint8_t kinds[] = {
        [NOTHING] = OX_BUF_SMALL, [PLANES] = OX_BUF_WEIGHTS, [STATE] = OX_BUF_STATE,    [JOINED] = OX_BUF_JOINED,
        [ACT] = OX_BUF_ACT,       [ACT_GRAD] = OX_BUF_ACT,   [KEPT] = OX_BUF_KEPT,      [SUM] = OX_BUF_GRAD,
        [TOTAL] = OX_BUF_GRAD,    [PACKED] = OX_BUF_GRAD,    [REDUCED] = OX_BUF_GRAD,   [BATCH] = OX_BUF_BATCH,
        [BATCHES] = OX_BUF_BATCH, [LOSSES] = OX_BUF_SMALL,   [PARTIALS] = OX_BUF_SMALL, [NORMS] = OX_BUF_SMALL,
        [FACTOR] = OX_BUF_SMALL,  [COUNTS] = OX_BUF_SMALL,   [WRITTEN] = OX_BUF_SMALL,  [CONSTANT] = OX_BUF_SMALL,
        [WORK] = OX_BUF_WORK,     [SLOTS] = OX_BUF_STREAM,
    };
    return (enum ox_buf_kind)kinds[what];
}

uint64_t ox_effects_bytes(const struct effects *e, struct ox_content content, bool at_home) {
    const struct ox_plan_model *const model = &e->in->model;
    const uint64_t micro_batches = e->plan->micro_batches;
    switch ((enum ox_holding)content.what) {
    case PLANES:
        return at_home ? ox_proof_weights_home_bytes(e->in, content.idx) : ox_proof_planes_bytes(e->in, content.idx);
    case STATE:
        return ox_proof_state_bytes(e->in, content.idx);
    case JOINED:
        return ox_proof_elems(e->in, content.idx) * sizeof(float);
    case SUM:
    case TOTAL:
        return ox_proof_sum_bytes(e->in, content.idx);
    case PACKED:
        return ox_proof_packed_bytes(e->in, content.idx);
    case REDUCED:
        return ox_proof_reduced_bytes(e->in, content.idx);
    case ACT:
    case ACT_GRAD:
        return ox_effects_unit(e, content.idx)->input_bytes;
    case KEPT:
        return ox_effects_unit(e, content.idx)->kept_bytes;
    case BATCH:
        return model->batch_bytes;
    case BATCHES:
        return model->batch_bytes * micro_batches;
    case LOSSES:
        return 8 * micro_batches;
    case PARTIALS:
        return ox_proof_partials_bytes(e->in, content.idx);
    case COUNTS:
        return 8 * (uint64_t)e->plan->unit_count;
    case CONSTANT:
        return model->const_bytes;
    case SLOTS:
        return ox_proof_stream_bytes(e->in);
    default:
        return 0;
    }
}

enum ox_tier ox_effects_compute_tier(const struct effects *e) {
    return e->in->budget.unified ? OX_TIER_HOST : OX_TIER_DEVICE;
}

const struct ox_plan_unit *ox_effects_unit(const struct effects *e, uint32_t unit_idx) {
    return &e->in->model.units[unit_idx];
}

const struct ox_plan_grad *ox_effects_grad(const struct effects *e, uint32_t grad_idx) {
    return &e->in->model.grads[grad_idx];
}

struct ox_content ox_effects_whole_sum(const struct effects *e, uint32_t grad_idx) {
    const struct ox_plan_grad *const grad = ox_effects_grad(e, grad_idx);
    const bool added = grad->addend != OX_NONE && ox_proof_on_device(e->in, grad->unit_idx);
    return added ? ox_content(TOTAL, grad_idx, 0) : ox_content(SUM, grad_idx, e->plan->micro_batches);
}

struct ox_content ox_effects_finished_sum(const struct effects *e, uint32_t grad_idx) {
    return ox_proof_packs(e->in, grad_idx) ? ox_content(PACKED, grad_idx, 0) : ox_effects_whole_sum(e, grad_idx);
}

/* ---- one use --------------------------------------------------------------------------------------- */

bool ox_effects_meets(const struct effects *e, enum ox_fact fact) {
    return (e->facts & fact) != 0;
}

void ox_effects_reject(struct effects *e, const char *why) {
    e->wrong = e->wrong == NULL ? why : e->wrong;
}

const struct ox_use *ox_effects_use(const struct effects *e, enum ox_use_role role) {
    for (uint32_t i = 0; i < e->task->use_count; i++) {
        if (e->task->uses[i].role == role) {
            return &e->task->uses[i];
        }
    }
    return NULL;
}

const struct ox_use *ox_effects_find_use(struct effects *e, enum ox_use_role role, enum ox_access access,
                                         enum ox_tier tier) {
    const struct ox_use *const use = ox_effects_use(e, role);
    if (use == NULL) {
        ox_effects_reject(e, "lacks a use that its work needs");
        return NULL;
    }
    e->found_count++;
    if (use->read != ((access & READS) != 0) || use->write != ((access & WRITES) != 0)) {
        ox_effects_reject(e, "reads what it should write, or writes what it should read");
        return NULL;
    }
    if (e->plan->bufs[use->buf_idx].tier != tier) {
        ox_effects_reject(e, "works on a buffer of the wrong tier");
        return NULL;
    }
    return use;
}

void ox_effects_need_use(struct effects *e, enum ox_use_role role, enum ox_tier tier, struct ox_content content) {
    const struct ox_use *const use = ox_effects_find_use(e, role, READS, tier);
    if (use != NULL && !ox_content_same(e->held[use->buf_idx], content)) {
        ox_effects_reject(e, "reads a buffer that does not hold what its work needs");
    }
}

/* Notes that the buffer has held something of this size, for which it must have room. */
static void need_bytes(struct effects *e, uint32_t buf_idx, uint64_t bytes) {
    e->largest_bytes[buf_idx] = ox_max_u64(e->largest_bytes[buf_idx], bytes);
    if (e->plan->bufs[buf_idx].bytes < bytes) {
        ox_effects_reject(e, "writes to a buffer that is too small");
    }
}

void ox_effects_hold(struct effects *e, uint32_t buf_idx, struct ox_content content) {
    const struct ox_buf *const buf = &e->plan->bufs[buf_idx];
    if (buf->kind != kind_of((enum ox_holding)content.what)) {
        ox_effects_reject(e, "writes to a buffer of another kind");
    }
    need_bytes(e, buf_idx, ox_effects_bytes(e, content, buf->resident));
    e->held[buf_idx] = content;
}

void ox_effects_fill(struct effects *e, enum ox_use_role role, enum ox_tier tier, struct ox_content content) {
    const struct ox_use *const use = ox_effects_find_use(e, role, WRITES, tier);
    if (use != NULL) {
        ox_effects_hold(e, use->buf_idx, content);
    }
}

void ox_effects_change(struct effects *e, enum ox_use_role role, enum ox_tier tier,
                       const struct ox_content from_to[2]) {
    const struct ox_use *const use = ox_effects_find_use(e, role, UPDATES, tier);
    if (use == NULL) {
        return;
    }
    if (!ox_content_same(e->held[use->buf_idx], from_to[0])) {
        ox_effects_reject(e, "updates a buffer that does not hold what its work needs");
    }
    ox_effects_hold(e, use->buf_idx, from_to[1]);
}

void ox_effects_replace(struct effects *e, enum ox_use_role role, enum ox_tier tier, struct ox_content content) {
    const struct ox_use *const use = ox_effects_find_use(e, role, UPDATES, tier);
    if (use != NULL) {
        ox_effects_hold(e, use->buf_idx, content);
    }
}

void ox_effects_need_buffer(struct effects *e, enum ox_use_role role, uint32_t buf_idx) {
    const struct ox_use *const use = ox_effects_use(e, role);
    if (use != NULL && use->buf_idx != buf_idx) {
        ox_effects_reject(e, "does not use the buffer that the executor knows by that name");
    }
}

void ox_effects_count(struct effects *e, enum ox_link link, enum ox_traffic_kind kind, uint64_t bytes) {
    const bool between_memories = link == OX_LINK_H2D || link == OX_LINK_D2H;
    if (!between_memories || !e->in->budget.unified) {
        e->moved_bytes += bytes;
        e->traffic[link][kind] += bytes;
    }
}

/* ---- what several kinds of tasks need --------------------------------------------------------------- */

void ox_effects_need_planes(struct effects *e, uint32_t unit_idx, bool is_table) {
    const enum ox_tier tier = ox_effects_compute_tier(e);
    ox_effects_need_use(e, is_table ? OX_USE_TABLE : OX_USE_WEIGHTS, tier, ox_content(PLANES, unit_idx, CURRENT));
    if (ox_proof_homes(e->in, unit_idx)->weights == tier && ox_proof_lo_in_state(e->in, unit_idx)) {
        ox_effects_need_use(e, is_table ? OX_USE_TABLE_STATE : OX_USE_STATE, tier,
                            ox_content(STATE, unit_idx, CURRENT));
    }
}

void ox_effects_need_batch(struct effects *e) {
    const bool whole = e->in->budget.unified;
    ox_effects_need_use(e, OX_USE_BATCH, ox_effects_compute_tier(e),
                        whole ? ox_content(BATCHES, OX_NONE, 0) : ox_content(BATCH, OX_NONE, e->task->mb_idx));
    if (whole) {
        ox_effects_need_buffer(e, OX_USE_BATCH, e->plan->batch_host_buf);
    }
}

void ox_effects_add_gradient(struct effects *e, enum ox_use_role role, uint32_t grad_idx) {
    const uint32_t mb_idx = e->task->mb_idx;
    const struct ox_content sums[2] = {ox_content(SUM, grad_idx, mb_idx), ox_content(SUM, grad_idx, mb_idx + 1)};
    ox_effects_change(e, role, ox_effects_compute_tier(e), sums);
}

void ox_effects_use_workspace(struct effects *e, uint64_t bytes, bool constants) {
    const struct ox_use *const use = ox_effects_use(e, OX_USE_WORK);
    ox_effects_fill(e, OX_USE_WORK, ox_effects_compute_tier(e), ox_content(WORK, OX_NONE, 0));
    if (use != NULL) {
        need_bytes(e, use->buf_idx, bytes);
    }
    if (constants) {
        ox_effects_need_use(e, OX_USE_CONST, ox_effects_compute_tier(e), ox_content(CONSTANT, OX_NONE, 0));
        ox_effects_need_buffer(e, OX_USE_CONST, e->plan->const_buf);
    }
}
