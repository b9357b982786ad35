/* Vector loops of the CPU operations: one table per instruction set, all compiled from one source (vector_body.inc).
 * Sums are taken in lanes, so results of two sets differ in the last bits; on one machine the choice is always the
 * same. */
#ifndef OX_KERNELS_CPU_VECTOR_H
#define OX_KERNELS_CPU_VECTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One row of a normalisation. `mean` is 0 for the root-mean-square norm. */
struct ox_vector_norm {
    float *out; /* may alias any input */
    const float *in;
    const float *gain;
    const float *bias, *residual; /* or NULL */
    float mean, rstd, gain_offset;
};

/* The gradient of one row in two steps: first the sums (which also add to dgain and dbias), then din. */
struct ox_vector_norm_back {
    float *din;            /* may alias dout or residual */
    const float *residual; /* or NULL */
    float *dgain;
    float *dbias; /* or NULL */
    const float *dout, *in, *gain;
    float mean, rstd, gain_offset;
    float sum_g;  /* sum of dout * gain, set by the first step */
    float sum_gx; /* sum of dout * gain * normalised input, likewise */
};

struct ox_vector_rope {
    float *qk; /* heads * head_dim */
    const float *cos_row, *sin_row;
    uint32_t heads, head_dim, rotary_dim;
    float sign; /* -1 rotates back */
    bool neighbours; /* pairs (2i, 2i + 1) */
};

/* The longest vector of any table, in floats. */
enum { OX_VECTOR_STEP = 16 };

/* A small GEMM: c (rows, cols) = a (rows, depth) * b (depth, cols), or c plus that. Each sum is taken over depth in
 * order, before it is added to c; or c is where the sum begins, so that a sum may be taken in parts, cut anywhere. */
struct ox_vector_product {
    float *c;
    const float *a; /* element (row, k) is a[row * a_row + k * a_step] */
    const float *b; /* rows are read in whole steps; values beyond cols may be any */
    size_t a_row, a_step, b_row, c_row;
    uint32_t rows, cols, depth;
    bool add;     /* c += */
    bool carries; /* the sum begins with c */
};

/* The scores of a block of queries, as (keys, queries): one query a lane. */
struct ox_vector_scores {
    float *score;
    uint32_t keys, queries; /* queries: in whole steps */
    /* The keys that each query sees, counted within the block, or NULL: all see all. `end` never falls and is not below
     * 0. Scores of whole steps of keys behind the end of all queries of a step are not touched. */
    const int32_t *begin, *end;
    float cap; /* scores s count as cap * tanh(s / cap); 0: as they are */
};

struct ox_vector_softmax {
    struct ox_vector_scores block;
    float *max, *sum; /* (queries); before the first block -inf and 0 */
    float *shrink;    /* (queries): set to what earlier results are to be multiplied by */
};

struct ox_vector_softmax_back {
    struct ox_vector_scores block;
    float *dscore;           /* (keys, queries) */
    const float *lse, *delta; /* (queries) */
};

/* A gated activation of a row, with g = min(gate, limit) and u = up clamped to [-limit, limit]: out = factor *
 * (u + shift) * g * sigmoid(alpha * g). Backward sets dgate and dup, which may be gate and up. */
struct ox_vector_gate {
    float *out;              /* forward */
    float *dgate, *dup;      /* backward */
    const float *dout;       /* backward */
    const float *gate, *up;
    float alpha, limit, shift, factor;
};

struct ox_vector {
    const char *name;
    /* lo may be NULL (base/planes.h). */
    void (*join)(float *out, const uint16_t *hi, const uint16_t *lo, size_t count);
    void (*bf16_pack)(uint16_t *out, const float *in, size_t count);
    void (*f16_round)(float *out, const float *in, size_t count); /* to the nearest half (base/planes.h), as floats */
    /* target may alias a or b. */
    void (*add)(float *target, const float *a, const float *b, size_t count);
    void (*scale)(float *inout, float factor, size_t count);
    void (*cap)(float *inout, float scale, float cap, size_t count); /* inout = cap * tanh(scale * inout / cap) */
    void (*cap_back)(float *dinout, const float *capped, float cap, size_t count); /* *= 1 - (capped / cap)^2 */
    void (*add_scaled)(float *inout, const float *in, float factor, size_t count); /* inout += in * factor */
    float (*max)(const float *in, size_t count); /* largest value; NaNs are skipped; -inf if there is none */
    float (*sum)(const float *in, size_t count);
    float (*dot)(const float *a, const float *b, size_t count);
    float (*square_sum)(const float *in, float mean, size_t count); /* sum of (in - mean)^2 */
    /* sum of exp(in - shift), to about 1e-7 for any count */
    double (*exp_sum)(const float *in, float shift, size_t count);
    /* inout = exp(inout - shift); returns the sum. */
    float (*exp_row)(float *inout, float shift, size_t count);
    /* inout = exp(inout - shift) * factor */
    void (*exp_scaled)(float *inout, float shift, float factor, size_t count);
    void (*product)(const struct ox_vector_product *product);
    /* Turns scores into exponentials against the running maximum; those of keys that a query does not see into 0. */
    void (*softmax)(const struct ox_vector_softmax *part);
    /* Turns scores into probabilities: prob = exp(score - lse), dscore = prob * (dscore - delta); both 0 for keys that
     * a query does not see. */
    void (*softmax_back)(const struct ox_vector_softmax_back *part);
    void (*norm)(const struct ox_vector_norm *row, size_t count);
    void (*norm_back_sums)(struct ox_vector_norm_back *row, size_t count);
    void (*norm_back)(const struct ox_vector_norm_back *row, int centred, size_t count);
    void (*rope)(const struct ox_vector_rope *row);
    void (*swiglu)(float *out, const float *gate, const float *up, size_t count);
    void (*geglu)(float *out, const float *gate, const float *up, size_t count);
    /* dgate and dup may be gate and up. */
    void (*swiglu_back)(float *const dgate_dup[2], const float *dout, const float *gate, const float *up,
                        size_t count);
    void (*geglu_back)(float *const dgate_dup[2], const float *dout, const float *gate, const float *up,
                       size_t count);
    void (*gated)(const struct ox_vector_gate *row, size_t count);
    /* Returns the sum of dout times what forward gives with a factor of 1. */
    float (*gated_back)(const struct ox_vector_gate *row, size_t count);
    void (*gelu)(float *out, const float *in, size_t count);
    void (*gelu_back)(float *din, const float *dout, const float *in, size_t count);
};

extern const struct ox_vector ox_vector_scalar;
#if defined(__x86_64__)
extern const struct ox_vector ox_vector_avx2;
extern const struct ox_vector ox_vector_avx512;
#endif

/* The widest table that this processor can run. */
const struct ox_vector *ox_vector_pick(void);

/* Lists all tables that this processor can run, at most OX_VECTOR_MAX, for tests; returns their number. */
enum { OX_VECTOR_MAX = 3 };
uint32_t ox_vector_list(const struct ox_vector *out[OX_VECTOR_MAX]);

#endif
