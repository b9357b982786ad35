/* Attention against a plain reference in double, forward and backward. */
#include "tests/conform/test_ops.h"

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
};
enum { WHOLE_COUNT = sizeof whole / sizeof whole[0], WHOLE_LARGE = 5 };

/* Sequences of several documents: their lengths in turn, over all sequences, where a sequence's end cuts the last.
 * Queries are walked by 128 and keys by 512: documents begin and end at, before and behind these borders, so that rows
 * see no key of the first block that their neighbours need, or of several. */
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
        prob[j] = score * (double)shape->scale;
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
        probabilities(ref, ref->qkv, query);
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
            const double dscore = ref->prob[j] * (dprob - delta) * (double)shape->scale;
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

/* Tolerances; with large scores the rounding of a score alone moves a probability by 1e-5. */
struct bounds {
    const char *out_name, *lse_name, *dqkv_name;
    double out, lse, dqkv;
};
static const struct bounds usual = {"out", "lse", "dqkv", 7e-7, 4e-7, 1.2e-6};
static const struct bounds large = {
    "out, large scores", "lse, large scores", "dqkv, large scores", 5e-5, 5e-7, 4e-5};

static void run_on(struct lab *lab, const struct reference *ref, const struct bounds *bounds,
                   const float *qkv, const float *dout) {
    const int keep = guard_count;
    const struct ox_attention_shape *const shape = &ref->shape;
    const size_t rows = (size_t)shape->batch * shape->seq;
    const size_t out_len = rows * shape->heads * shape->head_dim, lse_len = rows * shape->heads;
    float *const out = floats(out_len), *const lse = floats(lse_len);
    float *const dqkv = floats(rows * row_len(shape));
    float *const scratch = guarded(ox_ops_attention_scratch_bytes(&lab->compute, shape));
    const struct ox_op_attention_forward forward = {
        .out = out, .lse = lse, .qkv = qkv, .positions = ref->positions, .scratch = scratch, .shape = *shape};
    const struct ox_op_attention_backward backward = {.dqkv = dqkv,
                                                      .dout = dout,
                                                      .qkv = qkv,
                                                      .out = out,
                                                      .lse = lse,
                                                      .positions = ref->positions,
                                                      .scratch = scratch,
                                                      .shape = *shape};
    REQUIRE_OK(lab->ops.attention_forward(lab->lane, &forward));
    REQUIRE_OK(lab->ops.attention_backward(lab->lane, &backward));
    lab_finish(lab);
    check_error(bounds->out_name, error_of(out, ref->out, out_len), bounds->out);
    check_error(bounds->lse_name, error_of(lse, ref->lse, lse_len), bounds->lse);
    check_error(bounds->dqkv_name, error_of(dqkv, ref->dqkv, rows * row_len(shape)), bounds->dqkv);
    lab_digest(lab, out, out_len * sizeof(float));
    lab_digest(lab, lse, lse_len * sizeof(float));
    lab_digest(lab, dqkv, rows * row_len(shape) * sizeof(float));
    guards_end(keep);
}

static void run_shape(struct lab labs[LAB_COUNT], struct ox_attention_shape shape, const uint32_t *lengths,
                      bool large_scores) {
    shape.scale = (float)(1.0 / sqrt((double)shape.head_dim));
    const size_t rows = (size_t)shape.batch * shape.seq;
    const size_t out_len = rows * shape.heads * shape.head_dim;
    const float *const qkv = random_floats(rows * row_len(&shape), 1, large_scores ? 12.0 : 1.0);
    const float *const dout = random_floats(out_len, 2, 1.0);
    struct reference ref = {.shape = shape,
                            .positions = lengths == NULL ? NULL : positions_of(&shape, lengths),
                            .qkv = widened(qkv, rows * row_len(&shape)),
                            .dout = widened(dout, out_len),
                            .out = doubles(out_len),
                            .lse = doubles(rows * shape.heads),
                            .dqkv = doubles(rows * row_len(&shape)),
                            .prob = doubles(shape.seq)};
    reference_forward(&ref, ref.qkv);
    reference_backward(&ref);
    if (rows < 20) {
        check_error("the reference's gradient",
                    gradient_error(reference_loss, &ref, ref.qkv, ref.dqkv, rows * row_len(&shape)), 1e-8);
        reference_forward(&ref, ref.qkv);
    }
    const double work = (double)shape.batch * shape.heads * shape.seq * shape.seq * shape.head_dim;
    for (int i = 0; i < LAB_COUNT; i++) {
        if (lab_takes(&labs[i], work)) {
            run_on(&labs[i], &ref, large_scores ? &large : &usual, qkv, dout);
        }
    }
    labs_same_bits(labs);
    guards_end(0);
}

/* One document per sequence: the same bits whether the positions say so or are not given. */
static void test_one_document(struct lab *lab, struct ox_attention_shape shape) {
    shape.scale = 0.3f;
    const uint32_t lengths[2] = {shape.seq, 0};
    const size_t rows = (size_t)shape.batch * shape.seq, len = rows * row_len(&shape);
    const size_t out_len = rows * shape.heads * shape.head_dim;
    const int32_t *const positions = positions_of(&shape, lengths);
    const float *const qkv = random_floats(len, 1, 1.0), *const dout = random_floats(out_len, 2, 1.0);
    float *const out[2] = {floats(out_len), floats(out_len)}, *const dqkv[2] = {floats(len), floats(len)};
    float *const lse[2] = {floats(rows * shape.heads), floats(rows * shape.heads)};
    float *const scratch = guarded(ox_ops_attention_scratch_bytes(&lab->compute, &shape));
    for (int i = 0; i < 2; i++) {
        const struct ox_op_attention_forward forward = {.out = out[i], .lse = lse[i], .qkv = qkv,
                                                        .positions = i == 0 ? NULL : positions,
                                                        .scratch = scratch, .shape = shape};
        const struct ox_op_attention_backward backward = {.dqkv = dqkv[i], .dout = dout, .qkv = qkv,
                                                          .out = out[i], .lse = lse[i],
                                                          .positions = i == 0 ? NULL : positions,
                                                          .scratch = scratch, .shape = shape};
        REQUIRE_OK(lab->ops.attention_forward(lab->lane, &forward));
        REQUIRE_OK(lab->ops.attention_backward(lab->lane, &backward));
    }
    lab_finish(lab);
    CHECK(memcmp(out[0], out[1], out_len * sizeof(float)) == 0);
    CHECK(memcmp(lse[0], lse[1], rows * shape.heads * sizeof(float)) == 0);
    CHECK(memcmp(dqkv[0], dqkv[1], len * sizeof(float)) == 0);
    guards_end(0);
}

/* Keys outside the window are not read at all: they may hold anything. */
static void test_unseen(struct lab *lab) {
    const struct ox_attention_shape shape = {
        .batch = 1, .seq = 700, .heads = 1, .kv_heads = 1, .head_dim = 4, .window = 20, .scale = 0.5f};
    const size_t len = shape.seq * row_len(&shape), out_len = (size_t)shape.seq * shape.head_dim;
    float *const qkv = random_floats(len, 1, 1.0);
    float *const out = floats(out_len), *const lse = floats(shape.seq), *const before = floats(out_len);
    const struct ox_op_attention_forward forward = {
        .out = out, .lse = lse, .qkv = qkv, .shape = shape,
        .scratch = guarded(ox_ops_attention_scratch_bytes(&lab->compute, &shape))};
    REQUIRE_OK(lab->ops.attention_forward(lab->lane, &forward));
    lab_finish(lab);
    memcpy(before, out, out_len * sizeof(float));
    for (size_t i = 0; i < 500 * row_len(&shape); i++) {
        qkv[i] = 1e30f;
    }
    REQUIRE_OK(lab->ops.attention_forward(lab->lane, &forward));
    lab_finish(lab);
    const size_t first = (500 + shape.window - 1) * (size_t)shape.head_dim;
    CHECK(memcmp(out + first, before + first, (out_len - first) * sizeof(float)) == 0);
    CHECK(memcmp(out + first - shape.head_dim, before + first - shape.head_dim, sizeof(float)) != 0);
    guards_end(0);
}

/* What other documents hold does not move a bit of one. */
static void test_apart(struct lab *lab) {
    const struct ox_attention_shape shape = {
        .batch = 1, .seq = 700, .heads = 2, .kv_heads = 1, .head_dim = 4, .scale = 0.5f};
    const uint32_t lengths[] = {300, 45, 355, 0};
    const size_t len = shape.seq * row_len(&shape), out_len = (size_t)shape.seq * shape.heads * shape.head_dim;
    float *const qkv = random_floats(len, 1, 1.0), *const dout = random_floats(out_len, 2, 1.0);
    float *const out[2] = {floats(out_len), floats(out_len)}, *const dqkv[2] = {floats(len), floats(len)};
    float *const lse = floats((size_t)shape.seq * shape.heads);
    const int32_t *const positions = positions_of(&shape, lengths);
    float *const scratch = guarded(ox_ops_attention_scratch_bytes(&lab->compute, &shape));
    for (int i = 0; i < 2; i++) {
        const struct ox_op_attention_forward forward = {.out = out[i], .lse = lse, .qkv = qkv,
                                                        .positions = positions, .scratch = scratch,
                                                        .shape = shape};
        const struct ox_op_attention_backward backward = {.dqkv = dqkv[i], .dout = dout, .qkv = qkv,
                                                          .out = out[i], .lse = lse, .positions = positions,
                                                          .scratch = scratch, .shape = shape};
        REQUIRE_OK(lab->ops.attention_forward(lab->lane, &forward));
        REQUIRE_OK(lab->ops.attention_backward(lab->lane, &backward));
        lab_finish(lab);
        fill_normal(qkv, 300 * row_len(&shape), 3, 2.0);
        fill_normal(qkv + 345 * row_len(&shape), 355 * row_len(&shape), 4, 2.0);
    }
    const size_t first = 300 * row_len(&shape), count = 45 * row_len(&shape);
    const size_t out_row = (size_t)shape.heads * shape.head_dim;
    CHECK(memcmp(out[0] + 300 * out_row, out[1] + 300 * out_row, 45 * out_row * sizeof(float)) == 0);
    CHECK(memcmp(dqkv[0] + first, dqkv[1] + first, count * sizeof(float)) == 0);
    CHECK(memcmp(out[0] + 299 * out_row, out[1] + 299 * out_row, out_row * sizeof(float)) != 0);
    CHECK(memcmp(dqkv[0] + first + count, dqkv[1] + first + count, count * sizeof(float)) != 0);
    guards_end(0);
}

int main(void) {
    struct lab labs[LAB_COUNT];
    labs_open(labs);
    test_unseen(&labs[1]);
    test_apart(&labs[1]);
    for (int i = 0; i < WHOLE_COUNT; i++) {
        run_shape(labs, whole[i], NULL, false);
        test_one_document(&labs[1], whole[i]);
    }
    for (int i = 0; i < PACKED_COUNT; i++) {
        run_shape(labs, packed[i].shape, packed[i].lengths, false);
    }
    /* Scores of some hundreds: nearly all probabilities are exactly 0. */
    run_shape(labs, whole[WHOLE_LARGE], NULL, true);
    run_shape(labs, packed[PACKED_LARGE].shape, packed[PACKED_LARGE].lengths, true);
    labs_close(labs);
    print_errors();
    return test_end();
}
