#include "kernels/cpu/vector.h"

#include "base/isa.h"

uint32_t ox_vector_list(const struct ox_vector *out[OX_VECTOR_MAX]) {
    uint32_t count = 0;
    out[count++] = &ox_vector_scalar;
#if defined(__x86_64__)
    if (ox_cpu_has_avx2()) {
        out[count++] = &ox_vector_avx2;
    }
    if (ox_cpu_has_avx512()) {
        out[count++] = &ox_vector_avx512;
    }
#endif
    return count;
}

const struct ox_vector *ox_vector_pick(void) {
    const struct ox_vector *list[OX_VECTOR_MAX];
    return list[ox_vector_list(list) - 1];
}
