/* Opens the CUDA plugin. */
#include "kernels/cuda.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "kernels/nvml.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char plugin_name[] = "liboffload_cuda.so";

/* Opened once and never closed, because the driver's threads live in it. A program has one plugin; tests have another
 * beside it. */
enum { PLUGINS_MAX = 4 };
struct loaded {
    const struct ox_cuda_plugin *plugin;
    char path[PATH_MAX];
};
static pthread_mutex_t plugin_lock = PTHREAD_MUTEX_INITIALIZER;
static struct loaded plugins[PLUGINS_MAX];
static int plugin_count;

/* Finds the plugin where it is built, beside the program, or where it is installed. False if it is in neither place. */
static bool near_program(char out[PATH_MAX]) {
    static const char *const places[] = {"", "../lib/offload/"};
    char folder[PATH_MAX];
    const ssize_t len = readlink("/proc/self/exe", folder, sizeof folder - 1);
    folder[len > 0 ? len : 0] = '\0';
    char *const slash = strrchr(folder, '/');
    if (slash == NULL) {
        return false;
    }
    slash[1] = '\0';
    for (uint32_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        const int need = snprintf(out, PATH_MAX, "%s%s%s", folder, places[i], plugin_name);
        if (need > 0 && need < PATH_MAX && access(out, R_OK) == 0) {
            return true;
        }
    }
    return false;
}

/* The caller holds the lock. */
static enum ox_status load(const char *path, const struct loaded **out) {
    for (int i = 0; i < plugin_count; i++) {
        if (strcmp(plugins[i].path, path) == 0) {
            *out = &plugins[i];
            return OX_OK;
        }
    }
    if (plugin_count == PLUGINS_MAX || strlen(path) >= PATH_MAX) {
        return ox_fail(OX_E_DEVICE, "GPU: %s is one plugin too many, or its path is too long", path);
    }
    void *const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        return ox_fail(OX_E_DEVICE, "GPU: the plugin does not open: %s; build it with `make cuda=1` on a machine with "
                       "the CUDA toolkit, or use --device cpu", dlerror());
    }
    const struct ox_cuda_plugin *const found = dlsym(library, "ox_cuda_plugin");
    if (found == NULL) {
        dlclose(library);
        return ox_fail(OX_E_DEVICE, "GPU: %s is no plugin of offload; build %s with `make cuda=1`, or use --device cpu",
                       path, plugin_name);
    }
    if (found->version != OX_CUDA_PLUGIN_VERSION || found->ops_bytes != sizeof(struct ox_ops) ||
        found->device_bytes != sizeof(struct ox_device_ops)) {
        dlclose(library);
        return ox_fail(OX_E_DEVICE, "GPU: %s was built with another version of offload; build both again with `make`",
                       path);
    }
    snprintf(plugins[plugin_count].path, PATH_MAX, "%s", path);
    plugins[plugin_count].plugin = found;
    *out = &plugins[plugin_count++];
    return OX_OK;
}

static const struct ox_cuda_plugin *plugin_of(const struct ox_device *device) {
    const struct ox_cuda_plugin *found = NULL;
    pthread_mutex_lock(&plugin_lock);
    for (int i = 0; i < plugin_count; i++) {
        found = plugins[i].plugin->device_ops == device->ops ? plugins[i].plugin : found;
    }
    pthread_mutex_unlock(&plugin_lock);
    OX_ASSERT(found != NULL); /* otherwise ox_cuda_device_open did not open it */
    return found;
}

static enum ox_status load_once(const char *path, const struct loaded **out) {
    char near[PATH_MAX];
    const char *const from = path != NULL ? path : near_program(near) ? near : plugin_name;
    pthread_mutex_lock(&plugin_lock);
    const enum ox_status status = load(from, out);
    pthread_mutex_unlock(&plugin_lock);
    return status;
}

enum ox_status ox_cuda_plugin_query(const char *path, struct ox_cuda_plugin_info *out) {
    const struct loaded *loaded = NULL;
    memset(out, 0, sizeof *out);
    const enum ox_status status = load_once(path, &loaded);
    if (status == OX_OK) {
        loaded->plugin->about(out);
        out->path = loaded->path;
    }
    return status;
}

enum ox_status ox_cuda_device_open(const struct ox_cuda_config *config, struct ox_device **out) {
    const struct loaded *loaded = NULL;
    *out = NULL;
    const enum ox_status status = load_once(config->plugin_path, &loaded);
    return status == OX_OK ? loaded->plugin->device_open(config, out) : status;
}

void ox_ops_init_cuda(struct ox_device *device, struct ox_ops *ops) {
    plugin_of(device)->ops_init(ops);
}

enum ox_status ox_cuda_linear_search(struct ox_device *device, const struct ox_op_linear_forward *forward,
                                     const struct ox_op_linear_backward *backward, struct ox_cuda_search *search) {
    OX_ASSERT((forward == NULL) != (backward == NULL));
    search->offered = 0;
    search->taken_seconds = search->best_seconds = 0.0;
    return plugin_of(device)->linear_search(device, forward, backward, search);
}

enum ox_status ox_cuda_device_reach(struct ox_device *device, struct ox_device *peer, bool *out) {
    return plugin_of(device)->reach(device, peer, out);
}

bool ox_cuda_gemm_text(struct ox_device *device, uint32_t idx, char text[OX_CUDA_GEMM_BYTES]) {
    return plugin_of(device)->gemm_text(device, idx, text);
}

void ox_cuda_gemms_text(const struct ox_cuda_device_info *gpu, char text[OX_CUDA_GEMMS_BYTES]) {
    const uint32_t blas = gpu->blas_version, runtime = gpu->runtime_version;
    const int attention = (int)strcspn(gpu->attention, ":"); /* why it is not cuDNN's changes no bit */
    snprintf(text, OX_CUDA_GEMMS_BYTES, "cuBLASLt %u.%u.%u on %.80s (compute capability %u.%u, %u processors), "
             "attention of %.*s, CUDA runtime %u.%u", blas / 10000, blas / 100 % 100, blas % 100, gpu->name,
             gpu->capability / 10, gpu->capability % 10, gpu->processor_count, attention, gpu->attention,
             runtime / 1000, runtime % 1000 / 10);
}

enum ox_status ox_cuda_nccl(struct ox_device *device, const struct ox_nccl_ops **out) {
    *out = plugin_of(device)->nccl();
    return *out != NULL ? OX_OK
                        : ox_fail(OX_E_COMM, "NCCL: the CUDA plugin was built without its headers; install NCCL "
                                  "(libnccl-dev) and build with `make nccl=1`");
}

enum ox_status ox_cuda_device_query(struct ox_device *device, struct ox_cuda_device_info *out) {
    return plugin_of(device)->facts(device, out);
}

/* ---- what opening takes ----------------------------------------------------------------------------------- */

/* A context takes more than this, and with its libraries less than that. */
static const uint64_t OPENED_LEAST = 48 * OX_MIB, OPENED_MOST = 3 * OX_GIB;

/* Memory in use on each GPU of the machine: by all processes and by this one, and how many there are. */
enum { GPUS_MAX = 64 };
struct used {
    uint32_t count;
    struct gpu_use {
        char pci[OX_CUDA_PCI_TEXT_BYTES];
        uint64_t bytes, own_bytes;
        uint32_t process_count;
    } gpus[GPUS_MAX];
};

static void read_used(struct used *out) {
    struct ox_nvml *nvml = NULL;
    struct ox_nvml_gpu gpu;
    bool absent = false;
    out->count = 0;
    if (ox_nvml_open(NULL, &nvml, &absent) != OX_OK) {
        return;
    }
    for (uint32_t i = 0; i < ox_nvml_gpu_count(nvml) && out->count < GPUS_MAX; i++) {
        if (ox_nvml_read(nvml, i, &gpu) == OX_OK && gpu.memory_bytes > 0) {
            struct gpu_use *const use = &out->gpus[out->count++];
            *use = (struct gpu_use){.bytes = gpu.memory_used_bytes, .own_bytes = gpu.own_bytes,
                                    .process_count = gpu.process_count};
            snprintf(use->pci, sizeof use->pci, "%s", gpu.pci);
        }
    }
    ox_nvml_close(&nvml);
}

static const struct gpu_use *use_of(const struct used *used, const char *pci) {
    for (uint32_t i = 0; i < used->count; i++) {
        if (strcmp(used->gpus[i].pci, pci) == 0) {
            return &used->gpus[i];
        }
    }
    return NULL;
}

/* What opening took: this process's own part where the driver tells it. Else what is in use more than before, unless
 * other processes came or went meanwhile. 0: not known. */
static uint64_t opened_bytes(const struct gpu_use *before, const struct gpu_use *after) {
    if (before == NULL || after == NULL || after->own_bytes > 0) {
        return before == NULL || after == NULL ? 0 : after->own_bytes - before->own_bytes;
    }
    const bool counts = before->process_count != OX_NVML_UNKNOWN && after->process_count != OX_NVML_UNKNOWN;
    const bool alone = !counts || after->process_count == before->process_count + 1;
    return alone && after->bytes > before->bytes ? after->bytes - before->bytes : 0;
}

enum ox_status ox_cuda_device_look(const struct ox_cuda_config *config, struct ox_cuda_device_info *out,
                                   uint64_t *process_bytes) {
    struct used before, after;
    struct ox_device *device = NULL;
    *process_bytes = OX_CUDA_PROCESS_BYTES;
    read_used(&before);
    enum ox_status status = ox_cuda_device_open(config, &device);
    if (status != OX_OK) {
        return status;
    }
    status = ox_cuda_device_query(device, out);
    if (status == OX_OK) {
        read_used(&after);
        const uint64_t opened = opened_bytes(use_of(&before, out->pci), use_of(&after, out->pci));
        if (opened >= OPENED_LEAST && opened <= OPENED_MOST) {
            *process_bytes = ox_align_up(opened + OX_CUDA_LATER_BYTES, OX_MIB);
        }
    }
    ox_device_close(&device);
    return status;
}
