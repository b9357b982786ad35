/* Random numbers: the published vectors of Philox-4x32-10, rough statistics, permutations. */
#include "base/isa.h"
#include "base/prng/prng.h"
#include "base/prng/prng_isa.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

static void test_philox(void) {
    static const struct {
        uint64_t seed, stream, block;
        uint32_t words[4];
    } known[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822,
         0x0370734413198a2e,
         0x85a308d3243f6a88,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (unsigned i = 0; i < sizeof known / sizeof *known; i++) {
        uint32_t words[4];
        ox_philox(known[i].seed, known[i].stream, known[i].block, words);
        CHECK(memcmp(words, known[i].words, sizeof words) == 0);
    }
}

static void test_uniform(void) {
    enum { N = 100000 };
    double sum = 0.0, square_sum = 0.0;
    unsigned outside = 0, tenths[10] = {0};
    for (uint64_t i = 0; i < N; i++) {
        const double value = ox_uniform(3, 1, i);
        outside += !(value >= 0.0 && value < 1.0);
        sum += value;
        square_sum += value * value;
        tenths[(unsigned)(value * 10.0) % 10]++;
    }
    CHECK(outside == 0);
    CHECK(fabs(sum / N - 0.5) < 0.005);
    CHECK(fabs(square_sum / N - 1.0 / 3.0) < 0.005);
    for (unsigned i = 0; i < 10; i++) {
        CHECK(tenths[i] > N / 10 - 500 && tenths[i] < N / 10 + 500);
    }
    CHECK(ox_uniform(3, 1, 5) == ox_uniform(3, 1, 5));
    CHECK(ox_uniform(3, 1, 5) != ox_uniform(4, 1, 5) && ox_uniform(3, 1, 5) != ox_uniform(3, 2, 5));
}

static void test_normal(void) {
    enum { N = 100000 };
    double sum = 0.0, square_sum = 0.0, cube_sum = 0.0;
    unsigned beyond = 0;
    for (uint64_t i = 0; i < N; i++) {
        const double value = ox_normal(9, 0, i);
        CHECK(isfinite(value));
        sum += value;
        square_sum += value * value;
        cube_sum += value * value * value;
        beyond += fabs(value) > 2.0;
    }
    CHECK(fabs(sum / N) < 0.015);
    CHECK(fabs(square_sum / N - 1.0) < 0.02);
    CHECK(fabs(cube_sum / N) < 0.06);
    CHECK(beyond > N * 0.0425 && beyond < N * 0.0485); /* 4.55 % */
}

static unsigned wrong_count(uint64_t seed, uint64_t stream, uint64_t first, uint64_t count, double deviation) {
    static float out[70001];
    unsigned wrong = 0;
    out[count] = -7.0f;
    ox_normals(seed, stream, first, count, deviation, out);
    for (uint64_t i = 0; i < count; i++) {
        const float one = (float)(deviation * ox_normal(seed, stream, first + i));
        wrong += memcmp(&one, &out[i], sizeof one) != 0;
    }
    return wrong + (out[count] != -7.0f);
}

/* Many at a time are the same bits as one by one, at any place and length. */
static void test_normals(void) {
    for (uint64_t count = 0; count < 3 * OX_NORMALS_BLOCK; count++) {
        CHECK(wrong_count(5, 6, count * 31, count, 0.02) == 0);
    }
    static const double deviations[] = {1.0, 0.02, 0.0031, 1e-41, 1e-320, 0.0};
    for (unsigned i = 0; i < sizeof deviations / sizeof *deviations; i++) {
        CHECK(wrong_count(i, 77 * i, UINT64_C(0xffffff00), 70000, deviations[i]) == 0);
    }
    CHECK(wrong_count(UINT64_MAX, UINT64_MAX, UINT64_MAX - 100, 300, 1.0) == 0);
}

/* So they are whatever the instruction set: what is sure is right, and little is not. */
static void check_block(ox_normals_fn *normals) {
    enum { BLOCKS = 2000 };
    unsigned wrong = 0, uncertain = 0;
    for (uint64_t at = 0; at < BLOCKS * OX_NORMALS_BLOCK; at += OX_NORMALS_BLOCK) {
        struct ox_normals_block block;
        bool any = false;
        const bool look = normals(12, 34, at, 0.02, &block);
        for (unsigned i = 0; i < OX_NORMALS_BLOCK; i++) {
            const float one = (float)(0.02 * ox_normal(12, 34, at + i));
            any = any || block.uncertain[i] != 0;
            uncertain += block.uncertain[i] != 0;
            wrong += block.uncertain[i] == 0 && memcmp(&one, &block.out[i], sizeof one) != 0;
        }
        wrong += look != any;
    }
    CHECK(wrong == 0 && uncertain <= 8);
}

static void test_normals_isa(void) {
    check_block(ox_normals_plain);
#ifdef __x86_64__
    if (ox_cpu_has_avx2()) {
        check_block(ox_normals_avx2);
    }
    if (ox_cpu_has_avx512()) {
        check_block(ox_normals_avx512);
    }
#endif
}

static void test_permute_whole(uint64_t count) {
    static unsigned char seen[70000];
    uint64_t fixed_count = 0, follows_count = 0, before = 0, bad_count = 0;
    memset(seen, 0, sizeof seen);
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t image = ox_permute(11, 4, count, i);
        if (image >= count || seen[image]) {
            bad_count++;
            continue;
        }
        seen[image] = 1;
        fixed_count += image == i;
        follows_count += i > 0 && image == before + 1;
        before = image;
    }
    CHECK(bad_count == 0);
    if (count >= 1000) { /* each is 1 on average */
        CHECK(fixed_count < 12 && follows_count < 12);
    }
}

static void test_permute(void) {
    for (uint64_t count = 1; count <= 130; count++) {
        test_permute_whole(count);
    }
    test_permute_whole(1000);
    test_permute_whole(4096);
    test_permute_whole(65537);
    unsigned same = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        same += ox_permute(11, 4, 1000, i) == ox_permute(12, 4, 1000, i);
        same += ox_permute(11, 4, 1000, i) == ox_permute(11, 5, 1000, i);
    }
    CHECK(same < 20);
    static const uint64_t large[] = {UINT64_C(1) << 40, (UINT64_C(1) << 41) + 1, UINT64_C(3) << 60};
    for (unsigned i = 0; i < 3; i++) {
        CHECK(ox_permute(1, 1, large[i], 0) < large[i]);
        CHECK(ox_permute(1, 1, large[i], large[i] - 1) < large[i]);
        CHECK(ox_permute(1, 1, large[i], 0) != ox_permute(1, 1, large[i], 1));
    }
}

int main(void) {
    test_philox();
    test_uniform();
    test_normal();
    test_normals();
    test_normals_isa();
    test_permute();
    return test_end();
}
