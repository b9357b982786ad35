/* The engine against PyTorch: every case of tests/golden/ in float32, in memory and through three tiers, and
 * in bfloat16, two of them in fp16. Tolerances are at most four times what was measured when they were set, the worst
 * of all core types that OpenBLAS knows; the measured error of this run is printed beside them. */
#include "engine/model/list.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double final_limit = 3e-5; /* error of weights after ten steps in float32 */
/* Weights are rounded alike on both sides, so only the arithmetic differs. */
static const struct golden_limits bf16_limits = {3e-7, 1e-5, 1e-5, 4e-7};

static void check_against_reference(const struct golden *golden, const struct ox_model *model,
                                    const struct outcome *outcome) {
    golden_report_fp32(golden, model, outcome, GOLDEN_STEPS);
    golden_report("weights after ten steps", golden_compare_tensors(golden, model, "final", outcome->weights),
                  final_limit);
}

/* Checks that the names of decayed tensors agree, so that a wrong rule is not mistaken for rounding. */
static void check_decay(const struct golden *golden, const struct ox_model *model) {
    const json_t *const names = json_object_get(golden->json, "decayed");
    uint32_t decayed = 0;
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct ox_tensor *const tensor = &model->tensors[i];
        const bool is_own = tensor->shares_idx == OX_NO_TENSOR;
        decayed += is_own && tensor->decay && tensor->role != OX_ROLE_EMBED && tensor->role != OX_ROLE_POSITION;
    }
    CHECK(json_array_size(names) == decayed);
    for (size_t i = 0; i < json_array_size(names); i++) {
        const int64_t idx = ox_model_find_tensor(model, json_string_value(json_array_get(names, i)));
        CHECK(idx >= 0 && model->tensors[idx].decay);
    }
}

/* Whether numbers are those of a folder within what eight bits are off: half a step of 127 of a block's largest. */
static bool is_rounded(const float *numbers, const float *began, uint64_t count) {
    bool is = true;
    for (uint64_t first = 0; first < count; first += 32) {
        const uint64_t past = first + 32 < count ? first + 32 : count;
        double most = 0, worst = 0;
        for (uint64_t i = first; i < past; i++) {
            most = fmax(most, fabs((double)began[i]));
            worst = fmax(worst, fabs((double)began[i] - (double)numbers[i]));
        }
        is = is && worst <= most / 254 * 1.004; /* the scale is rounded too */
    }
    return is;
}

/* What is not trained keeps its bits, or is rounded to eight, and its gradient counts as nothing. Biases of a choice
 * may move, and experts that no token chose may stay. */
static void check_frozen(const struct harness *harness, const struct outcome *outcome) {
    const struct ox_model *const model = harness->model;
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct ox_tensor *const tensor = &model->tensors[i];
        const float *const weights = outcome->weights[tensor->unit_idx] + tensor->offset;
        const float *const grads = outcome->grads[tensor->unit_idx];
        float *const began = calloc(tensor->count, sizeof *began);
        REQUIRE_OK(ox_hf_read(harness->folder, i, 0, tensor->count, began));
        const bool same = memcmp(weights, began, tensor->count * sizeof *began) == 0;
        const bool of_expert = tensor->role >= OX_ROLE_EXPERT_GATE_UP && tensor->role <= OX_ROLE_EXPERT_DOWN_BIAS;
        const bool moves = tensor->trained || (tensor->limbs && harness->run.router_bias_rate > 0);
        const bool rounds = model->units[tensor->unit_idx].format == OX_FORMAT_Q8;
        CHECK(rounds ? !moves && is_rounded(weights, began, tensor->count)
                     : same == !moves || (same && of_expert && harness->run.skips_idle));
        for (uint64_t k = 0; !tensor->trained && grads != NULL && k < tensor->count; k++) {
            CHECK(grads[tensor->offset + k] == 0.0f);
        }
        free(began);
    }
}

static void check_fp32(const struct golden *golden) {
    const struct harness_run run = golden_run(golden);
    struct harness harness;
    struct outcome outcome, other;
    struct ox_eval_result eval;
    harness_open(&run, &harness_in_memory, &harness);
    check_decay(golden, harness.model);
    const uint64_t counted = golden_fill(harness.engine, golden, 0);
    const struct ox_step_input input = golden_input(golden, 0, counted);
    REQUIRE_OK(ox_engine_eval(harness.engine, &input, &eval));
    golden_steps(&harness, golden, 0, GOLDEN_STEPS, &outcome);
    outcome_read_weights(&harness, &outcome);
    if (run.objective.drop_seed != 0) { /* an evaluation has none of it */
        CHECK(eval.loss_sum / (double)counted != outcome.losses[0]);
    } else if (run.objective.noise == 0.0f) {
        CHECK(eval.loss_sum / (double)counted == outcome.losses[0]);
    } else {
        CHECK(eval.loss_sum / (double)counted < outcome.losses[0]);
    }
    check_against_reference(golden, harness.model, &outcome);
    check_frozen(&harness, &outcome);
    harness_close(&harness);
    golden_train(golden, &run, &harness_places[0], GOLDEN_STEPS, &other);
    outcome_check_same(harness_places[0].name, &outcome, &other);
    outcome_close(&other);
    outcome_close(&outcome);
}

/* Rounds to the nearest bfloat16, ties to even, by arithmetic with 2^16 units in the last place of the result. */
static float rounded_to_even(float value) {
    int exponent = 0;
    frexpf(value, &exponent);
    const float unit = ldexpf(1, (exponent < -125 ? -125 : exponent) - 8);
    return nearbyintf(value / unit) * unit;
}

/* A gradient that leaves the device in 16 bits equals the whole 32-bit sum, rounded once. */
static void check_narrow_grads(const struct golden *golden, const struct harness_run *run,
                               const struct outcome *wide) {
    struct harness_run narrow_run = *run;
    struct outcome narrow;
    uint64_t compared = 0, inexact = 0, wrong = 0;
    narrow_run.grad_bf16 = true;
    golden_train(golden, &narrow_run, &harness_in_memory, 1, &narrow);
    for (int i = 0; i < GOLDEN_UNITS_MAX; i++) {
        for (uint64_t j = 0; wide->grads[i] != NULL && j < wide->elems[i]; j++) {
            wrong += narrow.grads[i][j] != rounded_to_even(wide->grads[i][j]);
            inexact += narrow.grads[i][j] != wide->grads[i][j];
            compared += wide->grads[i][j] != 0.0f; /* gaps, and what is not trained */
        }
    }
    printf("  gradients in bfloat16: %llu of %llu differ from rounded ones\n", (unsigned long long)wrong,
           (unsigned long long)compared);
    CHECK(wrong == 0 && inexact > compared / 2);
    CHECK(narrow.losses[0] == wide->losses[0]);
    outcome_close(&narrow);
}

static void check_bf16(const struct golden *golden) {
    struct harness_run run = golden_run(golden);
    struct outcome outcome;
    run.dtype = OX_COMPUTE_BF16;
    golden_check_bf16(golden, &run, &bf16_limits, &outcome);
    check_narrow_grads(golden, &run, &outcome);
    outcome_close(&outcome);
}

/* Inputs of GEMMs are halves, all else is float32: against the reference in float32. */
static void check_fp16(const struct golden *golden) {
    static const struct golden_limits limits = {8e-4, 1.2e-2, 6e-3, 6e-4};
    struct harness_run run = golden_run(golden);
    struct harness harness;
    struct outcome outcome;
    run.dtype = OX_COMPUTE_FP16;
    printf("  in fp16:\n");
    harness_open(&run, &harness_in_memory, &harness);
    golden_steps(&harness, golden, 0, GOLDEN_STEPS, &outcome);
    outcome_read_weights(&harness, &outcome);
    golden_report_within(golden, harness.model, &outcome, GOLDEN_STEPS, &limits);
    golden_report("weights after ten steps", golden_compare_tensors(golden, harness.model, "final", outcome.weights),
                  2e-3);
    harness_close(&harness);
    outcome_close(&outcome);
}

/* ---- what the cases have -------------------------------------------------------------------------------- */

/* Kinds of nodes of blocks: each plain, with a residual, with a scale or a window. */
struct node_kinds {
    bool has[OX_NODE_KIND_COUNT][2][2];
};

static void add_node_kinds(const struct golden *golden, struct node_kinds *kinds) {
    const struct harness_run run = golden_run(golden);
    struct harness harness;
    static struct ox_list list;
    harness_open(&run, &harness_in_memory, &harness);
    const struct ox_model *const model = harness.model;
    const struct ox_shape shape = {.model = model, .batch = 1, .seq = 8, .rows = 8, .compute = {.threads = 1}};
    for (uint32_t i = 0; i < model->block_count; i++) {
        ox_block_list(&shape, &model->units[model->blocks[i]], &list);
        for (uint32_t k = 0; k < list.node_count; k++) {
            const struct ox_node *const node = &list.nodes[k];
            kinds->has[node->kind][node->residual != OX_NO_VALUE][node->scale != 0.0f || node->window != 0] = true;
        }
    }
    harness_close(&harness);
}

int main(void) {
    struct node_kinds of_few = {0}, of_all = {0};
    /* The reference's arithmetic is exact, and so are these tolerances; test_autocast.c has those of GEMMs in bf16. */
    CHECK(setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE", 1) == 0);
    for (size_t i = 0; i < golden_case_count; i++) {
        struct golden golden;
        printf("%s\n", golden_cases[i]);
        golden_open(golden_cases[i], &golden);
        add_node_kinds(&golden, &of_all);
        of_few = i < golden_taken_count() ? of_all : of_few;
        check_fp32(&golden);
        check_bf16(&golden);
        if (strcmp(golden_cases[i], "llama_tied_gqa") == 0 || strcmp(golden_cases[i], "gpt2_small") == 0) {
            check_fp16(&golden);
        }
        golden_close(&golden);
    }
    CHECK(memcmp(&of_few, &of_all, sizeof of_all) == 0); /* else a later case is the first of a kind */
    return test_end();
}
