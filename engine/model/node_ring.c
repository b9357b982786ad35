/* Attention of row groups in a ring (Liu et al., arXiv 2310.01889): queries of a group see the keys and values of one
 * group after the other, their own first, then those of the group before it, and so on, round. With a rank for each
 * group these pass from rank to rank, and in backward their gradients with them, which come home in the end; one rank
 * with all groups does the same steps in the same order. */
#include "base/assert.h"
#include "base/bytes.h"
#include "engine/model/list.h"
#include "engine/model/node_groups.h"

enum { ALIGN_BYTES = 64 };

static bool passes_on(const struct ox_shape *shape) {
    return shape->groups.contexts > 1;
}

/* Elements of a row of keys and values, of one group of features. */
static uint32_t kv_width(const struct ox_shape *shape) {
    const struct ox_model_config *const config = &shape->model->config;
    return 2 * config->kv_heads * config->head_dim / ox_model_groups(config);
}
/* Elements of a row of queries, keys and values. */
static uint32_t qkv_width(const struct ox_shape *shape) {
    const struct ox_model_config *const config = &shape->model->config;
    return kv_width(shape) + config->heads * config->head_dim / ox_model_groups(config);
}
/* Elements of the keys and values of a row group. */
static uint64_t kv_elems(const struct ox_shape *shape) {
    return (uint64_t)shape->rows * kv_width(shape);
}
/* Attention of a chunk's queries and keys, in one group of features. */
static struct ox_attention_shape chunk_attention(const struct ox_shape *shape, const struct ox_node *node) {
    struct ox_attention_shape attention = ox_group_attention_of(shape, node->window);
    attention.seq /= 2 * ox_shape_groups(shape);
    return attention;
}

/* Where what passes from rank to rank lies in the scratch: two rooms in turn, each with the keys and values of the
 * rank's groups of features, one behind the other, and in backward their gradients behind them. */
struct rooms {
    uint64_t first, kv_bytes, bytes;
};
static struct rooms rooms_of(const struct ox_shape *shape, const struct ox_node *node, bool backward) {
    const uint64_t elems = kv_elems(shape) * ox_shape_own_features(shape);
    const struct ox_attention_shape whole = ox_group_attention_of(shape, node->window);
    const struct ox_attention_shape chunk = chunk_attention(shape, node);
    const uint64_t scratch = ox_ops_attention_scratch_bytes(&shape->compute, &whole);
    const uint64_t of_chunk = ox_ops_attention_chunk_scratch_bytes(&shape->compute, &chunk);
    struct rooms rooms = {.first = ox_align_up(ox_max_u64(scratch, of_chunk), ALIGN_BYTES),
                          .kv_bytes = elems * ox_real_bytes(shape->compute.real)};
    rooms.bytes = rooms.kv_bytes + (backward ? elems * sizeof(float) : 0);
    return rooms;
}

uint64_t ox_ring_scratch(const struct ox_shape *shape, const struct ox_node *node, bool backward) {
    const struct rooms rooms = rooms_of(shape, node, backward);
    return rooms.first + (passes_on(shape) ? 2 * rooms.bytes : 0);
}

uint32_t ox_ring_parts(const struct ox_list *list, const struct ox_node *node, bool backward, bool din,
                       struct ox_node_cut_at out[OX_NODE_CUTS_MAX]) {
    const struct ox_shape *const shape = list->shape;
    const struct rooms rooms = rooms_of(shape, node, backward);
    const uint32_t count = ox_shape_groups(shape) - 1, home = backward && passes_on(shape);
    (void)din;
    OX_ASSERT(!passes_on(shape) || count + home <= OX_NODE_CUTS_MAX);
    for (uint32_t i = 0; i < count + home && passes_on(shape); i++) {
        const uint64_t from = rooms.first + i % 2 * rooms.bytes, to = rooms.first + (i + 1) % 2 * rooms.bytes;
        const uint64_t behind = i == count ? rooms.kv_bytes : 0; /* gradients alone come home */
        out[i] = (struct ox_node_cut_at){.kind = OX_CUT_SHIFT, .source = from + behind, .target = to + behind,
                                         .bytes = rooms.bytes - behind};
    }
    return count + home;
}

/* One step of the ring, of a group of features: the queries of one row group, and the keys of another. */
struct step {
    uint32_t group, of, chunks, features; /* whose queries, whose keys */
    uint64_t chunk_rows;
    unsigned char *kv;
    float *dkv;
};

static struct step step_of(const struct ox_node_call *call, uint32_t features, bool backward) {
    const struct ox_shape *const shape = call->job->shape;
    const struct rooms rooms = rooms_of(shape, call->node, backward);
    const uint32_t all = ox_shape_groups(shape), group = shape->groups.first + call->job->group;
    struct step step = {.group = group, .of = (group + all - call->part % all) % all, .chunks = 2 * all,
                        .features = features, .chunk_rows = shape->rows / 2};
    const uint64_t nth = features - call->list->group_first;
    uint64_t first = nth * kv_elems(shape);
    if (passes_on(shape)) {
        step.kv = (unsigned char *)call->scratch + rooms.first + call->part % 2 * rooms.bytes;
        step.dkv = backward ? (float *)(void *)(step.kv + rooms.kv_bytes) : NULL;
    } else {
        step.kv = (unsigned char *)(uintptr_t)call->pair_weights;
        step.dkv = backward ? call->dweights : NULL;
        first = (nth * all + step.of) * kv_elems(shape); /* one group of features has those of all rows */
    }
    step.kv += first * ox_real_bytes(shape->compute.real);
    step.dkv += backward ? first : 0;
    return step;
}

static uint32_t chunk_of(const struct step *step, uint32_t group, uint32_t half) {
    return half == 0 ? group : step->chunks - 1 - group;
}

/* The part of attention that a half of the queries sees in a half of the keys; false: it sees none. The chunk that the
 * queries are comes first, so every query has seen a key when it goes on. */
static bool part_of(const struct ox_node_call *call, const struct step *step, uint32_t half, uint32_t key_half,
                    struct ox_attention_part *out) {
    const struct ox_shape *const shape = call->job->shape;
    const uint32_t chunk = chunk_of(step, step->group, half), key_chunk = chunk_of(step, step->of, key_half);
    const uint64_t first = key_half * step->chunk_rows * kv_width(shape), seq = shape->seq / step->chunks;
    const uint32_t window = call->node->window;
    *out = (struct ox_attention_part){.kv = step->kv + first * ox_real_bytes(shape->compute.real),
                                      .dkv = step->dkv + (step->dkv == NULL ? 0 : first), .chunk = chunk,
                                      .chunks = step->chunks, .key_chunk = key_chunk + 1,
                                      .resumes = key_chunk != chunk, .adds = key_chunk != chunk};
    return key_chunk <= chunk && (window == 0 || (key_chunk + 1) * seq + window > chunk * seq + 1);
}

static void *rows_at(const struct ox_node_call *call, const struct step *step, uint32_t half, const void *rows,
                     uint32_t width) {
    return (unsigned char *)ox_node_group(call, rows, width, step->features) +
           half * step->chunk_rows * width * ox_real_bytes(call->job->shape->compute.real);
}

/* The rank's own keys and values are the first that it sees, and that it passes on. */
static void take_own(const struct ox_node_call *call, const struct step *step) {
    const struct ox_shape *const shape = call->job->shape;
    const uint32_t width = qkv_width(shape);
    if (passes_on(shape) && call->part == 0) {
        OX_RUN(&call->job->run, splice, .in = rows_at(call, step, 0, call->in, width), .rows = shape->rows,
               .in_width = width, .out = step->kv, .out_width = kv_width(shape), .part_count = 1,
               .parts = {{width - kv_width(shape), 0, 0, 0, kv_width(shape), 1}}, .real = shape->compute.real);
    }
}

/* Attention of a step: each half of the queries sees what it may of both halves of the keys. */
static void attend(const struct ox_node_call *call, const struct step *step, const struct ox_attention_shape *shape,
                   uint32_t half, bool backward) {
    const struct ox_unit_job *const job = call->job;
    const uint32_t out_width = shape->heads * shape->head_dim, width = qkv_width(job->shape);
    const int32_t *const documents = job->documents == NULL ? NULL : job->documents + half * step->chunk_rows;
    void *const out = rows_at(call, step, half, call->out, out_width);
    const void *const qkv = rows_at(call, step, half, call->in, width);
    float *const lse = ox_node_group_floats(call, call->saved[0], shape->heads, step->features) +
                       half * step->chunk_rows * shape->heads;
    struct ox_attention_part part;
    for (uint32_t key_half = 2; key_half-- > 0;) {
        if (!part_of(call, step, half, key_half, &part)) {
            continue;
        }
        if (backward) {
            OX_RUN(&call->job->run, attention_backward, .dqkv = rows_at(call, step, half, call->din, width),
                   .dout = rows_at(call, step, half, call->dout, out_width), .qkv = qkv, .out = out, .lse = lse,
                   .positions = documents, .scratch = call->scratch, .shape = *shape, .part = part,
                   .real = job->shape->compute.real);
        } else {
            OX_RUN(&call->job->run, attention_forward, .out = out, .lse = lse, .qkv = qkv, .positions = documents,
                   .scratch = call->scratch, .shape = *shape, .part = part, .real = job->shape->compute.real);
        }
    }
}

void ox_ring_forward(const struct ox_node_call *call) {
    const struct ox_attention_shape shape = chunk_attention(call->job->shape, call->node);
    for (uint32_t g = call->list->group_first; g < call->list->group_past; g++) {
        const struct step step = step_of(call, g, false);
        take_own(call, &step);
        for (uint32_t half = 0; half < 2; half++) {
            attend(call, &step, &shape, half, false);
            if (call->part + 1 == ox_shape_groups(call->job->shape)) {
                ox_add_sinks(call, g, half * step.chunk_rows, shape.seq);
            }
        }
    }
}

/* Gradients that have come home are put beside those of the queries, by way of the keys, which nothing reads again. */
static void bring_home(const struct ox_node_call *call, const struct step *step) {
    const struct ox_shape *const shape = call->job->shape;
    const uint32_t width = qkv_width(shape);
    const bool is_there = shape->compute.real == OX_REAL_F32;
    void *const din = rows_at(call, step, 0, call->din, width);
    if (!is_there) {
        OX_RUN(&call->job->run, settle, .out = step->kv, .in = step->dkv, .rows = shape->rows, .cols = kv_width(shape),
               .real = shape->compute.real);
    }
    OX_RUN(&call->job->run, splice, .in = is_there ? (void *)step->dkv : step->kv, .rows = shape->rows,
           .in_width = kv_width(shape), .out = din, .residual = din, .out_width = width, .part_count = 1,
           .parts = {{0, 0, width - kv_width(shape), 0, kv_width(shape), 1}}, .real = shape->compute.real);
}

void ox_ring_backward(const struct ox_node_call *call) {
    const struct ox_attention_shape shape = chunk_attention(call->job->shape, call->node);
    for (uint32_t g = call->list->group_first; g < call->list->group_past; g++) {
        const struct step step = step_of(call, g, true);
        if (call->part == ox_shape_groups(call->job->shape)) {
            bring_home(call, &step);
            continue;
        }
        take_own(call, &step);
        for (uint32_t half = 0; half < 2; half++) {
            attend(call, &step, &shape, half, true);
            if (call->part == 0) {
                ox_add_sinks_backward(call, g, half * step.chunk_rows, shape.seq);
            }
        }
    }
}
