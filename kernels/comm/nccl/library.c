/* Opens NCCL. */
#include "kernels/comm/nccl/library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

enum { VERSION_LEAST = 21800 }; /* communicators that do not block are sound from here on */

static struct ox_nccl_library library;
static bool is_open;
static pthread_mutex_t library_lock = PTHREAD_MUTEX_INITIALIZER;

static const struct {
    const char *name;
    size_t offset;
} functions[] = {
    {"ncclGetVersion", offsetof(struct ox_nccl_library, version)},
    {"ncclGetUniqueId", offsetof(struct ox_nccl_library, unique_id)},
    {"ncclCommInitRankConfig", offsetof(struct ox_nccl_library, init)},
    {"ncclCommAbort", offsetof(struct ox_nccl_library, abort)},
    {"ncclCommGetAsyncError", offsetof(struct ox_nccl_library, async_error)},
    {"ncclGetErrorString", offsetof(struct ox_nccl_library, error_string)},
    {"ncclGroupStart", offsetof(struct ox_nccl_library, group_start)},
    {"ncclGroupEnd", offsetof(struct ox_nccl_library, group_end)},
    {"ncclAllGather", offsetof(struct ox_nccl_library, all_gather)},
    {"ncclReduceScatter", offsetof(struct ox_nccl_library, reduce_scatter)},
    {"ncclReduce", offsetof(struct ox_nccl_library, reduce)},
    {"ncclSend", offsetof(struct ox_nccl_library, send)},
    {"ncclRecv", offsetof(struct ox_nccl_library, recv)},
};

static enum ox_status load(void) {
    int version = 0;
    void *const file = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (file == NULL) {
        return ox_fail(OX_E_COMM, "NCCL: %s; install NCCL 2.18 or later (Debian package libnccl2 of NVIDIA, or the "
                       "wheel nvidia-nccl-cu13 with its folder in LD_LIBRARY_PATH)", dlerror());
    }
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *const found = dlsym(file, functions[i].name);
        if (found == NULL) {
            return ox_fail(OX_E_COMM, "NCCL: libnccl.so.2 has no function %s; install NCCL 2.18 or later",
                           functions[i].name);
        }
        memcpy((char *)&library + functions[i].offset, &found, sizeof found);
    }
    if (library.version(&version) != ncclSuccess || version < VERSION_LEAST) {
        return ox_fail(OX_E_COMM, "NCCL: libnccl.so.2 is version %d.%d.%d, and 2.18 or later is needed; install that",
                       version / 10000, version / 100 % 100, version % 100);
    }
    return OX_OK;
}

enum ox_status ox_nccl_library_open(const struct ox_nccl_library **out) {
    pthread_mutex_lock(&library_lock);
    const enum ox_status status = is_open ? OX_OK : load();
    is_open = status == OX_OK;
    pthread_mutex_unlock(&library_lock);
    *out = &library;
    return status;
}
