/* Layers that share their weights: no bit depends on where they are kept, on tiles, ranks or pipelines, and a unit that
 * stays from one layer to the next crosses a link once for all of them. */
#include "base/file.h"
#include "tests/kit/files.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GROUPS = 4 };

static struct harness_run run_of(const struct golden *golden) {
    struct harness_run run = golden_run(golden);
    run.sum_groups = GROUPS;
    run.compute_threads = 1;
    run.comm_timeout_ns = UINT64_C(200000000000); /* what waits in a circle is named before the program is ended */
    return run;
}

/* Ranks that divide micro-batches, weights or layers, each with memory for little. */
static void check_ranks(const struct golden *golden) {
    static const struct {
        const char *name;
        uint32_t ranks, pipe, copies;
        enum ox_sharding sharding;
        int place; /* -1: in memory alone, because copies of a model have no store */
    } meshes[] = {{"two ranks with slices", 2, 1, 1, OX_SHARDING_FULL, 0},
                  {"four ranks with whole weights", 4, 1, 1, OX_SHARDING_GRAD, 1},
                  {"two ranks with everything", 2, 1, 1, OX_SHARDING_NONE, -1},
                  {"two copies of two slices", 4, 1, 2, OX_SHARDING_FULL, -1},
                  {"a pipeline of two", 2, 2, 1, OX_SHARDING_FULL, 0},
                  {"a pipeline of two, twice", 4, 2, 1, OX_SHARDING_SHARED, 4}};
    struct harness_run run = run_of(golden);
    struct outcome expected, outcome;
    golden_train(golden, &run, &harness_in_memory, FEW_STEPS, &expected);
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        run = run_of(golden);
        run.ranks = meshes[i].ranks;
        run.pipe = meshes[i].pipe;
        run.copies = meshes[i].copies;
        run.sharding = meshes[i].sharding;
        for (int k = 0; k < (meshes[i].place < 0 ? 1 : 2); k++) {
            struct harness_place place = k == 0 ? harness_in_memory : harness_places[meshes[i].place];
            place.chaos_seed = k * 7;
            golden_train(golden, &run, &place, FEW_STEPS, &outcome);
            outcome_check_same(meshes[i].name, &expected, &outcome);
            outcome_close(&outcome);
        }
    }
    outcome_close(&expected);
}

/* Moves of a unit's planes over a lane, and of its gradient as a finished sum. */
static void count_moves(const struct ox_plan *plan, uint32_t unit_idx, uint32_t *planes, uint32_t *sums) {
    *planes = *sums = 0;
    for (uint32_t i = 0; i < plan->task_count; i++) {
        const struct ox_task *const task = &plan->tasks[i];
        const bool of_unit = task->kind == OX_TASK_MOVE && task->unit_idx == unit_idx;
        *planes += of_unit && task->move == OX_MOVE_WEIGHTS && task->lane == OX_LANE_H2D;
        *sums += of_unit && task->move == OX_MOVE_GRAD && task->lane == OX_LANE_D2H && task->last;
    }
}

/* With one tile a unit is uploaded once for all layers of a pass that follow each other, and one sum comes back. */
static void check_traffic(const struct golden *golden) {
    const struct harness_run run = run_of(golden);
    struct harness_place place = harness_places[0];
    struct harness harness;
    place.request.tiles = 1;
    harness_open(&run, &place, &harness);
    const struct ox_plan *const train = ox_engine_plan_of(harness.engine)->train;
    const struct ox_model *const model = harness.model;
    CHECK(model->own_count < model->stage_count);
    for (uint32_t i = 0; i < model->block_count; i++) {
        uint32_t planes = 0, sums = 0;
        count_moves(train, model->blocks[i], &planes, &sums);
        CHECK(planes == 2 && sums == 1);
    }
    harness_close(&harness);
}

static void check(const char *name) {
    struct golden golden;
    golden_open(name, &golden);
    golden.micro_batches = GROUPS;
    struct harness_run run = run_of(&golden);
    check_traffic(&golden);
    check_ranks(&golden);
    golden_check_places(&golden, &run, "shared layers", 2);
    run.grad_bf16 = true;
    run.dtype = OX_COMPUTE_BF16;
    golden_check_places(&golden, &run, "shared layers in bf16", 3);
    golden_close(&golden);
}

/* Groups of experts that are units of their own are shared too. */
static void check_mixture(void) {
    static const char *const names[] = {"experts with their blocks", "apart", "apart, on the drives"};
    struct golden golden;
    struct outcome expected, outcome;
    golden_open("mixtral", &golden);
    golden.micro_batches = GROUPS;
    struct harness_run run = run_of(&golden);
    run.model_folder = "tests/golden/mixtral/config.json"; /* fresh weights */
    run.share_layers = 2;
    for (int i = 0; i < 3; i++) {
        run.experts_per_unit = i == 0 ? 0 : 5; /* all, which fill whole groups of elements */
        golden_train(&golden, &run, i < 2 ? &harness_in_memory : &harness_places[0], FEW_STEPS,
                     i == 0 ? &expected : &outcome);
        CHECK(i == 0 || memcmp(outcome.losses, expected.losses, sizeof outcome.losses) == 0);
        CHECK(i == 0 || memcmp(outcome.norms, expected.norms, sizeof outcome.norms) == 0);
        printf("mixtral, %s: %.17g\n", names[i], i == 0 ? expected.losses[1] : outcome.losses[1]);
        if (i > 0) {
            outcome_close(&outcome);
        }
    }
    outcome_close(&expected);
    golden_close(&golden);
}

/* In every order of a pipeline's stages: a row of layers is on one coordinate, whatever the others have. */
static void check_orders(void) {
    static const struct {
        enum ox_pipe_schedule schedule;
        uint32_t chunks;
    } orders[] = {{OX_PIPE_VERTICAL, 1}, {OX_PIPE_GPIPE, 1}, {OX_PIPE_1F1B, 1}, {OX_PIPE_INTERLEAVED, 2}};
    struct golden golden;
    struct outcome expected, outcome;
    char *text = NULL;
    size_t bytes = 0;
    golden_open("olmo2", &golden); /* its table is not its head's */
    golden.micro_batches = GROUPS;
    REQUIRE_OK(ox_file_read("tests/golden/olmo2/config.json", 1 << 20, &text, &bytes));
    char *const layers = strstr(text, "\"num_hidden_layers\": ");
    CHECK(layers != NULL);
    layers[strlen("\"num_hidden_layers\": ")] = '6';
    struct harness_run run = run_of(&golden);
    run.model_folder = files_write_text("deep.json", text); /* fresh weights */
    run.share_layers = 2;
    golden_train(&golden, &run, &harness_in_memory, FEW_STEPS, &expected);
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        run.ranks = run.pipe = 2;
        run.schedule = orders[i].schedule;
        run.pipe_chunks = orders[i].chunks;
        golden_train(&golden, &run, &harness_in_memory, FEW_STEPS, &outcome);
        outcome_check_same(ox_pipe_schedule_name(orders[i].schedule), &expected, &outcome);
        outcome_close(&outcome);
    }
    outcome_close(&expected);
    golden_close(&golden);
    free(text);
}

int main(void) {
    check("shared_qwen2");
    check("shared_gemma3");
    check_mixture();
    check_orders();
    return test_end();
}
