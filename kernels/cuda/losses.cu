/* Losses of pairs of sequences, noise, and what adapters have beside products: dropout and magnitudes. A thread takes a
 * sequence, then one all pairs: a micro-batch has few of them beside the rows of its head. */
#include "kernels/cuda/kernel.cuh"

#include "base/prng/philox.h"
#include "kernels/pair_loss.h"

static __global__ void pairs_kernel(ox_op_pairs op) {
    __shared__ ox_pair_side sides[OX_PAIR_SEQUENCES_MAX];
    for (uint32_t i = threadIdx.x; i < op.batch; i += blockDim.x) {
        sides[i] = ox_pair_side_at(&op, i);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        ox_pairs_add_all(&op, sides);
    }
}

extern "C" ox_status ox_cuda_pairs(const ox_cuda_queue *queue, const void *args) {
    ox_launch(pairs_kernel, queue, ox_launch_shape{1, OX_BLOCK_THREADS, 0}, *(const ox_op_pairs *)args);
    return OX_OK;
}

/* The four elements that share a block of random words, of which a vector's last has fewer; WIDE in one access. */
static __device__ __forceinline__ unsigned four_at(uint64_t count, uint64_t i) {
    return count - i * 4 < 4 ? (unsigned)(count - i * 4) : 4;
}
template <bool WIDE, typename T>
static __device__ __forceinline__ void load_four(float out[4], const T *from, unsigned there) {
    if (WIDE && there == 4) {
        ox_load<T, 4>(out, from);
        return;
    }
#pragma unroll
    for (unsigned k = 0; k < 4; k++) {
        out[k] = k < there ? ox_widen(from[k]) : 0.0f;
    }
}
template <bool WIDE, typename T>
static __device__ __forceinline__ void store_four(T *to, const float in[4], unsigned there) {
    if (WIDE && there == 4) {
        ox_store<T, 4>(to, in);
        return;
    }
#pragma unroll
    for (unsigned k = 0; k < 4; k++) {
        if (k < there) {
            ox_narrow(in[k], &to[k]);
        }
    }
}
static bool fours_are_wide(const void *a, const void *b, const void *c) {
    return ((uintptr_t)a | (uintptr_t)b | (uintptr_t)c) % 16 == 0;
}

template <bool WIDE, typename T> static __global__ void noise_kernel(ox_op_noise op) {
    const uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i * 4 < op.count; i += stride) {
        T *const inout = (T *)op.inout + i * 4;
        const unsigned there = four_at(op.count, i);
        uint32_t words[4];
        float x[4];
        load_four<WIDE>(x, inout, there);
        ox_philox_words(op.seed, op.stream, i, words);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            x[k] = __fadd_rn(x[k], __fmul_rn(op.magnitude, ox_philox_signed(words[k])));
        }
        store_four<WIDE>(inout, x, there);
    }
}

extern "C" ox_status ox_cuda_noise(const ox_cuda_queue *queue, const void *args) {
    const ox_op_noise *const op = (const ox_op_noise *)args;
    const ox_launch_shape shape = {ox_grid_for(queue, op->count, OX_BLOCK_THREADS * 4), OX_BLOCK_THREADS, 0};
    return ox_for_real(op->real, [=](auto of) {
        using T = decltype(of);
        ox_launch(fours_are_wide(op->inout, nullptr, nullptr) ? noise_kernel<true, T> : noise_kernel<false, T>, queue,
                  shape, *op);
        return OX_OK;
    });
}

template <bool WIDE, typename T> static __global__ void drop_kernel(ox_op_drop op) {
    const uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    const float scale = __fdiv_rn(1.0f, 1.0f - op.rate);
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i * 4 < op.count; i += stride) {
        const unsigned there = four_at(op.count, i);
        uint32_t words[4];
        float x[4], added[4] = {};
        load_four<WIDE>(x, (const T *)op.in + i * 4, there);
        if (op.residual != NULL) {
            load_four<WIDE>(added, (const T *)op.residual + i * 4, there);
        }
        ox_philox_words(op.seed, op.stream, i, words);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const bool drops = op.rate != 0.0f && ox_philox_drops(words[k], op.rate);
            const float kept = drops ? 0.0f : __fmul_rn(x[k], scale);
            x[k] = op.residual != NULL ? __fadd_rn(added[k], kept) : kept;
        }
        store_four<WIDE>((T *)op.out + i * 4, x, there);
    }
}

extern "C" ox_status ox_cuda_drop(const ox_cuda_queue *queue, const void *args) {
    const ox_op_drop *const op = (const ox_op_drop *)args;
    const ox_launch_shape shape = {ox_grid_for(queue, op->count, OX_BLOCK_THREADS * 4), OX_BLOCK_THREADS, 0};
    return ox_for_real(op->real, [=](auto of) {
        using T = decltype(of);
        ox_launch(fours_are_wide(op->in, op->out, op->residual) ? drop_kernel<true, T> : drop_kernel<false, T>, queue,
                  shape, *op);
        return OX_OK;
    });
}

/* ---- magnitudes of adapters (DoRA): a warp has a row of the weights, whose squares its lanes add in a fixed order;
 * columns of a gradient are summed over groups of rows, then over the groups ---- */

template <typename T> static __global__ void norm_rows(const ox_op_dora_norm op) {
    __shared__ double sums[OX_WARP];
    const uint32_t o = blockIdx.x, lane = threadIdx.x;
    const bool out_in = op.layout == OX_WEIGHT_OUT_IN;
    double sum = 0.0;
    for (uint32_t k = lane; k < op.in_count; k += OX_WARP) {
        float value = ox_widen(((const T *)op.weight)[out_in ? (uint64_t)o * op.in_count + k
                                                             : (uint64_t)k * op.out_count + o]);
        for (uint32_t j = 0; j < op.r; j++) {
            value += op.scale * ox_widen(((const T *)op.b)[(uint64_t)o * op.r + j]) *
                     ox_widen(((const T *)op.a)[(uint64_t)j * op.in_count + k]);
        }
        sum += (double)value * (double)value;
    }
    sums[lane] = sum;
    __syncthreads();
    if (lane == 0) {
        double total = 0.0;
        for (int i = 0; i < OX_WARP; i++) {
            total += sums[i];
        }
        op.norm[o] = (float)sqrt(total);
    }
}

extern "C" ox_status ox_cuda_dora_norm(const ox_cuda_queue *queue, const void *args) {
    const ox_op_dora_norm *const op = (const ox_op_dora_norm *)args;
    return ox_for_real(op->real, [=](auto of) {
        ox_launch(norm_rows<decltype(of)>, queue, ox_launch_shape{dim3(op->out_count), OX_WARP, 0}, *op);
        return OX_OK;
    });
}

/* N columns of the magnitudes over the norms, and of the bias. */
template <typename T, int N>
static __device__ __forceinline__ void load_factors(float factor[N], float bias[N], const void *magnitude,
                                                    const float *norm, const void *bias_or_null, uint32_t col) {
    float by[N];
    ox_load<T, N>(factor, (const T *)magnitude + col);
    ox_load<float, N>(by, norm + col);
#pragma unroll
    for (int k = 0; k < N; k++) {
        factor[k] /= by[k];
        bias[k] = 0.0f;
    }
    if (bias_or_null != NULL) {
        ox_load<T, N>(bias, (const T *)bias_or_null + col);
    }
}

enum { COLUMN_THREADS = 128, COLUMN_ROWS = 8, DORA_GROUPS_MAX = 512, FOLD_Y = 16 };

/* A thread has N columns of a group of rows. */
template <typename T, int N> static __global__ void dora_rows(const ox_op_dora_forward op) {
    const uint32_t col = (blockIdx.y * COLUMN_THREADS + threadIdx.x) * N;
    if (col >= op.cols) {
        return;
    }
    float factor[N], bias[N], x[N];
    load_factors<T, N>(factor, bias, op.magnitude, op.norm, op.bias, col);
    for (uint32_t i = 0; i < COLUMN_ROWS; i++) {
        const uint64_t row = (uint64_t)blockIdx.x * COLUMN_ROWS + i, at = row * op.stride + col;
        if (row >= op.rows) {
            break;
        }
        ox_load<T, N>(x, (const T *)op.in + at);
#pragma unroll
        for (int k = 0; k < N; k++) {
            x[k] = (x[k] - bias[k]) * factor[k] + bias[k];
        }
        ox_store<T, N>((T *)op.out + at, x);
    }
}

template <typename T, typename P> static bool columns_are_wide(const P *op, const void *out, const void *in) {
    return ox_all_wide<T>(out, op->cols, op->stride) && ox_all_wide<T>(in, op->cols, op->stride) &&
           ox_all_wide<T>(op->magnitude, 0, 0) && ox_all_wide<T>(op->bias, 0, 0) && ox_all_wide<float>(op->norm, 0, 0);
}

static ox_launch_shape by_columns(uint32_t groups, uint32_t cols, uint32_t each) {
    const uint32_t stretch = COLUMN_THREADS * each;
    return ox_launch_shape{dim3(groups, (cols + stretch - 1) / stretch), COLUMN_THREADS, 0};
}

extern "C" ox_status ox_cuda_dora_forward(const ox_cuda_queue *queue, const void *args) {
    const ox_op_dora_forward *const op = (const ox_op_dora_forward *)args;
    return ox_for_real(op->real, [=](auto of) {
        using T = decltype(of);
        enum { N = ox_wide<T>::COUNT };
        const bool is_wide = columns_are_wide<T>(op, op->out, op->in);
        ox_launch(is_wide ? dora_rows<T, N> : dora_rows<T, 1>, queue,
                  by_columns((op->rows + COLUMN_ROWS - 1) / COLUMN_ROWS, op->cols, is_wide ? N : 1), *op);
        return OX_OK;
    });
}

/* Rows of group blockIdx.x: their gradient, and sums of the columns for that of the magnitudes. */
template <typename T, int N> static __global__ void dora_back_rows(const ox_op_dora_backward op, double *sums) {
    const uint32_t col = (blockIdx.y * COLUMN_THREADS + threadIdx.x) * N;
    const uint32_t per_group = (op.rows + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * per_group;
    const uint32_t past = begin + per_group < op.rows ? begin + per_group : op.rows;
    if (col >= op.cols) {
        return;
    }
    float factor[N], bias[N], dout[N], in[N];
    double sum[N] = {};
    load_factors<T, N>(factor, bias, op.magnitude, op.norm, op.bias, col);
    for (uint32_t row = begin; row < past; row++) {
        const uint64_t at = (uint64_t)row * op.stride + col;
        ox_load<T, N>(dout, (const T *)op.dout + at);
        if (op.dmagnitude != NULL) {
            ox_load<T, N>(in, (const T *)op.in + at);
#pragma unroll
            for (int k = 0; k < N; k++) {
                sum[k] += (double)dout[k] * (double)(in[k] - bias[k]);
            }
        }
#pragma unroll
        for (int k = 0; k < N; k++) {
            dout[k] *= factor[k];
        }
        ox_store<T, N>((T *)op.din + at, dout);
    }
    for (int k = 0; k < N && op.dmagnitude != NULL; k++) {
        sums[(uint64_t)blockIdx.x * op.cols + col + k] = sum[k];
    }
}

/* Adds the groups of a column: every FOLD_Y-th in a thread, then those in order. */
static __global__ void dora_fold(const ox_op_dora_backward op, const double *sums, uint32_t groups) {
    __shared__ double near[FOLD_Y][OX_WARP];
    const uint32_t col = blockIdx.x * OX_WARP + threadIdx.x;
    double sum = 0.0;
    for (uint32_t group = threadIdx.y; col < op.cols && group < groups; group += FOLD_Y) {
        sum += sums[(uint64_t)group * op.cols + col];
    }
    near[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && col < op.cols) {
        sum = 0.0;
        for (int y = 0; y < FOLD_Y; y++) {
            sum += near[y][threadIdx.x];
        }
        const float own = (float)(sum / (double)op.norm[col]);
        op.dmagnitude[col] = op.begins ? own : op.dmagnitude[col] + own;
    }
}

/* The groups' sums are in the workspace of the GEMMs, which only this lane uses, one operation after another. */
extern "C" ox_status ox_cuda_dora_backward(const ox_cuda_queue *queue, const void *args) {
    const ox_op_dora_backward *const op = (const ox_op_dora_backward *)args;
    const uint64_t room = OX_CUDA_WORKSPACE_BYTES / (op->cols * sizeof(double));
    const uint32_t most = room < (uint64_t)DORA_GROUPS_MAX ? (uint32_t)room : (uint32_t)DORA_GROUPS_MAX;
    const uint32_t wanted = (op->rows + COLUMN_ROWS - 1) / COLUMN_ROWS, groups = wanted < most ? wanted : most;
    double *const sums = (double *)queue->device->workspace;
    OX_ASSERT(most > 0);
    return ox_for_real(op->real, [=](auto of) {
        using T = decltype(of);
        enum { N = ox_wide<T>::COUNT };
        const bool is_wide = columns_are_wide<T>(op, op->din, op->dout) && ox_all_wide<T>(op->in, op->cols, 0);
        ox_launch(is_wide ? dora_back_rows<T, N> : dora_back_rows<T, 1>, queue,
                  by_columns(groups, op->cols, is_wide ? N : 1), *op, sums);
        if (op->dmagnitude != NULL) {
            const dim3 threads(OX_WARP, FOLD_Y);
            ox_launch(dora_fold, queue, ox_launch_shape{dim3((op->cols + OX_WARP - 1) / OX_WARP), threads, 0}, *op,
                      (const double *)sums, groups);
        }
        return OX_OK;
    });
}
