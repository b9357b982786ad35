/* The simulator against the machine: steps of small models at several placements, each measured and predicted from a
 * profile of the machine.
 *
 *     bench_sim --profile FILE [--folder PATH] [--rounds N] [--threads N] [--case TEXT] [--lanes] [--strict]
 *
 * Models have 10 to 100 M parameters and random weights; the median of the rounds counts, after one that does not.
 * Processor seconds stand beside those of the clock, because other processes lengthen the latter alone. `--case` keeps
 * the cases whose name contains the text, `--lanes` adds what each lane was busy, measured and predicted. With --strict
 * it exits 1 when the median error is above 5 % or the worst above 15 %. */
#include "base/bytes.h"
#include "base/file.h"
#include "base/prng.h"
#include "engine/engine.h"
#include "offload/sim.h"
#include "tests/test.h"

#include <math.h>
#include <string.h>
#include <time.h>

enum { CONTEXTS = 2048, VOCAB = 8192, ROUNDS_MAX = 64, CHUNK_ELEMS = 262144, RUN_AHEAD = 64 };
static const double MEDIAN_LIMIT = 0.05, WORST_LIMIT = 0.15;

enum size { SMALL, MIDDLE, LARGE };
static const struct {
    uint32_t hidden, layers, heads, width;
} sizes[] = {[SMALL] = {320, 6, 5, 864}, [MIDDLE] = {512, 10, 8, 1408}, [LARGE] = {768, 12, 12, 2048}};

/* Where things live; all that is not memory is a drive. */
enum place { IN_RAM, STATE_OUT, ALL_OUT };

struct step_case {
    const char *name;
    enum size size;
    uint32_t batch, seq, micro_batches, tiles;
    bool fp32;
    enum place place;
};

static const struct step_case all_cases[] = {
    {"10M, memory, 128", SMALL, 4, 128, 2, 1, true, IN_RAM},
    {"10M, memory, 1024", SMALL, 1, 1024, 2, 1, true, IN_RAM},
    {"10M, memory, 4 tiles", SMALL, 4, 128, 4, 4, true, IN_RAM},
    {"10M, drive, 128", SMALL, 4, 128, 2, 1, true, ALL_OUT},
    {"10M, drive, 4 tiles", SMALL, 4, 128, 4, 4, true, ALL_OUT},
    {"40M, memory, 512", MIDDLE, 2, 512, 2, 1, true, IN_RAM},
    {"40M, memory, 512, bf16", MIDDLE, 2, 512, 2, 1, false, IN_RAM},
    {"40M, state on drive, 512", MIDDLE, 2, 512, 2, 1, true, STATE_OUT},
    {"40M, drive, 512, bf16", MIDDLE, 2, 512, 2, 1, false, ALL_OUT},
    {"40M, drive, 128, 2 tiles", MIDDLE, 4, 128, 4, 2, true, ALL_OUT},
    {"40M, drive, 64", MIDDLE, 2, 64, 1, 1, true, ALL_OUT},
    {"100M, memory, 512", LARGE, 2, 512, 1, 1, true, IN_RAM},
    {"100M, state on drive, 128", LARGE, 4, 128, 2, 1, true, STATE_OUT},
    {"100M, drive, 512", LARGE, 2, 512, 1, 1, true, ALL_OUT},
    {"100M, drive, 128, 2 tiles", LARGE, 2, 128, 2, 2, true, ALL_OUT},
    {"100M, drive, 64", LARGE, 1, 64, 1, 1, true, ALL_OUT},
};
enum { CASE_COUNT = sizeof all_cases / sizeof *all_cases };

struct options {
    const char *folder, *profile, *only;
    uint32_t rounds, threads;
    bool lanes, strict;
    const struct ox_io_backend *io;
    struct ox_machine machine;
};

/* ---- the engine ------------------------------------------------------------------------------------- */

static struct ox_model_config model_of(enum size size) {
    return (struct ox_model_config){
        .family = "llama", .vocab = VOCAB, .hidden = sizes[size].hidden, .layers = sizes[size].layers,
        .heads = sizes[size].heads, .kv_heads = sizes[size].heads, .head_dim = 64, .width = sizes[size].width,
        .contexts = CONTEXTS, .norm = OX_NORM_RMS, .act = OX_ACT_SWIGLU, .layout = OX_WEIGHT_OUT_IN,
        .norm_eps = 1e-5f, .rope = true, .rope_theta = 10000.0, .tied = true, .init_range = 0.02, .bos_id = -1,
        .eos_id = -1};
}

static void load(struct ox_engine *engine, const struct ox_model *model) {
    REQUIRE_OK(ox_engine_load_begin(engine, 0));
    for (uint32_t unit_idx = 0; unit_idx < model->unit_count; unit_idx++) {
        for (uint32_t i = 0; i < ox_engine_chunk_count(engine, unit_idx); i++) {
            struct ox_chunk_view view;
            ox_engine_chunk_view(engine, unit_idx, i, &view);
            ox_chunk_clear(&view);
            for (uint64_t k = 0; k < view.count; k++) {
                view.values[k] = (float)((int)((view.first + k) * 2654435761u >> 20 & 255) - 128) * 2e-4f;
            }
            CHECK(ox_chunk_values_set(&view, OX_PLANE_MASTER) == 0);
            REQUIRE_OK(ox_engine_chunk_put(engine, unit_idx, i, &view));
        }
    }
    REQUIRE_OK(ox_engine_load_commit(engine, NULL, 0));
}

static struct ox_engine *open_engine(const struct step_case *c, const struct ox_model *model,
                                     const struct options *options) {
    static const uint64_t drive_bytes[1] = {UINT64_C(16) << 30}, run_id[2] = {3, 4};
    static const char *folders[1];
    folders[0] = options->folder;
    const bool store = c->place != IN_RAM;
    const enum ox_tier weights = c->place == ALL_OUT ? OX_TIER_NVME : OX_TIER_HOST;
    const struct ox_engine_config config = {
        .model = model, .batch = c->batch, .seq = c->seq, .micro_batches = c->micro_batches, .fp32 = c->fp32,
        .compute_threads = options->threads, .optimizer_threads = options->threads,
        .budget = {.unified = true, .host_bytes = UINT64_C(4) << 30, .nvme_bytes = store ? drive_bytes[0] : 0,
                   .drive_bytes = store ? drive_bytes : NULL, .drive_count = store},
        .wish = {.tiles = c->tiles, .prefetch_depth = -1, .act_tier = store ? weights : OX_TIER_HOST,
                 .weights_tier = weights, .state_tier = store ? OX_TIER_NVME : OX_TIER_HOST, .grad_tier = weights},
        .chunk_elems = CHUNK_ELEMS, .nvme_folders = folders, .nvme_bytes = drive_bytes, .nvme_count = store,
        .io = store ? options->io : NULL, .queue_depth = 16, .isa = ox_isa_best()};
    struct ox_engine_plan *plan = NULL;
    struct ox_engine *engine = NULL;
    REQUIRE_OK(ox_engine_plan_open(&config, &plan));
    REQUIRE_OK(ox_engine_open(&config, &plan, &engine));
    if (store) {
        REQUIRE_OK(ox_engine_store_create(engine, run_id));
    }
    load(engine, model);
    return engine;
}

static double run_step(struct ox_engine *engine, const struct step_case *c, uint64_t step,
                       struct ox_step_result *result) {
    const uint32_t rows = c->batch * c->seq;
    for (uint32_t i = 0; i < c->micro_batches; i++) {
        const struct ox_batch batch = ox_engine_batch(engine, i);
        for (uint32_t row = 0; row < rows; row++) {
            uint32_t words[4];
            ox_philox(step, i, row, words);
            batch.ids[row] = (int32_t)(words[0] % VOCAB);
            batch.targets[row] = (int32_t)(words[1] % VOCAB);
        }
    }
    const struct ox_step_input input = {
        .step = step, .target_count = (uint64_t)rows * c->micro_batches, .max_grad_norm = 1.0,
        .adam = {.learning_rate = 1e-5, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = step}};
    REQUIRE_OK(ox_engine_step(engine, &input, result));
    return result->seconds;
}

/* ---- the report --------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t count) {
    qsort(values, count, sizeof *values, by_value);
    return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* Processor seconds of this process. */
static double own_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void print_lanes(const struct ox_sim_result *predicted, double measured[OX_LANE_COUNT][ROUNDS_MAX],
                        uint32_t rounds, const struct ox_ops_seconds *ops) {
    for (int lane = 0; lane < OX_LANE_COUNT; lane++) {
        const double busy = median(measured[lane], rounds);
        if (busy > 0) {
            printf("    %-11s busy %7.3f predicted %7.3f waits predicted %7.3f\n", ox_lane_name((enum ox_lane_id)lane),
                   busy, predicted->lanes[lane].busy, ox_sim_stalled(&predicted->lanes[lane]));
        }
    }
    printf("    matmul %.3f attention %.3f norm %.3f act %.3f head %.3f other %.3f; binding %s %.0f %%\n",
           ops->seconds[0] / rounds, ops->seconds[1] / rounds, ops->seconds[2] / rounds, ops->seconds[3] / rounds,
           ops->seconds[4] / rounds, ops->seconds[5] / rounds, ox_sim_resource_name(predicted->binding),
           100 * predicted->binding_share);
}

static struct ox_sim_result predict(const struct ox_engine *engine, const struct options *options) {
    const struct ox_engine_plan *const plan = ox_engine_plan_of(engine);
    const struct ox_sim_setup setup = {.machine = &options->machine, .input = &plan->input,
                                       .compute_threads = options->threads, .optimizer_threads = options->threads,
                                       .run_ahead_tasks = RUN_AHEAD};
    struct ox_sim *sim = NULL;
    struct ox_sim_result result;
    REQUIRE_OK(ox_sim_open(plan->train->task_count, &sim));
    ox_sim_run(sim, plan->train, &setup, &result);
    ox_sim_close(&sim);
    return result;
}

/* Returns predicted seconds by measured ones, less 1. */
static double run_case(const struct step_case *c, const struct options *options) {
    const struct ox_model_config model_config = model_of(c->size);
    struct ox_model *model = NULL;
    REQUIRE_OK(ox_model_build(&model_config, &model));
    struct ox_engine *engine = open_engine(c, model, options);
    const struct ox_sim_result predicted = predict(engine, options);
    struct ox_step_result result;
    struct ox_ops_seconds ops;
    double seconds[ROUNDS_MAX], busy[OX_LANE_COUNT][ROUNDS_MAX];
    (void)run_step(engine, c, 1, &result);
    ox_engine_take_op_seconds(engine, &ops);
    const double own = own_seconds();
    for (uint32_t i = 0; i < options->rounds; i++) {
        seconds[i] = run_step(engine, c, 2 + i, &result);
        for (int lane = 0; lane < OX_LANE_COUNT; lane++) {
            busy[lane][i] = result.lane_busy_seconds[lane];
        }
    }
    const double processor = (own_seconds() - own) / options->rounds;
    const double foreseen = predicted.used[OX_SIM_CORES] * options->machine.host.cores;
    ox_engine_take_op_seconds(engine, &ops);
    const double measured = median(seconds, options->rounds), error = predicted.seconds / measured - 1;
    printf("  %-26s %9.3f %9.3f %+7.1f %% %9.3f %9.3f %+7.1f %%\n", c->name, measured, predicted.seconds, 100 * error,
           processor, foreseen, 100 * (foreseen / processor - 1));
    if (options->lanes) {
        print_lanes(&predicted, busy, options->rounds, &ops);
    }
    fflush(stdout);
    ox_engine_close(&engine);
    ox_model_close(&model);
    if (c->place != IN_RAM) {
        char path[OX_PATH_BYTES];
        REQUIRE_OK(ox_path_join(options->folder, "offload-store-0.ox", path));
        REQUIRE_OK(options->io->drive_remove(options->io, path));
    }
    return error;
}

static void parse(int argc, char **argv, struct options *options) {
    for (int i = 1; i < argc; i++) {
        const char *const value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--lanes") == 0 || strcmp(argv[i], "--strict") == 0) {
            *(argv[i][2] == 'l' ? &options->lanes : &options->strict) = true;
            continue;
        }
        if (value == NULL) {
            break;
        }
        if (strcmp(argv[i], "--folder") == 0) {
            options->folder = value;
        } else if (strcmp(argv[i], "--profile") == 0) {
            options->profile = value;
        } else if (strcmp(argv[i], "--case") == 0) {
            options->only = value;
        } else if (strcmp(argv[i], "--rounds") == 0) {
            options->rounds = (uint32_t)strtoul(value, NULL, 10);
        } else if (strcmp(argv[i], "--threads") == 0) {
            options->threads = (uint32_t)strtoul(value, NULL, 10);
        } else {
            break;
        }
        i++;
        continue;
    }
    if (options->profile == NULL || options->rounds < 1 || options->rounds > ROUNDS_MAX || options->threads < 1) {
        fprintf(stderr, "usage: bench_sim --profile FILE [--folder PATH] [--rounds N] [--threads N] [--case TEXT] "
                "[--lanes] [--strict]\n");
        exit(2);
    }
}

int main(int argc, char **argv) {
    static struct options options = {.rounds = 3, .threads = 2};
    parse(argc, argv, &options);
    if (options.folder == NULL) {
        options.folder = test_folder();
    }
    char why[160];
    options.io = ox_io_probe(why);
    REQUIRE_OK(ox_machine_load(options.profile, &options.machine));
    double errors[CASE_COUNT], worst = 0;
    uint32_t count = 0;
    printf("  %-26s %9s %9s %9s %9s %9s %9s\n", "step", "measured", "predicted", "error", "processor", "predicted",
           "error");
    for (int i = 0; i < CASE_COUNT; i++) {
        if (options.only == NULL || strstr(all_cases[i].name, options.only) != NULL) {
            errors[count] = fabs(run_case(&all_cases[i], &options));
            worst = fmax(worst, errors[count++]);
        }
    }
    const double middle = count > 0 ? median(errors, count) : 0;
    printf("%u cases: median error %.1f %% (limit %.0f), worst %.1f %% (limit %.0f)\n", count, 100 * middle,
           100 * MEDIAN_LIMIT, 100 * worst, 100 * WORST_LIMIT);
    return test_end() != 0 || (options.strict && (middle > MEDIAN_LIMIT || worst > WORST_LIMIT));
}
