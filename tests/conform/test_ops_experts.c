/* Rows to experts and back, activations of experts, the gate of a shared expert, sinks, clamps and parts of attention,
 * against references in double. */
#include "tests/kit/device/ops_kit.h"

#include <math.h>
#include <string.h>

/* ---- rows to experts and back ---- */

struct rows_case {
    uint32_t rows, chosen, experts, width;
    bool bias, residual, in_place;
};
static const struct rows_case rows_cases[] = {
    {1, 1, 1, 1, true, false, false},   {7, 2, 5, 33, true, true, true},  {40, 3, 8, 64, false, true, false},
    {65, 8, 9, 24, true, true, true},   {30, 4, 4, 600, true, false, false}, {9, 1, 3, 48, false, false, false},
};
enum { ROWS_COUNT = sizeof rows_cases / sizeof *rows_cases };

struct rows_data {
    const struct rows_case *shape;
    enum ox_real real;
    uint32_t pairs;
    size_t len, pair_len, bias_len;
    int32_t *experts, *offsets, *pair_of, *place;
    float *in, *residual, *weights, *bias, *tokens;
    double *combined, *dweights, *dbias;
};

/* Row r takes `chosen` experts from r * 5 on, in order; the last expert stays empty where it can. */
static void choose(const struct rows_data *d) {
    const struct rows_case *const shape = d->shape;
    const uint32_t some = shape->experts > shape->chosen ? shape->experts - 1 : shape->experts;
    uint32_t at = 0;
    for (uint32_t row = 0; row < shape->rows; row++) {
        uint32_t slot = 0;
        for (uint32_t e = 0; e < some; e++) {
            if ((e + some - row * 5 % some) % some < shape->chosen) {
                d->experts[row * shape->chosen + slot++] = (int32_t)e;
            }
        }
    }
    for (uint32_t e = 0; e < shape->experts; e++) {
        d->offsets[e] = (int32_t)at;
        for (uint32_t pair = 0; pair < d->pairs; pair++) {
            if (d->experts[pair] == (int32_t)e) {
                d->place[pair] = (int32_t)at;
                d->pair_of[at++] = (int32_t)pair;
            }
        }
    }
    d->offsets[shape->experts] = (int32_t)at;
}

static void rows_reference(const struct rows_data *d) {
    const struct rows_case *const shape = d->shape;
    memset(d->dbias, 0, d->bias_len * sizeof(double));
    memset(d->dweights, 0, d->pairs * sizeof(double));
    for (size_t at = 0; at < d->len; at++) {
        const size_t row = at / shape->width, col = at % shape->width;
        double sum = shape->residual ? (double)d->residual[at] : 0.0;
        for (uint32_t slot = 0; slot < shape->chosen; slot++) {
            const size_t pair = row * shape->chosen + slot, b = (size_t)d->experts[pair] * shape->width + col;
            const double dout = (double)d->tokens[at];
            sum += (double)d->in[(size_t)d->place[pair] * shape->width + col];
            sum += shape->bias ? (double)d->weights[pair] * (double)d->bias[b] : 0.0;
            d->dweights[pair] += dout * (double)d->bias[b];
            d->dbias[b] += (double)d->weights[pair] * dout;
        }
        d->combined[at] = sum;
    }
}

/* A call for each group of experts gives the bits of the calls for all, which are done. */
static void same_in_groups(struct lab *lab, const struct rows_data *d, struct ox_op_rows_gather gather,
                           struct ox_op_rows_combine combine, struct ox_op_combine_bias_backward back) {
    const void *const gathered_all = gather.out;
    const float *const dweights_all = back.dweights, *const dbias_all = back.dbias;
    const struct rows_case *const shape = d->shape;
    const size_t bytes = ox_real_bytes(d->real);
    const uint32_t cuts[] = {0, shape->experts / 3, shape->experts / 3, shape->experts - 1, shape->experts};
    void *const gathered = reals(d->real, d->pair_len), *const out = reals(d->real, d->len);
    float *const dweights = floats(d->pairs), *const dbias = floats(d->bias_len), *const sum = floats(d->len);
    const void *const bias = combine.bias, *const back_bias = back.bias;
    const struct ox_op_rows_combine whole = combine;
    void *const all = reals(d->real, d->len);
    for (int from_last = 0; from_last < 2; from_last++) {
        combine = whole;
        combine.residual = NULL;
        combine.from_last = from_last == 1;
        combine.out = all;
        REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, rows_combine, &combine));
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t at = from_last == 1 ? 3 - i : i, first = cuts[at];
            const size_t in_bias = (size_t)first * shape->width;
            combine.group = gather.group = back.group = (struct ox_experts){
                .offsets = d->offsets, .first = first, .count = cuts[at + 1] - first, .rows_max = d->pairs};
            combine.sum = sum;
            combine.begins = i == 0;
            combine.out = i == 3 ? out : NULL;
            combine.bias = bias == NULL ? NULL : (const unsigned char *)bias + in_bias * bytes;
            gather.out = gathered;
            back.bias = (const unsigned char *)back_bias + in_bias * bytes;
            back.dbias = dbias + in_bias;
            back.dweights = dweights;
            REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, rows_gather, &gather));
            REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, rows_combine, &combine));
            REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, combine_bias_backward, &back));
        }
        lab_finish(lab);
        CHECK(memcmp(out, all, d->len * bytes) == 0);
    }
    CHECK(memcmp(gathered, gathered_all, d->pair_len * bytes) == 0);
    CHECK(memcmp(dweights, dweights_all, d->pairs * sizeof(float)) == 0);
    CHECK(memcmp(dbias, dbias_all, d->bias_len * sizeof(float)) == 0);
}

static void run_rows_on(struct lab *lab, const struct rows_data *d) {
    const int keep = guard_count;
    const struct rows_case *const shape = d->shape;
    const size_t bytes = ox_real_bytes(d->real);
    void *const tokens = reals_of(d->real, d->tokens, d->len), *const gathered = reals(d->real, d->pair_len);
    void *const residual = reals_of(d->real, d->residual, d->len);
    void *const bias = reals_of(d->real, d->bias, d->bias_len);
    void *const out = shape->in_place ? residual : reals(d->real, d->len);
    float *const dweights = floats(d->pairs), *const dbias = floats(d->bias_len);
    const struct ox_op_rows_gather gather = {
        .out = gathered, .in = tokens, .pair_of = d->pair_of, .rows = shape->rows, .chosen = shape->chosen,
        .width = shape->width, .real = d->real};
    const struct ox_op_rows_combine combine = {
        .out = out, .residual = shape->residual ? residual : NULL, .in = reals_of(d->real, d->in, d->pair_len),
        .place = d->place, .bias = shape->bias ? bias : NULL, .weights = d->weights, .experts = d->experts,
        .rows = shape->rows, .chosen = shape->chosen, .width = shape->width, .real = d->real};
    const struct ox_op_combine_bias_backward back = {
        .dweights = dweights, .dbias = dbias, .dout = tokens, .bias = bias, .weights = d->weights,
        .experts = d->experts, .group = {.offsets = d->offsets, .count = shape->experts}, .pair_of = d->pair_of,
        .rows = shape->rows, .chosen = shape->chosen, .width = shape->width, .real = d->real, .begins = true};
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, rows_gather, &gather));
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, rows_combine, &combine));
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, combine_bias_backward, &back));
    lab_finish(lab);
    for (uint32_t row = 0; row < d->pairs; row++) {
        const size_t from = (size_t)d->pair_of[row] / shape->chosen, width = shape->width * bytes;
        CHECK(memcmp((unsigned char *)gathered + row * width, (unsigned char *)tokens + from * width, width) == 0);
    }
    check_real_error(d->real, "combine", error_of(floats_of(d->real, out, d->len), d->combined, d->len), 3e-7, 4e-3);
    check_error("combine's dweights", error_of(dweights, d->dweights, d->pairs), 1e-6);
    check_error("combine's dbias", error_of(dbias, d->dbias, d->bias_len), 1e-6);
    lab_digest(lab, out, d->len * bytes);
    lab_digest(lab, dweights, d->pairs * sizeof(float));
    lab_digest(lab, dbias, d->bias_len * sizeof(float));
    same_in_groups(lab, d, gather, combine, back);
    guards_end(keep);
}

static void run_rows(struct lab labs[LAB_MAX], const struct rows_case *shape, enum ox_real real) {
    struct rows_data d = {.shape = shape, .real = real, .pairs = shape->rows * shape->chosen};
    d.len = (size_t)shape->rows * shape->width;
    d.pair_len = (size_t)d.pairs * shape->width;
    d.bias_len = (size_t)shape->experts * shape->width;
    d.experts = guarded(d.pairs * sizeof(int32_t));
    d.offsets = guarded((shape->experts + 1) * sizeof(int32_t));
    d.pair_of = guarded(d.pairs * sizeof(int32_t));
    d.place = guarded(d.pairs * sizeof(int32_t));
    d.in = random_reals(real, d.pair_len, 1, 1.0);
    d.residual = random_reals(real, d.len, 2, 1.0);
    d.weights = random_floats(d.pairs, 3, 1.0);
    d.bias = random_reals(real, d.bias_len, 4, 1.0);
    d.tokens = random_reals(real, d.len, 5, 1.0);
    d.combined = doubles(d.len);
    d.dweights = doubles(d.pairs);
    d.dbias = doubles(d.bias_len);
    choose(&d);
    rows_reference(&d);
    for (int i = 0; i < lab_count; i++) {
        if (lab_knows(&labs[i], real)) {
            run_rows_on(&labs[i], &d);
        }
    }
    labs_end_case(labs);
}

/* ---- activations ---- */

struct act_case {
    uint32_t rows, width;
    struct ox_gate gate;
    bool weights, in_place, adds;
};
static const struct act_case act_cases[] = {
    {1, 1, {1.0f, INFINITY, 0.0f, false}, true, false, false},
    {9, 40, {1.0f, INFINITY, 0.0f, false}, true, true, false},
    {5, 33, {1.0f, INFINITY, 0.0f, false}, false, false, false},
    {9, 40, {1.702f, 2.0f, 1.0f, true}, true, true, true}, /* a limit that many values reach */
    {4, 300, {1.702f, 7.0f, 1.0f, true}, true, false, false},
    {3, 17, {1.702f, 1.5f, 1.0f, false}, true, false, true},
    {2, 700, {1.0f, INFINITY, 0.0f, true}, true, false, false},
};
enum { ACT_COUNT = sizeof act_cases / sizeof *act_cases };

struct act_data {
    const struct act_case *shape;
    enum ox_real real;
    size_t len;
    int32_t *pair_of;
    float *in, *dout, *weights, *before;
    double *out_want, *din_want, *dweights_want;
};

static double gated(const struct ox_gate *gate, double g, double u) {
    const double limit = (double)gate->limit, low = fmin(g, limit), up = fmax(-limit, fmin(u, limit));
    return (up + (double)gate->shift) * low / (1.0 + exp(-(double)gate->alpha * low));
}

/* Slopes by differences; the inputs keep away from the limits. */
static void act_reference(const struct act_data *d) {
    const struct act_case *const shape = d->shape;
    static const double step = 1e-5;
    for (uint32_t row = 0; row < shape->rows; row++) {
        const double weight = shape->weights ? (double)d->weights[d->pair_of[row]] : 1.0;
        double dweight = shape->adds ? (double)d->before[d->pair_of[row]] : 0.0;
        for (uint32_t i = 0; i < shape->width; i++) {
            const size_t at = (size_t)row * shape->width + i, begin = (size_t)row * 2 * shape->width;
            const size_t g = begin + (shape->gate.interleaved ? 2 * i : i);
            const size_t u = begin + (shape->gate.interleaved ? 2 * i + 1 : shape->width + i);
            const double gate = (double)d->in[g], up = (double)d->in[u], dout = (double)d->dout[at];
            const double value = gated(&shape->gate, gate, up);
            d->out_want[at] = weight * value;
            dweight += dout * value;
            d->din_want[g] = weight * dout * (gated(&shape->gate, gate + step, up) -
                                              gated(&shape->gate, gate - step, up)) / (2 * step);
            d->din_want[u] = weight * dout * (gated(&shape->gate, gate, up + step) -
                                              gated(&shape->gate, gate, up - step)) / (2 * step);
        }
        d->dweights_want[d->pair_of[row]] = dweight;
    }
}

static void run_act_on(struct lab *lab, const struct act_data *d) {
    const int keep = guard_count;
    const struct act_case *const shape = d->shape;
    void *const in = reals_of(d->real, d->in, 2 * d->len), *const out = reals(d->real, d->len);
    void *const din = shape->in_place ? in : reals(d->real, 2 * d->len);
    int32_t *const offsets = guarded(4 * sizeof *offsets); /* three experts, of which two have a call each */
    const int32_t ends[] = {0, 0, (int32_t)shape->rows / 2, (int32_t)shape->rows};
    memcpy(offsets, ends, sizeof ends);
    float *const dweights = floats(shape->rows), *const weights = shape->weights ? d->weights : NULL;
    memcpy(dweights, d->before, shape->rows * sizeof(float));
    struct ox_op_expert_act_forward forward = {.out = out, .in = in, .weights = weights, .pair_of = d->pair_of,
                                               .gate = shape->gate, .rows = shape->rows, .width = shape->width,
                                               .real = d->real};
    struct ox_op_expert_act_backward backward = {
        .din = din, .dweights = shape->weights ? dweights : NULL, .dout = reals_of(d->real, d->dout, d->len),
        .in = in, .weights = weights, .pair_of = d->pair_of, .gate = shape->gate, .rows = shape->rows,
        .width = shape->width, .real = d->real, .adds = shape->adds};
    for (uint32_t i = 0; i < (shape->weights ? 2 : 1); i++) {
        forward.group = backward.group = (struct ox_experts){.offsets = shape->weights ? offsets : NULL,
                                                             .first = 2 * i, .count = 2 - i};
        REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, expert_act_forward, &forward));
        REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, expert_act_backward, &backward));
    }
    lab_finish(lab);
    check_real_error(d->real, "expert act", error_of(floats_of(d->real, out, d->len), d->out_want, d->len), 1e-6, 4e-3);
    check_real_error(d->real, "expert act's din",
                     error_of(floats_of(d->real, din, 2 * d->len), d->din_want, 2 * d->len), 2e-6, 5e-3);
    if (shape->weights) {
        check_error("expert act's dweights", error_of(dweights, d->dweights_want, shape->rows), 1e-6);
        lab_digest(lab, dweights, shape->rows * sizeof(float));
    }
    lab_digest(lab, out, d->len * ox_real_bytes(d->real));
    lab_digest(lab, din, 2 * d->len * ox_real_bytes(d->real));
    guards_end(keep);
}

static void run_act(struct lab labs[LAB_MAX], const struct act_case *shape, enum ox_real real) {
    struct act_data d = {.shape = shape, .real = real, .len = (size_t)shape->rows * shape->width};
    d.in = random_reals(real, 2 * d.len, 1, 1.5);
    for (size_t i = 0; i < 2 * d.len; i++) {
        d.in[i] = fabsf(fabsf(d.in[i]) - shape->gate.limit) < 1e-4f ? 0.25f : d.in[i];
    }
    d.dout = random_reals(real, d.len, 2, 1.0);
    d.weights = random_floats(shape->rows, 3, 1.0);
    d.before = random_floats(shape->rows, 4, 1.0);
    d.pair_of = guarded(shape->rows * sizeof(int32_t));
    for (uint32_t row = 0; row < shape->rows; row++) {
        d.pair_of[row] = (int32_t)(shape->rows - 1 - row);
    }
    d.out_want = doubles(d.len);
    d.din_want = doubles(2 * d.len);
    d.dweights_want = doubles(shape->rows);
    act_reference(&d);
    for (int i = 0; i < lab_count; i++) {
        if (lab_knows(&labs[i], real)) {
            run_act_on(&labs[i], &d);
        }
    }
    labs_end_case(labs);
}

/* ---- the gate of a shared expert ---- */

struct gate_data {
    uint32_t rows, width;
    enum ox_real real;
    bool residual;
    float *in, *before, *gate, *dout;
    double *out_want, *din_want, *dgate_want;
};

static void run_gate_on(struct lab *lab, const struct gate_data *d) {
    const int keep = guard_count;
    const size_t len = (size_t)d->rows * d->width;
    void *const out = reals_of(d->real, d->before, len), *const din = reals_of(d->real, d->dout, len);
    void *const in = reals_of(d->real, d->in, len);
    float *const dgate = floats(d->rows);
    const struct ox_op_row_gate_forward forward = {out, d->residual ? out : NULL, in, d->gate, d->rows, d->width,
                                                   d->real};
    const struct ox_op_row_gate_backward backward = {din, dgate, din, in, d->gate, d->rows, d->width, d->real};
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, row_gate_forward, &forward));
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, row_gate_backward, &backward));
    lab_finish(lab);
    check_real_error(d->real, "row gate", error_of(floats_of(d->real, out, len), d->out_want, len), 5e-7, 4e-3);
    check_real_error(d->real, "row gate's din", error_of(floats_of(d->real, din, len), d->din_want, len), 5e-7, 4e-3);
    check_error("row gate's dgate", error_of(dgate, d->dgate_want, d->rows), 1e-6);
    lab_digest(lab, out, len * ox_real_bytes(d->real));
    lab_digest(lab, dgate, d->rows * sizeof(float));
    guards_end(keep);
}

static void run_gate(struct lab labs[LAB_MAX], uint32_t rows, uint32_t width, bool residual, enum ox_real real) {
    const size_t len = (size_t)rows * width;
    struct gate_data d = {.rows = rows, .width = width, .real = real, .residual = residual,
                          .in = random_reals(real, len, 1, 1.0), .before = random_reals(real, len, 2, 1.0),
                          .gate = random_floats(rows, 3, 2.0), .dout = random_reals(real, len, 4, 1.0),
                          .out_want = doubles(len), .din_want = doubles(len), .dgate_want = doubles(rows)};
    for (uint32_t row = 0; row < rows; row++) {
        const double share = 1.0 / (1.0 + exp(-(double)d.gate[row]));
        d.dgate_want[row] = 0.0;
        for (size_t at = (size_t)row * width; at < (size_t)(row + 1) * width; at++) {
            d.out_want[at] = (residual ? (double)d.before[at] : 0.0) + share * (double)d.in[at];
            d.din_want[at] = share * (double)d.dout[at];
            d.dgate_want[row] += share * (1.0 - share) * (double)d.dout[at] * (double)d.in[at];
        }
    }
    for (int i = 0; i < lab_count; i++) {
        if (lab_knows(&labs[i], real)) {
            run_gate_on(&labs[i], &d);
        }
    }
    labs_end_case(labs);
}

/* ---- clamps ---- */

static void run_clamp_on(struct lab *lab, uint32_t rows, uint32_t stride, uint32_t width, enum ox_real real) {
    const int keep = guard_count;
    const size_t len = (size_t)rows * stride;
    const float limit = 1.5f;
    float *const before = random_reals(real, len, 1, 1.5), *const dout = random_reals(real, len, 2, 1.0);
    before[0] = limit; /* still inside */
    void *const inout = reals_of(real, before, len), *const dinout = reals_of(real, dout, len);
    uint32_t *const inside = guarded((size_t)rows * ox_clamp_words(width) * sizeof(uint32_t));
    const struct ox_op_clamp_forward forward = {inout, inside, rows, stride, width, limit, real};
    const struct ox_op_clamp_backward backward = {dinout, inside, rows, stride, width, real};
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, clamp_forward, &forward));
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, clamp_backward, &backward));
    lab_finish(lab);
    const float *const out = floats_of(real, inout, len), *const din = floats_of(real, dinout, len);
    for (size_t i = 0; i < len; i++) {
        const bool clamps = i % stride < width && fabsf(before[i]) > limit;
        CHECK(out[i] == (clamps ? copysignf(limit, before[i]) : before[i]));
        CHECK(din[i] == (clamps ? 0.0f : dout[i]));
    }
    guards_end(keep);
}

/* ---- parts of heads ---- */

/* out[row][to] takes in[row][from], for each pair of columns that the parts name: in double. */
static void splice_reference(const struct ox_op_splice *op, const float *in, const float *residual, double *out) {
    for (uint32_t row = 0; row < op->rows; row++) {
        for (uint32_t col = 0; col < op->out_width; col++) {
            const size_t at = (size_t)row * op->out_width + col;
            out[at] = residual != NULL ? (double)residual[at] : 0.0;
        }
        for (uint32_t i = 0; i < op->part_count; i++) {
            const struct ox_splice_part *const part = &op->parts[i];
            for (uint32_t n = 0; n < part->heads * part->width; n++) {
                const uint32_t head = n / part->width, j = n % part->width;
                const size_t from = (size_t)row * op->in_width + part->in_first + head * part->in_stride + j;
                out[(size_t)row * op->out_width + part->out_first + head * part->out_stride + j] += (double)in[from];
            }
        }
    }
}

struct splice_case {
    uint32_t rows, in_width, out_width, part_count;
    struct ox_splice_part parts[OX_SPLICE_PARTS_MAX];
    bool residual, in_place;
};
static const struct splice_case splice_cases[] = {
    {7, 60, 100, 2, {{7, 12, 0, 14, 5, 5}, {0, 12, 5, 14, 7, 5}}, false, false}, /* queries of MLA, [rest | rotated] */
    {33, 23, 100, 1, {{19, 0, 20, 14, 4, 5}}, true, true},    /* one part for the keys of all heads */
    {33, 100, 23, 1, {{20, 14, 19, 0, 4, 5}}, true, false},   /* and back */
    {9, 100, 23, 1, {{20, 14, 19, 0, 4, 5}}, false, false},
    {19, 70, 45, 1, {{0, 14, 0, 9, 9, 5}}, false, false},     /* values that are narrower than queries */
    {1, 1, 1, 1, {{0, 1, 0, 1, 1, 1}}, true, true},
};

static void run_splice_on(struct lab *lab, const struct splice_case *shape, enum ox_real real) {
    const int keep = guard_count;
    const size_t in_len = (size_t)shape->rows * shape->in_width, len = (size_t)shape->rows * shape->out_width;
    float *const in = random_reals(real, in_len, 1, 1.0);
    float *const residual = shape->residual ? random_reals(real, len, 2, 1.0) : NULL;
    void *const given = residual == NULL ? NULL : reals_of(real, residual, len);
    struct ox_op_splice op = {.out = shape->in_place ? given : reals(real, len), .in = reals_of(real, in, in_len),
                              .residual = given, .rows = shape->rows, .in_width = shape->in_width,
                              .out_width = shape->out_width, .part_count = shape->part_count, .real = real};
    memcpy(op.parts, shape->parts, sizeof op.parts);
    double *const want = doubles(len);
    splice_reference(&op, in, residual, want);
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, splice, &op));
    lab_finish(lab);
    const float *const out = floats_of(real, op.out, len);
    check_real_error(real, "splice", error_of(out, want, len), 1e-6, 4e-3);
    for (size_t i = 0; i < len && !shape->residual && shape->in_width < shape->out_width; i++) {
        CHECK(out[i] == (float)want[i]); /* what is moved is not rounded */
    }
    lab_digest(lab, out, len * sizeof *out);
    guards_end(keep);
}

static struct splice_case backward_of(const struct splice_case *shape) {
    struct splice_case back = {.rows = shape->rows, .in_width = shape->out_width, .out_width = shape->in_width,
                               .part_count = shape->part_count};
    for (uint32_t i = 0; i < shape->part_count; i++) {
        const struct ox_splice_part *const part = &shape->parts[i];
        back.parts[i] = (struct ox_splice_part){part->out_first, part->out_stride, part->in_first, part->in_stride,
                                                part->width, part->heads};
    }
    return back;
}

/* With the parts exchanged it is the adjoint: <splice(x), y> = <x, splice'(y)>. */
static void run_splice_adjoint(const struct splice_case *shape) {
    const int keep = guard_count;
    const size_t in_len = (size_t)shape->rows * shape->in_width, len = (size_t)shape->rows * shape->out_width;
    const struct splice_case back = backward_of(shape);
    struct ox_op_splice forth_op = {.rows = shape->rows, .in_width = shape->in_width, .out_width = shape->out_width,
                                    .part_count = shape->part_count};
    struct ox_op_splice back_op = {.rows = back.rows, .in_width = back.in_width, .out_width = back.out_width,
                                   .part_count = back.part_count};
    const float *const x = random_floats(in_len, 1, 1.0), *const y = random_floats(len, 2, 1.0);
    double *const forth = doubles(len), *const backward = doubles(in_len);
    double sums[2] = {0.0, 0.0};
    memcpy(forth_op.parts, shape->parts, sizeof forth_op.parts);
    memcpy(back_op.parts, back.parts, sizeof back_op.parts);
    splice_reference(&forth_op, x, NULL, forth);
    splice_reference(&back_op, y, NULL, backward);
    for (size_t i = 0; i < len; i++) {
        sums[0] += forth[i] * (double)y[i];
    }
    for (size_t i = 0; i < in_len; i++) {
        sums[1] += backward[i] * (double)x[i];
    }
    CHECK(fabs(sums[0] - sums[1]) < 1e-9 * (1.0 + fabs(sums[0])));
    guards_end(keep);
}

static void run_splices(struct lab labs[LAB_MAX], enum ox_real real) {
    for (size_t i = 0; i < sizeof splice_cases / sizeof *splice_cases; i++) {
        run_splice_adjoint(&splice_cases[i]);
        for (int k = 0; k < lab_count; k++) {
            if (lab_knows(&labs[k], real)) {
                run_splice_on(&labs[k], &splice_cases[i], real);
            }
        }
        labs_end_case(labs);
    }
}

/* ---- turned matrices ---- */

/* What is turned keeps its bits, what it is added to is rounded once; turned twice it is what it was. */
static void run_turn_on(struct lab *lab, enum ox_real real, uint32_t rows, uint32_t cols) {
    const int keep = guard_count;
    const size_t len = (size_t)rows * cols;
    float *const in = random_reals(real, len, 1, 1.0), *const first = random_reals(real, len, 2, 1.0);
    void *const turned = reals(real, len), *const back = reals(real, len), *const sum = reals_of(real, first, len);
    const struct ox_op_turn ops[] = {{turned, reals_of(real, in, len), rows, cols, real, false},
                                     {back, turned, cols, rows, real, false},
                                     {sum, turned, cols, rows, real, true}};
    for (int i = 0; i < 3; i++) {
        REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, turn, &ops[i]));
    }
    lab_finish(lab);
    const float *const out = floats_of(real, turned, len), *const again = floats_of(real, back, len);
    const float *const sums = floats_of(real, sum, len);
    double *const want = doubles(len);
    for (size_t i = 0; i < len; i++) {
        CHECK(out[i % cols * rows + i / cols] == in[i] && again[i] == in[i]);
        want[i] = (double)first[i] + (double)in[i];
    }
    check_real_error(real, "turn", error_of(sums, want, len), 1e-6, 4e-3);
    lab_digest(lab, sums, len * sizeof *sums);
    guards_end(keep);
}

static void run_turns(struct lab labs[LAB_MAX], enum ox_real real) {
    static const uint32_t shapes[][2] = {{1, 1}, {35, 6}, {6, 35}, {640, 3}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int k = 0; k < lab_count; k++) {
            if (lab_knows(&labs[k], real)) {
                run_turn_on(&labs[k], real, shapes[i][0], shapes[i][1]);
            }
        }
        labs_end_case(labs);
    }
}

/* ---- limbs ---- */

/* Any float32 is the sum of its limbs, whatever type holds them; in halves within their smallest step. */
static void run_limbs_on(struct lab *lab, enum ox_real real) {
    enum { COUNT = 77 };
    const int keep = guard_count;
    float whole[COUNT], limbs[COUNT * OX_LIMBS];
    float *const values = random_reals(OX_REAL_F32, COUNT, 3, 3.0), *const out = floats(COUNT);
    values[0] = 1.0f + 0x1p-23f;
    values[1] = 0.0f;
    memcpy(whole, values, sizeof whole);
    for (size_t i = 0; i < COUNT; i++) {
        ox_limbs_of(whole[i], limbs + i * OX_LIMBS);
    }
    void *const in = reals_of(real, limbs, COUNT * OX_LIMBS);
    const struct ox_op_join_limbs join = {out, in, COUNT, real};
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, join_limbs, &join));
    lab_finish(lab);
    for (size_t i = 0; i < COUNT; i++) {
        CHECK(real == OX_REAL_F16 ? fabsf(out[i] - whole[i]) <= 0x1p-24f : out[i] == whole[i]);
    }
    guards_end(keep);
}

/* ---- sinks ---- */

struct sinks_data {
    struct ox_attention_shape shape;
    enum ox_real real;
    size_t qkv_len, out_len;
    float *qkv, *dout, *sinks;
    double *out, *dqkv, *dsinks;
};

static size_t qkv_at(const struct ox_attention_shape *s, uint32_t row, uint32_t head) {
    return ((size_t)row * (s->heads + 2 * s->kv_heads) + head) * s->head_dim;
}

/* One query of one head: its outputs and what it adds to gradients. */
static void sink_query(const struct sinks_data *d, uint32_t row, uint32_t head) {
    const struct ox_attention_shape *const s = &d->shape;
    const uint32_t first = row / s->seq * s->seq, kv = head / (s->heads / s->kv_heads);
    const size_t q = qkv_at(s, row, head), o = ((size_t)row * s->heads + head) * s->head_dim;
    double weight[64], slope[64], sum = exp((double)d->sinks[head]), delta = 0.0;
    for (uint32_t key = first; key <= row; key++) {
        double score = 0.0;
        for (uint32_t i = 0; i < s->head_dim; i++) {
            score += (double)d->qkv[q + i] * (double)d->qkv[qkv_at(s, key, s->heads + kv) + i];
        }
        weight[key - first] = exp(score * (double)s->scale);
        sum += weight[key - first];
    }
    for (uint32_t key = first; key <= row; key++) {
        const size_t v = qkv_at(s, key, s->heads + s->kv_heads + kv);
        weight[key - first] /= sum;
        slope[key - first] = 0.0;
        for (uint32_t i = 0; i < s->head_dim; i++) {
            d->out[o + i] += weight[key - first] * (double)d->qkv[v + i];
            d->dqkv[v + i] += weight[key - first] * (double)d->dout[o + i];
            slope[key - first] += (double)d->dout[o + i] * (double)d->qkv[v + i];
        }
        delta += weight[key - first] * slope[key - first];
    }
    d->dsinks[head] -= exp((double)d->sinks[head]) / sum * delta;
    for (uint32_t key = first; key <= row; key++) {
        const size_t k = qkv_at(s, key, s->heads + kv);
        const double dscore = weight[key - first] * (slope[key - first] - delta) * (double)s->scale;
        for (uint32_t i = 0; i < s->head_dim; i++) {
            d->dqkv[q + i] += dscore * (double)d->qkv[k + i];
            d->dqkv[k + i] += dscore * (double)d->qkv[q + i];
        }
    }
}

static void run_sinks_on(struct lab *lab, const struct sinks_data *d) {
    const int keep = guard_count;
    const struct ox_attention_shape *const s = &d->shape;
    void *const out = reals(d->real, d->out_len), *const qkv = reals_of(d->real, d->qkv, d->qkv_len);
    void *const dout = reals_of(d->real, d->dout, d->out_len), *const sinks = reals_of(d->real, d->sinks, s->heads);
    void *const dqkv = reals(d->real, d->qkv_len);
    void *const scratch = guarded(ox_ops_attention_scratch_bytes(&lab->compute, s));
    float *const lse = floats((size_t)s->batch * s->heads * s->seq), *const dsinks = floats(s->heads);
    const struct ox_op_attention_forward forward = {.out = out, .lse = lse, .qkv = qkv, .scratch = scratch,
                                                    .shape = *s, .real = d->real};
    const struct ox_op_sinks_forward after = {out, lse, sinks, s->batch, s->seq, s->heads, s->head_dim, d->real};
    const struct ox_op_attention_backward backward = {.dqkv = dqkv, .dout = dout, .qkv = qkv, .out = out, .lse = lse,
                                                      .scratch = scratch, .shape = *s, .real = d->real};
    const struct ox_op_sinks_backward sums = {dsinks, dout, out, sinks, lse, s->batch, s->seq, s->heads, s->head_dim,
                                              d->real, true};
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, attention_forward, &forward));
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, sinks_forward, &after));
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, attention_backward, &backward));
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, sinks_backward, &sums));
    lab_finish(lab);
    check_real_error(d->real, "attention with sinks",
                     error_of(floats_of(d->real, out, d->out_len), d->out, d->out_len), 1e-6, 1e-2);
    check_real_error(d->real, "its dqkv", error_of(floats_of(d->real, dqkv, d->qkv_len), d->dqkv, d->qkv_len), 2e-6,
                     2e-2);
    check_real_error(d->real, "its dsinks", error_of(dsinks, d->dsinks, s->heads), 2e-6, 2e-2);
    lab_digest(lab, out, d->out_len * ox_real_bytes(d->real));
    lab_digest(lab, dsinks, s->heads * sizeof(float));
    guards_end(keep);
}

static void run_sinks(struct lab labs[LAB_MAX], const struct ox_attention_shape *shape, enum ox_real real) {
    const uint32_t rows = shape->batch * shape->seq;
    struct sinks_data d = {.shape = *shape, .real = real,
                           .qkv_len = (size_t)rows * (shape->heads + 2 * shape->kv_heads) * shape->head_dim,
                           .out_len = (size_t)rows * shape->heads * shape->head_dim};
    d.qkv = random_reals(real, d.qkv_len, 1, 1.0);
    d.dout = random_reals(real, d.out_len, 2, 1.0);
    d.sinks = random_reals(real, shape->heads, 3, 2.0);
    d.out = doubles(d.out_len);
    d.dqkv = doubles(d.qkv_len);
    d.dsinks = doubles(shape->heads);
    memset(d.out, 0, d.out_len * sizeof(double));
    memset(d.dqkv, 0, d.qkv_len * sizeof(double));
    memset(d.dsinks, 0, shape->heads * sizeof(double));
    for (uint32_t i = 0; i < rows * shape->heads; i++) {
        sink_query(&d, i / shape->heads, i % shape->heads);
    }
    for (int i = 0; i < lab_count; i++) {
        if (lab_knows(&labs[i], real)) {
            run_sinks_on(&labs[i], &d);
        }
    }
    labs_end_case(labs);
}

/* A float32 grows or shrinks as one, whatever its limbs are. */
static void run_shift_on(struct lab *lab) {
    enum { COUNT = 77 };
    const int keep = guard_count;
    float *const values = random_floats(COUNT, 3, 3.0);
    uint16_t *const plane = guarded(COUNT * OX_LIMBS * sizeof *plane);
    struct ox_op_limbs_shift op = {.plane = plane, .count = COUNT, .by = 0.001f, .up = {0x5a5a5a5au, 0x7u},
                                   .down = {0x80000000u >> 2, 0x70000u, 0x1000u}};
    values[64] = 0.0f;
    for (uint32_t i = 0; i < COUNT; i++) {
        float limbs[OX_LIMBS];
        ox_limbs_of(values[i], limbs);
        for (uint32_t k = 0; k < OX_LIMBS; k++) {
            plane[i * OX_LIMBS + k] = ox_plane_hi(limbs[k]);
        }
    }
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, limbs_shift, &op));
    lab_finish(lab);
    for (uint32_t i = 0; i < COUNT; i++) {
        float sum = 0.0f;
        for (uint32_t k = 0; k < OX_LIMBS; k++) {
            sum += ox_bf16_to_f32(plane[i * OX_LIMBS + k]);
        }
        const bool up = (op.up[i / 32] >> i % 32 & 1) != 0, down = (op.down[i / 32] >> i % 32 & 1) != 0;
        CHECK(sum == (up ? values[i] + 0.001f : down ? values[i] - 0.001f : values[i]));
    }
    guards_end(keep);
}

static void run_all(struct lab labs[LAB_MAX], enum ox_real real) {
    static const struct ox_attention_shape shapes[] = {
        {.batch = 1, .seq = 5, .heads = 2, .kv_heads = 1, .head_dim = 8, .scale = 0.4f},
        {.batch = 2, .seq = 40, .heads = 4, .kv_heads = 2, .head_dim = 16, .scale = 0.25f},
    };
    for (int i = 0; i < ROWS_COUNT; i++) {
        run_rows(labs, &rows_cases[i], real);
    }
    for (int i = 0; i < ACT_COUNT; i++) {
        run_act(labs, &act_cases[i], real);
    }
    run_gate(labs, 7, 33, true, real);
    run_gate(labs, 20, 600, false, real);
    for (int i = 0; i < lab_count; i++) {
        if (lab_knows(&labs[i], real)) {
            run_clamp_on(&labs[i], 9, 50, 40, real);
            run_clamp_on(&labs[i], 17, 64, 64, real);
            run_limbs_on(&labs[i], real);
        }
    }
    run_splices(labs, real);
    run_turns(labs, real);
    run_sinks(labs, &shapes[0], real);
    run_sinks(labs, &shapes[1], real);
}

int main(void) {
    struct lab labs[LAB_MAX];
    labs_open(labs);
    run_all(labs, OX_REAL_F32);
    for (int i = 0; i < lab_count; i++) {
        run_shift_on(&labs[i]);
    }
    run_all(labs, OX_REAL_BF16);
    run_all(labs, OX_REAL_F16);
    labs_change_attention(labs); /* the emulated cuDNN */
    run_sinks(labs, &(struct ox_attention_shape){.batch = 2, .seq = 40, .heads = 4, .kv_heads = 2, .head_dim = 16,
                                                 .scale = 0.25f}, OX_REAL_BF16);
    return labs_end(labs);
}
