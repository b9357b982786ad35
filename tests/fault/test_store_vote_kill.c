/* Two processes, each with a store on real files, commit steps together by a vote. One is killed, or both are, before,
 * within and after every operation of their drives, and at random moments. The one that is left ends by itself. Then
 * both stores agree on one step, no older than the last that both have reported, hold it in every word, and take the
 * next one.
 *
 *     test_store_vote_kill [--count KILLS]     kills at random; more than the usual number: also at every operation */
#include "base/prng/prng.h"
#include "tests/kit/files.h"
#include "tests/kit/store/store_kit.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { KILLS_USUAL = 4, STRIDE_USUAL = 48, QUICK = 1 };
#else
enum { KILLS_USUAL = 24, STRIDE_USUAL = 9, QUICK = 3 };
#endif
enum { SIDES = 2, EXTENTS = 4, EXTENT_BYTES = 32 << 10, STEPS = 2, KILL_NS_MAX = 15 * 1000 * 1000 };
static const uint64_t NEVER = UINT64_MAX;

enum moment { BEFORE, UNDER_WAY, COMPLETE, MOMENT_COUNT };

/* Steps are counted from 1 and stand for "that step"; 0: none. Shared by all three processes. */
struct shared {
    _Atomic uint64_t tried, prepared[SIDES], committed[SIDES];
    atomic_bool looked[SIDES], dead[SIDES];
    struct ox_store_offer offers[SIDES];
    uint64_t steps; /* how many a process takes before it ends */
    enum moment moment;
    uint64_t die_at[SIDES];
    _Atomic uint64_t passed[SIDES][MOMENT_COUNT]; /* operations of each moment */
};

static struct shared *shared;
static struct ox_extent_spec extents[EXTENTS];
static struct kit kits[SIDES];
static const struct ox_io_backend *inner;
static uint32_t me;

static struct {
    uint64_t kills, went_back, kept;
} tally;

/* ---- a process that kills itself at an operation ----------------------------------------------------- */

static bool is_reached(enum moment moment) {
    return atomic_fetch_add(&shared->passed[me][moment], 1) == shared->die_at[me] && shared->moment == moment;
}

static void pass(enum moment moment) {
    while (is_reached(moment)) {
        kill(getpid(), SIGKILL);
    }
}

static enum ox_status drive_open(const struct ox_io_backend *backend, const char *path, enum ox_drive_mode mode,
                                 struct ox_drive **out) {
    (void)backend;
    pass(BEFORE);
    const enum ox_status status = inner->drive_open(inner, path, mode, out);
    pass(COMPLETE);
    return status;
}

static enum ox_status drive_flush(struct ox_drive *drive) {
    pass(BEFORE);
    const enum ox_status status = inner->drive_flush(drive);
    pass(COMPLETE);
    return status;
}

static void drive_close(struct ox_drive *drive) {
    pass(BEFORE);
    inner->drive_close(drive);
    pass(COMPLETE);
}

static enum ox_status queue_open(const struct ox_io_backend *backend, struct ox_drive *const *drives,
                                 uint32_t drive_count, uint32_t depth, struct ox_io_queue **out) {
    (void)backend;
    return inner->queue_open(inner, drives, drive_count, depth, out);
}

static enum ox_status queue_submit(struct ox_io_queue *queue, uint32_t drive_idx, const struct ox_io_req *req) {
    pass(BEFORE);
    const enum ox_status status = inner->queue_submit(queue, drive_idx, req);
    if (is_reached(UNDER_WAY)) {
        inner->queue_kick(queue);
        kill(getpid(), SIGKILL);
    }
    return status;
}

static enum ox_status queue_reap(struct ox_io_queue *queue, struct ox_io_done *out) {
    const enum ox_status status = inner->queue_reap(queue, out);
    pass(COMPLETE);
    return status;
}

/* ---- a process ------------------------------------------------------------------------------------------- */

static bool is_there(const _Atomic uint64_t *said, uint64_t step) {
    return atomic_load(said) >= step;
}

/* Waits until the other process has said it, or will never. */
static bool hears(const _Atomic uint64_t *said, uint64_t step) {
    while (!is_there(said, step) && !atomic_load(&shared->dead[1 - me])) {
        nanosleep(&(struct timespec){.tv_nsec = 20 * 1000}, NULL);
    }
    return is_there(said, step);
}

static void open_at(uint32_t idx, const struct ox_store_point *point, struct ox_store **store,
                    struct ox_store_port **port) {
    kits[idx].config.point = point;
    REQUIRE_OK(ox_store_open(&kits[idx].config, store));
    kits[idx].config.point = NULL;
    REQUIRE_OK(ox_store_port_open(*store, port));
}

/* Begins, writes and prepares; whatever fails here ends the process. */
static void prepare(struct ox_store *store, struct ox_store_port *port, uint64_t step) {
    REQUIRE_OK(ox_store_begin(store, step));
    REQUIRE_OK(kit_write(store, port, step, EXTENTS));
    REQUIRE_OK(ox_store_prepare(store, &step, sizeof step));
}

/* Takes steps until there are enough or the other process is gone. */
static void take_steps(struct ox_store *store, struct ox_store_port *port, uint64_t step) {
    for (uint64_t i = 0; i < shared->steps; i++, step++) {
        atomic_store(&shared->tried, step);
        prepare(store, port, step);
        atomic_store(&shared->prepared[me], step);
        if (!hears(&shared->prepared[1 - me], step)) {
            ox_store_abort(store);
            return;
        }
        REQUIRE_OK(ox_store_commit(store, NULL, 0));
        atomic_store(&shared->committed[me], step);
        if (!hears(&shared->committed[1 - me], step)) {
            return;
        }
    }
}

static void process_main(void) {
    struct ox_io_backend killer = *inner;
    struct ox_store_point point = {.step = 0};
    struct ox_store *store = NULL;
    struct ox_store_port *port = NULL;
    killer.drive_open = drive_open;
    killer.drive_flush = drive_flush;
    killer.drive_close = drive_close;
    killer.queue_open = queue_open;
    killer.queue_submit = queue_submit;
    killer.queue_reap = queue_reap;
    kits[me].config.backend = &killer;
    REQUIRE_OK(ox_store_look(&kits[me].config, &shared->offers[me]));
    atomic_store(&shared->looked[me], true);
    while (!atomic_load(&shared->looked[1 - me])) {
        if (atomic_load(&shared->dead[1 - me]) && !atomic_load(&shared->looked[1 - me])) {
            return;
        }
        nanosleep(&(struct timespec){.tv_nsec = 20 * 1000}, NULL);
    }
    REQUIRE_OK(ox_store_agree(shared->offers, SIDES, &point));
    open_at(me, &point, &store, &port);
    take_steps(store, port, point.step + 1);
    ox_store_port_close(&port);
    ox_store_close(&store);
}

/* ---- rounds ---------------------------------------------------------------------------------------------- */

/* Looks at both stores as the next start does, checks what they hold, and takes one more step on both. */
static void check_stores(void) {
    struct ox_store *stores[SIDES];
    struct ox_store_port *ports[SIDES];
    struct ox_store_offer offers[SIDES];
    struct ox_store_point point = {.step = 0};
    bool wrong = false;
    const uint64_t one = atomic_load(&shared->committed[0]), other = atomic_load(&shared->committed[1]);
    const uint64_t done = ox_min_u64(one, other), tried = atomic_load(&shared->tried);
    for (uint32_t i = 0; i < SIDES; i++) {
        REQUIRE_OK(ox_store_look(&kits[i].config, &offers[i]));
    }
    REQUIRE_OK(ox_store_agree(offers, SIDES, &point));
    CHECK(point.step >= done && point.step <= ox_max_u64(tried, done));
    tally.kept += point.step > done;
    for (uint32_t i = 0; i < SIDES; i++) {
        tally.went_back += offers[i].points[0].step > point.step;
        open_at(i, &point, &stores[i], &ports[i]);
        if (point.committed) {
            REQUIRE_OK(kit_verify(stores[i], ports[i], point.step, &wrong));
        }
    }
    for (uint32_t i = 0; i < SIDES; i++) {
        prepare(stores[i], ports[i], point.step + 1);
    }
    for (uint32_t i = 0; i < SIDES; i++) {
        REQUIRE_OK(ox_store_commit(stores[i], NULL, 0));
        REQUIRE_OK(kit_verify(stores[i], ports[i], point.step + 1, &wrong));
        ox_store_port_close(&ports[i]);
        ox_store_close(&stores[i]);
        atomic_store(&shared->committed[i], point.step + 1);
    }
    CHECK(!wrong);
}

struct round {
    uint64_t die_at[SIDES];
    enum moment moment;
    bool takes_other;     /* the end of one process takes the other with it */
    uint64_t random_seed; /* unless 0: killed at a random moment */
};

static void kill_randomly(const struct round *round, const pid_t children[SIDES]) {
    const uint64_t seed = round->random_seed;
    for (uint32_t i = 0; i < SIDES; i++) {
        const double share = i == 0 ? 1 : 0.05;
        nanosleep(&(struct timespec){.tv_nsec = (long)(ox_uniform(seed, 9, i) * share * KILL_NS_MAX)}, NULL);
        if (i == 0 || seed % 3 == 0) { /* one of them, or both */
            kill(children[(seed + i) % SIDES], SIGKILL);
        }
    }
}

/* Runs both processes to their end; returns how many were killed. */
static uint32_t run_round(const struct round *round) {
    pid_t children[SIDES];
    uint32_t killed = 0;
    fflush(stdout);
    for (uint32_t i = 0; i < SIDES; i++) {
        atomic_store(&shared->prepared[i], 0);
        atomic_store(&shared->looked[i], false);
        atomic_store(&shared->dead[i], false);
        shared->die_at[i] = round->die_at[i];
        memset(shared->passed[i], 0, sizeof shared->passed[i]);
    }
    shared->moment = round->moment;
    shared->steps = round->random_seed != 0 ? NEVER : STEPS;
    for (me = 0; me < SIDES; me++) {
        children[me] = fork();
        CHECK(children[me] >= 0);
        if (children[me] == 0) {
            process_main();
            _exit(test_failure_count > 0);
        }
    }
    if (round->random_seed != 0) {
        kill_randomly(round, children);
    }
    for (uint32_t ended = 0; ended < SIDES; ended++) {
        int how = 0;
        const pid_t child = wait(&how);
        const uint32_t idx = child == children[1];
        killed += WIFSIGNALED(how);
        CHECK(child == children[idx] && (WIFSIGNALED(how) ? WTERMSIG(how) == SIGKILL : WEXITSTATUS(how) == 0));
        atomic_store(&shared->dead[idx], true);
        if (WIFSIGNALED(how) && round->takes_other && ended == 0) {
            kill(children[1 - idx], SIGKILL);
        }
    }
    tally.kills += killed;
    check_stores();
    return killed;
}

/* A process that dies between its vote and its first root leaves the other one ahead: always once in each step. */
static void sweep(uint64_t usual_stride) {
    for (int moment = 0; moment < MOMENT_COUNT; moment++) {
        for (int who = 0; who < SIDES + 2; who++) { /* one; the other; both there; one, then the other */
            struct round round = {.moment = (enum moment)moment, .takes_other = who == SIDES + 1};
            const uint64_t stride = moment == BEFORE && who == 0 ? 1 : usual_stride;
            uint32_t killed = 1;
            for (uint64_t at = (uint64_t)(moment + who) % stride; killed > 0 && test_failure_count < 5; at += stride) {
                round.die_at[0] = who != 1 ? at : NEVER;
                round.die_at[1] = who == 1 || who == SIDES ? at : NEVER;
                killed = run_round(&round);
            }
        }
        CHECK(atomic_load(&shared->passed[0][moment]) > 20);
    }
}

static void backend_run(const struct ox_io_backend *backend, uint64_t kills) {
    struct ox_store *store = NULL;
    memset(&tally, 0, sizeof tally);
    inner = backend;
    atomic_store(&shared->tried, 0);
    for (uint32_t i = 0; i < EXTENTS; i++) {
        extents[i] = (struct ox_extent_spec){EXTENT_BYTES, 4096};
    }
    for (uint32_t i = 0; i < SIDES; i++) {
        kit_init(&kits[i], backend, files_make_folder(test_pathf("%s-%u", backend->name, i)), 2);
        kits[i].config.extents = extents;
        kits[i].config.extent_count = EXTENTS;
        atomic_store(&shared->committed[i], 0);
        REQUIRE_OK(ox_store_create(&kits[i].config, &store));
        ox_store_close(&store);
    }
    sweep(kills > KILLS_USUAL ? 1 : STRIDE_USUAL * test_stride(QUICK));
    const uint64_t swept = tally.kills, kept = tally.kept, went_back = tally.went_back;
    for (uint64_t i = 1; i <= kills && test_failure_count < 5; i++) {
        run_round(&(struct round){.die_at = {NEVER, NEVER}, .random_seed = i});
    }
    printf("%s: %llu kills at operations: %llu times a store went back, %llu times an unfinished step was kept; %llu "
           "kills at random: %llu and %llu times; last step %llu\n", backend->name, (unsigned long long)swept,
           (unsigned long long)went_back, (unsigned long long)kept, (unsigned long long)(tally.kills - swept),
           (unsigned long long)(tally.went_back - went_back), (unsigned long long)(tally.kept - kept),
           (unsigned long long)atomic_load(&shared->committed[0]));
    CHECK(went_back >= STEPS && kept > 0 && tally.kills - swept >= kills);
}

int main(int argc, char **argv) {
    const uint64_t kills = kit_count(argc, argv, KILLS_USUAL);
    char why[160];
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    backend_run(ox_io_threads(), kills);
    if (ox_io_probe(why) == ox_io_uring()) {
        backend_run(ox_io_uring(), kills);
    } else {
        printf("uring: skipped: %s\n", why);
    }
    return test_end();
}
