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

/* The most that a library's forward pass may take; and the size up to which a slice takes more heads. */
enum { OX_ATTENTION_LIBRARY_BYTES = 64 << 10, OX_ATTENTION_SLICE_BYTES = 64 << 20 };

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

/* The larger scratch of forward and backward, for the sizes in ops.h. */
uint64_t ox_attention_library_scratch_bytes(const struct ox_attention_shape *shape);

#ifdef __cplusplus
}
#endif
#endif
