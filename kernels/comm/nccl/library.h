/* Functions of libnccl.so.2, which is opened at run time. */
#ifndef OX_KERNELS_COMM_NCCL_LIBRARY_H
#define OX_KERNELS_COMM_NCCL_LIBRARY_H

#include "base/status.h"

#include <nccl.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ox_nccl_library {
    ncclResult_t (*version)(int *);
    ncclResult_t (*unique_id)(ncclUniqueId *);
    ncclResult_t (*init)(ncclComm_t *, int count, ncclUniqueId, int rank, ncclConfig_t *);
    ncclResult_t (*abort)(ncclComm_t);
    ncclResult_t (*async_error)(ncclComm_t, ncclResult_t *);
    const char *(*error_string)(ncclResult_t);
    ncclResult_t (*group_start)(void);
    ncclResult_t (*group_end)(void);
    ncclResult_t (*all_gather)(const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t);
    ncclResult_t (*reduce_scatter)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                                   cudaStream_t);
    ncclResult_t (*reduce)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, int root, ncclComm_t,
                           cudaStream_t);
    ncclResult_t (*send)(const void *, size_t, ncclDataType_t, int peer, ncclComm_t, cudaStream_t);
    ncclResult_t (*recv)(void *, size_t, ncclDataType_t, int peer, ncclComm_t, cudaStream_t);
};

/* OX_E_COMM with what to install. The library stays open. */
OX_MUST enum ox_status ox_nccl_library_open(const struct ox_nccl_library **out);

#ifdef __cplusplus
}
#endif
#endif
