/* Normalisations, forward and backward, against a plain reference in double. */
#include "tests/kit/device/ops_kit.h"

#include <math.h>
#include <string.h>

struct norm_case {
    uint32_t rows, cols;
    enum ox_norm_kind kind;
    bool bias, residual, in_place; /* in place: din is dout, or the residual where there is one */
    uint32_t in_extra, out_extra;  /* floats between rows beyond cols */
    float gain_offset;
    bool sum; /* forward adds the residual; in place: to it */
};
static const struct norm_case cases[] = {
    {1, 2, OX_NORM_RMS, false, false, false, 0, 0, 0, false},
    {3, 5, OX_NORM_RMS, false, false, false, 2, 3, 0, false},
    {3, 5, OX_NORM_LAYER, true, false, false, 0, 0, 0, false},
    {6, 7, OX_NORM_LAYER, false, true, false, 1, 0, 0, false},
    {33, 64, OX_NORM_RMS, false, true, true, 0, 0, 0, false},
    {33, 100, OX_NORM_LAYER, true, false, true, 0, 0, 0, false},
    {65, 768, OX_NORM_RMS, true, true, false, 0, 5, 0, false},
    {130, 769, OX_NORM_LAYER, true, true, true, 0, 0, 0, false},
    {500, 33, OX_NORM_RMS, false, false, true, 0, 0, 0, false},
    {5, 5000, OX_NORM_LAYER, true, false, false, 0, 0, 0, false},
    {700, 64, OX_NORM_LAYER, true, true, true, 0, 0, 0, false}, /* many rows of a block, a last one that is not there */
    {9, 5008, OX_NORM_RMS, true, true, true, 8, 16, 0, false},  /* wide loads; more of them than a block has threads  */
    {3, 5, OX_NORM_RMS, false, true, false, 2, 3, 1.0f, true},
    {33, 100, OX_NORM_RMS, false, true, true, 0, 0, 1.0f, true},
    {70, 768, OX_NORM_RMS, false, false, true, 0, 0, 1.0f, false},
    {9, 5000, OX_NORM_LAYER, true, true, true, 0, 0, 0.5f, true},
    {5, 9001, OX_NORM_RMS, false, true, false, 0, 8, 1.0f, true}, /* a row at a time */
};
enum { CASE_COUNT = sizeof cases / sizeof cases[0] };

static const float eps = 1e-5f;

struct data {
    const struct norm_case *shape;
    enum ox_real real;
    size_t len;
    const float *in, *gain, *bias, *dout, *residual; /* in is packed; strided copies are made of it */
    double *in_wide, *out, *mean, *rstd, *din, *dgain, *dbias;
    float start; /* of sums that are added to */
};

static double gain_at(const struct data *data, uint32_t col) {
    return (double)data->gain[col] + (double)data->shape->gain_offset;
}

static void reference_forward(const struct data *data, const double *in) {
    const struct norm_case *const shape = data->shape;
    for (uint32_t row = 0; row < shape->rows; row++) {
        const double *const x = in + (size_t)row * shape->cols;
        double sum = 0.0, squares = 0.0;
        for (uint32_t i = 0; i < shape->cols; i++) {
            sum += x[i];
        }
        const double mean = shape->kind == OX_NORM_LAYER ? sum / shape->cols : 0.0;
        for (uint32_t i = 0; i < shape->cols; i++) {
            squares += (x[i] - mean) * (x[i] - mean);
        }
        data->mean[row] = mean;
        data->rstd[row] = 1.0 / sqrt(squares / shape->cols + (double)eps);
        for (uint32_t i = 0; i < shape->cols; i++) {
            data->out[(size_t)row * shape->cols + i] =
                (x[i] - mean) * data->rstd[row] * gain_at(data, i) + (shape->bias ? (double)data->bias[i] : 0.0) +
                (shape->sum ? (double)data->residual[(size_t)row * shape->cols + i] : 0.0);
        }
    }
}

/* By the chain rule through mean and variance, not by the closed form. */
static void reference_backward(const struct data *data) {
    const struct norm_case *const shape = data->shape;
    const double count = shape->cols;
    memset(data->dgain, 0, shape->cols * sizeof(double));
    memset(data->dbias, 0, shape->cols * sizeof(double));
    for (uint32_t row = 0; row < shape->rows; row++) {
        const size_t at = (size_t)row * shape->cols;
        const double mean = data->mean[row], rstd = data->rstd[row];
        double drstd = 0.0, dmean = 0.0;
        for (uint32_t i = 0; i < shape->cols; i++) {
            const double dout = (double)data->dout[at + i], centred = data->in_wide[at + i] - mean;
            data->dgain[i] += dout * centred * rstd;
            data->dbias[i] += dout;
            drstd += dout * gain_at(data, i) * centred;
            dmean -= dout * gain_at(data, i) * rstd;
        }
        const double dvariance = -0.5 * drstd * rstd * rstd * rstd;
        for (uint32_t i = 0; i < shape->cols; i++) {
            double din = (double)data->dout[at + i] * gain_at(data, i) * rstd +
                         dvariance * 2.0 * (data->in_wide[at + i] - mean) / count;
            din += shape->kind == OX_NORM_LAYER ? dmean / count : 0.0;
            data->din[at + i] = din;
        }
    }
}

static double reference_loss(const void *context, const double *in) {
    const struct data *const data = context;
    double loss = 0.0;
    reference_forward(data, in);
    for (size_t i = 0; i < data->len; i++) {
        loss += data->out[i] * (double)data->dout[i];
    }
    return loss;
}

static void copy_rows(float *out, uint32_t out_stride, const float *in, uint32_t in_stride,
                      const struct norm_case *shape) {
    for (uint32_t row = 0; row < shape->rows; row++) {
        memcpy(out + (size_t)row * out_stride, in + (size_t)row * in_stride, shape->cols * sizeof(float));
    }
}

/* A copy that begins one element after an address of 16 bytes, or room for one, of NaNs. */
static void *shifted(enum ox_real real, const float *values, size_t len) {
    float *const wide = floats(len + 1);
    for (size_t i = 0; i < len; i++) {
        wide[i + 1] = values == NULL ? NAN : values[i];
    }
    wide[0] = NAN;
    return (unsigned char *)reals_of(real, wide, len + 1) + ox_real_bytes(real);
}

/* Wherever the same rows lie, the same bits come out. */
static void check_forward_placed(struct lab *lab, const struct data *data, struct ox_op_norm_forward op,
                                 const float *out, const float *rstd) {
    const int keep = guard_count;
    const uint32_t rows = op.rows, cols = op.cols;
    float *const packed = floats(data->len);
    op.in = shifted(data->real, data->in, data->len);
    op.gain = shifted(data->real, data->gain, cols);
    op.residual = op.residual == NULL ? NULL : shifted(data->real, data->residual, data->len);
    op.out = shifted(data->real, NULL, data->len);
    op.in_stride = op.out_stride = 0;
    op.rstd = floats(rows);
    op.mean = op.mean == NULL ? NULL : floats(rows);
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, norm_forward, &op));
    lab_finish(lab);
    copy_rows(packed, cols, floats_of(data->real, op.out, data->len), cols, data->shape);
    CHECK(memcmp(packed, out, data->len * sizeof(float)) == 0);
    CHECK(memcmp(op.rstd, rstd, rows * sizeof(float)) == 0);
    guards_end(keep);
}

static void run_forward(struct lab *lab, const struct data *data, float *mean, float *rstd) {
    const struct norm_case *const shape = data->shape;
    const enum ox_real real = data->real;
    const uint32_t in_stride = shape->cols + shape->in_extra, out_stride = shape->cols + shape->out_extra;
    const size_t out_len = (size_t)shape->rows * out_stride;
    float *const in = floats((size_t)shape->rows * in_stride);
    void *const residual = shape->sum ? reals_of(real, data->residual, data->len) : NULL;
    void *const out_reals = shape->sum && shape->in_place ? residual : reals(real, out_len);
    float *const packed = floats(data->len);
    copy_rows(in, in_stride, data->in, shape->cols, shape);
    const struct ox_op_norm_forward op = {
        .out = out_reals,
        .mean = mean,
        .rstd = rstd,
        .in = reals_of(real, in, (size_t)shape->rows * in_stride),
        .gain = reals_of(real, data->gain, shape->cols),
        .bias = shape->bias ? reals_of(real, data->bias, shape->cols) : NULL,
        .residual = residual,
        .rows = shape->rows,
        .cols = shape->cols,
        .in_stride = shape->in_extra == 0 ? 0 : in_stride,
        .out_stride = shape->out_extra == 0 ? 0 : out_stride,
        .eps = eps,
        .gain_offset = shape->gain_offset,
        .kind = shape->kind,
        .real = real,
    };
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, norm_forward, &op));
    lab_finish(lab);
    const float *const out = floats_of(real, out_reals, out_len);
    for (uint32_t row = 0; row < shape->rows; row++) {
        for (uint32_t i = shape->cols; i < out_stride; i++) {
            CHECK(isnan(out[(size_t)row * out_stride + i])); /* between rows nothing is written */
        }
    }
    copy_rows(packed, shape->cols, out, out_stride, shape);
    check_real_error(real, "out", error_of(packed, data->out, data->len), 4e-7, 4e-3);
    check_real_error(real, "rstd", error_of(rstd, data->rstd, shape->rows), 4e-7, 4e-7);
    if (mean != NULL) {
        check_real_error(real, "mean", error_of(mean, data->mean, shape->rows), 4e-7, 4e-7);
    }
    lab_digest(lab, packed, data->len * sizeof(float));
    if (data->len < 20000) {
        check_forward_placed(lab, data, op, packed, rstd);
    }
}

static void check_backward_placed(struct lab *lab, const struct data *data, struct ox_op_norm_backward op,
                                  const float *din) {
    const int keep = guard_count;
    float *const sums[2] = {op.dgain, op.dbias};
    op.din = shifted(data->real, NULL, data->len);
    op.dout = shifted(data->real, data->dout, data->len);
    op.in = shifted(data->real, data->in, data->len);
    op.residual = op.residual == NULL ? NULL : shifted(data->real, data->residual, data->len);
    op.dgain = floats(op.cols);
    op.dbias = op.dbias == NULL ? NULL : floats(op.cols);
    for (uint32_t i = 0; i < op.cols; i++) {
        op.dgain[i] = data->start;
        if (op.dbias != NULL) {
            op.dbias[i] = data->start;
        }
    }
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, norm_backward, &op));
    lab_finish(lab);
    CHECK(memcmp(floats_of(data->real, op.din, data->len), din, data->len * sizeof(float)) == 0);
    CHECK(memcmp(op.dgain, sums[0], op.cols * sizeof(float)) == 0);
    CHECK(op.dbias == NULL || memcmp(op.dbias, sums[1], op.cols * sizeof(float)) == 0);
    guards_end(keep);
}

/* Sums that begin are what is added to zeros. */
static void check_beginning(struct lab *lab, const struct data *data, struct ox_op_norm_backward op) {
    const uint32_t cols = data->shape->cols;
    float *sums[2][2];
    op.din = reals(data->real, data->len);
    op.residual = NULL;
    op.dout = reals_of(data->real, data->dout, data->len);
    for (int begins = 0; begins < 2; begins++) {
        op.begins = begins == 1;
        op.dgain = sums[begins][0] = floats(cols);
        sums[begins][1] = floats(cols);
        op.dbias = data->shape->bias ? sums[begins][1] : NULL;
        if (begins == 0) {
            fill(sums[0][0], cols, 0.0f);
            fill(sums[0][1], cols, 0.0f);
        }
        REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, norm_backward, &op));
        lab_finish(lab);
    }
    check_begun(lab, sums[1][0], sums[0][0], cols);
    check_begun(lab, sums[1][1], sums[0][1], data->shape->bias ? cols : 0);
}

/* Gradients of a gain or a bias that is not trained are left out, and the rest is as it was. */
static void check_frozen(struct lab *lab, const struct data *data, struct ox_op_norm_backward op) {
    const size_t bytes = data->len * ox_real_bytes(data->real), cols = data->shape->cols;
    void *const dout = reals_of(data->real, data->dout, data->len), *dins[4];
    float *const dbias[2] = {floats(cols), floats(cols)};
    for (int i = 0; i < 4; i++) {
        op.dout = dout;
        op.residual = op.residual == NULL ? NULL : reals_of(data->real, data->residual, data->len);
        op.din = dins[i] = reals(data->real, data->len);
        op.begins = true;
        op.dgain = i % 2 == 0 ? floats(cols) : NULL;
        op.dbias = data->shape->bias && i < 2 ? dbias[i] : NULL;
        REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, norm_backward, &op));
        lab_finish(lab);
        CHECK(memcmp(dins[i], dins[0], bytes) == 0);
    }
    CHECK(!data->shape->bias || memcmp(dbias[0], dbias[1], cols * sizeof(float)) == 0);
}

static void run_backward(struct lab *lab, const struct data *data, const float *mean, const float *rstd) {
    const struct norm_case *const shape = data->shape;
    const enum ox_real real = data->real;
    void *const residual = shape->residual ? reals_of(real, data->residual, data->len) : NULL;
    void *const dout = reals_of(real, data->dout, data->len);
    float *const dgain = floats(shape->cols), *const dbias = floats(shape->cols);
    fill(dgain, shape->cols, data->start);
    fill(dbias, shape->cols, data->start);
    const struct ox_op_norm_backward op = {
        .din = !shape->in_place ? reals(real, data->len) : shape->residual ? residual : dout,
        .residual = residual,
        .dgain = dgain,
        .dbias = shape->bias ? dbias : NULL,
        .dout = dout,
        .in = reals_of(real, data->in, data->len),
        .gain = reals_of(real, data->gain, shape->cols),
        .mean = mean,
        .rstd = rstd,
        .scratch = guarded(ox_ops_norm_scratch_bytes(&lab->compute, shape->cols)),
        .rows = shape->rows,
        .cols = shape->cols,
        .gain_offset = shape->gain_offset,
        .kind = shape->kind,
        .real = real,
    };
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, norm_backward, &op));
    lab_finish(lab);
    const float *const din = floats_of(real, op.din, data->len);
    lab_digest(lab, din, data->len * sizeof(float));
    lab_digest(lab, dgain, shape->cols * sizeof(float));
    check_real_error(real, "din", error_of(din, data->din, data->len), 1.5e-6, 4e-3);
    if (data->len < 20000) {
        check_backward_placed(lab, data, op, din);
    }
    for (uint32_t i = 0; i < shape->cols; i++) {
        dgain[i] -= data->start;
        dbias[i] -= data->start;
    }
    check_real_error(real, "dgain", error_of(dgain, data->dgain, shape->cols), 2e-6, 8e-7);
    if (shape->bias) {
        check_real_error(real, "dbias", error_of(dbias, data->dbias, shape->cols), 1e-6, 1.1e-7);
        lab_digest(lab, dbias, shape->cols * sizeof(float));
    }
    check_beginning(lab, data, op);
    if (data->len < 20000) {
        check_frozen(lab, data, op);
    }
}

/* Beside unit normals: squares near the end of the range, squares that are denormals or zeros, and one value alone. */
enum inputs { NORMAL, LARGE, TINY, EQUAL, INPUTS_COUNT };

static void bias_inputs(float *in, size_t len, enum ox_real real, enum inputs inputs) {
    const float large = real == OX_REAL_F16 ? 4e3f : 1e15f, tiny = real == OX_REAL_F16 ? 3e-7f : 1e-22f;
    for (size_t i = 0; i < len; i++) {
        in[i] += 0.5f;
        in[i] = inputs == LARGE ? in[i] * large : inputs == TINY ? in[i] * tiny : inputs == EQUAL ? 0.75f : in[i];
    }
}

static void run_case(struct lab labs[LAB_MAX], const struct norm_case *shape, enum ox_real real, enum inputs inputs) {
    struct data data = {.shape = shape, .real = real, .len = (size_t)shape->rows * shape->cols};
    float *const in = random_floats(data.len, 1, 1.0);
    bias_inputs(in, data.len, real, inputs);
    data.start = inputs == TINY ? 0.0f : 0.25f; /* which would swallow tiny sums */
    data.in = floats_of(real, reals_of(real, in, data.len), data.len);
    data.gain = random_reals(real, shape->cols, 2, 1.0);
    data.bias = random_reals(real, shape->cols, 3, 1.0);
    data.dout = random_reals(real, data.len, 4, 1.0);
    data.residual = random_reals(real, data.len, 5, 1.0);
    data.in_wide = widened(data.in, data.len);
    data.out = doubles(data.len);
    data.mean = doubles(shape->rows);
    data.rstd = doubles(shape->rows);
    data.din = doubles(data.len);
    data.dgain = doubles(shape->cols);
    data.dbias = doubles(shape->cols);
    reference_forward(&data, data.in_wide);
    reference_backward(&data);
    if (data.len > 1 && data.len < 50 && inputs == NORMAL) {
        check_error("the reference's gradient",
                    gradient_error(reference_loss, &data, data.in_wide, data.din, data.len), 1e-8);
        reference_forward(&data, data.in_wide);
    }
    for (size_t i = 0; i < data.len && shape->residual; i++) {
        data.din[i] += (double)data.residual[i];
    }
    for (int i = 0; i < lab_count; i++) {
        const int keep = guard_count;
        if (!lab_knows(&labs[i], real)) {
            continue;
        }
        float *const mean = shape->kind == OX_NORM_LAYER ? floats(shape->rows) : NULL;
        float *const rstd = floats(shape->rows);
        run_forward(&labs[i], &data, mean, rstd);
        run_backward(&labs[i], &data, mean, rstd);
        guards_end(keep);
    }
    labs_end_case(labs);
}

/* ---- per head ----------------------------------------------------------------------------------- */

struct head_case {
    uint32_t rows, heads, head_dim, extra; /* floats of a row beyond its heads */
    float gain_offset;
};
static const struct head_case head_cases[] = {
    {1, 1, 2, 0, 0}, {3, 2, 5, 4, 0}, {2, 3, 4, 8, 0},
    {33, 4, 64, 128, 0}, {65, 3, 20, 7, 0}, {130, 8, 128, 256, 0}, {70, 1, 33, 0, 0},
    {40, 2, 512, 0, 0}, {33, 2, 256, 256, 1.0f}, {5, 3, 20, 7, 1.0f},
    {9, 1, 2304, 768, 0}, {70, 1, 100, 30, 0.5f}, /* one as wide as all */
};
enum { HEAD_CASE_COUNT = sizeof head_cases / sizeof head_cases[0] };

struct head_data {
    const struct head_case *shape;
    enum ox_real real;
    size_t stride, len, width; /* elements of a row, of all rows, of the heads of a row */
    const float *in, *gain, *dout;
    double *in_wide, *out, *rstd, *din, *dgain; /* out and din hold what lies between the heads too */
};

/* out and rstd, and of the loss sum(out * dout) the gradients din and dgain, each by the chain rule. */
static void head_reference(const struct head_data *data, const double *in) {
    const struct head_case *const shape = data->shape;
    memset(data->dgain, 0, shape->head_dim * sizeof(double));
    for (size_t i = 0; i < data->len; i++) {
        data->out[i] = in[i];
        data->din[i] = (double)data->dout[i];
    }
    for (uint32_t nth = 0; nth < shape->rows * shape->heads; nth++) {
        const size_t at = nth / shape->heads * data->stride + (size_t)(nth % shape->heads) * shape->head_dim;
        double squares = 0.0, drstd = 0.0;
        for (uint32_t i = 0; i < shape->head_dim; i++) {
            squares += in[at + i] * in[at + i];
        }
        const double rstd = 1.0 / sqrt(squares / shape->head_dim + (double)eps);
        data->rstd[nth] = rstd;
        for (uint32_t i = 0; i < shape->head_dim; i++) {
            const double dout = (double)data->dout[at + i];
            const double gain = (double)data->gain[i] + (double)shape->gain_offset;
            data->out[at + i] = in[at + i] * rstd * gain;
            data->dgain[i] += dout * in[at + i] * rstd;
            drstd += dout * gain * in[at + i];
        }
        for (uint32_t i = 0; i < shape->head_dim; i++) {
            const double gain = (double)data->gain[i] + (double)shape->gain_offset;
            data->din[at + i] = (double)data->dout[at + i] * gain * rstd -
                                drstd * rstd * rstd * rstd * in[at + i] / shape->head_dim;
        }
    }
}

static double head_loss(const void *context, const double *in) {
    const struct head_data *const data = context;
    double loss = 0.0;
    head_reference(data, in);
    for (size_t i = 0; i < data->len; i++) {
        loss += data->out[i] * (double)data->dout[i];
    }
    return loss;
}

static void check_beginning_heads(struct lab *lab, const struct head_data *data, struct ox_op_head_norm_backward op) {
    float *sums[2];
    for (int begins = 0; begins < 2; begins++) {
        op.begins = begins == 1;
        op.dinout = reals_of(data->real, data->dout, data->len);
        op.dgain = sums[begins] = floats(op.head_dim);
        if (begins == 0) {
            fill(sums[0], op.head_dim, 0.0f);
        }
        REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, head_norm_backward, &op));
        lab_finish(lab);
    }
    check_begun(lab, sums[1], sums[0], op.head_dim);
}

static void run_heads_backward(struct lab *lab, const struct head_data *data, const void *saved, const float *rstd) {
    const struct head_case *const shape = data->shape;
    const enum ox_real real = data->real;
    void *const dinout = reals_of(real, data->dout, data->len);
    float *const dgain = floats(shape->head_dim);
    fill(dgain, shape->head_dim, 0.25f);
    const struct ox_op_head_norm_backward backward = {
        .dinout = dinout, .dgain = dgain, .saved = saved, .rstd = rstd,
        .gain = reals_of(real, data->gain, shape->head_dim),
        .scratch = guarded(ox_ops_norm_scratch_bytes(&lab->compute, shape->head_dim)), .rows = shape->rows,
        .row_stride = (uint32_t)data->stride, .heads = shape->heads, .head_dim = shape->head_dim,
        .gain_offset = shape->gain_offset, .real = real};
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, head_norm_backward, &backward));
    lab_finish(lab);
    lab_digest(lab, dinout, data->len * ox_real_bytes(real));
    lab_digest(lab, dgain, shape->head_dim * sizeof(float));
    for (uint32_t i = 0; i < shape->head_dim; i++) {
        dgain[i] -= 0.25f;
    }
    check_real_error(real, "per head: din", error_of(floats_of(real, dinout, data->len), data->din, data->len), 6e-7,
                     4e-3);
    check_real_error(real, "per head: dgain", error_of(dgain, data->dgain, shape->head_dim), 2e-6, 6e-7);
    check_beginning_heads(lab, data, backward);
    struct ox_op_head_norm_backward frozen = backward;
    frozen.dgain = NULL;
    frozen.dinout = reals_of(real, data->dout, data->len);
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, head_norm_backward, &frozen));
    lab_finish(lab);
    CHECK(memcmp(frozen.dinout, dinout, data->len * ox_real_bytes(real)) == 0);
}

static void run_heads_on(struct lab *lab, const struct head_data *data, bool keep_input) {
    const int keep = guard_count;
    const struct head_case *const shape = data->shape;
    const enum ox_real real = data->real;
    void *const inout = reals_of(real, data->in, data->len);
    void *const saved = reals(real, shape->rows * data->width);
    float *const rstd = floats((size_t)shape->rows * shape->heads);
    const struct ox_op_head_norm_forward forward = {
        .inout = inout, .saved = keep_input ? saved : NULL, .rstd = rstd,
        .gain = reals_of(real, data->gain, shape->head_dim), .rows = shape->rows,
        .row_stride = (uint32_t)data->stride, .heads = shape->heads, .head_dim = shape->head_dim, .eps = eps,
        .gain_offset = shape->gain_offset, .real = real};
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, head_norm_forward, &forward));
    lab_finish(lab);
    check_real_error(real, "per head: out", error_of(floats_of(real, inout, data->len), data->out, data->len), 4e-7,
                     4e-3);
    check_real_error(real, "per head: rstd", error_of(rstd, data->rstd, (size_t)shape->rows * shape->heads), 4e-7,
                     4e-7);
    lab_digest(lab, inout, data->len * ox_real_bytes(real));
    if (keep_input) {
        run_heads_backward(lab, data, saved, rstd);
    }
    guards_end(keep);
}

static void run_heads(struct lab labs[LAB_MAX], const struct head_case *shape, enum ox_real real) {
    const size_t width = (size_t)shape->heads * shape->head_dim, stride = width + shape->extra;
    struct head_data data = {
        .shape = shape, .real = real, .stride = stride, .len = shape->rows * stride, .width = width};
    data.in = random_reals(real, data.len, 1, 1.0);
    data.gain = random_reals(real, shape->head_dim, 2, 1.0);
    data.dout = random_reals(real, data.len, 3, 1.0);
    data.in_wide = widened(data.in, data.len);
    data.out = doubles(data.len);
    data.rstd = doubles((size_t)shape->rows * shape->heads);
    data.din = doubles(data.len);
    data.dgain = doubles(shape->head_dim);
    head_reference(&data, data.in_wide);
    if (data.len > 2 && data.len < 50) {
        double din[50];
        memcpy(din, data.din, data.len * sizeof(double));
        check_error("per head: the reference's gradient",
                    gradient_error(head_loss, &data, data.in_wide, din, data.len), 1e-8);
        head_reference(&data, data.in_wide);
    }
    for (int i = 0; i < lab_count; i++) {
        if (lab_knows(&labs[i], real)) {
            run_heads_on(&labs[i], &data, true);
            run_heads_on(&labs[i], &data, false);
        }
    }
    labs_end_case(labs);
}

int main(void) {
    struct lab labs[LAB_MAX];
    labs_open(labs);
    for (int i = 0; i < 3 * (int)CASE_COUNT; i++) {
        const struct norm_case *const shape = &cases[i / 3];
        for (int inputs = NORMAL; inputs < (shape->rows * shape->cols < 4000 ? INPUTS_COUNT : LARGE); inputs++) {
            if (inputs != EQUAL || shape->kind == OX_NORM_RMS) { /* of equal values a layer norm has rounding alone */
                run_case(labs, shape, (enum ox_real)(i % 3), (enum inputs)inputs);
            }
        }
    }
    for (int i = 0; i < 3 * (int)HEAD_CASE_COUNT; i++) {
        run_heads(labs, &head_cases[i / 3], (enum ox_real)(i % 3));
    }
    return labs_end(labs);
}
