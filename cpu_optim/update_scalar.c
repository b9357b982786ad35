/* The definition of the update: what every other variant must reproduce to the bit. */
#include "base/optim_element.h"
#include "cpu_optim/variants.h"

static float grad_read(const struct ox_update_span *span, uint64_t idx) {
    return span->grad_dtype == OX_GRAD_BF16 ? ox_bf16_to_f32(((const uint16_t *)span->grad)[idx])
                                            : ((const float *)span->grad)[idx];
}

static uint64_t run_f32(const struct ox_update_job *job) {
    const struct ox_update_span *const span = &job->span;
    const bool has_v = ox_optim_has_v(job->format.kind);
    uint16_t *const lo = span->state.lo;
    float *const m = span->state.m, *const v = span->state.v;
    uint64_t bad_count = 0;
    for (uint64_t i = 0; i < span->count; i++) {
        struct ox_element e = {ox_plane_join(span->hi[i], lo[i]), m[i], has_v ? v[i] : 0.0f};
        ox_element_update(job->format.kind, job->hyper, span->decay, grad_read(span, i), &e);
        bad_count += !ox_element_check(OX_MOMENTS_F32, &e);
        m[i] = e.m;
        if (has_v) {
            v[i] = e.v;
        }
        span->hi_out[i] = ox_plane_hi(e.p);
        lo[i] = ox_plane_lo(e.p);
    }
    return bad_count;
}

static uint16_t bf16_round(float value, uint32_t random) {
    return (uint16_t)((ox_f32_bits(value) + random) >> 16);
}

static uint64_t run_bf16(const struct ox_update_job *job) {
    const struct ox_update_span *const span = &job->span;
    const bool has_v = ox_optim_has_v(job->format.kind);
    uint16_t *const lo = span->state.lo, *const m = span->state.m, *const v = span->state.v;
    uint64_t bad_count = 0;
    for (uint64_t i = 0; i < span->count; i++) {
        const uint32_t noise = ox_noise(job->noise_keys, (uint32_t)(span->first + i));
        struct ox_element e = {ox_plane_join(span->hi[i], lo[i]), ox_bf16_to_f32(m[i]),
                            has_v ? ox_bf16_to_f32(v[i]) : 0.0f};
        ox_element_update(job->format.kind, job->hyper, span->decay, grad_read(span, i), &e);
        bad_count += !ox_element_check(OX_MOMENTS_BF16, &e);
        m[i] = bf16_round(e.m, ox_noise_bf16_m(noise));
        if (has_v) {
            v[i] = bf16_round(e.v, ox_noise_bf16_v(noise));
        }
        span->hi_out[i] = ox_plane_hi(e.p);
        lo[i] = ox_plane_lo(e.p);
    }
    return bad_count;
}

static uint32_t larger(uint32_t bits, float value) {
    const uint32_t magnitude = ox_f32_bits(value) & 0x7fffffffu;
    return magnitude > bits ? magnitude : bits;
}

/* Up to OX_Q8_BLOCK elements from `begin` on, which share the scales. */
static uint64_t run_block(const struct ox_update_job *job, uint64_t begin, uint32_t count) {
    const struct ox_update_span *const span = &job->span;
    const bool has_v = ox_optim_has_v(job->format.kind);
    uint8_t *const lo = (uint8_t *)span->state.lo + begin, *const m = (uint8_t *)span->state.m + begin;
    uint8_t *const v = has_v ? (uint8_t *)span->state.v + begin : NULL;
    uint8_t *const m_scale = span->state.m_scale + begin / OX_Q8_BLOCK;
    uint8_t *const v_scale = has_v ? span->state.v_scale + begin / OX_Q8_BLOCK : NULL;
    const uint32_t m_old = ox_q8_scale_exponent(*m_scale, OX_Q8_OCTAVES_M);
    const uint32_t v_old = has_v ? ox_q8_scale_exponent(*v_scale, OX_Q8_OCTAVES_V) : 0;
    struct ox_element all[OX_Q8_BLOCK];
    uint32_t noise[OX_Q8_BLOCK], m_largest = 0, v_largest = 0;
    uint64_t bad_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct ox_element e = {ox_master24_join(span->hi[begin + i], lo[i]), ox_q8_decode_m(m[i], m_old),
                            has_v ? ox_q8_decode(v[i], v_old) : 0.0f};
        noise[i] = ox_noise(job->noise_keys, (uint32_t)(span->first + begin + i));
        ox_element_update(job->format.kind, job->hyper, span->decay, grad_read(span, begin + i), &e);
        bad_count += !ox_element_check(OX_MOMENTS_Q8, &e);
        ox_master24_split(e.p, ox_noise_q8_master(noise[i]), &span->hi_out[begin + i], &lo[i]);
        m_largest = larger(m_largest, e.m);
        v_largest = larger(v_largest, e.v);
        all[i] = e;
    }
    *m_scale = ox_q8_scale_byte(m_largest);
    const uint32_t m_new = ox_q8_scale_exponent(*m_scale, OX_Q8_OCTAVES_M);
    for (uint32_t i = 0; i < count; i++) {
        m[i] = ox_q8_encode_m(all[i].m, m_new, ox_noise_q8_m(noise[i]));
    }
    if (has_v) {
        *v_scale = ox_q8_scale_byte(v_largest);
        const uint32_t v_new = ox_q8_scale_exponent(*v_scale, OX_Q8_OCTAVES_V);
        for (uint32_t i = 0; i < count; i++) {
            v[i] = ox_q8_encode_v(all[i].v, v_new, ox_noise_q8_v(noise[i]));
        }
    }
    return bad_count;
}

static uint64_t run_all(const struct ox_update_job *job);

/* An update of weights alone is one of all, block by block, of which only the weights are kept. */
static uint64_t run_weights(const struct ox_update_job *job) {
    uint64_t bad_count = 0;
    for (uint64_t begin = 0; begin < job->span.count; begin += OX_Q8_BLOCK) {
        const uint64_t left = job->span.count - begin;
        _Alignas(8) unsigned char lo[2 * OX_Q8_BLOCK] = {0}, m[4 * OX_Q8_BLOCK] = {0}, v[4 * OX_Q8_BLOCK] = {0};
        uint16_t hi[OX_Q8_BLOCK];
        uint8_t m_scale, v_scale;
        struct ox_update_job part = *job;
        part.span = ox_update_part(job->format, &job->span, begin, begin + (left < OX_Q8_BLOCK ? left : OX_Q8_BLOCK));
        part.span.weights_only = false;
        part.span.replaced_hi = hi;
        part.span.replaced_state =
            (struct ox_state_planes){.lo = lo, .m = m, .v = v, .m_scale = &m_scale, .v_scale = &v_scale};
        ox_update_save(job->format.moments, &part.span);
        part.span.state = part.span.replaced_state;
        bad_count += run_all(&part);
    }
    return bad_count;
}

static uint64_t run_all(const struct ox_update_job *job) {
    if (job->span.weights_only) {
        return run_weights(job);
    }
    if (job->format.moments == OX_MOMENTS_F32) {
        return run_f32(job);
    }
    if (job->format.moments == OX_MOMENTS_BF16) {
        return run_bf16(job);
    }
    uint64_t bad_count = 0;
    for (uint64_t begin = 0; begin < job->span.count; begin += OX_Q8_BLOCK) {
        const uint64_t left = job->span.count - begin;
        bad_count += run_block(job, begin, left < OX_Q8_BLOCK ? (uint32_t)left : OX_Q8_BLOCK);
    }
    return bad_count;
}

uint64_t ox_update_scalar(const struct ox_update_job *job) {
    const struct ox_update_span *const span = &job->span;
    if (span->replaced_hi != NULL) {
        ox_update_save(job->format.moments, span);
    }
    if (span->sums == NULL) {
        return run_all(job);
    }
    ox_plane_sums_take(job->format.moments, span->hi, &span->state, span->first, span->count, &span->sums->read);
    const uint64_t bad_count = run_all(job);
    ox_plane_sums_take(job->format.moments, span->hi_out, &span->state, span->first, span->count,
                       &span->sums->written);
    return bad_count;
}
