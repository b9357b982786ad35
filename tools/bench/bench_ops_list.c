/* Each operation of kernels/ops.h, with its cost. Bytes assume tensors larger than the caches, each read and written
 * once; statistics and gains are left out. Operations with GEMMs count their FLOPs instead. */
#include "tools/bench/bench_ops.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "cpu_optim/muon.h"
#include "cpu_optim/optim.h"
#include "engine/step/update/ops_optim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    HEAD_DIM = 128, GROUP = 4, /* without a model: query heads per key head, without another number */
    CACHED_ROWS_MAX = 4096,
    PARAMS_MAX = 32000 * 4096, PARAMS_MAX_CPU = 8000 * 2048,
};

static double real_bytes(const struct ox_bench_tensors *t) {
    return ox_real_bytes(t->device->compute.real);
}

static double elems_of(const struct ox_bench_tensors *t) {
    return (double)t->shape.rows * t->shape.hidden;
}

static struct ox_lane *lane_of(const struct ox_bench_tensors *t) {
    return t->device->lane;
}

/* ---- planes and gradients -------------------------------------------------------------------------------- */

static enum ox_status zero(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->bytes = 4.0 * (double)t->params;
    return OX_QUEUE(&t->device->ops, lane_of(t), zero, &(struct ox_op_zero){
        .target = t->wide[0], .bytes = t->params * 4});
}

static enum ox_status planes_join(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->bytes = 8.0 * (double)t->params;
    return OX_QUEUE(&t->device->ops, lane_of(t), planes_join, &(struct ox_op_planes_join){
        .out = t->wide[0], .hi = t->hi, .lo = t->lo, .count = t->params});
}

static enum ox_status add(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->bytes = 12.0 * (double)t->params;
    return OX_QUEUE(&t->device->ops, lane_of(t), add, &(struct ox_op_add){
        .target = t->wide[0], .a = t->wide[1], .b = t->wide[2], .count = t->params});
}

/* Ends a sum of as many rows as there is room for. */
static enum ox_status settle(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    const uint32_t rows = (uint32_t)ox_min_u64(t->shape.rows, t->params / t->shape.hidden);
    out->bytes = (4.0 + 2.0 * real_bytes(t)) * rows * t->shape.hidden;
    return OX_QUEUE(&t->device->ops, lane_of(t), settle, &(struct ox_op_settle){
        .out = t->x, .in = t->wide[0], .residual = t->x, .rows = rows, .cols = t->shape.hidden,
        .real = t->device->compute.real});
}

static enum ox_status bf16_pack(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->bytes = 6.0 * (double)t->params;
    return OX_QUEUE(&t->device->ops, lane_of(t), bf16_pack, &(struct ox_op_bf16_pack){
        .out = (uint16_t *)t->wide[0], .in = t->wide[1], .count = t->params});
}

static enum ox_status block8_pack(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->bytes = 4.0 * (double)t->params + (double)ox_exchange_bytes(OX_EXCHANGE_Q8, t->params);
    return OX_QUEUE(&t->device->ops, lane_of(t), block8_pack, &(struct ox_op_block8_pack){
        .blocks = t->wide[0], .in = t->wide[1], .count = t->params});
}

static enum ox_status block8_unpack(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->bytes = 4.0 * (double)t->params + (double)ox_exchange_bytes(OX_EXCHANGE_Q8, t->params);
    return OX_QUEUE(&t->device->ops, lane_of(t), block8_unpack, &(struct ox_op_block8_unpack){
        .out = t->wide[1], .blocks = t->wide[0], .count = t->params});
}

static enum ox_status adam(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    const struct ox_state_format format = {OX_OPTIM_ADAMW, (enum ox_moments)t->kind, false};
    const struct ox_update_traffic traffic = ox_update_traffic_of(format, OX_GRAD_F32);
    out->bytes = (traffic.read + traffic.written) * (double)t->params;
    return OX_QUEUE(&t->device->ops, lane_of(t), adam, &(struct ox_op_adam){
        .hi = t->hi, .state = t->state, .grad = t->wide[1], .nonfinite = t->nonfinite, .elem_count = t->params,
        .count = t->params, .format = format, .isa = t->isa, .decay = true,
        .hyper = t->hyper});
}

static enum ox_status square_sums(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->bytes = 4.0 * (double)t->params;
    return OX_QUEUE(&t->device->ops, lane_of(t), square_sums, &(struct ox_op_square_sums){
        .partials = t->partials, .grad = t->wide[1], .count = t->params});
}

/* A square matrix whose scratch fits into a plane. */
static enum ox_status newton_schulz(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    const uint32_t n = (uint32_t)fmin(sqrt((double)t->params / 3.0), 1024.0);
    const struct ox_muon muon = {.iterations = 5};
    out->flops = ox_muon_flops(&muon, (struct ox_matrix){n, n});
    return OX_QUEUE(&t->device->ops, lane_of(t), newton_schulz, &(struct ox_op_newton_schulz){
        .inout = t->wide[0], .scratch = t->wide[1], .rows = n, .cols = n, .iterations = muon.iterations, .isa = t->isa,
        .factors = {ox_muon_factors[0], ox_muon_factors[1], ox_muon_factors[2]}});
}

/* ---- rows ------------------------------------------------------------------------------------------------ */

static enum ox_status embed_forward(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    const bool exact = t->device->compute.real == OX_REAL_F32;
    out->bytes = elems_of(t) * (real_bytes(t) + (exact ? 4.0 : 2.0));
    return OX_QUEUE(&t->device->ops, lane_of(t), embed_forward, &(struct ox_op_embed_forward){
        .out = t->x, .table_hi = t->hi, .table_lo = exact ? t->lo : NULL, .ids = t->ids, .positions = t->positions,
        .rows = t->shape.rows, .hidden = t->shape.hidden, .real = t->device->compute.real});
}

static enum ox_status embed_backward(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->bytes = elems_of(t) * (real_bytes(t) + 8.0);
    return OX_QUEUE(&t->device->ops, lane_of(t), embed_backward, &(struct ox_op_embed_backward){
        .dtable = t->dweight, .dout = t->x, .ids = t->ids, .positions = t->positions, .rows = t->shape.rows,
        .hidden = t->shape.hidden, .real = t->device->compute.real});
}

static enum ox_status norm_forward(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    const enum ox_norm_kind kind = (enum ox_norm_kind)t->kind;
    out->bytes = elems_of(t) * 2.0 * real_bytes(t);
    return OX_QUEUE(&t->device->ops, lane_of(t), norm_forward, &(struct ox_op_norm_forward){
        .out = t->y, .mean = kind == OX_NORM_LAYER ? t->mean : NULL, .rstd = t->rstd, .in = t->x, .gain = t->weight,
        .bias = kind == OX_NORM_LAYER ? t->weight : NULL, .rows = t->shape.rows, .cols = t->shape.hidden,
        .eps = 1e-5f, .kind = kind, .real = t->device->compute.real});
}

static enum ox_status norm_backward(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    const enum ox_norm_kind kind = (enum ox_norm_kind)t->kind;
    out->bytes = elems_of(t) * 4.0 * real_bytes(t);
    return OX_QUEUE(&t->device->ops, lane_of(t), norm_backward, &(struct ox_op_norm_backward){
        .din = t->z, .residual = t->z, .dgain = t->sums, .dbias = kind == OX_NORM_LAYER ? t->dweight : NULL,
        .dout = t->y, .in = t->x, .gain = t->weight, .mean = t->mean, .rstd = t->rstd, .scratch = t->scratch,
        .rows = t->shape.rows, .cols = t->shape.hidden, .kind = kind, .real = t->device->compute.real});
}

static uint32_t qkv_cols(const struct ox_bench_tensors *t) {
    return (t->heads + 2 * t->kv_heads) * t->head_dim;
}

static enum ox_status head_norm_forward(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->bytes = (double)t->shape.rows * t->heads * t->head_dim * 3.0 * real_bytes(t);
    return OX_QUEUE(&t->device->ops, lane_of(t), head_norm_forward, &(struct ox_op_head_norm_forward){
        .inout = t->qkv, .saved = t->y, .rstd = t->sums, .gain = t->weight, .rows = t->shape.rows,
        .row_stride = qkv_cols(t), .heads = t->heads, .head_dim = t->head_dim, .eps = 1e-6f,
        .real = t->device->compute.real});
}

static enum ox_status head_norm_backward(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->bytes = (double)t->shape.rows * t->heads * t->head_dim * 3.0 * real_bytes(t);
    return OX_QUEUE(&t->device->ops, lane_of(t), head_norm_backward, &(struct ox_op_head_norm_backward){
        .dinout = t->dqkv, .dgain = t->dweight, .saved = t->y, .gain = t->weight, .rstd = t->sums,
        .scratch = t->scratch, .rows = t->shape.rows, .row_stride = qkv_cols(t), .heads = t->heads,
        .head_dim = t->head_dim, .real = t->device->compute.real});
}

static enum ox_status rope(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    const uint32_t heads = t->heads + t->kv_heads;
    out->bytes = (double)t->shape.rows * heads * t->head_dim * 2.0 * real_bytes(t);
    return OX_QUEUE(&t->device->ops, lane_of(t), rope, &(struct ox_op_rope){
        .qk = t->qkv, .cos_table = t->cosines, .sin_table = t->sines, .positions = t->positions,
        .rows = t->shape.rows, .row_stride = qkv_cols(t), .heads = heads, .head_dim = t->head_dim,
        .rotary_dim = t->head_dim, .real = t->device->compute.real});
}

static enum ox_status act_forward(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    const enum ox_activation kind = (enum ox_activation)t->kind;
    out->bytes = (double)t->shape.rows * t->shape.width * (ox_activation_is_gated(kind) ? 3.0 : 2.0) * real_bytes(t);
    return OX_QUEUE(&t->device->ops, lane_of(t), act_forward, &(struct ox_op_act_forward){
        .out = t->act, .in = t->pair, .rows = t->shape.rows, .width = t->shape.width, .kind = kind,
        .real = t->device->compute.real});
}

static enum ox_status act_backward(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    const enum ox_activation kind = (enum ox_activation)t->kind;
    out->bytes = (double)t->shape.rows * t->shape.width * (ox_activation_is_gated(kind) ? 5.0 : 3.0) * real_bytes(t);
    return OX_QUEUE(&t->device->ops, lane_of(t), act_backward, &(struct ox_op_act_backward){
        .din = t->dpair, .dout = t->act, .in = t->pair, .rows = t->shape.rows, .width = t->shape.width, .kind = kind,
        .real = t->device->compute.real});
}

/* ---- GEMMs -------------------------------------------------------------------------------------------- */

/* What a linear layer reads and writes; forward uses no gradients. */
struct linear {
    void *in, *out, *din, *dout;
    const void *residual;
};

static struct linear linear_of(const struct ox_bench_tensors *t) {
    switch ((enum ox_bench_product)t->kind) {
    case OX_BENCH_QKV:
        return (struct linear){.in = t->x, .out = t->qkv, .din = t->y, .dout = t->dqkv};
    case OX_BENCH_PROJECTION:
        return (struct linear){.in = t->z, .out = t->y, .din = t->y, .dout = t->x, .residual = t->x};
    case OX_BENCH_DOWN:
        return (struct linear){.in = t->act, .out = t->y, .din = t->dpair, .dout = t->x, .residual = t->x};
    case OX_BENCH_GATE_UP:
    case OX_BENCH_QKV_GQA:
    case OX_BENCH_HEAD:
    case OX_BENCH_PRODUCT_COUNT:
        break;
    }
    return (struct linear){.in = t->x, .out = t->pair, .din = t->y, .dout = t->dpair};
}

static enum ox_status linear_forward(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    const struct ox_bench_layer layer = ox_bench_layer_of(&t->shape, (enum ox_bench_product)t->kind);
    const struct linear linear = linear_of(t);
    out->flops = 2.0 * t->shape.rows * layer.in_count * layer.out_count;
    return OX_QUEUE(&t->device->ops, lane_of(t), linear_forward, &(struct ox_op_linear_forward){
        .out = linear.out, .in = linear.in, .weight = t->weight, .residual = linear.residual, .rows = t->shape.rows,
        .in_count = layer.in_count, .out_count = layer.out_count, .layout = layer.layout,
        .real = t->device->compute.real});
}

static enum ox_status linear_backward(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    const struct ox_bench_layer layer = ox_bench_layer_of(&t->shape, (enum ox_bench_product)t->kind);
    const struct linear linear = linear_of(t);
    out->flops = 4.0 * t->shape.rows * layer.in_count * layer.out_count;
    return OX_QUEUE(&t->device->ops, lane_of(t), linear_backward, &(struct ox_op_linear_backward){
        .din = linear.din, .dweight = t->dweight, .dout = linear.dout, .in = linear.in, .weight = t->weight,
        .rows = t->shape.rows, .in_count = layer.in_count, .out_count = layer.out_count, .layout = layer.layout,
        .real = t->device->compute.real});
}

struct ox_attention_shape ox_bench_attention_shape(const struct ox_bench_tensors *t) {
    return (struct ox_attention_shape){
        .batch = t->shape.rows / t->shape.seq, .seq = t->shape.seq, .heads = t->heads, .kv_heads = t->kv_heads,
        .head_dim = t->head_dim, .scale = 1.0f / sqrtf((float)t->head_dim)};
}

/* Counts the pairs of a query and a key that it attends to. */
static double pairs_of(const struct ox_bench_tensors *t) {
    return (double)t->shape.rows * (t->shape.seq + 1.0) / 2.0 * t->heads;
}

static enum ox_status attention_forward(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->flops = 4.0 * pairs_of(t) * t->head_dim;
    return OX_QUEUE(&t->device->ops, lane_of(t), attention_forward, &(struct ox_op_attention_forward){
        .out = t->z, .lse = t->lse, .qkv = t->qkv, .scratch = t->scratch, .shape = ox_bench_attention_shape(t),
        .real = t->device->compute.real});
}

static enum ox_status attention_backward(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->flops = 10.0 * pairs_of(t) * t->head_dim;
    return OX_QUEUE(&t->device->ops, lane_of(t), attention_backward, &(struct ox_op_attention_backward){
        .dqkv = t->dqkv, .dout = t->y, .qkv = t->qkv, .out = t->z, .lse = t->lse, .scratch = t->scratch,
        .shape = ox_bench_attention_shape(t), .real = t->device->compute.real});
}

/* One row of a text being generated, which attends to all earlier keys and values. */
static struct ox_op_attention_cached cached_op(const struct ox_bench_tensors *t) {
    return (struct ox_op_attention_cached){
        .out = t->z, .qkv = t->qkv, .keys = t->pair, .values = t->dpair, .scratch = t->scratch, .rows = 1,
        .cached = t->shape.rows / 2 < CACHED_ROWS_MAX ? t->shape.rows / 2 : CACHED_ROWS_MAX, .heads = t->heads,
        .kv_heads = t->kv_heads, .head_dim = t->head_dim, .scale = 1.0f / sqrtf((float)t->head_dim),
        .real = t->device->compute.real};
}

static enum ox_status attention_cached(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    const struct ox_op_attention_cached op = cached_op(t);
    out->bytes = 2.0 * op.cached * op.kv_heads * op.head_dim * real_bytes(t);
    return OX_QUEUE(&t->device->ops, lane_of(t), attention_cached, &op);
}

static enum ox_status head(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    const bool held = ox_ops_head_holds_logits(&t->device->compute, t->shape.rows, t->shape.vocab);
    const bool exact = t->device->compute.real == OX_REAL_F32;
    out->flops = (held ? 6.0 : 8.0) * elems_of(t) * t->shape.vocab;
    return OX_QUEUE(&t->device->ops, lane_of(t), head, &(struct ox_op_head){
        .loss_sum = t->loss, .din = t->y, .dweight = t->dweight, .in = t->x, .weight_hi = t->hi,
        .weight_lo = exact ? t->lo : NULL, .targets = t->targets, .scratch = t->scratch, .rows = t->shape.rows,
        .hidden = t->shape.hidden, .vocab = t->shape.vocab, .loss_scale = 1e-3f, .real = t->device->compute.real});
}

/* Statistics of two parts of the vocabulary. */
static enum ox_status head_merge(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    const uint32_t rows = (uint32_t)ox_min_u64(t->shape.rows, t->params / 8);
    float *const max = t->wide[2];
    const struct ox_head_rows of = {.sum = (double *)(void *)t->wide[0], .max = max, .target = max + 2 * rows};
    out->bytes = 76.0 * rows;
    return OX_QUEUE(&t->device->ops, lane_of(t), head_merge, &(struct ox_op_head_merge){
        .loss_sum = t->loss, .row_losses = (double *)(void *)t->wide[1], .targets = t->targets, .all = of, .part = of,
        .part_count = 2, .rows = rows, .vocab_whole = t->shape.vocab});
}

static enum ox_status logits(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->bytes = 8.0 * (double)t->params;
    return OX_QUEUE(&t->device->ops, lane_of(t), logits, &(struct ox_op_logits){
        .logits = t->wide[0], .count = t->params, .cap = 30.0f});
}

static enum ox_status noise(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->bytes = 2.0 * elems_of(t) * real_bytes(t);
    return OX_QUEUE(&t->device->ops, lane_of(t), noise, &(struct ox_op_noise){
        .inout = t->x, .count = (uint64_t)elems_of(t), .magnitude = 1e-3f, .real = t->device->compute.real});
}

static enum ox_status drop(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->bytes = 2.0 * elems_of(t) * real_bytes(t);
    return OX_QUEUE(&t->device->ops, lane_of(t), drop, &(struct ox_op_drop){
        .out = t->x, .in = t->x, .count = (uint64_t)elems_of(t), .rate = 0.1f, .real = t->device->compute.real});
}

/* Lengths of the rows of a matrix with an adapter of rank 8, which reads it once. */
static enum ox_status dora_norm(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    const uint32_t hidden = t->shape.hidden;
    out->bytes = (double)hidden * hidden * real_bytes(t);
    return OX_QUEUE(&t->device->ops, lane_of(t), dora_norm, &(struct ox_op_dora_norm){
        .norm = t->dweight, .weight = t->weight, .a = t->weight, .b = t->weight, .in_count = hidden,
        .out_count = hidden, .r = 8, .scale = 1.0f, .real = t->device->compute.real});
}

static enum ox_status dora_forward(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    const uint32_t hidden = t->shape.hidden;
    out->bytes = 2.0 * t->shape.rows * hidden * real_bytes(t);
    return OX_QUEUE(&t->device->ops, lane_of(t), dora_forward, &(struct ox_op_dora_forward){
        .out = t->y, .in = t->x, .norm = t->dweight, .magnitude = t->weight, .rows = t->shape.rows, .cols = hidden,
        .stride = hidden, .real = t->device->compute.real});
}

static enum ox_status dora_backward(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    const uint32_t hidden = t->shape.hidden;
    out->bytes = 3.0 * t->shape.rows * hidden * real_bytes(t);
    return OX_QUEUE(&t->device->ops, lane_of(t), dora_backward, &(struct ox_op_dora_backward){
        .din = t->y, .dmagnitude = t->dweight, .dout = t->y, .in = t->x, .norm = t->dweight, .magnitude = t->weight,
        .rows = t->shape.rows, .cols = hidden, .stride = hidden, .real = t->device->compute.real, .begins = true});
}

/* Weighs the rows of one pair of sequences; what their losses are does not change the cost. */
static enum ox_status pairs(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->bytes = 12.0 * t->shape.rows;
    return OX_QUEUE(&t->device->ops, lane_of(t), pairs, &(struct ox_op_pairs){
        .values = (double *)t->dweight, .row_weights = t->wide[0], .row_nll = t->wide[1], .targets = t->targets,
        .batch = 2, .seq = t->shape.rows / 2, .beta = 0.1f});
}

const struct ox_bench_op *ox_bench_ops_all(uint32_t *count) {
    enum { OPS_MAX = 96 };
    static struct ox_bench_op joined[OPS_MAX];
    static const struct ox_bench_op all[] = {
        {OX_OP_zero, NULL, zero, 0, 0},
        {OX_OP_planes_join, NULL, planes_join, 0, 0},
        {OX_OP_add, NULL, add, 0, 0},
        {OX_OP_settle, NULL, settle, 0, 0},
        {OX_OP_bf16_pack, NULL, bf16_pack, 0, 0},
        {OX_OP_block8_pack, NULL, block8_pack, 0, 0},
        {OX_OP_block8_unpack, NULL, block8_unpack, 0, 0},
        {OX_OP_embed_forward, NULL, embed_forward, 0, 0},
        {OX_OP_embed_backward, NULL, embed_backward, 0, 0},
        {OX_OP_norm_forward, "rms_forward", norm_forward, OX_NORM_RMS, 0},
        {OX_OP_norm_backward, "rms_backward", norm_backward, OX_NORM_RMS, 0},
        {OX_OP_norm_forward, "layer_forward", norm_forward, OX_NORM_LAYER, 0},
        {OX_OP_norm_backward, "layer_backward", norm_backward, OX_NORM_LAYER, 0},
        {OX_OP_head_norm_forward, NULL, head_norm_forward, 0, 0},
        {OX_OP_head_norm_backward, NULL, head_norm_backward, 0, 0},
        {OX_OP_rope, NULL, rope, 0, 0},
        {OX_OP_act_forward, "swiglu_forward", act_forward, OX_ACTIVATION_SWIGLU, 0},
        {OX_OP_act_backward, "swiglu_backward", act_backward, OX_ACTIVATION_SWIGLU, 0},
        {OX_OP_act_forward, "geglu_forward", act_forward, OX_ACTIVATION_GEGLU_TANH, 0},
        {OX_OP_act_backward, "geglu_backward", act_backward, OX_ACTIVATION_GEGLU_TANH, 0},
        {OX_OP_act_forward, "gelu_forward", act_forward, OX_ACTIVATION_GELU_TANH, 0},
        {OX_OP_act_backward, "gelu_backward", act_backward, OX_ACTIVATION_GELU_TANH, 0},
        {OX_OP_linear_forward, NULL, linear_forward, OX_BENCH_GATE_UP, 0},
        {OX_OP_linear_backward, NULL, linear_backward, OX_BENCH_GATE_UP, 0},
        {OX_OP_linear_forward, "linear_forward.qkv", linear_forward, OX_BENCH_QKV, 0},
        {OX_OP_linear_backward, "linear_backward.qkv", linear_backward, OX_BENCH_QKV, 0},
        {OX_OP_linear_forward, "linear_forward.projection", linear_forward, OX_BENCH_PROJECTION, 0},
        {OX_OP_linear_backward, "linear_backward.projection", linear_backward, OX_BENCH_PROJECTION, 0},
        {OX_OP_linear_forward, "linear_forward.down", linear_forward, OX_BENCH_DOWN, 0},
        {OX_OP_linear_backward, "linear_backward.down", linear_backward, OX_BENCH_DOWN, 0},
        {OX_OP_attention_forward, "attention_forward.dim_64", attention_forward, GROUP, 64},
        {OX_OP_attention_backward, "attention_backward.dim_64", attention_backward, GROUP, 64},
        {OX_OP_attention_forward, "attention_forward.dim_128", attention_forward, GROUP, 128},
        {OX_OP_attention_backward, "attention_backward.dim_128", attention_backward, GROUP, 128},
        {OX_OP_attention_forward, "attention_forward.dim_128.mha", attention_forward, 1, 128},
        {OX_OP_attention_backward, "attention_backward.dim_128.mha", attention_backward, 1, 128},
        {OX_OP_attention_forward, "attention_forward.model", attention_forward, 0, OX_BENCH_DIM_OF_MODEL},
        {OX_OP_attention_backward, "attention_backward.model", attention_backward, 0, OX_BENCH_DIM_OF_MODEL},
        {OX_OP_attention_cached, NULL, attention_cached, 0, 0},
        {OX_OP_head, NULL, head, 0, 0},
        {OX_OP_head_merge, NULL, head_merge, 0, 0},
        {OX_OP_logits, NULL, logits, 0, 0},
        {OX_OP_pairs, NULL, pairs, 0, 0},
        {OX_OP_noise, NULL, noise, 0, 0},
        {OX_OP_drop, NULL, drop, 0, 0},
        {OX_OP_dora_norm, NULL, dora_norm, 0, 0},
        {OX_OP_dora_forward, NULL, dora_forward, 0, 0},
        {OX_OP_dora_backward, NULL, dora_backward, 0, 0},
        {OX_OP_square_sums, NULL, square_sums, 0, 0},
        {OX_OP_newton_schulz, NULL, newton_schulz, 0, 0},
        {OX_OP_adam, "adam.f32", adam, OX_MOMENTS_F32, 0},
        {OX_OP_adam, "adam.bf16", adam, OX_MOMENTS_BF16, 0},
        {OX_OP_adam, "adam.q8", adam, OX_MOMENTS_Q8, 0},
    };
    const uint32_t own = sizeof all / sizeof *all;
    const struct ox_bench_op *const moe = ox_bench_ops_moe(count);
    OX_ASSERT(own + *count <= OPS_MAX);
    memcpy(joined, all, sizeof all);
    memcpy(joined + own, moe, *count * sizeof *moe);
    *count += own;
    return joined;
}

const char *ox_bench_op_name(const struct ox_bench_op *op) {
    return op->name != NULL ? op->name : ox_op_rows[op->op].name;
}

/* ---- the tensors ----------------------------------------------------------------------------------------- */

static uint32_t rope_dim(const struct ox_bench_shape *shape) {
    return shape->heads > 0 ? shape->head_dim : (uint32_t)HEAD_DIM;
}

void ox_bench_tensors_select(struct ox_bench_tensors *t, const struct ox_bench_op *op) {
    const struct ox_bench_shape *const shape = &t->shape;
    const uint32_t group = op->head_dim != 0 ? (uint32_t)op->kind : GROUP;
    t->kind = op->kind;
    if (shape->heads > 0) {
        t->heads = shape->heads;
        t->kv_heads = shape->kv_heads;
        t->head_dim = shape->head_dim;
        return;
    }
    t->head_dim = op->head_dim != 0 ? op->head_dim : HEAD_DIM;
    t->heads = shape->hidden / t->head_dim;
    t->kv_heads = t->heads / group > 0 ? t->heads / group : 1;
}

static uint64_t scratch_bytes(struct ox_bench_tensors *t) {
    const struct ox_compute *const compute = &t->device->compute;
    const struct ox_bench_shape *const shape = &t->shape;
    uint64_t most = ox_max_u64(ox_ops_norm_scratch_bytes(compute, shape->hidden),
                               ox_ops_head_scratch_bytes(compute, shape->rows, shape->hidden, shape->vocab));
    uint32_t count = 0;
    most = ox_max_u64(most, ox_bench_moe_scratch_bytes(t));
    const struct ox_bench_op *const all = ox_bench_ops_all(&count);
    for (uint32_t i = 0; i < count; i++) {
        if (!ox_bench_op_runs(shape, &all[i])) {
            continue;
        }
        ox_bench_tensors_select(t, &all[i]);
        const struct ox_attention_shape attention = ox_bench_attention_shape(t);
        const struct ox_op_attention_cached cached = cached_op(t);
        most = ox_max_u64(most, ox_ops_attention_scratch_bytes(compute, &attention));
        most = ox_max_u64(most, ox_ops_attention_cached_scratch_bytes(compute, &cached));
    }
    return most;
}

/* Sets the elements of a table, and of the planes of an update: those of the table, but no more than the fixed sizes
 * have, because the rates do not change beyond. */
static void set_elems(struct ox_bench_tensors *t) {
    const bool gpu = t->device->compute.device == OX_DEVICE_CUDA;
    t->table_elems = ox_align_up((uint64_t)t->shape.vocab * t->shape.hidden, OX_GROUP_ELEMS);
    t->params = ox_min_u64(t->table_elems, gpu ? PARAMS_MAX : PARAMS_MAX_CPU);
}

/* The tensors that rows have. */
static void carve_rows(struct ox_bench_tensors *t, struct ox_bump *room) {
    const struct ox_bench_shape *const shape = &t->shape;
    const uint64_t rows = shape->rows, real = ox_real_bytes(t->device->compute.real);
    const uint64_t wide = ox_max_u64(shape->hidden, ox_bench_attention_width(shape));
    const uint64_t pair = ox_max_u64(2 * (uint64_t)shape->width, wide);
    const uint64_t heads = shape->heads > 0 ? shape->heads : shape->hidden / 64;
    void **const rows_of[] = {&t->x, &t->y, &t->z};
    for (unsigned i = 0; i < 3; i++) {
        *rows_of[i] = ox_bump_alloc(room, rows * wide * real);
    }
    t->qkv = ox_bump_alloc(room, rows * ox_bench_qkv_width(shape) * real); /* grouped key heads may need less */
    t->dqkv = ox_bump_alloc(room, rows * ox_bench_qkv_width(shape) * real);
    t->pair = ox_bump_alloc(room, rows * pair * real);
    t->dpair = ox_bump_alloc(room, rows * pair * real);
    t->act = ox_bump_alloc(room, rows * shape->width * real);
    t->sums = ox_bump_alloc(room, ox_max_u64(rows * heads, wide) * sizeof(float));
    t->lse = ox_bump_alloc(room, rows * heads * sizeof(float));
    t->mean = ox_bump_alloc(room, rows * sizeof(float));
    t->rstd = ox_bump_alloc(room, rows * sizeof(float));
}

uint64_t ox_bench_tensors_carve(struct ox_bench_tensors *t, unsigned char *base) {
    struct ox_bump room = {.base = base};
    const uint64_t rows = t->shape.rows, real = ox_real_bytes(t->device->compute.real);
    const uint64_t angles = (uint64_t)t->shape.seq * (rope_dim(&t->shape) / 2);
    struct ox_bench_layer layers[OX_BENCH_PRODUCT_COUNT];
    uint64_t weight = 0;
    for (uint32_t i = ox_bench_layers(&t->shape, layers); i > 0; i--) {
        weight = ox_max_u64(weight, (uint64_t)layers[i - 1].in_count * layers[i - 1].out_count);
    }
    set_elems(t);
    carve_rows(t, &room);
    for (unsigned i = 0; i < 3; i++) {
        t->wide[i] = ox_bump_alloc(&room, t->params * sizeof(float));
    }
    t->weight = ox_bump_alloc(&room, weight * real);
    t->dweight = ox_bump_alloc(&room, weight * sizeof(float));
    t->cosines = ox_bump_alloc(&room, angles * sizeof(float));
    t->sines = ox_bump_alloc(&room, angles * sizeof(float));
    t->hi = ox_bump_alloc(&room, t->table_elems * sizeof(uint16_t));
    t->lo = ox_bump_alloc(&room, t->table_elems * sizeof(uint16_t));
    t->state = ox_bump_alloc(&room, ox_state_layout_of((struct ox_state_format){OX_OPTIM_ADAMW, OX_MOMENTS_F32, false},
                                                       t->params).bytes);
    t->partials = ox_bump_alloc(&room, t->params / OX_GROUP_ELEMS * sizeof(double));
    t->loss = ox_bump_alloc(&room, sizeof(double));
    t->nonfinite = ox_bump_alloc(&room, sizeof(uint64_t));
    t->ids = ox_bump_alloc(&room, rows * sizeof(int32_t));
    t->positions = ox_bump_alloc(&room, rows * sizeof(int32_t));
    t->targets = ox_bump_alloc(&room, rows * sizeof(int32_t));
    ox_bench_moe_carve(t, &room);
    t->scratch = ox_bump_alloc(&room, scratch_bytes(t));
    return room.bytes;
}

static enum ox_status put_rows(struct ox_bench_tensors *t) {
    const uint32_t rows = t->shape.rows;
    int32_t *const values = malloc(3 * (size_t)rows * sizeof *values);
    if (values == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for the rows to measure with");
    }
    for (uint32_t i = 0; i < rows; i++) {
        values[i] = (int32_t)(i * UINT64_C(2654435761) % t->shape.vocab);
        values[rows + i] = (int32_t)(i % t->shape.seq);
        values[2 * rows + i] = (int32_t)(i * UINT64_C(40503) % t->shape.vocab);
    }
    int32_t *const targets[] = {t->ids, t->positions, t->targets};
    enum ox_status status = OX_OK;
    for (unsigned i = 0; i < 3 && status == OX_OK; i++) {
        status = ox_bench_device_put(t->device, targets[i], values + (size_t)i * rows, rows * sizeof *values);
    }
    free(values);
    return status;
}

enum ox_status ox_bench_tensors_fill(struct ox_bench_tensors *t) {
    double angles[OX_BENCH_HEAD_DIM_MAX / 2];
    const uint32_t half_dim = rope_dim(&t->shape) / 2;
    const struct ox_optim_settings settings = {.learning_rate = 1e-4, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8,
                                              .weight_decay = 0.01, .grad_scale = 0.5, .step = 100};
    ox_optim_hyper_init(&settings, &t->hyper);
    OX_ASSERT(half_dim <= OX_BENCH_HEAD_DIM_MAX / 2);
    for (uint32_t i = 0; i < half_dim; i++) {
        angles[i] = pow(10000.0, -(double)i / half_dim);
    }
    enum ox_status status = put_rows(t);
    OX_THEN(status, OX_QUEUE(&t->device->ops, lane_of(t), rope_table, &(struct ox_op_rope_table){
         .cos_table = t->cosines, .sin_table = t->sines, .inv_freq = angles, .contexts = t->shape.seq,
         .half_dim = half_dim, .scale = 1.0}));
    OX_THEN(status, ox_bench_moe_fill(t));
    OX_THEN(status, ox_lane_drain(lane_of(t)));
    return status;
}
