/* Mistakes with drives and stores, with the same checks as test_errors.c: drives that cannot be used, or wear out; a
 * plan that looks at what is there; stores of other runs, in use, damaged. */
#include "base/bytes.h"
#include "base/file.h"
#include "engine/checkpoint/checkpoint.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_run.h"
#include "tests/kit/test.h"

#include <dirent.h>
#include <linux/magic.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "tests/sys/command/errors.inc"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { LIMITS_MEMORY = 0 }; /* they reserve terabytes of addresses */
#else
enum { LIMITS_MEMORY = 1 };
#endif
enum { HEADERS_BYTES = 2 << 20, PAGE_BYTES = 4096 };

static void begin_on(const char *drive, const char *more) {
    begin_train("--weights-tier nvme --state-tier nvme --lr-scheduler-type constant");
    sys_args_word(&args, "--nvme=%s:64MiB", drive);
    sys_args_add(&args, more);
}

/* The size behind these words, such as "1.5 MB", in bytes. */
static double amount_after(const char *text, const char *words) {
    const char *const at = strstr(text, words);
    char *unit = NULL;
    const double value = at == NULL ? 0 : strtod(at + strlen(words), &unit);
    return at == NULL ? 0 : value * (unit[1] == 'k' ? 1e3 : unit[1] == 'M' ? 1e6 : unit[1] == 'G' ? 1e9 : 1);
}

/* A state in memory is written as rarely as the user says, and the forecast counts it so. */
static void test_persist(const char *drive) {
    const char *const out = process.outcome.out;
    begin_train("--max-steps 100 --persist-steps 7 --dry-run");
    sys_args_word(&args, "--nvme=%s:64MiB", drive);
    sys_run_well(&args, &process);
    CHECK(strstr(out, "persist: the state lives in memory and is written to the drives every 7 steps: a crash loses at "
                      "most as many\n") != NULL);
    const double rare = amount_after(out, "wear: the drive, all of the state every 7 steps, writes ");
    begin_train("--max-steps 100 --persist-steps 1 --dry-run");
    sys_args_word(&args, "--nvme=%s:64MiB", drive);
    sys_run_well(&args, &process);
    const double often = amount_after(out, "wear: the drive writes ");
    CHECK(strstr(out, "persist: ") == NULL);
    begin_train("--max-steps 100 --dry-run");
    sys_args_word(&args, "--nvme=%s:64MiB", drive);
    sys_run_well(&args, &process);
    const double most = amount_after(out, "wear: the drive, were all of the state written every step, writes ");
    CHECK(most == often && strstr(out, "by prediction, then as often as costs 2 % of the measured time") != NULL);
    CHECK(rare > 0 && often > 6 * rare && often < 8 * rare);
    begin_train("--max-steps 100 --persist-steps 1 --dry-run --chunk-elems 2048 --ranks 2 "
                "--gradient-accumulation-steps 2");
    sys_args_word(&args, "--nvme=%s:64MiB", drive);
    sys_run_well(&args, &process);
    const double both = amount_after(out, "wear: the drive writes ");
    CHECK(both > 0.9 * often && both < 1.1 * often);
    begin_train("--max-steps 100 --persist-steps 7 --dry-run --state-tier nvme");
    sys_args_word(&args, "--nvme=%s:64MiB", drive);
    sys_run_well(&args, &process);
    CHECK(strstr(out, "persist: a step is committed every 7 steps: a crash loses at most as many; the steps between "
                      "write ") != NULL);
    const double mixed = amount_after(out, "wear: the drive, all of the state every 7 steps, writes ");
    CHECK(mixed > 0.8 * often && mixed < 0.95 * often); /* of 12 bytes, hi is written rarely */
    begin_on(drive, "--max-steps 100 --persist-steps 7 --dry-run --store-generations 1");
    sys_run_well(&args, &process);
    CHECK(strstr(out, "--persist-steps 7 has no effect: part of the state lives on the drives, which have one slot for "
                      "it (--store-generations 1)") != NULL);
    begin_train("--max-steps 1 --persist-steps 7");
    sys_run_well(&args, &process);
    CHECK(sys_said(&process, "warning: --persist-steps 7 has no effect: there is no store without --nvme\n"));
    CHECK(sys_said(&process, "1 micro-batch a step, 1 step, "));
    files_remove_folder("output");
    begin_on(drive, "--device-mem 64MiB --device-state-units 1 --store-generations 1");
    refused(2, "--device-state-units: state on the device is committed between steps, and what the drives have of a "
               "step before that needs a second slot there; add --store-generations 2, or leave it out");
    begin_on(drive, "--device-mem 64MiB --device-state-units 1 --optimizer-overlap speculative");
    refused(2, "needs a second slot, and for updates in backward a third, there; add --store-generations 3");
    begin_train("--max-steps 100 --persist-steps 7 --dry-run --device-mem 64MiB --state-tier device");
    sys_args_word(&args, "--nvme=%s:64MiB", drive);
    sys_run_well(&args, &process);
    CHECK(strstr(out, "persist: the state lives in memory and is written to the drives every 7 steps") != NULL);
    begin_on(drive, "--max-steps 100 --persist-steps 7 --dry-run --speculative-units 2");
    sys_run_well(&args, &process);
    CHECK(strstr(out, "three generations on drives") != NULL);
    begin_on(drive, "--max-steps 100 --persist-steps 7 --dry-run --speculative-units 2 --store-generations 2");
    sys_run_well(&args, &process);
    CHECK(strstr(out, "; of the last 2 of ") != NULL);
    CHECK(strstr(out, "--persist-steps 7 has no effect: updates in backward, without which no plan fits or for which "
                      "an option asks, need a third slot on the drives") != NULL);
    begin_on(drive, "--store-generations 1 --speculative-units 2");
    refused(2, "--store-generations 1: requested updates in backward need a second slot on the drives");
    begin_on(drive, "--persist-steps sometimes");
    refused(2, "--persist-steps: 'sometimes' is neither auto nor a number of steps");
}

static void test_drives(void) {
    begin_on("/nonexistent", "");
    refused(2, "--nvme /nonexistent: is not a folder; create it, or mount the drive");
    CHECK(strncmp(process.outcome.err, "offload: ", 9) == 0); /* no plan comes before */
    begin_on("/proc", "");
    refused(2, "--nvme /proc: nothing can be written there");
    const char *const drive = files_make_folder("drive");
    if (geteuid() != 0 && chmod(drive, 0500) == 0) {
        begin_on(drive, "");
        refused(2, "drive: nothing can be written there");
        CHECK(chmod(drive, 0700) == 0);
    }

    /* A run that would use up a drive is refused. */
    begin_on(drive, "--max-steps 1000000 --drive-endurance 100GB");
    refused(2, "rated for (--drive-endurance)");
    CHECK(strstr(process.outcome.err, "wear: the drive writes") != NULL);
    CHECK(!files_exist("drive/offload-store-0.ox"));
    begin_on(drive, "--max-steps 20"); /* a resume is measured by what is left to be written */
    sys_run_well(&args, &process);
    begin_on(drive, "--max-steps 21 --drive-endurance 120MB --resume latest");
    sys_run_well(&args, &process);
    begin_on(drive, "--max-steps 60 --drive-endurance 120MB --resume latest");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 2 && sys_said(&process, "rated for (--drive-endurance)"));
    files_remove_folder("output");
    files_remove_folder("drive");
    files_make_folder("drive");
    begin_on(drive, "--max-steps 1000000 --drive-endurance 100GB --accept-wear --dry-run");
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.out, "% of its rated 100.0 GB") != NULL);

    test_persist(drive);

    /* A start that fails leaves no store that would block the next one. */
    static const unsigned char not_a_number[] = {0x00, 0x00, 0xc0, 0x7f};
    files_patch(fresh_copy("model.safetensors"), -400, not_a_number, sizeof not_a_number);
    begin("train");
    sys_args_word(&args, "--model=%s", test_path("model"));
    sys_args_word(&args, "--data=%s", text_path);
    sys_args_word(&args, "--output=%s", output);
    sys_args_add(&args, common);
    sys_args_word(&args, "--nvme=%s:64MiB", drive);
    refused(1, "is nan, which is not a valid weight");
    CHECK(!files_exist("drive/offload-store-0.ox"));
}

/* Runs `words` in surroundings where `bytes` of address space stand for a small container. */
static void refused_in(uint64_t bytes, const char *drive, const char *words, const char *says) {
    begin_on(drive, words);
    sys_args_limit(&args, RLIMIT_AS, bytes);
    refused(2, says);
}

/* A folder in memory works as a drive, with a warning, as long as what it may take fits beside the budgets: else the
 * kernel would kill the run while it makes its store. */
static void test_memory_drive(void) {
    struct statfs info;
    char drive[64];
    snprintf(drive, sizeof drive, "/dev/shm/offload-test-%ld", (long)getpid());
    if (statfs("/dev/shm", &info) != 0 || info.f_type != TMPFS_MAGIC || mkdir(drive, 0700) != 0) {
        printf("no tmpfs at /dev/shm: a drive in memory is not tried\n");
        return;
    }
    if (LIMITS_MEMORY) {
        refused_in(322 * OX_MIB, drive, "--max-steps 1",
                   "(tmpfs): memory, of which the run's files there take up to 64.0 MiB; this process can use ");
        refused_in(234 * OX_MIB, drive, "--max-steps 1", "nothing is left for a budget: raise it with ulimit -v");
    }
    begin_on(drive, "--max-steps 1");
    sys_run(&args, &process);
    files_remove_folder(drive);
    CHECK(process.outcome.exit_status == 0);
    CHECK(strstr(process.outcome.err, "offload-store-0.ox: degraded: goes through the page cache") != NULL);
    files_remove_folder(output);
}

/* The checkpoints of a run of epochs count in memory, though their number is known when the data is open: a budget that
 * is given is refused, and an automatic one leaves them room. */
static void test_memory_output(void) {
    struct statfs info;
    if (statfs("/dev/shm", &info) != 0 || info.f_type != TMPFS_MAGIC) {
        printf("no tmpfs at /dev/shm: an output in memory is not tried\n");
        return;
    }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* whose own memory is not the program's */
    files_make_folder("memory-text"); /* a folder's texts take as much as a file's */
    files_write_text("memory-text/1.txt", "");
    CHECK(truncate(test_path("memory-text/1.txt"), 400 * OX_MIB) == 0);
    begin("train --dry-run --max-steps 1");
    sys_args_word(&args, "--model=%s", config_path);
    sys_args_word(&args, "--data=%s", test_path("memory-text"));
    sys_args_word(&args, "--output=%s", output);
    sys_args_word(&args, "--data-cache=/dev/shm/offload-test-cache-%ld", (long)getpid());
    sys_args_add(&args, common);
    sys_args_add(&args, "--data-format text --profile builtin");
    sys_args_limit(&args, RLIMIT_AS, 512 * OX_MIB);
    refused(2, "(tmpfs): memory, of which the run's files there take up to 400 MiB");
    static const char *const words[] = {"train --dry-run", "train --dry-run --save-total-limit 2",
                                        "train --dry-run --max-steps 1"};
    for (int i = 0; i < 3; i++) {
        begin(words[i]);
        sys_args_word(&args, "--model=%s", config_path);
        sys_args_word(&args, "--data=%s", text_path);
        sys_args_word(&args, "--output=/dev/shm/offload-test-output-%ld", (long)getpid());
        sys_args_add(&args, common);
        sys_args_add(&args, "--profile builtin --num-train-epochs 3 --save-steps 1");
        sys_args_limit(&args, RLIMIT_AS, 512 * OX_MIB);
        if (i == 0) {
            refused(2, "(tmpfs): memory, of which the run's files there take up to ");
        } else {
            sys_run_well(&args, &process);
        }
    }
#endif
}

static void begin_look(const char *command, const char *name, const char *more) {
    begin(command);
    sys_args_word(&args, "--model=%s", config_path);
    sys_args_word(&args, "--data=%s", text_path);
    sys_args_word(&args, "--output=%s", test_path(name));
    sys_args_add(&args, "--max-seq-length 16 --compute-threads 1 --optimizer-threads 1 --profile builtin");
    sys_args_add(&args, more);
}

/* Expects a plan that says so first, whatever keeps the run from starting here. */
static void looked(const char *verdict, const char *says) {
    sys_run_well(&args, &process);
    const char *const out = process.outcome.out;
    if (strncmp(out, verdict, strlen(verdict)) != 0 || strstr(out, says) == NULL) {
        printf("expected '%s' and '%s':\n", verdict, says);
        sys_complain(&process, "");
    }
}

/* A plan and a dry run see of a place what training does, and say it in the same words. */
static void test_places(void) {
    static const struct {
        const char *words, *says;
    } places[] = {{"--output=/proc/offload/run", "--output /proc/offload/run: nothing can be written there"},
                  {"--output=/sys", "--output /sys: nothing can be written there"},
                  {"--data-cache=/proc/offload", "--data-cache /proc/offload: nothing can be written there"},
                  {"--output=%s/run", "/run is the --model folder or inside it; name a folder outside of it"}};
    static const char *const commands[] = {"train", "train --dry-run", "plan"};
    const char *const model = files_make_folder("places"), *const config = test_path("places/config.json");
    CHECK(link(config_path, config) == 0);
    for (unsigned i = 0; i < 3 * sizeof places / sizeof *places; i++) {
        begin(commands[i % 3]);
        sys_args_word(&args, "--model=%s", model);
        sys_args_word(&args, "--data=%s", text_path);
        sys_args_word(&args, places[i / 3].words, model);
        if (i / 3 == 2) {
            sys_args_word(&args, "--output=%s", test_path("places-2"));
        }
        sys_args_add(&args, "--from-scratch --max-steps 1 --profile builtin");
        sys_run(&args, &process);
        const bool noted = i % 3 == 2 && i / 3 < 2; /* a plan may be for another machine */
        CHECK(process.outcome.exit_status == (noted ? 0 : 2));
        if (strstr(noted ? process.outcome.out : process.outcome.err, places[i / 3].says) == NULL) {
            sys_complain(&process, places[i / 3].says);
        }
        CHECK(!files_exist("places-2/run.json") && !files_exist("places/run"));
    }
    files_remove_folder(model);
}

/* A plan begins with its verdict. It checks what `train` checks, counts steps and time of texts, and leaves nothing
 * behind; a dry run fails where `train` does. */
static void test_plan_looks(void) {
    static const char over[] = "verdict: it fits, but would not start here";
    char more[OX_PATH_BYTES + 32];
    begin_look("plan", "looked", "");
    looked("verdict: it fits, ", " if it begins now");
    CHECK(strstr(process.outcome.out, "\ntasks per lane") == NULL);
    CHECK(strstr(process.outcome.out, "1 epoch of ") != NULL && !files_exist("looked"));
    begin_look("plan", "looked", "--verbose");
    looked("verdict: it fits, ", "\ntasks per lane");
    begin_look("plan", "looked", "--host-mem 1000TiB");
    looked(over, "\ntrain would refuse this here: --host-mem 1000 TiB: this process can use ");
    begin_look("plan", "looked", "--nvme /nonexistent:1GiB");
    looked(over, "\ntrain would refuse this here: --nvme /nonexistent: is not a folder");
    snprintf(more, sizeof more, "--nvme %s:1000TiB", test_folder());
    begin_look("plan", "looked", more);
    looked("verdict: it fits, ", " if it begins now");
    CHECK(sys_said(&process, ": 1000 TiB are given, and ") && sys_said(&process, " are free there; the plan takes "));
    begin_look("train", "looked", "--max-steps 1 --eval-windows 0");
    sys_run_well(&args, &process);
    begin_look("plan", "looked", "");
    looked(over, "looked: already holds a run; add --resume-from-checkpoint latest");
    begin_look("train", "looked", "--dry-run");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 2 && sys_said(&process, "looked: already holds a run; add "));
    test_places();
    /* Another machine is compared by its profile. */
    begin("plan");
    sys_args_word(&args, "--model=%s", config_path);
    sys_args_add(&args, "--profile rtx4090-1-drive --host-mem 200GiB --nvme /nonexistent:1GiB");
    looked(over, "\ntrain would refuse this on that machine: --host-mem 200 GiB: is more than the 125 GiB of RTX 4090");
    CHECK(strstr(process.outcome.out, "is not a folder") == NULL);
    /* A card has what it reports, and its drive no room for every checkpoint. */
    begin("plan");
    sys_args_word(&args, "--model=%s", config_path);
    sys_args_add(&args, "--profile rtx4090-1-drive --host-mem 8GiB --device-mem 24GiB --max-steps 4000000000 "
                 "--save-steps 1");
    looked(over, "--device-mem 24.0 GiB: is 12 MiB more than the 24564 MiB of NVIDIA GeForce RTX 4090");
    const char *const out = process.outcome.out;
    CHECK(strstr(out, "more than the 3.64 TiB that the profile's drives hold beside the store") != NULL);
    CHECK(strstr(out, "; the drives of the profile hold 3.64 TiB beside the store, which is enough for ") != NULL);
    CHECK(strstr(process.outcome.out, ": keep fewer with --save-total-limit\n") != NULL);
    CHECK(strstr(process.outcome.out, "\n  space         a store on drives, if you give --nvme, takes ") != NULL);
    begin("plan");
    sys_args_word(&args, "--model=%s", config_path);
    sys_args_add(&args, "--profile rtx4090-1-drive --host-mem 8GiB --device-mem 23GiB --max-steps 100 --save-steps 1");
    looked("verdict: it fits, ", " for the 100 that are kept; a save needs");
    /* Rows are checked too. */
    files_write_text("bad.jsonl", "{\"text\": 7}\n");
    const char *const commands[] = {"plan", "train --dry-run"};
    for (int i = 0; i < 2; i++) {
        begin(commands[i]);
        sys_args_word(&args, "--model=%s", config_path);
        sys_args_word(&args, "--data=%s", test_path("bad.jsonl"));
        sys_args_word(&args, "--output=%s", test_path("looked-2"));
        sys_args_add(&args, "--profile builtin");
        sys_run(&args, &process);
        CHECK(process.outcome.exit_status == 2 && sys_said(&process, "bad.jsonl") && !files_exist("looked-2"));
    }
    files_remove_folder("looked");
}

static void begin_loop(const char *name, const char *more) {
    begin_look("train", name, "--eval-windows 0 --state-tier nvme --weights-tier nvme");
    sys_args_drive(&args, "loop", "64MiB");
    sys_args_add(&args, more);
}

/* Runs follow one another on one drive without a hand: the store of a run that has taken all its steps, whose
 * checkpoint is there, gives way, and that run goes on from its checkpoint. Another store does not, until it is removed
 * by hand. */
static void test_loop_of_runs(void) {
    static const char gives_way[] = "the store of a run that has finished is replaced";
    files_make_folder("loop");
    begin_loop("loop-1", "--max-steps 2");
    sys_run_well(&args, &process);
    begin_loop("loop-2", "--max-steps 2");
    sys_run_well(&args, &process);
    CHECK(sys_said(&process, gives_way));
    begin_loop("loop-1", "--max-steps 4 --resume latest");
    sys_run_well(&args, &process);
    CHECK(sys_said(&process, gives_way) && sys_said(&process, "resumed at step 2 of 4 from ") &&
          sys_said(&process, "loop-1/checkpoint-2"));
    begin_loop("loop-1", "--max-steps 5 --resume latest"); /* its own store is used as ever */
    sys_run_well(&args, &process);
    CHECK(!sys_said(&process, gives_way) && sys_said(&process, "resumed at step 4 of 5 from the store's last commit"));
    CHECK(rename(test_path("loop-1/checkpoint-5/optimizer.safetensors"), test_path("loop-part")) == 0);
    begin_loop("loop-2", "--max-steps 3 --resume latest"); /* the store alone has all that the checkpoint had */
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 2 && sys_said(&process, "not this one; give another folder"));
    CHECK(rename(test_path("loop-1"), test_path("loop-moved")) == 0); /* what vouches for the store is gone */
    begin_loop("loop-2", "--max-steps 3 --resume latest");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 2 && sys_said(&process, "not this one; give another folder"));
    begin_loop("loop-3", "--max-steps 1000000 --overwrite-output-dir");
    static struct sys_process holder;
    sys_start(&args, &holder);
    CHECK(sys_await(&holder, "starting from"));
    sys_args_begin(&args, "store remove");
    sys_args_word(&args, "%s", test_path("loop"));
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 1 && sys_said(&process, "offload-store-0.ox: in use by "));
    CHECK(kill(holder.pid, SIGTERM) == 0);
    sys_wait(&holder); /* which has not taken all its steps */
    begin_loop("loop-2", "--max-steps 3 --resume latest");
    sys_run(&args, &process);
    CHECK(process.outcome.exit_status == 2 && sys_said(&process, "not this one; give another folder"));
    sys_args_begin(&args, "store remove");
    sys_args_word(&args, "%s", test_path("loop"));
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.out, "removed the store in ") != NULL && !files_exist("loop/offload-store-0.ox"));
    begin_loop("loop-2", "--max-steps 3 --resume latest");
    sys_run_well(&args, &process);
    CHECK(sys_said(&process, "resumed at step 2 of 3 from "));
}

static void test_store_in_use(void) {
    static struct sys_process holder;
    const char *const drive = test_path("drive");
    begin_on(drive, "--max-steps 1000000 --logging-steps 1000000");
    sys_start(&args, &holder);
    CHECK(sys_await(&holder, "starting from"));

    begin_on(drive, "--max-steps 2 --resume latest");
    sys_run(&args, &process);
    check_error(1, "is training there; wait for its end");
    begin_on(drive, "--max-steps 2 --overwrite-output-dir");
    sys_run(&args, &process);
    check_error(1, "is training there; wait for its end");
    begin_on(drive, "--max-steps 2 --overwrite-output-dir");
    output = test_path("other");
    args.count = 4;
    sys_args_word(&args, "--output=%s", output);
    sys_args_add(&args, common);
    sys_args_word(&args, "--nvme=%s:64MiB", drive);
    sys_args_add(&args, "--overwrite-output-dir");
    for (int deletes = 1; deletes >= 0; deletes--) { /* the same is said before anything is advised that deletes it */
        args.count -= deletes == 0;
        refused(1, "drive/offload-store-0.ox: in use by process ");
        CHECK(sys_said(&process, ", which trains in ") && sys_said(&process, "/output; wait for its end"));
    }
    output = test_path("output");
    CHECK(files_exist("output/run.json")); /* files of the process with the lock are still there */

    CHECK(kill(holder.pid, SIGTERM) == 0);
    sys_wait(&holder);
    CHECK(holder.outcome.exit_status == 128 + SIGTERM);
    check_nothing_half_written(output);

    output = test_path("other");
    args.count = 4;
    sys_args_word(&args, "--output=%s", output);
    sys_args_add(&args, common);
    sys_args_word(&args, "--nvme=%s:64MiB", drive);
    refused(2, "drive: holds the store of another run; use another folder, or --overwrite-output-dir to delete it");
    files_remove_folder(drive);
    output = test_path("output");
    files_remove_folder(output);
}

/* Restores the run that was interrupted at step 2, with its store. */
static void restore_run(void) {
    static const char *const names[] = {"drive", "output"};
    const char *to;
    for (unsigned i = 0; i < 2; i++) {
        to = test_path(names[i]);
        if (files_exist(to)) {
            files_remove_folder(to);
        }
        files_copy_folder(test_pathf("kept-%s", names[i]), to);
    }
}

static void spoil_store(off_t first, off_t past) {
    const char *const path = test_path("drive/offload-store-0.ox");
    static const unsigned char spoilt[64] = {1, 2, 3};
    for (off_t at = first; at < past && at < (off_t)files_size(path); at += PAGE_BYTES) {
        files_patch(path, at + 100, spoilt, sizeof spoilt);
    }
}

/* The configuration of a run on drives can be used for an evaluation, which does not touch the drives. */
static void check_eval_of_run(void) {
    begin("eval");
    sys_args_word(&args, "--config=%s", test_path("output/config.resolved.yaml"));
    sys_args_word(&args, "--model=%s", trained);
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.err,
                 "evaluation uses memory alone; the drives of the configuration are not touched\n") != NULL &&
          strstr(process.outcome.err, "warning") == NULL);
    begin("eval");
    sys_args_add(&args, "--nvme /tmp:1GiB");
    sys_run(&args, &process);
    check_error(2, "`offload eval` does not take --nvme");
}

/* Resumes from the checkpoint, with a warning, to the same bits as from the store. */
static void check_falls_back(const char *drive, const char *why) {
    begin_on(drive, "--max-steps 3 --resume latest");
    sys_run_well(&args, &process);
    if (strstr(process.outcome.err, "warning: the store is not used: ") == NULL ||
        strstr(process.outcome.err, why) == NULL ||
        strstr(process.outcome.err, "resumed at step 2 of 3 from ") == NULL) {
        printf("expected a resume from the checkpoint because '%s':\n%s", why, process.outcome.err);
        test_failure_count++;
    }
    CHECK(sys_same_checkpoint(test_path("expected"), test_path("output/checkpoint-3")));
}

static void test_damaged_store(void) {
    const char *const drive = files_make_folder("drive");
    begin_on(drive, "--max-steps 2");
    sys_run_well(&args, &process);
    check_eval_of_run();
    files_copy_folder(drive, "kept-drive");
    files_copy_folder(output, "kept-output");
    begin_on(drive, "--max-steps 3 --resume latest");
    sys_run_well(&args, &process);
    CHECK(strstr(process.outcome.err, "resumed at step 2 of 3 from the store's last commit") != NULL);
    files_copy_folder("output/checkpoint-3", "expected");

    const char *const path = test_path("drive/offload-store-0.ox");
    const off_t bytes = (off_t)files_size(path);
    restore_run();
    spoil_store(HEADERS_BYTES + (64 << 10), bytes);
    check_falls_back(drive, "does not match its checksum");
    restore_run();
    spoil_store(0, HEADERS_BYTES);
    check_falls_back(drive, "both its headers are damaged");
    restore_run();
    CHECK(truncate(path, HEADERS_BYTES + (256 << 10)) == 0);
    check_falls_back(drive, "cut short");

    restore_run();
    spoil_store(0, bytes);
    files_remove_folder("output/checkpoint-2");
    begin_on(drive, "--max-steps 3 --resume latest");
    sys_run(&args, &process);
    check_error(2, "output: has neither a complete checkpoint nor a usable store; start over with "
                   "--overwrite-output-dir");
    check_nothing_half_written(output);
}

int main(void) {
    make_trained();
    test_drives();
    test_memory_drive();
    test_plan_looks();
    test_memory_output();
    test_loop_of_runs();
    test_store_in_use();
    test_damaged_store();
    return test_end();
}
