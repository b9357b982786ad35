/* An update on the compute lane makes the call that the optimizer's lane makes, on the device's threads, so it gives
 * the same bits. */
#include "engine/step/update/ops_optim.h"

#include "base/assert.h"
#include "cpu_optim/muon.h"
#include "cpu_optim/norm.h"
#include "cpu_optim/optim.h"

static void adam(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_adam *const op = args;
    OX_ASSERT(op->format.kind < OX_OPTIM_KIND_COUNT && op->format.moments < OX_MOMENTS_COUNT && op->isa < OX_ISA_COUNT);
    const enum ox_grad_dtype grad_dtype = op->grad_bf16 ? OX_GRAD_BF16 : OX_GRAD_F32;
    const struct ox_update_span span = {
        .hi = op->hi + op->first,
        .hi_out = op->hi + op->first,
        .state = ox_state_planes_at(op->format, op->state, op->elem_count, op->first),
        .grad = (const unsigned char *)op->grad + op->first * ox_grad_bytes(grad_dtype),
        .grad_dtype = grad_dtype,
        .decay = op->decay,
        .stream = op->stream,
        .first = op->origin + op->first,
        .count = op->count,
    };
    *op->nonfinite += ox_update_run_pool(ox_cpu_pool(cpu), (enum ox_isa)op->isa, op->format, &span, &op->hyper);
}

static void square_sums(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_square_sums *const op = args;
    ox_sumsq_partials(ox_cpu_pool(cpu), op->grad, op->grad_bf16 ? OX_GRAD_BF16 : OX_GRAD_F32, op->count, op->partials);
}

static void newton_schulz(const struct ox_cpu *cpu, const void *args) {
    const struct ox_op_newton_schulz *const op = args;
    ox_muon_iterate(ox_cpu_pool(cpu), (enum ox_isa)op->isa, op->iterations, (struct ox_matrix){op->rows, op->cols},
                    op->inout, op->scratch);
}

void ox_ops_optim_init_cpu(struct ox_ops *ops) {
    ops->functions[OX_OP_adam] = (ox_op_fn *)adam;
    ops->functions[OX_OP_square_sums] = (ox_op_fn *)square_sums;
    ops->functions[OX_OP_newton_schulz] = (ox_op_fn *)newton_schulz;
}
