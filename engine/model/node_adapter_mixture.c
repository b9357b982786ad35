/* The nodes of low-rank adapters of experts and routers. Those of all experts are one tensor each, as in PEFT's files:
 * A (experts * r, in) is what grouped products read, B (out, r * experts) has the expert last and is turned for them,
 * and its gradient back. */
#include "base/bytes.h"
#include "engine/model/list.h"

enum { PLACE_ALIGN_BYTES = 64 };

static const struct ox_shape *shape_of(const struct ox_node_call *call) {
    return call->job->shape;
}

static uint64_t bytes_of(uint64_t elems, size_t elem_bytes) {
    return ox_align_up(elems * elem_bytes, PLACE_ALIGN_BYTES);
}

/* Places within the scratch: rows of pairs, or of logits; B as (experts, out, r); its gradient, float32. */
struct room {
    uint64_t rows, turned, grad, products, bytes;
};

static struct room room_of(const struct ox_shape *shape, const struct ox_node *node, uint32_t width, bool turns,
                           bool backward) {
    const size_t real = ox_real_bytes(shape->compute.real);
    const uint32_t experts = shape->model->config.mixture.router.experts;
    const uint64_t matrix = (uint64_t)experts * node->in_count * node->out_count;
    struct room at = {.turned = bytes_of((uint64_t)ox_pairs_of(shape) * width, real)};
    at.grad = at.turned + (turns ? bytes_of(matrix, real) : 0);
    at.products = at.grad + (turns && backward ? bytes_of(matrix, sizeof(float)) : 0);
    at.bytes = at.products + ox_ops_grouped_scratch_bytes(&shape->compute, node->in_count, node->out_count);
    return at;
}

static void *in_room(const struct ox_node_call *call, uint64_t offset) {
    return (unsigned char *)call->scratch + offset;
}

/* ---- A of experts ---- */

static struct room down_room(const struct ox_shape *shape, const struct ox_node *node, bool backward) {
    return room_of(shape, node, backward ? node->in_count : 0, false, backward);
}

uint64_t ox_grouped_down_scratch(const struct ox_shape *shape, const struct ox_node *node, bool backward) {
    return down_room(shape, node, backward).bytes;
}

void ox_grouped_down_forward(const struct ox_node_call *call) {
    const struct ox_node *const node = call->node;
    OX_RUN(&call->job->run, grouped_forward, .out = call->out, .in = call->in,
           .weight = ox_node_weight(call, node->role),
           .scratch = in_room(call, down_room(shape_of(call), node, false).products),
           .experts = ox_experts_of(call), .in_count = node->in_count, .out_count = node->out_count,
           .layout = OX_WEIGHT_OUT_IN, .real = shape_of(call)->compute.real);
}

/* The matrix beside the adapter has begun the gradient of the input, to which this adds. */
void ox_grouped_down_backward(const struct ox_node_call *call) {
    const struct ox_node *const node = call->node;
    const struct room room = down_room(shape_of(call), node, true);
    void *const din = call->dresidual != NULL ? in_room(call, room.rows) : call->din;
    OX_RUN(&call->job->run, grouped_backward, .din = call->din == NULL ? NULL : din,
           .dweight = ox_node_grad(call, node->role), .dout = call->dout, .in = call->in,
           .weight = ox_node_weight(call, node->role), .scratch = in_room(call, room.products),
           .experts = ox_experts_of(call), .in_count = node->in_count, .out_count = node->out_count,
           .layout = OX_WEIGHT_OUT_IN, .real = shape_of(call)->compute.real, .begins = call->job->begins);
    if (call->din != NULL && call->dresidual != NULL) {
        OX_RUN(&call->job->run, add, .target = call->din, .a = call->dresidual, .b = din,
               .count = (uint64_t)ox_pairs_of(shape_of(call)) * node->in_count,
               .real = shape_of(call)->compute.real);
    }
}

/* ---- B of experts ---- */

static struct room up_room(const struct ox_shape *shape, const struct ox_node *node, bool backward) {
    return room_of(shape, node, node->out_count, true, backward);
}

uint64_t ox_grouped_up_scratch(const struct ox_shape *shape, const struct ox_node *node, bool backward) {
    return up_room(shape, node, backward).bytes;
}

static void turn_weight(const struct ox_node_call *call, const struct room *room) {
    OX_RUN(&call->job->run, turn, .out = in_room(call, room->turned), .in = ox_node_weight(call, call->node->role),
           .rows = call->node->in_count * call->node->out_count, .cols = ox_experts_of(call).count,
           .real = shape_of(call)->compute.real);
}

void ox_grouped_up_forward(const struct ox_node_call *call) {
    const struct ox_node *const node = call->node;
    const struct room room = up_room(shape_of(call), node, false);
    turn_weight(call, &room);
    OX_RUN(&call->job->run, grouped_forward, .out = in_room(call, room.rows), .in = call->in,
           .weight = in_room(call, room.turned), .scratch = in_room(call, room.products),
           .experts = ox_experts_of(call), .in_count = node->in_count, .out_count = node->out_count,
           .layout = OX_WEIGHT_OUT_IN, .real = shape_of(call)->compute.real);
    OX_RUN(&call->job->run, add, .target = call->out, .a = call->residual, .b = in_room(call, room.rows),
           .scale = node->scale, .count = (uint64_t)ox_pairs_of(shape_of(call)) * node->out_count,
           .real = shape_of(call)->compute.real);
}

void ox_grouped_up_backward(const struct ox_node_call *call) {
    const struct ox_node *const node = call->node;
    const struct room room = up_room(shape_of(call), node, true);
    float *const grad = ox_node_grad(call, node->role);
    turn_weight(call, &room);
    OX_RUN(&call->job->run, add, .target = in_room(call, room.rows), .b = call->dout, .scale = node->scale,
           .count = (uint64_t)ox_pairs_of(shape_of(call)) * node->out_count, .real = shape_of(call)->compute.real);
    OX_RUN(&call->job->run, grouped_backward, .din = call->din,
           .dweight = grad == NULL ? NULL : in_room(call, room.grad), .dout = in_room(call, room.rows), .in = call->in,
           .weight = in_room(call, room.turned), .scratch = in_room(call, room.products),
           .experts = ox_experts_of(call), .in_count = node->in_count, .out_count = node->out_count,
           .layout = OX_WEIGHT_OUT_IN, .real = shape_of(call)->compute.real, .begins = true);
    if (grad != NULL) {
        OX_RUN(&call->job->run, turn, .out = grad, .in = in_room(call, room.grad), .rows = ox_experts_of(call).count,
               .cols = node->in_count * node->out_count, .real = OX_REAL_F32, .adds = !call->job->begins);
    }
}

void ox_cost_grouped_adapter(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    const struct ox_router *const router = &cost->shape->model->config.mixture.router;
    const bool up = node->kind == OX_NODE_GROUPED_UP;
    ox_cost_add_grouped(cost, &(struct ox_cost_grouped){.pairs = cost->rows * router->chosen,
                                                        .experts = router->experts, .in_count = node->in_count,
                                                        .out_count = node->out_count, .trained = true}, backward);
    ox_cost_add_loop(cost, cost->rows * router->chosen, up ? node->out_count : node->in_count,
                     (struct ox_cost_loop){.passes = up || backward ? 3 : 0, .ops = 1});
}

/* ---- B of routers, whose logits are float32 ---- */

static uint64_t logits_bytes(const struct ox_shape *shape, const struct ox_node *node) {
    return bytes_of((uint64_t)shape->rows * node->out_count, sizeof(float));
}

uint64_t ox_router_up_scratch(const struct ox_shape *shape, const struct ox_node *node, bool backward) {
    return logits_bytes(shape, node) +
           (backward ? ox_ops_router_scratch_bytes(&shape->compute, shape->rows, node->out_count) : 0);
}

void ox_router_up_forward(const struct ox_node_call *call) {
    const struct ox_node *const node = call->node;
    OX_RUN(&call->job->run, router_forward, .logits = call->scratch, .in = call->in,
           .weight = ox_node_weight(call, node->role), .rows = shape_of(call)->rows, .in_count = node->in_count,
           .experts = node->out_count, .real = shape_of(call)->compute.real);
    OX_RUN(&call->job->run, add, .target = call->out, .a = call->residual, .b = call->scratch, .scale = node->scale,
           .count = (uint64_t)shape_of(call)->rows * node->out_count, .real = OX_REAL_F32);
}

void ox_router_up_backward(const struct ox_node_call *call) {
    const struct ox_node *const node = call->node;
    const struct ox_shape *const shape = shape_of(call);
    OX_RUN(&call->job->run, add, .target = call->scratch, .b = call->dout, .scale = node->scale,
           .count = (uint64_t)shape->rows * node->out_count, .real = OX_REAL_F32);
    OX_RUN(&call->job->run, router_backward, .din = call->din, .dweight = ox_node_grad(call, node->role),
           .dlogits = call->scratch, .in = call->in, .weight = ox_node_weight(call, node->role),
           .scratch = in_room(call, logits_bytes(shape, node)), .rows = shape->rows, .in_count = node->in_count,
           .experts = node->out_count, .real = shape->compute.real, .begins = call->job->begins);
}
