/* Gradients that are summed in groups: the sums are those of the groups, each computed by a step of its own, joined by
 * hand in the tree; and no bit depends on where things live. */
#include "base/assert.h"
#include "base/bytes.h"
#include "cpu_optim/norm.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MICRO_BATCHES = 9, GROUPS_MAX = 9 };

/* The gradients of all units. */
struct gradients {
    float *units[GOLDEN_UNITS_MAX];
};

static void close_gradients(struct gradients *gradients) {
    for (uint32_t i = 0; i < GOLDEN_UNITS_MAX; i++) {
        free(gradients->units[i]);
    }
}

/* The norm of the gradients: the chain of the units' totals, each that of its partial sums, with no other bits. */
static double norm_of(const struct harness *harness, const struct gradients *gradients) {
    double total = 0;
    for (uint32_t i = 0; i < harness->model->unit_count; i++) {
        const uint64_t elems = harness->model->units[i].elem_count, count = ox_div_up(elems, OX_GROUP_ELEMS);
        double *const partials = calloc(count, sizeof *partials), unit = 0;
        ox_sumsq_partials(ox_engine_pool(harness->engine), gradients->units[i], OX_GRAD_F32, elems, partials);
        for (uint64_t k = 0; k < count; k++) {
            unit += partials[k];
        }
        total += unit;
        free(partials);
    }
    return sqrt(total);
}

/* Sums the gradients of micro-batches [first, past) of the batches in one step, whose loss is divided by the targets of
 * all. Returns how many targets they have. */
static uint64_t sum_range(const struct golden *golden, uint32_t sum_groups, uint64_t first, uint64_t past,
                          uint64_t target_count, struct gradients *out) {
    struct golden range = *golden;
    struct harness harness;
    range.first_micro_batch = first;
    range.micro_batches = past - first;
    struct harness_run run = golden_run(&range);
    run.sum_groups = sum_groups;
    harness_open(&run, &harness_in_memory, &harness);
    const uint64_t own_count = golden_fill(harness.engine, &range, 0);
    const struct ox_step_input input = golden_input(&range, 0, target_count == 0 ? own_count : target_count);
    struct ox_step_result result;
    REQUIRE_OK(ox_engine_step(harness.engine, &input, &result));
    OX_ASSERT(harness.model->unit_count <= GOLDEN_UNITS_MAX);
    *out = (struct gradients){{NULL}};
    for (uint32_t i = 0; i < harness.model->unit_count; i++) {
        const uint64_t elems = harness.model->units[i].elem_count;
        out->units[i] = calloc(elems, sizeof(float));
        ox_engine_grad_read(harness.engine, i, 0, elems, out->units[i]);
    }
    CHECK(result.grad_norm == norm_of(&harness, out));
    harness_close(&harness);
    return own_count;
}

/* The sum of the groups' elements: split at the largest power of two below their number. */
static float join(const struct gradients *groups, uint32_t count, uint32_t unit_idx, uint64_t elem_idx) {
    uint32_t left = 1;
    while (2 * left < count) {
        left *= 2;
    }
    return count == 1 ? groups[0].units[unit_idx][elem_idx]
                      : join(groups, left, unit_idx, elem_idx) + join(groups + left, count - left, unit_idx, elem_idx);
}

/* Compares a step in groups with its groups. Both uses of a tied table are summed apart before they are added, so that
 * the sums of its groups do not give its bits. Returns how many elements differ from the sum in one group. */
static uint64_t check_groups(const struct golden *golden, uint32_t group_count, uint64_t target_count,
                             const struct gradients *chain) {
    struct gradients whole, groups[GROUPS_MAX];
    struct harness_run run = golden_run(golden);
    struct ox_hf_folder *folder = NULL;
    uint64_t wrong = 0, compared = 0, other = 0;
    for (uint32_t i = 0; i < group_count; i++) {
        /* What a rank of as many has. */
        const struct ox_sums group = {
            .micro_batches = MICRO_BATCHES, .groups = group_count, .ranks = group_count, .rank = i};
        sum_range(golden, 1, ox_sums_first(&group), ox_sums_first(&group) + ox_sums_count(&group), target_count,
                  &groups[i]);
    }
    sum_range(golden, group_count, 0, MICRO_BATCHES, target_count, &whole);
    REQUIRE_OK(ox_hf_open(run.model_folder, false, &folder));
    const struct ox_model *const model = ox_hf_model(folder);
    const bool tied = model->table.unit_idx != model->head_idx;
    for (uint32_t unit_idx = 0; unit_idx < model->unit_count; unit_idx++) {
        for (uint64_t i = 0; i < model->units[unit_idx].elem_count; i++) {
            const float found = whole.units[unit_idx][i];
            other += memcmp(&found, &chain->units[unit_idx][i], sizeof found) != 0;
            if (!tied || unit_idx != model->table.unit_idx) {
                const float expected = join(groups, group_count, unit_idx, i);
                wrong += memcmp(&found, &expected, sizeof found) != 0;
                compared++;
            }
        }
    }
    printf("%s: %u groups: %llu of %llu sums differ from the groups joined by hand; %llu from one group\n",
           golden->folder, group_count, (unsigned long long)wrong, (unsigned long long)compared,
           (unsigned long long)other);
    CHECK(wrong == 0 && compared > 0);
    ox_hf_close(&folder);
    close_gradients(&whole);
    for (uint32_t i = 0; i < group_count; i++) {
        close_gradients(&groups[i]);
    }
    return other;
}

static void check_tree(const char *name) {
    static const uint32_t counts[] = {1, 2, 3, 4, 8, 9};
    struct golden golden;
    struct gradients chain;
    golden_open(name, &golden);
    const uint64_t target_count = sum_range(&golden, 0, 0, MICRO_BATCHES, 0, &chain);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        CHECK((check_groups(&golden, counts[i], target_count, &chain) > 0) == (counts[i] > 1));
    }
    close_gradients(&chain);
    golden_close(&golden);
}

/* All placements, with more micro-batches than groups. */
static void check_places(const char *name, uint32_t sum_groups, bool fp32, size_t stride) {
    const bool grad_bf16 = fp32 && stride > 1;
    struct golden golden;
    golden_open(name, &golden);
    golden.micro_batches = MICRO_BATCHES;
    struct harness_run run = golden_run(&golden);
    run.sum_groups = sum_groups;
    run.dtype = fp32 ? OX_COMPUTE_FP32 : OX_COMPUTE_BF16;
    run.grad_bf16 = grad_bf16;
    char what[64];
    snprintf(what, sizeof what, "%s%s in %u sum groups", fp32 ? "fp32" : "bf16", grad_bf16 ? ", gradients in bf16" : "",
             sum_groups);
    golden_check_places(&golden, &run, what, stride);
    golden_close(&golden);
}

/* The reference's own steps, whose sums are near those of PyTorch in any order. */
static void check_reference(const char *name) {
    struct golden golden;
    struct harness harness;
    struct outcome outcome;
    golden_open(name, &golden);
    struct harness_run run = golden_run(&golden);
    run.sum_groups = run.micro_batches;
    harness_open(&run, &harness_in_memory, &harness);
    golden_steps(&harness, &golden, 0, GOLDEN_STEPS, &outcome);
    outcome_read_weights(&harness, &outcome);
    golden_report_fp32(&golden, harness.model, &outcome, GOLDEN_STEPS);
    outcome_close(&outcome);
    harness_close(&harness);
    golden_close(&golden);
}

int main(void) {
    check_tree("llama_untied_odd");
    check_tree("llama_tied_gqa");
    check_reference("llama_tied_gqa");
    check_places("llama_tied_gqa", 8, true, 1);
    check_places("llama_untied_odd", 5, true, 2);
    check_places("gpt2_small", 3, false, 2);
    return test_end();
}
