/* How the head walks rows and vocabulary, and where its scratch lies, on each device. */
#ifndef OX_KERNELS_HEAD_WALK_H
#define OX_KERNELS_HEAD_WALK_H

#include "kernels/ops.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The head takes rows in groups. Within a group it walks the vocabulary in tiles twice: first for the maximum and the
 * sum of exponentials of each row, then for the gradients. If the logits of a group of useful size fit, they are kept
 * between the two walks (`held`); otherwise the group is all rows and the logits are computed twice. On a GPU they are
 * always held, and in bfloat16 the vocabulary is one tile. The walk depends on the device, its type, rows and vocab
 * alone. */
struct ox_head_walk {
    uint32_t group_rows; /* rows per group                                    */
    uint32_t tile_rows;  /* rows whose logits for one tile of the vocabulary exist at once */
    uint32_t tile_vocab;
    uint64_t logit_stride; /* elements between rows in the logits' scratch */
    bool held;
};
struct ox_head_walk ox_head_walk_of(const struct ox_compute *compute, uint32_t rows, uint32_t vocab);

/* The parts of the head's scratch: per row the sum of exponentials, the maximum and the target's logit; the weights
 * of a tile, if they have to be joined; logits. */
struct ox_head_scratch {
    double *sum;
    float *max, *target_logit;
    float *weight, *logits;
};
uint64_t ox_head_scratch_bytes(const struct ox_compute *compute, uint32_t rows, uint32_t hidden, uint32_t vocab);
struct ox_head_scratch ox_head_scratch_at(const struct ox_compute *compute, void *scratch, uint32_t rows,
                                          uint32_t hidden, uint32_t vocab);

#ifdef __cplusplus
}
#endif
#endif
