/* Ranges for NVIDIA's profilers (nsys, ncu) by NVTX, which is header-only: unless a profiler has loaded its library
 * into the process, there is no domain, and none of the ranges of base/lane.h is told. Nor is one where the toolkit
 * lacks NVTX. */
#include "kernels/cuda/cuda_device.h"

#ifndef OX_NVTX
#define OX_NVTX <nvtx3/nvToolsExt.h> /* the emulation has its own */
#endif

#if __has_include(OX_NVTX)
#include OX_NVTX
#include <unistd.h>

static nvtxDomainHandle_t domain;

static void begin(const char *name) {
    nvtxEventAttributes_t event = {.version = NVTX_VERSION, .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
                                   .messageType = NVTX_MESSAGE_TYPE_ASCII};
    event.message.ascii = name;
    nvtxDomainRangePushEx(domain, &event);
}

static void end(void) {
    nvtxDomainRangePop(domain);
}

static void name_thread(const char *name) {
    nvtxNameOsThreadA((uint32_t)gettid(), name);
}

static void look_for_profiler(void) {
    static const struct ox_ranges ranges = {.begin = begin, .end = end, .name_thread = name_thread};
    domain = nvtxDomainCreateA("offload");
    if (domain != NULL) {
        ox_ranges_use(&ranges);
    }
}
#else
static void look_for_profiler(void) {
}
#endif

void ox_cuda_ranges_open(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, look_for_profiler);
}
