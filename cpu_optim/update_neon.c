#include "base/optim_element.h"
#include "cpu_optim/variants.h"

#include <arm_neon.h>
#include <string.h>

enum { LANES = 4 };
typedef float32x4_t vf;
typedef uint32x4_t vu;

static inline vf lanes_f32(float value) {
    return vdupq_n_f32(value);
}

static inline vu lanes_u32(uint32_t value) {
    return vdupq_n_u32(value);
}

static inline vu lanes_count(void) {
    return (vu){0, 1, 2, 3};
}

static inline vf lanes_load32(const float *source) {
    return vld1q_f32(source);
}

static inline vu lanes_load16(const uint16_t *source) {
    return vmovl_u16(vld1_u16(source));
}

static inline vu lanes_load8(const uint8_t *source) {
    uint32_t four;
    memcpy(&four, source, sizeof four);
    return vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four))));
}

static inline vu lanes_load16_signed(const int16_t *source) {
    return vreinterpretq_u32_s32(vmovl_s16(vld1_s16(source)));
}

static inline vu lanes_load8_signed(const int8_t *source) {
    uint32_t four;
    memcpy(&four, source, sizeof four);
    return vreinterpretq_u32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(four)))));
}

static inline void lanes_store32(float *target, vf value) {
    vst1q_f32(target, value);
}

static inline void lanes_stream(void *target, vu value) {
    memcpy(target, &value, sizeof value);
}

static inline void lanes_stream_end(void) {
}

/* The low halves of the lanes of both, and the high halves. */
static inline void lanes_store_low(uint16_t *target, vu a, vu b) {
    vst1q_u16(target, vuzp1q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b)));
}

static inline void lanes_store_high(uint16_t *target, vu a, vu b) {
    vst1q_u16(target, vuzp2q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b)));
}

/* The low bytes of the lanes of a block. */
static inline void lanes_store8(uint8_t *target, const vu value[16]) {
    for (int j = 0; j < 16; j += 4) {
        const uint16x8_t left = vuzp1q_u16(vreinterpretq_u16_u32(value[j]), vreinterpretq_u16_u32(value[j + 1]));
        const uint16x8_t right = vuzp1q_u16(vreinterpretq_u16_u32(value[j + 2]), vreinterpretq_u16_u32(value[j + 3]));
        vst1q_u8(target + j * LANES, vuzp1q_u8(vreinterpretq_u8_u16(left), vreinterpretq_u8_u16(right)));
    }
}

static inline vf lanes_fma(vf a, vf b, vf c) {
    return vfmaq_f32(c, a, b);
}

static inline vf lanes_fnma(vf a, vf b, vf c) {
    return vfmsq_f32(c, a, b);
}

static inline vf lanes_sqrt(vf a) {
    return vsqrtq_f32(a);
}

static inline vf lanes_max(vf a, vf b) {
    return vmaxq_f32(a, b);
}

static inline vf lanes_min(vf a, vf b) {
    return vminq_f32(a, b);
}

static inline vf lanes_sign(vf a) {
    const vu above = vandq_u32(vcgtzq_f32(a), vreinterpretq_u32_f32(vdupq_n_f32(1.0f)));
    const vu below = vandq_u32(vcltzq_f32(a), vreinterpretq_u32_f32(vdupq_n_f32(-1.0f)));
    return vreinterpretq_f32_u32(vorrq_u32(above, below));
}

static inline vu lanes_max_u32(vu a, vu b) {
    return vmaxq_u32(a, b);
}

static inline vu lanes_min_u32(vu a, vu b) {
    return vminq_u32(a, b);
}

/* The largest lane, in all lanes. */
static inline vu lanes_spread_max(vu a) {
    return vdupq_n_u32(vmaxvq_u32(a));
}

static inline uint32_t lanes_first(vu a) {
    return vgetq_lane_u32(a, 0);
}

static inline bool lanes_all_below(vu a, vu limit) {
    return vmaxvq_u32(vcgeq_u32(a, limit)) == 0;
}

/* Bits of `a` where `mask` has ones, of `b` elsewhere. */
static inline vu lanes_merge(vu mask, vu a, vu b) {
    return vbslq_u32(mask, a, b);
}

#define OX_UPDATE_NAME ox_update_neon
#include "cpu_optim/update_body.inc"
