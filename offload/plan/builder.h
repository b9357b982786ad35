/* What the files that write a plan's task list share: the builder, and the small steps from which lists are made. */
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
    uint64_t dx_bytes;    /* room for the gradient of any activation between units */
    bool train;
    bool carries; /* forward carries the update of the previous step */
};

/* ---- small steps: offload/plan/builder.c ---------------------------------------------------------- */

bool ox_build_unified(const struct ox_builder *b);
const struct ox_plan_unit *ox_build_unit(const struct ox_builder *b, uint32_t unit_idx);
const struct ox_plan_grad *ox_build_grad(const struct ox_builder *b, uint32_t grad_idx);
const struct ox_homes *ox_build_homes(const struct ox_builder *b, uint32_t unit_idx);
/* Whether the unit is updated on the device. */
bool ox_build_on_device(const struct ox_builder *b, uint32_t unit_idx);
/* True for the units whose optimizer runs in the backward of its own step. */
bool ox_build_is_speculative(const struct ox_builder *b, uint32_t unit_idx);

/* A new buffer; `bytes` is rounded up to whole blocks. A resident one keeps its place between steps. */
uint32_t ox_build_buf(struct ox_builder *b, enum ox_buf_kind kind, enum ox_tier tier, uint64_t bytes,
                      uint32_t unit_idx);
uint32_t ox_build_resident(struct ox_builder *b, enum ox_buf_kind kind, enum ox_tier tier, uint64_t bytes,
                           uint32_t unit_idx);
uint32_t ox_build_grad_buf(struct ox_builder *b, enum ox_tier tier, uint64_t bytes, uint32_t grad_idx);

struct ox_task *ox_build_task(struct ox_builder *b, enum ox_task_kind kind, enum ox_lane_id lane, uint32_t unit_idx,
                              uint32_t mb_idx);
/* A task on a gradient. */
struct ox_task *ox_build_grad_task(struct ox_builder *b, enum ox_task_kind kind, enum ox_lane_id lane,
                                   uint32_t grad_idx);
/* The task belongs to the update of the step before, and works where these facts hold; others ask for own work. */
void ox_build_carry(struct ox_task *task, uint32_t facts);
void ox_build_reads(struct ox_task *task, uint32_t buf_idx, enum ox_use_role role);
void ox_build_writes(struct ox_task *task, uint32_t buf_idx, enum ox_use_role role);
void ox_build_updates(struct ox_task *task, uint32_t buf_idx, enum ox_use_role role);

/* A move of what has no unit and no micro-batch, until the caller says otherwise: source is read, target written; no
 * source where the store is it. */
struct ox_task *ox_build_move(struct ox_builder *b, enum ox_move what, enum ox_lane_id route, uint32_t source,
                              uint32_t target);
/* Counts what a move carries, once it says of which unit, gradient or micro-batch that is. */
void ox_build_count_move(struct ox_builder *b, struct ox_task *task);
/* Counts bytes as traffic of a link; copies between host and device count only where these are two memories. */
void ox_build_count(struct ox_builder *b, struct ox_task *task, enum ox_link link, enum ox_traffic_kind kind,
                    uint64_t bytes);

/* ---- the optimizer: offload/plan/optim.c ------------------------------------------------------- */

/* The optimizer of one unit. CARRIED: `target` is where the unit's planes are wanted, or OX_NONE when memory is their
 * home; that of the first stage begins the transaction, that of the last is followed by the commit. SPECULATIVE: `grad`
 * is the finished gradient in host memory. */
void ox_build_adam_carried(struct ox_builder *b, uint32_t unit_idx, uint32_t target);
void ox_build_adam_speculative(struct ox_builder *b, uint32_t unit_idx, uint32_t grad);
/* Where memory of the device is some unit's home of state: room for what its update counts. */
void ox_build_device_counts(struct ox_builder *b);
/* Square sums of a finished gradient that stays on the device. */
void ox_build_device_reduce(struct ox_builder *b, uint32_t unit_idx, uint32_t grad);
/* What ends a training step: the norm, and without overlap the optimizer of all units and the commit. */
void ox_build_optimizer(struct ox_builder *b);

#endif
