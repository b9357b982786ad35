/* The same hash in the wider vectors of some processors; base/hash/hash.c chooses. */
#ifndef OX_BASE_HASH_ISA_H
#define OX_BASE_HASH_ISA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

uint64_t ox_hash64_avx2(const void *data, size_t bytes, uint64_t seed);
uint64_t ox_hash64_avx512(const void *data, size_t bytes, uint64_t seed);

#ifdef __cplusplus
}
#endif
#endif
