/* The operations of kernels/ops.h as `offload bench ops` measures them: tensors at the sizes of a training step, and
 * for each operation what it moves and computes at the least. */
#ifndef OX_TOOLS_BENCH_OPS_H
#define OX_TOOLS_BENCH_OPS_H

#include "cpu_optim/adam.h"
#include "tools/bench/bench_device.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ox_bench_tensors {
    struct ox_bench_device *device;
    struct ox_bench_shape shape;
    uint32_t heads, kv_heads, head_dim; /* 128 with so many heads; attention changes them */
    uint64_t params;                    /* of the planes, a multiple of 2048 */
    enum ox_isa isa;
    struct ox_adam_hyper hyper;
    void *x, *y, *z;                  /* (rows, hidden), activations */
    void *qkv, *dqkv;                 /* (rows, (heads + 2 kv_heads) head_dim) */
    void *pair, *dpair, *act;         /* (rows, 2 width) twice, (rows, width) */
    void *weight;                     /* (2 width or vocab, hidden) */
    void *scratch;
    float *dweight, *sums;            /* as weight; (rows, heads) of statistics */
    float *lse, *mean, *rstd;
    float *wide[3];                   /* (params) */
    float *cosines, *sines;           /* (seq, 64) */
    uint16_t *hi, *lo;                /* (params), (vocab, hidden) of a table */
    void *state;                      /* of params */
    double *loss, *partials;
    uint64_t *nonfinite;
    int32_t *ids, *positions, *targets; /* (rows) */
};

/* What an operation takes at the least. One of the two binds it: bytes of memory that it has to read and write, or
 * floating point operations. */
struct ox_bench_cost {
    double bytes, flops;
};

struct ox_bench_op {
    const char *name;
    enum ox_status (*queue)(const struct ox_bench_tensors *, struct ox_bench_cost *); /* queues one; tells its cost */
    bool f32_alone;     /* whatever activations are made of: it has none, or knows float32 alone */
    uint32_t head_dim;  /* of attention; 0: none */
};
const struct ox_bench_op *ox_bench_ops_all(uint32_t *count);

/* Lays the tensors out from `base`; NULL only measures. Returns the bytes of all. */
uint64_t ox_bench_tensors_carve(struct ox_bench_tensors *tensors, unsigned char *base);
/* What is not just numbers: ids, positions, angles, moments. */
OX_MUST enum ox_status ox_bench_tensors_fill(struct ox_bench_tensors *tensors);

#ifdef __cplusplus
}
#endif
#endif
