/* Random numbers: the published vectors of Philox-4x32-10, rough statistics, permutations. */
#include "base/prng.h"
#include "tests/test.h"

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
    test_permute();
    return test_end();
}
