#include "kernels/device.h"

enum ox_status ox_device_mem_open(struct ox_device *device, uint64_t bytes, void **out) {
    return device->ops->mem_open(device, bytes, out);
}

void ox_device_mem_close(struct ox_device *device, void *ptr, uint64_t bytes) {
    if (ptr != NULL) {
        device->ops->mem_close(device, ptr, bytes);
    }
}

enum ox_status ox_device_host_pin(struct ox_device *device, void *ptr, uint64_t bytes) {
    return bytes == 0 ? OX_OK : device->ops->host_pin(device, ptr, bytes);
}

enum ox_status ox_device_host_unpin(struct ox_device *device, void *ptr, uint64_t bytes) {
    return bytes == 0 ? OX_OK : device->ops->host_unpin(device, ptr, bytes);
}

enum ox_status ox_device_lane_open(struct ox_device *device, const char *label, struct ox_lane **out) {
    return device->ops->lane_open(device, label, out);
}

enum ox_status ox_device_lane_copy(struct ox_device *device, struct ox_lane *lane,
                                   const struct ox_copy *copy, struct ox_mark *done) {
    return device->ops->lane_copy(lane, copy, done);
}

void ox_device_close(struct ox_device **device) {
    if (*device != NULL) {
        (*device)->ops->close(*device);
        *device = NULL;
    }
}
