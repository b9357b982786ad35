/* Operations on flat vectors; all of them are exact. */
#include "base/planes.h"
#include "base/prng/prng.h"
#include "tests/kit/device/ops_kit.h"

#include <math.h>
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
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, add,
                        &(struct ox_op_add){.target = apart, .a = a, .b = b, .count = count}));
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, add,
                        &(struct ox_op_add){.target = on_a, .a = on_a, .b = b, .count = count}));
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, add,
                        &(struct ox_op_add){.target = on_b, .a = a, .b = on_b, .count = count}));
    lab_finish(lab);
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++) {
        wrong += apart[i] != a[i] + b[i];
    }
    CHECK(wrong == 0);
    CHECK(memcmp(apart, on_a, count * sizeof(float)) == 0 && memcmp(apart, on_b, count * sizeof(float)) == 0);
    guards_end(0);
}

/* Scaled, with or without another; the rounding of a scaled sum is that of one or of two operations. */
static void test_add_scaled(struct lab *lab, size_t count, enum ox_real real) {
    const float scale = 0.22f;
    const float *const a = random_reals(real, count, 1, 1.0), *const b = random_reals(real, count, 2, 1.0);
    double *const sum = doubles(count), *const alone = doubles(count);
    void *const a_at = reals_of(real, a, count), *const b_at = reals_of(real, b, count);
    void *const apart = reals(real, count);
    for (size_t i = 0; i < count; i++) {
        alone[i] = (double)scale * (double)b[i];
        sum[i] = (double)a[i] + alone[i];
    }
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, add, &(struct ox_op_add){apart, a_at, b_at, count, scale, real}));
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, add, &(struct ox_op_add){a_at, a_at, b_at, count, scale, real}));
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, add, &(struct ox_op_add){b_at, NULL, b_at, count, scale, real}));
    lab_finish(lab);
    check_real_error(real, "scaled sum", error_of(floats_of(real, apart, count), sum, count), 1e-7, 4e-3);
    check_real_error(real, "scaled", error_of(floats_of(real, b_at, count), alone, count), 1e-7, 4e-3);
    CHECK(memcmp(apart, a_at, count * ox_real_bytes(real)) == 0);
    guards_end(0);
}

static void test_logits(struct lab *lab, size_t count, float scale, float cap) {
    float *const logits = random_floats(count, 1, 20.0);
    double *const want = widened(logits, count);
    for (size_t i = 0; i < count; i++) {
        const double x = (scale == 0.0f ? 1.0 : (double)scale) * want[i];
        want[i] = cap == 0.0f ? x : (double)cap * tanh(x / (double)cap);
    }
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, logits, &(struct ox_op_logits){logits, count, scale, cap}));
    lab_finish(lab);
    double worst = 0.0; /* small ones are as exact as large ones */
    for (size_t i = 0; i < count; i++) {
        worst = fmax(worst, fabs((double)logits[i] - want[i]) / fmax(fabs(want[i]), 1e-30));
    }
    check_error("logits, each", worst, 4e-7);
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
    const bool halves = lab_knows(lab, OX_REAL_F16); /* a GPU's weights in fp16: of the master, in one rounding */
    uint16_t *const rounded = guarded(count * 2);
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, planes_join, &(struct ox_op_planes_join){joined, hi, lo, count,
                                                                                       OX_REAL_F32,
                                                                                       OX_FORMAT_MASTER, false}));
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, planes_join, &(struct ox_op_planes_join){widened_hi, hi, NULL, count,
                                                                                       OX_REAL_F32,
                                                                                       OX_FORMAT_MASTER, false}));
    float *const widened = floats(count);
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, planes_join, &(struct ox_op_planes_join){widened, lo, NULL, count,
                                                                                       OX_REAL_F32,
                                                                                       OX_FORMAT_FP16, false}));
    if (halves) {
        REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, planes_join, &(struct ox_op_planes_join){rounded, hi, lo, count,
                                                                                           OX_REAL_F16,
                                                                                           OX_FORMAT_MASTER, false}));
    }
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, bf16_pack, &(struct ox_op_bf16_pack){packed, master, count}));
    lab_finish(lab);
    CHECK(memcmp(joined, master, count * sizeof(float)) == 0);
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++) {
        wrong += ox_f32_bits(widened_hi[i]) != (uint32_t)hi[i] << 16;
        wrong += packed[i] != ox_bf16_from_f32(master[i]);
        const float of_half = ox_f16_to_f32(lo[i]); /* any bits are a half; NaNs may differ */
        wrong += ox_f32_bits(widened[i]) != ox_f32_bits(of_half) && (of_half == of_half || widened[i] == widened[i]);
        const uint16_t half = ox_f16_from_f32(master[i]);
        wrong += halves && rounded[i] != half && ((rounded[i] & 0x7fffu) <= 0x7c00u || (half & 0x7fffu) <= 0x7c00u);
    }
    CHECK(wrong == 0);
    guards_end(0);
}

/* Each number comes back within half a scale of its block, of which the largest comes back as it was; a block with a
 * number that is not finite comes back as NaN, and one of tiny numbers as zeros. */
/* Eight-bit weights, to each type that the device computes in: exact in float32, else rounded once. */
static void test_base8(struct lab *lab, size_t groups) {
    const size_t count = groups * OX_GROUP_ELEMS;
    float *const numbers = floats(count), *const expected = floats(count), *const out = floats(count);
    float *const as_hi = floats(count);
    unsigned char *const packed = guarded(groups * OX_BASE8_GROUP_BYTES);
    uint16_t *const rounded = guarded(count * 2);
    const bool narrow = lab_knows(lab, OX_REAL_BF16);
    for (size_t i = 0; i < count; i++) {
        numbers[i] = (float)((i * 2654435761u & 0xffffffu) / 8388608.0 - 1) * ldexpf(1.0f, (int)(i / 32 % 40) - 20);
    }
    for (size_t i = 0; i < groups; i++) {
        CHECK(ox_base8_pack(numbers + i * OX_GROUP_ELEMS, packed + i * OX_BASE8_GROUP_BYTES) == 0);
        for (uint32_t block = 0; block < OX_GROUP_ELEMS / OX_BASE8_BLOCK; block++) {
            ox_base8_unpack(packed + i * OX_BASE8_GROUP_BYTES, block,
                            expected + i * OX_GROUP_ELEMS + (size_t)block * OX_BASE8_BLOCK);
        }
    }
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, planes_join, &(struct ox_op_planes_join){
        .out = out, .hi = (const uint16_t *)(const void *)packed, .count = count, .real = OX_REAL_F32,
        .format = OX_FORMAT_Q8}));
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, planes_join, &(struct ox_op_planes_join){
        .out = as_hi, .hi = (const uint16_t *)(const void *)packed, .count = count, .real = OX_REAL_F32,
        .format = OX_FORMAT_Q8, .to_hi = true}));
    if (narrow) {
        REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, planes_join, &(struct ox_op_planes_join){
            .out = rounded, .hi = (const uint16_t *)(const void *)packed, .count = count, .real = OX_REAL_BF16,
            .format = OX_FORMAT_Q8}));
    }
    lab_finish(lab);
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++) {
        wrong += ox_f32_bits(out[i]) != ox_f32_bits(expected[i]);
        wrong += narrow && rounded[i] != ox_bf16_from_f32(expected[i]);
        wrong += ox_f32_bits(as_hi[i]) != ox_f32_bits(ox_bf16_to_f32(ox_plane_hi(expected[i])));
    }
    CHECK(wrong == 0);
    guards_end(0);
}

static void test_block8(struct lab *lab, size_t count) {
    float *const in = random_floats(count, 7, 1.0), *const out = floats(count);
    const size_t bytes = ox_exchange_bytes(OX_EXCHANGE_Q8, count);
    unsigned char *const blocks = guarded(bytes);
    for (size_t i = 0; i < count; i++) {
        const size_t block = i / OX_BLOCK8_ELEMS % 8;
        in[i] *= block == 1 ? 1e-38f : block == 2 ? 1e37f : block == 3 ? 0.0f : 1.0f;
        in[i] = i % 1024 == 4 * OX_BLOCK8_ELEMS ? NAN : i % 1024 == 5 * OX_BLOCK8_ELEMS + 1 ? INFINITY : in[i];
    }
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, block8_pack, &(struct ox_op_block8_pack){blocks, in, count}));
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, block8_unpack, &(struct ox_op_block8_unpack){out, blocks, count}));
    lab_finish(lab);
    size_t wrong = 0;
    for (size_t first = 0; first < count; first += OX_BLOCK8_ELEMS) {
        const size_t past = first + OX_BLOCK8_ELEMS < count ? first + OX_BLOCK8_ELEMS : count;
        double most = 0;
        bool finite = true;
        for (size_t i = first; i < past; i++) {
            most = fmax(most, fabs((double)in[i]));
            finite = finite && isfinite(in[i]);
        }
        for (size_t i = first; i < past; i++) {
            const double error = fabs((double)out[i] - (double)in[i]);
            const double limit = most < 1.6e-36 ? most : most / 254 * (1 + 1e-6);
            wrong += finite ? !(error <= limit) : out[i] == out[i];
            wrong += finite && most >= 1.6e-36 && fabs((double)in[i]) == most && !(error <= most * 1e-7);
        }
    }
    const size_t past = (count + OX_BLOCK8_ELEMS - 1) / OX_BLOCK8_ELEMS * OX_BLOCK8_BYTES;
    for (size_t i = past; i < bytes; i++) {
        wrong += blocks[i] != 0;
    }
    CHECK(wrong == 0);
    guards_end(0);
}

/* Ends a sum: bias, then residual, then one rounding; over the residual too. */
static void test_settle(struct lab *lab, uint32_t rows, uint32_t cols, int with, enum ox_real real) {
    const size_t count = (size_t)rows * cols;
    const bool has_bias = (with & 1) != 0, has_residual = (with & 2) != 0;
    const float *const in = random_floats(count, 1, 1.0), *const bias = random_reals(real, cols, 2, 1.0);
    const float *const residual = random_reals(real, count, 3, 1.0);
    void *const apart = reals(real, count), *const over = reals_of(real, residual, count);
    struct ox_op_settle op = {.out = apart, .in = in, .bias = has_bias ? reals_of(real, bias, cols) : NULL,
                              .residual = has_residual ? over : NULL, .rows = rows, .cols = cols, .real = real};
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, settle, &op));
    op.out = over;
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, settle, &op));
    lab_finish(lab);
    const float *const got = floats_of(real, apart, count);
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++) {
        const float sum = has_bias ? in[i] + bias[i % cols] : in[i];
        wrong += got[i] != real_nearest(real, has_residual ? residual[i] + sum : sum);
    }
    CHECK(wrong == 0 && memcmp(apart, over, count * ox_real_bytes(real)) == 0);
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
            test_block8(&labs[lab], counts[i]);
            test_base8(&labs[lab], 1 + i % 5);
            for (int real = OX_REAL_F32; real <= OX_REAL_F16; real++) {
                if (lab_knows(&labs[lab], (enum ox_real)real)) {
                    test_add_scaled(&labs[lab], counts[i], (enum ox_real)real);
                }
            }
        }
        for (int i = 0; i < 4 * 3; i++) {
            if (lab_knows(&labs[lab], (enum ox_real)(i % 3))) {
                test_settle(&labs[lab], 37, 300, i / 3, (enum ox_real)(i % 3));
                test_settle(&labs[lab], 1, 7, i / 3, (enum ox_real)(i % 3));
            }
        }
        test_logits(&labs[lab], 70001, 0.0625f, 0.0f);
        test_logits(&labs[lab], 70001, 0.0f, 30.0f);
        test_logits(&labs[lab], 33, 2.0f, 5.0f);
    }
    return labs_end(labs);
}
