/* The definition of the update: what every other variant must reproduce to the bit. */
#include "cpu_optim/variants.h"

#include "base/planes.h"

#include <math.h>

static bool is_finite(float value) {
    return (ox_f32_bits(value) & 0x7f800000u) != 0x7f800000u;
}

static float grad_read(const struct ox_adam_span *span, uint64_t idx) {
    return span->grad_dtype == OX_GRAD_BF16 ? ox_bf16_to_f32(((const uint16_t *)span->grad)[idx])
                                            : ((const float *)span->grad)[idx];
}

uint64_t ox_adam_scalar(const struct ox_adam_span *span, const struct ox_adam_hyper *hyper) {
    const float decay = span->decay ? hyper->decay_factor : 1.0f;
    uint64_t bad_count = 0;
    for (uint64_t i = 0; i < span->count; i++) {
        const float g = grad_read(span, i) * hyper->grad_scale;
        const float p = ox_plane_join(span->hi[i], span->lo[i]);
        const float m = fmaf(hyper->beta1, span->m[i], hyper->one_minus_beta1 * g);
        const float v = fmaf(hyper->beta2, span->v[i], hyper->one_minus_beta2 * (g * g));
        const float u = (m * hyper->m_scale) / (sqrtf(v * hyper->v_scale) + hyper->eps);
        const float next = fmaf(-hyper->learning_rate, u, p * decay);
        bad_count += !(is_finite(m) && is_finite(v) && is_finite(next));
        span->m[i] = m;
        span->v[i] = v;
        span->hi_out[i] = ox_plane_hi(next);
        span->lo[i] = ox_plane_lo(next);
    }
    return bad_count;
}
