/* The CUDA device: memory, copies, and the reasons why a GPU cannot be used. */
#include "kernels/cuda/cuda_device.h"

#include "base/assert.h"
#include "base/bytes.h"

#include <stdio.h>
#include <stdlib.h>

enum ox_status ox_cuda_check(cudaError_t error, const char *what) {
    if (error == cudaSuccess) {
        return OX_OK;
    }
    (void)cudaGetLastError(); /* clears it for the next call */
    if (error == cudaErrorMemoryAllocation) {
        return ox_fail(OX_E_NOMEM, "GPU, %s: %s; give --device-mem less, or end what else uses the GPU", what,
                       cudaGetErrorString(error));
    }
    return ox_fail(OX_E_DEVICE, "GPU, %s: %s; the kernel log may say more (dmesg, lines with Xid)", what,
                   cudaGetErrorString(error));
}

static struct ox_cuda_device *cuda_of(struct ox_device *device) {
    return (struct ox_cuda_device *)device;
}

/* Every thread that calls the runtime sets its device first; that costs nothing if it is set already. */
static enum ox_status use(struct ox_cuda_device *cuda) {
    return ox_cuda_check(cudaSetDevice(cuda->idx), "choosing the device");
}

/* A block whose address was rounded up to a page, as the runtime places small blocks anywhere. */
struct ox_cuda_moved {
    struct ox_cuda_moved *next;
    void *ptr, *block;
};

static enum ox_status no_memory(const struct ox_cuda_device *cuda, uint64_t bytes) {
    char wanted[OX_SIZE_TEXT_BYTES], unused[OX_SIZE_TEXT_BYTES], total[OX_SIZE_TEXT_BYTES];
    size_t free_bytes = 0, total_bytes = 0;
    (void)cudaGetLastError();
    const enum ox_status status = ox_cuda_check(cudaMemGetInfo(&free_bytes, &total_bytes), "asking for free memory");
    return status != OX_OK ? status
                           : ox_fail(OX_E_NOMEM, "GPU %d: %s of device memory were asked for, %s of %s are free; give "
                                     "--device-mem less, or end what else uses the GPU", cuda->idx,
                                     ox_size_text(bytes, wanted), ox_size_text(free_bytes, unused),
                                     ox_size_text(total_bytes, total));
}

static enum ox_status open_block(struct ox_cuda_device *cuda, uint64_t bytes, void **out) {
    const cudaError_t error = bytes > cuda->prop.totalGlobalMem ? cudaErrorMemoryAllocation : cudaMalloc(out, bytes);
    return error == cudaErrorMemoryAllocation ? no_memory(cuda, bytes) : ox_cuda_check(error, "opening device memory");
}

static enum ox_status mem_open(struct ox_device *device, uint64_t bytes, void **out) {
    struct ox_cuda_device *const cuda = cuda_of(device);
    *out = NULL;
    enum ox_status status = use(cuda);
    OX_THEN(status, open_block(cuda, bytes, out));
    if (status != OX_OK || (uintptr_t)*out % OX_IO_ALIGN_BYTES == 0) {
        return status;
    }
    cudaFree(*out);
    *out = NULL;
    struct ox_cuda_moved *const moved = calloc(1, sizeof *moved);
    if (moved == NULL) {
        return ox_fail(OX_E_NOMEM, "GPU %d: no memory for the address of a block", cuda->idx);
    }
    status = open_block(cuda, bytes + OX_IO_ALIGN_BYTES, &moved->block);
    if (status != OX_OK) {
        free(moved);
        return status;
    }
    *out = moved->ptr = (void *)(uintptr_t)ox_align_up((uintptr_t)moved->block, OX_IO_ALIGN_BYTES);
    pthread_mutex_lock(&cuda->lock);
    moved->next = cuda->moved;
    cuda->moved = moved;
    pthread_mutex_unlock(&cuda->lock);
    return OX_OK;
}

static void mem_close(struct ox_device *device, void *ptr, uint64_t bytes) {
    struct ox_cuda_device *const cuda = cuda_of(device);
    (void)bytes;
    pthread_mutex_lock(&cuda->lock);
    struct ox_cuda_moved **at = &cuda->moved;
    while (*at != NULL && (*at)->ptr != ptr) {
        at = &(*at)->next;
    }
    struct ox_cuda_moved *const moved = *at;
    if (moved != NULL) {
        *at = moved->next;
    }
    pthread_mutex_unlock(&cuda->lock);
    cudaFree(moved != NULL ? moved->block : ptr);
    free(moved);
}

/* Registered memory has the same address on both sides, so kernels may read it too; the conformance tests do. */
static enum ox_status host_pin(struct ox_device *device, void *ptr, uint64_t bytes) {
    struct ox_cuda_device *const cuda = cuda_of(device);
    char size[OX_SIZE_TEXT_BYTES];
    int same_address = 0;
    enum ox_status status = use(cuda);
    if (status == OX_OK) {
        status = ox_cuda_check(cudaDeviceGetAttribute(&same_address, cudaDevAttrCanUseHostPointerForRegisteredMem,
                                                      cuda->idx), "asking for unified addresses");
    }
    if (status == OX_OK && same_address == 0) {
        return ox_fail(OX_E_DEVICE, "GPU %d: %s does not see host memory at the host's addresses, as it does under "
                       "Linux on the machine itself; use --device cpu", cuda->idx, cuda->prop.name);
    }
    if (status != OX_OK) {
        return status;
    }
    const cudaError_t error = cudaHostRegister(ptr, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return ox_fail(OX_E_NOMEM, "GPU %d: pinning %s of host memory: %s; raise the limit of locked memory (ulimit -l "
                       "unlimited) or give --host-mem less", cuda->idx, ox_size_text(bytes, size),
                       cudaGetErrorString(error));
    }
    return ox_cuda_check(error, "pinning host memory");
}

static enum ox_status host_unpin(struct ox_device *device, void *ptr, uint64_t bytes) {
    (void)device;
    (void)bytes;
    return ox_cuda_check(cudaHostUnregister(ptr), "unpinning host memory");
}

static enum ox_status lane_open(struct ox_device *device, const char *label, struct ox_lane **out) {
    struct ox_cuda_device *const cuda = cuda_of(device);
    *out = NULL;
    const enum ox_status status = use(cuda);
    return status == OX_OK ? ox_cuda_lane_open(cuda, label, out) : status;
}

enum ox_status ox_cuda_copy(const struct ox_cuda_queue *queue, const void *args) {
    const struct ox_copy *const job = args;
    return job->bytes == 0 ? OX_OK
                           : ox_cuda_check(cudaMemcpyAsync(job->target, job->source, job->bytes, cudaMemcpyDefault,
                                                           queue->stream), "copy");
}

static enum ox_status lane_copy(struct ox_lane *lane, const struct ox_copy *job, struct ox_mark *done) {
    const struct ox_cuda_work work = {.run = ox_cuda_copy, .name = "copy"};
    const enum ox_status status = ox_cuda_lane_submit(lane, &work, job, sizeof *job);
    return status == OX_OK && done != NULL ? ox_cuda_lane_mark(lane, done) : status;
}

static void device_close(struct ox_device *device) {
    struct ox_cuda_device *const cuda = cuda_of(device);
    ox_cudnn_close(&cuda->cudnn);
    ox_cuda_blas_close(&cuda->blas);
    if (cuda->workspace != NULL) {
        mem_close(device, cuda->workspace, OX_CUDA_WORKSPACE_BYTES);
    }
    pthread_mutex_destroy(&cuda->lock);
    free(cuda);
}

static const struct ox_device_ops cuda_device_ops = {
    .name = "cuda",
    .mem_open = mem_open,
    .mem_close = mem_close,
    .host_pin = host_pin,
    .host_unpin = host_unpin,
    .lane_open = lane_open,
    .lane_copy = lane_copy,
    .close = device_close,
};

/* ---- opening --------------------------------------------------------------------------------------- */

static enum ox_status find_device(const struct ox_cuda_config *config) {
    int count = 0, driver = 0, runtime = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    (void)cudaGetLastError();
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
        return ox_fail(OX_E_DEVICE, "GPU: no NVIDIA driver is loaded; install one (nvidia-smi shows it), or use "
                       "--device cpu");
    }
    if (error == cudaErrorInsufficientDriver && cudaRuntimeGetVersion(&runtime) == cudaSuccess) {
        return ox_fail(OX_E_DEVICE, "GPU: the driver is for CUDA %d.%d and this build needs %d.%d; update the driver, "
                       "or build with its toolkit", driver / 1000, driver % 1000 / 10, runtime / 1000,
                       runtime % 1000 / 10);
    }
    if (error != cudaSuccess || count == 0) {
        return ox_fail(OX_E_DEVICE, "GPU: the driver shows no device (%s); see nvidia-smi, and CUDA_VISIBLE_DEVICES",
                       cudaGetErrorString(error));
    }
    if (config->device_idx >= (uint32_t)count) {
        return ox_fail(OX_E_DEVICE, "GPU %u: there %s %d here; they are counted from 0", config->device_idx,
                       count == 1 ? "is" : "are", count);
    }
    return OX_OK;
}

static uint32_t capability_of(const struct ox_cuda_device *cuda) {
    return (uint32_t)(cuda->prop.major * 10 + cuda->prop.minor);
}

/* Whatever prevents cuDNN's use is no failure. */
static void open_attention(struct ox_cuda_device *cuda, const struct ox_cuda_config *config) {
    if (config->own_attention) {
        snprintf(cuda->attention.text, sizeof cuda->attention.text, "asked for");
    } else {
        ox_cudnn_open(capability_of(cuda), &cuda->cudnn, &cuda->attention);
    }
}

static enum ox_status open_device(struct ox_cuda_device *cuda, const struct ox_cuda_config *config) {
    enum { CAPABILITY_LEAST = 80 }; /* the lowest built for: bfloat16 on tensor cores begins there */
    enum ox_status status = use(cuda);
    OX_THEN(status, ox_cuda_check(cudaGetDeviceProperties(&cuda->prop, cuda->idx), "asking for properties"));
    if (status == OX_OK && capability_of(cuda) < CAPABILITY_LEAST) {
        return ox_fail(OX_E_DEVICE, "GPU %d: %s has compute capability %d.%d, and 8.0 (Ampere) is the least; use "
                       "--device cpu", cuda->idx, cuda->prop.name, cuda->prop.major, cuda->prop.minor);
    }
    OX_THEN(status, ox_cuda_blas_open(&cuda->blas));
    if (status == OX_OK) {
        open_attention(cuda, config);
    }
    return status == OX_OK ? mem_open(&cuda->base, OX_CUDA_WORKSPACE_BYTES, &cuda->workspace) : status;
}

static enum ox_status device_open(const struct ox_cuda_config *config, struct ox_device **out) {
    *out = NULL;
    enum ox_status status = find_device(config);
    if (status != OX_OK) {
        return status;
    }
    struct ox_cuda_device *const cuda = calloc(1, sizeof *cuda);
    if (cuda == NULL) {
        return ox_fail(OX_E_NOMEM, "GPU: no memory for the device's %zu bytes", sizeof *cuda);
    }
    ox_cuda_ranges_open();
    cuda->base.ops = &cuda_device_ops;
    cuda->idx = (int)config->device_idx;
    pthread_mutex_init(&cuda->lock, NULL);
    status = open_device(cuda, config);
    if (status != OX_OK) {
        device_close(&cuda->base);
        return status;
    }
    *out = &cuda->base;
    return OX_OK;
}

static void about(struct ox_cuda_plugin_info *out) {
    int driver = 0, runtime = 0, count = 0;
    if (cudaDriverGetVersion(&driver) == cudaSuccess) {
        out->driver_version = (uint32_t)driver;
    }
    if (cudaRuntimeGetVersion(&runtime) == cudaSuccess) {
        out->runtime_version = (uint32_t)runtime;
    }
    snprintf(out->built_for, sizeof out->built_for, "%s", OX_CUDA_BUILT_FOR);
    if (find_device(&(struct ox_cuda_config){0}) != OX_OK) {
        snprintf(out->why_none, sizeof out->why_none, "%s", ox_error_text());
    } else if (cudaGetDeviceCount(&count) == cudaSuccess) {
        out->device_count = (uint32_t)count;
        if (ox_cuda_blas_library_open() == OX_OK) {
            out->blas_version = ox_cuda_blas_version();
        } else {
            snprintf(out->why_no_blas, sizeof out->why_no_blas, "%s", ox_error_text());
        }
    }
    (void)cudaGetLastError(); /* clears it for the next call */
}

static enum ox_status facts(struct ox_device *device, struct ox_cuda_device_info *out) {
    struct ox_cuda_device *const cuda = cuda_of(device);
    int driver = 0, runtime = 0;
    size_t free_bytes = 0, total_bytes = 0;
    enum ox_status status = use(cuda);
    OX_THEN(status, ox_cuda_check(cudaMemGetInfo(&free_bytes, &total_bytes), "asking for free memory"));
    OX_THEN(status, ox_cuda_check(cudaDriverGetVersion(&driver), "asking for the driver's version"));
    OX_THEN(status, ox_cuda_check(cudaRuntimeGetVersion(&runtime), "asking for the runtime's version"));
    *out = (struct ox_cuda_device_info){
        .memory_bytes = total_bytes,
        .free_bytes = free_bytes,
        .capability = capability_of(cuda),
        .processor_count = (uint32_t)cuda->prop.multiProcessorCount,
        .driver_version = (uint32_t)driver,
        .runtime_version = (uint32_t)runtime,
        .blas_version = ox_cuda_blas_version(),
    };
    snprintf(out->name, sizeof out->name, "%s", cuda->prop.name);
    snprintf(out->attention, sizeof out->attention, "%s%s", cuda->cudnn == NULL ? "own kernels: " : "",
             cuda->attention.text);
    snprintf(out->pci, sizeof out->pci, "%08X:%02X:%02X.0", (unsigned)cuda->prop.pciDomainID,
             (unsigned)cuda->prop.pciBusID, (unsigned)cuda->prop.pciDeviceID);
    return status;
}

static enum ox_status reach(struct ox_device *device, struct ox_device *peer, bool *out) {
    struct ox_cuda_device *const cuda = cuda_of(device);
    const int other = cuda_of(peer)->idx;
    int can = 0;
    *out = other == cuda->idx;
    if (*out) {
        return OX_OK;
    }
    OX_TRY(ox_cuda_check(cudaDeviceCanAccessPeer(&can, cuda->idx, other), "asking for peer access"));
    if (can == 0) {
        return OX_OK;
    }
    OX_TRY(use(cuda));
    const cudaError_t error = cudaDeviceEnablePeerAccess(other, 0);
    *out = error == cudaSuccess || error == cudaErrorPeerAccessAlreadyEnabled;
    if (*out || error == cudaErrorTooManyPeers) { /* the hardware has room for eight */
        (void)cudaGetLastError(); /* clears it for the next call */
        return OX_OK;
    }
    return ox_cuda_check(error, "allowing peer access");
}

/* ---- the border ------------------------------------------------------------------------------------ */

extern const struct ox_cuda_plugin ox_cuda_plugin;
const struct ox_cuda_plugin ox_cuda_plugin = {
    .version = OX_CUDA_PLUGIN_VERSION,
    .ops_bytes = sizeof(struct ox_ops),
    .device_bytes = sizeof(struct ox_device_ops),
    .device_ops = &cuda_device_ops,
    .device_open = device_open,
    .ops_init = ox_ops_fill_cuda,
    .facts = facts,
    .about = about,
    .reach = reach,
    .gemm_text = ox_cuda_blas_text,
    .linear_search = ox_cuda_blas_search,
    .nccl = ox_cuda_nccl_ops,
};
