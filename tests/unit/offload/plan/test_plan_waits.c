/* What keeps a GPU's compute from waiting for the optimizer: gradients that leave the device take turns between two
 * places, units that are updated in backward are spread over the model, and weights go ahead of their state. The step
 * is that of a model of 7 billion parameters on one H200 with 24 GiB of its memory. */
#include "base/bytes.h"
#include "tests/kit/plan/plan_choice.h"
#include "tests/kit/plan/step_case.h"
#include "tests/kit/test.h"

#include <string.h>

static const struct step_case step_of_7b = {
    "h200-4-drives", 4096, 32, 11008, 32000, 0, 4, 2048, 4, false, OX_MOMENTS_F32, 23, 128, 0};

static void open_plan(const struct ox_placement_request *request, uint64_t host_gib, struct step_run *run,
                      struct ox_engine_plan **plan) {
    step_case_open(&step_of_7b, run);
    run->config.budget.host_bytes = host_gib * OX_GIB;
    run->config.device = OX_DEVICE_CUDA;
    run->config.grad_bf16 = false; /* so that gradients leave from where they are summed */
    run->config.request = *request;
    REQUIRE_OK(ox_engine_plan_open(&run->config, plan));
}

static double seconds_of(const struct step_run *run, const struct ox_engine_plan *plan) {
    struct ox_sim_setup setup;
    ox_engine_sim_setup(&run->config, &plan->input, &setup);
    return plan_choice_seconds(plan->train, &setup);
}

/* How many backward tasks wait for a gradient that leaves: for the last one, and for the one before it. */
struct waits {
    uint32_t last, before;
};

static struct waits count_waits(const struct ox_plan *plan) {
    struct waits waits = {0, 0};
    uint32_t last = 0, before = 0; /* 1 + index of the copy; 0 = none */
    for (uint32_t i = 0; i < plan->task_count; i++) {
        const struct ox_task *const task = &plan->tasks[i];
        if (task->kind == OX_TASK_MOVE && task->move == OX_MOVE_GRAD && task->lane == OX_LANE_D2H) {
            before = last;
            last = i + 1;
        } else if (task->kind == OX_TASK_BACKWARD && task->deps[OX_LANE_D2H] != 0) {
            waits.last += task->deps[OX_LANE_D2H] == last;
            waits.before += task->deps[OX_LANE_D2H] == before;
        }
    }
    return waits;
}

/* Returns the seconds of the step. */
static double check_turns(bool alternate) {
    struct step_run run;
    struct ox_engine_plan *plan = NULL;
    struct ox_placement_request request = plan_choice_automatic;
    request.grads_alternate = alternate;
    request.device_units = 3;
    open_plan(&request, 128, &run, &plan);
    CHECK(plan->input.placement.grads_alternate == alternate);
    const struct waits waits = count_waits(plan->train);
    const uint32_t most = plan->table.unit_count / 2; /* the others find room elsewhere, or stay on the device */
    CHECK(alternate ? waits.last == 0 && waits.before > most : waits.last > most && waits.before < most);
    const double seconds = seconds_of(&run, plan);
    ox_engine_plan_close(&plan);
    ox_model_close(&run.model);
    return seconds;
}

/* Checks that of three units in a row at most two are updated in backward where they are spread, and all three at the
 * end where they are not; returns the seconds of the step. */
static double check_spread(bool spread) {
    enum { UNITS = 12, EVERY = 3 };
    struct step_run run;
    struct ox_engine_plan *plan = NULL;
    struct ox_placement_request request = plan_choice_automatic;
    request.speculative_spread = spread;
    request.speculative_units = UNITS;
    open_plan(&request, 128, &run, &plan);
    const struct ox_plan_model *const model = &plan->input.model;
    CHECK(plan->input.placement.speculative_spread == spread);
    uint32_t named = 0, most = 0;
    for (uint32_t i = 0; i < model->unit_count; i++) {
        uint32_t near = 0;
        for (uint32_t j = i; j < i + EVERY && j < model->unit_count; j++) {
            near += ox_plan_unit_rules(&plan->input, model->order[j]).speculative;
        }
        named += ox_plan_unit_rules(&plan->input, model->order[i]).speculative;
        most = near > most ? near : most;
    }
    CHECK(named > UNITS / 2 && named <= UNITS);
    CHECK(ox_plan_unit_rules(&plan->input, model->order[model->unit_count - 1]).speculative);
    CHECK(most == (spread ? 2 : EVERY));
    const double seconds = seconds_of(&run, plan);
    ox_engine_plan_close(&plan);
    ox_model_close(&run.model);
    return seconds;
}

/* Where memory is short, weights go ahead of their state: what is kept of their units is then hi alone. Every state
 * follows in backward, before its unit's gradient is copied over the one that it needs. Returns the seconds of the
 * step. */
static double check_ahead(bool ahead) {
    struct step_run run;
    struct ox_engine_plan *plan = NULL;
    struct ox_placement_request request = plan_choice_automatic;
    request.weights_ahead = ahead ? -1 : 0;
    open_plan(&request, 101, &run, &plan);
    const struct ox_plan *const train = plan->train;
    uint32_t ahead_count = 0, late_count = 0;
    for (uint32_t i = 0; i < train->buf_count && ahead; i++) {
        const struct ox_buf *const buf = &train->bufs[i];
        CHECK(buf->kind != OX_BUF_REPLACED ||
              buf->bytes == ox_align_up(2 * plan->table.shards[buf->unit_idx].elem_count, OX_IO_ALIGN_BYTES));
    }
    for (uint32_t i = 0; i < train->task_count; i++) {
        const struct ox_task *const task = &train->tasks[i];
        ahead_count += strcmp(ox_task_name(task), "adam-ahead") == 0;
        if (strcmp(ox_task_name(task), "adam-state") != 0) {
            continue;
        }
        late_count++;
        for (uint32_t k = 0; k < i; k++) {
            CHECK(train->tasks[k].kind != OX_TASK_MOVE || train->tasks[k].move != OX_MOVE_GRAD ||
                  train->tasks[k].unit_idx != task->unit_idx);
        }
    }
    CHECK(ahead ? ahead_count > 8 && late_count == ahead_count : ahead_count + late_count == 0);
    const double seconds = seconds_of(&run, plan);
    ox_engine_plan_close(&plan);
    ox_model_close(&run.model);
    return seconds;
}

int main(void) {
    const double waiting = check_turns(false), in_turns = check_turns(true);
    printf("  gradients in one place %.3f s, in turns %.3f s\n", waiting, in_turns);
    CHECK(in_turns < 0.95 * waiting);
    const double last = check_spread(false), spread = check_spread(true);
    printf("  the last units early %.3f s, spread %.3f s\n", last, spread);
    CHECK(spread < 0.97 * last);
    const double whole = check_ahead(false), ahead = check_ahead(true);
    printf("  all planes kept %.3f s, weights ahead %.3f s\n", whole, ahead);
    CHECK(ahead < 0.9 * whole);
    return test_end();
}
