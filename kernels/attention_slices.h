/* How attention is cut into slices for a library that keeps the gradients of its scores in memory, queries by keys. The
 * slices run in turn, each with as many heads as keep that memory small. */
#ifndef OX_KERNELS_ATTENTION_SLICES_H
#define OX_KERNELS_ATTENTION_SLICES_H

#include "kernels/ops.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The most that a library's forward pass may take; and the most that a slice may: over 4096 tokens 8 heads of 128. It
 * is no choice of the plan, because another slice may be another engine of the library and so other bits, which must
 * not depend on a budget. */
enum { OX_ATTENTION_LIBRARY_BYTES = 64 << 10, OX_ATTENTION_SLICE_BYTES = 320 << 20 };

/* A slice is `kv_heads` heads of keys and values with their queries, of `batch` sequences; both divide the shape's
 * numbers. Its scratch is the row sums, followed by what the library asks for. With OX_ATTENTION_SLICE_BYTES for
 * `slice_bytes` it depends on the shape alone; fewer bytes cut more finely. */
struct ox_attention_slices {
    uint32_t batch, kv_heads;
    uint64_t sums_bytes, library_bytes;
};

/* False if even one head of keys and values needs too much memory: then our own kernels compute attention. */
bool ox_attention_slices_of(const struct ox_attention_shape *shape, uint64_t slice_bytes,
                            struct ox_attention_slices *out);

/* Blocks of a library's kernel over one slice, at most. */
uint64_t ox_attention_slices_blocks(const struct ox_attention_shape *shape, const struct ox_attention_slices *slices);
/* False if the cut leaves slices of less than two waves on a GPU of so many multiprocessors, which are faster with our
 * own kernels: these take all heads at once. What is not cut is taken as it is. */
bool ox_attention_slices_fill(const struct ox_attention_shape *shape, const struct ox_attention_slices *slices,
                              uint32_t processors);

/* The larger scratch of forward and backward, for the sizes in ops.h. */
uint64_t ox_attention_library_scratch_bytes(const struct ox_attention_shape *shape);

#ifdef __cplusplus
}
#endif
#endif
