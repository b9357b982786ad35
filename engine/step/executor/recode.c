/* Sums of gradients in the type in which ranks exchange them, and back. */
#include "engine/step/executor/executor.h"

static enum ox_status pack(struct ox_run *run, enum ox_exchange_dtype dtype, void *out, const float *in,
                           uint64_t count) {
    if (dtype == OX_EXCHANGE_BF16) {
        OX_RUN(run, bf16_pack, .out = out, .in = in, .count = count);
    } else {
        OX_RUN(run, block8_pack, .blocks = out, .in = in, .count = count);
    }
    return run->status;
}

static enum ox_status unpack(struct ox_run *run, enum ox_exchange_dtype dtype, float *out, const void *in,
                             uint64_t count) {
    if (dtype == OX_EXCHANGE_BF16) {
        OX_RUN(run, planes_join, .out = out, .hi = in, .count = count, .real = OX_REAL_F32);
    } else {
        OX_RUN(run, block8_unpack, .out = out, .blocks = in, .count = count);
    }
    return run->status;
}

/* Part by part, because each begins at a multiple of 16 bytes of its own. */
enum ox_status ox_recode_issue(struct ox_rank *rank, const struct ox_plan *plan, const struct ox_task *task,
                               struct ox_lane *lane) {
    const struct ox_plan_input *const input = &rank->plan->input;
    const enum ox_axis axis = (enum ox_axis)task->axis;
    const enum ox_exchange_dtype dtype = ox_plan_exchange_dtype(input, axis);
    const struct ox_plan_recode recode = ox_plan_recode(input, task);
    const unsigned char *const source = ox_tiers_view(&rank->tiers, plan, task, OX_USE_SOURCE).ptr;
    unsigned char *const target = ox_tiers_view(&rank->tiers, plan, task, OX_USE_TARGET).ptr;
    const bool gives = task->kind == OX_TASK_NARROW;
    struct ox_run run = {.ops = &rank->ops, .lane = lane};
    enum ox_status status = OX_OK;
    for (uint32_t part = 0; part < recode.parts && recode.count > 0; part++) {
        const uint64_t narrow = part * ox_exchange_bytes(dtype, recode.count);
        const uint64_t wide = gives && !task->last ? ox_plan_part_offset(input, task->grad_idx, axis, part)
                                                   : part * recode.count * sizeof(float);
        OX_THEN(status, gives ? pack(&run, dtype, target + narrow, (const float *)(source + wide), recode.count)
                              : unpack(&run, dtype, (float *)(target + wide), source + narrow, recode.count));
    }
    return status;
}
