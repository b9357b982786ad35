/* A pass of a stage as a short list of nodes, built in C that reads like the paper. A node makes one value, which has
 * something for every row of the micro-batch; nodes and values are known by their indices. What backward does, what is
 * kept for it, where every value lies and what a pass costs follow from the list (schedule.h): a node's row says how.
 * For the files of this folder. */
#ifndef OX_ENGINE_LIST_H
#define OX_ENGINE_LIST_H

#include "engine/model/cost.h"
#include "engine/model/units.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_LIST_NODES_MAX = 64, OX_LIST_VALUES_MAX = 320, OX_NODE_SAVED_MAX = 2, OX_NO_VALUE = 0 };

enum ox_node_kind {
    OX_NODE_NORM,      /* out = [residual +] norm(in) * gain [+ bias] */
    OX_NODE_LINEAR,    /* out = [residual +] in * W^T [+ bias] */
    OX_NODE_ADD,       /* out = residual + scale * in */
    OX_NODE_HEAD_NORM, /* a norm of each of some heads, or of all of them as one, in place */
    OX_NODE_ROPE,      /* rotates queries and keys by their positions, in place */
    OX_NODE_ATTEND,    /* out = attention of the queries, keys and values in `in` */
    OX_NODE_RING,      /* the same of row groups, in a ring */
    OX_NODE_ACT,       /* out = activation(in) */
    OX_NODE_DROP,      /* out = in with a share `scale` of zeros in training, the rest scaled up */
    OX_NODE_DOWN,      /* out = in * A^T of all adapters of a matrix */
    OX_NODE_UP,        /* out = residual + scale * in * B^T, of each adapter to the columns of its module; in place */
    OX_NODE_DORA,      /* out = (in - bias) * magnitude / norm + bias, of each module that has an adapter */
    OX_NODE_LOOKUP,    /* out = the row of the table for each id in `in` [+ that of its position] */
    OX_NODE_LOOKUP_LOW, /* out = residual + scale * (row of A^T for each id in `in`) * B^T; in place */
    OX_NODE_SCALE,     /* out = scale * in, in place */
    OX_NODE_CAST,      /* out = weights of the unit as its nodes read them, from the planes that the job has */
    OX_NODE_LOSS,      /* out = the sum of the losses of the rows; backward computes it too */
    OX_NODE_SPLICE,    /* out = [residual +] parts of heads of `in`, where attention reads them; in place */
    OX_NODE_ALL_ROWS,  /* out = keys and values of all row groups, of which it makes those of its own in `in` */
    OX_NODE_TO_HEADS,  /* out = queries, keys and values of all row groups for the rank's heads, where ranks divide
                          heads; `in` has those of its rows for all heads */
    OX_NODE_TO_ROWS,   /* out = what attention has made of its rows for all heads, `in` that of all row groups for the
                          rank's heads */
    OX_NODE_CLAMP,       /* clamps queries, keys and values, in place */
    OX_NODE_ROUTER,      /* logits of a mixture's experts, or of a gate, float32 */
    OX_NODE_ROUTE,       /* out = weights of the chosen; saved: the order of pairs, and the logits' log of the sum */
    OX_NODE_GATHER,      /* out has a row for each pair, sorted by expert */
    OX_NODE_GROUPED,     /* out = in * W_e^T [+ bias_e], by the expert of each row */
    OX_NODE_GROUPED_BARE, /* the same, where the bias is another node's */
    OX_NODE_EXPERT_ACT,  /* out = weight * activation(in), of each pair; without an order, of each row */
    OX_NODE_ROW_GATE,    /* out = in * sigmoid(weights): each row by its number */
    OX_NODE_COMBINE,     /* out = [residual +] sum of a row's pairs [with weight * bias_e] */
    OX_NODE_BESIDE,      /* out = residual, in, and where there are some order and weights, one behind the other */
    OX_NODE_HAND_OVER,   /* the same of groups of features: residual, all rows of `in`, what their router says */
    OX_NODE_EXPERTS,     /* out = what a block's stage gives to its experts, with what a group of them adds */
    OX_NODE_MIXTURE,     /* out = [residual +] what a mixture makes of `in`, by groups of features that have experts */
    OX_NODE_GROUPED_DOWN, /* out = in * A_e^T of the adapters of all experts */
    OX_NODE_GROUPED_UP,   /* out = residual + scale * in * B_e^T; in place */
    OX_NODE_ROUTER_UP,    /* out = residual + scale * in * B^T, float32 as a router's logits; in place */
    OX_NODE_KIND_COUNT
};

struct ox_value {
    uint64_t bytes;
    uint32_t home; /* the value in whose memory it lies: itself, or one that it is written over */
    bool shared;   /* of all row groups, which have one in common */
};

/* How a product is cut into groups of features: each makes some columns of its output, or adds to all of them what it
 * makes of some columns of its input. */
enum ox_node_cut { OX_CUT_NONE, OX_CUT_COLUMNS, OX_CUT_ROWS };

struct ox_node {
    enum ox_node_kind kind;
    enum ox_node_cut cut;      /* LINEAR; of adapters that of their matrix */
    enum ox_role role;         /* of its weight, where it has one; its bias has the role after that */
    uint32_t in, residual;     /* values that it reads; OX_NO_VALUE: none */
    uint32_t order;            /* a value without a gradient: of a mixture, how its pairs are sorted; of a norm, its
                                  weights, where they are cast */
    uint32_t weights;          /* of a mixture: what its pairs weigh; of ATTEND: what ALL_ROWS made. Backward of a node
                                  that has `weights` makes, or adds to, their gradient */
    uint32_t out;
    uint32_t saved[OX_NODE_SAVED_MAX]; /* what forward makes beside `out` for backward; float32 */
    uint32_t in_count, out_count;      /* elements of a row of `in` and of `out`; EXPERTS: hidden */
    uint32_t first, stride;            /* EXPERTS: the first of the stage's experts, and how many it has; LINEAR, DOWN,
                                          HEAD_NORM: where what it takes of a row of `in` begins, and
                                          the elements of such a row; stride 0: it takes the whole row */
    uint32_t head_count;               /* HEAD_NORM: the heads that it takes, each of in_count elements */
    float eps;                         /* HEAD_NORM */
    struct ox_splice_part parts[OX_SPLICE_PARTS_MAX]; /* SPLICE */
    uint32_t part_count;
    float scale;                       /* ADD, SCALE, adapters; 0: none. DROP: its rate */
    uint32_t window;                   /* ATTEND: as in struct ox_attention_shape */
    bool of_sum;                       /* NORM: a node with a residual has made `in` */
};

/* Value 0 is none; `in` and `out` are (rows, hidden), but for the ids of an embedding and the loss of a head. */
struct ox_list {
    const struct ox_shape *shape;
    const struct ox_unit *unit; /* the stage's own, the first of its units */
    const struct ox_unit *units[OX_MODEL_STAGE_UNITS_MAX];
    uint32_t unit_count;
    uint32_t groups; /* of features; those of the rank lie one behind the other in every value that is cut */
    uint32_t group_first, group_past; /* those of the rank */
    struct ox_node nodes[OX_LIST_NODES_MAX];
    struct ox_value values[OX_LIST_VALUES_MAX];
    uint32_t node_count, value_count;
    uint32_t in, out;
};

/* ---- building: each function adds a node and returns the value that it makes ---- */

/* Begins a list whose input has `hidden` elements a row, and returns that input. */
uint32_t ox_list_begin(struct ox_list *list, const struct ox_shape *shape, const struct ox_unit *unit);
uint32_t ox_list_norm(struct ox_list *list, uint32_t in, enum ox_role gain);
/* With what the adapters of the matrix add, where the stage has some. */
uint32_t ox_list_linear(struct ox_list *list, uint32_t in, enum ox_role weight, uint32_t in_count, uint32_t out_count);
/* x + h, h scaled as the model scales what a half adds. Where the last node is linear or a norm, and has made h, and
 * nothing is scaled, that node adds x; so does one that combines experts, and the linear one before adapters. */
uint32_t ox_list_add(struct ox_list *list, uint32_t x, uint32_t h);
uint32_t ox_list_head_norm(struct ox_list *list, uint32_t qkv, enum ox_role gain, uint32_t first, uint32_t count);
/* Queries, keys and values of latent attention, as ox_list_attend reads them; and its values, without what fills them
 * up. */
uint32_t ox_list_latent(struct ox_list *list, uint32_t in);
uint32_t ox_list_latent_values(struct ox_list *list, uint32_t attended);
uint32_t ox_list_rope(struct ox_list *list, uint32_t qkv);
/* With several row groups of what all of them have. */
uint32_t ox_list_attend(struct ox_list *list, uint32_t qkv, uint32_t window);
uint32_t ox_list_act(struct ox_list *list, uint32_t in);
uint32_t ox_list_lookup(struct ox_list *list, uint32_t ids);
/* With what the adapter of the table adds, where there is one. */
uint32_t ox_list_lookup_low(struct ox_list *list, uint32_t ids, uint32_t rows);
uint32_t ox_list_scale(struct ox_list *list, uint32_t in, float scale);
/* The final norm; `casts`: its weights come from planes that compute does not read. */
uint32_t ox_list_final_norm(struct ox_list *list, uint32_t x, bool casts);
uint32_t ox_list_loss(struct ox_list *list, uint32_t in);
/* Clamps what `qkv` holds, before the rotation. */
uint32_t ox_list_clamp(struct ox_list *list, uint32_t qkv);
/* What the experts of the model's mixture make of h, with that of all tokens, where the unit has one. */
uint32_t ox_list_mixture(struct ox_list *list, uint32_t h);
/* x + that, where experts are units of their own: the value that the stages of experts go on with. */
uint32_t ox_list_hand_over(struct ox_list *list, uint32_t x, uint32_t h);

/* The value that a block's stage gives to the first group of its experts, and each group to the next, in bytes from its
 * beginning: what the experts' sum is added to, and x, that is then added to, if the model has an expert of all tokens;
 * what the experts read; the order of pairs, and what they weigh; and behind the first group the sum so far, float32.
 * Backward of a group finds in the gradient of its output: in the place of x the gradient of the block's output, and
 * leaves there, in the places of the other values, their gradients, the sum's place taking the sum over groups.
 *
 * With groups of features x and what is added to it are of the rank's own rows, all else is of all rows, and there is a
 * sum for each of the rank's groups of features. In the place of what experts read backward has the gradient of what
 * they add, of all rows, until the first group of them puts there the gradient of the rank's own rows. */
struct ox_handed {
    uint64_t shared, in, order, weights, sum; /* shared: 0: none */
    uint64_t sum_bytes; /* of a sum */
    uint64_t first_bytes, bytes; /* before and behind the first group */
};
struct ox_handed ox_handed_of(const struct ox_shape *shape);

/* The lists of the kinds of units that have a stage, and that of the unit's kind. */
void ox_embed_list(const struct ox_shape *shape, const struct ox_unit *unit, struct ox_list *out);
void ox_block_list(const struct ox_shape *shape, const struct ox_unit *unit, struct ox_list *out);
void ox_head_list(const struct ox_shape *shape, const struct ox_unit *unit, struct ox_list *out);
void ox_experts_list(const struct ox_shape *shape, const struct ox_unit *unit, struct ox_list *out);
void ox_unit_list(const struct ox_shape *shape, const struct ox_unit *unit, struct ox_list *out);

/* ---- what nodes do: node.c ---- */

/* Values of forward that a node's backward reads, by bits. */
enum ox_node_reads {
    OX_READS_IN = 1, OX_READS_OUT = 2, OX_READS_SAVED = 4, OX_READS_ORDER = 8, OX_READS_WEIGHTS = 16
};

/* What the gradient of a node's input may be written over. */
enum ox_node_over {
    OX_OVER_NOTHING,
    OX_OVER_DOUT, /* always: the node works in place, forward and backward */
    OX_OVER_IN,   /* over `in`, once nothing reads that any more */
};

/* Where the values of a node lie in one pass; NULL for what the pass lacks. */
struct ox_node_call {
    struct ox_unit_job *job;
    const struct ox_list *list;
    const struct ox_node *node;
    const struct ox_stage_weights *weights; /* its gradients are for backward */
    uint32_t part; /* of a node whose work several ranks do in parts, between which pieces of its scratch cross */
    void *in, *residual, *out, *saved[OX_NODE_SAVED_MAX], *scratch;
    const void *order;            /* of a mixture, and what its pairs weigh */
    const float *pair_weights;
    void *dout, *dresidual, *din; /* for backward; dresidual: added to din */
    float *dweights;              /* of a mixture's weights */
    bool adds_weights;            /* another node has begun dweights */
};

/* The number of the stage's unit that has a role; UINT32_MAX: none has. Of a role that is cut: the first, or that of a
 * group. */
uint32_t ox_list_owner(const struct ox_list *list, enum ox_role role);
uint32_t ox_list_owner_of(const struct ox_list *list, enum ox_role role, uint32_t group);
/* Where a node with a stride begins in the first row of `in`, or of its gradient; NULL for NULL. */
void *ox_node_part(const struct ox_node_call *call, const void *rows);
/* Whether a tensor of the role is there and trained. */
bool ox_list_trains(const struct ox_list *list, enum ox_role role);

/* A tensor of the stage, and its gradient; NULL where it has none. */
const void *ox_node_weight(const struct ox_node_call *call, enum ox_role role);
float *ox_node_grad(const struct ox_node_call *call, enum ox_role role);
/* A group's weights of a role that is cut, and where its gradient is added; NULL as above. */
const void *ox_node_weight_of(const struct ox_node_call *call, enum ox_role role, uint32_t group);
float *ox_node_grad_of(const struct ox_node_call *call, enum ox_role role, uint32_t group);

/* Where a phase of the pass ends at a node, and pieces cross: behind its forward and before its backward, or the other
 * way round. */
enum ox_node_ends { OX_ENDS_NOTHING, OX_ENDS_BEHIND, OX_ENDS_BEFORE };

/* What crosses behind a part of a node: where in the node's scratch, or in what it saves first, as in a plan
 * (offload/plan/pass.h). */
struct ox_node_cut_at {
    enum ox_cut_kind kind;
    bool saved;
    bool features; /* EXPERTS: between ranks that divide features, else those that divide experts */
    uint64_t source, target, bytes;
    uint8_t round;
};
enum { OX_NODE_CUTS_MAX = 16 };

struct ox_node_row {
    unsigned reads;          /* enum ox_node_reads */
    unsigned reads_for_weights; /* those that only the gradients of its weights need */
    bool may_skip_din;       /* backward can leave out the gradient of `in` */
    unsigned saved_optional; /* bits of `saved` that forward leaves out where backward reads nothing of it */
    enum ox_node_over over;
    bool adds;             /* backward can add another gradient of `in` */
    bool in_residual;      /* forward adds to its residual in place */
    bool may_replace_dout; /* backward can write the gradient of `in` over that of `out` */
    enum ox_node_ends ends; /* a phase of the pass, where the node cuts */
    bool only_adds;        /* backward adds to some elements of its gradients; where the sum begins all are cleared */
    uint32_t weight_count; /* roles of its weights: node->role and those after it, of which the family may lack some */
    /* Bytes of scratch while it runs; NULL: none. */
    uint64_t (*scratch)(const struct ox_shape *shape, const struct ox_node *node, bool backward);
    /* How many parts the node's work has beside the first, and what crosses before each of them; NULL: none. `din`:
     * backward makes the gradient of `in`. */
    uint32_t (*parts)(const struct ox_list *list, const struct ox_node *node, bool backward, bool din,
                      struct ox_node_cut_at out[OX_NODE_CUTS_MAX]);
    void (*forward)(const struct ox_node_call *call);
    void (*backward)(const struct ox_node_call *call);
    void (*cost)(struct ox_cost *cost, const struct ox_node *node, bool backward);
};
/* The rows of node.c, and those of node_mixture.c: from OX_NODE_CLAMP on. */
extern const struct ox_node_row ox_node_rows[OX_NODE_CLAMP], ox_mixture_rows[OX_NODE_KIND_COUNT - OX_NODE_CLAMP];
static inline const struct ox_node_row *ox_node_row_of(const struct ox_node *node) {
    return node->kind < OX_NODE_CLAMP ? &ox_node_rows[node->kind] : &ox_mixture_rows[node->kind - OX_NODE_CLAMP];
}

/* Whether a node does its work at once for all row groups, all values of which are in common: attention, where ranks
 * divide its heads, and what is between that and its keys and values. */
static inline bool ox_node_is_whole(const struct ox_shape *shape, const struct ox_node *node) {
    return ox_shape_head_ranks(shape) > 1 && (node->kind == OX_NODE_ATTEND || node->kind == OX_NODE_ALL_ROWS);
}

/* How many cuts of a plan a node that cuts has: one for each of the rank's groups of features. */
static inline uint32_t ox_node_cut_count(const struct ox_shape *shape, const struct ox_node *node) {
    const bool cuts = ox_node_row_of(node)->ends != OX_ENDS_NOTHING && !ox_node_is_whole(shape, node);
    return cuts ? ox_shape_own_features(shape) : 0;
}
/* Whether it cuts before its forward or its backward, or behind that. */
static inline bool ox_node_cuts_before(const struct ox_node *node, bool backward) {
    return (ox_node_row_of(node)->ends == OX_ENDS_BEFORE) != backward;
}

/* Adapters: node_adapter.c. */
void ox_drop_forward(const struct ox_node_call *call);
void ox_drop_backward(const struct ox_node_call *call);
void ox_down_forward(const struct ox_node_call *call);
void ox_down_backward(const struct ox_node_call *call);
void ox_up_forward(const struct ox_node_call *call);
void ox_up_backward(const struct ox_node_call *call);
void ox_dora_forward(const struct ox_node_call *call);
void ox_dora_backward(const struct ox_node_call *call);
void ox_cost_dora(struct ox_cost *cost, const struct ox_node *node, bool backward);
/* One module's B (out, r): where it begins among those of the role, the columns of the fused matrix that it adds to,
 * and those of the products with A that it reads. Where the matrix is cut into columns, what a group has of them. */
struct ox_adapter_part {
    uint32_t group;
    const struct ox_tensor *tensor;
    uint64_t offset;
    uint32_t out_first, in_first, r, out;
};
/* The part after *part, which begins as zeros but for the group, of the B of a role; false behind the last. */
bool ox_adapter_part_next(const struct ox_list *list, enum ox_role b, struct ox_adapter_part *part);
void ox_cost_drop(struct ox_cost *cost, const struct ox_node *node, bool backward);
void ox_cost_down(struct ox_cost *cost, const struct ox_node *node, bool backward);
void ox_cost_up(struct ox_cost *cost, const struct ox_node *node, bool backward);
/* Adapters of experts and routers (node_adapter.c). */
uint64_t ox_grouped_down_scratch(const struct ox_shape *shape, const struct ox_node *node, bool backward);
uint64_t ox_grouped_up_scratch(const struct ox_shape *shape, const struct ox_node *node, bool backward);
uint64_t ox_router_up_scratch(const struct ox_shape *shape, const struct ox_node *node, bool backward);
void ox_grouped_down_forward(const struct ox_node_call *call);
void ox_grouped_down_backward(const struct ox_node_call *call);
void ox_grouped_up_forward(const struct ox_node_call *call);
void ox_grouped_up_backward(const struct ox_node_call *call);
void ox_router_up_forward(const struct ox_node_call *call);
void ox_router_up_backward(const struct ox_node_call *call);
void ox_cost_grouped_adapter(struct ox_cost *cost, const struct ox_node *node, bool backward);
/* Adapters of the tables: node_adapter_tables.c. Of the head's, within the loss: where its parts lie in the node's
 * scratch, behind `first` bytes; the products of the rows with A; and what follows from their gradients. */
struct ox_head_adapter {
    void *a, *b;         /* cast, or NULL */
    void *dropped;       /* (rows, hidden): what A reads, with dropout; or NULL */
    void *products, *dproducts; /* (rows, r) */
};
uint64_t ox_head_adapter_rooms(const struct ox_shape *shape, uint64_t first, void *scratch,
                               struct ox_head_adapter *out);
struct ox_head_low ox_head_adapter_forward(const struct ox_node_call *call, const struct ox_head_adapter *rooms);
void ox_head_adapter_backward(const struct ox_node_call *call, const struct ox_head_adapter *rooms);
bool ox_head_is_adapted(const struct ox_shape *shape);
void ox_cost_head_adapter(struct ox_cost *cost, bool backward);
uint64_t ox_lookup_low_scratch(const struct ox_shape *shape, const struct ox_node *node, bool backward);
void ox_lookup_low_forward(const struct ox_node_call *call);
void ox_lookup_low_backward(const struct ox_node_call *call);
void ox_cost_lookup_low(struct ox_cost *cost, const struct ox_node *node, bool backward);
/* Random words of the dropout of a matrix, of whose role that is the A. */
uint64_t ox_drop_seed(const struct ox_node_call *call, enum ox_role a);
/* What the nodes of an embedding and of a head do: embed.c, head.c. */
struct ox_planes ox_role_planes(const struct ox_node_call *call, enum ox_role role, uint32_t group);
uint64_t ox_lookup_scratch(const struct ox_shape *shape, const struct ox_node *node, bool backward);
uint32_t ox_lookup_parts(const struct ox_list *list, const struct ox_node *node, bool backward, bool din,
                         struct ox_node_cut_at out[OX_NODE_CUTS_MAX]);
void ox_lookup_forward(const struct ox_node_call *call);
void ox_lookup_backward(const struct ox_node_call *call);
void ox_scale_forward(const struct ox_node_call *call);
void ox_scale_backward(const struct ox_node_call *call);
void ox_cast_forward(const struct ox_node_call *call);
uint32_t ox_loss_parts(const struct ox_list *list, const struct ox_node *node, bool backward, bool din,
                       struct ox_node_cut_at out[OX_NODE_CUTS_MAX]);
void ox_loss_forward(const struct ox_node_call *call);
void ox_loss_backward(const struct ox_node_call *call);
uint64_t ox_loss_scratch(const struct ox_shape *shape, const struct ox_node *node, bool backward);

/* Experts apart from their block: node_experts.c. */
uint64_t ox_experts_scratch(const struct ox_shape *shape, const struct ox_node *node, bool backward);
uint32_t ox_experts_parts(const struct ox_list *list, const struct ox_node *node, bool backward, bool din,
                          struct ox_node_cut_at out[OX_NODE_CUTS_MAX]);
struct ox_plan_rounds ox_experts_rounds(const struct ox_shape *shape, const struct ox_node *node, bool backward,
                                        bool din);
void ox_beside_forward(const struct ox_node_call *call);
void ox_beside_backward(const struct ox_node_call *call);
void ox_beside_cost(struct ox_cost *cost, const struct ox_node *node, bool backward);
void ox_experts_forward(const struct ox_node_call *call);
void ox_experts_backward(const struct ox_node_call *call);
void ox_experts_cost(struct ox_cost *cost, const struct ox_node *node, bool backward);
/* The router, which the caller of a pass may let round; pairs of a micro-batch; and the parts of the order of pairs. */
struct ox_router ox_router_of(const struct ox_shape *shape);
struct ox_experts ox_experts_of(const struct ox_node_call *call); /* all of a block */
uint32_t ox_pairs_of(const struct ox_shape *shape);
struct ox_pair_order {
    int32_t *experts, *pair_of, *place, *offsets;
};
struct ox_pair_order ox_pair_order_of(const struct ox_shape *shape, const void *order);
uint64_t ox_pair_order_bytes(const struct ox_shape *shape);

/* What passes of some of a block's experts do, whatever unit or group of features these are in (node_experts.c).
 *
 * Places within the scratch: rows of all pairs, of which a group has some. `wide` is gate and up, whose gradient
 * replaces them; what goes into the experts and what comes out of them share `rows` in forward. `scaled`, where blocks
 * scale what they add, has the sum in forward, and its gradient in backward. `products` is last, because its bytes
 * follow from the threads of a rank. */
struct ox_expert_room {
    uint64_t rows, wide, act, dact, out, scaled, products, bytes;
};
struct ox_expert_room ox_expert_room_of(const struct ox_shape *shape, bool backward);

/* What the passes of a group of experts share. */
struct ox_expert_group {
    const struct ox_node_call *call;
    const struct ox_shape *shape;
    struct ox_handed at;
    struct ox_expert_room room;
    struct ox_pair_order order;
    struct ox_experts experts;
    uint32_t features;    /* the group of features that has them; 0: the first, or none has */
    const float *weights; /* of pairs */
};
/* room.to = the rows of `from` (rows, hidden), by pair. */
void ox_expert_gather(const struct ox_expert_group *g, uint64_t to, const void *from);
/* The products with a matrix of each expert, and of gate and up the bias. */
void ox_expert_multiply(const struct ox_expert_group *g, uint64_t to, uint64_t from, enum ox_role role);
/* From the rows that the experts read, at `from`, to their activations, at room.act. */
void ox_expert_activate(const struct ox_expert_group *g, uint64_t from);
/* The gradient of the bias behind the experts, and of what pairs weigh by it; returns whether there is one. */
bool ox_expert_back_to_bias(const struct ox_expert_group *g, const void *dsum, float *dweights);
/* The gradients of the group's weights, and of what pairs weigh, from those of the experts' outputs at `dout`, which
 * become those of their rows, which lie at `rows`. */
void ox_expert_back_to_rows(const struct ox_expert_group *g, uint64_t rows, uint64_t dout, float *dweights, bool adds,
                            bool din);

/* What a router makes of its logits (rows, experts): what the chosen weigh, the logits' log of the sum, and how pairs
 * are sorted. Its load is reported where the job asks for it. Backward makes the gradient of the logits from that of
 * what pairs weigh. */
struct ox_routed {
    float *logits, *weights, *lse;
    struct ox_pair_order order;
    void *scratch; /* ox_routing_scratch() */
};
uint64_t ox_routing_scratch(const struct ox_shape *shape);
void ox_route_forward(const struct ox_node_call *call, const struct ox_routed *routed);
void ox_route_report(const struct ox_node_call *call, const struct ox_routed *routed);
void ox_route_backward(const struct ox_node_call *call, const struct ox_routed *routed, float *dlogits,
                       const float *dweights);

/* A mixture whose experts are cut into groups of features, and where these are units of their own what the block hands
 * over to them: node_mixture_groups.c. Scratch and parts are those of either node. */
void ox_hand_over_forward(const struct ox_node_call *call);
void ox_hand_over_backward(const struct ox_node_call *call);
void ox_hand_over_cost(struct ox_cost *cost, const struct ox_node *node, bool backward);
uint64_t ox_mixture_groups_scratch(const struct ox_shape *shape, const struct ox_node *node, bool backward);
uint32_t ox_mixture_groups_parts(const struct ox_list *list, const struct ox_node *node, bool backward, bool din,
                                 struct ox_node_cut_at out[OX_NODE_CUTS_MAX]);
void ox_mixture_groups_forward(const struct ox_node_call *call);
void ox_mixture_groups_backward(const struct ox_node_call *call);
void ox_mixture_groups_cost(struct ox_cost *cost, const struct ox_node *node, bool backward);

/* Keys and values of all row groups, and attention of one: node.c. */
void ox_all_rows_forward(const struct ox_node_call *call);
void ox_all_rows_backward(const struct ox_node_call *call);
uint64_t ox_all_rows_scratch(const struct ox_shape *shape, const struct ox_node *node, bool backward);
void ox_all_rows_cost(struct ox_cost *cost, const struct ox_node *node, bool backward);
/* A ring of row groups: node_ring.c. On one rank that has all groups nothing crosses between its parts. */
uint64_t ox_ring_scratch(const struct ox_shape *shape, const struct ox_node *node, bool backward);
uint32_t ox_ring_parts(const struct ox_list *list, const struct ox_node *node, bool backward, bool din,
                       struct ox_node_cut_at out[OX_NODE_CUTS_MAX]);
void ox_ring_forward(const struct ox_node_call *call);
void ox_ring_backward(const struct ox_node_call *call);
/* Rows exchanged for heads, and back. */
uint64_t ox_exchange_heads_scratch(const struct ox_shape *shape, const struct ox_node *node, bool backward);
void ox_to_heads_forward(const struct ox_node_call *call);
void ox_to_heads_backward(const struct ox_node_call *call);
void ox_to_rows_forward(const struct ox_node_call *call);
void ox_to_rows_backward(const struct ox_node_call *call);
void ox_exchange_heads_cost(struct ox_cost *cost, const struct ox_node *node, bool backward);
void ox_attend_group_forward(const struct ox_node_call *call);
void ox_attend_group_backward(const struct ox_node_call *call);
/* Bytes of the sums of gradients of such keys and values, which take so many, that a rank has at a time, to add those
 * of its groups in a tree; they are float32 in every type. */
uint64_t ox_all_rows_grad_bytes(const struct ox_shape *shape, uint64_t bytes);

/* The sinks of attention, where the unit has them (node_mixture.c), are added by group of features, for `seq` rows of
 * every sequence, one sequence behind the other from `row` on. */
void ox_add_sinks(const struct ox_node_call *call, uint32_t features, uint64_t row, uint32_t seq);
void ox_add_sinks_backward(const struct ox_node_call *call, uint32_t features, uint64_t row, uint32_t seq);

/* The rows of what lies between halves, such as the input of a stage and the sums over groups of features: all of the
 * shape's, or of ranks that divide groups of features each a part: so many, but for the last, which may have fewer or
 * none of the `most` for which there is room. */
struct ox_own_rows {
    uint32_t first, count, most;
};
struct ox_own_rows ox_own_rows_of(const struct ox_shape *shape);

/* What backward of a node reads, and of that what it reads for the gradients of its weights alone, by bits. A product
 * whose columns several ranks have reads all rows, which it has saved, in place of its input. */
static inline unsigned ox_node_reads_of(const struct ox_node *node, unsigned reads) {
    const bool saves = (node->kind == OX_NODE_LINEAR || node->kind == OX_NODE_UP) && node->saved[0] != OX_NO_VALUE;
    return saves && (reads & OX_READS_IN) != 0 ? (reads & ~OX_READS_IN) | OX_READS_SAVED : reads;
}

/* Whether any weight of a node is trained. */
static inline bool ox_node_is_trained(const struct ox_list *list, const struct ox_node *node) {
    bool is = false;
    for (uint32_t k = 0; k < ox_node_row_of(node)->weight_count; k++) {
        is |= ox_list_trains(list, (enum ox_role)(node->role + k));
    }
    return is;
}

/* The costs of the rows: node_cost.c. A sum over groups of features: each writes its part, all but one are added, and
 * the sum is rounded. */
void ox_cost_group_sum(struct ox_cost *cost, const struct ox_node *node, bool backward);
void ox_cost_norm(struct ox_cost *cost, const struct ox_node *node, bool backward);
void ox_cost_linear(struct ox_cost *cost, const struct ox_node *node, bool backward);
void ox_cost_add(struct ox_cost *cost, const struct ox_node *node, bool backward);
void ox_cost_head_norm(struct ox_cost *cost, const struct ox_node *node, bool backward);
void ox_cost_rope(struct ox_cost *cost, const struct ox_node *node, bool backward);
void ox_cost_attend(struct ox_cost *cost, const struct ox_node *node, bool backward);
void ox_cost_act(struct ox_cost *cost, const struct ox_node *node, bool backward);
void ox_cost_lookup(struct ox_cost *cost, const struct ox_node *node, bool backward);
void ox_cost_scale(struct ox_cost *cost, const struct ox_node *node, bool backward);
void ox_cost_cast(struct ox_cost *cost, const struct ox_node *node, bool backward);
void ox_cost_splice(struct ox_cost *cost, const struct ox_node *node, bool backward);
void ox_cost_loss(struct ox_cost *cost, const struct ox_node *node, bool backward);

/* Attention as the model of the shape computes it. */
struct ox_attention_shape ox_attention_shape_of(const struct ox_shape *shape, uint32_t window);
/* Attention of the heads of a group of features alone, or of those that the rank has of the group. */
struct ox_attention_shape ox_group_attention_of(const struct ox_shape *shape, uint32_t window);

#ifdef __cplusplus
}
#endif
#endif
