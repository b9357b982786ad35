/* Opens the CUDA plugin. */
#include "kernels/cuda.h"

#include "base/assert.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char plugin_name[] = "liboffload_cuda.so";

/* Opened once and never closed: the driver's threads live in it. */
static pthread_mutex_t plugin_lock = PTHREAD_MUTEX_INITIALIZER;
static const struct ox_cuda_plugin *plugin;
static char plugin_path[PATH_MAX];

/* Where it is built, beside the program; else where it is installed. False when it is in neither place. */
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

static enum ox_status load(const char *path) {
    char near[PATH_MAX];
    const char *const from = path != NULL ? path : near_program(near) ? near : plugin_name;
    void *const library = dlopen(from, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        return ox_fail(OX_E_DEVICE, "GPU: the plugin does not open: %s; build it with `make cuda=1` on a machine with "
                       "the CUDA toolkit, or use --device cpu", dlerror());
    }
    const struct ox_cuda_plugin *const found = dlsym(library, "ox_cuda_plugin");
    if (found == NULL) {
        dlclose(library);
        return ox_fail(OX_E_DEVICE, "GPU: %s is no plugin of offload", from);
    }
    if (found->version != OX_CUDA_PLUGIN_VERSION || found->ops_bytes != sizeof(struct ox_ops) ||
        found->device_bytes != sizeof(struct ox_device_ops)) {
        dlclose(library);
        return ox_fail(OX_E_DEVICE, "GPU: %s was built with another version of offload; build both again with `make`",
                       from);
    }
    plugin = found;
    snprintf(plugin_path, sizeof plugin_path, "%s", from);
    return OX_OK;
}

static enum ox_status load_once(const char *path) {
    pthread_mutex_lock(&plugin_lock);
    const bool loaded = plugin != NULL && (path == NULL || strcmp(path, plugin_path) == 0);
    const enum ox_status status = loaded ? OX_OK : load(path);
    pthread_mutex_unlock(&plugin_lock);
    return status;
}

enum ox_status ox_cuda_plugin_about(const char *path, struct ox_cuda_about *out) {
    memset(out, 0, sizeof *out);
    const enum ox_status status = load_once(path);
    if (status == OX_OK) {
        plugin->about(out);
        out->path = plugin_path;
    }
    return status;
}

enum ox_status ox_cuda_device_open(const struct ox_cuda_config *config, struct ox_device **out) {
    *out = NULL;
    const enum ox_status status = load_once(config->plugin_path);
    return status == OX_OK ? plugin->device_open(config, out) : status;
}

void ox_ops_init_cuda(struct ox_device *device, struct ox_ops *ops) {
    OX_ASSERT(plugin != NULL && strcmp(device->ops->name, "cuda") == 0);
    plugin->ops_init(ops);
}

enum ox_status ox_cuda_linear_search(struct ox_device *device, const struct ox_op_linear_forward *forward,
                                     const struct ox_op_linear_backward *backward, struct ox_cuda_search *search) {
    OX_ASSERT(plugin != NULL && strcmp(device->ops->name, "cuda") == 0 && (forward == NULL) != (backward == NULL));
    search->offered = 0;
    search->taken_seconds = search->best_seconds = 0.0;
    return plugin->linear_search(device, forward, backward, search);
}

enum ox_status ox_cuda_device_facts(struct ox_device *device, struct ox_cuda_facts *out) {
    OX_ASSERT(plugin != NULL && strcmp(device->ops->name, "cuda") == 0);
    return plugin->facts(device, out);
}
