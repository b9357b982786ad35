/* The vector loops of every instruction set this processor has, against double: the exponential over
 * its whole range, tails of every length, and the values that are not numbers. */
#include "kernels/cpu/vector.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

enum { TAIL_MAX = 70 };

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

int main(void) {
    const struct ox_vector *list[OX_VECTOR_MAX];
    const uint32_t count = ox_vector_list(list);
    CHECK(count >= 1 && ox_vector_pick() == list[count - 1]);
    for (uint32_t i = 0; i < count; i++) {
        test_exp(list[i]);
        test_tails(list[i]);
        test_long_sum(list[i]);
    }
    return test_end();
}
