/* ox_hash64 compiled for AVX2 and for AVX-512. base/hash/hash.c calls the widest that the processor has. */
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
