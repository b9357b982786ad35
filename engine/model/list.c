/* Builds lists of nodes, and the list of a block. */
#include "engine/model/list.h"

#include "base/assert.h"
#include "engine/model/node_groups.h"

static uint32_t add_value(struct ox_list *list, uint64_t bytes) {
    const uint32_t id = list->value_count++;
    OX_ASSERT(id < OX_LIST_VALUES_MAX);
    list->values[id] = (struct ox_value){.bytes = bytes, .home = id};
    return id;
}

/* A value with `width` elements of the shape's type, or float32 values, for each row. */
static uint32_t add_rows(struct ox_list *list, uint32_t width) {
    return add_value(list, (uint64_t)list->shape->rows * width * ox_real_bytes(list->shape->compute.real));
}

/* A value with `width` elements of the shape's type for each of the rank's own rows. */
static uint32_t add_own_rows(struct ox_list *list, uint32_t width) {
    return add_value(list, (uint64_t)ox_own_rows_of(list->shape).most * width *
                               ox_real_bytes(list->shape->compute.real));
}

/* Of a width that is cut into groups of features, that of the rank's groups. */
static uint32_t own_width(const struct ox_list *list, uint32_t width) {
    return width / list->groups * (list->group_past - list->group_first);
}

static uint32_t add_floats(struct ox_list *list, uint32_t width) {
    return add_value(list, (uint64_t)list->shape->rows * width * sizeof(float));
}

static uint32_t add_node(struct ox_list *list, struct ox_node node) {
    OX_ASSERT(list->node_count < OX_LIST_NODES_MAX);
    list->nodes[list->node_count++] = node;
    return node.out;
}

/* A value that is written over another. */
static uint32_t add_in_place(struct ox_list *list, uint32_t over) {
    const uint32_t id = add_value(list, list->values[over].bytes);
    list->values[id].home = list->values[over].home;
    return id;
}

uint32_t ox_list_owner_of(const struct ox_list *list, enum ox_role role, uint32_t group) {
    for (uint32_t i = 0; i < list->unit_count; i++) {
        const uint32_t of = list->units[i]->group;
        if (list->units[i]->role_offset[role] != UINT64_MAX && (of == OX_NO_GROUP || of == group)) {
            return i;
        }
    }
    return UINT32_MAX;
}

uint32_t ox_list_owner(const struct ox_list *list, enum ox_role role) {
    return ox_list_owner_of(list, role, 0);
}

bool ox_list_trains(const struct ox_list *list, enum ox_role role) {
    bool trains = false; /* of groups of features some may be frozen */
    for (uint32_t i = 0; i < list->unit_count; i++) {
        trains |= list->units[i]->role_offset[role] != UINT64_MAX && list->units[i]->role_trained[role];
    }
    return trains;
}

static bool has(const struct ox_list *list, enum ox_role role) {
    return ox_list_owner(list, role) != UINT32_MAX;
}

static const struct ox_tensor *tensor_of(const struct ox_list *list, enum ox_role role) {
    OX_ASSERT(has(list, role));
    const struct ox_unit *const unit = list->units[ox_list_owner(list, role)];
    const struct ox_tensor *tensor = NULL;
    do {
        tensor = ox_unit_next_tensor(list->shape->model, unit, tensor);
    } while (tensor->role != role);
    return tensor;
}

static uint32_t heads_width(const struct ox_list *list, uint32_t heads) {
    return heads * list->shape->model->config.head_dim;
}

uint32_t ox_list_begin(struct ox_list *list, const struct ox_shape *shape, const struct ox_unit *unit) {
    *list = (struct ox_list){.shape = shape, .unit = unit, .value_count = 1};
    list->unit_count = ox_model_stage_units(shape->model, unit, list->units);
    list->groups = ox_model_groups(&shape->model->config);
    list->group_first = shape->features.first;
    list->group_past = list->group_first + ox_shape_own_features(shape);
    list->in = add_own_rows(list, shape->model->config.hidden);
    return list->in;
}

uint32_t ox_list_norm(struct ox_list *list, uint32_t in, enum ox_role gain) {
    const struct ox_model_config *const config = &list->shape->model->config;
    struct ox_node node = {.kind = OX_NODE_NORM, .role = gain, .in = in,
                           .in_count = config->hidden, .out_count = config->hidden};
    node.out = add_own_rows(list, config->hidden);
    node.saved[0] = add_floats(list, 1);
    node.saved[1] = config->norm == OX_NORM_LAYER ? add_floats(list, 1) : OX_NO_VALUE;
    for (uint32_t i = 0; i < list->node_count; i++) {
        node.of_sum |= list->nodes[i].out == in && list->nodes[i].residual != OX_NO_VALUE;
    }
    return add_node(list, node);
}

/* What adapters read of `in`, through the dropout where there is any. */
static uint32_t add_drop(struct ox_list *list, uint32_t in, uint32_t in_count, enum ox_role a, enum ox_node_cut cut) {
    const double dropout = list->shape->model->config.lora.dropout;
    struct ox_node node = {.kind = OX_NODE_DROP, .cut = cut, .role = a, .in = in, .in_count = in_count,
                           .out_count = in_count, .scale = (float)dropout};
    if (dropout == 0.0) {
        return in;
    }
    node.out = cut == OX_CUT_ROWS ? add_rows(list, own_width(list, in_count)) : add_own_rows(list, in_count);
    return add_node(list, node);
}

/* The products with all A of a role, for rows of `node`'s input. */
static uint32_t add_down(struct ox_list *list, struct ox_node node, enum ox_role a) {
    const struct ox_unit *const unit = list->units[ox_list_owner(list, a)];
    node.kind = OX_NODE_DOWN;
    node.role = a;
    node.out_count = 0;
    for (const struct ox_tensor *tensor = NULL;
         (tensor = ox_unit_next_tensor(list->shape->model, unit, tensor)) != NULL;) {
        node.out_count += tensor->role == a ? (uint32_t)tensor->shape[0] : 0;
    }
    node.out = add_own_rows(list, node.out_count);
    return add_node(list, node);
}

/* The elements of a row that a node has made. */
static uint32_t width_of(const struct ox_list *list, uint32_t value) {
    uint32_t i = list->node_count - 1;
    while (list->nodes[i].out != value) {
        i--;
    }
    return list->nodes[i].out_count;
}

/* What B adds to `residual`, whose rows have `out_count` elements, of the products with A. */
static struct ox_node up_of(struct ox_list *list, enum ox_role b, uint32_t down, uint32_t residual,
                            uint32_t out_count) {
    return (struct ox_node){.kind = OX_NODE_UP, .role = b, .residual = residual, .in = down,
                            .in_count = width_of(list, down), .out_count = out_count,
                            .scale = ox_lora_scale(&list->shape->model->config.lora, b),
                            .out = add_in_place(list, residual)};
}

/* The adapters of a matrix: all A at once, and each B to its own columns of what the matrix made. */
static uint32_t add_adapters(struct ox_list *list, const struct ox_node *linear, enum ox_role a) {
    const uint32_t in = linear->stride == 0 ? add_drop(list, linear->in, linear->in_count, a, linear->cut)
                                            : linear->in;
    const struct ox_node down = {.in = in, .in_count = linear->in_count, .first = linear->first,
                                 .stride = linear->stride, .cut = linear->cut};
    struct ox_node up = up_of(list, (enum ox_role)(a + 1), add_down(list, down, a), linear->out, linear->out_count);
    up.cut = linear->cut;
    if (up.cut == OX_CUT_COLUMNS && ox_shape_tensors(list->shape) > 1) {
        up.saved[0] = add_value(list, ox_whole_rows_bytes(list->shape, up.in_count));
    }
    const uint32_t sum = add_node(list, up);
    const enum ox_role magnitude = ox_magnitude_role(a);
    if (!has(list, magnitude)) {
        return sum;
    }
    struct ox_node dora = {.kind = OX_NODE_DORA, .role = magnitude, .in = sum, .in_count = linear->in_count,
                           .out_count = linear->out_count, .out = add_rows(list, linear->out_count),
                           .scale = ox_lora_scale(&list->shape->model->config.lora, a)};
    dora.saved[0] = add_value(list, linear->out_count * sizeof(float));
    return add_node(list, dora);
}

/* With its adapters. */
static uint32_t add_linear(struct ox_list *list, struct ox_node linear) {
    const enum ox_role a = ox_adapter_role(linear.role);
    linear.kind = OX_NODE_LINEAR;
    linear.cut = list->groups == 1                                                     ? OX_CUT_NONE
                 : linear.role == OX_ROLE_QKV || linear.role == OX_ROLE_GATE_UP ||
                         linear.role == OX_ROLE_SHARED_GATE_UP ? OX_CUT_COLUMNS : OX_CUT_ROWS;
    linear.out = linear.cut == OX_CUT_COLUMNS ? add_rows(list, own_width(list, linear.out_count))
                                              : add_own_rows(list, linear.out_count);
    if (linear.cut == OX_CUT_COLUMNS && ox_shape_tensors(list->shape) > 1) {
        linear.saved[0] = add_value(list, ox_whole_rows_bytes(list->shape, linear.in_count));
    }
    add_node(list, linear);
    return a != OX_ROLE_COUNT && has(list, a) ? add_adapters(list, &linear, a) : linear.out;
}

uint32_t ox_list_linear(struct ox_list *list, uint32_t in, enum ox_role weight, uint32_t in_count,
                        uint32_t out_count) {
    return add_linear(list, (struct ox_node){.role = weight, .in = in, .in_count = in_count,
                                             .out_count = out_count});
}

uint32_t ox_list_add(struct ox_list *list, uint32_t x, uint32_t h) {
    const struct ox_model_config *const config = &list->shape->model->config;
    OX_ASSERT(list->node_count > 0);
    struct ox_node *last = &list->nodes[list->node_count - 1];
    const bool made = last->out == h;
    last -= last->kind == OX_NODE_UP ? 2 : 0; /* linear, down, up */
    last -= last->kind == OX_NODE_DROP;       /* linear, drop, down, up */
    const bool can = last->kind == OX_NODE_LINEAR || last->kind == OX_NODE_NORM || last->kind == OX_NODE_COMBINE ||
                     last->kind == OX_NODE_MIXTURE;
    const bool plain = config->residual_scale == 0.0 || config->residual_scale == 1.0;
    if (can && made && plain && last->residual == OX_NO_VALUE) {
        last->residual = x;
        return h;
    }
    return add_node(list, (struct ox_node){.kind = OX_NODE_ADD, .in = h, .residual = x, .in_count = config->hidden,
                                           .out_count = config->hidden, .scale = (float)config->residual_scale,
                                           .out = add_own_rows(list, config->hidden)});
}

static uint32_t add_head_norm(struct ox_list *list, struct ox_node node) {
    node.kind = OX_NODE_HEAD_NORM;
    node.out = add_in_place(list, node.in);
    node.saved[0] = add_rows(list, own_width(list, node.head_count) * node.in_count); /* the heads before the norm */
    node.saved[1] = add_floats(list, own_width(list, node.head_count));
    return add_node(list, node);
}

uint32_t ox_list_head_norm(struct ox_list *list, uint32_t qkv, enum ox_role gain, uint32_t first, uint32_t count) {
    const struct ox_model_config *const config = &list->shape->model->config;
    const uint32_t width = tensor_of(list, gain)->shape[0]; /* of a head, or of all */
    return add_head_norm(list, (struct ox_node){.role = gain, .in = qkv, .first = heads_width(list, first),
                                                .stride = heads_width(list, config->heads + 2 * config->kv_heads),
                                                .head_count = heads_width(list, count) / width, .in_count = width,
                                                .eps = config->norm_eps});
}

uint32_t ox_list_rope(struct ox_list *list, uint32_t qkv) {
    return add_node(list, (struct ox_node){.kind = OX_NODE_ROPE, .in = qkv, .out = add_in_place(list, qkv)});
}

/* A value that all row groups have in common, of which each row has `width` elements of all heads. */
static uint32_t add_in_common(struct ox_list *list, uint32_t width, uint32_t elem_bytes) {
    const struct ox_shape *const shape = list->shape;
    const uint64_t rows = (uint64_t)shape->rows * ox_shape_groups(shape);
    const uint32_t value = add_value(list, rows * own_width(list, width) / ox_shape_head_ranks(shape) * elem_bytes);
    list->values[value].shared = true;
    return value;
}

/* Keys and values of all row groups. */
static uint32_t add_all_rows(struct ox_list *list, uint32_t qkv) {
    const struct ox_model_config *const config = &list->shape->model->config;
    const uint32_t width = heads_width(list, 2 * config->kv_heads);
    const uint32_t all = add_in_common(list, width, ox_real_bytes(list->shape->compute.real));
    return add_node(list, (struct ox_node){.kind = OX_NODE_ALL_ROWS, .role = OX_ROLE_COUNT, .in = qkv, .out = all,
                                           .in_count = heads_width(list, config->heads) + width,
                                           .out_count = width});
}

uint32_t ox_list_attend(struct ox_list *list, uint32_t qkv, uint32_t window) {
    const struct ox_model_config *const config = &list->shape->model->config;
    const uint32_t heads = config->heads, real_bytes = ox_real_bytes(list->shape->compute.real);
    const uint32_t width = heads_width(list, heads), qkv_width = width + heads_width(list, 2 * config->kv_heads);
    const bool by_heads = ox_shape_head_ranks(list->shape) > 1;
    if (by_heads) {
        qkv = add_node(list, (struct ox_node){.kind = OX_NODE_TO_HEADS, .role = OX_ROLE_COUNT, .in = qkv,
                                              .in_count = qkv_width, .out_count = qkv_width,
                                              .out = add_in_common(list, qkv_width, real_bytes)});
    }
    struct ox_node node = {.role = OX_ROLE_SINKS, .in = qkv, .window = window};
    const bool several = list->shape->groups.all > 1;
    node.kind = several && list->shape->groups.mode == OX_CONTEXT_RING ? OX_NODE_RING : OX_NODE_ATTEND;
    const bool all_rows = several && (node.kind == OX_NODE_ATTEND || list->shape->groups.contexts <= 1);
    node.weights = all_rows ? add_all_rows(list, qkv) : OX_NO_VALUE;
    node.out = by_heads ? add_in_common(list, width, real_bytes) : add_rows(list, own_width(list, width));
    node.saved[0] = by_heads ? add_in_common(list, heads, sizeof(float)) : add_floats(list, own_width(list, heads));
    const uint32_t attended = add_node(list, node);
    return by_heads ? add_node(list, (struct ox_node){.kind = OX_NODE_TO_ROWS, .role = OX_ROLE_COUNT, .in = attended,
                                                      .in_count = width, .out_count = width,
                                                      .out = add_rows(list, own_width(list, width))}) : attended;
}

uint32_t ox_list_act(struct ox_list *list, uint32_t in) {
    return add_node(list, (struct ox_node){.kind = OX_NODE_ACT, .in = in,
                                           .out = add_rows(list, own_width(list,
                                                                           list->shape->model->config.width))});
}

uint32_t ox_list_lookup(struct ox_list *list, uint32_t ids) {
    const uint32_t hidden = list->shape->model->config.hidden;
    return add_node(list, (struct ox_node){.kind = OX_NODE_LOOKUP, .role = OX_ROLE_EMBED, .in = ids,
                                           .out_count = hidden, .out = add_own_rows(list, hidden)});
}

uint32_t ox_list_lookup_low(struct ox_list *list, uint32_t ids, uint32_t rows) {
    const uint32_t hidden = list->shape->model->config.hidden;
    if (!has(list, OX_ROLE_EMBED_A)) {
        return rows;
    }
    return add_node(list, (struct ox_node){.kind = OX_NODE_LOOKUP_LOW, .role = OX_ROLE_EMBED_A, .in = ids,
                                           .residual = rows, .out_count = hidden, .out = add_in_place(list, rows),
                                           .in_count = (uint32_t)tensor_of(list, OX_ROLE_EMBED_A)->shape[0],
                                           .scale = ox_lora_scale(&list->shape->model->config.lora,
                                                                  OX_ROLE_EMBED_A)});
}

uint32_t ox_list_scale(struct ox_list *list, uint32_t in, float scale) {
    const uint32_t hidden = list->shape->model->config.hidden;
    return add_node(list, (struct ox_node){.kind = OX_NODE_SCALE, .role = OX_ROLE_COUNT, .in = in, .scale = scale,
                                           .in_count = hidden, .out_count = hidden,
                                           .out = add_in_place(list, in)});
}

/* The weights of a norm, gain and bias, in the type of compute. */
static uint32_t add_cast(struct ox_list *list, enum ox_role gain) {
    const uint32_t hidden = list->shape->model->config.hidden;
    const uint32_t width = has(list, (enum ox_role)(gain + 1)) ? 2 * hidden : hidden;
    const uint64_t bytes = width * ox_real_bytes(list->shape->compute.real);
    return add_node(list, (struct ox_node){.kind = OX_NODE_CAST, .role = gain, .out_count = width,
                                           .out = add_value(list, bytes)});
}

uint32_t ox_list_final_norm(struct ox_list *list, uint32_t x, bool casts) {
    const uint32_t weights = casts ? add_cast(list, OX_ROLE_FINAL_NORM) : OX_NO_VALUE;
    const uint32_t normed = ox_list_norm(list, x, OX_ROLE_FINAL_NORM);
    list->nodes[list->node_count - 1].order = weights;
    return normed;
}

uint32_t ox_list_loss(struct ox_list *list, uint32_t in) {
    const struct ox_model_config *const config = &list->shape->model->config;
    return add_node(list, (struct ox_node){.kind = OX_NODE_LOSS, .role = OX_ROLE_HEAD, .in = in,
                                           .in_count = config->hidden, .out_count = config->vocab,
                                           .out = add_value(list, sizeof(double))});
}

/* ---- latent attention ---- */

/* Norms a narrow part of every row; `first` and `stride` as of a node. */
static uint32_t add_narrow_norm(struct ox_list *list, uint32_t in, enum ox_role gain, uint32_t first,
                                uint32_t stride) {
    return add_head_norm(list, (struct ox_node){.role = gain, .in = in, .first = first, .stride = stride,
                                                .head_count = 1, .in_count = (uint32_t)tensor_of(list, gain)->shape[0],
                                                .eps = 1e-6f}); /* DeepSeek's, whatever that of other norms is */
}

/* Adds parts to a value of `out_count` elements a row, which `residual` holds so far. */
static uint32_t add_splice(struct ox_list *list, struct ox_node node) {
    node.kind = OX_NODE_SPLICE;
    node.role = OX_ROLE_COUNT;
    node.out = node.residual == OX_NO_VALUE ? add_rows(list, node.out_count) : add_in_place(list, node.residual);
    return add_node(list, node);
}

/* One product makes the narrow vectors of queries and of keys with values, and the rotated part of keys; a row of it
 * is [queries, or their narrow vector | narrow vector | rotated part]. */
uint32_t ox_list_latent(struct ox_list *list, uint32_t in) {
    const struct ox_model_config *const c = &list->shape->model->config;
    const struct ox_latent *const l = &c->latent;
    const uint32_t heads = c->heads, dim = c->head_dim, query = ox_latent_query(l), key_value = l->rest + l->value;
    const uint32_t narrow = l->q_rank != 0 ? l->q_rank : heads * query, rotated = narrow + l->kv_rank;
    const uint32_t stride = rotated + l->rotated, width = heads_width(list, 3 * heads);
    uint32_t a = ox_list_linear(list, in, OX_ROLE_QKV, c->hidden, stride);
    if (l->q_rank != 0) {
        a = add_narrow_norm(list, a, OX_ROLE_Q_A_NORM, 0, stride);
    }
    a = add_narrow_norm(list, a, OX_ROLE_KV_A_NORM, narrow, stride);
    struct ox_node queries = {.in = a, .in_count = stride, .out_count = width, .part_count = 2,
                              .parts = {{l->rest, query, 0, dim, l->rotated, heads},
                                        {0, query, l->rotated, dim, l->rest, heads}}};
    if (l->q_rank != 0) {
        queries.in_count = heads * query;
        queries.in = add_linear(list, (struct ox_node){.role = OX_ROLE_Q_B, .in = a, .in_count = l->q_rank,
                                                       .out_count = queries.in_count, .stride = stride});
    }
    struct ox_node keys = {.in_count = heads * key_value, .out_count = width, .part_count = 2,
                           .parts = {{0, key_value, heads * dim + l->rotated, dim, l->rest, heads},
                                     {l->rest, key_value, 2 * heads * dim, dim, l->value, heads}}};
    keys.in = add_linear(list, (struct ox_node){.role = OX_ROLE_KV_B, .in = a, .in_count = l->kv_rank,
                                                .out_count = keys.in_count, .first = narrow, .stride = stride});
    keys.residual = add_splice(list, queries);
    return add_splice(list, (struct ox_node){.in = a, .in_count = stride, .out_count = width, .part_count = 1,
                                             .residual = add_splice(list, keys),
                                             .parts = {{rotated, 0, heads * dim, dim, l->rotated, heads}}});
}

uint32_t ox_list_latent_values(struct ox_list *list, uint32_t attended) {
    const struct ox_model_config *const c = &list->shape->model->config;
    const uint32_t value = c->latent.value, width = heads_width(list, c->heads);
    return value == c->head_dim ? attended
                                : add_splice(list, (struct ox_node){.in = attended, .in_count = width, .part_count = 1,
                                                                    .out_count = c->heads * value,
                                                                    .parts = {{0, c->head_dim, 0, value, value,
                                                                               c->heads}}});
}

/* ---- a mixture of experts ---- */

uint32_t ox_list_clamp(struct ox_list *list, uint32_t qkv) {
    const struct ox_model_config *const config = &list->shape->model->config;
    const uint32_t width = own_width(list, heads_width(list, config->heads + 2 * config->kv_heads));
    struct ox_node node = {.kind = OX_NODE_CLAMP, .in = qkv, .in_count = width, .out_count = width};
    node.out = add_in_place(list, qkv);
    node.saved[0] = add_floats(list, ox_clamp_words(width)); /* bits, in words of the same size */
    return add_node(list, node);
}

static uint32_t add_grouped(struct ox_list *list, enum ox_node_kind kind, enum ox_role role, struct ox_node node) {
    const uint32_t chosen = list->shape->model->config.mixture.router.chosen;
    node.kind = kind;
    node.role = role;
    node.out = add_rows(list, chosen * node.out_count);
    return add_node(list, node);
}

/* The product of a group with its adapters: A comes first, so that its part of the gradient is added last. */
static uint32_t add_experts(struct ox_list *list, enum ox_node_kind kind, enum ox_role role, struct ox_node node) {
    const enum ox_role a = ox_adapter_role(role);
    if (!has(list, a)) {
        return add_grouped(list, kind, role, node);
    }
    struct ox_node down = node;
    down.out_count = (uint32_t)(tensor_of(list, a)->shape[0] / list->shape->model->config.mixture.router.experts);
    const uint32_t products = add_grouped(list, OX_NODE_GROUPED_DOWN, a, down);
    const uint32_t made = add_grouped(list, kind, role, node);
    struct ox_node up = up_of(list, (enum ox_role)(a + 1), products, made, node.out_count);
    up.kind = OX_NODE_GROUPED_UP;
    up.order = node.order;
    return add_node(list, up);
}

/* With its adapters. */
static uint32_t add_logits(struct ox_list *list, uint32_t in, enum ox_role role, uint32_t count) {
    const uint32_t hidden = list->shape->model->config.hidden;
    const enum ox_role a = ox_adapter_role(role);
    const uint32_t logits = add_node(list, (struct ox_node){.kind = OX_NODE_ROUTER, .role = role, .in = in,
                                                            .in_count = hidden, .out_count = count,
                                                            .out = add_floats(list, count)});
    if (!has(list, a)) {
        return logits;
    }
    const struct ox_node down = {.in = add_drop(list, in, hidden, a, OX_CUT_NONE), .in_count = hidden};
    struct ox_node up = up_of(list, (enum ox_role)(a + 1), add_down(list, down, a), logits, count);
    up.kind = OX_NODE_ROUTER_UP;
    return add_node(list, up);
}

/* The expert of all tokens, behind its gate where it has one. */
static uint32_t add_shared(struct ox_list *list, uint32_t in) {
    const uint32_t hidden = list->shape->model->config.hidden;
    const uint32_t width = list->shape->model->config.mixture.shared_width;
    struct ox_node act = {.kind = OX_NODE_EXPERT_ACT, .role = OX_ROLE_COUNT, .in_count = 2 * width / list->groups,
                          .out_count = width / list->groups};
    act.in = ox_list_linear(list, in, OX_ROLE_SHARED_GATE_UP, hidden, 2 * width);
    act.out = add_rows(list, own_width(list, width));
    const uint32_t out = ox_list_linear(list, add_node(list, act), OX_ROLE_SHARED_DOWN, width, hidden);
    if (!has(list, OX_ROLE_SHARED_GATE)) {
        return out;
    }
    return add_node(list, (struct ox_node){.kind = OX_NODE_ROW_GATE, .role = OX_ROLE_COUNT, .in = out,
                                           .weights = add_logits(list, in, OX_ROLE_SHARED_GATE, 1),
                                           .in_count = hidden, .out_count = hidden,
                                           .out = add_own_rows(list, hidden)});
}

/* The router of h: returns what pairs weigh, with the order in the node that makes it. */
static struct ox_node add_route(struct ox_list *list, uint32_t h) {
    const struct ox_router *const router = &list->shape->model->config.mixture.router;
    struct ox_node route = {.kind = OX_NODE_ROUTE, .role = OX_ROLE_COUNT, .in_count = router->experts,
                            .out_count = router->chosen};
    route.in = add_logits(list, h, OX_ROLE_ROUTER, router->experts);
    route.out = add_floats(list, router->chosen);
    route.saved[0] = add_value(list, ox_pair_order_bytes(list->shape));
    route.saved[1] = add_floats(list, 1);
    add_node(list, route);
    return (struct ox_node){.weights = route.out, .order = route.saved[0]};
}

uint32_t ox_list_mixture(struct ox_list *list, uint32_t h) {
    const struct ox_model_config *const c = &list->shape->model->config;
    const uint32_t hidden = c->hidden, width = c->mixture.width;
    const uint32_t shared = has(list, OX_ROLE_SHARED_DOWN) ? add_shared(list, h) : OX_NO_VALUE;
    if (list->groups > 1) {
        return add_node(list, (struct ox_node){.kind = OX_NODE_MIXTURE, .role = OX_ROLE_ROUTER, .in = h,
                                               .residual = shared, .in_count = hidden, .out_count = hidden,
                                               .out = add_own_rows(list, hidden)});
    }
    struct ox_node pairs = add_route(list, h);
    const struct ox_node gather = {.in = h, .order = pairs.order, .in_count = hidden, .out_count = hidden};
    h = add_grouped(list, OX_NODE_GATHER, OX_ROLE_COUNT, gather);
    h = add_experts(list, OX_NODE_GROUPED, OX_ROLE_EXPERT_GATE_UP,
                    (struct ox_node){.in = h, .order = pairs.order, .in_count = hidden, .out_count = 2 * width});
    pairs.in = h;
    pairs.in_count = 2 * width;
    pairs.out_count = width;
    h = add_grouped(list, OX_NODE_EXPERT_ACT, OX_ROLE_COUNT, pairs);
    h = add_experts(list, OX_NODE_GROUPED_BARE, OX_ROLE_EXPERT_DOWN,
                    (struct ox_node){.in = h, .order = pairs.order, .in_count = width, .out_count = hidden});
    const bool biased = has(list, OX_ROLE_EXPERT_DOWN_BIAS);
    return add_node(list, (struct ox_node){.kind = OX_NODE_COMBINE, .in = h, .residual = shared,
                                           .order = pairs.order, .role = OX_ROLE_EXPERT_DOWN_BIAS,
                                           .in_count = hidden, .out_count = hidden,
                                           .weights = biased ? pairs.weights : OX_NO_VALUE,
                                           .out = add_rows(list, hidden)});
}

static uint32_t add_beside(struct ox_list *list, struct ox_node node, uint64_t bytes) {
    node.kind = OX_NODE_BESIDE;
    node.role = OX_ROLE_COUNT;
    node.in_count = node.out_count = list->shape->model->config.hidden;
    node.out = add_value(list, bytes);
    return add_node(list, node);
}

uint32_t ox_list_hand_over(struct ox_list *list, uint32_t x, uint32_t h) {
    const struct ox_handed handed = ox_handed_of(list->shape);
    const uint32_t hidden = list->shape->model->config.hidden;
    if (has(list, OX_ROLE_SHARED_DOWN)) {
        x = add_beside(list, (struct ox_node){.in = add_shared(list, h), .residual = x}, handed.in);
    }
    if (list->groups > 1) {
        return add_node(list, (struct ox_node){.kind = OX_NODE_HAND_OVER, .role = OX_ROLE_ROUTER, .in = h,
                                               .residual = x, .in_count = hidden, .out_count = hidden,
                                               .out = add_value(list, handed.first_bytes)});
    }
    struct ox_node all = add_route(list, h);
    all.in = h;
    all.residual = x;
    return add_beside(list, all, handed.first_bytes);
}

/* ---- the lists of blocks and of experts apart from them ---- */

void ox_experts_list(const struct ox_shape *shape, const struct ox_unit *unit, struct ox_list *list) {
    const uint32_t hidden = shape->model->config.hidden;
    const struct ox_handed handed = ox_handed_of(shape);
    /* Ranks that divide experts have a group each, one behind the other; the list has the units of the rank's. */
    const uint32_t first = unit->expert_first, count = unit->expert_count * ox_shape_experts(shape);
    const uint32_t groups = ox_model_groups(&shape->model->config), own = ox_shape_own_features(shape);
    const bool last = first + count == shape->model->config.mixture.router.experts / groups;
    *list = (struct ox_list){.shape = shape, .unit = unit, .value_count = 1, .groups = groups,
                             .group_first = shape->features.first, .group_past = shape->features.first + own};
    list->unit_count = ox_model_stage_units(shape->model, unit + shape->experts.at * groups, list->units);
    list->in = add_value(list, unit->expert_first == 0 ? handed.first_bytes : handed.bytes);
    list->out = last ? add_own_rows(list, hidden) : add_value(list, handed.bytes);
    add_node(list, (struct ox_node){.kind = OX_NODE_EXPERTS, .role = OX_ROLE_EXPERT_GATE_UP, .in = list->in,
                                    .residual = list->in, .in_count = hidden, .out_count = hidden, .first = first,
                                    .stride = count, .out = list->out});
}

/* A norm that the family may lack. */
static uint32_t norm_if_any(struct ox_list *list, uint32_t in, enum ox_role gain) {
    return has(list, gain) ? ox_list_norm(list, in, gain) : in;
}

void ox_block_list(const struct ox_shape *shape, const struct ox_unit *unit, struct ox_list *list) {
    const struct ox_model_config *const c = &shape->model->config;
    const uint32_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    const uint32_t gate_up = ox_activation_is_gated(c->act) ? 2 * c->width : c->width;

    uint32_t x = ox_list_begin(list, shape, unit);
    /* Every step is there where the family has its tensor or says so in its configuration: no family is named here. */
    const uint32_t normed = norm_if_any(list, x, OX_ROLE_NORM1);
    const bool latent = c->latent.kv_rank != 0;
    uint32_t h = latent ? ox_list_latent(list, normed)
                        : ox_list_linear(list, normed, OX_ROLE_QKV, c->hidden, q + 2 * kv);
    if (has(list, OX_ROLE_Q_NORM)) {
        h = ox_list_head_norm(list, h, OX_ROLE_Q_NORM, 0, c->heads);
        h = ox_list_head_norm(list, h, OX_ROLE_K_NORM, c->heads, c->kv_heads);
    }
    if (c->clip_qkv > 0.0) {
        h = ox_list_clamp(list, h);
    }
    if (unit->rope) {
        h = ox_list_rope(list, h);
    }
    h = ox_list_attend(list, h, unit->window);
    h = latent ? ox_list_latent_values(list, h) : h;
    h = ox_list_linear(list, h, OX_ROLE_OUT, latent ? c->heads * c->latent.value : q, c->hidden);
    /* Before the residual is added, and so of the half alone, not of the sum. */
    h = norm_if_any(list, h, OX_ROLE_POST1);
    x = ox_list_add(list, x, h);

    /* Halves side by side read the same norm; one after the other, the second reads what the first has added to. */
    h = c->parallel ? normed : norm_if_any(list, x, OX_ROLE_NORM2);
    /* Experts that are units of their own: the block ends with the choice of experts, and the groups add to x. */
    if (has(list, OX_ROLE_ROUTER) && !has(list, OX_ROLE_EXPERT_DOWN)) {
        list->out = ox_list_hand_over(list, x, h);
        return;
    }
    if (has(list, OX_ROLE_ROUTER)) {
        h = ox_list_mixture(list, h);
    } else {
        h = ox_list_act(list, ox_list_linear(list, h, OX_ROLE_GATE_UP, c->hidden, gate_up));
        h = ox_list_linear(list, h, OX_ROLE_DOWN, c->width, c->hidden);
    }
    x = ox_list_add(list, x, norm_if_any(list, h, OX_ROLE_POST2));
    list->out = x;
}
