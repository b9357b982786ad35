/* Memory of the emulated CUDA runtime. A block of device memory is pages of its own, poisoned when it is given out,
 * with pages before and behind it that nobody may touch; small ones begin within a page, as the runtime's do. */
#include "tests/simt/inside.h"

#include "base/assert.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, HUGE_PAGE = 2 << 20, SMALL_BYTES = 1 << 20, SMALL_OFFSET = 512 };

struct block {
    size_t bytes;
    unsigned char *pages; /* the first that may be touched */
    size_t page_bytes;
    void *map; /* with what lies around them */
    size_t map_bytes;
};

static std::mutex lock;
static std::map<uintptr_t, block> blocks;
static std::map<uintptr_t, size_t> registered; /* whole pages */
static size_t device_bytes, registered_bytes, pinnable_bytes = SIZE_MAX;

/* ---- the guard ------------------------------------------------------------------------------------- */

static std::atomic<bool> guarding{false};
static std::mutex guard_lock;
static int touching; /* pieces of work that run */
static struct sigaction fault_before;

static void protect(int access) {
    const std::lock_guard<std::mutex> guard(lock);
    for (const auto &it : blocks) {
        OX_ASSERT(mprotect(it.second.pages, it.second.page_bytes, access) == 0);
    }
}

void simt_touch_begin() {
    if (guarding) {
        const std::lock_guard<std::mutex> guard(guard_lock);
        if (touching++ == 0) {
            protect(PROT_READ | PROT_WRITE);
        }
    }
}

void simt_touch_end() {
    if (guarding) {
        const std::lock_guard<std::mutex> guard(guard_lock);
        if (--touching == 0) {
            protect(PROT_NONE);
        }
    }
}

/* Says whose memory it was and lets the instruction fault again, for the previous handler of faults. */
static void on_fault(int, siginfo_t *info, void *) {
    const uintptr_t at = (uintptr_t)info->si_addr;
    if (lock.try_lock()) {
        for (const auto &it : blocks) {
            char text[160];
            if (at - (uintptr_t)it.second.pages < it.second.page_bytes) {
                const int len = snprintf(text, sizeof text, "simt: the host touched device memory at %#zx, byte %td of "
                                         "a block of %zu\n", (size_t)at, (ptrdiff_t)(at - it.first), it.second.bytes);
                (void)!write(2, text, (size_t)len);
            }
        }
        lock.unlock();
    }
    sigaction(SIGSEGV, &fault_before, nullptr);
}

extern "C" void simt_guard(bool on) {
    if (on == guarding) {
        return;
    }
    if (on) {
        struct sigaction action = {};
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO;
        sigaction(SIGSEGV, &action, &fault_before);
    } else {
        sigaction(SIGSEGV, &fault_before, nullptr);
    }
    protect(on ? PROT_NONE : PROT_READ | PROT_WRITE);
    guarding = on;
}

/* ---- ranges ---------------------------------------------------------------------------------------- */

void simt_check_range(const void *ptr, size_t bytes) {
    const uintptr_t begin = (uintptr_t)ptr;
    const std::lock_guard<std::mutex> guard(lock);
    auto found = blocks.upper_bound(begin);
    if (found != blocks.end()) {
        OX_ASSERT(begin + bytes <= found->first); /* else a copy runs into device memory */
    }
    if (found != blocks.begin() && begin < (--found)->first + found->second.bytes) {
        OX_ASSERT(begin + bytes <= found->first + found->second.bytes); /* else it runs out of its block */
        return;
    }
    auto known = registered.upper_bound(begin);
    if (known == registered.begin() || begin + bytes > (--known)->first + known->second) {
        simt_counted.pageable++;
    }
}

/* ---- calls ----------------------------------------------------------------------------------------- */

extern "C" {

void simt_set_pinnable(size_t bytes) {
    const std::lock_guard<std::mutex> guard(lock);
    pinnable_bytes = bytes;
}

size_t simt_device_bytes(void) {
    const std::lock_guard<std::mutex> guard(lock);
    return device_bytes;
}

/* OX_SIMT_USED: bytes of the emulated GPU that other programs are said to use. */
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    const char *const used = getenv("OX_SIMT_USED");
    const size_t others = used == nullptr ? 0 : strtoull(used, nullptr, 10);
    *total_bytes = SIMT_MEMORY_BYTES;
    *free_bytes = SIMT_MEMORY_BYTES - simt_device_bytes();
    *free_bytes -= others < *free_bytes ? others : *free_bytes;
    return simt_note(simt_health());
}

cudaError_t cudaMalloc(void **ptr, size_t bytes) {
    simt_called(true);
    const size_t offset = bytes < SMALL_BYTES ? SMALL_OFFSET : 0;
    const size_t page_bytes = (offset + bytes + PAGE - 1) / PAGE * PAGE;
    const std::lock_guard<std::mutex> guard(lock);
    *ptr = nullptr;
    if (simt_health() != cudaSuccess || bytes == 0) {
        return simt_note(simt_health());
    }
    if (bytes > SIMT_MEMORY_BYTES - device_bytes) {
        return simt_note(cudaErrorMemoryAllocation);
    }
    /* The guard protects each page of a block before and after each piece of work: huge pages are few. */
    const bool large = page_bytes >= HUGE_PAGE;
    const size_t map_bytes = page_bytes + 2 * PAGE + (large ? HUGE_PAGE : 0);
    void *const map = mmap(nullptr, map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) {
        return simt_note(cudaErrorMemoryAllocation);
    }
    const uintptr_t first = (uintptr_t)map + PAGE;
    unsigned char *const pages =
        (unsigned char *)(large ? (first + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE : first);
    OX_ASSERT(mprotect(pages, page_bytes, PROT_READ | PROT_WRITE) == 0);
    if (large) {
        (void)madvise(pages, page_bytes, MADV_HUGEPAGE); /* a kernel without them only takes longer */
    }
    memset(pages, 0xff, page_bytes);
    OX_ASSERT(!guarding || mprotect(pages, page_bytes, PROT_NONE) == 0);
    *ptr = pages + offset;
    blocks[(uintptr_t)*ptr] = block{bytes, pages, page_bytes, map, map_bytes};
    device_bytes += bytes;
    return cudaSuccess;
}

cudaError_t cudaFree(void *ptr) {
    simt_called(true);
    const std::lock_guard<std::mutex> guard(lock);
    if (ptr != nullptr) {
        const auto found = blocks.find((uintptr_t)ptr);
        OX_ASSERT(found != blocks.end());
        device_bytes -= found->second.bytes;
        munmap(found->second.map, found->second.map_bytes);
        blocks.erase(found);
    }
    return simt_note(simt_health());
}

/* Whole pages are known to the device or not, so two ranges may not share one. */
cudaError_t cudaHostRegister(void *ptr, size_t bytes, unsigned) {
    simt_called(true);
    const uintptr_t begin = (uintptr_t)ptr / PAGE * PAGE, end = ((uintptr_t)ptr + bytes + PAGE - 1) / PAGE * PAGE;
    const std::lock_guard<std::mutex> guard(lock);
    if (simt_health() != cudaSuccess || bytes == 0) {
        return simt_note(bytes == 0 ? cudaErrorInvalidValue : simt_health());
    }
    const auto next = registered.lower_bound(end);
    if (next != registered.begin() && std::prev(next)->first + std::prev(next)->second > begin) {
        return simt_note(cudaErrorHostMemoryAlreadyRegistered);
    }
    if (registered_bytes + bytes > pinnable_bytes) {
        return simt_note(cudaErrorMemoryAllocation);
    }
    registered[begin] = end - begin;
    registered_bytes += end - begin;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *ptr) {
    simt_called(true);
    const std::lock_guard<std::mutex> guard(lock);
    const auto found = registered.find((uintptr_t)ptr / PAGE * PAGE);
    if (found == registered.end()) {
        return simt_note(cudaErrorHostMemoryNotRegistered);
    }
    registered_bytes -= found->second;
    registered.erase(found);
    return simt_note(simt_health());
}

} // extern "C"
