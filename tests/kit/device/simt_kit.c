#include "tests/kit/device/simt_kit.h"

#include <dlfcn.h>
#include <string.h>

/* Copies the address into a pointer to a function without a cast that ISO C lacks. */
static void find(void *library, const char *name, void *out) {
    void *const address = dlsym(library, name);
    if (address == NULL) {
        printf("the emulated plugin has no %s\n", name);
        exit(1);
    }
    memcpy(out, &address, sizeof address);
}

const struct simt *simt_open(void) {
    static struct simt simt;
    struct ox_cuda_plugin_info about;
    cuda_kit_emulated(&simt.kit);
    REQUIRE_OK(ox_cuda_plugin_query(simt.kit.plugin, &about));
    void *const library = dlopen(simt.kit.plugin, RTLD_NOW | RTLD_NOLOAD);
    if (library == NULL) {
        printf("%s\n", dlerror());
        exit(1);
    }
    find(library, "ox_cuda_plugin", &simt.plugin);
    find(library, "simt_fail_after", &simt.fail_after);
    find(library, "simt_break_after", &simt.break_after);
    find(library, "simt_set_machine", &simt.set_machine);
    find(library, "simt_set_capability", &simt.set_capability);
    find(library, "simt_set_pinnable", &simt.set_pinnable);
    find(library, "simt_set_host_pointer", &simt.set_host_pointer);
    find(library, "simt_set_nccl", &simt.set_nccl);
    find(library, "simt_nccl_calls", &simt.nccl_calls);
    find(library, "simt_set_seed", &simt.set_seed);
    find(library, "simt_set_delay", &simt.set_delay);
    find(library, "simt_guard", &simt.guard);
    find(library, "simt_count", &simt.count);
    find(library, "simt_device_bytes", &simt.device_bytes);
    find(library, "simt_cudnn_is_there", &simt.cudnn_is_there);
    find(library, "simt_cudnn_run_count", &simt.cudnn_run_count);
    return &simt;
}
