/* Operations on flat vectors; all of them are exact. */
#include "base/planes.h"
#include "base/prng/prng.h"
#include "tests/kit/device/ops_kit.h"

#include <string.h>

static const size_t counts[] = {1, 15, 16, 17, 1000, 65536, 65537, 200003};
enum { COUNT_COUNT = sizeof counts / sizeof counts[0] };

/* Bit patterns over the whole range, NaN and infinities included. */
static float *patterns(size_t count, uint64_t stream) {
    float *const out = floats(count);
    for (size_t i = 0; i < count; i++) {
        uint32_t words[4];
        ox_philox(1, stream, i, words);
        out[i] = ox_f32_from_bits(words[0]);
    }
    return out;
}

static void test_zero(struct lab *lab, size_t bytes) {
    unsigned char *const target = guarded(bytes);
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, zero, &(struct ox_op_zero){.target = target, .bytes = bytes}));
    lab_finish(lab);
    size_t left = 0;
    for (size_t i = 0; i < bytes; i++) {
        left += target[i] != 0;
    }
    CHECK(left == 0);
    guards_end(0);
}

static void test_add(struct lab *lab, size_t count) {
    const float *const a = random_floats(count, 1, 1.0), *const b = random_floats(count, 2, 1.0);
    float *const apart = floats(count), *const on_a = random_floats(count, 1, 1.0);
    float *const on_b = random_floats(count, 2, 1.0);
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, add, &(struct ox_op_add){apart, a, b, count}));
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, add, &(struct ox_op_add){on_a, on_a, b, count}));
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, add, &(struct ox_op_add){on_b, a, on_b, count}));
    lab_finish(lab);
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++) {
        wrong += apart[i] != a[i] + b[i];
    }
    CHECK(wrong == 0);
    CHECK(memcmp(apart, on_a, count * sizeof(float)) == 0 && memcmp(apart, on_b, count * sizeof(float)) == 0);
    guards_end(0);
}

static void test_planes(struct lab *lab, size_t count) {
    const float *const master = patterns(count, 3);
    uint16_t *const hi = guarded(count * 2), *const lo = guarded(count * 2);
    uint16_t *const packed = guarded(count * 2);
    float *const joined = floats(count), *const widened_hi = floats(count);
    for (size_t i = 0; i < count; i++) {
        hi[i] = ox_plane_hi(master[i]);
        lo[i] = ox_plane_lo(master[i]);
    }
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, planes_join, &(struct ox_op_planes_join){joined, hi, lo, count}));
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, planes_join, &(struct ox_op_planes_join){widened_hi, hi, NULL, count}));
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, bf16_pack, &(struct ox_op_bf16_pack){packed, master, count}));
    lab_finish(lab);
    CHECK(memcmp(joined, master, count * sizeof(float)) == 0);
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++) {
        wrong += ox_f32_bits(widened_hi[i]) != (uint32_t)hi[i] << 16;
        wrong += packed[i] != ox_bf16_from_f32(master[i]);
    }
    CHECK(wrong == 0);
    guards_end(0);
}

int main(void) {
    struct lab labs[LAB_MAX];
    labs_open(labs);
    for (int lab = 0; lab < lab_count; lab++) {
        for (int i = 0; i < COUNT_COUNT; i++) {
            test_zero(&labs[lab], counts[i]);
            test_add(&labs[lab], counts[i]);
            test_planes(&labs[lab], counts[i]);
        }
    }
    return labs_end(labs);
}
