/* A drive that fails at any call of a step: the step fails with a text and changes nothing, and the engine continues
 * from the last commit to the same bits, whatever it holds in memory. Where steps overlap, the update of the previous
 * step may be lost as well; likewise before an evaluation, which performs that update first. */
#include "nvme/io_sim.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <string.h>

enum { STEPS = 2, HITS_PER_RULE = 8, HITS_PER_PLACE = 3 };

struct rig {
    struct golden golden;
    struct harness_run run;
    struct harness_place place;
    struct ox_io_backend *fault;
    struct outcome expected;
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

int main(void) {
    struct rig rig = {0};
    golden_open("llama_bias", &rig.golden);
    rig.run = golden_run(&rig.golden);
    REQUIRE_OK(ox_io_fault_open(ox_io_threads(), &rig.fault));
    rig.place = harness_places[0];
    rig.place.io = rig.fault;
    golden_train(&rig.golden, &rig.run, &harness_in_memory, STEPS, &rig.expected);
    rig.hits_per_rule = HITS_PER_RULE;
    check_point(&rig, OX_FAULT_ON_READ, OX_FAULT_EIO, false);
    check_point(&rig, OX_FAULT_ON_WRITE, OX_FAULT_ENOSPC, false);
    check_point(&rig, OX_FAULT_ON_WRITE, OX_FAULT_EIO, true);
    check_point(&rig, OX_FAULT_ON_FLUSH, OX_FAULT_EIO, false);
    rig.hits_per_rule = HITS_PER_PLACE;
    for (const struct harness_place *place = harness_places; place->name != NULL; place++) {
        const bool in_memory = place->request.weights_tier != OX_TIER_NVME || place->request.state_tier != OX_TIER_NVME;
        if (!place->store || place->request.overlap < 0 || (!in_memory && place->request.overlap == 0)) {
            continue;
        }
        rig.place = *place;
        rig.place.io = rig.fault;
        rig.lost_count = 0;
        printf("%s\n", rig.place.name);
        rig.reopens = false;
        check_point(&rig, OX_FAULT_ON_READ, OX_FAULT_SHORT, true);
        check_point(&rig, OX_FAULT_ON_WRITE, OX_FAULT_EIO, false);
        rig.reopens = true;
        check_point(&rig, OX_FAULT_ON_FLUSH, OX_FAULT_EIO, false);
        CHECK((rig.lost_count > 0) == (place->request.overlap != 0));
        if (place->request.overlap > 0) {
            check_evaluation(&rig);
        }
    }
    outcome_close(&rig.expected);
    ox_io_fault_close(&rig.fault);
    golden_close(&rig.golden);
    return test_end();
}
