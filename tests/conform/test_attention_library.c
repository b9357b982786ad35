/* Attention by the emulated cuDNN of tests/simt against the CPU's, on the same bfloat16 numbers: that the graphs mean
 * attention, that their strides fit our rows, that slices add up and stay within the scratch, which engine is chosen,
 * and what is left to our own kernels. */
#include "base/hash/hash.h"
#include "base/planes.h"
#include "kernels/attention_slices.h"
#include "kernels/cuda.h"
#include "tests/kit/device/ops_kit.h"
#include "tests/kit/device/simt_kit.h"

#include <math.h>
#include <string.h>

/* The scratch limit of the emulation. */
enum { SLICE_BYTES = 200 << 10 };

static const struct ox_attention_shape shapes[] = {
    {.batch = 1, .seq = 2, .heads = 1, .kv_heads = 1, .head_dim = 8},
    {.batch = 2, .seq = 7, .heads = 8, .kv_heads = 1, .head_dim = 16},
    {.batch = 4, .seq = 7, .heads = 4, .kv_heads = 2, .head_dim = 8},
    {.batch = 6, .seq = 64, .heads = 2, .kv_heads = 1, .head_dim = 16},
    {.batch = 2, .seq = 65, .heads = 12, .kv_heads = 6, .head_dim = 24},
    {.batch = 1, .seq = 200, .heads = 4, .kv_heads = 4, .head_dim = 40},
    {.batch = 2, .seq = 193, .heads = 4, .kv_heads = 2, .head_dim = 32},
    {.batch = 1, .seq = 130, .heads = 2, .kv_heads = 1, .head_dim = 128},
    {.batch = 2, .seq = 70, .heads = 2, .kv_heads = 1, .head_dim = 32, .window = 1},
    {.batch = 3, .seq = 100, .heads = 6, .kv_heads = 2, .head_dim = 16, .window = 37},
    {.batch = 1, .seq = 90, .heads = 2, .kv_heads = 2, .head_dim = 8, .window = 89},
    {.batch = 1, .seq = 90, .heads = 2, .kv_heads = 2, .head_dim = 8, .window = 90},
};
enum { SHAPE_COUNT = sizeof shapes / sizeof shapes[0] };

/* Without the library, which the emulation has only when it is told to. */
static void test_absent(void) {
    struct lab lab;
    lab_open_simt(&lab);
    CHECK(lab_owns_attention(&lab, OX_REAL_BF16));
    ox_lane_close(&lab.lane);
    ox_device_close(&lab.device);
}

static uint16_t *packed(const float *from, size_t count) {
    uint16_t *const out = guarded(count * sizeof *out);
    for (size_t i = 0; i < count; i++) {
        out[i] = ox_bf16_from_f32(from[i]);
    }
    return out;
}

static float *unpacked(const uint16_t *from, size_t count) {
    float *const out = floats(count);
    for (size_t i = 0; i < count; i++) {
        out[i] = ox_bf16_to_f32(from[i]);
    }
    return out;
}

struct sizes {
    size_t qkv, out, lse;
};

static struct sizes sizes_of(const struct ox_attention_shape *shape) {
    const size_t rows = (size_t)shape->batch * shape->seq;
    return (struct sizes){.qkv = rows * (shape->heads + 2 * shape->kv_heads) * shape->head_dim,
                          .out = rows * shape->heads * shape->head_dim, .lse = rows * shape->heads};
}

/* Both passes of one lab. */
struct passes {
    const void *qkv, *dout;
    void *out, *dqkv;
    float *lse;
};

static void run(struct lab *lab, const struct ox_attention_shape *shape, enum ox_real real,
                const struct passes *passes) {
    lab->compute.real = real;
    void *const scratch = guarded(ox_ops_attention_scratch_bytes(&lab->compute, shape));
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, attention_forward, &(struct ox_op_attention_forward){
        .out = passes->out, .lse = passes->lse, .qkv = passes->qkv, .scratch = scratch, .shape = *shape,
        .real = real}));
    REQUIRE_OK(OX_QUEUE(&lab->ops, lab->lane, attention_backward, &(struct ox_op_attention_backward){
        .dqkv = passes->dqkv, .dout = passes->dout, .qkv = passes->qkv, .out = passes->out, .lse = passes->lse,
        .scratch = scratch, .shape = *shape, .real = real}));
    lab_finish(lab);
}

/* Forward, and the slices of backward; none where these would be too small for the processors of the emulation. */
static unsigned runs_of(const struct ox_attention_shape *shape) {
    struct ox_attention_slices slices;
    CHECK(ox_attention_slices_of(shape, SLICE_BYTES, &slices));
    if (!ox_attention_slices_fill(shape, &slices, SIMT_PROCESSORS)) {
        return 1;
    }
    return 1 + shape->batch / slices.batch * (shape->kv_heads / slices.kv_heads);
}

static void test_shape(struct lab *cpu, struct lab *simt, const struct simt *library, struct ox_attention_shape shape) {
    shape.scale = (float)(1.0 / sqrt((double)shape.head_dim));
    const struct sizes n = sizes_of(&shape);
    const uint16_t *const qkv = packed(random_floats(n.qkv, 1, 1.0), n.qkv);
    const uint16_t *const dout = packed(random_floats(n.out, 2, 1.0), n.out);
    const struct passes plain = {unpacked(qkv, n.qkv), unpacked(dout, n.out), floats(n.out), floats(n.qkv),
                                 floats(n.lse)};
    run(cpu, &shape, OX_REAL_F32, &plain);
    const unsigned before = *library->cudnn_run_count;
    struct passes halves[2];
    for (int i = 0; i < 2; i++) {
        halves[i] = (struct passes){qkv, dout, guarded(n.out * 2), guarded(n.qkv * 2), floats(n.lse)};
        run(simt, &shape, OX_REAL_BF16, &halves[i]);
    }
    CHECK(*library->cudnn_run_count - before == 2 * runs_of(&shape));
    check_error("out", error_of(unpacked(halves[0].out, n.out), widened(plain.out, n.out), n.out), 7e-3);
    check_error("lse", error_of(halves[0].lse, widened(plain.lse, n.lse), n.lse), 5e-7);
    check_error("dqkv", error_of(unpacked(halves[0].dqkv, n.qkv), widened(plain.dqkv, n.qkv), n.qkv), 1.2e-2);
    CHECK(memcmp(halves[0].out, halves[1].out, n.out * 2) == 0);
    CHECK(memcmp(halves[0].dqkv, halves[1].dqkv, n.qkv * 2) == 0);
    guards_end(0);
}

/* In float32 nothing is asked of the library. */
static void test_float(struct lab *cpu, struct lab *simt, const struct simt *library) {
    struct ox_attention_shape shape = shapes[2];
    shape.scale = 0.5f;
    const struct sizes n = sizes_of(&shape);
    const float *const qkv = random_floats(n.qkv, 1, 1.0), *const dout = random_floats(n.out, 2, 1.0);
    const unsigned before = *library->cudnn_run_count;
    struct lab *const labs[2] = {cpu, simt};
    struct passes passes[2];
    for (int i = 0; i < 2; i++) {
        passes[i] = (struct passes){qkv, dout, floats(n.out), floats(n.qkv), floats(n.lse)};
        run(labs[i], &shape, OX_REAL_F32, &passes[i]);
    }
    CHECK(*library->cudnn_run_count == before);
    check_error("dqkv, float32", error_of(passes[1].dqkv, widened(passes[0].dqkv, n.qkv), n.qkv), 3e-7);
    guards_end(0);
}

/* A cut divides, keeps to its limit where one head does, and is refused where that wants too much. */
static void test_slices(void) {
    struct ox_attention_slices slices;
    for (uint32_t i = 0; i < 2000; i++) {
        const uint32_t kv_heads = 1 + (uint32_t)(ox_hash64(&i, sizeof i, 1) % 16);
        const uint32_t group = 1 + (uint32_t)(ox_hash64(&i, sizeof i, 2) % 8);
        const struct ox_attention_shape shape = {
            .batch = 1 + (uint32_t)(ox_hash64(&i, sizeof i, 3) % 12), .heads = kv_heads * group, .kv_heads = kv_heads,
            .seq = 1 + (uint32_t)(ox_hash64(&i, sizeof i, 4) % (i % 2 == 0 ? 600 : 9000)), .head_dim = 64};
        if (!ox_attention_slices_of(&shape, OX_ATTENTION_SLICE_BYTES, &slices)) {
            CHECK(2ull * group * shape.seq * shape.seq > 200u << 20);
            CHECK(ox_attention_library_scratch_bytes(&shape) == OX_ATTENTION_LIBRARY_BYTES);
            continue;
        }
        CHECK(shape.batch % slices.batch == 0 && shape.kv_heads % slices.kv_heads == 0);
        CHECK(slices.batch == 1 || slices.kv_heads == shape.kv_heads);
        CHECK((slices.batch == 1 && slices.kv_heads == 1) ||
              slices.sums_bytes + slices.library_bytes <= OX_ATTENTION_SLICE_BYTES);
        CHECK(ox_attention_library_scratch_bytes(&shape) == slices.sums_bytes + slices.library_bytes);
        CHECK(slices.sums_bytes + slices.library_bytes <= 320u << 20);
    }
}

/* Heads of their own over 4096 tokens, as in most models of 7 and 13 billion parameters: enough at once for a GPU. */
static void test_long(void) {
    for (uint32_t heads = 32; heads <= 40; heads += 8) {
        const struct ox_attention_shape shape = {.batch = 1, .seq = 4096, .heads = heads, .kv_heads = heads,
                                                 .head_dim = 128};
        struct ox_attention_slices slices;
        CHECK(ox_attention_slices_of(&shape, OX_ATTENTION_SLICE_BYTES, &slices));
        CHECK(slices.kv_heads == 8 && ox_attention_slices_fill(&shape, &slices, 170));
    }
    const struct ox_attention_shape longer = {.batch = 2, .seq = 8192, .heads = 32, .kv_heads = 32, .head_dim = 128};
    struct ox_attention_slices slices;
    CHECK(ox_attention_slices_of(&longer, OX_ATTENTION_SLICE_BYTES, &slices) && slices.kv_heads == 2);
    CHECK(ox_attention_slices_fill(&longer, &slices, 128) && !ox_attention_slices_fill(&longer, &slices, 132));
}

int main(void) {
    const struct simt *const library = simt_open();
    struct lab cpu = {.compute = {.device = OX_DEVICE_CPU, .threads = 1}}, simt;
    struct ox_cuda_device_info facts;
    test_absent();
    *library->cudnn_is_there = true;
    lab_open_simt(&simt);
    REQUIRE_OK(ox_cuda_device_query(simt.device, &facts));
    CHECK(strcmp(facts.attention, "cuDNN 9.19.0") == 0);
    REQUIRE_OK(ox_cpu_device_open(&(struct ox_cpu_device_config){.thread_count = 1}, &cpu.device));
    REQUIRE_OK(ox_device_lane_open(cpu.device, "compute", &cpu.lane));
    ox_ops_init_cpu(&cpu.ops);
    test_slices();
    test_long();
    test_float(&cpu, &simt, library);
    unsigned cut = 0, left = 0;
    for (int i = 0; i < SHAPE_COUNT; i++) {
        test_shape(&cpu, &simt, library, shapes[i]);
        cut += runs_of(&shapes[i]) > 2;
        left += runs_of(&shapes[i]) == 1;
    }
    CHECK(cut >= 4 && left == 1);
    ox_lane_close(&simt.lane);
    ox_device_close(&simt.device);
    ox_lane_close(&cpu.lane);
    ox_device_close(&cpu.device);
    print_errors();
    return test_end();
}
