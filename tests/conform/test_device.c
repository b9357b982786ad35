/* The CPU device: memory, copies on lanes, ordering between lanes, failures, and its table. */
#include "base/clock.h"
#include "engine/ops_optim.h"
#include "kernels/ops.h"
#include "tests/test.h"

#include <stdint.h>
#include <string.h>

static void test_memory(struct ox_device *device) {
    void *memory = NULL;
    REQUIRE_OK(ox_device_mem_open(device, 100000, &memory));
    CHECK((uintptr_t)memory % 4096 == 0);
    memset(memory, 1, 100000);
    ox_device_mem_close(device, memory, 100000);
    ox_device_mem_close(device, NULL, 0);

    memory = device;
    CHECK(ox_device_mem_open(device, UINT64_C(1) << 60, &memory) == OX_E_NOMEM);
    CHECK(memory == NULL && strstr(ox_error_text(), "device") != NULL);
}

/* Copies ping-pong between two lanes; each waits for the other's mark, so the value arrives whatever
 * the lanes' speeds. */
static void test_order(struct ox_device *device) {
    enum { ROUNDS = 40, LEN = 1000 };
    static uint32_t left[LEN], right[LEN];
    struct ox_lane *first = NULL, *second = NULL;
    REQUIRE_OK(ox_device_lane_open(device, "first", &first));
    REQUIRE_OK(ox_device_lane_open(device, "second", &second));
    struct ox_ops ops;
    ox_ops_init_cpu(&ops);
    for (uint32_t i = 0; i < LEN; i++) {
        left[i] = i + 1;
        right[i] = 0;
    }
    struct ox_mark mark = {0};
    for (int round = 0; round < ROUNDS; round++) {
        const struct ox_copy there = {.target = right, .source = left, .bytes = sizeof left};
        const struct ox_copy back = {.target = left, .source = right, .bytes = sizeof left};
        const struct ox_op_zero wipe_left = {.target = left, .bytes = sizeof left};
        const struct ox_op_zero wipe_right = {.target = right, .bytes = sizeof right};
        REQUIRE_OK(ox_lane_wait(first, mark));
        REQUIRE_OK(ox_device_lane_copy(device, first, &there, NULL));
        REQUIRE_OK(ops.zero(first, &wipe_left));
        REQUIRE_OK(ops.mark(first, &mark));
        REQUIRE_OK(ox_lane_wait(second, mark));
        REQUIRE_OK(ox_device_lane_copy(device, second, &back, NULL));
        REQUIRE_OK(ops.zero(second, &wipe_right));
        REQUIRE_OK(ops.mark(second, &mark));
    }
    REQUIRE_OK(ox_mark_join(mark));
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < LEN; i++) {
        wrong += left[i] != i + 1 || right[i] != 0;
    }
    CHECK(wrong == 0);
    struct ox_mark copied = {0};
    REQUIRE_OK(ox_device_lane_copy(device, first, &(struct ox_copy){.bytes = 0}, &copied));
    REQUIRE_OK(ox_mark_join(copied));
    ox_lane_close(&second);
    ox_lane_close(&first);
}

/* Two lanes queue operations at once; they take turns on the pool. */
static void test_turns(struct ox_device *device) {
    enum { LEN = 300000, ROUNDS = 10 };
    float *const values = calloc(4 * LEN, sizeof(float));
    struct ox_lane *lanes[2] = {NULL, NULL};
    struct ox_ops ops;
    ox_ops_init_cpu(&ops);
    CHECK(values != NULL);
    for (int i = 0; i < LEN; i++) {
        values[i] = values[2 * LEN + i] = 1.0f;
    }
    REQUIRE_OK(ox_device_lane_open(device, "one", &lanes[0]));
    REQUIRE_OK(ox_device_lane_open(device, "two", &lanes[1]));
    for (int round = 0; round < ROUNDS; round++) {
        for (int lane = 0; lane < 2; lane++) {
            float *const mine = values + (size_t)lane * 2 * LEN;
            const struct ox_op_add op = {.target = mine + LEN, .a = mine + LEN, .b = mine, .count = LEN};
            REQUIRE_OK(ops.add(lanes[lane], &op));
        }
    }
    REQUIRE_OK(ox_lane_drain(lanes[0]));
    REQUIRE_OK(ox_lane_drain(lanes[1]));
    int wrong = 0;
    for (int i = 0; i < LEN; i++) {
        wrong += values[LEN + i] != (float)ROUNDS || values[3 * LEN + i] != (float)ROUNDS;
    }
    CHECK(wrong == 0);
    struct ox_ops_seconds seconds;
    ox_ops_cpu_take_seconds(device, &seconds);
    CHECK(seconds.seconds[OX_OPS_OTHER] > 0.0 && seconds.seconds[OX_OPS_HEAD] == 0.0);
    ox_ops_cpu_take_seconds(device, &seconds);
    CHECK(seconds.seconds[OX_OPS_OTHER] == 0.0);
    ox_lane_close(&lanes[0]);
    ox_lane_close(&lanes[1]);
    free(values);
}

/* Neither table has an empty entry: all bytes of both are pointers. */
static void test_tables(const struct ox_device *device) {
    struct ox_ops ops;
    memset(&ops, 0, sizeof ops);
    ox_ops_init_cpu(&ops);
    ox_ops_optim_init_cpu(&ops);
    const void *entries[sizeof ops / sizeof(void *)];
    memcpy(entries, &ops, sizeof ops);
    for (size_t i = 0; i < sizeof ops / sizeof(void *); i++) {
        CHECK(entries[i] != NULL);
    }
    const void *device_entries[sizeof *device->ops / sizeof(void *)];
    memcpy(device_entries, device->ops, sizeof *device->ops);
    for (size_t i = 0; i < sizeof *device->ops / sizeof(void *); i++) {
        CHECK(device_entries[i] != NULL);
    }
    CHECK(strcmp(ops.name, "cpu") == 0 && strcmp(device->ops->name, "cpu") == 0);
}

int main(void) {
    static const struct ox_cpu_device_config configs[] = {
        {.thread_count = 1},
        {.thread_count = 2},
        {.thread_count = 3, .chaos_seed = 11, .chaos_ns_max = 300000},
    };
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        struct ox_device *device = NULL;
        REQUIRE_OK(ox_cpu_device_open(&configs[i], &device));
        test_memory(device);
        test_order(device);
        test_turns(device);
        test_tables(device);
        ox_device_close(&device);
        CHECK(device == NULL);
        ox_device_close(&device);
    }
    return test_end();
}
