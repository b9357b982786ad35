/* The optimizer's stream: chunk after chunk is read, updated and written, several in flight.
 *
 * A slot holds hi | state | gradient of one chunk. What lives in memory is updated there; the slot then only
 * carries the copy that goes to the store, so that memory may change again while the write is in flight.
 * Writes outlive the unit's task and are waited for by the commit. */
#include "engine/engine_internal.h"

#include "base/assert.h"
#include "base/bytes.h"

#include <string.h>

/* One unit's update; pointers are the whole unit's, NULL where a plane is on a drive. */
struct unit_run {
    struct ox_engine *engine;
    const struct ox_model *model;
    uint32_t unit_idx;
    struct ox_homes homes;
    struct ox_resident at; /* hi: also the staging of a device-resident unit */
    const unsigned char *grad;
    uint32_t grad_width;
    uint64_t nonfinite_count;
};

struct slot_view {
    uint16_t *hi;
    unsigned char *state, *grad;
};

static struct slot_view view_slot(const struct ox_engine *engine, uint32_t slot_idx, uint64_t count) {
    unsigned char *const base = engine->slots[slot_idx].base;
    struct slot_view view = {.hi = (uint16_t *)base, .state = base + count * OX_HI_BYTES};
    view.grad = view.state + ox_shard_state_bytes(&engine->plan->table, count);
    return view;
}

void ox_optim_set_slots(struct ox_engine *engine, const struct ox_plan *plan, const struct ox_task *task) {
    const struct ox_lease lease = ox_tiers_lease_if(&engine->tiers, plan, task, OX_USE_STAGE);
    engine->slot_count = engine->plan->input.placement.stage_slots;
    engine->slot_next = 0;
    OX_ASSERT(lease.ptr != NULL && engine->slot_count <= OX_OPTIM_SLOTS_MAX);
    const uint64_t slot_bytes = ox_plan_slot_bytes(&engine->plan->input);
    for (uint32_t i = 0; i < engine->slot_count; i++) {
        engine->slots[i] = (struct ox_optim_slot){.base = (unsigned char *)lease.ptr + i * slot_bytes};
    }
    engine->tee_values = (float *)((unsigned char *)lease.ptr + engine->slot_count * slot_bytes);
}

void ox_engine_tee(struct ox_engine *engine, const struct ox_tee *tee) {
    engine->tee = tee == NULL ? (struct ox_tee){0} : *tee;
}

/* ---- transfers ------------------------------------------------------------------------------------ */

enum { TAG_WRITE = 1 }; /* tag = slot * 2 + TAG_WRITE */

static enum ox_status reap_one(struct ox_engine *engine) {
    uint64_t tag = 0;
    const enum ox_status status = ox_store_reap(engine->adam_port, &tag);
    struct ox_optim_slot *const slot = &engine->slots[tag / 2];
    uint32_t *const pending = tag % 2 == TAG_WRITE ? &slot->writing : &slot->reading;
    OX_ASSERT(*pending > 0);
    (*pending)--;
    return status;
}

enum ox_status ox_optim_drain(struct ox_engine *engine) {
    struct ox_first first = {0};
    while (engine->adam_port != NULL && ox_store_in_flight(engine->adam_port) > 0) {
        ox_first_note(&first, reap_one(engine));
    }
    return ox_first_result(&first);
}

static enum ox_status submit(struct ox_engine *engine, uint32_t slot_idx, struct ox_store_op op) {
    const bool write = op.kind == OX_STORE_WRITE;
    op.tag = slot_idx * 2 + (write ? TAG_WRITE : 0);
    const enum ox_status status = ox_store_submit(engine->adam_port, &op);
    if (status == OX_OK) {
        *(write ? &engine->slots[slot_idx].writing : &engine->slots[slot_idx].reading) += 1;
    }
    return status;
}

/* Asks for what the chunk needs from drives; waits until the slot's last writes are out. */
static enum ox_status begin_chunk(struct unit_run *run, uint32_t slot_idx, uint32_t chunk_idx) {
    struct ox_engine *const engine = run->engine;
    const struct ox_chunk chunk = ox_shard_chunk(&engine->plan->table, run->unit_idx, chunk_idx);
    const struct slot_view view = view_slot(engine, slot_idx, chunk.count);
    enum ox_status status = OX_OK;
    while (status == OX_OK && engine->slots[slot_idx].writing > 0) {
        status = reap_one(engine);
    }
    if (status == OX_OK && run->homes.state == OX_TIER_NVME) {
        status = submit(engine, slot_idx, (struct ox_store_op){
            .kind = OX_STORE_READ, .extent_idx = chunk.state_extent_idx, .buffer = view.state});
        ox_engine_count(engine, OX_LINK_NVME_READ, OX_TRAFFIC_STATE,
                        ox_shard_state_bytes(&engine->plan->table, chunk.count));
    }
    if (status == OX_OK && run->homes.weights == OX_TIER_NVME) {
        status = submit(engine, slot_idx, (struct ox_store_op){
            .kind = OX_STORE_READ, .extent_idx = chunk.hi_extent_idx, .buffer = view.hi});
        ox_engine_count(engine, OX_LINK_NVME_READ, OX_TRAFFIC_WEIGHTS, chunk.count * OX_HI_BYTES);
    }
    if (status == OX_OK && run->homes.grad == OX_TIER_NVME) {
        status = submit(engine, slot_idx, (struct ox_store_op){
            .kind = OX_STORE_SPOOL_READ, .extent_idx = ox_plan_spool_grad(engine->plan->train, run->unit_idx),
            .buffer = view.grad, .spool_from = chunk.first * run->grad_width,
            .spool_len = chunk.count * run->grad_width});
        ox_engine_count(engine, OX_LINK_NVME_READ, OX_TRAFFIC_GRADS, chunk.count * run->grad_width);
    }
    return status;
}

/* What lives in memory, as it is now, into the slot. */
static void copy_resident(const struct unit_run *run, const struct ox_chunk *chunk, const struct slot_view *view) {
    if (run->homes.state == OX_TIER_HOST) {
        ox_state_copy(run->engine, run->unit_idx, chunk, view->state, OX_STATE_TO_CHUNK);
    }
    if (run->at.hi != NULL) {
        memcpy(view->hi, run->at.hi + chunk->first, chunk->count * OX_HI_BYTES);
    }
}

static void show_chunk(const struct unit_run *run, uint32_t chunk_idx, const struct ox_chunk *chunk,
                       const struct slot_view *slot) {
    const struct ox_engine *const engine = run->engine;
    if (engine->tee.chunk == NULL) {
        return;
    }
    copy_resident(run, chunk, slot);
    const struct ox_chunk_view view = {
        .first = chunk->first,
        .count = chunk->count,
        .format = engine->config.state,
        .hi = slot->hi,
        .state = ox_state_planes_at(engine->config.state, slot->state, chunk->count, 0),
        .state_bytes = ox_shard_state_bytes(&engine->plan->table, chunk->count),
        .values = engine->tee_values,
    };
    engine->tee.chunk(engine->tee.context, run->unit_idx, chunk_idx, &view);
}

static enum ox_status write_chunk(struct unit_run *run, uint32_t slot_idx, const struct ox_chunk *chunk) {
    struct ox_engine *const engine = run->engine;
    const struct slot_view view = view_slot(engine, slot_idx, chunk->count);
    copy_resident(run, chunk, &view);
    enum ox_status status = submit(engine, slot_idx, (struct ox_store_op){
        .kind = OX_STORE_WRITE, .extent_idx = chunk->state_extent_idx, .buffer = view.state});
    if (status == OX_OK) {
        status = submit(engine, slot_idx, (struct ox_store_op){
            .kind = OX_STORE_WRITE, .extent_idx = chunk->hi_extent_idx, .buffer = view.hi});
    }
    ox_engine_count(engine, OX_LINK_NVME_WRITE, OX_TRAFFIC_STATE,
                    ox_shard_state_bytes(&engine->plan->table, chunk->count));
    ox_engine_count(engine, OX_LINK_NVME_WRITE, OX_TRAFFIC_WEIGHTS, chunk->count * OX_HI_BYTES);
    return status;
}

/* ---- the update ----------------------------------------------------------------------------------- */

static bool decays(const struct ox_engine *engine, const struct ox_tensor *tensor) {
    const bool embedding = tensor->role == OX_ROLE_EMBED || tensor->role == OX_ROLE_POSITION;
    return engine->config.decay_all || (embedding ? engine->config.decay_embeddings : tensor->decay);
}

/* The state of a chunk from element `begin` of the unit on, wherever it is updated. */
static struct ox_state_planes state_at(const struct unit_run *run, const struct ox_chunk *chunk,
                                       const struct slot_view *slot, uint64_t begin) {
    const struct ox_state_format format = run->engine->config.state;
    const uint64_t elems = run->engine->plan->table.shards[run->unit_idx].elem_count;
    return run->at.state != NULL ? ox_state_planes_at(format, run->at.state, elems, begin)
                                 : ox_state_planes_at(format, slot->state, chunk->count, begin - chunk->first);
}

static void update_span(struct unit_run *run, const struct ox_chunk *chunk, const struct slot_view *slot,
                        struct ox_range range, bool decay) {
    struct ox_engine *const engine = run->engine;
    const uint64_t in_slot = range.begin - chunk->first;
    uint16_t *const hi = run->at.hi != NULL ? run->at.hi + range.begin : slot->hi + in_slot;
    const struct ox_update_span span = {
        .hi = hi,
        .hi_out = hi,
        .state = state_at(run, chunk, slot, range.begin),
        .grad = run->grad != NULL ? run->grad + range.begin * run->grad_width
                                  : slot->grad + in_slot * run->grad_width,
        .grad_dtype = run->grad_width == 2 ? OX_GRAD_BF16 : OX_GRAD_F32,
        .decay = decay,
        .stream = run->unit_idx,
        .first = range.begin,
        .count = range.end - range.begin,
    };
    run->nonfinite_count += ox_update_run_pool(engine->optim_pool, engine->config.isa, engine->config.state, &span,
                                               &engine->step.hyper);
}

_Static_assert((int)OX_TENSOR_ALIGN_ELEMS % (int)OX_Q8_BLOCK == 0 && (int)OX_SHARD_ALIGN_ELEMS % (int)OX_Q8_BLOCK == 0,
               "a span of q8 state begins with a block");

/* Role by role, because decay differs; the gaps between them stay zero. Tensors of one role are neighbours without a
 * gap, and one may begin within a block of eight-bit moments, so they are one span. `slot` may be NULL. */
static void update_chunk(struct unit_run *run, const struct ox_chunk *chunk, const struct slot_view *slot) {
    const struct ox_unit *const unit = &run->model->units[run->unit_idx];
    const struct ox_tensor *const past = &run->model->tensors[unit->tensor_first + unit->tensor_count];
    for (const struct ox_tensor *tensor = &run->model->tensors[unit->tensor_first]; tensor < past;) {
        const bool decay = decays(run->engine, tensor);
        const uint64_t begin = ox_max_u64(tensor->offset, chunk->first);
        const enum ox_role role = tensor->role;
        uint64_t end = 0;
        for (; tensor < past && tensor->role == role; tensor++) {
            OX_ASSERT(decays(run->engine, tensor) == decay);
            end = ox_min_u64(tensor->offset + tensor->count, chunk->first + chunk->count);
        }
        if (begin < end) {
            update_span(run, chunk, slot, (struct ox_range){.begin = begin, .end = end}, decay);
        }
    }
    if (run->at.weights_lo != NULL) { /* compute's own copy of lo follows the state's */
        const void *const lo = state_at(run, chunk, slot, chunk->first).lo;
        memcpy(run->at.weights_lo + chunk->first, lo, chunk->count * OX_LO_BYTES);
    }
}

static enum ox_status finish_chunk(struct unit_run *run, uint32_t slot_idx, uint32_t chunk_idx) {
    struct ox_engine *const engine = run->engine;
    enum ox_status status = OX_OK;
    while (status == OX_OK && engine->slots[slot_idx].reading > 0) {
        status = reap_one(engine);
    }
    if (status != OX_OK) {
        return status;
    }
    const struct ox_chunk chunk = ox_shard_chunk(&engine->plan->table, run->unit_idx, chunk_idx);
    const struct slot_view view = view_slot(engine, slot_idx, chunk.count);
    show_chunk(run, chunk_idx, &chunk, &view);
    update_chunk(run, &chunk, &view);
    return write_chunk(run, slot_idx, &chunk);
}

/* Reads run ahead of the update by as many chunks as there are other slots. */
static enum ox_status stream_unit(struct unit_run *run) {
    struct ox_engine *const engine = run->engine;
    const uint32_t chunk_count = engine->plan->table.shards[run->unit_idx].chunk_count;
    const uint32_t first_slot = engine->slot_next;
    uint32_t begun = 0;
    for (uint32_t i = 0; i < chunk_count; i++) {
        for (; begun < chunk_count && begun < i + engine->slot_count; begun++) {
            const enum ox_status status = begin_chunk(run, (first_slot + begun) % engine->slot_count, begun);
            if (status != OX_OK) {
                return status;
            }
        }
        const enum ox_status status = finish_chunk(run, (first_slot + i) % engine->slot_count, i);
        if (status != OX_OK) {
            return status;
        }
    }
    engine->slot_next = (first_slot + chunk_count) % engine->slot_count;
    return OX_OK;
}

/* Without a store everything is in memory. */
static void update_in_place(struct unit_run *run) {
    const uint32_t chunk_count = run->engine->plan->table.shards[run->unit_idx].chunk_count;
    for (uint32_t i = 0; i < chunk_count; i++) {
        const struct ox_chunk chunk = ox_shard_chunk(&run->engine->plan->table, run->unit_idx, i);
        update_chunk(run, &chunk, NULL);
    }
}

/* A device-resident unit comes to the host as [hi | lo], goes through the update, and returns. */
static void use_staging(struct unit_run *run, unsigned char *staging) {
    const uint64_t elems = run->engine->plan->table.shards[run->unit_idx].elem_count;
    run->at.hi = (uint16_t *)staging;
    if (run->engine->config.fp32) {
        run->at.weights_lo = (uint16_t *)(staging + elems * OX_HI_BYTES);
    }
}

enum ox_status ox_optim_run(struct ox_engine *engine, const struct ox_plan *plan, const struct ox_task *task) {
    struct unit_run run = {
        .engine = engine,
        .model = engine->config.model,
        .unit_idx = task->unit_idx,
        .homes = engine->plan->table.shards[task->unit_idx].homes,
        .at = ox_engine_resident(engine, task->unit_idx),
        .grad = ox_tiers_lease_if(&engine->tiers, plan, task, OX_USE_GRAD).ptr,
        .grad_width = engine->config.grad_bf16 ? 2 : 4,
    };
    if (run.homes.weights == OX_TIER_DEVICE) {
        use_staging(&run, ox_tiers_lease(&engine->tiers, plan, task, OX_USE_WEIGHTS).ptr);
    }
    if (engine->store != NULL) {
        const enum ox_status status = stream_unit(&run);
        if (status != OX_OK) {
            return status;
        }
    } else {
        update_in_place(&run);
    }
    if (run.nonfinite_count > 0) {
        return ox_fail(OX_E_CORRUPT, "unit %u: %llu parameters became infinite or NaN in the optimizer although the "
                       "gradient was finite; the step is not committed; lower the learning rate or resume earlier",
                       task->unit_idx, (unsigned long long)run.nonfinite_count);
    }
    return OX_OK;
}
