#include "cpu_optim/variants.h"

#include <immintrin.h>

/* Eight values from `idx`. */
static inline __m256 load(const void *grad, uint64_t idx, bool bf16) {
    if (bf16) {
        const __m128i narrow = _mm_loadu_si128((const void *)((const uint16_t *)grad + idx));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
    }
    return _mm256_loadu_ps((const float *)grad + idx);
}

static inline __m256d add_square(__m256d sum, __m128 value) {
    const __m256d wide = _mm256_cvtps_pd(value);
    return _mm256_fmadd_pd(wide, wide, sum);
}

static inline void add_all(const void *grad, uint64_t count, bool bf16, double *sums) {
    __m256d sum0 = _mm256_setzero_pd(), sum1 = sum0, sum2 = sum0, sum3 = sum0;
    for (uint64_t i = 0; i + OX_NORM_LANES <= count; i += OX_NORM_LANES) {
        const __m256 low = load(grad, i, bf16), high = load(grad, i + 8, bf16);
        sum0 = add_square(sum0, _mm256_castps256_ps128(low));
        sum1 = add_square(sum1, _mm256_extractf128_ps(low, 1));
        sum2 = add_square(sum2, _mm256_castps256_ps128(high));
        sum3 = add_square(sum3, _mm256_extractf128_ps(high, 1));
    }
    _mm256_storeu_pd(sums, sum0);
    _mm256_storeu_pd(sums + 4, sum1);
    _mm256_storeu_pd(sums + 8, sum2);
    _mm256_storeu_pd(sums + 12, sum3);
}

double ox_sumsq_avx2(const void *grad, enum ox_grad_dtype dtype, uint64_t count) {
    double sums[OX_NORM_LANES];
    if (dtype == OX_GRAD_BF16) {
        add_all(grad, count, true, sums);
    } else {
        add_all(grad, count, false, sums);
    }
    return ox_sumsq_finish(sums, grad, dtype, count);
}
