/* The CUDA plugins that tests run: the one on the emulated runtime of tests/simt, which is always there, and the real
 * one where there is a GPU. */
#ifndef OX_TESTS_CUDA_KIT_H
#define OX_TESTS_CUDA_KIT_H

#include "kernels/cuda.h"
#include "tests/kit/test.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct cuda_kit {
    const char *name;
    char plugin[PATH_MAX];
};

static inline void cuda_kit_emulated(struct cuda_kit *kit) {
    kit->name = "emulated";
    test_build_path("liboffload_simt.so", kit->plugin);
}

/* False, and a line that says why, where there is no GPU: a failure where the environment asks for one. */
static inline bool cuda_kit_real(struct cuda_kit *kit) {
    struct ox_device *device = NULL;
    struct ox_cuda_device_info facts;
    kit->name = "GPU";
    test_build_path("liboffload_cuda.so", kit->plugin);
    const struct ox_cuda_config config = {.plugin_path = kit->plugin};
    enum ox_status status = ox_cuda_device_open(&config, &device);
    if (status == OX_OK) {
        status = ox_cuda_device_query(device, &facts);
        ox_device_close(&device);
    }
    if (status == OX_OK) {
        printf("on %s\n", facts.name);
        return true;
    }
    printf("not on a GPU: %s\n", ox_error_text());
    CHECK(getenv("OX_REQUIRE_GPU") == NULL);
    return false;
}

#endif
