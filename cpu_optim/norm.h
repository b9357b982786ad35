/* Reductions over gradients and their conversions. All orders are fixed: the bits do not depend on instruction set or
 * thread count. */
#ifndef OX_CPU_OPTIM_NORM_H
#define OX_CPU_OPTIM_NORM_H

#include "base/optim_format.h"
#include "base/pool.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Partial sums of squares in double, one per group of OX_GROUP_ELEMS elements (the last may be short):
 * 16 running sums over i mod 16, each by fma in double, added pairwise at the end (i to i + 8, then + 4, + 2,
 * + 1); the same bits on every ISA and thread count.
 * partials has ox_div_up(count, OX_GROUP_ELEMS) elements. Non-finite input shows as a non-finite partial. */
void ox_sumsq_partials(struct ox_pool *pool, const void *grad, enum ox_grad_dtype dtype, uint64_t count,
                       double *partials);

/* target[i] += source[i], fp32. */
void ox_grad_add(struct ox_pool *pool, float *target, const float *source, uint64_t count);
/* bfloat16, ties to even; out may be the same memory as in (it is walked upward on one thread then). */
void ox_grad_to_bf16(struct ox_pool *pool, uint16_t *out, const float *in, uint64_t count);

#ifdef __cplusplus
}
#endif
#endif
