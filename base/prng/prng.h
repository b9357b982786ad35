/* Counter-based random numbers: value i of stream s under seed k is a pure function of (k, s, i), so any element of any
 * tensor can be drawn alone and in any order, on any tier. Initialization, data order, sampling and tests call it.
 *
 * Philox-4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. */
#ifndef OX_BASE_PRNG_H
#define OX_BASE_PRNG_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Writes the four words of counter (block, stream) under `seed`. */
void ox_philox(uint64_t seed, uint64_t stream, uint64_t block, uint32_t out[4]);

/* Returns a uniform number in [0, 1) with 53 random bits. */
double ox_uniform(uint64_t seed, uint64_t stream, uint64_t idx);

/* Returns a standard normal number: Box-Muller on one block, in double. */
double ox_normal(uint64_t seed, uint64_t stream, uint64_t idx);

/* out[i] = (float)(deviation * ox_normal(seed, stream, first + i)) for i < count, bit for bit, but many times as
 * fast. */
void ox_normals(uint64_t seed, uint64_t stream, uint64_t first, uint64_t count, double deviation, float *out);

/* Maps `idx` by a pseudo-random permutation of [0, count): a cycle-walking Feistel network, so a shuffled epoch needs
 * no table. Requires idx < count. */
uint64_t ox_permute(uint64_t seed, uint64_t stream, uint64_t count, uint64_t idx);

#ifdef __cplusplus
}
#endif
#endif
