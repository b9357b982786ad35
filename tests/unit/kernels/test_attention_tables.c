/* Attention with every table of vector loops that this processor has, against the plainest one; tests/conform compares
 * the widest with a reference in double. Scratch is of the size that is announced, and full of NaNs before: nothing
 * is read that was not computed, and no bit depends on the number of threads. */
#include "base/assert.h"
#include "kernels/cpu/cpu.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct ox_attention_shape shapes[] = {
    {.batch = 1, .seq = 1, .heads = 1, .kv_heads = 1, .head_dim = 1, .scale = 1.0f},
    {.batch = 2, .seq = 17, .heads = 2, .kv_heads = 1, .head_dim = 5, .scale = 0.5f},
    {.batch = 1, .seq = 129, .heads = 2, .kv_heads = 2, .head_dim = 72, .scale = 0.1f},
    {.batch = 1, .seq = 300, .heads = 4, .kv_heads = 2, .head_dim = 20, .window = 77, .scale = 0.2f},
    {.batch = 1, .seq = 400, .heads = 1, .kv_heads = 1, .head_dim = 64, .window = 130, .scale = 0.125f},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

struct tensors {
    float *qkv, *dout, *out, *lse, *dqkv;
    size_t qkv_len, out_len, lse_len;
};

static float *floats(size_t len) {
    float *const at = malloc(len * sizeof *at);
    OX_ASSERT(at != NULL);
    return at;
}

static struct tensors make(const struct ox_attention_shape *shape) {
    const size_t rows = (size_t)shape->batch * shape->seq;
    struct tensors t = {.qkv_len = rows * (shape->heads + 2 * shape->kv_heads) * shape->head_dim,
                        .out_len = rows * shape->heads * shape->head_dim,
                        .lse_len = rows * shape->heads};
    t.qkv = floats(t.qkv_len);
    t.dout = floats(t.out_len);
    t.out = floats(t.out_len);
    t.lse = floats(t.lse_len);
    t.dqkv = floats(t.qkv_len);
    for (size_t i = 0; i < t.qkv_len; i++) {
        t.qkv[i] = (float)(i * 7919 % 2003) * 0x1p-10f - 1.0f;
    }
    for (size_t i = 0; i < t.out_len; i++) {
        t.dout[i] = (float)(i * 104729 % 1999) * 0x1p-10f - 1.0f;
    }
    return t;
}

static void release(struct tensors *t) {
    free(t->qkv);
    free(t->dout);
    free(t->out);
    free(t->lse);
    free(t->dqkv);
}

static struct tensors run(const struct ox_attention_shape *shape, const struct ox_vector *vector, uint32_t threads) {
    struct ox_cpu cpu = {.vector = vector};
    REQUIRE_OK(ox_pool_open(threads, &cpu.pool));
    struct tensors t = make(shape);
    const uint64_t bytes = ox_cpu_attention_scratch_bytes(shape, threads);
    float *const scratch = floats(bytes / sizeof *scratch);
    memset(scratch, 0xff, bytes);
    ox_cpu_attention_forward(&cpu, &(struct ox_op_attention_forward){
        .out = t.out, .lse = t.lse, .qkv = t.qkv, .scratch = scratch, .shape = *shape});
    memset(scratch, 0xff, bytes);
    ox_cpu_attention_backward(&cpu, &(struct ox_op_attention_backward){
        .dqkv = t.dqkv, .qkv = t.qkv, .out = t.out, .lse = t.lse, .dout = t.dout, .scratch = scratch, .shape = *shape});
    free(scratch);
    ox_pool_close(&cpu.pool);
    return t;
}

/* The largest distance by the largest value; a NaN counts as infinite. */
static double distance(const float *a, const float *b, size_t len) {
    double most = 1e-30, apart = 0.0;
    for (size_t i = 0; i < len; i++) {
        most = fmax(most, fabs((double)b[i]));
        const double here = fabs((double)a[i] - (double)b[i]);
        apart = isnan(here) ? (double)INFINITY : fmax(apart, here);
    }
    return apart / most;
}

static bool same_bits(const struct tensors *a, const struct tensors *b) {
    return memcmp(a->out, b->out, a->out_len * sizeof *a->out) == 0 &&
           memcmp(a->lse, b->lse, a->lse_len * sizeof *a->lse) == 0 &&
           memcmp(a->dqkv, b->dqkv, a->qkv_len * sizeof *a->dqkv) == 0;
}

int main(void) {
    const struct ox_vector *list[OX_VECTOR_MAX];
    const uint32_t count = ox_vector_list(list);
    double worst = 0.0;
    for (uint32_t i = 0; i < SHAPES; i++) {
        struct tensors plain = run(&shapes[i], list[0], 1);
        for (uint32_t table = 0; table < count; table++) {
            struct tensors one = run(&shapes[i], list[table], 1), three = run(&shapes[i], list[table], 3);
            CHECK(same_bits(&one, &three));
            const double apart = fmax(fmax(distance(one.out, plain.out, plain.out_len),
                                           distance(one.lse, plain.lse, plain.lse_len)),
                                      distance(one.dqkv, plain.dqkv, plain.qkv_len));
            worst = fmax(worst, apart);
            release(&one);
            release(&three);
        }
        release(&plain);
    }
    printf("%u tables: furthest apart %.2e, allowed 3.00e-06\n", count, worst);
    CHECK(worst <= 3e-6);
    return test_end();
}
