#include "offload/plan/shard.h"

#include "base/assert.h"
#include "base/bytes.h"

#include <stdlib.h>

enum ox_status ox_shard_table_open(const uint64_t *unit_elems, uint32_t unit_count, uint64_t chunk_elems,
                                   struct ox_state_sizes sizes, struct ox_shard_table *out) {
    *out = (struct ox_shard_table){0};
    if (chunk_elems == 0 || chunk_elems % OX_GROUP_ELEMS != 0) {
        return ox_fail(OX_E_CONFIG, "--chunk-elems %llu: must be a positive multiple of %d",
                       (unsigned long long)chunk_elems, OX_GROUP_ELEMS);
    }
    struct ox_shard *const shards = calloc(unit_count, sizeof *shards);
    if (shards == NULL) {
        return ox_fail(OX_E_NOMEM, "shard table: no memory for %u units", unit_count);
    }
    uint64_t chunk_count = 0;
    for (uint32_t i = 0; i < unit_count; i++) {
        OX_ASSERT(unit_elems[i] > 0 && unit_elems[i] % OX_GROUP_ELEMS == 0);
        shards[i].elem_count = unit_elems[i];
        shards[i].chunk_first = (uint32_t)chunk_count;
        shards[i].chunk_count = (uint32_t)ox_div_up(unit_elems[i], chunk_elems);
        shards[i].chunk_elems = chunk_elems;
        shards[i].homes = (struct ox_homes){OX_TIER_NVME, OX_TIER_NVME, OX_TIER_NVME};
        shards[i].sizes = sizes;
        shards[i].hi_per_group = OX_HI_BYTES * OX_GROUP_ELEMS;
        chunk_count += shards[i].chunk_count;
    }
    if (chunk_count > UINT32_MAX / 2) {
        free(shards);
        return ox_fail(OX_E_CONFIG, "--chunk-elems %llu: makes more chunks than the store can number; raise it",
                       (unsigned long long)chunk_elems);
    }
    *out = (struct ox_shard_table){.shards = shards,
                                   .unit_count = unit_count,
                                   .chunk_count = (uint32_t)chunk_count,
                                   .chunk_elems = chunk_elems,
                                   .sizes = sizes};
    return OX_OK;
}

/* Where the slice of a rank begins in a unit, in chunks. */
static uint32_t first_chunk(const struct ox_shard *unit, uint32_t count, uint32_t idx) {
    if (unit->whole) {
        return idx > unit->owner % count; /* it was dealt to one of all, of which fewer may divide experts */
    }
    return (uint32_t)ox_min_u64(idx * ox_div_up(unit->chunk_count, count), unit->chunk_count);
}

void ox_shard_slice(const struct ox_shard *unit, uint32_t count, uint32_t idx, struct ox_shard *out) {
    const uint64_t first = first_chunk(unit, count, idx), past = first_chunk(unit, count, idx + 1);
    *out = *unit;
    out->elem_first = ox_min_u64(first * unit->chunk_elems, unit->elem_count);
    out->elem_count = ox_min_u64(past * unit->chunk_elems, unit->elem_count) - out->elem_first;
    out->chunk_first = unit->chunk_first + (uint32_t)first;
    out->chunk_count = (uint32_t)(past - first);
}

enum ox_status ox_shard_table_slice(const struct ox_shard_table *whole, uint32_t count, uint32_t idx,
                                    struct ox_shard_table *out) {
    OX_ASSERT(idx < count);
    *out = (struct ox_shard_table){0};
    struct ox_shard *const shards = calloc(whole->unit_count, sizeof *shards);
    if (shards == NULL) {
        return ox_fail(OX_E_NOMEM, "shard table: no memory for slices of %u units", whole->unit_count);
    }
    for (uint32_t i = 0; i < whole->unit_count; i++) {
        ox_shard_slice(&whole->shards[i], count, idx, &shards[i]);
    }
    *out = *whole;
    out->shards = shards;
    return OX_OK;
}

uint32_t ox_shard_first_chunk(const struct ox_shard_table *whole, uint32_t unit_idx, uint32_t count, uint32_t idx) {
    OX_ASSERT(unit_idx < whole->unit_count && idx <= count);
    return first_chunk(&whole->shards[unit_idx], count, idx);
}

uint64_t ox_shard_cut(const struct ox_shard_table *whole, uint32_t unit_idx, uint32_t count, uint32_t idx) {
    OX_ASSERT(unit_idx < whole->unit_count && idx <= count);
    const struct ox_shard *const unit = &whole->shards[unit_idx];
    return ox_min_u64(first_chunk(unit, count, idx) * unit->chunk_elems, unit->elem_count);
}

enum ox_status ox_shard_deal(struct ox_shard_table *table, const bool *whole, const uint32_t *pipe_of,
                             uint32_t holders, uint32_t copies) {
    uint32_t groups = 1, chunk_count = 0;
    for (uint32_t i = 0; pipe_of != NULL && i < table->unit_count; i++) {
        groups = (uint32_t)ox_max_u64(groups, pipe_of[i] + UINT64_C(1));
    }
    uint64_t *const has = calloc((size_t)groups * holders, sizeof *has);
    if (has == NULL) {
        return ox_fail(OX_E_NOMEM, "shard table: no memory to deal %u units", table->unit_count);
    }
    for (int dealt = 0; dealt <= 1; dealt++) { /* what is cut comes first: the first ranks may have more of it */
        for (uint32_t i = 0, turn = 0; i < table->unit_count; i++) {
            struct ox_shard *const shard = &table->shards[i];
            uint64_t *const of = has + (size_t)(pipe_of == NULL ? 0 : pipe_of[i]) * holders;
            if (whole[i] != (dealt == 1)) {
                continue;
            }
            for (uint32_t k = 0; k < holders && !whole[i]; k++) {
                of[k] += ox_shard_cut(table, i, holders, k + 1) - ox_shard_cut(table, i, holders, k);
            }
            for (uint32_t k = 0; k < holders && whole[i]; k++) {
                shard->owner = of[k] < of[shard->owner] ? k : shard->owner;
            }
            if (whole[i]) {
                of[shard->owner] += shard->elem_count;
                shard->adder = turn++ / holders % copies;
                shard->whole = true;
                shard->chunk_elems = shard->elem_count;
                shard->chunk_count = 1;
            }
        }
    }
    for (uint32_t i = 0; i < table->unit_count; chunk_count += table->shards[i++].chunk_count) {
        table->shards[i].chunk_first = chunk_count;
    }
    table->chunk_count = chunk_count;
    free(has);
    return OX_OK;
}

double ox_shard_excess(const uint64_t *unit_elems, uint32_t unit_count, uint64_t chunk_elems, uint32_t count) {
    uint64_t all = 0, first = 0;
    for (uint32_t i = 0; i < unit_count; i++) {
        const uint64_t chunks = ox_div_up(ox_div_up(unit_elems[i], chunk_elems), count);
        all += unit_elems[i];
        first += ox_min_u64(chunks * chunk_elems, unit_elems[i]);
    }
    return (double)first * count / (double)all;
}

uint64_t ox_shard_choose_chunk(const uint64_t *unit_elems, uint32_t unit_count, uint32_t count, uint64_t least) {
    uint64_t best = OX_SHARD_CHUNK_ELEMS;
    double lowest = ox_shard_excess(unit_elems, unit_count, best, count);
    for (uint64_t chunk = best / 2; chunk >= least && lowest > OX_SHARD_EXCESS_MAX; chunk /= 2) {
        const double excess = ox_shard_excess(unit_elems, unit_count, chunk, count);
        best = excess < lowest ? chunk : best;
        lowest = excess < lowest ? excess : lowest;
    }
    return best;
}

void ox_shard_table_close(struct ox_shard_table *table) {
    free(table->shards);
    *table = (struct ox_shard_table){0};
}

void ox_shard_fix(struct ox_shard_table *table, uint32_t unit_idx, uint32_t lo_per_group) {
    OX_ASSERT(unit_idx < table->unit_count);
    table->shards[unit_idx].fixed = true;
    table->shards[unit_idx].sizes = (struct ox_state_sizes){.lo_per_group = lo_per_group};
}

enum ox_status ox_shard_narrow(struct ox_shard_table *table, uint32_t unit_idx, uint32_t hi_per_group) {
    OX_ASSERT(unit_idx < table->unit_count);
    struct ox_shard *const shard = &table->shards[unit_idx];
    const uint64_t pages = OX_IO_ALIGN_BYTES * (uint64_t)OX_GROUP_ELEMS;
    uint64_t elems = OX_GROUP_ELEMS;
    while (elems * hi_per_group % pages != 0) {
        elems += OX_GROUP_ELEMS;
    }
    if (shard->chunk_count > 1 && shard->chunk_elems % elems != 0) {
        return ox_fail(OX_E_CONFIG, "--chunk-elems %llu: weights in 8 bits (--base-dtype q8) need a multiple of %llu",
                       (unsigned long long)shard->chunk_elems, (unsigned long long)elems);
    }
    shard->hi_per_group = hi_per_group;
    return OX_OK;
}

uint64_t ox_shard_hi_bytes(const struct ox_shard *shard, uint64_t count) {
    return ox_align_up(ox_shard_hi_offset(shard, count), OX_IO_ALIGN_BYTES);
}

uint64_t ox_shard_lo_bytes(const struct ox_state_sizes *sizes, uint64_t count) {
    OX_ASSERT(count % OX_GROUP_ELEMS == 0);
    return ox_align_up(count / OX_GROUP_ELEMS * sizes->lo_per_group, OX_IO_ALIGN_BYTES);
}

uint64_t ox_shard_state_bytes(const struct ox_state_sizes *sizes, uint64_t count) {
    const uint64_t rest = count / OX_GROUP_ELEMS * sizes->rest_per_group;
    return ox_shard_lo_bytes(sizes, count) + ox_align_up(rest, OX_IO_ALIGN_BYTES);
}

uint64_t ox_shard_unit_state_bytes(const struct ox_shard_table *table, uint32_t unit_idx) {
    return ox_shard_state_bytes(&table->shards[unit_idx].sizes, table->shards[unit_idx].elem_count);
}

uint64_t ox_shard_stored_bytes(const struct ox_shard_table *table, uint32_t unit_idx) {
    OX_ASSERT(unit_idx < table->unit_count);
    const struct ox_shard *const shard = &table->shards[unit_idx];
    return shard->elem_count / shard->chunk_elems * ox_shard_state_bytes(&shard->sizes, shard->chunk_elems) +
           ox_shard_state_bytes(&shard->sizes, shard->elem_count % shard->chunk_elems);
}

static double bytes_per_elem(const struct ox_state_sizes *sizes) {
    return OX_HI_BYTES + (double)(sizes->lo_per_group + sizes->rest_per_group) / OX_GROUP_ELEMS;
}

double ox_shard_unit_bytes_per_elem(const struct ox_shard *shard) {
    return bytes_per_elem(&shard->sizes) - OX_HI_BYTES + (double)shard->hi_per_group / OX_GROUP_ELEMS;
}

double ox_shard_bytes_per_elem(const struct ox_shard_table *table) {
    const double usual = bytes_per_elem(&table->sizes);
    double bytes = 0, elems = 0;
    bool differ = false;
    for (uint32_t i = 0; i < table->unit_count; i++) {
        const struct ox_shard *const shard = &table->shards[i];
        if (!shard->fixed) {
            differ |= bytes_per_elem(&shard->sizes) != usual;
            bytes += (double)shard->elem_count * bytes_per_elem(&shard->sizes);
            elems += (double)shard->elem_count;
        }
    }
    return differ && elems > 0 ? bytes / elems : usual;
}

struct ox_chunk ox_shard_chunk(const struct ox_shard_table *table, uint32_t unit_idx, uint32_t chunk_idx) {
    OX_ASSERT(unit_idx < table->unit_count);
    const struct ox_shard *const shard = &table->shards[unit_idx];
    OX_ASSERT(chunk_idx < shard->chunk_count);
    const uint64_t first = chunk_idx * shard->chunk_elems;
    const uint32_t number = shard->chunk_first + chunk_idx;
    return (struct ox_chunk){
        .first = first,
        .count = ox_min_u64(shard->chunk_elems, shard->elem_count - first),
        .hi_extent_idx = 2 * number,
        .state_extent_idx = 2 * number + 1,
    };
}

struct ox_chunk_layout ox_shard_chunk_layout(const struct ox_state_sizes *sizes, uint64_t count,
                                             uint32_t number_bytes) {
    struct ox_chunk_layout layout = {
        .hi_bytes = count * OX_HI_BYTES,
        .state_bytes = ox_shard_state_bytes(sizes, count),
        .numbers_bytes = count * number_bytes,
    };
    layout.state_offset = layout.hi_bytes;
    layout.numbers_offset = layout.state_offset + layout.state_bytes;
    layout.bytes = layout.numbers_offset + layout.numbers_bytes;
    return layout;
}

void ox_shard_extents(const struct ox_shard_table *table, struct ox_extent_spec *out) {
    for (uint32_t unit_idx = 0; unit_idx < table->unit_count; unit_idx++) {
        for (uint32_t i = 0; i < table->shards[unit_idx].chunk_count; i++) {
            const struct ox_chunk chunk = ox_shard_chunk(table, unit_idx, i);
            const struct ox_shard *const shard = &table->shards[unit_idx];
            const uint64_t state_bytes = ox_shard_state_bytes(&shard->sizes, chunk.count);
            const uint64_t head_bytes = ox_shard_lo_bytes(&shard->sizes, chunk.count);
            out[chunk.hi_extent_idx] = (struct ox_extent_spec){.bytes = ox_shard_hi_bytes(shard, chunk.count),
                                                               .head_bytes = shard->fixed ? OX_EXTENT_FIXED : 0};
            out[chunk.state_extent_idx] = (struct ox_extent_spec){
                .bytes = state_bytes, .head_bytes = shard->fixed ? OX_EXTENT_FIXED : head_bytes};
        }
    }
}

struct ox_store_sums ox_shard_extent_sums(const struct ox_shard_table *table) {
    struct ox_store_sums sums = {.extent_count = 2 * table->chunk_count};
    for (uint32_t unit_idx = 0; unit_idx < table->unit_count; unit_idx++) {
        const struct ox_shard *const shard = &table->shards[unit_idx];
        const uint64_t largest = ox_min_u64(shard->elem_count, shard->chunk_elems);
        sums.bytes += ox_shard_hi_bytes(shard, shard->elem_count) + ox_shard_stored_bytes(table, unit_idx);
        const uint64_t state_bytes = ox_shard_state_bytes(&shard->sizes, largest);
        const uint64_t hi_bytes = ox_shard_hi_bytes(shard, largest);
        sums.extent_bytes_max = ox_max_u64(sums.extent_bytes_max, ox_max_u64(hi_bytes, state_bytes));
    }
    return sums;
}
