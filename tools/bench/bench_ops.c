/* `offload bench ops`: compares each operation of a training step with its floor. Operations that move memory are
 * compared with a copy, GEMM-like ones with the fastest GEMM of the same type. All are measured in one run, on the GPU
 * if there is one. */
#include "tools/bench/bench_ops.h"

#include "base/bytes.h"
#include "base/memory.h"
#include "cpu_optim/optim.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { COPY_BYTES = 512 << 20, COPY_BYTES_CPU = 128 << 20 };
/* The profile has the rates of attention with heads of this dimension. */
enum { ATTENTION_DIM = 128 };

/* Lowest share of a copy's speed, for memory operations on a GPU. */
#define COPY_LIMIT 0.85

/* Lowest share of cuDNN's speed for the project's own attention: at most 15 % longer. */
#define CUDNN_LIMIT (1.0 / 1.15)

struct measuring {
    struct ox_bench *bench;
    struct ox_bench_device *device;
    struct ox_bench_tensors tensors;
    const struct ox_bench_op *op;
    struct ox_bench_cost cost;
    double copy_rate, flop_rate; /* the floors for the current type */
    uint32_t rounds;
};

/* Counts float32, the wider type. */
static uint64_t bytes_of(const void *context, const struct ox_bench_shape *shape) {
    const struct measuring *const m = context;
    struct ox_bench_tensors tensors = {.device = m->device, .shape = *shape};
    return ox_bench_tensors_carve(&tensors, NULL);
}

static enum ox_status queue(void *context) {
    struct measuring *const m = context;
    m->cost = (struct ox_bench_cost){0};
    return m->op->queue(&m->tensors, &m->cost);
}

/* Zeroes the moments before each operation, whatever their format. */
static enum ox_status clear_state(struct measuring *m) {
    const struct ox_bench_tensors *const t = &m->tensors;
    const struct ox_state_layout layout =
        ox_state_layout_of((struct ox_state_format){OX_OPTIM_ADAMW, OX_MOMENTS_F32, false}, t->params);
    struct ox_run run = {.ops = &m->device->ops, .lane = m->device->lane};
    OX_RUN(&run, zero, .target = t->state, .bytes = layout.bytes);
    OX_RUN(&run, zero, .target = t->nonfinite, .bytes = sizeof *t->nonfinite);
    OX_RUN(&run, zero, .target = t->loss, .bytes = sizeof *t->loss);
    return run.status;
}

static enum ox_status measure(struct measuring *m) {
    const struct ox_bench_work work = {.queue = queue, .context = m};
    const struct ox_op_row *const row = &ox_op_rows[m->op->op];
    const char *const type = m->device->compute.real == OX_REAL_F32 ? ".f32" : ".bf16";
    const char *const name = ox_bench_op_name(m->op), *const real = row->real_offset == OX_OP_NO_REAL ? "" : type;
    double seconds = 0.0;
    ox_bench_tensors_select(&m->tensors, m->op);
    enum ox_status status = clear_state(m);
    OX_THEN(status, ox_bench_device_time(m->device, &work, m->rounds, &seconds));
    if (status != OX_OK) {
        return status;
    }
    const bool has_flops = m->cost.flops > 0.0;
    const double rate = (has_flops ? m->cost.flops : m->cost.bytes) / seconds;
    const double limit = has_flops ? m->flop_rate : m->copy_rate;
    if (row->group == OX_OPS_MATMUL) {
        m->flop_rate = fmax(m->flop_rate, rate);
    }
    ox_bench_add(m->bench, &(struct ox_bench_figure){.value = rate, .unit = has_flops ? "FLOP/s" : "B/s",
                                                     .limit = limit}, "ops.%s%s", name, real);
    if (!has_flops && ox_bench_op_streams(m->op)) {
        const double share = rate / limit, wanted = m->bench->gpu != NULL ? COPY_LIMIT : 0.0;
        ox_bench_add(m->bench, &(struct ox_bench_figure){.value = share, .unit = OX_BENCH_SHARE, .limit = wanted},
                     "ops.%s%s.of_copy", name, real);
    }
    return OX_OK;
}

/* Returns the fastest rate that `bench gemm` measured; 0 where it did not run. */
static double gemm_rate(const struct ox_bench *bench, enum ox_real real) {
    static const char *const ways[] = {"forward", "backward"};
    const struct ox_bench_shape any = {0};
    struct ox_bench_layer layers[OX_BENCH_PRODUCT_COUNT];
    double most = 0.0;
    for (unsigned i = 0; i < 2 * ox_bench_layers(&any, layers); i++) {
        most = fmax(most, ox_bench_value(bench, "gemm.gpu.%s.%s.%s", layers[i / 2].name, ways[i % 2],
                                         ox_bench_real_name(real)));
    }
    return most;
}

/* Measures linear layers first, because other operations with FLOPs are compared with the fastest of them and of `bench
 * gemm`. */
static enum ox_status measure_type(struct measuring *m, enum ox_real real, unsigned char *memory) {
    uint32_t count = 0;
    const struct ox_bench_op *const all = ox_bench_ops_all(&count);
    m->device->compute.real = real;
    ox_bench_tensors_carve(&m->tensors, memory);
    m->flop_rate = gemm_rate(m->bench, real);
    enum ox_status status = ox_bench_tensors_fill(&m->tensors);
    for (int linear = 1; linear >= 0; linear--) {
        for (uint32_t i = 0; i < count && status == OX_OK; i++) {
            const struct ox_op_row *const row = &ox_op_rows[all[i].op];
            m->op = &all[i];
            if (ox_bench_op_runs(&m->tensors.shape, m->op) && (row->group == OX_OPS_MATMUL) == linear &&
                (real == OX_REAL_F32 || row->real_offset != OX_OP_NO_REAL)) {
                status = measure(m);
            }
        }
    }
    return status;
}

/* ---- own attention beside cuDNN's ----------------------------------------------------------------------- */

static enum ox_status compare_one(struct measuring *m, struct ox_bench_device *own) {
    const struct ox_bench_work work = {.queue = queue, .context = m};
    const char *const name = ox_bench_op_name(m->op);
    const double theirs = ox_bench_value(m->bench, "ops.%s.bf16", name);
    double seconds = 0.0;
    ox_bench_tensors_select(&m->tensors, m->op);
    const enum ox_status status = ox_bench_device_time(own, &work, m->rounds, &seconds);
    if (status == OX_OK) {
        const double rate = m->cost.flops / seconds, share = rate / theirs;
        ox_bench_add(m->bench, &(struct ox_bench_figure){.value = rate, .unit = "FLOP/s", .limit = theirs},
                     "ops.%s.bf16.own", name);
        ox_bench_add(m->bench, &(struct ox_bench_figure){.value = share, .unit = OX_BENCH_SHARE, .limit = CUDNN_LIMIT},
                     "ops.%s.bf16.own.of_cudnn", name);
    }
    return status;
}

/* Opens the same GPU again, which shares its memory. */
static enum ox_status compare_attention(struct measuring *m) {
    struct ox_bench_device *own = NULL;
    uint32_t count = 0;
    const struct ox_bench_op *const all = ox_bench_ops_all(&count);
    enum ox_status status = ox_bench_gpu_open_own(m->device, &own);
    if (status != OX_OK) {
        return status;
    }
    own->compute.real = OX_REAL_BF16;
    m->tensors.device = own;
    for (uint32_t i = 0; i < count && status == OX_OK; i++) {
        m->op = &all[i];
        if (ox_bench_op_is_attention(m->op) && ox_bench_op_runs(&m->tensors.shape, m->op)) {
            status = compare_one(m, own);
        }
    }
    m->tensors.device = m->device;
    ox_bench_device_close(&own);
    return status;
}

/* ---- the part -------------------------------------------------------------------------------------------- */

static enum ox_status choose_shape(struct measuring *m) {
    const uint64_t requested = m->bench->config->bench.size_bytes;
    struct ox_memory memory;
    ox_memory_read("", &memory);
    const uint64_t usual = m->bench->gpu != NULL          ? m->device->facts.free_bytes / 2
                           : m->bench->model.hidden > 0 ? memory.usable / 2 : 0;
    const struct ox_bench_limit room = {.bytes = bytes_of, .context = m, .most = requested != 0 ? requested : usual};
    return ox_bench_shape_choose(m->bench, m->device, &room, &m->tensors.shape)
               ? OX_OK
               : ox_bench_shape_refuse(m->bench, &room, &m->tensors.shape);
}

static enum ox_status measure_all(struct measuring *m) {
    const uint64_t requested = m->bench->config->bench.size_bytes;
    const bool gpu = m->device->compute.device == OX_DEVICE_CUDA;
    const uint64_t copy_bytes = gpu ? COPY_BYTES : COPY_BYTES_CPU;
    void *memory = NULL;
    enum ox_status status = choose_shape(m);
    if (status != OX_OK) {
        return status;
    }
    const uint64_t bytes = bytes_of(m, &m->tensors.shape);
    status = ox_bench_device_copy_rate(m->device, requested != 0 ? ox_min_u64(requested / 4, copy_bytes)
                                                                             : copy_bytes, m->rounds, &m->copy_rate);
    if (status == OX_OK) {
        ox_bench_add(m->bench, &(struct ox_bench_figure){.value = m->copy_rate, .unit = "B/s"}, "ops.copy");
        status = ox_bench_device_numbers(m->device, bytes, &memory);
    }
    if (status != OX_OK) {
        return status;
    }
    ox_bench_shape_note(m->bench, "ops", &m->tensors.shape, m->rounds);
    for (unsigned real = OX_REAL_F32; real <= (gpu ? (unsigned)OX_BENCH_REAL_LAST : 0u) && status == OX_OK; real++) {
        status = measure_type(m, real, memory);
    }
    if (status == OX_OK && m->device->compute.real == OX_REAL_BF16 &&
        strncmp(m->device->facts.attention, "cuDNN", 5) == 0) {
        status = compare_attention(m);
    }
    m->device->compute.real = OX_REAL_F32;
    ox_device_mem_close(m->device->device, memory, bytes);
    return status;
}

enum ox_status ox_bench_ops(struct ox_bench *bench) {
    struct measuring m = {.bench = bench, .device = bench->gpu, .rounds = ox_bench_rounds(bench, 9, 3)};
    struct ox_bench_device *cpu = NULL;
    enum ox_status status = ox_isa_pick(bench->config->place.isa, &m.tensors.isa);
    if (status == OX_OK && bench->gpu == NULL) {
        status = ox_bench_cpu_open(ox_bench_threads(bench->config->place.compute_threads), &cpu);
        m.device = cpu;
    }
    if (status == OX_OK && bench->gpu != NULL) {
        status = ox_bench_gpu_gemm(bench);
    }
    if (status == OX_OK) {
        struct ox_probe_load meter;
        m.tensors.device = m.device;
        ox_probe_load_begin(&meter);
        status = measure_all(&m);
        if (status == OX_OK) {
            ox_bench_add_load(&meter, bench, "ops");
        }
    }
    ox_bench_device_close(&cpu);
    return status;
}

/* ---- for the profile ------------------------------------------------------------------------------------- */

/* Whether the profile takes the rate of an operation: attention with the model's heads, else with heads of one
 * dimension. */
static bool is_for_profile(const struct measuring *m) {
    return ox_bench_op_is_attention(m->op) && ox_bench_op_runs(&m->tensors.shape, m->op) &&
           (m->op->head_dim == OX_BENCH_DIM_OF_MODEL || m->op->head_dim == ATTENTION_DIM);
}

/* The rate counts pairs of queries and keys as predictions do, in whole tiles. */
static enum ox_status measure_attention(struct measuring *m) {
    const bool backward = m->op->op == OX_OP_attention_backward;
    const struct ox_bench_work work = {.queue = queue, .context = m};
    double seconds = 0.0;
    ox_bench_tensors_select(&m->tensors, m->op);
    const enum ox_status status = ox_bench_device_time(m->device, &work, m->rounds, &seconds);
    if (status == OX_OK) {
        const struct ox_attention_shape shape = ox_bench_attention_shape(&m->tensors);
        const double pairs = (double)ox_ops_attention_pairs(&m->device->compute, &shape);
        ox_bench_add(m->bench, &(struct ox_bench_figure){
                         .value = (backward ? 10.0 : 4.0) * pairs * shape.head_dim / seconds, .unit = "FLOP/s"},
                     "attention.gpu.%s%s.bf16", backward ? "backward" : "forward",
                     shape.heads == shape.kv_heads ? ".mha" : "");
    }
    return status;
}

enum ox_status ox_bench_gpu_attention(struct ox_bench *bench) {
    struct measuring m = {.bench = bench, .device = bench->gpu, .rounds = ox_bench_rounds(bench, 5, 3)};
    uint32_t count = 0;
    const struct ox_bench_op *const all = ox_bench_ops_all(&count);
    void *memory = NULL;
    m.tensors.device = m.device;
    enum ox_status status = choose_shape(&m);
    if (status != OX_OK) {
        return status;
    }
    const uint64_t bytes = bytes_of(&m, &m.tensors.shape);
    OX_THEN(status, ox_bench_device_numbers(m.device, bytes, &memory));
    if (status != OX_OK) {
        return status;
    }
    m.device->compute.real = OX_REAL_BF16;
    ox_bench_tensors_carve(&m.tensors, memory);
    for (uint32_t i = 0; i < count && status == OX_OK; i++) {
        m.op = &all[i];
        if (is_for_profile(&m)) {
            status = measure_attention(&m);
        }
    }
    m.device->compute.real = OX_REAL_F32;
    ox_device_mem_close(m.device->device, memory, bytes);
    return status;
}
