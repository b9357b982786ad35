/* The vector loops of every instruction set this processor has, against double: the exponential over
 * its whole range, tails of every length, and the values that are not numbers. */
#include "base/planes.h"
#include "kernels/cpu/vector.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { TAIL_MAX = 70 };

/* The same bits as base/planes.h: floats around every half, and all exponents. */
static void test_f16_round(const struct ox_vector *vector) {
    enum { LEN = 1 << 16 };
    static float x[LEN], y[LEN];
    uint64_t wrong = 0;
    for (uint32_t set = 0; set < 16; set++) {
        for (uint32_t i = 0; i < LEN; i++) {
            static const uint32_t edges[] = {0, 1, 0x7fff, 0x8000, 0xfff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x5000};
            x[i] = ox_f32_from_bits(i << 16 | (edges[set % 10] + (set < 10 ? 0 : i * 40503u)) % 0x10000u);
        }
        vector->f16_round(y, x, LEN - set);
        for (uint32_t i = 0; i < LEN - set; i++) {
            const float want = ox_f16_to_f32(ox_f16_from_f32(x[i]));
            wrong += isnan(want) ? !isnan(y[i]) : ox_f32_bits(want) != ox_f32_bits(y[i]);
        }
    }
    CHECK(wrong == 0);
}

static void test_exp(const struct ox_vector *vector) {
    enum { LEN = 40000 };
    static float x[LEN], y[LEN];
    double worst = 0.0;
    for (int i = 0; i < LEN; i++) {
        x[i] = y[i] = -87.0f + 175.3f * (float)i / LEN;
    }
    vector->exp_scaled(y, 0.0f, 1.0f, LEN);
    for (int i = 0; i < LEN; i++) {
        const double want = exp((double)x[i]);
        worst = fmax(worst, fabs((double)y[i] - want) / want);
    }
    /* A unit in the last place is 6e-8 to 1.2e-7 of the value. */
    printf("%-7s exp: relative error %.2e, allowed 1.50e-07\n", vector->name, worst);
    CHECK(worst <= 1.5e-7);

    float special[] = {-INFINITY, -1e30f, -88.0f, -1e4f, 0.0f, NAN, INFINITY, 1e30f};
    vector->exp_scaled(special, 0.0f, 1.0f, 8);
    for (int i = 0; i < 4; i++) {
        CHECK(special[i] == 0.0f);
    }
    CHECK(special[4] == 1.0f && isnan(special[5]));
    CHECK(special[6] > 2e38f && special[7] > 2e38f && isfinite(special[7]));
}

/* Near 0 a capped value is as exact as a large one; what is not a number stays that. */
static void test_cap(const struct ox_vector *vector) {
    enum { LEN = 40001 };
    static float x[LEN], y[LEN], slope[LEN];
    double worst = 0.0, worst_slope = 0.0;
    for (int i = 0; i < LEN; i++) {
        const float size = ldexpf(1.0f, -20 + i % 30) * (1.0f + (float)(i / 30) / (LEN / 30));
        x[i] = y[i] = i % 2 == 0 ? size : -size;
        slope[i] = 1.0f;
    }
    vector->cap(y, 0.5f, 30.0f, LEN);
    vector->cap_back(slope, y, 30.0f, LEN);
    for (int i = 0; i < LEN; i++) {
        const double share = tanh(0.5 * (double)x[i] / 30.0), want = 30.0 * share;
        worst = fmax(worst, fabs((double)y[i] - want) / fabs(want));
        worst_slope = fmax(worst_slope, fabs((double)slope[i] - (1.0 - share * share)));
    }
    printf("%-7s cap: relative error %.2e, allowed 4.00e-07; of slopes %.2e, allowed 6.00e-07\n", vector->name, worst,
           worst_slope);
    CHECK(worst <= 4e-7 && worst_slope <= 6e-7);
    float special[] = {0.0f, INFINITY, -INFINITY, NAN};
    vector->cap(special, 1.0f, 30.0f, 4);
    CHECK(special[0] == 0.0f && special[1] == 30.0f && special[2] == -30.0f && isnan(special[3]));
}

/* Buffers end where the loop must stop; the elements beyond keep their mark. */
static void test_tails(const struct ox_vector *vector) {
    for (size_t count = 0; count <= TAIL_MAX; count++) {
        float a[TAIL_MAX + 1], b[TAIL_MAX + 1], c[TAIL_MAX + 1];
        double sum = 0.0, dot = 0.0, squares = 0.0, powers = 0.0;
        float top = -INFINITY;
        for (size_t i = 0; i <= count; i++) {
            a[i] = i == count ? 1e30f : 0.25f * (float)(i * 7 % 13) - 1.0f;
            b[i] = i == count ? 1e30f : 1.0f - 0.125f * (float)(i * 5 % 11);
            c[i] = a[i];
        }
        for (size_t i = 0; i < count; i++) {
            sum += (double)a[i];
            dot += (double)a[i] * (double)b[i];
            squares += ((double)a[i] - 0.5) * ((double)a[i] - 0.5);
            powers += exp((double)a[i] - 1.0);
            top = fmaxf(top, a[i]);
        }
        CHECK(vector->max(a, count) == top);
        CHECK((double)vector->sum(a, count) == sum);
        CHECK((double)vector->dot(a, b, count) == dot);
        CHECK((double)vector->square_sum(a, 0.5f, count) == squares);
        CHECK(fabs(vector->exp_sum(a, 1.0f, count) - powers) <= 2e-7 * powers);
        CHECK(fabs((double)vector->exp_row(c, 1.0f, count) - powers) <= 3e-7 * powers);
        CHECK(c[count] == 1e30f);
        vector->add(c, a, b, count);
        vector->scale(c, 2.0f, count);
        size_t wrong = 0;
        for (size_t i = 0; i < count; i++) {
            wrong += c[i] != 2.0f * (a[i] + b[i]);
        }
        CHECK(wrong == 0 && c[count] == 1e30f);
        vector->add_scaled(c, a, -0.5f, count);
        for (size_t i = 0; i < count; i++) {
            wrong += c[i] != 1.5f * a[i] + 2.0f * b[i];
        }
        CHECK(wrong == 0 && c[count] == 1e30f);
    }
}

/* A long sum of exponentials does not lose digits. */
static void test_long_sum(const struct ox_vector *vector) {
    enum { LEN = 150000 };
    static float x[LEN];
    double want = 0.0;
    for (int i = 0; i < LEN; i++) {
        x[i] = -3.0f + (float)(i % 1000) * 0.003f;
        want += exp((double)x[i]);
    }
    const double error = fabs(vector->exp_sum(x, 0.0f, LEN) - want) / want;
    printf("%-7s sum of %d exponentials: relative error %.2e, allowed 1.00e-07\n", vector->name, LEN, error);
    CHECK(error <= 1e-7);
    x[77777] = NAN;
    CHECK(isnan(vector->exp_sum(x, 0.0f, LEN)));
}

/* ---- attention ----------------------------------------------------------------------------------------- */

enum { SIDE = 70, STRIDE = 83 }; /* more rows and columns than any tile has, and none that divide */

struct matrices {
    float a[SIDE * STRIDE], b[SIDE * STRIDE], c[SIDE * STRIDE];
};

static void fill(struct matrices *all) {
    for (size_t i = 0; i < SIDE * STRIDE; i++) {
        all->a[i] = 0.25f * (float)(i * 7 % 13) - 1.0f;
        all->b[i] = 1.0f - 0.125f * (float)(i * 5 % 17);
        all->c[i] = (float)(i % 97);
    }
}

/* All values are small multiples of 1/32, so sums are exact in any order; c keeps what lies beside it. */
static size_t wrong_products(const struct ox_vector *vector, struct matrices *all, struct ox_vector_product job) {
    fill(all);
    vector->product(&job);
    size_t wrong = 0;
    for (size_t row = 0; row < SIDE; row++) {
        for (size_t col = 0; col < STRIDE; col++) {
            const float before = (float)((row * STRIDE + col) % 97);
            const bool inside = row < job.rows && col < job.cols;
            float want = inside && !job.add && !job.carries ? 0.0f : before;
            for (size_t k = 0; inside && k < job.depth; k++) {
                want += all->a[row * job.a_row + k * job.a_step] * all->b[k * STRIDE + col];
            }
            wrong += all->c[row * STRIDE + col] != want;
        }
    }
    return wrong;
}

static void test_product(const struct ox_vector *vector) {
    static const uint32_t sizes[] = {1, 3, 4, 15, 16, 17, 33, 64, 67};
    enum { SIZES = sizeof sizes / sizeof sizes[0] };
    static struct matrices all;
    for (uint32_t i = 0; i < SIZES * SIZES * SIZES * 6; i++) {
        struct ox_vector_product job = {.c = all.c, .a = all.a, .b = all.b, .b_row = STRIDE, .c_row = STRIDE};
        job.rows = sizes[i / 6 % SIZES];
        job.cols = sizes[i / 6 / SIZES % SIZES];
        job.depth = sizes[i / 6 / SIZES / SIZES] - 1; /* 0: all keys of a block come after the queries */
        job.a_row = i % 2 == 0 ? STRIDE : 1;
        job.a_step = i % 2 == 0 ? 1 : STRIDE;
        job.add = i / 2 % 3 == 1;
        job.carries = i / 2 % 3 == 2;
        const size_t wrong = wrong_products(vector, &all, job);
        if (wrong != 0) {
            printf("%s: %u x %u x %u: %zu wrong\n", vector->name, job.rows, job.cols, job.depth, wrong);
        }
        CHECK(wrong == 0);
    }
}

/* A block of scores in which each query sees a range of keys, some see none, and keys that none of a step sees hold
 * NaNs that must stay. */
enum { KEYS = 40, QUERIES = 32 };

struct scores {
    float score[KEYS * QUERIES], dscore[KEYS * QUERIES];
    int32_t begin[QUERIES], end[QUERIES];
    uint32_t computed[QUERIES]; /* keys that have scores */
};

static void fill_scores(struct scores *all, bool whole) {
    for (uint32_t query = 0; query < QUERIES; query++) {
        const uint32_t step = query / OX_VECTOR_STEP;
        all->begin[query] = whole ? 0 : (int32_t)(query / 3);
        all->end[query] = whole ? KEYS : (int32_t)(step == 0 ? query : query + 9); /* query 0 sees none */
        all->computed[query] = whole || step > 0 ? KEYS : OX_VECTOR_STEP;
    }
    for (uint32_t i = 0; i < KEYS * QUERIES; i++) {
        const bool computed = i / QUERIES < all->computed[i % QUERIES];
        all->score[i] = computed ? 0.5f * (float)(i * 11 % 23) - 3.0f : NAN;
        all->dscore[i] = computed ? 0.25f * (float)(i * 3 % 19) - 2.0f : NAN;
    }
}

static bool sees(const struct scores *all, uint32_t query, uint32_t key) {
    return (int32_t)key >= all->begin[query] && (int32_t)key < all->end[query];
}

static struct ox_vector_scores block_of(struct scores *all, bool whole) {
    return (struct ox_vector_scores){.score = all->score, .keys = KEYS, .queries = QUERIES,
                                     .begin = whole ? NULL : all->begin, .end = whole ? NULL : all->end};
}

/* The exponential's error, and that of a sum. */
static bool near(float got, double want) {
    return fabs((double)got - want) <= 4e-7 * fabs(want);
}

static void test_softmax(const struct ox_vector *vector, bool whole) {
    static struct scores all, given;
    float max[QUERIES], sum[QUERIES], shrink[QUERIES];
    fill_scores(&all, whole);
    given = all;
    for (uint32_t query = 0; query < QUERIES; query++) { /* some have seen keys before */
        max[query] = query % 2 == 0 ? -INFINITY : 1.0f;
        sum[query] = query % 2 == 0 ? 0.0f : 2.5f;
    }
    vector->softmax(&(struct ox_vector_softmax){
        .block = block_of(&all, whole), .max = max, .sum = sum, .shrink = shrink});
    for (uint32_t query = 0; query < QUERIES; query++) {
        const double before = query % 2 == 0 ? (double)-INFINITY : 1.0;
        double top = before, total = 0.0;
        for (uint32_t key = 0; key < KEYS; key++) {
            top = sees(&given, query, key) ? fmax(top, (double)given.score[key * QUERIES + query]) : top;
        }
        for (uint32_t key = 0; key < KEYS; key++) {
            const double want =
                sees(&given, query, key) ? exp((double)given.score[key * QUERIES + query] - top) : 0.0;
            const float got = all.score[key * QUERIES + query];
            total += want;
            CHECK(key < given.computed[query] ? near(got, want) : isnan(got));
        }
        const double factor = top > -INFINITY ? exp(before - top) : 0.0;
        CHECK((double)max[query] == top && near(shrink[query], factor));
        CHECK(near(sum[query], total + factor * (query % 2 == 0 ? 0.0 : 2.5)));
    }
}

static void test_softmax_back(const struct ox_vector *vector, bool whole) {
    static struct scores all, given;
    float lse[QUERIES], delta[QUERIES];
    fill_scores(&all, whole);
    given = all;
    for (uint32_t query = 0; query < QUERIES; query++) {
        lse[query] = 5.0f + 0.125f * (float)query;
        delta[query] = 0.25f * (float)(query % 5) - 0.4f;
    }
    vector->softmax_back(&(struct ox_vector_softmax_back){
        .block = block_of(&all, whole), .dscore = all.dscore, .lse = lse, .delta = delta});
    for (uint32_t i = 0; i < KEYS * QUERIES; i++) {
        const uint32_t key = i / QUERIES, query = i % QUERIES;
        const double prob = sees(&given, query, key) ? exp((double)given.score[i] - (double)lse[query]) : 0.0;
        const double change = (double)(given.dscore[i] - delta[query]);
        const bool computed = key < given.computed[query];
        CHECK(computed ? near(all.score[i], prob) : isnan(all.score[i]));
        CHECK(computed ? near(all.dscore[i], prob == 0.0 ? 0.0 : prob * change) : isnan(all.dscore[i]));
    }
}

/* ---- gated activations --------------------------------------------------------------------------------- */

/* Odd lengths, so that a part of a vector is left; slopes are those of a difference of doubles. */
static double gated_in_double(const struct ox_vector_gate *row, double gate, double up) {
    const double limit = (double)row->limit, g = fmin(gate, limit), u = fmax(-limit, fmin(up, limit));
    return (u + (double)row->shift) * g / (1.0 + exp(-(double)row->alpha * g));
}

static void test_gated(const struct ox_vector *vector, float alpha, float limit, float shift) {
    enum { COUNT = 45 };
    float gate[COUNT], up[COUNT], dout[COUNT], out[COUNT], dgate[COUNT], dup[COUNT];
    struct ox_vector_gate row = {.out = out, .dgate = dgate, .dup = dup, .dout = dout, .gate = gate, .up = up,
                                 .alpha = alpha, .limit = limit, .shift = shift, .factor = 0.5f};
    double want = 0.0;
    for (int i = 0; i < COUNT; i++) {
        gate[i] = 0.37f * (float)(i * 7 % 23) - 4.03f;
        up[i] = 0.41f * (float)(i * 5 % 19) - 3.97f;
        dout[i] = 0.25f * (float)(i % 9) - 0.9f;
    }
    vector->gated(&row, COUNT);
    const float sum = vector->gated_back(&row, COUNT);
    for (int i = 0; i < COUNT; i++) {
        const double g = (double)gate[i], u = (double)up[i], step = 1e-5, d = 0.5 * (double)dout[i];
        const double by_gate = gated_in_double(&row, g + step, u) - gated_in_double(&row, g - step, u);
        const double by_up = gated_in_double(&row, g, u + step) - gated_in_double(&row, g, u - step);
        want += (double)dout[i] * gated_in_double(&row, g, u);
        CHECK(fabs((double)out[i] - 0.5 * gated_in_double(&row, g, u)) < 3e-6);
        CHECK(fabs((double)dgate[i] - d * by_gate / (2 * step)) < 3e-6);
        CHECK(fabs((double)dup[i] - d * by_up / (2 * step)) < 3e-6);
    }
    CHECK(fabs((double)sum - want) < 1e-5 * fabs(want));
}

int main(void) {
    const struct ox_vector *list[OX_VECTOR_MAX];
    const uint32_t count = ox_vector_list(list);
    CHECK(count >= 1 && ox_vector_pick() == list[count - 1]);
    for (uint32_t i = 0; i < count; i++) {
        test_f16_round(list[i]);
    test_exp(list[i]);
        test_cap(list[i]);
        test_tails(list[i]);
        test_long_sum(list[i]);
        test_product(list[i]);
        test_gated(list[i], 1.0f, INFINITY, 0.0f);
        test_gated(list[i], 1.702f, 2.0f, 1.0f);
        for (int whole = 0; whole < 2; whole++) {
            test_softmax(list[i], whole != 0);
            test_softmax_back(list[i], whole != 0);
        }
    }
    return test_end();
}
