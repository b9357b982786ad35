#include "kernels/cpu/vector.h"

#include <immintrin.h>

enum { LANES = 16 };
typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));

static inline vf lanes_fma(vf a, vf b, vf c) {
    return _mm512_fmadd_ps(a, b, c);
}

static inline vf lanes_max(vf a, vf b) {
    return _mm512_max_ps(a, b);
}

static inline vf lanes_min(vf a, vf b) {
    return _mm512_min_ps(a, b);
}

#define OX_VECTOR_TABLE ox_vector_avx512
#define OX_VECTOR_NAME "avx512"
#include "kernels/cpu/vector_body.inc"
