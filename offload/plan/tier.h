/* The memory tiers of a run: one arena each, reserved at open with the exact size that the plans need. The engine gets
 * buffers as views: the right to touch a buffer's bytes while a task runs. The plan says when, the tier where. No other
 * code turns an offset into a pointer. */
#ifndef OX_OFFLOAD_TIER_H
#define OX_OFFLOAD_TIER_H

#include "base/arena.h"
#include "base/lane.h"
#include "kernels/device.h"
#include "offload/plan/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ox_tiers {
    struct ox_device *device; /* not owned */
    struct ox_arena host;
    bool is_pinned; /* host memory is registered with the device */
    void *device_base;
    uint64_t device_bytes;
};

struct ox_view {
    void *ptr;
    uint64_t bytes;
    enum ox_tier tier;
};

/* Reserves and touches `bytes[DEVICE]` and `bytes[HOST]`, the latter with the threads of `pool` (NULL: alone), and
 * registers host memory with the device. Host memory starts as zeros, device memory is uninitialized. `device` must
 * outlive the tiers; close with ox_tiers_close(). */
OX_MUST enum ox_status ox_tiers_open(struct ox_device *device, struct ox_pool *pool,
                                     const uint64_t bytes[OX_TIER_COUNT], struct ox_tiers *out);
void ox_tiers_close(struct ox_tiers *tiers);

/* The view of a task's use. Asserts that the task has that use and that the buffer lies inside its arena. */
struct ox_view ox_tiers_view(const struct ox_tiers *tiers, const struct ox_plan *plan,
                               const struct ox_task *task, enum ox_use_role role);

/* As above, with ptr = NULL when the task has no such use, or when it is a spool extent. */
struct ox_view ox_tiers_view_if(const struct ox_tiers *tiers, const struct ox_plan *plan,
                                  const struct ox_task *task, enum ox_use_role role);
struct ox_view ox_tiers_nth_view_if(const struct ox_tiers *tiers, const struct ox_plan *plan,
                                    const struct ox_task *task, enum ox_use_role role, uint32_t nth);

/* The view of a resident buffer, for use between steps. */
struct ox_view ox_tiers_resident(const struct ox_tiers *tiers, const struct ox_plan *plan, uint32_t buf_idx);

/* The host arena after the plan's resident part, free for other use between steps. */
struct ox_view ox_tiers_scratch(const struct ox_tiers *tiers, const struct ox_plan *plan);

#ifdef __cplusplus
}
#endif
#endif
