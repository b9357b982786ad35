/* The device, whichever it is: memory, pinned memory, copies on lanes, ordering between lanes, and its tables. Run for
 * the CPU, the CUDA plugin on the emulated runtime, and the GPU of this machine. */
#include "base/clock.h"
#include "engine/step/update/ops_optim.h"
#include "kernels/ops.h"
#include "tests/kit/device/simt_kit.h"

#include <stdint.h>
#include <string.h>

struct bench {
    struct ox_device *device;
    struct ox_ops ops;
    bool cpu;
};

static void join_copy(const struct bench *bench, struct ox_lane *lane, void *target, const void *source, size_t bytes) {
    struct ox_mark done = {0};
    const struct ox_copy copy = {.target = target, .source = source, .bytes = bytes};
    REQUIRE_OK(ox_device_lane_copy(bench->device, lane, &copy, &done));
    REQUIRE_OK(ox_mark_join(done));
}

/* Blocks of any size begin on a page and hold what is copied there, also the last byte. */
static void test_memory(const struct bench *bench) {
    static const uint64_t sizes[] = {1, 512, 4096, 100000, (1 << 20) + 7, 3 << 20};
    enum { BLOCKS = sizeof sizes / sizeof sizes[0] };
    void *blocks[BLOCKS];
    struct ox_lane *lane = NULL;
    REQUIRE_OK(ox_device_lane_open(bench->device, "copies", &lane));
    for (int i = 0; i < BLOCKS; i++) {
        unsigned char last = (unsigned char)(i + 1);
        REQUIRE_OK(ox_device_mem_open(bench->device, sizes[i], &blocks[i]));
        CHECK((uintptr_t)blocks[i] % 4096 == 0);
        join_copy(bench, lane, (unsigned char *)blocks[i] + sizes[i] - 1, &last, 1);
    }
    for (int i = 0; i < BLOCKS; i++) {
        unsigned char last = 0;
        join_copy(bench, lane, &last, (unsigned char *)blocks[i] + sizes[i] - 1, 1);
        CHECK(last == i + 1);
        ox_device_mem_close(bench->device, blocks[i], sizes[i]);
    }
    ox_device_mem_close(bench->device, NULL, 0);
    ox_lane_close(&lane);

    void *memory = blocks;
    CHECK(ox_device_mem_open(bench->device, UINT64_C(1) << 60, &memory) == OX_E_NOMEM);
    CHECK(memory == NULL && strstr(ox_error_text(), "device") != NULL);
}

/* Memory of odd sizes, of which only some of the bytes are copied. */
static void test_pins(const struct bench *bench) {
    static const uint64_t sizes[] = {1, 4095, 4097, 70001};
    struct ox_lane *lane = NULL;
    void *memory = NULL;
    REQUIRE_OK(ox_device_lane_open(bench->device, "copies", &lane));
    REQUIRE_OK(ox_device_mem_open(bench->device, 70001, &memory));
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        unsigned char *const host = aligned_alloc(4096, 20 * 4096);
        memset(host, 7, sizes[i]);
        for (int again = 0; again < 2; again++) {
            REQUIRE_OK(ox_device_host_pin(bench->device, host, sizes[i]));
            join_copy(bench, lane, memory, host, sizes[i]);
            memset(host, 0, sizes[i]);
            join_copy(bench, lane, host, memory, sizes[i]);
            CHECK(host[0] == 7 && host[sizes[i] - 1] == 7);
            REQUIRE_OK(ox_device_host_unpin(bench->device, host, sizes[i]));
        }
        free(host);
    }
    REQUIRE_OK(ox_device_host_pin(bench->device, NULL, 0));
    REQUIRE_OK(ox_device_host_unpin(bench->device, NULL, 0));
    ox_device_mem_close(bench->device, memory, 70001);
    ox_lane_close(&lane);
}

/* Copies ping-pong between two lanes; each waits for the other's mark, so the value arrives whatever
 * the lanes' speeds. */
static void test_order(const struct bench *bench) {
    enum { ROUNDS = 40, LEN = 1000 };
    uint32_t host[LEN];
    void *left = NULL, *right = NULL;
    struct ox_lane *first = NULL, *second = NULL;
    REQUIRE_OK(ox_device_lane_open(bench->device, "first", &first));
    REQUIRE_OK(ox_device_lane_open(bench->device, "second", &second));
    REQUIRE_OK(ox_device_mem_open(bench->device, sizeof host, &left));
    REQUIRE_OK(ox_device_mem_open(bench->device, sizeof host, &right));
    for (uint32_t i = 0; i < LEN; i++) {
        host[i] = i + 1;
    }
    join_copy(bench, first, left, host, sizeof host);
    struct ox_mark mark = {0};
    for (int round = 0; round < ROUNDS; round++) {
        const struct ox_copy there = {.target = right, .source = left, .bytes = sizeof host};
        const struct ox_copy back = {.target = left, .source = right, .bytes = sizeof host};
        const struct ox_op_zero wipe_left = {.target = left, .bytes = sizeof host};
        const struct ox_op_zero wipe_right = {.target = right, .bytes = sizeof host};
        REQUIRE_OK(ox_lane_wait(first, mark));
        REQUIRE_OK(ox_device_lane_copy(bench->device, first, &there, NULL));
        REQUIRE_OK(OX_QUEUE(&bench->ops, first, zero, &wipe_left));
        REQUIRE_OK(bench->ops.mark(first, &mark));
        REQUIRE_OK(ox_lane_wait(second, mark));
        REQUIRE_OK(ox_device_lane_copy(bench->device, second, &back, NULL));
        REQUIRE_OK(OX_QUEUE(&bench->ops, second, zero, &wipe_right));
        REQUIRE_OK(bench->ops.mark(second, &mark));
    }
    REQUIRE_OK(ox_mark_join(mark));
    for (int side = 0; side < 2; side++) {
        uint32_t wrong = 0;
        join_copy(bench, first, host, side == 0 ? left : right, sizeof host);
        for (uint32_t i = 0; i < LEN; i++) {
            wrong += host[i] != (side == 0 ? i + 1 : 0);
        }
        CHECK(wrong == 0);
    }
    join_copy(bench, first, NULL, NULL, 0);
    ox_device_mem_close(bench->device, left, sizeof host);
    ox_device_mem_close(bench->device, right, sizeof host);
    ox_lane_close(&second);
    ox_lane_close(&first);
}

/* Two lanes queue operations at once; on the CPU they take turns on the pool. */
static void test_turns(const struct bench *bench) {
    enum { ROUNDS = 10 };
    const int len = bench->cpu ? 300000 : 20000;
    const size_t bytes = 2 * (size_t)len * sizeof(float);
    float *const host = malloc(bytes);
    struct ox_lane *lanes[2] = {NULL, NULL};
    void *memory[2] = {NULL, NULL};
    CHECK(host != NULL);
    for (int lane = 0; lane < 2; lane++) {
        for (int i = 0; i < len; i++) {
            host[i] = (float)(lane + 1);
            host[len + i] = 0.0f;
        }
        REQUIRE_OK(ox_device_lane_open(bench->device, lane == 0 ? "one" : "two", &lanes[lane]));
        REQUIRE_OK(ox_device_mem_open(bench->device, bytes, &memory[lane]));
        join_copy(bench, lanes[lane], memory[lane], host, bytes);
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int lane = 0; lane < 2; lane++) {
            float *const mine = memory[lane];
            const struct ox_op_add op = {.target = mine + len, .a = mine + len, .b = mine, .count = (uint64_t)len};
            REQUIRE_OK(OX_QUEUE(&bench->ops, lanes[lane], add, &op));
        }
    }
    REQUIRE_OK(ox_lane_drain(lanes[0]));
    REQUIRE_OK(ox_lane_drain(lanes[1]));
    for (int lane = 0; lane < 2; lane++) {
        int wrong = 0;
        join_copy(bench, lanes[lane], host, memory[lane], bytes);
        for (int i = 0; i < len; i++) {
            wrong += host[len + i] != (float)(ROUNDS * (lane + 1));
        }
        CHECK(wrong == 0);
        ox_device_mem_close(bench->device, memory[lane], bytes);
        ox_lane_close(&lanes[lane]);
    }
    free(host);
}

static void test_seconds(struct ox_device *device) {
    struct ox_ops_seconds seconds;
    ox_ops_cpu_take_seconds(device, &seconds);
    CHECK(seconds.seconds[OX_OPS_OTHER] > 0.0 && seconds.seconds[OX_OPS_HEAD] == 0.0);
    ox_ops_cpu_take_seconds(device, &seconds);
    CHECK(seconds.seconds[OX_OPS_OTHER] == 0.0);
}

/* Neither table has an empty entry: all bytes of both are pointers. */
static void test_tables(const struct bench *bench) {
    const void *entries[sizeof bench->ops / sizeof(void *)];
    memcpy(entries, &bench->ops, sizeof bench->ops);
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        CHECK(entries[i] != NULL);
    }
    const void *device_entries[sizeof *bench->device->ops / sizeof(void *)];
    memcpy(device_entries, bench->device->ops, sizeof *bench->device->ops);
    for (size_t i = 0; i < sizeof device_entries / sizeof device_entries[0]; i++) {
        CHECK(device_entries[i] != NULL);
    }
    const char *const name = bench->cpu ? "cpu" : "cuda";
    CHECK(strcmp(bench->ops.name, name) == 0 && strcmp(bench->device->ops->name, name) == 0);
}

static void run_on(struct bench *bench) {
    test_memory(bench);
    test_pins(bench);
    test_order(bench);
    test_turns(bench);
    if (bench->cpu) {
        test_seconds(bench->device);
    }
    test_tables(bench);
    ox_device_close(&bench->device);
    CHECK(bench->device == NULL);
    ox_device_close(&bench->device);
}

static void run_cuda(const struct cuda_kit *kit) {
    struct bench bench;
    memset(&bench, 0, sizeof bench);
    REQUIRE_OK(ox_cuda_device_open(&(struct ox_cuda_config){.plugin_path = kit->plugin}, &bench.device));
    ox_ops_init_cuda(bench.device, &bench.ops);
    run_on(&bench);
}

int main(void) {
    static const struct ox_cpu_device_config configs[] = {
        {.thread_count = 1},
        {.thread_count = 2},
        {.thread_count = 3, .chaos_seed = 11, .chaos_ns_max = 300000},
    };
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        struct bench bench;
        memset(&bench, 0, sizeof bench);
        bench.cpu = true;
        REQUIRE_OK(ox_cpu_device_open(&configs[i], &bench.device));
        ox_ops_init_cpu(&bench.ops);
        ox_ops_optim_init_cpu(&bench.ops);
        run_on(&bench);
    }
    const struct simt *const simt = simt_open();
    run_cuda(&simt->kit);
    simt->guard(true);
    simt->set_delay(1, 100000);
    run_cuda(&simt->kit);
    simt->guard(false);
    CHECK(simt->device_bytes() == 0);
    struct cuda_kit kit;
    if (cuda_kit_real(&kit)) {
        run_cuda(&kit);
    }
    return test_end();
}
