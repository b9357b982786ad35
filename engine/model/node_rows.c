/* Attention where the rows of sequences are cut into groups: each group gives its keys and values to all, and its
 * queries see those of all. */
#include "engine/model/list.h"

#include "base/assert.h"

/* The order in which sums of so many are joined in a tree. */
static struct ox_sums order_of(uint32_t count) {
    return (struct ox_sums){.micro_batches = count, .groups = count, .ranks = 1};
}

/* Elements of the keys and values of one group. */
static uint64_t group_elems(const struct ox_shape *shape) {
    const struct ox_model_config *const config = &shape->model->config;
    return (uint64_t)shape->rows * 2 * config->kv_heads * config->head_dim;
}

static uint64_t all_elems(const struct ox_shape *shape) {
    return group_elems(shape) * ox_shape_groups(shape);
}

uint32_t ox_all_rows_slots(const struct ox_shape *shape) {
    const uint32_t count = ox_shape_own_groups(shape);
    const struct ox_sums order = order_of(count);
    return ox_sums_slots(&order, 0, count);
}

/* Where a rank of several gets what each has summed for its groups. */
uint64_t ox_all_rows_scratch(const struct ox_shape *shape, const struct ox_node *node, bool backward) {
    (void)node;
    return backward && shape->groups.contexts > 1 ? all_elems(shape) * sizeof(float) : 0;
}

void ox_all_rows_forward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_node *const node = call->node;
    const uint64_t at = (shape->groups.first + call->job->group) * group_elems(shape);
    OX_RUN(&call->job->run, splice, .in = call->in, .rows = shape->rows, .in_width = node->in_count,
           .out = (unsigned char *)call->out + at * ox_real_bytes(shape->compute.real), .out_width = node->out_count,
           .part_count = 1, .parts = {{node->in_count - node->out_count, 0, 0, 0, node->out_count, 1}},
           .real = shape->compute.real);
}

/* Adds what all ranks have summed for a group, in a tree, and puts the sum beside the gradient of its queries. */
void ox_all_rows_backward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_node *const node = call->node;
    const uint32_t contexts = shape->groups.contexts > 1 ? shape->groups.contexts : 1;
    const uint64_t elems = group_elems(shape), apart = elems * ox_shape_own_groups(shape);
    const struct ox_sums order = order_of(contexts);
    float *const pieces = (float *)(contexts > 1 ? call->scratch : call->dout) + call->job->group * elems;
    uint32_t stack[OX_LIST_VALUES_MAX], depth = 0;
    for (uint32_t i = 0; i < contexts; i++) {
        stack[depth++] = i;
        for (uint32_t folds = ox_sums_folds(&order, i); folds > 0; folds--, depth--) {
            float *const lower = pieces + stack[depth - 2] * apart;
            OX_RUN(&call->job->run, add, .target = lower, .a = lower, .b = pieces + stack[depth - 1] * apart,
                   .count = elems);
        }
    }
    OX_ASSERT(depth == 1 && shape->compute.real == OX_REAL_F32);
    OX_RUN(&call->job->run, splice, .in = pieces, .rows = shape->rows, .in_width = node->out_count,
           .out = call->din, .residual = call->dresidual, .out_width = node->in_count, .part_count = 1,
           .parts = {{0, 0, node->in_count - node->out_count, 0, node->out_count, 1}}, .real = shape->compute.real);
}

void ox_all_rows_cost(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    ox_cost_add_loop(cost, cost->rows, node->out_count,
                     (struct ox_cost_loop){.passes = (uint8_t)(backward ? 3 : 2), .ops = 1});
}

/* ---- attention of a group ---- */

/* Half of a group's rows: one chunk of every sequence. */
struct half {
    struct ox_attention_shape shape;
    struct ox_attention_part part;
    uint64_t row; /* its first */
};

static struct half half_of(const struct ox_node_call *call, uint32_t nth) {
    const struct ox_shape *const shape = call->job->shape;
    const uint32_t group = shape->groups.first + call->job->group, chunks = 2 * shape->groups.all;
    struct half half = {.shape = ox_attention_shape_of(shape, call->node->window),
                        .part = {.kv = call->pair_weights, .chunk = nth == 0 ? group : chunks - 1 - group,
                                 .chunks = chunks}};
    half.shape.seq = shape->seq / chunks;
    half.row = (uint64_t)nth * half.shape.batch * half.shape.seq;
    return half;
}

static void *rows_at(const struct ox_node_call *call, void *rows, uint64_t row, uint64_t width) {
    return (unsigned char *)rows + row * width * ox_real_bytes(call->job->shape->compute.real);
}

void ox_attend_group_forward(const struct ox_node_call *call) {
    const struct ox_unit_job *const job = call->job;
    for (uint32_t nth = 0; nth < 2; nth++) {
        const struct half half = half_of(call, nth);
        const uint64_t out = (uint64_t)half.shape.heads * half.shape.head_dim;
        const uint64_t qkv = out + 2ull * half.shape.kv_heads * half.shape.head_dim;
        OX_RUN(&call->job->run, attention_forward, .out = rows_at(call, call->out, half.row, out),
               .lse = (float *)call->saved[0] + half.row * half.shape.heads,
               .qkv = rows_at(call, call->in, half.row, qkv),
               .positions = job->documents == NULL ? NULL : job->documents + half.row, .scratch = call->scratch,
               .shape = half.shape, .part = half.part, .real = job->shape->compute.real);
    }
}

void ox_attend_group_backward(const struct ox_node_call *call) {
    const struct ox_unit_job *const job = call->job;
    const struct ox_sums order = order_of(ox_shape_own_groups(job->shape));
    const uint64_t elems = all_elems(job->shape);
    const uint32_t slot = ox_sums_slot(&order, job->group), folds = ox_sums_folds(&order, job->group);
    for (uint32_t nth = 0; nth < 2; nth++) {
        struct half half = half_of(call, nth);
        const uint64_t out = (uint64_t)half.shape.heads * half.shape.head_dim;
        const uint64_t qkv = out + 2ull * half.shape.kv_heads * half.shape.head_dim;
        half.part.dkv = call->dweights + slot * elems;
        half.part.adds = nth > 0;
        OX_RUN(&call->job->run, attention_backward, .dqkv = rows_at(call, call->din, half.row, qkv),
               .dout = rows_at(call, call->dout, half.row, out), .qkv = rows_at(call, call->in, half.row, qkv),
               .out = rows_at(call, call->out, half.row, out),
               .lse = (const float *)call->saved[0] + half.row * half.shape.heads,
               .positions = job->documents == NULL ? NULL : job->documents + half.row, .scratch = call->scratch,
               .shape = half.shape, .part = half.part, .real = job->shape->compute.real);
    }
    for (uint32_t i = 1; i <= folds; i++) {
        float *const sum = call->dweights + (slot - i) * elems;
        OX_RUN(&call->job->run, add, .target = sum, .a = sum, .b = sum + elems, .count = elems);
    }
}
