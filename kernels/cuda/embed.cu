/* The embedding and its gradient. Rows that name the same entry of a table are added by one block, in the order of the
 * rows, so that no two blocks add to one place and the sums are those of the CPU to the bit. */
#include "kernels/cuda/kernel.cuh"

static __device__ __forceinline__ float plane(const uint16_t *hi, const uint16_t *lo, uint64_t at) {
    return ox_join(hi[at], lo == nullptr ? (uint16_t)0 : lo[at]);
}

template <typename T> static __global__ void embed_kernel(ox_op_embed_forward op) {
    const uint64_t row = blockIdx.x, from = (uint64_t)op.ids[row] * op.hidden;
    T *const out = (T *)op.out + row * op.hidden;
    for (uint32_t i = threadIdx.x; i < op.hidden; i += blockDim.x) {
        float value = plane(op.table_hi, op.table_lo, from + i);
        if (op.pos_hi != nullptr) {
            value += plane(op.pos_hi, op.pos_lo, (uint64_t)op.positions[row] * op.hidden + i);
        }
        ox_narrow(value, &out[i]);
    }
}

/* Whether a row before `row` has its key; the same in all threads. */
static __device__ bool came_before(const int32_t *keys, uint32_t row, float *slots) {
    float found = 0.0f;
    for (uint32_t i = threadIdx.x; i < row; i += blockDim.x) {
        found = keys[i] == keys[row] ? 1.0f : found;
    }
    return ox_block_sum(found, slots) > 0.0f;
}

/* The block of the first row with a key adds all rows that have it. */
template <typename T>
static __global__ void scatter_kernel(float *table, const T *rows_in, const int32_t *keys, uint32_t rows,
                                      uint32_t hidden) {
    __shared__ float slots[OX_WARP];
    __shared__ int32_t window[OX_BLOCK_THREADS];
    const uint32_t first = blockIdx.x;
    if (came_before(keys, first, slots)) {
        return;
    }
    const int32_t key = keys[first];
    float *const target = table + (uint64_t)key * hidden;
    for (uint32_t begin = first; begin < rows; begin += OX_BLOCK_THREADS) {
        __syncthreads();
        window[threadIdx.x] = begin + threadIdx.x < rows ? keys[begin + threadIdx.x] : -1;
        __syncthreads();
        const uint32_t count = rows - begin < (uint32_t)OX_BLOCK_THREADS ? rows - begin : (uint32_t)OX_BLOCK_THREADS;
        for (uint32_t i = 0; i < count; i++) {
            if (window[i] != key) {
                continue;
            }
            const T *const source = rows_in + (uint64_t)(begin + i) * hidden;
            for (uint32_t col = threadIdx.x; col < hidden; col += OX_BLOCK_THREADS) {
                target[col] += ox_widen(source[col]);
            }
        }
    }
}

extern "C" ox_status ox_cuda_embed_forward(const ox_cuda_queue *queue, const void *given) {
    const ox_op_embed_forward *const op = (const ox_op_embed_forward *)given;
    ox_launch(embed_kernel<float>, queue, ox_launch_shape{op->rows, OX_BLOCK_THREADS, 0}, *op);
    return OX_OK;
}

extern "C" ox_status ox_cuda_embed_backward(const ox_cuda_queue *queue, const void *given) {
    const ox_op_embed_backward *const op = (const ox_op_embed_backward *)given;
    const ox_launch_shape shape = {op->rows, OX_BLOCK_THREADS, 0};
    ox_launch(scatter_kernel<float>, queue, shape, op->dtable, (const float *)op->dout, op->ids, op->rows, op->hidden);
    if (op->dpos != nullptr) {
        ox_launch(scatter_kernel<float>, queue, shape, op->dpos, (const float *)op->dout, op->positions, op->rows,
                  op->hidden);
    }
    return OX_OK;
}
