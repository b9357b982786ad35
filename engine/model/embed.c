/* The embedding: a row of the table for each id, and of the learned positions where the family has them. */
#include "engine/model/pieces.h"

#include "base/planes.h"

/* The factor of the embeddings, in the type of the weights where the model has it as one of them; 0: none. */
static float scale_of(const struct ox_shape *shape) {
    const struct ox_model_config *const config = &shape->model->config;
    const float scale = (float)config->embed_scale;
    const bool rounds = config->embed_scale_rounds && shape->dtype == OX_COMPUTE_BF16;
    return rounds ? ox_bf16_to_f32(ox_bf16_from_f32(scale)) : scale;
}

void ox_embed_scale(struct ox_unit_job *job, void *rows) {
    const float scale = scale_of(job->shape);
    if (scale != 0.0f && scale != 1.0f) {
        OX_RUN(&job->run, add, .target = rows, .b = rows, .scale = scale, .real = job->shape->compute.real,
               .count = (uint64_t)job->shape->rows * job->shape->model->config.hidden);
    }
}

enum ox_status ox_embed_forward(struct ox_unit_job *job, struct ox_planes planes, void *y) {
    const uint64_t table = job->unit->role_offset[OX_ROLE_EMBED];
    const uint64_t position = job->unit->role_offset[OX_ROLE_POSITION];
    const bool learned = position != UINT64_MAX;
    OX_RUN(&job->run, embed_forward,
           .out = y, .table_hi = planes.hi + table, .table_lo = planes.lo == NULL ? NULL : planes.lo + table,
           .pos_hi = learned ? planes.hi + position : NULL,
           .pos_lo = learned && planes.lo != NULL ? planes.lo + position : NULL, .ids = job->ids,
           .positions = job->positions, .rows = job->shape->rows, .hidden = job->shape->model->config.hidden,
           .real = job->shape->compute.real);
    ox_embed_scale(job, y);
    return job->run.status;
}

enum ox_status ox_embed_backward(struct ox_unit_job *job, float *grads, void *dx) {
    const uint64_t position = job->unit->role_offset[OX_ROLE_POSITION];
    if (job->begins) { /* rows of the table that no token names stay as they are */
        ox_clear_range(job, grads, 0, job->unit->elem_count);
    }
    ox_embed_scale(job, dx);
    OX_RUN(&job->run, embed_backward,
           .dtable = job->unit->role_trained[OX_ROLE_EMBED] ? grads + job->unit->role_offset[OX_ROLE_EMBED] : NULL,
           .dpos = position == UINT64_MAX || !job->unit->role_trained[OX_ROLE_POSITION] ? NULL : grads + position,
           .dout = dx, .ids = job->ids,
           .positions = job->positions, .rows = job->shape->rows, .hidden = job->shape->model->config.hidden,
           .real = job->shape->compute.real);
    return job->run.status;
}

/* Backward adds rows to the sums of the table; a GPU sorts the rows first, in two operations more. */
void ox_embed_cost(struct ox_cost *cost, bool backward) {
    const uint32_t hidden = cost->shape->model->config.hidden;
    if (cost->on_gpu && backward) {
        cost->work.bytes += cost->rows * hidden * (cost->real_bytes + 2 * sizeof(float));
        cost->work.ops += 3;
    } else {
        const struct ox_cost_loop loop = {.passes = backward ? 3 : 2, .ops = 1};
        ox_cost_add_loop(cost, cost->rows, hidden, loop);
    }
    if (cost->shape->model->config.embed_scale != 0.0) {
        ox_cost_add_loop(cost, cost->rows, hidden, (struct ox_cost_loop){.passes = 2, .ops = 1});
    }
}
