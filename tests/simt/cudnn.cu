/* cuDNN for the emulation, in place of kernels/cuda/cudnn_library.c: descriptors are what was put into them, and a
 * graph is computed operation by operation as it is written, tensor by tensor. So a graph is shown to mean attention,
 * its strides to fit our rows, and slices to add up; which of cuDNN's engines would know it is not asked here.
 *
 * Its heuristics name four engines: one that leaves sums to chance, one that wants all memory, one that refuses at the
 * last moment, and one that will do. */
#include "kernels/cuda/cudnn_plan.h"

#include "base/assert.h"
#include "base/planes.h"
#include "tests/simt/inside.h"

#include <cudnn_backend.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <vector>

/* For tests: whether the library is there, and how often a plan of it was queued. */
extern "C" {
extern bool simt_cudnn_is_there;
extern unsigned simt_cudnn_run_count;
bool simt_cudnn_is_there;
unsigned simt_cudnn_run_count;
}

enum { RANK = 4, ENGINE_OF_CHANCE = 0, ENGINE_OF_WASTE, ENGINE_OF_REFUSAL, ENGINE_THAT_WORKS, ENGINE_COUNT };
/* Slices are small, so that small shapes are cut. */
enum { HEAD_DIM_MAX = 128, SLICE_BYTES = 200 << 10 };

struct ox_cudnn_library {
    int unused;
};

struct descriptor {
    int type;
    bool finished = false;
    int64_t engine = -1; /* index of the engine, for engines and their configs */
    const descriptor *graph = nullptr;
    std::map<int, std::vector<unsigned char>> values;
};

static descriptor *of(void *pointer) {
    return (descriptor *)pointer;
}

template <typename T> static T one(const descriptor *from, int name, T otherwise) {
    const auto found = from->values.find(name);
    if (found != from->values.end()) {
        OX_ASSERT(found->second.size() == sizeof(T));
        memcpy(&otherwise, found->second.data(), sizeof(T));
    }
    return otherwise;
}

template <typename T> static std::vector<T> all(const descriptor *from, int name) {
    const auto found = from->values.find(name);
    std::vector<T> out(found == from->values.end() ? 0 : found->second.size() / sizeof(T));
    if (!out.empty()) {
        memcpy(out.data(), found->second.data(), found->second.size());
    }
    return out;
}

static const descriptor *inner(const descriptor *from, int name) {
    return of(one<void *>(from, name, nullptr));
}

/* ---- tensors ---------------------------------------------------------------------------------------- */

struct tensor {
    int64_t count[RANK], stride[RANK];
    cudnnDataType_t type; /* that it is rounded to */
    cudnnDataType_t held; /* that its memory has */
    void *at;
};

using memories = std::map<int64_t, std::pair<void *, cudnnDataType_t>>;

static tensor describe(const descriptor *from) {
    tensor out = {};
    const std::vector<int64_t> count = all<int64_t>(from, CUDNN_ATTR_TENSOR_DIMENSIONS);
    const std::vector<int64_t> stride = all<int64_t>(from, CUDNN_ATTR_TENSOR_STRIDES);
    OX_ASSERT(from->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR && count.size() == RANK && stride.size() == RANK);
    memcpy(out.count, count.data(), sizeof out.count);
    memcpy(out.stride, stride.data(), sizeof out.stride);
    out.type = out.held = one(from, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_DATA_FLOAT);
    return out;
}

static double get(const tensor &from, int64_t at) {
    return from.held == CUDNN_DATA_BFLOAT16 ? (double)ox_bf16_to_f32(((const uint16_t *)from.at)[at])
           : from.held == CUDNN_DATA_INT32  ? (double)((const int32_t *)from.at)[at]
                                            : (double)((const float *)from.at)[at];
}

static void put(const tensor &to, int64_t at, double value) {
    const uint16_t rounded = ox_bf16_from_f32((float)value);
    OX_ASSERT(to.held != CUDNN_DATA_INT32);
    if (to.held == CUDNN_DATA_BFLOAT16) {
        ((uint16_t *)to.at)[at] = rounded;
    } else {
        ((float *)to.at)[at] = to.type == CUDNN_DATA_BFLOAT16 ? ox_bf16_to_f32(rounded) : (float)value;
    }
}

/* Index of the element that meets one of a larger tensor: a dimension of 1 is the same for all, and fewer heads are
 * shared by neighbours. */
static int64_t meet(const tensor &of, const int64_t place[RANK], int64_t heads) {
    int64_t at = 0;
    for (int i = 0; i < RANK; i++) {
        const int64_t own = of.count[i] == 1 ? 0 : i == 1 ? place[i] * of.count[i] / heads : place[i];
        OX_ASSERT(own < of.count[i]);
        at += own * of.stride[i];
    }
    return at;
}

static void for_each(const tensor &over, const std::function<void(const int64_t place[RANK])> &what) {
    int64_t place[RANK];
    for (place[0] = 0; place[0] < over.count[0]; place[0]++) {
        for (place[1] = 0; place[1] < over.count[1]; place[1]++) {
            for (place[2] = 0; place[2] < over.count[2]; place[2]++) {
                for (place[3] = 0; place[3] < over.count[3]; place[3]++) {
                    what(place);
                }
            }
        }
    }
}

/* ---- running ---------------------------------------------------------------------------------------- */

struct machine {
    memories memory;
    std::vector<std::unique_ptr<float[]>> owned;

    /* A tensor within the graph has memory from its first writing on. */
    tensor open(const descriptor *from, bool writes) {
        tensor out = describe(from);
        const int64_t id = one<int64_t>(from, CUDNN_ATTR_TENSOR_UNIQUE_ID, 0);
        const bool within = one(from, CUDNN_ATTR_TENSOR_IS_VIRTUAL, false);
        auto found = memory.find(id);
        if (found == memory.end()) {
            OX_ASSERT(within && writes);
            int64_t span = 1;
            for (int i = 0; i < RANK; i++) {
                span += (out.count[i] - 1) * out.stride[i];
            }
            owned.emplace_back(new float[(size_t)span]);
            found = memory.emplace(id, std::make_pair((void *)owned.back().get(), CUDNN_DATA_FLOAT)).first;
        } else {
            OX_ASSERT((uintptr_t)found->second.first % one<int64_t>(from, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 1) == 0);
        }
        out.at = found->second.first;
        out.held = within ? found->second.second : out.type;
        return out;
    }

    void step(const descriptor *op) {
        const descriptor *const kind = inner(op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
        const descriptor *const b_from = inner(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
        const descriptor *const t_from = inner(op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
        const cudnnPointwiseMode_t mode = one(kind, CUDNN_ATTR_POINTWISE_MODE, CUDNN_POINTWISE_ADD);
        const int64_t axis = one<int64_t>(kind, CUDNN_ATTR_POINTWISE_AXIS, 0);
        const tensor x = open(inner(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC), false);
        const tensor b = b_from == nullptr ? x : open(b_from, false), t = t_from == nullptr ? x : open(t_from, false);
        const tensor y = open(inner(op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC), true);
        for_each(y, [&](const int64_t *place) {
            const double left = get(x, meet(x, place, y.count[1])), right = get(b, meet(b, place, y.count[1]));
            double value = 0.0;
            switch (mode) {
            case CUDNN_POINTWISE_ADD: value = left + right; break;
            case CUDNN_POINTWISE_SUB: value = left - right; break;
            case CUDNN_POINTWISE_MUL: value = left * right; break;
            case CUDNN_POINTWISE_DIV: value = left / right; break;
            case CUDNN_POINTWISE_EXP: value = exp(left); break;
            case CUDNN_POINTWISE_LOG: value = log(left); break;
            case CUDNN_POINTWISE_CMP_GE: value = left >= right ? 1.0 : 0.0; break;
            case CUDNN_POINTWISE_CMP_GT: value = left > right ? 1.0 : 0.0; break;
            case CUDNN_POINTWISE_GEN_INDEX: value = (double)place[axis]; break;
            case CUDNN_POINTWISE_BINARY_SELECT:
                value = get(t, meet(t, place, y.count[1])) != 0.0 ? left : right;
                break;
            }
            put(y, meet(y, place, y.count[1]), value);
        });
    }

    void product(const descriptor *op) {
        const tensor a = open(inner(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC), false);
        const tensor b = open(inner(op, CUDNN_ATTR_OPERATION_MATMUL_BDESC), false);
        const tensor c = open(inner(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC), true);
        OX_ASSERT(a.count[2] == c.count[2] && b.count[3] == c.count[3] && a.count[3] == b.count[2]);
        for_each(c, [&](const int64_t *place) {
            const int64_t a_from[RANK] = {place[0], place[1], place[2], 0};
            const int64_t b_from[RANK] = {place[0], place[1], 0, place[3]};
            int64_t a_at = meet(a, a_from, c.count[1]), b_at = meet(b, b_from, c.count[1]);
            double sum = 0.0;
            for (int64_t i = 0; i < a.count[3]; i++, a_at += a.stride[3], b_at += b.stride[2]) {
                sum += get(a, a_at) * get(b, b_at);
            }
            put(c, meet(c, place, c.count[1]), sum);
        });
    }

    /* Over what the result has fewer of: columns, or heads that share one. */
    void reduce(const descriptor *op) {
        const tensor x = open(inner(op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC), false);
        const tensor y = open(inner(op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC), true);
        const bool adds = one(inner(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC), CUDNN_ATTR_REDUCTION_OPERATOR,
                              CUDNN_REDUCE_TENSOR_ADD) == CUDNN_REDUCE_TENSOR_ADD;
        std::map<int64_t, double> sums;
        for_each(x, [&](const int64_t *place) {
            const double value = get(x, meet(x, place, x.count[1]));
            const auto found = sums.emplace(meet(y, place, x.count[1]), value);
            if (!found.second) {
                found.first->second = adds ? found.first->second + value : fmax(found.first->second, value);
            }
        });
        for (const auto &sum : sums) {
            put(y, sum.first, sum.second);
        }
    }

    /* Gives the same memory another shape. */
    void reshape(const descriptor *op) {
        const descriptor *const to = inner(op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
        const tensor x = open(inner(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC), false);
        OX_ASSERT(one(to, CUDNN_ATTR_TENSOR_IS_VIRTUAL, false));
        memory[one<int64_t>(to, CUDNN_ATTR_TENSOR_UNIQUE_ID, 0)] = std::make_pair(x.at, x.held);
        const tensor y = open(to, false);
        if (y.type == CUDNN_DATA_BFLOAT16 && y.held == CUDNN_DATA_FLOAT) {
            /* The graph's other users keep what was not rounded. */
            int64_t span = 1;
            for (int i = 0; i < RANK; i++) {
                span += (y.count[i] - 1) * y.stride[i];
            }
            owned.emplace_back(new float[(size_t)span]);
            for (int64_t i = 0; i < span; i++) {
                owned.back()[(size_t)i] = ox_bf16_to_f32(ox_bf16_from_f32(((const float *)x.at)[i]));
            }
            memory[one<int64_t>(to, CUDNN_ATTR_TENSOR_UNIQUE_ID, 0)] =
                std::make_pair((void *)owned.back().get(), CUDNN_DATA_FLOAT);
        }
    }

    /* The engine may write its workspace at any time: tensors placed there are lost. */
    void run(const std::vector<void *> &operations, void *workspace, size_t bytes) {
        for (void *const pointer : operations) {
            const descriptor *const op = of(pointer);
            memset(workspace, 0xff, bytes);
            switch (op->type) {
            case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: step(op); break;
            case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: product(op); break;
            case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR: reduce(op); break;
            default: reshape(op); break;
            }
        }
    }
};

/* The tensors that a graph has in memory or by value. */
static std::map<int64_t, const descriptor *> outer_of(const descriptor *graph) {
    static const int names[] = {
        CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
        CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC,
        CUDNN_ATTR_OPERATION_MATMUL_CDESC, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, CUDNN_ATTR_OPERATION_RESHAPE_XDESC};
    std::map<int64_t, const descriptor *> out;
    for (void *const op : all<void *>(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
        for (const int name : names) {
            const descriptor *const found = inner(of(op), name);
            if (found != nullptr && !one(found, CUDNN_ATTR_TENSOR_IS_VIRTUAL, false)) {
                out[one<int64_t>(found, CUDNN_ATTR_TENSOR_UNIQUE_ID, 0)] = found;
            }
        }
    }
    return out;
}

/* Workspace of an engine that keeps in memory the gradients of scores, and those of keys and values by head of queries.
 */
static int64_t workspace_of(const descriptor *graph) {
    int64_t bytes = 256;
    for (const auto &found : outer_of(graph)) {
        const tensor outer = describe(found.second);
        if (found.first == OX_CUDNN_DQ) {
            const int64_t places = (outer.count[2] + 127) / 128 * 128;
            bytes += outer.count[0] * outer.count[1] * (2 * places * places + 4 * outer.count[2] * outer.count[3]);
        }
    }
    return bytes;
}

extern "C" {

enum ox_status ox_cudnn_execute(const ox_cudnn_target *, void *plan, void *pack, void *stream) {
    const descriptor *const graph = of(plan)->graph;
    const std::vector<int64_t> ids = all<int64_t>(of(pack), CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const std::vector<void *> pointers = all<void *>(of(pack), CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    const std::map<int64_t, const descriptor *> outer = outer_of(graph);
    const auto single = std::make_shared<std::map<int64_t, std::vector<unsigned char>>>();
    memories memory;
    OX_ASSERT(of(pack)->finished && ids.size() == pointers.size() && ids.size() == outer.size());
    for (size_t i = 0; i < ids.size(); i++) {
        const auto found = outer.find(ids[i]);
        OX_ASSERT(found != outer.end() && pointers[i] != nullptr);
        void *at = pointers[i];
        if (one(found->second, CUDNN_ATTR_TENSOR_IS_BY_VALUE, false)) { /* read before the call returns */
            (*single)[ids[i]].assign((unsigned char *)at, (unsigned char *)at + 4);
            at = (*single)[ids[i]].data();
        }
        memory[ids[i]] = std::make_pair(at, describe(found->second).type);
    }
    void *const workspace = one<void *>(of(pack), CUDNN_ATTR_VARIANT_PACK_WORKSPACE, nullptr);
    const std::vector<void *> operations = all<void *>(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    const size_t bytes = (size_t)workspace_of(graph);
    __atomic_fetch_add(&simt_cudnn_run_count, 1, __ATOMIC_RELAXED);
    const cudaError_t error = simt_queue((cudaStream_t)stream, [memory, single, operations, workspace, bytes] {
        machine{memory, {}}.run(operations, workspace, bytes);
    });
    return error == cudaSuccess ? OX_OK : ox_fail(OX_E_DEVICE, "GPU, cuDNN: %s", cudaGetErrorString(error));
}

/* ---- descriptors ------------------------------------------------------------------------------------ */

bool ox_cudnn_library_open(ox_cudnn_library **out, ox_cudnn_words *words) {
    *out = simt_cudnn_is_there ? new ox_cudnn_library{0} : nullptr;
    if (*out == nullptr) {
        snprintf(words->text, sizeof words->text, "the emulation has no cuDNN");
    }
    return *out != nullptr;
}

void ox_cudnn_library_close(ox_cudnn_library **library) {
    delete *library;
    *library = nullptr;
}

uint64_t ox_cudnn_library_version(const ox_cudnn_library *) {
    return 91900;
}

bool ox_cudnn_target_open(const ox_cudnn_library *library, uint32_t capability, ox_cudnn_target *out,
                          ox_cudnn_words *) {
    static int handle;
    *out = ox_cudnn_target{library, &handle, nullptr, SLICE_BYTES, capability};
    return true;
}

bool ox_cudnn_target_describe(const ox_cudnn_library *, const char *, ox_cudnn_target *, ox_cudnn_words *words) {
    snprintf(words->text, sizeof words->text, "the emulation knows no GPU by description");
    return false;
}

void ox_cudnn_target_close(ox_cudnn_target *target) {
    *target = ox_cudnn_target{};
}

void *ox_cudnn_make(ox_cudnn_set *set, int descriptor_type) {
    if (set->owned_count == set->owned_room) {
        set->owned_room += 64;
        set->owned = (void **)realloc(set->owned, set->owned_room * sizeof *set->owned);
        OX_ASSERT(set->owned != nullptr);
    }
    descriptor *const made = new descriptor;
    made->type = descriptor_type;
    set->owned[set->owned_count++] = made;
    return made;
}

static size_t bytes_of(int type) {
    return type <= CUDNN_TYPE_INT64 ? 8 : type == CUDNN_TYPE_BOOLEAN ? sizeof(bool) : sizeof(int);
}

void ox_cudnn_put_all(ox_cudnn_set *, void *to, const int name_type[2], int64_t count, const void *values) {
    OX_ASSERT(!of(to)->finished);
    const unsigned char *const from = (const unsigned char *)values;
    of(to)->values[name_type[0]].assign(from, from + (size_t)count * bytes_of(name_type[1]));
    for (int64_t i = 0; i < count && name_type[1] == CUDNN_TYPE_BACKEND_DESCRIPTOR; i++) {
        OX_ASSERT(of(((void *const *)values)[i])->finished);
    }
}

void ox_cudnn_put(ox_cudnn_set *set, void *to, int name, int type, const void *value) {
    const int name_type[2] = {name, type};
    ox_cudnn_put_all(set, to, name_type, 1, value);
}

void ox_cudnn_put_descriptor(ox_cudnn_set *set, void *to, int name, void *value) {
    ox_cudnn_put(set, to, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, &value);
}

void ox_cudnn_finish(ox_cudnn_set *, void *what) {
    of(what)->finished = true;
}

int ox_cudnn_try_finish(ox_cudnn_set *, void *what, ox_cudnn_words *words) {
    descriptor *const given = of(what);
    if (given->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
        const descriptor *const config = inner(given, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
        given->engine = config->engine;
        given->graph = config->graph;
        if (config->engine == ENGINE_OF_REFUSAL) {
            snprintf(words->text, sizeof words->text, "not after all");
            return CUDNN_STATUS_NOT_SUPPORTED;
        }
        OX_ASSERT(config->engine == ENGINE_THAT_WORKS);
    }
    given->finished = true;
    return CUDNN_STATUS_SUCCESS;
}

int64_t ox_cudnn_get(ox_cudnn_set *, void *from, const int name_type[2], int64_t room, void *values) {
    const descriptor *const given = of(from);
    if (name_type[0] == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE) {
        *(cudnnBackendNumericalNote_t *)values = given->engine == ENGINE_OF_CHANCE
                                                     ? CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC
                                                     : CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
        return 1;
    }
    void **const out = (void **)values;
    if (name_type[0] == CUDNN_ATTR_ENGINECFG_ENGINE) {
        of(out[0])->engine = given->engine;
        of(out[0])->finished = true;
        return 1;
    }
    OX_ASSERT(name_type[0] == CUDNN_ATTR_ENGINEHEUR_RESULTS && room >= ENGINE_COUNT);
    const descriptor *const graph = inner(given, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    const auto outer = outer_of(graph);
    const auto dq = outer.find(OX_CUDNN_DQ);
    if (dq != outer.end() && describe(dq->second).count[3] > HEAD_DIM_MAX) {
        return 0;
    }
    for (int64_t i = 0; i < ENGINE_COUNT; i++) {
        of(out[i])->engine = i;
        of(out[i])->graph = graph;
        of(out[i])->finished = true;
    }
    return ENGINE_COUNT;
}

int ox_cudnn_try_get(ox_cudnn_set *, void *from, int name, int64_t *value) {
    const descriptor *const given = of(from);
    *value = name == CUDNN_ATTR_ENGINE_GLOBAL_INDEX     ? given->engine
             : given->engine == ENGINE_OF_WASTE         ? (int64_t)1 << 60
             : given->graph == nullptr                  ? 0
                                                        : workspace_of(given->graph);
    return CUDNN_STATUS_SUCCESS;
}

void ox_cudnn_set_close(ox_cudnn_set *set) {
    while (set->owned_count > 0) {
        delete of(set->owned[--set->owned_count]);
    }
    free(set->owned);
    set->owned = nullptr;
    set->owned_room = 0;
}
}
