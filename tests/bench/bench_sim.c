/* The simulator against the machine: steps of models at several placements and orders of work, each measured and
 * predicted from a profile of the machine: seconds, and what it takes of memory and of the drive.
 *
 *     bench_sim --profile FILE [--folder PATH] [--rounds N] [--threads N] [--case TEXT] [--lanes] [--strict]
 *
 * Models have 10 M to 2.7 G parameters and random weights. Every case runs in a process of its own, so that the most it
 * had resident is its own too. The median of the rounds counts, after steps that do not: in the first ones memory and
 * the drive meet bytes that were never written, and where steps overlap the first has no update to do. `--case` keeps
 * the cases whose name contains the text; `--lanes` adds what each lane was busy, measured and predicted, and processor
 * seconds. With --strict it exits 1 when the median error is above 5 %, the worst above 15 %, or more memory or drive
 * was used than announced. All cases together need 18 GB of memory, 29 GB of the drive and some ten minutes. */
#include "base/bytes.h"
#include "base/file.h"
#include "base/prng/prng.h"
#include "engine/step/engine.h"
#include "engine/run/trainer.h"
#include "offload/sim/sim.h"
#include "tests/kit/run/harness.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CONTEXTS = 2048, VOCAB = 8192, ROUNDS_MAX = 64, CHUNK_ELEMS = 262144 };
static const double MEDIAN_LIMIT = 0.05, WORST_LIMIT = 0.15;

enum size { M10, M36, M91, M266, G1, G3 };
static const struct {
    const char *name;
    uint32_t hidden, layers, heads, width;
} sizes[] = {[M10] = {"10 M", 320, 6, 5, 864},       [M36] = {"36 M", 512, 10, 8, 1408},
             [M91] = {"91 M", 768, 12, 12, 2048},    [M266] = {"266 M", 1024, 20, 16, 2816},
             [G1] = {"1.0 G", 2048, 20, 32, 5504},   [G3] = {"2.7 G", 2560, 34, 40, 6912}};

/* Where things live; all that is not memory is a drive. */
enum place { IN_RAM, STATE_OUT, ALL_OUT };
enum order { OFF, HELD, SPEC };
enum numbers { F32, BF16, Q8 };
static const char *const place_names[] = {"memory", "state on drive", "drive"};
static const char *const order_names[] = {"", ", held", ", speculative"};
static const char *const number_names[] = {"", ", bf16", ", q8"};

struct step_case {
    enum size size;
    enum place place;
    enum order order;
    uint32_t batch, seq, micro_batches, tiles;
    enum numbers numbers;
};

static const struct step_case all_cases[] = {
    {M10, IN_RAM, OFF, 4, 128, 2, 1, F32},    {M10, IN_RAM, OFF, 1, 1024, 2, 1, F32},
    {M10, IN_RAM, OFF, 4, 128, 4, 4, F32},    {M10, IN_RAM, HELD, 4, 128, 2, 1, F32},
    {M10, ALL_OUT, OFF, 4, 128, 2, 1, F32},   {M10, ALL_OUT, OFF, 4, 128, 4, 4, F32},
    {M10, ALL_OUT, HELD, 1, 1024, 2, 2, F32}, {M10, ALL_OUT, SPEC, 4, 128, 4, 2, F32},
    {M36, IN_RAM, OFF, 1, 512, 2, 1, F32},    {M36, IN_RAM, OFF, 1, 512, 2, 1, BF16},
    {M36, STATE_OUT, OFF, 1, 512, 2, 1, F32}, {M36, STATE_OUT, HELD, 1, 512, 2, 1, F32},
    {M36, ALL_OUT, OFF, 1, 512, 2, 1, BF16},  {M36, ALL_OUT, OFF, 2, 128, 4, 2, F32},
    {M36, ALL_OUT, OFF, 2, 64, 1, 1, F32},    {M36, ALL_OUT, HELD, 2, 128, 4, 4, F32},
    {M36, ALL_OUT, SPEC, 1, 512, 2, 1, F32},  {M91, IN_RAM, OFF, 1, 512, 1, 1, F32},
    {M91, STATE_OUT, OFF, 2, 128, 2, 1, F32}, {M91, STATE_OUT, SPEC, 2, 128, 2, 1, F32},
    {M91, ALL_OUT, OFF, 1, 512, 1, 1, F32},   {M91, ALL_OUT, OFF, 2, 128, 2, 2, F32},
    {M91, ALL_OUT, OFF, 1, 64, 1, 1, F32},    {M91, ALL_OUT, HELD, 2, 128, 2, 1, F32},
    {M91, ALL_OUT, SPEC, 2, 128, 2, 1, F32},  {M266, IN_RAM, OFF, 1, 256, 1, 1, BF16},
    {M266, STATE_OUT, HELD, 1, 256, 1, 1, BF16}, {M266, ALL_OUT, OFF, 1, 128, 2, 1, F32},
    {M266, ALL_OUT, SPEC, 1, 128, 2, 1, BF16},   {G1, IN_RAM, OFF, 1, 128, 1, 1, BF16},
    {G1, ALL_OUT, HELD, 1, 128, 1, 1, BF16},     {G3, STATE_OUT, OFF, 1, 64, 1, 1, Q8},
};
enum { CASE_COUNT = sizeof all_cases / sizeof *all_cases, NAME_BYTES = 96 };

struct options {
    const char *folder, *profile, *only;
    uint32_t rounds, threads;
    bool lanes, strict;
    const struct ox_io_backend *io;
    struct ox_machine machine;
};

/* Results of a case's process. Memory: arenas and the announced overhead, against the largest resident size; drive:
 * planned bytes, against the file's. */
struct outcome {
    double measured, least, most, predicted;
    double others; /* processor time of everything but this process meanwhile, kernel threads included */
    uint64_t host_planned, host_seen, nvme_planned, nvme_seen;
};

static const char *case_name(const struct step_case *c, char *text) {
    snprintf(text, NAME_BYTES, "%s, %s%s, %u x %u x %u%s%s", sizes[c->size].name, place_names[c->place],
             order_names[c->order], c->batch, c->seq, c->micro_batches, c->tiles > 1 ? c->tiles == 2 ? " in 2 tiles" :
             " in 4 tiles" : "", number_names[c->numbers]);
    return text;
}

/* ---- the engine ------------------------------------------------------------------------------------- */

static struct ox_model_config model_of(enum size size) {
    return (struct ox_model_config){
        .family = "llama", .vocab = VOCAB, .hidden = sizes[size].hidden, .layers = sizes[size].layers,
        .heads = sizes[size].heads, .kv_heads = sizes[size].heads, .head_dim = 64, .width = sizes[size].width,
        .contexts = CONTEXTS, .norm = OX_NORM_RMS, .act = OX_ACTIVATION_SWIGLU, .layout = OX_WEIGHT_OUT_IN,
        .norm_eps = 1e-5f, .rope = true, .rope_theta = 10000.0, .rotary_part = 1.0, .rotary_dim = 64, .tied = true,
        .init_range = 0.02, .bos_id = -1, .eos_id = -1};
}

/* Outlives the engine. */
struct setting {
    uint64_t drive_bytes[1];
    const char *folders[1];
    struct ox_engine_config engine;
};

static void set_up(const struct step_case *c, const struct ox_model *model, const struct options *options,
                   struct setting *out) {
    const bool store = c->place != IN_RAM;
    const enum ox_tier weights = c->place == ALL_OUT ? OX_TIER_NVME : OX_TIER_HOST;
    out->drive_bytes[0] = UINT64_C(40) << 30;
    out->folders[0] = options->folder;
    out->engine = (struct ox_engine_config){
        .model = model,
        .batch = c->batch,
        .seq = c->seq,
        .micro_batches = c->micro_batches,
        .dtype = c->numbers == F32 ? OX_COMPUTE_FP32 : OX_COMPUTE_BF16,
        .grad_bf16 = c->numbers == Q8,
        .state = {.moments = c->numbers == Q8 ? OX_MOMENTS_Q8 : OX_MOMENTS_F32},
        .compute_threads = options->threads,
        .optimizer_threads = options->threads,
        .machine = &options->machine,
        .machine_compute_threads = options->threads,
        .machine_optimizer_threads = options->threads,
        .budget = {.unified = true,
                   .host_bytes = UINT64_C(21) << 30,
                   .nvme_bytes = store ? out->drive_bytes[0] : 0,
                   .drive_bytes = store ? out->drive_bytes : NULL,
                   .drive_count = store},
        .request = {.tiles = c->tiles,
                    .prefetch_depth = -1,
                    .act_tier = store ? weights : OX_TIER_HOST,
                    .weights_tier = weights,
                    .state_tier = store ? OX_TIER_NVME : OX_TIER_HOST,
                    .grad_tier = weights,
                    .overlap = c->order != OFF,
                    .speculative_units = c->order == SPEC ? (int32_t)model->unit_count / 2 : 0},
        .chunk_elems = CHUNK_ELEMS,
        .nvme_folders = out->folders,
        .nvme_bytes = out->drive_bytes,
        .nvme_count = store,
        .io = store ? options->io : NULL,
        .queue_depth = 16,
        .isa = ox_isa_best()};
}

static struct ox_engine *open_engine(const struct ox_engine_config *config) {
    static const uint64_t run_id[2] = {3, 4};
    struct ox_engine_plan *plan = NULL;
    struct ox_engine *engine = NULL;
    REQUIRE_OK(ox_engine_plan_open(config, &plan));
    REQUIRE_OK(ox_engine_open(config, &plan, &engine));
    if (config->nvme_count > 0) {
        REQUIRE_OK(ox_engine_store_create(engine, run_id));
    }
    harness_load_pattern(engine, config->model);
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
        .step = step, .target_count = (uint64_t)rows * c->micro_batches, .max_grad_norm = c->order == SPEC ? 0 : 1.0,
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

/* Processor seconds of all processes; 0 where /proc/stat is not as expected. */
static double machine_seconds(void) {
    unsigned long long user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0;
    FILE *const file = fopen("/proc/stat", "re");
    if (file == NULL) {
        return 0;
    }
    const int count = fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle, &iowait,
                             &irq, &softirq, &steal);
    fclose(file);
    const double ticks = (double)(user + nice + system + irq + softirq + steal);
    return count == 8 ? ticks / (double)sysconf(_SC_CLK_TCK) : 0;
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

static struct ox_sim_result predict(const struct ox_engine *engine, const struct ox_engine_config *config) {
    const struct ox_engine_plan *const plan = ox_engine_plan_of(engine);
    struct ox_sim_setup setup;
    struct ox_sim *sim = NULL;
    struct ox_sim_result result;
    ox_engine_sim_setup(config, &plan->input, &setup);
    REQUIRE_OK(ox_sim_open(plan->train->task_count, &sim));
    ox_sim_run(sim, plan->train, &setup, &result);
    ox_sim_close(&sim);
    return result;
}

static uint64_t most_resident_bytes(void) {
    char line[128];
    unsigned long long kib = 0;
    FILE *const file = fopen("/proc/self/status", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL && sscanf(line, "VmHWM: %llu kB", &kib) != 1) {
    }
    if (file != NULL) {
        fclose(file);
    }
    return kib * 1024;
}

static void measure(struct ox_engine *engine, const struct step_case *c, const struct options *options,
                    const struct ox_sim_result *predicted, struct outcome *out) {
    struct ox_step_result result;
    struct ox_ops_seconds ops;
    double seconds[ROUNDS_MAX], busy[OX_LANE_COUNT][ROUNDS_MAX];
    const uint32_t warm_steps = c->place == IN_RAM && c->order == OFF ? 1 : 2;
    for (uint32_t i = 0; i < warm_steps; i++) {
        (void)run_step(engine, c, 1 + i, &result);
    }
    ox_engine_take_op_seconds(engine, &ops);
    const double own = own_seconds(), machine = machine_seconds();
    double passed = 0;
    for (uint32_t i = 0; i < options->rounds; i++) {
        seconds[i] = run_step(engine, c, 1 + warm_steps + i, &result);
        passed += seconds[i];
        for (int lane = 0; lane < OX_LANE_COUNT; lane++) {
            busy[lane][i] = result.lane_busy_seconds[lane];
        }
    }
    const double own_passed = own_seconds() - own, machine_passed = machine_seconds() - machine;
    out->others = fmax(machine_passed - own_passed, 0) / (passed * (double)sysconf(_SC_NPROCESSORS_ONLN));
    ox_engine_take_op_seconds(engine, &ops);
    out->measured = median(seconds, options->rounds);
    out->least = seconds[0];
    out->most = seconds[options->rounds - 1];
    if (options->lanes) {
        printf("    processor seconds %.3f predicted %.3f\n", own_passed / options->rounds,
               predicted->used[OX_SIM_CORES] * options->machine.host.cores);
        print_lanes(predicted, busy, options->rounds, &ops);
    }
}

static void run_case(const struct step_case *c, const struct options *options, struct outcome *out) {
    const struct ox_model_config model_config = model_of(c->size);
    struct ox_model *model = NULL;
    struct setting setting;
    REQUIRE_OK(ox_model_build(&model_config, &model));
    set_up(c, model, options, &setting);
    struct ox_engine *engine = open_engine(&setting.engine);
    const struct ox_engine_plan *const plan = ox_engine_plan_of(engine);
    const struct ox_sim_result predicted = predict(engine, &setting.engine);
    *out = (struct outcome){.predicted = predicted.seconds,
                            .host_planned = ox_max_u64(plan->train->peak_bytes[OX_TIER_HOST],
                                                       plan->eval->peak_bytes[OX_TIER_HOST]) +
                                            ox_fixed_overhead_bytes(options->threads, options->threads, 0),
                            .nvme_planned = plan->train->peak_bytes[OX_TIER_NVME]};
    measure(engine, c, options, &predicted, out);
    out->host_seen = most_resident_bytes();
    if (c->place != IN_RAM) {
        struct stat stat_of;
        char path[OX_PATH_BYTES];
        REQUIRE_OK(ox_path_join(options->folder, "offload-store-0.ox", path));
        CHECK(stat(path, &stat_of) == 0);
        out->nvme_seen = (uint64_t)stat_of.st_size;
        ox_engine_close(&engine);
        REQUIRE_OK(options->io->drive_remove(options->io, path));
    }
    ox_engine_close(&engine);
    ox_model_close(&model);
}

/* In a process of its own; false when that failed. */
static bool fork_case(const struct step_case *c, const struct options *options, struct outcome *out) {
    int ends[2], status = 1;
    fflush(stdout);
    if (pipe(ends) != 0) {
        return false;
    }
    const pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        run_case(c, options, out);
        fflush(stdout);
        const bool told = write(ends[1], out, sizeof *out) == (ssize_t)sizeof *out;
        _exit(test_failure_count > 0 || !told);
    }
    close(ends[1]);
    const bool told = read(ends[0], out, sizeof *out) == (ssize_t)sizeof *out;
    close(ends[0]);
    return child > 0 && waitpid(child, &status, 0) == child && status == 0 && told;
}

static void print_outcome(const struct step_case *c, const struct outcome *out) {
    char name[NAME_BYTES];
    printf("| %s | %.3f | %.3f to %.3f | %.0f %% | %.3f | %+.1f %% | %.0f, %.0f |", case_name(c, name), out->measured,
           out->least, out->most, 100 * out->others, out->predicted, 100 * (out->predicted / out->measured - 1),
           (double)out->host_planned / OX_MIB, (double)out->host_seen / OX_MIB);
    if (out->nvme_planned > 0) {
        printf(" %.1f, %.1f", (double)out->nvme_planned / OX_MIB, (double)out->nvme_seen / OX_MIB);
    }
    printf(" |\n");
    fflush(stdout);
}

/* The sums of a run. */
struct tally {
    double errors[CASE_COUNT], worst;
    double host_least, nvme_least; /* used by announced, the case in which that is least */
    uint32_t count, over;          /* cases that used more than was announced */
};

static void add(struct tally *tally, const struct outcome *out) {
    const double error = fabs(out->predicted / out->measured - 1);
    tally->errors[tally->count++] = error;
    tally->worst = fmax(tally->worst, error);
    tally->host_least = fmin(tally->host_least, (double)out->host_seen / (double)out->host_planned);
    if (out->nvme_planned > 0) {
        tally->nvme_least = fmin(tally->nvme_least, (double)out->nvme_seen / (double)out->nvme_planned);
    }
    tally->over += out->host_seen > out->host_planned || out->nvme_seen > out->nvme_planned;
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
    static struct tally tally = {.host_least = 1, .nvme_least = 1};
    char why[160], name[NAME_BYTES];
    parse(argc, argv, &options);
    if (options.folder == NULL) {
        options.folder = test_folder();
    }
    options.io = ox_io_probe(why);
    REQUIRE_OK(ox_machine_load(options.profile, &options.machine));
    printf("| Step: sequences x tokens x micro-batches | Seconds | Rounds | Others | Predicted | | Memory announced, "
           "used (MiB) | Drive planned, used (MiB) |\n|---|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < CASE_COUNT; i++) {
        struct outcome outcome;
        if (options.only != NULL && strstr(case_name(&all_cases[i], name), options.only) == NULL) {
            continue;
        }
        if (fork_case(&all_cases[i], &options, &outcome)) {
            print_outcome(&all_cases[i], &outcome);
            add(&tally, &outcome);
        } else {
            printf("%s failed\n", case_name(&all_cases[i], name));
            test_failure_count++;
        }
    }
    const double middle = tally.count > 0 ? median(tally.errors, tally.count) : 0;
    printf("%u cases: median error %.1f %% (limit %.0f), worst %.1f %% (limit %.0f); of what was announced at least "
           "%.3f of memory and %.4f of the drive was used, and more in %u cases\n", tally.count, 100 * middle,
           100 * MEDIAN_LIMIT, 100 * tally.worst, 100 * WORST_LIMIT, tally.host_least, tally.nvme_least, tally.over);
    return test_end() != 0 ||
           (options.strict && (middle > MEDIAN_LIMIT || tally.worst > WORST_LIMIT || tally.over > 0));
}
