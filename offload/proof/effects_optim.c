/* What the tasks of norm and optimizer need in their buffers and leave in them. */
#include "offload/proof/effects.h"

struct ox_content ox_effects_norms(const struct effects *e) {
    uint32_t counts[2] = {0, 0};
    for (uint32_t i = 0; i < e->plan->unit_count; i++) {
        counts[0] += e->reduced[i] > 0;
        counts[1] += e->reduced[i] > 1;
    }
    return ox_content(NORMS, counts[1], counts[0]);
}

/* Adds the square sums of a unit to those of the others. */
static void add_norm(struct effects *e, uint32_t unit_idx, enum ox_use_role role) {
    if (e->reduced[unit_idx]++ != 0) {
        ox_effects_reject(e, "counts a gradient twice in the norm");
    }
    ox_effects_fill(e, role, OX_TIER_HOST, ox_effects_norms(e));
    ox_effects_need_buffer(e, role, e->plan->norm_buf);
}

void ox_effects_reduce(struct effects *e, uint32_t unit_idx) {
    if (ox_proof_counts_on_device(e->in, unit_idx)) {
        ox_effects_reject(e, "makes square sums on the host that the device is to make");
    }
    const uint32_t grad_idx = ox_effects_unit(e, unit_idx)->grad_idx;
    const struct ox_content from_to[2] = {ox_effects_finished_sum(e, grad_idx), ox_content(REDUCED, unit_idx, NEW)};
    ox_effects_change(e, OX_USE_GRAD, OX_TIER_HOST, from_to);
    ox_effects_need_addends(e, OX_TIER_HOST, grad_idx);
    add_norm(e, unit_idx, OX_USE_NORM);
}

/* The task only reads the gradient, which from then on counts as reduced. */
void ox_effects_device_reduce(struct effects *e, uint32_t unit_idx) {
    if (!ox_proof_counts_on_device(e->in, unit_idx)) {
        ox_effects_reject(e, "makes square sums on the device that the host is to make");
    }
    const uint32_t grad_idx = ox_effects_unit(e, unit_idx)->grad_idx;
    ox_effects_need(e, OX_USE_GRAD, OX_TIER_DEVICE, ox_effects_finished_sum(e, grad_idx));
    ox_effects_fill(e, OX_USE_TARGET, OX_TIER_DEVICE, ox_content(PARTIALS, unit_idx, 0));
    const struct ox_use *const grad = ox_effects_use(e, OX_USE_GRAD);
    if (e->wrong == NULL && grad != NULL) {
        ox_effects_hold(e, grad->buf_idx, ox_content(REDUCED, unit_idx, NEW));
    }
}

void ox_effects_norm_save(struct effects *e, uint32_t unit_idx) {
    ox_effects_need(e, OX_USE_SOURCE, OX_TIER_DEVICE, ox_content(PARTIALS, unit_idx, 0));
    add_norm(e, unit_idx, OX_USE_TARGET);
    ox_effects_count(e, OX_LINK_D2H, OX_TRAFFIC_OTHER, ox_proof_partials_bytes(e->in, unit_idx));
}

/* The square sums of a unit come together from its holders, each of which has counted what it has of the gradient. */
void ox_effects_norm_gather(struct effects *e, uint32_t unit_idx) {
    const uint64_t own = ox_proof_partials_bytes(e->in, unit_idx);
    const struct ox_content before = ox_effects_norms(e);
    const uint8_t counted = ox_proof_holds(e->in, unit_idx);
    if (!ox_proof_knows_norm(e->in, unit_idx) || e->reduced[unit_idx] != counted) {
        ox_effects_reject(e, "gathers square sums twice, or before the rank has its own");
        return;
    }
    e->reduced[unit_idx] = 2;
    const struct ox_content from_to[2] = {before, ox_effects_norms(e)};
    ox_effects_change(e, OX_USE_TARGET, OX_TIER_HOST, from_to);
    ox_effects_need_buffer(e, OX_USE_TARGET, e->plan->norm_buf);
    ox_effects_count(e, OX_LINK_PEER_IN, OX_TRAFFIC_OTHER, ox_proof_whole_partials_bytes(e->in, unit_idx) - own);
    ox_effects_count(e, OX_LINK_PEER_OUT, OX_TRAFFIC_OTHER, own * (ox_proof_holders(e->in) - 1));
}

/* The square sums of the units that the rank updates, with what all that hold them have counted. */
static struct ox_content own_norms(const struct effects *e) {
    uint32_t known = 0;
    for (uint32_t i = 0; i < e->in->model.unit_count; i++) {
        known += ox_proof_knows_norm(e->in, i);
    }
    return ox_content(NORMS, known, known > 0 ? known : ox_proof_update_count(e->in));
}

/* What the norm needs of square sums: those of the units of the rank's coordinate, or of all. */
static struct ox_content coordinate_norms(const struct effects *e) {
    return ox_proof_tensors(e->in) > 1 ? ox_content(TOTALS, OX_NONE, 1) : own_norms(e);
}

/* Each coordinate gives the totals of the units that it holds; before that, each rank of several that divide groups of
 * features those of its groups. */
void ox_effects_totals_gather(struct effects *e) {
    const bool of_groups = e->task->axis == OX_AXIS_TENSOR;
    const uint32_t members = of_groups ? ox_proof_tensors(e->in) : ox_proof_pipe(e->in);
    const struct ox_content from_to[2] = {of_groups ? own_norms(e) : coordinate_norms(e),
                                          ox_content(TOTALS, OX_NONE, of_groups)};
    uint64_t own = 0, all = 0;
    for (uint32_t i = 0; i < e->in->model.unit_count; i++) {
        const bool here = ox_proof_owner(e->in, i) == ox_proof_pipe_at(e->in);
        const bool counts = ox_proof_trained(e->in, i) && (!of_groups || (here && ox_proof_is_of_group(e->in, i)));
        all += counts ? 8 : 0;
        own += counts && (of_groups ? ox_proof_has_group(e->in, e->in->ranks.idx, i) : here) ? 8 : 0;
    }
    if (members == 1) {
        ox_effects_reject(e, "gathers totals that no other rank has");
    }
    ox_effects_change(e, OX_USE_TARGET, OX_TIER_HOST, from_to);
    ox_effects_need_buffer(e, OX_USE_TARGET, e->plan->norm_buf);
    ox_effects_count(e, OX_LINK_PEER_IN, OX_TRAFFIC_OTHER, all - own);
    ox_effects_count(e, OX_LINK_PEER_OUT, OX_TRAFFIC_OTHER, own * (members - 1));
}

/* A step that is not finite ends with this task. */
void ox_effects_norm(struct effects *e) {
    const bool in_pipe = ox_proof_pipe(e->in) > 1;
    const struct ox_content from_to[2] = {in_pipe ? ox_content(TOTALS, OX_NONE, 0) : coordinate_norms(e),
                                          ox_content(FACTOR, OX_NONE, 0)};
    ox_effects_change(e, OX_USE_NORM, OX_TIER_HOST, from_to);
    ox_effects_need_buffer(e, OX_USE_NORM, e->plan->norm_buf);
    if (!ox_proof_output_leaves(e->in)) {
        ox_effects_need(e, OX_USE_LOSS, OX_TIER_HOST, ox_content_losses(e));
        ox_effects_need_buffer(e, OX_USE_LOSS, e->plan->loss_host_buf);
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

/* Whether what a speculative update of the unit replaces is on the drives. */
static bool may_return(const struct effects *e, uint32_t unit_idx) {
    return ox_proof_is_speculative(e->in, unit_idx) && !ox_proof_saves(e->in, unit_idx);
}

/* Whether the update of a unit repeats a speculative one and takes all planes from the drives, which have them as they
 * were before, whatever memory holds. */
static bool is_from_store(const struct effects *e) {
    return e->task->carried && e->at.clipped && may_return(e, e->task->unit_idx);
}

static void change_version(struct effects *e, enum ox_use_role role, enum ox_tier tier, enum ox_holding what) {
    const uint32_t unit_idx = e->task->unit_idx, from = e->task->carried ? OLD : CURRENT;
    const struct ox_content from_to[2] = {ox_content(what, unit_idx, from), ox_content(what, unit_idx, from + 1)};
    if (is_from_store(e)) {
        ox_effects_replace(e, role, tier, from_to[1]);
    } else {
        ox_effects_change(e, role, tier, from_to);
    }
}

/* Whether the update has a transaction, and whether that is committed. */
static bool is_written(const struct effects *e) {
    return e->task->carried ? e->writes_pending : e->writes_own;
}
static bool is_committed(const struct effects *e) {
    return is_written(e) && !(e->task->carried ? e->at.stayed : e->at.stays);
}

/* Counts what an update moves between drives and slots: planes are read if the drives are their home, and written if
 * they are, if forward reads them there, if the next update may have to return to them, or if this one is committed. A
 * speculative update takes the gradient from the host buffer that it has just reached. */
static void count_adam(struct effects *e, uint32_t unit_idx) {
    const struct ox_homes *const homes = ox_proof_homes(e->in, unit_idx);
    const bool speculative = e->overlap && !e->task->carried, all = is_from_store(e);
    const uint64_t hi = ox_proof_own_elems(e->in, unit_idx) * sizeof(uint16_t);
    const uint64_t state = ox_proof_stored_state_bytes(e->in, unit_idx);
    const bool lo_is_read = e->in->model.precision->lo_travels && homes->weights == OX_TIER_NVME;
    const bool returns = e->overlap && may_return(e, unit_idx);
    ox_effects_count(e, OX_LINK_NVME_READ, OX_TRAFFIC_GRADS,
                homes->grad == OX_TIER_NVME && !speculative ? ox_proof_reduced_bytes(e->in, unit_idx) : 0);
    if (is_written(e)) {
        ox_effects_count(e, OX_LINK_NVME_READ, OX_TRAFFIC_WEIGHTS, homes->weights == OX_TIER_NVME || all ? hi : 0);
        ox_effects_count(e, OX_LINK_NVME_READ, OX_TRAFFIC_STATE, homes->state == OX_TIER_NVME || all ? state : 0);
    }
    if (is_written(e) && ox_proof_stores(e->in, unit_idx)) {
        ox_effects_count(e, OX_LINK_NVME_WRITE, OX_TRAFFIC_WEIGHTS,
                         homes->weights == OX_TIER_NVME || returns || is_committed(e) ? hi : 0);
        ox_effects_count(e, OX_LINK_NVME_WRITE, OX_TRAFFIC_STATE,
                         homes->state == OX_TIER_NVME || lo_is_read || returns || is_committed(e) ? state : 0);
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
    ox_effects_fill(e, OX_USE_TARGET, OX_TIER_HOST, ox_content(PLANES, unit_idx, CURRENT));
    ox_effects_count(e, OX_LINK_NVME_READ, OX_TRAFFIC_WEIGHTS, ox_proof_planes_bytes(e->in, unit_idx));
    e->found_count = e->task->use_count;
}

/* Checks that an update before the norm is known can be rolled back. */
static void check_speculative(struct effects *e, uint32_t unit_idx) {
    if (!ox_proof_is_speculative(e->in, unit_idx)) {
        ox_effects_reject(e, "updates a unit before the norm is known that should wait for it");
    }
    if (ox_proof_saves(e->in, unit_idx)) {
        ox_effects_fill(e, OX_USE_REPLACED, OX_TIER_HOST, ox_content(REPLACED, unit_idx, CURRENT));
    }
    const uint32_t kept = e->at.stayed || e->at.stays; /* slots of a step that is not the last commit */
    if (may_return(e, unit_idx) && (e->in->budget.nvme_bytes == 0 || ox_proof_generations(e->in) < 2 + kept)) {
        ox_effects_reject(e, "replaces before the norm is known what a repeated update would have to read");
    }
    if (e->in->budget.nvme_bytes > 0 &&
        (e->plan->stream_buf == OX_NONE || !e->plan->bufs[e->plan->stream_buf].resident)) {
        ox_effects_reject(e, "leaves writes in flight from memory that is reused before the commit");
    }
}

/* The state of a unit follows the weights that the step before made ahead of it: from hi as that step saved it, which
 * becomes new too. The weights' home has what it makes already. */
static void follow_weights(struct effects *e, uint32_t unit_idx) {
    const struct ox_content saved[2] = {ox_content(REPLACED, unit_idx, OLD), ox_content(REPLACED, unit_idx, CURRENT)};
    next_version(e, unit_idx, OLD);
    if (!ox_proof_goes_ahead(e->in, unit_idx) || !e->task->carried) {
        ox_effects_reject(e, "updates the state of a unit whose weights did not go ahead");
    }
    ox_effects_need(e, OX_USE_GRAD, ox_proof_homes(e->in, unit_idx)->grad, ox_content(REDUCED, unit_idx, CURRENT));
    change_version(e, OX_USE_STATE, OX_TIER_HOST, STATE);
    ox_effects_change(e, OX_USE_REPLACED, OX_TIER_HOST, saved);
}

/* The optimizer turns one version of a unit into the next. Without overlap it does so after the norm. With overlap the
 * carried update makes the version that this step computes with, and a speculative one makes the next version, from a
 * gradient that has just been reduced. */
void ox_effects_adam(struct effects *e, uint32_t unit_idx) {
    const struct ox_homes *const homes = ox_proof_homes(e->in, unit_idx);
    const uint32_t from = e->task->carried ? OLD : CURRENT, to = from + 1;
    const bool speculative = e->overlap && !e->task->carried;
    if ((e->task->when & OX_FACT_STATE_DUE) != 0) {
        follow_weights(e, unit_idx);
        return;
    }
    if (e->task->carried && e->due[unit_idx] != OX_DUE_ALL) {
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
        ox_effects_need(e, OX_USE_NORM, OX_TIER_HOST, ox_content(FACTOR, OX_NONE, 0));
    }
    ox_effects_need(e, OX_USE_GRAD, speculative ? OX_TIER_HOST : homes->grad, ox_content(REDUCED, unit_idx, to));
    if (speculative && ox_proof_goes_ahead(e->in, unit_idx)) {
        ox_effects_need(e, OX_USE_STATE, OX_TIER_HOST, ox_content(STATE, unit_idx, CURRENT));
    } else if (homes->state == OX_TIER_HOST) {
        change_version(e, OX_USE_STATE, OX_TIER_HOST, STATE);
    }
    if (homes->weights != OX_TIER_NVME) {
        change_version(e, OX_USE_WEIGHTS, OX_TIER_HOST, PLANES);
    } else if (e->task->carried) {
        ox_effects_fill(e, OX_USE_TARGET, OX_TIER_HOST, ox_content(PLANES, unit_idx, to));
    }
    if (e->in->budget.nvme_bytes > 0) {
        ox_effects_fill(e, OX_USE_STREAM, OX_TIER_HOST, ox_content(SLOTS, OX_NONE, 0));
        ox_effects_need_buffer(e, OX_USE_STREAM, e->plan->stream_buf);
        if (is_written(e) != e->begun) {
            ox_effects_reject(e, "writes to the store outside of a transaction, or leaves it out of one");
        }
    }
    count_adam(e, unit_idx);
}

/* An update of a unit that lives on the device. It may not be speculative: there is only one copy of the state, so it
 * could not be rolled back. */
void ox_effects_device_adam(struct effects *e, uint32_t unit_idx) {
    const uint32_t from = e->task->carried ? OLD : CURRENT, to = from + 1;
    next_version(e, unit_idx, from);
    if (!ox_proof_on_device(e->in, unit_idx) || e->task->carried != e->overlap) {
        ox_effects_reject(e, "updates on the device what lives elsewhere, or before the norm is known");
    }
    if (!e->overlap) {
        ox_effects_need(e, OX_USE_NORM, OX_TIER_HOST, ox_content(FACTOR, OX_NONE, 0));
    }
    ox_effects_need(e, OX_USE_GRAD, OX_TIER_DEVICE, ox_content(REDUCED, unit_idx, to));
    change_version(e, OX_USE_STATE, OX_TIER_DEVICE, STATE);
    change_version(e, OX_USE_WEIGHTS, OX_TIER_DEVICE, PLANES);
    ox_effects_fill(e, OX_USE_COUNTS, OX_TIER_DEVICE, ox_content(COUNTS, OX_NONE, ++e->device_count));
    ox_effects_need_buffer(e, OX_USE_COUNTS, e->plan->counts_buf);
}

void ox_effects_nonfinite(struct effects *e) {
    const struct ox_content all = ox_content(COUNTS, OX_NONE, ox_effects_device_units(e));
    if (e->task->carried != e->overlap) {
        ox_effects_reject(e, "copies the counts of another step's updates");
    }
    ox_effects_need(e, OX_USE_SOURCE, OX_TIER_DEVICE, all);
    ox_effects_fill(e, OX_USE_TARGET, OX_TIER_HOST, all);
    ox_effects_need_buffer(e, OX_USE_TARGET, e->plan->nonfinite_buf);
    ox_effects_count(e, OX_LINK_D2H, OX_TRAFFIC_OTHER, 8 * (uint64_t)e->plan->unit_count);
}

/* The transaction of the step before must end before this step's begins. */
void ox_effects_begin_transaction(struct effects *e) {
    const uint32_t before = e->overlap && !e->task->carried && e->writes_pending;
    const bool in_order = e->commit_count == before;
    if (e->begun || e->in->budget.nvme_bytes == 0 || !in_order) {
        ox_effects_reject(e, "begins a transaction while another one is under way");
    }
    e->begun = true;
    ox_effects_fill(e, OX_USE_STREAM, OX_TIER_HOST, ox_content(SLOTS, OX_NONE, 0));
    ox_effects_need_buffer(e, OX_USE_STREAM, e->plan->stream_buf);
    if (!e->overlap) {
        ox_effects_need(e, OX_USE_NORM, OX_TIER_HOST, ox_content(FACTOR, OX_NONE, 0));
    }
}

/* Checks that all units are updated and that the transaction is open. */
static void end_transaction(struct effects *e) {
    const uint32_t version = e->task->carried ? CURRENT : NEW;
    if (!e->begun) {
        ox_effects_reject(e, "ends a transaction that has not begun");
    }
    for (uint32_t i = 0; i < e->plan->unit_count; i++) {
        if (ox_proof_updates(e->in, i) && e->updated[i] != version) {
            ox_effects_reject(e, "ends a transaction before all units are updated");
        }
    }
    ox_effects_fill(e, OX_USE_STREAM, OX_TIER_HOST, ox_content(SLOTS, OX_NONE, 0));
    ox_effects_need_buffer(e, OX_USE_STREAM, e->plan->stream_buf);
}

void ox_effects_written(struct effects *e) {
    if (!e->task->carried || e->written_count++ != 0) {
        ox_effects_reject(e, "waits for writes that nobody reads");
    }
    end_transaction(e);
    ox_effects_fill(e, OX_USE_WRITTEN, OX_TIER_NVME, ox_content(WRITTEN, OX_NONE, 0));
    ox_effects_need_buffer(e, OX_USE_WRITTEN, e->plan->written_buf);
}

void ox_effects_commit(struct effects *e) {
    e->commit_count++;
    for (uint32_t i = 0; i < e->in->model.grad_count; i++) { /* this step's residuals, or those of the step before */
        ox_effects_count(e, OX_LINK_NVME_WRITE, OX_TRAFFIC_STATE, ox_proof_low_rank(e->in, i).kept / 2);
    }
    if (!e->task->carried && e->task != &e->plan->tasks[e->plan->task_count - 1]) {
        ox_effects_reject(e, "commits before the step has ended");
    }
    end_transaction(e);
    e->begun = false;
}
