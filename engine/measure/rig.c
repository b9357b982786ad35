#include "engine/measure/rig.h"

#include "engine/measure/probe.h"
#include "engine/step/update/ops_optim.h"

#include <string.h>

void ox_measure_rig_close(struct ox_measure_rig *rig) {
    ox_lane_close(&rig->lane);
    ox_device_close(&rig->device);
    ox_arena_close(&rig->arena);
}

enum ox_status ox_measure_rig_open(uint32_t threads, enum ox_real products, const struct ox_probe_room *room,
                                    struct ox_measure_rig *out) {
    memset(out, 0, sizeof *out);
    enum ox_status status = ox_probe_arena_until(room, &out->arena);
    const struct ox_cpu_device_config config = {.thread_count = threads, .products = products};
    OX_THEN(status, ox_cpu_device_open(&config, &out->device));
    OX_THEN(status, ox_device_lane_open(out->device, "compute", &out->lane));
    if (status != OX_OK) {
        ox_measure_rig_close(out);
        return status;
    }
    ox_ops_init_cpu(&out->ops);
    ox_ops_optim_init_cpu(&out->ops);
    out->compute = (struct ox_compute){.device = OX_DEVICE_CPU, .real = OX_REAL_F32, .threads = threads};
    return OX_OK;
}

enum ox_status ox_measure_rig_time(struct ox_measure_rig *rig, enum ox_op op, const void *args, double *seconds) {
    struct ox_lane_stats before, after;
    ox_lane_stats(rig->lane, &before);
    enum ox_status status = ox_op_queue(&rig->ops, rig->lane, op, args);
    OX_THEN(status, ox_lane_drain(rig->lane));
    ox_lane_stats(rig->lane, &after);
    *seconds += (double)(after.busy_ns - before.busy_ns) * 1e-9;
    return status;
}

uint64_t ox_measure_layer_bytes(const struct ox_measure_layer *layer) {
    const uint64_t rows = layer->rows;
    return 4 * (2 * (uint64_t)layer->in * layer->out + 2 * rows * layer->in + 2 * rows * layer->out) + 4096;
}

enum ox_status ox_measure_rig_layer(struct ox_measure_rig *rig, const struct ox_measure_layer *layer, uint64_t offset,
                                    double *seconds) {
    struct ox_bump room = {.base = rig->arena.base + offset};
    const uint64_t in = (uint64_t)layer->rows * layer->in * 4, out = (uint64_t)layer->rows * layer->out * 4;
    const uint64_t weight = (uint64_t)layer->in * layer->out * 4;
    void *const w = ox_bump_alloc(&room, weight), *const dw = ox_bump_alloc(&room, weight);
    void *const x = ox_bump_alloc(&room, in), *const dx = ox_bump_alloc(&room, in);
    void *const y = ox_bump_alloc(&room, out), *const dy = ox_bump_alloc(&room, out);
    const struct ox_op_linear_forward forward = {
        .out = y, .in = x, .weight = w, .rows = layer->rows, .in_count = layer->in, .out_count = layer->out,
        .layout = layer->layout, .real = OX_REAL_F32};
    const struct ox_op_linear_backward backward = {
        .din = dx, .dweight = dw, .dout = dy, .in = x, .weight = w, .rows = layer->rows, .in_count = layer->in,
        .out_count = layer->out, .layout = layer->layout, .real = OX_REAL_F32};
    const enum ox_status status = ox_measure_rig_time(rig, OX_OP_linear_forward, &forward, seconds);
    return status == OX_OK ? ox_measure_rig_time(rig, OX_OP_linear_backward, &backward, seconds) : status;
}
