#include "engine/model/block_internal.h"

#include "base/arena.h"
#include "base/assert.h"

#include <stddef.h>

struct ox_block_widths ox_block_widths_of(const struct ox_model_config *config) {
    return (struct ox_block_widths){
        .hidden = config->hidden,
        .qkv = (config->heads + 2 * config->kv_heads) * config->head_dim,
        .att = config->heads * config->head_dim,
        .mlp_in = config->width * (config->act == OX_ACT_SWIGLU ? 2 : 1),
        .mlp = config->width,
    };
}

static struct ox_attention_shape attention_shape(const struct ox_shape *shape) {
    const struct ox_model_config *const config = &shape->model->config;
    return (struct ox_attention_shape){
        .batch = shape->batch,
        .seq = shape->seq,
        .heads = config->heads,
        .kv_heads = config->kv_heads,
        .head_dim = config->head_dim,
        .scale = (float)(1.0 / __builtin_sqrt((double)config->head_dim)),
    };
}

struct ox_attention_shape ox_block_attention_of(const struct ox_shape *shape, uint32_t unit_idx) {
    const struct ox_model_config *const config = &shape->model->config;
    struct ox_attention_shape attention = attention_shape(shape);
    attention.window = unit_idx - 1 >= config->window_layer ? config->window : 0;
    return attention;
}

static struct ox_attention_shape attention_of(const struct ox_block_run *run) {
    return ox_block_attention_of(run->shape, (uint32_t)(run->unit - run->shape->model->units));
}

/* Everything a block needs while it works on one micro-batch. Names are those of the forward pass; backward
 * writes gradients over what it no longer needs, as the comments there say. */
struct work {
    /* What backward reads of the forward pass. */
    void *a;              /* (rows, hidden): norm 1                       */
    void *qkv;            /* (rows, qkv), normed per head, rotated        */
    float *q_rstd, *k_rstd; /* (rows, heads), (rows, kv_heads): of the norm per head, where there is one */
    void *q_raw, *k_raw;  /* q and k before that norm; for backward alone */
    void *att;            /* (rows, att)                                  */
    float *lse;           /* (batch, heads, seq)                          */
    float *mean1, *rstd1, *mean2, *rstd2; /* (rows)                       */
    void *u;              /* (rows, mlp_in): before the activation        */
    void *g;              /* (rows, mlp)                                  */
    void *x2;             /* (rows, hidden): after attention; for backward alone */
    void *b;              /* (rows, hidden): norm 2; for backward alone    */
    /* What is free again when the function ends. */
    void *t;              /* (rows, max(mlp, hidden)): backward alone      */
    void *attention_scratch, *norm_scratch;
};

/* So many activations of every row. */
static void *take_rows(struct ox_carve *carve, const struct ox_shape *shape, uint32_t width) {
    return ox_carve_take(carve, (uint64_t)shape->rows * width * ox_real_bytes(shape->compute.real));
}

static float *take_floats(struct ox_carve *carve, const struct ox_shape *shape, uint32_t width) {
    return ox_carve_take(carve, (uint64_t)shape->rows * width * sizeof(float));
}

static uint32_t max_u32(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

/* The first part. Without backward only what forward itself needs, and in less room. */
static void carve_passed(const struct ox_shape *shape, bool backward, struct ox_carve *carve, struct work *out) {
    const struct ox_model_config *const config = &shape->model->config;
    const struct ox_block_widths w = ox_block_widths_of(config);
    out->a = take_rows(carve, shape, w.hidden);
    out->qkv = take_rows(carve, shape, w.qkv);
    if (config->qk_norm) {
        out->q_rstd = take_floats(carve, shape, config->heads);
        out->k_rstd = take_floats(carve, shape, config->kv_heads);
    }
    out->att = take_rows(carve, shape, w.att);
    out->lse = take_floats(carve, shape, config->heads);
    out->mean1 = take_floats(carve, shape, 1);
    out->rstd1 = take_floats(carve, shape, 1);
    out->mean2 = take_floats(carve, shape, 1);
    out->rstd2 = take_floats(carve, shape, 1);
    out->u = take_rows(carve, shape, backward ? max_u32(w.mlp_in, w.qkv) : w.mlp_in);
    out->g = take_rows(carve, shape, backward ? max_u32(w.mlp, w.att) : w.mlp);
    if (!backward) {
        out->b = out->a; /* norm 1 is not needed any more when norm 2 is made */
        return;
    }
    out->x2 = take_rows(carve, shape, w.hidden);
    out->b = take_rows(carve, shape, w.hidden);
    if (config->qk_norm) {
        out->q_raw = take_rows(carve, shape, w.att);
        out->k_raw = take_rows(carve, shape, config->kv_heads * config->head_dim);
    }
}

/* The second part. */
static void carve_scratch(const struct ox_shape *shape, bool backward, struct ox_carve *carve, struct work *out) {
    const struct ox_model_config *const config = &shape->model->config;
    const struct ox_block_widths w = ox_block_widths_of(config);
    const struct ox_attention_shape attention = attention_shape(shape);
    if (backward) {
        const uint32_t cols = max_u32(config->hidden, config->head_dim);
        out->t = take_rows(carve, shape, max_u32(w.mlp, w.hidden));
        out->norm_scratch = ox_carve_take(carve, ox_ops_norm_scratch_bytes(&shape->compute, cols));
    }
    out->attention_scratch = ox_carve_take(carve, ox_ops_attention_scratch_bytes(&shape->compute, &attention));
}

/* Both in `work`, or the first in what is kept from forward to backward, where there is that. */
static void carve_work(const struct ox_block_run *run, bool backward, struct work *out) {
    struct ox_carve work = {.base = run->work}, kept = {.base = run->kept};
    *out = (struct work){0};
    carve_passed(run->shape, backward || run->kept != NULL, run->kept != NULL ? &kept : &work, out);
    carve_scratch(run->shape, backward, &work, out);
}

static uint64_t work_bytes(const struct ox_shape *shape, bool backward, bool kept) {
    struct ox_carve carve = {.base = NULL};
    struct work work;
    if (!kept) {
        carve_passed(shape, backward, &carve, &work);
    }
    carve_scratch(shape, backward, &carve, &work);
    return carve.bytes;
}

uint64_t ox_block_forward_bytes(const struct ox_shape *shape, bool kept) {
    return work_bytes(shape, false, kept);
}

uint64_t ox_block_backward_bytes(const struct ox_shape *shape, bool kept) {
    return work_bytes(shape, true, kept);
}

uint64_t ox_block_kept_bytes(const struct ox_shape *shape) {
    struct ox_carve carve = {.base = NULL};
    struct work work;
    carve_passed(shape, true, &carve, &work);
    return carve.bytes;
}

/* Element `at` of a tensor of activations or weights. */
static void *element(const struct ox_block_run *run, void *tensor, uint64_t at) {
    return (unsigned char *)tensor + at * ox_real_bytes(run->shape->compute.real);
}

/* The part of a unit's vector that plays a role; NULL when the family has none. */
static const void *part(const struct ox_block_run *run, const void *base, enum ox_role role) {
    const uint64_t offset = run->unit->role_offset[role];
    return offset == UINT64_MAX ? NULL : (const unsigned char *)base + offset * ox_real_bytes(run->shape->compute.real);
}

/* The same of its gradient. */
static float *part_out(const struct ox_block_run *run, float *base, enum ox_role role) {
    const uint64_t offset = run->unit->role_offset[role];
    return offset == UINT64_MAX ? NULL : base + offset;
}

/* ---- pieces shared by forward and recomputation ------------------------------------------------ */

static enum ox_status norm(const struct ox_block_run *run, const void *weights, enum ox_role gain,
                           const void *in, void *out, float *mean, float *rstd) {
    const struct ox_model_config *const config = &run->shape->model->config;
    return run->ops->norm_forward(run->lane, &(struct ox_op_norm_forward){
        .out = out,
        .mean = config->norm == OX_NORM_LAYER ? mean : NULL,
        .rstd = rstd,
        .in = in,
        .gain = part(run, weights, gain),
        .bias = part(run, weights, (enum ox_role)(gain + 1)), /* a bias role follows its gain */
        .rows = run->shape->rows,
        .cols = config->hidden,
        .eps = config->norm_eps,
        .kind = config->norm,
        .real = run->shape->compute.real,
    });
}

/* One matrix of the block. */
struct matrix {
    enum ox_role role; /* its bias role follows */
    uint32_t in_count, out_count;
};

static enum ox_status linear(const struct ox_block_run *run, const void *weights, struct matrix matrix,
                             const void *in, const void *residual, void *out) {
    return run->ops->linear_forward(run->lane, &(struct ox_op_linear_forward){
        .out = out,
        .in = in,
        .weight = part(run, weights, matrix.role),
        .bias = part(run, weights, (enum ox_role)(matrix.role + 1)),
        .residual = residual,
        .rows = run->shape->rows,
        .in_count = matrix.in_count,
        .out_count = matrix.out_count,
        .layout = run->shape->model->config.layout,
        .real = run->shape->compute.real,
    });
}

static enum ox_status rope(const struct ox_block_run *run, void *qkv, bool inverse) {
    const struct ox_model_config *const config = &run->shape->model->config;
    if (!config->rope) {
        return OX_OK;
    }
    return run->ops->rope(run->lane, &(struct ox_op_rope){
        .qk = qkv,
        .cos_table = run->cos_table,
        .sin_table = run->sin_table,
        .positions = run->positions,
        .rows = run->shape->rows,
        .row_stride = ox_block_widths_of(config).qkv,
        .heads = config->heads + config->kv_heads, /* q and k lie before v */
        .head_dim = config->head_dim,
        .inverse = inverse,
        .real = run->shape->compute.real,
    });
}

/* The norm of queries or of keys. */
struct heads {
    enum ox_role gain;
    uint32_t first, count; /* of the heads of a row of qkv */
    void *raw;
    float *rstd;
};

static void norm_heads(const struct ox_block_run *run, const struct work *work, struct heads out[2]) {
    const struct ox_model_config *const config = &run->shape->model->config;
    out[0] = (struct heads){OX_ROLE_Q_NORM, 0, config->heads, work->q_raw, work->q_rstd};
    out[1] = (struct heads){OX_ROLE_K_NORM, config->heads, config->kv_heads, work->k_raw, work->k_rstd};
}

static enum ox_status qk_norm(const struct ox_block_run *run, const void *weights, const struct work *work) {
    const struct ox_model_config *const config = &run->shape->model->config;
    struct heads heads[2];
    enum ox_status status = OX_OK;
    norm_heads(run, work, heads);
    for (int i = 0; config->qk_norm && status == OX_OK && i < 2; i++) {
        status = run->ops->head_norm_forward(run->lane, &(struct ox_op_head_norm_forward){
            .inout = element(run, work->qkv, (uint64_t)heads[i].first * config->head_dim), .saved = heads[i].raw,
            .rstd = heads[i].rstd, .gain = part(run, weights, heads[i].gain), .rows = run->shape->rows,
            .row_stride = ox_block_widths_of(config).qkv, .heads = heads[i].count, .head_dim = config->head_dim,
            .eps = config->norm_eps, .real = run->shape->compute.real});
    }
    return status;
}

static enum ox_status attend(const struct ox_block_run *run, const struct work *work) {
    const struct ox_attention_shape shape = attention_of(run);
    const struct ox_block_cache *const cache = run->cache;
    if (cache == NULL) {
        return run->ops->attention_forward(run->lane, &(struct ox_op_attention_forward){
            .out = work->att, .lse = work->lse, .qkv = work->qkv, .positions = run->documents,
            .scratch = work->attention_scratch, .shape = shape, .real = run->shape->compute.real});
    }
    return run->ops->attention_cached(run->lane, &(struct ox_op_attention_cached){
        .out = work->att, .qkv = work->qkv, .keys = cache->keys, .values = cache->values, .scratch = cache->scratch,
        .rows = run->shape->rows, .cached = cache->count, .heads = shape.heads, .kv_heads = shape.kv_heads,
        .head_dim = shape.head_dim, .window = shape.window, .scale = shape.scale,
        .real = run->shape->compute.real});
}

/* From x to the activation's output g; x2 = x + attention is left in `x2`. */
static enum ox_status forward_to_act(const struct ox_block_run *run, const void *weights, const struct work *work,
                                     const void *x, void *x2) {
    const struct ox_model_config *const config = &run->shape->model->config;
    const struct ox_block_widths w = ox_block_widths_of(config);
    enum ox_status status = norm(run, weights, OX_ROLE_NORM1, x, work->a, work->mean1, work->rstd1);
    if (status == OX_OK) {
        status = linear(run, weights, (struct matrix){OX_ROLE_QKV, w.hidden, w.qkv}, work->a, NULL, work->qkv);
    }
    if (status == OX_OK) {
        status = qk_norm(run, weights, work);
    }
    if (status == OX_OK) {
        status = rope(run, work->qkv, false);
    }
    if (status == OX_OK) {
        status = attend(run, work);
    }
    if (status == OX_OK) {
        status = linear(run, weights, (struct matrix){OX_ROLE_OUT, w.att, w.hidden}, work->att, x, x2);
    }
    if (status == OX_OK) {
        status = norm(run, weights, OX_ROLE_NORM2, x2, work->b, work->mean2, work->rstd2);
    }
    if (status == OX_OK) {
        status = linear(run, weights, (struct matrix){OX_ROLE_MLP_IN, w.hidden, w.mlp_in}, work->b, NULL, work->u);
    }
    if (status == OX_OK) {
        status = run->ops->act_forward(run->lane, &(struct ox_op_act_forward){
            .out = work->g, .in = work->u, .rows = run->shape->rows, .width = w.mlp, .kind = config->act,
            .real = run->shape->compute.real});
    }
    return status;
}

enum ox_status ox_block_forward(const struct ox_block_run *run, const void *weights, const void *x, void *y) {
    const struct ox_block_widths w = ox_block_widths_of(&run->shape->model->config);
    struct work work;
    carve_work(run, false, &work);
    void *const x2 = run->kept != NULL ? work.x2 : y;
    const enum ox_status status = forward_to_act(run, weights, &work, x, x2);
    if (status != OX_OK) {
        return status;
    }
    return linear(run, weights, (struct matrix){OX_ROLE_MLP_OUT, w.mlp, w.hidden}, work.g, x2, y);
}

/* ---- backward ---------------------------------------------------------------------------------- */

struct gradients {
    const void *weights;
    float *grads;
};

static enum ox_status linear_back(const struct ox_block_run *run, struct gradients to, struct matrix matrix,
                                  const void *in, const void *dout, void *din) {
    return run->ops->linear_backward(run->lane, &(struct ox_op_linear_backward){
        .din = din,
        .dweight = part_out(run, to.grads, matrix.role),
        .dbias = part_out(run, to.grads, (enum ox_role)(matrix.role + 1)),
        .dout = dout,
        .in = in,
        .weight = part(run, to.weights, matrix.role),
        .rows = run->shape->rows,
        .in_count = matrix.in_count,
        .out_count = matrix.out_count,
        .layout = run->shape->model->config.layout,
        .real = run->shape->compute.real,
    });
}

struct norm_saved {
    const void *in;
    const float *mean, *rstd;
    void *scratch;
};

/* dx += gradient through the norm. */
static enum ox_status norm_back(const struct ox_block_run *run, struct gradients to, enum ox_role gain,
                                struct norm_saved saved, const void *dout, void *dx) {
    const struct ox_model_config *const config = &run->shape->model->config;
    return run->ops->norm_backward(run->lane, &(struct ox_op_norm_backward){
        .din = dx,
        .residual = dx,
        .dgain = part_out(run, to.grads, gain),
        .dbias = part_out(run, to.grads, (enum ox_role)(gain + 1)),
        .dout = dout,
        .in = saved.in,
        .gain = part(run, to.weights, gain),
        .mean = saved.mean,
        .rstd = saved.rstd,
        .scratch = saved.scratch,
        .rows = run->shape->rows,
        .cols = config->hidden,
        .kind = config->norm,
        .real = run->shape->compute.real,
    });
}

/* The MLP's half: dx becomes the gradient of x2. t holds first that of g, then that of b. */
static enum ox_status mlp_back(const struct ox_block_run *run, struct gradients to, const struct work *work,
                               void *dx) {
    const struct ox_model_config *const config = &run->shape->model->config;
    const struct ox_block_widths w = ox_block_widths_of(config);
    enum ox_status status =
        linear_back(run, to, (struct matrix){OX_ROLE_MLP_OUT, w.mlp, w.hidden}, work->g, dx, work->t);
    if (status == OX_OK) {
        status = run->ops->act_backward(run->lane, &(struct ox_op_act_backward){
            .din = work->u, .dout = work->t, .in = work->u, .rows = run->shape->rows, .width = w.mlp,
            .kind = config->act, .real = run->shape->compute.real});
    }
    if (status == OX_OK) {
        status = linear_back(run, to, (struct matrix){OX_ROLE_MLP_IN, w.hidden, w.mlp_in}, work->b, work->u, work->t);
    }
    if (status == OX_OK) {
        const struct norm_saved saved = {work->x2, work->mean2, work->rstd2, work->norm_scratch};
        status = norm_back(run, to, OX_ROLE_NORM2, saved, work->t, dx);
    }
    return status;
}

/* In u, the gradient of qkv. */
static enum ox_status qk_norm_back(const struct ox_block_run *run, struct gradients to, const struct work *work) {
    const struct ox_model_config *const config = &run->shape->model->config;
    struct heads heads[2];
    enum ox_status status = OX_OK;
    norm_heads(run, work, heads);
    for (int i = 0; config->qk_norm && status == OX_OK && i < 2; i++) {
        status = run->ops->head_norm_backward(run->lane, &(struct ox_op_head_norm_backward){
            .dinout = element(run, work->u, (uint64_t)heads[i].first * config->head_dim),
            .dgain = part_out(run, to.grads, heads[i].gain), .saved = heads[i].raw, .rstd = heads[i].rstd,
            .gain = part(run, to.weights, heads[i].gain), .scratch = work->norm_scratch, .rows = run->shape->rows,
            .row_stride = ox_block_widths_of(config).qkv, .heads = heads[i].count, .head_dim = config->head_dim,
            .real = run->shape->compute.real});
    }
    return status;
}

/* Attention's half: g takes the gradient of att, u that of qkv, t that of a. */
static enum ox_status attention_back(const struct ox_block_run *run, struct gradients to, const struct work *work,
                                     const void *x, void *dx) {
    const struct ox_block_widths w = ox_block_widths_of(&run->shape->model->config);
    enum ox_status status =
        linear_back(run, to, (struct matrix){OX_ROLE_OUT, w.att, w.hidden}, work->att, dx, work->g);
    if (status == OX_OK) {
        status = run->ops->attention_backward(run->lane, &(struct ox_op_attention_backward){
            .dqkv = work->u, .dout = work->g, .qkv = work->qkv, .out = work->att, .lse = work->lse,
            .positions = run->documents, .scratch = work->attention_scratch, .shape = attention_of(run),
            .real = run->shape->compute.real});
    }
    if (status == OX_OK) {
        status = rope(run, work->u, true);
    }
    if (status == OX_OK) {
        status = qk_norm_back(run, to, work);
    }
    if (status == OX_OK) {
        status = linear_back(run, to, (struct matrix){OX_ROLE_QKV, w.hidden, w.qkv}, work->a, work->u, work->t);
    }
    if (status == OX_OK) {
        const struct norm_saved saved = {x, work->mean1, work->rstd1, work->norm_scratch};
        status = norm_back(run, to, OX_ROLE_NORM1, saved, work->t, dx);
    }
    return status;
}

enum ox_status ox_block_backward(const struct ox_block_run *run, const void *weights, float *grads, const void *x,
                                 void *dx) {
    struct work work;
    carve_work(run, true, &work);
    const struct gradients to = {.weights = weights, .grads = grads};
    enum ox_status status = run->kept != NULL ? OX_OK : forward_to_act(run, weights, &work, x, work.x2);
    if (status == OX_OK) {
        status = mlp_back(run, to, &work, dx);
    }
    return status == OX_OK ? attention_back(run, to, &work, x, dx) : status;
}

/* ---- embedding and head -------------------------------------------------------------------------- */

enum ox_status ox_embed_forward(const struct ox_block_run *run, struct ox_planes planes, void *y) {
    const uint64_t table = run->unit->role_offset[OX_ROLE_EMBED];
    const uint64_t position = run->unit->role_offset[OX_ROLE_POSITION];
    const bool learned = position != UINT64_MAX;
    return run->ops->embed_forward(run->lane, &(struct ox_op_embed_forward){
        .out = y,
        .table_hi = planes.hi + table,
        .table_lo = planes.lo == NULL ? NULL : planes.lo + table,
        .pos_hi = learned ? planes.hi + position : NULL,
        .pos_lo = learned && planes.lo != NULL ? planes.lo + position : NULL,
        .ids = run->ids,
        .positions = run->positions,
        .rows = run->shape->rows,
        .hidden = run->shape->model->config.hidden,
        .real = run->shape->compute.real,
    });
}

enum ox_status ox_embed_backward(const struct ox_block_run *run, float *grads, const void *dx) {
    return run->ops->embed_backward(run->lane, &(struct ox_op_embed_backward){
        .dtable = part_out(run, grads, OX_ROLE_EMBED),
        .dpos = part_out(run, grads, OX_ROLE_POSITION),
        .dout = dx,
        .ids = run->ids,
        .positions = run->positions,
        .rows = run->shape->rows,
        .hidden = run->shape->model->config.hidden,
        .real = run->shape->compute.real,
    });
}

struct head_work {
    void *n;            /* (rows, hidden): the final norm's output */
    float *mean, *rstd;
    void *gain, *bias;  /* (hidden): the unit's own weights, where they have to be joined */
    void *norm_scratch, *head_scratch;
};

static uint64_t carve_head(const struct ox_shape *shape, void *base, struct head_work *out) {
    const struct ox_model_config *const config = &shape->model->config;
    const uint64_t joined = shape->compute.real == OX_REAL_F32 ? config->hidden * sizeof(float) : 0;
    struct ox_carve carve = {.base = base};
    out->n = take_rows(&carve, shape, config->hidden);
    out->mean = take_floats(&carve, shape, 1);
    out->rstd = take_floats(&carve, shape, 1);
    out->gain = ox_carve_take(&carve, joined);
    out->bias = ox_carve_take(&carve, joined);
    out->norm_scratch = ox_carve_take(&carve, ox_ops_norm_scratch_bytes(&shape->compute, config->hidden));
    out->head_scratch = ox_carve_take(
        &carve, ox_ops_head_scratch_bytes(&shape->compute, shape->rows, config->hidden, config->vocab));
    return carve.bytes;
}

uint64_t ox_head_bytes(const struct ox_shape *shape) {
    struct head_work work;
    return carve_head(shape, NULL, &work);
}

/* A weight of the head's own as compute uses it: the plane itself in bfloat16, joined to `room` in float32. NULL in
 * *out when the family has none. */
static enum ox_status own_weight(const struct ox_block_run *run, struct ox_planes planes, enum ox_role role,
                                 void *room, const void **out) {
    const uint64_t offset = run->unit->role_offset[role];
    *out = NULL;
    if (offset == UINT64_MAX) {
        return OX_OK;
    }
    if (run->shape->compute.real == OX_REAL_BF16) {
        *out = planes.hi + offset;
        return OX_OK;
    }
    *out = room;
    return run->ops->planes_join(run->lane, &(struct ox_op_planes_join){
        .out = room, .hi = planes.hi + offset, .lo = planes.lo == NULL ? NULL : planes.lo + offset,
        .count = run->shape->model->config.hidden});
}

struct final_norm {
    const void *gain, *bias;
};

static enum ox_status final_norm(const struct ox_block_run *run, const struct ox_head_args *args,
                                 const struct head_work *work, struct final_norm *weights) {
    const struct ox_model_config *const config = &run->shape->model->config;
    enum ox_status status = own_weight(run, args->planes, OX_ROLE_FINAL_NORM, work->gain, &weights->gain);
    if (status == OX_OK) {
        status = own_weight(run, args->planes, OX_ROLE_FINAL_NORM_BIAS, work->bias, &weights->bias);
    }
    if (status != OX_OK) {
        return status;
    }
    return run->ops->norm_forward(run->lane, &(struct ox_op_norm_forward){
        .out = work->n, .mean = config->norm == OX_NORM_LAYER ? work->mean : NULL, .rstd = work->rstd, .in = args->x,
        .gain = weights->gain, .bias = weights->bias, .rows = run->shape->rows, .cols = config->hidden,
        .eps = config->norm_eps, .kind = config->norm, .real = run->shape->compute.real});
}

enum ox_status ox_head_run(const struct ox_block_run *run, const struct ox_head_args *args) {
    const struct ox_model_config *const config = &run->shape->model->config;
    struct head_work work;
    struct final_norm weights;
    carve_head(run->shape, run->work, &work);
    enum ox_status status = run->ops->zero(run->lane, &(struct ox_op_zero){args->loss_sum, sizeof *args->loss_sum});
    if (status == OX_OK) {
        status = final_norm(run, args, &work, &weights);
    }
    if (status == OX_OK) {
        status = run->ops->head(run->lane, &(struct ox_op_head){
            .loss_sum = args->loss_sum, .din = args->dx, .dweight = args->grads_table, .in = work.n,
            .weight_hi = args->table.hi, .weight_lo = args->table.lo, .targets = run->targets,
            .logits = args->logits, .scratch = work.head_scratch, .rows = run->shape->rows,
            .hidden = config->hidden, .vocab = config->vocab, .loss_scale = args->loss_scale,
            .real = run->shape->compute.real});
    }
    if (status == OX_OK && args->dx != NULL) {
        status = run->ops->norm_backward(run->lane, &(struct ox_op_norm_backward){
            .din = args->dx, .dgain = part_out(run, args->grads, OX_ROLE_FINAL_NORM),
            .dbias = part_out(run, args->grads, OX_ROLE_FINAL_NORM_BIAS), .dout = args->dx, .in = args->x,
            .gain = weights.gain, .mean = work.mean, .rstd = work.rstd, .scratch = work.norm_scratch,
            .rows = run->shape->rows, .cols = config->hidden, .kind = config->norm, .real = run->shape->compute.real});
    }
    return status;
}
