/* Ranks that divide the experts of every layer: rows go to the rank that has their expert and back, and losses, norms,
 * gradients, weights and moments have the bits of one rank, wherever planes live and whatever other ranks there are;
 * and they are as near to transformers as those of one rank. */
#include "tests/kit/files.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { QUICK = 100 };
#else
enum { QUICK = 100 };
#endif
enum { GROUPS = 8, STEPS = 2 };

#define MIXTURE                                                                                                  \
    "\"vocab_size\":96,\"hidden_size\":64,\"num_hidden_layers\":3,\"num_attention_heads\":4,"                    \
    "\"num_key_value_heads\":4,\"max_position_embeddings\":64,\"tie_word_embeddings\":false,\"initializer_range\":0.3,"
static const struct kind {
    const char *name, *text;
    uint32_t per_unit, ranks_max;
    double balance, bias_rate;
    bool skips_idle;
} kinds[] = {
    {"plain.json", "{\"model_type\":\"mixtral\"," MIXTURE "\"num_local_experts\":8,\"num_experts_per_tok\":2,"
                   "\"intermediate_size\":32}", 1, 8, 0, 0, false},
    {"balance.json", "{\"model_type\":\"qwen3_moe\"," MIXTURE "\"head_dim\":16,\"num_experts\":16,"
                     "\"num_experts_per_tok\":3,"
                     "\"moe_intermediate_size\":32,\"intermediate_size\":48,\"norm_topk_prob\":true}",
     1, 8, 0.01, 0, true},
    {"bias.json", "{\"model_type\":\"deepseek_v3\"," MIXTURE "\"n_routed_experts\":16,\"num_experts_per_tok\":1,"
                  "\"moe_intermediate_size\":32,\"intermediate_size\":48,\"first_k_dense_replace\":1,\"n_group\":2,"
                  "\"topk_group\":1,\"kv_lora_rank\":16,\"q_lora_rank\":null,\"qk_rope_head_dim\":8,"
                  "\"qk_nope_head_dim\":8,"
                  "\"v_head_dim\":16}", 2, 8, 0, 0.01, false},
    {"biases.json", "{\"model_type\":\"gpt_oss\",\"vocab_size\":96,\"hidden_size\":64,\"num_hidden_layers\":2,"
                    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":16,\"sliding_window\":8,"
                    "\"max_position_embeddings\":64,\"initializer_range\":0.3,\"tie_word_embeddings\":false,"
                    "\"num_local_experts\":128,\"num_experts_per_tok\":4,\"intermediate_size\":32}",
     32, 4, 0, 0, false}};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* Ranks of a coordinate of the pipeline: those that divide experts; how many of these groups divide the experts' units;
 * copies of all; coordinates. */
static const struct mesh {
    uint32_t experts, slices, copies, pipe;
} meshes[] = {{2, 1, 1, 1}, {4, 1, 1, 1}, {8, 1, 1, 1}, {2, 1, 2, 1}, {2, 1, 1, 2}, {4, 1, 2, 1}, {2, 1, 2, 2},
              {2, 2, 1, 1}, {2, 4, 1, 1}, {4, 2, 1, 1}, {2, 2, 2, 1}, {2, 2, 1, 2}};
enum { MESHES = sizeof meshes / sizeof *meshes };

static bool takes(void) {
    static unsigned asked;
    return test_takes(asked++, QUICK);
}

static struct harness_run run_of(const struct golden *golden, const struct kind *kind, const struct mesh *mesh) {
    struct harness_run run = golden_run(golden);
    run.model_folder = files_write_text(kind->name, kind->text);
    run.compute_threads = 1;
    run.sum_groups = GROUPS;
    run.experts_per_unit = kind->per_unit;
    run.router_balance = kind->balance;
    run.router_bias_rate = kind->bias_rate;
    run.skips_idle = kind->skips_idle;
    run.experts = mesh->experts;
    run.copies = mesh->copies;
    run.pipe = mesh->pipe;
    run.ranks = mesh->experts * mesh->slices * mesh->copies * mesh->pipe;
    run.comm_timeout_ns = UINT64_C(200000000000); /* what waits in a circle is named before the program is ended */
    return run;
}

static void check_run(const struct golden *golden, const struct harness_run *run, const struct mesh *mesh,
                      const struct harness_place *place, const struct outcome *expected) {
    struct outcome outcome;
    char what[480];
    snprintf(what, sizeof what, "%s: %u of %u ranks divide experts, %u copies, %u coordinates, sharding %d, %s",
             run->model_folder, mesh->experts, run->ranks, mesh->copies, mesh->pipe, run->sharding, place->name);
    golden_train(golden, run, place, STEPS, &outcome);
    outcome_check_same(what, expected, &outcome);
    outcome_close(&outcome);
}

static void check(const struct kind *kind, enum ox_compute_dtype dtype) {
    static const struct mesh one = {1, 1, 1, 1};
    static const enum ox_sharding shardings[] = {OX_SHARDING_FULL, OX_SHARDING_STEP, OX_SHARDING_GRAD,
                                                 OX_SHARDING_STATE};
    struct golden golden;
    struct outcome expected;
    golden_open("mixtral", &golden);
    golden.micro_batches = GROUPS;
    struct harness_run alone = run_of(&golden, kind, &one);
    alone.dtype = dtype;
    const double loss = golden_evaluate(&golden, &alone);
    golden_train(&golden, &alone, &harness_in_memory, STEPS, &expected);
    for (unsigned m = 0; m < MESHES; m++) {
        struct harness_run run = run_of(&golden, kind, &meshes[m]);
        run.dtype = dtype;
        if (meshes[m].experts > kind->ranks_max) {
            continue;
        }
        if (test_takes(m + (unsigned)(kind - kinds), 4)) {
            CHECK(golden_evaluate(&golden, &run) == loss);
            check_run(&golden, &run, &meshes[m], &harness_in_memory, &expected);
        }
        for (unsigned p = 0; harness_places[p].name != NULL; p++) {
            struct harness_place place = harness_places[p];
            const bool copied = place.store && meshes[m].copies > 1; /* a store has one copy of the state */
            if (!copied && takes()) {
                place.chaos_seed = p % 3 == 0 ? p + 1 : 0; /* late lanes and calls, memory that is NaN before */
                run.sharding = shardings[(p + m) % 4];
                check_run(&golden, &run, &meshes[m], &place, &expected);
            }
        }
    }
    outcome_close(&expected);
    golden_close(&golden);
}

/* The ten steps of transformers' own model, by ranks that divide its experts, within the limits of one rank. */
static void check_torch(const char *name, uint32_t experts) {
    struct golden golden;
    struct outcome outcome = {0};
    struct harness harness;
    golden_open(name, &golden);
    struct harness_run run = golden_run(&golden);
    run.compute_threads = 1;
    run.experts_per_unit = 1;
    run.experts = run.ranks = run.sum_groups = experts;
    run.comm_timeout_ns = UINT64_C(200000000000);
    printf("%s: %u ranks with a part of the experts each\n", name, experts);
    harness_open(&run, &harness_in_memory, &harness);
    golden_steps(&harness, &golden, 0, GOLDEN_STEPS, &outcome);
    outcome_read_weights(&harness, &outcome);
    golden_report_fp32(&golden, harness.model, &outcome, GOLDEN_STEPS);
    harness_close(&harness);
    outcome_close(&outcome);
    golden_close(&golden);
}

int main(void) {
    check_torch("four_mixtral", 2);
    check_torch("four_mixtral", 4);
    for (int i = 0; i < KINDS; i++) {
        check(&kinds[i], i % 2 == 1 ? OX_COMPUTE_BF16 : OX_COMPUTE_FP32);
    }
    golden_again("Haswell");
    return test_end();
}
