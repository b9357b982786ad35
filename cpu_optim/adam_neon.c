#include "cpu_optim/variants.h"

#include <arm_neon.h>

enum { LANES = 4 };

struct constants {
    float32x4_t beta1, beta2, one_minus_beta1, one_minus_beta2, m_scale, v_scale;
    float32x4_t eps, learning_rate, decay, grad_scale;
};

static struct constants constants_of(const struct ox_adam_hyper *hyper, bool decay) {
    return (struct constants){
        .beta1 = vdupq_n_f32(hyper->beta1),
        .beta2 = vdupq_n_f32(hyper->beta2),
        .one_minus_beta1 = vdupq_n_f32(hyper->one_minus_beta1),
        .one_minus_beta2 = vdupq_n_f32(hyper->one_minus_beta2),
        .m_scale = vdupq_n_f32(hyper->m_scale),
        .v_scale = vdupq_n_f32(hyper->v_scale),
        .eps = vdupq_n_f32(hyper->eps),
        .learning_rate = vdupq_n_f32(hyper->learning_rate),
        .decay = vdupq_n_f32(decay ? hyper->decay_factor : 1.0f),
        .grad_scale = vdupq_n_f32(hyper->grad_scale),
    };
}

static inline uint32x4_t widen(const uint16_t *source) {
    return vmovl_u16(vld1_u16(source));
}

static inline float32x4_t grad_load(const struct ox_adam_span *span, uint64_t idx, bool bf16) {
    if (bf16) {
        return vreinterpretq_f32_u32(vshlq_n_u32(widen((const uint16_t *)span->grad + idx), 16));
    }
    return vld1q_f32((const float *)span->grad + idx);
}

static inline float32x4_t master_load(const struct ox_adam_span *span, uint64_t idx) {
    const uint32x4_t lo = widen(span->lo + idx);
    const uint32x4_t top = vsubq_u32(widen(span->hi + idx), vshrq_n_u32(lo, 15));
    return vreinterpretq_f32_u32(vorrq_u32(vshlq_n_u32(top, 16), lo));
}

static inline void master_store(const struct ox_adam_span *span, uint64_t idx, float32x4_t master) {
    const uint32x4_t bits = vreinterpretq_u32_f32(master);
    vst1_u16(span->hi_out + idx, vshrn_n_u32(vaddq_u32(bits, vdupq_n_u32(0x8000)), 16));
    vst1_u16(span->lo + idx, vmovn_u32(bits));
}

/* All bits set where the exponent is that of infinities and NaN. */
static inline uint32x4_t not_finite(float32x4_t value) {
    const uint32x4_t exponent = vdupq_n_u32(0x7f800000);
    return vceqq_u32(vandq_u32(vreinterpretq_u32_f32(value), exponent), exponent);
}

/* One vector; returns how many of its elements are not finite. */
static inline uint32_t update(const struct ox_adam_span *span, const struct constants *c, uint64_t i,
                              bool bf16) {
    const float32x4_t g = vmulq_f32(grad_load(span, i, bf16), c->grad_scale);
    const float32x4_t p = master_load(span, i);
    const float32x4_t m_part = vmulq_f32(c->one_minus_beta1, g);
    const float32x4_t v_part = vmulq_f32(c->one_minus_beta2, vmulq_f32(g, g));
    const float32x4_t m = vfmaq_f32(m_part, c->beta1, vld1q_f32(span->m + i));
    const float32x4_t v = vfmaq_f32(v_part, c->beta2, vld1q_f32(span->v + i));
    const float32x4_t root = vsqrtq_f32(vmulq_f32(v, c->v_scale));
    const float32x4_t u = vdivq_f32(vmulq_f32(m, c->m_scale), vaddq_f32(root, c->eps));
    const float32x4_t next = vfmsq_f32(vmulq_f32(p, c->decay), c->learning_rate, u);
    vst1q_f32(span->m + i, m);
    vst1q_f32(span->v + i, v);
    master_store(span, i, next);
    const uint32x4_t bad = vorrq_u32(vorrq_u32(not_finite(m), not_finite(v)), not_finite(next));
    return vaddvq_u32(vshrq_n_u32(bad, 31));
}

static inline uint64_t update_all(const struct ox_adam_span *span, const struct constants *c, uint64_t count,
                                  bool bf16) {
    uint64_t bad_count = 0;
    for (uint64_t i = 0; i < count; i += LANES) {
        bad_count += update(span, c, i, bf16);
    }
    return bad_count;
}

uint64_t ox_adam_neon(const struct ox_adam_span *span, const struct ox_adam_hyper *hyper) {
    const struct constants c = constants_of(hyper, span->decay);
    const uint64_t whole = span->count / LANES * LANES;
    const uint64_t bad_count = span->grad_dtype == OX_GRAD_BF16 ? update_all(span, &c, whole, true)
                                                                : update_all(span, &c, whole, false);
    const struct ox_adam_span tail = ox_adam_part(span, whole, span->count);
    return bad_count + ox_adam_scalar(&tail, hyper);
}
