/* Formats of numbers: how a weight is kept, and the table behind --dtype of what is moved and computed.
 *
 * An fp32 master weight is split into two 16-bit planes, exactly. Optimizers, checkpoints and kernels use it.
 * `hi` is the master rounded to bfloat16, to nearest, ties away from zero; `lo` is the master's low 16 bits. Both give
 * the master back: ((uint16_t)(hi - (lo >> 15)) << 16) | lo. Rounding added lo >> 15 to the upper half, so subtracting
 * it restores the upper half. */
#ifndef OX_BASE_PLANES_H
#define OX_BASE_PLANES_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Marks a function that kernels call too. */
#ifdef __CUDACC__
#define OX_ON_DEVICE_TOO __host__ __device__
#else
#define OX_ON_DEVICE_TOO
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Targets of rows whose loss does not count: the row is a token of a document, as those of prompts are; or it is no
 * token at all, but fills its sequence up. */
enum { OX_TARGET_MASKED = -1, OX_TARGET_PADDING = -2 };

/* Bytes per element of each plane. */
enum { OX_HI_BYTES = 2, OX_LO_BYTES = 2 };

static inline OX_ON_DEVICE_TOO uint32_t ox_f32_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline OX_ON_DEVICE_TOO float ox_f32_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Rounds ties away from zero. A NaN keeps its sign but may become an infinity or another NaN: callers check for
 * non-finite values before they store. */
static inline OX_ON_DEVICE_TOO uint16_t ox_plane_hi(float master) {
    const uint32_t bits = ox_f32_bits(master);
    return (uint16_t)((bits >> 16) + ((bits >> 15) & 1u));
}

static inline OX_ON_DEVICE_TOO uint16_t ox_plane_lo(float master) {
    return (uint16_t)ox_f32_bits(master);
}

static inline OX_ON_DEVICE_TOO float ox_plane_join(uint16_t hi, uint16_t lo) {
    return ox_f32_from_bits(((uint32_t)(uint16_t)(hi - (lo >> 15)) << 16) | lo);
}

static inline OX_ON_DEVICE_TOO float ox_bf16_to_f32(uint16_t bf16) {
    return ox_f32_from_bits((uint32_t)bf16 << 16);
}

/* Rounds to nearest, ties to even, as PyTorch does; a NaN stays a quiet NaN. For gradients and files; weights use
 * ox_plane_hi. */
static inline OX_ON_DEVICE_TOO uint16_t ox_bf16_from_f32(float value) {
    const uint32_t bits = ox_f32_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)((bits >> 16) | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* ---- limbs: float32 as OX_LIMBS numbers that bfloat16 holds, which add up to it exactly, in order ---- */

enum { OX_LIMBS = 4 };

static inline OX_ON_DEVICE_TOO void ox_limbs_of(float value, float limbs[OX_LIMBS]) {
    for (int i = 0; i < OX_LIMBS; i++) {
        limbs[i] = ox_bf16_to_f32(ox_bf16_from_f32(value));
        value -= limbs[i];
    }
}

static inline OX_ON_DEVICE_TOO float ox_limbs_sum(const float limbs[OX_LIMBS]) {
    return limbs[0] + limbs[1] + limbs[2] + limbs[3];
}

/* Adds to a number whose limbs are those of a plane. */
static inline OX_ON_DEVICE_TOO void ox_limbs_add(uint16_t plane[OX_LIMBS], float addend) {
    float limbs[OX_LIMBS];
    for (int i = 0; i < OX_LIMBS; i++) {
        limbs[i] = ox_bf16_to_f32(plane[i]);
    }
    ox_limbs_of(ox_limbs_sum(limbs) + addend, limbs);
    for (int i = 0; i < OX_LIMBS; i++) {
        plane[i] = ox_bf16_from_f32(limbs[i]);
    }
}

/* ---- halves: IEEE's 16-bit format ---- */

/* Rounds to nearest, ties to even: from 65520 on to infinity, below 2^-14 to multiples of 2^-24. A NaN stays a NaN. */
static inline OX_ON_DEVICE_TOO uint16_t ox_f16_from_f32(float value) {
    const uint32_t bits = ox_f32_bits(value), size = bits & 0x7fffffffu;
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    if (size >= 0x47800000u) { /* 2^16 and more, infinities, NaNs */
        return (uint16_t)(sign | 0x7c00u | (size > 0x7f800000u ? 0x200u : 0u));
    }
    if (size < 0x38800000u) { /* below 2^-14: adding 0.5 rounds to its last bit, which is 2^-24 */
        const uint32_t steps = ox_f32_bits(ox_f32_from_bits(size) + 0.5f) - 0x3f000000u;
        return (uint16_t)(sign | steps);
    }
    return (uint16_t)(sign | (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13); /* 65520 carries to infinity */
}

/* Widens, exactly. */
static inline OX_ON_DEVICE_TOO float ox_f16_to_f32(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = half >> 10 & 31u, mantissa = half & 0x3ffu;
    if (exponent == 0) {
        return ox_f32_from_bits(sign | ox_f32_bits((float)mantissa * 0x1p-24f));
    }
    return ox_f32_from_bits(sign | (exponent == 31 ? 255u : exponent + 112u) << 23 | mantissa << 13);
}

/* ---- precision ---- */

/* In which formats a run keeps, moves and computes numbers: one table, of which --dtype names a row; nothing else
 * decides any of it. In every row the master of a weight is fp32, in its planes: precision changes what is computed,
 * never what is kept. */

/* Formats of the numbers in a tensor. */
enum ox_real { OX_REAL_F32, OX_REAL_BF16, OX_REAL_F16 };
static inline uint32_t ox_real_bytes(enum ox_real real) {
    return real == OX_REAL_F32 ? 4 : 2;
}
static inline const char *ox_real_name(enum ox_real real) {
    return real == OX_REAL_F32 ? "fp32" : real == OX_REAL_BF16 ? "bf16" : "fp16";
}

/* The rows, in the order of the words of --dtype. */
enum ox_compute_dtype { OX_COMPUTE_FP32, OX_COMPUTE_BF16, OX_COMPUTE_FP16, OX_COMPUTE_DTYPE_COUNT };

/* A row on one kind of device. */
struct ox_precision {
    enum ox_compute_dtype dtype;
    /* The wire: both planes of a weight travel to compute, which needs the whole master; else hi alone. */
    bool lo_travels;
    /* Bytes of a weight in the format that blocks read, which CAST makes of the planes; 0: they read hi in place. */
    uint32_t cast_bytes;
    enum ox_real activations; /* and gradients that flow backward */
    enum ox_real products;    /* inputs of GEMMs, where the device has GEMMs of this format */
    enum ox_real sums;        /* of products, of rows, of gradients of weights */
    bool scales; /* the loss is multiplied by a scale, for gradients that flow backward in a format of small range */
};

/* `on_cpu`: the row for the CPU device, which keeps activations in fp32; else for a GPU. */
static inline const struct ox_precision *ox_precision_of(enum ox_compute_dtype dtype, bool on_cpu) {
    static const struct ox_precision rows[OX_COMPUTE_DTYPE_COUNT][2] = {
        {{OX_COMPUTE_FP32, true, 4, OX_REAL_F32, OX_REAL_F32, OX_REAL_F32, false},
         {OX_COMPUTE_FP32, true, 4, OX_REAL_F32, OX_REAL_F32, OX_REAL_F32, false}},
        {{OX_COMPUTE_BF16, false, 0, OX_REAL_BF16, OX_REAL_BF16, OX_REAL_F32, false},
         {OX_COMPUTE_BF16, false, 4, OX_REAL_F32, OX_REAL_BF16, OX_REAL_F32, false}},
        {{OX_COMPUTE_FP16, true, 2, OX_REAL_F16, OX_REAL_F16, OX_REAL_F32, true},
         {OX_COMPUTE_FP16, true, 4, OX_REAL_F32, OX_REAL_F16, OX_REAL_F32, true}},
    };
    return &rows[dtype][on_cpu];
}

/* Bytes of a weight on the wire. */
static inline uint32_t ox_wire_bytes(const struct ox_precision *precision) {
    return OX_HI_BYTES + (precision->lo_travels ? OX_LO_BYTES : 0);
}

/* Formats in which ranks exchange gradients: --exchange-dtype. All but float32 round each sum once before it travels,
 * so that a result depends on how many ranks summed it.
 *
 * Q8 has blocks of 64 numbers: a float32 scale, the largest magnitude of the block over 127, and 64 signed bytes, each
 * the number over the scale, rounded to nearest, ties to even. An element is off by half a scale at most. Numbers of
 * less than about 1.5e-36 become zero; a block with a number that is not finite comes back as NaN, so that it shows in
 * the norm. */
enum ox_exchange_dtype { OX_EXCHANGE_FP32, OX_EXCHANGE_BF16, OX_EXCHANGE_Q8, OX_EXCHANGE_COUNT };

enum { OX_BLOCK8_ELEMS = 64, OX_BLOCK8_BYTES = 4 + OX_BLOCK8_ELEMS };

/* As --exchange-dtype: "fp32", "bf16", "q8". */
static inline const char *ox_exchange_dtype_name(enum ox_exchange_dtype dtype) {
    return dtype == OX_EXCHANGE_BF16 ? "bf16" : dtype == OX_EXCHANGE_Q8 ? "q8" : "fp32";
}

/* Bytes of so many numbers, in float32 exactly and else up to a multiple of 16. Those of the first 2048 * n numbers of
 * a vector are where the others begin. */
static inline uint64_t ox_exchange_bytes(enum ox_exchange_dtype dtype, uint64_t elems) {
    const uint64_t bytes = dtype == OX_EXCHANGE_BF16 ? 2 * elems
                           : dtype == OX_EXCHANGE_Q8 ? (elems + OX_BLOCK8_ELEMS - 1) / OX_BLOCK8_ELEMS * OX_BLOCK8_BYTES
                                                     : 4 * elems;
    return dtype == OX_EXCHANGE_FP32 ? bytes : (bytes + 15) / 16 * 16;
}

/* The scale of a block whose largest magnitude is `most`; `most` is NaN where a number is not finite. */
static inline OX_ON_DEVICE_TOO float ox_block8_scale(float most) {
    const float scale = most / 127.0f;
    return scale < 1.17549435e-38f ? 0.0f : scale;
}

#ifdef __cplusplus
}
#endif
#endif
