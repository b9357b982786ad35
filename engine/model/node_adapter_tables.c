/* Low-rank adapters of the two ends of a model: of the embedding's table, from which tokens take rows, and of the
 * head's, whose logits never exist whole. Both stages read planes, so what a product reads of an adapter is cast here,
 * in the node's scratch. */
#include "engine/model/list.h"

#include "base/arena.h"
#include "base/assert.h"

/* Bytes of a tensor of the role as compute reads it, where that is not its hi plane; 0 without such a tensor. */
static uint64_t cast_bytes(const struct ox_shape *shape, uint64_t elems) {
    return shape->compute.real == OX_REAL_BF16 ? 0 : elems * ox_real_bytes(shape->compute.real);
}

/* The weights of a role, cast to `room` or where they are. */
static const void *cast(const struct ox_node_call *call, enum ox_role role, uint64_t elems, void *room) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_planes planes = ox_role_planes(call, role, 0);
    if (cast_bytes(shape, elems) == 0) {
        return planes.hi;
    }
    OX_RUN(&call->job->run, planes_join, .out = room, .hi = planes.hi, .lo = planes.lo, .count = elems,
           .real = shape->compute.real);
    return room;
}

/* ---- the embedding ---- */

struct lookup_rooms {
    void *b;
    void *rows, *drows; /* (rows, r): of A^T for each token, and their gradient */
};

static uint64_t lookup_rooms(const struct ox_shape *shape, const struct ox_node *node, bool backward, void *scratch,
                             struct lookup_rooms *out) {
    const uint64_t bytes = (uint64_t)shape->rows * node->in_count * ox_real_bytes(shape->compute.real);
    struct ox_bump room = {.base = scratch};
    out->b = ox_bump_alloc(&room, cast_bytes(shape, (uint64_t)node->in_count * node->out_count));
    out->rows = ox_bump_alloc(&room, bytes);
    out->drows = ox_bump_alloc(&room, backward ? bytes : 0);
    return room.bytes;
}

uint64_t ox_lookup_low_scratch(const struct ox_shape *shape, const struct ox_node *node, bool backward) {
    struct lookup_rooms rooms;
    return lookup_rooms(shape, node, backward, NULL, &rooms);
}

/* Takes the rows of A^T for the tokens, and casts B. */
static const void *look_up(const struct ox_node_call *call, const struct lookup_rooms *rooms) {
    const struct ox_node *const node = call->node;
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_planes a = ox_role_planes(call, OX_ROLE_EMBED_A, 0);
    OX_RUN(&call->job->run, embed_forward, .out = rooms->rows, .table_hi = a.hi, .table_lo = a.lo, .ids = call->in,
           .positions = call->job->positions, .rows = shape->rows, .hidden = node->in_count,
           .column = shape->model->config.vocab, .real = shape->compute.real);
    return cast(call, OX_ROLE_EMBED_B, (uint64_t)node->in_count * node->out_count, rooms->b);
}

void ox_lookup_low_forward(const struct ox_node_call *call) {
    const struct ox_node *const node = call->node;
    const struct ox_shape *const shape = call->job->shape;
    struct lookup_rooms rooms;
    lookup_rooms(shape, node, false, call->scratch, &rooms);
    const void *const b = look_up(call, &rooms);
    OX_RUN(&call->job->run, linear_forward, .out = call->out, .in = rooms.rows, .weight = b, .residual = call->residual,
           .rows = shape->rows, .in_count = node->in_count, .out_count = node->out_count, .scale = node->scale,
           .layout = OX_WEIGHT_OUT_IN, .real = shape->compute.real);
}

void ox_lookup_low_backward(const struct ox_node_call *call) {
    const struct ox_node *const node = call->node;
    const struct ox_shape *const shape = call->job->shape;
    struct lookup_rooms rooms;
    lookup_rooms(shape, node, true, call->scratch, &rooms);
    const void *const b = look_up(call, &rooms); /* anew: forward has left nothing */
    OX_RUN(&call->job->run, linear_backward, .din = rooms.drows, .dweight = ox_node_grad(call, OX_ROLE_EMBED_B),
           .dout = call->dout, .in = rooms.rows, .weight = b, .rows = shape->rows, .in_count = node->in_count,
           .out_count = node->out_count, .scale = node->scale, .layout = OX_WEIGHT_OUT_IN,
           .real = shape->compute.real, .begins = call->job->begins);
    OX_RUN(&call->job->run, embed_backward, .dtable = ox_node_grad(call, OX_ROLE_EMBED_A), .dout = rooms.drows,
           .ids = call->in, .positions = call->job->positions, .rows = shape->rows, .hidden = node->in_count,
           .column = shape->model->config.vocab, .real = shape->compute.real);
}

void ox_cost_lookup_low(struct ox_cost *cost, const struct ox_node *node, bool backward) {
    const struct ox_cost_loop once = {.passes = 2, .ops = 2}, twice = {.passes = 5, .ops = 3};
    ox_cost_add_loop(cost, cost->rows, node->in_count, backward ? twice : once);
    if (backward) {
        ox_cost_add_linear_backward(cost, node->in_count, node->out_count, true);
    } else {
        ox_cost_add_linear(cost, node->in_count, node->out_count, true);
    }
}

/* ---- the head ---- */

static uint32_t rank_of(const struct ox_shape *shape) {
    return shape->model->config.lora.r;
}

bool ox_head_is_adapted(const struct ox_shape *shape) {
    const struct ox_model *const model = shape->model;
    return ox_model_stage_has(model, &model->units[model->head_idx], OX_ROLE_HEAD_A);
}

uint64_t ox_head_adapter_rooms(const struct ox_shape *shape, uint64_t first, void *scratch,
                               struct ox_head_adapter *out) {
    const struct ox_model_config *const config = &shape->model->config;
    const uint64_t real = ox_real_bytes(shape->compute.real), r = rank_of(shape), rows = shape->rows;
    struct ox_bump room = {.base = scratch};
    ox_bump_alloc(&room, first);
    out->a = ox_bump_alloc(&room, cast_bytes(shape, r * config->hidden));
    out->b = ox_bump_alloc(&room, cast_bytes(shape, r * config->vocab));
    out->dropped = ox_bump_alloc(&room, config->lora.dropout != 0.0 ? rows * config->hidden * real : 0);
    out->products = ox_bump_alloc(&room, rows * r * real);
    out->dproducts = ox_bump_alloc(&room, rows * r * real);
    return room.bytes;
}

/* What A reads: the rows, through the dropout where there is any. */
static void drop(const struct ox_node_call *call, void *out, const void *in, const void *residual) {
    const struct ox_shape *const shape = call->job->shape;
    OX_RUN(&call->job->run, drop, .out = out, .in = in, .residual = residual,
           .count = (uint64_t)shape->rows * call->node->in_count, .seed = ox_drop_seed(call, OX_ROLE_HEAD_A),
           .stream = call->job->noise_stream,
           .rate = call->job->trains ? (float)shape->model->config.lora.dropout : 0.0f, .real = shape->compute.real);
}

static bool drops(const struct ox_node_call *call) {
    return call->job->shape->model->config.lora.dropout != 0.0;
}

struct ox_head_low ox_head_adapter_forward(const struct ox_node_call *call, const struct ox_head_adapter *rooms) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_model_config *const config = &shape->model->config;
    const uint32_t r = rank_of(shape);
    if (drops(call)) {
        drop(call, rooms->dropped, call->in, NULL);
    }
    OX_RUN(&call->job->run, linear_forward, .out = rooms->products, .in = drops(call) ? rooms->dropped : call->in,
           .weight = cast(call, OX_ROLE_HEAD_A, (uint64_t)r * config->hidden, rooms->a), .rows = shape->rows,
           .in_count = config->hidden, .out_count = r, .layout = OX_WEIGHT_OUT_IN, .real = shape->compute.real);
    return (struct ox_head_low){.in = rooms->products, .r = r, .scale = ox_lora_scale(&config->lora, OX_ROLE_HEAD_A),
                                .weight = cast(call, OX_ROLE_HEAD_B, (uint64_t)r * config->vocab, rooms->b)};
}

void ox_head_adapter_backward(const struct ox_node_call *call, const struct ox_head_adapter *rooms) {
    const struct ox_shape *const shape = call->job->shape;
    const struct ox_planes a = ox_role_planes(call, OX_ROLE_HEAD_A, 0);
    struct ox_op_linear_backward op = {
        .din = call->din, .dweight = ox_node_grad(call, OX_ROLE_HEAD_A), .dout = rooms->dproducts,
        .in = drops(call) ? rooms->dropped : call->in,
        .weight = cast_bytes(shape, 1) == 0 ? (const void *)a.hi : rooms->a, .rows = shape->rows,
        .in_count = call->node->in_count, .out_count = rank_of(shape), .layout = OX_WEIGHT_OUT_IN,
        .real = shape->compute.real, .begins = call->job->begins};
    const bool through_drop = drops(call) && call->din != NULL;
    /* The head's own gradient of the rows is in din already. With dropout, A's part of it takes the place of what A has
     * read, once dA is there: so A comes first. */
    op.residual = call->din;
    if (through_drop) {
        op.din = NULL;
        op.residual = NULL;
    }
    OX_THEN(call->job->run.status, OX_QUEUE(call->job->run.ops, call->job->run.lane, linear_backward, &op));
    if (through_drop) {
        op.din = rooms->dropped;
        op.dweight = NULL;
        OX_THEN(call->job->run.status, OX_QUEUE(call->job->run.ops, call->job->run.lane, linear_backward, &op));
        drop(call, call->din, rooms->dropped, call->din);
    }
}

void ox_cost_head_adapter(struct ox_cost *cost, bool backward) {
    const uint32_t hidden = cost->shape->model->config.hidden, vocab = cost->shape->model->config.vocab;
    const uint32_t r = rank_of(cost->shape);
    const struct ox_cost_loop once = {.passes = 2, .ops = 1};
    ox_cost_add_loop(cost, r, (double)hidden + vocab, once); /* the casts */
    ox_cost_add_linear(cost, hidden, r, false);
    ox_cost_add_linear(cost, r, vocab, true);
    if (backward) {
        ox_cost_add_linear_backward(cost, hidden, r, true);
        ox_cost_add_linear_backward(cost, r, vocab, true);
    }
}

/* ---- for callers that have no pass of the stage ---- */

/* The call of the stage's node of a kind. */
static bool call_of(struct ox_unit_job *job, struct ox_list *list, enum ox_node_kind kind, struct ox_node_call *out) {
    ox_unit_list(job->shape, job->unit, list);
    *out = (struct ox_node_call){.job = job, .list = list, .scratch = job->work};
    for (uint32_t i = 0; i < list->node_count; i++) {
        out->node = list->nodes[i].kind == kind ? &list->nodes[i] : out->node;
    }
    return out->node != NULL;
}

uint64_t ox_embed_adapter_bytes(const struct ox_shape *shape) {
    struct ox_unit_job job = {.shape = shape, .unit = &shape->model->units[shape->model->embed_idx]};
    struct ox_node_call call;
    struct ox_list list;
    return call_of(&job, &list, OX_NODE_LOOKUP_LOW, &call) ? ox_lookup_low_scratch(shape, call.node, false) : 0;
}

void ox_embed_adapt(struct ox_unit_job *job, void *rows) {
    struct ox_node_call call;
    struct ox_list list;
    if (call_of(job, &list, OX_NODE_LOOKUP_LOW, &call)) {
        call.in = (void *)(uintptr_t)job->ids;
        call.residual = call.out = rows;
        ox_lookup_low_forward(&call);
    }
}

uint64_t ox_head_adapter_bytes(const struct ox_shape *shape) {
    struct ox_head_adapter rooms;
    return ox_head_is_adapted(shape) ? ox_head_adapter_rooms(shape, 0, NULL, &rooms) : 0;
}

struct ox_head_low ox_head_adapt(struct ox_unit_job *job, const void *in) {
    struct ox_head_adapter rooms;
    struct ox_node_call call;
    struct ox_list list;
    if (!ox_head_is_adapted(job->shape) || !call_of(job, &list, OX_NODE_LOSS, &call)) {
        return (struct ox_head_low){.r = 0};
    }
    call.in = (void *)(uintptr_t)in;
    ox_head_adapter_rooms(job->shape, 0, job->work, &rooms);
    return ox_head_adapter_forward(&call, &rooms);
}
