/* The second half of the proof: what a plan computes is a training step.
 *
 * The first half (plan_check.c) shows that uses in conflict have an order and that no byte is shared, so the list
 * may be followed one task at a time. Here that is done with what buffers hold by name instead of numbers: the
 * planes of unit 3, the sum of its gradient over two micro-batches. A task finds in its buffers exactly what it
 * needs, in a tier where it can be touched, or the plan is wrong; at the end every unit's home must hold
 * what Adam made of it. Nothing here shares code or working data with the builder. */
#include "offload/proof/effects.h"

#include <stdlib.h>
#include <string.h>

enum ox_buf_kind ox_meaning_kind(enum what what) {
    static const uint8_t kinds[] = {
        [NOTHING] = OX_BUF_SMALL, [PLANES] = OX_BUF_WEIGHTS, [STATE] = OX_BUF_STATE,    [JOINED] = OX_BUF_JOINED,
        [ACT] = OX_BUF_ACT,       [ACT_GRAD] = OX_BUF_ACT,   [SUM] = OX_BUF_GRAD,       [PACKED] = OX_BUF_GRAD,
        [TOTAL] = OX_BUF_GRAD,    [PARTIALS] = OX_BUF_SMALL, [COUNTS] = OX_BUF_SMALL,
        [REDUCED] = OX_BUF_GRAD,  [BATCH] = OX_BUF_BATCH,    [BATCHES] = OX_BUF_BATCH,  [LOSSES] = OX_BUF_SMALL,
        [NORMS] = OX_BUF_SMALL,   [FACTOR] = OX_BUF_SMALL,   [CONSTANT] = OX_BUF_SMALL, [WORK] = OX_BUF_WORK,
        [STAGE] = OX_BUF_STREAM,   [WRITTEN] = OX_BUF_SMALL,  [KEPT] = OX_BUF_KEPT,
    };
    return (enum ox_buf_kind)kinds[what];
}

/* ---- one task --------------------------------------------------------------------------------- */

enum scope { OF_STEP, OF_UNIT, OF_GRADIENT };

/* What every task of a sort has in common. */
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
    [OX_TASK_GRAD_ADD] = {OX_LANE_COMPUTE, OF_UNIT, false, true},
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

static bool fits_rule(const struct meaning *m) {
    const struct ox_task *const task = m->task;
    const struct rule *const rule = &rules[task->kind];
    const uint32_t unit_past =
        rule->scope == OF_STEP ? 0 : m->plan->unit_count + (rule->scope == OF_GRADIENT && m->tied);
    const bool of_optimizer = task->kind == OX_TASK_BEGIN || task->kind == OX_TASK_ADAM ||
                              task->kind == OX_TASK_DOWNLOAD || task->kind == OX_TASK_REFRESH ||
                              task->kind == OX_TASK_DEVICE_ADAM || task->kind == OX_TASK_NONFINITE ||
                              task->kind == OX_TASK_WRITTEN || task->kind == OX_TASK_COMMIT;
    return task->lane == rule->lane && (m->train || !rule->train_only || task->carried) &&
           (!task->carried || (m->overlap && of_optimizer)) &&
           (unit_past == 0 ? task->unit_idx == OX_NONE : task->unit_idx < unit_past) &&
           (rule->of_batch ? task->mb_idx < m->plan->micro_batches : task->mb_idx == OX_NONE);
}

static void follow(struct meaning *m) {
    const enum ox_tier tier = compute_tier(m);
    const uint32_t unit_idx = m->task->unit_idx;
    switch ((enum ox_task_kind)m->task->kind) {
    case OX_TASK_JOIN:
        if (!m->in->model.joins) {
            object(m, "joins what nobody reads");
        }
        wants_planes(m, unit_idx, false);
        makes(m, OX_USE_JOINED, tier, of(JOINED, unit_idx, 0));
        break;
    case OX_TASK_FORWARD:
        ox_meaning_forward(m, unit_idx);
        break;
    case OX_TASK_HEAD:
        ox_meaning_head(m, unit_idx);
        break;
    case OX_TASK_BACKWARD:
        ox_meaning_backward(m, unit_idx);
        break;
    case OX_TASK_GRAD_ZERO:
        makes(m, OX_USE_GRAD, tier, of(SUM, unit_idx, 0));
        break;
    case OX_TASK_GRAD_ADD:
        turns(m, OX_USE_GRAD, tier,
              (const struct content[]){of(SUM, unit_idx, m->plan->micro_batches), of(TOTAL, unit_idx, 0)});
        wants(m, OX_USE_GRAD_HEAD, tier, of(SUM, m->plan->unit_count, m->plan->micro_batches));
        break;
    case OX_TASK_GRAD_PACK:
        wants(m, OX_USE_SOURCE, tier, whole_sum(m, unit_idx));
        makes(m, OX_USE_TARGET, tier, of(PACKED, unit_idx, 0));
        break;
    case OX_TASK_REDUCE:
        ox_meaning_reduce(m, unit_idx);
        break;
    case OX_TASK_DEVICE_REDUCE:
        ox_meaning_device_reduce(m, unit_idx);
        break;
    case OX_TASK_NORM_SAVE:
        ox_meaning_norm_save(m, unit_idx);
        break;
    case OX_TASK_NORM:
        ox_meaning_norm(m);
        break;
    case OX_TASK_BEGIN:
        ox_meaning_begin(m);
        break;
    case OX_TASK_ADAM:
        ox_meaning_adam(m, unit_idx);
        break;
    case OX_TASK_DEVICE_ADAM:
        ox_meaning_device_adam(m, unit_idx);
        break;
    case OX_TASK_NONFINITE:
        ox_meaning_updated(m);
        break;
    case OX_TASK_WRITTEN:
        ox_meaning_written(m);
        break;
    case OX_TASK_COMMIT:
        ox_meaning_commit(m);
        break;
    default:
        ox_meaning_transfer(m, unit_idx);
    }
}

/* ---- begin and end ---------------------------------------------------------------------------- */

/* The gradients of the step before, for its optimizer. */
static void begin_gradients(struct meaning *m) {
    for (uint32_t i = 0; i < m->plan->buf_count; i++) {
        const struct ox_buf *const buf = &m->plan->bufs[i];
        if (m->overlap && buf->resident && buf->kind == OX_BUF_GRAD && buf->unit_idx < m->plan->unit_count &&
            buf->tier == homes_of(m, buf->unit_idx)->grad) {
            m->held[i] = of(REDUCED, buf->unit_idx, CURRENT);
        }
    }
}

/* A state on the device has everything beside it, and nothing of it on drives or in one memory with the host. */
static bool homes_agree(const struct meaning *m, uint32_t unit_idx) {
    const struct ox_homes *const homes = homes_of(m, unit_idx);
    const bool there = !m->in->budget.unified && m->in->budget.nvme_bytes == 0 && homes->weights == OX_TIER_DEVICE &&
                       homes->grad == OX_TIER_DEVICE;
    return m->in->model.eval_only || (homes->state == OX_TIER_DEVICE ? there : homes->grad != OX_TIER_DEVICE);
}

/* What the step finds: weights and state in their homes, one of each, the batches and the constants. */
static bool begin(struct meaning *m) {
    const struct ox_plan *const plan = m->plan;
    uint32_t expected = 0, found = 0;
    for (uint32_t i = 0; i < plan->unit_count; i++) {
        const struct ox_homes *const homes = homes_of(m, i);
        expected += (homes->weights != OX_TIER_NVME) + (homes->state != OX_TIER_NVME && !m->in->model.eval_only);
        if (!homes_agree(m, i)) {
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
        const struct ox_homes *const homes = homes_of(m, buf->unit_idx);
        m->held[i] = of(weights ? PLANES : STATE, buf->unit_idx, m->overlap ? OLD : CURRENT);
        uint8_t *const seen = weights ? m->updated : m->reduced;
        if (buf->tier != (weights ? homes->weights : homes->state) || seen[buf->unit_idx]++ != 0 ||
            buf->bytes < bytes_of(m, m->held[i], true)) {
            return false;
        }
        found++;
    }
    memset(m->updated, m->overlap ? OLD : CURRENT, plan->unit_count);
    memset(m->reduced, 0, plan->unit_count);
    begin_gradients(m);
    if (plan->const_buf >= plan->buf_count || plan->batch_host_buf >= plan->buf_count ||
        plan->loss_buf >= plan->buf_count || plan->loss_host_buf >= plan->buf_count) {
        return false;
    }
    m->held[plan->const_buf] = of(CONSTANT, OX_NONE, 0);
    m->held[plan->batch_host_buf] = of(BATCHES, OX_NONE, 0);
    return found == expected && plan->bufs[plan->const_buf].resident && plan->bufs[plan->batch_host_buf].resident &&
           plan->bufs[plan->loss_host_buf].resident;
}

/* The version that a unit has at the end: with overlap only the last ones have gone on. */
static uint32_t last_version(const struct meaning *m, uint32_t unit_idx) {
    const bool early = unit_idx + m->in->placement.speculative_units >= m->plan->unit_count;
    return m->train && (!m->overlap || early) ? NEW : CURRENT;
}

/* Where a unit's gradient must still be at the end of a step whose optimizer has not run, or may have to run again;
 * and of an evaluation, which may have been cut short before it did. */
static bool gradient_stays(const struct meaning *m, uint32_t unit_idx) {
    const struct content gradient = of(REDUCED, unit_idx, m->train ? NEW : CURRENT);
    for (uint32_t i = 0; i < m->plan->buf_count; i++) {
        if (m->plan->bufs[i].resident && same(m->held[i], gradient) &&
            m->plan->bufs[i].tier == homes_of(m, unit_idx)->grad) {
            return true;
        }
    }
    return false;
}

/* What the step leaves: every home as the optimizer made it, or the gradient for one to come; all losses; and one
 * commit where there is a store. */
static const char *end(const struct meaning *m) {
    const struct ox_plan *const plan = m->plan;
    for (uint32_t i = 0; i < plan->unit_count; i++) {
        if (m->updated[i] != last_version(m, i)) {
            return "a unit is not updated exactly once";
        }
        if (m->overlap && !gradient_stays(m, i)) {
            return "a gradient does not stay for the optimizer of the step";
        }
    }
    for (uint32_t i = 0; i < plan->buf_count; i++) {
        const struct content held = m->held[i];
        if (plan->bufs[i].resident && (held.what == PLANES || held.what == STATE) &&
            held.count != last_version(m, held.unit_idx)) {
            return "the home of a unit does not hold what the optimizer made";
        }
    }
    if (!same(m->held[plan->loss_host_buf], of(LOSSES, OX_NONE, plan->micro_batches))) {
        return "the losses do not arrive";
    }
    const uint32_t device_units = m->train || m->overlap ? ox_meaning_device_units(m) : 0;
    if (device_units > 0 && (plan->nonfinite_buf >= plan->buf_count ||
                             !same(m->held[plan->nonfinite_buf], of(COUNTS, OX_NONE, device_units)))) {
        return "what was counted on the device does not arrive";
    }
    const bool store = (m->train || m->overlap) && m->in->budget.nvme_bytes > 0;
    const bool overlap = store && m->overlap;
    if (m->commit_count != store || m->written_count != overlap ||
        m->begun != (m->train && overlap && m->in->placement.speculative_units > 0)) {
        return "the step is not committed exactly once";
    }
    return NULL;
}

static enum ox_status follow_all(struct meaning *m) {
    if (!begin(m)) {
        return ox_fail(OX_E_CONFIG, "plan is wrong: what lives through the step is not what the homes say; please "
                       "report this");
    }
    for (uint32_t i = 0; i < m->plan->task_count; i++) {
        m->task = &m->plan->tasks[i];
        m->met_count = 0;
        if (!fits_rule(m)) {
            return ox_plan_fault(m->plan, i, "has a lane, a unit or a micro-batch that its sort cannot have");
        }
        follow(m);
        if (m->met_count != m->task->use_count) {
            object(m, "has uses that its work does not know");
        }
        if (m->wrong != NULL) {
            return ox_plan_fault(m->plan, i, m->wrong);
        }
    }
    const char *const wrong = end(m);
    return wrong == NULL ? OX_OK : ox_fail(OX_E_CONFIG, "plan is wrong: %s; please report this", wrong);
}

enum ox_status ox_plan_check_meaning(const struct ox_plan *plan, const struct ox_plan_input *input) {
    struct meaning m = {.plan = plan, .in = input};
    m.train = plan->kind == OX_PLAN_TRAIN;
    m.tied = input->model.tied_elems > 0;
    m.overlap = plan->kind != OX_PLAN_EVAL && input->placement.overlap;
    m.held = calloc(plan->buf_count + 1u, sizeof *m.held);
    m.updated = calloc(plan->unit_count + 1u, 1);
    m.reduced = calloc(plan->unit_count + 1u, 1);
    const enum ox_status status = m.held == NULL || m.updated == NULL || m.reduced == NULL
                                      ? ox_fail(OX_E_NOMEM, "plan checker: no memory for %u buffers", plan->buf_count)
                                      : follow_all(&m);
    free(m.reduced);
    free(m.updated);
    free(m.held);
    return status;
}
