/* Opens the MPI plugin, and endpoints over it. */
#include "kernels/comm/mpi/plugin.h"

#include "base/assert.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How long processes wait for each other at the start: as long as a call may, between these. */
enum { OPEN_LEAST_MS = 60 * 1000, OPEN_MOST_MS = 600 * 1000 };

static pthread_mutex_t plugin_lock = PTHREAD_MUTEX_INITIALIZER;
static const struct ox_mpi_plugin *plugin; /* opened once and never closed, because MPI ends once */

/* Open MPI; launchers of MPICH and Slurm. */
const char *const ox_comm_mpi_variables[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE", NULL};

/* Where the plugin is built, beside the program, or where it is installed; its name alone where it is in neither. */
static void find(char out[PATH_MAX]) {
    static const char *const places[] = {"", "../lib/offload/"};
    char folder[PATH_MAX];
    const ssize_t len = readlink("/proc/self/exe", folder, sizeof folder - 1);
    folder[len > 0 ? len : 0] = '\0';
    char *const slash = strrchr(folder, '/');
    if (slash != NULL) {
        slash[1] = '\0';
    }
    for (uint32_t i = 0; i < sizeof places / sizeof places[0] && slash != NULL; i++) {
        const int need = snprintf(out, PATH_MAX, "%s%sliboffload_mpi.so", folder, places[i]);
        if (need > 0 && need < PATH_MAX && access(out, R_OK) == 0) {
            return;
        }
    }
    snprintf(out, PATH_MAX, "liboffload_mpi.so");
}

/* The caller holds the lock. MPI libraries open plugins of their own, which need its symbols: hence RTLD_GLOBAL. */
static enum ox_status load(const char *path) {
    char near[PATH_MAX];
    find(near);
    void *const library = dlopen(path != NULL ? path : near, RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL) {
        return ox_fail(OX_E_COMM, "MPI: the plugin does not open: %s; install libopenmpi-dev and openmpi-bin (`make "
                       "deps`) and build with `make mpi=1`, or start one process with --ranks", dlerror());
    }
    const struct ox_mpi_plugin *const found = dlsym(library, "ox_mpi_plugin");
    if (found == NULL || found->version != OX_MPI_PLUGIN_VERSION || found->wire_bytes != sizeof(struct ox_wire_ops)) {
        return ox_fail(OX_E_COMM, "MPI: %s was built with another version of offload; build both again with `make "
                       "mpi=1`", path != NULL ? path : near);
    }
    plugin = found;
    return OX_OK;
}

static enum ox_status load_once(const char *path) {
    pthread_mutex_lock(&plugin_lock);
    const enum ox_status status = plugin != NULL ? OX_OK : load(path);
    pthread_mutex_unlock(&plugin_lock);
    return status;
}

enum ox_status ox_comm_mpi_world(const char *plugin_path, uint32_t *process, uint32_t *process_count) {
    *process = 0;
    *process_count = 1;
    const enum ox_status status = load_once(plugin_path);
    return status == OX_OK ? plugin->world(process, process_count) : status;
}

enum ox_status ox_comm_mpi_open(const char *plugin_path, const struct ox_comm_local_config *config,
                                struct ox_comm **out) {
    uint32_t process = 0, process_count = 0;
    struct ox_wire *wire = NULL;
    memset(out, 0, config->count * sizeof *out);
    enum ox_status status = ox_comm_mpi_world(plugin_path, &process, &process_count);
    if (status == OX_OK && process_count > OX_COMM_RANKS_MAX / config->count) {
        status = ox_fail(OX_E_CONFIG, "MPI: %u processes with %u ranks each are more than %d ranks; start fewer",
                         process_count, config->count, OX_COMM_RANKS_MAX);
    }
    const uint32_t fail_ms = config->limits.fail_ms;
    const uint32_t open_ms = fail_ms < OPEN_LEAST_MS ? OPEN_LEAST_MS : fail_ms > OPEN_MOST_MS ? OPEN_MOST_MS : fail_ms;
    OX_THEN(status, plugin->open(config->count, open_ms, &wire));
    OX_THEN(status, ox_comm_wire_open(wire, config, out));
    return status;
}
