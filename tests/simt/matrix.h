/* The tensor core's product, ldmatrix and cp.async, in the emulation: each is done from what the lanes of a warp give
 * one another, by the layouts of the PTX ISA. C++ alone, for kernels/cuda/mma.cuh; the calls at the end run one of
 * them by itself, for tests. */
#ifndef OX_TESTS_SIMT_MATRIX_H
#define OX_TESTS_SIMT_MATRIX_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
void simt_ldmatrix_x4(uint32_t out[4], const void *row, bool transposed);
/* Of bfloat16, or of halves. */
void simt_mma_16816(float acc[4], const uint32_t a[4], const uint32_t b[2], bool of_halves);
/* acc and the products, summed as the tensor cores sum them. */
float simt_tensor_sum(float acc, const double products[], unsigned count);

/* Copies of 16 bytes, or zeros where `from` is NULL, made only when the thread waits for their group: a read without a
 * wait finds the old content. */
void simt_copy_later(void *to, const void *from);
void simt_copy_commit();
void simt_copy_wait(unsigned pending);

extern "C" {
#endif

/* One warp, registers by lane. */
typedef void simt_try_mma_fn(float acc[32][4], const uint32_t a[32][4], const uint32_t b[32][2]);
typedef void simt_try_ldmatrix_fn(uint32_t out[32][4], const void *const rows[32], bool transposed);
simt_try_mma_fn simt_try_mma;
simt_try_ldmatrix_fn simt_try_ldmatrix;

#ifdef __cplusplus
}
#endif
#endif
