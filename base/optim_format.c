#include "base/optim_format.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/prng/prng.h"

#include <math.h>
#include <stddef.h>

#define ROW_NAME(constant, name, ...) name,

const char *ox_optim_kind_name(enum ox_optim_kind kind) {
    static const char *const names[OX_OPTIM_KIND_COUNT] = {OX_OPTIM_ROWS(ROW_NAME)};
    return (unsigned)kind < OX_OPTIM_KIND_COUNT ? names[kind] : "unknown";
}

const char *ox_moments_name(enum ox_moments moments) {
    static const char *const names[OX_MOMENTS_COUNT] = {OX_MOMENTS_ROWS(ROW_NAME)};
    return (unsigned)moments < OX_MOMENTS_COUNT ? names[moments] : "unknown";
}

struct ox_state_layout ox_state_layout_of(struct ox_state_format format, uint64_t count) {
    OX_ASSERT(count % OX_GROUP_ELEMS == 0);
    const uint32_t block = ox_scale_block_elems(format.moments);
    const uint64_t plane = count * ox_moment_bytes(format.moments), scales = block > 0 ? count / block : 0;
    struct ox_state_layout layout;
    layout.lo_bytes = ox_align_up(count * ox_lo_bytes(format.moments), OX_IO_ALIGN_BYTES);
    layout.m_offset = layout.lo_bytes;
    layout.m_scale_offset = layout.m_offset + plane;
    layout.v_offset = layout.m_scale_offset + scales;
    layout.v_scale_offset = layout.v_offset + (ox_optim_has_v(format.kind) ? plane : 0);
    layout.end = layout.v_scale_offset + (ox_optim_has_v(format.kind) ? scales : 0);
    layout.average_offset = format.averages ? ox_align_up(layout.end, sizeof(float)) : layout.end;
    layout.end = layout.average_offset + (format.averages ? count * sizeof(float) : 0);
    layout.bytes = ox_align_up(layout.end, OX_IO_ALIGN_BYTES);
    return layout;
}

static void *at(void *plane, uint64_t bytes) {
    return plane == NULL ? NULL : (unsigned char *)plane + bytes;
}

struct ox_state_planes ox_state_planes_skip(enum ox_moments moments, struct ox_state_planes planes, uint64_t begin) {
    const uint32_t block = ox_scale_block_elems(moments);
    OX_ASSERT(block == 0 || begin % block == 0);
    return (struct ox_state_planes){
        .lo = at(planes.lo, begin * ox_lo_bytes(moments)),
        .m = at(planes.m, begin * ox_moment_bytes(moments)),
        .v = at(planes.v, begin * ox_moment_bytes(moments)),
        .m_scale = block > 0 ? at(planes.m_scale, begin / block) : NULL,
        .v_scale = block > 0 ? at(planes.v_scale, begin / block) : NULL,
        .average = planes.average == NULL ? NULL : planes.average + begin,
    };
}

struct ox_state_planes ox_state_planes_at(struct ox_state_format format, void *state, uint64_t count,
                                          uint64_t begin) {
    const struct ox_state_layout layout = ox_state_layout_of(format, count);
    const bool has_v = ox_optim_has_v(format.kind);
    OX_ASSERT(begin <= count);
    const struct ox_state_planes planes = {
        .lo = state,
        .m = at(state, layout.m_offset),
        .v = has_v ? at(state, layout.v_offset) : NULL,
        .m_scale = at(state, layout.m_scale_offset),
        .v_scale = has_v ? at(state, layout.v_scale_offset) : NULL,
        .average = format.averages ? at(state, layout.average_offset) : NULL,
    };
    return ox_state_planes_skip(format.moments, planes, begin);
}

void ox_optim_hyper_init(const struct ox_optim_settings *settings, struct ox_optim_hyper *out) {
    OX_ASSERT(settings->step >= 1);
    OX_ASSERT(settings->beta1 >= 0.0 && settings->beta1 < 1.0);
    OX_ASSERT(settings->beta2 >= 0.0 && settings->beta2 < 1.0);
    const double step = (double)settings->step;
    *out = (struct ox_optim_hyper){
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
        .average_share = settings->step == 1 ? 1.0f : (float)(1.0 - settings->average_decay),
        .seed = settings->seed,
        .step = settings->step,
        .rate = settings->learning_rate,
        .weight_decay = settings->weight_decay,
    };
}

struct ox_optim_hyper ox_optim_hyper_own(const struct ox_optim_hyper *hyper, double rate_share, double weight_decay) {
    struct ox_optim_hyper own = *hyper;
    own.rate *= rate_share;
    own.weight_decay = isnan(weight_decay) ? own.weight_decay : weight_decay;
    own.learning_rate = (float)own.rate;
    own.decay_factor = (float)(1.0 - own.rate * own.weight_decay);
    return own;
}

void ox_noise_keys(const struct ox_optim_hyper *hyper, uint32_t stream, uint32_t keys[2]) {
    uint32_t words[4];
    ox_philox(hyper->seed, hyper->step, stream, words);
    keys[0] = words[0];
    keys[1] = words[1];
}
