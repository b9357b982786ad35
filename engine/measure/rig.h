/* The CPU device with one lane and memory to compute in, for the parts that time operations. */
#ifndef OX_ENGINE_MEASURE_RIG_H
#define OX_ENGINE_MEASURE_RIG_H

#include "base/arena.h"
#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ox_measure_rig {
    struct ox_device *device;
    struct ox_lane *lane;
    struct ox_ops ops;
    struct ox_compute compute;
    struct ox_arena arena;
};

struct ox_probe_room;
OX_MUST enum ox_status ox_measure_rig_open(uint32_t threads, enum ox_real products, const struct ox_probe_room *room,
                                           struct ox_measure_rig *out);
void ox_measure_rig_close(struct ox_measure_rig *rig);

/* Runs one operation and adds its seconds on the lane to *seconds. */
OX_MUST enum ox_status ox_measure_rig_time(struct ox_measure_rig *rig, enum ox_op op, const void *args,
                                           double *seconds);

/* A linear layer; its memory holds weight, inputs and outputs, each with its gradient, in fp32. */
struct ox_measure_layer {
    uint32_t rows, in, out;
    enum ox_weight_layout layout;
};
uint64_t ox_measure_layer_bytes(const struct ox_measure_layer *layer);
/* Runs both passes of the layer, three GEMMs, on memory of the rig from `offset` on, and adds their seconds. */
OX_MUST enum ox_status ox_measure_rig_layer(struct ox_measure_rig *rig, const struct ox_measure_layer *layer,
                                            uint64_t offset, double *seconds);

#ifdef __cplusplus
}
#endif
#endif
