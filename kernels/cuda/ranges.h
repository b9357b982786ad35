/* Ranges for NVIDIA's profilers (nsys, ncu): what a lane's feeder puts on its stream, by the operations' names. NVTX is
 * header-only and does nothing unless a profiler has loaded its library into the process; where the toolkit lacks it,
 * and in the emulation, there are no ranges. */
#ifndef OX_KERNELS_CUDA_RANGES_H
#define OX_KERNELS_CUDA_RANGES_H

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

#include <unistd.h>

static inline void ox_range_begin(const char *name) {
    nvtxRangePushA(name);
}

static inline void ox_range_end(void) {
    nvtxRangePop();
}

/* Names the calling thread. */
static inline void ox_range_thread(const char *name) {
    nvtxNameOsThreadA((uint32_t)gettid(), name);
}
#else
static inline void ox_range_begin(const char *name) {
    (void)name;
}

static inline void ox_range_end(void) {
}

static inline void ox_range_thread(const char *name) {
    (void)name;
}
#endif
#endif
