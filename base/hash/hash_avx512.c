#include "base/hash/hash_isa.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t ox_hash64_avx512(const void *data, size_t bytes, uint64_t seed) {
    return XXH3_64bits_withSeed(data, bytes, seed);
}
