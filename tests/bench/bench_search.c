/* The planner's choice against random placements of six steps, on the machines of docs/profiles: how long each takes by
 * the simulator, and how long planning took. Run it from the root of the sources. `--placements` says how many that fit
 * are drawn of each step; `--case` keeps the steps whose name contains the text. Exits 1 when a choice takes more than
 * 5 % longer than the best of them. */
#include "base/bytes.h"
#include "base/prng.h"
#include "engine/engine.h"
#include "offload/sim.h"
#include "tests/test.h"

#include <math.h>
#include <string.h>
#include <time.h>

enum { CHUNK_ELEMS = 262144, PLACEMENTS = 200, TRIES_PER_PLACEMENT = 20, DRIVES_MAX = 4 };
static const double LIMIT = 1.05;

struct step_case {
    const char *name, *profile;
    uint32_t hidden, layers, width, vocab;
    uint32_t batch, seq, micro_batches;
    bool fp32;
    uint64_t device_gib, host_gib;
    uint32_t drives;
};

static const struct step_case cases[] = {
    {"1B, this sort of CPU, all fits", "cpu-2-cores", 2048, 16, 8192, 32000, 1, 512, 4, true, 0, 24, 1},
    {"3B, CPU, 4 GiB", "cpu-2-cores", 2560, 32, 8704, 32000, 1, 512, 4, false, 0, 4, 1},
    {"8B, RTX 4090, 1 drive", "rtx4090-1-drive", 4096, 32, 14336, 128256, 1, 4096, 8, false, 22, 64, 1},
    {"13B, RTX 4090, 4 drives", "rtx4090-4-drives", 5120, 40, 13824, 32000, 1, 4096, 4, false, 22, 96, 4},
    {"32B, A100, 4 drives", "a100-4-drives", 5120, 64, 27648, 151936, 2, 2048, 16, false, 70, 192, 4},
    {"100B, H200, 4 drives", "h200-4-drives", 9216, 100, 24576, 32000, 1, 2048, 16, false, 120, 256, 4},
};
enum { CASE_COUNT = sizeof cases / sizeof *cases };

/* One case as the engine is asked for it. */
struct step_run {
    struct ox_model *model;
    struct ox_machine machine;
    uint64_t drive_bytes[DRIVES_MAX];
    struct ox_engine_config config;
};

static const struct ox_placement_wish automatic = {
    .prefetch_depth = -1, .act_tier = OX_TIER_COUNT, .weights_tier = OX_TIER_COUNT, .state_tier = OX_TIER_COUNT,
    .grad_tier = OX_TIER_COUNT, .overlap = -1, .early_units = -1};

static void open_run(const struct step_case *c, struct step_run *run) {
    char path[128];
    const struct ox_model_config model = {
        .family = "llama", .vocab = c->vocab, .hidden = c->hidden, .layers = c->layers, .heads = c->hidden / 128,
        .kv_heads = c->hidden / 128, .head_dim = 128, .width = c->width, .contexts = c->seq, .norm = OX_NORM_RMS,
        .act = OX_ACT_SWIGLU, .layout = OX_WEIGHT_OUT_IN, .norm_eps = 1e-5f, .rope = true, .rope_theta = 10000.0,
        .init_range = 0.02, .bos_id = -1, .eos_id = -1};
    snprintf(path, sizeof path, "docs/profiles/%s.json", c->profile);
    REQUIRE_OK(ox_machine_load(path, &run->machine));
    ox_machine_fit_drives(&run->machine, c->drives);
    REQUIRE_OK(ox_model_build(&model, &run->model));
    for (uint32_t i = 0; i < c->drives; i++) {
        run->drive_bytes[i] = UINT64_C(4) << 40;
    }
    run->config = (struct ox_engine_config){
        .model = run->model, .batch = c->batch, .seq = c->seq, .micro_batches = c->micro_batches, .fp32 = c->fp32,
        .grad_bf16 = !c->fp32, .compute_threads = run->machine.host.cores, .optimizer_threads = run->machine.host.cores,
        .budget = {.unified = c->device_gib == 0, .device_bytes = c->device_gib * OX_GIB,
                   .host_bytes = c->host_gib * OX_GIB, .nvme_bytes = c->drives * run->drive_bytes[0],
                   .drive_bytes = run->drive_bytes, .drive_count = c->drives},
        .wish = automatic, .machine = &run->machine, .chunk_elems = CHUNK_ELEMS, .nvme_bytes = run->drive_bytes,
        .nvme_count = c->drives, .queue_depth = 16, .isa = ox_isa_best()};
}

/* ---- random placements ------------------------------------------------------------------------------ */

static uint32_t draw(uint64_t seed, uint64_t *counter, uint32_t below) {
    return (uint32_t)(ox_uniform(seed, 7, (*counter)++) * below);
}

static enum ox_tier draw_tier(uint64_t seed, uint64_t *counter, bool device) {
    static const enum ox_tier tiers[] = {OX_TIER_COUNT, OX_TIER_COUNT, OX_TIER_HOST, OX_TIER_NVME, OX_TIER_DEVICE};
    return tiers[draw(seed, counter, device ? 5 : 4)];
}

/* What is left to the planner is chosen around what is not. */
static struct ox_placement_wish draw_wish(const struct step_case *c, uint64_t seed) {
    uint64_t counter = 0;
    const bool gpu = c->device_gib > 0;
    return (struct ox_placement_wish){
        .tiles = draw(seed, &counter, c->micro_batches + 1), .prefetch_depth = (int32_t)draw(seed, &counter, 5) - 1,
        .act_tier = draw_tier(seed, &counter, gpu), .weights_tier = draw_tier(seed, &counter, gpu),
        .state_tier = draw_tier(seed, &counter, false), .grad_tier = draw_tier(seed, &counter, false),
        .overlap = (int32_t)draw(seed, &counter, 3) - 1,
        .early_units = (int32_t)draw(seed, &counter, c->layers + 4) - 1};
}

/* Simulated seconds, 0 where the wish does not fit; planning's own processor seconds in *planning. */
static double plan_seconds(const struct step_run *run, const struct ox_placement_wish *wish, double *planning) {
    struct ox_engine_config config = run->config;
    struct ox_engine_plan *plan = NULL;
    struct ox_sim_result result = {0};
    config.wish = *wish;
    const clock_t begin = clock();
    const enum ox_status status = ox_engine_plan_open(&config, &plan);
    *planning = (double)(clock() - begin) / CLOCKS_PER_SEC;
    if (status == OX_OK) {
        struct ox_sim_setup setup;
        struct ox_sim *sim = NULL;
        ox_engine_sim_setup(&config, &plan->input, &setup);
        REQUIRE_OK(ox_sim_open(plan->train->task_count, &sim));
        ox_sim_run(sim, plan->train, &setup, &result);
        ox_sim_close(&sim);
    }
    ox_engine_plan_close(&plan);
    return result.seconds;
}

static bool run_case(const struct step_case *c, uint64_t seed, uint32_t placements) {
    struct step_run run;
    open_run(c, &run);
    double planning, unused, best = INFINITY, sum = 0;
    const double chosen = plan_seconds(&run, &automatic, &planning);
    CHECK(chosen > 0);
    uint32_t fit = 0, better = 0;
    struct ox_placement_wish best_wish = automatic;
    for (uint32_t i = 0; i < placements * TRIES_PER_PLACEMENT && fit < placements; i++) {
        const struct ox_placement_wish wish = draw_wish(c, seed * 1000003 + i);
        const double seconds = plan_seconds(&run, &wish, &unused);
        if (seconds > 0) {
            fit++;
            sum += seconds;
            better += seconds < chosen;
            best_wish = seconds < best ? wish : best_wish;
            best = fmin(best, seconds);
        }
    }
    const bool good = chosen <= LIMIT * best;
    printf("  %-30s %9.4g s %9.4g s %9.4g s %7.3f %6u of %u %9.3f s\n", c->name, chosen, best, sum / fit, chosen / best,
           better, fit, planning);
    if (!good) {
        printf("    better: tiles %u, depth %d, checkpoints %d, weights %d, state %d, gradients %d, overlap %d, "
               "early %d\n",
               best_wish.tiles, best_wish.prefetch_depth, best_wish.act_tier, best_wish.weights_tier,
               best_wish.state_tier, best_wish.grad_tier, best_wish.overlap, best_wish.early_units);
    }
    fflush(stdout);
    ox_model_close(&run.model);
    return good;
}

int main(int argc, char **argv) {
    const char *only = NULL;
    uint32_t placements = PLACEMENTS;
    bool good = true;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--placements") == 0) {
            placements = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "--case") == 0) {
            only = argv[i + 1];
        } else {
            fprintf(stderr, "usage: bench_search [--placements N] [--case TEXT]\n");
            return 2;
        }
    }
    printf("  %-30s %11s %11s %11s %7s %13s %11s\n", "step", "chosen", "best drawn", "mean drawn", "ratio",
           "faster drawn", "planning");
    for (uint32_t i = 0; i < CASE_COUNT; i++) {
        if (only == NULL || strstr(cases[i].name, only) != NULL) {
            good = run_case(&cases[i], i + 1, placements) && good;
        }
    }
    return test_end() != 0 || !good;
}
