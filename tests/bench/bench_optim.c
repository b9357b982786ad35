/* The optimizer's phase with all state on a drive: reads, checks, updates, hashes and writes every parameter, and
 * commits. Between its runs, on the same drive and with the same bytes, the backend alone transfers them, and the
 * optimizer alone updates as many parameters in memory; `ratio` is the phase's time divided by the longer of the two.
 * It also prints the bytes that the kernel counted for the drive (/proc/diskstats) in the same steps.
 *
 *     bench_optim [--folder PATH] [--layers N] [--rounds N|stdin] [--backend uring|threads] [--depth N] [--threads N]
 *
 * --threads: those of the update; all processors without it.
 * With `--rounds stdin` the phase alone runs, once for each line that comes, so that other programs can take turns
 * with it: it prints `ready PARAMETERS` first, then `round SECONDS` each time.
 *
 * Exits 1 when the median ratio is above its limit, or when bytes differ from the plan's. */
#include "base/arena.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "cpu_optim/optim.h"
#include "engine/step/engine.h"
#include "tests/kit/run/harness.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum {
    HIDDEN = 1024, HEADS = 16, HEAD_DIM = 64, WIDTH = 2816, VOCAB = 8192, CONTEXTS = 64,
    LAYERS = 15, SEQ = 8, ROUNDS = 5, ROUNDS_MAX = 64, CHUNK_ELEMS = 262144,
};

#define RATIO_LIMIT 1.10
static const uint64_t HOST_BYTES = 512 * OX_MIB;
static const uint64_t DRIVE_BYTES = UINT64_C(64) << 30;

struct options {
    const char *folder;
    const struct ox_io_backend *io;
    uint32_t layers, rounds, depth, threads;
    bool asked; /* each round waits for a line on stdin */
};

static const uint64_t run_id[2] = {1, 2};

static struct ox_model_config model_config(uint32_t layers) {
    return (struct ox_model_config){
        .family = "llama", .vocab = VOCAB, .hidden = HIDDEN, .layers = layers, .heads = HEADS, .kv_heads = HEADS,
        .head_dim = HEAD_DIM, .width = WIDTH, .contexts = CONTEXTS, .norm = OX_NORM_RMS, .act = OX_ACTIVATION_SWIGLU,
        .layout = OX_WEIGHT_OUT_IN, .norm_eps = 1e-5f, .rope = true, .rope_theta = 10000.0, .rotary_part = 1.0,
        .rotary_dim = HEAD_DIM, .tied = true, .init_range = 0.02, .bos_id = -1, .eos_id = -1};
}

/* ---- the engine -------------------------------------------------------------------------------------- */

static struct ox_engine *open_engine(const struct ox_model *model, const struct options *options) {
    static const uint64_t drive_bytes[1] = {UINT64_C(64) << 30};
    static const char *folders[1];
    folders[0] = options->folder;
    const struct ox_engine_config config = {
        .model = model, .batch = 1, .seq = SEQ, .micro_batches = 1, .dtype = OX_COMPUTE_FP32,
        .compute_threads = options->threads, .optimizer_threads = options->threads,
        .budget = {.unified = true, .host_bytes = HOST_BYTES, .nvme_bytes = DRIVE_BYTES,
                   .drive_bytes = drive_bytes, .drive_count = 1},
        .request = {.prefetch_depth = -1, .act_tier = OX_TIER_COUNT, .weights_tier = OX_TIER_NVME,
                 .state_tier = OX_TIER_NVME, .grad_tier = OX_TIER_NVME},
        .chunk_elems = CHUNK_ELEMS, .nvme_folders = folders, .nvme_bytes = drive_bytes, .nvme_count = 1,
        .io = options->io, .queue_depth = options->depth, .isa = ox_isa_best()};
    struct ox_engine_plan *plan = NULL;
    struct ox_engine *engine = NULL;
    REQUIRE_OK(ox_engine_plan_open(&config, &plan));
    REQUIRE_OK(ox_engine_open(&config, &plan, &engine));
    REQUIRE_OK(ox_engine_store_create(engine, run_id));
    harness_load_pattern(engine, model);
    return engine;
}

/* Bytes that the block device of the folder has read and written so far; zeros where the kernel does not count them. */
struct traffic {
    uint64_t read, written;
};

static struct traffic drive_traffic(const char *folder) {
    struct stat info;
    struct traffic traffic = {0, 0};
    FILE *const file = stat(folder, &info) == 0 ? fopen("/proc/diskstats", "r") : NULL;
    char line[512];
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        unsigned major_number, minor_number;
        unsigned long long reads, merged, sectors_read, ms, writes, merged_writes, sectors_written;
        if (sscanf(line, "%u %u %*s %llu %llu %llu %llu %llu %llu %llu", &major_number, &minor_number, &reads, &merged,
                   &sectors_read, &ms, &writes, &merged_writes, &sectors_written) == 9 &&
            major_number == major(info.st_dev) && minor_number == minor(info.st_dev)) {
            traffic = (struct traffic){sectors_read * 512, sectors_written * 512};
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return traffic;
}

/* Adds what a step counts for the drive. */
static void count_traffic(const struct ox_plan *plan, struct traffic *sum) {
    for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
        sum->read += plan->traffic[OX_LINK_NVME_READ][kind];
        sum->written += plan->traffic[OX_LINK_NVME_WRITE][kind];
    }
}

/* Seconds of the optimizer's lane: its tasks and the commit, from the norm to the last flush. */
static double run_phase(struct ox_engine *engine, uint64_t step) {
    const struct ox_batch batch = ox_engine_batch(engine, 0);
    for (int i = 0; i < SEQ; i++) {
        batch.ids[i] = (int32_t)((step * 37 + (uint64_t)i * 11) % VOCAB);
        batch.targets[i] = (int32_t)((step * 41 + (uint64_t)i * 13) % VOCAB);
    }
    const struct ox_step_input input = {
        .step = step, .target_count = SEQ, .max_grad_norm = 1.0,
        .adam = {.learning_rate = 1e-5, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = step}};
    struct ox_step_result result;
    REQUIRE_OK(ox_engine_step(engine, &input, &result));
    const struct ox_plan *const plan = ox_engine_plan_of(engine)->train;
    CHECK(memcmp(result.traffic, plan->traffic, sizeof result.traffic) == 0);
    return result.lane_busy_seconds[OX_LANE_ADAM];
}

/* ---- the drive alone ----------------------------------------------------------------------------------- */

/* Bytes per parameter: its gradient is read too. */
enum { REQ_BYTES = OX_IO_REQ_BYTES_MAX, READ_WIDTH = 16, WRITE_WIDTH = 12 };

struct rig {
    const struct ox_io_backend *io;
    struct ox_drive *drive;
    struct ox_io_queue *queue;
    struct ox_arena arena;
    uint64_t read_bytes, write_bytes;
    uint32_t depth;
};

static void rig_open(const struct options *options, uint64_t params, struct rig *rig) {
    char path[OX_PATH_BYTES];
    *rig = (struct rig){.io = options->io, .depth = options->depth,
                        .read_bytes = params * READ_WIDTH / REQ_BYTES * REQ_BYTES,
                        .write_bytes = params * WRITE_WIDTH / REQ_BYTES * REQ_BYTES};
    REQUIRE_OK(ox_path_join(options->folder, "bench-optim.raw", path));
    REQUIRE_OK(ox_arena_open("benchmark", (uint64_t)rig->depth * REQ_BYTES, NULL, &rig->arena));
    memset(rig->arena.base, 0x5a, rig->arena.bytes);
    REQUIRE_OK(rig->io->drive_open(rig->io, path, OX_DRIVE_CREATE, &rig->drive));
    REQUIRE_OK(rig->io->drive_allocate(rig->drive, rig->read_bytes + rig->write_bytes));
    REQUIRE_OK(rig->io->queue_open(rig->io, &rig->drive, 1, rig->depth, &rig->queue));
    rig->io->queue_register(rig->queue, &(struct ox_io_region){rig->arena.base, rig->arena.bytes}, 1);
}

static void rig_close(const struct options *options, struct rig *rig) {
    char path[OX_PATH_BYTES];
    rig->io->queue_close(rig->queue);
    rig->io->drive_close(rig->drive);
    REQUIRE_OK(ox_path_join(options->folder, "bench-optim.raw", path));
    REQUIRE_OK(rig->io->drive_remove(rig->io, path));
    ox_arena_close(&rig->arena);
}

/* Both kinds in step with each other, `depth` requests in flight, and a flush as the commit has. With `fill` everything
 * is written once, so that reads find data. */
static double rig_run(struct rig *rig, bool fill) {
    const uint64_t total[2] = {fill ? 0 : rig->read_bytes, rig->write_bytes + (fill ? rig->read_bytes : 0)};
    uint64_t done[2] = {0, 0};
    uint32_t in_flight = 0, free_slot = 0, slots[64];
    for (uint32_t i = 0; i < rig->depth; i++) {
        slots[i] = i;
    }
    const uint64_t begin_ns = ox_clock_ns();
    while (done[0] < total[0] || done[1] < total[1] || in_flight > 0) {
        while (in_flight < rig->depth && (done[0] < total[0] || done[1] < total[1])) {
            const bool write = done[0] * (double)total[1] > done[1] * (double)total[0] || done[0] == total[0];
            const uint32_t slot = slots[free_slot++];
            const struct ox_io_req req = {
                .kind = write ? OX_IO_WRITE : OX_IO_READ, .buffer = rig->arena.base + (uint64_t)slot * REQ_BYTES,
                .offset = done[write] + (write && !fill ? rig->read_bytes : 0), .bytes = REQ_BYTES, .tag = slot};
            REQUIRE_OK(rig->io->queue_submit(rig->queue, 0, &req));
            done[write] += REQ_BYTES;
            in_flight++;
        }
        struct ox_io_done completion;
        REQUIRE_OK(rig->io->queue_reap(rig->queue, &completion));
        CHECK(completion.status == OX_OK);
        slots[--free_slot] = (uint32_t)completion.tag;
        in_flight--;
    }
    REQUIRE_OK(rig->io->drive_flush(rig->drive));
    return (double)(ox_clock_ns() - begin_ns) * 1e-9;
}

/* ---- the optimizer alone -------------------------------------------------------------------------------- */

enum { ALONE_PARAMS = 48 << 20 };

struct alone {
    struct ox_pool *pool;
    struct ox_arena arena; /* hi | state | gradient */
};

static void alone_open(const struct options *options, struct alone *alone) {
    const struct ox_state_format format = {OX_OPTIM_ADAMW, OX_MOMENTS_F32, false};
    const uint64_t bytes = ALONE_PARAMS * (uint64_t)6 + ox_state_layout_of(format, ALONE_PARAMS).bytes;
    REQUIRE_OK(ox_pool_open(options->threads, &alone->pool));
    REQUIRE_OK(ox_arena_open("benchmark", bytes, alone->pool, &alone->arena));
    memset(alone->arena.base, 0, alone->arena.bytes);
}

static void alone_close(struct alone *alone) {
    ox_pool_close(&alone->pool);
    ox_arena_close(&alone->arena);
}

/* Chunk by chunk, as the phase does; scaled to as many parameters. */
static double alone_run(struct alone *alone, uint64_t params, uint64_t step) {
    const struct ox_state_format format = {OX_OPTIM_ADAMW, OX_MOMENTS_F32, false};
    const uint64_t state_bytes = ox_state_layout_of(format, CHUNK_ELEMS).bytes;
    const uint64_t slot_bytes = CHUNK_ELEMS * (uint64_t)6 + state_bytes;
    const struct ox_optim_settings settings = {
        .learning_rate = 1e-5, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .grad_scale = 1,
        .step = step};
    struct ox_optim_hyper hyper;
    ox_optim_hyper_init(&settings, &hyper);
    const uint64_t begin_ns = ox_clock_ns();
    for (uint64_t i = 0; i < ALONE_PARAMS / CHUNK_ELEMS; i++) {
        unsigned char *const slot = alone->arena.base + i * slot_bytes;
        unsigned char *const state = slot + CHUNK_ELEMS * (uint64_t)2;
        const struct ox_update_span span = {
            .hi = (uint16_t *)slot, .hi_out = (uint16_t *)slot,
            .state = ox_state_planes_at(format, state, CHUNK_ELEMS, 0), .grad = state + state_bytes,
            .grad_dtype = OX_GRAD_F32, .decay = true, .first = i * CHUNK_ELEMS, .count = CHUNK_ELEMS};
        CHECK(ox_update_run_pool(alone->pool, ox_isa_best(), format, &span, &hyper) == 0);
    }
    return (double)(ox_clock_ns() - begin_ns) * 1e-9 * (double)params / ALONE_PARAMS;
}

/* ---- the report ------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *values, uint32_t count) {
    double sorted[ROUNDS_MAX];
    memcpy(sorted, values, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, by_value);
    return count % 2 == 1 ? sorted[count / 2] : 0.5 * (sorted[count / 2 - 1] + sorted[count / 2]);
}

static struct options parse(int argc, char **argv) {
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    struct options options = {.folder = test_folder(), .io = ox_io_by_name("auto"), .layers = LAYERS, .rounds = ROUNDS,
                              .depth = 16, .threads = cores > 0 ? (uint32_t)cores : 1};
    for (int i = 1; i + 1 < argc; i += 2) {
        const unsigned long number = strtoul(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--folder") == 0) {
            options.folder = argv[i + 1];
        } else if (strcmp(argv[i], "--layers") == 0) {
            options.layers = (uint32_t)number;
        } else if (strcmp(argv[i], "--rounds") == 0 && strcmp(argv[i + 1], "stdin") == 0) {
            options.asked = true;
        } else if (strcmp(argv[i], "--rounds") == 0 && number > 0 && number <= ROUNDS_MAX) {
            options.rounds = (uint32_t)number;
        } else if (strcmp(argv[i], "--depth") == 0 && number > 0 && number <= 64) {
            options.depth = (uint32_t)number;
        } else if (strcmp(argv[i], "--threads") == 0 && number > 0 && number <= 256) {
            options.threads = (uint32_t)number;
        } else if (strcmp(argv[i], "--backend") == 0) {
            options.io = ox_io_by_name(argv[i + 1]);
        } else {
            printf("bench_optim [--folder PATH] [--layers N] [--rounds N|stdin] [--backend uring|threads] "
                   "[--depth N] [--threads N]\n");
            exit(2);
        }
    }
    return options;
}

/* Rounds of the phase, each when a line asks for it. */
static void run_asked(struct ox_engine *engine, uint64_t params) {
    char line[16];
    uint64_t step = 1;
    (void)run_phase(engine, step);
    printf("ready %llu\n", (unsigned long long)params);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL) {
        printf("round %.6f\n", run_phase(engine, ++step));
        fflush(stdout);
    }
}

int main(int argc, char **argv) {
    const struct options options = parse(argc, argv);
    const struct ox_model_config config = model_config(options.layers);
    struct ox_model *model = NULL;
    struct rig rig;
    struct alone alone;
    struct traffic seen = {0, 0}, counted = {0, 0};
    double ratios[ROUNDS_MAX], phases[ROUNDS_MAX], drives[ROUNDS_MAX], updates[ROUNDS_MAX];
    REQUIRE_OK(ox_model_build(&config, &model));
    struct ox_engine *engine = open_engine(model, &options);
    uint64_t params = 0;
    for (uint32_t i = 0; i < model->unit_count; i++) {
        params += model->units[i].elem_count;
    }
    if (options.asked) {
        run_asked(engine, params);
        ox_engine_close(&engine);
        ox_model_close(&model);
        return test_end();
    }
    rig_open(&options, params, &rig);
    alone_open(&options, &alone);
    (void)rig_run(&rig, true);
    (void)run_phase(engine, 1);
    printf("%.1f M parameters on %s (%s), %u rounds, host budget %llu MiB\n", (double)params * 1e-6, options.folder,
           options.io->name, options.rounds, (unsigned long long)(HOST_BYTES / OX_MIB));
    for (uint32_t i = 0; i < options.rounds; i++) {
        drives[i] = rig_run(&rig, false);
        const struct traffic before = drive_traffic(options.folder);
        phases[i] = run_phase(engine, i + 2);
        const struct traffic after = drive_traffic(options.folder);
        seen.read += after.read - before.read;
        seen.written += after.written - before.written;
        count_traffic(ox_engine_plan_of(engine)->train, &counted);
        updates[i] = alone_run(&alone, params, i + 1);
        const double floor = drives[i] > updates[i] ? drives[i] : updates[i];
        ratios[i] = phases[i] / floor;
        printf("round %u: phase %.3f s, drive alone %.3f s (%.2f GB/s), update alone %.3f s, ratio %.3f\n", i + 1,
               phases[i], drives[i], (double)(rig.read_bytes + rig.write_bytes) / drives[i] * 1e-9, updates[i],
               ratios[i]);
        fflush(stdout);
    }
    const double ratio = median(ratios, options.rounds);
    printf("optimizer phase: %.3f s, drive %.3f s, update %.3f s; ratio %.3f (limit %.2f)\n",
           median(phases, options.rounds), median(drives, options.rounds), median(updates, options.rounds), ratio,
           RATIO_LIMIT);
    printf("bytes of the steps: read %.3f GB counted, %.4f of it seen by the kernel; written %.3f GB, %.4f\n",
           (double)counted.read * 1e-9, (double)seen.read / (double)counted.read, (double)counted.written * 1e-9,
           (double)seen.written / (double)counted.written);
    ox_engine_close(&engine);
    alone_close(&alone);
    rig_close(&options, &rig);
    ox_model_close(&model);
    CHECK(ratio <= RATIO_LIMIT);
    return test_end();
}
