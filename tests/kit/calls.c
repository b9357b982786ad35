#include "tests/kit/calls.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

const char *const call_names[CALL_COUNT] = {
    [CALL_OPEN] = "open",
    [CALL_OPEN_UNNAMED] = "open O_TMPFILE",
    [CALL_CLOSE] = "close",
    [CALL_STAT] = "stat",
    [CALL_LIST] = "readdir",
    [CALL_READ] = "read",
    [CALL_WRITE] = "write",
    [CALL_SYNC] = "fsync",
    [CALL_FLUSH] = "fdatasync",
    [CALL_RENAME] = "rename",
    [CALL_RENAME_NEW] = "renameat2",
    [CALL_ALLOCATE] = "fallocate",
    [CALL_TRUNCATE] = "ftruncate",
    [CALL_LOCK] = "flock",
    [CALL_MAKE] = "mkdir",
    [CALL_REMOVE] = "unlink",
    [CALL_SPACE] = "statvfs",
    [CALL_RANDOM] = "getrandom",
    [CALL_MEMORY] = "malloc",
};

enum {
    FDS = 1024,
    HITS_MAX = 1000000 /* a program that goes on for longer than this repeats a failed call for ever */
};

static struct calls_seen own_seen;
struct calls_seen *calls_seen = &own_seen;
struct calls_options calls_options;

static struct call_rule rule;
static atomic_bool is_armed;
static atomic_bool picked_fds[FDS];   /* opened by a path that options.picks */
static atomic_bool sync_failed;       /* and nothing was written since */
static _Thread_local bool dies_after; /* the call that this thread counted last */

void calls_set(const struct call_rule *new_rule) {
    rule = *new_rule;
    *calls_seen = (struct calls_seen){0};
    atomic_store(&sync_failed, false);
}

void calls_arm(bool armed) {
    atomic_store(&is_armed, armed);
}

/* ---- which calls count --------------------------------------------------------------------------------- */

__attribute__((noreturn)) static void die(void) {
    for (;;) {
        kill(getpid(), SIGKILL);
    }
}

static bool changes_files(enum call call) {
    return call <= CALL_OPEN_UNNAMED || (call >= CALL_WRITE && call <= CALL_TRUNCATE) || call == CALL_MAKE ||
           call == CALL_REMOVE;
}

static bool hit(enum call call) {
    const uint64_t idx = calls_seen->calls[call]++;
    bool now = false;
    if (rule.fault == CALL_DIES_BEFORE || rule.fault == CALL_DIES_AFTER) {
        now = changes_files(call) && calls_seen->changes++ == rule.idx;
    } else {
        now = call == (rule.fault == CALL_DIES_WITHIN ? CALL_WRITE : rule.call) &&
              (idx == rule.idx || (rule.persistent && idx > rule.idx));
    }
    if (!now) {
        return false;
    }
    if (++calls_seen->hits > HITS_MAX) {
        fprintf(stderr, "%s failed %d times, and is repeated still\n", call_names[call], HITS_MAX);
        abort();
    }
    switch (rule.fault) {
    case CALL_STALLS:
        nanosleep(&(struct timespec){.tv_nsec = 200 * 1000}, NULL);
        return false;
    case CALL_DIES_BEFORE:
        die();
    case CALL_DIES_AFTER:
        dies_after = true;
        return false;
    case CALL_DIES_WITHIN:
        dies_after = true;
        return true;
    default:
        errno = rule.error;
        return true;
    }
}

/* Not instrumented, because a sanitizer allocates memory before it can watch any. */
__attribute__((no_sanitize_address)) bool calls_hit(enum call call) {
    return atomic_load(&is_armed) && hit(call);
}

/* The result of a call that was made. */
static long done(long result) {
    if (dies_after) {
        die();
    }
    return result;
}

static bool is_picked(const char *path) {
    return calls_options.picks == NULL || (atomic_load(&is_armed) && calls_options.picks(path));
}

static bool is_picked_fd(int fd) {
    return calls_options.picks == NULL || (fd >= 0 && fd < FDS && atomic_load(&picked_fds[fd]));
}

static bool hit_path(enum call call, const char *path) {
    return is_picked(path) && calls_hit(call);
}

static bool hit_fd(enum call call, int fd) {
    return is_picked_fd(fd) && calls_hit(call);
}

/* ---- descriptors --------------------------------------------------------------------------------------- */

int open(const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (hit_path((flags & O_TMPFILE) == O_TMPFILE ? CALL_OPEN_UNNAMED : CALL_OPEN, path)) {
        return -1;
    }
    const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    if (fd >= 0 && fd < FDS && calls_options.picks != NULL) {
        atomic_store(&picked_fds[fd], is_picked(path));
    }
    return (int)done(fd);
}

int close(int fd) {
    const bool fails = hit_fd(CALL_CLOSE, fd);
    if (fd >= 0 && fd < FDS) {
        atomic_store(&picked_fds[fd], false);
    }
    const int result = (int)syscall(SYS_close, fd);
    if (fails) {
        errno = rule.error;
        return -1;
    }
    return (int)done(result);
}

int fcntl(int fd, int command, ...) {
    va_list args;
    va_start(args, command);
    const long value = va_arg(args, long);
    va_end(args);
    if (calls_options.refuses_direct && command == F_SETFL && (value & O_DIRECT) != 0) {
        errno = EINVAL;
        return -1;
    }
    return (int)syscall(SYS_fcntl, fd, command, value);
}

int flock(int fd, int operation) {
    const bool unlocks = (operation & LOCK_UN) != 0;
    return !unlocks && hit_fd(CALL_LOCK, fd) ? -1 : (int)done(syscall(SYS_flock, fd, operation));
}

int fallocate(int fd, int mode, off_t offset, off_t bytes) {
    if (calls_options.refuses_allocate) {
        errno = EOPNOTSUPP;
        return -1;
    }
    return hit_fd(CALL_ALLOCATE, fd) ? -1 : (int)done(syscall(SYS_fallocate, fd, mode, offset, bytes));
}

int ftruncate(int fd, off_t bytes) {
    return hit_fd(CALL_TRUNCATE, fd) ? -1 : (int)done(syscall(SYS_ftruncate, fd, bytes));
}

/* A file system may drop what a failed sync did not write and let the next one succeed, which proves nothing then. */
static int sync_fd(enum call call, int fd) {
    struct stat info;
    if (calls_options.skips_sync) {
        return hit_fd(call, fd) ? -1 : (int)done(0);
    }
    if (atomic_load(&is_armed) && syscall(SYS_fstat, fd, &info) == 0) {
        const bool is_folder = S_ISDIR(info.st_mode);
        calls_seen->folder_syncs += is_folder;
        calls_seen->repeated_syncs += !is_folder && atomic_exchange(&sync_failed, false);
    }
    if (hit_fd(call, fd)) {
        atomic_store(&sync_failed, true);
        return -1;
    }
    return (int)done(syscall(call == CALL_SYNC ? SYS_fsync : SYS_fdatasync, fd));
}

int fsync(int fd) {
    return sync_fd(CALL_SYNC, fd);
}

int fdatasync(int fd) {
    return sync_fd(CALL_FLUSH, fd);
}

/* ---- transfers ----------------------------------------------------------------------------------------- */

/* For a transfer that goes wrong: true when half its bytes are to be moved. A single byte cannot be cut short. */
static bool halve(size_t *bytes) {
    const size_t multiple = rule.multiple > 0 ? rule.multiple : 1;
    if (rule.fault == CALL_FAILS) {
        return false;
    }
    if (*bytes == 1) {
        return true;
    }
    *bytes = *bytes / 2 / multiple * multiple;
    return *bytes > 0;
}

static ssize_t refusal(void) {
    return done(rule.error == 0 ? 0 : -1);
}

ssize_t read(int fd, void *data, size_t bytes) {
    return hit_fd(CALL_READ, fd) && !halve(&bytes) ? refusal() : syscall(SYS_read, fd, data, bytes);
}

ssize_t pread(int fd, void *data, size_t bytes, off_t offset) {
    if (hit_fd(CALL_READ, fd) && !halve(&bytes)) {
        return refusal();
    }
    const ssize_t got = syscall(SYS_pread64, fd, data, bytes, offset);
    const int flipped = calls_options.flipped_byte;
    if (flipped > 0 && (syscall(SYS_fcntl, fd, F_GETFL) & O_DIRECT) != 0) {
        calls_seen->direct_reads++;
        if (got > flipped) {
            ((unsigned char *)data)[flipped] ^= 1;
        }
    }
    return got;
}

ssize_t write(int fd, const void *data, size_t bytes) {
    return hit_fd(CALL_WRITE, fd) && !halve(&bytes) ? refusal() : done(syscall(SYS_write, fd, data, bytes));
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset) {
    atomic_store(&sync_failed, false); /* the next sync is for what is written here */
    return hit_fd(CALL_WRITE, fd) && !halve(&bytes) ? refusal() : done(syscall(SYS_pwrite64, fd, data, bytes, offset));
}

/* ---- names --------------------------------------------------------------------------------------------- */

int stat(const char *path, struct stat *info) {
    return hit_path(CALL_STAT, path) ? -1 : (int)syscall(SYS_newfstatat, AT_FDCWD, path, info, 0);
}

int lstat(const char *path, struct stat *info) {
    return hit_path(CALL_STAT, path) ? -1 : (int)syscall(SYS_newfstatat, AT_FDCWD, path, info, AT_SYMLINK_NOFOLLOW);
}

int fstat(int fd, struct stat *info) {
    return hit_fd(CALL_STAT, fd) ? -1 : (int)syscall(SYS_fstat, fd, info);
}

struct dirent *readdir(DIR *folder) {
    static struct dirent *(*real)(DIR *);
    if (real == NULL) {
        real = (struct dirent * (*)(DIR *)) dlsym(RTLD_NEXT, "readdir");
    }
    return calls_hit(CALL_LIST) ? NULL : real(folder);
}

int statvfs(const char *path, struct statvfs *space) {
    static int (*real)(const char *, struct statvfs *);
    if (real == NULL) {
        real = (int (*)(const char *, struct statvfs *))dlsym(RTLD_NEXT, "statvfs");
    }
    return hit_path(CALL_SPACE, path) ? -1 : real(path, space);
}

int rename(const char *from, const char *to) {
    return hit_path(CALL_RENAME, to) ? -1 : (int)done(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags) {
    return hit_path(CALL_RENAME_NEW, to) ? -1 : (int)done(syscall(SYS_renameat2, from_fd, from, to_fd, to, flags));
}

int mkdir(const char *path, mode_t mode) {
    return hit_path(CALL_MAKE, path) ? -1 : (int)done(syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}

int unlink(const char *path) {
    return hit_path(CALL_REMOVE, path) ? -1 : (int)done(syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}

int unlinkat(int fd, const char *name, int flags) {
    return hit_fd(CALL_REMOVE, fd) ? -1 : (int)done(syscall(SYS_unlinkat, fd, name, flags));
}

int rmdir(const char *path) {
    return hit_path(CALL_REMOVE, path) ? -1 : (int)done(syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR));
}

ssize_t getrandom(void *data, size_t bytes, unsigned flags) {
    return calls_hit(CALL_RANDOM) ? -1 : syscall(SYS_getrandom, data, bytes, flags);
}
