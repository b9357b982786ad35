/* The rows of the operations, and the checks that hold on every device before one is queued. */
#include "kernels/ops.h"

#include "base/assert.h"

static void check_add(const void *args) {
    const struct ox_op_add *const op = args;
    OX_ASSERT(op->target != op->b || op->a == NULL || op->scale == 0.0f || op->scale == 1.0f);
}

static void check_head_norm_forward(const void *args) {
    const struct ox_op_head_norm_forward *const op = args;
    OX_ASSERT((uint64_t)op->heads * op->head_dim <= op->row_stride);
}

static void check_head_norm_backward(const void *args) {
    const struct ox_op_head_norm_backward *const op = args;
    OX_ASSERT((uint64_t)op->heads * op->head_dim <= op->row_stride);
}

static void check_embed_forward(const void *args) {
    const struct ox_op_embed_forward *const op = args;
    OX_ASSERT(op->column == 0 || op->pos_hi == NULL);
}

static void check_embed_backward(const void *args) {
    const struct ox_op_embed_backward *const op = args;
    OX_ASSERT(op->column == 0 || op->dpos == NULL);
}

static void check_rope(const void *args) {
    const struct ox_op_rope *const op = args;
    OX_ASSERT(op->rotary_dim % 2 == 0 && op->rotary_dim <= op->head_dim);
}

static void check_attention(const struct ox_attention_shape *shape) {
    OX_ASSERT(shape->kv_heads > 0 && shape->heads % shape->kv_heads == 0 && shape->scale > 0.0f && shape->cap >= 0.0f);
}

static void check_part(const struct ox_attention_part *part) {
    OX_ASSERT(part->kv == NULL || (part->chunks >= 2 && part->chunks % 2 == 0 && part->chunk < part->chunks));
    OX_ASSERT(part->key_chunk == 0 || (part->kv != NULL && part->key_chunk <= part->chunk + 1));
    OX_ASSERT(!part->resumes || part->key_chunk > 0);
}

static void check_attention_forward(const void *args) {
    const struct ox_op_attention_forward *const op = args;
    check_attention(&op->shape);
    check_part(&op->part);
}

static void check_attention_backward(const void *args) {
    const struct ox_op_attention_backward *const op = args;
    check_attention(&op->shape);
    check_part(&op->part);
    OX_ASSERT((op->part.kv == NULL) == (op->part.dkv == NULL));
}

static void check_attention_cached(const void *args) {
    const struct ox_op_attention_cached *const op = args;
    OX_ASSERT(op->kv_heads > 0 && op->heads % op->kv_heads == 0 && op->scale > 0.0f && op->rows > 0);
}

static void check_linear_forward(const void *args) {
    const struct ox_op_linear_forward *const op = args;
    OX_ASSERT(!op->wide || (op->bias == NULL && op->residual == NULL));
}

static void check_linear_backward(const void *args) {
    const struct ox_op_linear_backward *const op = args;
    OX_ASSERT(!op->wide || op->residual == NULL);
}

static void check_head(const void *args) {
    const struct ox_op_head *const op = args;
    const bool whole = op->part == OX_HEAD_WHOLE;
    OX_ASSERT(op->low.r == 0 || (whole && op->low.in != NULL && op->low.weight != NULL));
    OX_ASSERT(op->real != OX_REAL_BF16 || op->weight_lo == NULL);
    OX_ASSERT(!whole || (op->smoothing == 0.0f && op->parts == NULL) || op->row_parts != NULL);
    OX_ASSERT(whole || (op->rows_of.sum != NULL && op->first + op->vocab <= op->vocab_whole));
    OX_ASSERT(op->part != OX_HEAD_STATISTICS || (op->din == NULL && op->dweight == NULL &&
                                                 (op->smoothing == 0.0f || op->rows_of.total != NULL)));
}

static void check_head_merge(const void *args) {
    const struct ox_op_head_merge *const op = args;
    OX_ASSERT(op->part_count > 0 && op->part_count <= OX_HEAD_PARTS_MAX && op->row_losses != NULL);
    OX_ASSERT(op->smoothing == 0.0f || (op->part.total != NULL && op->all.total != NULL));
}

static void check_pairs(const void *args) {
    const struct ox_op_pairs *const op = args;
    OX_ASSERT(op->batch > 0 && op->batch % 2 == 0 && op->batch <= OX_PAIR_SEQUENCES_MAX);
    OX_ASSERT(op->seq > 0 && op->beta > 0.0f);
}

static void check_router(const struct ox_router *router) {
    const uint32_t groups = router->groups > 1 ? router->groups : 1;
    const uint32_t kept = router->groups > 1 ? router->groups_kept : 1;
    OX_ASSERT(router->experts > 0 && router->experts <= OX_EXPERTS_MAX && router->experts % groups == 0);
    OX_ASSERT(kept > 0 && kept <= groups);
    OX_ASSERT(router->chosen > 0 && router->chosen <= OX_CHOSEN_MAX &&
              router->chosen <= router->experts / groups * kept);
}

static void check_router_forward(const void *args) {
    const struct ox_op_router_forward *const op = args;
    OX_ASSERT(op->experts > 0 && op->experts <= OX_EXPERTS_MAX);
}

static void check_limbs_shift(const void *args) {
    OX_ASSERT(((const struct ox_op_limbs_shift *)args)->count <= OX_LIMBS_SHIFT_MAX);
}

static void check_route_forward(const void *args) {
    check_router(&((const struct ox_op_route_forward *)args)->router);
}

static void check_route_load(const void *args) {
    check_router(&((const struct ox_op_route_load *)args)->router);
}

static void check_route_backward(const void *args) {
    check_router(&((const struct ox_op_route_backward *)args)->router);
}

static void check_route_sort(const void *args) {
    const struct ox_op_route_sort *const op = args;
    OX_ASSERT(op->expert_count > 0 && op->expert_count <= OX_EXPERTS_MAX && op->chosen <= OX_CHOSEN_MAX);
    OX_ASSERT((uint64_t)op->rows * op->chosen <= INT32_MAX);
}

static void check_grouped_forward(const void *args) {
    const struct ox_op_grouped_forward *const op = args;
    OX_ASSERT(op->experts.count > 0 && op->in_count > 0 && op->out_count > 0);
}

static void check_grouped_backward(const void *args) {
    const struct ox_op_grouped_backward *const op = args;
    OX_ASSERT(op->experts.count > 0 && op->in_count > 0 && op->out_count > 0);
}

static void check_expert_act_backward(const void *args) {
    const struct ox_op_expert_act_backward *const op = args;
    OX_ASSERT((op->weights == NULL) == (op->dweights == NULL));
}

static void check_clamp_forward(const void *args) {
    const struct ox_op_clamp_forward *const op = args;
    OX_ASSERT(op->width <= op->row_stride && op->limit >= 0.0f);
}

static void check_clamp_backward(const void *args) {
    const struct ox_op_clamp_backward *const op = args;
    OX_ASSERT(op->width <= op->row_stride);
}

/* Whether a part lies within rows of the width. */
static bool within(uint32_t first, uint32_t stride, const struct ox_splice_part *part, uint32_t width) {
    return part->heads > 0 && first + (uint64_t)(part->heads - 1) * stride + part->width <= width;
}

static void check_splice(const void *args) {
    const struct ox_op_splice *const op = args;
    OX_ASSERT(op->part_count <= OX_SPLICE_PARTS_MAX);
    for (uint32_t i = 0; i < op->part_count; i++) {
        const struct ox_splice_part *const part = &op->parts[i];
        OX_ASSERT(within(part->in_first, part->in_stride, part, op->in_width) &&
                  within(part->out_first, part->out_stride, part, op->out_width));
        OX_ASSERT(part->out_stride == 0 || part->out_stride >= part->width);
    }
}

static void check_adam(const void *args) {
    const struct ox_op_adam *const op = args;
    OX_ASSERT(op->first + op->count <= op->elem_count);
}

static void check_newton_schulz(const void *args) {
    const struct ox_op_newton_schulz *const op = args;
    OX_ASSERT(op->rows > 0 && op->rows <= op->cols);
}

const struct ox_op_row ox_op_rows[OX_OP_COUNT] = {OX_OP_LIST(OX_OP_ROW, any)};

enum ox_status ox_op_queue(const struct ox_ops *ops, struct ox_lane *lane, enum ox_op op, const void *args) {
    const struct ox_op_row *const row = &ox_op_rows[op];
    OX_ASSERT(ops->functions[op] != NULL);
    if (row->check != NULL) {
        row->check(args);
    }
    return ops->queue(lane, row, ops->functions[op], args);
}
