/* What passes of several kinds of units share. */
#include "engine/model/pieces.h"

void ox_clear_range(struct ox_unit_job *job, float *grads, uint64_t begin, uint64_t end) {
    if (begin < end) {
        OX_RUN(&job->run, zero, .target = grads + begin, .bytes = (end - begin) * sizeof *grads);
    }
}

void ox_clear_gaps(struct ox_unit_job *job, const struct ox_unit *unit, float *grads) {
    const struct ox_model *const model = job->shape->model;
    uint64_t end = 0;
    for (const struct ox_tensor *tensor = NULL; (tensor = ox_unit_next_tensor(model, unit, tensor)) != NULL;) {
        if (unit->role_trained[tensor->role]) {
            ox_clear_range(job, grads, end, tensor->offset);
            end = tensor->offset + tensor->count;
        }
    }
    ox_clear_range(job, grads, end, unit->elem_count);
}

void ox_clear_frozen(struct ox_unit_job *job, const struct ox_unit *unit, float *grads, enum ox_role role) {
    const struct ox_model *const model = job->shape->model;
    const struct ox_tensor *tensor = NULL;
    while (unit->role_trained[role] && (tensor = ox_unit_next_tensor(model, unit, tensor)) != NULL) {
        if (tensor->role == role && !tensor->trained) {
            ox_clear_range(job, grads, tensor->offset, tensor->offset + tensor->count);
        }
    }
}
