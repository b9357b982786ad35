#include "base/hash.h"

/* Inlined, because the shared library's build lacks the widest vectors. */
#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t ox_hash64(const void *data, size_t bytes, uint64_t seed) {
    return XXH3_64bits_withSeed(data, bytes, seed);
}

struct ox_hash128 ox_hash128(const void *data, size_t bytes, uint64_t seed) {
    const XXH128_hash_t hash = XXH3_128bits_withSeed(data, bytes, seed);
    return (struct ox_hash128){.low = hash.low64, .high = hash.high64};
}

uint64_t ox_hash_seed(const uint64_t *words, size_t count) {
    return XXH3_64bits_withSeed(words, count * sizeof *words, UINT64_C(0x6f66666c6f6164));
}
