/* How much of a training step is GEMMs: a Llama-style model of about 100 M parameters trains on random
 * tokens, all in memory, fp32, and between the steps OpenBLAS alone, with its own threads, computes the GEMMs
 * of one step: same shapes, same number of threads. `ratio` is that time divided by the step's.
 *
 *     bench_step [--json] [--threads N] [--rounds N]
 *     bench_step --memory [--bf16]     resident memory beside the arenas, for 1, 2, 4 ... N threads
 *     bench_step --bf16 [--threads N] [--rounds N]     what --dtype bf16 gains: steps in fp32 and in bf16 in turn
 *
 * Both are taken in turn, so that what else runs on the machine slows both, and the median of the rounds counts. Exits
 * 1 when the ratio is below its limit. */
#include "base/arena.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/planes.h"
#include "base/prng/prng.h"
#include "engine/step/engine.h"
#include "kernels/device.h"
#include "tests/kit/test.h"

#include <cblas.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    HIDDEN = 768, LAYERS = 12, HEADS = 12, HEAD_DIM = 64, WIDTH = 2048, VOCAB = 16384, CONTEXTS = 1024,
    BATCH = 4, SEQ = 512, MICRO_BATCHES = 2, ROWS = BATCH * SEQ,
    ROUNDS_MAX = 64,
    /* Rows and words that the head takes at a time at this shape (kernels/cpu/head.c). */
    HEAD_ROWS = 1024, HEAD_WORDS = 4096,
    /* Queries that attention by this library takes at a time: with their keys they are one GEMM at this length. The
     * engine's own attention has smaller products, and leaves out more of the diagonal. */
    QUERIES = 128,
};

#define RATIO_LIMIT 0.85

struct options {
    bool json, memory, bf16;
    uint32_t threads, rounds;
};

/* ---- the model --------------------------------------------------------------------------------- */

static const struct ox_model_config model_config = {
    .family = "llama",
    .vocab = VOCAB, .hidden = HIDDEN, .layers = LAYERS, .heads = HEADS, .kv_heads = HEADS, .head_dim = HEAD_DIM,
    .width = WIDTH, .contexts = CONTEXTS,
    .norm = OX_NORM_RMS, .act = OX_ACTIVATION_SWIGLU, .layout = OX_WEIGHT_OUT_IN, .norm_eps = 1e-5f,
    .rope = true, .rope_theta = 10000.0, .rotary_part = 1.0, .rotary_dim = HEAD_DIM, .tied = true, .init_range = 0.02,
    .bos_id = -1, .eos_id = -1,
};

/* Fresh weights need no normal distribution to be as fast as any: a uniform one of the same deviation is cheaper. */
static float fresh_value(const struct ox_tensor *tensor, uint64_t idx) {
    if (tensor->init == OX_INIT_ONE || tensor->init == OX_INIT_ZERO) {
        return tensor->init == OX_INIT_ONE ? 1.0f : 0.0f;
    }
    uint32_t word = (uint32_t)(tensor->offset + idx) * 2654435761u + tensor->unit_idx * 40503u;
    word = (word ^ word >> 15) * 2246822519u;
    word ^= word >> 13;
    return ((float)word * 0x1p-32f - 0.5f) * 0.07f;
}

static void load_chunk(struct ox_engine *engine, const struct ox_model *model, uint32_t unit_idx, uint32_t chunk_idx) {
    struct ox_chunk_view view;
    ox_engine_chunk_view(engine, unit_idx, chunk_idx, &view);
    ox_chunk_clear(&view);
    memset(view.values, 0, view.count * sizeof *view.values);
    const struct ox_unit *const unit = &model->units[unit_idx];
    for (const struct ox_tensor *tensor = NULL; (tensor = ox_unit_next_tensor(model, unit, tensor)) != NULL;) {
        const uint64_t begin = ox_max_u64(tensor->offset, view.first);
        const uint64_t end = ox_min_u64(tensor->offset + tensor->count, view.first + view.count);
        for (uint64_t at = begin; at < end; at++) {
            view.values[at - view.first] = fresh_value(tensor, at - tensor->offset);
        }
    }
    CHECK(ox_chunk_values_set(&view, OX_PLANE_MASTER) == 0);
    REQUIRE_OK(ox_engine_chunk_put(engine, unit_idx, chunk_idx, &view));
}

static struct ox_engine *open_engine(const struct ox_model *model, const struct options *options, bool fp32) {
    const struct ox_engine_config config = {
        .model = model,
        .batch = BATCH, .seq = SEQ, .micro_batches = MICRO_BATCHES,
        .dtype = fp32 ? OX_COMPUTE_FP32 : OX_COMPUTE_BF16,
        .compute_threads = options->threads,
        .budget = {.unified = true, .host_bytes = UINT64_C(64) << 30},
        .request = {.prefetch_depth = -1, .act_tier = OX_TIER_COUNT, .weights_tier = OX_TIER_COUNT,
                 .state_tier = OX_TIER_COUNT, .grad_tier = OX_TIER_COUNT},
        .chunk_elems = UINT64_C(1) << 18,
        .optimizer_threads = options->threads,
        .isa = ox_isa_best(),
    };
    struct ox_engine_plan *plan = NULL;
    struct ox_engine *engine = NULL;
    REQUIRE_OK(ox_engine_plan_open(&config, &plan));
    REQUIRE_OK(ox_engine_open(&config, &plan, &engine));
    REQUIRE_OK(ox_engine_load_begin(engine, 0));
    for (uint32_t i = 0; i < model->unit_count; i++) {
        for (uint32_t j = 0; j < ox_engine_chunk_count(engine, i); j++) {
            load_chunk(engine, model, i, j);
        }
    }
    REQUIRE_OK(ox_engine_load_commit(engine, NULL, 0));
    return engine;
}

static uint64_t arena_bytes(const struct ox_engine *engine) {
    const struct ox_engine_plan *const plan = ox_engine_plan_of(engine);
    return ox_engine_plan_peak_bytes(plan, OX_TIER_HOST);
}

static void fill_batches(struct ox_engine *engine, uint64_t step) {
    for (uint32_t i = 0; i < MICRO_BATCHES; i++) {
        const struct ox_batch batch = ox_engine_batch(engine, i);
        for (uint32_t row = 0; row < ROWS; row++) {
            uint32_t words[4];
            ox_philox(step, i, row, words);
            batch.ids[row] = (int32_t)(words[0] % VOCAB);
            batch.targets[row] = (int32_t)(words[1] % VOCAB);
        }
    }
}

/* Processor seconds of this process. */
static double own_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- one step, in parts ------------------------------------------------------------------------- */

enum part {
    PART_GEMMS, PART_ATTENTION, PART_NORMS, PART_ACTIVATION, PART_HEAD, PART_OTHER, PART_OPTIMIZER, PART_WAITING,
    PART_COUNT
};

static const char *const part_names[PART_COUNT] = {
    "block GEMMs", "attention", "norms", "activation", "head", "rotation, planes, zeroing", "optimizer", "waiting",
};

/* Names of the parts in JSON. */
static const char *const part_keys[PART_COUNT] = {
    "block_products", "attention", "norms", "activation", "head", "other_operations", "optimizer", "waiting",
};

struct step_time {
    double seconds, work; /* by the clock, of processors */
    double parts[PART_COUNT];
    double beside; /* norms of gradients, on a lane of their own while compute runs */
};

/* Compute and the optimizer take turns within a step, so what neither of them fills is waiting. */
static void run_step(struct ox_engine *engine, uint64_t step, struct step_time *out) {
    fill_batches(engine, step);
    const struct ox_step_input input = {
        .step = step,
        .target_count = MICRO_BATCHES * ROWS,
        .adam = {.learning_rate = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = step},
        .max_grad_norm = 1.0,
    };
    struct ox_ops_seconds ops;
    ox_engine_take_op_seconds(engine, &ops);
    struct ox_step_result result;
    const double before = own_seconds();
    REQUIRE_OK(ox_engine_step(engine, &input, &result));
    const double work = own_seconds() - before;
    ox_engine_take_op_seconds(engine, &ops);
    if (!result.finite || !(result.loss < 2.0 * log(VOCAB))) {
        printf("step %u: the loss is %g, so this is no training that could be measured\n", (unsigned)step, result.loss);
        exit(1);
    }
    static const enum part part_of[OX_OPS_GROUP_COUNT] = {
        [OX_OPS_MATMUL] = PART_GEMMS, [OX_OPS_ATTENTION] = PART_ATTENTION, [OX_OPS_NORM] = PART_NORMS,
        [OX_OPS_ACT] = PART_ACTIVATION, [OX_OPS_HEAD] = PART_HEAD, [OX_OPS_OTHER] = PART_OTHER,
    };
    *out = (struct step_time){.seconds = result.seconds, .work = work,
                              .beside = result.lane_busy_seconds[OX_LANE_REDUCE]};
    for (int group = 0; group < OX_OPS_GROUP_COUNT; group++) {
        out->parts[part_of[group]] += ops.seconds[group];
    }
    out->parts[PART_OPTIMIZER] = result.lane_busy_seconds[OX_LANE_ADAM];
    out->parts[PART_WAITING] = result.seconds;
    for (int part = 0; part < PART_WAITING; part++) {
        out->parts[PART_WAITING] -= out->parts[part];
    }
}

/* ---- its GEMMs alone ------------------------------------------------------------------------- */

enum form { FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT };

/* Operands; `a` and `c` have room for the widest activation, `weights` and `grads` for the largest matrix. */
struct operands {
    struct ox_arena arena;
    float *a, *c, *weights, *grads;
};

enum { WIDEST = ROWS * HEAD_WORDS, LARGEST = HEAD_WORDS * HIDDEN };
_Static_assert(HEAD_WORDS >= 2 * WIDTH && HEAD_WORDS >= 3 * HIDDEN, "the head's tile is the widest matrix");

static void open_operands(struct operands *out) {
    const uint64_t floats = 2 * (uint64_t)WIDEST + 2 * (uint64_t)LARGEST;
    REQUIRE_OK(ox_arena_open("operands", floats * sizeof(float), NULL, &out->arena));
    out->a = (float *)out->arena.base;
    out->c = out->a + WIDEST;
    out->weights = out->c + WIDEST;
    out->grads = out->weights + LARGEST;
    for (uint64_t i = 0; i < floats; i++) {
        out->a[i] = (float)((uint32_t)i * 2654435761u) * 0x1p-32f - 0.5f;
    }
}

/* One GEMM of a linear layer from `in` to `out` values on `rows` rows; weights lie as (out, in). */
static void multiply(const struct operands *at, enum form form, int rows, int in, int out) {
    switch (form) {
    case FORWARD:
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, out, in, 1.0f, at->a, in, at->weights, in, 0.0f,
                    at->c, out);
        break;
    case INPUT_GRADIENT:
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, in, out, 1.0f, at->a, out, at->weights, in, 0.0f,
                    at->c, in);
        break;
    case WEIGHT_GRADIENT:
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, out, in, rows, 1.0f, at->a, out, at->c, in, 1.0f,
                    at->grads, in);
        break;
    }
}

static double flops_of(int rows, int in, int out) {
    return 2.0 * rows * in * out;
}

struct gemms_time {
    double blocks, head, attention; /* seconds   */
    double work;                    /* processor seconds of blocks and head */
    double block_flops, head_flops; /* in one step */
};

/* The matrices of a block, and how often a step multiplies by each: forward, again before backward (all but the last
 * one's, whose output nothing needs), and two gradients. */
static void block_gemms(const struct operands *at, struct gemms_time *out) {
    static const int shapes[][2] = {{HIDDEN, 3 * HIDDEN}, {HIDDEN, HIDDEN}, {HIDDEN, 2 * WIDTH}, {WIDTH, HIDDEN}};
    const uint64_t begin_ns = ox_clock_ns();
    for (int pass = 0; pass < 4; pass++) { /* forward, again, gradients of inputs, of weights */
        const enum form form = pass < 2 ? FORWARD : pass == 2 ? INPUT_GRADIENT : WEIGHT_GRADIENT;
        for (int repeat = 0; repeat < LAYERS * MICRO_BATCHES; repeat++) {
            for (int i = 0; i < (pass == 1 ? 3 : 4); i++) {
                multiply(at, form, ROWS, shapes[i][0], shapes[i][1]);
                out->block_flops += flops_of(ROWS, shapes[i][0], shapes[i][1]);
            }
        }
    }
    out->blocks = (double)(ox_clock_ns() - begin_ns) * 1e-9;
}

static void head_gemms(const struct operands *at, struct gemms_time *out) {
    const uint64_t begin_ns = ox_clock_ns();
    for (int repeat = 0; repeat < MICRO_BATCHES * (ROWS / HEAD_ROWS) * (VOCAB / HEAD_WORDS); repeat++) {
        multiply(at, FORWARD, HEAD_ROWS, HIDDEN, HEAD_WORDS);
        multiply(at, INPUT_GRADIENT, HEAD_ROWS, HIDDEN, HEAD_WORDS);
        multiply(at, WEIGHT_GRADIENT, HEAD_ROWS, HIDDEN, HEAD_WORDS);
        out->head_flops += 3 * flops_of(HEAD_ROWS, HIDDEN, HEAD_WORDS);
    }
    out->head = (double)(ox_clock_ns() - begin_ns) * 1e-9;
}

/* GEMMs of one block of queries with its keys; the scores of queries with later keys than their own are computed and
 * thrown away in the block on the diagonal. */
static void attention_block(const struct operands *at, int keys, bool backward) {
    const int stride = 3 * HIDDEN;
    float *const scores = at->c;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, QUERIES, keys, HEAD_DIM, 0.125f, at->a, stride, at->weights,
                stride, 0.0f, scores, keys);
    if (!backward) {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, QUERIES, HEAD_DIM, keys, 1.0f, scores, keys, at->weights,
                    stride, 0.0f, at->grads, HIDDEN);
        return;
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, QUERIES, keys, HEAD_DIM, 1.0f, at->a, HIDDEN, at->weights,
                stride, 0.0f, scores + QUERIES * keys, keys);
    for (int i = 0; i < 2; i++) { /* gradients of values and keys */
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, keys, HEAD_DIM, QUERIES, 1.0f, scores, keys, at->a, HIDDEN,
                    1.0f, at->grads, stride);
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, QUERIES, HEAD_DIM, keys, 0.125f, scores, keys, at->weights,
                stride, 0.0f, at->grads, stride);
}

/* A GEMM this small is faster on one thread; each thread of the step has its own heads. So one layer of one
 * micro-batch is timed on one thread, and the time of all shared by the threads. */
static void attention_gemms(const struct operands *at, uint32_t threads, struct gemms_time *out) {
    openblas_set_num_threads(1);
    const uint64_t begin_ns = ox_clock_ns();
    for (int head = 0; head < BATCH * HEADS; head++) {
        const struct operands here = {.a = at->a + head % HEADS * HEAD_DIM,
                                      .weights = at->weights + head % HEADS * HEAD_DIM,
                                      .c = at->c,
                                      .grads = at->grads + head % HEADS * HEAD_DIM};
        for (int keys = QUERIES; keys <= SEQ; keys += QUERIES) {
            attention_block(&here, keys, false);
            attention_block(&here, keys, false);
            attention_block(&here, keys, true);
        }
    }
    openblas_set_num_threads((int)threads);
    out->attention = (double)(ox_clock_ns() - begin_ns) * 1e-9 * LAYERS * MICRO_BATCHES / threads;
}

/* The library's own threads work here and nowhere else: the engine runs it on its own. */
static void run_gemms(const struct operands *at, uint32_t threads, struct gemms_time *out) {
    *out = (struct gemms_time){0};
    openblas_set_num_threads((int)threads);
    multiply(at, FORWARD, ROWS, HIDDEN, HIDDEN); /* the threads start, or wake */
    const double before = own_seconds();
    block_gemms(at, out);
    head_gemms(at, out);
    out->work = own_seconds() - before;
    attention_gemms(at, threads, out);
    openblas_set_num_threads(1);
}

/* ---- who else works -------------------------------------------------------------------------------- */

/* Processor seconds of all processes; 0 where /proc/stat is not as expected. */
static double machine_seconds(void) {
    unsigned long long user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0;
    FILE *const file = fopen("/proc/stat", "re");
    if (file == NULL) {
        return 0.0;
    }
    const int count = fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle, &iowait,
                             &irq, &softirq, &steal);
    fclose(file);
    const double ticks = (double)(user + nice + system + irq + softirq + steal);
    return count == 8 ? ticks / (double)sysconf(_SC_CLK_TCK) : 0.0;
}

/* ---- memory -------------------------------------------------------------------------------------- */

/* The most this process ever held, as the kernel counts it. */
static uint64_t resident_peak_bytes(void) {
    unsigned long long kib = 0;
    char line[128];
    FILE *const file = fopen("/proc/self/status", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL && sscanf(line, "VmHWM: %llu kB", &kib) != 1) {
    }
    if (file != NULL) {
        fclose(file);
    }
    return kib * 1024;
}

/* Two steps of a model of one block, in a process of their own, so that the peak is theirs alone. */
static void measure_memory(const struct options *options) {
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        struct ox_model_config config = model_config;
        struct ox_model *model = NULL;
        config.layers = 1;
        const uint64_t before = resident_peak_bytes();
        REQUIRE_OK(ox_model_build(&config, &model));
        struct ox_engine *engine = open_engine(model, options, !options->bf16);
        struct step_time unused;
        run_step(engine, 1, &unused);
        run_step(engine, 2, &unused);
        printf("%u threads: %.1f MiB resident beside arenas of %.1f MiB (%.1f MiB before the engine opened)\n",
               options->threads, (double)(resident_peak_bytes() - arena_bytes(engine)) * 0x1p-20,
               (double)arena_bytes(engine) * 0x1p-20, (double)before * 0x1p-20);
        fflush(stdout);
        _exit(0);
    }
    int status = 1;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        printf("the process that measures memory at %u threads did not end well\n", options->threads);
        exit(1);
    }
}

/* ---- report --------------------------------------------------------------------------------------- */

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median of one double in each of `count` structs: the member at `offset`, the structs `stride` bytes apart. */
static double median(const void *base, size_t stride, size_t offset, uint32_t count) {
    double values[ROUNDS_MAX];
    for (uint32_t i = 0; i < count; i++) {
        memcpy(&values[i], (const char *)base + i * stride + offset, sizeof values[i]);
    }
    qsort(values, count, sizeof *values, compare_doubles);
    return 0.5 * (values[(count - 1) / 2] + values[count / 2]);
}

struct round {
    struct step_time step;
    struct gemms_time gemms;
    double ratio, ratio_with_attention;
    double ratio_of_work; /* the first, in processor time: not disturbed by other processes, but idle threads count */
};

struct summary {
    double seconds, parts[PART_COUNT], beside;
    struct gemms_time gemms;
    double ratio, ratio_with_attention, ratio_of_work;
    double others; /* share of the processors' time that went to other processes */
};

#define MEDIAN(rounds, count, member) \
    median(rounds, sizeof *(rounds), (size_t)((const char *)&(rounds)->member - (const char *)(rounds)), count)

static struct summary summarise(const struct round *rounds, uint32_t count) {
    struct summary out = {
        .seconds = MEDIAN(rounds, count, step.seconds),
        .beside = MEDIAN(rounds, count, step.beside),
        .gemms = rounds[0].gemms, /* the flops */
        .ratio = MEDIAN(rounds, count, ratio),
        .ratio_with_attention = MEDIAN(rounds, count, ratio_with_attention),
        .ratio_of_work = MEDIAN(rounds, count, ratio_of_work),
    };
    out.gemms.blocks = MEDIAN(rounds, count, gemms.blocks);
    out.gemms.head = MEDIAN(rounds, count, gemms.head);
    out.gemms.attention = MEDIAN(rounds, count, gemms.attention);
    for (int part = 0; part < PART_COUNT; part++) {
        out.parts[part] = MEDIAN(rounds, count, step.parts[part]);
    }
    return out;
}

static void print_table(const struct summary *all, const struct ox_model *model, const struct options *options) {
    const struct gemms_time *const alone = &all->gemms;
    printf("model: %.1f M parameters; step: %d x %d tokens x %d micro-batches; %u threads; OpenBLAS core %s\n",
           (double)model->param_count * 1e-6, BATCH, SEQ, MICRO_BATCHES, options->threads, openblas_get_corename());
    printf("%-28s %9s %7s %12s\n", "part", "seconds", "share", "alone");
    for (int part = 0; part < PART_COUNT; part++) {
        printf("%-28s %9.3f %6.1f%%", part_names[part], all->parts[part], 100.0 * all->parts[part] / all->seconds);
        const double single = part == PART_GEMMS    ? alone->blocks
                              : part == PART_HEAD      ? alone->head
                              : part == PART_ATTENTION ? alone->attention : 0.0;
        printf(single > 0.0 ? " %12.3f\n" : "\n", single);
    }
    printf("%-28s %9.3f %6.1f%%\n", "step", all->seconds, 100.0);
    printf("gradient norms beside compute: %.3f s; %.0f tokens/s; OpenBLAS alone: %.1f GFLOP/s in blocks, %.1f in the "
           "head\n", all->beside, MICRO_BATCHES * ROWS / all->seconds, alone->block_flops * 1e-9 / alone->blocks,
           alone->head_flops * 1e-9 / alone->head);
    printf("other processes took %.1f%% of the processors' time; ratio in processor time: %.3f\n",
           100.0 * all->others, all->ratio_of_work);
    printf("ratio %.3f (GEMMs of blocks and head; limit %.2f), %.3f with attention's GEMMs\n", all->ratio,
           RATIO_LIMIT, all->ratio_with_attention);
}

static void print_json(const struct summary *all) {
    printf("[{\"name\":\"step.products_ratio\",\"value\":%.4f,\"unit\":\"1\",\"limit\":%.2f,\"ratio\":%.4f},\n",
           all->ratio, RATIO_LIMIT, all->ratio / RATIO_LIMIT);
    printf(" {\"name\":\"step.products_ratio_with_attention\",\"value\":%.4f,\"unit\":\"1\",\"limit\":null,"
           "\"ratio\":null},\n", all->ratio_with_attention);
    const double alone = all->gemms.blocks + all->gemms.head;
    printf(" {\"name\":\"step.other_processes\",\"value\":%.4f,\"unit\":\"1\",\"limit\":null,\"ratio\":null},\n",
           all->others);
    const double tokens = MICRO_BATCHES * ROWS;
    printf(" {\"name\":\"step.tokens_per_second\",\"value\":%.2f,\"unit\":\"token/s\",\"limit\":%.2f,\"ratio\":%.4f}",
           tokens / all->seconds, tokens / alone, all->ratio);
    for (int part = 0; part < PART_COUNT; part++) {
        printf(",\n {\"name\":\"step.seconds.%s\",\"value\":%.4f,\"unit\":\"s\",\"limit\":%.4f,\"ratio\":%.4f}",
               part_keys[part], all->parts[part], all->seconds, all->parts[part] / all->seconds);
    }
    printf("]\n");
}

/* ---- fp32 and bf16 -------------------------------------------------------------------------------- */

static void compare_types(const struct ox_model *model, const struct options *options) {
    enum { FP32, BF16, TYPES };
    static struct step_time times[TYPES][ROUNDS_MAX];
    char gemms[TYPES][OX_CPU_GEMMS_BYTES];
    struct ox_engine *engines[TYPES];
    struct step_time warm_up;
    double clock[ROUNDS_MAX], work[ROUNDS_MAX];
    for (int type = 0; type < TYPES; type++) {
        ox_cpu_gemms_text(type == BF16 ? OX_REAL_BF16 : OX_REAL_F32, gemms[type]);
        engines[type] = open_engine(model, options, type == FP32);
        run_step(engines[type], 1, &warm_up);
    }
    for (uint32_t i = 0; i < options->rounds; i++) {
        run_step(engines[FP32], i + 2, &times[FP32][i]);
        run_step(engines[BF16], i + 2, &times[BF16][i]);
        clock[i] = times[FP32][i].seconds / times[BF16][i].seconds;
        work[i] = times[FP32][i].work / times[BF16][i].work;
        printf("round %u: %.3f s and %.3f s, %.3f times; in processor time %.3f times\n", i + 1,
               times[FP32][i].seconds, times[BF16][i].seconds, clock[i], work[i]);
    }
    printf("fp32: %s\nbf16: %s\n%-28s %9s %9s\n", gemms[FP32], gemms[BF16], "part, seconds", "fp32", "bf16");
    for (int part = 0; part < PART_COUNT; part++) {
        printf("%-28s", part_names[part]);
        for (int type = 0; type < TYPES; type++) {
            printf(" %9.3f", MEDIAN(times[type], options->rounds, parts[part]));
        }
        printf("\n");
    }
    printf("tokens/s %29.0f %9.0f; bf16 by fp32, medians of %u rounds: %.3f by the clock, %.3f in processor time\n",
           MICRO_BATCHES * ROWS / MEDIAN(times[FP32], options->rounds, seconds),
           MICRO_BATCHES * ROWS / MEDIAN(times[BF16], options->rounds, seconds), options->rounds,
           median(clock, sizeof *clock, 0, options->rounds), median(work, sizeof *work, 0, options->rounds));
    for (int type = 0; type < TYPES; type++) {
        ox_engine_close(&engines[type]);
    }
}

/* ---- program ---------------------------------------------------------------------------------- */

static struct options parse(int argc, char **argv) {
    struct options options = {.threads = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN), .rounds = 3};
    for (int i = 1; i < argc; i++) {
        const bool more = i + 1 < argc;
        if (strcmp(argv[i], "--json") == 0) {
            options.json = true;
        } else if (strcmp(argv[i], "--memory") == 0) {
            options.memory = true;
        } else if (strcmp(argv[i], "--bf16") == 0) {
            options.bf16 = true;
        } else if (more && strcmp(argv[i], "--threads") == 0) {
            options.threads = (uint32_t)strtoul(argv[++i], NULL, 10);
        } else if (more && strcmp(argv[i], "--rounds") == 0) {
            options.rounds = (uint32_t)strtoul(argv[++i], NULL, 10);
        } else {
            options.rounds = 0;
        }
    }
    if (options.threads == 0 || options.rounds == 0 || options.rounds > ROUNDS_MAX) {
        fprintf(stderr, "usage: %s [--json] [--memory] [--bf16] [--threads N] [--rounds 1..%d]\n", argv[0], ROUNDS_MAX);
        exit(2);
    }
    return options;
}

int main(int argc, char **argv) {
    struct options options = parse(argc, argv);
    if (options.memory) {
        const uint32_t threads = options.threads;
        for (options.threads = 1; options.threads <= threads; options.threads *= 2) {
            measure_memory(&options);
        }
        return 0;
    }
    struct ox_model *model = NULL;
    struct operands operands;
    static struct round rounds[ROUNDS_MAX];
    REQUIRE_OK(ox_model_build(&model_config, &model));
    if (options.bf16) {
        compare_types(model, &options);
        ox_model_close(&model);
        return 0;
    }
    open_operands(&operands);
    struct ox_engine *engine = open_engine(model, &options, true);
    struct step_time warm_up;
    run_step(engine, 1, &warm_up);
    const double own = own_seconds(), machine = machine_seconds();
    const uint64_t begin_ns = ox_clock_ns();
    for (uint32_t i = 0; i < options.rounds; i++) {
        struct round *const round = &rounds[i];
        run_step(engine, i + 2, &round->step);
        run_gemms(&operands, options.threads, &round->gemms);
        const double alone = round->gemms.blocks + round->gemms.head;
        round->ratio = alone / round->step.seconds;
        round->ratio_of_work = round->gemms.work / round->step.work;
        round->ratio_with_attention = (alone + round->gemms.attention) / round->step.seconds;
    }
    struct summary all = summarise(rounds, options.rounds);
    const double available = (double)(ox_clock_ns() - begin_ns) * 1e-9 * (double)sysconf(_SC_NPROCESSORS_ONLN);
    all.others = fmax(0.0, (machine_seconds() - machine) - (own_seconds() - own)) / available;
    if (options.json) {
        print_json(&all);
    } else {
        print_table(&all, model, &options);
    }
    ox_engine_close(&engine);
    ox_arena_close(&operands.arena);
    ox_model_close(&model);
    return all.ratio >= RATIO_LIMIT ? 0 : 1;
}
