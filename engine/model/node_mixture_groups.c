/* A mixture whose experts are cut into groups of features (groups.h): each group has some of them, whole. It is one
 * node: every rank has all rows, of which it computes the router, and what its own experts make of their rows; what
 * groups have made is added in a tree, as of a product whose rows are cut. Backward computes again what it reads, and
 * leaves the gradient of the router to every rank alike. So what is computed depends on the number of groups alone. */
#include "engine/model/node_groups.h"

#include "base/arena.h"
#include "base/bytes.h"

enum { PLACE_ALIGN_BYTES = 64 };

static const struct ox_mixture *mixture_of(const struct ox_shape *shape) {
    return &shape->model->config.mixture;
}

/* Places within the scratch. `whole`, and in backward `whole_dout`: with several ranks all rows of the node's input and
 * of the gradient of its output; `drows`: what the router makes of its own; `sums`: the sum over groups; `pairs`: of
 * each rank what it has of the gradients of what pairs weigh, which `sorted` has by sorted row. What crosses is in
 * front, because what follows depends on the threads of a rank. */
struct places {
    uint64_t whole, whole_dout, sums, pairs, pair_bytes;
    uint64_t drows, sorted, dlogits, logits, weights, lse, order, routing, experts, bytes;
};

static uint64_t take(uint64_t *end, uint64_t bytes) {
    const uint64_t at = *end;
    *end += ox_align_up(bytes, PLACE_ALIGN_BYTES);
    return at;
}

/* `apart`: the experts are units of their own: of another stage, which has the sum over groups too. */
static struct places places_of(const struct ox_shape *shape, bool backward, bool apart) {
    const uint32_t tensors = ox_shape_tensors(shape), hidden = shape->model->config.hidden;
    const uint32_t experts = mixture_of(shape)->router.experts;
    const uint64_t whole = tensors > 1 ? ox_whole_rows_bytes(shape, hidden) : 0;
    const uint64_t logits = (uint64_t)shape->rows * experts * sizeof(float);
    struct places at = {.pair_bytes = ox_align_up(ox_pairs_of(shape) * sizeof(float), PLACE_ALIGN_BYTES)};
    uint64_t end = 0;
    at.whole = take(&end, whole);
    at.whole_dout = take(&end, backward && !apart ? whole : 0);
    at.sums = take(&end, apart ? 0 : ox_joined_sum_of(shape, hidden).bytes);
    at.pairs = take(&end, backward ? tensors * at.pair_bytes : 0);
    at.drows = take(&end, backward ? (uint64_t)shape->rows * hidden * ox_real_bytes(shape->compute.real) : 0);
    at.sorted = take(&end, backward ? at.pair_bytes : 0);
    at.dlogits = take(&end, backward ? logits : 0);
    at.logits = take(&end, logits);
    at.weights = take(&end, at.pair_bytes);
    at.lse = take(&end, shape->rows * sizeof(float));
    at.order = take(&end, ox_pair_order_bytes(shape));
    at.routing = take(&end, ox_max_u64(ox_routing_scratch(shape),
                                       ox_ops_router_scratch_bytes(&shape->compute, shape->rows, experts)));
    at.experts = end;
    at.bytes = end + (apart ? 0 : ox_expert_room_of(shape, backward).bytes);
    return at;
}

/* Whether the node's experts are units of their own. */
static bool hands_over(const struct ox_node *node) {
    return node->kind == OX_NODE_HAND_OVER;
}

uint64_t ox_mixture_groups_scratch(const struct ox_shape *shape, const struct ox_node *node, bool backward) {
    return places_of(shape, backward, hands_over(node)).bytes;
}

/* Forward: rows come together | what the rank's experts make of them | the sum over groups. Backward: rows and
 * gradients come together, one after the other | the rank's experts | what pairs weigh comes together, and the sum.
 * Where experts are units of their own, what is theirs is left out, and behind all else comes the router. */
uint32_t ox_mixture_groups_parts(const struct ox_list *list, const struct ox_node *node, bool backward, bool din,
                                 struct ox_node_cut_at out[OX_NODE_CUTS_MAX]) {
    const bool apart = hands_over(node);
    const struct places at = places_of(list->shape, backward, apart);
    uint32_t count = ox_whole_rows_cuts(list->shape, node->in_count, at.whole, out);
    (void)din;
    if (backward && !apart) {
        count += ox_whole_rows_cuts(list->shape, node->in_count, at.whole_dout, &out[count]);
    }
    if (backward) {
        out[count++] = (struct ox_node_cut_at){.kind = OX_CUT_GATHER, .source = at.pairs, .target = at.pairs,
                                               .bytes = ox_shape_tensors(list->shape) * at.pair_bytes};
    }
    return apart ? count : count + ox_joined_sum_cuts(list->shape, node->in_count, at.sums, &out[count]);
}

/* What a pass works on. */
struct pass {
    struct ox_node_call experts; /* the call, with the scratch of the experts' operations */
    struct places at;
    struct ox_routed routed;
    const void *in, *dout; /* all rows */
    float *dweights;
    uint32_t computes, ends; /* the parts in which experts work, and in which the sum ends */
};

static void *place(const struct ox_node_call *call, uint64_t offset) {
    return (unsigned char *)call->scratch + offset;
}

static struct pass pass_of(const struct ox_node_call *call, bool backward) {
    const struct ox_shape *const shape = call->job->shape;
    const bool apart = ox_shape_tensors(shape) > 1;
    struct pass pass = {.experts = *call, .at = places_of(shape, backward, hands_over(call->node))};
    pass.experts.scratch = place(call, pass.at.experts);
    pass.in = apart ? place(call, pass.at.whole) : call->in;
    pass.dout = apart ? place(call, pass.at.whole_dout) : call->dout;
    pass.dweights = place(call, pass.at.pairs + (call->list->group_first / ox_shape_own_features(shape)) *
                                                    pass.at.pair_bytes);
    pass.computes = !apart ? 0 : backward ? 2 : 1; /* where rows, and in backward something else, have come together */
    pass.ends = !apart ? 0 : backward ? 4 : 2;
    pass.routed = (struct ox_routed){.logits = place(call, pass.at.logits), .weights = place(call, pass.at.weights),
                                     .lse = place(call, pass.at.lse), .scratch = place(call, pass.at.routing),
                                     .order = ox_pair_order_of(shape, place(call, pass.at.order))};
    return pass;
}

/* The router of all rows. */
static void route(const struct ox_node_call *call, const struct pass *pass) {
    const struct ox_shape *const shape = call->job->shape;
    OX_RUN(&call->job->run, router_forward, .logits = pass->routed.logits, .in = pass->in,
           .weight = ox_node_weight(call, OX_ROLE_ROUTER), .bias = ox_node_weight(call, OX_ROLE_ROUTER_BIAS),
           .rows = shape->rows, .in_count = call->node->in_count, .experts = mixture_of(shape)->router.experts,
           .real = shape->compute.real);
    ox_route_forward(call, &pass->routed);
}

/* The experts of a group of features, or from `first` on `count`. */
static struct ox_experts some_experts(const struct ox_shape *shape, const struct ox_pair_order *order, uint32_t first,
                                      uint32_t count) {
    const uint32_t chosen = mixture_of(shape)->router.chosen;
    return (struct ox_experts){.offsets = order->offsets, .first = first, .count = count,
                               .rows_max = shape->rows * (uint32_t)ox_min_u64(count, chosen)};
}

static struct ox_expert_group group_of(const struct pass *pass, uint32_t features, bool backward) {
    const struct ox_shape *const shape = pass->experts.job->shape;
    const uint32_t each = mixture_of(shape)->router.experts / pass->experts.list->groups;
    return (struct ox_expert_group){.call = &pass->experts, .shape = shape, .order = pass->routed.order,
                                    .room = ox_expert_room_of(shape, backward), .features = features,
                                    .weights = pass->routed.weights,
                                    .experts = some_experts(shape, &pass->routed.order, features * each, each)};
}

/* What a group adds to all rows: the sum of what its experts have, at `from`. */
static void combine(const struct ox_expert_group *g, uint64_t from, float *sum, bool backward) {
    const struct ox_shape *const shape = g->shape;
    const void *const bias = ox_node_weight_of(g->call, OX_ROLE_EXPERT_DOWN_BIAS, g->features);
    OX_RUN(&g->call->job->run, rows_combine, .sum = sum, .in = place(g->call, from), .place = g->order.place,
           .bias = backward ? NULL : bias, .weights = g->weights, .experts = g->order.experts, .group = g->experts,
           .rows = shape->rows, .chosen = mixture_of(shape)->router.chosen, .width = shape->model->config.hidden,
           .real = shape->compute.real, .begins = true, .from_last = backward);
}

static struct ox_group_sum begin_sum(const struct ox_node_call *call, const struct pass *pass) {
    return (struct ox_group_sum){.run = &call->job->run, .room = place(call, pass->at.sums),
                                 .count = (uint64_t)call->job->shape->rows * call->node->in_count};
}

/* Ends the sum over groups, in two parts. */
static void end_sum(const struct ox_node_call *call, const struct pass *pass, struct ox_group_sum *sum,
                    struct ox_op_settle op) {
    const bool computes = call->part == pass->computes;
    op.cols = call->node->in_count;
    if (computes || call->part == pass->ends) {
        ox_joined_sum_end(call, sum, computes ? 0 : 1, op);
    }
}

void ox_mixture_groups_forward(const struct ox_node_call *call) {
    const struct pass pass = pass_of(call, false);
    struct ox_group_sum sum = begin_sum(call, &pass);
    if (call->part < pass.computes) {
        ox_whole_rows_give(call, call->in, call->node->in_count, place(call, pass.at.whole));
    }
    if (call->part == pass.computes) {
        route(call, &pass);
    }
    for (uint32_t f = call->list->group_first; f < call->list->group_past && call->part == pass.computes; f++) {
        const struct ox_expert_group g = group_of(&pass, f, false);
        ox_expert_gather(&g, g.room.rows, pass.in);
        ox_expert_activate(&g, g.room.rows);
        ox_expert_multiply(&g, g.room.rows, g.room.act, OX_ROLE_EXPERT_DOWN);
        combine(&g, g.room.rows, ox_group_sum_next(&sum), false);
        ox_group_sum_add(&sum);
    }
    end_sum(call, &pass, &sum, (struct ox_op_settle){.out = call->out, .residual = call->residual});
    if (call->part == pass.ends) { /* the last phase of a block's forward reports */
        ox_route_report(call, &pass.routed);
    }
}

/* The gradients of what pairs weigh, of which each rank has made those of its experts, in the rank's own place. */
static void join_pairs(const struct ox_node_call *call, const struct pass *pass) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_pair_order *const order = &pass->routed.order;
    const uint32_t tensors = ox_shape_tensors(shape), each = mixture_of(shape)->router.experts / tensors;
    struct ox_op_rows_gather op = {.out = place(call, pass->at.sorted), .pair_of = order->pair_of,
                                   .rows = ox_pairs_of(shape), .chosen = 1, .width = 1, .real = OX_REAL_F32};
    struct ox_run *const run = &call->job->run;
    for (uint32_t rank = 0; rank < tensors; rank++) {
        op.in = place(call, pass->at.pairs + rank * pass->at.pair_bytes);
        op.group = some_experts(shape, order, rank * each, each);
        OX_THEN(run->status, OX_QUEUE(run->ops, run->lane, rows_gather, &op));
    }
    op.out = pass->dweights;
    op.in = place(call, pass->at.sorted);
    op.pair_of = order->place;
    op.group = (struct ox_experts){0};
    OX_THEN(run->status, OX_QUEUE(run->ops, run->lane, rows_gather, &op));
}

/* The router's gradients, of all rows on every rank, and what they add to that of the rank's own rows. */
static void back_to_router(const struct ox_node_call *call, const struct pass *pass) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_own_rows own = ox_own_rows_of(shape);
    const uint32_t hidden = call->node->in_count;
    float *const dlogits = place(call, pass->at.dlogits);
    unsigned char *const drows = place(call, pass->at.drows);
    if (ox_shape_tensors(shape) > 1) {
        join_pairs(call, pass);
    }
    ox_route_backward(call, &pass->routed, dlogits, pass->dweights);
    OX_RUN(&call->job->run, router_backward, .din = drows, .dweight = ox_node_grad(call, OX_ROLE_ROUTER),
           .dbias = ox_node_grad(call, OX_ROLE_ROUTER_BIAS), .dlogits = dlogits, .in = pass->in,
           .weight = ox_node_weight(call, OX_ROLE_ROUTER), .scratch = pass->routed.scratch, .rows = shape->rows,
           .in_count = hidden, .experts = mixture_of(shape)->router.experts, .real = shape->compute.real,
           .begins = call->job->begins);
    if (own.count > 0) {
        OX_RUN(&call->job->run, add, .target = call->din, .a = call->din,
               .b = drows + (uint64_t)own.first * hidden * ox_real_bytes(shape->compute.real),
               .count = (uint64_t)own.count * hidden, .real = shape->compute.real);
    }
}

void ox_mixture_groups_backward(const struct ox_node_call *call) {
    const struct pass pass = pass_of(call, true);
    struct ox_group_sum sum = begin_sum(call, &pass);
    if (call->part == 0 && pass.computes > 0) {
        ox_whole_rows_give(call, call->in, call->node->in_count, place(call, pass.at.whole));
        ox_whole_rows_give(call, call->dout, call->node->in_count, place(call, pass.at.whole_dout));
    }
    if (call->part == pass.computes) {
        route(call, &pass);
    }
    for (uint32_t f = call->list->group_first; f < call->list->group_past && call->part == pass.computes; f++) {
        const struct ox_expert_group g = group_of(&pass, f, true);
        ox_expert_gather(&g, g.room.rows, pass.in);
        ox_expert_activate(&g, g.room.rows);
        ox_expert_gather(&g, g.room.out, pass.dout);
        const bool biased = ox_expert_back_to_bias(&g, pass.dout, pass.dweights);
        ox_expert_back_to_rows(&g, g.room.rows, g.room.out, pass.dweights, biased, true);
        combine(&g, g.room.out, ox_group_sum_next(&sum), true);
        ox_group_sum_add(&sum);
    }
    end_sum(call, &pass, &sum, (struct ox_op_settle){.out = call->din, .residual = call->dresidual});
    if (call->part == pass.ends) {
        back_to_router(call, &pass);
    }
}

/* ---- costs ---- */

static void add_router(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    const uint32_t experts = mixture_of(cost->shape)->router.experts;
    if (backward) {
        ox_cost_add_linear_backward(cost, node->in_count, experts, true);
    } else {
        ox_cost_add_linear(cost, node->in_count, experts, false);
    }
}

static void add_routing(struct ox_cost *cost, bool backward) {
    ox_cost_add_loop(cost, cost->rows, mixture_of(cost->shape)->router.experts,
                     (struct ox_cost_loop){.passes = backward ? 7 : 4, .ops = backward ? 5 : 4});
}

/* The rank's part of the experts, and the router of all rows. */
static void add_products(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    const struct ox_mixture *const mixture = mixture_of(cost->shape);
    const double share = 1.0 / ox_shape_tensors(cost->shape), pairs = cost->rows * mixture->router.chosen * share;
    const uint32_t width = mixture->width;
    struct ox_cost_grouped up = {.pairs = pairs, .experts = mixture->router.experts * share,
                                 .in_count = node->in_count, .out_count = 2 * width, .trained = true};
    struct ox_cost_grouped down = up;
    down.in_count = width;
    down.out_count = node->in_count;
    ox_cost_add_grouped(cost, &up, backward);
    ox_cost_add_grouped(cost, &down, backward);
    ox_cost_add_loop(cost, pairs, (backward ? 4 : 3) * width, (struct ox_cost_loop){.passes = 1, .ops = 1});
    add_router(cost, node, backward);
}

void ox_mixture_groups_cost(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    const struct ox_router *const router = &mixture_of(cost->shape)->router;
    const double pairs = cost->rows * router->chosen / ox_shape_tensors(cost->shape);
    const uint32_t groups = ox_shape_own_features(cost->shape);
    ox_cost_add_loop(cost, pairs, node->in_count, (struct ox_cost_loop){.passes = backward ? 6 : 4, .ops = 3});
    add_routing(cost, backward);
    cost->work.bytes += cost->rows * node->in_count * sizeof(float) * (4.0 * (groups - 1) + 2);
    add_products(cost, node, false); /* backward computes them again */
    if (backward) {
        add_products(cost, node, true);
    }
}

/* ---- where experts are units of their own ---- */

static void *handed(const void *value, uint64_t offset) {
    return (unsigned char *)(uintptr_t)value + offset;
}

/* What does not follow from all rows: x, and what the expert of all tokens has made. */
static void hand_own_rows(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_handed at = ox_handed_of(shape);
    const uint32_t rows = ox_own_rows_of(shape).count;
    for (uint32_t i = 0; i < (at.shared > 0 ? 2u : 1u) && rows > 0; i++) {
        OX_RUN(&call->job->run, add, .target = handed(call->out, i * at.shared),
               .b = handed(call->residual, i * at.shared), .count = (uint64_t)rows * call->node->in_count,
               .real = shape->compute.real);
    }
}

void ox_hand_over_forward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_handed at = ox_handed_of(shape);
    struct pass pass = pass_of(call, false);
    pass.routed.weights = handed(call->out, at.weights);
    pass.routed.order = ox_pair_order_of(shape, handed(call->out, at.order));
    if (call->part < pass.computes) {
        ox_whole_rows_give(call, call->in, call->node->in_count, place(call, pass.at.whole));
        return;
    }
    hand_own_rows(call);
    OX_RUN(&call->job->run, add, .target = handed(call->out, at.in), .b = pass.in,
           .count = (uint64_t)shape->rows * call->node->in_count, .real = shape->compute.real);
    route(call, &pass);
    ox_route_report(call, &pass.routed);
}

/* The experts have left the gradient of the rank's own rows, to which the router adds its own. */
void ox_hand_over_backward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_handed at = ox_handed_of(shape);
    const uint32_t rows = ox_own_rows_of(shape).count;
    struct pass pass = pass_of(call, true);
    if (call->part == 0) {
        OX_RUN(&call->job->run, add, .target = pass.dweights, .b = handed(call->dout, at.weights),
               .count = ox_pairs_of(shape), .real = OX_REAL_F32);
    }
    if (call->part == 0 && pass.computes > 0) {
        ox_whole_rows_give(call, call->in, call->node->in_count, place(call, pass.at.whole));
    }
    if (call->part < pass.computes) {
        return;
    }
    route(call, &pass);
    if (rows > 0) {
        OX_RUN(&call->job->run, add, .target = call->din, .b = handed(call->dout, at.in),
               .count = (uint64_t)rows * call->node->in_count, .real = shape->compute.real);
    }
    back_to_router(call, &pass);
}

void ox_hand_over_cost(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    add_routing(cost, backward);
    ox_cost_add_loop(cost, cost->rows, node->in_count, (struct ox_cost_loop){.passes = 4, .ops = 4});
    add_router(cost, node, false); /* backward computes it again */
    if (backward) {
        add_router(cost, node, true);
    }
}
