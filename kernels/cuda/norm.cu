/* Normalisations. A row is a block's; it is read a second time for its output, from the caches. The gradients of gain
 * and bias are sums over rows: first over fixed groups of rows, then over the groups in order, so that the result
 * depends on the shape alone. */
#include "kernels/cuda/kernel.cuh"

/* Rows `stride` elements apart. */
template <typename T> struct rows_of {
    T *at;
    uint32_t stride;
};

struct norm_stats {
    float mean, rstd;
};

template <typename T, int N>
static __device__ norm_stats stats_of(const T *in, uint32_t cols, bool layer, float eps, float *slots) {
    float mean = 0.0f, sum = 0.0f;
    if (layer) {
        for (uint32_t i = threadIdx.x * N; i < cols; i += blockDim.x * N) {
            float x[N];
            ox_load<T, N>(x, in + i);
            for (int k = 0; k < N; k++) {
                sum += x[k];
            }
        }
        mean = ox_block_sum(sum, slots) / (float)cols;
        sum = 0.0f;
    }
    for (uint32_t i = threadIdx.x * N; i < cols; i += blockDim.x * N) {
        float x[N];
        ox_load<T, N>(x, in + i);
        for (int k = 0; k < N; k++) {
            sum += (x[k] - mean) * (x[k] - mean);
        }
    }
    return norm_stats{mean, 1.0f / sqrtf(ox_block_sum(sum, slots) / (float)cols + eps)};
}

template <typename T> struct norm_forward_args {
    rows_of<T> out;
    rows_of<const T> in;
    const T *gain, *bias;
    float *mean, *rstd;
    uint32_t cols;
    float eps;
};

template <typename T, int N> static __global__ void norm_forward_kernel(norm_forward_args<T> args) {
    __shared__ float slots[OX_WARP];
    const uint64_t row = blockIdx.x;
    const T *const in = args.in.at + row * args.in.stride;
    T *const out = args.out.at + row * args.out.stride;
    const norm_stats stats = stats_of<T, N>(in, args.cols, args.mean != nullptr, args.eps, slots);
    for (uint32_t i = threadIdx.x * N; i < args.cols; i += blockDim.x * N) {
        float x[N], gain[N], bias[N] = {};
        ox_load<T, N>(x, in + i);
        ox_load<T, N>(gain, args.gain + i);
        if (args.bias != nullptr) {
            ox_load<T, N>(bias, args.bias + i);
        }
        for (int k = 0; k < N; k++) {
            x[k] = (x[k] - stats.mean) * stats.rstd * gain[k] + bias[k];
        }
        ox_store<T, N>(out + i, x);
    }
    if (threadIdx.x == 0) {
        args.rstd[row] = stats.rstd;
        if (args.mean != nullptr) {
            args.mean[row] = stats.mean;
        }
    }
}

template <typename T> struct norm_backward_args {
    T *din;
    const T *residual, *dout, *in, *gain;
    const float *mean, *rstd;
    float *dgain, *dbias, *scratch;
    uint32_t rows, cols;
};

/* Jacobian of the norm: din = rstd (g - mean(g) - n mean(g n)), g = dout gain, n the normed row; the first mean only
 * where the norm takes one away. */
template <typename T, int N> static __global__ void norm_backward_kernel(norm_backward_args<T> args) {
    __shared__ float slots[OX_WARP];
    const uint64_t row = blockIdx.x, at = row * args.cols;
    const float rstd = args.rstd[row], mean = args.mean != nullptr ? args.mean[row] : 0.0f;
    float sum = 0.0f, sum_normed = 0.0f;
    for (uint32_t i = threadIdx.x * N; i < args.cols; i += blockDim.x * N) {
        float x[N], d[N], gain[N];
        ox_load<T, N>(x, args.in + at + i);
        ox_load<T, N>(d, args.dout + at + i);
        ox_load<T, N>(gain, args.gain + i);
        for (int k = 0; k < N; k++) {
            sum += d[k] * gain[k];
            sum_normed += d[k] * gain[k] * ((x[k] - mean) * rstd);
        }
    }
    const float per_col = 1.0f / (float)args.cols;
    sum_normed = ox_block_sum(sum_normed, slots) * per_col;
    sum = args.mean != nullptr ? ox_block_sum(sum, slots) * per_col : 0.0f;
    for (uint32_t i = threadIdx.x * N; i < args.cols; i += blockDim.x * N) {
        float x[N], d[N], gain[N], residual[N] = {};
        ox_load<T, N>(x, args.in + at + i);
        ox_load<T, N>(d, args.dout + at + i);
        ox_load<T, N>(gain, args.gain + i);
        if (args.residual != nullptr) {
            ox_load<T, N>(residual, args.residual + at + i);
        }
        for (int k = 0; k < N; k++) {
            d[k] = residual[k] + rstd * (d[k] * gain[k] - sum - (x[k] - mean) * rstd * sum_normed);
        }
        ox_store<T, N>(args.din + at + i, d);
    }
}

/* Group blockIdx.y of the rows, column by column: its part of dgain, then of dbias. It runs before the kernel above,
 * which may write over dout. */
template <typename T> static __global__ void norm_columns_kernel(norm_backward_args<T> args) {
    const uint32_t col = blockIdx.x * blockDim.x + threadIdx.x;
    const uint32_t per_group = (args.rows + gridDim.y - 1) / gridDim.y;
    const uint32_t begin = blockIdx.y * per_group, past = begin + per_group < args.rows ? begin + per_group : args.rows;
    if (col >= args.cols) {
        return;
    }
    float dgain = 0.0f, dbias = 0.0f;
    for (uint32_t row = begin; row < past; row++) {
        const uint64_t at = (uint64_t)row * args.cols + col;
        const float mean = args.mean != nullptr ? args.mean[row] : 0.0f;
        const float d = ox_widen(args.dout[at]);
        dgain += d * ((ox_widen(args.in[at]) - mean) * args.rstd[row]);
        dbias += d;
    }
    float *const part = args.scratch + (uint64_t)blockIdx.y * 2 * args.cols;
    part[col] = dgain;
    part[args.cols + col] = dbias;
}

static __global__ void add_groups_kernel(float *dgain, float *dbias, const float *scratch, uint32_t cols,
                                         uint32_t groups) {
    const uint32_t col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= cols) {
        return;
    }
    float gain = 0.0f, bias = 0.0f;
    for (uint32_t i = 0; i < groups; i++) {
        gain += scratch[(uint64_t)i * 2 * cols + col];
        bias += scratch[(uint64_t)i * 2 * cols + cols + col];
    }
    dgain[col] += gain;
    if (dbias != nullptr) {
        dbias[col] += bias;
    }
}

/* Threads of a block for a row: enough for one load each, in whole warps. */
static unsigned threads_for(uint32_t cols, unsigned per_thread) {
    const unsigned wanted = (cols + per_thread - 1) / per_thread;
    const unsigned threads = (wanted + OX_WARP - 1) / OX_WARP * OX_WARP;
    return threads < 512 ? threads : 512;
}

static unsigned groups_for(uint32_t rows) {
    return rows < (uint32_t)OX_CUDA_ROW_GROUPS ? rows : (uint32_t)OX_CUDA_ROW_GROUPS;
}

template <typename T> static bool wide(const void *ptr, uint64_t cols, uint64_t stride) {
    return ox_is_wide(ptr, cols, stride, ox_wide<T>::COUNT, sizeof(T));
}

template <typename T> static void norm_forward(const ox_cuda_queue *queue, const ox_op_norm_forward *op) {
    enum { WIDE = ox_wide<T>::COUNT };
    norm_forward_args<T> args = {};
    args.out = rows_of<T>{(T *)op->out, op->out_stride == 0 ? op->cols : op->out_stride};
    args.in = rows_of<const T>{(const T *)op->in, op->in_stride == 0 ? op->cols : op->in_stride};
    args.gain = (const T *)op->gain;
    args.bias = (const T *)op->bias;
    args.mean = op->kind == OX_NORM_LAYER ? op->mean : nullptr;
    args.rstd = op->rstd;
    args.cols = op->cols;
    args.eps = op->eps;
    const bool is_wide = wide<T>(op->out, op->cols, args.out.stride) && wide<T>(op->in, op->cols, args.in.stride) &&
                         wide<T>(op->gain, op->cols, 0) && wide<T>(op->bias, op->cols, 0);
    if (is_wide) {
        ox_launch(norm_forward_kernel<T, WIDE>, queue, ox_launch_shape{op->rows, threads_for(op->cols, WIDE), 0}, args);
    } else {
        ox_launch(norm_forward_kernel<T, 1>, queue, ox_launch_shape{op->rows, threads_for(op->cols, 1), 0}, args);
    }
}

template <typename T> static void norm_backward(const ox_cuda_queue *queue, const ox_op_norm_backward *op) {
    enum { WIDE = ox_wide<T>::COUNT };
    const bool layer = op->kind == OX_NORM_LAYER;
    const norm_backward_args<T> args = {
        (T *)op->din, (const T *)op->residual, (const T *)op->dout, (const T *)op->in, (const T *)op->gain,
        layer ? op->mean : nullptr, op->rstd, op->dgain, op->dbias, (float *)op->scratch, op->rows, op->cols};
    const unsigned groups = groups_for(op->rows), stretches = (op->cols + OX_BLOCK_THREADS - 1) / OX_BLOCK_THREADS;
    ox_launch(norm_columns_kernel<T>, queue, ox_launch_shape{dim3(stretches, groups), OX_BLOCK_THREADS, 0}, args);
    ox_launch(add_groups_kernel, queue, ox_launch_shape{stretches, OX_BLOCK_THREADS, 0}, op->dgain, op->dbias,
              (const float *)op->scratch, op->cols, groups);
    const bool is_wide = wide<T>(op->din, op->cols, 0) && wide<T>(op->residual, op->cols, 0) &&
                         wide<T>(op->dout, op->cols, 0) && wide<T>(op->in, op->cols, 0) &&
                         wide<T>(op->gain, op->cols, 0);
    if (is_wide) {
        const ox_launch_shape shape = {op->rows, threads_for(op->cols, WIDE), 0};
        ox_launch(norm_backward_kernel<T, WIDE>, queue, shape, args);
    } else {
        ox_launch(norm_backward_kernel<T, 1>, queue, ox_launch_shape{op->rows, threads_for(op->cols, 1), 0}, args);
    }
}

extern "C" ox_status ox_cuda_norm_forward(const ox_cuda_queue *queue, const void *args) {
    norm_forward<float>(queue, (const ox_op_norm_forward *)args);
    return OX_OK;
}

extern "C" ox_status ox_cuda_norm_backward(const ox_cuda_queue *queue, const void *args) {
    norm_backward<float>(queue, (const ox_op_norm_backward *)args);
    return OX_OK;
}

/* ---- heads ------------------------------------------------------------------------------------------ */

/* A warp for a head: rows of `heads` heads, `row_stride` apart. */
template <typename T> struct head_args {
    T *inout, *saved;
    float *rstd;
    const T *gain;
    float *scratch;
    uint32_t rows, row_stride, heads, head_dim;
    float eps;
};

template <typename T> static __global__ void head_norm_forward_kernel(head_args<T> args) {
    const uint64_t head = (uint64_t)blockIdx.x * (blockDim.x / OX_WARP) + threadIdx.x / OX_WARP;
    const uint32_t lane = threadIdx.x % OX_WARP;
    const bool is_there = head < (uint64_t)args.rows * args.heads;
    T *const x = args.inout + head / args.heads * args.row_stride + head % args.heads * args.head_dim;
    float sum = 0.0f;
    for (uint32_t i = lane; is_there && i < args.head_dim; i += OX_WARP) {
        const float value = ox_widen(x[i]);
        sum += value * value;
    }
    const float rstd = 1.0f / sqrtf(ox_warp_sum(sum) / (float)args.head_dim + args.eps);
    for (uint32_t i = lane; is_there && i < args.head_dim; i += OX_WARP) {
        const T raw = x[i];
        if (args.saved != nullptr) {
            args.saved[head * args.head_dim + i] = raw;
        }
        ox_narrow(ox_widen(raw) * rstd * ox_widen(args.gain[i]), &x[i]);
    }
    if (is_there && lane == 0) {
        args.rstd[head] = rstd;
    }
}

/* In place, as backward of a row above; it runs after the sums of the columns, which need what it writes over. */
template <typename T> static __global__ void head_norm_backward_kernel(head_args<T> args) {
    const uint64_t head = (uint64_t)blockIdx.x * (blockDim.x / OX_WARP) + threadIdx.x / OX_WARP;
    const uint32_t lane = threadIdx.x % OX_WARP;
    const bool is_there = head < (uint64_t)args.rows * args.heads;
    T *const d = args.inout + head / args.heads * args.row_stride + head % args.heads * args.head_dim;
    const T *const x = args.saved + head * args.head_dim;
    const float rstd = is_there ? args.rstd[head] : 0.0f;
    float sum = 0.0f;
    for (uint32_t i = lane; is_there && i < args.head_dim; i += OX_WARP) {
        sum += ox_widen(d[i]) * ox_widen(args.gain[i]) * (ox_widen(x[i]) * rstd);
    }
    sum = ox_warp_sum(sum) / (float)args.head_dim;
    for (uint32_t i = lane; is_there && i < args.head_dim; i += OX_WARP) {
        const float g = ox_widen(d[i]) * ox_widen(args.gain[i]);
        ox_narrow(rstd * (g - ox_widen(x[i]) * rstd * sum), &d[i]);
    }
}

/* Group blockIdx.x of the heads, one column per thread. */
template <typename T> static __global__ void head_columns_kernel(head_args<T> args) {
    const uint64_t count = (uint64_t)args.rows * args.heads, per_group = (count + gridDim.x - 1) / gridDim.x;
    const uint64_t begin = blockIdx.x * per_group, past = begin + per_group < count ? begin + per_group : count;
    for (uint32_t col = threadIdx.x; col < args.head_dim; col += blockDim.x) {
        float dgain = 0.0f;
        for (uint64_t head = begin; head < past; head++) {
            const T d = args.inout[head / args.heads * args.row_stride + head % args.heads * args.head_dim + col];
            dgain += ox_widen(d) * (ox_widen(args.saved[head * args.head_dim + col]) * args.rstd[head]);
        }
        args.scratch[(uint64_t)blockIdx.x * 2 * args.head_dim + col] = dgain;
        args.scratch[(uint64_t)blockIdx.x * 2 * args.head_dim + args.head_dim + col] = 0.0f;
    }
}

static ox_launch_shape by_head(uint64_t heads) {
    const unsigned per_block = OX_BLOCK_THREADS / OX_WARP;
    return ox_launch_shape{(unsigned)((heads + per_block - 1) / per_block), OX_BLOCK_THREADS, 0};
}

extern "C" ox_status ox_cuda_head_norm_forward(const ox_cuda_queue *queue, const void *given) {
    const ox_op_head_norm_forward *const op = (const ox_op_head_norm_forward *)given;
    const head_args<float> args = {(float *)op->inout, (float *)op->saved, op->rstd, (const float *)op->gain, nullptr,
                                   op->rows, op->row_stride, op->heads, op->head_dim, op->eps};
    ox_launch(head_norm_forward_kernel<float>, queue, by_head((uint64_t)op->rows * op->heads), args);
    return OX_OK;
}

extern "C" ox_status ox_cuda_head_norm_backward(const ox_cuda_queue *queue, const void *given) {
    const ox_op_head_norm_backward *const op = (const ox_op_head_norm_backward *)given;
    const head_args<float> args = {(float *)op->dinout, (float *)op->saved, (float *)op->rstd, (const float *)op->gain,
                                   (float *)op->scratch, op->rows, op->row_stride, op->heads, op->head_dim, 0.0f};
    const unsigned groups = groups_for(op->rows);
    ox_launch(head_columns_kernel<float>, queue, ox_launch_shape{groups, OX_BLOCK_THREADS, 0}, args);
    ox_launch(add_groups_kernel, queue,
              ox_launch_shape{(op->head_dim + OX_BLOCK_THREADS - 1) / OX_BLOCK_THREADS, OX_BLOCK_THREADS, 0}, op->dgain,
              (float *)nullptr, (const float *)op->scratch, op->head_dim, groups);
    ox_launch(head_norm_backward_kernel<float>, queue, by_head((uint64_t)op->rows * op->heads), args);
    return OX_OK;
}

/* ---- biases ----------------------------------------------------------------------------------------- */

template <typename T>
static __global__ void sum_columns_kernel(float *scratch, const T *in, uint32_t rows, uint32_t cols) {
    const uint32_t col = blockIdx.x * blockDim.x + threadIdx.x;
    const uint32_t per_group = (rows + gridDim.y - 1) / gridDim.y;
    const uint32_t begin = blockIdx.y * per_group, past = begin + per_group < rows ? begin + per_group : rows;
    if (col >= cols) {
        return;
    }
    float sum = 0.0f;
    for (uint32_t row = begin; row < past; row++) {
        sum += ox_widen(in[(uint64_t)row * cols + col]);
    }
    scratch[(uint64_t)blockIdx.y * cols + col] = sum;
}

static __global__ void add_sums_kernel(float *sums, const float *scratch, uint32_t cols, uint32_t groups) {
    const uint32_t col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= cols) {
        return;
    }
    float sum = 0.0f;
    for (uint32_t i = 0; i < groups; i++) {
        sum += scratch[(uint64_t)i * cols + col];
    }
    sums[col] += sum;
}

/* The groups' sums lie in the workspace of the products, which this lane alone uses, one operation after another. */
extern "C" ox_status ox_cuda_column_sums(const ox_cuda_queue *queue, const ox_op_linear_backward *op) {
    const uint32_t cols = op->out_count, stretches = (cols + OX_BLOCK_THREADS - 1) / OX_BLOCK_THREADS;
    const uint64_t room = OX_CUDA_WORKSPACE_BYTES / (cols * sizeof(float));
    const uint32_t groups = groups_for(op->rows) < room ? groups_for(op->rows) : (uint32_t)room;
    OX_ASSERT(groups > 0);
    float *const scratch = (float *)queue->device->workspace;
    ox_launch(sum_columns_kernel<float>, queue, ox_launch_shape{dim3(stretches, groups), OX_BLOCK_THREADS, 0}, scratch,
              (const float *)op->dout, op->rows, cols);
    ox_launch(add_sums_kernel, queue, ox_launch_shape{stretches, OX_BLOCK_THREADS, 0}, op->dbias,
              (const float *)scratch, cols, groups);
    return OX_OK;
}
