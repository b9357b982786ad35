/* Rows of tokens to the rows of their experts, and back. Gathering reads and writes rows * chosen * width elements;
 * combining reads as many and writes rows * width, each element by one thread that adds its slots in order. */
#include "kernels/cuda/moe/group.cuh"

enum { ROW_THREADS = 128, COLUMN_ROWS = 8 };

/* A block takes a stretch of one row. */
static ox_launch_shape by_row(uint32_t rows, uint32_t width, unsigned per_thread) {
    const unsigned stretch = ROW_THREADS * per_thread;
    return ox_launch_shape{dim3(rows, (width + stretch - 1) / stretch), ROW_THREADS, 0};
}

template <typename T, int N> static __global__ void gather_rows(const ox_op_rows_gather op) {
    const uint32_t col = (blockIdx.y * blockDim.x + threadIdx.x) * N;
    if (col < op.width && ox_has_row(op.group, blockIdx.x)) {
        const uint64_t from = (uint32_t)op.pair_of[blockIdx.x] / op.chosen;
        ox_put((T *)op.out + (uint64_t)blockIdx.x * op.width + col,
               ox_get<T, N>((const T *)op.in + from * op.width + col));
    }
}

template <typename T> static ox_status gather(const ox_cuda_queue *queue, const ox_op_rows_gather *op) {
    enum { N = ox_wide<T>::COUNT };
    const bool wide = ox_all_wide<T>(op->out, op->width, op->width) && ox_all_wide<T>(op->in, op->width, op->width);
    ox_launch(wide ? gather_rows<T, N> : gather_rows<T, 1>, queue,
              by_row(op->rows * op->chosen, op->width, wide ? N : 1), *op);
    return OX_OK;
}

extern "C" ox_status ox_cuda_rows_gather(const ox_cuda_queue *queue, const void *args) {
    const ox_op_rows_gather *const op = (const ox_op_rows_gather *)args;
    return ox_for_real(op->real, [=](auto of) { return gather<decltype(of)>(queue, op); });
}

template <typename T, int N> static __global__ void combine_rows(const ox_op_rows_combine op) {
    const uint32_t col = (blockIdx.y * blockDim.x + threadIdx.x) * N;
    const uint64_t row = blockIdx.x, at = row * op.width + col;
    if (col >= op.width) {
        return;
    }
    float sum[N] = {0.0f}, part[N];
    if (op.sum != NULL && !op.begins) {
        ox_load<float, N>(sum, op.sum + at);
    }
    for (uint32_t i = 0; i < op.chosen; i++) {
        const uint64_t pair = row * op.chosen + (op.from_last ? op.chosen - 1 - i : i);
        if (!ox_has_pair(op.group, op.experts, pair)) {
            continue;
        }
        ox_load<T, N>(part, (const T *)op.in + (uint64_t)op.place[pair] * op.width + col);
#pragma unroll
        for (int k = 0; k < N; k++) {
            sum[k] += part[k];
        }
        if (op.bias != NULL) {
            const uint64_t expert = (uint32_t)op.experts[pair] - op.group.first;
            ox_load<T, N>(part, (const T *)op.bias + expert * op.width + col);
#pragma unroll
            for (int k = 0; k < N; k++) {
                sum[k] = __fmaf_rn(op.weights[pair], part[k], sum[k]);
            }
        }
    }
    if (op.out == NULL) {
        ox_store<float, N>(op.sum + at, sum);
        return;
    }
    if (op.residual != NULL) {
        ox_load<T, N>(part, (const T *)op.residual + at);
#pragma unroll
        for (int k = 0; k < N; k++) {
            sum[k] = part[k] + sum[k];
        }
    }
    ox_store<T, N>((T *)op.out + at, sum);
}

template <typename T> static ox_status combine(const ox_cuda_queue *queue, const ox_op_rows_combine *op) {
    enum { N = ox_wide<T>::COUNT };
    const void *const all[] = {op->out, op->residual, op->in, op->bias};
    bool wide = true;
    for (const void *ptr : all) {
        wide = wide && ox_all_wide<T>(ptr, op->width, op->width);
    }
    wide = wide && (uintptr_t)op->sum % 16 == 0;
    ox_launch(wide ? combine_rows<T, N> : combine_rows<T, 1>, queue, by_row(op->rows, op->width, wide ? N : 1), *op);
    return OX_OK;
}

extern "C" ox_status ox_cuda_rows_combine(const ox_cuda_queue *queue, const void *args) {
    const ox_op_rows_combine *const op = (const ox_op_rows_combine *)args;
    return ox_for_real(op->real, [=](auto of) { return combine<decltype(of)>(queue, op); });
}

/* ---- backward of the bias -------------------------------------------------------------------------- */

template <typename T> static __global__ void bias_weights(const ox_op_combine_bias_backward op) {
    const uint64_t pair = (uint64_t)blockIdx.x * (blockDim.x / OX_WARP) + threadIdx.x / OX_WARP;
    if (pair >= (uint64_t)op.rows * op.chosen || !ox_has_pair(op.group, op.experts, pair)) {
        return;
    }
    const T *const dout = (const T *)op.dout + pair / op.chosen * op.width;
    const T *const bias = (const T *)op.bias + (uint64_t)((uint32_t)op.experts[pair] - op.group.first) * op.width;
    float sum = 0.0f;
    for (uint32_t col = threadIdx.x % OX_WARP; col < op.width; col += OX_WARP) {
        sum = __fmaf_rn(ox_widen(dout[col]), ox_widen(bias[col]), sum);
    }
    sum = ox_warp_sum(sum);
    if (threadIdx.x % OX_WARP == 0) {
        op.dweights[pair] = sum;
    }
}

/* A block has OX_WARP columns of one expert; its warps take the expert's rows by turns and are added in order. */
template <typename T> static __global__ void bias_columns(const ox_op_combine_bias_backward op) {
    __shared__ float sums[COLUMN_ROWS][OX_WARP];
    const uint32_t expert = blockIdx.x, lane = threadIdx.x % OX_WARP, warp = threadIdx.x / OX_WARP;
    const uint32_t col = blockIdx.y * OX_WARP + lane;
    const int32_t *const offsets = op.group.offsets + op.group.first + expert;
    float sum = 0.0f;
    for (int32_t at = offsets[0] + (int32_t)warp; at < offsets[1]; at += COLUMN_ROWS) {
        const uint32_t pair = (uint32_t)op.pair_of[at];
        const uint64_t row = pair / op.chosen;
        const float dout = col < op.width ? ox_widen(((const T *)op.dout)[row * op.width + col]) : 0.0f;
        sum = __fmaf_rn(op.weights[pair], dout, sum);
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && col < op.width) {
        float *const to = op.dbias + (uint64_t)expert * op.width + col;
        float total = op.begins ? 0.0f : *to;
        for (int i = 0; i < COLUMN_ROWS; i++) {
            total += sums[i][lane];
        }
        *to = total;
    }
}

template <typename T>
static ox_status combine_bias_backward(const ox_cuda_queue *queue, const ox_op_combine_bias_backward *op) {
    const uint32_t warps = OX_BLOCK_THREADS / OX_WARP, pairs = op->rows * op->chosen;
    ox_launch(bias_weights<T>, queue, ox_launch_shape{(pairs + warps - 1) / warps, OX_BLOCK_THREADS, 0}, *op);
    if (op->dbias != NULL) {
        ox_launch(bias_columns<T>, queue,
                  ox_launch_shape{dim3(op->group.count, (op->width + OX_WARP - 1) / OX_WARP), COLUMN_ROWS * OX_WARP,
                                  0},
                  *op);
    }
    return OX_OK;
}

extern "C" ox_status ox_cuda_combine_bias_backward(const ox_cuda_queue *queue, const void *args) {
    const ox_op_combine_bias_backward *const op = (const ox_op_combine_bias_backward *)args;
    return ox_for_real(op->real, [=](auto of) { return combine_bias_backward<decltype(of)>(queue, op); });
}
