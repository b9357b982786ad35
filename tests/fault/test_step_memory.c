/* A bit of the state in host memory changes between two steps: the next update, a checkpoint, and what persists the
 * state notice it and name its place, nothing of it is committed, and the steps from the last commit on have the bits
 * of an undisturbed run. The same for one of several ranks, and for the copies that compute reads: gathered weights
 * and that of the lower halves. Without verification nothing is noticed. */
#include "engine/step/engine_internal.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <string.h>

enum { STEPS = 5, BEFORE = 3 };

#define NVME   OX_TIER_NVME
#define HOST   OX_TIER_HOST
#define DEVICE OX_TIER_DEVICE
static const struct harness_place places[] = {
    {.name = "all on the host, every step committed", .store = true, .request = {2, 1, HOST, HOST, HOST, HOST, 0, 0}},
    {.name = "weights on the device", .store = true, .request = {1, 2, DEVICE, DEVICE, HOST, HOST, 0, 0}},
    {.name = "weights on the host, state on NVMe", .store = true, .request = {1, 1, HOST, HOST, NVME, HOST, 0, 0}},
    {.name = "weights on NVMe, state on the host", .store = true, .request = {1, 1, HOST, NVME, HOST, HOST, 0, 0}},
    {.name = "overlapped", .store = true, .request = {1, 2, HOST, HOST, HOST, NVME, 1, 0}},
    {.name = "overlapped, updates in backward", .store = true, .request = {1, 1, HOST, HOST, HOST, HOST, 1, 2}},
    {.name = "no store", .request = {1, 1, HOST, HOST, HOST, HOST, 0, 0}},
};
enum { OVERLAPPED = 4, IN_BACKWARD = 5, PLACE_COUNT = sizeof places / sizeof *places };

enum plane { HI, LO, M, V, PLANE_COUNT };
static const char *const plane_names[] = {"upper halves of the weights", "lower halves of the weights", "first moments",
                                          "second moments"};

static uint64_t committed_step(const struct harness *harness) {
    struct ox_store_info info;
    if (ox_engine_store(harness->engine) == NULL) {
        return 0;
    }
    ox_store_info(ox_engine_store(harness->engine), &info);
    return info.step;
}

static uint32_t last_block(const struct harness *harness) {
    return harness->model->head_idx - 1;
}

/* Flips a bit of an element in the second chunk of the last block; false where memory does not have the plane. */
static bool flip(const struct harness *harness, uint32_t rank_idx, enum plane plane, unsigned bit) {
    struct ox_rank *const rank = ox_engine_rank(harness->engine, rank_idx);
    const uint32_t unit_idx = last_block(harness);
    const uint64_t elems = rank->plan->table.shards[unit_idx].elem_count;
    const uint64_t elem = rank->plan->table.chunk_elems + 17;
    const struct ox_resident at = ox_rank_resident(rank, unit_idx);
    CHECK(elem < elems);
    if (plane == HI ? at.hi == NULL : at.state == NULL) {
        return false;
    }
    if (plane == HI) {
        at.hi[elem] ^= (uint16_t)(1u << bit % 16);
        return true;
    }
    const struct ox_state_planes state = ox_state_planes_at(rank->config.state, at.state, elems, elem);
    unsigned char *const byte = plane == LO ? state.lo : plane == M ? state.m : state.v;
    *byte ^= (unsigned char)(1u << bit % 8);
    return true;
}

static void check_text(const char *what, uint32_t rank_idx, uint32_t unit_idx, enum plane plane, uint64_t step) {
    char words[160];
    snprintf(words, sizeof words, "rank %u, unit %u, chunk 1: the %s are no longer those that step %llu left", rank_idx,
             unit_idx, plane_names[plane], (unsigned long long)step);
    if (strstr(ox_error_text(), words) == NULL) {
        printf("%s: \"%s\" is not in: %s\n", what, words, ox_error_text());
        test_failure_count++;
    }
}

/* The step that has left what the next update of the last block begins with. Where steps overlap, that update is
 * pending, unless it ran in backward, as it does if the norm is not clipped. */
static uint64_t base_step(const struct harness *harness) {
    const struct ox_rank *const rank = ox_engine_rank(harness->engine, 0);
    return rank->pending.exists && rank->due.pending[last_block(harness)] ? BEFORE - 1 : BEFORE;
}

/* Runs steps, flips a bit, and goes on from the last commit once the next step has noticed. */
static void check_flip(const struct golden *golden, const struct harness_run *run, struct harness_place place,
                       enum plane plane, const struct outcome *expected) {
    const uint32_t rank_idx = run->ranks > 1 ? (uint32_t)plane % run->ranks : 0;
    struct harness harness;
    struct outcome outcome;
    struct ox_step_result result;
    place.drives = 1;
    place.chunk_elems = 2048;
    place.optimizer_threads = 1 + (uint32_t)plane % 3;
    harness_open(run, &place, &harness);
    const bool stays = place.store && ox_plan_may_stay(&ox_engine_plan_of(harness.engine)->input);
    harness.persist_steps = stays ? 100 : 0;
    golden_steps(&harness, golden, 0, BEFORE, &outcome);
    const bool flipped = flip(&harness, rank_idx, plane, (unsigned)plane * 3 + 1);
    CHECK(flipped || place.request.weights_tier != HOST || place.request.state_tier != HOST);
    if (flipped) {
        const uint64_t base = base_step(&harness);
        const bool in_backward = place.request.speculative_units > 0 && expected->norms[0] < golden->max_grad_norm;
        CHECK(base == (place.request.overlap == 1 && !in_backward ? BEFORE - 1 : BEFORE));
        const struct ox_step_input input = golden_input(golden, BEFORE, golden_fill(harness.engine, golden, BEFORE));
        CHECK(ox_engine_step(harness.engine, &input, &result) == OX_E_MEMORY);
        check_text(place.name, rank_idx, last_block(&harness), plane, base);
        CHECK(committed_step(&harness) <= BEFORE);
    }
    if (!flipped || !place.store) {
        harness_close(&harness);
        outcome_close(&outcome);
        return;
    }
    REQUIRE_OK(ox_engine_roll_back(harness.engine));
    const uint64_t from = committed_step(&harness);
    CHECK(from == 0 || !stays);
    if (from == 0) {
        outcome_close(&outcome);
    }
    harness.persist_steps = 0;
    golden_steps(&harness, golden, from, STEPS, &outcome);
    golden_end(&harness, place.name, expected, &outcome);
}

static void check_places(const char *name, size_t first, size_t past) {
    static unsigned asked; /* `make test` takes every other plane */
    struct golden golden;
    struct outcome expected;
    golden_open(name, &golden);
    const struct harness_run run = golden_run(&golden);
    golden_train(&golden, &run, &harness_in_memory, STEPS, &expected);
    for (size_t i = first; i < past; i++) {
        for (int plane = 0; plane < PLANE_COUNT; plane++) {
            if (test_takes(asked++, 2)) {
                check_flip(&golden, &run, places[i], (enum plane)plane, &expected);
            }
        }
    }
    outcome_close(&expected);
    golden_close(&golden);
}

/* Where weights went ahead of their state, a bit of it or of what was saved is noticed when the state follows, one of
 * the new weights when they are updated again, later in the same step. */
static void check_ahead(const struct golden *golden, bool saved, enum plane plane) {
    const struct harness_place place = {
        .name = "weights ahead of their state", .chunk_elems = 2048, .optimizer_threads = 2,
        .request = {1, 1, HOST, HOST, HOST, HOST, 1, 99, .saves_replaced = 1, .weights_ahead = 1}};
    struct harness harness;
    struct outcome outcome;
    struct ox_step_result result;
    struct harness_run run = golden_run(golden);
    run.dtype = OX_COMPUTE_BF16;
    harness_open(&run, &place, &harness);
    golden_steps(&harness, golden, 0, BEFORE, &outcome);
    struct ox_rank *const rank = ox_engine_rank(harness.engine, 0);
    const struct ox_plan *const plan = rank->plan->train;
    const uint32_t unit_idx = last_block(&harness);
    CHECK(rank->due.pending[unit_idx] == OX_DUE_STATE);
    if (saved) {
        uint16_t *const hi = (uint16_t *)ox_tiers_resident(&rank->tiers, plan, ox_plan_replaced(plan, unit_idx)).ptr;
        hi[rank->plan->table.chunk_elems + 17] ^= 4;
    } else {
        CHECK(flip(&harness, 0, plane, 2));
    }
    const struct ox_step_input input = golden_input(golden, BEFORE, golden_fill(harness.engine, golden, BEFORE));
    CHECK(ox_engine_step(harness.engine, &input, &result) == OX_E_MEMORY);
    check_text(place.name, 0, unit_idx, plane, plane == HI && !saved ? BEFORE : BEFORE - 1);
    harness_close(&harness);
    outcome_close(&outcome);
}

static void check_all_ahead(void) {
    struct golden golden;
    golden_open("llama_untied_odd", &golden); /* whose norm is not clipped */
    for (int plane = 0; plane < PLANE_COUNT; plane++) {
        check_ahead(&golden, false, (enum plane)plane);
    }
    check_ahead(&golden, true, HI);
    golden_close(&golden);
}

static void check_ranks(void) {
    struct golden golden;
    struct outcome expected;
    golden_open("llama_tied_gqa", &golden);
    struct harness_run run = golden_run(&golden);
    run.sum_groups = 2;
    golden_train(&golden, &run, &harness_in_memory, STEPS, &expected);
    run.ranks = 2;
    run.sharding = OX_SHARDING_FULL;
    for (int plane = 0; plane < PLANE_COUNT; plane++) {
        check_flip(&golden, &run, places[plane % 2 == 0 ? 0 : OVERLAPPED], (enum plane)plane, &expected);
    }
    outcome_close(&expected);
    golden_close(&golden);
}

/* A checkpoint reads what has changed, and the state is to be persisted. */
static void check_reads(const struct golden *golden, const struct harness_run *run) {
    struct harness_place place = places[0];
    struct harness harness;
    struct outcome outcome;
    struct ox_chunk_view view;
    place.drives = 1;
    place.chunk_elems = 2048;
    harness_open(run, &place, &harness);
    harness.persist_steps = 100;
    golden_steps(&harness, golden, 0, BEFORE, &outcome);
    CHECK(flip(&harness, 0, M, 3));
    CHECK(ox_engine_chunk_get(harness.engine, last_block(&harness), 1, &view) == OX_E_MEMORY);
    check_text("a checkpoint", 0, last_block(&harness), M, BEFORE);
    REQUIRE_OK(ox_engine_chunk_get(harness.engine, last_block(&harness), 0, &view));
    CHECK(ox_engine_persist(harness.engine, NULL, 0) == OX_E_MEMORY);
    check_text("to be persisted", 0, last_block(&harness), M, BEFORE);
    CHECK(committed_step(&harness) == 0);
    CHECK(flip(&harness, 0, M, 3)); /* back */
    REQUIRE_OK(ox_engine_persist(harness.engine, NULL, 0));
    CHECK(committed_step(&harness) == BEFORE);
    harness_close(&harness);
    outcome_close(&outcome);
}

/* What a checkpoint is shown of the chunk that changes, and of others. */
struct shown {
    uint32_t unit_idx, changed_count, other_count;
};

static void show(void *context, uint32_t unit_idx, uint32_t chunk_idx, const struct ox_chunk_view *view) {
    struct shown *const shown = context;
    (void)view;
    if (unit_idx == shown->unit_idx && chunk_idx == 1) {
        shown->changed_count++;
    } else {
        shown->other_count++;
    }
}

/* A checkpoint that the next update fills does not get what has changed. */
static void check_tee(const struct golden *golden, const struct harness_run *run) {
    for (int changes = 0; changes <= 1; changes++) {
        struct harness_place place = places[0];
        struct harness harness;
        struct outcome outcome;
        struct ox_step_result result;
        place.drives = 1;
        place.chunk_elems = 2048;
        harness_open(run, &place, &harness);
        struct shown shown = {.unit_idx = last_block(&harness)};
        golden_steps(&harness, golden, 0, BEFORE, &outcome);
        ox_engine_tee(harness.engine, &(struct ox_tee){.chunk = show, .context = &shown});
        CHECK(changes == 0 || flip(&harness, 0, HI, 9));
        const struct ox_step_input input = golden_input(golden, BEFORE, golden_fill(harness.engine, golden, BEFORE));
        CHECK(ox_engine_step(harness.engine, &input, &result) == (changes == 0 ? OX_OK : OX_E_MEMORY));
        CHECK(shown.other_count > 0 && shown.changed_count == 1u - (unsigned)changes);
        harness_close(&harness);
        outcome_close(&outcome);
    }
}

/* What is found is found by the sums: without them the step goes on. */
static void check_without(const struct golden *golden, struct harness_run run, const struct outcome *expected) {
    struct harness_place place = places[0];
    struct harness harness;
    struct outcome outcome;
    place.drives = 1;
    place.chunk_elems = 2048;
    run.trusts_memory = true;
    harness_open(&run, &place, &harness);
    golden_steps(&harness, golden, 0, BEFORE, &outcome);
    CHECK(flip(&harness, 0, HI, 6));
    golden_steps(&harness, golden, BEFORE, STEPS, &outcome);
    CHECK(committed_step(&harness) == STEPS);
    CHECK(outcome.losses[BEFORE - 1] == expected->losses[BEFORE - 1]);
    CHECK(outcome.losses[BEFORE] != expected->losses[BEFORE]);
    harness_close(&harness);
    outcome_close(&outcome);
}

/* ---- copies ------------------------------------------------------------------------------------------------ */

/* Goes on from the last commit to the bits of an undisturbed run. */
static void go_on(const struct golden *golden, struct harness *harness, const char *name,
                  const struct outcome *expected, struct outcome *outcome) {
    REQUIRE_OK(ox_engine_roll_back(harness->engine));
    golden_steps(harness, golden, committed_step(harness), STEPS, outcome);
    golden_end(harness, name, expected, outcome);
}

static void check_words(const char *name, const char *words) {
    if (strstr(ox_error_text(), words) == NULL) {
        printf("%s: \"%s\" is not in: %s\n", name, words, ox_error_text());
        test_failure_count++;
    }
}

/* The copy of lo beside hi, which fp32 compute reads where the state lives elsewhere. */
static void check_copy(const struct golden *golden, const struct harness_run *run, const struct outcome *expected) {
    struct harness_place place = places[2];
    struct harness harness;
    struct outcome outcome;
    struct ox_step_result result;
    place.drives = 1;
    place.chunk_elems = 2048;
    harness_open(run, &place, &harness);
    golden_steps(&harness, golden, 0, BEFORE, &outcome);
    struct ox_rank *const rank = ox_engine_rank(harness.engine, 0);
    const struct ox_resident at = ox_rank_resident(rank, last_block(&harness));
    CHECK(at.weights_lo != NULL && at.state == NULL);
    at.weights_lo[rank->plan->table.chunk_elems + 17] ^= 4;
    const struct ox_step_input input = golden_input(golden, BEFORE, golden_fill(harness.engine, golden, BEFORE));
    CHECK(ox_engine_step(harness.engine, &input, &result) == OX_E_MEMORY);
    check_words(place.name, "chunk 1: the copy of the lower halves of the weights is no longer what step 3 left");
    CHECK(committed_step(&harness) == BEFORE);
    go_on(golden, &harness, place.name, expected, &outcome);
}

/* Flips a bit of what the nth gather of weights has brought, as soon as it is there. */
struct late_flip {
    struct ox_rank *rank;
    uint32_t nth, jobs; /* jobs of the lane so far, one for each of its tasks */
    bool done;
};

static bool is_gather(const struct ox_task *task) {
    return task->lane == OX_LANE_LINK && task->kind == OX_TASK_MOVE && task->move == OX_MOVE_WEIGHTS;
}

static void flip_late(void *context, const struct ox_job_times *times) {
    struct late_flip *const late = context;
    const struct ox_plan *const plan = late->rank->plan->train;
    uint32_t jobs = 0, gathers = 0;
    if (times->wait || late->done) {
        return;
    }
    for (uint32_t i = 0; i < plan->task_count && jobs <= late->jobs; i++) {
        const struct ox_task *const task = &plan->tasks[i];
        const bool now = task->lane == OX_LANE_LINK && jobs == late->jobs;
        if (now && is_gather(task) && gathers == late->nth) {
            const struct ox_view whole = ox_tiers_view(&late->rank->tiers, plan, task, OX_USE_TARGET);
            ((unsigned char *)whole.ptr)[whole.bytes / 3] ^= 2;
            late->done = true;
        }
        gathers += is_gather(task);
        jobs += task->lane == OX_LANE_LINK;
    }
    late->jobs++;
}

static uint32_t gather_count(const struct harness *harness) {
    const struct ox_plan *const plan = ox_engine_plan_of(harness->engine)->train;
    uint32_t count = 0;
    for (uint32_t i = 0; i < plan->task_count; i++) {
        count += is_gather(&plan->tasks[i]);
    }
    return count;
}

/* `third`: a gather of the first third of the step's, and so on. */
static void check_gathered(const struct golden *golden, const struct harness_run *run, struct harness_place place,
                           uint32_t third, const struct outcome *expected) {
    struct harness harness;
    struct outcome outcome;
    struct ox_step_result result;
    place.drives = 1;
    place.chunk_elems = 2048;
    harness_open(run, &place, &harness);
    golden_steps(&harness, golden, 0, BEFORE, &outcome);
    struct ox_rank *const rank = ox_engine_rank(harness.engine, third % 2);
    struct late_flip late = {.rank = rank, .nth = gather_count(&harness) * third / 3};
    ox_lane_observe(rank->lanes[OX_LANE_LINK], flip_late, &late);
    const struct ox_step_input input = golden_input(golden, BEFORE, golden_fill(harness.engine, golden, BEFORE));
    const enum ox_status status = ox_engine_step(harness.engine, &input, &result);
    ox_lane_observe(rank->lanes[OX_LANE_LINK], NULL, NULL);
    CHECK(late.done && status == OX_E_MEMORY);
    check_words(place.name, "the weights that it gathered are no longer what came");
    CHECK(committed_step(&harness) <= BEFORE);
    go_on(golden, &harness, place.name, expected, &outcome);
}

static void check_all_gathered(void) {
    static const enum ox_sharding shardings[] = {OX_SHARDING_FULL, OX_SHARDING_STEP, OX_SHARDING_GRAD,
                                                 OX_SHARDING_STATE, OX_SHARDING_SHARED};
    static const int at[] = {0, OVERLAPPED, IN_BACKWARD};
    struct golden golden;
    struct outcome expected;
    golden_open("llama_tied_gqa", &golden);
    for (uint32_t fp32 = 0; fp32 <= 1; fp32++) {
        struct harness_run run = golden_run(&golden);
        run.dtype = fp32 == 1 ? OX_COMPUTE_FP32 : OX_COMPUTE_BF16;
        run.sum_groups = 2;
        golden_train(&golden, &run, &harness_in_memory, STEPS, &expected);
        run.ranks = 2;
        for (uint32_t i = 0; i < sizeof shardings / sizeof *shardings; i++) {
            run.sharding = shardings[i];
            check_gathered(&golden, &run, places[at[(i + fp32) % 3]], (i + fp32) % 3, &expected);
        }
        outcome_close(&expected);
    }
    golden_close(&golden);
}

int main(void) {
    struct golden golden;
    struct outcome expected;
    golden_open("llama_tied_gqa", &golden);
    const struct harness_run run = golden_run(&golden);
    golden_train(&golden, &run, &harness_in_memory, STEPS, &expected);
    check_reads(&golden, &run);
    check_tee(&golden, &run);
    check_without(&golden, run, &expected);
    check_copy(&golden, &run, &expected);
    outcome_close(&expected);
    golden_close(&golden);
    check_places("llama_tied_gqa", 0, PLACE_COUNT);
    check_places("llama_untied_odd", IN_BACKWARD, IN_BACKWARD + 1); /* whose norm is not clipped */
    check_all_ahead();
    check_ranks();
    check_all_gathered();
    return test_end();
}
