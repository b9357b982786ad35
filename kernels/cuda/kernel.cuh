/* Shared by all kernels: launching, elements as floats, loads of 16 bytes, and sums within a warp and a block in a
 * fixed order. Compiled by nvcc, and by the host's compiler against tests/simt. */
#ifndef OX_KERNELS_CUDA_KERNEL_CUH
#define OX_KERNELS_CUDA_KERNEL_CUH

#include "base/assert.h"
#include "kernels/cuda/cuda_device.h"

#include <cstdint>
#include <cstring>

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
/* The words of a pack. The compiler is shown words, and elements as bits of them, because it makes one access per
 * element of a load of a struct of elements. */
template <typename T> static __device__ __forceinline__ void ox_from_word(T *out, uint32_t word) {
#pragma unroll
    for (unsigned k = 0; k < 4 / sizeof(T); k++) {
        const uint32_t bits = word >> 8 * sizeof(T) * k % 32;
        memcpy(&out[k], &bits, sizeof(T)); /* the machine's order is little-endian */
    }
}
template <typename T> static __device__ __forceinline__ uint32_t ox_to_word(const T *in) {
    uint32_t word = 0;
#pragma unroll
    for (unsigned k = 0; k < 4 / sizeof(T); k++) {
        uint32_t bits = 0;
        memcpy(&bits, &in[k], sizeof(T));
        word |= bits << 8 * sizeof(T) * k % 32;
    }
    return word;
}

/* One access to a pack of up to 16 bytes. */
template <typename T, int N> static __device__ __forceinline__ ox_pack<T, N> ox_get(const T *from) {
    enum { BYTES = sizeof(T) * N, EACH = sizeof(T) < 4 ? 4 / sizeof(T) : 1 };
    ox_pack<T, N> pack;
    if constexpr (BYTES == 16) {
        const uint4 words = *(const uint4 *)from;
        ox_from_word(pack.at, words.x);
        ox_from_word(pack.at + EACH, words.y);
        ox_from_word(pack.at + 2 * EACH, words.z);
        ox_from_word(pack.at + 3 * EACH, words.w);
    } else if constexpr (BYTES == 8) {
        const uint2 words = *(const uint2 *)from;
        ox_from_word(pack.at, words.x);
        ox_from_word(pack.at + EACH, words.y);
    } else if constexpr (BYTES == 4) {
        ox_from_word(pack.at, *(const uint32_t *)from);
    } else {
        pack = *(const ox_pack<T, N> *)from;
    }
    return pack;
}
template <typename T, int N> static __device__ __forceinline__ void ox_put(T *to, const ox_pack<T, N> &pack) {
    enum { BYTES = sizeof(T) * N, EACH = sizeof(T) < 4 ? 4 / sizeof(T) : 1 };
    const T *const at = pack.at;
    if constexpr (BYTES == 16) {
        *(uint4 *)to = make_uint4(ox_to_word(at), ox_to_word(at + EACH), ox_to_word(at + 2 * EACH),
                                  ox_to_word(at + 3 * EACH));
    } else if constexpr (BYTES == 8) {
        *(uint2 *)to = make_uint2(ox_to_word(at), ox_to_word(at + EACH));
    } else if constexpr (BYTES == 4) {
        *(uint32_t *)to = ox_to_word(at);
    } else {
        *(ox_pack<T, N> *)to = pack;
    }
}

/* N elements; if they are more than 16 bytes, several accesses of 16. */
template <typename T, int N> static __device__ __forceinline__ void ox_load(float out[N], const T *from) {
    enum { WIDE = ox_wide<T>::COUNT, PIECE = N < (int)WIDE ? N : (int)WIDE };
#pragma unroll
    for (int i = 0; i < N; i += PIECE) {
        ox_unpack<T, PIECE>(out + i, ox_get<T, PIECE>(from + i));
    }
}

/* Rounds all elements of a pack. Bfloat16 by pairs, because the hardware has an instruction for two, which does not
 * keep what a NaN holds: a pack with one goes the long way. */
template <typename T, int N>
static __device__ __forceinline__ void ox_narrow_pack(const float in[N], ox_pack<T, N> *pack) {
#pragma unroll
    for (int k = 0; k < N; k++) {
        ox_narrow(in[k], &pack->at[k]);
    }
}
#ifdef __CUDACC__
template <int N>
static __device__ __forceinline__ void ox_narrow_pack(const float in[N], ox_pack<ox_bf16, N> *pack) {
    bool has_nan = N % 2 != 0;
#pragma unroll
    for (int k = 0; k < N; k++) {
        has_nan = has_nan || in[k] != in[k];
    }
    if (has_nan) {
#pragma unroll
        for (int k = 0; k < N; k++) {
            ox_narrow(in[k], &pack->at[k]);
        }
        return;
    }
#pragma unroll
    for (int k = 0; k + 1 < N; k += 2) {
        uint32_t pair;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(in[k + 1]), "f"(in[k]));
        ox_from_word(pack->at + k, pair);
    }
}
#endif
template <typename T, int N> static __device__ __forceinline__ void ox_store(T *to, const float in[N]) {
    enum { WIDE = ox_wide<T>::COUNT, PIECE = N < (int)WIDE ? N : (int)WIDE };
#pragma unroll
    for (int i = 0; i < N; i += PIECE) {
        ox_pack<T, PIECE> pack;
        ox_narrow_pack(in + i, &pack);
        ox_put(to + i, pack);
    }
}

/* Elements in 16 bytes, kept as words: half the registers of the same elements apart. */
template <typename T> struct ox_chunk {
    enum { COUNT = ox_wide<T>::COUNT, EACH = 4 / sizeof(T) };
    uint32_t words[4];

    __device__ __forceinline__ float at(int k) const {
        T elems[EACH];
        ox_from_word(elems, words[k / EACH]);
        return ox_widen(elems[k % EACH]);
    }
    /* Elements that were taken out before are not kept in registers beyond here, but taken out again. */
    __device__ __forceinline__ void keep_words() {
#ifdef __CUDACC__
        asm("" : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3]));
#endif
    }
    __device__ __forceinline__ void set(const ox_pack<T, COUNT> &pack) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            words[i] = ox_to_word(pack.at + i * EACH);
        }
    }
    __device__ __forceinline__ void set(const float in[COUNT]) {
        ox_pack<T, COUNT> pack;
        ox_narrow_pack(in, &pack);
        set(pack);
    }
};

/* A row, in chunks. Which elements share one follows from the row's length alone, whatever its address and however it
 * is read: WIDE in one access, else element by element. Past the row are zeros, and nothing is written. `at` is the
 * chunk's first element. */
template <bool WIDE, typename T>
static __device__ __forceinline__ ox_chunk<T> ox_row_get(const T *row, uint32_t at, uint32_t cols) {
    ox_chunk<T> chunk = {};
    if constexpr (WIDE) {
        if (at < cols) {
            const uint4 words = *(const uint4 *)(row + at);
            chunk = ox_chunk<T>{{words.x, words.y, words.z, words.w}};
        }
    } else {
        ox_pack<T, ox_wide<T>::COUNT> pack = {};
#pragma unroll
        for (uint32_t k = 0; k < ox_wide<T>::COUNT; k++) {
            if (at + k < cols) {
                pack.at[k] = row[at + k];
            }
        }
        chunk.set(pack);
    }
    return chunk;
}
template <bool WIDE, typename T>
static __device__ __forceinline__ void ox_row_put(T *row, uint32_t at, uint32_t cols, const ox_chunk<T> &chunk) {
    if constexpr (WIDE) {
        if (at < cols) {
            *(uint4 *)(row + at) = make_uint4(chunk.words[0], chunk.words[1], chunk.words[2], chunk.words[3]);
        }
    } else {
#pragma unroll
        for (uint32_t k = 0; k < ox_wide<T>::COUNT; k++) {
            T elems[ox_chunk<T>::EACH];
            ox_from_word(elems, chunk.words[k / ox_chunk<T>::EACH]);
            if (at + k < cols) {
                row[at + k] = elems[k % ox_chunk<T>::EACH];
            }
        }
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
/* Over neighbouring lanes of a warp, a power of two. All lanes of the warp take part. */
static __device__ __forceinline__ float ox_lanes_sum(float value, unsigned lanes) {
    for (unsigned distance = lanes / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, distance);
    }
    return value;
}
/* The number of such lanes that hold `width` elements in one access of `per_lane` each, if a warp has that many. */
static inline uint32_t ox_lanes_for(uint32_t width, uint32_t per_lane) {
    uint32_t lanes = 1;
    while (lanes < OX_WARP && lanes * per_lane < width) {
        lanes *= 2;
    }
    return lanes;
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
