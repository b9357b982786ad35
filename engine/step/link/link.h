/* What ranks do together: slices gathered, agreement on a step, meetings around a transaction. */
#ifndef OX_ENGINE_STEP_LINK_H
#define OX_ENGINE_STEP_LINK_H

#include "engine/step/rank/rank.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How long ranks wait for each other. */
struct ox_comm_limits ox_link_limits(const struct ox_engine_config *config);
/* Opens the endpoints of the rank's groups, over `comm`. Puts NCCL over all of them, if all ranks can. And makes them
 * usable again after a failure (ox_comm_revive). All ranks call these at once, each from its own thread. */
OX_MUST enum ox_status ox_link_open_groups(struct ox_rank *rank);
OX_MUST enum ox_status ox_link_open_nccl(struct ox_rank *rank);
OX_MUST enum ox_status ox_link_revive(struct ox_rank *rank);
/* Puts random delays over the endpoints, if the configuration wants them. */
OX_MUST enum ox_status ox_link_delay(struct ox_rank *rank);
void ox_link_close(struct ox_rank *rank);
/* Whether the rank has an endpoint of its own for its group on an axis. */
bool ox_link_has_group(const struct ox_rank *rank, int axis);
/* Compares with the other ranks what a step begins with. Together with ox_link_agree it is where several ranks look at
 * a stop, so that either all stop or none; OX_E_ABORTED then. Without other ranks these four do nothing. */
OX_MUST enum ox_status ox_link_begin(struct ox_rank *rank);
/* Compares what the norm has come to, and sets step.stopped if any rank is asked to stop. */
OX_MUST enum ox_status ox_link_agree(struct ox_rank *rank);
/* Waits until all ranks have come here in the update of the step; `what` names the place in messages. */
OX_MUST enum ox_status ox_link_meet(struct ox_rank *rank, const char *what);
/* Ends what the other ranks wait for, after a failure whose text is this thread's. */
void ox_link_abort(struct ox_rank *rank, enum ox_status status);
/* Sums a gradient over copies as products of thin matrices; a task of lane LINK, on the CPU. */
OX_MUST enum ox_status ox_link_sum_low_rank(struct ox_rank *rank, const struct ox_plan *plan,
                                            const struct ox_task *task);
/* What the rank needs for rounds of experts on a GPU: host memory and a lane. Only this rank's. */
OX_MUST enum ox_status ox_link_open_routes(struct ox_rank *rank);
void ox_link_close_routes(struct ox_rank *rank);
/* Where rows begin, as int32_t by expert from the stage's first on, of each member `apart` bytes behind the one
 * before; for the thread of lane LINK, until it reads others. */
struct ox_link_routes {
    const unsigned char *at;
    uint64_t apart;
};
OX_MUST enum ox_status ox_link_read_routes(struct ox_rank *rank, const struct ox_plan_rounds *rounds, uint32_t members,
                                           const unsigned char *room, struct ox_link_routes *out);
/* ---- calls in the order of the device: ordered.c ---- */

/* Makes lane LINK one of the device, where NCCL takes calls on it. */
OX_MUST enum ox_status ox_link_open_order(struct ox_rank *rank);
/* The lane of the device on which a task of lane LINK puts its calls; NULL: the host makes them, because LINK is its
 * lane, or memory is the host's, or what travels is known to the host alone. */
struct ox_lane *ox_link_lane(const struct ox_rank *rank, const struct ox_task *task);
/* Issues a task where LINK is a lane of the device, which waits for what the task depends on. *done is a mark of that
 * lane. `job` is for the host's part, if the host makes the calls. For the issuing thread. */
struct ox_link_job {
    ox_job_fn *run;
    const void *args;
    size_t bytes;
};
OX_MUST enum ox_status ox_link_issue(struct ox_rank *rank, const struct ox_plan *plan, const struct ox_task *task,
                                     const struct ox_link_job *job, struct ox_mark *done);
/* After a failure: ends the calls that the device has, so that its lanes can be drained; any thread. Nothing if there
 * was none. */
void ox_link_stop(struct ox_rank *rank);
/* Drains the host's part of LINK; returns its first failure, and makes it usable again. */
OX_MUST enum ox_status ox_link_drain(struct ox_rank *rank);
/* A digest of a plan's calls along each axis that a device may order: the same on all ranks of a group. */
struct ox_link_calls {
    uint64_t along[OX_AXIS_COUNT];
};
struct ox_link_calls ox_link_calls(const struct ox_rank *rank, const struct ox_plan *plan);
/* Compares the digests of all ranks, `apart` bytes from one to the next; OX_E_CONFIG names one that has another list
 * than the first rank with which it makes these calls. */
OX_MUST enum ox_status ox_link_same_calls(const struct ox_rank *rank, const struct ox_link_calls *all, size_t apart);

/* Runs a task of lane LINK. */
OX_MUST enum ox_status ox_link_run(struct ox_rank *rank, const struct ox_plan *plan, const struct ox_task *task);

#ifdef __cplusplus
}
#endif
#endif
