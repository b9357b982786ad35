/* A pass of a list of nodes: the steps in their order, and where every value lies. All of it follows from the list; it
 * is made anew for every pass, on the stack, without allocating. For the files of this folder and its tests. */
#ifndef OX_ENGINE_SCHEDULE_H
#define OX_ENGINE_SCHEDULE_H

#include "engine/model/list.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { OX_SCHEDULE_STEPS_MAX = 2 * OX_LIST_NODES_MAX };

/* One node, forward or backward. */
struct ox_schedule_step {
    uint32_t node_idx;
    bool backward;
    uint32_t dout, din;  /* backward: the gradients of `out` and of `in` */
    uint32_t dresidual;  /* backward: another gradient of `in`, which is added; or OX_NO_VALUE */
    uint32_t scratch;
    uint32_t dweights;   /* backward: the gradient of the node's `weights`; or OX_NO_VALUE */
    bool adds_weights;   /* which another step has begun */
    uint32_t phase;      /* of the pass; a phase ends behind a node that cuts, backward before it */
    uint32_t parts;      /* and behind each part of a step but its last: so many phases follow that are its own */
};

/* Whose memory a value lies in: what the caller of the pass gives. X, Y and DX hold the list's input, its output, and
 * the gradient of either. What row groups have in common lies in memories of its own, each value in its own place. */
enum ox_pass_memory {
    OX_MEMORY_NONE, OX_MEMORY_X, OX_MEMORY_Y, OX_MEMORY_DX, OX_MEMORY_WORK, OX_MEMORY_KEPT, OX_MEMORY_SHARED_WORK,
    OX_MEMORY_SHARED_KEPT, OX_MEMORY_COUNT
};
struct ox_place {
    enum ox_pass_memory memory;
    uint64_t offset;
};

/* Steps between which the memory of a value is needed, both included. */
struct ox_life {
    uint32_t first, last;
};

struct ox_schedule {
    struct ox_list list; /* its values with the gradients and the scratch that the pass adds, and with their homes */
    enum ox_pass pass;
    struct ox_schedule_step steps[OX_SCHEDULE_STEPS_MAX];
    uint32_t step_count;
    bool flows[OX_LIST_VALUES_MAX];  /* values whose gradient is wanted */
    bool needed[OX_LIST_VALUES_MAX]; /* values of forward that backward reads */
    bool absent[OX_LIST_VALUES_MAX]; /* values that the pass does not make */
    struct ox_life lives[OX_LIST_VALUES_MAX];   /* of homes */
    struct ox_place places[OX_LIST_VALUES_MAX]; /* of homes */
    uint32_t dx; /* backward: the gradient of list.out, which the caller gives; that of list.in replaces it */
    uint64_t work_bytes, kept_bytes, shared_work_bytes, shared_kept_bytes;
};

/* Makes the schedule of a pass of a copy of `list`. */
void ox_schedule_make(const struct ox_list *list, enum ox_pass pass, struct ox_schedule *out);

/* Queues the steps, those of one phase or all. `bases`: where each memory of enum ox_pass_memory begins. */
enum { OX_SCHEDULE_ALL_PHASES = UINT32_MAX };
void ox_schedule_run(const struct ox_schedule *schedule, struct ox_unit_job *job,
                     const struct ox_stage_weights *weights, void *const bases[OX_MEMORY_COUNT], uint32_t phase);
/* What crosses within a step, where ranks divide its work; writes it unless `out` is NULL, and returns how many. */
uint32_t ox_schedule_crossings(const struct ox_schedule *schedule, const struct ox_schedule_step *step,
                               struct ox_node_cut_at *out);
/* How many phases it has. */
uint32_t ox_schedule_phases(const struct ox_schedule *schedule);

/* Proves a schedule: every value is written before it is read, and intact until then; values that are needed at the
 * same time do not overlap; the output and the gradient of the input are there in the end, if it is wanted; each
 * trained tensor of the stage's units gets one addition in a backward pass, and no node runs backward without need.
 * OX_E_CONFIG names the step and the value. It shares nothing with what makes schedules but the list and the nodes'
 * rows. */
OX_MUST enum ox_status ox_schedule_check(const struct ox_schedule *schedule);

#ifdef __cplusplus
}
#endif
#endif
