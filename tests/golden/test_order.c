/* A run goes from the speculative order to the held one and back, wherever planes live, with the bits of a run in
 * memory whose steps wait for each other: with every step committed, with some that stay uncommitted, and with engines
 * that begin anew on the store in each order. */
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <string.h>

/* Clipped at first, so that the run is held; then not, until it speculates; then clipped again, which undoes five
 * updates in a row before it is held; then free again. */
enum { STEPS = 30, GIVEN = 6, HELD_FROM = 2, FREE_FROM = 11, UNDONE_FROM = 13, HELD_AGAIN = 18, FREE_AGAIN = 27,
       PERSIST_STEPS = 4 };

static double norm_of(uint64_t step) {
    return step <= 3 || (step >= UNDONE_FROM && step < HELD_AGAIN + 2) ? 1e-2 : 1e9;
}

static bool speculates(uint64_t step) {
    return step < HELD_FROM || (step >= FREE_FROM && step < HELD_AGAIN) || step >= FREE_AGAIN;
}

static bool reopens_after(uint64_t step) {
    return step == 6 || step == UNDONE_FROM + 1 || step == HELD_AGAIN + 3;
}

struct seen {
    double losses[STEPS], norms[STEPS];
};

/* An engine that begins anew begins in the speculative order, so the order of its steps is another one. */
static void check_order(const struct harness *harness, const struct ox_step_result *result, uint64_t step,
                        bool reopens) {
    const struct ox_placement *const placement = &ox_engine_plan_of(harness->engine)->input.placement;
    const bool may = placement->overlap && placement->speculative_units > 0;
    CHECK(placement->overlap || result->order == OX_UPDATES_AFTER);
    CHECK(may || result->order != OX_UPDATES_SPECULATIVE);
    CHECK(reopens || (result->order == OX_UPDATES_SPECULATIVE) == (may && speculates(step)));
    CHECK(result->speculated == (result->order == OX_UPDATES_SPECULATIVE && result->grad_scale == 1));
}

static void run_steps(const struct golden *golden, const struct harness_run *run, const struct harness_place *place,
                      bool reopens, struct seen *seen, struct outcome *out) {
    struct harness harness;
    harness_open(run, place, &harness);
    golden_steps(&harness, golden, 0, 0, out);
    for (uint64_t step = 1; step <= STEPS; step++) {
        const size_t i = (step - 1) % GIVEN;
        struct ox_step_input input = golden_input(golden, i, golden_fill(harness.engine, golden, i));
        struct ox_step_result result;
        input.step = step;
        input.max_grad_norm = norm_of(step);
        input.stays = place->generations > 0 && step % PERSIST_STEPS != 0;
        input.logits = step == 1 ? out->logits : NULL;
        REQUIRE_OK(ox_engine_step(harness.engine, &input, &result));
        CHECK(result.finite && memcmp(result.traffic, result.planned, sizeof result.traffic) == 0);
        check_order(&harness, &result, step, reopens);
        seen->losses[step - 1] = result.loss;
        seen->norms[step - 1] = result.grad_norm;
        if (reopens && reopens_after(step)) {
            REQUIRE_OK(ox_engine_finish_update(harness.engine));
            REQUIRE_OK(ox_engine_persist(harness.engine, NULL, 0));
            harness_reopen(run, place, &harness);
        }
    }
    outcome_read_weights(&harness, out);
    harness_close(&harness);
}

/* Places where weights go ahead of their state need bf16, the others are tried in fp32. */
static void check_places(const struct golden *golden, bool ahead) {
    struct harness_run run = golden_run(golden);
    struct seen expected, seen;
    struct outcome whole, outcome;
    uint32_t count = 0;
    run.dtype = !ahead ? OX_COMPUTE_FP32 : OX_COMPUTE_BF16;
    run.grad_bf16 = ahead;
    run_steps(golden, &run, &harness_in_memory, false, &expected, &whole);
    for (const struct harness_place *of = harness_places; of->name != NULL; of++) {
        const struct ox_placement_request *const request = &of->request;
        if (request->overlap <= 0 || request->speculative_units == 0 || (request->weights_ahead == 1) != ahead) {
            continue;
        }
        struct harness_place place = *of;
        const uint32_t way = of->store ? count % 3 : 0; /* committed, uncommitted, begun anew */
        if (!test_takes(count++, 2)) {
            continue;
        }
        place.generations = way == 0 ? 0 : request->saves_replaced == 1 ? 2 : 3;
        place.chaos_seed = way == 1 ? 7 : 0;
        run_steps(golden, &run, &place, way == 2, &seen, &outcome);
        outcome_check_same(of->name, &whole, &outcome);
        CHECK(memcmp(&expected, &seen, sizeof seen) == 0);
        outcome_close(&outcome);
    }
    CHECK(count >= 3);
    outcome_close(&whole);
}

/* All ranks have the same norms, and so the same order. */
static void check_ranks(const struct golden *golden) {
    struct harness_place place = {.name = "two ranks, speculative", .store = true, .drives = 1, .generations = 3,
                                  .request = {1, 1, OX_TIER_HOST, OX_TIER_HOST, OX_TIER_HOST, OX_TIER_HOST, 1, 2}};
    struct harness_run run = golden_run(golden);
    struct seen expected, seen;
    struct outcome whole, outcome;
    run.sum_groups = 2;
    run_steps(golden, &run, &harness_in_memory, false, &expected, &whole);
    run.ranks = 2;
    run.sharding = OX_SHARDING_FULL;
    run_steps(golden, &run, &place, false, &seen, &outcome);
    outcome_check_same(place.name, &whole, &outcome);
    CHECK(memcmp(&expected, &seen, sizeof seen) == 0);
    outcome_close(&outcome);
    outcome_close(&whole);
}

int main(void) {
    struct golden tied, untied;
    golden_open("llama_tied_gqa", &tied);
    golden_open("llama_untied_odd", &untied);
    check_places(&untied, false);
    check_places(&tied, true);
    check_ranks(&tied);
    golden_close(&untied);
    golden_close(&tied);
    return test_end();
}
