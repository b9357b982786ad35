/* The attention half: y = x + out(attend(rope(qkv(norm(x))))), with a norm per head of q and k where the family has it,
 * and over a cache of keys and values where the job has one. */
#include "engine/model/half.h"

#include "base/bytes.h"
#include "kernels/attention_slices.h"

/* Names are those of the forward pass. */
struct tensors {
    void *normed;           /* (rows, hidden) */
    float *mean, *rstd;     /* (rows) */
    void *qkv;              /* (rows, qkv_width): q | k | v of each row, q and k normed per head and rotated */
    float *q_rstd, *k_rstd; /* (rows, heads), (rows, kv_heads): of the norm per head, where there is one */
    void *q_raw, *k_raw;    /* q and k before that norm; for backward alone */
    void *att;              /* (rows, heads * head_dim) */
    float *lse;             /* (batch, heads, seq): log of the sum of exponentials */
};

static struct ox_linear qkv_of(const struct ox_model_config *config) {
    const uint32_t width = (config->heads + 2 * config->kv_heads) * config->head_dim;
    return (struct ox_linear){.role = OX_ROLE_QKV, .in_count = config->hidden, .out_count = width};
}

static struct ox_linear out_of(const struct ox_model_config *config) {
    const uint32_t width = config->heads * config->head_dim;
    return (struct ox_linear){.role = OX_ROLE_OUT, .in_count = width, .out_count = config->hidden};
}

static struct ox_attention_shape shape_of(const struct ox_shape *shape, uint32_t window) {
    const struct ox_model_config *const config = &shape->model->config;
    return (struct ox_attention_shape){.batch = shape->batch,
                                       .seq = shape->seq,
                                       .heads = config->heads,
                                       .kv_heads = config->kv_heads,
                                       .head_dim = config->head_dim,
                                       .window = window,
                                       .scale = (float)(1.0 / __builtin_sqrt((double)config->head_dim))};
}

/* ---- memory ---- */

static uint64_t carve_saved(const struct ox_shape *shape, enum ox_pass pass, void *base, struct tensors *out) {
    const struct ox_model_config *const config = &shape->model->config;
    struct ox_bump carve = {.base = base};
    out->qkv = ox_bump_alloc(&carve, ox_rows_bytes(shape, qkv_of(config).out_count));
    if (config->qk_norm) {
        out->q_rstd = ox_bump_alloc(&carve, ox_rows_f32_bytes(shape, config->heads));
        out->k_rstd = ox_bump_alloc(&carve, ox_rows_f32_bytes(shape, config->kv_heads));
    }
    out->att = ox_bump_alloc(&carve, ox_rows_bytes(shape, out_of(config).in_count));
    out->lse = ox_bump_alloc(&carve, ox_rows_f32_bytes(shape, config->heads));
    out->mean = ox_bump_alloc(&carve, ox_rows_f32_bytes(shape, 1));
    out->rstd = ox_bump_alloc(&carve, ox_rows_f32_bytes(shape, 1));
    if (pass == OX_PASS_FORWARD) {
        return carve.bytes;
    }
    out->normed = ox_bump_alloc(&carve, ox_rows_bytes(shape, config->hidden));
    if (config->qk_norm) {
        out->q_raw = ox_bump_alloc(&carve, ox_rows_bytes(shape, config->heads * config->head_dim));
        out->k_raw = ox_bump_alloc(&carve, ox_rows_bytes(shape, config->kv_heads * config->head_dim));
    }
    return carve.bytes;
}

static void sizes(const struct ox_shape *shape, const struct ox_half *half, enum ox_pass pass,
                  struct ox_half_sizes *out) {
    const struct ox_model_config *const config = &shape->model->config;
    const struct ox_attention_shape attention = shape_of(shape, half->window);
    struct tensors t;
    *out = (struct ox_half_sizes){.saved = carve_saved(shape, pass, NULL, &t)};
    out->scratch[OX_SCRATCH_OP] = ox_ops_attention_scratch_bytes(&shape->compute, &attention);
    if (pass != OX_PASS_FORWARD_KEPT) {
        out->scratch[OX_SCRATCH_ROWS] = ox_rows_bytes(shape, config->hidden);
    }
    if (ox_pass_is_backward(pass)) {
        const uint32_t widest = config->hidden > config->head_dim ? config->hidden : config->head_dim;
        out->scratch[OX_SCRATCH_NORM] = ox_ops_norm_scratch_bytes(&shape->compute, widest);
    }
    if (pass != OX_PASS_FORWARD) { /* a pass that saves also lays out what backward borrows */
        out->borrowed[0] = ox_rows_bytes(shape, qkv_of(config).out_count);
        out->borrowed[1] = ox_rows_bytes(shape, out_of(config).in_count);
    }
}

static struct tensors tensors_of(const struct ox_half_call *call) {
    struct tensors t = {.normed = call->room.scratch[OX_SCRATCH_ROWS]}; /* unless it is saved */
    carve_saved(call->job->shape, call->pass, call->room.saved, &t);
    return t;
}

/* ---- norm per head, rotation ---- */

/* The heads of q or of k within a row of qkv. */
struct heads {
    enum ox_role gain;
    uint32_t first, count;
    void *raw;
    float *rstd;
};

static void normed_heads(const struct ox_half_call *call, const struct tensors *t, struct heads out[2]) {
    const struct ox_model_config *const config = &call->job->shape->model->config;
    out[0] = (struct heads){OX_ROLE_Q_NORM, 0, config->heads, t->q_raw, t->q_rstd};
    out[1] = (struct heads){OX_ROLE_K_NORM, config->heads, config->kv_heads, t->k_raw, t->k_rstd};
}

/* Where head `idx` begins in the first row of qkv. */
static void *head_at(const struct ox_shape *shape, void *qkv, uint32_t idx) {
    const uint64_t elems = (uint64_t)idx * shape->model->config.head_dim;
    return (unsigned char *)qkv + elems * ox_real_bytes(shape->compute.real);
}

static void head_norm_forward(const struct ox_half_call *call, const struct tensors *t) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_model_config *const config = &shape->model->config;
    struct heads heads[2];
    normed_heads(call, t, heads);
    for (int i = 0; config->qk_norm && i < 2; i++) {
        OX_RUN(&call->job->run, head_norm_forward,
               .inout = head_at(shape, t->qkv, heads[i].first), .saved = heads[i].raw, .rstd = heads[i].rstd,
               .gain = ox_weight_of(call, heads[i].gain), .rows = shape->rows,
               .row_stride = qkv_of(config).out_count, .heads = heads[i].count, .head_dim = config->head_dim,
               .eps = config->norm_eps, .real = shape->compute.real);
    }
}

static void head_norm_backward(const struct ox_half_call *call, const struct tensors *t, void *dqkv) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_model_config *const config = &shape->model->config;
    struct heads heads[2];
    normed_heads(call, t, heads);
    for (int i = 0; config->qk_norm && i < 2; i++) {
        OX_RUN(&call->job->run, head_norm_backward,
               .dinout = head_at(shape, dqkv, heads[i].first), .dgain = ox_grad_of(call, heads[i].gain),
               .saved = heads[i].raw, .rstd = heads[i].rstd, .gain = ox_weight_of(call, heads[i].gain),
               .scratch = call->room.scratch[OX_SCRATCH_NORM], .rows = shape->rows,
               .row_stride = qkv_of(config).out_count, .heads = heads[i].count, .head_dim = config->head_dim,
               .real = shape->compute.real, .begins = call->job->begins);
    }
}

static void rope(const struct ox_half_call *call, void *qkv, bool inverse) {
    const struct ox_unit_job *const job = call->job;
    const struct ox_model_config *const config = &job->shape->model->config;
    if (config->rope) {
        OX_RUN(&call->job->run, rope,
               .qk = qkv, .cos_table = job->cos_table, .sin_table = job->sin_table, .positions = job->positions,
               .rows = job->shape->rows, .row_stride = qkv_of(config).out_count,
               .heads = config->heads + config->kv_heads, /* q and k lie before v */
               .head_dim = config->head_dim, .inverse = inverse, .real = job->shape->compute.real);
    }
}

/* ---- the half ---- */

static void attend(const struct ox_half_call *call, const struct tensors *t) {
    const struct ox_unit_job *const job = call->job;
    const struct ox_attention_shape shape = shape_of(job->shape, call->half->window);
    const struct ox_cache *const cache = job->cache;
    if (cache == NULL) {
        OX_RUN(&call->job->run, attention_forward,
               .out = t->att, .lse = t->lse, .qkv = t->qkv, .positions = job->documents,
               .scratch = call->room.scratch[OX_SCRATCH_OP], .shape = shape, .real = job->shape->compute.real);
    } else {
        OX_RUN(&call->job->run, attention_cached,
               .out = t->att, .qkv = t->qkv, .keys = cache->keys, .values = cache->values, .scratch = cache->scratch,
               .rows = job->shape->rows, .cached = cache->count, .heads = shape.heads, .kv_heads = shape.kv_heads,
               .head_dim = shape.head_dim, .window = shape.window, .scale = shape.scale,
               .real = job->shape->compute.real);
    }
}

static void forward(const struct ox_half_call *call, const void *x, void *y) {
    const struct ox_model_config *const config = &call->job->shape->model->config;
    const struct tensors t = tensors_of(call);
    const struct ox_norm norm = ox_half_norm(call, OX_ROLE_NORM1, t.mean, t.rstd);
    ox_norm_forward(call->job, &norm, x, t.normed);
    ox_linear_forward(call, qkv_of(config), t.normed, NULL, t.qkv);
    head_norm_forward(call, &t);
    rope(call, t.qkv, false);
    attend(call, &t);
    if (y != NULL) {
        ox_linear_forward(call, out_of(config), t.att, x, y);
    }
}

static void backward(const struct ox_half_call *call, const void *x, void *dx) {
    const struct ox_unit_job *const job = call->job;
    const struct ox_model_config *const config = &job->shape->model->config;
    const struct tensors t = tensors_of(call);
    const struct ox_norm norm = ox_half_norm(call, OX_ROLE_NORM1, t.mean, t.rstd);
    void *const dqkv = call->room.borrowed[0], *const datt = call->room.borrowed[1];
    void *const dnormed = call->room.scratch[OX_SCRATCH_ROWS];
    ox_linear_backward(call, out_of(config), t.att, dx, datt);
    OX_RUN(&call->job->run, attention_backward,
           .dqkv = dqkv, .dout = datt, .qkv = t.qkv, .out = t.att, .lse = t.lse, .positions = job->documents,
           .scratch = call->room.scratch[OX_SCRATCH_OP], .shape = shape_of(job->shape, call->half->window),
           .real = job->shape->compute.real);
    rope(call, dqkv, true);
    head_norm_backward(call, &t, dqkv);
    ox_linear_backward(call, qkv_of(config), t.normed, dqkv, dnormed);
    ox_norm_backward(call->job, &norm, x, dnormed, dx, dx);
}

/* ---- cost ---- */

/* For each row of a head the CPU copies and turns values for its products; that takes as long as this many pairs. */
static const double PAIRS_OF_A_ROW = 32;

/* Multiprocessors of the GPU that predictions assume: those of an H100 or H200. */
enum { PROCESSORS = 132 };

/* How backward runs on a GPU: our own kernels are three launches; a library has three for each slice of heads, and a
 * slice takes as long as the waves of blocks that it begins. */
struct launched {
    uint32_t count;
    double waiting; /* time over that with all multiprocessors busy */
};

static struct launched backward_launches(const struct ox_attention_shape *attention) {
    struct ox_attention_slices slices;
    if (!ox_attention_slices_of(attention, OX_ATTENTION_SLICE_BYTES, &slices) ||
        !ox_attention_slices_fill(attention, &slices, PROCESSORS)) {
        return (struct launched){.count = 3, .waiting = 1};
    }
    const uint64_t blocks = ox_attention_slices_blocks(attention, &slices);
    return (struct launched){
        .count = 3 * (attention->batch / slices.batch) * (attention->kv_heads / slices.kv_heads),
        .waiting = (double)ox_align_up(blocks, PROCESSORS) / (double)blocks};
}

/* Each pair of a query and a key takes part in two GEMMs forward and five backward. */
double ox_attention_flops(const struct ox_compute *compute, const struct ox_attention_shape *attention,
                          bool backward) {
    const double rows = (double)attention->batch * attention->seq * attention->heads;
    const double pairs = (double)ox_ops_attention_pairs(compute, attention) +
                         (compute->device == OX_DEVICE_CPU ? PAIRS_OF_A_ROW * rows : 0);
    return (backward ? 5 : 2) * 2 * pairs * attention->head_dim;
}

static void attend_cost(struct ox_cost *cost, const struct ox_half *half, bool backward) {
    const struct ox_attention_shape attention = shape_of(cost->shape, half->window);
    const struct launched launched = cost->on_gpu && backward ? backward_launches(&attention)
                                                              : (struct launched){.count = 1, .waiting = 1};
    *(backward ? &cost->work.attention_backward_flops : &cost->work.attention_flops) +=
        launched.waiting * ox_attention_flops(&cost->shape->compute, &attention, backward);
    cost->work.ops += launched.count;
}

/* Rotation and norm per head, where the model has them. The CPU's rates were measured with the rotation in all
 * models. */
static void heads_cost(struct ox_cost *cost, struct ox_cost_loop norm) {
    const struct ox_model_config *const config = &cost->shape->model->config;
    const double width = (double)(config->heads + config->kv_heads) * config->head_dim;
    if (config->rope || !cost->on_gpu) {
        ox_cost_add_loop(cost, cost->rows, width, (struct ox_cost_loop){.passes = 2, .ops = 1});
    }
    if (config->qk_norm) {
        ox_cost_add_loop(cost, cost->rows, width, norm);
    }
}

static void forward_cost(struct ox_cost *cost, const struct ox_half *half, bool whole) {
    const struct ox_model_config *const config = &cost->shape->model->config;
    ox_cost_add_loop(cost, cost->rows, config->hidden, cost->loops->norm);
    ox_cost_linear_forward(cost, qkv_of(config), false);
    heads_cost(cost, cost->loops->head_norm);
    attend_cost(cost, half, false);
    if (whole) {
        ox_cost_linear_forward(cost, out_of(config), true);
    }
}

static void backward_cost(struct ox_cost *cost, const struct ox_half *half) {
    const struct ox_model_config *const config = &cost->shape->model->config;
    ox_cost_linear_backward(cost, out_of(config));
    attend_cost(cost, half, true);
    heads_cost(cost, cost->loops->head_norm_backward);
    ox_cost_linear_backward(cost, qkv_of(config));
    ox_cost_add_loop(cost, cost->rows, config->hidden, cost->loops->norm_backward);
}

const struct ox_half_ops ox_half_attention = {.sizes = sizes,
                                              .forward = forward,
                                              .backward = backward,
                                              .forward_cost = forward_cost,
                                              .backward_cost = backward_cost};
