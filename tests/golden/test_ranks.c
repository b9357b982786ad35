/* Ranks of one process: no bit depends on how many there are, nor on what they divide, nor on where planes live. */
#include "base/assert.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <stdio.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STRIDE = 2, IS_SHORT = 1 };
#else
enum { STRIDE = 1, IS_SHORT = 0 };
#endif
enum { GROUPS = 8 };
/* `make test` takes one of so many placements and numbers of ranks. */
enum { QUICK = IS_SHORT ? 1 : 26 };
static const enum ox_sharding shardings[] = {OX_SHARDING_FULL, OX_SHARDING_STEP, OX_SHARDING_GRAD, OX_SHARDING_STATE,
                                             OX_SHARDING_SHARED, OX_SHARDING_NONE};

static const char *const sharding_names[] = {[OX_SHARDING_FULL] = "full_shard", [OX_SHARDING_STEP] = "shard_grad_op",
                                             [OX_SHARDING_GRAD] = "zero2", [OX_SHARDING_STATE] = "zero1",
                                             [OX_SHARDING_NONE] = "no_shard", [OX_SHARDING_SHARED] = "shared"};

static bool takes(void) {
    static unsigned asked;
    return test_takes(asked++, QUICK);
}

/* Of the models that follow. */
static enum ox_compute_dtype dtype = OX_COMPUTE_FP32;

static struct harness_run run_of(const struct golden *golden) {
    struct harness_run run = golden_run(golden);
    run.compute_threads = 1;
    run.dtype = dtype;
    return run;
}

/* The losses of an evaluation. */
static double evaluate(const struct golden *golden, const struct harness_run *run, const struct harness_place *place) {
    struct harness harness;
    struct ox_eval_result result;
    harness_open(run, place, &harness);
    const struct ox_step_input input = golden_input(golden, 0, golden_fill(harness.engine, golden, 0));
    REQUIRE_OK(ox_engine_eval(harness.engine, &input, &result));
    harness_close(&harness);
    return result.loss_sum;
}

static void check_eval(const struct golden *golden) {
    struct harness_run run = run_of(golden);
    const double expected = evaluate(golden, &run, &harness_in_memory);
    for (run.ranks = 2; run.ranks <= 4; run.ranks++) {
        run.sum_groups = run.ranks;
        const double loss = evaluate(golden, &run, &harness_in_memory);
        printf("%s, evaluated by %u ranks: %.17g, %.17g\n", golden->folder, run.ranks, loss, expected);
        CHECK(loss == expected);
    }
}

static void check_ranks(const struct golden *golden, const struct harness_place *place, enum ox_sharding sharding,
                        const struct outcome *expected) {
    static const uint32_t counts[] = {2, 3, 4, 8};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        if ((IS_SHORT && counts[i] != 4) || !takes()) {
            continue;
        }
        struct harness_run run = run_of(golden);
        struct outcome outcome;
        char name[160];
        run.sum_groups = GROUPS;
        run.ranks = counts[i];
        run.sharding = sharding;
        snprintf(name, sizeof name, "%u ranks, %s, %s", run.ranks, sharding_names[sharding], place->name);
        golden_train(golden, &run, place, FEW_STEPS, &outcome);
        outcome_check_same(name, expected, &outcome);
        outcome_close(&outcome);
    }
}

/* Copies of the model, each divided among the ranks that are left of these: hybrid sharding. */
static void check_copies(const struct golden *golden, const struct outcome *expected) {
    static const struct {
        uint32_t ranks, copies;
    } cases[] = {{4, 2}, {6, 2}, {6, 3}, {8, 2}, {8, 4}, {3, 3}, {4, 1}};
    uint32_t turn = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t k = 0; harness_places[k].name != NULL; k++) {
            if (harness_places[k].store || !takes()) { /* a store has one copy */
                continue;
            }
            struct harness_run run = run_of(golden);
            struct outcome outcome;
            char name[160];
            run.sum_groups = GROUPS;
            run.ranks = cases[i].ranks;
            run.copies = cases[i].copies;
            run.sharding = shardings[turn++ % 5];
            snprintf(name, sizeof name, "%u ranks in %u copies, %s, %s", run.ranks, run.copies,
                     sharding_names[run.sharding], harness_places[k].name);
            golden_train(golden, &run, &harness_places[k], FEW_STEPS, &outcome);
            outcome_check_same(name, expected, &outcome);
            outcome_close(&outcome);
        }
    }
}

/* Delays every lane and every call between ranks, with memory that is NaN before it is written. */
static void check_chaos(const struct golden *golden, const struct outcome *expected) {
    struct harness_run run = run_of(golden);
    run.sum_groups = GROUPS;
    run.ranks = 4;
    for (size_t i = 0; harness_places[i].name != NULL; i++) {
        if (i % (2 * STRIDE) == 0 && takes()) {
            struct outcome outcome;
            struct harness_place place = harness_places[i];
            place.chaos_seed = i + 1;
            run.sharding = shardings[i / 2 % 5]; /* all but NONE, which has no store */
            golden_train(golden, &run, &place, FEW_STEPS, &outcome);
            outcome_check_same(place.name, expected, &outcome);
            outcome_close(&outcome);
        }
    }
}

static void check(const char *name, bool chaos) {
    struct golden golden;
    struct outcome expected;
    golden_open(name, &golden);
    golden.micro_batches = GROUPS;
    struct harness_run run = run_of(&golden);
    run.sum_groups = GROUPS;
    check_eval(&golden);
    golden_train(&golden, &run, &harness_in_memory, FEW_STEPS, &expected);
    for (size_t i = 0; i < sizeof shardings / sizeof *shardings; i++) {
        check_ranks(&golden, &harness_in_memory, shardings[i], &expected);
    }
    for (size_t i = 0; harness_places[i].name != NULL; i++) {
        if (i % STRIDE != 0) {
            continue;
        }
        const enum ox_sharding sharding = shardings[i % (sizeof shardings / sizeof *shardings)];
        check_ranks(&golden, &harness_places[i],
                    sharding == OX_SHARDING_NONE && harness_places[i].store ? OX_SHARDING_FULL : sharding, &expected);
    }
    check_copies(&golden, &expected);
    if (chaos) {
        check_chaos(&golden, &expected);
    }
    outcome_close(&expected);
    golden_close(&golden);
}

int main(void) {
    check("llama_tied_gqa", true);
    check("router_losses", false);
    check("router_bias", false);
    if (IS_SHORT) {
        return test_end();
    }
    check("llama_untied_odd", false);
    dtype = OX_COMPUTE_FP16;
    check("gpt2_small", false);
    check("frozen_blocks", false);
    check("frozen_below", false);
    check("frozen_parts", true);
    dtype = OX_COMPUTE_FP32;
    check("loss_terms", false);
    return test_end();
}
