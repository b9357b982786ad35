#include "cpu_optim/codec.h"
#include "cpu_optim/variants.h"

#include <immintrin.h>

enum { LANES = 8 };
typedef float vf __attribute__((vector_size(32)));
typedef uint32_t vu __attribute__((vector_size(32)));
typedef vu lanes_mask; /* all bits of a lane */

static inline vf lanes_f32(float value) {
    return _mm256_set1_ps(value);
}

static inline vu lanes_u32(uint32_t value) {
    return (vu)_mm256_set1_epi32((int)value);
}

static inline vu lanes_count(void) {
    return (vu){0, 1, 2, 3, 4, 5, 6, 7};
}

static inline vf lanes_load32(const float *source) {
    return _mm256_loadu_ps(source);
}

static inline vu lanes_load16(const uint16_t *source) {
    return (vu)_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)source));
}

static inline vu lanes_load8(const uint8_t *source) {
    return (vu)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)source));
}

static inline void lanes_store32(float *target, vf value) {
    _mm256_storeu_ps(target, value);
}

/* The low halves of the lanes. The pack works within 128-bit halves; the permutation brings its two results
 * together. */
static inline void lanes_store16(uint16_t *target, vu value) {
    const __m256i words = (__m256i)(value & 0xffffu);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), 0x08);
    _mm_storeu_si128((void *)target, _mm256_castsi256_si128(packed));
}

/* The low bytes: four in each half, brought together. */
static inline void lanes_store8(uint8_t *target, vu value) {
    const __m256i pick = _mm256_set1_epi32(0x0c080400);
    const __m256i packed = _mm256_shuffle_epi8((__m256i)value, pick);
    const __m128i both = _mm_unpacklo_epi32(_mm256_castsi256_si128(packed), _mm256_extracti128_si256(packed, 1));
    _mm_storel_epi64((void *)target, both);
}

static inline vf lanes_fma(vf a, vf b, vf c) {
    return _mm256_fmadd_ps(a, b, c);
}

static inline vf lanes_fnma(vf a, vf b, vf c) {
    return _mm256_fnmadd_ps(a, b, c);
}

static inline vf lanes_sqrt(vf a) {
    return _mm256_sqrt_ps(a);
}

static inline vf lanes_max(vf a, vf b) {
    return _mm256_max_ps(a, b);
}

static inline vf lanes_min(vf a, vf b) {
    return _mm256_min_ps(a, b);
}

static inline vf lanes_sign(vf a) {
    const __m256 zero = _mm256_setzero_ps();
    const __m256 above = _mm256_and_ps(_mm256_cmp_ps(a, zero, _CMP_GT_OQ), _mm256_set1_ps(1.0f));
    return _mm256_or_ps(above, _mm256_and_ps(_mm256_cmp_ps(a, zero, _CMP_LT_OQ), _mm256_set1_ps(-1.0f)));
}

static inline vu lanes_max_u32(vu a, vu b) {
    return (vu)_mm256_max_epu32((__m256i)a, (__m256i)b);
}

static inline vu lanes_min_u32(vu a, vu b) {
    return (vu)_mm256_min_epu32((__m256i)a, (__m256i)b);
}

/* The largest lane, in all lanes. */
static inline vu lanes_spread_max(vu a) {
    a = lanes_max_u32(a, (vu)_mm256_permute2x128_si256((__m256i)a, (__m256i)a, 1));
    a = lanes_max_u32(a, (vu)_mm256_shuffle_epi32((__m256i)a, 0x4e));
    return lanes_max_u32(a, (vu)_mm256_shuffle_epi32((__m256i)a, 0xb1));
}

static inline uint32_t lanes_first(vu a) {
    return (uint32_t)_mm_cvtsi128_si32(_mm256_castsi256_si128((__m256i)a));
}

static inline lanes_mask lanes_not_below(vu a, vu limit) {
    return (vu)_mm256_cmpeq_epi32((__m256i)lanes_max_u32(a, limit), (__m256i)a);
}

static inline vf lanes_replace(lanes_mask mask, vf a, vf b) {
    return _mm256_blendv_ps(a, b, (__m256)mask);
}

static inline uint32_t lanes_mask_count(lanes_mask mask) {
    return (uint32_t)__builtin_popcount((unsigned)_mm256_movemask_ps((__m256)mask));
}

#define OX_UPDATE_NAME ox_update_avx2
#include "cpu_optim/update_body.inc"
