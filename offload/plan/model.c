/* What follows from the description of a model alone. Who makes one calls this too, so that the proof may. */
#include "offload/plan/plan.h"

#include "base/assert.h"

void ox_plan_order_units(const struct ox_plan_stage *stages, uint32_t stage_count, struct ox_plan_unit *units,
                         uint32_t *order) {
    uint32_t count = 0;
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
                order[count++] = unit_idx;
            }
        }
    }
}

uint32_t ox_plan_block_count(const struct ox_plan_model *model) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < model->stage_count; i++) {
        count += model->stages[i].kind == OX_PLAN_BLOCK;
    }
    return count;
}
