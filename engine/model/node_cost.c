/* What each kind of node makes a device do, for predictions: one function a kind, beside the operations of node.c. */
#include "engine/model/list.h"

#include "base/bytes.h"
#include "kernels/attention_slices.h"

void ox_cost_norm(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    const struct ox_cost_loop forward = node->of_sum ? cost->loops->norm_of_sum : cost->loops->norm;
    ox_cost_add_loop(cost, cost->rows, node->in_count, backward ? cost->loops->norm_backward : forward);
    if (!backward && node->residual != OX_NO_VALUE) {
        ox_cost_add_loop(cost, cost->rows, node->in_count, (struct ox_cost_loop){.passes = 1});
    }
}

void ox_cost_add(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    const struct ox_cost_loop loop = {.passes = backward ? 2 : 3, .ops = 1};
    ox_cost_add_loop(cost, cost->rows, node->out_count, loop);
}

/* Whether a unit of the stage has the role and trains it. */
static bool trains(const struct ox_cost *cost, uint32_t role) {
    const struct ox_unit *units[OX_MODEL_STAGE_UNITS_MAX];
    bool is = false;
    for (uint32_t i = ox_model_stage_units(cost->shape->model, cost->unit, units); i-- > 0;) {
        is |= units[i]->role_trained[role];
    }
    return is;
}

void ox_cost_group_sum(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    const uint32_t groups = ox_shape_own_features(cost->shape);
    if (node->cut == (backward ? OX_CUT_COLUMNS : OX_CUT_ROWS) && !(backward && cost->skips_din)) {
        const double elems = cost->rows * (backward ? node->in_count : node->out_count);
        cost->work.bytes += elems * sizeof(float) * (4.0 * (groups - 1) + 2);
    }
    cost->work.ops += node->cut == OX_CUT_NONE ? 0 : 2 * groups;
}

/* The gradient of a bias is a sum over rows; the CPU makes it with the GEMM. */
void ox_cost_linear(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    const uint32_t tensors = ox_shape_tensors(cost->shape);
    const uint32_t in = node->in_count / (node->cut == OX_CUT_ROWS ? tensors : 1);
    const uint32_t out = node->out_count / (node->cut == OX_CUT_COLUMNS ? tensors : 1);
    ox_cost_group_sum(cost, node, backward);
    if (!backward) {
        ox_cost_add_linear(cost, in, out, node->residual != OX_NO_VALUE);
        return;
    }
    ox_cost_add_linear_backward(cost, in, out, trains(cost, node->role));
    if (cost->on_gpu && trains(cost, node->role + 1)) {
        ox_cost_add_loop(cost, cost->rows, out, (struct ox_cost_loop){.passes = 1, .ops = 2});
    }
}

void ox_cost_head_norm(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    const double width = (double)node->head_count * node->in_count / ox_shape_tensors(cost->shape);
    ox_cost_add_loop(cost, cost->rows, width, backward ? cost->loops->head_norm_backward : cost->loops->head_norm);
}

void ox_cost_splice(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    double moved = 0;
    for (uint32_t i = 0; i < node->part_count; i++) {
        moved += (double)node->parts[i].heads * node->parts[i].width;
    }
    const double filled = backward || node->residual != OX_NO_VALUE ? 0 : node->out_count - moved;
    ox_cost_add_loop(cost, cost->rows, moved + filled / 2, (struct ox_cost_loop){.passes = 2, .ops = 1});
}

static void rotation_cost(struct ox_cost *cost) {
    const struct ox_model_config *const config = &cost->shape->model->config;
    const double width =
        (double)(config->heads + config->kv_heads) * config->head_dim / ox_shape_tensors(cost->shape);
    ox_cost_add_loop(cost, cost->rows, width, (struct ox_cost_loop){.passes = 2, .ops = 1});
}

void ox_cost_rope(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    (void)node, (void)backward;
    if (cost->on_gpu) { /* the CPU's is counted with attention */
        rotation_cost(cost);
    }
}

/* For each row of a head the CPU copies and turns values for its products; that takes as long as this many pairs. */
static const double PAIRS_OF_A_ROW = 32;

/* Multiprocessors of the GPU that predictions assume: those of an H100 or H200. */
enum { PROCESSORS = 132 };

/* How backward runs on a GPU: our own kernels are three launches; a library has three for each slice of heads, and a
 * slice takes as long as the waves of blocks that it begins. */
struct launched {
    uint32_t count;
    double waiting; /* time over that with all multiprocessors busy */
};

static struct launched backward_launches(const struct ox_attention_shape *attention) {
    struct ox_attention_slices slices;
    if (attention->cap != 0.0f || !ox_attention_slices_of(attention, OX_ATTENTION_SLICE_BYTES, &slices) ||
        !ox_attention_slices_fill(attention, &slices, PROCESSORS)) {
        return (struct launched){.count = 3, .waiting = 1};
    }
    const uint64_t blocks = ox_attention_slices_blocks(attention, &slices);
    return (struct launched){
        .count = 3 * (attention->batch / slices.batch) * (attention->kv_heads / slices.kv_heads),
        .waiting = (double)ox_align_up(blocks, PROCESSORS) / (double)blocks};
}

/* Each pair of a query and a key takes part in two GEMMs forward and five backward. */
double ox_attention_flops(const struct ox_compute *compute, const struct ox_attention_shape *attention,
                          bool backward) {
    const double rows = (double)attention->batch * attention->seq * attention->heads;
    const double pairs = (double)ox_ops_attention_pairs(compute, attention) +
                         (compute->device == OX_DEVICE_CPU ? PAIRS_OF_A_ROW * rows : 0);
    return (backward ? 5 : 2) * 2 * pairs * attention->head_dim;
}

/* The CPU's rates were measured with the rotation of queries and keys, whether a model has it or not. */
void ox_cost_attend(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    const struct ox_attention_shape attention = ox_attention_shape_of(cost->shape, node->window);
    const struct launched launched = cost->on_gpu && backward ? backward_launches(&attention)
                                                              : (struct launched){.count = 1, .waiting = 1};
    *(backward ? &cost->work.attention_backward_flops : &cost->work.attention_flops) +=
        launched.waiting * ox_attention_flops(&cost->shape->compute, &attention, backward) /
        ox_shape_groups(cost->shape) / ox_shape_tensors(cost->shape);
    cost->work.ops += launched.count;
    if (!cost->on_gpu) {
        rotation_cost(cost);
    }
}

void ox_cost_act(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    const struct ox_model_config *const config = &cost->shape->model->config;
    const double width = (double)config->width / ox_shape_tensors(cost->shape);
    const double in_width = (ox_activation_is_gated(config->act) ? 2.0 : 1.0) * width;
    (void)node;
    ox_cost_add_loop(cost, cost->rows, (backward ? 2 : 1) * in_width + width,
                     (struct ox_cost_loop){.passes = 1, .ops = 1});
}

/* A group of experts. */
static void add_expert_products(struct ox_cost *cost, bool backward) {
    const struct ox_mixture *const mixture = &cost->shape->model->config.mixture;
    const uint32_t hidden = cost->shape->model->config.hidden, width = mixture->width;
    const uint32_t count = cost->unit->expert_count * ox_shape_own_features(cost->shape);
    struct ox_cost_grouped up = {.pairs = cost->rows * mixture->router.chosen * count / mixture->router.experts,
                                 .experts = count, .in_count = hidden, .out_count = 2 * width,
                                 .trained = cost->unit->role_trained[OX_ROLE_EXPERT_GATE_UP]};
    struct ox_cost_grouped down = up;
    down.in_count = width;
    down.out_count = hidden;
    down.trained = cost->unit->role_trained[OX_ROLE_EXPERT_DOWN];
    ox_cost_add_grouped(cost, &up, backward);
    ox_cost_add_grouped(cost, &down, backward);
    ox_cost_add_loop(cost, up.pairs, (backward ? 4 : 3) * width, (struct ox_cost_loop){.passes = 1, .ops = 1});
}

void ox_experts_cost(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    const struct ox_mixture *const mixture = &cost->shape->model->config.mixture;
    const uint32_t own = ox_shape_own_features(cost->shape); /* groups of features */
    const double share = (double)cost->unit->expert_count * own / mixture->router.experts;
    const double pairs = cost->rows * mixture->router.chosen * share;
    ox_cost_add_loop(cost, pairs, node->in_count, (struct ox_cost_loop){.passes = backward ? 6 : 4, .ops = 3});
    ox_cost_add_loop(cost, cost->rows, node->in_count, (struct ox_cost_loop){.passes = 6, .ops = 1});
    add_expert_products(cost, false); /* backward computes them again */
    if (backward) {
        add_expert_products(cost, true);
    }
}
