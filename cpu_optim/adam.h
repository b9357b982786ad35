/* AdamW with decoupled weight decay on the state planes, and the reductions over gradients.
 * Loshchilov & Hutter, arXiv 1711.05101; Kingma & Ba, arXiv 1412.6980.
 *
 * All variants (scalar C, AVX2, AVX-512, NEON) return the same bits: every fused multiply-add is
 * explicit, square root and division are correctly rounded, nothing is reassociated. Where a result is NaN it
 * is NaN in all of them, and counted; which NaN is left open, because a step that has one is never committed.
 */
#ifndef OX_CPU_OPTIM_ADAM_H
#define OX_CPU_OPTIM_ADAM_H

#include "base/pool.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Per element, with g = grad * grad_scale and p the master joined from its planes:
 *   m = fma(beta1, m, (1 - beta1) * g)
 *   v = fma(beta2, v, (1 - beta2) * (g * g))
 *   u = (m * m_scale) / (sqrt(v * v_scale) + eps)
 *   p = fma(-lr, u, p * (1 - lr * weight_decay))
 * where m_scale = 1/(1 - beta1^t) and v_scale = 1/(1 - beta2^t). The derived members are set by
 * ox_adam_hyper_init, in double, rounded once. */
struct ox_adam_hyper {
    float beta1, beta2, eps, learning_rate;
    float one_minus_beta1, one_minus_beta2;
    float m_scale, v_scale;
    float decay_factor; /* 1 - lr * weight_decay, for spans with decay; else 1 is used */
    float grad_scale;   /* clip coefficient; 1 without clipping */
    uint64_t seed, step; /* of the random roundings of narrow formats (cpu_optim/optim.h) */
};
struct ox_adam_settings {
    double learning_rate, beta1, beta2, eps, weight_decay, grad_scale;
    uint64_t step; /* t, from 1 */
    uint64_t seed; /* of the random roundings */
};
void ox_adam_hyper_init(const struct ox_adam_settings *settings, struct ox_adam_hyper *out);

enum ox_grad_dtype { OX_GRAD_F32, OX_GRAD_BF16 };

/* `count` consecutive parameters; updated in place; pointers need no alignment beyond their type. hi_out
 * may equal hi. The decay is off where `decay` is false. */
struct ox_adam_span {
    const uint16_t *hi;
    uint16_t *hi_out, *lo;
    float *m, *v;
    const void *grad; /* of grad_dtype */
    enum ox_grad_dtype grad_dtype;
    bool decay;
    uint64_t count;
};

enum ox_isa { OX_ISA_SCALAR, OX_ISA_AVX2, OX_ISA_AVX512, OX_ISA_NEON, OX_ISA_COUNT };
const char *ox_isa_name(enum ox_isa isa);
bool ox_isa_available(enum ox_isa isa);
enum ox_isa ox_isa_best(void);

/* Returns the count of elements whose new m, v or master is not finite: a result, not an error. */
uint64_t ox_adam_run(enum ox_isa isa, const struct ox_adam_span *span, const struct ox_adam_hyper *hyper);

/* The same divided over the pool; same bits for every thread count. */
uint64_t ox_adam_run_pool(struct ox_pool *pool, enum ox_isa isa, const struct ox_adam_span *span,
                          const struct ox_adam_hyper *hyper);

/* ---- reductions in fixed order --------------------------------------------------------------- */

enum { OX_NORM_BLOCK = 2048 }; /* elements whose squares one partial sum covers */

/* Partial sums of squares in double, one per block of OX_NORM_BLOCK elements (the last may be short):
 * 16 running sums over i mod 16, each by fma in double, added pairwise at the end (i to i + 8, then + 4, + 2,
 * + 1); the same bits on every ISA and thread count.
 * partials has ox_div_up(count, OX_NORM_BLOCK) elements. Non-finite input shows as a non-finite partial. */
void ox_sumsq_partials(struct ox_pool *pool, const void *grad, enum ox_grad_dtype dtype, uint64_t count,
                       double *partials);
/* The partials added from first to last. */
double ox_sumsq_total(const double *partials, uint64_t count);

/* target[i] += source[i], fp32. */
void ox_grad_add(struct ox_pool *pool, float *target, const float *source, uint64_t count);
/* bfloat16, ties to even; out may be the same memory as in (it is walked upward on one thread then). */
void ox_grad_to_bf16(struct ox_pool *pool, uint16_t *out, const float *in, uint64_t count);

#ifdef __cplusplus
}
#endif
#endif
