/* One process of several fails at any call to the others, before or after these have come to it, or at its drive, or
 * ends there: at a transfer of a pipeline too, and where ranks of both divide features, or experts, whose rows they
 * send each other in rounds. No process hangs. All return the same status, with a text that says what failed, or where
 * all had come to a call whose end one did not hear of, the others learn it at their next call. They then go back
 * together, in the same engines where these can still reach each other, else opened anew, to one step: no commit is
 * lost that a call has reported, on any of them. What follows has the bits of one process.
 *
 *     test_process_faults [STRIDE [PLACE]]: tries every STRIDE-th of the faults, and all at the vote, at one place
 *     alone; OX_TEST_ALL=2: all */
#include "engine/step/engine_internal.h"
#include "tests/kit/store/io_sim.h"
#include "tests/kit/comm/process_threads.h"
#include "tests/kit/run/golden.h"
#include "tests/kit/test.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STRIDE = 397, VOTE_STRIDE = 41, SPEED = 4 };
#else
enum { STRIDE = 197, VOTE_STRIDE = 29, SPEED = 1 };
#endif
#if defined(__SANITIZE_ADDRESS__)
/* What the wire may still write is left to it where a sum was given up (remote_free). */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) {
    return "leak:remote_open\n";
}
#endif
/* Slots: the endpoint of the team, those of the ranks with all others, those with their groups. */
enum { PROCESSES = 2, SEATS_MAX = 2, GROUPS_OF_RANK = OX_COMM_SPLITS, POINTS = 3 };
enum { SLOTS_MAX = 1 + SEATS_MAX * (1 + GROUPS_OF_RANK) };
enum { STEPS = 4, FAULT_STEP = 2, GROUPS = 4, HANG_SECONDS = 200, FAILURES_MAX = 10, NOTHING = UINT32_MAX };

#define NVME   OX_TIER_NVME
#define HOST   OX_TIER_HOST
#define DEVICE OX_TIER_DEVICE
static const struct example {
    struct harness_place place;
    uint32_t persist_steps;
    uint32_t pipe, chunks; /* coordinates of a pipeline, one a process or more, and runs of stages of each; 0: none */
    enum ox_pipe_schedule schedule;
    uint32_t tensors; /* ranks that divide features; 0: 1 */
    uint32_t experts; /* and experts, of another model; with more ranks, several have the same; 0: 1 */
} examples[] = {
    {.place = {.name = "all on NVMe", .request = {99, 2, NVME, NVME, NVME, NVME, 0, 0}, .drives = 2}},
    {.place = {.name = "overlapped", .request = {1, 1, HOST, HOST, NVME, HOST, 1, 0}, .drives = 1}},
    {.place = {.name = "overlapped, speculative", .request = {1, 1, NVME, NVME, NVME, NVME, 1, 2}, .drives = 1}},
    {.place = {.name = "in memory, persisted", .request = {1, 2, HOST, HOST, HOST, HOST, 0, 0}, .drives = 1},
     .persist_steps = 100},
    {.place = {.name = "overlapped in memory, persisted", .request = {1, 2, DEVICE, DEVICE, HOST, HOST, 1, 0},
               .drives = 1},
     .persist_steps = 100},
    {.place = {.name = "on the device", .request = {1, 2, DEVICE, DEVICE, DEVICE, DEVICE, 1, 0}, .drives = 1}},
    {.place = {.name = "pipeline, vertical", .request = {99, 2, NVME, NVME, NVME, NVME, 0, 0}, .drives = 1}, .pipe = 2},
    {.place = {.name = "pipeline, gpipe", .request = {1, 1, HOST, HOST, NVME, HOST, 1, 0}, .drives = 1}, .pipe = 2,
     .schedule = OX_PIPE_GPIPE},
    {.place = {.name = "pipeline, 1f1b", .request = {1, 2, HOST, HOST, HOST, HOST, 0, 0}, .drives = 1},
     .persist_steps = 100, .pipe = 2, .schedule = OX_PIPE_1F1B},
    {.place = {.name = "pipeline, interleaved", .request = {1, 2, DEVICE, DEVICE, DEVICE, DEVICE, 1, 0}, .drives = 1},
     .pipe = 2, .schedule = OX_PIPE_INTERLEAVED, .chunks = 2},
    {.place = {.name = "divided features", .request = {1, 1, HOST, HOST, NVME, HOST, 0, 0}, .drives = 1}, .tensors = 2},
    {.place = {.name = "divided experts", .request = {99, 2, NVME, NVME, NVME, NVME, 0, 0}, .drives = 1}, .experts = 2},
    {.place = {.name = "divided experts, speculative", .request = {1, 1, HOST, HOST, NVME, HOST, 1, 2}, .drives = 1},
     .experts = 2},
};
enum { EXAMPLES = sizeof examples / sizeof *examples };

/* ---- the fault --------------------------------------------------------------------------------------------- */

/* What happens to a call: the others never hear of it; they do, and this process does not hear of them; or either, and
 * it ends. Or a request to its drive fails. */
enum way { BEFORE, AFTER, ENDS_BEFORE, ENDS_AFTER, DRIVE, WAY_COUNT };
static const char *const way_names[] = {"before", "after", "ends before", "ends after", "drive"};
static const enum ox_fault_point points[POINTS] = {OX_FAULT_ON_READ, OX_FAULT_ON_WRITE, OX_FAULT_ON_FLUSH};

/* Where processes are when one fails: in a step and what follows it, or opening their stores. */
enum window { IN_STEP, IN_OPEN, WINDOW_COUNT };

static struct fault {
    uint32_t process, slot; /* the endpoint: the team's, then those of the ranks; or the point of its drive */
    uint64_t at;            /* which call */
    const char *what;       /* not NULL: the first call of this name */
    enum way way;
} fault;
static atomic_bool armed, ended[PROCESSES];
static atomic_uint calls[PROCESSES][SLOTS_MAX];
static char hit_what[OX_COMM_WHAT_BYTES]; /* the name of the call that failed; empty: none has */
static pthread_mutex_t hit_lock = PTHREAD_MUTEX_INITIALIZER;

struct watched {
    struct ox_comm base;
    uint32_t process, slot;
};

static bool is_hit(const struct watched *self, unsigned turn, const char *what) {
    if (!atomic_load(&armed) || fault.way == DRIVE || self->process != fault.process || self->slot != fault.slot ||
        (fault.what != NULL ? strcmp(fault.what, what) != 0 : turn != fault.at)) {
        return false;
    }
    pthread_mutex_lock(&hit_lock);
    const bool first = hit_what[0] == '\0';
    if (first) {
        snprintf(hit_what, sizeof hit_what, "%s", what);
    }
    pthread_mutex_unlock(&hit_lock);
    return first;
}

static enum ox_status fail_now(const struct watched *self) {
    if (fault.way == ENDS_BEFORE || fault.way == ENDS_AFTER) {
        process_lose(self->process); /* first: what its other rank says of the end must not leave it */
        atomic_store(&ended[self->process], true);
    }
    return ox_fail(OX_E_COMM, "injected fault");
}

static enum ox_status begin(struct ox_comm *comm, const char *what, bool *hit) {
    const struct watched *const self = (const struct watched *)comm;
    *hit = is_hit(self, atomic_fetch_add(&calls[self->process][self->slot], 1), what);
    return *hit && (fault.way == BEFORE || fault.way == ENDS_BEFORE) ? fail_now(self)
           : atomic_load(&ended[self->process]) ? ox_fail(OX_E_COMM, "this process has ended") : OX_OK;
}

static enum ox_status end(struct ox_comm *comm, bool hit, enum ox_status status) {
    const struct watched *const self = (const struct watched *)comm;
    return status == OX_OK && hit ? fail_now(self) : status;
}

static enum ox_status watched_gather(struct ox_comm *comm, const struct ox_comm_gather *call) {
    bool hit = false;
    enum ox_status status = begin(comm, call->what, &hit);
    OX_THEN(status, ox_comm_gather(comm->inner, call));
    return end(comm, hit, status);
}

static enum ox_status watched_exchange(struct ox_comm *comm, const struct ox_comm_exchange *call) {
    bool hit = false;
    enum ox_status status = begin(comm, call->what, &hit);
    OX_THEN(status, ox_comm_exchange(comm->inner, call));
    return end(comm, hit, status);
}

static enum ox_status watched_send(struct ox_comm *comm, const struct ox_comm_send *call) {
    bool hit = false;
    enum ox_status status = begin(comm, call->what, &hit);
    OX_THEN(status, ox_comm_send(comm->inner, call));
    return end(comm, hit, status);
}

static enum ox_status watched_recv(struct ox_comm *comm, const struct ox_comm_recv *call) {
    bool hit = false;
    enum ox_status status = begin(comm, call->what, &hit);
    OX_THEN(status, ox_comm_recv(comm->inner, call));
    return end(comm, hit, status);
}

static enum ox_status watched_meet(struct ox_comm *comm, const struct ox_comm_meet *call) {
    bool hit = false;
    enum ox_status status = begin(comm, call->what, &hit);
    OX_THEN(status, ox_comm_meet(comm->inner, call));
    return end(comm, hit, status);
}

static enum ox_status watched_revive(struct ox_comm *comm) {
    bool hit = false;
    enum ox_status status = begin(comm, "revive", &hit);
    OX_THEN(status, ox_comm_revive(comm->inner));
    return end(comm, hit, status);
}

static void watched_abort(struct ox_comm *comm, enum ox_status status, const char *text) {
    ox_comm_abort(comm->inner, status, text);
}

static enum ox_status watched_cause(struct ox_comm *comm) {
    return ox_comm_cause(comm->inner);
}

static void watched_close(struct ox_comm *comm) {
    ox_comm_close(&comm->inner);
    free(comm);
}

static struct ox_comm_ops watched_ops = {
    .name = "watched",
    .gather = watched_gather,
    .exchange = watched_exchange,
    .send = watched_send,
    .recv = watched_recv,
    .meet = watched_meet,
    .abort = watched_abort,
    .cause = watched_cause,
    .revive = watched_revive,
    .close = watched_close,
};

static _Thread_local uint32_t opened;
static uint32_t seats; /* of a process */

static struct ox_comm *watch(struct ox_comm *comm, struct ox_comm *all, uint32_t split) {
    struct watched *const self = calloc(1, sizeof *self);
    if (split == PROCESS_WHOLE) {
        self->process = process_idx();
        self->slot = opened == 0 ? 0 : 1 + (opened - 1) % seats;
        opened++;
    } else {
        self->process = ((struct watched *)all)->process;
        self->slot = 1 + seats + (((struct watched *)all)->slot - 1) * GROUPS_OF_RANK + split;
    }
    self->base = (struct ox_comm){.ops = &watched_ops, .rank = comm->rank, .count = comm->count,
                                  .members = comm->members, .inner = comm};
    pthread_mutex_init(&self->base.lock, NULL);
    return &self->base;
}

/* ---- the drives of each process ----------------------------------------------------------------------------- */

static struct ox_io_backend mortal[PROCESSES]; /* does nothing once the process has ended */
static struct ox_io_backend *drives[PROCESSES];

static enum ox_status submit_if_alive(uint32_t process, struct ox_io_queue *queue, uint32_t drive_idx,
                                      const struct ox_io_req *req) {
    return atomic_load(&ended[process]) ? ox_fail(OX_E_IO, "this process has ended")
                                        : ox_io_threads()->queue_submit(queue, drive_idx, req);
}

static enum ox_status submit_0(struct ox_io_queue *queue, uint32_t drive_idx, const struct ox_io_req *req) {
    return submit_if_alive(0, queue, drive_idx, req);
}

static enum ox_status submit_1(struct ox_io_queue *queue, uint32_t drive_idx, const struct ox_io_req *req) {
    return submit_if_alive(1, queue, drive_idx, req);
}

static uint64_t drive_calls(uint32_t process, uint32_t point) {
    uint64_t count = 0, hits = 0;
    ox_io_fault_counts(drives[process], points[point], &count, &hits);
    return count;
}

/* ---- the lives of a run ------------------------------------------------------------------------------------- */

/* What became of a process. */
struct member {
    struct harness harness;
    struct outcome outcome;
    uint64_t reported;      /* the last commit that a call of this process reported */
    enum ox_status window, after, back; /* what the fault did, the next call to all, and the way back in the engine */
    char text[OX_ERROR_TEXT_BYTES]; /* of the first of them that failed */
    uint64_t step;          /* from which it went on */
    bool done;
};

static struct rig {
    struct golden golden;
    struct harness_run run;
    const struct example *example;
    enum window window;
    struct outcome expected;
    struct member members[PROCESSES];
    bool injects; /* else calls are counted alone */
    uint32_t counts[PROCESSES][SLOTS_MAX], drive_counts[PROCESSES][POINTS];
    char name[128];
} rig;
static pthread_barrier_t together;

static struct harness_place place_of(uint32_t process) {
    struct harness_place place = rig.example->place;
    place.store = true;
    place.chunk_elems = 4096;
    place.optimizer_threads = 1;
    place.io = drives[process];
    return place;
}

static uint64_t committed_step(const struct member *self) {
    struct ox_store_info info;
    ox_store_info(ox_engine_store(self->harness.engine), &info);
    return info.step;
}

/* All processes come here; the first counts from here on, or injects the fault. */
static void arm(void) {
    pthread_barrier_wait(&together);
    if (process_idx() == 0) {
        memset(calls, 0, sizeof calls);
        hit_what[0] = '\0';
        for (uint32_t i = 0; i < PROCESSES; i++) {
            const bool hits = rig.injects && fault.way == DRIVE && fault.process == i;
            const struct ox_fault_rule rule = {OX_FAULT_EIO, points[hits ? fault.slot : 0], fault.at, false};
            ox_io_fault_set(drives[i], hits ? &rule : NULL);
        }
        atomic_store(&armed, rig.injects);
    }
    pthread_barrier_wait(&together);
}

static void note(struct member *self, enum ox_status status) {
    if (status != OX_OK && self->text[0] == '\0') {
        snprintf(self->text, sizeof self->text, "%s", ox_error_text());
    } else if (status == OX_OK && ox_engine_store(self->harness.engine) != NULL) {
        self->reported = committed_step(self);
    }
}

/* A step, what it leaves to be done, and a commit of what stays in memory. */
static enum ox_status step_and_end(struct member *self) {
    struct ox_engine *const engine = self->harness.engine;
    struct ox_step_result result;
    struct ox_step_input input = golden_input(&rig.golden, FAULT_STEP, golden_fill(engine, &rig.golden, FAULT_STEP));
    input.stays = self->harness.persist_steps > 0;
    enum ox_status status = ox_engine_step(engine, &input, &result);
    note(self, status);
    if (status == OX_OK) {
        self->outcome.losses[FAULT_STEP] = result.loss;
        self->outcome.norms[FAULT_STEP] = result.grad_norm;
        status = ox_engine_finish_update(engine);
        note(self, status);
    }
    if (status == OX_OK) {
        status = ox_engine_persist(engine, NULL, 0);
        note(self, status);
    }
    return status;
}

/* Takes the steps that remain from the last commit. Results of steps that are not taken again may have been lost. */
static void go_on(struct member *self) {
    self->step = committed_step(self);
    for (size_t i = 0; i < self->step && i < STEPS; i++) {
        self->outcome.losses[i] = rig.expected.losses[i];
        self->outcome.norms[i] = rig.expected.norms[i];
    }
    if (self->step == 0) {
        outcome_close(&self->outcome);
    }
    golden_steps(&self->harness, &rig.golden, self->step, STEPS, &self->outcome);
    outcome_read_weights(&self->harness, &self->outcome);
    ox_engine_close(&self->harness.engine);
    self->done = true;
}

/* What follows the fault in the same life: all are told, and try to go on. */
static void end_window(struct ox_team *team, struct member *self) {
    const uint32_t p = process_idx();
    if (!rig.injects) {
        for (uint32_t i = 0; i < SLOTS_MAX; i++) {
            rig.counts[p][i] = atomic_load(&calls[p][i]);
        }
        for (uint32_t i = 0; i < POINTS; i++) {
            rig.drive_counts[p][i] = (uint32_t)drive_calls(p, i);
        }
    }
    self->after = ox_team_agree(team, OX_TEAM_RUN, OX_OK, "the test");
    note(self, self->after);
    self->back = self->window == OX_OK && self->after == OX_OK ? OX_OK
                 : rig.window == IN_STEP ? ox_engine_roll_back(self->harness.engine) : OX_E_COMM;
    const bool stays = self->back == OX_OK && !atomic_load(&ended[p]);
    if (!stays) { /* another may be in its next step already, and learns by this that nobody comes */
        ox_engine_close(&self->harness.engine);
    }
    pthread_barrier_wait(&together);
    atomic_store(&armed, false);
    if (stays) {
        go_on(self);
    }
}

static void first_life(struct ox_team *team, void *arg) {
    struct member *const self = &rig.members[process_idx()];
    const struct harness_place place = place_of(process_idx());
    struct harness_run run = rig.run;
    (void)arg;
    run.team = team;
    harness_open(&run, &place, &self->harness);
    self->harness.persist_steps = rig.example->persist_steps;
    golden_steps(&self->harness, &rig.golden, 0, FAULT_STEP, &self->outcome);
    self->reported = committed_step(self);
    if (rig.window == IN_OPEN) {
        REQUIRE_OK(ox_engine_finish_update(self->harness.engine));
        REQUIRE_OK(ox_engine_persist(self->harness.engine, NULL, 0));
        self->reported = committed_step(self);
        harness_open_again(&run, &place, &self->harness);
    }
    arm();
    self->window = rig.window == IN_STEP ? step_and_end(self) : harness_store_open(&self->harness);
    note(self, rig.window == IN_OPEN ? self->window : OX_OK);
    end_window(team, self);
}

static void second_life(struct ox_team *team, void *arg) {
    struct member *const self = &rig.members[process_idx()];
    const struct harness_place place = place_of(process_idx());
    struct harness_run run = rig.run;
    (void)arg;
    run.team = team;
    harness_reopen(&run, &place, &self->harness);
    go_on(self);
}

static void say_hang(int signal_number) {
    (void)signal_number;
    static const char text[] = " hangs\n";
    _exit(write(STDOUT_FILENO, rig.name, strlen(rig.name)) > 0 && write(STDOUT_FILENO, text, sizeof text - 1) > 0 ? 1
                                                                                                                  : 2);
}

static void live(process_fn *life) {
    alarm(HANG_SECONDS * SPEED);
    processes_run(PROCESSES, life, NULL);
    alarm(0);
}

/* ---- verdicts ------------------------------------------------------------------------------------------------- */

static const char *const votes[] = {"the writes of a transaction", "a prepared transaction", "a commit"};
enum { VOTES = sizeof votes / sizeof *votes };

static struct {
    uint32_t tried, went_back, opened_anew, votes[WAY_COUNT][VOTES], ways[WAY_COUNT];
} counted;

static void complain(const char *about) {
    const struct member *const m = rig.members;
    printf("%s: %s: %s\n", rig.name, hit_what, about);
    for (uint32_t p = 0; p < PROCESSES; p++) {
        printf("    window %d, after %d, back %d, reported %llu, went on from %llu: %s\n", (int)m[p].window,
               (int)m[p].after, (int)m[p].back, (unsigned long long)m[p].reported, (unsigned long long)m[p].step,
               m[p].text);
    }
    test_failure_count++;
}

static bool ends(void) {
    return fault.way == ENDS_BEFORE || fault.way == ENDS_AFTER;
}

static void check_status(void) {
    const struct member *const m = rig.members, *const other = &m[1 - fault.process];
    if (ends()) {
        char name[32];
        snprintf(name, sizeof name, "process %u", fault.process);
        const enum ox_status status = other->window != OX_OK ? other->window : other->after;
        if (status != OX_E_COMM || strstr(other->text, name) == NULL) {
            complain("the other process does not say which one has ended");
        }
        return;
    }
    const enum ox_status expected = fault.way == DRIVE ? OX_E_IO : OX_E_COMM;
    for (uint32_t p = 0; p < PROCESSES; p++) {
        const enum ox_status status = m[p].window != OX_OK ? m[p].window : m[p].after;
        /* A process to which a call was complete may be in the next one when the process leaves for which it failed. */
        const bool left = p != fault.process && fault.way == AFTER && fault.slot == 0 &&
                          strstr(m[p].text, " ended before it") != NULL;
        if (status != expected || (strstr(m[p].text, "injected") == NULL && !left)) {
            complain("a process has another failure");
            return;
        }
    }
}

static void check_steps(void) {
    const struct member *const m = rig.members;
    const uint64_t least = m[0].reported > m[1].reported ? m[0].reported : m[1].reported;
    if (m[0].step != m[1].step || m[0].step < least || m[0].step > FAULT_STEP + 1) {
        complain("processes went on from another step");
    }
}

static bool is_same(void) {
    bool same = true;
    for (uint32_t p = 0; p < PROCESSES; p++) {
        struct outcome *const got = &rig.members[p].outcome;
        same = same && memcmp(got->losses, rig.expected.losses, sizeof got->losses) == 0 &&
               memcmp(got->norms, rig.expected.norms, sizeof got->norms) == 0;
        for (uint32_t i = 0; i < GOLDEN_UNITS_MAX; i++) {
            const size_t bytes = got->elems[i] * sizeof(float);
            same = same && (bytes == 0 || (memcmp(got->weights[i], rig.expected.weights[i], bytes) == 0 &&
                                           memcmp(got->moments[0][i], rig.expected.moments[0][i], bytes) == 0 &&
                                           memcmp(got->moments[1][i], rig.expected.moments[1][i], bytes) == 0));
        }
    }
    return same;
}

static void run_case(void) {
    memset(rig.members, 0, sizeof rig.members);
    snprintf(rig.name, sizeof rig.name, "%s, %u ranks, %s, process %u, %s %u, %s %llu%s", rig.example->place.name,
             rig.run.ranks, rig.window == IN_STEP ? "step" : "open", fault.process,
             fault.way == DRIVE ? "point" : "endpoint", fault.slot, way_names[fault.way],
             (unsigned long long)fault.at, rig.injects ? "" : " (counted)");
    live(first_life);
    atomic_store(&armed, false);
    for (uint32_t p = 0; p < PROCESSES; p++) {
        ox_io_fault_set(drives[p], NULL);
        atomic_store(&ended[p], false);
    }
    const struct member *const m = rig.members;
    const bool passed = m[0].window == OX_OK && m[1].window == OX_OK && m[0].after == OX_OK && m[1].after == OX_OK;
    const bool stayed = m[0].done && m[1].done;
    if (m[0].done != m[1].done) {
        complain("one process went on, and the other did not");
        exit(test_end());
    }
    if (rig.injects && !passed) {
        check_status();
        counted.went_back += stayed;
        counted.opened_anew += !stayed;
    } else if (!passed) {
        complain("failed without a fault");
    }
    if (!stayed) {
        live(second_life);
    }
    check_steps();
    if (!is_same()) {
        complain("other bits");
    }
    for (uint32_t p = 0; p < PROCESSES; p++) {
        harness_close(&rig.members[p].harness);
        outcome_close(&rig.members[p].outcome);
    }
}

static void try_fault(const struct fault *with) {
    fault = *with;
    run_case();
    counted.tried++;
    counted.ways[fault.way]++;
    for (uint32_t i = 0; i < VOTES; i++) {
        counted.votes[fault.way][i] += strcmp(hit_what, votes[i]) == 0;
    }
}

/* ---- all faults --------------------------------------------------------------------------------------------- */

static uint32_t turn, vote_turn, stride, vote_stride;

static bool is_turn(uint32_t *next, uint32_t each) {
    return (*next)++ % each == 0 && test_failure_count < FAILURES_MAX;
}

static void check_calls(uint32_t process, uint32_t slot) {
    for (int way = BEFORE; way <= ENDS_AFTER; way++) {
        for (uint32_t at = 0; at < rig.counts[process][slot]; at++) {
            if (is_turn(&turn, stride)) {
                try_fault(&(struct fault){process, slot, at, NULL, (enum way)way});
            }
        }
        /* A commit is voted for by the ranks within a step, and by processes where planes stay in memory. */
        const bool has_votes = rig.window == IN_STEP && slot <= seats &&
                               (slot == 0) == (rig.example->persist_steps > 0);
        for (uint32_t i = 0; i < VOTES && has_votes; i++) {
            if (is_turn(&vote_turn, vote_stride)) {
                try_fault(&(struct fault){process, slot, 0, votes[i], (enum way)way});
            }
        }
    }
}

static void check_drive(uint32_t process, uint32_t point) {
    for (uint32_t at = 0; at < rig.drive_counts[process][point]; at++) {
        if (is_turn(&turn, stride)) {
            try_fault(&(struct fault){process, point, at, NULL, DRIVE});
        }
    }
}

static void check_example(const struct example *example, uint32_t ranks, enum window window) {
    memset(&counted, 0, sizeof counted);
    rig.example = example;
    rig.window = window;
    rig.run.ranks = ranks;
    rig.run.pipe = example->pipe;
    rig.run.pipe_chunks = example->chunks;
    rig.run.schedule = example->schedule;
    rig.run.tensors = example->tensors;
    rig.run.experts = example->experts;
    seats = ranks / PROCESSES;
    rig.injects = false;
    run_case();
    rig.injects = true;
    uint32_t possible = 0;
    for (uint32_t p = 0; p < PROCESSES; p++) {
        for (uint32_t slot = 0; slot < 1 + seats * (1 + GROUPS_OF_RANK); slot++) {
            possible += 4 * rig.counts[p][slot];
            check_calls(p, slot);
        }
        for (uint32_t point = 0; point < POINTS; point++) {
            possible += rig.drive_counts[p][point];
            check_drive(p, point);
        }
    }
    printf("%s, %u ranks, %s: %u faults of %u: %u before, %u after, %u and %u ends, %u of a drive; %u went back, "
           "%u opened anew\n", example->place.name, ranks, window == IN_STEP ? "step" : "open",
           counted.tried, possible, counted.ways[BEFORE], counted.ways[AFTER], counted.ways[ENDS_BEFORE],
           counted.ways[ENDS_AFTER], counted.ways[DRIVE], counted.went_back, counted.opened_anew);
    for (uint32_t i = 0; i < VOTES && window == IN_STEP; i++) {
        printf("    \"%s\": %u before, %u after, %u and %u ends\n", votes[i], counted.votes[BEFORE][i],
               counted.votes[AFTER][i], counted.votes[ENDS_BEFORE][i], counted.votes[ENDS_AFTER][i]);
    }
}

/* The examples of a model, a mixture or not; `only`: one of all, or NOTHING. */
static void check_model(const char *name, uint32_t only) {
    const bool mixture = strcmp(name, "four_mixtral") == 0;
    golden_open(name, &rig.golden);
    rig.golden.micro_batches = GROUPS;
    rig.run = golden_run(&rig.golden);
    rig.run.compute_threads = 1;
    rig.run.sum_groups = GROUPS;
    rig.run.tensor_groups = mixture ? 1 : 2; /* of one model: a run's bits depend on groups alone */
    rig.run.experts_per_unit = mixture ? 1 : 0;
    golden_train(&rig.golden, &rig.run, &harness_in_memory, STEPS, &rig.expected);
    for (uint32_t ranks = PROCESSES; ranks <= PROCESSES * SEATS_MAX; ranks += PROCESSES) {
        for (uint32_t i = 0; i < EXAMPLES; i++) {
            for (int window = 0; window < WINDOW_COUNT; window++) {
                if ((examples[i].experts > 0) != mixture) {
                    continue;
                }
                if (only == NOTHING ? test_takes(ranks / PROCESSES + i + (unsigned)window, 4) : only == i) {
                    check_example(&examples[i], ranks, (enum window)window);
                }
            }
        }
    }
    outcome_close(&rig.expected);
    golden_close(&rig.golden);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0); /* a hang then shows where */
    signal(SIGALRM, say_hang);
    const bool all = test_deep();
    stride = argc >= 2 ? (uint32_t)strtoul(argv[1], NULL, 10) : all ? 1 : STRIDE * test_stride(4);
    vote_stride = argc >= 2 || all ? 1 : VOTE_STRIDE * test_stride(4);
    const uint32_t only = argc >= 3 ? (uint32_t)strtoul(argv[2], NULL, 10) : NOTHING;
    (void)test_folder(); /* before there are threads */
    for (uint32_t p = 0; p < PROCESSES; p++) {
        mortal[p] = *ox_io_threads();
        mortal[p].queue_submit = p == 0 ? submit_0 : submit_1;
        REQUIRE_OK(ox_io_fault_open(&mortal[p], &drives[p]));
    }
    CHECK(pthread_barrier_init(&together, NULL, PROCESSES) == 0);
    process_watch = watch;
    check_model("llama_bias", only);
    check_model("four_mixtral", only);
    pthread_barrier_destroy(&together);
    for (uint32_t p = 0; p < PROCESSES; p++) {
        ox_io_fault_close(&drives[p]);
    }
    return test_end();
}
