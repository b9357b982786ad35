/* The room of Muon, and where its iterations run: on the optimizer's threads, or on a GPU where the rank has one, which
 * computes them many times as fast. Momentum and update stay with the processor, which has the state. */
#include "engine/step/update/update.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/log.h"

#include <stdlib.h>

enum { PAGE = 4096 };

static struct ox_matrix matrix_of(const struct ox_tensor *tensor) {
    struct ox_matrix matrix;
    ox_tensor_matrix(tensor, &matrix.rows, &matrix.cols);
    return matrix;
}

uint64_t ox_muon_bytes(const struct ox_model *model, enum ox_device_kind device, enum ox_tier tier) {
    const bool on_gpu = device != OX_DEVICE_CPU;
    uint64_t floats = 0;
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct ox_tensor *const tensor = &model->tensors[i];
        if (tensor->trained && ox_tensor_is_hidden(tensor)) {
            const struct ox_matrix matrix = matrix_of(tensor);
            floats = ox_max_u64(floats, tier == OX_TIER_HOST ? ox_muon_scratch_floats(matrix, on_gpu)
                                        : tier == OX_TIER_DEVICE && on_gpu ? ox_muon_iterated_floats(matrix) : 0);
        }
    }
    return ox_align_up(floats * sizeof(float), PAGE);
}

double ox_muon_unit_flops(const struct ox_engine_config *config, uint32_t unit_idx) {
    const struct ox_unit *const unit = &config->model->units[unit_idx];
    double flops = 0.0;
    const struct ox_tensor *at = NULL;
    while (unit->whole && (at = ox_unit_next_tensor(config->model, unit, at)) != NULL) {
        if (at->trained && ox_tensor_is_hidden(at)) {
            const struct ox_matrix matrix = matrix_of(at);
            flops += (double)(at->count / (matrix.rows * matrix.cols)) * ox_muon_flops(&config->muon, matrix);
        }
    }
    return flops;
}

enum ox_status ox_optim_open_muon(struct ox_rank *rank) {
    struct ox_muon_room *const room = &rank->muon;
    const struct ox_model *const model = rank->config.model;
    if (rank->config.state.kind != OX_OPTIM_MUON || rank->config.eval_only) {
        return OX_OK;
    }
    room->host_bytes = ox_muon_bytes(model, rank->config.device, OX_TIER_HOST);
    room->device_bytes = ox_muon_bytes(model, rank->config.device, OX_TIER_DEVICE);
    room->host = aligned_alloc(PAGE, room->host_bytes + PAGE);
    if (room->host == NULL) {
        return ox_fail(OX_E_NOMEM, "muon: no memory for %llu bytes of scratch", (unsigned long long)room->host_bytes);
    }
    if (room->device_bytes == 0) {
        return OX_OK;
    }
    void *device = NULL;
    enum ox_status status = ox_device_mem_open(rank->device, room->device_bytes, &device);
    room->device = device;
    OX_THEN(status, ox_device_host_pin(rank->device, room->host, room->host_bytes));
    room->pinned = status == OX_OK;
    OX_THEN(status, ox_device_lane_open(rank->device, "muon", &room->lane));
    return status;
}

void ox_optim_close_muon(struct ox_rank *rank) {
    struct ox_muon_room *const room = &rank->muon;
    ox_lane_close(&room->lane);
    if (room->pinned && ox_device_host_unpin(rank->device, room->host, room->host_bytes) != OX_OK) {
        ox_log(OX_LOG_WARN, "muon: %s", ox_error_text());
    }
    if (room->device != NULL) {
        ox_device_mem_close(rank->device, room->device, room->device_bytes);
    }
    free(room->host);
    *room = (struct ox_muon_room){0};
}

/* There, iterated, and back; the lane is empty at the end. */
static enum ox_status iterate_there(void *owner, struct ox_matrix matrix, float *inout) {
    struct ox_rank *const rank = owner;
    const struct ox_muon_room *const room = &rank->muon;
    const uint64_t count = matrix.rows * matrix.cols, bytes = count * sizeof *inout;
    struct ox_mark done = {0};
    OX_ASSERT(ox_muon_iterated_floats(matrix) * sizeof *inout <= room->device_bytes);
    enum ox_status status = ox_device_lane_copy(rank->device, room->lane,
                                                &(struct ox_copy){room->device, inout, bytes}, &done);
    OX_THEN(status, OX_QUEUE(&rank->ops, room->lane, newton_schulz, &(struct ox_op_newton_schulz){
        .inout = room->device, .scratch = room->device + count, .rows = (uint32_t)matrix.rows,
        .cols = (uint32_t)matrix.cols, .iterations = rank->config.muon.iterations, .isa = rank->config.isa,
        .factors = {ox_muon_factors[0], ox_muon_factors[1], ox_muon_factors[2]}}));
    OX_THEN(status, ox_device_lane_copy(rank->device, room->lane, &(struct ox_copy){inout, room->device, bytes},
                                        &done));
    OX_THEN(status, ox_mark_join(done));
    return status;
}

enum ox_status ox_optim_matrix(struct ox_rank *rank, struct ox_matrix matrix, const struct ox_update_span *span,
                               const struct ox_optim_hyper *hyper, uint64_t *bad_count) {
    const struct ox_muon_job job = {.pool = rank->optim_pool, .isa = rank->config.isa, .muon = &rank->config.muon,
                                    .format = rank->config.state, .matrix = matrix, .scratch = rank->muon.host,
                                    .iterator = {rank->muon.lane != NULL ? iterate_there : NULL, rank}};
    uint64_t bad = 0;
    const enum ox_status status = ox_muon_run(&job, span, hyper, &bad);
    *bad_count += bad;
    return status;
}
