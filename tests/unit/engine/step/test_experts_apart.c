/* No bit depends on whether experts are units of their own, nor on how many make one: mixtures in several
 * groupings are compared with the one whose experts are in their blocks' units, tensor by tensor, and each grouping at
 * many placements, with ranks, and over resumes. */
#include "tests/kit/files.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/run/mixture.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMMON                                                                                                   \
    "\"vocab_size\":67,\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,"                    \
    "\"num_key_value_heads\":2,\"max_position_embeddings\":64,\"tie_word_embeddings\":false,\"initializer_range\":0.3,"

/* A token goes to 3 of 6 experts, each of which fills whole groups of elements; of gpt_oss, which has biases, 32 of 64
 * do. The second model has an expert of all tokens; the others' files have one tensor of all experts. */
static const struct kind {
    const char *name, *text;
    enum { FRESH, PACKED, MXFP4 } files;
} models[] = {
    {"plain", "{\"model_type\":\"qwen3_moe\"," COMMON "\"head_dim\":16,\"num_experts\":6,\"num_experts_per_tok\":3,"
              "\"moe_intermediate_size\":32,\"intermediate_size\":48,\"norm_topk_prob\":true}", FRESH},
    {"shared", "{\"model_type\":\"qwen2_moe\"," COMMON "\"num_experts\":6,\"num_experts_per_tok\":3,"
               "\"moe_intermediate_size\":32,\"intermediate_size\":48,\"shared_expert_intermediate_size\":20,"
               "\"norm_topk_prob\":false}", FRESH},
    {"packed", "{\"model_type\":\"mixtral\"," COMMON "\"num_local_experts\":6,\"num_experts_per_tok\":3,"
               "\"intermediate_size\":32}", PACKED},
    {"granite", "{\"model_type\":\"granitemoe\"," COMMON "\"num_local_experts\":6,\"num_experts_per_tok\":3,"
                "\"intermediate_size\":32,\"residual_multiplier\":0.22,\"embedding_multiplier\":6.0,"
                "\"attention_multiplier\":0.4,\"logits_scaling\":3.0}", FRESH},
    {"gpt_oss", "{\"model_type\":\"gpt_oss\"," COMMON "\"head_dim\":16,\"num_local_experts\":64,"
                "\"num_experts_per_tok\":3,\"intermediate_size\":64,\"sliding_window\":5}", MXFP4},
};
static const uint32_t groupings[] = {1, 2, 4, 5, 6, 32};
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

/* Compares a tensor, or the part `b` of it. */
static void check_tensor(const struct ox_tensor *a, const struct ox_tensor *b, float *const *of_a, float *const *of_b,
                         const char *what) {
    const float *const x = of_a[a->unit_idx], *const y = of_b[b->unit_idx];
    if ((x == NULL) != (y == NULL) ||
        (x != NULL && memcmp(x + a->offset + b->part_first, y + b->offset, b->count * sizeof *x) != 0)) {
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
    CHECK(to->unit_count > from->unit_count);
    uint64_t elems = 0;
    for (uint32_t i = 0; i < to->tensor_count; i++) {
        const int64_t idx = ox_model_find_tensor(from, to->tensors[i].name);
        CHECK(idx >= 0);
        const struct ox_tensor *const a = &from->tensors[idx], *const b = &to->tensors[i];
        CHECK(b->part_first + b->count <= a->count && b->whole[0] == a->shape[0]);
        elems += b->count;
        check_tensor(a, b, whole->grads, apart->grads, "gradient");
        check_tensor(a, b, whole->weights, apart->weights, "weight");
        check_tensor(a, b, whole->moments[0], apart->moments[0], "first moment");
        check_tensor(a, b, whole->moments[1], apart->moments[1], "second moment");
    }
    CHECK(elems == from->param_count);
    ox_model_close(&from);
    ox_model_close(&to);
}

/* Whether groups of so many are possible: they fill whole groups of elements in each tensor. */
static bool fits(const struct harness_run *run, uint32_t per_unit) {
    struct harness_run whole = *run;
    whole.experts_per_unit = 0;
    struct ox_model *model = model_of(&whole);
    struct ox_model_config config = model->config;
    config.mixture.per_unit = per_unit;
    ox_model_close(&model);
    return ox_model_check_grouping(&config) == OX_OK;
}

static void check_groupings(const struct golden *golden, const struct harness_run *whole) {
    struct outcome expected, outcome;
    struct harness_run run = *whole;
    golden_train(golden, &run, &harness_in_memory, FEW_STEPS, &expected);
    uint32_t tried = 0;
    for (size_t i = 0; i < GROUPINGS; i++) {
        run.experts_per_unit = groupings[i];
        if (fits(&run, groupings[i])) {
            golden_train(golden, &run, &harness_in_memory, FEW_STEPS, &outcome);
            check_same(whole, &expected, &run, &outcome);
            outcome_close(&outcome);
            tried++;
        }
    }
    CHECK(tried > 0);
    outcome_close(&expected);
}

static void check_model(const struct golden *golden, const struct kind *kind, size_t nth) {
    struct harness_run run = golden_run(golden);
    const char *const name = kind->name;
    char what[64], file[64];
    snprintf(file, sizeof file, "%s.json", name);
    run.model_folder = files_write_text(file, kind->text);
    run.model_folder = kind->files == FRESH ? run.model_folder : mixture_write(name, run.model_folder,
                                                                               kind->files == MXFP4);
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
        run.experts_per_unit = groupings[kind->files == MXFP4 ? GROUPINGS - 1 : i];
        if (!fits(&run, run.experts_per_unit)) {
            continue;
        }
        snprintf(what, sizeof what, "%s, %u experts a unit", name, run.experts_per_unit);
        golden_check_places(golden, &run, what, 3);
        golden_check_reopened(golden, &run, what, 5);
    }
}

int main(void) {
    struct golden golden;
    golden_open("mixtral", &golden);
    for (size_t i = 0; i < MODELS; i++) {
        check_model(&golden, &models[i], i);
    }
    golden_close(&golden);
    return test_end();
}
