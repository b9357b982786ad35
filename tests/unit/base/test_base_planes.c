/* The plane split is a bijection, and `hi` is the master rounded to nearest with ties away from zero. */
#include "base/optim_format.h"
#include "base/planes.h"
#include "base/prng/prng.h"
#include "tests/kit/test.h"

#include <math.h>

static uint64_t split_failures, round_failures;

static void check_split(uint32_t bits) {
    const float master = ox_f32_from_bits(bits);
    const uint16_t hi = ox_plane_hi(master), lo = ox_plane_lo(master);
    split_failures += ox_f32_bits(ox_plane_join(hi, lo)) != bits;
    if ((bits & 0x7f800000u) == 0x7f800000u) {
        return;
    }
    /* Both neighbours in bfloat16; the upper one of the largest finite is taken as 2^128, exact in double. */
    const double value = fabs((double)master);
    const uint32_t down = bits & 0x7fff0000u, up = down + 0x10000u;
    const double below = ox_f32_from_bits(down);
    const double above = up == 0x7f800000u ? 0x1p128 : (double)ox_f32_from_bits(up);
    const uint32_t nearest = value - below < above - value ? down : up;
    round_failures += (uint32_t)hi << 16 != (nearest | (bits & 0x80000000u));
}

static void test_split(void) {
    for (uint32_t top = 0; top < 512; top++) { /* sign and exponent, with every edge and random mantissas */
        static const uint32_t edges[] = {0x0000, 0x0001, 0x7fff, 0x8000, 0x8001, 0xffff};
        for (uint32_t i = 0; i < 128; i++) { /* every tie of every exponent */
            for (unsigned edge = 0; edge < 6; edge++) {
                check_split(top << 23 | i << 16 | edges[edge]);
            }
        }
        for (uint64_t block = 0; block < 64; block++) {
            uint32_t words[4];
            ox_philox(1, top, block, words);
            for (unsigned i = 0; i < 4; i++) {
                check_split(top << 23 | words[i] >> 9);
            }
        }
    }
    for (uint32_t lo = 0; lo < 0x10000u; lo++) {
        check_split(0x3f800000u | lo);
        check_split(0xffff0000u | lo); /* the carry leaves the top here */
        check_split(lo);
        check_split(0xbf7f0000u | lo);
    }
    CHECK(split_failures == 0);
    CHECK(round_failures == 0);
}

/* Also the other way: any two halves are some master, and splitting gives them back. */
static void test_join(void) {
    uint64_t failures = 0;
    for (uint64_t block = 0; block < 100000; block++) {
        uint32_t words[4];
        ox_philox(2, 0, block, words);
        const uint16_t hi = (uint16_t)words[0], lo = (uint16_t)words[1];
        const float master = ox_plane_join(hi, lo);
        failures += ox_plane_hi(master) != hi || ox_plane_lo(master) != lo;
    }
    CHECK(failures == 0);
}

static void test_bf16(void) {
    CHECK(ox_bf16_from_f32(1.0f) == 0x3f80 && ox_bf16_to_f32(0x3f80) == 1.0f);
    CHECK(ox_bf16_from_f32(ox_f32_from_bits(0x3f808000u)) == 0x3f80); /* ties go to even */
    CHECK(ox_bf16_from_f32(ox_f32_from_bits(0x3f818000u)) == 0x3f82);
    CHECK(ox_plane_hi(ox_f32_from_bits(0x3f808000u)) == 0x3f81); /* ties go away from zero */
    CHECK(ox_bf16_from_f32(-INFINITY) == 0xff80);
    CHECK(isnan(ox_bf16_to_f32(ox_bf16_from_f32(ox_f32_from_bits(0x7f800001u)))));
    CHECK(isnan(ox_bf16_to_f32(ox_bf16_from_f32(ox_f32_from_bits(0xffffffffu)))));
    uint64_t failures = 0;
    for (uint32_t bf16 = 0; bf16 < 0x10000u; bf16++) {
        const float value = ox_bf16_to_f32((uint16_t)bf16);
        failures += !isnan(value) && (ox_bf16_from_f32(value) != bf16 || ox_plane_hi(value) != bf16);
    }
    CHECK(failures == 0);
}

/* Every half, every tie between two, and the floats next to those: by definition, with distances exact in double. */
static void test_f16(void) {
    uint64_t failures = 0;
    for (uint32_t half = 0; half < 0x7c00u; half++) {
        const uint32_t next = half + 1;
        const float low = ox_f16_to_f32((uint16_t)half);
        const double high = next == 0x7c00u ? 65536 : (double)ox_f16_to_f32((uint16_t)next);
        const float tie = (float)(((double)low + high) / 2); /* exact: halves have 11 bits */
        const uint16_t even = (uint16_t)(half % 2 == 0 ? half : next);
        const int exponent = half >> 10 == 0 ? 1 : (int)(half >> 10);
        const double want = ldexp((double)((half & 0x3ffu) | (half >> 10 == 0 ? 0u : 0x400u)), exponent - 25);
        failures += (double)low != want || ox_f16_from_f32(low) != half || ox_f16_from_f32(-low) != (half | 0x8000u);
        failures += ox_f16_from_f32(tie) != even || ox_f16_from_f32(nextafterf(tie, 0)) != half;
        failures += ox_f16_from_f32(nextafterf(tie, INFINITY)) != next || ox_f16_from_f32(-tie) != (even | 0x8000u);
    }
    CHECK(failures == 0);
    CHECK(ox_f16_from_f32(65519.996f) == 0x7bff && ox_f16_from_f32(65520.0f) == 0x7c00); /* to infinity */
    CHECK(ox_f16_from_f32(INFINITY) == 0x7c00 && ox_f16_from_f32(-3e38f) == 0xfc00);
    CHECK(ox_f16_from_f32(0x1p-149f) == 0 && ox_f16_from_f32(-0.0f) == 0x8000);
    CHECK(isinf(ox_f16_to_f32(0xfc00)) && isnan(ox_f16_to_f32(0x7c01)));
    CHECK(isnan(ox_f16_to_f32(ox_f16_from_f32(ox_f32_from_bits(0x7f800001u)))));
    CHECK(isnan(ox_f16_to_f32(ox_f16_from_f32(ox_f32_from_bits(0xffffffffu)))));
}

/* What a block of eight-bit weights must be, worked out in double: the scale is its largest magnitude over 127 as bf16,
 * and each number the nearest of those that a byte times the scale can be. */
static uint64_t wrong_block(const float *numbers, const float *packed) {
    double most = 0;
    uint64_t wrong = 0;
    for (int i = 0; i < 32; i++) {
        most = fmax(most, fabs((double)numbers[i]));
    }
    const float quotient = (float)(most / 127);
    const double scale = quotient < 0x1p-126f ? 0 : (double)ox_bf16_to_f32(ox_bf16_from_f32(quotient));
    for (int i = 0; i < 32; i++) {
        const double units = scale > 0 ? (double)packed[i] / scale : 0;
        const double off = fabs((double)numbers[i] - (double)packed[i]);
        wrong += scale > 0 ? off > scale / 2 * (1 + 0x1p-15) || units != rint(units) || fabs(units) > 127
                           : packed[i] != 0.0f || off > 1.6e-36;
    }
    return wrong;
}

static void unpack_group(const unsigned char *group, float *out) {
    for (uint32_t block = 0; block < OX_GROUP_ELEMS / 32; block++) {
        ox_base8_unpack(group, block, out + (size_t)block * 32);
    }
}

/* Groups whose blocks are of every magnitude. A number is off by half a scale at most, and what was packed is packed
 * again to the same bytes. */
static void test_base8(void) {
    static float numbers[OX_GROUP_ELEMS], packed[OX_GROUP_ELEMS];
    unsigned char group[OX_BASE8_GROUP_BYTES], again[OX_BASE8_GROUP_BYTES];
    uint64_t wrong = 0, differ = 0, bad_count = 0;
    for (uint32_t nth = 0; nth < 200; nth++) {
        for (uint32_t i = 0; i < OX_GROUP_ELEMS; i++) {
            uint32_t words[4];
            ox_philox(7, nth, i, words);
            const int exponent = (int)((nth * 64 + i / 32) * 37 % 252) - 126; /* of the block */
            const float fraction = (float)((double)words[0] / 0x1p32 * (words[1] & 1 ? 1.0 : -1.0));
            numbers[i] = words[2] % 16 == 0 ? 0.0f : ldexpf(fraction, exponent);
        }
        bad_count += ox_base8_pack(numbers, group);
        unpack_group(group, packed);
        for (uint32_t block = 0; block < OX_GROUP_ELEMS / 32; block++) {
            wrong += wrong_block(numbers + (size_t)block * 32, packed + (size_t)block * 32);
        }
        bad_count += ox_base8_pack(packed, again);
        differ += memcmp(group, again, sizeof group) != 0;
    }
    CHECK(wrong == 0 && differ == 0 && bad_count == 0);
    static const float bad[] = {INFINITY, -INFINITY, NAN, 3.4e38f};
    for (int i = 0; i < 4; i++) {
        memset(numbers, 0, sizeof numbers);
        numbers[777] = bad[i];
        CHECK(ox_base8_pack(numbers, group) == 1);
    }
    memset(numbers, 0, sizeof numbers);
    numbers[33] = -254.0f; /* of the second block, whose scale is 2 */
    numbers[34] = 3.0f;    /* a tie, to the even 2 */
    numbers[35] = 5.0f;
    CHECK(ox_base8_pack(numbers, group) == 0 && group[2] == 0 && group[3] == 0x40 && group[0] == 0);
    CHECK(group[128 + 33] == 0x81 && group[128 + 34] == 2 && group[128 + 35] == 2 && group[128 + 36] == 0);
}

int main(void) {
    test_base8();
    test_split();
    test_join();
    test_bf16();
    test_f16();
    return test_end();
}
