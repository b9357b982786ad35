/* The node of magnitudes (DoRA). Backward makes nothing through the lengths of rows, as PEFT detaches them. */
#include "engine/model/list.h"

static const struct ox_shape *shape_of(const struct ox_node_call *call) {
    return call->job->shape;
}

static void *at(const struct ox_node_call *call, const void *rows, uint64_t elems) {
    return rows == NULL ? NULL
                        : (unsigned char *)(uintptr_t)rows + elems * ox_real_bytes(shape_of(call)->compute.real);
}

/* The A of the node's magnitudes. */
static enum ox_role a_of(const struct ox_node *node) {
    return (enum ox_role)(OX_ROLE_QKV_A + 2 * (node->role - OX_ROLE_QKV_M));
}

static enum ox_role b_of(const struct ox_node *node) {
    return (enum ox_role)(a_of(node) + 1);
}

/* Columns of modules without an adapter stay as they are. */
static void copy(const struct ox_node_call *call, void *to, const void *from) {
    if (to != from) {
        OX_RUN(&call->job->run, add, .target = to, .b = from,
               .count = (uint64_t)shape_of(call)->rows * call->node->out_count, .real = shape_of(call)->compute.real);
    }
}

/* The bias of a module; NULL: it has none. */
static const void *bias_of(const struct ox_node_call *call, const struct ox_adapter_part *part) {
    return at(call, ox_node_weight(call, (enum ox_role)(ox_adapted_role(a_of(call->node)) + 1)), part->out_first);
}

void ox_dora_forward(const struct ox_node_call *call) {
    const struct ox_node *const node = call->node;
    const struct ox_shape *const shape = shape_of(call);
    const void *const weight = ox_node_weight(call, ox_adapted_role(a_of(node)));
    const void *const a = ox_node_weight(call, a_of(node)), *const b = ox_node_weight(call, b_of(node));
    float *const norm = call->saved[0];
    uint64_t out = 0; /* of the modules before */
    copy(call, call->out, call->in);
    for (struct ox_adapter_part part = {0}; ox_adapter_part_next(call->list, b_of(node), &part); out += part.out) {
        OX_RUN(&call->job->run, dora_norm, .norm = norm + out,
               .weight = at(call, weight, (uint64_t)part.out_first * node->in_count),
               .a = at(call, a, (uint64_t)part.in_first * node->in_count), .b = at(call, b, part.offset),
               .in_count = node->in_count, .out_count = part.out, .r = part.r, .scale = node->scale,
               .layout = shape->model->config.layout, .real = shape->compute.real);
        OX_RUN(&call->job->run, dora_forward, .out = at(call, call->out, part.out_first),
               .in = at(call, call->in, part.out_first), .norm = norm + out,
               .magnitude = at(call, ox_node_weight(call, node->role), out), .bias = bias_of(call, &part),
               .rows = shape->rows, .cols = part.out, .stride = node->out_count, .real = shape->compute.real);
    }
}

void ox_dora_backward(const struct ox_node_call *call) {
    const struct ox_node *const node = call->node;
    const struct ox_shape *const shape = shape_of(call);
    float *const grad = ox_node_grad(call, node->role);
    uint64_t out = 0;
    copy(call, call->din, call->dout);
    for (struct ox_adapter_part part = {0}; ox_adapter_part_next(call->list, b_of(node), &part); out += part.out) {
        OX_RUN(&call->job->run, dora_backward, .din = at(call, call->din, part.out_first),
               .dmagnitude = grad == NULL ? NULL : grad + out, .dout = at(call, call->dout, part.out_first),
               .in = at(call, call->in, part.out_first), .norm = (const float *)call->saved[0] + out,
               .magnitude = at(call, ox_node_weight(call, node->role), out), .bias = bias_of(call, &part),
               .rows = shape->rows, .cols = part.out, .stride = node->out_count, .real = shape->compute.real,
               .begins = call->job->begins);
    }
}

void ox_cost_dora(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    ox_cost_add_loop(cost, cost->rows, node->out_count, (struct ox_cost_loop){.passes = 4, .ops = 2});
    if (!backward) { /* the rows of the matrix */
        ox_cost_add_linear(cost, node->in_count, node->out_count, false);
    }
}
