/* What the files that write a plan's task list share: the builder, and the small steps from which lists are made. */
#ifndef OX_OFFLOAD_PLAN_BUILDER_H
#define OX_OFFLOAD_PLAN_BUILDER_H

#include "base/assert.h"
#include "base/bytes.h"
#include "offload/plan/internal.h"

#include <string.h>

struct ox_builder {
    struct ox_plan *plan;
    struct ox_plan_scratch *scratch;
    const struct ox_plan_input *in;
    enum ox_tier compute; /* where kernels read and write: DEVICE, or HOST when unified */
    bool train;
    bool carries; /* forward carries the update of the previous step */
    uint32_t head_unit; /* the last one; its index + 1 stands for the head's use of tied weights */
    uint32_t tied_unit;
};

/* When a unit's optimizer runs: after the norm of its own step is known; within the forward of the next step; in the
 * backward of its own, before the norm is known. */
enum when { WHEN_AFTER, WHEN_CARRIED, WHEN_SPECULATIVE };

static inline bool unified(const struct ox_builder *b) {
    return b->compute == OX_TIER_HOST;
}

static inline uint64_t unit_elems(const struct ox_builder *b, uint32_t unit_idx) {
    return unit_idx == b->tied_unit ? b->in->model.tied_elems : b->in->model.unit_elems[unit_idx];
}

static inline uint32_t new_buf(struct ox_builder *b, enum ox_buf_kind kind, enum ox_tier tier, uint64_t bytes,
                        uint32_t unit_idx) {
    OX_ASSERT(b->plan->buf_count < b->plan->buf_cap && bytes > 0);
    struct ox_buf *const buf = &b->plan->bufs[b->plan->buf_count];
    memset(buf, 0, sizeof *buf);
    buf->bytes = ox_align_up(bytes, OX_IO_ALIGN_BYTES);
    buf->unit_idx = unit_idx;
    buf->kind = (uint8_t)kind;
    buf->tier = (uint8_t)tier;
    return b->plan->buf_count++;
}

static inline uint32_t new_resident(struct ox_builder *b, enum ox_buf_kind kind, enum ox_tier tier, uint64_t bytes,
                             uint32_t unit_idx) {
    const uint32_t buf_idx = new_buf(b, kind, tier, bytes, unit_idx);
    b->plan->bufs[buf_idx].resident = true;
    return buf_idx;
}

static inline struct ox_task *new_task(struct ox_builder *b, enum ox_task_kind kind, enum ox_lane_id lane,
                                uint32_t unit_idx, uint32_t mb_idx) {
    OX_ASSERT(b->plan->task_count < b->plan->task_cap);
    struct ox_task *const task = &b->plan->tasks[b->plan->task_count++];
    memset(task, 0, sizeof *task);
    task->kind = (uint8_t)kind;
    task->lane = (uint8_t)lane;
    task->unit_idx = unit_idx;
    task->mb_idx = mb_idx;
    return task;
}

static inline struct ox_use *add_use(struct ox_task *task, uint32_t buf_idx, enum ox_use_role role) {
    OX_ASSERT(task->use_count < OX_TASK_USES_MAX && buf_idx != OX_NONE);
    struct ox_use *const use = &task->uses[task->use_count++];
    use->buf_idx = buf_idx;
    use->role = (uint8_t)role;
    return use;
}

static inline void reads(struct ox_task *task, uint32_t buf_idx, enum ox_use_role role) {
    add_use(task, buf_idx, role)->read = true;
}

static inline void writes(struct ox_task *task, uint32_t buf_idx, enum ox_use_role role) {
    add_use(task, buf_idx, role)->write = true;
}

static inline void updates(struct ox_task *task, uint32_t buf_idx, enum ox_use_role role) {
    struct ox_use *const use = add_use(task, buf_idx, role);
    use->read = use->write = true;
}

/* Copies between host and device count as traffic only where they are two memories. */
static inline void count(struct ox_builder *b, struct ox_task *task, enum ox_link link, enum ox_traffic_kind kind,
                  uint64_t bytes) {
    if (unified(b) && (link == OX_LINK_H2D || link == OX_LINK_D2H)) {
        return;
    }
    task->bytes += bytes;
    b->plan->traffic[link][kind] += bytes;
}

/* One transfer: source is read, target written; no source where the drives are it. */
struct ox_task *ox_build_transfer(struct ox_builder *b, enum ox_task_kind kind, uint32_t unit_idx, uint32_t source,
                                  uint32_t target);

/* Whether the unit, or the one that owns these tied weights, is updated on the device. */
static inline bool on_device(const struct ox_builder *b, uint32_t unit_idx) {
    return ox_plan_state_on_device(b->in, unit_idx == b->tied_unit ? 0 : unit_idx);
}

/* The two uses of tied weights are summed in fp32 where their optimizer is, so that neither tile count nor order of
 * units changes a bit; to the host their gradients leave unrounded. */
static inline bool sums_on_host(const struct ox_builder *b, uint32_t unit_idx) {
    return b->in->model.tied_elems > 0 && (unit_idx == 0 || unit_idx == b->tied_unit) && !on_device(b, unit_idx);
}

/* ---- the optimizer: offload/plan/optim.c ------------------------------------------------------- */

/* The optimizer of one unit. BEFORE: `target` is where the unit's planes are wanted, or OX_NONE when memory is their
 * home; the first unit's begins the transaction, the last one's is followed by the commit. EARLY: `grad` is the
 * finished gradient in host memory. */
void ox_build_adam_carried(struct ox_builder *b, uint32_t unit_idx, uint32_t target);
void ox_build_adam_speculative(struct ox_builder *b, uint32_t unit_idx, uint32_t grad);
/* Where memory of the device is some unit's home of state: room for what its update counts. */
void ox_build_device_counts(struct ox_builder *b);
/* Square sums of a finished gradient that stays on the device. */
void ox_build_device_reduce(struct ox_builder *b, uint32_t unit_idx, uint32_t grad);
/* What ends a training step: the norm, and without overlap the optimizer of all units and the commit. */
void ox_build_optimizer(struct ox_builder *b);

/* True for the blocks that keep what their backward needs. */
static inline bool is_kept(const struct ox_builder *b, uint32_t unit_idx) {
    return b->train && unit_idx > 0 && unit_idx < b->head_unit &&
           unit_idx + b->in->placement.kept_units >= b->head_unit;
}

/* True for the units whose optimizer runs in the backward of its own step. */
static inline bool is_speculative(const struct ox_builder *b, uint32_t unit_idx) {
    return b->carries && unit_idx < b->plan->unit_count && ox_plan_is_speculative(b->in, unit_idx);
}

#endif
