/* Activations, rotary embedding and token embedding against references in double. */
#include "base/planes.h"
#include "tests/conform/test_ops.h"

/* ---- activations ------------------------------------------------------------------------------ */

struct act_case {
    uint32_t rows, width;
    enum ox_act_kind kind;
    double scale;
};
static const struct act_case act_cases[] = {
    {1, 1, OX_ACT_SWIGLU, 2.0},   {3, 7, OX_ACT_SWIGLU, 2.0}, {17, 300, OX_ACT_SWIGLU, 2.0},
    {5, 65, OX_ACT_SWIGLU, 60.0}, {1, 1, OX_ACT_GELU_TANH, 2.0}, {3, 7, OX_ACT_GELU_TANH, 2.0},
    {17, 300, OX_ACT_GELU_TANH, 2.0}, {5, 65, OX_ACT_GELU_TANH, 60.0},
};
enum { ACT_COUNT = sizeof act_cases / sizeof act_cases[0] };

static double sigmoid(double x) {
    return x >= 0.0 ? 1.0 / (1.0 + exp(-x)) : exp(x) / (1.0 + exp(x));
}

static const double root_two_over_pi = 0.79788456080286535588;

static double gelu(double x) {
    return 0.5 * x * (1.0 + tanh(root_two_over_pi * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x) {
    const double u = root_two_over_pi * (x + 0.044715 * x * x * x), t = tanh(u);
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * root_two_over_pi * (1.0 + 3.0 * 0.044715 * x * x);
}

struct act_data {
    const struct act_case *shape;
    size_t in_len, out_len;
    const float *in, *dout;
    double *in_wide, *out, *din;
};

static void act_reference(const struct act_data *data, const double *in) {
    const struct act_case *const shape = data->shape;
    for (size_t at = 0; at < data->out_len; at++) {
        if (shape->kind == OX_ACT_GELU_TANH) {
            data->out[at] = gelu(in[at]);
            data->din[at] = (double)data->dout[at] * gelu_slope(in[at]);
            continue;
        }
        const size_t gate = at / shape->width * 2 * shape->width + at % shape->width;
        const size_t up = gate + shape->width;
        const double s = sigmoid(in[gate]);
        data->out[at] = in[gate] * s * in[up];
        data->din[gate] = (double)data->dout[at] * in[up] * (s + in[gate] * s * (1.0 - s));
        data->din[up] = (double)data->dout[at] * in[gate] * s;
    }
}

static double act_loss(const void *context, const double *in) {
    const struct act_data *const data = context;
    double loss = 0.0;
    act_reference(data, in);
    for (size_t i = 0; i < data->out_len; i++) {
        loss += data->out[i] * (double)data->dout[i];
    }
    return loss;
}

static void run_act_on(struct lab *lab, const struct act_data *data) {
    const int keep = guard_count;
    const struct act_case *const shape = data->shape;
    float *const out = floats(data->out_len), *const din = floats(data->in_len);
    float *const in_place = floats(data->in_len);
    const struct ox_op_act_forward forward = {
        .out = out, .in = data->in, .rows = shape->rows, .width = shape->width, .kind = shape->kind};
    struct ox_op_act_backward backward = {.din = din,
                                          .dout = data->dout,
                                          .in = data->in,
                                          .rows = shape->rows,
                                          .width = shape->width,
                                          .kind = shape->kind};
    memcpy(in_place, data->in, data->in_len * sizeof(float));
    REQUIRE_OK(lab->ops.act_forward(lab->lane, &forward));
    REQUIRE_OK(lab->ops.act_backward(lab->lane, &backward));
    backward.din = in_place;
    backward.in = in_place;
    REQUIRE_OK(lab->ops.act_backward(lab->lane, &backward));
    lab_finish(lab);
    check_error("activation out", error_of(out, data->out, data->out_len), 3e-7);
    check_error("activation din", error_of(din, data->din, data->in_len), 5e-7);
    CHECK(memcmp(din, in_place, data->in_len * sizeof(float)) == 0);
    lab_digest(lab, out, data->out_len * sizeof(float));
    lab_digest(lab, din, data->in_len * sizeof(float));
    guards_end(keep);
}

static void run_act(struct lab labs[LAB_COUNT], const struct act_case *shape) {
    struct act_data data = {.shape = shape, .out_len = (size_t)shape->rows * shape->width};
    data.in_len = data.out_len * (shape->kind == OX_ACT_SWIGLU ? 2 : 1);
    data.in = random_floats(data.in_len, 1, shape->scale);
    data.dout = random_floats(data.out_len, 2, 1.0);
    data.in_wide = widened(data.in, data.in_len);
    data.out = doubles(data.out_len);
    data.din = doubles(data.in_len);
    act_reference(&data, data.in_wide);
    if (data.out_len < 50) {
        double *const din = doubles(data.in_len);
        memcpy(din, data.din, data.in_len * sizeof(double));
        check_error("act reference's gradient",
                    gradient_error(act_loss, &data, data.in_wide, din, data.in_len), 1e-8);
        act_reference(&data, data.in_wide);
    }
    for (int i = 0; i < LAB_COUNT; i++) {
        run_act_on(&labs[i], &data);
    }
    labs_same_bits(labs);
    guards_end(0);
}

/* ---- rotary embedding -------------------------------------------------------------------------- */

struct rope_case {
    uint32_t rows, heads, head_dim, extra; /* floats of a row beyond the rotated heads */
};
static const struct rope_case rope_cases[] = {
    {1, 1, 2, 0}, {5, 3, 12, 7}, {33, 2, 64, 64}, {70, 5, 6, 1}, {4, 1, 128, 0}};
enum { ROPE_COUNT = sizeof rope_cases / sizeof rope_cases[0], CONTEXTS = 100, HALF_MAX = 64 };

static void run_rope_on(struct lab *lab, const struct rope_case *shape, const int32_t *positions) {
    const int keep = guard_count;
    const uint32_t half = shape->head_dim / 2, stride = shape->heads * shape->head_dim + shape->extra;
    const size_t len = (size_t)shape->rows * stride, table_len = (size_t)CONTEXTS * half;
    float *const cos_table = floats(table_len), *const sin_table = floats(table_len);
    float *const qk = random_floats(len, 3, 1.0), *const before = random_floats(len, 3, 1.0);
    double *const want = widened(before, len), *const kept = widened(before, len);
    double *const cos_want = doubles(table_len), *const sin_want = doubles(table_len);
    double freq[HALF_MAX];
    for (uint32_t i = 0; i < half; i++) {
        freq[i] = pow(10000.0, -2.0 * i / shape->head_dim);
    }
    const struct ox_op_rope_table table = {cos_table, sin_table, freq, CONTEXTS, half};
    REQUIRE_OK(lab->ops.rope_table(lab->lane, &table));
    memset(freq, 0, sizeof freq); /* they were read before the call returned */
    struct ox_op_rope op = {.qk = qk,
                            .cos_table = cos_table,
                            .sin_table = sin_table,
                            .positions = positions,
                            .rows = shape->rows,
                            .row_stride = stride,
                            .heads = shape->heads,
                            .head_dim = shape->head_dim};
    REQUIRE_OK(lab->ops.rope(lab->lane, &op));
    lab_finish(lab);
    for (size_t i = 0; i < table_len; i++) {
        const double angle = (double)(i / half) * pow(10000.0, -2.0 * (double)(i % half) / shape->head_dim);
        cos_want[i] = cos(angle);
        sin_want[i] = sin(angle);
    }
    for (size_t at = 0; at < (size_t)shape->rows * shape->heads * half; at++) {
        const size_t row = at / (shape->heads * half), i = at % half;
        const size_t low = row * stride + at / half % shape->heads * shape->head_dim + i;
        const double c = cos_want[(size_t)positions[row] * half + i];
        const double s = sin_want[(size_t)positions[row] * half + i];
        want[low] = kept[low] * c - kept[low + half] * s;
        want[low + half] = kept[low + half] * c + kept[low] * s;
    }
    check_error("rope tables", fmax(error_of(cos_table, cos_want, table_len),
                                    error_of(sin_table, sin_want, table_len)), 6e-8);
    check_error("rope", error_of(qk, want, len), 1.5e-7);
    lab_digest(lab, qk, len * sizeof(float));
    op.inverse = true;
    REQUIRE_OK(lab->ops.rope(lab->lane, &op));
    lab_finish(lab);
    check_error("rope and back", error_of(qk, kept, len), 2e-7);
    guards_end(keep);
}

static void run_rope(struct lab labs[LAB_COUNT], const struct rope_case *shape) {
    int32_t *const positions = guarded(shape->rows * sizeof(int32_t));
    for (uint32_t row = 0; row < shape->rows; row++) {
        positions[row] = (int32_t)(row * 37 % CONTEXTS);
    }
    for (int i = 0; i < LAB_COUNT; i++) {
        run_rope_on(&labs[i], shape, positions);
    }
    labs_same_bits(labs);
    guards_end(0);
}

/* ---- token embedding --------------------------------------------------------------------------- */

struct embed_case {
    uint32_t rows, hidden;
    bool with_lo, with_pos;
};
static const struct embed_case embed_cases[] = {
    {1, 3, true, true}, {70, 48, false, false}, {130, 700, true, true}, {200, 17, false, true}};
enum { EMBED_COUNT = sizeof embed_cases / sizeof embed_cases[0], VOCAB = 50, PLACES = 20 };

struct planes {
    uint16_t *hi, *lo;
    float *value;
};

static struct planes make_planes(size_t count, uint64_t stream, bool with_lo) {
    struct planes out = {guarded(count * 2), with_lo ? guarded(count * 2) : NULL,
                         random_floats(count, stream, 1.0)};
    for (size_t i = 0; i < count; i++) {
        out.hi[i] = ox_plane_hi(out.value[i]);
        if (with_lo) {
            out.lo[i] = ox_plane_lo(out.value[i]);
        } else {
            out.value[i] = ox_bf16_to_f32(out.hi[i]);
        }
    }
    return out;
}

/* Both directions are sums in a stated order, so they are compared bit by bit. */
static void run_embed(struct lab labs[LAB_COUNT], const struct embed_case *shape) {
    const size_t len = (size_t)shape->rows * shape->hidden;
    const size_t table_len = (size_t)VOCAB * shape->hidden, pos_len = (size_t)PLACES * shape->hidden;
    const struct planes table = make_planes(table_len, 4, shape->with_lo);
    const struct planes pos = make_planes(pos_len, 5, shape->with_lo);
    int32_t *const ids = guarded(shape->rows * 4), *const positions = guarded(shape->rows * 4);
    float *const want = floats(len), *const dout = random_floats(len, 6, 1.0);
    float *const dtable_want = random_floats(table_len, 7, 1.0);
    float *const dpos_want = random_floats(pos_len, 8, 1.0);
    for (uint32_t row = 0; row < shape->rows; row++) {
        ids[row] = (int32_t)(ox_uniform(1, 9, row) * VOCAB);
        positions[row] = (int32_t)(row % PLACES);
    }
    for (size_t at = 0; at < len; at++) {
        const size_t word = (size_t)ids[at / shape->hidden] * shape->hidden + at % shape->hidden;
        const size_t place = (size_t)positions[at / shape->hidden] * shape->hidden + at % shape->hidden;
        want[at] = table.value[word] + (shape->with_pos ? pos.value[place] : 0.0f);
        dtable_want[word] += dout[at];
        dpos_want[place] += dout[at];
    }
    for (int i = 0; i < LAB_COUNT; i++) {
        const int keep = guard_count;
        float *const out = floats(len);
        float *const dtable = random_floats(table_len, 7, 1.0), *const dpos = random_floats(pos_len, 8, 1.0);
        const struct ox_op_embed_forward forward = {.out = out,
                                                    .table_hi = table.hi,
                                                    .table_lo = table.lo,
                                                    .pos_hi = shape->with_pos ? pos.hi : NULL,
                                                    .pos_lo = shape->with_pos ? pos.lo : NULL,
                                                    .ids = ids,
                                                    .positions = positions,
                                                    .rows = shape->rows,
                                                    .hidden = shape->hidden};
        const struct ox_op_embed_backward backward = {.dtable = dtable,
                                                      .dpos = shape->with_pos ? dpos : NULL,
                                                      .dout = dout,
                                                      .ids = ids,
                                                      .positions = positions,
                                                      .rows = shape->rows,
                                                      .hidden = shape->hidden};
        REQUIRE_OK(labs[i].ops.embed_forward(labs[i].lane, &forward));
        REQUIRE_OK(labs[i].ops.embed_backward(labs[i].lane, &backward));
        lab_finish(&labs[i]);
        CHECK(memcmp(out, want, len * sizeof(float)) == 0);
        CHECK(memcmp(dtable, dtable_want, table_len * sizeof(float)) == 0);
        CHECK(!shape->with_pos || memcmp(dpos, dpos_want, pos_len * sizeof(float)) == 0);
        guards_end(keep);
    }
    guards_end(0);
}

int main(void) {
    struct lab labs[LAB_COUNT];
    labs_open(labs);
    for (int i = 0; i < ACT_COUNT; i++) {
        run_act(labs, &act_cases[i]);
    }
    for (int i = 0; i < ROPE_COUNT; i++) {
        run_rope(labs, &rope_cases[i]);
    }
    for (int i = 0; i < EMBED_COUNT; i++) {
        run_embed(labs, &embed_cases[i]);
    }
    labs_close(labs);
    print_errors();
    return test_end();
}
