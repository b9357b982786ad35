/* Sinks of attention: they shrink what attention without them has computed, by any of our kernels or by cuDNN, and move
 * its log-sum-exp. Forward reads and writes the outputs once more, backward reads them and their gradients. */
#include "kernels/cuda/kernel.cuh"

template <typename P> static __device__ __forceinline__ uint64_t lse_at(const P &op, uint64_t row, uint32_t head) {
    return (row / op.seq * op.heads + head) * op.seq + row % op.seq;
}

/* A warp has one head of one row. */
template <typename T> static __global__ void sinks_forward(const ox_op_sinks_forward op) {
    const uint64_t at = (uint64_t)blockIdx.x * (blockDim.x / OX_WARP) + threadIdx.x / OX_WARP;
    if (at >= (uint64_t)op.batch * op.seq * op.heads) {
        return;
    }
    const uint32_t head = (uint32_t)(at % op.heads);
    float *const lse = op.lse + lse_at(op, at / op.heads, head);
    const float sink = ox_widen(((const T *)op.sinks)[head]), before = *lse;
    const float top = fmaxf(sink, before), after = top + log1pf(expf(fminf(sink, before) - top));
    const float share = expf(before - after);
    T *const out = (T *)op.out + at * op.head_dim;
    for (uint32_t i = threadIdx.x % OX_WARP; i < op.head_dim; i += OX_WARP) {
        ox_narrow(ox_widen(out[i]) * share, &out[i]);
    }
    __syncwarp(); /* every lane has read the old value */
    if (threadIdx.x % OX_WARP == 0) {
        *lse = after;
    }
}

/* A block has one head; its warps take the rows by turns and are added in order. */
template <typename T> static __global__ void sinks_backward(const ox_op_sinks_backward op) {
    __shared__ float slots[OX_WARP];
    const uint32_t head = blockIdx.x, lane = threadIdx.x % OX_WARP, warps = blockDim.x / OX_WARP;
    const float sink = ox_widen(((const T *)op.sinks)[head]);
    float sum = 0.0f;
    for (uint64_t row = threadIdx.x / OX_WARP; row < (uint64_t)op.batch * op.seq; row += warps) {
        const uint64_t at = (row * op.heads + head) * op.head_dim;
        float delta = 0.0f;
        for (uint32_t i = lane; i < op.head_dim; i += OX_WARP) {
            delta = __fmaf_rn(ox_widen(((const T *)op.dout)[at + i]), ox_widen(((const T *)op.out)[at + i]), delta);
        }
        sum -= expf(sink - op.lse[lse_at(op, row, head)]) * delta; /* over the lane's own elements */
    }
    sum = ox_block_sum(sum, slots);
    if (threadIdx.x == 0) {
        op.dsinks[head] = (op.begins ? 0.0f : op.dsinks[head]) + sum;
    }
}

extern "C" ox_status ox_cuda_sinks_forward(const ox_cuda_queue *queue, const void *args) {
    const ox_op_sinks_forward *const op = (const ox_op_sinks_forward *)args;
    const uint64_t warps = OX_BLOCK_THREADS / OX_WARP, count = (uint64_t)op->batch * op->seq * op->heads;
    return ox_for_real(op->real, [=](auto of) {
        ox_launch(sinks_forward<decltype(of)>, queue,
                  ox_launch_shape{(unsigned)((count + warps - 1) / warps), OX_BLOCK_THREADS, 0}, *op);
        return OX_OK;
    });
}

extern "C" ox_status ox_cuda_sinks_backward(const ox_cuda_queue *queue, const void *args) {
    const ox_op_sinks_backward *const op = (const ox_op_sinks_backward *)args;
    return ox_for_real(op->real, [=](auto of) {
        ox_launch(sinks_backward<decltype(of)>, queue,
                  ox_launch_shape{op->heads, OX_BLOCK_THREADS, 0}, *op);
        return OX_OK;
    });
}
