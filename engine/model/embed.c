/* The embedding: a row of the table for each id, and of the learned positions where the family has them. */
#include "engine/model/list.h"

#include "base/planes.h"

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
    list->out = ox_list_lookup(list, ids);
    if (scales(scale_of(shape))) {
        list->out = ox_list_scale(list, list->out, scale_of(shape));
    }
}

/* ---- operations ---- */

/* A role's planes; NULL where the family lacks it. */
static struct ox_planes planes_of(const struct ox_node_call *call, enum ox_role role, uint32_t group) {
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

void ox_lookup_forward(const struct ox_node_call *call) {
    const struct ox_unit_job *const job = call->job;
    const struct ox_planes position = planes_of(call, OX_ROLE_POSITION, 0);
    for (uint32_t g = 0; g < call->list->groups; g++) {
        const struct ox_planes table = planes_of(call, OX_ROLE_EMBED, g);
        OX_RUN(&call->job->run, embed_forward, .out = call->out, .table_hi = table.hi, .table_lo = table.lo,
               .pos_hi = position.hi, .pos_lo = position.lo, .ids = call->in, .positions = job->positions,
               .tokens = tokens_of(call, g), .rows = job->shape->rows, .hidden = call->node->out_count,
               .real = job->shape->compute.real);
    }
}

void ox_lookup_backward(const struct ox_node_call *call) {
    const struct ox_unit_job *const job = call->job;
    for (uint32_t g = 0; g < call->list->groups; g++) {
        OX_RUN(&call->job->run, embed_backward, .dtable = ox_node_grad_of(call, OX_ROLE_EMBED, g),
               .dpos = g == 0 ? ox_node_grad(call, OX_ROLE_POSITION) : NULL, .dout = call->dout, .ids = call->in,
               .positions = job->positions, .tokens = tokens_of(call, g), .rows = job->shape->rows,
               .hidden = call->node->out_count, .real = job->shape->compute.real);
    }
}

static void scale_in_place(struct ox_unit_job *job, float scale, void *rows) {
    OX_RUN(&job->run, add, .target = rows, .b = rows, .scale = scale, .real = job->shape->compute.real,
           .count = (uint64_t)job->shape->rows * job->shape->model->config.hidden);
}

void ox_embed_scale(struct ox_unit_job *job, void *rows) {
    const float scale = scale_of(job->shape);
    if (scales(scale)) {
        scale_in_place(job, scale, rows);
    }
}

void ox_embed_noise(struct ox_unit_job *job, void *rows) {
    const struct ox_shape *const shape = job->shape;
    const double numbers = (double)shape->seq * shape->model->config.hidden;
    if (job->trains && shape->objective.noise != 0.0f) {
        OX_RUN(&job->run, noise, .inout = rows, .count = (uint64_t)shape->rows * shape->model->config.hidden,
               .seed = shape->objective.noise_seed, .stream = job->noise_stream,
               .magnitude = (float)((double)shape->objective.noise / sqrt(numbers)), .real = shape->compute.real);
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
