/* The engine on the CUDA device against PyTorch, and its bits over placements. Without a GPU the plugin runs on the
 * emulated runtime of tests/simt, on some of the cases and for one step; with one, on the GPU too, on all of them.
 * Tolerances in float32 are those of the CPU; the error of this run is printed beside them. */
#include "base/clock.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/device/simt_kit.h"
#include "tests/kit/log.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <string.h>

/* Calls at the end of a step: each lane asks whether its stream is empty, when it is. */
enum { STALLS_MAX = 3 };

/* Tolerances with activations in bfloat16 too, which the reference keeps in float32. Largest errors on the emulated
 * runtime: 7.1e-3 (deepseek_v3, where transformers in bfloat16 has 1.7e-2), 7.2e-2, 8.3e-2, 3.3e-3. */
static const struct golden_limits bf16_limits = {1e-2, 2e-1, 1e-1, 4e-3};

/* Activations are halves too. Of the gradients of all cases the largest error is 1.4e-2 (gpt_oss): golden.py sees to it
 * that neither the choice of an expert nor the clamping of a query, key or value is decided by rounding. */
static const struct golden_limits fp16_limits = {2e-3, 4e-2, 2e-2, 3e-3};
/* Of a mixture, with activations in bfloat16: norms lie up to 6.1e-3 apart (gpt_oss). */
static const struct golden_limits bf16_mixture_limits = {1e-2, 2e-1, 1e-1, 1e-2};

/* Compares the first steps of a run with the reference in float32. */
static void check_steps(const struct golden *golden, const struct harness_run *run, size_t steps,
                        const struct golden_limits *limits) {
    struct harness harness;
    struct outcome outcome;
    harness_open(run, &harness_in_memory, &harness);
    golden_steps(&harness, golden, 0, steps, &outcome);
    golden_report_within(golden, harness.model, &outcome, steps, limits);
    harness_close(&harness);
    outcome_close(&outcome);
}

static bool is_mixture(const struct golden *golden) {
    return json_object_get(golden->json, "router_margins") != NULL;
}

static void check_case(const struct cuda_kit *kit, const char *name, size_t steps, uint32_t tensor_groups) {
    struct golden golden;
    struct outcome outcome;
    const uint64_t begin_ns = ox_clock_ns();
    golden_open(name, &golden);
    struct harness_run run = golden_run(&golden);
    run.cuda_plugin = kit->plugin;
    run.tensor_groups = tensor_groups;
    printf("%s, %s, %u tensor group%s\n", kit->name, name, tensor_groups, tensor_groups == 1 ? "" : "s");
    check_steps(&golden, &run, steps, &golden_fp32_limits);
    run.dtype = OX_COMPUTE_FP16;
    check_steps(&golden, &run, 1, &fp16_limits);
    run.dtype = OX_COMPUTE_BF16;
    golden_check_bf16(&golden, &run, is_mixture(&golden) ? &bf16_mixture_limits : &bf16_limits, &outcome);
    outcome_close(&outcome);
    golden_close(&golden);
    printf("  %.1f s\n", (double)(ox_clock_ns() - begin_ns) * 1e-9);
}

/* Placements: lanes with random delays, memory that is NaN before it is written, everything on the drives
 * or nothing. */
static void check_places(const struct cuda_kit *kit, const char *name, size_t stride) {
    struct golden golden;
    golden_open(name, &golden);
    struct harness_run run = golden_run(&golden);
    run.cuda_plugin = kit->plugin;
    golden_check_places(&golden, &run, "fp32", stride);
    run.dtype = OX_COMPUTE_BF16;
    golden_check_places(&golden, &run, "bf16", stride);
    struct outcome expected, outcome;
    struct harness_place place = harness_places[0];
    place.chaos_seed = 1;
    golden_train(&golden, &run, &harness_in_memory, FEW_STEPS, &expected);
    golden_train(&golden, &run, &place, FEW_STEPS, &outcome);
    outcome_check_same("with chaos", &expected, &outcome);
    outcome_close(&outcome);
    outcome_close(&expected);
    golden_close(&golden);
}

/* Several ranks on one device, divided in the first `count` ways, have the bits of one rank. What they exchange is
 * copied by the device. */
static void check_ranks(const struct cuda_kit *kit, const char *name, size_t count) {
    static const enum ox_sharding shardings[] = {OX_SHARDING_FULL, OX_SHARDING_SHARED, OX_SHARDING_NONE,
                                                 OX_SHARDING_STEP, OX_SHARDING_GRAD};
    struct golden golden;
    struct outcome expected, outcome;
    golden_open(name, &golden);
    golden.micro_batches = 4;
    struct harness_run run = golden_run(&golden);
    run.cuda_plugin = kit->plugin;
    run.sum_groups = 4;
    golden_train(&golden, &run, &harness_in_memory, FEW_STEPS, &expected);
    for (size_t i = 0; i < count; i++) {
        char what[64];
        run.ranks = i % 2 == 0 ? 2 : 3;
        run.sharding = shardings[i];
        snprintf(what, sizeof what, "%u ranks on one device, sharding %u", run.ranks, (unsigned)run.sharding);
        golden_train(&golden, &run, &harness_in_memory, FEW_STEPS, &outcome);
        outcome_check_same(what, &expected, &outcome);
        outcome_close(&outcome);
    }
    run.ranks = 4;
    run.copies = 2;
    run.sharding = OX_SHARDING_FULL;
    golden_train(&golden, &run, &harness_in_memory, FEW_STEPS, &outcome);
    outcome_check_same("4 ranks on one device in 2 copies", &expected, &outcome);
    outcome_close(&outcome);
    /* Pipelines: activations go from device memory to that of another rank, or to the host where they are saved. */
    run.copies = 0;
    run.pipe = 2;
    for (int k = 0; k < 2; k++) {
        run.ranks = 2 + 2 * (uint32_t)k;
        run.schedule = k == 0 ? OX_PIPE_1F1B : OX_PIPE_VERTICAL; /* the head's rank has the table on loan, or has it */
        golden_train(&golden, &run, k == 0 ? &harness_in_memory : &harness_places[2], FEW_STEPS, &outcome);
        outcome_check_same(k == 0 ? "a pipeline of 2 ranks on one device" : "one of 2 times 2, in three tiers",
                           &expected, &outcome);
        outcome_close(&outcome);
    }
    outcome_close(&expected);
    golden_close(&golden);
}

/* The host never touches device memory, and waits for the device within a step only when it has nothing else to do; no
 * order that the device may choose changes a bit. */
static void check_manners(const struct simt *simt, const struct golden *golden, const struct outcome *expected) {
    struct harness_run run = golden_run(golden);
    struct harness harness;
    struct outcome outcome;
    struct simt_counts before, after;
    run.cuda_plugin = simt->kit.plugin;
    simt->guard(true);
    simt->set_seed(5);
    simt->set_delay(7, 300000);
    harness_open(&run, &harness_places[0], &harness);
    golden_steps(&harness, golden, 0, 1, &outcome); /* the logits are copied to pageable memory */
    simt->count(&before);
    golden_steps(&harness, golden, 1, FEW_STEPS, &outcome);
    simt->count(&after);
    printf("  %llu pieces of work in a step, %llu waits for them, %llu stalls, %llu copies of memory not pinned\n",
           (unsigned long long)(after.run - before.run), (unsigned long long)(after.event_waits - before.event_waits),
           (unsigned long long)(after.stalls - before.stalls), (unsigned long long)(after.pageable - before.pageable));
    CHECK(after.run > before.run && after.pageable == before.pageable);
    CHECK(after.stalls - before.stalls <= STALLS_MAX);
    outcome_read_weights(&harness, &outcome);
    harness_close(&harness);
    simt->set_delay(0, 0);
    simt->set_seed(0);
    simt->guard(false);
    outcome_check_same("guarded memory, delays, another order of threads", expected, &outcome);
    outcome_close(&outcome);
}

/* A call of the device fails within a step: the step is aborted, and repeating it gives the same bits. */
static void check_failures(const struct simt *simt, const struct golden *golden, const struct harness_run *run,
                           const struct outcome *expected) {
    static const uint64_t calls[] = {1, 30, 77};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        struct harness harness;
        struct outcome outcome;
        struct ox_step_result result;
        char what[64];
        if (!test_takes((unsigned)i + run->cuda_count, 3)) {
            continue;
        }
        harness_open(run, &harness_places[0], &harness);
        golden_steps(&harness, golden, 0, 1, &outcome);
        const struct ox_step_input input = golden_input(golden, 1, golden_fill(harness.engine, golden, 1));
        simt->fail_after(calls[i]);
        const enum ox_status status = ox_engine_step(harness.engine, &input, &result);
        CHECK(status == OX_E_DEVICE || (run->cuda_count > 1 && status == OX_E_COMM)); /* it may be a call of NCCL's */
        simt->fail_after(0);
        golden_steps(&harness, golden, 1, FEW_STEPS, &outcome);
        snprintf(what, sizeof what, "call %llu of a step failed", (unsigned long long)calls[i]);
        golden_end(&harness, what, expected, &outcome);
    }
}

/* NCCL adds the gradients, so the bits may be others, but not the run. */
static void check_library(const struct simt *simt, const struct golden *golden, struct harness_run run,
                          const struct outcome *expected) {
    static const enum ox_sharding shardings[] = {OX_SHARDING_FULL, OX_SHARDING_NONE};
    simt->set_nccl(true);
    run.library_sums = true;
    for (uint32_t i = 0; i < sizeof shardings / sizeof *shardings; i++) {
        struct outcome outcome;
        if (!test_takes(i, 2)) {
            continue;
        }
        run.sharding = shardings[i];
        run.ranks = 2 + i;
        golden_train(golden, &run, &harness_in_memory, FEW_STEPS, &outcome);
        outcome_check_close("sums of NCCL", expected, &outcome);
        outcome_close(&outcome);
    }
}

/* Copies of the model, each of two GPUs: a rank calls NCCL with all, with its copy's other rank and with the same rank
 * of the other copy. */
static void check_copies(const struct simt *simt, const struct golden *golden, struct harness_run run,
                         const struct outcome *expected) {
    struct outcome outcome;
    simt->set_machine(4, 13000);
    simt->set_nccl(true);
    run.ranks = run.cuda_count = 4;
    run.copies = 2;
    run.sharding = OX_SHARDING_STEP;
    const uint64_t before = simt->nccl_calls();
    golden_train(golden, &run, &harness_in_memory, FEW_STEPS, &outcome);
    CHECK(simt->nccl_calls() > before);
    outcome_check_same("4 GPUs with NCCL in 2 copies", expected, &outcome);
    outcome_close(&outcome);
    simt->set_machine(3, 13000);
}

/* Ranks on GPUs of their own send each other everything through NCCL, with the bits of one rank. Where there is none,
 * or sources lie in host memory, the devices copy; a run that demands NCCL is refused. */
static void check_nccl(const struct simt *simt, const char *name) {
    static const enum ox_sharding shardings[] = {OX_SHARDING_FULL, OX_SHARDING_NONE, OX_SHARDING_SHARED};
    struct golden golden;
    struct outcome expected, outcome;
    golden_open(name, &golden);
    golden.micro_batches = 4;
    struct harness_run run = golden_run(&golden);
    run.cuda_plugin = simt->kit.plugin;
    run.sum_groups = 4;
    golden_train(&golden, &run, &harness_in_memory, FEW_STEPS, &expected);
    simt->set_machine(3, 13000);
    run.cuda_count = 3;
    log_count_warnings("without NCCL");
    for (uint32_t i = 0; i < 2 * sizeof shardings / sizeof *shardings; i++) {
        const bool present = i % 2 == 0;
        char what[64];
        if (!test_takes(i / 2 + i % 2, 4)) {
            continue;
        }
        run.sharding = shardings[i / 2];
        run.ranks = i / 2 == 0 ? 3 : 2;
        snprintf(what, sizeof what, "%u GPUs %s NCCL, sharding %u", run.ranks, present ? "with" : "without",
                 (unsigned)run.sharding);
        simt->set_nccl(present);
        log_warnings = 0;
        const uint64_t before = simt->nccl_calls();
        golden_train(&golden, &run, &harness_in_memory, FEW_STEPS, &outcome);
        const bool shares = run.sharding == OX_SHARDING_SHARED;
        CHECK((simt->nccl_calls() > before) == (present && !shares) && log_warnings == (present || shares ? 0 : 1));
        outcome_check_same(what, &expected, &outcome);
        outcome_close(&outcome);
    }
    check_copies(simt, &golden, run, &expected);
    check_library(simt, &golden, run, &expected);
    run.sharding = OX_SHARDING_FULL;
    run.comm = OX_RANK_COMM_NCCL;
    simt->set_nccl(false);
    CHECK(harness_try(&run, &harness_in_memory) == OX_E_COMM && strstr(ox_error_text(), "NCCL: ") != NULL);
    simt->set_nccl(true);
    check_failures(simt, &golden, &run, &expected);
    simt->set_machine(1, 13000);
    outcome_close(&expected);
    golden_close(&golden);
}

static void check_emulated(const char *name) {
    const struct simt *const simt = simt_open();
    struct golden golden;
    struct outcome expected;
    golden_open(name, &golden);
    struct harness_run run = golden_run(&golden);
    run.cuda_plugin = simt->kit.plugin;
    printf("%s, %s, on the emulated runtime alone\n", golden.folder, "fp32");
    golden_train(&golden, &run, &harness_in_memory, FEW_STEPS, &expected);
    check_manners(simt, &golden, &expected);
    check_failures(simt, &golden, &run, &expected);
    outcome_close(&expected);
    golden_close(&golden);
}

static bool is_of_mixture(const char *name) {
    struct golden golden;
    golden_open(name, &golden);
    const bool is = is_mixture(&golden);
    golden_close(&golden);
    return is;
}

int main(void) {
    enum { CASES_EMULATED = 4 };
    struct cuda_kit kit;
    cuda_kit_emulated(&kit);
    for (size_t i = 0; i < CASES_EMULATED; i++) {
        if (test_takes((unsigned)i, 4)) {
            check_case(&kit, golden_cases[i], 1, 1);
        }
    }
    check_case(&kit, "eight_qwen3", 1, 4);
    check_case(&kit, "lora_q8", 1, 1);
    for (size_t i = CASES_EMULATED; test_all() && i < golden_case_count; i++) {
        if (is_of_mixture(golden_cases[i])) {
            check_case(&kit, golden_cases[i], 1, 1);
        }
    }
    const char *const divided = test_all() ? "llama_untied_odd" : "gpt2_b1"; /* which is three times as fast */
    check_places(&kit, "gpt2_b1", 12);
    check_ranks(&kit, divided, 2);
    check_nccl(simt_open(), divided);
    check_emulated("gpt2_b1");
    if (cuda_kit_real(&kit)) {
        for (size_t i = 0; i < golden_case_count; i++) {
            check_case(&kit, golden_cases[i], GOLDEN_STEPS, 1);
        }
        check_case(&kit, "eight_qwen3", GOLDEN_STEPS, 4);
        check_case(&kit, "eight_gpt2", GOLDEN_STEPS, 8);
        check_places(&kit, "llama_tied_gqa", 1);
        check_ranks(&kit, "llama_tied_gqa", 5);
    }
    return test_end();
}
