/* A pass of a stage over a micro-batch: what it works in, what it costs, and where it waits for other ranks. */
#ifndef OX_OFFLOAD_PLAN_PASS_H
#define OX_OFFLOAD_PLAN_PASS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What compute does in one task, for predictions. Attention's operations are counted apart, because its GEMMs run at
 * another rate than those of whole matrices. `bytes` are read and written by operations other than attention. On the
 * CPU, which packs the operands of a GEMM, they include the bytes of GEMMs; a GPU moves these while it multiplies, so
 * it counts them in `gemm_bytes`. */
struct ox_plan_work {
    double gemm_flops, bytes;
    double attention_flops, attention_backward_flops; /* of the forward and the backward pass of attention */
    double gemm_bytes; /* GPU: bytes that GEMMs read and write */
    uint32_t ops; /* operations that the task queues */
};

/* Where a pass needs what other ranks make of the same micro-batch. It ends a phase of the pass, and a task of the link
 * comes before the next phase. It works on two regions of one of the pass's buffers; those of its scratch stay from
 * phase to phase. All members of the group on the axis have pieces of the same size. */
enum ox_cut_kind {
    OX_CUT_GATHER,   /* each member has its piece at its place of the target, which has all pieces then */
    OX_CUT_EXCHANGE, /* each member has a piece for every member in the source; in the target it has then, in the order
                        of members, the piece that each has for it. The next phase adds them */
    OX_CUT_KIND_COUNT
};
struct ox_plan_cut {
    uint8_t kind, axis;
    uint8_t role;            /* OX_USE_SCRATCH or OX_USE_KEPT */
    uint64_t source, target; /* where the regions begin; of a gather the same */
    uint64_t bytes;          /* of all pieces */
    double share;            /* of the pass's work, that of all phases before the cut */
};
enum { OX_PLAN_CUTS_MAX = 12 };

/* One pass of a stage over a micro-batch: a chain of phases, one more than there are cuts. */
struct ox_plan_pass {
    uint64_t scratch_bytes;
    struct ox_plan_work work; /* all zero: no prediction */
    uint32_t cut_count;
    struct ox_plan_cut cuts[OX_PLAN_CUTS_MAX];
};
enum ox_plan_pass_kind {
    OX_PLAN_FORWARD, OX_PLAN_FORWARD_KEPT, OX_PLAN_BACKWARD, OX_PLAN_BACKWARD_KEPT, OX_PLAN_PASS_COUNT
};

#ifdef __cplusplus
}
#endif
#endif
