/* Lane LINK on a GPU: what ranks do together is put on a lane of the device, so that no host lies between a layer's
 * products and its calls. The lane waits for a call's inputs, and those who use what it brings wait for its mark, all
 * on the device; the issuing thread runs ahead.
 *
 * The lane of the host that LINK was goes on beside it. In list order it makes the calls that need the host, for which
 * the lane of the device then waits, and watches all others: it compares them with those of the other ranks while bytes
 * move, and names who is late. So all calls of a rank have one order, that of its list, over all communicators. */
#include "engine/step/link/link.h"

#include "base/hash/hash.h"

enum ox_status ox_link_open_order(struct ox_rank *rank) {
    struct ox_lane *lane = NULL;
    if (rank->comm == NULL || !ox_comm_queues(rank->comm) || rank->lanes[OX_LANE_LINK] == NULL) {
        return OX_OK;
    }
    const enum ox_status status = ox_device_lane_open(rank->device, ox_lane_name(OX_LANE_LINK), &lane);
    if (status == OX_OK) {
        rank->link_host = rank->lanes[OX_LANE_LINK];
        rank->lanes[OX_LANE_LINK] = lane;
    }
    return status;
}

static enum ox_axis axis_of(const struct ox_rank *rank, const struct ox_task *task) {
    return task->move == OX_MOVE_ROWS                  ? ox_plan_task_cut(&rank->plan->input, task)->axis
           : task->move == OX_MOVE_GRAD && task->last ? OX_AXIS_COPY : (enum ox_axis)task->axis;
}

struct ox_lane *ox_link_lane(const struct ox_rank *rank, const struct ox_task *task) {
    const bool is_ordered = rank->link_host != NULL && ox_plan_calls_on_device(&rank->plan->input, task);
    return is_ordered ? rank->lanes[OX_LANE_LINK] : NULL;
}

/* ---- issuing ------------------------------------------------------------------------------------------- */

struct watch {
    struct ox_comm *comm;
    uint64_t calls;
    struct ox_mark done;
};

static enum ox_status watch_calls(void *rank, const void *args) {
    const struct watch *const watch = args;
    const enum ox_status status = ox_comm_watch(watch->comm, watch->calls, watch->done);
    ox_link_abort(rank, status);
    return status;
}

/* The host makes the calls, and what comes later on the device's lane waits for it. */
static enum ox_status hand_over(struct ox_rank *rank, const struct ox_link_job *job) {
    struct ox_mark made = {0};
    rank->step.link_calls[0]++;
    OX_TRY(ox_host_lane_submit(rank->link_host, job->run, job->args, job->bytes, &made));
    return ox_lane_wait(rank->lanes[OX_LANE_LINK], made);
}

static enum ox_status put(struct ox_rank *rank, const struct ox_plan *plan, const struct ox_task *task,
                          struct ox_mark *done) {
    struct watch watch = {.comm = rank->along[axis_of(rank, task)]};
    const uint64_t before = ox_comm_queued(watch.comm);
    rank->step.link_calls[1]++;
    OX_TRY(ox_link_run(rank, plan, task));
    OX_TRY(rank->ops.mark(rank->lanes[OX_LANE_LINK], done));
    watch.calls = ox_comm_queued(watch.comm) - before;
    watch.done = *done;
    return ox_host_lane_submit(rank->link_host, watch_calls, &watch, sizeof watch, NULL);
}

enum ox_status ox_link_issue(struct ox_rank *rank, const struct ox_plan *plan, const struct ox_task *task,
                             const struct ox_link_job *job, struct ox_mark *done) {
    struct ox_mark ready = {0}; /* the device has come to the task: time before is no wait for others */
    OX_TRY(rank->ops.mark(rank->lanes[OX_LANE_LINK], &ready));
    OX_TRY(ox_lane_wait(rank->link_host, ready));
    if (ox_link_lane(rank, task) != NULL) {
        return put(rank, plan, task, done);
    }
    OX_TRY(hand_over(rank, job));
    return rank->ops.mark(rank->lanes[OX_LANE_LINK], done);
}

/* ---- failures ------------------------------------------------------------------------------------------ */

void ox_link_stop(struct ox_rank *rank) {
    if (rank->link_host == NULL || ox_comm_cause(rank->comm) == OX_OK) {
        return;
    }
    ox_comm_stop(rank->comm);
    for (int axis = 0; axis < OX_AXIS_COUNT; axis++) {
        if (ox_link_has_group(rank, axis)) {
            ox_comm_stop(rank->along[axis]);
        }
    }
}

enum ox_status ox_link_drain(struct ox_rank *rank) {
    if (rank->link_host == NULL) {
        return OX_OK;
    }
    const enum ox_status status = ox_lane_drain(rank->link_host);
    ox_lane_reset(rank->link_host);
    return status;
}

/* ---- agreement ----------------------------------------------------------------------------------------- */

struct ox_link_calls ox_link_calls(const struct ox_rank *rank, const struct ox_plan *plan) {
    struct ox_link_calls calls = {{0}};
    for (uint32_t i = 0; i < plan->task_count; i++) {
        const struct ox_task *const task = &plan->tasks[i];
        if (ox_plan_calls_on_device(&rank->plan->input, task)) { /* as offload/proof/joint.c compares tasks */
            uint64_t *const along = &calls.along[axis_of(rank, task)];
            const uint64_t call[] = {*along, task->move, task->last, task->phase, task->pass, task->carried, task->when,
                                     task->stage_idx, task->mb_idx, task->unit_idx, task->grad_idx, task->slot};
            *along = ox_hash64(call, sizeof call, 0);
        }
    }
    return calls;
}

static const struct ox_link_calls *calls_of(const struct ox_link_calls *all, size_t apart, uint32_t idx) {
    return (const struct ox_link_calls *)(const void *)((const unsigned char *)all + idx * apart);
}

enum ox_status ox_link_same_calls(const struct ox_rank *rank, const struct ox_link_calls *all, size_t apart) {
    for (int axis = 0; axis < OX_AXIS_COUNT; axis++) {
        const struct ox_rank_group group = ox_plan_group(&rank->plan->input, (enum ox_axis)axis);
        for (uint32_t i = 1; i < group.count && rank->along[axis] != NULL; i++) {
            const uint32_t first = ox_rank_group_member(&group, 0), member = ox_rank_group_member(&group, i);
            if (calls_of(all, apart, member)->along[axis] != calls_of(all, apart, first)->along[axis]) {
                return ox_fail(OX_E_CONFIG, "rank %u has another list of calls than rank %u, with which it makes them; "
                               "start all ranks with the same options, data and version", member, first);
            }
        }
    }
    return OX_OK;
}
