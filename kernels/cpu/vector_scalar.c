/* The table for any processor: four lanes, which is SSE2 on x86-64 and NEON on ARM, without fused multiply-add (where a
 * processor lacks it, fmaf would be a library call). */
#include "kernels/cpu/vector.h"

enum { LANES = 4 };
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));

static inline vf choose(vi mask, vf yes, vf no) {
    return (vf)((mask & (vi)yes) | (~mask & (vi)no));
}

static inline vf lanes_fma(vf a, vf b, vf c) {
    return a * b + c;
}

static inline vf lanes_max(vf a, vf b) {
    return choose(a > b, a, b);
}

static inline vf lanes_min(vf a, vf b) {
    return choose(a < b, a, b);
}

#define OX_VECTOR_TABLE ox_vector_scalar
#define OX_VECTOR_NAME "scalar"
#include "kernels/cpu/vector_body.inc"
