/* Experts apart from their block: what the block's stage hands over, and what each group of them adds to it. A group is
 * one node, because its values are of no use to another: forward leaves nothing but the sum, and backward computes
 * again what it reads. The operations and their order are those of a block with its experts, so the bits are too. */
#include "engine/model/node_groups.h"

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
    const size_t real = ox_real_bytes(shape->compute.real);
    const uint64_t act = rows_bytes(ox_own_rows_of(shape).most, hidden, real);
    struct ox_handed at = {.shared = mixture_of(shape)->shared_width > 0 ? act : 0,
                           .sum_bytes = rows_bytes(shape->rows, hidden, sizeof(float))};
    at.in = at.shared + act;
    at.order = at.in + rows_bytes(shape->rows, hidden, real);
    at.weights = at.order + ox_align_up(ox_pair_order_bytes(shape), PLACE_ALIGN_BYTES);
    at.sum = at.weights + rows_bytes(ox_pairs_of(shape), 1, sizeof(float));
    at.first_bytes = at.sum;
    at.bytes = at.sum + ox_shape_own_features(shape) * at.sum_bytes;
    return at;
}

static void *at_byte(const void *base, uint64_t offset) {
    return (unsigned char *)(uintptr_t)base + offset;
}

/* ---- what is handed over ---- */

static void copy_words(struct ox_run *run, void *to, const void *from, uint64_t bytes) {
    OX_RUN(run, add, .target = to, .b = from, .count = bytes / sizeof(float), .real = OX_REAL_F32);
}

/* Copies the rank's own rows (own rows, hidden), of which ranks that divide features have a part each. */
static void copy_rows(const struct ox_node_call *call, void *to, const void *from) {
    const struct ox_shape *const shape = call->job->shape;
    const uint32_t rows = ox_own_rows_of(shape).count;
    if (rows > 0) {
        OX_RUN(&call->job->run, add, .target = to, .b = from, .count = (uint64_t)rows * shape->model->config.hidden,
               .real = shape->compute.real);
    }
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

/* The experts of a layer, or of each group of features. */
static uint32_t experts_of(const struct ox_shape *shape) {
    return mixture_of(shape)->router.experts / ox_model_groups(&shape->model->config);
}

/* Whether the stage has the first of them, and the last ones. */
static bool begins(const struct ox_node *node) {
    return node->first == 0;
}

static bool ends(const struct ox_shape *shape, const struct ox_node *node) {
    return node->first + node->stride == experts_of(shape);
}

/* The factor of what blocks add; 0: none. */
static float scale_of(const struct ox_shape *shape) {
    const double scale = shape->model->config.residual_scale;
    return scale == 1.0 ? 0.0f : (float)scale;
}

struct ox_expert_room ox_expert_room_of(const struct ox_shape *shape, bool backward) {
    const uint32_t hidden = shape->model->config.hidden, width = mixture_of(shape)->width;
    const size_t real = ox_real_bytes(shape->compute.real);
    const uint64_t pairs = ox_pairs_of(shape), narrow = rows_bytes(pairs, width, real);
    const uint64_t rows = rows_bytes(pairs, hidden, real);
    const uint32_t ins = hidden > width ? hidden : width, outs = hidden > 2 * width ? hidden : 2 * width;
    struct ox_expert_room at = {.wide = rows};
    at.act = at.wide + rows_bytes(pairs, 2 * width, real);
    at.dact = at.act + narrow;
    at.out = at.dact + (backward ? narrow : 0);
    at.scaled = at.out + (backward ? rows : 0);
    at.products = at.scaled + (scale_of(shape) != 0.0f ? rows_bytes(shape->rows, hidden, real) : 0);
    at.bytes = at.products + ox_ops_grouped_scratch_bytes(&shape->compute, ins, outs);
    return at;
}

static uint64_t room_of_rounds(const struct ox_shape *shape, bool backward);

/* With groups of features, what lies in the scratch in front of all else: in the last stage's backward, of ranks that
 * divide them, all rows of the gradient of what is added; and where it ends the sum over groups, of the last stage's
 * forward and the first one's backward. */
struct joins {
    uint64_t whole, sums, bytes;
};

static struct joins joins_of(const struct ox_shape *shape, const struct ox_node *node, bool backward) {
    const uint32_t hidden = shape->model->config.hidden;
    struct joins at = {0};
    if (ox_model_groups(&shape->model->config) > 1) {
        const bool gathers = backward && ends(shape, node) && ox_shape_tensors(shape) > 1;
        const bool sums = backward ? begins(node) : ends(shape, node);
        at.sums = gathers ? ox_align_up(ox_whole_rows_bytes(shape, hidden), PLACE_ALIGN_BYTES) : 0;
        at.bytes = at.sums + (sums ? ox_align_up(ox_joined_sum_of(shape, hidden).bytes, PLACE_ALIGN_BYTES) : 0);
    }
    return at;
}

uint64_t ox_experts_scratch(const struct ox_shape *shape, const struct ox_node *node, bool backward) {
    return joins_of(shape, node, backward).bytes + (ox_shape_experts(shape) > 1
                                                        ? room_of_rounds(shape, backward)
                                                        : ox_expert_room_of(shape, backward).bytes);
}

/* The call, with the scratch of the experts themselves. */
static struct ox_node_call behind_joins(const struct ox_node_call *call, bool backward) {
    struct ox_node_call experts = *call;
    experts.scratch = at_byte(call->scratch, joins_of(call->job->shape, call->node, backward).bytes);
    return experts;
}

/* The stage's experts of a group of features, or all of them. */
static struct ox_expert_group group_of(const struct ox_node_call *call, uint32_t features, bool backward) {
    const struct ox_shape *const shape = call->job->shape;
    const uint32_t chosen = mixture_of(shape)->router.chosen, count = call->node->stride;
    const uint32_t first = features * experts_of(shape) + call->node->first;
    struct ox_expert_group g = {.call = call, .shape = shape, .at = ox_handed_of(shape), .features = features,
                                .room = ox_expert_room_of(shape, backward)};
    g.order = ox_pair_order_of(shape, at_byte(call->in, g.at.order));
    g.weights = at_byte(call->in, g.at.weights);
    g.experts = (struct ox_experts){.offsets = g.order.offsets, .first = first, .count = count,
                                    .rows_max = shape->rows * (count < chosen ? count : chosen)};
    return g;
}

static void *room(const struct ox_expert_group *g, uint64_t offset) {
    return at_byte(g->call->scratch, offset);
}

void ox_expert_gather(const struct ox_expert_group *g, uint64_t to, const void *from) {
    OX_RUN(&g->call->job->run, rows_gather, .out = room(g, to), .in = from, .pair_of = g->order.pair_of,
           .group = g->experts, .rows = g->shape->rows, .chosen = mixture_of(g->shape)->router.chosen,
           .width = g->shape->model->config.hidden, .real = g->shape->compute.real);
}

void ox_expert_multiply(const struct ox_expert_group *g, uint64_t to, uint64_t from, enum ox_role role) {
    const uint32_t hidden = g->shape->model->config.hidden, width = mixture_of(g->shape)->width;
    const bool up = role == OX_ROLE_EXPERT_GATE_UP;
    OX_RUN(&g->call->job->run, grouped_forward, .out = room(g, to), .in = room(g, from),
           .weight = ox_node_weight_of(g->call, role, g->features),
           .bias = up ? ox_node_weight_of(g->call, OX_ROLE_EXPERT_GATE_UP_BIAS, g->features) : NULL,
           .scratch = room(g, g->room.products), .experts = g->experts, .in_count = up ? hidden : width,
           .out_count = up ? 2 * width : hidden, .layout = mixture_of(g->shape)->layout,
           .real = g->shape->compute.real);
}

void ox_expert_activate(const struct ox_expert_group *g, uint64_t from) {
    ox_expert_multiply(g, g->room.wide, from, OX_ROLE_EXPERT_GATE_UP);
    OX_RUN(&g->call->job->run, expert_act_forward, .out = room(g, g->room.act), .in = room(g, g->room.wide),
           .weights = g->weights, .pair_of = g->order.pair_of, .group = g->experts, .gate = mixture_of(g->shape)->gate,
           .rows = ox_pairs_of(g->shape), .width = mixture_of(g->shape)->width, .real = g->shape->compute.real);
}

/* Adds what the experts have made, at `from`, to the sum that goes on, or to the output; `bias`: that behind them. */
static void combine_forward(const struct ox_expert_group *g, uint64_t from, const void *bias) {
    const struct ox_node_call *const call = g->call;
    const bool last = ends(g->shape, call->node), first = begins(call->node), shared = g->at.shared > 0;
    const float scale = scale_of(g->shape);
    void *const out = !last ? NULL : scale != 0.0f ? room(g, g->room.scaled) : call->out;
    if (!last && call->out != call->in) {
        copy_words(&call->job->run, call->out, call->in, first ? g->at.first_bytes : g->at.bytes);
    }
    OX_RUN(&call->job->run, rows_combine, .out = out,
           .residual = last && (shared || scale == 0.0f) ? at_byte(call->in, g->at.shared) : NULL,
           .sum = first && last ? NULL : at_byte(last ? call->in : call->out, g->at.sum), .in = room(g, from),
           .place = g->order.place, .bias = bias, .weights = g->weights, .experts = g->order.experts,
           .group = g->experts, .rows = g->shape->rows,
           .chosen = mixture_of(g->shape)->router.chosen, .width = g->shape->model->config.hidden,
           .real = g->shape->compute.real, .begins = first);
    if (last && (shared || scale != 0.0f)) {
        OX_RUN(&call->job->run, add, .target = call->out, .a = call->in, .b = out, .scale = scale,
               .count = (uint64_t)g->shape->rows * g->shape->model->config.hidden, .real = g->shape->compute.real);
    }
}

/* The sum over groups of features of what they add, in front of the scratch. */
static struct ox_group_sum sum_of(const struct ox_node_call *call, bool backward) {
    const struct ox_shape *const shape = call->job->shape;
    return (struct ox_group_sum){.run = &call->job->run,
                                 .room = at_byte(call->scratch, joins_of(shape, call->node, backward).sums),
                                 .count = (uint64_t)shape->rows * shape->model->config.hidden};
}

/* Adds what a group of features has made, at `from`, to its sum so far, which is a part of the value `handed`, or where
 * the sum over groups ends, there; `begins`: there is none so far. */
struct combining {
    uint64_t from;
    const void *bias;
    void *handed;
    bool begins, ends, backward;
};

static void combine_group(const struct ox_expert_group *g, const struct combining *c, struct ox_group_sum *sum) {
    const uint64_t nth = g->features - g->call->list->group_first;
    float *const so_far = at_byte(c->handed, g->at.sum + nth * g->at.sum_bytes);
    float *const target = c->ends ? ox_group_sum_next(sum) : so_far;
    if (c->ends && !c->begins) {
        copy_words(&g->call->job->run, target, so_far, sum->count * sizeof(float));
    }
    OX_RUN(&g->call->job->run, rows_combine, .sum = target, .in = room(g, c->from), .place = g->order.place,
           .bias = c->bias, .weights = g->weights, .experts = g->order.experts, .group = g->experts,
           .rows = g->shape->rows, .chosen = mixture_of(g->shape)->router.chosen,
           .width = g->shape->model->config.hidden, .real = g->shape->compute.real, .begins = c->begins,
           .from_last = c->backward);
    if (c->ends) {
        ox_group_sum_add(sum);
    }
}

/* Ends the sum over groups of features, in two parts, and adds it to what the rank's rows are without it. */
static void end_forward(const struct ox_node_call *call, const struct ox_node_call *experts,
                        struct ox_group_sum *sum, uint32_t part) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_handed at = ox_handed_of(shape);
    const float scale = scale_of(shape);
    const uint32_t hidden = shape->model->config.hidden, rows = ox_own_rows_of(shape).count;
    const bool apart = at.shared > 0 || scale != 0.0f;
    void *const out = scale != 0.0f ? at_byte(experts->scratch, ox_expert_room_of(shape, false).scaled) : call->out;
    const bool has = at.shared > 0 || scale == 0.0f;
    ox_joined_sum_end(call, sum, part, (struct ox_op_settle){
        .out = out, .residual = has ? at_byte(call->in, at.shared) : NULL, .cols = hidden});
    if (apart && rows > 0 && (part == 1 || ox_shape_tensors(shape) == 1)) {
        OX_RUN(&call->job->run, add, .target = call->out, .a = call->in, .b = out, .scale = scale,
               .count = (uint64_t)rows * hidden, .real = shape->compute.real);
    }
}

/* Adds what the experts of every group of features have made, at `from`, in the stage's part number `part` behind them;
 * `biases`: those behind them, of one group after the other `apart` bytes; NULL: where the units have them. */
static void combine_groups_forward(const struct ox_node_call *call, const struct ox_node_call *experts, uint64_t from,
                                   const unsigned char *biases, uint64_t apart, uint32_t part) {
    const struct ox_list *const list = call->list;
    const bool first = begins(call->node), last = ends(call->job->shape, call->node);
    const struct ox_handed at = ox_handed_of(call->job->shape);
    struct ox_group_sum sum = sum_of(call, false);
    if (!last && call->out != call->in) {
        copy_words(&call->job->run, call->out, call->in, first ? at.first_bytes : at.bytes);
    }
    for (uint32_t f = list->group_first; f < list->group_past && part == 0; f++) {
        const struct ox_expert_group g = group_of(experts, f, false);
        combine_group(&g, &(struct combining){
            .from = from, .handed = last ? call->in : call->out, .begins = first, .ends = last,
            .bias = biases != NULL ? biases + (f - list->group_first) * apart
                                   : ox_node_weight_of(call, OX_ROLE_EXPERT_DOWN_BIAS, f)}, &sum);
    }
    if (last) {
        end_forward(call, experts, &sum, part);
    }
}

static void forward_in_rounds(const struct ox_node_call *call, const struct ox_node_call *experts);

void ox_experts_forward(const struct ox_node_call *call) {
    const struct ox_list *const list = call->list;
    const struct ox_node_call experts = behind_joins(call, false);
    if (ox_shape_experts(call->job->shape) > 1) {
        forward_in_rounds(call, &experts);
        return;
    }
    for (uint32_t f = list->group_first; f < list->group_past && call->part == 0; f++) {
        const struct ox_expert_group g = group_of(&experts, f, false);
        ox_expert_gather(&g, g.room.rows, at_byte(call->in, g.at.in));
        ox_expert_activate(&g, g.room.rows);
        ox_expert_multiply(&g, g.room.rows, g.room.act, OX_ROLE_EXPERT_DOWN);
        if (list->groups == 1) {
            combine_forward(&g, g.room.rows, ox_node_weight(call, OX_ROLE_EXPERT_DOWN_BIAS));
        }
    }
    if (list->groups > 1) {
        combine_groups_forward(call, &experts, ox_expert_room_of(call->job->shape, false).rows, NULL, 0, call->part);
    }
}

static void multiply_backward(const struct ox_expert_group *g, bool wants_din, uint64_t din, uint64_t dout,
                              uint64_t in, enum ox_role role) {
    const uint32_t hidden = g->shape->model->config.hidden, width = mixture_of(g->shape)->width;
    const bool up = role == OX_ROLE_EXPERT_GATE_UP;
    OX_RUN(&g->call->job->run, grouped_backward, .din = wants_din ? room(g, din) : NULL,
           .dweight = ox_node_grad_of(g->call, role, g->features),
           .dbias = up ? ox_node_grad_of(g->call, OX_ROLE_EXPERT_GATE_UP_BIAS, g->features) : NULL,
           .dout = room(g, dout), .in = room(g, in), .weight = ox_node_weight_of(g->call, role, g->features),
           .scratch = room(g, g->room.products), .experts = g->experts, .in_count = up ? hidden : width,
           .out_count = up ? 2 * width : hidden, .layout = mixture_of(g->shape)->layout,
           .real = g->shape->compute.real, .begins = g->call->job->begins);
}

/* The gradient of what the block adds, of which `dout` is that of the whole. */
static const void *scale_back(const struct ox_expert_group *g) {
    const float scale = scale_of(g->shape);
    if (scale == 0.0f) {
        return g->call->dout;
    }
    OX_RUN(&g->call->job->run, add, .target = room(g, g->room.scaled), .b = g->call->dout, .scale = scale,
           .count = (uint64_t)g->shape->rows * g->shape->model->config.hidden, .real = g->shape->compute.real);
    return room(g, g->room.scaled);
}

bool ox_expert_back_to_bias(const struct ox_expert_group *g, const void *dsum, float *dweights) {
    const struct ox_node_call *const call = g->call;
    const struct ox_shape *const shape = g->shape;
    const void *const bias = ox_node_weight_of(call, OX_ROLE_EXPERT_DOWN_BIAS, g->features);
    if (bias != NULL) {
        OX_RUN(&call->job->run, combine_bias_backward, .dweights = dweights,
               .dbias = ox_node_grad_of(call, OX_ROLE_EXPERT_DOWN_BIAS, g->features), .dout = dsum, .bias = bias,
               .weights = g->weights, .experts = g->order.experts, .pair_of = g->order.pair_of, .group = g->experts,
               .rows = shape->rows, .chosen = mixture_of(shape)->router.chosen, .width = shape->model->config.hidden,
               .real = shape->compute.real, .begins = call->job->begins);
    }
    return bias != NULL;
}

void ox_expert_back_to_rows(const struct ox_expert_group *g, uint64_t rows, uint64_t dout, float *dweights, bool adds,
                            bool din) {
    const struct ox_node_call *const call = g->call;
    const struct ox_shape *const shape = g->shape;
    multiply_backward(g, true, g->room.dact, dout, g->room.act, OX_ROLE_EXPERT_DOWN);
    OX_RUN(&call->job->run, expert_act_backward, .din = room(g, g->room.wide), .dweights = dweights,
           .dout = room(g, g->room.dact), .in = room(g, g->room.wide), .weights = g->weights,
           .pair_of = g->order.pair_of, .group = g->experts, .gate = mixture_of(shape)->gate,
           .rows = ox_pairs_of(shape), .width = mixture_of(shape)->width, .real = shape->compute.real,
           .adds = adds);
    multiply_backward(g, din, dout, g->room.wide, rows, OX_ROLE_EXPERT_GATE_UP);
}

/* Adds the gradients of the experts' rows, at `from`, to that of what they read. */
static void combine_backward(const struct ox_expert_group *g, uint64_t from, const void *dsum) {
    const struct ox_node_call *const call = g->call;
    const bool last = ends(g->shape, call->node), first = begins(call->node);
    OX_RUN(&call->job->run, rows_combine, .out = first ? at_byte(call->din, g->at.in) : NULL,
           .sum = first && last ? NULL : at_byte(call->din, g->at.sum), .in = room(g, from),
           .place = g->order.place, .experts = g->order.experts, .group = g->experts, .rows = g->shape->rows,
           .chosen = mixture_of(g->shape)->router.chosen, .width = g->shape->model->config.hidden,
           .real = g->shape->compute.real, .begins = last, .from_last = true);
    if (last && g->at.shared > 0) {
        copy_rows(call, at_byte(call->din, g->at.shared), dsum);
    }
}

/* With groups of features: puts the gradient of what experts add, of all rows, where all stages find it. */
static void begin_backward(const struct ox_node_call *call, const struct ox_node_call *experts) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_handed at = ox_handed_of(shape);
    const struct ox_expert_group g = group_of(experts, call->list->group_first, true);
    void *const whole = at_byte(call->scratch, joins_of(shape, call->node, true).whole);
    const bool apart = ox_shape_tensors(shape) > 1;
    if (ends(shape, call->node) && call->part == 0) {
        const void *const dsum = scale_back(&g);
        if (call->din != NULL && at.shared > 0) {
            copy_rows(call, at_byte(call->din, at.shared), dsum);
        }
        if (apart) {
            ox_whole_rows_give(call, dsum, shape->model->config.hidden, whole);
        } else {
            copy_rows(call, at_byte(call->dout, at.in), dsum);
        }
    }
    if (ends(shape, call->node) && call->part == 1 && apart) {
        OX_RUN(&call->job->run, add, .target = at_byte(call->dout, at.in), .b = whole,
               .count = (uint64_t)shape->rows * shape->model->config.hidden, .real = shape->compute.real);
    }
}

/* How many parts of backward come before the experts' own. */
static uint32_t parts_before(const struct ox_shape *shape, const struct ox_node *node) {
    return ox_shape_tensors(shape) > 1 && ends(shape, node) ? 1 : 0;
}

/* Adds the gradients of the experts' rows of every group of features; where that ends, the gradient of the rank's own
 * rows takes the place of that of what experts add. */
static void combine_groups_backward(const struct ox_node_call *call, const struct ox_node_call *experts, uint64_t from,
                                    uint32_t part) {
    const struct ox_list *const list = call->list;
    const bool first = begins(call->node), last = ends(call->job->shape, call->node);
    struct ox_group_sum sum = sum_of(call, true);
    for (uint32_t f = list->group_first; f < list->group_past && part == 0; f++) {
        const struct ox_expert_group g = group_of(experts, f, true);
        combine_group(&g, &(struct combining){.from = from, .handed = call->din, .begins = last, .ends = first,
                                              .backward = true}, &sum);
    }
    if (first) {
        ox_joined_sum_end(call, &sum, part, (struct ox_op_settle){
            .out = at_byte(call->din, ox_handed_of(call->job->shape).in),
            .cols = call->job->shape->model->config.hidden});
    }
}

static void backward_in_rounds(const struct ox_node_call *call, const struct ox_node_call *experts, uint32_t part);

static void backward_at_once(const struct ox_node_call *call, const struct ox_node_call *experts, uint32_t part) {
    const struct ox_list *const list = call->list;
    const struct ox_expert_room at = ox_expert_room_of(call->job->shape, true);
    for (uint32_t f = list->group_first; f < list->group_past && part == 0; f++) {
        const struct ox_expert_group g = group_of(experts, f, true);
        float *const dweights = at_byte(call->dout, g.at.weights);
        const void *const dsum = list->groups > 1 ? at_byte(call->dout, g.at.in) : scale_back(&g);
        ox_expert_gather(&g, at.rows, at_byte(call->in, g.at.in));
        ox_expert_activate(&g, at.rows);
        ox_expert_gather(&g, at.out, dsum);
        const bool biased = ox_expert_back_to_bias(&g, dsum, dweights);
        ox_expert_back_to_rows(&g, at.rows, at.out, dweights, biased, call->din != NULL);
        if (list->groups == 1 && call->din != NULL) { /* something before is trained */
            combine_backward(&g, at.out, dsum);
        }
    }
    if (list->groups > 1 && call->din != NULL) {
        combine_groups_backward(call, experts, at.out, part);
    }
}

void ox_experts_backward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_node_call experts = behind_joins(call, true);
    const uint32_t before = parts_before(shape, call->node);
    if (call->list->groups > 1) {
        begin_backward(call, &experts);
    }
    if (call->part >= before) {
        (ox_shape_experts(shape) > 1 ? backward_in_rounds : backward_at_once)(call, &experts, call->part - before);
    }
}

/* ---- in rounds: where ranks divide the experts ---- */

/* Each rank sorts its rows by expert and gives those of another rank's experts to that, takes the rows of one rank
 * after the other itself, and gives back what its experts made of them. Rows keep their sorted places wherever they
 * are, so that an operation works on those of another rank as on its own, and there is room for one rank's rows,
 * whatever routers choose. Gradients of weights are summed for each rank by itself, by its number, so that it does not
 * matter whose rows come first.
 *
 * Places within the scratch: `own`: the rank's rows, and in backward the gradients of what experts made of them; they
 * are replaced by what comes back. `other`: those of the rank that is served. `pairs`: gradients of what pairs weigh,
 * by rank, for those ranks; `got`: what these have for this rank; `sorted`: the same, sorted. `routes`: those of all.
 * Where experts add biases behind their products, routes have in forward those of the rank's experts, which `biases`
 * has for all of the stage, and in backward what their gradients are made with, of sorted rows (enum of_bias). With
 * groups of features each rank has some experts of every group, and the biases of one group lie behind another's.
 */
enum of_bias { BIAS_ROW, BIAS_EXPERT, BIAS_WEIGHT, BIAS_PLACE, BIAS_PLANES };
struct rounds {
    struct ox_expert_room room;
    uint64_t own[OX_PLAN_ROUND_PLANES], other[OX_PLAN_ROUND_PLANES], plane, pairs, got, sorted, pair_bytes;
    uint64_t routes, routes_bytes, offsets, weights, bias, biases, bias_bytes, bytes;
};

/* Bytes of the biases behind a rank's experts of a stage, in a group of features, which are the same in all layers; 0:
 * they have none. */
static uint64_t biases_of(const struct ox_shape *shape) {
    const struct ox_model *const model = shape->model;
    uint32_t i = 0;
    while (i < model->unit_count && model->units[i].kind != OX_UNIT_EXPERTS) {
        i++;
    }
    return i == model->unit_count || !ox_model_stage_has(model, &model->units[i], OX_ROLE_EXPERT_DOWN_BIAS)
               ? 0 : rows_bytes(mixture_of(shape)->per_unit, model->config.hidden, ox_real_bytes(shape->compute.real));
}

static struct rounds rounds_of(const struct ox_shape *shape, bool backward) {
    const uint32_t ranks = ox_shape_experts(shape), experts = mixture_of(shape)->router.experts;
    const uint64_t pairs = ox_pairs_of(shape), own = ox_shape_own_features(shape);
    struct rounds r = {.room = ox_expert_room_of(shape, backward)};
    uint64_t end = ox_align_up(r.room.products, PLACE_ALIGN_BYTES);
    r.plane = rows_bytes(pairs, shape->model->config.hidden, ox_real_bytes(shape->compute.real));
    for (uint32_t i = 0; i < (backward ? OX_PLAN_ROUND_PLANES : 1u); i++, end += r.plane) {
        r.own[i] = end;
    }
    r.other[0] = r.room.rows;
    r.other[1] = r.room.out;
    r.pair_bytes = rows_bytes(pairs, 1, sizeof(float));
    r.offsets = r.pair_bytes;
    r.weights = r.offsets + ox_align_up((experts + 1) * sizeof(int32_t), PLACE_ALIGN_BYTES);
    r.bias = r.weights + r.pair_bytes;
    r.bias_bytes = biases_of(shape);
    r.routes_bytes = r.bias + (r.bias_bytes > 0 && backward ? BIAS_PLANES * r.pair_bytes : own * r.bias_bytes);
    r.biases = end;
    r.routes = end + (backward ? 0 : own * ranks * r.bias_bytes);
    r.pairs = r.routes + ranks * r.routes_bytes;
    r.got = r.pairs + (backward ? ranks * r.pair_bytes : 0);
    r.sorted = r.got + (backward ? ranks * r.pair_bytes : 0);
    /* Last, because it follows from the threads of a rank, and what crosses lies where a plan of all ranks has it. */
    r.bytes = r.room.bytes - r.room.products;
    r.room.products = r.sorted + (backward ? r.pair_bytes : 0);
    r.bytes += r.room.products;
    return r;
}

static uint64_t room_of_rounds(const struct ox_shape *shape, bool backward) {
    return rounds_of(shape, backward).bytes;
}

struct ox_plan_rounds ox_experts_rounds(const struct ox_shape *shape, const struct ox_node *node, bool backward,
                                        bool din) {
    const struct rounds r = rounds_of(shape, backward);
    const uint32_t each = node->stride / ox_shape_experts(shape), chosen = mixture_of(shape)->router.chosen;
    const uint32_t ranges = ox_shape_own_features(shape);
    const uint64_t front = joins_of(shape, node, backward).bytes;
    struct ox_plan_rounds out = {
        .routes = front + r.routes, .routes_bytes = r.routes_bytes, .offsets = r.offsets, .first = node->first,
        .each = each, .ranges = ranges, .apart = experts_of(shape),
        .plane_bytes = r.plane, .planes = backward ? 2 : 1, .returned = !backward ? 1 : din ? 2 : 0,
        .row_bytes = (uint32_t)(shape->model->config.hidden * ox_real_bytes(shape->compute.real)),
        .row_max = shape->rows * (uint32_t)ox_min_u64(chosen, ranges * each)};
    for (uint32_t i = 0; i < out.planes; i++) {
        out.own[i] = front + r.own[i];
        out.other[i] = front + r.other[i];
    }
    return out;
}

/* Parts: rows are sorted | the rank's own | those of another rank, in each round | they come together. Where nothing
 * comes back, the last part has nothing to do. */
static uint32_t parts_of_rounds(const struct ox_list *list, const struct ox_node *node, bool backward, bool din,
                                struct ox_node_cut_at *out) {
    const uint32_t ranks = ox_shape_experts(list->shape);
    const struct rounds r = rounds_of(list->shape, backward);
    const struct ox_plan_rounds rounds = ox_experts_rounds(list->shape, node, backward, din);
    const uint64_t front = joins_of(list->shape, node, backward).bytes;
    uint32_t count = 0;
    out[count++] = (struct ox_node_cut_at){.kind = OX_CUT_GATHER, .source = front + r.routes,
                                           .target = front + r.routes, .bytes = ranks * r.routes_bytes};
    for (uint32_t round = 1; round <= ranks - (rounds.returned == 0); round++) {
        out[count++] = (struct ox_node_cut_at){.kind = OX_CUT_ROUND, .round = (uint8_t)round,
                                               .bytes = ox_plan_round_bytes(&rounds, round, ranks)};
    }
    if (backward && din) {
        out[count++] = (struct ox_node_cut_at){.kind = OX_CUT_EXCHANGE, .source = front + r.pairs,
                                               .target = front + r.got, .bytes = ranks * r.pair_bytes};
    }
    return count;
}

/* In front of these, where ranks divide groups of features, all rows of the gradient come together, and behind them the
 * sum over groups. */
uint32_t ox_experts_parts(const struct ox_list *list, const struct ox_node *node, bool backward, bool din,
                          struct ox_node_cut_at out[OX_NODE_CUTS_MAX]) {
    const struct ox_shape *const shape = list->shape;
    const struct joins at = joins_of(shape, node, backward);
    const bool apart = ox_shape_tensors(shape) > 1;
    uint32_t count = 0;
    if (backward && parts_before(shape, node) > 0) {
        count = ox_whole_rows_cuts(shape, node->in_count, at.whole, out);
        out[0].features = true;
    }
    count += ox_shape_experts(shape) > 1 ? parts_of_rounds(list, node, backward, din, &out[count]) : 0;
    if (apart && (backward ? begins(node) && din : ends(shape, node))) {
        ox_joined_sum_cuts(shape, node->in_count, at.sums, &out[count]);
        out[count++].features = true;
    }
    return count;
}

/* The rank's experts, for the rows of a rank, with the sums of their gradients that are that rank's. */
struct served {
    struct ox_expert_group group;
    struct ox_node_call call;
    struct ox_stage_weights weights;
};

static void serve(const struct ox_node_call *call, const struct rounds *r, bool backward, uint32_t rank,
                  uint32_t features, struct served *out) {
    const struct ox_unit *const unit = call->list->units[features];
    const uint32_t chosen = mixture_of(call->job->shape)->router.chosen, count = unit->expert_count;
    unsigned char *const routes = at_byte(call->scratch, r->routes + rank * r->routes_bytes);
    out->weights = *call->weights;
    for (uint32_t i = 0; i < call->list->unit_count; i++) {
        float *const grads = out->weights.grads[i];
        out->weights.grads[i] = grads == NULL ? NULL : grads + rank * call->list->units[i]->elem_count;
    }
    out->call = *call;
    out->call.weights = &out->weights;
    out->group = group_of(&out->call, features, backward);
    out->group.room = r->room;
    out->group.order = (struct ox_pair_order){.offsets = at_byte(routes, r->offsets), .pair_of = at_byte(routes, 0)};
    out->group.weights = at_byte(routes, r->weights);
    out->group.experts = (struct ox_experts){.offsets = out->group.order.offsets, .first = unit->expert_first,
                                             .count = count,
                                             .rows_max = call->job->shape->rows * (count < chosen ? count : chosen)};
}

/* Puts numbers of pairs in another order: out[i] = in[order[i]]. */
static void order_pairs(const struct ox_expert_group *g, void *out, const void *in, const int32_t *order) {
    OX_RUN(&g->call->job->run, rows_gather, .out = out, .in = in, .pair_of = order, .rows = ox_pairs_of(g->shape),
           .chosen = 1, .width = 1, .real = OX_REAL_F32);
}

/* What the rank tells the others for the biases behind their experts, at `to`. */
static void tell_biased(const struct ox_expert_group *g, const struct rounds *r, unsigned char *to) {
    const void *const of_pairs[BIAS_PLACE] = {g->order.place, g->order.experts, g->weights};
    for (int i = 0; i < BIAS_PLACE; i++) { /* the place of the pair at a sorted row is that row */
        order_pairs(g, to + (uint64_t)i * r->pair_bytes, of_pairs[i], g->order.pair_of);
    }
    copy_words(&g->call->job->run, to + BIAS_PLACE * r->pair_bytes, g->order.place,
               ox_pairs_of(g->shape) * sizeof(int32_t));
}

/* What the rank tells the others of its rows. */
static void tell_routes(const struct ox_expert_group *g, const struct rounds *r, bool backward) {
    struct ox_run *const run = &g->call->job->run;
    unsigned char *const routes = room(g, r->routes + g->shape->experts.at * r->routes_bytes);
    const uint64_t pairs = ox_pairs_of(g->shape), experts = mixture_of(g->shape)->router.experts;
    copy_words(run, routes, g->order.pair_of, pairs * sizeof(int32_t));
    copy_words(run, routes + r->offsets, g->order.offsets, (experts + 1) * sizeof(int32_t));
    copy_words(run, routes + r->weights, g->weights, pairs * sizeof(float));
    if (r->bias_bytes > 0 && backward) {
        tell_biased(g, r, routes + r->bias);
        return;
    }
    const struct ox_list *const list = g->call->list;
    for (uint32_t f = list->group_first; f < list->group_past && r->bias_bytes > 0; f++) {
        /* the rank that has the rows adds it, in the order of one rank */
        copy_words(run, routes + r->bias + (f - list->group_first) * r->bias_bytes,
                   ox_node_weight_of(g->call, OX_ROLE_EXPERT_DOWN_BIAS, f), r->bias_bytes);
    }
}

/* The biases behind all experts of the stage, in a row, those of one group of features behind another's; NULL: there
 * are none. */
static const unsigned char *take_biases(const struct ox_expert_group *g, const struct rounds *r) {
    unsigned char *const biases = room(g, r->biases);
    const uint32_t ranks = ox_shape_experts(g->shape), own = ox_shape_own_features(g->shape);
    for (uint32_t i = 0; i < own * ranks && r->bias_bytes > 0; i++) {
        copy_words(&g->call->job->run, biases + i * r->bias_bytes,
                   room(g, r->routes + i % ranks * r->routes_bytes + r->bias + i / ranks * r->bias_bytes),
                   r->bias_bytes);
    }
    return r->bias_bytes > 0 ? biases : NULL;
}

/* As back_to_bias, for rows of another rank, which are sorted, and so is what is made of them first. */
static void back_to_bias_of(const struct served *served, const struct rounds *r, uint32_t rank, uint64_t dout) {
    const struct ox_expert_group *const g = &served->group;
    const uint64_t told = r->routes + rank * r->routes_bytes + r->bias;
    if (r->bias_bytes > 0) {
        OX_RUN(&g->call->job->run, combine_bias_backward, .dweights = room(g, r->sorted),
               .dbias = ox_node_grad_of(&served->call, OX_ROLE_EXPERT_DOWN_BIAS, g->features), .dout = room(g, dout),
               .bias = ox_node_weight_of(&served->call, OX_ROLE_EXPERT_DOWN_BIAS, g->features),
               .weights = room(g, told + BIAS_WEIGHT * r->pair_bytes),
               .experts = room(g, told + BIAS_EXPERT * r->pair_bytes),
               .pair_of = room(g, told + BIAS_ROW * r->pair_bytes), .group = g->experts,
               .rows = ox_pairs_of(g->shape), .chosen = 1, .width = g->shape->model->config.hidden,
               .real = g->shape->compute.real, .begins = g->call->job->begins);
        order_pairs(g, room(g, r->pairs + rank * r->pair_bytes), room(g, r->sorted),
                    room(g, told + BIAS_PLACE * r->pair_bytes));
    }
}

/* Sorts rows into a plane, of the stage's experts of every group of features that the rank has. */
static void gather_own(const struct ox_node_call *call, uint64_t to, const void *from, bool backward) {
    for (uint32_t f = call->list->group_first; f < call->list->group_past; f++) {
        const struct ox_expert_group g = group_of(call, f, backward);
        ox_expert_gather(&g, to, from);
    }
}

static void forward_in_rounds(const struct ox_node_call *call, const struct ox_node_call *experts) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_list *const list = call->list;
    const uint32_t ranks = ox_shape_experts(shape);
    const struct rounds r = rounds_of(shape, false);
    const struct ox_expert_group g = group_of(experts, list->group_first, false);
    if (call->part == 0) {
        gather_own(experts, r.own[0], at_byte(call->in, g.at.in), false);
        tell_routes(&g, &r, false);
    } else if (call->part > ranks && list->groups == 1) {
        combine_forward(&g, r.own[0], take_biases(&g, &r));
    } else if (call->part > ranks) {
        const unsigned char *const biases = call->part == ranks + 1 ? take_biases(&g, &r) : NULL;
        combine_groups_forward(call, experts, r.own[0], biases, ranks * r.bias_bytes, call->part - ranks - 1);
    }
    for (uint32_t f = list->group_first; f < list->group_past && call->part > 0 && call->part <= ranks; f++) {
        const uint32_t round = call->part - 1;
        const uint64_t rows = round == 0 ? r.own[0] : r.other[0];
        struct served served;
        serve(experts, &r, false, shape->experts.at ^ round, f, &served);
        ox_expert_activate(&served.group, rows);
        ox_expert_multiply(&served.group, rows, g.room.act, OX_ROLE_EXPERT_DOWN);
    }
}

/* Puts the gradients of what pairs weigh, which each rank has made for its experts' pairs, where they belong. Those of
 * other stages' pairs are there, and with groups of features those of the other groups that the rank has. */
static void take_pairs(const struct ox_expert_group *g, const struct rounds *r) {
    const struct ox_shape *const shape = g->shape;
    float *const dweights = at_byte(g->call->dout, g->at.weights);
    struct ox_op_rows_gather op = {.out = room(g, r->sorted), .in = dweights, .pair_of = g->order.pair_of,
                                   .rows = ox_pairs_of(shape), .chosen = 1, .width = 1, .real = OX_REAL_F32};
    struct ox_run *const run = &g->call->job->run;
    OX_THEN(run->status, OX_QUEUE(run->ops, run->lane, rows_gather, &op));
    for (uint32_t rank = 0; rank < ox_shape_experts(shape); rank++) { /* the operation has the offsets */
        op.in = room(g, r->got + rank * r->pair_bytes);
        op.group = g->experts;
        op.group.count = g->experts.count / ox_shape_experts(shape);
        op.group.first = g->experts.first + rank * op.group.count;
        OX_THEN(run->status, OX_QUEUE(run->ops, run->lane, rows_gather, &op));
    }
    op.out = dweights;
    op.in = room(g, r->sorted);
    op.pair_of = g->order.place;
    op.group = (struct ox_experts){0};
    OX_THEN(run->status, OX_QUEUE(run->ops, run->lane, rows_gather, &op));
}

/* The rank's experts, for the rows of a rank: all groups of features before one another, because biases of all are
 * put in the order of pairs at once. */
static void back_to_served(const struct ox_node_call *experts, const struct rounds *r, uint32_t rank,
                           const uint64_t at[OX_PLAN_ROUND_PLANES]) {
    const struct ox_list *const list = experts->list;
    struct served served;
    for (uint32_t f = list->group_first; f < list->group_past; f++) {
        serve(experts, r, true, rank, f, &served);
        ox_expert_activate(&served.group, at[0]);
        back_to_bias_of(&served, r, rank, at[1]);
    }
    for (uint32_t f = list->group_first; f < list->group_past; f++) {
        serve(experts, r, true, rank, f, &served);
        ox_expert_back_to_rows(&served.group, at[0], at[1], room(&served.group, r->pairs + rank * r->pair_bytes),
                               r->bias_bytes > 0, experts->din != NULL);
    }
}

static void backward_in_rounds(const struct ox_node_call *call, const struct ox_node_call *experts, uint32_t part) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_list *const list = call->list;
    const uint32_t ranks = ox_shape_experts(shape);
    const struct rounds r = rounds_of(shape, true);
    const struct ox_expert_group g = group_of(experts, list->group_first, true);
    if (part == 0) {
        const void *const dsum = list->groups > 1 ? at_byte(call->dout, g.at.in) : scale_back(&g);
        gather_own(experts, r.own[0], at_byte(call->in, g.at.in), true);
        gather_own(experts, r.own[1], dsum, true);
        tell_routes(&g, &r, true);
        OX_RUN(&call->job->run, zero, .target = room(&g, r.pairs), .bytes = ranks * r.pair_bytes);
    } else if (part <= ranks) {
        back_to_served(experts, &r, shape->experts.at ^ (part - 1), part == 1 ? r.own : r.other);
    } else if (part == ranks + 2) {
        for (uint32_t f = list->group_first; f < list->group_past; f++) {
            const struct ox_expert_group of = group_of(experts, f, true);
            take_pairs(&of, &r);
        }
    }
    if (part == ranks + 2 && list->groups == 1) {
        combine_backward(&g, r.own[1], scale_of(shape) != 0.0f ? room(&g, g.room.scaled) : call->dout);
    } else if (part >= ranks + 2 && list->groups > 1) {
        combine_groups_backward(call, experts, r.own[1], part - ranks - 2);
    }
}
