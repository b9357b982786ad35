/* Rotary embedding, in place. It moves at least 2 rows heads head_dim elements, and rows head_dim floats of angles. */
#include "kernels/cuda/kernel.cuh"

template <typename T> struct rope_args {
    T *qk;
    const float *cos_table, *sin_table;
    const int32_t *positions;
    uint32_t row_stride, heads, head_dim, half;
    float sign; /* sign of the angle: -1 rotates back */
    uint32_t apart, step; /* elements between those of a pair, and between pairs */
};

/* A block has a row. Its threads along x have the pairs of a head, those along y the heads, so that angles are read
 * once for all heads of a thread. */
template <typename T, int N> static __global__ void rope_kernel(rope_args<T> args) {
    const uint64_t row = blockIdx.x;
    const uint64_t angles = (uint64_t)args.positions[row] * args.half;
    for (uint32_t i = threadIdx.x * N; i < args.half; i += blockDim.x * N) {
        float c[N], s[N];
        ox_load<float, N>(c, args.cos_table + angles + i);
        ox_load<float, N>(s, args.sin_table + angles + i);
        for (uint32_t head = threadIdx.y; head < args.heads; head += blockDim.y) {
            T *const x = args.qk + row * args.row_stride + (uint64_t)head * args.head_dim + i * args.step;
            float a[N], b[N], low[N], high[N];
            ox_load<T, N>(a, x);
            ox_load<T, N>(b, x + args.apart);
#pragma unroll
            for (int k = 0; k < N; k++) {
                low[k] = a[k] * c[k] - b[k] * (args.sign * s[k]);
                high[k] = b[k] * c[k] + a[k] * (args.sign * s[k]);
            }
            ox_store<T, N>(x, low);
            ox_store<T, N>(x + args.apart, high);
        }
    }
}

/* As many rounds over the heads as needed, and no more threads than these rounds need. */
static ox_launch_shape by_heads(const ox_op_rope *op, uint32_t packs) {
    const uint32_t x = packs < OX_BLOCK_THREADS ? packs : (uint32_t)OX_BLOCK_THREADS, most = OX_BLOCK_THREADS / x;
    const uint32_t rounds = (op->heads + most - 1) / most;
    return ox_launch_shape{op->rows, dim3(x, (op->heads + rounds - 1) / rounds), 0};
}

template <typename T> static ox_status rope(const ox_cuda_queue *queue, const ox_op_rope *op) {
    enum { WIDE = ox_wide<T>::COUNT };
    const uint32_t half = op->rotary_dim / 2;
    const rope_args<T> args = {(T *)op->qk, op->cos_table, op->sin_table, op->positions,
                               op->row_stride, op->heads, op->head_dim, half, op->inverse ? -1.0f : 1.0f,
                               op->neighbours ? 1 : half, op->neighbours ? 2u : 1u};
    const bool is_wide = !op->neighbours && ox_all_wide<T>(op->qk, half, op->row_stride) && op->head_dim % WIDE == 0 &&
                         ox_all_wide<float>(op->cos_table, half, 0) &&
                         ox_all_wide<float>(op->sin_table, half, 0);
    ox_launch(is_wide ? rope_kernel<T, WIDE> : rope_kernel<T, 1>, queue, by_heads(op, is_wide ? half / WIDE : half),
              args);
    return OX_OK;
}

extern "C" ox_status ox_cuda_rope(const ox_cuda_queue *queue, const void *given) {
    const ox_op_rope *const op = (const ox_op_rope *)given;
    return ox_for_real(op->real, [=](auto of) { return rope<decltype(of)>(queue, op); });
}
