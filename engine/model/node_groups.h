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

/* A sum over all groups, of which ranks have some each, in two parts: a rank adds what its own groups have made; once
 * pieces have crossed it adds those of all for its own rows, and ends the sum there. The tree is that of one rank,
 * because a rank's groups are a node of it. */
struct ox_joined_sum {
    uint64_t pieces; /* where they lie behind the sum of the rank's groups */
    uint64_t bytes;
};
/* The rows of a group of features, of which there are as many; the last may have fewer, or none. */
struct ox_own_rows ox_group_rows(const struct ox_shape *shape, uint32_t group);
/* Of rows x width elements. With one rank `bytes` is that of the groups' sum. */
struct ox_joined_sum ox_joined_sum_of(const struct ox_shape *shape, uint64_t width);
/* What crosses, where the room of such a sum begins `at` bytes behind the beginning of the scratch. Returns 1. */
uint32_t ox_joined_sum_cuts(const struct ox_shape *shape, uint64_t width, uint64_t at, struct ox_node_cut_at *out);
/* Part 0: the sum over the rank's groups is complete; part 1: those of all. op: of the rank's rows, without `in`. */
void ox_joined_sum_end(const struct ox_node_call *call, struct ox_group_sum *sum, uint32_t part,
                       struct ox_op_settle op);
/* Where all rows of `width` elements are put together of those that ranks have: the bytes, the one cut, and the rank's
 * own rows, copied to their place. */
uint64_t ox_whole_rows_bytes(const struct ox_shape *shape, uint64_t width);
uint32_t ox_whole_rows_cuts(const struct ox_shape *shape, uint64_t width, uint64_t at, struct ox_node_cut_at *out);
void ox_whole_rows_give(const struct ox_node_call *call, const void *own_rows, uint64_t width, void *whole);
/* Adds `count` vectors of `elems` elements, one behind the other, in the tree, into the first. */
void ox_add_pieces(struct ox_run *run, void *pieces, uint32_t count, uint64_t elems, enum ox_real real);

/* What begins `elems` elements behind `rows`; NULL: where these are. */
void *ox_node_at(const struct ox_node_call *call, const void *rows, uint64_t elems);
/* A group's part of a value that has `width` elements for a row of each group. */
void *ox_node_group(const struct ox_node_call *call, const void *rows, uint32_t width, uint32_t group);
float *ox_node_group_floats(const struct ox_node_call *call, const float *rows, uint32_t width, uint32_t group);

/* A product that is cut. With columns every group makes its columns of `out`, and the gradient of `in` is a sum over
 * groups; with rows `out` is the sum, to which the bias and then the residual are added. */
void ox_linear_groups_forward(const struct ox_node_call *call);
void ox_linear_groups_backward(const struct ox_node_call *call);
uint64_t ox_linear_group_scratch(const struct ox_shape *shape, const struct ox_node *node, bool backward);
uint32_t ox_linear_group_parts(const struct ox_list *list, const struct ox_node *node, bool backward, bool din,
                               struct ox_node_cut_at out[OX_NODE_CUTS_MAX]);

/* Backward of norms whose weights are not cut: their gradients are sums over as many groups of rows, or of heads. The
 * operation given is that of all. Scratch for `vectors` gradients of `cols` elements. */
uint32_t ox_norm_group_parts(const struct ox_list *list, const struct ox_node *node, bool backward, bool din,
                             struct ox_node_cut_at out[OX_NODE_CUTS_MAX]);
void ox_norm_groups_backward(const struct ox_node_call *call, struct ox_op_norm_backward op);
void ox_head_norm_groups_backward(const struct ox_node_call *call, struct ox_op_head_norm_backward op);
uint64_t ox_norm_group_scratch(const struct ox_shape *shape, uint32_t cols, uint32_t vectors);
uint32_t ox_head_norm_group_parts(const struct ox_list *list, const struct ox_node *node, bool backward, bool din,
                                  struct ox_node_cut_at out[OX_NODE_CUTS_MAX]);

/* The gate of the expert of all tokens: logits of the rank's own rows, by group of rows, and backward, whose gradient
 * of the weights is a sum over these; the scratch of that beside the operation's own. */
uint64_t ox_gate_group_scratch(const struct ox_shape *shape, const struct ox_node *node);
void ox_gate_groups_forward(const struct ox_node_call *call);
void ox_gate_groups_backward(const struct ox_node_call *call, struct ox_op_router_backward op);

/* Products of adapters. Of the rank's own rows with a weight that is not cut, which is the A of a matrix that is cut
 * into columns and the B of one that is cut into rows: its gradient is a sum over as many groups of rows. And of all
 * rows with the B of columns, each group's to its own. Scratch and parts are those of a product that is cut. */
void ox_own_rows_forward(const struct ox_node_call *call);
void ox_own_rows_backward(const struct ox_node_call *call);
void ox_up_columns_forward(const struct ox_node_call *call);
void ox_up_columns_backward(const struct ox_node_call *call);

/* What a loss works in with groups, each of which has a part of the vocabulary. */
struct ox_loss_rooms {
    struct ox_head_rows rows_of; /* (groups, rows); then the first is that of whole rows */
    double *row_losses;          /* (3, rows) */
    double *spare;               /* with pairs: the sum of cross-entropies, which is not used; */
    float *row_nll, *row_weights; /* (rows) */
    unsigned char *sums;
    uint64_t sums_at; /* bytes from the beginning */
    void *whole;      /* with several ranks: all rows that the head multiplies */
    void *head;
};
/* Places them from `base` on, and returns their bytes; `base` may be NULL. */
uint64_t ox_loss_group_rooms(const struct ox_shape *shape, const struct ox_node *node, void *base,
                             struct ox_loss_rooms *out);
/* What crosses before the losses are known: the rows, then the statistics of other groups. Returns how many arrays. */
uint32_t ox_loss_group_cuts(const struct ox_shape *shape, const struct ox_node *node, struct ox_node_cut_at *out);
/* The statistics of the rank's groups; the losses, and behind them the gradients that are wanted, of an operation of
 * the whole vocabulary. */
void ox_loss_groups_merge(const struct ox_node_call *call, const struct ox_op_head *whole,
                          const struct ox_loss_rooms *rooms);
void ox_loss_groups_statistics(const struct ox_node_call *call, const struct ox_op_head *whole,
                               const struct ox_loss_rooms *rooms);
void ox_loss_groups_gradients(const struct ox_node_call *call, const struct ox_op_head *whole,
                              const struct ox_loss_rooms *rooms, uint32_t part);

#ifdef __cplusplus
}
#endif
#endif
