/* Optimizers on the planes of a parameter, in three formats of their state.
 *
 * One pass over a span unscales and clips the gradient, updates moments and master, checks that all is finite and
 * writes the planes back. AdamW, Lion and SGD with momentum share the frame; moments are kept as fp32, as bf16, or
 * in eight bits. Every instruction set and thread count gives the same bits (cpu_optim/adam.h tells how), random
 * roundings included: they are a function of seed, step, stream and index.
 *
 *              hi  lo   m          v          bytes per parameter
 *   f32         2   2   4          4          12       8 with one moment
 *   bf16        2   2   2          2           8       6
 *   q8          2   1   1 + 1/64   1 + 1/64    5.03    4.02
 */
#ifndef OX_CPU_OPTIM_OPTIM_H
#define OX_CPU_OPTIM_OPTIM_H

#include "cpu_optim/adam.h"

#ifdef __cplusplus
extern "C" {
#endif

/* With g = grad * grad_scale, p the master, and decay = decay_factor where the span decays, else 1:
 *   AdamW  as in cpu_optim/adam.h
 *   Lion   c = fma(beta1, m, (1 - beta1) * g);  p = fma(-lr, sign(c), p * decay)
 *          m = fma(beta2, m, (1 - beta2) * g)            (Chen et al., arXiv 2302.06675; sign(0) = 0)
 *   SGD    m = fma(beta1, m, g);  p = fma(-lr, m, p * decay)
 * The update uses the new moments as computed, before they are rounded to their format. */
enum ox_optim_kind { OX_OPTIM_ADAMW, OX_OPTIM_LION, OX_OPTIM_SGD, OX_OPTIM_KIND_COUNT };
const char *ox_optim_kind_name(enum ox_optim_kind kind); /* "adamw", "lion", "sgd" */
bool ox_optim_has_v(enum ox_optim_kind kind);            /* AdamW alone has a second moment */

/* BF16: rounded at random, up or down with the probability that keeps the mean: a moment that moves by less than half
 * a step of its format would otherwise stand still, and v does under beta2 = 0.999. The error is below |x| / 128.
 *
 * Q8: blocks of OX_Q8_BLOCK elements share a scale, a power of two, in one byte; a code is a small float below it, so
 * that its steps grow with the value. m has a sign and 3 + 4 bits of exponent and fraction, v 4 + 4 bits. Rounding is
 * random as above. With `a` the largest magnitude of the block, the error is below
 *   |x| / 16            where |x| >= a / 62 (m), a / 15872 (v)
 *   a / 992, a / 253952 below that
 * and half of it for values set from outside, which are rounded to nearest. A v that is not 0 never becomes 0: one
 * below the smallest step is kept there. lo has eight bits, so that the master has 24: sign, exponent and 15 bits of
 * fraction, likewise rounded at random, because updates below 2^-17 of a weight would otherwise be lost. */
enum ox_moments { OX_MOMENTS_F32, OX_MOMENTS_BF16, OX_MOMENTS_Q8, OX_MOMENTS_COUNT };
const char *ox_moments_name(enum ox_moments moments); /* "f32", "bf16", "q8" */
enum { OX_Q8_BLOCK = 64 };

struct ox_state_format {
    enum ox_optim_kind kind;
    enum ox_moments moments;
};

/* Where the planes of `count` elements lie in one piece of memory, [lo | m | v]; the scales of a Q8 plane follow its
 * codes. Plane v is empty where the kind has none, scales where the format has none. */
struct ox_state_layout {
    uint64_t lo_bytes; /* the padding behind lo included */
    uint64_t m_offset, m_scale_offset;
    uint64_t v_offset, v_scale_offset;
    uint64_t bytes;
};
/* `count` is a multiple of 2048. lo_bytes and bytes are multiples of 4096. */
struct ox_state_layout ox_state_layout_of(struct ox_state_format format, uint64_t count);

/* The state of some consecutive elements. Zero bytes are zero moments in every format. */
struct ox_state_planes {
    void *lo;                    /* uint16_t; Q8: uint8_t */
    void *m, *v;                 /* float, bfloat16 or codes; v is NULL where the kind has none */
    uint8_t *m_scale, *v_scale; /* Q8: one per block; else NULL */
};
/* From element `begin` on, of a piece laid out for `count` elements; for Q8 a multiple of OX_Q8_BLOCK. */
struct ox_state_planes ox_state_planes_at(struct ox_state_format format, void *state, uint64_t count, uint64_t begin);

/* ---- the update ----------------------------------------------------------------------------------- */

/* `count` consecutive parameters; updated in place; pointers need no alignment beyond their type. hi_out may equal
 * hi. The state of a Q8 span begins with a block; where its end leaves a block part-filled, the rest of that block must
 * hold zeros and keeps them. `stream` and `first` name the parameters for the random roundings, whatever the division
 * into spans: the unit, and the place of the first element in it (2^32 elements on the roundings repeat). */
struct ox_update_span {
    const uint16_t *hi;
    uint16_t *hi_out;
    struct ox_state_planes state;
    const void *grad; /* of grad_dtype */
    enum ox_grad_dtype grad_dtype;
    bool decay;
    uint32_t stream;
    uint64_t first;
    uint64_t count;
};

/* Returns the count of elements whose new moments or master are not finite: a result, not an error. In BF16 and Q8 also
 * what reaches 2^127 counts, and a counted element is left with zero moments and a NaN for its master. */
uint64_t ox_update_run(enum ox_isa isa, struct ox_state_format format, const struct ox_update_span *span,
                       const struct ox_adam_hyper *hyper);
/* The same divided over the pool; same bits for every thread count. */
uint64_t ox_update_run_pool(struct ox_pool *pool, enum ox_isa isa, struct ox_state_format format,
                            const struct ox_update_span *span, const struct ox_adam_hyper *hyper);

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
