/* Muon: momentum, the Newton-Schulz iterations, and the update of the weights by what they give. */
#include "cpu_optim/muon.h"
#include "cpu_optim/muon_product.h"

#include "base/assert.h"
#include "base/optim_element.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#define OX_MUON_TILE 16
#define OX_MUON_ROWS 4
#define OX_MUON_PRODUCT ox_muon_product_scalar
#include "cpu_optim/muon_body.inc"

/* The quintic's coefficients, which make its slope at zero as steep as they can, and the least norm, of the authors. */
static const float coefficients[] = {3.4445f, -4.7750f, 2.0315f};
static const double least_norm = 1e-7;

/* The matrix as it is iterated: with no more rows than columns. */
static struct ox_matrix wide(struct ox_matrix matrix) {
    return matrix.rows <= matrix.cols ? matrix : (struct ox_matrix){matrix.cols, matrix.rows};
}

uint64_t ox_muon_scratch_floats(struct ox_matrix matrix) {
    const struct ox_matrix at = wide(matrix);
    return 4 * at.rows * at.cols + 2 * at.rows * at.rows; /* momentum, direction, two of the iterations, two squares */
}

double ox_muon_flops(const struct ox_muon *muon, struct ox_matrix matrix) {
    const struct ox_matrix at = wide(matrix);
    const double m = (double)at.rows, n = (double)at.cols;
    return muon->iterations * (4.0 * m * m * n + 2.0 * m * m * m);
}

/* ---- products on all threads ---- */

struct product_run {
    const struct ox_muon_product *product;
    uint64_t rows;
    enum ox_isa isa;
};

static void run_share(void *context, uint32_t idx, uint32_t count) {
    const struct product_run *const run = context;
    const struct ox_range part = ox_pool_range(run->rows, 1, idx, count);
    switch (run->isa) {
#if defined(__x86_64__)
    case OX_ISA_AVX2:
        ox_muon_product_avx2(run->product, part.begin, part.end);
        break;
    case OX_ISA_AVX512:
        ox_muon_product_avx512(run->product, part.begin, part.end);
        break;
#endif
    default:
        ox_muon_product_scalar(run->product, part.begin, part.end);
    }
}

static void multiply(struct ox_pool *pool, enum ox_isa isa, uint64_t rows, const struct ox_muon_product *product) {
    struct product_run run = {.product = product, .rows = rows, .isa = isa};
    ox_pool_run(pool, run_share, &run);
}

static void transpose(const float *in, uint64_t rows, uint64_t cols, float *out) {
    enum { BLOCK = 32 };
    for (uint64_t row = 0; row < rows; row += BLOCK) {
        for (uint64_t col = 0; col < cols; col += BLOCK) {
            for (uint64_t i = row; i < rows && i < row + BLOCK; i++) {
                for (uint64_t j = col; j < cols && j < col + BLOCK; j++) {
                    out[j * rows + i] = in[i * cols + j];
                }
            }
        }
    }
}

void ox_muon_orthogonalize(struct ox_pool *pool, enum ox_isa isa, uint32_t iterations, struct ox_matrix matrix,
                           float *inout, float *scratch) {
    const struct ox_matrix at = wide(matrix);
    const bool turned = matrix.rows > matrix.cols;
    const uint64_t count = at.rows * at.cols;
    float *x = scratch, *other = x + count, *const gram = other + count, *const square = gram + at.rows * at.rows;
    double sum = 0.0;
    if (turned) {
        transpose(inout, matrix.rows, matrix.cols, x);
    } else {
        memcpy(x, inout, count * sizeof *x);
    }
    for (uint64_t i = 0; i < count; i++) {
        sum += (double)x[i] * (double)x[i];
    }
    const float norm = (float)fmax(sqrt(sum), least_norm);
    for (uint64_t i = 0; i < count; i++) {
        x[i] /= norm;
    }
    for (uint32_t k = 0; k < iterations; k++) {
        transpose(x, at.rows, at.cols, other);
        multiply(pool, isa, at.rows, &(struct ox_muon_product){.out = gram, .a = x, .b = other, .inner = at.cols,
                                                               .cols = at.rows, .beta = 1.0f});
        multiply(pool, isa, at.rows, &(struct ox_muon_product){.out = square, .a = gram, .b = gram, .d = gram,
                                                               .inner = at.rows, .cols = at.rows,
                                                               .alpha = coefficients[1], .beta = coefficients[2]});
        multiply(pool, isa, at.rows, &(struct ox_muon_product){.out = other, .a = square, .b = x, .d = x,
                                                               .inner = at.rows, .cols = at.cols,
                                                               .alpha = coefficients[0], .beta = 1.0f});
        float *const swap = x;
        x = other;
        other = swap;
    }
    if (turned) {
        transpose(x, at.rows, at.cols, inout);
    } else {
        memcpy(inout, x, count * sizeof *x);
    }
}

/* ---- the update ---- */

static double ratio_of(enum ox_muon_ratio ratio, struct ox_matrix matrix) {
    const double rows = (double)matrix.rows, cols = (double)matrix.cols;
    return ratio == OX_MUON_ORIGINAL ? sqrt(fmax(1.0, rows / cols)) : 0.2 * sqrt(fmax(rows, cols));
}

static float momentum_read(enum ox_moments moments, const void *m, uint64_t idx) {
    return moments == OX_MOMENTS_BF16 ? ox_bf16_to_f32(((const uint16_t *)m)[idx]) : ((const float *)m)[idx];
}

/* Stores the new momentum, in bf16 rounded at random as an update by element does; returns how many numbers it cannot
 * hold. */
static uint64_t momentum_write(enum ox_moments moments, const struct ox_optim_hyper *hyper,
                               const struct ox_update_span *span, const float *momentum) {
    uint16_t *const narrow = span->state.m;
    uint32_t keys[2];
    uint64_t bad_count = 0;
    if (moments == OX_MOMENTS_F32) {
        memcpy(span->state.m, momentum, span->count * sizeof *momentum);
        return 0;
    }
    ox_noise_keys(hyper, span->stream, keys);
    for (uint64_t i = 0; i < span->count; i++) {
        const uint32_t bits = ox_f32_bits(momentum[i]);
        const uint32_t noise = ox_noise(keys, (uint32_t)(span->first + i));
        bad_count += (bits & 0x7fffffffu) >= OX_NARROW_LIMIT_BITS;
        narrow[i] = (uint16_t)((bits + ox_noise_bf16_m(noise)) >> 16);
    }
    return bad_count;
}

/* New momentum, and what is to be orthogonalized. */
static void direct(const struct ox_muon *muon, enum ox_moments moments, const struct ox_update_span *span,
                   float grad_scale, float *momentum, float *direction) {
    const float share = 1.0f - muon->momentum;
    for (uint64_t i = 0; i < span->count; i++) {
        const float raw = span->grad_dtype == OX_GRAD_BF16 ? ox_bf16_to_f32(((const uint16_t *)span->grad)[i])
                                                          : ((const float *)span->grad)[i];
        const float grad = raw * grad_scale, before = momentum_read(moments, span->state.m, i);
        const float m = share < 0.5f ? before + share * (grad - before) : grad - (grad - before) * muon->momentum;
        const float u = muon->momentum < 0.5f ? grad + muon->momentum * (m - grad) : m - (m - grad) * share;
        momentum[i] = m;
        direction[i] = muon->nesterov ? u : m;
    }
}

uint64_t ox_muon_run(const struct ox_muon_job *job, const struct ox_update_span *span,
                     const struct ox_optim_hyper *hyper) {
    OX_ASSERT(job->format.moments != OX_MOMENTS_Q8 && span->sums == NULL);
    OX_ASSERT(span->count == job->matrix.rows * job->matrix.cols);
    struct ox_state_format format = job->format;
    float *const momentum = job->scratch, *const direction = momentum + span->count;
    /* What is left is an update by SGD without a momentum, with the direction for a gradient. */
    struct ox_optim_hyper own = *hyper;
    struct ox_update_span by = *span;
    own.beta1 = 0.0f;
    own.grad_scale = 1.0f;
    own.learning_rate = (float)(hyper->rate * ratio_of(job->muon->ratio, job->matrix));
    by.grad = direction;
    by.grad_dtype = OX_GRAD_F32;
    direct(job->muon, format.moments, span, hyper->grad_scale, momentum, direction);
    ox_muon_orthogonalize(job->pool, job->isa, job->muon->iterations, job->matrix, direction, direction + span->count);
    format.kind = OX_OPTIM_SGD;
    uint64_t bad_count = ox_update_run_pool(job->pool, job->isa, format, &by, &own);
    if (!span->weights_only) {
        bad_count += momentum_write(format.moments, hyper, span, momentum);
    }
    return bad_count;
}
