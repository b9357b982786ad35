/* The planner's choice against random plans of six steps, on the machines of docs/profiles: how long each takes by the
 * simulator, and the processor seconds of planning. Run it from the root of the sources. `--plans` says how many that
 * fit are drawn of each step; `--case` keeps the steps whose name contains the text. Exits 1 when a choice takes more
 * than 5 % longer than the best of them. */
#include "base/bytes.h"
#include "engine/step/engine.h"
#include "offload/sim/sim.h"
#include "tests/kit/plan/random_plan.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>
#include <time.h>

enum { CHUNK_ELEMS = 262144, PLANS = 200, TRIES_PER_PLAN = 20, DRIVES_MAX = 4 };
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

static const struct ox_placement_request automatic = {
    .prefetch_depth = -1, .act_tier = OX_TIER_COUNT, .weights_tier = OX_TIER_COUNT, .state_tier = OX_TIER_COUNT,
    .grad_tier = OX_TIER_COUNT, .overlap = -1, .speculative_units = -1, .kept_units = -1};

static void open_run(const struct step_case *c, struct step_run *run) {
    char path[128];
    const struct ox_model_config model = {
        .family = "llama", .vocab = c->vocab, .hidden = c->hidden, .layers = c->layers, .heads = c->hidden / 128,
        .kv_heads = c->hidden / 128, .head_dim = 128, .width = c->width, .contexts = c->seq, .norm = OX_NORM_RMS,
        .act = OX_ACTIVATION_SWIGLU, .layout = OX_WEIGHT_OUT_IN, .norm_eps = 1e-5f, .rope = true, .rope_theta = 10000.0,
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
        .request = automatic, .machine = &run->machine, .chunk_elems = CHUNK_ELEMS, .nvme_bytes = run->drive_bytes,
        .nvme_count = c->drives, .queue_depth = 16, .isa = ox_isa_best()};
}

/* The choice's simulated seconds, and the processor seconds of choosing. */
static double choose(const struct step_run *run, struct ox_engine_plan **plan, struct ox_sim_setup *setup,
                     double *planning) {
    struct ox_sim *sim = NULL;
    struct ox_sim_result result;
    const clock_t begin = clock();
    REQUIRE_OK(ox_engine_plan_open(&run->config, plan));
    *planning = (double)(clock() - begin) / CLOCKS_PER_SEC;
    ox_engine_sim_setup(&run->config, &(*plan)->input, setup);
    REQUIRE_OK(ox_sim_open((*plan)->train->task_count, &sim));
    ox_sim_run(sim, (*plan)->train, setup, &result);
    ox_sim_close(&sim);
    return result.seconds;
}

static void describe(const char *name, const struct ox_plan_input *in) {
    const struct ox_placement *const p = &in->placement;
    uint32_t homes[3][OX_TIER_COUNT] = {{0}};
    for (uint32_t i = 0; i < in->table->unit_count; i++) {
        homes[0][in->table->shards[i].homes.weights]++;
        homes[1][in->table->shards[i].homes.state]++;
        homes[2][in->table->shards[i].homes.grad]++;
    }
    printf("    %s: %u tiles, depth %u, slots %u, checkpoints on %s, overlap %d, early %u; on device/host/nvme "
           "weights %u/%u/%u, state %u/%u/%u, gradients %u/%u/%u\n", name, p->tiles, p->prefetch_depth,
           p->stream_slots, ox_tier_name(p->act_tier), p->overlap, p->speculative_units, homes[0][0], homes[0][1],
           homes[0][2], homes[1][0], homes[1][1], homes[1][2], homes[2][0], homes[2][1], homes[2][2]);
}

static bool run_case(const struct step_case *c, uint64_t seed, uint32_t count) {
    struct step_run run;
    struct ox_engine_plan *plan = NULL;
    struct ox_sim_setup setup;
    struct random_plan random;
    open_run(c, &run);
    double planning, best = INFINITY, sum = 0;
    const double chosen = choose(&run, &plan, &setup, &planning);
    describe("chosen", &plan->input);
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
    describe("best drawn", &plan->input);
    printf("  %-30s %9.4g s %9.4g s %9.4g s %7.3f %6u of %u %9.3f s\n", c->name, chosen, best, sum / fit, chosen / best,
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
            good = run_case(&cases[i], i + 1, plans) && good;
        }
    }
    return test_end() != 0 || !good;
}
