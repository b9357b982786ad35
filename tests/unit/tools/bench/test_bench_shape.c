/* What `offload bench gemm` and `ops` measure for a model are the products of its steps: their sizes are those of the
 * weights, and their operations those that a plan counts. */
#include "engine/family/families.h"
#include "engine/model/units.h"
#include "tests/kit/test.h"
#include "tools/bench/bench_device.h"

#include <math.h>

static const struct ox_model_config models[] = {
    {.family = "llama", .vocab = 512, .hidden = 128, .layers = 1, .heads = 4, .kv_heads = 4, .head_dim = 32,
     .width = 352, .contexts = 96, .norm = OX_NORM_RMS, .act = OX_ACTIVATION_SWIGLU, .layout = OX_WEIGHT_OUT_IN,
     .norm_eps = 1e-5f, .rope = true, .rope_theta = 10000.0, .rotary_part = 1.0, .rotary_dim = 32},
    {.family = "qwen3", .vocab = 512, .hidden = 128, .layers = 1, .heads = 8, .kv_heads = 2, .head_dim = 32,
     .width = 320, .contexts = 4096, .norm = OX_NORM_RMS, .act = OX_ACTIVATION_SWIGLU, .layout = OX_WEIGHT_OUT_IN,
     .norm_eps = 1e-6f, .rope = true, .rope_theta = 10000.0, .rotary_part = 1.0, .rotary_dim = 32,
     .tied = true},
    {.family = "gpt2", .vocab = 512, .hidden = 128, .layers = 1, .heads = 4, .kv_heads = 4, .head_dim = 32,
     .width = 512, .contexts = 64, .norm = OX_NORM_LAYER, .act = OX_ACTIVATION_GELU_TANH, .layout = OX_WEIGHT_IN_OUT,
     .norm_eps = 1e-5f, .tied = true, .attention_bias = true, .mlp_bias = true, .norm_bias = true, .out_bias = true},
};

static struct ox_bench_shape shape_of(const struct ox_model_config *model) {
    return (struct ox_bench_shape){
        .seq = model->contexts, .hidden = model->hidden, .width = model->width, .vocab = model->vocab,
        .heads = model->heads, .kv_heads = model->kv_heads, .head_dim = model->head_dim,
        .gated = ox_activation_is_gated(model->act), .transposed = model->layout == OX_WEIGHT_IN_OUT};
}

/* Elements of all tensors of a role in a unit. */
static uint64_t elems_of(const struct ox_model *model, uint32_t unit_idx, enum ox_role role) {
    uint64_t elems = 0;
    for (uint32_t i = 0; i < model->units[unit_idx].tensor_count; i++) {
        const struct ox_tensor *const tensor = &model->tensors[model->units[unit_idx].tensor_first + i];
        elems += tensor->role == role ? tensor->count : 0;
    }
    return elems;
}

/* Whether the tensors of a case are trained: all but the block; but one matrix; but what comes before the first
 * product; but both of these. */
static bool is_trained(const struct ox_model *model, uint32_t block, const struct ox_tensor *tensor, int how) {
    const bool in_block = tensor->unit_idx == block, down = in_block && tensor->role == OX_ROLE_DOWN;
    const bool before = tensor->unit_idx == model->embed_idx ||
                        (in_block && (tensor->role == OX_ROLE_NORM1 || tensor->role == OX_ROLE_NORM1_BIAS));
    return !(how == 0 ? in_block : how == 1 ? down : how == 2 ? before : before || down);
}

/* What is frozen costs backward no products for its gradient, and a product none for its input's where nothing before
 * it is trained. */
static void check_frozen(struct ox_model *model, const struct ox_shape *shape, double flops) {
    const uint32_t block = model->stages[1];
    const struct ox_unit *const unit = &model->units[block];
    const double qkv = 2.0 * shape->rows * (double)elems_of(model, block, OX_ROLE_QKV);
    const double down = 2.0 * shape->rows * (double)elems_of(model, block, OX_ROLE_DOWN);
    const double expected[] = {flops, 2 * flops - down, 2 * flops - qkv, 2 * flops - qkv - down};
    for (int how = 0; how < 4; how++) {
        for (uint32_t i = 0; i < model->tensor_count; i++) {
            model->tensors[i].trained = is_trained(model, block, &model->tensors[i], how);
        }
        ox_model_settle_trained(model);
        CHECK(fabs(ox_unit_cost(shape, unit, OX_PASS_BACKWARD_KEPT).gemm_flops / expected[how] - 1) < 1e-12);
        CHECK(fabs(ox_unit_cost(shape, unit, OX_PASS_FORWARD).gemm_flops / flops - 1) < 1e-12);
    }
}

static void check_model(const struct ox_model_config *config) {
    static const enum ox_role roles[] = {[OX_BENCH_QKV] = OX_ROLE_QKV, [OX_BENCH_QKV_GQA] = OX_ROLE_COUNT,
                                         [OX_BENCH_PROJECTION] = OX_ROLE_OUT, [OX_BENCH_GATE_UP] = OX_ROLE_GATE_UP,
                                         [OX_BENCH_DOWN] = OX_ROLE_DOWN};
    enum { ROWS = 32 };
    struct ox_model *model = NULL;
    double flops = 0;
    REQUIRE_OK(ox_model_build(config, &model));
    const uint32_t block = model->stages[1];
    const struct ox_bench_shape sizes = shape_of(config);
    const struct ox_shape shape = {.model = model, .batch = 1, .seq = ROWS, .rows = ROWS,
                                   .compute = {.device = OX_DEVICE_CUDA, .real = OX_REAL_BF16}};
    for (int i = 0; i < OX_BENCH_HEAD; i++) {
        const struct ox_bench_layer layer = ox_bench_layer_of(&sizes, (enum ox_bench_product)i);
        if (i != OX_BENCH_QKV_GQA) {
            CHECK(layer.in_block && layer.layout == config->layout);
            CHECK((uint64_t)layer.in_count * layer.out_count == elems_of(model, block, roles[i]));
            CHECK(layer.residual == (layer.out_count == config->hidden));
            flops += 2.0 * ROWS * layer.in_count * layer.out_count;
        }
    }
    CHECK(fabs(ox_unit_cost(&shape, &model->units[block], OX_PASS_FORWARD_KEPT).gemm_flops / flops - 1) < 1e-12);
    CHECK(fabs(ox_unit_cost(&shape, &model->units[block], OX_PASS_BACKWARD_KEPT).gemm_flops / (2 * flops) - 1) < 1e-12);
    check_frozen(model, &shape, flops);
    const struct ox_bench_layer head = ox_bench_layer_of(&sizes, OX_BENCH_HEAD);
    CHECK(head.in_count == config->hidden && head.out_count == config->vocab && head.layout == OX_WEIGHT_OUT_IN);
    struct ox_bench_layer layers[OX_BENCH_PRODUCT_COUNT];
    CHECK(ox_bench_layers(&sizes, layers) == OX_BENCH_PRODUCT_COUNT - 1); /* its own kind of heads alone */
    ox_model_close(&model);
}

static uint64_t by_rows(const void *context, const struct ox_bench_shape *shape) {
    (void)context;
    return (uint64_t)shape->rows * 1000 + shape->hidden;
}

/* The sizes of a model stay as they are where room is short; the fixed ones are halved. */
static void test_choice(void) {
    static struct ox_bench bench;
    const struct ox_bench_device gpu = {.compute = {.device = OX_DEVICE_CUDA}}, cpu = {0};
    struct ox_bench_limit room = {.bytes = by_rows};
    struct ox_bench_shape shape;
    struct ox_bench_layer layers[OX_BENCH_PRODUCT_COUNT];
    CHECK(ox_bench_shape_choose(&bench, &gpu, &room, &shape));
    CHECK(shape.rows == 8192 && shape.seq == 4096 && shape.hidden == 4096 && shape.heads == 0);
    CHECK(ox_bench_layers(&shape, layers) == OX_BENCH_PRODUCT_COUNT);
    CHECK(layers[OX_BENCH_QKV].out_count == 3 * 4096 && layers[OX_BENCH_QKV_GQA].out_count == 4096 + 2048);
    CHECK(layers[OX_BENCH_GATE_UP].out_count == 2 * 11008 && !layers[OX_BENCH_QKV_GQA].in_block);
    room.most = 3000 * 1000;
    CHECK(ox_bench_shape_choose(&bench, &cpu, &room, &shape) && shape.rows == 512 && shape.hidden == 2048);
    CHECK(ox_bench_shape_choose(&bench, &gpu, &room, &shape) && shape.rows == 2048 && shape.hidden == 1024);
    bench.model = shape_of(&models[0]);
    CHECK(ox_bench_shape_choose(&bench, &gpu, &room, &shape));
    CHECK(shape.seq == 96 && shape.rows > 1900 && shape.rows <= 2048 && shape.rows % 96 == 0);
    CHECK(shape.hidden == 128 && shape.vocab == 512 && shape.width == 352 && shape.heads == 4);
    bench.model = shape_of(&models[1]);
    CHECK(ox_bench_shape_choose(&bench, &cpu, &room, &shape) && shape.seq == 512 && shape.rows == 512);
    room.most = 32 * 1000;
    CHECK(!ox_bench_shape_choose(&bench, &cpu, &room, &shape));
}

int main(void) {
    for (unsigned i = 0; i < sizeof models / sizeof *models; i++) {
        check_model(&models[i]);
    }
    test_choice();
    return test_end();
}
