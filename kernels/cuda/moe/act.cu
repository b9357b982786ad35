/* Activations of experts, weighted by the router, and the gate of a shared expert. Elements moved, at least, of rows by
 * width: the activation 3 forward and 5 backward, the gate 2 or 3 forward and 3 backward. */
#include "kernels/cuda/moe/group.cuh"

enum { ROW_THREADS = 128 };

static ox_launch_shape by_row(uint32_t rows, uint32_t width, unsigned per_thread) {
    const unsigned stretch = ROW_THREADS * per_thread;
    return ox_launch_shape{dim3(rows, (width + stretch - 1) / stretch), ROW_THREADS, 0};
}

static __device__ __forceinline__ float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

/* N gates and ups of a row, from column `col` on. */
template <typename T, int N>
static __device__ __forceinline__ void load_pairs(float gate[N], float up[N], const T *row, uint32_t col,
                                                  uint32_t width, bool interleaved) {
    if (!interleaved) {
        ox_load<T, N>(gate, row + col);
        ox_load<T, N>(up, row + width + col);
        return;
    }
    float both[2 * N];
    ox_load<T, 2 * N>(both, row + 2 * (uint64_t)col);
#pragma unroll
    for (int k = 0; k < N; k++) {
        gate[k] = both[2 * k];
        up[k] = both[2 * k + 1];
    }
}

template <typename T, int N>
static __device__ __forceinline__ void store_pairs(T *row, const float gate[N], const float up[N], uint32_t col,
                                                   uint32_t width, bool interleaved) {
    if (!interleaved) {
        ox_store<T, N>(row + col, gate);
        ox_store<T, N>(row + width + col, up);
        return;
    }
    float both[2 * N];
#pragma unroll
    for (int k = 0; k < N; k++) {
        both[2 * k] = gate[k];
        both[2 * k + 1] = up[k];
    }
    ox_store<T, 2 * N>(row + 2 * (uint64_t)col, both);
}

/* An element: its value and, with dout given, what turns gate and up into their gradients. */
static __device__ __forceinline__ float gated(const ox_gate &form, float gate, float up) {
    const float g = fminf(gate, form.limit), u = fmaxf(-form.limit, fminf(up, form.limit)) + form.shift;
    return u * (g * sigmoid(form.alpha * g));
}

static __device__ __forceinline__ float gated_back(const ox_gate &form, float dout, float *gate, float *up) {
    const float g = fminf(*gate, form.limit), u = fmaxf(-form.limit, fminf(*up, form.limit)) + form.shift;
    const float share = sigmoid(form.alpha * g), slope = share + form.alpha * g * share * (1.0f - share);
    *gate = *gate <= form.limit ? dout * u * slope : 0.0f;
    *up = *up <= form.limit && *up >= -form.limit ? dout * (g * share) : 0.0f;
    return u * (g * share);
}

template <typename T, int N> static __global__ void act_forward(const ox_op_expert_act_forward op) {
    const uint32_t col = (blockIdx.y * blockDim.x + threadIdx.x) * N;
    const uint64_t row = blockIdx.x;
    if (col >= op.width || !ox_has_row(op.group, row)) {
        return;
    }
    const float weight = op.weights == NULL ? 1.0f : op.weights[op.pair_of[row]];
    float gate[N], up[N];
    load_pairs<T, N>(gate, up, (const T *)op.in + row * 2 * op.width, col, op.width, op.gate.interleaved);
#pragma unroll
    for (int k = 0; k < N; k++) {
        gate[k] = weight * gated(op.gate, gate[k], up[k]);
    }
    ox_store<T, N>((T *)op.out + row * op.width + col, gate);
}

/* A block has a row, because the weight's gradient is a sum over it. */
template <typename T, int N> static __global__ void act_backward(const ox_op_expert_act_backward op) {
    __shared__ float slots[OX_WARP];
    const uint64_t row = blockIdx.x;
    if (!ox_has_row(op.group, row)) {
        return; /* the whole block */
    }
    const int32_t pair = op.weights == NULL ? 0 : op.pair_of[row];
    const float weight = op.weights == NULL ? 1.0f : op.weights[pair];
    float sum = 0.0f;
    for (uint32_t col = threadIdx.x * N; col < op.width; col += ROW_THREADS * N) {
        float gate[N], up[N], dout[N];
        load_pairs<T, N>(gate, up, (const T *)op.in + row * 2 * op.width, col, op.width, op.gate.interleaved);
        ox_load<T, N>(dout, (const T *)op.dout + row * op.width + col);
#pragma unroll
        for (int k = 0; k < N; k++) {
            const float value = gated_back(op.gate, weight * dout[k], &gate[k], &up[k]);
            sum = __fmaf_rn(dout[k], value, sum);
        }
        store_pairs<T, N>((T *)op.din + row * 2 * op.width, gate, up, col, op.width, op.gate.interleaved);
    }
    sum = ox_block_sum(sum, slots);
    if (threadIdx.x == 0 && op.weights != NULL) {
        op.dweights[pair] = op.adds ? op.dweights[pair] + sum : sum;
    }
}

template <typename T> static bool all_wide(uint32_t width, const void *a, const void *b, const void *c) {
    return ox_all_wide<T>(a, width, width) && ox_all_wide<T>(b, width, width) && ox_all_wide<T>(c, width, width);
}

template <typename T> static ox_status forward(const ox_cuda_queue *queue, const ox_op_expert_act_forward *op) {
    enum { N = ox_wide<T>::COUNT };
    const bool wide = all_wide<T>(op->width, op->out, op->in, op->in);
    ox_launch(wide ? act_forward<T, N> : act_forward<T, 1>, queue, by_row(op->rows, op->width, wide ? N : 1), *op);
    return OX_OK;
}

template <typename T> static ox_status backward(const ox_cuda_queue *queue, const ox_op_expert_act_backward *op) {
    enum { N = ox_wide<T>::COUNT };
    const bool wide = all_wide<T>(op->width, op->din, op->in, op->dout);
    ox_launch(wide ? act_backward<T, N> : act_backward<T, 1>, queue, ox_launch_shape{op->rows, ROW_THREADS, 0}, *op);
    return OX_OK;
}

extern "C" ox_status ox_cuda_expert_act_forward(const ox_cuda_queue *queue, const void *args) {
    const ox_op_expert_act_forward *const op = (const ox_op_expert_act_forward *)args;
    return ox_for_real(op->real, [=](auto of) { return forward<decltype(of)>(queue, op); });
}

extern "C" ox_status ox_cuda_expert_act_backward(const ox_cuda_queue *queue, const void *args) {
    const ox_op_expert_act_backward *const op = (const ox_op_expert_act_backward *)args;
    return ox_for_real(op->real, [=](auto of) { return backward<decltype(of)>(queue, op); });
}

/* ---- the gate of a shared expert ------------------------------------------------------------------- */

template <typename T, int N> static __global__ void row_gate_forward(const ox_op_row_gate_forward op) {
    const uint32_t col = (blockIdx.y * blockDim.x + threadIdx.x) * N;
    const uint64_t at = (uint64_t)blockIdx.x * op.width + col;
    if (col >= op.width) {
        return;
    }
    const float share = sigmoid(op.gate[blockIdx.x]);
    float value[N], residual[N] = {0.0f};
    ox_load<T, N>(value, (const T *)op.in + at);
    if (op.residual != NULL) {
        ox_load<T, N>(residual, (const T *)op.residual + at);
    }
#pragma unroll
    for (int k = 0; k < N; k++) {
        value[k] = __fadd_rn(residual[k], __fmul_rn(value[k], share));
    }
    ox_store<T, N>((T *)op.out + at, value);
}

template <typename T, int N> static __global__ void row_gate_backward(const ox_op_row_gate_backward op) {
    __shared__ float slots[OX_WARP];
    const uint64_t begin = (uint64_t)blockIdx.x * op.width;
    const float share = sigmoid(op.gate[blockIdx.x]);
    float sum = 0.0f;
    for (uint32_t col = threadIdx.x * N; col < op.width; col += ROW_THREADS * N) {
        float in[N], dout[N];
        ox_load<T, N>(in, (const T *)op.in + begin + col);
        ox_load<T, N>(dout, (const T *)op.dout + begin + col);
#pragma unroll
        for (int k = 0; k < N; k++) {
            sum = __fmaf_rn(dout[k], in[k], sum);
            dout[k] *= share;
        }
        ox_store<T, N>((T *)op.din + begin + col, dout);
    }
    sum = ox_block_sum(sum, slots);
    if (threadIdx.x == 0) {
        op.dgate[blockIdx.x] = share * (1.0f - share) * sum;
    }
}

template <typename T> static ox_status gate_forward(const ox_cuda_queue *queue, const ox_op_row_gate_forward *op) {
    enum { N = ox_wide<T>::COUNT };
    const bool wide = all_wide<T>(op->width, op->out, op->in, op->residual);
    ox_launch(wide ? row_gate_forward<T, N> : row_gate_forward<T, 1>, queue,
              by_row(op->rows, op->width, wide ? N : 1), *op);
    return OX_OK;
}

template <typename T> static ox_status gate_backward(const ox_cuda_queue *queue, const ox_op_row_gate_backward *op) {
    enum { N = ox_wide<T>::COUNT };
    const bool wide = all_wide<T>(op->width, op->din, op->in, op->dout);
    ox_launch(wide ? row_gate_backward<T, N> : row_gate_backward<T, 1>, queue,
              ox_launch_shape{op->rows, ROW_THREADS, 0}, *op);
    return OX_OK;
}

extern "C" ox_status ox_cuda_row_gate_forward(const ox_cuda_queue *queue, const void *args) {
    const ox_op_row_gate_forward *const op = (const ox_op_row_gate_forward *)args;
    return ox_for_real(op->real, [=](auto of) { return gate_forward<decltype(of)>(queue, op); });
}

extern "C" ox_status ox_cuda_row_gate_backward(const ox_cuda_queue *queue, const void *args) {
    const ox_op_row_gate_backward *const op = (const ox_op_row_gate_backward *)args;
    return ox_for_real(op->real, [=](auto of) { return gate_backward<decltype(of)>(queue, op); });
}
