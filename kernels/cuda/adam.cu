/* The optimizer, to the bit what cpu_optim/update_scalar.c defines: every operation is written with its rounding, and
 * the file is compiled without fused multiply-adds of the compiler's choice. Formats and layout are those of
 * cpu_optim/codec.h and optim.h; the tests hold the two against each other, with no tolerance. What an update moves at
 * the least is what cpu_optim/optim.h says (ox_update_traffic_of); a sum of squares reads its gradient. */
#include "kernels/cuda/kernel.cuh"

#include "base/prng/prng.h"

/* As cpu_optim/optim.h numbers them. */
enum { KIND_ADAMW, KIND_LION, KIND_SGD };
enum { MOMENTS_F32, MOMENTS_BF16, MOMENTS_Q8 };

enum {
    STEP = 4,      /* elements of a thread */
    Q8_BLOCK = 64, /* elements that share a scale: those of 16 neighbouring lanes */
    Q8_LANES = Q8_BLOCK / STEP,
    Q8_SHIFT = 19,
    Q8_OCTAVES_M = 6,
    Q8_OCTAVES_V = 14,
    Q8_SCALE_ROUND = 0x7ffff,
};

/* ---- one element ------------------------------------------------------------------------------------ */

struct element {
    float p, m, v;
};

static __device__ __forceinline__ uint16_t upper(uint32_t bits) {
    return (uint16_t)((bits >> 16) + ((bits >> 15) & 1u));
}

template <int KIND>
static __device__ __forceinline__ void advance(const ox_op_adam_hyper &hyper, bool decays, float grad, element *e) {
    const float g = __fmul_rn(grad, hyper.grad_scale);
    const float kept = __fmul_rn(e->p, decays ? hyper.decay_factor : 1.0f);
    if (KIND == KIND_ADAMW) {
        e->m = __fmaf_rn(hyper.beta1, e->m, __fmul_rn(hyper.one_minus_beta1, g));
        e->v = __fmaf_rn(hyper.beta2, e->v, __fmul_rn(hyper.one_minus_beta2, __fmul_rn(g, g)));
        const float root = __fsqrt_rn(__fmul_rn(e->v, hyper.v_scale));
        const float u = __fdiv_rn(__fmul_rn(e->m, hyper.m_scale), __fadd_rn(root, hyper.eps));
        e->p = __fmaf_rn(-hyper.learning_rate, u, kept);
    } else if (KIND == KIND_LION) {
        const float c = __fmaf_rn(hyper.beta1, e->m, __fmul_rn(hyper.one_minus_beta1, g));
        e->m = __fmaf_rn(hyper.beta2, e->m, __fmul_rn(hyper.one_minus_beta2, g));
        e->p = __fmaf_rn(-hyper.learning_rate, c > 0.0f ? 1.0f : c < 0.0f ? -1.0f : 0.0f, kept);
    } else {
        e->m = __fmaf_rn(hyper.beta1, e->m, g);
        e->p = __fmaf_rn(-hyper.learning_rate, e->m, kept);
    }
}

static __device__ __forceinline__ bool below(float value, uint32_t limit_bits) {
    return (__float_as_uint(value) & 0x7fffffffu) < limit_bits;
}

/* Whether all three are finite; of narrow formats below 2^127, and what is not leaves no bits of its own behind. */
template <int MOMENTS> static __device__ __forceinline__ bool settle(element *e) {
    const uint32_t limit = MOMENTS == MOMENTS_F32 ? 0x7f800000u : 0x7f000000u;
    const bool good = below(e->m, limit) && below(e->v, limit) && below(e->p, limit);
    if (!good && MOMENTS != MOMENTS_F32) {
        e->p = __uint_as_float(0x7fc00000u);
        e->m = e->v = 0.0f;
    }
    return good;
}

static __device__ __forceinline__ uint32_t noise_of(const uint32_t keys[2], uint32_t idx) {
    const uint32_t x = idx * 0x9e3779b9u + keys[0];
    return (x ^ (x >> 16) ^ keys[1]) * 0x846ca68bu;
}

/* ---- small floats below a scale --------------------------------------------------------------------- */

static __device__ __forceinline__ uint32_t scale_exponent(uint8_t scale_byte, uint32_t octaves) {
    return (scale_byte < octaves + 3 ? octaves + 3 : scale_byte) - octaves;
}

static __device__ __forceinline__ float decode(uint32_t code, uint32_t exponent) {
    const float z = __uint_as_float((code << Q8_SHIFT) + 0x3f800000u), scale = __uint_as_float(exponent << 23);
    const float low = __fmul_rn(__fsub_rn(z, 1.0f), scale), high = __fmul_rn(z, __fmul_rn(scale, 0.5f));
    return low < high ? low : high;
}

static __device__ __forceinline__ float decode_m(uint8_t code, uint32_t exponent) {
    const float magnitude = decode(code & 127u, exponent);
    return __uint_as_float(__float_as_uint(magnitude) | (uint32_t)(code & 128u) << 24);
}

static __device__ __forceinline__ uint32_t encode(float magnitude, uint32_t exponent, uint32_t round) {
    const float y = __fmul_rn(magnitude, __uint_as_float((254 - exponent) << 23));
    const float z = __fadd_rn(y, y > 1.0f ? y : 1.0f);
    return (__float_as_uint(z) + round - 0x3f800000u) >> Q8_SHIFT;
}

static __device__ __forceinline__ uint8_t encode_m(float value, uint32_t exponent, uint32_t round) {
    const uint32_t bits = __float_as_uint(value);
    return (uint8_t)(encode(__uint_as_float(bits & 0x7fffffffu), exponent, round) | (bits >> 24 & 128u));
}

static __device__ __forceinline__ uint8_t encode_v(float value, uint32_t exponent, uint32_t round) {
    const uint32_t code = encode(value, exponent, round);
    return (uint8_t)(code == 0 && value > 0.0f ? 1 : code);
}

/* ---- kernels ---------------------------------------------------------------------------------------- */

struct adam_args {
    uint16_t *hi;
    void *lo, *m, *v;
    uint8_t *m_scale, *v_scale;
    const void *grad;
    unsigned long long *nonfinite;
    uint64_t first, count;
    bool grad_bf16, decay;
    uint32_t keys[2];
    ox_op_adam_hyper hyper;
};

/* How many of a thread's elements there are: a span may end anywhere. */
static __device__ __forceinline__ uint32_t count_at(const adam_args &args, uint64_t at) {
    return at >= args.count ? 0 : args.count - at < STEP ? (uint32_t)(args.count - at) : (uint32_t)STEP;
}

/* Elements from `from` on, and 0 for those that are not there; of the second, those that are there. */
template <typename T>
static __device__ __forceinline__ ox_pack<T, STEP> get(const T *from, uint32_t there) {
    if (there == STEP) {
        return *(const ox_pack<T, STEP> *)from;
    }
    ox_pack<T, STEP> pack = {};
#pragma unroll
    for (uint32_t k = 0; k < STEP; k++) {
        if (k < there) {
            pack.at[k] = from[k];
        }
    }
    return pack;
}
template <typename T>
static __device__ __forceinline__ void put(T *to, const ox_pack<T, STEP> &pack, uint32_t there) {
    if (there == STEP) {
        *(ox_pack<T, STEP> *)to = pack;
        return;
    }
#pragma unroll
    for (uint32_t k = 0; k < STEP; k++) {
        if (k < there) {
            to[k] = pack.at[k];
        }
    }
}

template <typename T>
static __device__ __forceinline__ void get_floats(float out[STEP], const void *plane, uint64_t at, uint32_t there) {
    ox_unpack<T, STEP>(out, get((const T *)plane + at, there));
}
template <typename T>
static __device__ __forceinline__ void put_floats(void *plane, const float in[STEP], uint64_t at, uint32_t there) {
    ox_pack<T, STEP> pack;
#pragma unroll
    for (int k = 0; k < STEP; k++) {
        ox_narrow(in[k], &pack.at[k]);
    }
    put((T *)plane + at, pack, there);
}

static __device__ __forceinline__ void load_grad(float out[STEP], const adam_args &args, uint64_t at, uint32_t there) {
    if (args.grad_bf16) {
        get_floats<ox_bf16>(out, args.grad, at, there);
    } else {
        get_floats<float>(out, args.grad, at, there);
    }
}

static __device__ __forceinline__ void count_bad(const adam_args &args, unsigned bad) {
    if (bad > 0) { /* integers: their order is of no importance */
        atomicAdd(args.nonfinite, (unsigned long long)bad);
    }
}

/* fp32 moments, and bfloat16 ones that are rounded at random. */
template <int KIND, typename T> static __global__ void adam_kernel(adam_args args) {
    enum { NARROW = sizeof(T) == 2, MOMENTS = NARROW ? MOMENTS_BF16 : MOMENTS_F32 };
    const uint64_t at = ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) * STEP;
    const uint32_t there = count_at(args, at);
    if (there == 0) {
        return;
    }
    ox_pack<uint16_t, STEP> hi = get(args.hi + at, there), lo = get((uint16_t *)args.lo + at, there);
    float m[STEP], v[STEP] = {}, grad[STEP];
    unsigned bad = 0;
    get_floats<T>(m, args.m, at, there);
    if (KIND == KIND_ADAMW) {
        get_floats<T>(v, args.v, at, there);
    }
    load_grad(grad, args, at, there);
#pragma unroll
    for (int k = 0; k < STEP; k++) {
        const uint32_t noise = NARROW ? noise_of(args.keys, (uint32_t)(args.first + at + k)) : 0;
        element e = {ox_join(hi.at[k], lo.at[k]), m[k], v[k]};
        advance<KIND>(args.hyper, args.decay, grad[k], &e);
        bad += !settle<MOMENTS>(&e) && (uint32_t)k < there;
        const uint32_t bits = __float_as_uint(e.p);
        hi.at[k] = upper(bits);
        lo.at[k] = (uint16_t)bits;
        /* With bits of noise added below, cutting off rounds at random. */
        m[k] = NARROW ? __uint_as_float((__float_as_uint(e.m) + (noise & 0xffffu)) & 0xffff0000u) : e.m;
        v[k] = NARROW ? __uint_as_float((__float_as_uint(e.v) + (noise >> 16)) & 0xffff0000u) : e.v;
    }
    put(args.hi + at, hi, there);
    put((uint16_t *)args.lo + at, lo, there);
    put_floats<T>(args.m, m, at, there);
    if (KIND == KIND_ADAMW) {
        put_floats<T>(args.v, v, at, there);
    }
    count_bad(args, bad);
}

/* The largest of the 16 lanes that share a scale. */
static __device__ __forceinline__ uint32_t lanes_max(uint32_t value) {
#pragma unroll
    for (int distance = Q8_LANES / 2; distance > 0; distance /= 2) {
        const uint32_t other = __shfl_xor_sync(0xffffffffu, value, distance);
        value = other > value ? other : value;
    }
    return value;
}

typedef ox_pack<uint8_t, STEP> codes;

/* All lanes stay to the end, because neighbours share a scale; elements past the span count for nothing in it. */
template <int KIND> static __global__ void adam_q8_kernel(adam_args args) {
    const uint64_t at = ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) * STEP, block = at / Q8_BLOCK;
    const uint32_t there = count_at(args, at);
    ox_pack<uint16_t, STEP> hi = {};
    codes lo = {}, m = {}, v = {};
    float grad[STEP] = {};
    uint32_t m_exponent = Q8_OCTAVES_M + 3, v_exponent = Q8_OCTAVES_V + 3;
    if (there > 0) {
        hi = get(args.hi + at, there);
        lo = get((uint8_t *)args.lo + at, there);
        m = get((uint8_t *)args.m + at, there);
        m_exponent = scale_exponent(args.m_scale[block], Q8_OCTAVES_M);
        if (KIND == KIND_ADAMW) {
            v = get((uint8_t *)args.v + at, there);
            v_exponent = scale_exponent(args.v_scale[block], Q8_OCTAVES_V);
        }
        load_grad(grad, args, at, there);
    }
    element all[STEP];
    uint32_t noise[STEP], m_largest = 0, v_largest = 0;
    unsigned bad = 0;
#pragma unroll
    for (int k = 0; k < STEP; k++) {
        element e = {ox_join(hi.at[k], (uint16_t)(lo.at[k] << 8)), decode_m(m.at[k], m_exponent),
                     KIND == KIND_ADAMW ? decode(v.at[k], v_exponent) : 0.0f};
        noise[k] = noise_of(args.keys, (uint32_t)(args.first + at + k));
        advance<KIND>(args.hyper, args.decay, grad[k], &e);
        const bool counts = (uint32_t)k < there;
        bad += !settle<MOMENTS_Q8>(&e) && counts;
        const uint32_t bits = __float_as_uint(e.p) + (noise[k] >> 24);
        lo.at[k] = (uint8_t)(bits >> 8);
        hi.at[k] = upper(bits);
        const uint32_t m_bits = __float_as_uint(e.m) & 0x7fffffffu, v_bits = __float_as_uint(e.v) & 0x7fffffffu;
        m_largest = counts && m_bits > m_largest ? m_bits : m_largest;
        v_largest = counts && v_bits > v_largest ? v_bits : v_largest;
        all[k] = e;
    }
    const uint8_t m_byte = (uint8_t)((lanes_max(m_largest) + Q8_SCALE_ROUND) >> 23);
    const uint8_t v_byte = (uint8_t)((lanes_max(v_largest) + Q8_SCALE_ROUND) >> 23);
    if (there == 0) {
        return;
    }
#pragma unroll
    for (int k = 0; k < STEP; k++) {
        m.at[k] = encode_m(all[k].m, scale_exponent(m_byte, Q8_OCTAVES_M), noise[k] >> 13);
        v.at[k] = encode_v(all[k].v, scale_exponent(v_byte, Q8_OCTAVES_V), noise[k] & 0x7ffffu);
    }
    put(args.hi + at, hi, there);
    put((uint8_t *)args.lo + at, lo, there);
    put((uint8_t *)args.m + at, m, there);
    if (KIND == KIND_ADAMW) {
        put((uint8_t *)args.v + at, v, there);
    }
    if (threadIdx.x % Q8_LANES == 0) {
        args.m_scale[block] = m_byte;
        if (KIND == KIND_ADAMW) {
            args.v_scale[block] = v_byte;
        }
    }
    count_bad(args, bad);
}

/* ---- the operation ---------------------------------------------------------------------------------- */

/* Planes from element `first` on, of a state laid out for elem_count: lo, padded to 4096 bytes, m, v, and of Q8 the
 * scales behind their codes. */
static adam_args args_of(const ox_op_adam *op) {
    static const uint64_t lo_bytes[] = {2, 2, 1}, moment_bytes[] = {4, 2, 1};
    const bool q8 = op->moments == MOMENTS_Q8;
    const uint64_t moment = moment_bytes[op->moments], scales = q8 ? op->elem_count / Q8_BLOCK : 0;
    uint8_t *const state = (uint8_t *)op->state;
    uint8_t *const m = state + (op->elem_count * lo_bytes[op->moments] + 4095) / 4096 * 4096;
    uint8_t *const m_scale = m + op->elem_count * moment, *const v = m_scale + scales;
    uint8_t *const v_scale = v + op->elem_count * moment;
    adam_args args = {};
    args.hi = op->hi + op->first;
    args.lo = state + op->first * lo_bytes[op->moments];
    args.m = m + op->first * moment;
    args.v = v + op->first * moment;
    args.m_scale = m_scale + op->first / Q8_BLOCK;
    args.v_scale = v_scale + op->first / Q8_BLOCK;
    args.grad = (const uint8_t *)op->grad + op->first * (op->grad_bf16 ? 2 : 4);
    args.nonfinite = (unsigned long long *)op->nonfinite;
    args.first = op->first;
    args.count = op->count;
    args.grad_bf16 = op->grad_bf16;
    args.decay = op->decay;
    args.hyper = op->hyper;
    if (op->moments != MOMENTS_F32) {
        uint32_t words[4];
        ox_philox(op->hyper.seed, op->hyper.step, op->stream, words);
        args.keys[0] = words[0];
        args.keys[1] = words[1];
    }
    return args;
}

template <int KIND> static void update(const ox_cuda_queue *queue, const ox_op_adam *op) {
    const adam_args args = args_of(op);
    const uint64_t per_block = OX_BLOCK_THREADS * STEP;
    const ox_launch_shape shape = {(unsigned)((op->count + per_block - 1) / per_block), OX_BLOCK_THREADS, 0};
    if (op->moments == MOMENTS_F32) {
        ox_launch(adam_kernel<KIND, float>, queue, shape, args);
    } else if (op->moments == MOMENTS_BF16) {
        ox_launch(adam_kernel<KIND, ox_bf16>, queue, shape, args);
    } else {
        ox_launch(adam_q8_kernel<KIND>, queue, shape, args);
    }
}

extern "C" ox_status ox_cuda_adam(const ox_cuda_queue *queue, const void *given) {
    const ox_op_adam *const op = (const ox_op_adam *)given;
    OX_ASSERT(op->first % Q8_BLOCK == 0);
    if (op->count == 0) {
        return OX_OK;
    }
    if (op->kind == KIND_ADAMW) {
        update<KIND_ADAMW>(queue, op);
    } else if (op->kind == KIND_LION) {
        update<KIND_LION>(queue, op);
    } else {
        update<KIND_SGD>(queue, op);
    }
    return OX_OK;
}

/* ---- the norm --------------------------------------------------------------------------------------- */

enum { NORM_BLOCK = 2048, NORM_LANES = 16 };

/* Sixteen lanes have a block of elements: each a running sum of every sixteenth, which are then added in pairs. */
template <typename T> static __global__ void square_sums_kernel(double *partials, const T *grad, uint64_t count) {
    const uint64_t block = ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) / NORM_LANES;
    const uint64_t begin = block * NORM_BLOCK, past = begin + NORM_BLOCK < count ? begin + NORM_BLOCK : count;
    double sum = 0.0;
    for (uint64_t i = begin + threadIdx.x % NORM_LANES; i < past; i += NORM_LANES) {
        const double g = (double)ox_widen(grad[i]);
        sum = __dadd_rn(sum, __dmul_rn(g, g));
    }
#pragma unroll
    for (unsigned width = NORM_LANES / 2; width > 0; width /= 2) {
        sum = __dadd_rn(sum, __shfl_down_sync(0xffffffffu, sum, width));
    }
    if (threadIdx.x % NORM_LANES == 0 && begin < count) {
        partials[block] = sum;
    }
}

extern "C" ox_status ox_cuda_square_sums(const ox_cuda_queue *queue, const void *given) {
    const ox_op_square_sums *const op = (const ox_op_square_sums *)given;
    const uint64_t blocks = (op->count + NORM_BLOCK - 1) / NORM_BLOCK, per_grid_block = OX_BLOCK_THREADS / NORM_LANES;
    const ox_launch_shape shape = {(unsigned)((blocks + per_grid_block - 1) / per_grid_block), OX_BLOCK_THREADS, 0};
    if (op->count == 0) {
        return OX_OK;
    }
    if (op->grad_bf16) {
        ox_launch(square_sums_kernel<ox_bf16>, queue, shape, op->partials, (const ox_bf16 *)op->grad, op->count);
    } else {
        ox_launch(square_sums_kernel<float>, queue, shape, op->partials, (const float *)op->grad, op->count);
    }
    return OX_OK;
}
