/* Part of `offload bench all`: measures the cost of submitting a task to a lane and joining its mark. */
#include "tools/bench/bench.h"

#include "base/clock.h"
#include "base/lane.h"

enum { TASKS = 2000 };

static enum ox_status nothing(void *owner, const void *args) {
    (void)owner;
    (void)args;
    return OX_OK;
}

/* Measures seconds per task. */
static enum ox_status run_once(struct ox_lane *lane, double *seconds) {
    enum ox_status status = OX_OK;
    const uint64_t begin_ns = ox_clock_ns();
    for (unsigned i = 0; i < TASKS && status == OX_OK; i++) {
        struct ox_mark done;
        status = ox_host_lane_submit(lane, nothing, NULL, 0, &done);
        OX_TRY(status, ox_mark_join(done));
    }
    *seconds = (double)(ox_clock_ns() - begin_ns) * 1e-9 / TASKS;
    return status;
}

enum ox_status ox_bench_lane(struct ox_bench *bench) {
    double seconds[OX_BENCH_ROUNDS_MAX];
    const uint32_t rounds = ox_bench_rounds(bench, 9, 5);
    struct ox_lane *lane = NULL;
    enum ox_status status = ox_host_lane_open(&(struct ox_host_lane_config){.label = "bench", .queue_len = 4}, &lane);
    for (uint32_t i = 0; i < rounds && status == OX_OK; i++) {
        status = run_once(lane, &seconds[i]);
    }
    ox_lane_close(&lane);
    if (status == OX_OK) {
        ox_bench_add(bench, &(struct ox_bench_figure){.value = ox_bench_median(seconds, rounds), .unit = "s"},
                     "lane.task");
    }
    return status;
}
