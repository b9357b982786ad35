/* Rotary embedding, in place: a thread has pairs of one row. */
#include "kernels/cuda/kernel.cuh"

template <typename T> struct rope_args {
    T *qk;
    const float *cos_table, *sin_table;
    const int32_t *positions;
    uint32_t row_stride, pairs, half;
    float sign; /* of the angle: -1 rotates back */
};

template <typename T> static __global__ void rope_kernel(rope_args<T> args) {
    const uint64_t row = blockIdx.x;
    const uint64_t angles = (uint64_t)args.positions[row] * args.half;
    T *const x = args.qk + row * args.row_stride;
    for (uint32_t i = threadIdx.x; i < args.pairs; i += blockDim.x) {
        const uint32_t within = i % args.half, at = i / args.half * 2 * args.half + within;
        const float c = args.cos_table[angles + within], s = args.sign * args.sin_table[angles + within];
        const float a = ox_widen(x[at]), b = ox_widen(x[at + args.half]);
        ox_narrow(a * c - b * s, &x[at]);
        ox_narrow(b * c + a * s, &x[at + args.half]);
    }
}

extern "C" ox_status ox_cuda_rope(const ox_cuda_queue *queue, const void *given) {
    const ox_op_rope *const op = (const ox_op_rope *)given;
    const uint32_t half = op->head_dim / 2;
    const rope_args<float> args = {(float *)op->qk, op->cos_table, op->sin_table, op->positions, op->row_stride,
                                   op->heads * half, half, op->inverse ? -1.0f : 1.0f};
    ox_launch(rope_kernel<float>, queue, ox_launch_shape{op->rows, OX_BLOCK_THREADS, 0}, args);
    return OX_OK;
}
