/* How attention is cut where a library computes it that keeps the scores' gradients of its heads in memory, queries by
 * keys: heads are then taken in turn, so many at once that the memory stays small. */
#ifndef OX_KERNELS_ATTENTION_SLICES_H
#define OX_KERNELS_ATTENTION_SLICES_H

#include "kernels/ops.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a forward pass of a library may take; and up to where more heads are taken at once. */
enum { OX_ATTENTION_LIBRARY_BYTES = 64 << 10, OX_ATTENTION_SLICE_BYTES = 64 << 20 };

/* A slice is `kv_heads` heads of keys and values with their queries, of `batch` sequences; both divide the shape's.
 * Its scratch is the row sums and, behind them, what the library asks for. A function of the shape alone, where
 * `slice_bytes` is OX_ATTENTION_SLICE_BYTES; less cuts more finely. */
struct ox_attention_slices {
    uint32_t batch, kv_heads;
    uint64_t sums_bytes, library_bytes;
};

/* False where even one head of keys and values wants too much: then attention is not the library's. */
bool ox_attention_slices_of(const struct ox_attention_shape *shape, uint64_t slice_bytes,
                            struct ox_attention_slices *out);

/* Of either pass, for the sizes in ops.h. */
uint64_t ox_attention_library_scratch_bytes(const struct ox_attention_shape *shape);

#ifdef __cplusplus
}
#endif
#endif
