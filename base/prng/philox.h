/* Philox-4x32-10 (prng.h) where CPU and GPU draw the same numbers. */
#ifndef OX_BASE_PHILOX_H
#define OX_BASE_PHILOX_H

#include "base/planes.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* As ox_philox. */
static inline OX_ON_DEVICE_TOO void ox_philox_words(uint64_t seed, uint64_t stream, uint64_t block, uint32_t out[4]) {
    uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)stream,
                           (uint32_t)(stream >> 32)};
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t product0 = (uint64_t)0xD2511F53u * counter[0];
        const uint64_t product1 = (uint64_t)0xCD9E8D57u * counter[2];
        const uint32_t next0 = (uint32_t)(product1 >> 32) ^ counter[1] ^ key0;
        const uint32_t next2 = (uint32_t)(product0 >> 32) ^ counter[3] ^ key1;
        counter[1] = (uint32_t)product1;
        counter[3] = (uint32_t)product0;
        counter[0] = next0;
        counter[2] = next2;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    for (int i = 0; i < 4; i++) {
        out[i] = counter[i];
    }
}

/* Returns a number in [-1, 1): the upper 24 bits of a word, exactly. */
static inline OX_ON_DEVICE_TOO float ox_philox_signed(uint32_t word) {
    return (float)((int32_t)(word >> 8) - (1 << 23)) * 0x1p-23f;
}

/* Whether a share `rate` of all words is to be left out, and this is one of them. */
static inline OX_ON_DEVICE_TOO bool ox_philox_drops(uint32_t word, float rate) {
    return (float)(word >> 8) < rate * 0x1p24f;
}

#ifdef __cplusplus
}
#endif
#endif
