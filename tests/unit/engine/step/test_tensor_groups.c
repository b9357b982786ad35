/* Products in groups of features: as near to PyTorch as in one group, and for as many groups the same bits wherever
 * planes live and however many ranks divide a step. */
#include "engine/model/model.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <string.h>

enum { SUM_GROUPS = 4, COUNT = 4 };
static const uint32_t counts[COUNT] = {2, 3, 4, 8};
static const double final_limit = 3e-5; /* as test_golden.c has it */

/* Whether the case's model can be cut so, with its adapters; dropout has other words then than the reference's. */
static bool can(const struct golden *golden, uint32_t groups) {
    struct ox_hf_folder *folder = NULL;
    struct ox_model *model = NULL;
    char path[300];
    const struct harness_run run = golden_run(golden);
    snprintf(path, sizeof path, "%s/%s", golden->folder, run.adapter == NULL ? "" : run.adapter);
    REQUIRE_OK(run.adapter == NULL ? ox_hf_open(golden->folder, false, &folder)
                                   : ox_hf_open_adapter(golden->folder, path, false, &folder));
    struct ox_model_config config = ox_hf_model(folder)->config;
    config.tensor_groups = groups;
    const bool is = run.share_layers == 0 && config.lora.dropout == 0.0 && !run.base_q8 &&
                    ox_model_build(&config, &model) == OX_OK;
    ox_model_close(&model);
    ox_hf_close(&folder);
    return is;
}

/* The reference's ten steps. Returns whether the losses differ in bits from those in one group. */
static bool check_reference(const struct golden *golden, uint32_t groups) {
    struct harness_run run = golden_run(golden);
    struct harness harness;
    struct outcome outcome, one;
    golden_train(golden, &run, &harness_in_memory, 1, &one);
    run.tensor_groups = groups;
    harness_open(&run, &harness_in_memory, &harness);
    printf("%s in %u groups\n", golden->folder, groups);
    golden_steps(&harness, golden, 0, GOLDEN_STEPS, &outcome);
    outcome_read_weights(&harness, &outcome);
    golden_report_fp32(golden, harness.model, &outcome, GOLDEN_STEPS);
    golden_report("weights after ten steps", golden_compare_tensors(golden, harness.model, "final", outcome.weights),
                  final_limit);
    const bool differs = outcome.norms[0] != one.norms[0];
    outcome_close(&one);
    outcome_close(&outcome);
    harness_close(&harness);
    return differs;
}

/* Every placement, kept activations, memory that is NaN before it is written, and several ranks. */
static void check_same(const struct golden *golden, uint32_t groups, enum ox_compute_dtype dtype) {
    struct harness_run run = golden_run(golden);
    struct harness_place kept = harness_in_memory;
    struct outcome expected, outcome;
    char what[64];
    run.tensor_groups = groups;
    run.dtype = dtype;
    kept.request.kept_units = 1;
    kept.chaos_seed = 1;
    run.sum_groups = SUM_GROUPS < run.micro_batches ? SUM_GROUPS : run.micro_batches;
    snprintf(what, sizeof what, "%s in %u tensor groups", dtype == OX_COMPUTE_FP32 ? "fp32" : "bf16", groups);
    golden_check_places(golden, &run, what, 3);
    golden_train(golden, &run, &harness_in_memory, FEW_STEPS, &expected);
    golden_train(golden, &run, &kept, FEW_STEPS, &outcome);
    outcome_check_same("a block that keeps its activations", &expected, &outcome);
    outcome_close(&outcome);
    for (run.ranks = 2; run.ranks <= run.sum_groups; run.ranks++) {
        snprintf(what, sizeof what, "%u ranks in %u tensor groups", run.ranks, groups);
        golden_train(golden, &run, &harness_in_memory, FEW_STEPS, &outcome);
        outcome_check_same(what, &expected, &outcome);
        outcome_close(&outcome);
    }
    outcome_close(&expected);
}

int main(void) {
    uint32_t tried[COUNT] = {0}, differing = 0;
    static const struct {
        const char *name;
        uint32_t groups;
    } placed[] = {{"gpt2_small", 3}, {"llama_tied_gqa", 2}, {"eight_qwen3", 4}, {"eight_gpt2", 8},
                {"four_qwen2_moe", 4}};
    for (size_t i = 0; i < golden_case_count; i++) {
        struct golden golden;
        golden_open(golden_cases[i], &golden);
        for (int k = 0; k < COUNT; k++) {
            if (can(&golden, counts[k])) {
                differing += check_reference(&golden, counts[k]);
                tried[k]++;
            }
        }
        golden_close(&golden);
    }
    printf("%u cases in 2 groups, %u in 3, %u in 4, %u in 8\n", tried[0], tried[1], tried[2], tried[3]);
    CHECK(tried[0] >= 10 && tried[1] >= 2 && tried[2] >= 2 && tried[3] >= 2 && differing > 0);
    for (size_t i = 0; i < sizeof placed / sizeof *placed; i++) {
        struct golden golden;
        golden_open(placed[i].name, &golden);
        check_same(&golden, placed[i].groups, i % 2 == 0 ? OX_COMPUTE_FP32 : OX_COMPUTE_BF16);
        golden_close(&golden);
    }
    return test_end();
}
