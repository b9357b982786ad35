#include "engine/run/predict.h"

#include "base/bytes.h"
#include "base/pool.h"
#include "offload/sim/floor.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- machines ------------------------------------------------------------------------------------- */

enum ox_status ox_predict_machine(const char *profile, uint32_t drive_count, struct ox_machine *out) {
    if (profile[0] != '\0' && access(profile, R_OK) != 0) {
        return ox_fail_errno(OX_E_CONFIG, errno, "--profile %s: cannot be read; `offload bench all --output FILE` "
                             "writes one", profile);
    }
    if (profile[0] == '\0') {
        ox_machine_nominal(ox_processor_count(), out);
    }
    const enum ox_status status = profile[0] != '\0' ? ox_machine_load(profile, out) : OX_OK;
    if (status == OX_OK) {
        ox_machine_fit_drives(out, drive_count);
    }
    return status;
}

/* ---- ranks ------------------------------------------------------------------------------------------ */

/* The ranks that are simulated: the wanted one, which stands for those of its coordinate, and of a pipeline one of each
 * other coordinate, with the same micro-batches. */
struct played {
    const struct ox_predict_input *input;
    const struct ox_engine_plan *plans[OX_SIM_PIPE_MAX];
    struct ox_sim *sims[OX_SIM_PIPE_MAX];
    uint32_t count, own; /* coordinates, and which is that of the wanted rank */
};

static uint32_t most_tasks(const struct ox_engine_plan *plan) {
    const struct ox_plan *const plans[] = {plan->train, plan->eval, plan->eval_after_step};
    uint32_t count = 0;
    for (unsigned i = 0; i < sizeof plans / sizeof *plans; i++) {
        count = plans[i] != NULL && plans[i]->task_count > count ? plans[i]->task_count : count;
    }
    return count;
}

static void close_played(struct played *played) {
    for (uint32_t i = 0; i < played->count; i++) {
        ox_sim_close(&played->sims[i]);
    }
}

static struct ox_rank_group group_of(const struct ox_predict_input *input) {
    return ox_plan_group(&ox_engine_plan_at(input->plan, input->rank)->input, OX_AXIS_PIPE);
}

static enum ox_status open_played(const struct ox_predict_input *input, struct played *out) {
    const struct ox_rank_group pipe = group_of(input);
    enum ox_status status = OX_OK;
    const bool one = input->plan->others == NULL; /* of a plan that was refused there is that of the first rank */
    *out = (struct played){.input = input, .count = one ? 1 : pipe.count, .own = one ? 0 : pipe.idx};
    for (uint32_t i = 0; i < out->count && status == OX_OK; i++) {
        out->plans[i] = ox_engine_plan_at(input->plan, ox_rank_group_member(&pipe, i));
        status = ox_sim_open(most_tasks(out->plans[i]), &out->sims[i]);
    }
    if (status != OX_OK) {
        close_played(out);
    }
    return status;
}

static struct ox_sim_setup setup_of(const struct played *played, uint32_t at) {
    struct ox_sim_setup setup;
    ox_engine_sim_setup(played->input->config, &played->plans[at]->input, &setup);
    return setup;
}

static const struct ox_plan *plan_of(const struct ox_engine_plan *plan, enum ox_plan_kind kind) {
    return kind == OX_PLAN_TRAIN ? plan->train : kind == OX_PLAN_EVAL ? plan->eval : plan->eval_after_step;
}

/* Simulates a step; what the wanted rank does in it, and the seconds of all. */
static void play(const struct played *played, enum ox_plan_kind kind, bool stays, bool holds,
                 struct ox_sim_result *out) {
    struct ox_sim_setup setups[OX_SIM_PIPE_MAX];
    const struct ox_plan *plans[OX_SIM_PIPE_MAX];
    struct ox_sim_result results[OX_SIM_PIPE_MAX];
    for (uint32_t i = 0; i < played->count; i++) {
        plans[i] = plan_of(played->plans[i], kind);
        setups[i] = setup_of(played, i);
        setups[i].stays = stays;
        setups[i].holds = holds;
    }
    if (played->count == 1) {
        ox_sim_run(played->sims[0], plans[0], &setups[0], out);
    } else {
        ox_sim_run_pipe(played->sims, plans, setups, played->count, results);
        *out = results[played->own];
    }
}

/* ---- the floor ------------------------------------------------------------------------------------- */

/* Seconds of the plan's compute, which no order of work changes. It replaces the formulas' estimate for any model. */
static double passes_seconds(const struct ox_plan *plan, const struct ox_sim_setup *setup) {
    double seconds = 0;
    for (uint32_t i = 0; i < plan->task_count; i++) {
        const uint8_t kind = plan->tasks[i].kind;
        if (kind == OX_TASK_FORWARD || kind == OX_TASK_HEAD || kind == OX_TASK_BACKWARD) {
            seconds += ox_sim_task_work(setup, plan, i).seconds;
        }
    }
    return seconds;
}

/* Seconds that this plan needs a resource. In the formulas every activation checkpoint and every weight that the host
 * updates crosses the links; a plan that keeps some of them where compute runs needs less. */
static double resource_seconds(const struct ox_sim_result *step, enum ox_floor_resource resource) {
    switch (resource) {
    case OX_FLOOR_H2D:
        return step->used[OX_SIM_H2D];
    case OX_FLOOR_D2H:
        return step->used[OX_SIM_D2H];
    case OX_FLOOR_DRAM:
        return step->used[OX_SIM_MEMORY];
    case OX_FLOOR_NVME:
        return step->used[OX_SIM_NVME_READ] + step->used[OX_SIM_NVME_WRITE];
    case OX_FLOOR_PEER:
        return fmax(step->used[OX_SIM_PEER_IN], step->used[OX_SIM_PEER_OUT]);
    default:
        return INFINITY;
    }
}

static void find_floor(const struct played *played, struct ox_prediction *out) {
    const struct ox_predict_input *const input = played->input;
    const struct ox_sim_setup setup = setup_of(played, played->own);
    const struct ox_plan_budget *const budget = &input->plan->input.budget;
    const struct ox_model *const model = input->config->model;
    const double rows = (double)input->config->batch * input->config->seq;
    struct ox_floor_case given = {
        .box = ox_floor_box_of(setup.machine),
        .model = {.params = (double)model->param_count, .layers = model->config.layers,
                  .hidden = model->config.hidden, .seq = input->config->seq, .micro_tokens = rows},
        .run = {.schedule = OX_FLOOR_F, .state_bytes = ox_shard_bytes_per_elem(&input->plan->whole),
                .tokens = rows * input->config->micro_batches,
                .recompute = 1 - (double)input->plan->input.placement.kept_units /
                                 ox_plan_block_count(&input->plan->input.model)},
    };
    given.box.gpu_bytes = (double)budget->device_bytes;
    given.box.host_bytes = (double)budget->host_bytes;
    given.box.gpu_reserved_bytes = given.box.host_reserved_bytes = 0; /* budgets are for the run alone */
    given.box.unified = budget->unified;
    given.box.gpus = ox_plan_rank_count(&input->plan->input);
    const struct ox_floor least = ox_floor_of(&given);
    double passes = 0; /* evenly divided over a pipeline */
    for (uint32_t i = 0; i < played->count; i++) {
        const struct ox_sim_setup of_rank = setup_of(played, i);
        passes += passes_seconds(played->plans[i]->train, &of_rank) / played->count;
    }
    double seconds = passes;
    for (int i = OX_FLOOR_H2D; i < OX_FLOOR_RESOURCE_COUNT; i++) {
        seconds = fmax(seconds, fmin(least.seconds[i], resource_seconds(&out->step, (enum ox_floor_resource)i)));
    }
    out->floor_seconds = isfinite(seconds) ? seconds : NAN;
    const double devices = budget->unified ? 1 : given.box.gpus;
    given.box.flops = passes > 0 ? least.flop / (passes * devices) : given.box.flops;
    out->hidden_tokens = ox_floor_hidden_tokens(&given);
}

/* ---- both ------------------------------------------------------------------------------------------- */

/* Simulates a step that commits. If others stay uncommitted, also simulates one that does, and takes the mean. */
static void simulate(const struct played *played, struct ox_prediction *out) {
    const struct ox_predict_input *const input = played->input;
    play(played, OX_PLAN_TRAIN, false, false, &out->step);
    out->persist_seconds = out->mean_seconds = out->step.seconds;
    if (!ox_plan_stays(&input->plan->input, input->persist_steps)) {
        return;
    }
    struct ox_sim_result stays;
    double between = 0;
    play(played, OX_PLAN_TRAIN, true, false, &stays);
    for (uint32_t i = 0; i < played->count; i++) {
        struct ox_sim_setup setup = setup_of(played, i);
        setup.stays = true;
        between = fmax(between, ox_sim_between_seconds(&setup));
    }
    out->persist_seconds += between;
    out->persist_steps = input->persist_steps > 0
                             ? input->persist_steps
                             : ox_persist_interval(out->persist_seconds - stays.seconds, stays.seconds);
    out->step = out->persist_steps > 1 ? stays : out->step;
    out->mean_seconds =
        out->step.seconds + (out->persist_seconds - out->step.seconds) / (double)out->persist_steps;
}

enum ox_status ox_predict_tasks(const struct ox_predict_input *input, struct ox_predicted_tasks *out) {
    struct ox_prediction prediction = {.persist_steps = 1};
    struct played played;
    const enum ox_status status = open_played(input, &played);
    *out = (struct ox_predicted_tasks){.count = 0};
    if (status == OX_OK) {
        const struct ox_rank_group pipe = group_of(input);
        simulate(&played, &prediction);
        play(&played, OX_PLAN_TRAIN, prediction.persist_steps > 1, false, &prediction.step);
        out->count = played.count;
        out->own = played.own;
        for (uint32_t i = 0; i < played.count; i++) {
            out->ranks[i] = ox_rank_group_member(&pipe, i);
            out->sims[i] = played.sims[i];
        }
    }
    return status;
}

void ox_predicted_tasks_close(struct ox_predicted_tasks *tasks) {
    for (uint32_t i = 0; i < tasks->count; i++) {
        ox_sim_close(&tasks->sims[i]);
    }
    tasks->count = 0;
}

/* Simulates the step in the held order, to which a run goes over while most norms are clipped. */
static void simulate_held(const struct played *played, struct ox_prediction *out) {
    struct ox_sim_result result;
    if (played->input->plan->input.placement.speculative_units > 0) {
        play(played, OX_PLAN_TRAIN, out->persist_steps > 1, true, &result);
        out->held_seconds = result.seconds;
    }
}

/* Simulates evaluations. The one that carries an update carries that of the usual step. */
static void simulate_eval(const struct played *played, struct ox_prediction *out) {
    const struct ox_engine_plan *const plan = played->input->plan;
    struct ox_sim_result result;
    if (plan->eval == NULL) {
        return;
    }
    play(played, OX_PLAN_EVAL, false, false, &result);
    out->eval_seconds = out->eval_after_step_seconds = result.seconds;
    if (plan->eval_after_step != NULL) {
        play(played, OX_PLAN_EVAL_AFTER_STEP, out->persist_steps > 1, false, &result);
        out->eval_after_step_seconds = result.seconds;
    }
}

enum ox_status ox_predict(const struct ox_predict_input *input, struct ox_prediction *out) {
    *out = (struct ox_prediction){.profiled = input->profiled || input->measured != NULL,
                                  .measured = input->measured, .machine = input->config->machine,
                                  .persist_steps = 1, .held_seconds = NAN, .eval_seconds = NAN,
                                  .eval_after_step_seconds = NAN,
                                  .floor_seconds = NAN, .hidden_tokens = INFINITY};
    struct played played;
    const enum ox_status status = open_played(input, &played);
    if (status == OX_OK) {
        simulate(&played, out);
        if (!input->step_alone) {
            simulate_held(&played, out);
            simulate_eval(&played, out);
            find_floor(&played, out);
        }
        close_played(&played);
    }
    return status;
}

/* Names the lanes that compute waits for during more than a hundredth of the step. */
static void waits_text(const struct ox_sim_result *step, char *text, size_t bytes) {
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < OX_LANE_COUNT; i++) {
        const double seconds = step->lanes[OX_LANE_COMPUTE].waited_for[i];
        if (seconds >= 0.01 * step->seconds && used < bytes) {
            char time[OX_SIZE_TEXT_BYTES];
            used += (size_t)snprintf(text + used, bytes - used, "%s %s for %s", used > 0 ? "," : "; compute waits",
                                     ox_seconds_text(seconds, time), ox_lane_name((enum ox_lane_id)i));
        }
    }
}

/* Compares the step with its lower bound, and says from which number of tokens compute alone is the bound. */
static void floor_line(const struct ox_prediction *prediction, char *text, size_t bytes) {
    char hidden[96] = "never hidden behind compute", floor[OX_SIZE_TEXT_BYTES];
    if (isnan(prediction->floor_seconds)) {
        return;
    }
    if (isfinite(prediction->hidden_tokens)) {
        snprintf(hidden, sizeof hidden, "hidden behind compute from %.0f000 tokens a step",
                 ceil(prediction->hidden_tokens / 1000));
    }
    snprintf(text, bytes, "  lower bound %s, the step takes %.2f times that; transfers %s\n",
             ox_seconds_text(prediction->floor_seconds, floor),
             prediction->step.seconds / prediction->floor_seconds, hidden);
}

/* Says what an evaluation takes, and the first one after a step, which carries that step's update. */
static void eval_line(const struct ox_prediction *prediction, char *text, size_t bytes) {
    const double seconds = prediction->eval_seconds, after_step = prediction->eval_after_step_seconds;
    char update[96] = "", time[OX_SIZE_TEXT_BYTES];
    if (after_step > seconds) {
        snprintf(update, sizeof update, "; %s right after a step, with the update of that step",
                 ox_seconds_text(after_step, time));
    }
    if (!isnan(seconds)) {
        snprintf(text, bytes, "  evaluation: %s for as many tokens%s\n", ox_seconds_text(seconds, time), update);
    }
}

enum { SOURCE_BYTES = OX_PATH_BYTES + 512 };

/* Says where the machine's rates come from. */
static void source_line(const struct ox_prediction *prediction, char *text) {
    const struct ox_measured *const measured = prediction->measured;
    const char *const gpu = measured != NULL && prediction->machine->has_gpu ? "; the GPU's rates are nominal" : "";
    const bool kept = measured != NULL && measured->path[0] != '\0';
    char time[OX_SIZE_TEXT_BYTES], busy[192] = "";
    if (measured != NULL && measured->busy) {
        snprintf(busy, sizeof busy, "; other programs used %.0f %% of the processors meanwhile, so the prediction may "
                 "be off%s", 100 * measured->others,
                 kept ? ": it is measured again at the next start on a quiet machine" : "");
    }
    if (measured == NULL) {
        snprintf(text, SOURCE_BYTES, "by %s%s", prediction->profiled ? "the profile of " : "nominal rates, not this "
                 "machine's: measure it with `offload bench all --output FILE`, then give --profile FILE",
                 prediction->profiled ? prediction->machine->name : "");
    } else if (measured->seconds > 0) {
        snprintf(text, SOURCE_BYTES, "measured this machine%s for %s (%s%s; `offload bench all --output FILE` makes a "
                 "full profile)%s%s", measured->again ? " anew, since other programs had slowed it before," : "",
                 ox_seconds_text(measured->seconds, time), kept ? "kept in " : "",
                 kept ? measured->path : "not kept", busy, gpu);
    } else {
        snprintf(text, SOURCE_BYTES, "using the measurement of %s in %s%s%s", measured->day, measured->path, busy, gpu);
    }
}

void ox_prediction_text(const struct ox_prediction *prediction, uint64_t tokens, char *text) {
    const struct ox_sim_result *const step = &prediction->step;
    char floor_text[192] = "", waits[320], source[SOURCE_BYTES], persist[160] = "", eval[160] = "", held[96] = "";
    char time[OX_SIZE_TEXT_BYTES], mean[OX_SIZE_TEXT_BYTES];
    const double rate = (double)tokens / step->seconds;
    const double average = (double)tokens / prediction->mean_seconds;
    floor_line(prediction, floor_text, sizeof floor_text);
    eval_line(prediction, eval, sizeof eval);
    if (prediction->persist_steps > 1) {
        snprintf(persist, sizeof persist,
                 "  every %" PRIu64 " steps %s: the state is persisted; %s and %.*f tokens/s on average\n",
                 prediction->persist_steps, ox_seconds_text(prediction->persist_seconds, time),
                 ox_seconds_text(prediction->mean_seconds, mean), average < 100 ? 2 : 0, average);
    }
    if (!isnan(prediction->held_seconds)) {
        snprintf(held, sizeof held, "  %s while most norms are clipped: all updates are then held for the next "
                 "forward\n", ox_seconds_text(prediction->held_seconds, time));
    }
    waits_text(step, waits, sizeof waits);
    source_line(prediction, source);
    snprintf(text, OX_PREDICTION_TEXT_BYTES,
             "predicted: %s a step, %.*f tokens/s\n%s"
             "%s%s  binding: %s, at its limit %.0f %% of the step%s\n%s"
             "  %s\n", ox_seconds_text(step->seconds, time), rate < 100 ? 2 : 0, rate, floor_text,
             persist, held,
             ox_sim_resource_name(step->binding), 100 * step->binding_share, waits, eval, source);
}
