/* What follows from the description of a model alone. Who makes one calls this too, so that the proof may. */
#include "offload/plan/plan.h"

#include "base/assert.h"

uint32_t ox_plan_order_units(const struct ox_plan_stage *stages, uint32_t stage_count, struct ox_plan_unit *units,
                             uint32_t *order) {
    uint32_t count = 0, update_count = 0;
    for (uint32_t i = stage_count; i-- > 0;) { /* the first stage that uses a unit is met last */
        for (uint32_t k = stages[i].unit_count; k-- > 0;) {
            units[stages[i].units[k].unit_idx].stage_idx = i;
            units[stages[i].units[k].unit_idx].order_idx = k;
        }
    }
    for (uint32_t i = 0; i < stage_count; i++) {
        for (uint32_t k = 0; k < stages[i].unit_count; k++) {
            const uint32_t unit_idx = stages[i].units[k].unit_idx;
            if (units[unit_idx].stage_idx == i) {
                OX_ASSERT(units[unit_idx].order_idx == k); /* no stage uses a unit twice */
                units[unit_idx].order_idx = count;
                units[unit_idx].update_idx = units[unit_idx].trained ? update_count++ : OX_NONE;
                order[count++] = unit_idx;
            }
        }
    }
    return update_count;
}

uint32_t ox_plan_first_back(const struct ox_plan_model *model) {
    bool trains = ox_plan_has_outside_input(model);
    uint32_t stage_idx = 0;
    for (; stage_idx < model->stage_count; stage_idx++) {
        for (uint32_t k = 0; k < model->stages[stage_idx].unit_count; k++) {
            trains = trains || model->stages[stage_idx].units[k].grad_idx != OX_NONE;
        }
        if (trains) {
            break;
        }
    }
    return stage_idx;
}

uint32_t ox_plan_block_count(const struct ox_plan_model *model) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < model->stage_count; i++) {
        count += model->stages[i].kind == OX_PLAN_BLOCK;
    }
    return count;
}
