#include "kernels/attention_slices.h"

#include "base/assert.h"
#include "base/bytes.h"

enum {
    PART_ALIGN = 256,
    PLACES_ALIGN = 128, /* queries and keys are counted in whole tiles */
    TILE_ROWS = 64,     /* queries that one block of a library's kernel takes, at least */
    WAVES = 2,          /* below this the processors that finish first wait for the others, launch after launch */
};

/* Bytes for the gradients of the scores in 16 bits; and for the gradients of keys and values per query head, in up to
 * 32 bits, before those of the query heads that share a key head are summed. */
static uint64_t library_bytes(const struct ox_attention_shape *shape, uint64_t heads) {
    const uint64_t places = ox_align_up(shape->seq, PLACES_ALIGN);
    return heads * (2 * places * places + 8 * (uint64_t)shape->seq * shape->head_dim) + OX_ATTENTION_LIBRARY_BYTES;
}

static uint64_t sums_bytes(const struct ox_attention_shape *shape, uint64_t heads) {
    return ox_align_up(heads * shape->seq * sizeof(float), PART_ALIGN);
}

static uint64_t scratch_bytes(const struct ox_attention_shape *shape, uint32_t batch, uint32_t kv_heads) {
    const uint64_t heads = (uint64_t)batch * kv_heads * (shape->heads / shape->kv_heads);
    return sums_bytes(shape, heads) + library_bytes(shape, heads);
}

bool ox_attention_slices_of(const struct ox_attention_shape *shape, uint64_t slice_bytes,
                            struct ox_attention_slices *out) {
    OX_ASSERT(shape->batch > 0 && shape->kv_heads > 0 && shape->heads % shape->kv_heads == 0);
    *out = (struct ox_attention_slices){.batch = 1, .kv_heads = 1};
    if (shape->seq > UINT32_C(1) << 16 || scratch_bytes(shape, 1, 1) > OX_ATTENTION_SLICE_BYTES) {
        return false;
    }
    for (uint32_t count = shape->kv_heads; count > 1; count--) {
        if (shape->kv_heads % count == 0 && scratch_bytes(shape, 1, count) <= slice_bytes) {
            out->kv_heads = count;
            break;
        }
    }
    for (uint32_t count = shape->batch; out->kv_heads == shape->kv_heads && count > 1; count--) {
        if (shape->batch % count == 0 && scratch_bytes(shape, count, shape->kv_heads) <= slice_bytes) {
            out->batch = count;
            break;
        }
    }
    const uint64_t heads = (uint64_t)out->batch * out->kv_heads * (shape->heads / shape->kv_heads);
    out->sums_bytes = sums_bytes(shape, heads);
    out->library_bytes = library_bytes(shape, heads);
    return true;
}

uint64_t ox_attention_slices_blocks(const struct ox_attention_shape *shape, const struct ox_attention_slices *slices) {
    const uint64_t heads = (uint64_t)slices->batch * slices->kv_heads * (shape->heads / shape->kv_heads);
    return heads * ox_div_up(shape->seq, TILE_ROWS);
}

bool ox_attention_slices_fill(const struct ox_attention_shape *shape, const struct ox_attention_slices *slices,
                              uint32_t processors) {
    return (slices->batch == shape->batch && slices->kv_heads == shape->kv_heads) ||
           ox_attention_slices_blocks(shape, slices) >= (uint64_t)WAVES * processors;
}

uint64_t ox_attention_library_scratch_bytes(const struct ox_attention_shape *shape) {
    struct ox_attention_slices slices;
    return ox_attention_slices_of(shape, OX_ATTENTION_SLICE_BYTES, &slices) ? slices.sums_bytes + slices.library_bytes
                                                  : OX_ATTENTION_LIBRARY_BYTES;
}
