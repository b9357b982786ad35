/* Owns the folder that a measurement writes to, and its removal: at the end, on an error, and on a signal. */
#include "tools/bench/bench.h"

#include "base/assert.h"
#include "base/file.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_COUNT = 2, TRIES = 1000 };

/* The signal handler reads it, so all paths are prepared beforehand. */
static struct {
    char folder[OX_PATH_BYTES];
    char files[FILE_COUNT][OX_PATH_BYTES];
    int fd; /* the folder's; holds its lock */
    volatile sig_atomic_t open;
} scratch = {.fd = -1};

/* Removes files and folder. A thread may be creating a file at this moment, so it repeats until the folder is gone. */
static bool remove_all(void) {
    for (int try = 0; try < TRIES; try++) {
        for (int i = 0; i < FILE_COUNT; i++) {
            unlink(scratch.files[i]);
        }
        if (rmdir(scratch.folder) == 0 || (errno != ENOTEMPTY && errno != EEXIST)) {
            return true;
        }
    }
    return false;
}

/* A running fio gets SIGTERM from the kernel when this process ends. */
static void on_stop(int signal_number) {
    if (scratch.open != 0) {
        remove_all();
    }
    _exit(128 + signal_number);
}

static const int stop_signals[] = {SIGINT, SIGTERM, SIGHUP};
enum { STOP_SIGNALS = sizeof stop_signals / sizeof *stop_signals };

/* Blocks or unblocks the signals: they wait while the folder exists but the handler does not know it yet. Unblocking
 * also undoes a parent's mask. */
static void mask_signals(int how) {
    sigset_t set;
    sigemptyset(&set);
    for (unsigned i = 0; i < STOP_SIGNALS; i++) {
        sigaddset(&set, stop_signals[i]);
    }
    pthread_sigmask(how, &set, NULL);
}

static void install_handlers(void) {
    for (unsigned i = 0; i < STOP_SIGNALS; i++) {
        struct sigaction action = {.sa_handler = on_stop, .sa_flags = SA_RESTART}, before;
        sigfillset(&action.sa_mask);
        /* Under nohup the run continues without its terminal. */
        if (stop_signals[i] != SIGHUP || (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN)) {
            sigaction(stop_signals[i], &action, NULL);
        }
    }
    /* a closed pipe then shows as a write error, after the cleanup */
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigemptyset(&ignore.sa_mask);
    sigaction(SIGPIPE, &ignore, NULL);
}

static enum ox_status set_paths(const char *parent) {
    static const char *const names[FILE_COUNT] = {OX_BENCH_DRIVE_FILE, OX_BENCH_STORE_FILE};
    enum ox_status status = ox_path_join(parent, "offload-bench.tmp", scratch.folder);
    for (int i = 0; i < FILE_COUNT && status == OX_OK; i++) {
        status = ox_path_join(scratch.folder, names[i], scratch.files[i]);
    }
    return status;
}

static enum ox_status make_folder(const char *parent) {
    OX_TRY(set_paths(parent));
    if (mkdir(scratch.folder, 0700) != 0 && errno != EEXIST) {
        return ox_fail_errno(OX_E_CONFIG, errno, "--nvme: cannot write to %s; name a folder that you may write to",
                             parent);
    }
    scratch.fd = open(scratch.folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (scratch.fd < 0) {
        return ox_fail_errno(OX_E_CONFIG, errno, "%s: cannot be used; remove it", scratch.folder);
    }
    if (flock(scratch.fd, LOCK_EX | LOCK_NB) != 0) {
        close(scratch.fd);
        scratch.fd = -1;
        return ox_fail(OX_E_BUSY, "%s: another `offload bench` is measuring this drive; wait until it ends",
                       scratch.folder);
    }
    for (int i = 0; i < FILE_COUNT; i++) {
        unlink(scratch.files[i]); /* left by a killed run */
    }
    scratch.open = 1;
    return OX_OK;
}

enum ox_status ox_bench_scratch_open(const char *parent, char *path) {
    OX_ASSERT(scratch.open == 0);
    if (!ox_path_is_folder(parent)) {
        return ox_fail(OX_E_CONFIG, "--nvme: %s is not a folder; name an existing folder on the drive to measure",
                       parent);
    }
    mask_signals(SIG_BLOCK);
    install_handlers();
    const enum ox_status status = make_folder(parent);
    mask_signals(SIG_UNBLOCK);
    if (status == OX_OK) {
        snprintf(path, OX_PATH_BYTES, "%s", scratch.folder);
    }
    return status;
}

void ox_bench_scratch_close(void) {
    if (scratch.open == 0) {
        return;
    }
    if (!remove_all()) {
        ox_log(OX_LOG_WARN, "%s: contains foreign files, so it is not removed", scratch.folder);
    }
    scratch.open = 0;
    close(scratch.fd);
    scratch.fd = -1;
}
