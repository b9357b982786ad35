/* What a move finds at its source and leaves in its target. */
#include "offload/proof/effects.h"

#include "base/bytes.h"

struct route {
    enum ox_tier from, to;
    enum ox_link link;
};

/* Where the bytes of a lane come from and go to. */
static struct route route_of(const struct effects *e) {
    const enum ox_tier compute = ox_effects_compute_tier(e);
    switch ((enum ox_lane_id)e->task->lane) {
    case OX_LANE_NVME_READ:
        return (struct route){OX_TIER_NVME, OX_TIER_HOST, OX_LINK_NVME_READ};
    case OX_LANE_NVME_WRITE:
        return (struct route){OX_TIER_HOST, OX_TIER_NVME, OX_LINK_NVME_WRITE};
    case OX_LANE_H2D:
        return (struct route){OX_TIER_HOST, compute, OX_LINK_H2D};
    default:
        return (struct route){compute, OX_TIER_HOST, OX_LINK_D2H};
    }
}

static bool of_drives(struct route route) {
    return route.from == OX_TIER_NVME || route.to == OX_TIER_NVME;
}

static void move(struct effects *e, struct route route, struct ox_content content) {
    ox_effects_need(e, OX_USE_SOURCE, route.from, content);
    ox_effects_fill(e, OX_USE_TARGET, route.to, content);
}

static void need_extent(struct effects *e, uint32_t spool_idx, uint64_t bytes) {
    if (e->plan->spool_bytes[spool_idx] < bytes) {
        ox_effects_reject(e, "moves more than its spool extent holds");
    }
}

/* Weights move from the store, which is no buffer, to the host, and from the host to the device. */
static void move_weights(struct effects *e, struct route route, uint32_t unit_idx) {
    const struct ox_content planes = ox_content(PLANES, unit_idx, CURRENT);
    ox_effects_count(e, route.link, OX_TRAFFIC_WEIGHTS, ox_proof_planes_bytes(e->in, unit_idx));
    ox_effects_asks(e);
    if (!of_drives(route)) {
        move(e, route, planes);
        if (e->in->budget.unified) {
            ox_effects_reject(e, "moves weights that compute can read where they are");
        }
        if (ox_proof_lo_in_state(e->in, unit_idx)) {
            ox_effects_need(e, OX_USE_STATE, OX_TIER_HOST, ox_content(STATE, unit_idx, CURRENT));
        }
        return;
    }
    if (e->in->budget.nvme_bytes == 0 || ox_proof_homes(e->in, unit_idx)->weights != OX_TIER_NVME) {
        ox_effects_reject(e, "reads weights from drives that do not have them");
    }
    if (e->overlap && ox_proof_trained(e->in, unit_idx)) { /* else nothing has been written since the last commit */
        ox_effects_need(e, OX_USE_WRITTEN, OX_TIER_NVME, ox_content(WRITTEN, OX_NONE, 0));
        ox_effects_need_buffer(e, OX_USE_WRITTEN, e->plan->written_buf);
    }
    ox_effects_fill(e, OX_USE_TARGET, OX_TIER_HOST, planes);
}

/* A unit is gathered in compute memory from the parts of all ranks, of which this rank gives its own to each of the
 * others. With SHARED every device takes all parts from host memory, unless they live on the devices. */
static void gather_weights(struct effects *e, uint32_t unit_idx) {
    const struct ox_homes *const homes = ox_proof_homes(e->in, unit_idx);
    const bool shared = e->in->ranks.sharding == OX_SHARDING_SHARED && homes->weights != OX_TIER_DEVICE;
    const enum ox_tier compute = ox_effects_compute_tier(e), from = shared ? OX_TIER_HOST : compute;
    const uint64_t own = ox_proof_planes_bytes(e->in, unit_idx), whole = ox_proof_whole_bytes(e->in, unit_idx);
    const uint32_t axis = ox_proof_axis_of(e->in, unit_idx);
    if (!ox_proof_divides(e->in, unit_idx) || e->task->axis != axis) {
        ox_effects_reject(e, "gathers a unit of which every rank has the whole, or from others than have it");
    }
    ox_effects_need(e, OX_USE_SOURCE, from, ox_content(PLANES, unit_idx, CURRENT));
    if (homes->weights == from && ox_proof_lo_in_state(e->in, unit_idx)) {
        ox_effects_need(e, OX_USE_STATE, from, ox_content(STATE, unit_idx, CURRENT));
    }
    ox_effects_fill(e, OX_USE_TARGET, compute, ox_content(GATHERED, unit_idx, 0));
    if (from != compute) {
        ox_effects_count(e, OX_LINK_H2D, OX_TRAFFIC_WEIGHTS, whole);
        return;
    }
    ox_effects_count(e, OX_LINK_PEER_IN, OX_TRAFFIC_WEIGHTS, whole - own);
    ox_effects_count(e, OX_LINK_PEER_OUT, OX_TRAFFIC_WEIGHTS, own * (ox_proof_members(e->in, axis) - 1));
}

/* Planes that live on the device move to the optimizer on the host; its new planes move back. */
static void move_planes(struct effects *e, struct route route, uint32_t unit_idx) {
    const uint32_t before = e->task->carried ? OLD : CURRENT;
    if (e->in->budget.unified || ox_proof_homes(e->in, unit_idx)->weights != OX_TIER_DEVICE) {
        ox_effects_reject(e, "moves planes that do not live on the device");
    }
    move(e, route, ox_content(PLANES, unit_idx, route.link == OX_LINK_D2H ? before : before + 1));
    ox_effects_count(e, route.link, OX_TRAFFIC_WEIGHTS, ox_proof_planes_bytes(e->in, unit_idx));
}

static void move_act(struct effects *e, struct route route, uint32_t stage_idx) {
    uint64_t bytes = ox_effects_stage(e, stage_idx)->input_bytes;
    if (of_drives(route)) { /* drives transfer whole pages */
        bytes = ox_align_up(bytes, OX_IO_ALIGN_BYTES);
        need_extent(e, ox_proof_act_extent(e->plan, stage_idx, e->task->mb_idx), bytes);
    }
    move(e, route, ox_content(ACT, stage_idx, e->task->mb_idx));
    ox_effects_count(e, route.link, OX_TRAFFIC_ACTIVATIONS, bytes);
}

/* Activations, or their gradient, arrive from another part of the model or leave for one, in ascending order of
 * micro-batches, by which the two parts tell them apart. Activations arrive at the first stage and leave the last;
 * gradients go the other way. */
static void move_outside(struct effects *e, struct route route, uint32_t stage_idx) {
    const bool leaves = route.link == OX_LINK_D2H, is_gradient = e->task->move == OX_MOVE_OUTSIDE_DX;
    const bool at_output = leaves != is_gradient;
    const uint32_t border_idx = at_output ? e->in->model.stage_count - 1 : 0;
    if (stage_idx != border_idx || !(at_output ? ox_proof_output_leaves : ox_proof_input_arrives)(e->in)) {
        ox_effects_reject(e, "belongs to a stage that no other part of the model is next to");
        return;
    }
    if (e->task->mb_idx != (leaves ? e->left_count : e->arrived_count)[is_gradient]++) {
        ox_effects_reject(e, "exchanges micro-batches with another part of the model twice or out of order");
    }
    const struct ox_content content = ox_content(is_gradient ? ACT_GRAD : ACT, at_output ? OX_NONE : border_idx,
                                                 e->task->mb_idx);
    if (leaves) {
        ox_effects_need(e, OX_USE_SOURCE, route.from, content);
    } else {
        ox_effects_fill(e, OX_USE_TARGET, route.to, content);
    }
    ox_effects_count(e, route.link, OX_TRAFFIC_ACTIVATIONS, ox_effects_bytes(e, content, false));
}

/* A unit on loan goes to the head's rank as compute reads it, and comes whole; the head's rank gives what it has summed
 * of its gradient, which the other goes on with as if it were its own. Both once in a step, between ranks of the same
 * micro-batches. */
static void lend(struct effects *e, uint32_t unit_idx) {
    const bool leaves = e->task->lane == OX_LANE_LINK_OUT, is_gradient = e->task->move == OX_MOVE_GRAD;
    const bool borrows = ox_proof_borrows(e->in, unit_idx);
    const enum ox_tier compute = ox_effects_compute_tier(e);
    const uint32_t grad_idx = e->task->grad_idx;
    const uint32_t other = borrows ? ox_proof_owner(e->in, unit_idx) : ox_proof_borrower(e->in, unit_idx);
    uint32_t *const loaned = &e->loaned[is_gradient ? e->plan->unit_count + grad_idx : unit_idx];
    if ((!borrows && !ox_proof_lends(e->in, unit_idx)) || leaves != (borrows == is_gradient) ||
        (*loaned)++ > 0 || e->task->last != is_gradient || e->task->slot != 0) {
        ox_effects_reject(e, "moves what is not on loan, or twice, or the other way");
        return;
    }
    if (e->task->peer != other) {
        ox_effects_reject(e, "goes to another rank than that which waits for it");
    }
    const struct ox_content content = is_gradient ? ox_content_own_sum(e, grad_idx)
                                                  : ox_content(GATHERED, unit_idx, 0);
    if (!leaves) {
        ox_effects_fill(e, OX_USE_TARGET, compute, content);
    } else if (is_gradient) {
        ox_effects_need(e, OX_USE_SOURCE, compute, content);
    } else {
        ox_effects_need_planes(e, OX_USE_SOURCE, unit_idx);
    }
    ox_effects_count(e, leaves ? OX_LINK_PEER_OUT : OX_LINK_PEER_IN,
                     is_gradient ? OX_TRAFFIC_GRADS : OX_TRAFFIC_WEIGHTS, ox_effects_bytes(e, content, false));
}

/* The input of a stage, or its gradient, comes from another rank or goes to one, in ascending order of micro-batches at
 * each stage. What arrives may wait in host memory, as an activation checkpoint does; what is made leaves from where it
 * was made. */
static void transfer(struct effects *e, uint32_t stage_idx) {
    const bool leaves = e->task->lane == OX_LANE_LINK_OUT, is_gradient = e->task->move == OX_MOVE_OUTSIDE_DX;
    const enum ox_tier compute = ox_effects_compute_tier(e);
    if (!ox_effects_crosses(e, is_gradient, leaves, stage_idx)) {
        ox_effects_reject(e, "moves what does not cross from rank to rank");
        return;
    }
    const bool to_maker = leaves == is_gradient; /* the other rank computes the stage before */
    const uint32_t other = ox_proof_stage_owner(e->in, to_maker ? stage_idx - 1 : stage_idx);
    if (e->task->peer != other) {
        ox_effects_reject(e, "goes to another rank than that which waits for it");
    }
    if (e->task->mb_idx != (*ox_effects_crossed(e, is_gradient, leaves, stage_idx))++) {
        ox_effects_reject(e, "exchanges micro-batches with another rank twice or out of order");
    }
    const struct ox_content content = ox_content(is_gradient ? ACT_GRAD : ACT, stage_idx, e->task->mb_idx);
    const struct ox_use *const target = ox_effects_use(e, OX_USE_TARGET);
    const bool waits = target != NULL && !is_gradient && e->plan->bufs[target->buf_idx].tier == OX_TIER_HOST;
    if (leaves) {
        ox_effects_need(e, OX_USE_SOURCE, compute, content);
    } else {
        ox_effects_fill(e, OX_USE_TARGET, waits ? OX_TIER_HOST : compute, content);
    }
    ox_effects_count(e, leaves ? OX_LINK_PEER_OUT : OX_LINK_PEER_IN, OX_TRAFFIC_ACTIVATIONS,
                     ox_effects_stage(e, stage_idx)->input_bytes);
}

/* All members that have this part of their sum of a gradient give every member its slice of it. What came before stays.
 * The holders of a copy have summed by themselves; copies have the nodes that their holders have added, if there are
 * several, of which each holder gives what it has. Rounds are those of all ranks: in some copies none gives a part. */
static void exchange(struct effects *e, uint32_t grad_idx) {
    const enum ox_tier tier = ox_effects_compute_tier(e);
    const uint32_t part = e->task->slot, axis = e->task->axis, members = ox_proof_members(e->in, axis);
    const bool of_copies = axis == OX_AXIS_COPY, narrow = ox_proof_narrows(e->in, axis);
    const uint32_t own_idx = ox_proof_member_of(e->in, axis);
    const uint64_t own = ox_proof_exchanged(e->in, axis, ox_proof_cut_bytes(e->in, grad_idx, axis));
    const uint64_t sum = of_copies ? ox_proof_slice_bytes(e->in, grad_idx) : ox_proof_sum_bytes(e->in, grad_idx);
    const uint64_t whole = ox_proof_exchanged(e->in, axis, sum);
    const enum ox_holding what = narrow ? NARROW_PARTS : of_copies ? COPY_PARTS : PARTS;
    uint64_t others = 0;
    for (uint32_t i = 0; i < members; i++) {
        others += i != own_idx && ox_proof_parts(e->in, axis, i) > part;
    }
    const bool gives = ox_proof_parts(e->in, axis, own_idx) > part;
    if (e->in->ranks.library_sums) {
        ox_effects_reject(e, "exchanges what the library is to add");
    }
    if (members == 1 || part >= ox_proof_rounds(e->in, axis) ||
        (!of_copies && axis != ox_proof_grad_axis(e->in, grad_idx))) {
        ox_effects_reject(e, "exchanges a part that no rank has");
        return;
    }
    if (gives) {
        ox_effects_need(e, OX_USE_SOURCE, tier, narrow ? ox_content(NARROW_OWN, grad_idx, 0)
                                                : of_copies && ox_proof_divides(e->in, e->task->unit_idx)
                                                    ? ox_content(NODES, grad_idx, 0) : ox_content_own_sum(e, grad_idx));
    }
    if (part == 0) {
        ox_effects_fill(e, OX_USE_TARGET, tier, ox_content(what, grad_idx, 1));
    } else {
        const struct ox_content from_to[2] = {ox_content(what, grad_idx, part), ox_content(what, grad_idx, part + 1)};
        ox_effects_change(e, OX_USE_TARGET, tier, from_to);
    }
    ox_effects_count(e, OX_LINK_PEER_IN, OX_TRAFFIC_GRADS, own * others);
    ox_effects_count(e, OX_LINK_PEER_OUT, OX_TRAFFIC_GRADS, gives ? whole - own : 0);
}

/* The library adds what all ranks have summed of a gradient, each of them in one sum, and gives each rank its part. */
static void sum_by_library(struct effects *e, uint32_t grad_idx) {
    const enum ox_tier tier = ox_effects_compute_tier(e);
    const uint32_t ranks = ox_proof_ranks(e->in), axis = e->task->axis;
    const uint64_t own = ox_proof_cut_bytes(e->in, grad_idx, axis), whole = ox_proof_sum_bytes(e->in, grad_idx);
    const bool in_one = ranks > 1 && e->in->ranks.library_sums && ox_proof_members(e->in, axis) == ranks &&
                        ox_proof_rounds(e->in, axis) == 1;
    if (!in_one) {
        ox_effects_reject(e, "lets the library add where the order of sums is fixed");
    }
    ox_effects_need(e, OX_USE_SOURCE, tier, ox_content_own_sum(e, grad_idx));
    ox_effects_fill(e, OX_USE_TARGET, tier, ox_content(SLICE, grad_idx, 0));
    ox_effects_count(e, OX_LINK_PEER_IN, OX_TRAFFIC_GRADS, own * (ranks - 1));
    ox_effects_count(e, OX_LINK_PEER_OUT, OX_TRAFFIC_GRADS, whole - own);
}

/* What copies have added up of a finished sum comes together in each of them. */
static void gather_grad(struct effects *e, uint32_t grad_idx) {
    const enum ox_tier tier = ox_effects_compute_tier(e);
    const uint32_t copies = ox_proof_copies(e->in);
    const uint64_t own =
        ox_proof_exchanged(e->in, OX_AXIS_COPY, ox_proof_cut_bytes(e->in, grad_idx, OX_AXIS_COPY));
    const uint64_t whole = ox_proof_exchanged(e->in, OX_AXIS_COPY, ox_proof_slice_bytes(e->in, grad_idx));
    const bool narrow = ox_proof_narrows(e->in, OX_AXIS_COPY);
    if (copies == 1 || e->task->axis != OX_AXIS_COPY || e->task->slot != 0) {
        ox_effects_reject(e, "gathers a gradient of which every rank needs its slice alone");
    }
    ox_effects_need(e, OX_USE_SOURCE, tier, ox_content(narrow ? NARROW_SLICE : SLICE, grad_idx, 0));
    ox_effects_fill(e, OX_USE_TARGET, tier, narrow ? ox_content(NARROW_COMPLETE, grad_idx, 0)
                                                   : ox_content_sum(e, grad_idx));
    ox_effects_count(e, OX_LINK_PEER_IN, OX_TRAFFIC_GRADS, whole - own);
    ox_effects_count(e, OX_LINK_PEER_OUT, OX_TRAFFIC_GRADS, own * (copies - 1));
}

/* Copies sum what their holders have added up, or they themselves, as thin matrices. What that does not send stays for
 * the next step, beside what the last one kept, which the step goes back to if it is not taken. */
static void sum_low_rank(struct effects *e, uint32_t grad_idx) {
    const enum ox_tier tier = ox_effects_compute_tier(e);
    const uint32_t copies = ox_proof_copies(e->in);
    const struct ox_proof_low_rank low_rank = ox_proof_low_rank(e->in, grad_idx);
    const struct ox_content from_to[2] = {ox_content(RESIDUAL, grad_idx, 0), ox_content(RESIDUAL, grad_idx, 1)};
    if (!low_rank.used || e->task->axis != OX_AXIS_COPY || !e->task->last || e->in->ranks.library_sums ||
        ox_proof_narrows(e->in, OX_AXIS_COPY) || (e->facts & OX_FACT_LOW_RANK) == 0) {
        ox_effects_reject(e, "exchanges a gradient of low rank that travels whole");
        return;
    }
    const bool nodes = ox_proof_divides(e->in, ox_effects_grad(e, grad_idx)->unit_idx);
    ox_effects_need(e, OX_USE_SOURCE, tier, nodes ? ox_content(NODES, grad_idx, 0) : ox_content_own_sum(e, grad_idx));
    ox_effects_fill(e, OX_USE_TARGET, tier, ox_content_sum(e, grad_idx));
    ox_effects_change(e, OX_USE_RESIDUAL, tier, from_to);
    ox_effects_fill(e, OX_USE_SCRATCH, tier, ox_content(WORK, OX_NONE, 0));
    const struct ox_use *const room = ox_effects_use(e, OX_USE_SCRATCH);
    if (room != NULL) {
        ox_effects_need_bytes(e, room->buf_idx, low_rank.room);
    }
    ox_effects_count(e, OX_LINK_PEER_IN, OX_TRAFFIC_GRADS, low_rank.sent * (copies - 1));
    ox_effects_count(e, OX_LINK_PEER_OUT, OX_TRAFFIC_GRADS, low_rank.sent * (copies - 1));
}

/* A gradient leaves (partial, or finished and marked `last`), or comes back, always as an fp32 sum. */
static void move_grad(struct effects *e, struct route route, uint32_t unit_idx) {
    const uint32_t grad_idx = e->task->grad_idx;
    const struct ox_use *const use = ox_effects_use(e, OX_USE_SOURCE);
    const struct ox_content source = use == NULL ? ox_content(NOTHING, OX_NONE, 0) : e->held[use->buf_idx];
    const bool is_addend = ox_effects_grad(e, grad_idx)->added_to != OX_NONE;
    const bool leaves = route.link == OX_LINK_D2H || route.link == OX_LINK_NVME_WRITE;
    const bool is_counted =
        !is_addend && (route.link == OX_LINK_NVME_WRITE || ox_proof_counts_on_device(e->in, unit_idx));
    const struct ox_content whole =
        is_counted ? ox_content(REDUCED, unit_idx, NEW) : ox_effects_finished_sum(e, grad_idx);
    const bool partial = source.what == SUM && source.idx == grad_idx && source.count < ox_effects_steps(e, grad_idx);
    const uint32_t slot = partial ? ox_effects_last_slot(e, source.count) : 0;
    const bool may_be_last = leaves || is_addend; /* the first use is read at rest by the optimizer */
    if (e->task->slot != slot || (e->task->last ? !may_be_last || !ox_content_same(source, whole) : !partial)) {
        ox_effects_reject(e, "does not move the gradient that it names");
        return;
    }
    if (of_drives(route)) {
        need_extent(e, ox_proof_grad_extent(grad_idx), ox_effects_bytes(e, source, false));
    }
    move(e, route, source);
    ox_effects_count(e, route.link, OX_TRAFFIC_GRADS, ox_effects_bytes(e, source, false));
}

static void move_batch(struct effects *e, struct route route) {
    ox_effects_need(e, OX_USE_SOURCE, route.from, ox_content(BATCHES, OX_NONE, 0));
    ox_effects_need_buffer(e, OX_USE_SOURCE, e->plan->batch_host_buf);
    ox_effects_fill(e, OX_USE_TARGET, route.to, ox_content(BATCH, OX_NONE, e->task->mb_idx));
    ox_effects_count(e, route.link, OX_TRAFFIC_OTHER, e->in->model.batch_bytes);
}

/* Whether the task moves reports before the first head: the buffer that it reads holds no loss. */
static bool is_before_head(const struct effects *e, enum ox_use_role role) {
    const struct ox_use *const use = ox_effects_use(e, role);
    const uint8_t what = use == NULL ? (uint8_t)NOTHING : e->held[use->buf_idx].what;
    return e->train && e->in->model.pooled_doubles > 0 && (what == LOADS || what == ALL_LOADS);
}

/* What the rank has of reports when all of its forwards have ended: losses, or of a pipeline's rank without the head
 * what its stages have reported. */
static struct ox_content own_reports(const struct effects *e, bool before) {
    const bool computes = ox_proof_computes(e->in, e->plan->stage_count - 1);
    return before || !computes ? ox_content_loads(e, false) : ox_content(LOSSES, OX_NONE, e->plan->micro_batches);
}

/* Bytes of a micro-batch's report that a coordinate gives: with one coordinate all of it. */
static uint64_t given_bytes(const struct effects *e, uint32_t at) {
    const struct ox_plan_model *const model = &e->in->model;
    const uint64_t parts = 8 * (uint64_t)model->report_doubles, whole = ox_proof_report_bytes(e->in);
    const bool has_head = ox_proof_stage_owner(e->in, model->stage_count - 1) == at;
    uint32_t all = 0;
    for (uint32_t i = 0; i < ox_proof_pipe(e->in); i++) {
        all += ox_proof_reporters(e->in, i);
    }
    return ox_proof_pipe(e->in) == 1 ? whole
                                     : (has_head ? whole - parts : 0) +
                                           (e->task->last && all > 0 ? parts / all * ox_proof_reporters(e->in, at) : 0);
}

/* The reports come together from all ranks. */
static void gather_losses(struct effects *e) {
    const bool in_pipe = ox_proof_pipe(e->in) > 1, of_stages = in_pipe && e->train && e->in->model.report_doubles > 0;
    const bool gives = ox_proof_computes(e->in, e->plan->stage_count - 1) ||
                       (of_stages && ox_proof_own_reporters(e->in) > 0);
    const bool before = !in_pipe && is_before_head(e, OX_USE_TARGET);
    const struct ox_content all_losses = ox_content(ALL_LOSSES, OX_NONE, 0);
    const struct ox_content from_to[2] = {own_reports(e, before), before ? ox_content_loads(e, true) : all_losses};
    const bool leads = ox_proof_tensor_of(e->in, e->in->ranks.idx) == 0; /* the others have the same */
    const uint64_t own = leads ? given_bytes(e, ox_proof_pipe_at(e->in)) * ox_proof_own_micro_batches(e->in) : 0;
    uint64_t all = 0;
    for (uint32_t at = 0; at < ox_proof_pipe(e->in); at++) {
        all += given_bytes(e, at) * ox_proof_micro_batches(e->in);
    }
    if (ox_proof_all_ranks(e->in) == 1) {
        ox_effects_reject(e, "gathers losses that no other rank has");
    }
    if (e->task->last != of_stages) {
        ox_effects_reject(e, "gathers what stages report where they report nothing, or does not where they do");
    }
    if (gives) {
        ox_effects_change(e, OX_USE_TARGET, OX_TIER_HOST, from_to);
    } else {
        ox_effects_fill(e, OX_USE_TARGET, OX_TIER_HOST, all_losses);
    }
    ox_effects_need_buffer(e, OX_USE_TARGET, e->plan->loss_host_buf);
    ox_effects_count(e, OX_LINK_PEER_IN, OX_TRAFFIC_OTHER, all - own);
    ox_effects_count(e, OX_LINK_PEER_OUT, OX_TRAFFIC_OTHER, own * (ox_proof_all_ranks(e->in) - 1));
}

static void move_losses(struct effects *e, struct route route) {
    const bool returns = route.link == OX_LINK_H2D, shares = ox_proof_shares_in_pipe(e->in);
    const uint32_t count = returns ? ox_proof_micro_batches(e->in) : ox_proof_own_micro_batches(e->in);
    const bool before = !shares && is_before_head(e, OX_USE_SOURCE);
    move(e, route, !returns ? own_reports(e, before)
                   : shares ? ox_content(ALL_LOSSES, OX_NONE, 0) : ox_content_loads(e, true));
    ox_effects_need_buffer(e, OX_USE_TARGET, returns ? e->plan->loss_buf : e->plan->loss_host_buf);
    ox_effects_count(e, route.link, OX_TRAFFIC_OTHER, count * ox_proof_report_bytes(e->in));
}

/* Whether a round is the one that comes here, of a pass whose rows have room: behind the routes of all members, or the
 * round before. */
static bool is_round(const struct effects *e, const struct ox_plan_pass *pass, uint64_t room) {
    const struct ox_plan_rounds *const rounds = &pass->rounds;
    const struct ox_plan_cut *const cut = &pass->cuts[e->task->phase];
    const struct ox_plan_cut *const before = e->task->phase > 0 ? cut - 1 : NULL;
    const uint32_t members = ox_proof_experts(e->in);
    bool fits = before != NULL && cut->axis == OX_AXIS_EXPERT && (members & (members - 1)) == 0 && cut->round >= 1 &&
                cut->round <= members && e->task->slot == cut->round && rounds->planes >= 1 &&
                rounds->planes <= OX_PLAN_ROUND_PLANES && rounds->returned <= rounds->planes &&
                rounds->ranges >= 1 &&
                (uint64_t)rounds->row_max * rounds->row_bytes <= rounds->plane_bytes &&
                cut->bytes == ox_plan_round_bytes(rounds, cut->round, members) &&
                (cut->round == 1 ? before->kind == OX_CUT_GATHER && before->target == rounds->routes &&
                                       before->bytes == members * rounds->routes_bytes
                                 : before->kind == OX_CUT_ROUND && before->round + 1 == cut->round);
    for (uint32_t i = 0; i < 2 * rounds->planes && fits; i++) { /* own planes, then others: no two overlap */
        const uint64_t at = i < rounds->planes ? rounds->own[i] : rounds->other[i - rounds->planes];
        fits = at + rounds->plane_bytes <= room;
        for (uint32_t k = 0; k < i && fits; k++) {
            const uint64_t other = k < rounds->planes ? rounds->own[k] : rounds->other[k - rounds->planes];
            fits = at + rounds->plane_bytes <= other || other + rounds->plane_bytes <= at;
        }
    }
    return fits;
}

/* Whether a cut's regions lie in the buffers that it names, and not over each other. */
static bool regions_fit(const struct ox_plan_cut *cut, const struct ox_plan_stage *stage,
                        const struct ox_plan_pass *pass) {
    const bool to_kept = cut->role == OX_USE_KEPT, from_kept = to_kept != cut->across;
    const uint64_t to = to_kept ? stage->kept_bytes : pass->scratch_bytes;
    const uint64_t from = from_kept ? stage->kept_bytes : pass->scratch_bytes;
    const bool overlap = !cut->across && cut->source < cut->target + cut->bytes &&
                         cut->target < cut->source + cut->bytes;
    const bool in_place = !cut->across && cut->source == cut->target;
    return cut->source + cut->bytes <= from && cut->target + cut->bytes <= to &&
           (cut->kind == OX_CUT_GATHER ? in_place : !overlap);
}

/* Where a cut goes from one buffer of the pass to the other, what the phase has left in the first one stays. */
static void cross_from(struct effects *e, const struct ox_plan_cut *cut, bool backward) {
    const enum ox_holding what = cut->role == OX_USE_KEPT ? ROOM : PART_KEPT;
    if (cut->across) {
        ox_effects_need(e, OX_USE_SOURCE, ox_effects_compute_tier(e),
                        ox_content_within(what, e->task, backward, e->task->phase, false));
    }
}

/* What a phase leaves for those of other ranks goes there, behind that phase and before the next one: a piece of the
 * same size to each of the others, and one from each. */
static void cross(struct effects *e) {
    const struct ox_plan_stage *const stage = ox_effects_stage(e, e->task->stage_idx);
    const bool backward = e->task->pass == OX_PLAN_BACKWARD || e->task->pass == OX_PLAN_BACKWARD_KEPT;
    const bool kept = e->task->pass == OX_PLAN_FORWARD_KEPT || e->task->pass == OX_PLAN_BACKWARD_KEPT;
    const struct ox_plan_pass *const pass = backward ? (kept ? &stage->backward_kept : &stage->backward)
                                                     : (kept ? &stage->forward_kept : &stage->forward);
    if (e->task->pass >= OX_PLAN_PASS_COUNT || e->task->phase >= pass->cut_count ||
        kept != e->keeps[e->task->stage_idx]) {
        ox_effects_reject(e, "comes between phases that the pass does not have");
        return;
    }
    const struct ox_plan_cut *const cut = &pass->cuts[e->task->phase];
    const uint64_t members = ox_proof_crossing(e->in, cut->axis);
    const bool of_round = cut->kind == OX_CUT_ROUND;
    const bool in_pieces = cut->kind == OX_CUT_GATHER || cut->kind == OX_CUT_EXCHANGE;
    const uint64_t others = in_pieces ? cut->bytes / members * (members - 1) : cut->bytes;
    const enum ox_holding what = cut->role == OX_USE_KEPT ? PART_KEPT : ROOM;
    const struct ox_content from_to[2] = {ox_content_within(what, e->task, backward, e->task->phase, false),
                                          ox_content_within(what, e->task, backward, e->task->phase, true)};
    const uint64_t room = cut->role == OX_USE_KEPT ? stage->kept_bytes : pass->scratch_bytes;
    if (e->task->axis != cut->axis || members == 1 || (in_pieces && cut->bytes % members != 0) ||
        cut->kind >= OX_CUT_KIND_COUNT ||
        (!of_round && e->task->slot != 0) || (cut->role != OX_USE_KEPT && cut->role != OX_USE_SCRATCH)) {
        ox_effects_reject(e, "moves pieces along an axis that has no other ranks, or of different sizes");
    }
    if (of_round && (cut->across || !is_round(e, pass, room))) {
        ox_effects_reject(e, "moves rows of experts in another round, or beyond their buffer");
    }
    if (!of_round && !regions_fit(cut, stage, pass)) {
        ox_effects_reject(e, "moves pieces over each other or beyond their buffer");
    }
    cross_from(e, cut, backward);
    ox_effects_change(e, OX_USE_TARGET, ox_effects_compute_tier(e), from_to);
    ox_effects_count(e, OX_LINK_PEER_IN, of_round ? OX_TRAFFIC_TOKENS : OX_TRAFFIC_ACTIVATIONS, others);
    ox_effects_count(e, OX_LINK_PEER_OUT, of_round ? OX_TRAFFIC_TOKENS : OX_TRAFFIC_ACTIVATIONS, others);
}

/* How many rows the stages behind this one have comes to the host. */
static void move_routes(struct effects *e, struct route route, uint32_t stage_idx) {
    const uint32_t first = e->task->mb_first, past = e->task->mb_past;
    if (past <= first || e->in->budget.unified) {
        ox_effects_reject(e, "moves rows of no micro-batch, or that the host has");
        return;
    }
    move(e, route, ox_content_routes(stage_idx, first, past));
    ox_effects_count(e, route.link, OX_TRAFFIC_OTHER,
                     (past - first) * ox_effects_stage(e, stage_idx)->routes_bytes);
}

/* What a rank does together with the others. */
static void move_between_ranks(struct effects *e, uint32_t unit_idx) {
    switch ((enum ox_move)e->task->move) {
    case OX_MOVE_WEIGHTS:
        gather_weights(e, unit_idx);
        break;
    case OX_MOVE_GRAD:
        (e->task->last ? gather_grad : exchange)(e, e->task->grad_idx);
        break;
    case OX_MOVE_SUM:
        sum_by_library(e, e->task->grad_idx);
        break;
    case OX_MOVE_PARTIALS:
        if (e->task->axis == OX_AXIS_PIPE || e->task->axis == OX_AXIS_TENSOR) {
            ox_effects_totals_gather(e);
        } else {
            ox_effects_norm_gather(e, unit_idx);
        }
        break;
    case OX_MOVE_LOW_RANK:
        sum_low_rank(e, e->task->grad_idx);
        break;
    case OX_MOVE_ROWS:
        cross(e);
        break;
    default:
        gather_losses(e);
    }
}

void ox_effects_move(struct effects *e, uint32_t unit_idx) {
    const struct route route = route_of(e);
    if (e->task->lane == OX_LANE_LINK) {
        move_between_ranks(e, unit_idx);
        return;
    }
    if (e->task->lane == OX_LANE_LINK_IN || e->task->lane == OX_LANE_LINK_OUT) {
        if (e->task->move == OX_MOVE_WEIGHTS || e->task->move == OX_MOVE_GRAD) {
            lend(e, unit_idx);
        } else {
            transfer(e, e->task->stage_idx);
        }
        return;
    }
    switch ((enum ox_move)e->task->move) {
    case OX_MOVE_WEIGHTS:
        move_weights(e, route, unit_idx);
        break;
    case OX_MOVE_PLANES:
        move_planes(e, route, unit_idx);
        break;
    case OX_MOVE_ACT:
        move_act(e, route, e->task->stage_idx);
        break;
    case OX_MOVE_GRAD:
        move_grad(e, route, unit_idx);
        break;
    case OX_MOVE_BATCH:
        move_batch(e, route);
        break;
    case OX_MOVE_LOSSES:
        move_losses(e, route);
        break;
    case OX_MOVE_PARTIALS:
        ox_effects_norm_save(e, unit_idx);
        break;
    case OX_MOVE_ROUTES:
        move_routes(e, route, e->task->stage_idx);
        break;
    case OX_MOVE_OUTSIDE_ACT:
    case OX_MOVE_OUTSIDE_DX:
        move_outside(e, route, e->task->stage_idx);
        break;
    default:
        ox_effects_nonfinite(e);
    }
}
