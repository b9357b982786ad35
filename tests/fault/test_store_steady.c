/* Between open and close a step creates, renames and extends nothing, so a full disk cannot stop it and a crash finds
 * no unfinished file: a filter kills the process at the first such call. */
#include "tests/kit/store/store_kit.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const int banned[] = {
#ifdef SYS_open
    SYS_open, SYS_creat, SYS_rename, SYS_unlink, SYS_mkdir, SYS_link, SYS_symlink,
#endif
    SYS_openat, SYS_openat2, SYS_renameat2, SYS_unlinkat, SYS_linkat, SYS_mkdirat,
#ifdef SYS_renameat
    SYS_renameat,
#endif
    SYS_truncate, SYS_ftruncate, SYS_fallocate,
};
enum { BANNED_COUNT = sizeof banned / sizeof *banned };

/* The filter also covers threads that are already running. */
static bool filter_set(void) {
    struct sock_filter code[2 * BANNED_COUNT + 2];
    unsigned count = 0;
    code[count++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (unsigned i = 0; i < BANNED_COUNT; i++) {
        code[count++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)banned[i], 0, 1);
        code[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    }
    code[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    const struct sock_fprog program = {.len = (unsigned short)count, .filter = code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}

enum { EXIT_NO_FILTER = 3 };

/* `extend`: the control, which must be killed. */
static void child_main(const struct kit *kit, bool extend) {
    struct ox_store *store = NULL;
    struct ox_store_port *port = NULL;
    bool wrong = false;
    REQUIRE_OK(ox_store_open(&kit->config, &store));
    REQUIRE_OK(ox_store_port_open(store, &port));
    if (!filter_set()) {
        _exit(EXIT_NO_FILTER);
    }
    struct ox_store_info info;
    ox_store_info(store, &info);
    for (uint64_t step = info.step + 1; step < info.step + 5; step++) {
        REQUIRE_OK(kit_commit(store, port, step));
        REQUIRE_OK(kit_verify(store, port, step, &wrong));
        CHECK(!wrong);
    }
    if (extend && ftruncate(-1, 0) == 0) {
        _exit(1);
    }
    _exit(test_failure_count > 0);
}

static int run_child(const struct kit *kit, bool extend) {
    int status = 0;
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        child_main(kit, extend);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    return status;
}

static void steps(const struct ox_io_backend *backend) {
    struct kit kit;
    struct ox_store *store = NULL;
    struct ox_store_port *port = NULL;
    struct ox_drive_info drive;
    struct stat before, after;
    kit_init(&kit, backend, test_folder(), 1);
    REQUIRE_OK(ox_store_create(&kit.config, &store));
    REQUIRE_OK(ox_store_port_open(store, &port));
    REQUIRE_OK(kit_commit(store, port, 1));
    REQUIRE_OK(ox_store_drive_info(store, 0, &drive));
    ox_store_port_close(&port);
    ox_store_close(&store);
    CHECK(stat(drive.path, &before) == 0);
    const int status = run_child(&kit, false);
    if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_NO_FILTER) {
        test_skip("no system call filter can be set here");
    }
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(stat(drive.path, &after) == 0 && after.st_ino == before.st_ino && after.st_size == before.st_size &&
          after.st_blocks == before.st_blocks);
    const int control = run_child(&kit, true);
    CHECK(WIFSIGNALED(control) && WTERMSIG(control) == SIGSYS);
    REQUIRE_OK(ox_store_remove(kit.folders, 1));
}

int main(void) {
    char why[160];
    steps(ox_io_threads());
    if (ox_io_probe(why) == ox_io_uring()) {
        steps(ox_io_uring());
    } else {
        printf("uring: skipped: %s\n", why);
    }
    return test_end();
}
