/* Ranks that divide groups of features: they have the bits of one rank with as many groups, wherever planes live and
 * whatever other ranks divide. */
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { QUICK = 48 };
#else
enum { QUICK = 32 };
#endif
enum { STEPS = 2 };

static bool takes(void) {
    static unsigned asked;
    return test_takes(asked++, QUICK);
}

static struct harness_run run_of(const struct golden *golden, uint32_t groups, uint32_t tensors, uint32_t data) {
    struct harness_run run = golden_run(golden);
    run.compute_threads = 1;
    run.tensor_groups = groups;
    run.tensors = tensors;
    run.ranks = tensors * data;
    run.sum_groups = 2;
    run.comm_timeout_ns = UINT64_C(200000000000); /* what waits in a circle is named before the program is ended */
    return run;
}

static void check_run(const struct golden *golden, const struct harness_run *run, const struct harness_place *place,
                      const struct outcome *expected) {
    struct outcome outcome;
    char what[480];
    snprintf(what, sizeof what, "%s: %u groups over %u of %u ranks, sharding %d, %s", golden->folder,
             run->tensor_groups, run->tensors, run->ranks, run->sharding, place->name);
    golden_train(golden, run, place, STEPS, &outcome);
    outcome_check_same(what, expected, &outcome);
    outcome_close(&outcome);
}

/* The reference's ten steps by several ranks, within the limits of one; `rows` ranks each with a group of rows, too. */
static void check_torch(const char *name, uint32_t groups, uint32_t rows, enum ox_context_mode mode) {
    struct golden golden;
    struct outcome outcome = {0};
    struct harness harness;
    golden_open(name, &golden);
    golden.padding = rows > 1 ? (2 * rows - golden.seq % (2 * rows)) % (2 * rows) : 0;
    struct harness_run run = run_of(&golden, groups, groups, 1);
    run.context_groups = run.contexts = rows;
    run.context_mode = mode;
    run.ranks = groups * rows;
    printf("%s: %u ranks with a group of features each, %u of rows, mode %d\n", name, groups, rows, mode);
    harness_open(&run, &harness_in_memory, &harness);
    golden_steps(&harness, &golden, 0, GOLDEN_STEPS, &outcome);
    outcome_read_weights(&harness, &outcome);
    golden_report_fp32(&golden, harness.model, &outcome, GOLDEN_STEPS);
    harness_close(&harness);
    outcome_close(&outcome);
    golden_close(&golden);
}

static void check_case(const char *name, uint32_t groups, enum ox_compute_dtype dtype) {
    struct golden golden;
    struct outcome expected;
    golden_open(name, &golden);
    struct harness_run alone = run_of(&golden, groups, 1, 1);
    alone.dtype = dtype;
    const double loss = golden_evaluate(&golden, &alone);
    golden_train(&golden, &alone, &harness_in_memory, STEPS, &expected);
    for (uint32_t tensors = 2; tensors <= groups; tensors++) {
        const uint32_t each = groups / tensors;
        if (groups % tensors != 0 || (each & (each - 1)) != 0) {
            continue;
        }
        struct harness_run run = run_of(&golden, groups, tensors, 1);
        run.dtype = dtype;
        struct harness_place kept = harness_in_memory;
        CHECK(golden_evaluate(&golden, &run) == loss);
        check_run(&golden, &run, &harness_in_memory, &expected);
        kept.request.kept_units = 2;
        kept.chaos_seed = 1;
        check_run(&golden, &run, &kept, &expected);
        for (size_t p = 0; harness_places[p].name != NULL; p++) {
            struct harness_run both = run_of(&golden, groups, tensors, 1 + p % 2);
            both.dtype = dtype;
            both.sharding = (enum ox_sharding)(p % OX_SHARDING_COUNT);
            struct harness_place place = harness_places[p];
            if (place.store) { /* of one copy of the state, to which no update returns */
                both.sharding = both.sharding == OX_SHARDING_NONE ? OX_SHARDING_FULL : both.sharding;
                place.request.speculative_units = 0;
            }
            if (takes()) {
                check_run(&golden, &both, &place, &expected);
            }
        }
    }
    outcome_close(&expected);
    golden_close(&golden);
}

/* Ranks that divide rows of sequences too, each with one group of them, and the ranks of a pipeline. */
static void check_contexts(const char *name, uint32_t features, uint32_t rows, enum ox_context_mode mode,
                           enum ox_compute_dtype dtype) {
    static const struct {
        uint32_t tensors, pipe, data;
    } meshes[] = {{2, 1, 1}, {4, 1, 1}, {2, 2, 1}, {2, 1, 2}};
    struct golden golden;
    struct outcome expected;
    golden_open(name, &golden);
    golden.padding = (2 * rows - golden.seq % (2 * rows)) % (2 * rows);
    struct harness_run alone = run_of(&golden, features, 1, 1);
    alone.context_groups = rows;
    alone.context_mode = mode;
    alone.dtype = dtype;
    const double loss = golden_evaluate(&golden, &alone);
    golden_train(&golden, &alone, &harness_in_memory, STEPS, &expected);
    for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++) {
        struct harness_run run = alone;
        if (features % meshes[m].tensors != 0 || !test_takes((unsigned)m + features / 4, 2)) {
            continue;
        }
        run.tensors = meshes[m].tensors;
        run.contexts = rows;
        run.pipe = meshes[m].pipe;
        run.ranks = run.tensors * run.contexts * run.pipe * meshes[m].data;
        struct harness_place kept = harness_in_memory;
        CHECK(golden_evaluate(&golden, &run) == loss);
        kept.request.kept_units = 2;
        kept.chaos_seed = 1;
        check_run(&golden, &run, &kept, &expected);
        for (size_t p = 0; harness_places[p].name != NULL; p++) {
            struct harness_place place = harness_places[p];
            run.sharding = p % 2 == 0 ? OX_SHARDING_FULL : OX_SHARDING_GRAD;
            place.request.speculative_units = place.store ? 0 : place.request.speculative_units;
            if ((p + m) % 6 == 0 && takes()) {
                check_run(&golden, &run, &place, &expected);
            }
        }
    }
    outcome_close(&expected);
    golden_close(&golden);
}

int main(void) {
    check_contexts("llama_tied_gqa", 2, 2, OX_CONTEXT_GATHER, OX_COMPUTE_FP32);
    check_contexts("eight_qwen3", 4, 2, OX_CONTEXT_RING, OX_COMPUTE_FP32);
    check_contexts("eight_gpt2", 8, 4, OX_CONTEXT_GATHER, OX_COMPUTE_BF16);
    check_contexts("eight_gpt2", 8, 2, OX_CONTEXT_RING, OX_COMPUTE_BF16);
    check_contexts("gemma2", 2, 4, OX_CONTEXT_RING, OX_COMPUTE_BF16);
    check_torch("llama_tied_gqa", 2, 1, OX_CONTEXT_GATHER);
    check_torch("eight_qwen3", 4, 1, OX_CONTEXT_GATHER);
    check_torch("llama_tied_gqa", 2, 4, OX_CONTEXT_RING);
    check_case("llama_tied_gqa", 2, OX_COMPUTE_FP32);
    check_case("gpt2_small", 3, OX_COMPUTE_BF16);
    check_case("eight_qwen3", 4, OX_COMPUTE_FP32);
    check_case("eight_gpt2", 8, OX_COMPUTE_BF16);
    golden_again("Haswell");
    return test_end();
}
