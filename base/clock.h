/* Monotonic time in nanoseconds, for every measured duration. */
#ifndef OX_BASE_CLOCK_H
#define OX_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

static inline uint64_t ox_clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

#ifdef __cplusplus
}
#endif
#endif
