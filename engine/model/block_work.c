/* What the units of a model make a device do, for predictions: the operations that block.c queues, counted. The CPU
 * packs what it multiplies, all of it in float32; a GPU reads every operand once where it is, of the type that it
 * computes in, and sums gradients of weights in float32. */
#include "engine/model/block_internal.h"

#include "base/bytes.h"
#include "kernels/attention_slices.h"
#include "kernels/head_walk.h"

enum pass { PASS_FORWARD, PASS_BACKWARD, PASS_BACKWARD_KEPT };

/* A loop over rows: how often an element of them is read or written, and in how many operations. */
struct loop {
    uint8_t passes, ops;
};

/* Those that devices do in different ways. What is read again by the same block of threads comes from a GPU's caches;
 * sums over the rows of a norm are a pass of their own there, and one over the sums of groups. */
struct loops {
    struct loop norm, norm_back;
    struct loop norm_second; /* of the sum with a residual, which a GPU's product has made already */
    struct loop head_norm, head_norm_back; /* of queries and keys, beside their rotation */
};
static const struct loops loops_of_cpu = {
    .norm = {2, 1}, .norm_second = {3, 1}, .norm_back = {4, 1}, .head_norm = {2, 0}, .head_norm_back = {3, 0}};
static const struct loops loops_of_gpu = {
    .norm = {2, 1}, .norm_second = {2, 1}, .norm_back = {6, 3}, .head_norm = {3, 2}, .head_norm_back = {5, 6}};
static const struct loop two_passes = {2, 1}, one_pass = {1, 1};

struct count {
    struct ox_plan_work work;
    const struct ox_shape *shape;
    const struct loops *loops;
    struct ox_block_widths w;
    double rows, real_bytes;
    bool on_gpu;
};

static struct count begin(const struct ox_shape *shape) {
    const bool on_gpu = shape->compute.device != OX_DEVICE_CPU;
    return (struct count){
        .shape = shape, .loops = on_gpu ? &loops_of_gpu : &loops_of_cpu,
        .w = ox_block_widths_of(&shape->model->config), .rows = shape->rows,
        .real_bytes = (double)ox_real_bytes(shape->compute.real), .on_gpu = on_gpu};
}

/* ---- pieces ----------------------------------------------------------------------------------------- */

static void add_loop(struct count *c, double rows, double width, struct loop loop) {
    c->work.bytes += rows * width * loop.passes * c->real_bytes;
    c->work.ops += loop.ops;
}

/* out (m, n) = a (m, k) b (k, n). */
struct product {
    double m, n, k;
    double out_bytes; /* of an element */
    bool adds;        /* to what is there, or to a residual: it is read too */
};

/* What the CPU multiplies is read, packed and read again. */
static void add_product(struct count *c, struct product p) {
    const double operands = p.m * p.k + p.k * p.n, result = (p.adds ? 2 : 1) * p.m * p.n;
    c->work.product_flops += 2 * p.m * p.n * p.k;
    if (c->on_gpu) {
        c->work.product_bytes += operands * c->real_bytes + result * p.out_bytes;
    } else {
        c->work.bytes += (3 * operands + result) * sizeof(float);
    }
}

/* With a residual that a GPU adds in the same operation. */
static void add_linear(struct count *c, double in_count, double out_count, bool residual) {
    add_product(c, (struct product){c->rows, out_count, in_count, c->real_bytes, residual && c->on_gpu});
    c->work.ops++;
}

static void add_linear_back(struct count *c, double in_count, double out_count) {
    add_product(c, (struct product){c->rows, in_count, out_count, c->real_bytes, false});
    add_product(c, (struct product){out_count, in_count, c->rows, sizeof(float), true});
    c->work.ops += c->on_gpu ? 2 : 1;
}

/* The gradient of a bias, where there is one: a sum over rows, which the CPU makes with the product. */
static void add_bias_back(struct count *c, uint32_t unit_idx, enum ox_role role, double out_count) {
    if (c->on_gpu && c->shape->model->units[unit_idx].role_offset[role] != UINT64_MAX) {
        add_loop(c, c->rows, out_count, (struct loop){1, 2});
    }
}

/* A row of a head costs the CPU as much as so many more pairs: its values are gathered and packed for products that are
 * short. */
static const double PAIRS_OF_A_ROW = 48;

/* Operations of a GPU: one forward; backward three for each slice of heads that are taken at once. */
static uint32_t attention_launches(const struct ox_attention_shape *attention, bool backward) {
    struct ox_attention_slices slices;
    if (!backward) {
        return 1;
    }
    if (!ox_attention_slices_of(attention, OX_ATTENTION_SLICE_BYTES, &slices)) {
        return 3;
    }
    return 3 * (attention->batch / slices.batch) * (attention->kv_heads / slices.kv_heads);
}

/* Two products of each pair forward, five backward. */
static void add_attention(struct count *c, uint32_t unit_idx, bool backward) {
    const struct ox_attention_shape attention = ox_block_attention_of(c->shape, unit_idx);
    const double rows = c->rows * attention.heads;
    const double pairs =
        (double)ox_ops_attention_pairs(&c->shape->compute, &attention) + (c->on_gpu ? 0 : PAIRS_OF_A_ROW * rows);
    c->work.attention_flops += (backward ? 5 : 2) * 2 * pairs * attention.head_dim;
    c->work.ops += c->on_gpu ? attention_launches(&attention, backward) : 1;
}

/* The rotation of queries and keys and their norm, where the model has them; the CPU's figures were found with the
 * rotation in all models. */
static void add_heads(struct count *c, struct loop norm) {
    const struct ox_model_config *const config = &c->shape->model->config;
    const double width = (double)(config->heads + config->kv_heads) * config->head_dim;
    if (config->rope || !c->on_gpu) {
        add_loop(c, c->rows, width, two_passes);
    }
    if (config->qk_norm) {
        add_loop(c, c->rows, width, norm);
    }
}

/* ---- units ------------------------------------------------------------------------------------------ */

static void add_forward_to_act(struct count *c, uint32_t unit_idx) {
    add_loop(c, c->rows, c->w.hidden, c->loops->norm);
    add_linear(c, c->w.hidden, c->w.qkv, false);
    add_heads(c, c->loops->head_norm);
    add_attention(c, unit_idx, false);
    add_linear(c, c->w.att, c->w.hidden, true);
    add_loop(c, c->rows, c->w.hidden, c->loops->norm_second);
    add_linear(c, c->w.hidden, c->w.mlp_in, false);
    add_loop(c, c->rows, (double)c->w.mlp_in + c->w.mlp, one_pass);
}

static void add_gradients(struct count *c, uint32_t unit_idx) {
    add_linear_back(c, c->w.mlp, c->w.hidden);
    add_bias_back(c, unit_idx, OX_ROLE_MLP_OUT_BIAS, c->w.hidden);
    add_loop(c, c->rows, 2.0 * c->w.mlp_in + c->w.mlp, one_pass);
    add_linear_back(c, c->w.hidden, c->w.mlp_in);
    add_bias_back(c, unit_idx, OX_ROLE_MLP_IN_BIAS, c->w.mlp_in);
    add_loop(c, c->rows, c->w.hidden, c->loops->norm_back);
    add_linear_back(c, c->w.att, c->w.hidden);
    add_bias_back(c, unit_idx, OX_ROLE_OUT_BIAS, c->w.hidden);
    add_attention(c, unit_idx, true);
    add_heads(c, c->loops->head_norm_back);
    add_linear_back(c, c->w.hidden, c->w.qkv);
    add_bias_back(c, unit_idx, OX_ROLE_QKV_BIAS, c->w.qkv);
    add_loop(c, c->rows, c->w.hidden, c->loops->norm_back);
}

static void add_block(struct count *c, uint32_t unit_idx, enum pass pass) {
    if (pass != PASS_BACKWARD_KEPT) {
        add_forward_to_act(c, unit_idx);
    }
    if (pass == PASS_FORWARD) {
        add_linear(c, c->w.mlp, c->w.hidden, true);
    } else {
        add_gradients(c, unit_idx);
    }
}

/* The head on a GPU, as it walks: pieces of `rows` rows and `words` words. */
struct walk {
    double vocab, groups, tiles, pieces;
    bool held;
};

static struct walk walk_of(const struct ox_shape *shape) {
    const uint32_t vocab = shape->model->config.vocab;
    const struct ox_head_walk walk = ox_head_walk_of(&shape->compute, shape->rows, vocab);
    struct walk out = {.vocab = vocab, .tiles = (double)ox_div_up(vocab, walk.tile_vocab), .held = walk.held};
    out.groups = (double)ox_div_up(shape->rows, walk.group_rows);
    out.pieces = out.tiles * out.groups * (double)ox_div_up(walk.group_rows, walk.tile_rows);
    return out;
}

/* A product of all pieces, of which rows are read again for each tile and words for each group of rows. */
static void add_walk_product(struct count *c, const struct walk *walk, double bytes) {
    c->work.product_flops += 2 * c->rows * walk->vocab * c->w.hidden;
    c->work.product_bytes += bytes;
    c->work.ops += (uint32_t)walk->pieces;
}

static void add_walk_loop(struct count *c, const struct walk *walk, double bytes_of_logit) {
    c->work.bytes += c->rows * walk->vocab * bytes_of_logit;
}

static void add_walk(struct count *c, bool backward) {
    const struct walk walk = walk_of(c->shape);
    const double table = walk.vocab * c->w.hidden, logits = c->rows * walk.vocab;
    const double rows_read = walk.tiles * c->rows * c->w.hidden * c->real_bytes;
    const double words_read = walk.groups * table * c->real_bytes;
    const uint32_t walks = backward ? 2 : 1;
    if (c->shape->compute.real == OX_REAL_F32) { /* the table's planes are joined */
        c->work.bytes += walks * walk.groups * table * (OX_HI_BYTES + OX_LO_BYTES + sizeof(float));
        c->work.ops += walks * (uint32_t)(walk.groups * walk.tiles);
    }
    for (uint32_t i = 0; i < (walk.held ? 1 : walks); i++) {
        add_walk_product(c, &walk, rows_read + words_read + logits * sizeof(float));
    }
    add_walk_loop(c, &walk, sizeof(float));
    c->work.ops += (uint32_t)walk.groups + 1; /* rows, losses and gradients in one; the sum of losses */
    if (backward) {
        add_walk_loop(c, &walk, sizeof(float) + c->real_bytes);
        add_walk_product(c, &walk, logits * c->real_bytes + words_read + 2 * rows_read);
        add_walk_product(c, &walk, logits * c->real_bytes + rows_read +
                                       walk.pieces / walk.tiles * table * 2 * sizeof(float));
    }
}

/* The logits are walked once for the loss, and with gradients once more, where they may have to be made again. */
static void add_head(struct count *c, bool backward) {
    const double vocab = c->shape->model->config.vocab;
    add_loop(c, c->rows, c->w.hidden, c->loops->norm);
    if (c->on_gpu) {
        add_walk(c, backward);
    } else {
        add_loop(c, vocab, c->w.hidden, two_passes); /* the table's planes are joined */
        add_linear(c, c->w.hidden, vocab, false);
        add_loop(c, c->rows, vocab, one_pass);
    }
    if (backward && !c->on_gpu) {
        if (!ox_ops_head_holds_logits(&c->shape->compute, c->shape->rows, c->shape->model->config.vocab)) {
            add_linear(c, c->w.hidden, vocab, false);
        }
        add_loop(c, c->rows, vocab, two_passes);
        add_linear_back(c, c->w.hidden, vocab);
    }
    if (backward) {
        add_loop(c, c->rows, c->w.hidden, c->loops->norm_back);
    }
}

/* Rows of a table, and back into their sums; a GPU sorts the rows for that, in two operations more. */
static void add_embedding(struct count *c, bool backward) {
    if (c->on_gpu && backward) {
        c->work.bytes += c->rows * c->w.hidden * (c->real_bytes + 2 * sizeof(float));
        c->work.ops += 3;
    } else {
        add_loop(c, c->rows, c->w.hidden, (struct loop){backward ? 3 : 2, 1});
    }
}

static struct ox_plan_work unit_work(const struct ox_shape *shape, uint32_t unit_idx, enum pass pass) {
    struct count c = begin(shape);
    const bool backward = pass != PASS_FORWARD;
    switch (shape->model->units[unit_idx].kind) {
    case OX_UNIT_EMBED:
        add_embedding(&c, backward);
        break;
    case OX_UNIT_BLOCK:
        add_block(&c, unit_idx, pass);
        break;
    default:
        add_head(&c, backward);
    }
    return c.work;
}

struct ox_plan_work ox_unit_forward_work(const struct ox_shape *shape, uint32_t unit_idx) {
    return unit_work(shape, unit_idx, PASS_FORWARD);
}

struct ox_plan_work ox_unit_backward_work(const struct ox_shape *shape, uint32_t unit_idx) {
    return unit_work(shape, unit_idx, PASS_BACKWARD);
}

struct ox_plan_work ox_unit_backward_kept_work(const struct ox_shape *shape, uint32_t unit_idx) {
    return unit_work(shape, unit_idx, PASS_BACKWARD_KEPT);
}
