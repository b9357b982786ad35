/* Grouped products beside a loop of linear layers, one for each expert, of the same device: shapes of Qwen3-30B-A3B's
 * gate and up, by turns in one run, in seconds of the process, so that a busy machine does not matter. Exits 1 where
 * grouped products take longer than LIMIT of the loop. Options: number of threads (1), rounds (5). bench_grouped.py
 * adds PyTorch's. */
#include "kernels/device.h"
#include "kernels/ops.h"
#include "tests/kit/test.h"

#include <string.h>
#include <time.h>

enum { EXPERTS = 16, IN = 2048, OUT = 1536, ROWS_MAX = 256 };
static const double LIMIT = 1.35;

struct bench {
    struct ox_device *device;
    struct ox_lane *lane;
    struct ox_ops ops;
    float *in, *out, *weight, *dweight, *din, *scratch;
    int32_t offsets[EXPERTS + 1];
    uint32_t rows, threads; /* rows of each expert */
};

static float *room(size_t count) {
    float *const memory = aligned_alloc(64, count * sizeof *memory);
    if (memory == NULL) {
        exit(1);
    }
    for (size_t i = 0; i < count; i++) {
        memory[i] = (float)(i % 13) * 0.01f;
    }
    return memory;
}

static void grouped(struct bench *b, bool backward) {
    const struct ox_experts experts = {.offsets = b->offsets, .count = EXPERTS, .rows_max = EXPERTS * b->rows};
    struct ox_run run = {.ops = &b->ops, .lane = b->lane};
    if (backward) {
        OX_RUN(&run, grouped_backward, .din = b->din, .dweight = b->dweight, .dout = b->out, .in = b->in,
               .weight = b->weight, .scratch = b->scratch, .experts = experts, .in_count = IN, .out_count = OUT);
    } else {
        OX_RUN(&run, grouped_forward, .out = b->out, .in = b->in, .weight = b->weight, .scratch = b->scratch,
               .experts = experts, .in_count = IN, .out_count = OUT);
    }
    REQUIRE_OK(run.status);
}

static void loop(struct bench *b, bool backward) {
    struct ox_run run = {.ops = &b->ops, .lane = b->lane};
    for (size_t e = 0; e < EXPERTS; e++) {
        float *const out = b->out + e * b->rows * OUT, *const weight = b->weight + e * IN * OUT;
        float *const in = b->in + e * b->rows * IN;
        if (backward) {
            OX_RUN(&run, linear_backward, .din = b->din + e * b->rows * IN, .dweight = b->dweight + e * IN * OUT,
                   .dout = out, .in = in, .weight = weight, .rows = b->rows, .in_count = IN, .out_count = OUT);
        } else {
            OX_RUN(&run, linear_forward, .out = out, .in = in, .weight = weight, .rows = b->rows, .in_count = IN,
                   .out_count = OUT);
        }
    }
    REQUIRE_OK(run.status);
}

static double seconds_of(struct bench *b, void (*pass)(struct bench *, bool), bool backward) {
    const clock_t begin = clock();
    pass(b, backward);
    REQUIRE_OK(ox_lane_drain(b->lane));
    return (double)(clock() - begin) / CLOCKS_PER_SEC / b->threads;
}

static void measure(struct bench *b, bool backward, int rounds) {
    double best[2] = {1e9, 1e9};
    const double flops = (backward ? 4.0 : 2.0) * EXPERTS * b->rows * IN * OUT;
    for (int i = 0; i < 2 * rounds; i++) {
        const double seconds = seconds_of(b, i % 2 == 0 ? grouped : loop, backward);
        best[i % 2] = seconds < best[i % 2] ? seconds : best[i % 2];
    }
    printf("%4u rows an expert, %-8s grouped %7.1f GFLOP/s, loop %7.1f, grouped is %.2f times as fast\n", b->rows,
           backward ? "backward" : "forward", 1e-9 * flops / best[0], 1e-9 * flops / best[1], best[1] / best[0]);
    fflush(stdout);
    CHECK(best[0] <= LIMIT * best[1]);
}

int main(int argc, char **argv) {
    const struct ox_cpu_device_config config = {.thread_count = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1};
    const struct ox_compute compute = {.device = OX_DEVICE_CPU, .threads = config.thread_count};
    const int rounds = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 5;
    static const uint32_t rows[] = {4, 16, 64, ROWS_MAX};
    struct bench b = {.threads = config.thread_count, .in = room((size_t)EXPERTS * ROWS_MAX * IN),
                      .din = room((size_t)EXPERTS * ROWS_MAX * IN),
                      .out = room((size_t)EXPERTS * ROWS_MAX * OUT), .weight = room((size_t)EXPERTS * IN * OUT),
                      .dweight = room((size_t)EXPERTS * IN * OUT)};
    b.scratch = room(ox_ops_grouped_scratch_bytes(&compute, IN, OUT) / sizeof(float) + 16);
    REQUIRE_OK(ox_cpu_device_open(&config, &b.device));
    REQUIRE_OK(ox_device_lane_open(b.device, "compute", &b.lane));
    ox_ops_init_cpu(&b.ops);
    for (size_t i = 0; i < 2 * sizeof rows / sizeof *rows; i++) {
        b.rows = rows[i / 2];
        for (uint32_t e = 0; e <= EXPERTS; e++) {
            b.offsets[e] = (int32_t)(e * b.rows);
        }
        measure(&b, i % 2 != 0, rounds);
    }
    ox_lane_close(&b.lane);
    ox_device_close(&b.device);
    float *const memory[] = {b.in, b.din, b.out, b.weight, b.dweight, b.scratch};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) {
        free(memory[i]);
    }
    return test_end();
}
