/* A profiler: OX_SIMT_RANGES names a file that gets a line for each range of NVTX, "thread: outer > inner", when it
 * begins. Without it there is no profiler. */
#include "tests/simt/nvtx.h"

#include "base/assert.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

struct simt_domain {
    std::mutex lock;
    FILE *file = nullptr;
};

static thread_local std::string thread_name;
static thread_local std::vector<std::string> ranges;

extern "C" {

nvtxDomainHandle_t nvtxDomainCreateA(const char *) {
    const char *const path = std::getenv("OX_SIMT_RANGES");
    if (path == nullptr) {
        return nullptr;
    }
    simt_domain *const domain = new simt_domain;
    domain->file = std::fopen(path, "w");
    OX_ASSERT(domain->file != nullptr);
    return domain;
}

int nvtxDomainRangePushEx(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event) {
    ranges.emplace_back(event->message.ascii);
    std::string line = thread_name + ": ";
    for (size_t i = 0; i < ranges.size(); i++) {
        line += (i > 0 ? " > " : "") + ranges[i];
    }
    const std::lock_guard<std::mutex> guard(domain->lock);
    std::fprintf(domain->file, "%s\n", line.c_str());
    std::fflush(domain->file);
    return (int)ranges.size() - 1;
}

int nvtxDomainRangePop(nvtxDomainHandle_t) {
    OX_ASSERT(!ranges.empty());
    ranges.pop_back();
    return (int)ranges.size();
}

void nvtxNameOsThreadA(uint32_t, const char *name) {
    thread_name = name;
}

} // extern "C"
