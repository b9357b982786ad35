/* A block of normal numbers, compiled for AVX2, AVX-512 and neither. base/prng/prng.c calls the widest that the
 * processor has. */
#ifndef OX_BASE_PRNG_ISA_H
#define OX_BASE_PRNG_ISA_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_NORMALS_BLOCK = 64 };

/* The numbers of ox_normals from `first` on. Where uncertain[i] is not 0, the last bit of out[i] may be wrong. */
struct ox_normals_block {
    float out[OX_NORMALS_BLOCK];
    uint32_t uncertain[OX_NORMALS_BLOCK];
};

/* Returns whether any number is uncertain. */
typedef bool ox_normals_fn(uint64_t seed, uint64_t stream, uint64_t first, double deviation,
                           struct ox_normals_block *block);
ox_normals_fn ox_normals_plain, ox_normals_avx2, ox_normals_avx512;

#ifdef __cplusplus
}
#endif
#endif
