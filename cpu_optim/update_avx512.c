#include "cpu_optim/codec.h"
#include "cpu_optim/variants.h"

#include <immintrin.h>

enum { LANES = 16 };
typedef float vf __attribute__((vector_size(64)));
typedef uint32_t vu __attribute__((vector_size(64)));
typedef __mmask16 lanes_mask;

static inline vf lanes_f32(float value) {
    return _mm512_set1_ps(value);
}

static inline vu lanes_u32(uint32_t value) {
    return (vu)_mm512_set1_epi32((int)value);
}

static inline vu lanes_count(void) {
    return (vu){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
}

static inline vf lanes_load32(const float *source) {
    return _mm512_loadu_ps(source);
}

static inline vu lanes_load16(const uint16_t *source) {
    return (vu)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)source));
}

static inline vu lanes_load8(const uint8_t *source) {
    return (vu)_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)source));
}

static inline void lanes_store32(float *target, vf value) {
    _mm512_storeu_ps(target, value);
}

/* The low halves and the low bytes of the lanes. */
static inline void lanes_store16(uint16_t *target, vu value) {
    _mm256_storeu_si256((void *)target, _mm512_cvtepi32_epi16((__m512i)value));
}

static inline void lanes_store8(uint8_t *target, vu value) {
    _mm_storeu_si128((void *)target, _mm512_cvtepi32_epi8((__m512i)value));
}

static inline vf lanes_fma(vf a, vf b, vf c) {
    return _mm512_fmadd_ps(a, b, c);
}

static inline vf lanes_fnma(vf a, vf b, vf c) {
    return _mm512_fnmadd_ps(a, b, c);
}

static inline vf lanes_sqrt(vf a) {
    return _mm512_sqrt_ps(a);
}

static inline vf lanes_max(vf a, vf b) {
    return _mm512_max_ps(a, b);
}

static inline vf lanes_min(vf a, vf b) {
    return _mm512_min_ps(a, b);
}

static inline vf lanes_sign(vf a) {
    const __m512 zero = _mm512_setzero_ps();
    const __m512 above = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, zero, _CMP_GT_OQ), _mm512_set1_ps(1.0f));
    return _mm512_mask_mov_ps(above, _mm512_cmp_ps_mask(a, zero, _CMP_LT_OQ), _mm512_set1_ps(-1.0f));
}

static inline vu lanes_max_u32(vu a, vu b) {
    return (vu)_mm512_max_epu32((__m512i)a, (__m512i)b);
}

static inline vu lanes_min_u32(vu a, vu b) {
    return (vu)_mm512_min_epu32((__m512i)a, (__m512i)b);
}

/* The largest lane, in all lanes. */
static inline vu lanes_spread_max(vu a) {
    a = lanes_max_u32(a, (vu)_mm512_shuffle_i32x4((__m512i)a, (__m512i)a, 0x4e));
    a = lanes_max_u32(a, (vu)_mm512_shuffle_i32x4((__m512i)a, (__m512i)a, 0xb1));
    a = lanes_max_u32(a, (vu)_mm512_shuffle_epi32((__m512i)a, 0x4e));
    return lanes_max_u32(a, (vu)_mm512_shuffle_epi32((__m512i)a, 0xb1));
}

static inline uint32_t lanes_first(vu a) {
    return (uint32_t)_mm_cvtsi128_si32(_mm512_castsi512_si128((__m512i)a));
}

static inline lanes_mask lanes_not_below(vu a, vu limit) {
    return _mm512_cmpge_epu32_mask((__m512i)a, (__m512i)limit);
}

static inline vf lanes_replace(lanes_mask mask, vf a, vf b) {
    return _mm512_mask_mov_ps(a, mask, b);
}

static inline uint32_t lanes_mask_count(lanes_mask mask) {
    return (uint32_t)__builtin_popcount(mask);
}

#define OX_UPDATE_NAME ox_update_avx512
#include "cpu_optim/update_body.inc"
