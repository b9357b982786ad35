/* Queues operations on lanes of the CUDA device. */
#include "kernels/cuda/cuda_device.h"

#include "base/assert.h"

#include <math.h>
#include <stdlib.h>

static enum ox_status zero(struct ox_lane *lane, const struct ox_op_zero *op) {
    return ox_cuda_lane_submit(lane, ox_cuda_zero, op, sizeof *op);
}

static enum ox_status planes_join(struct ox_lane *lane, const struct ox_op_planes_join *op) {
    return ox_cuda_lane_submit(lane, ox_cuda_planes_join, op, sizeof *op);
}

static enum ox_status add(struct ox_lane *lane, const struct ox_op_add *op) {
    return ox_cuda_lane_submit(lane, ox_cuda_add, op, sizeof *op);
}

static enum ox_status bf16_pack(struct ox_lane *lane, const struct ox_op_bf16_pack *op) {
    return ox_cuda_lane_submit(lane, ox_cuda_bf16_pack, op, sizeof *op);
}

static enum ox_status embed_forward(struct ox_lane *lane, const struct ox_op_embed_forward *op) {
    return ox_cuda_lane_submit(lane, ox_cuda_embed_forward, op, sizeof *op);
}

static enum ox_status embed_backward(struct ox_lane *lane, const struct ox_op_embed_backward *op) {
    return ox_cuda_lane_submit(lane, ox_cuda_embed_backward, op, sizeof *op);
}

static enum ox_status norm_forward(struct ox_lane *lane, const struct ox_op_norm_forward *op) {
    return ox_cuda_lane_submit(lane, ox_cuda_norm_forward, op, sizeof *op);
}

static enum ox_status norm_backward(struct ox_lane *lane, const struct ox_op_norm_backward *op) {
    return ox_cuda_lane_submit(lane, ox_cuda_norm_backward, op, sizeof *op);
}

static enum ox_status head_norm_forward(struct ox_lane *lane, const struct ox_op_head_norm_forward *op) {
    OX_ASSERT((uint64_t)op->heads * op->head_dim <= op->row_stride);
    return ox_cuda_lane_submit(lane, ox_cuda_head_norm_forward, op, sizeof *op);
}

static enum ox_status head_norm_backward(struct ox_lane *lane, const struct ox_op_head_norm_backward *op) {
    OX_ASSERT((uint64_t)op->heads * op->head_dim <= op->row_stride);
    return ox_cuda_lane_submit(lane, ox_cuda_head_norm_backward, op, sizeof *op);
}

static enum ox_status linear_forward(struct ox_lane *lane, const struct ox_op_linear_forward *op) {
    return ox_cuda_lane_submit(lane, ox_cuda_linear_forward, op, sizeof *op);
}

static enum ox_status linear_backward(struct ox_lane *lane, const struct ox_op_linear_backward *op) {
    return ox_cuda_lane_submit(lane, ox_cuda_linear_backward, op, sizeof *op);
}

static enum ox_status rope(struct ox_lane *lane, const struct ox_op_rope *op) {
    OX_ASSERT(op->head_dim % 2 == 0);
    return ox_cuda_lane_submit(lane, ox_cuda_rope, op, sizeof *op);
}

/* The same angles as the CPU's, from its own arithmetic: computed on the host, once per model, and waited for. */
static enum ox_status rope_table(struct ox_lane *lane, const struct ox_op_rope_table *op) {
    const size_t count = (size_t)op->contexts * op->half_dim;
    float *const both = malloc(2 * count * sizeof *both);
    if (both == NULL) {
        return ox_fail(OX_E_NOMEM, "GPU: no memory for a table of %zu angles", count);
    }
    for (size_t i = 0; i < count; i++) {
        const double angle = (double)(i / op->half_dim) * op->inv_freq[i % op->half_dim];
        both[i] = (float)cos(angle);
        both[count + i] = (float)sin(angle);
    }
    const struct ox_copy cosines = {.target = op->cos_table, .source = both, .bytes = count * sizeof *both};
    const struct ox_copy sines = {.target = op->sin_table, .source = both + count, .bytes = count * sizeof *both};
    enum ox_status status = ox_cuda_lane_submit(lane, ox_cuda_copy, &cosines, sizeof cosines);
    if (status == OX_OK) {
        status = ox_cuda_lane_submit(lane, ox_cuda_copy, &sines, sizeof sines);
    }
    const enum ox_status drained = ox_lane_drain(lane);
    free(both);
    return status == OX_OK ? drained : status;
}

static enum ox_status act_forward(struct ox_lane *lane, const struct ox_op_act_forward *op) {
    return ox_cuda_lane_submit(lane, ox_cuda_act_forward, op, sizeof *op);
}

static enum ox_status act_backward(struct ox_lane *lane, const struct ox_op_act_backward *op) {
    return ox_cuda_lane_submit(lane, ox_cuda_act_backward, op, sizeof *op);
}

static void check_attention(const struct ox_attention_shape *shape) {
    OX_ASSERT(shape->kv_heads > 0 && shape->heads % shape->kv_heads == 0 && shape->scale > 0.0f);
}

static enum ox_status attention_forward(struct ox_lane *lane, const struct ox_op_attention_forward *op) {
    check_attention(&op->shape);
    return ox_cuda_lane_submit(lane, ox_cuda_attention_forward_pick, op, sizeof *op);
}

static enum ox_status attention_backward(struct ox_lane *lane, const struct ox_op_attention_backward *op) {
    check_attention(&op->shape);
    return ox_cuda_lane_submit(lane, ox_cuda_attention_backward_pick, op, sizeof *op);
}

static enum ox_status attention_cached(struct ox_lane *lane, const struct ox_op_attention_cached *op) {
    OX_ASSERT(op->kv_heads > 0 && op->heads % op->kv_heads == 0 && op->scale > 0.0f && op->rows > 0);
    return ox_cuda_lane_submit(lane, ox_cuda_attention_cached, op, sizeof *op);
}

static enum ox_status head(struct ox_lane *lane, const struct ox_op_head *op) {
    OX_ASSERT(op->real == OX_REAL_F32 || op->weight_lo == NULL);
    return ox_cuda_lane_submit(lane, ox_cuda_head, op, sizeof *op);
}

static enum ox_status adam(struct ox_lane *lane, const struct ox_op_adam *op) {
    OX_ASSERT(op->first + op->count <= op->elem_count);
    return ox_cuda_lane_submit(lane, ox_cuda_adam, op, sizeof *op);
}

static enum ox_status square_sums(struct ox_lane *lane, const struct ox_op_square_sums *op) {
    return ox_cuda_lane_submit(lane, ox_cuda_square_sums, op, sizeof *op);
}

void ox_ops_fill_cuda(struct ox_ops *ops) {
    *ops = (struct ox_ops){
        .name = "cuda",
        .zero = zero,
        .planes_join = planes_join,
        .add = add,
        .bf16_pack = bf16_pack,
        .embed_forward = embed_forward,
        .embed_backward = embed_backward,
        .norm_forward = norm_forward,
        .norm_backward = norm_backward,
        .head_norm_forward = head_norm_forward,
        .head_norm_backward = head_norm_backward,
        .linear_forward = linear_forward,
        .linear_backward = linear_backward,
        .rope = rope,
        .rope_table = rope_table,
        .act_forward = act_forward,
        .act_backward = act_backward,
        .attention_forward = attention_forward,
        .attention_backward = attention_backward,
        .attention_cached = attention_cached,
        .head = head,
        .adam = adam,
        .square_sums = square_sums,
        .mark = ox_cuda_lane_mark,
    };
}
