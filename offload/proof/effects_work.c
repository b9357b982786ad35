/* What kernels and transfers need and leave, for the proof of meaning. */
#include "offload/proof/effects.h"

/* ---- kernels ---------------------------------------------------------------------------------- */

/* Backward leaves gradients where it found what it needed: once it has run, nothing is there. */
static void uses_up_kept(struct meaning *m, uint32_t unit_idx) {
    const struct ox_use *const use = meet(m, OX_USE_KEPT, UPDATES, compute_tier(m));
    if (use == NULL) {
        return;
    }
    if (!same(m->held[use->buf_idx], of(KEPT, unit_idx, m->task->mb_idx))) {
        object(m, "does not find what its forward kept");
    }
    m->held[use->buf_idx] = of(NOTHING, 0, 0);
}

/* As a block computes with them. */
static void wants_weights(struct meaning *m, uint32_t unit_idx) {
    if (m->in->model.joins) {
        wants(m, OX_USE_JOINED, compute_tier(m), of(JOINED, unit_idx, 0));
    } else {
        wants_planes(m, unit_idx, false);
    }
}

void ox_meaning_forward(struct meaning *m, uint32_t unit_idx) {
    const struct ox_plan_model *const model = &m->in->model;
    const enum ox_tier tier = compute_tier(m);
    if (unit_idx == 0) {
        wants_planes(m, 0, false);
    } else {
        wants_weights(m, unit_idx);
        wants(m, OX_USE_X, tier, of(ACT, unit_idx, m->task->mb_idx));
        needs_room(m, keeps(m, unit_idx) ? model->work_kept_forward_bytes : model->work_forward_bytes, true);
    }
    wants_batch(m);
    makes(m, OX_USE_Y, tier, of(ACT, unit_idx + 1, m->task->mb_idx));
    if (keeps(m, unit_idx)) {
        makes(m, OX_USE_KEPT, tier, of(KEPT, unit_idx, m->task->mb_idx));
    }
}

void ox_meaning_head(struct meaning *m, uint32_t unit_idx) {
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
    needs_room(m, m->train ? m->in->model.work_head_bytes : m->in->model.work_head_eval_bytes, false);
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

void ox_meaning_backward(struct meaning *m, uint32_t unit_idx) {
    const struct ox_plan_model *const model = &m->in->model;
    const enum ox_tier tier = compute_tier(m);
    const uint32_t mb_idx = m->task->mb_idx;
    if (unit_idx > 0) {
        wants_weights(m, unit_idx);
        wants(m, OX_USE_X, tier, of(ACT, unit_idx, mb_idx));
        needs_room(m, keeps(m, unit_idx) ? model->work_kept_backward_bytes : model->work_backward_bytes, true);
    }
    wants_batch(m);
    turns(m, OX_USE_DX, tier,
          (const struct content[]){of(ACT_GRAD, unit_idx + 1, mb_idx), of(ACT_GRAD, unit_idx, mb_idx)});
    adds_gradient(m, OX_USE_GRAD, unit_idx);
    if (keeps(m, unit_idx)) {
        uses_up_kept(m, unit_idx);
    }
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

void ox_meaning_transfer(struct meaning *m, uint32_t unit_idx) {
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
        moves(m, (struct route){OX_TIER_DEVICE, OX_TIER_HOST}, of(PLANES, unit_idx, m->task->carried ? OLD : CURRENT));
        break;
    case OX_TASK_REFRESH:
        moves(m, (struct route){OX_TIER_HOST, OX_TIER_DEVICE}, of(PLANES, unit_idx, m->task->carried ? CURRENT : NEW));
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
