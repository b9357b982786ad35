/* What a model computes: the forward and backward passes of its units, the memory they work in, and what they cost.
 * Each pass queues operations on the compute lane and returns; nothing here waits, allocates or knows in which tier
 * bytes live.
 *
 * Activations and weights are of the shape's compute.real; gradients of weights are float32. */
#ifndef OX_ENGINE_UNITS_H
#define OX_ENGINE_UNITS_H

#include "engine/model/model.h"
#include "kernels/ops.h"
#include "offload/plan/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What training minimises, beside the cross-entropy of an evaluation. Zeros change nothing. */
struct ox_objective {
    float smoothing, z_loss; /* struct ox_op_head */
    float noise; /* of embeddings: of a magnitude noise / sqrt(seq * hidden) (Jain et al., arXiv 2310.05914) */
    uint64_t noise_seed;
    uint64_t drop_seed; /* of the dropout of adapters, whose rate the model has */
    bool pairs; /* losses of pairs of sequences (struct ox_op_pairs), in evaluations too */
    enum ox_pair_loss pair_loss;
    float beta, pair_smoothing, sft;
};
/* Doubles that the head leaves of a micro-batch, the loss first: enum ox_loss_value with smoothing or z-loss, or with
 * pairs enum ox_pair_value, and behind them the sums of log-probabilities of each sequence. */
enum ox_loss_value { OX_LOSS, OX_LOSS_NLL, OX_LOSS_Z, OX_LOSS_VALUES };
uint32_t ox_objective_values(const struct ox_objective *objective, uint32_t batch);

/* How several ranks see each other's keys and values. */
enum ox_context_mode {
    OX_CONTEXT_GATHER,  /* each has all keys and values of a block while it computes attention of its own rows */
    OX_CONTEXT_ULYSSES, /* they exchange rows for heads and back: each computes attention of all rows for its part of
                           the heads (Jacobs et al., arXiv 2309.14509) */
    OX_CONTEXT_RING,    /* each attends to the keys and values of one row group after the other, which pass from rank
                           to rank (node_ring.c). Only this one gives other bits, also on one rank */
    OX_CONTEXT_MODE_COUNT
};
/* With row groups, the rows of a shape are those of one group: chunk g of every sequence and behind it chunk
 * 2 G - 1 - g, of the 2 G into which sequences are cut, so that attention has as much to do for each. Every pass is
 * done group by group, but for what attention sees of other groups. A rank has `count` groups from `first` on: x, y,
 * dx, ids, positions and targets lie one group behind the other, and each gradient has a sum for each group, one behind
 * the other. The groups are divided among `contexts` ranks, which do the pass phase by phase (ox_unit_cuts). */
struct ox_row_groups {
    uint32_t all, first, count, contexts; /* zeros: one group */
    enum ox_context_mode mode;
};
/* Where `ranks` divide the experts of every layer, each has one of as many groups in a row, which a stage has together
 * (ox_shape_begins_stage), and rows go to the rank that has their expert and back. Number `at` has the shape. */
struct ox_expert_share {
    uint32_t ranks, at; /* 0 ranks: 1 */
};

/* With groups of features, a rank has `count` of them from `first` on, a power of two. Every one of the `ranks` that
 * divide them has all rows of activations, and computes what no group has; what a group makes of these rows is added
 * over all groups in parts: each rank adds a part of the rows, and then all get all parts (ox_unit_cuts). */
struct ox_feature_share {
    uint32_t first, count, ranks; /* zeros: all groups, on one rank */
};
/* One micro-batch: `batch` sequences of `seq` tokens; rows = batch * seq. */
struct ox_shape {
    const struct ox_model *model;
    uint32_t batch, seq, rows;
    struct ox_row_groups groups;
    struct ox_feature_share features;
    struct ox_expert_share experts;
    struct ox_compute compute;
    enum ox_compute_dtype dtype; /* weights are rounded to it */
    struct ox_objective objective;
    bool router_rounds; /* as in struct ox_router */
};

enum ox_pass {
    OX_PASS_FORWARD,       /* saves nothing for backward */
    OX_PASS_FORWARD_KEPT,  /* leaves in `kept` what backward reads */
    OX_PASS_BACKWARD,      /* recomputes what it reads of the forward pass, to the same bits */
    OX_PASS_BACKWARD_KEPT, /* finds it in `kept`, and uses it up */
};

/* Keys and values that a block computed for earlier tokens of a sequence. Forward adds those of its own rows, which
 * follow the earlier ones in the sequence. There is no backward through a cache. */
struct ox_cache {
    void *keys, *values; /* (contexts, kv_heads * head_dim) */
    void *scratch;       /* ox_ops_attention_cached_scratch_bytes() */
    uint32_t count;      /* earlier tokens */
};

/* The losses of a model's routers: what they are computed from, and how much they weigh (kernels/ops_moe.h). */
struct ox_route_losses {
    double *load; /* forward sets it to that of the layer and the micro-batch; backward reads that of the whole step */
    uint64_t apart; /* doubles between those of two row groups, in forward */
    const int32_t *counted; /* (rows): OX_TARGET_PADDING: padding; NULL: all rows count */
    float balance, z;       /* factors of their gradients */
    bool sums;              /* a forward pass that sets `load`; a recomputing pass does not */
};

static inline uint32_t ox_shape_groups(const struct ox_shape *shape) {
    return shape->groups.all > 0 ? shape->groups.all : 1;
}
static inline uint32_t ox_shape_own_groups(const struct ox_shape *shape) {
    return shape->groups.count > 0 ? shape->groups.count : 1;
}

/* How many ranks divide the heads of attention among them, and so do it for all rows; 1: none does. */
static inline uint32_t ox_shape_head_ranks(const struct ox_shape *shape) {
    return shape->groups.mode == OX_CONTEXT_ULYSSES && shape->groups.contexts > 1 ? shape->groups.contexts : 1;
}

/* How many ranks divide groups of features, and which of these the shape's has. */
static inline uint32_t ox_shape_tensors(const struct ox_shape *shape) {
    return shape->features.ranks > 1 ? shape->features.ranks : 1;
}
/* Ranks that divide experts; and whether a model's stage is one of a plan, in which groups of experts come together. */
static inline uint32_t ox_shape_experts(const struct ox_shape *shape) {
    return shape->experts.ranks > 1 ? shape->experts.ranks : 1;
}
bool ox_shape_begins_stage(const struct ox_shape *shape, const struct ox_unit *unit);
static inline uint32_t ox_shape_own_features(const struct ox_shape *shape) {
    return ox_model_groups(&shape->model->config) / ox_shape_tensors(shape);
}

/* The two bfloat16 planes of a unit's flat vector (base/planes.h); lo may be NULL. */
struct ox_planes {
    const uint16_t *hi, *lo;
};

/* One micro-batch at one unit. The passes below keep their first failure in `run` and return it. */
struct ox_unit_job {
    struct ox_run run;
    const struct ox_shape *shape;
    const struct ox_unit *unit; /* the stage's own */
    uint64_t weights_first; /* the element of a unit's flat vector that the pass's weights begin with */
    /* The planes of the stage's units, which an embedding and a head read instead of weights. */
    struct ox_planes planes[OX_MODEL_STAGE_UNITS_MAX];
    const struct ox_head_args *head; /* of the head's passes, which set it */
    const int32_t *ids, *positions, *targets; /* (rows); a document begins where its position is 0 */
    const int32_t *documents;                 /* the positions; NULL: every sequence is one document */
    const int32_t *all_documents;             /* where ranks divide heads: those of all row groups, likewise */
    const float *cos_table, *sin_table;       /* (seq, rotary_dim / 2): of the unit's rotation */
    const struct ox_cache *cache;             /* for the forward pass of a block with batch 1; else NULL */
    void *work;                               /* ox_unit_work_bytes() */
    void *kept;                               /* ox_unit_kept_bytes(); NULL: nothing is kept */
    const struct ox_route_losses *losses; /* NULL: none */
    bool trains;           /* part of a step: smoothing, z-loss and noise are used */
    uint64_t noise_stream; /* names step and micro-batch */
    const double *reference; /* (batch): log-probabilities of the sequences by the reference, with pairs */
    bool begins; /* backward sets the gradients of weights, whatever they held; else it adds to them */
    bool in_phases;       /* do `phase` alone; else all of them */
    uint32_t phase;
    uint32_t group;       /* of the rank's row groups, that which is computed; passes set it */
};

/* Cosines and sines: for each of the model's rotations a table of (contexts, rotary_dim / 2). Floats of all tables of
 * cosines; sines take as many. */
uint64_t ox_angles_floats(const struct ox_model_config *config, uint32_t contexts);
/* Computes all tables on the run's lane, and waits. */
OX_MUST enum ox_status ox_angles_make(struct ox_run *run, const struct ox_model_config *config, uint32_t contexts,
                                      float *cos_tables, float *sin_tables);
/* Gives the job the tables of its unit. */
void ox_angles_take(struct ox_unit_job *job, uint32_t contexts, const float *cos_tables, const float *sin_tables);

/* Bytes of `work` that a pass needs; 0 where the unit is no block and needs none. */
uint64_t ox_unit_work_bytes(const struct ox_shape *shape, const struct ox_unit *unit, enum ox_pass pass);
/* Bytes of what a stage reads and makes: rows of activations, but for tokens, the loss, and what a block whose experts
 * are units of their own hands to them and they from one to the next. Backward of a group of experts reads of its input
 * what the first group's has. */
struct ox_unit_ends {
    uint64_t in_bytes, out_bytes;
};
struct ox_unit_ends ox_unit_ends(const struct ox_shape *shape, const struct ox_unit *unit);
/* How many rows each expert has, from which those of groups of experts follow: what the output of a block says whose
 * experts are units of their own. The offset in it, and the bytes; 0 of both: the unit is no such block. */
struct ox_unit_routes {
    uint64_t offset, bytes;
};
struct ox_unit_routes ox_unit_routes(const struct ox_shape *shape, const struct ox_unit *unit);
/* How many rows the unit's experts have by what a block has said. */
uint32_t ox_unit_rows(const struct ox_unit *unit, const void *routes);
/* Bytes of `kept`; 0 for units that keep nothing. */
uint64_t ox_unit_kept_bytes(const struct ox_shape *shape, const struct ox_unit *unit);
/* Where a pass of a rank that has some of the row groups, or of the groups of features, ends a phase; writes the cuts
 * of a plan's pass, at most OX_PLAN_CUTS_MAX, and returns how many there are. Regions lie in the pass's work or in what
 * it keeps. */
uint32_t ox_unit_cuts(const struct ox_shape *shape, const struct ox_unit *unit, enum ox_pass pass,
                      struct ox_plan_cut *out);
/* Where the rows lie that go to experts of other ranks, in a pass that has such cuts. */
struct ox_plan_rounds ox_unit_rounds(const struct ox_shape *shape, const struct ox_unit *unit, enum ox_pass pass);
/* Proves how the passes of every unit use their memory (schedule.h); OX_E_CONFIG names what is wrong. */
OX_MUST enum ox_status ox_units_check(const struct ox_shape *shape);
/* What a pass makes the device do, if every document is as long as its sequence. The head's forward pass computes the
 * loss alone, its backward pass the loss and its gradients. */
struct ox_plan_work ox_unit_cost(const struct ox_shape *shape, const struct ox_unit *unit, enum ox_pass pass);

/* The flat vectors of a stage's units, in the order of ox_model_stage_units, and their gradients; NULL for those of
 * units that are not trained. An embedding reads the job's planes instead. */
struct ox_stage_weights {
    const void *weights[OX_MODEL_STAGE_UNITS_MAX];
    float *grads[OX_MODEL_STAGE_UNITS_MAX];
};

/* The passes of an embedding, whose x is the ids, of a block and of experts: y = unit(x); x, y: (rows, hidden), or as
 * ox_unit_ends says; y may be x. */
OX_MUST enum ox_status ox_unit_forward(struct ox_unit_job *job, const struct ox_stage_weights *weights, const void *x,
                                       void *y);
/* dx: in d(loss)/dy, out d(loss)/dx; an embedding uses it up. Adds to gradients, which are laid out as the weights;
 * where the job begins the sum, all of them are set. */
OX_MUST enum ox_status ox_unit_backward(struct ox_unit_job *job, const struct ox_stage_weights *weights,
                                        const void *x, void *dx);

struct ox_head_args {
    struct ox_planes planes; /* planes of the head's unit */
    /* (vocab, hidden): the head's own, or the embedding's where they are tied; with groups of features the tokens of
     * each. */
    struct ox_planes tables[OX_TENSOR_GROUPS_MAX];
    const void *x;           /* (rows, hidden) */
    void *dx;                /* (rows, hidden), or NULL: the loss alone; means nothing then if no stage wants it */
    float *grads;            /* gradient of the head's unit, added to or set; NULL: it is not trained */
    struct ox_planes adapter; /* planes of the unit with the adapter of the head's table, where there is one */
    float *grads_adapter;     /* and its gradient, as `grads` */
    /* As the tables, added to or set; where tied, or with groups, up to whole OX_GROUP_ELEMS; or NULL. */
    float *grads_tables[OX_TENSOR_GROUPS_MAX];
    double *loss_sum;        /* (ox_objective_values()), set; the first is the sum of the losses of the counted rows */
    float loss_scale;
    float *logits; /* (rows, vocab) or NULL; for tests */
};
/* Final norm, logits, cross-entropy, and backward through all of them where dx is wanted. */
OX_MUST enum ox_status ox_head_run(struct ox_unit_job *job, const struct ox_head_args *args);

/* The operations that attention is counted as in predictions (struct ox_plan_work). */
double ox_attention_flops(const struct ox_compute *compute, const struct ox_attention_shape *attention, bool backward);

/* ---- parts of embedding and head, for callers that find rows of tables themselves and need logits instead of a loss.
 * ---- */

/* Scales rows (rows, hidden) of the embedding in place, as the model scales them. */
void ox_embed_scale(struct ox_unit_job *job, void *rows);
/* Adds the noise of a step's embedding to them, where there is any; its gradient is that without it. */
void ox_embed_noise(struct ox_unit_job *job, void *rows);
/* y = final norm of x, both (rows, hidden); the job has the head's unit, and work as for its forward pass. `weights`:
 * gain and bias, as they lie in the unit's flat vector. */
OX_MUST enum ox_status ox_final_norm(struct ox_unit_job *job, const void *weights, const void *x, void *y);
/* logits (rows, count), scaled and capped, of `count` tokens, whose rows of the head's table begin at `table`; in:
 * (rows, hidden). `low`: what an adapter of the table has for these rows and tokens; NULL: none. */
void ox_head_logits(struct ox_unit_job *job, const void *table, const struct ox_head_low *low, uint32_t count,
                    const void *in, void *logits);
/* Bytes of work that an adapter of the embedding's table, or the head's, needs for the shape's rows; and what it adds
 * to rows (rows, hidden) of the tokens job->ids before they are scaled, or has for rows `in` of the head. The job has
 * the unit, the planes of its stage's units and the work; the product lies there. */
uint64_t ox_embed_adapter_bytes(const struct ox_shape *shape);
void ox_embed_adapt(struct ox_unit_job *job, void *rows);
uint64_t ox_head_adapter_bytes(const struct ox_shape *shape);
struct ox_head_low ox_head_adapt(struct ox_unit_job *job, const void *in);

#ifdef __cplusplus
}
#endif
#endif
