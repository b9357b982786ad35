/* The router of a mixture of experts: logits by cuBLASLt, then a warp for each row. The load is summed by groups of
 * rows, and the pairs are sorted by counting parts of the rows, so that nothing needs atomics. A row's logits are read
 * once forward and once or twice backward; sorting reads the experts of all pairs twice and writes their places. */
#include "base/bytes.h"
#include "kernels/cuda/kernel.cuh"

/* ---- logits ---------------------------------------------------------------------------------------- */

template <typename T> static __global__ void add_bias(float *logits, const T *bias, uint32_t rows, uint32_t experts) {
    const uint64_t count = (uint64_t)rows * experts, stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        logits[i] += ox_widen(bias[i % experts]);
    }
}

template <typename T> static void launch_bias(const ox_cuda_queue *queue, const ox_op_router_forward *op) {
    const uint64_t count = (uint64_t)op->rows * op->experts;
    ox_launch(add_bias<T>, queue, ox_launch_shape{ox_grid_for(queue, count, OX_BLOCK_THREADS), OX_BLOCK_THREADS, 0},
              op->logits, (const T *)op->bias, op->rows, op->experts);
}

extern "C" ox_status ox_cuda_router_forward(const ox_cuda_queue *queue, const void *args) {
    const ox_op_router_forward *const op = (const ox_op_router_forward *)args;
    ox_cuda_gemm_args gemm = {};
    gemm.c = op->logits, gemm.a = op->in, gemm.b = op->weight;
    gemm.m = op->rows, gemm.n = op->experts, gemm.k = op->in_count;
    gemm.a_stride = gemm.b_stride = op->in_count, gemm.c_stride = op->experts;
    gemm.b_transposed = true, gemm.in = op->real, gemm.out = OX_REAL_F32;
    const ox_status status = ox_cuda_gemm(queue, &gemm);
    if (status == OX_OK && op->bias != NULL && queue->search == NULL) {
        return ox_for_real(op->real, [=](auto of) {
            launch_bias<decltype(of)>(queue, op);
            return OX_OK;
        });
    }
    return status;
}

extern "C" ox_status ox_cuda_router_backward(const ox_cuda_queue *queue, const void *args) {
    const ox_op_router_backward *const op = (const ox_op_router_backward *)args;
    const uint64_t count = (uint64_t)op->rows * op->experts;
    const void *dlogits = op->dlogits;
    ox_status status = OX_OK;
    if (op->real != OX_REAL_F32) {
        status = ox_cuda_narrow(queue, op->real, op->scratch, op->dlogits, count);
        dlogits = op->scratch;
    }
    ox_cuda_gemm_args gemm = {};
    gemm.c = op->dweight, gemm.a = dlogits, gemm.b = op->in, gemm.addend = op->begins ? NULL : op->dweight;
    gemm.m = op->experts, gemm.n = op->in_count, gemm.k = op->rows;
    gemm.a_stride = op->experts, gemm.b_stride = gemm.c_stride = op->in_count;
    gemm.a_transposed = true, gemm.in = op->real, gemm.out = OX_REAL_F32;
    if (op->dweight != NULL) {
        OX_THEN(status, ox_cuda_gemm(queue, &gemm));
    }
    gemm = {};
    gemm.c = op->din, gemm.a = dlogits, gemm.b = op->weight, gemm.addend = op->residual;
    gemm.m = op->rows, gemm.n = op->in_count, gemm.k = op->experts;
    gemm.a_stride = op->experts, gemm.b_stride = gemm.c_stride = op->in_count;
    gemm.in = gemm.out = op->real;
    OX_THEN(status, ox_cuda_gemm(queue, &gemm));
    if (status == OX_OK && op->dbias != NULL) {
        ox_op_linear_backward sums = {};
        sums.dbias = op->dbias, sums.dout = op->dlogits, sums.rows = op->rows, sums.out_count = op->experts;
        sums.real = OX_REAL_F32, sums.begins = op->begins;
        status = ox_cuda_column_sums(queue, &sums);
    }
    return status;
}

/* ---- choice ---------------------------------------------------------------------------------------- */

enum { ROUTE_WARPS = 2 };

static __device__ __forceinline__ float logit_of(const ox_router &router, float value) {
    return router.rounds ? ox_widen(ox_bf16{ox_bf16_bits(value)}) : value;
}

/* As key_of of kernels/cpu/moe/route.c. */
static __device__ __forceinline__ uint64_t key_of(float value, uint32_t idx) {
    const uint32_t bits = __float_as_uint(value + 0.0f);
    const uint32_t ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
    return (uint64_t)(ordered > 0 ? ordered : 1) << 32 | (0xffffffffu - idx);
}

/* The index of the largest key; the same in every lane. */
static __device__ __forceinline__ uint32_t best_of(const uint64_t *keys, uint32_t count) {
    uint64_t best = 0;
    for (uint32_t i = threadIdx.x % OX_WARP; i < count; i += OX_WARP) {
        best = keys[i] > best ? keys[i] : best;
    }
#pragma unroll
    for (int distance = OX_WARP / 2; distance > 0; distance /= 2) {
        const uint32_t high = __shfl_xor_sync(0xffffffffu, (uint32_t)(best >> 32), distance);
        const uint32_t low = __shfl_xor_sync(0xffffffffu, (uint32_t)best, distance);
        const uint64_t other = (uint64_t)high << 32 | low;
        best = other > best ? other : best;
    }
    return 0xffffffffu - (uint32_t)best;
}

struct route_room {
    uint64_t *keys, *groups;
    float *scores;
};

static __device__ __forceinline__ route_room room_of(unsigned char *shared, uint32_t experts) {
    unsigned char *const at = shared + threadIdx.x / OX_WARP * experts * 20;
    return route_room{(uint64_t *)at, (uint64_t *)at + experts, (float *)((uint64_t *)at + 2 * experts)};
}

static size_t room_bytes(uint32_t experts) {
    return (size_t)ROUTE_WARPS * ox_align_up(experts, 2) * 20;
}

static __device__ __forceinline__ void rank_groups(const ox_router &router, const float *bias,
                                                   const route_room &room) {
    const uint32_t size = router.experts / router.groups;
    for (uint32_t g = threadIdx.x % OX_WARP; g < router.groups; g += OX_WARP) {
        float best = -INFINITY, second = -INFINITY;
        for (uint32_t e = g * size; e < (g + 1) * size; e++) {
            const float value = room.scores[e] + (bias == NULL ? 0.0f : bias[e]);
            second = value > best ? best : value > second ? value : second;
            best = value > best ? value : best;
        }
        const bool both = router.group_rank == OX_GROUP_BY_BEST_TWO && size > 1;
        room.groups[g] = key_of(both ? best + second : best, g);
    }
}

/* Takes the keys of experts in other groups than the best ones away; a group that is kept has the key 0 then. */
static __device__ __forceinline__ void keep_groups(const ox_router &router, const float *bias,
                                                   const route_room &room) {
    rank_groups(router, bias, room);
    __syncwarp();
    for (uint32_t i = 0; i < router.groups_kept; i++) {
        const uint32_t g = best_of(room.groups, router.groups);
        __syncwarp();
        if (threadIdx.x % OX_WARP == 0) {
            room.groups[g] = 0;
        }
        __syncwarp();
    }
    for (uint32_t e = threadIdx.x % OX_WARP; e < router.experts; e += OX_WARP) {
        room.keys[e] = room.groups[e / (router.experts / router.groups)] == 0 ? room.keys[e] : 0;
    }
    __syncwarp();
}

static __device__ __forceinline__ float scores_of(const ox_router &router, const float *logits,
                                                  const route_room &room) {
    float top = -INFINITY, sum = 0.0f;
    for (uint32_t e = threadIdx.x % OX_WARP; e < router.experts; e += OX_WARP) {
        top = fmaxf(top, logit_of(router, logits[e]));
    }
    top = ox_warp_max(top);
    for (uint32_t e = threadIdx.x % OX_WARP; e < router.experts; e += OX_WARP) {
        sum += expf(logit_of(router, logits[e]) - top);
    }
    sum = ox_warp_sum(sum);
    for (uint32_t e = threadIdx.x % OX_WARP; e < router.experts; e += OX_WARP) {
        const float z = logit_of(router, logits[e]);
        room.scores[e] = router.scores == OX_SCORES_SOFTMAX   ? expf(z - top) / sum
                         : router.scores == OX_SCORES_SIGMOID ? 1.0f / (1.0f + expf(-z))
                                                              : z;
    }
    return top + logf(sum);
}

/* Chooses one expert after the other; lane 0 keeps them in order. */
static __device__ __forceinline__ void choose(const ox_router &router, const route_room &room, int32_t *experts) {
    for (uint32_t i = 0; i < router.chosen; i++) {
        const uint32_t e = best_of(room.keys, router.experts);
        __syncwarp();
        if (threadIdx.x % OX_WARP == 0) {
            uint32_t slot = i;
            room.keys[e] = 0;
            for (; slot > 0 && experts[slot - 1] > (int32_t)e; slot--) {
                experts[slot] = experts[slot - 1];
            }
            experts[slot] = (int32_t)e;
        }
        __syncwarp();
    }
}

static __device__ __forceinline__ void weigh(const ox_router &router, const float *scores, const int32_t *experts,
                                             float *weights) {
    const bool alone = router.scores == OX_SCORES_SOFTMAX_CHOSEN;
    float top = -INFINITY, sum = 0.0f;
    for (uint32_t i = 0; i < router.chosen; i++) {
        top = fmaxf(top, scores[experts[i]]);
    }
    for (uint32_t i = 0; i < router.chosen; i++) {
        const float score = scores[experts[i]];
        weights[i] = alone ? expf(score - top) : score;
        sum += weights[i];
    }
    for (uint32_t i = 0; i < router.chosen; i++) {
        const float share = alone || router.renormalise ? weights[i] / (sum + router.eps) : weights[i];
        weights[i] = logit_of(router, share * router.scale);
    }
}

static __global__ void route_rows(const ox_op_route_forward op) {
    const ox_router &router = op.router;
    const uint32_t row = blockIdx.x * ROUTE_WARPS + threadIdx.x / OX_WARP;
    if (row >= op.rows) {
        return;
    }
    const route_room room = room_of((unsigned char *)ox_dynamic_shared(), (router.experts + 1) / 2 * 2);
    int32_t *const experts = op.experts + (uint64_t)row * router.chosen;
    const float lse = scores_of(router, op.logits + (uint64_t)row * router.experts, room);
    for (uint32_t e = threadIdx.x % OX_WARP; e < router.experts; e += OX_WARP) {
        room.keys[e] = key_of(room.scores[e] + (op.bias == NULL ? 0.0f : op.bias[e]), e);
    }
    __syncwarp();
    if (router.groups > 1) {
        keep_groups(router, op.bias, room);
    }
    choose(router, room, experts);
    if (threadIdx.x % OX_WARP == 0) {
        weigh(router, room.scores, experts, op.weights + (uint64_t)row * router.chosen);
        op.lse[row] = lse;
    }
}

static ox_launch_shape by_rows(uint32_t rows, size_t shared_bytes) {
    return ox_launch_shape{(rows + ROUTE_WARPS - 1) / ROUTE_WARPS, ROUTE_WARPS * OX_WARP, shared_bytes};
}

template <typename T> static __global__ void join_limbs(const ox_op_join_limbs op) {
    const uint32_t stride = gridDim.x * blockDim.x;
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < op.count; i += stride) {
        const T *const limbs = (const T *)op.in + (uint64_t)i * OX_LIMBS;
        op.out[i] = ox_widen(limbs[0]) + ox_widen(limbs[1]) + ox_widen(limbs[2]) + ox_widen(limbs[3]);
    }
}

extern "C" ox_status ox_cuda_join_limbs(const ox_cuda_queue *queue, const void *args) {
    const ox_op_join_limbs *const op = (const ox_op_join_limbs *)args;
    return ox_for_real(op->real, [=](auto of) {
        ox_launch(join_limbs<decltype(of)>, queue,
                  ox_launch_shape{ox_grid_for(queue, op->count, OX_BLOCK_THREADS), OX_BLOCK_THREADS, 0}, *op);
        return OX_OK;
    });
}

static __global__ void shift_limbs(const ox_op_limbs_shift op) {
    for (uint32_t i = threadIdx.x; i < op.count; i += blockDim.x) {
        ox_limbs_shift(&op, i);
    }
}

extern "C" ox_status ox_cuda_limbs_shift(const ox_cuda_queue *queue, const void *args) {
    const ox_op_limbs_shift *const op = (const ox_op_limbs_shift *)args;
    ox_launch(shift_limbs, queue, ox_launch_shape{1, OX_BLOCK_THREADS, 0}, *op);
    return OX_OK;
}

extern "C" ox_status ox_cuda_route_forward(const ox_cuda_queue *queue, const void *args) {
    const ox_op_route_forward *const op = (const ox_op_route_forward *)args;
    ox_launch(route_rows, queue, by_rows(op->rows, room_bytes(op->router.experts)), *op);
    return OX_OK;
}

/* ---- load ------------------------------------------------------------------------------------------ */

static __device__ __forceinline__ bool counts(const int32_t *counted, uint32_t row) {
    return counted == NULL || counted[row] != OX_TARGET_PADDING;
}

/* A block sums over one group of rows, a thread for some experts. */
static __global__ void load_group(const ox_op_route_load op, const ox_route_load_layout at) {
    const ox_router &router = op.router;
    const uint32_t group_rows = (op.rows + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * group_rows;
    const uint32_t end = begin + group_rows < op.rows ? begin + group_rows : op.rows;
    double *const part = (double *)op.scratch + (uint64_t)blockIdx.x * at.count;
    for (uint32_t e = threadIdx.x; e < router.experts; e += blockDim.x) {
        double probs = 0.0, chosen = 0.0;
        for (uint32_t row = begin; row < end; row++) {
            if (counts(op.counted, row)) {
                const float z = logit_of(router, op.logits[(uint64_t)row * router.experts + e]);
                probs += (double)expf(z - op.lse[row]);
                for (uint32_t i = 0; i < router.chosen; i++) {
                    chosen += op.experts[(uint64_t)row * router.chosen + i] == (int32_t)e ? 1.0 : 0.0;
                }
            }
        }
        part[at.counts + e] = chosen;
        part[at.probs + e] = probs;
    }
    if (threadIdx.x == 0) {
        double rows = 0.0, squares = 0.0;
        for (uint32_t row = begin; row < end; row++) {
            const double lse = (double)op.lse[row];
            rows += counts(op.counted, row) ? 1.0 : 0.0;
            squares += counts(op.counted, row) ? lse * lse : 0.0;
        }
        part[at.rows] = rows;
        part[at.squares] = squares;
    }
}

static __global__ void load_sum(const ox_op_route_load op, uint32_t count, uint32_t groups) {
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
        double sum = op.begins ? 0.0 : op.load[i];
        for (uint32_t group = 0; group < groups; group++) {
            sum += ((const double *)op.scratch)[(uint64_t)group * count + i];
        }
        op.load[i] = sum;
    }
}

extern "C" ox_status ox_cuda_route_load(const ox_cuda_queue *queue, const void *args) {
    const ox_op_route_load *const op = (const ox_op_route_load *)args;
    const uint32_t groups = op->rows < OX_ROUTE_LOAD_GROUPS ? op->rows : (uint32_t)OX_ROUTE_LOAD_GROUPS;
    const ox_route_load_layout at = ox_route_load_layout_of(op->router.experts);
    ox_launch(load_group, queue, ox_launch_shape{groups, OX_BLOCK_THREADS, 0}, *op, at);
    ox_launch(load_sum, queue, ox_launch_shape{1, OX_BLOCK_THREADS, 0}, *op, at.count, groups);
    return OX_OK;
}

static __global__ void pool(const ox_op_route_pool op) {
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    double sum = 0.0;
    for (uint32_t mb = 0; mb < op.micro_batches && i < op.count; mb++) {
        for (uint32_t layer = 0; layer < op.layers; layer++) {
            sum += op.loads[(uint64_t)mb * op.stride + (uint64_t)layer * op.count + i];
        }
    }
    if (i < op.count) {
        op.load[i] = sum;
    }
}

extern "C" ox_status ox_cuda_route_pool(const ox_cuda_queue *queue, const void *args) {
    const ox_op_route_pool *const op = (const ox_op_route_pool *)args;
    const uint32_t blocks = (op->count + OX_BLOCK_THREADS - 1) / OX_BLOCK_THREADS;
    ox_launch(pool, queue, ox_launch_shape{blocks, OX_BLOCK_THREADS, 0}, *op);
    return OX_OK;
}

/* ---- backward -------------------------------------------------------------------------------------- */

/* What the losses add to the gradient of a logit whose probability is p: p * (share * counts[e] - rest). */
struct losses {
    float share, rest;
};

static __device__ __forceinline__ losses losses_of(const ox_op_route_backward &op, const ox_route_load_layout &at,
                                                    const float *logits, uint32_t row) {
    if (op.load == NULL || !counts(op.counted, row)) {
        return losses{0.0f, 0.0f};
    }
    const double n = op.load[at.rows];
    float mean = 0.0f;
    for (uint32_t e = threadIdx.x % OX_WARP; e < op.router.experts; e += OX_WARP) {
        mean += (float)(op.load[at.counts + e] / n) * expf(logit_of(op.router, logits[e]) - op.lse[row]);
    }
    mean = ox_warp_sum(mean);
    const double balance = (double)op.balance * op.router.experts / n;
    return losses{(float)(balance / n), (float)(balance * (double)mean - 2.0 * (double)op.z / n * (double)op.lse[row])};
}

/* The gradient of the logit in a slot, and what all logits of a softmax have in common (0: nothing). */
static __device__ __forceinline__ float slot_gradient(const ox_op_route_backward &op, const float *logits,
                                                      uint32_t row, float *common) {
    const ox_router &router = op.router;
    const uint32_t slot = threadIdx.x % OX_WARP;
    const uint64_t at = (uint64_t)row * router.chosen + slot;
    const bool is_there = slot < router.chosen, sigmoid = router.scores == OX_SCORES_SIGMOID;
    const bool all = router.scores == OX_SCORES_SOFTMAX && !router.renormalise;
    const float z = is_there ? logit_of(router, logits[op.experts[at]]) : 0.0f;
    const float dweight = is_there ? op.dweights[at] : 0.0f, weight = is_there ? op.weights[at] : 0.0f;
    const float score = !is_there ? 0.0f : sigmoid ? 1.0f / (1.0f + expf(-z)) : expf(z - op.lse[row]);
    const float product = ox_warp_sum(dweight * (sigmoid || all ? score : weight));
    const float sum = ox_warp_sum(score) + router.eps;
    *common = all ? router.scale * product : 0.0f;
    if (sigmoid) {
        const float dscore = router.scale * (router.renormalise ? (dweight - product / sum) / sum : dweight);
        return dscore * score * (1.0f - score);
    }
    return all ? router.scale * score * dweight : weight * (dweight - product / router.scale);
}

static __global__ void route_back_rows(const ox_op_route_backward op, const ox_route_load_layout at) {
    const ox_router &router = op.router;
    const uint32_t row = blockIdx.x * ROUTE_WARPS + threadIdx.x / OX_WARP, lane = threadIdx.x % OX_WARP;
    if (row >= op.rows) {
        return;
    }
    const float *const logits = op.logits + (uint64_t)row * router.experts;
    float *const dlogits = op.dlogits + (uint64_t)row * router.experts, common;
    const losses add = losses_of(op, at, logits, row);
    const float own = slot_gradient(op, logits, row, &common);
    for (uint32_t e = lane; e < router.experts; e += OX_WARP) {
        const float used = add.share != 0.0f ? (float)op.load[at.counts + e] : 0.0f;
        const float prob = expf(logit_of(router, logits[e]) - op.lse[row]);
        const float factor = add.share * used - add.rest - common;
        dlogits[e] = factor == 0.0f ? 0.0f : prob * factor;
    }
    __syncwarp();
    if (lane < router.chosen) {
        dlogits[op.experts[(uint64_t)row * router.chosen + lane]] += own;
    }
}

extern "C" ox_status ox_cuda_route_backward(const ox_cuda_queue *queue, const void *args) {
    const ox_op_route_backward *const op = (const ox_op_route_backward *)args;
    ox_launch(route_back_rows, queue, by_rows(op->rows, 0), *op,
              ox_route_load_layout_of(op->router.experts));
    return OX_OK;
}

/* ---- sorting --------------------------------------------------------------------------------------- */

/* The experts of a part's pairs, in shared memory; returns how many. */
static __device__ __forceinline__ uint32_t take_part(const ox_op_route_sort &op, int32_t *part) {
    const uint32_t begin = blockIdx.x * OX_ROUTE_SORT_ROWS;
    const uint32_t rows = op.rows - begin < OX_ROUTE_SORT_ROWS ? op.rows - begin : (uint32_t)OX_ROUTE_SORT_ROWS;
    for (uint32_t i = threadIdx.x; i < rows * op.chosen; i += blockDim.x) {
        part[i] = op.experts[(uint64_t)begin * op.chosen + i];
    }
    __syncthreads();
    return rows * op.chosen;
}

static __global__ void count_part(const ox_op_route_sort op) {
    int32_t *const part = (int32_t *)ox_dynamic_shared();
    const uint32_t pairs = take_part(op, part);
    for (uint32_t e = threadIdx.x; e < op.expert_count; e += blockDim.x) {
        int32_t count = 0;
        for (uint32_t i = 0; i < pairs; i++) {
            count += part[i] == (int32_t)e ? 1 : 0;
        }
        ((int32_t *)op.scratch)[(uint64_t)blockIdx.x * op.expert_count + e] = count;
    }
}

/* One block: offsets, and where each part's first pair of each expert goes, over the counts. */
static __global__ void scan_parts(const ox_op_route_sort op, uint32_t parts) {
    int32_t *const totals = (int32_t *)ox_dynamic_shared(), *const counts = (int32_t *)op.scratch;
    for (uint32_t e = threadIdx.x; e < op.expert_count; e += blockDim.x) {
        int32_t sum = 0;
        for (uint32_t part = 0; part < parts; part++) {
            sum += counts[(uint64_t)part * op.expert_count + e];
        }
        totals[e] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int32_t sum = 0;
        for (uint32_t e = 0; e < op.expert_count; e++) {
            const int32_t count = totals[e];
            totals[e] = sum;
            sum += count;
        }
        op.offsets[op.expert_count] = sum;
    }
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < op.expert_count; e += blockDim.x) {
        int32_t sum = totals[e];
        op.offsets[e] = sum;
        for (uint32_t part = 0; part < parts; part++) {
            int32_t *const at = &counts[(uint64_t)part * op.expert_count + e];
            const int32_t count = *at;
            *at = sum;
            sum += count;
        }
    }
}

static __global__ void place_part(const ox_op_route_sort op) {
    int32_t *const part = (int32_t *)ox_dynamic_shared();
    const uint32_t pairs = take_part(op, part), first = blockIdx.x * OX_ROUTE_SORT_ROWS * op.chosen;
    for (uint32_t e = threadIdx.x; e < op.expert_count; e += blockDim.x) {
        int32_t place = ((const int32_t *)op.scratch)[(uint64_t)blockIdx.x * op.expert_count + e];
        for (uint32_t i = 0; i < pairs; i++) {
            if (part[i] == (int32_t)e) {
                op.place[first + i] = place;
                op.pair_of[place++] = (int32_t)(first + i);
            }
        }
    }
}

extern "C" ox_status ox_cuda_route_sort(const ox_cuda_queue *queue, const void *args) {
    const ox_op_route_sort *const op = (const ox_op_route_sort *)args;
    const uint32_t parts = (op->rows + OX_ROUTE_SORT_ROWS - 1) / OX_ROUTE_SORT_ROWS;
    const size_t part_bytes = (size_t)OX_ROUTE_SORT_ROWS * op->chosen * sizeof(int32_t);
    ox_launch(count_part, queue, ox_launch_shape{parts, OX_BLOCK_THREADS, part_bytes}, *op);
    ox_launch(scan_parts, queue, ox_launch_shape{1, OX_BLOCK_THREADS, op->expert_count * sizeof(int32_t)}, *op, parts);
    ox_launch(place_part, queue, ox_launch_shape{parts, OX_BLOCK_THREADS, part_bytes}, *op);
    return OX_OK;
}
