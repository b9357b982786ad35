#include "tests/kit/device/cuda_kit.h"

#include <stdio.h>
#include <stdlib.h>

void cuda_kit_emulated(struct cuda_kit *kit) {
    kit->name = "emulated";
    test_build_path("liboffload_simt.so", kit->plugin);
}

bool cuda_kit_real(struct cuda_kit *kit) {
    struct ox_device *device = NULL;
    struct ox_cuda_device_info info;
    kit->name = "GPU";
    test_build_path("liboffload_cuda.so", kit->plugin);
    const struct ox_cuda_config config = {.plugin_path = kit->plugin};
    enum ox_status status = ox_cuda_device_open(&config, &device);
    if (status == OX_OK) {
        status = ox_cuda_device_query(device, &info);
        ox_device_close(&device);
    }
    if (status == OX_OK) {
        printf("on %s\n", info.name);
        return true;
    }
    printf("not on a GPU: %s\n", ox_error_text());
    CHECK(getenv("OX_REQUIRE_GPU") == NULL);
    return false;
}
