/* Activations, rotary embedding and token embedding against references in double. */
#include "base/planes.h"
#include "base/prng/prng.h"
#include "tests/kit/device/ops_kit.h"

#include <math.h>
#include <string.h>

/* ---- activations ------------------------------------------------------------------------------ */

struct act_case {
    uint32_t rows, width;
    enum ox_activation kind;
    double scale;
};
static const struct act_case act_cases[] = {
    {1, 1, OX_ACTIVATION_SWIGLU, 2.0},   {3, 7, OX_ACTIVATION_SWIGLU, 2.0}, {17, 300, OX_ACTIVATION_SWIGLU, 2.0},
    {5, 65, OX_ACTIVATION_SWIGLU, 60.0}, {1, 1, OX_ACTIVATION_GELU_TANH, 2.0}, {3, 7, OX_ACTIVATION_GELU_TANH, 2.0},
    {17, 300, OX_ACTIVATION_GELU_TANH, 2.0}, {5, 65, OX_ACTIVATION_GELU_TANH, 60.0},
    {3, 1032, OX_ACTIVATION_SWIGLU, 2.0},
    {3, 1032, OX_ACTIVATION_GELU_TANH, 2.0},
    {3, 7, OX_ACTIVATION_GEGLU_TANH, 2.0}, {5, 65, OX_ACTIVATION_GEGLU_TANH, 60.0},
    {3, 1032, OX_ACTIVATION_GEGLU_TANH, 2.0},
    {5, 65, OX_ACTIVATION_SWIGLU, 0.05}, {5, 65, OX_ACTIVATION_GEGLU_TANH, 0.05},
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
    enum ox_real real;
    size_t in_len, out_len;
    const float *in, *dout;
    double *in_wide, *out, *din;
};

static void act_reference(const struct act_data *data, const double *in) {
    const struct act_case *const shape = data->shape;
    for (size_t at = 0; at < data->out_len; at++) {
        if (shape->kind == OX_ACTIVATION_GELU_TANH) {
            data->out[at] = gelu(in[at]);
            data->din[at] = (double)data->dout[at] * gelu_slope(in[at]);
            continue;
        }
        const size_t gate = at / shape->width * 2 * shape->width + at % shape->width;
        const size_t up = gate + shape->width;
        const bool by_gelu = shape->kind == OX_ACTIVATION_GEGLU_TANH;
        const double s = sigmoid(in[gate]), value = by_gelu ? gelu(in[gate]) : in[gate] * s;
        const double slope = by_gelu ? gelu_slope(in[gate]) : s + in[gate] * s * (1.0 - s);
        data->out[at] = value * in[up];
        data->din[gate] = (double)data->dout[at] * in[up] * slope;
        data->din[up] = (double)data->dout[at] * value;
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
    const enum ox_real real = data->real;
    const void *const in = reals_of(real, data->in, data->in_len);
    void *const out = reals(real, data->out_len), *const din = reals(real, data->in_len);
    void *const in_place = reals_of(real, data->in, data->in_len);
    const struct ox_op_act_forward forward = {
        .out = out, .in = in, .rows = shape->rows, .width = shape->width, .kind = shape->kind, .real = real};
    struct ox_op_act_backward backward = {.din = din,
                                          .dout = reals_of(real, data->dout, data->out_len),
                                          .in = in,
                                          .rows = shape->rows,
                                          .width = shape->width,
                                          .kind = shape->kind,
                                          .real = real};
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, act_forward, &forward));
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, act_backward, &backward));
    backward.din = in_place;
    backward.in = in_place;
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, act_backward, &backward));
    lab_finish(lab);
    check_real_error(real, "activation out", error_of(floats_of(real, out, data->out_len), data->out, data->out_len),
                     3e-7, 4e-3);
    check_real_error(real, "activation din", error_of(floats_of(real, din, data->in_len), data->din, data->in_len),
                     5e-7, 4e-3);
    CHECK(memcmp(din, in_place, data->in_len * ox_real_bytes(real)) == 0);
    lab_digest(lab, out, data->out_len * ox_real_bytes(real));
    lab_digest(lab, din, data->in_len * ox_real_bytes(real));
    guards_end(keep);
}

static void run_act(struct lab labs[LAB_MAX], const struct act_case *shape, enum ox_real real, bool hard) {
    struct act_data data = {.shape = shape, .real = real, .out_len = (size_t)shape->rows * shape->width};
    data.in_len = data.out_len * (ox_activation_is_gated(shape->kind) ? 2 : 1);
    float *const in = random_reals(real, data.in_len, 1, shape->scale);
    if (hard) {
        make_hard(in, data.in_len, 3);
    }
    for (size_t i = 0; i < data.in_len; i++) {
        in[i] = real_nearest(real, in[i]);
    }
    data.in = in;
    data.dout = random_reals(real, data.out_len, 2, 1.0);
    data.in_wide = widened(data.in, data.in_len);
    data.out = doubles(data.out_len);
    data.din = doubles(data.in_len);
    act_reference(&data, data.in_wide);
    if (data.out_len < 50 && !hard) {
        double *const din = doubles(data.in_len);
        memcpy(din, data.din, data.in_len * sizeof(double));
        check_error("act reference's gradient",
                    gradient_error(act_loss, &data, data.in_wide, din, data.in_len), 1e-8);
        act_reference(&data, data.in_wide);
    }
    for (int i = 0; i < lab_count; i++) {
        if (lab_knows(&labs[i], real)) {
            run_act_on(&labs[i], &data);
        }
    }
    labs_end_case(labs);
}

/* ---- rotary embedding -------------------------------------------------------------------------- */

struct rope_case {
    uint32_t rows, heads, head_dim, extra; /* floats of a row beyond the rotated heads */
    uint32_t rotary_dim; /* 0: all of a head */
    bool neighbours;
};
static const struct rope_case rope_cases[] = {
    {1, 1, 2, 0, 0, false}, {5, 3, 12, 7, 0, false}, {33, 2, 64, 64, 0, false}, {70, 5, 6, 1, 0, false},
    {4, 1, 128, 0, 0, false}, {3, 40, 128, 256, 0, false}, {5, 3, 12, 7, 10, false}, {9, 2, 64, 64, 48, false},
    {7, 3, 100, 4, 32, false}, {5, 3, 12, 7, 0, true}, {9, 2, 64, 64, 48, true}};
enum { ROPE_COUNT = sizeof rope_cases / sizeof rope_cases[0], CONTEXTS = 100, HALF_MAX = 64 };

static void run_rope_on(struct lab *lab, const struct rope_case *shape, const int32_t *positions, enum ox_real real) {
    const int keep = guard_count;
    const uint32_t rotary_dim = shape->rotary_dim != 0 ? shape->rotary_dim : shape->head_dim;
    const uint32_t half = rotary_dim / 2, stride = shape->heads * shape->head_dim + shape->extra;
    const size_t len = (size_t)shape->rows * stride, table_len = (size_t)CONTEXTS * half;
    float *const cos_table = floats(table_len), *const sin_table = floats(table_len);
    float *const before = random_reals(real, len, 3, 1.0);
    void *const qk = reals_of(real, before, len);
    double *const want = widened(before, len), *const kept = widened(before, len);
    double *const cos_want = doubles(table_len), *const sin_want = doubles(table_len);
    double freq[HALF_MAX];
    for (uint32_t i = 0; i < half; i++) {
        freq[i] = pow(10000.0, -2.0 * i / rotary_dim);
    }
    const double scale = shape->rotary_dim != 0 ? 1.25 : 1.0;
    const struct ox_op_rope_table table = {cos_table, sin_table, freq, CONTEXTS, half, scale};
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, rope_table, &table));
    struct ox_op_rope op = {.qk = qk,
                            .cos_table = cos_table,
                            .sin_table = sin_table,
                            .positions = positions,
                            .rows = shape->rows,
                            .row_stride = stride,
                            .heads = shape->heads,
                            .head_dim = shape->head_dim,
                            .rotary_dim = rotary_dim,
                            .neighbours = shape->neighbours,
                            .real = real};
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, rope, &op));
    lab_finish(lab);
    for (size_t i = 0; i < table_len; i++) {
        const double angle = (double)(i / half) * pow(10000.0, -2.0 * (double)(i % half) / rotary_dim);
        cos_want[i] = scale * cos(angle);
        sin_want[i] = scale * sin(angle);
    }
    for (size_t at = 0; at < (size_t)shape->rows * shape->heads * half; at++) {
        const size_t row = at / (shape->heads * half), i = at % half;
        const size_t low = row * stride + at / half % shape->heads * shape->head_dim + (shape->neighbours ? 2 * i : i);
        const size_t high = low + (shape->neighbours ? 1 : half);
        const double c = cos_want[(size_t)positions[row] * half + i];
        const double s = sin_want[(size_t)positions[row] * half + i];
        want[low] = kept[low] * c - kept[high] * s;
        want[high] = kept[high] * c + kept[low] * s;
    }
    check_error("rope tables", fmax(error_of(cos_table, cos_want, table_len),
                                    error_of(sin_table, sin_want, table_len)), 6e-8);
    check_real_error(real, "rope", error_of(floats_of(real, qk, len), want, len), 1.5e-7, 4e-3);
    lab_digest(lab, qk, len * ox_real_bytes(real));
    op.inverse = true;
    for (size_t at = 0; at < (size_t)shape->rows * shape->heads * rotary_dim; at++) { /* scaled there and back */
        const size_t row = at / (shape->heads * rotary_dim);
        kept[row * stride + at / rotary_dim % shape->heads * shape->head_dim + at % rotary_dim] *= scale * scale;
    }
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, rope, &op));
    lab_finish(lab);
    check_real_error(real, "rope and back", error_of(floats_of(real, qk, len), kept, len), 2e-7, 6e-3);
    guards_end(keep);
}

static void run_rope(struct lab labs[LAB_MAX], const struct rope_case *shape, enum ox_real real) {
    int32_t *const positions = guarded(shape->rows * sizeof(int32_t));
    for (uint32_t row = 0; row < shape->rows; row++) {
        positions[row] = (int32_t)(row * 37 % CONTEXTS);
    }
    for (int i = 0; i < lab_count; i++) {
        if (lab_knows(&labs[i], real)) {
            run_rope_on(&labs[i], shape, positions, real);
        }
    }
    labs_end_case(labs);
}

/* ---- token embedding --------------------------------------------------------------------------- */

struct embed_case {
    uint32_t rows, hidden;
    bool with_lo, with_pos;
};
static const struct embed_case embed_cases[] = {
    {1, 3, true, true}, {70, 48, false, false}, {130, 704, true, true}, {200, 17, false, true},
    {1300, 16, false, true}, /* rows that are sorted in several chunks */
    {1300, 5, true, false},
};
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

struct embed_data {
    const struct embed_case *shape;
    size_t len, table_len, pos_len;
    struct planes table, pos;
    int32_t *ids, *positions;
    float *want, *dout, *dtable_want, *dpos_want;
};

/* Both directions are sums in a stated order, so they are compared bit by bit. */
static void embed_reference(const struct embed_data *data, enum ox_real real) {
    const uint32_t hidden = data->shape->hidden;
    for (size_t at = 0; at < data->len; at++) {
        const size_t word = (size_t)data->ids[at / hidden] * hidden + at % hidden;
        const size_t place = (size_t)data->positions[at / hidden] * hidden + at % hidden;
        const float sum = data->table.value[word] + (data->shape->with_pos ? data->pos.value[place] : 0.0f);
        data->want[at] = real_nearest(real, sum);
        data->dtable_want[word] += data->dout[at];
        data->dpos_want[place] += data->dout[at];
    }
}

/* A vocabulary in parts: every row is taken from, and added to, the table that has its token. */
static void check_ranges(struct lab *lab, const struct embed_data *data, struct ox_op_embed_forward forward,
                         struct ox_op_embed_backward backward) {
    static const uint32_t borders[] = {0, 13, 14, 37, VOCAB};
    const struct embed_case *const shape = data->shape;
    void *const out = reals(forward.real, data->len);
    float *const dtable = random_floats(data->table_len, 7, 1.0), *const dpos = random_floats(data->pos_len, 8, 1.0);
    forward.out = out;
    for (size_t i = 0; i + 1 < sizeof borders / sizeof *borders; i++) {
        const size_t first = (size_t)borders[i] * shape->hidden;
        forward.tokens = backward.tokens = (struct ox_token_range){borders[i], borders[i + 1] - borders[i]};
        forward.table_hi = data->table.hi + first;
        forward.table_lo = data->table.lo == NULL ? NULL : data->table.lo + first;
        backward.dtable = dtable + first;
        backward.dpos = i == 0 && shape->with_pos ? dpos : NULL;
        REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, embed_forward, &forward));
        REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, embed_backward, &backward));
    }
    lab_finish(lab);
    CHECK(memcmp(floats_of(forward.real, out, data->len), data->want, data->len * sizeof(float)) == 0);
    CHECK(memcmp(dtable, data->dtable_want, data->table_len * sizeof(float)) == 0);
    CHECK(!shape->with_pos || memcmp(dpos, data->dpos_want, data->pos_len * sizeof(float)) == 0);
}

static void *turned(const void *table, size_t width, size_t rows, size_t cols) {
    unsigned char *const out = guarded(rows * cols * width);
    for (size_t i = 0; i < rows * cols; i++) {
        memcpy(out + (i % cols * rows + i / cols) * width, (const unsigned char *)table + i * width, width);
    }
    return out;
}

/* A table that lies in columns. */
static void check_columns(struct lab *lab, const struct embed_data *data, struct ox_op_embed_forward forward,
                          struct ox_op_embed_backward backward) {
    const uint32_t hidden = data->shape->hidden;
    void *const out = reals(forward.real, data->len);
    float *const dtable = turned(random_floats(data->table_len, 7, 1.0), sizeof(float), VOCAB, hidden);
    forward.out = out;
    forward.column = backward.column = VOCAB;
    forward.table_hi = turned(data->table.hi, sizeof(uint16_t), VOCAB, hidden);
    forward.table_lo = data->table.lo == NULL ? NULL : turned(data->table.lo, sizeof(uint16_t), VOCAB, hidden);
    backward.dtable = dtable;
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, embed_forward, &forward));
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, embed_backward, &backward));
    lab_finish(lab);
    CHECK(memcmp(floats_of(forward.real, out, data->len), data->want, data->len * sizeof(float)) == 0);
    CHECK(memcmp(dtable, turned(data->dtable_want, sizeof(float), VOCAB, hidden),
                 data->table_len * sizeof(float)) == 0);
}

static void run_embed_on(struct lab *lab, const struct embed_data *data, enum ox_real real) {
    const int keep = guard_count;
    const struct embed_case *const shape = data->shape;
    void *const out = reals(real, data->len);
    float *const dtable = random_floats(data->table_len, 7, 1.0), *const dpos = random_floats(data->pos_len, 8, 1.0);
    const struct ox_op_embed_forward forward = {.out = out,
                                                .table_hi = data->table.hi,
                                                .table_lo = data->table.lo,
                                                .pos_hi = shape->with_pos ? data->pos.hi : NULL,
                                                .pos_lo = shape->with_pos ? data->pos.lo : NULL,
                                                .ids = data->ids,
                                                .positions = data->positions,
                                                .rows = shape->rows,
                                                .hidden = shape->hidden,
                                                .real = real};
    const struct ox_op_embed_backward backward = {.dtable = dtable,
                                                  .dpos = shape->with_pos ? dpos : NULL,
                                                  .dout = reals_of(real, data->dout, data->len),
                                                  .ids = data->ids,
                                                  .positions = data->positions,
                                                  .rows = shape->rows,
                                                  .hidden = shape->hidden,
                                                  .real = real};
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, embed_forward, &forward));
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, embed_backward, &backward));
    lab_finish(lab);
    CHECK(memcmp(floats_of(real, out, data->len), data->want, data->len * sizeof(float)) == 0);
    CHECK(memcmp(dtable, data->dtable_want, data->table_len * sizeof(float)) == 0);
    CHECK(!shape->with_pos || memcmp(dpos, data->dpos_want, data->pos_len * sizeof(float)) == 0);
    check_ranges(lab, data, forward, backward);
    if (!shape->with_pos) {
        check_columns(lab, data, forward, backward);
    }
    if (shape->with_pos) { /* a table that is not trained: positions alone */
        struct ox_op_embed_backward places = backward;
        places.dtable = NULL;
        places.dpos = floats(data->pos_len);
        memcpy(places.dpos, dpos, data->pos_len * sizeof(float));
        REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, embed_backward, &places));
        lab_finish(lab);
        CHECK(memcmp(places.dpos, dpos, data->pos_len * sizeof(float)) != 0);
    }
    guards_end(keep);
}

static void run_embed(struct lab labs[LAB_MAX], const struct embed_case *shape, enum ox_real real) {
    struct embed_data data = {.shape = shape,
                              .len = (size_t)shape->rows * shape->hidden,
                              .table_len = (size_t)VOCAB * shape->hidden,
                              .pos_len = (size_t)PLACES * shape->hidden};
    data.table = make_planes(data.table_len, 4, shape->with_lo);
    data.pos = make_planes(data.pos_len, 5, shape->with_lo);
    data.ids = guarded(shape->rows * sizeof(int32_t));
    data.positions = guarded(shape->rows * sizeof(int32_t));
    data.want = floats(data.len);
    data.dout = random_reals(real, data.len, 6, 1.0);
    data.dtable_want = random_floats(data.table_len, 7, 1.0);
    data.dpos_want = random_floats(data.pos_len, 8, 1.0);
    for (uint32_t row = 0; row < shape->rows; row++) {
        data.ids[row] = (int32_t)(ox_uniform(1, 9, row) * VOCAB);
        data.positions[row] = (int32_t)(row % PLACES);
    }
    embed_reference(&data, real);
    for (int i = 0; i < lab_count; i++) {
        if (lab_knows(&labs[i], real)) {
            run_embed_on(&labs[i], &data, real);
        }
    }
    guards_end(0);
}

int main(void) {
    struct lab labs[LAB_MAX];
    labs_open(labs);
    for (int i = 0; i < 3 * (int)ACT_COUNT; i++) {
        run_act(labs, &act_cases[i / 3], (enum ox_real)(i % 3), false);
        run_act(labs, &act_cases[i / 3], (enum ox_real)(i % 3), true);
    }
    for (int i = 0; i < 3 * (int)ROPE_COUNT; i++) {
        run_rope(labs, &rope_cases[i / 3], (enum ox_real)(i % 3));
    }
    for (int i = 0; i < 3 * (int)EMBED_COUNT; i++) {
        run_embed(labs, &embed_cases[i / 3], (enum ox_real)(i % 3));
    }
    return labs_end(labs);
}
