/* Losses of pairs of sequences, noise, and what adapters have beside products: dropout and magnitudes. A thread takes a
 * sequence, then one all pairs: a micro-batch has few of them beside the rows of its head. */
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

/* ---- magnitudes of adapters (DoRA): a warp has a row of the weights, whose squares its lanes add in a fixed order; a
 * thread has a column of a gradient and goes through its rows in order ---- */

template <typename T> static __global__ void norm_rows(const ox_op_dora_norm op) {
    __shared__ double sums[OX_WARP];
    const uint32_t o = blockIdx.x, lane = threadIdx.x;
    const bool out_in = op.layout == OX_WEIGHT_OUT_IN;
    double sum = 0.0;
    for (uint32_t k = lane; k < op.in_count; k += OX_WARP) {
        float value = ox_widen(((const T *)op.weight)[out_in ? (uint64_t)o * op.in_count + k
                                                             : (uint64_t)k * op.out_count + o]);
        for (uint32_t j = 0; j < op.r; j++) {
            value += op.scale * ox_widen(((const T *)op.b)[(uint64_t)o * op.r + j]) *
                     ox_widen(((const T *)op.a)[(uint64_t)j * op.in_count + k]);
        }
        sum += (double)value * (double)value;
    }
    sums[lane] = sum;
    __syncthreads();
    if (lane == 0) {
        double total = 0.0;
        for (int i = 0; i < OX_WARP; i++) {
            total += sums[i];
        }
        op.norm[o] = (float)sqrt(total);
    }
}

extern "C" ox_status ox_cuda_dora_norm(const ox_cuda_queue *queue, const void *args) {
    const ox_op_dora_norm *const op = (const ox_op_dora_norm *)args;
    return ox_for_real(op->real, [=](auto of) {
        ox_launch(norm_rows<decltype(of)>, queue, ox_launch_shape{dim3(op->out_count), OX_WARP, 0}, *op);
        return OX_OK;
    });
}

template <typename T> static __device__ __forceinline__ float bias_at(const void *bias, uint32_t col) {
    return bias == NULL ? 0.0f : ox_widen(((const T *)bias)[col]);
}

template <typename T> static __global__ void forward_elements(const ox_op_dora_forward op) {
    const uint64_t count = (uint64_t)op.rows * op.cols, stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        const uint32_t col = (uint32_t)(i % op.cols);
        const uint64_t at = i / op.cols * op.stride + col;
        const float bias = bias_at<T>(op.bias, col), factor = ox_widen(((const T *)op.magnitude)[col]) / op.norm[col];
        ox_narrow((ox_widen(((const T *)op.in)[at]) - bias) * factor + bias, (T *)op.out + at);
    }
}

extern "C" ox_status ox_cuda_dora_forward(const ox_cuda_queue *queue, const void *args) {
    const ox_op_dora_forward *const op = (const ox_op_dora_forward *)args;
    const uint64_t count = (uint64_t)op->rows * op->cols;
    return ox_for_real(op->real, [=](auto of) {
        ox_launch(forward_elements<decltype(of)>, queue,
                  ox_launch_shape{ox_grid_for(queue, count, OX_BLOCK_THREADS), OX_BLOCK_THREADS, 0}, *op);
        return OX_OK;
    });
}

template <typename T> static __global__ void backward_cols(const ox_op_dora_backward op) {
    const uint32_t stride = gridDim.x * blockDim.x;
    for (uint32_t col = blockIdx.x * blockDim.x + threadIdx.x; col < op.cols; col += stride) {
        const float bias = bias_at<T>(op.bias, col), factor = ox_widen(((const T *)op.magnitude)[col]) / op.norm[col];
        double sum = 0.0;
        for (uint32_t row = 0; row < op.rows; row++) {
            const uint64_t at = (uint64_t)row * op.stride + col;
            const float dout = ox_widen(((const T *)op.dout)[at]);
            if (op.dmagnitude != NULL) {
                sum += (double)dout * (double)(ox_widen(((const T *)op.in)[at]) - bias);
            }
            ox_narrow(dout * factor, (T *)op.din + at);
        }
        if (op.dmagnitude != NULL) {
            const float own = (float)(sum / (double)op.norm[col]);
            op.dmagnitude[col] = op.begins ? own : op.dmagnitude[col] + own;
        }
    }
}

extern "C" ox_status ox_cuda_dora_backward(const ox_cuda_queue *queue, const void *args) {
    const ox_op_dora_backward *const op = (const ox_op_dora_backward *)args;
    return ox_for_real(op->real, [=](auto of) {
        ox_launch(backward_cols<decltype(of)>, queue,
                  ox_launch_shape{ox_grid_for(queue, op->cols, OX_BLOCK_THREADS), OX_BLOCK_THREADS, 0}, *op);
        return OX_OK;
    });
}
