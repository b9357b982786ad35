/* Shared by all kernels: launching, elements as floats, loads of 16 bytes, and sums within a warp and a block in a
 * fixed order. Compiled by nvcc, and by the host's compiler against tests/simt. */
#ifndef OX_KERNELS_CUDA_KERNEL_CUH
#define OX_KERNELS_CUDA_KERNEL_CUH

#include "base/assert.h"
#include "kernels/cuda/cuda_device.h"

#include <cstdint>

/* ---- launching ------------------------------------------------------------------------------------- */

struct ox_launch_shape {
    dim3 grid, block;
    size_t shared_bytes;
};

/* A grid without blocks is nothing to do; CUDA refuses it. */
static inline bool ox_is_empty(const ox_launch_shape &shape) {
    return shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0;
}

#ifdef __CUDACC__
template <typename... P, typename... A>
static inline void ox_launch(void (*kernel)(P...), const ox_cuda_queue *queue, const ox_launch_shape &shape,
                             A... args) {
    if (!ox_is_empty(shape)) {
        kernel<<<shape.grid, shape.block, shape.shared_bytes, queue->stream>>>(P(args)...);
    }
}
/* For kernels with more than 48 KiB of shared memory, which have to be allowed to use it. */
template <typename... P, typename... A>
static inline ox_status ox_launch_large(void (*kernel)(P...), const ox_cuda_queue *queue, const ox_launch_shape &shape,
                                        A... args) {
    const ox_status status = ox_cuda_check(cudaFuncSetAttribute((const void *)kernel,
                                                                cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                                (int)shape.shared_bytes), "shared memory");
    if (status == OX_OK) {
        ox_launch(kernel, queue, shape, args...);
    }
    return status;
}
static __device__ __forceinline__ void *ox_dynamic_shared() {
    extern __shared__ __align__(16) unsigned char ox_shared_bytes[];
    return ox_shared_bytes;
}
#else
template <typename... P, typename... A>
static inline void ox_launch(void (*kernel)(P...), const ox_cuda_queue *queue, const ox_launch_shape &shape,
                             A... args) {
    OX_ASSERT(shape.shared_bytes <= queue->device->prop.sharedMemPerBlock);
    if (!ox_is_empty(shape)) {
        simt_launch(queue->stream, simt_shape{shape.grid, shape.block, shape.shared_bytes},
                    [=] { kernel(P(args)...); });
    }
}
template <typename... P, typename... A>
static inline ox_status ox_launch_large(void (*kernel)(P...), const ox_cuda_queue *queue, const ox_launch_shape &shape,
                                        A... args) {
    OX_ASSERT(shape.shared_bytes <= queue->device->prop.sharedMemPerBlockOptin && !ox_is_empty(shape));
    simt_launch(queue->stream, simt_shape{shape.grid, shape.block, shape.shared_bytes}, [=] { kernel(P(args)...); });
    return OX_OK;
}
static inline void *ox_dynamic_shared() {
    return simt_shared();
}
#endif

enum { OX_WARP = 32, OX_BLOCK_THREADS = 256 };

/* Number of blocks for `count` items, `per_block` each, for kernels that loop in strides of the grid. */
static inline unsigned ox_grid_for(const ox_cuda_queue *queue, uint64_t count, uint64_t per_block) {
    const uint64_t wanted = (count + per_block - 1) / per_block;
    const uint64_t most = (uint64_t)queue->device->prop.multiProcessorCount * 16;
    return (unsigned)(wanted < 1 ? 1 : wanted < most ? wanted : most);
}

/* ---- elements -------------------------------------------------------------------------------------- */

/* A bfloat16 and a half, as their bits. */
struct ox_bf16 {
    uint16_t bits;
};
struct ox_f16 {
    uint16_t bits;
};

static __device__ __forceinline__ float ox_widen(float value) {
    return value;
}
static __device__ __forceinline__ float ox_widen(ox_bf16 value) {
    return __uint_as_float((uint32_t)value.bits << 16);
}
static __device__ __forceinline__ float ox_widen(ox_f16 value) {
#ifdef __CUDACC__
    float out;
    asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(value.bits));
    return out;
#else
    return ox_f16_to_f32(value.bits);
#endif
}

/* Joins a master from its planes: the upper half is hi less the carry that rounding added (base/planes.h). With a lo of
 * 0 it is the bfloat16 weight widened. */
static __device__ __forceinline__ float ox_join(uint16_t hi, uint16_t lo) {
    return __uint_as_float(((uint32_t)(uint16_t)(hi - (lo >> 15)) << 16) | lo);
}

/* Rounds to nearest, ties to even; a NaN stays a NaN: as ox_bf16_from_f32 of base/planes.h. */
static __device__ __forceinline__ uint16_t ox_bf16_bits(float value) {
    const uint32_t bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)((bits >> 16) | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
static __device__ __forceinline__ void ox_narrow(float value, float *out) {
    *out = value;
}
static __device__ __forceinline__ void ox_narrow(float value, ox_bf16 *out) {
    out->bits = ox_bf16_bits(value);
}
/* To nearest, ties to even, as ox_f16_from_f32 of base/planes.h; what is too large becomes infinite. */
static __device__ __forceinline__ void ox_narrow(float value, ox_f16 *out) {
#ifdef __CUDACC__
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out->bits) : "f"(value));
#else
    out->bits = ox_f16_from_f32(value);
#endif
}

/* Calls `fn` with a value of the type that stands for `real`. */
template <typename F> static inline ox_status ox_for_real(enum ox_real real, F fn) {
    switch (real) {
    case OX_REAL_F32:
        return fn(0.0f);
    case OX_REAL_BF16:
        return fn(ox_bf16{});
    default:
        return fn(ox_f16{});
    }
}

/* Elements per load; one if an address or a length does not allow more. */
template <typename T, int N> struct alignas(sizeof(T) * N) ox_pack {
    T at[N];
};
template <typename T> struct ox_wide {
    enum { COUNT = 16 / sizeof(T) };
};
template <typename T, int N> static __device__ __forceinline__ void ox_unpack(float out[N], const ox_pack<T, N> &pack) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        out[i] = ox_widen(pack.at[i]);
    }
}
/* N elements; if they are more than 16 bytes, several accesses of 16. */
template <typename T, int N> static __device__ __forceinline__ void ox_load(float out[N], const T *from) {
    enum { WIDE = ox_wide<T>::COUNT, PIECE = N < (int)WIDE ? N : (int)WIDE };
#pragma unroll
    for (int i = 0; i < N; i += PIECE) {
        ox_unpack<T, PIECE>(out + i, *(const ox_pack<T, PIECE> *)(from + i));
    }
}
template <typename T, int N> static __device__ __forceinline__ void ox_store(T *to, const float in[N]) {
    enum { WIDE = ox_wide<T>::COUNT, PIECE = N < (int)WIDE ? N : (int)WIDE };
#pragma unroll
    for (int i = 0; i < N; i += PIECE) {
        ox_pack<T, PIECE> pack;
#pragma unroll
        for (int k = 0; k < PIECE; k++) {
            ox_narrow(in[i + k], &pack.at[k]);
        }
        *(ox_pack<T, PIECE> *)(to + i) = pack;
    }
}

/* Whether rows of `cols` elements at `ptr`, `stride` apart, may be read in loads of `count`. NULL may. */
static inline bool ox_is_wide(const void *ptr, uint64_t cols, uint64_t stride, unsigned count, size_t elem_bytes) {
    return (uintptr_t)ptr % (count * elem_bytes) == 0 && cols % count == 0 && stride % count == 0;
}
template <typename T> static inline bool ox_all_wide(const void *ptr, uint64_t cols, uint64_t stride) {
    return ox_is_wide(ptr, cols, stride, ox_wide<T>::COUNT, sizeof(T));
}

/* ---- sums, in a fixed order ------------------------------------------------------------------------ */

/* Combined over a warp; the same in every lane. */
static __device__ __forceinline__ float ox_warp_sum(float value) {
#pragma unroll
    for (int distance = OX_WARP / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, distance);
    }
    return value;
}

static __device__ __forceinline__ float ox_warp_max(float value) {
#pragma unroll
    for (int distance = OX_WARP / 2; distance > 0; distance /= 2) {
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, distance));
    }
    return value;
}

/* Combined over a block of whole warps; the same in every thread. `slots` holds OX_WARP floats of shared memory and may
 * be used again at once. */
static __device__ __forceinline__ float ox_block_sum(float value, float *slots) {
    const unsigned warp = threadIdx.x / OX_WARP, warps = blockDim.x / OX_WARP;
    value = ox_warp_sum(value);
    if (threadIdx.x % OX_WARP == 0) {
        slots[warp] = value;
    }
    __syncthreads();
    float sum = 0.0f;
    for (unsigned i = 0; i < warps; i++) {
        sum += slots[i];
    }
    __syncthreads();
    return sum;
}

#endif
