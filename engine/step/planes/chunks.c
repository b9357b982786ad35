/* Reads and writes the planes of a unit between steps, wherever the plan has them. */
#include "engine/step/planes/planes.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/optim_format.h"
#include "base/planes.h"
#include "base/pool.h"

#include <math.h>
#include <string.h>

/* A chunk's part of each plane of the state, in the unit's state and in a state of the chunk alone. */
enum { STATE_PIECES = 6 };
struct state_piece {
    void *unit, *alone; /* NULL: the format has no such plane */
    uint64_t bytes;
};

/* The state of a unit that is not trained is lo alone, of two bytes whatever the format of the others. */
static bool is_fixed(const struct ox_rank *rank, uint32_t unit_idx) {
    return rank->plan->table.shards[unit_idx].fixed;
}

static struct ox_state_format format_of(const struct ox_rank *rank, uint32_t unit_idx) {
    const struct ox_state_format fixed = {.kind = rank->config.state.kind, .moments = OX_MOMENTS_F32};
    return is_fixed(rank, unit_idx) ? fixed : ox_rank_state_format(rank, unit_idx);
}

static struct ox_state_planes planes_of(const struct ox_rank *rank, uint32_t unit_idx, void *state, uint64_t elems,
                                        uint64_t first) {
    return is_fixed(rank, unit_idx)
               ? (struct ox_state_planes){.lo = (unsigned char *)state + first * OX_LO_BYTES}
               : ox_state_planes_at(format_of(rank, unit_idx), state, elems, first);
}

static struct ox_state_planes planes_in_unit(const struct ox_rank *rank, uint32_t unit_idx,
                                             const struct ox_chunk *chunk, void *state) {
    return planes_of(rank, unit_idx, state, rank->plan->table.shards[unit_idx].elem_count, chunk->first);
}

static struct ox_state_planes planes_alone(const struct ox_rank *rank, uint32_t unit_idx,
                                           const struct ox_chunk *chunk, void *state) {
    return planes_of(rank, unit_idx, state, chunk->count, 0);
}

static void state_pieces(const struct ox_rank *rank, uint32_t unit_idx, const struct ox_chunk *chunk,
                         struct ox_state_planes unit, struct ox_state_planes alone,
                         struct state_piece out[STATE_PIECES]) {
    const struct ox_state_format format = format_of(rank, unit_idx);
    const struct ox_state_layout layout = ox_state_layout_of(format, chunk->count);
    const uint64_t moment = layout.m_scale_offset - layout.m_offset, scales = layout.v_offset - layout.m_scale_offset;
    out[0] = (struct state_piece){unit.lo, alone.lo, chunk->count * ox_lo_bytes(format.moments)};
    out[1] = (struct state_piece){unit.m, alone.m, moment};
    out[2] = (struct state_piece){unit.v, alone.v, moment};
    out[3] = (struct state_piece){unit.m_scale, alone.m_scale, scales};
    out[4] = (struct state_piece){unit.v_scale, alone.v_scale, scales};
    out[5] = (struct state_piece){unit.average, alone.average, layout.end - layout.average_offset};
}

/* Clears the padding, which goes to the drive, so that a store's bytes do not depend on what memory held before. */
static void clear_padding(const struct ox_rank *rank, uint32_t unit_idx, const struct ox_chunk *chunk,
                          void *chunk_state) {
    const struct ox_state_format format = format_of(rank, unit_idx);
    const struct ox_state_layout layout = ox_state_layout_of(format, chunk->count);
    const uint64_t lo_bytes = chunk->count * ox_lo_bytes(format.moments);
    memset((unsigned char *)chunk_state + lo_bytes, 0, layout.lo_bytes - lo_bytes);
    memset((unsigned char *)chunk_state + layout.end, 0, layout.bytes - layout.end);
}

void ox_state_copy(const struct ox_rank *rank, uint32_t unit_idx, const struct ox_chunk *chunk, void *chunk_state,
                   enum ox_state_direction way) {
    struct state_piece pieces[STATE_PIECES];
    state_pieces(rank, unit_idx, chunk, planes_in_unit(rank, unit_idx, chunk, ox_rank_resident(rank, unit_idx).state),
                 planes_alone(rank, unit_idx, chunk, chunk_state), pieces);
    for (int i = 0; i < STATE_PIECES; i++) {
        if (pieces[i].alone != NULL) {
            const bool to_unit = way == OX_STATE_TO_UNIT;
            memcpy(to_unit ? pieces[i].unit : pieces[i].alone, to_unit ? pieces[i].alone : pieces[i].unit,
                   pieces[i].bytes);
        }
    }
    if (way == OX_STATE_TO_CHUNK && !is_fixed(rank, unit_idx)) {
        clear_padding(rank, unit_idx, chunk, chunk_state);
    }
}

/* ---- slots: chunks on their way to and from the drives ------------------------------------------- */

static uint32_t slot_count(const struct ox_rank *rank) {
    const uint64_t bytes = ox_tiers_scratch(&rank->tiers, rank->plan->train).bytes;
    return (uint32_t)ox_min_u64(OX_CHUNK_SLOTS_MAX, bytes / ox_plan_scratch_bytes(&rank->plan->input));
}

static bool is_written(const struct ox_rank *rank) {
    return rank->loading && rank->store != NULL;
}

static void view_in_slot(struct ox_rank *rank, uint32_t slot, uint32_t unit_idx, uint32_t chunk_idx,
                         struct ox_chunk_view *out) {
    const struct ox_chunk chunk = ox_shard_chunk(&rank->plan->table, unit_idx, chunk_idx);
    const struct ox_view scratch = ox_tiers_scratch(&rank->tiers, rank->plan->train);
    const uint64_t slot_bytes = ox_plan_scratch_bytes(&rank->plan->input);
    /* A fixed unit has lo in the slot even where it has none elsewhere: zeros. */
    static const struct ox_state_sizes lo_alone = {.lo_per_group = OX_LO_BYTES * OX_GROUP_ELEMS};
    const bool fixed = is_fixed(rank, unit_idx);
    const struct ox_chunk_layout layout = ox_shard_chunk_layout(
        fixed ? &lo_alone : &rank->plan->table.shards[unit_idx].sizes, chunk.count, sizeof *out->values);
    OX_ASSERT(slot_bytes >= layout.bytes && scratch.bytes >= (slot + 1) * slot_bytes);
    unsigned char *const base = (unsigned char *)scratch.ptr + slot * slot_bytes;
    *out = (struct ox_chunk_view){
        .first = chunk.first,
        .count = chunk.count,
        .format = format_of(rank, unit_idx),
        .hi = (uint16_t *)base,
        .weights = ox_rank_format(rank, unit_idx),
        .state = planes_of(rank, unit_idx, base + layout.state_offset, chunk.count, 0),
        .state_bytes = layout.state_bytes,
        .values = (float *)(base + layout.numbers_offset),
    };
}

void ox_rank_chunk_view(struct ox_rank *rank, uint32_t unit_idx, uint32_t chunk_idx,
                        struct ox_chunk_view *out) {
    struct ox_chunk_slots *const slots = &rank->chunk_slots;
    slots->at = is_written(rank) ? (slots->at + 1) % slot_count(rank) : 0;
    ox_transfers_wait(&slots->transfers, slots->at); /* the next call that has a status returns a failure */
    view_in_slot(rank, slots->at, unit_idx, chunk_idx, out);
}

bool ox_plane_exists(struct ox_state_format format, enum ox_plane plane) {
    return plane == OX_PLANE_AVERAGE ? format.averages : plane != OX_PLANE_V || ox_optim_has_v(format.kind);
}

void ox_chunk_clear(const struct ox_chunk_view *view) {
    memset(view->hi, 0, view->count * OX_HI_BYTES);
    memset(view->state.lo, 0, view->state_bytes);
}

bool ox_chunk_has_plane(const struct ox_chunk_view *view, enum ox_plane plane) {
    const struct ox_state_planes *const state = &view->state;
    return plane == OX_PLANE_MASTER ||
           (plane == OX_PLANE_AVERAGE ? (void *)state->average : plane == OX_PLANE_V ? state->v : state->m) != NULL;
}

static void get_halves(const struct ox_chunk_view *view) {
    for (uint64_t i = 0; i < view->count; i++) {
        view->values[i] = ox_f16_to_f32(view->hi[i]);
    }
}

static void get_bytes(const struct ox_chunk_view *view) {
    for (uint64_t i = 0; i < view->count; i += OX_BASE8_BLOCK) {
        const unsigned char *const group =
            (const unsigned char *)view->hi + i / OX_GROUP_ELEMS * OX_BASE8_GROUP_BYTES;
        ox_base8_unpack(group, i % OX_GROUP_ELEMS / OX_BASE8_BLOCK, view->values + i);
    }
}

void ox_chunk_values_get(const struct ox_chunk_view *view, enum ox_plane plane) {
    OX_ASSERT(ox_plane_exists(view->format, plane));
    if (!ox_weight_format_of(view->weights)->hi_is_bf16) {
        OX_ASSERT(plane == OX_PLANE_MASTER);
        (view->weights == OX_FORMAT_Q8 ? get_bytes : get_halves)(view);
        return;
    }
    if (plane == OX_PLANE_MASTER) {
        ox_state_master_get(view->format.moments, view->hi, view->state.lo, view->count, view->values);
        return;
    }
    if (plane == OX_PLANE_AVERAGE) {
        memcpy(view->values, view->state.average, view->count * sizeof *view->values);
        return;
    }
    ox_state_moment_get(view->format.moments, plane == OX_PLANE_M ? OX_MOMENT_M : OX_MOMENT_V, &view->state,
                        view->count, view->values);
}

/* Halves hold what the folder has in that format, so what they do not hold is not its. */
static uint64_t set_halves(const struct ox_chunk_view *view) {
    uint64_t bad_count = 0;
    for (uint64_t i = 0; i < view->count; i++) {
        view->hi[i] = ox_f16_from_f32(view->values[i]);
        bad_count += !isfinite(view->values[i]) || ox_f16_to_f32(view->hi[i]) != view->values[i];
    }
    return bad_count;
}

static uint64_t set_bytes(const struct ox_chunk_view *view) {
    uint64_t bad_count = 0;
    for (uint64_t i = 0; i < view->count; i += OX_GROUP_ELEMS) {
        bad_count += ox_base8_pack(view->values + i,
                                   (unsigned char *)view->hi + i / OX_GROUP_ELEMS * OX_BASE8_GROUP_BYTES);
    }
    return bad_count;
}

uint64_t ox_chunk_values_set(const struct ox_chunk_view *view, enum ox_plane plane) {
    OX_ASSERT(ox_plane_exists(view->format, plane));
    if (!ox_weight_format_of(view->weights)->hi_is_bf16) {
        OX_ASSERT(plane == OX_PLANE_MASTER);
        return view->weights == OX_FORMAT_Q8 ? set_bytes(view) : set_halves(view);
    }
    if (plane == OX_PLANE_MASTER) {
        return ox_state_master_set(view->format.moments, view->hi, view->state.lo, view->count, view->values);
    }
    if (plane == OX_PLANE_AVERAGE) {
        memcpy(view->state.average, view->values, view->count * sizeof *view->values);
        return 0;
    }
    return ox_state_moment_set(view->format.moments, plane == OX_PLANE_M ? OX_MOMENT_M : OX_MOMENT_V, &view->state,
                               view->count, view->values);
}

/* Makes one copy between device and host. Its lane is idle between steps. */
static enum ox_status copy_piece(struct ox_rank *rank, const struct state_piece *piece, bool to_device) {
    struct ox_lane *const lane = rank->lanes[to_device ? OX_LANE_H2D : OX_LANE_D2H];
    const struct ox_copy copy = {.target = to_device ? piece->unit : piece->alone,
                                 .source = to_device ? piece->alone : piece->unit,
                                 .bytes = piece->bytes};
    struct ox_mark done;
    const enum ox_status status = ox_device_lane_copy(rank->device, lane, &copy, &done);
    return status == OX_OK ? ox_mark_join(done) : status;
}

/* Copies what a chunk has on the device: hi, the lo behind it where compute reads that, or the state. */
static enum ox_status copy_device(struct ox_rank *rank, uint32_t unit_idx, const struct ox_chunk_view *view,
                                  bool to_device) {
    const struct ox_plan *const plan = rank->plan->train;
    const struct ox_shard *const shard = &rank->plan->table.shards[unit_idx];
    struct state_piece pieces[STATE_PIECES + 1] = {{0}};
    if (shard->homes.weights == OX_TIER_DEVICE) {
        unsigned char *const unit = ox_rank_resident_ptr(rank, ox_plan_home_weights(plan, unit_idx));
        unsigned char *const hi = unit + ox_shard_hi_offset(shard, view->first);
        pieces[0] = (struct state_piece){hi, view->hi, ox_shard_hi_bytes(shard, view->count)};
        if (ox_rank_rules(rank, unit_idx)->lo_travels && !ox_rank_rules(rank, unit_idx)->lo_in_state) {
            pieces[1] = (struct state_piece){hi + shard->elem_count * OX_HI_BYTES, view->state.lo,
                                             view->count * OX_LO_BYTES};
        }
    }
    if (ox_rank_rules(rank, unit_idx)->state_on_device) {
        const struct ox_chunk chunk = {.first = view->first, .count = view->count};
        void *const state = ox_rank_resident_ptr(rank, ox_plan_home_state(plan, unit_idx));
        state_pieces(rank, unit_idx, &chunk, planes_in_unit(rank, unit_idx, &chunk, state), view->state, pieces + 1);
        if (!to_device) {
            clear_padding(rank, unit_idx, &chunk, view->state.lo);
        }
    }
    enum ox_status status = OX_OK;
    for (int i = 0; i <= STATE_PIECES && status == OX_OK; i++) {
        status = pieces[i].alone == NULL ? OX_OK : copy_piece(rank, &pieces[i], to_device);
    }
    return status;
}

static enum ox_status get_from_store(struct ox_rank *rank, uint32_t unit_idx, uint32_t chunk_idx,
                                     const struct ox_chunk_view *view) {
    const struct ox_homes *const homes = &rank->plan->table.shards[unit_idx].homes;
    const struct ox_chunk chunk = ox_shard_chunk(&rank->plan->table, unit_idx, chunk_idx);
    struct ox_store_op ops[2];
    uint32_t op_count = 0;
    if (homes->weights == OX_TIER_NVME) {
        ops[op_count++] = (struct ox_store_op){.kind = OX_STORE_READ, .extent_idx = chunk.hi_extent_idx,
                                               .buffer = view->hi, .step = rank->planes.step};
    }
    const bool fixed = is_fixed(rank, unit_idx);
    const bool has_state = ox_shard_unit_state_bytes(&rank->plan->table, unit_idx) > 0;
    if (fixed && !has_state) {
        memset(view->state.lo, 0, view->count * OX_LO_BYTES);
    }
    if (homes->state == OX_TIER_NVME && has_state) {
        ops[op_count++] = (struct ox_store_op){.kind = OX_STORE_READ, .extent_idx = chunk.state_extent_idx,
                                               .buffer = view->state.lo, .step = rank->planes.step};
    }
    if (op_count == 0) {
        return OX_OK;
    }
    struct ox_chunk_slots *const slots = &rank->chunk_slots;
    if (ox_transfers_submit(&slots->transfers, slots->at, ops, op_count) == OX_OK) {
        ox_transfers_wait(&slots->transfers, slots->at);
    }
    return slots->transfers.first.status == OX_OK ? OX_OK : ox_transfers_drain(&slots->transfers);
}

enum ox_status ox_rank_chunk_get(struct ox_rank *rank, uint32_t unit_idx, uint32_t chunk_idx,
                                 struct ox_chunk_view *out) {
    OX_ASSERT(is_fixed(rank, unit_idx) || /* which no update concerns */
              (!rank->pending.exists && !rank->planes.must_restore && !rank->planes.must_take_back));
    ox_rank_chunk_view(rank, unit_idx, chunk_idx, out);
    enum ox_status status = get_from_store(rank, unit_idx, chunk_idx, out);
    OX_THEN(status, copy_device(rank, unit_idx, out, false));
    const struct ox_resident resident = ox_rank_resident(rank, unit_idx);
    if (resident.hi != NULL) {
        const struct ox_shard *const shard = &rank->plan->table.shards[unit_idx];
        memcpy(out->hi, (const unsigned char *)resident.hi + ox_shard_hi_offset(shard, out->first),
               ox_shard_hi_bytes(shard, out->count));
    }
    if (resident.state != NULL) {
        const struct ox_chunk chunk = ox_shard_chunk(&rank->plan->table, unit_idx, chunk_idx);
        ox_state_copy(rank, unit_idx, &chunk, out->state.lo, OX_STATE_TO_CHUNK);
    }
    return status == OX_OK ? ox_guard_get(rank, unit_idx, chunk_idx, out) : status;
}

/* Starts to write these planes of a chunk. */
static enum ox_status write_chunk(struct ox_rank *rank, uint32_t unit_idx, uint32_t chunk_idx,
                                  const struct ox_chunk_view *view, struct ox_on_drives written) {
    const struct ox_chunk chunk = ox_shard_chunk(&rank->plan->table, unit_idx, chunk_idx);
    struct ox_chunk_slots *const slots = &rank->chunk_slots;
    struct ox_store_op ops[2];
    uint32_t count = 0;
    struct ox_store_info info;
    ox_store_info(rank->store, &info);
    if ((is_fixed(rank, unit_idx) && info.committed) || !ox_rank_rules(rank, unit_idx)->stored) {
        return OX_OK; /* the store has it, and no run changes it; or another rank writes it */
    }
    if (written.hi) {
        ops[count++] =
            (struct ox_store_op){.kind = OX_STORE_WRITE, .extent_idx = chunk.hi_extent_idx, .buffer = view->hi};
    }
    if (written.state && ox_shard_unit_state_bytes(&rank->plan->table, unit_idx) > 0) {
        ops[count++] = (struct ox_store_op){
            .kind = OX_STORE_WRITE, .extent_idx = chunk.state_extent_idx, .buffer = view->state.lo};
    }
    return ox_transfers_submit(&slots->transfers, slots->at, ops, count) == OX_OK
               ? OX_OK : ox_transfers_drain(&slots->transfers);
}

/* Puts a chunk's planes to where host memory has them. */
static void put_in_memory(const struct ox_rank *rank, uint32_t unit_idx, const struct ox_chunk_view *view) {
    const struct ox_resident resident = ox_rank_resident(rank, unit_idx);
    const struct ox_chunk chunk = {.first = view->first, .count = view->count};
    struct state_piece pieces[STATE_PIECES] = {{0}};
    if (resident.hi != NULL) {
        const struct ox_shard *const shard = &rank->plan->table.shards[unit_idx];
        memcpy((unsigned char *)resident.hi + ox_shard_hi_offset(shard, view->first), view->hi,
               ox_shard_hi_bytes(shard, view->count));
    }
    if (resident.weights_lo != NULL) {
        memcpy(resident.weights_lo + view->first, view->state.lo, view->count * OX_LO_BYTES);
    }
    if (resident.state != NULL) {
        state_pieces(rank, unit_idx, &chunk, planes_in_unit(rank, unit_idx, &chunk, resident.state), view->state,
                     pieces);
    }
    for (int i = 0; i < STATE_PIECES; i++) {
        if (pieces[i].alone != NULL && pieces[i].alone != pieces[i].unit) {
            memcpy(pieces[i].unit, pieces[i].alone, pieces[i].bytes);
        }
    }
}

/* Whether hi has all of the chunk's weights. */
static bool is_bf16(const struct ox_chunk_view *view) {
    const uint16_t *const lo = view->state.lo;
    bool is = true;
    for (uint64_t i = 0; i < view->count && is; i++) {
        is = lo[i] == 0;
    }
    return is;
}

enum ox_status ox_rank_chunk_put(struct ox_rank *rank, uint32_t unit_idx, uint32_t chunk_idx,
                                 const struct ox_chunk_view *view) {
    if (is_fixed(rank, unit_idx) && ox_shard_unit_state_bytes(&rank->plan->table, unit_idx) == 0 && !is_bf16(view)) {
        return ox_fail(OX_E_CONFIG, "frozen weights of unit %u are no bf16 numbers, as which run.json has them; begin "
                       "a new run with this folder as --model", unit_idx);
    }
    put_in_memory(rank, unit_idx, view);
    ox_guard_put(rank, unit_idx, chunk_idx, view);
    const enum ox_status status = copy_device(rank, unit_idx, view, true);
    return status == OX_OK && is_written(rank)
               ? write_chunk(rank, unit_idx, chunk_idx, view, (struct ox_on_drives){.hi = true, .state = true})
               : status;
}

/* ---- what updates have saved ------------------------------------------------------------------------ */

/* A chunk as it lies in what its unit has saved; where that is hi alone, the state is where it lives. The gaps between
 * roles are zeros there too: nobody writes them, and an arena begins with zeros. */
static struct ox_chunk_view saved_chunk(const struct ox_rank *rank, uint32_t unit_idx, const struct ox_chunk *chunk) {
    unsigned char *const saved = ox_rank_resident_ptr(rank, ox_plan_replaced(rank->plan->train, unit_idx));
    void *const state = ox_rank_rules(rank, unit_idx)->goes_ahead
                            ? ox_rank_resident(rank, unit_idx).state
                            : saved + ox_rank_rules(rank, unit_idx)->replaced_state_offset;
    return (struct ox_chunk_view){.first = chunk->first, .count = chunk->count,
                                  .format = ox_rank_state_format(rank, unit_idx),
                                  .hi = (uint16_t *)saved + chunk->first,
                                  .state = planes_in_unit(rank, unit_idx, chunk, state)};
}

struct returning {
    struct ox_rank *rank;
    uint32_t unit_idx, chunk_count;
    _Atomic uint32_t changed; /* 1 + one chunk that is not what was saved; 0: none */
};

static void return_share(void *context, uint32_t idx, uint32_t count) {
    struct returning *const all = context;
    const struct ox_range share = ox_pool_range(all->chunk_count, 1, idx, count);
    for (uint64_t at = share.begin; at < share.end; at++) {
        const struct ox_chunk chunk = ox_shard_chunk(&all->rank->plan->table, all->unit_idx, (uint32_t)at);
        const struct ox_chunk_view saved = saved_chunk(all->rank, all->unit_idx, &chunk);
        if (ox_guard_saved(all->rank, all->unit_idx, (uint32_t)at, &saved) == OX_OK) {
            put_in_memory(all->rank, all->unit_idx, &saved);
        } else {
            all->changed = 1 + (uint32_t)at;
        }
    }
}

enum ox_status ox_rank_return_saved(struct ox_rank *rank, uint32_t unit_idx, uint32_t chunk_count) {
    struct returning all = {.rank = rank, .unit_idx = unit_idx, .chunk_count = chunk_count};
    ox_pool_run_grains(rank->optim_pool, chunk_count, 1, return_share, &all);
    if (all.changed > 0) {
        const struct ox_chunk chunk = ox_shard_chunk(&rank->plan->table, unit_idx, all.changed - 1);
        const struct ox_chunk_view saved = saved_chunk(rank, unit_idx, &chunk);
        /* Again, for the text. A second look that finds nothing makes the memory no better. */
        const enum ox_status status = ox_guard_saved(rank, unit_idx, all.changed - 1, &saved);
        return status != OX_OK ? status
                               : ox_fail(OX_E_MEMORY, "memory of rank %u, unit %u, chunk %u holds other bits each time "
                                         "it is read; check this machine's memory", rank->idx, unit_idx,
                                         all.changed - 1);
    }
    const struct ox_chunk last = ox_shard_chunk(&rank->plan->table, unit_idx, chunk_count - 1);
    const struct ox_chunk whole = {.first = 0, .count = last.first + last.count};
    const struct ox_chunk_view saved = saved_chunk(rank, unit_idx, &whole);
    return copy_device(rank, unit_idx, &saved, true);
}

void ox_rank_forget_saved(struct ox_rank *rank) {
    memset(rank->due.saved_chunks, 0, rank->plan->table.unit_count * sizeof *rank->due.saved_chunks);
}

/* ---- loading ----------------------------------------------------------------------------------------- */

void ox_rank_load_begin(struct ox_rank *rank, uint64_t step) {
    OX_ASSERT(!rank->loading && !rank->pending.exists);
    rank->loading = true;
    rank->planes.must_restore = rank->planes.must_take_back = false;
    ox_rank_forget_saved(rank);
    rank->planes.lost_step = 0;
    rank->planes.step = step;
}

void ox_rank_write_begin(struct ox_rank *rank) {
    OX_ASSERT(!rank->loading && !rank->pending.exists && !rank->planes.must_restore && !rank->planes.must_take_back);
    rank->loading = true;
    ox_rank_forget_saved(rank);
}

enum ox_status ox_rank_load_end(struct ox_rank *rank) {
    OX_ASSERT(rank->loading);
    rank->loading = false;
    return rank->store == NULL ? OX_OK : ox_transfers_drain(&rank->chunk_slots.transfers);
}

/* Starts to read the unit's chunk into the slot; does not wait. */
static enum ox_status fetch_chunk(struct ox_rank *rank, uint32_t slot, uint32_t unit_idx, uint32_t chunk_idx,
                                  uint64_t step) {
    const struct ox_chunk chunk = ox_shard_chunk(&rank->plan->table, unit_idx, chunk_idx);
    struct ox_chunk_view view;
    view_in_slot(rank, slot, unit_idx, chunk_idx, &view);
    const struct ox_store_op ops[] = {
        {.kind = OX_STORE_READ, .extent_idx = chunk.hi_extent_idx, .buffer = view.hi, .step = step},
        {.kind = OX_STORE_READ, .extent_idx = chunk.state_extent_idx, .buffer = view.state.lo, .step = step},
    };
    const bool has_state = ox_shard_unit_state_bytes(&rank->plan->table, unit_idx) > 0;
    if (!has_state) {
        memset(view.state.lo, 0, view.count * OX_LO_BYTES);
    }
    return ox_transfers_submit(&rank->chunk_slots.transfers, slot, ops, has_state ? 2 : 1);
}

enum ox_status ox_rank_load_unit(struct ox_rank *rank, uint32_t unit_idx, uint64_t step,
                                 const volatile sig_atomic_t *stop) {
    const uint32_t chunk_count = rank->plan->table.shards[unit_idx].chunk_count, ahead = slot_count(rank);
    enum ox_status status = OX_OK;
    OX_ASSERT(!rank->loading);
    for (uint32_t i = 0; i < ahead && i < chunk_count && status == OX_OK; i++) {
        status = fetch_chunk(rank, i, unit_idx, i, step);
    }
    for (uint32_t i = 0; i < chunk_count && status == OX_OK; i++) {
        struct ox_chunk_view view;
        const uint32_t slot = i % ahead;
        ox_transfers_wait(&rank->chunk_slots.transfers, slot);
        status = ox_transfers_status(&rank->chunk_slots.transfers);
        if (status == OX_OK && ox_is_raised(stop)) {
            status = ox_fail(OX_E_ABORTED, "stopped while the store was read");
        }
        if (status == OX_OK) {
            view_in_slot(rank, slot, unit_idx, i, &view);
            status = ox_rank_chunk_put(rank, unit_idx, i, &view);
        }
        if (status == OX_OK && i + ahead < chunk_count) {
            status = fetch_chunk(rank, slot, unit_idx, i + ahead, step);
        }
    }
    struct ox_first_failure first = {0};
    ox_first_failure_note(&first, status);
    ox_first_failure_note(&first, ox_transfers_drain(&rank->chunk_slots.transfers));
    return ox_first_failure_result(&first);
}

enum ox_status ox_rank_put_missing(struct ox_rank *rank) {
    enum ox_status status = OX_OK;
    for (uint32_t unit_idx = 0; unit_idx < rank->plan->table.unit_count && status == OX_OK; unit_idx++) {
        const struct ox_on_drives there = ox_rank_rules(rank, unit_idx)->on_drives;
        const struct ox_on_drives missing = {.hi = !there.hi, .state = !there.state};
        const bool any = (missing.hi || missing.state) && !is_fixed(rank, unit_idx); /* the store has those */
        const uint32_t count = any ? rank->plan->table.shards[unit_idx].chunk_count : 0;
        for (uint32_t i = 0; i < count && status == OX_OK; i++) {
            struct ox_chunk_view view;
            status = ox_rank_chunk_get(rank, unit_idx, i, &view);
            OX_THEN(status, write_chunk(rank, unit_idx, i, &view, missing));
        }
    }
    return status;
}

/* ---- gradients ---------------------------------------------------------------------------------- */

void ox_rank_grad_read(const struct ox_rank *rank, uint32_t unit_idx, uint64_t first, uint64_t count,
                       float *out) {
    const uint32_t grad_idx = ox_unit_grad_idx(rank, unit_idx);
    const unsigned char *const base =
        ox_tiers_resident(&rank->tiers, rank->plan->train, ox_plan_home_grad(rank->plan->train, grad_idx)).ptr;
    OX_ASSERT(rank->plan->table.shards[unit_idx].homes.grad == OX_TIER_HOST && base != NULL);
    OX_ASSERT(first + count <= ox_slice_elems(rank, unit_idx));
    for (uint64_t i = 0; i < count; i++) {
        const float grad = rank->config.grad_bf16 ? ox_bf16_to_f32(((const uint16_t *)base)[first + i])
                                                  : ((const float *)base)[first + i];
        out[i] = grad * (float)rank->step.unscale;
    }
}

/* ---- what compute reads, and what updates ----------------------------------------------------------- */

enum ox_status ox_rank_read_planes(struct ox_rank *rank, struct ox_store_port *port, uint32_t unit_idx,
                                   unsigned char *target) {
    const struct ox_shard *const shard = &rank->plan->table.shards[unit_idx];
    const uint64_t step = rank->step.weights_step;
    struct ox_transfers transfers = {.port = port};
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < shard->chunk_count && status == OX_OK; i++) {
        const struct ox_chunk chunk = ox_shard_chunk(&rank->plan->table, unit_idx, i);
        status = ox_transfers_submit(&transfers, 0, &(struct ox_store_op){
            .kind = OX_STORE_READ, .extent_idx = chunk.hi_extent_idx,
            .buffer = target + ox_shard_hi_offset(shard, chunk.first), .step = step}, 1);
        ox_rank_count(rank, OX_LINK_NVME_READ, OX_TRAFFIC_WEIGHTS, ox_shard_hi_bytes(shard, chunk.count));
        if (status == OX_OK && ox_rank_rules(rank, unit_idx)->lo_travels) {
            unsigned char *const lo = target + shard->elem_count * OX_HI_BYTES + chunk.first * OX_LO_BYTES;
            status = ox_transfers_submit(&transfers, 0, &(struct ox_store_op){
                .kind = shard->fixed ? OX_STORE_READ : OX_STORE_READ_HEAD, .extent_idx = chunk.state_extent_idx,
                .buffer = lo, .step = step}, 1);
            ox_rank_count(rank, OX_LINK_NVME_READ, OX_TRAFFIC_WEIGHTS, chunk.count * OX_LO_BYTES);
        }
    }
    return ox_transfers_drain(&transfers);
}

static bool decays(const struct ox_rank *rank, const struct ox_tensor *tensor) {
    if (tensor->group.given && !isnan(tensor->group.weight_decay)) {
        return true;
    }
    const bool embedding = tensor->role == OX_ROLE_EMBED || tensor->role == OX_ROLE_POSITION;
    return rank->config.decay_all || (embedding ? rank->config.decay_embeddings : tensor->decay);
}

_Static_assert((int)OX_TENSOR_ALIGN_ELEMS % (int)OX_Q8_BLOCK == 0 && (int)OX_GROUP_ELEMS % (int)OX_Q8_BLOCK == 0,
               "a span of q8 state begins with a block");

bool ox_next_role(const struct ox_rank *rank, uint32_t unit_idx, struct ox_range within, struct ox_role_walk *walk) {
    const struct ox_model *const model = rank->config.model;
    const struct ox_unit *const unit = &model->units[unit_idx];
    const struct ox_tensor *tensor = walk->last;
    bool found = false;
    while (!found && (tensor = ox_unit_next_tensor(model, unit, tensor)) != NULL) {
        walk->last = tensor;
        if (!tensor->trained) {
            continue;
        }
        walk->decay = decays(rank, tensor);
        walk->group = tensor->group;
        walk->range.begin = ox_max_u64(tensor->offset, within.begin);
        for (const struct ox_tensor *at = tensor; at != NULL && at->role == tensor->role && at->trained &&
             ox_tensor_same_group(at, tensor); at = ox_unit_next_tensor(model, unit, at)) {
            OX_ASSERT(decays(rank, at) == walk->decay);
            walk->range.end = ox_min_u64(at->offset + at->count, within.end);
            walk->last = at;
        }
        walk->place = tensor->place + (walk->range.begin - tensor->offset);
        tensor = walk->last;
        found = walk->range.begin < walk->range.end;
    }
    return found;
}
