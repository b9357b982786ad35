/* Which instruction sets this processor has, of those that wide functions are compiled for. Every folder that holds
 * such functions asks here. */
#ifndef OX_BASE_ISA_H
#define OX_BASE_ISA_H

#include <stdbool.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Not every compiler knows F16C by name, so the processor is asked, once: in a virtual machine each question leaves it
 * for microseconds. */
static inline bool ox_cpu_has_f16c(void) {
#ifdef __x86_64__
    enum { UNKNOWN, ABSENT, PRESENT };
    static int known = UNKNOWN;
    int found = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (found == UNKNOWN) {
        unsigned a, b, c, d;
        found = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0 ? PRESENT : ABSENT;
        __atomic_store_n(&known, found, __ATOMIC_RELAXED);
    }
    return found == PRESENT;
#else
    return false;
#endif
}

/* AVX2 with FMA and F16C. */
static inline bool ox_cpu_has_avx2(void) {
#ifdef __x86_64__
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && ox_cpu_has_f16c();
#else
    return false;
#endif
}

/* AVX2 as above, and AVX-512 with its parts F, BW, DQ and VL. */
static inline bool ox_cpu_has_avx512(void) {
#ifdef __x86_64__
    return ox_cpu_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
    return false;
#endif
}

#ifdef __cplusplus
}
#endif
#endif
