/* Runs a plan. Tasks are issued in list order, and every lane waits for what its next task depends on. So the issuing
 * thread blocks only for the norm and to bound how far it runs ahead. After the first failure nothing more is issued,
 * all lanes drain, and the transaction is aborted. */
#include "engine/step/executor/executor.h"
#include "engine/step/link/link.h"
#include "engine/step/pending/overlap.h"
#include "engine/step/planes/planes.h"
#include "engine/step/planes/routing.h"
#include "engine/step/rank/recorder.h"
#include "engine/step/update/update.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/pool.h"

#include <string.h>

/* ---- compute -------------------------------------------------------------------------------------- */

struct issue {
    struct ox_rank *rank;
    const struct ox_plan *plan;
    const struct ox_task *task;
    struct ox_lane *lane;
};

static struct ox_view view(const struct issue *is, enum ox_use_role role) {
    return ox_tiers_view(&is->rank->tiers, is->plan, is->task, role);
}

static void *nth_view_if(const struct issue *is, enum ox_use_role role, uint32_t nth) {
    return ox_tiers_nth_view_if(&is->rank->tiers, is->plan, is->task, role, nth).ptr;
}

static void *view_if(const struct issue *is, enum ox_use_role role) {
    return nth_view_if(is, role, 0);
}

static const struct ox_plan_stage *stage_of(const struct issue *is) {
    return &is->rank->plan->input.model.stages[is->task->stage_idx];
}

static const struct ox_unit *unit_of(const struct issue *is, uint32_t stage_idx) {
    return ox_model_stage_unit(is->rank->config.model, is->rank->plan->stage_of[stage_idx]);
}

/* Planes of `unit_idx` in the nth use of weights, if any; lo lies behind hi, or at the front of the state. */
static struct ox_planes planes(const struct issue *is, uint32_t unit_idx, uint32_t nth) {
    const uint16_t *const hi = nth_view_if(is, OX_USE_WEIGHTS, nth);
    OX_ASSERT(hi != NULL || !ox_plan_has_group(&is->rank->plan->input, unit_idx));
    if (hi == NULL || !ox_rank_rules(is->rank, unit_idx)->lo_travels) {
        return (struct ox_planes){.hi = hi};
    }
    const uint16_t *const state = nth_view_if(is, OX_USE_STATE, nth);
    return (struct ox_planes){.hi = hi, .lo = state != NULL ? state : hi + ox_unit_elems(is->rank, unit_idx)};
}

/* The job of a stage; what it computes is that of its first unit. */
static struct ox_unit_job stage_job(const struct issue *is) {
    struct ox_rank *const rank = is->rank;
    struct ox_unit_job job = {
        .run = {.ops = &rank->ops, .lane = is->lane},
        .shape = &rank->shape,
        .unit = unit_of(is, is->task->stage_idx),
        .work = view_if(is, OX_USE_SCRATCH),
        .kept = view_if(is, OX_USE_KEPT),
        .begins = is->task->begins, .phase = is->task->phase,
        .trains = is->plan->kind == OX_PLAN_TRAIN,
        .noise_stream = rank->step.input->step << 24 | (rank->loss_first + is->task->mb_idx),
        .in_phases = rank->shape.groups.contexts > 1 || ox_shape_tensors(&rank->shape) > 1 ||
                     ox_shape_experts(&rank->shape) > 1,
    };
    const unsigned char *batch = view_if(is, OX_USE_BATCH);
    if (batch != NULL) { /* with unified memory one buffer holds all micro-batches */
        batch += rank->config.budget.unified ? is->task->mb_idx * rank->batch_bytes : 0;
        const uint64_t given = ox_engine_batch_rows(&rank->shape), own = ox_engine_group_rows(&rank->shape);
        job.ids = (const int32_t *)batch + (own > 0 ? 3 * given : 0);
        job.positions = job.ids + (own > 0 ? own : given);
        job.targets = job.positions + (own > 0 ? own : given);
        job.reference = rank->shape.objective.pairs
                            ? (const double *)(const void *)(batch + ox_engine_batch_ids_bytes(&rank->shape)) : NULL;
        job.documents = rank->packed[is->task->mb_idx] ? job.positions : NULL;
        job.all_documents = job.documents == NULL ? NULL : job.ids + 3 * own;
    }
    const float *const angles = view_if(is, OX_USE_CONST);
    if (angles != NULL) {
        ox_angles_take(&job, rank->config.seq, angles, angles + ox_engine_rope_floats(&rank->config));
    }
    return job;
}

/* The slot of an accumulator that the task works on, which has a sum for each of the rank's groups of rows; NULL where
 * it has no such use. */
static float *sum_slot(const struct issue *is, uint32_t grad_idx, uint32_t nth) {
    float *const slots = nth_view_if(is, OX_USE_GRAD, nth);
    return slots == NULL ? NULL : slots + is->task->slot * ox_grad_elems(is->rank, grad_idx) *
                                              ox_plan_sums_of(&is->rank->plan->input, grad_idx);
}

/* That of a stage unit. */
static float *stage_grads(const struct issue *is, uint32_t nth) {
    return sum_slot(is, stage_of(is)->units[nth].grad_idx, nth);
}

/* ---- reports ---- */

/* The reports of all micro-batches, where the task uses them; doubles. */
static double *reports(const struct issue *is) {
    return view_if(is, OX_USE_LOSS);
}

/* Doubles of a report that the head leaves, and of all of it. */
static uint64_t head_doubles(const struct ox_plan_model *model) {
    return ox_plan_loss_bytes(model) / sizeof(double);
}
static uint64_t report_stride(const struct ox_plan_model *model) {
    return ox_plan_report_bytes(model) / sizeof(double);
}

/* That of the task's micro-batch, or of one of the rank's row groups of it: what the head leaves, and behind it what
 * its stages report. */
static double *group_report(const struct issue *is, uint32_t group) {
    return reports(is) + report_stride(&is->rank->plan->input.model) *
                             (is->rank->loss_first + group * is->rank->config.micro_batches + is->task->mb_idx);
}
static double *own_report(const struct issue *is) {
    return group_report(is, 0);
}

/* What is pooled of all micro-batches of the step; behind their reports. */
static double *pooled(const struct issue *is) {
    const struct ox_plan_input *const input = &is->rank->plan->input;
    return reports(is) + ox_plan_reports_bytes(input) / sizeof(double) - input->model.pooled_doubles;
}

/* How many stages before this one report. */
static uint32_t reporters_before(const struct ox_plan_model *model, uint32_t stage_idx) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < stage_idx; i++) {
        count += model->stages[i].reports;
    }
    return count;
}

/* A forward pass reports the load of its router; a backward pass adds the gradients of the losses of routers. */
static struct ox_route_losses route_losses(const struct issue *is, const struct ox_unit_job *job, bool sums) {
    const struct ox_rank *const rank = is->rank;
    const uint32_t count = ox_route_load_layout_of(rank->config.model->config.mixture.router.experts).count;
    const uint32_t before = reporters_before(&rank->plan->input.model, is->task->stage_idx);
    const double scale = rank->step.input->loss_scale > 0 ? rank->step.input->loss_scale : 1;
    return (struct ox_route_losses){.load = sums ? own_report(is) + head_doubles(&rank->plan->input.model) +
                                                       (size_t)before * count
                                                 : pooled(is),
                                    .apart = report_stride(&rank->plan->input.model) * rank->config.micro_batches,
                                    .counted = job->targets, .balance = (float)(scale * rank->config.router_balance),
                                    .z = (float)(scale * rank->config.router_z), .sums = sums};
}

/* The first head of a step comes behind the forward passes of all micro-batches; in a pipeline the first backward that
 * reads the load comes behind the reports of all ranks. */
static void pool_loads(const struct issue *is, struct ox_run *run) {
    const struct ox_plan_input *const input = &is->rank->plan->input;
    const struct ox_plan_model *const model = &input->model;
    const int loads = ox_task_find_use(is->task, OX_USE_LOSS);
    const bool begins = is->task->mb_idx == 0 && is->task->phase == 0;
    const bool first = ox_plan_pipe(input) == 1 ? is->task->kind == OX_TASK_HEAD && begins
                                                : is->task->kind == OX_TASK_BACKWARD && is->task->uses[loads].write;
    if (is->plan->kind == OX_PLAN_TRAIN && model->pooled_doubles > 0 && first) {
        OX_RUN(run, route_pool, .load = pooled(is), .loads = reports(is) + head_doubles(model),
               .micro_batches = ox_plan_sums(input).micro_batches,
               .layers = model->report_doubles / model->pooled_doubles, .count = model->pooled_doubles,
               .stride = (uint32_t)report_stride(model));
    }
}

/* The number of a unit among those of a stage that uses it. */
static uint32_t nth_of(const struct ox_plan_stage *stage, uint32_t unit_idx) {
    uint32_t nth = 0;
    for (; stage->units[nth].unit_idx != unit_idx; nth++) {
        OX_ASSERT(nth + 1 < stage->unit_count);
    }
    return nth;
}

static uint64_t grad_elems(const struct issue *is, uint32_t nth) {
    const uint32_t grad_idx = stage_of(is)->units[nth].grad_idx;
    return grad_idx == OX_NONE ? 0 : ox_grad_elems(is->rank, grad_idx);
}

/* One row group after the other. */
static enum ox_status run_head(const struct issue *is, struct ox_unit_job *job, const struct ox_head_args *args,
                               uint64_t adapter_elems) {
    const struct ox_shape *const shape = job->shape;
    const struct ox_model_config *const config = &shape->model->config;
    const uint64_t row_bytes = ox_unit_ends(shape, job->unit).in_bytes / ox_shape_own_groups(shape);
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < ox_shape_own_groups(shape) && status == OX_OK; i++) {
        struct ox_unit_job of = *job;
        struct ox_head_args own = *args;
        of.ids += (uint64_t)i * shape->rows;
        of.positions += (uint64_t)i * shape->rows;
        of.targets += (uint64_t)i * shape->rows;
        own.x = (const unsigned char *)args->x + i * row_bytes;
        own.dx = args->dx == NULL ? NULL : (unsigned char *)args->dx + i * row_bytes;
        own.grads = args->grads == NULL ? NULL : args->grads + i * grad_elems(is, 0);
        for (uint32_t g = 0; g < ox_model_groups(config); g++) {
            const uint64_t elems = grad_elems(is, nth_of(stage_of(is), ox_model_table_unit(shape->model, g)));
            own.grads_tables[g] = args->grads_tables[g] == NULL ? NULL : args->grads_tables[g] + i * elems;
        }
        own.grads_adapter = args->grads_adapter == NULL ? NULL : args->grads_adapter + i * adapter_elems;
        own.loss_sum = group_report(is, i);
        own.logits = args->logits == NULL ? NULL : args->logits + (uint64_t)i * shape->rows * config->vocab;
        status = ox_head_run(&of, &own);
    }
    return status;
}

static enum ox_status issue_head(const struct issue *is) {
    struct ox_rank *const rank = is->rank;
    struct ox_unit_job job = stage_job(is);
    pool_loads(is, &job.run);
    const struct ox_plan_stage *const stage = stage_of(is);
    const struct ox_model *const model = rank->config.model;
    struct ox_head_args args = {
        .planes = planes(is, stage->units[0].unit_idx, 0),
        .x = view(is, OX_USE_X).ptr,
        .dx = view_if(is, OX_USE_DX),
        .grads = stage_grads(is, 0),
        .loss_sum = own_report(is),
        .loss_scale = rank->step.loss_scale,
        .logits = is->task->mb_idx == 0 ? rank->logits_buffer : NULL,
    };
    for (uint32_t g = 0; g < ox_model_groups(&model->config); g++) {
        const uint32_t nth = nth_of(stage, ox_model_table_unit(model, g));
        struct ox_planes *const table = &args.tables[g];
        *table = planes(is, stage->units[nth].unit_idx, nth);
        table->hi += table->hi == NULL ? 0 : model->table.offset;
        table->lo += table->lo == NULL ? 0 : model->table.offset;
        float *const grads = stage_grads(is, nth);
        args.grads_tables[g] = grads == NULL ? NULL : grads + model->table.offset;
    }
    uint64_t adapter_elems = 0; /* of the sums of a row group */
    for (uint32_t nth = 1; nth < stage->unit_count; nth++) {
        const uint32_t unit_idx = stage->units[nth].unit_idx;
        if (model->units[unit_idx].role_offset[OX_ROLE_HEAD_A] != UINT64_MAX) {
            args.adapter = planes(is, unit_idx, nth);
            args.grads_adapter = stage_grads(is, nth);
            adapter_elems = grad_elems(is, nth);
        }
    }
    return run_head(is, &job, &args, adapter_elems);
}

static enum ox_status issue_cast(const struct issue *is) {
    const struct ox_planes source = planes(is, is->task->unit_idx, 0);
    return OX_QUEUE(&is->rank->ops, is->lane, planes_join, &(struct ox_op_planes_join){
        .out = view(is, OX_USE_CAST).ptr, .hi = source.hi, .lo = source.lo,
        .count = ox_unit_elems(is->rank, is->task->unit_idx), .real = is->rank->shape.compute.real,
        .format = ox_rank_format(is->rank, is->task->unit_idx), .to_hi = is->rank->shape.dtype == OX_COMPUTE_BF16});
}

/* The weights of a block's units as its passes read them, cast, or hi; and in backward their gradients. */
static struct ox_stage_weights weights(const struct issue *is) {
    struct ox_stage_weights out = {{NULL}, {NULL}};
    uint32_t experts = 0; /* units of the rank's experts */
    for (uint32_t nth = 0; nth < stage_of(is)->unit_count; nth++) {
        const uint32_t unit_idx = stage_of(is)->units[nth].unit_idx;
        const bool cast = ox_rank_rules(is->rank, unit_idx)->cast_bytes > 0;
        const struct ox_plan_input *const input = &is->rank->plan->input;
        const bool is_expert = ox_plan_is_expert(input, unit_idx);
        if (is_expert && ox_plan_expert_owner(&input->ranks, unit_idx) != is->rank->shape.experts.at) {
            continue; /* those of other ranks are not in the list of the rank's stage */
        }
        const uint32_t at = is_expert ? experts++ : nth;
        out.weights[at] = nth_view_if(is, cast ? OX_USE_CAST : OX_USE_WEIGHTS, nth);
        out.grads[at] = is->task->kind == OX_TASK_BACKWARD ? stage_grads(is, nth) : NULL;
        OX_ASSERT(out.weights[at] != NULL || !ox_plan_has_group(&is->rank->plan->input, unit_idx));
    }
    return out;
}

/* Copies how many rows each expert has from the output of a block. */
static void leave_routes(const struct issue *is, struct ox_unit_job *job, const void *y) {
    unsigned char *target = view_if(is, OX_USE_ROUTES);
    const struct ox_unit_routes routes = ox_unit_routes(job->shape, job->unit);
    if (target != NULL) {
        target += (is->task->mb_idx - is->task->mb_first) * routes.bytes;
        OX_RUN(&job->run, add, .target = (float *)(void *)target, .b = (const unsigned char *)y + routes.offset,
               .count = routes.bytes / sizeof(float), .real = OX_REAL_F32);
    }
}

static enum ox_status issue_forward(const struct issue *is) {
    struct ox_unit_job job = stage_job(is);
    void *const y = view(is, OX_USE_Y).ptr;
    if (job.unit->kind == OX_UNIT_EMBED) {
        for (uint32_t nth = 0; nth < stage_of(is)->unit_count; nth++) {
            job.planes[nth] = planes(is, stage_of(is)->units[nth].unit_idx, nth);
        }
        job.trains = job.trains && is->task->phase == stage_of(is)->forward.cut_count; /* noise comes last */
        OX_TRY(ox_unit_forward(&job, NULL, job.ids, y));
        ox_embed_noise(&job, y);
        return job.run.status;
    }
    const bool sums = reports(is) != NULL;
    const struct ox_route_losses losses = sums ? route_losses(is, &job, true) : (struct ox_route_losses){0};
    job.losses = sums ? &losses : NULL;
    const struct ox_stage_weights all = weights(is);
    OX_TRY(ox_unit_forward(&job, &all, view(is, OX_USE_X).ptr, y));
    leave_routes(is, &job, y);
    return job.run.status;
}

static enum ox_status issue_backward(const struct issue *is) {
    struct ox_unit_job job = stage_job(is);
    void *const dx = view(is, OX_USE_DX).ptr;
    if (job.unit->kind == OX_UNIT_EMBED) {
        struct ox_stage_weights sums = {.grads = {NULL}};
        for (uint32_t nth = 0; nth < stage_of(is)->unit_count; nth++) {
            const struct ox_plan_stage_unit *const use = &stage_of(is)->units[nth];
            sums.grads[nth] = stage_grads(is, nth);
            job.planes[nth] = use->read_back ? planes(is, use->unit_idx, nth) : (struct ox_planes){NULL, NULL};
        }
        return ox_unit_backward(&job, &sums, job.ids, dx);
    }
    const bool trained = reports(is) != NULL;
    if (trained) {
        pool_loads(is, &job.run);
    }
    const struct ox_route_losses losses = trained ? route_losses(is, &job, false) : (struct ox_route_losses){0};
    job.losses = trained ? &losses : NULL;
    const struct ox_stage_weights all = weights(is);
    return ox_unit_backward(&job, &all, view(is, OX_USE_X).ptr, dx);
}

/* Joins the sums that a slot has side by side, in the order of the tree of them, on a stack. */
static enum ox_status issue_join(const struct issue *is, uint64_t count, float *sums, float *target) {
    const uint32_t groups = ox_plan_sums_of(&is->rank->plan->input, is->task->grad_idx);
    const struct ox_sums order = {.micro_batches = groups, .groups = groups, .ranks = 1};
    struct ox_run run = {.ops = &is->rank->ops, .lane = is->lane};
    uint32_t stack[2 * OX_COMM_RANKS_MAX], depth = 0;
    for (uint32_t i = 0; i < groups; i++) {
        OX_ASSERT(depth < sizeof stack / sizeof *stack);
        stack[depth++] = i;
        for (uint32_t folds = ox_sums_folds(&order, i); folds > 0; folds--, depth--) {
            float *const lower = sums + stack[depth - 2] * count;
            const bool last = i + 1 == groups && folds == 1;
            OX_RUN(&run, add, .target = last && target != NULL ? target : lower, .a = lower,
                   .b = sums + stack[depth - 1] * count, .count = count);
        }
    }
    OX_ASSERT(depth == 1);
    return run.status;
}

/* Adds the slot above to a slot of an accumulator, there or where the finished sum waits. */
static enum ox_status issue_fold(const struct issue *is) {
    const uint64_t elems = ox_grad_elems(is->rank, is->task->grad_idx);
    const uint64_t count = elems * ox_plan_sums_of(&is->rank->plan->input, is->task->grad_idx);
    float *const sum = sum_slot(is, is->task->grad_idx, 0), *const target = view_if(is, OX_USE_TARGET);
    if (is->task->last) {
        return issue_join(is, elems, sum, target);
    }
    return OX_QUEUE(&is->rank->ops, is->lane, add, &(struct ox_op_add){
        .target = target != NULL ? target : sum, .a = sum, .b = sum + count, .count = count});
}

/* Adds the parts of the rank's slice in the order of the tree's top, on a stack of parts. The lowest one, or the task's
 * target, has the sum in the end. */
static enum ox_status issue_sum_parts(const struct issue *is) {
    const enum ox_axis axis = (enum ox_axis)is->task->axis;
    const struct ox_sums all = ox_plan_sums_along(&is->rank->plan->input, axis);
    const uint64_t count = ox_plan_grad_cut(&is->rank->plan->input, is->task->grad_idx, axis);
    const uint32_t nodes = ox_sums_nodes(&all);
    float *const parts = view(is, OX_USE_GRAD).ptr, *const target = view_if(is, OX_USE_TARGET);
    float *stack[2 * OX_COMM_RANKS_MAX];
    struct ox_run run = {.ops = &is->rank->ops, .lane = is->lane};
    struct ox_sums sums = all;
    uint32_t depth = 0, left = ox_sums_parts(&all) - nodes; /* additions that remain */
    for (sums.rank = all.span_first; sums.rank < ox_sums_span_past(&all) && count > 0; sums.rank++) {
        for (uint32_t part = 0; part < ox_sums_part_count(&sums); part++) {
            stack[depth++] = parts + ox_sums_place(&all, sums.rank, part) * count;
            for (uint32_t i = ox_sums_top_folds(&sums, ox_sums_part(&sums, part)); i > 0; i--, depth--, left--) {
                float *const lower = stack[depth - 2];
                OX_RUN(&run, add, .target = left == 1 && target != NULL ? target : lower, .a = lower,
                       .b = stack[depth - 1], .count = count);
            }
        }
    }
    OX_ASSERT(count == 0 || (depth == nodes && left == 0));
    return run.status;
}

/* Adds the finished sums of other uses of a unit to that of the first; in turn the one so far to one more. */
static enum ox_status issue_grad_add(const struct issue *is) {
    const struct ox_plan_input *const input = &is->rank->plan->input;
    struct ox_run run = {.ops = &is->rank->ops, .lane = is->lane};
    float *const sum = view(is, OX_USE_GRAD).ptr;
    uint32_t nth = 0;
    const struct ox_plan_grad *const grads = input->model.grads;
    for (uint32_t i = grads[is->task->grad_idx].addend; i != OX_NONE;
         i = grads[i].in_turn ? OX_NONE : grads[i].addend) {
        OX_RUN(&run, add, .target = sum, .a = sum, .b = nth_view_if(is, OX_USE_GRAD, ++nth),
               .count = ox_plan_grad_slice(input, i));
    }
    return run.status;
}

static enum ox_status issue_compute(const struct issue *is, struct ox_mark *done) {
    struct ox_rank *const rank = is->rank;
    enum ox_status status = OX_OK;
    switch ((enum ox_task_kind)is->task->kind) {
    case OX_TASK_CAST:
        status = issue_cast(is);
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
    case OX_TASK_GRAD_FOLD:
        status = issue_fold(is);
        break;
    case OX_TASK_GRAD_ADD:
        status = issue_grad_add(is);
        break;
    case OX_TASK_SUM_PARTS:
        status = issue_sum_parts(is);
        break;
    case OX_TASK_NARROW:
    case OX_TASK_WIDEN:
        status = ox_recode_issue(rank, is->plan, is->task, is->lane);
        break;
    case OX_TASK_REDUCE:
        status = OX_QUEUE(&rank->ops, is->lane, square_sums, &(struct ox_op_square_sums){
            .partials = view(is, OX_USE_TARGET).ptr, .grad = view(is, OX_USE_GRAD).ptr,
            .count = ox_slice_elems(rank, is->task->unit_idx), .grad_bf16 = rank->config.grad_bf16});
        break;
    case OX_TASK_UPDATE:
        status = ox_optim_issue(rank, is->plan, is->task, is->lane);
        break;
    case OX_TASK_GRAD_PACK:
        status = OX_QUEUE(&rank->ops, is->lane, bf16_pack, &(struct ox_op_bf16_pack){
            .out = view(is, OX_USE_TARGET).ptr, .in = view(is, OX_USE_SOURCE).ptr,
            .count = ox_plan_grad_slice(&rank->plan->input, is->task->grad_idx)});
        break;
    default:
        OX_ASSERT(!"not a task of the compute lane");
    }
    OX_THEN(status, ox_guard_issue(rank, is->plan, (uint32_t)(is->task - is->plan->tasks), is->lane));
    return status == OX_OK ? rank->ops.mark(is->lane, done) : status;
}

/* ---- copies --------------------------------------------------------------------------------------- */

static enum ox_status copy(const struct issue *is, void *target, const void *source, uint64_t bytes,
                           struct ox_mark *done) {
    ox_rank_count(is->rank, ox_lane_link((enum ox_lane_id)is->task->lane), ox_task_traffic(is->task), bytes);
    const struct ox_copy pair = {.target = target, .source = source, .bytes = bytes};
    return ox_device_lane_copy(is->rank->device, is->lane, &pair, done);
}

static enum ox_status issue_copy(const struct issue *is, struct ox_mark *done) {
    unsigned char *target = view(is, OX_USE_TARGET).ptr;
    const unsigned char *source = view(is, OX_USE_SOURCE).ptr;
    const unsigned char *const state = view_if(is, OX_USE_STATE);
    const uint64_t bytes = ox_plan_move_bytes(&is->rank->plan->input, is->task);
    if (is->task->move == OX_MOVE_BATCH) {
        source += is->task->mb_idx * is->rank->batch_bytes;
    } else if (is->task->move == OX_MOVE_PARTIALS) {
        target += (ox_norm_partials_first(is->rank, is->task->unit_idx) +
                   ox_slice_first(is->rank, is->task->unit_idx) / OX_GROUP_ELEMS) * sizeof(double);
    } else if (is->task->move == OX_MOVE_LOSSES) {
        const uint64_t first = is->task->lane == OX_LANE_H2D ? 0 : is->rank->loss_first; /* all come back */
        target += first * ox_plan_report_bytes(&is->rank->plan->input.model);
        source += first * ox_plan_report_bytes(&is->rank->plan->input.model);
    }
    if (state == NULL) {
        return copy(is, target, source, bytes, done);
    }
    /* hi from its home, lo from the front of the state */
    const enum ox_status status = copy(is, target, source, bytes / 2, done);
    return status == OX_OK ? copy(is, target + bytes / 2, state, bytes / 2, done) : status;
}

/* ---- the loop ------------------------------------------------------------------------------------- */

/* Whether the stage for which alone a task works has rows, in any of the micro-batches. */
static bool has_rows(const struct issue *is) {
    const struct ox_plan_input *const input = &is->rank->plan->input;
    const struct ox_plan_stage *const stage = &input->model.stages[is->task->asks_stage];
    const struct ox_model *const model = is->rank->config.model;
    const unsigned char *const routes = view(is, OX_USE_ROUTES).ptr;
    uint32_t rows = 0;
    for (uint32_t i = 0; i < is->task->mb_past - is->task->mb_first; i++) {
        for (uint32_t nth = 0; nth < stage->unit_count; nth++) { /* what is beside a unit has the same experts */
            const struct ox_unit *const unit = &model->units[stage->units[nth].unit_idx];
            const unsigned char *const at = routes + i * (stage - stage->routed_back)->routes_bytes;
            rows += ox_plan_has_group(input, stage->units[nth].unit_idx) ? ox_unit_rows(unit, at) : 0;
        }
    }
    return rows > 0;
}

/* Asks whether anybody will read what the task makes, which is known when another has ended. What is left out is not
 * counted, and with chaos on nothing but NaN is left in its place. */
static enum ox_status ask(const struct issue *is, bool *idle) {
    struct ox_rank *const rank = is->rank;
    if (*idle || is->task->asks == 0) {
        return OX_OK;
    }
    OX_TRY(ox_mark_join(rank->marks[is->task->asks - 1]));
    *idle = !has_rows(is);
    if (*idle && is->task->kind == OX_TASK_MOVE) {
        rank->step.left_out[ox_lane_link((enum ox_lane_id)is->task->lane)] +=
            ox_plan_move_bytes(&rank->plan->input, is->task);
    }
    return OX_OK;
}

/* Fills the target of a copy that is left out. */
static enum ox_status poison_target(const struct issue *is) {
    static const uint64_t nans[8192 / sizeof(uint64_t)] = {[0 ... 8192 / sizeof(uint64_t) - 1] = UINT64_MAX};
    const struct ox_view target = view(is, OX_USE_TARGET);
    enum ox_status status = OX_OK;
    for (uint64_t at = 0; at < target.bytes && status == OX_OK; at += sizeof nans) {
        const struct ox_copy piece = {.target = (unsigned char *)target.ptr + at, .source = nans,
                                      .bytes = ox_min_u64(sizeof nans, target.bytes - at)};
        status = ox_device_lane_copy(is->rank->device, is->lane, &piece, NULL);
    }
    return status;
}

static enum ox_status issue_named(struct ox_rank *rank, const struct ox_plan *plan, uint32_t idx) {
    const struct ox_task *const task = &plan->tasks[idx];
    const bool works = ox_rank_works(rank, task);
    const struct issue is = {.rank = rank, .plan = plan, .task = task, .lane = rank->lanes[task->lane]};
    bool idle = !works;
    OX_TRY(ask(&is, &idle));
    ox_tracing_issue(rank->tracing, idx, idle, &rank->marks[idx]);
    for (int lane = 0; lane < OX_LANE_COUNT; lane++) {
        if (task->deps[lane] == 0) {
            continue;
        }
        const enum ox_status status = ox_lane_wait(is.lane, rank->marks[task->deps[lane] - 1]);
        if (status != OX_OK) {
            return status;
        }
    }
    const bool copies = task->lane == OX_LANE_H2D || task->lane == OX_LANE_D2H;
    if (idle && works && task->lane == OX_LANE_H2D && rank->config.chaos_seed != 0) {
        OX_TRY(poison_target(&is));
    }
    if (idle && (copies || task->lane == OX_LANE_COMPUTE)) {
        return rank->ops.mark(is.lane, &rank->marks[idx]);
    }
    rank->step.counts_come |= task->kind == OX_TASK_MOVE && task->move == OX_MOVE_NONFINITE;
    if (task->lane == OX_LANE_COMPUTE) {
        return issue_compute(&is, &rank->marks[idx]);
    }
    if (copies) {
        return issue_copy(&is, &rank->marks[idx]);
    }
    const struct ox_host_task host = {.plan = plan, .task_idx = idx, .idle = idle};
    if (task->lane == OX_LANE_LINK && rank->link_host != NULL) {
        return idle ? rank->ops.mark(is.lane, &rank->marks[idx])
                    : ox_link_issue(rank, plan, task, &(struct ox_link_job){ox_host_task_run, &host, sizeof host},
                                    &rank->marks[idx]);
    }
    rank->step.link_calls[0] += task->lane == OX_LANE_LINK && !idle;
    return ox_host_lane_submit(is.lane, ox_host_task_run, &host, sizeof host, &rank->marks[idx]);
}

/* Issues a task, whose label goes with its work to a profiler. */
static enum ox_status issue_task(struct ox_rank *rank, const struct ox_plan *plan, uint32_t idx) {
    char label[OX_RANGE_BYTES];
    if (!ox_ranges_used()) {
        return issue_named(rank, plan, idx);
    }
    ox_tracing_label(&plan->tasks[idx], label);
    ox_range_set_task(label);
    const enum ox_status status = issue_named(rank, plan, idx);
    ox_range_set_task("");
    return status;
}

/* Whether to stop here. Several ranks agree on that with the norm, because a rank that stopped alone would leave the
 * others waiting. */
static bool stops(const struct ox_rank *rank) {
    const struct ox_step_input *const input = rank->step.input;
    return rank->comm != NULL ? rank->step.stopped : ox_is_raised(input->stop);
}

/* Waits for the norm, and decides whether the step is skipped. Without overlap the optimizer follows. */
static enum ox_status decide(struct ox_rank *rank, uint32_t norm_idx, bool *skip) {
    OX_TRY(ox_mark_join(rank->marks[norm_idx]));
    if (stops(rank)) {
        return ox_fail(OX_E_ABORTED, "stopped before the optimizer began");
    }
    *skip = !rank->step.finite;
    if (rank->step.input->decided != NULL) {
        const struct ox_step_result result = {.loss = rank->step.loss,
                                              .grad_norm = rank->step.grad_norm,
                                              .grad_scale = rank->step.grad_scale,
                                              .finite = rank->step.finite,
                                              .overflow = rank->step.overflow};
        rank->step.input->decided(rank->step.input->context, &result);
    }
    return OX_OK;
}

/* Places the slots of the optimizer's stream where the plan says. */
static void set_slots(struct ox_rank *rank, const struct ox_plan *plan) {
    for (uint32_t i = 0; i < plan->task_count && rank->store != NULL; i++) {
        if (ox_task_updates_on_host(&plan->tasks[i])) {
            ox_optim_set_slots(rank, plan, &plan->tasks[i]);
            return;
        }
    }
}

static enum ox_status issue_all(struct ox_rank *rank, const struct ox_plan *plan) {
    const uint32_t window = ox_plan_window(&rank->plan->input);
    for (uint32_t i = 0; i < plan->task_count; i++) {
        enum ox_status status = i < window ? OX_OK : ox_mark_join(rank->marks[i - window]);
        const bool looks = (plan->kind != OX_PLAN_TRAIN || i >= window) &&
                           plan->tasks[i].lane == OX_LANE_COMPUTE && plan->tasks[i].kind != OX_TASK_UPDATE;
        if (status == OX_OK && looks && stops(rank)) {
            status = ox_fail(OX_E_ABORTED, plan->kind == OX_PLAN_TRAIN ? "stopped before the optimizer began"
                                                                       : "stopped within an evaluation");
        }
        OX_THEN(status, issue_task(rank, plan, i));
        bool skip = false;
        if (status == OX_OK && plan->tasks[i].kind == OX_TASK_NORM) {
            status = decide(rank, i, &skip);
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
static enum ox_status drain_all(struct ox_rank *rank, enum ox_status status) {
    struct ox_first_failure notes[2] = {{0}};
    note_status(notes, status);
    ox_link_abort(rank, status);
    ox_link_stop(rank);
    for (uint32_t i = 0; i < rank->lane_count; i++) {
        status = rank->lanes[i] == NULL ? OX_OK : ox_lane_drain(rank->lanes[i]);
        ox_link_abort(rank, status);
        note_status(notes, status);
    }
    note_status(notes, ox_link_drain(rank));
    note_status(notes, ox_optim_drain(rank));
    for (uint32_t i = 0; i < rank->lane_count; i++) {
        if (rank->lanes[i] != NULL) {
            ox_lane_reset(rank->lanes[i]);
        }
    }
    return ox_first_failure_result(&notes[notes[0].status == OX_OK]);
}

/* With chaos on, fills all but resident buffers with NaN, to show reads of what the step has not written. */
static enum ox_status poison(struct ox_rank *rank, const struct ox_plan *plan) {
    if (rank->config.chaos_seed == 0) {
        return OX_OK;
    }
    const struct ox_view host = ox_tiers_scratch(&rank->tiers, plan);
    memset(host.ptr, 0xff, host.bytes);
    struct ox_lane *const lane = rank->lanes[OX_LANE_H2D];
    enum ox_status status = OX_OK;
    uint64_t at = plan->resident_bytes[OX_TIER_DEVICE];
    while (at < rank->tiers.device_bytes && host.bytes > 0 && status == OX_OK) {
        const struct ox_copy copy = {.target = (unsigned char *)rank->tiers.device_base + at, .source = host.ptr,
                                     .bytes = ox_min_u64(host.bytes, rank->tiers.device_bytes - at)};
        status = ox_device_lane_copy(rank->device, lane, &copy, NULL);
        at += copy.bytes;
    }
    const enum ox_status drained = ox_lane_drain(lane);
    return status == OX_OK ? drained : status;
}

enum ox_status ox_rank_run(struct ox_rank *rank, const struct ox_plan *plan, const struct ox_step_input *input) {
    const bool train = plan->kind == OX_PLAN_TRAIN;
    OX_ASSERT(input->target_count > 0 && input->meta_bytes <= OX_STORE_META_BYTES_MAX);
    const double scale = input->loss_scale > 0 ? input->loss_scale : 1;
    ox_rank_begin_counting(rank);
    rank->step = (struct ox_step_state){
        .input = input, .plan = plan, .loss_scale = (float)(scale / (double)input->target_count),
        .unscale = (double)(float)(1 / scale), .finite = true, .weights_step = rank->planes.step};
    ox_rank_take_batches(rank, plan);
    enum ox_status status = poison(rank, plan);
    OX_THEN(status, ox_rank_make_logits(rank, input));
    ox_overlap_begin_step(rank, true);
    OX_THEN(status, ox_link_begin(rank));
    if (plan->kind != OX_PLAN_EVAL) {
        set_slots(rank, plan);
    }
    ox_tracing_begin(rank->tracing, plan, train ? OX_TRACE_SPAN_STEP : OX_TRACE_SPAN_EVAL,
                     train ? input->step : rank->planes.step);
    status = drain_all(rank, status == OX_OK ? issue_all(rank, plan) : status);
    status = status == OX_OK ? ox_overlap_check_counts(rank) : status;
    status = ox_rank_take_logits(rank, input, status);
    ox_tracing_end(rank->tracing, status);
    return status;
}

enum ox_status ox_rank_end(struct ox_rank *rank, enum ox_status status) {
    const enum ox_plan_kind kind = rank->step.plan->kind;
    return kind == OX_PLAN_TRAIN             ? ox_overlap_end_step(rank, status)
           : kind == OX_PLAN_EVAL_AFTER_STEP ? ox_overlap_end_finish(rank, status) : status;
}

enum ox_status ox_rank_run_pending(struct ox_rank *rank) {
    static const struct ox_step_input nothing = {0};
    const struct ox_plan *const plan = rank->plan->train;
    enum ox_status status = OX_OK;
    ox_rank_begin_counting(rank);
    rank->step = (struct ox_step_state){.input = &nothing, .plan = plan, .unscale = rank->step.unscale};
    ox_overlap_begin_step(rank, false);
    set_slots(rank, plan);
    memset(rank->marks, 0, plan->task_count * sizeof *rank->marks);
    ox_tracing_begin(rank->tracing, plan, OX_TRACE_SPAN_UPDATE, rank->pending.step);
    /* Each task ends before the next begins, because a task left out here may be all that keeps two others from using
     * one space at the same time. */
    for (uint32_t i = 0; i < plan->task_count && status == OX_OK; i++) {
        if ((plan->tasks[i].when & OX_FACT_OWN_WORK) == 0) {
            status = issue_task(rank, plan, i);
            status = status == OX_OK ? ox_mark_join(rank->marks[i]) : status;
        }
    }
    status = drain_all(rank, status);
    status = status == OX_OK ? ox_overlap_check_counts(rank) : status;
    ox_tracing_end(rank->tracing, status);
    return status;
}

enum ox_status ox_rank_end_pending(struct ox_rank *rank, enum ox_status status) {
    status = ox_overlap_end_finish(rank, status);
    if (status == OX_OK) {
        ox_rank_add_traffic(rank, rank->traffic.finished);
        ox_rank_plan_finish(rank, rank->traffic.finished_planned);
    }
    return status;
}
