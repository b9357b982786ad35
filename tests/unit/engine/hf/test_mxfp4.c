/* MXFP4: every byte at every scale against ldexp, in both types; what cannot be held is told of. */
#include "engine/hf/mxfp4.h"
#include "base/planes.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

static double value_of(unsigned half, int scale) {
    static const double values[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return ldexp(half < 8 ? values[half] : -values[half - 8], scale - 127);
}

int main(void) {
    float wide[OX_MXFP4_GROUP];
    uint16_t narrow[OX_MXFP4_GROUP];
    for (int scale = 0; scale < 256; scale++) {
        for (unsigned byte = 0; byte < 256; byte++) {
            uint8_t block[OX_MXFP4_GROUP_BYTES];
            const uint8_t at = (uint8_t)scale;
            const double low = value_of(byte % 16, scale), high = value_of(byte / 16, scale);
            const bool fits = scale != 255 && fabs(low) < 0x1p128 && fabs(high) < 0x1p128;
            memset(block, (int)byte, sizeof block);
            CHECK(ox_mxfp4_to_f32(wide, block, &at, 1) == fits && ox_mxfp4_to_bf16(narrow, block, &at, 1) == fits);
            for (int i = 0; i < OX_MXFP4_GROUP && fits; i++) {
                const double want = i % 2 == 0 ? low : high;
                CHECK((double)wide[i] == want && (double)ox_bf16_to_f32(narrow[i]) == want);
                CHECK((signbit(wide[i]) != 0) == (signbit(want) != 0));
            }
        }
    }
    return test_end();
}
