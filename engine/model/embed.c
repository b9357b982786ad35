/* The embedding: a row of the table for each id, and of the learned positions where the family has them. */
#include "engine/model/list.h"

#include "base/bytes.h"
#include "base/planes.h"
#include "engine/model/node_groups.h"

#include <math.h>

/* The factor of the embeddings, in the type of the weights where the model has it as one of them; 0: none. */
static float scale_of(const struct ox_shape *shape) {
    const struct ox_model_config *const config = &shape->model->config;
    const float scale = (float)config->embed_scale;
    const bool rounds = config->embed_scale_rounds && shape->dtype == OX_COMPUTE_BF16;
    return rounds ? ox_bf16_to_f32(ox_bf16_from_f32(scale)) : scale;
}

static bool scales(float scale) {
    return scale != 0.0f && scale != 1.0f;
}

void ox_embed_list(const struct ox_shape *shape, const struct ox_unit *unit, struct ox_list *list) {
    const uint32_t ids = ox_list_begin(list, shape, unit);
    list->values[ids].bytes = shape->rows * sizeof(int32_t);
    list->out = ox_list_lookup_low(list, ids, ox_list_lookup(list, ids));
    if (scales(scale_of(shape))) {
        list->out = ox_list_scale(list, list->out, scale_of(shape));
    }
}

/* ---- operations ---- */

/* A role's planes; NULL where the family lacks it. */
struct ox_planes ox_role_planes(const struct ox_node_call *call, enum ox_role role, uint32_t group) {
    const uint32_t owner = ox_list_owner_of(call->list, role, group);
    if (owner == UINT32_MAX) {
        return (struct ox_planes){NULL, NULL};
    }
    const struct ox_planes planes = call->job->planes[owner];
    const uint64_t first = call->list->units[owner]->role_offset[role];
    return (struct ox_planes){.hi = planes.hi + first, .lo = planes.lo == NULL ? NULL : planes.lo + first};
}

/* The tokens of a group's table. */
static struct ox_token_range tokens_of(const struct ox_node_call *call, uint32_t group) {
    const uint32_t vocab = call->job->shape->model->config.vocab, groups = call->list->groups;
    const uint32_t first = (uint32_t)ox_groups_begin(vocab, groups, group);
    return groups == 1 ? (struct ox_token_range){0}
                       : (struct ox_token_range){first, (uint32_t)ox_groups_begin(vocab, groups, group + 1) - first};
}

/* Where ranks have groups of tokens each: forward makes the rows of the rank's tokens, and gets of its own rows those
 * of every rank; backward gets all rows. */
uint64_t ox_lookup_scratch(const struct ox_shape *shape, const struct ox_node *node, bool backward) {
    return ox_shape_tensors(shape) == 1 ? 0
                                        : (backward ? 1 : 2) *
                                              ox_align_up(ox_whole_rows_bytes(shape, node->out_count), 64);
}

uint32_t ox_lookup_parts(const struct ox_list *list, const struct ox_node *node, bool backward, bool din,
                         struct ox_node_cut_at out[OX_NODE_CUTS_MAX]) {
    (void)din;
    ox_whole_rows_cuts(list->shape, node->out_count, 0, out);
    if (!backward) {
        out[0].kind = OX_CUT_EXCHANGE;
        out[0].target = ox_lookup_scratch(list->shape, node, false) / 2;
    }
    return 1;
}

/* A row is that of the one rank that has its token; the others have -0 there, to which any number is added as it is. */
static void join_rows(const struct ox_node_call *call) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_own_rows own = ox_own_rows_of(shape);
    const uint64_t cols = call->node->out_count;
    unsigned char *const pieces = (unsigned char *)call->scratch + ox_lookup_scratch(shape, call->node, false) / 2;
    ox_add_pieces(&call->job->run, pieces, ox_shape_tensors(shape), own.most * cols, shape->compute.real);
    if (own.count > 0) {
        OX_RUN(&call->job->run, add, .target = call->out, .b = pieces, .count = own.count * cols,
               .real = shape->compute.real);
    }
}

void ox_lookup_forward(const struct ox_node_call *call) {
    const struct ox_unit_job *const job = call->job;
    const struct ox_planes position = ox_role_planes(call, OX_ROLE_POSITION, 0);
    const uint64_t count = (uint64_t)job->shape->rows * call->node->out_count;
    void *const rows = ox_shape_tensors(job->shape) > 1 ? call->scratch : call->out;
    if (call->part > 0) {
        join_rows(call);
        return;
    }
    if (rows != call->out) {
        OX_RUN(&call->job->run, zero, .target = rows, .bytes = count * ox_real_bytes(job->shape->compute.real));
        OX_RUN(&call->job->run, add, .target = rows, .b = rows, .scale = -1, .count = count,
               .real = job->shape->compute.real);
    }
    for (uint32_t g = call->list->group_first; g < call->list->group_past; g++) {
        const struct ox_planes table = ox_role_planes(call, OX_ROLE_EMBED, g);
        OX_RUN(&call->job->run, embed_forward, .out = rows, .table_hi = table.hi, .table_lo = table.lo,
               .pos_hi = position.hi, .pos_lo = position.lo, .ids = call->in, .positions = job->positions,
               .tokens = tokens_of(call, g), .rows = job->shape->rows, .hidden = call->node->out_count,
               .real = job->shape->compute.real);
    }
}

void ox_lookup_backward(const struct ox_node_call *call) {
    const struct ox_unit_job *const job = call->job;
    const uint32_t first = call->list->group_first;
    const bool apart = ox_shape_tensors(job->shape) > 1;
    if (apart && call->part == 0) {
        ox_whole_rows_give(call, call->dout, call->node->out_count, call->scratch);
        return;
    }
    for (uint32_t g = first; g < call->list->group_past; g++) {
        OX_RUN(&call->job->run, embed_backward, .dtable = ox_node_grad_of(call, OX_ROLE_EMBED, g),
               .dpos = g == first ? ox_node_grad(call, OX_ROLE_POSITION) : NULL,
               .dout = apart ? call->scratch : call->dout, .ids = call->in,
               .positions = job->positions, .tokens = tokens_of(call, g), .rows = job->shape->rows,
               .hidden = call->node->out_count, .real = job->shape->compute.real);
    }
}

static void scale_in_place(struct ox_unit_job *job, float scale, void *rows) {
    const uint32_t count = ox_own_rows_of(job->shape).count;
    if (count > 0) {
        OX_RUN(&job->run, add, .target = rows, .b = rows, .scale = scale, .real = job->shape->compute.real,
               .count = (uint64_t)count * job->shape->model->config.hidden);
    }
}

void ox_embed_scale(struct ox_unit_job *job, void *rows) {
    const float scale = scale_of(job->shape);
    if (scales(scale)) {
        scale_in_place(job, scale, rows);
    }
}

/* The noise of all rows comes from one stream; a rank with a part of them makes all, where the lookup has worked. */
void ox_embed_noise(struct ox_unit_job *job, void *rows) {
    const struct ox_shape *const shape = job->shape;
    const struct ox_own_rows own = ox_own_rows_of(shape);
    const uint64_t hidden = shape->model->config.hidden, count = shape->rows * hidden;
    const bool apart = ox_shape_tensors(shape) > 1;
    void *const to = apart ? job->work : rows;
    if (!job->trains || shape->objective.noise == 0.0f) {
        return;
    }
    if (apart) {
        OX_RUN(&job->run, zero, .target = to, .bytes = count * ox_real_bytes(shape->compute.real));
    }
    OX_RUN(&job->run, noise, .inout = to, .count = count, .seed = shape->objective.noise_seed,
           .stream = job->noise_stream,
           .magnitude = (float)((double)shape->objective.noise / sqrt((double)shape->seq * (double)hidden)),
           .real = shape->compute.real);
    if (apart && own.count > 0) {
        OX_RUN(&job->run, add, .target = rows, .a = rows, .count = own.count * hidden, .real = shape->compute.real,
               .b = (unsigned char *)to + own.first * hidden * ox_real_bytes(shape->compute.real));
    }
}

void ox_scale_forward(const struct ox_node_call *call) {
    scale_in_place(call->job, call->node->scale, call->out);
}

void ox_scale_backward(const struct ox_node_call *call) {
    scale_in_place(call->job, call->node->scale, call->din);
}

/* ---- cost ---- */

/* Backward adds rows to the sums of the table; a GPU sorts the rows first, in two operations more. */
void ox_cost_lookup(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    if (cost->on_gpu && backward) {
        cost->work.bytes += cost->rows * node->out_count * (cost->real_bytes + 2 * sizeof(float));
        cost->work.ops += 3;
    } else {
        const struct ox_cost_loop loop = {.passes = backward ? 3 : 2, .ops = 1};
        ox_cost_add_loop(cost, cost->rows, node->out_count, loop);
    }
}

void ox_cost_scale(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    (void)backward;
    ox_cost_add_loop(cost, cost->rows, node->out_count, (struct ox_cost_loop){.passes = 2, .ops = 1});
}
