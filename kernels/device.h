/* A device is memory plus in-order lanes. The CPU device has real lanes (a thread each), so the
 * engine's ordering is exercised, also under ThreadSanitizer, on machines without a GPU. */
#ifndef OX_KERNELS_DEVICE_H
#define OX_KERNELS_DEVICE_H

#include "base/lane.h"
#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ox_device_kind { OX_DEVICE_CPU, OX_DEVICE_CUDA };

struct ox_device;

/* `bytes` at source to target; both stay valid until the mark is done. */
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

/* One exact-size reservation of device memory, 4096-byte aligned and touched. */
OX_MUST enum ox_status ox_device_mem_open(struct ox_device *device, uint64_t bytes, void **out);
void ox_device_mem_close(struct ox_device *device, void *ptr, uint64_t bytes);

/* Makes the device known with host memory that copies come from and go to, so that they run beside everything else;
 * from memory it does not know they may wait for one another. Undo before the memory goes, with the same bytes. */
OX_MUST enum ox_status ox_device_host_pin(struct ox_device *device, void *ptr, uint64_t bytes);
OX_MUST enum ox_status ox_device_host_unpin(struct ox_device *device, void *ptr, uint64_t bytes);

/* `label` is in static storage. Close with ox_lane_close before the device. */
OX_MUST enum ox_status ox_device_lane_open(struct ox_device *device, const char *label,
                                           struct ox_lane **out);

/* Queues one copy between any two of host and device memory on a lane of this device. */
OX_MUST enum ox_status ox_device_lane_copy(struct ox_device *device, struct ox_lane *lane,
                                           const struct ox_copy *copy, struct ox_mark *done);

/* Takes NULL; sets *device to NULL. */
void ox_device_close(struct ox_device **device);

struct ox_cpu_device_config {
    uint32_t thread_count; /* of the compute lane, its caller included; at least 1 */
    uint64_t chaos_seed;   /* not 0: every job is delayed at random, by seed (base/lane.h) */
    uint64_t chaos_ns_max;
};
OX_MUST enum ox_status ox_cpu_device_open(const struct ox_cpu_device_config *config,
                                          struct ox_device **out);

#ifdef __cplusplus
}
#endif
#endif
