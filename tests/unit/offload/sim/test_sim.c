/* The simulator against plans that can be worked out by hand, and against what must hold for any plan. */
#include "offload/sim/sim.h"
#include "base/prng/prng.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

enum { TASKS_MAX = 200 };

struct script {
    struct ox_plan plan;
    struct ox_task tasks[TASKS_MAX];
    struct ox_sim_work works[TASKS_MAX];
    struct ox_sim_limits limits;
};

static void begin(struct script *s) {
    memset(s, 0, sizeof *s);
    s->plan.tasks = s->tasks;
    s->limits.nvme = s->limits.link = (struct ox_sim_duplex){.together = 2, .balance = 1};
}

/* Adds a task of so many seconds that uses `share` of a resource, and returns its index. */
static uint32_t add(struct script *s, enum ox_lane_id lane, double seconds, enum ox_sim_resource resource,
                    double share) {
    const uint32_t idx = s->plan.task_count++;
    s->tasks[idx] = (struct ox_task){.kind = OX_TASK_FORWARD, .lane = (uint8_t)lane};
    s->works[idx] = (struct ox_sim_work){.seconds = seconds};
    s->works[idx].use[resource] = seconds * share;
    return idx;
}

static void after(struct script *s, uint32_t task_idx, uint32_t dep_idx) {
    s->tasks[task_idx].deps[s->tasks[dep_idx].lane] = dep_idx + 1;
}

static struct ox_sim_work work_of(const void *context, const struct ox_plan *plan, uint32_t task_idx) {
    (void)plan;
    return ((const struct script *)context)->works[task_idx];
}

static struct ox_sim_result play(struct ox_sim *sim, const struct script *s) {
    struct ox_sim_result result;
    ox_sim_play(sim, &s->plan, &s->limits, work_of, s, &result);
    return result;
}

static bool near(double a, double b) {
    return fabs(a - b) <= 1e-9 * (1 + fabs(b));
}

/* ---- by hand --------------------------------------------------------------------------------------- */

static void test_chain_and_overlap(struct ox_sim *sim) {
    struct script s;
    begin(&s);
    const uint32_t read = add(&s, OX_LANE_NVME_READ, 1, OX_SIM_NVME_READ, 1);
    const uint32_t first = add(&s, OX_LANE_COMPUTE, 2, OX_SIM_CORES, 1);
    add(&s, OX_LANE_NVME_READ, 3, OX_SIM_NVME_READ, 1); /* beside the compute: to second 4 */
    const uint32_t second = add(&s, OX_LANE_COMPUTE, 0.5, OX_SIM_CORES, 1);
    after(&s, first, read);
    after(&s, second, 2);
    const struct ox_sim_result result = play(sim, &s);
    CHECK(near(result.seconds, 4.5));
    CHECK(near(ox_sim_begin(sim, first), 1) && near(ox_sim_end(sim, first), 3));
    CHECK(near(ox_sim_begin(sim, second), 4) && near(ox_sim_end(sim, 2), 4));
    const struct ox_sim_lane *const compute = &result.lanes[OX_LANE_COMPUTE];
    CHECK(near(compute->busy, 2.5) && near(compute->waited_for[OX_LANE_NVME_READ], 2));
    CHECK(near(ox_sim_stalled(compute), 2) && near(compute->unissued, 0));
    CHECK(near(result.lanes[OX_LANE_NVME_READ].busy, 4) && ox_sim_stalled(&result.lanes[OX_LANE_NVME_READ]) == 0);
    CHECK(result.binding == OX_SIM_NVME_READ && near(result.binding_share, 4 / 4.5));
    CHECK(near(result.used[OX_SIM_CORES], 2.5) && near(result.used[OX_SIM_NVME_READ], 4));
}

/* Two tasks that need all of a resource get half of it each; a task that needs another resource is as fast as alone. */
static void test_sharing(struct ox_sim *sim) {
    struct script s;
    begin(&s);
    add(&s, OX_LANE_COMPUTE, 1, OX_SIM_CORES, 1);
    add(&s, OX_LANE_REDUCE, 2, OX_SIM_CORES, 1);
    add(&s, OX_LANE_NVME_READ, 1.5, OX_SIM_NVME_READ, 1);
    CHECK(near(play(sim, &s).seconds, 3));
    CHECK(near(ox_sim_end(sim, 0), 2) && near(ox_sim_end(sim, 1), 3) && near(ox_sim_end(sim, 2), 1.5));
    s.works[0].use[OX_SIM_CORES] = 0.6; /* 0.6 and 0.6 are too much by a fifth */
    s.works[1] = s.works[0];
    CHECK(near(play(sim, &s).seconds, 1.5) && near(ox_sim_end(sim, 0), 1.2) && near(ox_sim_end(sim, 1), 1.2));
    /* A task that two limits hold back leaves the rest of the wider one to its neighbour. */
    s.works[2] = s.works[0];
    s.works[2].use[OX_SIM_MEMORY] = 1;
    s.works[1] = (struct ox_sim_work){.seconds = 1, .use = {[OX_SIM_MEMORY] = 1}};
    s.works[0].use[OX_SIM_CORES] = 0.7;
    (void)play(sim, &s); /* memory: 1 and 2 at half speed; cores: 0.7 + 0.6 / 2 */
    CHECK(near(ox_sim_end(sim, 0), 1) && near(ox_sim_end(sim, 1), 2) && near(ox_sim_end(sim, 2), 2));
}

static void test_duplex(struct ox_sim *sim) {
    struct script s;
    begin(&s);
    add(&s, OX_LANE_NVME_READ, 1, OX_SIM_NVME_READ, 1);
    add(&s, OX_LANE_NVME_WRITE, 1, OX_SIM_NVME_WRITE, 1);
    CHECK(near(play(sim, &s).seconds, 1));
    s.limits.nvme = ox_sim_duplex_of(4e9, 2e9, 4e9); /* in a second of both: half of the reads, all of the writes */
    CHECK(near(s.limits.nvme.together, 1.5) && near(s.limits.nvme.balance, 0.5));
    CHECK(near(play(sim, &s).seconds, 2 / 1.5) && near(ox_sim_end(sim, 0), 2 / 1.5));
    CHECK(near(ox_sim_duplex_seconds(&s.limits.nvme, 1, 1), 2 / 1.5));
    CHECK(near(ox_sim_duplex_seconds(&s.limits.nvme, 1, 0), 1));
    CHECK(near(ox_sim_duplex_seconds(&s.limits.nvme, 1, 0.25), 1)); /* 1.25 of 1 + 0.5 / 2 */
    s.limits.nvme = ox_sim_duplex_of(4e9, 2e9, 2e9); /* a drive that mixing slows down */
    CHECK(near(s.limits.nvme.together, 0.75) && near(play(sim, &s).seconds, 2 / 0.75));
    CHECK(near(play(sim, &s).binding_share, 1));
}

static void test_latency(struct ox_sim *sim) {
    struct script s;
    begin(&s);
    add(&s, OX_LANE_COMPUTE, 2, OX_SIM_CORES, 1);
    add(&s, OX_LANE_REDUCE, 1, OX_SIM_CORES, 1);
    s.works[1].latency = 1; /* a second later, when the first has as much left: both at half speed */
    CHECK(near(play(sim, &s).seconds, 3) && near(ox_sim_end(sim, 0), 3) && near(ox_sim_end(sim, 1), 3));
    s.works[0] = (struct ox_sim_work){0};
    s.works[1] = (struct ox_sim_work){.latency = 0.25};
    CHECK(near(play(sim, &s).seconds, 0.25) && ox_sim_end(sim, 0) == 0);
}

static void test_issue(struct ox_sim *sim) {
    struct script s;
    begin(&s);
    add(&s, OX_LANE_COMPUTE, 1, OX_SIM_CORES, 0.1);
    add(&s, OX_LANE_REDUCE, 1, OX_SIM_CORES, 0.1);
    add(&s, OX_LANE_ADAM, 1, OX_SIM_CORES, 0.1);
    CHECK(near(play(sim, &s).seconds, 1));
    s.limits.run_ahead_tasks = 1;
    struct ox_sim_result result = play(sim, &s);
    CHECK(near(result.seconds, 3) && near(result.lanes[OX_LANE_ADAM].unissued, 2));
    s.limits.run_ahead_tasks = 2;
    CHECK(near(play(sim, &s).seconds, 2));
    s.limits.run_ahead_tasks = 0;
    s.tasks[1].kind = OX_TASK_NORM; /* decides whether there is more */
    result = play(sim, &s);
    CHECK(near(result.seconds, 2) && near(result.lanes[OX_LANE_ADAM].unissued, 1));
}

/* Writes that are in flight when their task ends delay the next one and the commit. */
static void test_tail(struct ox_sim *sim) {
    struct script s;
    begin(&s);
    for (int i = 0; i < 2; i++) {
        s.works[add(&s, OX_LANE_ADAM, 1, OX_SIM_NVME_READ, 0.5)].tail = 0.5;
    }
    const uint32_t commit = add(&s, OX_LANE_ADAM, 0, OX_SIM_CORES, 0);
    s.works[commit].latency = 0.1;
    CHECK(near(play(sim, &s).seconds, 2.6));
    CHECK(near(ox_sim_end(sim, 0), 1) && near(ox_sim_end(sim, 1), 2));
    s.works[1].use[OX_SIM_NVME_WRITE] = 0.75;
    (void)play(sim, &s);
    CHECK(near(ox_sim_end(sim, 1), 2.25));
    s.works[1].unhidden = 0.25; /* on top of the drives' time, that of the tail included */
    (void)play(sim, &s);
    CHECK(near(ox_sim_end(sim, 1), 2.5));
    s.plan.task_count = 1; /* no commit: the step waits all the same */
    CHECK(near(play(sim, &s).seconds, 1.5));
}

/* ---- any plan -------------------------------------------------------------------------------------- */

static double draw(uint64_t seed, uint64_t *counter, double below) {
    return ox_uniform(seed, 2, (*counter)++) * below;
}

static void draw_script(struct script *s, uint64_t seed) {
    uint64_t counter = 0;
    begin(s);
    const uint32_t count = 1 + (uint32_t)draw(seed, &counter, TASKS_MAX - 1);
    s->limits.run_ahead_tasks = (uint32_t)draw(seed, &counter, 40);
    s->limits.nvme = (struct ox_sim_duplex){1 + draw(seed, &counter, 1), 0.1 + draw(seed, &counter, 0.9)};
    s->limits.link = (struct ox_sim_duplex){1 + draw(seed, &counter, 1), 0.1 + draw(seed, &counter, 0.9)};
    for (uint32_t i = 0; i < count; i++) {
        const enum ox_lane_id lane = (enum ox_lane_id)draw(seed, &counter, OX_LANE_COUNT);
        struct ox_sim_work *const work = &s->works[add(s, lane, 0, OX_SIM_CORES, 0)];
        const uint32_t parts = (uint32_t)draw(seed, &counter, 4);
        work->latency = draw(seed, &counter, 2) < 1 ? 0 : draw(seed, &counter, 1);
        for (uint32_t j = 0; j < parts; j++) {
            work->use[(int)draw(seed, &counter, OX_SIM_RESOURCE_COUNT)] = draw(seed, &counter, 1);
        }
        for (int r = 0; r < OX_SIM_RESOURCE_COUNT; r++) {
            work->seconds = fmax(work->seconds, work->use[r]);
        }
        work->seconds = fmax(work->seconds, ox_sim_duplex_seconds(&s->limits.nvme, work->use[OX_SIM_NVME_READ],
                                                                  work->use[OX_SIM_NVME_WRITE]));
        work->seconds = fmax(work->seconds,
                             ox_sim_duplex_seconds(&s->limits.link, work->use[OX_SIM_H2D], work->use[OX_SIM_D2H]));
        work->seconds *= 1 + draw(seed, &counter, 1);
        work->tail = lane == OX_LANE_ADAM && draw(seed, &counter, 2) < 1 ? draw(seed, &counter, 0.5) : 0;
        for (int j = 0; j < 2 && i > 0; j++) {
            const uint32_t dep = (uint32_t)draw(seed, &counter, i);
            if (s->tasks[dep].lane != lane) {
                after(s, i, dep);
            }
        }
    }
}

/* The longest way through lanes and dependencies, as if nothing were shared. */
static double critical_path(const struct script *s) {
    double end_of[TASKS_MAX], lane_end[OX_LANE_COUNT] = {0}, longest = 0;
    for (uint32_t i = 0; i < s->plan.task_count; i++) {
        const struct ox_task *const task = &s->tasks[i];
        double from = lane_end[task->lane];
        for (int j = 0; j < OX_LANE_COUNT; j++) {
            from = task->deps[j] == 0 ? from : fmax(from, end_of[task->deps[j] - 1]);
        }
        end_of[i] = lane_end[task->lane] = from + s->works[i].latency + s->works[i].seconds;
        longest = fmax(longest, end_of[i]);
    }
    return longest;
}

static void check_bounds(struct ox_sim *sim, const struct script *s, const struct ox_sim_result *result) {
    double used[OX_SIM_RESOURCE_COUNT] = {0}, sum = 0;
    for (uint32_t i = 0; i < s->plan.task_count; i++) {
        const struct ox_sim_work *const work = &s->works[i];
        sum += work->latency + work->seconds + work->tail;
        used[OX_SIM_NVME_WRITE] += work->tail;
        for (int r = 0; r < OX_SIM_RESOURCE_COUNT; r++) {
            used[r] += work->use[r];
        }
        CHECK(ox_sim_end(sim, i) - ox_sim_begin(sim, i) >= (work->latency + work->seconds) * (1 - 1e-9));
        for (int j = 0; j < OX_LANE_COUNT; j++) {
            const uint32_t dep = s->tasks[i].deps[j];
            CHECK(dep == 0 || ox_sim_begin(sim, i) >= ox_sim_end(sim, dep - 1));
        }
    }
    for (int r = 0; r < OX_SIM_RESOURCE_COUNT; r++) {
        CHECK(result->seconds >= used[r] * (1 - 1e-9));
        CHECK(near(result->used[r], used[r]));
    }
    CHECK(result->seconds >= (used[OX_SIM_NVME_READ] + used[OX_SIM_NVME_WRITE]) / s->limits.nvme.together * (1 - 1e-9));
    CHECK(result->seconds >= critical_path(s) * (1 - 1e-9));
    CHECK(result->seconds <= sum * (1 + 1e-9));
    CHECK(result->binding_share <= 1 + 1e-9);
    for (int i = 0; i < OX_LANE_COUNT; i++) {
        const struct ox_sim_lane *const lane = &result->lanes[i];
        CHECK(lane->busy + ox_sim_stalled(lane) + lane->unissued <= result->seconds * (1 + 1e-9));
    }
}

static void test_bounds(struct ox_sim *sim) {
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct script s;
        draw_script(&s, seed);
        const struct ox_sim_result result = play(sim, &s);
        check_bounds(sim, &s, &result);
        const struct ox_sim_result again = play(sim, &s);
        CHECK(memcmp(&result, &again, sizeof result) == 0);
        for (uint32_t i = 0; i < s.plan.task_count; i++) { /* everything twice as fast */
            s.works[i].latency /= 2;
            s.works[i].seconds /= 2;
            s.works[i].tail /= 2;
            for (int r = 0; r < OX_SIM_RESOURCE_COUNT; r++) {
                s.works[i].use[r] /= 2;
            }
        }
        CHECK(near(play(sim, &s).seconds, result.seconds / 2));
    }
}

/* Where nothing is shared, a step is never slower because a resource is faster. (Where tasks share, it may be: what
 * ends earlier lets something else begin earlier, and that may be in the way.) */
static void test_monotone(struct ox_sim *sim) {
    for (uint64_t seed = 0; seed < 100; seed++) {
        struct script s;
        draw_script(&s, seed);
        for (uint32_t i = 0; i < s.plan.task_count; i++) {
            memset(s.works[i].use, 0, sizeof s.works[i].use);
            s.works[i].tail = 0;
            s.works[i].use[s.tasks[i].lane % OX_SIM_RESOURCE_COUNT] = s.works[i].seconds / 2;
        }
        s.limits.nvme.together = s.limits.link.together = 2;
        double before = play(sim, &s).seconds;
        for (int lane = 0; lane < OX_LANE_COUNT; lane++) {
            for (uint32_t i = 0; i < s.plan.task_count; i++) {
                if (s.tasks[i].lane == lane) {
                    s.works[i].seconds *= 0.7;
                    s.works[i].use[lane % OX_SIM_RESOURCE_COUNT] *= 0.7;
                }
            }
            const double seconds = play(sim, &s).seconds;
            CHECK(seconds <= before * (1 + 1e-9));
            before = seconds;
        }
    }
}

int main(void) {
    struct ox_sim *sim = NULL;
    REQUIRE_OK(ox_sim_open(TASKS_MAX, &sim));
    test_chain_and_overlap(sim);
    test_sharing(sim);
    test_duplex(sim);
    test_latency(sim);
    test_issue(sim);
    test_tail(sim);
    test_bounds(sim);
    test_monotone(sim);
    ox_sim_close(&sim);
    return test_end();
}
