#include "offload/sim/sim.h"

#include "base/assert.h"

#include <stdlib.h>
#include <string.h>

/* Slots for tasks that run: one per lane, and one for writes that outlive their task. */
enum { TAIL = OX_LANE_COUNT, ACTIVE_COUNT = OX_LANE_COUNT + 1 };
/* Limits: one per resource, then one per pair of directions. */
enum { PAIR_NVME = OX_SIM_RESOURCE_COUNT, PAIR_LINK, LIMIT_COUNT };

struct active {
    bool runs;
    uint32_t task_idx;
    struct ox_sim_work work;
    double asks[LIMIT_COUNT]; /* demand for each limit at full speed */
    double latency; /* seconds still to pass */
    double left;    /* share of the work, from 1 to 0 */
    double speed;   /* relative to its speed alone */
    double due;     /* seconds until its latency or its work ends, by the speed of the moment */
};

/* Tasks whose latency is over, and which therefore share resources now; in order of lanes. */
struct crowd {
    struct active *members[ACTIVE_COUNT];
    int count;
    double limits[LIMIT_COUNT];
};

/* `end` is negative until the task is done. */
struct times {
    double begin, end;
};

struct ox_sim {
    uint32_t task_max;
    struct times *times;
    uint32_t *next_in_lane; /* 1 + task index; 0 = last of its lane */
    /* The rest describes the plan that is running. */
    const struct ox_plan *plan;
    struct ox_sim_limits limits;
    ox_sim_work_fn *work;
    const void *context;
    struct ox_sim_result *result;
    double now;
    struct ox_sim *const *others; /* the ranks of a pipeline that are played together, this one among them; or NULL */
    uint32_t other_count;
    uint32_t issued;  /* number of tasks issued, in order of the plan */
    uint32_t head[OX_LANE_COUNT]; /* 1 + the lane's next task; 0 = none */
    double free_since[OX_LANE_COUNT], issued_at[OX_LANE_COUNT]; /* per lane; issued_at: when its next task was issued */
    struct active active[ACTIVE_COUNT];
    struct crowd crowd;
    bool crowd_changed; /* a member came or went since speeds were set */
    bool seconds_alone; /* of the result nothing else is asked for */
    double bound[OX_SIM_RESOURCE_COUNT]; /* seconds times the share of the limit in use */
};

const char *ox_sim_resource_name(enum ox_sim_resource resource) {
    static const char *const names[OX_SIM_RESOURCE_COUNT] = {"gpu", "cores", "memory", "nvme_read", "nvme_write",
                                                             "h2d", "d2h", "peer_in", "peer_out"};
    OX_ASSERT((unsigned)resource < OX_SIM_RESOURCE_COUNT);
    return names[resource];
}

double ox_sim_stalled(const struct ox_sim_lane *lane) {
    double seconds = 0;
    for (int i = 0; i < OX_LANE_COUNT; i++) {
        seconds += lane->waited_for[i];
    }
    return seconds;
}

/* ---- two directions ----------------------------------------------------------------------------- */

static double min(double a, double b) {
    return a < b ? a : b;
}

static double max(double a, double b) {
    return a > b ? a : b;
}

struct ox_sim_duplex ox_sim_duplex_of(double read_rate, double write_rate, double mix_rate) {
    if (read_rate <= 0 || write_rate <= 0 || mix_rate <= 0) {
        return (struct ox_sim_duplex){.together = 1, .balance = 1};
    }
    const double read = min(mix_rate / 2 / read_rate, 1), write = min(mix_rate / 2 / write_rate, 1);
    return (struct ox_sim_duplex){.together = read + write, .balance = min(read, write) / max(read, write)};
}

/* The limit of both directions together for this demand: that of one direction if the other's demand is small. */
static double limit_of(const struct ox_sim_duplex *duplex, double read, double write) {
    const double more = max(read, write);
    const double balance = more > 0 ? min(read, write) / more : 0;
    return 1 + (duplex->together - 1) * min(balance / duplex->balance, 1);
}

double ox_sim_duplex_seconds(const struct ox_sim_duplex *duplex, double read_seconds, double write_seconds) {
    const double both = (read_seconds + write_seconds) / limit_of(duplex, read_seconds, write_seconds);
    return max(max(read_seconds, write_seconds), both);
}

/* ---- speeds --------------------------------------------------------------------------------------- */

static void set_asks(struct active *active) {
    const double *const use = active->work.use;
    for (int r = 0; r < OX_SIM_RESOURCE_COUNT; r++) {
        active->asks[r] = use[r] / active->work.seconds;
    }
    active->asks[PAIR_NVME] = (use[OX_SIM_NVME_READ] + use[OX_SIM_NVME_WRITE]) / active->work.seconds;
    active->asks[PAIR_LINK] = (use[OX_SIM_H2D] + use[OX_SIM_D2H]) / active->work.seconds;
}

static bool shares(const struct active *active) {
    return active->runs && active->latency == 0 && active->left > 0;
}

static void gather(struct ox_sim *sim, struct crowd *crowd) {
    double asked[LIMIT_COUNT] = {0};
    crowd->count = 0;
    for (int i = 0; i < ACTIVE_COUNT; i++) {
        struct active *const active = &sim->active[i];
        if (shares(active)) {
            crowd->members[crowd->count++] = active;
            for (int r = 0; r < OX_SIM_RESOURCE_COUNT; r++) {
                asked[r] += active->asks[r];
            }
        }
    }
    for (int r = 0; r < OX_SIM_RESOURCE_COUNT; r++) {
        crowd->limits[r] = 1;
    }
    crowd->limits[PAIR_NVME] = limit_of(&sim->limits.nvme, asked[OX_SIM_NVME_READ], asked[OX_SIM_NVME_WRITE]);
    crowd->limits[PAIR_LINK] = limit_of(&sim->limits.link, asked[OX_SIM_H2D], asked[OX_SIM_D2H]);
}

/* The common speed, at most 1, at which the members that are not settled yet reach a limit; *tightest is that limit, or
 * -1. */
static double common_speed(const struct crowd *crowd, const bool settled[ACTIVE_COUNT], int *tightest) {
    double speed = 1, asked[LIMIT_COUNT] = {0}, given[LIMIT_COUNT] = {0};
    *tightest = -1;
    for (int i = 0; i < crowd->count; i++) {
        const struct active *const active = crowd->members[i];
        double *const sums = settled[i] ? given : asked;
        const double at = settled[i] ? active->speed : 1;
        for (int limit = 0; limit < LIMIT_COUNT; limit++) {
            sums[limit] += active->asks[limit] * at;
        }
    }
    for (int limit = 0; limit < LIMIT_COUNT; limit++) {
        const double left = crowd->limits[limit] - given[limit];
        if (asked[limit] > 0 && asked[limit] * speed > left && left / asked[limit] < speed) {
            speed = max(left / asked[limit], 0);
            *tightest = limit;
        }
    }
    return speed;
}

/* Slows all members down alike until they keep a limit; those that do not use the limited resource may then run
 * faster. */
static void set_speeds(struct crowd *crowd) {
    bool settled[ACTIVE_COUNT] = {false};
    for (int round = 0; round < ACTIVE_COUNT; round++) {
        int tightest = -1;
        const double speed = common_speed(crowd, settled, &tightest);
        for (int i = 0; i < crowd->count; i++) {
            if (!settled[i]) {
                crowd->members[i]->speed = speed;
                settled[i] = tightest < 0 || crowd->members[i]->asks[tightest] > 0;
            }
        }
        if (tightest < 0) {
            return;
        }
    }
}

/* ---- tasks ---------------------------------------------------------------------------------------- */

static bool is_done(const struct ox_sim *sim, uint32_t task_idx) {
    return sim->times[task_idx].end >= 0;
}

/* Issues tasks in order of the plan. Issue waits for the task `run_ahead_tasks` before, for the norm, which decides
 * what follows, and for what a task asks. */
static void issue(struct ox_sim *sim) {
    const struct ox_plan *const plan = sim->plan;
    const uint32_t ahead = sim->limits.run_ahead_tasks;
    while (sim->issued < plan->task_count) {
        const uint32_t idx = sim->issued;
        if ((ahead > 0 && idx >= ahead && !is_done(sim, idx - ahead)) ||
            (plan->tasks[idx].asks > 0 && !is_done(sim, plan->tasks[idx].asks - 1)) ||
            (idx > 0 && plan->tasks[idx - 1].kind == OX_TASK_NORM && !is_done(sim, idx - 1))) {
            return;
        }
        if (sim->head[plan->tasks[idx].lane] == idx + 1) {
            sim->issued_at[plan->tasks[idx].lane] = sim->now;
        }
        sim->issued++;
    }
}

/* Adds the writes that the lane's last task left in flight to this one. */
static void take_tail(struct ox_sim *sim, struct ox_sim_work *work) {
    struct active *const tail = &sim->active[TAIL];
    if (!tail->runs) {
        return;
    }
    work->use[OX_SIM_NVME_WRITE] += tail->work.use[OX_SIM_NVME_WRITE] * tail->left;
    const double seconds = ox_sim_duplex_seconds(&sim->limits.nvme, work->use[OX_SIM_NVME_READ],
                                                 work->use[OX_SIM_NVME_WRITE]);
    work->seconds = max(work->seconds, seconds + work->unhidden);
    tail->runs = false;
    sim->crowd_changed = true;
}

static void note_wait(struct ox_sim *sim, int lane, const struct ox_task *task) {
    struct ox_sim_lane *const out = &sim->result->lanes[lane];
    const double from = max(sim->free_since[lane], sim->issued_at[lane]);
    out->unissued += from - sim->free_since[lane];
    double last = from;
    int last_lane = -1;
    for (int i = 0; i < OX_LANE_COUNT; i++) {
        if (task->deps[i] != 0 && sim->times[task->deps[i] - 1].end > last) {
            last = sim->times[task->deps[i] - 1].end;
            last_lane = i;
        }
    }
    if (last_lane >= 0) {
        out->waited_for[last_lane] += last - from;
    }
}

/* Whether the rank has come to the next task of a lane. */
static bool is_ready(const struct ox_sim *sim, int lane) {
    const uint32_t head = sim->head[lane];
    if (head == 0 || head > sim->issued || sim->active[lane].runs) {
        return false;
    }
    const struct ox_task *const task = &sim->plan->tasks[head - 1];
    bool ready = true;
    for (int i = 0; i < OX_LANE_COUNT && ready; i++) {
        ready = task->deps[i] == 0 || is_done(sim, task->deps[i] - 1);
    }
    return ready;
}

static void start_now(struct ox_sim *sim, int lane) {
    const uint32_t head = sim->head[lane];
    const struct ox_task *const task = &sim->plan->tasks[head - 1];
    if (!sim->seconds_alone) {
        note_wait(sim, lane, task);
    }
    struct ox_sim_work work = sim->work(sim->context, sim->plan, head - 1);
    if (lane == OX_LANE_ADAM) {
        take_tail(sim, &work);
    }
    sim->active[lane] = (struct active){
        .runs = true, .task_idx = head - 1, .work = work, .latency = work.latency, .left = work.seconds > 0 ? 1 : 0};
    if (work.seconds > 0) {
        set_asks(&sim->active[lane]);
    }
    sim->crowd_changed |= shares(&sim->active[lane]);
    sim->times[head - 1].begin = sim->now;
    sim->head[lane] = sim->next_in_lane[head - 1];
    if (sim->head[lane] != 0 && sim->head[lane] <= sim->issued) {
        sim->issued_at[lane] = sim->now; /* it was issued in time and does not delay the lane */
    }
}

/* Whether all ranks of a pipeline do the task at the same time. */
static bool is_of_all(const struct ox_task *task) {
    return task->kind == OX_TASK_NORM || task->kind == OX_TASK_BEGIN || task->kind == OX_TASK_COMMIT ||
           (task->kind == OX_TASK_MOVE && task->lane == OX_LANE_LINK &&
            (task->move == OX_MOVE_LOSSES || task->axis == OX_AXIS_PIPE));
}

/* Lets both ends of a transfer start, if both ranks have come to it. */
static bool start_transfer(struct ox_sim *sim, int lane) {
    const struct ox_task *const task = &sim->plan->tasks[sim->head[lane] - 1];
    const int other_lane = lane == OX_LANE_LINK_IN ? OX_LANE_LINK_OUT : OX_LANE_LINK_IN;
    struct ox_sim *const other = sim->others[task->peer];
    if (!is_ready(other, other_lane)) {
        return false;
    }
    const struct ox_task *const end = &other->plan->tasks[other->head[other_lane] - 1];
    if (sim->others[end->peer] != sim) {
        return false;
    }
    start_now(sim, lane);
    start_now(other, other_lane);
    return true;
}

static bool start_all(struct ox_sim *sim, int lane) {
    bool ready = true;
    for (uint32_t i = 0; i < sim->other_count && ready; i++) {
        const struct ox_sim *const other = sim->others[i];
        ready = is_ready(other, lane) && is_of_all(&other->plan->tasks[other->head[lane] - 1]);
    }
    for (uint32_t i = 0; i < sim->other_count && ready; i++) {
        start_now(sim->others[i], lane);
    }
    return ready;
}

static bool start(struct ox_sim *sim, int lane) {
    if (!is_ready(sim, lane)) {
        return false;
    }
    const struct ox_task *const task = &sim->plan->tasks[sim->head[lane] - 1];
    if (sim->others != NULL && task->peer != OX_NONE) {
        return start_transfer(sim, lane);
    }
    if (sim->others != NULL && is_of_all(task)) {
        return start_all(sim, lane);
    }
    start_now(sim, lane);
    return true;
}

static void leave_tail(struct ox_sim *sim, double seconds) {
    if (seconds <= 0) {
        return;
    }
    struct active *const tail = &sim->active[TAIL];
    OX_ASSERT(!tail->runs);
    *tail = (struct active){.runs = true, .left = 1, .work = {.seconds = seconds}};
    tail->work.use[OX_SIM_NVME_WRITE] = seconds;
    set_asks(tail);
    sim->crowd_changed = true;
}

static void end(struct ox_sim *sim, int place) {
    struct active *const active = &sim->active[place];
    sim->crowd_changed |= shares(active);
    active->runs = false;
    if (place == TAIL) {
        return;
    }
    struct times *const times = &sim->times[active->task_idx];
    times->end = sim->now;
    sim->free_since[place] = sim->now;
    sim->result->lanes[place].busy += times->end - times->begin;
    leave_tail(sim, active->work.tail);
}

/* ---- time ----------------------------------------------------------------------------------------- */

static double time_left(const struct active *active) {
    if (active->latency > 0 || active->left == 0) {
        return active->latency;
    }
    return active->left * active->work.seconds / active->speed;
}

/* Seconds until the next latency or task ends; negative if nothing runs. */
static double next_event(struct ox_sim *sim) {
    double least = -1;
    for (int i = 0; i < ACTIVE_COUNT; i++) {
        struct active *const active = &sim->active[i];
        if (active->runs) {
            active->due = time_left(active);
            least = least < 0 || active->due < least ? active->due : least;
        }
    }
    return least;
}

static void count_use(struct ox_sim *sim, const struct crowd *crowd, double seconds) {
    double used[LIMIT_COUNT] = {0};
    for (int i = 0; i < crowd->count; i++) {
        const struct active *const active = crowd->members[i];
        for (int limit = 0; limit < LIMIT_COUNT; limit++) {
            used[limit] += active->asks[limit] * active->speed;
        }
    }
    used[PAIR_NVME] /= crowd->limits[PAIR_NVME];
    used[PAIR_LINK] /= crowd->limits[PAIR_LINK];
    for (int r = 0; r < OX_SIM_RESOURCE_COUNT; r++) {
        const bool nvme = r == OX_SIM_NVME_READ || r == OX_SIM_NVME_WRITE, link = r == OX_SIM_H2D || r == OX_SIM_D2H;
        const int pair = nvme ? PAIR_NVME : link ? PAIR_LINK : r;
        sim->result->used[r] += used[r] * seconds;
        sim->bound[r] += max(used[r], used[pair]) * seconds;
    }
}

static void pass(struct ox_sim *sim, double seconds) {
    sim->now += seconds;
    for (int i = TAIL; i >= 0; i--) { /* the tail comes first, because a task that ends may leave a new one */
        struct active *const active = &sim->active[i];
        if (!active->runs) {
            continue;
        }
        const bool over = active->due <= seconds;
        if (active->latency > 0) {
            active->latency = over ? 0 : active->latency - seconds;
            sim->crowd_changed |= shares(active);
            if (over && active->left == 0) {
                end(sim, i);
            }
        } else if (over) {
            end(sim, i);
        } else {
            active->left = max(active->left - seconds * active->speed / active->work.seconds, 0);
            sim->crowd_changed |= active->left == 0;
        }
    }
}

static void bind(struct ox_sim *sim) {
    struct ox_sim_result *const out = sim->result;
    for (int r = 0; r < OX_SIM_RESOURCE_COUNT; r++) {
        const double more = sim->bound[r] - sim->bound[out->binding];
        if (more > 0 || (more == 0 && out->used[r] > out->used[out->binding])) {
            out->binding = (enum ox_sim_resource)r;
        }
    }
    out->binding_share = out->seconds > 0 ? sim->bound[out->binding] / out->seconds : 0;
}

static void begin_plan(struct ox_sim *sim) {
    const struct ox_plan *const plan = sim->plan;
    uint32_t last[OX_LANE_COUNT] = {0};
    sim->now = 0;
    sim->issued = 0;
    memset(sim->head, 0, sizeof sim->head);
    memset(sim->free_since, 0, sizeof sim->free_since);
    memset(sim->issued_at, 0, sizeof sim->issued_at);
    memset(sim->active, 0, sizeof sim->active);
    memset(sim->bound, 0, sizeof sim->bound);
    sim->crowd.count = 0;
    sim->crowd_changed = true;
    for (uint32_t i = 0; i < plan->task_count; i++) {
        const uint8_t lane = plan->tasks[i].lane;
        sim->times[i] = (struct times){.begin = -1, .end = -1};
        sim->next_in_lane[i] = 0;
        *(last[lane] == 0 ? &sim->head[lane] : &sim->next_in_lane[last[lane] - 1]) = i + 1;
        last[lane] = i + 1;
    }
}

/* Lets time pass until the next event of any of these ranks; false when nothing runs any more. */
static bool play_on(struct ox_sim *const *sims, uint32_t count) {
    double seconds = -1;
    for (uint32_t i = 0; i < count; i++) {
        issue(sims[i]);
    }
    for (uint32_t i = 0; i < count; i++) {
        for (int lane = 0; lane < OX_LANE_COUNT; lane++) {
            start(sims[i], lane);
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        if (sims[i]->crowd_changed) {
            gather(sims[i], &sims[i]->crowd);
            set_speeds(&sims[i]->crowd);
            sims[i]->crowd_changed = false;
        }
        const double next = next_event(sims[i]);
        seconds = next >= 0 && (seconds < 0 || next < seconds) ? next : seconds;
    }
    for (uint32_t i = 0; i < count && seconds >= 0; i++) {
        if (!sims[i]->seconds_alone) {
            count_use(sims[i], &sims[i]->crowd, seconds);
        }
        pass(sims[i], seconds);
    }
    return seconds >= 0;
}

static void begin_play(struct ox_sim *sim, const struct ox_sim_list *list, struct ox_sim_result *out) {
    OX_ASSERT(list->plan->task_count <= sim->task_max);
    *out = (struct ox_sim_result){0};
    sim->plan = list->plan;
    sim->limits = list->limits;
    sim->work = list->work;
    sim->context = list->context;
    sim->result = out;
    sim->others = NULL;
    begin_plan(sim);
}

static void end_play(struct ox_sim *sim, double seconds) {
    for (int lane = 0; lane < OX_LANE_COUNT; lane++) {
        OX_ASSERT(sim->head[lane] == 0); /* lists are proven, so every task is reached */
    }
    sim->result->seconds = seconds;
    bind(sim);
}

void ox_sim_play(struct ox_sim *sim, const struct ox_plan *plan, const struct ox_sim_limits *limits,
                 ox_sim_work_fn *work, const void *context, struct ox_sim_result *out) {
    begin_play(sim, &(struct ox_sim_list){.plan = plan, .limits = *limits, .work = work, .context = context}, out);
    while (play_on(&sim, 1)) {
    }
    end_play(sim, sim->now);
}

static struct ox_sim_work known_work(const void *context, const struct ox_plan *plan, uint32_t task_idx) {
    (void)plan;
    return ((const struct ox_sim_work *)context)[task_idx];
}

double ox_sim_known_seconds(struct ox_sim *sim, const struct ox_plan *plan, const struct ox_sim_setup *setup,
                            const struct ox_sim_work *works) {
    const struct ox_sim_limits limits = ox_sim_limits_of(setup);
    struct ox_sim_result result;
    sim->seconds_alone = true;
    ox_sim_play(sim, plan, &limits, known_work, works, &result);
    sim->seconds_alone = false;
    return result.seconds;
}

double ox_sim_play_pipe(struct ox_sim *const *sims, const struct ox_sim_list *lists, uint32_t count,
                        struct ox_sim_result *out) {
    double seconds = 0;
    for (uint32_t i = 0; i < count; i++) {
        begin_play(sims[i], &lists[i], &out[i]);
        sims[i]->others = sims;
        sims[i]->other_count = count;
    }
    while (play_on(sims, count)) {
    }
    for (uint32_t i = 0; i < count; i++) {
        seconds = max(seconds, sims[i]->now);
    }
    for (uint32_t i = 0; i < count; i++) {
        end_play(sims[i], seconds);
    }
    return seconds;
}

double ox_sim_begin(const struct ox_sim *sim, uint32_t task_idx) {
    return sim->times[task_idx].begin;
}

double ox_sim_end(const struct ox_sim *sim, uint32_t task_idx) {
    return sim->times[task_idx].end;
}

/* ---- opening -------------------------------------------------------------------------------------- */

enum ox_status ox_sim_open(uint32_t task_max, struct ox_sim **out) {
    *out = NULL;
    const size_t bytes = sizeof **out + (size_t)task_max * (sizeof(struct times) + sizeof(uint32_t));
    struct ox_sim *const sim = calloc(1, bytes);
    if (sim == NULL) {
        return ox_fail(OX_E_NOMEM, "simulator: no memory for %u tasks", task_max);
    }
    sim->task_max = task_max;
    sim->times = (struct times *)(sim + 1);
    sim->next_in_lane = (uint32_t *)(sim->times + task_max);
    *out = sim;
    return OX_OK;
}

void ox_sim_close(struct ox_sim **sim) {
    free(*sim);
    *sim = NULL;
}
