#include "engine/hf/mxfp4.h"

#include <string.h>

static const float values[16] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f,
                                 -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

/* 2^(scale - 127), of which the smallest is not normal. */
static float factor_of(uint8_t scale) {
    const uint32_t bits = scale == 0 ? UINT32_C(0x00400000) : (uint32_t)scale << 23;
    float factor;
    memcpy(&factor, &bits, sizeof factor);
    return factor;
}

/* Decodes one group; a product with a power of two is exact. False as above. */
static bool decode(float out[OX_MXFP4_GROUP], const uint8_t *block, uint8_t scale) {
    const float factor = factor_of(scale);
    bool finite = scale != 255;
    for (size_t i = 0; i < OX_MXFP4_GROUP; i++) {
        out[i] = values[block[i / 2] >> i % 2 * 4 & 15] * factor;
        finite = finite && out[i] - out[i] == 0.0f;
    }
    return finite;
}

bool ox_mxfp4_to_f32(float *out, const uint8_t *blocks, const uint8_t *scales, size_t groups) {
    bool finite = true;
    for (size_t i = 0; i < groups; i++) {
        finite = decode(out + i * OX_MXFP4_GROUP, blocks + i * OX_MXFP4_GROUP_BYTES, scales[i]) && finite;
    }
    return finite;
}

bool ox_mxfp4_to_bf16(uint16_t *out, const uint8_t *blocks, const uint8_t *scales, size_t groups) {
    bool finite = true;
    for (size_t i = 0; i < groups; i++) {
        float group[OX_MXFP4_GROUP];
        uint32_t bits[OX_MXFP4_GROUP];
        finite = decode(group, blocks + i * OX_MXFP4_GROUP_BYTES, scales[i]) && finite;
        memcpy(bits, group, sizeof bits);
        for (size_t k = 0; k < OX_MXFP4_GROUP; k++) {
            out[i * OX_MXFP4_GROUP + k] = (uint16_t)(bits[k] >> 16); /* no value has more than two bits */
        }
    }
    return finite;
}
