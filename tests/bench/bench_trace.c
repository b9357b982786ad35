/* What recording a run costs: steps with a trace and steps without one, in the same process and in turn, so that
 * whatever else the machine does meets both. Ratios of neighbours are taken before their median; the interval is that
 * of the median, by their order.
 *
 *     bench_trace [--json] [--case NAME] [--seconds N]      of each case
 *
 * "small" is the worst case: a model so small that a task takes some microseconds, in three tiers, many micro-batches.
 * "drive" has steps of an ordinary length, overlapped, the optimizer's stream on a drive. Exits 1 when the processor
 * time of either is beyond the limit. */
#include "base/clock.h"
#include "base/file.h"
#include "base/prng/prng.h"
#include "engine/step/tracing.h"
#include "tests/kit/run/harness.h"
#include "tests/kit/test.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Processor time with a trace divided by that without one, at most. */
#define LIMIT 1.01

enum { PAIRS_MAX = 4096, TRACE_BYTES = 64 << 20, PAIRS_MIN = 8, PUTS = 400000 };

struct bench_case {
    const char *name;
    uint32_t hidden, width, layers, batch, seq, micro_batches;
    struct harness_place place;
};

static const struct bench_case cases[] = {
    {.name = "small", .hidden = 64, .width = 128, .layers = 8, .batch = 1, .seq = 32, .micro_batches = 4,
     .place = {.name = "three tiers",
               .request = {2, 1, OX_TIER_HOST, OX_TIER_HOST, OX_TIER_HOST, OX_TIER_HOST, 1, 0, false},
               .chunk_elems = 8192, .optimizer_threads = 1}},
    {.name = "drive", .hidden = 384, .width = 1024, .layers = 6, .batch = 2, .seq = 128, .micro_batches = 2,
     .place = {.name = "on drives", .store = true, .drives = 3, .uring = true,
               .request = {1, 2, OX_TIER_HOST, OX_TIER_NVME, OX_TIER_NVME, OX_TIER_HOST, 1, 2, false},
               .chunk_elems = 65536, .optimizer_threads = 2}},
};

struct options {
    bool json;
    const char *only;
    double seconds;
};

struct sample {
    double wall, processor; /* seconds of a step */
};

static double processor_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- steps ------------------------------------------------------------------------------------------ */

static void write_model(const struct bench_case *given, char path[OX_PATH_BYTES]) {
    REQUIRE_OK(ox_path_join(test_folder(), "model.json", path));
    FILE *const file = fopen(path, "w");
    CHECK(file != NULL);
    if (file == NULL) {
        exit(1);
    }
    fprintf(file, "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"vocab_size\": 256, "
            "\"hidden_size\": %u, \"intermediate_size\": %u, \"num_hidden_layers\": %u, \"num_attention_heads\": 4, "
            "\"num_key_value_heads\": 4, \"max_position_embeddings\": 512, \"rms_norm_eps\": 1e-5, "
            "\"rope_theta\": 10000.0, \"tie_word_embeddings\": true, \"hidden_act\": \"silu\"}\n",
            given->hidden, given->width, given->layers);
    CHECK(fclose(file) == 0);
}

static void run_step(struct ox_engine *engine, const struct bench_case *given, uint64_t step) {
    const uint32_t rows = given->batch * given->seq;
    for (uint32_t i = 0; i < given->micro_batches; i++) {
        const struct ox_batch batch = ox_engine_batch(engine, i);
        for (uint32_t row = 0; row < rows; row++) {
            uint32_t words[4];
            ox_philox(step, i, row, words);
            batch.ids[row] = (int32_t)(words[0] % 256);
            batch.targets[row] = (int32_t)(words[1] % 256);
        }
    }
    const struct ox_step_input input = {
        .step = step, .target_count = (uint64_t)given->micro_batches * rows,
        .adam = {.learning_rate = 1e-5, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .step = step}};
    struct ox_step_result result;
    REQUIRE_OK(ox_engine_step(engine, &input, &result));
    CHECK(result.finite);
}

/* A pause lets the writer finish: records written after a step's end count too. */
static struct sample take(struct ox_engine *engine, const struct bench_case *given, bool traced, uint64_t step) {
    enum { PAUSE_US = 1000 };
    ox_engine_trace_pause(engine, !traced);
    const uint64_t begin_ns = ox_clock_ns();
    const double before = processor_seconds();
    run_step(engine, given, step);
    const double wall = (double)(ox_clock_ns() - begin_ns) * 1e-9;
    usleep(PAUSE_US);
    return (struct sample){.wall = wall, .processor = processor_seconds() - before};
}

/* ---- figures ---------------------------------------------------------------------------------------- */

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct figure {
    double median, low, high; /* 95 in 100 such intervals hold the true median */
};

static struct figure figure_of(double *values, uint32_t count) {
    qsort(values, count, sizeof *values, compare_doubles);
    const uint32_t away = (uint32_t)(0.98 * sqrt(count)), middle = count / 2;
    return (struct figure){.median = 0.5 * (values[(count - 1) / 2] + values[count / 2]),
                           .low = values[middle > away ? middle - away : 0],
                           .high = values[middle + away < count ? middle + away : count - 1]};
}

struct outcome {
    uint32_t pairs;
    double step_seconds, records; /* seconds of a step without a trace; records of a step with one */
    struct figure wall, processor, record_ns;
};

static struct outcome summarise(const struct sample (*pairs)[2], uint32_t count, double records) {
    static double values[PAIRS_MAX];
    struct outcome out = {.pairs = count, .records = records};
    for (uint32_t i = 0; i < count; i++) {
        values[i] = pairs[i][0].wall;
    }
    out.step_seconds = figure_of(values, count).median;
    for (uint32_t i = 0; i < count; i++) {
        values[i] = pairs[i][1].wall / pairs[i][0].wall;
    }
    out.wall = figure_of(values, count);
    for (uint32_t i = 0; i < count; i++) {
        values[i] = pairs[i][1].processor / pairs[i][0].processor;
    }
    out.processor = figure_of(values, count);
    for (uint32_t i = 0; i < count; i++) {
        values[i] = (pairs[i][1].processor - pairs[i][0].processor) * 1e9 / records;
    }
    out.record_ns = figure_of(values, count);
    return out;
}

/* Which of a pair comes first changes from pair to pair. */
static struct outcome run_case(const struct bench_case *given, double seconds) {
    static struct sample pairs[PAIRS_MAX][2];
    struct harness harness;
    struct ox_trace *trace = NULL;
    char model[OX_PATH_BYTES], path[OX_PATH_BYTES];
    write_model(given, model);
    REQUIRE_OK(ox_path_join(test_folder(), "trace.bin", path));
    const struct harness_run run = {.model_folder = model, .batch = given->batch, .seq = given->seq,
                                    .micro_batches = given->micro_batches, .dtype = OX_COMPUTE_BF16,
                                    .compute_threads = 1};
    harness_open(&run, &given->place, &harness);
    REQUIRE_OK(ox_engine_trace(harness.engine, &(struct ox_tracing_config){
        .path = path, .title = "what recording costs", .bytes_max = TRACE_BYTES}));
    uint64_t step = 0;
    uint32_t count = 0, traced = 1;
    take(harness.engine, given, true, ++step);
    take(harness.engine, given, false, ++step);
    for (const uint64_t begin_ns = ox_clock_ns(); count < PAIRS_MAX; count++) {
        if (count >= PAIRS_MIN && (double)(ox_clock_ns() - begin_ns) * 1e-9 > seconds) {
            break;
        }
        for (int i = 0; i < 2; i++) {
            const bool on = (i + count) % 2 == 1;
            pairs[count][on] = take(harness.engine, given, on, ++step);
            traced += on;
        }
    }
    harness_close(&harness);
    REQUIRE_OK(ox_trace_open(path, 1, &trace));
    const uint64_t records = trace->count > 0 ? trace->records[0].seq + 1 : 0;
    ox_trace_close(&trace);
    return summarise(pairs, count, (double)records / traced);
}

/* Time of putting a record, without a step around it. */
static double put_ns(void) {
    char path[OX_PATH_BYTES];
    struct ox_trace *trace = NULL;
    struct ox_trace_writer *writer = NULL;
    REQUIRE_OK(ox_path_join(test_folder(), "trace.bin", path));
    REQUIRE_OK(ox_trace_open(path, 1, &trace));
    struct ox_trace_header *const head = trace->head;
    struct ox_trace_record record = trace->records[0];
    REQUIRE_OK(ox_path_join(test_folder(), "puts.bin", path));
    REQUIRE_OK(ox_trace_writer_open(path, head, TRACE_BYTES, &writer));
    uint64_t ns = 0;
    for (uint32_t i = 0; i < PUTS; i += 1000) {
        const uint64_t begin_ns = ox_clock_ns();
        for (uint32_t k = 0; k < 1000; k++) {
            record.bytes = i + k;
            ox_trace_writer_put(writer, &record);
        }
        ns += ox_clock_ns() - begin_ns;
        usleep(200); /* the other thread writes */
    }
    ox_trace_writer_close(&writer);
    ox_trace_close(&trace);
    return (double)ns / PUTS;
}

/* ---- report ------------------------------------------------------------------------------------------ */

static void tell(const struct bench_case *given, const struct outcome *out, bool json) {
    if (json) {
        printf("{\"name\":\"trace.%s.processor\",\"value\":%.5f,\"unit\":\"1\",\"limit\":%.2f,\"ratio\":%.5f,"
               "\"low\":%.5f,\"high\":%.5f},\n", given->name, out->processor.median, LIMIT,
               LIMIT / out->processor.median, out->processor.low, out->processor.high);
        printf(" {\"name\":\"trace.%s.wall\",\"value\":%.5f,\"unit\":\"1\",\"limit\":null,\"ratio\":null,"
               "\"low\":%.5f,\"high\":%.5f},\n", given->name, out->wall.median, out->wall.low, out->wall.high);
        printf(" {\"name\":\"trace.%s.record\",\"value\":%.1f,\"unit\":\"ns\",\"limit\":null,\"ratio\":null},\n ",
               given->name, out->record_ns.median);
        return;
    }
    printf("%s: %u pairs of steps of %.3f ms, %.0f records a step\n", given->name, out->pairs,
           out->step_seconds * 1e3, out->records);
    printf("  with a trace, of without:  processor %.4f (%.4f to %.4f; limit %.2f), wall %.4f (%.4f to %.4f)\n",
           out->processor.median, out->processor.low, out->processor.high, LIMIT, out->wall.median, out->wall.low,
           out->wall.high);
    printf("  a record: %.0f ns of a processor (%.0f to %.0f)\n", out->record_ns.median, out->record_ns.low,
           out->record_ns.high);
}

static struct options parse(int argc, char **argv) {
    struct options options = {.seconds = 20};
    for (int i = 1; i < argc; i++) {
        const bool more = i + 1 < argc;
        if (strcmp(argv[i], "--json") == 0) {
            options.json = true;
        } else if (more && strcmp(argv[i], "--case") == 0) {
            options.only = argv[++i];
        } else if (more && strcmp(argv[i], "--seconds") == 0) {
            options.seconds = strtod(argv[++i], NULL);
        } else {
            options.seconds = 0;
        }
    }
    if (!(options.seconds > 0)) {
        fprintf(stderr, "usage: %s [--json] [--case small|drive] [--seconds N]\n", argv[0]);
        exit(2);
    }
    return options;
}

int main(int argc, char **argv) {
    const struct options options = parse(argc, argv);
    bool kept = true;
    fputs(options.json ? "[" : "", stdout);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (options.only != NULL && strcmp(options.only, cases[i].name) != 0) {
            continue;
        }
        const struct outcome out = run_case(&cases[i], options.seconds);
        tell(&cases[i], &out, options.json);
        kept = kept && out.processor.median <= LIMIT;
    }
    const double ns = put_ns();
    printf(options.json ? "{\"name\":\"trace.put\",\"value\":%.1f,\"unit\":\"ns\",\"limit\":null,\"ratio\":null}]\n"
                        : "putting a record: %.0f ns\n", ns);
    return kept && test_failure_count == 0 ? 0 : 1;
}
