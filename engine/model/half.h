/* The halves of a block. A block is a list of them (struct ox_unit in model.h); each computes y = x + f(norm(x)) and
 * has its own file with the memory it needs, its forward and backward pass and their cost side by side. block.c walks
 * the list and knows no half by name. For the files of this folder. */
#ifndef OX_ENGINE_HALF_H
#define OX_ENGINE_HALF_H

#include "base/arena.h"
#include "engine/model/cost.h"
#include "engine/model/units.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Scratch is free when a pass ends, and all halves of a block share it: there is as much of each kind as the half that
 * needs most of it asks for. */
enum ox_scratch { OX_SCRATCH_ROWS, OX_SCRATCH_NORM, OX_SCRATCH_OP, OX_SCRATCH_COUNT };
enum { OX_LENT_COUNT = 2 };

/* What a half needs in one pass, in bytes. OX_PASS_FORWARD saves nothing for backward: `saved` and `lent` are then what
 * forward itself needs. In the other passes `saved`, `lent` and `borrowed` are the same, as one pass leaves there what
 * another finds. */
struct ox_half_sizes {
    uint64_t saved;                   /* made by forward, read by the half's own backward */
    uint64_t lent[OX_LENT_COUNT];     /* likewise; after that backward the half before this one works there */
    uint64_t borrowed[OX_LENT_COUNT]; /* that backward needs of what the next half lends */
    uint64_t scratch[OX_SCRATCH_COUNT];
};

/* Where that lies. */
struct ox_half_room {
    void *saved, *lent[OX_LENT_COUNT], *borrowed[OX_LENT_COUNT], *scratch[OX_SCRATCH_COUNT];
};

/* One half in one pass of one micro-batch. */
struct ox_half_call {
    struct ox_unit_job *job;
    const struct ox_half *half;
    struct ox_half_room room;
    enum ox_pass pass;
    const void *weights; /* the unit's flat vector */
    float *grads;        /* laid out as the weights; for backward */
};

/* x, y and dx are (rows, hidden), and y may be x. Failures are kept in call->job->run. */
struct ox_half_ops {
    void (*sizes)(const struct ox_shape *shape, const struct ox_half *half, enum ox_pass pass,
                  struct ox_half_sizes *out);
    /* y is NULL where backward recomputes what it reads and wants no more. */
    void (*forward)(const struct ox_half_call *call, const void *x, void *y);
    /* dx: in the gradient of y, out that of x. */
    void (*backward)(const struct ox_half_call *call, const void *x, void *dx);
    /* `whole`: y is wanted. */
    void (*forward_cost)(struct ox_cost *cost, const struct ox_half *half, bool whole);
    void (*backward_cost)(struct ox_cost *cost, const struct ox_half *half);
};
extern const struct ox_half_ops ox_half_attention, ox_half_mlp;

static inline bool ox_pass_is_backward(enum ox_pass pass) {
    return pass == OX_PASS_BACKWARD || pass == OX_PASS_BACKWARD_KEPT;
}

/* ---- pieces that halves are made of ---- */

/* Bytes of `width` activations of every row; and of float32 values. */
uint64_t ox_rows_bytes(const struct ox_shape *shape, uint32_t width);
uint64_t ox_rows_f32_bytes(const struct ox_shape *shape, uint32_t width);

/* The unit's weight of a role, or its gradient; NULL when the family has none. */
const void *ox_weight_of(const struct ox_half_call *call, enum ox_role role);
float *ox_grad_of(const struct ox_half_call *call, enum ox_role role);

/* Clears what no operation of a unit writes: what lies between the tensors of its gradient and after them. */
void ox_clear_gaps(struct ox_unit_job *job, float *grads);
void ox_clear_range(struct ox_unit_job *job, float *grads, uint64_t begin, uint64_t end);

/* The norm whose gain has the role `gain`; its bias has the role after that. */
struct ox_norm ox_half_norm(const struct ox_half_call *call, enum ox_role gain, float *mean, float *rstd);

/* A matrix of the block: out = in * W^T [+ bias]. The bias has the role after the matrix's. */
struct ox_linear {
    enum ox_role role;
    uint32_t in_count, out_count;
};
/* residual: (rows, out_count), added, or NULL. */
void ox_linear_forward(const struct ox_half_call *call, struct ox_linear linear, const void *in, const void *residual,
                       void *out);
void ox_linear_backward(const struct ox_half_call *call, struct ox_linear linear, const void *in, const void *dout,
                        void *din);
void ox_cost_linear_forward(struct ox_cost *cost, struct ox_linear linear, bool residual);
void ox_cost_linear_backward(struct ox_cost *cost, struct ox_linear linear);

/* ---- per kind of unit; units.c chooses ---- */

uint64_t ox_block_work_bytes(const struct ox_shape *shape, const struct ox_unit *unit, enum ox_pass pass);
uint64_t ox_block_kept_bytes(const struct ox_shape *shape, const struct ox_unit *unit);
uint64_t ox_head_work_bytes(const struct ox_shape *shape);
void ox_embed_cost(struct ox_cost *cost, bool backward);
void ox_block_cost(struct ox_cost *cost, enum ox_pass pass);
void ox_head_cost(struct ox_cost *cost, bool backward);

#ifdef __cplusplus
}
#endif
#endif
