/* What passes of several kinds of units share. For the files of this folder. */
#ifndef OX_ENGINE_PIECES_H
#define OX_ENGINE_PIECES_H

#include "engine/model/units.h"

#ifdef __cplusplus
extern "C" {
#endif

static inline bool ox_pass_is_backward(enum ox_pass pass) {
    return pass == OX_PASS_BACKWARD || pass == OX_PASS_BACKWARD_KEPT;
}

static inline bool ox_pass_is_kept(enum ox_pass pass) {
    return pass == OX_PASS_FORWARD_KEPT || pass == OX_PASS_BACKWARD_KEPT;
}

/* Clears what no operation of a unit writes: what lies between the tensors of its gradient and after them, and those
 * of which none is trained that is part of the same matrix. */
void ox_clear_gaps(struct ox_unit_job *job, const struct ox_unit *unit, float *grads);
/* Clears what an operation has added for tensors that are not trained, where its matrix has such and others. */
void ox_clear_frozen(struct ox_unit_job *job, const struct ox_unit *unit, float *grads, enum ox_role role);
void ox_clear_range(struct ox_unit_job *job, float *grads, uint64_t begin, uint64_t end);

#ifdef __cplusplus
}
#endif
#endif
