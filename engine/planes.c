/* Planes of a unit between steps: read from and written to wherever the plan has them. */
#include "engine/engine_internal.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/planes.h"

#include <string.h>

static unsigned char *resident_ptr(const struct ox_engine *engine, uint32_t buf_idx) {
    return buf_idx == OX_NONE ? NULL : ox_tiers_resident(&engine->tiers, engine->plan->train, buf_idx).ptr;
}

struct ox_resident ox_engine_resident(const struct ox_engine *engine, uint32_t unit_idx) {
    const struct ox_plan *const plan = engine->plan->train;
    const struct ox_shard *const shard = &engine->plan->table.shards[unit_idx];
    const uint64_t elems = shard->elem_count;
    struct ox_resident out = {0};
    if (shard->homes.weights == OX_TIER_HOST) {
        unsigned char *const base = resident_ptr(engine, ox_plan_home_weights(plan, unit_idx));
        out.hi = (uint16_t *)base;
        if (engine->config.fp32 && !ox_plan_lo_in_state(&engine->plan->input, unit_idx)) {
            out.weights_lo = (uint16_t *)(base + elems * OX_HI_BYTES);
        }
    }
    if (ox_plan_home_state(plan, unit_idx) != OX_NONE) {
        unsigned char *const base = resident_ptr(engine, ox_plan_home_state(plan, unit_idx));
        out.lo = (uint16_t *)base;
        out.m = (float *)(base + elems * OX_LO_BYTES);
        out.v = (float *)(base + elems * (OX_LO_BYTES + 4));
    }
    return out;
}

uint32_t ox_engine_chunk_count(const struct ox_engine *engine, uint32_t unit_idx) {
    OX_ASSERT(unit_idx < engine->plan->table.unit_count);
    return engine->plan->table.shards[unit_idx].chunk_count;
}

void ox_engine_chunk_view(struct ox_engine *engine, uint32_t unit_idx, uint32_t chunk_idx,
                          struct ox_chunk_view *out) {
    const struct ox_chunk chunk = ox_shard_chunk(&engine->plan->table, unit_idx, chunk_idx);
    const struct ox_lease scratch = ox_tiers_scratch(&engine->tiers, engine->plan->train);
    OX_ASSERT(scratch.bytes >= chunk.count * (OX_HI_BYTES + OX_STATE_BYTES + 4));
    unsigned char *at = scratch.ptr; /* hi | lo | m | v | values: state is one extent, as on the drive */
    *out = (struct ox_chunk_view){.first = chunk.first, .count = chunk.count};
    out->hi = (uint16_t *)at;
    out->lo = (uint16_t *)(at += chunk.count * OX_HI_BYTES);
    out->m = (float *)(at += chunk.count * OX_LO_BYTES);
    out->v = (float *)(at += chunk.count * 4);
    out->values = (float *)(at + chunk.count * 4);
}

/* Device-resident hi (and lo behind it, for fp32) of a chunk; host lanes are drained between steps. */
static enum ox_status copy_device(struct ox_engine *engine, uint32_t unit_idx, const struct ox_chunk_view *view,
                                  bool to_device) {
    const uint64_t elems = engine->plan->table.shards[unit_idx].elem_count;
    unsigned char *const base = resident_ptr(engine, ox_plan_home_weights(engine->plan->train, unit_idx));
    struct ox_lane *const lane = engine->lanes[to_device ? OX_LANE_H2D : OX_LANE_D2H];
    for (int plane = 0; plane < (engine->config.fp32 ? 2 : 1); plane++) {
        unsigned char *const on_device = base + (plane * elems + view->first) * 2;
        uint16_t *const on_host = plane == 0 ? view->hi : view->lo;
        struct ox_mark done;
        const struct ox_copy copy = {.target = to_device ? (void *)on_device : on_host,
                                     .source = to_device ? (void *)on_host : on_device,
                                     .bytes = view->count * 2};
        enum ox_status status = ox_device_lane_copy(engine->device, lane, &copy, &done);
        if (status == OX_OK) {
            status = ox_mark_join(done);
        }
        if (status != OX_OK) {
            return status;
        }
    }
    return OX_OK;
}

static enum ox_status get_from_store(struct ox_engine *engine, uint32_t unit_idx, uint32_t chunk_idx,
                                     const struct ox_chunk_view *view) {
    const struct ox_homes *const homes = &engine->plan->table.shards[unit_idx].homes;
    const struct ox_chunk chunk = ox_shard_chunk(&engine->plan->table, unit_idx, chunk_idx);
    struct ox_store_op ops[2];
    uint32_t op_count = 0;
    if (homes->weights == OX_TIER_NVME) {
        ops[op_count++] = (struct ox_store_op){.kind = OX_STORE_READ, .extent_idx = chunk.hi_extent_idx,
                                               .buffer = view->hi};
    }
    if (homes->state == OX_TIER_NVME) {
        ops[op_count++] = (struct ox_store_op){.kind = OX_STORE_READ, .extent_idx = chunk.state_extent_idx,
                                               .buffer = view->lo};
    }
    return op_count == 0 ? OX_OK : ox_store_run(engine->adam_port, ops, op_count);
}

enum ox_status ox_engine_chunk_get(struct ox_engine *engine, uint32_t unit_idx, uint32_t chunk_idx,
                                   struct ox_chunk_view *out) {
    ox_engine_chunk_view(engine, unit_idx, chunk_idx, out);
    enum ox_status status = get_from_store(engine, unit_idx, chunk_idx, out);
    if (status == OX_OK && engine->plan->table.shards[unit_idx].homes.weights == OX_TIER_DEVICE) {
        status = copy_device(engine, unit_idx, out, false);
    }
    const struct ox_resident resident = ox_engine_resident(engine, unit_idx);
    if (resident.hi != NULL) {
        memcpy(out->hi, resident.hi + out->first, out->count * OX_HI_BYTES);
    }
    if (resident.lo != NULL) {
        memcpy(out->lo, resident.lo + out->first, out->count * OX_LO_BYTES);
        memcpy(out->m, resident.m + out->first, out->count * 4);
        memcpy(out->v, resident.v + out->first, out->count * 4);
    }
    return status;
}

enum ox_status ox_engine_chunk_put(struct ox_engine *engine, uint32_t unit_idx, uint32_t chunk_idx,
                                   const struct ox_chunk_view *view) {
    const struct ox_resident resident = ox_engine_resident(engine, unit_idx);
    if (resident.hi != NULL) {
        memcpy(resident.hi + view->first, view->hi, view->count * OX_HI_BYTES);
    }
    if (resident.weights_lo != NULL) {
        memcpy(resident.weights_lo + view->first, view->lo, view->count * OX_LO_BYTES);
    }
    if (resident.lo != NULL) {
        memcpy(resident.lo + view->first, view->lo, view->count * OX_LO_BYTES);
        memcpy(resident.m + view->first, view->m, view->count * 4);
        memcpy(resident.v + view->first, view->v, view->count * 4);
    }
    enum ox_status status = OX_OK;
    if (engine->plan->table.shards[unit_idx].homes.weights == OX_TIER_DEVICE) {
        status = copy_device(engine, unit_idx, view, true);
    }
    if (status != OX_OK || !engine->loading || engine->store == NULL) {
        return status;
    }
    const struct ox_chunk chunk = ox_shard_chunk(&engine->plan->table, unit_idx, chunk_idx);
    const struct ox_store_op ops[] = {
        {.kind = OX_STORE_WRITE, .extent_idx = chunk.hi_extent_idx, .buffer = view->hi},
        {.kind = OX_STORE_WRITE, .extent_idx = chunk.state_extent_idx, .buffer = view->lo},
    };
    return ox_store_run(engine->adam_port, ops, 2);
}

enum ox_status ox_engine_load_begin(struct ox_engine *engine, uint64_t step) {
    OX_ASSERT(!engine->loading);
    engine->loading = true;
    return engine->store == NULL ? OX_OK : ox_store_begin(engine->store, step);
}

enum ox_status ox_engine_load_commit(struct ox_engine *engine, const void *meta, uint32_t meta_bytes) {
    OX_ASSERT(engine->loading);
    engine->loading = false;
    return engine->store == NULL ? OX_OK : ox_store_commit(engine->store, meta, meta_bytes);
}

/* ---- gradients ---------------------------------------------------------------------------------- */

uint64_t ox_grad_elems(const struct ox_engine *engine, uint32_t unit_idx) {
    const struct ox_plan_model *const model = &engine->plan->input.model;
    return unit_idx == model->unit_count ? model->tied_elems : model->unit_elems[unit_idx];
}

uint32_t ox_grad_piece_count(const struct ox_engine *engine, uint32_t unit_idx) {
    return (uint32_t)ox_div_up(ox_grad_elems(engine, unit_idx), engine->plan->table.chunk_elems);
}

struct ox_grad_piece ox_grad_piece(const struct ox_engine *engine, uint32_t unit_idx, uint32_t piece_idx) {
    const uint64_t first = piece_idx * engine->plan->table.chunk_elems;
    return (struct ox_grad_piece){
        .first = first,
        .count = ox_min_u64(engine->plan->table.chunk_elems, ox_grad_elems(engine, unit_idx) - first)};
}

void ox_engine_grad_read(const struct ox_engine *engine, uint32_t unit_idx, uint64_t first, uint64_t count,
                         float *out) {
    const unsigned char *const base =
        resident_ptr(engine, ox_plan_home_grad(engine->plan->train, unit_idx));
    OX_ASSERT(base != NULL && first + count <= ox_grad_elems(engine, unit_idx));
    for (uint64_t i = 0; i < count; i++) {
        out[i] = engine->config.grad_bf16 ? ox_bf16_to_f32(((const uint16_t *)base)[first + i])
                                          : ((const float *)base)[first + i];
    }
}
