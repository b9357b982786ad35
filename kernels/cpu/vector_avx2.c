#include "kernels/cpu/vector.h"

#include <immintrin.h>

enum { LANES = 8 };
typedef float vf __attribute__((vector_size(32)));
typedef int32_t vi __attribute__((vector_size(32)));

static inline vf lanes_fma(vf a, vf b, vf c) {
    return _mm256_fmadd_ps(a, b, c);
}

static inline vf lanes_max(vf a, vf b) {
    return _mm256_max_ps(a, b);
}

static inline vf lanes_min(vf a, vf b) {
    return _mm256_min_ps(a, b);
}

#define OX_VECTOR_TABLE ox_vector_avx2
#define OX_VECTOR_NAME "avx2"
#include "kernels/cpu/vector_body.inc"
