/* Optimizers on the planes of a parameter, on the processor. base/optim_format.h has their kinds and formats,
 * base/optim_element.h what they compute.
 *
 * One pass over a span unscales and clips the gradient, updates moments and master, checks that all is finite and
 * writes the planes back. Every instruction set and thread count gives the same bits, random roundings included: these
 * are a function of seed, step, stream and index. Where an fp32 result is NaN it is NaN on all of them, and counted;
 * which NaN is left open, because a step that has one is never committed. */
#ifndef OX_CPU_OPTIM_OPTIM_H
#define OX_CPU_OPTIM_OPTIM_H

#include "base/optim_format.h"
#include "base/pool.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum ox_isa { OX_ISA_SCALAR, OX_ISA_AVX2, OX_ISA_AVX512, OX_ISA_NEON, OX_ISA_COUNT };
const char *ox_isa_name(enum ox_isa isa);
bool ox_isa_available(enum ox_isa isa);
enum ox_isa ox_isa_best(void);
/* Sets *out to the set of that name, for "auto" to the best. OX_E_CONFIG if the machine lacks it. */
OX_MUST enum ox_status ox_isa_pick(const char *name, enum ox_isa *out);

/* ---- the update ----------------------------------------------------------------------------------- */

/* A sum over the bits of each plane of some elements, by which a change is noticed: the plane's words of 64 bits, each
 * times the odd number 2 w + 1, where w is its place in the unit, modulo 2^64. A change within one word always changes
 * the sum. Two flipped bits in different words leave it the same in 1 of 2048 cases, many changed words in 1 of 2^64.
 * Zeros add nothing, and sums of parts add up to the sum of all, in any order. */
struct ox_plane_sums {
    uint64_t hi, lo, m, v; /* m and v with their scales; v is 0 for a kind without it */
    uint64_t average;      /* 0 for a format without it */
};
/* Adds to the sums. `first` is as in struct ox_update_span, and a multiple of OX_Q8_BLOCK. */
void ox_plane_sums_take(enum ox_moments moments, const uint16_t *hi, const struct ox_state_planes *planes,
                        uint64_t first, uint64_t count, struct ox_plane_sums *sums);
/* What such a sum has as `lo`, of a plane that is a copy of that. */
uint64_t ox_lo_sum(enum ox_moments moments, const void *lo, uint64_t first, uint64_t count);
/* The sums of an update: over what it has read, and over what it has written in its place. */
struct ox_update_sums {
    struct ox_plane_sums read, written;
};

/* `count` consecutive parameters; updated in place; pointers need no alignment beyond their type. hi_out may equal
 * hi. The state of a Q8 span begins with a block; where its end leaves a block part-filled, the rest of that block must
 * hold zeros and keeps them. `stream` and `first` name the parameters for the random roundings, whatever the division
 * into spans: the unit, and the place of the first element in it (2^32 elements on the roundings repeat). */
struct ox_update_span {
    const uint16_t *hi;
    uint16_t *hi_out;
    struct ox_state_planes state;
    const void *grad; /* elements of type grad_dtype */
    enum ox_grad_dtype grad_dtype;
    bool decay;
    uint32_t stream;
    uint64_t first;
    uint64_t count;
    struct ox_update_sums *sums; /* the update adds to them, and `first` is a multiple of OX_Q8_BLOCK; NULL: none */
    /* Take what the update replaces in hi and state, for which hi_out must be hi; NULL: it is not saved. */
    uint16_t *replaced_hi;
    struct ox_state_planes replaced_state; /* not looked at with weights_only */
    /* The update writes hi_out alone and leaves the state as it is, so that the sums over what was written are those of
     * the new hi and of the old state. */
    bool weights_only;
};

/* Returns the count of elements whose new moments or master are not finite: a result, not an error. In BF16 and Q8 also
 * what reaches 2^127 counts, and a counted element is left with zero moments and a NaN for its master. */
uint64_t ox_update_run(enum ox_isa isa, struct ox_state_format format, const struct ox_update_span *span,
                       const struct ox_optim_hyper *hyper);
/* ox_update_run divided over the threads of a pool; the bits do not depend on their number. */
uint64_t ox_update_run_pool(struct ox_pool *pool, enum ox_isa isa, struct ox_state_format format,
                            const struct ox_update_span *span, const struct ox_optim_hyper *hyper);

/* Bytes that ox_update_run reads and writes per parameter, as the formats count them. */
struct ox_update_traffic {
    double read, written;
};
struct ox_update_traffic ox_update_traffic_of(struct ox_state_format format, enum ox_grad_dtype grad_dtype);

/* ---- values in and out: fresh weights, checkpoints --------------------------------------------------- */

/* What get returns, set stores without loss: a state that went through fp32 continues with the same bits. Other values
 * are rounded to nearest. Q8: `planes` begins with a block. The setters return how many values were not finite or too
 * large for the format; those are stored as zero. */
enum ox_moment { OX_MOMENT_M, OX_MOMENT_V };
void ox_state_moment_get(enum ox_moments moments, enum ox_moment which, const struct ox_state_planes *planes,
                         uint64_t count, float *out);
OX_MUST uint64_t ox_state_moment_set(enum ox_moments moments, enum ox_moment which,
                                     const struct ox_state_planes *planes, uint64_t count, const float *values);

void ox_state_master_get(enum ox_moments moments, const uint16_t *hi, const void *lo, uint64_t count, float *out);
OX_MUST uint64_t ox_state_master_set(enum ox_moments moments, uint16_t *hi, void *lo, uint64_t count,
                                     const float *values);

#ifdef __cplusplus
}
#endif
#endif
