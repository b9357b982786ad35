/* The units of a model as lists of operations: embedding, block, head, forward and backward. Each function queues
 * its operations on the compute lane and returns; nothing here waits, allocates or knows where bytes live. */
#ifndef OX_ENGINE_BLOCK_H
#define OX_ENGINE_BLOCK_H

#include "engine/model/model.h"
#include "kernels/ops.h"
#include "offload/plan/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One micro-batch: `batch` sequences of `seq` tokens; rows = batch * seq. */
struct ox_shape {
    const struct ox_model *model;
    uint32_t batch, seq, rows;
    struct ox_compute compute;
};

/* Keys and values of a block from the tokens read before, to which those of this run are added; the run's rows stand
 * behind them, and no gradient comes back through them. */
struct ox_block_cache {
    void *keys, *values; /* (contexts, kv_heads * head_dim) */
    void *scratch;       /* ox_ops_attention_cached_scratch_bytes() */
    uint32_t count;      /* tokens read before */
};

/* Where a task works. `work` has the bytes that the matching function below asks for. */
struct ox_block_run {
    const struct ox_ops *ops;
    struct ox_lane *lane;
    const struct ox_shape *shape;
    const struct ox_unit *unit;
    const int32_t *ids, *positions, *targets; /* (rows); a document begins where positions are 0 */
    const int32_t *documents; /* the positions; NULL: every sequence is one document */
    const float *cos_table, *sin_table;       /* (seq, head_dim / 2) */
    const struct ox_block_cache *cache;       /* of ox_block_forward, batch 1; or NULL */
    void *work;
    /* NULL, or where ox_block_forward leaves what ox_block_backward of the same micro-batch finds there and uses up,
     * ox_block_kept_bytes() of it. */
    void *kept;
};

/* Planes of a unit's flat vector; lo may be NULL. */
struct ox_planes {
    const uint16_t *hi, *lo;
};

/* Of `work`, less where something is kept. */
uint64_t ox_block_forward_bytes(const struct ox_shape *shape, bool kept);
uint64_t ox_block_backward_bytes(const struct ox_shape *shape, bool kept);
uint64_t ox_block_kept_bytes(const struct ox_shape *shape);
uint64_t ox_head_bytes(const struct ox_shape *shape);

/* Activations and weights are of the shape's compute.real, gradients of weights float32.
 *
 * y = block(x); x, y: (rows, hidden), y may be x; weights: the unit's flat vector. */
OX_MUST enum ox_status ox_block_forward(const struct ox_block_run *run, const void *weights, const void *x, void *y);
/* dx: in d(loss)/dy, out d(loss)/dx; gradients are added to `grads`, laid out as the weights. What is not kept is
 * recomputed from x, by the same operations on the same numbers: the result is the same bits. */
OX_MUST enum ox_status ox_block_backward(const struct ox_block_run *run, const void *weights, float *grads,
                                         const void *x, void *dx);

OX_MUST enum ox_status ox_embed_forward(const struct ox_block_run *run, struct ox_planes planes, void *y);
OX_MUST enum ox_status ox_embed_backward(const struct ox_block_run *run, float *grads, const void *dx);

/* What a unit's forward and backward make the device do, all documents as long as a sequence. Of the head, the first
 * is the loss alone, the second the loss with its gradients. */
struct ox_plan_work ox_unit_forward_work(const struct ox_shape *shape, uint32_t unit_idx);
struct ox_plan_work ox_unit_backward_work(const struct ox_shape *shape, uint32_t unit_idx);
/* Of a block that finds kept what it would recompute. */
struct ox_plan_work ox_unit_backward_kept_work(const struct ox_shape *shape, uint32_t unit_idx);

struct ox_head_args {
    struct ox_planes planes; /* of the head's unit                                     */
    struct ox_planes table;  /* (vocab, hidden): its own or unit 0's                    */
    const void *x;           /* (rows, hidden)                                         */
    void *dx;                /* (rows, hidden), or NULL: loss alone                     */
    float *grads;            /* of the head's unit                                     */
    float *grads_table;      /* (vocab, hidden) accumulator                             */
    double *loss_sum;        /* set to the sum of the counted rows' losses               */
    float loss_scale;
    float *logits;           /* (rows, vocab) or NULL; for tests */
};
OX_MUST enum ox_status ox_head_run(const struct ox_block_run *run, const struct ox_head_args *args);

#ifdef __cplusplus
}
#endif
#endif
