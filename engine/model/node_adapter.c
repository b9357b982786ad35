/* The nodes of low-rank adapters. A fused matrix has several modules, each with an A and a B of its own: their A, which
 * lie one below the other, are one product; each B adds to the columns of its module alone. */
#include "engine/model/node_groups.h"

#include "base/bytes.h"

#include <string.h>

static const struct ox_shape *shape_of(const struct ox_node_call *call) {
    return call->job->shape;
}

/* The dropout of what an adapter reads. Its random words depend on seed, step, micro-batch, block, matrix and element
 * alone, so that backward, which may compute the block anew anywhere, finds the same ones. */
uint64_t ox_drop_seed(const struct ox_node_call *call, enum ox_role a) {
    const struct ox_shape *const shape = shape_of(call);
    const uint64_t unit_idx = (uint64_t)(call->job->unit - shape->model->units);
    return shape->objective.drop_seed ^ (unit_idx << 8 | (uint64_t)((a - OX_ROLE_QKV_A) & 0xff));
}

/* `count` elements from `first` on; `group`: 0 or one more than that of features whose columns or rows they are. */
static void drop_range(const struct ox_node_call *call, uint64_t first, uint64_t count, uint64_t group) {
    const bool backward = call->dout != NULL;
    if (count > 0) {
        OX_RUN(&call->job->run, drop, .out = ox_node_at(call, backward ? call->din : call->out, first),
               .in = ox_node_at(call, backward ? call->dout : call->in, first),
               .residual = ox_node_at(call, call->dresidual, first), .count = count,
               .seed = ox_drop_seed(call, call->node->role) ^ group << 48, .stream = call->job->noise_stream,
               .rate = call->job->trains ? call->node->scale : 0.0f,
               .real = shape_of(call)->compute.real);
    }
}

/* With groups of features each draws its own words, for its columns, or for its rows of what is not cut. */
static void drop(const struct ox_node_call *call) {
    const struct ox_shape *const shape = shape_of(call);
    const struct ox_node *const node = call->node;
    const uint64_t of_columns = (uint64_t)shape->rows * node->in_count / call->list->groups;
    for (uint32_t g = call->list->group_first; g < call->list->group_past && node->cut != OX_CUT_NONE; g++) {
        const struct ox_own_rows rows = ox_group_rows(shape, g);
        const uint64_t before = rows.first - ox_own_rows_of(shape).first;
        if (node->cut == OX_CUT_ROWS) {
            drop_range(call, (g - call->list->group_first) * of_columns, of_columns, g + 1);
        } else {
            drop_range(call, before * node->in_count, (uint64_t)rows.count * node->in_count, g + 1);
        }
    }
    if (node->cut == OX_CUT_NONE) {
        drop_range(call, 0, (uint64_t)shape->rows * node->in_count, 0);
    }
}

void ox_drop_forward(const struct ox_node_call *call) {
    drop(call);
}

void ox_drop_backward(const struct ox_node_call *call) {
    if (call->din != NULL) {
        drop(call);
    }
}

/* A of all modules as one matrix (sum of ranks, in). */
void ox_down_forward(const struct ox_node_call *call) {
    const struct ox_node *const node = call->node;
    if (node->cut != OX_CUT_NONE) {
        (node->cut == OX_CUT_COLUMNS ? ox_own_rows_forward : ox_linear_groups_forward)(call);
        return;
    }
    OX_RUN(&call->job->run, linear_forward, .out = call->out, .in = ox_node_part(call, call->in),
           .weight = ox_node_weight(call, node->role), .rows = shape_of(call)->rows, .in_stride = node->stride,
           .in_count = node->in_count, .out_count = node->out_count,
           .layout = OX_WEIGHT_OUT_IN, .real = shape_of(call)->compute.real);
}

void ox_down_backward(const struct ox_node_call *call) {
    const struct ox_node *const node = call->node;
    if (node->cut != OX_CUT_NONE) {
        (node->cut == OX_CUT_COLUMNS ? ox_own_rows_backward : ox_linear_groups_backward)(call);
        return;
    }
    OX_RUN(&call->job->run, linear_backward, .din = ox_node_part(call, call->din),
           .dweight = ox_node_grad(call, node->role), .dout = call->dout, .in = ox_node_part(call, call->in),
           .weight = ox_node_weight(call, node->role), .residual = ox_node_part(call, call->dresidual),
           .rows = shape_of(call)->rows, .in_stride = node->stride, .in_count = node->in_count,
           .out_count = node->out_count, .layout = OX_WEIGHT_OUT_IN, .real = shape_of(call)->compute.real,
           .begins = call->job->begins);
}

static bool same_module(const struct ox_tensor *a, const struct ox_tensor *b) {
    return strcmp(a->name, b->name) == 0;
}

bool ox_adapter_part_next(const struct ox_list *list, enum ox_role b, struct ox_adapter_part *part) {
    const struct ox_model *const model = list->shape->model;
    const struct ox_unit *const unit = list->units[ox_list_owner_of(list, b, part->group)];
    const struct ox_tensor *tensor = part->tensor;
    do {
        tensor = ox_unit_next_tensor(model, unit, tensor);
    } while (tensor != NULL && tensor->role != b);
    if (tensor == NULL) {
        return false;
    }
    const struct ox_tensor *const base = &model->tensors[tensor->base_idx];
    const uint64_t before = base->offset - model->units[base->unit_idx].role_offset[base->role];
    part->in_first += part->r;
    part->offset = tensor->offset - unit->role_offset[b];
    part->out = (uint32_t)tensor->shape[0];
    part->r = (uint32_t)tensor->shape[1];
    part->out_first = (uint32_t)(before / (base->count / part->out)); /* a matrix alone in its role begins at 0 */
    do { /* of a fused module that is cut a group has several pieces, which lie as its columns do */
        part->tensor = tensor;
        tensor = ox_unit_next_tensor(model, unit, tensor);
        part->out += tensor != NULL && same_module(part->tensor, tensor) ? (uint32_t)tensor->shape[0] : 0;
    } while (tensor != NULL && same_module(part->tensor, tensor));
    return true;
}

void ox_up_forward(const struct ox_node_call *call) {
    const struct ox_node *const node = call->node;
    if (node->cut != OX_CUT_NONE) {
        (node->cut == OX_CUT_COLUMNS ? ox_up_columns_forward : ox_own_rows_forward)(call);
        return;
    }
    const void *const weight = ox_node_weight(call, node->role);
    for (struct ox_adapter_part part = {0}; ox_adapter_part_next(call->list, node->role, &part);) {
        OX_RUN(&call->job->run, linear_forward, .out = ox_node_at(call, call->out, part.out_first),
               .in = ox_node_at(call, call->in, part.in_first), .weight = ox_node_at(call, weight, part.offset),
               .residual = ox_node_at(call, call->residual, part.out_first),
               .rows = shape_of(call)->rows, .in_count = part.r, .out_count = part.out, .in_stride = node->in_count,
               .out_stride = node->out_count, .scale = node->scale, .layout = OX_WEIGHT_OUT_IN,
               .real = shape_of(call)->compute.real);
    }
}

void ox_up_backward(const struct ox_node_call *call) {
    const struct ox_node *const node = call->node;
    if (node->cut != OX_CUT_NONE) {
        (node->cut == OX_CUT_COLUMNS ? ox_up_columns_backward : ox_own_rows_backward)(call);
        return;
    }
    const void *const weight = ox_node_weight(call, node->role);
    float *const grad = ox_node_grad(call, node->role);
    for (struct ox_adapter_part part = {0}; ox_adapter_part_next(call->list, node->role, &part);) {
        OX_RUN(&call->job->run, linear_backward, .din = ox_node_at(call, call->din, part.in_first),
               .dweight = grad == NULL ? NULL : grad + part.offset,
               .dout = ox_node_at(call, call->dout, part.out_first), .in = ox_node_at(call, call->in, part.in_first),
               .weight = ox_node_at(call, weight, part.offset), .rows = shape_of(call)->rows, .in_count = part.r,
               .out_count = part.out, .in_stride = node->in_count, .out_stride = node->out_count, .scale = node->scale,
               .layout = OX_WEIGHT_OUT_IN, .real = shape_of(call)->compute.real, .begins = call->job->begins);
    }
}

void ox_cost_drop(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    const double width = (double)node->in_count / ox_shape_tensors(cost->shape);
    ox_cost_add_loop(cost, cost->rows, width, (struct ox_cost_loop){.passes = backward ? 3 : 2, .ops = 1});
}

/* The cost of one rank: each of those that divide features multiplies its part of the columns, or of the rows. */
void ox_cost_down(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    const double in = (double)node->in_count / ox_shape_tensors(cost->shape);
    if (node->cut == OX_CUT_ROWS) {
        ox_cost_group_sum(cost, node, backward);
    }
    if (backward) {
        ox_cost_add_linear_backward(cost, in, node->out_count, true);
    } else {
        ox_cost_add_linear(cost, in, node->out_count, false);
    }
}

void ox_cost_up(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    struct ox_list list = {.shape = cost->shape};
    const uint32_t groups = node->cut == OX_CUT_COLUMNS ? ox_model_groups(&cost->shape->model->config) : 1;
    list.unit_count = ox_model_stage_units(cost->shape->model, cost->unit, list.units);
    if (node->cut == OX_CUT_COLUMNS) {
        ox_cost_group_sum(cost, node, backward);
    }
    for (struct ox_adapter_part part = {0}; ox_adapter_part_next(&list, node->role, &part);) {
        const double out = (double)part.out * groups / ox_shape_tensors(cost->shape);
        if (backward) {
            ox_cost_add_linear_backward(cost, part.r, out, true);
        } else {
            ox_cost_add_linear(cost, part.r, out, true);
        }
    }
}

/* ---- magnitudes (DoRA): backward makes nothing through the lengths of rows, as PEFT detaches them ---- */

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
    const enum ox_role role = (enum ox_role)(ox_adapted_role(a_of(call->node)) + 1);
    return ox_node_at(call, ox_node_weight(call, role), part->out_first);
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
               .weight = ox_node_at(call, weight, (uint64_t)part.out_first * node->in_count),
               .a = ox_node_at(call, a, (uint64_t)part.in_first * node->in_count),
               .b = ox_node_at(call, b, part.offset), .in_count = node->in_count, .out_count = part.out, .r = part.r,
               .scale = node->scale, .layout = shape->model->config.layout, .real = shape->compute.real);
        OX_RUN(&call->job->run, dora_forward, .out = ox_node_at(call, call->out, part.out_first),
               .in = ox_node_at(call, call->in, part.out_first), .norm = norm + out,
               .magnitude = ox_node_at(call, ox_node_weight(call, node->role), out), .bias = bias_of(call, &part),
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
        OX_RUN(&call->job->run, dora_backward, .din = ox_node_at(call, call->din, part.out_first),
               .dmagnitude = grad == NULL ? NULL : grad + out, .dout = ox_node_at(call, call->dout, part.out_first),
               .in = ox_node_at(call, call->in, part.out_first), .norm = (const float *)call->saved[0] + out,
               .magnitude = ox_node_at(call, ox_node_weight(call, node->role), out), .bias = bias_of(call, &part),
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

/* ---- experts and routers. Adapters of all experts are one tensor each, as in PEFT's files: A (experts * r, in) is
 * what grouped products read, B (out, r * experts) has the expert last and is turned for them, its gradient back. */

enum { PLACE_ALIGN_BYTES = 64 };

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
