/* Attention of a part of the queries of sequences: all parts together are attention of whole sequences, forward and
 * backward, also where documents and windows cross from part to part, and where each part sees the keys of one part
 * after the other. In 16 bits chunks of 128 rows are those of the tensor cores' kernels. */
#include "tests/kit/device/ops_kit.h"

#include "base/bytes.h"

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
    {{.batch = 2, .seq = 512, .heads = 2, .kv_heads = 1, .head_dim = 16}, 2, {100, 3, 250}},
    {{.batch = 1, .seq = 512, .heads = 1, .kv_heads = 1, .head_dim = 80, .window = 150}, 2, {0}},
    {{.batch = 1, .seq = 512, .heads = 1, .kv_heads = 1, .head_dim = 48, .cap = 1.5f}, 2, {0}},
};

/* What one way to compute it reads and makes; rows lie as in whole sequences. */
struct tensors {
    void *out, *dqkv;
    const void *qkv, *dout;
    const int32_t *positions;
    enum ox_real real;
};

static size_t width_of(const struct ox_attention_shape *shape) {
    return (size_t)(shape->heads + 2 * shape->kv_heads) * shape->head_dim;
}

static void run_whole(struct lab *lab, const struct ox_attention_shape *shape, const struct tensors *t) {
    struct ox_run run = {.ops = &lab->ops, .lane = lab->lane};
    float *const lse = floats((size_t)shape->batch * shape->seq * shape->heads);
    void *const scratch = guarded(ox_ops_attention_scratch_bytes(&lab->compute, shape));
    OX_RUN(&run, attention_forward, .out = t->out, .lse = lse, .qkv = t->qkv, .positions = t->positions,
           .scratch = scratch, .shape = *shape, .real = t->real);
    OX_RUN(&run, attention_backward, .dqkv = t->dqkv, .dout = t->dout, .qkv = t->qkv, .out = t->out, .lse = lse,
           .positions = t->positions, .scratch = scratch, .shape = *shape, .real = t->real);
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

/* The memory of all parts, by chunks; gradients of keys and values are float32 in every type. */
struct chunked {
    char *qkv, *dqkv, *kv, *out, *dout;
    float *dkv, *lse;
    int32_t *positions;
};

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

/* Chunk by chunk of keys: its own first, whose keys every query sees one of, then the others before it. `has` says
 * which chunks of keys have a gradient. */
static void run_by_chunk(struct ox_run *run, struct part_ops *ops, struct ox_attention_part part, size_t chunk_elems,
                         bool *has, bool backward) {
    const void *const kv = part.kv;
    float *const dkv = part.dkv;
    for (uint32_t i = 0; i <= part.chunk; i++) {
        const uint32_t t = i == 0 ? part.chunk : i - 1, back = part.chunks - 1 - t;
        const size_t first = (t < back ? 2 * t : 2 * back + 1) * chunk_elems;
        part.kv = (const char *)kv + first * ox_real_bytes(ops->forward.real);
        part.dkv = dkv + first;
        part.key_chunk = t + 1;
        part.resumes = i > 0;
        part.adds = has[t];
        has[t] = backward;
        run_part(run, ops, &part, backward);
    }
}

/* Forward of all parts, then backward. */
static void run_chunked(struct lab *lab, const struct part_case *c, const struct tensors *t, const struct chunked *at,
                        bool by_chunk) {
    const size_t width = width_of(&c->shape), q = (size_t)c->shape.heads * c->shape.head_dim;
    const size_t bytes = ox_real_bytes(t->real);
    struct ox_attention_shape shape = c->shape;
    struct ox_run run = {.ops = &lab->ops, .lane = lab->lane};
    bool has[CHUNKS_MAX] = {false};
    shape.seq /= 2 * c->groups;
    void *const scratch = guarded(ox_max_u64(ox_ops_attention_scratch_bytes(&lab->compute, &c->shape),
                                             ox_ops_attention_chunk_scratch_bytes(&lab->compute, &shape)));
    for (uint32_t i = 0; i < 4 * c->groups; i++) {
        const bool backward = i >= 2 * c->groups;
        const uint32_t nth = i % (2 * c->groups);
        const size_t rows = (size_t)shape.batch * shape.seq, first = nth * rows;
        const struct ox_attention_part part = {
            .kv = at->kv, .dkv = at->dkv, .adds = nth > 0, .chunks = 2 * c->groups,
            .chunk = nth % 2 == 0 ? nth / 2 : 2 * c->groups - 1 - nth / 2};
        const int32_t *const of = t->positions == NULL ? NULL : at->positions + first;
        char *const qkv = at->qkv + first * width * bytes, *const out = at->out + first * q * bytes;
        float *const lse = at->lse + first * shape.heads;
        struct part_ops ops = {
            .forward = {.out = out, .lse = lse, .qkv = qkv, .positions = of, .scratch = scratch, .shape = shape,
                        .real = t->real},
            .backward = {.dqkv = at->dqkv + first * width * bytes, .dout = at->dout + first * q * bytes, .qkv = qkv,
                         .out = out, .lse = lse, .positions = of, .scratch = scratch, .shape = shape,
                         .real = t->real}};
        if (by_chunk) {
            run_by_chunk(&run, &ops, part, rows * (width - q), has, backward);
        } else {
            run_part(&run, &ops, &part, backward);
        }
    }
    REQUIRE_OK(run.status);
    lab_finish(lab);
}

/* Gradients of keys and values come back as float32, in the order of whole sequences. */
static float *run_parts(struct lab *lab, const struct part_case *c, const struct tensors *t, bool by_chunk) {
    const size_t rows = (size_t)c->shape.batch * c->shape.seq, width = width_of(&c->shape);
    const size_t q = (size_t)c->shape.heads * c->shape.head_dim, kv = width - q, bytes = ox_real_bytes(t->real);
    const struct chunked at = {
        .qkv = reals(t->real, rows * width), .dqkv = reals(t->real, rows * width), .kv = reals(t->real, rows * kv),
        .out = reals(t->real, rows * q), .dout = reals(t->real, rows * q), .dkv = floats(rows * kv),
        .lse = floats(rows * c->shape.heads), .positions = guarded(rows * sizeof(int32_t))};
    float *const dkv = floats(rows * kv);
    turn(c, t->qkv, at.qkv, width * bytes, false);
    turn(c, t->dout, at.dout, q * bytes, false);
    if (t->positions != NULL) {
        turn(c, t->positions, at.positions, sizeof *at.positions, false);
    }
    for (size_t row = 0; row < rows; row++) {
        memcpy(at.kv + row * kv * bytes, at.qkv + (row * width + q) * bytes, kv * bytes);
    }
    run_chunked(lab, c, t, &at, by_chunk);
    turn(c, at.out, t->out, q * bytes, true);
    turn(c, at.dqkv, t->dqkv, width * bytes, true);
    turn(c, at.dkv, dkv, kv * sizeof *dkv, true);
    lab_digest(lab, t->out, rows * q * bytes);
    lab_digest(lab, t->dqkv, rows * width * bytes);
    lab_digest(lab, dkv, rows * kv * sizeof *dkv);
    return dkv;
}

/* Documents of these lengths in turn; a sequence's end cuts. */
static const int32_t *positions_of(const struct part_case *c) {
    const size_t rows = (size_t)c->shape.batch * c->shape.seq;
    int32_t *const positions = guarded(rows * sizeof *positions);
    uint32_t nth = 0, left = 0;
    for (size_t row = 0; row < rows; row++, left--) {
        if (row % c->shape.seq == 0 || left == 0) { /* a document begins */
            left = c->documents[nth] > 0 ? c->documents[nth] : c->shape.seq;
            nth = nth + 1 < 4 && c->documents[nth + 1] > 0 ? nth + 1 : 0;
            positions[row] = 0;
        } else {
            positions[row] = positions[row - 1] + 1;
        }
    }
    return c->documents[0] > 0 ? positions : NULL;
}

static void check_parts(struct lab *lab, const struct part_case *c, const struct tensors *whole, bool by_chunk) {
    const size_t rows = (size_t)c->shape.batch * c->shape.seq, width = width_of(&c->shape);
    const size_t q = (size_t)c->shape.heads * c->shape.head_dim, kv = width - q;
    const enum ox_real real = whole->real;
    struct tensors parts = *whole;
    parts.out = reals(real, rows * q);
    parts.dqkv = reals(real, rows * width);
    const float *const dkv = run_parts(lab, c, &parts, by_chunk);
    float *const dqkv = floats_of(real, parts.dqkv, rows * width);
    for (size_t row = 0; row < rows; row++) {
        for (size_t i = 0; i < kv; i++) {
            CHECK(dqkv[row * width + q + i] == 0.0f);
            dqkv[row * width + q + i] = dkv[row * kv + i];
        }
    }
    const float *const out = floats_of(real, parts.out, rows * q);
    check_real_error(real, by_chunk ? "out by chunks" : "out",
                     error_of(out, widened(floats_of(real, whole->out, rows * q), rows * q), rows * q), 2e-6, 1e-2);
    check_real_error(real, by_chunk ? "dqkv by chunks" : "dqkv",
                     error_of(dqkv, widened(floats_of(real, whole->dqkv, rows * width), rows * width), rows * width),
                     4e-6, 1.2e-2);
}

static void check_case(struct lab *lab, const struct part_case *given, enum ox_real real, bool on_cpu,
                       uint64_t stream) {
    struct part_case c = *given;
    const size_t rows = (size_t)c.shape.batch * c.shape.seq, width = width_of(&c.shape);
    const size_t q = (size_t)c.shape.heads * c.shape.head_dim;
    c.shape.scale = 0.3f;
    const struct tensors whole = {
        .out = reals(real, rows * q), .dqkv = reals(real, rows * width), .positions = positions_of(&c), .real = real,
        .qkv = reals_of(real, random_floats(rows * width, stream, 1), rows * width),
        .dout = reals_of(real, random_floats(rows * q, stream + 1, 1), rows * q)};
    run_whole(lab, &c.shape, &whole);
    check_parts(lab, &c, &whole, false);
    if (!on_cpu || real == OX_REAL_F32) {
        check_parts(lab, &c, &whole, true);
    }
}

/* Multiplications of both ways together; tensor cores are emulated faster. */
static double work_of(const struct part_case *c, enum ox_real real) {
    const double pairs = (double)c->shape.batch * c->shape.heads * c->shape.seq * c->shape.seq;
    const bool plain = c->shape.seq / (2 * c->groups) % 128 != 0 || c->shape.head_dim % 16 != 0;
    return pairs * c->shape.head_dim / (real == OX_REAL_F32 || plain ? 1 : 32);
}

int main(void) {
    static const enum ox_real types[] = {OX_REAL_F32, OX_REAL_BF16, OX_REAL_F16};
    static struct lab labs[LAB_MAX];
    labs_open(labs);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int r = 0; r < 3; r++) {
            for (int k = 0; k < lab_count; k++) {
                const bool takes = lab_takes(&labs[k], work_of(&cases[i], types[r])) &&
                                   (!labs[k].emulated || r < 2 || test_takes((unsigned)i, 3));
                if (takes && lab_knows(&labs[k], types[r])) {
                    check_case(&labs[k], &cases[i], types[r], k < LAB_CPU_COUNT, 10 * i);
                    guards_end(0);
                }
            }
            labs_end_case(labs); /* any number of threads gives the same bits, and so does a GPU twice */
        }
    }
    return labs_end(labs);
}
