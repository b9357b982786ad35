/* What a process is said to take of a GPU: measured by NVML around the opening of the device, or the usual amount where
 * that says nothing. The GPU is emulated, and the NVML made up. */
#include "base/bytes.h"
#include "kernels/cuda.h"
#include "tests/kit/test.h"
#include "tests/simt/nvml.h"

#include <dlfcn.h>
#include <limits.h>

static char plugin[PATH_MAX];

static uint64_t looked(void) {
    const struct ox_cuda_config config = {.plugin_path = plugin};
    struct ox_cuda_device_info info;
    uint64_t bytes = 0;
    REQUIRE_OK(ox_cuda_device_look(&config, &info, &bytes));
    CHECK(info.memory_bytes == OX_GIB);
    return bytes;
}

int main(void) {
    char path[PATH_MAX];
    test_build_path("liboffload_simt.so", plugin);
    CHECK(looked() == OX_CUDA_PROCESS_BYTES); /* there is no NVML yet */
    test_build_path("fake/libnvidia-ml.so.1", path);
    void *const library = dlopen(path, RTLD_NOW | RTLD_LOCAL); /* from now on the loader knows it by its name */
    struct simt_nvml *const nvml = library == NULL ? NULL : dlsym(library, "simt_nvml");
    CHECK(nvml != NULL);
    if (nvml == NULL) {
        return test_end();
    }
    CHECK(looked() == OX_CUDA_PROCESS_BYTES); /* opening took nothing: the device was open before */
    nvml->growth_count = 1;
    nvml->growth_bytes = 300 * OX_MIB - 1;
    CHECK(looked() == 300 * OX_MIB + OX_CUDA_LATER_BYTES);
    nvml->growth_bytes = 20 * OX_GIB; /* of another process */
    CHECK(looked() == OX_CUDA_PROCESS_BYTES);
    nvml->growth_bytes = 300 * OX_MIB;
    nvml->gpus[0].pci[9] = '4'; /* another GPU */
    CHECK(looked() == OX_CUDA_PROCESS_BYTES);
    nvml->gpus[0].pci[9] = '0';
    CHECK(looked() == 300 * OX_MIB + OX_CUDA_LATER_BYTES);
    nvml->growth_count = 2; /* another process came meanwhile */
    CHECK(looked() == OX_CUDA_PROCESS_BYTES);
    nvml->growth_own_bytes = 200 * OX_MIB; /* but here the driver tells this one's part */
    CHECK(looked() == 200 * OX_MIB + OX_CUDA_LATER_BYTES);
    nvml->init_result = 9;
    CHECK(looked() == OX_CUDA_PROCESS_BYTES && nvml->open_count == 0);
    dlclose(library);
    return test_end();
}
