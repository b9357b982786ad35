/* The CUDA device. Its code lives in a plugin, liboffload_cuda.so, which is opened at run time, so that one program
 * starts on machines with and without a driver. What stands in the way is told in one sentence. */
#ifndef OX_KERNELS_CUDA_H
#define OX_KERNELS_CUDA_H

#include "kernels/ops.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ox_cuda_config {
    const char *plugin_path; /* NULL: liboffload_cuda.so in the folder of the program, then where the loader looks */
    uint32_t device_idx;
};

/* OX_E_DEVICE where there is no plugin, no driver, a driver or a plugin that is too old, no such device, or one for
 * which the plugin has no code. */
OX_MUST enum ox_status ox_cuda_device_open(const struct ox_cuda_config *config, struct ox_device **out);

/* Fills every entry for lanes of that device. */
void ox_ops_init_cuda(struct ox_device *device, struct ox_ops *ops);

/* What a GPU is, for `doctor` and reports. */
struct ox_cuda_facts {
    char name[256];
    uint64_t memory_bytes, free_bytes;
    uint32_t capability; /* 90 stands for 9.0 */
    uint32_t processor_count;
    uint32_t driver_version, runtime_version; /* 13020 stands for 13.2 */
};
OX_MUST enum ox_status ox_cuda_device_facts(struct ox_device *device, struct ox_cuda_facts *out);

/* For the scratch sizes of ops.h, where they ask for threads: sums over rows are taken over so many groups of them. */
enum { OX_CUDA_ROW_GROUPS = 256 };

/* Device memory that the device itself takes when it is opened, beside what the driver needs for a process. */
enum { OX_CUDA_WORKSPACE_BYTES = 32 << 20 };

/* ---- between the program and the plugin ------------------------------------------------------------- */

/* Raised with every change of what crosses the border, device.h and ops.h included. */
enum { OX_CUDA_PLUGIN_VERSION = 1 };

/* The plugin's one symbol of its own, "ox_cuda_plugin". It takes everything of base/ from the program. */
struct ox_cuda_plugin {
    uint32_t version;                 /* OX_CUDA_PLUGIN_VERSION, as it was built */
    uint32_t ops_bytes, device_bytes; /* sizeof struct ox_ops, struct ox_device_ops */
    enum ox_status (*device_open)(const struct ox_cuda_config *, struct ox_device **);
    void (*ops_init)(struct ox_ops *);
    enum ox_status (*facts)(struct ox_device *, struct ox_cuda_facts *);
};

#ifdef __cplusplus
}
#endif
#endif
