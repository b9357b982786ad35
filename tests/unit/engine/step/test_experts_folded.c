/* Experts that are units of their own in a model that is cut into groups of features, on one rank and on ranks that
 * divide features, experts or both: losses, norms, gradients, weights and moments have the bits of one rank with as
 * many groups whose experts are in their blocks' units. */
#include "tests/kit/files.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

enum { MICRO_BATCHES = 8, STEPS = 2 };

#define MIXTURE                                                                                                  \
    "\"vocab_size\":96,\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,"                    \
    "\"num_key_value_heads\":4,\"max_position_embeddings\":64,\"tie_word_embeddings\":false,\"initializer_range\":0.3,"
static const struct kind {
    const char *name, *text;
    uint32_t groups, per_unit, ranks_max; /* of features; experts of a unit; ranks that divide those of a group */
    double balance;
    bool skips_idle;
} kinds[] = {
    {"plain.json", "{\"model_type\":\"mixtral\"," MIXTURE "\"num_local_experts\":8,\"num_experts_per_tok\":2,"
                   "\"intermediate_size\":32}", 2, 1, 4, 0, true},
    {"shared.json", "{\"model_type\":\"qwen2_moe\"," MIXTURE "\"num_experts\":16,\"num_experts_per_tok\":3,"
                    "\"moe_intermediate_size\":32,\"intermediate_size\":48,\"shared_expert_intermediate_size\":32,"
                    "\"norm_topk_prob\":true}", 4, 1, 4, 0.01, false},
    {"scaled.json", "{\"model_type\":\"granitemoe\"," MIXTURE "\"num_local_experts\":8,\"num_experts_per_tok\":3,"
                    "\"intermediate_size\":32,\"residual_multiplier\":0.22,\"embedding_multiplier\":6.0,"
                    "\"attention_multiplier\":0.4,\"logits_scaling\":3.0}", 2, 2, 2, 0, false},
    {"biases.json", "{\"model_type\":\"gpt_oss\",\"vocab_size\":96,\"hidden_size\":64,\"num_hidden_layers\":2,"
                    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":16,\"sliding_window\":8,"
                    "\"max_position_embeddings\":64,\"initializer_range\":0.3,\"tie_word_embeddings\":false,"
                    "\"num_local_experts\":128,\"num_experts_per_tok\":4,\"intermediate_size\":32}",
     2, 32, 2, 0, false}};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* Ranks that divide features; those that divide the experts of a group; how many of these divide the experts' units. */
static const struct mesh {
    uint32_t tensors, experts, slices;
} meshes[] = {{2, 1, 1}, {2, 2, 1}, {2, 4, 1}, {1, 2, 1}, {2, 2, 2}, {4, 2, 1}, {4, 1, 2}};
enum { MESHES = sizeof meshes / sizeof *meshes };

static struct harness_run run_of(const struct golden *golden, const struct kind *kind, const struct mesh *mesh) {
    struct harness_run run = golden_run(golden);
    run.model_folder = files_write_text(kind->name, kind->text);
    run.compute_threads = 1;
    run.sum_groups = MICRO_BATCHES;
    run.tensor_groups = kind->groups;
    run.router_balance = kind->balance;
    run.skips_idle = kind->skips_idle;
    run.tensors = mesh->tensors;
    run.experts = mesh->experts;
    run.ranks = mesh->tensors * mesh->experts * mesh->slices;
    run.comm_timeout_ns = UINT64_C(200000000000); /* what waits in a circle is named before the program is ended */
    return run;
}

static struct ox_model *model_of(const struct harness_run *run) {
    struct ox_hf_folder *folder;
    struct ox_model *model;
    REQUIRE_OK(ox_hf_open(run->model_folder, false, &folder));
    struct ox_model_config config = ox_hf_model(folder)->config;
    config.mixture.per_unit = run->experts_per_unit;
    config.tensor_groups = run->tensor_groups;
    REQUIRE_OK(ox_model_build(&config, &model));
    ox_hf_close(&folder);
    return model;
}

/* Compares what two runs left of a tensor, or the part `b` of it, whose experts are in different units. */
static void check_part(const struct ox_model *from, const struct ox_tensor *b, float *const *of_a, float *const *of_b,
                       const char *what) {
    const int64_t idx = ox_model_find_tensor(from, b->name);
    uint64_t at, together;
    CHECK(idx >= 0);
    const uint32_t part = ox_model_part_at(from, (uint32_t)idx, b->part_first, &at, &together);
    CHECK(part != OX_NO_TENSOR);
    const struct ox_tensor *const a = &from->tensors[part];
    const float *const x = of_a[a->unit_idx], *const y = of_b[b->unit_idx];
    if (x == NULL || y == NULL) { /* frozen, or a part of a unit that is trained otherwise */
        return;
    }
    if (memcmp(x + a->offset + at, y + b->offset, b->count * sizeof *x) != 0) {
        printf("%s: %s differs\n", b->name, what);
        CHECK(!"a grouping changes a bit");
    }
}

static void check_apart(const struct harness_run *of_whole, const struct outcome *whole,
                        const struct harness_run *of_apart, const struct outcome *apart) {
    struct ox_model *from = model_of(of_whole), *to = model_of(of_apart);
    CHECK(memcmp(whole->losses, apart->losses, STEPS * sizeof *whole->losses) == 0);
    CHECK(memcmp(whole->norms, apart->norms, STEPS * sizeof *whole->norms) == 0);
    CHECK(memcmp(whole->logits, apart->logits, whole->logits_count * sizeof *whole->logits) == 0);
    CHECK(to->stage_count > from->stage_count && to->saved_count == from->saved_count);
    uint64_t elems = 0;
    for (uint32_t i = 0; i < to->tensor_count; i++) {
        elems += to->tensors[i].count;
        check_part(from, &to->tensors[i], whole->grads, apart->grads, "gradient");
        check_part(from, &to->tensors[i], whole->weights, apart->weights, "weight");
        check_part(from, &to->tensors[i], whole->moments[0], apart->moments[0], "first moment");
        check_part(from, &to->tensors[i], whole->moments[1], apart->moments[1], "second moment");
    }
    for (uint32_t i = 0; i < to->saved_count; i++) { /* files have them in the same order */
        CHECK(strcmp(to->tensors[to->saved[i]].name, from->tensors[from->saved[i]].name) == 0);
    }
    CHECK(elems == from->param_count && elems == to->param_count);
    ox_model_close(&from);
    ox_model_close(&to);
}

static void check_run(const struct golden *golden, const struct harness_run *run, const struct mesh *mesh,
                      const struct harness_place *place, const struct outcome *expected) {
    struct outcome outcome;
    char what[480];
    snprintf(what, sizeof what, "%s: of %u ranks %u divide features, %u experts, sharding %d, %s", run->model_folder,
             run->ranks, mesh->tensors, mesh->experts, run->sharding, place->name);
    golden_train(golden, run, place, STEPS, &outcome);
    outcome_check_same(what, expected, &outcome);
    outcome_close(&outcome);
}

static void check(const struct kind *kind, uint32_t nth) {
    static const struct mesh one = {1, 1, 1};
    static const enum ox_sharding shardings[] = {OX_SHARDING_FULL, OX_SHARDING_STEP, OX_SHARDING_GRAD};
    struct golden golden;
    struct outcome whole, expected;
    golden_open("mixtral", &golden);
    golden.micro_batches = MICRO_BATCHES;
    struct harness_run alone = run_of(&golden, kind, &one);
    alone.dtype = nth % 2 == 0 ? OX_COMPUTE_FP32 : OX_COMPUTE_BF16;
    alone.state = nth % 2 == 0 ? (struct ox_state_format){0} : (struct ox_state_format){.moments = OX_MOMENTS_Q8};
    const double loss = golden_evaluate(&golden, &alone);
    golden_train(&golden, &alone, &harness_in_memory, STEPS, &whole);
    struct harness_run apart = alone;
    apart.experts_per_unit = kind->per_unit;
    CHECK(golden_evaluate(&golden, &apart) == loss);
    golden_train(&golden, &apart, &harness_in_memory, STEPS, &expected);
    check_apart(&alone, &whole, &apart, &expected);
    for (uint32_t m = 0; m < MESHES; m++) {
        struct harness_run run = run_of(&golden, kind, &meshes[m]);
        run.dtype = alone.dtype;
        run.state = alone.state;
        run.experts_per_unit = kind->per_unit;
        run.sharding = shardings[(m + nth) % 3];
        if (meshes[m].tensors > kind->groups || meshes[m].experts > kind->ranks_max ||
            (m >= 3 && !test_takes(m + nth, 100))) {
            continue;
        }
        const unsigned p = (m + nth) % 4;
        struct harness_place place = harness_places[p];
        place.chaos_seed = m % 2; /* late lanes and calls, memory that is NaN before */
        check_run(&golden, &run, &meshes[m], &place, &expected);
        CHECK(golden_evaluate(&golden, &run) == loss);
    }
    outcome_close(&whole);
    outcome_close(&expected);
    golden_close(&golden);
}

/* Attention of all layers, so that nothing of a block's groups is trained but their experts, and of one group one. */
static json_t *frozen_names(bool with_expert) {
    static const char *const matrices[] = {"q", "k", "v", "o"};
    json_t *const names = json_array();
    for (int i = 0; i < 8; i++) {
        json_array_append_new(names, json_sprintf("model.layers.%d.self_attn.%s_proj.weight", i / 4, matrices[i % 4]));
    }
    for (int i = 1; i <= 3 && with_expert; i++) {
        json_array_append_new(names, json_sprintf("model.layers.0.block_sparse_moe.experts.1.w%d.weight", i));
    }
    return names;
}

/* Totals of the norm where a block's units are frozen and its experts are not; experts of one group of features that
 * are frozen beside those of another. */
static void check_frozen(const struct kind *kind, bool with_expert) {
    static const struct mesh one = {1, 1, 1};
    json_t *const frozen = frozen_names(with_expert);
    struct golden golden;
    struct outcome whole, expected;
    golden_open("mixtral", &golden);
    golden.micro_batches = MICRO_BATCHES;
    struct harness_run alone = run_of(&golden, kind, &one);
    alone.frozen = frozen;
    golden_train(&golden, &alone, &harness_in_memory, STEPS, &whole);
    struct harness_run apart = alone;
    apart.experts_per_unit = kind->per_unit;
    golden_train(&golden, &apart, &harness_in_memory, STEPS, &expected);
    check_apart(&alone, &whole, &apart, &expected);
    if (!with_expert) {
        struct harness_run run = run_of(&golden, kind, &meshes[1]);
        run.frozen = frozen;
        run.experts_per_unit = kind->per_unit;
        check_run(&golden, &run, &meshes[1], &harness_in_memory, &expected);
    }
    outcome_close(&whole);
    outcome_close(&expected);
    golden_close(&golden);
    json_decref(frozen);
}

int main(void) {
    check_frozen(&kinds[0], true);
    check_frozen(&kinds[0], false);
    for (uint32_t i = 0; i < KINDS; i++) {
        check(&kinds[i], i);
    }
    return test_end();
}
