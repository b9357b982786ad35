/* The nodes of a mixture of experts, and what families with one add to attention. The pairs of rows and experts are
 * sorted on the device (kernels/ops_moe.h); nodes behind ROUTE find the order in its first saved value. */
#include "base/bytes.h"
#include "engine/model/node_groups.h"

static const struct ox_mixture *mixture_of(const struct ox_shape *shape) {
    return &shape->model->config.mixture;
}

/* The router, which the caller of a pass may let round. */
struct ox_router ox_router_of(const struct ox_shape *shape) {
    struct ox_router router = mixture_of(shape)->router;
    router.rounds = router.rounds || shape->router_rounds;
    return router;
}

uint32_t ox_pairs_of(const struct ox_shape *shape) {
    return shape->rows * mixture_of(shape)->router.chosen;
}

static enum ox_role bias_of(const struct ox_node *node) {
    return (enum ox_role)(node->role + 1);
}

static bool has(const struct ox_node_call *call, enum ox_role role) {
    return ox_list_owner(call->list, role) != UINT32_MAX;
}

/* ---- attention: clamps and sinks ---- */

static void clamp_forward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    OX_RUN(&call->job->run, clamp_forward, .inout = call->out, .inside = call->saved[0], .rows = shape->rows,
           .row_stride = call->node->in_count, .width = call->node->in_count,
           .limit = (float)shape->model->config.clip_qkv, .real = shape->compute.real);
}

static void clamp_backward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    OX_RUN(&call->job->run, clamp_backward, .dinout = call->din, .inside = call->saved[0], .rows = shape->rows,
           .row_stride = call->node->in_count, .width = call->node->in_count, .real = shape->compute.real);
}

/* Where the rows from `row` on of something with `width` elements a row begin. */
static void *from_row(const struct ox_node_call *call, const void *rows, uint64_t row, uint64_t width) {
    return (unsigned char *)(uintptr_t)rows + row * width * ox_real_bytes(call->job->shape->compute.real);
}

/* The heads of a group of features. */
static uint32_t heads_of(const struct ox_node_call *call) {
    return call->job->shape->model->config.heads / call->list->groups;
}

void ox_add_sinks(const struct ox_node_call *call, uint32_t features, uint64_t row, uint32_t seq) {
    const struct ox_shape *const shape = call->job->shape;
    const uint32_t heads = heads_of(call), head_dim = shape->model->config.head_dim, width = heads * head_dim;
    if (has(call, OX_ROLE_SINKS)) {
        OX_RUN(&call->job->run, sinks_forward,
               .out = from_row(call, ox_node_group(call, call->out, width, features), row, width),
               .lse = ox_node_group_floats(call, call->saved[0], heads, features) + row * heads,
               .sinks = ox_node_weight_of(call, OX_ROLE_SINKS, features), .batch = shape->batch, .seq = seq,
               .heads = heads, .head_dim = head_dim, .real = shape->compute.real);
    }
}

void ox_add_sinks_backward(const struct ox_node_call *call, uint32_t features, uint64_t row, uint32_t seq) {
    const struct ox_shape *const shape = call->job->shape;
    const uint32_t heads = heads_of(call), head_dim = shape->model->config.head_dim, width = heads * head_dim;
    float *const dsinks = ox_node_grad_of(call, OX_ROLE_SINKS, features);
    if (dsinks != NULL) {
        OX_RUN(&call->job->run, sinks_backward, .dsinks = dsinks,
               .dout = from_row(call, ox_node_group(call, call->dout, width, features), row, width),
               .out = from_row(call, ox_node_group(call, call->out, width, features), row, width),
               .sinks = ox_node_weight_of(call, OX_ROLE_SINKS, features),
               .lse = ox_node_group_floats(call, call->saved[0], heads, features) + row * heads,
               .batch = shape->batch, .seq = seq, .heads = heads, .head_dim = head_dim, .real = shape->compute.real,
               .begins = call->job->begins && row == 0);
    }
}

/* ---- router ---- */

/* With groups of features such a node is the gate of the expert of all tokens, for the rank's own rows. */
static uint64_t router_scratch(const struct ox_shape *shape, const struct ox_node *node, bool backward) {
    const uint64_t own = ox_ops_router_scratch_bytes(&shape->compute, shape->rows, node->out_count);
    return !backward ? 0 : ox_model_groups(&shape->model->config) > 1 ? ox_gate_group_scratch(shape, node) + own : own;
}

static void router_forward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    if (call->list->groups > 1) {
        ox_gate_groups_forward(call);
        return;
    }
    OX_RUN(&call->job->run, router_forward, .logits = call->out, .in = call->in,
           .weight = ox_node_weight(call, call->node->role), .bias = ox_node_weight(call, bias_of(call->node)),
           .rows = shape->rows, .in_count = call->node->in_count, .experts = call->node->out_count,
           .real = shape->compute.real);
}

static void router_backward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_op_router_backward op = {
        .din = call->din, .residual = call->dresidual, .dweight = ox_node_grad(call, call->node->role),
        .dbias = ox_node_grad(call, bias_of(call->node)), .dlogits = call->dout, .in = call->in,
        .weight = ox_node_weight(call, call->node->role), .scratch = call->scratch, .rows = shape->rows,
        .in_count = call->node->in_count, .experts = call->node->out_count, .real = shape->compute.real,
        .begins = call->job->begins};
    if (call->list->groups > 1) {
        ox_gate_groups_backward(call, op);
    } else {
        OX_THEN(call->job->run.status, OX_QUEUE(call->job->run.ops, call->job->run.lane, router_backward, &op));
    }
}

struct ox_pair_order ox_pair_order_of(const struct ox_shape *shape, const void *order) {
    int32_t *const at = (int32_t *)(uintptr_t)order;
    const size_t pairs = ox_pairs_of(shape);
    return (struct ox_pair_order){at, at + pairs, at + 2 * pairs, at + 3 * pairs};
}

uint64_t ox_pair_order_bytes(const struct ox_shape *shape) {
    return (3 * (uint64_t)ox_pairs_of(shape) + mixture_of(shape)->router.experts + 1) * sizeof(int32_t);
}

uint64_t ox_routing_scratch(const struct ox_shape *shape) {
    const uint32_t experts = mixture_of(shape)->router.experts;
    const uint64_t bias = experts * sizeof(float), load = ox_ops_route_load_scratch_bytes(experts);
    return ox_max_u64(bias, ox_max_u64(ox_ops_route_sort_scratch_bytes(shape->rows, experts), load));
}

static uint64_t route_scratch(const struct ox_shape *shape, const struct ox_node *node, bool backward) {
    (void)node;
    return backward ? 0 : ox_routing_scratch(shape);
}

void ox_route_forward(const struct ox_node_call *call, const struct ox_routed *routed) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_router router = ox_router_of(shape);
    const struct ox_pair_order order = routed->order;
    const void *const limbs = ox_node_weight(call, OX_ROLE_CHOICE_BIAS);
    if (limbs != NULL) {
        OX_RUN(&call->job->run, join_limbs, .out = routed->scratch, .in = limbs, .count = router.experts,
               .real = shape->compute.real);
    }
    OX_RUN(&call->job->run, route_forward, .experts = order.experts, .weights = routed->weights, .lse = routed->lse,
           .logits = routed->logits, .bias = limbs != NULL ? routed->scratch : NULL, .rows = shape->rows,
           .router = router);
    OX_RUN(&call->job->run, route_sort, .offsets = order.offsets, .pair_of = order.pair_of, .place = order.place,
           .experts = order.experts, .scratch = routed->scratch, .rows = shape->rows, .chosen = router.chosen,
           .expert_count = router.experts);
}

void ox_route_report(const struct ox_node_call *call, const struct ox_routed *routed) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_route_losses *const losses = call->job->losses;
    if (losses != NULL && losses->sums) {
        OX_RUN(&call->job->run, route_load, .load = losses->load, .logits = routed->logits, .lse = routed->lse,
               .experts = routed->order.experts, .counted = losses->counted, .scratch = routed->scratch,
               .rows = shape->rows, .router = ox_router_of(shape), .begins = true);
    }
}

void ox_route_backward(const struct ox_node_call *call, const struct ox_routed *routed, float *dlogits,
                       const float *dweights) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_route_losses *const losses = call->job->losses;
    OX_RUN(&call->job->run, route_backward, .dlogits = dlogits, .dweights = dweights, .logits = routed->logits,
           .weights = routed->weights, .lse = routed->lse, .experts = routed->order.experts,
           .load = losses == NULL ? NULL : losses->load, .counted = losses == NULL ? NULL : losses->counted,
           .rows = shape->rows, .balance = losses == NULL ? 0.0f : losses->balance,
           .z = losses == NULL ? 0.0f : losses->z, .router = ox_router_of(shape));
}

static struct ox_routed routed_of(const struct ox_node_call *call) {
    return (struct ox_routed){.logits = call->in, .weights = call->out, .lse = call->saved[1],
                              .order = ox_pair_order_of(call->job->shape, call->saved[0]), .scratch = call->scratch};
}

static void route_forward(const struct ox_node_call *call) {
    const struct ox_routed routed = routed_of(call);
    ox_route_forward(call, &routed);
    ox_route_report(call, &routed);
}

static void route_backward(const struct ox_node_call *call) {
    const struct ox_routed routed = routed_of(call);
    ox_route_backward(call, &routed, call->din, call->dout);
}

/* ---- experts ---- */

static void gather_forward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    OX_RUN(&call->job->run, rows_gather, .out = call->out, .in = call->in,
           .pair_of = ox_pair_order_of(shape, call->order).pair_of, .rows = shape->rows,
           .chosen = mixture_of(shape)->router.chosen, .width = call->node->in_count, .real = shape->compute.real);
}

static void gather_backward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    OX_RUN(&call->job->run, rows_combine, .out = call->din, .residual = call->dresidual, .in = call->dout,
           .place = ox_pair_order_of(shape, call->order).place, .rows = shape->rows,
           .chosen = mixture_of(shape)->router.chosen, .width = call->node->in_count, .real = shape->compute.real,
           .from_last = true);
}

struct ox_experts ox_experts_of(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    return (struct ox_experts){.offsets = ox_pair_order_of(shape, call->order).offsets,
                               .count = mixture_of(shape)->router.experts, .rows_max = ox_pairs_of(shape)};
}

static uint64_t grouped_scratch(const struct ox_shape *shape, const struct ox_node *node, bool backward) {
    (void)backward;
    return ox_ops_grouped_scratch_bytes(&shape->compute, node->in_count, node->out_count);
}

static void multiply(const struct ox_node_call *call, const void *bias) {
    const struct ox_shape *const shape = call->job->shape;
    OX_RUN(&call->job->run, grouped_forward, .out = call->out, .in = call->in,
           .weight = ox_node_weight(call, call->node->role), .bias = bias, .scratch = call->scratch,
           .experts = ox_experts_of(call), .in_count = call->node->in_count, .out_count = call->node->out_count,
           .layout = mixture_of(shape)->layout, .real = shape->compute.real);
}

static void multiply_backward(const struct ox_node_call *call, float *dbias) {
    const struct ox_shape *const shape = call->job->shape;
    OX_RUN(&call->job->run, grouped_backward, .din = call->din, .dweight = ox_node_grad(call, call->node->role),
           .dbias = dbias, .dout = call->dout, .in = call->in, .weight = ox_node_weight(call, call->node->role),
           .scratch = call->scratch, .experts = ox_experts_of(call), .in_count = call->node->in_count,
           .out_count = call->node->out_count, .layout = mixture_of(shape)->layout, .real = shape->compute.real,
           .begins = call->job->begins);
}

static void grouped_forward(const struct ox_node_call *call) {
    multiply(call, ox_node_weight(call, bias_of(call->node)));
}

static void grouped_backward(const struct ox_node_call *call) {
    multiply_backward(call, ox_node_grad(call, bias_of(call->node)));
}

static void grouped_bare_forward(const struct ox_node_call *call) {
    multiply(call, NULL);
}

static void grouped_bare_backward(const struct ox_node_call *call) {
    multiply_backward(call, NULL);
}

/* Rows of an activation and of its sorted pairs, which the expert of all tokens has not, but the rows of groups of
 * features. */
static uint32_t act_rows(const struct ox_shape *shape, const struct ox_node *node) {
    return node->order == OX_NO_VALUE ? shape->rows * ox_shape_own_features(shape) : ox_pairs_of(shape);
}

static const int32_t *act_pairs(const struct ox_node_call *call) {
    return call->order == NULL ? NULL : ox_pair_order_of(call->job->shape, call->order).pair_of;
}

static void expert_act_forward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    OX_RUN(&call->job->run, expert_act_forward, .out = call->out, .in = call->in, .weights = call->pair_weights,
           .pair_of = act_pairs(call), .gate = mixture_of(shape)->gate, .rows = act_rows(shape, call->node),
           .width = call->node->out_count, .real = shape->compute.real);
}

static void expert_act_backward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    OX_RUN(&call->job->run, expert_act_backward, .din = call->din, .dweights = call->dweights, .dout = call->dout,
           .in = call->in, .weights = call->pair_weights, .pair_of = act_pairs(call),
           .gate = mixture_of(shape)->gate, .rows = act_rows(shape, call->node), .width = call->node->out_count,
           .real = shape->compute.real, .adds = call->adds_weights);
}

static void row_gate_forward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    const uint32_t rows = ox_own_rows_of(shape).count;
    if (rows > 0) {
        OX_RUN(&call->job->run, row_gate_forward, .out = call->out, .in = call->in, .gate = call->pair_weights,
               .rows = rows, .width = call->node->out_count, .real = shape->compute.real);
    }
}

static void row_gate_backward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    const uint32_t rows = ox_own_rows_of(shape).count;
    if (rows > 0) {
        OX_RUN(&call->job->run, row_gate_backward, .din = call->din, .dgate = call->dweights, .dout = call->dout,
               .in = call->in, .gate = call->pair_weights, .rows = rows, .width = call->node->out_count,
               .real = shape->compute.real);
    }
}

static void combine_forward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_pair_order order = ox_pair_order_of(shape, call->order);
    OX_RUN(&call->job->run, rows_combine, .out = call->out, .residual = call->residual, .in = call->in,
           .place = order.place, .bias = ox_node_weight(call, OX_ROLE_EXPERT_DOWN_BIAS), .weights = call->pair_weights,
           .experts = order.experts, .rows = shape->rows, .chosen = mixture_of(shape)->router.chosen,
           .width = call->node->out_count, .real = shape->compute.real);
}

static void combine_backward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_pair_order order = ox_pair_order_of(shape, call->order);
    const uint32_t chosen = mixture_of(shape)->router.chosen;
    OX_RUN(&call->job->run, rows_gather, .out = call->din, .in = call->dout, .pair_of = order.pair_of,
           .rows = shape->rows, .chosen = chosen, .width = call->node->out_count, .real = shape->compute.real);
    if (call->dweights != NULL) {
        OX_RUN(&call->job->run, combine_bias_backward, .dweights = call->dweights,
               .dbias = ox_node_grad(call, OX_ROLE_EXPERT_DOWN_BIAS), .dout = call->dout,
               .bias = ox_node_weight(call, OX_ROLE_EXPERT_DOWN_BIAS), .weights = call->pair_weights,
               .experts = order.experts, .group = ox_experts_of(call), .pair_of = order.pair_of, .rows = shape->rows,
               .chosen = chosen, .width = call->node->out_count, .real = shape->compute.real,
               .begins = call->job->begins);
    }
}

/* ---- costs ---- */

static void clamp_cost(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    (void)backward;
    ox_cost_add_loop(cost, cost->rows, node->in_count, (struct ox_cost_loop){.passes = 2, .ops = 1});
}

static void router_cost(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    if (backward) {
        ox_cost_add_linear_backward(cost, node->in_count, node->out_count, cost->unit->role_trained[node->role]);
    } else {
        ox_cost_add_linear(cost, node->in_count, node->out_count, false);
    }
}

/* Choice and sorting read the logits a few times; their operations are what counts. */
static void route_cost(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    ox_cost_add_loop(cost, cost->rows, node->in_count,
                     (struct ox_cost_loop){.passes = backward ? 3 : 4, .ops = backward ? 1 : 4});
}

/* Each pair's row is read and written; or a row, and all its pairs. */
static void rows_cost(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    (void)backward;
    const double chosen = mixture_of(cost->shape)->router.chosen;
    ox_cost_add_loop(cost, cost->rows * chosen, node->out_count, (struct ox_cost_loop){.passes = 2, .ops = 1});
}

static void grouped_cost(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    const struct ox_router *const router = &mixture_of(cost->shape)->router;
    ox_cost_add_grouped(cost, &(struct ox_cost_grouped){.pairs = cost->rows * router->chosen,
                                                        .experts = router->experts, .in_count = node->in_count,
                                                        .out_count = node->out_count,
                                                        .trained = cost->unit->role_trained[node->role]}, backward);
}

static void row_gate_cost(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    ox_cost_add_loop(cost, cost->rows, node->out_count, (struct ox_cost_loop){.passes = backward ? 3 : 2, .ops = 1});
}

static void expert_act_cost(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    ox_cost_add_loop(cost, act_rows(cost->shape, node), (backward ? 2.0 : 1.0) * node->in_count + node->out_count,
                     (struct ox_cost_loop){.passes = 1, .ops = 1});
}

/* ---- the table ---- */

const struct ox_node_row ox_mixture_rows[OX_NODE_KIND_COUNT - OX_NODE_CLAMP] = {
    [OX_NODE_CLAMP - OX_NODE_CLAMP] = {.reads = OX_READS_SAVED, .saved_optional = 1, .over = OX_OVER_DOUT,
                                       .forward = clamp_forward, .backward = clamp_backward, .cost = clamp_cost},
    [OX_NODE_ROUTER - OX_NODE_CLAMP] = {.reads = OX_READS_IN, .reads_for_weights = OX_READS_IN, .adds = true,
                                        .weight_count = 2, .scratch = router_scratch, .parts = ox_head_norm_group_parts,
                                        .forward = router_forward,
                                        .backward = router_backward, .cost = router_cost},
    [OX_NODE_ROUTE - OX_NODE_CLAMP] = {.reads = OX_READS_IN | OX_READS_OUT | OX_READS_SAVED,
                                       .scratch = route_scratch, .forward = route_forward,
                                       .backward = route_backward, .cost = route_cost},
    [OX_NODE_GATHER - OX_NODE_CLAMP] = {.reads = OX_READS_ORDER, .adds = true, .forward = gather_forward,
                                        .backward = gather_backward, .cost = rows_cost},
    [OX_NODE_GROUPED - OX_NODE_CLAMP] = {.reads = OX_READS_IN | OX_READS_ORDER, .reads_for_weights = OX_READS_IN,
                                         .may_skip_din = true, .weight_count = 2,
                                         .scratch = grouped_scratch, .forward = grouped_forward,
                                         .backward = grouped_backward, .cost = grouped_cost},
    [OX_NODE_GROUPED_BARE - OX_NODE_CLAMP] = {.reads = OX_READS_IN | OX_READS_ORDER,
                                              .reads_for_weights = OX_READS_IN, .may_skip_din = true,
                                              .weight_count = 1,
                                              .scratch = grouped_scratch, .forward = grouped_bare_forward,
                                              .backward = grouped_bare_backward, .cost = grouped_cost},
    [OX_NODE_EXPERT_ACT - OX_NODE_CLAMP] = {.reads = OX_READS_IN | OX_READS_ORDER | OX_READS_WEIGHTS,
                                            .over = OX_OVER_IN, .forward = expert_act_forward,
                                            .backward = expert_act_backward, .cost = expert_act_cost},
    [OX_NODE_ROW_GATE - OX_NODE_CLAMP] = {.reads = OX_READS_IN | OX_READS_WEIGHTS, .forward = row_gate_forward,
                                          .backward = row_gate_backward, .cost = row_gate_cost},
    [OX_NODE_COMBINE - OX_NODE_CLAMP] = {.reads = OX_READS_ORDER | OX_READS_WEIGHTS, .weight_count = 1,
                                         .forward = combine_forward, .backward = combine_backward,
                                         .cost = rows_cost},
    [OX_NODE_BESIDE - OX_NODE_CLAMP] = {.forward = ox_beside_forward, .backward = ox_beside_backward,
                                        .cost = ox_beside_cost},
    [OX_NODE_HAND_OVER - OX_NODE_CLAMP] = {.reads = OX_READS_IN, .weight_count = 2,
                                           .scratch = ox_mixture_groups_scratch, .parts = ox_mixture_groups_parts,
                                           .forward = ox_hand_over_forward, .backward = ox_hand_over_backward,
                                           .cost = ox_hand_over_cost},
    [OX_NODE_EXPERTS - OX_NODE_CLAMP] = {.reads = OX_READS_IN, .adds = true, .may_skip_din = true, .weight_count = 4,
                                         .scratch = ox_experts_scratch, .parts = ox_experts_parts,
                                         .forward = ox_experts_forward, .backward = ox_experts_backward,
                                         .cost = ox_experts_cost},
    [OX_NODE_MIXTURE - OX_NODE_CLAMP] = {.reads = OX_READS_IN, .adds = true, .weight_count = 7,
                                         .scratch = ox_mixture_groups_scratch, .parts = ox_mixture_groups_parts,
                                         .forward = ox_mixture_groups_forward,
                                         .backward = ox_mixture_groups_backward, .cost = ox_mixture_groups_cost},
    [OX_NODE_GROUPED_DOWN - OX_NODE_CLAMP] = {.reads = OX_READS_IN | OX_READS_ORDER,
                                              .reads_for_weights = OX_READS_IN, .may_skip_din = true, .adds = true,
                                              .weight_count = 1, .scratch = ox_grouped_down_scratch,
                                              .forward = ox_grouped_down_forward,
                                              .backward = ox_grouped_down_backward, .cost = ox_cost_grouped_adapter},
    [OX_NODE_GROUPED_UP - OX_NODE_CLAMP] = {.reads = OX_READS_IN | OX_READS_ORDER,
                                            .reads_for_weights = OX_READS_IN, .in_residual = true, .weight_count = 1,
                                            .scratch = ox_grouped_up_scratch, .forward = ox_grouped_up_forward,
                                            .backward = ox_grouped_up_backward, .cost = ox_cost_grouped_adapter},
    [OX_NODE_ROUTER_UP - OX_NODE_CLAMP] = {.reads = OX_READS_IN, .reads_for_weights = OX_READS_IN,
                                           .in_residual = true, .weight_count = 1, .scratch = ox_router_up_scratch,
                                           .forward = ox_router_up_forward, .backward = ox_router_up_backward,
                                           .cost = ox_cost_down},
};
