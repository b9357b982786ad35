/* Full disks: a checkpoint that does not fit is only reported during the run, and is an error at its end; saved
 * checkpoints stay whole; a store or an export that does not fit is refused before it begins.
 *
 * The disks are small file systems in memory, mounted where only this process and its children see them. */
#include "base/file.h"
#include "engine/checkpoint/checkpoint.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

static const char common[] = "--max-seq-length 16 --host-mem 32MiB --compute-threads 1 --optimizer-threads 1 "
                             "--eval-windows 2 --lr-scheduler-type constant";

static const char *config_path, *text_path, *disk;
static struct sys_args args;
static struct sys_process process;

/* ---- disks ------------------------------------------------------------------------------------------ */

/* The kernel may hold files of a process that has just ended a little longer. */
static void unmount_disk(void) {
    CHECK(umount2(disk, MNT_DETACH) == 0);
}

/* Takes all space but `left` bytes. */
static void fill_disk(off_t left) {
    const int fd = open(test_path("disk/filler"), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    static const char block[4096];
    off_t bytes = 0;
    while (fd >= 0 && write(fd, block, sizeof block) == (ssize_t)sizeof block) {
        bytes += (off_t)sizeof block;
    }
    CHECK(fd >= 0 && errno == ENOSPC && bytes >= left && ftruncate(fd, bytes - left) == 0 && close(fd) == 0);
}

/* ---- runs ------------------------------------------------------------------------------------------- */

static void begin(const char *output, const char *more) {
    sys_args_train(&args, config_path, text_path, output);
    sys_args_add(&args, common);
    sys_args_add(&args, more);
    sys_args_add(&args, strstr(more, "--save-wait-seconds") == NULL ? "--save-wait-seconds 0" : "");
}

/* One line of error, the last, with `words`; and nobody waits where --save-wait-seconds is 0. */
static void check_error(int exit_status, const char *words) {
    const char *const line = strstr(process.outcome.err, "offload: ");
    const char *const newline = line != NULL ? strchr(line, '\n') : NULL;
    if (process.outcome.exit_status != exit_status || newline == NULL || newline[1] != '\0' ||
        strstr(line, words) == NULL || strstr(process.outcome.err, "is tried again for 0") != NULL) {
        printf("expected status %d and one line with '%s', got %d:\n%s", exit_status, words,
               process.outcome.exit_status, process.outcome.err);
        test_failure_count++;
    }
}

static void check_whole(const char *checkpoint) {
    REQUIRE_OK(ox_checkpoint_verify(test_path(checkpoint)));
}

static bool is_there(const char *name) {
    return files_exist(name);
}

/* ---- cases ------------------------------------------------------------------------------------------ */

/* With a store on another disk, checkpoints are filled while training continues. */
static void add_drive(bool drive) {
    const char *path;
    if (drive) {
        path = files_make_folder("drive");
        sys_args_word(&args, "--nvme=%s:32MiB", path);
    }
}

/* Room for two checkpoints of 0.9 MB beside the 16 MiB that a save needs free beside them. */
static void test_checkpoints(bool drive) {
    CHECK(files_mount(disk, "size=18637k"));
    begin("disk/run", drive ? "--max-steps 4 --save-steps 1 --save-wait-seconds 60" : "--max-steps 4 --save-steps 1");
    add_drive(drive);
    sys_run(&args, &process);
    CHECK(strstr(process.outcome.err, "warning: no checkpoint at step 3: ") != NULL);
    CHECK(strstr(process.outcome.err, "step 4/4 | loss ") != NULL);
    CHECK(strstr(process.outcome.err, ", 4 written, 4 kept, at most ") != NULL);
    CHECK(strstr(process.outcome.err, ", which is enough for 2: make room, or keep fewer with --save-total-limit\n") !=
          NULL);
    check_error(1, "are free; make room or choose another folder; ");
    CHECK(strstr(process.outcome.err, "only memory has the state") == NULL); /* nobody waits for what the store has */
    CHECK(strstr(process.outcome.err, drive ? "; nothing is lost: the store has step 4, and the same command with "
                                              "--resume-from-checkpoint latest saves it\n"
                                            : "and the newest checkpoint is ") != NULL);
    check_whole("disk/run/checkpoint-1");
    check_whole("disk/run/checkpoint-2");
    CHECK(!is_there("disk/run/checkpoint-3") && !is_there("disk/run/checkpoint-3.tmp"));
    CHECK(!is_there("disk/run/checkpoint-4") && !is_there("disk/run/checkpoint-4.tmp"));

    /* When there is space again, the run resumes from the last whole checkpoint. */
    files_remove_folder("disk/run/checkpoint-1");
    begin("disk/run", "--max-steps 4 --resume latest");
    add_drive(drive);
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.err, drive ? "resumed at step 4 of 4 from " : "resumed at step 2 of 4 from ") != NULL);
    check_whole("disk/run/checkpoint-4");
    check_whole("disk/run/checkpoint-2");

    /* The results of a run without a full disk. */
    files_remove_folder("elsewhere");
    begin("elsewhere", "--max-steps 4");
    sys_run_well(&args, &process);
    CHECK(sys_same_checkpoint(test_path("elsewhere/checkpoint-4"), test_path("disk/run/checkpoint-4")));
    unmount_disk();
}

static void test_no_room_at_all(void) {
    CHECK(files_mount(disk, "size=1m"));
    fill_disk(0);
    begin("disk/run", "--max-steps 2");
    sys_run(&args, &process);
    check_error(1, "disk: the files to be written need ");
    CHECK(!is_there("disk/run"));

    /* Space for the run's records, but not for a checkpoint: refused before the first step. */
    fill_disk(64 << 10);
    begin("disk/run", "--max-steps 2");
    sys_run(&args, &process);
    check_error(1, ": the files to be written need ");
    CHECK(strstr(process.outcome.err, "which is enough for 0: ") != NULL);
    CHECK(strstr(process.outcome.err, "step 1/2") == NULL && !is_there("disk/run"));
    unmount_disk();

    /* What the store takes of the same disk is counted; it is removed again. */
    CHECK(files_mount(disk, "size=18m"));
    begin("disk/run", "--max-steps 2");
    sys_args_word(&args, "--nvme=%s:16MiB", test_path("disk"));
    sys_run(&args, &process);
    check_error(1, "disk/run: the files to be written need ");
    CHECK(!is_there("disk/run") && !is_there("disk/offload-store-0.ox"));
    unmount_disk();
}

/* A run whose state only memory has waits at its end; when there is room, it saves and ends well. */
static void test_waiting(void) {
    CHECK(files_mount(disk, "size=20m"));
    begin("disk/run", "--max-steps 100 --save-wait-seconds 60");
    const char *const filler = test_path("disk/filler");
    sys_args_leash(&args);
    sys_start(&args, &process);
    CHECK(sys_await(&process, "step 1/100"));
    CHECK(kill(process.pid, SIGSTOP) == 0);
    fill_disk(0);
    CHECK(kill(process.pid, SIGCONT) == 0);
    CHECK(sys_await(&process, "warning: only memory has the state of step 100, and its checkpoint cannot be saved: "));
    CHECK(unlink(filler) == 0);
    sys_wait(&process);
    CHECK(process.outcome.exit_status == 0 && strstr(process.outcome.err, "saved ") != NULL);
    check_whole("disk/run/checkpoint-100");
    unmount_disk();
}

/* Stopped while it waits, it saves where it has said that it would. */
static void test_stopped_waiting(void) {
    CHECK(files_mount(disk, "size=20m"));
    CHECK(setenv("TMPDIR", files_make_folder("temporary"), 1) == 0);
    begin("disk/run", "--max-steps 100 --save-wait-seconds 60");
    sys_args_leash(&args);
    sys_start(&args, &process);
    CHECK(sys_await(&process, "step 1/100"));
    CHECK(kill(process.pid, SIGSTOP) == 0);
    fill_disk(0);
    CHECK(kill(process.pid, SIGCONT) == 0);
    CHECK(sys_await(&process, "SIGTERM saves it in "));
    CHECK(kill(process.pid, SIGTERM) == 0);
    sys_wait(&process);
    CHECK(process.outcome.exit_status == 1 && sys_said(&process, "temporary/run.rescue/checkpoint-100 instead"));
    check_whole("temporary/run.rescue/checkpoint-100");
    CHECK(setenv("TMPDIR", "nowhere", 1) == 0);
    unmount_disk();
}

/* The allowance is larger than the file system: found before anything is written. */
static void test_store(void) {
    CHECK(files_mount(disk, "size=3m"));
    begin("stored", "--max-steps 2 --weights-tier nvme --state-tier nvme");
    sys_args_word(&args, "--nvme=%s:1GiB", test_path("disk"));
    sys_run(&args, &process);
    check_error(2, "/disk: the store takes ");
    CHECK(!is_there("disk/offload-store-0.ox") && !is_there("stored"));
    unmount_disk();
}

static void test_export(void) {
    CHECK(files_mount(disk, "size=1m"));
    fill_disk(100 << 10);
    sys_args_begin(&args, "export");
    sys_args_word(&args, "--model=%s", test_path("elsewhere/checkpoint-4"));
    sys_args_word(&args, "--output=%s", test_path("disk/exported"));
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 1 || process.outcome.exit_status == 2);
    check_error(process.outcome.exit_status, "disk/exported");
    CHECK(!is_there("disk/exported") && !is_there("disk/exported.tmp"));
    unmount_disk();
}

int main(void) {
    disk = files_make_folder("disk");
    if (!files_mount(disk, "size=1m")) {
        test_skip("this user may not mount a small file system");
    }
    unmount_disk();
    config_path = sys_write_model("llama");
    text_path = sys_write_text(20000);
    CHECK(setenv("TMPDIR", "nowhere", 1) == 0); /* runs find no other place for their state */
    test_checkpoints(false);
    test_checkpoints(true);
    test_no_room_at_all();
    test_waiting();
    test_stopped_waiting();
    test_store();
    test_export();
    return test_end();
}
