/* What an exchange of a gradient as two thin matrices computes (PowerSGD, arXiv 1905.13727): M (rows, cols), row by
 * row, and the transposes of P (rank, rows) and Q (rank, cols), so that their columns lie in one.
 *
 * All orders are fixed and nothing is fused, so the bits are those of every machine and instruction set: ranks on
 * different machines that restore the same sum from the same P and Q have the same bits. Numbers that are not finite
 * spread to the whole block. Any thread. */
#ifndef OX_CPU_OPTIM_LOW_RANK_H
#define OX_CPU_OPTIM_LOW_RANK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ox_thin {
    uint64_t rows, cols;
    uint32_t rank; /* at most rows and cols */
};

/* Makes the `rank` vectors of `count` numbers orthonormal, first to last (Gram-Schmidt, twice). One without any
 * length stays zeros; with `seed` not 0 it is drawn: numbers of [-1, 1) that follow from seed, vector and place. */
void ox_thin_orthonormalise(float *vectors, uint32_t rank, uint64_t count, uint64_t seed);
/* P = M Q. */
void ox_thin_rows(const struct ox_thin *shape, const float *m, const float *q, float *p);
/* Q = M^T P. */
void ox_thin_cols(const struct ox_thin *shape, const float *m, const float *p, float *q);
/* rest = M - P own^T, then M = P sum^T. */
void ox_thin_restore(const struct ox_thin *shape, float *m, const float *p, const float *own, const float *sum,
                     float *rest);
/* target[i] += source[i]. */
void ox_thin_add(float *target, const float *source, uint64_t count);

#ifdef __cplusplus
}
#endif
#endif
