/* Counts what operations make a device do, for predictions (struct ox_plan_work). A unit's cost is the sum of its
 * operations' costs, listed beside the operations. The CPU packs what it multiplies, all of it in float32; a GPU reads
 * every operand once, where it is and in the type that it computes in, and sums gradients of weights in float32. For
 * the files of this folder. */
#ifndef OX_ENGINE_COST_H
#define OX_ENGINE_COST_H

#include "engine/model/units.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A loop over rows: how often each of their elements is read or written, and by how many operations. */
struct ox_cost_loop {
    uint8_t passes, ops;
};

/* Loop counts that differ between CPU and GPU. On a GPU a second read by one block of threads comes from a cache and
 * is not counted, but a norm's sums over rows are a pass of their own, and sums of groups of rows another. */
struct ox_cost_loops {
    struct ox_cost_loop norm, norm_backward;
    struct ox_cost_loop norm_of_sum; /* norm of a sum with a residual, which a GPU's GEMM has already made */
    struct ox_cost_loop head_norm, head_norm_backward; /* norm of queries, or of keys, beside their rotation */
};

struct ox_cost {
    struct ox_plan_work work;
    const struct ox_shape *shape;
    const struct ox_unit *unit;
    const struct ox_cost_loops *loops;
    double rows, real_bytes;
    bool on_gpu;
    bool skips_din; /* backward of the operation makes no gradient of its input, because nothing before it is trained */
};

struct ox_cost ox_cost_begin(const struct ox_shape *shape, const struct ox_unit *unit);

void ox_cost_add_loop(struct ox_cost *cost, double rows, double width, struct ox_cost_loop loop);

/* out (m, n) = a (m, k) b (k, n) */
struct ox_cost_gemm {
    double m, n, k;
    double out_bytes; /* bytes of one element of the output */
    bool adds;        /* to what is there, or to a residual: that is read too */
};
/* A linear layer's forward pass, and the GEMMs of its backward pass: of its input's gradient, unless that is skipped,
 * and of its weights', where they are trained. A GPU adds the residual in the GEMM. */
void ox_cost_add_linear(struct ox_cost *cost, double in_count, double out_count, bool residual);
void ox_cost_add_linear_backward(struct ox_cost *cost, double in_count, double out_count, bool trained);

/* Products of the rows of each expert with its weights, of which all are read. Backward has a second one where these
 * are `trained`. */
struct ox_cost_grouped {
    double pairs, experts, in_count, out_count;
    bool trained;
};
void ox_cost_add_grouped(struct ox_cost *cost, const struct ox_cost_grouped *grouped, bool backward);

#ifdef __cplusplus
}
#endif
#endif
