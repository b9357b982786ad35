/* The fused head against a plain reference in double: losses, gradients, logits. */
#include "base/planes.h"
#include "base/prng/prng.h"
#include "tests/kit/device/ops_kit.h"

#include <math.h>
#include <string.h>

struct head_case {
    uint32_t rows, hidden, vocab;
    bool with_lo, with_logits, loss_only;
    double scale; /* scale of the inputs: 100 gives logits up to about 1e4 */
    float logit_scale, logit_cap; /* 0: none */
    float smoothing, z_loss;
    bool weighted; /* rows have weights, some of them 0 or negative */
};
static const struct head_case cases[] = {
    {1, 8, 3, true, true, false, 1.0, 0, 0, 0, 0, false},
    {5, 7, 33, false, false, false, 1.0, 0, 0, 0, 0, false},
    {37, 24, 300, true, false, false, 1.0, 0, 0, 0, 0, false},
    {33, 24, 9001, true, true, false, 1.0, 0, 0, 0, 0, false}, /* several tiles of the vocabulary, logits held */
    {9, 16, 4097, false, false, true, 1.0, 0, 0, 0, 0, false}, /* loss alone */
    {64, 32, 500, true, false, false, 100.0, 0, 0, 0, 0, false}, /* extreme logits */
    {1030, 4, 16384, false, false, false, 1.0, 0, 0, 0, 0, false}, /* several groups of rows */
    {1100, 2, 43700, true, false, false, 1.0, 0, 0, 0, 0, false}, /* too wide to hold: computed twice, in row tiles */
    {4200, 2, 40, true, false, false, 1.0, 0, 0, 0, 0, false}, /* several groups of rows of a GPU */
    {5, 7, 33, true, true, false, 1.0, 0.0625f, 0.0f, 0, 0, false},
    {5, 7, 33, true, true, false, 1.0, 0.0f, 0.5f, 0, 0, false},
    {33, 24, 9001, true, true, false, 1.0, 0.5f, 2.0f, 0, 0, false},
    {9, 16, 4097, false, false, true, 1.0, 0.0f, 3.0f, 0, 0, false},
    {1100, 2, 43700, true, false, false, 1.0, 2.0f, 1.5f, 0.2f, 0.01f, false}, /* too wide to hold: computed twice */
    {5, 7, 33, true, true, false, 1.0, 0, 0, 0.1f, 0, false},
    {5, 7, 33, true, true, false, 1.0, 0, 0, 0, 0.02f, false},
    {5, 7, 33, true, false, false, 1.0, 0, 0, 0, 0, true},
    {33, 24, 9001, true, true, false, 1.0, 0.5f, 2.0f, 0.3f, 1e-3f, true},
    {9, 16, 4097, false, false, true, 1.0, 0, 0, 0.2f, 0.01f, false},
};
enum { CASE_COUNT = sizeof cases / sizeof cases[0] };

static const float loss_scale = 0.125f;

struct reference {
    const struct head_case *shape;
    enum ox_real real;
    enum ox_real values; /* the type that holds inputs and weights exactly */
    const int32_t *targets;
    double *in, *weight;
    double *nll, *din, *dweight, *logits; /* logits of one row, or of all when they are wanted */
    double loss, weighted_loss, z; /* z: of the loss */
};

/* What a row's gradient is multiplied by. */
static double weight_of(const struct head_case *shape, uint32_t row) {
    return shape->weighted ? 0.5 * (double)(row % 7) - 1.0 : 1.0;
}

static double scale_of(const struct head_case *shape) {
    return shape->logit_scale != 0.0f ? (double)shape->logit_scale : 1.0;
}

/* What follows a product, and its slope at what it became. */
static double after(const struct head_case *shape, double product) {
    const double x = scale_of(shape) * product, cap = (double)shape->logit_cap;
    return cap == 0.0 ? x : cap * tanh(x / cap);
}

static double slope_at(const struct head_case *shape, double logit) {
    const double share = shape->logit_cap == 0.0f ? 0.0 : logit / (double)shape->logit_cap;
    return scale_of(shape) * (1.0 - share * share);
}

/* Adds one row's gradients, given its logits, their exponentials and the sum of these. */
static void reference_row_gradient(const struct reference *ref, uint32_t row, const double *logits,
                                   const double *power, double sum, double top) {
    const uint32_t hidden = ref->shape->hidden;
    for (uint32_t word = 0; word < ref->shape->vocab; word++) {
        const double e = (double)ref->shape->smoothing, z = (double)ref->shape->z_loss;
        const double hit = ((int32_t)word == ref->targets[row] ? 1.0 - e : 0.0) + e / ref->shape->vocab;
        const double p = power[word] / sum * (1.0 + 2.0 * z * (top + log(sum)));
        const double gradient = (double)loss_scale * weight_of(ref->shape, row) * (p - hit) *
                                slope_at(ref->shape, logits[word]);
        for (uint32_t i = 0; i < hidden; i++) {
            ref->din[(size_t)row * hidden + i] += gradient * ref->weight[(size_t)word * hidden + i];
            ref->dweight[(size_t)word * hidden + i] += gradient * ref->in[(size_t)row * hidden + i];
        }
    }
}

static void reference_run(struct reference *ref, double *power, bool backward) {
    const struct head_case *const shape = ref->shape;
    ref->loss = ref->weighted_loss = ref->z = 0.0;
    for (uint32_t row = 0; row < shape->rows; row++) {
        double *const logits = ref->logits + (shape->with_logits ? (size_t)row * shape->vocab : 0);
        double top = -INFINITY, sum = 0.0, total = 0.0;
        for (uint32_t word = 0; word < shape->vocab; word++) {
            logits[word] = 0.0;
            for (uint32_t i = 0; i < shape->hidden; i++) {
                logits[word] += ref->in[(size_t)row * shape->hidden + i] *
                                ref->weight[(size_t)word * shape->hidden + i];
            }
            logits[word] = after(shape, logits[word]);
            top = fmax(top, logits[word]);
        }
        for (uint32_t word = 0; word < shape->vocab; word++) {
            power[word] = exp(logits[word] - top);
            sum += power[word];
            total += logits[word];
        }
        const bool counted = ref->targets[row] >= 0;
        ref->nll[row] = counted ? top + log(sum) - logits[ref->targets[row]] : 0.0;
        if (counted) {
            const double lse = top + log(sum), e = (double)shape->smoothing;
            ref->z += (double)shape->z_loss * lse * lse;
            const double loss = (1.0 - e) * ref->nll[row] + e * (lse - total / shape->vocab) +
                                (double)shape->z_loss * lse * lse;
            ref->loss += loss;
            ref->weighted_loss += weight_of(shape, row) * loss;
        }
        if (counted && backward) {
            reference_row_gradient(ref, row, logits, power, sum, top);
        }
    }
}

struct loss_context {
    struct reference *ref;
    double *power;
};

/* The loss as a function of the weights, for finite differences. */
static double weight_loss(const void *context, const double *weight) {
    const struct loss_context *const at = context;
    (void)weight; /* it is at->ref->weight, changed in place */
    reference_run(at->ref, at->power, false);
    return (double)loss_scale * at->ref->weighted_loss;
}

/* A gradient of the table that begins is what is added to zeros. */
static void check_beginning(struct lab *lab, struct ox_op_head op, size_t weight_len) {
    float *sums[2];
    for (int begins = 0; begins < 2; begins++) {
        op.begins = begins == 1;
        op.dweight = sums[begins] = floats(weight_len);
        if (begins == 0) {
            fill(sums[0], weight_len, 0.0f);
        }
        REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, head, &op));
        lab_finish(lab);
    }
    check_begun(lab, sums[1], sums[0], weight_len);
}

/* Either gradient alone has the bits that it has beside the other. */
static void check_unwanted(struct lab *lab, struct ox_op_head op, size_t in_len, size_t weight_len) {
    const struct ox_op_head both = op;
    const enum ox_real real = op.real;
    op.din = reals(real, in_len);
    op.dweight = NULL;
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, head, &op));
    lab_finish(lab);
    CHECK(memcmp(op.din, both.din, in_len * ox_real_bytes(real)) == 0);
    float *const sums[2] = {floats(weight_len), floats(weight_len)};
    for (int i = 0; i < 2; i++) {
        op.din = i == 0 ? NULL : reals(real, in_len);
        op.dweight = sums[i];
        op.begins = true;
        REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, head, &op));
        lab_finish(lab);
    }
    CHECK(memcmp(sums[0], sums[1], weight_len * sizeof(float)) == 0);
}

/* The vocabulary in parts, each with a table of its own, gives what the whole gives: labels lie on both sides of a
 * border (make_inputs). */
static void check_parts(struct lab *lab, const struct reference *ref, const struct ox_op_head *whole) {
    const struct head_case *const shape = ref->shape;
    const uint32_t rows = shape->rows, vocab = shape->vocab, count = vocab % 2 == 0 ? 2 : 3;
    const enum ox_real real = lab->products != OX_REAL_F32 ? lab->products : ref->real;
    const size_t in_len = (size_t)rows * shape->hidden, weight_len = (size_t)vocab * shape->hidden;
    const bool extreme = shape->scale > 1.0;
    if (weight_len >= 400000) {
        return;
    }
    const struct ox_head_rows parts = {.sum = doubles(count * (size_t)rows), .total = doubles(count * (size_t)rows),
                                       .max = floats(count * (size_t)rows), .target = floats(count * (size_t)rows)};
    float *const sum = floats(in_len), *const dweight = floats(weight_len), *const row_nll = floats(rows);
    double *const loss_sum = doubles(1), *const losses = doubles(2);
    float *const logits = shape->with_logits ? floats((size_t)rows * vocab) : NULL;
    fill(sum, in_len, 0.0f);
    *loss_sum = losses[0] = losses[1] = 0.0;
    for (int pass = 0; pass < (shape->loss_only ? 1 : 2); pass++) {
        for (uint32_t i = 0; i < count; i++) {
            struct ox_op_head op = *whole;
            op.part = pass == 0 ? OX_HEAD_STATISTICS : OX_HEAD_GRADIENTS;
            op.first = (uint32_t)((uint64_t)vocab * i / count);
            op.vocab = (uint32_t)((uint64_t)vocab * (i + 1) / count) - op.first;
            op.vocab_whole = vocab;
            op.weight_hi += (size_t)op.first * shape->hidden;
            op.weight_lo = op.weight_lo == NULL ? NULL : op.weight_lo + (size_t)op.first * shape->hidden;
            const size_t at = pass == 0 ? i * (size_t)rows : 0;
            op.rows_of = (struct ox_head_rows){parts.sum + at, parts.total + at, parts.max + at, parts.target + at};
            op.scratch = guarded(ox_ops_head_scratch_bytes(&lab->compute, rows, shape->hidden, op.vocab));
            op.logits = pass == 0 ? logits : NULL;
            op.din = pass == 0 ? NULL : floats(in_len);
            op.dweight = pass == 0 ? NULL : dweight + (size_t)op.first * shape->hidden;
            op.begins = true;
            REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, head, &op));
            lab_finish(lab);
            for (size_t k = 0; pass == 1 && k < in_len; k++) {
                sum[k] += ((float *)op.din)[k];
            }
        }
        if (pass == 0) {
            REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, head_merge, &(struct ox_op_head_merge){
                .loss_sum = loss_sum, .row_nll = row_nll, .parts = losses, .row_losses = doubles(3 * (size_t)rows),
                .targets = ref->targets, .all = parts, .part = parts, .part_count = count, .rows = rows,
                .vocab_whole = vocab, .smoothing = shape->smoothing, .z_loss = shape->z_loss}));
            lab_finish(lab);
        }
    }
    check_real_error(real, extreme ? "loss of parts, extreme logits" : "loss of parts",
                     fabs(*loss_sum - ref->loss) / ref->loss, extreme ? 3e-8 : 1e-7, extreme ? 1.2e-7 : 6e-8);
    check_real_error(real, "z-loss of parts", fabs(losses[1] - ref->z) / fmax(ref->z, 1e-3), 1e-7, 1.2e-7);
    check_real_error(real, extreme ? "row_nll of parts, extreme logits" : "row_nll of parts",
                     error_of(row_nll, ref->nll, rows), extreme ? 5e-7 : 2e-7, extreme ? 3e-7 : 1.6e-7);
    if (shape->with_logits) {
        check_real_error(real, "logits of parts", error_of(logits, ref->logits, (size_t)rows * vocab), 5e-7, 5e-7);
    }
    if (!shape->loss_only) {
        check_real_error(real, extreme ? "din of parts, extreme logits" : "din of parts",
                         error_of(sum, ref->din, in_len), extreme ? 1e-7 : 2.5e-6, 6e-3);
        check_real_error(real, extreme ? "dweight of parts, extreme logits" : "dweight of parts",
                         error_of(dweight, ref->dweight, weight_len), extreme ? 1.5e-7 : 2e-6, extreme ? 1.5e-7 : 6e-3);
        lab_digest(lab, sum, in_len * sizeof(float));
    }
    lab_digest(lab, loss_sum, sizeof(double));
}

/* The last of `count` columns of every row of a matrix, or with `rest` the others. */
static double *columns_of(const double *from, size_t rows, size_t cols, size_t count, bool rest) {
    const size_t width = rest ? cols - count : count, first = rest ? 0 : cols - count;
    double *const out = doubles(rows * width);
    for (size_t i = 0; i < rows * width; i++) {
        out[i] = from[i / width * cols + first + i % width];
    }
    return out;
}

static uint16_t *planes_of(const uint16_t *from, size_t rows, size_t cols, size_t width) {
    uint16_t *const out = guarded(rows * width * sizeof *out);
    for (size_t i = 0; i < rows * width; i++) {
        out[i] = from[i / width * cols + i % width];
    }
    return out;
}

static void *reals_from(enum ox_real real, const double *values, size_t count, double scale) {
    float *const narrow = floats(count);
    for (size_t i = 0; i < count; i++) {
        narrow[i] = (float)(scale * values[i]);
    }
    return reals_of(real, narrow, count);
}

/* A product of low rank beside a narrower table is what its columns would be in a table that has them. */
static void check_low(struct lab *lab, const struct reference *ref, const struct ox_op_head *whole) {
    enum { R = 3 };
    const struct head_case *const shape = ref->shape;
    const uint32_t rows = shape->rows, vocab = shape->vocab, hidden = shape->hidden;
    const enum ox_real real = lab->products != OX_REAL_F32 ? lab->products : ref->real, type = ref->real;
    const size_t in_len = (size_t)rows * (hidden - R), low_len = (size_t)rows * R, weight_len = (size_t)vocab * R;
    if (hidden <= R || shape->scale > 1.0 || shape->weighted || (size_t)vocab * hidden >= 400000) {
        return;
    }
    const int keep = guard_count;
    const float scale = 0.5f; /* a power of two: the product has the bits of the column's */
    struct ox_op_head op = *whole;
    op.hidden = hidden - R;
    op.in = reals_from(type, columns_of(ref->in, rows, hidden, R, true), in_len, 1.0);
    op.weight_hi = planes_of(whole->weight_hi, vocab, hidden, hidden - R);
    op.weight_lo = whole->weight_lo == NULL ? NULL : planes_of(whole->weight_lo, vocab, hidden, hidden - R);
    op.low = (struct ox_head_low){
        .in = reals_from(type, columns_of(ref->in, rows, hidden, R, false), low_len, 1.0),
        .weight = reals_from(type, columns_of(ref->weight, vocab, hidden, R, false), weight_len, 1.0 / (double)scale),
        .r = R, .scale = scale};
    op.loss_sum = doubles(1);
    *op.loss_sum = 0.0;
    op.row_parts = doubles(2 * (size_t)rows);
    op.scratch = guarded(ox_ops_head_scratch_bytes(&lab->compute, rows, op.hidden, vocab));
    op.begins = true;
    op.din = shape->loss_only ? NULL : reals(type, in_len);
    op.low.din = shape->loss_only ? NULL : reals(type, low_len);
    op.low.dweight = shape->loss_only ? NULL : floats(weight_len); /* as of a frozen table */
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, head, &op));
    lab_finish(lab);
    check_real_error(real, "loss beside low rank", fabs(*op.loss_sum - ref->loss) / ref->loss, 1e-7, 6e-8);
    if (!shape->loss_only) {
        const double *const dweight = columns_of(ref->dweight, vocab, hidden, R, false);
        double *const scaled = doubles(weight_len);
        for (size_t i = 0; i < weight_len; i++) {
            scaled[i] = dweight[i] * (double)scale;
        }
        check_real_error(real, "din beside low rank",
                         error_of(floats_of(type, op.din, in_len), columns_of(ref->din, rows, hidden, R, true), in_len),
                         2.5e-6, 6e-3);
        check_real_error(real, "low.din",
                         error_of(floats_of(type, op.low.din, low_len), columns_of(ref->din, rows, hidden, R, false),
                                  low_len), 2.5e-6, 6e-3);
        check_real_error(real, "low.dweight", error_of(op.low.dweight, scaled, weight_len), 2e-6, 6e-3);
        lab_digest(lab, floats_of(type, op.low.din, low_len), low_len * sizeof(float));
        lab_digest(lab, op.low.dweight, weight_len * sizeof(float));
    }
    lab_digest(lab, op.loss_sum, sizeof(double));
    if (!shape->loss_only) { /* the gradients of low rank alone */
        struct ox_op_head alone = op;
        alone.din = NULL;
        alone.low.din = reals(type, low_len);
        alone.low.dweight = floats(weight_len);
        REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, head, &alone));
        lab_finish(lab);
        CHECK(memcmp(alone.low.din, op.low.din, low_len * ox_real_bytes(type)) == 0);
        CHECK(memcmp(alone.low.dweight, op.low.dweight, weight_len * sizeof(float)) == 0);
    }
    guards_end(keep);
}

static void run_on(struct lab *lab, const struct reference *ref, const struct ox_op_head *inputs) {
    const int keep = guard_count;
    const struct head_case *const shape = ref->shape;
    const size_t in_len = (size_t)shape->rows * shape->hidden;
    const size_t weight_len = (size_t)shape->vocab * shape->hidden;
    const size_t logits_len = (size_t)shape->rows * shape->vocab;
    const bool extreme = shape->scale > 1.0;
    const enum ox_real type = ref->real; /* of tensors; that of the errors: */
    const enum ox_real real = lab->products != OX_REAL_F32 ? lab->products : type;
    struct ox_op_head op = *inputs;
    op.loss_sum = doubles(1);
    op.loss_sum[0] = 2.0;
    op.row_nll = floats(shape->rows);
    op.parts = doubles(2);
    op.parts[0] = op.parts[1] = 1.0;
    op.row_parts = doubles(2 * (size_t)shape->rows);
    float *const weights = floats(shape->rows);
    for (uint32_t row = 0; row < shape->rows; row++) {
        weights[row] = (float)weight_of(shape, row);
    }
    op.row_weights = shape->weighted ? weights : NULL;
    op.din = shape->loss_only ? NULL : reals(type, in_len);
    float *const dweight = floats(weight_len);
    op.dweight = shape->loss_only ? NULL : dweight;
    op.logits = shape->with_logits ? floats(logits_len) : NULL;
    op.scratch = guarded(ox_ops_head_scratch_bytes(&lab->compute, op.rows, op.hidden, op.vocab));
    fill(dweight, weight_len, 0.5f);
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, head, &op));
    lab_finish(lab);

    const double loss_error = fabs(op.loss_sum[0] - 2.0 - ref->loss) / ref->loss;
    check_real_error(real, extreme ? "loss, extreme logits" : "loss", loss_error, extreme ? 3e-8 : 1e-7,
                     extreme ? 1.2e-7 : 6e-8); /* tensor cores cut logits off: all of them by a little */
    check_real_error(real, extreme ? "row_nll, extreme logits" : "row_nll",
                     error_of(op.row_nll, ref->nll, shape->rows), extreme ? 5e-7 : 2e-7, extreme ? 3e-7 : 1.6e-7);
    double nll = 0.0;
    for (uint32_t row = 0; row < shape->rows; row++) {
        nll += ref->nll[row];
    }
    check_real_error(real, "cross-entropy apart", fabs(op.parts[0] - 1.0 - nll) / nll, extreme ? 3e-8 : 1e-7, 1.2e-7);
    check_real_error(real, "z-loss apart", fabs(op.parts[1] - 1.0 - ref->z) / fmax(ref->z, 1e-3), 1e-7, 1.2e-7);
    if (shape->with_logits) {
        check_real_error(real, "logits", error_of(op.logits, ref->logits, logits_len), 5e-7, 5e-7);
    }
    for (size_t i = 0; i < weight_len; i++) {
        dweight[i] -= 0.5f;
    }
    if (!shape->loss_only) {
        const float *const din = floats_of(type, op.din, in_len);
        check_real_error(real, extreme ? "din, extreme logits" : "din", error_of(din, ref->din, in_len),
                         extreme ? 1e-7 : 2.5e-6, 6e-3);
        check_real_error(real, extreme ? "dweight, extreme logits" : "dweight",
                         error_of(op.dweight, ref->dweight, weight_len), extreme ? 1.5e-7 : 2e-6,
                         extreme ? 1.5e-7 : 6e-3);
        lab_digest(lab, din, in_len * sizeof(float));
        lab_digest(lab, op.dweight, weight_len * sizeof(float));
    }
    lab_digest(lab, op.loss_sum, sizeof(double));
    lab_digest(lab, op.row_nll, shape->rows * sizeof(float));
    if (!shape->loss_only) {
        check_beginning(lab, op, weight_len);
        if (weight_len < 20000) {
            check_unwanted(lab, op, in_len, weight_len);
        }
    }
    op = *inputs;
    op.row_weights = shape->weighted ? weights : NULL;
    check_parts(lab, ref, &op);
    guards_end(keep);
}

/* Fills the inputs of the operation and their widened copies. */
static void make_inputs(const struct head_case *shape, struct reference *ref, struct ox_op_head *op) {
    const size_t in_len = (size_t)shape->rows * shape->hidden;
    const size_t weight_len = (size_t)shape->vocab * shape->hidden;
    const bool with_lo = shape->with_lo && ref->values != OX_REAL_BF16;
    const float *const in = random_reals(ref->values, in_len, 1, shape->scale);
    /* The CPU does not round a single row. */
    const enum ox_real masters = ref->values == OX_REAL_F16 ? OX_REAL_F16 : OX_REAL_F32;
    const float *const weight = random_reals(masters, weight_len, 2, 0.5 * shape->scale);
    uint16_t *const hi = guarded(weight_len * 2), *const lo = guarded(weight_len * 2);
    int32_t *const targets = guarded(shape->rows * sizeof(int32_t));
    for (size_t i = 0; i < weight_len; i++) {
        hi[i] = ox_plane_hi(weight[i]);
        lo[i] = ox_plane_lo(weight[i]);
    }
    for (uint32_t row = 0; row < shape->rows; row++) {
        targets[row] = row % 5 == 3 ? -1 : (int32_t)(ox_uniform(1, 3, row) * shape->vocab);
    }
    targets[0] = (int32_t)shape->vocab - 1;
    for (int32_t row = 1; row < 3 && shape->rows > 3; row++) { /* on both sides of a border of two or three parts */
        targets[row] = (int32_t)(shape->vocab / (shape->vocab % 2 == 0 ? 2 : 3)) - row % 2;
    }
    ref->in = widened(in, in_len);
    ref->weight = widened(weight, weight_len);
    for (size_t i = 0; i < weight_len; i++) {
        ref->weight[i] = (double)real_nearest(ref->values, with_lo ? weight[i] : ox_bf16_to_f32(hi[i]));
    }
    ref->targets = targets;
    *op = (struct ox_op_head){.in = reals_of(ref->real, in, in_len),
                              .weight_hi = hi,
                              .weight_lo = with_lo ? lo : NULL,
                              .targets = targets,
                              .rows = shape->rows,
                              .hidden = shape->hidden,
                              .vocab = shape->vocab,
                              .loss_scale = loss_scale,
                              .logit_scale = shape->logit_scale,
                              .logit_cap = shape->logit_cap,
                              .smoothing = shape->smoothing,
                              .z_loss = shape->z_loss,
                              .real = ref->real};
}

static void run_case(struct lab labs[LAB_MAX], const struct head_case *shape, enum ox_real real,
                     enum ox_real values) {
    const size_t in_len = (size_t)shape->rows * shape->hidden;
    const size_t weight_len = (size_t)shape->vocab * shape->hidden;
    bool taken = false;
    for (int i = 0; i < lab_count; i++) {
        taken = taken || (lab_knows(&labs[i], real) && lab_takes(&labs[i], (double)shape->rows * shape->vocab));
    }
    if (!taken) {
        return;
    }
    struct reference ref = {.shape = shape,
                            .real = real,
                            .values = values,
                            .nll = doubles(shape->rows),
                            .din = doubles(in_len),
                            .dweight = doubles(weight_len),
                            .logits = doubles((size_t)shape->vocab * (shape->with_logits ? shape->rows : 1))};
    double *const power = doubles(shape->vocab);
    memset(ref.din, 0, in_len * sizeof(double));
    memset(ref.dweight, 0, weight_len * sizeof(double));
    struct ox_op_head op;
    make_inputs(shape, &ref, &op);
    reference_run(&ref, power, true);
    if (weight_len < 300 && shape->rows < 100 && real == OX_REAL_F32) {
        const struct loss_context at = {.ref = &ref, .power = power};
        check_error("the reference's gradient",
                    gradient_error(weight_loss, &at, ref.weight, ref.dweight, weight_len), 1e-8);
        reference_run(&ref, power, false);
    }
    for (int i = 0; i < lab_count; i++) {
        if (lab_knows(&labs[i], real) && lab_takes(&labs[i], (double)shape->rows * shape->vocab)) {
            run_on(&labs[i], &ref, &op);
            check_low(&labs[i], &ref, &op);
        }
    }
    labs_end_case(labs);
}

/* A logit that is not a number must reach the loss: the step is aborted by it. */
static void test_not_finite(struct lab *lab, enum ox_real real) {
    enum { HIDDEN = 8, VOCAB = 40, ROWS = 3 };
    float *const in = random_floats(ROWS * HIDDEN, 1, 1.0);
    uint16_t *const hi = guarded(VOCAB * HIDDEN * 2);
    memset(hi, 0, VOCAB * HIDDEN * 2);
    hi[0] = ox_plane_hi(1.0f);
    in[HIDDEN] = NAN;
    double *const loss = doubles(1);
    int32_t *const targets = guarded(ROWS * sizeof(int32_t));
    *loss = 0.0;
    for (int32_t i = 0; i < ROWS; i++) {
        targets[i] = i + 1;
    }
    const struct ox_op_head op = {.loss_sum = loss,
                                  .in = reals_of(real, in, ROWS * HIDDEN),
                                  .weight_hi = hi,
                                  .targets = targets,
                                  .scratch = guarded(ox_ops_head_scratch_bytes(&lab->compute, ROWS, HIDDEN, VOCAB)),
                                  .rows = ROWS,
                                  .hidden = HIDDEN,
                                  .vocab = VOCAB,
                                  .loss_scale = 1.0f,
                                  .real = real};
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, head, &op));
    lab_finish(lab);
    CHECK(isnan(*loss));
    guards_end(0);
}

int main(void) {
    struct lab labs[LAB_MAX];
    labs_open(labs);
    for (int i = 0; i < 3 * (int)CASE_COUNT; i++) {
        const enum ox_real real = (enum ox_real)(i % 3);
        const struct head_case *const shape = &cases[i / 3];
        /* Shapes whose logits are too wide to hold take most of the time, so `make test` has one of two. */
        const bool wide = (uint64_t)shape->rows * shape->vocab > 40000000;
        if (real == OX_REAL_F32 ? !wide || test_takes((unsigned)i / 18, 2) : test_takes((unsigned)(i / 3 + i % 3), 8)) {
            run_case(labs, shape, real, real);
        }
    }
    for (int i = 0; i < 3 * lab_count; i++) {
        const enum ox_real real = (enum ox_real)(i % 3);
        if (lab_knows(&labs[i / 3], real)) {
            test_not_finite(&labs[i / 3], real);
        }
    }
    for (int real = OX_REAL_BF16; real <= OX_REAL_F16; real++) {
        const bool there = labs_change_products(labs, (enum ox_real)real);
        for (int i = 0; i < (int)CASE_COUNT && there; i++) {
            if (test_takes((unsigned)(i + real), 8)) {
                run_case(labs, &cases[i], OX_REAL_F32, (enum ox_real)real);
            }
        }
        for (int i = 0; i < lab_count && there; i++) {
            test_not_finite(&labs[i], OX_REAL_F32);
        }
    }
    return labs_end(labs);
}
