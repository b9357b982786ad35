#include "engine/model/cost.h"

static const struct ox_cost_loops loops_of_cpu = {.norm = {2, 1},
                                                  .norm_of_sum = {3, 1},
                                                  .norm_backward = {4, 1},
                                                  .head_norm = {2, 0},
                                                  .head_norm_backward = {3, 0}};
static const struct ox_cost_loops loops_of_gpu = {.norm = {2, 1},
                                                  .norm_of_sum = {2, 1},
                                                  .norm_backward = {6, 3},
                                                  .head_norm = {3, 1},
                                                  .head_norm_backward = {5, 3}};

struct ox_cost ox_cost_begin(const struct ox_shape *shape, const struct ox_unit *unit) {
    const bool on_gpu = shape->compute.device != OX_DEVICE_CPU;
    return (struct ox_cost){.shape = shape,
                            .unit = unit,
                            .loops = on_gpu ? &loops_of_gpu : &loops_of_cpu,
                            .rows = shape->rows,
                            .real_bytes = (double)ox_real_bytes(shape->compute.real),
                            .on_gpu = on_gpu};
}

void ox_cost_add_loop(struct ox_cost *cost, double rows, double width, struct ox_cost_loop loop) {
    cost->work.bytes += rows * width * loop.passes * cost->real_bytes;
    cost->work.ops += loop.ops;
}

/* A CPU GEMM reads its operands, writes them packed, and reads them again. */
static void add_gemm(struct ox_cost *cost, struct ox_cost_gemm gemm) {
    const double operands = gemm.m * gemm.k + gemm.k * gemm.n, result = (gemm.adds ? 2 : 1) * gemm.m * gemm.n;
    cost->work.gemm_flops += 2 * gemm.m * gemm.n * gemm.k;
    if (cost->on_gpu) {
        cost->work.gemm_bytes += operands * cost->real_bytes + result * gemm.out_bytes;
    } else {
        cost->work.bytes += (3 * operands + result) * sizeof(float);
    }
}

void ox_cost_add_linear(struct ox_cost *cost, double in_count, double out_count, bool residual) {
    add_gemm(cost, (struct ox_cost_gemm){.m = cost->rows, .n = out_count, .k = in_count,
                                                 .out_bytes = cost->real_bytes, .adds = residual && cost->on_gpu});
    cost->work.ops++;
}

void ox_cost_add_linear_backward(struct ox_cost *cost, double in_count, double out_count, bool trained) {
    if (!cost->skips_din) {
        add_gemm(cost, (struct ox_cost_gemm){.m = cost->rows, .n = in_count, .k = out_count,
                                                     .out_bytes = cost->real_bytes});
    }
    if (trained) {
        add_gemm(cost, (struct ox_cost_gemm){.m = out_count, .n = in_count, .k = cost->rows,
                                                     .out_bytes = sizeof(float), .adds = true});
    }
    cost->work.ops += cost->on_gpu && trained ? 2 : 1;
}

/* Weights are not packed; on a CPU the rows are turned, and results turned back. Gradients of all weights are written,
 * or read and written. */
static void add_grouped(struct ox_cost *cost, const struct ox_cost_grouped *g, bool of_weights) {
    const double rows = g->pairs * (g->in_count + g->out_count), weights = g->experts * g->in_count * g->out_count;
    cost->work.gemm_flops += 2 * g->pairs * g->in_count * g->out_count;
    if (cost->on_gpu) {
        const double weight_bytes = of_weights ? 2 * sizeof(float) : cost->real_bytes;
        cost->work.gemm_bytes += rows * cost->real_bytes + weights * weight_bytes;
    } else {
        cost->work.bytes += ((of_weights ? 1 : 3) * rows + (of_weights ? 2 : 1) * weights) * sizeof(float);
    }
    cost->work.ops++;
}

void ox_cost_add_grouped(struct ox_cost *cost, const struct ox_cost_grouped *grouped, bool backward) {
    add_grouped(cost, grouped, false);
    if (backward && grouped->trained) {
        add_grouped(cost, grouped, true);
    }
}
