/* Losses of pairs of sequences against a reference in double, with slopes by finite differences; and noise, whose
 * numbers are those of the generator on every device. */
#include "base/planes.h"
#include "base/prng/prng.h"
#include "tests/kit/device/ops_kit.h"

#include <math.h>
#include <string.h>

enum { BATCH = 6, SEQ = 19, ROWS = BATCH * SEQ };

struct pairs_case {
    enum ox_pair_loss loss;
    float beta, smoothing, sft;
    bool by_itself; /* no reference: the model is its own */
};

/* The loss of all pairs as the sum of TRL's formulas; rows that are -1 do not count. */
static double loss_of(const struct pairs_case *of, const double *nll, const int32_t *targets, const double *reference) {
    double loss = 0.0, sft = 0.0, rows = 0.0, pairs = 0.0;
    for (int k = 0; k < BATCH / 2; k++) {
        double sums[2] = {0, 0}, counts[2] = {0, 0};
        for (int side = 0; side < 2; side++) {
            for (int i = 0; i < SEQ; i++) {
                const int row = (2 * k + side) * SEQ + i;
                sums[side] -= targets[row] < 0 ? 0.0 : nll[row];
                counts[side] += targets[row] < 0 ? 0.0 : 1.0;
            }
        }
        if (counts[0] == 0 || counts[1] == 0) {
            continue;
        }
        pairs++;
        rows += counts[0];
        sft -= sums[0];
        const double chosen = of->by_itself ? 0.0 : sums[0] - reference[2 * k];
        const double rejected = of->by_itself ? 0.0 : sums[1] - reference[2 * k + 1];
        const double beta = (double)of->beta, z = beta * (chosen - rejected), e = (double)of->smoothing;
        const double yes = log(1.0 / (1.0 + exp(-z))), no = log(1.0 / (1.0 + exp(z)));
        const double mean = chosen / counts[0] - rejected / counts[1];
        loss += of->loss == OX_PAIR_SIGMOID  ? -(1.0 - e) * yes - e * no
                : of->loss == OX_PAIR_ROBUST ? (-(1.0 - e) * yes + e * no) / (1.0 - 2.0 * e)
                : of->loss == OX_PAIR_HINGE  ? fmax(0.0, 1.0 - z) : pow(mean - 1.0 / (2.0 * beta), 2);
    }
    return loss + (double)of->sft * sft * pairs / rows;
}

static void test_pairs(struct lab *lab, const struct pairs_case *of) {
    float *const nll = random_floats(ROWS, 1, 1.0);
    double *const wide = doubles(ROWS), *const reference = doubles(BATCH);
    int32_t *const targets = guarded(ROWS * sizeof *targets);
    for (int i = 0; i < ROWS; i++) {
        nll[i] = fabsf(nll[i]);
        wide[i] = (double)nll[i];
        const int sequence = i / SEQ, place = i % SEQ;
        targets[i] = sequence == 3 || place < 5 || place >= 18 - sequence ? -1 : i % 7; /* pair 1 has none to reject */
    }
    for (int i = 0; i < BATCH; i++) {
        reference[i] = -6.0 - 0.7 * i;
    }
    struct ox_op_pairs op = {.values = doubles(OX_PAIR_VALUES + BATCH), .row_weights = floats(ROWS), .row_nll = nll,
                             .targets = targets, .reference = of->by_itself ? NULL : reference, .batch = BATCH,
                             .seq = SEQ, .loss = of->loss, .beta = of->beta, .smoothing = of->smoothing,
                             .sft = of->sft};
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, pairs, &op));
    lab_finish(lab);
    const double want = loss_of(of, wide, targets, reference);
    check_error("loss of pairs", fabs(op.values[OX_PAIR_LOSS] - want) / fabs(want), 1e-12);
    double worst = 0.0, largest = 0.0;
    for (int i = 0; i < ROWS && !of->by_itself; i++) {
        const double kept = wide[i], step = 1e-4;
        wide[i] = kept + step;
        const double above = loss_of(of, wide, targets, reference);
        wide[i] = kept - step;
        const double slope = (above - loss_of(of, wide, targets, reference)) / (2.0 * step);
        wide[i] = kept;
        largest = fmax(largest, fabs(slope));
        worst = fmax(worst, targets[i] < 0 ? 0.0 : fabs(slope - (double)op.row_weights[i]));
    }
    check_error("weights of rows", worst / fmax(largest, 1e-30), 1e-6);
    double right = 0.0, chosen = 0.0;
    for (int k = 0; k < BATCH / 2; k++) {
        const double own = op.values[OX_PAIR_VALUES + 2 * k] - reference[2 * k];
        const double other = op.values[OX_PAIR_VALUES + 2 * k + 1] - reference[2 * k + 1];
        right += k != 1 && !of->by_itself && own > other;
        chosen += k == 1 || of->by_itself ? 0.0 : (double)of->beta * own;
    }
    CHECK(op.values[OX_PAIR_RIGHT] == right);
    CHECK(fabs(op.values[OX_PAIR_REWARD_CHOSEN] - chosen) < 1e-9);
    guards_end(0);
}

static void test_noise(struct lab *lab, size_t count, enum ox_real real) {
    const float magnitude = 0.0123f;
    const float *const start = random_reals(real, count, 1, 1.0);
    void *const inout = reals_of(real, start, count);
    double *const want = doubles(count);
    for (size_t i = 0; i < count; i++) {
        uint32_t words[4];
        ox_philox(7, UINT64_C(3) << 24 | 5, i / 4, words);
        const double u = (double)((int32_t)(words[i % 4] >> 8) - (1 << 23)) * 0x1p-23;
        want[i] = (double)start[i] + (double)(magnitude * (float)u);
    }
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, noise, &(struct ox_op_noise){
        .inout = inout, .count = count, .seed = 7, .stream = UINT64_C(3) << 24 | 5, .magnitude = magnitude,
        .real = real}));
    lab_finish(lab);
    check_real_error(real, "noise", error_of(floats_of(real, inout, count), want, count), 1e-7, 4e-3);
    guards_end(0);
}

/* Dropout: the share of zeros, which elements they are, what the others become, and a residual. */
static void test_drop(struct lab *lab, size_t count, enum ox_real real, float rate, bool adds) {
    const float *const start = random_reals(real, count, 1, 1.0), *const other = random_reals(real, count, 2, 1.0);
    void *const in = reals_of(real, start, count), *const out = reals_of(real, other, count);
    double *const want = doubles(count), zeros = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t words[4];
        ox_philox(7, UINT64_C(3) << 24 | 5, i / 4, words);
        const bool drops = (double)(words[i % 4] >> 8) * 0x1p-24 < (double)rate;
        zeros += drops;
        want[i] = (drops ? 0 : (double)start[i] / (1 - (double)rate)) + (adds ? (double)other[i] : 0);
    }
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, drop, &(struct ox_op_drop){
        .out = out, .in = in, .residual = adds ? out : NULL, .count = count, .seed = 7,
        .stream = UINT64_C(3) << 24 | 5, .rate = rate, .real = real}));
    lab_finish(lab);
    check_real_error(real, "drop", error_of(floats_of(real, out, count), want, count), 2e-7, 4e-3);
    CHECK(count < 1000 || fabs(zeros / (double)count - (double)rate) <
                              5 * sqrt((double)rate * (1 - (double)rate) / (double)count) + 1e-12);
    guards_end(0);
}

int main(void) {
    static const struct pairs_case cases[] = {
        {OX_PAIR_SIGMOID, 0.1f, 0, 0, false},    {OX_PAIR_SIGMOID, 0.5f, 0.1f, 0, false},
        {OX_PAIR_SIGMOID, 0.1f, 0, 0.7f, false}, {OX_PAIR_IPO, 0.1f, 0, 0, false},
        {OX_PAIR_IPO, 0.4f, 0, 1.0f, false},     {OX_PAIR_ROBUST, 0.3f, 0.2f, 0, false},
        {OX_PAIR_HINGE, 0.2f, 0, 0, false},      {OX_PAIR_SIGMOID, 0.1f, 0, 0, true},
    };
    struct lab labs[LAB_MAX];
    labs_open(labs);
    for (int lab = 0; lab < lab_count; lab++) {
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            test_pairs(&labs[lab], &cases[i]);
        }
        for (int real = 0; real < 3; real++) {
            if (lab_knows(&labs[lab], (enum ox_real)real)) {
                test_noise(&labs[lab], 1, (enum ox_real)real);
                test_noise(&labs[lab], 70003, (enum ox_real)real);
                test_drop(&labs[lab], 70003, (enum ox_real)real, 0.25f, false);
                test_drop(&labs[lab], 70003, (enum ox_real)real, 0.1f, true);
                test_drop(&labs[lab], 7, (enum ox_real)real, 0, false);
            }
        }
    }
    return labs_end(labs);
}
