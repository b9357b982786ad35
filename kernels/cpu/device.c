/* The CPU as a device: its memory is an arena of host memory, its lanes are host lanes, and one pool of threads runs
 * the operations queued on them. */
#include "base/arena.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/onednn.h"

#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

/* Enough for the operations and copies of a few micro-batches, so that the host never waits for room. */
enum { QUEUE_LEN = 256 };

static struct ox_cpu_device *cpu_of(struct ox_device *device) {
    return (struct ox_cpu_device *)device;
}

static enum ox_status cpu_mem_open(struct ox_device *device, uint64_t bytes, void **out) {
    struct ox_cpu_device *const cpu = cpu_of(device);
    *out = NULL;
    struct ox_arena arena;
    pthread_mutex_lock(&cpu->turn);
    const enum ox_status status = ox_arena_open("device", bytes, cpu->cpu.pool, &arena);
    pthread_mutex_unlock(&cpu->turn);
    if (status == OX_OK) {
        *out = arena.base;
    }
    return status;
}

static void cpu_mem_close(struct ox_device *device, void *ptr, uint64_t bytes) {
    (void)device;
    struct ox_arena arena = {.base = ptr, .bytes = ox_align_up(bytes, OX_IO_ALIGN_BYTES)};
    ox_arena_close(&arena);
}

/* This device copies with its own loads and stores, so it has nothing to register. */
static enum ox_status cpu_host_pin(struct ox_device *device, void *ptr, uint64_t bytes) {
    (void)device;
    (void)ptr;
    (void)bytes;
    return OX_OK;
}

static enum ox_status cpu_lane_open(struct ox_device *device, const char *label, struct ox_lane **out) {
    struct ox_cpu_device *const cpu = cpu_of(device);
    const struct ox_host_lane_config config = {
        .label = label,
        .owner = cpu,
        .queue_len = QUEUE_LEN,
        .chaos_seed = cpu->config.chaos_seed,
        .chaos_ns_max = cpu->config.chaos_ns_max,
    };
    return ox_host_lane_open(&config, out);
}

static enum ox_status copy_job(void *owner, const void *args) {
    (void)owner;
    const struct ox_copy *const copy = args;
    if (copy->bytes > 0) {
        memcpy(copy->target, copy->source, copy->bytes);
    }
    return OX_OK;
}

static enum ox_status cpu_lane_copy(struct ox_lane *lane, const struct ox_copy *copy,
                                    struct ox_mark *done) {
    return ox_host_lane_submit(lane, copy_job, copy, sizeof *copy, done);
}

/* The library's own allocator; a build of it may lack the names. */
__attribute__((weak)) void *blas_memory_alloc(int);
__attribute__((weak)) void blas_memory_free(void *);

static bool is_limited(int resource) {
    struct rlimit limit;
    return getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

/* Whether there are addresses for the buffers of so many more threads. */
static bool has_addresses(size_t count) {
    const size_t bytes = count * (size_t)OX_CPU_THREAD_ADDRESS_BYTES;
    void *const probe =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return probe != MAP_FAILED && munmap(probe, bytes) == 0;
}

static pthread_mutex_t blas_lock = PTHREAD_MUTEX_INITIALIZER;
static size_t blas_threads, blas_buffers; /* threads of all open devices; the most of them so far */

/* Makes OpenBLAS reserve `count` buffers; freed, each stays reserved for the next thread that asks. */
static enum ox_status reserve_buffers(size_t count) {
    void **const buffers = calloc(count, sizeof *buffers);
    const size_t fresh = count - blas_buffers;
    if (buffers == NULL || !has_addresses(fresh)) {
        char size[OX_SIZE_TEXT_BYTES];
        free(buffers);
        return ox_fail(OX_E_NOMEM, "CPU device: %zu threads take %s of address space, more than the limit of the "
                       "process leaves; raise it (ulimit -v, ulimit -d) or give fewer --compute-threads",
                       fresh, ox_size_text(fresh * OX_CPU_THREAD_ADDRESS_BYTES, size));
    }
    for (size_t i = 0; i < count && blas_memory_alloc != NULL; i++) {
        buffers[i] = blas_memory_alloc(0);
    }
    for (size_t i = 0; i < count && blas_memory_free != NULL; i++) {
        if (buffers[i] != NULL) {
            blas_memory_free(buffers[i]);
        }
    }
    free(buffers);
    blas_buffers = count;
    return OX_OK;
}

/* Reserves what OpenBLAS needs for so many more threads. Where it gets nothing it tries again for ever, so within a
 * limit of the process this is not left to the first GEMM. */
static enum ox_status reserve_blas(uint32_t thread_count) {
    enum ox_status status = OX_OK;
    pthread_mutex_lock(&blas_lock);
    const size_t count = blas_threads + thread_count;
    if (count > blas_buffers && (is_limited(RLIMIT_AS) || is_limited(RLIMIT_DATA))) {
        status = reserve_buffers(count);
    }
    blas_threads += status == OX_OK ? thread_count : 0;
    pthread_mutex_unlock(&blas_lock);
    return status;
}

static void cpu_close(struct ox_device *device) {
    struct ox_cpu_device *const cpu = cpu_of(device);
    pthread_mutex_lock(&blas_lock);
    blas_threads -= cpu->config.thread_count;
    pthread_mutex_unlock(&blas_lock);
    ox_cpu_narrow_close(&cpu->cpu.narrow);
    ox_pool_close(&cpu->cpu.pool);
    pthread_mutex_destroy(&cpu->seconds_lock);
    pthread_mutex_destroy(&cpu->turn);
    free(cpu);
}

static const struct ox_device_ops cpu_device_ops = {
    .name = "cpu",
    .mem_open = cpu_mem_open,
    .mem_close = cpu_mem_close,
    .host_pin = cpu_host_pin,
    .host_unpin = cpu_host_pin,
    .lane_open = cpu_lane_open,
    .lane_copy = cpu_lane_copy,
    .close = cpu_close,
};

static pthread_once_t blas_once = PTHREAD_ONCE_INIT;

/* The pool divides each GEMM itself; the library's own threads would spin beside it. */
static void blas_single_thread(void) {
    openblas_set_num_threads(1);
}

bool ox_cpu_has_products(enum ox_real products, const char **text) {
    *text = "OpenBLAS";
    return products != OX_REAL_BF16 || ox_onednn_open(text) != NULL;
}

void ox_cpu_gemms_text(enum ox_real products, char text[OX_CPU_GEMMS_BYTES]) {
    const char *library = NULL;
    const bool in_bf16 = products == OX_REAL_BF16 && ox_cpu_has_products(products, &library);
    pthread_once(&blas_once, blas_single_thread);
    snprintf(text, OX_CPU_GEMMS_BYTES, "%s%s%s, kernels %s, 1 thread, tiles %s; other loops in %s",
             in_bf16 ? library : "", in_bf16 ? "; " : "", openblas_get_config(), openblas_get_corename(),
             ox_cpu_gemm_cuts_freely() ? "of any grid" : "by shape", ox_vector_pick()->name);
}

enum ox_status ox_cpu_device_open(const struct ox_cpu_device_config *config, struct ox_device **out) {
    OX_ASSERT(config->thread_count > 0);
    *out = NULL;
    struct ox_cpu_device *const cpu = calloc(1, sizeof *cpu);
    if (cpu == NULL) {
        return ox_fail(OX_E_NOMEM, "CPU device: no memory for its %zu bytes", sizeof *cpu);
    }
    enum ox_status status = ox_pool_open(config->thread_count, &cpu->cpu.pool);
    if (status != OX_OK) {
        free(cpu);
        return ox_fail_in(status, "CPU device");
    }
    pthread_once(&blas_once, blas_single_thread);
    status = ox_cpu_narrow_open(config->products, &cpu->cpu.narrow);
    OX_THEN(status, reserve_blas(config->thread_count));
    if (status != OX_OK) {
        ox_cpu_narrow_close(&cpu->cpu.narrow);
        ox_pool_close(&cpu->cpu.pool);
        free(cpu);
        return status;
    }
    ox_cpu_gemm_cuts_freely(); /* now, not within the first GEMM */
    cpu->base.ops = &cpu_device_ops;
    cpu->config = *config;
    cpu->cpu.vector = ox_vector_pick();
    pthread_mutex_init(&cpu->turn, NULL);
    pthread_mutex_init(&cpu->seconds_lock, NULL);
    *out = &cpu->base;
    return OX_OK;
}
