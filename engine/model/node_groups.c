/* What nodes do with groups of features (groups.h). A value that is cut has the rows of one group behind those of the
 * other. Sums over groups are float32 and added in a tree. So what a group makes, and what is added in which order,
 * depends on the number of groups alone. */
#include "engine/model/node_groups.h"

#include "base/assert.h"
#include "base/bytes.h"

enum { ALIGN_BYTES = 64 };

/* ---- sums ---- */

/* Sums that wait at the same time. */
static uint32_t depth_of(uint32_t groups) {
    uint32_t depth = 1;
    for (; groups > 1; groups /= 2) {
        depth++;
    }
    return depth;
}

uint64_t ox_group_sum_bytes(uint32_t groups, uint64_t count) {
    return depth_of(groups) * count * sizeof(float);
}

float *ox_group_sum_next(const struct ox_group_sum *sum) {
    return sum->room + sum->depth * sum->count;
}

static void fold(struct ox_group_sum *sum) {
    float *const lower = sum->room + (sum->depth - 2) * sum->count;
    OX_RUN(sum->run, add, .target = lower, .a = lower, .b = lower + sum->count, .count = sum->count);
    sum->depth--;
}

void ox_group_sum_add(struct ox_group_sum *sum) {
    sum->depth++;
    sum->added++;
    for (uint32_t rest = sum->added; rest % 2 == 0; rest /= 2) {
        fold(sum);
    }
}

const float *ox_group_sum_end(struct ox_group_sum *sum) {
    while (sum->depth > 1) {
        fold(sum);
    }
    return sum->room;
}

/* ---- sums in parts ---- */

struct ox_own_rows ox_group_rows(const struct ox_shape *shape, uint32_t group) {
    const uint32_t each = (uint32_t)ox_div_up(shape->rows, ox_model_groups(&shape->model->config));
    const uint32_t first = (uint32_t)ox_min_u64((uint64_t)group * each, shape->rows);
    return (struct ox_own_rows){.first = first, .count = (uint32_t)ox_min_u64(each, shape->rows - first),
                                .most = each};
}

struct ox_own_rows ox_own_rows_of(const struct ox_shape *shape) {
    const uint32_t tensors = ox_shape_tensors(shape), groups = ox_shape_own_features(shape);
    if (tensors == 1) {
        return (struct ox_own_rows){.count = shape->rows, .most = shape->rows};
    }
    const struct ox_own_rows rows = ox_group_rows(shape, shape->features.first); /* and those of groups behind it */
    const uint32_t most = rows.most * groups;
    return (struct ox_own_rows){.first = rows.first, .most = most,
                                .count = (uint32_t)ox_min_u64(most, shape->rows - rows.first)};
}

/* Elements of what crosses, in pieces of the same size. */
static uint64_t crossing_elems(const struct ox_shape *shape, uint64_t width) {
    return ox_own_rows_of(shape).most * ox_shape_tensors(shape) * width;
}

struct ox_joined_sum ox_joined_sum_of(const struct ox_shape *shape, uint64_t width) {
    const uint64_t bytes = crossing_elems(shape, width) * sizeof(float);
    const uint64_t own = ox_group_sum_bytes(ox_shape_own_features(shape), shape->rows * width);
    struct ox_joined_sum room = {.bytes = own};
    if (ox_shape_tensors(shape) > 1) {
        room.pieces = ox_align_up(ox_max_u64(own, bytes), ALIGN_BYTES);
        room.bytes = room.pieces + ox_align_up(bytes, ALIGN_BYTES);
    }
    return room;
}

uint32_t ox_joined_sum_cuts(const struct ox_shape *shape, uint64_t width, uint64_t at, struct ox_node_cut_at *out) {
    out[0] = (struct ox_node_cut_at){.kind = OX_CUT_EXCHANGE, .source = at,
                                     .target = at + ox_joined_sum_of(shape, width).pieces,
                                     .bytes = crossing_elems(shape, width) * sizeof(float)};
    return 1;
}

uint64_t ox_whole_rows_bytes(const struct ox_shape *shape, uint64_t width) {
    return crossing_elems(shape, width) * ox_real_bytes(shape->compute.real);
}

uint32_t ox_whole_rows_cuts(const struct ox_shape *shape, uint64_t width, uint64_t at, struct ox_node_cut_at *out) {
    out[0] = (struct ox_node_cut_at){.kind = OX_CUT_GATHER, .source = at, .target = at,
                                     .bytes = ox_whole_rows_bytes(shape, width)};
    return 1;
}

void ox_whole_rows_give(const struct ox_node_call *call, const void *own_rows, uint64_t width, void *whole) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_own_rows own = ox_own_rows_of(shape);
    const uint64_t row_bytes = width * ox_real_bytes(shape->compute.real);
    if (own.count > 0) {
        OX_RUN(&call->job->run, add, .target = (unsigned char *)whole + own.first * row_bytes, .b = own_rows,
               .count = own.count * width, .real = shape->compute.real);
    }
}

void ox_add_pieces(struct ox_run *run, void *pieces, uint32_t count, uint64_t elems, enum ox_real real) {
    const uint64_t apart = elems * ox_real_bytes(real);
    const struct ox_sums order = {.micro_batches = count, .groups = count, .ranks = 1};
    uint32_t stack[OX_TENSOR_GROUPS_MAX], depth = 0;
    for (uint32_t i = 0; i < count; i++) {
        stack[depth++] = i;
        for (uint32_t folds = ox_sums_folds(&order, i); folds > 0; folds--, depth--) {
            void *const lower = (unsigned char *)pieces + stack[depth - 2] * apart;
            OX_RUN(run, add, .target = lower, .a = lower, .b = (unsigned char *)pieces + stack[depth - 1] * apart,
                   .count = elems, .real = real);
        }
    }
    OX_ASSERT(depth == 1);
}

static struct ox_run *run_of(const struct ox_node_call *call) {
    return &call->job->run;
}

static void settle(const struct ox_node_call *call, struct ox_op_settle op) {
    op.real = call->job->shape->compute.real;
    OX_THEN(run_of(call)->status, OX_QUEUE(run_of(call)->ops, run_of(call)->lane, settle, &op));
}

void ox_joined_sum_end(const struct ox_node_call *call, struct ox_group_sum *sum, uint32_t part,
                       struct ox_op_settle op) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_joined_sum room = ox_joined_sum_of(shape, op.cols);
    const uint32_t tensors = ox_shape_tensors(shape);
    const struct ox_own_rows own = ox_own_rows_of(shape);
    unsigned char *const base = (unsigned char *)sum->room;
    op.rows = own.count;
    if (part == 0) {
        op.in = ox_group_sum_end(sum);
    }
    if (part == 1) {
        ox_add_pieces(run_of(call), base + room.pieces, tensors, (uint64_t)own.most * op.cols, OX_REAL_F32);
        op.in = (const float *)(const void *)(base + room.pieces);
    }
    if ((tensors == 1 || part == 1) && op.rows > 0) {
        settle(call, op);
    }
}

/* ---- parts of values ---- */

void *ox_node_at(const struct ox_node_call *call, const void *rows, uint64_t elems) {
    return rows == NULL ? NULL
                        : (unsigned char *)(uintptr_t)rows + elems * ox_real_bytes(call->job->shape->compute.real);
}

void *ox_node_group(const struct ox_node_call *call, const void *rows, uint32_t width, uint32_t group) {
    return ox_node_at(call, rows, (uint64_t)(group - call->list->group_first) * call->job->shape->rows * width);
}

float *ox_node_group_floats(const struct ox_node_call *call, const float *rows, uint32_t width, uint32_t group) {
    const uint64_t elems = (uint64_t)(group - call->list->group_first) * call->job->shape->rows * width;
    return rows == NULL ? NULL : (float *)(uintptr_t)rows + elems;
}

/* ---- places of gradients of weights that are not cut ---- */

/* Where they lie behind the room of the operation: with several ranks those of all groups, one behind the other, else
 * sums. */
static uint64_t vectors_at(const struct ox_shape *shape, uint32_t cols) {
    return ox_align_up(ox_ops_norm_scratch_bytes(&shape->compute, cols), sizeof(double) * 8);
}

/* With several ranks. */
static uint64_t vectors_bytes(const struct ox_shape *shape, uint32_t cols, uint32_t vectors) {
    return ox_model_groups(&shape->model->config) * (uint64_t)cols * vectors * sizeof(float);
}

uint64_t ox_norm_group_scratch(const struct ox_shape *shape, uint32_t cols, uint32_t vectors) {
    return vectors_at(shape, cols) +
           (ox_shape_tensors(shape) > 1
                ? vectors_bytes(shape, cols, vectors)
                : ox_group_sum_bytes(ox_model_groups(&shape->model->config), (uint64_t)cols * vectors));
}

static uint32_t vectors_cuts(const struct ox_shape *shape, uint32_t cols, uint32_t vectors,
                             struct ox_node_cut_at out[OX_NODE_CUTS_MAX]) {
    const uint64_t at = vectors_at(shape, cols);
    out[0] = (struct ox_node_cut_at){.kind = OX_CUT_GATHER, .source = at, .target = at,
                                     .bytes = vectors_bytes(shape, cols, vectors)};
    return 1;
}

/* ---- linear ---- */

static enum ox_role bias_of(const struct ox_node *node) {
    return (enum ox_role)(node->role + 1);
}

/* Whether every rank multiplies its own rows with a weight that is not cut: on that side of adapters where they lie. */
static bool is_of_own_rows(const struct ox_node *node) {
    return (node->kind == OX_NODE_DOWN && node->cut == OX_CUT_COLUMNS) ||
           (node->kind == OX_NODE_UP && node->cut == OX_CUT_ROWS);
}

static bool sums_over_groups(const struct ox_node *node, bool backward) {
    return node->cut == (backward ? OX_CUT_COLUMNS : OX_CUT_ROWS);
}

/* With several ranks a sum over groups in two parts; rows of the gradient of such a sum are put together first. */
uint64_t ox_linear_group_scratch(const struct ox_shape *shape, const struct ox_node *node, bool backward) {
    const uint32_t width = backward ? node->in_count : node->out_count;
    const bool gathers = backward && node->cut == OX_CUT_ROWS && ox_shape_tensors(shape) > 1;
    return is_of_own_rows(node) ? (backward ? ox_norm_group_scratch(shape, node->in_count, node->out_count) : 0)
           : gathers ? ox_whole_rows_bytes(shape, node->out_count)
           : sums_over_groups(node, backward) ? ox_joined_sum_of(shape, width).bytes : 0;
}

/* What columns are multiplied with has all rows, and is saved. */
uint32_t ox_linear_group_parts(const struct ox_list *list, const struct ox_node *node, bool backward, bool din,
                               struct ox_node_cut_at out[OX_NODE_CUTS_MAX]) {
    const uint32_t width = backward ? node->in_count : node->out_count;
    if (is_of_own_rows(node)) {
        vectors_cuts(list->shape, node->in_count, node->out_count, out);
        return backward && ox_list_trains(list, node->role) ? 1 : 0;
    }
    if (sums_over_groups(node, backward)) {
        return !backward || din ? ox_joined_sum_cuts(list->shape, width, 0, out) : 0;
    }
    if (node->cut == OX_CUT_NONE) {
        return 0;
    }
    ox_whole_rows_cuts(list->shape, width, 0, out);
    out[0].saved = node->cut == OX_CUT_COLUMNS;
    out[0].bytes = ox_whole_rows_bytes(list->shape, backward ? node->out_count : node->in_count);
    return 1;
}

static struct ox_group_sum begin_sum(const struct ox_node_call *call, uint64_t count) {
    return (struct ox_group_sum){.run = &call->job->run, .room = call->scratch, .count = count};
}

/* What a product reads: all rows of its columns' input, or what the rank's groups have made. */
static const void *in_of(const struct ox_node_call *call) {
    return call->node->saved[0] != OX_NO_VALUE ? call->saved[0] : call->in;
}

static enum ox_weight_layout layout_of(const struct ox_node_call *call) {
    return call->node->kind == OX_NODE_LINEAR ? call->job->shape->model->config.layout : OX_WEIGHT_OUT_IN;
}

/* The number of the part in which the products are made: with several ranks rows may have to come together first. */
static uint32_t products_at(const struct ox_node_call *call, bool backward) {
    return ox_shape_tensors(call->job->shape) > 1 && !sums_over_groups(call->node, backward);
}

void ox_linear_groups_forward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_node *const node = call->node;
    const uint32_t groups = call->list->groups, products = products_at(call, false);
    const bool columns = node->cut == OX_CUT_COLUMNS, biased = node->kind == OX_NODE_LINEAR;
    const uint32_t in = columns ? node->in_count : node->in_count / groups;
    const uint32_t out = columns ? node->out_count / groups : node->out_count;
    struct ox_group_sum sum = begin_sum(call, (uint64_t)shape->rows * out);
    OX_ASSERT(node->stride == 0 && (!columns || call->residual == NULL));
    if (call->part < products) {
        ox_whole_rows_give(call, call->in, in, call->saved[0]);
        return;
    }
    for (uint32_t g = call->list->group_first; g < call->list->group_past && call->part == products; g++) {
        OX_RUN(&call->job->run, linear_forward,
               .out = columns ? ox_node_group(call, call->out, out, g) : ox_group_sum_next(&sum),
               .in = columns ? in_of(call) : ox_node_group(call, call->in, in, g),
               .weight = ox_node_weight_of(call, node->role, g),
               .bias = columns ? ox_node_weight_of(call, bias_of(node), g) : NULL, .rows = shape->rows,
               .in_count = in, .out_count = out, .layout = layout_of(call), .real = shape->compute.real,
               .wide = !columns);
        if (!columns) {
            ox_group_sum_add(&sum);
        }
    }
    if (!columns) {
        ox_joined_sum_end(call, &sum, call->part,
                          (struct ox_op_settle){.out = call->out, .residual = call->residual, .cols = out,
                                                .bias = biased ? ox_node_weight(call, bias_of(node)) : NULL});
    }
}

void ox_linear_groups_backward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_node *const node = call->node;
    const uint32_t groups = call->list->groups, products = products_at(call, true);
    const bool columns = node->cut == OX_CUT_COLUMNS, biased = node->kind == OX_NODE_LINEAR;
    const uint32_t in = columns ? node->in_count : node->in_count / groups;
    const uint32_t out = columns ? node->out_count / groups : node->out_count;
    const void *const dout = products > 0 ? call->scratch : call->dout;
    struct ox_group_sum sum = begin_sum(call, (uint64_t)shape->rows * in);
    if (call->part < products) {
        ox_whole_rows_give(call, call->dout, out, call->scratch);
        return;
    }
    for (uint32_t g = call->list->group_first; g < call->list->group_past && call->part == products; g++) {
        void *const din = columns ? (void *)ox_group_sum_next(&sum) : ox_node_group(call, call->din, in, g);
        /* the bias of a sum over groups is not cut: the rank's first product makes its gradient */
        OX_RUN(&call->job->run, linear_backward, .din = call->din == NULL ? NULL : din,
               .dweight = ox_node_grad_of(call, node->role, g),
               .dbias = biased && (columns || g == call->list->group_first) ? ox_node_grad_of(call, bias_of(node), g)
                                                                            : NULL,
               .dout = columns ? ox_node_group(call, dout, out, g) : dout,
               .in = columns ? in_of(call) : ox_node_group(call, call->in, in, g),
               .weight = ox_node_weight_of(call, node->role, g),
               .residual = columns ? NULL : ox_node_group(call, call->dresidual, in, g), .rows = shape->rows,
               .in_count = in, .out_count = out, .layout = layout_of(call), .real = shape->compute.real,
               .begins = call->job->begins, .wide = columns);
        if (columns && call->din != NULL) {
            ox_group_sum_add(&sum);
        }
    }
    if (columns && call->din != NULL) {
        ox_joined_sum_end(call, &sum, call->part,
                          (struct ox_op_settle){.out = call->din, .residual = call->dresidual, .cols = in});
    }
}

/* ---- gradients of weights that are not cut ---- */

uint32_t ox_head_norm_group_parts(const struct ox_list *list, const struct ox_node *node, bool backward, bool din,
                                  struct ox_node_cut_at out[OX_NODE_CUTS_MAX]) {
    (void)din;
    vectors_cuts(list->shape, node->in_count, 1, out);
    return backward && ox_list_trains(list, node->role) ? 1 : 0;
}

/* The gradients that a norm has: of its gain, and behind it of its bias. */
uint32_t ox_norm_group_parts(const struct ox_list *list, const struct ox_node *node, bool backward, bool din,
                             struct ox_node_cut_at out[OX_NODE_CUTS_MAX]) {
    const bool biased = ox_list_trains(list, bias_of(node));
    (void)din;
    vectors_cuts(list->shape, node->in_count, biased ? 2 : 1, out);
    return backward && (biased || ox_list_trains(list, node->role)) ? 1 : 0;
}

/* The gradient of a weight that is not cut, to which each group adds what it has made of its rows, or of its heads: in
 * the tree of one rank, or once those of all ranks are together. */
struct vectors {
    const struct ox_node_call *call;
    struct ox_group_sum sum;
    bool apart;
};

static struct vectors begin_vectors(const struct ox_node_call *call, uint32_t cols, uint32_t count) {
    float *const room = (float *)(void *)((unsigned char *)call->scratch + vectors_at(call->job->shape, cols));
    return (struct vectors){.call = call, .apart = ox_shape_tensors(call->job->shape) > 1,
                            .sum = {.run = run_of(call), .room = room, .count = (uint64_t)cols * count}};
}

/* Where a group makes its own, which take_vector then takes; of a group without rows that is zeros. */
static float *next_vector(const struct vectors *vectors, uint32_t group) {
    return vectors->apart ? vectors->sum.room + group * vectors->sum.count : ox_group_sum_next(&vectors->sum);
}

static void take_vector(struct vectors *vectors, uint32_t group, bool has_rows) {
    if (!has_rows) {
        OX_RUN(run_of(vectors->call), zero, .target = next_vector(vectors, group),
               .bytes = vectors->sum.count * sizeof(float));
    }
    if (!vectors->apart) {
        ox_group_sum_add(&vectors->sum);
    }
}

/* NULL: they are not yet together. */
static const float *end_vectors(struct vectors *vectors) {
    const struct ox_node_call *const call = vectors->call;
    if (vectors->apart && call->part > 0) {
        ox_add_pieces(run_of(call), vectors->sum.room, call->list->groups, vectors->sum.count, OX_REAL_F32);
    }
    return !vectors->apart ? ox_group_sum_end(&vectors->sum) : call->part > 0 ? vectors->sum.room : NULL;
}

/* Sets the gradient of a weight, or adds to it, where it is trained. */
static void take_sum(const struct ox_node_call *call, float *grad, const float *sum, uint64_t count) {
    if (grad != NULL) {
        OX_RUN(&call->job->run, add, .target = grad, .a = call->job->begins ? NULL : grad, .b = sum, .count = count);
    }
}

/* The rows of one group, which lie among those of the rank. */
static struct ox_op_norm_backward norm_of_group(const struct ox_node_call *call, const struct ox_op_norm_backward *all,
                                                uint32_t group, float *partial) {
    const struct ox_own_rows rows = ox_group_rows(call->job->shape, group);
    const uint64_t width = all->cols * ox_real_bytes(all->real);
    const uint64_t begin = rows.first - ox_own_rows_of(call->job->shape).first;
    struct ox_op_norm_backward op = *all;
    op.rows = rows.count;
    op.din = (unsigned char *)all->din + begin * width;
    op.residual = all->residual == NULL ? NULL : (const unsigned char *)all->residual + begin * width;
    op.dout = (const unsigned char *)all->dout + begin * width;
    op.in = (const unsigned char *)all->in + begin * width;
    op.mean = all->mean == NULL ? NULL : all->mean + begin;
    op.rstd = all->rstd + begin;
    op.dgain = partial;
    op.dbias = all->dbias != NULL ? partial + op.cols : NULL;
    op.begins = true;
    return op;
}

void ox_norm_groups_backward(const struct ox_node_call *call, struct ox_op_norm_backward op) {
    struct vectors vectors = begin_vectors(call, op.cols, op.dbias != NULL ? 2 : 1);
    for (uint32_t g = call->list->group_first; g < call->list->group_past && call->part == 0; g++) {
        const struct ox_op_norm_backward of = norm_of_group(call, &op, g, next_vector(&vectors, g));
        if (of.rows > 0) {
            OX_THEN(call->job->run.status, OX_QUEUE(call->job->run.ops, call->job->run.lane, norm_backward, &of));
        }
        take_vector(&vectors, g, of.rows > 0);
    }
    const float *const total = end_vectors(&vectors);
    if (total != NULL) {
        take_sum(call, op.dgain, total, op.cols);
        take_sum(call, op.dbias, total + vectors.sum.count - op.cols, op.cols);
    }
}

void ox_head_norm_groups_backward(const struct ox_node_call *call, struct ox_op_head_norm_backward op) {
    const struct ox_op_head_norm_backward all = op;
    struct vectors vectors = begin_vectors(call, op.head_dim, 1);
    for (uint32_t g = call->list->group_first; g < call->list->group_past && call->part == 0; g++) {
        op.dinout = ox_node_group(call, all.dinout, all.row_stride, g);
        op.saved = ox_node_group(call, all.saved, all.heads * all.head_dim, g);
        op.rstd = ox_node_group_floats(call, all.rstd, all.heads, g);
        op.dgain = all.dgain == NULL ? NULL : next_vector(&vectors, g);
        op.begins = true;
        OX_THEN(call->job->run.status, OX_QUEUE(call->job->run.ops, call->job->run.lane, head_norm_backward, &op));
        if (all.dgain != NULL) {
            take_vector(&vectors, g, true);
        }
    }
    const float *const total = all.dgain == NULL ? NULL : end_vectors(&vectors);
    if (total != NULL) {
        take_sum(call, all.dgain, total, all.head_dim);
    }
}

/* ---- the gate of the expert of all tokens, which is not cut either ---- */

uint64_t ox_gate_group_scratch(const struct ox_shape *shape, const struct ox_node *node) {
    return ox_align_up(ox_norm_group_scratch(shape, node->in_count, 1), ALIGN_BYTES);
}

/* Rows from `first` on, of `width` elements each. */
static void *rows_of(const struct ox_node_call *call, const void *rows, uint64_t first, uint32_t width) {
    return ox_node_at(call, rows, first * width);
}

void ox_gate_groups_forward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    for (uint32_t g = call->list->group_first; g < call->list->group_past; g++) {
        const struct ox_own_rows rows = ox_group_rows(shape, g);
        const uint64_t begin = rows.first - ox_own_rows_of(shape).first;
        if (rows.count > 0) {
            OX_RUN(run_of(call), router_forward, .logits = (float *)call->out + begin,
                   .in = rows_of(call, call->in, begin, call->node->in_count),
                   .weight = ox_node_weight(call, call->node->role),
                   .rows = rows.count, .in_count = call->node->in_count, .experts = 1, .real = shape->compute.real);
        }
    }
}

void ox_gate_groups_backward(const struct ox_node_call *call, struct ox_op_router_backward op) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_op_router_backward all = op;
    struct vectors vectors = begin_vectors(call, op.in_count, 1);
    OX_ASSERT(op.experts == 1 && op.dbias == NULL);
    op.scratch = (unsigned char *)call->scratch + ox_gate_group_scratch(shape, call->node);
    op.begins = true;
    for (uint32_t g = call->list->group_first; g < call->list->group_past && call->part == 0; g++) {
        const struct ox_own_rows rows = ox_group_rows(shape, g);
        const uint64_t begin = rows.first - ox_own_rows_of(shape).first;
        op.rows = rows.count;
        op.din = rows_of(call, all.din, begin, op.in_count);
        op.residual = rows_of(call, all.residual, begin, op.in_count);
        op.in = rows_of(call, all.in, begin, op.in_count);
        op.dlogits = all.dlogits + begin;
        op.dweight = all.dweight == NULL ? NULL : next_vector(&vectors, g);
        if (rows.count > 0) {
            OX_THEN(run_of(call)->status, OX_QUEUE(run_of(call)->ops, run_of(call)->lane, router_backward, &op));
        }
        if (all.dweight != NULL) {
            take_vector(&vectors, g, rows.count > 0);
        }
    }
    const float *const total = all.dweight == NULL ? NULL : end_vectors(&vectors);
    if (total != NULL) {
        take_sum(call, all.dweight, total, op.in_count);
    }
}

/* ---- products of adapters: with a weight that is not cut of the rank's own rows, by group of rows, like the gate;
 * with the B of a matrix that is cut into columns, of all rows, each group to its own columns ---- */

void ox_own_rows_forward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_node *const node = call->node;
    for (uint32_t g = call->list->group_first; g < call->list->group_past; g++) {
        const struct ox_own_rows rows = ox_group_rows(shape, g);
        const uint64_t begin = rows.first - ox_own_rows_of(shape).first;
        if (rows.count > 0) {
            OX_RUN(run_of(call), linear_forward, .out = rows_of(call, call->out, begin, node->out_count),
                   .in = rows_of(call, call->in, begin, node->in_count), .weight = ox_node_weight(call, node->role),
                   .residual = rows_of(call, call->residual, begin, node->out_count), .rows = rows.count,
                   .in_count = node->in_count, .out_count = node->out_count, .scale = node->scale,
                   .layout = OX_WEIGHT_OUT_IN, .real = shape->compute.real);
        }
    }
}

void ox_own_rows_backward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_node *const node = call->node;
    const uint32_t in = node->in_count, out = node->out_count;
    float *const grad = ox_node_grad(call, node->role);
    struct vectors vectors = begin_vectors(call, in, out);
    for (uint32_t g = call->list->group_first; g < call->list->group_past && call->part == 0; g++) {
        const struct ox_own_rows rows = ox_group_rows(shape, g);
        const uint64_t begin = rows.first - ox_own_rows_of(shape).first;
        if (rows.count > 0) {
            OX_RUN(run_of(call), linear_backward, .din = rows_of(call, call->din, begin, in),
                   .dweight = grad == NULL ? NULL : next_vector(&vectors, g),
                   .dout = rows_of(call, call->dout, begin, out), .in = rows_of(call, call->in, begin, in),
                   .weight = ox_node_weight(call, node->role),
                   .residual = rows_of(call, call->dresidual, begin, in), .rows = rows.count, .in_count = in,
                   .out_count = out, .scale = node->scale, .layout = OX_WEIGHT_OUT_IN, .real = shape->compute.real,
                   .begins = true);
        }
        if (grad != NULL) {
            take_vector(&vectors, g, rows.count > 0);
        }
    }
    const float *const total = grad == NULL ? NULL : end_vectors(&vectors);
    if (total != NULL) {
        take_sum(call, grad, total, vectors.sum.count);
    }
}

void ox_up_columns_forward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_node *const node = call->node;
    const uint32_t out = node->out_count / call->list->groups, products = products_at(call, false);
    if (call->part < products) {
        ox_whole_rows_give(call, call->in, node->in_count, call->saved[0]);
        return;
    }
    for (uint32_t g = call->list->group_first; g < call->list->group_past; g++) {
        for (struct ox_adapter_part part = {.group = g}; ox_adapter_part_next(call->list, node->role, &part);) {
            void *const inout = ox_node_group(call, ox_node_at(call, call->out, part.out_first), out, g);
            OX_RUN(run_of(call), linear_forward, .out = inout, .in = ox_node_at(call, in_of(call), part.in_first),
                   .weight = ox_node_at(call, ox_node_weight_of(call, node->role, g), part.offset), .residual = inout,
                   .rows = shape->rows, .in_count = part.r, .out_count = part.out, .in_stride = node->in_count,
                   .out_stride = out, .scale = node->scale, .layout = OX_WEIGHT_OUT_IN, .real = shape->compute.real);
        }
    }
}

void ox_up_columns_backward(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_node *const node = call->node;
    const uint32_t out = node->out_count / call->list->groups;
    struct ox_group_sum sum = begin_sum(call, (uint64_t)shape->rows * node->in_count);
    for (uint32_t g = call->list->group_first; g < call->list->group_past && call->part == 0; g++) {
        float *const grad = ox_node_grad_of(call, node->role, g);
        const void *const in = in_of(call);
        for (struct ox_adapter_part part = {.group = g}; ox_adapter_part_next(call->list, node->role, &part);) {
            OX_RUN(run_of(call), linear_backward, .din = ox_group_sum_next(&sum) + part.in_first,
                   .dweight = grad == NULL ? NULL : grad + part.offset,
                   .dout = ox_node_group(call, ox_node_at(call, call->dout, part.out_first), out, g),
                   .in = ox_node_at(call, in, part.in_first),
                   .weight = ox_node_at(call, ox_node_weight_of(call, node->role, g), part.offset), .rows = shape->rows,
                   .in_count = part.r, .out_count = part.out, .in_stride = node->in_count, .out_stride = out,
                   .scale = node->scale, .layout = OX_WEIGHT_OUT_IN, .real = shape->compute.real,
                   .begins = call->job->begins, .wide = true);
        }
        ox_group_sum_add(&sum);
    }
    ox_joined_sum_end(call, &sum, call->part, (struct ox_op_settle){.out = call->din, .cols = node->in_count});
}

/* ---- the head ---- */

uint64_t ox_loss_group_rooms(const struct ox_shape *shape, const struct ox_node *node, void *base,
                             struct ox_loss_rooms *out) {
    const uint32_t groups = ox_model_groups(&shape->model->config), rows = shape->rows;
    const uint64_t parts = (uint64_t)groups * rows;
    const bool smooths = shape->objective.smoothing != 0.0f;
    const uint64_t pair_rows = shape->objective.pairs ? rows : 0;
    struct ox_bump room = {.base = base};
    out->rows_of.sum = ox_bump_alloc(&room, parts * sizeof(double));
    out->rows_of.total = ox_bump_alloc(&room, smooths ? parts * sizeof(double) : 0);
    out->row_losses = ox_bump_alloc(&room, 3 * (uint64_t)rows * sizeof(double));
    out->spare = ox_bump_alloc(&room, pair_rows > 0 ? sizeof(double) : 0);
    out->rows_of.max = ox_bump_alloc(&room, parts * sizeof(float));
    out->rows_of.target = ox_bump_alloc(&room, parts * sizeof(float));
    out->row_nll = ox_bump_alloc(&room, pair_rows * sizeof(float));
    out->row_weights = ox_bump_alloc(&room, pair_rows * sizeof(float));
    const uint64_t sum_bytes = ox_align_up(ox_joined_sum_of(shape, node->in_count).bytes, ALIGN_BYTES);
    ox_bump_alloc(&room, ox_align_up(room.bytes, ALIGN_BYTES) - room.bytes);
    out->sums_at = room.bytes;
    out->sums = ox_bump_alloc(&room, sum_bytes);
    out->whole = ox_bump_alloc(&room, ox_shape_tensors(shape) > 1
                                          ? ox_align_up(ox_whole_rows_bytes(shape, node->in_count), ALIGN_BYTES) : 0);
    uint64_t head_bytes = 0;
    for (uint32_t g = 0; g < groups; g++) {
        const uint32_t vocab = (uint32_t)(ox_groups_begin(node->out_count, groups, g + 1) -
                                          ox_groups_begin(node->out_count, groups, g));
        head_bytes = ox_max_u64(head_bytes, ox_ops_head_scratch_bytes(&shape->compute, rows, node->in_count, vocab));
    }
    out->head = ox_bump_alloc(&room, head_bytes);
    return room.bytes;
}

/* Each array has the rows of all groups, and the first of them begin the room. */
uint32_t ox_loss_group_cuts(const struct ox_shape *shape, const struct ox_node *node, struct ox_node_cut_at *out) {
    static unsigned char base[1]; /* for distances alone */
    const uint64_t parts = (uint64_t)ox_model_groups(&shape->model->config) * shape->rows;
    struct ox_loss_rooms rooms;
    ox_loss_group_rooms(shape, node, base, &rooms);
    out += ox_whole_rows_cuts(shape, node->in_count, (uintptr_t)rooms.whole - (uintptr_t)base, out);
    const struct {
        const void *array;
        uint64_t width;
    } arrays[] = {{rooms.rows_of.sum, sizeof(double)}, {rooms.rows_of.max, sizeof(float)},
                  {rooms.rows_of.target, sizeof(float)}, {rooms.rows_of.total, sizeof(double)}};
    const uint32_t count = shape->objective.smoothing != 0.0f ? 4 : 3;
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t at = (uint64_t)((uintptr_t)arrays[i].array - (uintptr_t)base);
        out[i] = (struct ox_node_cut_at){.kind = OX_CUT_GATHER, .source = at, .target = at,
                                         .bytes = parts * arrays[i].width};
    }
    return 1 + count;
}

/* The operation of a group: a part of the vocabulary. */
static struct ox_op_head of_group(const struct ox_node_call *call, const struct ox_op_head *whole,
                                  const struct ox_head_rows *rows_of, enum ox_head_part part, uint32_t g) {
    const uint32_t groups = call->list->groups;
    const struct ox_head_args *const args = call->job->head;
    const uint64_t at = part == OX_HEAD_STATISTICS ? (uint64_t)g * whole->rows : 0;
    struct ox_op_head op = *whole;
    op.part = part;
    op.first = (uint32_t)ox_groups_begin(whole->vocab, groups, g);
    op.vocab = (uint32_t)ox_groups_begin(whole->vocab, groups, g + 1) - op.first;
    op.vocab_whole = whole->vocab;
    op.weight_hi = args->tables[g].hi;
    op.weight_lo = args->tables[g].lo;
    op.rows_of = (struct ox_head_rows){.sum = rows_of->sum + at, .max = rows_of->max + at,
                                       .target = rows_of->target + at,
                                       .total = rows_of->total == NULL ? NULL : rows_of->total + at};
    op.logits = part == OX_HEAD_STATISTICS ? whole->logits : NULL;
    op.din = NULL;
    op.dweight = NULL;
    return op;
}

void ox_loss_groups_statistics(const struct ox_node_call *call, const struct ox_op_head *whole,
                               const struct ox_loss_rooms *rooms) {
    const bool smooths = whole->smoothing != 0.0f;
    struct ox_head_rows rows_of = rooms->rows_of;
    rows_of.total = smooths ? rows_of.total : NULL;
    for (uint32_t g = call->list->group_first; g < call->list->group_past; g++) {
        const struct ox_op_head op = of_group(call, whole, &rows_of, OX_HEAD_STATISTICS, g);
        OX_THEN(call->job->run.status, OX_QUEUE(call->job->run.ops, call->job->run.lane, head, &op));
    }
}

void ox_loss_groups_merge(const struct ox_node_call *call, const struct ox_op_head *whole,
                          const struct ox_loss_rooms *rooms) {
    const bool smooths = whole->smoothing != 0.0f;
    struct ox_head_rows rows_of = rooms->rows_of;
    rows_of.total = smooths ? rows_of.total : NULL;
    OX_RUN(&call->job->run, head_merge, .loss_sum = whole->loss_sum, .row_nll = whole->row_nll,
           .parts = whole->parts, .row_losses = rooms->row_losses, .targets = whole->targets, .all = rows_of,
           .part = rows_of, .part_count = call->list->groups, .rows = whole->rows, .vocab_whole = whole->vocab,
           .smoothing = whole->smoothing, .z_loss = whole->z_loss);
}

void ox_loss_groups_gradients(const struct ox_node_call *call, const struct ox_op_head *whole,
                              const struct ox_loss_rooms *rooms, uint32_t part) {
    struct ox_group_sum sum = {.run = &call->job->run, .room = (float *)(void *)rooms->sums,
                               .count = (uint64_t)whole->rows * whole->hidden};
    for (uint32_t g = call->list->group_first; g < call->list->group_past && part == 0; g++) {
        struct ox_op_head op = of_group(call, whole, &rooms->rows_of, OX_HEAD_GRADIENTS, g);
        op.din = whole->din == NULL ? NULL : ox_group_sum_next(&sum);
        op.dweight = call->job->head->grads_tables[g];
        if (op.din != NULL || op.dweight != NULL) {
            OX_THEN(call->job->run.status, OX_QUEUE(call->job->run.ops, call->job->run.lane, head, &op));
        }
        if (whole->din != NULL) {
            ox_group_sum_add(&sum);
        }
    }
    if (whole->din != NULL) {
        ox_joined_sum_end(call, &sum, part, (struct ox_op_settle){.out = whole->din, .cols = whole->hidden});
    }
}
