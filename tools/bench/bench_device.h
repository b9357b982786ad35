/* A device to measure: the device with one lane, memory filled with numbers, and times by the device's own clock. On a
 * GPU times come from events on the stream, so the host's time for queueing does not count. Used by every part of
 * `offload bench` that measures a device. */
#ifndef OX_TOOLS_BENCH_DEVICE_H
#define OX_TOOLS_BENCH_DEVICE_H

#include "kernels/cuda.h"
#include "tools/bench/bench.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Times that a lane reported. */
struct ox_bench_watch {
    uint64_t device_ns; /* GPU: the last span up to a mark, by its own clock */
    uint64_t busy_ns;   /* all jobs since it was last zeroed */
};
void ox_bench_watch_lane(struct ox_lane *lane, struct ox_bench_watch *watch);

struct ox_bench_device {
    struct ox_device *device;
    struct ox_lane *lane; /* "compute" */
    struct ox_ops ops;
    struct ox_compute compute;  /* `real` changes with the measurement */
    struct ox_cuda_device_info facts; /* filled for a GPU */
    struct ox_bench_watch watch;
    void *lead; /* device memory for the work queued ahead of a measurement */
    uint64_t lead_bytes;
};

/* Opens the GPU for --device into bench->gpu. With `auto` a missing GPU leaves NULL; a GPU that was requested but is
 * missing is OX_E_DEVICE. ox_bench_gpu_close accepts a bench without a GPU. */
OX_MUST enum ox_status ox_bench_gpu_open(struct ox_bench *bench);
void ox_bench_gpu_close(struct ox_bench *bench);
/* Opens the same GPU again, with the project's own attention kernels. */
OX_MUST enum ox_status ox_bench_gpu_open_own(const struct ox_bench_device *gpu, struct ox_bench_device **out);
/* Opens another GPU of the machine, and says how many there are. */
OX_MUST enum ox_status ox_bench_gpu_open_at(const struct ox_bench_device *gpu, uint32_t device_idx,
                                            struct ox_bench_device **out);
uint32_t ox_bench_gpu_count(void);
/* Opens the CPU device with that many threads. */
OX_MUST enum ox_status ox_bench_cpu_open(uint32_t threads, struct ox_bench_device **out);
void ox_bench_device_close(struct ox_bench_device **device);

/* Allocates device memory filled with numbers between -1 and 1, valid as bfloat16 and as float32. */
OX_MUST enum ox_status ox_bench_device_numbers(struct ox_bench_device *device, uint64_t bytes, void **out);
/* Copies from host memory and waits. */
OX_MUST enum ox_status ox_bench_device_put(struct ox_bench_device *device, void *target, const void *source,
                                           uint64_t bytes);

/* Work that is queued on the lane repeatedly, until it takes long enough to time. */
struct ox_bench_work {
    enum ox_status (*queue)(void *context);
    void *context;
};
/* Measures seconds of one repetition: the median of the rounds. */
OX_MUST enum ox_status ox_bench_device_time(struct ox_bench_device *device, const struct ox_bench_work *work,
                                            uint32_t rounds, double *seconds);

/* Measures bytes per second, read plus written, of a copy within the device's memory: the GPU's own copy, or on the CPU
 * the plain loop of `bench copy`. */
OX_MUST enum ox_status ox_bench_device_copy_rate(struct ox_bench_device *device, uint64_t bytes, uint32_t rounds,
                                                 double *rate);

/* ---- measurements of a GPU; each requires bench->gpu -------------------------------------------------- */

OX_MUST enum ox_status ox_bench_gpu_copy(struct ox_bench *bench, uint64_t bytes);
OX_MUST enum ox_status ox_bench_gpu_gemm(struct ox_bench *bench);
OX_MUST enum ox_status ox_bench_gpu_adam(struct ox_bench *bench);
/* Attention in bfloat16, both passes and both kinds of heads, for the profile. */
OX_MUST enum ox_status ox_bench_gpu_attention(struct ox_bench *bench);

/* The activation types measured on a GPU, from OX_REAL_F32 on. */
enum { OX_BENCH_REAL_LAST = OX_REAL_BF16 };
const char *ox_bench_real_name(enum ox_real real); /* "f32", "bf16" */

/* The products of a step, each one GEMM forward and two backward, with the names of their figures. */
enum ox_bench_product {
    OX_BENCH_QKV,        /* queries, keys and values of a row side by side */
    OX_BENCH_QKV_GQA,    /* the same where four heads of queries share one of keys; only without a model */
    OX_BENCH_PROJECTION, /* of attention's output, added to the residual */
    OX_BENCH_GATE_UP,    /* gate and up side by side, or up alone */
    OX_BENCH_DOWN,       /* added to the residual */
    OX_BENCH_HEAD,
    OX_BENCH_PRODUCT_COUNT
};
struct ox_bench_layer {
    const char *name;
    uint32_t in_count, out_count;
    bool residual, in_block; /* in_block: one of the GEMMs that a block consists of */
    enum ox_weight_layout layout;
};
/* Writes the layers of a step of that shape, and returns how many there are. */
uint32_t ox_bench_layers(const struct ox_bench_shape *shape, struct ox_bench_layer layers[OX_BENCH_PRODUCT_COUNT]);
struct ox_bench_layer ox_bench_layer_of(const struct ox_bench_shape *shape, enum ox_bench_product product);
/* Elements of a row of attention's output, and of q, k and v side by side. */
uint32_t ox_bench_attention_width(const struct ox_bench_shape *shape);
uint32_t ox_bench_qkv_width(const struct ox_bench_shape *shape);

/* Chooses a shape suited to the device, that of the named model if there is one, and halves it until it fits in `most`
 * bytes; of a model's shape only the rows. False when it cannot be halved further. */
struct ox_bench_limit {
    uint64_t (*bytes)(const void *context, const struct ox_bench_shape *shape);
    const void *context;
    uint64_t most; /* 0: no limit */
};
bool ox_bench_shape_choose(const struct ox_bench *bench, const struct ox_bench_device *device,
                           const struct ox_bench_limit *room, struct ox_bench_shape *out);
/* The refusal of a shape that cannot be halved further. */
enum ox_status ox_bench_shape_refuse(const struct ox_bench *bench, const struct ox_bench_limit *room,
                                     const struct ox_bench_shape *least);
/* Prints the sizes that `part` is measured at. */
void ox_bench_shape_note(const struct ox_bench *bench, const char *part, const struct ox_bench_shape *shape,
                         uint32_t rounds);

#ifdef __cplusplus
}
#endif
#endif
