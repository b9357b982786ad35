/* The operations of a mixture of experts, and four that such families add to attention. They are rows of the table of
 * kernels/ops.h, whose conventions hold here too.
 *
 * A row has `chosen` experts, its *slots*, in ascending order of expert; so `pairs` = rows * chosen pairs of row and
 * expert exist, whatever the router chooses, and every size is known beforehand. Pair number row * chosen + slot. The
 * pairs are *sorted* by (expert, row): those of expert e are the sorted rows [offsets[e], offsets[e + 1]). Offsets and
 * order lie on the device and are read there; nothing waits for the host. Tensors with a row for every pair are in
 * sorted order unless said otherwise.
 *
 * Same bits: what a pair makes depends on its own row and its expert's weights; sums over the pairs of an expert are in
 * ascending order of row, sums over the slots of a row in ascending order of slot. Neither other experts, nor how they
 * are grouped, nor threads or tiles change a bit. (A CPU that rounds GEMMs to bf16 leaves them to a library, per
 * expert: there how many rows the expert has may change bits, never what other experts have.) */
#ifndef OX_KERNELS_OPS_MOE_H
#define OX_KERNELS_OPS_MOE_H

#include "base/planes.h"
#include "kernels/layout.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the router ---- */

enum ox_router_scores {
    OX_SCORES_SOFTMAX,        /* softmax over all experts; the largest are chosen */
    OX_SCORES_SOFTMAX_CHOSEN, /* the largest logits are chosen; softmax over these alone */
    OX_SCORES_SIGMOID,        /* sigmoid of each logit */
};
/* A group's score: its largest, or its two largest added. */
enum ox_group_rank { OX_GROUP_BY_BEST, OX_GROUP_BY_BEST_TWO };

/* How a family routes, as data. What is chosen: the largest scores, with `bias` added where there is one; of equal
 * ones the lower expert. With groups > 1 the experts are cut into that many equal ranges, and only those of the
 * `groups_kept` best groups can be chosen. The weights of the chosen are their scores without the bias; `renormalise`
 * divides them by their sum + eps; then they are multiplied by `scale`. */
struct ox_router {
    uint32_t experts, chosen;
    uint32_t groups, groups_kept; /* groups: 0 or 1: none; divides experts */
    enum ox_router_scores scores;
    enum ox_group_rank group_rank;
    bool renormalise;
    bool rounds; /* logits, and weights in the end, are rounded to bfloat16: what transformers does in that type */
    float eps, scale;
};
/* The most experts and the most chosen that the operations take. */
enum { OX_EXPERTS_MAX = 1024, OX_CHOSEN_MAX = 32 };

/* logits = in * W^T [+ bias], always float32, whatever the type of `in`. A CPU computes them in float32 also where it
 * rounds other GEMMs to bf16. */
struct ox_op_router_forward {
    float *logits;      /* (rows, experts) */
    const void *in;     /* (rows, in_count) */
    const void *weight; /* (experts, in_count) */
    const void *bias;   /* (experts) or NULL */
    uint32_t rows, in_count, experts;
    enum ox_real real;
};
/* din = [residual +] dlogits * W; dweight += dlogits^T * in; dbias += column sums of dlogits. On a GPU in bfloat16 the
 * two products round dlogits to it. */
struct ox_op_router_backward {
    void *din;            /* (rows, in_count) */
    const void *residual; /* (rows, in_count) or NULL; may be din */
    float *dweight;       /* (experts, in_count), added to; or NULL: not wanted */
    float *dbias;         /* (experts) or NULL, added to */
    const float *dlogits; /* (rows, experts) */
    const void *in, *weight;
    void *scratch; /* ox_ops_router_scratch_bytes() */
    uint32_t rows, in_count, experts;
    enum ox_real real;
    bool begins; /* dweight and dbias are set */
};

/* The bias of the choice is float32 in every type, because rounding it changes what is chosen: it lies among the
 * weights as limbs (base/planes.h). out = their sums. */
struct ox_op_join_limbs {
    float *out;     /* (count) */
    const void *in; /* (count, OX_LIMBS) */
    uint32_t count;
    enum ox_real real;
};

/* After a step, numbers with a bit in `up` grow by `by`, those with one in `down` shrink (DeepSeek-V3, arXiv
 * 2412.19437, 2.1.2). Their limbs are those of a plane. */
enum { OX_LIMBS_SHIFT_MAX = 256 };
struct ox_op_limbs_shift {
    uint16_t *plane; /* (count, OX_LIMBS) */
    uint32_t count;  /* at most OX_LIMBS_SHIFT_MAX */
    float by;
    uint32_t up[OX_LIMBS_SHIFT_MAX / 32], down[OX_LIMBS_SHIFT_MAX / 32];
};
static inline OX_ON_DEVICE_TOO void ox_limbs_shift(const struct ox_op_limbs_shift *op, uint32_t idx) {
    const bool up = (op->up[idx / 32] >> idx % 32 & 1) != 0, down = (op->down[idx / 32] >> idx % 32 & 1) != 0;
    if (up || down) {
        ox_limbs_add(op->plane + (uint64_t)idx * OX_LIMBS, up ? op->by : -op->by);
    }
}

struct ox_op_route_forward {
    int32_t *experts; /* (rows, chosen): ascending in each row */
    float *weights;   /* (rows, chosen), beside them */
    float *lse;       /* (rows): log of the sum of exponentials of all logits, for backward and load */
    const float *logits; /* (rows, experts) */
    const float *bias;   /* (experts) or NULL: chooses, but does not weigh */
    uint32_t rows;
    struct ox_router router;
};

/* How the experts of several calls were used: doubles in this order. */
struct ox_route_load_layout {
    uint32_t counts; /* (experts): rows that chose the expert */
    uint32_t probs;  /* (experts): sums of softmax over rows */
    uint32_t rows;   /* (1): rows that count */
    uint32_t squares; /* (1): sum of lse^2 */
    uint32_t count;  /* doubles in all */
};
static inline struct ox_route_load_layout ox_route_load_layout_of(uint32_t experts) {
    const struct ox_route_load_layout layout = {0, experts, 2 * experts, 2 * experts + 1, 2 * experts + 2};
    return layout;
}

/* Adds what a call's rows chose to `load`; several layers may share one, as the auxiliary loss of transformers pools
 * them. With n = rows that count, f = counts / n and p = probs / n of it:
 *   balance loss = experts * sum of f p   (Fedus et al., arXiv 2101.03961, eq. 4; `chosen` where the load is even)
 *   z loss       = squares / n            (Zoph et al., arXiv 2202.08906, eq. 5)
 * `counted` tells which rows count: those whose value is not OX_TARGET_PADDING, as with targets. */
struct ox_op_route_load {
    double *load;           /* ox_route_load_layout_of(experts).count, added to */
    const float *logits, *lse;
    const int32_t *experts; /* (rows, chosen) */
    const int32_t *counted; /* (rows) or NULL: all */
    void *scratch;          /* ox_ops_route_load_scratch_bytes() */
    uint32_t rows;
    struct ox_router router;
    bool begins; /* load is set */
};

/* load = the loads of all layers of all micro-batches, added in this order, so that it does not depend on who has which
 * micro-batch. */
struct ox_op_route_pool {
    double *load;        /* (count) */
    const double *loads; /* of the first micro-batch: (layers, count) */
    uint32_t micro_batches, layers, count;
    uint32_t stride; /* doubles from the loads of a micro-batch to those of the next */
};

/* dlogits of the weights, plus `balance` times the gradient of the balance loss and `z` times that of the z loss, whose
 * `load` is complete; counts have no gradient, and rows that do not count get none of either loss. The bias has no
 * gradient. Where weights are renormalised, dlogits of experts that were not chosen are exactly 0 but for losses. */
struct ox_op_route_backward {
    float *dlogits;        /* (rows, experts) */
    const float *dweights; /* (rows, chosen) */
    const float *logits, *weights, *lse;
    const int32_t *experts; /* (rows, chosen) */
    const double *load;     /* or NULL: neither loss */
    const int32_t *counted; /* as in load */
    uint32_t rows;
    float balance, z;
    struct ox_router router;
};

/* Sorts the pairs by counting, without atomics. */
struct ox_op_route_sort {
    int32_t *offsets; /* (experts + 1): 0 first, pairs last */
    int32_t *pair_of; /* (pairs): the pair at each sorted row */
    int32_t *place;   /* (pairs): the sorted row of each pair */
    const int32_t *experts; /* (rows, chosen): ascending in each row, in [0, expert_count) */
    void *scratch;    /* ox_ops_route_sort_scratch_bytes() */
    uint32_t rows, chosen, expert_count;
};

/* Which experts a call takes: `count` from `first` on, whose weights, biases and gradients begin at the pointers; so a
 * group of experts can lie in memory of its own. `rows_max` is the most sorted rows that they can have together: rows *
 * min(chosen, count). Sorted rows of other experts are neither read nor written. Calls that name a `group` take all
 * experts where its `offsets` is NULL. */
struct ox_experts {
    const int32_t *offsets; /* (all experts + 1), on the device */
    uint32_t first, count, rows_max;
};

/* ---- rows to experts and back ---- */

/* out[s] = in[row of sorted row s]: also the backward pass of combine. */
struct ox_op_rows_gather {
    void *out;      /* (rows * chosen, width) */
    const void *in; /* (rows, width) */
    const int32_t *pair_of;
    struct ox_experts group;
    uint32_t rows, chosen, width;
    enum ox_real real;
};

/* out[row] = [residual +] the sum, in float32, of its pairs' rows of `in`, in the order of slots; with `bias` each also
 * has weight * bias of its expert. Without these two it is also the backward pass of gather, `from_last`: its slots are
 * added in descending order.
 *
 * Groups of experts have a call each, in ascending order of group, or `from_last` in descending order: `sum` takes what
 * a call adds to, which the first of them begins, and the last one alone has an `out`, and the bits are those of one
 * call for all. */
struct ox_op_rows_combine {
    void *out;            /* (rows, width), or NULL: the sum goes on in `sum` */
    const void *residual; /* (rows, width) or NULL; may be out */
    float *sum;           /* (rows, width), read unless `begins`, written without `out`; or NULL: one call has all */
    const void *in;       /* (rows * chosen, width) */
    const int32_t *place;
    const void *bias;       /* (experts of the call, width) or NULL: weights are not read */
    const float *weights;   /* (rows, chosen) */
    const int32_t *experts; /* (rows, chosen), where there is a bias or a group */
    struct ox_experts group;
    uint32_t rows, chosen, width;
    enum ox_real real;
    bool begins, from_last;
};

/* Backward of combine's bias: dweights = dout[row] * bias of the pair's expert, dbias += weights times dout. */
struct ox_op_combine_bias_backward {
    float *dweights; /* (rows, chosen), set for the experts of the call */
    float *dbias;    /* (experts of the call, width), added to; or NULL: not wanted */
    const void *dout, *bias;
    const float *weights;
    const int32_t *experts, *pair_of;
    struct ox_experts group; /* with offsets, also where it has all experts */
    uint32_t rows, chosen, width;
    enum ox_real real;
    bool begins; /* dbias is set */
};

/* ---- products of groups ---- */

/* out[s] = in[s] * W_e^T [+ bias_e], for the sorted rows s of each expert e. W_e lie one after the other, each in the
 * layout. */
struct ox_op_grouped_forward {
    void *out;      /* (pairs, out_count) */
    const void *in; /* (pairs, in_count) */
    const void *weight;
    const void *bias; /* (count, out_count) or NULL */
    void *scratch;    /* ox_ops_grouped_scratch_bytes() */
    struct ox_experts experts;
    uint32_t in_count, out_count;
    enum ox_weight_layout layout;
    enum ox_real real;
};
/* din[s] = dout[s] * W_e; dweight_e += dout^T * in and dbias_e += column sums of dout, over the expert's rows. An
 * expert without rows adds nothing; where its sum begins it gets zeros. */
struct ox_op_grouped_backward {
    void *din;      /* (pairs, in_count) or NULL */
    float *dweight; /* as weight, added to; or NULL: not wanted */
    float *dbias;   /* (count, out_count) or NULL, added to */
    const void *dout, *in, *weight;
    void *scratch;
    struct ox_experts experts;
    uint32_t in_count, out_count;
    enum ox_weight_layout layout;
    enum ox_real real;
    bool begins; /* dweight and dbias are set */
};

/* ---- activations of experts ---- */

/* With g = min(gate, limit) and u = up clamped to [-limit, limit]: (u + shift) * g * sigmoid(alpha * g). alpha 1, limit
 * infinite and shift 0 is swiglu; GPT-OSS has 1.702, 7 and 1. The clamps pass no gradient from outside. A row of the
 * input is [gate | up], or, interleaved, gate and up by turns. */
struct ox_gate {
    float alpha, limit, shift;
    bool interleaved;
};
static inline struct ox_gate ox_gate_swiglu(void) {
    const struct ox_gate swiglu = {1.0f, __builtin_inff(), 0.0f, false};
    return swiglu;
}

/* out[s] = weight of its pair * gated(in[s]). The router's weight is applied here and not in combine, so that backward
 * needs neither the experts' outputs nor their products once more. */
struct ox_op_expert_act_forward {
    void *out;            /* (rows, width) */
    const void *in;       /* (rows, 2 * width) */
    const float *weights; /* by pair, or NULL: all 1 */
    const int32_t *pair_of; /* (rows) */
    struct ox_experts group;
    struct ox_gate gate;
    uint32_t rows, width; /* rows: those of all pairs */
    enum ox_real real;
};
struct ox_op_expert_act_backward {
    void *din;        /* (rows, 2 * width); may be in */
    float *dweights;  /* by pair; NULL where weights are */
    const void *dout, *in;
    const float *weights;
    const int32_t *pair_of;
    struct ox_experts group;
    struct ox_gate gate;
    uint32_t rows, width;
    enum ox_real real;
    bool adds; /* dweights are added to, else set */
};

/* out = [residual +] in * sigmoid(gate[row]): a shared expert behind its gate. */
struct ox_op_row_gate_forward {
    void *out;
    const void *residual; /* (rows, width) or NULL; may be out */
    const void *in;       /* (rows, width) */
    const float *gate;    /* (rows) */
    uint32_t rows, width;
    enum ox_real real;
};
struct ox_op_row_gate_backward {
    void *din;    /* (rows, width); may be dout */
    float *dgate; /* (rows) */
    const void *dout, *in;
    const float *gate;
    uint32_t rows, width;
    enum ox_real real;
};

/* ---- attention ---- */

/* Clamps the first `width` elements of every row to [-limit, limit], in place. A bit of `inside` is 1 where the element
 * was within, bit i % 32 of word i / 32 of its row: backward passes the gradient there and sets 0 elsewhere. */
struct ox_op_clamp_forward {
    void *inout;      /* (rows, row_stride) */
    uint32_t *inside; /* (rows, ox_clamp_words(width)), or NULL: not kept */
    uint32_t rows, row_stride, width;
    float limit;
    enum ox_real real;
};
struct ox_op_clamp_backward {
    void *dinout; /* (rows, row_stride) */
    const uint32_t *inside;
    uint32_t rows, row_stride, width;
    enum ox_real real;
};
static inline uint32_t ox_clamp_words(uint32_t width) {
    return (width + 31) / 32;
}

/* Adds a sink to attention that has been computed without: one more logit in the softmax of every query, whose value is
 * 0 (gpt-oss). out *= exp(lse - new lse), in place, and lse becomes the new one. With both, attention's backward is
 * that of attention with sinks, whatever kernel or library computes it. */
struct ox_op_sinks_forward {
    void *out;         /* (rows, heads * head_dim) */
    float *lse;        /* (batch, heads, seq) */
    const void *sinks; /* (heads): not scaled */
    uint32_t batch, seq, heads, head_dim;
    enum ox_real real;
};
/* dsinks += -sum over queries of exp(sink - lse) * <dout, out>. */
struct ox_op_sinks_backward {
    float *dsinks; /* (heads), added to */
    const void *dout, *out, *sinks;
    const float *lse; /* as forward left it */
    uint32_t batch, seq, heads, head_dim;
    enum ox_real real;
    bool begins; /* dsinks is set */
};

/* Puts parts of heads where attention reads them, or takes them from there. Of every row, out = [residual +] the
 * elements out_first + head out_stride + j, for head < heads and j < width, from the elements in_first + head in_stride
 * + j of `in`; what no part writes is that of the residual, or 0. in_stride 0: all heads read one part, as MLA's heads
 * share what is rotated of a key (DeepSeek-V2, arXiv 2405.04434, 2.1.3). out_stride 0: the sum of the heads' parts, in
 * ascending order, in float32. So backward is the same operation with `in` and `out` of every part exchanged. Parts
 * must not overlap in `out`, which may be the residual. */
struct ox_splice_part {
    uint32_t in_first, in_stride, out_first, out_stride, width, heads;
};
enum { OX_SPLICE_PARTS_MAX = 2 };
struct ox_op_splice {
    void *out;            /* (rows, out_width) */
    const void *in;       /* (rows, in_width) */
    const void *residual; /* (rows, out_width) or NULL */
    uint32_t rows, in_width, out_width, part_count;
    struct ox_splice_part parts[OX_SPLICE_PARTS_MAX];
    enum ox_real real;
};

/* out (cols, rows) = [out +] the transpose of in (rows, cols). */
struct ox_op_turn {
    void *out;
    const void *in;
    uint32_t rows, cols;
    enum ox_real real;
    bool adds;
};

/* ---- sizes ---- */

/* Rows that sorting counts at a time, and sums of the load that are held at a time. */
enum { OX_ROUTE_SORT_ROWS = 64, OX_ROUTE_LOAD_GROUPS = 64 };

uint64_t ox_ops_router_scratch_bytes(const struct ox_compute *compute, uint32_t rows, uint32_t experts);
uint64_t ox_ops_route_load_scratch_bytes(uint32_t experts);
uint64_t ox_ops_route_sort_scratch_bytes(uint32_t rows, uint32_t experts);
/* Never falls with in_count or out_count: the size for a block's widest product serves all. */
uint64_t ox_ops_grouped_scratch_bytes(const struct ox_compute *compute, uint32_t in_count, uint32_t out_count);

#ifdef __cplusplus
}
#endif
#endif
