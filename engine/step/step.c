/* Runs a plan. Tasks are issued in list order, and every lane waits for what its next task depends on. So the issuing
 * thread blocks only for the norm and to bound how far it runs ahead. After the first failure nothing more is issued,
 * all lanes drain, and the transaction is aborted. */
#include "engine/step/engine_internal.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"

#include <string.h>

struct ox_batch ox_engine_batch(struct ox_engine *engine, uint32_t mb_idx) {
    OX_ASSERT(mb_idx < engine->config.micro_batches);
    const struct ox_view all = ox_tiers_resident(&engine->tiers, engine->plan->train,
                                                  engine->plan->train->batch_host_buf);
    int32_t *const ids = (int32_t *)((unsigned char *)all.ptr + mb_idx * engine->batch_bytes);
    int32_t *const positions = ids + engine->shape.rows; /* ids | positions | targets */
    for (uint32_t i = 0; i < engine->shape.rows; i++) {
        positions[i] = (int32_t)(i % engine->shape.seq);
    }
    return (struct ox_batch){.ids = ids, .targets = positions + engine->shape.rows, .positions = positions};
}

/* ---- compute -------------------------------------------------------------------------------------- */

struct issue {
    struct ox_engine *engine;
    const struct ox_plan *plan;
    const struct ox_task *task;
    struct ox_lane *lane;
};

static struct ox_view view(const struct issue *is, enum ox_use_role role) {
    return ox_tiers_view(&is->engine->tiers, is->plan, is->task, role);
}

static void *view_if(const struct issue *is, enum ox_use_role role) {
    return ox_tiers_view_if(&is->engine->tiers, is->plan, is->task, role).ptr;
}

/* Planes of `unit_idx` in the use with `role`; lo lies behind hi, or at the front of the state. */
static struct ox_planes planes(const struct issue *is, uint32_t unit_idx, enum ox_use_role role,
                               enum ox_use_role state_role) {
    const uint16_t *const hi = view(is, role).ptr;
    if (!is->engine->config.fp32) {
        return (struct ox_planes){.hi = hi};
    }
    const uint16_t *const state = view_if(is, state_role);
    return (struct ox_planes){.hi = hi, .lo = state != NULL ? state : hi + ox_unit_elems(is->engine, unit_idx)};
}

static struct ox_unit_job unit_job(const struct issue *is) {
    struct ox_engine *const engine = is->engine;
    struct ox_unit_job job = {
        .run = {.ops = &engine->ops, .lane = is->lane},
        .shape = &engine->shape,
        .unit = &engine->config.model->units[is->task->unit_idx],
        .work = view_if(is, OX_USE_SCRATCH),
        .kept = view_if(is, OX_USE_KEPT),
    };
    const unsigned char *batch = view_if(is, OX_USE_BATCH);
    if (batch != NULL) { /* with unified memory one buffer holds all micro-batches */
        batch += engine->config.budget.unified ? is->task->mb_idx * engine->batch_bytes : 0;
        job.ids = (const int32_t *)batch;
        job.positions = job.ids + engine->shape.rows;
        job.targets = job.positions + engine->shape.rows;
        job.documents = engine->packed[is->task->mb_idx] ? job.positions : NULL;
    }
    const struct ox_model_config *const model = &engine->config.model->config;
    job.cos_table = view_if(is, OX_USE_CONST);
    if (job.cos_table != NULL) {
        job.sin_table = job.cos_table + (uint64_t)engine->config.seq * (model->head_dim / 2);
    }
    return job;
}

static enum ox_status issue_head(const struct issue *is) {
    struct ox_engine *const engine = is->engine;
    struct ox_unit_job job = unit_job(is);
    const uint32_t unit_idx = is->task->unit_idx;
    const struct ox_table table = engine->config.model->table;
    const bool tied = table.unit_idx != unit_idx;
    struct ox_head_args args = {
        .planes = planes(is, unit_idx, OX_USE_WEIGHTS, OX_USE_STATE),
        .x = view(is, OX_USE_X).ptr,
        .dx = view_if(is, OX_USE_DX),
        .grads = view_if(is, OX_USE_GRAD),
        .grads_table = view_if(is, OX_USE_GRAD_HEAD),
        .loss_sum = (double *)view(is, OX_USE_LOSS).ptr + is->task->mb_idx,
        .loss_scale = engine->step.loss_scale,
        .logits = is->task->mb_idx == 0 ? engine->logits_buffer : NULL,
    };
    args.table = tied ? planes(is, table.unit_idx, OX_USE_TABLE, OX_USE_TABLE_STATE) : args.planes;
    args.table.hi += table.offset;
    args.table.lo += args.table.lo == NULL ? 0 : table.offset;
    if (!tied && args.grads != NULL) {
        args.grads_table = args.grads + table.offset;
    }
    return ox_head_run(&job, &args);
}

static enum ox_status issue_join(const struct issue *is) {
    const struct ox_planes source = planes(is, is->task->unit_idx, OX_USE_WEIGHTS, OX_USE_STATE);
    return OX_QUEUE(&is->engine->ops, is->lane, planes_join, &(struct ox_op_planes_join){
        .out = view(is, OX_USE_JOINED).ptr, .hi = source.hi, .lo = source.lo,
        .count = ox_unit_elems(is->engine, is->task->unit_idx)});
}

/* A block's weights as its passes read them: joined, or hi. */
static const void *weights(const struct issue *is) {
    return is->engine->plan->input.model.joins ? view(is, OX_USE_JOINED).ptr : view(is, OX_USE_WEIGHTS).ptr;
}

static enum ox_status issue_forward(const struct issue *is) {
    struct ox_unit_job job = unit_job(is);
    void *const y = view(is, OX_USE_Y).ptr;
    if (job.unit->kind == OX_UNIT_EMBED) {
        return ox_embed_forward(&job, planes(is, is->task->unit_idx, OX_USE_WEIGHTS, OX_USE_STATE), y);
    }
    return ox_block_forward(&job, weights(is), view(is, OX_USE_X).ptr, y);
}

static enum ox_status issue_backward(const struct issue *is) {
    struct ox_unit_job job = unit_job(is);
    void *const dx = view(is, OX_USE_DX).ptr;
    float *const grads = view(is, OX_USE_GRAD).ptr;
    if (job.unit->kind == OX_UNIT_EMBED) {
        return ox_embed_backward(&job, grads, dx);
    }
    return ox_block_backward(&job, weights(is), grads, view(is, OX_USE_X).ptr, dx);
}

static enum ox_status issue_compute(const struct issue *is, struct ox_mark *done) {
    struct ox_engine *const engine = is->engine;
    enum ox_status status = OX_OK;
    switch ((enum ox_task_kind)is->task->kind) {
    case OX_TASK_JOIN:
        status = issue_join(is);
        break;
    case OX_TASK_FORWARD:
        status = issue_forward(is);
        break;
    case OX_TASK_HEAD:
        status = issue_head(is);
        break;
    case OX_TASK_BACKWARD:
        status = issue_backward(is);
        break;
    case OX_TASK_GRAD_ZERO:
        status = OX_QUEUE(&engine->ops, is->lane, zero, &(struct ox_op_zero){
            .target = view(is, OX_USE_GRAD).ptr, .bytes = ox_grad_elems(engine, is->task->grad_idx) * 4});
        break;
    case OX_TASK_GRAD_ADD:
        status = OX_QUEUE(&engine->ops, is->lane, add, &(struct ox_op_add){
            .target = view(is, OX_USE_GRAD).ptr, .a = view(is, OX_USE_GRAD).ptr,
            .b = view(is, OX_USE_GRAD_HEAD).ptr,
            .count = ox_grad_elems(engine, engine->plan->input.model.grads[is->task->grad_idx].addend)});
        break;
    case OX_TASK_REDUCE:
        status = OX_QUEUE(&engine->ops, is->lane, square_sums, &(struct ox_op_square_sums){
            .partials = view(is, OX_USE_TARGET).ptr, .grad = view(is, OX_USE_GRAD).ptr,
            .count = ox_unit_elems(engine, is->task->unit_idx), .grad_bf16 = engine->config.grad_bf16});
        break;
    case OX_TASK_UPDATE:
        status = ox_optim_issue(engine, is->plan, is->task, is->lane);
        break;
    case OX_TASK_GRAD_PACK:
        status = OX_QUEUE(&engine->ops, is->lane, bf16_pack, &(struct ox_op_bf16_pack){
            .out = view(is, OX_USE_TARGET).ptr, .in = view(is, OX_USE_SOURCE).ptr,
            .count = ox_grad_elems(engine, is->task->grad_idx)});
        break;
    default:
        OX_ASSERT(!"not a task of the compute lane");
    }
    return status == OX_OK ? engine->ops.mark(is->lane, done) : status;
}

/* ---- copies --------------------------------------------------------------------------------------- */

static enum ox_status copy(const struct issue *is, void *target, const void *source, uint64_t bytes,
                           struct ox_mark *done) {
    ox_engine_count(is->engine, ox_lane_link((enum ox_lane_id)is->task->lane), ox_task_traffic(is->task), bytes);
    const struct ox_copy pair = {.target = target, .source = source, .bytes = bytes};
    return ox_device_lane_copy(is->engine->device, is->lane, &pair, done);
}

static enum ox_status issue_copy(const struct issue *is, struct ox_mark *done) {
    unsigned char *target = view(is, OX_USE_TARGET).ptr;
    const unsigned char *source = view(is, OX_USE_SOURCE).ptr;
    const unsigned char *const state = view_if(is, OX_USE_STATE);
    const uint64_t bytes = ox_plan_move_bytes(&is->engine->plan->input, is->task);
    if (is->task->move == OX_MOVE_BATCH) {
        source += is->task->mb_idx * is->engine->batch_bytes;
    } else if (is->task->move == OX_MOVE_PARTIALS) {
        target += ox_norm_partials_first(is->engine, is->task->unit_idx) * sizeof(double);
    }
    if (state == NULL) {
        return copy(is, target, source, bytes, done);
    }
    /* hi from its home, lo from the front of the state */
    const enum ox_status status = copy(is, target, source, bytes / 2, done);
    return status == OX_OK ? copy(is, target + bytes / 2, state, bytes / 2, done) : status;
}

/* ---- the loop ------------------------------------------------------------------------------------- */

static enum ox_status issue_task(struct ox_engine *engine, const struct ox_plan *plan, uint32_t idx) {
    const struct ox_task *const task = &plan->tasks[idx];
    const bool idle = !ox_engine_works(engine, task);
    const struct issue is = {.engine = engine, .plan = plan, .task = task, .lane = engine->lanes[task->lane]};
    ox_tracing_issue(engine->tracing, idx, idle, &engine->marks[idx]);
    for (int lane = 0; lane < OX_LANE_COUNT; lane++) {
        if (task->deps[lane] == 0) {
            continue;
        }
        const enum ox_status status = ox_lane_wait(is.lane, engine->marks[task->deps[lane] - 1]);
        if (status != OX_OK) {
            return status;
        }
    }
    const bool copies = task->lane == OX_LANE_H2D || task->lane == OX_LANE_D2H;
    if (idle && (copies || task->lane == OX_LANE_COMPUTE)) {
        return engine->ops.mark(is.lane, &engine->marks[idx]);
    }
    engine->step.counts_come |= task->kind == OX_TASK_MOVE && task->move == OX_MOVE_NONFINITE;
    if (task->lane == OX_LANE_COMPUTE) {
        return issue_compute(&is, &engine->marks[idx]);
    }
    if (copies) {
        return issue_copy(&is, &engine->marks[idx]);
    }
    const struct ox_host_task host = {.plan = plan, .task_idx = idx, .idle = idle};
    return ox_host_lane_submit(is.lane, ox_host_task_run, &host, sizeof host, &engine->marks[idx]);
}

static bool stop_asked(const struct ox_step_input *input) {
    return input->stop != NULL && *input->stop != 0;
}

/* Waits for the norm, and decides whether the step is skipped. Without overlap the optimizer follows. */
static enum ox_status decide(struct ox_engine *engine, uint32_t norm_idx, bool *skip) {
    const enum ox_status status = ox_mark_join(engine->marks[norm_idx]);
    if (status != OX_OK) {
        return status;
    }
    if (stop_asked(engine->step.input)) {
        return ox_fail(OX_E_ABORTED, "stopped before the optimizer began");
    }
    *skip = !engine->step.finite;
    if (engine->step.input->decided != NULL) {
        const struct ox_step_result result = {.loss = engine->step.loss,
                                              .grad_norm = engine->step.grad_norm,
                                              .grad_scale = engine->step.grad_scale,
                                              .finite = engine->step.finite};
        engine->step.input->decided(engine->step.input->context, &result);
    }
    return OX_OK;
}

/* Places the slots of the optimizer's stream where the plan says. */
static void set_slots(struct ox_engine *engine, const struct ox_plan *plan) {
    for (uint32_t i = 0; i < plan->task_count && engine->store != NULL; i++) {
        if (ox_task_updates_on_host(&plan->tasks[i])) {
            ox_optim_set_slots(engine, plan, &plan->tasks[i]);
            return;
        }
    }
}

static enum ox_status issue_all(struct ox_engine *engine, const struct ox_plan *plan) {
    for (uint32_t i = 0; i < plan->task_count; i++) {
        enum ox_status status = i < OX_RUN_AHEAD_TASKS ? OX_OK
                                                       : ox_mark_join(engine->marks[i - OX_RUN_AHEAD_TASKS]);
        const bool looks = (plan->kind != OX_PLAN_TRAIN || i >= OX_RUN_AHEAD_TASKS) &&
                           plan->tasks[i].lane == OX_LANE_COMPUTE && plan->tasks[i].kind != OX_TASK_UPDATE;
        if (status == OX_OK && looks && stop_asked(engine->step.input)) {
            status = ox_fail(OX_E_ABORTED, plan->kind == OX_PLAN_TRAIN ? "stopped before the optimizer began"
                                                                       : "stopped within an evaluation");
        }
        OX_TRY(status, issue_task(engine, plan, i));
        bool skip = false;
        if (status == OX_OK && plan->tasks[i].kind == OX_TASK_NORM) {
            status = decide(engine, i, &skip);
        }
        if (status != OX_OK || skip) {
            return status;
        }
    }
    return OX_OK;
}

/* Notes a status. One that was aborted, by a stop or by another failure, counts only if nothing else failed. */
static void note_status(struct ox_first_failure notes[2], enum ox_status status) {
    ox_first_failure_note(&notes[status == OX_E_ABORTED], status);
}

/* Waits for every lane, so that nothing is in flight, and returns the first failure of all. */
static enum ox_status drain_all(struct ox_engine *engine, enum ox_status status) {
    struct ox_first_failure notes[2] = {{0}};
    note_status(notes, status);
    for (int i = 0; i < OX_LANE_COUNT; i++) {
        note_status(notes, ox_lane_drain(engine->lanes[i]));
    }
    note_status(notes, ox_optim_drain(engine));
    for (int i = 0; i < OX_LANE_COUNT; i++) {
        ox_lane_reset(engine->lanes[i]);
    }
    return ox_first_failure_result(&notes[notes[0].status == OX_OK]);
}

/* With chaos on, fills all but resident buffers with NaN, to show reads of what the step has not written. */
static enum ox_status poison(struct ox_engine *engine, const struct ox_plan *plan) {
    if (engine->config.chaos_seed == 0) {
        return OX_OK;
    }
    const struct ox_view host = ox_tiers_scratch(&engine->tiers, plan);
    memset(host.ptr, 0xff, host.bytes);
    struct ox_lane *const lane = engine->lanes[OX_LANE_H2D];
    enum ox_status status = OX_OK;
    uint64_t at = plan->resident_bytes[OX_TIER_DEVICE];
    while (at < engine->tiers.device_bytes && host.bytes > 0 && status == OX_OK) {
        const struct ox_copy copy = {.target = (unsigned char *)engine->tiers.device_base + at, .source = host.ptr,
                                     .bytes = ox_min_u64(host.bytes, engine->tiers.device_bytes - at)};
        status = ox_device_lane_copy(engine->device, lane, &copy, NULL);
        at += copy.bytes;
    }
    const enum ox_status drained = ox_lane_drain(lane);
    return status == OX_OK ? drained : status;
}

/* Notes the micro-batches in which a sequence has several documents. Attention gets positions only for these, because
 * not every attention kernel supports several documents. */
static void note_packed(struct ox_engine *engine, const struct ox_plan *plan) {
    const unsigned char *const all = ox_tiers_resident(&engine->tiers, plan, plan->batch_host_buf).ptr;
    for (uint32_t mb_idx = 0; mb_idx < plan->micro_batches; mb_idx++) {
        const int32_t *const positions = (const int32_t *)(all + mb_idx * engine->batch_bytes) + engine->shape.rows;
        engine->packed[mb_idx] = false;
        for (uint32_t i = 0; i < engine->shape.rows && !engine->packed[mb_idx]; i++) {
            engine->packed[mb_idx] = positions[i] != (int32_t)(i % engine->shape.seq);
        }
    }
}

static uint64_t logits_bytes(const struct ox_engine *engine) {
    return (uint64_t)engine->shape.rows * engine->config.model->config.vocab * sizeof(float);
}

/* Copies the logits that a test requests, from device memory that no plan counts. */
static enum ox_status take_logits(struct ox_engine *engine, const struct ox_step_input *input, enum ox_status status) {
    const uint64_t bytes = logits_bytes(engine);
    if (engine->logits_buffer == NULL) {
        return status;
    }
    if (status == OX_OK) {
        const struct ox_copy copy = {.target = input->logits, .source = engine->logits_buffer, .bytes = bytes};
        struct ox_mark done;
        status = ox_device_lane_copy(engine->device, engine->lanes[OX_LANE_D2H], &copy, &done);
        status = status == OX_OK ? ox_mark_join(done) : status;
    }
    ox_device_mem_close(engine->device, engine->logits_buffer, bytes);
    engine->logits_buffer = NULL;
    return status;
}

static enum ox_status make_logits_buffer(struct ox_engine *engine, const struct ox_step_input *input) {
    return input->logits == NULL ? OX_OK : ox_device_mem_open(engine->device, logits_bytes(engine),
                                                              (void **)&engine->logits_buffer);
}

static enum ox_status run_plan(struct ox_engine *engine, const struct ox_plan *plan,
                               const struct ox_step_input *input) {
    OX_ASSERT(input->target_count > 0 && input->meta_bytes <= OX_STORE_META_BYTES_MAX);
    enum ox_status status = ox_overlap_make_ready(engine);
    if (status != OX_OK) {
        return status;
    }
    engine->step = (struct ox_step_state){
        .input = input, .plan = plan, .loss_scale = (float)(1.0 / (double)input->target_count), .finite = true,
        .weights_step = engine->planes.step};
    note_packed(engine, plan);
    status = poison(engine, plan);
    OX_TRY(status, make_logits_buffer(engine, input));
    if (status != OX_OK) {
        return status;
    }
    const bool train = plan->kind == OX_PLAN_TRAIN;
    ox_overlap_begin_step(engine, true);
    if (plan->kind != OX_PLAN_EVAL) {
        set_slots(engine, plan);
    }
    ox_tracing_begin(engine->tracing, plan, train ? OX_TRACE_SPAN_STEP : OX_TRACE_SPAN_EVAL,
                     train ? input->step : engine->planes.step);
    status = drain_all(engine, issue_all(engine, plan));
    status = status == OX_OK ? ox_overlap_check_counts(engine) : status;
    status = take_logits(engine, input, status);
    ox_tracing_end(engine->tracing, status);
    return train                                   ? ox_overlap_end_step(engine, status)
           : plan->kind == OX_PLAN_EVAL_AFTER_STEP ? ox_overlap_end_finish(engine, status) : status;
}

static void read_traffic(const struct ox_engine *engine, uint64_t out[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]) {
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            out[link][kind] = __atomic_load_n(&engine->traffic.crossed[link][kind], __ATOMIC_SEQ_CST);
        }
    }
}

/* Adds the bytes that have crossed links since `before`. */
static void add_traffic(const struct ox_engine *engine, uint64_t before[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT],
                        uint64_t out[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]) {
    uint64_t now[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT];
    read_traffic(engine, now);
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            out[link][kind] += now[link][kind] - before[link][kind];
        }
    }
}

enum ox_status ox_engine_finish_update(struct ox_engine *engine) {
    const struct ox_plan *const plan = engine->plan->train;
    enum ox_status status = ox_overlap_make_ready(engine);
    if (status != OX_OK || !engine->pending.exists) {
        return status;
    }
    static const struct ox_step_input nothing = {0};
    uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT];
    read_traffic(engine, traffic);
    engine->step = (struct ox_step_state){.input = &nothing, .plan = plan};
    ox_overlap_begin_step(engine, false);
    set_slots(engine, plan);
    memset(engine->marks, 0, plan->task_count * sizeof *engine->marks);
    ox_tracing_begin(engine->tracing, plan, OX_TRACE_SPAN_UPDATE, engine->pending.step);
    /* Each task ends before the next begins, because a task left out here may be all that keeps two others from using
     * one space at the same time. */
    for (uint32_t i = 0; i < plan->task_count && status == OX_OK; i++) {
        if ((plan->tasks[i].when & OX_FACT_OWN_WORK) == 0) {
            status = issue_task(engine, plan, i);
            status = status == OX_OK ? ox_mark_join(engine->marks[i]) : status;
        }
    }
    status = drain_all(engine, status);
    status = status == OX_OK ? ox_overlap_check_counts(engine) : status;
    ox_tracing_end(engine->tracing, status);
    status = ox_overlap_end_finish(engine, status);
    if (status == OX_OK) {
        add_traffic(engine, traffic, engine->traffic.finished);
        ox_overlap_plan_finish(engine, engine->traffic.finished_planned);
    }
    return status;
}

void ox_engine_finished_traffic(const struct ox_engine *engine, uint64_t out[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT]) {
    memcpy(out, engine->traffic.finished, sizeof engine->traffic.finished);
}

static void read_clocks(struct ox_engine *engine, struct ox_lane_stats out[OX_LANE_COUNT]) {
    for (int i = 0; i < OX_LANE_COUNT; i++) {
        ox_lane_stats(engine->lanes[i], &out[i]);
    }
}

enum ox_status ox_engine_step(struct ox_engine *engine, const struct ox_step_input *input,
                              struct ox_step_result *out) {
    *out = (struct ox_step_result){0};
    struct ox_lane_stats before[OX_LANE_COUNT], after[OX_LANE_COUNT];
    uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT];
    read_traffic(engine, traffic);
    read_clocks(engine, before);
    const uint64_t begin_ns = ox_clock_ns();
    const enum ox_status status = run_plan(engine, engine->plan->train, input);
    if (status != OX_OK) {
        return status;
    }
    out->seconds = (double)(ox_clock_ns() - begin_ns) * 1e-9;
    read_clocks(engine, after);
    for (int i = 0; i < OX_LANE_COUNT; i++) {
        out->lane_busy_seconds[i] = (double)(after[i].busy_ns - before[i].busy_ns) * 1e-9;
        out->lane_wait_seconds[i] = (double)(after[i].wait_ns - before[i].wait_ns) * 1e-9;
    }
    ox_overlap_planned(engine, out->planned);
    memcpy(out->traffic, engine->traffic.finished, sizeof out->traffic);
    add_traffic(engine, traffic, out->traffic);
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            out->planned[link][kind] += engine->traffic.finished_planned[link][kind];
        }
    }
    memset(engine->traffic.finished, 0, sizeof engine->traffic.finished);
    memset(engine->traffic.finished_planned, 0, sizeof engine->traffic.finished_planned);
    out->loss = engine->step.loss;
    out->grad_norm = engine->step.grad_norm;
    out->grad_scale = engine->step.grad_scale;
    out->finite = engine->step.finite;
    out->committed = engine->step.committed;
    out->speculated = (engine->step.facts & OX_FACT_SPECULATES) != 0 && out->finite && out->grad_scale == 1.0;
    return OX_OK;
}

enum ox_status ox_engine_eval(struct ox_engine *engine, const struct ox_step_input *input,
                              struct ox_eval_result *out) {
    *out = (struct ox_eval_result){.with_update = engine->pending.exists};
    const struct ox_plan *const plan = out->with_update ? engine->plan->eval_after_step : engine->plan->eval;
    uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT];
    read_traffic(engine, traffic);
    const enum ox_status status = run_plan(engine, plan, input);
    if (status != OX_OK) {
        return status;
    }
    add_traffic(engine, traffic, out->traffic);
    ox_overlap_planned(engine, out->planned);
    const double *const losses = ox_tiers_resident(&engine->tiers, plan, plan->loss_host_buf).ptr;
    for (uint32_t i = 0; i < plan->micro_batches; i++) {
        out->loss_sum += losses[i];
    }
    return OX_OK;
}
