/* Part of `offload bench all`: measures the cost of submitting a task to a lane and joining its mark. */
#include "tools/bench/bench.h"

enum { TASKS = 2000 };

enum ox_status ox_bench_lane(struct ox_bench *bench) {
    double seconds = 0.0;
    const enum ox_status status = ox_probe_task_seconds(TASKS, ox_bench_rounds(bench, 9, 5), &seconds);
    if (status == OX_OK) {
        ox_bench_add(bench, &(struct ox_bench_figure){.value = seconds, .unit = "s"}, "lane.task");
    }
    return status;
}
