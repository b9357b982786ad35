/* No bit depends on where planes live, on how units are cut, on drives, threads or late lanes: runs of the models of
 * tests/golden/ at every placement are compared with the run in memory. */
#include "base/assert.h"
#include "base/file.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <signal.h>
#include <stdio.h>

static void check_places(const struct golden *golden, const char *what, enum ox_compute_dtype dtype, bool grad_bf16) {
    struct harness_run run = golden_run(golden);
    run.dtype = dtype;
    run.grad_bf16 = grad_bf16;
    golden_check_places(golden, &run, what, 2);
}

/* Placements with lanes that start late, and with memory that is NaN before it is written. */
static void check_chaos(const struct golden *golden) {
    const struct harness_run run = golden_run(golden);
    const struct harness_place *const places[] = {&harness_in_memory, &harness_places[0], &harness_places[2],
                                                  &harness_places[3]};
    struct outcome expected, outcome;
    printf("%s, with chaos\n", golden->folder);
    golden_train(golden, &run, &harness_in_memory, FEW_STEPS, &expected);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        struct harness_place place = *places[i];
        place.chaos_seed = i + 1;
        golden_train(golden, &run, &place, FEW_STEPS, &outcome);
        outcome_check_same(place.name, &expected, &outcome);
        outcome_close(&outcome);
    }
    outcome_close(&expected);
}

static void ask_to_stop(void *context, const struct ox_step_result *result) {
    (void)result;
    *(volatile sig_atomic_t *)context = 1;
}

/* A step that is stopped changes nothing: repeating it gives the same bits. One that is asked to stop when its norm is
 * decided ends as it would have. */
static void check_stop(const struct golden *golden, const struct harness_place *place) {
    const struct harness_run run = golden_run(golden);
    volatile sig_atomic_t stop = 1;
    struct harness harness;
    struct outcome expected, outcome;
    printf("%s, stopped and begun again\n", golden->folder);
    golden_train(golden, &run, &harness_in_memory, FEW_STEPS, &expected);
    harness_open(&run, place, &harness);
    golden_steps(&harness, golden, 0, 1, &outcome);
    struct ox_step_input input = golden_input(golden, 1, golden_fill(harness.engine, golden, 1));
    struct ox_step_result result;
    input.stop = &stop;
    CHECK(ox_engine_step(harness.engine, &input, &result) == OX_E_ABORTED);
    stop = 0;
    input.decided = ask_to_stop;
    input.context = (void *)&stop;
    CHECK(ox_engine_step(harness.engine, &input, &result) == OX_OK && stop == 1);
    outcome.losses[1] = result.loss;
    outcome.norms[1] = result.grad_norm;
    golden_end(&harness, place->name, &expected, &outcome);
    outcome_close(&expected);
}

/* A step that is not finite is skipped and changes nothing. */
static void check_nonfinite(const struct golden *golden, const struct harness_place *place) {
    const struct harness_run run = golden_run(golden);
    struct harness harness;
    struct outcome expected, outcome;
    struct ox_step_result result;
    uint16_t hi = 0x7f80; /* infinity */
    printf("%s, with a step that is not finite\n", golden->folder);
    golden_train(golden, &run, &harness_in_memory, FEW_STEPS, &expected);
    harness_open(&run, place, &harness);
    golden_steps(&harness, golden, 0, 1, &outcome);
    harness_exchange(&harness, 1, &hi);
    const struct ox_step_input input = golden_input(golden, 1, golden_fill(harness.engine, golden, 1));
    REQUIRE_OK(ox_engine_step(harness.engine, &input, &result));
    CHECK(!result.finite);
    harness_exchange(&harness, 1, &hi);
    CHECK(hi == 0x7f80);
    golden_steps(&harness, golden, 1, FEW_STEPS, &outcome);
    golden_end(&harness, place->name, &expected, &outcome);
    outcome_close(&expected);
}

/* Two steps of a model whose embedding is read in more operations (two per chunk) than a port takes at a
 * time. */
static double wide_loss(const char *path, const struct harness_place *place) {
    const struct harness_run run = {
        .model_folder = path, .batch = 1, .seq = 4, .micro_batches = 2, .dtype = OX_COMPUTE_FP32};
    struct harness harness;
    struct ox_step_result result = {0};
    harness_open(&run, place, &harness);
    for (uint64_t step = 1; step <= 2; step++) {
        for (uint32_t mb_idx = 0; mb_idx < run.micro_batches; mb_idx++) {
            const struct ox_batch batch = ox_engine_batch(harness.engine, mb_idx);
            for (int32_t i = 0; i < 4; i++) {
                batch.ids[i] = 8000 * i;
                batch.targets[i] = 32999 - i;
            }
        }
        const struct ox_step_input input = {.step = step,
                                            .target_count = 8,
                                            .adam = {.learning_rate = 1e-2,
                                                     .beta1 = 0.9,
                                                     .beta2 = 0.95,
                                                     .eps = 1e-8,
                                                     .grad_scale = 1,
                                                     .step = step}};
        REQUIRE_OK(ox_engine_step(harness.engine, &input, &result));
    }
    harness_close(&harness);
    return result.loss;
}

static void check_wide(void) {
    static const char json[] = "{\"model_type\":\"llama\",\"vocab_size\":33000,\"hidden_size\":32,"
                               "\"intermediate_size\":16,\"num_hidden_layers\":1,\"num_attention_heads\":2,"
                               "\"num_key_value_heads\":1,\"tie_word_embeddings\":true}";
    char path[OX_PATH_BYTES];
    REQUIRE_OK(ox_path_join(test_folder(), "config.json", path));
    REQUIRE_OK(ox_file_replace(path, json, sizeof json - 1));
    struct harness_place many = harness_places[1];
    OX_ASSERT(many.chunk_elems * (OX_STORE_OPS_MAX / 2) < 33000 * 32);
    const double expected = wide_loss(path, &harness_in_memory), loss = wide_loss(path, &many);
    printf("an embedding of many chunks: loss %.17g and %.17g\n", expected, loss);
    CHECK(expected == loss);
}

int main(void) {
    struct golden tied, untied, learned, frozen, parts, experts;
    golden_open("frozen_blocks", &frozen);
    golden_open("frozen_parts", &parts);
    golden_open("llama_tied_gqa", &tied);
    golden_open("llama_untied_odd", &untied);
    golden_open("gpt2_small", &learned);
    check_places(&tied, "fp32", OX_COMPUTE_FP32, false);
    check_places(&tied, "bf16 with gradients in bf16", OX_COMPUTE_BF16, true);
    check_places(&untied, "fp16 with gradients in bf16", OX_COMPUTE_FP16, true);
    check_places(&learned, "bf16", OX_COMPUTE_BF16, false);
    check_places(&frozen, "fp32", OX_COMPUTE_FP32, false);
    check_places(&parts, "bf16 with gradients in bf16", OX_COMPUTE_BF16, true);
    check_places(&parts, "fp16", OX_COMPUTE_FP16, false);
    golden_open("qwen3_moe", &experts);
    check_places(&experts, "bf16", OX_COMPUTE_BF16, false);
    golden_close(&experts);
    golden_open("router_losses", &experts);
    check_places(&experts, "fp32 with losses of routers", OX_COMPUTE_FP32, false);
    golden_close(&experts);
    golden_open("router_bias", &experts);
    const struct harness_run routed = golden_run(&experts);
    check_places(&experts, "bf16 with biases that move", OX_COMPUTE_BF16, true);
    golden_check_reopened(&experts, &routed, "fp32 with biases that move", 2);
    golden_close(&experts);
    check_chaos(&tied);
    check_chaos(&learned);
    const struct harness_run run = golden_run(&tied);
    golden_check_reopened(&tied, &run, "fp32", 1);
    const struct harness_run partly = golden_run(&parts), blocks = golden_run(&frozen);
    golden_check_reopened(&parts, &partly, "fp32", 1);
    golden_check_reopened(&frozen, &blocks, "fp32", 2);
    check_stop(&tied, &harness_in_memory);
    check_stop(&untied, &harness_places[0]);
    check_nonfinite(&learned, &harness_in_memory);
    check_nonfinite(&tied, &harness_places[3]);
    check_chaos(&frozen);
    check_stop(&parts, &harness_places[0]);
    check_nonfinite(&frozen, &harness_places[3]);
    check_wide();
    golden_close(&learned);
    golden_close(&untied);
    golden_close(&tied);
    golden_close(&parts);
    golden_close(&frozen);
    return test_end();
}
