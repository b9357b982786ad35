#include "cpu_optim/variants.h"

#include <immintrin.h>

/* Sixteen values from `idx`. */
static inline __m512 load(const void *grad, uint64_t idx, bool bf16) {
    if (bf16) {
        const __m256i narrow = _mm256_loadu_si256((const void *)((const uint16_t *)grad + idx));
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
    }
    return _mm512_loadu_ps((const float *)grad + idx);
}

static inline __m512d add_square(__m512d sum, __m256 value) {
    const __m512d wide = _mm512_cvtps_pd(value);
    return _mm512_fmadd_pd(wide, wide, sum);
}

static inline void add_all(const void *grad, uint64_t count, bool bf16, double *sums) {
    __m512d sum0 = _mm512_setzero_pd(), sum1 = sum0;
    for (uint64_t i = 0; i + OX_NORM_LANES <= count; i += OX_NORM_LANES) {
        const __m512 value = load(grad, i, bf16);
        sum0 = add_square(sum0, _mm512_castps512_ps256(value));
        sum1 = add_square(sum1, _mm512_extractf32x8_ps(value, 1));
    }
    _mm512_storeu_pd(sums, sum0);
    _mm512_storeu_pd(sums + 8, sum1);
}

double ox_sumsq_avx512(const void *grad, enum ox_grad_dtype dtype, uint64_t count) {
    double sums[OX_NORM_LANES];
    if (dtype == OX_GRAD_BF16) {
        add_all(grad, count, true, sums);
    } else {
        add_all(grad, count, false, sums);
    }
    return ox_sumsq_finish(sums, grad, dtype, count);
}
