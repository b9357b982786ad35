/* Attention of a part of the queries of sequences, on CPUs: all parts together are attention of whole sequences,
 * forward and backward, also where documents and windows cross from part to part, and where each part sees the keys of
 * one part after the other. */
#include "tests/kit/device/ops_kit.h"

#include <string.h>

enum { CHUNKS_MAX = 16 };

struct part_case {
    struct ox_attention_shape shape;
    uint32_t groups;
    uint32_t documents[4]; /* lengths in turn; none: one document */
};
static const struct part_case cases[] = {
    {{.batch = 1, .seq = 8, .heads = 2, .kv_heads = 2, .head_dim = 8}, 2, {0}},
    {{.batch = 2, .seq = 12, .heads = 4, .kv_heads = 1, .head_dim = 5}, 3, {5, 1, 2}},
    {{.batch = 3, .seq = 16, .heads = 4, .kv_heads = 2, .head_dim = 12, .window = 3}, 8, {0}},
    {{.batch = 2, .seq = 256, .heads = 2, .kv_heads = 1, .head_dim = 16, .window = 70}, 2, {100, 3, 60}},
    {{.batch = 1, .seq = 1040, .heads = 2, .kv_heads = 1, .head_dim = 8}, 2, {600, 1}},
    {{.batch = 1, .seq = 1200, .heads = 1, .kv_heads = 1, .head_dim = 16, .cap = 1.5f}, 4, {0}},
    {{.batch = 2, .seq = 96, .heads = 6, .kv_heads = 2, .head_dim = 20}, 6, {17, 40}},
};

/* What one way to compute it reads and makes; rows lie as in whole sequences. */
struct tensors {
    float *out, *dqkv;
    const float *qkv, *dout;
    const int32_t *positions;
};

static size_t width_of(const struct ox_attention_shape *shape) {
    return (size_t)(shape->heads + 2 * shape->kv_heads) * shape->head_dim;
}

static void run_whole(struct lab *lab, const struct ox_attention_shape *shape, const struct tensors *t) {
    struct ox_run run = {.ops = &lab->ops, .lane = lab->lane};
    float *const lse = floats((size_t)shape->batch * shape->seq * shape->heads);
    void *const scratch = guarded(ox_ops_attention_scratch_bytes(&lab->compute, shape));
    OX_RUN(&run, attention_forward, .out = t->out, .lse = lse, .qkv = t->qkv, .positions = t->positions,
           .scratch = scratch, .shape = *shape);
    OX_RUN(&run, attention_backward, .dqkv = t->dqkv, .dout = t->dout, .qkv = t->qkv, .out = t->out, .lse = lse,
           .positions = t->positions, .scratch = scratch, .shape = *shape);
    REQUIRE_OK(run.status);
    lab_finish(lab);
}

/* The row among chunks, (chunks in their order, batch, rows of a chunk), of a row of whole sequences. */
static size_t row_in_chunks(const struct part_case *c, size_t row) {
    const uint32_t seq = c->shape.seq / (2 * c->groups), chunks = 2 * c->groups;
    const uint32_t batch = (uint32_t)(row / c->shape.seq), place = (uint32_t)(row % c->shape.seq), chunk = place / seq;
    const uint32_t order = chunk < c->groups ? 2 * chunk : 2 * (chunks - 1 - chunk) + 1;
    return ((size_t)order * c->shape.batch + batch) * seq + place % seq;
}

/* Brings rows of `width` to the order of chunks, or back. */
static void turn(const struct part_case *c, const void *from, void *to, size_t bytes, bool back) {
    for (size_t row = 0; row < (size_t)c->shape.batch * c->shape.seq; row++) {
        const size_t at = row_in_chunks(c, row);
        memcpy((char *)to + (back ? row : at) * bytes, (const char *)from + (back ? at : row) * bytes, bytes);
    }
}

/* The operations of one part, forward and backward. */
struct part_ops {
    struct ox_op_attention_forward forward;
    struct ox_op_attention_backward backward;
};

static void run_part(struct ox_run *run, struct part_ops *ops, const struct ox_attention_part *part, bool backward) {
    ops->forward.part = ops->backward.part = *part;
    if (backward) {
        OX_THEN(run->status, OX_QUEUE(run->ops, run->lane, attention_backward, &ops->backward));
    } else {
        ops->forward.part.dkv = NULL;
        OX_THEN(run->status, OX_QUEUE(run->ops, run->lane, attention_forward, &ops->forward));
    }
}

/* Chunk by chunk of keys: its own first, whose keys every query sees one of, then the others before it. */
static void run_chunks(struct ox_run *run, struct part_ops *ops, struct ox_attention_part part, size_t chunk_elems,
                       bool *has, bool backward) {
    const void *const kv = part.kv;
    float *const dkv = part.dkv;
    for (uint32_t i = 0; i <= part.chunk; i++) {
        const uint32_t t = i == 0 ? part.chunk : i - 1, back = part.chunks - 1 - t;
        const size_t first = (t < back ? 2 * t : 2 * back + 1) * chunk_elems;
        part.kv = (const float *)kv + first;
        part.dkv = dkv + first;
        part.key_chunk = t + 1;
        part.resumes = i > 0;
        part.adds = has[t];
        has[t] = backward;
        run_part(run, ops, &part, backward);
    }
}

static void run_parts(struct lab *lab, const struct part_case *c, const struct tensors *t, bool by_chunk) {
    const size_t rows = (size_t)c->shape.batch * c->shape.seq, width = width_of(&c->shape);
    const size_t out_width = (size_t)c->shape.heads * c->shape.head_dim, q = out_width, kv = width - q;
    struct ox_attention_shape shape = c->shape;
    shape.seq /= 2 * c->groups;
    const size_t part_rows = (size_t)shape.batch * shape.seq;
    float *const qkv = floats(rows * width), *const dqkv = floats(rows * width), *const all = floats(rows * kv);
    float *const out = floats(rows * out_width), *const dout = floats(rows * out_width);
    float *const dall = floats(rows * kv), *const lse = floats(rows * shape.heads);
    int32_t *const positions = guarded(rows * sizeof *positions);
    void *const scratch = guarded(ox_ops_attention_scratch_bytes(&lab->compute, &c->shape));
    turn(c, t->qkv, qkv, width * sizeof *qkv, false);
    turn(c, t->dout, dout, out_width * sizeof *dout, false);
    if (t->positions != NULL) {
        turn(c, t->positions, positions, sizeof *positions, false);
    }
    for (size_t row = 0; row < rows; row++) {
        memcpy(all + row * kv, qkv + row * width + q, kv * sizeof *all);
    }
    struct ox_run run = {.ops = &lab->ops, .lane = lab->lane};
    bool has[CHUNKS_MAX] = {false};
    for (int backward = 0; backward <= 1; backward++) {
        for (uint32_t i = 0; i < 2 * c->groups; i++) {
            const size_t first = i * part_rows;
            const struct ox_attention_part part = {
                .kv = all, .dkv = dall, .adds = i > 0, .chunks = 2 * c->groups,
                .chunk = i % 2 == 0 ? i / 2 : 2 * c->groups - 1 - i / 2};
            const int32_t *const of = t->positions == NULL ? NULL : positions + first;
            struct part_ops ops = {
                .forward = {.out = out + first * out_width, .lse = lse + first * shape.heads,
                            .qkv = qkv + first * width, .positions = of, .scratch = scratch, .shape = shape},
                .backward = {.dqkv = dqkv + first * width, .dout = dout + first * out_width,
                             .qkv = qkv + first * width, .out = out + first * out_width,
                             .lse = lse + first * shape.heads, .positions = of, .scratch = scratch, .shape = shape}};
            if (by_chunk) {
                run_chunks(&run, &ops, part, part_rows * kv, has, backward);
            } else {
                run_part(&run, &ops, &part, backward);
            }
        }
    }
    REQUIRE_OK(run.status);
    lab_finish(lab);
    for (size_t row = 0; row < rows; row++) {
        for (size_t i = 0; i < kv; i++) {
            CHECK(dqkv[row * width + q + i] == 0.0f);
            dqkv[row * width + q + i] = dall[row * kv + i];
        }
    }
    turn(c, out, t->out, out_width * sizeof *out, true);
    turn(c, dqkv, t->dqkv, width * sizeof *dqkv, true);
    lab_digest(lab, t->out, rows * out_width * sizeof *out);
    lab_digest(lab, t->dqkv, rows * width * sizeof *dqkv);
}

static void check_case(struct lab *lab, const struct part_case *given, uint64_t stream) {
    struct part_case c = *given;
    const size_t rows = (size_t)c.shape.batch * c.shape.seq, width = width_of(&c.shape);
    const size_t out_width = (size_t)c.shape.heads * c.shape.head_dim;
    c.shape.scale = 0.3f;
    int32_t *const positions = guarded(rows * sizeof *positions);
    uint32_t nth = 0, left = 0;
    for (size_t row = 0; row < rows; row++, left--) {
        if (row % c.shape.seq == 0 || left == 0) { /* a document begins */
            left = c.documents[nth] > 0 ? c.documents[nth] : c.shape.seq;
            nth = nth + 1 < 4 && c.documents[nth + 1] > 0 ? nth + 1 : 0;
            positions[row] = 0;
        } else {
            positions[row] = positions[row - 1] + 1;
        }
    }
    const struct tensors whole = {
        .out = floats(rows * out_width), .dqkv = floats(rows * width), .qkv = random_floats(rows * width, stream, 1),
        .dout = random_floats(rows * out_width, stream + 1, 1), .positions = c.documents[0] > 0 ? positions : NULL};
    struct tensors parts = whole;
    parts.out = floats(rows * out_width);
    parts.dqkv = floats(rows * width);
    run_whole(lab, &c.shape, &whole);
    for (int by_chunk = 0; by_chunk <= 1; by_chunk++) {
        run_parts(lab, &c, &parts, by_chunk);
        check_error(by_chunk ? "out by chunks" : "out",
                    error_of(parts.out, widened(whole.out, rows * out_width), rows * out_width), 2e-6);
        check_error(by_chunk ? "dqkv by chunks" : "dqkv",
                    error_of(parts.dqkv, widened(whole.dqkv, rows * width), rows * width), 4e-6);
    }
}

int main(void) {
    static struct lab labs[LAB_MAX];
    labs_open(labs);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int k = 0; k < LAB_CPU_COUNT; k++) {
            check_case(&labs[k], &cases[i], 10 * i);
            guards_end(0);
        }
        for (int k = 1; k < LAB_CPU_COUNT; k++) { /* any number of threads gives the same bits */
            CHECK(labs[k].digest == labs[0].digest);
        }
    }
    print_errors();
    return labs_end(labs);
}
