/* GEMMs in bf16 over a library of this test's own, on any processor: what its blocks add up to, that each thread keeps
 * it at one thread, and that its failure fails the operation. */
#include "base/planes.h"
#include "kernels/cpu/onednn.h"
#include "kernels/ops.h"
#include "tests/kit/test.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

const struct ox_onednn *__wrap_ox_onednn_open(const char **text);

static _Thread_local int threads_of_library = 64; /* as OpenMP has it for a thread that nobody told */
static atomic_int error, calls, crowded_calls;

static void set_threads(int count) {
    threads_of_library = count;
}

static int multiply(char a_form, char b_form, int64_t m, int64_t n, int64_t k, float alpha, const uint16_t *a,
                    int64_t a_stride, const uint16_t *b, int64_t b_stride, float beta, float *c, int64_t c_stride) {
    atomic_fetch_add(&calls, 1);
    atomic_fetch_add(&crowded_calls, threads_of_library != 1);
    CHECK(alpha == 1.0f);
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            float sum = beta == 0.0f ? 0.0f : beta * c[i * c_stride + j];
            for (int64_t at = 0; at < k; at++) {
                sum += ox_bf16_to_f32(a[a_form == 'T' ? at * a_stride + i : i * a_stride + at]) *
                       ox_bf16_to_f32(b[b_form == 'T' ? j * b_stride + at : at * b_stride + j]);
            }
            c[i * c_stride + j] = sum;
        }
    }
    return atomic_load(&error);
}

const struct ox_onednn *__wrap_ox_onednn_open(const char **text) {
    static const struct ox_onednn library = {.gemm = multiply, .set_threads = set_threads};
    *text = "a library of the test";
    return &library;
}

/* Small whole numbers: every product and sum is exact, in any order. */
static float *numbers(size_t count, unsigned period) {
    float *const out = malloc(count * sizeof *out);
    for (size_t i = 0; i < count; i++) {
        out[i] = (float)(i % period) - 2.0f;
    }
    return out;
}

struct bench {
    struct ox_device *device;
    struct ox_lane *lane;
    struct ox_ops ops;
};

static enum ox_status run_forward(struct bench *bench, uint32_t rows, uint32_t in_count, uint32_t out_count) {
    float *const in = numbers((size_t)rows * in_count, 5), *const weight = numbers((size_t)in_count * out_count, 7);
    float *const bias = numbers(out_count, 3), *const out = malloc((size_t)rows * out_count * sizeof *out);
    const struct ox_op_linear_forward forward = {.out = out, .in = in, .weight = weight, .bias = bias, .rows = rows,
                                                 .in_count = in_count, .out_count = out_count,
                                                 .layout = OX_WEIGHT_IN_OUT};
    enum ox_status status = OX_QUEUE(&bench->ops, bench->lane, linear_forward, &forward);
    OX_THEN(status, ox_lane_drain(bench->lane));
    unsigned wrong = 0;
    for (uint32_t row = 0; row < rows && status == OX_OK; row++) {
        for (uint32_t i = 0; i < out_count; i++) {
            float sum = bias[i];
            for (uint32_t j = 0; j < in_count; j++) {
                sum += in[(size_t)row * in_count + j] * weight[(size_t)j * out_count + i];
            }
            wrong += out[(size_t)row * out_count + i] != sum;
        }
    }
    CHECK(wrong == 0);
    free(in);
    free(weight);
    free(bias);
    free(out);
    return status;
}

int main(void) {
    struct bench bench;
    const struct ox_cpu_device_config config = {.thread_count = 3, .products = OX_REAL_BF16};
    REQUIRE_OK(ox_cpu_device_open(&config, &bench.device));
    REQUIRE_OK(ox_device_lane_open(bench.device, "compute", &bench.lane));
    ox_ops_init_cpu(&bench.ops);

    REQUIRE_OK(run_forward(&bench, 70, 33, 65));
    REQUIRE_OK(run_forward(&bench, 3, 4200, 2000)); /* two blocks of sums, two of columns */
    CHECK(atomic_load(&calls) > 0);
    atomic_store(&calls, 0);
    REQUIRE_OK(run_forward(&bench, 1, 33, 65)); /* one row stays in fp32 */
    CHECK(atomic_load(&calls) == 0 && atomic_load(&crowded_calls) == 0);

    atomic_store(&error, 1);
    CHECK(run_forward(&bench, 70, 33, 65) == OX_E_NOMEM);
    CHECK(strstr(ox_error_text(), "oneDNN could not compute a matrix product (its error 1)") != NULL);
    ox_lane_close(&bench.lane);
    ox_device_close(&bench.device);
    return test_end();
}
