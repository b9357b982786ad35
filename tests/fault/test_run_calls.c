/* The files of a run beside its store (run.json, metrics.jsonl, plan.txt, config.resolved.yaml, latest, the folders of
 * checkpoints) where a whole tiny run is killed at every call that makes, fills, syncs, renames or removes them: before
 * the call, with half of it done where it writes, and after it; and where each of these calls fails, in several ways,
 * once or from then on. The run ends as if nothing had been, or in an error with a text; the next process goes on to
 * the bits of the run that nobody disturbed, with at most one step lost and no checkpoint that was told of.
 *
 * The calls are taken over by functions of this program with their names. The suite takes every STRIDE-th failure, at
 * another offset for each way, and all kills.
 *
 *     test_run_calls [STRIDE] */
#include "tests/kit/test.h"
#include "tests/kit/tiny_run.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { KILL_STRIDE = 12, STRIDE = 60 };
#else
enum { KILL_STRIDE = 1, STRIDE = 6 };
#endif
enum { FDS = 256 };

enum point {
    ON_OPEN, ON_ALLOCATE, ON_TRUNCATE, ON_READ, ON_WRITE, ON_SYNC, ON_RENAME, ON_REMOVE, ON_MAKE, ON_CLOSE, POINT_COUNT
};
static const char *const point_names[POINT_COUNT] = {
    "open", "fallocate", "ftruncate", "read", "write", "fsync", "rename", "unlink", "mkdir", "close",
};
enum kind { FAILS, IS_SHORT, DIES_BEFORE, DIES_WITHIN, DIES_AFTER };

static struct {
    enum kind kind;
    enum point point; /* a process dies at any */
    int err;
    uint64_t idx;
    bool persistent;
} rule;
static bool armed;
static atomic_bool ours[FDS];         /* descriptors of files and folders of the run */
static _Thread_local bool dies_after; /* the call that was counted last */
/* Shared: of every point, and of all that change something. */
static struct seen {
    _Atomic uint64_t calls[POINT_COUNT], changes, hits;
} *seen;

/* ---- the calls --------------------------------------------------------------------------------------- */

static void die(void) {
    for (;;) {
        kill(getpid(), SIGKILL);
    }
}

static bool is_ours(const char *path) {
    const char *const folder = armed ? tiny_folder() : "";
    const size_t bytes = strlen(folder);
    return bytes > 0 && strncmp(path, folder, bytes) == 0 && (path[bytes] == '/' || path[bytes] == '\0');
}

static bool is_ours_fd(int fd) {
    return armed && fd >= 0 && fd < FDS && ours[fd];
}

/* Counts a call; true when it has to fail or to be cut short. Within a call a process dies where it writes, else where
 * a file or a folder changes. */
static bool hit(enum point point) {
    const uint64_t idx = seen->calls[point]++;
    if (rule.kind == DIES_WITHIN) {
        seen->hits += point == ON_WRITE && idx == rule.idx;
        return point == ON_WRITE && idx == rule.idx;
    }
    if (rule.kind != FAILS && rule.kind != IS_SHORT) {
        const bool now = point != ON_READ && point != ON_CLOSE && seen->changes++ == rule.idx;
        seen->hits += now;
        if (now && rule.kind == DIES_BEFORE) {
            die();
        }
        dies_after = now;
        return false;
    }
    const bool now = point == rule.point && (idx == rule.idx || (rule.persistent && idx > rule.idx));
    seen->hits += now;
    errno = now ? rule.err : errno;
    return now;
}

/* The call that was counted last is over. */
static long after(bool counted, long result) {
    if (counted && dies_after) {
        die();
    }
    return result;
}

int open(const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(args, mode_t) : 0;
    va_end(args);
    const bool counted = is_ours(path);
    if (counted && hit(ON_OPEN)) {
        return -1;
    }
    const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    if (fd >= 0 && fd < FDS) {
        ours[fd] = counted;
    }
    return (int)after(counted, fd);
}

int close(int fd) {
    const bool counted = is_ours_fd(fd);
    const bool fails = counted && hit(ON_CLOSE);
    if (counted) {
        ours[fd] = false;
    }
    const int result = (int)syscall(SYS_close, fd); /* a descriptor is given back even so */
    if (fails) {
        errno = rule.err;
        return -1;
    }
    return (int)after(counted, result);
}

int fallocate(int fd, int mode, off_t offset, off_t len) {
    const bool counted = is_ours_fd(fd);
    return counted && hit(ON_ALLOCATE) ? -1 : (int)after(counted, syscall(SYS_fallocate, fd, mode, offset, len));
}

int ftruncate(int fd, off_t len) {
    const bool counted = is_ours_fd(fd);
    return counted && hit(ON_TRUNCATE) ? -1 : (int)after(counted, syscall(SYS_ftruncate, fd, len));
}

int fsync(int fd) {
    const bool counted = is_ours_fd(fd);
    return counted && hit(ON_SYNC) ? -1 : (int)after(counted, syscall(SYS_fsync, fd));
}

ssize_t pread(int fd, void *buffer, size_t bytes, off_t offset) {
    if (is_ours_fd(fd) && hit(ON_READ)) {
        if (rule.kind != IS_SHORT || bytes < 2) {
            return -1;
        }
        bytes /= 2;
    }
    return syscall(SYS_pread64, fd, buffer, bytes, offset);
}

ssize_t read(int fd, void *buffer, size_t bytes) {
    if (is_ours_fd(fd) && hit(ON_READ)) {
        if (rule.kind != IS_SHORT || bytes < 2) {
            return -1;
        }
        bytes /= 2;
    }
    return syscall(SYS_read, fd, buffer, bytes);
}

/* Half of it is written. */
static ssize_t part(int fd, const void *buffer, size_t bytes, off_t offset) {
    const size_t half = bytes / 2;
    const ssize_t written = offset < 0 ? syscall(SYS_write, fd, buffer, half)
                                       : syscall(SYS_pwrite64, fd, buffer, half, offset);
    if (rule.kind == DIES_WITHIN) {
        die();
    }
    return written;
}

ssize_t pwrite(int fd, const void *buffer, size_t bytes, off_t offset) {
    const bool counted = is_ours_fd(fd);
    if (counted && hit(ON_WRITE)) {
        return rule.kind == FAILS || bytes < 2 ? -1 : part(fd, buffer, bytes, offset);
    }
    return after(counted, syscall(SYS_pwrite64, fd, buffer, bytes, offset));
}

ssize_t write(int fd, const void *buffer, size_t bytes) {
    const bool counted = is_ours_fd(fd);
    if (counted && hit(ON_WRITE)) {
        return rule.kind == FAILS || bytes < 2 ? -1 : part(fd, buffer, bytes, -1);
    }
    return after(counted, syscall(SYS_write, fd, buffer, bytes));
}

int rename(const char *from, const char *to) {
    const bool counted = is_ours(to);
    return counted && hit(ON_RENAME) ? -1 : (int)after(counted, syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to));
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags) {
    const bool counted = is_ours(to);
    return counted && hit(ON_RENAME) ? -1
                                     : (int)after(counted, syscall(SYS_renameat2, from_fd, from, to_fd, to, flags));
}

int unlink(const char *path) {
    const bool counted = is_ours(path);
    return counted && hit(ON_REMOVE) ? -1 : (int)after(counted, syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}

int unlinkat(int fd, const char *path, int flags) {
    const bool counted = is_ours_fd(fd);
    return counted && hit(ON_REMOVE) ? -1 : (int)after(counted, syscall(SYS_unlinkat, fd, path, flags));
}

int rmdir(const char *path) {
    const bool counted = is_ours(path);
    return counted && hit(ON_REMOVE) ? -1 : (int)after(counted, syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR));
}

int mkdir(const char *path, mode_t mode) {
    const bool counted = is_ours(path);
    return counted && hit(ON_MAKE) ? -1 : (int)after(counted, syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}

/* ---- the runs ---------------------------------------------------------------------------------------- */

static struct tiny_told *told; /* shared */
static struct {
    uint64_t kills, injections, unnoticed, warned, failed;
} counts;

static const struct ox_io_backend *begin(const struct ox_io_backend *inner) {
    armed = true;
    return inner;
}

static void end(void) {
    armed = false;
}

static const struct tiny_seam seam = {.begin = begin, .end = end};

/* False when the run ends before it comes to that call. */
static bool kill_at(enum kind kind, uint64_t idx) {
    static const char *const moments[] = {[DIES_BEFORE] = "before", [DIES_WITHIN] = "within", [DIES_AFTER] = "after"};
    char what[64];
    rule.kind = kind;
    rule.idx = idx;
    memset(seen, 0, sizeof *seen);
    snprintf(what, sizeof what, "killed %s call %llu", moments[kind], (unsigned long long)idx);
    const enum tiny_end ended = tiny_run("threads", TINY_FRESH, &seam, told);
    CHECK(ended != TINY_FAILED && told->warnings == 0);
    counts.kills += ended == TINY_KILLED;
    tiny_end_well("threads", told, what);
    return seen->hits > 0;
}

static void sweep_kills(uint64_t stride) {
    for (enum kind kind = DIES_BEFORE; kind <= DIES_AFTER; kind++) {
        uint64_t idx = kind % stride;
        while (test_failure_count < 10 && kill_at(kind, idx)) {
            idx += stride;
        }
        CHECK(idx > 50 || test_failure_count > 0);
    }
    printf("%llu calls that change something, of", (unsigned long long)seen->changes);
    for (int i = 0; i < POINT_COUNT; i++) {
        printf(" %llu %s", (unsigned long long)seen->calls[i], point_names[i]);
    }
    printf("\n%llu kills\n", (unsigned long long)counts.kills);
}

/* What is only interrupted or cut short goes on by itself, where the kernel does such a thing. */
static bool must_repair(void) {
    const bool transfer = rule.point == ON_READ || rule.point == ON_WRITE;
    return (transfer && (rule.kind == IS_SHORT || rule.err == EINTR)) ||
           ((rule.point == ON_ALLOCATE || rule.point == ON_CLOSE) && rule.err == EINTR);
}

/* False when the run makes no such call. */
static bool inject(void) {
    const int failures = test_failure_count;
    char what[128];
    snprintf(what, sizeof what, "%s %llu, %s, %s", point_names[rule.point], (unsigned long long)rule.idx,
             rule.kind == IS_SHORT ? "short" : strerror(rule.err), rule.persistent ? "from then on" : "once");
    memset(seen, 0, sizeof *seen);
    const enum tiny_end ended = tiny_run("threads", TINY_FRESH, &seam, told);
    const bool was_hit = seen->hits > 0;
    CHECK(ended != TINY_KILLED);
    CHECK(ended == TINY_DONE || (told->text[0] != '\0' && told->status != OX_E_CORRUPT));
    if (!was_hit || must_repair()) {
        CHECK(ended == TINY_DONE && told->warnings == 0);
    }
    counts.injections += was_hit;
    counts.failed += ended == TINY_FAILED;
    counts.warned += ended == TINY_DONE && told->warnings > 0;
    counts.unnoticed += was_hit && ended == TINY_DONE && told->warnings == 0;
    tiny_end_well("threads", told, what);
    if (test_failure_count > failures) {
        printf("%s: %s; %s\n", what, told->text, told->warning);
    }
    return was_hit;
}

static void sweep_failures(uint64_t stride) {
    static const struct {
        enum kind kind;
        int err;
        bool persistent;
    } ways[] = {{FAILS, EIO, false},   {FAILS, EIO, true},    {FAILS, ENOSPC, false},
                {FAILS, ENOSPC, true}, {FAILS, EINTR, false}, {IS_SHORT, EIO, false}};
    for (int point = 0; point < POINT_COUNT; point++) {
        for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++) {
            if (ways[i].kind == IS_SHORT && point != ON_READ && point != ON_WRITE) {
                continue;
            }
            rule.kind = ways[i].kind;
            rule.point = (enum point)point;
            rule.err = ways[i].err;
            rule.persistent = ways[i].persistent;
            rule.idx = i % stride;
            while (test_failure_count < 10 && inject()) {
                rule.idx += stride;
            }
        }
    }
    printf("%llu failures of calls: %llu without a trace, %llu with a warning, %llu ended the run\n",
           (unsigned long long)counts.injections, (unsigned long long)counts.unnoticed,
           (unsigned long long)counts.warned, (unsigned long long)counts.failed);
    CHECK(counts.injections > 600 / stride && counts.failed > 200 / stride && counts.warned > 50 / stride);
}

int main(int argc, char **argv) {
    const uint64_t given = argc == 2 ? strtoull(argv[1], NULL, 10) : 0;
    tiny_single_thread(argv);
    seen = tiny_shared(sizeof *seen);
    told = tiny_shared(sizeof *told);
    tiny_begin(TINY_IN_MEMORY);
    sweep_kills(given > 0 ? given : KILL_STRIDE);
    sweep_failures(given > 0 ? given : STRIDE);
    printf("%llu times went on, %llu times began anew, %llu steps lost\n", (unsigned long long)tiny_counts.resumed,
           (unsigned long long)tiny_counts.started_over, (unsigned long long)tiny_counts.steps_lost);
    return test_end();
}
