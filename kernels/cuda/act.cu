/* Activations of the MLP, forward and backward, element by element. Elements moved, at least:
 *   gated   forward 3 rows width, backward 5 rows width
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

/* An activation and its slope at x, with what is shared. */
struct act_at {
    float value, slope;
};

template <ox_activation KIND> static __device__ __forceinline__ act_at act_of(float x) {
    if (KIND == OX_ACTIVATION_SWIGLU) {
        const float share = sigmoid(x);
        return act_at{x * share, share * (1.0f + x * (1.0f - share))};
    }
    const float t = gelu_tanh(x), inner = 0.7978845608f * (1.0f + 3.0f * 0.044715f * x * x);
    return act_at{0.5f * x * (1.0f + t), 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner};
}

template <typename T, int N, ox_activation KIND>
static __global__ void gated_forward(T *out, const T *in, uint32_t width) {
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
        up[k] *= act_of<KIND>(gate[k]).value;
    }
    ox_store<T, N>(out + row * width + col, up);
}

template <typename T, int N, ox_activation KIND>
static __global__ void gated_backward(T *din, const T *dout, const T *in, uint32_t width) {
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
        const act_at at = act_of<KIND>(gate[k]);
        gate[k] = d[k] * up[k] * at.slope;
        up[k] = d[k] * at.value;
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
        x[k] = act_of<OX_ACTIVATION_GELU_TANH>(x[k]).value;
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
        d[k] *= act_of<OX_ACTIVATION_GELU_TANH>(x[k]).slope;
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
    ox_launch(op->kind == OX_ACTIVATION_SWIGLU       ? gated_forward<T, N, OX_ACTIVATION_SWIGLU>
              : op->kind == OX_ACTIVATION_GEGLU_TANH ? gated_forward<T, N, OX_ACTIVATION_GEGLU_TANH>
                                                     : gelu_forward<T, N>,
              queue, shape, (T *)op->out, (const T *)op->in, op->width);
}

template <typename T, int N> static void launch_backward(const ox_cuda_queue *queue, const ox_op_act_backward *op) {
    const ox_launch_shape shape = by_row(op->rows, op->width, N);
    ox_launch(op->kind == OX_ACTIVATION_SWIGLU       ? gated_backward<T, N, OX_ACTIVATION_SWIGLU>
              : op->kind == OX_ACTIVATION_GEGLU_TANH ? gated_backward<T, N, OX_ACTIVATION_GEGLU_TANH>
                                                     : gelu_backward<T, N>,
              queue, shape, (T *)op->din, (const T *)op->dout, (const T *)op->in, op->width);
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
    return ox_for_real(op->real, [=](auto of) { return forward<decltype(of)>(queue, op); });
}

extern "C" ox_status ox_cuda_act_backward(const ox_cuda_queue *queue, const void *args) {
    const ox_op_act_backward *const op = (const ox_op_act_backward *)args;
    return ox_for_real(op->real, [=](auto of) { return backward<decltype(of)>(queue, op); });
}
