/* Which sorted rows and which pairs belong to the group of experts that a call takes. */
#ifndef OX_KERNELS_CUDA_MOE_GROUP_CUH
#define OX_KERNELS_CUDA_MOE_GROUP_CUH

#include "kernels/cuda/kernel.cuh"

static __device__ __forceinline__ bool ox_has_row(const ox_experts &group, uint64_t row) {
    const int32_t *const offsets = group.offsets + group.first;
    return group.offsets == NULL || ((int64_t)row >= offsets[0] && (int64_t)row < offsets[group.count]);
}

static __device__ __forceinline__ bool ox_has_pair(const ox_experts &group, const int32_t *experts, uint64_t pair) {
    return group.offsets == NULL || (uint32_t)experts[pair] - group.first < group.count;
}

#endif
