/* What a unit does, whatever its kind: its list of nodes, and what follows from it. */
#include "engine/model/pieces.h"
#include "engine/model/schedule.h"

#include "base/assert.h"
#include "base/bytes.h"

void ox_unit_list(const struct ox_shape *shape, const struct ox_unit *unit, struct ox_list *out) {
    switch (unit->kind) {
    case OX_UNIT_EMBED:
        ox_embed_list(shape, unit, out);
        break;
    case OX_UNIT_BLOCK:
        ox_block_list(shape, unit, out);
        break;
    case OX_UNIT_HEAD:
        ox_head_list(shape, unit, out);
        break;
    case OX_UNIT_EXPERTS:
        ox_experts_list(shape, unit, out);
        break;
    case OX_UNIT_BESIDE: /* in the list of its stage */
        OX_ASSERT(false);
    }
}

static void make(const struct ox_shape *shape, const struct ox_unit *unit, enum ox_pass pass,
                 struct ox_schedule *out) {
    struct ox_list list;
    ox_unit_list(shape, unit, &list);
    ox_schedule_make(&list, pass, out);
}

uint64_t ox_unit_work_bytes(const struct ox_shape *shape, const struct ox_unit *unit, enum ox_pass pass) {
    struct ox_schedule schedule;
    if (unit->kind == OX_UNIT_BESIDE) { /* counted with its stage */
        return 0;
    }
    make(shape, unit, pass, &schedule);
    /* A plan gives each pass of a block room, also where kept values leave enough. */
    return ox_max_u64(schedule.work_bytes, unit->kind == OX_UNIT_BLOCK || unit->kind == OX_UNIT_EXPERTS ? 1 : 0);
}

struct ox_unit_ends ox_unit_ends(const struct ox_shape *shape, const struct ox_unit *unit) {
    struct ox_list list;
    ox_unit_list(shape, unit, &list);
    return (struct ox_unit_ends){.in_bytes = list.values[list.in].bytes, .out_bytes = list.values[list.out].bytes};
}

struct ox_unit_routes ox_unit_routes(const struct ox_shape *shape, const struct ox_unit *unit) {
    const struct ox_mixture *const mixture = &shape->model->config.mixture;
    if (unit->kind != OX_UNIT_BLOCK || mixture->per_unit == 0 ||
        !ox_model_stage_has(shape->model, unit, OX_ROLE_ROUTER)) {
        return (struct ox_unit_routes){0};
    }
    const uint64_t bytes = (mixture->router.experts + 1) * sizeof(int32_t); /* the last part of the order of pairs */
    return (struct ox_unit_routes){.offset = ox_handed_of(shape).order + ox_pair_order_bytes(shape) - bytes,
                                   .bytes = bytes};
}

uint32_t ox_unit_rows(const struct ox_unit *unit, const void *routes) {
    const int32_t *const offsets = routes; /* where an expert's rows begin, and behind the last one where they end */
    return (uint32_t)(offsets[unit->expert_first + unit->expert_count] - offsets[unit->expert_first]);
}

uint64_t ox_unit_kept_bytes(const struct ox_shape *shape, const struct ox_unit *unit) {
    struct ox_schedule schedule;
    if (unit->kind != OX_UNIT_BLOCK) {
        return 0;
    }
    make(shape, unit, OX_PASS_BACKWARD_KEPT, &schedule);
    return schedule.kept_bytes;
}

struct ox_plan_work ox_unit_cost(const struct ox_shape *shape, const struct ox_unit *unit, enum ox_pass pass) {
    struct ox_cost cost = ox_cost_begin(shape, unit);
    struct ox_schedule schedule;
    make(shape, cost.unit, pass, &schedule);
    for (uint32_t i = 0; i < schedule.step_count; i++) {
        const struct ox_node *const node = &schedule.list.nodes[schedule.steps[i].node_idx];
        cost.skips_din = schedule.steps[i].din == OX_NO_VALUE;
        ox_node_row_of(node)->cost(&cost, node, schedule.steps[i].backward);
    }
    return cost.work;
}

enum ox_status ox_units_check(const struct ox_shape *shape) {
    static const enum ox_pass passes[] = {OX_PASS_FORWARD, OX_PASS_BACKWARD, OX_PASS_FORWARD_KEPT,
                                          OX_PASS_BACKWARD_KEPT};
    for (uint32_t i = 0; i < shape->model->stage_count; i++) {
        const struct ox_unit *const unit = ox_model_stage_unit(shape->model, i);
        for (uint32_t k = 0; k < (unit->kind == OX_UNIT_BLOCK ? 4 : 2); k++) {
            struct ox_schedule schedule;
            make(shape, unit, passes[k], &schedule);
            OX_TRY(ox_schedule_check(&schedule));
        }
    }
    return OX_OK;
}

enum ox_status ox_unit_forward(struct ox_unit_job *job, const struct ox_stage_weights *weights, const void *x,
                               void *y) {
    struct ox_schedule schedule;
    make(job->shape, job->unit, job->kept != NULL ? OX_PASS_FORWARD_KEPT : OX_PASS_FORWARD, &schedule);
    void *const bases[] = {[OX_MEMORY_X] = (void *)x, [OX_MEMORY_Y] = y, [OX_MEMORY_WORK] = job->work,
                           [OX_MEMORY_KEPT] = job->kept};
    ox_schedule_run(&schedule, job, weights, bases);
    return job->run.status;
}

enum ox_status ox_unit_backward(struct ox_unit_job *job, const struct ox_stage_weights *weights, const void *x,
                                void *dx) {
    struct ox_schedule schedule;
    make(job->shape, job->unit, job->kept != NULL ? OX_PASS_BACKWARD_KEPT : OX_PASS_BACKWARD, &schedule);
    void *const bases[] = {[OX_MEMORY_X] = (void *)x, [OX_MEMORY_DX] = dx, [OX_MEMORY_WORK] = job->work,
                           [OX_MEMORY_KEPT] = job->kept};
    ox_schedule_run(&schedule, job, weights, bases);
    return job->run.status;
}
