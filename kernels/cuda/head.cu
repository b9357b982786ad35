/* Linear layer and cross-entropy, fused, walked as kernels/head_walk.h says. Products are cuBLASLt's; between them a
 * block has a row of a tile of logits. */
#include "kernels/cuda/kernel.cuh"

#include "kernels/head_walk.h"

struct tile_args {
    float *logits; /* of the tile's rows and words */
    uint64_t stride;
    uint32_t row, vocab, vocab_count; /* the first of each, and how many words */
    const int32_t *targets;
    double *sum;
    float *max, *target_logit;
    float *kept; /* (rows, vocab_stride) copy of the logits, or NULL */
    uint32_t kept_stride;
    float loss_scale;
};

static __device__ __forceinline__ bool in_tile(const tile_args &args, int32_t target) {
    return target >= 0 && (uint32_t)target >= args.vocab && (uint32_t)target - args.vocab < args.vocab_count;
}

static __device__ float block_max(float value, float *slots) {
    value = ox_warp_max(value);
    if (threadIdx.x % OX_WARP == 0) {
        slots[threadIdx.x / OX_WARP] = value;
    }
    __syncthreads();
    float max = slots[0];
    for (unsigned i = 1; i < blockDim.x / OX_WARP; i++) {
        max = fmaxf(max, slots[i]);
    }
    __syncthreads();
    return max;
}

/* First walk: running maximum and sum of each row. A NaN logit makes the sum NaN. */
static __global__ void statistics_kernel(tile_args args) {
    __shared__ float slots[OX_WARP];
    const uint32_t row = args.row + blockIdx.x;
    const float *const logits = args.logits + blockIdx.x * args.stride;
    float top = -INFINITY, sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < args.vocab_count; i += blockDim.x) {
        top = fmaxf(top, logits[i]);
    }
    top = block_max(top, slots);
    const float max = args.vocab == 0 || top > args.max[row] ? top : args.max[row];
    for (uint32_t i = threadIdx.x; i < args.vocab_count; i += blockDim.x) {
        sum += expf(logits[i] - max);
        if (args.kept != nullptr) {
            args.kept[(uint64_t)row * args.kept_stride + args.vocab + i] = logits[i];
        }
    }
    sum = ox_block_sum(sum, slots);
    if (threadIdx.x == 0) {
        const double before = args.vocab == 0 ? 0.0 : args.sum[row] * exp((double)args.max[row] - (double)max);
        args.sum[row] = before + (double)sum;
        args.max[row] = max;
        if (in_tile(args, args.targets[row])) {
            args.target_logit[row] = logits[(uint32_t)args.targets[row] - args.vocab];
        }
    }
}

/* Second walk: the logits become their own gradient. */
static __global__ void gradient_kernel(tile_args args) {
    const uint32_t row = args.row + blockIdx.x;
    const int32_t target = args.targets[row];
    float *const logits = args.logits + blockIdx.x * args.stride;
    const float factor = target < 0 ? 0.0f : (float)((double)args.loss_scale / args.sum[row]), max = args.max[row];
    for (uint32_t i = threadIdx.x; i < args.vocab_count; i += blockDim.x) {
        const float share = target < 0 ? 0.0f : factor * expf(logits[i] - max);
        logits[i] = target >= 0 && args.vocab + i == (uint32_t)target ? share - args.loss_scale : share;
    }
}

struct loss_args {
    double *loss_sum;
    float *row_nll;
    const int32_t *targets;
    ox_head_scratch scratch;
    uint32_t rows;
};

/* Each row's loss, in place of its sum. */
static __global__ void row_loss_kernel(loss_args args) {
    const uint32_t row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= args.rows) {
        return;
    }
    double loss = 0.0;
    if (args.targets[row] >= 0) {
        loss = (double)args.scratch.max[row] - (double)args.scratch.target_logit[row] + log(args.scratch.sum[row]);
    }
    args.scratch.sum[row] = loss;
    if (args.row_nll != nullptr) {
        args.row_nll[row] = (float)loss;
    }
}

/* The rows' losses in ascending order: one thread adds, a block brings them near. */
static __global__ void add_losses_kernel(loss_args args) {
    __shared__ double near[OX_BLOCK_THREADS];
    double total = 0.0;
    for (uint32_t begin = 0; begin < args.rows; begin += OX_BLOCK_THREADS) {
        __syncthreads();
        near[threadIdx.x] = begin + threadIdx.x < args.rows ? args.scratch.sum[begin + threadIdx.x] : 0.0;
        __syncthreads();
        for (uint32_t i = 0; threadIdx.x == 0 && i < OX_BLOCK_THREADS && begin + i < args.rows; i++) {
            total += near[i];
        }
    }
    if (threadIdx.x == 0) {
        args.loss_sum[0] += total;
    }
}

/* ---- the walk --------------------------------------------------------------------------------------- */

struct head_job {
    const ox_cuda_queue *queue;
    const ox_op_head *op;
    ox_head_walk walk;
    ox_head_scratch scratch;
    uint32_t row, row_count, vocab, vocab_count;
    float *tile;
    uint32_t joined; /* first word of the tile whose weights are joined; none: UINT32_MAX */
};

static ox_status join_tile(head_job *job) {
    const ox_op_head *const op = job->op;
    if (job->joined == job->vocab) {
        return OX_OK;
    }
    job->joined = job->vocab;
    const uint64_t begin = (uint64_t)job->vocab * op->hidden;
    const ox_op_planes_join join = {job->scratch.weight, op->weight_hi + begin,
                                    op->weight_lo == nullptr ? nullptr : op->weight_lo + begin,
                                    (uint64_t)job->vocab_count * op->hidden};
    return ox_cuda_planes_join(job->queue, &join);
}

static ox_status compute_logits(const head_job *job) {
    const uint32_t hidden = job->op->hidden;
    ox_cuda_product product = {};
    product.c = job->tile;
    product.a = (const float *)job->op->in + (uint64_t)job->row * hidden;
    product.b = job->scratch.weight;
    product.m = job->row_count;
    product.n = job->vocab_count;
    product.k = product.a_stride = product.b_stride = hidden;
    product.c_stride = (uint32_t)job->walk.logit_stride;
    product.b_transposed = true;
    return ox_cuda_gemm(job->queue, &product);
}

static ox_status add_gradients(const head_job *job) {
    const ox_op_head *const op = job->op;
    const uint64_t first = (uint64_t)job->row * op->hidden;
    ox_cuda_product din = {};
    din.c = (float *)op->din + first;
    din.addend = job->vocab == 0 ? nullptr : din.c;
    din.a = job->tile;
    din.b = job->scratch.weight;
    din.m = job->row_count;
    din.n = din.b_stride = din.c_stride = op->hidden;
    din.k = job->vocab_count;
    din.a_stride = (uint32_t)job->walk.logit_stride;
    ox_cuda_product dweight = {};
    dweight.c = op->dweight + (uint64_t)job->vocab * op->hidden;
    dweight.addend = dweight.c;
    dweight.a = job->tile;
    dweight.b = (const float *)op->in + first;
    dweight.m = job->vocab_count;
    dweight.n = dweight.b_stride = dweight.c_stride = op->hidden;
    dweight.k = job->row_count;
    dweight.a_stride = (uint32_t)job->walk.logit_stride;
    dweight.a_transposed = true;
    const ox_status status = ox_cuda_gemm(job->queue, &din);
    return status == OX_OK ? ox_cuda_gemm(job->queue, &dweight) : status;
}

static ox_status walk_tile(head_job *job, bool backward) {
    const ox_op_head *const op = job->op;
    job->tile = job->walk.held ? job->scratch.logits + job->vocab : job->scratch.logits;
    ox_status status = backward && job->walk.held ? OX_OK : compute_logits(job);
    if (status != OX_OK) {
        return status;
    }
    const tile_args args = {job->tile, job->walk.logit_stride, job->row, job->vocab, job->vocab_count, op->targets,
                            job->scratch.sum, job->scratch.max, job->scratch.target_logit, op->logits, op->vocab,
                            op->loss_scale};
    const ox_launch_shape shape = {job->row_count, OX_BLOCK_THREADS, 0};
    ox_launch(backward ? gradient_kernel : statistics_kernel, job->queue, shape, args);
    return backward ? add_gradients(job) : OX_OK;
}

/* One walk over the vocabulary of the rows [first, end). */
static ox_status walk_group(head_job *job, uint32_t first, uint32_t end, bool backward) {
    const uint32_t vocab = job->op->vocab, tile_vocab = job->walk.tile_vocab, tile_rows = job->walk.tile_rows;
    ox_status status = OX_OK;
    for (job->vocab = 0; status == OX_OK && job->vocab < vocab; job->vocab += tile_vocab) {
        job->vocab_count = tile_vocab < vocab - job->vocab ? tile_vocab : vocab - job->vocab;
        status = join_tile(job);
        for (job->row = first; status == OX_OK && job->row < end; job->row += tile_rows) {
            job->row_count = tile_rows < end - job->row ? tile_rows : end - job->row;
            status = walk_tile(job, backward);
        }
    }
    return status;
}

extern "C" ox_status ox_cuda_head(const ox_cuda_queue *queue, const void *given) {
    const ox_op_head *const op = (const ox_op_head *)given;
    head_job job = {};
    job.queue = queue;
    job.op = op;
    job.walk = ox_head_walk_of(op->rows, op->vocab);
    job.scratch = ox_head_scratch_at(op->scratch, op->rows, op->hidden, op->vocab);
    job.joined = UINT32_MAX;
    ox_status status = OX_OK;
    for (uint32_t first = 0; status == OX_OK && first < op->rows; first += job.walk.group_rows) {
        const uint32_t left = op->rows - first, end = first + (left < job.walk.group_rows ? left : job.walk.group_rows);
        status = walk_group(&job, first, end, false);
        if (status == OX_OK && op->din != nullptr) {
            status = walk_group(&job, first, end, true);
        }
    }
    const loss_args args = {op->loss_sum, op->row_nll, op->targets, job.scratch, op->rows};
    if (status == OX_OK) {
        ox_launch(row_loss_kernel, queue,
                  ox_launch_shape{(op->rows + OX_BLOCK_THREADS - 1) / OX_BLOCK_THREADS, OX_BLOCK_THREADS, 0}, args);
        ox_launch(add_losses_kernel, queue, ox_launch_shape{1, OX_BLOCK_THREADS, 0}, args);
    }
    return status;
}
