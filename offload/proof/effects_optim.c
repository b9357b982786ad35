/* What the norm and the optimizer need and leave, for the proof of meaning. */
#include "offload/proof/effects.h"

/* The sums of a unit come to those of the others. */
static void adds_norm(struct meaning *m, uint32_t unit_idx, enum ox_role_of_use role) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < m->plan->unit_count; i++) {
        count += m->reduced[i];
    }
    if (m->reduced[unit_idx]++ != 0) {
        object(m, "counts a gradient twice in the norm");
    }
    makes(m, role, OX_TIER_HOST, of(NORMS, OX_NONE, count + 1));
    names(m, role, m->plan->norm_buf);
}

void ox_meaning_reduce(struct meaning *m, uint32_t unit_idx) {
    turns(m, OX_USE_GRAD, OX_TIER_HOST,
          (const struct content[]){finished_sum(m, unit_idx), of(REDUCED, unit_idx, NEW)});
    if (unit_idx == 0 && m->tied) {
        wants(m, OX_USE_GRAD_HEAD, OX_TIER_HOST, of(SUM, m->plan->unit_count, m->plan->micro_batches));
    }
    adds_norm(m, unit_idx, OX_USE_NORM);
}

/* It only reads the gradient, which is then as the optimizer takes it. */
void ox_meaning_device_reduce(struct meaning *m, uint32_t unit_idx) {
    if (!is_on_device(m, unit_idx)) {
        object(m, "leaves a gradient on the device whose optimizer is elsewhere");
    }
    wants(m, OX_USE_GRAD, OX_TIER_DEVICE, finished_sum(m, unit_idx));
    makes(m, OX_USE_TARGET, OX_TIER_DEVICE, of(PARTIALS, unit_idx, 0));
    const int at = ox_task_find_use(m->task, OX_USE_GRAD);
    if (m->wrong == NULL && at >= 0) {
        put(m, m->task->uses[at].buf_idx, of(REDUCED, unit_idx, NEW));
    }
}

void ox_meaning_norm_save(struct meaning *m, uint32_t unit_idx) {
    wants(m, OX_USE_SOURCE, OX_TIER_DEVICE, of(PARTIALS, unit_idx, 0));
    adds_norm(m, unit_idx, OX_USE_TARGET);
}

void ox_meaning_norm(struct meaning *m) {
    turns(m, OX_USE_NORM, OX_TIER_HOST,
          (const struct content[]){of(NORMS, OX_NONE, m->plan->unit_count), of(FACTOR, OX_NONE, 0)});
    names(m, OX_USE_NORM, m->plan->norm_buf);
    wants(m, OX_USE_LOSS, OX_TIER_HOST, of(LOSSES, OX_NONE, m->plan->micro_batches));
    names(m, OX_USE_LOSS, m->plan->loss_host_buf);
}

static void takes_turn(struct meaning *m, uint32_t unit_idx, uint32_t from) {
    if (m->updated[unit_idx]++ != from) {
        object(m, "updates a unit twice, or not in the order of steps");
    }
}

/* The optimizer turns a version into the next: after the norm, or where steps overlap that of the step before to what
 * this one computes with, and of the last units also that to the next, from a gradient that has just been reduced. */
void ox_meaning_adam(struct meaning *m, uint32_t unit_idx) {
    const struct ox_homes *const homes = homes_of(m, unit_idx);
    const uint32_t from = m->task->carried ? OLD : CURRENT, to = from + 1;
    const bool early = m->overlap && !m->task->carried;
    takes_turn(m, unit_idx, from);
    if (is_on_device(m, unit_idx)) {
        object(m, "updates on the host what lives on the device");
    }
    if (early && unit_idx + m->in->placement.speculative_units < m->plan->unit_count) {
        object(m, "updates a unit before the norm is known that is to wait for it");
    }
    if (early && (m->in->budget.nvme_bytes == 0 || ox_plan_generations(&m->in->budget) < 2)) {
        object(m, "replaces before the norm is known what the step may have to begin with again");
    }
    if (early && (m->plan->stream_buf == OX_NONE || !m->plan->bufs[m->plan->stream_buf].resident)) {
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
    } else if (m->task->carried) {
        makes(m, OX_USE_TARGET, OX_TIER_HOST, of(PLANES, unit_idx, to));
    }
    if (m->in->budget.nvme_bytes > 0) {
        makes(m, OX_USE_STREAM, OX_TIER_HOST, of(STAGE, OX_NONE, 0));
        names(m, OX_USE_STREAM, m->plan->stream_buf);
        if (!m->begun) {
            object(m, "writes to the store outside of a transaction");
        }
    }
}

/* The same where the unit lives: what would replace it too early could not be taken back. */
void ox_meaning_device_adam(struct meaning *m, uint32_t unit_idx) {
    const uint32_t from = m->task->carried ? OLD : CURRENT, to = from + 1;
    takes_turn(m, unit_idx, from);
    if (!is_on_device(m, unit_idx) || m->task->carried != m->overlap) {
        object(m, "updates on the device what lives elsewhere, or before the norm is known");
    }
    if (!m->overlap) {
        wants(m, OX_USE_NORM, OX_TIER_HOST, of(FACTOR, OX_NONE, 0));
    }
    wants(m, OX_USE_GRAD, OX_TIER_DEVICE, of(REDUCED, unit_idx, to));
    turns(m, OX_USE_STATE, OX_TIER_DEVICE,
          (const struct content[]){of(STATE, unit_idx, from), of(STATE, unit_idx, to)});
    turns(m, OX_USE_WEIGHTS, OX_TIER_DEVICE,
          (const struct content[]){of(PLANES, unit_idx, from), of(PLANES, unit_idx, to)});
    makes(m, OX_USE_COUNTS, OX_TIER_DEVICE, of(COUNTS, OX_NONE, ++m->device_count));
    names(m, OX_USE_COUNTS, m->plan->counts_buf);
}

uint32_t ox_meaning_device_units(const struct meaning *m) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < m->plan->unit_count; i++) {
        count += is_on_device(m, i);
    }
    return count;
}

void ox_meaning_updated(struct meaning *m) {
    const struct content all = of(COUNTS, OX_NONE, ox_meaning_device_units(m));
    if (m->task->carried != m->overlap) {
        object(m, "is of another step than the updates that it tells of");
    }
    wants(m, OX_USE_SOURCE, OX_TIER_DEVICE, all);
    makes(m, OX_USE_TARGET, OX_TIER_HOST, all);
    names(m, OX_USE_TARGET, m->plan->nonfinite_buf);
}

/* That of the step before ends before this one's begins. */
void ox_meaning_begin(struct meaning *m) {
    const bool in_order = m->task->carried ? m->commit_count == 0 : !m->overlap || m->commit_count == 1;
    if (m->begun || m->in->budget.nvme_bytes == 0 || !in_order) {
        object(m, "begins a transaction while another one is under way");
    }
    m->begun = true;
    makes(m, OX_USE_STREAM, OX_TIER_HOST, of(STAGE, OX_NONE, 0));
    names(m, OX_USE_STREAM, m->plan->stream_buf);
    if (!m->overlap) {
        wants(m, OX_USE_NORM, OX_TIER_HOST, of(FACTOR, OX_NONE, 0));
    }
}

/* Behind the updates of all units, and within the transaction. */
static void ends_transaction(struct meaning *m) {
    const uint32_t version = m->task->carried ? CURRENT : NEW;
    if (!m->begun) {
        object(m, "ends a transaction that has not begun");
    }
    for (uint32_t i = 0; i < m->plan->unit_count; i++) {
        if (m->updated[i] != version) {
            object(m, "ends a transaction before all units are updated");
        }
    }
    makes(m, OX_USE_STREAM, OX_TIER_HOST, of(STAGE, OX_NONE, 0));
    names(m, OX_USE_STREAM, m->plan->stream_buf);
}

void ox_meaning_written(struct meaning *m) {
    if (!m->task->carried || m->written_count++ != 0) {
        object(m, "waits for writes that nobody reads");
    }
    ends_transaction(m);
    makes(m, OX_USE_WRITTEN, OX_TIER_NVME, of(WRITTEN, OX_NONE, 0));
    names(m, OX_USE_WRITTEN, m->plan->written_buf);
}

void ox_meaning_commit(struct meaning *m) {
    m->commit_count++;
    if (!m->task->carried && m->task != &m->plan->tasks[m->plan->task_count - 1]) {
        object(m, "commits before the step has ended");
    }
    ends_transaction(m);
    m->begun = false;
}
