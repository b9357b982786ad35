/* Opens NVML at run time. Calls are looked up by name when they are made: an older driver lacks some, and what it does
 * not report stays unknown. */
#include "kernels/nvml.h"

#include "base/assert.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Results, with the numbers of nvmlReturn_t. */
enum { NVML_SUCCESS = 0, NVML_INSUFFICIENT_SIZE = 7, NVML_DRIVER_NOT_LOADED = 9, NVML_VERSION_MISMATCH = 18 };

/* nvmlMemory_t, nvmlPciInfo_t and nvmlProcessInfo_t, in the layout of the reference guide. */
struct nvml_memory {
    unsigned long long total, free, used;
};
struct nvml_pci {
    char legacy_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char id[32];
};
struct nvml_process {
    unsigned pid;
    unsigned long long used_bytes; /* all ones: not reported */
    unsigned gpu_instance, compute_instance;
};

struct ox_nvml {
    void *library;
    char driver_version[96];
    uint32_t gpu_count;
};

/* Copies the address into a function pointer, as ISO C has no such cast; false if the library lacks the name. */
static bool find(const struct ox_nvml *nvml, const char *symbol, void *function) {
    void *const address = dlsym(nvml->library, symbol);
    memcpy(function, &address, sizeof address);
    return address != NULL;
}

static const char *words_of(const struct ox_nvml *nvml, int result) {
    const char *(*describe)(int);
    const char *const words = find(nvml, "nvmlErrorString", &describe) ? describe(result) : NULL;
    return words != NULL ? words : "an unknown error";
}

/* ---- opening --------------------------------------------------------------------------------------- */

static enum ox_status start(struct ox_nvml *nvml) {
    int (*init)(void);
    int (*version)(char *, unsigned);
    int (*count)(unsigned *);
    if (!find(nvml, "nvmlInit_v2", &init) || !find(nvml, "nvmlDeviceGetCount_v2", &count) ||
        !find(nvml, "nvmlSystemGetDriverVersion", &version)) {
        return ox_fail(OX_E_DEVICE, "NVML: the library lacks nvmlInit_v2 or its kin; update the NVIDIA driver");
    }
    int result = init();
    if (result != NVML_SUCCESS) {
        const char *const remedy = result == NVML_DRIVER_NOT_LOADED  ? "load the driver (modprobe nvidia)"
                                   : result == NVML_VERSION_MISMATCH ? "reboot: the driver was updated while in use"
                                                                     : "see nvidia-smi";
        return ox_fail(OX_E_DEVICE, "NVML: %s; %s", words_of(nvml, result), remedy);
    }
    unsigned gpu_count = 0;
    result = version(nvml->driver_version, sizeof nvml->driver_version);
    if (result == NVML_SUCCESS) {
        result = count(&gpu_count);
    }
    nvml->gpu_count = gpu_count;
    return result == NVML_SUCCESS ? OX_OK
                                  : ox_fail(OX_E_DEVICE, "NVML: %s; see nvidia-smi", words_of(nvml, result));
}

enum ox_status ox_nvml_open(const char *library_path, struct ox_nvml **out, bool *absent) {
    *out = NULL;
    *absent = false;
    struct ox_nvml *nvml = calloc(1, sizeof *nvml);
    if (nvml == NULL) {
        return ox_fail(OX_E_NOMEM, "NVML: no memory for its %zu bytes", sizeof *nvml);
    }
    nvml->library = dlopen(library_path != NULL ? library_path : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (nvml->library == NULL) {
        free(nvml);
        *absent = true;
        return ox_fail(OX_E_DEVICE, "NVML: %s; it comes with the NVIDIA driver, in a container with the capability "
                       "\"utility\"", dlerror());
    }
    const enum ox_status status = start(nvml);
    if (status != OX_OK) {
        ox_nvml_close(&nvml);
    }
    *out = nvml;
    return status;
}

/* NVML counts its users, so shutting it down after a failed start does no harm. */
void ox_nvml_close(struct ox_nvml **nvml) {
    if (*nvml == NULL) {
        return;
    }
    int (*shut_down)(void);
    if (find(*nvml, "nvmlShutdown", &shut_down)) {
        shut_down();
    }
    dlclose((*nvml)->library);
    free(*nvml);
    *nvml = NULL;
}

const char *ox_nvml_driver_version(const struct ox_nvml *nvml) {
    return nvml->driver_version;
}

uint32_t ox_nvml_gpu_count(const struct ox_nvml *nvml) {
    return nvml->gpu_count;
}

/* ---- one GPU --------------------------------------------------------------------------------------- */

/* Calls that return one number; unknown if the driver lacks the call or the GPU the value. */
static uint32_t ask(const struct ox_nvml *nvml, const char *symbol, void *gpu) {
    int (*call)(void *, unsigned *);
    unsigned value = 0;
    return find(nvml, symbol, &call) && call(gpu, &value) == NVML_SUCCESS ? value : OX_NVML_UNKNOWN;
}

/* Calls with an index of what they ask about. */
static uint32_t ask_kind(const struct ox_nvml *nvml, const char *symbol, void *gpu, int kind) {
    int (*call)(void *, int, unsigned *);
    unsigned value = 0;
    return find(nvml, symbol, &call) && call(gpu, kind, &value) == NVML_SUCCESS ? value : OX_NVML_UNKNOWN;
}

/* Calls that return a setting now and after the next reset. */
static uint32_t ask_setting(const struct ox_nvml *nvml, const char *symbol, void *gpu) {
    int (*call)(void *, unsigned *, unsigned *);
    unsigned now = 0, then = 0;
    return find(nvml, symbol, &call) && call(gpu, &now, &then) == NVML_SUCCESS ? now : OX_NVML_UNKNOWN;
}

static void read_memory(const struct ox_nvml *nvml, void *gpu, struct ox_nvml_gpu *out) {
    int (*memory)(void *, struct nvml_memory *);
    struct nvml_memory bytes = {0};
    if (find(nvml, "nvmlDeviceGetMemoryInfo", &memory) && memory(gpu, &bytes) == NVML_SUCCESS) {
        out->memory_bytes = bytes.total;
        out->memory_used_bytes = bytes.used;
    }
}

static void read_speed(const struct ox_nvml *nvml, void *gpu, struct ox_nvml_gpu *out) {
    enum { CLOCK_SM = 1, CLOCK_MEMORY = 2, SENSOR_GPU = 0 };
    out->power_mw = ask(nvml, "nvmlDeviceGetPowerUsage", gpu);
    out->power_limit_mw = ask(nvml, "nvmlDeviceGetEnforcedPowerLimit", gpu);
    out->power_default_mw = ask(nvml, "nvmlDeviceGetPowerManagementDefaultLimit", gpu);
    out->temperature_c = ask_kind(nvml, "nvmlDeviceGetTemperature", gpu, SENSOR_GPU);
    out->sm_mhz = ask_kind(nvml, "nvmlDeviceGetClockInfo", gpu, CLOCK_SM);
    out->sm_mhz_max = ask_kind(nvml, "nvmlDeviceGetMaxClockInfo", gpu, CLOCK_SM);
    out->memory_mhz = ask_kind(nvml, "nvmlDeviceGetClockInfo", gpu, CLOCK_MEMORY);
    out->memory_mhz_max = ask_kind(nvml, "nvmlDeviceGetMaxClockInfo", gpu, CLOCK_MEMORY);
    out->pcie_generation = ask(nvml, "nvmlDeviceGetCurrPcieLinkGeneration", gpu);
    out->pcie_width = ask(nvml, "nvmlDeviceGetCurrPcieLinkWidth", gpu);
    out->pcie_generation_max = ask(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", gpu);
    out->pcie_width_max = ask(nvml, "nvmlDeviceGetMaxPcieLinkWidth", gpu);
    out->pcie_generation_gpu = ask(nvml, "nvmlDeviceGetGpuMaxPcieLinkGeneration", gpu);
    /* Reasons for lower clocks. The driver renamed the call, so both names are tried. */
    int (*reasons)(void *, unsigned long long *);
    unsigned long long bits = 0;
    out->held = (find(nvml, "nvmlDeviceGetCurrentClocksEventReasons", &reasons) ||
                 find(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", &reasons)) &&
                        reasons(gpu, &bits) == NVML_SUCCESS
                    ? (uint32_t)bits
                    : OX_NVML_UNKNOWN;
}

static void read_health(const struct ox_nvml *nvml, void *gpu, struct ox_nvml_gpu *out) {
    enum { UNCORRECTED = 1, SINCE_START = 0 };
    int (*errors)(void *, int, int, unsigned long long *);
    int (*rows)(void *, unsigned *, unsigned *, unsigned *, unsigned *);
    unsigned long long error_count = 0;
    unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
    out->ecc = ask_setting(nvml, "nvmlDeviceGetEccMode", gpu);
    out->ecc_errors = OX_NVML_UNKNOWN;
    if (find(nvml, "nvmlDeviceGetTotalEccErrors", &errors) &&
        errors(gpu, UNCORRECTED, SINCE_START, &error_count) == NVML_SUCCESS) {
        out->ecc_errors = error_count < OX_NVML_UNKNOWN ? (uint32_t)error_count : OX_NVML_UNKNOWN - 1;
    }
    const bool told = find(nvml, "nvmlDeviceGetRemappedRows", &rows) &&
                      rows(gpu, &corrected, &uncorrected, &pending, &failed) == NVML_SUCCESS;
    out->rows_pending = told ? pending : OX_NVML_UNKNOWN;
    out->rows_failed = told ? failed : OX_NVML_UNKNOWN;
}

static void read_users(const struct ox_nvml *nvml, void *gpu, struct ox_nvml_gpu *out) {
    enum { LISTED_MAX = 128 };
    int (*list)(void *, unsigned *, struct nvml_process *);
    struct nvml_process processes[LISTED_MAX];
    unsigned count = LISTED_MAX;
    out->mig = ask_setting(nvml, "nvmlDeviceGetMigMode", gpu);
    out->compute_mode = ask(nvml, "nvmlDeviceGetComputeMode", gpu);
    out->process_count = OX_NVML_UNKNOWN;
    if (!find(nvml, "nvmlDeviceGetComputeRunningProcesses_v3", &list)) {
        return;
    }
    const int result = list(gpu, &count, processes);
    if (result == NVML_SUCCESS || result == NVML_INSUFFICIENT_SIZE) {
        out->process_count = count;
    }
    for (unsigned i = 0; result == NVML_SUCCESS && i < count; i++) {
        const uint64_t bytes = processes[i].used_bytes == ~0ull ? 0 : processes[i].used_bytes;
        out->process_bytes += bytes;
        out->own_bytes += processes[i].pid == (unsigned)getpid() ? bytes : 0;
    }
}

/* The library fills words of type long, which have 64 bits wherever there is a driver. */
static void read_neighbours(const struct ox_nvml *nvml, void *gpu, struct ox_nvml_gpu *out) {
    enum { SCOPE_NODE = 0 };
    int (*cpus)(void *, unsigned, unsigned long *);
    int (*nodes)(void *, unsigned, unsigned long *, int);
    unsigned long words[OX_NVML_CPUS_MAX / 64] = {0}, node = 0;
    OX_ASSERT(sizeof words == sizeof out->cpus);
    if (find(nvml, "nvmlDeviceGetCpuAffinity", &cpus) && cpus(gpu, OX_NVML_CPUS_MAX / 64, words) == NVML_SUCCESS) {
        memcpy(out->cpus, words, sizeof out->cpus);
    }
    if (find(nvml, "nvmlDeviceGetMemoryAffinity", &nodes) && nodes(gpu, 1, &node, SCOPE_NODE) == NVML_SUCCESS) {
        out->nodes = node;
    }
}

enum ox_status ox_nvml_read(struct ox_nvml *nvml, uint32_t gpu_idx, struct ox_nvml_gpu *out) {
    OX_ASSERT(gpu_idx < nvml->gpu_count);
    int (*handle)(unsigned, void **);
    int (*name)(void *, char *, unsigned);
    int (*pci)(void *, struct nvml_pci *);
    void *gpu = NULL;
    struct nvml_pci place = {0};
    memset(out, 0, sizeof *out);
    if (!find(nvml, "nvmlDeviceGetHandleByIndex_v2", &handle) || !find(nvml, "nvmlDeviceGetName", &name) ||
        !find(nvml, "nvmlDeviceGetPciInfo_v3", &pci)) {
        return ox_fail(OX_E_DEVICE, "NVML: the library lacks nvmlDeviceGetPciInfo_v3 or its kin; update the NVIDIA "
                       "driver");
    }
    int result = handle(gpu_idx, &gpu);
    if (result == NVML_SUCCESS) {
        result = name(gpu, out->name, sizeof out->name);
    }
    if (result == NVML_SUCCESS) {
        result = pci(gpu, &place);
    }
    if (result != NVML_SUCCESS) {
        return ox_fail(OX_E_DEVICE, "NVML: GPU %u does not answer: %s; look for Xid in the kernel log, reset the GPU "
                       "or reboot", gpu_idx, words_of(nvml, result));
    }
    snprintf(out->pci, sizeof out->pci, "%.31s", place.id);
    read_memory(nvml, gpu, out);
    read_speed(nvml, gpu, out);
    read_health(nvml, gpu, out);
    read_users(nvml, gpu, out);
    read_neighbours(nvml, gpu, out);
    return OX_OK;
}

bool ox_nvml_energy(const struct ox_nvml *nvml, uint32_t gpu_idx, uint64_t *millijoules) {
    int (*handle)(unsigned, void **);
    int (*energy)(void *, unsigned long long *);
    void *gpu = NULL;
    unsigned long long used = 0;
    const bool told = gpu_idx < nvml->gpu_count && find(nvml, "nvmlDeviceGetHandleByIndex_v2", &handle) &&
                      find(nvml, "nvmlDeviceGetTotalEnergyConsumption", &energy) &&
                      handle(gpu_idx, &gpu) == NVML_SUCCESS && energy(gpu, &used) == NVML_SUCCESS;
    *millijoules = told ? used : *millijoules;
    return told;
}
