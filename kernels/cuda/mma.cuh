/* The instructions of the tensor cores and of asynchronous copies to shared memory, from sm_80 on, each behind one
 * function. The emulation has its own (tests/simt/matrix.h), which tests/unit/kernels/test_simt_matrix.c holds to the
 * layouts that the PTX ISA gives.
 *
 * What lane l = 4 g + t (g = 0..7, t = 0..3) holds of ox_mma_16816, D (16x8) = A (16x16) * B (16x8) + C:
 *
 *     register   elements, as (row, column), the lower column or row in the lower half
 *     a[0]       A (g,     2t) (g,     2t + 1)
 *     a[1]       A (g + 8, 2t) (g + 8, 2t + 1)
 *     a[2]       A (g,     2t + 8) (g,     2t + 9)
 *     a[3]       A (g + 8, 2t + 8) (g + 8, 2t + 9)
 *     b[0]       B (2t,     g) (2t + 1, g)
 *     b[1]       B (2t + 8, g) (2t + 9, g)
 *     c[0] c[1]  C (g,     2t) (g,     2t + 1)
 *     c[2] c[3]  C (g + 8, 2t) (g + 8, 2t + 1)
 *
 * So two neighbouring C, rounded to 16 bits, are an A of the next product without any exchange. ox_ldmatrix_x4 reads
 * four matrices of 8 rows of 16 bytes: lanes 8i..8i + 7 name the rows of matrix i, and out[i] of lane l is then row g,
 * elements 2t and 2t + 1; transposed it is column g, rows 2t and 2t + 1. */
#ifndef OX_KERNELS_CUDA_MMA_CUH
#define OX_KERNELS_CUDA_MMA_CUH

#include "kernels/cuda/kernel.cuh"

#include <type_traits>

#ifdef __CUDACC__
/* An address in the address space of shared memory. */
using ox_shared = uint32_t;

static __device__ __forceinline__ ox_shared ox_shared_of(const void *ptr) {
    return (uint32_t)__cvta_generic_to_shared(ptr);
}

static __device__ __forceinline__ void ox_ldmatrix_x4(uint32_t out[4], ox_shared row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(row)
                 : "memory");
}

static __device__ __forceinline__ void ox_ldmatrix_x4_trans(uint32_t out[4], ox_shared row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(row)
                 : "memory");
}

/* acc += a * b, of elements T. */
template <typename T>
static __device__ __forceinline__ void ox_mma_16816(float acc[4], const uint32_t a[4], const uint32_t b[2]);
template <>
__device__ __forceinline__ void ox_mma_16816<ox_bf16>(float acc[4], const uint32_t a[4], const uint32_t b[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <>
__device__ __forceinline__ void ox_mma_16816<ox_f16>(float acc[4], const uint32_t a[4], const uint32_t b[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Copies 16 bytes, or writes zeros if the source does not exist; both addresses are multiples of 16. The thread itself
 * may read them after ox_cp_async_wait, other threads after the barrier that follows. */
static __device__ __forceinline__ void ox_cp_async_16(ox_shared to, const void *from, bool is_there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(to), "l"(__cvta_generic_to_global(from)), "r"(is_there ? 16 : 0)
                 : "memory");
}

/* Groups what the thread has copied since the last group. */
static __device__ __forceinline__ void ox_cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most PENDING of the thread's latest groups are under way. */
template <int PENDING> static __device__ __forceinline__ void ox_cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* 2^x with an error of two units in the last place; 0 below the smallest normal float. */
static __device__ __forceinline__ float ox_exp2(float x) {
    float out;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
    return out;
}

/* Makes the compiler forget the value: what follows from it is computed where it is used, not once before a loop and
 * held in registers. */
static __device__ __forceinline__ void ox_renew(uint32_t &value) {
    asm volatile("" : "+r"(value));
}

/* Two floats to T, to nearest, ties to even. */
template <typename T> static __device__ __forceinline__ uint32_t ox_pair(float low, float high);
template <> __device__ __forceinline__ uint32_t ox_pair<ox_bf16>(float low, float high) {
    uint32_t out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}
template <> __device__ __forceinline__ uint32_t ox_pair<ox_f16>(float low, float high) {
    uint32_t out;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}
#else
using ox_shared = uintptr_t;

static inline ox_shared ox_shared_of(const void *ptr) {
    return (uintptr_t)ptr;
}

static inline void ox_ldmatrix_x4(uint32_t out[4], ox_shared row) {
    simt_ldmatrix_x4(out, (const void *)row, false);
}

static inline void ox_ldmatrix_x4_trans(uint32_t out[4], ox_shared row) {
    simt_ldmatrix_x4(out, (const void *)row, true);
}

template <typename T> static inline void ox_mma_16816(float acc[4], const uint32_t a[4], const uint32_t b[2]) {
    simt_mma_16816(acc, a, b, std::is_same<T, ox_f16>::value);
}

static inline void ox_cp_async_16(ox_shared to, const void *from, bool is_there) {
    simt_copy_later((void *)to, is_there ? from : nullptr);
}

static inline void ox_cp_async_commit() {
    simt_copy_commit();
}

template <int PENDING> static inline void ox_cp_async_wait() {
    simt_copy_wait(PENDING);
}

static inline float ox_exp2(float x) {
    return exp2f(x);
}

template <typename T> static inline void ox_renew(T &) {
}

template <typename T> static inline uint32_t ox_pair(float low, float high) {
    T first, second;
    ox_narrow(low, &first);
    ox_narrow(high, &second);
    return (uint32_t)second.bits << 16 | first.bits;
}
#endif

#endif
