/* Nodes with groups of features (groups.h): what node.c, embed.c and head.c do group by group. For the files of this
 * folder. */
#ifndef OX_ENGINE_NODE_GROUPS_H
#define OX_ENGINE_NODE_GROUPS_H

#include "base/arena.h"
#include "engine/model/list.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A sum of one float32 vector of each group, in a tree: two neighbours that have as many groups are added as soon as
 * both are there, and what is left in the end from the last on. */
struct ox_group_sum {
    struct ox_run *run;
    float *room;    /* ox_group_sum_bytes() */
    uint64_t count; /* elements of a vector */
    uint32_t depth, added;
};
uint64_t ox_group_sum_bytes(uint32_t groups, uint64_t count);
/* Where the next group's vector is to be made; ox_group_sum_add then takes it. */
float *ox_group_sum_next(const struct ox_group_sum *sum);
void ox_group_sum_add(struct ox_group_sum *sum);
/* Adds what is left, and returns the sum. */
const float *ox_group_sum_end(struct ox_group_sum *sum);

/* A group's part of a value that has `width` elements for a row of each group. */
void *ox_node_group(const struct ox_node_call *call, const void *rows, uint32_t width, uint32_t group);
float *ox_node_group_floats(const struct ox_node_call *call, const float *rows, uint32_t width, uint32_t group);

/* A product that is cut. With columns every group makes its columns of `out`, and the gradient of `in` is a sum over
 * groups; with rows `out` is the sum, to which the bias and then the residual are added. */
void ox_linear_groups_forward(const struct ox_node_call *call);
void ox_linear_groups_backward(const struct ox_node_call *call);
uint64_t ox_linear_group_scratch(const struct ox_shape *shape, const struct ox_node *node, bool backward);

/* Backward of norms whose weights are not cut: their gradients are sums over as many groups of rows, or of heads. The
 * operation given is that of all. Scratch for `vectors` gradients of `cols` elements. */
void ox_norm_groups_backward(const struct ox_node_call *call, struct ox_op_norm_backward op);
void ox_head_norm_groups_backward(const struct ox_node_call *call, struct ox_op_head_norm_backward op);
uint64_t ox_norm_group_scratch(const struct ox_shape *shape, uint32_t cols, uint32_t vectors);

/* What a loss works in with groups, each of which has a part of the vocabulary. */
struct ox_loss_rooms {
    struct ox_head_rows rows_of; /* (groups, rows); then the first is that of whole rows */
    double *row_losses;          /* (3, rows) */
    double *spare;               /* with pairs: the sum of cross-entropies, which is not used; */
    float *row_nll, *row_weights; /* (rows) */
    float *sums;
    void *head;
};
/* Places them from `base` on, and returns their bytes; `base` may be NULL. */
uint64_t ox_loss_group_rooms(const struct ox_shape *shape, const struct ox_node *node, void *base,
                             struct ox_loss_rooms *out);
/* The losses, and behind them the gradients that are wanted, of an operation of the whole vocabulary. */
void ox_loss_groups_statistics(const struct ox_node_call *call, const struct ox_op_head *whole,
                               const struct ox_loss_rooms *rooms);
void ox_loss_groups_gradients(const struct ox_node_call *call, const struct ox_op_head *whole,
                              const struct ox_loss_rooms *rooms);

#ifdef __cplusplus
}
#endif
#endif
