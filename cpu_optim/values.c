/* Values that enter or leave the formats of a state: fresh weights, checkpoints. */
#include "cpu_optim/optim.h"

#include "base/bytes.h"
#include "base/optim_element.h"

static void block_get(enum ox_moment which, const uint8_t *codes, uint8_t scale, uint64_t count, float *out) {
    const uint32_t exponent =
        ox_q8_scale_exponent(scale, which == OX_MOMENT_M ? OX_Q8_OCTAVES_M : OX_Q8_OCTAVES_V);
    for (uint64_t i = 0; i < count; i++) {
        out[i] = which == OX_MOMENT_M ? ox_q8_decode_m(codes[i], exponent) : ox_q8_decode(codes[i], exponent);
    }
}

static uint64_t block_set(enum ox_moment which, uint8_t *codes, uint8_t *scale, uint64_t count,
                          const float *values) {
    uint32_t largest = 0;
    uint64_t bad_count = 0;
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t magnitude = ox_f32_bits(values[i]) & 0x7fffffffu;
        const bool good = ox_moments_hold(OX_MOMENTS_Q8, values[i]) && (which == OX_MOMENT_M || values[i] >= 0.0f);
        bad_count += !good;
        largest = good && magnitude > largest ? magnitude : largest;
    }
    *scale = ox_q8_scale_byte(largest);
    const uint32_t exponent =
        ox_q8_scale_exponent(*scale, which == OX_MOMENT_M ? OX_Q8_OCTAVES_M : OX_Q8_OCTAVES_V);
    for (uint64_t i = 0; i < count; i++) {
        const bool good = ox_moments_hold(OX_MOMENTS_Q8, values[i]) && (which == OX_MOMENT_M || values[i] >= 0.0f);
        const float value = good ? values[i] : 0.0f;
        codes[i] = which == OX_MOMENT_M ? ox_q8_encode_m(value, exponent, OX_Q8_NEAREST)
                                        : ox_q8_encode_v(value, exponent, OX_Q8_NEAREST);
    }
    return bad_count;
}

void ox_state_moment_get(enum ox_moments moments, enum ox_moment which, const struct ox_state_planes *planes,
                         uint64_t count, float *out) {
    const void *const plane = which == OX_MOMENT_M ? planes->m : planes->v;
    const uint8_t *const scales = which == OX_MOMENT_M ? planes->m_scale : planes->v_scale;
    if (moments == OX_MOMENTS_Q8) {
        for (uint64_t i = 0; i < count; i += OX_Q8_BLOCK) {
            block_get(which, (const uint8_t *)plane + i, scales[i / OX_Q8_BLOCK],
                      ox_min_u64(OX_Q8_BLOCK, count - i), out + i);
        }
        return;
    }
    for (uint64_t i = 0; i < count; i++) {
        out[i] = moments == OX_MOMENTS_F32 ? ((const float *)plane)[i]
                                           : ox_bf16_to_f32(((const uint16_t *)plane)[i]);
    }
}

uint64_t ox_state_moment_set(enum ox_moments moments, enum ox_moment which, const struct ox_state_planes *planes,
                             uint64_t count, const float *values) {
    void *const plane = which == OX_MOMENT_M ? planes->m : planes->v;
    uint8_t *const scales = which == OX_MOMENT_M ? planes->m_scale : planes->v_scale;
    uint64_t bad_count = 0;
    if (moments == OX_MOMENTS_Q8) {
        for (uint64_t i = 0; i < count; i += OX_Q8_BLOCK) {
            bad_count += block_set(which, (uint8_t *)plane + i, &scales[i / OX_Q8_BLOCK],
                                   ox_min_u64(OX_Q8_BLOCK, count - i), values + i);
        }
        return bad_count;
    }
    for (uint64_t i = 0; i < count; i++) {
        const bool good = ox_moments_hold(moments, values[i]);
        const float value = good ? values[i] : 0.0f;
        bad_count += !good;
        if (moments == OX_MOMENTS_F32) {
            ((float *)plane)[i] = value;
        } else {
            ((uint16_t *)plane)[i] = ox_bf16_from_f32(value);
        }
    }
    return bad_count;
}

void ox_state_master_get(enum ox_moments moments, const uint16_t *hi, const void *lo, uint64_t count, float *out) {
    for (uint64_t i = 0; i < count; i++) {
        out[i] = moments == OX_MOMENTS_Q8 ? ox_master24_join(hi[i], ((const uint8_t *)lo)[i])
                                          : ox_plane_join(hi[i], ((const uint16_t *)lo)[i]);
    }
}

uint64_t ox_state_master_set(enum ox_moments moments, uint16_t *hi, void *lo, uint64_t count,
                             const float *values) {
    uint64_t bad_count = 0;
    for (uint64_t i = 0; i < count; i++) {
        const bool good = ox_moments_hold(moments, values[i]);
        const float value = good ? values[i] : 0.0f;
        bad_count += !good;
        if (moments == OX_MOMENTS_Q8) {
            ox_master24_split(value, 128, &hi[i], &((uint8_t *)lo)[i]);
        } else {
            hi[i] = ox_plane_hi(value);
            ((uint16_t *)lo)[i] = ox_plane_lo(value);
        }
    }
    return bad_count;
}
