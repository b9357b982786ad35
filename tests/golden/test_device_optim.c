/* The optimizer on the device: whichever units live there, in every format of their state, it gives the bits of the
 * host's optimizer, and only norms and counts cross the link. */
#include "base/assert.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#define AUTO   OX_TIER_COUNT
#define HOST   OX_TIER_HOST
#define DEVICE OX_TIER_DEVICE
static const struct harness_place places[] = {
    {.name = "all of it, after the norm",
     .request = {99, 1, DEVICE, AUTO, DEVICE, AUTO, 0, 0},
     .chunk_elems = 2048,
     .optimizer_threads = 1},
    {.name = "all of it, in the next forward",
     .request = {1, 2, DEVICE, AUTO, DEVICE, AUTO, 1, 0},
     .chunk_elems = 4096,
     .optimizer_threads = 1},
    {.name = "the last unit, after the norm",
     .request = {2, 0, HOST, HOST, HOST, HOST, 0, 0, .device_units = 1},
     .chunk_elems = 4096,
     .optimizer_threads = 2},
    {.name = "all but the first unit, in the next forward",
     .request = {99, 1, HOST, DEVICE, HOST, HOST, 1, 0, .device_units = 2},
     .chunk_elems = 2048,
     .optimizer_threads = 1},
    {.name = "the first two units, in the next forward",
     .request = {2, 1, HOST, HOST, HOST, HOST, 1, 0, .device_units = 2, .device_first = true, .device_sums = 1},
     .chunk_elems = 4096,
     .optimizer_threads = 2},
};
enum { PLACE_COUNT = sizeof places / sizeof *places };

static void check_formats(const struct golden *golden) {
    static const struct {
        struct ox_state_format format;
        bool fp32, grad_bf16;
    } cases[] = {{{OX_OPTIM_ADAMW, OX_MOMENTS_F32, true}, true, true},
                 {{OX_OPTIM_ADAMW, OX_MOMENTS_F32, false}, false, false},
                 {{OX_OPTIM_ADAMW, OX_MOMENTS_BF16, false}, true, false},
                 {{OX_OPTIM_ADAMW, OX_MOMENTS_BF16, true}, false, true},
                 {{OX_OPTIM_ADAMW, OX_MOMENTS_Q8, true}, false, true},
                 {{OX_OPTIM_LION, OX_MOMENTS_Q8, false}, false, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct harness_run run = golden_run(golden);
        struct outcome expected, outcome;
        run.state = cases[i].format;
        run.dtype = cases[i].fp32 ? OX_COMPUTE_FP32 : OX_COMPUTE_BF16;
        run.grad_bf16 = cases[i].grad_bf16;
        printf("%s, %s, %s moments, %s\n", golden->folder, ox_optim_kind_name(run.state.kind),
               ox_moments_name(run.state.moments), run.dtype == OX_COMPUTE_FP32 ? "fp32" : "bf16");
        golden_train(golden, &run, &harness_in_memory, FEW_STEPS, &expected);
        for (size_t k = i % 2; k < PLACE_COUNT; k += 2) {
            golden_train(golden, &run, &places[k], FEW_STEPS, &outcome);
            outcome_check_same(places[k].name, &expected, &outcome);
            outcome_close(&outcome);
        }
        outcome_close(&expected);
    }
}

/* Checks that the requested units are on the device, and that only sums, counts and losses are copied from it. */
static void check_traffic(const struct golden *golden) {
    const struct harness_run run = golden_run(golden);
    for (size_t k = 0; k < PLACE_COUNT; k++) {
        struct harness harness;
        harness_open(&run, &places[k], &harness);
        const struct ox_engine_plan *const plan = ox_engine_plan_of(harness.engine);
        const uint32_t unit_count = plan->table.unit_count;
        const uint32_t requested = places[k].request.state_tier == DEVICE ? unit_count : places[k].request.device_units;
        uint64_t sums = 0;
        for (uint32_t i = 0; i < unit_count; i++) {
            const bool there = places[k].request.device_first ? i < requested : i + requested >= unit_count;
            CHECK(ox_plan_unit_rules(&plan->input, i).state_on_device == there);
            /* The two uses of tied weights are added on the host, unless the weights are updated on the device. */
            const bool tied = plan->input.model.grads[plan->input.model.units[i].grad_idx].addend != OX_NONE;
            const bool counted = there || (places[k].request.device_sums == 1 && !tied);
            sums += counted ? (plan->unit_elems[i] + 2047) / 2048 * 8 : 0;
        }
        const uint64_t *const down = plan->train->traffic[OX_LINK_D2H];
        CHECK(down[OX_TRAFFIC_OTHER] == sums + 8 * (uint64_t)unit_count + 8 * (uint64_t)run.micro_batches);
        CHECK(requested < unit_count || (down[OX_TRAFFIC_WEIGHTS] == 0 && down[OX_TRAFFIC_GRADS] == 0 &&
                                      plan->train->traffic[OX_LINK_H2D][OX_TRAFFIC_WEIGHTS] == 0));
        harness_close(&harness);
    }
}

/* A step whose update overflows fails, at once or when the update is finished, also if the counts that show it arrive
 * only after a stop. */
static void check_overflow(const struct golden *golden) {
    struct harness_run run = golden_run(golden);
    run.state.moments = OX_MOMENTS_BF16; /* they hold values up to 2^127 */
    for (size_t k = 0; k < PLACE_COUNT; k++) {
        const bool overlap = places[k].request.overlap == 1;
        for (int stops = 0; stops <= overlap; stops++) {
            struct harness harness;
            struct ox_step_result result;
            const volatile sig_atomic_t stop = 1;
            harness_open(&run, &places[k], &harness);
            struct ox_step_input input = golden_input(golden, 0, golden_fill(harness.engine, golden, 0));
            input.adam.learning_rate = 3e38;
            input.adam.weight_decay = 0;
            enum ox_status status = ox_engine_step(harness.engine, &input, &result);
            CHECK(status == (overlap ? OX_OK : OX_E_CORRUPT));
            if (stops) {
                input = golden_input(golden, 1, golden_fill(harness.engine, golden, 1));
                input.stop = &stop;
                status = ox_engine_step(harness.engine, &input, &result);
                CHECK(status == OX_E_ABORTED || status == OX_E_CORRUPT);
            }
            if (overlap && status != OX_E_CORRUPT) {
                status = ox_engine_finish_update(harness.engine);
            }
            CHECK(status == OX_E_CORRUPT && strstr(ox_error_text(), "parameters became infinite") != NULL);
            /* Saving afterwards fails for the same reason. */
            CHECK(!overlap || ox_engine_finish_update(harness.engine) == OX_E_CORRUPT);
            harness_close(&harness);
        }
    }
}

/* Stopped, skipped because it is not finite, evaluated in between: the run continues to the same bits. */
static void check_between(const struct golden *golden, uint64_t chaos_seed) {
    const struct harness_run run = golden_run(golden);
    struct outcome expected, outcome;
    printf("%s, interrupted%s\n", golden->folder, chaos_seed != 0 ? ", with chaos" : "");
    golden_train(golden, &run, &harness_in_memory, 4, &expected);
    for (size_t k = 0; k < PLACE_COUNT; k++) {
        struct harness_place place = places[k];
        const volatile sig_atomic_t stop = 1;
        struct harness harness;
        struct ox_step_result result;
        uint16_t hi = 0x7f80; /* infinity */
        struct ox_eval_result evaluated;
        place.chaos_seed = chaos_seed;
        harness_open(&run, &place, &harness);
        golden_steps(&harness, golden, 0, 2, &outcome);
        struct ox_step_input input = golden_input(golden, 2, golden_fill(harness.engine, golden, 2));
        input.stop = &stop;
        CHECK(ox_engine_step(harness.engine, &input, &result) == OX_E_ABORTED);
        golden_steps(&harness, golden, 2, 3, &outcome);
        input.stop = NULL;
        REQUIRE_OK(ox_engine_eval(harness.engine, &input, &evaluated));
        CHECK(evaluated.with_update == (place.request.overlap == 1));
        CHECK(memcmp(evaluated.traffic, evaluated.planned, sizeof evaluated.traffic) == 0);
        harness_exchange(&harness, harness.model->head_idx, &hi);
        input = golden_input(golden, 3, golden_fill(harness.engine, golden, 3));
        REQUIRE_OK(ox_engine_step(harness.engine, &input, &result));
        CHECK(!result.finite);
        harness_exchange(&harness, harness.model->head_idx, &hi);
        CHECK(hi == 0x7f80);
        golden_steps(&harness, golden, 3, 4, &outcome);
        golden_end(&harness, place.name, &expected, &outcome);
    }
    outcome_close(&expected);
}

int main(void) {
    struct golden tied, learned;
    golden_open("llama_tied_gqa", &tied);
    golden_open("gpt2_small", &learned);
    check_formats(&tied);
    check_traffic(&learned);
    check_overflow(&tied);
    check_between(&tied, 0);
    check_between(&learned, 5);
    golden_close(&learned);
    golden_close(&tied);
    return test_end();
}
