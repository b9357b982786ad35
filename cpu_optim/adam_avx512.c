#include "cpu_optim/variants.h"

#include <immintrin.h>

enum { LANES = 16, NOT_FINITE = 0x99 }; /* of vfpclass: quiet and signalling NaN, both infinities */

struct constants {
    __m512 beta1, beta2, one_minus_beta1, one_minus_beta2, m_scale, v_scale;
    __m512 eps, learning_rate, decay, grad_scale;
};

static struct constants constants_of(const struct ox_adam_hyper *hyper, bool decay) {
    return (struct constants){
        .beta1 = _mm512_set1_ps(hyper->beta1),
        .beta2 = _mm512_set1_ps(hyper->beta2),
        .one_minus_beta1 = _mm512_set1_ps(hyper->one_minus_beta1),
        .one_minus_beta2 = _mm512_set1_ps(hyper->one_minus_beta2),
        .m_scale = _mm512_set1_ps(hyper->m_scale),
        .v_scale = _mm512_set1_ps(hyper->v_scale),
        .eps = _mm512_set1_ps(hyper->eps),
        .learning_rate = _mm512_set1_ps(hyper->learning_rate),
        .decay = _mm512_set1_ps(decay ? hyper->decay_factor : 1.0f),
        .grad_scale = _mm512_set1_ps(hyper->grad_scale),
    };
}

static inline __m512i widen(const uint16_t *source) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)source));
}

static inline __m512 grad_load(const struct ox_adam_span *span, uint64_t idx, bool bf16) {
    if (bf16) {
        const __m512i wide = widen((const uint16_t *)span->grad + idx);
        return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
    }
    return _mm512_loadu_ps((const float *)span->grad + idx);
}

static inline __m512 master_load(const struct ox_adam_span *span, uint64_t idx) {
    const __m512i lo = widen(span->lo + idx);
    const __m512i top = _mm512_sub_epi32(widen(span->hi + idx), _mm512_srli_epi32(lo, 15));
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_slli_epi32(top, 16), lo));
}

static inline void master_store(const struct ox_adam_span *span, uint64_t idx, __m512 master) {
    const __m512i bits = _mm512_castps_si512(master);
    const __m512i hi = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x8000)), 16);
    _mm256_storeu_si256((void *)(span->hi_out + idx), _mm512_cvtepi32_epi16(hi));
    _mm256_storeu_si256((void *)(span->lo + idx), _mm512_cvtepi32_epi16(bits));
}

/* One vector; returns a bit for each element that is not finite. */
static inline __mmask16 update(const struct ox_adam_span *span, const struct constants *c, uint64_t i,
                               bool bf16) {
    const __m512 g = _mm512_mul_ps(grad_load(span, i, bf16), c->grad_scale);
    const __m512 p = master_load(span, i);
    const __m512 m_part = _mm512_mul_ps(c->one_minus_beta1, g);
    const __m512 v_part = _mm512_mul_ps(c->one_minus_beta2, _mm512_mul_ps(g, g));
    const __m512 m = _mm512_fmadd_ps(c->beta1, _mm512_loadu_ps(span->m + i), m_part);
    const __m512 v = _mm512_fmadd_ps(c->beta2, _mm512_loadu_ps(span->v + i), v_part);
    const __m512 root = _mm512_sqrt_ps(_mm512_mul_ps(v, c->v_scale));
    const __m512 u = _mm512_div_ps(_mm512_mul_ps(m, c->m_scale), _mm512_add_ps(root, c->eps));
    const __m512 next = _mm512_fnmadd_ps(c->learning_rate, u, _mm512_mul_ps(p, c->decay));
    _mm512_storeu_ps(span->m + i, m);
    _mm512_storeu_ps(span->v + i, v);
    master_store(span, i, next);
    return _mm512_fpclass_ps_mask(m, NOT_FINITE) | _mm512_fpclass_ps_mask(v, NOT_FINITE) |
           _mm512_fpclass_ps_mask(next, NOT_FINITE);
}

static inline uint64_t update_all(const struct ox_adam_span *span, const struct constants *c, uint64_t count,
                                  bool bf16) {
    uint64_t bad_count = 0;
    for (uint64_t i = 0; i < count; i += LANES) {
        bad_count += (unsigned)__builtin_popcount(update(span, c, i, bf16));
    }
    return bad_count;
}

uint64_t ox_adam_avx512(const struct ox_adam_span *span, const struct ox_adam_hyper *hyper) {
    const struct constants c = constants_of(hyper, span->decay);
    const uint64_t whole = span->count / LANES * LANES;
    const uint64_t bad_count = span->grad_dtype == OX_GRAD_BF16 ? update_all(span, &c, whole, true)
                                                                : update_all(span, &c, whole, false);
    const struct ox_adam_span tail = ox_adam_part(span, whole, span->count);
    return bad_count + ox_adam_scalar(&tail, hyper);
}
