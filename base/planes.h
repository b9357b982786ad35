/* Splits an fp32 master weight into two 16-bit planes, exactly. Optimizers, checkpoints and kernels use it.
 *
 * `hi` is the master rounded to bfloat16, to nearest, ties away from zero; `lo` is the master's low 16 bits. Both give
 * the master back: ((uint16_t)(hi - (lo >> 15)) << 16) | lo. Rounding added lo >> 15 to the upper half, so subtracting
 * it restores the upper half. */
#ifndef OX_BASE_PLANES_H
#define OX_BASE_PLANES_H

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

#ifdef __cplusplus
}
#endif
#endif
