/* The head: final norm, logits and cross-entropy. Forward and backward are one run, as the logits never exist whole. */
#include "engine/model/pieces.h"
#include "engine/model/schedule.h"

#include "base/arena.h"
#include "base/bytes.h"
#include "engine/model/node_groups.h"
#include "kernels/head_walk.h"

void ox_head_list(const struct ox_shape *shape, const struct ox_unit *unit, struct ox_list *list) {
    const uint32_t x = ox_list_begin(list, shape, unit);
    list->out = ox_list_loss(list, ox_list_final_norm(list, x, shape->compute.real != OX_REAL_BF16));
}

/* ---- operations ---- */

void ox_cast_forward(const struct ox_node_call *call) {
    const struct ox_unit_job *const job = call->job;
    const uint32_t cols = job->shape->model->config.hidden, width = ox_real_bytes(job->shape->compute.real);
    for (uint32_t at = 0; at < call->node->out_count; at += cols) {
        const uint64_t offset = job->unit->role_offset[call->node->role + at / cols];
        OX_RUN(&call->job->run, planes_join, .out = (unsigned char *)call->out + at * width,
               .hi = job->planes[0].hi + offset,
               .lo = job->planes[0].lo == NULL ? NULL : job->planes[0].lo + offset, .count = cols,
               .real = job->shape->compute.real);
    }
}

uint32_t ox_objective_values(const struct ox_objective *objective, uint32_t batch) {
    const bool parts = objective->smoothing != 0.0f || objective->z_loss != 0.0f;
    return objective->pairs ? OX_PAIR_VALUES + batch : parts ? OX_LOSS_VALUES : 1;
}

/* What the loss works in. */
struct rooms {
    void *head;
    struct ox_head_adapter adapter;
    double *row_parts;            /* (2, rows), where the loss has parts */
    double *spare;                /* with pairs: the sum of cross-entropies, which is not used; */
    float *row_nll, *row_weights; /* (rows) */
};

static uint64_t carve(const struct ox_shape *shape, const struct ox_node *node, void *base, struct rooms *out) {
    const bool parts = shape->objective.smoothing != 0.0f || shape->objective.z_loss != 0.0f;
    const uint64_t pair_rows = shape->objective.pairs ? shape->rows : 0;
    struct ox_bump room = {.base = base};
    out->head = ox_bump_alloc(
        &room, ox_ops_head_scratch_bytes(&shape->compute, shape->rows, node->in_count, node->out_count));
    out->row_parts = ox_bump_alloc(&room, parts ? 2 * (uint64_t)shape->rows * sizeof(double) : 0);
    out->spare = ox_bump_alloc(&room, pair_rows > 0 ? sizeof(double) : 0);
    out->row_nll = ox_bump_alloc(&room, pair_rows * sizeof(float));
    out->row_weights = ox_bump_alloc(&room, pair_rows * sizeof(float));
    if (ox_head_is_adapted(shape)) {
        return ox_head_adapter_rooms(shape, room.bytes, base, &out->adapter);
    }
    return parts || pair_rows > 0
               ? room.bytes
               : ox_ops_head_scratch_bytes(&shape->compute, shape->rows, node->in_count, node->out_count);
}

static bool is_cut(const struct ox_shape *shape) {
    return ox_model_groups(&shape->model->config) > 1;
}

uint64_t ox_loss_scratch(const struct ox_shape *shape, const struct ox_node *node, bool backward) {
    struct ox_loss_rooms of_groups;
    struct rooms rooms;
    (void)backward;
    return is_cut(shape) ? ox_loss_group_rooms(shape, node, NULL, &of_groups) : carve(shape, node, NULL, &rooms);
}

static bool is_tied(const struct ox_unit *unit) {
    return unit->role_offset[OX_ROLE_HEAD] == UINT64_MAX;
}

/* The losses of pairs, and what each row weighs in them, of the log-probabilities of rows. */
static void weigh(const struct ox_node_call *call, double *values, const struct rooms *rooms) {
    struct ox_unit_job *const job = call->job;
    const struct ox_objective *const objective = &job->shape->objective;
    OX_RUN(&job->run, pairs, .values = values, .row_weights = rooms->row_weights, .row_nll = rooms->row_nll,
           .targets = job->targets, .reference = job->reference, .batch = job->shape->batch, .seq = job->shape->seq,
           .loss = objective->pair_loss, .beta = objective->beta, .smoothing = objective->pair_smoothing,
           .sft = objective->sft);
}

/* All log-probabilities of a pair come before its gradients. */
static void weigh_pairs(const struct ox_node_call *call, struct ox_op_head *op, const struct rooms *rooms) {
    double *const values = op->loss_sum;
    struct ox_op_head alone = *op;
    alone.loss_sum = op->loss_sum = rooms->spare;
    alone.row_nll = rooms->row_nll;
    alone.din = NULL;
    alone.dweight = NULL;
    alone.low.din = NULL;
    alone.low.dweight = NULL;
    OX_THEN(call->job->run.status, OX_QUEUE(call->job->run.ops, call->job->run.lane, head, &alone));
    weigh(call, values, rooms);
    op->row_weights = rooms->row_weights;
}

/* Runs a head whose vocabulary is cut into groups: statistics, losses, then the gradients of every part. */
static void run_groups(const struct ox_node_call *call, struct ox_op_head op, bool backward) {
    const struct ox_objective *const objective = &call->job->shape->objective;
    struct ox_loss_rooms rooms;
    ox_loss_group_rooms(call->job->shape, call->node, call->scratch, &rooms);
    op.scratch = rooms.head;
    double *const values = op.loss_sum;
    if (objective->pairs) {
        op.loss_sum = rooms.spare;
        op.row_nll = rooms.row_nll;
    }
    struct ox_node_cut_at cuts[OX_NODE_CUTS_MAX];
    const bool apart = ox_shape_tensors(call->job->shape) > 1;
    const uint32_t known = apart ? ox_loss_group_cuts(call->job->shape, call->node, cuts) : 0; /* behind this part */
    if (apart && call->part == 0) {
        ox_whole_rows_give(call, call->in, call->node->in_count, rooms.whole);
    }
    op.in = apart ? rooms.whole : op.in;
    if (call->part == (apart ? 1 : 0)) {
        ox_loss_groups_statistics(call, &op, &rooms);
    }
    if (call->part == known) {
        ox_loss_groups_merge(call, &op, &rooms);
    }
    if (objective->pairs && call->part == known) {
        weigh(call, values, &(struct rooms){.row_nll = rooms.row_nll, .row_weights = rooms.row_weights});
        op.row_weights = rooms.row_weights;
    }
    if (backward && call->part >= known) {
        ox_loss_groups_gradients(call, &op, &rooms, call->part - known);
    }
}

/* Logits and loss; in backward the gradients too, of the table and of the rows that the table is multiplied with. */
static void run_loss(const struct ox_node_call *call, bool backward) {
    const struct ox_unit_job *const job = call->job;
    const struct ox_head_args *const args = job->head;
    const struct ox_model_config *const config = &job->shape->model->config;
    const bool trained = backward && (is_tied(job->unit) || job->unit->role_trained[OX_ROLE_HEAD]);
    struct ox_op_head op = {
        .loss_sum = args->loss_sum, .din = call->din, .dweight = trained ? args->grads_tables[0] : NULL,
        .in = call->in, .weight_hi = args->tables[0].hi, .weight_lo = args->tables[0].lo, .targets = job->targets,
        .logits = args->logits, .rows = job->shape->rows, .hidden = config->hidden, .vocab = config->vocab,
        .loss_scale = args->loss_scale, .logit_scale = (float)config->logit_scale,
        .logit_cap = (float)config->logit_cap, .real = job->shape->compute.real, .begins = job->begins};
    const struct ox_objective *const objective = &job->shape->objective;
    const bool parts = objective->smoothing != 0.0f || objective->z_loss != 0.0f;
    if (parts) {
        op.parts = args->loss_sum + OX_LOSS_NLL;
        op.smoothing = job->trains ? objective->smoothing : 0.0f;
        op.z_loss = job->trains ? objective->z_loss : 0.0f;
    }
    if (is_cut(job->shape)) {
        run_groups(call, op, backward);
        return;
    }
    struct rooms rooms;
    carve(job->shape, call->node, call->scratch, &rooms);
    op.scratch = rooms.head;
    op.row_parts = parts ? rooms.row_parts : NULL;
    const bool adapted = ox_head_is_adapted(job->shape);
    if (adapted) {
        op.low = ox_head_adapter_forward(call, &rooms.adapter);
        op.low.din = backward ? rooms.adapter.dproducts : NULL;
        op.low.dweight = backward ? ox_node_grad(call, OX_ROLE_HEAD_B) : NULL;
    }
    if (objective->pairs) {
        weigh_pairs(call, &op, &rooms);
    }
    if (!objective->pairs || op.din != NULL || op.dweight != NULL || op.low.din != NULL) {
        OX_THEN(call->job->run.status, OX_QUEUE(call->job->run.ops, call->job->run.lane, head, &op));
    }
    if (adapted && backward) {
        ox_head_adapter_backward(call, &rooms.adapter);
    }
}

uint32_t ox_loss_parts(const struct ox_list *list, const struct ox_node *node, bool backward, bool din,
                       struct ox_node_cut_at out[OX_NODE_CUTS_MAX]) {
    struct ox_loss_rooms rooms;
    const uint32_t known = ox_loss_group_cuts(list->shape, node, out);
    ox_loss_group_rooms(list->shape, node, NULL, &rooms);
    return known + (backward && din ? ox_joined_sum_cuts(list->shape, node->in_count, rooms.sums_at, &out[known]) : 0);
}

void ox_loss_forward(const struct ox_node_call *call) {
    run_loss(call, false);
}

void ox_loss_backward(const struct ox_node_call *call) {
    run_loss(call, true);
}

/* Clears what lies behind a tied table, or that of a group, up to where the gradient of its unit goes on. */
static void clear_behind_tables(struct ox_unit_job *job, float *const *grads_tables) {
    const struct ox_model_config *const config = &job->shape->model->config;
    const uint32_t groups = ox_model_groups(config);
    const bool first = !job->in_phases || job->phase == 0;
    for (uint32_t g = 0; g < groups && job->begins && first && is_tied(job->unit); g++) {
        const uint64_t rows = ox_groups_begin(config->vocab, groups, g + 1) - ox_groups_begin(config->vocab, groups, g);
        if (grads_tables[g] != NULL) {
            ox_clear_range(job, grads_tables[g], rows * config->hidden,
                           ox_align_up(rows * config->hidden, OX_GROUP_ELEMS));
        }
    }
}

enum ox_status ox_head_run(struct ox_unit_job *job, const struct ox_head_args *args) {
    struct ox_schedule schedule;
    struct ox_list list;
    ox_head_list(job->shape, job->unit, &list);
    ox_schedule_make(&list, args->dx != NULL ? OX_PASS_BACKWARD : OX_PASS_FORWARD, &schedule);
    void *const bases[OX_MEMORY_COUNT] = {[OX_MEMORY_X] = (void *)args->x, [OX_MEMORY_Y] = args->loss_sum,
                           [OX_MEMORY_DX] = args->dx, [OX_MEMORY_WORK] = job->work, [OX_MEMORY_KEPT] = NULL};
    struct ox_stage_weights weights = {.weights = {args->planes.hi}, .grads = {args->grads}};
    const uint32_t adapter = ox_list_owner(&list, OX_ROLE_HEAD_A);
    job->head = args;
    job->planes[0] = args->planes;
    if (adapter != UINT32_MAX) {
        job->planes[adapter] = args->adapter;
        weights.grads[adapter] = args->grads_adapter;
    }
    if (!job->in_phases || job->phase == 0) {
        OX_RUN(&job->run, zero, .target = args->loss_sum,
               .bytes = ox_objective_values(&job->shape->objective, job->shape->batch) * sizeof *args->loss_sum);
    }
    clear_behind_tables(job, args->grads_tables);
    ox_schedule_run(&schedule, job, &weights, bases, job->in_phases ? job->phase : OX_SCHEDULE_ALL_PHASES);
    return job->run.status;
}

enum ox_status ox_final_norm(struct ox_unit_job *job, const void *weights, const void *x, void *y) {
    struct ox_schedule schedule;
    struct ox_list list;
    const uint32_t in = ox_list_begin(&list, job->shape, job->unit);
    list.out = ox_list_final_norm(&list, in, false);
    ox_schedule_make(&list, OX_PASS_FORWARD, &schedule);
    void *const bases[OX_MEMORY_COUNT] = {[OX_MEMORY_X] = (void *)x, [OX_MEMORY_Y] = y, [OX_MEMORY_WORK] = job->work,
                           [OX_MEMORY_KEPT] = NULL};
    job->weights_first = job->unit->role_offset[OX_ROLE_FINAL_NORM];
    const struct ox_stage_weights all = {.weights = {weights}};
    ox_schedule_run(&schedule, job, &all, bases, OX_SCHEDULE_ALL_PHASES);
    return job->run.status;
}

void ox_head_logits(struct ox_unit_job *job, const void *table, const struct ox_head_low *low, uint32_t count,
                    const void *in, void *logits) {
    OX_RUN(&job->run, linear_forward,
           .out = logits, .in = in, .weight = table, .rows = job->shape->rows,
           .in_count = job->shape->model->config.hidden, .out_count = count, .layout = OX_WEIGHT_OUT_IN,
           .real = job->shape->compute.real);
    if (low != NULL) {
        OX_RUN(&job->run, linear_forward, .out = logits, .in = low->in, .weight = low->weight, .residual = logits,
               .rows = job->shape->rows, .in_count = low->r, .out_count = count, .scale = low->scale,
               .layout = OX_WEIGHT_OUT_IN, .real = job->shape->compute.real);
    }
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
    const uint32_t vocab = shape->model->config.vocab / ox_shape_tensors(shape);
    const struct ox_head_walk walk = ox_head_walk_of(&shape->compute, shape->rows, vocab);
    struct walk out = {.vocab = vocab, .tiles = (double)ox_div_up(vocab, walk.tile_vocab), .held = walk.held};
    out.held &= !is_cut(shape);
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

static bool table_is_trained(const struct ox_model *model) {
    return model->units[model->table.unit_idx].role_trained[model->config.tied ? OX_ROLE_EMBED : OX_ROLE_HEAD];
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
    }
    if (backward && table_is_trained(cost->shape->model)) {
        add_walk_gemm(cost, &walk, logits * cost->real_bytes + rows_read +
                                       walk.pieces / walk.tiles * table * 2 * sizeof(float));
    }
}

static void cpu_cost(struct ox_cost *cost, bool backward) {
    const uint32_t hidden = cost->shape->model->config.hidden;
    const uint32_t vocab = cost->shape->model->config.vocab / ox_shape_tensors(cost->shape);
    const struct ox_cost_loop one_pass = {.passes = 1, .ops = 1}, two_passes = {.passes = 2, .ops = 1};
    ox_cost_add_loop(cost, vocab, hidden, two_passes); /* the table's planes are joined */
    ox_cost_add_linear(cost, hidden, vocab, false);
    ox_cost_add_loop(cost, cost->rows, vocab, one_pass);
    if (backward) {
        if (is_cut(cost->shape) || !ox_ops_head_holds_logits(&cost->shape->compute, cost->shape->rows, vocab)) {
            ox_cost_add_linear(cost, hidden, vocab, false);
        }
        ox_cost_add_loop(cost, cost->rows, vocab, two_passes);
        ox_cost_add_linear_backward(cost, hidden, vocab, table_is_trained(cost->shape->model));
    }
}

/* The logits are walked once for the loss, and once more for gradients, where they may have to be computed again. */
void ox_cost_loss(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    (void)node;
    if (backward && cost->shape->objective.pairs) { /* their log-probabilities first */
        (cost->on_gpu ? gpu_cost : cpu_cost)(cost, false);
    }
    (cost->on_gpu ? gpu_cost : cpu_cost)(cost, backward);
    if (ox_head_is_adapted(cost->shape)) {
        ox_cost_head_adapter(cost, backward);
    }
}

/* Planes of a norm's weights are so few that their time is not counted. */
void ox_cost_cast(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    (void)cost, (void)node, (void)backward;
}
