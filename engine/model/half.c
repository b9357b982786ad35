/* The pieces that halves are made of, each with its cost. */
#include "engine/model/half.h"

uint64_t ox_rows_bytes(const struct ox_shape *shape, uint32_t width) {
    return (uint64_t)shape->rows * width * ox_real_bytes(shape->compute.real);
}

uint64_t ox_rows_f32_bytes(const struct ox_shape *shape, uint32_t width) {
    return (uint64_t)shape->rows * width * sizeof(float);
}

const void *ox_weight_of(const struct ox_half_call *call, enum ox_role role) {
    const uint64_t offset = call->job->unit->role_offset[role];
    const uint32_t width = ox_real_bytes(call->job->shape->compute.real);
    return offset == UINT64_MAX ? NULL : (const unsigned char *)call->weights + offset * width;
}

float *ox_grad_of(const struct ox_half_call *call, enum ox_role role) {
    const uint64_t offset = call->job->unit->role_offset[role];
    return offset == UINT64_MAX || call->grads == NULL ? NULL : call->grads + offset;
}

void ox_clear_range(struct ox_unit_job *job, float *grads, uint64_t begin, uint64_t end) {
    if (begin < end) {
        OX_RUN(&job->run, zero, .target = grads + begin, .bytes = (end - begin) * sizeof *grads);
    }
}

void ox_clear_gaps(struct ox_unit_job *job, float *grads) {
    const struct ox_tensor *const tensors = job->shape->model->tensors + job->unit->tensor_first;
    uint64_t end = 0;
    for (uint32_t i = 0; i < job->unit->tensor_count; i++) {
        ox_clear_range(job, grads, end, tensors[i].offset);
        end = tensors[i].offset + tensors[i].count;
    }
    ox_clear_range(job, grads, end, job->unit->elem_count);
}

/* ---- norm ---- */

struct ox_norm ox_half_norm(const struct ox_half_call *call, enum ox_role gain, float *mean, float *rstd) {
    const enum ox_role bias = (enum ox_role)(gain + 1);
    return (struct ox_norm){.gain = ox_weight_of(call, gain),
                            .bias = ox_weight_of(call, bias),
                            .mean = mean,
                            .rstd = rstd,
                            .dgain = ox_grad_of(call, gain),
                            .dbias = ox_grad_of(call, bias),
                            .scratch = call->room.scratch[OX_SCRATCH_NORM]};
}

void ox_norm_forward(struct ox_unit_job *job, const struct ox_norm *norm, const void *in, void *out) {
    const struct ox_model_config *const config = &job->shape->model->config;
    OX_RUN(&job->run, norm_forward,
           .out = out, .mean = config->norm == OX_NORM_LAYER ? norm->mean : NULL, .rstd = norm->rstd, .in = in,
           .gain = norm->gain, .bias = norm->bias, .rows = job->shape->rows, .cols = config->hidden,
           .eps = config->norm_eps, .kind = config->norm, .real = job->shape->compute.real);
}

void ox_norm_backward(struct ox_unit_job *job, const struct ox_norm *norm, const void *in, const void *dout,
                      const void *residual, void *dx) {
    const struct ox_model_config *const config = &job->shape->model->config;
    OX_RUN(&job->run, norm_backward,
           .din = dx, .residual = residual, .dgain = norm->dgain, .dbias = norm->dbias, .dout = dout, .in = in,
           .gain = norm->gain, .mean = norm->mean, .rstd = norm->rstd, .scratch = norm->scratch,
           .rows = job->shape->rows, .cols = config->hidden, .kind = config->norm, .real = job->shape->compute.real,
           .begins = job->begins);
}

/* ---- linear ---- */

void ox_linear_forward(const struct ox_half_call *call, struct ox_linear linear, const void *in, const void *residual,
                       void *out) {
    const struct ox_shape *const shape = call->job->shape;
    OX_RUN(&call->job->run, linear_forward,
           .out = out, .in = in, .weight = ox_weight_of(call, linear.role),
           .bias = ox_weight_of(call, (enum ox_role)(linear.role + 1)), .residual = residual, .rows = shape->rows,
           .in_count = linear.in_count, .out_count = linear.out_count, .layout = shape->model->config.layout,
           .real = shape->compute.real);
}

void ox_linear_backward(const struct ox_half_call *call, struct ox_linear linear, const void *in, const void *dout,
                        void *din) {
    const struct ox_shape *const shape = call->job->shape;
    OX_RUN(&call->job->run, linear_backward,
           .din = din, .dweight = ox_grad_of(call, linear.role),
           .dbias = ox_grad_of(call, (enum ox_role)(linear.role + 1)), .dout = dout, .in = in,
           .weight = ox_weight_of(call, linear.role), .rows = shape->rows, .in_count = linear.in_count,
           .out_count = linear.out_count, .layout = shape->model->config.layout, .real = shape->compute.real,
           .begins = call->job->begins);
}

void ox_cost_linear_forward(struct ox_cost *cost, struct ox_linear linear, bool residual) {
    ox_cost_add_linear(cost, linear.in_count, linear.out_count, residual);
}

/* The gradient of a bias is a sum over rows; the CPU makes it with the GEMM. */
void ox_cost_linear_backward(struct ox_cost *cost, struct ox_linear linear) {
    ox_cost_add_linear_backward(cost, linear.in_count, linear.out_count);
    if (cost->on_gpu && cost->unit->role_offset[linear.role + 1] != UINT64_MAX) {
        ox_cost_add_loop(cost, cost->rows, linear.out_count, (struct ox_cost_loop){.passes = 1, .ops = 2});
    }
}
