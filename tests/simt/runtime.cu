/* Streams, events and memory of the emulated CUDA runtime. A stream is a thread with a queue; what is queued runs in
 * order. Device memory is host memory, poisoned when it is given out. */
#include <cuda_runtime.h>

#include "base/assert.h"
#include "base/clock.h"

#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

void simt_run_kernel(const simt_shape &shape, const std::function<void()> &kernel);

struct simt_event {
    std::mutex lock;
    std::condition_variable reached;
    uint64_t recorded = 0, done = 0; /* how often */
    uint64_t done_ns = 0;
};

struct simt_stream {
    std::mutex lock;
    std::condition_variable work, idle;
    std::deque<std::function<void()>> queue;
    bool busy = false, closing = false;
    std::thread thread;
};

enum { DEVICE_MEMORY_BYTES = 1 << 30, RUNTIME_VERSION = 13000 };

static std::mutex machine_lock;
static std::map<void *, size_t> allocations, registered;
static size_t device_bytes;
static size_t registered_bytes, pinnable_bytes = SIZE_MAX;
static int capability = 90, device_count = 1, driver_version = RUNTIME_VERSION;
static uint64_t calls_to_failure;
static thread_local cudaError_t last_error;

static cudaError_t note(cudaError_t error) {
    if (error != cudaSuccess) {
        last_error = error;
    }
    return error;
}

/* Counts a call that a test may want to fail. */
static bool fails() {
    const std::lock_guard<std::mutex> guard(machine_lock);
    return calls_to_failure > 0 && --calls_to_failure == 0;
}

static void serve(simt_stream *stream) {
    std::unique_lock<std::mutex> guard(stream->lock);
    for (;;) {
        stream->work.wait(guard, [stream] { return !stream->queue.empty() || stream->closing; });
        if (stream->queue.empty()) {
            return;
        }
        const std::function<void()> job = std::move(stream->queue.front());
        stream->queue.pop_front();
        stream->busy = true;
        guard.unlock();
        job();
        guard.lock();
        stream->busy = false;
        stream->idle.notify_all();
    }
}

static void queue(simt_stream *stream, std::function<void()> job) {
    OX_ASSERT(stream != nullptr); /* the plugin never uses the default stream, which synchronises with all others */
    const std::lock_guard<std::mutex> guard(stream->lock);
    stream->queue.push_back(std::move(job));
    stream->work.notify_one();
}

static void await(simt_event *event, uint64_t turn) {
    std::unique_lock<std::mutex> guard(event->lock);
    event->reached.wait(guard, [event, turn] { return event->done >= turn; });
}

void simt_queue(cudaStream_t stream, std::function<void()> job) {
    queue(stream, std::move(job));
}

void simt_launch(cudaStream_t stream, const simt_shape &shape, std::function<void()> kernel) {
    if (fails()) {
        note(cudaErrorLaunchFailure);
        return;
    }
    queue(stream, [shape, kernel] { simt_run_kernel(shape, kernel); });
}

extern "C" {

void simt_fail_after(uint64_t calls) {
    const std::lock_guard<std::mutex> guard(machine_lock);
    calls_to_failure = calls;
}

void simt_set_machine(int devices, int version) {
    device_count = devices;
    driver_version = version;
}

void simt_set_capability(int value) {
    capability = value;
}

void simt_set_pinnable(size_t bytes) {
    const std::lock_guard<std::mutex> guard(machine_lock);
    pinnable_bytes = bytes;
}

size_t simt_device_bytes(void) {
    const std::lock_guard<std::mutex> guard(machine_lock);
    return device_bytes;
}

const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    default: return "invalid argument";
    }
}

cudaError_t cudaGetLastError(void) {
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void) {
    return last_error;
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = driver_version;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = RUNTIME_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count) {
    *count = driver_version < RUNTIME_VERSION ? 0 : device_count;
    return *count > 0 ? cudaSuccess
                      : note(driver_version < RUNTIME_VERSION ? cudaErrorInsufficientDriver : cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device) {
    return device >= 0 && device < device_count ? cudaSuccess : note(cudaErrorInvalidDevice);
}

cudaError_t cudaSetDeviceFlags(unsigned flags) {
    (void)flags;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device) {
    if (device < 0 || device >= device_count) {
        return note(cudaErrorInvalidDevice);
    }
    memset(prop, 0, sizeof *prop);
    snprintf(prop->name, sizeof prop->name, "emulated");
    prop->totalGlobalMem = DEVICE_MEMORY_BYTES;
    prop->major = capability / 10;
    prop->minor = capability % 10;
    prop->multiProcessorCount = 4;
    prop->sharedMemPerBlockOptin = 227 * 1024;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    *total_bytes = DEVICE_MEMORY_BYTES;
    *free_bytes = DEVICE_MEMORY_BYTES - simt_device_bytes();
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **ptr, size_t bytes) {
    const std::lock_guard<std::mutex> guard(machine_lock);
    *ptr = nullptr;
    if (bytes > DEVICE_MEMORY_BYTES - device_bytes || posix_memalign(ptr, 4096, bytes == 0 ? 1 : bytes) != 0) {
        return note(cudaErrorMemoryAllocation);
    }
    memset(*ptr, 0xff, bytes);
    allocations[*ptr] = bytes;
    device_bytes += bytes;
    return cudaSuccess;
}

cudaError_t cudaFree(void *ptr) {
    const std::lock_guard<std::mutex> guard(machine_lock);
    if (ptr == nullptr) {
        return cudaSuccess;
    }
    const auto found = allocations.find(ptr);
    OX_ASSERT(found != allocations.end());
    device_bytes -= found->second;
    allocations.erase(found);
    free(ptr);
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *ptr, size_t bytes, unsigned flags) {
    (void)flags;
    const std::lock_guard<std::mutex> guard(machine_lock);
    if (registered.count(ptr) != 0) {
        return note(cudaErrorInvalidValue);
    }
    if (registered_bytes + bytes > pinnable_bytes) {
        return note(cudaErrorMemoryAllocation);
    }
    registered[ptr] = bytes;
    registered_bytes += bytes;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *ptr) {
    const std::lock_guard<std::mutex> guard(machine_lock);
    const auto found = registered.find(ptr);
    if (found == registered.end()) {
        return note(cudaErrorInvalidValue);
    }
    registered_bytes -= found->second;
    registered.erase(found);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    OX_ASSERT(kind == cudaMemcpyDefault);
    if (fails()) {
        return note(cudaErrorLaunchFailure);
    }
    queue(stream, [=] { memcpy(target, source, bytes); });
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *target, int value, size_t bytes, cudaStream_t stream) {
    if (fails()) {
        return note(cudaErrorLaunchFailure);
    }
    queue(stream, [=] { memset(target, value, bytes); });
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    OX_ASSERT(flags == cudaStreamNonBlocking); /* others wait for the default stream */
    *stream = new simt_stream;
    (*stream)->thread = std::thread(serve, *stream);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    {
        const std::lock_guard<std::mutex> guard(stream->lock);
        stream->closing = true;
        stream->work.notify_one();
    }
    stream->thread.join();
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    std::unique_lock<std::mutex> guard(stream->lock);
    stream->idle.wait(guard, [stream] { return stream->queue.empty() && !stream->busy; });
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    (void)flags;
    *event = new simt_event;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    if (fails()) {
        return note(cudaErrorLaunchFailure);
    }
    uint64_t turn;
    {
        const std::lock_guard<std::mutex> guard(event->lock);
        turn = ++event->recorded;
    }
    queue(stream, [event, turn] {
        const std::lock_guard<std::mutex> guard(event->lock);
        event->done = turn;
        event->done_ns = ox_clock_ns();
        event->reached.notify_all();
    });
    return cudaSuccess;
}

/* As of now: what is recorded later does not count. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    (void)flags;
    if (fails()) {
        return note(cudaErrorLaunchFailure);
    }
    uint64_t turn;
    {
        const std::lock_guard<std::mutex> guard(event->lock);
        turn = event->recorded;
    }
    queue(stream, [event, turn] { await(event, turn); });
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    uint64_t turn;
    {
        const std::lock_guard<std::mutex> guard(event->lock);
        turn = event->recorded;
    }
    await(event, turn);
    return fails() ? note(cudaErrorLaunchFailure) : cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end) {
    std::unique_lock<std::mutex> begin_guard(begin->lock);
    const uint64_t from = begin->done_ns;
    begin_guard.unlock();
    const std::lock_guard<std::mutex> end_guard(end->lock);
    *milliseconds = (float)((double)(end->done_ns - from) * 1e-6);
    return cudaSuccess;
}

} // extern "C"
