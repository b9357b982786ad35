/* What follows from a rank's configuration and plan alone. */
#include "engine/step/rank/rank.h"

#include "base/assert.h"
#include "base/bytes.h"

bool ox_engine_on_cpu(const struct ox_engine_config *config) {
    return config->device == OX_DEVICE_CPU;
}

const struct ox_precision *ox_engine_precision(const struct ox_engine_config *config) {
    return ox_precision_of(config->dtype, ox_engine_on_cpu(config));
}

struct ox_shape ox_engine_shape(const struct ox_engine_config *config) {
    const enum ox_real real = ox_engine_precision(config)->activations;
    const uint32_t all = config->context_groups > 1 ? config->context_groups : 1;
    const uint32_t contexts = config->contexts > 1 ? config->contexts : 1;
    const struct ox_row_groups groups = {.all = all, .count = all / contexts, .contexts = contexts,
                                         .mode = config->context_mode};
    const uint32_t tensors = config->tensors > 1 ? config->tensors : 1;
    const uint32_t features = ox_model_groups(&config->model->config);
    OX_ASSERT(config->seq % (all > 1 ? 2 * all : 1) == 0 && all % contexts == 0 && features % tensors == 0);
    OX_ASSERT(tensors == 1 || all == contexts);
    return (struct ox_shape){.model = config->model, .batch = config->batch, .seq = config->seq,
                             .rows = config->batch * config->seq / all, .dtype = config->dtype,
                             .groups = all > 1 ? groups : (struct ox_row_groups){0},
                             .features = {.count = features / tensors, .ranks = tensors},
                             .experts = {.ranks = config->experts},
                             .objective = config->objective,
                             .router_rounds = config->router_rounds,
                             .compute = {.device = config->device, .real = real, .threads = config->compute_threads}};
}

uint64_t ox_engine_rope_floats(const struct ox_engine_config *config) {
    return ox_angles_floats(&config->model->config, config->seq);
}

unsigned char *ox_rank_resident_ptr(const struct ox_rank *rank, uint32_t buf_idx) {
    return buf_idx == OX_NONE ? NULL : ox_tiers_resident(&rank->tiers, rank->plan->train, buf_idx).ptr;
}

struct ox_resident ox_rank_resident(const struct ox_rank *rank, uint32_t unit_idx) {
    const struct ox_plan *const plan = rank->plan->train;
    const struct ox_shard *const shard = &rank->plan->table.shards[unit_idx];
    const uint64_t elems = shard->elem_count;
    struct ox_resident out = {0};
    if (shard->homes.weights == OX_TIER_HOST) {
        unsigned char *const base = ox_rank_resident_ptr(rank, ox_plan_home_weights(plan, unit_idx));
        out.hi = (uint16_t *)base;
        if (ox_rank_rules(rank, unit_idx)->lo_travels && !ox_rank_rules(rank, unit_idx)->lo_in_state) {
            out.weights_lo = (uint16_t *)(base + elems * OX_HI_BYTES);
        }
    }
    if (shard->homes.state == OX_TIER_HOST && ox_plan_home_state(plan, unit_idx) != OX_NONE) {
        unsigned char *const base = ox_rank_resident_ptr(rank, ox_plan_home_state(plan, unit_idx));
        out.state = base;
    }
    return out;
}

uint64_t ox_unit_elems(const struct ox_rank *rank, uint32_t unit_idx) {
    return rank->plan->input.model.units[unit_idx].elem_count;
}

uint32_t ox_unit_grad_idx(const struct ox_rank *rank, uint32_t unit_idx) {
    return rank->plan->input.model.units[unit_idx].grad_idx;
}

uint64_t ox_grad_elems(const struct ox_rank *rank, uint32_t grad_idx) {
    return rank->plan->input.model.grads[grad_idx].elem_count;
}
