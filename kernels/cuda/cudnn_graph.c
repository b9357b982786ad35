/* Attention as a graph of GEMMs, sums and elementwise operations over the scores. cuDNN's engines recognise it as
 * attention and compute it without the scores in memory.
 *
 * The gradient of the queries is written by its GEMM itself. If all blocks sum it in fp32 at once, which is what cuDNN
 * does unless the graph prevents it, the order of the sums is left to chance, and no note of the engine tells. */
#include "kernels/cuda/cudnn_plan.h"

#include "base/assert.h"

#include <cudnn_backend.h>

enum { RANK = 4, OPERATIONS_MAX = 40, VIRTUAL_FIRST = 100, ALIGN_BYTES = 16, NO_AXIS = -1 };

struct graph {
    struct ox_cudnn_set *set;
    const struct ox_cudnn_case *of;
    int64_t batch, heads, kv_heads, seq, dim; /* shape of one slice */
    int64_t qkv_stride, out_stride; /* between rows */
    int64_t next_id;
    void *scale, *masked, *window; /* single values */
    void *operations[OPERATIONS_MAX];
    int64_t operation_count;
};

struct dims {
    int64_t count[RANK], stride[RANK];
};

/* ---- tensors ------------------------------------------------------------------------------------------ */

enum place { IN_MEMORY, WITHIN_GRAPH, BY_VALUE };

static void *tensor(struct graph *graph, int64_t id, cudnnDataType_t type, const struct dims *dims, enum place place) {
    static const int count_name[2] = {CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64};
    static const int stride_name[2] = {CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64};
    const int64_t align_bytes = type == CUDNN_DATA_BFLOAT16 ? ALIGN_BYTES : (int64_t)sizeof(float);
    const bool yes = true;
    struct ox_cudnn_set *const set = graph->set;
    void *const made = ox_cudnn_make(set, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    ox_cudnn_put(set, made, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, &type);
    ox_cudnn_put_all(set, made, count_name, RANK, dims->count);
    ox_cudnn_put_all(set, made, stride_name, RANK, dims->stride);
    ox_cudnn_put(set, made, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, &id);
    ox_cudnn_put(set, made, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, &align_bytes);
    if (place != IN_MEMORY) {
        ox_cudnn_put(set, made, place == BY_VALUE ? CUDNN_ATTR_TENSOR_IS_BY_VALUE : CUDNN_ATTR_TENSOR_IS_VIRTUAL,
                     CUDNN_TYPE_BOOLEAN, &yes);
    }
    ox_cudnn_finish(set, made);
    return made;
}

static struct dims dense(const struct graph *graph, int64_t heads, int64_t rows, int64_t cols) {
    return (struct dims){.count = {graph->batch, heads, rows, cols},
                         .stride = {heads * rows * cols, rows * cols, cols, 1}};
}

static struct dims turned(struct dims dims) {
    const struct dims was = dims;
    dims.count[2] = was.count[3];
    dims.count[3] = was.count[2];
    dims.stride[2] = was.stride[3];
    dims.stride[3] = was.stride[2];
    return dims;
}

/* Heads within rows of q | k | v, or of outputs. */
static struct dims within_rows(const struct graph *graph, int64_t heads, int64_t row_stride) {
    return (struct dims){.count = {graph->batch, heads, graph->seq, graph->dim},
                         .stride = {graph->seq * row_stride, graph->dim, row_stride, 1}};
}

static void *inner(struct graph *graph, cudnnDataType_t type, struct dims dims) {
    return tensor(graph, graph->next_id++, type, &dims, WITHIN_GRAPH);
}

static void *scores(struct graph *graph, cudnnDataType_t type) {
    return inner(graph, type, dense(graph, graph->heads, graph->seq, graph->seq));
}

static void *value(struct graph *graph, enum ox_cudnn_tensor id, cudnnDataType_t type) {
    const struct dims one = {.count = {1, 1, 1, 1}, .stride = {1, 1, 1, 1}};
    return tensor(graph, id, type, &one, BY_VALUE);
}

static void *queries(struct graph *graph, enum ox_cudnn_tensor id) {
    const struct dims dims = within_rows(graph, graph->heads, graph->qkv_stride);
    return tensor(graph, id, CUDNN_DATA_BFLOAT16, &dims, IN_MEMORY);
}

static void *outputs(struct graph *graph, enum ox_cudnn_tensor id) {
    const struct dims dims = within_rows(graph, graph->heads, graph->out_stride);
    return tensor(graph, id, CUDNN_DATA_BFLOAT16, &dims, IN_MEMORY);
}

static void *keys(struct graph *graph, enum ox_cudnn_tensor id, bool transposed) {
    const struct dims dims = within_rows(graph, graph->kv_heads, graph->qkv_stride), other = turned(dims);
    return tensor(graph, id, CUDNN_DATA_BFLOAT16, transposed ? &other : &dims, IN_MEMORY);
}

/* A slice that does not have all heads has one sequence only, so that values with one number per query are always
 * dense. */
static void *statistics(struct graph *graph, enum ox_cudnn_tensor id) {
    const struct dims dims = dense(graph, graph->heads, graph->seq, 1);
    return tensor(graph, id, CUDNN_DATA_FLOAT, &dims, IN_MEMORY);
}

/* ---- operations --------------------------------------------------------------------------------------- */

static void add(struct graph *graph, void *operation) {
    OX_ASSERT(graph->operation_count < OPERATIONS_MAX);
    ox_cudnn_finish(graph->set, operation);
    graph->operations[graph->operation_count++] = operation;
}

struct step {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t type; /* type of the arithmetic */
    void *a, *b, *select; /* b and select may be NULL */
    void *out;
    int64_t axis;
};

static void step(struct graph *graph, const struct step *step) {
    struct ox_cudnn_set *const set = graph->set;
    void *const kind = ox_cudnn_make(set, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    ox_cudnn_put(set, kind, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, &step->mode);
    ox_cudnn_put(set, kind, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, &step->type);
    if (step->axis != NO_AXIS) {
        ox_cudnn_put(set, kind, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, &step->axis);
    }
    ox_cudnn_finish(set, kind);
    void *const made = ox_cudnn_make(set, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    ox_cudnn_put_descriptor(set, made, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind);
    ox_cudnn_put_descriptor(set, made, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, step->a);
    if (step->b != NULL) {
        ox_cudnn_put_descriptor(set, made, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, step->b);
    }
    if (step->select != NULL) {
        ox_cudnn_put_descriptor(set, made, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, step->select);
    }
    ox_cudnn_put_descriptor(set, made, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, step->out);
    add(graph, made);
}

/* out = a (mode) b; returns out. */
static void *combine(struct graph *graph, cudnnPointwiseMode_t mode, void *a, void *b, void *out) {
    step(graph, &(struct step){.mode = mode, .type = CUDNN_DATA_FLOAT, .a = a, .b = b, .out = out, .axis = NO_AXIS});
    return out;
}

static void *gemm(struct graph *graph, void *a, void *b, void *out) {
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    struct ox_cudnn_set *const set = graph->set;
    void *const kind = ox_cudnn_make(set, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    ox_cudnn_put(set, kind, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &type);
    ox_cudnn_finish(set, kind);
    void *const made = ox_cudnn_make(set, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    ox_cudnn_put_descriptor(set, made, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    ox_cudnn_put_descriptor(set, made, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    ox_cudnn_put_descriptor(set, made, CUDNN_ATTR_OPERATION_MATMUL_CDESC, out);
    ox_cudnn_put_descriptor(set, made, CUDNN_ATTR_OPERATION_MATMUL_DESC, kind);
    add(graph, made);
    return out;
}

static void *reduce(struct graph *graph, cudnnReduceTensorOp_t how, void *in, void *out) {
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    struct ox_cudnn_set *const set = graph->set;
    void *const kind = ox_cudnn_make(set, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    ox_cudnn_put(set, kind, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, &how);
    ox_cudnn_put(set, kind, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &type);
    ox_cudnn_finish(set, kind);
    void *const made = ox_cudnn_make(set, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    ox_cudnn_put_descriptor(set, made, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, in);
    ox_cudnn_put_descriptor(set, made, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, out);
    ox_cudnn_put_descriptor(set, made, CUDNN_ATTR_OPERATION_REDUCTION_DESC, kind);
    add(graph, made);
    return out;
}

/* Another view of a tensor: its elements with other dimensions. */
static void *reshape(struct graph *graph, void *in, void *out) {
    void *const made = ox_cudnn_make(graph->set, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    ox_cudnn_put_descriptor(graph->set, made, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, in);
    ox_cudnn_put_descriptor(graph->set, made, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, out);
    add(graph, made);
    return out;
}

/* ---- what a query sees -------------------------------------------------------------------------------- */

static void *place(struct graph *graph, void *of, int64_t axis) {
    void *const out = scores(graph, CUDNN_DATA_INT32);
    step(graph, &(struct step){.mode = CUDNN_POINTWISE_GEN_INDEX, .type = CUDNN_DATA_FLOAT, .a = of, .out = out,
                               .axis = axis});
    return out;
}

/* Selects `in` where a (mode) b holds, else minus infinity. */
static void *masked(struct graph *graph, void *in, cudnnPointwiseMode_t mode, void *a, void *b) {
    void *const sees = scores(graph, CUDNN_DATA_BOOLEAN), *const out = scores(graph, CUDNN_DATA_FLOAT);
    step(graph, &(struct step){.mode = mode, .type = CUDNN_DATA_BOOLEAN, .a = a, .b = b, .out = sees,
                               .axis = NO_AXIS});
    step(graph, &(struct step){.mode = CUDNN_POINTWISE_BINARY_SELECT, .type = CUDNN_DATA_FLOAT, .a = in,
                               .b = graph->masked, .select = sees, .out = out, .axis = NO_AXIS});
    return out;
}

/* Masks keys after the query, then keys before its window. */
static void *seen(struct graph *graph, void *in) {
    enum { ROW = 2, COL = 3 };
    void *const row = place(graph, in, ROW), *const col = place(graph, in, COL);
    void *const causal = masked(graph, in, CUDNN_POINTWISE_CMP_GE, row, col);
    if (!ox_cudnn_has_window(&graph->of->shape)) {
        return causal;
    }
    void *const again_row = place(graph, causal, ROW), *const again_col = place(graph, causal, COL);
    void *const end = scores(graph, CUDNN_DATA_INT32);
    step(graph, &(struct step){.mode = CUDNN_POINTWISE_ADD, .type = CUDNN_DATA_INT32, .a = again_col,
                               .b = graph->window, .out = end, .axis = NO_AXIS});
    return masked(graph, causal, CUDNN_POINTWISE_CMP_GT, end, again_row);
}

/* ---- the passes --------------------------------------------------------------------------------------- */

static void *scaled(struct graph *graph, void *in) {
    return combine(graph, CUDNN_POINTWISE_MUL, in, graph->scale, scores(graph, CUDNN_DATA_FLOAT));
}

static void forward(struct graph *graph) {
    const struct dims column = dense(graph, graph->heads, graph->seq, 1);
    void *const score = gemm(graph, queries(graph, OX_CUDNN_Q), keys(graph, OX_CUDNN_K, true),
                                scores(graph, CUDNN_DATA_FLOAT));
    void *const all = seen(graph, scaled(graph, score));
    void *const max = reduce(graph, CUDNN_REDUCE_TENSOR_MAX, all, inner(graph, CUDNN_DATA_FLOAT, column));
    void *const below = combine(graph, CUDNN_POINTWISE_SUB, all, max, scores(graph, CUDNN_DATA_FLOAT));
    void *const weight = combine(graph, CUDNN_POINTWISE_EXP, below, NULL, scores(graph, CUDNN_DATA_FLOAT));
    void *const sum = reduce(graph, CUDNN_REDUCE_TENSOR_ADD, weight, inner(graph, CUDNN_DATA_FLOAT, column));
    void *const log = combine(graph, CUDNN_POINTWISE_LOG, sum, NULL, inner(graph, CUDNN_DATA_FLOAT, column));
    combine(graph, CUDNN_POINTWISE_ADD, max, log, statistics(graph, OX_CUDNN_LSE));
    void *const share = combine(graph, CUDNN_POINTWISE_DIV, weight, sum, scores(graph, CUDNN_DATA_BFLOAT16));
    gemm(graph, share, keys(graph, OX_CUDNN_V, false), outputs(graph, OX_CUDNN_OUT));
}

/* Gradients of keys or values: first per query head, then summed over the query heads that share one. */
static void key_gradient(struct graph *graph, void *of_scores, void *by_query, enum ox_cudnn_tensor id) {
    const struct dims rows = dense(graph, graph->heads, graph->seq, graph->dim);
    void *const by_key = reshape(graph, of_scores,
                                 inner(graph, CUDNN_DATA_BFLOAT16,
                                       turned(dense(graph, graph->heads, graph->seq, graph->seq))));
    void *const out = keys(graph, id, false);
    if (graph->heads == graph->kv_heads) {
        gemm(graph, by_key, by_query, out);
        return;
    }
    void *const each = gemm(graph, by_key, by_query, inner(graph, CUDNN_DATA_BFLOAT16, rows));
    reduce(graph, CUDNN_REDUCE_TENSOR_ADD, each, out);
}

/* Per query, the sum over a row of gradient times output. */
static void *row_sums(struct graph *graph, void *dout) {
    void *const both = combine(graph, CUDNN_POINTWISE_MUL, dout, outputs(graph, OX_CUDNN_OUT),
                               inner(graph, CUDNN_DATA_FLOAT, within_rows(graph, graph->heads, graph->out_stride)));
    void *const sum = reduce(graph, CUDNN_REDUCE_TENSOR_ADD, both,
                             inner(graph, CUDNN_DATA_FLOAT, dense(graph, graph->heads, graph->seq, 1)));
    return combine(graph, CUDNN_POINTWISE_MUL, sum, value(graph, OX_CUDNN_ONE, CUDNN_DATA_FLOAT),
                   statistics(graph, OX_CUDNN_SUMS));
}

static void backward(struct graph *graph) {
    void *const q = queries(graph, OX_CUDNN_Q), *const k = keys(graph, OX_CUDNN_K, true);
    void *const dout = outputs(graph, OX_CUDNN_DOUT), *const sums = row_sums(graph, dout);
    void *const score = scaled(graph, gemm(graph, q, k, scores(graph, CUDNN_DATA_FLOAT)));
    void *const below = combine(graph, CUDNN_POINTWISE_SUB, score, statistics(graph, OX_CUDNN_LSE),
                                scores(graph, CUDNN_DATA_FLOAT));
    void *const share = combine(graph, CUDNN_POINTWISE_EXP, seen(graph, below), NULL,
                                scores(graph, CUDNN_DATA_FLOAT));
    key_gradient(graph, share, dout, OX_CUDNN_DV);
    void *const dshare = gemm(graph, dout, keys(graph, OX_CUDNN_V, true), scores(graph, CUDNN_DATA_FLOAT));
    void *const centred = combine(graph, CUDNN_POINTWISE_SUB, dshare, sums, scores(graph, CUDNN_DATA_FLOAT));
    void *const slope = scaled(graph, combine(graph, CUDNN_POINTWISE_MUL, centred, share,
                                              scores(graph, CUDNN_DATA_FLOAT)));
    key_gradient(graph, slope, q, OX_CUDNN_DK);
    void *const plain_k = reshape(graph, k, inner(graph, CUDNN_DATA_BFLOAT16,
                                                  within_rows(graph, graph->kv_heads, graph->qkv_stride)));
    gemm(graph, slope, plain_k, queries(graph, OX_CUDNN_DQ));
}

void *ox_cudnn_graph(struct ox_cudnn_set *set, const struct ox_cudnn_case *of) {
    static const int operations_name[2] = {CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR};
    const struct ox_attention_shape *const shape = &of->shape;
    struct graph graph = {
        .set = set, .of = of, .batch = of->batch, .kv_heads = of->kv_heads,
        .heads = (int64_t)of->kv_heads * (shape->heads / shape->kv_heads), .seq = shape->seq, .dim = shape->head_dim,
        .qkv_stride = ((int64_t)shape->heads + 2 * shape->kv_heads) * shape->head_dim,
        .out_stride = (int64_t)shape->heads * shape->head_dim, .next_id = VIRTUAL_FIRST};
    graph.scale = value(&graph, OX_CUDNN_SCALE, CUDNN_DATA_FLOAT);
    graph.masked = value(&graph, OX_CUDNN_MASKED, CUDNN_DATA_FLOAT);
    graph.window = ox_cudnn_has_window(shape) ? value(&graph, OX_CUDNN_WINDOW, CUDNN_DATA_INT32) : NULL;
    if (of->backward) {
        backward(&graph);
    } else {
        forward(&graph);
    }
    void *const made = ox_cudnn_make(set, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    void *handle = set->target->handle;
    if (handle != NULL) {
        ox_cudnn_put(set, made, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, &handle);
    }
    ox_cudnn_put_all(set, made, operations_name, graph.operation_count, graph.operations);
    ox_cudnn_finish(set, made);
    return made;
}
