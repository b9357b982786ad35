/* The optimizer's part of a plan. Without overlap it follows the norm. With overlap the update of the step before runs
 * within the forward, each unit right before forward needs it, and passes new planes on without a detour over the
 * drive. Some units are updated in the backward of their own step instead (ox_unit_rules), on the assumption
 * that the norm will not require clipping. Their carried tasks then only fetch planes, or repeat the whole update if
 * the assumption was wrong: from the drives, which have what it replaced, or from memory, to which the engine has
 * returned what was saved there. Where weights went ahead of their state, another task updates the state in the next
 * step. Which case holds is known when a step begins; one plan serves all of them.
 *
 * A unit whose state lives on the device is updated there, by an operation of the compute lane at the same point. */
#include "offload/plan/builder.h"

/* When a unit is updated: after the norm of its own step is known; within the forward of the next step; in the backward
 * of its own step, before the norm is known; its state in the next step, after that. */
enum when { WHEN_AFTER, WHEN_CARRIED, WHEN_SPECULATIVE, WHEN_LATE };

struct adam {
    uint32_t unit_idx;
    enum when when;
    uint32_t grad;   /* finished gradient */
    uint32_t target; /* a buffer that takes the new planes besides their home, or OX_NONE */
};

static bool has_store(const struct ox_builder *b) {
    return b->in->budget.nvme_bytes > 0;
}

/* What of the unit is due in the usual case. */
static enum ox_due due_of(const struct ox_builder *b, uint32_t unit_idx) {
    return ox_case_due(b->usual, b->plan, unit_idx);
}

static bool works(const struct ox_builder *b, const struct ox_task *task) {
    return ox_task_works(task, b->usual.facts, due_of(b, task->unit_idx));
}

/* Sets when an optimizer's task works: a carried one where these facts hold, one that follows ahead weights where they
 * were, a speculative one if the step speculates. */
static void set_when(struct ox_task *task, enum when when, uint32_t carried_facts) {
    if (when == WHEN_CARRIED) {
        ox_build_carry(task, carried_facts);
    } else if (when == WHEN_LATE) {
        ox_build_carry(task, OX_FACT_STATE_DUE);
    } else if (when == WHEN_SPECULATIVE) {
        task->when |= OX_FACT_SPECULATES;
    }
}

void ox_plan_adam_traffic(const struct ox_plan *plan, const struct ox_plan_input *input, uint32_t unit_idx,
                          struct ox_adam_work work, uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]) {
    const struct ox_homes *const homes = &input->table->shards[unit_idx].homes;
    const uint64_t elems = input->table->shards[unit_idx].elem_count;
    const uint64_t state = ox_shard_stored_bytes(input->table, unit_idx), hi = elems * OX_HI_BYTES;
    uint64_t *const reads = traffic[OX_LINK_NVME_READ], *const writes = traffic[OX_LINK_NVME_WRITE];
    if (!work.updates) {
        reads[OX_TRAFFIC_WEIGHTS] += homes->weights == OX_TIER_NVME ? ox_plan_weight_bytes(input, unit_idx) : 0;
        return;
    }
    if (homes->grad == OX_TIER_NVME && work.grad_at_rest) {
        reads[OX_TRAFFIC_GRADS] += elems * (input->model.grad_bf16 ? 2 : 4);
    }
    if (input->budget.nvme_bytes == 0) {
        return;
    }
    reads[OX_TRAFFIC_STATE] += homes->state == OX_TIER_NVME || work.from_store ? state : 0;
    reads[OX_TRAFFIC_WEIGHTS] += homes->weights == OX_TIER_NVME || work.from_store ? hi : 0;
    if (!plan->rules[unit_idx].stored) {
        return;
    }
    const struct ox_on_drives must = plan->rules[unit_idx].on_drives;
    writes[OX_TRAFFIC_STATE] += must.state || !work.stays ? state : 0;
    writes[OX_TRAFFIC_WEIGHTS] += must.hi || !work.stays ? hi : 0;
}

static void count_adam(struct ox_builder *b, struct ox_task *task, const struct adam *adam) {
    uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT] = {{0}};
    const struct ox_adam_work work = {.updates = ox_task_has_due(task, due_of(b, task->unit_idx)),
                                      .grad_at_rest = adam->when != WHEN_SPECULATIVE,
                                      .stays = b->between};
    ox_plan_adam_traffic(b->plan, b->in, adam->unit_idx, work, traffic);
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            ox_build_count(b, task, (enum ox_link)link, (enum ox_traffic_kind)kind, traffic[link][kind]);
        }
    }
}

/* Copies planes that live on the device to the optimizer on the host, or back. */
static void move_planes(struct ox_builder *b, enum ox_lane_id route, const struct adam *adam, uint32_t source,
                        uint32_t target) {
    struct ox_task *const task = ox_build_move(b, OX_MOVE_PLANES, route, source, target);
    task->unit_idx = adam->unit_idx;
    /* A speculative update that is repeated may read its planes from the drives instead. */
    const bool from_drives = ox_build_rules(b, adam->unit_idx)->returns_to_drives;
    set_when(task, adam->when, route == OX_LANE_D2H && from_drives ? OX_FACT_DUE | OX_FACT_FROM_MEMORY : OX_FACT_DUE);
    if (works(b, task)) {
        ox_build_count_move(b, task);
    }
}

/* ---- on the device ------------------------------------------------------------------------------ */

/* The last unit, in the order of updates, that is updated on the device; OX_NONE = none. */
static uint32_t last_device_unit(const struct ox_builder *b) {
    const struct ox_plan_model *const model = &b->in->model;
    for (uint32_t i = model->unit_count; i > 0; i--) {
        if (ox_build_on_device(b, model->order[i - 1])) {
            return model->order[i - 1];
        }
    }
    return OX_NONE;
}

void ox_build_device_counts(struct ox_builder *b) {
    const uint64_t bytes = 8 * (uint64_t)b->plan->unit_count;
    if (last_device_unit(b) != OX_NONE) {
        b->plan->counts_buf = ox_build_resident(b, OX_BUF_SMALL, OX_TIER_DEVICE, bytes, OX_NONE);
        b->plan->nonfinite_buf = ox_build_resident(b, OX_BUF_SMALL, OX_TIER_HOST, bytes, OX_NONE);
    }
}

void ox_build_device_reduce(struct ox_builder *b, uint32_t unit_idx, uint32_t grad) {
    const uint64_t bytes = ox_plan_partials_bytes(b->in, unit_idx);
    b->scratch->partials[unit_idx] = ox_build_buf(b, OX_BUF_SMALL, OX_TIER_DEVICE, bytes, unit_idx);
    struct ox_task *const task = ox_build_task(b, OX_TASK_REDUCE, OX_LANE_COMPUTE, unit_idx, OX_NONE);
    task->last = true;
    ox_build_reads(task, grad, OX_USE_GRAD);
    ox_build_writes(task, b->scratch->partials[unit_idx], OX_USE_TARGET);
}

/* Copies the partial sums to the host. It does so after the last of them, so that no copy of a gradient waits. */
static void save_partials(struct ox_builder *b) {
    for (uint32_t i = 0; i < b->plan->unit_count; i++) {
        if (ox_build_holds(b, i) && ox_build_rules(b, i)->sums_on_device) {
            struct ox_task *const task =
                ox_build_move(b, OX_MOVE_PARTIALS, OX_LANE_D2H, b->scratch->partials[i], b->plan->norm_buf);
            task->unit_idx = i;
            ox_build_count_move(b, task);
        }
    }
}

/* Updates a unit on the device. The counts of all units are copied to the host after the last one. */
static void run_device_adam(struct ox_builder *b, const struct adam *adam) {
    struct ox_plan *const plan = b->plan;
    const uint32_t unit_idx = adam->unit_idx;
    struct ox_task *const task = ox_build_task(b, OX_TASK_UPDATE, OX_LANE_COMPUTE, unit_idx, OX_NONE);
    set_when(task, adam->when, OX_FACT_DUE);
    if (adam->when == WHEN_AFTER) {
        ox_build_reads(task, plan->norm_buf, OX_USE_NORM);
    }
    ox_build_reads(task, adam->grad, OX_USE_GRAD);
    ox_build_updates(task, b->scratch->state_home[unit_idx], OX_USE_STATE);
    ox_build_updates(task, b->scratch->weights_home[unit_idx], OX_USE_WEIGHTS);
    ox_build_writes(task, plan->counts_buf, OX_USE_COUNTS);
    if (unit_idx == last_device_unit(b)) {
        struct ox_task *const nonfinite =
            ox_build_move(b, OX_MOVE_NONFINITE, OX_LANE_D2H, plan->counts_buf, plan->nonfinite_buf);
        set_when(nonfinite, adam->when, OX_FACT_COUNTS_DUE);
        ox_build_count_move(b, nonfinite);
    }
}

/* ---- on the host ---------------------------------------------------------------------------------- */

/* The slots of the optimizer's stream, through which updates on the host go where there is a store. */
static uint32_t stream_of(struct ox_builder *b) {
    struct ox_plan *const plan = b->plan;
    if (plan->stream_buf == OX_NONE) {
        plan->stream_buf = ox_build_buf(b, OX_BUF_STREAM, OX_TIER_HOST, ox_plan_stream_bytes(b->in), OX_NONE);
        /* Writes may be in flight until the commit, which for speculative units comes in the next step. */
        plan->bufs[plan->stream_buf].resident = b->in->placement.speculative_units > 0;
    }
    return plan->stream_buf;
}

static void run_adam(struct ox_builder *b, const struct adam *adam) {
    if (ox_build_on_device(b, adam->unit_idx)) {
        run_device_adam(b, adam);
        return;
    }
    const struct ox_plan_scratch *const s = b->scratch;
    const uint32_t unit_idx = adam->unit_idx;
    const bool weights_on_device = ox_build_homes(b, unit_idx)->weights == OX_TIER_DEVICE;
    const bool ahead = adam->when == WHEN_SPECULATIVE && ox_build_rules(b, unit_idx)->goes_ahead;
    uint32_t weights = adam->when == WHEN_LATE ? OX_NONE : s->weights_home[unit_idx];
    if (weights_on_device) {
        weights = ox_build_buf(b, OX_BUF_WEIGHTS, OX_TIER_HOST, ox_plan_weight_bytes(b->in, unit_idx), unit_idx);
        move_planes(b, OX_LANE_D2H, adam, s->weights_home[unit_idx], weights);
    }
    struct ox_task *const task = ox_build_task(b, OX_TASK_UPDATE, OX_LANE_ADAM, unit_idx, OX_NONE);
    /* A forward that needs planes from the drives gets them by this task, also if they need no update. */
    set_when(task, adam->when, adam->target == OX_NONE ? OX_FACT_DUE : OX_FACT_WANTED);
    if (adam->when == WHEN_AFTER) {
        ox_build_reads(task, b->plan->norm_buf, OX_USE_NORM);
    }
    ox_build_reads(task, adam->grad, OX_USE_GRAD);
    if (s->state_home[unit_idx] != OX_NONE) {
        (ahead ? ox_build_reads : ox_build_updates)(task, s->state_home[unit_idx], OX_USE_STATE);
    }
    if (weights != OX_NONE) {
        ox_build_updates(task, weights, OX_USE_WEIGHTS);
    }
    if (adam->target != OX_NONE) {
        ox_build_writes(task, adam->target, OX_USE_TARGET);
    }
    if (adam->when == WHEN_SPECULATIVE && s->replaced[unit_idx] != OX_NONE) {
        ox_build_writes(task, s->replaced[unit_idx], OX_USE_REPLACED);
    }
    if (adam->when == WHEN_LATE) { /* what is saved takes the place of hi, which is new already */
        ox_build_updates(task, s->replaced[unit_idx], OX_USE_REPLACED);
    }
    if (has_store(b)) {
        ox_build_writes(task, stream_of(b), OX_USE_STREAM);
    }
    count_adam(b, task, adam);
    if (weights_on_device) {
        move_planes(b, OX_LANE_H2D, adam, weights, s->weights_home[unit_idx]);
    }
}

/* Whether updates have a transaction of the store. Where commits come between steps, only for what lives on drives. */
static bool transacts(const struct ox_builder *b) {
    return ox_plan_transacts(b->in, b->between);
}

/* Begins the store's transaction. Without a store the optimizer works in place and needs neither slots nor this. */
static void begin_transaction(struct ox_builder *b, bool carried) {
    if (!transacts(b)) {
        return;
    }
    struct ox_plan *const plan = b->plan;
    const uint32_t stream_buf = stream_of(b);
    struct ox_task *const begin = ox_build_task(b, OX_TASK_BEGIN, OX_LANE_ADAM, OX_NONE, OX_NONE);
    b->begun = b->begun || !carried;
    if (carried) {
        ox_build_carry(begin, OX_FACT_BEGIN_DUE);
    } else {
        begin->when |= (b->in->placement.overlap ? OX_FACT_SPECULATES : 0u) | OX_FACT_COMMITS;
    }
    ox_build_writes(begin, stream_buf, OX_USE_STREAM);
    if (!b->in->placement.overlap) {
        ox_build_reads(begin, plan->norm_buf, OX_USE_NORM);
    }
}

static struct ox_task *end_transaction(struct ox_builder *b, enum ox_task_kind kind, bool carried) {
    struct ox_task *const task = ox_build_task(b, kind, OX_LANE_ADAM, OX_NONE, OX_NONE);
    if (carried) {
        ox_build_carry(task, OX_FACT_COMMIT_DUE);
    } else {
        task->when |= OX_FACT_COMMITS;
    }
    ox_build_writes(task, b->plan->stream_buf, OX_USE_STREAM);
    if (kind == OX_TASK_COMMIT && (task->when & ~b->usual.facts) == 0) { /* with what exchanges of low rank keep */
        ox_build_count(b, task, OX_LINK_NVME_WRITE, OX_TRAFFIC_STATE, ox_low_rank_stored_bytes(b->in));
    }
    return task;
}

/* Ends the transaction. WRITTEN is a task of its own so that backward may read new planes while the drives flush. */
static void commit(struct ox_builder *b, bool carried) {
    if (!transacts(b)) {
        return;
    }
    if (carried) {
        ox_build_writes(end_transaction(b, OX_TASK_WRITTEN, true), b->plan->written_buf, OX_USE_WRITTEN);
        b->written = true;
        if (ox_plan_pipe(b->in) > 1) { /* all ranks of a pipeline commit together, when the last one can */
            return;
        }
    }
    end_transaction(b, OX_TASK_COMMIT, carried);
}

static uint32_t grad_at_rest(const struct ox_builder *b, uint32_t unit_idx) {
    const struct ox_plan_scratch *const s = b->scratch;
    const uint32_t grad_idx = ox_build_unit(b, unit_idx)->grad_idx;
    if (s->grad_home[grad_idx] != OX_NONE) {
        return s->grad_home[grad_idx];
    }
    return ox_build_on_device(b, unit_idx) ? s->grad_speculative[grad_idx] : s->grad_spool[grad_idx];
}

/* Whether no unit that the rank holds is updated before this one, or behind it, in the order of forward. */
static bool is_end(const struct ox_builder *b, uint32_t unit_idx, bool last) {
    const uint32_t update_idx = ox_build_unit(b, unit_idx)->update_idx;
    for (uint32_t i = 0; i < b->in->model.unit_count; i++) {
        const uint32_t other = ox_build_unit(b, i)->update_idx;
        if (ox_build_unit(b, i)->trained && ox_build_holds(b, i) && (last ? other > update_idx : other < update_idx)) {
            return false;
        }
    }
    return true;
}

void ox_build_adam_carried(struct ox_builder *b, uint32_t unit_idx, uint32_t target) {
    if (is_end(b, unit_idx, false) && ox_plan_pipe(b->in) == 1) {
        begin_transaction(b, true);
    }
    run_adam(b, &(struct adam){.unit_idx = unit_idx, .when = WHEN_CARRIED, .grad = grad_at_rest(b, unit_idx),
                               .target = target});
    if (is_end(b, unit_idx, true)) {
        commit(b, true);
    }
}

void ox_build_adam_late(struct ox_builder *b, uint32_t unit_idx) {
    if (b->carries && ox_build_holds(b, unit_idx) && ox_build_rules(b, unit_idx)->goes_ahead) {
        run_adam(b, &(struct adam){.unit_idx = unit_idx, .when = WHEN_LATE, .grad = grad_at_rest(b, unit_idx),
                                   .target = OX_NONE});
    }
}

/* Whether backward meets the unit before every other one that is updated there: units on the device are not. */
static bool is_first_speculative(const struct ox_builder *b, uint32_t unit_idx) {
    const uint32_t update_idx = ox_build_unit(b, unit_idx)->update_idx;
    for (uint32_t i = 0; i < b->in->model.unit_count; i++) {
        const struct ox_plan_unit *const unit = ox_build_unit(b, i);
        if (unit->trained && ox_build_holds(b, i) && unit->update_idx > update_idx &&
            ox_build_rules(b, i)->speculative) {
            return false;
        }
    }
    return true;
}

void ox_build_adam_speculative(struct ox_builder *b, uint32_t unit_idx, uint32_t grad) {
    if (is_first_speculative(b, unit_idx) && !b->begun) {
        ox_build_end_visits(b); /* in a pipeline the carried transaction ends first, which begins this one */
        if (!b->begun) {
            begin_transaction(b, false);
        }
    }
    run_adam(b, &(struct adam){.unit_idx = unit_idx, .when = WHEN_SPECULATIVE, .grad = grad, .target = OX_NONE});
}

void ox_build_pipe_begin(struct ox_builder *b) {
    if (b->carries) {
        begin_transaction(b, true);
    }
}

void ox_build_pipe_commit(struct ox_builder *b) {
    if (b->carries && transacts(b)) {
        end_transaction(b, OX_TASK_COMMIT, true);
    }
    if (b->carries && b->train && b->in->placement.speculative_units > 0) {
        begin_transaction(b, false);
    }
}

/* Lets all ranks have the square sums of all units: first within those that hold a unit, then over the groups of
 * features of a coordinate, then over the pipeline. */
static void gather_norms(struct ox_builder *b) {
    struct ox_plan *const plan = b->plan;
    for (uint32_t i = 0; i < plan->unit_count && ox_plan_holders(b->in) > 1; i++) {
        const uint32_t tensor = ox_plan_tensor_owner(&b->in->ranks, i);
        const bool of_groups = tensor == OX_NONE || tensor == ox_plan_tensor_at(b->in); /* the rank's */
        const bool of_others = ox_plan_is_expert(b->in, i) && of_groups &&
                               ox_plan_owner(&b->in->ranks, i) == ox_plan_pipe_at(b->in);
        if (ox_build_unit(b, i)->trained && (ox_build_holds(b, i) || of_others)) {
            ox_build_gather_here(b, OX_MOVE_PARTIALS, plan->norm_buf, i, true);
        }
    }
    if (ox_plan_tensors(b->in) > 1) {
        ox_build_gather_totals(b, OX_AXIS_TENSOR);
    }
    if (ox_plan_pipe(b->in) > 1) {
        ox_build_gather_totals(b, OX_AXIS_PIPE);
    }
}

void ox_build_optimizer(struct ox_builder *b) {
    struct ox_plan *const plan = b->plan;
    save_partials(b);
    gather_norms(b);
    struct ox_task *const norm = ox_build_task(b, OX_TASK_NORM, OX_LANE_REDUCE, OX_NONE, OX_NONE);
    ox_build_updates(norm, plan->norm_buf, OX_USE_NORM);
    if (plan->loss_host_buf != OX_NONE) {
        ox_build_reads(norm, plan->loss_host_buf, OX_USE_LOSS);
    }
    if (b->in->placement.overlap) {
        return;
    }
    begin_transaction(b, false);
    for (uint32_t i = 0; i < b->in->model.unit_count; i++) {
        const uint32_t unit_idx = b->in->model.order[i];
        if (!ox_build_unit(b, unit_idx)->trained || !ox_build_holds(b, unit_idx)) {
            continue;
        }
        run_adam(b, &(struct adam){.unit_idx = unit_idx, .when = WHEN_AFTER, .grad = grad_at_rest(b, unit_idx),
                                   .target = OX_NONE});
    }
    commit(b, false);
}
