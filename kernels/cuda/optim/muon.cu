/* The Newton-Schulz iterations of Muon, to the bit what a processor computes (cpu_optim/muon.c). Every element of a
 * product is summed in the order of its index and without fused multiply-adds (this file is compiled so), which tensor
 * cores cannot do. So the products are our own: a block of threads makes 128 x 128 elements, a thread 8 x 8 of them,
 * in registers, from pieces of both matrices in shared memory; meanwhile the next pieces are on their way.
 *
 * What lies behind a border is read as zeros. That adds 0 to sums that begin with 0, so these keep their bits: they are
 * never -0. Of a symmetric product the blocks below the diagonal are copied from those above. */
#include "base/bytes.h"
#include "kernels/cuda/kernel.cuh"

enum {
    TILE = 128,
    DEPTH = 16,
    OWN = 8,             /* rows and columns of a thread */
    ACROSS = TILE / OWN, /* threads across a block, and down it */
    PIECE = TILE * DEPTH / OX_BLOCK_THREADS,
    PITCH = TILE + 4,
};
static_assert(ACROSS * ACROSS == OX_BLOCK_THREADS, "a thread for each part of a block");

struct product_args {
    float *out;
    const float *a, *b, *d; /* d NULL: nothing is added */
    uint32_t rows, inner, cols;
    float alpha, beta;
};

/* How threads read a piece of a matrix of (lines, inner): neighbours go along `inner`. */
static __device__ __forceinline__ void read_lines(float piece[PIECE], const float *from, uint32_t line, uint32_t lines,
                                                  uint32_t first, uint32_t inner) {
#pragma unroll
    for (uint32_t i = 0; i < PIECE; i++) {
        const uint32_t nth = i * OX_BLOCK_THREADS + threadIdx.x, at = line + nth / DEPTH, k = first + nth % DEPTH;
        piece[i] = at < lines && k < inner ? from[(uint64_t)at * inner + k] : 0.0f;
    }
}
static __device__ __forceinline__ void put_lines(float to[DEPTH][PITCH], const float piece[PIECE]) {
#pragma unroll
    for (uint32_t i = 0; i < PIECE; i++) {
        const uint32_t nth = i * OX_BLOCK_THREADS + threadIdx.x;
        to[nth % DEPTH][nth / DEPTH] = piece[i];
    }
}

/* How threads read a piece of a matrix of (inner, cols): neighbours go along `cols`. */
static __device__ __forceinline__ void read_cols(float piece[PIECE], const float *from, uint32_t col, uint32_t cols,
                                                 uint32_t first, uint32_t inner) {
#pragma unroll
    for (uint32_t i = 0; i < PIECE; i++) {
        const uint32_t nth = i * OX_BLOCK_THREADS + threadIdx.x, at = col + nth % TILE, k = first + nth / TILE;
        piece[i] = at < cols && k < inner ? from[(uint64_t)k * cols + at] : 0.0f;
    }
}
static __device__ __forceinline__ void put_cols(float to[DEPTH][PITCH], const float piece[PIECE]) {
#pragma unroll
    for (uint32_t i = 0; i < PIECE; i++) {
        const uint32_t nth = i * OX_BLOCK_THREADS + threadIdx.x;
        to[nth / TILE][nth % TILE] = piece[i];
    }
}

static __device__ __forceinline__ void write_own(const product_args &args, const float sums[OWN][OWN], uint32_t row,
                                                 uint32_t col, bool mirrors) {
#pragma unroll
    for (uint32_t i = 0; i < OWN; i++) {
        const uint32_t r = row + i;
        if (r >= args.rows) {
            return;
        }
        const uint64_t line = (uint64_t)r * args.cols;
#pragma unroll
        for (uint32_t j = 0; j < OWN; j++) {
            const uint32_t c = col + j;
            if (c < args.cols) {
                const float value = args.beta * sums[i][j] + (args.d != NULL ? args.alpha * args.d[line + c] : 0.0f);
                args.out[line + c] = value;
                if (mirrors) {
                    args.out[(uint64_t)c * args.cols + r] = value;
                }
            }
        }
    }
}

/* out = alpha * d + beta * (a b), b being (inner, cols), or with TURNED the transpose of one of (cols, inner). With
 * SYMMETRIC out equals its transpose. */
template <bool TURNED, bool SYMMETRIC> static __global__ void __launch_bounds__(OX_BLOCK_THREADS, 2)
product_kernel(product_args args) {
    __shared__ float left[DEPTH][PITCH], right[DEPTH][PITCH];
    const uint32_t row = blockIdx.y * TILE, col = blockIdx.x * TILE;
    const uint32_t own_row = threadIdx.x / ACROSS * OWN, own_col = threadIdx.x % ACROSS * OWN;
    float sums[OWN][OWN] = {}, next_left[PIECE], next_right[PIECE];
    if (SYMMETRIC && col < row) {
        return; /* all threads of the block */
    }
    for (uint32_t first = 0; first < args.inner + DEPTH; first += DEPTH) {
        if (first > 0) {
            put_lines(left, next_left);
            if (TURNED) {
                put_lines(right, next_right);
            } else {
                put_cols(right, next_right);
            }
        }
        __syncthreads();
        if (first < args.inner) {
            read_lines(next_left, args.a, row, args.rows, first, args.inner);
            if (TURNED) {
                read_lines(next_right, args.b, col, args.cols, first, args.inner);
            } else {
                read_cols(next_right, args.b, col, args.cols, first, args.inner);
            }
        }
        for (uint32_t k = 0; k < DEPTH && first > 0; k++) {
            float factors[OWN], values[OWN];
#pragma unroll
            for (uint32_t i = 0; i < OWN; i++) {
                factors[i] = left[k][own_row + i];
                values[i] = right[k][own_col + i];
            }
#pragma unroll
            for (uint32_t i = 0; i < OWN; i++) {
#pragma unroll
                for (uint32_t j = 0; j < OWN; j++) {
                    sums[i][j] += factors[i] * values[j];
                }
            }
        }
        __syncthreads();
    }
    write_own(args, sums, row + own_row, col + own_col, SYMMETRIC && col > row);
}

template <bool TURNED, bool SYMMETRIC> static void multiply(const ox_cuda_queue *queue, const product_args &args) {
    const dim3 grid(ox_div_up(args.cols, TILE), ox_div_up(args.rows, TILE));
    ox_launch(product_kernel<TURNED, SYMMETRIC>, queue, ox_launch_shape{grid, OX_BLOCK_THREADS, 0}, args);
}

extern "C" ox_status ox_cuda_newton_schulz(const ox_cuda_queue *queue, const void *given) {
    const ox_op_newton_schulz *const op = (const ox_op_newton_schulz *)given;
    const uint64_t count = (uint64_t)op->rows * op->cols, square_count = (uint64_t)op->rows * op->rows;
    float *x = op->inout, *other = op->scratch, *const gram = other + count, *const square = gram + square_count;
    for (uint32_t i = 0; i < op->iterations; i++) {
        multiply<true, true>(queue, {gram, x, x, NULL, op->rows, op->cols, op->rows, 0.0f, 1.0f});
        multiply<false, true>(queue, {square, gram, gram, gram, op->rows, op->rows, op->rows, op->factors[1],
                                      op->factors[2]});
        multiply<false, false>(queue, {other, square, x, x, op->rows, op->rows, op->cols, op->factors[0], 1.0f});
        float *const swap = x;
        x = other;
        other = swap;
    }
    if (x == op->inout) {
        return OX_OK;
    }
    return ox_cuda_check(cudaMemcpyAsync(op->inout, x, count * sizeof *x, cudaMemcpyDefault, queue->stream),
                         "newton_schulz");
}
