/* Shared by the kernels of grouped products: which rows of which expert a block has, and what each kernel computes. The
 * grids are static: as many blocks as the worst division of rows over experts needs, of which those without rows end at
 * once. A block finds its rows in the offsets on the device. */
#ifndef OX_KERNELS_CUDA_MOE_GROUPED_CUH
#define OX_KERNELS_CUDA_MOE_GROUPED_CUH

#include "kernels/cuda/kernel.cuh"

/* Expert e's tiles of TILE rows are numbered from (rows before it) / TILE + e on: so each has room for its own, and the
 * number of an expert's first tile rises with e. */
struct group_tile {
    uint32_t expert;
    int32_t begin, end; /* sorted rows, end: of the expert; no rows: begin >= end */
};

template <int TILE>
static __device__ __forceinline__ group_tile tile_of(const int32_t *offsets, uint32_t count, uint32_t tile) {
    const int32_t first = offsets[0];
    uint32_t low = 0, high = count; /* the last expert whose first tile is not behind this one */
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        const uint32_t begins = (uint32_t)(offsets[middle] - first) / TILE + middle;
        low = begins <= tile ? middle : low;
        high = begins <= tile ? high : middle;
    }
    const uint32_t begins = (uint32_t)(offsets[low] - first) / TILE + low;
    return group_tile{low, offsets[low] + (int32_t)((tile - begins) * TILE), offsets[low + 1]};
}

static inline uint32_t group_tiles(const ox_experts &experts, uint32_t tile) {
    return experts.rows_max / tile + experts.count;
}

/* out (rows, cols) = in (rows, depth) * W_e [+ bias_e]; W_e has (depth, cols), stored as that or, `along`, as its
 * transpose. */
template <typename T> struct group_rows_args {
    T *out;
    const T *in, *weight, *bias;
    const int32_t *offsets; /* of the call's experts */
    uint32_t count, depth, cols;
    bool along;
};
/* dweight_e (rows, cols) += a^T b over the expert's sorted rows; a: (pairs, rows), b: (pairs, cols). */
template <typename T> struct group_weights_args {
    float *dweight;
    const T *a, *b;
    const int32_t *offsets;
    uint32_t rows, cols;
    bool begins;
};

/* The tensor-core kernels take dimensions that are multiples of 8, and tensors on 16 bytes. */
static inline bool ox_grouped_mma_takes(const void *a, const void *b, const void *c, uint32_t in, uint32_t out) {
    return in % 8 == 0 && out % 8 == 0 && ((uintptr_t)a | (uintptr_t)b | (uintptr_t)c) % 16 == 0;
}
/* Of bfloat16 and halves. */
template <typename T>
OX_MUST ox_status ox_grouped_mma_rows(const ox_cuda_queue *queue, const ox_experts &experts,
                                      const group_rows_args<T> &args);
template <typename T>
OX_MUST ox_status ox_grouped_mma_weights(const ox_cuda_queue *queue, const ox_experts &experts,
                                         const group_weights_args<T> &args);

#endif
