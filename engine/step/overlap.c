/* Steps that overlap: what a step leaves for the next one to do, and how that ends when no step follows, or one that
 * fails.
 *
 * With overlap a step ends when its norm is known. Its update is pending then: the next step, or an evaluation that
 * comes before it, runs it within its forward, unit by unit, and commits it. Of the last units the update may have run
 * in backward already, unclipped; when the norm asks for clipping after all, that is done again with all the others,
 * from the last commit and the gradients, which stay until then. A step that is not finite leaves nothing pending, and
 * what it changed early is read back. */
#include "engine/step/engine_internal.h"

#include "base/assert.h"

#include <string.h>

/* So many steps without clipping let the next one assume that it is not clipped either. */
enum { UNCLIPPED_STEPS = 8 };

static bool overlaps(const struct ox_engine *engine) {
    return engine->plan->input.placement.overlap && !engine->config.eval_only;
}

static uint32_t unit_count(const struct ox_engine *engine) {
    return engine->plan->table.unit_count;
}

void ox_overlap_begin_step(struct ox_engine *engine) {
    struct ox_step_state *const step = &engine->step;
    OX_ASSERT(!step->input->in_memory || ox_plan_may_stay_in_memory(&engine->plan->input));
    memcpy(engine->due_now, engine->unit_due, unit_count(engine));
    step->pending_in_memory = engine->pending.exists && engine->pending.in_memory;
    step->commit_due = engine->pending.exists && !engine->pending.in_memory;
    step->begin_due = step->commit_due && !engine->pending.begun;
    step->from_store = engine->pending.exists && engine->pending.from_store;
    step->weights_step = engine->weights_step;
    step->counts_due = engine->counts_due;
    for (uint32_t i = 0; i < unit_count(engine); i++) {
        step->counts_due |= engine->due_now[i] && ox_plan_state_on_device(&engine->plan->input, i);
    }
    step->speculates = overlaps(engine) && engine->plan->input.placement.speculative_units > 0 &&
                       !step->finishes_update && step->plan->kind == OX_PLAN_TRAIN &&
                       (step->input->max_grad_norm == 0 || engine->unclipped_steps >= UNCLIPPED_STEPS);
    if (step->speculates) {
        struct ox_optim_settings settings = step->input->adam;
        settings.grad_scale = 1;
        ox_optim_hyper_init(&settings, &step->speculative_hyper);
    }
}

bool ox_overlap_is_idle(const struct ox_engine *engine, const struct ox_task *task) {
    const struct ox_step_state *const step = &engine->step;
    const bool of_unit = task->unit_idx < unit_count(engine);
    const bool due = of_unit && engine->due_now[task->unit_idx];
    if (!task->carried) {
        const bool early = task->kind == OX_TASK_BEGIN || task->kind == OX_TASK_ADAM ||
                           task->kind == OX_TASK_DOWNLOAD || task->kind == OX_TASK_REFRESH;
        const bool of_store = task->kind == OX_TASK_BEGIN || task->kind == OX_TASK_COMMIT;
        return (early && overlaps(engine) && !step->speculates) || (of_store && step->input->in_memory);
    }
    switch ((enum ox_task_kind)task->kind) {
    case OX_TASK_BEGIN:
        return !step->begin_due;
    case OX_TASK_WRITTEN:
    case OX_TASK_COMMIT:
        return !step->commit_due;
    case OX_TASK_DOWNLOAD:
        return !due || step->from_store;
    case OX_TASK_REFRESH:
        return !due;
    case OX_TASK_NONFINITE:
        return !step->counts_due;
    default: /* without an update the planes are still brought where forward wants them, unless there is none */
        return !due && (step->finishes_update || ox_task_find_use(task, OX_USE_TARGET) < 0);
    }
}

struct ox_update_args ox_overlap_update_args(const struct ox_engine *engine, const struct ox_task *task) {
    const struct ox_step_state *const step = &engine->step;
    if (!task->carried) {
        return (struct ox_update_args){.hyper = overlaps(engine) ? &step->speculative_hyper : &step->hyper,
                                      .in_memory = step->input->in_memory, .base_step = step->weights_step};
    }
    if (!engine->due_now[task->unit_idx]) {
        return (struct ox_update_args){.base_step = step->weights_step};
    }
    return (struct ox_update_args){.hyper = &engine->pending.hyper, .from_store = step->from_store,
                                  .in_memory = step->pending_in_memory, .base_step = engine->pending.base_step};
}

static enum ox_status nonfinite(uint32_t unit_idx, uint64_t count) {
    return ox_fail(OX_E_CORRUPT, "unit %u: %llu parameters became infinite or NaN in the optimizer although the "
                   "gradient was finite; the step is not committed; lower the learning rate or resume earlier",
                   unit_idx, (unsigned long long)count);
}

enum ox_status ox_overlap_check_counts(struct ox_engine *engine) {
    const struct ox_plan *const plan = engine->step.plan;
    if (!engine->step.counts_come) {
        return OX_OK;
    }
    const uint64_t *const counts = ox_tiers_resident(&engine->tiers, plan, plan->nonfinite_buf).ptr;
    for (uint32_t i = 0; i < unit_count(engine); i++) {
        if (ox_plan_state_on_device(&engine->plan->input, i) && counts[i] > 0) {
            return nonfinite(i, counts[i]); /* and stays due: finishing the update before a save must fail as well */
        }
    }
    engine->counts_due = false;
    return OX_OK;
}

enum ox_status ox_overlap_updated(struct ox_engine *engine, const struct ox_task *task, uint64_t nonfinite_count) {
    const bool early = overlaps(engine) && !task->carried;
    if (early) { /* the norm may yet say that this was to be expected */
        engine->step.speculative_nonfinite_count += nonfinite_count;
        return OX_OK;
    }
    if (nonfinite_count > 0) {
        return nonfinite(task->unit_idx, nonfinite_count);
    }
    if (task->carried) {
        engine->unit_due[task->unit_idx] = false;
    }
    return OX_OK;
}

enum ox_status ox_overlap_begin_transaction(struct ox_engine *engine, const struct ox_task *task) {
    const enum ox_status status =
        ox_store_begin(engine->store, task->carried ? engine->pending.step : engine->step.input->step);
    if (status == OX_OK && task->carried) {
        engine->pending.begun = true;
    }
    return status;
}

enum ox_status ox_overlap_commit(struct ox_engine *engine, const struct ox_task *task) {
    struct ox_pending *const pending = &engine->pending;
    const struct ox_step_input *const input = engine->step.input;
    const enum ox_status status = task->carried ? ox_store_commit(engine->store, pending->meta, pending->meta_bytes)
                                               : ox_store_commit(engine->store, input->meta, input->meta_bytes);
    engine->step.committed = status == OX_OK;
    if (task->carried && status == OX_OK) {
        pending->exists = false;
    }
    return status;
}

typedef uint64_t traffic_row[OX_TRAFFIC_KIND_COUNT];

static void add_work(const struct ox_engine *engine, uint32_t unit_idx, struct ox_adam_work work, bool plus,
                     traffic_row *out) {
    traffic_row sum[OX_LINK_COUNT] = {{0}};
    const struct ox_plan_input *const input = &engine->plan->input;
    ox_plan_adam_traffic(input, unit_idx, work, sum);
    if (work.updates && input->table->shards[unit_idx].homes.weights == OX_TIER_DEVICE &&
        !ox_plan_state_on_device(input, unit_idx)) {
        const uint64_t bytes = ox_plan_weight_bytes(input, unit_idx);
        sum[OX_LINK_D2H][OX_TRAFFIC_WEIGHTS] += work.from_store ? 0 : bytes;
        sum[OX_LINK_H2D][OX_TRAFFIC_WEIGHTS] += bytes;
    }
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            out[link][kind] += plus ? sum[link][kind] : 0 - sum[link][kind];
        }
    }
}

/* What tells of updates on the device. */
static uint64_t counts_bytes(const struct ox_engine *engine) {
    return engine->plan->train->counts_buf == OX_NONE ? 0 : unit_count(engine) * sizeof(uint64_t);
}

void ox_overlap_planned(const struct ox_engine *engine, uint64_t out[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]) {
    const bool after = !overlaps(engine);
    const struct ox_step_state *const step = &engine->step;
    const bool in_memory = after ? step->input->in_memory : step->pending_in_memory;
    memcpy(out, step->plan->traffic, sizeof step->plan->traffic);
    for (uint32_t i = 0; i < unit_count(engine) && step->plan->kind != OX_PLAN_EVAL; i++) {
        const bool early = !after && ox_plan_is_speculative(&engine->plan->input, i), due = after || engine->due_now[i];
        add_work(engine, i, (struct ox_adam_work){.updates = !early, .grad_at_rest = true}, false, out);
        add_work(engine, i, (struct ox_adam_work){.updates = due, .grad_at_rest = true, .in_memory = in_memory,
                                                  .from_store = step->from_store}, true, out);
        if (early && !step->speculates && step->plan->kind == OX_PLAN_TRAIN) {
            add_work(engine, i, (struct ox_adam_work){.updates = true}, false, out);
        }
    }
    const bool told = after || step->counts_due || step->plan->kind == OX_PLAN_EVAL;
    out[OX_LINK_D2H][OX_TRAFFIC_OTHER] -= told ? 0 : counts_bytes(engine);
}

void ox_overlap_plan_finish(const struct ox_engine *engine, uint64_t out[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]) {
    for (uint32_t i = 0; i < unit_count(engine); i++) {
        if (engine->due_now[i]) {
            add_work(engine, i, (struct ox_adam_work){.updates = true, .grad_at_rest = true,
                                                      .in_memory = engine->step.pending_in_memory,
                                                      .from_store = engine->step.from_store}, true, out);
        }
    }
    out[OX_LINK_D2H][OX_TRAFFIC_OTHER] += engine->step.counts_due ? counts_bytes(engine) : 0;
}

/* ---- the end of a step ------------------------------------------------------------------------------- */

/* Reads the planes in memory back from the last commit; a run that is stopped is still to be saved from them. */
static enum ox_status restore(struct ox_engine *engine) {
    enum ox_status status = OX_OK;
    for (uint32_t unit_idx = 0; unit_idx < unit_count(engine) && status == OX_OK; unit_idx++) {
        const struct ox_homes *const homes = &engine->plan->table.shards[unit_idx].homes;
        if (homes->weights != OX_TIER_NVME || homes->state != OX_TIER_NVME) {
            status = ox_engine_load_unit(engine, unit_idx, NULL);
        }
    }
    engine->must_restore = status != OX_OK;
    return status;
}

static void forget_pending(struct ox_engine *engine) {
    engine->pending.exists = false;
    memset(engine->unit_due, 0, unit_count(engine));
}

/* Everything back to the last commit. Planes in memory are read back when somebody asks for them again: the drive may
 * be failing now. A step that was told of and is lost with this keeps all calls from going on as if it were there. */
static void fall_back(struct ox_engine *engine) {
    struct ox_store_info info;
    ox_store_abort(engine->store);
    ox_store_info(engine->store, &info);
    forget_pending(engine);
    engine->lost_step = engine->weights_step > info.step ? engine->weights_step : engine->lost_step;
    engine->weights_step = info.step;
    engine->must_restore |= info.committed;
}

/* The step's update becomes pending. */
static void leave_pending(struct ox_engine *engine) {
    const struct ox_step_state *const step = &engine->step;
    struct ox_pending *const pending = &engine->pending;
    const bool again = step->speculates && step->grad_scale < 1.0;
    *pending = (struct ox_pending){.exists = true, .begun = step->speculates, .from_store = again,
                                   .in_memory = step->input->in_memory,
                                   .step = step->input->step, .base_step = engine->weights_step,
                                   .hyper = step->hyper, .meta_bytes = step->input->meta_bytes};
    if (pending->meta_bytes > 0) {
        memcpy(pending->meta, step->input->meta, pending->meta_bytes);
    }
    for (uint32_t i = 0; i < unit_count(engine); i++) {
        engine->unit_due[i] = again || !step->speculates || !ox_plan_is_speculative(&engine->plan->input, i);
    }
    engine->weights_step = pending->step;
}

static enum ox_status end_decided(struct ox_engine *engine) {
    const struct ox_step_state *const step = &engine->step;
    OX_ASSERT(engine->store == NULL || !engine->pending.exists || engine->pending.in_memory);
    forget_pending(engine); /* where nothing is committed this is left to do */
    engine->unclipped_steps = step->finite && step->grad_scale == 1.0 ? engine->unclipped_steps + 1 : 0;
    if (step->finite && step->grad_scale == 1.0 && step->speculative_nonfinite_count > 0) {
        fall_back(engine);
        return ox_fail(OX_E_CORRUPT, "%llu parameters became infinite or NaN in the optimizer although the gradient "
                       "was finite; the step is not committed; lower the learning rate or resume earlier",
                       (unsigned long long)step->speculative_nonfinite_count);
    }
    if (step->finite) {
        leave_pending(engine);
        return OX_OK;
    }
    if (step->speculates) {
        ox_store_abort(engine->store);
        return restore(engine);
    }
    return OX_OK;
}

enum ox_status ox_overlap_end_step(struct ox_engine *engine, enum ox_status status) {
    if (!overlaps(engine)) {
        if (status == OX_OK) {
            engine->weights_step = engine->step.finite ? engine->step.input->step : engine->weights_step;
        } else if (engine->store != NULL && status != OX_E_ABORTED) { /* stopped: before the optimizer began */
            fall_back(engine);
        }
        return status;
    }
    if (status == OX_OK) {
        return end_decided(engine);
    }
    char text[OX_ERROR_TEXT_BYTES];
    memcpy(text, ox_error_text(), sizeof text);
    const bool changed = status != OX_E_ABORTED || (engine->step.speculates && !engine->pending.exists);
    if (engine->store != NULL && changed) {
        fall_back(engine);
    } /* else the step was only stopped: what is pending stays so, as far as it has come */
    return ox_fail(status, "%s", text);
}

enum ox_status ox_overlap_end_finish(struct ox_engine *engine, enum ox_status status) {
    if (status == OX_OK) {
        forget_pending(engine);
        return OX_OK;
    }
    char text[OX_ERROR_TEXT_BYTES];
    memcpy(text, ox_error_text(), sizeof text);
    if (engine->store != NULL && status != OX_E_ABORTED) { /* stopped: it goes on where it was */
        fall_back(engine);
    }
    return ox_fail(status, "%s", text);
}

enum ox_status ox_overlap_make_ready(struct ox_engine *engine) {
    if (engine->lost_step > 0) {
        return ox_fail(OX_E_IO, "step %llu was lost when a drive failed, and nothing may follow it; go on from the "
                       "last commit", (unsigned long long)engine->lost_step);
    }
    return engine->must_restore ? restore(engine) : OX_OK;
}

enum ox_status ox_engine_roll_back(struct ox_engine *engine) {
    fall_back(engine); /* whatever memory holds by now */
    engine->lost_step = 0;
    return ox_overlap_make_ready(engine);
}
