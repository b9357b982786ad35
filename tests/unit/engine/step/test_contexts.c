/* Groups of rows: sequences are cut into them, on one rank or on several that divide them. They agree with PyTorch, and
 * no bit depends on how many ranks there are, on where planes live, nor on what ranks divide. */
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { QUICK = 24 };
#else
enum { QUICK = 16 };
#endif
enum { STEPS = 2 };

static bool takes(void) {
    static unsigned asked;
    return test_takes(asked++, QUICK);
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

/* Sequences as long as their groups ask for. */
static void open(const char *name, uint32_t groups, struct golden *out) {
    golden_open(name, out);
    out->padding = (2 * groups - out->seq % (2 * groups)) % (2 * groups);
}

static void check_torch(const char *name, uint32_t groups, uint32_t contexts) {
    struct golden golden;
    struct outcome outcome = {0};
    struct harness harness;
    open(name, groups, &golden);
    const struct harness_run run = run_of(&golden, groups, contexts, 1);
    printf("%s: %u groups of rows, %u ranks\n", name, groups, contexts);
    harness_open(&run, &harness_in_memory, &harness);
    golden_steps(&harness, &golden, 0, GOLDEN_STEPS, &outcome);
    outcome_read_weights(&harness, &outcome);
    golden_report_fp32(&golden, harness.model, &outcome, GOLDEN_STEPS);
    harness_close(&harness);
    outcome_close(&outcome);
    golden_close(&golden);
}

int main(void) {
    static const char *const names[] = {"llama_tied_gqa", "gpt2_small", "mistral_window", "gemma3", "qwen3_windows"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        check_torch(names[i], 2, 1);
        check_torch(names[i], 4, i % 2 == 0 ? 1 : 4);
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        for (uint32_t groups = 2; groups <= 8; groups *= 2) {
            struct golden golden;
            struct outcome expected;
            open(names[i], groups, &golden);
            const struct harness_run alone = run_of(&golden, groups, 1, 1);
            const double loss = golden_evaluate(&golden, &alone);
            golden_train(&golden, &alone, &harness_in_memory, STEPS, &expected);
            for (uint32_t contexts = 1; contexts <= groups; contexts *= 2) {
                for (size_t p = 0; harness_places[p].name != NULL; p++) {
                    if (!takes()) {
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
                    snprintf(what, sizeof what, "%s: %u groups, %u ranks, %d, %s", names[i], groups, contexts,
                             run.sharding, place.name);
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
    return test_end();
}
