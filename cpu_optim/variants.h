/* What the variants of this folder share. Only this folder and its tests include it. */
#ifndef OX_CPU_OPTIM_VARIANTS_H
#define OX_CPU_OPTIM_VARIANTS_H

#include "cpu_optim/norm.h"
#include "cpu_optim/optim.h"

/* One call of a variant. */
struct ox_update_job {
    struct ox_state_format format;
    struct ox_update_span span;
    const struct ox_optim_hyper *hyper;
    uint32_t noise_keys[2]; /* for the random roundings of this step and stream */
};

/* The scalar one is the definition. The others hand it the elements that do not fill a vector or a block. */
uint64_t ox_update_scalar(const struct ox_update_job *job);
uint64_t ox_update_avx2(const struct ox_update_job *job);
uint64_t ox_update_avx512(const struct ox_update_job *job);
uint64_t ox_update_neon(const struct ox_update_job *job);

/* Copies the planes of a span, or of weights alone hi, to where it says that they are saved. */
void ox_update_save(enum ox_moments moments, const struct ox_update_span *span);

/* Elements [begin, end) of a span; for Q8 begin is a multiple of OX_Q8_BLOCK. */
struct ox_update_span ox_update_part(struct ox_state_format format, const struct ox_update_span *span,
                                     uint64_t begin, uint64_t end);

/* The sum of squares of one group of at most OX_GROUP_ELEMS elements. */
typedef double ox_sumsq_fn(const void *grad, enum ox_grad_dtype dtype, uint64_t count);
double ox_sumsq_avx2(const void *grad, enum ox_grad_dtype dtype, uint64_t count);
double ox_sumsq_avx512(const void *grad, enum ox_grad_dtype dtype, uint64_t count);
ox_sumsq_fn *ox_sumsq_pick(enum ox_isa isa);

/* What the sums over a plane's bits multiply its word `idx` with, counted from the unit's first, and what a block's
 * scale adds to the sum of its codes. */
enum { OX_SUM_WORD_BYTES = 8 };
static inline uint64_t ox_sum_factor(uint64_t idx) {
    return 2 * idx + 1;
}
static inline uint64_t ox_sum_of_scale(uint8_t scale, uint64_t block_idx) {
    return scale * ox_sum_factor((UINT64_C(1) << 40) + block_idx); /* beyond the codes */
}

/* The sum over the bits of a span's averages. */
uint64_t ox_average_sum(const struct ox_update_span *span);

static inline void ox_plane_sums_add(struct ox_plane_sums *sums, const struct ox_plane_sums *more) {
    sums->hi += more->hi;
    sums->lo += more->lo;
    sums->m += more->m;
    sums->v += more->v;
    sums->average += more->average;
}

static inline void ox_update_sums_add(struct ox_update_sums *sums, const struct ox_update_sums *more) {
    ox_plane_sums_add(&sums->read, &more->read);
    ox_plane_sums_add(&sums->written, &more->written);
}

enum { OX_NORM_LANES = 16 }; /* running sums of a block */

static inline const void *ox_grad_at(const void *grad, enum ox_grad_dtype dtype, uint64_t idx) {
    return (const unsigned char *)grad + idx * ox_grad_bytes(dtype);
}

/* Finishes a block: adds its last, at most 15 elements to the running sums and the sums pairwise,
 * 16 to 8 to 4 to 2 to 1. */
double ox_sumsq_finish(double *sums, const void *grad, enum ox_grad_dtype dtype, uint64_t count);

#endif
