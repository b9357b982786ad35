/* Steps that overlap: what a step leaves to the next one, and how that ends if no step follows or the next one fails.
 *
 * With overlap a step ends when its norm is known. Its update is then pending: the next step, or an evaluation before
 * it, carries the update within its forward, unit by unit, and commits it. The update of some units may have run in
 * backward already, without clipping. When the norm asks for clipping after all, all units are updated again, from what
 * was replaced and from the gradients, which stay until then. A step that is not finite leaves nothing pending, and
 * what it changed in backward is taken back. Where weights went ahead of their state, the state is pending too: the
 * next step updates it before it updates the weights again.
 *
 * What a speculative update has replaced is on the drives or saved in memory, as the plan says. From the drives the
 * repeated update reads it itself; what is saved returns to where it lives when the step ends. */
#include "engine/step/pending/overlap.h"
#include "engine/step/link/link.h"
#include "engine/step/planes/routing.h"

#include "base/assert.h"
#include "offload/proof/proof.h"

#include <string.h>

static uint32_t unit_count(const struct ox_rank *rank) {
    return rank->plan->table.unit_count;
}

/* The facts that follow from what the step before has left. */
static uint32_t facts_of_pending(const struct ox_rank *rank) {
    const struct ox_pending *const pending = &rank->pending;
    const bool written =
        pending->exists && rank->store != NULL && ox_plan_transacts(&rank->plan->input, pending->stays);
    return (written ? OX_FACT_COMMIT_DUE : 0u) | (written && !pending->begun ? OX_FACT_BEGIN_DUE : 0u) |
           (pending->exists && pending->again ? 0u : OX_FACT_FROM_MEMORY) |
           (pending->exists ? OX_FACT_COUNTS_DUE : 0u);
}

void ox_overlap_begin_step(struct ox_rank *rank, bool own_work) {
    struct ox_step_state *const step = &rank->step;
    const bool train = own_work && step->plan->kind == OX_PLAN_TRAIN;
    OX_ASSERT(!step->input->stays || ox_plan_may_stay(&rank->plan->input));
    OX_ASSERT(ox_pending_is_valid(&rank->pending, rank->store != NULL));
    OX_ASSERT(ox_planes_state_is_valid(&rank->planes, &rank->pending));
    /* Tasks ask what was due when the step began, while its own updates change what is pending. */
    memcpy(rank->due.now, rank->due.pending, unit_count(rank));
    /* Copied too: the pending commit ends `pending` within this step, and tasks behind it still ask. */
    step->pending_stays = rank->pending.exists && rank->pending.stays;
    step->weights_step = rank->planes.step;
    const bool exact = step->input->step <= rank->config.low_rank.start_step;
    step->facts = (!train || rank->plan->input.ranks.low_rank == NULL ? 0u : exact ? OX_FACT_EXACT : OX_FACT_LOW_RANK) |
                  facts_of_pending(rank) | (own_work ? OX_FACT_OWN_WORK : 0u) |
                  (train && rank->store != NULL && ox_plan_transacts(&rank->plan->input, step->input->stays)
                       ? OX_FACT_COMMITS : 0u);
    /* Where the norm is seldom kept, an update before it is known is mostly repeated: then none is made. An update
     * that asks which rows were routed needs all of the step. */
    if (train && ox_rank_overlaps(rank) && rank->plan->input.placement.speculative_units > 0 &&
        (step->input->max_grad_norm == 0 || !rank->order.holds) && rank->routing == NULL) {
        step->facts |= OX_FACT_SPECULATES;
        /* The norm is not known yet: a speculative update takes it that nothing will be clipped. */
        struct ox_optim_settings settings = step->input->adam;
        settings.grad_scale = step->unscale;
        ox_optim_hyper_init(&settings, &step->speculative_hyper);
    }
    /* Last, as all facts are known: the plan was proven for cases, and this step has to be one of them. */
    OX_ASSERT(ox_proof_covers(step->plan, &rank->plan->input, step->facts, rank->due.now));
}

static bool speculates(const struct ox_rank *rank) {
    return (rank->step.facts & OX_FACT_SPECULATES) != 0;
}

/* Whether the step's own updates have a transaction of the store while it runs. */
static bool has_transaction(const struct ox_rank *rank) {
    return speculates(rank) && rank->store != NULL &&
           ox_plan_transacts(&rank->plan->input, rank->step.input->stays);
}

void ox_overlap_saves(struct ox_rank *rank, uint32_t unit_idx, uint32_t chunk_idx) {
    OX_ASSERT(rank->due.saved_chunks[unit_idx] == chunk_idx);
    ox_guard_save(rank, unit_idx, chunk_idx);
    rank->due.saved_chunks[unit_idx]++;
}

struct ox_update_args ox_overlap_update_args(const struct ox_rank *rank, const struct ox_task *task) {
    const struct ox_step_state *const step = &rank->step;
    if (!task->carried) { /* the step's own, within backward where steps overlap, so before its norm is known */
        return (struct ox_update_args){.hyper = ox_rank_overlaps(rank) ? &step->speculative_hyper : &step->hyper,
                                      .routed = ox_routing_of(rank, false),
                                      .stays = step->input->stays, .base_step = step->weights_step};
    }
    if (!rank->due.now[task->unit_idx]) { /* it was updated already; forward wants its planes all the same */
        return (struct ox_update_args){.base_step = step->weights_step};
    }
    return (struct ox_update_args){.hyper = &rank->pending.hyper, .routed = ox_routing_of(rank, true),
                                  .from_store = ox_rank_from_store(rank, step->facts, task->unit_idx),
                                  .stays = step->pending_stays, .base_step = rank->pending.base_step};
}

static enum ox_status nonfinite(struct ox_rank *rank, uint32_t unit_idx, uint64_t count) {
    ox_guard_forget(rank, unit_idx);
    return ox_fail(OX_E_CORRUPT, "unit %u: %llu parameters became infinite or NaN in the optimizer although the "
                   "gradient was finite; the step is not committed; lower the learning rate or resume earlier",
                   unit_idx, (unsigned long long)count);
}

enum ox_status ox_overlap_check_counts(struct ox_rank *rank) {
    const struct ox_plan *const plan = rank->step.plan;
    if (!rank->step.counts_come) {
        return OX_OK;
    }
    /* The device's updates report here, long after they ran: their lane is not waited for, so the numbers come with
     * the step's results. */
    const uint64_t *const counts = ox_tiers_resident(&rank->tiers, plan, plan->nonfinite_buf).ptr;
    for (uint32_t i = 0; i < unit_count(rank); i++) {
        const struct ox_unit_rules *const rules = ox_rank_rules(rank, i);
        if (rules->updated && rules->state_on_device && counts[i] > 0) { /* nobody clears those of other ranks' units */
            return nonfinite(rank, i, counts[i]); /* the update stays pending: finishing it for a save must fail too */
        }
    }
    return OX_OK;
}

enum ox_status ox_overlap_updated(struct ox_rank *rank, const struct ox_task *task, uint64_t nonfinite_count) {
    const bool speculative = ox_rank_overlaps(rank) && !task->carried;
    if (speculative) { /* harmless if the norm requires clipping or is not finite */
        rank->step.speculative_nonfinite_count += nonfinite_count;
        return OX_OK;
    }
    if (nonfinite_count > 0) {
        return nonfinite(rank, task->unit_idx, nonfinite_count);
    }
    if (task->carried) {
        rank->due.pending[task->unit_idx] = OX_DUE_NOTHING;
    }
    return OX_OK;
}

enum ox_status ox_overlap_begin_transaction(struct ox_rank *rank, const struct ox_task *task) {
    enum ox_status status =
        rank->leads ? ox_store_begin(rank->store, task->carried ? rank->pending.step : rank->step.input->step) : OX_OK;
    /* No rank may write before the one that leads has begun. */
    OX_THEN(status, ox_link_meet(rank, "the beginning of a transaction"));
    if (status == OX_OK && task->carried) {
        rank->pending.begun = true;
    }
    return status;
}

/* The rank that leads keeps the step when all have written, and the others go on when that is done. */
static enum ox_status keep(struct ox_rank *rank) {
    enum ox_status status = ox_link_meet(rank, "the writes of a step");
    if (status == OX_OK && rank->leads) {
        ox_store_keep(rank->store);
    }
    OX_THEN(status, ox_link_meet(rank, "a step that is kept"));
    return status;
}

/* The rank that leads commits when all have written, and the others go on when that is done. Where several processes
 * have a store each, all prepare before any of them commits. */
static enum ox_status commit(struct ox_rank *rank, const void *meta, uint32_t meta_bytes) {
    const bool votes = rank->config.team != NULL;
    enum ox_status status = ox_link_meet(rank, "the writes of a transaction");
    if (status == OX_OK && votes) { /* what can fail comes before the meeting, so that none commits alone */
        status = rank->leads ? ox_store_prepare(rank->store, meta, meta_bytes) : OX_OK;
        OX_THEN(status, ox_link_meet(rank, "a prepared transaction"));
    }
    if (status == OX_OK && rank->leads) {
        status = ox_store_commit(rank->store, votes ? NULL : meta, votes ? 0 : meta_bytes);
    }
    OX_THEN(status, ox_link_meet(rank, "a commit"));
    return status;
}

enum ox_status ox_overlap_commit(struct ox_rank *rank, const struct ox_task *task) {
    struct ox_pending *const pending = &rank->pending;
    const struct ox_step_input *const input = rank->step.input;
    const bool stays = task->carried ? rank->step.pending_stays : input->stays;
    const bool in_step = !task->carried && (rank->step.facts & OX_FACT_LOW_RANK) != 0;
    enum ox_status status = ox_rank_write_residuals(rank, in_step);
    ox_rank_count(rank, OX_LINK_NVME_WRITE, OX_TRAFFIC_STATE, ox_low_rank_stored_bytes(&rank->plan->input));
    OX_THEN(status, stays           ? keep(rank)
                    : task->carried ? commit(rank, pending->meta, pending->meta_bytes)
                                    : commit(rank, input->meta, input->meta_bytes));
    /* A kept step is in the store's memory of slots alone; a crash still goes back to the commit before. */
    rank->step.committed = status == OX_OK && !stays;
    /* An update that failed stays pending: the end of the step decides what becomes of it. */
    if (task->carried && status == OX_OK) {
        pending->exists = false;
    }
    return status;
}

/* ---- the end of a step ------------------------------------------------------------------------------- */

static bool has_planes_in_memory(const struct ox_rank *rank, uint32_t unit_idx) {
    const struct ox_homes *const homes = &rank->plan->table.shards[unit_idx].homes;
    return homes->weights != OX_TIER_NVME || homes->state != OX_TIER_NVME;
}

/* Puts what the step has saved back to where it lives. */
static enum ox_status return_saved(struct ox_rank *rank) {
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < unit_count(rank); i++) {
        const uint32_t count = rank->due.saved_chunks[i];
        OX_THEN(status, count > 0 ? ox_rank_return_saved(rank, i, count) : OX_OK);
    }
    if (status == OX_OK) {
        ox_rank_forget_saved(rank);
    }
    return status;
}

/* Reads the planes in memory back from the last commit. `stop` does not abort this: a stopped run is saved
 * from them. */
static enum ox_status restore(struct ox_rank *rank) {
    enum ox_status status = OX_OK;
    for (uint32_t unit_idx = 0; unit_idx < unit_count(rank) && status == OX_OK; unit_idx++) {
        /* What lives on drives alone is read by whoever needs it, from the generation that is committed. */
        status = has_planes_in_memory(rank, unit_idx) ? ox_rank_load_unit(rank, unit_idx, 0, NULL) : OX_OK;
    }
    OX_THEN(status, rank->residuals_lost ? ox_rank_read_residuals(rank) : OX_OK);
    rank->residuals_lost = rank->residuals_lost && status != OX_OK;
    rank->planes.must_restore = status != OX_OK;
    rank->planes.must_take_back = false;
    return status;
}

/* Ends the store's transaction, which all ranks share, once: by the rank that leads. */
static void abort_transaction(struct ox_rank *rank) {
    if (rank->leads) {
        ox_store_abort(rank->store);
    }
}

static void forget_pending(struct ox_rank *rank) {
    rank->pending.exists = rank->pending.failed = false;
    memset(rank->due.pending, 0, unit_count(rank));
}

/* Returns everything to the last commit. Planes in memory are read back by the next call that needs them, because a
 * drive may be failing now. If a step is lost whose result was already returned, all calls fail until the caller
 * accepts the loss (ox_engine_roll_back). */
static void fall_back(struct ox_rank *rank) {
    struct ox_store_info info;
    if (rank->leads) { /* first, so that what the store says next is the commit and not a step that it kept */
        ox_store_forget(rank->store);
    }
    ox_store_info(rank->store, &info);
    forget_pending(rank);
    ox_rank_forget_saved(rank);
    /* The step that planes have come to is compared before it is set back. */
    rank->residuals_lost |= rank->planes.step > info.step; /* else those before this step are still there */
    rank->planes.lost_step = rank->planes.step > info.step ? rank->planes.step : rank->planes.lost_step;
    rank->planes.step = info.step;
    rank->planes.must_restore |= info.committed;
}

/* Ends a step that failed in one of the two ways; returns the failure with its text, which the way may overwrite. */
static enum ox_status keep_error(struct ox_rank *rank, enum ox_status status, void (*way)(struct ox_rank *)) {
    char text[OX_ERROR_TEXT_BYTES];
    /* The first failure is the cause, and what follows from it would hide it. */
    memcpy(text, ox_error_text(), sizeof text);
    way(rank);
    return ox_fail(status, "%s", text);
}

/* Takes the speculative updates of a step back to the planes of the step before, which need not be committed. */
static enum ox_status take_back(struct ox_rank *rank) {
    /* Memory first: it is there without a drive. The other units are read as of the step before, kept or committed. */
    enum ox_status status = return_saved(rank);
    for (uint32_t i = 0; i < unit_count(rank) && status == OX_OK; i++) {
        const bool changed = ox_rank_rules(rank, i)->returns_to_drives && has_planes_in_memory(rank, i);
        status = changed ? ox_rank_load_unit(rank, i, rank->planes.step, NULL) : OX_OK;
    }
    rank->planes.must_take_back = status != OX_OK;
    return status;
}

/* Makes the step's update pending. */
static void leave_pending(struct ox_rank *rank) {
    const struct ox_step_state *const step = &rank->step;
    struct ox_pending *const pending = &rank->pending;
    const bool again = speculates(rank) && step->grad_scale < 1.0;
    *pending = (struct ox_pending){.exists = true, .begun = has_transaction(rank), .again = again,
                                   .stays = step->input->stays,
                                   .step = step->input->step, .base_step = rank->planes.step,
                                   .hyper = step->hyper, .meta_bytes = step->input->meta_bytes};
    if (pending->meta_bytes > 0) {
        memcpy(pending->meta, step->input->meta, pending->meta_bytes);
    }
    /* The next step decides anew which experts had no token; the pending update asks for those of its own step. */
    ox_routing_keep(rank);
    for (uint32_t i = 0; i < unit_count(rank); i++) {
        const struct ox_unit_rules *const rules = ox_rank_rules(rank, i);
        const bool all = again || !speculates(rank) || !rules->speculative;
        rank->due.pending[i] = !rules->updated     ? OX_DUE_NOTHING
                               : all               ? OX_DUE_ALL
                               : rules->goes_ahead ? OX_DUE_STATE : OX_DUE_NOTHING;
    }
    /* To whoever asks, planes are those of this step from now on; an update that is pending is finished before they are
     * read. What was saved is obsolete, because the speculative updates hold or will be repeated. */
    rank->planes.step = pending->step;
    ox_rank_forget_saved(rank);
}

/* Ends a step without an update: nothing of it stays. */
static enum ox_status undo_own(struct ox_rank *rank) {
    /* The store first: planes are then read back from one without a transaction. */
    if (has_transaction(rank)) {
        abort_transaction(rank);
    }
    return speculates(rank) ? take_back(rank) : OX_OK;
}

static enum ox_status end_decided(struct ox_rank *rank) {
    const struct ox_step_state *const step = &rank->step;
    OX_ASSERT(rank->store == NULL || !rank->pending.exists || rank->pending.stays);
    forget_pending(rank); /* a commit has done it; an update that is not committed is forgotten here */
    ox_order_note(&rank->order, !step->finite || step->grad_scale < 1.0);
    /* Infinite parameters count only where the norm asked for no clipping: else those updates are not used. */
    if (step->finite && step->grad_scale == 1.0 && step->speculative_nonfinite_count > 0) {
        const enum ox_status failed =
            ox_fail(OX_E_CORRUPT, "%llu parameters became infinite or NaN in the optimizer although the gradient was "
                    "finite; the step is not committed; lower the learning rate or resume earlier",
                    (unsigned long long)step->speculative_nonfinite_count);
        rank->planes.must_take_back = rank->store == NULL;
        return rank->store == NULL ? failed : keep_error(rank, failed, fall_back);
    }
    if (!step->finite) {
        return undo_own(rank);
    }
    /* Clipped: the update is repeated from what it replaced, which therefore returns before the update is pending. */
    const enum ox_status status = step->grad_scale < 1.0 ? return_saved(rank) : OX_OK;
    if (status != OX_OK) {
        rank->planes.must_take_back = rank->store == NULL;
        return rank->store == NULL ? status : keep_error(rank, status, fall_back);
    }
    leave_pending(rank);
    return OX_OK;
}

/* Marks a pending update that has failed with nothing to fall back to: calls fail with its cause again. */
static void note_failure(struct ox_rank *rank, enum ox_status status) {
    rank->pending.failed |= rank->store == NULL && status != OX_OK && status != OX_E_ABORTED;
}

/* Stops a step. Where it was stopped before its own updates, an update that is pending stays so, as far as it has come;
 * else its own updates are taken back before planes are used again. */
static void stop_own(struct ox_rank *rank) {
    const bool may_have_begun = (facts_of_pending(rank) & OX_FACT_COMMIT_DUE) == 0; /* after the pending commit */
    if (has_transaction(rank) && may_have_begun) {
        abort_transaction(rank);
        rank->planes.must_take_back = true;
    }
    for (uint32_t i = 0; i < unit_count(rank); i++) { /* without a transaction: saved chunks say that one had begun */
        rank->planes.must_take_back |= rank->due.saved_chunks[i] > 0;
    }
}

static enum ox_status end_step(struct ox_rank *rank, enum ox_status status) {
    if (!ox_rank_overlaps(rank)) {
        /* Without overlap the step has committed by its own task, and nothing is pending. */
        if (status == OX_OK) {
            rank->planes.step = rank->step.finite ? rank->step.input->step : rank->planes.step;
        } else if (rank->store != NULL && status != OX_E_ABORTED) { /* ABORTED: the optimizer had not begun */
            fall_back(rank);
        }
        return status;
    }
    if (status == OX_OK) {
        return end_decided(rank);
    }
    note_failure(rank, status);
    return keep_error(rank, status, rank->store != NULL && status != OX_E_ABORTED ? fall_back : stop_own);
}

enum ox_status ox_overlap_end_step(struct ox_rank *rank, enum ox_status status) {
    const enum ox_status ended = end_step(rank, status);
    if (ended == OX_OK && rank->step.finite && (rank->step.facts & OX_FACT_LOW_RANK) != 0) {
        rank->low_rank_half = !rank->low_rank_half; /* else the next step begins with what this one began with */
    }
    return ended;
}

enum ox_status ox_overlap_end_finish(struct ox_rank *rank, enum ox_status status) {
    if (status == OX_OK) {
        forget_pending(rank);
        return OX_OK;
    }
    note_failure(rank, status);
    return rank->store != NULL && status != OX_E_ABORTED ? keep_error(rank, status, fall_back)
                                                         : status; /* ABORTED: the update will go on from here */
}

enum ox_status ox_overlap_make_ready(struct ox_rank *rank) {
    if (rank->planes.lost_step > 0) {
        return ox_fail(OX_E_IO, "step %llu was lost when a later one failed, and nothing may follow it; go on from the "
                       "last commit", (unsigned long long)rank->planes.lost_step);
    }
    /* The last commit has all planes, so restoring takes back too. */
    return rank->planes.must_restore ? restore(rank) : rank->planes.must_take_back ? take_back(rank) : OX_OK;
}

void ox_rank_lose_kept(struct ox_rank *rank) {
    if (rank->store != NULL) {
        fall_back(rank);
    }
}

enum ox_status ox_rank_roll_back(struct ox_rank *rank) {
    fall_back(rank); /* even if memory happens to hold the last commit */
    rank->planes.lost_step = 0;
    return ox_overlap_make_ready(rank);
}
