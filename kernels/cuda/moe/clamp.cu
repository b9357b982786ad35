/* Clamping of queries, keys and values: neighbouring lanes share a word of bits, and a chunk without an element to
 * change is not written. */
#include "kernels/cuda/kernel.cuh"

enum { WORD = 32, ROW_THREADS = 128 };

/* The chunk of a thread in row blockIdx.x, its word of the row, and where in the word its bits begin. */
template <typename T> struct place {
    enum { N = ox_wide<T>::COUNT, LANES = WORD / N };
    uint32_t at, word, shift;

    __device__ __forceinline__ place()
        : at((blockIdx.y * ROW_THREADS + threadIdx.x) * N), word(at / WORD), shift(at % WORD) {}
};

template <bool WIDE, typename T> static __global__ void clamp_words(const ox_op_clamp_forward op, uint32_t words) {
    const place<T> of;
    T *const row = (T *)op.inout + (uint64_t)blockIdx.x * op.row_stride;
    ox_chunk<T> chunk = ox_row_get<WIDE>(row, of.at, op.width);
    uint32_t inside = 0, there = 0;
    float value[of.N];
#pragma unroll
    for (uint32_t k = 0; k < of.N; k++) {
        const float x = chunk.at(k);
        there |= (of.at + k < op.width ? 1u : 0u) << k;
        inside |= (x >= -op.limit && x <= op.limit ? 1u : 0u) << k;
        value[k] = x > op.limit ? op.limit : x < -op.limit ? -op.limit : x;
    }
    inside &= there;
    if (inside != there) {
        chunk.set(value);
        ox_row_put<WIDE>(row, of.at, op.width, chunk);
    }
    uint32_t bits = inside << of.shift;
#pragma unroll
    for (int distance = of.LANES / 2; distance > 0; distance /= 2) {
        bits |= __shfl_xor_sync(0xffffffffu, bits, distance);
    }
    if (op.inside != NULL && of.shift == 0 && of.word < words) {
        op.inside[(uint64_t)blockIdx.x * words + of.word] = bits;
    }
}

template <bool WIDE, typename T>
static __global__ void clamp_back_words(const ox_op_clamp_backward op, uint32_t words) {
    const place<T> of;
    if (of.at >= op.width) {
        return;
    }
    T *const row = (T *)op.dinout + (uint64_t)blockIdx.x * op.row_stride;
    const uint32_t inside = op.inside[(uint64_t)blockIdx.x * words + of.word] >> of.shift, all = (1u << of.N) - 1;
    if ((inside & all) == all) {
        return;
    }
    ox_chunk<T> chunk = ox_row_get<WIDE>(row, of.at, op.width);
    float value[of.N];
#pragma unroll
    for (uint32_t k = 0; k < of.N; k++) {
        value[k] = (inside >> k & 1) != 0 ? chunk.at(k) : 0.0f;
    }
    chunk.set(value);
    ox_row_put<WIDE>(row, of.at, op.width, chunk);
}

template <typename T> static ox_launch_shape by_words(uint32_t rows, uint32_t words) {
    const uint32_t lanes = words * (WORD / ox_wide<T>::COUNT);
    return ox_launch_shape{dim3(rows, (lanes + ROW_THREADS - 1) / ROW_THREADS), ROW_THREADS, 0};
}

extern "C" ox_status ox_cuda_clamp_forward(const ox_cuda_queue *queue, const void *args) {
    const ox_op_clamp_forward *const op = (const ox_op_clamp_forward *)args;
    const uint32_t words = ox_clamp_words(op->width);
    return ox_for_real(op->real, [=](auto of) {
        using T = decltype(of);
        const bool is_wide = ox_all_wide<T>(op->inout, op->width, op->row_stride);
        ox_launch(is_wide ? clamp_words<true, T> : clamp_words<false, T>, queue, by_words<T>(op->rows, words), *op,
                  words);
        return OX_OK;
    });
}

extern "C" ox_status ox_cuda_clamp_backward(const ox_cuda_queue *queue, const void *args) {
    const ox_op_clamp_backward *const op = (const ox_op_clamp_backward *)args;
    const uint32_t words = ox_clamp_words(op->width);
    return ox_for_real(op->real, [=](auto of) {
        using T = decltype(of);
        const bool is_wide = ox_all_wide<T>(op->dinout, op->width, op->row_stride);
        ox_launch(is_wide ? clamp_back_words<true, T> : clamp_back_words<false, T>, queue,
                  by_words<T>(op->rows, words), *op, words);
        return OX_OK;
    });
}
