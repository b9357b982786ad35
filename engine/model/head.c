/* The head: final norm, logits and cross-entropy. Forward and backward are one run, as the logits never exist whole. */
#include "engine/model/pieces.h"

#include "base/arena.h"
#include "base/bytes.h"
#include "kernels/head_walk.h"

struct tensors {
    void *normed;       /* (rows, hidden) */
    float *mean, *rstd; /* (rows) */
    void *gain, *bias;  /* (hidden): the norm's weights, where their planes have to be joined */
    void *norm_scratch, *head_scratch;
};

static uint64_t carve_head(const struct ox_shape *shape, void *base, struct tensors *out) {
    const struct ox_model_config *const config = &shape->model->config;
    const bool in_place = shape->compute.real == OX_REAL_BF16;
    const uint64_t joined = in_place ? 0 : config->hidden * ox_real_bytes(shape->compute.real);
    struct ox_bump carve = {.base = base};
    out->normed = ox_bump_alloc(&carve, ox_rows_bytes(shape, config->hidden));
    out->mean = ox_bump_alloc(&carve, ox_rows_f32_bytes(shape, 1));
    out->rstd = ox_bump_alloc(&carve, ox_rows_f32_bytes(shape, 1));
    out->gain = ox_bump_alloc(&carve, joined);
    out->bias = ox_bump_alloc(&carve, joined);
    out->norm_scratch = ox_bump_alloc(&carve, ox_ops_norm_scratch_bytes(&shape->compute, config->hidden));
    out->head_scratch = ox_bump_alloc(
        &carve, ox_ops_head_scratch_bytes(&shape->compute, shape->rows, config->hidden, config->vocab));
    return carve.bytes;
}

uint64_t ox_head_work_bytes(const struct ox_shape *shape) {
    struct tensors t;
    return carve_head(shape, NULL, &t);
}

/* A weight of the norm as compute reads it: in bfloat16 the hi plane itself, else joined to `room`. NULL when the
 * family has none. */
static const void *norm_weight(struct ox_unit_job *job, struct ox_planes planes, enum ox_role role, void *room) {
    const uint64_t offset = job->unit->role_offset[role];
    if (offset == UINT64_MAX) {
        return NULL;
    }
    if (job->shape->compute.real == OX_REAL_BF16) {
        return planes.hi + offset;
    }
    OX_RUN(&job->run, planes_join, .out = room, .hi = planes.hi + offset,
           .lo = planes.lo == NULL ? NULL : planes.lo + offset, .count = job->shape->model->config.hidden,
           .real = job->shape->compute.real);
    return room;
}

static float *norm_grad(const struct ox_unit_job *job, float *grads, enum ox_role role) {
    const uint64_t offset = job->unit->role_offset[role];
    const bool trained = job->unit->role_trained[role];
    return offset == UINT64_MAX || !trained || grads == NULL ? NULL : grads + offset;
}

/* What no operation of the head writes in its gradients. */
static void clear_gaps(struct ox_unit_job *job, const struct ox_head_args *args) {
    if (args->grads != NULL) {
        ox_clear_gaps(job, job->unit, args->grads);
    }
    if (args->grads_table != NULL && job->unit->role_offset[OX_ROLE_HEAD] == UINT64_MAX) { /* tied */
        const struct ox_model_config *const config = &job->shape->model->config;
        const uint64_t count = (uint64_t)config->vocab * config->hidden;
        ox_clear_range(job, args->grads_table, count, ox_align_up(count, OX_GROUP_ELEMS));
    }
}

enum ox_status ox_head_run(struct ox_unit_job *job, const struct ox_head_args *args) {
    const struct ox_model_config *const config = &job->shape->model->config;
    struct tensors t;
    carve_head(job->shape, job->work, &t);
    OX_RUN(&job->run, zero, .target = args->loss_sum, .bytes = sizeof *args->loss_sum);
    const void *const gain = norm_weight(job, args->planes, OX_ROLE_FINAL_NORM, t.gain);
    const void *const bias = norm_weight(job, args->planes, OX_ROLE_FINAL_NORM_BIAS, t.bias);
    const struct ox_norm norm = {.gain = gain, .bias = bias, .mean = t.mean, .rstd = t.rstd,
                                 .dgain = norm_grad(job, args->grads, OX_ROLE_FINAL_NORM),
                                 .dbias = norm_grad(job, args->grads, OX_ROLE_FINAL_NORM_BIAS),
                                 .scratch = t.norm_scratch};
    if (job->begins) {
        clear_gaps(job, args);
    }
    /* The table's own gradient needs no more than the normed rows. */
    const bool tied = job->unit->role_offset[OX_ROLE_HEAD] == UINT64_MAX;
    const bool table_is_trained = tied || job->unit->role_trained[OX_ROLE_HEAD];
    const bool needs_dx = args->dx != NULL && (job->unit->gives_dx || norm.dgain != NULL || norm.dbias != NULL);
    ox_norm_forward(job, &norm, args->x, NULL, t.normed);
    OX_RUN(&job->run, head,
           .loss_sum = args->loss_sum, .din = needs_dx ? args->dx : NULL,
           .dweight = table_is_trained ? args->grads_table : NULL, .in = t.normed,
           .weight_hi = args->table.hi, .weight_lo = args->table.lo, .targets = job->targets, .logits = args->logits,
           .scratch = t.head_scratch, .rows = job->shape->rows, .hidden = config->hidden, .vocab = config->vocab,
           .loss_scale = args->loss_scale, .logit_scale = (float)config->logit_scale,
           .logit_cap = (float)config->logit_cap, .real = job->shape->compute.real, .begins = job->begins);
    if (needs_dx) {
        ox_norm_backward(job, &norm, args->x, args->dx, NULL, args->dx);
    }
    return job->run.status;
}

void ox_head_logits(struct ox_unit_job *job, const void *table, uint32_t count, const void *in, void *logits) {
    OX_RUN(&job->run, linear_forward,
           .out = logits, .in = in, .weight = table, .rows = job->shape->rows,
           .in_count = job->shape->model->config.hidden, .out_count = count, .layout = OX_WEIGHT_OUT_IN,
           .real = job->shape->compute.real);
    const struct ox_model_config *const config = &job->shape->model->config;
    if (config->logit_scale != 0.0 || config->logit_cap != 0.0) {
        OX_RUN(&job->run, logits, .logits = logits, .count = (uint64_t)job->shape->rows * count,
               .scale = (float)config->logit_scale, .cap = (float)config->logit_cap);
    }
}

/* ---- cost ---- */

/* The head on a GPU walks rows in groups, and within each group the vocabulary in tiles; a piece is the part of a tile
 * whose logits are computed at once. */
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

/* Adds the cost of one of the head's GEMMs over all tiles. `bytes` counts that each vocabulary tile rereads the rows,
 * and each group of rows the table. */
static void add_walk_gemm(struct ox_cost *cost, const struct walk *walk, double bytes) {
    cost->work.gemm_flops += 2 * cost->rows * walk->vocab * cost->shape->model->config.hidden;
    cost->work.gemm_bytes += bytes;
    cost->work.ops += (uint32_t)walk->pieces;
}

static void add_walk_loop(struct ox_cost *cost, const struct walk *walk, double bytes_of_logit) {
    cost->work.bytes += cost->rows * walk->vocab * bytes_of_logit;
}

static void gpu_cost(struct ox_cost *cost, bool backward) {
    const struct walk walk = walk_of(cost->shape);
    const uint32_t hidden = cost->shape->model->config.hidden;
    const double table = walk.vocab * hidden, logits = cost->rows * walk.vocab;
    const double rows_read = walk.tiles * cost->rows * hidden * cost->real_bytes;
    const double table_read = walk.groups * table * cost->real_bytes;
    const uint32_t walks = backward ? 2 : 1;
    if (cost->shape->compute.real != OX_REAL_BF16) { /* the table's planes are joined */
        cost->work.bytes += walks * walk.groups * table * (OX_HI_BYTES + OX_LO_BYTES + cost->real_bytes);
        cost->work.ops += walks * (uint32_t)(walk.groups * walk.tiles);
    }
    for (uint32_t i = 0; i < (walk.held ? 1 : walks); i++) {
        add_walk_gemm(cost, &walk, rows_read + table_read + logits * sizeof(float));
    }
    add_walk_loop(cost, &walk, sizeof(float));
    cost->work.ops += (uint32_t)walk.groups + 1; /* losses and gradients in one operation; the sum of losses */
    if (backward) {
        add_walk_loop(cost, &walk, sizeof(float) + cost->real_bytes);
        add_walk_gemm(cost, &walk, logits * cost->real_bytes + table_read + 2 * rows_read);
        add_walk_gemm(cost, &walk, logits * cost->real_bytes + rows_read +
                                       walk.pieces / walk.tiles * table * 2 * sizeof(float));
    }
}

static bool table_is_trained(const struct ox_model *model) {
    return model->units[model->table.unit_idx].role_trained[model->config.tied ? OX_ROLE_EMBED : OX_ROLE_HEAD];
}

static void cpu_cost(struct ox_cost *cost, bool backward) {
    const uint32_t hidden = cost->shape->model->config.hidden, vocab = cost->shape->model->config.vocab;
    const struct ox_cost_loop one_pass = {.passes = 1, .ops = 1}, two_passes = {.passes = 2, .ops = 1};
    ox_cost_add_loop(cost, vocab, hidden, two_passes); /* the table's planes are joined */
    ox_cost_add_linear(cost, hidden, vocab, false);
    ox_cost_add_loop(cost, cost->rows, vocab, one_pass);
    if (backward) {
        if (!ox_ops_head_holds_logits(&cost->shape->compute, cost->shape->rows, vocab)) {
            ox_cost_add_linear(cost, hidden, vocab, false);
        }
        ox_cost_add_loop(cost, cost->rows, vocab, two_passes);
        ox_cost_add_linear_backward(cost, hidden, vocab, table_is_trained(cost->shape->model));
    }
}

/* The logits are walked once for the loss, and once more for gradients, where they may have to be computed again. */
void ox_head_cost(struct ox_cost *cost, bool backward) {
    const uint32_t hidden = cost->shape->model->config.hidden;
    ox_cost_add_loop(cost, cost->rows, hidden, cost->loops->norm);
    if (cost->on_gpu) {
        gpu_cost(cost, backward);
    } else {
        cpu_cost(cost, backward);
    }
    if (backward) {
        ox_cost_add_loop(cost, cost->rows, hidden, cost->loops->norm_backward);
    }
}
