/* oneDNN, opened at run time: GEMMs of bf16 matrices with sums in fp32. */
#ifndef OX_KERNELS_CPU_ONEDNN_H
#define OX_KERNELS_CPU_ONEDNN_H

#include <stdbool.h>
#include <stdint.h>

/* Row-major: c (m, n) = alpha * op(a) (m, k) * op(b) (k, n) + beta * c; 'T' transposes. Returns 0, or the library's
 * error. It is in no header of the library, which exports it with these types in its versions 1 to 3, tests it, and
 * serves other frameworks by it. Unlike the primitives of the headers it needs nothing made for each shape. */
typedef int ox_onednn_gemm_fn(char a_form, char b_form, int64_t m, int64_t n, int64_t k, float alpha,
                              const uint16_t *a, int64_t a_stride, const uint16_t *b, int64_t b_stride, float beta,
                              float *c, int64_t c_stride);

struct ox_onednn {
    ox_onednn_gemm_fn *gemm;
    void (*set_threads)(int); /* of the calling thread's GEMMs; NULL: the library has no threads */
};

/* The library, or NULL where there is none for this processor. Either way `text` says what there is, and lives as long
 * as the program. The first call opens the library. */
const struct ox_onednn *ox_onednn_open(const char **text);

#endif
