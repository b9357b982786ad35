/* The operations of kernels/ops.h as `offload bench ops` measures them: tensors of training size, and per operation the
 * bytes and FLOPs that it needs at least. */
#ifndef OX_TOOLS_BENCH_OPS_H
#define OX_TOOLS_BENCH_OPS_H

#include "cpu_optim/optim.h"
#include "tools/bench/bench_device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A mixture of experts: tokens are half of the rows, pairs all of them. */
struct ox_bench_moe {
    float *logits, *dlogits;   /* (tokens, experts) */
    float *weights, *dweights; /* (pairs) */
    float *lse;                /* (tokens) */
    int32_t *experts, *offsets, *pair_of, *place;
    uint32_t *inside; /* bits of clamped queries, keys and values */
    double *load;
};

struct ox_bench_tensors {
    struct ox_bench_device *device;
    struct ox_bench_moe moe;
    struct ox_bench_shape shape;
    uint32_t heads, kv_heads, head_dim; /* the model's, else head dimension 128; attention changes all three */
    int kind;                           /* that of the operation to be queued */
    uint64_t params;                    /* elements per plane of an update, a multiple of 2048 */
    uint64_t table_elems;               /* (vocab, hidden), rounded up to that */
    enum ox_isa isa;
    struct ox_optim_hyper hyper;
    void *x, *y, *z;                  /* (rows, hidden or all heads), activations */
    void *qkv, *dqkv;                 /* (rows, (heads + 2 kv_heads) head_dim) */
    void *pair, *dpair, *act;         /* (rows, 2 width) twice, (rows, width) */
    void *weight;                     /* of the largest layer */
    void *scratch;
    float *dweight, *sums;            /* as weight; (rows, heads), statistics */
    float *lse, *mean, *rstd;
    float *wide[3];                   /* (params) */
    float *cosines, *sines;           /* (seq, half of a head) */
    uint16_t *hi, *lo;                /* (params); (vocab, hidden) of a table */
    void *state;                      /* optimizer state of params */
    double *loss, *partials;
    uint64_t *nonfinite;
    int32_t *ids, *positions, *targets; /* (rows) */
};

/* What an operation needs at least: bytes of memory to read and write, or floating-point operations, whichever binds
 * it. */
struct ox_bench_cost {
    double bytes, flops;
};

struct ox_bench_op {
    enum ox_op op;
    const char *name; /* figure of an operation that has several; NULL: the operation's own name */
    /* queues it once; sets its cost */
    enum ox_status (*queue)(const struct ox_bench_tensors *, struct ox_bench_cost *);
    /* of norm, activation or moments; of a linear layer, enum ox_bench_product; of attention, how many query heads
     * share a head of keys */
    int kind;
    uint32_t head_dim; /* of attention, or OX_BENCH_DIM_OF_MODEL for the heads of the named model; 0: no attention */
};
enum { OX_BENCH_DIM_OF_MODEL = UINT16_MAX };
static inline bool ox_bench_op_is_attention(const struct ox_bench_op *op) {
    return op->head_dim != 0;
}
/* Whether the operation is measured at that shape: of attention, that of the model, or without one the others. */
static inline bool ox_bench_op_runs(const struct ox_bench_shape *shape, const struct ox_bench_op *op) {
    return !ox_bench_op_is_attention(op) || (op->head_dim == OX_BENCH_DIM_OF_MODEL) == (shape->heads > 0);
}
/* Whether memory bounds the operation, so that it is compared with a copy: not where it reads a cache in pieces, sorts,
 * or sums over all rows. */
static inline bool ox_bench_op_streams(const struct ox_bench_op *op) {
    return op->op != OX_OP_attention_cached && (op->op < OX_OP_route_forward || op->op > OX_OP_route_sort) &&
           op->op != OX_OP_combine_bias_backward && op->op != OX_OP_sinks_backward;
}
/* All operations but rope_table, which runs once per model; tests/unit/kernels/test_op_rows.c checks that. */
const struct ox_bench_op *ox_bench_ops_all(uint32_t *count);
/* Those of a mixture of experts: a part of all; their tensors and scratch (bench_ops_moe.c). */
const struct ox_bench_op *ox_bench_ops_moe(uint32_t *count);
struct ox_bump;
void ox_bench_moe_carve(struct ox_bench_tensors *tensors, struct ox_bump *room);
uint64_t ox_bench_moe_scratch_bytes(const struct ox_bench_tensors *tensors);
OX_MUST enum ox_status ox_bench_moe_fill(const struct ox_bench_tensors *tensors);
const char *ox_bench_op_name(const struct ox_bench_op *op);

/* Gives the tensors the heads and the kind with which `op` is queued. */
void ox_bench_tensors_select(struct ox_bench_tensors *tensors, const struct ox_bench_op *op);
/* The shape of attention that is selected. */
struct ox_attention_shape ox_bench_attention_shape(const struct ox_bench_tensors *tensors);
/* Places the tensors from `base` on and returns their total bytes; NULL only computes the bytes. */
uint64_t ox_bench_tensors_carve(struct ox_bench_tensors *tensors, unsigned char *base);
/* Fills ids, positions, angles and moments, which are not plain numbers. */
OX_MUST enum ox_status ox_bench_tensors_fill(struct ox_bench_tensors *tensors);

#ifdef __cplusplus
}
#endif
#endif
