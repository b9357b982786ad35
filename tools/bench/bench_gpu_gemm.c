/* `offload bench gemm` on a GPU: measures the products of a step as the engine calls them, forward and backward, at
 * the shapes of the named model, or else of one of 7 billion parameters, in float32 and bfloat16. Each GEMM is
 * compared with the best algorithm that cuBLASLt offers for it. */
#include "tools/bench/bench_device.h"

#include "base/bytes.h"

#include <inttypes.h>

/* Lowest share of the speed of cuBLASLt's best algorithm. */
#define BEST_LIMIT 0.97

struct gemms {
    struct ox_bench *bench;
    struct ox_bench_device *gpu;
    struct ox_bench_shape shape;
    const struct ox_bench_layer *layer; /* the measured one */
    unsigned char *memory;
    uint64_t bytes;
    void *in, *out, *weight, *din;
    float *dweight;
    uint32_t rounds;
};

/* Places the buffers and returns their bytes; without memory it only adds them up. */
static uint64_t carve(struct gemms *gemms, uint32_t real_bytes) {
    struct ox_bench_layer layers[OX_BENCH_PRODUCT_COUNT];
    uint64_t in_max = 0, out_max = 0, weight_max = 0;
    const uint32_t count = ox_bench_layers(&gemms->shape, layers);
    for (uint32_t i = 0; i < count; i++) {
        in_max = ox_max_u64(in_max, layers[i].in_count);
        out_max = ox_max_u64(out_max, layers[i].out_count);
        weight_max = ox_max_u64(weight_max, (uint64_t)layers[i].in_count * layers[i].out_count);
    }
    struct ox_bump room = {.base = gemms->memory};
    gemms->in = ox_bump_alloc(&room, gemms->shape.rows * in_max * real_bytes);
    gemms->din = ox_bump_alloc(&room, gemms->shape.rows * in_max * real_bytes);
    gemms->out = ox_bump_alloc(&room, gemms->shape.rows * out_max * real_bytes);
    gemms->weight = ox_bump_alloc(&room, weight_max * real_bytes);
    gemms->dweight = ox_bump_alloc(&room, weight_max * sizeof(float));
    return room.bytes;
}

static uint64_t bytes_of(const void *context, const struct ox_bench_shape *shape) {
    struct gemms only_measured = {.shape = *shape};
    (void)context;
    return carve(&only_measured, sizeof(float));
}

/* The gradient of the input, which forward leaves alone, is at least as wide as a residual. */
static struct ox_op_linear_forward forward_op(const struct gemms *gemms) {
    return (struct ox_op_linear_forward){
        .out = gemms->out, .in = gemms->in, .weight = gemms->weight,
        .residual = gemms->layer->residual ? gemms->din : NULL, .rows = gemms->shape.rows,
        .in_count = gemms->layer->in_count, .out_count = gemms->layer->out_count,
        .layout = gemms->layer->layout, .real = gemms->gpu->compute.real};
}

static struct ox_op_linear_backward backward_op(const struct gemms *gemms) {
    return (struct ox_op_linear_backward){
        .din = gemms->din, .dweight = gemms->dweight, .dout = gemms->out, .in = gemms->in,
        .weight = gemms->weight, .rows = gemms->shape.rows, .in_count = gemms->layer->in_count,
        .out_count = gemms->layer->out_count, .layout = gemms->layer->layout, .real = gemms->gpu->compute.real};
}

static enum ox_status queue_forward(void *context) {
    const struct gemms *const gemms = context;
    const struct ox_op_linear_forward op = forward_op(gemms);
    return OX_QUEUE(&gemms->gpu->ops, gemms->gpu->lane, linear_forward, &op);
}

static enum ox_status queue_backward(void *context) {
    const struct gemms *const gemms = context;
    const struct ox_op_linear_backward op = backward_op(gemms);
    return OX_QUEUE(&gemms->gpu->ops, gemms->gpu->lane, linear_backward, &op);
}

static const char *real_of(const struct gemms *gemms) {
    return ox_bench_real_name(gemms->gpu->compute.real);
}

static double flops_of(const struct gemms *gemms, bool backward) {
    const double gemm = 2.0 * gemms->shape.rows * gemms->layer->in_count * gemms->layer->out_count;
    return backward ? 2.0 * gemm : gemm;
}

/* Compares the engine's algorithm with all that are offered, each timed alone. */
static enum ox_status compare(struct gemms *gemms, bool backward) {
    const struct ox_op_linear_forward forward = forward_op(gemms);
    const struct ox_op_linear_backward back = backward_op(gemms);
    struct ox_cuda_search search = {.rounds = gemms->rounds};
    struct ox_device *const device = gemms->gpu->device;
    const enum ox_status status = backward ? ox_cuda_linear_search(device, NULL, &back, &search)
                                           : ox_cuda_linear_search(device, &forward, NULL, &search);
    if (status == OX_OK && search.taken_seconds > 0.0) {
        const double share = search.best_seconds / search.taken_seconds;
        ox_bench_add(gemms->bench, &(struct ox_bench_figure){.value = share, .unit = OX_BENCH_SHARE,
                                                                .limit = BEST_LIMIT},
                     "gemm.gpu.%s.%s.%s.of_best_of_%" PRIu32, gemms->layer->name,
                     backward ? "backward" : "forward", real_of(gemms), search.offered);
    }
    return status;
}

static enum ox_status measure(struct gemms *gemms, bool backward, double *seconds) {
    const struct ox_bench_work work = {.queue = backward ? queue_backward : queue_forward, .context = gemms};
    OX_TRY(ox_bench_device_time(gemms->gpu, &work, gemms->rounds, seconds));
    ox_bench_add(gemms->bench, &(struct ox_bench_figure){.value = flops_of(gemms, backward) / *seconds,
                                                            .unit = "FLOP/s"}, "gemm.gpu.%s.%s.%s",
                 gemms->layer->name, backward ? "backward" : "forward", real_of(gemms));
    return gemms->bench->brief ? OX_OK : compare(gemms, backward);
}

/* Measures all products; the rate of those of a block goes into the profile. */
static enum ox_status measure_all(struct gemms *gemms, enum ox_real real) {
    struct ox_bench_layer layers[OX_BENCH_PRODUCT_COUNT];
    const uint32_t count = ox_bench_layers(&gemms->shape, layers);
    double block_seconds = 0.0, block_flops = 0.0;
    enum ox_status status = OX_OK;
    gemms->gpu->compute.real = real;
    carve(gemms, ox_real_bytes(real));
    for (uint32_t i = 0; i < count && status == OX_OK; i++) {
        gemms->layer = &layers[i];
        for (int backward = 0; backward < 2 && status == OX_OK; backward++) {
            double seconds = 0.0;
            status = measure(gemms, backward, &seconds);
            block_seconds += layers[i].in_block ? seconds : 0.0;
            block_flops += layers[i].in_block ? flops_of(gemms, backward) : 0.0;
        }
    }
    if (status == OX_OK) {
        ox_bench_add(gemms->bench, &(struct ox_bench_figure){.value = block_flops / block_seconds,
                                                                .unit = "FLOP/s"}, "gemm.gpu.block.%s",
                     ox_bench_real_name(real));
    }
    return status;
}

enum ox_status ox_bench_gpu_gemm(struct ox_bench *bench) {
    struct ox_bench_device *const gpu = bench->gpu;
    struct gemms gemms = {.bench = bench, .gpu = gpu, .rounds = ox_bench_rounds(bench, 5, 3)};
    const uint64_t requested = bench->config->bench.size_bytes;
    const struct ox_bench_limit room = {.bytes = bytes_of,
                                       .most = requested != 0 ? requested : gpu->facts.free_bytes / 2};
    void *memory = NULL;
    if (!ox_bench_shape_choose(bench, gpu, &room, &gemms.shape)) {
        return ox_bench_shape_refuse(bench, &room, &gemms.shape);
    }
    gemms.bytes = bytes_of(NULL, &gemms.shape);
    enum ox_status status = ox_bench_device_numbers(gpu, gemms.bytes, &memory);
    if (status != OX_OK) {
        return status;
    }
    gemms.memory = memory;
    ox_bench_shape_note(bench, "gemm: GPU", &gemms.shape, gemms.rounds);
    for (unsigned real = OX_REAL_F32; real <= OX_BENCH_REAL_LAST && status == OX_OK; real++) {
        status = measure_all(&gemms, real);
    }
    gpu->compute.real = OX_REAL_F32; /* the next part counts its memory in it */
    ox_device_mem_close(gpu->device, memory, gemms.bytes);
    return status;
}
