/* Activations of the MLP, forward and backward, element by element. Elements moved, at least:
 *   swiglu  forward 3 rows width, backward 5 rows width
 *   gelu    forward 2 rows width, backward 3 rows width */
#include "kernels/cuda/kernel.cuh"

/* silu(g) = g * sigmoid(g), its slope sigmoid(g) * (1 + g * (1 - sigmoid(g))). */
static __device__ __forceinline__ float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

/* gelu in its tanh form: half x (1 + tanh(c (x + a x^3))), c = sqrt(2 / pi), a = 0.044715 (Hendrycks & Gimpel,
 * arXiv 1606.08415). */
static __device__ __forceinline__ float gelu_tanh(float x) {
    return tanhf(0.7978845608f * (x + 0.044715f * x * x * x));
}

template <typename T, int N> static __global__ void swiglu_forward(T *out, const T *in, uint32_t width) {
    const uint32_t col = (blockIdx.y * blockDim.x + threadIdx.x) * N;
    if (col >= width) {
        return;
    }
    const uint64_t row = blockIdx.x;
    float gate[N], up[N];
    ox_load<T, N>(gate, in + row * 2 * width + col);
    ox_load<T, N>(up, in + row * 2 * width + width + col);
#pragma unroll
    for (int k = 0; k < N; k++) {
        up[k] *= gate[k] * sigmoid(gate[k]);
    }
    ox_store<T, N>(out + row * width + col, up);
}

template <typename T, int N>
static __global__ void swiglu_backward(T *din, const T *dout, const T *in, uint32_t width) {
    const uint32_t col = (blockIdx.y * blockDim.x + threadIdx.x) * N;
    if (col >= width) {
        return;
    }
    const uint64_t row = blockIdx.x;
    float gate[N], up[N], d[N];
    ox_load<T, N>(gate, in + row * 2 * width + col);
    ox_load<T, N>(up, in + row * 2 * width + width + col);
    ox_load<T, N>(d, dout + row * width + col);
#pragma unroll
    for (int k = 0; k < N; k++) {
        const float share = sigmoid(gate[k]), silu = gate[k] * share;
        const float slope = share * (1.0f + gate[k] * (1.0f - share));
        gate[k] = d[k] * up[k] * slope;
        up[k] = d[k] * silu;
    }
    ox_store<T, N>(din + row * 2 * width + col, gate);
    ox_store<T, N>(din + row * 2 * width + width + col, up);
}

template <typename T, int N> static __global__ void gelu_forward(T *out, const T *in, uint32_t width) {
    const uint32_t col = (blockIdx.y * blockDim.x + threadIdx.x) * N;
    if (col >= width) {
        return;
    }
    const uint64_t at = (uint64_t)blockIdx.x * width + col;
    float x[N];
    ox_load<T, N>(x, in + at);
#pragma unroll
    for (int k = 0; k < N; k++) {
        x[k] = 0.5f * x[k] * (1.0f + gelu_tanh(x[k]));
    }
    ox_store<T, N>(out + at, x);
}

template <typename T, int N>
static __global__ void gelu_backward(T *din, const T *dout, const T *in, uint32_t width) {
    const uint32_t col = (blockIdx.y * blockDim.x + threadIdx.x) * N;
    if (col >= width) {
        return;
    }
    const uint64_t at = (uint64_t)blockIdx.x * width + col;
    float x[N], d[N];
    ox_load<T, N>(x, in + at);
    ox_load<T, N>(d, dout + at);
#pragma unroll
    for (int k = 0; k < N; k++) {
        const float t = gelu_tanh(x[k]);
        const float inner = 0.7978845608f * (1.0f + 3.0f * 0.044715f * x[k] * x[k]);
        d[k] *= 0.5f * (1.0f + t) + 0.5f * x[k] * (1.0f - t * t) * inner;
    }
    ox_store<T, N>(din + at, d);
}

/* A block takes a stretch of one row. */
static ox_launch_shape by_row(uint32_t rows, uint32_t width, unsigned per_thread) {
    const unsigned threads = 128;
    return ox_launch_shape{dim3(rows, (width + threads * per_thread - 1) / (threads * per_thread)), threads, 0};
}

template <typename T, int N> static void launch_forward(const ox_cuda_queue *queue, const ox_op_act_forward *op) {
    const ox_launch_shape shape = by_row(op->rows, op->width, N);
    ox_launch(op->kind == OX_ACTIVATION_SWIGLU ? swiglu_forward<T, N> : gelu_forward<T, N>, queue, shape, (T *)op->out,
              (const T *)op->in, op->width);
}

template <typename T, int N> static void launch_backward(const ox_cuda_queue *queue, const ox_op_act_backward *op) {
    const ox_launch_shape shape = by_row(op->rows, op->width, N);
    ox_launch(op->kind == OX_ACTIVATION_SWIGLU ? swiglu_backward<T, N> : gelu_backward<T, N>, queue, shape,
              (T *)op->din, (const T *)op->dout, (const T *)op->in, op->width);
}

template <typename T> static bool wide(const void *ptr, uint32_t width) {
    return ox_all_wide<T>(ptr, width, width);
}

template <typename T> static ox_status forward(const ox_cuda_queue *queue, const ox_op_act_forward *op) {
    if (wide<T>(op->out, op->width) && wide<T>(op->in, op->width)) {
        launch_forward<T, ox_wide<T>::COUNT>(queue, op);
    } else {
        launch_forward<T, 1>(queue, op);
    }
    return OX_OK;
}

template <typename T> static ox_status backward(const ox_cuda_queue *queue, const ox_op_act_backward *op) {
    if (wide<T>(op->din, op->width) && wide<T>(op->dout, op->width) && wide<T>(op->in, op->width)) {
        launch_backward<T, ox_wide<T>::COUNT>(queue, op);
    } else {
        launch_backward<T, 1>(queue, op);
    }
    return OX_OK;
}

extern "C" ox_status ox_cuda_act_forward(const ox_cuda_queue *queue, const void *args) {
    const ox_op_act_forward *const op = (const ox_op_act_forward *)args;
    return op->real == OX_REAL_F32 ? forward<float>(queue, op) : forward<ox_bf16>(queue, op);
}

extern "C" ox_status ox_cuda_act_backward(const ox_cuda_queue *queue, const void *args) {
    const ox_op_act_backward *const op = (const ox_op_act_backward *)args;
    return op->real == OX_REAL_F32 ? backward<float>(queue, op) : backward<ox_bf16>(queue, op);
}
