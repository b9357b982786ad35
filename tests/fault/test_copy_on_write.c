/* A store on a file system that copies on write. btrfs is asked to write its files in place, so a disk that becomes
 * full after the start stops no step; which file systems cannot do that is known by their type.
 *
 * The part on a real btrfs needs root, loop devices and mkfs.btrfs, and is skipped with a word elsewhere. */
#include "nvme/io_drive.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STEPS = 12 };

static struct sys_args args;
static struct sys_process process;

static void test_types(void) {
    static const struct {
        uint64_t type;
        bool nocow, copies;
    } cases[] = {
        {BTRFS_SUPER_MAGIC, false, true}, {BTRFS_SUPER_MAGIC, true, false}, {0x2fc12fc1, false, true},
        {0x2fc12fc1, true, true},         {0xca451a4e, true, true},         {EXT4_SUPER_MAGIC, false, false},
        {XFS_SUPER_MAGIC, false, false},  {TMPFS_MAGIC, false, false},      {OVERLAYFS_SUPER_MAGIC, false, false},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK(ox_drive_copies_on_write(cases[i].type, cases[i].nocow) == cases[i].copies);
    }
}

/* Takes all space that is left. */
static void fill_disk(void) {
    static const char block[4096];
    const int fd = open(test_path("btrfs/filler"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0);
    for (int tries = 0; tries < 3; tries++) { /* what was deleted or delayed may come free */
        while (write(fd, block, sizeof block) > 0) {
            continue;
        }
        CHECK(errno == ENOSPC && fsync(fd) == 0);
    }
    CHECK(close(fd) == 0);
}

static void begin(const char *output, bool drive) {
    sys_args_train(&args, sys_write_model("llama"), sys_write_text(20000), output);
    sys_args_word(&args, "--max-steps=%d", STEPS);
    sys_args_add(&args, "--max-seq-length 16 --eval-windows 0 --save-steps 0 --compute-threads 1 --optimizer-threads 1"
                        " --chunk-elems 8192 --persist-steps 1");
    if (drive) {
        sys_args_word(&args, "--nvme=%s:32MiB", test_path("btrfs"));
    }
}

static void test_full_disk(void) {
    int status = 0;
    begin("expected", false);
    sys_run_well(&args, &process);
    begin("run", true);
    sys_args_leash(&args);
    sys_start(&args, &process);
    CHECK(sys_await(&process, "\nstep 3/"));
    kill(process.pid, SIGSTOP);
    CHECK(waitpid(process.pid, &status, WUNTRACED) == process.pid && WIFSTOPPED(status));
    fill_disk();
    kill(process.pid, SIGCONT);
    sys_wait(&process);
    if (process.outcome.exit_status != 0 || strstr(process.outcome.err, "copies on write") != NULL) {
        printf("status %d\n%s\n", process.outcome.exit_status, process.outcome.err);
        test_failure_count++;
        return;
    }
    CHECK(sys_same_checkpoint(test_pathf("expected/checkpoint-%d", STEPS), test_pathf("run/checkpoint-%d", STEPS)));
}

int main(void) {
    test_types();
    if (!files_mount_image("btrfs", "btrfs", 280)) {
        printf("btrfs: skipped: nothing can be mounted here, or no mkfs.btrfs, loop device or btrfs in this kernel\n");
        return test_end();
    }
    test_full_disk();
    files_unmount_image("btrfs");
    return test_end();
}
