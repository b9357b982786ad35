/* Replaces nccl.c in builds without NCCL's headers. */
#include "kernels/cuda/cuda_device.h"

const struct ox_nccl_ops *ox_cuda_nccl_ops(void) {
    return NULL;
}
