/* `offload bench adam` on a GPU: runs the same update on planes in GPU memory, and compares it with a copy there and
 * with the processors of this machine. */
#include "tools/bench/bench_device.h"

#include "base/bytes.h"
#include "cpu_optim/optim.h"

#include <inttypes.h>

enum { PARAM_BYTES = 16, GRAIN = 4096, FULL_PARAMS = 256 << 20, BRIEF_PARAMS = 64 << 20 };

struct update {
    struct ox_bench_device *gpu;
    struct ox_op_adam op;
};

static enum ox_status queue(void *context) {
    const struct update *const update = context;
    return OX_QUEUE(&update->gpu->ops, update->gpu->lane, adam, &update->op);
}

static enum ox_status measure(struct ox_bench *bench, struct update *update, enum ox_moments moments) {
    const struct ox_state_format format = {OX_OPTIM_ADAMW, moments, false};
    const struct ox_update_traffic traffic = ox_update_traffic_of(format, OX_GRAD_F32);
    const struct ox_op_zero zero = {.target = update->op.state,
                                    .bytes = ox_state_layout_of(format, update->op.elem_count).bytes};
    const struct ox_bench_work work = {.queue = queue, .context = update};
    const double limit = ox_bench_value(bench, "adam.gpu.copy"), params = (double)update->op.count;
    double seconds = 0.0;
    update->op.format = format;
    enum ox_status status = OX_QUEUE(&update->gpu->ops, update->gpu->lane, zero, &zero);
    OX_THEN(status, ox_bench_device_time(update->gpu, &work, ox_bench_rounds(bench, 9, 3), &seconds));
    if (status != OX_OK) {
        return status;
    }
    const char *const name = ox_moments_name(moments);
    const double rate = (traffic.read + traffic.written) * params / seconds;
    const double cpu = ox_bench_value(bench, "adam.adamw.%s.grad_f32.time", name), own = seconds * 1e9 / params;
    ox_bench_add(bench, &(struct ox_bench_figure){.value = own, .unit = "ns/param"}, "adam.gpu.%s.time", name);
    ox_bench_add(bench, &(struct ox_bench_figure){.value = rate, .unit = "B/s", .limit = limit},
                 "adam.gpu.%s.rate", name);
    if (cpu > 0.0) {
        ox_bench_add(bench, &(struct ox_bench_figure){.value = cpu / own, .unit = OX_BENCH_SHARE},
                     "adam.gpu.%s.times_cpu", name);
    }
    return OX_OK;
}

enum ox_status ox_bench_gpu_adam(struct ox_bench *bench) {
    struct ox_bench_device *const gpu = bench->gpu;
    const uint64_t size = bench->config->bench.size_bytes, requested = bench->brief ? BRIEF_PARAMS : FULL_PARAMS;
    const uint64_t most = (size != 0 ? size : gpu->facts.free_bytes / 2) / PARAM_BYTES / 2 / GRAIN * GRAIN;
    const uint64_t params = ox_max_u64(ox_min_u64(most, requested), GRAIN);
    const struct ox_optim_settings settings = {.learning_rate = 1e-4, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8,
                                              .weight_decay = 0.01, .grad_scale = 0.5, .step = 100};
    struct ox_optim_hyper hyper;
    const uint64_t state_bytes =
        ox_state_layout_of((struct ox_state_format){OX_OPTIM_ADAMW, OX_MOMENTS_F32, false}, params).bytes;
    const uint64_t bytes = params * 6 + state_bytes + GRAIN;
    void *memory = NULL;
    double rate = 0.0;
    ox_optim_hyper_init(&settings, &hyper);
    enum ox_status status = ox_bench_device_copy_rate(gpu, bytes / 2, ox_bench_rounds(bench, 9, 3), &rate);
    if (status == OX_OK) {
        ox_bench_note(bench, "adam: GPU, %.1f million parameters", (double)params * 1e-6);
        ox_bench_add(bench, &(struct ox_bench_figure){.value = rate, .unit = "B/s"}, "adam.gpu.copy");
        status = ox_bench_device_numbers(gpu, bytes, &memory);
    }
    if (status != OX_OK) {
        return status;
    }
    struct ox_bump room = {.base = memory};
    struct update update = {.gpu = gpu, .op = {.elem_count = params, .count = params, .decay = true,
                                               .hyper = hyper}};
    update.op.state = ox_bump_alloc(&room, state_bytes);
    update.op.grad = ox_bump_alloc(&room, params * sizeof(float));
    update.op.hi = ox_bump_alloc(&room, params * sizeof(uint16_t));
    update.op.nonfinite = ox_bump_alloc(&room, sizeof(uint64_t));
    for (unsigned moments = 0; moments < OX_MOMENTS_COUNT && status == OX_OK; moments++) {
        status = measure(bench, &update, moments);
    }
    ox_device_mem_close(gpu->device, memory, bytes);
    return status;
}
