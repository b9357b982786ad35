/* The optimizer: base/optim_element.h on every element, to the bit what a processor does. This file is compiled without
 * fused multiply-adds of the compiler's choice, with correctly rounded division and square root. A test compares the
 * two with no tolerance. What an update moves at the least is what cpu_optim/optim.h says (ox_update_traffic_of); a sum
 * of squares reads its gradient. */
#include "base/bytes.h"
#include "base/optim_element.h"
#include "kernels/cuda/kernel.cuh"

enum {
    STEP = 4,                      /* elements of a thread */
    Q8_LANES = OX_Q8_BLOCK / STEP, /* neighbouring lanes that share a scale */
};

struct adam_args {
    uint16_t *hi;
    void *lo, *m, *v;
    uint8_t *m_scale, *v_scale;
    const void *grad;
    unsigned long long *nonfinite;
    uint64_t first, count;
    bool grad_bf16, decay;
    uint32_t keys[2];
    ox_optim_hyper hyper;
};

/* How many elements a thread has: a span may end anywhere. */
static __device__ __forceinline__ uint32_t count_at(const adam_args &args, uint64_t at) {
    return at >= args.count ? 0 : args.count - at < STEP ? (uint32_t)(args.count - at) : (uint32_t)STEP;
}

/* get() reads the elements from `from` on and takes 0 for those past the span; put() writes only those within it. */
template <typename T>
static __device__ __forceinline__ ox_pack<T, STEP> get(const T *from, uint32_t there) {
    if (there == STEP) {
        return ox_get<T, STEP>(from);
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
        ox_put(to, pack);
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
    ox_narrow_pack(in, &pack);
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
    if (bad > 0) { /* integers: the order of these additions does not matter */
        atomicAdd(args.nonfinite, (unsigned long long)bad);
    }
}

/* Rounds to bfloat16 at random: noise is added below the last bit that stays, the rest is cut off. */
static __device__ __forceinline__ float cut(float value, uint32_t noise) {
    return ox_f32_from_bits((ox_f32_bits(value) + noise) & 0xffff0000u);
}

/* fp32 moments, and bfloat16 ones. */
template <ox_optim_kind KIND, typename T> static __global__ void adam_kernel(adam_args args) {
    constexpr ox_moments MOMENTS = sizeof(T) == 2 ? OX_MOMENTS_BF16 : OX_MOMENTS_F32;
    constexpr bool NARROW = MOMENTS == OX_MOMENTS_BF16;
    const uint64_t at = ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) * STEP;
    const uint32_t there = count_at(args, at);
    if (there == 0) {
        return;
    }
    ox_pack<uint16_t, STEP> hi = get(args.hi + at, there), lo = get((uint16_t *)args.lo + at, there);
    float m[STEP], v[STEP] = {}, grad[STEP];
    unsigned bad = 0;
    get_floats<T>(m, args.m, at, there);
    if (ox_optim_has_v(KIND)) {
        get_floats<T>(v, args.v, at, there);
    }
    load_grad(grad, args, at, there);
#pragma unroll
    for (int k = 0; k < STEP; k++) {
        const uint32_t noise = NARROW ? ox_noise(args.keys, (uint32_t)(args.first + at + k)) : 0;
        ox_element e = {ox_plane_join(hi.at[k], lo.at[k]), m[k], v[k]};
        ox_element_update(KIND, &args.hyper, args.decay, grad[k], &e);
        bad += !ox_element_check(MOMENTS, &e) && (uint32_t)k < there;
        hi.at[k] = ox_plane_hi(e.p);
        lo.at[k] = ox_plane_lo(e.p);
        m[k] = NARROW ? cut(e.m, ox_noise_bf16_m(noise)) : e.m;
        v[k] = NARROW ? cut(e.v, ox_noise_bf16_v(noise)) : e.v;
    }
    put(args.hi + at, hi, there);
    put((uint16_t *)args.lo + at, lo, there);
    put_floats<T>(args.m, m, at, there);
    if (ox_optim_has_v(KIND)) {
        put_floats<T>(args.v, v, at, there);
    }
    count_bad(args, bad);
}

/* The largest value among the lanes that share a scale. */
static __device__ __forceinline__ uint32_t lanes_max(uint32_t value) {
#pragma unroll
    for (int distance = Q8_LANES / 2; distance > 0; distance /= 2) {
        const uint32_t other = __shfl_xor_sync(0xffffffffu, value, distance);
        value = other > value ? other : value;
    }
    return value;
}

typedef ox_pack<uint8_t, STEP> codes;

/* All lanes stay to the end, because neighbours share a scale; elements past the span do not count for it. */
template <ox_optim_kind KIND> static __global__ void adam_q8_kernel(adam_args args) {
    const uint64_t at = ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) * STEP, block = at / OX_Q8_BLOCK;
    const uint32_t there = count_at(args, at);
    ox_pack<uint16_t, STEP> hi = {};
    codes lo = {}, m = {}, v = {};
    float grad[STEP] = {};
    uint32_t m_exponent = OX_Q8_OCTAVES_M + 3, v_exponent = OX_Q8_OCTAVES_V + 3;
    if (there > 0) {
        hi = get(args.hi + at, there);
        lo = get((uint8_t *)args.lo + at, there);
        m = get((uint8_t *)args.m + at, there);
        m_exponent = ox_q8_scale_exponent(args.m_scale[block], OX_Q8_OCTAVES_M);
        if (ox_optim_has_v(KIND)) {
            v = get((uint8_t *)args.v + at, there);
            v_exponent = ox_q8_scale_exponent(args.v_scale[block], OX_Q8_OCTAVES_V);
        }
        load_grad(grad, args, at, there);
    }
    ox_element all[STEP];
    uint32_t noise[STEP], m_largest = 0, v_largest = 0;
    unsigned bad = 0;
#pragma unroll
    for (int k = 0; k < STEP; k++) {
        ox_element e = {ox_master24_join(hi.at[k], lo.at[k]), ox_q8_decode_m(m.at[k], m_exponent),
                        ox_optim_has_v(KIND) ? ox_q8_decode(v.at[k], v_exponent) : 0.0f};
        noise[k] = ox_noise(args.keys, (uint32_t)(args.first + at + k));
        ox_element_update(KIND, &args.hyper, args.decay, grad[k], &e);
        const bool counts = (uint32_t)k < there;
        bad += !ox_element_check(OX_MOMENTS_Q8, &e) && counts;
        ox_master24_split(e.p, ox_noise_q8_master(noise[k]), &hi.at[k], &lo.at[k]);
        const uint32_t m_bits = ox_f32_bits(e.m) & 0x7fffffffu, v_bits = ox_f32_bits(e.v) & 0x7fffffffu;
        m_largest = counts && m_bits > m_largest ? m_bits : m_largest;
        v_largest = counts && v_bits > v_largest ? v_bits : v_largest;
        all[k] = e;
    }
    const uint8_t m_byte = ox_q8_scale_byte(lanes_max(m_largest)), v_byte = ox_q8_scale_byte(lanes_max(v_largest));
    if (there == 0) {
        return;
    }
#pragma unroll
    for (int k = 0; k < STEP; k++) {
        const uint32_t m_new = ox_q8_scale_exponent(m_byte, OX_Q8_OCTAVES_M);
        const uint32_t v_new = ox_q8_scale_exponent(v_byte, OX_Q8_OCTAVES_V);
        m.at[k] = ox_q8_encode_m(all[k].m, m_new, ox_noise_q8_m(noise[k]));
        v.at[k] = ox_q8_encode_v(all[k].v, v_new, ox_noise_q8_v(noise[k]));
    }
    put(args.hi + at, hi, there);
    put((uint8_t *)args.lo + at, lo, there);
    put((uint8_t *)args.m + at, m, there);
    if (ox_optim_has_v(KIND)) {
        put((uint8_t *)args.v + at, v, there);
    }
    if (threadIdx.x % Q8_LANES == 0) {
        args.m_scale[block] = m_byte;
        if (ox_optim_has_v(KIND)) {
            args.v_scale[block] = v_byte;
        }
    }
    count_bad(args, bad);
}

/* ---- the operation ---------------------------------------------------------------------------------- */

static adam_args args_of(const ox_op_adam *op) {
    const ox_state_planes planes = ox_state_planes_at(op->format, op->state, op->elem_count, op->first);
    const ox_grad_dtype grad_dtype = op->grad_bf16 ? OX_GRAD_BF16 : OX_GRAD_F32;
    adam_args args = {};
    args.hi = op->hi + op->first;
    args.lo = planes.lo;
    args.m = planes.m;
    args.v = planes.v;
    args.m_scale = planes.m_scale;
    args.v_scale = planes.v_scale;
    args.grad = (const uint8_t *)op->grad + op->first * ox_grad_bytes(grad_dtype);
    args.nonfinite = (unsigned long long *)op->nonfinite;
    args.first = op->origin + op->first;
    args.count = op->count;
    args.grad_bf16 = op->grad_bf16;
    args.decay = op->decay;
    args.hyper = op->hyper;
    ox_noise_keys(&op->hyper, op->stream, args.keys);
    return args;
}

template <ox_optim_kind KIND> static void update(const ox_cuda_queue *queue, const ox_op_adam *op) {
    const adam_args args = args_of(op);
    const uint64_t per_block = OX_BLOCK_THREADS * STEP;
    const ox_launch_shape shape = {(unsigned)ox_div_up(op->count, per_block), OX_BLOCK_THREADS, 0};
    switch (op->format.moments) {
    case OX_MOMENTS_BF16:
        return ox_launch(adam_kernel<KIND, ox_bf16>, queue, shape, args);
    case OX_MOMENTS_Q8:
        return ox_launch(adam_q8_kernel<KIND>, queue, shape, args);
    default:
        return ox_launch(adam_kernel<KIND, float>, queue, shape, args);
    }
}

struct average_args {
    const uint16_t *hi;
    const void *lo;
    float *average;
    uint64_t count;
    float share;
    bool narrow; /* the master has 24 bits */
};

/* Moves the averages towards the new masters, after the update of the same elements. */
static __global__ void average_kernel(average_args args) {
    const uint64_t at = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at < args.count) {
        const float master = args.narrow ? ox_master24_join(args.hi[at], ((const uint8_t *)args.lo)[at])
                                         : ox_plane_join(args.hi[at], ((const uint16_t *)args.lo)[at]);
        args.average[at] = ox_average_update(args.average[at], master, args.share);
    }
}

static void update_averages(const ox_cuda_queue *queue, const ox_op_adam *op) {
    const ox_state_planes planes = ox_state_planes_at(op->format, op->state, op->elem_count, op->first);
    const average_args args = {op->hi + op->first, planes.lo, planes.average, op->count, op->hyper.average_share,
                               op->format.moments == OX_MOMENTS_Q8};
    const ox_launch_shape shape = {(unsigned)ox_div_up(op->count, (uint64_t)OX_BLOCK_THREADS), OX_BLOCK_THREADS, 0};
    ox_launch(average_kernel, queue, shape, args);
}

extern "C" ox_status ox_cuda_adam(const ox_cuda_queue *queue, const void *given) {
    const ox_op_adam *const op = (const ox_op_adam *)given;
    OX_ASSERT(op->first % OX_Q8_BLOCK == 0 && op->format.kind < OX_OPTIM_KIND_COUNT);
    if (op->count == 0) {
        return OX_OK;
    }
    switch (op->format.kind) {
    case OX_OPTIM_LION:
        update<OX_OPTIM_LION>(queue, op);
        break;
    case OX_OPTIM_SGD:
        update<OX_OPTIM_SGD>(queue, op);
        break;
    default:
        update<OX_OPTIM_ADAMW>(queue, op);
    }
    if (op->format.averages) {
        update_averages(queue, op);
    }
    return OX_OK;
}

/* ---- the norm --------------------------------------------------------------------------------------- */

enum { NORM_LANES = 16 };

/* Sixteen lanes share a group of elements: each sums every sixteenth of it, and the sums are added in pairs. */
template <typename T> static __global__ void square_sums_kernel(double *partials, const T *grad, uint64_t count) {
    const uint64_t block = ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) / NORM_LANES;
    const uint64_t begin = block * OX_GROUP_ELEMS, end = begin + OX_GROUP_ELEMS, past = end < count ? end : count;
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
    const uint64_t groups = ox_div_up(op->count, OX_GROUP_ELEMS), per_block = OX_BLOCK_THREADS / NORM_LANES;
    const ox_launch_shape shape = {(unsigned)ox_div_up(groups, per_block), OX_BLOCK_THREADS, 0};
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
