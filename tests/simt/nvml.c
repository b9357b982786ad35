/* A libnvidia-ml.so.1 without a driver: the calls that kernels/nvml.c makes, by the names, types and results of the
 * "NVML API Reference Guide", answered from a table that a test fills. */
#include "tests/simt/nvml.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The loader finds them by name; no header declares them. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7 };

struct simt_nvml simt_nvml = {
    .gpu_count = 1,
    .gpus = {{
        .name = "Emulated GPU",
        .pci = "00000000:00:00.0",
        .memory_bytes = UINT64_C(1) << 30,
        .memory_used_bytes = UINT64_C(1) << 24,
        .power_mw = 87654,
        .power_limit_mw = 350000,
        .power_default_mw = 350000,
        .temperature_c = 41,
        .sm_mhz = 345,
        .sm_mhz_max = 1980,
        .memory_mhz = 2619,
        .memory_mhz_max = 2619,
        .held = OX_NVML_IDLE,
        .pcie_generation = 1,
        .pcie_width = 16,
        .pcie_generation_max = 5,
        .pcie_width_max = 16,
        .pcie_generation_gpu = 5,
        .ecc = 1,
    }},
};

static struct ox_nvml_gpu *gpu_of(void *device) {
    return device;
}

static int give(uint32_t value, unsigned *out) {
    *out = value;
    return value == OX_NVML_UNKNOWN ? NOT_SUPPORTED : SUCCESS;
}

const char *nvmlErrorString(int result) {
    return result == 9 ? "Driver Not Loaded" : result == 15 ? "GPU is lost" : "Driver/library version mismatch";
}

int nvmlInit_v2(void) {
    simt_nvml.open_count += simt_nvml.init_result == SUCCESS;
    simt_nvml.gpus[0].memory_used_bytes += simt_nvml.growth_bytes;
    simt_nvml.gpus[0].process_count += simt_nvml.growth_count;
    simt_nvml.gpus[0].own_bytes += simt_nvml.growth_own_bytes;
    return simt_nvml.init_result;
}

int nvmlShutdown(void) {
    simt_nvml.open_count -= simt_nvml.init_result == SUCCESS;
    return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *text, unsigned text_bytes) {
    snprintf(text, text_bytes, "580.65.06");
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = simt_nvml.gpu_count;
    return simt_nvml.count_result;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned idx, void **device) {
    *device = &simt_nvml.gpus[idx];
    return simt_nvml.handle_results[idx];
}

int nvmlDeviceGetName(void *device, char *text, unsigned text_bytes) {
    snprintf(text, text_bytes, "%s", gpu_of(device)->name);
    return SUCCESS;
}

/* nvmlPciInfo_t: 16 bytes of text, five numbers, 32 bytes of text. */
int nvmlDeviceGetPciInfo_v3(void *device, char info[68]) {
    memset(info, 0, 68);
    snprintf(info + 36, 32, "%s", gpu_of(device)->pci);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long total_free_used[3]) {
    const struct ox_nvml_gpu *const gpu = gpu_of(device);
    total_free_used[0] = gpu->memory_bytes;
    total_free_used[1] = gpu->memory_bytes - gpu->memory_used_bytes;
    total_free_used[2] = gpu->memory_used_bytes;
    return gpu->memory_bytes > 0 ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *out) {
    return give(gpu_of(device)->power_mw, out);
}

/* An hour at the power that it draws. */
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *out) {
    *out = 3600ull * gpu_of(device)->power_mw;
    return gpu_of(device)->power_mw == OX_NVML_UNKNOWN ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *out) {
    return give(gpu_of(device)->power_limit_mw, out);
}

int nvmlDeviceGetPowerManagementDefaultLimit(void *device, unsigned *out) {
    return give(gpu_of(device)->power_default_mw, out);
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *out) {
    return sensor == 0 ? give(gpu_of(device)->temperature_c, out) : INVALID_ARGUMENT;
}

/* 1 is the clock of the processors, 2 that of the memory. */
int nvmlDeviceGetClockInfo(void *device, int clock, unsigned *out) {
    const struct ox_nvml_gpu *const gpu = gpu_of(device);
    return clock == 1 ? give(gpu->sm_mhz, out) : clock == 2 ? give(gpu->memory_mhz, out) : INVALID_ARGUMENT;
}

int nvmlDeviceGetMaxClockInfo(void *device, int clock, unsigned *out) {
    const struct ox_nvml_gpu *const gpu = gpu_of(device);
    return clock == 1 ? give(gpu->sm_mhz_max, out) : clock == 2 ? give(gpu->memory_mhz_max, out) : INVALID_ARGUMENT;
}

int nvmlDeviceGetCurrPcieLinkGeneration(void *device, unsigned *out) {
    return give(gpu_of(device)->pcie_generation, out);
}

int nvmlDeviceGetCurrPcieLinkWidth(void *device, unsigned *out) {
    return give(gpu_of(device)->pcie_width, out);
}

int nvmlDeviceGetMaxPcieLinkGeneration(void *device, unsigned *out) {
    return give(gpu_of(device)->pcie_generation_max, out);
}

int nvmlDeviceGetMaxPcieLinkWidth(void *device, unsigned *out) {
    return give(gpu_of(device)->pcie_width_max, out);
}

int nvmlDeviceGetGpuMaxPcieLinkGeneration(void *device, unsigned *out) {
    return give(gpu_of(device)->pcie_generation_gpu, out);
}

/* Under the older of its two names. */
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *out) {
    *out = gpu_of(device)->held;
    return gpu_of(device)->held == OX_NVML_UNKNOWN ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetEccMode(void *device, unsigned *now, unsigned *then) {
    *then = 1;
    return give(gpu_of(device)->ecc, now);
}

int nvmlDeviceGetTotalEccErrors(void *device, int kind, int since, unsigned long long *out) {
    *out = gpu_of(device)->ecc_errors;
    return kind == 1 && since == 0 && *out != OX_NVML_UNKNOWN ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed) {
    *corrected = *uncorrected = 3;
    *failed = gpu_of(device)->rows_failed;
    return give(gpu_of(device)->rows_pending, pending);
}

int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *then) {
    *then = 0;
    return give(gpu_of(device)->mig, now);
}

int nvmlDeviceGetComputeMode(void *device, unsigned *out) {
    return give(gpu_of(device)->compute_mode, out);
}

/* nvmlProcessInfo_t: process, memory, two instances; the last process does not report its memory. */
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, unsigned long long (*out)[3]) {
    const struct ox_nvml_gpu *const gpu = gpu_of(device);
    const unsigned room = *count;
    *count = gpu->process_count;
    if (gpu->process_count == OX_NVML_UNKNOWN || gpu->process_count > room) {
        return gpu->process_count == OX_NVML_UNKNOWN ? NOT_SUPPORTED : INSUFFICIENT_SIZE;
    }
    for (unsigned i = 0; i < gpu->process_count; i++) {
        const bool is_own = i == 0 && gpu->own_bytes > 0;
        out[i][0] = is_own ? (unsigned)getpid() : 1000 + i;
        out[i][1] = is_own                                   ? gpu->own_bytes
                    : i + 1 < gpu->process_count || i == 0 ? gpu->process_bytes
                                                             : ~0ull;
        out[i][2] = 0;
    }
    return SUCCESS;
}

int nvmlDeviceGetCpuAffinity(void *device, unsigned word_count, unsigned long *out) {
    const struct ox_nvml_gpu *const gpu = gpu_of(device);
    uint64_t any = 0;
    for (unsigned i = 0; i < word_count; i++) {
        out[i] = (unsigned long)gpu->cpus[i];
        any |= gpu->cpus[i];
    }
    return any != 0 ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetMemoryAffinity(void *device, unsigned word_count, unsigned long *out, int scope) {
    out[0] = (unsigned long)gpu_of(device)->nodes;
    return word_count >= 1 && scope == 0 && out[0] != 0 ? SUCCESS : NOT_SUPPORTED;
}
