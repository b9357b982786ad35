/* Which variant runs, decided by the processor at run time, its division over threads, and where a state's
 * planes lie. */
#include "cpu_optim/variants.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/prng/prng.h"

#include <math.h>
#include <stdatomic.h>
#include <stddef.h>

/* Shares end on this many elements, so that no two threads write one cache line of any plane when the planes
 * are aligned. The update of an element (Q8: of a block) does not depend on its neighbours: nor do the bits. */
enum { GRAIN = 4096, LAYOUT_GRAIN = 2048 };

struct shares {
    struct ox_state_format format;
    const struct ox_update_span *span;
    const struct ox_adam_hyper *hyper;
    enum ox_isa isa;
    _Atomic uint64_t bad_count;
};

static void run_share(void *context, uint32_t idx, uint32_t count) {
    struct shares *const shares = context;
    const struct ox_range range = ox_pool_range(shares->span->count, GRAIN, idx, count);
    const struct ox_update_span part = ox_update_part(shares->format, shares->span, range.begin, range.end);
    const uint64_t bad_count = ox_update_run(shares->isa, shares->format, &part, shares->hyper);
    if (bad_count > 0) {
        atomic_fetch_add(&shares->bad_count, bad_count);
    }
}

static const struct ox_state_format adamw_f32 = {OX_OPTIM_ADAMW, OX_MOMENTS_F32};

static struct ox_update_span span_of_adam(const struct ox_adam_span *span) {
    return (struct ox_update_span){
        .hi = span->hi,
        .hi_out = span->hi_out,
        .state = {.lo = span->lo, .m = span->m, .v = span->v},
        .grad = span->grad,
        .grad_dtype = span->grad_dtype,
        .decay = span->decay,
        .count = span->count,
    };
}

static uint64_t moment_bytes(enum ox_moments moments) {
    return moments == OX_MOMENTS_F32 ? sizeof(float) : moments == OX_MOMENTS_BF16 ? sizeof(uint16_t) : 1;
}

static uint64_t lo_bytes(enum ox_moments moments) {
    return moments == OX_MOMENTS_Q8 ? 1 : sizeof(uint16_t);
}

static void *at(void *plane, uint64_t bytes) {
    return plane == NULL ? NULL : (unsigned char *)plane + bytes;
}

static struct ox_state_planes planes_from(enum ox_moments moments, struct ox_state_planes planes, uint64_t begin) {
    return (struct ox_state_planes){
        .lo = at(planes.lo, begin * lo_bytes(moments)),
        .m = at(planes.m, begin * moment_bytes(moments)),
        .v = at(planes.v, begin * moment_bytes(moments)),
        .m_scale = at(planes.m_scale, begin / OX_Q8_BLOCK),
        .v_scale = at(planes.v_scale, begin / OX_Q8_BLOCK),
    };
}

/* ---- names and choice ------------------------------------------------------------------------------- */

const char *ox_isa_name(enum ox_isa isa) {
    static const char *const names[OX_ISA_COUNT] = {"scalar", "avx2", "avx512", "neon"};
    return (unsigned)isa < OX_ISA_COUNT ? names[isa] : "unknown";
}

const char *ox_optim_kind_name(enum ox_optim_kind kind) {
    static const char *const names[OX_OPTIM_KIND_COUNT] = {"adamw", "lion", "sgd"};
    return (unsigned)kind < OX_OPTIM_KIND_COUNT ? names[kind] : "unknown";
}

const char *ox_moments_name(enum ox_moments moments) {
    static const char *const names[OX_MOMENTS_COUNT] = {"f32", "bf16", "q8"};
    return (unsigned)moments < OX_MOMENTS_COUNT ? names[moments] : "unknown";
}

bool ox_optim_has_v(enum ox_optim_kind kind) {
    return kind == OX_OPTIM_ADAMW;
}

bool ox_isa_available(enum ox_isa isa) {
    switch (isa) {
    case OX_ISA_SCALAR:
        return true;
#if defined(__x86_64__)
    case OX_ISA_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case OX_ISA_AVX512:
        return ox_isa_available(OX_ISA_AVX2) && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl");
#elif defined(__aarch64__)
    case OX_ISA_NEON:
        return true;
#endif
    default:
        return false;
    }
}

enum ox_isa ox_isa_best(void) {
    static const enum ox_isa best_first[] = {OX_ISA_AVX512, OX_ISA_AVX2, OX_ISA_NEON};
    for (unsigned i = 0; i < sizeof best_first / sizeof *best_first; i++) {
        if (ox_isa_available(best_first[i])) {
            return best_first[i];
        }
    }
    return OX_ISA_SCALAR;
}

/* ---- layout ----------------------------------------------------------------------------------------- */

struct ox_state_layout ox_state_layout_of(struct ox_state_format format, uint64_t count) {
    OX_ASSERT(count % LAYOUT_GRAIN == 0);
    const uint64_t plane = count * moment_bytes(format.moments);
    const uint64_t scales = format.moments == OX_MOMENTS_Q8 ? count / OX_Q8_BLOCK : 0;
    struct ox_state_layout layout;
    layout.lo_bytes = ox_align_up(count * lo_bytes(format.moments), OX_IO_ALIGN_BYTES);
    layout.m_offset = layout.lo_bytes;
    layout.m_scale_offset = layout.m_offset + plane;
    layout.v_offset = layout.m_scale_offset + scales;
    layout.v_scale_offset = layout.v_offset + (ox_optim_has_v(format.kind) ? plane : 0);
    const uint64_t end = layout.v_scale_offset + (ox_optim_has_v(format.kind) ? scales : 0);
    layout.bytes = ox_align_up(end, OX_IO_ALIGN_BYTES);
    return layout;
}

struct ox_state_planes ox_state_planes_at(struct ox_state_format format, void *state, uint64_t count,
                                          uint64_t begin) {
    const struct ox_state_layout layout = ox_state_layout_of(format, count);
    const bool q8 = format.moments == OX_MOMENTS_Q8, has_v = ox_optim_has_v(format.kind);
    OX_ASSERT(begin <= count && (!q8 || begin % OX_Q8_BLOCK == 0));
    const struct ox_state_planes planes = {
        .lo = state,
        .m = at(state, layout.m_offset),
        .v = has_v ? at(state, layout.v_offset) : NULL,
        .m_scale = q8 ? at(state, layout.m_scale_offset) : NULL,
        .v_scale = q8 && has_v ? at(state, layout.v_scale_offset) : NULL,
    };
    return planes_from(format.moments, planes, begin);
}

struct ox_update_traffic ox_update_traffic_of(struct ox_state_format format, enum ox_grad_dtype grad_dtype) {
    const double scale = format.moments == OX_MOMENTS_Q8 ? 1.0 / OX_Q8_BLOCK : 0.0;
    const double moment = (double)moment_bytes(format.moments) + scale;
    const double kept = sizeof(uint16_t) + (double)lo_bytes(format.moments) +
                        (ox_optim_has_v(format.kind) ? 2.0 * moment : moment);
    return (struct ox_update_traffic){.read = kept + (double)ox_grad_bytes(grad_dtype), .written = kept};
}

/* ---- the update ----------------------------------------------------------------------------------- */

void ox_adam_hyper_init(const struct ox_adam_settings *settings, struct ox_adam_hyper *out) {
    OX_ASSERT(settings->step >= 1);
    OX_ASSERT(settings->beta1 >= 0.0 && settings->beta1 < 1.0);
    OX_ASSERT(settings->beta2 >= 0.0 && settings->beta2 < 1.0);
    const double step = (double)settings->step;
    *out = (struct ox_adam_hyper){
        .beta1 = (float)settings->beta1,
        .beta2 = (float)settings->beta2,
        .eps = (float)settings->eps,
        .learning_rate = (float)settings->learning_rate,
        .one_minus_beta1 = (float)(1.0 - settings->beta1),
        .one_minus_beta2 = (float)(1.0 - settings->beta2),
        .m_scale = (float)(1.0 / (1.0 - pow(settings->beta1, step))),
        .v_scale = (float)(1.0 / (1.0 - pow(settings->beta2, step))),
        .decay_factor = (float)(1.0 - settings->learning_rate * settings->weight_decay),
        .grad_scale = (float)settings->grad_scale,
        .seed = settings->seed,
        .step = settings->step,
    };
}

struct ox_update_span ox_update_part(struct ox_state_format format, const struct ox_update_span *span,
                                     uint64_t begin, uint64_t end) {
    struct ox_update_span part = *span;
    part.hi += begin;
    part.hi_out += begin;
    part.state = planes_from(format.moments, span->state, begin);
    part.grad = ox_grad_at(span->grad, span->grad_dtype, begin);
    part.first += begin;
    part.count = end - begin;
    return part;
}

uint64_t ox_update_run(enum ox_isa isa, struct ox_state_format format, const struct ox_update_span *span,
                       const struct ox_adam_hyper *hyper) {
    OX_ASSERT(ox_isa_available(isa));
    struct ox_update_job job = {.format = format, .span = *span, .hyper = hyper};
    if (format.moments != OX_MOMENTS_F32) {
        uint32_t words[4];
        ox_philox(hyper->seed, hyper->step, span->stream, words);
        job.noise_keys[0] = words[0];
        job.noise_keys[1] = words[1];
    }
    switch (isa) {
#if defined(__x86_64__)
    case OX_ISA_AVX2:
        return ox_update_avx2(&job);
    case OX_ISA_AVX512:
        return ox_update_avx512(&job);
#elif defined(__aarch64__)
    case OX_ISA_NEON:
        return ox_update_neon(&job);
#endif
    default:
        return ox_update_scalar(&job);
    }
}

uint64_t ox_update_run_pool(struct ox_pool *pool, enum ox_isa isa, struct ox_state_format format,
                            const struct ox_update_span *span, const struct ox_adam_hyper *hyper) {
    struct shares shares = {.format = format, .span = span, .hyper = hyper, .isa = isa};
    ox_pool_run(pool, run_share, &shares);
    return atomic_load(&shares.bad_count);
}

uint64_t ox_adam_run(enum ox_isa isa, const struct ox_adam_span *span, const struct ox_adam_hyper *hyper) {
    const struct ox_update_span all = span_of_adam(span);
    return ox_update_run(isa, adamw_f32, &all, hyper);
}

uint64_t ox_adam_run_pool(struct ox_pool *pool, enum ox_isa isa, const struct ox_adam_span *span,
                          const struct ox_adam_hyper *hyper) {
    const struct ox_update_span all = span_of_adam(span);
    return ox_update_run_pool(pool, isa, adamw_f32, &all, hyper);
}
