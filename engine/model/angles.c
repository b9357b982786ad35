/* The angles of a model's rotations, as tables that stay in memory. */
#include "engine/model/units.h"

#include <stdlib.h>

uint64_t ox_angles_floats(const struct ox_model_config *config, uint32_t contexts) {
    return ox_model_rotations(config) * (uint64_t)contexts * (config->rotary_dim / 2);
}

enum ox_status ox_angles_make(struct ox_run *run, const struct ox_model_config *config, uint32_t contexts,
                              float *cos_tables, float *sin_tables) {
    const uint32_t count = ox_model_rotations(config), half_dim = config->rotary_dim / 2;
    double *const inv_freq = calloc(half_dim + (size_t)1, sizeof *inv_freq);
    if (inv_freq == NULL) {
        return ox_fail(OX_E_NOMEM, "rotary tables: no memory");
    }
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t at = (uint64_t)i * contexts * half_dim;
        const double scale = ox_model_rope_inv_freq(config, i, contexts, inv_freq);
        OX_RUN(run, rope_table, .cos_table = cos_tables + at, .sin_table = sin_tables + at, .inv_freq = inv_freq,
               .contexts = contexts, .half_dim = half_dim, .scale = scale);
        OX_THEN(run->status, ox_lane_drain(run->lane)); /* it reads the frequencies */
    }
    free(inv_freq);
    return run->status;
}

void ox_angles_take(struct ox_unit_job *job, uint32_t contexts, const float *cos_tables, const float *sin_tables) {
    const uint64_t at =
        (uint64_t)job->unit->rotation * contexts * (job->shape->model->config.rotary_dim / 2);
    job->cos_table = cos_tables == NULL ? NULL : cos_tables + at;
    job->sin_table = sin_tables == NULL ? NULL : sin_tables + at;
}
