/* Opens a device, fills its memory, and times its work. */
#include "tools/bench/bench_device.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/prng/prng.h"
#include "engine/step/update/ops_optim.h"

#include <stdlib.h>
#include <string.h>

enum {
    LEAD_BYTES = 512 << 20, LEAD_PASSES = 8, /* takes a GPU a millisecond or two */
    REPEATS_MAX = 100,
};

/* Repetitions of at least this long are timed well by events with a resolution of half a microsecond. */
static const double repeat_seconds = 4e-3;

/* ---- opening ------------------------------------------------------------------------------------------- */

static void observe(void *context, const struct ox_job_times *times) {
    struct ox_bench_watch *const watch = context;
    if (!times->wait) {
        watch->device_ns = times->device_ns;
        watch->busy_ns += times->end_ns - times->begin_ns;
    }
}

void ox_bench_watch_lane(struct ox_lane *lane, struct ox_bench_watch *watch) {
    *watch = (struct ox_bench_watch){0};
    ox_lane_observe(lane, observe, watch);
}

void ox_bench_device_close(struct ox_bench_device **device) {
    struct ox_bench_device *const closing = *device;
    if (closing == NULL) {
        return;
    }
    if (closing->lane != NULL) {
        ox_lane_close(&closing->lane);
    }
    if (closing->lead != NULL) {
        ox_device_mem_close(closing->device, closing->lead, closing->lead_bytes);
    }
    ox_device_close(&closing->device);
    free(closing);
    *device = NULL;
}

static enum ox_status allocate(struct ox_bench_device **out) {
    *out = calloc(1, sizeof **out);
    return *out != NULL ? OX_OK : ox_fail(OX_E_NOMEM, "no memory to measure with");
}

static enum ox_status open_lane(struct ox_bench_device *device) {
    const enum ox_status status = ox_device_lane_open(device->device, "compute", &device->lane);
    if (status == OX_OK) {
        ox_bench_watch_lane(device->lane, &device->watch);
    }
    return status;
}

static enum ox_status open_gpu(uint64_t lead_bytes, const struct ox_cuda_config *config, struct ox_bench_device *gpu) {
    enum ox_status status = ox_cuda_device_open(config, &gpu->device);
    OX_THEN(status, ox_cuda_device_query(gpu->device, &gpu->facts));
    if (status == OX_OK) {
        ox_ops_init_cuda(gpu->device, &gpu->ops);
        gpu->compute = (struct ox_compute){.device = OX_DEVICE_CUDA};
        gpu->lead_bytes = lead_bytes;
        status = ox_device_mem_open(gpu->device, gpu->lead_bytes, &gpu->lead);
    }
    return status == OX_OK ? open_lane(gpu) : status;
}

enum ox_status ox_bench_gpu_open(struct ox_bench *bench) {
    if (bench->config->memory.device == OX_DEVICE_CHOICE_CPU || bench->gpu != NULL) {
        return OX_OK;
    }
    enum ox_status status = allocate(&bench->gpu);
    if (status == OX_OK) {
        const uint64_t size = bench->config->bench.size_bytes;
        status = open_gpu(ox_align_up(size > 0 ? ox_min_u64(LEAD_BYTES, size / 4) : (uint64_t)LEAD_BYTES, 4096),
                          &(struct ox_cuda_config){0}, bench->gpu);
    }
    if (status == OX_OK) {
        char memory[OX_SIZE_TEXT_BYTES];
        ox_bench_note(bench, "GPU: %s, %s; attention in bfloat16: %s", bench->gpu->facts.name,
                      ox_size_text(bench->gpu->facts.memory_bytes, memory), bench->gpu->facts.attention);
        return OX_OK;
    }
    ox_bench_device_close(&bench->gpu);
    return status == OX_E_DEVICE && bench->config->memory.device == OX_DEVICE_CHOICE_AUTO ? OX_OK : status;
}

static enum ox_status open_another(const struct ox_bench_device *gpu, const struct ox_cuda_config *config,
                                   struct ox_bench_device **out) {
    enum ox_status status = allocate(out);
    OX_THEN(status, open_gpu(gpu->lead_bytes, config, *out));
    if (status != OX_OK) {
        ox_bench_device_close(out);
    }
    return status;
}

enum ox_status ox_bench_gpu_open_own(const struct ox_bench_device *gpu, struct ox_bench_device **out) {
    return open_another(gpu, &(struct ox_cuda_config){.own_attention = true}, out);
}

enum ox_status ox_bench_gpu_open_at(const struct ox_bench_device *gpu, uint32_t device_idx,
                                    struct ox_bench_device **out) {
    return open_another(gpu, &(struct ox_cuda_config){.device_idx = device_idx}, out);
}

uint32_t ox_bench_gpu_count(void) {
    struct ox_cuda_plugin_info plugin;
    return ox_cuda_plugin_query(NULL, &plugin) == OX_OK ? plugin.device_count : 0;
}

void ox_bench_gpu_close(struct ox_bench *bench) {
    ox_bench_device_close(&bench->gpu);
}

enum ox_status ox_bench_cpu_open(uint32_t threads, struct ox_bench_device **out) {
    const struct ox_cpu_device_config config = {.thread_count = threads};
    enum ox_status status = allocate(out);
    OX_THEN(status, ox_cpu_device_open(&config, &(*out)->device));
    if (status == OX_OK) {
        ox_ops_init_cpu(&(*out)->ops);
        ox_ops_optim_init_cpu(&(*out)->ops);
        (*out)->compute = (struct ox_compute){.device = OX_DEVICE_CPU, .threads = threads};
        status = open_lane(*out);
    }
    if (status != OX_OK) {
        ox_bench_device_close(out);
    }
    return status;
}

/* ---- memory -------------------------------------------------------------------------------------------- */

enum ox_status ox_bench_device_put(struct ox_bench_device *device, void *target, const void *source,
                                   uint64_t bytes) {
    struct ox_mark done;
    const struct ox_copy copy = {.target = target, .source = source, .bytes = bytes};
    const enum ox_status status = ox_device_lane_copy(device->device, device->lane, &copy, &done);
    return status == OX_OK ? ox_mark_join(done) : status;
}

/* The upper half of a float32 is a bfloat16, and the lower half may be anything, so one pattern serves both. Numbers
 * are random, because a GPU uses less power and runs faster on zeros. */
enum ox_status ox_bench_device_numbers(struct ox_bench_device *device, uint64_t bytes, void **out) {
    enum { PATTERN_BYTES = 4 << 20 };
    uint16_t *const pattern = malloc(PATTERN_BYTES);
    if (pattern == NULL) {
        return ox_fail(OX_E_NOMEM, "no memory for the numbers to measure with");
    }
    for (uint64_t i = 0; i < PATTERN_BYTES / sizeof *pattern; i += 4) {
        uint32_t words[4];
        ox_philox(1, 0, i / 4, words);
        for (unsigned k = 0; k < 4; k++) { /* random sign and fraction, exponents of 1/2 to 1/16 */
            pattern[i + k] = (uint16_t)((words[k] & 0x807fu) | (126u - (words[k] >> 8 & 3u)) << 7);
        }
    }
    enum ox_status status = ox_device_mem_open(device->device, bytes, out);
    for (uint64_t at = 0; at < bytes && status == OX_OK; at += PATTERN_BYTES) {
        status = ox_bench_device_put(device, (unsigned char *)*out + at, pattern,
                                     ox_min_u64(bytes - at, PATTERN_BYTES));
    }
    if (status != OX_OK && *out != NULL) {
        ox_device_mem_close(device->device, *out, bytes);
        *out = NULL;
    }
    free(pattern);
    return status;
}

/* ---- timing -------------------------------------------------------------------------------------------- */

/* Keeps the device busy while the host queues the measured work, whose span begins when this ends. */
static enum ox_status queue_lead(struct ox_bench_device *device) {
    struct ox_mark ignored;
    enum ox_status status = OX_OK;
    const struct ox_op_zero zero = {.target = device->lead, .bytes = device->lead_bytes};
    for (unsigned i = 0; i < LEAD_PASSES && status == OX_OK; i++) {
        status = OX_QUEUE(&device->ops, device->lane, zero, &zero);
    }
    return status == OX_OK ? device->ops.mark(device->lane, &ignored) : status;
}

static enum ox_status time_once(struct ox_bench_device *device, const struct ox_bench_work *work, uint32_t repeats,
                                double *seconds) {
    const bool gpu = device->compute.device == OX_DEVICE_CUDA;
    struct ox_mark done;
    enum ox_status status = gpu ? queue_lead(device) : OX_OK;
    device->watch.busy_ns = gpu ? device->watch.busy_ns : 0; /* CPU: the lane is empty, so nothing else writes it */
    for (uint32_t i = 0; i < repeats && status == OX_OK; i++) {
        status = work->queue(work->context);
    }
    OX_THEN(status, device->ops.mark(device->lane, &done));
    OX_THEN(status, ox_mark_join(done));
    const uint64_t ns = gpu ? device->watch.device_ns : device->watch.busy_ns;
    *seconds = (double)ox_max_u64(ns, 1) * 1e-9 / repeats;
    return status;
}

enum ox_status ox_bench_device_time(struct ox_bench_device *device, const struct ox_bench_work *work, uint32_t rounds,
                                    double *seconds) {
    double all[OX_BENCH_ROUNDS_MAX];
    enum ox_status status = time_once(device, work, 1, seconds); /* warm-up: chooses algorithms, loads code */
    OX_THEN(status, time_once(device, work, 1, seconds));
    const double requested = repeat_seconds / *seconds;
    const uint32_t repeats = requested < 1.0 ? 1 : requested > REPEATS_MAX ? REPEATS_MAX : (uint32_t)requested;
    for (uint32_t i = 0; i < rounds && status == OX_OK; i++) {
        status = time_once(device, work, repeats, &all[i]);
    }
    *seconds = status == OX_OK ? ox_probe_median(all, rounds) : 0.0;
    return status;
}

/* ---- memory bandwidth ---------------------------------------------------------------------------------- */

struct copying {
    struct ox_bench_device *device;
    struct ox_copy copy;
    struct ox_bench_loop loop;
    uint64_t sum; /* so that no read is dropped */
};

static enum ox_status queue_copy(void *context) {
    const struct copying *const copying = context;
    return ox_device_lane_copy(copying->device->device, copying->device->lane, &copying->copy, NULL);
}

static void loop_share(void *context, uint32_t idx, uint32_t count) {
    enum { LINE = 64, GRAIN = 64 };
    struct copying *const copying = context;
    const uint64_t sum =
        ox_bench_loop_run(&copying->loop, ox_pool_range(copying->copy.bytes / LINE, GRAIN, idx, count));
    if (idx == 0) {
        copying->sum = sum;
    }
}

static enum ox_status time_loop(struct copying *copying, uint32_t rounds, double *seconds) {
    double all[OX_BENCH_ROUNDS_MAX];
    struct ox_pool *pool = NULL;
    OX_TRY(ox_pool_open(copying->device->compute.threads, &pool));
    copying->loop = (struct ox_bench_loop){.kind = OX_BENCH_LOOP_COPY, .to = copying->copy.target,
                                           .from = copying->copy.source};
    ox_pool_run(pool, loop_share, copying);
    for (uint32_t i = 0; i < rounds; i++) {
        const uint64_t begin_ns = ox_clock_ns();
        ox_pool_run(pool, loop_share, copying);
        all[i] = (double)(ox_clock_ns() - begin_ns) * 1e-9;
    }
    *seconds = ox_probe_median(all, rounds);
    ox_pool_close(&pool);
    return OX_OK;
}

enum ox_status ox_bench_device_copy_rate(struct ox_bench_device *device, uint64_t bytes, uint32_t rounds,
                                         double *rate) {
    void *memory = NULL;
    double seconds = 0.0;
    bytes = ox_align_up(bytes, 4096);
    enum ox_status status = ox_bench_device_numbers(device, 2 * bytes, &memory);
    if (status != OX_OK) {
        return status;
    }
    struct copying copying = {.device = device, .copy = {.target = (unsigned char *)memory + bytes, .source = memory,
                                                         .bytes = bytes}};
    const struct ox_bench_work work = {.queue = queue_copy, .context = &copying};
    status = device->compute.device == OX_DEVICE_CUDA ? ox_bench_device_time(device, &work, rounds, &seconds)
                                                      : time_loop(&copying, rounds, &seconds);
    *rate = status == OX_OK ? 2.0 * (double)bytes / seconds : 0.0;
    ox_device_mem_close(device->device, memory, 2 * bytes);
    return status;
}

const char *ox_bench_real_name(enum ox_real real) {
    return real == OX_REAL_F32 ? "f32" : "bf16";
}
