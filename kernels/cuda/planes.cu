/* Operations on flat vectors: planes to weights for compute, sums, bfloat16 gradients. Memory limits all of them: a
 * thread takes four elements at a time, which are 16 bytes of fp32. */
#include "kernels/cuda/kernel.cuh"

enum { STEP = 4 };

template <typename T, int N>
static __global__ void join_kernel(T *out, const uint16_t *hi, const uint16_t *lo, uint64_t count,
                                   ox_unit_format format) {
    const uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count / N; i += stride) {
        const ox_pack<uint16_t, N> high = ox_get<uint16_t, N>(hi + i * N);
        ox_pack<uint16_t, N> low = {};
        if (lo != nullptr) {
            low = ox_get<uint16_t, N>(lo + i * N);
        }
        float joined[N];
#pragma unroll
        for (int k = 0; k < N; k++) {
            joined[k] = format == OX_FORMAT_FP16 ? ox_f16_to_f32(high.at[k]) : ox_join(high.at[k], low.at[k]);
        }
        ox_store<T, N>(out + i * N, joined);
    }
}

/* Eight-bit weights: the numbers of a step are of one block, and their bytes are read as a word. */
template <typename T>
static __global__ void unpack_kernel(T *out, const unsigned char *groups, uint64_t count, bool to_hi) {
    const uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count / STEP; i += stride) {
        const unsigned char *const group = groups + i * STEP / OX_GROUP_ELEMS * OX_BASE8_GROUP_BYTES;
        const uint64_t at = i * STEP % OX_GROUP_ELEMS;
        const uint16_t scale = ((const uint16_t *)group)[at / OX_BASE8_BLOCK];
        const uint32_t bytes = *(const uint32_t *)(group + OX_BASE8_SCALES_BYTES + at);
        float numbers[STEP];
#pragma unroll
        for (int k = 0; k < STEP; k++) {
            numbers[k] = ox_base8_number((unsigned char)(bytes >> 8 * k), scale);
            numbers[k] = to_hi ? ox_bf16_to_f32(ox_plane_hi(numbers[k])) : numbers[k];
        }
        ox_store<T, STEP>(out + i * STEP, numbers);
    }
}

/* A scale of 1 adds as it is: the product rounds nothing. */
template <typename T, int N>
static __global__ void add_kernel(T *target, const T *a, const T *b, uint64_t count, float scale) {
    const uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count / N; i += stride) {
        float x[N] = {}, y[N];
        if (a != nullptr) {
            ox_load<T, N>(x, a + i * N);
        }
        ox_load<T, N>(y, b + i * N);
#pragma unroll
        for (int k = 0; k < N; k++) {
            x[k] = a != nullptr ? __fmaf_rn(scale, y[k], x[k]) : scale * y[k];
        }
        ox_store<T, N>(target + i * N, x);
    }
}

template <typename T, int N> static __global__ void settle_kernel(ox_op_settle op) {
    const uint64_t stride = (uint64_t)gridDim.x * blockDim.x, count = (uint64_t)op.rows * op.cols;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count / N; i += stride) {
        float x[N], y[N] = {};
        ox_load<float, N>(x, op.in + i * N);
        if (op.bias != nullptr) {
            ox_load<T, N>(y, (const T *)op.bias + i * N % op.cols);
        }
#pragma unroll
        for (int k = 0; k < N; k++) {
            x[k] = op.bias != nullptr ? x[k] + y[k] : x[k];
        }
        if (op.residual != nullptr) {
            ox_load<T, N>(y, (const T *)op.residual + i * N);
        }
#pragma unroll
        for (int k = 0; k < N; k++) {
            x[k] = op.residual != nullptr ? y[k] + x[k] : x[k];
        }
        ox_store<T, N>((T *)op.out + i * N, x);
    }
}

template <int N> static __global__ void logits_kernel(float *logits, uint64_t count, float scale, float cap) {
    const uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count / N; i += stride) {
        float x[N];
        ox_load<float, N>(x, logits + i * N);
#pragma unroll
        for (int k = 0; k < N; k++) {
            x[k] *= scale;
            x[k] = cap == 0.0f ? x[k] : cap * tanhf(x[k] / cap);
        }
        ox_store<float, N>(logits + i * N, x);
    }
}

template <typename T, int N> static __global__ void pack_kernel(T *out, const float *in, uint64_t count) {
    const uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count / N; i += stride) {
        float x[N];
        ox_load<float, N>(x, in + i * N);
        ox_store<T, N>(out + i * N, x);
    }
}

/* Threads for `count` elements, STEP or one each. */
static ox_launch_shape flat(const ox_cuda_queue *queue, uint64_t count, bool is_wide) {
    const uint64_t per_block = OX_BLOCK_THREADS * (is_wide ? (uint64_t)STEP : 1);
    return ox_launch_shape{ox_grid_for(queue, count, per_block), OX_BLOCK_THREADS, 0};
}

static bool all_wide(const void *a, const void *b, const void *c, uint64_t count) {
    return ((uintptr_t)a | (uintptr_t)b | (uintptr_t)c) % 16 == 0 && count % STEP == 0;
}

template <typename T> static void add(const ox_cuda_queue *queue, const ox_op_add *op) {
    const bool is_wide = all_wide(op->target, op->a, op->b, op->count);
    ox_launch(is_wide ? add_kernel<T, STEP> : add_kernel<T, 1>, queue, flat(queue, op->count, is_wide),
              (T *)op->target, (const T *)op->a, (const T *)op->b, op->count, op->scale == 0.0f ? 1.0f : op->scale);
}

extern "C" ox_status ox_cuda_zero(const ox_cuda_queue *queue, const void *args) {
    const ox_op_zero *const op = (const ox_op_zero *)args;
    return op->bytes == 0 ? OX_OK : ox_cuda_check(cudaMemsetAsync(op->target, 0, op->bytes, queue->stream), "zero");
}

template <typename T> static ox_status join(const ox_cuda_queue *queue, const ox_op_planes_join *op) {
    if (op->format == OX_FORMAT_Q8) {
        ox_launch(unpack_kernel<T>, queue, flat(queue, op->count, true), (T *)op->out, (const unsigned char *)op->hi,
                  op->count, op->to_hi);
        return OX_OK;
    }
    const bool is_wide = all_wide(op->out, op->hi, op->lo, op->count);
    ox_launch(is_wide ? join_kernel<T, STEP> : join_kernel<T, 1>, queue, flat(queue, op->count, is_wide),
              (T *)op->out, op->hi, op->lo, op->count, op->format);
    return OX_OK;
}

extern "C" ox_status ox_cuda_planes_join(const ox_cuda_queue *queue, const void *args) {
    const ox_op_planes_join *const op = (const ox_op_planes_join *)args;
    return ox_for_real(op->real, [=](auto of) { return join<decltype(of)>(queue, op); });
}

extern "C" ox_status ox_cuda_add(const ox_cuda_queue *queue, const void *args) {
    const ox_op_add *const op = (const ox_op_add *)args;
    return ox_for_real(op->real, [=](auto of) {
        add<decltype(of)>(queue, op);
        return OX_OK;
    });
}

template <typename T> static ox_status settle(const ox_cuda_queue *queue, const ox_op_settle *op) {
    const uint64_t count = (uint64_t)op->rows * op->cols;
    const bool is_wide = all_wide(op->out, op->in, op->residual, op->cols) && (uintptr_t)op->bias % 16 == 0;
    ox_launch(is_wide ? settle_kernel<T, STEP> : settle_kernel<T, 1>, queue, flat(queue, count, is_wide), *op);
    return OX_OK;
}

extern "C" ox_status ox_cuda_settle(const ox_cuda_queue *queue, const void *args) {
    const ox_op_settle *const op = (const ox_op_settle *)args;
    return ox_for_real(op->real, [=](auto of) { return settle<decltype(of)>(queue, op); });
}

extern "C" ox_status ox_cuda_logits(const ox_cuda_queue *queue, const void *args) {
    const ox_op_logits *const op = (const ox_op_logits *)args;
    const bool is_wide = all_wide(op->logits, nullptr, nullptr, op->count);
    ox_launch(is_wide ? logits_kernel<STEP> : logits_kernel<1>, queue, flat(queue, op->count, is_wide), op->logits,
              op->count, op->scale == 0.0f ? 1.0f : op->scale, op->cap);
    return OX_OK;
}

extern "C" ox_status ox_cuda_narrow(const ox_cuda_queue *queue, enum ox_real real, void *out, const float *in,
                                   uint64_t count) {
    const bool is_wide = all_wide(out, in, nullptr, count);
    return ox_for_real(real, [=](auto of) {
        using T = decltype(of);
        ox_launch(is_wide ? pack_kernel<T, STEP> : pack_kernel<T, 1>, queue, flat(queue, count, is_wide), (T *)out, in,
                  count);
        return OX_OK;
    });
}

extern "C" ox_status ox_cuda_bf16_pack(const ox_cuda_queue *queue, const void *args) {
    const ox_op_bf16_pack *const op = (const ox_op_bf16_pack *)args;
    return ox_cuda_narrow(queue, OX_REAL_BF16, op->out, op->in, op->count);
}

enum { EIGHT = 8, EIGHT_LANES = OX_BLOCK8_ELEMS / EIGHT }; /* of the numbers of a block, by neighbouring lanes */

/* The word of codes of four numbers. */
static __device__ __forceinline__ uint32_t codes_of(const ox_chunk<float> &chunk, float inverse) {
    uint32_t word = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const signed char code = inverse > 0.0f ? (signed char)rintf(chunk.at(k) * inverse) : 0;
        word |= (uint32_t)(unsigned char)code << 8 * k;
    }
    return word;
}

/* The lanes of a warp have blocks that lie side by side. */
template <bool WIDE>
static __global__ void block8_pack_kernel(unsigned char *blocks, const float *in, uint64_t count, uint64_t bytes) {
    const uint64_t block_count = (count + OX_BLOCK8_ELEMS - 1) / OX_BLOCK8_ELEMS;
    const uint64_t at = ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) * EIGHT;
    const uint32_t there = at >= count ? 0 : count - at < EIGHT ? (uint32_t)(count - at) : (uint32_t)EIGHT;
    const ox_chunk<float> low = ox_row_get<WIDE>(in + at, 0, there), high = ox_row_get<WIDE>(in + at, 4, there);
    float most = 0.0f, zero = 0.0f;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        most = fmaxf(most, fmaxf(fabsf(low.at(k)), fabsf(high.at(k))));
        zero += low.at(k) * 0.0f + high.at(k) * 0.0f; /* not 0 where one is not finite */
    }
#pragma unroll
    for (int distance = EIGHT_LANES / 2; distance > 0; distance /= 2) {
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, distance));
        zero += __shfl_xor_sync(0xffffffffu, zero, distance);
    }
    const float scale = ox_block8_scale(most + zero), inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    unsigned char *const block = blocks + at / OX_BLOCK8_ELEMS * OX_BLOCK8_BYTES;
    uint32_t *const codes = (uint32_t *)(block + 4 + at % OX_BLOCK8_ELEMS);
    if (at / OX_BLOCK8_ELEMS < block_count) {
        if (at % OX_BLOCK8_ELEMS == 0) {
            *(float *)block = scale;
        }
        codes[0] = codes_of(low, inverse);
        codes[1] = codes_of(high, inverse);
    }
    const uint64_t past = block_count * OX_BLOCK8_BYTES + threadIdx.x;
    if (blockIdx.x == 0 && past < bytes) {
        blocks[past] = 0;
    }
}

template <bool WIDE>
static __global__ void block8_unpack_kernel(float *out, const unsigned char *blocks, uint64_t count) {
    const uint64_t at = ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) * EIGHT;
    if (at >= count) {
        return;
    }
    const uint32_t there = count - at < EIGHT ? (uint32_t)(count - at) : (uint32_t)EIGHT;
    const unsigned char *const block = blocks + at / OX_BLOCK8_ELEMS * OX_BLOCK8_BYTES;
    const uint32_t *const codes = (const uint32_t *)(block + 4 + at % OX_BLOCK8_ELEMS);
    const float scale = *(const float *)block;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t word = codes[i];
        float numbers[4];
        ox_chunk<float> chunk;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            numbers[k] = (float)(signed char)(word >> 8 * k) * scale;
        }
        chunk.set(numbers);
        ox_row_put<WIDE>(out + at, i * 4, there, chunk);
    }
}

/* A thread has EIGHT numbers, some of which may not be there. */
static ox_launch_shape by_eights(uint64_t count) {
    const uint64_t per_block = OX_BLOCK_THREADS * EIGHT;
    return ox_launch_shape{(unsigned)(count == 0 ? 1 : (count + per_block - 1) / per_block), OX_BLOCK_THREADS, 0};
}

extern "C" ox_status ox_cuda_block8_pack(const ox_cuda_queue *queue, const void *args) {
    const ox_op_block8_pack *const op = (const ox_op_block8_pack *)args;
    ox_launch(all_wide(op->in, nullptr, nullptr, op->count) ? block8_pack_kernel<true> : block8_pack_kernel<false>,
              queue, by_eights(op->count), (unsigned char *)op->blocks, op->in, op->count,
              ox_exchange_bytes(OX_EXCHANGE_Q8, op->count));
    return OX_OK;
}

extern "C" ox_status ox_cuda_block8_unpack(const ox_cuda_queue *queue, const void *args) {
    const ox_op_block8_unpack *const op = (const ox_op_block8_unpack *)args;
    ox_launch(all_wide(op->out, nullptr, nullptr, op->count) ? block8_unpack_kernel<true> : block8_unpack_kernel<false>,
              queue, by_eights(op->count), op->out, (const unsigned char *)op->blocks, op->count);
    return OX_OK;
}
