/* Muon: momentum, the Newton-Schulz iterations, and the update of the weights by what they give. */
#include "cpu_optim/muon.h"
#include "cpu_optim/muon_product.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/optim_element.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#define OX_MUON_TILE 16
#define OX_MUON_ROWS 4
#define OX_MUON_PRODUCT ox_muon_product_scalar
#include "cpu_optim/muon_body.inc"

/* They make the slope of the quintic at zero as steep as it can be. */
const float ox_muon_factors[] = {3.4445f, -4.7750f, 2.0315f};
static const double least_norm = 1e-7; /* of the authors */

/* The matrix as it is iterated: with no more rows than columns. */
static struct ox_matrix wide(struct ox_matrix matrix) {
    return matrix.rows <= matrix.cols ? matrix : (struct ox_matrix){matrix.cols, matrix.rows};
}

uint64_t ox_muon_iterated_floats(struct ox_matrix matrix) {
    const struct ox_matrix at = wide(matrix);
    return 2 * at.rows * at.cols + 2 * at.rows * at.rows; /* two matrices that take turns, two squares */
}

uint64_t ox_muon_scratch_floats(struct ox_matrix matrix, bool elsewhere) {
    const uint64_t count = matrix.rows * matrix.cols;
    return 2 * count + (elsewhere ? count : ox_muon_iterated_floats(matrix)); /* before: momentum and direction */
}

double ox_muon_flops(const struct ox_muon *muon, struct ox_matrix matrix) {
    const struct ox_matrix at = wide(matrix);
    const double m = (double)at.rows, n = (double)at.cols;
    return muon->iterations * (3.0 * m * m * n + m * m * m); /* the squares are symmetric: half of each is computed */
}

/* ---- products on all threads ---- */

enum { ITEM_ROWS = 128, BLOCK = 32 };

struct product_run {
    const struct ox_muon_product *product;
    uint64_t rows, item_rows;
    enum ox_isa isa;
};

static struct ox_range item_rows(const struct product_run *run, uint32_t item) {
    const uint64_t begin = item * run->item_rows;
    return (struct ox_range){begin, ox_min_u64(begin + run->item_rows, run->rows)};
}

static void run_item(void *context, uint32_t item, uint32_t thread) {
    const struct product_run *const run = context;
    const struct ox_range part = item_rows(run, item);
    (void)thread;
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

/* Copies what lies above the diagonal below it. */
static void mirror_item(void *context, uint32_t item, uint32_t thread) {
    const struct product_run *const run = context;
    const struct ox_range part = item_rows(run, item);
    float *const out = run->product->out;
    (void)thread;
    for (uint64_t col = 0; col < part.end; col += BLOCK) {
        for (uint64_t i = ox_max_u64(part.begin, col + 1); i < part.end; i++) {
            for (uint64_t j = col; j < i && j < col + BLOCK; j++) {
                out[i * run->rows + j] = out[j * run->rows + i];
            }
        }
    }
}

static void multiply(struct ox_pool *pool, enum ox_isa isa, uint64_t rows, const struct ox_muon_product *product) {
    const uint64_t share = ox_align_up(ox_div_up(rows, ox_pool_size(pool)), OX_MUON_ROWS);
    struct product_run run = {.product = product, .rows = rows, .item_rows = ox_min_u64(share, ITEM_ROWS), .isa = isa};
    const uint32_t items = (uint32_t)ox_div_up(rows, run.item_rows);
    ox_pool_items(pool, items, run_item, &run); /* of a symmetric product the first ones are the longest */
    if (product->symmetric) {
        ox_pool_items(pool, items, mirror_item, &run);
    }
}

static void transpose(const float *in, uint64_t rows, uint64_t cols, float *out) {
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

void ox_muon_iterate(struct ox_pool *pool, enum ox_isa isa, uint32_t iterations, struct ox_matrix matrix, float *inout,
                     float *scratch) {
    const uint64_t rows = matrix.rows, cols = matrix.cols, count = rows * cols;
    float *x = inout, *other = scratch, *const gram = other + count, *const square = gram + rows * rows;
    OX_ASSERT(rows <= cols);
    for (uint32_t k = 0; k < iterations; k++) {
        transpose(x, rows, cols, other);
        multiply(pool, isa, rows, &(struct ox_muon_product){.out = gram, .a = x, .b = other, .inner = cols,
                                                            .cols = rows, .beta = 1.0f, .symmetric = true});
        multiply(pool, isa, rows, &(struct ox_muon_product){.out = square, .a = gram, .b = gram, .d = gram,
                                                            .inner = rows, .cols = rows, .alpha = ox_muon_factors[1],
                                                            .beta = ox_muon_factors[2], .symmetric = true});
        multiply(pool, isa, rows, &(struct ox_muon_product){.out = other, .a = square, .b = x, .d = x, .inner = rows,
                                                            .cols = cols, .alpha = ox_muon_factors[0], .beta = 1.0f});
        float *const swap = x;
        x = other;
        other = swap;
    }
    if (x != inout) {
        memcpy(inout, x, count * sizeof *x);
    }
}

/* Makes of a direction the one that has its singular vectors, with values near 1. */
static enum ox_status orthogonalize(const struct ox_muon_job *job, float *inout, float *scratch) {
    const struct ox_matrix matrix = job->matrix, at = wide(matrix);
    const bool turned = matrix.rows > matrix.cols;
    const uint64_t count = at.rows * at.cols;
    float *const x = scratch;
    enum ox_status status = OX_OK;
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
    if (job->iterator.iterate != NULL) {
        status = job->iterator.iterate(job->iterator.owner, at, x);
    } else {
        ox_muon_iterate(job->pool, job->isa, job->muon->iterations, at, x, x + count);
    }
    if (turned) {
        transpose(x, at.rows, at.cols, inout);
    } else {
        memcpy(inout, x, count * sizeof *x);
    }
    return status;
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

enum ox_status ox_muon_run(const struct ox_muon_job *job, const struct ox_update_span *span,
                           const struct ox_optim_hyper *hyper, uint64_t *bad_count) {
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
    const enum ox_status status = orthogonalize(job, direction, direction + span->count);
    if (status != OX_OK) {
        return status;
    }
    format.kind = OX_OPTIM_SGD;
    *bad_count = ox_update_run_pool(job->pool, job->isa, format, &by, &own);
    if (!span->weights_only) {
        *bad_count += momentum_write(format.moments, hyper, span, momentum);
    }
    return OX_OK;
}
