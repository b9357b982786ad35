/* Experts apart from their block: what the block's stage hands over, and what each group of them adds to it. A group is
 * one node, because its values are of no use to another: forward leaves nothing but the sum, and backward computes
 * again what it reads. The operations and their order are those of a block with its experts, so the bits are too. */
#include "engine/model/list.h"

#include "base/bytes.h"

enum { PLACE_ALIGN_BYTES = 64 };

static const struct ox_mixture *mixture_of(const struct ox_shape *shape) {
    return &shape->model->config.mixture;
}

static uint64_t rows_bytes(uint64_t rows, uint32_t width, size_t elem_bytes) {
    return ox_align_up(rows * width * elem_bytes, PLACE_ALIGN_BYTES);
}

struct ox_handed ox_handed_of(const struct ox_shape *shape) {
    const uint32_t hidden = shape->model->config.hidden;
    const uint64_t act = rows_bytes(shape->rows, hidden, ox_real_bytes(shape->compute.real));
    struct ox_handed at = {.shared = mixture_of(shape)->shared_width > 0 ? act : 0};
    at.in = at.shared + act;
    at.order = at.in + act;
    at.weights = at.order + ox_align_up(ox_pair_order_bytes(shape), PLACE_ALIGN_BYTES);
    at.sum = at.weights + rows_bytes(ox_pairs_of(shape), 1, sizeof(float));
    at.first_bytes = at.sum;
    at.bytes = at.sum + rows_bytes(shape->rows, hidden, sizeof(float));
    return at;
}

static void *at_byte(const void *base, uint64_t offset) {
    return (unsigned char *)(uintptr_t)base + offset;
}

/* ---- what is handed over ---- */

static void copy_words(struct ox_run *run, void *to, const void *from, uint64_t bytes) {
    OX_RUN(run, add, .target = to, .b = from, .count = bytes / sizeof(float), .real = OX_REAL_F32);
}

static void copy_rows(const struct ox_node_call *call, void *to, const void *from) {
    const struct ox_shape *const shape = call->job->shape;
    OX_RUN(&call->job->run, add, .target = to, .b = from,
           .count = (uint64_t)shape->rows * shape->model->config.hidden, .real = shape->compute.real);
}

/* Where `in` lies behind the residual, which is one value or, in front of order and weights, two. */
static uint64_t in_offset(const struct ox_node_call *call) {
    const struct ox_handed at = ox_handed_of(call->job->shape);
    return call->node->order != OX_NO_VALUE ? at.in : at.shared;
}

void ox_beside_forward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_handed at = ox_handed_of(shape);
    copy_rows(call, call->out, call->residual);
    copy_rows(call, at_byte(call->out, in_offset(call)), call->in);
    if (call->node->order == OX_NO_VALUE) {
        return;
    }
    if (at.shared > 0) {
        copy_rows(call, at_byte(call->out, at.shared), at_byte(call->residual, at.shared));
    }
    copy_words(&call->job->run, at_byte(call->out, at.order), call->order, ox_pair_order_bytes(shape));
    copy_words(&call->job->run, at_byte(call->out, at.weights), call->pair_weights,
               ox_pairs_of(shape) * sizeof(float));
}

void ox_beside_backward(const struct ox_node_call *call) {
    const struct ox_handed at = ox_handed_of(call->job->shape);
    copy_rows(call, call->din, at_byte(call->dout, in_offset(call)));
    if (call->dweights != NULL) {
        copy_words(&call->job->run, call->dweights, at_byte(call->dout, at.weights),
                   ox_pairs_of(call->job->shape) * sizeof(float));
    }
}

void ox_beside_cost(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    (void)backward;
    ox_cost_add_loop(cost, cost->rows, node->in_count, (struct ox_cost_loop){.passes = 4, .ops = 4});
}

/* ---- a group of experts ---- */

static bool begins(const struct ox_unit *unit) {
    return unit->expert_first == 0;
}

static bool ends(const struct ox_shape *shape, const struct ox_unit *unit) {
    return unit->expert_first + unit->expert_count == mixture_of(shape)->router.experts;
}

/* Places within the scratch: rows of all pairs, of which a group has some. `wide` is gate and up, whose gradient
 * replaces them; what goes into the experts and what comes out of them share `rows` in forward. `scaled`, where blocks
 * scale what they add, has the sum in forward, and its gradient in backward. */
struct room {
    uint64_t rows, wide, act, dact, out, scaled, products, bytes;
};

/* The factor of what blocks add; 0: none. */
static float scale_of(const struct ox_shape *shape) {
    const double scale = shape->model->config.residual_scale;
    return scale == 1.0 ? 0.0f : (float)scale;
}

static struct room room_of(const struct ox_shape *shape, bool backward) {
    const uint32_t hidden = shape->model->config.hidden, width = mixture_of(shape)->width;
    const size_t real = ox_real_bytes(shape->compute.real);
    const uint64_t pairs = ox_pairs_of(shape), narrow = rows_bytes(pairs, width, real);
    const uint64_t rows = rows_bytes(pairs, hidden, real);
    const uint32_t ins = hidden > width ? hidden : width, outs = hidden > 2 * width ? hidden : 2 * width;
    struct room at = {.wide = rows};
    at.act = at.wide + rows_bytes(pairs, 2 * width, real);
    at.dact = at.act + narrow;
    at.out = at.dact + (backward ? narrow : 0);
    at.scaled = at.out + (backward ? rows : 0);
    at.products = at.scaled + (scale_of(shape) != 0.0f ? rows_bytes(shape->rows, hidden, real) : 0);
    at.bytes = at.products + ox_ops_grouped_scratch_bytes(&shape->compute, ins, outs);
    return at;
}

uint64_t ox_experts_scratch(const struct ox_shape *shape, const struct ox_node *node, bool backward) {
    (void)node;
    return room_of(shape, backward).bytes;
}

/* What the passes of a group share. */
struct group {
    const struct ox_node_call *call;
    const struct ox_shape *shape;
    struct ox_handed at;
    struct room room;
    struct ox_pair_order order;
    struct ox_experts experts;
    const float *weights; /* of pairs */
};

static struct group group_of(const struct ox_node_call *call, bool backward) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_unit *const unit = call->list->unit;
    const uint32_t chosen = mixture_of(shape)->router.chosen, count = unit->expert_count;
    struct group g = {.call = call, .shape = shape, .at = ox_handed_of(shape), .room = room_of(shape, backward)};
    g.order = ox_pair_order_of(shape, at_byte(call->in, g.at.order));
    g.weights = at_byte(call->in, g.at.weights);
    g.experts = (struct ox_experts){.offsets = g.order.offsets, .first = unit->expert_first, .count = count,
                                    .rows_max = shape->rows * (count < chosen ? count : chosen)};
    return g;
}

static void *room(const struct group *g, uint64_t offset) {
    return at_byte(g->call->scratch, offset);
}

static void gather(const struct group *g, uint64_t to, const void *from) {
    OX_RUN(&g->call->job->run, rows_gather, .out = room(g, to), .in = from, .pair_of = g->order.pair_of,
           .group = g->experts, .rows = g->shape->rows, .chosen = mixture_of(g->shape)->router.chosen,
           .width = g->shape->model->config.hidden, .real = g->shape->compute.real);
}

static void multiply(const struct group *g, uint64_t to, uint64_t from, enum ox_role role, enum ox_role bias) {
    const uint32_t hidden = g->shape->model->config.hidden, width = mixture_of(g->shape)->width;
    const bool up = role == OX_ROLE_EXPERT_GATE_UP;
    OX_RUN(&g->call->job->run, grouped_forward, .out = room(g, to), .in = room(g, from),
           .weight = ox_node_weight(g->call, role), .bias = up ? ox_node_weight(g->call, bias) : NULL,
           .scratch = room(g, g->room.products), .experts = g->experts, .in_count = up ? hidden : width,
           .out_count = up ? 2 * width : hidden, .layout = mixture_of(g->shape)->layout,
           .real = g->shape->compute.real);
}

/* From what the experts read to their activations. */
static void activate(const struct group *g) {
    gather(g, g->room.rows, at_byte(g->call->in, g->at.in));
    multiply(g, g->room.wide, g->room.rows, OX_ROLE_EXPERT_GATE_UP, OX_ROLE_EXPERT_GATE_UP_BIAS);
    OX_RUN(&g->call->job->run, expert_act_forward, .out = room(g, g->room.act), .in = room(g, g->room.wide),
           .weights = g->weights, .pair_of = g->order.pair_of, .group = g->experts, .gate = mixture_of(g->shape)->gate,
           .rows = ox_pairs_of(g->shape), .width = mixture_of(g->shape)->width, .real = g->shape->compute.real);
}

void ox_experts_forward(const struct ox_node_call *call) {
    const struct group g = group_of(call, false);
    const struct ox_unit *const unit = call->list->unit;
    const bool last = ends(g.shape, unit), first = begins(unit), shared = g.at.shared > 0;
    const float scale = scale_of(g.shape);
    void *const out = !last ? NULL : scale != 0.0f ? room(&g, g.room.scaled) : call->out;
    activate(&g);
    multiply(&g, g.room.rows, g.room.act, OX_ROLE_EXPERT_DOWN, OX_ROLE_EXPERT_DOWN_BIAS);
    if (!last && call->out != call->in) {
        copy_words(&call->job->run, call->out, call->in, first ? g.at.first_bytes : g.at.bytes);
    }
    OX_RUN(&call->job->run, rows_combine, .out = out,
           .residual = last && (shared || scale == 0.0f) ? at_byte(call->in, g.at.shared) : NULL,
           .sum = first && last ? NULL : at_byte(last ? call->in : call->out, g.at.sum), .in = room(&g, g.room.rows),
           .place = g.order.place, .bias = ox_node_weight(call, OX_ROLE_EXPERT_DOWN_BIAS), .weights = g.weights,
           .experts = g.order.experts, .group = g.experts, .rows = g.shape->rows,
           .chosen = mixture_of(g.shape)->router.chosen, .width = g.shape->model->config.hidden,
           .real = g.shape->compute.real, .begins = first);
    if (last && (shared || scale != 0.0f)) {
        OX_RUN(&call->job->run, add, .target = call->out, .a = call->in, .b = out, .scale = scale,
               .count = (uint64_t)g.shape->rows * g.shape->model->config.hidden, .real = g.shape->compute.real);
    }
}

static void multiply_backward(const struct group *g, bool wants_din, uint64_t din, uint64_t dout, uint64_t in,
                              enum ox_role role) {
    const uint32_t hidden = g->shape->model->config.hidden, width = mixture_of(g->shape)->width;
    const bool up = role == OX_ROLE_EXPERT_GATE_UP;
    OX_RUN(&g->call->job->run, grouped_backward, .din = wants_din ? room(g, din) : NULL,
           .dweight = ox_node_grad(g->call, role),
           .dbias = up ? ox_node_grad(g->call, OX_ROLE_EXPERT_GATE_UP_BIAS) : NULL, .dout = room(g, dout),
           .in = room(g, in), .weight = ox_node_weight(g->call, role), .scratch = room(g, g->room.products),
           .experts = g->experts, .in_count = up ? hidden : width, .out_count = up ? 2 * width : hidden,
           .layout = mixture_of(g->shape)->layout, .real = g->shape->compute.real, .begins = g->call->job->begins);
}

/* The gradient of what the block adds, of which `dout` is that of the whole. */
static const void *scale_back(const struct group *g) {
    const float scale = scale_of(g->shape);
    if (scale == 0.0f) {
        return g->call->dout;
    }
    OX_RUN(&g->call->job->run, add, .target = room(g, g->room.scaled), .b = g->call->dout, .scale = scale,
           .count = (uint64_t)g->shape->rows * g->shape->model->config.hidden, .real = g->shape->compute.real);
    return room(g, g->room.scaled);
}

/* The gradients of the group's weights, and of what pairs weigh, from that of the sum; `out` of the room gets that of
 * the experts' rows. */
static void back_to_rows(const struct group *g, const void *dsum) {
    const struct ox_node_call *const call = g->call;
    const struct ox_shape *const shape = g->shape;
    const void *const bias = ox_node_weight(call, OX_ROLE_EXPERT_DOWN_BIAS);
    float *const dweights = at_byte(call->dout, g->at.weights);
    gather(g, g->room.out, dsum);
    if (bias != NULL) {
        OX_RUN(&call->job->run, combine_bias_backward, .dweights = dweights,
               .dbias = ox_node_grad(call, OX_ROLE_EXPERT_DOWN_BIAS), .dout = dsum, .bias = bias,
               .weights = g->weights, .experts = g->order.experts, .pair_of = g->order.pair_of, .group = g->experts,
               .rows = shape->rows, .chosen = mixture_of(shape)->router.chosen, .width = shape->model->config.hidden,
               .real = shape->compute.real, .begins = call->job->begins);
    }
    multiply_backward(g, true, g->room.dact, g->room.out, g->room.act, OX_ROLE_EXPERT_DOWN);
    OX_RUN(&call->job->run, expert_act_backward, .din = room(g, g->room.wide), .dweights = dweights,
           .dout = room(g, g->room.dact), .in = room(g, g->room.wide), .weights = g->weights,
           .pair_of = g->order.pair_of, .group = g->experts, .gate = mixture_of(shape)->gate,
           .rows = ox_pairs_of(shape), .width = mixture_of(shape)->width, .real = shape->compute.real,
           .adds = bias != NULL);
    multiply_backward(g, call->din != NULL, g->room.out, g->room.wide, g->room.rows, OX_ROLE_EXPERT_GATE_UP);
}

void ox_experts_backward(const struct ox_node_call *call) {
    const struct group g = group_of(call, true);
    const struct ox_unit *const unit = call->list->unit;
    const bool last = ends(g.shape, unit), first = begins(unit);
    const void *const dsum = scale_back(&g);
    activate(&g);
    back_to_rows(&g, dsum);
    if (call->din == NULL) { /* nothing before is trained */
        return;
    }
    OX_RUN(&call->job->run, rows_combine, .out = first ? at_byte(call->din, g.at.in) : NULL,
           .sum = first && last ? NULL : at_byte(call->din, g.at.sum), .in = room(&g, g.room.out),
           .place = g.order.place, .experts = g.order.experts, .group = g.experts, .rows = g.shape->rows,
           .chosen = mixture_of(g.shape)->router.chosen, .width = g.shape->model->config.hidden,
           .real = g.shape->compute.real, .begins = last, .from_last = true);
    if (last && g.at.shared > 0) {
        copy_rows(call, at_byte(call->din, g.at.shared), dsum);
    }
}

/* ---- costs ---- */

static void add_products(struct ox_cost *cost, bool backward) {
    const struct ox_mixture *const mixture = mixture_of(cost->shape);
    const uint32_t hidden = cost->shape->model->config.hidden, width = mixture->width, count = cost->unit->expert_count;
    struct ox_cost_grouped up = {.pairs = cost->rows * mixture->router.chosen * count / mixture->router.experts,
                                 .experts = count, .in_count = hidden, .out_count = 2 * width,
                                 .trained = cost->unit->role_trained[OX_ROLE_EXPERT_GATE_UP]};
    struct ox_cost_grouped down = up;
    down.in_count = width;
    down.out_count = hidden;
    down.trained = cost->unit->role_trained[OX_ROLE_EXPERT_DOWN];
    ox_cost_add_grouped(cost, &up, backward);
    ox_cost_add_grouped(cost, &down, backward);
    ox_cost_add_loop(cost, up.pairs, (backward ? 4 : 3) * width, (struct ox_cost_loop){.passes = 1, .ops = 1});
}

void ox_experts_cost(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    const struct ox_mixture *const mixture = mixture_of(cost->shape);
    const double share = (double)cost->unit->expert_count / mixture->router.experts;
    const double pairs = cost->rows * mixture->router.chosen * share;
    ox_cost_add_loop(cost, pairs, node->in_count, (struct ox_cost_loop){.passes = backward ? 6 : 4, .ops = 3});
    ox_cost_add_loop(cost, cost->rows, node->in_count, (struct ox_cost_loop){.passes = 6, .ops = 1});
    add_products(cost, false); /* backward computes them again */
    if (backward) {
        add_products(cost, true);
    }
}
