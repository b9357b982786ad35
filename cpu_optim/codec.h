/* The formats of master and moments, one element at a time: the definition that the vector code reproduces.
 * Only this folder and its tests include it.
 *
 * A Q8 code is the top of a float. With S the scale of its block and y = |x| / S, the code is the fraction's upper four
 * bits and the exponent of z = y + max(y, 1): below 1 that is linear in steps of 1/16, from there each octave has 16
 * steps. All but the rounding is exact, because S is a power of two, and a value that a coarser or finer scale
 * can hold keeps its bits when the scale changes. */
#ifndef OX_CPU_OPTIM_CODEC_H
#define OX_CPU_OPTIM_CODEC_H

#include "base/planes.h"
#include "cpu_optim/optim.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    OX_Q8_SHIFT = 19, /* fraction bits of a float that a code leaves out */
    OX_Q8_OCTAVES_M = 6, OX_Q8_OCTAVES_V = 14, /* S = 2^-octaves times the power of two of the block's largest */
    OX_Q8_SCALE_ROUND = 0x7ffff, /* brings fractions above 15/16, which the largest code cannot hold, to the next S */
    OX_Q8_NEAREST = 0x40000,
};
#define OX_F32_ONE_BITS UINT32_C(0x3f800000)
#define OX_F32_INF_BITS UINT32_C(0x7f800000)
#define OX_NARROW_LIMIT_BITS UINT32_C(0x7f000000) /* 2^127: rounding up from below it stays finite */

/* 32 random bits for an element: steps of the golden ratio from a key, folded and multiplied. They decide roundings,
 * where it matters that they are cheap: their keys are new in every step. */
#define OX_NOISE_STRIDE UINT32_C(0x9e3779b9)
#define OX_NOISE_FACTOR UINT32_C(0x846ca68b)
static inline uint32_t ox_noise(const uint32_t keys[2], uint32_t idx) {
    const uint32_t x = idx * OX_NOISE_STRIDE + keys[0];
    return (x ^ (x >> 16) ^ keys[1]) * OX_NOISE_FACTOR;
}

/* The bits of it that round m and v in Q8 (the lowest are common to both), and the master; and m and v in BF16. */
static inline uint32_t ox_noise_q8_m(uint32_t noise) {
    return noise >> 13;
}
static inline uint32_t ox_noise_q8_v(uint32_t noise) {
    return noise & 0x7ffffu;
}
static inline uint32_t ox_noise_q8_master(uint32_t noise) {
    return noise >> 24;
}
static inline uint32_t ox_noise_bf16_m(uint32_t noise) {
    return noise & 0xffffu;
}
static inline uint32_t ox_noise_bf16_v(uint32_t noise) {
    return noise >> 16;
}

/* ---- Q8 ------------------------------------------------------------------------------------------- */

/* The scale byte of a block whose largest magnitude has these bits: its exponent, rounded up. */
static inline uint8_t ox_q8_scale_byte(uint32_t largest_bits) {
    return (uint8_t)((largest_bits + OX_Q8_SCALE_ROUND) >> 23);
}

/* The exponent field of S; at least 3, so that S / 4 and 2 / S are normal numbers. */
static inline uint32_t ox_q8_scale_exponent(uint8_t scale_byte, uint32_t octaves) {
    return (scale_byte < octaves + 3 ? octaves + 3 : scale_byte) - octaves;
}

static inline float ox_q8_decode(uint32_t code, uint32_t scale_exponent) {
    const float z = ox_f32_from_bits((code << OX_Q8_SHIFT) + OX_F32_ONE_BITS);
    const float scale = ox_f32_from_bits(scale_exponent << 23);
    const float low = (z - 1.0f) * scale, high = z * (scale * 0.5f);
    return low < high ? low : high;
}

/* `round` is added below the last bit that stays: random, or OX_Q8_NEAREST. */
static inline uint32_t ox_q8_encode(float magnitude, uint32_t scale_exponent, uint32_t round) {
    const float y = magnitude * ox_f32_from_bits((254 - scale_exponent) << 23);
    const float z = y + (y > 1.0f ? y : 1.0f);
    return (ox_f32_bits(z) + round - OX_F32_ONE_BITS) >> OX_Q8_SHIFT;
}

static inline float ox_q8_decode_m(uint8_t code, uint32_t scale_exponent) {
    const float magnitude = ox_q8_decode(code & 127u, scale_exponent);
    return ox_f32_from_bits(ox_f32_bits(magnitude) | (uint32_t)(code & 128u) << 24);
}

static inline uint8_t ox_q8_encode_m(float value, uint32_t scale_exponent, uint32_t round) {
    const uint32_t bits = ox_f32_bits(value);
    const float magnitude = ox_f32_from_bits(bits & 0x7fffffffu);
    return (uint8_t)(ox_q8_encode(magnitude, scale_exponent, round) | (bits >> 24 & 128u));
}

/* What is not 0 stays so: a v of 0 would divide by eps alone. */
static inline uint8_t ox_q8_encode_v(float value, uint32_t scale_exponent, uint32_t round) {
    const uint32_t code = ox_q8_encode(value, scale_exponent, round);
    return (uint8_t)(code == 0 && value > 0.0f ? 1 : code);
}

/* ---- the master of 24 bits ---------------------------------------------------------------------------- */

/* `round` below 256: random, or 128 for nearest. */
static inline void ox_master24_split(float master, uint32_t round, uint16_t *hi, uint8_t *lo) {
    const uint32_t bits = ox_f32_bits(master) + round;
    *lo = (uint8_t)(bits >> 8);
    *hi = (uint16_t)((bits >> 16) + (bits >> 15 & 1u));
}

static inline float ox_master24_join(uint16_t hi, uint8_t lo) {
    return ox_plane_join(hi, (uint16_t)(lo << 8));
}

#endif
