/* kill -9 of a process that commits in a loop, on real files: the next process finds every word of one step, not
 * older than the last commit reported done, and at most one newer. With one generation the store may instead say at
 * which step it was being rewritten, and is then created again, as from a checkpoint.
 *
 *     test_store_kill [--count KILLS] */
#include "base/prng/prng.h"
#include "tests/kit/store/store_kit.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { KILLS_USUAL = 48, EXTENTS = 8, EXTENT_BYTES = 128 << 10, KILL_NS_MAX = 12 * 1000 * 1000 };

static struct ox_extent_spec extents[EXTENTS];
static uint64_t kill_count, refused_count;
static uint32_t kept; /* steps that are kept before each commit */

/* Shared by both processes. */
struct shared {
    _Atomic uint64_t done_step;
    _Atomic uint64_t commit_count;
};

static void child_main(const struct kit *kit, struct shared *shared) {
    struct ox_store *store = NULL;
    struct ox_store_port *port = NULL;
    struct ox_store_info info;
    REQUIRE_OK(ox_store_open(&kit->config, &store));
    REQUIRE_OK(ox_store_port_open(store, &port));
    ox_store_info(store, &info);
    bool wrong = false;
    for (uint64_t step = info.step + kept + 1;; step += kept + 1) {
        REQUIRE_OK(kept > 0 ? kit_commit_after(store, port, step, kept, &wrong) : kit_commit(store, port, step));
        REQUIRE_OK(wrong ? OX_E_CORRUPT : OX_OK);
        atomic_store(&shared->done_step, step);
        atomic_fetch_add(&shared->commit_count, 1);
    }
}

/* Most are killed some time after their first commit; every fourth at any time, so also in its recovery. */
static void wait_for_moment(const struct shared *shared, uint64_t before, uint64_t seed) {
    for (int ms = 0; seed % 4 != 0 && atomic_load(&shared->commit_count) == before && ms < 5000; ms++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
    }
    nanosleep(&(struct timespec){.tv_nsec = (long)(ox_uniform(seed, 9, 0) * KILL_NS_MAX)}, NULL);
}

/* Creates the store of a new run, with the content of `step`. */
static void start(const struct kit *kit, struct shared *shared, uint64_t step) {
    struct ox_store *store = NULL;
    struct ox_store_port *port = NULL;
    REQUIRE_OK(ox_store_create(&kit->config, &store));
    REQUIRE_OK(ox_store_port_open(store, &port));
    REQUIRE_OK(kit_commit(store, port, step));
    ox_store_port_close(&port);
    ox_store_close(&store);
    atomic_store(&shared->done_step, step);
}

/* Runs one process until it is killed, and checks what it left. */
static void round_run(const struct kit *kit, struct shared *shared, uint64_t seed) {
    fflush(stdout);
    const uint64_t before = atomic_load(&shared->commit_count);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        child_main(kit, shared);
        _exit(1);
    }
    wait_for_moment(shared, before, seed);
    kill(child, SIGKILL);
    int how = 0;
    CHECK(waitpid(child, &how, 0) == child && WIFSIGNALED(how));

    struct ox_store *store = NULL;
    struct ox_store_port *port = NULL;
    struct ox_store_info info;
    const uint64_t done_step = atomic_load(&shared->done_step);
    const enum ox_status status = ox_store_open(&kit->config, &store);
    if (kit->config.generations == 1 && status == OX_E_CORRUPT) {
        char one[64], other[64];
        snprintf(one, sizeof one, "rewritten at step %llu ", (unsigned long long)done_step + 1);
        snprintf(other, sizeof other, "rewritten at step %llu ", (unsigned long long)done_step + 2);
        CHECK(strstr(ox_error_text(), one) != NULL || strstr(ox_error_text(), other) != NULL);
        refused_count++;
        REQUIRE_OK(ox_store_remove(kit->folders, kit->config.drive_count));
        start(kit, shared, done_step + 1);
        return;
    }
    REQUIRE_OK(status);
    REQUIRE_OK(ox_store_port_open(store, &port));
    ox_store_info(store, &info);
    CHECK(info.committed && info.step >= done_step && info.step <= done_step + kept + 1);
    bool wrong = false;
    REQUIRE_OK(kit_verify(store, port, info.step, &wrong));
    CHECK(!wrong);
    atomic_store(&shared->done_step, info.step);
    ox_store_port_close(&port);
    ox_store_close(&store);
}

static void rounds(const struct ox_io_backend *backend, uint32_t generations, uint64_t count, struct shared *shared) {
    struct kit kit;
    kit_init(&kit, backend, test_folder(), 2);
    for (uint32_t i = 0; i < EXTENTS; i++) {
        extents[i] = (struct ox_extent_spec){EXTENT_BYTES, 4096};
    }
    kit.config.extents = extents;
    kit.config.extent_count = EXTENTS;
    kit.config.generations = generations;
    start(&kit, shared, 0);
    atomic_store(&shared->commit_count, 0);
    refused_count = 0;
    for (uint64_t i = 0; i < count; i++) {
        round_run(&kit, shared, i);
    }
    printf("%s, %u generations, %u kept steps: %llu kills, %llu commits, %llu states lost\n", backend->name,
           generations, kept, (unsigned long long)count, (unsigned long long)atomic_load(&shared->commit_count),
           (unsigned long long)refused_count);
    CHECK(atomic_load(&shared->commit_count) > count / 2);
    REQUIRE_OK(ox_store_remove(kit.folders, 2));
}

int main(int argc, char **argv) {
    kill_count = kit_count(argc, argv, KILLS_USUAL);
    struct shared *const shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    rounds(ox_io_threads(), 2, kill_count, shared);
    rounds(ox_io_threads(), 1, kill_count / 2, shared);
    kept = 2;
    rounds(ox_io_threads(), 2, kill_count / 2, shared);
    rounds(ox_io_threads(), 3, kill_count / 2, shared);
    kept = 0;
    char why[160];
    if (ox_io_probe(why) == ox_io_uring()) {
        rounds(ox_io_uring(), 2, kill_count, shared);
        rounds(ox_io_uring(), 1, kill_count / 2, shared);
    } else {
        printf("uring: skipped: %s\n", why);
    }
    return test_end();
}
