#include "kernels/head_walk.h"

#include "base/assert.h"
#include "base/bytes.h"

enum {
    HELD_MAX = 16 * 1024 * 1024, /* floats */
    HELD_ROWS_MIN = 384, /* with fewer rows at once, adding to dweight costs more than computing again */
    VOCAB_TILE = 4096,
    ROW_TILE = 1024,
    ROW_GRAIN = 32,
    PART_GRAIN = 16, /* parts of the scratch begin at a cache line */
};

static uint32_t min_u32(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

struct ox_head_walk ox_head_walk_of(uint32_t rows, uint32_t vocab) {
    OX_ASSERT(rows > 0 && vocab > 0);
    struct ox_head_walk walk = {.tile_vocab = min_u32(vocab, VOCAB_TILE)};
    const uint32_t fit = HELD_MAX / vocab;
    walk.held = fit >= min_u32(rows, HELD_ROWS_MIN);
    if (walk.held) {
        const uint32_t group_count = (uint32_t)ox_div_up(rows, fit);
        const uint32_t even = (uint32_t)ox_align_up(ox_div_up(rows, group_count), ROW_GRAIN);
        walk.group_rows = min_u32(min_u32(even, fit), rows);
        walk.tile_rows = walk.group_rows;
        walk.logit_stride = vocab;
    } else {
        walk.group_rows = rows;
        walk.tile_rows = min_u32(rows, ROW_TILE);
        walk.logit_stride = walk.tile_vocab;
    }
    return walk;
}

static uint64_t weight_len(const struct ox_head_walk *walk, uint32_t hidden) {
    return ox_align_up((uint64_t)walk->tile_vocab * hidden, PART_GRAIN);
}

static uint64_t state_len(uint32_t rows) {
    return ox_align_up(rows, PART_GRAIN);
}

uint64_t ox_head_scratch_bytes(uint32_t rows, uint32_t hidden, uint32_t vocab) {
    const struct ox_head_walk walk = ox_head_walk_of(rows, vocab);
    const uint64_t state_bytes = state_len(rows) * (sizeof(double) + 2 * sizeof(float));
    const uint64_t logits_len = walk.tile_rows * walk.logit_stride;
    return state_bytes + (weight_len(&walk, hidden) + logits_len) * sizeof(float);
}

struct ox_head_scratch ox_head_scratch_at(void *scratch, uint32_t rows, uint32_t hidden, uint32_t vocab) {
    const struct ox_head_walk walk = ox_head_walk_of(rows, vocab);
    const uint64_t len = state_len(rows);
    struct ox_head_scratch out = {.sum = scratch};
    out.max = (float *)(out.sum + len);
    out.target_logit = out.max + len;
    out.weight = out.target_logit + len;
    out.logits = out.weight + weight_len(&walk, hidden);
    return out;
}
