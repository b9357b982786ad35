/* No bit depends on how gradients are numbered. The planner is handed every model with its gradients in another order
 * than its units: it plans, proves and simulates with these numbers, and the engine runs by them. */
#include "offload/search/placement.h"
#include "tests/kit/plan/plan_model.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <stdio.h>

static uint64_t seed; /* of the order of gradients; 0: the engine's own */

/* The linker puts this in place of ox_placement_choose, whose own name is then __real_ (Makefile). */
enum ox_status __real_ox_placement_choose(struct ox_plan_input *input, struct ox_shard_table *table,
                                          const struct ox_placement_request *request, const struct ox_sim_setup *setup,
                                          struct ox_plans *out);
enum ox_status __wrap_ox_placement_choose(struct ox_plan_input *input, struct ox_shard_table *table,
                                          const struct ox_placement_request *request, const struct ox_sim_setup *setup,
                                          struct ox_plans *out);

enum ox_status __wrap_ox_placement_choose(struct ox_plan_input *input, struct ox_shard_table *table,
                                          const struct ox_placement_request *request, const struct ox_sim_setup *setup,
                                          struct ox_plans *out) {
    if (seed != 0) {
        plan_model_shuffle_grads(&input->model, seed);
    }
    return __real_ox_placement_choose(input, table, request, setup, out);
}

/* Counts gradients that have not the number of their unit. */
static uint32_t moved_grads(const struct harness *harness) {
    const struct ox_plan_model *const model = &ox_engine_plan_of(harness->engine)->input.model;
    uint32_t count = 0;
    for (uint32_t i = 0; i < model->unit_count; i++) {
        count += model->units[i].grad_idx != i;
    }
    return count;
}

static void check_family(const char *name, bool fp32, bool grad_bf16) {
    struct golden golden;
    struct outcome expected, outcome;
    golden_open(name, &golden);
    struct harness_run run = golden_run(&golden);
    run.fp32 = fp32;
    run.grad_bf16 = grad_bf16;
    printf("%s\n", name);
    uint32_t moved_count = 0, place_count = 0;
    seed = 0;
    golden_train(&golden, &run, &harness_in_memory, FEW_STEPS, &expected);
    for (const struct harness_place *place = harness_places; place->name != NULL; place++) {
        struct harness harness;
        seed++;
        harness_open(&run, place, &harness);
        moved_count += moved_grads(&harness);
        place_count++;
        golden_steps(&harness, &golden, 0, FEW_STEPS, &outcome);
        golden_end(&harness, place->name, &expected, &outcome);
    }
    CHECK(moved_count >= place_count); /* a drawn order may be that of the units, but rarely */
    outcome_close(&expected);
    golden_close(&golden);
}

int main(void) {
    check_family("llama_tied_gqa", true, false);
    check_family("llama_untied_odd", false, true);
    return test_end();
}
