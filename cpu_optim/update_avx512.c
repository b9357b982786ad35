#include "base/optim_element.h"
#include "cpu_optim/variants.h"

#include <immintrin.h>

enum { LANES = 16 };
typedef float vf __attribute__((vector_size(64)));
typedef uint32_t vu __attribute__((vector_size(64)));

static inline vf lanes_f32(float value) {
    return _mm512_set1_ps(value);
}

static inline vu lanes_u32(uint32_t value) {
    return (vu)_mm512_set1_epi32((int)value);
}

static inline vu lanes_count(void) {
    return (vu){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
}

/* The halfwords 0, 2, 4 ... 62 of two vectors, two indices to a lane. */
static inline vu lanes_even_halves(void) {
    return lanes_count() * lanes_u32(0x00040004) + lanes_u32(0x00020000);
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

static inline vu lanes_load16_signed(const int16_t *source) {
    return (vu)_mm512_cvtepi16_epi32(_mm256_loadu_si256((const void *)source));
}

static inline vu lanes_load8_signed(const int8_t *source) {
    return (vu)_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)source));
}

static inline void lanes_store32(float *target, vf value) {
    _mm512_storeu_ps(target, value);
}

/* Stores to an aligned target past the cache. */
static inline void lanes_stream(void *target, vu value) {
    _mm512_stream_si512(target, (__m512i)value);
}

static inline void lanes_stream_end(void) {
    _mm_sfence();
}

/* The low halves of the lanes of both, and the high halves. */
static inline void lanes_store_low(uint16_t *target, vu a, vu b) {
    const __m512i pick = (__m512i)(lanes_even_halves());
    _mm512_storeu_si512(target, _mm512_permutex2var_epi16((__m512i)a, pick, (__m512i)b));
}

static inline void lanes_store_high(uint16_t *target, vu a, vu b) {
    const __m512i pick = (__m512i)(lanes_even_halves() + lanes_u32(0x00010001));
    _mm512_storeu_si512(target, _mm512_permutex2var_epi16((__m512i)a, pick, (__m512i)b));
}

/* The low bytes of the lanes of a block. */
static inline void lanes_store8(uint8_t *target, const vu value[4]) {
    for (int j = 0; j < 4; j++) {
        _mm_storeu_si128((void *)(target + j * LANES), _mm512_cvtepi32_epi8((__m512i)value[j]));
    }
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

static inline bool lanes_all_below(vu a, vu limit) {
    return _mm512_cmpge_epu32_mask((__m512i)a, (__m512i)limit) == 0;
}

/* Bits of `a` where `mask` has ones, of `b` elsewhere. */
static inline vu lanes_merge(vu mask, vu a, vu b) {
    return (vu)_mm512_ternarylogic_epi32((__m512i)mask, (__m512i)a, (__m512i)b, 0xca);
}

#define OX_UPDATE_NAME ox_update_avx512
#include "cpu_optim/update_body.inc"
