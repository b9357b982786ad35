/* The part of NVTX that kernels/cuda/ uses (tests/simt/nvtx.cu). Names and meanings are those of its reference. */
#ifndef OX_TESTS_SIMT_NVTX_H
#define OX_TESTS_SIMT_NVTX_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { NVTX_VERSION = 3, NVTX_MESSAGE_TYPE_ASCII = 1 };
#define NVTX_EVENT_ATTRIB_STRUCT_SIZE sizeof(nvtxEventAttributes_t)

typedef struct simt_domain *nvtxDomainHandle_t;
typedef struct {
    uint16_t version, size;
    int32_t messageType;
    union {
        const char *ascii;
    } message;
} nvtxEventAttributes_t;

nvtxDomainHandle_t nvtxDomainCreateA(const char *name);
int nvtxDomainRangePushEx(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event);
int nvtxDomainRangePop(nvtxDomainHandle_t domain);
void nvtxNameOsThreadA(uint32_t thread_id, const char *name);

#ifdef __cplusplus
}
#endif
#endif
