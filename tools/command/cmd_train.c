/* `offload train` and `offload plan`. */
#include "tools/command/cmd.h"
#include "tools/command/signals.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "engine/run/trainer.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the progress line ---------------------------------------------------------------------------- */

/* Sums over steps. */
struct sums {
    uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT];
    uint64_t steps, tokens, batch_tokens, skipped, empty, speculated;
    double loss; /* sum over steps neither skipped nor empty */
    double seconds, busy_seconds, peer_wait_seconds; /* the last two: means of the ranks */
    uint32_t rank_count;
};

struct progress {
    uint64_t begin_ns, begin_step, logging_steps;
    uint64_t step, max_steps; /* where the run is; 0 of 0 before it starts */
    bool terminal, open_line, quiet;
    struct sums all;       /* this process, with the traffic of updates done by evaluations */
    struct sums since;     /* steps since the last line */
    uint64_t eval_updates; /* steps whose update ran within an evaluation */
    struct ox_eval_report last_eval;
};

static void end_line(struct progress *progress) {
    if (progress->open_line) {
        fprintf(stderr, "\n");
        progress->open_line = false;
    }
}

static uint64_t link_bytes(const uint64_t traffic[OX_LINK_COUNT][OX_TRAFFIC_KIND_COUNT], int link) {
    uint64_t bytes = 0;
    for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
        bytes += traffic[link][kind];
    }
    return bytes;
}

static void on_planned(void *context, const char *text) {
    const struct progress *const progress = context;
    if (!progress->quiet) {
        fprintf(stderr, "%s\n", text);
    }
}

static void on_start(void *context, const struct ox_run_state *state, uint64_t max_steps, const char *origin) {
    struct progress *const progress = context;
    progress->begin_ns = ox_clock_ns();
    progress->begin_step = progress->step = state->step;
    progress->max_steps = max_steps;
    if (progress->quiet) {
        return;
    }
    if (state->step > max_steps) {
        fprintf(stderr, "resumed at step %" PRIu64 " from %s: nothing left to do, the run ends at step %" PRIu64 "\n",
                state->step, origin, max_steps);
    } else if (state->step > 0) {
        fprintf(stderr, "resumed at step %" PRIu64 " of %" PRIu64 " from %s%s\n", state->step, max_steps, origin,
                state->step == max_steps ? ": nothing left to do" : "");
    } else {
        fprintf(stderr, "starting from %s: %" PRIu64 " step%s\n", origin, max_steps, ox_plural(max_steps));
    }
}

static void add_step(struct sums *sums, const struct ox_step_report *report) {
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            sums->traffic[link][kind] += report->result.traffic[link][kind];
        }
    }
    sums->steps++;
    sums->tokens += report->tokens;
    sums->batch_tokens += report->batch_tokens;
    sums->skipped += report->tokens > 0 && !report->result.finite;
    sums->empty += report->tokens == 0;
    sums->speculated += report->result.speculated;
    sums->loss += report->tokens > 0 && report->result.finite ? report->result.loss : 0;
    sums->seconds += report->wall_seconds;
    for (uint32_t i = 0; i < report->result.rank_count; i++) {
        sums->rank_count = report->result.rank_count;
        sums->busy_seconds += report->result.ranks[i].busy_seconds / sums->rank_count;
        sums->peer_wait_seconds += report->result.ranks[i].peer_wait_seconds / sums->rank_count;
    }
}

/* Prints a line for the steps since the last one: means, but norm and rate of the last step, as the Trainer does. */
static void print_line(struct progress *progress, const struct ox_step_report *report) {
    const struct sums *const since = &progress->since;
    const uint64_t counted = since->steps - since->skipped - since->empty;
    const double loss = counted > 0 ? since->loss / (double)counted : report->result.loss;
    const double stalled = since->seconds > 0 ? 1 - since->busy_seconds / since->seconds : 0;
    char eta[OX_DURATION_TEXT_BYTES], links[128] = "", each[48] = "", peers[48] = "";
    const double elapsed = (double)(ox_clock_ns() - progress->begin_ns) * 1e-9;
    const double per_step = elapsed / (double)(report->step - progress->begin_step);
    ox_duration_text(per_step * (double)(report->max_steps - report->step), eta);
    const double wall = since->seconds > 0 ? since->seconds : 1;
    size_t used = 0;
    for (int link = 0; link < OX_LINK_COUNT; link++) {
        const uint64_t bytes = link_bytes(since->traffic, link);
        if (bytes > 0 && used < sizeof links) {
            used += (size_t)snprintf(links + used, sizeof links - used, " %s %.2f",
                                     ox_link_name((enum ox_link)link), (double)bytes / wall * 1e-9);
        }
    }
    if (since->rank_count > 1) {
        snprintf(each, sizeof each, ", %.0f a rank", (double)since->batch_tokens / wall / since->rank_count);
        snprintf(peers, sizeof peers, ", for other ranks %.0f%%", 100 * since->peer_wait_seconds / wall);
    }
    fprintf(stderr, "%sstep %" PRIu64 "/%" PRIu64 " | loss %.4f | norm %.3g | lr %.2e | %.0f ms | %.0f tok/s%s |%s%s "
            "stall %.0f%%%s | eta %s", progress->terminal ? "\r\033[K" : "", report->step, report->max_steps,
            loss, report->result.grad_norm, report->learning_rate, since->seconds * 1e3 / (double)since->steps,
            (double)since->batch_tokens / wall, each, links, used > 0 ? " GB/s |" : "", 100 * fmax(0, stalled), peers,
            eta);
    progress->since = (struct sums){0};
    progress->open_line = progress->terminal;
    if (!progress->terminal) {
        fprintf(stderr, "\n");
    }
}

/* Adds up each step, and prints a progress line every logging_steps. */
static void on_step(void *context, const struct ox_step_report *report) {
    struct progress *const progress = context;
    progress->step = report->step;
    add_step(&progress->all, report);
    add_step(&progress->since, report);
    const bool due = report->step % progress->logging_steps == 0 || report->step == report->max_steps;
    /* A step without targets has no line, because a warning was logged. */
    if (due && report->tokens > 0 && !progress->quiet) {
        print_line(progress, report);
    }
}

static void on_eval(void *context, const struct ox_eval_report *report) {
    struct progress *const progress = context;
    end_line(progress);
    progress->last_eval = *report;
    progress->eval_updates += report->with_update;
    for (int link = 0; link < OX_LINK_COUNT && report->with_update; link++) {
        for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
            progress->all.traffic[link][kind] += report->traffic[link][kind];
        }
    }
    if (!progress->quiet) {
        fprintf(stderr, "eval at step %" PRIu64 " | loss %.4f | perplexity %.3f | %" PRIu64 " token%s\n", report->step,
                report->loss, report->perplexity, report->tokens, ox_plural(report->tokens));
    }
}

static void on_saved(void *context, const char *path, double seconds) {
    struct progress *const progress = context;
    end_line(progress);
    if (!progress->quiet) {
        fprintf(stderr, "saved %s in %.1f s\n", path, seconds);
    }
}

/* ---- results -------------------------------------------------------------------------------------- */

static void print_traffic(const struct sums *all, int link_count) {
    uint64_t total = 0;
    for (int link = 0; link < link_count; link++) {
        total += link_bytes(all->traffic, link);
    }
    if (total == 0) {
        return;
    }
    printf("traffic per step, measured (MiB)\n  %-12s", "");
    for (int link = 0; link < link_count; link++) {
        printf("%12s", ox_link_name((enum ox_link)link));
    }
    printf("\n");
    const double steps = all->steps > 0 ? (double)all->steps : 1;
    for (int kind = 0; kind < OX_TRAFFIC_KIND_COUNT; kind++) {
        uint64_t sum = 0;
        for (int link = 0; link < link_count; link++) {
            sum += all->traffic[link][kind];
        }
        if (sum == 0) {
            continue;
        }
        printf("  %-12s", ox_traffic_name((enum ox_traffic_kind)kind));
        for (int link = 0; link < link_count; link++) {
            printf("%12.2f", (double)all->traffic[link][kind] / steps / (double)OX_MIB);
        }
        printf("\n");
    }
}

static void print_result(const struct ox_trainer *trainer) {
    if (ox_trainer_result(trainer)[0] != '\0') {
        printf("model folder: %s\n", ox_trainer_result(trainer));
    } else {
        printf("stopped before the first step: nothing was saved\n");
    }
}

static void print_summary(const struct ox_trainer *trainer, const struct progress *progress) {
    const struct sums *const all = &progress->all;
    if (all->steps > 0) {
        const uint32_t units = ox_trainer_plan(trainer)->input.placement.speculative_units;
        printf("%" PRIu64 " step%s, %" PRIu64 " token%s (%" PRIu64 " trained) in %.1f s: %.0f tokens/s; compute busy "
               "%.0f%% of the time\n", all->steps, ox_plural(all->steps), all->batch_tokens,
               ox_plural(all->batch_tokens), all->tokens, all->seconds, (double)all->batch_tokens / all->seconds,
               100 * all->busy_seconds / all->seconds);
        if (progress->eval_updates > 0) {
            printf("%" PRIu64 " update%s ran within evaluations: these seconds leave out their time, the table "
                   "counts their bytes\n", progress->eval_updates, ox_plural(progress->eval_updates));
        }
        if (all->skipped > 0) {
            printf("%" PRIu64 " step%s not finite and had no effect\n", all->skipped,
                   all->skipped == 1 ? " was" : "s were");
        }
        if (all->empty > 0) {
            printf("%" PRIu64 " step%s no token to be trained on\n", all->empty,
                   all->empty == 1 ? " had" : "s had");
        }
        if (units > 0 && all->speculated < all->steps) {
            printf("%" PRIu64 " of %" PRIu64 " steps updated %" PRIu32 " units in backward, as planned; the "
                   "norm of the others was clipped, so these units were updated again in the next forward\n",
                   all->speculated, all->steps, units);
        }
        print_traffic(all, ox_plan_link_count(&ox_trainer_plan(trainer)->input));
    }
    if (progress->last_eval.tokens > 0) {
        printf("held-out loss %.4f, perplexity %.3f per token\n", progress->last_eval.loss,
               progress->last_eval.perplexity);
    }
}

/* ---- plan ------------------------------------------------------------------------------------------ */

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
        "{s:s, s:f, s:o}", "day", measured->day, "seconds", measured->seconds, "path",
        measured->path[0] != '\0' ? ox_json_text(measured->path) : json_null()));
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
        state[table->shards[i].homes.state]++;
        grads[table->shards[i].homes.grad]++;
    }
    return json_pack("{s:o, s:o, s:o}", "weights", by_tier(weights), "state", by_tier(state), "grads",
                     by_tier(grads));
}

/* Adds the choices that the placement made. */
static void add_placement(json_t *json, const struct ox_engine_plan *plan) {
    const struct ox_placement *const placement = &plan->input.placement;
    uint32_t device_units = 0;
    for (uint32_t i = 0; i < plan->table.unit_count; i++) {
        device_units += ox_plan_state_on_device(&plan->input, i);
    }
    json_t *const more = json_pack(
        "{s:i, s:i, s:s, s:i, s:i, s:b, s:i, s:b, s:i, s:i, s:b, s:b, s:i, s:b, s:i, s:o}", "tiles",
        (int)placement->tiles, "prefetch_depth", (int)placement->prefetch_depth, "activation_tier",
        ox_tier_name(placement->act_tier), "kept_blocks", (int)placement->kept_units, "stream_slots",
        (int)placement->stream_slots, "overlap", placement->overlap, "speculative_units",
        (int)placement->speculative_units, "speculative_spread", placement->speculative_spread, "saved_units",
        (int)ox_plan_saved_units(&plan->input), "ahead_units", (int)ox_plan_ahead_units(&plan->input), "device_sums",
        placement->device_sums, "grads_alternate", placement->grads_alternate, "device_units", (int)device_units,
        "device_first", device_units < plan->table.unit_count && ox_plan_state_on_device(&plan->input, 0), "units",
        (int)plan->table.unit_count, "homes", homes_json(&plan->table));
    json_object_update(json, more);
    json_decref(more);
    const struct ox_plan_ranks *const ranks = &plan->input.ranks;
    if (ranks->count > 1) {
        uint64_t bytes[OX_TIER_COUNT];
        for (int tier = 0; tier < OX_TIER_COUNT; tier++) {
            bytes[tier] = ox_engine_plan_all_bytes(plan, (enum ox_tier)tier);
        }
        json_object_set_new(json, "ranks", json_pack(
            "{s:i, s:s, s:i, s:b, s:o}", "count", (int)ranks->count, "sharding", ox_sharding_name(ranks->sharding),
            "sum_groups", (int)ranks->sum_groups, "library_sums", ranks->library_sums, "peak_bytes", by_tier(bytes)));
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
        "tasks", (int)plan->train->task_count, "bytes_per_parameter", ox_shard_bytes_per_elem(&plan->table));
    add_placement(json, plan);
    add_room(json, trainer);
    add_prediction(json, ox_trainer_prediction(trainer));
    return json;
}

/* Prints a plan as text or JSON; `advice` may be NULL. */
static enum ox_status print_plan(const struct ox_trainer *trainer, const struct ox_config *config, bool feasible,
                                 const struct ox_advice *advice) {
    if (strcmp(config->format, "json") == 0) {
        json_t *const json = plan_json(trainer, feasible);
        if (json != NULL && advice != NULL) {
            json_object_set_new(json, "with_more", advice_json(advice));
        }
        return ox_print_json(stdout, json, JSON_INDENT(2), "the plan");
    }
    char *text = NULL, more[OX_ADVICE_TEXT_BYTES] = "";
    const enum ox_status status = ox_trainer_plan_text(trainer, false, &text);
    if (status == OX_OK && advice != NULL) {
        ox_advice_text(advice, more);
    }
    if (status == OX_OK) {
        printf("%s%s%s", feasible ? "" : "the nearest plan, which is over the budget:\n", text, more);
        free(text);
    }
    return status;
}

/* The word that stands for nominal rates in the place of a profile. */
static const char BUILTIN[] = "builtin";

/* Writes the path of a file or folder below the user's folder that `variable` names, else below `standard` in the home
 * folder; false, and "", if there is neither or the path is too long. */
static bool user_path(const char *variable, const char *standard, const char *name, char path[OX_CONFIG_TEXT_BYTES]) {
    const char *const folder = getenv(variable), *const home = getenv("HOME");
    const bool given = folder != NULL && folder[0] == '/';
    const bool any = given || (home != NULL && home[0] == '/');
    const int length = any ? snprintf(path, OX_CONFIG_TEXT_BYTES, "%s%s/%s", given ? folder : home,
                                      given ? "" : standard, name) : -1;
    if (length < 0 || length >= OX_CONFIG_TEXT_BYTES) {
        path[0] = '\0';
    }
    return path[0] != '\0';
}

/* Returns the configuration with what describes this machine: --profile, $OFFLOAD_PROFILE, the user's profile if there
 * is one, else a measurement. */
static const struct ox_config *with_profile(const struct ox_config *config) {
    static struct ox_config own; /* tens of kilobytes */
    const char *const variable = getenv("OFFLOAD_PROFILE");
    own = *config;
    memcpy(own.given_profile, config->profile, sizeof own.given_profile);
    if (own.profile[0] == '\0' && variable != NULL) {
        snprintf(own.profile, sizeof own.profile, "%s", variable);
    }
    if (own.profile[0] == '\0' && !(user_path("XDG_CONFIG_HOME", "/.config", "offload/machine.json", own.profile) &&
                                    access(own.profile, R_OK) == 0)) {
        own.profile[0] = '\0';
        own.measure = true;
        user_path("XDG_CACHE_HOME", "/.cache", "offload", own.measure_folder);
    } else if (strcmp(own.profile, BUILTIN) == 0) {
        own.profile[0] = '\0';
    }
    return &own;
}

/* Opens the run. When the budget is too small, it prints the nearest plan before the error. */
static enum ox_status open_run(const struct ox_config *config, struct ox_trainer **trainer) {
    const enum ox_status status = ox_trainer_open(with_profile(config), trainer);
    if (status == OX_OK || *trainer == NULL) {
        return status;
    }
    char text[OX_ERROR_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", ox_error_text());
    const enum ox_status printed = config->quiet ? OX_OK : print_plan(*trainer, config, false, NULL);
    fflush(stdout);
    return printed == OX_OK ? ox_fail(status, "%s", text) : printed;
}

/* A plan's --profile may describe another machine. Memory budgets that are not given become that machine's memory less
 * an eighth, which is for what no budget counts; with a GPU its memory is the device's. */
static enum ox_status apply_profile_memory(struct ox_config *config) {
    struct ox_machine machine;
    if (config->profile[0] == '\0' || strcmp(config->profile, BUILTIN) == 0) {
        return OX_OK;
    }
    const enum ox_status status = ox_predict_machine(config->profile, 1, &machine);
    if (status != OX_OK) {
        return status;
    }
    char text[2][OX_SIZE_TEXT_BYTES];
    if (config->host_mem_bytes == 0) {
        config->host_mem_bytes = machine.host.memory_bytes - machine.host.memory_bytes / 8;
        ox_log(OX_LOG_INFO, "--host-mem %s of the %s of %s", ox_size_text(config->host_mem_bytes, text[0]),
               ox_size_text(machine.host.memory_bytes, text[1]), machine.name);
    }
    if (config->device == OX_DEVICE_CHOICE_AUTO) {
        config->device = machine.has_gpu ? OX_DEVICE_CHOICE_CUDA : OX_DEVICE_CHOICE_CPU;
    }
    if (config->device_mem_bytes == 0 && machine.has_gpu && config->device == OX_DEVICE_CHOICE_CUDA) {
        config->device_mem_bytes = machine.gpu.memory_bytes - machine.gpu.memory_bytes / 8;
        ox_log(OX_LOG_INFO, "--device-mem %s of the %s of %s", ox_size_text(config->device_mem_bytes, text[0]),
               ox_size_text(machine.gpu.memory_bytes, text[1]), machine.gpu.name);
    }
    return OX_OK;
}

int ox_cmd_plan(const struct ox_config *given) {
    static struct ox_config config; /* tens of kilobytes */
    struct ox_trainer *trainer = NULL;
    config = *given;
    config.plan_only = true;
    enum ox_status status = apply_profile_memory(&config);
    OX_TRY(status, open_run(&config, &trainer));
    struct ox_advice advice[OX_ADVICE_COUNT];
    OX_TRY(status, ox_trainer_advise(trainer, advice));
    OX_TRY(status, print_plan(trainer, &config, true, advice));
    ox_trainer_close(&trainer);
    return ox_cmd_exit(status);
}

static enum ox_status dry_run(const struct ox_trainer *trainer, const struct ox_config *config) {
    if (strcmp(config->format, "json") != 0) {
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

/* Says after which step a run ended early, and how to go on; `signal_number` is 0 if a file or USR2 asked for it. */
static void tell_stop(const struct ox_trainer *trainer, const struct progress *progress, int signal_number) {
    const char *const by = signal_number == SIGINT    ? " by SIGINT"
                           : signal_number == SIGTERM ? " by SIGTERM"
                           : signal_number == SIGHUP  ? " by SIGHUP"
                                                      : "";
    if (progress->step < progress->max_steps && ox_trainer_result(trainer)[0] != '\0') {
        ox_log(OX_LOG_INFO, "stopped%s after step %" PRIu64 " of %" PRIu64 "; --resume-from-checkpoint latest goes on",
               by, progress->step, progress->max_steps);
    }
}

/* Trains, with the plan on stderr, and prints the summary. *ended_by: the signal that ended the run, or 0. */
static enum ox_status train(struct ox_trainer *trainer, const struct ox_config *config, int *ended_by) {
    struct progress progress = {.terminal = isatty(STDERR_FILENO) == 1, .logging_steps = config->logging_steps,
                                .quiet = config->quiet};
    const struct ox_trainer_hooks hooks = {
        .context = &progress, .planned = on_planned, .start = on_start, .step = on_step, .eval = on_eval,
        .saved = on_saved};
    enum ox_status status = ox_trainer_run(trainer, ox_signals_take(), &hooks, ended_by);
    end_line(&progress);
    if (status == OX_OK && !config->quiet) {
        print_summary(trainer, &progress);
    }
    if (status == OX_OK) {
        print_result(trainer);
        fflush(stdout);
        tell_stop(trainer, &progress, *ended_by);
    }
    return status;
}

int ox_cmd_train(const struct ox_config *config) {
    struct ox_trainer *trainer = NULL;
    int ended_by = 0;
    enum ox_status status = open_run(config, &trainer);
    OX_TRY(status, config->dry_run ? dry_run(trainer, config) : train(trainer, config, &ended_by));
    ended_by = config->dry_run ? ox_signals_take()->stop : ended_by;
    const int exit_status = status == OX_OK && ended_by != 0 ? 128 + ended_by : ox_cmd_exit(status);
    ox_trainer_close(&trainer);
    return exit_status;
}
