#include "base/optim_element.h"
#include "cpu_optim/variants.h"

#include <immintrin.h>

enum { LANES = 8 };
typedef float vf __attribute__((vector_size(32)));
typedef uint32_t vu __attribute__((vector_size(32)));

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

static inline vu lanes_load16_signed(const int16_t *source) {
    return (vu)_mm256_cvtepi16_epi32(_mm_loadu_si128((const void *)source));
}

static inline vu lanes_load8_signed(const int8_t *source) {
    return (vu)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)source));
}

static inline void lanes_store32(float *target, vf value) {
    _mm256_storeu_ps(target, value);
}

static inline void lanes_stream(void *target, vu value) {
    _mm256_stream_si256(target, (__m256i)value);
}

static inline void lanes_stream_end(void) {
    _mm_sfence();
}

/* Lanes below 65536 of both. The pack works within 128-bit halves; the permutation brings its results together. */
static inline void lanes_pack(uint16_t *target, vu a, vu b) {
    const __m256i packed = _mm256_packus_epi32((__m256i)a, (__m256i)b);
    _mm256_storeu_si256((void *)target, _mm256_permute4x64_epi64(packed, 0xd8));
}

/* The low halves of the lanes of both, and the high halves. */
static inline void lanes_store_low(uint16_t *target, vu a, vu b) {
    lanes_pack(target, a & lanes_u32(0xffff), b & lanes_u32(0xffff));
}

static inline void lanes_store_high(uint16_t *target, vu a, vu b) {
    lanes_pack(target, a >> 16, b >> 16);
}

/* The low bytes of the lanes of a block: four vectors pack to one, four bytes of each in turn. */
static inline void lanes_store8(uint8_t *target, const vu value[8]) {
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const vu byte = lanes_u32(255);
    for (int j = 0; j < 8; j += 4) {
        const __m256i left = _mm256_packus_epi32((__m256i)(value[j] & byte), (__m256i)(value[j + 1] & byte));
        const __m256i right = _mm256_packus_epi32((__m256i)(value[j + 2] & byte), (__m256i)(value[j + 3] & byte));
        const __m256i packed = _mm256_packus_epi16(left, right);
        _mm256_storeu_si256((void *)(target + j * LANES), _mm256_permutevar8x32_epi32(packed, order));
    }
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

static inline bool lanes_all_below(vu a, vu limit) {
    const __m256i reached = _mm256_cmpeq_epi32((__m256i)lanes_max_u32(a, limit), (__m256i)a);
    return _mm256_testz_si256(reached, reached) != 0;
}

/* Bits of `a` where `mask` has ones, of `b` elsewhere. */
static inline vu lanes_merge(vu mask, vu a, vu b) {
    return (a & mask) | (b & ~mask);
}

#define OX_UPDATE_NAME ox_update_avx2
#include "cpu_optim/update_body.inc"
