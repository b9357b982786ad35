/* Memory and cost of a unit, whatever its kind. */
#include "engine/model/pieces.h"

uint64_t ox_unit_work_bytes(const struct ox_shape *shape, uint32_t unit_idx, enum ox_pass pass) {
    const struct ox_unit *const unit = &shape->model->units[unit_idx];
    switch (unit->kind) {
    case OX_UNIT_EMBED:
        return 0;
    case OX_UNIT_BLOCK:
        return ox_block_work_bytes(shape, unit, pass);
    case OX_UNIT_HEAD:
        return ox_head_work_bytes(shape);
    case OX_UNIT_ADAPTER: /* beside a block's own */
        break;
    }
    return 0;
}

uint64_t ox_unit_kept_bytes(const struct ox_shape *shape, uint32_t unit_idx) {
    const struct ox_unit *const unit = &shape->model->units[unit_idx];
    return unit->kind == OX_UNIT_BLOCK ? ox_block_kept_bytes(shape, unit) : 0;
}

struct ox_plan_work ox_unit_cost(const struct ox_shape *shape, uint32_t unit_idx, enum ox_pass pass) {
    struct ox_cost cost = ox_cost_begin(shape, &shape->model->units[unit_idx]);
    switch (cost.unit->kind) {
    case OX_UNIT_EMBED:
        ox_embed_cost(&cost, ox_pass_is_backward(pass));
        break;
    case OX_UNIT_BLOCK:
        ox_block_cost(&cost, pass);
        break;
    case OX_UNIT_HEAD:
        ox_head_cost(&cost, ox_pass_is_backward(pass));
        break;
    case OX_UNIT_ADAPTER:
        break;
    }
    return cost.work;
}

enum ox_status ox_units_check(const struct ox_shape *shape) {
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < shape->model->block_count && status == OX_OK; i++) {
        status = ox_block_check(shape, &shape->model->units[shape->model->blocks[i]]);
    }
    return status;
}
