/* Groups of rows: sequences are cut into them, on one rank or on several that divide them. They agree with PyTorch, and
 * no bit depends on how many ranks there are, on where planes live, nor on what ranks divide. */
#include "tests/kit/files.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/run/mixture.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { QUICK = 96 };
#else
enum { QUICK = 64 };
#endif
enum { STEPS = 2, MIXTURE_KV_HEADS = 4, RING_QUICK = 20, MESHES_QUICK = 4 };

/* Of the meshes that a sweep takes: each needs runs of one rank first. */
static bool takes_place(void) {
    static unsigned asked;
    return test_takes(asked++, QUICK / MESHES_QUICK);
}

static struct harness_run run_of(const struct golden *golden, uint32_t groups, uint32_t contexts, uint32_t data) {
    struct harness_run run = golden_run(golden);
    run.compute_threads = 1;
    run.context_groups = groups;
    run.contexts = contexts;
    run.ranks = contexts * data;
    run.sum_groups = data;
    run.comm_timeout_ns = UINT64_C(200000000000); /* what waits in a circle is named before the program is ended */
    return run;
}

/* Two in three of the runs whose ranks can divide the heads do so. */
static void choose_mode(uint32_t kv_heads, struct harness_run *run) {
    static unsigned asked;
    const bool can = run->contexts > 1 && kv_heads % run->contexts == 0;
    run->context_mode = can && asked++ % 3 != 2 ? OX_CONTEXT_ULYSSES : OX_CONTEXT_GATHER;
}

/* Sequences as long as their groups ask for. */
static void open(const char *name, uint32_t groups, struct golden *out) {
    golden_open(name, out);
    out->padding = (2 * groups - out->seq % (2 * groups)) % (2 * groups);
}

/* What a rank for each group of rows does where experts are units of their own, which one rank with several groups does
 * not have: losses and norms are those of one rank, whose experts are in their blocks. */
static void train_apart(const struct golden *golden, const struct harness_run *alone, uint32_t per_unit,
                        const struct outcome *expected, struct outcome *out) {
    struct harness_run run = *alone;
    run.ranks = run.contexts = alone->context_groups;
    run.experts_per_unit = per_unit;
    golden_train(golden, &run, &harness_in_memory, STEPS, out);
    CHECK(memcmp(expected->losses, out->losses, sizeof out->losses) == 0);
    CHECK(memcmp(expected->norms, out->norms, sizeof out->norms) == 0);
    CHECK(memcmp(expected->router_losses, out->router_losses, sizeof out->router_losses) == 0);
}

/* Rows of mixtures of experts, whose routers report by group of rows. */
static void check_mixture(const struct mixture_case *mixture) {
    static const struct {
        uint32_t groups, contexts, data, pipe;
    } meshes[] = {{2, 2, 1, 1}, {4, 4, 1, 1}, {2, 2, 2, 1}, {4, 2, 1, 1}, {2, 2, 1, 2}, {4, 4, 1, 2}, {2, 1, 1, 2}};
    const char *const folder = files_write_text(mixture->name, mixture->text);
    for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++) {
        struct golden golden;
        struct outcome expected, apart;
        if (!test_takes((unsigned)(m + (size_t)(mixture - mixture_cases)), MESHES_QUICK)) {
            continue;
        }
        open("llama_tied_gqa", meshes[m].groups, &golden);
        golden.micro_batches = 4;
        struct harness_run alone = run_of(&golden, meshes[m].groups, 1, 1);
        mixture_set(mixture, &alone);
        alone.model_folder = folder;
        alone.sum_groups = 2;
        alone.experts_per_unit = 0;
        const double loss = golden_evaluate(&golden, &alone);
        golden_train(&golden, &alone, &harness_in_memory, STEPS, &expected);
        train_apart(&golden, &alone, mixture->per_unit, &expected, &apart);
        for (size_t p = 0; harness_places[p].name != NULL; p++) {
            if ((p + m) % 4 != 0 || !takes_place()) {
                continue;
            }
            const bool has_units = meshes[m].groups == meshes[m].contexts && p % 2 == 0;
            struct harness_run run = alone;
            struct outcome outcome;
            char what[480];
            run.contexts = meshes[m].contexts;
            run.pipe = meshes[m].pipe;
            run.ranks = meshes[m].contexts * meshes[m].data * meshes[m].pipe;
            run.experts_per_unit = has_units ? mixture->per_unit : 0;
            choose_mode(MIXTURE_KV_HEADS, &run);
            /* Ranks that divide experts have other rows, other micro-batches, or both. */
            run.experts = has_units && mixture->per_unit > 0 && (p / 2 + m) % 2 == 0 ? 2 : 0;
            snprintf(what, sizeof what, "%s: %u groups, %u by %u ranks, mode %d, pipe %u, experts %u, %s",
                     mixture->name, meshes[m].groups, meshes[m].contexts, meshes[m].data, run.context_mode,
                     meshes[m].pipe, run.experts,
                     harness_places[p].name);
            CHECK(golden_evaluate(&golden, &run) == loss);
            golden_train(&golden, &run, &harness_places[p], STEPS, &outcome);
            outcome_check_same(what, has_units ? &apart : &expected, &outcome);
            outcome_close(&outcome);
        }
        outcome_close(&apart);
        outcome_close(&expected);
        golden_close(&golden);
    }
}

/* Rows divided over the ranks of a pipeline's coordinates, in every order. */
static void check_pipes(const char *name, uint32_t kv_heads) {
    static const struct mesh {
        uint32_t groups, contexts, data, pipe;
        enum ox_pipe_schedule schedule;
    } meshes[] = {{2, 2, 1, 2, OX_PIPE_VERTICAL}, {2, 2, 1, 3, OX_PIPE_1F1B},        {4, 4, 1, 2, OX_PIPE_GPIPE},
                  {2, 2, 2, 2, OX_PIPE_1F1B},     {4, 2, 1, 2, OX_PIPE_INTERLEAVED}, {2, 1, 1, 4, OX_PIPE_VERTICAL},
                  {2, 2, 2, 2, OX_PIPE_VERTICAL}};
    for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++) {
        const struct mesh *const mesh = &meshes[m];
        struct golden golden;
        struct outcome expected;
        if (!test_takes((unsigned)m, MESHES_QUICK)) {
            continue;
        }
        open(name, mesh->groups, &golden);
        golden.micro_batches = 4;
        struct harness_run alone = run_of(&golden, mesh->groups, 1, 1);
        alone.sum_groups = 4;
        const double loss = golden_evaluate(&golden, &alone);
        golden_train(&golden, &alone, &harness_in_memory, STEPS, &expected);
        for (size_t p = 0; harness_places[p].name != NULL; p++) {
            if ((p + m) % 4 != 0 || !takes_place()) {
                continue;
            }
            struct harness_run run = run_of(&golden, mesh->groups, mesh->contexts, mesh->data);
            struct outcome outcome;
            char what[480];
            run.sum_groups = 4;
            run.ranks *= mesh->pipe;
            run.pipe = mesh->pipe;
            run.schedule = mesh->schedule;
            run.pipe_chunks = mesh->schedule == OX_PIPE_INTERLEAVED ? 2 : 1;
            choose_mode(kv_heads, &run);
            snprintf(what, sizeof what, "%s: %u groups, %u by %u ranks, mode %d, pipe %u (%s), %s", name, mesh->groups,
                     mesh->contexts, mesh->data, run.context_mode, mesh->pipe, ox_pipe_schedule_name(mesh->schedule),
                     harness_places[p].name);
            CHECK(golden_evaluate(&golden, &run) == loss);
            golden_train(&golden, &run, &harness_places[p], STEPS, &outcome);
            outcome_check_same(what, &expected, &outcome);
            outcome_close(&outcome);
        }
        outcome_close(&expected);
        golden_close(&golden);
    }
}

/* A ring has bits of its own: those of one rank with as many groups. */
static void check_ring(const char *name, uint32_t groups, unsigned nth) {
    struct golden golden;
    struct outcome expected;
    open(name, groups, &golden);
    struct harness_run alone = run_of(&golden, groups, 1, 1);
    alone.context_mode = OX_CONTEXT_RING;
    const double loss = golden_evaluate(&golden, &alone);
    golden_train(&golden, &alone, &harness_in_memory, STEPS, &expected);
    for (size_t p = 0; harness_places[p].name != NULL; p++) {
        if (p % RING_QUICK != nth % RING_QUICK && !test_deep()) {
            continue;
        }
        struct harness_run run = run_of(&golden, groups, groups, 1);
        struct outcome outcome;
        char what[480];
        run.context_mode = OX_CONTEXT_RING;
        run.sharding = harness_places[p].store || p % 3 != 0 ? OX_SHARDING_FULL : OX_SHARDING_NONE;
        snprintf(what, sizeof what, "%s: a ring of %u ranks, %s", name, groups, harness_places[p].name);
        CHECK(golden_evaluate(&golden, &run) == loss);
        golden_train(&golden, &run, &harness_places[p], STEPS, &outcome);
        outcome_check_same(what, &expected, &outcome);
        outcome_close(&outcome);
    }
    outcome_close(&expected);
    golden_close(&golden);
}

static void check_torch(const char *name, uint32_t groups, uint32_t contexts, enum ox_context_mode mode) {
    struct golden golden;
    struct outcome outcome = {0};
    struct harness harness;
    open(name, groups, &golden);
    struct harness_run run = run_of(&golden, groups, contexts, 1);
    run.context_mode = mode;
    printf("%s: %u groups of rows, %u ranks, mode %d\n", name, groups, contexts, mode);
    harness_open(&run, &harness_in_memory, &harness);
    golden_steps(&harness, &golden, 0, GOLDEN_STEPS, &outcome);
    outcome_read_weights(&harness, &outcome);
    golden_report_fp32(&golden, harness.model, &outcome, GOLDEN_STEPS);
    harness_close(&harness);
    outcome_close(&outcome);
    golden_close(&golden);
}

int main(void) {
    for (int i = 0; i < MIXTURE_CASES; i++) {
        check_mixture(&mixture_cases[i]);
    }
    check_pipes("llama_tied_gqa", 2);
    static const char *const names[] = {"llama_tied_gqa", "gpt2_small", "mistral_window", "gemma3", "qwen3_windows",
                                        "eight_qwen3", "qwen3_moe", "gpt_oss", "deepseek_v3"};
    static const uint32_t kv_heads[] = {2, 3, 2, 1, 2, 8};
    enum { MIXTURES = 3 }; /* the last, which check_mixture takes elsewhere */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct {
            uint32_t groups, contexts;
            enum ox_context_mode mode;
        } ways[] = {{2, 1, OX_CONTEXT_GATHER}, {4, i % 2 == 0 ? 1 : 4, OX_CONTEXT_GATHER},
                    {4, i % 2 == 0 ? 4 : 1, OX_CONTEXT_RING}};
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            if (test_takes((unsigned)(i + w), 3)) {
                check_torch(names[i], ways[w].groups, ways[w].contexts, ways[w].mode);
            }
        }
        if (test_takes((unsigned)i, 2)) {
            check_ring(names[i], 2u << i % 3, (unsigned)i);
        }
    }
    for (size_t i = 0; i < sizeof names / sizeof *names - MIXTURES; i++) {
        for (uint32_t groups = 2; groups <= 8; groups *= 2) {
            struct golden golden;
            struct outcome expected;
            if (!test_takes((unsigned)i + groups / 4, 3)) {
                continue;
            }
            open(names[i], groups, &golden);
            const struct harness_run alone = run_of(&golden, groups, 1, 1);
            const double loss = golden_evaluate(&golden, &alone);
            golden_train(&golden, &alone, &harness_in_memory, STEPS, &expected);
            for (uint32_t contexts = 1; contexts <= groups; contexts *= 2) {
                for (size_t p = 0; harness_places[p].name != NULL; p++) {
                    if (!takes_place()) {
                        continue;
                    }
                    struct harness_run run = run_of(&golden, groups, contexts, 1);
                    struct outcome outcome;
                    char what[480];
                    run.sharding = (enum ox_sharding)(p % OX_SHARDING_COUNT);
                    if (run.sharding == OX_SHARDING_NONE && harness_places[p].store) {
                        run.sharding = OX_SHARDING_FULL;
                    }
                    struct harness_place place = harness_places[p];
                    place.chaos_seed = p % 3 == 0 ? p + 1 : 0;
                    choose_mode(kv_heads[i], &run);
                    snprintf(what, sizeof what, "%s: %u groups, %u ranks, mode %d, %d, %s", names[i], groups, contexts,
                             run.context_mode, run.sharding, place.name);
                    CHECK(golden_evaluate(&golden, &run) == loss);
                    golden_train(&golden, &run, &place, STEPS, &outcome);
                    outcome_check_same(what, &expected, &outcome);
                    outcome_close(&outcome);
                }
            }
            outcome_close(&expected);
            golden_close(&golden);
        }
    }
    golden_again("Haswell");
    return test_end();
}
