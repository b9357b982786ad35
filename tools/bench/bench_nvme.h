/* Shared by the files of `offload bench nvme`: a work (write, read, mix, step) is done by a driver (uring, threads,
 * fio) in rounds. */
#ifndef OX_TOOLS_BENCH_NVME_H
#define OX_TOOLS_BENCH_NVME_H

#include "base/file.h"
#include "engine/measure/probe.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What is done in rounds beside the works of a file: STEP is MIX done by the store, which also verifies, hashes and
 * flushes. */
enum { OX_BENCH_WORK_STEP = OX_PROBE_WORK_COUNT, OX_BENCH_WORK_COUNT };

/* The measured files: OX_BENCH_DRIVE_FILE in `folder`, `bytes` long, and a store of that size beside it. */
struct ox_bench_target {
    char folder[OX_PATH_BYTES], path[OX_PATH_BYTES];
    uint64_t bytes; /* a multiple of 2 * (STATE + HI) */
    uint32_t depth;
};

/* ---- the engine's queue: tools/bench/bench_queue.c ------------------------------------------------------------- */

/* Creates the file and writes all of it, because blocks never written before are slower. */
OX_MUST enum ox_status ox_bench_file_make(const struct ox_io_backend *backend, const struct ox_bench_target *target,
                                          struct ox_drive_info *drive, struct ox_io_queue_info *queue);
/* Does a work once. */
OX_MUST enum ox_status ox_bench_file_run(const struct ox_io_backend *backend, const struct ox_bench_target *target,
                                         enum ox_probe_work work, struct ox_probe_speed *out);

/* Measures latencies of a small read and of a flush. */
OX_MUST enum ox_status ox_bench_file_latencies(const struct ox_io_backend *backend,
                                               const struct ox_bench_target *target, struct ox_probe_latencies *out);

/* Creates the store and commits twice, so that both generations have been written. ox_bench_store_run does one step
 * that reads and writes the whole state. */
OX_MUST enum ox_status ox_bench_store_make(const struct ox_io_backend *backend, const struct ox_bench_target *target);
OX_MUST enum ox_status ox_bench_store_run(const struct ox_io_backend *backend, const struct ox_bench_target *target,
                                          double *rate);

/* ---- fio: tools/bench/bench_fio.c -------------------------------------------------------------------------------- */

/* True when fio is installed. */
bool ox_bench_fio_present(void);
/* Does a work with fio, O_DIRECT and its best settings: like the engine it has registered files and buffers and huge
 * pages, and does not change the data between writes. */
OX_MUST enum ox_status ox_bench_fio_run(const struct ox_bench_target *target, enum ox_probe_work work, bool uring,
                                        double *rate);

#ifdef __cplusplus
}
#endif
#endif
