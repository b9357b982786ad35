/* Clamping of queries, keys and values: a thread takes the 32 elements of one word of bits, which it reads and writes
 * once. */
#include "kernels/cuda/kernel.cuh"

enum { WORD = 32 };

template <typename T> static __global__ void clamp_words(const ox_op_clamp_forward op, uint32_t words) {
    const uint64_t count = (uint64_t)op.rows * words, stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t at = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += stride) {
        const uint32_t begin = (uint32_t)(at % words) * WORD;
        T *const row = (T *)op.inout + at / words * op.row_stride;
        uint32_t inside = 0;
        for (uint32_t i = 0; i < WORD && begin + i < op.width; i++) {
            const float value = ox_widen(row[begin + i]);
            inside |= (value >= -op.limit && value <= op.limit ? 1u : 0u) << i;
            ox_narrow(value > op.limit ? op.limit : value < -op.limit ? -op.limit : value, &row[begin + i]);
        }
        if (op.inside != NULL) {
            op.inside[at] = inside;
        }
    }
}

template <typename T> static __global__ void clamp_back_words(const ox_op_clamp_backward op, uint32_t words) {
    const uint64_t count = (uint64_t)op.rows * words, stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t at = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += stride) {
        const uint32_t begin = (uint32_t)(at % words) * WORD, inside = op.inside[at];
        T *const row = (T *)op.dinout + at / words * op.row_stride;
        for (uint32_t i = 0; i < WORD && begin + i < op.width; i++) {
            if ((inside >> i & 1) == 0) {
                ox_narrow(0.0f, &row[begin + i]);
            }
        }
    }
}

static ox_launch_shape by_words(const ox_cuda_queue *queue, uint32_t rows, uint32_t width) {
    const uint64_t words = (uint64_t)rows * ox_clamp_words(width);
    return ox_launch_shape{ox_grid_for(queue, words, OX_BLOCK_THREADS), OX_BLOCK_THREADS, 0};
}

extern "C" ox_status ox_cuda_clamp_forward(const ox_cuda_queue *queue, const void *args) {
    const ox_op_clamp_forward *const op = (const ox_op_clamp_forward *)args;
    return ox_for_real(op->real, [=](auto of) {
        ox_launch(clamp_words<decltype(of)>, queue,
                  by_words(queue, op->rows, op->width), *op, ox_clamp_words(op->width));
        return OX_OK;
    });
}

extern "C" ox_status ox_cuda_clamp_backward(const ox_cuda_queue *queue, const void *args) {
    const ox_op_clamp_backward *const op = (const ox_op_clamp_backward *)args;
    return ox_for_real(op->real, [=](auto of) {
        ox_launch(clamp_back_words<decltype(of)>, queue,
                  by_words(queue, op->rows, op->width), *op, ox_clamp_words(op->width));
        return OX_OK;
    });
}
