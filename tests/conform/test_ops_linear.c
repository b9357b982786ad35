/* Linear layers in both layouts against a plain reference in double. For a CPU that computes in bf16 the reference
 * rounds the inputs of GEMMs too, so that only the sums differ. */
#include "base/planes.h"
#include "tests/kit/device/ops_kit.h"

#include <math.h>
#include <string.h>

struct linear_case {
    uint32_t rows, in_count, out_count;
    enum ox_weight_layout layout;
    bool bias, residual, in_place, with_din;
};
static const struct linear_case cases[] = {
    {1, 1, 1, OX_WEIGHT_OUT_IN, false, false, false, true},
    {1, 17, 5, OX_WEIGHT_IN_OUT, true, true, false, true},
    {7, 33, 65, OX_WEIGHT_OUT_IN, true, false, false, true},
    {7, 33, 65, OX_WEIGHT_IN_OUT, false, true, false, true},
    {130, 64, 96, OX_WEIGHT_OUT_IN, true, true, true, true},
    {65, 200, 40, OX_WEIGHT_IN_OUT, true, true, true, false},
    {48, 128, 1000, OX_WEIGHT_OUT_IN, false, false, false, true},
    {300, 96, 300, OX_WEIGHT_IN_OUT, true, false, false, true},
    {513, 70, 129, OX_WEIGHT_OUT_IN, false, true, true, false},
    /* GEMMs that the CPU cuts into more tiles: 8, 12 and 24 */
    {1056, 31, 640, OX_WEIGHT_OUT_IN, false, true, false, true},
    {1200, 3, 1300, OX_WEIGHT_IN_OUT, true, false, false, true},
    {3200, 2, 1900, OX_WEIGHT_IN_OUT, true, false, false, true},
    /* outputs of so many rows that a GEMM is cut into slabs */
    {8300, 12, 20, OX_WEIGHT_OUT_IN, true, true, true, true},
    {20, 12, 9001, OX_WEIGHT_OUT_IN, true, false, false, true},
};
/* Sums and outputs that the CPU cuts into blocks in bf16. */
static const struct linear_case block_cases[] = {
    {8, 4200, 2000, OX_WEIGHT_OUT_IN, true, true, false, true},
    {4200, 2100, 8, OX_WEIGHT_IN_OUT, true, false, false, true},
};
enum { CASE_COUNT = sizeof cases / sizeof cases[0], BLOCK_CASES = sizeof block_cases / sizeof block_cases[0] };

struct data {
    const struct linear_case *shape;
    enum ox_real real;
    size_t in_len, out_len, weight_len;
    const float *in, *weight, *bias, *residual, *dout;
    const float *in_used, *weight_used, *dout_used; /* by GEMMs */
    double *out_want, *din_want, *dweight_want, *dbias_want;
};

static size_t weight_at(const struct linear_case *shape, uint32_t out, uint32_t in) {
    return shape->layout == OX_WEIGHT_OUT_IN ? (size_t)out * shape->in_count + in
                                             : (size_t)in * shape->out_count + out;
}

static void make_reference(const struct data *data) {
    const struct linear_case *const shape = data->shape;
    memset(data->din_want, 0, data->in_len * sizeof(double));
    memset(data->dweight_want, 0, data->weight_len * sizeof(double));
    memset(data->dbias_want, 0, shape->out_count * sizeof(double));
    for (uint32_t row = 0; row < shape->rows; row++) {
        for (uint32_t out = 0; out < shape->out_count; out++) {
            const size_t at = (size_t)row * shape->out_count + out;
            double sum = (shape->bias ? (double)data->bias[out] : 0.0) +
                         (shape->residual ? (double)data->residual[at] : 0.0);
            const double dout = (double)data->dout_used[at];
            for (uint32_t in = 0; in < shape->in_count; in++) {
                const size_t w = weight_at(shape, out, in), i = (size_t)row * shape->in_count + in;
                sum += (double)data->in_used[i] * (double)data->weight_used[w];
                data->din_want[i] += dout * (double)data->weight_used[w];
                data->dweight_want[w] += dout * (double)data->in_used[i];
            }
            data->out_want[at] = sum;
            data->dbias_want[out] += (double)data->dout[at];
        }
    }
}

/* Gradients are added to what was there: they start at a quarter and that is taken off again. */
static double added_error(float *got, const double *want, size_t count) {
    for (size_t i = 0; i < count; i++) {
        got[i] -= 0.25f;
    }
    return error_of(got, want, count);
}

static struct ox_op_linear_forward forward_of(const struct data *data) {
    const struct linear_case *const shape = data->shape;
    const enum ox_real real = data->real;
    void *const residual = shape->residual ? reals_of(real, data->residual, data->out_len) : NULL;
    return (struct ox_op_linear_forward){
        .out = shape->in_place ? residual : reals(real, data->out_len),
        .in = reals_of(real, data->in, data->in_len),
        .weight = reals_of(real, data->weight, data->weight_len),
        .bias = shape->bias ? reals_of(real, data->bias, shape->out_count) : NULL,
        .residual = residual,
        .rows = shape->rows,
        .in_count = shape->in_count,
        .out_count = shape->out_count,
        .layout = shape->layout,
        .real = real,
    };
}

/* A bias may begin at any element: the algorithm that was chosen for an aligned one must not be taken for it. */
static void run_with_moved_bias(struct lab *lab, const struct data *data) {
    const size_t count = data->shape->out_count, real_bytes = ox_real_bytes(data->real);
    struct ox_op_linear_forward forward = forward_of(data);
    unsigned char *const moved = reals(data->real, count + 1);
    memcpy(moved + real_bytes, forward.bias, count * real_bytes);
    forward.bias = moved + real_bytes;
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, linear_forward, &forward));
    lab_finish(lab);
    const float *const out = floats_of(data->real, forward.out, data->out_len);
    lab_digest(lab, out, data->out_len * sizeof(float));
    check_real_error(data->real, "out", error_of(out, data->out_want, data->out_len), 1.2e-6, 4e-3);
}

/* A sum over its residual lies near the sum beside it; a library may round the two otherwise, as cuBLASLt does in
 * bfloat16 on an H200, so a model never takes one for the other. */
static void check_over_residual(struct lab *lab, const struct data *data, struct ox_op_linear_forward forward) {
    float *outs[2];
    for (int over = 0; over < 2; over++) {
        void *const residual = reals_of(data->real, data->residual, data->out_len);
        forward.residual = residual;
        forward.out = over == 1 ? residual : reals(data->real, data->out_len);
        REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, linear_forward, &forward));
        lab_finish(lab);
        outs[over] = floats_of(data->real, forward.out, data->out_len);
    }
    check_real_error(data->real, "a sum over its residual", error_of(outs[1], widened(outs[0], data->out_len),
                                                                     data->out_len), 1e-6, 4e-3);
    CHECK((lab->compute.device != OX_DEVICE_CPU && !lab->emulated) ||
          memcmp(outs[0], outs[1], data->out_len * sizeof *outs[0]) == 0);
}

/* Gradients of weights that begin are what is added to zeros. */
static void check_beginning(struct lab *lab, const struct data *data, struct ox_op_linear_backward backward) {
    float *sums[2][2];
    for (int begins = 0; begins < 2; begins++) {
        backward.begins = begins == 1;
        backward.dweight = sums[begins][0] = floats(data->weight_len);
        sums[begins][1] = floats(data->shape->out_count);
        backward.dbias = data->shape->bias ? sums[begins][1] : NULL;
        if (begins == 0) {
            fill(sums[0][0], data->weight_len, 0.0f);
            fill(sums[0][1], data->shape->out_count, 0.0f);
        }
        REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, linear_backward, &backward));
        lab_finish(lab);
    }
    check_begun(lab, sums[1][0], sums[0][0], data->weight_len);
    check_begun(lab, sums[1][1], sums[0][1], data->shape->bias ? data->shape->out_count : 0);
}

/* Without the gradient of weights that are not trained the others have the same bits. */
static void check_frozen(struct lab *lab, const struct data *data, struct ox_op_linear_backward backward) {
    const struct ox_op_linear_backward with = backward;
    const size_t bytes = data->in_len * ox_real_bytes(data->real), out_count = data->shape->out_count;
    backward.begins = true;
    backward.dweight = NULL;
    backward.din = with.din == NULL ? NULL : reals(data->real, data->in_len);
    backward.dbias = with.dbias == NULL ? NULL : floats(out_count);
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, linear_backward, &backward));
    lab_finish(lab);
    CHECK(with.din == NULL || memcmp(backward.din, with.din, bytes) == 0);
}

/* The gradient of the input is added to another one, which may lie in the same place. */
static void check_residual(struct lab *lab, const struct data *data, struct ox_op_linear_backward backward) {
    const size_t len = data->in_len;
    const float *const other = random_reals(data->real, len, 6, 1.0);
    double *const want = doubles(len);
    for (size_t i = 0; i < len; i++) {
        want[i] = data->din_want[i] + (double)other[i];
    }
    for (int in_place = 0; in_place < 2; in_place++) {
        void *const residual = reals_of(data->real, other, len);
        backward.residual = residual;
        backward.din = in_place == 1 ? residual : reals(data->real, len);
        REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, linear_backward, &backward));
        lab_finish(lab);
        check_real_error(data->real, "din and residual", error_of(floats_of(data->real, backward.din, len), want, len),
                         2e-6, 4e-3);
    }
}

/* Rows that are columns of wider ones, and a factor, give what the compact rows give without it, times the factor; what
 * lies beside them stays. */
enum { BESIDE = 3 };

static void *spread_out(const struct data *data, const float *values, size_t count, uint32_t width) {
    float *const wide = floats(count / width * (width + BESIDE));
    for (size_t i = 0; i < count / width * (width + BESIDE); i++) {
        const size_t row = i / (width + BESIDE), col = i % (width + BESIDE);
        wide[i] = col < width ? values[row * width + col] : 7.0f;
    }
    return reals_of(data->real, wide, count / width * (width + BESIDE));
}

/* The error of the rows beside what is wanted: `residual` (or NULL) and the factor times the rest of `want`. */
static double strided_error(const struct data *data, const void *got, const double *want, const float *residual,
                            size_t count, uint32_t width) {
    const size_t all = count / width * (width + BESIDE);
    const float *const wide = floats_of(data->real, got, all);
    float *const rows = floats(count);
    double *const scaled = doubles(count);
    for (size_t i = 0; i < all; i++) {
        const size_t col = i % (width + BESIDE), at = i / (width + BESIDE) * width + col;
        CHECK(col < width || wide[i] == 7.0f);
        if (col < width) {
            const double other = residual == NULL ? 0.0 : (double)residual[at];
            rows[at] = wide[i];
            scaled[at] = other + 0.5 * (want[at] - other);
        }
    }
    return error_of(rows, scaled, count);
}

static void check_strides(struct lab *lab, const struct data *data, struct ox_op_linear_forward forward,
                          struct ox_op_linear_backward backward) {
    const struct linear_case *const shape = data->shape;
    const float *const residual = shape->residual ? data->residual : NULL;
    const uint32_t in = shape->in_count, out = shape->out_count;
    forward.in = spread_out(data, data->in, data->in_len, in);
    forward.out = spread_out(data, data->residual, data->out_len, out);
    forward.residual = residual == NULL ? NULL : forward.out;
    forward.in_stride = backward.in_stride = in + BESIDE;
    forward.out_stride = backward.out_stride = out + BESIDE;
    forward.scale = backward.scale = 0.5f;
    backward.in = forward.in;
    backward.din = shape->with_din ? spread_out(data, data->in, data->in_len, in) : NULL;
    backward.dout = spread_out(data, data->dout, data->out_len, out);
    backward.dweight = floats(data->weight_len);
    backward.dbias = NULL;
    backward.begins = true;
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, linear_forward, &forward));
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, linear_backward, &backward));
    lab_finish(lab);
    check_real_error(data->real, "out of wider rows",
                     strided_error(data, forward.out, data->out_want, residual, data->out_len, out), 1.2e-6, 4e-3);
    if (shape->with_din) {
        check_real_error(data->real, "din of wider rows",
                         strided_error(data, backward.din, data->din_want, NULL, data->in_len, in), 2e-6, 4e-3);
    }
    double *const half = doubles(data->weight_len);
    for (size_t i = 0; i < data->weight_len; i++) {
        half[i] = 0.5 * data->dweight_want[i];
    }
    check_real_error(data->real, "dweight of wider rows", error_of(backward.dweight, half, data->weight_len), 1.8e-6,
                     2e-5);
}

/* Products that are left in float32, to be added: in float32 the bits of the others. */
static void check_wide(struct lab *lab, const struct data *data, struct ox_op_linear_forward forward,
                       struct ox_op_linear_backward backward) {
    const enum ox_real real = lab->products != OX_REAL_F32 ? lab->products : data->real;
    const float *const out = forward.out, *const din = backward.din;
    float *const wide_out = floats(data->out_len), *const wide_din = floats(data->in_len);
    forward.out = wide_out;
    backward.din = wide_din;
    backward.dweight = backward.dbias = NULL;
    forward.wide = backward.wide = true;
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, linear_forward, &forward));
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, linear_backward, &backward));
    lab_finish(lab);
    if (data->real == OX_REAL_F32) {
        CHECK(memcmp(out, wide_out, data->out_len * sizeof *out) == 0);
        CHECK(memcmp(din, wide_din, data->in_len * sizeof *din) == 0);
    }
    check_real_error(real, "out in float32", error_of(wide_out, data->out_want, data->out_len), 1.2e-6, 2e-5);
    check_real_error(real, "din in float32", error_of(wide_din, data->din_want, data->in_len), 2e-6, 2e-5);
}

static void run_on(struct lab *lab, const struct data *data) {
    const int keep = guard_count;
    const struct linear_case *const shape = data->shape;
    const enum ox_real real = data->real;
    void *const din = reals(real, data->in_len);
    float *const dweight = floats(data->weight_len), *const dbias = floats(shape->out_count);
    fill(dweight, data->weight_len, 0.25f);
    fill(dbias, shape->out_count, 0.25f);
    const struct ox_op_linear_forward forward = forward_of(data);
    const struct ox_op_linear_backward backward = {
        .din = shape->with_din ? din : NULL,
        .dweight = dweight,
        .dbias = shape->bias ? dbias : NULL,
        .dout = reals_of(real, data->dout, data->out_len),
        .in = forward.in,
        .weight = forward.weight,
        .rows = shape->rows,
        .in_count = shape->in_count,
        .out_count = shape->out_count,
        .layout = shape->layout,
        .real = real,
    };
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, linear_forward, &forward));
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, linear_backward, &backward));
    lab_finish(lab);
    const float *const out = floats_of(real, forward.out, data->out_len);
    lab_digest(lab, out, data->out_len * sizeof(float));
    lab_digest(lab, dweight, data->weight_len * sizeof(float));
    check_real_error(real, "out", error_of(out, data->out_want, data->out_len), 1.2e-6, 4e-3);
    /* In float32 the emulated device sums in double, and a GPU has the error of float32. In bfloat16 tensor cores cut
     * off: over thousands of rows that adds up. */
    check_real_error(real, "dweight", added_error(dweight, data->dweight_want, data->weight_len), 1.8e-6, 2e-5);
    if (shape->with_din) {
        const float *const din_got = floats_of(real, din, data->in_len);
        lab_digest(lab, din_got, data->in_len * sizeof(float));
        check_real_error(real, "din", error_of(din_got, data->din_want, data->in_len), 2e-6, 4e-3);
    }
    if (shape->bias) {
        run_with_moved_bias(lab, data);
        lab_digest(lab, dbias, shape->out_count * sizeof(float));
        check_real_error(real, "dbias", added_error(dbias, data->dbias_want, shape->out_count), 4.5e-7, 2e-7);
    } else {
        CHECK(dbias[0] == 0.25f);
    }
    if (shape->residual) {
        check_over_residual(lab, data, forward);
    }
    check_beginning(lab, data, backward);
    check_frozen(lab, data, backward);
    if (!shape->bias) {
        check_strides(lab, data, forward, backward);
    }
    if (shape->with_din) {
        check_residual(lab, data, backward);
    }
    if (shape->with_din && !shape->bias && !shape->residual) {
        check_wide(lab, data, forward, backward);
    }
    guards_end(keep);
}

/* The values that GEMMs of these labs use: rounded, or as they are. */
static const float *used(const struct lab *lab, const float *values, size_t count) {
    float *const out = floats(count);
    for (size_t i = 0; i < count; i++) {
        out[i] = real_nearest(lab->products, values[i]);
    }
    return out;
}

static void run_case(struct lab labs[LAB_MAX], const struct linear_case *shape, enum ox_real real) {
    struct data data = {.shape = shape,
                        .real = real,
                        .in_len = (size_t)shape->rows * shape->in_count,
                        .out_len = (size_t)shape->rows * shape->out_count,
                        .weight_len = (size_t)shape->in_count * shape->out_count};
    data.in = random_reals(real, data.in_len, 1, 1.0);
    data.weight = random_reals(real, data.weight_len, 2, 1.0);
    data.bias = random_reals(real, shape->out_count, 3, 1.0);
    data.residual = random_reals(real, data.out_len, 4, 1.0);
    data.dout = random_reals(real, data.out_len, 5, 1.0);
    data.in_used = used(&labs[0], data.in, data.in_len);
    data.weight_used = used(&labs[0], data.weight, data.weight_len);
    data.dout_used = used(&labs[0], data.dout, data.out_len);
    data.out_want = doubles(data.out_len);
    data.din_want = doubles(data.in_len);
    data.dweight_want = doubles(data.weight_len);
    data.dbias_want = doubles(shape->out_count);
    make_reference(&data);
    for (int i = 0; i < lab_count; i++) {
        if (lab_knows(&labs[i], real)) {
            run_on(&labs[i], &data);
        }
    }
    labs_end_case(labs);
}

enum { EDGE = 8 };

static bool same(float a, float b) {
    return a == b || (isnan(a) && isnan(b));
}

/* Eight products of the same two halves, summed and stored as a half. */
static void test_halves(struct lab labs[LAB_MAX], float in_value, float weight_value, float want) {
    for (int i = 0; i < lab_count; i++) {
        float in[2 * EDGE], weight[EDGE * EDGE];
        if (!lab_knows(&labs[i], OX_REAL_F16)) {
            continue;
        }
        fill(in, 2 * EDGE, in_value);
        fill(weight, EDGE * EDGE, weight_value);
        void *const out = reals(OX_REAL_F16, 2 * EDGE);
        REQUIRE_OK(OX_QUEUE(&labs[i].ops, labs[i].lane, linear_forward, &(struct ox_op_linear_forward){
            .out = out, .in = reals_of(OX_REAL_F16, in, 2 * EDGE),
            .weight = reals_of(OX_REAL_F16, weight, EDGE * EDGE), .rows = 2, .in_count = EDGE, .out_count = EDGE,
            .layout = OX_WEIGHT_OUT_IN, .real = OX_REAL_F16}));
        lab_finish(&labs[i]);
        const float *const got = floats_of(OX_REAL_F16, out, 2 * EDGE);
        for (size_t at = 0; at < 2 * EDGE; at++) {
            CHECK(same(got[at], want));
        }
        guards_end(0);
    }
}

/* A CPU that rounds inputs to halves makes this of one, times 1. */
static void test_rounded(struct lab labs[LAB_MAX], float given, float want) {
    for (int i = 0; i < lab_count; i++) {
        float *const in = floats(2 * EDGE), *const weight = floats(EDGE * EDGE), *const out = floats(2 * EDGE);
        fill(in, 2 * EDGE, given);
        for (size_t at = 0; at < EDGE * EDGE; at++) {
            weight[at] = at % (EDGE + 1) == 0 && at < EDGE ? 1.0f : 0.0f;
        }
        fill(in + 1, EDGE - 1, 0.0f);
        fill(in + EDGE + 1, EDGE - 1, 0.0f);
        REQUIRE_OK(OX_QUEUE(&labs[i].ops, labs[i].lane, linear_forward, &(struct ox_op_linear_forward){
            .out = out, .in = in, .weight = weight, .rows = 2, .in_count = EDGE, .out_count = EDGE,
            .layout = OX_WEIGHT_OUT_IN}));
        lab_finish(&labs[i]);
        CHECK(same(out[0], want) && same(out[EDGE], want));
        guards_end(0);
    }
}

int main(void) {
    struct lab labs[LAB_MAX];
    labs_open(labs);
    for (int i = 0; i < 3 * (int)CASE_COUNT; i++) {
        const bool half = i % 3 == OX_REAL_F16;
        if (half && i / 3 % 2 != 0) { /* halves differ from bfloat16 in conversions alone */
            continue;
        }
        if (i % 3 != OX_REAL_F32 && !test_takes((unsigned)(half ? i / 6 : i / 3), 8)) {
            continue;
        }
        run_case(labs, &cases[i / 3], (enum ox_real)(i % 3));
    }
    test_halves(labs, 256.0f, 256.0f, INFINITY);
    test_halves(labs, 0x1p-12f, 0x1p-12f, 0x1p-21f); /* subnormal, as all of its terms are */
    test_halves(labs, 0x1p-14f, 0x1p-14f, 0.0f); /* 2^-25 is a tie */
    for (int real = OX_REAL_BF16; real <= OX_REAL_F16; real++) {
        const bool there = labs_change_products(labs, (enum ox_real)real);
        for (int i = 0; i < (int)CASE_COUNT && there; i++) {
            if (cases[i].rows > 1 && test_takes((unsigned)(i + real), 4)) { /* one row stays in fp32 */
                run_case(labs, &cases[i], OX_REAL_F32);
            }
        }
        for (int i = 0; i < (int)BLOCK_CASES && there; i++) {
            if (test_takes((unsigned)(i + real), 4)) {
                run_case(labs, &block_cases[i], OX_REAL_F32);
            }
        }
    }
    test_rounded(labs, 65519.0f, 65504.0f);
    test_rounded(labs, 65520.0f, INFINITY);
    test_rounded(labs, -1e30f, -INFINITY);
    test_rounded(labs, 0x1p-24f, 0x1p-24f);
    test_rounded(labs, 0x1.8p-24f, 0x1p-23f); /* a tie, to even */
    test_rounded(labs, 0x1p-25f, 0.0f);
    test_rounded(labs, NAN, NAN);
    return labs_end(labs);
}
