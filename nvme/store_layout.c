/* Places extents. A pure function of the extent list and of the allowances at creation, so the placement need not be
 * stored; any change here needs a new OX_STORE_VERSION. */
#include "base/assert.h"
#include "base/hash/hash.h"
#include "nvme/store_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Distributes items of one kind over the drives. */
struct stripe {
    uint32_t drive_count;
    uint64_t speed[OX_STORE_DRIVES_MAX];
    uint64_t room[OX_STORE_DRIVES_MAX];
    uint64_t share[OX_STORE_DRIVES_MAX]; /* the drive's share of all items */
    uint64_t used[OX_STORE_DRIVES_MAX];
};

/* Sum of the scaled speeds, so small that squares and products with sizes cannot overflow. */
enum { SPEED_SUM = 1 << 20 };

/* Scales speeds relative to each other; a drive without a speed, beside others that have one, gets the least. */
static void stripe_speed(struct stripe *stripe, const uint64_t *speeds) {
    unsigned __int128 sum = 0;
    for (uint32_t i = 0; i < stripe->drive_count; i++) {
        sum += speeds[i];
    }
    for (uint32_t i = 0; i < stripe->drive_count; i++) {
        const uint64_t speed = sum == 0 ? 1 : (uint64_t)((unsigned __int128)speeds[i] * SPEED_SUM / sum);
        stripe->speed[i] = ox_max_u64(1, speed);
    }
}

/* Returns total * speed / speeds, rounded up. */
static uint64_t part_of(uint64_t total, uint64_t speed, uint64_t speeds) {
    return (uint64_t)(((unsigned __int128)total * speed + speeds - 1) / speeds);
}

/* Divides `total` by speed, except that a drive with less room than its share gets only its room. */
static void stripe_share(struct stripe *stripe, uint64_t total) {
    bool full[OX_STORE_DRIVES_MAX] = {false};
    uint64_t left = 0;
    for (uint32_t i = 0; i < stripe->drive_count; i++) {
        left += stripe->speed[i];
    }
    for (bool changed = true; changed && left > 0;) {
        changed = false;
        const uint64_t level_total = total, level_left = left;
        for (uint32_t i = 0; i < stripe->drive_count; i++) {
            if (!full[i] && stripe->room[i] < part_of(level_total, stripe->speed[i], level_left)) {
                full[i] = changed = true;
                stripe->share[i] = stripe->room[i];
                total -= stripe->room[i] < total ? stripe->room[i] : total;
                left -= stripe->speed[i];
            }
        }
    }
    for (uint32_t i = 0; i < stripe->drive_count; i++) {
        if (!full[i]) {
            stripe->share[i] = part_of(total, stripe->speed[i], left);
        }
    }
}

/* Picks the drive that would be least ahead of its share; false when no drive has room. */
static bool stripe_pick(const struct stripe *stripe, uint64_t bytes, uint32_t *drive_idx) {
    bool found = false;
    for (uint32_t i = 0; i < stripe->drive_count; i++) {
        if (stripe->room[i] - stripe->used[i] < bytes) {
            continue;
        }
        const unsigned __int128 ahead = (unsigned __int128)(stripe->used[i] + bytes);
        const unsigned __int128 best = found ? stripe->used[*drive_idx] + bytes : 0;
        if (!found || ahead * stripe->share[*drive_idx] < best * stripe->share[i]) {
            *drive_idx = i;
            found = true;
        }
    }
    return found;
}

/* Fails for a store that does not fit, with the bytes it needs and the allowances. */
static enum ox_status refuse(const struct ox_store_layout *layout, const uint64_t *bytes_max) {
    const uint64_t need =
        layout->state_offset * layout->drive_count + layout->generations * layout->state_bytes_sum +
        layout->fixed_bytes_sum +
        layout->spool_bytes_sum;
    uint64_t have = 0;
    uint32_t least = 0;
    for (uint32_t i = 0; i < layout->drive_count; i++) {
        least = bytes_max[i] < bytes_max[least] ? i : least;
        have += bytes_max[i] < UINT64_MAX - have ? bytes_max[i] : UINT64_MAX - have;
    }
    char need_text[OX_SIZE_TEXT_BYTES], have_text[OX_SIZE_TEXT_BYTES], state_text[OX_SIZE_TEXT_BYTES];
    char least_text[OX_SIZE_TEXT_BYTES];
    return ox_fail(
        OX_E_CONFIG,
        "the store needs %s (%" PRIu64 " bytes: %s of %s of state, and spool), but the %u "
        "drive allowance(s) total %s, which is too little or too unevenly split; allow more, first on drive %u, "
        "which has the least (%s)",
        ox_size_text(need, need_text), need, ox_store_generations_text(layout->generations),
        ox_size_text(layout->state_bytes_sum, state_text), layout->drive_count, ox_size_text(have, have_text), least,
        ox_size_text(bytes_max[least], least_text));
}

const char *ox_store_generations_text(uint32_t generations) {
    static const char *const texts[OX_STORE_GENERATIONS_MAX + 1] = {"", "one generation", "two generations",
                                                                    "three generations"};
    OX_ASSERT(generations <= OX_STORE_GENERATIONS_MAX);
    return texts[generations];
}

/* Checks each extent's sizes, and adds up the state. */
static enum ox_status extents_check(const struct ox_extent_spec *extents, uint32_t extent_count,
                                    struct ox_store_layout *layout) {
    for (uint32_t i = 0; i < extent_count; i++) {
        const struct ox_extent_spec *const spec = &extents[i];
        const bool fixed = ox_extent_is_fixed(spec);
        const uint64_t head_bytes = ox_extent_head_bytes(spec);
        if ((spec->bytes == 0 && !fixed) || spec->bytes % OX_IO_ALIGN_BYTES != 0 ||
            head_bytes % OX_IO_ALIGN_BYTES != 0 || head_bytes > spec->bytes) {
            return ox_fail(OX_E_CONFIG,
                           "extent %u: %" PRIu64 " bytes with a head of %" PRIu64
                           " must be multiples of %d, and the head at most the whole",
                           i, spec->bytes, spec->head_bytes, OX_IO_ALIGN_BYTES);
        }
        uint64_t *const sum = fixed ? &layout->fixed_bytes_sum : &layout->state_bytes_sum;
        if (!ox_add_u64(*sum, spec->bytes, sum) || *sum > INT64_MAX / 4) {
            return ox_fail(OX_E_CONFIG, "extent %u: the state is larger than any file can be", i);
        }
        layout->extent_bytes_max = ox_max_u64(layout->extent_bytes_max, spec->bytes);
    }
    return OX_OK;
}

/* Places the extents that are fixed, or the others, on drives that have `room`; records places only if layout->places
 * is not NULL. Leaves in stripe->used what they take. */
static enum ox_status extents_place(struct ox_store_layout *layout, const struct ox_extent_spec *extents, bool fixed,
                                    struct stripe *stripe) {
    stripe_share(stripe, fixed ? layout->fixed_bytes_sum : layout->state_bytes_sum);
    for (uint32_t i = 0; i < layout->extent_count; i++) {
        uint32_t drive_idx = 0;
        if (ox_extent_is_fixed(&extents[i]) != fixed) {
            continue;
        }
        if (!stripe_pick(stripe, extents[i].bytes, &drive_idx)) {
            return OX_E_CONFIG;
        }
        if (layout->places != NULL) {
            layout->places[i] = (struct ox_store_place){.drive_idx = drive_idx, .offset = stripe->used[drive_idx]};
        }
        stripe->used[drive_idx] += extents[i].bytes;
    }
    return OX_OK;
}

/* Places the state on the drives: what is fixed once, the rest for each generation. */
static enum ox_status state_place(struct ox_store_layout *layout, const struct ox_extent_spec *extents,
                                  const uint64_t *bytes_max) {
    struct stripe stripe = {.drive_count = layout->drive_count};
    stripe_speed(&stripe, layout->speeds);
    for (uint32_t i = 0; i < stripe.drive_count; i++) {
        if (bytes_max[i] < layout->state_offset) {
            return refuse(layout, bytes_max);
        }
        stripe.room[i] = bytes_max[i] - layout->state_offset;
    }
    if (layout->fixed_bytes_sum > 0 && extents_place(layout, extents, true, &stripe) != OX_OK) {
        return refuse(layout, bytes_max);
    }
    for (uint32_t i = 0; i < stripe.drive_count; i++) {
        layout->fixed_bytes[i] = stripe.used[i];
        stripe.room[i] = (stripe.room[i] - stripe.used[i]) / layout->generations;
        stripe.used[i] = 0;
    }
    if (extents_place(layout, extents, false, &stripe) != OX_OK) {
        return refuse(layout, bytes_max);
    }
    for (uint32_t i = 0; i < stripe.drive_count; i++) {
        layout->generation_bytes[i] = stripe.used[i];
        layout->file_bytes[i] =
            layout->state_offset + layout->fixed_bytes[i] + layout->generations * stripe.used[i];
    }
    return OX_OK;
}

/* Computes where the list of extents, both tables and the state begin. */
static void fixed_place(struct ox_store_layout *layout) {
    const uint64_t count = layout->extent_count;
    layout->geometry_bytes = ox_align_up(count * sizeof(struct ox_extent_spec), OX_IO_ALIGN_BYTES);
    layout->table_bytes = ox_align_up(count * sizeof(struct ox_extent_sum), OX_IO_ALIGN_BYTES);
    layout->table_offset[0] = OX_STORE_GEOMETRY_OFFSET + layout->geometry_bytes;
    layout->table_offset[1] = layout->table_offset[0] + layout->table_bytes;
    layout->state_offset = layout->table_offset[1] + layout->table_bytes;
}

uint64_t ox_store_fixed_bytes(uint32_t extent_count) {
    struct ox_store_layout layout = {.extent_count = extent_count};
    fixed_place(&layout);
    return layout.state_offset;
}

static enum ox_status layout_begin(const struct ox_extent_spec *extents, uint32_t extent_count, uint32_t drive_count,
                                   struct ox_store_layout *layout) {
    OX_ASSERT(layout->generations <= OX_STORE_GENERATIONS_MAX);
    const enum ox_status status = extents_check(extents, extent_count, layout);
    layout->generations = ox_store_generations(layout->generations);
    layout->drive_count = drive_count;
    layout->extent_count = extent_count;
    fixed_place(layout);
    return status;
}

enum ox_status ox_store_layout_open(const struct ox_extent_spec *extents, uint32_t extent_count,
                                    const uint64_t *bytes_max, uint32_t drive_count,
                                    struct ox_store_layout *layout) {
    enum ox_status status = layout_begin(extents, extent_count, drive_count, layout);
    if (status != OX_OK) {
        return status;
    }
    layout->extents = calloc(extent_count, sizeof *layout->extents);
    layout->places = calloc(extent_count, sizeof *layout->places);
    if (layout->extents == NULL || layout->places == NULL) {
        status = ox_fail(OX_E_NOMEM, "no memory for the list of %u extents", extent_count);
        goto fail;
    }
    memcpy(layout->extents, extents, extent_count * sizeof *extents);
    status = state_place(layout, extents, bytes_max);
    if (status != OX_OK) {
        goto fail;
    }
    return OX_OK;
fail:
    ox_store_layout_close(layout);
    return status;
}

enum ox_status ox_store_layout_add_spool(struct ox_store_layout *layout, const uint64_t *spool_bytes,
                                         uint32_t spool_count, const uint64_t *bytes_max) {
    struct stripe stripe = {.drive_count = layout->drive_count};
    stripe_speed(&stripe, layout->speeds);
    for (uint32_t i = 0; i < spool_count; i++) {
        if (spool_bytes[i] % OX_IO_ALIGN_BYTES != 0 ||
            !ox_add_u64(layout->spool_bytes_sum, spool_bytes[i], &layout->spool_bytes_sum)) {
            return ox_fail(OX_E_CONFIG, "spool extent %u: %" PRIu64 " bytes are not a multiple of %d", i,
                           spool_bytes[i], OX_IO_ALIGN_BYTES);
        }
    }
    for (uint32_t i = 0; i < stripe.drive_count; i++) {
        if (bytes_max[i] < layout->file_bytes[i]) {
            return refuse(layout, bytes_max);
        }
        stripe.room[i] = bytes_max[i] - layout->file_bytes[i];
    }
    if (spool_count == 0) {
        return OX_OK;
    }
    layout->spool_bytes = calloc(spool_count, sizeof *layout->spool_bytes);
    layout->spools = calloc(spool_count, sizeof *layout->spools);
    if (layout->spool_bytes == NULL || layout->spools == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for the list of %u spool extents", spool_count);
    }
    layout->spool_count = spool_count;
    stripe_share(&stripe, layout->spool_bytes_sum);
    for (uint32_t i = 0; i < spool_count; i++) {
        struct ox_store_place *const place = &layout->spools[i];
        if (!stripe_pick(&stripe, spool_bytes[i], &place->drive_idx)) {
            return refuse(layout, bytes_max);
        }
        layout->spool_bytes[i] = spool_bytes[i];
        place->offset = layout->file_bytes[place->drive_idx] + stripe.used[place->drive_idx];
        stripe.used[place->drive_idx] += spool_bytes[i];
    }
    for (uint32_t i = 0; i < stripe.drive_count; i++) {
        layout->file_bytes[i] += stripe.used[i];
    }
    return OX_OK;
}

enum ox_status ox_store_fits(const struct ox_store_config *config) {
    struct ox_store_layout layout = {.generations = config->generations};
    if (config->speeds != NULL) {
        memcpy(layout.speeds, config->speeds, config->drive_count * sizeof *config->speeds);
    }
    enum ox_status status = layout_begin(config->extents, config->extent_count, config->drive_count, &layout);
    OX_THEN(status, state_place(&layout, config->extents, config->bytes_max));
    OX_THEN(status, ox_store_layout_add_spool(&layout, config->spool_bytes, config->spool_count, config->bytes_max));
    ox_store_layout_close(&layout);
    return status;
}

/* Placement of an extent fails only if every drive has less room than it needs. That cannot happen while all drives
 * together have room for everything still to be placed and for one more extent per drive except one. */
bool ox_store_surely_fits(const struct ox_store_config *config, const struct ox_store_sums *state) {
    const uint64_t fixed = ox_store_fixed_bytes(state->extent_count);
    const uint64_t generations = ox_store_generations(config->generations);
    unsigned __int128 state_room = 0, room = 0, spool = 0;
    uint64_t spool_max = 0;
    for (uint32_t i = 0; i < config->drive_count; i++) {
        if (config->bytes_max[i] < fixed) {
            return false;
        }
        state_room += (config->bytes_max[i] - fixed) / generations;
        room += config->bytes_max[i] - fixed;
    }
    for (uint32_t i = 0; i < config->spool_count; i++) {
        if (config->spool_bytes[i] % OX_IO_ALIGN_BYTES != 0) {
            return false;
        }
        spool += config->spool_bytes[i];
        spool_max = ox_max_u64(spool_max, config->spool_bytes[i]);
    }
    const unsigned __int128 others = config->drive_count - 1u, written = (unsigned __int128)state->bytes * generations;
    return config->drive_count > 0 && state->bytes <= INT64_MAX / 4 && spool <= INT64_MAX / 4 &&
           state_room >= state->bytes + others * state->extent_bytes_max &&
           room >= written + spool + others * spool_max;
}

void ox_store_layout_close(struct ox_store_layout *layout) {
    free(layout->extents);
    free(layout->places);
    free(layout->spool_bytes);
    free(layout->spools);
    memset(layout, 0, sizeof *layout);
}

uint64_t ox_store_geometry_hash(const struct ox_extent_spec *extents, uint32_t extent_count) {
    return ox_hash64(extents, extent_count * sizeof *extents, extent_count);
}
