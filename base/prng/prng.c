#include "base/prng/prng.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/isa.h"
#include "base/prng/philox.h"
#include "base/prng/prng_isa.h"

#include <math.h>
#include <string.h>

void ox_philox(uint64_t seed, uint64_t stream, uint64_t block, uint32_t out[4]) {
    ox_philox_words(seed, stream, block, out);
}

static double uniform_from(uint32_t low, uint32_t high) {
    const uint64_t bits = ((uint64_t)high << 32 | low) >> 11;
    return (double)bits * 0x1p-53;
}

double ox_uniform(uint64_t seed, uint64_t stream, uint64_t idx) {
    uint32_t words[4];
    ox_philox(seed, stream, idx, words);
    return uniform_from(words[0], words[1]);
}

double ox_normal(uint64_t seed, uint64_t stream, uint64_t idx) {
    uint32_t words[4];
    ox_philox(seed, stream, idx, words);
    const double u = 1.0 - uniform_from(words[0], words[1]); /* (0, 1]: the logarithm is finite */
    const double v = uniform_from(words[2], words[3]);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586476925 * v);
}

/* Returns the loops for the widest vectors that the processor has. */
static ox_normals_fn *widest(void) {
#ifdef __x86_64__
    if (ox_cpu_has_avx512()) {
        return ox_normals_avx512;
    }
    if (ox_cpu_has_avx2()) {
        return ox_normals_avx2;
    }
#endif
    return ox_normals_plain;
}

void ox_normals(uint64_t seed, uint64_t stream, uint64_t first, uint64_t count, double deviation, float *out) {
    ox_normals_fn *const normals = widest();
    struct ox_normals_block block;
    for (uint64_t at = 0; at < count; at += OX_NORMALS_BLOCK) {
        const uint64_t part = ox_min_u64(OX_NORMALS_BLOCK, count - at);
        const bool any_uncertain = normals(seed, stream, first + at, deviation, &block);
        for (uint64_t i = 0; any_uncertain && i < part; i++) {
            if (block.uncertain[i] != 0) {
                block.out[i] = (float)(deviation * ox_normal(seed, stream, first + at + i));
            }
        }
        memcpy(out + at, block.out, part * sizeof *out);
    }
}

uint64_t ox_permute(uint64_t seed, uint64_t stream, uint64_t count, uint64_t idx) {
    OX_ASSERT(idx < count);
    unsigned half_bits = 1;
    while (half_bits < 31 && (UINT64_C(1) << (2 * half_bits)) < count) {
        half_bits++;
    }
    const uint64_t mask = (UINT64_C(1) << half_bits) - 1;
    uint64_t value = idx;
    do { /* permute [0, 4^half_bits) until the value is below count: 4 rounds expected at most */
        uint64_t left = value >> half_bits, right = value & mask;
        for (uint64_t round = 0; round < 6; round++) {
            uint32_t words[4];
            ox_philox(seed, stream ^ (round << 56), right, words);
            const uint64_t next = (left ^ words[0]) & mask;
            left = right;
            right = next;
        }
        value = left << half_bits | right;
    } while (value >= count);
    return value;
}
