/* Weights of experts without a row are not moved in backward, and nobody reads them: with chaos on their place has NaN
 * in it, and all bits are those of a run that moves nothing. What crosses links is what the plan says without them. */
#include "tests/kit/device/cuda_kit.h"
#include "tests/kit/files.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <stdio.h>

#define COMMON                                                                                                   \
    "\"vocab_size\":67,\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,"                    \
    "\"num_key_value_heads\":2,\"max_position_embeddings\":64,\"tie_word_embeddings\":false,\"initializer_range\":0.3,"

/* A token goes to one of 32 experts, four of which are a unit; in the second model also to an expert of all tokens, and
 * in the third experts have biases, which backward reads apart. */
static const struct model {
    const char *name, *text;
    uint32_t per_unit;
} models[] = {
    {"plain", "{\"model_type\":\"qwen3_moe\"," COMMON "\"head_dim\":16,\"num_experts\":32,\"num_experts_per_tok\":1,"
              "\"moe_intermediate_size\":32,\"intermediate_size\":48,\"norm_topk_prob\":false}", 4},
    {"shared", "{\"model_type\":\"qwen2_moe\"," COMMON "\"num_experts\":32,\"num_experts_per_tok\":1,"
               "\"moe_intermediate_size\":32,\"intermediate_size\":48,\"shared_expert_intermediate_size\":20,"
               "\"norm_topk_prob\":false}", 4},
    {"biases", "{\"model_type\":\"gpt_oss\"," COMMON "\"head_dim\":16,\"num_local_experts\":128,"
               "\"num_experts_per_tok\":1,\"intermediate_size\":64,\"sliding_window\":5}", 32}};
enum { MODELS = sizeof models / sizeof *models };

/* Weights that are read from a drive, uploaded from host memory, or both; one tile for each micro-batch, so that few
 * rows meet many experts. */
static const struct place {
    struct harness_place place;
    bool reads, uploads;
} places[] = {
    {{.name = "three tiers, weights on a drive", .store = true, .chunk_elems = 4096, .drives = 1, .chaos_seed = 5,
      .request = {99, 1, OX_TIER_HOST, OX_TIER_NVME, OX_TIER_NVME, OX_TIER_HOST, 0, 0}}, true, true},
    {{.name = "weights on the host", .chunk_elems = 4096, .chaos_seed = 6,
      .request = {99, 2, OX_TIER_HOST, OX_TIER_HOST, OX_TIER_HOST, OX_TIER_HOST, 0, 0}}, false, true},
    {{.name = "one memory, weights on a drive, overlapped", .unified = true, .store = true, .chunk_elems = 2048,
      .drives = 1, .chaos_seed = 7,
      .request = {99, 0, OX_TIER_HOST, OX_TIER_NVME, OX_TIER_NVME, OX_TIER_HOST, 1, 0}}, true, false}};
enum { PLACES = sizeof places / sizeof *places };

static void check_place(const struct golden *golden, const struct harness_run *run, const struct place *place,
                        const struct outcome *expected) {
    struct outcome outcome;
    golden_train(golden, run, &place->place, FEW_STEPS, &outcome);
    outcome_check_same(place->place.name, expected, &outcome);
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        const bool may = (link == OX_LINK_NVME_READ && place->reads) || (link == OX_LINK_H2D && place->uploads);
        CHECK((outcome.left_out[link] > 0) == may);
    }
    printf("    left out: %llu KiB read, %llu KiB uploaded\n",
           (unsigned long long)outcome.left_out[OX_LINK_NVME_READ] / 1024,
           (unsigned long long)outcome.left_out[OX_LINK_H2D] / 1024);
    outcome_close(&outcome);
}

static void check_model(const struct golden *golden, const struct cuda_kit *kit, size_t nth) {
    struct harness_run run = golden_run(golden);
    struct outcome expected;
    char file[64];
    snprintf(file, sizeof file, "%s.json", models[nth].name);
    printf("%s\n", models[nth].name);
    run.model_folder = files_write_text(file, models[nth].text);
    run.experts_per_unit = models[nth].per_unit;
    for (int dtype = 0; dtype < 2; dtype++) {
        run.dtype = dtype == 0 ? OX_COMPUTE_FP32 : OX_COMPUTE_BF16; /* which casts planes that nobody reads */
        run.cuda_plugin = NULL;
        golden_train(golden, &run, &harness_in_memory, FEW_STEPS, &expected);
        for (size_t i = 0; i < PLACES; i++) {
            if (!test_takes((unsigned)(nth + i) + (unsigned)dtype, 2)) {
                continue;
            }
            check_place(golden, &run, &places[i], &expected);
        }
        outcome_close(&expected);
    }
    if (nth == 0 || test_all()) {
        run.dtype = OX_COMPUTE_FP32;
        run.cuda_plugin = kit->plugin;
        golden_train(golden, &run, &harness_in_memory, FEW_STEPS, &expected);
        check_place(golden, &run, &places[1], &expected);
        outcome_close(&expected);
    }
}

/* Each rank of a division without slices asks for its own rows; with slices nobody does. */
static void check_ranks(const struct golden *golden) {
    struct harness_run run = golden_run(golden);
    struct outcome expected, outcome;
    run.model_folder = files_write_text("ranks.json", models[0].text);
    run.experts_per_unit = models[0].per_unit;
    run.ranks = run.sum_groups = 2;
    run.sharding = OX_SHARDING_NONE;
    golden_train(golden, &run, &harness_in_memory, FEW_STEPS, &expected);
    check_place(golden, &run, &places[1], &expected);
    run.sharding = OX_SHARDING_FULL;
    golden_train(golden, &run, &places[1].place, FEW_STEPS, &outcome);
    outcome_check_same("slices", &expected, &outcome);
    CHECK(outcome.left_out[OX_LINK_H2D] == 0);
    outcome_close(&outcome);
    outcome_close(&expected);
}

int main(void) {
    struct golden golden;
    struct cuda_kit kit;
    cuda_kit_emulated(&kit);
    golden_open("mixtral", &golden);
    for (size_t i = 0; i < MODELS; i++) {
        check_model(&golden, &kit, i);
    }
    check_ranks(&golden);
    golden_close(&golden);
    return test_end();
}
