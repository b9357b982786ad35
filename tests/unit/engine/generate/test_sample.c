/* Sampling: greedy choice, the sets of top-k and top-p, frequencies, and that a draw depends on seed and position. */
#include "base/prng/prng.h"
#include "engine/generate/sample.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

enum { VOCAB = 8, DRAWS = 20000, MANY = 3000 };

/* The probabilities are 0.4, 0.2, 0.2, 0.1, 0.05, 0.05 and twice 0, not in this order. */
static const double shares[VOCAB] = {0.05, 0.2, 0, 0.4, 0.1, 0.2, 0.05, 0};
static float logits[VOCAB];

static struct ox_sampler *sampler_of(double temperature, uint64_t top_k, double top_p, uint64_t seed) {
    const struct ox_sampling sampling = {
        .temperature = temperature, .top_k = top_k, .top_p = top_p, .seed = seed, .repetition_penalty = 1};
    struct ox_sampler *sampler = NULL;
    REQUIRE_OK(ox_sampler_open(&sampling, VOCAB, &sampler));
    return sampler;
}

static int32_t draw(struct ox_sampler *sampler, const float *from, uint64_t position) {
    int32_t id = -1;
    REQUIRE_OK(ox_sampler_next(sampler, from, position, &id));
    return id;
}

/* Draws often and compares with the shares of the kept tokens, which `kept` marks. */
static void check_shares(struct ox_sampling how, const char *kept) {
    struct ox_sampler *sampler = sampler_of(how.temperature, how.top_k, how.top_p, 5);
    unsigned counts[VOCAB] = {0};
    double weights[VOCAB], sum = 0;
    for (int i = 0; i < VOCAB; i++) {
        weights[i] = kept[i] == '1' ? pow(shares[i], 1 / how.temperature) : 0;
        sum += weights[i];
    }
    for (uint64_t i = 0; i < DRAWS; i++) {
        const int32_t id = draw(sampler, logits, i);
        CHECK(id >= 0 && id < VOCAB);
        counts[id]++;
    }
    for (int i = 0; i < VOCAB; i++) {
        CHECK(weights[i] > 0 || counts[i] == 0);
        CHECK(fabs((double)counts[i] / DRAWS - weights[i] / sum) < 0.015);
    }
    ox_sampler_close(&sampler);
    CHECK(sampler == NULL);
}

static void test_shares(void) {
    check_shares((struct ox_sampling){.temperature = 1, .top_p = 1}, "11111111");
    check_shares((struct ox_sampling){.temperature = 2, .top_p = 1}, "11111111");
    check_shares((struct ox_sampling){.temperature = 0.5, .top_p = 1}, "11111111");
    check_shares((struct ox_sampling){.temperature = 1, .top_k = 1, .top_p = 1}, "00010000");
    check_shares((struct ox_sampling){.temperature = 1, .top_k = 2, .top_p = 1}, "01010000"); /* the lower of equals */
    check_shares((struct ox_sampling){.temperature = 1, .top_k = 4, .top_p = 1}, "01011100");
    check_shares((struct ox_sampling){.temperature = 1, .top_k = 100, .top_p = 1}, "11111111");
    check_shares((struct ox_sampling){.temperature = 1, .top_p = 0}, "00010000");
    check_shares((struct ox_sampling){.temperature = 1, .top_p = 0.39}, "00010000");
    check_shares((struct ox_sampling){.temperature = 1, .top_p = 0.41}, "01010000");
    check_shares((struct ox_sampling){.temperature = 1, .top_p = 0.79}, "01010100");
    check_shares((struct ox_sampling){.temperature = 1, .top_p = 0.94}, "11011100");
    /* top_p applies after top_k: the best two of three (0.5, 0.25, 0.25) reach 0.7, of all they would not. */
    check_shares((struct ox_sampling){.temperature = 1, .top_k = 3, .top_p = 0.7}, "01010000");
    check_shares((struct ox_sampling){.temperature = 1, .top_k = 3, .top_p = 0.8}, "01010100");
}

static void test_greedy(void) {
    struct ox_sampler *sampler = sampler_of(0, 0, 1, 1);
    const float equal[VOCAB] = {-1, 2, 2, 0, 2, -INFINITY, 1, 1};
    const float late[VOCAB] = {-9, -8, -7, -6, -5, -4, -3, -2};
    CHECK(draw(sampler, equal, 0) == 1);
    CHECK(draw(sampler, late, 7) == 7);
    CHECK(draw(sampler, logits, 7) == 3);
    ox_sampler_close(&sampler);
}

static void test_seeds(void) {
    struct ox_sampler *one = sampler_of(1, 0, 1, 1), *again = sampler_of(1, 0, 1, 1), *other = sampler_of(1, 0, 1, 2);
    unsigned same = 0, moved = 0, elsewhere = 0;
    for (uint64_t i = 0; i < MANY; i++) {
        const int32_t id = draw(one, logits, i);
        same += draw(again, logits, MANY - 1 - i) == draw(one, logits, MANY - 1 - i); /* in any order */
        moved += draw(one, logits, i + 1) != id;
        elsewhere += draw(other, logits, i) != id;
    }
    CHECK(same == MANY);
    CHECK(moved > MANY / 2 && elsewhere > MANY / 2);
    ox_sampler_close(&one);
    ox_sampler_close(&again);
    ox_sampler_close(&other);
}

static void test_broken(void) {
    struct ox_sampler *sampler = sampler_of(1, 2, 0.5, 1);
    float broken[VOCAB] = {0};
    int32_t id = -1;
    broken[6] = NAN;
    CHECK(ox_sampler_next(sampler, broken, 4, &id) == OX_E_CORRUPT);
    CHECK(strstr(ox_error_text(), "position 4") != NULL && strstr(ox_error_text(), "token 6") != NULL);
    broken[6] = INFINITY;
    CHECK(ox_sampler_next(sampler, broken, 4, &id) == OX_E_CORRUPT);
    for (int i = 0; i < VOCAB; i++) {
        broken[i] = -INFINITY;
    }
    CHECK(ox_sampler_next(sampler, broken, 4, &id) == OX_E_CORRUPT);
    broken[5] = -1e30f;
    CHECK(draw(sampler, broken, 4) == 5);
    ox_sampler_close(&sampler);
    ox_sampler_close(&sampler);
}

/* The heap's order against counting, on vocabularies of every small size. */
static void test_top(void) {
    for (uint32_t vocab = 1; vocab <= 40; vocab++) {
        struct ox_sampler *sampler = NULL;
        float values[40];
        struct ox_logit top[40];
        uint32_t wrong = 0;
        REQUIRE_OK(ox_sampler_open(&(struct ox_sampling){.top_p = 1, .repetition_penalty = 1}, vocab, &sampler));
        for (uint32_t i = 0; i < vocab; i++) {
            values[i] = (float)(int)(ox_uniform(3, vocab, i) * 10); /* some equal */
        }
        ox_sampler_top(sampler, values, vocab, top);
        for (uint32_t i = 0; i < vocab; i++) {
            uint32_t before = 0;
            for (uint32_t j = 0; j < vocab; j++) {
                before += values[j] > values[i] || (values[j] == values[i] && j < i);
            }
            wrong += top[before].id != (int32_t)i || top[before].value != values[i];
        }
        CHECK(wrong == 0);
        ox_sampler_close(&sampler);
    }
}

int main(void) {
    for (int i = 0; i < VOCAB; i++) {
        logits[i] = shares[i] > 0 ? (float)log(shares[i]) + 30 : -INFINITY;
    }
    test_greedy();
    test_shares();
    test_seeds();
    test_broken();
    test_top();
    return test_end();
}
