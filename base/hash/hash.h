/* Checksums for stored data and keys of caches: XXH3 from the xxHash library. The store, checkpoints and data call it.
 * Every vector width returns the same value. */
#ifndef OX_BASE_HASH_H
#define OX_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

uint64_t ox_hash64(const void *data, size_t bytes, uint64_t seed);

struct ox_hash128 {
    uint64_t low, high;
};
struct ox_hash128 ox_hash128(const void *data, size_t bytes, uint64_t seed);

/* Mixes `count` words into one seed; their order matters. */
uint64_t ox_hash_seed(const uint64_t *words, size_t count);

#ifdef __cplusplus
}
#endif
#endif
