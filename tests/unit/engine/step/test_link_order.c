/* Calls between GPUs in the order of the devices: NCCL's emulation carries them, and ranks divide features and rows.
 * They have the bits of one rank, and of calls about which hosts agree first; a step has few calls for which a device
 * waits for its host. A rank that fails at a call, before or after it, that is late, or that has another list is named,
 * no step hangs, and all go on from the last commit. */
#include "engine/step/engine_internal.h"
#include "engine/step/executor/executor.h"
#include "engine/step/link/link.h"
#include "tests/kit/device/simt_kit.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SPEED = 3 };
#else
enum { SPEED = 1 };
#endif
enum { DRIVER = 13000, HANG_SECONDS = 200, FAULT_STEP = 1, LATE_SECONDS = 3, NEVER = UINT32_MAX };

struct rig {
    const struct simt *simt;
    struct golden golden;
    struct harness_run run;
    struct harness_place place;
    struct outcome expected;
};

static void say_hang(int signal_number) {
    static const char text[] = "the step hangs\n";
    (void)signal_number;
    _exit(write(STDOUT_FILENO, text, sizeof text - 1) > 0 ? 1 : 2);
}

/* Features in two groups, rows in `row_groups`; both over as many ranks, on GPUs of their own, and the layers over
 * `pipe`. What one rank makes of the same cuts is expected. */
static void open_rig(struct rig *rig, uint32_t row_groups, uint32_t pipe) {
    golden_open("gpt2_b1", &rig->golden);
    rig->golden.padding = (2 * row_groups - rig->golden.seq % (2 * row_groups)) % (2 * row_groups);
    rig->golden.micro_batches = 2;
    rig->run = golden_run(&rig->golden);
    rig->run.cuda_plugin = rig->simt->kit.plugin;
    rig->run.tensor_groups = 2;
    rig->run.context_groups = row_groups;
    rig->run.sum_groups = 2;
    rig->place = harness_in_memory;
    rig->simt->set_machine(1, DRIVER);
    golden_train(&rig->golden, &rig->run, &rig->place, FEW_STEPS, &rig->expected);
    rig->place.request.device_units = 3; /* of which each rank has some, and knows nothing of the others' */
    rig->run.tensors = 2;
    rig->run.contexts = row_groups;
    rig->run.pipe = pipe;
    rig->run.ranks = rig->run.cuda_count = 2 * row_groups * pipe;
    rig->simt->set_machine((int)rig->run.ranks, DRIVER);
}

static void close_rig(struct rig *rig) {
    outcome_close(&rig->expected);
    golden_close(&rig->golden);
}

/* ---- bits, and who waits for whom ---------------------------------------------------------------------------- */

/* Takes all steps; *times: what the first rank did in the last of them. */
static void train(struct rig *rig, bool agrees, struct ox_rank_times *times) {
    struct harness harness;
    struct outcome outcome;
    char what[64];
    rig->run.comm_debug = agrees;
    snprintf(what, sizeof what, "%u ranks, %s", rig->run.ranks, agrees ? "hosts agree first" : "in the devices' order");
    harness_open(&rig->run, &rig->place, &harness);
    golden_steps(&harness, &rig->golden, 0, FEW_STEPS, &outcome);
    ox_rank_times(ox_engine_rank(harness.engine, 0), times);
    golden_end(&harness, what, &rig->expected, &outcome);
}

static void check_mesh(struct rig *rig, bool both) {
    struct ox_rank_times agreed = {0}, ordered;
    alarm(HANG_SECONDS * SPEED);
    if (both) {
        train(rig, true, &agreed);
    }
    rig->simt->set_delay(7, 100000); /* devices come to calls at times of their own */
    train(rig, false, &ordered);
    rig->simt->set_delay(0, 0);
    alarm(0);
    printf("%u ranks: for %llu calls of a step a device waits for its host, for %llu it does not\n", rig->run.ranks,
           (unsigned long long)ordered.host_calls, (unsigned long long)ordered.device_calls);
    CHECK(!both || (agreed.device_calls == 0 &&
                    agreed.host_calls == ordered.host_calls + ordered.device_calls));
    CHECK(ordered.host_calls > 0 && ordered.device_calls > 4 * ordered.host_calls);
}

/* ---- failures -------------------------------------------------------------------------------------------------- */

/* The issuing thread of one rank is late behind the task number `late_at` of its device. */
static enum ox_status (*real_mark)(struct ox_lane *, struct ox_mark *);
static struct ox_lane *late_lane;
static atomic_uint marks, late_at;

static enum ox_status mark_late(struct ox_lane *lane, struct ox_mark *out) {
    if (lane == late_lane && atomic_fetch_add(&marks, 1) == atomic_load(&late_at)) {
        nanosleep(&(struct timespec){.tv_sec = LATE_SECONDS * SPEED}, NULL);
    }
    return real_mark(lane, out);
}

static uint64_t calls_of(struct ox_comm *comm) {
    uint64_t calls = 0;
    for (int call = 0; call < OX_COMM_CALL_COUNT; call++) {
        struct ox_comm_stats stats;
        ox_comm_stats(comm, (enum ox_comm_call)call, &stats);
        calls += stats.calls;
    }
    return calls;
}

static void arm(struct ox_rank *rank, uint64_t at, bool after) {
    struct ox_comm **const comm = &rank->along[OX_AXIS_TENSOR], *const before = *comm;
    REQUIRE_OK(ox_comm_fault_open(before, &(struct ox_comm_fault){.call_idx = at, .after = after,
                                                                  .status = OX_E_COMM}, comm));
    if (rank->comm == before) {
        rank->comm = *comm;
    }
    for (int axis = 0; axis < OX_AXIS_COUNT; axis++) {
        rank->along[axis] = rank->along[axis] == before ? *comm : rank->along[axis];
    }
}

/* Lets one task of a list that the device makes differ from those of other ranks. */
static void change_list(struct ox_rank *rank) {
    struct ox_plan *const plan = (struct ox_plan *)(uintptr_t)rank->plan->train;
    for (uint32_t i = 0; i < plan->task_count; i++) {
        if (ox_link_lane(rank, &plan->tasks[i]) != NULL && plan->tasks[i].move == OX_MOVE_ROWS) {
            plan->tasks[i].slot++;
            return;
        }
    }
    CHECK(!"a task of the device");
}

enum fault { BEFORE, AFTER, LATE, OTHER_LIST };

/* Goes on from the last commit, in the engine that failed. */
static void go_on(struct rig *rig, struct harness *harness, struct outcome *outcome, const char *what) {
    struct ox_store_info info;
    REQUIRE_OK(ox_engine_roll_back(harness->engine));
    ox_store_info(ox_engine_store(harness->engine), &info);
    if (info.step == 0) {
        outcome_close(outcome);
    }
    golden_steps(harness, &rig->golden, info.step, FEW_STEPS, outcome);
    golden_end(harness, what, &rig->expected, outcome);
}

static void try_fault(struct rig *rig, uint32_t idx, enum fault fault, unsigned share) {
    static const char *const names[] = {"before a call", "after a call", "late", "another list"};
    struct harness harness;
    struct outcome outcome;
    struct ox_step_result result;
    char what[64], words[64];
    rig->run.comm_timeout_ns = fault == LATE ? SPEED * UINT64_C(1000000000) : 0;
    harness_open(&rig->run, &rig->place, &harness);
    struct ox_rank *const rank = ox_engine_rank(harness.engine, idx);
    const uint64_t before = calls_of(rank->along[OX_AXIS_TENSOR]);
    golden_steps(&harness, &rig->golden, 0, FAULT_STEP, &outcome);
    const uint64_t calls = calls_of(rank->along[OX_AXIS_TENSOR]) - before;
    snprintf(what, sizeof what, "rank %u %s, at %u/8 of %llu calls", idx, names[fault], share,
             (unsigned long long)calls);
    snprintf(words, sizeof words,
             fault == LATE         ? " s for rank %u, which did not come"
             : fault == OTHER_LIST ? "rank %u has another list of calls" : "rank %u: injected", idx);
    real_mark = rank->ops.mark;
    rank->ops.mark = mark_late;
    late_lane = rank->lanes[OX_LANE_COMPUTE];
    atomic_store(&marks, 0);
    atomic_store(&late_at, fault == LATE ? 2 + share : NEVER);
    if (fault <= AFTER) {
        arm(rank, calls * share / 8, fault == AFTER);
    } else if (fault == OTHER_LIST) {
        change_list(rank);
    }
    const struct ox_step_input input =
        golden_input(&rig->golden, FAULT_STEP, golden_fill(harness.engine, &rig->golden, FAULT_STEP));
    alarm(HANG_SECONDS * SPEED);
    const enum ox_status status = ox_engine_step(harness.engine, &input, &result);
    CHECK(status == (fault == OTHER_LIST ? OX_E_CONFIG : OX_E_COMM));
    if (strstr(ox_error_text(), words) == NULL) {
        printf("    %s, and the text is: %s\n", what, ox_error_text());
        test_failure_count++;
    }
    rank->ops.mark = real_mark;
    if (fault == OTHER_LIST) { /* it keeps its list */
        harness_close(&harness);
        outcome_close(&outcome);
    } else {
        go_on(rig, &harness, &outcome, what);
    }
    alarm(0);
}

static void check_faults(struct rig *rig) {
    const struct harness_place *place = harness_places;
    while (!place->store) {
        place++;
    }
    rig->place = *place;
    for (unsigned share = 0; share < 8; share++) {
        if (test_all() || share == 5) {
            try_fault(rig, share / 4, BEFORE, share);
        }
        if (test_all() || share == 1) {
            try_fault(rig, share / 4, AFTER, share);
        }
    }
    if (test_all()) {
        try_fault(rig, 0, LATE, 5);
    }
    try_fault(rig, 1, LATE, 0);
    try_fault(rig, 1, OTHER_LIST, 0);
}

int main(void) {
    struct rig rig = {.simt = simt_open()};
    setvbuf(stdout, NULL, _IOLBF, 0); /* a hang then shows where */
    signal(SIGALRM, say_hang);
    rig.simt->set_nccl(true);
    open_rig(&rig, 1, 1);
    check_mesh(&rig, true);
    check_faults(&rig);
    close_rig(&rig);
    for (uint32_t pipe = 1; pipe <= (test_all() ? 2 : 1); pipe++) {
        open_rig(&rig, 2, pipe);
        check_mesh(&rig, test_all());
        close_rig(&rig);
    }
    rig.simt->set_machine(1, DRIVER);
    return test_end();
}
