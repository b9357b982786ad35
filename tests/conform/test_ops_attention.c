/* Attention against a plain reference in double, forward and backward. */
#include "tests/kit/device/ops_kit.h"

#include <math.h>
#include <string.h>

static const struct ox_attention_shape whole[] = {
    {.batch = 1, .seq = 1, .heads = 1, .kv_heads = 1, .head_dim = 8},
    {.batch = 2, .seq = 7, .heads = 4, .kv_heads = 2, .head_dim = 5},
    {.batch = 1, .seq = 6, .heads = 6, .kv_heads = 1, .head_dim = 12},
    {.batch = 3, .seq = 64, .heads = 2, .kv_heads = 2, .head_dim = 64},
    {.batch = 1, .seq = 65, .heads = 3, .kv_heads = 3, .head_dim = 16},
    {.batch = 2, .seq = 130, .heads = 4, .kv_heads = 1, .head_dim = 20},
    {.batch = 1, .seq = 577, .heads = 2, .kv_heads = 1, .head_dim = 8},
    {.batch = 1, .seq = 1100, .heads = 1, .kv_heads = 1, .head_dim = 32},
    {.batch = 2, .seq = 5, .heads = 2, .kv_heads = 1, .head_dim = 6, .window = 1},
    {.batch = 2, .seq = 7, .heads = 4, .kv_heads = 2, .head_dim = 5, .window = 3},
    {.batch = 1, .seq = 9, .heads = 1, .kv_heads = 1, .head_dim = 4, .window = 9},
    {.batch = 1, .seq = 300, .heads = 2, .kv_heads = 1, .head_dim = 8, .window = 128},
    {.batch = 2, .seq = 900, .heads = 1, .kv_heads = 1, .head_dim = 8, .window = 50},
    {.batch = 1, .seq = 1300, .heads = 2, .kv_heads = 1, .head_dim = 8, .window = 641},
    {.batch = 2, .seq = 7, .heads = 4, .kv_heads = 2, .head_dim = 5, .cap = 0.7f},
    {.batch = 1, .seq = 150, .heads = 2, .kv_heads = 1, .head_dim = 16, .window = 40, .cap = 50.0f},
    {.batch = 1, .seq = 300, .heads = 1, .kv_heads = 1, .head_dim = 8, .cap = 1.5f},
};
enum { WHOLE_COUNT = sizeof whole / sizeof whole[0], WHOLE_LARGE = 5 };

/* Sequences of several documents: their lengths in turn, over all sequences, where a sequence's end cuts the last.
 * Queries and keys are walked by 128, the diagonal by 16: documents begin and end at, before and behind these borders,
 * so that rows see no key of the first block that their neighbours need, or of several. */
struct packed {
    struct ox_attention_shape shape;
    uint32_t lengths[6]; /* ends with 0, then from the first again */
};
static const struct packed packed[] = {
    {{.batch = 2, .seq = 7, .heads = 4, .kv_heads = 2, .head_dim = 5}, {3, 1, 2}},
    {{.batch = 1, .seq = 9, .heads = 1, .kv_heads = 1, .head_dim = 4}, {1}},
    {{.batch = 2, .seq = 8, .heads = 2, .kv_heads = 1, .head_dim = 6, .window = 3}, {5, 2}},
    {{.batch = 1, .seq = 300, .heads = 2, .kv_heads = 2, .head_dim = 8}, {127, 1, 128}},
    {{.batch = 2, .seq = 520, .heads = 2, .kv_heads = 1, .head_dim = 8}, {40, 1, 7, 90}},
    {{.batch = 1, .seq = 1300, .heads = 2, .kv_heads = 1, .head_dim = 8}, {600, 1, 699}},
    {{.batch = 2, .seq = 1300, .heads = 4, .kv_heads = 2, .head_dim = 8}, {638, 2, 1200, 13, 300}},
    {{.batch = 1, .seq = 1300, .heads = 1, .kv_heads = 1, .head_dim = 16}, {512, 128, 511}},
    {{.batch = 1, .seq = 1300, .heads = 2, .kv_heads = 1, .head_dim = 8, .window = 641}, {200, 900}},
    {{.batch = 2, .seq = 700, .heads = 1, .kv_heads = 1, .head_dim = 8, .window = 50}, {30, 300, 3}},
};
enum { PACKED_COUNT = sizeof packed / sizeof packed[0], PACKED_LARGE = 6 };

/* For bfloat16. Heads of 16 to 128 in sixteens go to tensor cores, by blocks of 128 queries or keys, of which a warp
 * has 16 or 32, and tiles of 64; others do not. No lengths: one document. */
static const struct packed halves[] = {
    {{.batch = 1, .seq = 1, .heads = 1, .kv_heads = 1, .head_dim = 64}, {0}},
    {{.batch = 2, .seq = 7, .heads = 8, .kv_heads = 1, .head_dim = 16}, {0}},
    {{.batch = 2, .seq = 65, .heads = 4, .kv_heads = 1, .head_dim = 64}, {0}},
    {{.batch = 1, .seq = 64, .heads = 2, .kv_heads = 2, .head_dim = 128}, {0}},
    {{.batch = 1, .seq = 129, .heads = 1, .kv_heads = 1, .head_dim = 128}, {0}},
    {{.batch = 1, .seq = 193, .heads = 2, .kv_heads = 1, .head_dim = 80}, {0}},
    {{.batch = 1, .seq = 300, .heads = 1, .kv_heads = 1, .head_dim = 48}, {0}},
    {{.batch = 2, .seq = 33, .heads = 3, .kv_heads = 1, .head_dim = 20}, {0}},
    {{.batch = 1, .seq = 17, .heads = 2, .kv_heads = 1, .head_dim = 144}, {0}},
    {{.batch = 1, .seq = 70, .heads = 2, .kv_heads = 1, .head_dim = 32, .window = 1}, {0}},
    {{.batch = 1, .seq = 200, .heads = 1, .kv_heads = 1, .head_dim = 64, .window = 3}, {0}},
    {{.batch = 1, .seq = 330, .heads = 1, .kv_heads = 1, .head_dim = 64, .window = 50}, {0}},
    {{.batch = 1, .seq = 290, .heads = 1, .kv_heads = 1, .head_dim = 96, .window = 129}, {0}},
    {{.batch = 1, .seq = 70, .heads = 2, .kv_heads = 1, .head_dim = 16}, {1}},
    {{.batch = 2, .seq = 150, .heads = 4, .kv_heads = 1, .head_dim = 16}, {5, 1, 2, 17, 40}},
    {{.batch = 1, .seq = 259, .heads = 1, .kv_heads = 1, .head_dim = 128}, {63, 1, 64, 65, 2}},
    {{.batch = 1, .seq = 400, .heads = 1, .kv_heads = 1, .head_dim = 64}, {128, 200, 9}},
    {{.batch = 1, .seq = 320, .heads = 2, .kv_heads = 1, .head_dim = 64, .window = 70}, {100, 3, 180}},
    {{.batch = 2, .seq = 40, .heads = 3, .kv_heads = 1, .head_dim = 5, .window = 9}, {30, 2, 1}},
    {{.batch = 1, .seq = 193, .heads = 2, .kv_heads = 1, .head_dim = 80}, {193}},
    {{.batch = 1, .seq = 150, .heads = 2, .kv_heads = 1, .head_dim = 64, .cap = 1.5f}, {0}},
    {{.batch = 1, .seq = 200, .heads = 1, .kv_heads = 1, .head_dim = 128, .window = 70, .cap = 0.7f}, {100, 3, 180}},
    {{.batch = 1, .seq = 40, .heads = 2, .kv_heads = 1, .head_dim = 256, .cap = 50.0f}, {0}},
};
enum { HALVES_COUNT = sizeof halves / sizeof halves[0], HALVES_LARGE = 5 };

static size_t row_len(const struct ox_attention_shape *shape) {
    return (size_t)(shape->heads + 2 * shape->kv_heads) * shape->head_dim;
}

/* Offsets of q, k and v of a head at a place. */
static size_t q_at(const struct ox_attention_shape *shape, size_t row, uint32_t head) {
    return row * row_len(shape) + (size_t)head * shape->head_dim;
}

static size_t k_at(const struct ox_attention_shape *shape, size_t row, uint32_t head) {
    return q_at(shape, row, shape->heads + head / (shape->heads / shape->kv_heads));
}

static size_t v_at(const struct ox_attention_shape *shape, size_t row, uint32_t head) {
    return k_at(shape, row, head) + (size_t)shape->kv_heads * shape->head_dim;
}

struct reference {
    struct ox_attention_shape shape;
    const int32_t *positions;
    double *qkv, *dout, *out, *lse, *dqkv, *prob;
};

/* A query's place in its sequence, which begins at row `first`. */
struct query {
    size_t first;
    uint32_t place, head;
};

/* The first key that a query sees. */
static uint32_t first_seen(const struct reference *ref, struct query at) {
    const uint32_t window = ref->shape.window;
    const uint32_t of_window = window == 0 || at.place + 1 <= window ? 0 : at.place + 1 - window;
    const uint32_t of_document =
        ref->positions == NULL ? 0 : at.place - (uint32_t)ref->positions[at.first + at.place];
    return of_window > of_document ? of_window : of_document;
}

static double capped(const struct ox_attention_shape *shape, double score) {
    return shape->cap == 0.0f ? score : (double)shape->cap * tanh(score / (double)shape->cap);
}

/* The probabilities of one query, into ref->prob; returns their log-sum-exp. */
static double probabilities(const struct reference *ref, const double *qkv, struct query at) {
    const struct ox_attention_shape *const shape = &ref->shape;
    const uint32_t begin = first_seen(ref, at), place = at.place, head = at.head;
    const size_t first = at.first;
    double *const prob = ref->prob;
    double top = -INFINITY, sum = 0.0;
    for (uint32_t j = begin; j <= place; j++) {
        double score = 0.0;
        for (uint32_t i = 0; i < shape->head_dim; i++) {
            score += qkv[q_at(shape, first + place, head) + i] * qkv[k_at(shape, first + j, head) + i];
        }
        prob[j] = capped(shape, score * (double)shape->scale);
        top = fmax(top, prob[j]);
    }
    for (uint32_t j = begin; j <= place; j++) {
        prob[j] = exp(prob[j] - top);
        sum += prob[j];
    }
    for (uint32_t j = begin; j <= place; j++) {
        prob[j] /= sum;
    }
    return top + log(sum);
}

static void reference_forward(const struct reference *ref, const double *qkv) {
    const struct ox_attention_shape *const shape = &ref->shape;
    for (uint32_t batch = 0; batch < shape->batch; batch++) {
        const size_t first = (size_t)batch * shape->seq;
        for (uint32_t head = 0; head < shape->heads; head++) {
            for (uint32_t place = 0; place < shape->seq; place++) {
                const size_t at = ((size_t)batch * shape->heads + head) * shape->seq + place;
                const struct query query = {.first = first, .place = place, .head = head};
                ref->lse[at] = probabilities(ref, qkv, query);
                for (uint32_t i = 0; i < shape->head_dim; i++) {
                    double sum = 0.0;
                    for (uint32_t j = first_seen(ref, query); j <= place; j++) {
                        sum += ref->prob[j] * qkv[v_at(shape, first + j, head) + i];
                    }
                    ref->out[((first + place) * shape->heads + head) * shape->head_dim + i] = sum;
                }
            }
        }
    }
}

/* The cap's slope at the score of key `key`, which follows from its probability. */
static double cap_slope(const struct reference *ref, double log_sum, uint32_t key) {
    const double cap = (double)ref->shape.cap, share = cap == 0.0 ? 0.0 : (log(ref->prob[key]) + log_sum) / cap;
    return 1.0 - share * share;
}

static void reference_backward(const struct reference *ref) {
    const struct ox_attention_shape *const shape = &ref->shape;
    const uint32_t dim = shape->head_dim;
    memset(ref->dqkv, 0, shape->batch * shape->seq * row_len(shape) * sizeof(double));
    for (uint32_t item = 0; item < shape->batch * shape->heads * shape->seq; item++) {
        const uint32_t place = item % shape->seq, head = item / shape->seq % shape->heads;
        const size_t first = (size_t)(item / shape->seq / shape->heads) * shape->seq;
        const double *const dout = ref->dout + ((first + place) * shape->heads + head) * dim;
        const double *const out = ref->out + ((first + place) * shape->heads + head) * dim;
        const size_t q = q_at(shape, first + place, head);
        const struct query query = {.first = first, .place = place, .head = head};
        const double log_sum = probabilities(ref, ref->qkv, query);
        double delta = 0.0;
        for (uint32_t i = 0; i < dim; i++) {
            delta += dout[i] * out[i];
        }
        for (uint32_t j = first_seen(ref, query); j <= place; j++) {
            const size_t k = k_at(shape, first + j, head), v = v_at(shape, first + j, head);
            double dprob = 0.0;
            for (uint32_t i = 0; i < dim; i++) {
                dprob += dout[i] * ref->qkv[v + i];
                ref->dqkv[v + i] += ref->prob[j] * dout[i];
            }
            const double dscore = ref->prob[j] * (dprob - delta) * (double)shape->scale * cap_slope(ref, log_sum, j);
            for (uint32_t i = 0; i < dim; i++) {
                ref->dqkv[q + i] += dscore * ref->qkv[k + i];
                ref->dqkv[k + i] += dscore * ref->qkv[q + i];
            }
        }
    }
}

/* Rows of documents of these lengths, which begin again after the last; a sequence's end cuts. */
static const int32_t *positions_of(const struct ox_attention_shape *shape, const uint32_t *lengths) {
    int32_t *const out = guarded((size_t)shape->batch * shape->seq * sizeof *out);
    uint32_t at = 0;
    for (uint32_t batch = 0; batch < shape->batch; batch++) {
        for (uint32_t begin = 0; begin < shape->seq; at = lengths[at + 1] == 0 ? 0 : at + 1) {
            for (uint32_t i = 0; i < lengths[at] && begin + i < shape->seq; i++) {
                out[batch * shape->seq + begin + i] = (int32_t)i;
            }
            begin += lengths[at];
        }
    }
    return out;
}

static double reference_loss(const void *context, const double *qkv) {
    const struct reference *const ref = context;
    const size_t count = (size_t)ref->shape.batch * ref->shape.seq * ref->shape.heads * ref->shape.head_dim;
    reference_forward(ref, qkv);
    double loss = 0.0;
    for (size_t i = 0; i < count; i++) {
        loss += ref->out[i] * ref->dout[i];
    }
    return loss;
}

/* Tolerances; with large scores the rounding of a score alone moves a probability by 1e-5. In bfloat16 the results'
 * own rounding is 2e-3, and that of weights and slopes as much again; in halves an eighth. */
struct bounds {
    const char *out_name, *lse_name, *dqkv_name;
    double out, lse, dqkv;
};
/* In float32 the gradients of an H200 lie up to 1.6e-6 away, those of the emulation up to 1.1e-6. */
static const struct bounds usual[3] = {{"out", "lse", "dqkv", 7e-7, 4e-7, 2e-6},
                                       {"out", "lse", "dqkv", 1e-2, 3.5e-7, 1.2e-2},
                                       {"out", "lse", "dqkv", 1.3e-3, 3.5e-7, 1.6e-3}};
static const struct bounds large[3] = {
    {"out, large scores", "lse, large scores", "dqkv, large scores", 5e-5, 5e-7, 4e-5},
    {"out, large scores", "lse, large scores", "dqkv, large scores", 1.5e-2, 6e-7, 2e-2},
    {"out, large scores", "lse, large scores", "dqkv, large scores", 2e-3, 6e-7, 2.6e-3}};

struct job {
    const struct reference *ref;
    const struct bounds *bounds;
    const float *qkv, *dout;
    enum ox_real real;
};

/* Results of both passes of an operation. */
struct results {
    void *out, *dqkv;
    float *lse;
};

static struct results results_for(const struct ox_attention_shape *shape, enum ox_real real) {
    const size_t rows = (size_t)shape->batch * shape->seq;
    return (struct results){.out = reals(real, rows * shape->heads * shape->head_dim),
                            .dqkv = reals(real, rows * row_len(shape)),
                            .lse = floats(rows * shape->heads)};
}

static void both_passes(struct lab *lab, const struct job *job, struct results to) {
    const struct ox_attention_shape *const shape = &job->ref->shape;
    const int keep = guard_count;
    const size_t rows = (size_t)shape->batch * shape->seq, out_len = rows * shape->heads * shape->head_dim;
    const void *const qkv = reals_of(job->real, job->qkv, rows * row_len(shape));
    const void *const dout = reals_of(job->real, job->dout, out_len);
    void *const scratch = guarded(ox_ops_attention_scratch_bytes(&lab->compute, shape));
    const struct ox_op_attention_forward forward = {.out = to.out,
                                                    .lse = to.lse,
                                                    .qkv = qkv,
                                                    .positions = job->ref->positions,
                                                    .scratch = scratch,
                                                    .shape = *shape,
                                                    .real = job->real};
    const struct ox_op_attention_backward backward = {.dqkv = to.dqkv,
                                                      .dout = dout,
                                                      .qkv = qkv,
                                                      .out = to.out,
                                                      .lse = to.lse,
                                                      .positions = job->ref->positions,
                                                      .scratch = scratch,
                                                      .shape = *shape,
                                                      .real = job->real};
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, attention_forward, &forward));
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, attention_backward, &backward));
    lab_finish(lab);
    guards_end(keep);
}

static void run_on(struct lab *lab, const struct job *job) {
    const int keep = guard_count;
    const struct reference *const ref = job->ref;
    const struct bounds *const bounds = job->bounds;
    const enum ox_real real = job->real;
    const size_t rows = (size_t)ref->shape.batch * ref->shape.seq, lse_len = rows * ref->shape.heads;
    const size_t len = rows * row_len(&ref->shape), out_len = lse_len * ref->shape.head_dim;
    const struct results got = results_for(&ref->shape, real);
    both_passes(lab, job, got);
    check_error_in(real, bounds->out_name, error_of(floats_of(real, got.out, out_len), ref->out, out_len), bounds->out);
    check_error_in(real, bounds->lse_name, error_of(got.lse, ref->lse, lse_len), bounds->lse);
    check_error_in(real, bounds->dqkv_name, error_of(floats_of(real, got.dqkv, len), ref->dqkv, len), bounds->dqkv);
    lab_digest(lab, got.out, out_len * ox_real_bytes(real));
    lab_digest(lab, got.lse, lse_len * sizeof(float));
    lab_digest(lab, got.dqkv, len * ox_real_bytes(real));
    guards_end(keep);
}

/* Multiplications over all pairs of a query and a key; the emulation rounds up to its tiles. */
static double work_of(const struct ox_attention_shape *shape, enum ox_real real) {
    const double seq = real == OX_REAL_F32 ? shape->seq : (shape->seq + 127) / 128 * 128;
    return (double)shape->batch * shape->heads * seq * seq * shape->head_dim / (real == OX_REAL_F32 ? 1.0 : 32.0);
}

/* What queries, keys and values are: unit normals, so large that nearly all probabilities are 0, or one value alone, so
 * that all keys a query sees have the same one. */
enum inputs { NORMAL, LARGE, EQUAL };

static void run_shape(struct lab labs[LAB_MAX], const struct packed *given, enum ox_real real, enum inputs inputs) {
    struct ox_attention_shape shape = given->shape;
    shape.scale = (float)(1.0 / sqrt((double)shape.head_dim));
    const size_t rows = (size_t)shape.batch * shape.seq;
    const size_t out_len = rows * shape.heads * shape.head_dim;
    float *const qkv = random_reals(real, rows * row_len(&shape), 1, inputs == LARGE ? 12.0 : 1.0);
    if (inputs == EQUAL) {
        fill(qkv, rows * row_len(&shape), 0.75f);
    }
    const float *const dout = random_reals(real, out_len, 2, 1.0);
    struct reference ref = {.shape = shape,
                            .positions = given->lengths[0] == 0 ? NULL : positions_of(&shape, given->lengths),
                            .qkv = widened(qkv, rows * row_len(&shape)),
                            .dout = widened(dout, out_len),
                            .out = doubles(out_len),
                            .lse = doubles(rows * shape.heads),
                            .dqkv = doubles(rows * row_len(&shape)),
                            .prob = doubles(shape.seq)};
    reference_forward(&ref, ref.qkv);
    reference_backward(&ref);
    if (rows < 20 && real == OX_REAL_F32) {
        check_error("the reference's gradient",
                    gradient_error(reference_loss, &ref, ref.qkv, ref.dqkv, rows * row_len(&shape)), 1e-8);
        reference_forward(&ref, ref.qkv);
    }
    const struct job job = {.ref = &ref,
                            .bounds = inputs == LARGE ? &large[real] : &usual[real],
                            .qkv = qkv,
                            .dout = dout,
                            .real = real};
    for (int i = 0; i < lab_count; i++) {
        if (lab_knows(&labs[i], real) && lab_takes(&labs[i], work_of(&shape, real))) {
            run_on(&labs[i], &job);
        }
    }
    labs_end_case(labs);
}

/* One document per sequence: our own kernels give the same bits whether the positions say so or are not given. cuDNN
 * is not asked for documents, so with it two implementations compute the two, and `halves` has both for their
 * tolerance. */
static void test_one_document(struct lab *lab, struct ox_attention_shape shape, enum ox_real real) {
    shape.scale = 0.3f;
    const uint32_t lengths[2] = {shape.seq, 0};
    const size_t rows = (size_t)shape.batch * shape.seq, len = rows * row_len(&shape);
    const size_t out_len = rows * shape.heads * shape.head_dim;
    const float *const qkv = random_reals(real, len, 1, 1.0), *const dout = random_reals(real, out_len, 2, 1.0);
    const struct reference refs[2] = {{.shape = shape}, {.shape = shape, .positions = positions_of(&shape, lengths)}};
    struct results results[2];
    CHECK(lab_knows(lab, real));
    if (!lab_owns_attention(lab, real)) {
        guards_end(0);
        return;
    }
    for (int i = 0; i < 2; i++) {
        results[i] = results_for(&shape, real);
        both_passes(lab, &(struct job){.ref = &refs[i], .qkv = qkv, .dout = dout, .real = real}, results[i]);
    }
    CHECK(memcmp(results[0].out, results[1].out, out_len * ox_real_bytes(real)) == 0);
    CHECK(memcmp(results[0].lse, results[1].lse, rows * shape.heads * sizeof(float)) == 0);
    CHECK(memcmp(results[0].dqkv, results[1].dqkv, len * ox_real_bytes(real)) == 0);
    guards_end(0);
}

/* Keys outside the window are not read at all: they may hold anything. */
static void test_unseen(struct lab *lab, enum ox_real real) {
    const struct ox_attention_shape shape = {
        .batch = 1, .seq = 700, .heads = 1, .kv_heads = 1, .head_dim = 16, .window = 20, .scale = 0.5f};
    const size_t len = shape.seq * row_len(&shape), out_len = (size_t)shape.seq * shape.head_dim;
    const size_t row = shape.head_dim * ox_real_bytes(real), first = 500 + shape.window - 1;
    const struct reference ref = {.shape = shape};
    float *const qkv = random_reals(real, len, 1, 1.0);
    const float *const dout = random_reals(real, out_len, 2, 1.0);
    struct results results[2];
    CHECK(lab_knows(lab, real));
    for (int i = 0; i < 2; i++) {
        results[i] = results_for(&shape, real);
        both_passes(lab, &(struct job){.ref = &ref, .qkv = qkv, .dout = dout, .real = real}, results[i]);
        for (size_t j = 0; j < 500 * row_len(&shape); j++) {
            qkv[j] = real == OX_REAL_F16 ? 6e4f : 1e30f;
        }
    }
    const char *const before = results[0].out, *const after = results[1].out;
    CHECK(memcmp(after + first * row, before + first * row, (shape.seq - first) * row) == 0);
    CHECK(memcmp(after + (first - 1) * row, before + (first - 1) * row, row) != 0);
    guards_end(0);
}

/* The content of other documents changes no bit of one. */
static void test_apart(struct lab *lab, enum ox_real real) {
    const struct ox_attention_shape shape = {
        .batch = 1, .seq = 500, .heads = 2, .kv_heads = 1, .head_dim = 16, .scale = 0.5f};
    const uint32_t lengths[] = {300, 45, 155, 0};
    const size_t len = shape.seq * row_len(&shape), out_len = (size_t)shape.seq * shape.heads * shape.head_dim;
    const size_t in_row = row_len(&shape) * ox_real_bytes(real);
    const size_t out_row = (size_t)shape.heads * shape.head_dim * ox_real_bytes(real);
    const struct reference ref = {.shape = shape, .positions = positions_of(&shape, lengths)};
    float *const qkv = random_reals(real, len, 1, 1.0);
    const float *const dout = random_reals(real, out_len, 2, 1.0);
    struct results results[2];
    CHECK(lab_knows(lab, real));
    for (int i = 0; i < 2; i++) {
        results[i] = results_for(&shape, real);
        both_passes(lab, &(struct job){.ref = &ref, .qkv = qkv, .dout = dout, .real = real}, results[i]);
        fill_normal(qkv, 300 * row_len(&shape), 3, 2.0);
        fill_normal(qkv + 345 * row_len(&shape), 155 * row_len(&shape), 4, 2.0);
    }
    const char *const out[2] = {results[0].out, results[1].out}, *const dqkv[2] = {results[0].dqkv, results[1].dqkv};
    CHECK(memcmp(out[0] + 300 * out_row, out[1] + 300 * out_row, 45 * out_row) == 0);
    CHECK(memcmp(dqkv[0] + 300 * in_row, dqkv[1] + 300 * in_row, 45 * in_row) == 0);
    CHECK(memcmp(out[0] + 299 * out_row, out[1] + 299 * out_row, out_row) != 0);
    CHECK(memcmp(dqkv[0] + 345 * in_row, dqkv[1] + 345 * in_row, 45 * in_row) != 0);
    guards_end(0);
}

static void run_halves(struct lab labs[LAB_MAX], enum ox_real real) {
    for (int i = LAB_SIMT; i < lab_count; i++) {
        test_unseen(&labs[i], real);
        test_apart(&labs[i], real);
        test_one_document(&labs[i], halves[HALVES_LARGE].shape, real);
    }
    for (int i = 0; i < HALVES_COUNT; i++) {
        if (test_takes((unsigned)i + real, 9)) {
            run_shape(labs, &halves[i], real, NORMAL);
        }
    }
    run_shape(labs, &halves[HALVES_LARGE], real, LARGE);
}

int main(void) {
    struct lab labs[LAB_MAX];
    labs_open(labs);
    test_unseen(&labs[1], OX_REAL_F32);
    test_apart(&labs[1], OX_REAL_F32);
    for (int i = 0; i < WHOLE_COUNT; i++) {
        run_shape(labs, &(struct packed){.shape = whole[i]}, OX_REAL_F32, NORMAL);
        test_one_document(&labs[1], whole[i], OX_REAL_F32);
    }
    for (int i = 0; i < PACKED_COUNT; i++) {
        run_shape(labs, &packed[i], OX_REAL_F32, NORMAL);
    }
    /* Scores of some hundreds: nearly all probabilities are exactly 0. */
    run_shape(labs, &(struct packed){.shape = whole[WHOLE_LARGE]}, OX_REAL_F32, LARGE);
    run_shape(labs, &packed[PACKED_LARGE], OX_REAL_F32, LARGE);
    run_shape(labs, &(struct packed){.shape = whole[WHOLE_LARGE]}, OX_REAL_F32, EQUAL);
    run_shape(labs, &packed[PACKED_LARGE], OX_REAL_F32, EQUAL);
    CHECK(lab_owns_attention(&labs[LAB_SIMT], OX_REAL_BF16));
    run_halves(labs, OX_REAL_BF16);
    run_halves(labs, OX_REAL_F16);
    labs_change_attention(labs);
    CHECK(!lab_owns_attention(&labs[LAB_SIMT], OX_REAL_BF16));
    run_halves(labs, OX_REAL_BF16);
    return labs_end(labs);
}
