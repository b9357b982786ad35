/* Losses of pairs of sequences, and noise. A thread takes a sequence, then one all pairs: a micro-batch has few of them
 * beside the rows of its head. */
#include "kernels/cuda/kernel.cuh"

#include "base/prng/philox.h"
#include "kernels/pair_loss.h"

static __global__ void pairs_kernel(ox_op_pairs op) {
    __shared__ ox_pair_side sides[OX_PAIR_SEQUENCES_MAX];
    for (uint32_t i = threadIdx.x; i < op.batch; i += blockDim.x) {
        sides[i] = ox_pair_side_at(&op, i);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        ox_pairs_add_all(&op, sides);
    }
}

extern "C" ox_status ox_cuda_pairs(const ox_cuda_queue *queue, const void *args) {
    ox_launch(pairs_kernel, queue, ox_launch_shape{1, OX_BLOCK_THREADS, 0}, *(const ox_op_pairs *)args);
    return OX_OK;
}

/* A thread takes the four elements of a block of random words. */
template <typename T> static __global__ void noise_kernel(ox_op_noise op) {
    const uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    T *const inout = (T *)op.inout;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i * 4 < op.count; i += stride) {
        uint32_t words[4];
        ox_philox_words(op.seed, op.stream, i, words);
        for (uint64_t k = 0; k < 4 && i * 4 + k < op.count; k++) {
            float x[1];
            ox_load<T, 1>(x, inout + i * 4 + k);
            x[0] = __fadd_rn(x[0], __fmul_rn(op.magnitude, ox_philox_signed(words[k])));
            ox_store<T, 1>(inout + i * 4 + k, x);
        }
    }
}

extern "C" ox_status ox_cuda_noise(const ox_cuda_queue *queue, const void *args) {
    const ox_op_noise *const op = (const ox_op_noise *)args;
    const ox_launch_shape shape = {ox_grid_for(queue, op->count, OX_BLOCK_THREADS * 4), OX_BLOCK_THREADS, 0};
    return ox_for_real(op->real, [=](auto of) {
        ox_launch(noise_kernel<decltype(of)>, queue, shape, *op);
        return OX_OK;
    });
}

/* A thread takes the four elements of a block of random words. */
template <typename T> static __global__ void drop_kernel(ox_op_drop op) {
    const uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    const float scale = __fdiv_rn(1.0f, 1.0f - op.rate);
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i * 4 < op.count; i += stride) {
        uint32_t words[4];
        ox_philox_words(op.seed, op.stream, i, words);
        for (uint64_t k = 0; k < 4 && i * 4 + k < op.count; k++) {
            float x[1], added[1] = {0.0f};
            ox_load<T, 1>(x, (const T *)op.in + i * 4 + k);
            if (op.residual != NULL) {
                ox_load<T, 1>(added, (const T *)op.residual + i * 4 + k);
            }
            const bool drops = op.rate != 0.0f && ox_philox_drops(words[k], op.rate);
            const float kept = drops ? 0.0f : __fmul_rn(x[0], scale);
            x[0] = op.residual != NULL ? __fadd_rn(added[0], kept) : kept;
            ox_store<T, 1>((T *)op.out + i * 4 + k, x);
        }
    }
}

extern "C" ox_status ox_cuda_drop(const ox_cuda_queue *queue, const void *args) {
    const ox_op_drop *const op = (const ox_op_drop *)args;
    const ox_launch_shape shape = {ox_grid_for(queue, op->count, OX_BLOCK_THREADS * 4), OX_BLOCK_THREADS, 0};
    return ox_for_real(op->real, [=](auto of) {
        ox_launch(drop_kernel<decltype(of)>, queue, shape, *op);
        return OX_OK;
    });
}
