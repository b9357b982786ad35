/* Plain loops that others are compared with. Each is written once and compiled for every vector width. */
#include "tools/bench/bench.h"

#include "base/assert.h"

#include <math.h>
#include <string.h>

enum { LINE = 64 };

typedef uint64_t line_of_words __attribute__((vector_size(LINE), aligned(1), may_alias));

static inline __attribute__((always_inline)) uint64_t sum_of(line_of_words sum) {
    return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

/* ---- the planes of a parameter ---------------------------------------------------------------------------- */

/* Reads and writes `lines` cache lines of a plane. */
static inline __attribute__((always_inline)) void touch(unsigned char *plane, uint64_t block, unsigned lines,
                                                        uint64_t zero) {
    line_of_words *const words = (line_of_words *)(plane + block * lines * LINE);
    for (unsigned i = 0; i < lines; i++) {
        words[i] = words[i] + zero;
    }
}

/* Works on 64 parameters at a time, because each plane holds whole lines of them. */
static inline __attribute__((always_inline)) uint64_t stream_blocks(const struct ox_bench_loop *loop,
                                                                    struct ox_range range, unsigned lo_lines,
                                                                    unsigned moment_lines, unsigned grad_lines) {
    const struct ox_bench_planes planes = loop->planes;
    const uint64_t zero = loop->zero;
    const bool has_v = planes.v != NULL, scales = planes.m_scale != NULL;
    line_of_words sum = {0};
    for (uint64_t block = range.begin / 64; block < range.end / 64; block++) {
        const line_of_words *const grads = (const void *)(planes.grad + block * grad_lines * LINE);
        for (unsigned i = 0; i < grad_lines; i++) {
            sum += grads[i];
        }
        touch(planes.hi, block, 2, zero);
        touch(planes.lo, block, lo_lines, zero);
        touch(planes.m, block, moment_lines, zero);
        if (has_v) {
            touch(planes.v, block, moment_lines, zero);
        }
        if (scales) {
            planes.m_scale[block] = (uint8_t)(planes.m_scale[block] + zero);
        }
        if (scales && has_v) {
            planes.v_scale[block] = (uint8_t)(planes.v_scale[block] + zero);
        }
    }
    return sum_of(sum);
}

/* Passes line counts as constants, so that the compiler unrolls the loops over them. */
static inline __attribute__((always_inline)) uint64_t stream(const struct ox_bench_loop *loop, struct ox_range range) {
    const bool wide = loop->planes.grad_lines == 4;
    if (loop->planes.moment_lines == 4) {
        return wide ? stream_blocks(loop, range, 2, 4, 4) : stream_blocks(loop, range, 2, 4, 2);
    }
    if (loop->planes.moment_lines == 2) {
        return wide ? stream_blocks(loop, range, 2, 2, 4) : stream_blocks(loop, range, 2, 2, 2);
    }
    return wide ? stream_blocks(loop, range, 1, 1, 4) : stream_blocks(loop, range, 1, 1, 2);
}

/* ---- three passes ----------------------------------------------------------------------------------------- */

static inline __attribute__((always_inline)) void scale(float *restrict grad, float by, struct ox_range range) {
    for (uint64_t i = range.begin; i < range.end; i++) {
        grad[i] *= by;
    }
}

static inline __attribute__((always_inline)) void update(const struct ox_bench_loop *loop, struct ox_range range) {
    const struct ox_optim_hyper hyper = *loop->hyper;
    float *restrict const p = loop->p, *restrict const m = loop->m, *restrict const v = loop->v;
    const float *restrict const grad = loop->grad;
    for (uint64_t i = range.begin; i < range.end; i++) {
        const float g = grad[i];
        m[i] = fmaf(hyper.beta1, m[i], hyper.one_minus_beta1 * g);
        v[i] = fmaf(hyper.beta2, v[i], hyper.one_minus_beta2 * (g * g));
        const float u = m[i] * hyper.m_scale / (sqrtf(v[i] * hyper.v_scale) + hyper.eps);
        p[i] = fmaf(-hyper.learning_rate, u, p[i] * hyper.decay_factor);
    }
}

static inline __attribute__((always_inline)) void round_all(uint16_t *restrict weights, const float *restrict p,
                                                            struct ox_range range) {
    for (uint64_t i = range.begin; i < range.end; i++) {
        uint32_t bits;
        memcpy(&bits, &p[i], sizeof bits);
        weights[i] = (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    }
}

/* ---- plain memory ----------------------------------------------------------------------------------------- */

static inline __attribute__((always_inline)) uint64_t read_lines(const unsigned char *from, struct ox_range range) {
    const line_of_words *const lines = (const void *)from;
    line_of_words sums[4] = {{0}};
    for (uint64_t i = range.begin; i < range.end; i += 4) {
        for (unsigned k = 0; k < 4; k++) {
            sums[k] += lines[i + k];
        }
    }
    return sum_of(sums[0] + sums[1] + sums[2] + sums[3]);
}

static inline __attribute__((always_inline)) void write_lines(unsigned char *to, uint64_t zero, struct ox_range range) {
    line_of_words *const lines = (void *)to;
    const line_of_words value = {zero + 1, zero, zero, zero, zero, zero, zero, zero};
    for (uint64_t i = range.begin; i < range.end; i++) {
        lines[i] = value;
    }
}

/* Adding zero keeps the compiler from calling memcpy, which may bypass the caches. */
static inline __attribute__((always_inline)) void copy_lines(unsigned char *to, const unsigned char *from,
                                                             uint64_t zero, struct ox_range range) {
    line_of_words *const targets = (void *)to;
    const line_of_words *const sources = (const void *)from;
    for (uint64_t i = range.begin; i < range.end; i++) {
        targets[i] = sources[i] + zero;
    }
}

/* ---- for each set of vectors ------------------------------------------------------------------------------ */

static inline __attribute__((always_inline)) uint64_t run(const struct ox_bench_loop *loop, struct ox_range range) {
    switch (loop->kind) {
    case OX_BENCH_LOOP_STREAM:
        return stream(loop, range);
    case OX_BENCH_LOOP_SCALE:
        scale(loop->grad, loop->zero == 0 ? 1.0f : 0.5f, range);
        return 0;
    case OX_BENCH_LOOP_UPDATE:
        update(loop, range);
        return 0;
    case OX_BENCH_LOOP_ROUND:
        round_all(loop->weights, loop->p, range);
        return 0;
    case OX_BENCH_LOOP_READ:
        return read_lines(loop->from, range);
    case OX_BENCH_LOOP_WRITE:
        write_lines(loop->to, loop->zero, range);
        return 0;
    case OX_BENCH_LOOP_COPY:
        copy_lines(loop->to, loop->from, loop->zero, range);
        return 0;
    }
    OX_ASSERT(!"kind of loop");
    return 0;
}

static uint64_t run_plain(const struct ox_bench_loop *loop, struct ox_range range) {
    return run(loop, range);
}

#if defined(__x86_64__)
#if defined(__clang__)
#define TARGET_AVX512 "avx512f,avx512bw,avx512dq,avx512vl,fma"
#else
#define TARGET_AVX512 "avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512"
#endif

static __attribute__((target(TARGET_AVX512))) uint64_t run_avx512(const struct ox_bench_loop *loop,
                                                                  struct ox_range range) {
    return run(loop, range);
}

static __attribute__((target("avx2,fma"))) uint64_t run_avx2(const struct ox_bench_loop *loop, struct ox_range range) {
    return run(loop, range);
}
#endif

uint64_t ox_bench_loop_run(const struct ox_bench_loop *loop, struct ox_range range) {
#if defined(__x86_64__)
    if (ox_isa_available(OX_ISA_AVX512)) {
        return run_avx512(loop, range);
    }
    if (ox_isa_available(OX_ISA_AVX2)) {
        return run_avx2(loop, range);
    }
#endif
    return run_plain(loop, range);
}
