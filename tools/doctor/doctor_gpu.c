/* Reports the NVIDIA driver, the CUDA plugin, its libraries, and each GPU as CUDA and NVML see it; all are loaded at
 * run time. NVML is read before a device is opened, so that the processes it lists are other programs. */
#include "tools/doctor/doctor.h"

#include "base/bytes.h"
#include "kernels/cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>

struct survey {
    const struct ox_doctor_gpu_paths *paths;
    bool nvml_absent, nvml_answers, plugin_opens;
    char driver[96];
    char nvml_error[OX_DOCTOR_TEXT_BYTES / 2], plugin_error[OX_DOCTOR_TEXT_BYTES];
    struct ox_cuda_plugin_info about;
    uint32_t gpu_count; /* listed by NVML */
    struct ox_nvml_gpu gpus[OX_DOCTOR_GPUS_MAX];
    char gpu_errors[OX_DOCTOR_GPUS_MAX][OX_DOCTOR_TEXT_BYTES]; /* "": read without error */
    bool reported[OX_DOCTOR_GPUS_MAX];
};

static void keep_error(char *text, size_t text_bytes) {
    snprintf(text, text_bytes, "%s", ox_error_text());
}

/* Reads what NVML and the CUDA plugin report, before any device is opened. */
static void read_all(struct survey *survey) {
    struct ox_nvml *nvml = NULL;
    if (ox_nvml_open(survey->paths->nvml, &nvml, &survey->nvml_absent) == OX_OK) {
        survey->nvml_answers = true;
        snprintf(survey->driver, sizeof survey->driver, "%s", ox_nvml_driver_version(nvml));
        survey->gpu_count = (uint32_t)ox_min_u64(ox_nvml_gpu_count(nvml), OX_DOCTOR_GPUS_MAX);
        for (uint32_t i = 0; i < survey->gpu_count; i++) {
            if (ox_nvml_read(nvml, i, &survey->gpus[i]) != OX_OK) {
                keep_error(survey->gpu_errors[i], sizeof survey->gpu_errors[i]);
            }
        }
    } else {
        keep_error(survey->nvml_error, sizeof survey->nvml_error);
    }
    ox_nvml_close(&nvml);
    survey->plugin_opens = ox_cuda_plugin_query(survey->paths->plugin, &survey->about) == OX_OK;
    if (!survey->plugin_opens) {
        keep_error(survey->plugin_error, sizeof survey->plugin_error);
    }
}

/* Adds the single item of a machine without a usable GPU. A driver that is present but broken gets a warning. */
static void report_none(struct ox_doctor *doctor, const struct survey *survey) {
    const char *const without = survey->plugin_opens ? "" : ", nor a CUDA plugin";
    if (survey->nvml_answers) {
        ox_doctor_add(doctor, "GPU", "none: the NVIDIA driver %s lists no device; runs use the CPU",
                      survey->driver);
    } else if (survey->plugin_opens && survey->about.driver_version > 0) {
        ox_doctor_add(doctor, "GPU", "none: %.400s; runs use the CPU", survey->about.why_none);
        ox_doctor_warn(doctor,
                       survey->about.driver_version < survey->about.runtime_version
                           ? "update the NVIDIA driver, or build with the toolkit of its version"
                           : "see nvidia-smi; start a container with --gpus all",
                       "the driver is installed, but no GPU can be used");
    } else if (!survey->nvml_absent) {
        ox_doctor_add(doctor, "GPU", "none: %.400s; runs use the CPU", survey->nvml_error);
        ox_doctor_warn(doctor, "see nvidia-smi and the kernel log", "the driver's library is installed, but does not "
                       "find its driver");
    } else {
        ox_doctor_add(doctor, "GPU", "none: no NVIDIA driver (no libnvidia-ml.so.1)%s; runs use the CPU", without);
    }
}

static void report_driver(struct ox_doctor *doctor, const struct survey *survey) {
    char cuda[48] = "";
    if (survey->about.driver_version > 0) {
        snprintf(cuda, sizeof cuda, "for CUDA %u.%u", survey->about.driver_version / 1000,
                 survey->about.driver_version % 1000 / 10);
    }
    if (survey->nvml_answers) {
        ox_doctor_add(doctor, "NVIDIA driver", "%s%s%s", survey->driver, cuda[0] != '\0' ? ", " : "", cuda);
    } else {
        ox_doctor_add(doctor, "NVIDIA driver", "%s", cuda);
        ox_doctor_warn(doctor, "give the container NVIDIA_DRIVER_CAPABILITIES=compute,utility, or repair the driver",
                       "link, power, temperature and other processes are unknown: %s", survey->nvml_error);
    }
}

static void report_plugin(struct ox_doctor *doctor, const struct survey *survey) {
    const struct ox_cuda_plugin_info *const about = &survey->about;
    if (!survey->plugin_opens) {
        ox_doctor_add(doctor, "CUDA plugin", "none; runs use the CPU");
        ox_doctor_warn(doctor,
                       "build it with `make cuda=1` on a machine with the CUDA toolkit, and put it beside the program",
                       "%s", survey->plugin_error);
        return;
    }
    ox_doctor_add(doctor, "CUDA plugin", "%.300s, for %s", about->path, about->built_for);
    if (about->device_count == 0) {
        const char *const visible = getenv("CUDA_VISIBLE_DEVICES");
        char remedy[OX_DOCTOR_TEXT_BYTES];
        snprintf(remedy, sizeof remedy, "see nvidia-smi%s%.100s", visible != NULL ? "; CUDA_VISIBLE_DEVICES is " : "",
                 visible != NULL ? visible : "");
        ox_doctor_warn(doctor, remedy, "CUDA lists no device: %.400s", about->why_none);
    }
    ox_doctor_add(doctor, "CUDA runtime", "%u.%u", about->runtime_version / 1000, about->runtime_version % 1000 / 10);
    if (about->blas_version > 0) {
        ox_doctor_add(doctor, "cuBLASLt", "%u.%u.%u", about->blas_version / 10000, about->blas_version / 100 % 100,
                      about->blas_version % 100);
    } else if (about->device_count > 0) {
        ox_doctor_add(doctor, "cuBLASLt", "none; no GPU can be used without it");
        ox_doctor_warn(doctor, "install cuBLAS from the CUDA toolkit that the plugin was built with", "%s",
                       about->why_no_blas);
    }
}

/* Looks up a symbol and stores its address in a function pointer, without a cast that ISO C lacks; false when
 * absent. */
static bool find_symbol(void *library, const char *symbol, void *function) {
    void *const address = library != NULL ? dlsym(library, symbol) : NULL;
    memcpy(function, &address, sizeof address);
    return address != NULL;
}

static void report_nccl(struct ox_doctor *doctor) {
    void *const nccl = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    int (*nccl_version)(int *version);
    int version = 0;
    if (find_symbol(nccl, "ncclGetVersion", &nccl_version) && nccl_version(&version) == 0) {
        ox_doctor_add(doctor, "NCCL", "%d.%d.%d", version / 10000, version % 10000 / 100, version % 100);
    } else {
        ox_doctor_add(doctor, "NCCL", "none; a single GPU works without it");
    }
    if (nccl != NULL) {
        dlclose(nccl);
    }
}

/* ---- devices --------------------------------------------------------------------------------------- */

/* Tries to pin memory: only copies from pinned memory overlap with computing. */
static void report_pinning(struct ox_doctor *doctor, struct ox_device *device) {
    enum { TRIED_BYTES = 16 << 20 };
    char limit[OX_SIZE_TEXT_BYTES] = "no limit";
    struct rlimit lock = {.rlim_cur = RLIM_INFINITY};
    void *buffer = NULL;
    if (getrlimit(RLIMIT_MEMLOCK, &lock) == 0 && lock.rlim_cur != RLIM_INFINITY) {
        ox_size_text(lock.rlim_cur, limit);
    }
    ox_doctor_add(doctor, "pinned memory", "limit of locked memory: %s", limit);
    if (posix_memalign(&buffer, OX_IO_ALIGN_BYTES, TRIED_BYTES) != 0) {
        return;
    }
    if (ox_device_host_pin(device, buffer, TRIED_BYTES) != OX_OK ||
        ox_device_host_unpin(device, buffer, TRIED_BYTES) != OX_OK) {
        ox_doctor_warn(doctor, "ulimit -l unlimited; LimitMEMLOCK=infinity in a service; docker --ulimit memlock=-1",
                       "16 MiB could not be pinned: %.400s", ox_error_text());
    }
    free(buffer);
}

/* True when `built_for`, such as "sm_90", has machine code for a GPU: the same generation, and not newer. */
static bool has_code_for(const char *built_for, uint32_t capability) {
    for (const char *word = built_for; (word = strstr(word, "sm_")) != NULL; word++) {
        const unsigned long built = strtoul(word + 3, NULL, 10);
        if (built / 10 == capability / 10 && built <= capability) {
            return true;
        }
    }
    return strstr(built_for, "sm_") == NULL; /* the emulated device */
}

static void report_facts(struct ox_doctor *doctor, const struct survey *survey,
                         const struct ox_cuda_device_info *facts) {
    char memory[OX_SIZE_TEXT_BYTES], remedy[OX_DOCTOR_TEXT_BYTES];
    const uint32_t major = facts->capability / 10, minor = facts->capability % 10;
    ox_doctor_add(doctor, "device", "%.100s, %s, compute capability %u.%u, %u processors", facts->name,
                  ox_size_text(facts->memory_bytes, memory), major, minor, facts->processor_count);
    if (!has_code_for(survey->about.built_for, facts->capability)) {
        snprintf(remedy, sizeof remedy, "build with `make cuda=1 CUDA_ARCHS=%u`", facts->capability);
        ox_doctor_warn(doctor, remedy,
                       "the plugin has no machine code for %u.%u; the driver compiles it at the first start", major,
                       minor);
    }
    ox_doctor_add(doctor, "attention", "%s", facts->attention); /* by cuDNN, or the reason why not */
}

static void open_group(struct ox_doctor *doctor, const char *kind, uint32_t idx, uint32_t group_idx) {
    char *const text = doctor->gpu_groups[group_idx];
    snprintf(text, sizeof doctor->gpu_groups[0], "%s %u", kind, idx);
    doctor->group = text;
}

/* Reports a CUDA device, with what NVML says of the GPU in the same PCIe slot. */
static void report_device(struct ox_doctor *doctor, struct survey *survey, uint32_t idx) {
    struct ox_device *device = NULL;
    struct ox_cuda_device_info facts;
    const struct ox_cuda_config config = {.plugin_path = survey->paths->plugin, .device_idx = idx};
    open_group(doctor, "GPU", idx, idx);
    if (ox_cuda_device_open(&config, &device) != OX_OK || ox_cuda_device_query(device, &facts) != OX_OK) {
        ox_doctor_add(doctor, "device", "does not open");
        ox_doctor_warn(doctor, "check memory in use and compute mode with nvidia-smi, and the kernel log for Xid", "%s",
                       ox_error_text());
        ox_device_close(&device);
        return;
    }
    report_facts(doctor, survey, &facts);
    report_pinning(doctor, device);
    ox_device_close(&device);
    for (uint32_t i = 0; i < survey->gpu_count; i++) {
        if (survey->gpu_errors[i][0] == '\0' && strcasecmp(survey->gpus[i].pci, facts.pci) == 0) {
            ox_doctor_gpu_state(doctor, &survey->gpus[i]);
            survey->reported[i] = true;
        }
    }
}

/* Reports GPUs that NVML lists but CUDA does not show. */
static void report_unopened(struct ox_doctor *doctor, const struct survey *survey, uint32_t group_idx) {
    for (uint32_t i = 0; i < survey->gpu_count && group_idx < OX_DOCTOR_GPUS_MAX; i++) {
        if (survey->reported[i]) {
            continue;
        }
        open_group(doctor, "GPU of NVML", i, group_idx++);
        if (survey->gpu_errors[i][0] != '\0') {
            ox_doctor_add(doctor, "device", "does not answer");
            ox_doctor_warn(doctor, "look for Xid in the kernel log; reset the GPU or reboot", "%s",
                           survey->gpu_errors[i]);
            continue;
        }
        ox_doctor_add(doctor, "device", "%.90s at %s, not opened by CUDA", survey->gpus[i].name, survey->gpus[i].pci);
        ox_doctor_gpu_state(doctor, &survey->gpus[i]);
    }
}

void ox_doctor_gpu(struct ox_doctor *doctor, const struct ox_doctor_gpu_paths *paths) {
    doctor->group = "GPU";
    struct survey *const survey = calloc(1, sizeof *survey);
    if (survey == NULL) {
        ox_doctor_add(doctor, "GPU", "not examined: no memory for the report");
        return;
    }
    survey->paths = paths;
    read_all(survey);
    if (survey->gpu_count == 0 && survey->about.device_count == 0) {
        report_none(doctor, survey);
        free(survey);
        return;
    }
    report_driver(doctor, survey);
    report_plugin(doctor, survey);
    report_nccl(doctor);
    const uint32_t shown = (uint32_t)ox_min_u64(survey->about.device_count, OX_DOCTOR_GPUS_MAX);
    for (uint32_t i = 0; i < shown; i++) {
        report_device(doctor, survey, i);
    }
    report_unopened(doctor, survey, shown);
    free(survey);
}
