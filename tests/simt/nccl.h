/* The names of NCCL that kernels/cuda/ uses, for the emulation in nccl.cu. */
#ifndef OX_TESTS_SIMT_NCCL_H
#define OX_TESTS_SIMT_NCCL_H

#include "tests/simt/cuda_runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    ncclSuccess = 0,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclInProgress = 7
} ncclResult_t;
typedef enum { ncclInt8 = 0, ncclFloat32 = 7 } ncclDataType_t;
typedef enum { ncclSum = 0 } ncclRedOp_t;
typedef struct {
    char internal[128];
} ncclUniqueId;
typedef struct {
    int blocking;
} ncclConfig_t;
#define NCCL_CONFIG_INITIALIZER {1}
typedef struct ncclComm *ncclComm_t;

#ifdef __cplusplus
}
#endif
#endif
