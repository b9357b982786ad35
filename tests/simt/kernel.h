/* A kernel's view of the emulation: built-in variables, barriers, exchange within a warp. C++ alone; included by
 * cuda_runtime.h. */
#ifndef OX_TESTS_SIMT_KERNEL_H
#define OX_TESTS_SIMT_KERNEL_H

#ifdef __cplusplus
/* The host's compiler does not see that what a kernel writes in one loop it reads in another. */
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __shared__ static thread_local

struct simt_index {
    unsigned x = 1, y = 1, z = 1;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

/* Identity of the running fiber. It is found by the fiber's stack, because finding a variable of the thread takes
 * longer than most of what a kernel does between two looks: stacks lie in a region that is aligned to its size, and in
 * place of the first of them lie the identities of all. */
struct alignas(64) simt_here {
    simt_index thread, block, block_dim, grid_dim;
    struct simt_machine *machine;
};
enum : uintptr_t { SIMT_STACK_BYTES = 1 << 17, SIMT_REGION_BYTES = 1 << 28 };
static inline simt_here *simt_self() {
    const uintptr_t at = (uintptr_t)__builtin_frame_address(0), region = at & ~(SIMT_REGION_BYTES - 1);
    return (simt_here *)region + (at - region) / SIMT_STACK_BYTES;
}
#define threadIdx (simt_self()->thread)
#define blockIdx (simt_self()->block)
#define blockDim (simt_self()->block_dim)
#define gridDim (simt_self()->grid_dim)

void simt_sync_block();
void simt_sync_warp();
/* All lanes of a warp give `bytes` (at most a slot's); then each may look at what any lane gave, until it gives again.
 * The slots of a warp lie one behind another. */
enum { SIMT_SLOT_BYTES = 64 };
void simt_give(const void *give, size_t bytes);
const void *simt_given(unsigned lane);
void *simt_shared();

struct simt_shape {
    dim3 grid, block;
    size_t shared_bytes;
};
void simt_launch(cudaStream_t stream, const simt_shape &shape, std::function<void()> kernel);

static inline void __syncthreads() { simt_sync_block(); }
static inline void __syncwarp(unsigned = 0xffffffffu) { simt_sync_warp(); }

template <typename T> static inline T simt_take(T value, unsigned lane) {
    simt_give(&value, sizeof value);
    memcpy(&value, simt_given(lane & 31u), sizeof value);
    return value;
}
static inline unsigned simt_lane() { return threadIdx.x & 31u; }
template <typename T> static inline T __shfl_xor_sync(unsigned, T value, int mask) {
    return simt_take(value, simt_lane() ^ (unsigned)mask);
}
template <typename T> static inline T __shfl_sync(unsigned, T value, int lane) {
    return simt_take(value, (unsigned)lane);
}
template <typename T> static inline T __shfl_down_sync(unsigned, T value, unsigned by) {
    const unsigned lane = simt_lane() + by;
    return simt_take(value, lane > 31 ? simt_lane() : lane);
}

static inline int __any_sync(unsigned, int value) {
    simt_give(&value, sizeof value);
    bool any = false;
    for (unsigned lane = 0; lane < 32; lane++) {
        any = any || *(const int *)simt_given(lane) != 0;
    }
    return any;
}

struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
static inline float2 make_float2(float x, float y) { return float2{x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return float4{x, y, z, w}; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return uint2{x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return uint4{x, y, z, w}; }

static inline unsigned __float_as_uint(float value) { unsigned bits; memcpy(&bits, &value, 4); return bits; }
static inline float __uint_as_float(unsigned bits) { float value; memcpy(&value, &bits, 4); return value; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline int __clz(int bits) { return bits == 0 ? 32 : __builtin_clz((unsigned)bits); }
static inline unsigned atomicAdd(unsigned *at, unsigned by) { return __atomic_fetch_add(at, by, __ATOMIC_RELAXED); }
static inline unsigned long long atomicAdd(unsigned long long *at, unsigned long long by) {
    return __atomic_fetch_add(at, by, __ATOMIC_RELAXED);
}
#endif
#endif
