#include "kernels/cuda.h"

#include "base/bytes.h"

/* What opening the GPU took is no more free but still this process's. */
enum ox_status ox_cuda_memory_free(const struct ox_cuda_memory *memory, uint64_t *device_mem_bytes) {
    const struct ox_cuda_device_info *const gpu = memory->gpu;
    const uint64_t spared = ox_max_u64(gpu->memory_bytes / 32, 64 * OX_MIB);
    const uint64_t opened = memory->process_bytes - OX_CUDA_LATER_BYTES;
    const uint64_t free_bytes = gpu->free_bytes + (memory->process_bytes == OX_CUDA_PROCESS_BYTES
                                                       ? OX_CUDA_WORKSPACE_BYTES : opened);
    if (free_bytes <= spared + memory->process_bytes) {
        char have[OX_SIZE_TEXT_BYTES], all[OX_SIZE_TEXT_BYTES];
        return ox_fail(OX_E_DEVICE, "GPU: %s has %s of %s free, which is too little for a run; end what else uses it "
                       "(nvidia-smi shows it), or use --device cpu", gpu->name, ox_size_text(gpu->free_bytes, have),
                       ox_size_text(gpu->memory_bytes, all));
    }
    *device_mem_bytes = (free_bytes - spared) / OX_MIB * OX_MIB;
    return OX_OK;
}

enum ox_status ox_cuda_memory_check(const struct ox_cuda_memory *memory, uint64_t device_mem_bytes) {
    char have[OX_SIZE_TEXT_BYTES], need[OX_SIZE_TEXT_BYTES];
    if (device_mem_bytes <= memory->process_bytes) {
        return ox_fail(OX_E_CONFIG, "--device-mem %s: %s of a GPU's memory go to the driver, to code and to libraries; "
                       "give more, or --device cpu", ox_size_text(device_mem_bytes, have),
                       ox_size_text(memory->process_bytes, need));
    }
    if (memory->gpu->memory_bytes > 0 && device_mem_bytes > memory->gpu->memory_bytes) {
        return ox_fail(OX_E_CONFIG, "--device-mem %s: %s has %s; without the option a run takes what is free of it",
                       ox_size_text(device_mem_bytes, have), memory->gpu->name,
                       ox_size_text(memory->gpu->memory_bytes, need));
    }
    return OX_OK;
}
