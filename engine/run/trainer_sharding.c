/* What the ranks of a mesh divide, chosen by the simulator: every division that these ranks can have is planned and
 * its steps are predicted. */
#include "engine/run/trainer_internal.h"

#include "base/bytes.h"
#include "base/log.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Makes the plan and predicts its steps. */
enum ox_status ox_trainer_try_division(struct ox_trainer *trainer, const struct ox_division *division,
                                       struct ox_prediction *prediction) {
    trainer->engine_config.sharding = division->sharding;
    trainer->engine_config.copies = division->copies;
    prediction->mean_seconds = 0;
    enum ox_status status = ox_engine_plan_open(&trainer->engine_config, &trainer->plan);
    if (status == OX_OK) {
        struct ox_predict_input input = ox_trainer_predict_input(trainer);
        input.step_alone = true;
        status = ox_predict(&input, prediction);
    }
    return status;
}

enum ox_status ox_trainer_time_sharding(struct ox_trainer *trainer, enum ox_sharding sharding, double *seconds) {
    const struct ox_division division = {.sharding = sharding, .copies = trainer->engine_config.copies};
    struct ox_prediction prediction;
    const enum ox_status status = ox_trainer_try_division(trainer, &division, &prediction);
    *seconds = status == OX_OK ? prediction.mean_seconds : 0;
    return status;
}

static enum ox_status time_mode(struct ox_trainer *trainer, struct ox_mesh_tried *mesh, enum ox_context_mode mode,
                                double beats) {
    struct ox_engine_config *const engine = &trainer->engine_config;
    const struct ox_division division = {.sharding = mesh->sharding, .copies = engine->copies};
    struct ox_prediction prediction;
    mesh->context_mode = engine->context_mode = mode;
    engine->request.beats = isfinite(beats) ? beats : 0;
    const enum ox_status status = ox_trainer_try_division(trainer, &division, &prediction);
    engine->request.beats = 0;
    ox_engine_plan_close(&trainer->plan);
    if (status == OX_OK) {
        mesh->seconds = prediction.mean_seconds;
        mesh->binding = prediction.step.binding;
        mesh->binding_share = prediction.step.binding_share;
    }
    return status;
}

enum ox_status ox_trainer_time_mesh(struct ox_trainer *trainer, struct ox_mesh_tried *mesh, double beats) {
    struct ox_engine_config *const engine = &trainer->engine_config;
    const enum ox_status status = time_mode(trainer, mesh, engine->context_mode, beats);
    struct ox_mesh_tried by_heads = *mesh;
    if (!trainer->any_context_mode || engine->contexts <= 1 || (status != OX_OK && status != OX_E_CONFIG)) {
        return status;
    }
    engine->context_mode = OX_CONTEXT_ULYSSES;
    const double least = beats > 0 ? fmin(beats, mesh->seconds) : mesh->seconds;
    enum ox_status other = ox_trainer_check_heads(trainer);
    OX_THEN(other, time_mode(trainer, &by_heads, OX_CONTEXT_ULYSSES, least));
    if (other == OX_OK && by_heads.seconds < 0.99 * mesh->seconds) { /* of two that are as fast the usual one */
        *mesh = by_heads;
    }
    engine->context_mode = mesh->context_mode;
    return other == OX_OK || other == OX_E_CONFIG ? isfinite(mesh->seconds) ? OX_OK : status : other;
}

/* Whether weights and state of so many copies, 12 bytes a parameter, may find room in the memory of all ranks. */
static bool may_fit(const struct ox_trainer *trainer, uint32_t copies) {
    const struct ox_engine_config *const engine = &trainer->engine_config;
    const struct ox_plan_budget *const budget = &engine->budget;
    const double room = (double)budget->host_bytes +
                        (budget->unified ? 0 : (double)budget->device_bytes * engine->ranks);
    double elems = 0;
    for (uint32_t i = 0; i < engine->model->unit_count; i++) {
        elems += (double)engine->model->units[i].elem_count;
    }
    return 12 * elems * copies <= room;
}

/* Ranks with the same layers and features, each of which may have a copy of these. */
static uint32_t ranks_of_data(const struct ox_engine_config *engine) {
    return engine->ranks / engine->pipe / engine->tensors;
}

/* How many copies ranks may make beside one: one on each machine, or two. 0: they may not, because a store has one
 * copy, the library adds over all ranks, or sums that are rounded would be rounded in another place. */
static uint32_t copies_of(const struct ox_trainer *trainer) {
    const struct ox_engine_config *const engine = &trainer->engine_config;
    const uint32_t of_data = ranks_of_data(engine);
    const uint32_t machines = (uint32_t)ox_max_u64(ox_trainer_machines(trainer), ox_trainer_planned_machines(trainer));
    const uint32_t copies = machines > 1 ? machines : 2;
    const bool exact = engine->exchange == OX_EXCHANGE_FP32 && !engine->library_sums;
    return exact && engine->experts <= 1 && trainer->config.memory.nvme_count == 0 && of_data % copies == 0 &&
                   of_data / copies > 1 && may_fit(trainer, copies)
               ? copies : 0;
}

uint32_t ox_trainer_divisions(const struct ox_trainer *trainer, struct ox_division out[OX_DIVISIONS_MAX]) {
    const struct ox_engine_config *const engine = &trainer->engine_config;
    const uint32_t copies = copies_of(trainer);
    /* What lies in host memory once is one process's, of ranks that have the same layers, and NCCL takes nothing from
     * there. */
    const bool shares = trainer->team == NULL && engine->comm != OX_RANK_COMM_NCCL && engine->pipe == 1 &&
                        engine->experts <= 1 && ox_trainer_planned_machines(trainer) == 1;
    const bool whole = engine->exchange == OX_EXCHANGE_FP32 && engine->experts <= 1 &&
                       trainer->config.memory.nvme_count == 0 && may_fit(trainer, ranks_of_data(engine));
    const struct {
        struct ox_division division;
        bool may;
    } all[OX_DIVISIONS_MAX] = {
        {{"full_shard", OX_SHARDING_FULL, 0, true}, true},
        {{"shard_grad_op", OX_SHARDING_STEP, 0, false}, true},
        {{"zero2", OX_SHARDING_GRAD, 0, true}, true},
        {{"shared", OX_SHARDING_SHARED, 0, true}, shares},
        {{"hybrid_shard", OX_SHARDING_FULL, copies, false}, copies > 0},
        {{"hybrid_shard_zero2", OX_SHARDING_STEP, copies, false}, copies > 0},
        {{"no_shard", OX_SHARDING_NONE, 0, false}, whole},
    };
    uint32_t count = 0;
    for (int i = 0; i < OX_DIVISIONS_MAX; i++) {
        if (all[i].may) {
            out[count++] = all[i].division;
        }
    }
    return count;
}

/* Says which was taken, beside all others, and why: what binds it, and what binds the next one. */
static void tell(const struct ox_shardings_tried *choice) {
    const struct ox_sharding_tried *const best = &choice->tried[choice->taken], *next = NULL;
    char text[512], why[256] = "";
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < choice->count && used < sizeof text; i++) {
        const struct ox_sharding_tried *const at = &choice->tried[i];
        const char *const between = i == 0 ? "" : ", ";
        used += (size_t)(isfinite(at->seconds)
                             ? snprintf(text + used, sizeof text - used, "%s%s %.3g s", between, at->name, at->seconds)
                             : snprintf(text + used, sizeof text - used, "%s%s has no plan", between, at->name));
        next = at != best && isfinite(at->seconds) && (next == NULL || at->seconds < next->seconds) ? at : next;
    }
    if (next != NULL) {
        snprintf(why, sizeof why, "; %s has %s at its limit for %.0f %% of a step, %s has %s for %.0f %% of one %.2f "
                 "times as long", best->name, ox_sim_resource_name(best->binding), 100 * best->binding_share,
                 next->name, ox_sim_resource_name(next->binding), 100 * next->binding_share,
                 next->seconds / best->seconds);
    }
    ox_log(OX_LOG_INFO, "--sharding auto: takes %s, by the predicted time of a step: %s%s", best->name, text, why);
}

/* Notes what is known of a division from the choice of the mesh. */
static void note_known(const struct ox_trainer *trainer, const struct ox_division *division,
                       struct ox_sharding_tried *out) {
    const struct ox_mesh_choice *const choice = ox_trainer_meshes(trainer);
    const struct ox_mesh_tried *const mesh = choice != NULL ? &choice->best[choice->taken] : NULL;
    *out = (struct ox_sharding_tried){.name = division->name, .seconds = (double)INFINITY};
    if (mesh != NULL && isfinite(mesh->seconds) && mesh->sharding == division->sharding && division->copies == 0 &&
        trainer->engine_config.model->config.mixture.router.experts == 0) {
        *out = (struct ox_sharding_tried){division->name, mesh->seconds, mesh->binding, mesh->binding_share};
    }
}

/* Compares what ranks may divide by the simulator, from the choice that takes the least memory on; another one has to
 * gain 1 %. If nothing fits, the refusal is that of the first. */
enum ox_status ox_trainer_choose_sharding(struct ox_trainer *trainer) {
    struct ox_engine_config *const engine = &trainer->engine_config;
    struct ox_shardings_tried *const choice = &trainer->sharding_choice;
    struct ox_sharding_tried *const tried = choice->tried;
    struct ox_division divisions[OX_DIVISIONS_MAX];
    *choice = (struct ox_shardings_tried){.count = ox_trainer_divisions(trainer, divisions)};
    engine->request.rough = engine->compares = true;
    double least = INFINITY;
    for (uint32_t i = 0; i < choice->count; i++) {
        note_known(trainer, &divisions[i], &tried[i]);
        least = fmin(least, tried[i].seconds);
    }
    for (uint32_t i = 0; i < choice->count; i++) {
        struct ox_prediction prediction;
        engine->request.beats = isfinite(least) ? least : 0;
        if (!isfinite(tried[i].seconds)) {
            const enum ox_status status = ox_trainer_try_division(trainer, &divisions[i], &prediction);
            ox_engine_plan_close(&trainer->plan);
            if (status != OX_OK && status != OX_E_CONFIG) {
                return status;
            }
            if (status == OX_OK) {
                tried[i] = (struct ox_sharding_tried){divisions[i].name, prediction.mean_seconds,
                                                      prediction.step.binding, prediction.step.binding_share};
            }
        }
        least = fmin(least, tried[i].seconds);
        choice->taken = tried[i].seconds < 0.99 * tried[choice->taken].seconds ? i : choice->taken;
    }
    engine->sharding = divisions[choice->taken].sharding;
    engine->copies = divisions[choice->taken].copies;
    engine->request.rough = engine->compares = false;
    engine->request.beats = 0;
    if (isfinite(tried[choice->taken].seconds)) {
        tell(choice);
    }
    return ox_engine_plan_open(engine, &trainer->plan);
}

const struct ox_mesh_choice *ox_trainer_meshes(const struct ox_trainer *trainer) {
    return trainer->mesh_choice.listed > 0 ? &trainer->mesh_choice : NULL;
}

const struct ox_shardings_tried *ox_trainer_shardings(const struct ox_trainer *trainer) {
    return &trainer->sharding_choice;
}

/* ---- ranks that divide the experts of every layer -------------------------------------------------------------- */

/* A stage has a group of experts for each rank; more would be more units than a stage can have. */
enum { OX_EXPERT_RANKS_MAX = 8 };
_Static_assert((int)OX_EXPERT_RANKS_MAX < (int)OX_STAGE_UNITS_MAX, "a stage has as many units");

static bool is_power(uint64_t number) {
    return (number & (number - 1)) == 0;
}

/* Whether so many ranks can have as many experts each of a layer, or of every group of features, which a unit of its
 * own may have. */
static bool divide_experts(const struct ox_model_config *model, uint32_t ranks, uint32_t groups) {
    const uint32_t experts = model->mixture.router.experts / groups;
    struct ox_model_config each = *model;
    each.tensor_groups = groups;
    each.mixture.per_unit = experts / ranks;
    return ranks * groups <= (uint32_t)OX_STAGE_UNITS_MAX && experts % ranks == 0 &&
           ox_model_check_grouping(&each) == OX_OK;
}

/* Writes the numbers of ranks that can divide the experts: "2, 4 or 8"; with those that divide features. */
static void list_possible(const struct ox_model_config *model, uint32_t tensors, uint32_t groups, char *text,
                          size_t bytes) {
    uint32_t possible[OX_EXPERT_RANKS_MAX], count = 0;
    for (uint32_t ranks = tensors > 1 ? 1 : 2; ranks <= OX_EXPERT_RANKS_MAX; ranks *= 2) {
        possible[count] = ranks * tensors;
        count += ranks == 1 || divide_experts(model, ranks, groups);
    }
    size_t used = (size_t)snprintf(text, bytes, "%s", count == 0 ? "1" : "");
    for (uint32_t i = 0; i < count && used < bytes; i++) {
        used += (size_t)snprintf(text + used, bytes - used, "%s%u", i == 0 ? "" : i + 1 == count ? " or " : ", ",
                                 possible[i]);
    }
}

enum ox_status ox_trainer_need_experts(const struct ox_model_config *model, uint32_t ranks) {
    return ranks <= 1 || model->mixture.router.experts > 0
               ? OX_OK : ox_fail(OX_E_CONFIG, "--expert-parallel-size %u: the model (model_type \"%s\") has no "
                                 "experts; leave it out", ranks, model->family);
}

enum ox_status ox_trainer_group_experts(const struct ox_model_config *model, uint32_t ranks, uint32_t tensors,
                                        uint64_t tensor_groups, uint32_t *per_unit) {
    const uint32_t groups = (uint32_t)ox_max_u64(tensor_groups, 1), experts = model->mixture.router.experts / groups;
    char possible[48], of_groups[48] = "";
    OX_TRY(ox_trainer_need_experts(model, ox_mesh_expert_ranks(ranks, tensors)));
    tensors = tensors > 1 ? tensors : 1;
    if (ranks <= 1 || model->mixture.router.experts % groups != 0 || groups % tensors != 0) { /* refused elsewhere */
        return OX_OK;
    }
    if (groups > 1) {
        snprintf(of_groups, sizeof of_groups, " in each of %u groups of features", groups);
    }
    list_possible(model, tensors, groups, possible, sizeof possible);
    if (!is_power(ranks) || ranks > OX_EXPERT_RANKS_MAX || experts % ranks != 0) {
        return ox_fail(OX_E_CONFIG, "--expert-parallel-size %u: %u experts of a layer%s are divided by a power of two "
                       "of ranks, at most %u; use %s", ranks * tensors, experts, of_groups,
                       OX_EXPERT_RANKS_MAX * tensors, possible);
    }
    if (ranks * groups > (uint32_t)OX_STAGE_UNITS_MAX) {
        return ox_fail(OX_E_CONFIG, "--expert-parallel-size %u: experts of %u groups of features (--tensor-groups) on "
                       "%u ranks each would be %u units of a stage, at most %d; use %s", ranks * tensors, groups, ranks,
                       ranks * groups, OX_STAGE_UNITS_MAX, possible);
    }
    if (!divide_experts(model, ranks, groups)) {
        return ox_fail(OX_E_CONFIG, "--expert-parallel-size %u: %u experts of a layer%s, which a rank would have, have "
                       "no whole number of %d elements in each tensor, which is what checksums and norms are over; "
                       "use %s", ranks * tensors, experts / ranks, of_groups, OX_GROUP_ELEMS, possible);
    }
    if (*per_unit == OX_EXPERTS_AUTO) {
        *per_unit = experts / ranks;
    }
    return *per_unit > 0 && experts % (ranks * *per_unit) == 0
               ? OX_OK
               : ox_fail(OX_E_CONFIG, "--experts-per-unit %s%.0u: each of %u ranks (--expert-parallel-size) needs as "
                         "many units of the %u experts of a layer%s; give %u, or a divisor of it",
                         *per_unit == 0 ? "all" : "", *per_unit, ranks, experts, of_groups, experts / ranks);
}

/* As the user says how many ranks divide experts: with those that divide features. */
static uint32_t said_experts(const struct ox_engine_config *engine) {
    return ox_mesh_expert_ranks(engine->experts, engine->tensors);
}

/* What does not exist with such ranks, in words of options; NULL: all of the run does. */
static const char *not_over_experts(const struct ox_trainer *trainer) {
    const struct ox_config_ranks *const words = &trainer->config.ranks;
    return strcmp(words->count, "auto") == 0          ? "--ranks auto"
           : words->reduction == OX_REDUCTION_LIBRARY ? "--reduction library" : NULL;
}

/* Whether two groups of experts have the same units, of which the same are trained. */
static bool trained_alike(const struct ox_model *model, const struct ox_unit *a, const struct ox_unit *b) {
    while (a->trained == b->trained && a->next != OX_NO_UNIT && b->next != OX_NO_UNIT) {
        a = &model->units[a->next];
        b = &model->units[b->next];
    }
    return a->trained == b->trained && a->next == b->next; /* both ended */
}

/* Whether the experts of all groups of features that are units of a stage are trained, or none. */
static bool groups_alike(const struct ox_model *model, const struct ox_unit *unit) {
    bool alike = true;
    for (uint32_t at = unit->next; at != OX_NO_UNIT && unit->group != OX_NO_GROUP; at = model->units[at].next) {
        alike &= model->units[at].trained == unit->trained;
    }
    return alike;
}

/* Ranks that divide a layer's experts do the same at the same time, of which the plan of one tells that of all. */
static enum ox_status check_trained(const struct ox_engine_config *engine) {
    const struct ox_model *const model = engine->model;
    const struct ox_unit *first = NULL;
    const bool apart = engine->tensors > 1 || engine->pipe > 1; /* ranks with other units */
    for (uint32_t i = 0; i < model->unit_count; i++) {
        const struct ox_unit *const unit = &model->units[i];
        if (unit->kind != OX_UNIT_EXPERTS) {
            continue;
        }
        first = unit->expert_first / unit->expert_count % engine->experts == 0 ? unit : first;
        if (!trained_alike(model, first, unit) || (apart && !groups_alike(model, unit))) {
            return ox_fail(OX_E_CONFIG, "--%s-parallel-size %u: of layer %u some ranks would train other parts of "
                           "their experts than others; freeze or train by layer or by matrix, for all experts of a "
                           "layer alike", engine->experts > 1 ? "expert" : engine->tensors > 1 ? "tensor" : "pipeline",
                           engine->experts > 1 ? said_experts(engine) : engine->tensors > 1 ? engine->tensors
                                                                                            : engine->pipe,
                           unit->layer);
        }
    }
    return OX_OK;
}

/* Ranks that divide experts divide all else too; several such groups of ranks divide the experts' units, or each has a
 * copy of all. */
static enum ox_status set_sharding(struct ox_trainer *trainer, uint32_t of_data) {
    struct ox_config_ranks *const words = &trainer->config.ranks;
    const uint32_t experts = trainer->engine_config.experts;
    const bool hybrid = words->sharding == OX_SHARDING_CHOICE_HYBRID_SHARD ||
                        words->sharding == OX_SHARDING_CHOICE_HYBRID_SHARD_ZERO2;
    if (words->sharding == OX_SHARDING_CHOICE_NO_SHARD || words->sharding == OX_SHARDING_CHOICE_SHARED) {
        return ox_fail(OX_E_CONFIG, "--sharding %s: ranks that divide experts (--expert-parallel-size %u) divide all "
                       "else too; use full_shard, shard_grad_op, zero2 or hybrid_shard",
                       words->sharding == OX_SHARDING_CHOICE_SHARED ? "shared" : "no_shard",
                       said_experts(&trainer->engine_config));
    }
    if (hybrid && words->shard_size % experts != 0) {
        return ox_fail(OX_E_CONFIG, "--shard-size %" PRIu64 ": a copy has all experts, which %u ranks divide "
                       "(--expert-parallel-size); use a multiple of %u that divides the %u ranks that divide "
                       "micro-batches, or leave it out", words->shard_size, experts, experts, of_data);
    }
    if (hybrid && words->shard_size == 0) {
        words->shard_size = experts;
    }
    return OX_OK;
}

enum ox_status ox_trainer_set_experts(struct ox_trainer *trainer, uint32_t of_data) {
    const struct ox_engine_config *const engine = &trainer->engine_config;
    const uint32_t of_batch = of_data / (uint32_t)ox_max_u64(1, engine->contexts); /* that have other micro-batches */
    const uint64_t given = trainer->config.train.sum_groups, groups = given > 0 ? given : of_batch;
    OX_TRY(check_trained(engine));
    if (engine->experts <= 1) {
        return OX_OK;
    }
    const char *const other = not_over_experts(trainer);
    if (other != NULL) {
        return ox_fail(OX_E_CONFIG, "--expert-parallel-size %u: does not exist with %s yet; leave one of them out",
                       said_experts(engine), other);
    }
    if (groups % of_batch != 0 || !is_power(groups / of_batch)) {
        return ox_fail(OX_E_CONFIG, "--sum-groups %" PRIu64 ": with --expert-parallel-size each of %u ranks sums as "
                       "many, and a power of two; for a new run give %u", groups, of_batch, of_batch);
    }
    if (engine->micro_batches % groups != 0 && !trainer->input.eval_alone) {
        return ox_fail(OX_E_CONFIG, "--expert-parallel-size %u: ranks do each micro-batch together, and a step has %u "
                       "for %" PRIu64 " sum groups; give --gradient-accumulation-steps %" PRIu64, said_experts(engine),
                       engine->micro_batches, groups, ox_align_up(engine->micro_batches, groups));
    }
    return set_sharding(trainer, of_data);
}

/* ---- PowerSGD ------------------------------------------------------------------------------------------- */

/* What does not exist with exchanges of low rank, in words of options; NULL: all of the run does. */
static const char *not_of_low_rank(const struct ox_trainer *trainer) {
    const struct ox_engine_config *const engine = &trainer->engine_config;
    const struct ox_config *const config = &trainer->config;
    return engine->device == OX_DEVICE_CUDA                        ? "--device cuda"
           : engine->tensors > 1                                   ? "ranks that divide features "
                                                                     "(--tensor-parallel-size)"
           : ox_model_groups(&engine->model->config) > 1           ? "groups of features (--tensor-groups)"
           : engine->experts > 1                                   ? "--expert-parallel-size"
           : strcmp(config->ranks.mesh, "auto") == 0               ? "--mesh auto"
           : config->ranks.exchange_dtype != OX_EXCHANGE_FP32      ? "--exchange-dtype"
           : config->ranks.reduction == OX_REDUCTION_LIBRARY       ? "--reduction library" : NULL;
}

/* The number of copies, where the ranks of a process that have the same layers make one together. A single process that
 * plans for several counts each of its ranks as a copy. */
static uint32_t copies_over(const struct ox_trainer *trainer, uint32_t ranks) {
    const uint32_t processes = ox_team_count(trainer->team);
    const uint32_t of_process = ranks * trainer->engine_config.pipe / processes;
    return processes == 1 ? ranks : ranks / (uint32_t)ox_max_u64(ox_min_u64(ranks, of_process), 1);
}

/* Divides the model among the ranks of a process, which then have a copy, unless the user has said so. */
static enum ox_status divide_for_processes(struct ox_trainer *trainer, uint32_t ranks) {
    struct ox_config_ranks *const words = &trainer->config.ranks;
    const uint32_t copies = copies_over(trainer, ranks);
    const bool plans = trainer->config.tool.plan_only;
    if (copies == 1 || (ox_team_count(trainer->team) == 1 && !plans)) {
        return ox_fail(OX_E_CONFIG, "--powersgd-rank %" PRIu64 ": needs several processes%s; within one, sums are "
                       "exact and cost no network; leave it out, or start %s with mpirun", words->powersgd_rank,
                       trainer->engine_config.pipe > 1 ? " with the same layers" : "",
                       trainer->engine_config.pipe > 1 ? "more processes" : "processes");
    }
    if (words->sharding == OX_SHARDING_CHOICE_AUTO) {
        const bool alone = ranks == copies && trainer->config.memory.nvme_count == 0; /* no_shard has no store */
        words->sharding = alone ? OX_SHARDING_CHOICE_NO_SHARD : OX_SHARDING_CHOICE_HYBRID_SHARD;
        words->shard_size = alone ? 0 : ranks / copies;
    }
    return OX_OK;
}

enum ox_status ox_trainer_divide_low_rank(struct ox_trainer *trainer, uint32_t ranks) {
    const struct ox_config *const config = &trainer->config;
    trainer->engine_config.low_rank = (struct ox_low_rank_config){0};
    if (config->ranks.powersgd_rank == 0 || trainer->input.eval_alone) {
        return OX_OK;
    }
    const char *const other = not_of_low_rank(trainer);
    if (other != NULL) {
        return ox_fail(OX_E_CONFIG, "--powersgd-rank %" PRIu64 ": does not exist with %s yet; leave one of them out",
                       config->ranks.powersgd_rank, other);
    }
    return divide_for_processes(trainer, ranks);
}

/* Options that say how, of what is not asked for. */
static void warn_of_idle(const struct ox_trainer *trainer) {
    const struct ox_config_ranks *const words = &trainer->config.ranks;
    const bool chooses = trainer->engine_config.ranks > 1 && !trainer->input.eval_alone;
    const bool low_rank = words->powersgd_rank > 0;
    const bool runs = words->pipeline_schedule == OX_PIPELINE_CHOICE_INTERLEAVED || strcmp(words->mesh, "auto") == 0;
    const struct {
        const char *option, *without;
        bool idle;
    } all[] = {
        {"--mesh auto", "several --ranks of a run", strcmp(words->mesh, "auto") == 0 && !chooses},
        {"--powersgd-start-step", "--powersgd-rank", !low_rank && words->powersgd_start_step != 1000},
        {"--powersgd-min-rate", "--powersgd-rank", !low_rank && words->powersgd_min_rate != 2},
        {"--powersgd-warm-start", "--powersgd-rank", !low_rank && !words->powersgd_warm_start},
        {"--virtual-pipeline-size", "--pipeline-schedule interleaved", !runs && words->virtual_pipeline_size != 2}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i].idle) {
            ox_log(OX_LOG_WARN, "%s: does nothing without %s", all[i].option, all[i].without);
        }
    }
}

enum ox_status ox_trainer_set_low_rank(struct ox_trainer *trainer, uint32_t ranks) {
    const struct ox_config_ranks *const words = &trainer->config.ranks;
    struct ox_engine_config *const engine = &trainer->engine_config;
    const uint32_t processes = ox_team_count(trainer->team), expected = copies_over(trainer, ranks);
    warn_of_idle(trainer);
    if (words->powersgd_rank == 0 || trainer->input.eval_alone) {
        return OX_OK;
    }
    const uint32_t copies = engine->sharding == OX_SHARDING_NONE ? ranks : engine->copies;
    if (copies <= 1 || (processes > 1 && copies != expected)) {
        return ox_fail(OX_E_CONFIG, "--powersgd-rank %" PRIu64 ": sums within a process stay exact, so the ranks of "
                       "each of the %u processes have a copy of their layers; give --sharding hybrid_shard "
                       "--shard-size %u, no_shard with one rank a process, or leave out --sharding",
                       words->powersgd_rank, processes, ranks / expected);
    }
    engine->low_rank = (struct ox_low_rank_config){
        .rank = (uint32_t)words->powersgd_rank, .min_rate = words->powersgd_min_rate,
        .start_step = words->powersgd_start_step, .warm_start = words->powersgd_warm_start};
    ox_log(OX_LOG_INFO, "--powersgd-rank %" PRIu64 ": inexact; from step %" PRIu64 " on %u copies of the model "
           "exchange gradients of matrices in low rank, so another number of processes or ranks has other bits%s",
           words->powersgd_rank, words->powersgd_start_step + 1, copies,
           processes == 1 ? "; planned for a process for each copy" : "");
    return OX_OK;
}
