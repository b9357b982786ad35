/* Ranks of several processes: no bit depends on how many there are, nor on what their ranks divide, nor on where planes
 * live. This program starts itself under mpirun, and every process compares all that the steps leave with the run of
 * one rank. */
#include "base/assert.h"
#include "tests/kit/files.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/run/sys_mpi.h"
#include "tests/kit/test.h"

#include <string.h>
#include <unistd.h>

enum { GROUPS = 8, HANG_SECONDS = 200 };

static const enum ox_sharding shardings[] = {OX_SHARDING_FULL, OX_SHARDING_STEP, OX_SHARDING_GRAD, OX_SHARDING_STATE,
                                             OX_SHARDING_NONE};
enum { SHARDING_COUNT = sizeof shardings / sizeof *shardings };

static struct harness_run run_of(const struct golden *golden) {
    struct harness_run run = golden_run(golden);
    run.compute_threads = 1;
    run.sum_groups = GROUPS;
    return run;
}

static void compare(const struct golden *golden, struct harness_run run, const struct harness_place *place,
                    const struct outcome *expected) {
    struct outcome outcome;
    char name[160];
    if (run.sharding == OX_SHARDING_NONE && place->store) {
        run.sharding = OX_SHARDING_FULL;
    }
    snprintf(name, sizeof name, "%u ranks, sharding %d, %s", run.ranks, (int)run.sharding, place->name);
    golden_train(golden, &run, place, FEW_STEPS, &outcome);
    outcome_check_same(name, expected, &outcome);
    outcome_close(&outcome);
}

/* Where MPI adds the gradients of ranks the bits may be others, but not the run. */
static void compare_library(const struct golden *golden, struct harness_run run, const struct harness_place *place,
                            const struct outcome *expected) {
    struct outcome outcome;
    char name[160];
    run.library_sums = true;
    snprintf(name, sizeof name, "%u ranks, sharding %d, sums of the library, %s", run.ranks, (int)run.sharding,
             place->name);
    golden_train(golden, &run, place, GOLDEN_STEPS, &outcome);
    outcome_check_close(name, expected, &outcome);
    outcome_close(&outcome);
}

/* The run ends after FEW_STEPS, and its processes open their stores again for as many. */
static void compare_reopened(const struct golden *golden, const struct harness_run *run,
                             const struct harness_place *place) {
    struct harness_run alone = run_of(golden);
    struct outcome expected, outcome;
    struct harness harness;
    golden_train(golden, &alone, &harness_in_memory, 2 * FEW_STEPS, &expected);
    harness_open(run, place, &harness);
    golden_steps(&harness, golden, 0, FEW_STEPS, &outcome);
    REQUIRE_OK(ox_engine_finish_update(harness.engine));
    harness_reopen(run, place, &harness);
    golden_steps(&harness, golden, FEW_STEPS, 2 * FEW_STEPS, &outcome);
    golden_end(&harness, "reopened", &expected, &outcome);
    outcome_close(&expected);
}

/* What one process of several does, with so many ranks. */
static int take_part(const char *name, uint32_t ranks, size_t stride) {
    struct golden golden;
    struct outcome expected, longer;
    struct ox_team *team = NULL;
    alarm(HANG_SECONDS);
    REQUIRE_OK(ox_team_open(0, &team));
    golden_open(name, &golden);
    golden.micro_batches = GROUPS;
    struct harness_run run = run_of(&golden);
    golden_train(&golden, &run, &harness_in_memory, FEW_STEPS, &expected);
    golden_train(&golden, &run, &harness_in_memory, GOLDEN_STEPS, &longer);
    run.ranks = ranks;
    run.team = team;
    for (size_t i = 0; i < SHARDING_COUNT; i++) {
        run.sharding = shardings[i];
        compare(&golden, run, &harness_in_memory, &expected);
        compare_library(&golden, run, run.sharding == OX_SHARDING_NONE ? &harness_in_memory : &harness_places[i],
                        &longer);
    }
    outcome_close(&longer);
    const struct harness_place *stored = NULL;
    for (size_t i = 0; harness_places[i].name != NULL; i++) {
        struct harness_place place = harness_places[i];
        if (i % stride != ranks % stride) {
            continue;
        }
        run.sharding = shardings[i % SHARDING_COUNT];
        compare(&golden, run, &place, &expected);
        place.chaos_seed = i + 1;
        compare(&golden, run, &place, &expected);
        stored = place.store ? &harness_places[i] : stored;
    }
    OX_ASSERT(stored != NULL);
    run.sharding = OX_SHARDING_FULL;
    compare_reopened(&golden, &run, stored);
    outcome_close(&expected);
    golden_close(&golden);
    ox_team_close(&team);
    return test_end();
}

static void launch(const char *name, unsigned processes, unsigned ranks, unsigned stride) {
    static struct sys_args each, all;
    static struct sys_process process;
    sys_args_begin(&each, name);
    each.program = "/proc/self/exe";
    sys_args_word(&each, "%u", ranks);
    sys_args_word(&each, "%u", stride);
    sys_mpi_begin(&all, processes, &each, SYS_MPI_END_OTHERS);
    printf("%s: %u processes\n", name, processes);
    sys_run(&all, &process);
    if (process.outcome.exit_status != 0) {
        printf("%u processes, %u ranks: ended with %d\n%s%s\n", processes, ranks, process.outcome.exit_status,
               process.outcome.out, process.outcome.err);
        test_failure_count++;
    }
}

int main(int argc, char **argv) {
    if (argc == 4) {
        return take_part(argv[1], (uint32_t)strtoul(argv[2], NULL, 10), (size_t)strtoul(argv[3], NULL, 10));
    }
    sys_mpi_require();
    static const struct {
        const char *name;
        unsigned processes, ranks;
    } launches[] = {{"llama_tied_gqa", 2, 2}, {"llama_tied_gqa", 2, 4}, {"llama_untied_odd", 3, 3},
                    {"gpt2_small", 4, 8}, {"frozen_parts", 2, 4}, {"frozen_blocks", 3, 3}};
    for (unsigned i = 0; i < sizeof launches / sizeof *launches; i++) {
        if (test_takes(i, 6)) {
            launch(launches[i].name, launches[i].processes, launches[i].ranks, test_deep() ? 1 : 7);
        }
    }
    return test_end();
}
