/* `offload bench gemm`: measures OpenBLAS with its own threads on the products of a step: those of the named model with
 * 512 rows, or else hidden 2048, width 5632, head dimension 64. Where the CPU device computes in bf16, measures linear
 * layers at the same shapes too. */
#include "engine/measure/rig.h"
#include "tools/bench/bench_device.h"

#include "base/bytes.h"
#include "base/clock.h"

#include <cblas.h>
#include <inttypes.h>

enum { SHAPES_MAX = 10, DIM_MIN = 16, ROWS = 512, SCORE_ROWS = 128 };

/* c (m, n) = a (m, k) b (k, n). A transposed a is stored as (k, m), a transposed b as (n, k). */
struct shape {
    const char *name;
    uint32_t m, n, k;
    bool a_transposed, b_transposed;
    uint32_t repeats; /* so that a short GEMM takes long enough to time */
    bool in_all;      /* counts for the rate of all, which goes into the profile */
    bool is_layer;    /* the forward pass of a layer that counts for the rate in bf16 */
};

/* Without a model. The rate of all is that of the first six, by which predictions are fitted (offload/sim/sim_work.c):
 * q, k, v and gate, up were products of their own when they were. */
static const struct shape fixed_shapes[SHAPES_MAX] = {
    {.name = "projection", .m = ROWS, .n = 2048, .k = 2048, .b_transposed = true, .repeats = 1, .in_all = true,
     .is_layer = true},
    {.name = "up", .m = ROWS, .n = 5632, .k = 2048, .b_transposed = true, .repeats = 1, .in_all = true,
     .is_layer = true},
    {.name = "down", .m = ROWS, .n = 2048, .k = 5632, .b_transposed = true, .repeats = 1, .in_all = true,
     .is_layer = true},
    {.name = "input_grad", .m = ROWS, .n = 2048, .k = 5632, .repeats = 1, .in_all = true},
    {.name = "weight_grad", .m = 5632, .n = 2048, .k = ROWS, .a_transposed = true, .repeats = 1, .in_all = true},
    {.name = "scores", .m = SCORE_ROWS, .n = 512, .k = 64, .b_transposed = true, .repeats = 128, .in_all = true},
    {.name = "qkv", .m = ROWS, .n = 6144, .k = 2048, .b_transposed = true, .repeats = 1},
    {.name = "qkv_gqa", .m = ROWS, .n = 3072, .k = 2048, .b_transposed = true, .repeats = 1},
    {.name = "gate_up", .m = ROWS, .n = 11264, .k = 2048, .b_transposed = true, .repeats = 1},
    {.name = "head", .m = ROWS, .n = 8000, .k = 2048, .b_transposed = true, .repeats = 1},
};

struct gemms {
    struct shape shapes[SHAPES_MAX];
    uint32_t count;
    bool of_model;
    struct ox_arena arena;
    uint64_t a_elems, b_elems, c_elems; /* the largest of each */
    uint32_t rounds;
};

static uint32_t halve(uint32_t dim) {
    return dim / 2 > DIM_MIN ? dim / 2 : DIM_MIN;
}

static void count_elems(struct gemms *gemms) {
    gemms->a_elems = gemms->b_elems = gemms->c_elems = 0;
    for (uint32_t i = 0; i < gemms->count; i++) {
        const struct shape *const shape = &gemms->shapes[i];
        gemms->a_elems = ox_max_u64(gemms->a_elems, (uint64_t)shape->m * shape->k);
        gemms->b_elems = ox_max_u64(gemms->b_elems, (uint64_t)shape->k * shape->n);
        gemms->c_elems = ox_max_u64(gemms->c_elems, (uint64_t)shape->m * shape->n);
    }
}

static uint64_t bytes_of(const struct gemms *gemms) {
    return (gemms->a_elems + gemms->b_elems + gemms->c_elems) * sizeof(float);
}

/* The forward pass of each product of the model, the two backward ones of the MLP's first, and attention's scores. */
static void add_model(struct gemms *gemms, const struct ox_bench_shape *model) {
    struct ox_bench_layer layers[OX_BENCH_PRODUCT_COUNT];
    const struct ox_bench_layer up = ox_bench_layer_of(model, OX_BENCH_GATE_UP);
    const uint32_t count = ox_bench_layers(model, layers);
    const bool in_out = model->transposed;
    for (uint32_t i = 0; i < count; i++) {
        gemms->shapes[gemms->count++] = (struct shape){
            .name = layers[i].name, .m = ROWS, .n = layers[i].out_count, .k = layers[i].in_count,
            .b_transposed = layers[i].layout == OX_WEIGHT_OUT_IN, .repeats = 1, .in_all = layers[i].in_block,
            .is_layer = layers[i].in_block};
    }
    gemms->shapes[gemms->count++] = (struct shape){.name = "input_grad", .m = ROWS, .n = up.in_count,
                                                   .k = up.out_count, .b_transposed = in_out, .repeats = 1,
                                                   .in_all = true};
    gemms->shapes[gemms->count++] = (struct shape){
        .name = "weight_grad", .m = in_out ? up.in_count : up.out_count, .n = in_out ? up.out_count : up.in_count,
        .k = ROWS, .a_transposed = true, .repeats = 1, .in_all = true};
    gemms->shapes[gemms->count++] = (struct shape){
        .name = "scores", .m = SCORE_ROWS, .n = (uint32_t)ox_min_u64(model->seq, ROWS), .k = model->head_dim,
        .b_transposed = true, .repeats = model->heads * (ROWS / SCORE_ROWS), .in_all = true};
}

/* A brief bench measures what counts for the profile. */
static void add_shapes(struct gemms *gemms, const struct ox_bench *bench) {
    gemms->count = 0;
    gemms->of_model = bench->model.hidden > 0;
    if (gemms->of_model) {
        add_model(gemms, &bench->model);
        return;
    }
    for (unsigned i = 0; i < SHAPES_MAX; i++) {
        if (!bench->brief || fixed_shapes[i].in_all) {
            gemms->shapes[gemms->count++] = fixed_shapes[i];
        }
    }
}

/* Halves the shapes, of a model only the rows, until they fit in --size if that is given; false when they cannot be
 * halved further. */
static bool choose_shapes(struct gemms *gemms, const struct ox_bench *bench) {
    const uint64_t size = bench->config->bench.size_bytes;
    add_shapes(gemms, bench);
    count_elems(gemms);
    for (uint64_t before = UINT64_MAX; size != 0 && bytes_of(gemms) > size;) {
        if (bytes_of(gemms) == before) {
            return false;
        }
        before = bytes_of(gemms);
        for (uint32_t i = 0; i < gemms->count; i++) {
            struct shape *const shape = &gemms->shapes[i];
            const bool grad = shape->a_transposed; /* which sums over rows */
            shape->m = gemms->of_model && grad ? shape->m : halve(shape->m);
            shape->n = gemms->of_model ? shape->n : halve(shape->n);
            shape->k = gemms->of_model && !grad ? shape->k : halve(shape->k);
        }
        count_elems(gemms);
    }
    return true;
}

static double flops_of(const struct shape *shape) {
    return 2.0 * shape->m * shape->n * shape->k * shape->repeats;
}

/* Returns seconds. */
static double run_once(const struct gemms *gemms, const struct shape *shape) {
    float *const a = (float *)gemms->arena.base, *const b = a + gemms->a_elems, *const c = b + gemms->b_elems;
    const uint64_t begin_ns = ox_clock_ns();
    for (uint32_t i = 0; i < shape->repeats; i++) {
        cblas_sgemm(CblasRowMajor, shape->a_transposed ? CblasTrans : CblasNoTrans,
                    shape->b_transposed ? CblasTrans : CblasNoTrans, (blasint)shape->m, (blasint)shape->n,
                    (blasint)shape->k, 1.0f, a, (blasint)(shape->a_transposed ? shape->m : shape->k), b,
                    (blasint)(shape->b_transposed ? shape->k : shape->n), 0.0f, c, (blasint)shape->n);
    }
    return (double)(ox_clock_ns() - begin_ns) * 1e-9;
}

static void measure(struct ox_bench *bench, const struct gemms *gemms, uint32_t threads) {
    double seconds[OX_BENCH_ROUNDS_MAX], all_seconds = 0.0, all_flops = 0.0;
    for (uint32_t i = 0; i < gemms->count; i++) {
        const struct shape *const shape = &gemms->shapes[i];
        run_once(gemms, shape);
        for (uint32_t round = 0; round < gemms->rounds; round++) {
            seconds[round] = run_once(gemms, shape);
        }
        const double median = ox_probe_median(seconds, gemms->rounds);
        all_seconds += shape->in_all ? median : 0.0;
        all_flops += shape->in_all ? flops_of(shape) : 0.0;
        ox_bench_add(bench, &(struct ox_bench_figure){.value = flops_of(shape) / median, .unit = "FLOP/s"},
                     "gemm.%s.threads_%" PRIu32, shape->name, threads);
    }
    ox_bench_add(bench, &(struct ox_bench_figure){.value = all_flops / all_seconds, .unit = "FLOP/s"},
                 "gemm.all.threads_%" PRIu32, threads);
}

/* What the GEMMs of a model pack per operation, as the simulator counts it (PACKED_BYTES_PER_FLOP of
 * offload/sim/sim_work.c, which is that of the fixed shapes). */
static void add_packed(struct ox_bench *bench, const struct gemms *gemms) {
    double bytes = 0.0, flops = 0.0;
    for (uint32_t i = 0; i < gemms->count && gemms->of_model; i++) {
        const struct shape *const shape = &gemms->shapes[i];
        if (shape->in_all) {
            bytes += flops_of(shape) * (6.0 / shape->m + 6.0 / shape->n + 2.0 / shape->k);
            flops += flops_of(shape);
        }
    }
    if (flops > 0.0) {
        ox_bench_add(bench, &(struct ox_bench_figure){.value = bytes / flops, .unit = "B/FLOP"}, "gemm.packed");
    }
}

/* ---- in bf16, as --dtype bf16 computes ------------------------------------------------------------------ */

static struct ox_measure_layer layer_of(const struct shape *shape) {
    return (struct ox_measure_layer){
        .rows = shape->m, .in = shape->k, .out = shape->n,
        .layout = shape->b_transposed ? OX_WEIGHT_OUT_IN : OX_WEIGHT_IN_OUT};
}

/* Adds the rate of all layers. The first round touches the memory and does not count. */
static enum ox_status time_layers(struct ox_bench *bench, const struct gemms *gemms, struct ox_measure_rig *rig) {
    double seconds[OX_BENCH_ROUNDS_MAX] = {0}, flops = 0;
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < gemms->count; i++) {
        flops += gemms->shapes[i].is_layer ? 3 * flops_of(&gemms->shapes[i]) : 0; /* both passes are three GEMMs */
    }
    for (uint32_t round = 0; round <= gemms->rounds; round++) {
        double *const at = &seconds[round == 0 ? 0 : round - 1];
        *at = 0;
        for (uint32_t i = 0; i < gemms->count && status == OX_OK; i++) {
            const struct ox_measure_layer layer = layer_of(&gemms->shapes[i]);
            status = gemms->shapes[i].is_layer ? ox_measure_rig_layer(rig, &layer, 0, at) : OX_OK;
        }
    }
    if (status == OX_OK) {
        const double median = ox_probe_median(seconds, gemms->rounds);
        ox_bench_add(bench, &(struct ox_bench_figure){.value = flops / median, .unit = "FLOP/s"},
                     "gemm.bf16.threads_%" PRIu32, rig->compute.threads);
    }
    return status;
}

static enum ox_status measure_bf16(struct ox_bench *bench, const struct gemms *gemms) {
    const char *library = NULL;
    if (!ox_cpu_has_products(OX_REAL_BF16, &library)) {
        ox_bench_note(bench, "gemm: not in bf16: %s", library);
        return OX_OK;
    }
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < gemms->count; i++) {
        const struct ox_measure_layer layer = layer_of(&gemms->shapes[i]);
        bytes = gemms->shapes[i].is_layer ? ox_max_u64(bytes, ox_measure_layer_bytes(&layer)) : bytes;
    }
    struct ox_measure_rig rig;
    const struct ox_probe_room room = {.bytes = bytes, .least = bytes};
    enum ox_status status =
        ox_measure_rig_open(ox_bench_threads(bench->config->place.compute_threads), OX_REAL_BF16, &room, &rig);
    if (status == OX_OK) {
        ox_bench_note(bench, "gemm: linear layers in bf16, forward and backward, by %s", library);
        status = time_layers(bench, gemms, &rig);
        ox_measure_rig_close(&rig);
    }
    return status;
}

enum ox_status ox_bench_gemm(struct ox_bench *bench) {
    struct gemms gemms = {.rounds = ox_bench_rounds(bench, 5, 3)};
    if (!choose_shapes(&gemms, bench)) {
        return ox_fail(OX_E_CONFIG, "--size: %" PRIu64 " bytes are too few for the matrices; give at least %" PRIu64
                       "B",
                       bench->config->bench.size_bytes, bytes_of(&gemms));
    }
    OX_TRY(ox_bench_arena_open("gemm", bytes_of(&gemms), &gemms.arena));
    float *const values = (float *)gemms.arena.base;
    for (uint64_t i = 0; i < gemms.a_elems + gemms.b_elems; i++) {
        values[i] = (float)(i % 251) * 0x1p-8f - 0.5f;
    }
    const int threads_before = openblas_get_num_threads();
    uint32_t counts[OX_BENCH_THREAD_COUNTS_MAX];
    const uint32_t count = ox_bench_thread_counts(ox_bench_threads(bench->config->place.compute_threads), counts);
    ox_bench_note(bench, "gemm: OpenBLAS, core %s, median of %" PRIu32 " rounds", openblas_get_corename(),
                  gemms.rounds);
    struct ox_probe_load meter;
    ox_probe_load_begin(&meter);
    for (uint32_t i = 0; i < count; i++) {
        openblas_set_num_threads((int)counts[i]);
        if (openblas_get_num_threads() == (int)counts[i]) {
            measure(bench, &gemms, counts[i]);
        } else {
            ox_bench_note(bench, "gemm: this OpenBLAS does not support %" PRIu32 " thread%s", counts[i],
                          ox_plural(counts[i]));
        }
    }
    add_packed(bench, &gemms);
    openblas_set_num_threads(threads_before);
    ox_arena_close(&gemms.arena);
    enum ox_status measured = measure_bf16(bench, &gemms);
    ox_bench_add_load(&meter, bench, "gemm");
    if (bench->gpu != NULL) {
        OX_THEN(measured, ox_bench_gpu_gemm(bench));
        OX_THEN(measured, ox_bench_gpu_attention(bench));
    }
    return measured;
}
