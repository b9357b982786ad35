/* A run in surroundings that a shell, a service or a container may give it: limits, closed streams, namespaces, missing
 * folders, and file systems that go away. It ends with the bytes of an ordinary run, or fails with an ordinary error;
 * then the same command goes on in ordinary surroundings, with the same bytes. */
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STEPS = 6, CPU_SECONDS_MAX = 20 };

/* What bash does before it becomes the program. */
static const struct row {
    const char *words;
    enum { WORKS, FAILS, MAY_FAIL } outcome;
    const char *told;  /* where it fails: part of its error */
    const char *needs; /* a program of the system, and root; NULL: neither */
} rows[] = {
    {"ulimit -n 8", FAILS, "the limit of `ulimit -n`", NULL},
    {"ulimit -n 16", MAY_FAIL, "the limit of `ulimit -n`", NULL},
    {"ulimit -n 20", MAY_FAIL, "the limit of `ulimit -n`", NULL},
    {"ulimit -n 64", WORKS, NULL, NULL},
    {"ulimit -s 32", FAILS, "raise the limit (ulimit -s)", NULL},
    {"ulimit -s 900", FAILS, "raise the limit (ulimit -s)", NULL},
    {"ulimit -s 1024", WORKS, NULL, NULL},
    {"ulimit -s unlimited", WORKS, NULL, NULL},
    {"ulimit -l 0", WORKS, NULL, NULL},
    {"exec <&-", WORKS, NULL, NULL},
    {"exec >&-", FAILS, "the results could not be written to stdout", NULL},
    {"exec 2>&-", WORKS, NULL, NULL},
    {"exec <&- >&- 2>&-", MAY_FAIL, "", NULL},
    {"exec >/dev/full", FAILS, "the results could not be written to stdout", NULL},
    {"exec 2>/dev/full", WORKS, NULL, NULL},
    {"exec 2> >(head -n 3 >/dev/null)", WORKS, NULL, NULL},
    {"mkdir gone && cd gone && rmdir ../gone", WORKS, NULL, NULL},
    {"export HOME=/nonexistent TMPDIR=/nonexistent XDG_CACHE_HOME=/proc/1/nothing", WORKS, NULL, NULL},
    {"export LC_ALL=tlh_QO TZ=Nowhere/Land", WORKS, NULL, NULL},
    {"unset HOME PATH LANG", WORKS, NULL, NULL},
    {"umask 0777", WORKS, NULL, NULL},
    {"trap '' PIPE TERM HUP", WORKS, NULL, NULL},
    {"exec taskset -c 0", WORKS, NULL, "taskset"},
    {"exec unshare -Ur", WORKS, NULL, "unshare"},
    {"exec unshare -U", MAY_FAIL, "nothing can be written there", "unshare"},
    {"exec unshare -n -i -u", WORKS, NULL, "unshare"},
    {"exec unshare -p -f --mount-proc", WORKS, NULL, "unshare"},
    {"exec unshare -T --monotonic 100000000 -f", MAY_FAIL, "unshare", "unshare"},
#ifndef __SANITIZE_ADDRESS__ /* which looks for leaks by /proc */
    {"exec unshare -m sh -c 'mount -t tmpfs none /proc && exec \"$@\"' sh", WORKS, NULL, "unshare"},
#endif
    {"exec unshare -m sh -c 'mount -t tmpfs none /sys && mount -t tmpfs none /dev && exec \"$@\"' sh", WORKS, NULL,
     "unshare"},
    {"exec unshare -m sh -c 'mount -o ro,remount,bind / && exec \"$@\"' sh", MAY_FAIL, "", "unshare"},
    {"exec setpriv --reuid 65533 --clear-groups bash -c 'ulimit -u 1; exec \"$@\"' sh", FAILS,
     "the limit of `ulimit -u`", "setpriv"},
    {"exec setpriv --reuid 65533 --clear-groups bash -c 'ulimit -u 5; exec \"$@\"' sh", FAILS,
     "the limit of `ulimit -u`", "setpriv"},
    {"exec setpriv --reuid 65533 --clear-groups bash -c 'ulimit -u 9; exec \"$@\"' sh", FAILS,
     "the limit of `ulimit -u`", "setpriv"},
    {"exec setpriv --reuid 65533 --clear-groups bash -c 'ulimit -u 60; exec \"$@\"' sh", WORKS, NULL, "setpriv"},
};

static struct sys_args args, wrapped;
static struct sys_process process;
static const char *model_path, *text_path;

static void begin(const char *output, long steps) {
    sys_args_train(&args, model_path, text_path, output);
    sys_args_word(&args, "--max-steps=%ld", steps);
    sys_args_add(&args, "--max-seq-length 16 --batch-size 1 --save-steps 3 --eval-windows 0 --compute-threads 2"
                        " --optimizer-threads 2");
}

static void begin_on_drives(void) {
    begin("run", STEPS);
    sys_args_add(&args, "--state-tier nvme");
    sys_args_drive(&args, "drive-1", "16MiB");
    sys_args_drive(&args, "drive-2", "16MiB");
}

static void remove_run(void) {
    files_remove_folder("run");
    files_remove_folder("drive-1");
    files_remove_folder("drive-2");
}

/* Makes the program start in these surroundings: bash reads `words`, which may end in a program that starts another. */
static void wrap(const struct row *row) {
    char program[PATH_MAX];
    CHECK(realpath(sys_program(), program) != NULL);
    sys_args_begin(&wrapped, "");
    wrapped.program = "bash";
    sys_args_word(&wrapped, "-c");
    sys_args_word(&wrapped, "%s%s \"$0\" \"$@\"", row->words, row->needs != NULL ? "" : "; exec");
    sys_args_word(&wrapped, "%s", program);
    for (int i = 1; i < args.count; i++) {
        sys_args_word(&wrapped, "%s", args.words[i]);
    }
    sys_args_limit(&wrapped, RLIMIT_CPU, CPU_SECONDS_MAX);
}

static bool is_there(const char *program) {
    return access(plain_pathf("/usr/bin/%s", program), X_OK) == 0 || access(plain_pathf("/bin/%s", program), X_OK) == 0;
}

static void complain(const char *words, const char *what) {
    printf("%s: %s", words, what);
    sys_complain(&process, "");
}

static bool is_complete(void) {
    return sys_same_checkpoint(test_pathf("expected/checkpoint-%d", STEPS), test_pathf("run/checkpoint-%d", STEPS));
}

static void test_row(const struct row *row) {
    if (row->needs != NULL && (geteuid() != 0 || !is_there(row->needs))) {
        printf("%s: skipped: it needs root and %s\n", row->words, row->needs);
        return;
    }
    begin_on_drives();
    chmod(test_folder(), 0777); /* some rows have another user */
    chmod(test_path("drive-1"), 0777);
    chmod(test_path("drive-2"), 0777);
    wrap(row);
    sys_run(&wrapped, &process);
    const int status = process.outcome.exit_status;
    if (status != 0 && status != 1 && status != 2) {
        complain(row->words, "neither a result nor an ordinary error");
    } else if (row->outcome != MAY_FAIL && (status == 0) != (row->outcome == WORKS)) {
        complain(row->words, "another outcome than expected");
    } else if (status != 0 && !sys_said(&process, row->told)) {
        complain(row->words, "its error does not name the cause");
    } else if (status == 0 && !is_complete()) {
        complain(row->words, "other bits");
    }
    begin_on_drives();
    sys_args_add(&args, files_exist("run/run.json") ? "--resume latest" : "");
    sys_run(&args, &process);
    if (process.outcome.exit_status != 0 || !is_complete()) {
        complain(row->words, "it does not go on in ordinary surroundings");
    }
    remove_run();
}

/* ---- file systems that change under a run ---------------------------------------------------------------- */

#ifndef EXT4_IOC_SHUTDOWN
#define EXT4_IOC_SHUTDOWN _IOR('X', 125, uint32_t) /* of xfs too */
#endif

/* As after a failure of the disk: nothing is written any more, and what was not flushed is lost. */
static bool shut_down(const char *folder) {
    const uint32_t without_flush = 2;
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool done = fd >= 0 && ioctl(fd, EXT4_IOC_SHUTDOWN, &without_flush) == 0;
    close(fd);
    return done;
}

static void begin_on_mount(long steps) {
    begin("mnt/run", steps);
    sys_args_add(&args, "--state-tier nvme --persist-steps 1");
    sys_args_drive(&args, "mnt", "16MiB");
}

/* A run on a file system that fails, which is then repaired by its own means, goes on from its last commit. */
static void test_failed(const char *type) {
    if (geteuid() != 0 || !files_mount_image("mnt", type, 320)) {
        printf("%s: skipped: it cannot be mounted here\n", type);
        return;
    }
    begin_on_mount(3000);
    sys_start(&args, &process);
    CHECK(sys_await(&process, "\nstep 20/"));
    CHECK(shut_down(test_path("mnt")));
    sys_wait(&process);
    if (process.outcome.exit_status != 1 || !sys_said(&process, "Input/output error")) {
        complain(type, "a file system that has failed is not an ordinary error");
    }
    const long told = sys_number_after(process.outcome.err, "\nstep ", -1);
    files_mount_again("mnt");
    begin_on_mount(told + 5);
    sys_args_add(&args, "--resume latest");
    sys_run(&args, &process);
    const long resumed = sys_number_after(process.outcome.err, "resumed at step ", -1);
    if (process.outcome.exit_status != 0 || resumed < told - 1) {
        printf("told of step %ld, resumed at %ld: ", told, resumed);
        complain(type, "it does not go on from its last commit");
    }
    files_unmount_image("mnt");
}

/* Folders that anyone may write to are warned of, unless others can remove nothing there; also one in which the run's
 * folder is to be made. */
static void test_open_folders(void) {
    static const struct {
        mode_t mode;
        bool warned;
    } cases[] = {{0777, true}, {0702, true}, {01777, false}, {0775, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin("open/run", 1);
        sys_args_drive(&args, "drive-1", "16MiB");
        CHECK(chmod(files_make_folder("open"), cases[i].mode) == 0 && chmod(test_path("drive-1"), cases[i].mode) == 0);
        sys_run_well(&args, &process);
        for (int place = 0; place < 2; place++) {
            const char *const warning = plain_pathf("warning: %s %s: anyone on this machine may write to ",
                place == 0 ? "--output" : "--nvme", test_path(place == 0 ? "open/run" : "drive-1"));
            CHECK(sys_said(&process, warning) == cases[i].warned);
        }
        files_remove_folder("open");
        files_remove_folder("drive-1");
    }
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    model_path = strdup(sys_write_model("llama"));
    text_path = strdup(sys_write_text(20000));
    begin("expected", STEPS);
    sys_run_well(&args, &process);
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        test_row(&rows[i]);
    }
    test_failed("ext4");
    test_failed("xfs");
    test_open_folders();
    return test_end();
}
