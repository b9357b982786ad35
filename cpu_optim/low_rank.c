#include "cpu_optim/low_rank.h"

#include <math.h>
#include <string.h>

enum { LANES = 16, PIECE = 1024 };

/* Sums of 16 lanes in float32 over short pieces, pieces in double: near the exact product, and as fast as memory. */
static double dot(const float *a, const float *b, uint64_t count) {
    double sum = 0;
    for (uint64_t first = 0; first < count; first += PIECE) {
        const uint64_t past = count - first < PIECE ? count : first + PIECE;
        float lanes[LANES] = {0};
        uint64_t i = first;
        for (; i + LANES <= past; i += LANES) {
            for (int k = 0; k < LANES; k++) {
                lanes[k] += a[i + k] * b[i + k];
            }
        }
        for (int k = 0; i < past; i++, k++) {
            lanes[k] += a[i] * b[i];
        }
        for (int half = LANES / 2; half > 0; half /= 2) {
            for (int k = 0; k < half; k++) {
                lanes[k] += lanes[k + half];
            }
        }
        sum += (double)lanes[0];
    }
    return sum;
}

/* out += factor * in */
static void add_scaled(float *out, const float *in, float factor, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        out[i] += factor * in[i];
    }
}

static uint64_t mixed(uint64_t x) { /* splitmix64 */
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static void draw(float *vector, uint64_t count, uint64_t seed, uint32_t number) {
    const uint64_t base = mixed(mixed(seed) + number);
    for (uint64_t i = 0; i < count; i++) {
        vector[i] = (float)(mixed(base + i) >> 40) * 0x1p-23f - 1.0f;
    }
}

/* Takes the parts along the vectors before it away; twice, because once leaves an error that grows with what was
 * taken. */
static void straighten(float *vectors, uint32_t at, uint64_t count) {
    float *const own = vectors + at * count;
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < at; i++) {
            add_scaled(own, vectors + i * count, (float)-dot(own, vectors + i * count, count), count);
        }
    }
}

void ox_thin_orthonormalise(float *vectors, uint32_t rank, uint64_t count, uint64_t seed) {
    for (uint32_t at = 0; at < rank; at++) {
        float *const own = vectors + at * count;
        if (seed != 0 && dot(own, own, count) == 0) { /* NaN is not zero */
            draw(own, count, seed, at);
        }
        straighten(vectors, at, count);
        const double length = sqrt(dot(own, own, count));
        for (uint64_t i = 0; i < count && length != 0; i++) {
            own[i] = (float)((double)own[i] / length);
        }
    }
}

void ox_thin_rows(const struct ox_thin *shape, const float *m, const float *q, float *p) {
    for (uint64_t i = 0; i < shape->rows; i++) {
        for (uint32_t k = 0; k < shape->rank; k++) {
            p[k * shape->rows + i] = (float)dot(m + i * shape->cols, q + k * shape->cols, shape->cols);
        }
    }
}

void ox_thin_cols(const struct ox_thin *shape, const float *m, const float *p, float *q) {
    memset(q, 0, shape->rank * shape->cols * sizeof *q);
    for (uint64_t i = 0; i < shape->rows; i++) {
        for (uint32_t k = 0; k < shape->rank; k++) {
            add_scaled(q + k * shape->cols, m + i * shape->cols, p[k * shape->rows + i], shape->cols);
        }
    }
}

void ox_thin_restore(const struct ox_thin *shape, float *m, const float *p, const float *own, const float *sum,
                     float *rest) {
    const uint64_t cols = shape->cols;
    for (uint64_t i = 0; i < shape->rows; i++) {
        float *const row = m + i * cols, *const left = rest + i * cols;
        memcpy(left, row, cols * sizeof *row);
        memset(row, 0, cols * sizeof *row);
        for (uint32_t k = 0; k < shape->rank; k++) {
            add_scaled(left, own + k * cols, -p[k * shape->rows + i], cols);
            add_scaled(row, sum + k * cols, p[k * shape->rows + i], cols);
        }
    }
}

void ox_thin_add(float *target, const float *source, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        target[i] += source[i];
    }
}
