/* What a rank does together with the others: it gathers slices, agrees on how a step begins and what its norm came to,
 * and meets the others around a transaction. Without other ranks there is nothing to do. */
#include "engine/step/link/link.h"
#include "engine/step/planes/planes.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/pool.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Channels of meetings: what one lane's thread calls has an order of its own. */
enum { CHANNEL_ISSUE, CHANNEL_REDUCE, CHANNEL_ADAM };

static struct ox_view view(const struct ox_rank *rank, const struct ox_plan *plan, const struct ox_task *task,
                           enum ox_use_role role) {
    return ox_tiers_view_if(&rank->tiers, plan, task, role);
}

void ox_link_abort(struct ox_rank *rank, enum ox_status status) {
    if (rank->comm != NULL && status != OX_OK && status != OX_E_ABORTED) {
        char text[OX_ERROR_TEXT_BYTES];
        memcpy(text, ox_error_text(), sizeof text);
        ox_comm_abort(rank->comm, status, text);
    }
}

struct ox_comm_limits ox_link_limits(const struct ox_engine_config *config) {
    return (struct ox_comm_limits){.fail_ms = (uint32_t)ox_min_u64(config->comm_timeout_ns / 1000000, UINT32_MAX)};
}

/* ---- endpoints ---------------------------------------------------------------------------------------- */

/* One for the rank's group on each axis, and one for the transfers of a pipeline. */
_Static_assert((int)OX_AXIS_COUNT + 1 <= (int)OX_COMM_SPLITS, "all axes may be there together");

/* Opens an endpoint for the rank's group on an axis. Splits are numbered as they are opened, which is the same on all
 * ranks. */
static enum ox_status open_group(struct ox_rank *rank, enum ox_axis axis, uint32_t split, bool duplex,
                                 struct ox_comm **out) {
    const struct ox_rank_group group = ox_plan_group(&rank->plan->input, axis);
    uint32_t members[OX_COMM_RANKS_MAX];
    for (uint32_t i = 0; i < group.count; i++) {
        members[i] = ox_rank_group_member(&group, i);
    }
    OX_ASSERT(split < OX_COMM_SPLITS);
    return ox_comm_split(rank->comm, &(struct ox_comm_group_of){
        .split = split, .duplex = duplex, .count = group.count, .members = members}, out);
}

enum ox_status ox_link_open_groups(struct ox_rank *rank) {
    const struct ox_mesh mesh = ox_plan_mesh(&rank->plan->input);
    uint32_t split = 0;
    enum ox_status status = OX_OK;
    for (int axis = 0; axis < OX_AXIS_COUNT && status == OX_OK; axis++) {
        if (ox_mesh_is_all(&mesh, (enum ox_axis)axis)) {
            rank->along[axis] = rank->comm;
        } else if (ox_plan_group(&rank->plan->input, (enum ox_axis)axis).count > 1) {
            status = open_group(rank, (enum ox_axis)axis, split++, false, &rank->along[axis]);
        }
    }
    if (status == OX_OK && mesh.size[OX_AXIS_PIPE] > 1) {
        status = open_group(rank, OX_AXIS_PIPE, split, true, &rank->pipe);
    }
    return status;
}

bool ox_link_has_group(const struct ox_rank *rank, int axis) {
    return rank->along[axis] != NULL && rank->along[axis] != rank->comm;
}

void ox_link_close(struct ox_rank *rank) {
    for (int axis = 0; axis < OX_AXIS_COUNT; axis++) {
        if (ox_link_has_group(rank, axis)) {
            ox_comm_close(&rank->along[axis]);
        }
        rank->along[axis] = NULL;
    }
    ox_comm_close(&rank->pipe);
    ox_comm_close(&rank->comm);
    ox_link_close_routes(rank);
}

/* Puts a layer over the rank's endpoints, that with all ranks first; not over that of transfers. */
static enum ox_status put_over(struct ox_rank *rank, enum ox_status (*open)(struct ox_rank *, struct ox_comm **)) {
    struct ox_comm *const all = rank->comm;
    enum ox_status status = open(rank, &rank->comm);
    for (int axis = 0; axis < OX_AXIS_COUNT; axis++) {
        if (rank->along[axis] == all) {
            rank->along[axis] = rank->comm;
        } else if (rank->along[axis] != NULL) {
            OX_THEN(status, open(rank, &rank->along[axis]));
        }
    }
    return status;
}

static enum ox_status open_nccl(struct ox_rank *rank, struct ox_comm **comm) {
    struct ox_comm_nccl_config config = {.device = rank->device, .limits = ox_link_limits(&rank->config),
                                         .agrees = rank->config.comm_debug};
    struct ox_comm *over = NULL;
    enum ox_status status = ox_cuda_nccl(rank->device, &config.library);
    if (status != OX_OK) {
        ox_link_abort(rank, status);
        return status;
    }
    OX_THEN(status, ox_comm_nccl_open(*comm, &config, &over));
    *comm = over != NULL ? over : *comm;
    return status;
}

/* Transfers of a pipeline: between processes, where devices cannot copy to each other. */
static enum ox_status open_pairs(struct ox_rank *rank) {
    struct ox_comm_nccl_config config = {.device = rank->device, .limits = ox_link_limits(&rank->config)};
    struct ox_comm *over = NULL;
    if (rank->pipe == NULL || rank->config.team == NULL) {
        return OX_OK;
    }
    enum ox_status status = ox_cuda_nccl(rank->device, &config.library);
    OX_THEN(status, ox_comm_nccl_pairs_open(rank->pipe, &config, &over));
    rank->pipe = over != NULL ? over : rank->pipe;
    return status;
}

enum ox_status ox_link_open_nccl(struct ox_rank *rank) {
    enum ox_status status = put_over(rank, open_nccl);
    OX_THEN(status, open_pairs(rank));
    OX_THEN(status, ox_link_open_order(rank));
    return status;
}

static enum ox_status delay(struct ox_rank *rank, struct ox_comm **comm) {
    struct ox_comm *delayed = NULL;
    const enum ox_status status =
        ox_comm_chaos_open(*comm, rank->config.chaos_seed, OX_CHAOS_NS_MAX, &delayed);
    *comm = delayed != NULL ? delayed : *comm;
    return status;
}

enum ox_status ox_link_delay(struct ox_rank *rank) {
    if (rank->comm == NULL || rank->config.chaos_seed == 0) {
        return OX_OK;
    }
    enum ox_status status = put_over(rank, delay);
    OX_THEN(status, rank->pipe == NULL ? OX_OK : delay(rank, &rank->pipe));
    return status;
}

enum ox_status ox_link_revive(struct ox_rank *rank) {
    enum ox_status status = ox_comm_revive(rank->comm);
    for (int axis = 0; axis < OX_AXIS_COUNT; axis++) {
        if (ox_link_has_group(rank, axis)) {
            OX_THEN(status, ox_comm_revive(rank->along[axis]));
        }
    }
    OX_THEN(status, rank->pipe == NULL ? OX_OK : ox_comm_revive(rank->pipe));
    return status;
}

/* ---- agreement ---------------------------------------------------------------------------------------- */

static enum ox_status different(uint32_t rank, const char *what) {
    return ox_fail(OX_E_CONFIG, "rank %u has another %s than rank 0; start all ranks with the same options, data and "
                   "version", rank, what);
}

static bool asks_stop(const struct ox_rank *rank) {
    return ox_is_raised(rank->step.input->stop);
}

/* What all ranks must begin a step with. */
struct begin {
    uint64_t step, weights_step, target_count, plan_kind, facts;
    double max_grad_norm, loss_scale;
    uint64_t stop; /* may differ: if any rank is asked to stop, all do */
    struct ox_link_calls calls; /* equal within groups */
};

enum ox_status ox_link_begin(struct ox_rank *rank) {
    struct begin all[OX_COMM_RANKS_MAX];
    if (rank->comm == NULL) {
        return OX_OK;
    }
    struct begin mine = {
        .step = rank->step.input->step, .weights_step = rank->step.weights_step,
        .target_count = rank->step.input->target_count, .plan_kind = rank->step.plan->kind,
        .facts = rank->step.facts, .max_grad_norm = rank->step.input->max_grad_norm,
        .loss_scale = rank->step.input->loss_scale, .stop = asks_stop(rank)};
    mine.calls = ox_link_calls(rank, rank->step.plan);
    enum ox_status status = ox_comm_meet(rank->comm, &(struct ox_comm_meet){
        .channel = CHANNEL_ISSUE, .mine = &mine, .mine_bytes = sizeof mine, .slot_bytes = sizeof mine, .all = all,
        .what = "the beginning of a step"});
    for (uint32_t i = 0; i < rank->comm->count && status == OX_OK; i++) {
        rank->step.stopped |= all[i].stop != 0;
        status = all[i].step != all[0].step || all[i].weights_step != all[0].weights_step ? different(i, "step")
                 : all[i].target_count != all[0].target_count ? different(i, "number of tokens in the step")
                 : memcmp(&all[i], &all[0], offsetof(struct begin, stop)) != 0 ? different(i, "kind of step") : OX_OK;
    }
    OX_THEN(status, ox_link_same_calls(rank, &all[0].calls, sizeof all[0]));
    return status == OX_OK && rank->step.stopped ? ox_fail(OX_E_ABORTED, "stopped before the step began") : status;
}

/* One rank's loss, norm and clip scale. All but `stop` must have the same bits everywhere. */
struct agreement {
    double loss, norm, scale;
    uint64_t stop;
};

enum ox_status ox_link_agree(struct ox_rank *rank) {
    struct ox_step_state *const step = &rank->step;
    struct agreement all[OX_COMM_RANKS_MAX];
    if (rank->comm == NULL) {
        return OX_OK;
    }
    const struct agreement mine = {.loss = step->loss, .norm = step->grad_norm, .scale = step->grad_scale,
                                   .stop = asks_stop(rank)};
    enum ox_status status = ox_comm_meet(rank->comm, &(struct ox_comm_meet){
        .channel = CHANNEL_REDUCE, .mine = &mine, .mine_bytes = sizeof mine, .slot_bytes = sizeof mine, .all = all,
        .what = "the norm of a step"});
    for (uint32_t i = 0; i < rank->comm->count && status == OX_OK; i++) {
        step->stopped |= all[i].stop != 0;
        if (memcmp(&all[i], &all[0], offsetof(struct agreement, stop)) != 0) {
            status = ox_fail(OX_E_CORRUPT, "rank %u found loss %.17g and gradient norm %.17g, rank 0 %.17g and %.17g, "
                             "from the same sums: memory or a link of one of them is faulty; the step is not taken", i,
                             all[i].loss, all[i].norm, all[0].loss, all[0].norm);
        }
    }
    return status;
}

enum ox_status ox_link_meet(struct ox_rank *rank, const char *what) {
    return rank->comm == NULL ? OX_OK
                              : ox_comm_meet(rank->comm, &(struct ox_comm_meet){.channel = CHANNEL_ADAM, .what = what});
}

/* ---- slices ------------------------------------------------------------------------------------------- */

/* Member r of a group has bytes [at[r], at[r + 1]) of a vector. */
struct cuts {
    uint64_t at[OX_COMM_RANKS_MAX + 1];
};

/* Cuts a vector of the unit where the slices of the ranks along an axis begin, with `width` bytes for every `elems`
 * elements; one that is shorter than the unit ends after `past` elements. Of those that divide a copy, the ones that
 * have the unit's experts may have all of it: every so many of them. */
static struct cuts cut_unit(const struct ox_rank *rank, uint32_t unit_idx, enum ox_axis axis, uint64_t width,
                            uint64_t elems, uint64_t past) {
    const struct ox_plan_input *const input = &rank->plan->input;
    const uint32_t members = ox_plan_group(input, axis).count, holders = ox_plan_holders_of(input, unit_idx);
    const uint32_t apart = members / holders, owner = apart > 1 ? ox_plan_expert_owner(&input->ranks, unit_idx) : 0;
    struct cuts cuts = {{0}};
    for (uint32_t i = 0; i <= members; i++) {
        const uint32_t before = (i + apart - 1 - owner) / apart; /* holders among the first i members */
        cuts.at[i] = ox_min_u64(ox_shard_cut(rank->whole, unit_idx, holders, before), past) / elems * width;
    }
    return cuts;
}

/* Cuts a gradient along an axis, as it is exchanged there: among the holders of its unit, or the slice that copies have
 * among these. */
static struct cuts cut_grad(const struct ox_rank *rank, uint32_t grad_idx, enum ox_axis axis) {
    const struct ox_plan_input *const input = &rank->plan->input;
    const struct ox_plan_grad *const grad = &input->model.grads[grad_idx];
    struct cuts cuts = {{0}};
    if (axis != OX_AXIS_COPY) {
        cuts = cut_unit(rank, grad->unit_idx, axis, 1, 1, grad->elem_count);
    } else {
        for (uint32_t i = 0; i <= ox_plan_copies(input); i++) {
            cuts.at[i] = ox_plan_grad_cut_first(input, grad_idx, i);
        }
    }
    for (uint32_t i = 0; i <= OX_COMM_RANKS_MAX; i++) {
        cuts.at[i] = ox_exchange_bytes(ox_plan_exchange_dtype(input, axis), cuts.at[i]);
    }
    return cuts;
}

/* Gathers, and counts what came from other ranks and went to them. */
static enum ox_status gather(struct ox_rank *rank, struct ox_comm *comm, const struct ox_comm_gather *call,
                             enum ox_traffic_kind kind) {
    const enum ox_status status = ox_comm_gather(comm, call);
    if (status == OX_OK) {
        const uint32_t ranks = comm->count;
        const uint64_t own = call->cuts[comm->rank + 1] - call->cuts[comm->rank];
        ox_rank_count(rank, OX_LINK_PEER_IN, kind, call->cuts[ranks] - call->cuts[0] - own);
        ox_rank_count(rank, OX_LINK_PEER_OUT, kind, own * (ranks - 1));
    }
    return status;
}

/* Cuts hi, or lo, which is as wide as hi where a unit has one. What is narrow ends with a whole page. */
static struct cuts cut_plane(const struct ox_rank *rank, uint32_t unit_idx, enum ox_axis axis) {
    const struct ox_shard *const shard = &rank->whole->shards[unit_idx];
    struct cuts cuts = cut_unit(rank, unit_idx, axis, 1, 1, shard->elem_count);
    for (uint32_t i = 0; i <= OX_COMM_RANKS_MAX; i++) {
        cuts.at[i] = ox_shard_hi_bytes(shard, cuts.at[i]);
    }
    return cuts;
}

/* Gathers one plane of a unit's weights in compute memory. Those that lie in host memory the device takes over its own
 * link. */
static enum ox_status gather_plane(struct ox_rank *rank, const struct ox_task *task, const void *source,
                                   unsigned char *target) {
    const bool unified = rank->config.budget.unified;
    struct ox_comm *const comm = rank->along[task->axis];
    char what[OX_COMM_WHAT_BYTES];
    const struct cuts cuts = cut_plane(rank, task->unit_idx, (enum ox_axis)task->axis);
    snprintf(what, sizeof what, "weights of unit %u", task->unit_idx);
    const struct ox_comm_gather call = {
        .source = source, .target = target, .cuts = cuts.at, .on_host = unified, .lane = ox_link_lane(rank, task),
        .what = what};
    if (unified || ox_rank_rules(rank, task->unit_idx)->gather_tier != OX_TIER_HOST) {
        return gather(rank, comm, &call, OX_TRAFFIC_WEIGHTS);
    }
    const enum ox_status status = ox_comm_gather(comm, &call);
    if (status == OX_OK) {
        ox_rank_count(rank, OX_LINK_H2D, OX_TRAFFIC_WEIGHTS, cuts.at[comm->count] - cuts.at[0]);
    }
    return status;
}

/* Brings a whole unit together, [hi | lo]. The lo of a slice is behind its hi or at the front of its state. */
static enum ox_status gather_weights(struct ox_rank *rank, const struct ox_plan *plan, const struct ox_task *task) {
    const unsigned char *const slice = view(rank, plan, task, OX_USE_SOURCE).ptr;
    const unsigned char *const state = view(rank, plan, task, OX_USE_STATE).ptr;
    unsigned char *const whole = view(rank, plan, task, OX_USE_TARGET).ptr;
    enum ox_status status = gather_plane(rank, task, slice, whole);
    if (status == OX_OK && ox_rank_rules(rank, task->unit_idx)->lo_travels) {
        status = gather_plane(rank, task,
                              state != NULL ? state : slice + ox_slice_elems(rank, task->unit_idx) * OX_HI_BYTES,
                              whole + ox_unit_elems(rank, task->unit_idx) * OX_HI_BYTES);
    }
    if (status == OX_OK) {
        const int use = ox_task_find_use(task, OX_USE_TARGET);
        const uint32_t buf_idx = task->uses[use].buf_idx;
        ox_guard_gathered(rank, buf_idx, whole, plan->bufs[buf_idx].bytes);
    }
    return status;
}

/* Gathers doubles of the host in place, where each rank has its own. */
static enum ox_status gather_doubles(struct ox_rank *rank, struct ox_comm *comm, void *all, const struct cuts *cuts,
                                     const char *what) {
    return gather(rank, comm, &(struct ox_comm_gather){
        .source = (unsigned char *)all + cuts->at[comm->rank], .target = all, .cuts = cuts->at, .on_host = true,
        .what = what}, OX_TRAFFIC_OTHER);
}

static enum ox_status gather_partials(struct ox_rank *rank, double *norms, uint32_t unit_idx) {
    char what[OX_COMM_WHAT_BYTES];
    const struct cuts cuts =
        cut_unit(rank, unit_idx, OX_AXIS_SHARD, sizeof(double), OX_GROUP_ELEMS, ox_unit_elems(rank, unit_idx));
    snprintf(what, sizeof what, "square sums of unit %u", unit_idx);
    return gather_doubles(rank, rank->along[OX_AXIS_SHARD], norms + ox_norm_partials_first(rank, unit_idx), &cuts,
                          what);
}

/* Whether member `at` of the rank's group on an axis gives the total of a unit to the others. */
static bool gives_total(const struct ox_plan_input *input, enum ox_axis axis, uint32_t at, uint32_t unit_idx) {
    const uint32_t owner = ox_plan_owner(&input->ranks, unit_idx);
    return input->model.units[unit_idx].trained &&
           (axis == OX_AXIS_PIPE ? owner == at
                                 : owner == ox_plan_pipe_at(input) &&
                                       ox_plan_tensor_owner(&input->ranks, unit_idx) == at);
}

/* The totals of units travel by the coordinates that hold them. They stand in for the partial sums of units that the
 * rank does not hold. */
static enum ox_status gather_totals(struct ox_rank *rank, enum ox_axis axis, double *norms) {
    const struct ox_plan_input *const input = &rank->plan->input;
    const struct ox_rank_group group = ox_plan_group(input, axis);
    const uint32_t unit_count = input->model.unit_count;
    struct cuts cuts = {{0}};
    /* What each coordinate gives is known to all from the plan, so that no sizes need to travel. */
    for (uint32_t at = 0; at < group.count; at++) {
        uint64_t count = cuts.at[at] / sizeof *norms;
        for (uint32_t i = 0; i < unit_count; i++) {
            if (gives_total(input, axis, at, i)) {
                rank->totals[count++] = at == group.idx ? ox_norm_total(rank, norms, i) : 0;
            }
        }
        cuts.at[at + 1] = count * sizeof *norms;
    }
    const enum ox_status status =
        gather_doubles(rank, rank->along[axis], rank->totals, &cuts, "square sums of units");
    uint64_t count = 0;
    for (uint32_t at = 0; at < group.count && status == OX_OK; at++) {
        for (uint32_t i = 0; i < unit_count; i++) {
            if (gives_total(input, axis, at, i)) {
                double *const first = &norms[ox_norm_partials_first(rank, i)];
                /* A total in the place of a unit's first partial sum: the norm is then added in the order of units,
                 * as one rank adds it. */
                *first = at == group.idx ? *first : rank->totals[count];
                count++;
            }
        }
    }
    return status;
}

/* Reports come from the ranks that compute the head, of each those of its micro-batches. */
static enum ox_status gather_losses(struct ox_rank *rank, double *losses) {
    const struct ox_plan_input *const input = &rank->plan->input;
    struct ox_sums sums = ox_plan_sums(input);
    const uint64_t bytes = ox_plan_report_bytes(&input->model);
    const uint32_t head = ox_plan_stage_owner(input, input->model.stage_count - 1) * ox_plan_data_ranks(input) *
                          ox_plan_tensors(input); /* of several that divide features the first */
    struct cuts cuts = {{0}};
    for (uint32_t i = 0; i < ox_plan_rank_count(input); i++) {
        const bool gives = i >= head && i < head + sums.ranks;
        sums.rank = gives ? i - head : 0;
        cuts.at[i + 1] = cuts.at[i] + (gives ? ox_sums_count(&sums) * bytes : 0);
    }
    return gather_doubles(rank, rank->comm, losses, &cuts, "losses");
}

/* Reports of a pipeline's ranks, in parts: what heads leave and, `of_stages`, what stages report. */
struct parts {
    double *packed, *reports;
    bool of_stages, back; /* back: to the reports */
};

/* Goes over what a rank gives of its reports: of each of its micro-batches what its head has left, and its stages. */
static void copy_given(const struct ox_plan_input *input, uint32_t from, struct parts parts) {
    const struct ox_plan_model *const model = &input->model;
    const struct ox_mesh mesh = ox_plan_mesh(input);
    const uint32_t at = ox_mesh_speaks_for(&mesh, from);
    const uint64_t of_head = ox_plan_loss_bytes(model) / sizeof(double);
    uint32_t reporters = 0;
    for (uint32_t i = 0; i < model->stage_count; i++) {
        reporters += model->stages[i].reports;
    }
    const uint64_t part = model->report_doubles / reporters;
    struct ox_sums sums = ox_plan_sums(input);
    sums.rank = from % ox_plan_data_ranks(input);
    /* The same walk packs and unpacks, so that sender and receiver cannot disagree about the order. */
    for (uint32_t mb_idx = 0; mb_idx < ox_sums_count(&sums); mb_idx++) {
        double *at_report = parts.reports + of_head +
                            (ox_sums_first(&sums) + mb_idx) * (of_head + model->report_doubles);
        for (uint32_t i = 0; i < model->stage_count; i++) {
            const bool is_head = i + 1 == model->stage_count;
            double *const own = is_head ? at_report - model->report_doubles - of_head : at_report;
            const uint64_t count = is_head ? of_head : model->stages[i].reports ? part : 0;
            if (count > 0 && ox_plan_stage_owner(input, i) == at && (is_head || parts.of_stages)) {
                memcpy(parts.back ? own : parts.packed, parts.back ? parts.packed : own, count * sizeof *own);
                parts.packed += count;
            }
            at_report += is_head ? 0 : count;
        }
    }
}

/* In a pipeline a report is in parts, which travel packed. */
static enum ox_status gather_reports(struct ox_rank *rank, double *reports, bool of_stages) {
    const struct ox_plan_input *const input = &rank->plan->input;
    const struct ox_mesh mesh = ox_plan_mesh(input);
    struct ox_sums sums = ox_plan_sums(input);
    struct cuts cuts = {{0}};
    for (uint32_t i = 0; i < ox_plan_rank_count(input); i++) {
        sums.rank = i % ox_plan_data_ranks(input);
        cuts.at[i + 1] = cuts.at[i] + ox_sums_count(&sums) *
                                          ox_plan_given_report_bytes(input, ox_mesh_speaks_for(&mesh, i), of_stages);
    }
    struct parts parts = {.reports = reports, .of_stages = of_stages};
    parts.packed = rank->reports + cuts.at[input->ranks.idx] / sizeof *reports;
    copy_given(input, input->ranks.idx, parts);
    parts.back = true;
    const enum ox_status status = gather_doubles(rank, rank->comm, rank->reports, &cuts, "losses and loads");
    for (uint32_t i = 0; i < ox_plan_rank_count(input) && status == OX_OK; i++) {
        parts.packed = rank->reports + cuts.at[i] / sizeof *reports;
        copy_given(input, i, parts);
    }
    return status;
}

/* ---- gradients ------------------------------------------------------------------------------------------ */

/* How many parts have a lower number than `part`: these lie before the slices of its round. */
static uint64_t parts_before(const struct ox_sums *sums, uint32_t part) {
    uint64_t count = 0;
    for (uint32_t i = 0; i < part; i++) {
        count += ox_sums_givers(sums, i);
    }
    return count;
}

/* Where the part lies that the rank gives, among those of `bytes` that were rounded, or where it was summed. */
static uint64_t given_offset(const struct ox_plan_input *input, const struct ox_task *task, uint64_t bytes) {
    const enum ox_axis axis = (enum ox_axis)task->axis;
    return ox_plan_exchange_dtype(input, axis) != OX_EXCHANGE_FP32
               ? task->slot * bytes : ox_plan_part_offset(input, task->grad_idx, axis, task->slot);
}

/* Exchanges one part of each member along an axis that has it: each slice of it goes to the one whose slice it is. */
static enum ox_status exchange(struct ox_rank *rank, const struct ox_plan *plan, const struct ox_task *task) {
    const enum ox_axis axis = (enum ox_axis)task->axis;
    struct ox_comm *const comm = rank->along[axis];
    const struct ox_sums sums = ox_plan_sums_along(&rank->plan->input, axis);
    const struct cuts cuts = cut_grad(rank, task->grad_idx, axis);
    const uint64_t slice_bytes = cuts.at[comm->rank + 1] - cuts.at[comm->rank];
    const unsigned char *const source = view(rank, plan, task, OX_USE_SOURCE).ptr;
    unsigned char *const parts = view(rank, plan, task, OX_USE_TARGET).ptr;
    bool gives[OX_COMM_RANKS_MAX];
    char what[OX_COMM_WHAT_BYTES];
    struct ox_sums other = sums;
    /* Who has a part in this round follows from the numbers of ranks alone; one that has none takes part all the
     * same. */
    for (uint32_t i = 0; i < comm->count; i++) {
        other.rank = sums.span_first + i;
        gives[i] = ox_sums_part_count(&other) > task->slot;
    }
    const bool is_giver = gives[comm->rank];
    snprintf(what, sizeof what, "part %u of gradient %u", task->slot, task->grad_idx);
    const enum ox_status status = ox_comm_exchange(comm, &(struct ox_comm_exchange){
        .source = is_giver ? source + given_offset(&rank->plan->input, task, cuts.at[comm->count]) : NULL,
        .target = parts + parts_before(&sums, task->slot) * slice_bytes,
        .cuts = cuts.at, .gives = gives, .on_host = rank->config.budget.unified, .lane = ox_link_lane(rank, task),
        .what = what});
    /* Counted where bytes cross, and only if they did: the sum is compared with the plan's at the end of the step. */
    if (status == OX_OK) {
        const uint64_t whole = cuts.at[comm->count], givers = ox_sums_givers(&sums, task->slot) - is_giver;
        ox_rank_count(rank, OX_LINK_PEER_IN, OX_TRAFFIC_GRADS, givers * slice_bytes);
        ox_rank_count(rank, OX_LINK_PEER_OUT, OX_TRAFFIC_GRADS, is_giver ? whole - slice_bytes : 0);
    }
    return status;
}

/* Lets the library add the rank's sum of a gradient to those of the others; the rank gets its slice of the result. */
static enum ox_status reduce_scatter(struct ox_rank *rank, const struct ox_plan *plan, const struct ox_task *task) {
    struct ox_comm *const comm = rank->along[task->axis];
    const struct cuts cuts = cut_grad(rank, task->grad_idx, (enum ox_axis)task->axis);
    char what[OX_COMM_WHAT_BYTES];
    snprintf(what, sizeof what, "gradient %u", task->grad_idx);
    const enum ox_status status = ox_comm_reduce_scatter(comm, &(struct ox_comm_reduce_scatter){
        .source = view(rank, plan, task, OX_USE_SOURCE).ptr, .target = view(rank, plan, task, OX_USE_TARGET).ptr,
        .cuts = cuts.at, .on_host = rank->config.budget.unified, .lane = ox_link_lane(rank, task), .what = what});
    if (status == OX_OK) {
        const uint32_t ranks = comm->count;
        const uint64_t own = cuts.at[comm->rank + 1] - cuts.at[comm->rank];
        ox_rank_count(rank, OX_LINK_PEER_IN, OX_TRAFFIC_GRADS, own * (ranks - 1));
        ox_rank_count(rank, OX_LINK_PEER_OUT, OX_TRAFFIC_GRADS, cuts.at[ranks] - own);
    }
    return status;
}

/* Gathers the finished sum of what the rank has of a gradient from the cuts that copies have added up. */
static enum ox_status gather_sums(struct ox_rank *rank, const struct ox_plan *plan, const struct ox_task *task) {
    const struct cuts cuts = cut_grad(rank, task->grad_idx, OX_AXIS_COPY);
    char what[OX_COMM_WHAT_BYTES];
    snprintf(what, sizeof what, "sum of gradient %u", task->grad_idx);
    return gather(rank, rank->along[OX_AXIS_COPY], &(struct ox_comm_gather){
        .source = view(rank, plan, task, OX_USE_SOURCE).ptr, .target = view(rank, plan, task, OX_USE_TARGET).ptr,
        .cuts = cuts.at, .on_host = rank->config.budget.unified, .lane = ox_link_lane(rank, task), .what = what},
        OX_TRAFFIC_GRADS);
}

/* ---- between the phases of a pass ------------------------------------------------------------------------- */

/* One half of what two ranks give each other in a round: rows of one of them, in all planes that travel. */
struct half {
    const struct ox_plan_rounds *rounds;
    const struct ox_link_routes *routes;
    uint32_t of, to; /* the member whose rows they are, and the one that has their experts */
    bool back;
};

/* The first row of a range, and how many there are, by the routes of the member whose rows they are. */
static void half_rows(const struct half *half, uint32_t range, uint64_t *first, uint64_t *count) {
    const int32_t *const offsets =
        (const int32_t *)(const void *)(half->routes->at + half->of * half->routes->apart);
    const uint32_t expert = range * half->rounds->apart + half->to * half->rounds->each;
    *first = (uint64_t)offsets[expert];
    *count = (uint64_t)(offsets[expert + half->rounds->each] - offsets[expert]);
}

/* Sends a half or receives it, plane by plane. Nothing travels where a rank has no row for the other's experts of a
 * range, which both know. */
static enum ox_status move_half(struct ox_rank *rank, struct ox_comm *comm, const struct half *half,
                                unsigned char *room, const char *what) {
    const struct ox_plan_rounds *const rounds = half->rounds;
    const bool own = half->of == comm->rank, sends = own != half->back;
    const uint32_t peer = own ? half->to : half->of;
    const bool on_host = rank->config.budget.unified;
    const uint32_t begin = half->back ? rounds->returned - 1 : 0, past = half->back ? begin + 1 : rounds->planes;
    enum ox_status status = OX_OK;
    uint64_t first, count;
    for (uint32_t n = 0; n < (past - begin) * rounds->ranges && status == OX_OK; n++) {
        const uint32_t i = begin + n / rounds->ranges;
        half_rows(half, n % rounds->ranges, &first, &count);
        OX_ASSERT(count <= rounds->row_max && (first + count) * rounds->row_bytes <= rounds->plane_bytes);
        if (count == 0) {
            continue;
        }
        unsigned char *const at = room + (own ? rounds->own : rounds->other)[i] + first * rounds->row_bytes;
        const uint64_t bytes = count * rounds->row_bytes;
        status = sends ? ox_comm_send(comm, &(struct ox_comm_send){
                             .peer = peer, .source = at, .bytes = bytes, .on_host = on_host, .what = what})
                       : ox_comm_recv(comm, &(struct ox_comm_recv){
                             .peer = peer, .target = at, .bytes = bytes, .on_host = on_host, .what = what});
        if (status == OX_OK) {
            ox_rank_count(rank, sends ? OX_LINK_PEER_OUT : OX_LINK_PEER_IN, OX_TRAFFIC_TOKENS, bytes);
            rank->step.left_tokens[sends ? OX_LINK_PEER_OUT : OX_LINK_PEER_IN] -= bytes;
        }
    }
    return status;
}

/* Both halves of an exchange between two ranks, of which the first sends first, so that neither waits for ever. */
static enum ox_status swap(struct ox_rank *rank, struct ox_comm *comm, const struct half *of, uint32_t peer,
                           unsigned char *room, const char *what) {
    const uint32_t own = comm->rank;
    const bool back = of->back;
    struct half halves[] = {*of, *of};
    halves[0].of = halves[1].to = own;
    halves[0].to = halves[1].of = peer;
    const uint32_t sent_first = own < peer ? back : !back; /* of the two halves that which this rank does first */
    const enum ox_status status = move_half(rank, comm, &halves[sent_first], room, what);
    return status == OX_OK ? move_half(rank, comm, &halves[1 - sent_first], room, what) : status;
}

/* Gives back what the rank's experts made of the rows of the round before, and gives rows for the next one. */
static enum ox_status pass_round(struct ox_rank *rank, const struct ox_task *task, const struct ox_plan_cut *cut,
                                 unsigned char *room, const char *what) {
    const struct ox_plan_pass *const pass = ox_plan_stage_pass(
        &rank->plan->input.model.stages[task->stage_idx], (enum ox_plan_pass_kind)task->pass);
    struct ox_comm *const comm = rank->along[cut->axis];
    enum ox_status status = OX_OK;
    struct ox_link_routes routes;
    struct half half = {.rounds = &pass->rounds, .routes = &routes, .back = true};
    /* What the plan states is a bound: what is less is left out, as the routes of this micro-batch have it. */
    rank->step.left_tokens[OX_LINK_PEER_IN] += cut->bytes;
    rank->step.left_tokens[OX_LINK_PEER_OUT] += cut->bytes;
    status = ox_link_read_routes(rank, &pass->rounds, comm->count, room, &routes);
    if (status == OX_OK && cut->round > 1 && pass->rounds.returned > 0) {
        status = swap(rank, comm, &half, comm->rank ^ (cut->round - 1u), room, what);
    }
    half.back = false;
    if (status == OX_OK && cut->round < comm->count) {
        status = swap(rank, comm, &half, comm->rank ^ cut->round, room, what);
    }
    return status;
}

/* Gives bytes to the next member and takes as many from the one before. A send waits for its taker: of two neighbours
 * one takes first. */
static enum ox_status shift(struct ox_rank *rank, const struct ox_task *task, const struct ox_plan_cut *cut,
                            const unsigned char *source, unsigned char *target, const char *what) {
    struct ox_comm *const comm = rank->along[cut->axis];
    struct ox_lane *const lane = ox_link_lane(rank, task);
    const bool on_host = rank->config.budget.unified, sends_first = comm->rank % 2 == 0;
    enum ox_status status = OX_OK;
    for (int turn = 0; turn < 2 && status == OX_OK; turn++) {
        const bool sends = sends_first == (turn == 0);
        const uint32_t peer = (comm->rank + (sends ? 1 : comm->count - 1)) % comm->count;
        status = sends ? ox_comm_send(comm, &(struct ox_comm_send){
                             .peer = peer, .source = source, .bytes = cut->bytes, .on_host = on_host, .lane = lane,
                             .what = what})
                       : ox_comm_recv(comm, &(struct ox_comm_recv){
                             .peer = peer, .target = target, .bytes = cut->bytes, .on_host = on_host, .lane = lane,
                             .what = what});
        if (status == OX_OK) {
            ox_rank_count(rank, sends ? OX_LINK_PEER_OUT : OX_LINK_PEER_IN, OX_TRAFFIC_ACTIVATIONS, cut->bytes);
        }
    }
    return status;
}

/* Brings the pieces of all members together, or to each member those for it. `from`: the room of the source. */
static enum ox_status cross(struct ox_rank *rank, const struct ox_task *task, unsigned char *room,
                            const unsigned char *from) {
    const struct ox_plan_cut *const cut = ox_plan_task_cut(&rank->plan->input, task);
    struct ox_comm *const comm = rank->along[cut->axis];
    const uint64_t piece = cut->bytes / comm->count;
    const bool on_host = rank->config.budget.unified;
    struct ox_lane *const lane = ox_link_lane(rank, task);
    struct cuts cuts;
    bool gives[OX_COMM_RANKS_MAX];
    char what[OX_COMM_WHAT_BYTES];
    for (uint32_t i = 0; i <= comm->count; i++) {
        cuts.at[i] = i * piece;
        gives[i < comm->count ? i : 0] = true;
    }
    snprintf(what, sizeof what, "rows of stage %u, micro-batch %u, %s, phase %u", task->stage_idx, task->mb_idx,
             task->pass == OX_PLAN_FORWARD || task->pass == OX_PLAN_FORWARD_KEPT ? "forward" : "backward", task->phase);
    if (cut->kind == OX_CUT_ROUND) {
        return pass_round(rank, task, cut, room, what);
    }
    if (cut->kind == OX_CUT_SHIFT) {
        return shift(rank, task, cut, from + cut->source, room + cut->target, what);
    }
    if (cut->kind == OX_CUT_GATHER) {
        return gather(rank, comm, &(struct ox_comm_gather){
            .source = from + cut->source + cuts.at[comm->rank], .target = room + cut->target, .cuts = cuts.at,
            .on_host = on_host, .lane = lane, .what = what}, OX_TRAFFIC_ACTIVATIONS);
    }
    const enum ox_status status = ox_comm_exchange(comm, &(struct ox_comm_exchange){
        .source = from + cut->source, .target = room + cut->target, .cuts = cuts.at, .gives = gives,
        .on_host = on_host, .lane = lane, .what = what});
    if (status == OX_OK) {
        ox_rank_count(rank, OX_LINK_PEER_IN, OX_TRAFFIC_ACTIVATIONS, cut->bytes - piece);
        ox_rank_count(rank, OX_LINK_PEER_OUT, OX_TRAFFIC_ACTIVATIONS, cut->bytes - piece);
    }
    return status;
}

/* ---- a pipeline ------------------------------------------------------------------------------------------ */

/* Sends bytes at the task's source to another rank of the pipeline, or receives them at its target. */
static enum ox_status pass_bytes(struct ox_rank *rank, const struct ox_plan *plan, const struct ox_task *task,
                                 unsigned char *at, uint64_t bytes, const char *what) {
    const struct ox_rank_group group = ox_plan_group(&rank->plan->input, OX_AXIS_PIPE);
    const bool sends = task->lane == OX_LANE_LINK_OUT;
    const int use = ox_task_find_use(task, sends ? OX_USE_SOURCE : OX_USE_TARGET);
    const bool on_host = rank->config.budget.unified || plan->bufs[task->uses[use].buf_idx].tier == OX_TIER_HOST;
    const uint32_t peer = task->peer;
    OX_ASSERT(peer < group.count && peer != group.idx);
    const enum ox_status status =
        sends ? ox_comm_send(rank->pipe, &(struct ox_comm_send){
                    .peer = peer, .source = at, .bytes = bytes, .on_host = on_host, .what = what})
              : ox_comm_recv(rank->pipe, &(struct ox_comm_recv){
                    .peer = peer, .target = at, .bytes = bytes, .on_host = on_host, .what = what});
    if (status == OX_OK) {
        ox_rank_count(rank, sends ? OX_LINK_PEER_OUT : OX_LINK_PEER_IN, ox_task_traffic(task), bytes);
    }
    return status;
}

/* The planes of a unit on loan, [hi | lo] where they arrive; where they leave, lo may be at the front of the state. */
static enum ox_status lend(struct ox_rank *rank, const struct ox_plan *plan, const struct ox_task *task,
                           unsigned char *hi) {
    unsigned char *const state = view(rank, plan, task, OX_USE_STATE).ptr;
    const uint64_t plane =
        ox_shard_hi_bytes(&rank->whole->shards[task->unit_idx], ox_unit_elems(rank, task->unit_idx));
    char what[OX_COMM_WHAT_BYTES];
    snprintf(what, sizeof what, "weights of unit %u", task->unit_idx);
    enum ox_status status = pass_bytes(rank, plan, task, hi, plane, what);
    if (ox_rank_rules(rank, task->unit_idx)->lo_travels) {
        OX_THEN(status, pass_bytes(rank, plan, task, state != NULL ? state : hi + plane, plane, what));
    }
    if (status == OX_OK && task->lane == OX_LANE_LINK_IN) {
        const uint32_t buf_idx = task->uses[ox_task_find_use(task, OX_USE_TARGET)].buf_idx;
        ox_guard_gathered(rank, buf_idx, hi, plan->bufs[buf_idx].bytes);
    }
    return status;
}

/* Sends activations, their gradient or what is on loan to another rank of the pipeline, or receives it. Both sides name
 * the stage whose input it is, and the micro-batch by its number in the step. */
static enum ox_status transfer(struct ox_rank *rank, const struct ox_plan *plan, const struct ox_task *task) {
    unsigned char *const at =
        view(rank, plan, task, task->lane == OX_LANE_LINK_OUT ? OX_USE_SOURCE : OX_USE_TARGET).ptr;
    char what[OX_COMM_WHAT_BYTES];
    if (task->move == OX_MOVE_WEIGHTS) {
        return lend(rank, plan, task, at);
    }
    if (task->move == OX_MOVE_GRAD) {
        snprintf(what, sizeof what, "gradient %u", task->grad_idx);
    } else {
        snprintf(what, sizeof what, "%s stage %u, micro-batch %u",
                 task->move == OX_MOVE_OUTSIDE_ACT ? "activations of" : "gradient of the input of", task->stage_idx,
                 rank->loss_first + task->mb_idx);
    }
    return pass_bytes(rank, plan, task, at, task->bytes, what);
}

enum ox_status ox_link_run(struct ox_rank *rank, const struct ox_plan *plan, const struct ox_task *task) {
    OX_ASSERT(rank->comm != NULL);
    if (task->lane != OX_LANE_LINK) {
        return transfer(rank, plan, task);
    }
    switch ((enum ox_move)task->move) {
    case OX_MOVE_WEIGHTS:
        return gather_weights(rank, plan, task);
    case OX_MOVE_GRAD:
        return task->last ? gather_sums(rank, plan, task) : exchange(rank, plan, task);
    case OX_MOVE_SUM:
        return reduce_scatter(rank, plan, task);
    case OX_MOVE_PARTIALS:
        return task->axis == OX_AXIS_PIPE || task->axis == OX_AXIS_TENSOR
                   ? gather_totals(rank, (enum ox_axis)task->axis, view(rank, plan, task, OX_USE_TARGET).ptr)
                   : gather_partials(rank, view(rank, plan, task, OX_USE_TARGET).ptr, task->unit_idx);
    case OX_MOVE_LOSSES:
        return ox_plan_pipe(&rank->plan->input) > 1 && rank->plan->input.model.report_doubles > 0
                   ? gather_reports(rank, view(rank, plan, task, OX_USE_TARGET).ptr, task->last)
                   : gather_losses(rank, view(rank, plan, task, OX_USE_TARGET).ptr);
    case OX_MOVE_LOW_RANK:
        return ox_link_sum_low_rank(rank, plan, task);
    case OX_MOVE_ROWS:
        return cross(rank, task, view(rank, plan, task, OX_USE_TARGET).ptr,
                     view(rank, plan, task, ox_task_find_use(task, OX_USE_SOURCE) < 0 ? OX_USE_TARGET
                                                                                      : OX_USE_SOURCE).ptr);
    default:
        OX_ASSERT(!"moves nothing between ranks");
        return OX_E_CONFIG;
    }
}
