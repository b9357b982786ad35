/* What the driver knows about GPUs beyond CUDA: power, clocks, PCIe link, other processes, health, neighbouring CPUs.
 * It is asked through NVML, the library behind nvidia-smi, which is opened at run time; asking changes nothing and
 * creates no context. The calls are those of NVIDIA's "NVML API Reference Guide". */
#ifndef OX_KERNELS_NVML_H
#define OX_KERNELS_NVML_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ox_nvml;

/* With NULL for `library_path` the loader finds libnvidia-ml.so.1. OX_E_DEVICE if there is no library, or if it finds
 * no driver; absent then says whether the library is missing. */
OX_MUST enum ox_status ox_nvml_open(const char *library_path, struct ox_nvml **out, bool *absent);
void ox_nvml_close(struct ox_nvml **nvml);

const char *ox_nvml_driver_version(const struct ox_nvml *nvml); /* "580.65.06" */
uint32_t ox_nvml_gpu_count(const struct ox_nvml *nvml);

/* Stands for a value that this GPU or this driver does not report. */
#define OX_NVML_UNKNOWN UINT32_MAX

/* Why the clocks are below their highest: bits of ox_nvml_gpu.held. */
enum ox_nvml_held {
    OX_NVML_IDLE = 1 << 0,
    OX_NVML_BY_SETTING = 1 << 1,
    OX_NVML_BY_POWER_CAP = 1 << 2,
    OX_NVML_BY_HARDWARE = 1 << 3, /* one of those below, or the power supply */
    OX_NVML_BY_SYNC = 1 << 4,
    OX_NVML_BY_HEAT = 1 << 5,
    OX_NVML_BY_HARDWARE_HEAT = 1 << 6,
    OX_NVML_BY_POWER_BRAKE = 1 << 7
};

enum ox_nvml_compute_mode { OX_NVML_SHARED, OX_NVML_ONE_THREAD, OX_NVML_PROHIBITED, OX_NVML_ONE_PROCESS };

enum { OX_NVML_CPUS_MAX = 1024 };

struct ox_nvml_gpu {
    char name[96];
    char pci[32]; /* "00000000:41:00.0" */
    uint64_t memory_bytes, memory_used_bytes;
    uint32_t power_mw, power_limit_mw, power_default_mw; /* the limit in force, and the limit without a cap */
    uint32_t temperature_c;
    uint32_t sm_mhz, sm_mhz_max, memory_mhz, memory_mhz_max;
    uint32_t held;
    uint32_t pcie_generation, pcie_width;         /* at the moment: an idle link sleeps in a low generation */
    uint32_t pcie_generation_max, pcie_width_max; /* the GPU's most in this machine */
    uint32_t pcie_generation_gpu;                 /* the GPU's most in any machine */
    uint32_t ecc, ecc_errors;                     /* whether ECC is on; uncorrected errors since the driver started */
    uint32_t rows_pending, rows_failed;           /* memory to be replaced at the next reset; no spare memory left */
    uint32_t mig, compute_mode;
    uint32_t process_count; /* processes with a context, of all users */
    uint64_t process_bytes;
    uint64_t own_bytes; /* of them this process's; 0: none, or not told, as where processes have other numbers */
    uint64_t cpus[OX_NVML_CPUS_MAX / 64]; /* CPUs next to the GPU; all zero: unknown */
    uint64_t nodes;                       /* memory nodes next to it, likewise; the first 64 */
};

/* OX_E_DEVICE if the GPU does not answer at all. */
OX_MUST enum ox_status ox_nvml_read(struct ox_nvml *nvml, uint32_t gpu_idx, struct ox_nvml_gpu *out);

/* Millijoules that the GPU has used since the driver was loaded; false where it does not tell. */
bool ox_nvml_energy(const struct ox_nvml *nvml, uint32_t gpu_idx, uint64_t *millijoules);

#ifdef __cplusplus
}
#endif
#endif
