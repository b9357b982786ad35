/* The second half of the proof: what a plan computes is a training step.
 *
 * The first half (order.c) shows that uses in conflict have an order and that no byte is shared, so the list
 * may be followed one task at a time. Here that is done with what buffers hold by name instead of numbers: the
 * planes of unit 3, the sum of its gradient over two micro-batches. A task finds in its buffers exactly what it
 * needs, in a tier where it can be touched, or the plan is wrong; at the end every unit's home must hold
 * the optimizer made of it, every buffer must be as large as the largest thing that it has held, and every link must
 * have carried what the plan says. */
#include "offload/proof/effects.h"

#include "base/bytes.h"
#include "offload/proof/proof_internal.h"
#include "offload/proof/sizes.h"

#include <stdlib.h>
#include <string.h>

/* ---- one task --------------------------------------------------------------------------------- */

enum scope { OF_STEP, OF_UNIT, OF_GRADIENT };

/* What all tasks of a kind have in common. */
static const struct rule {
    uint8_t lane, scope;
    bool of_batch;   /* names a micro-batch */
    bool train_only; /* no part of an evaluation, but for the step before */
} rules[OX_TASK_KIND_COUNT] = {
    [OX_TASK_BATCH] = {OX_LANE_H2D, OF_STEP, true, false},
    [OX_TASK_READ] = {OX_LANE_NVME_READ, OF_UNIT, false, false},
    [OX_TASK_UPLOAD] = {OX_LANE_H2D, OF_UNIT, false, false},
    [OX_TASK_JOIN] = {OX_LANE_COMPUTE, OF_UNIT, false, false},
    [OX_TASK_FORWARD] = {OX_LANE_COMPUTE, OF_UNIT, true, false},
    [OX_TASK_HEAD] = {OX_LANE_COMPUTE, OF_UNIT, true, false},
    [OX_TASK_BACKWARD] = {OX_LANE_COMPUTE, OF_UNIT, true, true},
    [OX_TASK_ACT_SAVE] = {OX_LANE_D2H, OF_UNIT, true, true},
    [OX_TASK_ACT_WRITE] = {OX_LANE_NVME_WRITE, OF_UNIT, true, true},
    [OX_TASK_ACT_READ] = {OX_LANE_NVME_READ, OF_UNIT, true, true},
    [OX_TASK_ACT_LOAD] = {OX_LANE_H2D, OF_UNIT, true, true},
    [OX_TASK_GRAD_ZERO] = {OX_LANE_COMPUTE, OF_GRADIENT, false, true},
    [OX_TASK_GRAD_ADD] = {OX_LANE_COMPUTE, OF_GRADIENT, false, true},
    [OX_TASK_GRAD_PACK] = {OX_LANE_COMPUTE, OF_GRADIENT, false, true},
    [OX_TASK_GRAD_SAVE] = {OX_LANE_D2H, OF_GRADIENT, false, true},
    [OX_TASK_GRAD_WRITE] = {OX_LANE_NVME_WRITE, OF_GRADIENT, false, true},
    [OX_TASK_GRAD_READ] = {OX_LANE_NVME_READ, OF_GRADIENT, false, true},
    [OX_TASK_GRAD_LOAD] = {OX_LANE_H2D, OF_GRADIENT, false, true},
    [OX_TASK_REDUCE] = {OX_LANE_REDUCE, OF_UNIT, false, true},
    [OX_TASK_DEVICE_REDUCE] = {OX_LANE_COMPUTE, OF_UNIT, false, true},
    [OX_TASK_NORM_SAVE] = {OX_LANE_D2H, OF_UNIT, false, true},
    [OX_TASK_NORM] = {OX_LANE_REDUCE, OF_STEP, false, true},
    [OX_TASK_BEGIN] = {OX_LANE_ADAM, OF_STEP, false, true},
    [OX_TASK_DOWNLOAD] = {OX_LANE_D2H, OF_UNIT, false, true},
    [OX_TASK_ADAM] = {OX_LANE_ADAM, OF_UNIT, false, true},
    [OX_TASK_REFRESH] = {OX_LANE_H2D, OF_UNIT, false, true},
    [OX_TASK_DEVICE_ADAM] = {OX_LANE_COMPUTE, OF_UNIT, false, true},
    [OX_TASK_NONFINITE] = {OX_LANE_D2H, OF_STEP, false, true},
    [OX_TASK_LOSS] = {OX_LANE_D2H, OF_STEP, false, false},
    [OX_TASK_WRITTEN] = {OX_LANE_ADAM, OF_STEP, false, true},
    [OX_TASK_COMMIT] = {OX_LANE_ADAM, OF_STEP, false, true},
};

static bool is_gradient_of(const struct effects *e, uint32_t grad_idx, uint32_t unit_idx) {
    return grad_idx < e->plan->grad_count && ox_effects_grad(e, grad_idx)->unit_idx == unit_idx;
}

static bool fits_rule(const struct effects *e) {
    const struct ox_task *const task = e->task;
    const struct rule *const rule = &rules[task->kind];
    const bool of_optimizer = task->kind == OX_TASK_BEGIN || task->kind == OX_TASK_ADAM ||
                              task->kind == OX_TASK_DOWNLOAD || task->kind == OX_TASK_REFRESH ||
                              task->kind == OX_TASK_DEVICE_ADAM || task->kind == OX_TASK_NONFINITE ||
                              task->kind == OX_TASK_WRITTEN || task->kind == OX_TASK_COMMIT;
    return task->lane == rule->lane && (e->train || !rule->train_only || task->carried) &&
           (!task->carried || (e->overlap && of_optimizer)) &&
           (rule->scope == OF_STEP ? task->unit_idx == OX_NONE : task->unit_idx < e->plan->unit_count) &&
           (rule->scope == OF_GRADIENT ? is_gradient_of(e, task->grad_idx, task->unit_idx)
                                       : task->grad_idx == OX_NONE) &&
           (rule->of_batch ? task->mb_idx < e->plan->micro_batches : task->mb_idx == OX_NONE);
}

static void follow(struct effects *e) {
    const enum ox_tier tier = ox_effects_compute_tier(e);
    const uint32_t unit_idx = e->task->unit_idx, grad_idx = e->task->grad_idx;
    switch ((enum ox_task_kind)e->task->kind) {
    case OX_TASK_JOIN:
        if (!e->in->model.joins) {
            ox_effects_reject(e, "joins what nobody reads");
        }
        ox_effects_need_planes(e, unit_idx, false);
        ox_effects_fill(e, OX_USE_JOINED, tier, ox_content(JOINED, unit_idx, 0));
        break;
    case OX_TASK_FORWARD:
        ox_effects_forward(e, unit_idx);
        break;
    case OX_TASK_HEAD:
        ox_effects_head(e, unit_idx);
        break;
    case OX_TASK_BACKWARD:
        ox_effects_backward(e, unit_idx);
        break;
    case OX_TASK_GRAD_ZERO:
        ox_effects_fill(e, OX_USE_GRAD, tier, ox_content(SUM, grad_idx, 0));
        break;
    case OX_TASK_GRAD_ADD:
        ox_effects_add_second_use(e, grad_idx);
        break;
    case OX_TASK_GRAD_PACK:
        ox_effects_need_use(e, OX_USE_SOURCE, tier, ox_effects_whole_sum(e, grad_idx));
        ox_effects_fill(e, OX_USE_TARGET, tier, ox_content(PACKED, grad_idx, 0));
        break;
    case OX_TASK_REDUCE:
        ox_effects_reduce(e, unit_idx);
        break;
    case OX_TASK_DEVICE_REDUCE:
        ox_effects_device_reduce(e, unit_idx);
        break;
    case OX_TASK_NORM_SAVE:
        ox_effects_norm_save(e, unit_idx);
        break;
    case OX_TASK_NORM:
        ox_effects_norm(e);
        break;
    case OX_TASK_BEGIN:
        ox_effects_begin_transaction(e);
        break;
    case OX_TASK_ADAM:
        ox_effects_adam(e, unit_idx);
        break;
    case OX_TASK_DEVICE_ADAM:
        ox_effects_device_adam(e, unit_idx);
        break;
    case OX_TASK_NONFINITE:
        ox_effects_nonfinite(e);
        break;
    case OX_TASK_WRITTEN:
        ox_effects_written(e);
        break;
    case OX_TASK_COMMIT:
        ox_effects_commit(e);
        break;
    default:
        ox_effects_transfer(e, unit_idx);
    }
}

/* ---- begin and end ---------------------------------------------------------------------------- */

/* The gradients of the step before, for its optimizer. */
static void begin_gradients(struct effects *e) {
    for (uint32_t i = 0; i < e->plan->buf_count; i++) {
        const struct ox_buf *const buf = &e->plan->bufs[i];
        if (e->overlap && buf->resident && buf->kind == OX_BUF_GRAD && buf->unit_idx < e->plan->unit_count &&
            ox_effects_unit(e, buf->unit_idx)->grad_idx == buf->grad_idx &&
            buf->tier == ox_proof_homes(e->in, buf->unit_idx)->grad) {
            e->held[i] = ox_content(REDUCED, buf->unit_idx, CURRENT);
        }
    }
}

/* A state on the device has everything beside it, and nothing of it on drives or in one memory with the host. */
static bool homes_agree(const struct effects *e, uint32_t unit_idx) {
    const struct ox_homes *const homes = ox_proof_homes(e->in, unit_idx);
    const bool there = !e->in->budget.unified && e->in->budget.nvme_bytes == 0 && homes->weights == OX_TIER_DEVICE &&
                       homes->grad == OX_TIER_DEVICE;
    return e->in->model.eval_only || (homes->state == OX_TIER_DEVICE ? there : homes->grad != OX_TIER_DEVICE);
}

/* What the step finds: weights and state in their homes, one of each, the batches and the constants. */
static bool begin(struct effects *e) {
    const struct ox_plan *const plan = e->plan;
    uint32_t expected = 0, found = 0;
    for (uint32_t i = 0; i < plan->unit_count; i++) {
        const struct ox_homes *const homes = ox_proof_homes(e->in, i);
        expected += (homes->weights != OX_TIER_NVME) + (homes->state != OX_TIER_NVME && !e->in->model.eval_only);
        if (!homes_agree(e, i)) {
            return false;
        }
    }
    for (uint32_t i = 0; i < plan->buf_count; i++) {
        const struct ox_buf *const buf = &plan->bufs[i];
        const bool weights = buf->resident && buf->kind == OX_BUF_WEIGHTS;
        if (!weights && !(buf->resident && buf->kind == OX_BUF_STATE)) {
            continue;
        }
        if (buf->unit_idx >= plan->unit_count) {
            return false;
        }
        const struct ox_homes *const homes = ox_proof_homes(e->in, buf->unit_idx);
        e->held[i] = ox_content(weights ? PLANES : STATE, buf->unit_idx, e->overlap ? OLD : CURRENT);
        uint8_t *const seen = weights ? e->updated : e->reduced;
        if (buf->tier != (weights ? homes->weights : homes->state) || seen[buf->unit_idx]++ != 0 ||
            buf->bytes < ox_effects_bytes(e, e->held[i], true)) {
            return false;
        }
        found++;
    }
    memset(e->updated, e->overlap ? OLD : CURRENT, plan->unit_count);
    memset(e->reduced, 0, plan->unit_count);
    begin_gradients(e);
    if (plan->const_buf >= plan->buf_count || plan->batch_host_buf >= plan->buf_count ||
        plan->loss_buf >= plan->buf_count || plan->loss_host_buf >= plan->buf_count) {
        return false;
    }
    e->held[plan->const_buf] = ox_content(CONSTANT, OX_NONE, 0);
    e->held[plan->batch_host_buf] = ox_content(BATCHES, OX_NONE, 0);
    return found == expected && plan->bufs[plan->const_buf].resident && plan->bufs[plan->batch_host_buf].resident &&
           plan->bufs[plan->loss_host_buf].resident;
}

/* The version that a unit has at the end: with overlap only the last ones have gone on. */
static uint32_t last_version(const struct effects *e, uint32_t unit_idx) {
    return e->train && (!e->overlap || ox_proof_is_speculative(e->in, unit_idx)) ? NEW : CURRENT;
}

/* Where a unit's gradient must still be at the end of a step whose optimizer has not run, or may have to run again;
 * and of an evaluation, which may have been cut short before it did. */
static bool gradient_stays(const struct effects *e, uint32_t unit_idx) {
    const struct ox_content gradient = ox_content(REDUCED, unit_idx, e->train ? NEW : CURRENT);
    for (uint32_t i = 0; i < e->plan->buf_count; i++) {
        if (e->plan->bufs[i].resident && ox_content_same(e->held[i], gradient) &&
            e->plan->bufs[i].tier == ox_proof_homes(e->in, unit_idx)->grad) {
            return true;
        }
    }
    return false;
}

/* What the step leaves: every home as the optimizer made it, or the gradient for one to come; all losses; and one
 * commit where there is a store. */
static const char *end(const struct effects *e) {
    const struct ox_plan *const plan = e->plan;
    for (uint32_t i = 0; i < plan->unit_count; i++) {
        if (e->updated[i] != last_version(e, i)) {
            return "a unit is not updated exactly once";
        }
        if (e->overlap && !gradient_stays(e, i)) {
            return "a gradient does not stay for the optimizer of the step";
        }
    }
    for (uint32_t i = 0; i < plan->buf_count; i++) {
        const struct ox_content held = e->held[i];
        if (plan->bufs[i].resident && (held.what == PLANES || held.what == STATE) &&
            held.count != last_version(e, held.idx)) {
            return "the home of a unit does not hold what the optimizer made";
        }
    }
    if (!ox_content_same(e->held[plan->loss_host_buf], ox_content(LOSSES, OX_NONE, plan->micro_batches))) {
        return "the losses do not arrive";
    }
    const uint32_t device_units = e->train || e->overlap ? ox_effects_device_units(e) : 0;
    const struct ox_content counts = ox_content(COUNTS, OX_NONE, device_units);
    if (device_units > 0 &&
        (plan->nonfinite_buf >= plan->buf_count || !ox_content_same(e->held[plan->nonfinite_buf], counts))) {
        return "what was counted on the device does not arrive";
    }
    const bool store = (e->train || e->overlap) && e->in->budget.nvme_bytes > 0;
    const bool overlap = store && e->overlap;
    if (e->commit_count != store || e->written_count != overlap ||
        e->begun != (e->train && overlap && e->in->placement.speculative_units > 0)) {
        return "the step is not committed exactly once";
    }
    return NULL;
}

/* A buffer that is given away within the step is as large as the largest thing that it has held. */
static enum ox_status check_sizes(const struct effects *e) {
    for (uint32_t i = 0; i < e->plan->buf_count; i++) {
        const struct ox_buf *const buf = &e->plan->bufs[i];
        const bool spooled = buf->kind == OX_BUF_GRAD && buf->tier == OX_TIER_NVME; /* sized as its extent */
        const uint64_t bytes = ox_align_up(e->largest_bytes[i], OX_IO_ALIGN_BYTES);
        if (!buf->resident && !spooled && bytes > 0 && buf->bytes != bytes) {
            return ox_fail(OX_E_CONFIG, "plan is wrong: buffer %u (%s) of unit %d has %llu bytes and holds %llu; "
                           "please report this", i, ox_buf_name((enum ox_buf_kind)buf->kind), (int)buf->unit_idx,
                           (unsigned long long)buf->bytes, (unsigned long long)e->largest_bytes[i]);
        }
    }
    return OX_OK;
}

static enum ox_status check_traffic(const struct effects *e) {
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            if (e->traffic[link][kind] != e->plan->traffic[link][kind]) {
                return ox_fail(OX_E_CONFIG, "plan is wrong: it states %llu bytes of %s over %s, and its tasks move "
                               "%llu; please report this", (unsigned long long)e->plan->traffic[link][kind],
                               ox_traffic_name((enum ox_traffic_kind)kind), ox_link_name((enum ox_link)link),
                               (unsigned long long)e->traffic[link][kind]);
            }
        }
    }
    return OX_OK;
}

static enum ox_status follow_all(struct effects *e) {
    if (!begin(e)) {
        return ox_fail(OX_E_CONFIG, "plan is wrong: what lives through the step is not what the homes say; please "
                       "report this");
    }
    for (uint32_t i = 0; i < e->plan->task_count; i++) {
        e->task = &e->plan->tasks[i];
        e->found_count = 0;
        if (!fits_rule(e)) {
            return ox_proof_fault(e->plan, i, "has a lane, a unit or a micro-batch that its kind cannot have");
        }
        e->moved_bytes = 0;
        follow(e);
        if (e->found_count != e->task->use_count) {
            ox_effects_reject(e, "has uses that its work does not know");
        }
        if (e->moved_bytes != e->task->bytes) {
            ox_effects_reject(e, "states another number of bytes than it moves");
        }
        if (e->wrong != NULL) {
            return ox_proof_fault(e->plan, i, e->wrong);
        }
    }
    const char *const wrong = end(e);
    if (wrong != NULL) {
        return ox_fail(OX_E_CONFIG, "plan is wrong: %s; please report this", wrong);
    }
    const enum ox_status status = check_sizes(e);
    return status == OX_OK ? check_traffic(e) : status;
}

enum ox_status ox_proof_check_effects(const struct ox_plan *plan, const struct ox_plan_input *input) {
    struct effects e = {.plan = plan, .in = input};
    e.train = plan->kind == OX_PLAN_TRAIN;
    e.overlap = plan->kind != OX_PLAN_EVAL && input->placement.overlap;
    e.held = calloc(plan->buf_count + 1u, sizeof *e.held);
    e.largest_bytes = calloc(plan->buf_count + 1u, sizeof *e.largest_bytes);
    e.updated = calloc(2 * (plan->unit_count + 1u), 1);
    e.reduced = e.updated == NULL ? NULL : e.updated + plan->unit_count + 1u;
    const enum ox_status status = e.held == NULL || e.largest_bytes == NULL || e.updated == NULL
                                      ? ox_fail(OX_E_NOMEM, "plan checker: no memory for %u buffers", plan->buf_count)
                                      : follow_all(&e);
    free(e.updated);
    free(e.largest_bytes);
    free(e.held);
    return status;
}
