/* Which variant runs, decided by the processor at run time, and its division over threads. */
#include "cpu_optim/variants.h"

#include "base/assert.h"

#include <math.h>
#include <stdatomic.h>

/* Shares end on this many elements, so that no two threads write one cache line of any plane when the planes
 * are aligned. The update of an element does not depend on its neighbours: the bits do not depend on it. */
enum { GRAIN = 4096 };

struct shares {
    const struct ox_adam_span *span;
    const struct ox_adam_hyper *hyper;
    enum ox_isa isa;
    _Atomic uint64_t bad_count;
};

static void run_share(void *context, uint32_t idx, uint32_t count) {
    struct shares *const shares = context;
    const struct ox_range range = ox_pool_range(shares->span->count, GRAIN, idx, count);
    const struct ox_adam_span part = ox_adam_part(shares->span, range.begin, range.end);
    const uint64_t bad_count = ox_adam_run(shares->isa, &part, shares->hyper);
    if (bad_count > 0) {
        atomic_fetch_add(&shares->bad_count, bad_count);
    }
}

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
    };
}

const char *ox_isa_name(enum ox_isa isa) {
    static const char *const names[OX_ISA_COUNT] = {"scalar", "avx2", "avx512", "neon"};
    return (unsigned)isa < OX_ISA_COUNT ? names[isa] : "unknown";
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

uint64_t ox_adam_run(enum ox_isa isa, const struct ox_adam_span *span, const struct ox_adam_hyper *hyper) {
    OX_ASSERT(ox_isa_available(isa));
    switch (isa) {
#if defined(__x86_64__)
    case OX_ISA_AVX2:
        return ox_adam_avx2(span, hyper);
    case OX_ISA_AVX512:
        return ox_adam_avx512(span, hyper);
#elif defined(__aarch64__)
    case OX_ISA_NEON:
        return ox_adam_neon(span, hyper);
#endif
    default:
        return ox_adam_scalar(span, hyper);
    }
}

uint64_t ox_adam_run_pool(struct ox_pool *pool, enum ox_isa isa, const struct ox_adam_span *span,
                          const struct ox_adam_hyper *hyper) {
    struct shares shares = {.span = span, .hyper = hyper, .isa = isa};
    ox_pool_run(pool, run_share, &shares);
    return atomic_load(&shares.bad_count);
}
