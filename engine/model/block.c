/* A block: the passes of its list of nodes. */
#include "engine/model/pieces.h"
#include "engine/model/schedule.h"

#include "base/bytes.h"

static void make(const struct ox_shape *shape, const struct ox_unit *unit, enum ox_pass pass,
                 struct ox_schedule *out) {
    struct ox_list list;
    ox_block_list(shape, unit, &list);
    ox_schedule_make(&list, pass, out);
}

uint64_t ox_block_work_bytes(const struct ox_shape *shape, const struct ox_unit *unit, enum ox_pass pass) {
    struct ox_schedule schedule;
    make(shape, unit, pass, &schedule);
    return ox_max_u64(schedule.work_bytes, 1); /* a plan gives each pass room, also where kept values leave enough */
}

uint64_t ox_block_kept_bytes(const struct ox_shape *shape, const struct ox_unit *unit) {
    struct ox_schedule schedule;
    make(shape, unit, OX_PASS_BACKWARD_KEPT, &schedule);
    return schedule.kept_bytes;
}

enum ox_status ox_block_check(const struct ox_shape *shape, const struct ox_unit *unit) {
    static const enum ox_pass passes[] = {OX_PASS_FORWARD, OX_PASS_FORWARD_KEPT, OX_PASS_BACKWARD,
                                          OX_PASS_BACKWARD_KEPT};
    enum ox_status status = OX_OK;
    for (size_t i = 0; i < sizeof passes / sizeof *passes && status == OX_OK; i++) {
        struct ox_schedule schedule;
        make(shape, unit, passes[i], &schedule);
        status = ox_schedule_check(&schedule);
    }
    return status;
}

enum ox_status ox_block_forward(struct ox_unit_job *job, const struct ox_stage_weights *weights, const void *x,
                                void *y) {
    struct ox_schedule schedule;
    make(job->shape, job->unit, job->kept != NULL ? OX_PASS_FORWARD_KEPT : OX_PASS_FORWARD, &schedule);
    void *const bases[] = {[OX_MEMORY_X] = (void *)x, [OX_MEMORY_Y] = y, [OX_MEMORY_WORK] = job->work,
                           [OX_MEMORY_KEPT] = job->kept};
    ox_schedule_run(&schedule, job, weights, bases);
    return job->run.status;
}

enum ox_status ox_block_backward(struct ox_unit_job *job, const struct ox_stage_weights *weights, const void *x,
                                 void *dx) {
    struct ox_schedule schedule;
    make(job->shape, job->unit, job->kept != NULL ? OX_PASS_BACKWARD_KEPT : OX_PASS_BACKWARD, &schedule);
    void *const bases[] = {[OX_MEMORY_X] = (void *)x, [OX_MEMORY_DX] = dx, [OX_MEMORY_WORK] = job->work,
                           [OX_MEMORY_KEPT] = job->kept};
    ox_schedule_run(&schedule, job, weights, bases);
    return job->run.status;
}

void ox_block_cost(struct ox_cost *cost, enum ox_pass pass) {
    struct ox_schedule schedule;
    make(cost->shape, cost->unit, pass, &schedule);
    for (uint32_t i = 0; i < schedule.step_count; i++) {
        const struct ox_node *const node = &schedule.list.nodes[schedule.steps[i].node_idx];
        ox_node_row_of(node)->cost(cost, node, schedule.steps[i].backward);
    }
}
