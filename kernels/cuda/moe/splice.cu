/* Parts of heads, put together and taken apart: a thread takes neighbouring elements of a row of `out`, finds the part
 * that writes them, and reads what that part has of each head. And matrices turned, by tiles. */
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

enum { ROW_THREADS = 128 };

/* N elements of row blockIdx.x, all of them of the same parts. */
template <typename T, int N> static __global__ void splice_elements(const ox_op_splice op) {
    const uint32_t col = (blockIdx.y * ROW_THREADS + threadIdx.x) * N;
    if (col >= op.out_width) {
        return;
    }
    const T *const row = (const T *)op.in + (uint64_t)blockIdx.x * op.in_width;
    const uint64_t at = (uint64_t)blockIdx.x * op.out_width + col;
    float value[N] = {};
    bool has = op.residual != op.out;
    if (op.residual != NULL) {
        ox_load<T, N>(value, (const T *)op.residual + at);
    }
    for (uint32_t i = 0; i < op.part_count; i++) {
        const ox_splice_part part = op.parts[i];
        uint32_t from;
        if (part_has(part, col, &from)) {
            float sum[N], more[N];
            ox_load<T, N>(sum, row + from);
            for (uint32_t head = 1; part.out_stride == 0 && head < part.heads; head++) {
                ox_load<T, N>(more, row + from + head * part.in_stride);
#pragma unroll
                for (int k = 0; k < N; k++) {
                    sum[k] += more[k];
                }
            }
#pragma unroll
            for (int k = 0; k < N; k++) {
                value[k] += sum[k];
            }
            has = true;
        }
    }
    if (has) {
        ox_store<T, N>((T *)op.out + at, value);
    }
}

/* Whether all parts begin and end at a multiple of `count` elements, in rows that do. */
template <typename T> static bool parts_are_wide(const ox_op_splice *op) {
    enum { N = ox_wide<T>::COUNT };
    bool wide = ox_all_wide<T>(op->out, op->out_width, op->out_width) &&
                ox_all_wide<T>(op->in, op->in_width, op->in_width) && ox_all_wide<T>(op->residual, 0, 0);
    for (uint32_t i = 0; i < op->part_count; i++) {
        const ox_splice_part &part = op->parts[i];
        wide = wide && (part.out_first | part.out_stride | part.in_first | part.in_stride | part.width) % N == 0;
    }
    return wide;
}

extern "C" ox_status ox_cuda_splice(const ox_cuda_queue *queue, const void *args) {
    const ox_op_splice *const op = (const ox_op_splice *)args;
    return ox_for_real(op->real, [=](auto of) {
        using T = decltype(of);
        enum { N = ox_wide<T>::COUNT };
        const bool wide = parts_are_wide<T>(op);
        const uint32_t stretch = ROW_THREADS * (wide ? (uint32_t)N : 1);
        ox_launch(wide ? splice_elements<T, N> : splice_elements<T, 1>, queue,
                  ox_launch_shape{dim3(op->rows, (op->out_width + stretch - 1) / stretch), ROW_THREADS, 0}, *op);
        return OX_OK;
    });
}

enum { TILE = 32, TILE_ROWS = 8 };

/* A block turns a tile: both matrices are read and written along their rows. */
template <typename T> static __global__ void turn_tiles(const ox_op_turn op) {
    __shared__ T tile[TILE][TILE + 1];
    const uint32_t row = blockIdx.x * TILE, col = blockIdx.y * TILE;
    for (uint32_t y = threadIdx.y; y < TILE; y += TILE_ROWS) {
        if (row + y < op.rows && col + threadIdx.x < op.cols) {
            tile[y][threadIdx.x] = ((const T *)op.in)[(uint64_t)(row + y) * op.cols + col + threadIdx.x];
        }
    }
    __syncthreads();
    for (uint32_t y = threadIdx.y; y < TILE; y += TILE_ROWS) {
        if (col + y < op.cols && row + threadIdx.x < op.rows) {
            T *const out = (T *)op.out + (uint64_t)(col + y) * op.rows + row + threadIdx.x;
            const T value = tile[threadIdx.x][y];
            if (op.adds) {
                ox_narrow(ox_widen(*out) + ox_widen(value), out);
            } else {
                *out = value;
            }
        }
    }
}

extern "C" ox_status ox_cuda_turn(const ox_cuda_queue *queue, const void *args) {
    const ox_op_turn *const op = (const ox_op_turn *)args;
    const dim3 tiles((op->rows + TILE - 1) / TILE, (op->cols + TILE - 1) / TILE);
    return ox_for_real(op->real, [=](auto of) {
        ox_launch(turn_tiles<decltype(of)>, queue, ox_launch_shape{tiles, dim3(TILE, TILE_ROWS), 0}, *op);
        return OX_OK;
    });
}
