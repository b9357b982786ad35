#include "cpu_optim/variants.h"

#include <immintrin.h>

enum { LANES = 8 };

struct constants {
    __m256 beta1, beta2, one_minus_beta1, one_minus_beta2, m_scale, v_scale;
    __m256 eps, learning_rate, decay, grad_scale;
};

static struct constants constants_of(const struct ox_adam_hyper *hyper, bool decay) {
    return (struct constants){
        .beta1 = _mm256_set1_ps(hyper->beta1),
        .beta2 = _mm256_set1_ps(hyper->beta2),
        .one_minus_beta1 = _mm256_set1_ps(hyper->one_minus_beta1),
        .one_minus_beta2 = _mm256_set1_ps(hyper->one_minus_beta2),
        .m_scale = _mm256_set1_ps(hyper->m_scale),
        .v_scale = _mm256_set1_ps(hyper->v_scale),
        .eps = _mm256_set1_ps(hyper->eps),
        .learning_rate = _mm256_set1_ps(hyper->learning_rate),
        .decay = _mm256_set1_ps(decay ? hyper->decay_factor : 1.0f),
        .grad_scale = _mm256_set1_ps(hyper->grad_scale),
    };
}

static inline __m256i widen(const uint16_t *source) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)source));
}

/* Eight words below 65536 to eight halfwords. The pack works within 128-bit halves; the permutation
 * brings its two results together. */
static inline void narrow_store(uint16_t *target, __m256i words) {
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), 0x08);
    _mm_storeu_si128((void *)target, _mm256_castsi256_si128(packed));
}

static inline __m256 grad_load(const struct ox_adam_span *span, uint64_t idx, bool bf16) {
    if (bf16) {
        const __m256i wide = widen((const uint16_t *)span->grad + idx);
        return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
    }
    return _mm256_loadu_ps((const float *)span->grad + idx);
}

static inline __m256 master_load(const struct ox_adam_span *span, uint64_t idx) {
    const __m256i lo = widen(span->lo + idx);
    const __m256i top = _mm256_sub_epi32(widen(span->hi + idx), _mm256_srli_epi32(lo, 15));
    return _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32(top, 16), lo));
}

static inline void master_store(const struct ox_adam_span *span, uint64_t idx, __m256 master) {
    const __m256i bits = _mm256_castps_si256(master);
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_set1_epi32(0x8000));
    narrow_store(span->hi_out + idx, _mm256_srli_epi32(rounded, 16));
    narrow_store(span->lo + idx, _mm256_and_si256(bits, _mm256_set1_epi32(0xffff)));
}

/* All bits set where the exponent is that of infinities and NaN. */
static inline __m256i not_finite(__m256 value) {
    const __m256i exponent = _mm256_set1_epi32(0x7f800000);
    return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_castps_si256(value), exponent), exponent);
}

/* One vector; returns a bit for each element that is not finite. */
static inline unsigned update(const struct ox_adam_span *span, const struct constants *c, uint64_t i,
                              bool bf16) {
    const __m256 g = _mm256_mul_ps(grad_load(span, i, bf16), c->grad_scale);
    const __m256 p = master_load(span, i);
    const __m256 m_part = _mm256_mul_ps(c->one_minus_beta1, g);
    const __m256 v_part = _mm256_mul_ps(c->one_minus_beta2, _mm256_mul_ps(g, g));
    const __m256 m = _mm256_fmadd_ps(c->beta1, _mm256_loadu_ps(span->m + i), m_part);
    const __m256 v = _mm256_fmadd_ps(c->beta2, _mm256_loadu_ps(span->v + i), v_part);
    const __m256 root = _mm256_sqrt_ps(_mm256_mul_ps(v, c->v_scale));
    const __m256 u = _mm256_div_ps(_mm256_mul_ps(m, c->m_scale), _mm256_add_ps(root, c->eps));
    const __m256 next = _mm256_fnmadd_ps(c->learning_rate, u, _mm256_mul_ps(p, c->decay));
    _mm256_storeu_ps(span->m + i, m);
    _mm256_storeu_ps(span->v + i, v);
    master_store(span, i, next);
    const __m256i bad = _mm256_or_si256(_mm256_or_si256(not_finite(m), not_finite(v)), not_finite(next));
    return (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(bad));
}

static inline uint64_t update_all(const struct ox_adam_span *span, const struct constants *c, uint64_t count,
                                  bool bf16) {
    uint64_t bad_count = 0;
    for (uint64_t i = 0; i < count; i += LANES) {
        bad_count += (unsigned)__builtin_popcount(update(span, c, i, bf16));
    }
    return bad_count;
}

uint64_t ox_adam_avx2(const struct ox_adam_span *span, const struct ox_adam_hyper *hyper) {
    const struct constants c = constants_of(hyper, span->decay);
    const uint64_t whole = span->count / LANES * LANES;
    const uint64_t bad_count = span->grad_dtype == OX_GRAD_BF16 ? update_all(span, &c, whole, true)
                                                                : update_all(span, &c, whole, false);
    const struct ox_adam_span tail = ox_adam_part(span, whole, span->count);
    return bad_count + ox_adam_scalar(&tail, hyper);
}
