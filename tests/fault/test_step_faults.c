/* A drive that fails at any call of a step: the step fails with a text and changes nothing, and the engine continues
 * from the last commit to the same bits, whatever it holds in memory. Where steps overlap, the update of the previous
 * step may be lost as well; likewise before an evaluation, which performs that update first. Steps that stay
 * uncommitted are all lost; a commit of theirs that fails loses none of them. */
#include "tests/kit/store/io_sim.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 2, KEPT = 2, HITS_PER_RULE = 8, HITS_PER_PLACE = 3 };

struct rig {
    struct golden golden;
    struct harness_run run;
    struct harness_place place;
    struct ox_io_backend *fault;
    struct outcome expected, expected_longer; /* after STEPS, and after one step more than KEPT */
    uint32_t hits_per_rule;
    bool reopens; /* the store is opened again after the fault */
    bool evaluates; /* the fault occurs in an evaluation */
    uint32_t lost_count; /* how often the step before was lost as well */
};

static enum ox_status second_step(struct rig *rig, struct harness *harness) {
    const uint64_t counted = golden_fill(harness->engine, &rig->golden, 1);
    const struct ox_step_input input = golden_input(&rig->golden, 1, counted);
    struct ox_step_result result;
    struct ox_eval_result eval;
    return rig->evaluates ? ox_engine_eval(harness->engine, &input, &eval)
                          : ox_engine_step(harness->engine, &input, &result);
}

/* Counts the calls of one kind that a step makes. */
static uint64_t count_calls(struct rig *rig, enum ox_fault_point point) {
    struct harness harness;
    struct outcome outcome;
    uint64_t calls = 0, hits = 0;
    harness_open(&rig->run, &rig->place, &harness);
    golden_steps(&harness, &rig->golden, 0, 1, &outcome);
    ox_io_fault_set(rig->fault, NULL);
    REQUIRE_OK(second_step(rig, &harness));
    ox_io_fault_counts(rig->fault, point, &calls, &hits);
    harness_close(&harness);
    outcome_close(&outcome);
    return calls;
}

static void check_rule(struct rig *rig, struct ox_fault_rule rule) {
    struct harness harness;
    struct outcome outcome;
    uint64_t calls = 0, hits = 0;
    harness_open(&rig->run, &rig->place, &harness);
    golden_steps(&harness, &rig->golden, 0, 1, &outcome);
    ox_io_fault_set(rig->fault, &rule);
    const enum ox_status status = second_step(rig, &harness);
    CHECK(status == OX_E_IO && strlen(ox_error_text()) > 20);
    ox_io_fault_counts(rig->fault, rule.point, &calls, &hits);
    CHECK(hits > 0);
    ox_io_fault_set(rig->fault, NULL);
    if (rig->reopens) {
        harness_reopen(&rig->run, &rig->place, &harness);
    }
    struct ox_store_info info;
    ox_store_info(ox_engine_store(harness.engine), &info);
    CHECK(info.step == 1 || (info.step == 0 && rig->place.request.overlap > 0));
    rig->lost_count += info.step == 0;
    if (info.step == 0) {
        if (!rig->reopens) { /* every call fails until the loss is accepted */
            CHECK(second_step(rig, &harness) == OX_E_IO && ox_engine_finish_update(harness.engine) == OX_E_IO);
            REQUIRE_OK(ox_engine_roll_back(harness.engine));
        }
        outcome_close(&outcome);
    }
    golden_steps(&harness, &rig->golden, info.step, STEPS, &outcome);
    char name[64];
    snprintf(name, sizeof name, "point %d, kind %d, call %llu", (int)rule.point, (int)rule.kind,
             (unsigned long long)rule.first_idx);
    golden_end(&harness, name, &rig->expected, &outcome);
}

static void check_point(struct rig *rig, enum ox_fault_point point, enum ox_fault_kind kind,
                        bool persistent) {
    const uint64_t calls = count_calls(rig, point);
    const uint64_t stride = calls / rig->hits_per_rule + 1;
    printf("point %d: %llu calls\n", (int)point, (unsigned long long)calls);
    CHECK(calls > 0);
    for (uint64_t i = 0; i < calls; i += stride) {
        check_rule(rig, (struct ox_fault_rule){kind, point, i, persistent});
    }
}

/* The step before is lost unless the fault came after its commit, as when a table is read once more for the head. */
static void check_evaluation(struct rig *rig) {
    printf("with an evaluation\n");
    rig->evaluates = true;
    rig->lost_count = 0;
    check_point(rig, OX_FAULT_ON_WRITE, OX_FAULT_EIO, true);
    CHECK(rig->lost_count > 0);
    rig->reopens = false;
    check_point(rig, OX_FAULT_ON_FLUSH, OX_FAULT_EIO, false);
    if (rig->place.request.state_tier == OX_TIER_NVME) {
        check_point(rig, OX_FAULT_ON_READ, OX_FAULT_EIO, false);
    }
    rig->evaluates = false;
}

/* ---- steps that stay uncommitted ------------------------------------------------------------------------ */

static uint64_t kept_count; /* faults in steps that stay uncommitted, and in commits of these */

/* After KEPT steps, takes one more, which stays uncommitted too, or commits. */
static enum ox_status after_kept(struct rig *rig, struct harness *harness, bool commits) {
    if (commits) {
        return ox_engine_persist(harness->engine, NULL, 0);
    }
    struct ox_step_input input = golden_input(&rig->golden, KEPT, golden_fill(harness->engine, &rig->golden, KEPT));
    struct ox_step_result result;
    input.stays = true;
    return ox_engine_step(harness->engine, &input, &result);
}

static void begin_kept(struct rig *rig, struct harness *harness, struct outcome *outcome) {
    harness_open(&rig->run, &rig->place, harness);
    harness->persist_steps = 100;
    golden_steps(harness, &rig->golden, 0, KEPT, outcome);
    REQUIRE_OK(ox_engine_finish_update(harness->engine));
}

static uint64_t committed_step(const struct harness *harness) {
    struct ox_store_info info;
    ox_store_info(ox_engine_store(harness->engine), &info);
    return info.step;
}

static void check_kept_rule(struct rig *rig, struct ox_fault_rule rule, bool commits) {
    struct harness harness;
    struct outcome outcome;
    char name[64];
    begin_kept(rig, &harness, &outcome);
    ox_io_fault_set(rig->fault, &rule);
    CHECK(after_kept(rig, &harness, commits) == OX_E_IO && strlen(ox_error_text()) > 20);
    ox_io_fault_set(rig->fault, NULL);
    CHECK(committed_step(&harness) == 0);
    if (commits) {
        REQUIRE_OK(ox_engine_persist(harness.engine, NULL, 0));
        CHECK(committed_step(&harness) == KEPT);
    } else {
        CHECK(ox_engine_finish_update(harness.engine) == OX_E_IO);
        REQUIRE_OK(ox_engine_roll_back(harness.engine));
        outcome_close(&outcome);
    }
    golden_steps(&harness, &rig->golden, committed_step(&harness), KEPT + 1, &outcome);
    snprintf(name, sizeof name, "%s, point %d, call %llu", commits ? "a commit of kept steps" : "a kept step",
             (int)rule.point, (unsigned long long)rule.first_idx);
    golden_end(&harness, name, &rig->expected_longer, &outcome);
}

static void check_kept(struct rig *rig, bool commits) {
    static const enum ox_fault_point points[] = {OX_FAULT_ON_READ, OX_FAULT_ON_WRITE, OX_FAULT_ON_FLUSH};
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        struct harness harness;
        struct outcome outcome;
        uint64_t calls = 0, hits = 0;
        begin_kept(rig, &harness, &outcome);
        ox_io_fault_set(rig->fault, NULL);
        REQUIRE_OK(after_kept(rig, &harness, commits));
        ox_io_fault_counts(rig->fault, points[i], &calls, &hits);
        CHECK(points[i] != OX_FAULT_ON_FLUSH || (calls > 0) == commits); /* a step that is kept flushes nothing */
        harness_close(&harness);
        outcome_close(&outcome);
        const bool all = test_deep();
        for (uint64_t call = all ? 0 : calls / 2; call < calls; call += all ? 1 : calls) {
            kept_count++;
            check_kept_rule(rig, (struct ox_fault_rule){OX_FAULT_EIO, points[i], call, call % 2 == 1}, commits);
        }
    }
}

static void check_kept_places(struct rig *rig) {
    for (const struct harness_place *place = harness_places; place->name != NULL; place++) {
        rig->place = *place;
        rig->place.io = rig->fault;
        rig->place.generations = place->request.speculative_units != 0 ? 3 : 0;
        if (place->store && test_takes((unsigned)(place - harness_places), 3)) {
            printf("uncommitted: %s\n", rig->place.name);
            check_kept(rig, false);
            check_kept(rig, true);
        }
    }
    printf("%llu faults in steps that stay uncommitted, and in commits of these\n", (unsigned long long)kept_count);
}

int main(void) {
    struct rig rig = {0};
    golden_open("llama_bias", &rig.golden);
    rig.run = golden_run(&rig.golden);
    REQUIRE_OK(ox_io_fault_open(ox_io_threads(), &rig.fault));
    rig.place = harness_places[0];
    rig.place.io = rig.fault;
    golden_train(&rig.golden, &rig.run, &harness_in_memory, STEPS, &rig.expected);
    golden_train(&rig.golden, &rig.run, &harness_in_memory, KEPT + 1, &rig.expected_longer);
    rig.hits_per_rule = HITS_PER_RULE;
    check_point(&rig, OX_FAULT_ON_READ, OX_FAULT_EIO, false);
    check_point(&rig, OX_FAULT_ON_WRITE, OX_FAULT_ENOSPC, false);
    check_point(&rig, OX_FAULT_ON_WRITE, OX_FAULT_EIO, true);
    check_point(&rig, OX_FAULT_ON_FLUSH, OX_FAULT_EIO, false);
    rig.hits_per_rule = test_all() ? HITS_PER_PLACE : 1;
    for (const struct harness_place *place = harness_places; place->name != NULL; place++) {
        const bool in_memory = place->request.weights_tier != OX_TIER_NVME || place->request.state_tier != OX_TIER_NVME;
        if (!place->store || place->request.overlap < 0 || (!in_memory && place->request.overlap == 0) ||
            !test_takes((unsigned)(place - harness_places), 2)) {
            continue;
        }
        rig.place = *place;
        rig.place.io = rig.fault;
        rig.lost_count = 0;
        printf("%s\n", rig.place.name);
        rig.reopens = false;
        /* What lives on the device is committed before the step's call returns. */
        const bool device = place->request.state_tier == OX_TIER_DEVICE || place->request.device_units > 0;
        if (place->request.state_tier != OX_TIER_DEVICE) { /* which reads nothing */
            check_point(&rig, OX_FAULT_ON_READ, OX_FAULT_SHORT, true);
        }
        check_point(&rig, OX_FAULT_ON_WRITE, OX_FAULT_EIO, false);
        rig.reopens = true;
        check_point(&rig, OX_FAULT_ON_FLUSH, OX_FAULT_EIO, false);
        CHECK((rig.lost_count > 0) == (place->request.overlap != 0 && !device));
        if (place->request.overlap > 0 && !device) {
            check_evaluation(&rig);
        }
    }
    check_kept_places(&rig);
    outcome_close(&rig.expected);
    outcome_close(&rig.expected_longer);
    ox_io_fault_close(&rig.fault);
    golden_close(&rig.golden);
    return test_end();
}
