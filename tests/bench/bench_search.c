/* The planner's choice against random plans of eight steps, on the machines of docs/profiles: how long each takes by
 * the simulator, and the processor seconds of planning. Run it from the root of the sources. `--plans` says how many
 * that fit are drawn of each step; `--case` keeps the steps whose name contains the text. Exits 1 when a choice takes
 * more than 0.5 % longer than the best of them. */
#include "tests/kit/plan/plan_choice.h"
#include "tests/kit/plan/random_plan.h"
#include "tests/kit/plan/step_case.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>
#include <time.h>

enum { PLANS = 200, TRIES_PER_PLAN = 20 };
static const double LIMIT = 1.005;

static const struct {
    const char *name;
    struct step_case of;
} cases[] = {
    {"1B, this sort of CPU, all fits",
     {"cpu-2-cores", 2048, 16, 8192, 32000, 0, 1, 512, 4, true, OX_MOMENTS_F32, 0, 24, 1}},
    {"3B, CPU, 4 GiB", {"cpu-2-cores", 2560, 32, 8704, 32000, 0, 1, 512, 4, false, OX_MOMENTS_F32, 0, 4, 1}},
    {"8B, RTX 4090, 1 drive",
     {"rtx4090-1-drive", 4096, 32, 14336, 128256, 0, 1, 4096, 8, false, OX_MOMENTS_F32, 22, 64, 1}},
    {"13B, RTX 4090, 4 drives",
     {"rtx4090-4-drives", 5120, 40, 13824, 32000, 0, 1, 4096, 4, false, OX_MOMENTS_F32, 22, 96, 4}},
    {"32B, A100, 4 drives",
     {"a100-4-drives", 5120, 64, 27648, 151936, 0, 2, 2048, 16, false, OX_MOMENTS_F32, 70, 192, 4}},
    {"100B, H200, 4 drives",
     {"h200-4-drives", 9216, 100, 24576, 32000, 0, 1, 2048, 16, false, OX_MOMENTS_F32, 120, 256, 4}},
    {"7B, H200, 24 GiB, no drives",
     {"h200-4-drives", 4096, 32, 11008, 32000, 0, 4, 2048, 4, false, OX_MOMENTS_F32, 24, 128, 0}},
    {"8B, H200, 78 GiB, no drives",
     {"h200-4-drives", 4096, 32, 14336, 128256, 0, 4, 4096, 1, false, OX_MOMENTS_F32, 78, 128, 0}},
};
enum { CASE_COUNT = sizeof cases / sizeof *cases };

/* The choice's simulated seconds, and the processor seconds of choosing. */
static double choose(const struct step_run *run, struct ox_engine_plan **plan, struct ox_sim_setup *setup,
                     double *planning) {
    const clock_t begin = clock();
    REQUIRE_OK(ox_engine_plan_open(&run->config, plan));
    *planning = (double)(clock() - begin) / CLOCKS_PER_SEC;
    ox_engine_sim_setup(&run->config, &(*plan)->input, setup);
    return plan_choice_seconds((*plan)->train, setup);
}

static bool run_case(const char *name, const struct step_case *c, uint64_t seed, uint32_t count) {
    struct step_run run;
    struct ox_engine_plan *plan = NULL;
    struct ox_sim_setup setup;
    struct random_plan random;
    step_case_open(c, &run);
    double planning, best = INFINITY, sum = 0;
    const double chosen = choose(&run, &plan, &setup, &planning);
    printf("    chosen: ");
    plan_choice_print(&plan->input);
    random_plan_open(&plan->input, &plan->table, &setup, &random);
    uint32_t fit = 0, better = 0;
    uint64_t best_seed = 0;
    for (uint32_t i = 0; i < count * TRIES_PER_PLAN && fit < count; i++) {
        const double seconds = random_plan_draw(&random, seed * 1000003 + i);
        fit += seconds > 0;
        sum += seconds;
        better += seconds > 0 && seconds < chosen;
        if (seconds > 0 && seconds < best) {
            best = seconds;
            best_seed = seed * 1000003 + i;
        }
    }
    const bool good = chosen <= LIMIT * best && fit == count;
    CHECK(random_plan_draw(&random, best_seed) == best);
    printf("    best drawn: ");
    plan_choice_print(&plan->input);
    printf("  %-30s %9.4g s %9.4g s %9.4g s %7.3f %6u of %u %9.3f s\n", name, chosen, best, sum / fit, chosen / best,
           better, fit, planning);
    fflush(stdout);
    random_plan_close(&random);
    ox_engine_plan_close(&plan);
    ox_model_close(&run.model);
    return good;
}

int main(int argc, char **argv) {
    const char *only = NULL;
    uint32_t plans = PLANS;
    bool good = true;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--plans") == 0) {
            plans = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "--case") == 0) {
            only = argv[i + 1];
        } else {
            fprintf(stderr, "usage: bench_search [--plans N] [--case TEXT]\n");
            return 2;
        }
    }
    printf("  %-30s %11s %11s %11s %7s %13s %11s\n", "step", "chosen", "best drawn", "mean drawn", "ratio",
           "faster drawn", "planning");
    for (uint32_t i = 0; i < CASE_COUNT; i++) {
        if (only == NULL || strstr(cases[i].name, only) != NULL) {
            good = run_case(cases[i].name, &cases[i].of, i + 1, plans) && good;
        }
    }
    return test_end() != 0 || !good;
}
