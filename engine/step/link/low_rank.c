/* Copies of the model sum their slice of a gradient as products of two thin matrices, with the error fed back
 * (PowerSGD, arXiv 1905.13727, with the residual of each rank for itself). Nothing is added on the way: each copy
 * gathers what all give, and adds it in their order, so a run with as many ranks repeats its bits. */
#include "engine/step/link/link.h"

#include "base/assert.h"
#include "cpu_optim/low_rank.h"

#include <stdio.h>
#include <string.h>

/* The memory of one exchange. Raw elements lie behind P, in the order of the slice. */
struct exchange {
    struct ox_rank *rank;
    uint32_t grad_idx, copies;
    struct ox_low_rank_sizes sizes;
    float *slice;                      /* M and raw, then their sums */
    const float *residual, *q_before; /* of the last step */
    float *rest, *q;                  /* of this step */
    float *own_p, *all_p, *own_q, *all_q;
};

/* A block, and where it begins among blocks, P and Q. */
struct place {
    struct ox_low_rank_block block;
    uint64_t of_blocks, of_p, of_q;
};

static bool next(const struct exchange *x, struct place *at) {
    const struct ox_low_rank_block last = at->block;
    at->of_blocks += (uint64_t)last.rows * last.cols;
    at->of_p += (uint64_t)last.rows * last.rank;
    at->of_q += (uint64_t)last.cols * last.rank;
    return ox_low_rank_next(&x->rank->plan->input, x->grad_idx, &at->block);
}

static struct ox_thin shape_of(const struct ox_low_rank_block *block) {
    return (struct ox_thin){.rows = block->rows, .cols = block->cols, .rank = block->rank};
}

/* The seed is the same on all ranks with this block, and another one for each step where Q begins anew with each. */
static uint64_t seed_of(const struct exchange *x, const struct ox_low_rank_block *block) {
    const uint64_t step = x->rank->config.low_rank.warm_start ? 0 : x->rank->step.input->step;
    return ((uint64_t)(block->matrix_idx + 1) << 32 | block->row_first) ^ step << 48;
}

/* Sums the parts that the rank has of its own copy, to where the sum of all goes. */
static void take_parts(const struct exchange *x, const unsigned char *source) {
    const struct ox_plan_input *const input = &x->rank->plan->input;
    const struct ox_sums sums = ox_plan_sums_along(input, OX_AXIS_COPY);
    const uint64_t count = ox_plan_grad_slice(input, x->grad_idx);
    for (uint32_t part = 0; part < ox_sums_part_count(&sums); part++) {
        const void *const at = source + ox_plan_part_offset(input, x->grad_idx, OX_AXIS_COPY, part);
        if (part == 0) {
            memcpy(x->slice, at, count * sizeof *x->slice);
        } else {
            ox_thin_add(x->slice, at, count);
        }
    }
}

/* Copies what is in no block between the slice and `packed`. */
static void copy_raw(const struct exchange *x, float *packed, bool back) {
    const uint64_t count = ox_plan_grad_slice(&x->rank->plan->input, x->grad_idx);
    struct place at = {0};
    uint64_t from = 0;
    for (bool more = true; more;) {
        more = next(x, &at);
        const uint64_t past = more ? at.block.first : count;
        memcpy(back ? x->slice + from : packed, back ? packed : x->slice + from, (past - from) * sizeof *packed);
        packed += past - from;
        from = past + (more ? (uint64_t)at.block.rows * at.block.cols : 0);
    }
}

/* Adds the block's residual to its gradient, which has the factor of the loss, a power of two. */
static void add_residual(const struct exchange *x, const struct place *at) {
    const float scale = (float)(1 / x->rank->step.unscale);
    float *const to = x->slice + at->block.first;
    const float *const from = x->residual + at->of_blocks;
    for (uint64_t i = 0; i < (uint64_t)at->block.rows * at->block.cols; i++) {
        to[i] += from[i] * scale;
    }
}

/* M = gradient + residual, which is kept without the factor of the loss; P = M Q. */
static void make_p(const struct exchange *x) {
    struct place at = {0};
    while (next(x, &at)) {
        const struct ox_thin shape = shape_of(&at.block);
        float *const q = x->q + at.of_q;
        add_residual(x, &at);
        memcpy(q, x->q_before + at.of_q, shape.cols * shape.rank * sizeof *q);
        if (!x->rank->config.low_rank.warm_start) {
            memset(q, 0, shape.cols * shape.rank * sizeof *q);
        }
        ox_thin_orthonormalise(q, shape.rank, shape.cols, seed_of(x, &at.block)); /* zeros are drawn */
        ox_thin_rows(&shape, x->slice + at.block.first, q, x->own_p + at.of_p);
    }
    copy_raw(x, x->own_p + x->sizes.p, false);
}

/* Adds what all copies gave to what the first gave. */
static float *add_all(const struct exchange *x, float *all, uint64_t count) {
    for (uint32_t i = 1; i < x->copies; i++) {
        ox_thin_add(all, all + i * count, count);
    }
    return all;
}

/* P of all, orthonormal; Q = M^T P. */
static void make_q(const struct exchange *x) {
    float *const p = add_all(x, x->all_p, x->sizes.p + x->sizes.raw);
    struct place at = {0};
    while (next(x, &at)) {
        const struct ox_thin shape = shape_of(&at.block);
        ox_thin_orthonormalise(p + at.of_p, shape.rank, shape.rows, 0);
        ox_thin_cols(&shape, x->slice + at.block.first, p + at.of_p, x->own_q + at.of_q);
    }
}

/* The sum is P Q^T with the Q of all; what the own Q does not say of M stays for the next step. */
static void restore(const struct exchange *x) {
    const float *const q = add_all(x, x->all_q, x->sizes.q);
    struct place at = {0};
    while (next(x, &at)) {
        const struct ox_thin shape = shape_of(&at.block);
        float *const rest = x->rest + at.of_blocks;
        ox_thin_restore(&shape, x->slice + at.block.first, x->all_p + at.of_p, x->own_q + at.of_q, q + at.of_q, rest);
        for (uint64_t i = 0; i < shape.rows * shape.cols && x->rank->step.unscale != 1; i++) {
            rest[i] *= (float)x->rank->step.unscale;
        }
    }
    memcpy(x->q, q, x->sizes.q * sizeof *q);
    copy_raw(x, x->all_p + x->sizes.p, true);
}

static enum ox_status gather(const struct exchange *x, const float *own, float *all, uint64_t count, const char *name) {
    uint64_t cuts[OX_COMM_RANKS_MAX + 1];
    char what[OX_COMM_WHAT_BYTES];
    for (uint32_t i = 0; i <= x->copies; i++) {
        cuts[i] = i * count * sizeof *own;
    }
    snprintf(what, sizeof what, "%s of gradient %u", name, x->grad_idx);
    const enum ox_status status = ox_comm_gather(x->rank->along[OX_AXIS_COPY], &(struct ox_comm_gather){
        .source = own, .target = all, .cuts = cuts, .on_host = true, .what = what});
    if (status == OX_OK) {
        ox_rank_count(x->rank, OX_LINK_PEER_IN, OX_TRAFFIC_GRADS, cuts[x->copies] - cuts[1]);
        ox_rank_count(x->rank, OX_LINK_PEER_OUT, OX_TRAFFIC_GRADS, cuts[x->copies] - cuts[1]);
    }
    return status;
}

enum ox_status ox_link_sum_low_rank(struct ox_rank *rank, const struct ox_plan *plan, const struct ox_task *task) {
    const struct ox_plan_input *const input = &rank->plan->input;
    struct exchange x = {.rank = rank, .grad_idx = task->grad_idx, .copies = ox_plan_copies(input),
                         .sizes = ox_low_rank_sizes(input, task->grad_idx)};
    const uint64_t kept = ox_low_rank_kept(&x.sizes), given = x.sizes.p + x.sizes.raw;
    float *const both = ox_tiers_view(&rank->tiers, plan, task, OX_USE_RESIDUAL).ptr;
    x.slice = ox_tiers_view(&rank->tiers, plan, task, OX_USE_TARGET).ptr;
    x.residual = both + (rank->low_rank_half ? kept : 0);
    x.q_before = x.residual + x.sizes.blocks;
    x.rest = both + (rank->low_rank_half ? 0 : kept);
    x.q = x.rest + x.sizes.blocks;
    x.own_p = ox_tiers_view(&rank->tiers, plan, task, OX_USE_SCRATCH).ptr;
    x.all_p = x.own_p + given;
    x.own_q = x.all_p + x.copies * given;
    x.all_q = x.own_q + x.sizes.q;
    take_parts(&x, ox_tiers_view(&rank->tiers, plan, task, OX_USE_SOURCE).ptr);
    make_p(&x);
    enum ox_status status = gather(&x, x.own_p, x.all_p, given, "P");
    if (status == OX_OK) {
        make_q(&x);
        status = gather(&x, x.own_q, x.all_q, x.sizes.q, "Q");
    }
    if (status == OX_OK) {
        restore(&x);
    }
    return status;
}
