/* Adapters of matrices that are cut into groups of features, and ranks that divide the groups: the bits of one rank
 * with as many groups, wherever planes live and whatever other ranks divide. That they agree with PEFT's,
 * test_tensor_groups says. */
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <string.h>

enum { STEPS = 2, QUICK = 16 };

static bool takes(void) {
    static unsigned asked;
    return test_takes(asked++, QUICK);
}

static const struct ox_lora every_matrix = {.r = 3, .alpha = 6.0, .targets = "all-linear"};
static const struct ox_lora with_dropout = {.r = 2, .alpha = 3.0, .dropout = 0.25, .rslora = true,
                                            .targets = "c_attn,c_fc,mlp.c_proj", .modules_to_save = "ln_1",
                                            .bias = OX_LORA_BIAS_ALL};
static const struct ox_lora of_shared = {.r = 2, .alpha = 4.0,
                                         .targets = "q_proj,shared_expert.up_proj,shared_expert.down_proj"};
static const struct ox_lora of_attention = {.r = 2, .alpha = 4.0, .targets = "q_proj,k_proj,o_proj"};

static const struct {
    const char *name;
    uint32_t groups;
    const struct ox_lora *lora; /* NULL: the case's own */
    enum ox_compute_dtype dtype;
    uint32_t rows; /* groups of rows; 0: 1 */
    uint32_t per_unit; /* experts */
} cases[] = {
    {"eight_qwen3", 4, &every_matrix, OX_COMPUTE_FP32, 0, 0},
    {"eight_gpt2", 8, &with_dropout, OX_COMPUTE_BF16, 0, 0},
    {"lora_biases", 3, NULL, OX_COMPUTE_FP32, 0, 0},
    {"lora_phi3", 2, NULL, OX_COMPUTE_BF16, 0, 0},
    {"lora_saved", 2, NULL, OX_COMPUTE_FP32, 0, 0},
    {"lora_q8", 2, NULL, OX_COMPUTE_BF16, 0, 0},
    {"lora_llama", 2, NULL, OX_COMPUTE_FP32, 2, 0},
    {"four_qwen2_moe", 4, &of_shared, OX_COMPUTE_FP32, 0, 0},
    {"four_mixtral", 2, &of_attention, OX_COMPUTE_BF16, 0, 1},
};

static struct harness_run run_of(const struct golden *golden, size_t i, uint32_t tensors) {
    struct harness_run run = golden_run(golden);
    run.compute_threads = 1;
    run.dtype = cases[i].dtype;
    run.lora = cases[i].lora;
    run.tensor_groups = cases[i].groups;
    run.tensors = run.ranks = tensors;
    run.context_groups = cases[i].rows;
    run.experts_per_unit = cases[i].per_unit;
    run.sum_groups = 2;
    run.objective.drop_seed = 5;
    run.comm_timeout_ns = UINT64_C(200000000000); /* what waits in a circle is named before the program is ended */
    return run;
}

static void check_run(const struct golden *golden, const struct harness_run *run, const struct harness_place *place,
                      const struct outcome *expected) {
    struct outcome outcome;
    char what[480];
    snprintf(what, sizeof what, "%s: %u groups over %u of %u ranks, %s", golden->folder, run->tensor_groups,
             run->tensors, run->ranks, place->name);
    golden_train(golden, run, place, STEPS, &outcome);
    outcome_check_same(what, expected, &outcome);
    outcome_close(&outcome);
}

static void check_case(size_t i) {
    struct golden golden;
    struct outcome expected;
    golden_open(cases[i].name, &golden);
    golden.padding = cases[i].rows > 0 ? (2 * cases[i].rows - golden.seq % (2 * cases[i].rows)) % (2 * cases[i].rows)
                                       : 0;
    const struct harness_run alone = run_of(&golden, i, 1);
    const double loss = golden_evaluate(&golden, &alone);
    golden_train(&golden, &alone, &harness_in_memory, STEPS, &expected);
    for (uint32_t tensors = 1; tensors <= cases[i].groups; tensors++) {
        const uint32_t each = cases[i].groups / tensors;
        if (cases[i].groups % tensors != 0 || (each & (each - 1)) != 0) {
            continue;
        }
        struct harness_run run = run_of(&golden, i, tensors);
        struct harness_place kept = harness_in_memory;
        run.contexts = cases[i].rows;
        run.ranks *= cases[i].rows > 0 ? cases[i].rows : 1;
        kept.request.kept_units = 2;
        kept.chaos_seed = 1;
        check_run(&golden, &run, &kept, &expected);
        if (run.ranks > 1) {
            CHECK(golden_evaluate(&golden, &run) == loss);
            check_run(&golden, &run, &harness_in_memory, &expected);
        }
        for (size_t p = 0; harness_places[p].name != NULL; p++) {
            struct harness_place place = harness_places[p];
            place.request.speculative_units = place.store ? 0 : place.request.speculative_units;
            run.ranks = tensors * (cases[i].rows > 0 ? cases[i].rows : 1 + p % 2);
            run.sharding = place.store ? OX_SHARDING_FULL : (enum ox_sharding)(p % OX_SHARDING_COUNT);
            if ((p + i + tensors) % 4 == 0 && takes()) {
                check_run(&golden, &run, &place, &expected);
            }
        }
    }
    outcome_close(&expected);
    golden_close(&golden);
}

int main(void) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_case(i);
    }
    golden_again("Haswell");
    return test_end();
}
