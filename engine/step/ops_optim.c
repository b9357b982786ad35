/* An update on the compute lane is the same call as one of the optimizer's lane, on the device's threads: same bits. */
#include "engine/step/ops_optim.h"

#include "base/assert.h"

#include <stddef.h>
#include <string.h>

/* The two know nothing of each other and have the same members. */
_Static_assert(sizeof(struct ox_op_adam_hyper) == sizeof(struct ox_adam_hyper) &&
                   offsetof(struct ox_op_adam_hyper, grad_scale) == offsetof(struct ox_adam_hyper, grad_scale) &&
                   offsetof(struct ox_op_adam_hyper, step) == offsetof(struct ox_adam_hyper, step),
               "the numbers of an update are the same ones in kernels/ops.h");

struct ox_op_adam_hyper ox_ops_hyper(const struct ox_adam_hyper *hyper) {
    struct ox_op_adam_hyper out;
    memcpy(&out, hyper, sizeof out);
    return out;
}

static void run_adam(struct ox_pool *pool, const void *args) {
    const struct ox_op_adam *const op = args;
    const struct ox_state_format format = {(enum ox_optim_kind)op->kind, (enum ox_moments)op->moments};
    struct ox_adam_hyper hyper;
    memcpy(&hyper, &op->hyper, sizeof hyper);
    const uint64_t width = op->grad_bf16 ? sizeof(uint16_t) : sizeof(float);
    const struct ox_update_span span = {
        .hi = op->hi + op->first,
        .hi_out = op->hi + op->first,
        .state = ox_state_planes_at(format, op->state, op->elem_count, op->first),
        .grad = (const unsigned char *)op->grad + op->first * width,
        .grad_dtype = op->grad_bf16 ? OX_GRAD_BF16 : OX_GRAD_F32,
        .decay = op->decay,
        .stream = op->stream,
        .first = op->first,
        .count = op->count,
    };
    *op->nonfinite += ox_update_run_pool(pool, (enum ox_isa)op->isa, format, &span, &hyper);
}

static enum ox_status adam(struct ox_lane *lane, const struct ox_op_adam *op) {
    OX_ASSERT(op->kind < OX_OPTIM_KIND_COUNT && op->moments < OX_MOMENTS_COUNT && op->isa < OX_ISA_COUNT);
    OX_ASSERT(op->first + op->count <= op->elem_count);
    return ox_ops_cpu_submit(lane, run_adam, op, sizeof *op);
}

static void run_square_sums(struct ox_pool *pool, const void *args) {
    const struct ox_op_square_sums *const op = args;
    ox_sumsq_partials(pool, op->grad, op->grad_bf16 ? OX_GRAD_BF16 : OX_GRAD_F32, op->count, op->partials);
}

static enum ox_status square_sums(struct ox_lane *lane, const struct ox_op_square_sums *op) {
    return ox_ops_cpu_submit(lane, run_square_sums, op, sizeof *op);
}

void ox_ops_optim_init_cpu(struct ox_ops *ops) {
    ops->adam = adam;
    ops->square_sums = square_sums;
}
