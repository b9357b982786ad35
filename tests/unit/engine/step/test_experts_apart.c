/* No bit depends on whether experts are units of their own, nor on how many make one: fresh mixtures in several
 * groupings are compared with the one whose experts are in their blocks' units, tensor by tensor, and each grouping at
 * many placements, with ranks, and over resumes. */
#include "tests/kit/files.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMMON                                                                                                   \
    "\"vocab_size\":67,\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,"                    \
    "\"num_key_value_heads\":2,\"max_position_embeddings\":64,\"tie_word_embeddings\":false,\"initializer_range\":0.3,"

/* A token goes to 3 of 6 experts, each of which fills whole groups of elements. The second model has an
 * expert of all tokens and a layer without a mixture. */
static const char *const models[][2] = {
    {"plain", "{\"model_type\":\"qwen3_moe\"," COMMON "\"head_dim\":16,\"num_experts\":6,\"num_experts_per_tok\":3,"
              "\"moe_intermediate_size\":32,\"intermediate_size\":48,\"norm_topk_prob\":true}"},
    {"shared", "{\"model_type\":\"qwen2_moe\"," COMMON "\"num_experts\":6,\"num_experts_per_tok\":3,"
               "\"moe_intermediate_size\":32,\"intermediate_size\":48,\"shared_expert_intermediate_size\":20,"
               "\"norm_topk_prob\":false}"},
};
static const uint32_t groupings[] = {1, 2, 4, 5, 6};
enum { MODELS = sizeof models / sizeof *models, GROUPINGS = sizeof groupings / sizeof *groupings };

static struct ox_model *model_of(const struct harness_run *run) {
    struct ox_hf_folder *folder;
    struct ox_model *model;
    REQUIRE_OK(ox_hf_open(run->model_folder, false, &folder));
    struct ox_model_config config = ox_hf_model(folder)->config;
    config.mixture.per_unit = run->experts_per_unit;
    REQUIRE_OK(ox_model_build(&config, &model));
    ox_hf_close(&folder);
    return model;
}

static void check_tensor(const struct ox_tensor *a, const struct ox_tensor *b, float *const *of_a, float *const *of_b,
                         const char *what) {
    const float *const x = of_a[a->unit_idx], *const y = of_b[b->unit_idx];
    if ((x == NULL) != (y == NULL) || (x != NULL && memcmp(x + a->offset, y + b->offset, a->count * sizeof *x) != 0)) {
        printf("%s: %s differs\n", a->name, what);
        CHECK(!"a grouping changes a bit");
    }
}

/* Compares what two runs left, whose experts are in different units. */
static void check_same(const struct harness_run *of_whole, const struct outcome *whole,
                       const struct harness_run *of_apart, const struct outcome *apart) {
    struct ox_model *from = model_of(of_whole), *to = model_of(of_apart);
    CHECK(memcmp(whole->losses, apart->losses, FEW_STEPS * sizeof *whole->losses) == 0);
    CHECK(memcmp(whole->norms, apart->norms, FEW_STEPS * sizeof *whole->norms) == 0);
    CHECK(memcmp(whole->logits, apart->logits, whole->logits_count * sizeof *whole->logits) == 0);
    CHECK(from->tensor_count == to->tensor_count && to->unit_count > from->unit_count);
    for (uint32_t i = 0; i < from->tensor_count; i++) {
        const int64_t idx = ox_model_find_tensor(to, from->tensors[i].name);
        CHECK(idx >= 0);
        const struct ox_tensor *const a = &from->tensors[i], *const b = &to->tensors[idx];
        check_tensor(a, b, whole->grads, apart->grads, "gradient");
        check_tensor(a, b, whole->weights, apart->weights, "weight");
        check_tensor(a, b, whole->moments[0], apart->moments[0], "first moment");
        check_tensor(a, b, whole->moments[1], apart->moments[1], "second moment");
    }
    ox_model_close(&from);
    ox_model_close(&to);
}

static void check_groupings(const struct golden *golden, const struct harness_run *whole) {
    struct outcome expected, outcome;
    struct harness_run run = *whole;
    golden_train(golden, &run, &harness_in_memory, FEW_STEPS, &expected);
    for (size_t i = 0; i < GROUPINGS; i++) {
        run.experts_per_unit = groupings[i];
        golden_train(golden, &run, &harness_in_memory, FEW_STEPS, &outcome);
        check_same(whole, &expected, &run, &outcome);
        outcome_close(&outcome);
    }
    outcome_close(&expected);
}

static void check_model(const struct golden *golden, const char *name, const char *text, size_t nth) {
    struct harness_run run = golden_run(golden);
    char what[64], file[64];
    snprintf(file, sizeof file, "%s.json", name);
    run.model_folder = files_write_text(file, text);
    check_groupings(golden, &run);
    run.dtype = OX_COMPUTE_BF16;
    run.state = (struct ox_state_format){.moments = OX_MOMENTS_Q8}; /* whose roundings are random */
    check_groupings(golden, &run);
    run.dtype = OX_COMPUTE_FP32;
    run.state = (struct ox_state_format){0};
    run.compute_threads = 1;
    run.router_balance = 0.01;
    run.router_z = 0.001;
    check_groupings(golden, &run);
    run.router_balance = run.router_z = 0;
    run.ranks = run.sum_groups = 2;
    check_groupings(golden, &run);
    run.ranks = run.sum_groups = 0;
    for (size_t i = nth; i < GROUPINGS; i += MODELS) {
        run.experts_per_unit = groupings[i];
        snprintf(what, sizeof what, "%s, %u experts a unit", name, groupings[i]);
        golden_check_places(golden, &run, what, 3);
        golden_check_reopened(golden, &run, what, 5);
    }
}

int main(void) {
    struct golden golden;
    golden_open("mixtral", &golden);
    for (size_t i = 0; i < MODELS; i++) {
        check_model(&golden, models[i][0], models[i][1], i);
    }
    golden_close(&golden);
    return test_end();
}
