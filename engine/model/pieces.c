/* What passes of several kinds of units share. */
#include "engine/model/pieces.h"

uint64_t ox_rows_bytes(const struct ox_shape *shape, uint32_t width) {
    return (uint64_t)shape->rows * width * ox_real_bytes(shape->compute.real);
}

uint64_t ox_rows_f32_bytes(const struct ox_shape *shape, uint32_t width) {
    return (uint64_t)shape->rows * width * sizeof(float);
}

void ox_clear_range(struct ox_unit_job *job, float *grads, uint64_t begin, uint64_t end) {
    if (begin < end) {
        OX_RUN(&job->run, zero, .target = grads + begin, .bytes = (end - begin) * sizeof *grads);
    }
}

void ox_clear_gaps(struct ox_unit_job *job, const struct ox_unit *unit, float *grads) {
    const struct ox_tensor *const tensors = job->shape->model->tensors + unit->tensor_first;
    uint64_t end = 0;
    for (uint32_t i = 0; i < unit->tensor_count; i++) {
        if (unit->role_trained[tensors[i].role]) {
            ox_clear_range(job, grads, end, tensors[i].offset);
            end = tensors[i].offset + tensors[i].count;
        }
    }
    ox_clear_range(job, grads, end, unit->elem_count);
}

void ox_clear_frozen(struct ox_unit_job *job, const struct ox_unit *unit, float *grads, enum ox_role role) {
    const struct ox_tensor *const tensors = job->shape->model->tensors + unit->tensor_first;
    for (uint32_t i = 0; unit->role_trained[role] && i < unit->tensor_count; i++) {
        if (tensors[i].role == role && !tensors[i].trained) {
            ox_clear_range(job, grads, tensors[i].offset, tensors[i].offset + tensors[i].count);
        }
    }
}

void ox_norm_forward(struct ox_unit_job *job, const struct ox_norm *norm, const void *in, const void *residual,
                     void *out) {
    const struct ox_model_config *const config = &job->shape->model->config;
    OX_RUN(&job->run, norm_forward,
           .out = out, .mean = config->norm == OX_NORM_LAYER ? norm->mean : NULL, .rstd = norm->rstd, .in = in,
           .gain = norm->gain, .bias = norm->bias, .residual = residual, .rows = job->shape->rows,
           .cols = config->hidden, .eps = config->norm_eps, .gain_offset = config->gain_offset,
           .kind = config->norm, .real = job->shape->compute.real);
}

void ox_norm_backward(struct ox_unit_job *job, const struct ox_norm *norm, const void *in, const void *dout,
                      const void *residual, void *dx) {
    const struct ox_model_config *const config = &job->shape->model->config;
    OX_RUN(&job->run, norm_backward,
           .din = dx, .residual = residual, .dgain = norm->dgain, .dbias = norm->dbias, .dout = dout, .in = in,
           .gain = norm->gain, .mean = norm->mean, .rstd = norm->rstd, .scratch = norm->scratch,
           .rows = job->shape->rows, .cols = config->hidden, .gain_offset = config->gain_offset,
           .kind = config->norm, .real = job->shape->compute.real, .begins = job->begins);
}
