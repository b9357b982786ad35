/* What holds a GPU back though it works: a narrow link, a cap, heat, others on it, ailing memory, the wrong CPUs. */
#include "tools/doctor/doctor.h"

#include "base/bytes.h"

#include <numa.h>
#include <stdio.h>

/* "?" for what is not told. */
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

static void report_users(struct ox_doctor *doctor, const struct ox_nvml_gpu *gpu) {
    char total[OX_SIZE_TEXT_BYTES], used[OX_SIZE_TEXT_BYTES], held[OX_SIZE_TEXT_BYTES];
    ox_size_text(gpu->process_bytes, held);
    if (gpu->memory_bytes > 0) {
        ox_doctor_add(doctor, "memory", "%s, %s in use", ox_size_text(gpu->memory_bytes, total),
                      ox_size_text(gpu->memory_used_bytes, used));
    } else {
        ox_doctor_add(doctor, "memory", "not told by the driver");
    }
    if (known(gpu->process_count) && gpu->process_count > 0) {
        ox_doctor_warn(doctor, "end them (nvidia-smi lists them), or give --device-mem less",
                       "%u process%s on this GPU already, with %s of its memory", gpu->process_count,
                       gpu->process_count == 1 ? "" : "es", held);
    } else if (gpu->memory_used_bytes > gpu->memory_bytes / 8) {
        ox_doctor_warn(doctor, "look at nvidia-smi for what is drawn or computed there, or give --device-mem less",
                       "%s of its memory are in use, by no process that can be seen from here", used);
    }
}

static void report_modes(struct ox_doctor *doctor, const struct ox_nvml_gpu *gpu) {
    static const char *const modes[] = {[OX_NVML_SHARED] = "shared", [OX_NVML_ONE_THREAD] = "one thread",
                                        [OX_NVML_PROHIBITED] = "prohibited", [OX_NVML_ONE_PROCESS] = "one process"};
    char remedy[OX_DOCTOR_TEXT_BYTES];
    ox_doctor_add(doctor, "mode", "%s%s",
                  gpu->compute_mode < sizeof modes / sizeof modes[0] ? modes[gpu->compute_mode] : "not told",
                  gpu->mig == 1 ? ", divided (MIG)" : "");
    if (gpu->compute_mode == OX_NVML_PROHIBITED) {
        snprintf(remedy, sizeof remedy, "nvidia-smi -i %s -c DEFAULT, as root", gpu->pci);
        ox_doctor_warn(doctor, remedy, "its compute mode lets no process in");
    } else if (gpu->compute_mode == OX_NVML_ONE_PROCESS && known(gpu->process_count) && gpu->process_count > 0) {
        ox_doctor_warn(doctor, "end that process (nvidia-smi lists it), or use another GPU",
                       "its compute mode lets one process in, and that is there already");
    } else if (gpu->mig == 1) {
        snprintf(remedy, sizeof remedy, "nvidia-smi -i %s -mig 0, as root, for the whole GPU", gpu->pci);
        ox_doctor_warn(doctor, remedy, "the GPU is divided (MIG); a run sees one part of it");
    }
}

/* The generation is judged where the GPU is at work: an idle link sleeps. */
static void report_link(struct ox_doctor *doctor, const struct ox_nvml_gpu *gpu) {
    char text[4][16];
    if (!known(gpu->pcie_width) || !known(gpu->pcie_generation)) {
        ox_doctor_add(doctor, "PCIe", "not told by the driver");
        return;
    }
    const bool works = known(gpu->held) && (gpu->held & OX_NVML_IDLE) == 0;
    ox_doctor_add(doctor, "PCIe", "generation %s x%s%s; generation %s x%s is possible here",
                  number(gpu->pcie_generation, text[0]), number(gpu->pcie_width, text[1]), works ? "" : " (idle)",
                  number(gpu->pcie_generation_max, text[2]), number(gpu->pcie_width_max, text[3]));
    if (known(gpu->pcie_width_max) && gpu->pcie_width < gpu->pcie_width_max) {
        ox_doctor_warn(doctor, "reseat the card and its riser; look how the firmware divides the slot's lanes",
                       "the link has %u of %u lanes, so weights travel %u times slower", gpu->pcie_width,
                       gpu->pcie_width_max, gpu->pcie_width > 0 ? gpu->pcie_width_max / gpu->pcie_width : 0);
    } else if (works && known(gpu->pcie_generation_max) && gpu->pcie_generation < gpu->pcie_generation_max) {
        ox_doctor_warn(doctor, "look at the speed of the slot in the firmware, and at risers and cables",
                       "the link runs at generation %u of %u though the GPU is at work", gpu->pcie_generation,
                       gpu->pcie_generation_max);
    } else if (known(gpu->pcie_generation_gpu) && known(gpu->pcie_generation_max) &&
               gpu->pcie_generation_max < gpu->pcie_generation_gpu) {
        ox_doctor_warn(doctor, "use a slot of the processor at full speed (the firmware sets it), if the board has one",
                       "the GPU could use generation %u, this slot gives %u", gpu->pcie_generation_gpu,
                       gpu->pcie_generation_max);
    }
}

static void report_power(struct ox_doctor *doctor, const struct ox_nvml_gpu *gpu) {
    char remedy[OX_DOCTOR_TEXT_BYTES];
    if (!known(gpu->power_limit_mw)) {
        ox_doctor_add(doctor, "power", "not told by the driver");
        return;
    }
    const unsigned limit = gpu->power_limit_mw / 1000, full = gpu->power_default_mw / 1000;
    if (known(gpu->power_mw)) {
        ox_doctor_add(doctor, "power", "%u W, limit %u W", gpu->power_mw / 1000, limit);
    } else {
        ox_doctor_add(doctor, "power", "limit %u W", limit);
    }
    if (known(gpu->power_default_mw) && gpu->power_limit_mw < gpu->power_default_mw) {
        snprintf(remedy, sizeof remedy, "nvidia-smi -i %s -pl %u, as root, unless it is meant", gpu->pci, full);
        ox_doctor_warn(doctor, remedy, "capped at %u of %u W; products run slower under load", limit, full);
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
        ox_doctor_warn(doctor, "look at the fans, the dust and the air around the card",
                       "the GPU slows itself down because of heat");
    } else if (held & HARDWARE) {
        ox_doctor_warn(doctor, "look at the power supply and the card's cables",
                       "the hardware slows the GPU down: power or heat");
    } else if (held & OX_NVML_BY_SETTING) {
        snprintf(remedy, sizeof remedy, "nvidia-smi -i %s -rac, and -rgc, as root, unless it is meant", gpu->pci);
        ox_doctor_warn(doctor, remedy, "its clocks are held by a setting");
    }
}

static void report_health(struct ox_doctor *doctor, const struct ox_nvml_gpu *gpu) {
    char remedy[OX_DOCTOR_TEXT_BYTES];
    if (!known(gpu->ecc)) {
        ox_doctor_add(doctor, "memory errors", "not corrected: this GPU has no ECC");
        return;
    }
    const uint32_t error_count = known(gpu->ecc_errors) ? gpu->ecc_errors : 0;
    ox_doctor_add(doctor, "memory errors", "ECC is %s; %u uncorrected since the driver started",
                  gpu->ecc == 1 ? "on" : "off", error_count);
    if (known(gpu->rows_failed) && gpu->rows_failed != 0) {
        ox_doctor_warn(doctor, "have the card replaced", "its memory has no spare rows left for those that failed");
    } else if (known(gpu->rows_pending) && gpu->rows_pending != 0) {
        snprintf(remedy, sizeof remedy, "nvidia-smi -i %s -r, as root, while nothing runs, or reboot", gpu->pci);
        ox_doctor_warn(doctor, remedy, "failed rows of its memory wait for a reset to be replaced");
    } else if (error_count > 0) {
        ox_doctor_warn(doctor, "look for Xid in the kernel log; have the card replaced if it comes again",
                       "%u uncorrected memory error%s: results of that time may be wrong", error_count,
                       error_count == 1 ? "" : "s");
    } else if (gpu->ecc != 1) {
        snprintf(remedy, sizeof remedy, "nvidia-smi -i %s -e 1, as root, and reboot", gpu->pci);
        ox_doctor_warn(doctor, remedy, "ECC is off: a flipped bit in its memory goes unseen");
    }
}

static void report_neighbours(struct ox_doctor *doctor, const struct ox_nvml_gpu *gpu) {
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
        ox_doctor_add(doctor, "NUMA", "not told by the driver");
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
        ox_doctor_warn(doctor, remedy, "none of the CPUs that may be used here (%s) is beside the GPU", ours_text);
    } else if (node >= 0 && numa_available() >= 0) {
        struct bitmask *const allowed = numa_get_mems_allowed();
        if (allowed != NULL && numa_bitmask_isbitset(allowed, (unsigned)node) == 0) {
            ox_doctor_warn(doctor, remedy, "memory of node %d, beside the GPU, may not be used here", node);
        }
        numa_bitmask_free(allowed);
    }
}

void ox_doctor_gpu_state(struct ox_doctor *doctor, const struct ox_nvml_gpu *gpu) {
    report_users(doctor, gpu);
    report_modes(doctor, gpu);
    report_link(doctor, gpu);
    report_power(doctor, gpu);
    report_clocks(doctor, gpu);
    report_health(doctor, gpu);
    report_neighbours(doctor, gpu);
}
