/* Averages of the weights in the place of the weights, for an evaluation. */
#include "engine/step/engine_internal.h"
#include "engine/step/planes/planes.h"

#include "base/assert.h"
#include "base/bytes.h"

/* Whether planes of what is trained, of one kind or the other, live on drives. */
static bool any_on_drives(const struct ox_engine_plan *plan, bool weights) {
    bool any = false;
    for (uint32_t rank = 0; rank < ox_plan_rank_count(&plan->input); rank++) {
        const struct ox_shard_table *const table = &ox_engine_plan_at(plan, rank)->table;
        for (uint32_t i = 0; i < table->unit_count; i++) {
            const struct ox_homes *const homes = &table->shards[i].homes;
            const bool there = (weights ? homes->weights : homes->state) == OX_TIER_NVME;
            any |= there && !table->shards[i].fixed && table->shards[i].chunk_count > 0;
        }
    }
    return any;
}

static bool any_there(const struct ox_engine_plan *plan) {
    return any_on_drives(plan, true) || any_on_drives(plan, false);
}

bool ox_engine_plan_swaps(const struct ox_engine_plan *plan) {
    return !any_there(plan) || ox_plan_generations(&plan->input.budget) > 1;
}

bool ox_engine_swaps_from_commit(const struct ox_engine *engine) {
    return any_there(engine->plan);
}

/* Exchanges the masters of a chunk's trained tensors with their averages; returns how many averages the master's format
 * cannot hold. A master of 24 bits takes the upper ones of an average, whose plane keeps the rest: it has room for that
 * beside the master. hi, which alone is read then, is that of the whole average. */
static uint64_t swap_chunk(const struct ox_model *model, uint32_t unit_idx, const struct ox_chunk_view *view) {
    const uint64_t past = view->first + view->count;
    const uint32_t rest = view->format.moments == OX_MOMENTS_Q8 ? 0xffu : 0;
    const struct ox_tensor *tensor = NULL;
    ox_chunk_values_get(view, OX_PLANE_MASTER);
    while ((tensor = ox_unit_next_tensor(model, &model->units[unit_idx], tensor)) != NULL) {
        const uint64_t end = ox_min_u64(tensor->offset + tensor->count, past);
        for (uint64_t at = ox_max_u64(tensor->offset, view->first); tensor->trained && at < end; at++) {
            float *const value = &view->values[at - view->first];
            float *const average = &view->state.average[at - view->first];
            const uint32_t master = ox_f32_bits(*value), other = ox_f32_bits(*average);
            *value = ox_f32_from_bits(other & ~rest);
            *average = ox_f32_from_bits(master | (other & rest));
        }
    }
    return ox_chunk_values_set(view, OX_PLANE_MASTER);
}

/* Averages that are read from drives are put into memory, so the last commit keeps the weights. */
static enum ox_status swap_all(struct ox_engine *engine) {
    const struct ox_model *const model = engine->config.model;
    enum ox_status status = OX_OK;
    for (uint32_t unit_idx = 0; unit_idx < model->unit_count; unit_idx++) {
        const uint32_t count = model->units[unit_idx].trained ? ox_engine_chunk_count(engine, unit_idx) : 0;
        for (uint32_t i = 0; i < count && status == OX_OK; i++) {
            struct ox_chunk_view view;
            if (!ox_engine_has_chunk(engine, unit_idx, i)) {
                continue;
            }
            status = ox_engine_chunk_get(engine, unit_idx, i, &view);
            const uint64_t bad_count = status == OX_OK ? swap_chunk(model, unit_idx, &view) : 0;
            status = bad_count == 0 ? status : ox_fail(OX_E_CORRUPT, "averages of the weights are not finite");
            OX_THEN(status, ox_engine_chunk_put(engine, unit_idx, i, &view));
        }
    }
    return status;
}

/* Where weights live on drives, averages go there too: as a transaction behind the last commit, which is never
 * committed but kept, so that an evaluation finds it by its step, and the way back to the commit forgets it. */
static enum ox_status swap_on_drives(struct ox_engine *engine, uint64_t step) {
    struct ox_first_failure first = {0};
    OX_TRY(ox_store_begin(engine->store, step + 1));
    for (uint32_t i = 0; i < engine->seat_count; i++) {
        ox_rank_write_begin(engine->seats[i].rank);
    }
    ox_first_failure_note(&first, swap_all(engine));
    for (uint32_t i = 0; i < engine->seat_count; i++) {
        ox_first_failure_note(&first, ox_rank_load_end(engine->seats[i].rank));
        engine->seats[i].rank->planes.step = step + 1;
    }
    if (first.status == OX_OK) {
        ox_store_keep(engine->store);
    }
    return ox_first_failure_result(&first);
}

enum ox_status ox_engine_swap_averages(struct ox_engine *engine) {
    const bool from_commit = ox_engine_swaps_from_commit(engine);
    OX_ASSERT(engine->config.state.averages && ox_engine_plan_swaps(engine->plan));
    if (from_commit && engine->averaged) {
        engine->averaged = false;
        return ox_engine_roll_back(engine);
    }
    OX_TRY(ox_engine_finish_update(engine));
    if (!from_commit) {
        return swap_all(engine);
    }
    const uint64_t step = ox_first_rank(engine)->planes.step;
    struct ox_store_info info;
    ox_store_info(engine->store, &info);
    if (info.step != step) {
        return ox_fail(OX_E_IO, "--eval-ema: the step is not in the store, from which its weights would come back");
    }
    engine->averaged = true;
    return any_on_drives(engine->plan, true) ? swap_on_drives(engine, step) : swap_all(engine);
}
