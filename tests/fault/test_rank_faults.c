/* One rank of several fails at any place of a step: at a call to the drive, in compute, or at a call to the other
 * ranks, before or after these have done it, transfers of a pipeline and rounds of experts among them. The step
 * returns, says what failed and on which rank, and all ranks fall back together; what follows has the bits of one rank.
 * A step that hangs ends the test.
 *
 *     test_rank_faults [HITS]: tries so many visits to each site, at every placement */
#include "engine/step/engine_internal.h"
#include "tests/kit/store/io_sim.h"
#include "tests/kit/files.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { HITS = 1, PLACES = 11, SPEED = 3, QUICK = 1 };
#else
enum { HITS = 2, PLACES = 5, SPEED = 1, QUICK = 8 };
#endif
enum { LATE_SECONDS = 3, WAIT_SECONDS = 1 };
enum { STEPS = 3, FAULT_STEP = 1, GROUPS = 4, HANG_SECONDS = 200, NEVER = UINT32_MAX };

/* Where a step fails. */
enum site {
    SITE_READ, SITE_WRITE, SITE_FLUSH, SITE_COMPUTE, SITE_BEFORE_CALL, SITE_AFTER_CALL, SITE_BEFORE_TRANSFER,
    SITE_AFTER_TRANSFER, SITE_BEFORE_ROUND, SITE_AFTER_ROUND, SITE_COUNT
};
static const char *const site_names[] = {"read",         "write",           "flush",         "compute", "before a call",
                                         "after a call", "before a transfer", "after a transfer", "before a round",
                                         "after a round"};
/* How ranks lie; `experts`: of a mixture, how many divide its experts. */
static const struct shape {
    uint32_t ranks, pipe, experts;
    enum ox_pipe_schedule schedule;
} shapes[] = {{2, 1, 0, OX_PIPE_VERTICAL}, {4, 1, 0, OX_PIPE_VERTICAL}, {2, 2, 0, OX_PIPE_1F1B},
              {4, 2, 0, OX_PIPE_VERTICAL}, {2, 1, 2, OX_PIPE_VERTICAL}, {4, 1, 2, OX_PIPE_VERTICAL}};
enum { SHAPES = sizeof shapes / sizeof *shapes };
static const char mixture[] =
    "{\"model_type\":\"mixtral\",\"vocab_size\":96,\"hidden_size\":64,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"max_position_embeddings\":64,"
    "\"tie_word_embeddings\":false,\"num_local_experts\":4,\"num_experts_per_tok\":2,\"intermediate_size\":32}";
static const enum ox_fault_point points[] = {OX_FAULT_ON_READ, OX_FAULT_ON_WRITE, OX_FAULT_ON_FLUSH};

struct rig {
    struct golden golden;
    struct harness_run run;
    struct harness_place place;
    struct ox_io_backend *fault;
    struct outcome expected;
    uint32_t hits;
    uint32_t tried, lost; /* faults, and those that took the step before too */
};

static bool on_drive(enum site site) {
    return site <= SITE_FLUSH;
}

/* At a call to another rank of the pipeline alone; else of all ranks. */
static bool on_transfer(enum site site) {
    return site == SITE_BEFORE_TRANSFER || site == SITE_AFTER_TRANSFER;
}

/* At a call to the ranks that have other experts alone, where these are not all ranks. */
static bool on_round(enum site site) {
    return site == SITE_BEFORE_ROUND || site == SITE_AFTER_ROUND;
}

/* The endpoint of a site that is a call to others. */
static struct ox_comm **endpoint(struct ox_rank *rank, enum site site) {
    return on_transfer(site) ? &rank->pipe : on_round(site) ? &rank->along[OX_AXIS_EXPERT] : &rank->comm;
}

/* ---- compute: the lane of one rank fails or is late behind the task number `fail_at` ----------------------- */

static enum ox_status (*real_mark)(struct ox_lane *, struct ox_mark *);
static struct ox_lane *failing_lane;
static atomic_uint marks, fail_at;
static bool is_late;

static void be_late(void) {
    nanosleep(&(struct timespec){.tv_sec = LATE_SECONDS * SPEED}, NULL);
}

static enum ox_status fail_job(void *owner, const void *args) {
    (void)owner;
    (void)args;
    if (is_late) {
        be_late();
        return OX_OK;
    }
    return ox_fail(OX_E_DEVICE, "injected fault in compute");
}

static enum ox_status mark_or_fail(struct ox_lane *lane, struct ox_mark *out) {
    if (lane == failing_lane && atomic_fetch_add(&marks, 1) == atomic_load(&fail_at)) {
        REQUIRE_OK(ox_host_lane_submit(lane, fail_job, NULL, 0, NULL));
    }
    return real_mark(lane, out);
}

static void watch_compute(struct ox_rank *rank) {
    real_mark = rank->ops.mark;
    rank->ops.mark = mark_or_fail;
    failing_lane = rank->lanes[OX_LANE_COMPUTE];
    atomic_store(&marks, 0);
    atomic_store(&fail_at, NEVER);
}

/* ---- one fault --------------------------------------------------------------------------------------------- */

/* How often a rank, or its drive, comes to the site. */
static uint64_t visits(const struct rig *rig, struct ox_rank *rank, enum site site) {
    uint64_t calls = 0, hits = 0;
    if (on_drive(site)) {
        ox_io_fault_counts(rig->fault, points[site], &calls, &hits);
        return calls;
    }
    if (site == SITE_COMPUTE) {
        return atomic_load(&marks);
    }
    for (int call = 0; call < OX_COMM_CALL_COUNT; call++) {
        struct ox_comm_stats stats;
        ox_comm_stats(*endpoint(rank, site), (enum ox_comm_call)call, &stats);
        calls += stats.calls;
    }
    return calls;
}

static void arm(const struct rig *rig, struct ox_rank *rank, enum site site, uint64_t at) {
    if (on_drive(site)) {
        ox_io_fault_set(rig->fault, &(struct ox_fault_rule){OX_FAULT_EIO, points[site], at, false});
    } else if (site == SITE_COMPUTE) {
        atomic_store(&fail_at, (unsigned)at);
    } else {
        const bool after = site == SITE_AFTER_CALL || site == SITE_AFTER_TRANSFER || site == SITE_AFTER_ROUND;
        const struct ox_comm_fault fault = {.call_idx = at, .after = after, .status = OX_E_COMM};
        struct ox_comm **const comm = endpoint(rank, site), *const before = *comm;
        REQUIRE_OK(ox_comm_fault_open(before, &fault, comm));
        for (int axis = 0; axis < OX_AXIS_COUNT; axis++) {
            rank->along[axis] = rank->along[axis] == before ? *comm : rank->along[axis];
        }
    }
}

static enum ox_status take_step(const struct rig *rig, struct ox_engine *engine, size_t step) {
    struct ox_step_result result;
    const struct ox_step_input input = golden_input(&rig->golden, step, golden_fill(engine, &rig->golden, step));
    alarm(HANG_SECONDS * SPEED);
    const enum ox_status status = ox_engine_step(engine, &input, &result);
    alarm(0);
    return status;
}

/* The text begins with the rank that failed, once, unless the drive failed, which all ranks share; a commit between
 * steps is of none of them. */
static void check_text(const struct rig *rig, uint32_t idx, enum site site) {
    char begin[16];
    unsigned named = NEVER;
    const char *const text = ox_error_text();
    snprintf(begin, sizeof begin, "rank %u: ", idx);
    const bool between = on_drive(site) && strncmp(text, "step 2 is not committed: ", 25) == 0;
    const bool names = between          ? true
                       : on_drive(site) ? sscanf(text, "rank %u: ", &named) == 1 && named < rig->run.ranks
                                        : strncmp(text, begin, strlen(begin)) == 0;
    const char *const rest = strchr(text, ':');
    const bool well = names && rest != NULL && strncmp(rest, ": rank ", 7) != 0 && strstr(text, "injected") != NULL;
    if (!well) {
        printf("    rank %u failed, and the text is: %s\n", idx, text);
        test_failure_count++;
    }
}

/* All ranks are at the same step, with the same left to do. */
static void check_together(const struct ox_engine *engine, uint32_t ranks) {
    const struct ox_rank *const first = ox_engine_rank(engine, 0);
    for (uint32_t i = 1; i < ranks; i++) {
        const struct ox_rank *const rank = ox_engine_rank(engine, i);
        CHECK(rank->planes.step == first->planes.step && rank->planes.lost_step == first->planes.lost_step);
        CHECK(rank->pending.exists == first->pending.exists && rank->pending.begun == first->pending.begun);
        CHECK(rank->planes.must_restore == first->planes.must_restore);
    }
}

/* Goes on from the last commit, in the engine that failed. A commit that all but one rank knew of stands. */
static void go_on(struct rig *rig, struct harness *harness, struct outcome *outcome, const char *name) {
    struct ox_store_info info;
    ox_store_info(ox_engine_store(harness->engine), &info);
    rig->lost += info.step < FAULT_STEP;
    CHECK(info.step + 1 >= FAULT_STEP && info.step <= FAULT_STEP + 1);
    REQUIRE_OK(ox_engine_roll_back(harness->engine));
    if (info.step > FAULT_STEP) {
        outcome->losses[FAULT_STEP] = rig->expected.losses[FAULT_STEP];
        outcome->norms[FAULT_STEP] = rig->expected.norms[FAULT_STEP];
        memcpy(outcome->router_losses[FAULT_STEP], rig->expected.router_losses[FAULT_STEP],
               sizeof outcome->router_losses[FAULT_STEP]);
    } else if (info.step == 0) {
        outcome_close(outcome);
    }
    golden_steps(harness, &rig->golden, info.step, STEPS, outcome);
    golden_end(harness, name, &rig->expected, outcome);
}

/* Returns how often the step comes to the site, in which it fails at visit `at`, or does not where that is too many. */
static uint64_t try_fault(struct rig *rig, uint32_t idx, enum site site, uint64_t at) {
    struct harness harness;
    struct outcome outcome;
    char name[96];
    snprintf(name, sizeof name, "rank %u of %u, %s %llu", idx, rig->run.ranks, site_names[site],
             (unsigned long long)at);
    harness_open(&rig->run, &rig->place, &harness);
    golden_steps(&harness, &rig->golden, 0, FAULT_STEP, &outcome);
    struct ox_rank *const rank = ox_engine_rank(harness.engine, idx);
    ox_io_fault_set(rig->fault, NULL);
    watch_compute(rank);
    if (at != NEVER) {
        arm(rig, rank, site, at);
    }
    const uint64_t before = visits(rig, rank, site); /* an endpoint that fails counts from its own beginning */
    const enum ox_status status = take_step(rig, harness.engine, FAULT_STEP);
    const uint64_t count = visits(rig, rank, site) - before;
    /* Some ranks come there less often; and on a slow machine the end of the step before may count here. */
    const bool missed = !on_drive(site) && status == OX_OK && at + 1 >= count;
    if (at == NEVER || missed) {
        CHECK(status == OX_OK);
        harness_close(&harness);
        outcome_close(&outcome);
        return count;
    }
    CHECK(status == (on_drive(site) ? OX_E_IO : site == SITE_COMPUTE ? OX_E_DEVICE : OX_E_COMM));
    check_text(rig, idx, site);
    check_together(harness.engine, rig->run.ranks);
    ox_io_fault_set(rig->fault, NULL);
    atomic_store(&fail_at, NEVER);
    rig->tried++;
    if (rig->place.store) {
        go_on(rig, &harness, &outcome, name);
    } else { /* the state of the failed step is not used again; a new run has nothing of it */
        harness_close(&harness);
        outcome_close(&outcome);
    }
    return count;
}

static void check_site(struct rig *rig, enum site site) {
    const uint64_t count = try_fault(rig, rig->run.ranks - 1, site, NEVER);
    const uint64_t stride = count / rig->hits + 1;
    CHECK(count > 0);
    uint32_t idx = 0;
    for (uint64_t at = 0; at < count && test_failure_count < 10; at += stride, idx++) {
        (void)try_fault(rig, idx % rig->run.ranks, site, at);
    }
    if (stride > 1) { /* the end of a step has the commit */
        (void)try_fault(rig, idx % rig->run.ranks, site, count - 1);
    }
}

static void say_hang(int signal_number) {
    static const char text[] = "the step hangs\n";
    (void)signal_number;
    _exit(write(STDOUT_FILENO, text, sizeof text - 1) > 0 ? 1 : 2);
}

/* The shapes of a mixture, or the others. */
static void check_place(struct rig *rig, const struct harness_place *place) {
    rig->place = *place;
    rig->place.io = rig->fault;
    for (int i = 0; i < SHAPES; i++) {
        if ((shapes[i].experts > 0) != (rig->run.experts_per_unit > 0)) {
            continue;
        }
        rig->run.experts = shapes[i].experts;
        rig->run.ranks = shapes[i].ranks;
        rig->run.pipe = shapes[i].pipe;
        rig->run.schedule = shapes[i].schedule;
        rig->tried = rig->lost = 0;
        for (int site = 0; site < SITE_COUNT; site++) {
            const bool reads = place->request.state_tier == OX_TIER_NVME || place->request.act_tier == OX_TIER_NVME;
            const bool has_drive = place->store && (site != SITE_READ || reads);
            const bool has_rounds = rig->run.experts > 1 && rig->run.experts < rig->run.ranks; /* of some ranks */
            if ((on_drive((enum site)site) && !has_drive) || (on_transfer((enum site)site) && rig->run.pipe == 1) ||
                (on_round((enum site)site) && !has_rounds) ||
                (rig->hits == HITS && !test_takes((unsigned)(site + i), 2))) {
                continue;
            }
            check_site(rig, (enum site)site);
        }
        printf("%s: %u ranks, pipe %u, experts %u, %u faults, %u lost the step before too\n", place->name,
               rig->run.ranks, rig->run.pipe, rig->run.experts, rig->tried, rig->lost);
    }
}

/* ---- one rank is late ----------------------------------------------------------------------------------------- */

static struct ox_io_backend slow;
static atomic_uint writes, late_write;

static enum ox_status submit_late(struct ox_io_queue *queue, uint32_t drive_idx, const struct ox_io_req *req) {
    if (req->kind == OX_IO_WRITE && atomic_fetch_add(&writes, 1) == atomic_load(&late_write)) {
        be_late();
    }
    return ox_io_threads()->queue_submit(queue, drive_idx, req);
}

/* The rank that has waited longest says for whom; all go back to the last commit, and on from there. */
static void try_late(struct rig *rig, const struct harness_place *place, uint32_t pipe, uint32_t idx, bool at_drive) {
    struct harness harness;
    struct outcome outcome;
    char missing[48];
    unsigned named = NEVER;
    rig->place = *place;
    rig->place.io = &slow;
    rig->run.ranks = 4;
    rig->run.pipe = pipe;
    rig->run.schedule = OX_PIPE_VERTICAL;
    harness_open(&rig->run, &rig->place, &harness);
    golden_steps(&harness, &rig->golden, 0, FAULT_STEP, &outcome);
    watch_compute(ox_engine_rank(harness.engine, idx));
    atomic_store(&fail_at, at_drive ? NEVER : 5);
    atomic_store(&writes, 0);
    atomic_store(&late_write, at_drive ? 7 : NEVER);
    CHECK(take_step(rig, harness.engine, FAULT_STEP) == OX_E_COMM);
    printf("%s, late %s: %s\n", place->name, at_drive ? "at the drive" : "in compute", ox_error_text());
    snprintf(missing, sizeof missing, " s for rank %u, which did not come", idx);
    CHECK(sscanf(ox_error_text(), "rank %u: ", &named) == 1 && named < rig->run.ranks);
    const bool chains = at_drive || pipe > 1; /* who waits for whom that waits */
    CHECK(strstr(ox_error_text(), chains ? ", which did not come" : missing) != NULL && (chains || named != idx));
    check_together(harness.engine, rig->run.ranks);
    atomic_store(&fail_at, NEVER);
    go_on(rig, &harness, &outcome, "after it was late");
}

static void check_late(struct rig *rig) {
    slow = *ox_io_threads();
    slow.queue_submit = submit_late;
    is_late = true;
    rig->run.comm_timeout_ns = WAIT_SECONDS * SPEED * UINT64_C(1000000000);
    for (uint32_t i = 0; i < 2; i++) {
        const struct harness_place *place = harness_places;
        while (i == 1 && place->request.overlap <= 0) {
            place++;
        }
        try_late(rig, place, 1, 2, false);
        try_late(rig, place, 1, 1, true);
        try_late(rig, place, 2, 2, false);
    }
}

static void open_rig(struct rig *rig, const char *name) {
    golden_open(name, &rig->golden);
    rig->golden.micro_batches = GROUPS;
    rig->run = golden_run(&rig->golden);
    rig->run.sum_groups = GROUPS;
}

static void check_places(struct rig *rig, bool every) {
    const uint32_t stride = test_stride(QUICK), first = PLACES * test_first(QUICK);
    golden_train(&rig->golden, &rig->run, &harness_in_memory, STEPS, &rig->expected);
    for (uint32_t i = 0; harness_places[i].name != NULL; i++) {
        if (every || i % (PLACES * stride) == first) {
            check_place(rig, &harness_places[i]);
        }
    }
}

static void close_rig(struct rig *rig) {
    outcome_close(&rig->expected);
    golden_close(&rig->golden);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0); /* a hang then shows where */
    signal(SIGALRM, say_hang);
    struct rig rig = {.hits = argc == 2 ? (uint32_t)strtoul(argv[1], NULL, 10) : HITS};
    REQUIRE_OK(ox_io_fault_open(ox_io_threads(), &rig.fault));
    open_rig(&rig, "mixtral");
    rig.run.model_folder = files_write_text("mixture.json", mixture);
    rig.run.experts_per_unit = 1;
    check_places(&rig, argc == 2);
    close_rig(&rig);
    open_rig(&rig, "llama_bias");
    check_places(&rig, argc == 2);
    check_late(&rig);
    close_rig(&rig);
    ox_io_fault_close(&rig.fault);
    return test_end();
}
