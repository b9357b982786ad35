/* The instructions that a warp carries out together, one lane at a time. */
#include <cuda_runtime.h>

#include "base/assert.h"
#include "base/planes.h"

enum { LANES = 32 };

static double widened(uint16_t bits, bool is_half) {
    return (double)(is_half ? ox_f16_to_f32(bits) : ox_bf16_to_f32(bits));
}

/* Operands of one lane for a product: its registers, whose halves are elements. */
struct operands {
    uint16_t a[8], b[4];
};

static const operands *operands_of(const void *first, unsigned lane) {
    return (const operands *)((const unsigned char *)first + (size_t)lane * SIMT_SLOT_BYTES);
}

/* Row `row` of A: registers 1 and 3 are of the lower rows, 2 and 3 of the right columns. */
static void row_of_a(double out[16], const void *first, unsigned row, bool of_halves) {
    for (unsigned k = 0; k < 16; k++) {
        out[k] = widened(operands_of(first, row % 8 * 4 + k % 8 / 2)->a[k / 8 * 4 + row / 8 * 2 + k % 2], of_halves);
    }
}

static void column_of_b(double out[16], const void *first, unsigned column, bool of_halves) {
    for (unsigned k = 0; k < 16; k++) {
        out[k] = widened(operands_of(first, column * 4 + k % 8 / 2)->b[k / 8 * 2 + k % 2], of_halves);
    }
}

enum { NOT_FINITE = 0x7ff };

static unsigned exponent_of(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (unsigned)(bits >> 52) & NOT_FINITE;
}

/* Of products and sums of floats: far from the ends of what a double holds. */
static double power_of_two(int exponent) {
    const uint64_t bits = (uint64_t)(1023 + exponent) << 52;
    double value;
    OX_ASSERT(exponent > -1023 && exponent <= 1023);
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Products are exact in double. All terms are cut off one bit below the last of the largest, and their sum to a float,
 * never rounded, as tensor cores were found to do it (Fasi et al., PeerJ Computer Science 7:e330, 2021); how many bits
 * stay below differs by generation. */
float simt_tensor_sum(float acc, const double products[], unsigned count) {
    double plain = (double)acc;
    unsigned largest = exponent_of((double)acc);
    for (unsigned i = 0; i < count; i++) {
        const unsigned exponent = exponent_of(products[i]);
        largest = exponent > largest ? exponent : largest;
        plain += products[i];
    }
    if (largest == 0 || largest == NOT_FINITE) {
        return (float)plain;
    }
    const double unit = power_of_two((int)largest - 1023 - 24), per_unit = power_of_two(24 + 1023 - (int)largest);
    int64_t units = (int64_t)((double)acc * per_unit);
    for (unsigned i = 0; i < count; i++) {
        units += (int64_t)(products[i] * per_unit);
    }
    const double sum = (double)units * unit;
    const float nearest = (float)sum;
    return std::fabs((double)nearest) > std::fabs(sum) ? std::nextafter(nearest, 0.0f) : nearest;
}

void simt_mma_16816(float acc[4], const uint32_t a[4], const uint32_t b[2], bool of_halves) {
    operands own;
    memcpy(own.a, a, sizeof own.a);
    memcpy(own.b, b, sizeof own.b);
    simt_give(&own, sizeof own);
    const void *const first = simt_given(0);
    double rows[2][16], columns[2][16];
    for (unsigned i = 0; i < 2; i++) {
        row_of_a(rows[i], first, simt_lane() / 4 + 8 * i, of_halves);
        column_of_b(columns[i], first, simt_lane() % 4 * 2 + i, of_halves);
    }
    for (unsigned i = 0; i < 4; i++) {
        double products[16];
        for (unsigned k = 0; k < 16; k++) {
            products[k] = rows[i / 2][k] * columns[i % 2][k];
        }
        acc[i] = simt_tensor_sum(acc[i], products, 16);
    }
}

void simt_ldmatrix_x4(uint32_t out[4], const void *row, bool transposed) {
    OX_ASSERT((uintptr_t)row % 16 == 0);
    simt_give(&row, sizeof row);
    for (unsigned i = 0; i < 4; i++) {
        uint16_t half[2];
        for (unsigned j = 0; j < 2; j++) {
            const unsigned first = simt_lane() / 4, second = simt_lane() % 4 * 2 + j;
            const unsigned from = 8 * i + (transposed ? second : first), at = transposed ? first : second;
            half[j] = (*(const uint16_t *const *)simt_given(from))[at];
        }
        out[i] = (uint32_t)half[1] << 16 | half[0];
    }
}

/* ---- by themselves ------------------------------------------------------------------------------- */

void simt_run_kernel(const simt_shape &shape, const std::function<void()> &kernel);

extern "C" void simt_try_mma(float acc[32][4], const uint32_t a[32][4], const uint32_t b[32][2]) {
    simt_run_kernel(simt_shape{1, LANES, 0}, [=] {
        simt_mma_16816(acc[simt_lane()], a[simt_lane()], b[simt_lane()], false);
    });
}

extern "C" void simt_try_ldmatrix(uint32_t out[32][4], const void *const rows[32], bool transposed) {
    simt_run_kernel(simt_shape{1, LANES, 0},
                    [=] { simt_ldmatrix_x4(out[simt_lane()], rows[simt_lane()], transposed); });
}
