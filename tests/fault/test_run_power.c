/* Power cuts under real file systems. A run of `offload train`, its store and its checkpoints lie on ext4, xfs and
 * btrfs on a disk in user space that records each write and each flush. The run is killed, resumed, exported, branched
 * and overwritten. From the record come images of the disk as a power cut leaves it at any moment; the kernel mounts
 * each, and the run goes on from there. Some of these recoveries run on a disk that records as well, and the power is
 * cut a second time within them:
 *
 *   - nothing that the program had reported before the cut is lost: no step beyond what docs/reliability.md allows, and
 *     no checkpoint;
 *   - a checkpoint or exported model that has its name is whole;
 *   - a token cache that has its name is whole, and is used;
 *   - `--resume latest` leads on, or where nothing was promised yet, the command that was cut off;
 *   - the run ends with the bits of one that nothing disturbed.
 *
 * There are runs of one rank, with all state on drives and with a part of it in memory, of two ranks, of two processes
 * under mpirun, and one without drives whose text is tokenized. As a control, one run is made to believe that its files
 * are synced when nothing was; the cuts must show a loss then.
 *
 * The test needs root, /dev/fuse, loop devices, and mkfs of a file system. OX_TEST_ALL=2 takes more cuts, of each run
 * on each file system, also of runs with two drives, and with one generation, where a cut may lose all steps after a
 * checkpoint.
 *
 *     test_run_power [--count CUTS] [--again SECOND_CUTS] [--seed N] [--run NAME] [--only FILE_SYSTEM] */
#include "tests/kit/run/sys_mpi.h"
#include "tests/fault/recorded_disk.inc"

#include <dirent.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SHARE = 3 }; /* of the cuts is taken, because each takes longer */
#else
enum { SHARE = 1 };
#endif
/* Every so many cuts one is followed by second cuts; that recovery is not counted among the first. */
enum { CUTS_ALL = 1000, CUTS_PER_RECORD = 100, CONTROL_CUTS = 20, AGAIN_EVERY = 10, AGAIN_USUAL = 2, AGAIN_ALL = 20 };
enum { STEPS = 10, SAVE_STEPS = 2, SAVES_KEPT = 3, BRANCH_STEP = 6, MARKS_MAX = 256, TEXT_BYTES = 60000 };

/* Commits of their own are put off where they can be, so that nothing is safe but by a sync of the program.
 *
 * The first structure of an ext4 takes two sectors, and is written without the journal at times. A mount refuses one
 * that is torn; e2fsck, which systems run before they mount, replaces it by a copy. That of a btrfs takes eight, and a
 * sync writes it alone, not its copies: torn, it would lose what was synced, so it is not torn here. */
static const uint64_t btrfs_structures[] = {64 << 10, 64 << 20, 0};
static const struct file_system {
    const char *name, *make, *options;
    const char *repair;    /* run if a mount is refused; NULL: that is a failure */
    const uint64_t *whole; /* offsets of what is not torn */
} file_systems[] = {
    {"ext4", "mkfs.ext4 -q -F -b 4096 -J size=8 -E nodiscard", "noinit_itable,commit=300", "e2fsck -y", NULL},
    {"xfs", "mkfs.xfs -q -f -K", "", NULL, NULL},
    {"btrfs", "mkfs.btrfs -q -f -K", "nodiscard,commit=300", NULL, btrfs_structures},
};
enum { FILE_SYSTEMS = sizeof file_systems / sizeof *file_systems };

/* What runs on the disk, one after the other. */
enum start { FRESH, RESUME, BRANCH, OVERWRITE, EXPORT };
static const struct phase {
    enum start start;
    const char *words;
    long kill_step; /* the process is killed once it reports this step, if it has not ended by then; 0: it is not */
    long lost_max;  /* so many reported steps may be lost */
} phases[] = { /* the words are for runs with drives */
    {FRESH, "--persist-steps 1 --state-tier nvme --optimizer-overlap off", 5, 0},
    {RESUME, "--persist-steps 3 --state-tier nvme --optimizer-overlap held", 0, 3},
    {EXPORT, "", 0, 0},
    {BRANCH, "--persist-steps 1 --state-tier nvme --optimizer-overlap off --io-backend threads", 8, 0},
    {OVERWRITE, "--persist-steps 2", 0, 2},
};
enum { PHASES = sizeof phases / sizeof *phases };
/* The state lives in memory and the weights on drives, steps stay uncommitted, and units are updated in backward
 * meanwhile. */
#define SPLIT "--device-mem 2MiB --host-mem 16MiB --weights-tier nvme --state-tier host --persist-steps 3" \
              " --optimizer-overlap speculative"
static const struct phase split_phases[PHASES] = {
    {FRESH, SPLIT, 5, 3},
    {RESUME, SPLIT, 0, 3},
    {EXPORT, "", 0, 0},
    {BRANCH, SPLIT " --io-backend threads", 8, 3},
    {OVERWRITE, SPLIT, 0, 3},
};
/* The state lives on the device, and is committed between steps. */
#define THERE "--device-mem 8MiB --host-mem 8MiB --persist-steps 2 --device-state-units 2 --state-tier nvme"
static const struct phase device_phases[PHASES] = {
    {FRESH, THERE, 5, 2},
    {RESUME, THERE " --optimizer-overlap held", 0, 2},
    {EXPORT, "", 0, 0},
    {BRANCH, THERE " --io-backend threads", 8, 2},
    {OVERWRITE, "--device-mem 8MiB --host-mem 8MiB --persist-steps 1 --state-tier device", 0, 1},
};
static const struct phase resume_phase = {RESUME, "--persist-steps 1 --state-tier nvme --optimizer-overlap off", 0, 0};
static const struct phase branch_phase = {BRANCH, "--persist-steps 1 --state-tier nvme --optimizer-overlap off", 0, 0};

/* The runs that are cut. In the suite each but the first lies on one file system. */
static const struct kind {
    const char *name, *words, *usual_system;
    const struct phase *phases;
    unsigned generations, processes, usual_cuts;
    bool has_drives;
    bool tokenizes; /* a text, into a cache in the run's folder */
    const char *numerics; /* what decides numbers, of a mixture; or NULL, of a dense model */
} kinds[] = {
    {"run", "", "", phases, 2, 1, 16, true, false, NULL},
    {"split", "", "ext4", split_phases, 3, 1, 8, true, false, NULL},
    {"device", "", "xfs", device_phases, 2, 1, 6, true, false, NULL},
    {"ranks", "--ranks 2", "btrfs", phases, 2, 1, 6, true, false, NULL},
    {"processes", "--ranks 2", "xfs", phases, 2, 2, 4, true, false, NULL},
    {"text", "", "ext4", phases, 2, 1, 8, false, true, NULL},
    {"mixture", "", "ext4", phases, 2, 1, 6, true, false,
     "--experts-per-unit 4 --router-bias-update-rate 0.05 --idle-experts skip"},
};
enum { KINDS = sizeof kinds / sizeof *kinds };
static const struct kind *kind = &kinds[0];

static struct sys_args args, launched;
static struct sys_process process;
static struct sys_mpi_run team; /* what runs now; one process alone is its own launcher */
static const char *model_path, *mixture_path, *speaker_path, *text_path;

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
    sys_args_train(&args, kind->tokenizes ? speaker_path : kind->numerics != NULL ? mixture_path : model_path,
                   text_path, output);
    sys_args_add(&args, kind->numerics != NULL ? kind->numerics : "");
    sys_args_word(&args, "--max-steps=%d", STEPS);
    sys_args_word(&args, "--save-steps=%d", SAVE_STEPS);
    sys_args_add(&args, "--max-seq-length 16 --learning-rate 1e-3 --eval-windows 0 --compute-threads 1"
                        " --optimizer-threads 1 --chunk-elems 8192 --global-batch-size 2 --sum-groups 2");
    sys_args_add(&args, words);
    sys_args_add(&args, start == RESUME ? "--resume latest" : start == OVERWRITE ? "--overwrite-output-dir" : "");
    sys_args_add(&args, kind->tokenizes && (start == FRESH || start == OVERWRITE) ? "--from-scratch" : "");
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

static void begin_on_disk(const struct phase *phase, long branch_step) {
    if (phase->start == EXPORT) {
        begin_export(plain_pathf("%s/checkpoint-%d", test_path("mnt/run"), STEPS), "mnt/exported");
        return;
    }
    begin("mnt/run", phase->start, branch_step, kind->words);
    sys_args_word(&args, "--save-total-limit=%d", SAVES_KEPT);
    if (kind->has_drives) {
        sys_args_add(&args, phase->words);
        sys_args_word(&args, "--store-generations=%u", generations);
    }
    for (unsigned i = 0; i < drive_count && kind->has_drives; i++) {
        sys_args_drive(&args, test_pathf("mnt/store-%u", i), "32MiB");
    }
}

static void start(bool alone) {
    if (alone) {
        sys_start(&args, &process);
        team = (struct sys_mpi_run){.launcher = process.pid, .count = 1, .pids = {process.pid}};
        return;
    }
    sys_mpi_begin(&launched, kind->processes, &args, SYS_MPI_END_AT_ONCE);
    sys_start(&launched, &process);
    (void)sys_mpi_find(&process, kind->processes, &team); /* if they have ended before, there is nothing to kill */
}

static void kill_team(void) {
    for (unsigned i = 0; i < team.count; i++) {
        if (team.pids[i] > 0) {
            kill(team.pids[i], SIGKILL);
        }
    }
}

/* ---- the record -------------------------------------------------------------------------------------------- */

/* What must be there after a cut. */
struct promise {
    const struct phase *phase; /* the command that was running, or had ended last; not one that goes on */
    long least_step;           /* going on from an earlier one is a loss; 0: there may be nothing */
    unsigned saved;            /* bit N: checkpoint-N was reported, and is one of the last that were */
    unsigned lines_lost;       /* bit N: an earlier cut may have taken the line of step N */
    bool exported;
};

/* What the program had said when the disk had so many entries. The test notes that after it has read the words, so a
 * mark is never earlier than what it marks. */
struct mark {
    uint32_t count;
    enum { PHASE, RESUMED, STEP, SAVED, EXPORTED } what;
    long number; /* of a phase: the step that it begins with */
    const struct phase *phase;
};

/* A disk, and what ran on it. The second one begins as a cut of the first has left that. */
struct recording {
    struct disk disk;
    struct mark marks[MARKS_MAX];
    unsigned mark_count;
    struct promise before; /* what must be there at its begin */
};
static struct recording first, second, *current; /* what now runs is recorded there; NULL: it is not */

static void mark(int what, long number, const struct phase *phase) {
    if (current != NULL) {
        CHECK(current->mark_count < MARKS_MAX);
        current->marks[current->mark_count++ % MARKS_MAX] =
            (struct mark){current->disk.record->count, what, number, phase};
    }
}

/* Marks what a line reports. Returns the step that it is about, or 0. */
static long take_line(const char *line, const struct phase *phase) {
    long number = 0;
    if (sscanf(line, "step %ld/", &number) == 1) {
        mark(STEP, number, phase);
        return number;
    }
    if (sscanf(line, "resumed at step %ld ", &number) == 1) {
        mark(RESUMED, number, phase);
    }
    const char *const name = strncmp(line, "saved ", 6) == 0 ? strstr(line, "/checkpoint-") : NULL;
    if (name != NULL && name < line + strcspn(line, "\n")) {
        mark(SAVED, strtol(name + strlen("/checkpoint-"), NULL, 10), phase);
    }
    return 0;
}

/* Reads what the program says, marks it, and kills it if the phase wants that and is no recovery. Returns whether it
 * was killed. */
static bool follow(const struct phase *phase) {
    bool killed = false;
    for (size_t at = 0; sys_read(&process);) {
        const char *const err = process.outcome.err;
        for (const char *end = strchr(err + at, '\n'); end != NULL; end = strchr(err + at, '\n')) {
            const long step = take_line(err + at, phase);
            at = (size_t)(end + 1 - err);
            if (step > 0 && step == phase->kill_step && current == &first) {
                kill_team();
                killed = true;
            }
        }
    }
    return killed;
}

/* Returns whether it has ended well, or was killed. */
static bool run_phase(const struct phase *phase, long branch_step, bool syncs) {
    static char self[PATH_MAX];
    begin_on_disk(phase, branch_step);
    if (!syncs) {
        CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
        args.program = self;
        sys_args_add(&args, "--io-backend threads"); /* a ring syncs without a system call of its own */
    }
    mark(PHASE, phase->start == BRANCH ? branch_step : 0, phase);
    start(kind->processes == 1 || phase->start == EXPORT);
    const bool killed = follow(phase);
    sys_mpi_wait(&process, &team, 0);
    if (phase->start == EXPORT && process.outcome.exit_status == 0) {
        mark(EXPORTED, 0, phase);
    }
    return killed || process.outcome.exit_status == 0;
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

/* The checkpoint that a branch begins with: that of a step, or where a process that was killed late, on a busy machine,
 * took it along unfinished, the next one. */
static long branch_point(void) {
    long step = BRANCH_STEP;
    while (step + SAVE_STEPS < STEPS && !files_exist(test_pathf("mnt/run/checkpoint-%ld", step))) {
        step += SAVE_STEPS;
    }
    return step;
}

/* Runs the phases on a new disk, and leaves the record. False where this file system cannot be had. */
static bool record_run(const struct file_system *system, unsigned phase_count, bool syncs) {
    first.mark_count = 0;
    first.before = (struct promise){.phase = &kind->phases[0]};
    if (!disk_open(&first.disk, -1)) {
        test_skip("FUSE files or loop devices cannot be had here");
    }
    const bool made = files_run_shell(plain_pathf("exec %s %s >/dev/null 2>&1", system->make, first.disk.loop_path)) &&
                      mount_disk(system, first.disk.loop_path);
    if (made) {
        current = &first;
        for (unsigned i = 0; i < phase_count; i++) {
            if (!run_phase(&kind->phases[i], branch_point(), syncs)) {
                sys_complain(&process, "the run on the recorded disk");
            }
        }
        current = NULL;
        unmount();
    }
    disk_end(&first.disk);
    if (!made) {
        disk_free(&first.disk);
    }
    return made;
}

/* ---- what a cut must leave --------------------------------------------------------------------------------- */

/* Leaves the last checkpoints that were reported; older ones may be deleted. */
static unsigned keep_newest(unsigned saved) {
    while (__builtin_popcount(saved) > SAVES_KEPT) {
        saved &= saved - 1;
    }
    return saved;
}

/* Whether a reported step is safe but for `lost_max`, and not only what a checkpoint has. */
static bool keeps_steps(void) {
    return kind->has_drives && generations > 1;
}

static struct promise promise_at(const struct recording *recording, uint32_t count) {
    struct promise promise = recording->before;
    for (unsigned i = 0; i < recording->mark_count && recording->marks[i].count <= count; i++) {
        const struct mark *const at = &recording->marks[i];
        long step = at->number;
        switch (at->what) {
        case PHASE:
            promise.phase = at->phase->start == RESUME ? promise.phase : at->phase;
            if (at->phase->start == BRANCH || at->phase->start == OVERWRITE) {
                promise.saved &= (2u << step) - 1;
                promise.lines_lost &= (2u << step) - 1;
                promise.least_step = promise.least_step < step ? promise.least_step : step;
            }
            continue;
        case RESUMED: step = keeps_steps() ? step : 0; break;
        case STEP: step = keeps_steps() ? step - at->phase->lost_max : 0; break;
        case EXPORTED: promise.exported = true; break;
        case SAVED: promise.saved = keep_newest(promise.saved | 1u << step); break;
        }
        promise.least_step = step > promise.least_step ? step : promise.least_step;
    }
    return promise;
}

/* ---- what a cut has left ----------------------------------------------------------------------------------- */

static struct tally {
    unsigned cuts, second_cuts, loose, resumed, branched, started_over, begun_again, steps_ahead, repaired, refused,
        cached;
} tally;

/* The undisturbed run, and what was exported of it. */
static const char *expected(const char *what) {
    return test_pathf("%s%s", what, kind->tokenizes ? "-text" : kind->numerics != NULL ? "-mixture" : "");
}

static bool same_as_expected(long step) {
    return sys_same_checkpoint(plain_pathf("%s/checkpoint-%ld", expected("expected"), step),
                               test_pathf("mnt/run/checkpoint-%ld", step));
}

static unsigned count_newer(long step) {
    unsigned count = 0;
    for (step++; step <= STEPS; step++) {
        count += files_exist(test_pathf("mnt/run/checkpoint-%ld", step));
    }
    return count;
}

/* NULL, or what is wrong with model folders before anything touches them. */
static const char *check_folders(const struct promise *promise) {
    for (long step = 1; step <= STEPS; step++) {
        const char *const path = test_pathf("mnt/run/checkpoint-%ld", step);
        if (!files_exist(path)) {
            if ((promise->saved & 1u << step) != 0 && count_newer(step) < SAVES_KEPT) { /* some may not be reported */
                return "a reported checkpoint is gone";
            }
        } else if (!files_exist(test_pathf("%s/trainer_state.json", path)) || !same_as_expected(step)) {
            return "a checkpoint is not whole";
        }
    }
    if (promise->exported || files_exist("mnt/exported")) {
        if (!files_exist("mnt/exported") || !files_same_folders(expected("exported"), "mnt/exported")) {
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
    static const char *const usual[] = {"it was renamed to ",
                                        "goes through the page cache",
                                        "is withdrawn, because another process has not committed it"};
    for (const char *at = strstr(process.outcome.err, "warning:"); at != NULL; at = strstr(at + 1, "warning:")) {
        const char *const end = at + strcspn(at, "\n");
        bool is_usual = false;
        for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) {
            const char *const words = strstr(at, usual[i]);
            is_usual = is_usual || (words != NULL && words < end);
        }
        if (!is_usual) {
            return true;
        }
    }
    return false;
}

/* The newest reported checkpoint that is there; 0: none is. */
static long newest_saved(const struct promise *promise) {
    long step = STEPS;
    while (step > 0 && ((promise->saved >> step & 1) == 0 ||
                        !files_exist(test_pathf("mnt/run/checkpoint-%ld", step)))) {
        step--;
    }
    return step;
}

/* A cache that has its name must be used, unless it belongs to a run that is deleted now. */
static bool wastes_cache(const struct promise *promise, bool had_cache) {
    tally.cached += had_cache && sys_said(&process, "from the cache");
    return had_cache && promise->phase->start != OVERWRITE && sys_said(&process, "tokenized in");
}

/* Goes on from what is there: from its latest state, or now and then as a branch. */
static const char *go_on(const struct promise *promise, uint32_t draw, long *from) {
    const long branch_step = draw % 4 == 0 ? newest_saved(promise) : 0;
    const bool branches = branch_step > 0, had_cache = files_count("mnt/run/cache", "", ".tokens") > 0;
    bool well = run_phase(branches ? &branch_phase : &resume_phase, branch_step, true);
    const bool no_run = sys_said(&process, "holds no run") || sys_said(&process, "neither a complete checkpoint") ||
                        sys_said(&process, "start fresh with "); /* run.json would know that */
    if (!well && no_run && promise->least_step == 0) {
        tally.begun_again++;
        well = run_phase(generations == 1 ? &kind->phases[PHASES - 1] : promise->phase, BRANCH_STEP, true);
    }
    if (!well || process.outcome.exit_status != 0) {
        return "the run does not go on";
    }
    *from = sys_said(&process, "starting from ") ? 0 : sys_number_after(process.outcome.err, "resumed at step ", -1);
    const long least = branches ? branch_step : promise->least_step;
    tally.branched += branches;
    tally.resumed += *from > 0;
    tally.started_over += *from == 0;
    tally.steps_ahead += *from > least;
    /* A store of one generation may be in the middle of a step, and the program then says so. */
    return *from < least ? "a reported step is lost" : generations > 1 && warns() ? "there is a warning" :
           wastes_cache(promise, had_cache) ? "a token cache was not used" : NULL;
}

/* Steps whose line in metrics.jsonl a cut may have taken: lines are synced with each checkpoint, and that of the step
 * which a run goes on from is made again. */
static unsigned lost_lines(const struct promise *promise, long from) {
    unsigned lost = promise->lines_lost;
    for (long step = 1; step < from; step++) {
        lost |= promise->saved >> step == 0 ? 1u << step : 0;
    }
    return lost;
}

/* Whether the lines of metrics.jsonl are those of the expected run, but for `lost` ones. */
static bool same_steps(unsigned lost) {
    char *const expected_curve = sys_curve(expected("expected"), "step"), *const curve = sys_curve("mnt/run", "step");
    const char *line = expected_curve, *found = curve;
    bool same = true;
    for (long step = 1; step <= STEPS && same; step++) {
        const size_t length = strcspn(line, "\n") + 1;
        const bool there = strncmp(line, found, length) == 0;
        same = there || (lost >> step & 1) != 0;
        line += length;
        found += there ? length : 0;
    }
    same = (same && *found == '\0') || sys_same_text("steps", line, found);
    free(expected_curve);
    free(curve);
    return same;
}

/* What a stamp of a cache was written to stays for a minute, because others may use that folder too. */
static const char *check_end(unsigned lines_lost) {
    return !same_as_expected(STEPS) ? "the run ends with other bits" :
           !same_steps(lines_lost) ? "metrics.jsonl has other steps" :
           files_count("mnt/run", "", ".tmp") + files_count("mnt/run/cache", ".offload-cache-", ".tmp") > 0 ?
           "a temporary file is left" : NULL;
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

/* Mounts what a cut has left, and goes on. Where the kernel refuses to mount torn structures, that is counted, for it
 * says nothing of the program. Returns NULL if the promise was kept; `base` then is what must be there at the begin if
 * the power is cut again. */
static const char *check_cut(const struct file_system *system, const char *loop_path, const struct promise *promise,
                             uint32_t draw, struct promise *base) {
    *base = *promise;
    if (!mount_cut(system, loop_path)) {
        tally.refused++;
        return NULL;
    }
    long from = 0;
    process.outcome.err[0] = '\0';
    const char *wrong = check_folders(promise);
    wrong = wrong != NULL ? wrong : go_on(promise, draw, &from);
    const unsigned lines_lost = lost_lines(promise, from);
    wrong = wrong != NULL ? wrong : check_end(lines_lost);
    unmount();
    base->lines_lost = lines_lost;
    return wrong;
}

/* ---- cuts -------------------------------------------------------------------------------------------------- */

/* Draws a moment: right after words of the program, or in the start of a process, or any; of those that are not words,
 * half are moved to the end of writes that one flush covers. The second disk is mounted before there are words. */
static uint32_t draw_moment(struct cutter *cutter, const struct recording *recording) {
    const unsigned way = cutter_draw(cutter, 5), drawn = cutter_draw(cutter, recording->mark_count);
    uint32_t from = recording == &first ? recording->marks[0].count : 0, end = cutter->record->count;
    if (way == 0) {
        return recording->marks[drawn].count;
    }
    for (unsigned i = 0; i + 1 < recording->mark_count && way <= 2; i++) { /* the last start up to the drawn mark */
        if (recording->marks[i].what == PHASE && i <= drawn) {
            from = recording->marks[i].count;
            end = recording->marks[i + 1].count;
        }
    }
    uint32_t at = from + cutter_draw(cutter, end - from + 1);
    for (int pass = 0; pass < 2 && way % 2 == 0; pass++) { /* to a write, then to the end of those that follow it */
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

static void tell(const char *name, const struct cutter *cutter, uint32_t moment, const struct promise *promise,
                 const char *wrong) {
    printf("%s of %s, seed %llu, cut after %u of %u, phase %d, at least step %ld, checkpoints %x: %s: ", kind->name,
           name, (unsigned long long)cutter->seed, moment, cutter->record->count, promise->phase->start,
           promise->least_step, promise->saved, wrong);
    sys_complain(&process, "");
}

/* Cuts of a record: how many, and what becomes of them. */
struct cuts {
    struct cutter *cutter;
    unsigned count;
    unsigned again;   /* so many second cuts in some of the recoveries */
    bool are_broken;  /* as they must be in the control; else the first that is broken is told of, and ends it */
};
static struct cutter again_cutter;

static unsigned take_cuts(const struct file_system *system, const struct recording *recording,
                          const struct cuts *cuts);

/* Goes on from a cut on a disk that records that, and cuts it again. */
static const char *check_again(const struct file_system *system, struct cutter *cutter, const struct promise *promise,
                               unsigned count) {
    second.mark_count = 0;
    if (!disk_open(&second.disk, cutter->file)) {
        return "there is no second disk";
    }
    current = &second;
    const char *wrong = check_cut(system, second.disk.loop_path, promise, cutter_draw(cutter, 1 << 16), &second.before);
    current = NULL;
    disk_end(&second.disk);
    if (wrong == NULL && second.mark_count > 0) {
        const struct cuts cuts = {.cutter = &again_cutter, .count = count};
        cutter_begin(&again_cutter, second.disk.record, cutter->file, cutter->seed + cutter->draws);
        wrong = take_cuts(system, &second, &cuts) > 0 ? "after a second cut" : NULL;
        tally.second_cuts += count;
    }
    disk_free(&second.disk);
    return wrong;
}

/* Takes cuts, and returns how many broke the promise. */
static unsigned take_cuts(const struct file_system *system, const struct recording *recording,
                          const struct cuts *cuts) {
    struct cutter *const cutter = cuts->cutter;
    uint32_t moments[CUTS_PER_RECORD];
    unsigned broken = 0;
    cutter->whole = system->whole;
    for (unsigned i = 0; i < cuts->count; i++) {
        moments[i] = draw_moment(cutter, recording);
    }
    qsort(moments, cuts->count, sizeof *moments, compare_moments);
    for (unsigned i = 0; i < cuts->count && (broken == 0 || cuts->are_broken); i++) {
        const struct promise promise = promise_at(recording, moments[i]);
        const uint32_t drawn = cutter_draw(cutter, FATES + 1);
        struct promise base;
        tally.loose += cutter_cut(cutter, moments[i], drawn < FATES ? (enum fate)drawn : EACH_DRAWN) > 0;
        tally.cuts++;
        const char *const wrong =
            cuts->again > 0 && i % AGAIN_EVERY == AGAIN_EVERY / 2
                ? check_again(system, cutter, &promise, cuts->again)
                : check_cut(system, cutter->loop_path, &promise, cutter_draw(cutter, 1 << 16), &base);
        broken += wrong != NULL;
        if (wrong != NULL && !cuts->are_broken) {
            tell(system->name, cutter, moments[i], &promise, wrong);
        }
    }
    return broken;
}

static void report(const char *name) {
    printf("%s, %s: %u cuts, %u of them second ones, %u with writes that no flush covered, %u had to be repaired, "
           "%u cannot be mounted; %u runs resumed, %u of them further than reported, %u branched, %u started over, "
           "%u after they were refused; %u token caches used\n", kind->name, name, tally.cuts, tally.second_cuts,
           tally.loose, tally.repaired, tally.refused, tally.resumed, tally.steps_ahead, tally.branched,
           tally.started_over, tally.begun_again, tally.cached);
    tally = (struct tally){0};
}

/* False where this file system cannot be had. */
static bool test_file_system(const struct file_system *system, struct cutter *cutter, uint64_t seed, unsigned count,
                             unsigned again) {
    for (unsigned done = 0; done < count && test_failure_count == 0; done += CUTS_PER_RECORD) {
        const unsigned left = count - done, part = left < CUTS_PER_RECORD ? left : CUTS_PER_RECORD;
        const struct cuts cuts = {.cutter = cutter, .count = part, .again = again};
        drive_count = 1 + done / CUTS_PER_RECORD % 2;
        generations = done / CUTS_PER_RECORD % 3 == 2 && kind->processes == 1 && kind->phases == phases
                          ? 1 : kind->generations;
        if (!record_run(system, PHASES, true)) {
            printf("%s: skipped: no mkfs.%s, or not in this kernel\n", system->name, system->name);
            return false;
        }
        cutter_begin(cutter, first.disk.record, -1, seed + done);
        CHECK(take_cuts(system, &first, &cuts) == 0);
        disk_free(&first.disk);
    }
    CHECK(tally.cuts == count + tally.second_cuts && tally.refused <= 1 + tally.cuts / 100);
    CHECK(count < CUTS_PER_RECORD / 8 || (tally.loose > count / 16 && tally.resumed > count / 16));
    report(system->name);
    return true;
}

static void test_control(const struct file_system *system, struct cutter *cutter, uint64_t seed) {
    drive_count = 1;
    generations = kind->generations;
    if (record_run(system, 1, false)) {
        const struct cuts cuts = {.cutter = cutter, .count = CONTROL_CUTS, .are_broken = true};
        cutter_begin(cutter, first.disk.record, -1, seed);
        const unsigned broken = take_cuts(system, &first, &cuts);
        printf("control, syncs that do nothing: %u of %d cuts break the promise\n", broken, CONTROL_CUTS);
        CHECK(broken > 0);
        disk_free(&first.disk);
        report("control");
    }
}

/* What was asked for; 0 and "": the usual. */
static struct {
    unsigned count, again;
    uint64_t seed;
    const char *kind, *system;
} asked = {.seed = 1, .kind = "", .system = ""};

static void take_words(int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i += 2) {
        asked.count = strcmp(argv[i], "--count") == 0 ? (unsigned)strtoul(argv[i + 1], NULL, 10) : asked.count;
        asked.again = strcmp(argv[i], "--again") == 0 ? (unsigned)strtoul(argv[i + 1], NULL, 10) : asked.again;
        asked.seed = strcmp(argv[i], "--seed") == 0 ? strtoull(argv[i + 1], NULL, 10) : asked.seed;
        asked.kind = strcmp(argv[i], "--run") == 0 ? argv[i + 1] : asked.kind;
        asked.system = strcmp(argv[i], "--only") == 0 ? argv[i + 1] : asked.system;
    }
}

static void make_expected(void) {
    begin(kind->tokenizes ? "expected-text" : kind->numerics != NULL ? "expected-mixture" : "expected", FRESH, 0, "");
    sys_run_well(&args, &process);
    begin_export(plain_pathf("%s/checkpoint-%d", expected("expected"), STEPS), expected("exported"));
    sys_run_well(&args, &process);
}

/* Returns on how many file systems a run of this kind was cut. */
static unsigned test_kind(struct cutter *cutter) {
    const bool all = test_deep(), is_first = kind == &kinds[0];
    const unsigned quick = test_stride(6), usual = (kind->usual_cuts / SHARE + quick - 1) / quick;
    const unsigned count = asked.count > 0 ? asked.count : all ? CUTS_ALL : usual;
    const unsigned usual_again = all ? AGAIN_ALL : is_first ? AGAIN_USUAL : 0;
    const unsigned again = asked.again == 0                ? usual_again
                           : asked.again < CUTS_PER_RECORD ? asked.again
                                                           : CUTS_PER_RECORD;
    const char *const only = *asked.system != '\0' || all || asked.count > 0 ? asked.system : kind->usual_system;
    unsigned systems = 0;
    for (unsigned i = 0; i < FILE_SYSTEMS && test_failure_count == 0; i++) {
        if (*only == '\0' || strcmp(only, file_systems[i].name) == 0) {
            const bool had = test_file_system(&file_systems[i], cutter, asked.seed, count, again);
            systems += had;
            if (had && systems == 1 && is_first && test_failure_count == 0) {
                test_control(&file_systems[i], cutter, asked.seed);
            }
        }
    }
    return systems;
}

int main(int argc, char **argv) {
    static struct cutter cutter;
    unsigned systems = 0;
    if (strcmp(argv[0], "offload") == 0) {
        return become_without_sync(argv);
    }
    take_words(argc, argv);
    setvbuf(stdout, NULL, _IOLBF, 0);
    files_make_folder("mnt");
    if (!files_mount("mnt", "size=1m")) {
        test_skip("nothing can be mounted here");
    }
    unmount();
    if (!cutter_open(&cutter) || !cutter_open(&again_cutter)) {
        test_skip("there are no loop devices");
    }
    model_path = sys_write_model("llama");
    mixture_path = sys_write_model("deepseek");
    speaker_path = sys_write_speaker();
    text_path = sys_write_text(TEXT_BYTES);
    for (kind = kinds; kind < kinds + KINDS; kind++) {
        if (*asked.kind != '\0' && strcmp(asked.kind, kind->name) != 0) {
            continue;
        }
        if (!files_exist(expected("expected"))) {
            make_expected();
        }
        if (kind->processes > 1 && sys_mpi_missing() != NULL) {
            printf("%s: skipped: %s\n", kind->name, sys_mpi_missing());
        } else {
            systems += test_kind(&cutter);
        }
    }
    cutter_close(&cutter);
    cutter_close(&again_cutter);
    if (systems == 0) {
        test_skip("no file system can be made");
    }
    return test_end();
}
