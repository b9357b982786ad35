/* Streams and events of the emulated CUDA runtime, and the machine it shows. A stream is a thread with a queue; what
 * is queued runs in order. */
#include "tests/simt/inside.h"
#include "tests/simt/simt.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/lane.h"

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

struct simt_event {
    std::mutex lock;
    std::condition_variable reached;
    uint64_t recorded = 0, done = 0; /* how often */
    uint64_t done_ns = 0;
    int device = 0;
};

struct simt_stream {
    std::mutex lock;
    std::condition_variable work, idle;
    std::deque<std::function<void()>> queue;
    bool busy = false, closing = false;
    std::thread thread;
    int device = 0;
};

simt_counters simt_counted;

enum { RUNTIME_VERSION = 13000 };

/* A test of the whole program says with OX_SIMT_DEVICES how many devices there are, with OX_SIMT_LOST_DEVICE which of
 * them another process holds, and with OX_SIMT_PEERS=0 that none has access to another one's memory. */
static int setting(const char *name, int otherwise) {
    const char *const text = std::getenv(name);
    return text != nullptr ? static_cast<int>(std::strtol(text, nullptr, 10)) : otherwise;
}

static const int lost_device = setting("OX_SIMT_LOST_DEVICE", -1), peers = setting("OX_SIMT_PEERS", 1);
static std::atomic<int> device_count{setting("OX_SIMT_DEVICES", 1)}, driver_version{RUNTIME_VERSION}, capability{90};
static std::atomic<bool> same_host_pointer{true};
static std::atomic<uint64_t> calls_to_failure{0}, pieces_to_break{0}, delay_seed{0}, delay_ns_max{0};
static std::atomic<bool> broken{false};
static thread_local cudaError_t last_error;
static thread_local int current_device;
static thread_local bool only_waits = true;

/* ---- what a call does first ------------------------------------------------------------------------ */

cudaError_t simt_note(cudaError_t error) {
    if (error != cudaSuccess) {
        last_error = error;
    }
    return error;
}

cudaError_t simt_health() {
    return broken.load(std::memory_order_relaxed) ? cudaErrorIllegalAddress : cudaSuccess;
}

void simt_called(bool stall) {
    only_waits = false;
    simt_counted.stalls.fetch_add(stall, std::memory_order_relaxed);
}

/* True for the one that brings a counter to 0. */
static bool counts_down(std::atomic<uint64_t> &counter) {
    uint64_t left = counter.load(std::memory_order_relaxed);
    while (left > 0 && !counter.compare_exchange_weak(left, left - 1, std::memory_order_relaxed)) {
    }
    return left == 1;
}

/* The result of a call that queues work: an error where the test asks for one. */
static cudaError_t may_queue() {
    simt_called(false);
    simt_counted.queued.fetch_add(1, std::memory_order_relaxed);
    const bool fails = counts_down(calls_to_failure);
    return simt_note(simt_health() != cudaSuccess ? simt_health() : fails ? cudaErrorLaunchFailure : cudaSuccess);
}

/* ---- streams --------------------------------------------------------------------------------------- */

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

static void run_piece(const std::function<void()> &job) {
    const uint64_t turn = simt_counted.run.fetch_add(1, std::memory_order_relaxed);
    ox_chaos_delay(delay_seed.load(std::memory_order_relaxed), "simt", turn,
                   delay_ns_max.load(std::memory_order_relaxed));
    if (counts_down(pieces_to_break)) {
        broken.store(true, std::memory_order_relaxed);
    }
    if (simt_health() == cudaSuccess) {
        simt_touch_begin();
        job();
        simt_touch_end();
    }
}

cudaError_t simt_queue(cudaStream_t stream, std::function<void()> job) {
    const cudaError_t error = may_queue();
    if (error != cudaSuccess) {
        return error;
    }
    if (stream->device != current_device) {
        return simt_note(cudaErrorInvalidResourceHandle);
    }
    queue(stream, [job] { run_piece(job); });
    return cudaSuccess;
}

void simt_launch(cudaStream_t stream, const simt_shape &shape, std::function<void()> kernel) {
    (void)simt_queue(stream, [shape, kernel] { simt_run_kernel(shape, kernel); }); /* reported by cudaGetLastError */
}

static void await(simt_event *event, uint64_t turn) {
    std::unique_lock<std::mutex> guard(event->lock);
    event->reached.wait(guard, [event, turn] { return event->done >= turn; });
}

extern "C" {

/* ---- what tests set and ask ------------------------------------------------------------------------ */

void simt_fail_after(uint64_t calls) {
    calls_to_failure.store(calls);
}

void simt_break_after(uint64_t pieces) {
    pieces_to_break.store(pieces);
    broken.store(false);
}

void simt_set_machine(int devices, int version) {
    device_count = devices;
    driver_version = version;
}

void simt_set_capability(int value) {
    capability = value;
}

void simt_set_host_pointer(bool same) {
    same_host_pointer = same;
}

void simt_set_delay(uint64_t seed, uint64_t ns_max) {
    delay_seed.store(seed);
    delay_ns_max.store(ns_max);
}

void simt_count(struct simt_counts *out) {
    *out = simt_counts{simt_counted.queued, simt_counted.run,      simt_counted.event_waits,
                       simt_counted.stalls, simt_counted.pageable, simt_counted.made};
}

/* ---- the machine ----------------------------------------------------------------------------------- */

const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorDevicesUnavailable: return "CUDA-capable device(s) is/are busy or unavailable";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorHostMemoryAlreadyRegistered: return "part or all of the requested memory range is already mapped";
    case cudaErrorHostMemoryNotRegistered: return "pointer does not correspond to a registered memory region";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    default: return "invalid argument";
    }
}

cudaError_t cudaGetLastError(void) {
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return simt_health() != cudaSuccess ? simt_health() : error;
}

cudaError_t cudaPeekAtLastError(void) {
    return simt_health() != cudaSuccess ? simt_health() : last_error;
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
    *count = driver_version < RUNTIME_VERSION ? 0 : device_count.load();
    return *count > 0 ? simt_note(simt_health())
                      : simt_note(driver_version < RUNTIME_VERSION ? cudaErrorInsufficientDriver : cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= device_count) {
        return simt_note(cudaErrorInvalidDevice);
    }
    if (device == lost_device) {
        return simt_note(cudaErrorDevicesUnavailable);
    }
    current_device = device;
    return simt_note(simt_health());
}

cudaError_t cudaSetDeviceFlags(unsigned flags) {
    (void)flags;
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    if (device < 0 || device >= device_count || peer < 0 || peer >= device_count) {
        return simt_note(cudaErrorInvalidDevice);
    }
    *can = device != peer && peers != 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    static std::mutex lock;
    static std::set<std::pair<int, int>> enabled;
    int can = 0;
    if (flags != 0 || cudaDeviceCanAccessPeer(&can, current_device, peer) != cudaSuccess || can == 0) {
        return simt_note(cudaErrorInvalidDevice);
    }
    const std::lock_guard<std::mutex> held(lock);
    return enabled.insert({current_device, peer}).second ? cudaSuccess
                                                         : simt_note(cudaErrorPeerAccessAlreadyEnabled);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    if (device < 0 || device >= device_count || attribute != cudaDevAttrCanUseHostPointerForRegisteredMem) {
        return simt_note(cudaErrorInvalidValue);
    }
    *value = same_host_pointer;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device) {
    if (device < 0 || device >= device_count) {
        return simt_note(cudaErrorInvalidDevice);
    }
    memset(prop, 0, sizeof *prop);
    snprintf(prop->name, sizeof prop->name, "emulated");
    prop->totalGlobalMem = SIMT_MEMORY_BYTES;
    prop->major = capability / 10;
    prop->minor = capability % 10;
    prop->multiProcessorCount = SIMT_PROCESSORS;
    prop->sharedMemPerBlock = 48 * 1024;
    prop->sharedMemPerBlockOptin = 227 * 1024;
    return cudaSuccess;
}

/* ---- work of streams ------------------------------------------------------------------------------- */

/* A copy may be queued on a stream of another device than the current one. */
cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    OX_ASSERT(kind == cudaMemcpyDefault);
    const cudaError_t error = may_queue();
    if (error == cudaSuccess) {
        simt_check_range(target, bytes);
        simt_check_range(source, bytes);
        queue(stream, [=] { run_piece([=] { memcpy(target, source, bytes); }); });
    }
    return error;
}

cudaError_t cudaMemsetAsync(void *target, int value, size_t bytes, cudaStream_t stream) {
    const cudaError_t error = may_queue();
    if (error == cudaSuccess) {
        queue(stream, [=] { run_piece([=] { memset(target, value, bytes); }); });
    }
    return error;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    OX_ASSERT(flags == cudaStreamNonBlocking); /* others wait for the default stream */
    simt_called(false);
    *stream = nullptr;
    if (simt_health() != cudaSuccess) {
        return simt_note(simt_health());
    }
    simt_counted.made.fetch_add(1, std::memory_order_relaxed);
    *stream = new simt_stream;
    (*stream)->device = current_device;
    (*stream)->thread = std::thread(serve, *stream);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    simt_called(true);
    {
        const std::lock_guard<std::mutex> guard(stream->lock);
        stream->closing = true;
        stream->work.notify_one();
    }
    stream->thread.join();
    delete stream;
    return simt_note(simt_health());
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    simt_called(true);
    std::unique_lock<std::mutex> guard(stream->lock);
    stream->idle.wait(guard, [stream] { return stream->queue.empty() && !stream->busy; });
    return simt_note(simt_health());
}

/* ---- events ---------------------------------------------------------------------------------------- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    (void)flags;
    simt_called(false);
    *event = nullptr;
    if (simt_health() != cudaSuccess) {
        return simt_note(simt_health());
    }
    simt_counted.made.fetch_add(1, std::memory_order_relaxed);
    *event = new simt_event;
    (*event)->device = current_device;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    simt_called(false);
    delete event;
    return simt_note(simt_health());
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    const cudaError_t error = may_queue();
    if (error != cudaSuccess || event->device != stream->device) {
        return error != cudaSuccess ? error : simt_note(cudaErrorInvalidResourceHandle);
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

/* Waits for what the event has recorded so far; later records do not count. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    (void)flags;
    const cudaError_t error = may_queue();
    if (error != cudaSuccess) {
        return error;
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
    (only_waits ? simt_counted.event_waits : simt_counted.stalls).fetch_add(1, std::memory_order_relaxed);
    uint64_t turn;
    {
        const std::lock_guard<std::mutex> guard(event->lock);
        turn = event->recorded;
    }
    await(event, turn);
    return simt_note(simt_health());
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    const std::lock_guard<std::mutex> guard(event->lock);
    return event->done < event->recorded ? cudaErrorNotReady : simt_health();
}

static cudaError_t time_of(cudaEvent_t event, uint64_t *out_ns) {
    const std::lock_guard<std::mutex> guard(event->lock);
    *out_ns = event->done_ns;
    return event->recorded == 0             ? cudaErrorInvalidResourceHandle
           : event->done < event->recorded ? cudaErrorNotReady
                                           : simt_health();
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end) {
    uint64_t from_ns = 0, to_ns = 0;
    cudaError_t error = time_of(begin, &from_ns);
    if (error == cudaSuccess) {
        error = time_of(end, &to_ns);
    }
    *milliseconds = (float)((double)(int64_t)(to_ns - from_ns) * 1e-6);
    return error;
}

} // extern "C"
