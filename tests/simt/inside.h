/* Inside of the emulated runtime: what its files share. */
#ifndef OX_TESTS_SIMT_INSIDE_H
#define OX_TESTS_SIMT_INSIDE_H

#include "tests/simt/cuda_runtime.h"

#ifdef __cplusplus
#include <atomic>
#include <functional>

/* Counters order nothing, so that ThreadSanitizer sees what the streams themselves order. */
struct simt_counters {
    std::atomic<uint64_t> queued{0}, run{0}, event_waits{0}, stalls{0}, pageable{0}, made{0};
};
extern simt_counters simt_counted;

/* Puts a piece of work on a stream of the current device; it may touch device memory. */
cudaError_t simt_queue(cudaStream_t stream, std::function<void()> job);
/* Runs a kernel, on the stream's thread. */
void simt_run_kernel(const simt_shape &shape, const std::function<void()> &kernel);

/* Keeps a failure for cudaGetLastError. */
cudaError_t simt_note(cudaError_t error);
/* The failure that all calls return once the device is broken. */
cudaError_t simt_health();
/* The calling thread does more than wait for events; with `stall`, it does something that may wait for the device. */
void simt_called(bool stall);

enum { SIMT_MEMORY_BYTES = 1 << 30 }; /* memory of one device */

/* A copy's side: must lie within one block of device memory, or not touch any; counts what is pageable. */
void simt_check_range(const void *ptr, size_t bytes);
/* Around a piece of work, for the guard. */
void simt_touch_begin();
void simt_touch_end();
#endif

#endif
