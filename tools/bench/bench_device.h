/* What the parts of `offload bench` share that measure work of a device: the device with a lane for it, memory that
 * holds numbers, and times by the device's own clock. Times are those of marks (base/lane.h): on a GPU of events on the
 * stream, so that what the host takes to queue the work does not count. */
#ifndef OX_TOOLS_BENCH_DEVICE_H
#define OX_TOOLS_BENCH_DEVICE_H

#include "kernels/cuda.h"
#include "tools/bench/bench.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What an observer of a lane was told. */
struct ox_bench_watch {
    uint64_t device_ns; /* of a GPU: the last span up to a mark, by its own clock */
    uint64_t busy_ns;   /* of all jobs since it was set to zero */
};
void ox_bench_watch_lane(struct ox_lane *lane, struct ox_bench_watch *watch);

struct ox_bench_device {
    struct ox_device *device;
    struct ox_lane *lane; /* "compute" */
    struct ox_ops ops;
    struct ox_compute compute;  /* `real` changes with what is measured */
    struct ox_cuda_facts facts; /* of a GPU */
    struct ox_bench_watch watch;
    void *lead; /* device memory that work is done on ahead of what is measured */
    uint64_t lead_bytes;
};

/* The GPU that --device asks for, in bench->gpu: NULL where `auto` finds none; a GPU that is asked for and not there is
 * OX_E_DEVICE. Closed by ox_bench_gpu_close, which takes a bench without. */
OX_MUST enum ox_status ox_bench_gpu_open(struct ox_bench *bench);
void ox_bench_gpu_close(struct ox_bench *bench);
/* The same GPU once more, whose attention is by our own kernels. */
OX_MUST enum ox_status ox_bench_gpu_open_own(const struct ox_bench_device *gpu, struct ox_bench_device **out);
/* The CPU device with so many threads, in the same form. */
OX_MUST enum ox_status ox_bench_cpu_open(uint32_t threads, struct ox_bench_device **out);
void ox_bench_device_close(struct ox_bench_device **device);

/* Device memory that holds numbers between -1 and 1, read as bfloat16 or as float32. */
OX_MUST enum ox_status ox_bench_device_numbers(struct ox_bench_device *device, uint64_t bytes, void **out);
/* Copies from host memory, and waits. */
OX_MUST enum ox_status ox_bench_device_put(struct ox_bench_device *device, void *target, const void *source,
                                           uint64_t bytes);

/* Work that is queued on the lane as often as it takes to be timed. */
struct ox_bench_work {
    enum ox_status (*queue)(void *context);
    void *context;
};
/* Seconds of one piece of work: the median of the rounds. */
OX_MUST enum ox_status ox_bench_device_time(struct ox_bench_device *device, const struct ox_bench_work *work,
                                            uint32_t rounds, double *seconds);

/* Bytes a second, read and written added, of a copy within the device's memory: of a GPU by its own copy, of the CPU by
 * the plain loop of `bench copy`. */
OX_MUST enum ox_status ox_bench_device_copy_rate(struct ox_bench_device *device, uint64_t bytes, uint32_t rounds,
                                                 double *rate);

/* ---- the parts of a GPU, for those of bench.h; each takes a bench whose gpu is open ---------------------- */

OX_MUST enum ox_status ox_bench_gpu_copy(struct ox_bench *bench, uint64_t bytes);
OX_MUST enum ox_status ox_bench_gpu_gemm(struct ox_bench *bench);
OX_MUST enum ox_status ox_bench_gpu_adam(struct ox_bench *bench);

/* Types of activations that a GPU computes with here: from OX_REAL_F32 on. */
enum { OX_BENCH_REAL_LAST = OX_REAL_BF16 };
const char *ox_bench_real_name(enum ox_real real); /* "f32", "bf16" */

/* The products of a block and of the head, and what memory operations at the same shape take. */
struct ox_bench_shape {
    uint32_t rows, seq; /* tokens of a micro-batch, and of each of its sequences */
    uint32_t hidden, width, vocab;
};
/* As the device deserves, halved until the bytes fit; false when nothing is left to halve. */
struct ox_bench_room {
    uint64_t (*bytes)(const void *context, const struct ox_bench_shape *shape);
    const void *context;
    uint64_t most; /* 0: no matter how many */
};
bool ox_bench_shape_choose(const struct ox_bench_device *device, const struct ox_bench_room *room,
                           struct ox_bench_shape *out);

#ifdef __cplusplus
}
#endif
#endif
