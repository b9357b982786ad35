/* Reductions over gradients: the order of the additions written out again, and every variant against it. */
#include "base/bytes.h"
#include "base/planes.h"
#include "base/prng/prng.h"
#include "cpu_optim/variants.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

enum { COUNT_MAX = 9 * OX_GROUP_ELEMS + 77, BLOCK_MAX = 10 };

static float wide[COUNT_MAX + 1];
static uint16_t narrow[COUNT_MAX + 1];

static void fill(void) {
    for (unsigned i = 0; i <= COUNT_MAX; i++) {
        const double spread = ox_uniform(7, 2, i) * 60.0 - 30.0;
        wide[i] = (float)(ox_normal(7, 1, i) * exp2(spread));
        narrow[i] = ox_bf16_from_f32(wide[i]);
    }
}

static float value_at(enum ox_grad_dtype dtype, uint64_t idx) {
    return dtype == OX_GRAD_BF16 ? ox_bf16_to_f32(narrow[idx]) : wide[idx];
}

/* The header's sentence, literally. */
static double expected_block(enum ox_grad_dtype dtype, uint64_t begin, uint64_t end) {
    double s[16] = {0};
    for (uint64_t i = begin; i < end; i++) {
        const double g = value_at(dtype, i);
        s[(i - begin) % 16] = fma(g, g, s[(i - begin) % 16]);
    }
    const double a = ((s[0] + s[8]) + (s[4] + s[12])) + ((s[2] + s[10]) + (s[6] + s[14]));
    const double b = ((s[1] + s[9]) + (s[5] + s[13])) + ((s[3] + s[11]) + (s[7] + s[15]));
    return a + b;
}

static bool same_f64(double a, double b) {
    return memcmp(&a, &b, sizeof a) == 0;
}

static const void *data_of(enum ox_grad_dtype dtype, uint64_t begin) {
    return ox_grad_at(dtype == OX_GRAD_BF16 ? (const void *)narrow : (const void *)wide, dtype, begin);
}

static void test_blocks(enum ox_isa isa) {
    for (unsigned dtype = OX_GRAD_F32; dtype <= OX_GRAD_BF16; dtype++) {
        for (uint64_t count = 0; count <= OX_GROUP_ELEMS; count += count < 70 ? 1 : 989) {
            for (uint64_t begin = 0; begin < 5; begin++) {
                const double got = ox_sumsq_pick(isa)(data_of(dtype, begin), dtype, count);
                CHECK(same_f64(got, expected_block(dtype, begin, begin + count)));
            }
        }
    }
}

static void test_partials(struct ox_pool *pool, enum ox_grad_dtype dtype, uint64_t count) {
    double partials[BLOCK_MAX + 1];
    const uint64_t block_count = ox_div_up(count, OX_GROUP_ELEMS);
    partials[block_count] = -1.0;
    ox_sumsq_partials(pool, data_of(dtype, 1), dtype, count, partials);
    CHECK(partials[block_count] == -1.0);
    double total = 0.0, plain = 0.0;
    for (uint64_t block = 0; block < block_count; block++) {
        const uint64_t begin = 1 + block * OX_GROUP_ELEMS;
        const uint64_t end = 1 + ox_min_u64(count, (block + 1) * OX_GROUP_ELEMS);
        CHECK(same_f64(partials[block], expected_block(dtype, begin, end)));
        total += partials[block];
    }
    for (uint64_t i = 1; i <= count; i++) {
        plain += (double)value_at(dtype, i) * value_at(dtype, i);
    }
    CHECK(fabs(total - plain) <= 1e-12 * plain);
}

static void test_not_finite(struct ox_pool *pool) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    const uint64_t places[] = {0, 15, OX_GROUP_ELEMS + 3, COUNT_MAX - 1};
    double partials[BLOCK_MAX];
    for (unsigned i = 0; i < 3; i++) {
        for (unsigned j = 0; j < 4; j++) {
            const float kept = wide[places[j]];
            wide[places[j]] = bad[i];
            ox_sumsq_partials(pool, wide, OX_GRAD_F32, COUNT_MAX, partials);
            wide[places[j]] = kept;
            for (unsigned block = 0; block < BLOCK_MAX; block++) {
                CHECK(isfinite(partials[block]) == (block != places[j] / OX_GROUP_ELEMS));
            }
        }
    }
    /* The largest fp32 squares do not overflow in double. */
    const float kept = wide[5];
    wide[5] = 3.4028234e38f;
    ox_sumsq_partials(pool, wide, OX_GRAD_F32, 16, partials);
    wide[5] = kept;
    CHECK(isfinite(partials[0]) && partials[0] > 1e76);
}

static void test_add(struct ox_pool *pool, uint64_t count) {
    static float target[COUNT_MAX + 1];
    memcpy(target, wide, sizeof target);
    ox_grad_add(pool, target, wide + 1, count);
    for (uint64_t i = 0; i < count; i++) {
        const float sum = wide[i] + wide[i + 1];
        CHECK(memcmp(&target[i], &sum, sizeof sum) == 0);
    }
    CHECK(memcmp(target + count, wide + count, (COUNT_MAX + 1 - count) * sizeof *target) == 0);
}

static void test_to_bf16(struct ox_pool *pool, uint64_t count) {
    static uint16_t out[COUNT_MAX + 1];
    static float in_place[COUNT_MAX + 1];
    static const uint32_t specials[] = {0x3f808000, 0x3f818000, 0x3f808001, 0xbf817fff, 0x7f7fffff,
                                        0x7f800000, 0x7fc12345, 0xff800001, 0x00008000, 0x80018000};
    static const uint16_t rounded[] = {0x3f80, 0x3f82, 0x3f81, 0xbf81, 0x7f80,
                                       0x7f80, 0x7fc1, 0xffc0, 0x0000, 0x8002};
    memcpy(in_place, wide, sizeof in_place);
    memcpy(in_place, specials, sizeof specials);
    out[count] = 0x1234;
    ox_grad_to_bf16(pool, out, in_place, count);
    CHECK(out[count] == 0x1234);
    for (uint64_t i = 0; i < count; i++) {
        CHECK(out[i] == (i < 10 ? rounded[i] : narrow[i]));
    }
    ox_grad_to_bf16(pool, (uint16_t *)(void *)in_place, in_place, count);
    CHECK(memcmp(in_place, out, count * sizeof *out) == 0);
}

int main(void) {
    static const uint64_t counts[] = {
        0, 1, 17, 700, OX_GROUP_ELEMS, OX_GROUP_ELEMS + 1, 8 * OX_GROUP_ELEMS, COUNT_MAX};
    fill();
    for (unsigned isa = OX_ISA_SCALAR; isa < OX_ISA_COUNT; isa++) {
        if (ox_isa_available(isa)) {
            test_blocks(isa);
        }
    }
    for (uint32_t threads = 1; threads <= 4; threads++) {
        struct ox_pool *pool = NULL;
        REQUIRE_OK(ox_pool_open(threads, &pool));
        for (unsigned i = 0; i < sizeof counts / sizeof *counts; i++) {
            test_partials(pool, OX_GRAD_F32, counts[i]);
            test_partials(pool, OX_GRAD_BF16, counts[i]);
            test_add(pool, counts[i]);
            test_to_bf16(pool, counts[i]);
        }
        test_not_finite(pool);
        ox_pool_close(&pool);
    }
    return test_end();
}
