#include "kernels/head_walk.h"

#include "base/assert.h"
#include "base/bytes.h"

enum {
    HELD_MAX = 16 * 1024 * 1024, /* floats */
    HELD_ROWS_MIN = 384, /* with fewer rows at once, adding to dweight costs more than computing the logits twice */
    VOCAB_TILE = 4096,
    ROW_TILE = 1024,
    ROW_GRAIN = 32,
    PART_GRAIN = 16, /* each part of the scratch begins at a cache line */
};

/* For a GPU. The sums of the weights' gradients are read and written once per group of rows: larger groups make that
 * cheaper, up to a few thousand rows. */
enum {
    GPU_HELD_MAX = 128 * 1024 * 1024, /* floats */
    GPU_GROUP_ROWS_MAX = 4096,
    GPU_VOCAB_TILE = 8192, /* where weights have to be joined */
};

static uint32_t min_u32(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

/* Cuts rows into groups of at most `most` rows; all have the same size but the last. */
static uint32_t even_groups(uint32_t rows, uint32_t most) {
    const uint32_t group_count = (uint32_t)ox_div_up(rows, most);
    const uint32_t even = (uint32_t)ox_align_up(ox_div_up(rows, group_count), ROW_GRAIN);
    return min_u32(min_u32(even, most), rows);
}

static struct ox_head_walk gpu_walk(enum ox_real real, uint32_t rows, uint32_t vocab) {
    struct ox_head_walk walk = {.held = true, .logit_stride = ox_align_up(vocab, PART_GRAIN)};
    const uint32_t fit = min_u32(GPU_GROUP_ROWS_MAX, (uint32_t)(GPU_HELD_MAX / walk.logit_stride));
    walk.group_rows = even_groups(rows, fit == 0 ? 1 : fit);
    walk.tile_rows = walk.group_rows;
    walk.tile_vocab = real == OX_REAL_BF16 ? vocab : min_u32(vocab, GPU_VOCAB_TILE);
    return walk;
}

struct ox_head_walk ox_head_walk_of(const struct ox_compute *compute, uint32_t rows, uint32_t vocab) {
    OX_ASSERT(rows > 0 && vocab > 0);
    if (compute->device != OX_DEVICE_CPU) {
        return gpu_walk(compute->real, rows, vocab);
    }
    struct ox_head_walk walk = {.tile_vocab = min_u32(vocab, VOCAB_TILE)};
    const uint32_t fit = HELD_MAX / vocab;
    walk.held = fit >= min_u32(rows, HELD_ROWS_MIN);
    if (walk.held) {
        walk.group_rows = even_groups(rows, fit);
        walk.tile_rows = walk.group_rows;
        walk.logit_stride = vocab;
    } else {
        walk.group_rows = rows;
        walk.tile_rows = min_u32(rows, ROW_TILE);
        walk.logit_stride = walk.tile_vocab;
    }
    return walk;
}

/* Floats of room for the weights of a tile. Weights in bfloat16 are used in place. */
static uint64_t weight_len(const struct ox_compute *compute, const struct ox_head_walk *walk, uint32_t hidden) {
    const uint64_t bytes = (uint64_t)walk->tile_vocab * hidden * ox_real_bytes(compute->real);
    return compute->real == OX_REAL_BF16 ? 0 : ox_align_up(ox_div_up(bytes, sizeof(float)), PART_GRAIN);
}

static uint64_t state_len(uint32_t rows) {
    return ox_align_up(rows, PART_GRAIN);
}

uint64_t ox_head_scratch_bytes(const struct ox_compute *compute, uint32_t rows, uint32_t hidden, uint32_t vocab) {
    const struct ox_head_walk walk = ox_head_walk_of(compute, rows, vocab);
    const uint64_t state_bytes = state_len(rows) * (sizeof(double) + 2 * sizeof(float));
    const uint64_t logits_len = walk.tile_rows * walk.logit_stride;
    return state_bytes + (weight_len(compute, &walk, hidden) + logits_len) * sizeof(float);
}

struct ox_head_scratch ox_head_scratch_at(const struct ox_compute *compute, void *scratch, uint32_t rows,
                                          uint32_t hidden, uint32_t vocab) {
    const struct ox_head_walk walk = ox_head_walk_of(compute, rows, vocab);
    const uint64_t len = state_len(rows);
    struct ox_head_scratch out = {.sum = scratch};
    out.max = (float *)(out.sum + len);
    out.target_logit = out.max + len;
    out.weight = out.target_logit + len;
    out.logits = out.weight + weight_len(compute, &walk, hidden);
    return out;
}
