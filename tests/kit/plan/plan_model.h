/* Models as the planner sees them, made by tests: an embedding, blocks and a head, alike or each different; or a part
 * of such a model. */
#ifndef OX_TESTS_PLAN_MODEL_H
#define OX_TESTS_PLAN_MODEL_H

#include "offload/plan/rules.h"

enum { PLAN_MODEL_UNITS_MAX = 256 };

/* The lists that a struct ox_plan_model points at. */
struct plan_model {
    struct ox_plan_unit units[PLAN_MODEL_UNITS_MAX];
    struct ox_plan_grad grads[3 * PLAN_MODEL_UNITS_MAX + 1];
    struct ox_plan_stage stages[3 * PLAN_MODEL_UNITS_MAX];
    uint32_t order[PLAN_MODEL_UNITS_MAX];
};

/* Bytes of a model whose blocks are alike. */
struct plan_model_sizes {
    uint64_t act_bytes;  /* between any two units, one micro-batch */
    uint64_t forward_bytes, backward_bytes;           /* scratch of a block */
    uint64_t kept_bytes, forward_kept_bytes, backward_kept_bytes;
    uint64_t head_bytes, head_eval_bytes;             /* scratch of the head in training, and for the loss alone */
    uint64_t tied_elems; /* of the embedding that the head uses as its table; 0: it has its own */
    bool without_embedding, without_head; /* the first unit, or the last, is a block, or the other end if it is alone */
    bool adapts; /* the embedding has a second unit, the next one, that its backward reads too */
    bool pairs;  /* blocks compute with two units each, where there are as many */
    uint32_t shares; /* every block's first unit is that of so many more stages, 2 at most, right behind it */
    bool in_turn;    /* their gradients are added in turn */
    bool chains; /* of every three blocks, two start their backward from the input of the first */
    uint64_t frozen; /* bits of units that are not trained; one at least is */
};

/* Sets units, gradients and stages of `out`, which point into `m`, and leaves the rest of it. Units are numbered in the
 * order of forward. */
void plan_model_make(struct plan_model *m, const uint64_t *elems, uint32_t unit_count,
                     const struct plan_model_sizes *sizes, struct ox_plan_model *out);

/* Makes every unit differ from its neighbours in activations, scratch, work and what it keeps, if anything, and
 * numbers the units in any order, with `elems` (per unit) alike. The same seed does the same. */
void plan_model_vary(struct plan_model *m, const struct ox_plan_model *model, uint64_t *elems, uint64_t seed);

/* Numbers the gradients in any order, in the lists that `model` points at. */
void plan_model_shuffle_grads(const struct ox_plan_model *model, uint64_t seed);

#endif
