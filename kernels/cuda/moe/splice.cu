/* Parts of heads, put together and taken apart: a thread takes an element of a row of `out`, finds the part that writes
 * it, and reads what that part has of each head. And matrices turned, an element of `out` for each thread. */
#include "kernels/cuda/kernel.cuh"

/* Whether a part writes column `col` of `out`; then *from is the first element of `in` that it reads. */
static __device__ __forceinline__ bool part_has(const ox_splice_part part, uint32_t col, uint32_t *from) {
    if (col < part.out_first) {
        return false;
    }
    const uint32_t at = col - part.out_first;
    const uint32_t head = part.out_stride == 0 ? 0 : at / part.out_stride;
    const uint32_t j = at - head * part.out_stride;
    *from = part.in_first + head * part.in_stride + j;
    return head < part.heads && j < part.width;
}

template <typename T> static __global__ void splice_elements(const ox_op_splice op) {
    const uint64_t count = (uint64_t)op.rows * op.out_width, stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t at = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += stride) {
        const uint32_t col = (uint32_t)(at % op.out_width);
        const T *const row = (const T *)op.in + at / op.out_width * op.in_width;
        float value = op.residual != NULL ? ox_widen(((const T *)op.residual)[at]) : 0.0f;
        bool has = op.residual != op.out;
        for (uint32_t i = 0; i < op.part_count; i++) {
            const ox_splice_part part = op.parts[i];
            uint32_t from;
            if (part_has(part, col, &from)) {
                float sum = ox_widen(row[from]);
                for (uint32_t head = 1; part.out_stride == 0 && head < part.heads; head++) {
                    sum += ox_widen(row[from + head * part.in_stride]);
                }
                value += sum;
                has = true;
            }
        }
        if (has) {
            ox_narrow(value, (T *)op.out + at);
        }
    }
}

extern "C" ox_status ox_cuda_splice(const ox_cuda_queue *queue, const void *args) {
    const ox_op_splice *const op = (const ox_op_splice *)args;
    const uint64_t count = (uint64_t)op->rows * op->out_width;
    return ox_for_real(op->real, [=](auto of) {
        ox_launch(splice_elements<decltype(of)>, queue,
                  ox_launch_shape{ox_grid_for(queue, count, OX_BLOCK_THREADS), OX_BLOCK_THREADS, 0}, *op);
        return OX_OK;
    });
}

template <typename T> static __global__ void turn_elements(const ox_op_turn op) {
    const uint64_t count = (uint64_t)op.rows * op.cols, stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t at = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += stride) {
        const uint64_t row = at % op.rows, col = at / op.rows;
        const T value = ((const T *)op.in)[row * op.cols + col];
        T *const out = (T *)op.out + at;
        if (op.adds) {
            ox_narrow(ox_widen(*out) + ox_widen(value), out);
        } else {
            *out = value;
        }
    }
}

extern "C" ox_status ox_cuda_turn(const ox_cuda_queue *queue, const void *args) {
    const ox_op_turn *const op = (const ox_op_turn *)args;
    const uint64_t count = (uint64_t)op->rows * op->cols;
    return ox_for_real(op->real, [=](auto of) {
        ox_launch(turn_elements<decltype(of)>, queue,
                  ox_launch_shape{ox_grid_for(queue, count, OX_BLOCK_THREADS), OX_BLOCK_THREADS, 0}, *op);
        return OX_OK;
    });
}
