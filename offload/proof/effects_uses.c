/* What buffers hold, how large it is, and the demands that a task may make of one use. */
#include "offload/proof/effects.h"

#include "base/bytes.h"

/* ---- contents -------------------------------------------------------------------------------------- */

static enum ox_buf_kind kind_of(enum ox_holding what) {
    static const uint8_t kinds[] = {
        [NOTHING] = OX_BUF_SMALL, [PLANES] = OX_BUF_WEIGHTS, [STATE] = OX_BUF_STATE,    [CAST] = OX_BUF_CAST,
        [ACT] = OX_BUF_ACT,       [ACT_GRAD] = OX_BUF_ACT,   [KEPT] = OX_BUF_KEPT,      [SUM] = OX_BUF_GRAD,
        [TOTAL] = OX_BUF_GRAD,    [PACKED] = OX_BUF_GRAD,    [REDUCED] = OX_BUF_GRAD,   [BATCH] = OX_BUF_BATCH,
        [BATCHES] = OX_BUF_BATCH, [LOSSES] = OX_BUF_SMALL,   [PARTIALS] = OX_BUF_SMALL, [NORMS] = OX_BUF_SMALL,
        [TOTALS] = OX_BUF_SMALL,
        [FACTOR] = OX_BUF_SMALL,  [COUNTS] = OX_BUF_SMALL,   [WRITTEN] = OX_BUF_SMALL,  [CONSTANT] = OX_BUF_SMALL,
        [WORK] = OX_BUF_SCRATCH,     [SLOTS] = OX_BUF_STREAM,  [GATHERED] = OX_BUF_GATHERED,
        [PARTS] = OX_BUF_GRAD,    [NODES] = OX_BUF_GRAD,     [COPY_PARTS] = OX_BUF_GRAD,
        [SLICE] = OX_BUF_GRAD,     [ALL_LOSSES] = OX_BUF_SMALL,
        [NARROW_OWN] = OX_BUF_GRAD, [NARROW_PARTS] = OX_BUF_GRAD, [NARROW_SLICE] = OX_BUF_GRAD,
        [NARROW_COMPLETE] = OX_BUF_GRAD,
        [LOADS] = OX_BUF_SMALL,   [ALL_LOADS] = OX_BUF_SMALL,
        [COMPLETE] = OX_BUF_GRAD, [REPLACED] = OX_BUF_REPLACED, [ROOM] = OX_BUF_SCRATCH,
        [PART_ACT] = OX_BUF_ACT,  [PART_KEPT] = OX_BUF_KEPT, [PART_SUM] = OX_BUF_GRAD,
        [ROUTES] = OX_BUF_SMALL,  [RESIDUAL] = OX_BUF_RESIDUAL,
    };
    return (enum ox_buf_kind)kinds[what];
}

uint32_t ox_effects_last_slot(const struct effects *e, uint32_t count) {
    return e->sum_steps[count - 1].slot;
}

/* Bytes of what the rank adds up along an axis, among the first `count` parts of every member. */
static uint64_t parts_count(const struct ox_plan_input *input, uint32_t axis, uint32_t count) {
    uint64_t all = 0;
    for (uint32_t i = 0; i < ox_proof_members(input, axis); i++) {
        const uint32_t parts = ox_proof_parts(input, axis, i);
        all += parts < count ? parts : count;
    }
    return all;
}

static uint64_t parts_bytes(const struct ox_plan_input *input, uint32_t grad_idx, uint32_t axis, uint32_t count) {
    return parts_count(input, axis, count) * ox_proof_cut_bytes(input, grad_idx, axis);
}

/* Bytes of what is in the type of exchanges, each part or cut by itself. */
static uint64_t narrow_bytes(const struct ox_plan_input *input, struct ox_content content) {
    const uint32_t axis = ox_proof_copies(input) == 1 ? ox_proof_grad_axis(input, content.idx) : OX_AXIS_COPY;
    const uint64_t slice = ox_proof_slice_bytes(input, content.idx);
    const uint64_t whole = axis == OX_AXIS_COPY ? slice : ox_proof_sum_bytes(input, content.idx);
    const uint64_t cut = ox_proof_exchanged(input, axis, ox_proof_cut_bytes(input, content.idx, axis));
    switch ((enum ox_holding)content.what) {
    case NARROW_OWN:
        return ox_proof_parts(input, axis, ox_proof_member_of(input, axis)) * ox_proof_exchanged(input, axis, whole);
    case NARROW_PARTS:
        return parts_count(input, axis, content.count) * cut;
    case NARROW_SLICE:
        return cut;
    default:
        return ox_proof_exchanged(input, axis, slice);
    }
}

uint64_t ox_effects_bytes(const struct effects *e, struct ox_content content, bool at_home) {
    const struct ox_plan_model *const model = &e->in->model;
    switch ((enum ox_holding)content.what) {
    case PLANES:
        return at_home ? ox_proof_weights_home_bytes(e->in, content.idx) : ox_proof_planes_bytes(e->in, content.idx);
    case GATHERED:
        return ox_proof_whole_bytes(e->in, content.idx);
    case STATE:
        return ox_proof_state_bytes(e->in, content.idx);
    case REPLACED:
        return ox_proof_saved_bytes(e->in, content.idx);
    case CAST:
        return ox_proof_elems(e->in, content.idx) * ox_proof_cast_bytes(e->in, content.idx);
    case SUM:
        return ox_proof_sum_bytes(e->in, content.idx) * (ox_effects_last_slot(e, content.count) + 1) *
               (e->sum_steps[content.count - 1].kind == SUM_JOINS ? 1 : ox_proof_sums_of(e->in, content.idx));
    case PARTS:
        return parts_bytes(e->in, content.idx, ox_proof_grad_axis(e->in, content.idx), content.count);
    case NODES: /* lie where their first parts lay */
        return parts_bytes(e->in, content.idx, ox_proof_grad_axis(e->in, content.idx), UINT32_MAX);
    case COPY_PARTS:
        return parts_bytes(e->in, content.idx, OX_AXIS_COPY, content.count);
    case SLICE:
        return ox_proof_cut_bytes(e->in, content.idx, ox_proof_copies(e->in) > 1
                                                          ? OX_AXIS_COPY : ox_proof_grad_axis(e->in, content.idx));
    case NARROW_OWN:
    case NARROW_PARTS:
    case NARROW_SLICE:
    case NARROW_COMPLETE:
        return narrow_bytes(e->in, content);
    case RESIDUAL:
        return ox_proof_low_rank(e->in, content.idx).kept;
    case COMPLETE:
    case TOTAL:
        return ox_proof_slice_bytes(e->in, content.idx);
    case PACKED:
        return ox_proof_packed_bytes(e->in, content.idx);
    case REDUCED:
        return ox_proof_reduced_bytes(e->in, content.idx);
    case ACT:
    case ACT_GRAD:
        return content.idx == OX_NONE ? ox_proof_last_stage(e->in)->output_bytes
                                      : ox_effects_stage(e, content.idx)->input_bytes;
    case KEPT:
        return ox_effects_stage(e, content.idx)->kept_bytes;
    case BATCH:
        return model->batch_bytes;
    case BATCHES:
        return model->batch_bytes * e->plan->micro_batches;
    case LOADS:
    case ALL_LOADS:
    case LOSSES:
    case ALL_LOSSES:
        return ox_proof_reports_bytes(e->in);
    case PARTIALS:
        return ox_proof_partials_bytes(e->in, content.idx);
    case COUNTS:
        return 8 * (uint64_t)e->plan->unit_count;
    case ROUTES:
        return (content.count - content.first) * ox_effects_stage(e, content.idx)->routes_bytes;
    case CONSTANT:
        return model->const_bytes;
    case SLOTS:
        return ox_proof_stream_bytes(e->in);
    default:
        return 0;
    }
}

/* How many forward passes report: each micro-batch has one at each stage that does. */
uint32_t ox_effects_own_loads(const struct effects *e) {
    uint32_t stages = 0;
    for (uint32_t i = 0; i < e->plan->stage_count; i++) {
        stages += ox_effects_stage(e, i)->reports && ox_proof_computes(e->in, i);
    }
    return stages * e->plan->micro_batches;
}

struct ox_content ox_effects_whole_sum(const struct effects *e, uint32_t grad_idx) {
    const struct ox_plan_grad *const grad = ox_effects_grad(e, grad_idx);
    const bool added = grad->addend != OX_NONE && (grad->in_turn || ox_proof_on_device(e->in, grad->unit_idx));
    return added ? ox_content(TOTAL, grad_idx, 0) : ox_content_sum(e, grad_idx);
}

struct ox_content ox_effects_finished_sum(const struct effects *e, uint32_t grad_idx) {
    return ox_proof_packs(e->in, grad_idx) ? ox_content(PACKED, grad_idx, 0) : ox_effects_whole_sum(e, grad_idx);
}

void ox_effects_need_addends(struct effects *e, enum ox_tier tier, uint32_t grad_idx) {
    const bool in_turn = ox_effects_grad(e, grad_idx)->in_turn;
    for (uint32_t i = ox_effects_grad(e, grad_idx)->addend; i != OX_NONE && !in_turn;
         i = ox_effects_grad(e, i)->addend) {
        e->nth++;
        ox_effects_need(e, OX_USE_GRAD, tier, ox_content_sum(e, i));
    }
    e->nth = 0;
}

/* ---- one use --------------------------------------------------------------------------------------- */

const struct ox_use *ox_effects_use(const struct effects *e, enum ox_use_role role) {
    for (uint32_t i = 0; i < e->task->use_count; i++) {
        if (e->task->uses[i].role == role && e->task->uses[i].nth == e->nth) {
            return &e->task->uses[i];
        }
    }
    return NULL;
}

const struct ox_use *ox_effects_find(struct effects *e, enum ox_use_role role, enum ox_access access,
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

/* Whether the task may read what may be there for one stage alone: it belongs to that, or asks the same. */
static bool is_for_task(const struct effects *e, const struct ox_only *only) {
    const struct ox_task *const task = e->task;
    const bool computes = task->kind == OX_TASK_BACKWARD && task->stage_idx == only->stage_idx &&
                          task->mb_idx >= only->mb_first && task->mb_idx < only->mb_past;
    return only->stage_idx == OX_NONE || computes ||
           (task->asks_stage == only->stage_idx && task->mb_first == only->mb_first && task->mb_past == only->mb_past);
}

void ox_effects_need(struct effects *e, enum ox_use_role role, enum ox_tier tier, struct ox_content content) {
    const struct ox_use *const use = ox_effects_find(e, role, READS, tier);
    if (use != NULL && !ox_content_same(e->held[use->buf_idx], content)) {
        ox_effects_reject(e, "reads a buffer that does not hold what its work needs");
    }
    if (use != NULL && !is_for_task(e, &e->only[use->buf_idx])) {
        ox_effects_reject(e, "reads a buffer that may be filled for another stage alone");
    }
}

void ox_effects_need_bytes(struct effects *e, uint32_t buf_idx, uint64_t bytes) {
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
    /* What a rank has nothing of takes a page. */
    ox_effects_need_bytes(e, buf_idx, ox_max_u64(ox_effects_bytes(e, content, buf->resident), 1));
    e->held[buf_idx] = content;
    e->only[buf_idx] = (struct ox_only){.stage_idx = e->task->asks_stage, .mb_first = e->task->mb_first,
                                        .mb_past = e->task->mb_past,
                                        .by = 1 + (uint32_t)(e->task - e->plan->tasks)};
}

void ox_effects_fill(struct effects *e, enum ox_use_role role, enum ox_tier tier, struct ox_content content) {
    const struct ox_use *const use = ox_effects_find(e, role, WRITES, tier);
    if (use != NULL) {
        ox_effects_hold(e, use->buf_idx, content);
    }
}

void ox_effects_change(struct effects *e, enum ox_use_role role, enum ox_tier tier,
                       const struct ox_content from_to[2]) {
    const struct ox_use *const use = ox_effects_find(e, role, UPDATES, tier);
    if (use == NULL) {
        return;
    }
    if (!ox_content_same(e->held[use->buf_idx], from_to[0])) {
        ox_effects_reject(e, "updates a buffer that does not hold what its work needs");
    }
    ox_effects_hold(e, use->buf_idx, from_to[1]);
}

void ox_effects_replace(struct effects *e, enum ox_use_role role, enum ox_tier tier, struct ox_content content) {
    const struct ox_use *const use = ox_effects_find(e, role, UPDATES, tier);
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
