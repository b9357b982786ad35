/* What each kind of node does on the device: its row, and the operations that it queues. */
#include "engine/model/list.h"

#include "base/assert.h"
#include "engine/model/node_groups.h"
#include "engine/model/pieces.h"

/* ---- weights ---- */

const void *ox_node_weight_of(const struct ox_node_call *call, enum ox_role role, uint32_t group) {
    const uint32_t owner = ox_list_owner_of(call->list, role, group);
    const uint32_t width = ox_real_bytes(call->job->shape->compute.real);
    return owner == UINT32_MAX ? NULL
                               : (const unsigned char *)call->weights->weights[owner] +
                                     (call->list->units[owner]->role_offset[role] - call->job->weights_first) * width;
}

float *ox_node_grad_of(const struct ox_node_call *call, enum ox_role role, uint32_t group) {
    const uint32_t owner = ox_list_owner_of(call->list, role, group);
    const bool has = owner != UINT32_MAX && call->list->units[owner]->role_trained[role] &&
                     call->weights->grads[owner] != NULL;
    return has ? call->weights->grads[owner] + call->list->units[owner]->role_offset[role] : NULL;
}

const void *ox_node_weight(const struct ox_node_call *call, enum ox_role role) {
    return ox_node_weight_of(call, role, 0);
}

float *ox_node_grad(const struct ox_node_call *call, enum ox_role role) {
    return ox_node_grad_of(call, role, 0);
}

static const void *weight_of(const struct ox_node_call *call, enum ox_role role) {
    return ox_node_weight(call, role);
}

static float *grad_of(const struct ox_node_call *call, enum ox_role role) {
    return ox_node_grad(call, role);
}

static enum ox_role bias_of(const struct ox_node *node) {
    return (enum ox_role)(node->role + 1);
}

/* ---- norm ---- */

static uint32_t groups_of(const struct ox_shape *shape) {
    return ox_model_groups(&shape->model->config);
}

static uint64_t norm_scratch(const struct ox_shape *shape, const struct ox_node *node, bool backward) {
    return !backward               ? 0
           : groups_of(shape) == 1 ? ox_ops_norm_scratch_bytes(&shape->compute, node->in_count)
                                   : ox_norm_group_scratch(shape, node->in_count, 2);
}

/* Weights of a norm lie in the unit's vector, or are cast: the gain, and the bias behind it. */
static const void *norm_weight(const struct ox_node_call *call, enum ox_role role) {
    const struct ox_shape *const shape = call->job->shape;
    const uint32_t nth = role == call->node->role ? 0 : 1;
    if (call->order == NULL || call->job->unit->role_offset[role] == UINT64_MAX) {
        return weight_of(call, role);
    }
    return (const unsigned char *)call->order + nth * call->node->in_count * ox_real_bytes(shape->compute.real);
}

static void norm_forward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_model_config *const config = &shape->model->config;
    const uint32_t rows = ox_own_rows_of(shape).count;
    if (rows == 0) {
        return;
    }
    OX_RUN(&call->job->run, norm_forward,
           .out = call->out, .mean = call->saved[1], .rstd = call->saved[0], .in = call->in,
           .gain = norm_weight(call, call->node->role), .bias = norm_weight(call, bias_of(call->node)),
           .residual = call->residual, .rows = rows, .cols = config->hidden, .eps = config->norm_eps,
           .gain_offset = config->gain_offset, .kind = config->norm, .real = shape->compute.real);
}

static void norm_backward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_model_config *const config = &shape->model->config;
    const struct ox_op_norm_backward op = {
        .din = call->din, .residual = call->dresidual, .dgain = grad_of(call, call->node->role),
        .dbias = grad_of(call, bias_of(call->node)), .dout = call->dout, .in = call->in,
        .gain = norm_weight(call, call->node->role), .mean = call->saved[1], .rstd = call->saved[0],
        .scratch = call->scratch, .rows = ox_own_rows_of(shape).count, .cols = config->hidden,
        .gain_offset = config->gain_offset, .kind = config->norm, .real = shape->compute.real,
        .begins = call->job->begins};
    if (call->list->groups > 1 && (op.dgain != NULL || op.dbias != NULL)) {
        ox_norm_groups_backward(call, op);
    } else if (op.rows > 0) {
        OX_THEN(call->job->run.status, OX_QUEUE(call->job->run.ops, call->job->run.lane, norm_backward, &op));
    }
}

/* ---- linear ---- */

void *ox_node_part(const struct ox_node_call *call, const void *rows) {
    const uint64_t elems = call->node->first;
    return rows == NULL ? NULL
                        : (unsigned char *)(uintptr_t)rows + elems * ox_real_bytes(call->job->shape->compute.real);
}

static void linear_forward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_node *const node = call->node;
    if (node->cut != OX_CUT_NONE) {
        ox_linear_groups_forward(call);
        return;
    }
    OX_RUN(&call->job->run, linear_forward,
           .out = call->out, .in = ox_node_part(call, call->in), .weight = weight_of(call, node->role),
           .bias = weight_of(call, bias_of(node)), .residual = call->residual, .rows = shape->rows,
           .in_stride = node->stride, .in_count = node->in_count, .out_count = node->out_count,
           .layout = shape->model->config.layout, .real = shape->compute.real);
}

static void linear_backward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_node *const node = call->node;
    if (node->cut != OX_CUT_NONE) {
        ox_linear_groups_backward(call);
        return;
    }
    /* elements of `in` beside the part that it takes have a gradient already, which stays */
    OX_ASSERT(node->stride == 0 || call->din == NULL || call->din == call->dresidual);
    OX_RUN(&call->job->run, linear_backward, .din = ox_node_part(call, call->din),
           .dweight = grad_of(call, node->role), .dbias = grad_of(call, bias_of(node)), .dout = call->dout,
           .in = ox_node_part(call, call->in), .weight = weight_of(call, node->role),
           .residual = ox_node_part(call, call->dresidual), .rows = shape->rows, .in_stride = node->stride,
           .in_count = node->in_count, .out_count = node->out_count, .layout = shape->model->config.layout,
           .real = shape->compute.real, .begins = call->job->begins);
}

/* ---- sum ---- */

static void add_forward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    OX_RUN(&call->job->run, add, .target = call->out, .a = call->residual, .b = call->in,
           .count = (uint64_t)ox_own_rows_of(shape).count * call->node->out_count, .scale = call->node->scale,
           .real = shape->compute.real);
}

static void add_backward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    OX_RUN(&call->job->run, add, .target = call->din, .a = call->dresidual, .b = call->dout,
           .count = (uint64_t)ox_own_rows_of(shape).count * call->node->out_count, .scale = call->node->scale,
           .real = shape->compute.real);
}

/* ---- heads: norm, rotation, attention ---- */

static uint32_t qkv_width(const struct ox_shape *shape) {
    const struct ox_model_config *const config = &shape->model->config;
    return (config->heads + 2 * config->kv_heads) * config->head_dim;
}

static uint64_t head_norm_scratch(const struct ox_shape *shape, const struct ox_node *node, bool backward) {
    return !backward               ? 0
           : groups_of(shape) == 1 ? ox_ops_norm_scratch_bytes(&shape->compute, node->in_count)
                                   : ox_norm_group_scratch(shape, node->in_count, 1);
}

/* The heads of the first group within a row of it. */
static void *first_heads(const struct ox_node_call *call, const void *rows) {
    const uint64_t elems = call->node->first / call->list->groups;
    return rows == NULL ? NULL
                        : (unsigned char *)(uintptr_t)rows + elems * ox_real_bytes(call->job->shape->compute.real);
}

static void head_norm_forward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_node *const node = call->node;
    const uint32_t groups = call->list->groups, heads = node->head_count / groups, stride = node->stride / groups;
    for (uint32_t g = call->list->group_first; g < call->list->group_past; g++) {
        OX_RUN(&call->job->run, head_norm_forward,
               .inout = ox_node_group(call, first_heads(call, call->out), stride, g),
               .saved = ox_node_group(call, call->saved[0], heads * node->in_count, g),
               .rstd = ox_node_group_floats(call, call->saved[1], heads, g), .gain = weight_of(call, node->role),
               .rows = shape->rows, .row_stride = stride, .heads = heads, .head_dim = node->in_count,
               .eps = node->eps, .gain_offset = shape->model->config.gain_offset, .real = shape->compute.real);
    }
}

static void head_norm_backward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_node *const node = call->node;
    const uint32_t groups = call->list->groups;
    const struct ox_op_head_norm_backward op = {
        .dinout = first_heads(call, call->din), .dgain = grad_of(call, node->role), .saved = call->saved[0],
        .rstd = call->saved[1], .gain = weight_of(call, node->role), .scratch = call->scratch,
        .rows = shape->rows, .row_stride = node->stride / groups, .heads = node->head_count / groups,
        .head_dim = node->in_count, .gain_offset = shape->model->config.gain_offset,
        .real = shape->compute.real, .begins = call->job->begins};
    if (groups > 1) {
        ox_head_norm_groups_backward(call, op);
    } else {
        OX_THEN(call->job->run.status, OX_QUEUE(call->job->run.ops, call->job->run.lane, head_norm_backward, &op));
    }
}

static void rotate(const struct ox_node_call *call, void *qkv, bool inverse) {
    const struct ox_unit_job *const job = call->job;
    const struct ox_model_config *const config = &job->shape->model->config;
    const uint32_t groups = call->list->groups, width = qkv_width(job->shape) / groups;
    for (uint32_t g = call->list->group_first; g < call->list->group_past; g++) {
        OX_RUN(&call->job->run, rope,
               .qk = ox_node_group(call, qkv, width, g), .cos_table = job->cos_table, .sin_table = job->sin_table,
               .positions = job->positions, .rows = job->shape->rows, .row_stride = width,
               .heads = (config->heads + config->kv_heads) / groups, /* q and k lie before v */
               .head_dim = config->head_dim, .rotary_dim = config->rotary_dim, .inverse = inverse,
               .neighbours = config->rope_neighbours, .real = job->shape->compute.real);
    }
}

static void rope_forward(const struct ox_node_call *call) {
    rotate(call, call->out, false);
}

static void rope_backward(const struct ox_node_call *call) {
    rotate(call, call->din, true);
}

static void splice_forward(const struct ox_node_call *call) {
    const struct ox_node *const node = call->node;
    OX_RUN(&call->job->run, splice, .out = call->out, .in = call->in, .residual = call->residual,
           .rows = call->job->shape->rows, .in_width = node->in_count, .out_width = node->out_count,
           .part_count = node->part_count, .parts = {node->parts[0], node->parts[1]},
           .real = call->job->shape->compute.real);
}

static struct ox_splice_part backward_of(const struct ox_splice_part *part) {
    return (struct ox_splice_part){part->out_first, part->out_stride, part->in_first, part->in_stride, part->width,
                                   part->heads};
}

static void splice_backward(const struct ox_node_call *call) {
    const struct ox_node *const node = call->node;
    if (call->din != NULL) {
        OX_RUN(&call->job->run, splice, .out = call->din, .in = call->dout, .residual = call->dresidual,
               .rows = call->job->shape->rows, .in_width = node->out_count, .out_width = node->in_count,
               .part_count = node->part_count, .parts = {backward_of(&node->parts[0]), backward_of(&node->parts[1])},
               .real = call->job->shape->compute.real);
    }
}

struct ox_attention_shape ox_attention_shape_of(const struct ox_shape *shape, uint32_t window) {
    const struct ox_model_config *const config = &shape->model->config;
    const double scale = config->attention_scale != 0.0 ? config->attention_scale
                                                        : 1.0 / __builtin_sqrt((double)config->head_dim);
    return (struct ox_attention_shape){.batch = shape->batch,
                                       .seq = shape->seq,
                                       .heads = config->heads,
                                       .kv_heads = config->kv_heads,
                                       .head_dim = config->head_dim,
                                       .window = window,
                                       .scale = (float)scale,
                                       .cap = (float)config->attention_cap};
}

struct ox_attention_shape ox_group_attention_of(const struct ox_shape *shape, uint32_t window) {
    struct ox_attention_shape attention = ox_attention_shape_of(shape, window);
    attention.heads /= groups_of(shape) * ox_shape_head_ranks(shape);
    attention.kv_heads /= groups_of(shape) * ox_shape_head_ranks(shape);
    return attention;
}

static uint64_t attend_scratch(const struct ox_shape *shape, const struct ox_node *node, bool backward) {
    const struct ox_attention_shape attention = ox_group_attention_of(shape, node->window);
    (void)backward;
    return ox_ops_attention_scratch_bytes(&shape->compute, &attention);
}

static void attend_cached(const struct ox_node_call *call, const struct ox_cache *cache) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_attention_shape attention = ox_attention_shape_of(shape, call->node->window);
    OX_RUN(&call->job->run, attention_cached,
           .out = call->out, .lse = call->saved[0], .qkv = call->in, .keys = cache->keys, .values = cache->values,
           .scratch = cache->scratch,
           .rows = shape->rows, .cached = cache->count, .heads = attention.heads, .kv_heads = attention.kv_heads,
           .head_dim = attention.head_dim, .window = attention.window, .scale = attention.scale,
           .cap = attention.cap,
           .real = shape->compute.real);
}

static void attend_forward(const struct ox_node_call *call) {
    const struct ox_unit_job *const job = call->job;
    const struct ox_attention_shape attention = ox_group_attention_of(job->shape, call->node->window);
    const uint32_t groups = call->list->groups, out_width = attention.heads * attention.head_dim;
    const uint32_t width = qkv_width(job->shape) / groups;
    OX_ASSERT(job->cache == NULL || groups == 1);
    if (job->cache != NULL) {
        attend_cached(call, job->cache);
        ox_add_sinks(call, 0, 0, call->job->shape->seq);
        return;
    }
    if (call->node->weights != OX_NO_VALUE) {
        ox_attend_group_forward(call);
        return;
    }
    for (uint32_t g = call->list->group_first; g < call->list->group_past; g++) {
        OX_RUN(&call->job->run, attention_forward, .out = ox_node_group(call, call->out, out_width, g),
               .lse = ox_node_group_floats(call, call->saved[0], attention.heads, g),
               .qkv = ox_node_group(call, call->in, width, g), .positions = job->documents, .scratch = call->scratch,
               .shape = attention, .real = job->shape->compute.real);
        ox_add_sinks(call, g, 0, job->shape->seq);
    }
}

static void attend_backward(const struct ox_node_call *call) {
    const struct ox_unit_job *const job = call->job;
    if (call->node->weights != OX_NO_VALUE) {
        ox_attend_group_backward(call);
        return;
    }
    const struct ox_attention_shape attention = ox_group_attention_of(job->shape, call->node->window);
    const uint32_t groups = call->list->groups, out_width = attention.heads * attention.head_dim;
    const uint32_t width = qkv_width(job->shape) / groups;
    for (uint32_t g = call->list->group_first; g < call->list->group_past; g++) {
        OX_RUN(&call->job->run, attention_backward, .dqkv = ox_node_group(call, call->din, width, g),
               .dout = ox_node_group(call, call->dout, out_width, g), .qkv = ox_node_group(call, call->in, width, g),
               .out = ox_node_group(call, call->out, out_width, g),
               .lse = ox_node_group_floats(call, call->saved[0], attention.heads, g), .positions = job->documents,
               .scratch = call->scratch, .shape = attention, .real = job->shape->compute.real);
        ox_add_sinks_backward(call, g, 0, job->shape->seq);
    }
}

/* ---- activation: the rows of all groups ---- */

static void act_forward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    OX_RUN(&call->job->run, act_forward, .out = call->out, .in = call->in,
           .rows = shape->rows * ox_shape_own_features(shape),
           .width = shape->model->config.width / groups_of(shape), .kind = shape->model->config.act,
           .real = shape->compute.real);
}

static void act_backward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    OX_RUN(&call->job->run, act_backward, .din = call->din, .dout = call->dout, .in = call->in,
           .rows = shape->rows * ox_shape_own_features(shape), .width = shape->model->config.width / groups_of(shape),
           .kind = shape->model->config.act, .real = shape->compute.real);
}

/* ---- attention where the rows of sequences are cut into groups ---- */

/* The order in which sums of so many are joined in a tree. */
static struct ox_sums order_of(uint32_t count) {
    return (struct ox_sums){.micro_batches = count, .groups = count, .ranks = 1};
}

/* Rows that nodes do at once: of one row group, or where ranks divide heads of all. */
static uint32_t rows_at_once(const struct ox_shape *shape) {
    return shape->rows * (ox_shape_head_ranks(shape) > 1 ? ox_shape_groups(shape) : 1);
}

/* The row groups that attention does at once, by their numbers among those of the rank; or of all. */
struct span {
    uint32_t first, past, all;
};
static struct span groups_at_once(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    const uint32_t group = call->job->group, all = ox_shape_groups(shape);
    return ox_shape_head_ranks(shape) > 1 ? (struct span){0, all, all}
                                          : (struct span){group, group + 1, ox_shape_own_groups(shape)};
}

/* Where a group of features begins among rows that are done at once. */
static void *features_at(const struct ox_node_call *call, const void *rows, uint64_t width, uint32_t features) {
    const struct ox_shape *const shape = call->job->shape;
    const uint64_t elems = (uint64_t)(features - call->list->group_first) * rows_at_once(shape) * width;
    return rows == NULL ? NULL : (unsigned char *)(uintptr_t)rows + elems * ox_real_bytes(shape->compute.real);
}

/* Elements of the keys and values that a group of features has in one group of rows, and in all, of the rank's heads.
 */
static uint64_t group_elems(const struct ox_shape *shape) {
    const struct ox_model_config *const config = &shape->model->config;
    return (uint64_t)shape->rows * 2 * config->kv_heads * config->head_dim / groups_of(shape) /
           ox_shape_head_ranks(shape);
}

static uint64_t all_elems(const struct ox_shape *shape) {
    return group_elems(shape) * ox_shape_groups(shape);
}

/* Ranks that have each made a part of the gradients of all keys and values. */
static uint32_t giving_ranks(const struct ox_shape *shape) {
    return shape->groups.contexts > 1 && ox_shape_head_ranks(shape) == 1 ? shape->groups.contexts : 1;
}

uint64_t ox_all_rows_grad_bytes(const struct ox_shape *shape, uint64_t bytes) {
    const uint32_t count = ox_shape_head_ranks(shape) > 1 ? ox_shape_groups(shape) : ox_shape_own_groups(shape);
    const struct ox_sums order = order_of(count);
    return bytes / ox_real_bytes(shape->compute.real) * sizeof(float) * ox_sums_slots(&order, 0, count);
}

/* Where a rank of several gets what each has summed for its groups. */
uint64_t ox_all_rows_scratch(const struct ox_shape *shape, const struct ox_node *node, bool backward) {
    (void)node;
    return backward && giving_ranks(shape) > 1
               ? all_elems(shape) * ox_shape_own_features(shape) * sizeof(float) : 0;
}

/* A group of features has its keys and values of all rows behind those of the one before. */
void ox_all_rows_forward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    const uint32_t apart = call->list->groups * ox_shape_head_ranks(shape);
    const uint32_t in = call->node->in_count / apart, width = call->node->out_count / apart;
    const uint32_t group = ox_node_is_whole(shape, call->node) ? 0 : shape->groups.first + call->job->group;
    for (uint32_t g = call->list->group_first; g < call->list->group_past; g++) {
        const uint64_t at = (g - call->list->group_first) * all_elems(shape) + group * group_elems(shape);
        OX_RUN(&call->job->run, splice, .in = features_at(call, call->in, in, g), .rows = rows_at_once(shape),
               .in_width = in, .out = (unsigned char *)call->out + at * ox_real_bytes(shape->compute.real),
               .out_width = width, .part_count = 1, .parts = {{in - width, 0, 0, 0, width, 1}},
               .real = shape->compute.real);
    }
}

/* Adds what all ranks have summed for a group of rows, in a tree, into the first. Returns the sum in the type of
 * activations, which may lie where the second was. */
static const void *join_pieces(const struct ox_node_call *call, float *pieces, uint32_t width) {
    const struct ox_shape *const shape = call->job->shape;
    const uint32_t contexts = giving_ranks(shape);
    const uint64_t elems = group_elems(shape);
    const uint64_t apart = contexts > 1 ? elems * ox_shape_own_groups(shape)
                                        : all_elems(shape) * ox_shape_own_features(shape); /* the next slot */
    const struct ox_sums order = order_of(contexts);
    uint32_t stack[OX_LIST_VALUES_MAX], depth = 0;
    for (uint32_t i = 0; i < contexts; i++) {
        stack[depth++] = i;
        for (uint32_t folds = ox_sums_folds(&order, i); folds > 0; folds--, depth--) {
            float *const lower = pieces + stack[depth - 2] * apart;
            OX_RUN(&call->job->run, add, .target = lower, .a = lower, .b = pieces + stack[depth - 1] * apart,
                   .count = elems);
        }
    }
    OX_ASSERT(depth == 1);
    if (shape->compute.real == OX_REAL_F32) {
        return pieces;
    }
    OX_RUN(&call->job->run, settle, .out = pieces + apart, .in = pieces, .rows = rows_at_once(shape), .cols = width,
           .real = shape->compute.real);
    return pieces + apart;
}

/* Puts the sums beside the gradient of the group's queries. */
void ox_all_rows_backward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    const uint32_t apart = call->list->groups * ox_shape_head_ranks(shape);
    const uint32_t in = call->node->in_count / apart, width = call->node->out_count / apart;
    float *const all = giving_ranks(shape) > 1 ? call->scratch : call->dout;
    for (uint32_t g = call->list->group_first; g < call->list->group_past; g++) {
        float *const pieces =
            all + (g - call->list->group_first) * all_elems(shape) + call->job->group * group_elems(shape);
        const void *const sum = join_pieces(call, pieces, width);
        OX_RUN(&call->job->run, splice, .in = sum, .rows = rows_at_once(shape), .in_width = width,
               .out = features_at(call, call->din, in, g), .residual = features_at(call, call->dresidual, in, g),
               .out_width = in, .part_count = 1, .parts = {{0, 0, in - width, 0, width, 1}},
               .real = shape->compute.real);
    }
}

void ox_all_rows_cost(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    ox_cost_add_loop(cost, cost->rows, (double)node->out_count / ox_shape_tensors(cost->shape),
                     (struct ox_cost_loop){.passes = (uint8_t)(backward ? 3 : 2), .ops = 1});
}

/* ---- rows exchanged for heads: a piece for each rank, of its heads, one group of rows after the other ---- */

/* A row of a group of features, what it has of one rank's heads, and which parts of a row these are. */
struct heads {
    uint32_t width, own, part_count;
    struct ox_splice_part parts[2];
};
static struct heads heads_of(const struct ox_node_call *call, uint32_t rank) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_model_config *const config = &shape->model->config;
    const uint32_t ranks = ox_shape_head_ranks(shape), width = call->node->in_count / call->list->groups;
    const uint32_t query = config->heads * config->head_dim / call->list->groups, key = (width - query) / 2;
    struct heads of = {.width = width, .own = width / ranks, .part_count = key > 0 ? 2 : 1};
    of.parts[0] = (struct ox_splice_part){rank * query / ranks, 0, 0, 0, query / ranks, 1};
    of.parts[1] =
        (struct ox_splice_part){query + rank * key / ranks, key, query / ranks, key / ranks, key / ranks, 2};
    return of;
}

uint64_t ox_exchange_heads_scratch(const struct ox_shape *shape, const struct ox_node *node, bool backward) {
    (void)backward;
    return (uint64_t)shape->rows * ox_shape_own_groups(shape) * node->in_count / ox_shape_tensors(shape) *
           ox_real_bytes(shape->compute.real);
}

/* Where the piece with a rank's heads of the call's rows lies. */
static void *piece_at(const struct ox_node_call *call, uint32_t rank, uint32_t features, uint32_t own) {
    const struct ox_shape *const shape = call->job->shape;
    const uint64_t nth = (features - call->list->group_first) * ox_shape_head_ranks(shape) + rank;
    const uint64_t rows = (nth * ox_shape_own_groups(shape) + call->job->group) * shape->rows;
    return (unsigned char *)call->scratch + rows * own * ox_real_bytes(shape->compute.real);
}

/* Makes the pieces of rows. */
static void take_apart(const struct ox_node_call *call, const void *rows) {
    const struct ox_shape *const shape = call->job->shape;
    for (uint32_t g = call->list->group_first; g < call->list->group_past; g++) {
        for (uint32_t i = 0; i < ox_shape_head_ranks(shape); i++) {
            const struct heads of = heads_of(call, i);
            OX_RUN(&call->job->run, splice, .in = ox_node_group(call, rows, of.width, g), .rows = shape->rows,
                   .in_width = of.width, .out = piece_at(call, i, g, of.own), .out_width = of.own,
                   .part_count = of.part_count, .parts = {of.parts[0], of.parts[1]}, .real = shape->compute.real);
        }
    }
}

/* Makes rows of the pieces that ranks have given. */
static void put_together(const struct ox_node_call *call, void *rows) {
    const struct ox_shape *const shape = call->job->shape;
    for (uint32_t g = call->list->group_first; g < call->list->group_past; g++) {
        for (uint32_t i = 0; i < ox_shape_head_ranks(shape); i++) {
            const struct heads of = heads_of(call, i);
            void *const out = ox_node_group(call, rows, of.width, g);
            OX_RUN(&call->job->run, splice, .in = piece_at(call, i, g, of.own), .rows = shape->rows,
                   .in_width = of.own, .out = out, .residual = i == 0 ? NULL : out, .out_width = of.width,
                   .part_count = of.part_count, .parts = {backward_of(&of.parts[0]), backward_of(&of.parts[1])},
                   .real = shape->compute.real);
        }
    }
}

void ox_to_heads_forward(const struct ox_node_call *call) {
    take_apart(call, call->in);
}

void ox_to_heads_backward(const struct ox_node_call *call) {
    put_together(call, call->din);
}

void ox_to_rows_forward(const struct ox_node_call *call) {
    put_together(call, call->out);
}

void ox_to_rows_backward(const struct ox_node_call *call) {
    take_apart(call, call->dout);
}

void ox_exchange_heads_cost(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    (void)backward;
    ox_cost_add_loop(cost, cost->rows, (double)node->in_count / ox_shape_tensors(cost->shape),
                     (struct ox_cost_loop){.passes = 2, .ops = (uint8_t)ox_shape_head_ranks(cost->shape)});
}

/* ---- attention of row groups ---- */

/* Half of a group's rows, one chunk of every sequence, and the heads of a group of features. */
struct half {
    struct ox_attention_shape shape;
    struct ox_attention_part part;
    uint64_t row;                /* its first, of those that are done at once */
    uint64_t out_width, width;   /* elements of a row of what attention makes, and of what it reads */
    uint64_t kv_first;           /* where its keys of all rows begin */
    uint32_t features;
    const int32_t *documents;
};

/* `group`: among those that are done at once. */
static struct half half_of(const struct ox_node_call *call, uint32_t group, uint32_t nth, uint32_t features) {
    const struct ox_shape *const shape = call->job->shape;
    const bool whole = ox_node_is_whole(shape, call->node);
    const int32_t *const documents = whole ? call->job->all_documents : call->job->documents;
    const uint32_t number = whole ? group : shape->groups.first + group, chunks = 2 * shape->groups.all;
    struct half half = {.shape = ox_group_attention_of(shape, call->node->window), .features = features};
    const uint32_t kv_width = 2 * half.shape.kv_heads * half.shape.head_dim;
    half.shape.seq = shape->seq / chunks;
    half.row = (whole ? (uint64_t)group * shape->rows : 0) + (uint64_t)nth * half.shape.batch * half.shape.seq;
    half.out_width = (uint64_t)half.shape.heads * half.shape.head_dim;
    half.width = half.out_width + kv_width;
    half.kv_first = (features - call->list->group_first) * all_elems(shape);
    half.documents = documents == NULL ? NULL : documents + half.row;
    half.part = (struct ox_attention_part){
        .kv = (const unsigned char *)(const void *)call->pair_weights +
              half.kv_first * ox_real_bytes(shape->compute.real),
        .chunk = nth == 0 ? number : chunks - 1 - number, .chunks = chunks};
    return half;
}

/* Where the half begins in rows of so many elements. */
static void *half_at(const struct ox_node_call *call, const struct half *half, const void *rows, uint64_t width) {
    return (unsigned char *)features_at(call, rows, width, half->features) +
           half->row * width * ox_real_bytes(call->job->shape->compute.real);
}

static float *half_lse(const struct ox_node_call *call, const struct half *half) {
    const uint64_t features = half->features - call->list->group_first;
    return (float *)call->saved[0] + (features * rows_at_once(call->job->shape) + half->row) * half->shape.heads;
}

static void half_forward(const struct ox_node_call *call, const struct half *half) {
    const struct ox_unit_job *const job = call->job;
    OX_RUN(&call->job->run, attention_forward, .out = half_at(call, half, call->out, half->out_width),
           .lse = half_lse(call, half), .qkv = half_at(call, half, call->in, half->width),
           .positions = half->documents, .scratch = call->scratch, .shape = half->shape, .part = half->part,
           .real = job->shape->compute.real);
    ox_add_sinks(call, half->features, half->row, half->shape.seq);
}

void ox_attend_group_forward(const struct ox_node_call *call) {
    const struct span at_once = groups_at_once(call);
    for (uint32_t group = at_once.first; group < at_once.past; group++) {
        for (uint32_t g = call->list->group_first; g < call->list->group_past; g++) {
            for (uint32_t nth = 0; nth < 2; nth++) {
                const struct half half = half_of(call, group, nth, g);
                half_forward(call, &half);
            }
        }
    }
}

/* Sets, or adds to, the gradients of all keys and values that begin at `dkv`. */
static void half_backward(const struct ox_node_call *call, struct half half, float *dkv, bool adds) {
    const struct ox_unit_job *const job = call->job;
    half.part.dkv = dkv + half.kv_first;
    half.part.adds = adds;
    OX_RUN(&call->job->run, attention_backward, .dqkv = half_at(call, &half, call->din, half.width),
           .dout = half_at(call, &half, call->dout, half.out_width),
           .qkv = half_at(call, &half, call->in, half.width),
           .out = half_at(call, &half, call->out, half.out_width), .lse = half_lse(call, &half),
           .positions = half.documents, .scratch = call->scratch, .shape = half.shape, .part = half.part,
           .real = job->shape->compute.real);
    ox_add_sinks_backward(call, half.features, half.row, half.shape.seq);
}

void ox_attend_group_backward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    const struct span at_once = groups_at_once(call);
    const struct ox_sums order = order_of(at_once.all);
    const uint64_t elems = all_elems(shape) * ox_shape_own_features(shape);
    for (uint32_t group = at_once.first; group < at_once.past; group++) {
        const uint32_t slot = ox_sums_slot(&order, group), folds = ox_sums_folds(&order, group);
        for (uint32_t g = call->list->group_first; g < call->list->group_past; g++) {
            for (uint32_t nth = 0; nth < 2; nth++) {
                half_backward(call, half_of(call, group, nth, g), call->dweights + slot * elems, nth > 0);
            }
        }
        for (uint32_t i = 1; i <= folds; i++) {
            float *const sum = call->dweights + (slot - i) * elems;
            OX_RUN(&call->job->run, add, .target = sum, .a = sum, .b = sum + elems, .count = elems);
        }
    }
}

/* ---- the table ---- */

const struct ox_node_row ox_node_rows[OX_NODE_CLAMP] = {
    [OX_NODE_NORM] = {.reads = OX_READS_IN | OX_READS_SAVED | OX_READS_ORDER, .adds = true, .may_replace_dout = true,
                      .weight_count = 2, .scratch = norm_scratch, .parts = ox_norm_group_parts,
                      .forward = norm_forward, .backward = norm_backward,
                      .cost = ox_cost_norm},
    [OX_NODE_LINEAR] = {.reads = OX_READS_IN, .reads_for_weights = OX_READS_IN, .may_skip_din = true, .adds = true,
                        .weight_count = 2, .scratch = ox_linear_group_scratch, .parts = ox_linear_group_parts,
                        .forward = linear_forward, .backward = linear_backward, .cost = ox_cost_linear},
    [OX_NODE_ADD] = {.adds = true, .forward = add_forward, .backward = add_backward, .cost = ox_cost_add},
    [OX_NODE_HEAD_NORM] = {.reads = OX_READS_SAVED, .saved_optional = 1, .over = OX_OVER_DOUT, .weight_count = 1,
                           .scratch = head_norm_scratch, .parts = ox_head_norm_group_parts,
                           .forward = head_norm_forward,
                           .backward = head_norm_backward, .cost = ox_cost_head_norm},
    [OX_NODE_ROPE] = {.over = OX_OVER_DOUT, .forward = rope_forward, .backward = rope_backward, .cost = ox_cost_rope},
    [OX_NODE_ATTEND] = {.reads = OX_READS_IN | OX_READS_OUT | OX_READS_SAVED | OX_READS_WEIGHTS, .weight_count = 1,
                        .scratch = attend_scratch,
                        .forward = attend_forward, .backward = attend_backward, .cost = ox_cost_attend},
    [OX_NODE_RING] = {.reads = OX_READS_IN | OX_READS_OUT | OX_READS_SAVED | OX_READS_WEIGHTS, .weight_count = 1,
                      .scratch = ox_ring_scratch, .parts = ox_ring_parts, .forward = ox_ring_forward,
                      .backward = ox_ring_backward, .cost = ox_cost_attend},
    [OX_NODE_LOOKUP] = {.reads = OX_READS_IN, .may_skip_din = true, .only_adds = true, .weight_count = 2,
                        .scratch = ox_lookup_scratch, .parts = ox_lookup_parts, .forward = ox_lookup_forward,
                        .backward = ox_lookup_backward, .cost = ox_cost_lookup},
    [OX_NODE_LOOKUP_LOW] = {.reads = OX_READS_IN, .may_skip_din = true, .only_adds = true, .in_residual = true,
                            .weight_count = 2, .scratch = ox_lookup_low_scratch, .forward = ox_lookup_low_forward,
                            .backward = ox_lookup_low_backward, .cost = ox_cost_lookup_low},
    [OX_NODE_SCALE] = {.over = OX_OVER_DOUT, .forward = ox_scale_forward, .backward = ox_scale_backward,
                       .cost = ox_cost_scale},
    [OX_NODE_CAST] = {.forward = ox_cast_forward, .cost = ox_cost_cast},
    [OX_NODE_LOSS] = {.reads = OX_READS_IN, .may_skip_din = true, .may_replace_dout = true, .weight_count = 3,
                      .scratch = ox_loss_scratch, .parts = ox_loss_parts, .forward = ox_loss_forward,
                      .backward = ox_loss_backward, .cost = ox_cost_loss},
    [OX_NODE_SPLICE] = {.may_skip_din = true, .adds = true, .forward = splice_forward, .backward = splice_backward,
                        .cost = ox_cost_splice},
    [OX_NODE_ALL_ROWS] = {.adds = true, .ends = OX_ENDS_BEHIND, .scratch = ox_all_rows_scratch,
                          .forward = ox_all_rows_forward, .backward = ox_all_rows_backward, .cost = ox_all_rows_cost},
    [OX_NODE_TO_HEADS] = {.ends = OX_ENDS_BEHIND, .scratch = ox_exchange_heads_scratch,
                          .forward = ox_to_heads_forward, .backward = ox_to_heads_backward,
                          .cost = ox_exchange_heads_cost},
    [OX_NODE_TO_ROWS] = {.ends = OX_ENDS_BEFORE, .scratch = ox_exchange_heads_scratch, .forward = ox_to_rows_forward,
                         .backward = ox_to_rows_backward, .cost = ox_exchange_heads_cost},
    [OX_NODE_ACT] = {.reads = OX_READS_IN, .over = OX_OVER_IN, .forward = act_forward, .backward = act_backward,
                     .cost = ox_cost_act},
    [OX_NODE_DROP] = {.may_skip_din = true, .adds = true, .forward = ox_drop_forward, .backward = ox_drop_backward,
                      .cost = ox_cost_drop},
    [OX_NODE_DOWN] = {.reads = OX_READS_IN, .reads_for_weights = OX_READS_IN, .may_skip_din = true, .adds = true,
                      .weight_count = 1, .scratch = ox_linear_group_scratch, .parts = ox_linear_group_parts,
                      .forward = ox_down_forward, .backward = ox_down_backward, .cost = ox_cost_down},
    [OX_NODE_DORA] = {.reads = OX_READS_IN | OX_READS_SAVED, .reads_for_weights = OX_READS_IN,
                      .may_replace_dout = true, .weight_count = 1, .forward = ox_dora_forward,
                      .backward = ox_dora_backward, .cost = ox_cost_dora},
    [OX_NODE_UP] = {.reads = OX_READS_IN, .reads_for_weights = OX_READS_IN, .in_residual = true, .weight_count = 1,
                    .scratch = ox_linear_group_scratch, .parts = ox_linear_group_parts, .forward = ox_up_forward,
                    .backward = ox_up_backward, .cost = ox_cost_up},
};
