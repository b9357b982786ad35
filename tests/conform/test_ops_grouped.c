/* Grouped products against references in double, in both layouts: even and uneven experts, empty ones, all rows at one;
 * and that the bits of an expert's rows depend on nothing but these rows. */
#include "tests/kit/device/ops_kit.h"

#include <string.h>

enum { EXPERTS_MAX = 9 };

struct grouped_case {
    uint32_t in_count, out_count, experts;
    int32_t rows[EXPERTS_MAX]; /* of each expert */
    enum ox_weight_layout layout;
    bool bias;
};
static const struct grouped_case cases[] = {
    {1, 1, 1, {1}, OX_WEIGHT_OUT_IN, true},
    {16, 24, 4, {3, 0, 5, 1}, OX_WEIGHT_OUT_IN, true},
    {16, 24, 4, {3, 0, 5, 1}, OX_WEIGHT_IN_OUT, true},
    {24, 40, 5, {0, 0, 0, 0, 33}, OX_WEIGHT_OUT_IN, false}, /* all at the last */
    {24, 40, 5, {70, 0, 0, 0, 0}, OX_WEIGHT_IN_OUT, true},  /* and at the first */
    {8, 8, 3, {0, 0, 0}, OX_WEIGHT_OUT_IN, true},           /* no rows at all */
    {33, 50, 6, {7, 12, 0, 1, 31, 32}, OX_WEIGHT_OUT_IN, true},
    {33, 50, 6, {7, 12, 0, 1, 31, 32}, OX_WEIGHT_IN_OUT, false},
    {40, 72, 9, {64, 1, 65, 0, 2, 17, 33, 0, 9}, OX_WEIGHT_OUT_IN, true},
    {40, 72, 9, {64, 1, 65, 0, 2, 17, 33, 0, 9}, OX_WEIGHT_IN_OUT, true},
    {8, 264, 2, {150, 140}, OX_WEIGHT_OUT_IN, false}, /* more rows and columns than a tile */
    {264, 8, 2, {150, 140}, OX_WEIGHT_IN_OUT, false},
    {700, 250, 3, {300, 5, 66}, OX_WEIGHT_OUT_IN, true}, /* sums in parts, rounds of panels: on the CPU alone */
    {250, 700, 3, {300, 5, 66}, OX_WEIGHT_IN_OUT, true},
    {96, 100, 2, {600, 40}, OX_WEIGHT_OUT_IN, false},
};
enum { CASE_COUNT = sizeof cases / sizeof *cases };

struct data {
    const struct grouped_case *shape;
    enum ox_real real;
    uint32_t rows;
    size_t in_len, out_len, weight_len;
    int32_t *offsets;
    const float *in, *weight, *bias, *dout;
    double *out_want, *din_want, *dweight_want, *dbias_want;
};

static size_t weight_at(const struct grouped_case *shape, uint32_t expert, uint32_t out, uint32_t in) {
    return (size_t)expert * shape->in_count * shape->out_count +
           (shape->layout == OX_WEIGHT_OUT_IN ? (size_t)out * shape->in_count + in
                                              : (size_t)in * shape->out_count + out);
}

static void make_reference(const struct data *d) {
    const struct grouped_case *const shape = d->shape;
    memset(d->din_want, 0, d->in_len * sizeof(double));
    memset(d->dweight_want, 0, d->weight_len * sizeof(double));
    memset(d->dbias_want, 0, (size_t)shape->experts * shape->out_count * sizeof(double));
    for (uint32_t e = 0; e < shape->experts; e++) {
        for (int32_t row = d->offsets[e]; row < d->offsets[e + 1]; row++) {
            for (uint32_t out = 0; out < shape->out_count; out++) {
                const size_t at = (size_t)row * shape->out_count + out, b = (size_t)e * shape->out_count + out;
                const double dout = (double)d->dout[at];
                double sum = shape->bias ? (double)d->bias[b] : 0.0;
                for (uint32_t in = 0; in < shape->in_count; in++) {
                    const size_t w = weight_at(shape, e, out, in), i = (size_t)row * shape->in_count + in;
                    sum += (double)d->in[i] * (double)d->weight[w];
                    d->din_want[i] += dout * (double)d->weight[w];
                    d->dweight_want[w] += dout * (double)d->in[i];
                }
                d->out_want[at] = sum;
                d->dbias_want[b] += dout;
            }
        }
    }
}

/* What one call computes, in memory of its own, which begins as NaNs. */
struct call {
    void *in, *weight, *bias, *dout, *out, *din, *scratch;
    float *dweight, *dbias;
};

static struct call call_of(const struct lab *lab, const struct data *d) {
    const struct grouped_case *const shape = d->shape;
    const size_t biases = (size_t)shape->experts * shape->out_count;
    return (struct call){
        .in = reals_of(d->real, d->in, d->in_len), .weight = reals_of(d->real, d->weight, d->weight_len),
        .bias = shape->bias ? reals_of(d->real, d->bias, biases) : NULL,
        .dout = reals_of(d->real, d->dout, d->out_len), .out = reals(d->real, d->out_len),
        .din = reals(d->real, d->in_len), .dweight = floats(d->weight_len), .dbias = floats(biases),
        .scratch = guarded(ox_ops_grouped_scratch_bytes(&lab->compute, shape->in_count, shape->out_count))};
}

/* Runs both passes for experts [first, first + count). */
static void run_experts(struct lab *lab, const struct data *d, const struct call *call, const int32_t *offsets,
                        uint32_t first, uint32_t count, bool begins) {
    const struct grouped_case *const shape = d->shape;
    const size_t weights = (size_t)first * shape->in_count * shape->out_count;
    const size_t biases = (size_t)first * shape->out_count, bytes = ox_real_bytes(d->real);
    const struct ox_experts experts = {.offsets = offsets, .first = first, .count = count, .rows_max = d->rows};
    const void *const weight = (const unsigned char *)call->weight + weights * bytes;
    const struct ox_op_grouped_forward forward = {
        .out = call->out, .in = call->in, .weight = weight,
        .bias = call->bias == NULL ? NULL : (const unsigned char *)call->bias + biases * bytes,
        .scratch = call->scratch, .experts = experts, .in_count = shape->in_count, .out_count = shape->out_count,
        .layout = shape->layout, .real = d->real};
    const struct ox_op_grouped_backward backward = {
        .din = call->din, .dweight = call->dweight + weights, .dbias = call->dbias + biases, .dout = call->dout,
        .in = call->in, .weight = weight, .scratch = call->scratch, .experts = experts, .in_count = shape->in_count,
        .out_count = shape->out_count, .layout = shape->layout, .real = d->real, .begins = begins};
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, grouped_forward, &forward));
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, grouped_backward, &backward));
    lab_finish(lab);
}

static bool same(const void *a, const void *b, size_t bytes) {
    return bytes == 0 || memcmp(a, b, bytes) == 0;
}

/* Experts in two calls instead of one. */
static void check_groups(struct lab *lab, const struct data *d, const struct call *whole) {
    const uint32_t experts = d->shape->experts, first = (experts + 1) / 2;
    const size_t bytes = ox_real_bytes(d->real);
    const struct call parts = call_of(lab, d);
    run_experts(lab, d, &parts, d->offsets, 0, first, true);
    const size_t begin = (size_t)d->offsets[first] * d->shape->out_count * bytes;
    for (size_t i = begin; i < d->out_len * bytes; i++) {
        CHECK(((const unsigned char *)parts.out)[i] == 0xff); /* rows of others are not touched */
    }
    if (first < experts) {
        run_experts(lab, d, &parts, d->offsets, first, experts - first, true);
    }
    CHECK(same(parts.out, whole->out, d->out_len * bytes) && same(parts.din, whole->din, d->in_len * bytes));
    CHECK(same(parts.dweight, whole->dweight, d->weight_len * sizeof(float)));
    CHECK(same(parts.dbias, whole->dbias, (size_t)experts * d->shape->out_count * sizeof(float)));
}

/* Only every other expert keeps its rows, and of the first of these the last row alone, which then is the first: the
 * rows that are left have the bits that they had. */
static void check_fewer(struct lab *lab, const struct data *d, const struct call *whole) {
    const struct grouped_case *const shape = d->shape;
    const size_t in_bytes = shape->in_count * ox_real_bytes(d->real);
    const size_t out_bytes = shape->out_count * ox_real_bytes(d->real);
    int32_t *const offsets = guarded((shape->experts + 1) * sizeof(int32_t));
    const struct call fewer = call_of(lab, d);
    uint32_t at = 0, from[1024];
    for (uint32_t e = 0; e < shape->experts; e++) {
        offsets[e] = (int32_t)at;
        const int32_t skipped = e == 0 && shape->rows[0] > 0 ? shape->rows[0] - 1 : 0;
        for (int32_t row = d->offsets[e] + skipped; e % 2 == 0 && row < d->offsets[e + 1]; row++) {
            memcpy((unsigned char *)fewer.in + at * in_bytes, (unsigned char *)whole->in + (size_t)row * in_bytes,
                   in_bytes);
            memcpy((unsigned char *)fewer.dout + at * out_bytes,
                   (unsigned char *)whole->dout + (size_t)row * out_bytes, out_bytes);
            from[at++] = (uint32_t)row;
        }
    }
    offsets[shape->experts] = (int32_t)at;
    run_experts(lab, d, &fewer, offsets, 0, shape->experts, true);
    for (uint32_t row = 0; row < at; row++) {
        CHECK(same((unsigned char *)fewer.out + row * out_bytes,
                   (unsigned char *)whole->out + from[row] * out_bytes, out_bytes));
        CHECK(same((unsigned char *)fewer.din + row * in_bytes,
                   (unsigned char *)whole->din + from[row] * in_bytes, in_bytes));
    }
    for (uint32_t e = 2; e < shape->experts; e += 2) { /* all of their rows are there */
        const size_t len = (size_t)shape->in_count * shape->out_count;
        CHECK(same(fewer.dweight + e * len, whole->dweight + e * len, len * sizeof(float)));
    }
}

static void run_on(struct lab *lab, const struct data *d) {
    const int keep = guard_count;
    const size_t biases = (size_t)d->shape->experts * d->shape->out_count;
    const struct call call = call_of(lab, d);
    run_experts(lab, d, &call, d->offsets, 0, d->shape->experts, true);
    const bool rounded = lab->products != OX_REAL_F32;
    /* Inputs are rounded; else sums are single chains. */
    const double bf16 = lab->products == OX_REAL_BF16 ? 6e-3 : rounded ? 1e-3 : 2e-6;
    check_real_error(d->real, rounded ? "grouped out, rounded" : "grouped out",
                     error_of(floats_of(d->real, call.out, d->out_len), d->out_want, d->out_len), bf16, 5e-3);
    check_real_error(d->real, rounded ? "grouped din, rounded" : "grouped din",
                     error_of(floats_of(d->real, call.din, d->in_len), d->din_want, d->in_len), bf16, 5e-3);
    check_error(rounded ? "grouped dweight, rounded" : "grouped dweight",
                error_of(call.dweight, d->dweight_want, d->weight_len), bf16);
    check_error("grouped dbias", error_of(call.dbias, d->dbias_want, biases), 1e-6);
    lab_digest(lab, call.out, d->out_len * ox_real_bytes(d->real));
    lab_digest(lab, call.din, d->in_len * ox_real_bytes(d->real));
    lab_digest(lab, call.dweight, d->weight_len * sizeof(float));
    if (lab_takes(lab, (double)d->rows * d->shape->in_count * d->shape->out_count * 3)) {
        const int kept = guard_count;
        check_groups(lab, d, &call);
        guards_end(kept);
        if (!rounded) {
            check_fewer(lab, d, &call);
        }
    }
    float *const begun = floats(d->weight_len);
    memcpy(begun, call.dweight, d->weight_len * sizeof(float));
    memset(call.dweight, 0, d->weight_len * sizeof(float)); /* a second micro-batch, from zeros */
    run_experts(lab, d, &call, d->offsets, 0, d->shape->experts, false);
    check_begun(lab, begun, call.dweight, d->weight_len);
    guards_end(keep);
}

static void run_case(struct lab labs[LAB_MAX], const struct grouped_case *shape, enum ox_real real) {
    struct data d = {.shape = shape, .real = real, .offsets = guarded((shape->experts + 1) * sizeof(int32_t))};
    d.offsets[0] = 0;
    for (uint32_t e = 0; e < shape->experts; e++) {
        d.offsets[e + 1] = d.offsets[e] + shape->rows[e];
    }
    d.rows = (uint32_t)d.offsets[shape->experts];
    d.in_len = (size_t)d.rows * shape->in_count;
    d.out_len = (size_t)d.rows * shape->out_count;
    d.weight_len = (size_t)shape->experts * shape->in_count * shape->out_count;
    d.in = random_reals(real, d.in_len, 1, 1.0);
    d.weight = random_reals(real, d.weight_len, 2, 1.0);
    d.bias = random_reals(real, (size_t)shape->experts * shape->out_count, 3, 1.0);
    d.dout = random_reals(real, d.out_len, 4, 1.0);
    d.out_want = doubles(d.out_len);
    d.din_want = doubles(d.in_len);
    d.dweight_want = doubles(d.weight_len);
    d.dbias_want = doubles((size_t)shape->experts * shape->out_count);
    make_reference(&d);
    for (int i = 0; i < lab_count; i++) {
        const double work = (double)d.rows * shape->in_count * shape->out_count;
        if (lab_knows(&labs[i], real) && lab_takes(&labs[i], work)) {
            run_on(&labs[i], &d);
        }
    }
    labs_end_case(labs);
}

int main(void) {
    struct lab labs[LAB_MAX];
    labs_open(labs);
    for (int i = 0; i < 3 * CASE_COUNT; i++) {
        run_case(labs, &cases[i / 3], (enum ox_real)(i % 3));
    }
    for (int real = OX_REAL_BF16; real <= OX_REAL_F16; real++) {
        const bool there = labs_change_products(labs, (enum ox_real)real);
        for (int i = 0; i < CASE_COUNT && there; i++) {
            run_case(labs, &cases[i], OX_REAL_F32);
        }
    }
    return labs_end(labs);
}
