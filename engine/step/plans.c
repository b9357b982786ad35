/* Describes a model to the planner and finds the plans of an engine, one for each rank; reserves nothing. */
#include "engine/step/engine_internal.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/pool.h"
#include "offload/plan/schedule.h"
#include "offload/plan/sums.h"
#include "offload/proof/proof.h"
#include "offload/sim/sim.h"

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
     * that ranks have of a stage, whose units follow each other. */
    for (uint32_t g = 0; g < (kind == OX_UNIT_EXPERTS ? experts : 1); g++) {
        for (uint32_t i = unit_idx + g; i != OX_NO_UNIT; i = model->units[i].next) {
            OX_ASSERT(experts == 1 || kind != OX_UNIT_EXPERTS || i == unit_idx + g);
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

/* How many of the step's micro-batches the rank of the input has: those of its sum groups. */
static uint32_t own_micro_batches(const struct ox_plan_input *input) {
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
        const struct ox_unit *const unit = &model->units[i];
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
        .micro_batches = own_micro_batches(&plan->input),
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

/* What a rank has of the machine's threads; 0 stays: one per core. */
static uint32_t threads_of_rank(uint32_t threads, uint32_t ranks) {
    return threads == 0 ? 0 : (uint32_t)ox_max_u64(1, threads / ranks);
}

uint32_t ox_engine_optimizer_share(const struct ox_engine_config *config, uint32_t threads, uint32_t ranks) {
    const uint32_t share = threads_of_rank(threads, ranks);
    return share - (uint32_t)ox_min_u64(config->lane_cores, share / 2);
}

void ox_engine_sim_setup(const struct ox_engine_config *config, const struct ox_plan_input *input,
                         struct ox_sim_setup *out) {
    const uint32_t ranks = ox_plan_rank_count(input);
    *out = (struct ox_sim_setup){.machine = config->machine, .input = input,
                                 .compute_threads = threads_of_rank(config->machine_compute_threads, ranks),
                                 .optimizer_threads =
                                     ox_engine_optimizer_share(config, config->machine_optimizer_threads, ranks),
                                 .run_ahead_tasks = ox_plan_window(input)};
}

/* Units of other coordinates live in host memory until it is known where they do. */
static void place_elsewhere(struct ox_engine_plan *plan) {
    for (uint32_t i = 0; i < plan->table.unit_count; i++) {
        if (!ox_plan_holds(&plan->input, i)) {
            plan->table.shards[i].homes =
                (struct ox_homes){.weights = OX_TIER_HOST, .state = OX_TIER_HOST, .grad = OX_TIER_HOST};
        }
    }
}

static enum ox_status choose(const struct ox_engine_config *config, const struct ox_placement_request *request,
                             struct ox_engine_plan *plan) {
    struct ox_sim_setup setup;
    struct ox_machine nominal;
    ox_engine_sim_setup(config, &plan->input, &setup);
    if (setup.machine == NULL) {
        ox_machine_nominal(ox_processor_count(), &nominal);
        setup.machine = &nominal;
    }
    struct ox_plans plans;
    place_elsewhere(plan);
    const enum ox_status status = ox_placement_choose(&plan->input, &plan->table, request, &setup, &plans);
    plan->train = plans.train;
    plan->eval = plans.eval;
    plan->eval_after_step = plans.eval_after_step;
    return status;
}

/* ---- the ranks after the first ---------------------------------------------------------------------------------- */

static enum ox_status build(const struct ox_plan_input *input, enum ox_plan_kind kind, struct ox_plan **out) {
    OX_TRY(ox_plan_open(input, out));
    ox_plan_build(*out, input, kind);
    return ox_proof_check(*out, input);
}

static void close_plans(struct ox_engine_plan *plan) {
    ox_plan_close(&plan->eval_after_step);
    ox_plan_close(&plan->eval);
    ox_plan_close(&plan->train);
}

enum { KINDS = 3 };

/* The three plans of a rank: for a step, for an evaluation, and for one after a step. */
static struct ox_plan **plan_of(struct ox_engine_plan *plan, uint32_t rank, int kind) {
    struct ox_engine_plan *const of_rank = rank == 0 ? plan : &plan->others[rank - 1];
    return kind == 0 ? &of_rank->train : kind == 1 ? &of_rank->eval : &of_rank->eval_after_step;
}

/* Gives a rank the plans of an earlier one where they are the same, as those of most ranks are: they differ by the
 * sizes of slices alone. So what many ranks take is little more than what one takes. */
static void share_plans(struct ox_engine_plan *plan, uint32_t rank) {
    for (int kind = 0; kind < KINDS; kind++) {
        struct ox_plan **const own = plan_of(plan, rank, kind);
        struct ox_plan *same = NULL;
        for (uint32_t i = 0; i < rank && *own != NULL && same == NULL; i++) {
            struct ox_plan *const other = *plan_of(plan, i, kind);
            same = other != NULL && ox_plan_same(other, *own) ? other : NULL;
        }
        if (same != NULL) {
            ox_plan_close(own);
            *own = same;
        } else if (*own != NULL) {
            ox_plan_shrink(own);
        }
    }
}

/* Whether an earlier rank has the plan too. */
static bool is_shared(struct ox_engine_plan *plan, uint32_t rank, int kind) {
    bool shared = false;
    for (uint32_t i = 0; i < rank && !shared; i++) {
        shared = *plan_of(plan, i, kind) == *plan_of(plan, rank, kind);
    }
    return shared;
}

static void close_others(struct ox_engine_plan *plan) {
    for (uint32_t i = plan->input.ranks.count - 1; i > 0 && plan->others != NULL; i--) {
        for (int kind = 0; kind < KINDS; kind++) {
            if (is_shared(plan, i, kind)) {
                *plan_of(plan, i, kind) = NULL;
            }
        }
        close_plans(&plan->others[i - 1]);
        ox_shard_table_close(&plan->others[i - 1].table);
    }
    free(plan->others);
    plan->others = NULL;
}

/* Builds and proves the plans of a rank whose input is complete. */
static enum ox_status build_all(struct ox_engine_plan *out, enum ox_plan_kind train, bool overlaps) {
    enum ox_status status = build(&out->input, train, &out->train);
    OX_THEN(status, build(&out->input, OX_PLAN_EVAL, &out->eval));
    if (overlaps) {
        OX_THEN(status, build(&out->input, OX_PLAN_EVAL_AFTER_STEP, &out->eval_after_step));
    }
    OX_THEN(status, ox_proof_check_pair(out->train, out->eval));
    return status;
}

/* Opens the input of a rank with its part of the table, and the placement of `like`. */
static enum ox_status open_input(const struct ox_engine_plan *first, const struct ox_engine_plan *like,
                                 const struct ox_plan_budget *budget, uint32_t idx, struct ox_engine_plan *out) {
    out->input = like->input;
    out->input.budget = *budget;
    out->input.ranks.idx = idx;
    out->input.model.micro_batches = own_micro_batches(&out->input);
    out->input.placement.tiles =
        (uint32_t)ox_min_u64(out->input.placement.tiles, out->input.model.micro_batches);
    out->input.table = &out->table;
    out->stage_of = first->stage_of;
    return ox_plan_table_open(&first->whole, &out->input.ranks, &out->table);
}

static void copy_homes(const struct ox_engine_plan *from, struct ox_engine_plan *to) {
    for (uint32_t i = 0; i < to->table.unit_count; i++) {
        to->table.shards[i].homes = from->table.shards[i].homes;
    }
}

/* Builds and proves the plans of a rank, with the placement and the homes that were chosen for the first one of its
 * coordinate. */
static enum ox_status open_other(const struct ox_engine_plan *first, const struct ox_engine_plan *like,
                                 const struct ox_plan_budget *budget, uint32_t idx, struct ox_engine_plan *out) {
    const enum ox_status status = open_input(first, like, budget, idx, out);
    if (status != OX_OK) {
        return status;
    }
    copy_homes(like, out);
    return build_all(out, first->train->kind, first->eval_after_step != NULL);
}

/* ---- coordinates: those of a pipeline, and within each the ranks that divide features --------------------------- */

static uint32_t coordinates(const struct ox_engine_plan *plan) {
    return ox_plan_rank_count(&plan->input) / ox_plan_data_ranks(&plan->input);
}

/* What all coordinates have in common, as it was chosen for the first. */
static struct ox_placement_request request_like(const struct ox_engine_config *config,
                                                const struct ox_placement *placement) {
    struct ox_placement_request request = config->request;
    request.tiles = placement->tiles;
    request.prefetch_depth = (int32_t)placement->prefetch_depth;
    request.act_tier = placement->act_tier;
    request.overlap = placement->overlap;
    request.speculative_units = (int32_t)placement->speculative_units;
    request.speculative_spread = placement->speculative_spread;
    request.saves_replaced = placement->saves_replaced;
    request.weights_ahead = placement->weights_ahead;
    request.may_keep_three = false;
    if (config->tensors > 1) { /* they bring pieces together between the same phases */
        request.kept_units = (int32_t)placement->kept_units;
    }
    return request;
}

/* The plan of the first rank of a coordinate. */
static struct ox_engine_plan *coordinate_of(struct ox_engine_plan *plan, uint32_t at) {
    return at == 0 ? plan : &plan->others[at * ox_plan_data_ranks(&plan->input) - 1];
}

/* Chooses for one coordinate, and for the others what has that in common with it. *failed: the one for which nothing
 * fits. `chosen`: the first one is as it should be. */
static enum ox_status choose_from(const struct ox_engine_config *config, struct ox_engine_plan *plan, uint32_t base,
                                  bool chosen, uint32_t *failed) {
    const uint32_t count = coordinates(plan);
    struct ox_placement_request like = config->request;
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < count && status == OX_OK; i++) {
        struct ox_engine_plan *const of = coordinate_of(plan, (base + i) % count);
        if (i > 0 || !chosen) {
            close_plans(of);
            status = choose(config, i == 0 ? &config->request : &like, of);
        }
        if (i == 0) {
            like = request_like(config, &of->input.placement);
        }
        *failed = (base + i) % count;
    }
    return status == OX_OK ? OX_OK : ox_fail_in(status, "rank %u", *failed * ox_plan_data_ranks(&plan->input));
}

/* Chooses for the first rank of each further coordinate, which has units of its own. Where what was chosen for the
 * first coordinate does not fit another one, begins with that. */
static enum ox_status choose_coordinates(const struct ox_engine_config *config, struct ox_engine_plan *plan,
                                         const struct ox_plan_budget *budget) {
    const uint32_t count = coordinates(plan), each = ox_plan_data_ranks(&plan->input);
    uint32_t failed = 0;
    enum ox_status status = OX_OK;
    for (uint32_t at = 1; at < count && status == OX_OK; at++) {
        status = open_input(plan, plan, budget, at * each, coordinate_of(plan, at));
    }
    OX_THEN(status, choose_from(config, plan, 0, true, &failed));
    for (uint32_t base = 0; status == OX_E_CONFIG && failed > base;) { /* ascending, so that it ends */
        base = failed;
        status = choose_from(config, plan, base, false, &failed);
    }
    return status;
}

/* Gives every coordinate the homes of all units, by which ranks agree on how a step goes, and builds all anew. */
static enum ox_status join_coordinates(struct ox_engine_plan *plan) {
    const uint32_t count = coordinates(plan), tensors = ox_plan_tensors(&plan->input);
    for (uint32_t i = 0; i < plan->table.unit_count; i++) {
        const uint32_t has = ox_plan_tensor_owner(&plan->input.ranks, i);
        const uint32_t owner = ox_plan_owner(&plan->input.ranks, i) * tensors + (has == OX_NONE ? 0 : has);
        const uint32_t expert = ox_plan_expert_owner(&plan->input.ranks, i);
        const uint32_t like = expert == OX_NONE ? i : i - expert; /* what the first rank has of the stage's experts */
        plan->table.shards[i].homes = coordinate_of(plan, owner)->table.shards[like].homes;
    }
    const enum ox_plan_kind kind = plan->train->kind;
    const bool overlaps = plan->eval_after_step != NULL;
    enum ox_status status = OX_OK;
    for (uint32_t at = 0; at < count && status == OX_OK; at++) {
        struct ox_engine_plan *const of = coordinate_of(plan, at);
        copy_homes(plan, of);
        close_plans(of);
        status = build_all(of, kind, overlaps);
    }
    return status;
}

/* Proves that no rank waits for another for ever, in any kind of plan. */
static enum ox_status check_together(const struct ox_engine_plan *plan) {
    const uint32_t count = plan->input.ranks.count;
    const struct ox_plan_input **const inputs = calloc(count, sizeof *inputs);
    const struct ox_plan **const plans = calloc(KINDS * (size_t)count, sizeof *plans);
    enum ox_status status =
        inputs != NULL && plans != NULL ? OX_OK : ox_fail(OX_E_NOMEM, "plan: no memory for %u ranks", count);
    for (uint32_t i = 0; i < count && status == OX_OK; i++) {
        const struct ox_engine_plan *const of_rank = ox_engine_plan_at(plan, i);
        inputs[i] = &of_rank->input;
        plans[i] = of_rank->train;
        plans[count + i] = of_rank->eval;
        plans[2 * count + i] = of_rank->eval_after_step;
    }
    for (int kind = 0; kind < KINDS && status == OX_OK && plans[kind * count] != NULL; kind++) {
        status = ox_proof_check_ranks(plans + kind * count, inputs, count);
    }
    free(inputs);
    free(plans);
    return status;
}

static enum ox_status open_others(const struct ox_engine_config *config, struct ox_engine_plan *plan,
                                  const struct ox_plan_budget *budget) {
    const uint32_t count = plan->input.ranks.count, each = ox_plan_data_ranks(&plan->input);
    enum ox_status status = OX_OK;
    if (count == 1) {
        return OX_OK;
    }
    plan->others = calloc(count - 1, sizeof *plan->others);
    if (plan->others == NULL) {
        return ox_fail(OX_E_NOMEM, "plan: no memory for %u ranks", count);
    }
    if (each < count || ox_plan_experts(&plan->input) > 1) {
        status = each < count ? choose_coordinates(config, plan, budget) : OX_OK;
        OX_THEN(status, join_coordinates(plan));
    }
    for (uint32_t i = 1; i < count && status == OX_OK; i++) {
        if (i % each != 0) {
            status = open_other(plan, ox_engine_plan_at(plan, i / each * each), budget, i, &plan->others[i - 1]);
        }
        share_plans(plan, i);
    }
    OX_THEN(status, check_together(plan));
    return status;
}

/* How much more memory of this tier the plans of the other ranks need than they have. */
static uint64_t lacking(const struct ox_engine_plan *plan, enum ox_tier tier, uint64_t budget_bytes) {
    uint64_t most = budget_bytes;
    for (uint32_t i = 1; i < plan->input.ranks.count && plan->others != NULL; i++) {
        const struct ox_plan *const plans[] = {plan->others[i - 1].train, plan->others[i - 1].eval,
                                               plan->others[i - 1].eval_after_step};
        for (int k = 0; k < 3; k++) {
            most = plans[k] == NULL ? most : ox_max_u64(most, plans[k]->peak_bytes[tier]);
        }
    }
    return most - budget_bytes;
}

/* Refuses what one of the ranks lacks; the host memory of all ranks is given together. */
static enum ox_status refuse(const struct ox_engine_plan *plan, uint64_t host, uint64_t device) {
    const uint32_t ranks = plan->input.ranks.count;
    char text[OX_SIZE_TEXT_BYTES];
    return ox_fail(OX_E_CONFIG, "the plan does not fit on all of %u ranks: give %s more of %s, or fewer ranks", ranks,
                   ox_size_text(host > 0 ? host * ranks : device, text), host > 0 ? "--host-mem" : "--device-mem");
}

/* Takes as much from a budget as some rank lacks, and at least so much that the first rank's plan changes. */
static void reduce(const struct ox_engine_plan *plan, enum ox_tier tier, uint64_t lacking_bytes, uint64_t *bytes) {
    if (lacking_bytes > 0) {
        const uint64_t used = ox_engine_plan_peak_bytes(plan, tier);
        const uint64_t left = *bytes > lacking_bytes ? *bytes - lacking_bytes : 0;
        *bytes = ox_min_u64(left, used > OX_IO_ALIGN_BYTES ? used - OX_IO_ALIGN_BYTES : 0);
    }
}

/* Chooses for the first rank, which has the largest slices and most leaves of the sums. Another rank may need more
 * slots for its sums and lack memory: then the choice is made again, as if there were less by that. */
enum { CHOICES_MAX = 16 };
static enum ox_status choose_for_all(const struct ox_engine_config *config, struct ox_engine_plan *plan) {
    struct ox_plan_budget budget = plan->input.budget;
    enum ox_status status = OX_OK;
    /* The budget that is told at the end is the one that was given: it is reduced for the choice alone. */
    for (int i = 0; i < CHOICES_MAX; i++) {
        status = choose(config, &config->request, plan);
        budget.generations = plan->input.budget.generations;
        OX_THEN(status, open_others(config, plan, &budget));
        const uint64_t host = lacking(plan, OX_TIER_HOST, budget.host_bytes);
        const uint64_t device = budget.unified ? 0 : lacking(plan, OX_TIER_DEVICE, budget.device_bytes);
        if (host + device == 0) {
            break;
        }
        if (i + 1 == CHOICES_MAX) {
            status = refuse(plan, host, device);
            break;
        }
        reduce(plan, OX_TIER_HOST, host, &plan->input.budget.host_bytes);
        reduce(plan, OX_TIER_DEVICE, device, &plan->input.budget.device_bytes);
        close_others(plan);
        close_plans(plan);
    }
    plan->input.budget = budget;
    return status;
}

/* How many ranks share a store. */
static uint32_t store_ranks(const struct ox_plan_input *input) {
    return input->ranks.per_store > 0 ? input->ranks.per_store : input->ranks.count;
}

enum ox_status ox_engine_plan_open(const struct ox_engine_config *config, struct ox_engine_plan **out) {
    *out = NULL;
    OX_ASSERT(config->batch > 0 && config->seq > 0 && config->micro_batches > 0 && config->compute_threads > 0);
    /* q8 keeps less than the whole master */
    OX_ASSERT(!ox_engine_precision(config)->lo_travels || config->state.moments != OX_MOMENTS_Q8);
    OX_ASSERT(ox_engine_on_cpu(config) || !config->budget.unified);
    enum ox_status status = check_shape(config);
    if (status != OX_OK) {
        return status;
    }
    const size_t unit_count = config->model->unit_count;
    struct ox_engine_plan *plan = calloc(1, sizeof *plan);
    if (plan != NULL) {
        plan->unit_elems = calloc(unit_count, sizeof *plan->unit_elems);
        plan->units = calloc(unit_count, sizeof *plan->units);
        plan->grads = calloc(unit_count + config->model->stage_count + OX_TENSOR_GROUPS_MAX, sizeof *plan->grads);
        plan->stages = calloc(config->model->stage_count, sizeof *plan->stages);
        plan->order = calloc(unit_count, sizeof *plan->order);
        plan->pipe_of = calloc(unit_count, sizeof *plan->pipe_of);
        plan->group_of = calloc(unit_count, sizeof *plan->group_of);
        plan->expert_of = calloc(unit_count, sizeof *plan->expert_of);
        plan->stage_of = calloc(config->model->stage_count, sizeof *plan->stage_of);
    }
    if (plan == NULL || plan->unit_elems == NULL || plan->units == NULL || plan->grads == NULL ||
        plan->stages == NULL || plan->order == NULL || plan->pipe_of == NULL ||
        plan->group_of == NULL || plan->expert_of == NULL || plan->stage_of == NULL) {
        ox_engine_plan_close(&plan);
        return ox_fail(OX_E_NOMEM, "plan: no memory for its model");
    }
    describe_model(config, plan);
    status = describe_pipe(config, plan);
    OX_THEN(status, ox_engine_low_rank_open(config, plan));
    OX_THEN(status, divide_budget(config, plan));
    OX_THEN(status, open_table(config, plan));
    if (status == OX_OK) {
        plan->input.budget.nvme_fixed_bytes =
            config->nvme_count * ox_store_fixed_bytes(2 * plan->table.chunk_count) / store_ranks(&plan->input);
        status = choose_for_all(config, plan);
    }
    if (status != OX_OK && (plan->train == NULL || plan->train->task_count == 0)) {
        ox_engine_plan_close(&plan);
        return status;
    }
    *out = plan; /* on failure too: the nearest plan, for its ledger */
    return status;
}

void ox_engine_plan_close(struct ox_engine_plan **plan_ptr) {
    struct ox_engine_plan *const plan = *plan_ptr;
    if (plan == NULL) {
        return;
    }
    close_others(plan);
    close_plans(plan);
    ox_shard_table_close(&plan->table);
    free(plan->drive_bytes);
    ox_shard_table_close(&plan->whole);
    free(plan->matrices);
    free(plan->matrices_of);
    free(plan->matrix_tensors);
    free(plan->pipe_of);
    free(plan->group_of);
    free(plan->expert_of);
    free(plan->stage_of);
    free(plan->order);
    free(plan->stages);
    free(plan->grads);
    free(plan->units);
    free(plan->unit_elems);
    free(plan);
    *plan_ptr = NULL;
}

uint64_t ox_engine_plan_peak_bytes(const struct ox_engine_plan *plan, enum ox_tier tier) {
    const struct ox_plan *const plans[] = {plan->train, plan->eval, plan->eval_after_step};
    uint64_t bytes = 0;
    for (unsigned i = 0; i < sizeof plans / sizeof *plans; i++) {
        bytes = plans[i] == NULL ? bytes : ox_max_u64(bytes, plans[i]->peak_bytes[tier]);
    }
    return bytes;
}

uint64_t ox_engine_plan_all_bytes(const struct ox_engine_plan *plan, enum ox_tier tier) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < ox_plan_rank_count(&plan->input); i++) {
        bytes += ox_engine_plan_peak_bytes(ox_engine_plan_at(plan, i), tier);
    }
    return bytes;
}
