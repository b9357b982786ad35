#include "base/hash/hash.h"

#include "base/hash/hash_isa.h"
#include "base/isa.h"

/* Inlined, because distributions build the shared library without AVX2 and AVX-512. */
#define XXH_INLINE_ALL
#include <xxhash.h>

typedef uint64_t hash64(const void *data, size_t bytes, uint64_t seed);

static uint64_t hash64_plain(const void *data, size_t bytes, uint64_t seed) {
    return XXH3_64bits_withSeed(data, bytes, seed);
}

/* Returns the hash for the widest vectors that the processor has. */
static hash64 *widest(void) {
#ifdef __x86_64__
    if (ox_cpu_has_avx512()) {
        return ox_hash64_avx512;
    }
    if (ox_cpu_has_avx2()) {
        return ox_hash64_avx2;
    }
#endif
    return hash64_plain;
}

uint64_t ox_hash64(const void *data, size_t bytes, uint64_t seed) {
    static hash64 *chosen; /* threads may race: all store the same value */
    hash64 *hash = __atomic_load_n(&chosen, __ATOMIC_RELAXED);
    if (hash == NULL) {
        hash = widest();
        __atomic_store_n(&chosen, hash, __ATOMIC_RELAXED);
    }
    return hash(data, bytes, seed);
}

struct ox_hash128 ox_hash128(const void *data, size_t bytes, uint64_t seed) {
    const XXH128_hash_t hash = XXH3_128bits_withSeed(data, bytes, seed);
    return (struct ox_hash128){.low = hash.low64, .high = hash.high64};
}

uint64_t ox_hash_seed(const uint64_t *words, size_t count) {
    return XXH3_64bits_withSeed(words, count * sizeof *words, UINT64_C(0x6f66666c6f6164));
}
