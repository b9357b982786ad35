/* Stages and their passes over a micro-batch: what these work in, what they cost, where they wait for other ranks. */
#ifndef OX_OFFLOAD_PLAN_PASS_H
#define OX_OFFLOAD_PLAN_PASS_H

#include <stdbool.h>
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
 * comes before the next phase. It works on two regions of the pass's scratch, of what it keeps, or on one of each;
 * those of its scratch stay from phase to phase. All members have pieces of the same size, of a SHIFT one each. */
enum ox_cut_kind {
    OX_CUT_GATHER,   /* each member has its piece at its place of the target, which has all pieces then */
    OX_CUT_EXCHANGE, /* each member has a piece for every member in the source; in the target it has then, in the order
                        of members, the piece that each has for it. The next phase adds them */
    OX_CUT_ROUND,    /* rows of experts, as many as the router chose (struct ox_plan_rounds). In round r a member and
                        the one whose number differs from its own by the bits of r give each other the rows that the
                        other's experts take, after they have given back those of the round before. `bytes` is a bound,
                        of which `source` and `target` say nothing */
    OX_CUT_SHIFT,    /* each member gives all of the source to the next one, and the last to the first */
    OX_CUT_KIND_COUNT
};
struct ox_plan_cut {
    uint8_t kind, axis;
    uint8_t role;            /* of the target: OX_USE_SCRATCH or OX_USE_KEPT */
    bool across;             /* EXCHANGE: the source is in the other one of these */
    uint8_t round;           /* ROUND: from 1 on; of the last one rows are only given back */
    uint64_t source, target; /* where the regions begin; of a gather the same */
    uint64_t bytes;          /* of all pieces; ROUND: the most that a member gets, which is the most that it gives */
    double share;            /* of the pass's work, that of all phases before the cut */
};
enum { OX_PLAN_CUTS_MAX = 72 }; /* 58: qwen2_moe with adapters and norms trained, over 2 tensor and 16 ring ranks */

/* Where rows lie that go to the ranks that have their experts and back, as offsets in the buffer of the pass. Rows are
 * sorted by expert, and a member's rows keep their places on every rank. The rows of expert e of member m are those
 * from offsets[e] on until offsets[e + 1] of its routes. Member i of the group has the experts [first + i each, first +
 * (i + 1) each) of every range: of `apart` experts each there are so many, behind those of the ranks that have the
 * groups of features before. */
enum { OX_PLAN_ROUND_PLANES = 2 };
struct ox_plan_rounds {
    uint64_t routes, routes_bytes, offsets; /* those of all members, each so many bytes, with its offsets at this one */
    uint32_t first, each, ranges, apart;
    uint64_t plane_bytes;    /* of a matrix of rows */
    uint32_t row_bytes, row_max; /* and the most rows that one member has for the experts of another */
    uint32_t planes;         /* matrices of rows that go to the experts: one, or of backward also the gradients */
    uint32_t returned;       /* 1 + the plane whose place has what the experts made of it, which goes back; 0: none */
    uint64_t own[OX_PLAN_ROUND_PLANES], other[OX_PLAN_ROUND_PLANES]; /* of the member, and of that which it serves */
};

/* One pass of a stage over a micro-batch: a chain of phases, one more than there are cuts. */
struct ox_plan_pass {
    uint64_t scratch_bytes;
    struct ox_plan_work work; /* all zero: no prediction */
    uint32_t cut_count;
    struct ox_plan_cut cuts[OX_PLAN_CUTS_MAX];
    struct ox_plan_rounds rounds; /* where there are rounds */
};

/* The most bytes that a member gets in a round of so many, and gives. */
static inline uint64_t ox_plan_round_bytes(const struct ox_plan_rounds *rounds, uint32_t round, uint32_t members) {
    const uint64_t plane = (uint64_t)rounds->row_max * rounds->row_bytes;
    return (round < members ? plane * rounds->planes : 0) + (round > 1 && rounds->returned > 0 ? plane : 0);
}
enum ox_plan_pass_kind {
    OX_PLAN_FORWARD, OX_PLAN_FORWARD_KEPT, OX_PLAN_BACKWARD, OX_PLAN_BACKWARD_KEPT, OX_PLAN_PASS_COUNT
};

enum ox_plan_stage_kind {
    OX_PLAN_EMBEDDING, /* tokens to activations; reads planes, and in its backward those of units with `read_back` */
    OX_PLAN_BLOCK,     /* activations to activations */
    OX_PLAN_HEAD       /* activations to the loss; in training its backward is part of the same task; reads planes */
};

/* A stage's use of a unit, and the gradient of the unit's weights from this use; OX_NONE where the stage trains none of
 * them, also of a unit that another one trains. The first use of a trained unit has one. */
struct ox_plan_stage_unit {
    uint32_t unit_idx, grad_idx;
    bool read_back; /* of an embedding: its backward reads the unit's planes */
};

/* The most units of a stage: with eight groups of features and adapters two of each group, and two of none. */
enum { OX_STAGE_UNITS_MAX = 18 };

/* A stage: one step of forward, which computes with one or more units; several stages may use the same unit, as a head
 * and an embedding with tied weights do. Activations are those of one micro-batch. */
struct ox_plan_stage {
    enum ox_plan_stage_kind kind;
    uint32_t unit_count;
    struct ox_plan_stage_unit units[OX_STAGE_UNITS_MAX]; /* its stage units, in the order in which they are fetched */
    uint64_t input_bytes, output_bytes; /* activations; 0 where the stage takes tokens or gives the loss */
    uint64_t kept_bytes; /* bytes that a block can keep for its backward; 0: it cannot keep any */
    bool saves_input;    /* its backward starts from its input, which is an activation checkpoint until then */
    uint32_t starts_back; /* a block that does not save it starts from that of the stage so many before it; those in
                             between do too */
    bool reports;        /* in training its forward writes its part of a micro-batch's report */
    /* Bytes of a micro-batch in which its forward says how many rows the stages behind it have; 0: all have some. And
     * which of the stages before it, so many back, says it of this one; 0: none. It reads no weights where it has no
     * rows. */
    uint64_t routes_bytes;
    uint32_t routed_back;
    /* The head's `forward` computes the loss alone, its `backward` the loss and its gradients. The `_kept` passes are
     * for a block that keeps what its backward needs. An embedding may need no scratch. */
    struct ox_plan_pass forward, backward, forward_kept, backward_kept;
};

static inline const struct ox_plan_pass *ox_plan_stage_pass(const struct ox_plan_stage *stage,
                                                            enum ox_plan_pass_kind kind) {
    return kind == OX_PLAN_FORWARD        ? &stage->forward
           : kind == OX_PLAN_FORWARD_KEPT ? &stage->forward_kept
           : kind == OX_PLAN_BACKWARD     ? &stage->backward : &stage->backward_kept;
}

#ifdef __cplusplus
}
#endif
#endif
