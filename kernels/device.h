/* A device is memory plus in-order lanes. The CPU device has real lanes, each a thread, so that machines without a GPU
 * exercise the engine's ordering too, also under ThreadSanitizer. */
#ifndef OX_KERNELS_DEVICE_H
#define OX_KERNELS_DEVICE_H

#include "base/lane.h"
#include "base/planes.h"
#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ox_device_kind { OX_DEVICE_CPU, OX_DEVICE_CUDA };

struct ox_device;

/* Copies `bytes` bytes from source to target; both stay valid until the mark is done. */
struct ox_copy {
    void *target;
    const void *source;
    size_t bytes;
};

/* No entry may be NULL. Called through the wrappers below. */
struct ox_device_ops {
    const char *name; /* "cpu", "chaos", "cuda" */
    enum ox_status (*mem_open)(struct ox_device *, uint64_t bytes, void **out);
    void (*mem_close)(struct ox_device *, void *ptr, uint64_t bytes);
    enum ox_status (*host_pin)(struct ox_device *, void *ptr, uint64_t bytes);
    enum ox_status (*host_unpin)(struct ox_device *, void *ptr, uint64_t bytes);
    enum ox_status (*lane_open)(struct ox_device *, const char *label, struct ox_lane **out);
    enum ox_status (*lane_copy)(struct ox_lane *, const struct ox_copy *, struct ox_mark *done);
    void (*close)(struct ox_device *);
};

struct ox_device {
    const struct ox_device_ops *ops;
};

/* Reserves device memory of exactly this size, 4096-byte aligned, with its pages touched. */
OX_MUST enum ox_status ox_device_mem_open(struct ox_device *device, uint64_t bytes, void **out);
void ox_device_mem_close(struct ox_device *device, void *ptr, uint64_t bytes);

/* Registers host memory with the device, so that copies from and to it run beside everything else; copies of other
 * memory may wait for one another. Undo it before the memory is freed, with the same bytes. */
OX_MUST enum ox_status ox_device_host_pin(struct ox_device *device, void *ptr, uint64_t bytes);
OX_MUST enum ox_status ox_device_host_unpin(struct ox_device *device, void *ptr, uint64_t bytes);

/* `label` has static storage. Close with ox_lane_close before the device. */
OX_MUST enum ox_status ox_device_lane_open(struct ox_device *device, const char *label,
                                           struct ox_lane **out);

/* Queues a copy on a lane of this device; source and target may each be host or device memory. */
OX_MUST enum ox_status ox_device_lane_copy(struct ox_device *device, struct ox_lane *lane,
                                           const struct ox_copy *copy, struct ox_mark *done);

/* Accepts NULL; sets *device to NULL. */
void ox_device_close(struct ox_device **device);

/* Addresses that a thread of the CPU device takes, most of them without memory: its stack, and the buffer that OpenBLAS
 * reserves for it. Limits of the process (ulimit -v, -d) count them. */
#define OX_CPU_THREAD_ADDRESS_BYTES (UINT64_C(137) << 20)

/* What a device takes beside its memory at most where it rounds the inputs of a GEMM. */
#define OX_CPU_BF16_ROOM_BYTES (UINT64_C(24) << 20)

struct ox_cpu_device_config {
    uint32_t thread_count; /* threads of the compute lane with its caller; at least 1 */
    enum ox_real products; /* inputs of linear layers and of the head are rounded to it, where ox_cpu_has_products */
    uint64_t chaos_seed;   /* not 0: delays every job at random by this seed (base/lane.h) */
    uint64_t chaos_ns_max;
};
OX_MUST enum ox_status ox_cpu_device_open(const struct ox_cpu_device_config *config,
                                          struct ox_device **out);

/* Whether the device multiplies matrices of this format on this machine. `text` becomes what does, or why nothing
 * does. */
bool ox_cpu_has_products(enum ox_real products, const char **text);

/* Names what computes GEMMs, and the other loops, on such a device, with all that their last bits depend on. */
enum { OX_CPU_GEMMS_BYTES = 256 };
void ox_cpu_gemms_text(enum ox_real products, char text[OX_CPU_GEMMS_BYTES]);

#ifdef __cplusplus
}
#endif
#endif
