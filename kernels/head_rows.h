/* What the head makes of the statistics of its rows where parts of the vocabulary are apart (struct ox_op_head_merge):
 * shared by the devices. */
#ifndef OX_KERNELS_HEAD_ROWS_H
#define OX_KERNELS_HEAD_ROWS_H

#include "kernels/ops.h"

#include <math.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Merges the parts of a row, in their order. */
OX_ON_DEVICE_TOO static inline void ox_head_merge_row(const struct ox_op_head_merge *op, uint32_t row) {
    const struct ox_head_rows *const part = &op->part;
    float top = part->max[row], target = 0.0f;
    double sum = 0.0, total = 0.0;
    for (uint32_t i = 1; i < op->part_count; i++) {
        const float next = part->max[(uint64_t)i * op->rows + row];
        top = next > top ? next : top;
    }
    for (uint32_t i = 0; i < op->part_count; i++) {
        const uint64_t at = (uint64_t)i * op->rows + row;
        sum += part->sum[at] * exp((double)part->max[at] - (double)top); /* a NaN stays one */
        target += part->target[at];
        total += op->smoothing != 0.0f ? part->total[at] : 0.0;
    }
    op->all.max[row] = top;
    op->all.sum[row] = sum;
    op->all.target[row] = target;
    if (op->smoothing != 0.0f) {
        op->all.total[row] = total;
    }
}

/* Writes loss, lse - x[target], and z lse^2 of a merged row to `losses`, rows apart. */
OX_ON_DEVICE_TOO static inline void ox_head_row_losses(const struct ox_op_head_merge *op, uint32_t row,
                                                       double *losses) {
    const double e = (double)op->smoothing, z = (double)op->z_loss;
    double loss = 0.0, nll = 0.0, z_loss = 0.0;
    if (op->targets[row] >= 0) {
        const double lse = (double)op->all.max[row] + log(op->all.sum[row]);
        nll = (double)op->all.max[row] - (double)op->all.target[row] + log(op->all.sum[row]);
        loss = e == 0.0 ? nll : (1.0 - e) * nll + e * (lse - op->all.total[row] / op->vocab_whole);
        z_loss = z == 0.0 ? 0.0 : z * lse * lse;
    }
    losses[row] = loss + z_loss;
    losses[(uint64_t)op->rows + row] = nll;
    losses[2 * (uint64_t)op->rows + row] = z_loss;
    if (op->row_nll != NULL) {
        op->row_nll[row] = (float)nll;
    }
}

#ifdef __cplusplus
}
#endif
#endif
