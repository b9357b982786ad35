/* The real cuDNN and our graphs of attention, without a GPU: it recognizes them, has an engine for them on each
 * architecture, names the engine's memory, and compiles its code. Tests on a GPU check what the code computes.
 *
 * The GPU is described, not present. cuDNN opens the driver's library all the same; where there is none, the toolkit's
 * stand-in for linking takes its place, which loads nothing. */
#include "kernels/cuda.h"
#include "kernels/cuda/cudnn.h"
#include "tests/kit/test.h"

#include <dlfcn.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

struct gpu {
    const char *name;
    unsigned version, processors, shared_bytes, head_dim_max; /* the last of a backward pass */
};
static const struct gpu gpus[] = {
    {"compute capability 8.0", 800, 108, 166912, 128},
    {"compute capability 9.0", 900, 132, 232448, 256},
    {"compute capability 10.0", 1000, 148, 232448, 128},
    {"compute capability 12.0", 1200, 170, 101376, 128},
};
enum { GPU_COUNT = sizeof gpus / sizeof gpus[0], JSON_BYTES = 1024 };

static const struct ox_attention_shape shapes[] = {
    {.batch = 2, .seq = 1024, .heads = 16, .kv_heads = 4, .head_dim = 128},
    {.batch = 1, .seq = 4096, .heads = 32, .kv_heads = 8, .head_dim = 128},
    {.batch = 2, .seq = 4096, .heads = 32, .kv_heads = 32, .head_dim = 128},
    {.batch = 1, .seq = 4096, .heads = 64, .kv_heads = 8, .head_dim = 128},
    {.batch = 8, .seq = 512, .heads = 14, .kv_heads = 2, .head_dim = 64},
    {.batch = 4, .seq = 1024, .heads = 12, .kv_heads = 12, .head_dim = 64},
    {.batch = 1, .seq = 2048, .heads = 8, .kv_heads = 1, .head_dim = 128, .window = 512},
    {.batch = 3, .seq = 577, .heads = 4, .kv_heads = 2, .head_dim = 80, .window = 100},
    {.batch = 1, .seq = 1300, .heads = 6, .kv_heads = 6, .head_dim = 72},
    {.batch = 2, .seq = 130, .heads = 4, .kv_heads = 1, .head_dim = 32, .window = 130},
    {.batch = 2, .seq = 7, .heads = 4, .kv_heads = 2, .head_dim = 8},
    {.batch = 1, .seq = 1000, .heads = 4, .kv_heads = 1, .head_dim = 256},
};
enum { SHAPE_COUNT = sizeof shapes / sizeof shapes[0] };

typedef void ask_fn(const struct ox_cudnn_question *, struct ox_cudnn_answer *);

static void describe(const struct gpu *gpu, char out[JSON_BYTES]) {
    snprintf(out, JSON_BYTES,
             "{\"cudaDeviceId\":0,\"deviceName\":\"%s\",\"deviceVer\":%u,\"driverVer\":13000,"
             "\"isTccDriver\":0,\"l2CacheSize\":41943040,\"maxBlockSize\":[1024,1024,64],\"maxCtasPerSM\":32,"
             "\"maxGridSize\":[2147483647,65535,65535],\"maxRegistersPerSM\":65536,"
             "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":%u,\"maxThreadsPerBlock\":1024,"
             "\"maxThreadsPerSM\":%u,\"memClockRateKHz\":1500000,\"multiProcessorCount\":%u,\"pciDeviceId\":0,"
             "\"regsPerBlock\":65536,\"reservedSharedMemoryPerBlock\":1024,\"smClockRateKHz\":1500000,"
             "\"supportCoopLaunch\":1,\"totalGlobalMem\":40000000000,\"warpSize\":32}",
             gpu->name, gpu->version, gpu->shared_bytes, gpu->version == 1200 ? 1536 : 2048, gpu->processors);
}

/* The toolkit's stub of the driver is below a folder where the plugin looks for libraries. */
static void open_stand_in(void *plugin) {
    Dl_serinfo size, *found = NULL;
    if (dlinfo(plugin, RTLD_DI_SERINFOSIZE, &size) == 0) {
        found = calloc(1, size.dls_size);
    }
    if (found == NULL || dlinfo(plugin, RTLD_DI_SERINFOSIZE, found) != 0 ||
        dlinfo(plugin, RTLD_DI_SERINFO, found) != 0) {
        free(found);
        return;
    }
    for (unsigned i = 0; i < found->dls_cnt; i++) {
        char path[PATH_MAX];
        const int len = snprintf(path, sizeof path, "%s/stubs/libcuda.so", found->dls_serpath[i].dls_name);
        if (len > 0 && (size_t)len < sizeof path && dlopen(path, RTLD_NOW | RTLD_GLOBAL) != NULL) {
            break;
        }
    }
    free(found);
}

/* The plugin is beside this program's folder. */
static ask_fn *open_plugin(void) {
    char path[PATH_MAX];
    test_build_path("liboffload_cuda.so", path);
    if (access(path, R_OK) != 0) {
        test_skip("this build has no CUDA plugin");
    }
    struct ox_cuda_plugin_info about;
    REQUIRE_OK(ox_cuda_plugin_query(path, &about));
    void *const plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    CHECK(plugin != NULL);
    if (plugin != NULL && dlopen("libcuda.so.1", RTLD_NOW) == NULL) {
        open_stand_in(plugin);
    }
    if (dlopen("libcuda.so.1", RTLD_NOW) == NULL) {
        test_skip("neither a driver nor the toolkit's stand-in for one is here");
    }
    ask_fn *ask;
    void *const found = plugin == NULL ? NULL : dlsym(plugin, "ox_cudnn_ask");
    memcpy(&ask, &found, sizeof ask);
    return ask;
}

static void ask_all(ask_fn *ask, const struct gpu *gpu, bool backward) {
    char json[JSON_BYTES];
    describe(gpu, json);
    for (int i = 0; i < SHAPE_COUNT; i++) {
        const struct ox_attention_shape *const shape = &shapes[i];
        struct ox_cudnn_answer answer;
        ask(&(struct ox_cudnn_question){.gpu = json, .shape = *shape, .backward = backward, .builds = i == 0},
            &answer);
        printf("%s, %s: batch %u, seq %u, heads %u of %u, dim %u, window %u: engine %lld, %llu of %llu bytes; %s\n",
               gpu->name, backward ? "backward" : "forward", shape->batch, shape->seq, shape->heads, shape->kv_heads,
               shape->head_dim, shape->window, (long long)answer.engine, (unsigned long long)answer.workspace_bytes,
               (unsigned long long)answer.workspace_max, answer.words.text);
        CHECK(answer.has_engine == (!backward || shape->head_dim <= gpu->head_dim_max));
        CHECK(answer.workspace_bytes <= answer.workspace_max);
        CHECK(answer.has_code == (i == 0));
    }
}

int main(void) {
    ask_fn *const ask = open_plugin();
    CHECK(ask != NULL);
    if (ask == NULL) {
        return test_end();
    }
    struct ox_cudnn_answer answer;
    ask(&(struct ox_cudnn_question){.gpu = "{}", .shape = shapes[0]}, &answer);
    if (!answer.has_library) {
        printf("%s\n", answer.words.text);
        test_skip("no cuDNN is here");
    }
    /* A GPU that is none is refused in cuDNN's words. */
    CHECK(!answer.has_engine && answer.words.text[0] != '\0');
    for (int i = 0; i < GPU_COUNT; i++) {
        ask_all(ask, &gpus[i], false);
        ask_all(ask, &gpus[i], true);
    }
    return test_end();
}
