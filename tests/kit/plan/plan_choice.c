#include "tests/kit/plan/plan_choice.h"

#include "tests/kit/test.h"

const struct ox_placement_request plan_choice_automatic = {
    .prefetch_depth = -1, .act_tier = OX_TIER_COUNT, .weights_tier = OX_TIER_COUNT, .state_tier = OX_TIER_COUNT,
    .grad_tier = OX_TIER_COUNT, .overlap = -1, .speculative_units = -1, .kept_units = -1,
    OX_SWITCH_ROWS(OX_SWITCH_AUTOMATIC)};

double plan_choice_seconds(const struct ox_plan *plan, const struct ox_sim_setup *setup) {
    struct ox_sim *sim = NULL;
    struct ox_sim_result result;
    REQUIRE_OK(ox_sim_open(plan->task_count, &sim));
    ox_sim_run(sim, plan, setup, &result);
    ox_sim_close(&sim);
    return result.seconds + ox_sim_between_seconds(setup);
}

void plan_choice_print(const struct ox_plan_input *in) {
    const struct ox_placement *const p = &in->placement;
    uint32_t homes[3][OX_TIER_COUNT] = {{0}};
    for (uint32_t i = 0; i < in->table->unit_count; i++) {
        homes[0][in->table->shards[i].homes.weights]++;
        homes[1][in->table->shards[i].homes.state]++;
        homes[2][in->table->shards[i].homes.grad]++;
    }
    printf("%u tiles, depth %u, slots %u, checkpoints on %s, overlap %d, early %u%s%s%s%s, kept %u; on "
           "device/host/nvme weights %u/%u/%u, state %u/%u/%u, gradients %u/%u/%u\n", p->tiles, p->prefetch_depth,
           p->stream_slots, ox_tier_name(p->act_tier), p->overlap, p->speculative_units,
           p->speculative_spread ? " spread" : "", p->saves_replaced ? " (saved)" : "",
           p->weights_ahead ? " (ahead)" : "", p->grads_alternate ? ", gradients in turns" : "", p->kept_units,
           homes[0][0], homes[0][1], homes[0][2], homes[1][0], homes[1][1], homes[1][2], homes[2][0], homes[2][1],
           homes[2][2]);
}
