/* Checks the space that does not follow from what a task holds: resident buffers, spool extents, and the store's share
 * of the drives. Each must have exactly the size stated here. */
#include "offload/proof/proof_internal.h"
#include "offload/proof/sizes.h"

#include "base/bytes.h"

/* Whether the plan uses gradients: a training step does, and an evaluation that carries an update reads them. */
static bool has_gradients(const struct ox_plan *plan, const struct ox_plan_input *input) {
    const bool with_update = plan->kind != OX_PLAN_EVAL && input->placement.overlap;
    return !input->model.eval_only && (plan->kind == OX_PLAN_TRAIN || with_update);
}

/* Bytes of a buffer that the executor knows by name; 0: there is no such buffer. */
static uint64_t named_bytes(const struct ox_plan *plan, const struct ox_plan_input *input, uint32_t buf_idx) {
    const struct {
        uint32_t buf_idx;
        uint64_t bytes;
    } named[] = {
        {plan->const_buf, input->model.const_bytes > 0 ? input->model.const_bytes : 1},
        {plan->loss_buf, ox_proof_reports_bytes(input)},
        {plan->loss_host_buf, ox_proof_reports_bytes(input)},
        {plan->norm_buf, ox_proof_norms_bytes(input)},
        {plan->counts_buf, 8 * (uint64_t)plan->unit_count},
        {plan->nonfinite_buf, 8 * (uint64_t)plan->unit_count},
        {plan->written_buf, 1},
    };
    for (unsigned i = 0; i < sizeof named / sizeof *named; i++) {
        if (named[i].buf_idx == buf_idx) {
            return named[i].bytes;
        }
    }
    return 0;
}

/* Whether whole units have a place in compute memory also between steps. */
static bool stays_gathered(const struct ox_plan_input *input, uint32_t unit_idx) {
    const enum ox_sharding sharding = input->ranks.sharding;
    return ox_proof_divides(input, unit_idx) && (sharding == OX_SHARDING_GRAD || sharding == OX_SHARDING_STATE);
}

/* Bytes that a resident buffer must have, whether or not this plan fills it; 0: no step needs it. A gradient's extent
 * on the drives has the same size if it is not resident. */
static uint64_t resident_bytes(const struct ox_plan *plan, const struct ox_plan_input *input, uint32_t buf_idx) {
    const struct ox_buf *const buf = &plan->bufs[buf_idx];
    const bool of_unit = buf->unit_idx < plan->unit_count;
    const bool of_gradient = buf->grad_idx < plan->grad_count;
    switch ((enum ox_buf_kind)buf->kind) { /* a rank that has nothing of a unit has a page for it */
    case OX_BUF_WEIGHTS:
        return of_unit && ox_proof_holds(input, buf->unit_idx)
                   ? ox_max_u64(ox_proof_weights_home_bytes(input, buf->unit_idx), 1) : 0;
    case OX_BUF_STATE:
        return of_unit && ox_proof_has_state(input, buf->unit_idx)
                   ? ox_max_u64(ox_proof_state_bytes(input, buf->unit_idx), 1) : 0;
    case OX_BUF_REPLACED:
        return of_unit && input->placement.overlap && !input->model.eval_only && ox_proof_saves(input, buf->unit_idx)
                   ? ox_max_u64(ox_proof_saved_bytes(input, buf->unit_idx), 1) : 0;
    case OX_BUF_GATHERED:
        return of_unit && stays_gathered(input, buf->unit_idx) ? ox_proof_whole_bytes(input, buf->unit_idx) : 0;
    case OX_BUF_GRAD:
        return of_gradient && !input->model.eval_only
                   ? ox_max_u64(ox_proof_grad_home_bytes(input, buf->grad_idx), 1) : 0;
    case OX_BUF_RESIDUAL:
        return of_gradient && ox_proof_low_rank(input, buf->grad_idx).used
                   ? ox_max_u64(ox_proof_low_rank(input, buf->grad_idx).kept, 1) : 0;
    case OX_BUF_BATCH:
        return buf_idx == plan->batch_host_buf ? input->model.batch_bytes * plan->micro_batches : 0;
    case OX_BUF_STREAM:
        return buf_idx == plan->stream_buf ? ox_proof_stream_bytes(input) : 0;
    case OX_BUF_SMALL:
        return named_bytes(plan, input, buf_idx);
    default:
        return 0;
    }
}

static enum ox_status check_residents(const struct ox_plan *plan, const struct ox_plan_input *input) {
    for (uint32_t i = 0; i < plan->buf_count; i++) {
        const struct ox_buf *const buf = &plan->bufs[i];
        const bool spooled = buf->tier == OX_TIER_NVME && buf->kind == OX_BUF_GRAD;
        const uint64_t expected = buf->resident || spooled ? resident_bytes(plan, input, i) : buf->bytes;
        if (expected == 0 || buf->bytes != ox_align_up(expected, OX_IO_ALIGN_BYTES)) {
            return ox_fail(OX_E_CONFIG, "plan is wrong: buffer %u (%s) of unit %d has %llu bytes and needs %llu; "
                           "please report this", i, ox_buf_name((enum ox_buf_kind)buf->kind), (int)buf->unit_idx,
                           (unsigned long long)buf->bytes, (unsigned long long)expected);
        }
    }
    return OX_OK;
}

/* Whether the rank saves what its updates of the unit replace. */
static bool saves(const struct ox_plan_input *input, uint32_t unit_idx) {
    return ox_proof_holds(input, unit_idx) && ox_proof_saves(input, unit_idx);
}

/* Checks that every unit whose updates save what they replace has one buffer for it, in the order of units. */
static enum ox_status check_replaced(const struct ox_plan *plan, const struct ox_plan_input *input) {
    const bool may = input->placement.overlap && !input->model.eval_only;
    uint32_t unit_idx = 0;
    bool right = true;
    for (uint32_t i = 0; i < plan->buf_count && right; i++) {
        if (plan->bufs[i].kind == OX_BUF_REPLACED) {
            for (; unit_idx < plan->unit_count && !saves(input, unit_idx); unit_idx++) {
            }
            right = plan->bufs[i].unit_idx == unit_idx++;
        }
    }
    for (; unit_idx < plan->unit_count && may && right; unit_idx++) {
        right = !saves(input, unit_idx);
    }
    return right ? OX_OK : ox_fail(OX_E_CONFIG, "plan is wrong: memory for what updates replace is missing or of other "
                                   "units; please report this");
}

/* ---- drives ---------------------------------------------------------------------------------------- */

static uint64_t grad_extent_bytes(const struct ox_plan *plan, const struct ox_plan_input *input, uint32_t grad_idx) {
    const uint32_t unit_idx = input->model.grads[grad_idx].unit_idx;
    const bool spooled = ox_proof_holds(input, unit_idx) && has_gradients(plan, input) &&
                         !ox_proof_on_device(input, unit_idx) &&
                         ox_proof_homes(input, unit_idx)->grad == OX_TIER_NVME;
    return spooled ? ox_proof_grad_home_bytes(input, grad_idx) : 0;
}

/* Only blocks have activation checkpoints, several of them one; blocks that keep activations keep their input with
 * them. */
static uint64_t act_extent_bytes(const struct ox_plan *plan, const struct ox_plan_input *input, uint32_t stage_idx) {
    const struct ox_plan_stage *const stage = &input->model.stages[stage_idx];
    bool starts = false; /* the backward of a stage */
    for (uint32_t i = ox_proof_first_back(input); i < input->model.stage_count; i++) {
        starts |= i - input->model.stages[i].starts_back == stage_idx;
    }
    const bool spooled = plan->kind == OX_PLAN_TRAIN && ox_proof_computes(input, stage_idx) && stage->saves_input &&
                         starts &&
                         input->placement.act_tier == OX_TIER_NVME && !ox_proof_keeps(input, plan->kind, stage_idx);
    return spooled ? stage->input_bytes : 0;
}

static enum ox_status check_extent(const struct ox_plan *plan, uint32_t extent, uint64_t bytes, uint64_t *sum) {
    const uint64_t expected = ox_align_up(bytes, OX_IO_ALIGN_BYTES);
    *sum += expected;
    if (plan->spool_bytes[extent] == expected) {
        return OX_OK;
    }
    return ox_fail(OX_E_CONFIG, "plan is wrong: spool extent %u does not have the %llu bytes that it needs; please "
                   "report this", extent, (unsigned long long)expected);
}

static enum ox_status check_spool(const struct ox_plan *plan, const struct ox_plan_input *input, uint64_t *sum) {
    const uint64_t count = plan->grad_count + (uint64_t)plan->stage_count * plan->micro_batches;
    enum ox_status status = OX_OK;
    if (plan->spool_count != count) {
        return ox_fail(OX_E_CONFIG, "plan is wrong: it has %u spool extents and needs %llu; please report this",
                       plan->spool_count, (unsigned long long)count);
    }
    *sum = 0;
    for (uint32_t i = 0; i < plan->grad_count && status == OX_OK; i++) {
        status = check_extent(plan, ox_proof_grad_extent(i), grad_extent_bytes(plan, input, i), sum);
    }
    for (uint32_t i = 0; i < plan->stage_count && status == OX_OK; i++) {
        for (uint32_t mb_idx = 0; mb_idx < plan->micro_batches && status == OX_OK; mb_idx++) {
            status = check_extent(plan, ox_proof_act_extent(plan, i, mb_idx), act_extent_bytes(plan, input, i), sum);
        }
    }
    return status;
}

static enum ox_status check_store(const struct ox_plan *plan, const struct ox_plan_input *input, uint64_t spool) {
    const bool store = input->budget.nvme_bytes > 0;
    const uint64_t generations = store ? ox_proof_generations(input) : 0;
    uint64_t weights = 0, state = 0;
    for (uint32_t i = 0; i < plan->unit_count; i++) {
        const uint64_t copies = ox_proof_trained(input, i) ? generations : store;
        weights += copies * ox_proof_hi_bytes(input, i, ox_proof_own_elems(input, i));
        state += copies * ox_proof_stored_state_bytes(input, i);
    }
    const uint64_t peak = weights + state + spool + (store ? input->budget.nvme_fixed_bytes : 0);
    if (plan->peak_bytes[OX_TIER_NVME] != peak || plan->resident_bytes[OX_TIER_NVME] != weights + state ||
        plan->stored_weight_bytes != weights) {
        return ox_fail(OX_E_CONFIG, "plan is wrong: it states %llu bytes of NVMe and needs %llu, or divides them in "
                       "another way; please report this", (unsigned long long)plan->peak_bytes[OX_TIER_NVME],
                       (unsigned long long)peak);
    }
    return OX_OK;
}

/* Checks that the shard table is that of the plan's rank. */
static enum ox_status check_table(const struct ox_plan *plan, const struct ox_plan_input *input) {
    for (uint32_t i = 0; i < plan->unit_count; i++) {
        const struct ox_shard *const shard = &input->table->shards[i];
        const struct ox_proof_part own = ox_proof_part_of(input, i, input->ranks.idx);
        if (shard->elem_first != own.first || shard->elem_count != own.count ||
            (ox_proof_is_narrow(input, i) && ox_proof_trained(input, i)) ||
            (!input->model.eval_only && shard->fixed == ox_proof_trained(input, i))) {
            return ox_fail(OX_E_CONFIG, "plan is wrong: of unit %u rank %u should have %llu parameters from %llu on "
                           "and has %llu from %llu on; please report this", i, input->ranks.idx,
                           (unsigned long long)own.count, (unsigned long long)own.first,
                           (unsigned long long)shard->elem_count, (unsigned long long)shard->elem_first);
        }
    }
    return OX_OK;
}

enum ox_status ox_proof_check_sizes(const struct ox_plan *plan, const struct ox_plan_input *input) {
    uint64_t spool = 0;
    enum ox_status status = check_table(plan, input);
    OX_THEN(status, check_residents(plan, input));
    OX_THEN(status, check_replaced(plan, input));
    OX_THEN(status, check_spool(plan, input, &spool));
    return status == OX_OK ? check_store(plan, input, spool) : status;
}
