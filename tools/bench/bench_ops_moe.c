/* The operations of a mixture of experts, at the sizes of the dense layer: experts together have its width, and pairs
 * are its rows. */
#include "tools/bench/bench_ops.h"

#include "base/bytes.h"

#include <stdlib.h>

enum { EXPERTS = 8, CHOSEN = 2 };

static uint32_t tokens_of(const struct ox_bench_tensors *t) {
    return t->shape.rows / CHOSEN;
}

static uint32_t pairs_of(const struct ox_bench_tensors *t) {
    return tokens_of(t) * CHOSEN;
}

/* Of one expert. */
static uint32_t width_of(const struct ox_bench_tensors *t) {
    return t->shape.width >= EXPERTS ? t->shape.width / EXPERTS : 1;
}

static struct ox_router router_of(void) {
    return (struct ox_router){.experts = EXPERTS, .chosen = CHOSEN, .renormalise = true, .scale = 1.0f};
}

static double real_bytes(const struct ox_bench_tensors *t) {
    return ox_real_bytes(t->device->compute.real);
}

static double logit_bytes(const struct ox_bench_tensors *t) {
    return (double)tokens_of(t) * EXPERTS * sizeof(float);
}

static double pair_bytes(const struct ox_bench_tensors *t) {
    return (double)pairs_of(t) * real_bytes(t);
}

uint64_t ox_bench_moe_scratch_bytes(const struct ox_bench_tensors *t) {
    const struct ox_compute *const compute = &t->device->compute;
    const uint64_t products = ox_ops_grouped_scratch_bytes(compute, t->shape.hidden, 2 * width_of(t));
    const uint64_t router = ox_ops_router_scratch_bytes(compute, tokens_of(t), EXPERTS);
    return ox_max_u64(ox_max_u64(products, router),
                      ox_max_u64(ox_ops_route_load_scratch_bytes(EXPERTS),
                                 ox_ops_route_sort_scratch_bytes(tokens_of(t), EXPERTS)));
}

void ox_bench_moe_carve(struct ox_bench_tensors *t, struct ox_bump *room) {
    const uint64_t tokens = tokens_of(t), pairs = pairs_of(t);
    struct ox_bench_moe *const moe = &t->moe;
    moe->logits = ox_bump_alloc(room, tokens * EXPERTS * sizeof(float));
    moe->dlogits = ox_bump_alloc(room, tokens * EXPERTS * sizeof(float));
    moe->weights = ox_bump_alloc(room, pairs * sizeof(float));
    moe->dweights = ox_bump_alloc(room, pairs * sizeof(float));
    moe->lse = ox_bump_alloc(room, tokens * sizeof(float));
    moe->experts = ox_bump_alloc(room, pairs * sizeof(int32_t));
    moe->pair_of = ox_bump_alloc(room, pairs * sizeof(int32_t));
    moe->place = ox_bump_alloc(room, pairs * sizeof(int32_t));
    moe->offsets = ox_bump_alloc(room, (EXPERTS + 1) * sizeof(int32_t));
    moe->inside = ox_bump_alloc(room, (uint64_t)t->shape.rows * ox_clamp_words(ox_bench_qkv_width(&t->shape)) *
                                          sizeof(uint32_t));
    moe->load = ox_bump_alloc(room, ox_route_load_layout_of(EXPERTS).count * sizeof(double));
}

/* ---- the router ---- */

static enum ox_status router_forward(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->flops = 2.0 * tokens_of(t) * EXPERTS * t->shape.hidden;
    return OX_QUEUE(&t->device->ops, t->device->lane, router_forward, &(struct ox_op_router_forward){
        .logits = t->moe.dlogits, .in = t->x, .weight = t->weight, .rows = tokens_of(t),
        .in_count = t->shape.hidden, .experts = EXPERTS, .real = t->device->compute.real});
}

static enum ox_status router_backward(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->flops = 4.0 * tokens_of(t) * EXPERTS * t->shape.hidden;
    return OX_QUEUE(&t->device->ops, t->device->lane, router_backward, &(struct ox_op_router_backward){
        .din = t->y, .residual = t->z, .dweight = t->dweight, .dlogits = t->moe.logits, .in = t->x,
        .weight = t->weight, .scratch = t->scratch, .rows = tokens_of(t), .in_count = t->shape.hidden,
        .experts = EXPERTS, .real = t->device->compute.real});
}

static enum ox_status join_limbs(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->bytes = EXPERTS * (OX_LIMBS * real_bytes(t) + sizeof(float));
    return OX_QUEUE(&t->device->ops, t->device->lane, join_limbs, &(struct ox_op_join_limbs){
        .out = t->moe.dlogits, .in = t->weight, .count = EXPERTS, .real = t->device->compute.real});
}

static enum ox_status limbs_shift(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->bytes = 2.0 * EXPERTS * OX_LIMBS * sizeof(uint16_t);
    return OX_QUEUE(&t->device->ops, t->device->lane, limbs_shift, &(struct ox_op_limbs_shift){
        .plane = t->hi, .count = EXPERTS, .by = 0.001f, .up = {0xffffu}, .down = {0xffff0000u}});
}

static enum ox_status route_forward(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->bytes = logit_bytes(t);
    return OX_QUEUE(&t->device->ops, t->device->lane, route_forward, &(struct ox_op_route_forward){
        .experts = t->moe.experts, .weights = t->moe.weights, .lse = t->moe.lse, .logits = t->moe.logits,
        .rows = tokens_of(t), .router = router_of()});
}

static enum ox_status route_load(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->bytes = logit_bytes(t);
    return OX_QUEUE(&t->device->ops, t->device->lane, route_load, &(struct ox_op_route_load){
        .load = t->moe.load, .logits = t->moe.logits, .lse = t->moe.lse, .experts = t->moe.experts,
        .scratch = t->scratch, .rows = tokens_of(t), .router = router_of(), .begins = true});
}

static enum ox_status route_pool(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    const uint32_t count = ox_route_load_layout_of(EXPERTS).count;
    out->bytes = 2.0 * count * sizeof(double);
    return OX_QUEUE(&t->device->ops, t->device->lane, route_pool, &(struct ox_op_route_pool){
        .load = t->scratch, .loads = t->moe.load, .micro_batches = 1, .layers = 1, .count = count, .stride = count});
}

static enum ox_status route_backward(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->bytes = 2.0 * logit_bytes(t);
    return OX_QUEUE(&t->device->ops, t->device->lane, route_backward, &(struct ox_op_route_backward){
        .dlogits = t->moe.dlogits, .dweights = t->moe.dweights, .logits = t->moe.logits, .weights = t->moe.weights,
        .lse = t->moe.lse, .experts = t->moe.experts, .rows = tokens_of(t), .router = router_of()});
}

static enum ox_status route_sort(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->bytes = 3.0 * pairs_of(t) * sizeof(int32_t);
    return OX_QUEUE(&t->device->ops, t->device->lane, route_sort, &(struct ox_op_route_sort){
        .offsets = t->moe.offsets, .pair_of = t->moe.pair_of, .place = t->moe.place, .experts = t->moe.experts,
        .scratch = t->scratch, .rows = tokens_of(t), .chosen = CHOSEN, .expert_count = EXPERTS});
}

/* ---- rows and products ---- */

static struct ox_experts experts_of(const struct ox_bench_tensors *t) {
    return (struct ox_experts){.offsets = t->moe.offsets, .count = EXPERTS, .rows_max = pairs_of(t)};
}

static enum ox_status rows_gather(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->bytes = 1.5 * pair_bytes(t) * t->shape.hidden;
    return OX_QUEUE(&t->device->ops, t->device->lane, rows_gather, &(struct ox_op_rows_gather){
        .out = t->y, .in = t->x, .pair_of = t->moe.pair_of, .rows = tokens_of(t), .chosen = CHOSEN,
        .width = t->shape.hidden, .real = t->device->compute.real});
}

static enum ox_status rows_combine(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->bytes = 2.0 * pair_bytes(t) * t->shape.hidden;
    return OX_QUEUE(&t->device->ops, t->device->lane, rows_combine, &(struct ox_op_rows_combine){
        .out = t->x, .residual = t->z, .in = t->y, .place = t->moe.place, .rows = tokens_of(t), .chosen = CHOSEN,
        .width = t->shape.hidden, .real = t->device->compute.real});
}

static enum ox_status combine_bias_backward(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->bytes = 2.0 * pair_bytes(t) * t->shape.hidden;
    return OX_QUEUE(&t->device->ops, t->device->lane, combine_bias_backward, &(struct ox_op_combine_bias_backward){
        .dweights = t->moe.dweights, .dbias = t->dweight, .dout = t->x, .bias = t->weight, .weights = t->moe.weights,
        .experts = t->moe.experts, .group = experts_of(t), .pair_of = t->moe.pair_of, .rows = tokens_of(t),
        .chosen = CHOSEN, .width = t->shape.hidden, .real = t->device->compute.real});
}

static enum ox_status grouped_forward(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->flops = 4.0 * pairs_of(t) * t->shape.hidden * width_of(t);
    return OX_QUEUE(&t->device->ops, t->device->lane, grouped_forward, &(struct ox_op_grouped_forward){
        .out = t->pair, .in = t->x, .weight = t->weight, .scratch = t->scratch, .experts = experts_of(t),
        .in_count = t->shape.hidden, .out_count = 2 * width_of(t), .real = t->device->compute.real});
}

static enum ox_status grouped_backward(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->flops = 8.0 * pairs_of(t) * t->shape.hidden * width_of(t);
    return OX_QUEUE(&t->device->ops, t->device->lane, grouped_backward, &(struct ox_op_grouped_backward){
        .din = t->y, .dweight = t->dweight, .dout = t->dpair, .in = t->x, .weight = t->weight, .scratch = t->scratch,
        .experts = experts_of(t), .in_count = t->shape.hidden, .out_count = 2 * width_of(t),
        .real = t->device->compute.real});
}

/* ---- activations, and what belongs to attention ---- */

static enum ox_status expert_act_forward(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->bytes = 3.0 * pair_bytes(t) * width_of(t);
    return OX_QUEUE(&t->device->ops, t->device->lane, expert_act_forward, &(struct ox_op_expert_act_forward){
        .out = t->act, .in = t->pair, .weights = t->moe.weights, .pair_of = t->moe.pair_of, .gate = ox_gate_swiglu(),
        .rows = pairs_of(t), .width = width_of(t), .real = t->device->compute.real});
}

static enum ox_status expert_act_backward(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->bytes = 5.0 * pair_bytes(t) * width_of(t);
    return OX_QUEUE(&t->device->ops, t->device->lane, expert_act_backward, &(struct ox_op_expert_act_backward){
        .din = t->dpair, .dweights = t->moe.dweights, .dout = t->act, .in = t->pair, .weights = t->moe.weights,
        .pair_of = t->moe.pair_of, .gate = ox_gate_swiglu(), .rows = pairs_of(t), .width = width_of(t),
        .real = t->device->compute.real});
}

static enum ox_status row_gate_forward(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->bytes = 3.0 * pair_bytes(t) * t->shape.hidden;
    return OX_QUEUE(&t->device->ops, t->device->lane, row_gate_forward, &(struct ox_op_row_gate_forward){
        .out = t->y, .residual = t->z, .in = t->x, .gate = t->rstd, .rows = pairs_of(t), .width = t->shape.hidden,
        .real = t->device->compute.real});
}

static enum ox_status row_gate_backward(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->bytes = 3.0 * pair_bytes(t) * t->shape.hidden;
    return OX_QUEUE(&t->device->ops, t->device->lane, row_gate_backward, &(struct ox_op_row_gate_backward){
        .din = t->y, .dgate = t->mean, .dout = t->z, .in = t->x, .gate = t->rstd, .rows = pairs_of(t),
        .width = t->shape.hidden, .real = t->device->compute.real});
}

static uint32_t qkv_width(const struct ox_bench_tensors *t) {
    return (t->heads + 2 * t->kv_heads) * t->head_dim;
}

static enum ox_status clamp_forward(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->bytes = 2.0 * t->shape.rows * qkv_width(t) * real_bytes(t);
    return OX_QUEUE(&t->device->ops, t->device->lane, clamp_forward, &(struct ox_op_clamp_forward){
        .inout = t->qkv, .inside = t->moe.inside, .rows = t->shape.rows, .row_stride = qkv_width(t),
        .width = qkv_width(t), .limit = 8.0f, .real = t->device->compute.real});
}

static enum ox_status clamp_backward(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->bytes = 2.0 * t->shape.rows * qkv_width(t) * real_bytes(t);
    return OX_QUEUE(&t->device->ops, t->device->lane, clamp_backward, &(struct ox_op_clamp_backward){
        .dinout = t->dqkv, .inside = t->moe.inside, .rows = t->shape.rows, .row_stride = qkv_width(t),
        .width = qkv_width(t), .real = t->device->compute.real});
}

static enum ox_status sinks_forward(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->bytes = 2.0 * t->shape.rows * t->heads * t->head_dim * real_bytes(t);
    return OX_QUEUE(&t->device->ops, t->device->lane, sinks_forward, &(struct ox_op_sinks_forward){
        .out = t->z, .lse = t->lse, .sinks = t->weight, .batch = t->shape.rows / t->shape.seq, .seq = t->shape.seq,
        .heads = t->heads, .head_dim = t->head_dim, .real = t->device->compute.real});
}

static enum ox_status sinks_backward(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->bytes = 2.0 * t->shape.rows * t->heads * t->head_dim * real_bytes(t);
    return OX_QUEUE(&t->device->ops, t->device->lane, sinks_backward, &(struct ox_op_sinks_backward){
        .dsinks = t->sums, .dout = t->y, .out = t->z, .sinks = t->weight, .lse = t->lse,
        .batch = t->shape.rows / t->shape.seq, .seq = t->shape.seq, .heads = t->heads, .head_dim = t->head_dim,
        .real = t->device->compute.real});
}

/* Queries whose rotated part, an eighth of a head, goes before the rest. */
static enum ox_status splice(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    const uint32_t width = t->heads * t->head_dim, rotated = t->head_dim / 8, rest = t->head_dim - rotated;
    out->bytes = 2.0 * t->shape.rows * width * real_bytes(t);
    return OX_QUEUE(&t->device->ops, t->device->lane, splice, &(struct ox_op_splice){
        .out = t->y, .in = t->x, .rows = t->shape.rows, .in_width = width, .out_width = width, .part_count = 2,
        .parts = {{rest, t->head_dim, 0, t->head_dim, rotated, t->heads},
                  {0, t->head_dim, rotated, t->head_dim, rest, t->heads}},
        .real = t->device->compute.real});
}

static enum ox_status turn(const struct ox_bench_tensors *t, struct ox_bench_cost *out) {
    out->bytes = 2.0 * t->shape.rows * t->heads * t->head_dim * real_bytes(t);
    return OX_QUEUE(&t->device->ops, t->device->lane, turn, &(struct ox_op_turn){
        .out = t->y, .in = t->x, .rows = t->shape.rows, .cols = t->heads * t->head_dim,
        .real = t->device->compute.real});
}

const struct ox_bench_op *ox_bench_ops_moe(uint32_t *count) {
    static const struct ox_bench_op all[] = {
        {OX_OP_router_forward, NULL, router_forward, 0, 0},
        {OX_OP_router_backward, NULL, router_backward, 0, 0},
        {OX_OP_join_limbs, NULL, join_limbs, 0, 0},
        {OX_OP_limbs_shift, NULL, limbs_shift, 0, 0},
        {OX_OP_route_forward, NULL, route_forward, 0, 0},
        {OX_OP_route_load, NULL, route_load, 0, 0},
        {OX_OP_route_pool, NULL, route_pool, 0, 0},
        {OX_OP_route_backward, NULL, route_backward, 0, 0},
        {OX_OP_route_sort, NULL, route_sort, 0, 0},
        {OX_OP_rows_gather, NULL, rows_gather, 0, 0},
        {OX_OP_rows_combine, NULL, rows_combine, 0, 0},
        {OX_OP_combine_bias_backward, NULL, combine_bias_backward, 0, 0},
        {OX_OP_grouped_forward, NULL, grouped_forward, 0, 0},
        {OX_OP_grouped_backward, NULL, grouped_backward, 0, 0},
        {OX_OP_expert_act_forward, NULL, expert_act_forward, 0, 0},
        {OX_OP_expert_act_backward, NULL, expert_act_backward, 0, 0},
        {OX_OP_row_gate_forward, NULL, row_gate_forward, 0, 0},
        {OX_OP_row_gate_backward, NULL, row_gate_backward, 0, 0},
        {OX_OP_clamp_forward, NULL, clamp_forward, 0, 0},
        {OX_OP_clamp_backward, NULL, clamp_backward, 0, 0},
        {OX_OP_sinks_forward, NULL, sinks_forward, 0, 0},
        {OX_OP_sinks_backward, NULL, sinks_backward, 0, 0},
        {OX_OP_splice, NULL, splice, 0, 0},
        {OX_OP_turn, NULL, turn, 0, 0},
    };
    *count = sizeof all / sizeof *all;
    return all;
}

/* Logits that spread the rows over all experts, and what follows from them. */
enum ox_status ox_bench_moe_fill(const struct ox_bench_tensors *t) {
    const size_t count = (size_t)tokens_of(t) * EXPERTS;
    float *const logits = malloc((count > 0 ? count : 1) * sizeof *logits);
    struct ox_bench_cost cost = {0};
    if (logits == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for the logits of %u rows", tokens_of(t));
    }
    for (size_t i = 0; i < count; i++) {
        logits[i] = (float)((uint32_t)i * 2654435761u) * 0x1p-30f;
    }
    enum ox_status status = ox_bench_device_put(t->device, t->moe.logits, logits, count * sizeof *logits);
    OX_THEN(status, route_forward(t, &cost));
    OX_THEN(status, route_sort(t, &cost));
    free(logits);
    return status;
}
