/* Which variant runs, decided by the processor at run time, and its division over threads. */
#include "cpu_optim/variants.h"

#include "base/assert.h"
#include "base/isa.h"
#include "base/optim_element.h"

#include <pthread.h>
#include <stdatomic.h>

/* Shares end on this many elements, so that no two threads write one cache line of any plane when the planes
 * are aligned. The update of an element (Q8: of a block) does not depend on its neighbours: nor do the bits. */
enum { GRAIN = 4096, AVERAGE_ELEMS = 512 };

struct shares {
    struct ox_state_format format;
    const struct ox_update_span *span;
    const struct ox_optim_hyper *hyper;
    enum ox_isa isa;
    _Atomic uint64_t bad_count;
    pthread_mutex_t lock; /* of the span's sums */
};

static void run_share(void *context, uint32_t idx, uint32_t count) {
    struct shares *const shares = context;
    const struct ox_range range = ox_pool_range(shares->span->count, GRAIN, idx, count);
    struct ox_update_span part = ox_update_part(shares->format, shares->span, range.begin, range.end);
    struct ox_update_sums sums = {0};
    part.sums = part.sums == NULL ? NULL : &sums;
    const uint64_t bad_count = ox_update_run(shares->isa, shares->format, &part, shares->hyper);
    if (bad_count > 0) {
        atomic_fetch_add(&shares->bad_count, bad_count);
    }
    if (part.sums != NULL) {
        pthread_mutex_lock(&shares->lock);
        ox_update_sums_add(shares->span->sums, &sums);
        pthread_mutex_unlock(&shares->lock);
    }
}

/* ---- names and choice ------------------------------------------------------------------------------- */

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
        return ox_cpu_has_avx2();
    case OX_ISA_AVX512:
        return ox_cpu_has_avx512();
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

enum ox_status ox_isa_pick(const char *name, enum ox_isa *out) {
    *out = ox_isa_best();
    for (unsigned isa = 0; isa < OX_ISA_COUNT; isa++) {
        if (strcmp(name, ox_isa_name(isa)) == 0) {
            *out = isa;
        }
    }
    if (!ox_isa_available(*out)) {
        return ox_fail(OX_E_CONFIG, "--isa %s: this machine lacks these instructions; its widest are %s", name,
                       ox_isa_name(ox_isa_best()));
    }
    return OX_OK;
}

struct ox_update_traffic ox_update_traffic_of(struct ox_state_format format, enum ox_grad_dtype grad_dtype) {
    const uint32_t block = ox_scale_block_elems(format.moments);
    const double moment = (double)ox_moment_bytes(format.moments) + (block > 0 ? 1.0 / block : 0.0);
    const double kept = OX_HI_BYTES + (double)ox_lo_bytes(format.moments) +
                        (ox_optim_has_v(format.kind) ? 2.0 * moment : moment) +
                        (format.averages ? (double)sizeof(float) : 0.0);
    return (struct ox_update_traffic){.read = kept + (double)ox_grad_bytes(grad_dtype), .written = kept};
}

/* ---- the update ----------------------------------------------------------------------------------- */

struct ox_update_span ox_update_part(struct ox_state_format format, const struct ox_update_span *span,
                                     uint64_t begin, uint64_t end) {
    struct ox_update_span part = *span;
    part.hi += begin;
    part.hi_out += begin;
    part.state = ox_state_planes_skip(format.moments, span->state, begin);
    if (span->replaced_hi != NULL) {
        part.replaced_hi += begin;
        part.replaced_state = ox_state_planes_skip(format.moments, span->replaced_state, begin);
    }
    part.grad = ox_grad_at(span->grad, span->grad_dtype, begin);
    part.first += begin;
    part.count = end - begin;
    return part;
}

static void save_plane(void *to, const void *from, uint64_t bytes) {
    if (from != NULL) { /* the format has such a plane */
        memcpy(to, from, bytes);
    }
}

void ox_update_save(enum ox_moments moments, const struct ox_update_span *span) {
    const struct ox_state_planes *const from = &span->state, *const to = &span->replaced_state;
    const uint64_t moment = span->count * ox_moment_bytes(moments);
    const uint32_t block = ox_scale_block_elems(moments);
    const uint64_t scales = block == 0 ? 0 : (span->count + block - 1) / block;
    memcpy(span->replaced_hi, span->hi, span->count * OX_HI_BYTES);
    if (span->weights_only) {
        return;
    }
    memcpy(to->lo, from->lo, span->count * ox_lo_bytes(moments));
    save_plane(to->m, from->m, moment);
    save_plane(to->v, from->v, moment);
    save_plane(to->m_scale, from->m_scale, scales);
    save_plane(to->v_scale, from->v_scale, scales);
}

static uint64_t run_variant(enum ox_isa isa, const struct ox_update_job *job) {
    switch (isa) {
#if defined(__x86_64__)
    case OX_ISA_AVX2:
        return ox_update_avx2(job);
    case OX_ISA_AVX512:
        return ox_update_avx512(job);
#elif defined(__aarch64__)
    case OX_ISA_NEON:
        return ox_update_neon(job);
#endif
    default:
        return ox_update_scalar(job);
    }
}

/* Moves the averages of a span towards its new masters: a pass of its own over a few cache lines, because most runs
 * have none. */
static void run_averages(enum ox_moments moments, const struct ox_update_span *span, float share) {
    float masters[AVERAGE_ELEMS];
    for (uint64_t i = 0; i < span->count; i += AVERAGE_ELEMS) {
        const uint64_t count = span->count - i < AVERAGE_ELEMS ? span->count - i : AVERAGE_ELEMS;
        const struct ox_state_planes at = ox_state_planes_skip(moments, span->state, i);
        ox_state_master_get(moments, span->hi_out + i, at.lo, count, masters);
        for (uint64_t k = 0; k < count; k++) {
            at.average[k] = ox_average_update(at.average[k], masters[k], share);
        }
    }
}

uint64_t ox_update_run(enum ox_isa isa, struct ox_state_format format, const struct ox_update_span *span,
                       const struct ox_optim_hyper *hyper) {
    OX_ASSERT(span->replaced_hi == NULL || span->hi == span->hi_out);
    OX_ASSERT(ox_isa_available(isa) && (span->sums == NULL || span->count == 0 || span->first % OX_Q8_BLOCK == 0));
    const bool averages = span->state.average != NULL && !span->weights_only;
    struct ox_update_job job = {.format = format, .span = *span, .hyper = hyper};
    job.span.state.average = NULL; /* what follows is about the other planes */
    if (format.moments != OX_MOMENTS_F32) {
        ox_noise_keys(hyper, span->stream, job.noise_keys);
    }
    if (span->sums != NULL && span->state.average != NULL) {
        span->sums->read.average += ox_average_sum(span);
    }
    if (averages && span->replaced_hi != NULL) {
        memcpy(span->replaced_state.average, span->state.average, span->count * sizeof(float));
    }
    const uint64_t bad_count = run_variant(isa, &job);
    if (averages) {
        run_averages(format.moments, span, hyper->average_share);
    }
    if (span->sums != NULL && span->state.average != NULL) {
        span->sums->written.average += ox_average_sum(span);
    }
    return bad_count;
}

uint64_t ox_update_run_pool(struct ox_pool *pool, enum ox_isa isa, struct ox_state_format format,
                            const struct ox_update_span *span, const struct ox_optim_hyper *hyper) {
    struct shares shares = {.format = format, .span = span, .hyper = hyper, .isa = isa,
                            .lock = PTHREAD_MUTEX_INITIALIZER};
    ox_pool_run_grains(pool, span->count, GRAIN, run_share, &shares);
    return atomic_load(&shares.bad_count);
}
