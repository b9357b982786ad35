/* What the files of `offload bench nvme` share: a work is done by a driver, in rounds. */
#ifndef OX_TOOLS_BENCH_NVME_H
#define OX_TOOLS_BENCH_NVME_H

#include "base/file.h"
#include "nvme/io.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    OX_BENCH_DEPTH_MAX = 1024,
    /* The requests of the optimizer for a chunk of 256 Ki parameters: lo, m and v; and hi. */
    OX_BENCH_STATE_BYTES = 2560 << 10, OX_BENCH_HI_BYTES = 512 << 10,
};

/* STEP is what the store makes of MIX: it also verifies, hashes and flushes. */
enum ox_bench_work {
    OX_BENCH_WORK_WRITE, OX_BENCH_WORK_READ, OX_BENCH_WORK_MIX, OX_BENCH_WORK_STEP, OX_BENCH_WORK_COUNT
};

/* What is driven: OX_BENCH_DRIVE_FILE in `folder`, `bytes` long; and as large a store beside it. */
struct ox_bench_target {
    char folder[OX_PATH_BYTES], path[OX_PATH_BYTES];
    uint64_t bytes; /* a multiple of 2 * (STATE + HI) */
    uint32_t depth;
};

/* ---- the engine's queue: tools/bench/bench_queue.c ------------------------------------------------------------- */

/* Makes the file and writes all of it: blocks that never were written are slower the first time. */
OX_MUST enum ox_status ox_bench_file_make(const struct ox_io_backend *backend, const struct ox_bench_target *target,
                                          struct ox_drive_info *drive, struct ox_io_queue_info *queue);
/* Bytes per second, and of a core what this process took for a byte, its kernel threads and the interrupts that fell on
 * it included. */
struct ox_bench_speed {
    double rate, core_seconds;
};
/* Does the work once. */
OX_MUST enum ox_status ox_bench_file_run(const struct ox_io_backend *backend, const struct ox_bench_target *target,
                                         enum ox_bench_work work, struct ox_bench_speed *out);

/* Seconds: of a small read while nothing else runs, and of a flush after one block was written. */
struct ox_bench_delays {
    double read, flush;
};
OX_MUST enum ox_status ox_bench_file_delays(const struct ox_io_backend *backend, const struct ox_bench_target *target,
                                            struct ox_bench_delays *out);

/* Makes the store and commits twice, so that both generations have been written; then a step that reads and writes all
 * of the state. */
OX_MUST enum ox_status ox_bench_store_make(const struct ox_io_backend *backend, const struct ox_bench_target *target);
OX_MUST enum ox_status ox_bench_store_run(const struct ox_io_backend *backend, const struct ox_bench_target *target,
                                          double *rate);

/* ---- fio: tools/bench/bench_fio.c -------------------------------------------------------------------------------- */

/* Whether the program is installed. */
bool ox_bench_fio_present(void);
/* The same work by fio with O_DIRECT at its best: as the engine it has file and buffers registered, huge pages, and
 * does not change the data between writes. */
OX_MUST enum ox_status ox_bench_fio_run(const struct ox_bench_target *target, enum ox_bench_work work, bool uring,
                                        double *rate);

#ifdef __cplusplus
}
#endif
#endif
