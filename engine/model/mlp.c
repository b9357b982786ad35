/* The MLP half: y = x + down(act(gate_up(norm(x)))), where act is silu(gate) * up, or gelu of a gate_up that is up
 * alone. */
#include "engine/model/half.h"

/* Names are those of the forward pass; backward writes the gradient of gate_up over it. */
struct tensors {
    void *normed;       /* (rows, hidden) */
    float *mean, *rstd; /* (rows) */
    void *gate_up;      /* (rows, gate_up_width): before the activation */
    void *act;          /* (rows, width) */
};

static struct ox_linear gate_up_of(const struct ox_model_config *config) {
    const uint32_t width = config->width * (config->act == OX_ACTIVATION_SWIGLU ? 2 : 1);
    return (struct ox_linear){.role = OX_ROLE_GATE_UP, .in_count = config->hidden, .out_count = width};
}

static struct ox_linear down_of(const struct ox_model_config *config) {
    return (struct ox_linear){.role = OX_ROLE_DOWN, .in_count = config->width, .out_count = config->hidden};
}

static uint64_t carve_saved(const struct ox_shape *shape, enum ox_pass pass, void *base, struct tensors *out) {
    struct ox_bump carve = {.base = base};
    out->mean = ox_bump_alloc(&carve, ox_rows_f32_bytes(shape, 1));
    out->rstd = ox_bump_alloc(&carve, ox_rows_f32_bytes(shape, 1));
    if (pass != OX_PASS_FORWARD) {
        out->normed = ox_bump_alloc(&carve, ox_rows_bytes(shape, shape->model->config.hidden));
    }
    return carve.bytes;
}

static void sizes(const struct ox_shape *shape, const struct ox_half *half, enum ox_pass pass,
                  struct ox_half_sizes *out) {
    const struct ox_model_config *const config = &shape->model->config;
    (void)half;
    struct tensors t;
    *out = (struct ox_half_sizes){.saved = carve_saved(shape, pass, NULL, &t),
                                  .lent = {ox_rows_bytes(shape, gate_up_of(config).out_count),
                                           ox_rows_bytes(shape, config->width)}};
    if (pass == OX_PASS_FORWARD) {
        out->scratch[OX_SCRATCH_ROWS] = ox_rows_bytes(shape, config->hidden);
    } else if (ox_pass_is_backward(pass)) {
        const uint32_t widest = config->width > config->hidden ? config->width : config->hidden;
        out->scratch[OX_SCRATCH_ROWS] = ox_rows_bytes(shape, widest);
        out->scratch[OX_SCRATCH_NORM] = ox_ops_norm_scratch_bytes(&shape->compute, config->hidden);
    }
}

static struct tensors tensors_of(const struct ox_half_call *call) {
    struct tensors t = {.normed = call->room.scratch[OX_SCRATCH_ROWS]}; /* unless it is saved */
    carve_saved(call->job->shape, call->pass, call->room.saved, &t);
    t.gate_up = call->room.lent[0];
    t.act = call->room.lent[1];
    return t;
}

static void forward(const struct ox_half_call *call, const void *x, void *y) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_model_config *const config = &shape->model->config;
    const struct tensors t = tensors_of(call);
    const struct ox_norm norm = ox_half_norm(call, OX_ROLE_NORM2, t.mean, t.rstd);
    ox_norm_forward(call->job, &norm, x, t.normed);
    ox_linear_forward(call, gate_up_of(config), t.normed, NULL, t.gate_up);
    OX_RUN(&call->job->run, act_forward, .out = t.act, .in = t.gate_up, .rows = shape->rows, .width = config->width,
           .kind = config->act, .real = shape->compute.real);
    if (y != NULL) {
        ox_linear_forward(call, down_of(config), t.act, x, y);
    }
}

static void backward(const struct ox_half_call *call, const void *x, void *dx) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_model_config *const config = &shape->model->config;
    const struct tensors t = tensors_of(call);
    const struct ox_norm norm = ox_half_norm(call, OX_ROLE_NORM2, t.mean, t.rstd);
    void *const dact = call->room.scratch[OX_SCRATCH_ROWS], *const dgate_up = t.gate_up, *const dnormed = dact;
    ox_linear_backward(call, down_of(config), t.act, dx, dact);
    OX_RUN(&call->job->run, act_backward, .din = dgate_up, .dout = dact, .in = t.gate_up, .rows = shape->rows,
           .width = config->width, .kind = config->act, .real = shape->compute.real);
    ox_linear_backward(call, gate_up_of(config), t.normed, dgate_up, dnormed);
    ox_norm_backward(call->job, &norm, x, dnormed, dx, dx);
}

static void forward_cost(struct ox_cost *cost, const struct ox_half *half, bool whole) {
    const struct ox_model_config *const config = &cost->shape->model->config;
    const double gate_up_width = gate_up_of(config).out_count;
    (void)half;
    ox_cost_add_loop(cost, cost->rows, config->hidden, cost->loops->norm_of_sum);
    ox_cost_linear_forward(cost, gate_up_of(config), false);
    ox_cost_add_loop(cost, cost->rows, gate_up_width + config->width, (struct ox_cost_loop){.passes = 1, .ops = 1});
    if (whole) {
        ox_cost_linear_forward(cost, down_of(config), true);
    }
}

static void backward_cost(struct ox_cost *cost, const struct ox_half *half) {
    const struct ox_model_config *const config = &cost->shape->model->config;
    const double gate_up_width = gate_up_of(config).out_count;
    (void)half;
    ox_cost_linear_backward(cost, down_of(config));
    ox_cost_add_loop(cost, cost->rows, 2 * gate_up_width + config->width, (struct ox_cost_loop){.passes = 1, .ops = 1});
    ox_cost_linear_backward(cost, gate_up_of(config));
    ox_cost_add_loop(cost, cost->rows, config->hidden, cost->loops->norm_backward);
}

const struct ox_half_ops ox_half_mlp = {.sizes = sizes,
                                        .forward = forward,
                                        .backward = backward,
                                        .forward_cost = forward_cost,
                                        .backward_cost = backward_cost};
