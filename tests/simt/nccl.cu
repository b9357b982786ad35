/* NCCL, emulated: ranks are threads of one process. Work of a rank is a list of sends, receives and sums, which runs on
 * its stream. It waits there for its peers, as kernels of the library do, until the rank itself aborts; after a peer
 * has aborted it does not succeed. Calls answer that they are in progress, and later that they have succeeded, as
 * communicators that do not block. */
#include "kernels/comm/nccl/library.h"

#include "base/assert.h"
#include "tests/simt/inside.h"

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

struct piece {
    const void *at;
    size_t bytes;
    bool taken;
};

/* All ranks of one identifier. */
struct clique {
    std::mutex lock;
    std::condition_variable moved;
    int count = 0, joined = 0;
    std::set<int> gone; /* ranks that have aborted, whose memory nobody reads any more */
    int readers = 0; /* of memory of other ranks */
    std::map<std::pair<int, int>, std::deque<std::shared_ptr<piece>>> under_way; /* from, to */
};

enum kind { SENDS, RECEIVES, ADDS };
struct part {
    kind what;
    int peer;
    const void *source;
    void *target;
    size_t bytes;
};

struct ncclComm {
    std::shared_ptr<clique> all;
    int rank, count;
    int polls; /* answers that are still "in progress" */
    bool wrong;
};

static std::atomic<bool> present{true};
static std::atomic<uint64_t> calls;
static std::mutex cliques_lock;
static std::map<std::string, std::shared_ptr<clique>> cliques;
static uint64_t id_count;

/* The group that the calling thread has open. */
static thread_local int depth;
static thread_local std::vector<part> group_parts;
static thread_local ncclComm *group_comm;
static thread_local cudaStream_t group_stream;

static std::shared_ptr<piece> give(clique &all, int from, int to, const part &one) {
    const auto given = std::make_shared<piece>(piece{one.source, one.bytes, false});
    all.under_way[{from, to}].push_back(given);
    return given;
}

/* Runs on the stream. */
static void run(const std::shared_ptr<clique> &all, int rank, const std::vector<part> &parts) {
    std::vector<std::shared_ptr<piece>> given;
    std::unique_lock<std::mutex> guard(all->lock);
    for (const part &one : parts) {
        if (one.what == SENDS) {
            given.push_back(give(*all, rank, one.peer, one));
        }
    }
    all->moved.notify_all();
    for (const part &one : parts) {
        if (one.what == SENDS) {
            continue;
        }
        auto &queue = all->under_way[{one.peer, rank}];
        all->moved.wait(guard, [&] { return all->gone.count(rank) || (!queue.empty() && !all->gone.count(one.peer)); });
        if (all->gone.count(rank)) {
            return;
        }
        const std::shared_ptr<piece> got = queue.front();
        queue.pop_front();
        if (got->bytes != one.bytes) { /* whatever the library does then; here it never ends */
            all->moved.wait(guard, [&] { return all->gone.count(rank); });
            return;
        }
        all->readers++;
        guard.unlock();
        if (one.what == RECEIVES) {
            memmove(one.target, got->at, one.bytes);
        } else {
            for (size_t i = 0; i < one.bytes / sizeof(float); i++) {
                ((float *)one.target)[i] += ((const float *)got->at)[i];
            }
        }
        guard.lock();
        all->readers--;
        got->taken = true;
        all->moved.notify_all();
    }
    for (const auto &one : given) {
        all->moved.wait(guard, [&] { return all->gone.count(rank) || one->taken; });
    }
}

static ncclResult_t submit(ncclComm *comm, cudaStream_t stream, const std::vector<part> &parts) {
    const std::shared_ptr<clique> all = comm->all;
    const int rank = comm->rank;
    comm->polls = 1;
    calls++;
    return simt_queue(stream, [all, rank, parts] { run(all, rank, parts); }) == cudaSuccess ? ncclInProgress
                                                                                          : ncclInternalError;
}

static ncclResult_t add(const part &one, ncclComm *comm, cudaStream_t stream) {
    if (one.peer < 0 || one.peer >= comm->count || comm->polls > 0) {
        return ncclInvalidUsage; /* also where an earlier call is still in progress */
    }
    if (depth == 0) {
        return submit(comm, stream, {one});
    }
    group_parts.push_back(one);
    group_comm = comm;
    group_stream = stream;
    return ncclSuccess;
}

static ncclResult_t version(int *out) {
    *out = 22809;
    return ncclSuccess;
}

static ncclResult_t unique_id(ncclUniqueId *out) {
    const std::lock_guard<std::mutex> guard(cliques_lock);
    memset(out, 0, sizeof *out);
    snprintf(out->internal, sizeof out->internal, "clique %lu", (unsigned long)id_count++);
    cliques[out->internal] = std::make_shared<clique>();
    return ncclSuccess;
}

static ncclResult_t init(ncclComm_t *out, int count, ncclUniqueId id, int rank, ncclConfig_t *config) {
    const std::lock_guard<std::mutex> guard(cliques_lock);
    const auto found = cliques.find(id.internal);
    if (found == cliques.end() || config->blocking != 0) {
        return ncclInvalidArgument;
    }
    *out = new ncclComm{found->second, rank, count, 2, false};
    const std::lock_guard<std::mutex> inner(found->second->lock);
    found->second->count = count;
    if (++found->second->joined == count) {
        cliques.erase(found);
    }
    return ncclInProgress;
}

static ncclResult_t abort_comm(ncclComm_t comm) {
    {
        std::unique_lock<std::mutex> guard(comm->all->lock);
        comm->all->gone.insert(comm->rank);
        comm->all->moved.notify_all();
        comm->all->moved.wait(guard, [&] { return comm->all->readers == 0; });
    }
    delete comm;
    return ncclSuccess;
}

static ncclResult_t async_error(ncclComm_t comm, ncclResult_t *state) {
    const std::lock_guard<std::mutex> guard(comm->all->lock);
    const bool joined = comm->all->joined == comm->all->count;
    *state = !joined || comm->polls > 0 ? ncclInProgress : ncclSuccess;
    comm->polls -= joined && comm->polls > 0;
    return ncclSuccess;
}

static const char *error_string(ncclResult_t result) {
    return result == ncclInvalidUsage ? "invalid usage" : "internal error";
}

static ncclResult_t group_start(void) {
    depth++;
    return ncclSuccess;
}

static ncclResult_t group_end(void) {
    if (--depth > 0 || group_parts.empty()) {
        return ncclSuccess;
    }
    const std::vector<part> parts = std::move(group_parts);
    group_parts.clear();
    return submit(group_comm, group_stream, parts);
}

static ncclResult_t all_gather(const void *source, void *target, size_t count, ncclDataType_t type, ncclComm_t comm,
                               cudaStream_t stream) {
    OX_ASSERT(type == ncclInt8);
    group_start();
    ncclResult_t result = ncclSuccess;
    for (int r = 0; r < comm->count && result == ncclSuccess; r++) {
        char *const at = (char *)target + (size_t)r * count;
        if (r == comm->rank && at == source) {
            continue;
        }
        result = add({SENDS, r, source, nullptr, count}, comm, stream);
        result = result == ncclSuccess ? add({RECEIVES, r, nullptr, at, count}, comm, stream) : result;
    }
    const ncclResult_t ended = group_end();
    return result == ncclSuccess ? ended : result;
}

static ncclResult_t reduce(const void *source, void *target, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           int root, ncclComm_t comm, cudaStream_t stream) {
    OX_ASSERT(type == ncclFloat32 && op == ncclSum);
    const size_t bytes = count * sizeof(float);
    const bool takes = root == comm->rank, in_place = takes && source == target;
    group_start();
    ncclResult_t result = in_place ? ncclSuccess : add({SENDS, root, source, nullptr, bytes}, comm, stream);
    for (int r = 0; r < comm->count && takes && result == ncclSuccess; r++) {
        if (!in_place || r != root) {
            result = add({r == 0 && !in_place ? RECEIVES : ADDS, r, nullptr, target, bytes}, comm, stream);
        }
    }
    const ncclResult_t ended = group_end();
    return result == ncclSuccess ? ended : result;
}

static ncclResult_t reduce_scatter(const void *source, void *target, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                   ncclComm_t comm, cudaStream_t stream) {
    group_start();
    ncclResult_t result = ncclSuccess;
    for (int r = 0; r < comm->count && result == ncclSuccess; r++) {
        result = reduce((const float *)source + (size_t)r * count, target, count, type, op, r, comm, stream);
    }
    const ncclResult_t ended = group_end();
    return result == ncclSuccess ? ended : result;
}

static ncclResult_t send(const void *source, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                         cudaStream_t stream) {
    OX_ASSERT(type == ncclInt8);
    return add({SENDS, peer, source, nullptr, count}, comm, stream);
}

static ncclResult_t recv(void *target, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                         cudaStream_t stream) {
    OX_ASSERT(type == ncclInt8);
    return add({RECEIVES, peer, nullptr, target, count}, comm, stream);
}

enum ox_status ox_nccl_library_open(const struct ox_nccl_library **out) {
    static const struct ox_nccl_library library = {
        version, unique_id, init,   abort_comm,     async_error, error_string, group_start,
        group_end, all_gather, reduce_scatter, reduce, send,        recv};
    *out = &library;
    return present ? OX_OK : ox_fail(OX_E_COMM, "NCCL: the library is not there; install it");
}

void simt_set_nccl(bool is_present) {
    present = is_present;
}

uint64_t simt_nccl_calls(void) {
    return calls;
}
