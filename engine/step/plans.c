/* Finds the plans of an engine, one for each rank; reserves nothing. */
#include "engine/step/engine_internal.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/pool.h"
#include "offload/plan/sums.h"
#include "offload/proof/proof.h"
#include "offload/sim/sim.h"

#include <stdlib.h>
#include <string.h>

/* What a rank has of the machine's threads; 0 stays: one per core. */
static uint32_t threads_of_rank(uint32_t threads, uint32_t ranks) {
    return threads == 0 ? 0 : (uint32_t)ox_max_u64(1, threads / ranks);
}

uint32_t ox_engine_optimizer_share(const struct ox_engine_config *config, uint32_t threads, uint32_t ranks) {
    const uint32_t share = threads_of_rank(threads, ranks);
    return share - (uint32_t)ox_min_u64(config->lane_cores, share / 2);
}

/* Whether NCCL carries what ranks do together, on GPUs of their own, in the order of these. */
static bool is_ordered(const struct ox_engine_config *config, const struct ox_plan_input *input) {
    const struct ox_machine *const machine = config->machine;
    const bool by_nccl = !ox_engine_on_cpu(config) && config->comm != OX_RANK_COMM_LOCAL && !config->comm_debug &&
                         !ox_plan_shares_host(input);
    return by_nccl && machine != NULL &&
           ox_plan_rank_count(input) <= ox_max_u64(machine->gpu.count, 1) * ox_max_u64(machine->gpu.machines, 1);
}

void ox_engine_sim_setup(const struct ox_engine_config *config, const struct ox_plan_input *input,
                         struct ox_sim_setup *out) {
    const uint32_t ranks = ox_plan_rank_count(input);
    *out = (struct ox_sim_setup){.machine = config->machine, .input = input,
                                 .compute_threads = threads_of_rank(config->machine_compute_threads, ranks),
                                 .optimizer_threads =
                                     ox_engine_optimizer_share(config, config->machine_optimizer_threads, ranks),
                                 .run_ahead_tasks = ox_plan_window(input),
                                 .ordered = is_ordered(config, input)};
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

/* `found` as in the request. */
static enum ox_status choose(const struct ox_engine_config *config, struct ox_placement_request request,
                             struct ox_found *found, struct ox_engine_plan *plan) {
    struct ox_sim_setup setup;
    struct ox_machine nominal;
    ox_engine_sim_setup(config, &plan->input, &setup);
    if (setup.machine == NULL) {
        ox_machine_nominal(ox_processor_count(), &nominal);
        setup.machine = &nominal;
    }
    struct ox_plans plans;
    place_elsewhere(plan);
    request.found = found;
    const enum ox_status status = ox_placement_choose(&plan->input, &plan->table, &request, &setup, &plans);
    plan->train = plans.train;
    plan->eval = plans.eval;
    plan->eval_after_step = plans.eval_after_step;
    plan->spare_host = plans.spare_host;
    return status;
}

/* ---- the ranks after the first ---------------------------------------------------------------------------------- */

static enum ox_status build(const struct ox_plan_input *input, enum ox_plan_kind kind, struct ox_plan **out) {
    OX_TRY(ox_plan_open(input, out));
    ox_plan_build(*out, input, kind);
    return OX_OK;
}

/* Proves the plans of a rank, which may be those of another one, for it. */
static enum ox_status prove(const struct ox_engine_plan *of_rank) {
    enum ox_status status = ox_proof_check(of_rank->train, &of_rank->input);
    OX_THEN(status, ox_proof_check(of_rank->eval, &of_rank->input));
    if (of_rank->eval_after_step != NULL) {
        OX_THEN(status, ox_proof_check(of_rank->eval_after_step, &of_rank->input));
    }
    OX_THEN(status, ox_proof_check_pair(of_rank->train, of_rank->eval));
    return status;
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

/* Builds the plans of a rank whose input is complete. */
static enum ox_status build_all(struct ox_engine_plan *out, enum ox_plan_kind train, bool overlaps) {
    enum ox_status status = build(&out->input, train, &out->train);
    OX_THEN(status, build(&out->input, OX_PLAN_EVAL, &out->eval));
    if (overlaps) {
        OX_THEN(status, build(&out->input, OX_PLAN_EVAL_AFTER_STEP, &out->eval_after_step));
    }
    OX_THEN(status, prove(out));
    return status;
}

/* Opens the input of a rank with its part of the table, and the placement of `like`. */
static enum ox_status open_input(const struct ox_engine_plan *first, const struct ox_engine_plan *like,
                                 const struct ox_plan_budget *budget, uint32_t idx, struct ox_engine_plan *out) {
    out->input = like->input;
    out->input.budget = *budget;
    out->input.ranks.idx = idx;
    out->input.model.micro_batches = ox_plan_own_micro_batches(&out->input);
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

/* The unit that the first of the ranks which divide features has in the place of this one: of the same stage, with the
 * first groups. Itself, where no group has it. */
static uint32_t first_like(const struct ox_plan_input *input, uint32_t unit_idx) {
    const uint32_t own = ox_max_u64(input->ranks.tensor_groups, 1) / ox_plan_tensors(input);
    const struct ox_plan_stage *const stage = &input->model.stages[input->model.units[unit_idx].stage_idx];
    const uint32_t group = input->ranks.group_of[unit_idx];
    uint32_t like = unit_idx;
    for (uint32_t i = 0; i < stage->unit_count && group != OX_NONE; i++) { /* units of groups follow each other */
        like = stage->units[i].unit_idx == unit_idx ? stage->units[i - group + group % own].unit_idx : like;
    }
    return like;
}

/* Places the units of a coordinate as the first of those with the same stages has placed its own: they have as much to
 * do, with other groups of features. */
static void follow_first(struct ox_engine_plan *plan, uint32_t at, uint32_t first) {
    const struct ox_engine_plan *const like = coordinate_of(plan, first);
    struct ox_engine_plan *const to = coordinate_of(plan, at);
    to->input.placement = like->input.placement;
    to->input.budget.generations = like->input.budget.generations;
    for (uint32_t i = 0; i < to->table.unit_count; i++) {
        to->table.shards[i].homes = like->table.shards[first_like(&to->input, i)].homes;
    }
}

/* Chooses for one coordinate, and for the others what has that in common with it. *failed: the one for which nothing
 * fits. `chosen`: the first one is as it should be. */
static enum ox_status choose_from(const struct ox_engine_config *config, struct ox_engine_plan *plan, uint32_t base,
                                  bool chosen, uint32_t *failed) {
    const uint32_t count = coordinates(plan);
    struct ox_placement_request like = config->request;
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; i < count && status == OX_OK; i++) {
        const uint32_t at = (base + i) % count, tensors = ox_plan_tensors(&plan->input), first = at / tensors * tensors;
        struct ox_engine_plan *const of = coordinate_of(plan, at);
        if (i > 0 && at != first && at > base) {
            close_plans(of);
            follow_first(plan, at, first);
        } else if (i > 0 || !chosen) {
            close_plans(of);
            plan->found.seconds = i == 0 ? 0 : plan->found.seconds;
            status = choose(config, i == 0 ? config->request : like, &plan->found, of);
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

/* The unit that is to the first of the ranks that divide experts what a unit is to the one that has it. */
static uint32_t of_first_expert(const struct ox_model *model, const struct ox_plan_ranks *ranks, uint32_t unit_idx) {
    const uint32_t expert = ox_plan_expert_owner(ranks, unit_idx), own = model->units[unit_idx].own;
    uint32_t first = expert == OX_NONE ? unit_idx : own - expert * ox_model_groups(&model->config);
    for (uint32_t at = own; expert != OX_NONE && at != unit_idx; at = model->units[at].next) {
        first = model->units[first].next;
    }
    return first;
}

/* Gives every coordinate the homes of all units, by which ranks agree on how a step goes, and builds all anew. */
static enum ox_status join_coordinates(const struct ox_model *model, struct ox_engine_plan *plan) {
    const uint32_t count = coordinates(plan), tensors = ox_plan_tensors(&plan->input);
    for (uint32_t i = 0; i < plan->table.unit_count; i++) {
        const uint32_t has = ox_plan_tensor_owner(&plan->input.ranks, i);
        const uint32_t owner = ox_plan_owner(&plan->input.ranks, i) * tensors + (has == OX_NONE ? 0 : has);
        const uint32_t like = of_first_expert(model, &plan->input.ranks, i);
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

/* Whether two ranks of a coordinate have as much of everything. */
static bool alike(const struct ox_engine_plan *a, const struct ox_engine_plan *b) {
    const struct ox_sums sums[] = {ox_plan_sums(&a->input), ox_plan_sums(&b->input)};
    bool same = a->input.model.micro_batches == b->input.model.micro_batches &&
                ox_sums_part_count(&sums[0]) == ox_sums_part_count(&sums[1]);
    for (uint32_t i = 0; i < a->table.unit_count && same; i++) {
        same = a->table.shards[i].elem_count == b->table.shards[i].elem_count &&
               a->table.shards[i].chunk_count == b->table.shards[i].chunk_count;
    }
    return same;
}

/* Lets a rank have the plans of an earlier one of its coordinate that has as much of everything; false: none has. */
static bool take_alike(struct ox_engine_plan *plan, uint32_t idx, uint32_t first) {
    struct ox_engine_plan *const own = &plan->others[idx - 1];
    for (uint32_t i = first; i < idx; i++) {
        const struct ox_engine_plan *const other = ox_engine_plan_at(plan, i);
        if (alike(other, own)) {
            own->train = other->train;
            own->eval = other->eval;
            own->eval_after_step = other->eval_after_step;
            return true;
        }
    }
    return false;
}

/* Opens the plans of a rank that is not the first of its coordinate: those of one that is alike, where they can be
 * proven for it too, else its own. `loose`: they are compared and never carried out, and need no proof of their own. */
static enum ox_status open_next(struct ox_engine_plan *plan, const struct ox_plan_budget *budget, uint32_t idx,
                                bool loose) {
    const uint32_t first = idx / ox_plan_data_ranks(&plan->input) * ox_plan_data_ranks(&plan->input);
    const struct ox_engine_plan *const like = ox_engine_plan_at(plan, first);
    struct ox_engine_plan *const own = &plan->others[idx - 1];
    OX_TRY(open_input(plan, like, budget, idx, own));
    copy_homes(like, own);
    if (take_alike(plan, idx, first) && (loose || prove(own) == OX_OK)) {
        return OX_OK;
    }
    own->train = own->eval = own->eval_after_step = NULL;
    OX_TRY(build_all(own, plan->train->kind, plan->eval_after_step != NULL));
    share_plans(plan, idx);
    return OX_OK;
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
        OX_THEN(status, join_coordinates(config->model, plan));
    }
    /* No run has as many, or these are compared with others: then one of those that are alike stands for all. */
    const bool loose = config->compares || count > OX_COMM_RANKS_MAX;
    for (uint32_t i = 1; i < count && status == OX_OK; i++) {
        if (i % each != 0) {
            status = open_next(plan, budget, i, loose);
        } else {
            share_plans(plan, i);
        }
    }
    return status == OX_OK && !loose ? check_together(plan) : status;
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
        plan->found.seconds = 0;
        status = choose(config, config->request, &plan->found, plan);
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

enum ox_status ox_engine_plan_open(const struct ox_engine_config *config, struct ox_engine_plan **out) {
    struct ox_engine_plan *plan = NULL;
    *out = NULL;
    OX_TRY(ox_engine_describe(config, &plan));
    const enum ox_status status = choose_for_all(config, plan);
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
