/* What passes of several kinds of units share. */
#include "engine/model/pieces.h"

void ox_clear_range(struct ox_unit_job *job, float *grads, uint64_t begin, uint64_t end) {
    if (begin < end) {
        OX_RUN(&job->run, zero, .target = grads + begin, .bytes = (end - begin) * sizeof *grads);
    }
}

void ox_clear_gaps(struct ox_unit_job *job, const struct ox_unit *unit, float *grads) {
    const struct ox_tensor *const tensors = job->shape->model->tensors + unit->tensor_first;
    uint64_t end = 0;
    for (uint32_t i = 0; i < unit->tensor_count; i++) {
        if (unit->role_trained[tensors[i].role]) {
            ox_clear_range(job, grads, end, tensors[i].offset);
            end = tensors[i].offset + tensors[i].count;
        }
    }
    ox_clear_range(job, grads, end, unit->elem_count);
}

void ox_clear_frozen(struct ox_unit_job *job, const struct ox_unit *unit, float *grads, enum ox_role role) {
    const struct ox_tensor *const tensors = job->shape->model->tensors + unit->tensor_first;
    for (uint32_t i = 0; unit->role_trained[role] && i < unit->tensor_count; i++) {
        if (tensors[i].role == role && !tensors[i].trained) {
            ox_clear_range(job, grads, tensors[i].offset, tensors[i].offset + tensors[i].count);
        }
    }
}
