/* Linear layer and cross-entropy, fused. Rows are taken in groups whose logits exist whole (kernels/head_walk.h): one
 * GEMM for the logits; one block per row, which computes the loss and turns the logits into their own gradient; two
 * GEMMs for the gradients. In 16 bits the gradient has that type too, and lies where its logits were. The GEMMs take 2
 * rows hidden vocab operations each. Besides them at least 12 rows vocab bytes of logits and their gradient are moved,
 * 14 in float32, and 8 vocab hidden bytes of sums per group of rows. */
#include "kernels/cuda/kernel.cuh"

#include "kernels/head_rows.h"
#include "kernels/head_walk.h"

enum { STEP = 4, ROW_THREADS_MAX = 512 };

struct row_args {
    float *logits; /* logits of the group's rows */
    uint64_t stride;
    uint32_t row, vocab; /* row: the first of the group */
    const int32_t *targets;
    double *loss;   /* (rows) */
    float *row_nll; /* (rows) or NULL */
    float *kept;    /* (rows, vocab) copy of the logits, or NULL */
    float loss_scale;
    bool backward;
    float scale, cap; /* of logits; 0: none */
    float smoothing, z_loss;
    const float *row_weights; /* (rows) or NULL */
    double *nll, *z;          /* (rows) or NULL: parts of the loss */
    ox_head_part part;
    uint32_t first, vocab_whole; /* of which the table may have a part, from token `first` on */
    ox_head_rows of;             /* of a part */
};

/* The largest logit so far, and the sum of exponentials relative to it. A NaN makes the sum NaN. And the sum of the
 * logits themselves. */
struct softmax {
    float max;
    double sum, total;
};

/* The logits from `begin` on; beyond the last, values that do not count. */
static __device__ __forceinline__ void load_logits(float out[STEP], const float *logits, uint32_t begin,
                                                   uint32_t vocab) {
    ox_load<float, STEP>(out, logits + begin);
#pragma unroll
    for (int k = 0; k < STEP; k++) {
        out[k] = begin + k < vocab ? out[k] : -INFINITY;
    }
}

/* What a product becomes; and the slope of that there. */
static __device__ __forceinline__ float logit_of(const row_args &args, float x) {
    const float scaled = args.scale == 0.0f ? x : args.scale * x;
    return args.cap == 0.0f ? scaled : args.cap * tanhf(scaled / args.cap);
}
static __device__ __forceinline__ float slope_at(const row_args &args, float logit) {
    const float scale = args.scale == 0.0f ? 1.0f : args.scale, share = args.cap == 0.0f ? 0.0f : logit / args.cap;
    return scale * (1.0f - share * share);
}

static __device__ __forceinline__ void take(softmax *all, const float x[STEP]) {
    const float top = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
    if (top > all->max) {
        all->sum *= (double)expf(all->max - top);
        all->max = top;
    }
    const float base = all->max == -INFINITY ? 0.0f : all->max;
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < STEP; k++) {
        sum += expf(x[k] - base);
    }
    all->sum += (double)sum;
}

/* Combined over the block, in the order of its lanes and warps; the same in every thread. */
static __device__ softmax merge(softmax mine) {
    __shared__ float tops[OX_WARP];
    __shared__ double sums[OX_WARP], totals[OX_WARP];
    const unsigned warp = threadIdx.x / OX_WARP, warps = blockDim.x / OX_WARP;
    const float top = ox_warp_max(mine.max);
    if (threadIdx.x % OX_WARP == 0) {
        tops[warp] = top;
    }
    __syncthreads();
    softmax all = {tops[0], 0.0, 0.0};
    for (unsigned i = 1; i < warps; i++) {
        all.max = fmaxf(all.max, tops[i]);
    }
    double sum = mine.max == -INFINITY ? mine.sum : mine.sum * (double)expf(mine.max - all.max);
#pragma unroll
    for (int distance = OX_WARP / 2; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, distance);
        mine.total += __shfl_xor_sync(0xffffffffu, mine.total, distance);
    }
    if (threadIdx.x % OX_WARP == 0) {
        sums[warp] = sum;
        totals[warp] = mine.total;
    }
    __syncthreads();
    for (unsigned i = 0; i < warps; i++) {
        all.sum += sums[i];
        all.total += totals[i];
    }
    return all;
}

/* Turns the logits into their own gradient, of a type that is not wider. A block reads its whole stretch before it
 * writes, and what it writes lies before what is not yet read. */
template <typename T>
static __device__ void differentiate(const row_args &args, float *logits, const softmax &all, int32_t target,
                                     uint32_t row) {
    const bool counted = target >= 0;
    const uint32_t hit_at = counted ? (uint32_t)target - args.first : 0;
    const float weight = args.row_weights != nullptr ? args.loss_scale * args.row_weights[row] : args.loss_scale;
    const double e = (double)args.smoothing, lse = (double)all.max + log(all.sum);
    const double of_sum =
        args.z_loss == 0.0f ? (double)weight : (double)weight * (1.0 + 2.0 * (double)args.z_loss * lse);
    const float factor = (float)(of_sum / all.sum), uniform = (float)((double)weight * e / args.vocab_whole);
    const float hit = args.smoothing == 0.0f ? weight : (float)((double)weight * (1.0 - e));
    for (uint32_t begin = 0; begin < args.vocab; begin += blockDim.x * STEP) {
        const uint32_t at = begin + threadIdx.x * STEP;
        float x[STEP] = {};
        if (at < args.vocab) {
            load_logits(x, logits, at, args.vocab);
        }
#pragma unroll
        for (int k = 0; k < STEP; k++) {
            const float logit = at + k < args.vocab ? logit_of(args, x[k]) : -INFINITY;
            const float slope = at + k < args.vocab ? slope_at(args, logit) : 0.0f;
            x[k] = !counted ? 0.0f : factor * expf(logit - all.max) - uniform;
            x[k] -= counted && at + k == hit_at ? hit : 0.0f;
            x[k] *= slope;
        }
        if (sizeof(T) < sizeof(float)) {
            __syncthreads();
        }
        if (at < args.vocab) {
            ox_store<T, STEP>((T *)logits + at, x);
        }
    }
}

/* The statistics of a row, the same in every thread. */
static __device__ softmax softmax_of(const row_args &args, const float *logits, uint32_t row) {
    softmax all = {-INFINITY, 0.0, 0.0};
    for (uint32_t i = threadIdx.x * STEP; i < args.vocab; i += blockDim.x * STEP) {
        float x[STEP];
        load_logits(x, logits, i, args.vocab);
#pragma unroll
        for (int k = 0; k < STEP; k++) {
            x[k] = i + k < args.vocab ? logit_of(args, x[k]) : x[k];
            all.total += args.smoothing != 0.0f && i + k < args.vocab ? (double)x[k] : 0.0;
        }
        take(&all, x);
        for (uint32_t k = 0; k < STEP && args.kept != nullptr && i + k < args.vocab; k++) {
            args.kept[(uint64_t)row * args.vocab_whole + args.first + i + k] = x[k];
        }
    }
    return merge(all);
}

/* What one thread leaves of a row: its losses, or the statistics of a part. */
static __device__ void leave(const row_args &args, const softmax &all, float at_target, uint32_t row) {
    const int32_t target = args.targets[row];
    if (args.part == OX_HEAD_STATISTICS) {
        args.of.sum[row] = all.sum;
        args.of.max[row] = all.max;
        args.of.target[row] = at_target;
        if (args.smoothing != 0.0f) {
            args.of.total[row] = all.total;
        }
    } else {
        const double nll = target < 0 ? 0.0 : (double)all.max - (double)at_target + log(all.sum);
        const double lse = (double)all.max + log(all.sum), e = (double)args.smoothing;
        const double z_loss = target < 0 || args.z_loss == 0.0f ? 0.0 : (double)args.z_loss * lse * lse;
        const double smooth =
            target < 0 || e == 0.0 ? nll : (1.0 - e) * nll + e * (lse - all.total / args.vocab);
        args.loss[row] = smooth + z_loss;
        if (args.row_nll != nullptr) {
            args.row_nll[row] = (float)nll;
        }
        if (args.nll != nullptr) {
            args.nll[row] = nll;
            args.z[row] = z_loss;
        }
    }
}

template <typename T> static __global__ void row_kernel(row_args args) {
    const uint32_t row = args.row + blockIdx.x;
    const int32_t target = args.targets[row];
    const uint32_t column = (uint32_t)target - args.first;
    float *const logits = args.logits + blockIdx.x * args.stride;
    const float at_target = target < 0 || column >= args.vocab ? 0.0f : logit_of(args, logits[column]);
    softmax all = {};
    if (args.part == OX_HEAD_GRADIENTS) {
        all.max = args.of.max[row];
        all.sum = args.of.sum[row];
    } else {
        all = softmax_of(args, logits, row);
        if (threadIdx.x == 0) {
            leave(args, all, at_target, row);
        }
    }
    if (args.backward) {
        differentiate<T>(args, logits, all, target, row);
    }
}

/* Adds the rows' losses in ascending order: one thread adds, the block loads for it. */
static __global__ void add_losses_kernel(double *loss_sum, const double *losses, uint32_t rows) {
    __shared__ double near[OX_BLOCK_THREADS];
    double total = 0.0;
    for (uint32_t begin = 0; begin < rows; begin += OX_BLOCK_THREADS) {
        __syncthreads();
        near[threadIdx.x] = begin + threadIdx.x < rows ? losses[begin + threadIdx.x] : 0.0;
        __syncthreads();
        for (uint32_t i = 0; threadIdx.x == 0 && i < OX_BLOCK_THREADS && begin + i < rows; i++) {
            total += near[i];
        }
    }
    if (threadIdx.x == 0) {
        loss_sum[0] += total;
    }
}

/* ---- the walk --------------------------------------------------------------------------------------- */

struct head_job {
    const ox_cuda_queue *queue;
    const ox_op_head *op;
    ox_head_walk walk;
    ox_head_scratch scratch;
    uint32_t row, row_count, vocab, vocab_count; /* rows of the group, tokens of the tile */
    const void *weight;                          /* weights of the tile */
    uint32_t joined; /* first token of the tile whose weights are joined; UINT32_MAX: none */
};

static const void *from(const ox_op_head *op, const void *tensor, uint64_t at) {
    return (const uint8_t *)tensor + at * ox_real_bytes(op->real);
}

/* Weights are joined from their planes; in bfloat16 the hi plane is the weights. */
static ox_status find_weights(head_job *job) {
    const ox_op_head *const op = job->op;
    const uint64_t begin = (uint64_t)job->vocab * op->hidden;
    if (op->real == OX_REAL_BF16) {
        job->weight = op->weight_hi + begin;
        return OX_OK;
    }
    job->weight = job->scratch.weight;
    if (job->joined == job->vocab) {
        return OX_OK;
    }
    job->joined = job->vocab;
    const ox_op_planes_join join = {job->scratch.weight, op->weight_hi + begin,
                                    op->weight_lo == nullptr ? nullptr : op->weight_lo + begin,
                                    (uint64_t)job->vocab_count * op->hidden, op->real, OX_FORMAT_MASTER, false};
    return ox_cuda_planes_join(job->queue, &join);
}

static ox_status compute_logits(const head_job *job) {
    const ox_op_head *const op = job->op;
    ox_cuda_gemm_args gemm = {};
    gemm.c = job->scratch.logits + job->vocab;
    gemm.a = from(op, op->in, (uint64_t)job->row * op->hidden);
    gemm.b = job->weight;
    gemm.m = job->row_count;
    gemm.n = job->vocab_count;
    gemm.k = gemm.a_stride = gemm.b_stride = op->hidden;
    gemm.c_stride = (uint32_t)job->walk.logit_stride;
    gemm.b_transposed = true;
    gemm.in = op->real;
    gemm.out = OX_REAL_F32;
    const ox_status status = ox_cuda_gemm(job->queue, &gemm);
    if (status != OX_OK || op->low.r == 0) {
        return status;
    }
    gemm.addend = gemm.c;
    gemm.a = from(op, op->low.in, (uint64_t)job->row * op->low.r);
    gemm.b = from(op, op->low.weight, (uint64_t)job->vocab * op->low.r);
    gemm.k = gemm.a_stride = gemm.b_stride = op->low.r;
    gemm.scale = op->low.scale;
    return ox_cuda_gemm(job->queue, &gemm);
}

/* Adds the gradients of the product of low rank, from those of the tile's logits. */
static ox_status add_low_gradients(const head_job *job) {
    const ox_op_head *const op = job->op;
    ox_cuda_gemm_args din = {};
    din.c = op->low.din == nullptr ? nullptr
                                   : (uint8_t *)op->low.din + (uint64_t)job->row * op->low.r * ox_real_bytes(op->real);
    din.addend = job->vocab == 0 ? nullptr : din.c;
    din.a = from(op, job->scratch.logits, job->vocab);
    din.b = from(op, op->low.weight, (uint64_t)job->vocab * op->low.r);
    din.m = job->row_count;
    din.n = din.b_stride = din.c_stride = op->low.r;
    din.k = job->vocab_count;
    din.a_stride = (uint32_t)job->walk.logit_stride * (4 / ox_real_bytes(op->real));
    din.scale = op->low.scale;
    din.in = din.out = op->real;
    ox_cuda_gemm_args dweight = din;
    dweight.c = op->low.dweight == nullptr ? nullptr : op->low.dweight + (uint64_t)job->vocab * op->low.r;
    dweight.addend = op->begins && job->row == 0 ? nullptr : dweight.c;
    dweight.b = from(op, op->low.in, (uint64_t)job->row * op->low.r);
    dweight.m = job->vocab_count;
    dweight.k = job->row_count;
    dweight.a_transposed = true;
    dweight.out = OX_REAL_F32;
    const ox_status status = op->low.din == nullptr ? OX_OK : ox_cuda_gemm(job->queue, &din);
    return status == OX_OK && op->low.dweight != nullptr ? ox_cuda_gemm(job->queue, &dweight) : status;
}

static ox_status add_gradients(const head_job *job) {
    const ox_op_head *const op = job->op;
    const uint64_t first = (uint64_t)job->row * op->hidden;
    ox_cuda_gemm_args din = {};
    const ox_real din_real = op->part == OX_HEAD_WHOLE ? op->real : OX_REAL_F32;
    din.c = op->din == nullptr ? nullptr : (uint8_t *)op->din + first * ox_real_bytes(din_real);
    din.addend = job->vocab == 0 ? nullptr : din.c;
    din.a = from(op, job->scratch.logits, job->vocab);
    din.b = job->weight;
    din.m = job->row_count;
    din.n = din.b_stride = din.c_stride = op->hidden;
    din.k = job->vocab_count;
    din.a_stride = (uint32_t)job->walk.logit_stride * (4 / ox_real_bytes(op->real));
    din.in = op->real;
    din.out = din_real;
    ox_cuda_gemm_args dweight = {};
    dweight.c = op->dweight == nullptr ? nullptr : op->dweight + (uint64_t)job->vocab * op->hidden;
    dweight.addend = op->begins && job->row == 0 ? nullptr : dweight.c;
    dweight.a = din.a;
    dweight.b = from(op, op->in, first);
    dweight.m = job->vocab_count;
    dweight.n = dweight.b_stride = dweight.c_stride = op->hidden;
    dweight.k = job->row_count;
    dweight.a_stride = din.a_stride;
    dweight.a_transposed = true;
    dweight.in = op->real;
    dweight.out = OX_REAL_F32;
    ox_status status = op->din == nullptr ? OX_OK : ox_cuda_gemm(job->queue, &din);
    if (status == OX_OK && op->dweight != nullptr) {
        status = ox_cuda_gemm(job->queue, &dweight);
    }
    return status == OX_OK && op->low.r > 0 ? add_low_gradients(job) : status;
}

/* Computes the logits of the group, or what follows from their gradients, tile after tile of the vocabulary. */
static ox_status walk_tiles(head_job *job, bool backward) {
    const uint32_t vocab = job->op->vocab, tile_vocab = job->walk.tile_vocab;
    ox_status status = OX_OK;
    job->vocab = 0;
    for (uint32_t left = vocab; status == OX_OK && left > 0; left -= job->vocab_count) {
        job->vocab = vocab - left;
        job->vocab_count = tile_vocab < left ? tile_vocab : left;
        status = find_weights(job);
        OX_THEN(status, backward ? add_gradients(job) : compute_logits(job));
    }
    return status;
}

static bool wants_gradients(const ox_op_head *op) {
    return op->din != nullptr || op->dweight != nullptr || op->low.din != nullptr || op->low.dweight != nullptr;
}

static void run_rows(const head_job *job) {
    const ox_op_head *const op = job->op;
    const row_args args = {job->scratch.logits, job->walk.logit_stride, job->row, op->vocab, op->targets,
                           job->scratch.sum, op->row_nll, op->logits, op->loss_scale, wants_gradients(op),
                           op->logit_scale, op->logit_cap, op->smoothing, op->z_loss, op->row_weights,
                           op->parts != nullptr ? op->row_parts : nullptr,
                           op->parts != nullptr ? op->row_parts + op->rows : nullptr,
                           op->part, op->first, op->part == OX_HEAD_WHOLE ? op->vocab : op->vocab_whole,
                           op->rows_of};
    const uint32_t wanted = (op->vocab + STEP * OX_WARP - 1) / (STEP * OX_WARP) * OX_WARP;
    const unsigned threads = wanted < (uint32_t)ROW_THREADS_MAX ? wanted : (unsigned)ROW_THREADS_MAX;
    const ox_launch_shape shape = {job->row_count, threads, 0};
    ox_launch(op->real == OX_REAL_F32 ? row_kernel<float> : op->real == OX_REAL_BF16 ? row_kernel<ox_bf16>
                                                                                      : row_kernel<ox_f16>,
              job->queue, shape, args);
}

extern "C" ox_status ox_cuda_head(const ox_cuda_queue *queue, const void *given) {
    const ox_op_head *const op = (const ox_op_head *)given;
    const ox_compute compute = {OX_DEVICE_CUDA, op->real, 0};
    head_job job = {};
    job.queue = queue;
    job.op = op;
    job.walk = ox_head_walk_of(&compute, op->rows, op->vocab);
    job.scratch = ox_head_scratch_at(&compute, op->scratch, op->rows, op->hidden, op->vocab);
    job.joined = UINT32_MAX;
    ox_status status = OX_OK;
    for (uint32_t left = op->rows; status == OX_OK && left > 0; left -= job.row_count) {
        job.row = op->rows - left;
        job.row_count = job.walk.group_rows < left ? job.walk.group_rows : left;
        status = walk_tiles(&job, false);
        if (status == OX_OK) {
            run_rows(&job);
        }
        if (status == OX_OK && wants_gradients(op)) {
            status = walk_tiles(&job, true);
        }
    }
    if (status == OX_OK && op->part == OX_HEAD_WHOLE) {
        ox_launch(add_losses_kernel, queue, ox_launch_shape{1, OX_BLOCK_THREADS, 0}, op->loss_sum,
                  (const double *)job.scratch.sum, op->rows);
        for (int i = 0; i < 2 && op->parts != nullptr; i++) {
            ox_launch(add_losses_kernel, queue, ox_launch_shape{1, OX_BLOCK_THREADS, 0}, op->parts + i,
                      (const double *)op->row_parts + (size_t)i * op->rows, op->rows);
        }
    }
    return status;
}

static __global__ void merge_kernel(ox_op_head_merge op) {
    const uint32_t row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < op.rows) {
        ox_head_merge_row(&op, row);
        ox_head_row_losses(&op, row, op.row_losses);
    }
}

extern "C" ox_status ox_cuda_head_merge(const ox_cuda_queue *queue, const void *given) {
    const ox_op_head_merge *const op = (const ox_op_head_merge *)given;
    double *const sums[] = {op->loss_sum, op->parts, op->parts == nullptr ? nullptr : op->parts + 1};
    ox_launch(merge_kernel, queue,
              ox_launch_shape{(op->rows + OX_BLOCK_THREADS - 1) / OX_BLOCK_THREADS, OX_BLOCK_THREADS, 0}, *op);
    for (int k = 0; k < 3 && sums[k] != nullptr; k++) {
        ox_launch(add_losses_kernel, queue, ox_launch_shape{1, OX_BLOCK_THREADS, 0}, sums[k],
                  (const double *)op->row_losses + (size_t)k * op->rows, op->rows);
    }
    return OX_OK;
}
