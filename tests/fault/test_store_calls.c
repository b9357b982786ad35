/* The same at the edge of the kernel: every call that the threads backend makes for a store on real files fails, is cut
 * short, is interrupted or takes long, at every index, once and from then on. Each run ends whole after a retry or
 * in an error that names file and cause, and the files then hold the last commit. The calls are taken over by
 * functions of this program with their names.
 *
 * No fault that is over may stay: what should be repaired (a short or interrupted transfer, once) must be. A flush
 * that failed is never asked again and believed. After creation the folder itself is synced. */
#include "tests/kit/store_kit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__)
enum { STRIDE = 4 };
#else
enum { STRIDE = 1 };
#endif
enum { STEPS = 3, EXTENT_COUNT = 3 };

static const struct ox_extent_spec extents[EXTENT_COUNT] = {{12288, 4096}, {4096, 0}, {8192, 8192}};

/* ---- the calls --------------------------------------------------------------------------------------- */

enum point {
    ON_OPEN, ON_LOCK, ON_ALLOCATE, ON_TRUNCATE, ON_SYNC, ON_FLUSH, ON_READ, ON_WRITE, POINT_COUNT
};
static const char *const point_names[POINT_COUNT] = {
    "open", "flock", "fallocate", "ftruncate", "fsync", "fdatasync", "pread", "pwrite",
};
enum kind { KIND_ERRNO, KIND_SHORT, KIND_STALL };

static struct {
    enum point point;
    enum kind kind;
    int err;
    uint64_t first_idx;
    bool persistent;
} rule;
static atomic_bool armed;
static _Atomic uint64_t calls[POINT_COUNT], hit_count, folder_syncs;
static atomic_bool flush_failed, flush_asked_again;

static bool hit(enum point point) {
    if (!atomic_load(&armed)) {
        return false;
    }
    const uint64_t idx = atomic_fetch_add(&calls[point], 1);
    const bool now = rule.point == point && (idx == rule.first_idx || (rule.persistent && idx > rule.first_idx));
    if (now) {
        atomic_fetch_add(&hit_count, 1);
        if (rule.kind == KIND_STALL) {
            nanosleep(&(struct timespec){.tv_nsec = 200 * 1000}, NULL);
        }
    }
    return now && rule.kind != KIND_STALL;
}

/* For calls that move nothing: cut short is an error of the device. */
static int failed(enum point point) {
    errno = rule.kind == KIND_SHORT ? EIO : rule.err;
    if (point == ON_FLUSH || point == ON_SYNC) {
        atomic_store(&flush_failed, true);
    }
    return -1;
}

int open(const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(args, mode_t) : 0;
    va_end(args);
    const bool ours = strstr(path, "offload-store-") != NULL;
    return ours && hit(ON_OPEN) ? failed(ON_OPEN) : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int flock(int fd, int operation) {
    const bool unlocks = (operation & LOCK_UN) != 0;
    return !unlocks && hit(ON_LOCK) ? failed(ON_LOCK) : (int)syscall(SYS_flock, fd, operation);
}

int fallocate(int fd, int mode, off_t offset, off_t len) {
    return hit(ON_ALLOCATE) ? failed(ON_ALLOCATE) : (int)syscall(SYS_fallocate, fd, mode, offset, len);
}

int ftruncate(int fd, off_t len) {
    return hit(ON_TRUNCATE) ? failed(ON_TRUNCATE) : (int)syscall(SYS_ftruncate, fd, len);
}

/* A file system may have dropped what a failed flush did not write, and let the next one succeed. */
static void sync_asked(int fd) {
    struct stat info;
    if (fstat(fd, &info) == 0 && S_ISDIR(info.st_mode)) {
        atomic_fetch_add(&folder_syncs, 1);
    } else if (atomic_exchange(&flush_failed, false)) {
        atomic_store(&flush_asked_again, true);
    }
}

int fsync(int fd) {
    sync_asked(fd);
    return hit(ON_SYNC) ? failed(ON_SYNC) : (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd) {
    sync_asked(fd);
    return hit(ON_FLUSH) ? failed(ON_FLUSH) : (int)syscall(SYS_fdatasync, fd);
}

/* False when the call is answered without the kernel. */
static bool transfer(enum point point, size_t *bytes, ssize_t *answer) {
    if (!hit(point)) {
        return true;
    }
    if (rule.kind == KIND_SHORT) {
        *bytes = *bytes / 2 / 512 * 512;
        *answer = 0;
        return *bytes > 0;
    }
    errno = rule.err;
    *answer = -1;
    return false;
}

ssize_t pread(int fd, void *buffer, size_t bytes, off_t offset) {
    ssize_t answer = 0;
    return transfer(ON_READ, &bytes, &answer) ? syscall(SYS_pread64, fd, buffer, bytes, offset) : answer;
}

ssize_t pwrite(int fd, const void *buffer, size_t bytes, off_t offset) {
    ssize_t answer = 0;
    atomic_store(&flush_failed, false); /* what is flushed next is something else */
    return transfer(ON_WRITE, &bytes, &answer) ? syscall(SYS_pwrite64, fd, buffer, bytes, offset) : answer;
}

/* ---- the run ----------------------------------------------------------------------------------------- */

static struct kit kit;
static uint64_t injection_count, repaired_count, told_count;

struct outcome {
    bool created;
    uint64_t done_step;
    enum ox_status first;
    char text[OX_ERROR_TEXT_BYTES];
};

static void note(struct outcome *outcome, enum ox_status status) {
    if (status != OX_OK && outcome->first == OX_OK) {
        outcome->first = status;
        snprintf(outcome->text, sizeof outcome->text, "%s", ox_error_text());
    }
}

static void steps(struct outcome *outcome) {
    struct ox_store *store = NULL;
    struct ox_store_port *port = NULL;
    note(outcome, ox_store_create(&kit.config, &store));
    outcome->created = store != NULL;
    if (store == NULL) {
        return;
    }
    ox_store_close(&store);
    note(outcome, ox_store_open(&kit.config, &store));
    if (store == NULL) {
        return;
    }
    REQUIRE_OK(ox_store_port_open(store, &port));
    for (uint64_t step = 1; step <= STEPS; step++) {
        bool wrong = false;
        struct ox_store_info info;
        const enum ox_status status = kit_commit(store, port, step);
        note(outcome, status);
        outcome->done_step = status == OX_OK ? step : outcome->done_step;
        ox_store_info(store, &info);
        CHECK(info.step == outcome->done_step);
        if (info.committed) {
            note(outcome, kit_verify(store, port, info.step, &wrong));
            CHECK(!wrong);
        }
    }
    ox_store_port_close(&port);
    ox_store_close(&store);
}

/* The faults are over. */
static void inspect(const struct outcome *outcome) {
    struct ox_store *store = NULL;
    struct ox_store_port *port = NULL;
    struct ox_store_info info;
    bool wrong = false;
    if (!outcome->created) {
        CHECK(!ox_store_exists(kit.folders[0]) || rule.persistent);
        return;
    }
    const bool single = kit.config.generations == 1;
    const enum ox_status status = ox_store_open(&kit.config, &store);
    if (single && outcome->first != OX_OK && status == OX_E_CORRUPT) {
        CHECK(strstr(ox_error_text(), "one generation (--store-generations 1) and was being rewritten at") != NULL);
        return;
    }
    REQUIRE_OK(status);
    REQUIRE_OK(ox_store_port_open(store, &port));
    ox_store_info(store, &info);
    CHECK(info.step >= outcome->done_step && (single || rule.persistent || info.step == outcome->done_step));
    if (info.committed) {
        REQUIRE_OK(kit_verify(store, port, info.step, &wrong));
        CHECK(!wrong);
    }
    REQUIRE_OK(kit_commit(store, port, STEPS + 1));
    ox_store_port_close(&port);
    ox_store_close(&store);
}

/* A transfer goes on by itself, and so does waiting for a lock or for space after a signal. */
static bool must_repair(void) {
    const bool interrupted = rule.kind == KIND_ERRNO && (rule.err == EINTR || rule.err == EAGAIN);
    if (rule.kind == KIND_STALL) {
        return true;
    }
    if (rule.persistent) {
        return false;
    }
    return rule.point == ON_READ || rule.point == ON_WRITE ? interrupted || rule.kind == KIND_SHORT
           : rule.point == ON_LOCK                         ? interrupted
                                                           : rule.point == ON_ALLOCATE && rule.err == EINTR &&
                                                                 rule.kind == KIND_ERRNO;
}

static void check_outcome(const struct outcome *outcome) {
    injection_count++;
    repaired_count += outcome->first == OX_OK;
    told_count += outcome->first != OX_OK;
    CHECK(!must_repair() || (outcome->first == OX_OK && outcome->done_step == STEPS));
    if (outcome->first != OX_OK) {
        CHECK(strstr(outcome->text, "offload-store-0.ox") != NULL || strstr(outcome->text, test_folder()) != NULL ||
              strstr(outcome->text, kit.folders[0]) != NULL);
    }
    CHECK(!atomic_load(&flush_asked_again));
}

/* False when no call of that index was made. */
static bool inject(void) {
    struct outcome outcome = {0};
    for (int i = 0; i < POINT_COUNT; i++) {
        atomic_store(&calls[i], 0);
    }
    atomic_store(&hit_count, 0);
    atomic_store(&flush_failed, false);
    atomic_store(&flush_asked_again, false);
    atomic_store(&folder_syncs, 0);
    const int failures = test_failure_count;
    atomic_store(&armed, true);
    steps(&outcome);
    atomic_store(&armed, false);
    const bool any = atomic_load(&hit_count) > 0;
    if (any) {
        check_outcome(&outcome);
    } else {
        CHECK(outcome.first == OX_OK && outcome.done_step == STEPS);
    }
    CHECK(!outcome.created || atomic_load(&folder_syncs) > 0);
    inspect(&outcome);
    REQUIRE_OK(ox_store_remove(kit.folders, 1));
    if (test_failure_count > failures) {
        printf("%s, kind %d, %s, call %llu, %s: %s\n", point_names[rule.point], (int)rule.kind, strerror(rule.err),
               (unsigned long long)rule.first_idx, rule.persistent ? "from then on" : "once", outcome.text);
    }
    return any;
}

/* Waiting for a lock that never comes takes seconds; once is enough. */
static bool too_slow(void) {
    const bool waits = rule.point == ON_LOCK && rule.persistent && rule.kind == KIND_ERRNO;
    return waits && (rule.err == EAGAIN || (rule.err == EINTR && rule.first_idx > 0));
}

static void sweep_point(enum point point, enum kind kind, int err) {
    for (int persistent = 0; persistent < 2; persistent++) {
        rule.point = point;
        rule.kind = kind;
        rule.err = err;
        rule.persistent = persistent == 1;
        rule.first_idx = 0;
        while (!too_slow() && inject()) {
            rule.first_idx += STRIDE;
        }
        CHECK(rule.first_idx > 0 || too_slow());
    }
}

static void sweep(enum kind kind, int err) {
    for (int point = 0; point < POINT_COUNT; point++) {
        sweep_point((enum point)point, kind, err);
    }
}

int main(void) {
    /* Memory is enough: what is asked is how calls are answered, not what a drive keeps. */
    char folder[64] = "/dev/shm/offload-calls-XXXXXX";
    const bool in_memory = mkdtemp(folder) != NULL;
    kit_init(&kit, ox_io_threads(), in_memory ? folder : test_folder(), 1);
    kit.config.extents = extents;
    kit.config.extent_count = EXTENT_COUNT;
    const int errnos[] = {EIO, ENOSPC, EAGAIN, EINTR};
    for (unsigned i = 0; i < sizeof errnos / sizeof *errnos; i++) {
        sweep(KIND_ERRNO, errnos[i]);
    }
    sweep(KIND_SHORT, 0);
    sweep(KIND_STALL, 0);
    /* With one generation what lies between create and close differs. */
    kit.config.generations = 1;
    sweep_point(ON_WRITE, KIND_ERRNO, EIO);
    sweep_point(ON_FLUSH, KIND_ERRNO, EIO);
    if (in_memory) {
        rmdir(folder);
    }
    printf("%llu injections: %llu repaired, %llu told\n", (unsigned long long)injection_count,
           (unsigned long long)repaired_count, (unsigned long long)told_count);
    CHECK(injection_count > 600 / STRIDE && repaired_count > 200 / STRIDE && told_count > 400 / STRIDE);
    return test_end();
}
