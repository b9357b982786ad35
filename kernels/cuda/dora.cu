/* Magnitudes of adapters (DoRA): a warp has a row of the weights, whose squares its lanes add in a fixed order; a thread
 * has a column of a gradient and goes through its rows in order. */
#include "kernels/cuda/kernel.cuh"

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
