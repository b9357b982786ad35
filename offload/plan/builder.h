/* Declarations that the files that write a task list share: the builder, and the small steps that lists are made of. */
#ifndef OX_OFFLOAD_PLAN_BUILDER_H
#define OX_OFFLOAD_PLAN_BUILDER_H

#include "base/assert.h"
#include "base/bytes.h"
#include "offload/plan/cases.h"
#include "offload/plan/internal.h"

struct ox_builder {
    struct ox_plan *plan;
    struct ox_plan_scratch *scratch;
    const struct ox_plan_input *in;
    enum ox_tier compute; /* where kernels read and write: DEVICE, or HOST when unified */
    struct ox_sums sums;  /* the order in which gradients are summed */
    uint32_t slots;       /* of an accumulator, to sum all micro-batches */
    uint32_t rest_slots;  /* that hold a partial sum between two tiles, at most; 0 with one tile */
    uint32_t first_back; /* the first stage with a backward */
    uint32_t first_own;  /* the first stage that the rank computes */
    bool train;
    bool carries; /* forward carries the update of the previous step */
    bool written; /* what that update writes is on the drives by now */
    bool begun;   /* the transaction of the step's own updates */
    bool shared; /* the reports of all ranks of a pipeline */
    bool pools;  /* the first backward that reads them has yet to pool them */
    uint32_t visit_count;
    bool committed; /* the carried update, of a pipeline */
    uint64_t commit_time; /* after which it may be */
    bool in_circle; /* no order of transfers lets all ranks end */
    uint32_t arrival_count, arrived; /* from other ranks of the pipeline: all, and listed by now */
    struct ox_task asks; /* how tasks for weights ask in the visit that is prepared or run: asks_stage to mb_past */
    uint32_t asks_buf;   /* what they read for it */
    struct ox_step_case usual; /* the case for which the plan counts bytes */
    bool between; /* commits come between steps (ox_plan_commits_between) */
    uint16_t when; /* facts that tasks require besides, while a way is listed that not all steps take */
};

/* ---- small steps: offload/plan/builder.c ---------------------------------------------------------- */

static inline bool ox_build_unified(const struct ox_builder *b) {
    return b->compute == OX_TIER_HOST;
}
static inline const struct ox_plan_unit *ox_build_unit(const struct ox_builder *b, uint32_t unit_idx) {
    return &b->in->model.units[unit_idx];
}
static inline const struct ox_plan_stage *ox_build_stage(const struct ox_builder *b, uint32_t stage_idx) {
    return &b->in->model.stages[stage_idx];
}
static inline const struct ox_plan_grad *ox_build_grad(const struct ox_builder *b, uint32_t grad_idx) {
    return &b->in->model.grads[grad_idx];
}
static inline const struct ox_homes *ox_build_homes(const struct ox_builder *b, uint32_t unit_idx) {
    return &b->in->table->shards[unit_idx].homes;
}
static inline const struct ox_unit_rules *ox_build_rules(const struct ox_builder *b, uint32_t unit_idx) {
    return &b->plan->rules[unit_idx];
}
/* Whether the rank has the unit, or has it on loan; and whether it computes with a stage's nth unit. */
static inline bool ox_build_holds(const struct ox_builder *b, uint32_t unit_idx) {
    return ox_build_rules(b, unit_idx)->holds;
}
static inline bool ox_build_borrows(const struct ox_builder *b, uint32_t unit_idx) {
    return !ox_build_holds(b, unit_idx) && ox_plan_has_group(b->in, unit_idx) &&
           ox_plan_borrower(b->in, unit_idx) == ox_plan_pipe_at(b->in);
}
static inline bool ox_build_has(const struct ox_builder *b, const struct ox_plan_stage *stage, uint32_t nth) {
    return ox_build_holds(b, stage->units[nth].unit_idx) || ox_build_borrows(b, stage->units[nth].unit_idx);
}
/* Whether the unit is updated on the device. */
static inline bool ox_build_on_device(const struct ox_builder *b, uint32_t unit_idx) {
    return ox_build_rules(b, unit_idx)->state_on_device && ox_build_holds(b, unit_idx);
}
/* Whether the unit is updated in the backward of its own step. */
static inline bool ox_build_is_speculative(const struct ox_builder *b, uint32_t unit_idx) {
    return b->carries && ox_build_rules(b, unit_idx)->speculative && ox_build_holds(b, unit_idx);
}

/* The first micro-batch of a tile, or with `tile` + 1 that of the next. */
static inline uint32_t ox_build_tile_first(const struct ox_builder *b, uint32_t tile) {
    return (uint32_t)((uint64_t)b->plan->micro_batches * tile / b->in->placement.tiles);
}

/* Slots of an accumulator that hold a partial sum before a tile, and those that micro-batches in a row need. */
static inline uint32_t ox_build_occupied(const struct ox_builder *b, uint32_t tile) {
    return b->scratch->mb_sums[ox_build_tile_first(b, tile)].occupied;
}
uint32_t ox_build_slots(const struct ox_builder *b, uint32_t mb_first, uint32_t mb_past);

/* Adds a buffer and returns its index; `bytes` is rounded up to whole pages, of which that of an empty slice has one. A
 * resident one lasts between steps. */
uint32_t ox_build_buf(struct ox_builder *b, enum ox_buf_kind kind, enum ox_tier tier, uint64_t bytes,
                      uint32_t unit_idx);
uint32_t ox_build_resident(struct ox_builder *b, enum ox_buf_kind kind, enum ox_tier tier, uint64_t bytes,
                           uint32_t unit_idx);
uint32_t ox_build_grad_buf(struct ox_builder *b, enum ox_tier tier, uint64_t bytes, uint32_t grad_idx);
/* A buffer of activations. */
uint32_t ox_build_stage_buf(struct ox_builder *b, enum ox_buf_kind kind, enum ox_tier tier, uint64_t bytes,
                            uint32_t stage_idx);

/* Called when the uses of the last task are complete, which they are before another one is added. */
void ox_build_follow(struct ox_builder *b);
struct ox_task *ox_build_task(struct ox_builder *b, enum ox_task_kind kind, enum ox_lane_id lane, uint32_t unit_idx,
                              uint32_t mb_idx);
/* Adds a task that works on a gradient. */
struct ox_task *ox_build_grad_task(struct ox_builder *b, enum ox_task_kind kind, enum ox_lane_id lane,
                                   uint32_t grad_idx);
/* Adds a task that computes a stage. */
struct ox_task *ox_build_stage_task(struct ox_builder *b, enum ox_task_kind kind, uint32_t stage_idx, uint32_t mb_idx);
/* Makes the task part of the update of the step before, which works where these facts hold instead of OWN_WORK. */
void ox_build_carry(struct ox_task *task, uint32_t facts);
void ox_build_reads(struct ox_task *task, uint32_t buf_idx, enum ox_use_role role);
void ox_build_writes(struct ox_task *task, uint32_t buf_idx, enum ox_use_role role);
void ox_build_updates(struct ox_task *task, uint32_t buf_idx, enum ox_use_role role);
/* Adds the nth use of its role. */
void ox_build_nth_use(struct ox_task *task, struct ox_use use);

/* Adds a move from `source` to `target`; `source` is OX_NONE for what comes from the store or from another part of the
 * model, `target` for what leaves for another part. The caller fills in unit, gradient or micro-batch, which are
 * OX_NONE. */
struct ox_task *ox_build_move(struct ox_builder *b, enum ox_move what, enum ox_lane_id route, uint32_t source,
                              uint32_t target);
/* Counts the bytes of a move, after unit, gradient or micro-batch were filled in. */
void ox_build_count_move(struct ox_builder *b, struct ox_task *task);
/* Gathers what each rank has written to its place of a buffer in host memory. `gives`: the rank has. */
void ox_build_gather_here(struct ox_builder *b, enum ox_move what, uint32_t buf_idx, uint32_t unit_idx, bool gives);
/* Gathers the reports of all ranks. `gives`: the rank has some; `of_stages`: in a pipeline, also those of stages. */
void ox_build_gather_losses(struct ox_builder *b, bool gives, bool of_stages);
/* Gathers the total of the square sums of every unit from the ranks of the pipeline, or from those that divide groups
 * of features, each of which has those of the units that it holds. */
void ox_build_gather_totals(struct ox_builder *b, enum ox_axis axis);
/* Behind a phase that is not the pass's last: what it leaves for those of other ranks goes there. `room`: the pass's
 * scratch. */
void ox_build_cross(struct ox_builder *b, uint32_t stage_idx, uint32_t mb_idx, enum ox_plan_pass_kind pass,
                    uint32_t phase, uint32_t room);
/* Counts what a task takes from other ranks and gives to them, after unit or gradient was filled in. */
void ox_build_count_peers(struct ox_builder *b, struct ox_task *task);
/* Counts bytes as traffic of a link. With unified memory copies between host and device do not count. */
void ox_build_count(struct ox_builder *b, struct ox_task *task, enum ox_link link, enum ox_traffic_kind kind,
                    uint64_t bytes);

/* ---- activations: offload/plan/build_act.c --------------------------------------------------------- */

/* A buffer for the gradient of activations, from the stage where it is made, or whose output it belongs to, through all
 * stages before it that the rank computes. */
uint32_t ox_build_dx_buf(struct ox_builder *b, uint32_t stage_idx);
/* Sets the rank's visits, and where in them it gets what from other ranks of the pipeline. */
void ox_build_visits(struct ox_builder *b);
/* Ends the visits of a pipeline's rank. */
void ox_build_end_visits(struct ox_builder *b);
/* Called before and behind a task that computes a stage: receive what other ranks have made while it runs, and when it
 * ends. */
void ox_build_before(struct ox_builder *b, uint32_t stage_idx, uint32_t mb_idx, bool backward);
void ox_build_after(struct ox_builder *b, uint32_t stage_idx, uint32_t mb_idx, bool backward);
/* Called before the meeting of all ranks of a pipeline behind their forwards, for the same reason. */
void ox_build_before_sharing(struct ox_builder *b);
/* Where a head computes with a unit of another rank (ox_plan_borrower): its rank receives all such units before its
 * visits, and gives what it has summed of a gradient back; the other sends one, whose planes compute reads at `at`, as
 * soon as it has fetched it first. */
void ox_build_borrow(struct ox_builder *b);
void ox_build_lend(struct ox_builder *b, uint32_t unit_idx, uint32_t at);
void ox_build_give_back(struct ox_builder *b, uint32_t grad_idx);
/* The place of one micro-batch of a stage in a list of scratch. */
uint32_t *ox_build_act_slot(const struct ox_builder *b, uint32_t *slots, uint32_t stage_idx, uint32_t mb_idx);
/* Sends `x`, the input of a stage, to its home if backward will need it, and brings it back. */
void ox_build_save_act(struct ox_builder *b, uint32_t stage_idx, uint32_t mb_idx, uint32_t x);
uint32_t ox_build_load_act(struct ox_builder *b, uint32_t stage_idx, uint32_t mb_idx);
/* Takes the input of a stage from another rank, or from another part of the model, where one makes it; that of the next
 * micro-batch of the visit may follow. */
void ox_build_take_x(struct ox_builder *b, uint32_t stage_idx, uint32_t mb_idx, uint32_t mb_past);
/* Gives the output of a stage to the next one, on this rank or another, or to another part of the model. */
void ox_build_pass_on(struct ox_builder *b, uint32_t stage_idx, uint32_t mb_idx, uint32_t y);
/* Takes the gradient of the stage's output, and gives that of its input, where another rank or part is next to it. */
void ox_build_begin_dx(struct ox_builder *b, uint32_t stage_idx, uint32_t mb_idx);
void ox_build_end_dx(struct ox_builder *b, uint32_t stage_idx, uint32_t mb_idx);

/* ---- stages that may have no rows: offload/plan/build_act.c ------------------------------------ */

/* Whether and how tasks of this kind ask in a visit: it sets `asks` of the builder. */
void ox_build_set_asks(struct ox_builder *b, const struct ox_pipe_visit *visit);
/* Lets a task for weights of the visit ask, if the visit does. */
void ox_build_ask(const struct ox_builder *b, struct ox_task *task);
/* The buffer in which the forward of a visit leaves how many rows the stages behind it have; OX_NONE: nobody asks.
 * `leave` lets the task of one micro-batch do so, and `end` brings it to the host. */
uint32_t ox_build_routes_begin(struct ox_builder *b, const struct ox_pipe_visit *visit);
void ox_build_routes_leave(struct ox_task *task, uint32_t buf_idx, uint32_t mb_first);
void ox_build_routes_end(struct ox_builder *b, const struct ox_pipe_visit *visit, uint32_t buf_idx);

/* ---- gradients: offload/plan/build_grad.c --------------------------------------------------------- */

/* Gives a gradient its home. One that stays on the device has its accumulator as home, which is resident only if the
 * gradient waits there for the next step. */
void ox_build_grad_home(struct ox_builder *b, uint32_t grad_idx);
/* Brings the partial sum of earlier tiles back to where kernels add to it. */
void ox_build_grad_load(struct ox_builder *b, uint32_t tile, uint32_t grad_idx);
/* Finds the accumulator of a gradient when its backward begins in a tile. */
void ox_build_grad_begin(struct ox_builder *b, uint32_t tile, uint32_t grad_idx);
/* Lets a task add its micro-batch to a gradient, or set it where the micro-batch begins a sum group. The additions of
 * finished sums follow where it ends one. `nth`: the stage unit. */
void ox_build_grad_add(struct ox_builder *b, struct ox_task *task, uint32_t grad_idx, uint32_t nth);
void ox_build_grad_fold(struct ox_builder *b, uint32_t mb_idx, uint32_t grad_idx);
/* Finds the accumulator for what another rank has summed of a gradient, and returns it; its sum is finished then. */
uint32_t ox_build_grad_take(struct ox_builder *b, uint32_t grad_idx);
/* Sends the accumulator home after a tile, finished or partial, or to the rank that has the unit. */
void ox_build_grad_end(struct ox_builder *b, uint32_t tile, uint32_t grad_idx);

/* ---- the optimizer: offload/plan/optim.c ------------------------------------------------------- */

/* Adds the update of one unit. CARRIED: `target` is the buffer that forward reads the unit's planes from, or OX_NONE if
 * their home is in memory; the first unit in order begins the transaction, the commit follows the last.
 * SPECULATIVE: `grad` is the finished gradient in host memory. */
void ox_build_adam_carried(struct ox_builder *b, uint32_t unit_idx, uint32_t target);
void ox_build_adam_speculative(struct ox_builder *b, uint32_t unit_idx, uint32_t grad);
/* Adds the update of the state of a unit whose hi went ahead in the step before; nothing for others. */
void ox_build_adam_late(struct ox_builder *b, uint32_t unit_idx);
/* Adds buffers for the counts of updates on the device, if any unit's state lives there. */
void ox_build_device_counts(struct ox_builder *b);
/* Adds the square sums of a finished gradient that is on the device. */
void ox_build_device_reduce(struct ox_builder *b, uint32_t unit_idx, uint32_t grad);
/* What all ranks of a pipeline do together, at the same times: they begin the transaction of a carried update with the
 * list; and when the last of them has made its last update, they commit it and begin that of a step that speculates. */
void ox_build_pipe_begin(struct ox_builder *b);
void ox_build_pipe_commit(struct ox_builder *b);
/* Adds the end of a training step: the norm, and without overlap the update of all units and the commit. */
void ox_build_optimizer(struct ox_builder *b);

#endif
