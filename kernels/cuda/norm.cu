/* Normalisations, and sums over rows. In forward a block has a row, of which each thread keeps its part in registers.
 * The gradients of gain and bias are sums over rows: first over fixed groups of rows, then over the groups in order, so
 * that the result depends on the shape alone. In backward a block has a group of rows and its threads have columns:
 * what a thread reads of a row serves both its gradient and the sums. In which order a row is summed follows from its
 * length alone. Elements moved, at least:
 *   norm       forward 2 rows cols, backward 3 rows cols, 4 with a residual
 *   head norm  forward 2 rows heads head_dim, 3 where the input is kept, backward 3 rows heads head_dim
 *   bias       rows cols */
#include "kernels/cuda/kernel.cuh"

/* Rows that are `stride` elements apart. */
template <typename T> struct rows_of {
    T *at;
    uint32_t stride;
};

template <typename T> struct norm_forward_args {
    rows_of<T> out;
    rows_of<const T> in;
    const T *gain, *bias, *residual; /* of the residual, row i is at i * cols */
    float *mean, *rstd;
    uint32_t cols;
    float eps, gain_offset;
};

enum { HELD = 4 };

/* What a thread of a block has of a row: a pack of 16 bytes of every stretch as long as all threads reach. It holds
 * HELD of them, all read before the first is used, and reads those of longer rows each time. */
template <bool WIDE, typename T> struct held_row {
    ox_chunk<T> near[HELD];
    const T *row;
    uint32_t cols, first, step;

    __device__ __forceinline__ held_row(const T *row_, uint32_t cols_)
        : row(row_), cols(cols_), first(threadIdx.x * ox_wide<T>::COUNT), step(blockDim.x * ox_wide<T>::COUNT) {
#pragma unroll
        for (uint32_t i = 0; i < HELD; i++) {
            near[i] = ox_row_get<WIDE>(row, first + i * step, cols);
        }
    }
    /* Calls fn(pack, its first element). */
    template <typename F> __device__ __forceinline__ void each(F fn) const {
#pragma unroll
        for (uint32_t i = 0; i < HELD; i++) {
            if (first + i * step < cols) {
                fn(near[i], first + i * step);
            }
        }
        for (uint32_t at = first + HELD * step; at < cols; at += step) {
            fn(ox_row_get<WIDE>(row, at, cols), at);
        }
    }
};

template <bool WIDE, typename T> static __global__ void norm_forward_kernel(norm_forward_args<T> args) {
    enum { N = ox_wide<T>::COUNT };
    __shared__ float slots[OX_WARP];
    const uint64_t row = blockIdx.x;
    const uint32_t cols = args.cols;
    const held_row<WIDE, T> in(args.in.at + row * args.in.stride, cols);
    float mean = 0.0f, sum = 0.0f;
    if (args.mean != nullptr) {
        in.each([&](const ox_chunk<T> &chunk, uint32_t) {
#pragma unroll
            for (int k = 0; k < N; k++) {
                sum += chunk.at(k);
            }
        });
        mean = ox_block_sum(sum, slots) / (float)cols;
        sum = 0.0f;
    }
    in.each([&](const ox_chunk<T> &chunk, uint32_t at) {
#pragma unroll
        for (int k = 0; k < N; k++) {
            const float x = WIDE || at + k < cols ? chunk.at(k) - mean : 0.0f;
            sum = __fmaf_rn(x, x, sum);
        }
    });
    const float rstd = 1.0f / sqrtf(ox_block_sum(sum, slots) / (float)cols + args.eps);
    in.each([&](const ox_chunk<T> &chunk, uint32_t at) {
        ox_chunk<T> bias = {}, residual = {};
        const ox_chunk<T> gain = ox_row_get<WIDE>(args.gain, at, cols);
        if (args.bias != nullptr) {
            bias = ox_row_get<WIDE>(args.bias, at, cols);
        }
        if (args.residual != nullptr) {
            residual = ox_row_get<WIDE>(args.residual + row * cols, at, cols);
        }
        float x[N];
#pragma unroll
        for (int k = 0; k < N; k++) {
            x[k] = (chunk.at(k) - mean) * rstd * (gain.at(k) + args.gain_offset) +
                   bias.at(k) + residual.at(k);
        }
        ox_chunk<T> out;
        out.set(x);
        ox_row_put<WIDE>(args.out.at + row * args.out.stride, at, cols, out);
    });
    if (threadIdx.x == 0) {
        args.rstd[row] = rstd;
        if (args.mean != nullptr) {
            args.mean[row] = mean;
        }
    }
}

/* ---- sums over rows --------------------------------------------------------------------------------- */

/* Heads within rows: head i is head i % per_row of row i / per_row; rows are `stride` elements apart, heads have
 * `width` elements. */
template <typename T> struct heads_of {
    T *at;
    uint32_t stride, per_row, width;
};

template <typename T> static __device__ __forceinline__ T *head_at(const heads_of<T> &heads, uint32_t idx) {
    return heads.at + (uint64_t)(idx / heads.per_row) * heads.stride + idx % heads.per_row * heads.width;
}

/* Column sums of dout (rows, cols) times the normed input, if there is one, and of dout itself, if wanted. For every
 * group of rows, scratch gets first the one, then the other. */
template <typename T> struct column_args {
    heads_of<const T> dout;
    const T *in; /* or NULL */
    const float *mean, *rstd;
    float *scratch;
    uint32_t rows, cols;
    bool plain;
};

enum { SUM_ROWS = 8, GROUP_ROWS_MIN = 4 * SUM_ROWS };

/* Adds the column sums of the threads of a block along y, in order, and writes them. */
template <int N>
static __device__ void fold_rows(float *to, float (*near)[OX_WARP * N], const float sum[N], bool is_there) {
    for (int k = 0; k < N; k++) {
        near[threadIdx.y][threadIdx.x * N + k] = sum[k];
    }
    __syncthreads();
    for (int k = 0; k < N && threadIdx.y == 0 && is_there; k++) {
        float total = 0.0f;
        for (int y = 0; y < SUM_ROWS; y++) {
            total += near[y][threadIdx.x * N + k];
        }
        to[k] = total;
    }
    __syncthreads();
}

/* Sums group blockIdx.y of the rows, for a stretch of the columns. If the gradient of the rows is written over dout,
 * this runs first. */
template <typename T, int N> static __global__ void sum_columns_kernel(column_args<T> args) {
    __shared__ float near[SUM_ROWS][OX_WARP * N];
    const uint32_t col = (blockIdx.x * OX_WARP + threadIdx.x) * N;
    const uint32_t per_group = (args.rows + gridDim.y - 1) / gridDim.y, begin = blockIdx.y * per_group;
    const uint32_t past = begin + per_group < args.rows ? begin + per_group : args.rows;
    const bool is_there = col < args.cols;
    float normed[N] = {}, plain[N] = {};
    for (uint32_t row = begin + threadIdx.y; is_there && row < past; row += SUM_ROWS) {
        float d[N], x[N] = {};
        ox_load<T, N>(d, head_at(args.dout, row) + col);
        const float mean = args.mean != nullptr ? args.mean[row] : 0.0f;
        const float rstd = args.in != nullptr ? args.rstd[row] : 0.0f;
        if (args.in != nullptr) {
            ox_load<T, N>(x, args.in + (uint64_t)row * args.cols + col);
        }
#pragma unroll
        for (int k = 0; k < N; k++) {
            normed[k] += d[k] * ((x[k] - mean) * rstd);
            plain[k] += d[k];
        }
    }
    const uint32_t parts = (args.in != nullptr) + args.plain;
    float *const to = args.scratch + (uint64_t)blockIdx.y * parts * args.cols + col;
    if (args.in != nullptr) {
        fold_rows<N>(to, near, normed, is_there);
    }
    if (args.plain) {
        fold_rows<N>(to + (parts - 1) * args.cols, near, plain, is_there);
    }
}

enum { FOLD_Y = 16 };

/* Where the parts of a group are added, or where their sums begin, from zero. */
struct sum_targets {
    float *at[2]; /* either may be NULL */
    bool begins;
};

struct group_args {
    sum_targets sums;
    const float *scratch;
    uint32_t cols, groups;
};

/* Adds part blockIdx.y of gridDim.y, over all groups. */
static __global__ void add_groups_kernel(group_args args) {
    __shared__ float near[FOLD_Y][OX_WARP];
    const uint32_t col = blockIdx.x * OX_WARP + threadIdx.x;
    float sum = 0.0f;
    if (args.sums.at[blockIdx.y] == nullptr) { /* of weights that are not trained */
        return;
    }
    for (uint32_t i = threadIdx.y; col < args.cols && i < args.groups; i += FOLD_Y) {
        sum += args.scratch[((uint64_t)i * gridDim.y + blockIdx.y) * args.cols + col];
    }
    near[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && col < args.cols) {
        float *const target = args.sums.at[blockIdx.y] + col;
        sum = 0.0f;
        for (int y = 0; y < FOLD_Y; y++) {
            sum += near[y][threadIdx.x];
        }
        *target = (args.sums.begins ? 0.0f : *target) + sum;
    }
}

static void add_groups(const ox_cuda_queue *queue, const group_args &args) {
    const unsigned parts = args.sums.at[1] == nullptr ? 1 : 2;
    ox_launch(add_groups_kernel, queue,
              ox_launch_shape{dim3((args.cols + OX_WARP - 1) / OX_WARP, parts), dim3(OX_WARP, FOLD_Y), 0}, args);
}

/* Groups of `rows` rows: no smaller than `least`, except for one, and no more than `most` groups. */
static unsigned groups_for(uint32_t rows, uint32_t least, uint32_t most) {
    const uint32_t groups = (rows + least - 1) / least;
    return groups < most ? groups : most;
}

template <typename T> static bool wide(const void *ptr, uint64_t cols) {
    return ox_all_wide<T>(ptr, cols, 0);
}

/* Both steps; the sums with the normed input go to the first target. */
template <typename T>
static void sum_columns(const ox_cuda_queue *queue, const column_args<T> &args, unsigned groups,
                        const sum_targets &sums) {
    enum { WIDE = ox_wide<T>::COUNT };
    const bool is_wide = ox_all_wide<T>(args.dout.at, args.cols, args.dout.stride) && wide<T>(args.in, args.cols);
    const unsigned per_block = OX_WARP * (is_wide ? (unsigned)WIDE : 1);
    const ox_launch_shape shape = {dim3((args.cols + per_block - 1) / per_block, groups), dim3(OX_WARP, SUM_ROWS), 0};
    ox_launch(is_wide ? sum_columns_kernel<T, WIDE> : sum_columns_kernel<T, 1>, queue, shape, args);
    add_groups(queue, group_args{sums, args.scratch, args.cols, groups});
}

template <typename T> static ox_status bias_sums(const ox_cuda_queue *queue, const ox_op_linear_backward *op) {
    const uint32_t cols = op->out_count;
    const uint64_t room = OX_CUDA_WORKSPACE_BYTES / (cols * sizeof(float));
    const unsigned most = room < (uint64_t)OX_CUDA_ROW_GROUPS ? (unsigned)room : (unsigned)OX_CUDA_ROW_GROUPS;
    OX_ASSERT(most > 0);
    column_args<T> args = {};
    args.dout = heads_of<const T>{(const T *)op->dout, cols, 1, cols};
    args.scratch = (float *)queue->device->workspace;
    args.rows = op->rows;
    args.cols = cols;
    args.plain = true;
    const sum_targets sums = {{op->dbias, nullptr}, op->begins};
    sum_columns<T>(queue, args, groups_for(op->rows, GROUP_ROWS_MIN, most), sums);
    return OX_OK;
}

/* The groups' sums are in the workspace of the GEMMs, which only this lane uses, one operation after another. */
extern "C" ox_status ox_cuda_column_sums(const ox_cuda_queue *queue, const ox_op_linear_backward *op) {
    return ox_for_real(op->real, [=](auto of) { return bias_sums<decltype(of)>(queue, op); });
}

/* ---- backward --------------------------------------------------------------------------------------- */

template <typename T> struct norm_backward_args {
    T *din;
    const T *residual, *dout, *in, *gain;
    const float *mean, *rstd;
    float *scratch;
    uint32_t rows, cols;
    bool plain;
    float gain_offset;
};

/* Jacobian of the norm: din = rstd * (g - mean(g) - n * mean(g * n)), with g = dout * gain and n the normed row;
 * mean(g) is subtracted only if the norm subtracts a mean. For rows of any width, one by one. */
template <bool WIDE, typename T> static __global__ void norm_backward_kernel(norm_backward_args<T> args) {
    enum { N = ox_wide<T>::COUNT };
    __shared__ float slots[OX_WARP];
    const uint64_t row = blockIdx.x, begin = row * args.cols;
    const uint32_t cols = args.cols;
    const float rstd = args.rstd[row], mean = args.mean != nullptr ? args.mean[row] : 0.0f;
    float sum = 0.0f, sum_normed = 0.0f;
    for (uint32_t at = threadIdx.x * N; at < cols; at += blockDim.x * N) {
        const ox_chunk<T> x = ox_row_get<WIDE>(args.in + begin, at, cols);
        const ox_chunk<T> d = ox_row_get<WIDE>(args.dout + begin, at, cols);
        const ox_chunk<T> gain = ox_row_get<WIDE>(args.gain, at, cols);
#pragma unroll
        for (int k = 0; k < N; k++) {
            const float g = d.at(k) * (gain.at(k) + args.gain_offset);
            sum += g;
            sum_normed += g * ((x.at(k) - mean) * rstd);
        }
    }
    const float per_col = 1.0f / (float)cols;
    sum_normed = ox_block_sum(sum_normed, slots) * per_col;
    sum = args.mean != nullptr ? ox_block_sum(sum, slots) * per_col : 0.0f;
    for (uint32_t at = threadIdx.x * N; at < cols; at += blockDim.x * N) {
        const ox_chunk<T> x = ox_row_get<WIDE>(args.in + begin, at, cols);
        const ox_chunk<T> d = ox_row_get<WIDE>(args.dout + begin, at, cols);
        const ox_chunk<T> gain = ox_row_get<WIDE>(args.gain, at, cols);
        ox_chunk<T> residual = {};
        if (args.residual != nullptr) {
            residual = ox_row_get<WIDE>(args.residual + begin, at, cols);
        }
        float out[N];
#pragma unroll
        for (int k = 0; k < N; k++) {
            const float g = d.at(k) * (gain.at(k) + args.gain_offset);
            out[k] = residual.at(k) +
                     rstd * (g - sum - (x.at(k) - mean) * rstd * sum_normed);
        }
        ox_chunk<T> din;
        din.set(out);
        ox_row_put<WIDE>(args.din + begin, at, cols, din);
    }
}

enum { GROUP_THREADS = 512 };

/* What a thread has read of a row. */
template <typename T, int PACKS> struct row_part {
    ox_chunk<T> in[PACKS], dout[PACKS];
    float mean, rstd;
};

/* The threads of a row have PACKS packs of columns each, as far apart as all threads of the row reach. A thread without
 * columns there, or with a row past the group, has zeros. */
template <bool WIDE, typename T, int PACKS>
static __device__ __forceinline__ void fetch(row_part<T, PACKS> *part, const norm_backward_args<T> &args, uint32_t row,
                                             uint32_t past) {
    const uint32_t cols = row < past ? args.cols : 0;
    const uint64_t begin = (uint64_t)row * args.cols;
    part->rstd = cols > 0 ? args.rstd[row] : 0.0f;
    part->mean = cols > 0 && args.mean != nullptr ? args.mean[row] : 0.0f;
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
        const uint32_t col = (i * blockDim.x + threadIdx.x) * ox_wide<T>::COUNT;
        part->in[i] = ox_row_get<WIDE>(args.in + begin, col, cols);
        part->dout[i] = ox_row_get<WIDE>(args.dout + begin, col, cols);
    }
}

/* Both sums over the threads of a row. Rows use two sets of slots in turn, so that one barrier is enough. */
static __device__ __forceinline__ float2 row_sums(float2 value, float2 *slots) {
    const unsigned warps = blockDim.x / OX_WARP, first = threadIdx.y * warps;
    value.x = ox_warp_sum(value.x);
    value.y = ox_warp_sum(value.y);
    if (threadIdx.x % OX_WARP == 0) {
        slots[first + threadIdx.x / OX_WARP] = value;
    }
    __syncthreads();
    float2 sum = make_float2(0.0f, 0.0f);
    for (unsigned i = 0; i < warps; i++) {
        sum.x += slots[first + i].x;
        sum.y += slots[first + i].y;
    }
    return sum;
}

/* The threads along y have different rows of the group: their sums are added in order, in shared memory. */
template <int COUNT, int N>
static __device__ void write_sums(float *to, float *near, const float (&sums)[COUNT], uint32_t cols) {
    for (unsigned y = 0; y < blockDim.y; y++) {
        for (int i = 0; i < COUNT && threadIdx.y == y; i++) {
            const uint32_t col = (i / N * blockDim.x + threadIdx.x) * N + i % N;
            const bool is_last = y + 1 == blockDim.y;
            if (col < cols) {
                const float sum = (y == 0 ? 0.0f : near[col]) + sums[i];
                *(is_last ? &to[col] : &near[col]) = sum;
            }
        }
        if (blockDim.y > 1) {
            __syncthreads();
        }
    }
}

/* A group of rows in one pass: a thread has the same columns in all rows, and loads the next row while the sums of this
 * one are combined. PLAIN: also sums dout itself. */
template <bool WIDE, int PACKS, bool PLAIN, typename T>
static __global__ void __launch_bounds__(GROUP_THREADS, WIDE && PACKS == 1 ? 2 : 1)
norm_backward_group_kernel(norm_backward_args<T> args) {
    enum { N = ox_wide<T>::COUNT };
    __shared__ float2 slots[2][OX_WARP];
    const uint32_t per_group = (args.rows + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * per_group;
    const uint32_t past = begin + per_group < args.rows ? begin + per_group : args.rows;
    const float per_col = 1.0f / (float)args.cols;
    float dgain[PACKS * N] = {}, dbias[PACKS * N] = {};
    row_part<T, PACKS> next;
    fetch<WIDE>(&next, args, begin + threadIdx.y, past);
    for (uint32_t first = begin, turn = 0; first < past; first += blockDim.y, turn++) {
        row_part<T, PACKS> part = next;
        const uint32_t row = first + threadIdx.y;
        const uint32_t cols = row < past ? args.cols : 0;
        const uint32_t added = args.residual != nullptr ? cols : 0;
        const T *const to_add = args.residual + (uint64_t)row * args.cols;
        ox_chunk<T> residual[PACKS];
        if constexpr (WIDE) {
#pragma unroll
            for (int i = 0; i < PACKS; i++) {
                residual[i] = ox_row_get<WIDE>(to_add, (i * blockDim.x + threadIdx.x) * N, added);
            }
            fetch<WIDE>(&next, args, row + blockDim.y, past);
        }
        float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int i = 0; i < PACKS; i++) {
            const ox_chunk<T> gain = ox_row_get<WIDE>(args.gain, (i * blockDim.x + threadIdx.x) * N, args.cols);
#pragma unroll
            for (int k = 0; k < N; k++) {
                const float d = part.dout[i].at(k), g = d * (gain.at(k) + args.gain_offset);
                const float normed = (part.in[i].at(k) - part.mean) * part.rstd;
                sum.x += g;
                sum.y += g * normed;
                dgain[i * N + k] += d * normed;
                dbias[i * N + k] += PLAIN ? d : 0.0f;
            }
        }
        sum = row_sums(sum, slots[turn % 2]);
        sum.x = args.mean != nullptr ? sum.x * per_col : 0.0f;
        sum.y *= per_col;
#pragma unroll
        for (int i = 0; i < PACKS; i++) {
            const uint32_t col = (i * blockDim.x + threadIdx.x) * N;
            const ox_chunk<T> gain = ox_row_get<WIDE>(args.gain, col, args.cols); /* from the nearest cache */
            if constexpr (!WIDE) { /* late, and so the next row: addresses of elements take its registers */
                residual[i] = ox_row_get<WIDE>(to_add, col, added);
            }
            float din[N];
            part.in[i].keep_words();
            part.dout[i].keep_words();
#pragma unroll
            for (int k = 0; k < N; k++) {
                const float g = part.dout[i].at(k) * (gain.at(k) + args.gain_offset);
                const float normed = (part.in[i].at(k) - part.mean) * part.rstd;
                din[k] = residual[i].at(k) + part.rstd * (g - sum.x - normed * sum.y);
            }
            ox_chunk<T> chunk;
            chunk.set(din);
            ox_row_put<WIDE>(args.din + (uint64_t)row * args.cols, col, cols, chunk);
        }
        if constexpr (!WIDE) {
            fetch<WIDE>(&next, args, row + blockDim.y, past);
        }
    }
    float *const to = args.scratch + (uint64_t)blockIdx.x * (PLAIN ? 2 : 1) * args.cols;
    float *const near = (float *)ox_dynamic_shared();
    write_sums<PACKS * N, N>(to, near, dgain, args.cols);
    if (PLAIN) {
        write_sums<PACKS * N, N>(to + args.cols, near, dbias, args.cols);
    }
}

/* Threads per row in a block, in whole warps, `per_thread` elements each, as far as a block reaches. */
static unsigned threads_for(uint32_t cols, unsigned per_thread) {
    const unsigned wanted = (cols + per_thread - 1) / per_thread;
    const unsigned threads = (wanted + OX_WARP - 1) / OX_WARP * OX_WARP;
    return threads < 512 ? threads : 512;
}

template <typename T> static ox_status norm_forward(const ox_cuda_queue *queue, const ox_op_norm_forward *op) {
    norm_forward_args<T> args = {};
    args.out = rows_of<T>{(T *)op->out, op->out_stride == 0 ? op->cols : op->out_stride};
    args.in = rows_of<const T>{(const T *)op->in, op->in_stride == 0 ? op->cols : op->in_stride};
    args.gain = (const T *)op->gain;
    args.bias = (const T *)op->bias;
    args.mean = op->kind == OX_NORM_LAYER ? op->mean : nullptr;
    args.rstd = op->rstd;
    args.cols = op->cols;
    args.eps = op->eps;
    args.gain_offset = op->gain_offset;
    args.residual = (const T *)op->residual;
    const bool is_wide = ox_all_wide<T>(op->out, op->cols, args.out.stride) &&
                         ox_all_wide<T>(op->in, op->cols, args.in.stride) && wide<T>(op->gain, op->cols) &&
                         wide<T>(op->bias, op->cols) && wide<T>(op->residual, op->cols);
    const ox_launch_shape shape = {op->rows, threads_for(op->cols, HELD * ox_wide<T>::COUNT), 0};
    ox_launch(is_wide ? norm_forward_kernel<true, T> : norm_forward_kernel<false, T>, queue, shape, args);
    return OX_OK;
}

template <typename T> static bool is_wide(const norm_backward_args<T> &args) {
    return wide<T>(args.din, args.cols) && wide<T>(args.residual, args.cols) && wide<T>(args.dout, args.cols) &&
           wide<T>(args.in, args.cols) && wide<T>(args.gain, args.cols);
}

template <int PACKS, typename T>
static void launch_group(const ox_cuda_queue *queue, const ox_launch_shape &shape, const norm_backward_args<T> &args) {
    void (*const kernels[2][2])(norm_backward_args<T>) = {
        {norm_backward_group_kernel<false, PACKS, false, T>, norm_backward_group_kernel<false, PACKS, true, T>},
        {norm_backward_group_kernel<true, PACKS, false, T>, norm_backward_group_kernel<true, PACKS, true, T>}};
    ox_launch(kernels[is_wide<T>(args)][args.plain], queue, shape, args);
}

/* Works in one pass; returns the number of groups. */
template <typename T> static unsigned backward_by_group(const ox_cuda_queue *queue, const norm_backward_args<T> &args) {
    enum { N = ox_wide<T>::COUNT };
    const unsigned packs = (args.cols + N - 1) / N, each = packs > (unsigned)GROUP_THREADS ? 2 : 1;
    const unsigned x = (packs + each * OX_WARP - 1) / (each * OX_WARP) * OX_WARP, y = GROUP_THREADS / x;
    const unsigned groups = groups_for(args.rows, 2 * y, OX_CUDA_ROW_GROUPS);
    const ox_launch_shape shape = {groups, dim3(x, y), y > 1 ? args.cols * sizeof(float) : 0};
    if (each == 1) {
        launch_group<1>(queue, shape, args);
    } else {
        launch_group<2>(queue, shape, args);
    }
    return groups;
}

/* Works in two passes: columns first, then rows, which may be written over dout. */
template <typename T>
static void backward_by_row(const ox_cuda_queue *queue, const norm_backward_args<T> &args, const sum_targets &sums) {
    const column_args<T> columns = {heads_of<const T>{args.dout, args.cols, 1, args.cols}, args.in, args.mean,
                                    args.rstd, args.scratch, args.rows, args.cols, args.plain};
    sum_columns<T>(queue, columns, groups_for(args.rows, GROUP_ROWS_MIN, OX_CUDA_ROW_GROUPS), sums);
    const ox_launch_shape shape = {args.rows, threads_for(args.cols, ox_wide<T>::COUNT), 0};
    ox_launch(is_wide<T>(args) ? norm_backward_kernel<true, T> : norm_backward_kernel<false, T>, queue, shape, args);
}

template <typename T> static ox_status norm_backward(const ox_cuda_queue *queue, const ox_op_norm_backward *op) {
    const bool layer = op->kind == OX_NORM_LAYER;
    const norm_backward_args<T> args = {
        (T *)op->din, (const T *)op->residual, (const T *)op->dout, (const T *)op->in, (const T *)op->gain,
        layer ? op->mean : nullptr, op->rstd, (float *)op->scratch, op->rows, op->cols, op->dbias != nullptr,
        op->gain_offset};
    const sum_targets sums = {{op->dgain, op->dbias}, op->begins};
    if (op->cols <= 2 * GROUP_THREADS * ox_wide<T>::COUNT) {
        const unsigned groups = backward_by_group<T>(queue, args);
        add_groups(queue, group_args{sums, args.scratch, op->cols, groups});
    } else {
        backward_by_row<T>(queue, args, sums);
    }
    return OX_OK;
}

extern "C" ox_status ox_cuda_norm_forward(const ox_cuda_queue *queue, const void *given) {
    const ox_op_norm_forward *const op = (const ox_op_norm_forward *)given;
    return ox_for_real(op->real, [=](auto of) { return norm_forward<decltype(of)>(queue, op); });
}

extern "C" ox_status ox_cuda_norm_backward(const ox_cuda_queue *queue, const void *given) {
    const ox_op_norm_backward *const op = (const ox_op_norm_backward *)given;
    return ox_for_real(op->real, [=](auto of) { return norm_backward<decltype(of)>(queue, op); });
}

/* ---- heads ------------------------------------------------------------------------------------------ */

/* Each head has some neighbouring lanes of a warp, a power of two. */
template <typename T> struct head_args {
    heads_of<T> inout;
    T *saved;
    float *rstd;
    const T *gain;
    float *scratch;
    uint32_t heads, lanes; /* heads of all rows; lanes that work on one head */
    float eps, gain_offset;
};

enum { HEADS_EACH = 4 };

/* The lanes of a head have a chunk of it each, and more of a wide one. They take HEADS_EACH heads of a block, and read
 * the first chunks of all before they use one. */
template <bool WIDE, typename T> static __global__ void head_norm_forward_kernel(head_args<T> args) {
    enum { N = ox_wide<T>::COUNT };
    const uint32_t sets = blockDim.x / args.lanes, width = args.inout.width, step = args.lanes * N;
    const uint32_t first = blockIdx.x * sets * HEADS_EACH + threadIdx.x / args.lanes;
    const uint32_t begin = threadIdx.x % args.lanes * N;
    T *x[HEADS_EACH];
    ox_chunk<T> near[HEADS_EACH];
#pragma unroll
    for (uint32_t i = 0; i < HEADS_EACH; i++) {
        const uint32_t head = first + i * sets;
        x[i] = head_at(args.inout, head < args.heads ? head : 0);
        near[i] = ox_row_get<WIDE>(x[i], begin, head < args.heads ? width : 0);
    }
#pragma unroll
    for (uint32_t i = 0; i < HEADS_EACH; i++) {
        const uint32_t head = first + i * sets, there = head < args.heads ? width : 0;
        float sum = 0.0f;
        ox_chunk<T> raw = near[i];
        for (uint32_t at = begin; at < there; at += step) {
            raw = at == begin ? near[i] : ox_row_get<WIDE>(x[i], at, there);
#pragma unroll
            for (int k = 0; k < N; k++) {
                sum = __fmaf_rn(raw.at(k), raw.at(k), sum);
            }
        }
        const float rstd = 1.0f / sqrtf(ox_lanes_sum(sum, args.lanes) / (float)width + args.eps);
        for (uint32_t at = begin; at < there; at += step) {
            raw = at == begin ? near[i] : ox_row_get<WIDE>(x[i], at, there);
            const ox_chunk<T> gain = ox_row_get<WIDE>(args.gain, at, width);
            float out[N];
            if (args.saved != nullptr) {
                ox_row_put<WIDE>(args.saved + (uint64_t)head * width, at, width, raw);
            }
#pragma unroll
            for (int k = 0; k < N; k++) {
                out[k] = raw.at(k) * (rstd * (gain.at(k) + args.gain_offset));
            }
            raw.set(out);
            ox_row_put<WIDE>(x[i], at, width, raw);
        }
        if (there > 0 && begin == 0) {
            args.rstd[head] = rstd;
        }
    }
}

/* In place, like the backward pass of a row above; for heads of any width, after the column sums. */
template <typename T> static __global__ void head_norm_backward_kernel(head_args<T> args) {
    const uint32_t head = (blockIdx.x * blockDim.x + threadIdx.x) / OX_WARP, width = args.inout.width;
    const bool is_there = head < args.heads;
    T *const d = head_at(args.inout, is_there ? head : 0);
    const T *const x = args.saved + (uint64_t)head * width;
    const float rstd = is_there ? args.rstd[head] : 0.0f;
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x % OX_WARP; is_there && i < width; i += OX_WARP) {
        sum += ox_widen(d[i]) * (ox_widen(args.gain[i]) + args.gain_offset) * (ox_widen(x[i]) * rstd);
    }
    sum = ox_warp_sum(sum) / (float)width;
    for (uint32_t i = threadIdx.x % OX_WARP; is_there && i < width; i += OX_WARP) {
        const float g = ox_widen(d[i]) * (ox_widen(args.gain[i]) + args.gain_offset);
        ox_narrow(rstd * (g - ox_widen(x[i]) * rstd * sum), &d[i]);
    }
}

/* What a thread has read of a head; zeros without one. */
template <typename T> struct head_part {
    ox_chunk<T> d, x;
    float rstd;
};
template <bool WIDE, typename T>
static __device__ __forceinline__ head_part<T> fetch_head(const head_args<T> &args, uint32_t head, uint32_t past,
                                                          uint32_t at) {
    const uint32_t there = head < past ? args.inout.width : 0;
    return head_part<T>{ox_row_get<WIDE>(head_at(args.inout, there > 0 ? head : 0), at, there),
                        ox_row_get<WIDE>(args.saved + (uint64_t)head * args.inout.width, at, there),
                        there > 0 ? args.rstd[head] : 0.0f};
}

/* A group of heads in one pass: the lanes of a head keep the sums of their columns over all their heads, and read the
 * next head while they work on one. */
template <bool WIDE, typename T> static __global__ void head_norm_group_kernel(head_args<T> args) {
    enum { N = ox_wide<T>::COUNT };
    __shared__ float near[OX_BLOCK_THREADS * N];
    const uint32_t per_group = (args.heads + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * per_group;
    const uint32_t past = begin + per_group < args.heads ? begin + per_group : args.heads;
    const uint32_t width = args.inout.width, at = threadIdx.x % args.lanes * N, sets = OX_BLOCK_THREADS / args.lanes;
    const ox_chunk<T> gain = ox_row_get<WIDE>(args.gain, at, width);
    float dgain[N] = {};
    head_part<T> next = fetch_head<WIDE>(args, begin + threadIdx.x / args.lanes, past, at);
    for (uint32_t first = begin; first < past; first += sets) {
        const uint32_t head = first + threadIdx.x / args.lanes;
        const head_part<T> part = next;
        next = fetch_head<WIDE>(args, head + sets, past, at);
        float d[N], x[N], sum = 0.0f;
#pragma unroll
        for (int k = 0; k < N; k++) {
            x[k] = part.x.at(k) * part.rstd;
            dgain[k] += part.d.at(k) * x[k];
            d[k] = part.d.at(k) * (gain.at(k) + args.gain_offset);
            sum += d[k] * x[k];
        }
        sum = ox_lanes_sum(sum, args.lanes) / (float)width;
#pragma unroll
        for (int k = 0; k < N; k++) {
            d[k] = part.rstd * (d[k] - x[k] * sum);
        }
        ox_chunk<T> out;
        out.set(d);
        ox_row_put<WIDE>(head_at(args.inout, head < past ? head : 0), at, head < past ? width : 0, out);
    }
    for (int k = 0; k < N; k++) {
        near[threadIdx.x * N + k] = dgain[k];
    }
    __syncthreads();
    for (uint32_t col = threadIdx.x; col < width; col += OX_BLOCK_THREADS) {
        float sum = 0.0f;
        for (uint32_t set = 0; set < sets; set++) {
            sum += near[set * args.lanes * N + col];
        }
        args.scratch[(uint64_t)blockIdx.x * width + col] = sum;
    }
}

static ox_launch_shape by_head(uint32_t heads, uint32_t lanes, uint32_t each) {
    const uint32_t per_block = OX_BLOCK_THREADS / lanes * each;
    return ox_launch_shape{(heads + per_block - 1) / per_block, OX_BLOCK_THREADS, 0};
}

template <typename T> static bool heads_are_wide(const head_args<T> &args) {
    return ox_all_wide<T>(args.inout.at, args.inout.width, args.inout.stride) &&
           wide<T>(args.saved, args.inout.width) && wide<T>(args.gain, args.inout.width);
}

template <typename T>
static ox_status head_norm_forward(const ox_cuda_queue *queue, const ox_op_head_norm_forward *op) {
    head_args<T> args = {{(T *)op->inout, op->row_stride, op->heads, op->head_dim}, (T *)op->saved, op->rstd,
                         (const T *)op->gain, nullptr, op->rows * op->heads, 0, op->eps, op->gain_offset};
    args.lanes = ox_lanes_for(op->head_dim, ox_wide<T>::COUNT);
    ox_launch(heads_are_wide<T>(args) ? head_norm_forward_kernel<true, T> : head_norm_forward_kernel<false, T>, queue,
              by_head(args.heads, args.lanes, HEADS_EACH), args);
    return OX_OK;
}

template <typename T>
static ox_status head_norm_backward(const ox_cuda_queue *queue, const ox_op_head_norm_backward *op) {
    enum { WIDE = ox_wide<T>::COUNT, GROUPS_MAX = 2 * OX_CUDA_ROW_GROUPS }; /* one part each, of scratch for two */
    const head_args<T> args = {{(T *)op->dinout, op->row_stride, op->heads, op->head_dim}, (T *)op->saved,
                               (float *)op->rstd, (const T *)op->gain, (float *)op->scratch, op->rows * op->heads,
                               ox_lanes_for(op->head_dim, WIDE), 0.0f, op->gain_offset};
    const sum_targets sums = {{op->dgain, nullptr}, op->begins};
    if (op->head_dim <= OX_WARP * WIDE) {
        const unsigned groups = groups_for(args.heads, 2 * OX_BLOCK_THREADS / args.lanes, GROUPS_MAX);
        ox_launch(heads_are_wide<T>(args) ? head_norm_group_kernel<true, T> : head_norm_group_kernel<false, T>, queue,
                  ox_launch_shape{groups, OX_BLOCK_THREADS, 0}, args);
        add_groups(queue, group_args{sums, args.scratch, op->head_dim, groups});
        return OX_OK;
    }
    const heads_of<const T> dout = {args.inout.at, op->row_stride, op->heads, op->head_dim};
    const column_args<T> columns = {dout, args.saved, nullptr, args.rstd, args.scratch, args.heads, op->head_dim,
                                    false};
    sum_columns<T>(queue, columns, groups_for(args.heads, GROUP_ROWS_MIN, GROUPS_MAX), sums);
    ox_launch(head_norm_backward_kernel<T>, queue, by_head(args.heads, OX_WARP, 1), args);
    return OX_OK;
}

extern "C" ox_status ox_cuda_head_norm_forward(const ox_cuda_queue *queue, const void *given) {
    const ox_op_head_norm_forward *const op = (const ox_op_head_norm_forward *)given;
    return ox_for_real(op->real, [=](auto of) { return head_norm_forward<decltype(of)>(queue, op); });
}

extern "C" ox_status ox_cuda_head_norm_backward(const ox_cuda_queue *queue, const void *given) {
    const ox_op_head_norm_backward *const op = (const ox_op_head_norm_backward *)given;
    return ox_for_real(op->real, [=](auto of) { return head_norm_backward<decltype(of)>(queue, op); });
}
