/* What each task needs in its buffers and leaves in them. */
#include "offload/proof/effects.h"

#include "base/bytes.h"

/* ---- contents -------------------------------------------------------------------------------------- */

static enum ox_buf_kind kind_of(enum ox_holding what) {
    static const uint8_t kinds[] = {
        [NOTHING] = OX_BUF_SMALL, [PLANES] = OX_BUF_WEIGHTS, [STATE] = OX_BUF_STATE,    [JOINED] = OX_BUF_JOINED,
        [ACT] = OX_BUF_ACT,       [ACT_GRAD] = OX_BUF_ACT,   [KEPT] = OX_BUF_KEPT,      [SUM] = OX_BUF_GRAD,
        [TOTAL] = OX_BUF_GRAD,    [PACKED] = OX_BUF_GRAD,    [REDUCED] = OX_BUF_GRAD,   [BATCH] = OX_BUF_BATCH,
        [BATCHES] = OX_BUF_BATCH, [LOSSES] = OX_BUF_SMALL,   [PARTIALS] = OX_BUF_SMALL, [NORMS] = OX_BUF_SMALL,
        [FACTOR] = OX_BUF_SMALL,  [COUNTS] = OX_BUF_SMALL,   [WRITTEN] = OX_BUF_SMALL,  [CONSTANT] = OX_BUF_SMALL,
        [WORK] = OX_BUF_SCRATCH,     [SLOTS] = OX_BUF_STREAM,
    };
    return (enum ox_buf_kind)kinds[what];
}

static uint64_t bytes_of(const struct effects *e, struct ox_content content, bool at_home) {
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
        return content.idx == OX_NONE ? ox_effects_unit(e, ox_proof_last_unit(e->in))->output_bytes
                                      : ox_effects_unit(e, content.idx)->input_bytes;
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

/* The tier where kernels read and write. */
static enum ox_tier compute_tier(const struct effects *e) {
    return e->in->budget.unified ? OX_TIER_HOST : OX_TIER_DEVICE;
}

/* A gradient summed over all micro-batches and both uses of the weights, before and after it is rounded. */
static struct ox_content whole_sum(const struct effects *e, uint32_t grad_idx) {
    const struct ox_plan_grad *const grad = ox_effects_grad(e, grad_idx);
    const bool added = grad->addend != OX_NONE && ox_proof_on_device(e->in, grad->unit_idx);
    return added ? ox_content(TOTAL, grad_idx, 0) : ox_content(SUM, grad_idx, e->plan->micro_batches);
}

static struct ox_content finished_sum(const struct effects *e, uint32_t grad_idx) {
    return ox_proof_packs(e->in, grad_idx) ? ox_content(PACKED, grad_idx, 0) : whole_sum(e, grad_idx);
}

/* ---- one use --------------------------------------------------------------------------------------- */

/* The task's use with this role, or NULL. */
static const struct ox_use *use_of(const struct effects *e, enum ox_use_role role) {
    for (uint32_t i = 0; i < e->task->use_count; i++) {
        if (e->task->uses[i].role == role) {
            return &e->task->uses[i];
        }
    }
    return NULL;
}

/* The task's use with this role, which is counted as checked. Rejects the task and returns NULL if there is none, or if
 * access or tier is another. */
static const struct ox_use *find_use(struct effects *e, enum ox_use_role role, enum ox_access access,
                                     enum ox_tier tier) {
    const struct ox_use *const use = use_of(e, role);
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

/* Demands that the use holds `content` and is only read. */
static void need_use(struct effects *e, enum ox_use_role role, enum ox_tier tier, struct ox_content content) {
    const struct ox_use *const use = find_use(e, role, READS, tier);
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

/* Sets what the buffer holds, and demands that it has room for it. */
static void hold(struct effects *e, uint32_t buf_idx, struct ox_content content) {
    const struct ox_buf *const buf = &e->plan->bufs[buf_idx];
    if (buf->kind != kind_of((enum ox_holding)content.what)) {
        ox_effects_reject(e, "writes to a buffer of another kind");
    }
    need_bytes(e, buf_idx, bytes_of(e, content, buf->resident));
    e->held[buf_idx] = content;
}

/* Demands that the use is only written; it holds `content` then. */
static void fill(struct effects *e, enum ox_use_role role, enum ox_tier tier, struct ox_content content) {
    const struct ox_use *const use = find_use(e, role, WRITES, tier);
    if (use != NULL) {
        hold(e, use->buf_idx, content);
    }
}

/* Demands that the use is updated and holds from_to[0]; it holds from_to[1] then. */
static void change(struct effects *e, enum ox_use_role role, enum ox_tier tier, const struct ox_content from_to[2]) {
    const struct ox_use *const use = find_use(e, role, UPDATES, tier);
    if (use == NULL) {
        return;
    }
    if (!ox_content_same(e->held[use->buf_idx], from_to[0])) {
        ox_effects_reject(e, "updates a buffer that does not hold what its work needs");
    }
    hold(e, use->buf_idx, from_to[1]);
}

/* Demands that the use is updated, whatever it has held; it holds `content` then. */
static void replace(struct effects *e, enum ox_use_role role, enum ox_tier tier, struct ox_content content) {
    const struct ox_use *const use = find_use(e, role, UPDATES, tier);
    if (use != NULL) {
        hold(e, use->buf_idx, content);
    }
}

/* Demands that the use, if there is one, is the buffer that the executor knows by name. */
static void need_buffer(struct effects *e, enum ox_use_role role, uint32_t buf_idx) {
    const struct ox_use *const use = use_of(e, role);
    if (use != NULL && use->buf_idx != buf_idx) {
        ox_effects_reject(e, "does not use the buffer that the executor knows by that name");
    }
}

/* Counts what the task moves over a link; within unified memory copies cross none. */
static void count_bytes(struct effects *e, enum ox_link link, enum ox_traffic_kind kind, uint64_t bytes) {
    const bool between_memories = link == OX_LINK_H2D || link == OX_LINK_D2H;
    if (!between_memories || !e->in->budget.unified) {
        e->moved_bytes += bytes;
        e->traffic[link][kind] += bytes;
    }
}

/* ---- what several kinds of tasks need --------------------------------------------------------------- */

/* Demands the planes of a unit where its kernels read them; lo may lie in the state. */
static void need_planes(struct effects *e, uint32_t unit_idx, bool is_table) {
    const enum ox_tier tier = compute_tier(e);
    need_use(e, is_table ? OX_USE_TABLE : OX_USE_WEIGHTS, tier, ox_content(PLANES, unit_idx, CURRENT));
    if (ox_proof_homes(e->in, unit_idx)->weights == tier && ox_proof_lo_in_state(e->in, unit_idx)) {
        need_use(e, is_table ? OX_USE_TABLE_STATE : OX_USE_STATE, tier, ox_content(STATE, unit_idx, CURRENT));
    }
}

static void need_batch(struct effects *e) {
    const bool whole = e->in->budget.unified;
    need_use(e, OX_USE_BATCH, compute_tier(e),
             whole ? ox_content(BATCHES, OX_NONE, 0) : ox_content(BATCH, OX_NONE, e->task->mb_idx));
    if (whole) {
        need_buffer(e, OX_USE_BATCH, e->plan->batch_host_buf);
    }
}

static void add_gradient(struct effects *e, enum ox_use_role role, uint32_t grad_idx) {
    const uint32_t mb_idx = e->task->mb_idx;
    const struct ox_content sums[2] = {ox_content(SUM, grad_idx, mb_idx), ox_content(SUM, grad_idx, mb_idx + 1)};
    change(e, role, compute_tier(e), sums);
}

/* Demands scratch of exactly this size, and with `constants` the constant tables. */
static void use_scratch(struct effects *e, uint64_t bytes, bool constants) {
    const struct ox_use *const use = use_of(e, OX_USE_SCRATCH);
    fill(e, OX_USE_SCRATCH, compute_tier(e), ox_content(WORK, OX_NONE, 0));
    if (use != NULL) {
        need_bytes(e, use->buf_idx, bytes);
    }
    if (constants) {
        need_use(e, OX_USE_CONST, compute_tier(e), ox_content(CONSTANT, OX_NONE, 0));
        need_buffer(e, OX_USE_CONST, e->plan->const_buf);
    }
}

/* ---- kernels ---------------------------------------------------------------------------------- */

/* Backward overwrites what forward kept with gradients, so that nothing may be read there any more. */
static void use_up_kept(struct effects *e, uint32_t unit_idx) {
    const struct ox_use *const use = find_use(e, OX_USE_KEPT, UPDATES, compute_tier(e));
    if (use == NULL) {
        return;
    }
    if (!ox_content_same(e->held[use->buf_idx], ox_content(KEPT, unit_idx, e->task->mb_idx))) {
        ox_effects_reject(e, "does not find what its forward kept");
    }
    e->held[use->buf_idx] = ox_content(NOTHING, 0, 0);
}

/* Demands a block's weights in the form that it computes with. */
static void need_weights(struct effects *e, uint32_t unit_idx) {
    if (e->in->model.joins) {
        need_use(e, OX_USE_JOINED, compute_tier(e), ox_content(JOINED, unit_idx, 0));
    } else {
        need_planes(e, unit_idx, false);
    }
}

static void forward(struct effects *e, uint32_t unit_idx) {
    const struct ox_plan_unit *const unit = ox_effects_unit(e, unit_idx);
    const enum ox_tier tier = compute_tier(e);
    const uint32_t next_idx = ox_proof_next_unit(e->in, unit_idx);
    if (unit->kind == OX_PLAN_HEAD) {
        ox_effects_reject(e, "makes activations of a unit that gives the loss");
        return;
    }
    if (unit->kind == OX_PLAN_EMBEDDING) {
        need_planes(e, unit_idx, false);
    } else {
        need_weights(e, unit_idx);
        need_use(e, OX_USE_X, tier, ox_content(ACT, unit_idx, e->task->mb_idx));
        use_scratch(e, e->keeps[unit_idx] ? unit->forward_kept.scratch_bytes : unit->forward.scratch_bytes, true);
    }
    need_batch(e);
    fill(e, OX_USE_Y, tier, ox_content(ACT, next_idx, e->task->mb_idx));
    if (e->keeps[unit_idx]) {
        fill(e, OX_USE_KEPT, tier, ox_content(KEPT, unit_idx, e->task->mb_idx));
    }
}

static void head(struct effects *e, uint32_t unit_idx) {
    const enum ox_tier tier = compute_tier(e);
    const uint32_t mb_idx = e->task->mb_idx;
    const struct ox_plan_unit *const unit = ox_effects_unit(e, unit_idx);
    const bool tied = unit->table_unit_idx != OX_NONE;
    if (unit->kind != OX_PLAN_HEAD) {
        ox_effects_reject(e, "belongs to a unit that computes no loss");
        return;
    }
    need_planes(e, unit_idx, false);
    if (tied) {
        need_planes(e, unit->table_unit_idx, true);
    }
    need_use(e, OX_USE_X, tier, ox_content(ACT, unit_idx, mb_idx));
    need_batch(e);
    use_scratch(e, e->train ? unit->backward.scratch_bytes : unit->forward.scratch_bytes, false);
    if (mb_idx > 0 && !ox_content_same(e->held[e->plan->loss_buf], ox_content(LOSSES, OX_NONE, mb_idx))) {
        ox_effects_reject(e, "adds to losses of micro-batches that were not computed");
    }
    fill(e, OX_USE_LOSS, tier, ox_content(LOSSES, OX_NONE, mb_idx + 1));
    need_buffer(e, OX_USE_LOSS, e->plan->loss_buf);
    if (e->train) {
        fill(e, OX_USE_DX, tier, ox_content(ACT_GRAD, unit_idx, mb_idx));
        add_gradient(e, OX_USE_GRAD, unit->grad_idx);
        if (tied) {
            add_gradient(e, OX_USE_GRAD_HEAD, unit->table_grad_idx);
        }
    }
}

static void backward(struct effects *e, uint32_t unit_idx) {
    const struct ox_plan_unit *const unit = ox_effects_unit(e, unit_idx);
    const enum ox_tier tier = compute_tier(e);
    const uint32_t mb_idx = e->task->mb_idx;
    if (unit->kind == OX_PLAN_BLOCK) {
        need_weights(e, unit_idx);
        need_use(e, OX_USE_X, tier, ox_content(ACT, unit_idx, mb_idx));
        use_scratch(e, e->keeps[unit_idx] ? unit->backward_kept.scratch_bytes : unit->backward.scratch_bytes, true);
    }
    need_batch(e);
    const struct ox_content from_to[2] = {ox_content(ACT_GRAD, ox_proof_next_unit(e->in, unit_idx), mb_idx),
                                          ox_content(ACT_GRAD, unit_idx, mb_idx)};
    change(e, OX_USE_DX, tier, from_to);
    add_gradient(e, OX_USE_GRAD, unit->grad_idx);
    if (e->keeps[unit_idx]) {
        use_up_kept(e, unit_idx);
    }
}

/* GRAD_ADD: the gradient of a second use of the weights is added to this one. */
static void add_second_use(struct effects *e, uint32_t grad_idx) {
    const enum ox_tier tier = compute_tier(e);
    const uint32_t micro_batches = e->plan->micro_batches;
    const struct ox_content from_to[2] = {ox_content(SUM, grad_idx, micro_batches), ox_content(TOTAL, grad_idx, 0)};
    change(e, OX_USE_GRAD, tier, from_to);
    need_use(e, OX_USE_GRAD_HEAD, tier, ox_content(SUM, ox_effects_grad(e, grad_idx)->addend, micro_batches));
}

/* ---- norm and optimizer ---------------------------------------------------------------------------- */

/* Adds the square sums of a unit to those of the others. */
static void add_norm(struct effects *e, uint32_t unit_idx, enum ox_use_role role) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < e->plan->unit_count; i++) {
        count += e->reduced[i];
    }
    if (e->reduced[unit_idx]++ != 0) {
        ox_effects_reject(e, "counts a gradient twice in the norm");
    }
    fill(e, role, OX_TIER_HOST, ox_content(NORMS, OX_NONE, count + 1));
    need_buffer(e, role, e->plan->norm_buf);
}

static void reduce(struct effects *e, uint32_t unit_idx) {
    const uint32_t grad_idx = ox_effects_unit(e, unit_idx)->grad_idx, addend = ox_effects_grad(e, grad_idx)->addend;
    const struct ox_content from_to[2] = {finished_sum(e, grad_idx), ox_content(REDUCED, unit_idx, NEW)};
    change(e, OX_USE_GRAD, OX_TIER_HOST, from_to);
    if (addend != OX_NONE) {
        need_use(e, OX_USE_GRAD_HEAD, OX_TIER_HOST, ox_content(SUM, addend, e->plan->micro_batches));
    }
    add_norm(e, unit_idx, OX_USE_NORM);
}

/* The task only reads the gradient, which from then on counts as reduced. */
static void device_reduce(struct effects *e, uint32_t unit_idx) {
    if (!ox_proof_on_device(e->in, unit_idx)) {
        ox_effects_reject(e, "leaves a gradient on the device whose optimizer is elsewhere");
    }
    const uint32_t grad_idx = ox_effects_unit(e, unit_idx)->grad_idx;
    need_use(e, OX_USE_GRAD, OX_TIER_DEVICE, finished_sum(e, grad_idx));
    fill(e, OX_USE_TARGET, OX_TIER_DEVICE, ox_content(PARTIALS, unit_idx, 0));
    const struct ox_use *const grad = use_of(e, OX_USE_GRAD);
    if (e->wrong == NULL && grad != NULL) {
        hold(e, grad->buf_idx, ox_content(REDUCED, unit_idx, NEW));
    }
}

static void norm_save(struct effects *e, uint32_t unit_idx) {
    need_use(e, OX_USE_SOURCE, OX_TIER_DEVICE, ox_content(PARTIALS, unit_idx, 0));
    add_norm(e, unit_idx, OX_USE_TARGET);
    count_bytes(e, OX_LINK_D2H, OX_TRAFFIC_OTHER, ox_proof_partials_bytes(e->in, unit_idx));
}

/* A step that is not finite ends with this task. */
static void norm(struct effects *e) {
    const struct ox_content from_to[2] = {ox_content(NORMS, OX_NONE, e->plan->unit_count),
                                          ox_content(FACTOR, OX_NONE, 0)};
    change(e, OX_USE_NORM, OX_TIER_HOST, from_to);
    need_buffer(e, OX_USE_NORM, e->plan->norm_buf);
    if (!ox_proof_output_leaves(e->in)) {
        need_use(e, OX_USE_LOSS, OX_TIER_HOST, ox_content(LOSSES, OX_NONE, e->plan->micro_batches));
        need_buffer(e, OX_USE_LOSS, e->plan->loss_host_buf);
    }
    const char *const unfinite = ox_effects_unfinite(e);
    if (unfinite != NULL) {
        ox_effects_reject(e, unfinite);
    }
}

static void next_version(struct effects *e, uint32_t unit_idx, uint32_t from) {
    if (e->updated[unit_idx]++ != from) {
        ox_effects_reject(e, "updates a unit twice, or not in the order of steps");
    }
}

/* Whether a repeated update of the step before takes all planes from the last commit, whatever memory holds. */
static bool is_from_store(const struct effects *e) {
    return e->task->carried && e->at.clipped;
}

static void change_version(struct effects *e, enum ox_use_role role, enum ox_tier tier, enum ox_holding what) {
    const uint32_t unit_idx = e->task->unit_idx, from = e->task->carried ? OLD : CURRENT;
    const struct ox_content from_to[2] = {ox_content(what, unit_idx, from), ox_content(what, unit_idx, from + 1)};
    if (is_from_store(e)) {
        replace(e, role, tier, from_to[1]);
    } else {
        change(e, role, tier, from_to);
    }
}

/* Whether the update is written to the store. */
static bool is_written(const struct effects *e) {
    return e->task->carried ? e->writes_pending : e->writes_own;
}

/* Counts what an update moves between drives and slots: every chunk is written, and read if the drives are its home. A
 * speculative update takes the gradient from the host buffer that it has just reached. */
static void count_adam(struct effects *e, uint32_t unit_idx) {
    const struct ox_homes *const homes = ox_proof_homes(e->in, unit_idx);
    const bool speculative = e->overlap && !e->task->carried, all = is_from_store(e);
    const uint64_t hi = ox_proof_elems(e->in, unit_idx) * sizeof(uint16_t);
    const uint64_t state = ox_proof_stored_state_bytes(e->in, unit_idx);
    count_bytes(e, OX_LINK_NVME_READ, OX_TRAFFIC_GRADS,
                homes->grad == OX_TIER_NVME && !speculative ? ox_proof_reduced_bytes(e->in, unit_idx) : 0);
    if (is_written(e)) {
        count_bytes(e, OX_LINK_NVME_READ, OX_TRAFFIC_WEIGHTS, homes->weights == OX_TIER_NVME || all ? hi : 0);
        count_bytes(e, OX_LINK_NVME_READ, OX_TRAFFIC_STATE, homes->state == OX_TIER_NVME || all ? state : 0);
        count_bytes(e, OX_LINK_NVME_WRITE, OX_TRAFFIC_WEIGHTS, hi);
        count_bytes(e, OX_LINK_NVME_WRITE, OX_TRAFFIC_STATE, state);
    }
}

/* The carried update of a unit that is up to date only reads its planes from the drives to where forward needs them; it
 * leaves its other uses alone. */
static void fetch(struct effects *e, uint32_t unit_idx) {
    if (ox_proof_homes(e->in, unit_idx)->weights != OX_TIER_NVME || e->updated[unit_idx] != CURRENT ||
        !e->at.computes) {
        ox_effects_reject(e, "updates what is not due, or reads planes that no forward needs");
        return;
    }
    fill(e, OX_USE_TARGET, OX_TIER_HOST, ox_content(PLANES, unit_idx, CURRENT));
    count_bytes(e, OX_LINK_NVME_READ, OX_TRAFFIC_WEIGHTS, ox_proof_planes_bytes(e->in, unit_idx));
    e->found_count = e->task->use_count;
}

/* Checks that an update before the norm is known can be rolled back. */
static void check_speculative(struct effects *e, uint32_t unit_idx) {
    if (!ox_proof_is_speculative(e->in, unit_idx)) {
        ox_effects_reject(e, "updates a unit before the norm is known that should wait for it");
    }
    if (e->in->budget.nvme_bytes == 0 || ox_proof_generations(e->in) < 2) {
        ox_effects_reject(e, "replaces before the norm is known what a repeated update would have to read");
    }
    if (e->plan->stream_buf == OX_NONE || !e->plan->bufs[e->plan->stream_buf].resident) {
        ox_effects_reject(e, "leaves writes in flight from memory that is reused before the commit");
    }
}

/* The optimizer turns one version of a unit into the next. Without overlap it does so after the norm. With overlap the
 * carried update makes the version that this step computes with, and a speculative one makes the next version, from a
 * gradient that has just been reduced. */
static void adam(struct effects *e, uint32_t unit_idx) {
    const struct ox_homes *const homes = ox_proof_homes(e->in, unit_idx);
    const uint32_t from = e->task->carried ? OLD : CURRENT, to = from + 1;
    const bool speculative = e->overlap && !e->task->carried;
    if (e->task->carried && !e->due[unit_idx]) {
        fetch(e, unit_idx);
        return;
    }
    next_version(e, unit_idx, from);
    if (ox_proof_on_device(e->in, unit_idx)) {
        ox_effects_reject(e, "updates on the host what lives on the device");
    }
    if (speculative) {
        check_speculative(e, unit_idx);
    }
    if (!e->overlap) {
        need_use(e, OX_USE_NORM, OX_TIER_HOST, ox_content(FACTOR, OX_NONE, 0));
    }
    need_use(e, OX_USE_GRAD, speculative ? OX_TIER_HOST : homes->grad, ox_content(REDUCED, unit_idx, to));
    if (homes->state == OX_TIER_HOST) {
        change_version(e, OX_USE_STATE, OX_TIER_HOST, STATE);
    }
    if (homes->weights != OX_TIER_NVME) {
        change_version(e, OX_USE_WEIGHTS, OX_TIER_HOST, PLANES);
    } else if (e->task->carried) {
        fill(e, OX_USE_TARGET, OX_TIER_HOST, ox_content(PLANES, unit_idx, to));
    }
    if (e->in->budget.nvme_bytes > 0) {
        fill(e, OX_USE_STREAM, OX_TIER_HOST, ox_content(SLOTS, OX_NONE, 0));
        need_buffer(e, OX_USE_STREAM, e->plan->stream_buf);
        if (is_written(e) != e->begun) {
            ox_effects_reject(e, "writes to the store outside of a transaction, or leaves it out of one");
        }
    }
    count_adam(e, unit_idx);
}

/* An update of a unit that lives on the device. It may not be speculative: there is only one copy of the state, so it
 * could not be rolled back. */
static void device_adam(struct effects *e, uint32_t unit_idx) {
    const uint32_t from = e->task->carried ? OLD : CURRENT, to = from + 1;
    next_version(e, unit_idx, from);
    if (!ox_proof_on_device(e->in, unit_idx) || e->task->carried != e->overlap) {
        ox_effects_reject(e, "updates on the device what lives elsewhere, or before the norm is known");
    }
    if (!e->overlap) {
        need_use(e, OX_USE_NORM, OX_TIER_HOST, ox_content(FACTOR, OX_NONE, 0));
    }
    need_use(e, OX_USE_GRAD, OX_TIER_DEVICE, ox_content(REDUCED, unit_idx, to));
    change_version(e, OX_USE_STATE, OX_TIER_DEVICE, STATE);
    change_version(e, OX_USE_WEIGHTS, OX_TIER_DEVICE, PLANES);
    fill(e, OX_USE_COUNTS, OX_TIER_DEVICE, ox_content(COUNTS, OX_NONE, ++e->device_count));
    need_buffer(e, OX_USE_COUNTS, e->plan->counts_buf);
}

static void nonfinite(struct effects *e) {
    const struct ox_content all = ox_content(COUNTS, OX_NONE, ox_effects_device_units(e));
    if (e->task->carried != e->overlap) {
        ox_effects_reject(e, "copies the counts of another step's updates");
    }
    need_use(e, OX_USE_SOURCE, OX_TIER_DEVICE, all);
    fill(e, OX_USE_TARGET, OX_TIER_HOST, all);
    need_buffer(e, OX_USE_TARGET, e->plan->nonfinite_buf);
    count_bytes(e, OX_LINK_D2H, OX_TRAFFIC_OTHER, 8 * (uint64_t)e->plan->unit_count);
}

/* The transaction of the step before must end before this step's begins. */
static void begin_transaction(struct effects *e) {
    const uint32_t before = e->overlap && !e->task->carried && e->writes_pending;
    const bool in_order = e->commit_count == before;
    if (e->begun || e->in->budget.nvme_bytes == 0 || !in_order) {
        ox_effects_reject(e, "begins a transaction while another one is under way");
    }
    e->begun = true;
    fill(e, OX_USE_STREAM, OX_TIER_HOST, ox_content(SLOTS, OX_NONE, 0));
    need_buffer(e, OX_USE_STREAM, e->plan->stream_buf);
    if (!e->overlap) {
        need_use(e, OX_USE_NORM, OX_TIER_HOST, ox_content(FACTOR, OX_NONE, 0));
    }
}

/* Checks that all units are updated and that the transaction is open. */
static void end_transaction(struct effects *e) {
    const uint32_t version = e->task->carried ? CURRENT : NEW;
    if (!e->begun) {
        ox_effects_reject(e, "ends a transaction that has not begun");
    }
    for (uint32_t i = 0; i < e->plan->unit_count; i++) {
        if (e->updated[i] != version) {
            ox_effects_reject(e, "ends a transaction before all units are updated");
        }
    }
    fill(e, OX_USE_STREAM, OX_TIER_HOST, ox_content(SLOTS, OX_NONE, 0));
    need_buffer(e, OX_USE_STREAM, e->plan->stream_buf);
}

static void written(struct effects *e) {
    if (!e->task->carried || e->written_count++ != 0) {
        ox_effects_reject(e, "waits for writes that nobody reads");
    }
    end_transaction(e);
    fill(e, OX_USE_WRITTEN, OX_TIER_NVME, ox_content(WRITTEN, OX_NONE, 0));
    need_buffer(e, OX_USE_WRITTEN, e->plan->written_buf);
}

static void commit(struct effects *e) {
    e->commit_count++;
    if (!e->task->carried && e->task != &e->plan->tasks[e->plan->task_count - 1]) {
        ox_effects_reject(e, "commits before the step has ended");
    }
    end_transaction(e);
    e->begun = false;
}

/* ---- moves ------------------------------------------------------------------------------------ */

struct route {
    enum ox_tier from, to;
    enum ox_link link;
};

/* Where the bytes of a lane come from and go to. */
static struct route route_of(const struct effects *e) {
    const enum ox_tier compute = compute_tier(e);
    switch ((enum ox_lane_id)e->task->lane) {
    case OX_LANE_NVME_READ:
        return (struct route){OX_TIER_NVME, OX_TIER_HOST, OX_LINK_NVME_READ};
    case OX_LANE_NVME_WRITE:
        return (struct route){OX_TIER_HOST, OX_TIER_NVME, OX_LINK_NVME_WRITE};
    case OX_LANE_H2D:
        return (struct route){OX_TIER_HOST, compute, OX_LINK_H2D};
    default:
        return (struct route){compute, OX_TIER_HOST, OX_LINK_D2H};
    }
}

static bool of_drives(struct route route) {
    return route.from == OX_TIER_NVME || route.to == OX_TIER_NVME;
}

static void move(struct effects *e, struct route route, struct ox_content content) {
    need_use(e, OX_USE_SOURCE, route.from, content);
    fill(e, OX_USE_TARGET, route.to, content);
}

static void need_extent(struct effects *e, uint32_t spool_idx, uint64_t bytes) {
    if (e->plan->spool_bytes[spool_idx] < bytes) {
        ox_effects_reject(e, "moves more than its spool extent holds");
    }
}

/* Weights move from the store, which is no buffer, to the host, and from the host to the device. */
static void move_weights(struct effects *e, struct route route, uint32_t unit_idx) {
    const struct ox_content planes = ox_content(PLANES, unit_idx, CURRENT);
    count_bytes(e, route.link, OX_TRAFFIC_WEIGHTS, ox_proof_planes_bytes(e->in, unit_idx));
    if (!of_drives(route)) {
        move(e, route, planes);
        if (e->in->budget.unified) {
            ox_effects_reject(e, "moves weights that compute can read where they are");
        }
        if (ox_proof_lo_in_state(e->in, unit_idx)) {
            need_use(e, OX_USE_STATE, OX_TIER_HOST, ox_content(STATE, unit_idx, CURRENT));
        }
        return;
    }
    if (e->in->budget.nvme_bytes == 0 || ox_proof_homes(e->in, unit_idx)->weights != OX_TIER_NVME) {
        ox_effects_reject(e, "reads weights from drives that do not have them");
    }
    if (e->overlap) { /* else nothing has been written since the last commit */
        need_use(e, OX_USE_WRITTEN, OX_TIER_NVME, ox_content(WRITTEN, OX_NONE, 0));
        need_buffer(e, OX_USE_WRITTEN, e->plan->written_buf);
    }
    fill(e, OX_USE_TARGET, OX_TIER_HOST, planes);
}

/* Planes that live on the device move to the optimizer on the host; its new planes move back. */
static void move_planes(struct effects *e, struct route route, uint32_t unit_idx) {
    const uint32_t before = e->task->carried ? OLD : CURRENT;
    if (e->in->budget.unified || ox_proof_homes(e->in, unit_idx)->weights != OX_TIER_DEVICE) {
        ox_effects_reject(e, "moves planes that do not live on the device");
    }
    move(e, route, ox_content(PLANES, unit_idx, route.link == OX_LINK_D2H ? before : before + 1));
    count_bytes(e, route.link, OX_TRAFFIC_WEIGHTS, ox_proof_planes_bytes(e->in, unit_idx));
}

static void move_act(struct effects *e, struct route route, uint32_t unit_idx) {
    uint64_t bytes = ox_effects_unit(e, unit_idx)->input_bytes;
    if (of_drives(route)) { /* drives transfer whole pages */
        bytes = ox_align_up(bytes, OX_IO_ALIGN_BYTES);
        need_extent(e, ox_proof_act_extent(e->plan, unit_idx, e->task->mb_idx), bytes);
    }
    move(e, route, ox_content(ACT, unit_idx, e->task->mb_idx));
    count_bytes(e, route.link, OX_TRAFFIC_ACTIVATIONS, bytes);
}

/* Activations, or their gradient, arrive from another part of the model or leave for one, in ascending order of
 * micro-batches, by which the two parts tell them apart. Activations arrive at the first stage and leave the last;
 * gradients go the other way. */
static void move_outside(struct effects *e, struct route route, uint32_t unit_idx) {
    const bool leaves = route.link == OX_LINK_D2H, is_gradient = e->task->move == OX_MOVE_OUTSIDE_DX;
    const bool at_output = leaves != is_gradient;
    const uint32_t border_idx = at_output ? ox_proof_last_unit(e->in) : ox_proof_first_unit(e->in);
    if (unit_idx != border_idx || !(at_output ? ox_proof_output_leaves : ox_proof_input_arrives)(e->in)) {
        ox_effects_reject(e, "belongs to a unit that no other part of the model is next to");
        return;
    }
    if (e->task->mb_idx != (leaves ? e->left_count : e->arrived_count)[is_gradient]++) {
        ox_effects_reject(e, "exchanges micro-batches with another part of the model twice or out of order");
    }
    const struct ox_content content = ox_content(is_gradient ? ACT_GRAD : ACT, at_output ? OX_NONE : border_idx,
                                                 e->task->mb_idx);
    if (leaves) {
        need_use(e, OX_USE_SOURCE, route.from, content);
    } else {
        fill(e, OX_USE_TARGET, route.to, content);
    }
    count_bytes(e, route.link, OX_TRAFFIC_ACTIVATIONS, bytes_of(e, content, false));
}

/* A gradient leaves (partial, or finished and marked `last`), or comes back, always as an fp32 sum. */
static void move_grad(struct effects *e, struct route route, uint32_t unit_idx) {
    const uint32_t grad_idx = e->task->grad_idx;
    const struct ox_use *const use = use_of(e, OX_USE_SOURCE);
    const struct ox_content source = use == NULL ? ox_content(NOTHING, OX_NONE, 0) : e->held[use->buf_idx];
    const bool is_second_use = ox_effects_grad(e, grad_idx)->added_to != OX_NONE;
    const bool leaves = route.link == OX_LINK_D2H || route.link == OX_LINK_NVME_WRITE;
    const bool at_rest = route.link == OX_LINK_NVME_WRITE && !is_second_use;
    const struct ox_content whole = at_rest ? ox_content(REDUCED, unit_idx, NEW) : finished_sum(e, grad_idx);
    if (source.idx != (source.what == REDUCED ? unit_idx : grad_idx) ||
        (leaves && (e->task->last ? !ox_content_same(source, whole)
                                  : source.what != SUM || source.count >= e->plan->micro_batches)) ||
        (!leaves && (source.what != SUM || e->task->last))) {
        ox_effects_reject(e, "does not move the gradient that it names");
        return;
    }
    if (of_drives(route)) {
        need_extent(e, ox_proof_grad_extent(grad_idx), bytes_of(e, source, false));
    }
    move(e, route, source);
    count_bytes(e, route.link, OX_TRAFFIC_GRADS, bytes_of(e, source, false));
}

static void move_batch(struct effects *e, struct route route) {
    need_use(e, OX_USE_SOURCE, route.from, ox_content(BATCHES, OX_NONE, 0));
    need_buffer(e, OX_USE_SOURCE, e->plan->batch_host_buf);
    fill(e, OX_USE_TARGET, route.to, ox_content(BATCH, OX_NONE, e->task->mb_idx));
    count_bytes(e, route.link, OX_TRAFFIC_OTHER, e->in->model.batch_bytes);
}

static void move_losses(struct effects *e, struct route route) {
    move(e, route, ox_content(LOSSES, OX_NONE, e->plan->micro_batches));
    need_buffer(e, OX_USE_TARGET, e->plan->loss_host_buf);
    count_bytes(e, route.link, OX_TRAFFIC_OTHER, 8 * (uint64_t)e->plan->micro_batches);
}

static void follow_move(struct effects *e, uint32_t unit_idx) {
    const struct route route = route_of(e);
    switch ((enum ox_move)e->task->move) {
    case OX_MOVE_WEIGHTS:
        move_weights(e, route, unit_idx);
        break;
    case OX_MOVE_PLANES:
        move_planes(e, route, unit_idx);
        break;
    case OX_MOVE_ACT:
        move_act(e, route, unit_idx);
        break;
    case OX_MOVE_GRAD:
        move_grad(e, route, unit_idx);
        break;
    case OX_MOVE_BATCH:
        move_batch(e, route);
        break;
    case OX_MOVE_LOSSES:
        move_losses(e, route);
        break;
    case OX_MOVE_PARTIALS:
        norm_save(e, unit_idx);
        break;
    case OX_MOVE_OUTSIDE_ACT:
    case OX_MOVE_OUTSIDE_DX:
        move_outside(e, route, unit_idx);
        break;
    default:
        nonfinite(e);
    }
}

/* ---- any task -------------------------------------------------------------------------------------- */

void ox_effects_follow(struct effects *e) {
    const enum ox_tier tier = compute_tier(e);
    const uint32_t unit_idx = e->task->unit_idx, grad_idx = e->task->grad_idx;
    const bool on_device = e->task->lane == OX_LANE_COMPUTE;
    switch ((enum ox_task_kind)e->task->kind) {
    case OX_TASK_JOIN:
        if (!e->in->model.joins) {
            ox_effects_reject(e, "joins planes of which no task reads fp32 weights");
        }
        need_planes(e, unit_idx, false);
        fill(e, OX_USE_JOINED, tier, ox_content(JOINED, unit_idx, 0));
        break;
    case OX_TASK_FORWARD:
        forward(e, unit_idx);
        break;
    case OX_TASK_HEAD:
        head(e, unit_idx);
        break;
    case OX_TASK_BACKWARD:
        backward(e, unit_idx);
        break;
    case OX_TASK_GRAD_ZERO:
        fill(e, OX_USE_GRAD, tier, ox_content(SUM, grad_idx, 0));
        break;
    case OX_TASK_GRAD_ADD:
        add_second_use(e, grad_idx);
        break;
    case OX_TASK_GRAD_PACK:
        need_use(e, OX_USE_SOURCE, tier, whole_sum(e, grad_idx));
        fill(e, OX_USE_TARGET, tier, ox_content(PACKED, grad_idx, 0));
        break;
    case OX_TASK_REDUCE:
        (on_device ? device_reduce : reduce)(e, unit_idx);
        break;
    case OX_TASK_NORM:
        norm(e);
        break;
    case OX_TASK_BEGIN:
        begin_transaction(e);
        break;
    case OX_TASK_UPDATE:
        (on_device ? device_adam : adam)(e, unit_idx);
        break;
    case OX_TASK_WRITTEN:
        written(e);
        break;
    case OX_TASK_COMMIT:
        commit(e);
        break;
    default:
        follow_move(e, unit_idx);
    }
}
