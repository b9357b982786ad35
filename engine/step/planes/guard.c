/* Guards planes that live in host memory: an update sums the bits of what it writes, and the next one those of what it
 * reads, so memory that changed in between is noticed before anything made of it is committed. Chunks that are read
 * between steps are compared too.
 *
 * The sums cover the elements that the optimizer updates, not the gaps between roles. They always tell what memory
 * holds: a failed step that changed memory leaves planes that are read back from the last commit, and put again. */
#include "engine/step/planes/planes.h"

#include "base/assert.h"
#include "base/hash/hash.h"

#include <inttypes.h>
#include <stdlib.h>

/* The most buffers that a plan has. */
static uint32_t buf_count(const struct ox_engine_plan *plan) {
    const struct ox_plan *const plans[] = {plan->train, plan->eval, plan->eval_after_step};
    uint32_t most = 0;
    for (unsigned i = 0; i < sizeof plans / sizeof *plans; i++) {
        most = plans[i] != NULL && plans[i]->buf_count > most ? plans[i]->buf_count : most;
    }
    return most;
}

enum ox_status ox_guard_open(struct ox_rank *rank) {
    if (!rank->config.verify_memory || rank->config.eval_only) {
        return OX_OK;
    }
    const bool comes = ox_plan_holders(&rank->plan->input) > 1 || ox_plan_pipe(&rank->plan->input) > 1; /* or on loan */
    const bool gathers = comes && ox_engine_on_cpu(&rank->config);
    rank->sums = calloc(rank->plan->table.chunk_count, sizeof *rank->sums);
    rank->gathered = gathers ? calloc(buf_count(rank->plan), sizeof *rank->gathered) : NULL;
    return rank->sums != NULL && (!gathers || rank->gathered != NULL)
               ? OX_OK
               : ox_fail(OX_E_NOMEM, "engine: no memory for the sums of %" PRIu32 " chunks",
                         rank->plan->table.chunk_count);
}

bool ox_guard_covers(const struct ox_rank *rank, uint32_t unit_idx) {
    if (rank->sums == NULL || !rank->plan->input.model.units[unit_idx].trained ||
        ox_rank_rules(rank, unit_idx)->state_on_device) {
        return false;
    }
    const struct ox_resident at = ox_rank_resident(rank, unit_idx);
    return at.hi != NULL || at.state != NULL;
}

static struct ox_chunk_sums *sums_of(struct ox_rank *rank, uint32_t unit_idx, uint32_t chunk_idx) {
    const struct ox_shard *const shard = &rank->plan->table.shards[unit_idx];
    OX_ASSERT(chunk_idx < shard->chunk_count && shard->chunk_first + chunk_idx < rank->plan->table.chunk_count);
    return &rank->sums[shard->chunk_first + chunk_idx];
}

/* Compares with the sums of a chunk that `step` has left in memory; NULL: they are not known. */
static enum ox_status compare_with(const struct ox_plane_sums *planes, struct ox_rank *rank, uint32_t unit_idx,
                                   uint32_t chunk_idx, uint64_t step, const struct ox_plane_sums *found) {
    if (planes == NULL) {
        return OX_OK;
    }
    const char *const changed = found->hi != planes->hi   ? "upper halves of the weights"
                                : found->lo != planes->lo ? "lower halves of the weights"
                                : found->m != planes->m   ? "first moments"
                                : found->v != planes->v   ? "second moments"
                                : found->average != planes->average ? "averages of the weights"
                                                          : NULL;
    if (changed == NULL) {
        return OX_OK;
    }
    return ox_fail(OX_E_MEMORY, "memory has changed by itself: rank %u, unit %u, chunk %u: the %s are no longer those "
                   "that step %" PRIu64 " left; they are not used or saved; check this machine's memory (its ECC "
                   "counters, memtest86+)", rank->idx, unit_idx, chunk_idx, changed, step);
}

static enum ox_status compare(struct ox_rank *rank, uint32_t unit_idx, uint32_t chunk_idx, uint64_t step,
                              const struct ox_plane_sums *found) {
    const struct ox_chunk_sums *const kept = sums_of(rank, unit_idx, chunk_idx);
    return compare_with(kept->known ? &kept->planes : NULL, rank, unit_idx, chunk_idx, step, found);
}

/* Sums a chunk by the spans in which it is updated. */
static struct ox_plane_sums sums_of_view(const struct ox_rank *rank, uint32_t unit_idx,
                                         const struct ox_chunk_view *view) {
    const uint64_t first = ox_slice_first(rank, unit_idx) + view->first;
    const enum ox_moments moments = view->format.moments;
    struct ox_plane_sums sums = {0};
    struct ox_role_walk walk = {.last = NULL};
    while (ox_next_role(rank, unit_idx, (struct ox_range){first, first + view->count}, &walk)) {
        const uint64_t begin = walk.range.begin - first;
        const struct ox_state_planes state = ox_state_planes_skip(moments, view->state, begin);
        ox_plane_sums_take(moments, view->hi + begin, &state, walk.place, walk.range.end - walk.range.begin,
                           &sums);
    }
    return sums;
}

void ox_guard_put(struct ox_rank *rank, uint32_t unit_idx, uint32_t chunk_idx, const struct ox_chunk_view *view) {
    if (ox_guard_covers(rank, unit_idx)) {
        *sums_of(rank, unit_idx, chunk_idx) =
            (struct ox_chunk_sums){.planes = sums_of_view(rank, unit_idx, view), .known = true};
    }
}

void ox_guard_save(struct ox_rank *rank, uint32_t unit_idx, uint32_t chunk_idx) {
    if (ox_guard_covers(rank, unit_idx)) {
        struct ox_chunk_sums *const sums = sums_of(rank, unit_idx, chunk_idx);
        sums->saved = sums->planes;
        sums->saved_known = sums->known;
    }
}

enum ox_status ox_guard_saved(struct ox_rank *rank, uint32_t unit_idx, uint32_t chunk_idx,
                              const struct ox_chunk_view *view) {
    if (!ox_guard_covers(rank, unit_idx)) {
        return OX_OK;
    }
    struct ox_chunk_sums *const kept = sums_of(rank, unit_idx, chunk_idx);
    const struct ox_plane_sums found = sums_of_view(rank, unit_idx, view);
    const enum ox_status status =
        compare_with(kept->saved_known ? &kept->saved : NULL, rank, unit_idx, chunk_idx, rank->planes.step, &found);
    if (status == OX_OK) {
        kept->planes = found;
        kept->known = true;
    }
    return status;
}

void ox_guard_forget(struct ox_rank *rank, uint32_t unit_idx) {
    for (uint32_t i = 0; rank->sums != NULL && i < rank->plan->table.shards[unit_idx].chunk_count; i++) {
        sums_of(rank, unit_idx, i)->known = false;
    }
}

enum ox_status ox_guard_get(struct ox_rank *rank, uint32_t unit_idx, uint32_t chunk_idx,
                            const struct ox_chunk_view *view) {
    if (!ox_guard_covers(rank, unit_idx)) {
        return OX_OK;
    }
    const struct ox_plane_sums sums = sums_of_view(rank, unit_idx, view);
    return compare(rank, unit_idx, chunk_idx, rank->planes.step, &sums);
}

/* Compares the second copy of lo, which compute reads, with the lo that an update has read; the update is about to
 * replace both. A failed update may have replaced one of them, so its repetition does not compare. */
static enum ox_status compare_copy(struct ox_rank *rank, const struct ox_unit_run *run, uint32_t chunk_idx,
                                   uint64_t lo_sum) {
    const struct ox_chunk chunk = ox_shard_chunk(&rank->plan->table, run->unit_idx, chunk_idx);
    const uint64_t slice = ox_slice_first(rank, run->unit_idx), first = slice + chunk.first;
    struct ox_role_walk walk = {.last = NULL};
    uint64_t sum = 0;
    while (ox_next_role(rank, run->unit_idx, (struct ox_range){first, first + chunk.count}, &walk)) {
        sum += ox_lo_sum(rank->config.state.moments, run->target.lo + (walk.range.begin - slice), walk.place,
                         walk.range.end - walk.range.begin);
    }
    return sum == lo_sum ? OX_OK
                         : ox_fail(OX_E_MEMORY, "memory has changed by itself: rank %u, unit %u, chunk %u: the copy of "
                                   "the lower halves of the weights is no longer what step %" PRIu64 " left; what was "
                                   "computed with it is not used; check this machine's memory (its ECC counters, "
                                   "memtest86+)", rank->idx, run->unit_idx, chunk_idx, run->base_step);
}

enum ox_status ox_guard_updated(struct ox_rank *rank, const struct ox_unit_run *run, uint32_t chunk_idx,
                                const struct ox_update_sums *sums) {
    struct ox_chunk_sums *const kept = sums_of(rank, run->unit_idx, chunk_idx);
    if (run->follows) { /* it began with hi as that was saved */
        kept->planes.hi = kept->saved.hi;
        kept->known = kept->known && kept->saved_known;
    }
    enum ox_status status = ox_unit_from_store(run) ? OX_OK
                                                    : compare(rank, run->unit_idx, chunk_idx, run->base_step,
                                                              &sums->read);
    if (run->target.lo != NULL && !ox_unit_from_store(run) && !rank->pending.failed) {
        OX_THEN(status, compare_copy(rank, run, chunk_idx, sums->read.lo));
    }
    kept->planes = sums->written;
    kept->known = true;
    return status;
}

/* ---- gathered weights ---------------------------------------------------------------------------------- */

void ox_guard_gathered(struct ox_rank *rank, uint32_t buf_idx, const void *weights, uint64_t bytes) {
    if (rank->gathered != NULL) {
        rank->gathered[buf_idx] = ox_hash64(weights, bytes, buf_idx);
    }
}

struct gathered_job {
    struct ox_rank *rank;
    uint32_t buf_idx, unit_idx;
    const void *weights;
    uint64_t bytes;
};

static enum ox_status check_gathered(void *owner, const void *args) {
    const struct gathered_job *const job = args;
    (void)owner;
    return ox_hash64(job->weights, job->bytes, job->buf_idx) == job->rank->gathered[job->buf_idx]
               ? OX_OK
               : ox_fail(OX_E_MEMORY, "memory has changed by itself: rank %u, unit %u: the weights that it gathered "
                         "are no longer what came; what was computed with them is not used; check this machine's "
                         "memory (its ECC counters, memtest86+)", job->rank->idx, job->unit_idx);
}

/* Whether no later task of the plan reads the buffer until it is gathered anew. */
static bool is_last_read(const struct ox_plan *plan, uint32_t task_idx, uint32_t buf_idx) {
    bool last = true;
    for (uint32_t i = task_idx + 1; i < plan->task_count && last && plan->bufs[buf_idx].resident; i++) {
        const struct ox_task *const task = &plan->tasks[i];
        for (uint32_t k = 0; k < task->use_count && last; k++) {
            if (task->uses[k].buf_idx == buf_idx && !task->uses[k].read) {
                return true;
            }
            last = task->uses[k].buf_idx != buf_idx;
        }
    }
    return last && (plan->bufs[buf_idx].resident || plan->bufs[buf_idx].last_task_idx == task_idx);
}

enum ox_status ox_guard_issue(struct ox_rank *rank, const struct ox_plan *plan, uint32_t task_idx,
                              struct ox_lane *lane) {
    const struct ox_task *const task = &plan->tasks[task_idx];
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < task->use_count && rank->gathered != NULL; i++) {
        const struct ox_use *const use = &task->uses[i];
        const struct ox_buf *const buf = &plan->bufs[use->buf_idx];
        if (buf->kind != OX_BUF_GATHERED || !use->read || !is_last_read(plan, task_idx, use->buf_idx)) {
            continue;
        }
        const struct ox_view at = ox_tiers_nth_view_if(&rank->tiers, plan, task, (enum ox_use_role)use->role, use->nth);
        const struct gathered_job job = {.rank = rank, .buf_idx = use->buf_idx, .unit_idx = buf->unit_idx,
                                         .weights = at.ptr, .bytes = buf->bytes};
        OX_THEN(status, ox_host_lane_submit(lane, check_gathered, &job, sizeof job, NULL));
    }
    return status;
}
