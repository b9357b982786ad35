/* GPUs in `offload doctor`: every warning, from an NVML with made-up answers and a plugin on the emulated runtime, both
 * in tests/simt; and the reason where there is no GPU. */
#include "kernels/cuda.h"
#include "tests/simt/nvml.h"
#include "tests/kit/test.h"
#include "tools/doctor/doctor.h"

#include <dlfcn.h>
#include <limits.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

static char nvml_path[PATH_MAX], plugin_path[PATH_MAX];
static struct simt_nvml *nvml;
static struct simt_nvml healthy;
static void (*set_machine)(int device_count, int driver_version);
static void (*set_capability)(int capability);
static void (*set_pinnable)(size_t bytes);
static void (*set_blas)(bool present);

static struct ox_doctor doctor;

/* Every warning has a remedy, and no text is cut off. */
static void run(const char *nvml_from, const char *plugin_from) {
    memset(&doctor, 0, sizeof doctor);
    ox_doctor_gpu(&doctor, &(struct ox_doctor_gpu_paths){.nvml = nvml_from, .plugin = plugin_from});
    for (uint32_t i = 0; i < doctor.count; i++) {
        const struct ox_doctor_item *const item = &doctor.items[i];
        CHECK((item->warning[0] != '\0') == (item->remedy[0] != '\0'));
        CHECK(strlen(item->value) > 0 && strlen(item->value) + 1 < sizeof item->value);
        CHECK(strlen(item->warning) + 1 < sizeof item->warning && strlen(item->remedy) + 1 < sizeof item->remedy);
    }
    CHECK(nvml->open_count == 0);
}

static const struct ox_doctor_item *find(const char *group, const char *name) {
    for (uint32_t i = 0; i < doctor.count; i++) {
        if (strcmp(doctor.items[i].group, group) == 0 && strcmp(doctor.items[i].name, name) == 0) {
            return &doctor.items[i];
        }
    }
    return NULL;
}

/* The item is there, and its three texts hold these; "" for a warning: there is none. */
static bool says(const char *group, const char *name, const char *value, const char *warning, const char *remedy) {
    const struct ox_doctor_item *const item = find(group, name);
    const bool right = item != NULL && strstr(item->value, value) != NULL &&
                       (warning[0] == '\0' ? item->warning[0] == '\0' : strstr(item->warning, warning) != NULL) &&
                       strstr(item->remedy, remedy) != NULL;
    if (!right) {
        printf("  %s, %s: \"%s\", warning \"%s\", remedy \"%s\"\n", group, name, item != NULL ? item->value : "absent",
               item != NULL ? item->warning : "", item != NULL ? item->remedy : "");
    }
    return right;
}

static uint32_t warning_count(void) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < doctor.count; i++) {
        count += doctor.items[i].warning[0] != '\0';
    }
    return count;
}

/* The first GPU with one thing changed, which the caller writes before. */
static bool state_says(const char *name, const char *value, const char *warning, const char *remedy) {
    run(nvml_path, plugin_path);
    const bool right = says("GPU 0", name, value, warning, remedy) && warning_count() == (warning[0] != '\0');
    *nvml = healthy;
    return right;
}

static void test_healthy(void) {
    run(nvml_path, plugin_path);
    CHECK(says("GPU", "NVIDIA driver", "580.65.06, for CUDA 13.0", "", ""));
    CHECK(says("GPU", "CUDA plugin", "liboffload_simt.so, for sm_90", "", ""));
    CHECK(says("GPU", "CUDA runtime", "13.0", "", "") && says("GPU", "cuBLASLt", "13.0.0", "", ""));
    CHECK(find("GPU", "NCCL") != NULL);
    CHECK(says("GPU 0", "device", "emulated, 1.00 GiB, compute capability 9.0, 2 processors", "", ""));
    CHECK(says("GPU 0", "attention", "own kernels: ", "", ""));
    CHECK(says("GPU 0", "pinned memory", "limit of locked memory: ", "", ""));
    CHECK(says("GPU 0", "memory", "1.00 GiB, 16.0 MiB in use", "", ""));
    CHECK(says("GPU 0", "mode", "shared", "", ""));
    CHECK(says("GPU 0", "PCIe", "generation 1 x16 (idle); up to generation 5 x16 here", "", ""));
    CHECK(says("GPU 0", "power", "87 W, limit 350 W", "", ""));
    CHECK(says("GPU 0", "clocks", "processors 345 of 1980 MHz, memory 2619 of 2619 MHz, 41 degrees, idle", "", ""));
    CHECK(says("GPU 0", "memory errors", "ECC is on; 0 uncorrected", "", ""));
    CHECK(warning_count() == 0);
}

static void test_users(void) {
    struct ox_nvml_gpu *const gpu = &nvml->gpus[0];
    gpu->process_count = 1;
    gpu->process_bytes = 1 << 20;
    CHECK(state_says("memory", "", "1 process already on this GPU, with 1.00 MiB", "nvidia-smi"));
    gpu->process_count = 3; /* one of them does not report it */
    gpu->process_bytes = 1 << 20;
    CHECK(state_says("memory", "", "3 processes already on this GPU, with 2.00 MiB", "--device-mem"));
    gpu->process_count = 1000;
    CHECK(state_says("memory", "", "1000 processes already on this GPU", ""));
    gpu->process_count = OX_NVML_UNKNOWN;
    gpu->memory_used_bytes = UINT64_C(1) << 29;
    CHECK(state_says("memory", "512 MiB in use", "512 MiB of its memory are in use by processes that are not visible",
                     "nvidia-smi"));
    gpu->memory_bytes = gpu->memory_used_bytes = 0;
    CHECK(state_says("memory", "not reported", "", ""));
    gpu->compute_mode = OX_NVML_PROHIBITED;
    CHECK(state_says("mode", "prohibited", "allows no process", "nvidia-smi -i 00000000:00:00.0 -c DEFAULT"));
    gpu->compute_mode = OX_NVML_ONE_PROCESS;
    CHECK(state_says("mode", "one process", "", ""));
    gpu->mig = 1;
    CHECK(state_says("mode", "shared, partitioned (MIG)", "one part of it", "-mig 0"));
    gpu->mig = gpu->compute_mode = OX_NVML_UNKNOWN;
    CHECK(state_says("mode", "not reported", "", ""));
    gpu->compute_mode = OX_NVML_ONE_PROCESS;
    gpu->process_count = 1;
    run(nvml_path, plugin_path);
    CHECK(says("GPU 0", "mode", "one process", "another process already uses it", "end that process"));
    *nvml = healthy;
}

static void test_speed(void) {
    struct ox_nvml_gpu *const gpu = &nvml->gpus[0];
    gpu->pcie_width = 4;
    CHECK(state_says("PCIe", "generation 1 x4", "4 of 16 lanes, so weights move 4 times slower", "reseat"));
    gpu->held = 0;
    gpu->pcie_generation = 3;
    CHECK(state_says("PCIe", "generation 3 x16; ", "at generation 3 of 5 although the GPU is busy", "firmware"));
    gpu->pcie_generation_max = 4;
    CHECK(state_says("PCIe", "up to generation 4 x16", "supports generation 5, this slot only 4", "slot"));
    gpu->pcie_generation_max = gpu->pcie_width_max = OX_NVML_UNKNOWN;
    CHECK(state_says("PCIe", "up to generation ? x?", "", ""));
    gpu->pcie_width = OX_NVML_UNKNOWN;
    CHECK(state_says("PCIe", "not reported", "", ""));
    gpu->power_limit_mw = 250000;
    CHECK(state_says("power", "limit 250 W", "capped at 250 of 350 W", "-pl 350"));
    gpu->power_mw = OX_NVML_UNKNOWN;
    CHECK(state_says("power", "limit 350 W", "", ""));
    gpu->power_limit_mw = OX_NVML_UNKNOWN;
    CHECK(state_says("power", "not reported", "", ""));
    gpu->pcie_generation = 5;
    gpu->held = OX_NVML_BY_POWER_CAP;
    CHECK(state_says("clocks", "at the power limit", "", ""));
    gpu->pcie_generation = 5;
    gpu->held = OX_NVML_BY_HARDWARE | OX_NVML_BY_HARDWARE_HEAT;
    CHECK(state_says("clocks", "", "because of heat", "fans"));
    gpu->pcie_generation = 5;
    gpu->held = OX_NVML_BY_POWER_BRAKE;
    CHECK(state_says("clocks", "", "the hardware throttles", "power supply"));
    gpu->held = OX_NVML_BY_SETTING | OX_NVML_IDLE;
    CHECK(state_says("clocks", ", idle", "limited by a setting", "-rac"));
    gpu->held = gpu->sm_mhz = gpu->temperature_c = OX_NVML_UNKNOWN;
    CHECK(state_says("clocks", "processors ? of 1980 MHz, memory 2619 of 2619 MHz, ? degrees", "", ""));
}

static void test_health(void) {
    struct ox_nvml_gpu *const gpu = &nvml->gpus[0];
    gpu->ecc = OX_NVML_UNKNOWN;
    CHECK(state_says("memory errors", "no ECC", "", ""));
    gpu->ecc = 0;
    CHECK(state_says("memory errors", "ECC is off", "go unnoticed", "-e 1"));
    gpu->ecc_errors = 1;
    CHECK(state_says("memory errors", "1 uncorrected", "1 uncorrected memory error:", "Xid"));
    gpu->ecc_errors = OX_NVML_UNKNOWN;
    CHECK(state_says("memory errors", "ECC is on", "", ""));
    gpu->rows_pending = 1;
    CHECK(state_says("memory errors", "", "need a reset", "-r, as root"));
    gpu->rows_failed = gpu->rows_pending = 1;
    CHECK(state_says("memory errors", "", "no spare rows are left", "replaced"));
    gpu->rows_pending = OX_NVML_UNKNOWN;
    CHECK(state_says("memory errors", "ECC is on", "", ""));
}

/* A CPU that this process may use; and the last of all that a mask can name, which it may not. */
static void test_neighbours(void) {
    struct ox_nvml_gpu *const gpu = &nvml->gpus[0];
    cpu_set_t ours;
    CPU_ZERO(&ours);
    CHECK(sched_getaffinity(0, sizeof ours, &ours) == 0);
    int first = 0;
    while (first < CPU_SETSIZE - 1 && !CPU_ISSET(first, &ours)) {
        first++;
    }
    char text[64];
    CHECK(state_says("NUMA", "not reported", "", ""));
    gpu->cpus[first / 64] = UINT64_C(1) << first % 64;
    snprintf(text, sizeof text, "CPUs %d", first);
    CHECK(state_says("NUMA", text, "", ""));
    gpu->cpus[15] = UINT64_C(1) << 63;
    CHECK(state_says("NUMA", "CPUs 1023", "no CPU that this process may use", "taskset -c 1023"));
    gpu->cpus[15] = UINT64_C(1) << 63;
    gpu->nodes = 2;
    CHECK(state_says("NUMA", "node 1, CPUs 1023", "is close to the GPU", "numactl --cpunodebind=1 --membind=1"));
    gpu->cpus[first / 64] = UINT64_C(1) << first % 64;
    gpu->nodes = UINT64_C(1) << 63; /* no machine here has that many */
    CHECK(state_says("NUMA", "node 63, CPUs", "may not use memory of node 63, which is close to the GPU",
                     "--membind=63"));
}

/* CUDA's information about a device. */
static void test_devices(void) {
    set_capability(86);
    CHECK(state_says("device", "compute capability 8.6", "no machine code for 8.6", "CUDA_ARCHS=86"));
    set_capability(100);
    CHECK(state_says("device", "compute capability 10.0", "no machine code for 10.0", "CUDA_ARCHS=100"));
    set_capability(75);
    run(nvml_path, plugin_path);
    CHECK(says("GPU 0", "device", "does not open", "8.0 (Ampere) is the least", "nvidia-smi"));
    CHECK(says("GPU of NVML 0", "device", "Emulated GPU at 00000000:00:00.0, not opened by CUDA", "", ""));
    set_capability(90);
    set_pinnable(1 << 20);
    CHECK(state_says("pinned memory", "limit of locked memory", "16 MiB could not be pinned", "ulimit -l unlimited"));
    set_pinnable(SIZE_MAX);

    /* Two devices in one slot, as the emulation has them; a third GPU that CUDA does not show; one that is lost. */
    set_machine(2, 13000);
    nvml->gpu_count = 3;
    nvml->gpus[1] = nvml->gpus[2] = nvml->gpus[0];
    snprintf(nvml->gpus[1].pci, sizeof nvml->gpus[1].pci, "00000000:C1:00.0");
    nvml->handle_results[2] = 15;
    run(nvml_path, plugin_path);
    CHECK(find("GPU 0", "PCIe") != NULL && find("GPU 1", "PCIe") != NULL && find("GPU of NVML 0", "device") == NULL);
    CHECK(says("GPU of NVML 1", "device", "at 00000000:C1:00.0, not opened", "", ""));
    CHECK(says("GPU of NVML 1", "PCIe", "x16", "", ""));
    CHECK(says("GPU of NVML 2", "device", "does not answer", "GPU is lost", "Xid"));
    set_machine(1, 13000);
    *nvml = healthy;
}

/* A driver without a plugin, and the other way round. */
static void test_halves(void) {
    run(nvml_path, "/nonexistent/liboffload_cuda.so");
    CHECK(says("GPU", "NVIDIA driver", "580.65.06", "", ""));
    CHECK(says("GPU", "CUDA plugin", "none", "the plugin does not open", "make cuda=1"));
    CHECK(says("GPU of NVML 0", "PCIe", "x16", "", "") && find("GPU 0", "device") == NULL);

    set_machine(0, 13000);
    setenv("CUDA_VISIBLE_DEVICES", "none", 1);
    run(nvml_path, plugin_path);
    CHECK(says("GPU", "CUDA plugin", "liboffload_simt.so", "CUDA lists no device", "CUDA_VISIBLE_DEVICES is none"));
    unsetenv("CUDA_VISIBLE_DEVICES");
    set_machine(1, 13000);

    set_blas(false);
    run(nvml_path, plugin_path);
    CHECK(says("GPU", "cuBLASLt", "none", "cuBLASLt does not open", "install cuBLAS"));
    CHECK(says("GPU 0", "device", "does not open", "cuBLASLt does not open", ""));
    set_blas(true);

    run("/nonexistent/libnvidia-ml.so.1", plugin_path);
    CHECK(says("GPU", "NVIDIA driver", "for CUDA 13.0", "link, power, temperature", "NVIDIA_DRIVER_CAPABILITIES"));
    CHECK(find("GPU 0", "device") != NULL && find("GPU 0", "PCIe") == NULL && warning_count() == 1);
}

/* One line that says why. */
static bool one_line(const char *value, const char *warning, const char *remedy) {
    const bool right = says("GPU", "GPU", value, warning, remedy) && doctor.count == 1;
    *nvml = healthy;
    set_machine(1, 13000);
    return right;
}

static void test_none(void) {
    static const char nowhere[] = "/nonexistent/lib.so";
    run(nowhere, nowhere);
    CHECK(one_line("none: no NVIDIA driver (no libnvidia-ml.so.1), nor a CUDA plugin; runs use the CPU", "", ""));
    set_machine(0, 0);
    run(nowhere, plugin_path);
    CHECK(one_line("none: no NVIDIA driver (no libnvidia-ml.so.1); runs use the CPU", "", ""));
    set_machine(1, 12040);
    run(nowhere, plugin_path);
    CHECK(one_line("the driver is for CUDA 12.4 and this build needs 13.0", "no GPU can be used", "update"));
    set_machine(0, 13000);
    run(nowhere, plugin_path);
    CHECK(one_line("the driver shows no device", "no GPU can be used", "--gpus all"));
    nvml->gpu_count = 0;
    run(nvml_path, nowhere);
    CHECK(one_line("none: the NVIDIA driver 580.65.06 lists no device", "", ""));
    nvml->init_result = 9;
    run(nvml_path, nowhere);
    CHECK(one_line("Driver Not Loaded; load the driver (modprobe nvidia)", "does not find its driver", "nvidia-smi"));
    nvml->init_result = 18;
    run(nvml_path, nowhere);
    CHECK(one_line("version mismatch; reboot", "does not find its driver", "nvidia-smi"));
    nvml->count_result = 15;
    run(nvml_path, nowhere);
    CHECK(one_line("NVML: GPU is lost", "does not find its driver", ""));
    /* A library without the calls. */
    run(plugin_path, nowhere);
    CHECK(one_line("the library lacks nvmlInit_v2", "does not find its driver", ""));
}

int main(void) {
    test_build_path("fake/libnvidia-ml.so.1", nvml_path);
    test_build_path("liboffload_simt.so", plugin_path);
    /* Held open, so that the answers stay when the report closes its library. */
    void *const fake = dlopen(nvml_path, RTLD_NOW | RTLD_LOCAL), *const plugin = dlopen(plugin_path, RTLD_NOW);
    (void)dlopen("libnccl.so.2", RTLD_NOW); /* large; a report that finds it loaded is quick */
    if (fake == NULL || plugin == NULL) {
        printf("%s does not open; `make check` builds it\n", fake == NULL ? nvml_path : plugin_path);
        return 1;
    }
    nvml = dlsym(fake, "simt_nvml");
    *(void **)&set_machine = dlsym(plugin, "simt_set_machine");
    *(void **)&set_capability = dlsym(plugin, "simt_set_capability");
    *(void **)&set_pinnable = dlsym(plugin, "simt_set_pinnable");
    *(void **)&set_blas = dlsym(plugin, "simt_set_blas");
    CHECK(nvml != NULL && set_machine != NULL && set_capability != NULL && set_pinnable != NULL && set_blas != NULL);
    healthy = *nvml;
    unsetenv("CUDA_VISIBLE_DEVICES");
    test_healthy();
    test_users();
    test_speed();
    test_health();
    test_neighbours();
    test_devices();
    test_halves();
    test_none();
    return test_end();
}
