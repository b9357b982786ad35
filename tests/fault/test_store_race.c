/* A drive has one owner. Of several processes that start at the same moment exactly one wins; the others fail
 * (OX_E_BUSY, or the file exists already). After a process is killed while its writes are under way, its successor
 * waits for them, so that they never land on what the successor wrote; where this machine can make a drive slow (blkio
 * throttle, root) that is shown with writes that take seconds. The lock is on the very description that is used for
 * I/O.
 *
 *     test_store_race [--count RACES] */
#include "base/clock.h"
#include "tests/kit/store/store_kit.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { STARTERS = 3, RACES_AT_ONCE = 50, WAIT_MS_MAX = 60 * 1000 };

struct race {
    _Atomic uint32_t ready, won, lost, odd;
    atomic_bool go;
};

static void pause_ms(long ms) {
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static void race_path(uint32_t idx, char *path, size_t bytes) {
    snprintf(path, bytes, "%s/race-%u", test_folder(), idx);
}

/* A winner keeps the store open until the others have failed. */
static void starter(struct race *race, uint32_t idx, const struct ox_io_backend *backend) {
    char path[600];
    struct ox_drive *drive = NULL;
    race_path(idx, path, sizeof path);
    atomic_fetch_add(&race->ready, 1);
    for (int ms = 0; !atomic_load(&race->go) && ms < WAIT_MS_MAX; ms++) {
        pause_ms(1);
    }
    /* Races for a new file and for an existing file alternate. */
    const enum ox_drive_mode mode = idx % 2 == 0 ? OX_DRIVE_CREATE : OX_DRIVE_OPEN;
    enum ox_status status = backend->drive_open(backend, path, mode, &drive);
    if (status == OX_OK && mode == OX_DRIVE_CREATE) {
        status = backend->drive_allocate(drive, 8192);
    }
    if (status == OX_OK) {
        atomic_fetch_add(&race->won, 1);
        for (int ms = 0; atomic_load(&race->lost) < STARTERS - 1 && ms < WAIT_MS_MAX; ms += 5) {
            pause_ms(5);
        }
        backend->drive_close(drive);
        _exit(0);
    }
    const bool told = status == OX_E_BUSY || (mode == OX_DRIVE_CREATE && status == OX_E_CONFIG);
    atomic_fetch_add(&race->odd, !told || strstr(ox_error_text(), path) == NULL);
    atomic_fetch_add(&race->lost, 1);
    _exit(0);
}

static void races_at_once(struct race *races, uint32_t first, uint32_t count, const struct ox_io_backend *backend) {
    memset(races, 0, RACES_AT_ONCE * sizeof *races);
    fflush(stdout);
    for (uint32_t i = 0; i < count; i++) {
        if ((first + i) % 2 == 1) { /* the existing file */
            char path[600];
            struct ox_drive *drive = NULL;
            race_path(first + i, path, sizeof path);
            REQUIRE_OK(backend->drive_open(backend, path, OX_DRIVE_CREATE, &drive));
            REQUIRE_OK(backend->drive_allocate(drive, 4096));
            backend->drive_close(drive);
        }
        for (uint32_t j = 0; j < STARTERS; j++) {
            const pid_t child = fork();
            CHECK(child >= 0);
            if (child == 0) {
                starter(&races[i], first + i, backend);
            }
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        for (int ms = 0; atomic_load(&races[i].ready) < STARTERS && ms < WAIT_MS_MAX; ms++) {
            pause_ms(1);
        }
        atomic_store(&races[i].go, true);
    }
    while (wait(NULL) > 0) {
    }
    for (uint32_t i = 0; i < count; i++) {
        char path[600];
        race_path(first + i, path, sizeof path);
        CHECK(atomic_load(&races[i].won) == 1 && atomic_load(&races[i].lost) == STARTERS - 1);
        CHECK(atomic_load(&races[i].odd) == 0);
        CHECK(unlink(path) == 0);
    }
}

static void races(uint32_t count, const struct ox_io_backend *backend) {
    struct race *const all = mmap(NULL, RACES_AT_ONCE * sizeof *all, PROT_READ | PROT_WRITE,
                                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(all != MAP_FAILED);
    for (uint32_t i = 0; i < count; i += RACES_AT_ONCE) {
        races_at_once(all, i, count - i < RACES_AT_ONCE ? count - i : RACES_AT_ONCE, backend);
    }
    printf("%u races of %d starters\n", count, STARTERS);
}

/* The kernel lists a lock beside the open file that it belongs to. */
static void lock_lies_on_data(const struct ox_io_backend *backend) {
    char path[600], link[600], entry[64], line[256];
    struct ox_drive *drive = NULL;
    snprintf(path, sizeof path, "%s/lock", test_folder());
    REQUIRE_OK(backend->drive_open(backend, path, OX_DRIVE_CREATE, &drive));
    bool found = false;
    for (int fd = 3; fd < 256; fd++) {
        snprintf(entry, sizeof entry, "/proc/self/fd/%d", fd);
        const ssize_t len = readlink(entry, link, sizeof link - 1);
        if (len <= 0 || (link[len] = '\0', strcmp(link, path) != 0)) {
            continue;
        }
        snprintf(entry, sizeof entry, "/proc/self/fdinfo/%d", fd);
        FILE *const info = fopen(entry, "r");
        while (info != NULL && fgets(line, sizeof line, info) != NULL) {
            found = found || (strncmp(line, "lock:", 5) == 0 && strstr(line, "FLOCK") != NULL &&
                              strstr(line, "WRITE") != NULL);
        }
        if (info != NULL) {
            fclose(info);
        }
    }
    CHECK(found);
    backend->drive_close(drive);
    unlink(path);
}

/* ---- killed with writes under way -------------------------------------------------------------------- */

enum { EXTENTS = 3, EXTENT_BYTES = 2 << 20, SLOW_BYTES_PER_SECOND = 6 << 20 };
static const struct ox_extent_spec extents[EXTENTS] = {{EXTENT_BYTES, 4096}, {EXTENT_BYTES, 0}, {EXTENT_BYTES, 0}};

struct life {
    atomic_bool submitted, slow;
};

static bool write_text(const char *path, const char *text) {
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    const bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0) {
        close(fd);
    }
    return done;
}

static char slow_group[128];

/* Limits this process to slow writes to the test folder's drive; returns false if that is not possible. */
static bool become_slow(void) {
    struct stat info;
    char path[256], text[64];
    snprintf(slow_group, sizeof slow_group, "/sys/fs/cgroup/blkio/offload-test-%ld", (long)getppid());
    snprintf(path, sizeof path, "%s/blkio.throttle.write_bps_device", slow_group);
    if (stat(test_folder(), &info) != 0 || access(path, W_OK) != 0) {
        return false;
    }
    snprintf(text, sizeof text, "%u:%u %d", major(info.st_dev), minor(info.st_dev), SLOW_BYTES_PER_SECOND);
    if (!write_text(path, text)) {
        return false;
    }
    snprintf(path, sizeof path, "%s/cgroup.procs", slow_group);
    snprintf(text, sizeof text, "%ld", (long)getpid());
    return write_text(path, text);
}

static void victim(const struct kit *kit, struct life *life) {
    struct ox_store *store = NULL;
    struct ox_store_port *port = NULL;
    REQUIRE_OK(ox_store_open(&kit->config, &store));
    REQUIRE_OK(ox_store_port_open(store, &port));
    REQUIRE_OK(ox_store_begin(store, 1000));
    atomic_store(&life->slow, become_slow());
    for (uint32_t i = 0; i < EXTENTS; i++) {
        const struct ox_store_op op = {.kind = OX_STORE_WRITE, .extent_idx = i, .buffer = kit_buffer(EXTENT_BYTES)};
        kit_fill(op.buffer, EXTENT_BYTES, 1000, i);
        REQUIRE_OK(ox_store_submit(port, &op));
    }
    atomic_store(&life->submitted, true);
    for (;;) {
        pause();
    }
}

/* Takes over, writes the same slots, and checks again when all that the dead process had sent must have arrived. */
static void succeed(const struct kit *kit, uint64_t step, bool slow, uint64_t killed_ns) {
    struct ox_store *store = NULL;
    struct ox_store_port *port = NULL;
    bool wrong = false;
    enum ox_status status = ox_store_open(&kit->config, &store);
    for (int tries = 0; status == OX_E_BUSY && tries < 10; tries++) {
        status = ox_store_open(&kit->config, &store);
    }
    REQUIRE_OK(status);
    const double waited = (double)(ox_clock_ns() - killed_ns) * 1e-9;
    REQUIRE_OK(ox_store_port_open(store, &port));
    REQUIRE_OK(kit_verify(store, port, step, &wrong));
    CHECK(!wrong);
    REQUIRE_OK(kit_commit(store, port, step + 1));
    if (slow) {
        pause_ms(1200);
    }
    REQUIRE_OK(kit_verify(store, port, step + 1, &wrong));
    CHECK(!wrong);
    printf("%s: killed with %d MiB under way%s, successor in after %.2f s\n", kit->config.backend->name,
           EXTENTS * (EXTENT_BYTES >> 20), slow ? " on a slow drive" : "", waited);
    ox_store_port_close(&port);
    ox_store_close(&store);
}

static void killed_writing(const struct ox_io_backend *backend, struct life *life) {
    struct kit kit;
    struct ox_store *store = NULL;
    struct ox_store_port *port = NULL;
    kit_init(&kit, backend, test_folder(), 1);
    kit.config.extents = extents;
    kit.config.extent_count = EXTENTS;
    kit.bytes_max[0] = 32 * OX_MIB;
    REQUIRE_OK(ox_store_create(&kit.config, &store));
    REQUIRE_OK(ox_store_port_open(store, &port));
    REQUIRE_OK(kit_commit(store, port, 1));
    REQUIRE_OK(kit_commit(store, port, 2));
    ox_store_port_close(&port);
    ox_store_close(&store);
    memset(life, 0, sizeof *life);
    fflush(stdout);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        victim(&kit, life);
    }
    for (int ms = 0; !atomic_load(&life->submitted) && ms < WAIT_MS_MAX; ms++) {
        pause_ms(1);
    }
    CHECK(atomic_load(&life->submitted));
    const uint64_t killed_ns = ox_clock_ns();
    kill(child, SIGKILL);
    int how = 0;
    CHECK(waitpid(child, &how, 0) == child && WIFSIGNALED(how));
    succeed(&kit, 2, atomic_load(&life->slow), killed_ns);
    REQUIRE_OK(ox_store_remove(kit.folders, 1));
}

static void remove_group(void) {
    rmdir(slow_group);
}

int main(int argc, char **argv) {
    const uint32_t count = (uint32_t)kit_count(argc, argv, RACES_AT_ONCE);
    struct life *const life = mmap(NULL, sizeof *life, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(life != MAP_FAILED && test_folder() != NULL);
    snprintf(slow_group, sizeof slow_group, "/sys/fs/cgroup/blkio/offload-test-%ld", (long)getpid());
    if (mkdir(slow_group, 0755) == 0) {
        atexit(remove_group);
    }
    char why[160];
    lock_lies_on_data(ox_io_threads());
    killed_writing(ox_io_threads(), life);
    if (ox_io_probe(why) == ox_io_uring()) {
        lock_lies_on_data(ox_io_uring());
        killed_writing(ox_io_uring(), life);
    } else {
        printf("uring: skipped: %s\n", why);
    }
    races(count, ox_io_threads());
    return test_end();
}
