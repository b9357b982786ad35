/* `offload bench gemm` on a GPU: linear layers as the engine calls them, forward and backward, at the shapes of a block
 * and of the head of a model of 7 billion parameters, in float32 and in bfloat16; and against the best of all that
 * cuBLASLt offers for the same products. */
#include "tools/bench/bench_device.h"

#include "base/bytes.h"

#include <inttypes.h>

enum { LAYER_COUNT = 4 };

/* Of what cuBLASLt's best algorithm for a product reaches. */
#define BEST_LIMIT 0.97

struct layer {
    const char *name;
    uint32_t in_count, out_count;
};

struct products {
    struct ox_bench *bench;
    struct ox_bench_device *gpu;
    struct ox_bench_shape shape;
    struct layer layers[LAYER_COUNT];
    const struct layer *layer; /* that is measured */
    unsigned char *memory;
    uint64_t bytes;
    void *in, *out, *weight, *din;
    float *dweight;
    uint32_t rounds;
};

static void name_layers(const struct ox_bench_shape *shape, struct layer layers[LAYER_COUNT]) {
    layers[0] = (struct layer){"projection", shape->hidden, shape->hidden};
    layers[1] = (struct layer){"up", shape->hidden, 2 * shape->width};
    layers[2] = (struct layer){"down", shape->width, shape->hidden};
    layers[3] = (struct layer){"head", shape->hidden, shape->vocab};
}

static uint64_t carve(struct products *products, uint32_t real_bytes) {
    struct layer layers[LAYER_COUNT];
    uint64_t in_max = 0, out_max = 0, weight_max = 0;
    name_layers(&products->shape, layers);
    for (unsigned i = 0; i < LAYER_COUNT; i++) {
        in_max = ox_max_u64(in_max, layers[i].in_count);
        out_max = ox_max_u64(out_max, layers[i].out_count);
        weight_max = ox_max_u64(weight_max, (uint64_t)layers[i].in_count * layers[i].out_count);
    }
    struct ox_carve room = {.base = products->memory};
    products->in = ox_carve_take(&room, products->shape.rows * in_max * real_bytes);
    products->din = ox_carve_take(&room, products->shape.rows * in_max * real_bytes);
    products->out = ox_carve_take(&room, products->shape.rows * out_max * real_bytes);
    products->weight = ox_carve_take(&room, weight_max * real_bytes);
    products->dweight = ox_carve_take(&room, weight_max * sizeof(float));
    return room.bytes;
}

static uint64_t bytes_of(const void *context, const struct ox_bench_shape *shape) {
    struct products only_measured = {.shape = *shape};
    (void)context;
    return carve(&only_measured, sizeof(float));
}

static struct ox_op_linear_forward forward_op(const struct products *products) {
    return (struct ox_op_linear_forward){
        .out = products->out, .in = products->in, .weight = products->weight, .rows = products->shape.rows,
        .in_count = products->layer->in_count, .out_count = products->layer->out_count,
        .layout = OX_WEIGHT_OUT_IN, .real = products->gpu->compute.real};
}

static struct ox_op_linear_backward backward_op(const struct products *products) {
    return (struct ox_op_linear_backward){
        .din = products->din, .dweight = products->dweight, .dout = products->out, .in = products->in,
        .weight = products->weight, .rows = products->shape.rows, .in_count = products->layer->in_count,
        .out_count = products->layer->out_count, .layout = OX_WEIGHT_OUT_IN, .real = products->gpu->compute.real};
}

static enum ox_status queue_forward(void *context) {
    const struct products *const products = context;
    const struct ox_op_linear_forward op = forward_op(products);
    return products->gpu->ops.linear_forward(products->gpu->lane, &op);
}

static enum ox_status queue_backward(void *context) {
    const struct products *const products = context;
    const struct ox_op_linear_backward op = backward_op(products);
    return products->gpu->ops.linear_backward(products->gpu->lane, &op);
}

static const char *real_of(const struct products *products) {
    return ox_bench_real_name(products->gpu->compute.real);
}

static double flops_of(const struct products *products, bool backward) {
    const double product = 2.0 * products->shape.rows * products->layer->in_count * products->layer->out_count;
    return backward ? 2.0 * product : product;
}

/* The one that the engine takes against all that are offered, each timed alone. */
static enum ox_status compare(struct products *products, bool backward) {
    const struct ox_op_linear_forward forward = forward_op(products);
    const struct ox_op_linear_backward back = backward_op(products);
    struct ox_cuda_search search = {.rounds = products->rounds};
    struct ox_device *const device = products->gpu->device;
    const enum ox_status status = backward ? ox_cuda_linear_search(device, NULL, &back, &search)
                                           : ox_cuda_linear_search(device, &forward, NULL, &search);
    if (status == OX_OK && search.taken_seconds > 0.0) {
        const double share = search.best_seconds / search.taken_seconds;
        ox_bench_add(products->bench, &(struct ox_bench_figure){.value = share, .unit = OX_BENCH_SHARE,
                                                                .limit = BEST_LIMIT, .ratio = share / BEST_LIMIT},
                     "gemm.gpu.%s.%s.%s.of_best_of_%" PRIu32, products->layer->name,
                     backward ? "backward" : "forward", real_of(products), search.offered);
    }
    return status;
}

static enum ox_status measure(struct products *products, bool backward, double *seconds) {
    const struct ox_bench_work work = {.queue = backward ? queue_backward : queue_forward, .context = products};
    const enum ox_status status = ox_bench_device_time(products->gpu, &work, products->rounds, seconds);
    if (status != OX_OK) {
        return status;
    }
    ox_bench_add(products->bench, &(struct ox_bench_figure){.value = flops_of(products, backward) / *seconds,
                                                            .unit = "FLOP/s"}, "gemm.gpu.%s.%s.%s",
                 products->layer->name, backward ? "backward" : "forward", real_of(products));
    return products->bench->brief ? OX_OK : compare(products, backward);
}

/* Of a block, whose products the profile's rates are of, and the head. */
static enum ox_status measure_all(struct products *products, enum ox_real real) {
    double block_seconds = 0.0, block_flops = 0.0;
    enum ox_status status = OX_OK;
    products->gpu->compute.real = real;
    carve(products, ox_real_bytes(real));
    for (unsigned i = 0; i < LAYER_COUNT && status == OX_OK; i++) {
        products->layer = &products->layers[i];
        for (int backward = 0; backward < 2 && status == OX_OK; backward++) {
            double seconds = 0.0;
            status = measure(products, backward, &seconds);
            block_seconds += i + 1 < LAYER_COUNT ? seconds : 0.0;
            block_flops += i + 1 < LAYER_COUNT ? flops_of(products, backward) : 0.0;
        }
    }
    if (status == OX_OK) {
        ox_bench_add(products->bench, &(struct ox_bench_figure){.value = block_flops / block_seconds,
                                                                .unit = "FLOP/s"}, "gemm.gpu.block.%s",
                     ox_bench_real_name(real));
    }
    return status;
}

enum ox_status ox_bench_gpu_gemm(struct ox_bench *bench) {
    struct ox_bench_device *const gpu = bench->gpu;
    struct products products = {.bench = bench, .gpu = gpu, .rounds = ox_bench_rounds(bench, 5, 3)};
    const uint64_t requested = bench->config->size_bytes;
    const struct ox_bench_room room = {.bytes = bytes_of,
                                       .most = requested != 0 ? requested : gpu->facts.free_bytes / 2};
    void *memory = NULL;
    if (!ox_bench_shape_choose(gpu, &room, &products.shape)) {
        return ox_fail(OX_E_CONFIG, "--size: %" PRIu64 " bytes are too few for the matrices of a GPU; give at least "
                       "%" PRIu64, room.most, bytes_of(NULL, &products.shape));
    }
    products.bytes = bytes_of(NULL, &products.shape);
    enum ox_status status = ox_bench_device_numbers(gpu, products.bytes, &memory);
    if (status != OX_OK) {
        return status;
    }
    products.memory = memory;
    name_layers(&products.shape, products.layers);
    ox_bench_note(bench, "gemm: GPU, %" PRIu32 " rows, hidden %" PRIu32 ", width %" PRIu32 ", vocabulary %" PRIu32
                  ", median of %" PRIu32 " rounds", products.shape.rows, products.shape.hidden, products.shape.width,
                  products.shape.vocab, products.rounds);
    for (unsigned real = OX_REAL_F32; real <= OX_BENCH_REAL_LAST && status == OX_OK; real++) {
        status = measure_all(&products, real);
    }
    ox_device_mem_close(gpu->device, memory, products.bytes);
    return status;
}
