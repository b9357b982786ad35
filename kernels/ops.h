/* The operations of a transformer, one argument struct each. An operation is queued on a lane of its device: its
 * arguments are copied, and what they point to stays untouched until the lane has passed it. All tensors are row-major;
 * `rows` are the tokens of one micro-batch, batch * seq, sequence by sequence.
 *
 * Tensors given as void have the operation's type `real`: activations, weights as compute uses them, and gradients that
 * flow backward. Sums are taken in float32 for every type; gradients of weights, statistics of rows, angles and logits
 * are float32. The CPU device computes in OX_REAL_F32 only.
 *
 * Same bits: an operation's result depends on its inputs and its shapes, never on the device's threads, on addresses or
 * on what else runs. Gradients of weights are added to (`+=`), in call order. An operation that `begins` their sums
 * sets them, whatever was there, to the bits that adding to zeros gives; a GEMM may leave -0 where that gives 0. */
#ifndef OX_KERNELS_OPS_H
#define OX_KERNELS_OPS_H

#include "base/optim_format.h"
#include "base/planes.h"
#include "kernels/layout.h"
#include "kernels/ops_moe.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ox_norm_kind { OX_NORM_RMS, OX_NORM_LAYER };
enum ox_activation { OX_ACTIVATION_SWIGLU, OX_ACTIVATION_GELU_TANH, OX_ACTIVATION_GEGLU_TANH };
/* Whether it multiplies by a gate, so that its input is twice as wide as its output. */
static inline bool ox_activation_is_gated(enum ox_activation kind) {
    return kind != OX_ACTIVATION_GELU_TANH;
}
struct ox_op_zero {
    void *target;
    uint64_t bytes;
};

/* Makes weights for compute from their planes (base/planes.h): with lo the exact fp32 master, with lo == NULL the
 * bfloat16 weight widened; or what lies in place of hi in another `format` (base/optim_format.h). Each is rounded to
 * `real`. */
struct ox_op_planes_join {
    void *out; /* (count) */
    const uint16_t *hi;
    const uint16_t *lo;
    uint64_t count;
    enum ox_real real;
    enum ox_unit_format format; /* of FP16 and Q8 lo is NULL, and of Q8 `count` a multiple of OX_GROUP_ELEMS */
    bool to_hi; /* numbers of Q8 are rounded as ox_plane_hi rounds, for compute that reads no more than hi of others */
};

/* target = [a +] scale * b, elementwise; may be a, or, where nothing is scaled or added, b. */
struct ox_op_add {
    void *target;
    const void *a, *b; /* a may be NULL */
    uint64_t count;
    float scale; /* 0: none */
    enum ox_real real;
};

/* Magnitudes of adapters (DoRA, Liu et al., arXiv 2402.09353), as PEFT computes them. norm[o] = the length of row o of
 * W + scale * B A, which has no gradient. */
struct ox_op_dora_norm {
    float *norm;        /* (out_count) */
    const void *weight; /* (out_count, in_count) or its transpose */
    const void *a, *b;  /* (r, in_count), (out_count, r) */
    uint32_t in_count, out_count, r;
    float scale;
    enum ox_weight_layout layout;
    enum ox_real real;
};
/* out = (in - bias) * magnitude / norm + bias, of `cols` elements of rows of `stride`. */
struct ox_op_dora_forward {
    void *out;
    const void *in;
    const float *norm;
    const void *magnitude, *bias; /* (cols); bias may be NULL */
    uint32_t rows, cols, stride;
    enum ox_real real;
};
/* din = dout * magnitude / norm; dmagnitude += sum over rows of dout * (in - bias) / norm. */
struct ox_op_dora_backward {
    void *din; /* may be dout */
    float *dmagnitude; /* (cols), added to; or NULL: not wanted, and `in` is not read */
    const void *dout, *in;
    const float *norm;
    const void *magnitude, *bias;
    uint32_t rows, cols, stride;
    enum ox_real real;
    bool begins; /* dmagnitude is set */
};

/* out = [residual +] (in [+ bias]), summed in float32 and rounded to `real`: ends a sum over groups of features. */
struct ox_op_settle {
    void *out;            /* (rows, cols); may be residual */
    const float *in;      /* (rows, cols) */
    const void *bias;     /* (cols) or NULL */
    const void *residual; /* (rows, cols) or NULL */
    uint32_t rows, cols;
    enum ox_real real;
};

/* Rounds float32 to bfloat16, ties to even, for gradients that leave in 16 bits. Must not alias. */
struct ox_op_bf16_pack {
    uint16_t *out;
    const float *in;
    uint64_t count;
};

/* To blocks of 64 numbers with a scale each, and back (base/planes.h). Must not alias; `blocks` begin at a multiple of
 * 4 bytes. */
struct ox_op_block8_pack {
    void *blocks; /* ox_exchange_bytes(OX_EXCHANGE_Q8, count); bytes behind the last number are zero */
    const float *in;
    uint64_t count;
};
struct ox_op_block8_unpack {
    float *out;
    const void *blocks;
    uint64_t count;
};

/* Tokens of a table that has a part of the vocabulary: `count` of them from `first` on; count 0: it has all. */
struct ox_token_range {
    uint32_t first, count;
};
OX_ON_DEVICE_TOO static inline bool ox_token_range_has(struct ox_token_range range, int32_t id) {
    return range.count == 0 || (uint32_t)id - range.first < range.count;
}

/* out[r] = table[ids[r]] + (positions table)[positions[r]]. The tables are planes; lo may be NULL. Rows of other tokens
 * than those of `tokens` stay as they are. A table may lie in columns: then a row's elements are `column` elements
 * apart, and rows are neighbours; such a table has no positions. */
struct ox_op_embed_forward {
    void *out;                        /* (rows, hidden) */
    const uint16_t *table_hi, *table_lo; /* (vocab, hidden), or those of `tokens` */
    const uint16_t *pos_hi, *pos_lo;  /* (contexts, hidden), or NULL: no learned positions */
    const int32_t *ids;               /* (rows), each in [0, vocab) */
    const int32_t *positions;         /* (rows) */
    struct ox_token_range tokens;
    uint32_t rows, hidden;
    uint32_t column; /* 0: a row's elements lie together */
    enum ox_real real;
};

/* Gradients of weights may be NULL, here and in the operations below, where the weights are not trained.
 * dtable[ids[r]] += dout[r] and dpos[positions[r]] += dout[r]; each element adds its rows in ascending order. */
struct ox_op_embed_backward {
    float *dtable; /* (vocab, hidden), or those of `tokens`; or NULL */
    float *dpos;   /* (contexts, hidden) or NULL: of all rows */
    const void *dout;
    const int32_t *ids, *positions;
    struct ox_token_range tokens;
    uint32_t rows, hidden;
    uint32_t column; /* of dtable, as above */
    enum ox_real real;
};

/* rms: out = in * rstd * gain, rstd = 1/sqrt(mean(in^2) + eps)            (Zhang & Sennrich 2019)
 * layer: out = (in - mean) * rstd * gain + bias                           (Ba et al. 2016)
 * With a residual it is added. The stored gain is the true one less `gain_offset`, in every norm of this file.
 * `in_stride` and `out_stride` count elements between rows; 0 means cols. */
struct ox_op_norm_forward {
    void *out;
    float *mean; /* (rows), layer only, else NULL */
    float *rstd; /* (rows) */
    const void *in;
    const void *gain; /* (cols) */
    const void *bias; /* (cols) or NULL */
    const void *residual; /* (rows, cols) without a stride, or NULL; `out` may be the same */
    uint32_t rows, cols;
    uint32_t in_stride, out_stride;
    float eps, gain_offset;
    enum ox_norm_kind kind;
    enum ox_real real;
};

/* din = [residual +] d(norm)/d(in) * dout; dgain += ..., dbias += ... . din may alias dout or residual. Sums over rows
 * have a fixed order. */
struct ox_op_norm_backward {
    void *din;            /* (rows, cols) */
    const void *residual; /* (rows, cols) or NULL */
    float *dgain;         /* (cols) or NULL, added to */
    float *dbias;         /* (cols) or NULL, added to */
    const void *dout, *in, *gain;
    const float *mean, *rstd;
    void *scratch; /* ox_ops_norm_scratch_bytes(cols) */
    uint32_t rows, cols;
    float gain_offset;
    enum ox_norm_kind kind;
    enum ox_real real;
    bool begins; /* dgain and dbias are set */
};

/* Root-mean-square norm of each of `heads` consecutive heads of every row, in place, all with the same gain: for
 * queries and keys before the rotation (the idea: Henry et al., arXiv 2010.04245). One head may be as wide as all. */
struct ox_op_head_norm_forward {
    void *inout;      /* (rows, row_stride): heads * head_dim elements are touched per row */
    void *saved;      /* (rows, heads, head_dim): the input, kept for backward; or NULL */
    float *rstd;      /* (rows, heads) */
    const void *gain; /* (head_dim) */
    uint32_t rows, row_stride, heads, head_dim;
    float eps, gain_offset;
    enum ox_real real;
};

/* Turns, in place, the gradient of the normed heads into that of the heads before; dgain += ... in a fixed order. */
struct ox_op_head_norm_backward {
    void *dinout; /* (rows, row_stride), as inout */
    float *dgain; /* (head_dim) or NULL, added to */
    const void *saved, *gain;
    const float *rstd;
    void *scratch; /* ox_ops_norm_scratch_bytes(head_dim) */
    uint32_t rows, row_stride, heads, head_dim;
    float gain_offset;
    enum ox_real real;
    bool begins; /* dgain is set */
};

/* out = [residual +] scale * in * W^T [+ bias]; out may alias residual. */
struct ox_op_linear_forward {
    void *out;      /* (rows, out_count) */
    const void *in; /* (rows, in_count) */
    const void *weight;
    const void *bias;     /* (out_count) or NULL */
    const void *residual; /* (rows, out_count) or NULL */
    uint32_t rows, in_count, out_count;
    /* Elements from one row of in, and of out and residual, to the next; 0: its count. */
    uint32_t in_stride, out_stride;
    float scale; /* 0: none */
    enum ox_weight_layout layout;
    enum ox_real real;
    bool wide; /* out is float32, whatever `real` is; then there is no bias and no residual */
};

/* din = scale * dout * W (din == NULL: not wanted); dweight += scale * dout^T * in; dbias += column sums of dout, which
 * then has no stride. */
struct ox_op_linear_backward {
    void *din;      /* (rows, in_count) or NULL */
    float *dweight; /* as weight, or NULL; added to */
    float *dbias;   /* (out_count) or NULL, added to */
    const void *dout, *in, *weight;
    const void *residual; /* (rows, in_count) or NULL: added to din, which may be the same */
    uint32_t rows, in_count, out_count;
    uint32_t in_stride, out_stride; /* of in, din and residual, and of dout; 0: the count */
    float scale;                    /* 0: none */
    enum ox_weight_layout layout;
    enum ox_real real;
    bool begins; /* dweight and dbias are set */
    bool wide;   /* din is float32, whatever `real` is; then there is no residual */
};

/* Rotary embedding in place on `heads` consecutive heads of every row: the pair (i, i + d/2), or (2i, 2i + 1) where
 * pairs are neighbours, of the first d = rotary_dim elements of each head is rotated by angle[positions[r]][i];
 * `inverse` rotates back: the backward pass. Su et al., arXiv 2104.09864, which has neighbours; halves are the form of
 * Hugging Face. */
struct ox_op_rope {
    void *qk;                /* (rows, row_stride): heads * head_dim elements are touched per row */
    const float *cos_table;  /* (contexts, rotary_dim / 2) */
    const float *sin_table;
    const int32_t *positions; /* (rows) */
    uint32_t rows, row_stride, heads, head_dim, rotary_dim;
    bool inverse, neighbours;
    enum ox_real real;
};

/* swiglu: in = (rows, 2 * width) as [gate | up], out = silu(gate) * up     (Shazeer, 2002.05202)
 * geglu:  the same with gelu(gate), tanh form
 * gelu:   in = (rows, width), out = gelu(in), tanh form ("gelu_new") */
struct ox_op_act_forward {
    void *out;
    const void *in;
    uint32_t rows, width;
    enum ox_activation kind;
    enum ox_real real;
};
/* din may alias in. */
struct ox_op_act_backward {
    void *din;
    const void *dout, *in;
    uint32_t rows, width;
    enum ox_activation kind;
    enum ox_real real;
};

/* Causal attention with grouped query heads: query head h reads key/value head h / (heads/kv_heads). qkv holds q | k |
 * v in each row. No seq x seq matrix is ever in memory: keys are walked in blocks with a running maximum and sum
 * (Milakov & Gimelshein 1805.02867; Dao et al. 2205.14135). Blocks that lie wholly before the window or the document of
 * their queries are skipped.
 *
 * `positions` tells where the documents of a sequence begin: a position is 0 at the beginning of a document, else one
 * more than the one before, and query i sees no key before i - positions[i]. A sequence begins with 0. The caller
 * ensures this; it is not checked. With NULL a sequence is one document. Our own kernels then give the same bits as for
 * positions of 0..seq-1; a library in their place knows no documents. */
struct ox_attention_shape {
    uint32_t batch, seq, heads, kv_heads, head_dim;
    uint32_t window; /* query i sees the keys j with i - window < j <= i; 0: all j <= i */
    float scale;     /* factor of the scores: 1/sqrt(head_dim), where the model names no other */
    float cap;       /* scores s become cap * tanh(s / cap) before those of keys are hidden; 0: they stay */
};
/* Queries that are a part of their sequences, whose keys and values are those of other rows too. A sequence is cut into
 * `chunks` chunks of shape.seq rows, and chunk t lies behind chunk `chunks` - 1 - t, for t from `chunks` / 2 on: so two
 * chunks in a row have as many keys to see as any other two. Tensor cores of a GPU take chunks of 128, 256 ... rows. */
struct ox_attention_part {
    const void *kv;  /* k | v in each row: (chunks, batch, shape.seq) rows, those of a sequence in this order of chunks;
                        NULL: queries are whole sequences, and qkv has what they see */
    float *dkv;      /* backward: its gradient, which is set, or added to; that of k and v in dqkv is 0 */
    bool adds;
    uint32_t chunk, chunks; /* which chunk the queries are, of how many, an even number */
    /* 1 + the number of the one chunk of keys that they see here: kv and dkv are (batch, shape.seq) rows of it. What
     * queries see is then done chunk by chunk, the first of which has a key for each of them; the sums of a softmax go
     * on where they were (Liu et al., arXiv 2310.01889). 0: all chunks. */
    uint32_t key_chunk;
    bool resumes; /* out and lse are those of the chunks before; backward: dq is added to */
};
struct ox_op_attention_forward {
    void *out;       /* (rows, heads * head_dim) */
    float *lse;      /* (batch, heads, seq): log of the sum of exponentials, kept for backward */
    const void *qkv; /* (rows, (heads + 2 * kv_heads) * head_dim) */
    const int32_t *positions; /* (rows) or NULL */
    void *scratch;   /* ox_ops_attention_scratch_bytes(), of a part those of whole sequences; with one chunk of keys
                        ox_ops_attention_chunk_scratch_bytes() too, whichever is more */
    struct ox_attention_shape shape;
    struct ox_attention_part part;
    enum ox_real real;
};
struct ox_op_attention_backward {
    void *dqkv; /* as qkv; overwritten */
    const void *dout, *qkv, *out;
    const float *lse;
    const int32_t *positions; /* as in forward */
    void *scratch;
    struct ox_attention_shape shape;
    struct ox_attention_part part;
    enum ox_real real;
};

/* Causal attention for generating text, of new rows of one sequence: row i has the position cached + i and sees the
 * keys j <= cached + i, within the window as above. It first appends the rows' own keys and values to the cache, which
 * then holds rows [0, cached + rows). How a text is cut into calls changes rounding only. */
struct ox_op_attention_cached {
    void *out;           /* (rows, heads * head_dim) */
    float *lse;          /* (heads, rows): log of the sum of exponentials, for sinks; or NULL */
    const void *qkv;     /* (rows, (heads + 2 * kv_heads) * head_dim): q | k | v of each row, rotated */
    void *keys, *values; /* (cached + rows or more, kv_heads * head_dim) */
    void *scratch;       /* ox_ops_attention_cached_scratch_bytes() */
    uint32_t rows, cached, heads, kv_heads, head_dim;
    uint32_t window; /* 0: none */
    float scale, cap; /* as above */
    enum ox_real real;
};

/* The head: logits = in * W^T, cross-entropy against targets, and its gradients, fused, walked in
 * tiles of the vocabulary, so that the logits never exist whole. They are scaled and capped as struct ox_op_logits
 * says.
 *   loss_sum[0] += sum over counted rows of (lse(logits) - logits[target])
 *   din          = loss_scale * d(sum)/d(in)                     (din == NULL: not wanted)
 *   dweight     += loss_scale * d(sum)/d(W)                      (both NULL: the loss alone)
 * A target of -1 is not counted and has no gradient.
 *
 * With smoothing e and z-loss z a counted row's loss is, by its logits x and their log-sum-exp,
 *   (1 - e) (lse - x[target]) + e (lse - mean(x)) + z lse^2
 * (Szegedy et al., arXiv 1512.00567; Chowdhery et al., arXiv 2204.02311).
 *
 * With low.r, W has a product of low rank beside it: low.scale * low.in * low.weight^T is added to the logits before
 * they are scaled (Hu et al., arXiv 2106.09685), and low.din is set, low.dweight added to, as those of W. Not in parts.
 *
 * A table that has a part of the vocabulary, `tokens`, does this in three operations. STATISTICS leaves those of its
 * logits; struct ox_op_head_merge makes of those of all parts the statistics of whole rows, and the losses; GRADIENTS
 * finds these and makes the gradients of its part, din in float32. */
enum ox_head_part { OX_HEAD_WHOLE, OX_HEAD_STATISTICS, OX_HEAD_GRADIENTS };
/* What is known of each row's logits: the largest, the sum of exponentials relative to it, the target's logit, 0 where
 * another part has it, and with smoothing the sum of all. */
struct ox_head_rows {
    double *sum, *total; /* (rows); total: or NULL */
    float *max, *target; /* (rows) */
};
struct ox_head_low {
    const void *in;     /* (rows, r) */
    const void *weight; /* (vocab, r), of the type of `in` */
    void *din;          /* (rows, r) or NULL */
    float *dweight;     /* (vocab, r) or NULL */
    uint32_t r;         /* 0: none */
    float scale;        /* 0: none */
};
struct ox_op_head {
    double *loss_sum; /* (1), added to, rows in ascending order */
    float *row_nll;   /* (rows) or NULL: each row's loss, 0 for rows that are not counted */
    double *parts;    /* (2) or NULL, added to likewise: the sums of lse - x[target], and of z lse^2 */
    double *row_parts; /* (2, rows): room that parts and smoothing need; else NULL */
    const float *row_weights; /* (rows): factors of the rows' gradients; NULL: 1 */
    void *din;        /* (rows, hidden) or NULL */
    float *dweight;   /* (vocab, hidden) or NULL */
    const void *in;   /* (rows, hidden) */
    const uint16_t *weight_hi, *weight_lo; /* (vocab, hidden) planes; lo may be NULL, and must be with bfloat16 */
    struct ox_head_low low;
    const int32_t *targets;                /* (rows) */
    float *logits; /* (rows, vocab) or NULL; for evaluation and tests only */
    void *scratch; /* ox_ops_head_scratch_bytes() */
    uint32_t rows, hidden, vocab;
    float loss_scale;
    float logit_scale, logit_cap; /* 0: none */
    float smoothing, z_loss;
    enum ox_real real;
    bool begins; /* dweight is set */
    /* A part: then `vocab` is how many tokens the table has of `vocab_whole`, from token `first` on; logits keep the
     * rows of the whole. Losses are those of the merge. */
    enum ox_head_part part;
    uint32_t first, vocab_whole;
    struct ox_head_rows rows_of; /* STATISTICS: out; GRADIENTS: of whole rows */
};

/* Makes the statistics of whole rows of those of parts of the vocabulary, in their order, and the losses of the rows
 * (struct ox_op_head). */
enum { OX_HEAD_PARTS_MAX = 8 };
struct ox_op_head_merge {
    double *loss_sum; /* as there, and the four below */
    float *row_nll;
    double *parts;
    double *row_losses; /* (3, rows): room */
    const int32_t *targets;
    struct ox_head_rows all;  /* out; may be that of the first part */
    struct ox_head_rows part; /* (part_count, rows) */
    uint32_t part_count, rows, vocab_whole;
    float smoothing, z_loss;
};

/* Losses of pairs of sequences: sequence 2 k of a micro-batch is the chosen one, 2 k + 1 the rejected one. With lp the
 * sum of log-probabilities of a sequence's counted rows, ref that of the reference, d = (lp_c - ref_c) - (lp_r - ref_r)
 * and e = smoothing, a pair's loss is
 *   SIGMOID  -(1 - e) log sigmoid(beta d) - e log sigmoid(-beta d)    (Rafailov et al., arXiv 2305.18290)
 *   ROBUST   (-(1 - e) log sigmoid(beta d) + e log sigmoid(-beta d)) / (1 - 2 e)      (arXiv 2403.00409)
 *   HINGE    max(0, 1 - beta d)                                                       (arXiv 2309.06657)
 *   IPO      (d' - 1 / (2 beta))^2, where d' has means in place of the sums           (arXiv 2310.12036)
 * plus `sft` times the mean of -log p over all counted rows of chosen sequences. A pair of which a sequence has no
 * counted row counts as nothing. A micro-batch has at most OX_PAIR_SEQUENCES_MAX sequences. */
enum { OX_PAIR_SEQUENCES_MAX = 256 };
enum ox_pair_loss { OX_PAIR_SIGMOID, OX_PAIR_IPO, OX_PAIR_ROBUST, OX_PAIR_HINGE };
/* Sums over the pairs of a micro-batch. */
enum ox_pair_value {
    OX_PAIR_LOSS, OX_PAIR_REWARD_CHOSEN, OX_PAIR_REWARD_REJECTED, /* beta (lp - ref) */
    OX_PAIR_RIGHT, /* pairs with the larger reward of the chosen one */
    OX_PAIR_LOGP_CHOSEN, OX_PAIR_LOGP_REJECTED, OX_PAIR_SFT, OX_PAIR_VALUES
};
struct ox_op_pairs {
    double *values;          /* (OX_PAIR_VALUES + batch), set; behind the sums lp of each sequence */
    float *row_weights;      /* (batch, seq), set: what a row's -log p counts in the loss; or NULL */
    const float *row_nll;    /* (batch, seq): -log p */
    const int32_t *targets;  /* (batch, seq): -1 is not counted */
    const double *reference; /* (batch); NULL: the reference is the model itself */
    uint32_t batch, seq;     /* batch is even */
    enum ox_pair_loss loss;
    float beta, smoothing, sft;
};

/* inout += magnitude * u, with u uniform in [-1, 1): of element i word i % 4 of block i / 4 of a stream
 * (base/prng/philox.h). */
struct ox_op_noise {
    void *inout; /* (count) */
    uint64_t count, seed, stream;
    float magnitude;
    enum ox_real real;
};

/* out = [residual +] in with a share `rate` of its elements zero and the others divided by 1 - rate. Element i is zero
 * where the upper 24 bits of word i % 4 of block i / 4 of a stream (base/prng/philox.h) are below rate * 2^24; rate 0
 * copies. out may be residual. */
struct ox_op_drop {
    void *out;            /* (count) */
    const void *in;       /* (count) */
    const void *residual; /* (count) or NULL */
    uint64_t count, seed, stream;
    float rate; /* below 1 */
    enum ox_real real;
};

/* What comes between the last product and the probabilities, in place: x = cap * tanh(scale * x / cap), or scale * x
 * where nothing is capped. */
struct ox_op_logits {
    float *logits;
    uint64_t count;
    float scale, cap; /* 0: none */
};

/* Tables for ox_op_rope: cosines and sines of angle(p, i) = p * inv_freq[i] times `scale`, computed in double. */
struct ox_op_rope_table {
    float *cos_table, *sin_table; /* (contexts, half_dim) */
    const double *inv_freq;       /* (half_dim), host memory */
    uint32_t contexts, half_dim;
    double scale;
};

/* Updates elements [first, first + count) of a unit whose weights, state and gradient all lie on the device, in place
 * and with the bits of cpu_optim/optim.h. `isa` is a number of that header's enum ox_isa, for the CPU device alone. */
struct ox_op_adam {
    uint16_t *hi;        /* (elem_count) */
    void *state;         /* elem_count elements in one piece, in the layout of ox_state_layout_of: lo | m | v */
    const void *grad;    /* (elem_count), bfloat16 or float */
    uint64_t *nonfinite; /* (1), added to: elements whose moments or master became inf or nan */
    uint64_t elem_count, first, count;
    uint64_t origin; /* what names element 0 for stochastic rounding, as `stream` does the unit */
    struct ox_state_format format;
    uint32_t isa;
    uint32_t stream; /* names the unit for stochastic rounding, as origin + first does the first element */
    bool grad_bf16, decay;
    struct ox_optim_hyper hyper;
};

/* Computes partial sums of squares of a gradient in double, one per OX_GROUP_ELEMS elements, in the order and with the
 * bits of ox_sumsq_partials (cpu_optim/norm.h). */
struct ox_op_square_sums {
    double *partials; /* (count / OX_GROUP_ELEMS, rounded up) */
    const void *grad; /* (count), bfloat16 or float */
    uint64_t count;
    bool grad_bf16;
};

/* Newton-Schulz iterations of a matrix (cpu_optim/muon.h), with the bits of ox_muon_iterate: of each
 * x = factors[0] x + (factors[1] g + factors[2] g g) x, with g = x x^T. */
struct ox_op_newton_schulz {
    float *inout;   /* (rows, cols), rows at most cols */
    float *scratch; /* rows * cols + 2 * rows * rows elements */
    uint32_t rows, cols, iterations;
    uint32_t isa; /* as in ox_op_adam */
    float factors[3];
};

/* ---- the operations, one row each ---- */

/* Groups of operations whose seconds are reported. */
enum ox_op_group {
    OX_OPS_MATMUL, OX_OPS_ATTENTION, OX_OPS_NORM, OX_OPS_ACT, OX_OPS_HEAD, OX_OPS_OTHER, OX_OPS_GROUP_COUNT
};

/* A row has a name, a group, the offset of the type in the argument struct, and a check of the arguments (in
 * kernels/ops.c) or NULL. The argument struct is struct ox_op_<name>, the functions are ox_cpu_<name> and
 * ox_cuda_<name>; if one of them is missing, the program does not build. */
/* Those of a mixture of experts (kernels/ops_moe.h). */
#define OX_OP_MOE_LIST(OP, device)                                                                         \
    OP(device, router_forward, OX_OPS_MATMUL, OX_OP_REAL(router_forward), check_router_forward)            \
    OP(device, router_backward, OX_OPS_MATMUL, OX_OP_REAL(router_backward), NULL)                          \
    OP(device, join_limbs, OX_OPS_OTHER, OX_OP_REAL(join_limbs), NULL)                                     \
    OP(device, limbs_shift, OX_OPS_OTHER, OX_OP_NO_REAL, check_limbs_shift)                                \
    OP(device, route_forward, OX_OPS_OTHER, OX_OP_NO_REAL, check_route_forward)                            \
    OP(device, route_load, OX_OPS_OTHER, OX_OP_NO_REAL, check_route_load)                                  \
    OP(device, route_pool, OX_OPS_OTHER, OX_OP_NO_REAL, NULL)                                              \
    OP(device, route_backward, OX_OPS_OTHER, OX_OP_NO_REAL, check_route_backward)                          \
    OP(device, route_sort, OX_OPS_OTHER, OX_OP_NO_REAL, check_route_sort)                                  \
    OP(device, rows_gather, OX_OPS_OTHER, OX_OP_REAL(rows_gather), NULL)                                   \
    OP(device, rows_combine, OX_OPS_OTHER, OX_OP_REAL(rows_combine), NULL)                                 \
    OP(device, combine_bias_backward, OX_OPS_OTHER, OX_OP_REAL(combine_bias_backward), NULL)               \
    OP(device, grouped_forward, OX_OPS_MATMUL, OX_OP_REAL(grouped_forward), check_grouped_forward)         \
    OP(device, grouped_backward, OX_OPS_MATMUL, OX_OP_REAL(grouped_backward), check_grouped_backward)      \
    OP(device, expert_act_forward, OX_OPS_ACT, OX_OP_REAL(expert_act_forward), NULL)                       \
    OP(device, expert_act_backward, OX_OPS_ACT, OX_OP_REAL(expert_act_backward), check_expert_act_backward) \
    OP(device, row_gate_forward, OX_OPS_ACT, OX_OP_REAL(row_gate_forward), NULL)                           \
    OP(device, row_gate_backward, OX_OPS_ACT, OX_OP_REAL(row_gate_backward), NULL)                         \
    OP(device, clamp_forward, OX_OPS_OTHER, OX_OP_REAL(clamp_forward), check_clamp_forward)                \
    OP(device, clamp_backward, OX_OPS_OTHER, OX_OP_REAL(clamp_backward), check_clamp_backward)             \
    OP(device, sinks_forward, OX_OPS_ATTENTION, OX_OP_REAL(sinks_forward), NULL)                           \
    OP(device, sinks_backward, OX_OPS_ATTENTION, OX_OP_REAL(sinks_backward), NULL)                         \
    OP(device, splice, OX_OPS_OTHER, OX_OP_REAL(splice), check_splice)                                     \
    OP(device, turn, OX_OPS_OTHER, OX_OP_REAL(turn), NULL)
#define OX_OP_MODEL_LIST(OP, device)                                                                   \
    OP(device, zero, OX_OPS_OTHER, OX_OP_NO_REAL, NULL)                                                \
    OP(device, planes_join, OX_OPS_OTHER, OX_OP_REAL(planes_join), NULL)                               \
    OP(device, add, OX_OPS_OTHER, OX_OP_REAL(add), check_add)                                          \
    OP(device, settle, OX_OPS_OTHER, OX_OP_REAL(settle), NULL)                                         \
    OP(device, bf16_pack, OX_OPS_OTHER, OX_OP_NO_REAL, NULL)                                           \
    OP(device, block8_pack, OX_OPS_OTHER, OX_OP_NO_REAL, NULL)                                             \
    OP(device, block8_unpack, OX_OPS_OTHER, OX_OP_NO_REAL, NULL)                                           \
    OP(device, embed_forward, OX_OPS_OTHER, OX_OP_REAL(embed_forward), check_embed_forward)            \
    OP(device, embed_backward, OX_OPS_OTHER, OX_OP_REAL(embed_backward), check_embed_backward)         \
    OP(device, norm_forward, OX_OPS_NORM, OX_OP_REAL(norm_forward), NULL)                              \
    OP(device, norm_backward, OX_OPS_NORM, OX_OP_REAL(norm_backward), NULL)                            \
    OP(device, head_norm_forward, OX_OPS_NORM, OX_OP_REAL(head_norm_forward), check_head_norm_forward) \
    OP(device, head_norm_backward, OX_OPS_NORM, OX_OP_REAL(head_norm_backward),                        \
       check_head_norm_backward)                                                                       \
    OP(device, linear_forward, OX_OPS_MATMUL, OX_OP_REAL(linear_forward), check_linear_forward)        \
    OP(device, linear_backward, OX_OPS_MATMUL, OX_OP_REAL(linear_backward), check_linear_backward)     \
    OP(device, rope, OX_OPS_OTHER, OX_OP_REAL(rope), check_rope)                                       \
    OP(device, rope_table, OX_OPS_OTHER, OX_OP_NO_REAL, NULL)                                          \
    OP(device, act_forward, OX_OPS_ACT, OX_OP_REAL(act_forward), NULL)                                 \
    OP(device, act_backward, OX_OPS_ACT, OX_OP_REAL(act_backward), NULL)                               \
    OP(device, attention_forward, OX_OPS_ATTENTION, OX_OP_REAL(attention_forward),                     \
       check_attention_forward)                                                                        \
    OP(device, attention_backward, OX_OPS_ATTENTION, OX_OP_REAL(attention_backward),                   \
       check_attention_backward)                                                                       \
    OP(device, attention_cached, OX_OPS_ATTENTION, OX_OP_REAL(attention_cached),                       \
       check_attention_cached)                                                                         \
    OP(device, head, OX_OPS_HEAD, OX_OP_REAL(head), check_head)                                        \
    OP(device, head_merge, OX_OPS_HEAD, OX_OP_NO_REAL, check_head_merge)                               \
    OP(device, logits, OX_OPS_HEAD, OX_OP_NO_REAL, NULL)                                               \
    OP(device, pairs, OX_OPS_HEAD, OX_OP_NO_REAL, check_pairs)                                         \
    OP(device, noise, OX_OPS_OTHER, OX_OP_REAL(noise), NULL)                                           \
    OP(device, drop, OX_OPS_OTHER, OX_OP_REAL(drop), NULL)                                             \
    OP(device, dora_norm, OX_OPS_OTHER, OX_OP_REAL(dora_norm), NULL)                                   \
    OP(device, dora_forward, OX_OPS_OTHER, OX_OP_REAL(dora_forward), NULL)                             \
    OP(device, dora_backward, OX_OPS_OTHER, OX_OP_REAL(dora_backward), NULL)                           \
    OX_OP_MOE_LIST(OP, device)
/* Operations of the optimizer. On the CPU they are those of cpu_optim, which this folder may not include; so
 * engine/step/update/ops_optim.h puts them into the table. */
#define OX_OP_OPTIM_LIST(OP, device)                                                                   \
    OP(device, adam, OX_OPS_OTHER, OX_OP_NO_REAL, check_adam)                                          \
    OP(device, square_sums, OX_OPS_OTHER, OX_OP_NO_REAL, NULL)                                         \
    OP(device, newton_schulz, OX_OPS_MATMUL, OX_OP_NO_REAL, check_newton_schulz)
#define OX_OP_LIST(OP, device) OX_OP_MODEL_LIST(OP, device) OX_OP_OPTIM_LIST(OP, device)

/* What follows from a row: its number, its entry in ox_op_rows, the declaration of a device's function, and that
 * function's entry in the device's table. */
#define OX_OP_NUMBER(device, name, group, real_offset, check) OX_OP_##name,
#define OX_OP_ROW(device, name, group, real_offset, check) \
    {#name, sizeof(struct ox_op_##name), group, real_offset, check},
#define OX_OP_DECLARATION(device, name, group, real_offset, check) ox_##device##_fn ox_##device##_##name;
#define OX_OP_FUNCTION(device, name, group, real_offset, check) (ox_op_fn *)ox_##device##_##name,
#define OX_OP_REAL(name) offsetof(struct ox_op_##name, real)
#define OX_OP_NO_REAL SIZE_MAX

enum ox_op { OX_OP_LIST(OX_OP_NUMBER, any) OX_OP_COUNT };

struct ox_op_row {
    const char *name;
    size_t args_bytes;
    enum ox_op_group group;
    size_t real_offset;              /* bytes before the member `real` in the argument struct, or OX_OP_NO_REAL */
    void (*check)(const void *args); /* asserts what the operation requires of its arguments; or NULL */
};
extern const struct ox_op_row ox_op_rows[OX_OP_COUNT];

/* A function of a device, cast from the device's own type. */
typedef void ox_op_fn(void);

/* The operations of one device. Once the engine has opened its device, no member is NULL. */
struct ox_ops {
    const char *name;
    /* Queues `function` with a copy of its arguments. Only ox_op_queue calls it. */
    enum ox_status (*queue)(struct ox_lane *lane, const struct ox_op_row *row, ox_op_fn *function, const void *args);
    /* Sets *out to a mark that is done when all operations queued so far are done. */
    enum ox_status (*mark)(struct ox_lane *, struct ox_mark *out);
    ox_op_fn *functions[OX_OP_COUNT];
};

/* Checks and queues one operation; `args` is its argument struct. Use OX_QUEUE, which checks the type. */
OX_MUST enum ox_status ox_op_queue(const struct ox_ops *ops, struct ox_lane *lane, enum ox_op op, const void *args);
/* Queues the operation `op` with a pointer to its argument struct: OX_QUEUE(ops, lane, add, &args). */
#define OX_QUEUE(ops, lane, op, ...) \
    ox_op_queue(ops, lane, OX_OP_##op, (const struct ox_op_##op *){__VA_ARGS__})

/* A list of operations that keeps its first failure and queues nothing after it, so that code reads as the list.
 * `status` begins as OX_OK. */
struct ox_run {
    const struct ox_ops *ops;
    struct ox_lane *lane;
    enum ox_status status;
};
/* Queues the operation `op`; the members of its argument struct follow: OX_RUN(run, add, .target = x, ...). */
#define OX_RUN(run, op, ...) \
    OX_THEN((run)->status, OX_QUEUE((run)->ops, (run)->lane, op, &(struct ox_op_##op){__VA_ARGS__}))

/* Fills the table for lanes of the CPU device, except for the optimizer's operations: they stay NULL. */
void ox_ops_init_cpu(struct ox_ops *ops);

/* What an operation of the CPU device computes with, and the type of its function. */
struct ox_cpu;
struct ox_pool;
typedef void ox_cpu_fn(const struct ox_cpu *cpu, const void *args);
/* The device's threads, for functions that other folders put into the table. */
struct ox_pool *ox_cpu_pool(const struct ox_cpu *cpu);

/* Bytes of scratch that an operation needs, from shapes and from what computes; no device is needed. */
uint64_t ox_ops_norm_scratch_bytes(const struct ox_compute *compute, uint32_t cols);
uint64_t ox_ops_attention_scratch_bytes(const struct ox_compute *compute, const struct ox_attention_shape *shape);
uint64_t ox_ops_attention_chunk_scratch_bytes(const struct ox_compute *compute, const struct ox_attention_shape *shape);
/* Depends on rows, cached, heads and head_dim, and never falls when rows or cached grow: the size for the largest call
 * serves all calls of a run. */
uint64_t ox_ops_attention_cached_scratch_bytes(const struct ox_compute *compute,
                                               const struct ox_op_attention_cached *op);
uint64_t ox_ops_head_scratch_bytes(const struct ox_compute *compute, uint32_t rows, uint32_t hidden, uint32_t vocab);

/* For predictions: the pairs of a query and a key whose score is computed, with those that a block computes and hides;
 * and whether the head computes its logits once for loss and gradients, or twice. */
uint64_t ox_ops_attention_pairs(const struct ox_compute *compute, const struct ox_attention_shape *shape);
bool ox_ops_head_holds_logits(const struct ox_compute *compute, uint32_t rows, uint32_t vocab);

/* Seconds per group of operations since the last call, for reports; CPU device only. */
struct ox_ops_seconds {
    double seconds[OX_OPS_GROUP_COUNT];
};
void ox_ops_cpu_take_seconds(struct ox_device *device, struct ox_ops_seconds *out);

#ifdef __cplusplus
}
#endif
#endif
