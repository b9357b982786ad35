/* `offload plan`, and the plan of `offload train --dry-run`. */
#include "tools/command/cmd.h"
#include "tools/start/profile.h"
#include "tools/start/status_line.h"

#include "base/json.h"
#include "engine/run/trainer.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static json_t *by_tier(const uint64_t *bytes) {
    return json_pack("{s:I, s:I, s:I}", "device", (json_int_t)bytes[OX_TIER_DEVICE], "host",
                     (json_int_t)bytes[OX_TIER_HOST], "nvme", (json_int_t)bytes[OX_TIER_NVME]);
}

static json_t *lanes_json(const struct ox_sim_result *step, bool busy) {
    json_t *const lanes = json_object();
    for (int i = 0; i < OX_LANE_COUNT; i++) {
        const struct ox_sim_lane *const lane = &step->lanes[i];
        if (i >= OX_LANE_OF_ONE_COUNT && !(lane->busy > 0)) {
            continue;
        }
        json_object_set_new(lanes, ox_lane_name((enum ox_lane_id)i),
                            json_real(busy ? lane->busy : ox_sim_stalled(lane)));
    }
    return lanes;
}

/* Adds the predicted times of the plan. */
static void add_prediction(json_t *json, const struct ox_prediction *prediction) {
    const struct ox_sim_result *const step = &prediction->step;
    json_t *const more = json_pack(
        "{s:f, s:f, s:o, s:o, s:o, s:o, s:s, s:f, s:o, s:o, s:s, s:b}", "predicted_seconds", step->seconds,
        "predicted_mean_seconds", prediction->mean_seconds, "eval_seconds", ox_json_number(prediction->eval_seconds),
        "eval_after_step_seconds", ox_json_number(prediction->eval_after_step_seconds), "floor_seconds",
        ox_json_number(prediction->floor_seconds), "hidden_tokens", ox_json_number(prediction->hidden_tokens),
        "binding_resource", ox_sim_resource_name(step->binding), "binding_share", step->binding_share,
        "predicted_busy_seconds", lanes_json(step, true), "predicted_stall_seconds", lanes_json(step, false),
        "machine", prediction->machine->name, "profiled", prediction->profiled);
    json_object_update(json, more);
    json_decref(more);
    const struct ox_measured *const measured = prediction->measured;
    json_object_set_new(json, "measured", measured == NULL ? json_null() : json_pack(
        "{s:s, s:f, s:o, s:f}", "day", measured->day, "seconds", measured->seconds, "path",
        measured->path[0] != '\0' ? ox_json_text(measured->path) : json_null(), "others",
        measured->busy ? measured->others : 0));
}

static json_t *advice_json(const struct ox_advice *advice) {
    json_t *const all = json_object();
    for (int kind = 0; kind < OX_ADVICE_COUNT; kind++) {
        const struct ox_advice *const a = &advice[kind];
        json_object_set_new(all, ox_advice_name((enum ox_advice_kind)kind),
                            a->known ? json_pack("{s:f, s:f}", "seconds", a->seconds, "speedup", a->speedup)
                                     : json_null());
    }
    return all;
}

/* Counts the units whose weights, state and gradients live in each tier between tasks. */
static json_t *homes_json(const struct ox_shard_table *table) {
    uint64_t weights[OX_TIER_COUNT] = {0}, state[OX_TIER_COUNT] = {0}, grads[OX_TIER_COUNT] = {0};
    for (uint32_t i = 0; i < table->unit_count; i++) {
        weights[table->shards[i].homes.weights]++;
        state[table->shards[i].homes.state] += !table->shards[i].fixed; /* those have neither */
        grads[table->shards[i].homes.grad] += !table->shards[i].fixed;
    }
    return json_pack("{s:o, s:o, s:o}", "weights", by_tier(weights), "state", by_tier(state), "grads",
                     by_tier(grads));
}

/* Adds the choices that the placement made. */
static void add_placement(json_t *json, const struct ox_engine_plan *plan) {
    const struct ox_placement *const placement = &plan->input.placement;
    const bool store = plan->input.budget.nvme_bytes > 0;
    const int generations = store ? (int)ox_plan_generations(&plan->input.budget) : 0;
    const struct ox_unit_counts counts = ox_plan_count_units(plan->train);
    json_t *const more = json_pack(
        "{s:s, s:b, s:i, s:i, s:i, s:b, s:i, s:i, s:o}", "activation_tier", ox_tier_name(placement->act_tier),
        "overlap", placement->overlap, "saved_units", (int)counts.saved, "ahead_units", (int)counts.ahead,
        "device_units", (int)counts.on_device, "device_first", counts.device_first, "units",
        (int)plan->table.unit_count, "generations", generations, "homes", homes_json(&plan->table));
    json_object_update(json, more);
    json_decref(more);
    for (int i = 0; i < OX_CHOICE_ROW_COUNT; i++) {
        const struct ox_choice_row *const row = &ox_choice_rows[i];
        const uint32_t value = ox_choice_value(placement, row);
        if (row->key != NULL) {
            json_object_set_new(json, row->key, row->is_switch ? json_boolean(value) : json_integer(value));
        }
    }
}

/* For each coordinate of a pipeline the stages that it computes; null without a pipeline. */
static json_t *stages_json(const struct ox_plan_input *input) {
    const uint32_t pipe = ox_plan_pipe(input);
    json_t *const all = pipe > 1 ? json_array() : json_null();
    for (uint32_t at = 0; at < pipe && pipe > 1; at++) {
        json_t *const own = json_array();
        for (uint32_t i = 0; i < input->model.stage_count; i++) {
            if (ox_plan_stage_owner(input, i) == at) {
                json_array_append_new(own, json_integer(i));
            }
        }
        json_array_append_new(all, own);
    }
    return all;
}

/* How context ranks see keys and values; null where there are none. */
static json_t *mode_json(uint32_t contexts, enum ox_context_mode mode) {
    return contexts > 1 ? json_string(ox_context_mode_name(mode)) : json_null();
}

/* Adds what several ranks are, and how they share the work. */
static void add_ranks(json_t *json, const struct ox_trainer *trainer) {
    const struct ox_engine_plan *const plan = ox_trainer_plan(trainer);
    const struct ox_plan_input *const input = &plan->input;
    const struct ox_plan_ranks *const ranks = &input->ranks;
    const uint32_t contexts = ox_plan_contexts(input);
    uint64_t bytes[OX_TIER_COUNT], own = 0;
    if (ranks->count <= 1) {
        return;
    }
    for (int tier = 0; tier < OX_TIER_COUNT; tier++) {
        bytes[tier] = ox_engine_plan_all_bytes(plan, (enum ox_tier)tier);
    }
    for (uint32_t i = 0; i < input->model.unit_count; i++) {
        own += input->table->shards[i].elem_count;
    }
    json_object_set_new(json, "ranks", json_pack(
        "{s:i, s:i, s:i, s:i, s:o, s:i, s:i, s:s, s:o, s:s, s:i, s:I, s:i, s:i, s:b, s:s, s:i, s:o}", "count",
        (int)ranks->count, "data", (int)(ox_plan_data_ranks(input) / contexts), "pipeline", (int)ox_plan_pipe(input),
        "context", (int)contexts, "context_mode", mode_json(contexts, ox_trainer_context_mode(trainer)), "tensor",
        (int)ox_plan_tensors(input), "expert",
        (int)ox_mesh_expert_ranks(ox_plan_experts(input), ox_plan_tensors(input)), "schedule",
        ox_pipe_schedule_name(input->placement.schedule), "stages", stages_json(input), "sharding",
        ox_sharding_name(ranks->sharding), "copies", (int)ox_plan_copies(input), "own_parameters", (json_int_t)own,
        "own_micro_batches", (int)input->model.micro_batches, "sum_groups", (int)ranks->sum_groups, "library_sums",
        ranks->library_sums, "exchange_dtype", ox_exchange_dtype_name(ranks->exchange), "powersgd_rank",
        ranks->low_rank != NULL ? (int)ranks->low_rank->rank : 0, "peak_bytes", by_tier(bytes)));
}

/* Adds the best mesh of every kind, where they were compared, and why none has ranks of a kind; null for the time of
 * one that has no plan. */
static void add_meshes(json_t *json, const struct ox_mesh_choice *choice) {
    json_t *const list = choice != NULL ? json_array() : NULL;
    for (uint32_t i = 0; list != NULL && i < OX_MESH_KINDS; i++) {
        const struct ox_mesh_tried *const mesh = &choice->best[i];
        if (mesh->pipe > 0) {
            json_array_append_new(list, json_pack(
                "{s:s, s:i, s:i, s:i, s:i, s:o, s:i, s:i, s:o, s:o, s:f, s:s, s:f, s:b}", "kind",
                ox_mesh_kind_name(i), "data", (int)mesh->data, "pipeline", (int)mesh->pipe, "tensor",
                (int)mesh->tensor, "context", (int)mesh->context, "context_mode",
                mode_json(mesh->context, mesh->context_mode), "expert",
                (int)ox_mesh_expert_ranks(mesh->expert, mesh->tensor), "chunks", (int)mesh->chunks, "schedule",
                mesh->pipe > 1 ? json_string(ox_pipe_schedule_name(mesh->schedule)) : json_null(), "step_seconds",
                ox_json_number(mesh->seconds), "least_seconds", mesh->sketch.least, "binding_resource",
                ox_sim_resource_name(mesh->binding), "binding_share", mesh->binding_share, "taken",
                i == choice->taken));
        }
    }
    if (list == NULL) {
        return;
    }
    json_t *const refused = json_object();
    for (uint32_t kind = OX_MESH_TENSOR; kind <= OX_MESH_EXPERT; kind++) {
        const char *const why = ox_mesh_why_none(choice, kind);
        json_object_set_new(refused, ox_mesh_kind_name(kind), why[0] != '\0' ? ox_json_text(why) : json_null());
    }
    json_object_set_new(json, "meshes", list);
    json_object_set_new(json, "meshes_refused", refused);
}

/* Adds what ranks may divide, where that was compared; null for the time of what has no plan. */
static void add_shardings(json_t *json, const struct ox_shardings_tried *choice) {
    json_t *const list = json_array();
    for (uint32_t i = 0; i < choice->count; i++) {
        const struct ox_sharding_tried *const at = &choice->tried[i];
        json_array_append_new(list, json_pack(
            "{s:s, s:o, s:s, s:f, s:b}", "sharding", at->name, "step_seconds", ox_json_number(at->seconds),
            "binding_resource", ox_sim_resource_name(at->binding), "binding_share", at->binding_share, "taken",
            i == choice->taken));
    }
    if (choice->count > 0) {
        json_object_set(json, "shardings", list);
    }
    json_decref(list);
}

/* Adds how many experts are a unit, where there are any, and how many groups of features. */
static void add_groups(json_t *json, const struct ox_model_config *config) {
    const struct ox_mixture *const mixture = &config->mixture;
    json_object_set_new(json, "tensor_groups", json_integer(ox_model_groups(config)));
    if (mixture->router.experts > 0) {
        json_object_set_new(json, "experts_per_unit",
                            mixture->per_unit > 0 ? json_integer(mixture->per_unit) : json_string("all"));
    }
}

/* Adds what checkpoints take; null: not known. */
static void add_room(json_t *json, const struct ox_trainer *trainer) {
    struct ox_checkpoint_room room;
    ox_trainer_room(trainer, &room);
    json_object_set_new(json, "checkpoints", json_pack(
        "{s:I, s:I, s:o, s:o, s:o}", "bytes", (json_int_t)room.each_bytes, "most_bytes", (json_int_t)room.most_bytes,
        "written", room.written > 0 ? json_integer((json_int_t)room.written) : json_null(),
        "kept", room.kept > 0 ? json_integer((json_int_t)room.kept) : json_null(),
        "free_bytes", room.free_bytes < UINT64_MAX ? json_integer((json_int_t)room.free_bytes) : json_null()));
}

/* What is known, or null. */
static json_t *count_json(uint64_t count) {
    return count > 0 ? json_integer((json_int_t)count) : json_null();
}

/* Adds what the plan comes to. */
static void add_verdict(json_t *json, const struct ox_trainer *trainer) {
    struct ox_verdict verdict;
    ox_trainer_verdict(trainer, &verdict);
    json_t *const refusals = json_array();
    for (const char *line = verdict.refusals; *line != '\0'; line += strcspn(line, "\n") + 1) {
        json_array_append_new(refusals, json_stringn_nocheck(line, strcspn(line, "\n")));
    }
    const bool known = verdict.steps > 0 && verdict.epoch_steps > 0;
    json_object_set_new(json, "verdict", json_pack(
        "{s:b, s:o, s:o, s:I, s:o, s:o, s:o, s:o, s:o, s:I}", "fits", verdict.fits, "refusals", refusals, "steps",
        count_json(verdict.steps), "from_step", (json_int_t)verdict.from_step, "epoch_steps",
        count_json(verdict.epoch_steps), "epochs",
        known ? json_real((double)verdict.steps / (double)verdict.epoch_steps) : json_null(), "total_seconds",
        ox_json_number(verdict.total_seconds), "used_bytes", by_tier(verdict.used_bytes), "given_bytes",
        by_tier(verdict.given_bytes), "drive_bytes", (json_int_t)verdict.drive_bytes));
}

static json_t *plan_json(const struct ox_trainer *trainer, bool feasible) {
    const struct ox_engine_plan *const plan = ox_trainer_plan(trainer);
    json_t *const traffic = json_object();
    for (int link = 0; link < ox_plan_link_count(&plan->input); link++) {
        json_t *const kinds = json_object();
        for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            json_object_set_new(kinds, ox_traffic_name((enum ox_traffic_kind)kind),
                                json_integer((json_int_t)plan->train->traffic[link][kind]));
        }
        json_object_set_new(traffic, ox_link_name((enum ox_link)link), kinds);
    }
    const struct ox_plan_budget *const budget = &plan->input.budget;
    const uint64_t given[OX_TIER_COUNT] = {budget->device_bytes, budget->host_bytes, budget->nvme_bytes};
    uint64_t peaks[OX_TIER_COUNT];
    for (int tier = 0; tier < OX_TIER_COUNT; tier++) {
        peaks[tier] = ox_engine_plan_peak_bytes(plan, (enum ox_tier)tier);
    }
    json_t *const json = json_pack(
        "{s:b, s:o, s:o, s:o, s:i, s:f}", "feasible", feasible, "peak_bytes", by_tier(peaks), "budget_bytes",
        by_tier(given), "bytes_per_step", traffic,
        "tasks", (int)plan->train->task_count, "bytes_per_parameter", ox_shard_bytes_per_elem(&plan->whole));
    const struct ox_model *const model = ox_trainer_model(trainer);
    json_object_set_new(json, "parameters", json_integer((json_int_t)model->param_count));
    json_object_set_new(json, "trained_parameters", json_integer((json_int_t)model->trained_count));
    add_verdict(json, trainer);
    add_placement(json, plan);
    add_ranks(json, trainer);
    add_meshes(json, ox_trainer_meshes(trainer));
    add_shardings(json, ox_trainer_shardings(trainer));
    add_groups(json, &ox_trainer_model(trainer)->config);
    add_room(json, trainer);
    add_prediction(json, ox_trainer_prediction(trainer));
    return json;
}

/* Prints a plan as text or JSON; `advice` may be NULL. */
static enum ox_status print_plan(const struct ox_trainer *trainer, const struct ox_config *config, bool feasible,
                                 const struct ox_advice *advice) {
    if (strcmp(config->tool.format, "json") == 0) {
        json_t *const json = plan_json(trainer, feasible);
        if (json != NULL && advice != NULL) {
            json_object_set_new(json, "with_more", advice_json(advice));
        }
        return ox_print_json(stdout, json, JSON_INDENT(2), "the plan");
    }
    char *text = NULL, more[OX_ADVICE_TEXT_BYTES] = "";
    const enum ox_plan_detail detail = config->tool.verbose ? OX_PLAN_LANES : OX_PLAN_BRIEF;
    const enum ox_status status = ox_trainer_plan_text(trainer, detail, advice, &text);
    if (status == OX_OK && advice != NULL) {
        ox_advice_text(advice, more);
    }
    if (status != OX_OK) {
        return status;
    }
    char *const wrapped = ox_wrap(text, STDOUT_FILENO), *const rest = ox_wrap(more, STDOUT_FILENO);
    printf("%s%s%s", feasible ? "" : "the nearest plan, which is over the budget:\n", wrapped != NULL ? wrapped : text,
           rest != NULL ? rest : more);
    free(rest);
    free(wrapped);
    free(text);
    return OX_OK;
}

/* Opens the run. When the budget is too small, it prints the nearest plan before the error. */
enum ox_status ox_plan_open_run(const struct ox_config *config, struct ox_trainer **trainer) {
    const struct ox_config *own = NULL;
    enum ox_status status = ox_profile_config(config, &own);
    OX_THEN(status, ox_trainer_open(own, trainer));
    if (status == OX_OK || *trainer == NULL) {
        return status;
    }
    char text[OX_ERROR_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", ox_error_text());
    const enum ox_status printed = config->tool.quiet ? OX_OK : print_plan(*trainer, config, false, NULL);
    fflush(stdout);
    return printed == OX_OK ? ox_fail(status, "%s", text) : printed;
}

int ox_cmd_plan(const struct ox_config *given) {
    static struct ox_config config; /* tens of kilobytes */
    struct ox_trainer *trainer = NULL;
    config = *given;
    config.tool.plan_only = true;
    enum ox_status status = ox_profile_memory(&config);
    OX_THEN(status, ox_plan_open_run(&config, &trainer));
    struct ox_advice advice[OX_ADVICE_COUNT];
    OX_THEN(status, ox_trainer_advise(trainer, advice));
    OX_THEN(status, print_plan(trainer, &config, true, advice));
    OX_THEN(status, config.files.picture[0] != '\0' ? ox_plan_draw(trainer, config.files.picture) : OX_OK);
    ox_trainer_close(&trainer);
    return ox_cmd_exit(status);
}

enum ox_status ox_plan_print_dry(const struct ox_trainer *trainer, const struct ox_config *config) {
    if (strcmp(config->tool.format, "json") != 0) {
        char *yaml = NULL;
        const enum ox_status status = ox_config_to_yaml(config, OX_CMD_TRAIN, &yaml);
        if (status != OX_OK) {
            return status;
        }
        printf("%s\n", yaml);
        free(yaml);
    }
    return print_plan(trainer, config, true, NULL);
}
