/* Blocks that keep what their backward needs compute the same bits as blocks that recompute it: families with every
 * option of a block, with every number of blocks kept, in memory and across tiers. */
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <stdio.h>

#define HOST OX_TIER_HOST
#define DEVICE OX_TIER_DEVICE
#define CUT .chunk_elems = 4096, .optimizer_threads = 1

static const struct harness_place places[] = {
    {.name = "in one memory", .unified = true, .request = {1, 1, HOST, HOST, HOST, HOST, 0, 0, 1}, CUT},
    {.name = "two tiles, checkpoints leave", .request = {2, 1, HOST, HOST, HOST, HOST, 0, 0, 2}, CUT},
    {.name = "many tiles, overlapped", .request = {99, 0, DEVICE, DEVICE, HOST, HOST, 1, 0, 99}, CUT},
};

static bool is_kept(const struct ox_plan *plan, uint32_t stage_idx) {
    for (uint32_t i = 0; i < plan->task_count; i++) {
        if (plan->tasks[i].kind == OX_TASK_BACKWARD && plan->tasks[i].stage_idx == stage_idx) {
            return ox_task_find_use(&plan->tasks[i], OX_USE_KEPT) >= 0;
        }
    }
    return false;
}

/* Checks that the plan is as requested: that many of the last blocks keep activations, and their inputs cross
 * no link. */
static void check_plan(const struct golden *golden, const struct harness_run *run, const struct harness_place *place) {
    struct harness harness;
    harness_open(run, place, &harness);
    const struct ox_plan *const train = ox_engine_plan_of(harness.engine)->train;
    const uint32_t block_count = harness.model->block_count, requested = (uint32_t)place->request.kept_units;
    const uint32_t kept_count = requested < block_count ? requested : block_count;
    const uint32_t first_back = ox_plan_first_back(&ox_engine_plan_of(harness.engine)->input.model);
    uint32_t left_count = 0; /* blocks whose inputs leave: below the first that is trained none does */
    for (uint32_t i = 0, stage_idx = 0; i < block_count; i++, stage_idx++) {
        while (!ox_engine_plan_of(harness.engine)->input.model.stages[stage_idx].saves_input) {
            stage_idx++; /* not a block: the embedding, or experts behind their block */
        }
        const bool backward = stage_idx >= first_back;
        CHECK(is_kept(train, stage_idx) == (backward && i + kept_count >= block_count));
        left_count += backward && i + kept_count < block_count;
    }
    const uint64_t act_bytes = golden->batch * golden->seq * harness.model->config.hidden * sizeof(float);
    if (place->request.act_tier == OX_TIER_HOST && !place->unified) {
        CHECK(train->traffic[OX_LINK_D2H][OX_TRAFFIC_ACTIVATIONS] ==
              left_count * golden->micro_batches * act_bytes);
    }
    harness_close(&harness);
}

/* With `chaos` memory is NaN before it is written, and lanes start late. */
static void check_family(const char *folder, bool fp32, bool chaos) {
    struct golden golden;
    struct outcome expected, outcome;
    golden_open(folder, &golden);
    struct harness_run run = golden_run(&golden);
    run.dtype = fp32 ? OX_COMPUTE_FP32 : OX_COMPUTE_BF16;
    printf("%s, %s\n", folder, fp32 ? "fp32" : "bf16");
    golden_train(&golden, &run, &harness_in_memory, FEW_STEPS, &expected);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        struct harness_place place = places[i];
        place.chaos_seed = chaos ? i + 1 : 0;
        check_plan(&golden, &run, &place);
        golden_train(&golden, &run, &place, FEW_STEPS, &outcome);
        outcome_check_same(place.name, &expected, &outcome);
        outcome_close(&outcome);
    }
    outcome_close(&expected);
    golden_close(&golden);
}

int main(void) {
    for (size_t i = 0; i < golden_taken_count(); i++) {
        check_family(golden_cases[i], i % 2 == 0, i == 0);
    }
    return test_end();
}
