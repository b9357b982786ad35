/* Grouped products in plain arithmetic: the device's own reference, and what computes float32 and shapes that the
 * tensor-core kernels do not take. A block has a tile of 64 by 64 and a thread 4 by 4 of it; each sum is one chain in
 * the order of k. A product of `rows` rows takes 2 rows in out operations, and reads the weights once for every 64 rows
 * of an expert. */
#include "kernels/cuda/moe/grouped.cuh"

enum { TILE = 64, STEP = 16, OWN = 4, SIDE = TILE / OWN, SUM_ROWS = 8 };

/* a(i, k) = at[i * step + k * k_step], for i < count and k < depth. */
template <typename T> struct operand {
    const T *at;
    uint64_t step, k_step;
    uint32_t count;
};

template <typename T>
static __device__ __forceinline__ void fetch(float to[STEP][TILE + 1], const operand<T> &from, uint32_t k,
                                             uint32_t depth) {
    for (uint32_t n = threadIdx.x; n < STEP * TILE; n += SIDE * SIDE) {
        const uint32_t i = from.k_step == 1 ? n / STEP : n % TILE, at = from.k_step == 1 ? n % STEP : n / TILE;
        to[at][i] = i < from.count && k + at < depth ? ox_widen(from.at[i * from.step + (k + at) * from.k_step]) : 0.0f;
    }
}

template <typename T>
static __device__ __forceinline__ void multiply(float acc[OWN][OWN], const operand<T> &a, const operand<T> &b,
                                                uint32_t depth) {
    __shared__ float left[STEP][TILE + 1], right[STEP][TILE + 1];
    const uint32_t row = threadIdx.x / SIDE * OWN, col = threadIdx.x % SIDE * OWN;
    for (uint32_t k = 0; k < depth; k += STEP) {
        fetch(left, a, k, depth);
        fetch(right, b, k, depth);
        __syncthreads();
        for (uint32_t at = 0; at < STEP && k + at < depth; at++) {
#pragma unroll
            for (int i = 0; i < OWN * OWN; i++) {
                acc[i / OWN][i % OWN] = __fmaf_rn(left[at][row + i / OWN], right[at][col + i % OWN],
                                                  acc[i / OWN][i % OWN]);
            }
        }
        __syncthreads();
    }
}

static __device__ __forceinline__ uint32_t tile_rest(uint32_t total, uint32_t begin) {
    return total - begin < TILE ? total - begin : (uint32_t)TILE;
}

template <typename T>
static __global__ void __launch_bounds__(SIDE *SIDE, 2) group_rows(const group_rows_args<T> args) {
    const group_tile tile = tile_of<TILE>(args.offsets, args.count, blockIdx.y);
    const uint32_t col_begin = blockIdx.x * TILE, row = threadIdx.x / SIDE * OWN, col = threadIdx.x % SIDE * OWN;
    if (tile.begin >= tile.end) {
        return;
    }
    const uint32_t rows = tile_rest((uint32_t)tile.end, (uint32_t)tile.begin), cols = tile_rest(args.cols, col_begin);
    const T *const weight = args.weight + (uint64_t)tile.expert * args.depth * args.cols;
    const operand<T> a = {args.in + (uint64_t)tile.begin * args.depth, args.depth, 1, rows};
    const operand<T> b = {weight + (args.along ? (uint64_t)col_begin * args.depth : col_begin),
                          args.along ? args.depth : 1, args.along ? 1 : args.cols, cols};
    float acc[OWN][OWN] = {{0.0f}};
    multiply(acc, a, b, args.depth);
#pragma unroll
    for (int i = 0; i < OWN * OWN; i++) {
        const uint32_t r = row + i / OWN, c = col + i % OWN;
        if (r < rows && c < cols) {
            const uint64_t at = (uint64_t)tile.expert * args.cols + col_begin + c;
            ox_narrow(acc[i / OWN][i % OWN] + (args.bias == NULL ? 0.0f : ox_widen(args.bias[at])),
                      &args.out[((uint64_t)tile.begin + r) * args.cols + col_begin + c]);
        }
    }
}

template <typename T>
static __global__ void __launch_bounds__(SIDE *SIDE, 2) group_weights(const group_weights_args<T> args) {
    const int32_t begin = args.offsets[blockIdx.z];
    const uint32_t depth = (uint32_t)(args.offsets[blockIdx.z + 1] - begin);
    const uint32_t row_begin = blockIdx.y * TILE, col_begin = blockIdx.x * TILE;
    const uint32_t row = threadIdx.x / SIDE * OWN, col = threadIdx.x % SIDE * OWN;
    if (depth == 0 && !args.begins) {
        return;
    }
    const operand<T> a = {args.a + (uint64_t)begin * args.rows + row_begin, 1, args.rows,
                          tile_rest(args.rows, row_begin)};
    const operand<T> b = {args.b + (uint64_t)begin * args.cols + col_begin, 1, args.cols,
                          tile_rest(args.cols, col_begin)};
    float acc[OWN][OWN] = {{0.0f}};
    multiply(acc, a, b, depth);
    float *const dweight = args.dweight + (uint64_t)blockIdx.z * args.rows * args.cols;
#pragma unroll
    for (int i = 0; i < OWN * OWN; i++) {
        const uint32_t r = row + i / OWN, c = col + i % OWN;
        if (r < a.count && c < b.count) {
            float *const to = dweight + ((uint64_t)row_begin + r) * args.cols + col_begin + c;
            *to = (args.begins ? 0.0f : *to) + acc[i / OWN][i % OWN];
        }
    }
}

/* A block has OX_WARP columns of one expert; its warps take the expert's rows by turns and are added in order. */
template <typename T>
static __global__ void group_bias(float *dbias, const T *dout, const int32_t *offsets, uint32_t cols, bool begins) {
    __shared__ float sums[SUM_ROWS][OX_WARP];
    const uint32_t lane = threadIdx.x % OX_WARP, warp = threadIdx.x / OX_WARP, col = blockIdx.y * OX_WARP + lane;
    float sum = 0.0f;
    for (int32_t row = offsets[blockIdx.x] + (int32_t)warp; row < offsets[blockIdx.x + 1]; row += SUM_ROWS) {
        sum += col < cols ? ox_widen(dout[(uint64_t)row * cols + col]) : 0.0f;
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && col < cols) {
        float *const to = dbias + (uint64_t)blockIdx.x * cols + col;
        float total = begins ? 0.0f : *to;
        for (int i = 0; i < SUM_ROWS; i++) {
            total += sums[i][lane];
        }
        *to = total;
    }
}

/* ---- the operations -------------------------------------------------------------------------------- */

static unsigned tiles_of(uint32_t count) {
    return (count + TILE - 1) / TILE;
}

/* Of 16 bits; of floats below. */
template <typename T>
static ox_status run_rows(const ox_cuda_queue *queue, const ox_experts &experts, const group_rows_args<T> &args) {
    if (ox_grouped_mma_takes(args.in, args.weight, args.out, args.depth, args.cols)) {
        return ox_grouped_mma_rows(queue, experts, args);
    }
    ox_launch(group_rows<T>, queue,
              ox_launch_shape{dim3(tiles_of(args.cols), group_tiles(experts, TILE)), SIDE * SIDE, 0}, args);
    return OX_OK;
}

static ox_status run_rows(const ox_cuda_queue *queue, const ox_experts &experts, const group_rows_args<float> &args) {
    ox_launch(group_rows<float>, queue,
              ox_launch_shape{dim3(tiles_of(args.cols), group_tiles(experts, TILE)), SIDE * SIDE, 0}, args);
    return OX_OK;
}

template <typename T> static ox_status plain_weights(const ox_cuda_queue *queue, const ox_experts &experts,
                                                     const group_weights_args<T> &args) {
    ox_launch(group_weights<T>, queue,
              ox_launch_shape{dim3(tiles_of(args.cols), tiles_of(args.rows), experts.count), SIDE * SIDE, 0}, args);
    return OX_OK;
}

template <typename T>
static ox_status run_weights(const ox_cuda_queue *queue, const ox_experts &experts, const group_weights_args<T> &args) {
    return ox_grouped_mma_takes(args.a, args.b, args.dweight, args.rows, args.cols)
               ? ox_grouped_mma_weights(queue, experts, args)
               : plain_weights(queue, experts, args);
}

static ox_status run_weights(const ox_cuda_queue *queue, const ox_experts &experts,
                             const group_weights_args<float> &args) {
    return plain_weights(queue, experts, args);
}

template <typename T> static ox_status forward(const ox_cuda_queue *queue, const ox_op_grouped_forward *op) {
    return run_rows(queue, op->experts,
                    group_rows_args<T>{(T *)op->out, (const T *)op->in, (const T *)op->weight, (const T *)op->bias,
                                       op->experts.offsets + op->experts.first, op->experts.count, op->in_count,
                                       op->out_count, op->layout == OX_WEIGHT_OUT_IN});
}

template <typename T> static ox_status backward(const ox_cuda_queue *queue, const ox_op_grouped_backward *op) {
    const bool out_in = op->layout == OX_WEIGHT_OUT_IN;
    const int32_t *const offsets = op->experts.offsets + op->experts.first;
    const T *const dout = (const T *)op->dout, *const in = (const T *)op->in;
    ox_status status = OX_OK;
    if (op->din != NULL) {
        status = run_rows(queue, op->experts,
                          group_rows_args<T>{(T *)op->din, dout, (const T *)op->weight, NULL, offsets,
                                             op->experts.count, op->out_count, op->in_count, !out_in});
    }
    if (status == OX_OK && op->dweight != NULL) {
        status = run_weights(queue, op->experts,
                             group_weights_args<T>{op->dweight, out_in ? dout : in, out_in ? in : dout, offsets,
                                                   out_in ? op->out_count : op->in_count,
                                                   out_in ? op->in_count : op->out_count, op->begins});
    }
    if (status == OX_OK && op->dbias != NULL) {
        const dim3 grid(op->experts.count, (op->out_count + OX_WARP - 1) / OX_WARP);
        ox_launch(group_bias<T>, queue, ox_launch_shape{grid, SUM_ROWS * OX_WARP, 0}, op->dbias, dout, offsets,
                  op->out_count, op->begins);
    }
    return status;
}

extern "C" ox_status ox_cuda_grouped_forward(const ox_cuda_queue *queue, const void *args) {
    const ox_op_grouped_forward *const op = (const ox_op_grouped_forward *)args;
    return ox_for_real(op->real, [=](auto of) { return forward<decltype(of)>(queue, op); });
}

extern "C" ox_status ox_cuda_grouped_backward(const ox_cuda_queue *queue, const void *args) {
    const ox_op_grouped_backward *const op = (const ox_op_grouped_backward *)args;
    return ox_for_real(op->real, [=](auto of) { return backward<decltype(of)>(queue, op); });
}
