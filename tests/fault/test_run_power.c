/* Power cuts under real file systems. A run of `offload train`, its store and its checkpoints lie on ext4, xfs and
 * btrfs on a disk in user space that records each write and each flush. The run is killed, resumed, exported, branched
 * and overwritten. From the record come images of the disk as a power cut leaves it at any moment; the kernel mounts
 * each, and the run goes on from there:
 *
 *   - nothing that the program had reported before the cut is lost: no step beyond what docs/reliability.md allows, and
 *     no checkpoint;
 *   - a checkpoint or exported model that has its name is whole;
 *   - `--resume latest` leads on, or where nothing was promised yet, the command that was cut off;
 *   - the run ends with the bits of one that nothing disturbed.
 *
 * As a control, one run is made to believe that its files are synced when nothing was; the cuts must show a loss then.
 *
 * The test needs root, /dev/fuse, loop devices, and mkfs of a file system. OX_TEST_ALL=1 takes more cuts, also of runs
 * with two drives, and with one generation, where a cut may lose all steps after a checkpoint.
 *
 *     test_run_power [--count CUTS_PER_FILE_SYSTEM] [--seed N] [--only FILE_SYSTEM] */
#include "tests/kit/run/sys_run.h"
#include "tests/fault/recorded_disk.inc"

#include <dirent.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { CUTS_USUAL = 8 };
#else
enum { CUTS_USUAL = 25 };
#endif
enum { CUTS_ALL = 1000, CUTS_PER_RECORD = 100, CONTROL_CUTS = 20 };
enum { STEPS = 10, SAVE_STEPS = 2, SAVES_KEPT = 3, BRANCH_STEP = 6, MARKS_MAX = 256 };

/* Commits of their own are put off where they can be, so that nothing is safe but by a sync of the program.
 *
 * The first structure of an ext4 takes two sectors, and is written without the journal at times. A mount refuses one
 * that is torn; e2fsck, which systems run before they mount, replaces it by a copy. */
static const struct file_system {
    const char *name, *make, *options;
    const char *repair; /* run if a mount is refused; NULL: that is a failure */
} file_systems[] = {
    {"ext4", "mkfs.ext4 -q -F -b 4096 -J size=8 -E nodiscard", "noinit_itable,commit=300", "e2fsck -y"},
    {"xfs", "mkfs.xfs -q -f -K", "", NULL},
    {"btrfs", "mkfs.btrfs -q -f -K", "nodiscard,commit=300", NULL},
};
enum { FILE_SYSTEMS = sizeof file_systems / sizeof *file_systems };

/* What runs on the disk, one after the other. */
enum start { FRESH, RESUME, BRANCH, OVERWRITE, EXPORT };
static const struct phase {
    enum start start;
    const char *words;
    long kill_step; /* the process is killed once it reports this step, if it has not ended by then; 0: it is not */
    long lost_max;  /* so many reported steps may be lost */
} phases[] = {
    {FRESH, "--state-tier nvme --optimizer-overlap off", 5, 0},
    {RESUME, "--state-tier nvme --optimizer-overlap held", 0, 1},
    {EXPORT, "", 0, 0},
    {BRANCH, "--state-tier nvme --optimizer-overlap off --io-backend threads", 8, 0},
    {OVERWRITE, "--persist-steps 2", 0, 2},
};
enum { PHASES = sizeof phases / sizeof *phases };

static struct sys_args args;
static struct sys_process process;
static const char *model_path, *text_path;

/* ---- the program ------------------------------------------------------------------------------------------- */

/* As the program named "offload", this test is offload under a filter: syncs return success and do nothing. */
static int become_without_sync(char **argv) {
    static const unsigned calls[] = {SYS_fsync, SYS_fdatasync, SYS_sync_file_range, SYS_syncfs};
    enum { CALLS = sizeof calls / sizeof *calls };
    struct sock_filter steps[CALLS + 3] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    for (unsigned i = 0; i < CALLS; i++) {
        steps[i + 1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i], (uint8_t)(CALLS - i), 0);
    }
    steps[CALLS + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    steps[CALLS + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO); /* with error 0 */
    const struct sock_fprog program = {.len = CALLS + 3, .filter = steps};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0) {
        execvp(sys_program(), argv);
    }
    return 126;
}

static void begin(const char *output, enum start start, long branch_step, const char *words) {
    sys_args_train(&args, model_path, text_path, output);
    sys_args_word(&args, "--max-steps=%d", STEPS);
    sys_args_word(&args, "--save-steps=%d", SAVE_STEPS);
    sys_args_add(&args, "--max-seq-length 16 --learning-rate 1e-3 --eval-windows 0 --compute-threads 1"
                        " --optimizer-threads 1 --chunk-elems 8192");
    sys_args_add(&args, words);
    sys_args_add(&args, start == RESUME ? "--resume latest" : start == OVERWRITE ? "--overwrite-output-dir" : "");
    if (start == BRANCH) {
        sys_args_word(&args, "--resume=%s", test_pathf("%s/checkpoint-%ld", output, branch_step));
    }
}

/* What the store of the run on the disk has. */
static unsigned drive_count = 1, generations = 2;

static void begin_export(const char *checkpoint, const char *output) {
    sys_args_begin(&args, "export");
    sys_args_word(&args, "--model=%s", test_path(checkpoint));
    sys_args_word(&args, "--output=%s", test_path(output));
}

static void begin_on_disk(enum start start, long branch_step, const char *words) {
    if (start == EXPORT) {
        begin_export(plain_pathf("%s/checkpoint-%d", test_path("mnt/run"), STEPS), "mnt/exported");
        return;
    }
    begin("mnt/run", start, branch_step, words);
    sys_args_word(&args, "--save-total-limit=%d", SAVES_KEPT);
    sys_args_word(&args, "--store-generations=%u", generations);
    for (unsigned i = 0; i < drive_count; i++) {
        sys_args_drive(&args, test_pathf("mnt/store-%u", i), "32MiB");
    }
}

/* ---- the record -------------------------------------------------------------------------------------------- */

/* What the program had said when the disk had so many entries. The test notes that after it has read the words, so a
 * mark is never earlier than what it marks. */
struct mark {
    uint32_t count;
    enum { PHASE, STEP, SAVED, EXPORTED } what;
    long number;
};

static struct {
    struct disk disk;
    struct mark marks[MARKS_MAX];
    unsigned mark_count;
} recorded;

static void mark(int what, long number) {
    const uint32_t count = recorded.disk.record->count;
    CHECK(recorded.mark_count < MARKS_MAX);
    recorded.marks[recorded.mark_count++ % MARKS_MAX] = (struct mark){count, what, number};
}

/* Marks what a line reports. Returns the step that it is about, or 0. */
static long take_line(const char *line) {
    long number = 0;
    if (sscanf(line, "step %ld/", &number) == 1) {
        mark(STEP, number);
        return number;
    }
    const char *const name = strncmp(line, "saved ", 6) == 0 ? strstr(line, "/checkpoint-") : NULL;
    if (name != NULL && name < line + strcspn(line, "\n")) {
        mark(SAVED, strtol(name + strlen("/checkpoint-"), NULL, 10));
    }
    return 0;
}

static void run_phase(const struct phase *phase, unsigned idx, bool syncs) {
    static char self[PATH_MAX];
    begin_on_disk(phase->start, BRANCH_STEP, phase->words);
    if (!syncs) {
        CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
        args.program = self;
        sys_args_add(&args, "--io-backend threads"); /* a ring syncs without a system call of its own */
    }
    mark(PHASE, idx);
    sys_start(&args, &process);
    for (size_t at = 0; sys_read(&process);) {
        const char *const err = process.outcome.err;
        for (const char *end = strchr(err + at, '\n'); end != NULL; end = strchr(err + at, '\n')) {
            const long step = take_line(err + at);
            at = (size_t)(end + 1 - err);
            if (step > 0 && step == phase->kill_step) {
                kill(process.pid, SIGKILL);
            }
        }
    }
    sys_wait(&process);
    const bool killed = phase->kill_step > 0 && process.outcome.signal_number == SIGKILL;
    if (!killed && process.outcome.exit_status != 0) {
        sys_complain(&process, "the run on the recorded disk");
    } else if (phase->start == EXPORT) {
        mark(EXPORTED, 0);
    }
}

static bool mount_disk(const struct file_system *system, const char *loop_path) {
    return mount(loop_path, test_path("mnt"), system->name, 0, system->options) == 0;
}

/* A process that was killed may take a moment to let go of its files. */
static void unmount(void) {
    const struct timespec moment = {.tv_nsec = 5000000};
    bool gone = false;
    for (int tries = 0; tries < 2000 && !gone; tries++) {
        gone = umount2(test_path("mnt"), 0) == 0 || errno != EBUSY || nanosleep(&moment, NULL) != 0;
    }
    CHECK(gone);
}

/* Runs the phases on a new disk. False where this file system cannot be had. */
static bool record_run(const struct file_system *system, unsigned phase_count, bool syncs) {
    recorded.mark_count = 0;
    if (!disk_open(&recorded.disk)) {
        test_skip("FUSE files or loop devices cannot be had here");
    }
    if (!files_run_shell(plain_pathf("exec %s %s >/dev/null 2>&1", system->make, recorded.disk.loop_path)) ||
        !mount_disk(system, recorded.disk.loop_path)) {
        disk_close(&recorded.disk);
        return false;
    }
    for (unsigned i = 0; i < phase_count; i++) {
        run_phase(&phases[i], i, syncs);
    }
    unmount();
    return true;
}

/* ---- what a cut must leave --------------------------------------------------------------------------------- */

struct promise {
    const struct phase *phase; /* the command that was running, or had ended last */
    long least_step;           /* going on from an earlier one is a loss; 0: there may be nothing */
    long last_step;            /* that was reported, in this branch */
    unsigned saved;            /* bit N: checkpoint-N was reported, and is not old enough to be deleted */
    bool exported;
};

/* Leaves the checkpoints that are not old enough to be deleted, whichever of the later ones are there: a process may be
 * killed before it reports one. */
static unsigned keep_newest(unsigned saved, long last_step) {
    const long written = last_step / SAVE_STEPS + 1; /* at most so many, the one that is written now among them */
    for (long nth = 1; nth <= written - SAVES_KEPT; nth++) {
        saved &= ~(1u << nth * SAVE_STEPS);
    }
    return saved;
}

static struct promise promise_at(uint32_t count) {
    struct promise promise = {.phase = &phases[0]};
    for (unsigned i = 0; i < recorded.mark_count && recorded.marks[i].count <= count; i++) {
        const struct mark *const at = &recorded.marks[i];
        long step = at->number;
        switch (at->what) {
        case PHASE:
            promise.phase = &phases[at->number];
            if (promise.phase->start == BRANCH || promise.phase->start == OVERWRITE) {
                step = promise.phase->start == BRANCH ? BRANCH_STEP : 0;
                promise.saved &= (2u << step) - 1;
                promise.least_step = promise.least_step < step ? promise.least_step : step;
                promise.last_step = step;
            }
            continue;
        case STEP: step = generations == 2 ? step - promise.phase->lost_max : 0; break;
        case EXPORTED: promise.exported = true; break;
        case SAVED: promise.saved |= 1u << step; break;
        }
        promise.last_step = at->number > promise.last_step ? at->number : promise.last_step;
        promise.saved = keep_newest(promise.saved, promise.last_step);
        promise.least_step = step > promise.least_step ? step : promise.least_step;
    }
    return promise;
}

/* ---- what a cut has left ----------------------------------------------------------------------------------- */

static struct tally {
    unsigned cuts, loose, resumed, branched, started_over, begun_again, steps_ahead, repaired;
} tally;

static bool same_as_expected(long step) {
    return sys_same_checkpoint(test_pathf("expected/checkpoint-%ld", step), test_pathf("mnt/run/checkpoint-%ld", step));
}

/* NULL, or what is wrong with model folders before anything touches them. */
static const char *check_folders(const struct promise *promise) {
    for (long step = 1; step <= STEPS; step++) {
        const char *const path = test_pathf("mnt/run/checkpoint-%ld", step);
        if (!files_exist(path)) {
            if ((promise->saved & 1u << step) != 0) {
                return "a reported checkpoint is gone";
            }
        } else if (!files_exist(test_pathf("%s/trainer_state.json", path)) || !same_as_expected(step)) {
            return "a checkpoint is not whole";
        }
    }
    if (promise->exported || files_exist("mnt/exported")) {
        if (!files_exist("mnt/exported") || !files_same_folders("exported", "mnt/exported")) {
            return "an exported model is not whole";
        }
    }
    if (files_exist("mnt/run/latest")) {
        char *const name = files_read("mnt/run/latest", NULL);
        name[strcspn(name, "\n")] = '\0';
        const bool there = files_exist(test_pathf("mnt/run/%s/config.json", name));
        free(name);
        return there ? NULL : "`latest` names no checkpoint";
    }
    return NULL;
}

/* Whether the program warned of what belongs neither to the file system nor to branches. */
static bool warns(void) {
    static const char *const expected[] = {"it was renamed to ",
                                           "goes through the page cache"};
    for (const char *at = strstr(process.outcome.err, "warning:"); at != NULL; at = strstr(at + 1, "warning:")) {
        const char *const end = at + strcspn(at, "\n"), *const first = strstr(at, expected[0]);
        const char *const second = strstr(at, expected[1]);
        if ((first == NULL || first > end) && (second == NULL || second > end)) {
            return true;
        }
    }
    return false;
}

/* Goes on from what is there: from its latest state, or now and then as a branch. */
static const char *go_on(const struct promise *promise, uint32_t draw, long *from) {
    static const char words[] = "--state-tier nvme --optimizer-overlap off";
    const bool branches = draw % 4 == 0 && promise->saved != 0;
    const long branch_step = branches ? 31 - __builtin_clz(promise->saved) : 0;
    begin_on_disk(branches ? BRANCH : RESUME, branch_step, words);
    sys_run(&args, &process);
    const bool no_run = sys_said(&process, "holds no run") || sys_said(&process, "neither a complete checkpoint");
    if (process.outcome.exit_status != 0 && no_run && promise->least_step == 0) {
        tally.begun_again++;
        begin_on_disk(generations == 1 ? OVERWRITE : promise->phase->start, BRANCH_STEP, words);
        sys_run(&args, &process);
    }
    if (process.outcome.exit_status != 0) {
        return "the run does not go on";
    }
    *from = sys_said(&process, "starting from ") ? 0 : sys_number_after(process.outcome.err, "resumed at step ", -1);
    const long least = branches ? branch_step : promise->least_step;
    tally.branched += branches;
    tally.resumed += *from > 0;
    tally.started_over += *from == 0;
    tally.steps_ahead += *from > least;
    /* A store of one generation may be in the middle of a step, and the program then says so. */
    return *from < least ? "a reported step is lost" : generations == 2 && warns() ? "there is a warning" : NULL;
}

/* Whether the lines of metrics.jsonl are those of the expected run. Lines are synced with each checkpoint, and that of
 * the step which a run goes on from is made again; others from before the cut may be missing. */
static bool same_steps(const struct promise *promise, long from) {
    char *const expected = sys_curve("expected", "step"), *const curve = sys_curve("mnt/run", "step");
    const char *line = expected, *found = curve;
    bool same = true;
    for (long step = 1; step <= STEPS && same; step++) {
        const size_t length = strcspn(line, "\n") + 1;
        const bool there = strncmp(line, found, length) == 0;
        same = there || (promise->saved >> step == 0 && step < from);
        line += length;
        found += there ? length : 0;
    }
    same = (same && *found == '\0') || sys_same_text("steps", line, found);
    free(expected);
    free(curve);
    return same;
}

static const char *check_end(const struct promise *promise, long from) {
    return !same_as_expected(STEPS) ? "the run ends with other bits" :
           !same_steps(promise, from) ? "metrics.jsonl has other steps" :
           files_count("mnt/run", "", ".tmp") > 0 ? "a temporary file is left" : NULL;
}

static bool mount_cut(const struct file_system *system, const char *loop_path) {
    if (mount_disk(system, loop_path)) {
        return true;
    }
    if (system->repair != NULL) { /* its exit status also says what it has mended */
        (void)files_run_shell(plain_pathf("exec %s %s >/dev/null 2>&1", system->repair, loop_path));
        tally.repaired++;
    }
    return system->repair != NULL && mount_disk(system, loop_path);
}

/* Returns NULL if the promise was kept. */
static const char *check_cut(const struct file_system *system, struct cutter *cutter, const struct promise *promise) {
    if (!mount_cut(system, cutter->loop_path)) {
        return "the file system cannot be mounted";
    }
    long from = 0;
    process.outcome.err[0] = '\0';
    const char *wrong = check_folders(promise);
    wrong = wrong != NULL ? wrong : go_on(promise, cutter_draw(cutter, 1 << 16), &from);
    wrong = wrong != NULL ? wrong : check_end(promise, from);
    unmount();
    return wrong;
}

/* ---- cuts -------------------------------------------------------------------------------------------------- */

/* Draws a moment: right after words of the program, or in the start of a process, or any; of those that are not words,
 * half are moved to the end of writes that one flush covers. */
static uint32_t draw_moment(struct cutter *cutter) {
    const unsigned kind = cutter_draw(cutter, 5), drawn = cutter_draw(cutter, recorded.mark_count);
    uint32_t from = recorded.marks[0].count, end = cutter->record->count;
    if (kind == 0) {
        return recorded.marks[drawn].count;
    }
    for (unsigned i = 0; i + 1 < recorded.mark_count && kind <= 2; i++) { /* the last start up to the drawn mark */
        if (recorded.marks[i].what == PHASE && i <= drawn) {
            from = recorded.marks[i].count;
            end = recorded.marks[i + 1].count;
        }
    }
    uint32_t at = from + cutter_draw(cutter, end - from + 1);
    for (int pass = 0; pass < 2 && kind % 2 == 0; pass++) { /* to a write, then to the end of those that follow it */
        while (at < end && (cutter->record->entries[at].bytes > 0) == (pass == 1)) {
            at++;
        }
    }
    return at;
}

static int compare_moments(const void *a, const void *b) {
    const uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return left < right ? -1 : left > right;
}

/* Takes cuts of one record, and returns how many broke the promise; the first is told of unless it is `expected`. */
static unsigned take_cuts(const struct file_system *system, struct cutter *cutter, uint64_t seed, unsigned count,
                          bool expected) {
    uint32_t moments[CUTS_PER_RECORD];
    unsigned broken = 0;
    cutter_begin(cutter, recorded.disk.record, seed);
    for (unsigned i = 0; i < count; i++) {
        moments[i] = draw_moment(cutter);
    }
    qsort(moments, count, sizeof *moments, compare_moments);
    for (unsigned i = 0; i < count && (broken == 0 || expected); i++) {
        const struct promise promise = promise_at(moments[i]);
        const uint32_t drawn = cutter_draw(cutter, FATES + 1);
        const enum fate fate = drawn < FATES ? (enum fate)drawn : EACH_DRAWN;
        tally.loose += cutter_cut(cutter, moments[i], fate) > 0;
        tally.cuts++;
        const char *const wrong = check_cut(system, cutter, &promise);
        broken += wrong != NULL;
        if (wrong != NULL && !expected) {
            printf("%s, seed %llu, cut after %u of %u, fate %d, phase %d, at least step %ld, checkpoints %x: %s: ",
                   system->name, (unsigned long long)seed, moments[i], cutter->record->count, fate,
                   promise.phase->start, promise.least_step, promise.saved, wrong);
            sys_complain(&process, "");
        }
    }
    return broken;
}

static void report(const char *name) {
    printf("%s: %u cuts, %u of them with writes that no flush covered, %u that fsck had to repair; %u runs resumed, "
           "%u of them further than reported, %u branched, %u started over, %u after they were refused\n", name,
           tally.cuts, tally.loose, tally.repaired, tally.resumed, tally.steps_ahead, tally.branched,
           tally.started_over, tally.begun_again);
    tally = (struct tally){0};
}

static bool test_file_system(const struct file_system *system, struct cutter *cutter, uint64_t seed, unsigned count) {
    for (unsigned done = 0; done < count && test_failure_count == 0; done += CUTS_PER_RECORD) {
        const unsigned left = count - done, part = left < CUTS_PER_RECORD ? left : CUTS_PER_RECORD;
        drive_count = 1 + done / CUTS_PER_RECORD % 2;
        generations = done / CUTS_PER_RECORD % 3 == 2 ? 1 : 2;
        if (!record_run(system, PHASES, true)) {
            printf("%s: skipped: no mkfs.%s, or not in this kernel\n", system->name, system->name);
            return false;
        }
        CHECK(take_cuts(system, cutter, seed + done, part, false) == 0);
        disk_close(&recorded.disk);
    }
    CHECK(tally.cuts == count && tally.loose > count / 16 && tally.resumed > count / 16);
    report(system->name);
    return true;
}

static void test_control(const struct file_system *system, struct cutter *cutter, uint64_t seed) {
    drive_count = 1;
    generations = 2;
    if (record_run(system, 1, false)) {
        const unsigned broken = take_cuts(system, cutter, seed, CONTROL_CUTS, true);
        printf("control, syncs that do nothing: %u of %d cuts break the promise\n", broken, CONTROL_CUTS);
        CHECK(broken > 0);
        disk_close(&recorded.disk);
        report("control");
    }
}

int main(int argc, char **argv) {
    static struct cutter cutter;
    unsigned count = getenv("OX_TEST_ALL") != NULL ? CUTS_ALL : CUTS_USUAL, systems = 0;
    uint64_t seed = 1;
    const char *only = "";
    if (strcmp(argv[0], "offload") == 0) {
        return become_without_sync(argv);
    }
    for (int i = 1; i + 1 < argc; i += 2) {
        count = strcmp(argv[i], "--count") == 0 ? (unsigned)strtoul(argv[i + 1], NULL, 10) : count;
        seed = strcmp(argv[i], "--seed") == 0 ? strtoull(argv[i + 1], NULL, 10) : seed;
        only = strcmp(argv[i], "--only") == 0 ? argv[i + 1] : only;
    }
    files_make_folder("mnt");
    if (!files_mount("mnt", "size=1m")) {
        test_skip("nothing can be mounted here");
    }
    unmount();
    if (!cutter_open(&cutter)) {
        test_skip("there are no loop devices");
    }
    model_path = sys_write_model("llama");
    text_path = sys_write_text(4000);
    begin("expected", FRESH, 0, "");
    sys_run_well(&args, &process);
    begin_export(plain_pathf("%s/checkpoint-%d", test_path("expected"), STEPS), "exported");
    sys_run_well(&args, &process);
    for (unsigned i = 0; i < FILE_SYSTEMS; i++) {
        if (*only == '\0' || strcmp(only, file_systems[i].name) == 0) {
            const bool had = test_file_system(&file_systems[i], &cutter, seed, count);
            systems += had;
            if (had && systems == 1 && test_failure_count == 0) {
                test_control(&file_systems[i], &cutter, seed);
            }
        }
    }
    cutter_close(&cutter);
    if (systems == 0) {
        test_skip("no file system can be made");
    }
    return test_end();
}
