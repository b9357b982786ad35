/* Opening the CUDA device: every failure is reported in one line that names the thing and the remedy; and the program
 * and the plugin check that they were built alike. */
#include "base/bytes.h"
#include "base/file.h"
#include "tests/kit/device/simt_kit.h"

#include <dlfcn.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PATH_BYTES = PATH_MAX + 64 };

static const struct simt *simt;

/* Checks that the last error is one line with all of these words. */
static bool tells(const char *thing, const char *place, const char *remedy) {
    const char *const text = ox_error_text();
    const bool good = strchr(text, '\n') == NULL && strncmp(text, "GPU", 3) == 0 && strstr(text, thing) != NULL &&
                      strstr(text, place) != NULL && strstr(text, remedy) != NULL;
    if (!good) {
        printf("not as it should be: %s\n", text);
    }
    return good;
}

static enum ox_status open_at(const char *path, uint32_t idx) {
    struct ox_device *device = NULL;
    const struct ox_cuda_config config = {.plugin_path = path, .device_idx = idx};
    const enum ox_status status = ox_cuda_device_open(&config, &device);
    CHECK((device != NULL) == (status == OX_OK));
    ox_device_close(&device);
    CHECK(simt->device_bytes() == 0);
    return status;
}

static void test_no_plugin(void) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/liboffload_cuda.so", test_folder());
    CHECK(open_at(path, 0) == OX_E_DEVICE && tells("No such file", path, "make cuda=1"));
    FILE *const file = fopen(path, "w");
    CHECK(file != NULL && fputs("text\n", file) >= 0 && fclose(file) == 0);
    CHECK(open_at(path, 0) == OX_E_DEVICE && tells("does not open", path, "make cuda=1"));
    CHECK(open_at("libm.so.6", 0) == OX_E_DEVICE && tells("no plugin of offload", "libm.so.6", "make cuda=1"));
}

/* A plugin that was built with another version of the program, or whose tables have other sizes: the emulated one,
 * changed in memory, under a name by which it has not been opened. */
static void test_versions(void) {
    char link[PATH_BYTES];
    uint32_t *const numbers[] = {&simt->plugin->version, &simt->plugin->ops_bytes, &simt->plugin->device_bytes};
    snprintf(link, sizeof link, "%s/other.so", test_folder());
    CHECK(symlink(simt->kit.plugin, link) == 0);
    const uintptr_t page = (uintptr_t)simt->plugin / 4096 * 4096;
    CHECK(mprotect((void *)page, 2 * 4096, PROT_READ | PROT_WRITE) == 0);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        *numbers[i] += 8;
        CHECK(open_at(link, 0) == OX_E_DEVICE && tells("another version", link, "`make`"));
        *numbers[i] -= 8;
    }
    CHECK(open_at(link, 0) == OX_OK);
}

static void test_machines(void) {
    const char *const path = simt->kit.plugin;
    simt->set_machine(0, 0);
    CHECK(open_at(path, 0) == OX_E_DEVICE && tells("no NVIDIA driver", "nvidia-smi", "--device cpu"));
    simt->set_machine(1, 12040);
    CHECK(open_at(path, 0) == OX_E_DEVICE && tells("CUDA 12.4", "13.0", "update the driver"));
    simt->set_machine(0, 13000);
    CHECK(open_at(path, 0) == OX_E_DEVICE && tells("shows no device", "no CUDA-capable", "CUDA_VISIBLE_DEVICES"));
    simt->set_machine(1, 13000);
    CHECK(open_at(path, 1) == OX_E_DEVICE && tells("GPU 1", "there is 1", "counted from 0"));
    simt->set_machine(2, 13000);
    CHECK(open_at(path, 1) == OX_OK && open_at(path, 2) == OX_E_DEVICE);
    CHECK(tells("GPU 2", "there are 2", "counted from 0"));
    simt->set_machine(1, 13000);
    simt->set_capability(70);
    CHECK(open_at(path, 0) == OX_E_DEVICE && tells("emulated", "7.0", "--device cpu"));
    simt->set_capability(80);
    CHECK(open_at(path, 0) == OX_OK);
    simt->set_capability(90);
}

static void test_memory(void) {
    struct ox_device *device = NULL, *other = NULL;
    struct ox_cuda_device_info facts;
    const struct ox_cuda_config config = {.plugin_path = simt->kit.plugin};
    void *memory = NULL, *more = &memory;
    REQUIRE_OK(ox_cuda_device_open(&config, &device));
    REQUIRE_OK(ox_cuda_device_query(device, &facts));
    CHECK(facts.free_bytes == facts.memory_bytes - OX_CUDA_WORKSPACE_BYTES);
    CHECK(ox_device_mem_open(device, 3 * OX_GIB, &more) == OX_E_NOMEM && more == NULL);
    CHECK(tells("3.00 GiB of device memory", "992 MiB of 1.00 GiB are free", "--device-mem"));
    /* All but 2 KiB: the request fits, but not once it is rounded up to a page. */
    REQUIRE_OK(ox_device_mem_open(device, facts.free_bytes - 2048, &memory));
    CHECK(ox_device_mem_open(device, 1024, &more) == OX_E_NOMEM && more == NULL);
    CHECK(tells("GPU 0: ", "2.00 KiB of 1.00 GiB are free", "--device-mem"));
    CHECK(ox_cuda_device_open(&config, &other) == OX_E_NOMEM && other == NULL);
    CHECK(tells("32.0 MiB of device memory", "are free", "end what else uses the GPU"));
    ox_device_mem_close(device, memory, facts.free_bytes - 2048);
    ox_device_close(&device);
    CHECK(simt->device_bytes() == 0);
}

static void test_pins(void) {
    struct ox_device *device = NULL;
    unsigned char *const host = aligned_alloc(4096, 4 * 4096);
    REQUIRE_OK(ox_cuda_device_open(&(struct ox_cuda_config){.plugin_path = simt->kit.plugin}, &device));
    simt->set_pinnable(4096);
    CHECK(ox_device_host_pin(device, host, 3 * 4096) == OX_E_NOMEM);
    CHECK(tells("pinning 12.0 KiB of host memory", "out of memory", "ulimit -l"));
    simt->set_pinnable(SIZE_MAX);
    simt->set_host_pointer(false);
    CHECK(ox_device_host_pin(device, host, 4096) == OX_E_DEVICE);
    CHECK(tells("emulated", "host's addresses", "--device cpu"));
    simt->set_host_pointer(true);
    REQUIRE_OK(ox_device_host_pin(device, host, 4097));
    CHECK(ox_device_host_pin(device, host + 4096, 4096) == OX_E_DEVICE && tells("pinning", "already", ""));
    REQUIRE_OK(ox_device_host_unpin(device, host, 4097));
    CHECK(ox_device_host_unpin(device, host, 4097) == OX_E_DEVICE && tells("unpinning host memory", "", ""));
    ox_device_close(&device);
    free(host);
}

/* The plugin of this build, whose tables must fit the program's; it opens without a driver and says so. */
static void test_real(void) {
    struct cuda_kit kit;
    struct ox_cuda_plugin_info about;
    test_build_path("liboffload_cuda.so", kit.plugin);
    if (access(kit.plugin, R_OK) != 0) {
        printf("this build has no plugin\n");
        return;
    }
    REQUIRE_OK(ox_cuda_plugin_query(kit.plugin, &about));
    void *const library = dlopen(kit.plugin, RTLD_NOW | RTLD_NOLOAD);
    const struct ox_cuda_plugin *const plugin = library == NULL ? NULL : dlsym(library, "ox_cuda_plugin");
    CHECK(plugin != NULL && plugin != simt->plugin && plugin->version == OX_CUDA_PLUGIN_VERSION);
    CHECK(plugin != NULL && plugin->ops_bytes == sizeof(struct ox_ops));
    CHECK(plugin != NULL && plugin->device_bytes == sizeof(struct ox_device_ops));
    const struct ox_cuda_plugin *const both[] = {plugin, simt->plugin};
    for (int i = 0; i < 2 && plugin != NULL; i++) {
        struct ox_ops ops;
        const void *entries[sizeof ops / sizeof(void *)], *device_entries[sizeof *plugin->device_ops / sizeof(void *)];
        memset(&ops, 0, sizeof ops);
        both[i]->ops_init(&ops);
        memcpy(entries, &ops, sizeof ops);
        memcpy(device_entries, both[i]->device_ops, sizeof *plugin->device_ops);
        for (size_t j = 0; j < sizeof entries / sizeof entries[0]; j++) {
            CHECK(entries[j] != NULL);
        }
        for (size_t j = 0; j < sizeof device_entries / sizeof device_entries[0]; j++) {
            CHECK(device_entries[j] != NULL);
        }
    }
    struct ox_device *device = NULL;
    const enum ox_status status = ox_cuda_device_open(&(struct ox_cuda_config){.plugin_path = kit.plugin}, &device);
    CHECK(about.device_count > 0 || (status == OX_E_DEVICE && tells("", "", "") &&
                                     strcmp(ox_error_text(), about.why_none) == 0));
    ox_device_close(&device);
}

int main(void) {
    simt = simt_open();
    test_no_plugin();
    test_versions();
    test_machines();
    test_memory();
    test_pins();
    test_real();
    return test_end();
}
