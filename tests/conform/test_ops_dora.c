/* Magnitudes of adapters (DoRA) against references in double: lengths of rows in both layouts, and both passes over
 * some columns of wider rows, with and without a bias. */
#include "tests/kit/device/ops_kit.h"

#include <math.h>
#include <string.h>

/* ---- lengths of rows ---- */

struct norm_case {
    uint32_t in_count, out_count, r;
    enum ox_weight_layout layout;
};
static const struct norm_case norm_cases[] = {
    {1, 1, 1, OX_WEIGHT_OUT_IN},    {40, 24, 3, OX_WEIGHT_OUT_IN}, {40, 24, 3, OX_WEIGHT_IN_OUT},
    {700, 9, 2, OX_WEIGHT_OUT_IN}, {300, 65, 8, OX_WEIGHT_IN_OUT},
};

static void run_norm_on(struct lab *lab, const struct norm_case *c, enum ox_real real) {
    const int keep = guard_count;
    const size_t weight_len = (size_t)c->in_count * c->out_count, a_len = (size_t)c->r * c->in_count;
    const size_t b_len = (size_t)c->out_count * c->r;
    float *const weight = random_reals(real, weight_len, 1, 1.0), *const a = random_reals(real, a_len, 2, 1.0);
    float *const b = random_reals(real, b_len, 3, 1.0), *const norm = floats(c->out_count);
    double *const want = doubles(c->out_count);
    const struct ox_op_dora_norm op = {.norm = norm, .weight = reals_of(real, weight, weight_len),
                                       .a = reals_of(real, a, a_len), .b = reals_of(real, b, b_len),
                                       .in_count = c->in_count, .out_count = c->out_count, .r = c->r, .scale = 0.7f,
                                       .layout = c->layout, .real = real};
    for (uint32_t o = 0; o < c->out_count; o++) {
        double sum = 0.0;
        for (uint32_t k = 0; k < c->in_count; k++) {
            const bool out_in = c->layout == OX_WEIGHT_OUT_IN;
            double value = (double)weight[out_in ? o * c->in_count + k : k * c->out_count + o];
            for (uint32_t j = 0; j < c->r; j++) {
                value += (double)0.7f * (double)b[o * c->r + j] * (double)a[j * c->in_count + k];
            }
            sum += value * value;
        }
        want[o] = sqrt(sum);
    }
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, dora_norm, &op));
    lab_finish(lab);
    check_real_error(OX_REAL_F32, "dora_norm", error_of(norm, want, c->out_count), 1e-6, 1e-6);
    lab_digest(lab, norm, c->out_count * sizeof *norm);
    guards_end(keep);
}

/* ---- both passes ---- */

struct pass_case {
    uint32_t rows, cols, stride;
    bool bias, begins, trained;
};
static const struct pass_case pass_cases[] = {
    {1, 1, 1, false, true, true},      {7, 20, 33, true, true, true},    {33, 70, 70, true, false, true},
    {18, 130, 200, false, false, true}, {18, 130, 200, true, true, false},
};

static void run_passes_on(struct lab *lab, const struct pass_case *c, enum ox_real real) {
    const int keep = guard_count;
    const size_t len = (size_t)c->rows * c->stride;
    float *const in = random_reals(real, len, 1, 1.0), *const dout = random_reals(real, len, 2, 1.0);
    float *const magnitude = random_reals(real, c->cols, 3, 1.0), *const bias = random_reals(real, c->cols, 4, 1.0);
    float *const norm = random_reals(OX_REAL_F32, c->cols, 5, 1.0), *const grad = floats(c->cols);
    double *const want = doubles(len), *const wanted_din = doubles(len), *const wanted_grad = doubles(c->cols);
    void *const out = reals_of(real, in, len), *const din = reals_of(real, dout, len);
    for (uint32_t col = 0; col < c->cols; col++) {
        norm[col] = fabsf(norm[col]) + 0.5f;
        grad[col] = c->begins ? NAN : 0.25f;
        wanted_grad[col] = c->begins ? 0.0 : 0.25;
    }
    for (size_t i = 0; i < len; i++) { /* columns beside those of the call stay */
        const uint32_t col = (uint32_t)(i % c->stride);
        const bool is = col < c->cols;
        const double b = is && c->bias ? (double)bias[col] : 0.0;
        const double factor = is ? (double)magnitude[col] / (double)norm[col] : 1.0;
        want[i] = is ? ((double)in[i] - b) * factor + b : (double)in[i];
        wanted_din[i] = (double)dout[i] * factor;
        if (is) {
            wanted_grad[col] += (double)dout[i] * ((double)in[i] - b) / (double)norm[col];
        }
    }
    void *const magnitudes = reals_of(real, magnitude, c->cols);
    void *const biases = c->bias ? reals_of(real, bias, c->cols) : NULL;
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, dora_forward, &(struct ox_op_dora_forward){
        .out = out, .in = reals_of(real, in, len), .norm = norm, .magnitude = magnitudes, .bias = biases,
        .rows = c->rows, .cols = c->cols, .stride = c->stride, .real = real}));
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, dora_backward, &(struct ox_op_dora_backward){
        .din = din, .dmagnitude = c->trained ? grad : NULL, .dout = din,
        .in = c->trained ? reals_of(real, in, len) : NULL, .norm = norm, .magnitude = magnitudes, .bias = biases,
        .rows = c->rows, .cols = c->cols, .stride = c->stride, .real = real, .begins = c->begins}));
    lab_finish(lab);
    check_real_error(real, "dora_forward", error_of(floats_of(real, out, len), want, len), 1e-6, 4e-3);
    check_real_error(real, "dora_backward", error_of(floats_of(real, din, len), wanted_din, len), 1e-6, 4e-3);
    if (c->trained) {
        check_real_error(OX_REAL_F32, "dora_backward of magnitudes", error_of(grad, wanted_grad, c->cols), 1e-6, 1e-6);
        lab_digest(lab, grad, c->cols * sizeof *grad);
    }
    lab_digest(lab, floats_of(real, out, len), len * sizeof(float));
    guards_end(keep);
}

static void run_all(struct lab labs[LAB_MAX], enum ox_real real) {
    for (size_t i = 0; i < sizeof norm_cases / sizeof *norm_cases; i++) {
        for (int k = 0; k < lab_count; k++) {
            if (lab_knows(&labs[k], real)) {
                run_norm_on(&labs[k], &norm_cases[i], real);
            }
        }
        labs_end_case(labs);
    }
    for (size_t i = 0; i < sizeof pass_cases / sizeof *pass_cases; i++) {
        for (int k = 0; k < lab_count; k++) {
            if (lab_knows(&labs[k], real)) {
                run_passes_on(&labs[k], &pass_cases[i], real);
            }
        }
        labs_end_case(labs);
    }
}

int main(void) {
    struct lab labs[LAB_MAX];
    labs_open(labs);
    run_all(labs, OX_REAL_F32);
    run_all(labs, OX_REAL_BF16);
    run_all(labs, OX_REAL_F16);
    return labs_end(labs);
}
