/* What the variants of this folder share. Only this folder and its tests include it. */
#ifndef OX_CPU_OPTIM_VARIANTS_H
#define OX_CPU_OPTIM_VARIANTS_H

#include "cpu_optim/adam.h"

#include <stdbool.h>
#include <stdint.h>

/* The scalar one is the definition. The others hand it the elements that do not fill a vector. */
uint64_t ox_adam_scalar(const struct ox_adam_span *span, const struct ox_adam_hyper *hyper);
uint64_t ox_adam_avx2(const struct ox_adam_span *span, const struct ox_adam_hyper *hyper);
uint64_t ox_adam_avx512(const struct ox_adam_span *span, const struct ox_adam_hyper *hyper);
uint64_t ox_adam_neon(const struct ox_adam_span *span, const struct ox_adam_hyper *hyper);

/* The sum of squares of one block of at most OX_NORM_BLOCK elements. */
typedef double ox_sumsq_fn(const void *grad, enum ox_grad_dtype dtype, uint64_t count);
double ox_sumsq_scalar(const void *grad, enum ox_grad_dtype dtype, uint64_t count);
double ox_sumsq_avx2(const void *grad, enum ox_grad_dtype dtype, uint64_t count);
double ox_sumsq_avx512(const void *grad, enum ox_grad_dtype dtype, uint64_t count);
ox_sumsq_fn *ox_sumsq_pick(enum ox_isa isa);

enum { OX_NORM_LANES = 16 }; /* running sums of a block */

static inline uint64_t ox_grad_bytes(enum ox_grad_dtype dtype) {
    return dtype == OX_GRAD_BF16 ? sizeof(uint16_t) : sizeof(float);
}

static inline const void *ox_grad_at(const void *grad, enum ox_grad_dtype dtype, uint64_t idx) {
    return (const unsigned char *)grad + idx * ox_grad_bytes(dtype);
}

/* Elements [begin, end) of a span. */
static inline struct ox_adam_span ox_adam_part(const struct ox_adam_span *span, uint64_t begin,
                                               uint64_t end) {
    struct ox_adam_span part = *span;
    part.hi += begin;
    part.hi_out += begin;
    part.lo += begin;
    part.m += begin;
    part.v += begin;
    part.grad = ox_grad_at(span->grad, span->grad_dtype, begin);
    part.count = end - begin;
    return part;
}

/* Finishes a block: adds its last, at most 15 elements to the running sums and the sums pairwise,
 * 16 to 8 to 4 to 2 to 1. */
double ox_sumsq_finish(double *sums, const void *grad, enum ox_grad_dtype dtype, uint64_t count);

#endif
