/* Describes a model, its mesh and its budget to the planner, as a rank sees them; reserves nothing. */
#include "engine/step/engine_internal.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "offload/plan/schedule.h"
#include "offload/plan/sums.h"

#include <stdlib.h>
#include <string.h>

static struct ox_plan_pass describe_pass(const struct ox_shape *shape, const struct ox_unit *unit, enum ox_pass pass) {
    struct ox_plan_pass out = {.scratch_bytes = ox_unit_work_bytes(shape, unit, pass),
                               .work = ox_unit_cost(shape, unit, pass)};
    out.cut_count = ox_unit_cuts(shape, unit, pass, out.cuts);
    out.rounds = ox_unit_rounds(shape, unit, pass);
    return out;
}

static bool has_unit(const struct ox_plan_stage *stage, uint32_t unit_idx) {
    bool has = false;
    for (uint32_t i = 0; i < stage->unit_count; i++) {
        has |= stage->units[i].unit_idx == unit_idx;
    }
    return has;
}

/* Describes a stage to the planner; its own unit is its first one, and a tied head's table the last. The embedding
 * takes tokens, the head gives the loss. Backward of a group of experts starts from what the block handed to the first
 * group: a later one's input has the sum so far beside that, which backward does not read. */
static struct ox_plan_stage describe_stage(const struct ox_shape *shape, uint32_t stage_idx) {
    static const enum ox_plan_stage_kind kinds[] = {[OX_UNIT_EMBED] = OX_PLAN_EMBEDDING,
                                                    [OX_UNIT_BLOCK] = OX_PLAN_BLOCK, [OX_UNIT_HEAD] = OX_PLAN_HEAD,
                                                    [OX_UNIT_EXPERTS] = OX_PLAN_BLOCK};
    const struct ox_model *const model = shape->model;
    const struct ox_unit *const unit = ox_model_stage_unit(model, stage_idx);
    const uint32_t unit_idx = unit->own;
    const enum ox_unit_kind kind = unit->kind;
    const uint32_t expert_first = unit->expert_first;
    const uint32_t experts = ox_shape_experts(shape), per_unit = model->config.mixture.per_unit;
    const uint32_t nth = expert_first == 0 ? 0 : expert_first / per_unit / experts; /* behind the block */
    const struct ox_unit_ends ends = ox_unit_ends(shape, unit);
    struct ox_plan_stage stage = {
        .kind = kinds[kind],
        .input_bytes = kind == OX_UNIT_EMBED ? 0 : ends.in_bytes,
        .output_bytes = kind == OX_UNIT_HEAD ? 0 : ends.out_bytes,
        .kept_bytes = ox_unit_kept_bytes(shape, unit),
        .saves_input = kinds[kind] == OX_PLAN_BLOCK && nth == 0,
        .starts_back = nth,
        .routes_bytes = ox_unit_routes(shape, unit).bytes,
        .routed_back = kind == OX_UNIT_EXPERTS ? nth + 1 : 0,
        .reports = ox_model_stage_has(model, unit, OX_ROLE_ROUTER),
        .forward = describe_pass(shape, unit, OX_PASS_FORWARD),
        .backward = describe_pass(shape, unit, OX_PASS_BACKWARD),
        .forward_kept = describe_pass(shape, unit, OX_PASS_FORWARD_KEPT),
        .backward_kept = describe_pass(shape, unit, OX_PASS_BACKWARD_KEPT),
    };
    /* Adapters and frozen parts are units beside the stage's own, and are fetched with it. So are the groups of experts
     * that ranks have of a stage, whose units follow each other, each with those of all groups of features. */
    for (uint32_t g = 0; g < (kind == OX_UNIT_EXPERTS ? experts : 1); g++) {
        for (uint32_t i = unit_idx + g * ox_model_groups(&model->config); i != OX_NO_UNIT; i = model->units[i].next) {
            OX_ASSERT(stage.unit_count < OX_STAGE_UNITS_MAX);
            stage.units[stage.unit_count++] = (struct ox_plan_stage_unit){
                .unit_idx = i, .grad_idx = OX_NONE,
                .read_back = kind == OX_UNIT_EMBED && model->units[i].role_offset[OX_ROLE_EMBED_A] != UINT64_MAX};
        }
    }
    for (uint32_t g = 0; kind == OX_UNIT_HEAD && g < ox_model_groups(&model->config); g++) {
        const uint32_t table_idx = ox_model_table_unit(model, g);
        if (!has_unit(&stage, table_idx)) { /* tied */
            stage.units[stage.unit_count++] = (struct ox_plan_stage_unit){.unit_idx = table_idx, .grad_idx = OX_NONE};
        }
    }
    return stage;
}

/* Gives a use of a unit its gradient: the first use, in the order of forward, one of the whole unit, to which those of
 * later uses are added, the last one first, as backward finishes them: in turn, where layers share a unit. A head that
 * uses the table of another unit has the gradient of that alone. */
static void describe_grad(const struct ox_model *model, struct ox_engine_plan *plan, uint32_t grad_idx,
                          struct ox_plan_stage_unit *use, bool first) {
    struct ox_plan_unit *const unit = &plan->units[use->unit_idx];
    use->grad_idx = grad_idx;
    plan->grads[grad_idx] = (struct ox_plan_grad){.unit_idx = use->unit_idx, .added_to = OX_NONE, .addend = OX_NONE,
                                                  .elem_count = unit->elem_count};
    plan->grads[grad_idx].in_turn = model->units[use->unit_idx].kind != OX_UNIT_EMBED;
    if (first) {
        unit->grad_idx = grad_idx;
        return;
    }
    if (plan->grads[grad_idx].in_turn) {
        uint32_t before = unit->grad_idx; /* in the order of forward */
        for (; plan->grads[before].addend != OX_NONE; before = plan->grads[before].addend) {
        }
        plan->grads[grad_idx].added_to = before;
        plan->grads[before].addend = grad_idx;
        return;
    }
    OX_ASSERT(model->table.offset == 0); /* gradients are added from their first elements on */
    if (model->units[use->unit_idx].group == OX_NO_GROUP) { /* a group's unit is its table */
        const uint64_t table = (uint64_t)model->config.vocab * model->config.hidden;
        plan->grads[grad_idx].elem_count = ox_align_up(table, OX_GROUP_ELEMS);
    }
    plan->grads[grad_idx].added_to = unit->grad_idx;
    plan->grads[grad_idx].addend = plan->grads[unit->grad_idx].addend;
    plan->grads[unit->grad_idx].addend = grad_idx;
}

/* Whether a stage trains something of a unit: one of its units, or the table of another stage's. */
static bool trains_use(const struct ox_model *model, const struct ox_plan_stage *stage, uint32_t nth) {
    const struct ox_unit *const unit = &model->units[stage->units[nth].unit_idx];
    const bool is_table = stage->kind == OX_PLAN_HEAD && model->units[unit->own].kind == OX_UNIT_EMBED;
    return is_table ? unit->role_trained[OX_ROLE_EMBED] : unit->trained;
}

/* Returns how many gradients there are: those of first uses are numbered before the others. */
static uint32_t describe_grads(const struct ox_model *model, struct ox_engine_plan *plan, uint32_t stage_count) {
    uint32_t count = 0;
    for (int later = 0; later <= 1; later++) {
        for (uint32_t i = 0; i < stage_count; i++) {
            struct ox_plan_stage *const stage = &plan->stages[i];
            for (uint32_t nth = 0; nth < stage->unit_count; nth++) {
                const bool first = plan->units[stage->units[nth].unit_idx].stage_idx == i;
                if (first == (later == 0) && trains_use(model, stage, nth)) {
                    describe_grad(model, plan, count++, &stage->units[nth], first);
                }
            }
        }
    }
    return count;
}

uint32_t ox_plan_own_micro_batches(const struct ox_plan_input *input) {
    const struct ox_sums sums = ox_plan_row_sums(input);
    return ox_sums_count(&sums);
}

/* A rank's part of the budget. Ranks of a process share its host memory and its drives; each has a device. */
static enum ox_status divide_budget(const struct ox_engine_config *config, struct ox_engine_plan *plan) {
    const uint32_t ranks = plan->input.ranks.count;
    struct ox_plan_budget *const budget = &plan->input.budget;
    *budget = config->budget;
    budget->host_bytes /= ranks;
    budget->nvme_bytes /= ranks;
    if (budget->drive_bytes == NULL || ranks == 1) {
        return OX_OK;
    }
    plan->drive_bytes = calloc(budget->drive_count, sizeof *plan->drive_bytes);
    if (plan->drive_bytes == NULL) {
        return ox_fail(OX_E_NOMEM, "plan: no memory for the budget of a rank");
    }
    for (uint32_t i = 0; i < budget->drive_count; i++) {
        plan->drive_bytes[i] = budget->drive_bytes[i] / ranks;
    }
    budget->drive_bytes = plan->drive_bytes;
    return OX_OK;
}

/* What the micro-batches of a training step report of its routers: the load of each, and what follows from all. */
static void describe_reports(const struct ox_engine_config *config, struct ox_plan_model *out) {
    const uint32_t count = ox_route_load_layout_of(config->model->config.mixture.router.experts).count;
    uint32_t layers = 0;
    for (uint32_t i = 0; i < out->stage_count; i++) {
        layers += out->stages[i].reports;
    }
    if (layers > 0 && !config->eval_only) {
        out->report_doubles = layers * count;
        out->pooled_doubles = config->router_balance > 0 || config->router_z > 0 ? count : 0;
    }
}

/* That of a rank, which has a part of the threads: where regions of a pass lie, which cuts name, depends on them. */
static struct ox_shape shape_of_rank(const struct ox_engine_config *config) {
    struct ox_shape shape = ox_engine_shape(config);
    shape.compute.threads = (uint32_t)ox_max_u64(1, config->compute_threads / ox_max_u64(1, config->ranks));
    return shape;
}

/* Describes all stages: those of the model, but that groups of experts which ranks divide come together, one for each
 * rank. Returns how many there are. */
static uint32_t describe_stages(const struct ox_shape *shape, struct ox_engine_plan *plan) {
    const struct ox_model *const model = shape->model;
    const uint32_t experts = ox_shape_experts(shape);
    uint32_t count = 0;
    for (uint32_t i = 0; i < model->unit_count; i++) {
        const struct ox_unit *const unit = &model->units[model->units[i].own]; /* what is frozen lies beside it */
        plan->expert_of[i] = unit->kind == OX_UNIT_EXPERTS && experts > 1
                                 ? unit->expert_first / model->config.mixture.per_unit % experts : OX_NONE;
    }
    for (uint32_t i = 0; i < model->stage_count; i++) {
        if (ox_shape_begins_stage(shape, ox_model_stage_unit(model, i))) {
            plan->stage_of[count] = i;
            plan->stages[count++] = describe_stage(shape, i);
        }
    }
    return count;
}

static void describe_model(const struct ox_engine_config *config, struct ox_engine_plan *plan) {
    const struct ox_model *const model = config->model;
    const struct ox_shape shape = shape_of_rank(config);
    for (uint32_t i = 0; i < model->unit_count; i++) {
        plan->unit_elems[i] = model->units[i].elem_count;
        plan->units[i] = (struct ox_plan_unit){.elem_count = model->units[i].elem_count,
                                               .trained = model->units[i].trained, .grad_idx = OX_NONE,
                                               .update_flops = ox_muon_unit_flops(config, i)};
        plan->group_of[i] = model->units[i].group == OX_NO_GROUP ? OX_NONE : model->units[i].group;
    }
    const uint32_t stage_count = describe_stages(&shape, plan);
    /* The order of updates is that in which forward needs units, so that the next step can begin behind the first of
     * them. */
    const uint32_t update_count = ox_plan_order_units(plan->stages, stage_count, plan->units, plan->order);
    const uint32_t grad_count = describe_grads(model, plan, stage_count);
    const uint32_t ranks = (uint32_t)ox_max_u64(1, config->ranks), pipe = (uint32_t)ox_max_u64(1, config->pipe);
    const uint32_t tensors = (uint32_t)ox_max_u64(1, config->tensors);
    const bool library_sums = config->library_sums && ranks > 1;
    plan->input.ranks = (struct ox_plan_ranks){
        .count = ranks, .copies = config->copies,
        .sum_groups = library_sums ? ranks / pipe / tensors : config->sum_groups,
        .micro_batches = config->micro_batches, .sharding = config->sharding, .library_sums = library_sums,
        .tensor_groups = ox_model_groups(&model->config), .tensors = tensors, .group_of = plan->group_of,
        .exchange = config->exchange, .experts = config->experts, .expert_of = plan->expert_of,
        .context_groups = config->context_groups, .contexts = config->contexts,
        .pipe = pipe, .pipe_of = plan->pipe_of};
    plan->input.placement.schedule = config->schedule;
    plan->input.placement.chunks = config->pipe_chunks;
    plan->input.placement.window = config->window;
    plan->input.ranks.per_store = config->team != NULL ? ranks / ox_team_count(config->team) : config->store_ranks;
    plan->input.model = (struct ox_plan_model){
        .units = plan->units,
        .grads = plan->grads,
        .stages = plan->stages,
        .order = plan->order,
        .unit_count = model->unit_count,
        .grad_count = grad_count,
        .update_count = update_count,
        .stage_count = stage_count,
        .micro_batches = ox_plan_own_micro_batches(&plan->input),
        .batch_bytes = ox_align_up(ox_engine_batch_ids_bytes(&shape) +
                                       (shape.objective.pairs ? shape.batch * sizeof(double) : 0), 64),
        .loss_values = ox_objective_values(&shape.objective, shape.batch),
        .const_bytes = ox_engine_rope_floats(config) * 2 * sizeof(float),
        .precision = ox_engine_precision(config),
        .grouped = model->config.heads != model->config.kv_heads,
        .grad_bf16 = config->grad_bf16,
        .eval_only = config->eval_only,
    };
    describe_reports(config, &plan->input.model);
}

/* Deals the units of the model to the coordinates of a pipeline. */
static enum ox_status describe_pipe(const struct ox_engine_config *config, struct ox_engine_plan *plan) {
    const struct ox_plan_ranks *const ranks = &plan->input.ranks;
    if (ranks->pipe == 1) {
        return OX_OK;
    }
    OX_ASSERT(ranks->count % ranks->pipe == 0);
    const enum ox_status status =
        ox_pipe_owners(&plan->input.model, ranks->pipe, config->schedule, config->pipe_chunks, plan->pipe_of);
    return status == OX_OK ? ox_pipe_check(&plan->input.model, ranks, &plan->input.placement) : status;
}

/* Sizes of the state, which are all that the planner needs of its format. */
static struct ox_state_sizes state_sizes(struct ox_state_format format) {
    const struct ox_state_layout group = ox_state_layout_of(format, OX_GROUP_ELEMS);
    return (struct ox_state_sizes){
        .lo_per_group = (uint32_t)(OX_GROUP_ELEMS * ox_lo_bytes(format.moments)),
        .rest_per_group = (uint32_t)(group.end - group.m_offset),
    };
}

static void check_sizes(struct ox_state_format format, const struct ox_shard *shard, uint64_t elems) {
    const struct ox_state_layout layout = ox_state_layout_of(format, elems);
    OX_ASSERT(layout.lo_bytes == ox_shard_lo_bytes(&shard->sizes, elems) && layout.m_offset == layout.lo_bytes);
    OX_ASSERT(layout.bytes == ox_shard_state_bytes(&shard->sizes, elems));
}

/* Gives units with matrices that Muon updates, which are whole, a rank each and their state's sizes. */
static enum ox_status deal_whole(const struct ox_engine_config *config, struct ox_engine_plan *plan) {
    const uint32_t unit_count = config->model->unit_count;
    const struct ox_plan_ranks *const ranks = &plan->input.ranks;
    bool *const whole = config->model->config.whole_matrices ? calloc(unit_count, sizeof *whole) : NULL;
    if (!config->model->config.whole_matrices) {
        return OX_OK;
    }
    for (uint32_t i = 0; whole != NULL && i < unit_count; i++) {
        const struct ox_unit *const unit = &config->model->units[i];
        whole[i] = unit->whole;
        if (unit->one_moment) {
            plan->whole.shards[i].sizes = state_sizes(ox_unit_state_format(config, i));
        }
    }
    const enum ox_status status =
        whole == NULL ? ox_fail(OX_E_NOMEM, "plan: no memory to deal units among ranks")
                      : ox_shard_deal(&plan->whole, whole, ranks->pipe > 1 ? ranks->pipe_of : NULL,
                                      ox_plan_holders(&plan->input), ox_plan_copies(&plan->input));
    free(whole);
    return status;
}

static enum ox_status open_table(const struct ox_engine_config *config, struct ox_engine_plan *plan) {
    const uint32_t unit_count = config->model->unit_count;
    const uint32_t parts = ox_plan_holders(&plan->input);
    const uint64_t chunk_elems = config->chunk_elems > 0
                                     ? config->chunk_elems
                                     : ox_shard_choose_chunk(plan->unit_elems, unit_count, parts,
                                                             OX_SHARD_CHUNK_LEAST);
    enum ox_status status =
        ox_shard_table_open(plan->unit_elems, unit_count, chunk_elems, state_sizes(config->state), &plan->whole);
    OX_THEN(status, deal_whole(config, plan));
    for (uint32_t i = 0; i < unit_count && status == OX_OK; i++) {
        const struct ox_unit *const unit = &config->model->units[i];
        OX_ASSERT(!unit->trained || unit->format == OX_FORMAT_MASTER);
        if (!unit->trained && !config->eval_only) {
            ox_shard_fix(&plan->whole, i, ox_weight_format_of(unit->format)->lo_per_group);
        }
        if (unit->format == OX_FORMAT_Q8) {
            status = ox_shard_narrow(&plan->whole, i, ox_weight_format_of(unit->format)->hi_per_group);
        }
    }
    OX_THEN(status, ox_plan_table_open(&plan->whole, &plan->input.ranks, &plan->table));
    for (uint32_t i = 0; i < unit_count && status == OX_OK; i++) {
        const struct ox_shard *const shard = &plan->whole.shards[i];
        const struct ox_state_format format = ox_unit_state_format(config, i);
        for (uint32_t k = 0; k <= shard->chunk_count && !shard->fixed; k++) {
            check_sizes(format, shard,
                        k == shard->chunk_count ? shard->elem_count : ox_shard_chunk(&plan->whole, i, k).count);
        }
    }
    return status;
}

static enum ox_status check_shape(const struct ox_engine_config *config) {
    const struct ox_model_config *const model = &config->model->config;
    if (config->seq > model->contexts) {
        return ox_fail(OX_E_CONFIG, "--max-seq-length %u: the model has %u positions "
                       "(max_position_embeddings); use at most that", config->seq, model->contexts);
    }
    uint64_t rows = 0;
    if (!ox_mul_u64(config->batch, config->seq, &rows) || rows > (UINT32_C(1) << 24)) {
        return ox_fail(OX_E_CONFIG, "--per-device-train-batch-size %u of %u tokens: a micro-batch has at most 16777216 "
                       "tokens; use more --gradient-accumulation-steps instead", config->batch, config->seq);
    }
    const struct ox_shape shape = ox_engine_shape(config);
    return ox_units_check(&shape);
}

/* How many ranks share a store. */
static uint32_t store_ranks(const struct ox_plan_input *input) {
    return input->ranks.per_store > 0 ? input->ranks.per_store : input->ranks.count;
}

static bool alloc_parts(struct ox_engine_plan *plan, size_t unit_count, size_t stage_count) {
    plan->unit_elems = calloc(unit_count, sizeof *plan->unit_elems);
    plan->units = calloc(unit_count, sizeof *plan->units);
    plan->grads = calloc(unit_count + stage_count + OX_TENSOR_GROUPS_MAX, sizeof *plan->grads);
    plan->stages = calloc(stage_count, sizeof *plan->stages);
    plan->order = calloc(unit_count, sizeof *plan->order);
    plan->pipe_of = calloc(unit_count, sizeof *plan->pipe_of);
    plan->group_of = calloc(unit_count, sizeof *plan->group_of);
    plan->expert_of = calloc(unit_count, sizeof *plan->expert_of);
    plan->stage_of = calloc(stage_count, sizeof *plan->stage_of);
    return plan->unit_elems != NULL && plan->units != NULL && plan->grads != NULL && plan->stages != NULL &&
           plan->order != NULL && plan->pipe_of != NULL && plan->group_of != NULL && plan->expert_of != NULL &&
           plan->stage_of != NULL;
}

enum ox_status ox_engine_describe(const struct ox_engine_config *config, struct ox_engine_plan **out) {
    *out = NULL;
    OX_ASSERT(config->batch > 0 && config->seq > 0 && config->micro_batches > 0 && config->compute_threads > 0);
    /* q8 keeps less than the whole master */
    OX_ASSERT(!ox_engine_precision(config)->lo_travels || config->state.moments != OX_MOMENTS_Q8);
    OX_ASSERT(ox_engine_on_cpu(config) || !config->budget.unified);
    OX_TRY(check_shape(config));
    struct ox_engine_plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL || !alloc_parts(plan, config->model->unit_count, config->model->stage_count)) {
        ox_engine_plan_close(&plan);
        return ox_fail(OX_E_NOMEM, "plan: no memory for its model");
    }
    describe_model(config, plan);
    enum ox_status status = describe_pipe(config, plan);
    OX_THEN(status, ox_engine_low_rank_open(config, plan));
    OX_THEN(status, divide_budget(config, plan));
    OX_THEN(status, open_table(config, plan));
    if (status != OX_OK) {
        ox_engine_plan_close(&plan);
        return status;
    }
    plan->input.table = &plan->table;
    plan->input.budget.nvme_fixed_bytes =
        config->nvme_count * ox_store_fixed_bytes(2 * plan->table.chunk_count) / store_ranks(&plan->input) +
        ox_low_rank_stored_bytes(&plan->input) * (config->request.may_keep_three ? OX_STORE_GENERATIONS_MAX
                                                  : ox_plan_generations(&plan->input.budget));
    *out = plan;
    return OX_OK;
}
