/* Normalisations, forward and backward, against a plain reference in double. */
#include "tests/conform/test_ops.h"

struct norm_case {
    uint32_t rows, cols;
    enum ox_norm_kind kind;
    bool bias, residual, in_place; /* in place: din is dout, or the residual where there is one */
    uint32_t in_extra, out_extra;  /* floats between rows beyond cols */
};
static const struct norm_case cases[] = {
    {1, 2, OX_NORM_RMS, false, false, false, 0, 0},
    {3, 5, OX_NORM_RMS, false, false, false, 2, 3},
    {3, 5, OX_NORM_LAYER, true, false, false, 0, 0},
    {6, 7, OX_NORM_LAYER, false, true, false, 1, 0},
    {33, 64, OX_NORM_RMS, false, true, true, 0, 0},
    {33, 100, OX_NORM_LAYER, true, false, true, 0, 0},
    {65, 768, OX_NORM_RMS, true, true, false, 0, 5},
    {130, 769, OX_NORM_LAYER, true, true, true, 0, 0},
    {500, 33, OX_NORM_RMS, false, false, true, 0, 0},
    {5, 5000, OX_NORM_LAYER, true, false, false, 0, 0},
};
enum { CASE_COUNT = sizeof cases / sizeof cases[0] };

static const float eps = 1e-5f;

struct data {
    const struct norm_case *shape;
    size_t len;
    const float *in, *gain, *bias, *dout, *residual; /* in is packed; strided copies are made of it */
    double *in_wide, *out, *mean, *rstd, *din, *dgain, *dbias;
};

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
                (x[i] - mean) * data->rstd[row] * (double)data->gain[i] +
                (shape->bias ? (double)data->bias[i] : 0.0);
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
            drstd += dout * (double)data->gain[i] * centred;
            dmean -= dout * (double)data->gain[i] * rstd;
        }
        const double dvariance = -0.5 * drstd * rstd * rstd * rstd;
        for (uint32_t i = 0; i < shape->cols; i++) {
            double din = (double)data->dout[at + i] * (double)data->gain[i] * rstd +
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

static void run_forward(struct lab *lab, const struct data *data, float *mean, float *rstd) {
    const struct norm_case *const shape = data->shape;
    const uint32_t in_stride = shape->cols + shape->in_extra, out_stride = shape->cols + shape->out_extra;
    float *const in = floats((size_t)shape->rows * in_stride);
    float *const out = floats((size_t)shape->rows * out_stride);
    float *const packed = floats(data->len);
    copy_rows(in, in_stride, data->in, shape->cols, shape);
    const struct ox_op_norm_forward op = {
        .out = out,
        .mean = mean,
        .rstd = rstd,
        .in = in,
        .gain = data->gain,
        .bias = shape->bias ? data->bias : NULL,
        .rows = shape->rows,
        .cols = shape->cols,
        .in_stride = shape->in_extra == 0 ? 0 : in_stride,
        .out_stride = shape->out_extra == 0 ? 0 : out_stride,
        .eps = eps,
        .kind = shape->kind,
    };
    REQUIRE_OK(lab->ops.norm_forward(lab->lane, &op));
    lab_finish(lab);
    for (uint32_t row = 0; row < shape->rows; row++) {
        for (uint32_t i = shape->cols; i < out_stride; i++) {
            CHECK(isnan(out[(size_t)row * out_stride + i])); /* between rows nothing is written */
        }
    }
    copy_rows(packed, shape->cols, out, out_stride, shape);
    check_error("out", error_of(packed, data->out, data->len), 4e-7);
    check_error("rstd", error_of(rstd, data->rstd, shape->rows), 4e-7);
    if (mean != NULL) {
        check_error("mean", error_of(mean, data->mean, shape->rows), 4e-7);
    }
    lab_digest(lab, packed, data->len * sizeof(float));
}

static void run_backward(struct lab *lab, const struct data *data, const float *mean, const float *rstd) {
    const struct norm_case *const shape = data->shape;
    float *const din = floats(data->len), *const dgain = floats(shape->cols);
    float *const dbias = floats(shape->cols);
    fill(dgain, shape->cols, 0.25f);
    fill(dbias, shape->cols, 0.25f);
    if (shape->in_place) {
        memcpy(din, shape->residual ? data->residual : data->dout, data->len * sizeof(float));
    }
    const struct ox_op_norm_backward op = {
        .din = din,
        .residual = !shape->residual ? NULL : shape->in_place ? din : data->residual,
        .dgain = dgain,
        .dbias = shape->bias ? dbias : NULL,
        .dout = shape->in_place && !shape->residual ? din : data->dout,
        .in = data->in,
        .gain = data->gain,
        .mean = mean,
        .rstd = rstd,
        .scratch = guarded(ox_ops_norm_scratch_bytes(shape->cols, lab->threads)),
        .rows = shape->rows,
        .cols = shape->cols,
        .kind = shape->kind,
    };
    REQUIRE_OK(lab->ops.norm_backward(lab->lane, &op));
    lab_finish(lab);
    lab_digest(lab, din, data->len * sizeof(float));
    lab_digest(lab, dgain, shape->cols * sizeof(float));
    check_error("din", error_of(din, data->din, data->len), 1.5e-6);
    for (uint32_t i = 0; i < shape->cols; i++) {
        dgain[i] -= 0.25f;
        dbias[i] -= 0.25f;
    }
    check_error("dgain", error_of(dgain, data->dgain, shape->cols), 2e-6);
    if (shape->bias) {
        check_error("dbias", error_of(dbias, data->dbias, shape->cols), 1e-6);
        lab_digest(lab, dbias, shape->cols * sizeof(float));
    }
}

static void run_case(struct lab labs[LAB_COUNT], const struct norm_case *shape) {
    struct data data = {.shape = shape, .len = (size_t)shape->rows * shape->cols};
    float *const in = random_floats(data.len, 1, 1.0);
    for (size_t i = 0; i < data.len; i++) {
        in[i] += 0.5f;
    }
    data.in = in;
    data.gain = random_floats(shape->cols, 2, 1.0);
    data.bias = random_floats(shape->cols, 3, 1.0);
    data.dout = random_floats(data.len, 4, 1.0);
    data.residual = random_floats(data.len, 5, 1.0);
    data.in_wide = widened(in, data.len);
    data.out = doubles(data.len);
    data.mean = doubles(shape->rows);
    data.rstd = doubles(shape->rows);
    data.din = doubles(data.len);
    data.dgain = doubles(shape->cols);
    data.dbias = doubles(shape->cols);
    reference_forward(&data, data.in_wide);
    reference_backward(&data);
    if (data.len > 1 && data.len < 50) {
        check_error("the reference's gradient",
                    gradient_error(reference_loss, &data, data.in_wide, data.din, data.len), 1e-8);
        reference_forward(&data, data.in_wide);
    }
    for (size_t i = 0; i < data.len && shape->residual; i++) {
        data.din[i] += (double)data.residual[i];
    }
    for (int i = 0; i < LAB_COUNT; i++) {
        const int keep = guard_count;
        float *const mean = shape->kind == OX_NORM_LAYER ? floats(shape->rows) : NULL;
        float *const rstd = floats(shape->rows);
        run_forward(&labs[i], &data, mean, rstd);
        run_backward(&labs[i], &data, mean, rstd);
        guards_end(keep);
    }
    labs_same_bits(labs);
    guards_end(0);
}

int main(void) {
    struct lab labs[LAB_COUNT];
    labs_open(labs);
    for (int i = 0; i < CASE_COUNT; i++) {
        run_case(labs, &cases[i]);
    }
    labs_close(labs);
    print_errors();
    return test_end();
}
