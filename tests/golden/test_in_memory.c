/* Steps that stay uncommitted give the same bits, whichever of them are committed and whatever comes between, and move
 * exactly the predicted bytes: what lives in memory stays there, what lives on drives goes to the slots beside the last
 * commit. Uncommitted steps are lost with the process, or when a drive fails, and are repeated
 * from the last commit. */
#include "tests/kit/store/io_sim.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 6 };

#define AUTO   OX_TIER_COUNT
#define NVME   OX_TIER_NVME
#define HOST   OX_TIER_HOST
#define DEVICE OX_TIER_DEVICE
static const struct harness_place places[] = {
    {.name = "all on the host, gradients on NVMe", .request = {2, 1, NVME, HOST, HOST, NVME, 0, 0}},
    {.name = "weights on the device", .request = {1, 2, DEVICE, DEVICE, HOST, HOST, 0, 0}},
    {.name = "overlapped, gradients on NVMe", .request = {1, 2, HOST, HOST, HOST, NVME, 1, 0}},
    {.name = "overlapped, weights on the device", .request = {2, 2, DEVICE, DEVICE, HOST, HOST, 1, 0}},
    {.name = "overlapped in one memory", .unified = true, .request = {1, 1, HOST, HOST, HOST, NVME, 1, 0}},
    {.name = "planner's choice", .unified = true, .request = {0, -1, AUTO, AUTO, AUTO, AUTO, -1, -1, -1, true}},
    {.name = "state on NVMe", .request = {2, 1, NVME, HOST, NVME, HOST, 0, 0}},
    {.name = "state on NVMe, overlapped", .request = {2, 2, HOST, HOST, NVME, NVME, 1, 0}},
    {.name = "all on NVMe", .unified = true, .request = {1, 1, NVME, NVME, NVME, NVME, 0, 0}},
    {.name = "all on NVMe, overlapped", .request = {2, 1, NVME, NVME, NVME, NVME, 1, 0}},
    {.name = "weights on NVMe, overlapped", .request = {1, 2, HOST, NVME, HOST, HOST, 1, 0}},
    {.name = "weights on the device, state on NVMe, overlapped", .request = {2, 2, HOST, DEVICE, NVME, HOST, 1, 0}},
    {.name = "speculative, state on NVMe", .generations = 3, .request = {2, 2, HOST, HOST, NVME, NVME, 1, 2}},
    {.name = "speculative, all on NVMe", .generations = 3, .request = {1, 2, NVME, NVME, NVME, HOST, 1, 99}},
    {.name = "speculative, weights on the device", .generations = 3,
     .request = {1, 2, DEVICE, DEVICE, NVME, HOST, 1, 1}},
    {.name = "speculative, all on the host", .generations = 3, .request = {1, 2, HOST, HOST, HOST, HOST, 1, 1}},
    {.name = "all on the device", .request = {1, 2, DEVICE, DEVICE, DEVICE, DEVICE, 0, 0}},
    {.name = "all on the device, overlapped", .request = {2, 1, HOST, AUTO, DEVICE, AUTO, 1, 0}},
    {.name = "two units on the device, the others on NVMe",
     .request = {2, 1, NVME, NVME, NVME, NVME, 0, 0, .device_units = 2}},
    {.name = "the first two on the device, the others in memory and on NVMe, overlapped",
     .request = {1, 2, HOST, HOST, NVME, NVME, 1, 0, .device_units = 2, .device_first = true}},
    {.name = "speculative, one unit on the device", .generations = 3,
     .request = {1, 2, HOST, NVME, HOST, HOST, 1, 99, .device_units = 1}},
    {.name = "a part on NVMe", .tight = true, .request = {0, -1, AUTO, AUTO, AUTO, AUTO, 0, 0, -1, true}},
    {.name = "a part on NVMe, overlapped", .tight = true, .unified = true,
     .request = {0, -1, AUTO, AUTO, AUTO, AUTO, 1, 0, -1, true}},
};
enum { PLACE_COUNT = sizeof places / sizeof *places };

static struct harness_place place_of(size_t idx) {
    struct harness_place place = places[idx];
    place.store = true;
    place.drives = 1 + (uint32_t)idx % 2;
    place.chunk_elems = 4096;
    place.optimizer_threads = 1 + (uint32_t)idx % 2;
    place.uring = idx % 2 == 0;
    return place;
}

static uint64_t committed_step(const struct harness *harness) {
    struct ox_store_info info;
    ox_store_info(ox_engine_store(harness->engine), &info);
    return info.step;
}

/* Whether the next one is taken: `make test` takes a third. */
static bool takes(void) {
    static unsigned asked;
    return test_takes(asked++, 3);
}

static void check_places(const struct golden *golden, const struct harness_run *run, const struct outcome *expected) {
    static const uint32_t every[] = {3, 100, 1};
    for (size_t i = 0; i < PLACE_COUNT; i++) {
        for (size_t k = 0; k < 2; k++) { /* interval 3 at all places, 100 and 1 by turns */
            const uint32_t persist_steps = every[k + k * (i % 2)];
            if (!takes()) {
                continue;
            }
            struct harness_place place = place_of(i);
            struct harness harness;
            struct outcome outcome;
            char name[96];
            place.chaos_seed = persist_steps == 3 && i % 2 == 0 ? i + 1 : 0;
            harness_open(run, &place, &harness);
            CHECK(ox_plan_may_stay(&ox_engine_plan_of(harness.engine)->input));
            harness.persist_steps = persist_steps;
            golden_steps(&harness, golden, 0, STEPS, &outcome);
            outcome_read_weights(&harness, &outcome);
            snprintf(name, sizeof name, "%s, every %u", place.name, persist_steps);
            outcome_check_same(name, expected, &outcome);
            CHECK(committed_step(&harness) == (persist_steps > STEPS ? 0 : STEPS));
            harness_close(&harness);
            outcome_close(&outcome);
        }
    }
}

/* A stop, an update finished alone, an evaluation; the end of the process before a commit, and after a
 * requested one. */
static void check_between(const struct golden *golden, const struct harness_run *run, const struct outcome *expected) {
    for (size_t i = 1; i < PLACE_COUNT; i += i == 1 ? 1 : 2) {
        if (!takes()) {
            continue;
        }
        const struct harness_place place = place_of(i);
        const volatile sig_atomic_t stop = 1;
        struct harness harness;
        struct outcome outcome;
        struct ox_step_result result;
        struct ox_eval_result eval;
        harness_open(run, &place, &harness);
        harness.persist_steps = 4;
        golden_steps(&harness, golden, 0, 2, &outcome);
        struct ox_step_input input = golden_input(golden, 2, golden_fill(harness.engine, golden, 2));
        input.stays = true;
        input.stop = &stop;
        CHECK(ox_engine_step(harness.engine, &input, &result) == OX_E_ABORTED);
        golden_steps(&harness, golden, 2, 3, &outcome);
        CHECK(ox_engine_eval(harness.engine, &input, &eval) == OX_E_ABORTED);
        CHECK(ox_engine_step(harness.engine, &input, &result) == OX_E_ABORTED);
        input.stop = NULL;
        REQUIRE_OK(ox_engine_eval(harness.engine, &input, &eval));
        CHECK(memcmp(eval.traffic, eval.planned, sizeof eval.traffic) == 0);
        CHECK(committed_step(&harness) == 0);
        REQUIRE_OK(ox_engine_persist(harness.engine, "three", 5));
        CHECK(committed_step(&harness) == 3);
        golden_steps(&harness, golden, 3, 5, &outcome); /* the first of them commits */
        REQUIRE_OK(ox_engine_finish_update(harness.engine));
        harness_reopen(run, &place, &harness);
        CHECK(committed_step(&harness) == 4);
        golden_steps(&harness, golden, 4, 5, &outcome);
        REQUIRE_OK(ox_engine_persist(harness.engine, NULL, 0));
        harness_reopen(run, &place, &harness);
        CHECK(committed_step(&harness) == 5);
        golden_steps(&harness, golden, 5, STEPS, &outcome);
        golden_end(&harness, place.name, expected, &outcome);
    }
}

/* A drive fails once in the fourth step, which stays uncommitted or is committed, after two steps that stayed so. */
static void check_faults(const struct golden *golden, const struct harness_run *run, const struct outcome *expected,
                         enum ox_fault_point point) {
    struct ox_io_backend *fault = NULL;
    REQUIRE_OK(ox_io_fault_open(ox_io_threads(), &fault));
    for (size_t i = 0; i < PLACE_COUNT; i++) { /* one or two of three for each kind of call */
        if (i % 3 == (size_t)point % 3 || (i > 5 && i % 3 == (size_t)(point + 1) % 3) || !takes()) {
            continue;
        }
        struct harness_place place = place_of(i);
        struct harness harness;
        struct outcome outcome;
        struct ox_step_result result;
        place.io = fault;
        harness_open(run, &place, &harness);
        harness.persist_steps = 100;
        golden_steps(&harness, golden, 0, 3, &outcome);
        struct ox_step_input input = golden_input(golden, 3, golden_fill(harness.engine, golden, 3));
        ox_io_fault_set(fault, &(struct ox_fault_rule){OX_FAULT_EIO, point, 0, true});
        const enum ox_status failed = ox_engine_step(harness.engine, &input, &result);
        const enum ox_status persisted = failed == OX_OK ? ox_engine_persist(harness.engine, NULL, 0) : OX_OK;
        ox_io_fault_set(fault, NULL);
        if (failed == OX_OK) { /* the step made no such call; its commit may */
            CHECK(persisted == OX_E_IO || point == OX_FAULT_ON_READ);
            outcome.losses[3] = result.loss;
            outcome.norms[3] = result.grad_norm;
        } else {
            CHECK(failed == OX_E_IO);
            CHECK(ox_engine_step(harness.engine, &input, &result) == OX_E_IO); /* until the loss is accepted */
        }
        REQUIRE_OK(ox_engine_roll_back(harness.engine));
        const uint64_t from = committed_step(&harness);
        CHECK(from == 0 || persisted == OX_OK);
        if (from == 0) {
            outcome_close(&outcome);
        }
        golden_steps(&harness, golden, from, STEPS, &outcome);
        golden_end(&harness, place.name, expected, &outcome);
    }
    ox_io_fault_close(&fault);
}

/* ---- what a checkpoint is shown ------------------------------------------------------------------------- */

struct shown {
    uint32_t count;
    double sum;
};

static void add(struct shown *shown, const struct ox_chunk_view *view) {
    ox_chunk_values_get(view, OX_PLANE_MASTER);
    for (uint64_t i = 0; i < view->count; i++) {
        shown->sum += view->values[i] * (double)(view->first + i + shown->count % 7);
    }
    shown->count++;
}

static void show(void *context, uint32_t unit_idx, uint32_t chunk_idx, const struct ox_chunk_view *view) {
    (void)unit_idx;
    (void)chunk_idx;
    add(context, view);
}

/* The tee of a step that stays uncommitted sees the planes before it, chunk by chunk as the step changes them. */
static void check_tee(const struct golden *golden, const struct harness_run *run) {
    for (size_t i = 0; i < PLACE_COUNT; i += 3) {
        const struct harness_place place = place_of(i);
        struct harness harness;
        struct outcome outcome;
        struct shown before = {0}, shown = {0};
        harness_open(run, &place, &harness);
        const bool between = ox_plan_commits_between(&ox_engine_plan_of(harness.engine)->input);
        harness.persist_steps = 100;
        golden_steps(&harness, golden, 0, 2, &outcome);
        REQUIRE_OK(ox_engine_finish_update(harness.engine));
        for (uint32_t unit_idx = 0; unit_idx < harness.model->unit_count; unit_idx++) {
            for (uint32_t k = 0; k < ox_engine_chunk_count(harness.engine, unit_idx); k++) {
                struct ox_chunk_view view;
                REQUIRE_OK(ox_engine_chunk_get(harness.engine, unit_idx, k, &view));
                add(&before, &view);
            }
        }
        ox_engine_tee(harness.engine, &(struct ox_tee){.chunk = show, .context = &shown});
        golden_steps(&harness, golden, 2, 3, &outcome);
        REQUIRE_OK(ox_engine_finish_update(harness.engine));
        /* No update passes on what lives on the device. */
        CHECK(between ? shown.count < before.count : shown.count == before.count && shown.sum == before.sum);
        harness_close(&harness);
        outcome_close(&outcome);
    }
}

int main(void) {
    struct golden golden;
    struct outcome expected;
    golden_open("llama_tied_gqa", &golden);
    struct harness_run run = golden_run(&golden);
    golden_train(&golden, &run, &harness_in_memory, STEPS, &expected);
    check_places(&golden, &run, &expected);
    check_between(&golden, &run, &expected);
    check_faults(&golden, &run, &expected, OX_FAULT_ON_READ);
    check_faults(&golden, &run, &expected, OX_FAULT_ON_WRITE);
    check_faults(&golden, &run, &expected, OX_FAULT_ON_FLUSH);
    check_tee(&golden, &run);
    outcome_close(&expected);
    golden_close(&golden);
    return test_end();
}
