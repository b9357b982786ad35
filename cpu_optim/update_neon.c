#include "cpu_optim/codec.h"
#include "cpu_optim/variants.h"

#include <arm_neon.h>
#include <string.h>

enum { LANES = 4 };
typedef float32x4_t vf;
typedef uint32x4_t vu;
typedef uint32x4_t lanes_mask; /* all bits of a lane */

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

static inline void lanes_store32(float *target, vf value) {
    vst1q_f32(target, value);
}

/* The low halves and the low bytes of the lanes. */
static inline void lanes_store16(uint16_t *target, vu value) {
    vst1_u16(target, vmovn_u32(value));
}

static inline void lanes_store8(uint8_t *target, vu value) {
    const uint16x4_t halves = vmovn_u32(value);
    const uint32_t four = vget_lane_u32(vreinterpret_u32_u8(vmovn_u16(vcombine_u16(halves, halves))), 0);
    memcpy(target, &four, sizeof four);
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

static inline lanes_mask lanes_not_below(vu a, vu limit) {
    return vcgeq_u32(a, limit);
}

static inline vf lanes_replace(lanes_mask mask, vf a, vf b) {
    return vbslq_f32(mask, b, a);
}

static inline uint32_t lanes_mask_count(lanes_mask mask) {
    return vaddvq_u32(vshrq_n_u32(mask, 31));
}

#define OX_UPDATE_NAME ox_update_neon
#include "cpu_optim/update_body.inc"
