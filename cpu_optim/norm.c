/* Reductions over gradients and their conversions. The square of an fp32 (or bf16) value is exact in double,
 * so a product and a sum round exactly like one fma: the scalar variant has the same bits without one. */
#include "cpu_optim/variants.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/planes.h"

#include <string.h>

enum {
    NORM_GRAIN = 8,    /* blocks: their partial sums fill a cache line */
    GRAD_GRAIN = 4096, /* elements */
    PIECE = 512,       /* elements that are converted between buffers of the stack */
};

struct norm_shares {
    const void *grad;
    enum ox_grad_dtype dtype;
    uint64_t count, block_count;
    double *partials;
    ox_sumsq_fn *sumsq;
};

struct add_shares {
    float *target;
    const float *source;
    uint64_t count;
};

struct convert_shares {
    unsigned char *out;
    const unsigned char *in;
    uint64_t count;
};

double ox_sumsq_finish(double *sums, const void *grad, enum ox_grad_dtype dtype, uint64_t count) {
    for (uint64_t i = count / OX_NORM_LANES * OX_NORM_LANES; i < count; i++) {
        const float g =
            dtype == OX_GRAD_BF16 ? ox_bf16_to_f32(((const uint16_t *)grad)[i]) : ((const float *)grad)[i];
        sums[i % OX_NORM_LANES] += (double)g * (double)g;
    }
    for (unsigned width = OX_NORM_LANES / 2; width > 0; width /= 2) {
        for (unsigned i = 0; i < width; i++) {
            sums[i] += sums[i + width];
        }
    }
    return sums[0];
}

static double sumsq_scalar(const void *grad, enum ox_grad_dtype dtype, uint64_t count) {
    double sums[OX_NORM_LANES] = {0};
    const float *const wide = grad;
    const uint16_t *const narrow = grad;
    for (uint64_t i = 0; i + OX_NORM_LANES <= count; i += OX_NORM_LANES) {
        for (unsigned lane = 0; lane < OX_NORM_LANES; lane++) {
            const double g = dtype == OX_GRAD_BF16 ? ox_bf16_to_f32(narrow[i + lane]) : wide[i + lane];
            sums[lane] += g * g;
        }
    }
    return ox_sumsq_finish(sums, grad, dtype, count);
}

ox_sumsq_fn *ox_sumsq_pick(enum ox_isa isa) {
    OX_ASSERT(ox_isa_available(isa));
#if defined(__x86_64__)
    if (isa == OX_ISA_AVX512) {
        return ox_sumsq_avx512;
    }
    if (isa == OX_ISA_AVX2) {
        return ox_sumsq_avx2;
    }
#endif
    return sumsq_scalar;
}

static void norm_share(void *context, uint32_t idx, uint32_t count) {
    const struct norm_shares *const shares = context;
    const struct ox_range range = ox_pool_range(shares->block_count, NORM_GRAIN, idx, count);
    for (uint64_t block = range.begin; block < range.end; block++) {
        const uint64_t begin = block * OX_GROUP_ELEMS;
        const uint64_t elem_count = ox_min_u64(OX_GROUP_ELEMS, shares->count - begin);
        shares->partials[block] =
            shares->sumsq(ox_grad_at(shares->grad, shares->dtype, begin), shares->dtype, elem_count);
    }
}

static void add_share(void *context, uint32_t idx, uint32_t count) {
    const struct add_shares *const shares = context;
    const struct ox_range range = ox_pool_range(shares->count, GRAD_GRAIN, idx, count);
    for (uint64_t i = range.begin; i < range.end; i++) {
        shares->target[i] += shares->source[i];
    }
}

/* Through buffers of its own, so that `out` may lie on `in`: a piece is read whole before it is written, and
 * the writes never overtake the reads. */
static void convert_share(void *context, uint32_t idx, uint32_t count) {
    const struct convert_shares *const shares = context;
    const struct ox_range range = ox_pool_range(shares->count, GRAD_GRAIN, idx, count);
    float in[PIECE];
    uint16_t out[PIECE];
    for (uint64_t begin = range.begin; begin < range.end; begin += PIECE) {
        const uint64_t piece = ox_min_u64(PIECE, range.end - begin);
        memcpy(in, shares->in + begin * sizeof *in, piece * sizeof *in);
        for (uint64_t i = 0; i < piece; i++) {
            out[i] = ox_bf16_from_f32(in[i]);
        }
        memcpy(shares->out + begin * sizeof *out, out, piece * sizeof *out);
    }
}

void ox_sumsq_partials(struct ox_pool *pool, const void *grad, enum ox_grad_dtype dtype, uint64_t count,
                       double *partials) {
    struct norm_shares shares = {
        .grad = grad,
        .dtype = dtype,
        .count = count,
        .block_count = ox_div_up(count, OX_GROUP_ELEMS),
        .partials = partials,
        .sumsq = ox_sumsq_pick(ox_isa_best()),
    };
    ox_pool_run_grains(pool, shares.block_count, NORM_GRAIN, norm_share, &shares);
}

void ox_grad_add(struct ox_pool *pool, float *target, const float *source, uint64_t count) {
    struct add_shares shares = {.target = target, .source = source, .count = count};
    ox_pool_run_grains(pool, count, GRAD_GRAIN, add_share, &shares);
}

void ox_grad_to_bf16(struct ox_pool *pool, uint16_t *out, const float *in, uint64_t count) {
    struct convert_shares shares = {
        .out = (unsigned char *)out, .in = (const unsigned char *)in, .count = count};
    const uintptr_t out_begin = (uintptr_t)out, in_begin = (uintptr_t)in;
    if (out_begin < in_begin + count * sizeof *in && in_begin < out_begin + count * sizeof *out) {
        OX_ASSERT(out_begin <= in_begin);
        convert_share(&shares, 0, 1);
        return;
    }
    ox_pool_run_grains(pool, count, GRAD_GRAIN, convert_share, &shares);
}
