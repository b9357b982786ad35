/* Sinks of attention: they shrink what attention without them has computed, by any of our kernels or by cuDNN, and move
 * its log-sum-exp. Forward reads and writes the outputs once more, backward reads them and their gradients. Some
 * neighbouring lanes, a power of two, have a head; those of a block have different heads of the same row. */
#include "kernels/cuda/kernel.cuh"

enum { GROUPS_MAX = 512 };

/* Where the log-sum-exp of head 0 of a row lies; that of the next head is op.seq further. */
template <typename P> static __device__ __forceinline__ uint64_t lse_at(const P &op, uint32_t row) {
    return (uint64_t)(row / op.seq) * op.heads * op.seq + row % op.seq;
}

template <bool WIDE, typename T> static __global__ void sinks_forward(const ox_op_sinks_forward op, uint32_t lanes) {
    enum { N = ox_wide<T>::COUNT };
    const uint32_t head = blockIdx.y * (blockDim.x / lanes) + threadIdx.x / lanes, begin = threadIdx.x % lanes * N;
    const uint32_t there = head < op.heads ? op.head_dim : 0;
    float *const lse = op.lse + lse_at(op, blockIdx.x) + (uint64_t)head * op.seq;
    T *const out = (T *)op.out + ((uint64_t)blockIdx.x * op.heads + head) * op.head_dim;
    ox_chunk<T> chunk = ox_row_get<WIDE>(out, begin, there);
    const float sink = there > 0 ? ox_widen(((const T *)op.sinks)[head]) : 0.0f, before = there > 0 ? *lse : 0.0f;
    const float top = fmaxf(sink, before), after = top + log1pf(expf(fminf(sink, before) - top));
    const float share = expf(before - after);
    for (uint32_t at = begin; at < there; at += lanes * N) {
        float x[N];
        chunk = at == begin ? chunk : ox_row_get<WIDE>(out, at, there);
#pragma unroll
        for (int k = 0; k < N; k++) {
            x[k] = chunk.at(k) * share;
        }
        chunk.set(x);
        ox_row_put<WIDE>(out, at, there, chunk);
    }
    __syncwarp(); /* every lane of the head has read the old value */
    if (there > 0 && begin == 0) {
        *lse = after;
    }
}

/* Sums of group blockIdx.x of the rows; those of all heads lie side by side. */
template <bool WIDE, typename T>
static __global__ void sinks_backward(const ox_op_sinks_backward op, float *sums, uint32_t lanes) {
    enum { N = ox_wide<T>::COUNT };
    const uint32_t rows = op.batch * op.seq, per_group = (rows + gridDim.x - 1) / gridDim.x;
    const uint32_t first = blockIdx.x * per_group, past = first + per_group < rows ? first + per_group : rows;
    const uint32_t head = blockIdx.y * (blockDim.x / lanes) + threadIdx.x / lanes, begin = threadIdx.x % lanes * N;
    const bool is_there = head < op.heads;
    const float sink = is_there ? ox_widen(((const T *)op.sinks)[head]) : 0.0f;
    float sum = 0.0f;
#pragma unroll 4
    for (uint32_t row = first; row < past; row++) {
        const uint64_t from = ((uint64_t)row * op.heads + head) * op.head_dim;
        float delta = 0.0f;
        for (uint32_t at = begin; is_there && at < op.head_dim; at += lanes * N) {
            const ox_chunk<T> dout = ox_row_get<WIDE>((const T *)op.dout + from, at, op.head_dim);
            const ox_chunk<T> out = ox_row_get<WIDE>((const T *)op.out + from, at, op.head_dim);
#pragma unroll
            for (int k = 0; k < N; k++) {
                delta = __fmaf_rn(dout.at(k), out.at(k), delta);
            }
        }
        if (is_there) { /* over the lane's own elements */
            sum -= expf(sink - op.lse[lse_at(op, row) + (uint64_t)head * op.seq]) * delta;
        }
    }
    sum = ox_lanes_sum(sum, lanes);
    if (is_there && begin == 0) {
        sums[(uint64_t)blockIdx.x * op.heads + head] = sum;
    }
}

/* A warp adds the groups of one head. */
static __global__ void add_sinks(float *dsinks, const float *sums, uint32_t heads, uint32_t groups, bool begins) {
    float sum = 0.0f;
    for (uint32_t group = threadIdx.x; group < groups; group += OX_WARP) {
        sum += sums[(uint64_t)group * heads + blockIdx.x];
    }
    sum = ox_warp_sum(sum);
    if (threadIdx.x == 0) {
        dsinks[blockIdx.x] = (begins ? 0.0f : dsinks[blockIdx.x]) + sum;
    }
}

static ox_launch_shape by_heads(uint32_t x, uint32_t heads, uint32_t lanes) {
    const uint32_t per_block = OX_BLOCK_THREADS / lanes;
    return ox_launch_shape{dim3(x, (heads + per_block - 1) / per_block), OX_BLOCK_THREADS, 0};
}

extern "C" ox_status ox_cuda_sinks_forward(const ox_cuda_queue *queue, const void *args) {
    const ox_op_sinks_forward *const op = (const ox_op_sinks_forward *)args;
    return ox_for_real(op->real, [=](auto of) {
        using T = decltype(of);
        const uint32_t lanes = ox_lanes_for(op->head_dim, ox_wide<T>::COUNT);
        const bool is_wide = ox_all_wide<T>(op->out, op->head_dim, 0);
        ox_launch(is_wide ? sinks_forward<true, T> : sinks_forward<false, T>, queue,
                  by_heads(op->batch * op->seq, op->heads, lanes), *op, lanes);
        return OX_OK;
    });
}

/* The groups' sums are in the workspace of the GEMMs, which only this lane uses, one operation after another. */
extern "C" ox_status ox_cuda_sinks_backward(const ox_cuda_queue *queue, const void *args) {
    const ox_op_sinks_backward *const op = (const ox_op_sinks_backward *)args;
    const uint32_t rows = op->batch * op->seq;
    const uint64_t room = OX_CUDA_WORKSPACE_BYTES / (op->heads * sizeof(float));
    const uint32_t most = room < (uint64_t)GROUPS_MAX ? (uint32_t)room : (uint32_t)GROUPS_MAX;
    const uint32_t wanted = (rows + 7) / 8, groups = wanted < most ? wanted : most;
    float *const sums = (float *)queue->device->workspace;
    return ox_for_real(op->real, [=](auto of) {
        using T = decltype(of);
        const uint32_t lanes = ox_lanes_for(op->head_dim, ox_wide<T>::COUNT);
        const bool is_wide = ox_all_wide<T>(op->out, op->head_dim, 0) && ox_all_wide<T>(op->dout, op->head_dim, 0);
        ox_launch(is_wide ? sinks_backward<true, T> : sinks_backward<false, T>, queue,
                  by_heads(groups, op->heads, lanes), *op, sums, lanes);
        ox_launch(add_sinks, queue, ox_launch_shape{op->heads, OX_WARP, 0}, op->dsinks, (const float *)sums, op->heads,
                  groups, op->begins);
        return OX_OK;
    });
}
