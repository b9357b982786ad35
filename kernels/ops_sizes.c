/* What operations need on each device, computed from shapes: a plan may be made where the device is not. */
#include "base/bytes.h"
#include "kernels/attention_slices.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cuda.h"
#include "kernels/head_walk.h"

static bool on_cpu(const struct ox_compute *compute) {
    return compute->device == OX_DEVICE_CPU;
}

/* Sums over rows for gain and bias, per group of rows. */
uint64_t ox_ops_norm_scratch_bytes(const struct ox_compute *compute, uint32_t cols) {
    return on_cpu(compute) ? ox_cpu_norm_scratch_bytes(cols)
                           : (uint64_t)OX_CUDA_ROW_GROUPS * 2 * cols * sizeof(float);
}

uint64_t ox_ops_attention_scratch_bytes(const struct ox_compute *compute, const struct ox_attention_shape *shape) {
    if (on_cpu(compute)) {
        return ox_cpu_attention_scratch_bytes(shape, compute->threads);
    }
    if (compute->real == OX_REAL_F32) {
        return sizeof(float); /* nothing, but a plan has no empty buffer */
    }
    /* For every query the log-sum-exp and the dot product of output and gradient, in whole blocks of queries; or what a
     * library needs, whether it is there or not: a plan must not depend on that. */
    const uint64_t rows = ox_align_up(shape->seq, OX_CUDA_ATTENTION_ROWS);
    const uint64_t own = (uint64_t)shape->batch * shape->heads * rows * 2 * sizeof(float);
    return ox_max_u64(own, ox_attention_library_scratch_bytes(shape));
}

uint64_t ox_ops_attention_chunk_scratch_bytes(const struct ox_compute *compute,
                                              const struct ox_attention_shape *shape) {
    return on_cpu(compute) ? ox_ops_attention_scratch_bytes(compute, shape)
                           : ox_cuda_chunk_room_of(shape, compute->real).bytes;
}

uint64_t ox_ops_attention_cached_scratch_bytes(const struct ox_compute *compute,
                                               const struct ox_op_attention_cached *op) {
    return on_cpu(compute) ? ox_cpu_attention_cached_scratch_bytes(op, compute->threads) : 0;
}

uint64_t ox_ops_head_scratch_bytes(const struct ox_compute *compute, uint32_t rows, uint32_t hidden, uint32_t vocab) {
    return ox_head_scratch_bytes(compute, rows, hidden, vocab);
}

/* The gradient of logits in bfloat16, for products on a GPU in that type. */
uint64_t ox_ops_router_scratch_bytes(const struct ox_compute *compute, uint32_t rows, uint32_t experts) {
    return on_cpu(compute) || compute->real == OX_REAL_F32 ? 0
                                                           : (uint64_t)rows * experts * ox_real_bytes(compute->real);
}

/* On every device: sums of some groups of rows; and how many pairs each expert has in each part of the rows. */
uint64_t ox_ops_route_load_scratch_bytes(uint32_t experts) {
    return OX_ROUTE_LOAD_GROUPS * (uint64_t)ox_route_load_layout_of(experts).count * sizeof(double);
}

uint64_t ox_ops_route_sort_scratch_bytes(uint32_t rows, uint32_t experts) {
    return ox_div_up(rows, OX_ROUTE_SORT_ROWS) * experts * sizeof(int32_t);
}

uint64_t ox_ops_grouped_scratch_bytes(const struct ox_compute *compute, uint32_t in_count, uint32_t out_count) {
    return on_cpu(compute) ? ox_cpu_grouped_scratch_bytes(in_count, out_count, compute->threads) : 0;
}

uint64_t ox_ops_attention_pairs(const struct ox_compute *compute, const struct ox_attention_shape *shape) {
    (void)compute;
    return ox_cpu_attention_pairs(shape);
}

bool ox_ops_head_holds_logits(const struct ox_compute *compute, uint32_t rows, uint32_t vocab) {
    return ox_head_walk_of(compute, rows, vocab).held;
}
