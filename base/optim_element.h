/* Defines what an optimizer computes for one element. CPU loops and GPU kernels share it, and the vector code
 * reproduces it to the bit. Every fused multiply-add is written as one, square root and division are correctly rounded,
 * and files that include this are compiled so that nothing else is fused or reassociated.
 *
 * With g = grad * grad_scale, p the master, and decay = decay_factor for an element that decays, else 1:
 *   AdamW  m = fma(beta1, m, (1 - beta1) * g)
 *          v = fma(beta2, v, (1 - beta2) * (g * g))
 *          p = fma(-lr, (m * m_scale) / (sqrt(v * v_scale) + eps), p * decay)
 *          (Loshchilov & Hutter, arXiv 1711.05101; Kingma & Ba, arXiv 1412.6980)
 *   Lion   c = fma(beta1, m, (1 - beta1) * g);  p = fma(-lr, sign(c), p * decay)
 *          m = fma(beta2, m, (1 - beta2) * g)            (Chen et al., arXiv 2302.06675; sign(0) = 0)
 *   SGD    m = fma(beta1, m, g);  p = fma(-lr, m, p * decay)
 * The update uses the new moments before they are rounded to their format.
 *
 * BF16: rounding is random, up or down with the probability that keeps the mean. With rounding to nearest, a moment
 * that changes by less than half a step of its format would never change, which happens to v under beta2 = 0.999. The
 * error is below |x| / 128.
 *
 * Q8: blocks of OX_Q8_BLOCK elements share a one-byte scale, a power of two; a code is a small float below it, so its
 * steps grow with the value. m has a sign and 3 + 4 bits of exponent and fraction, v 4 + 4 bits. Rounding is random as
 * above. With `a` the largest magnitude of the block, the error is below
 *   |x| / 16            where |x| >= a / 62 (m), a / 15872 (v)
 *   a / 992, a / 253952 below that
 * and half of that for values set from outside, which are rounded to nearest. A non-zero v never becomes 0: below the
 * smallest step it stays at that step. lo has eight bits, so the master has 24: sign, exponent and 15 bits of fraction,
 * also rounded at random, because updates below 2^-17 of a weight would otherwise be lost.
 *
 * A Q8 code is the top of a float. With S the scale of its block and y = |x| / S, the code holds the fraction's upper
 * four bits and the exponent of z = y + max(y, 1): below 1 that is linear in steps of 1/16, above it each octave has 16
 * steps. Everything except the rounding is exact, because S is a power of two, and a value that a coarser or finer
 * scale can hold keeps its bits when the scale changes. */
#ifndef OX_BASE_OPTIM_ELEMENT_H
#define OX_BASE_OPTIM_ELEMENT_H

#include "base/optim_format.h"

#include <math.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    OX_Q8_SHIFT = 19, /* fraction bits of a float that a code leaves out */
    OX_Q8_OCTAVES_M = 6, OX_Q8_OCTAVES_V = 14, /* S = 2^-octaves times the power of two of the block's largest */
    /* rounds fractions above 15/16, which the largest code cannot hold, up to the next S */
    OX_Q8_SCALE_ROUND = 0x7ffff,
    OX_Q8_NEAREST = 0x40000,
};
#define OX_F32_ONE_BITS UINT32_C(0x3f800000)
#define OX_F32_INF_BITS UINT32_C(0x7f800000)
#define OX_NARROW_LIMIT_BITS UINT32_C(0x7f000000) /* 2^127: values below it stay finite when rounded up */

/* Returns 32 random bits for an element: steps of the golden ratio from a key, folded and multiplied. They decide
 * rounding, so speed matters most; keys change every step. */
#define OX_NOISE_STRIDE UINT32_C(0x9e3779b9)
#define OX_NOISE_FACTOR UINT32_C(0x846ca68b)
static inline OX_ON_DEVICE_TOO uint32_t ox_noise(const uint32_t keys[2], uint32_t idx) {
    const uint32_t x = idx * OX_NOISE_STRIDE + keys[0];
    return (x ^ (x >> 16) ^ keys[1]) * OX_NOISE_FACTOR;
}

/* The bits that round m and v in Q8 (which share the lowest ones), the master, and m and v in BF16. */
static inline OX_ON_DEVICE_TOO uint32_t ox_noise_q8_m(uint32_t noise) {
    return noise >> 13;
}
static inline OX_ON_DEVICE_TOO uint32_t ox_noise_q8_v(uint32_t noise) {
    return noise & 0x7ffffu;
}
static inline OX_ON_DEVICE_TOO uint32_t ox_noise_q8_master(uint32_t noise) {
    return noise >> 24;
}
static inline OX_ON_DEVICE_TOO uint32_t ox_noise_bf16_m(uint32_t noise) {
    return noise & 0xffffu;
}
static inline OX_ON_DEVICE_TOO uint32_t ox_noise_bf16_v(uint32_t noise) {
    return noise >> 16;
}

/* ---- Q8 ------------------------------------------------------------------------------------------- */

/* Returns the scale byte of a block whose largest magnitude has these bits: its exponent, rounded up. */
static inline OX_ON_DEVICE_TOO uint8_t ox_q8_scale_byte(uint32_t largest_bits) {
    return (uint8_t)((largest_bits + OX_Q8_SCALE_ROUND) >> 23);
}

/* Returns the exponent field of S, at least 3, so that S / 4 and 2 / S are normal numbers. */
static inline OX_ON_DEVICE_TOO uint32_t ox_q8_scale_exponent(uint8_t scale_byte, uint32_t octaves) {
    return (scale_byte < octaves + 3 ? octaves + 3 : scale_byte) - octaves;
}

static inline OX_ON_DEVICE_TOO float ox_q8_decode(uint32_t code, uint32_t scale_exponent) {
    const float z = ox_f32_from_bits((code << OX_Q8_SHIFT) + OX_F32_ONE_BITS);
    const float scale = ox_f32_from_bits(scale_exponent << 23);
    const float low = (z - 1.0f) * scale, high = z * (scale * 0.5f);
    return low < high ? low : high;
}

/* `round` is added below the last kept bit: random, or OX_Q8_NEAREST. */
static inline OX_ON_DEVICE_TOO uint32_t ox_q8_encode(float magnitude, uint32_t scale_exponent, uint32_t round) {
    const float y = magnitude * ox_f32_from_bits((254 - scale_exponent) << 23);
    const float z = y + (y > 1.0f ? y : 1.0f);
    return (ox_f32_bits(z) + round - OX_F32_ONE_BITS) >> OX_Q8_SHIFT;
}

static inline OX_ON_DEVICE_TOO float ox_q8_decode_m(uint8_t code, uint32_t scale_exponent) {
    const float magnitude = ox_q8_decode(code & 127u, scale_exponent);
    return ox_f32_from_bits(ox_f32_bits(magnitude) | (uint32_t)(code & 128u) << 24);
}

static inline OX_ON_DEVICE_TOO uint8_t ox_q8_encode_m(float value, uint32_t scale_exponent, uint32_t round) {
    const uint32_t bits = ox_f32_bits(value);
    const float magnitude = ox_f32_from_bits(bits & 0x7fffffffu);
    return (uint8_t)(ox_q8_encode(magnitude, scale_exponent, round) | (bits >> 24 & 128u));
}

/* A value above 0 never becomes 0: with v = 0 the update would divide by eps alone. */
static inline OX_ON_DEVICE_TOO uint8_t ox_q8_encode_v(float value, uint32_t scale_exponent, uint32_t round) {
    const uint32_t code = ox_q8_encode(value, scale_exponent, round);
    return (uint8_t)(code == 0 && value > 0.0f ? 1 : code);
}

/* ---- the master of 24 bits ---------------------------------------------------------------------------- */

/* `round` below 256: random, or 128 for nearest. */
static inline OX_ON_DEVICE_TOO void ox_master24_split(float master, uint32_t round, uint16_t *hi, uint8_t *lo) {
    const uint32_t bits = ox_f32_bits(master) + round;
    *lo = (uint8_t)(bits >> 8);
    *hi = (uint16_t)((bits >> 16) + (bits >> 15 & 1u));
}

static inline OX_ON_DEVICE_TOO float ox_master24_join(uint16_t hi, uint8_t lo) {
    return ox_plane_join(hi, (uint16_t)(lo << 8));
}

/* ---- the update ------------------------------------------------------------------------------------------ */

struct ox_element {
    float p, m, v; /* the master, joined from its planes; v is 0 for a kind without it */
};

static inline OX_ON_DEVICE_TOO void ox_element_update(enum ox_optim_kind kind, const struct ox_optim_hyper *hyper,
                                                      bool decays, float grad, struct ox_element *e) {
    const float g = grad * hyper->grad_scale;
    const float kept = e->p * (decays ? hyper->decay_factor : 1.0f);
    if (kind == OX_OPTIM_ADAMW || kind == OX_OPTIM_MUON) {
        e->m = fmaf(hyper->beta1, e->m, hyper->one_minus_beta1 * g);
        e->v = fmaf(hyper->beta2, e->v, hyper->one_minus_beta2 * (g * g));
        const float u = (e->m * hyper->m_scale) / (sqrtf(e->v * hyper->v_scale) + hyper->eps);
        e->p = fmaf(-hyper->learning_rate, u, kept);
    } else if (kind == OX_OPTIM_LION) {
        const float c = fmaf(hyper->beta1, e->m, hyper->one_minus_beta1 * g);
        e->m = fmaf(hyper->beta2, e->m, hyper->one_minus_beta2 * g);
        e->p = fmaf(-hyper->learning_rate, c > 0.0f ? 1.0f : c < 0.0f ? -1.0f : 0.0f, kept);
    } else {
        e->m = fmaf(hyper->beta1, e->m, g);
        e->p = fmaf(-hyper->learning_rate, e->m, kept);
    }
}

/* Moves an average towards a new master, as torch.lerp does but for its fused multiply-add
 * (torch.optim.swa_utils.get_ema_multi_avg_fn). */
static inline OX_ON_DEVICE_TOO float ox_average_update(float average, float master, float share) {
    const float step = master - average;
    return share < 0.5f ? average + share * step : master - step * (1.0f - share);
}

static inline OX_ON_DEVICE_TOO bool ox_is_below(float value, uint32_t limit_bits) {
    return (ox_f32_bits(value) & 0x7fffffffu) < limit_bits;
}

/* Returns whether a format can hold the value: finite, and below 2^127 in the narrow formats. */
static inline OX_ON_DEVICE_TOO bool ox_moments_hold(enum ox_moments moments, float value) {
    return ox_is_below(value, moments == OX_MOMENTS_F32 ? OX_F32_INF_BITS : OX_NARROW_LIMIT_BITS);
}

/* Returns whether the format can hold all three. In the narrow formats an element that does not fit gets a NaN as its
 * master and zero moments, so that every device writes the same bits. */
static inline OX_ON_DEVICE_TOO bool ox_element_check(enum ox_moments moments, struct ox_element *e) {
    const bool good =
        ox_moments_hold(moments, e->m) && ox_moments_hold(moments, e->v) && ox_moments_hold(moments, e->p);
    if (!good && moments != OX_MOMENTS_F32) {
        e->p = ox_f32_from_bits(0x7fc00000u);
        e->m = e->v = 0.0f;
    }
    return good;
}

#ifdef __cplusplus
}
#endif
#endif
