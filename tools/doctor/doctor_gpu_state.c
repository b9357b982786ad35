/* Warns of what slows a working GPU: a narrow link, a power cap, heat, other processes, failing memory, distant
 * CPUs. */
#include "tools/doctor/doctor.h"

#include "base/bytes.h"

#include <numa.h>
#include <stdio.h>

/* Writes a number, "?" when the driver does not report it. */
static const char *number(uint32_t value, char text[16]) {
    if (value == OX_NVML_UNKNOWN) {
        return "?";
    }
    snprintf(text, 16, "%u", value);
    return text;
}

static bool known(uint32_t value) {
    return value != OX_NVML_UNKNOWN;
}

static void report_memory_use(struct ox_doctor *doctor, const struct ox_nvml_gpu *gpu) {
    char total[OX_SIZE_TEXT_BYTES], used[OX_SIZE_TEXT_BYTES], held[OX_SIZE_TEXT_BYTES];
    ox_size_text(gpu->process_bytes, held);
    if (gpu->memory_bytes > 0) {
        ox_doctor_add(doctor, "memory", "%s, %s in use", ox_size_text(gpu->memory_bytes, total),
                      ox_size_text(gpu->memory_used_bytes, used));
    } else {
        ox_doctor_add(doctor, "memory", "not reported by the driver");
    }
    if (known(gpu->process_count) && gpu->process_count > 0) {
        ox_doctor_warn(doctor, "end them (nvidia-smi lists them), or lower --device-mem",
                       "%u process%s already on this GPU, with %s of its memory", gpu->process_count,
                       ox_plural_es(gpu->process_count), held);
    } else if (gpu->memory_used_bytes > gpu->memory_bytes / 8) {
        ox_doctor_warn(doctor, "find the user with nvidia-smi on the host, or lower --device-mem",
                       "%s of its memory are in use by processes that are not visible from here", used);
    }
}

static void report_modes(struct ox_doctor *doctor, const struct ox_nvml_gpu *gpu) {
    static const char *const modes[] = {[OX_NVML_SHARED] = "shared", [OX_NVML_ONE_THREAD] = "one thread",
                                        [OX_NVML_PROHIBITED] = "prohibited", [OX_NVML_ONE_PROCESS] = "one process"};
    char remedy[OX_DOCTOR_TEXT_BYTES];
    ox_doctor_add(doctor, "mode", "%s%s",
                  gpu->compute_mode < sizeof modes / sizeof modes[0] ? modes[gpu->compute_mode] : "not reported",
                  gpu->mig == 1 ? ", partitioned (MIG)" : "");
    if (gpu->compute_mode == OX_NVML_PROHIBITED) {
        snprintf(remedy, sizeof remedy, "nvidia-smi -i %s -c DEFAULT, as root", gpu->pci);
        ox_doctor_warn(doctor, remedy, "its compute mode allows no process");
    } else if (gpu->compute_mode == OX_NVML_ONE_PROCESS && known(gpu->process_count) && gpu->process_count > 0) {
        ox_doctor_warn(doctor, "end that process (nvidia-smi lists it), or use another GPU",
                       "its compute mode allows one process, and another process already uses it");
    } else if (gpu->mig == 1) {
        snprintf(remedy, sizeof remedy, "nvidia-smi -i %s -mig 0, as root, for the whole GPU", gpu->pci);
        ox_doctor_warn(doctor, remedy, "the GPU is partitioned (MIG); a run sees one part of it");
    }
}

/* Judges the link's generation only while the GPU is busy: an idle link drops to a lower one. */
static void report_link(struct ox_doctor *doctor, const struct ox_nvml_gpu *gpu) {
    char text[4][16];
    if (!known(gpu->pcie_width) || !known(gpu->pcie_generation)) {
        ox_doctor_add(doctor, "PCIe", "not reported by the driver");
        return;
    }
    const bool busy = known(gpu->held) && (gpu->held & OX_NVML_IDLE) == 0;
    ox_doctor_add(doctor, "PCIe", "generation %s x%s%s; up to generation %s x%s here",
                  number(gpu->pcie_generation, text[0]), number(gpu->pcie_width, text[1]), busy ? "" : " (idle)",
                  number(gpu->pcie_generation_max, text[2]), number(gpu->pcie_width_max, text[3]));
    if (known(gpu->pcie_width_max) && gpu->pcie_width < gpu->pcie_width_max) {
        ox_doctor_warn(doctor, "reseat the card and its riser; check how the firmware splits the slot's lanes",
                       "the link has %u of %u lanes, so weights move %u times slower", gpu->pcie_width,
                       gpu->pcie_width_max, gpu->pcie_width > 0 ? gpu->pcie_width_max / gpu->pcie_width : 0);
    } else if (busy && known(gpu->pcie_generation_max) && gpu->pcie_generation < gpu->pcie_generation_max) {
        ox_doctor_warn(doctor, "check the slot's speed in the firmware, risers and cables",
                       "the link runs at generation %u of %u although the GPU is busy", gpu->pcie_generation,
                       gpu->pcie_generation_max);
    } else if (known(gpu->pcie_generation_gpu) && known(gpu->pcie_generation_max) &&
               gpu->pcie_generation_max < gpu->pcie_generation_gpu) {
        ox_doctor_warn(doctor, "use a full-speed slot of the processor (a firmware setting), if the board has one",
                       "the GPU supports generation %u, this slot only %u", gpu->pcie_generation_gpu,
                       gpu->pcie_generation_max);
    }
}

static void report_power(struct ox_doctor *doctor, const struct ox_nvml_gpu *gpu) {
    char remedy[OX_DOCTOR_TEXT_BYTES];
    if (!known(gpu->power_limit_mw)) {
        ox_doctor_add(doctor, "power", "not reported by the driver");
        return;
    }
    const unsigned limit = gpu->power_limit_mw / 1000, full = gpu->power_default_mw / 1000;
    if (known(gpu->power_mw)) {
        ox_doctor_add(doctor, "power", "%u W, limit %u W", gpu->power_mw / 1000, limit);
    } else {
        ox_doctor_add(doctor, "power", "limit %u W", limit);
    }
    if (known(gpu->power_default_mw) && gpu->power_limit_mw < gpu->power_default_mw) {
        snprintf(remedy, sizeof remedy, "nvidia-smi -i %s -pl %u, as root, unless the cap is intended", gpu->pci, full);
        ox_doctor_warn(doctor, remedy, "capped at %u of %u W; GEMMs run slower under load", limit, full);
    }
}

static void report_clocks(struct ox_doctor *doctor, const struct ox_nvml_gpu *gpu) {
    enum { HARDWARE = OX_NVML_BY_HARDWARE | OX_NVML_BY_POWER_BRAKE };
    char text[5][16], remedy[OX_DOCTOR_TEXT_BYTES];
    const uint32_t held = known(gpu->held) ? gpu->held : 0;
    ox_doctor_add(doctor, "clocks", "processors %s of %s MHz, memory %s of %s MHz, %s degrees%s",
                  number(gpu->sm_mhz, text[0]), number(gpu->sm_mhz_max, text[1]), number(gpu->memory_mhz, text[2]),
                  number(gpu->memory_mhz_max, text[3]), number(gpu->temperature_c, text[4]),
                  held & OX_NVML_IDLE ? ", idle" : held & OX_NVML_BY_POWER_CAP ? ", at the power limit" : "");
    if (held & (OX_NVML_BY_HEAT | OX_NVML_BY_HARDWARE_HEAT)) {
        ox_doctor_warn(doctor, "check fans, dust and airflow",
                       "the GPU is throttled because of heat");
    } else if (held & HARDWARE) {
        ox_doctor_warn(doctor, "check the power supply and the card's cables",
                       "the hardware throttles the GPU: power or heat");
    } else if (held & OX_NVML_BY_SETTING) {
        snprintf(remedy, sizeof remedy, "nvidia-smi -i %s -rac, and -rgc, as root, unless the setting is intended",
                 gpu->pci);
        ox_doctor_warn(doctor, remedy, "its clocks are limited by a setting");
    }
}

static void report_health(struct ox_doctor *doctor, const struct ox_nvml_gpu *gpu) {
    char remedy[OX_DOCTOR_TEXT_BYTES];
    if (!known(gpu->ecc)) {
        ox_doctor_add(doctor, "memory errors", "not detected: this GPU has no ECC");
        return;
    }
    const uint32_t error_count = known(gpu->ecc_errors) ? gpu->ecc_errors : 0;
    ox_doctor_add(doctor, "memory errors", "ECC is %s; %u uncorrected since the driver started",
                  gpu->ecc == 1 ? "on" : "off", error_count);
    if (known(gpu->rows_failed) && gpu->rows_failed != 0) {
        ox_doctor_warn(doctor, "have the card replaced", "memory rows failed and no spare rows are left");
    } else if (known(gpu->rows_pending) && gpu->rows_pending != 0) {
        snprintf(remedy, sizeof remedy, "nvidia-smi -i %s -r, as root, while nothing runs, or reboot", gpu->pci);
        ox_doctor_warn(doctor, remedy, "failed memory rows need a reset to be replaced by spares");
    } else if (error_count > 0) {
        ox_doctor_warn(doctor, "look for Xid in the kernel log; have the card replaced if it happens again",
                       "%u uncorrected memory error%s: results computed since the driver started may be wrong",
                       error_count, ox_plural(error_count));
    } else if (gpu->ecc != 1) {
        snprintf(remedy, sizeof remedy, "nvidia-smi -i %s -e 1, as root, and reboot", gpu->pci);
        ox_doctor_warn(doctor, remedy, "ECC is off: bit flips in its memory go unnoticed");
    }
}

/* Reports the CPUs and the memory node next to the GPU, and whether this process may use them. */
static void report_numa(struct ox_doctor *doctor, const struct ox_nvml_gpu *gpu) {
    char beside[96], nodes[48] = "", remedy[OX_DOCTOR_TEXT_BYTES], ours_text[96];
    cpu_set_t near, ours, both;
    CPU_ZERO(&near);
    CPU_ZERO(&ours);
    for (int i = 0; i < OX_NVML_CPUS_MAX && i < CPU_SETSIZE; i++) {
        if (gpu->cpus[i / 64] >> i % 64 & 1) {
            CPU_SET(i, &near);
        }
    }
    if (CPU_COUNT(&near) == 0 || sched_getaffinity(0, sizeof ours, &ours) != 0) {
        ox_doctor_add(doctor, "NUMA", "not reported by the driver");
        return;
    }
    const int node = gpu->nodes != 0 ? __builtin_ctzll(gpu->nodes) : -1;
    ox_doctor_cpus_text(&near, beside, sizeof beside);
    ox_doctor_cpus_text(&ours, ours_text, sizeof ours_text);
    if (node >= 0) {
        snprintf(nodes, sizeof nodes, "node %d, ", node);
        snprintf(remedy, sizeof remedy, "numactl --cpunodebind=%d --membind=%d offload ...", node, node);
    } else {
        snprintf(remedy, sizeof remedy, "taskset -c %s offload ...", beside);
    }
    ox_doctor_add(doctor, "NUMA", "%sCPUs %s", nodes, beside);
    CPU_AND(&both, &near, &ours);
    if (CPU_COUNT(&both) == 0) {
        ox_doctor_warn(doctor, remedy, "no CPU that this process may use (%s) is close to the GPU", ours_text);
    } else if (node >= 0 && numa_available() >= 0) {
        struct bitmask *const allowed = numa_get_mems_allowed();
        if (allowed != NULL && numa_bitmask_isbitset(allowed, (unsigned)node) == 0) {
            ox_doctor_warn(doctor, remedy, "this process may not use memory of node %d, which is close to the GPU",
                           node);
        }
        numa_bitmask_free(allowed);
    }
}

void ox_doctor_gpu_state(struct ox_doctor *doctor, const struct ox_nvml_gpu *gpu) {
    report_memory_use(doctor, gpu);
    report_modes(doctor, gpu);
    report_link(doctor, gpu);
    report_power(doctor, gpu);
    report_clocks(doctor, gpu);
    report_health(doctor, gpu);
    report_numa(doctor, gpu);
}
