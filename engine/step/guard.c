/* Guards planes that live in host memory: an update sums the bits of what it writes, and the next one those of what it
 * reads, so memory that changed in between is noticed before anything made of it is committed. Chunks that are read
 * between steps are compared too.
 *
 * The sums cover the elements that the optimizer updates, not the gaps between roles. They always tell what memory
 * holds: a failed step that changed memory leaves planes that are read back from the last commit, and put again. */
#include "engine/step/rank_internal.h"

#include "base/assert.h"

#include <inttypes.h>
#include <stdlib.h>

enum ox_status ox_guard_open(struct ox_rank *rank) {
    if (!rank->config.verify_memory || rank->config.eval_only) {
        return OX_OK;
    }
    rank->sums = calloc(rank->plan->table.chunk_count, sizeof *rank->sums);
    return rank->sums != NULL ? OX_OK
                              : ox_fail(OX_E_NOMEM, "engine: no memory for the sums of %" PRIu32 " chunks",
                                        rank->plan->table.chunk_count);
}

bool ox_guard_covers(const struct ox_rank *rank, uint32_t unit_idx) {
    if (rank->sums == NULL || ox_plan_state_on_device(&rank->plan->input, unit_idx)) {
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
    struct ox_role_walk walk = {.next = NULL};
    while (ox_next_role(rank, unit_idx, (struct ox_range){first, first + view->count}, &walk)) {
        const uint64_t begin = walk.range.begin - first;
        const struct ox_state_planes state = ox_state_planes_skip(moments, view->state, begin);
        ox_plane_sums_take(moments, view->hi + begin, &state, walk.range.begin, walk.range.end - walk.range.begin,
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

enum ox_status ox_guard_updated(struct ox_rank *rank, const struct ox_unit_run *run, uint32_t chunk_idx,
                                const struct ox_update_sums *sums) {
    struct ox_chunk_sums *const kept = sums_of(rank, run->unit_idx, chunk_idx);
    if (run->follows) { /* it began with hi as that was saved */
        kept->planes.hi = kept->saved.hi;
        kept->known = kept->known && kept->saved_known;
    }
    const enum ox_status status = ox_unit_from_store(run) ? OX_OK
                                                          : compare(rank, run->unit_idx, chunk_idx, run->base_step,
                                                                    &sums->read);
    kept->planes = sums->written;
    kept->known = true;
    return status;
}
