/* What a step takes at least, and is likely to take, before any placement is chosen: by one small list of a rank that
 * has all stages and one micro-batch, whose tasks are priced one by one. */
#include "engine/step/engine_internal.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "offload/plan/schedule.h"
#include "offload/sim/sim.h"

#include <math.h>
#include <stdlib.h>

/* How often what a coordinate does comes: with each micro-batch, and of these its activation checkpoints; with each
 * fetch of its weights; once a step; and of the last two also where units live on the device. */
enum often { OF_BATCH, OF_ACTS, OF_FETCH, OF_STEP, OF_FETCH_ANYWAY, OF_STEP_ANYWAY, OFTEN_COUNT };

/* What one coordinate of a pipeline does: seconds, and bytes. */
struct part {
    double forward, backward; /* a micro-batch, whose activations are kept */
    double link[OFTEN_COUNT]; /* what ranks do together */
    double used[OFTEN_COUNT][OX_SIM_RESOURCE_COUNT];
    double held;              /* its units with their state and gradients */
    double kept;              /* of a micro-batch, so that backward computes nothing again */
};

struct ox_engine_sketch {
    struct ox_engine_plan *plan;
    struct ox_plan *list;
    struct ox_sim_work *works; /* of each task of the list */
};

/* The configuration without its pipeline, each of whose ranks has all stages and one micro-batch. */
static struct ox_engine_config smallest(const struct ox_engine_config *config) {
    struct ox_engine_config small = *config;
    const uint32_t pipe = (uint32_t)ox_max_u64(config->pipe, 1), tensors = (uint32_t)ox_max_u64(config->tensors, 1);
    small.ranks = (uint32_t)ox_max_u64(config->ranks, 1) / pipe;
    const uint32_t of_batch = small.ranks / tensors / (uint32_t)ox_max_u64(config->contexts, 1);
    small.pipe = small.pipe_chunks = 1;
    small.schedule = OX_PIPE_VERTICAL;
    small.sharding = OX_SHARDING_FULL;
    small.micro_batches = small.sum_groups = of_batch;
    return small;
}

/* Everything in host memory, and nothing computed twice. */
static void place_plainly(struct ox_engine_plan *plan) {
    plan->input.placement = (struct ox_placement){
        .tiles = 1, .prefetch_depth = 1, .act_tier = OX_TIER_HOST, .stream_slots = 1,
        .kept_units = ox_plan_block_count(&plan->input.model), .chunks = 1};
    for (uint32_t i = 0; i < plan->table.unit_count; i++) {
        plan->table.shards[i].homes =
            (struct ox_homes){.weights = OX_TIER_HOST, .state = OX_TIER_HOST, .grad = OX_TIER_HOST};
    }
}

static enum ox_status price(const struct ox_engine_config *config, struct ox_engine_sketch *sketch) {
    const struct ox_plan_input *const input = &sketch->plan->input;
    struct ox_machine machine;
    struct ox_sim_setup setup;
    ox_plan_measure(sketch->list, input, OX_PLAN_TRAIN);
    sketch->works = calloc(sketch->list->task_count, sizeof *sketch->works);
    if (sketch->works == NULL) {
        return ox_fail(OX_E_NOMEM, "plan: no memory for the times of tasks");
    }
    ox_engine_sim_setup(config, input, &setup);
    const uint32_t ranks = (uint32_t)ox_max_u64(config->ranks, 1), own = ox_plan_rank_count(input);
    ox_machine_divide(config->machine, (double)ox_machine_ranks(config->machine, ranks) /
                                           ox_machine_ranks(config->machine, own), &machine); /* then of its ranks */
    setup.machine = &machine;
    const double fullest = ox_sim_least_seconds(&setup, sketch->list, sketch->works);
    OX_ASSERT(fullest >= 0); /* what is wanted are the works */
    return OX_OK;
}

enum ox_status ox_engine_sketch_open(const struct ox_engine_config *config, struct ox_engine_sketch **out) {
    const struct ox_engine_config small = smallest(config);
    struct ox_engine_sketch *const sketch = *out = calloc(1, sizeof *sketch);
    if (sketch == NULL) {
        return ox_fail(OX_E_NOMEM, "plan: no memory for its sketch");
    }
    enum ox_status status = ox_engine_describe(&small, &sketch->plan);
    if (status == OX_OK) {
        place_plainly(sketch->plan);
        status = ox_plan_open(&sketch->plan->input, &sketch->list);
    }
    OX_THEN(status, price(config, sketch));
    if (status != OX_OK) {
        ox_engine_sketch_close(out);
    }
    return status;
}

void ox_engine_sketch_close(struct ox_engine_sketch **sketch) {
    if (*sketch != NULL) {
        free((*sketch)->works);
        ox_plan_close(&(*sketch)->list);
        ox_engine_plan_close(&(*sketch)->plan);
        free(*sketch);
    }
    *sketch = NULL;
}

static enum often often_of(const struct ox_task *task) {
    const bool link = task->lane == OX_LANE_LINK;
    switch ((enum ox_task_kind)task->kind) {
    case OX_TASK_FORWARD:
    case OX_TASK_BACKWARD:
    case OX_TASK_HEAD:
        return OF_BATCH;
    case OX_TASK_MOVE:
        return task->move == OX_MOVE_ROWS      ? OF_BATCH
               : task->move == OX_MOVE_ACT     ? OF_ACTS
               : task->move == OX_MOVE_WEIGHTS ? (link ? OF_FETCH_ANYWAY : OF_FETCH)
               : link                          ? OF_STEP_ANYWAY : OF_STEP;
    case OX_TASK_CAST:
        return OF_FETCH_ANYWAY;
    default:
        return OF_STEP;
    }
}

/* Adds a task to what the coordinate of its stage or unit does. */
static void count_task(const struct ox_plan_model *model, const uint32_t *pipe_of, const struct ox_task *task,
                       const struct ox_sim_work *work, struct part *parts) {
    const enum often often = often_of(task);
    const double seconds = work->latency + work->seconds;
    const bool of_stage = often <= OF_ACTS && task->stage_idx < model->stage_count;
    const uint32_t unit = of_stage ? model->stages[task->stage_idx].units[0].unit_idx : task->unit_idx;
    if (unit >= model->unit_count) {
        return;
    }
    struct part *const part = &parts[pipe_of[unit]];
    part->forward += task->kind == OX_TASK_FORWARD ? seconds : 0;
    part->backward += task->kind == OX_TASK_BACKWARD || task->kind == OX_TASK_HEAD ? seconds : 0;
    part->link[often] += task->lane == OX_LANE_LINK ? seconds : 0;
    for (int r = 0; r < OX_SIM_RESOURCE_COUNT; r++) {
        part->used[often][r] += work->use[r];
    }
}

static void count_memory(const struct ox_engine_plan *plan, const uint32_t *pipe_of, struct part *parts) {
    const struct ox_plan_model *const model = &plan->input.model;
    for (uint32_t i = 0; i < model->stage_count; i++) {
        parts[pipe_of[model->stages[i].units[0].unit_idx]].kept += (double)model->stages[i].kept_bytes;
    }
    for (uint32_t i = 0; i < model->unit_count; i++) {
        const struct ox_shard *const shard = &plan->table.shards[i];
        parts[pipe_of[i]].held += (double)shard->elem_count * (OX_HI_BYTES + sizeof(float)) +
                                  (double)ox_shard_unit_state_bytes(&plan->table, i);
    }
}

/* Seconds in which ranks of a pipeline wait for each other, beside the work of the fullest: `all` is what a micro-batch
 * takes through all stages, `vertical` stages in turn. */
static double idle_seconds(const struct ox_engine_config *config, double all, uint32_t stage_count) {
    const double pipe = (double)ox_max_u64(config->pipe, 1), runs = (double)ox_max_u64(config->pipe_chunks, 1);
    return config->schedule == OX_PIPE_VERTICAL ? all * (pipe - 1) / stage_count : all * (1 - 1 / pipe) / runs;
}

/* How often each comes in a step, where `away` of the units does not live on the device, which keeps activations. */
static void count_often(const struct ox_engine_config *config, double batches, double away, bool keeps,
                        double out[OFTEN_COUNT]) {
    const double fetches = config->schedule == OX_PIPE_VERTICAL ? 1 : batches;
    out[OF_BATCH] = batches;
    out[OF_ACTS] = keeps ? 0 : batches;
    out[OF_FETCH] = away * fetches;
    out[OF_STEP] = away;
    out[OF_FETCH_ANYWAY] = config->sharding == OX_SHARDING_FULL ? fetches : 0.5; /* of two passes */
    out[OF_STEP_ANYWAY] = 1;
}

/* The most that a coordinate does with one resource, or on its link. */
static double busiest(const struct part *part, const double often[OFTEN_COUNT]) {
    double most = 0;
    for (int r = -1; r < OX_SIM_RESOURCE_COUNT; r++) {
        double seconds = 0;
        for (int i = 0; i < OFTEN_COUNT; i++) {
            seconds += often[i] * (r < 0 ? part->link[i] : part->used[i][r]);
        }
        most = fmax(most, seconds);
    }
    return most;
}

/* The time that a coordinate takes, as the configuration orders and divides. */
static void add_up(const struct ox_engine_config *config, const struct part *parts, uint32_t stage_count,
                   struct ox_engine_times *out) {
    const uint32_t pipe = (uint32_t)ox_max_u64(config->pipe, 1);
    const uint64_t of_batch = ox_max_u64(config->ranks, 1) / pipe / ox_max_u64(config->tensors, 1) /
                              ox_max_u64(config->contexts, 1);
    const double batches = (double)ox_div_up(config->micro_batches, of_batch);
    const bool vertical = config->schedule == OX_PIPE_VERTICAL, apart = !config->budget.unified;
    const double device = apart ? (double)config->budget.device_bytes : 0;
    const double turns = vertical ? fmax(batches, pipe) : batches; /* with fewer a rank waits each time */
    const double alive = config->schedule == OX_PIPE_GPIPE ? batches : fmin(batches, pipe);
    double all = 0, most = 0, compute = 0, rows = 0;
    for (uint32_t i = 0; i < pipe; i++) {
        const struct part *const part = &parts[i];
        const double once = part->forward + part->backward;
        const double away = apart ? fmax(0, 1 - device / part->held) : 1;
        const bool keeps = !apart || fmin(part->held, device) + alive * part->kept < device;
        double often[OFTEN_COUNT];
        all += once;
        most = fmax(most, once);
        compute = fmax(compute, once + (keeps ? 0 : part->forward));
        rows = fmax(rows, batches * part->link[OF_BATCH]);
        count_often(config, batches, 0, true, often);
        often[OF_FETCH_ANYWAY] = 0.5;
        out->least = fmax(out->least, busiest(part, often));
        count_often(config, batches, away, keeps && apart, often);
        out->likely = fmax(out->likely, busiest(part, often));
    }
    const double idle = pipe > 1 ? idle_seconds(config, all, stage_count) : 0;
    /* One micro-batch passes all coordinates; stages in runs leave the others idle as long as that takes. */
    const double waits = vertical ? turns * all / pipe : 0.95 * (batches * all / pipe + idle);
    out->least = fmax(out->least, fmax(fmax(batches * most, all), waits));
    out->likely = fmax(out->likely, turns * compute + idle + rows / 2);
}

enum ox_status ox_engine_sketch_times(const struct ox_engine_sketch *sketch, const struct ox_engine_config *config,
                                      struct ox_engine_times *out) {
    const struct ox_plan_input *const input = &sketch->plan->input;
    const uint32_t pipe = (uint32_t)ox_max_u64(config->pipe, 1);
    struct part parts[OX_PIPE_MAX] = {{0}};
    struct ox_plan_model model = input->model;
    uint32_t *const pipe_of = sketch->plan->pipe_of;
    OX_ASSERT(pipe <= OX_PIPE_MAX);
    *out = (struct ox_engine_times){0};
    model.micro_batches = 2 * pipe; /* enough to tell how well work is dealt */
    if (pipe > 1) {
        OX_TRY(ox_pipe_owners(&model, pipe, config->schedule, config->pipe_chunks, pipe_of));
    }
    for (uint32_t i = 0; i < sketch->list->task_count; i++) {
        count_task(&model, pipe_of, &sketch->list->tasks[i], &sketch->works[i], parts);
    }
    count_memory(sketch->plan, pipe_of, parts);
    add_up(config, parts, model.stage_count, out);
    return OX_OK;
}
