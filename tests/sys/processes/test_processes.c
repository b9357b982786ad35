/* One training divided among processes, each with one or more ranks: losses, norms, rates and the final files are the
 * same bytes as those of one rank. Then a run that goes on with other numbers of processes from checkpoints, and one
 * that stops in every way and goes on from the stores of its processes, and one that cannot be saved. It tries every
 * combination with OX_TEST_ALL=2, every fifth in `make test-all`, else every 25th and a third of the ways to stop.
 * Sanitizers make each start take seconds, so a build with them draws one of four parts, and two of the ways to stop.
 *
 *     test_processes [--others]    without the first part
 *     test_processes --seed N      what is drawn */
#include "base/clock.h"
#include "tests/kit/run/sys_mpi.h"
#include "tests/kit/run/ranks.inc"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { IS_SAMPLED = 1, HANG_SECONDS = 300 };
#else
enum { IS_SAMPLED = 0, HANG_SECONDS = 200 };
#endif
enum { STRIDE = 5 };

/* no_shard keeps nothing on drives. With hybrid_shard each process has a copy, on drives of its own. */
static const char *const shardings[] = {"full_shard", "shard_grad_op", "zero2", "zero1", "hybrid_shard", "no_shard"};
enum { SHARDING_COUNT = sizeof shardings / sizeof *shardings, NO_SHARD = SHARDING_COUNT - 1, HYBRID = NO_SHARD - 1 };

struct layout {
    unsigned processes, ranks;
};
static const struct layout layouts[] = {{2, 2}, {2, 4}, {3, 3}, {3, 6}, {4, 4}, {4, 8}};
enum { LAYOUT_COUNT = sizeof layouts / sizeof *layouts };

/* Runs that are compared with one rank; a change of the number of processes; and ways to stop. */
enum part { COMPARED, CHANGED_IN_MEMORY, CHANGED_ON_DRIVES, STOPPED, PART_COUNT };

static struct sys_args launched;
static bool sampled; /* one part, and every third way to stop */
static unsigned seed;

static void launch(unsigned processes) {
    alarm(HANG_SECONDS); /* for this run */
    if (processes > 1) {
        sys_mpi_begin(&launched, processes, &args, SYS_MPI_END_OTHERS);
    }
    sys_start(processes > 1 ? &launched : &args, &process);
}

static void run_processes(unsigned processes) {
    launch(processes);
    sys_wait(&process);
    alarm(0);
}

static void try_processes(const struct family *family, const struct layout *layout, int sharding, int place_idx,
                          const struct result *expected) {
    const struct place *const place = &places[place_idx % (sharding == NO_SHARD ? IN_MEMORY_COUNT : PLACE_COUNT)];
    const uint64_t begin_ns = ox_clock_ns();
    begin_ranks(family, (int)layout->ranks, place->words);
    sys_args_word(&args, "--sharding=%s", shardings[sharding]);
    if (sharding == HYBRID) {
        sys_args_word(&args, "--shard-size=%u", layout->ranks / layout->processes);
    }
    add_drives(place->drives);
    run_processes(layout->processes);
    const char *const what =
        plain_pathf("%u processes, %u ranks, %s", layout->processes, layout->ranks, shardings[sharding]);
    printf("    %s, %s: %.1f s\n", what, place->name, (double)(ox_clock_ns() - begin_ns) / 1e9);
    end_ranks(what, place, expected);
}

static void run_family(const struct family *family, int first) {
    static unsigned asked;
    printf("%s\n", family->name);
    struct result expected = run_one(family, run_steps(), cosine_words);
    for (int i = 0; i < LAYOUT_COUNT; i++) {
        for (int k = 0; k < SHARDING_COUNT; k++) {
            const bool is_turn = (i + k + first) % STRIDE == 0 && test_takes(asked++, 32);
            if (is_turn || all) { /* late lanes take long: one run of them is enough */
                const int place_count = all || (i == 1 && first == 2) ? PLACE_COUNT : PLACE_COUNT - 1;
                const int place_idx = (i + first + (k == HYBRID)) % place_count; /* on drives too */
                try_processes(family, &layouts[i], k, place_idx, &expected);
            }
        }
    }
    end_one(&expected);
}

/* ---- other numbers of processes ------------------------------------------------------------------------- */

static const unsigned turns[] = {1, 4, 2, 3};
enum { TURN_COUNT = sizeof turns / sizeof *turns };

/* Adds the words of a part that ends at step 10 (turn + 1), but the last at STEPS. */
static void add_part(int turn) {
    sys_args_word(&args, "--max-steps=%d", turn == TURN_COUNT - 1 ? STEPS : 10 * (turn + 1));
    sys_args_word(&args, "--ranks=%u", turns[turn]);
    sys_args_add(&args, constant_words);
}

static bool went_well(const char *what) {
    if (process.outcome.exit_status != 0) {
        printf("    %s: ended with %d, signal %d\n%s\n", what, process.outcome.exit_status,
               process.outcome.signal_number, process.outcome.err);
        test_failure_count++;
    }
    return process.outcome.exit_status == 0;
}

/* One folder, whose newest checkpoint is taken. */
static void change_in_memory(const struct family *family, const struct result *expected) {
    for (int turn = 0; turn < TURN_COUNT; turn++) {
        begin(family, test_path("ranks"), turn == 0 ? fresh : latest);
        add_part(turn);
        run_processes(turns[turn]);
        if (!went_well("other processes")) {
            return;
        }
    }
    compare("processes 1, 4, 2, 3 in turn", test_path("ranks"), expected);
    files_remove_folder(test_path("ranks"));
}

/* Each part has a folder and a drive of its own, and begins with the checkpoint of the part before. */
static void change_on_drives(const struct family *family, const struct result *expected) {
    for (int turn = 0; turn < TURN_COUNT; turn++) {
        const char *const name = plain_pathf("part-%d", turn);
        const char *const origin = plain_pathf("--sum-groups 8 --resume-from-checkpoint=%s",
                                               test_pathf("part-%d/checkpoint-%d", turn - 1, 10 * turn));
        begin(family, test_path(name), turn == 0 ? fresh : origin);
        add_part(turn);
        sys_args_add(&args, "--state-tier nvme --grads-tier nvme");
        sys_args_drive(&args, plain_pathf("%s-drive", name), "32MiB");
        run_processes(turns[turn]);
        if (!went_well(name)) {
            return;
        }
        char *const steps = sys_curve(test_path(name), "step");
        CHECK(steps[0] != '\0' && strstr(expected->steps, steps) != NULL);
        free(steps);
    }
    CHECK(has_weights_of(expected, "part-3"));
    for (int turn = 0; turn < TURN_COUNT; turn++) {
        files_remove_folder(test_pathf("part-%d", turn));
        files_remove_folder(test_pathf("part-%d-drive", turn));
    }
}

/* ---- the stores of two processes ------------------------------------------------------------------------ */

/* How a run ends before its time. */
struct stop {
    const char *name;
    int signal_number;
    bool hits[3]; /* mpirun, process 0, process 1 */
    int exit_status; /* of mpirun; 0: any failure */
};
static const struct stop stops[] = {
    {"TERM to both", SIGTERM, {false, true, true}, 128 + SIGTERM},
    {"TERM to the first", SIGTERM, {false, true, false}, 128 + SIGTERM},
    {"TERM to the second", SIGTERM, {false, false, true}, 128 + SIGTERM},
    {"INT to both", SIGINT, {false, true, true}, 128 + SIGINT},
    {"KILL to the second", SIGKILL, {false, false, true}, 0},
    {"TERM to mpirun", SIGTERM, {true, false, false}, 0},
};
enum { STOP_COUNT = sizeof stops / sizeof *stops };

static void begin_stored(const struct family *family, unsigned ranks, const char *origin) {
    begin(family, test_path("ranks"), origin);
    sys_args_word(&args, "--ranks=%u", ranks);
    sys_args_word(&args, "--max-steps=%d", STEPS);
    sys_args_add(&args, "--state-tier nvme --grads-tier nvme --stop-grace-seconds 0");
    sys_args_add(&args, constant_words);
    add_drives(1);
}

/* Returns the step that it has saved, or -1. */
static long stop_run(const struct family *family, const struct stop *stop, int idx) {
    struct sys_mpi_run run = {0};
    begin_stored(family, 4, idx == 0 ? fresh : latest);
    launch(2);
    CHECK(sys_mpi_find(&process, 2, &run) && sys_await(&process, plain_pathf("\nstep %d/", 6 * idx + 4)));
    const pid_t pids[3] = {run.launcher, run.pids[0], run.pids[1]};
    for (int i = 0; i < 3; i++) {
        if (stop->hits[i] && pids[i] != 0) {
            kill(pids[i], stop->signal_number);
        }
    }
    printf("    %s: gone after %.1f s\n", stop->name, sys_mpi_wait(&process, &run, ox_clock_ns()));
    const int status = process.outcome.exit_status;
    const long saved = sys_number_after(process.outcome.err, "/checkpoint-", -1);
    if (status == 0 || (stop->exit_status != 0 && (status != stop->exit_status || saved < 6 * idx + 4))) {
        printf("    %s: ended with %d, saved step %ld\n%s\n", stop->name, status, saved, process.outcome.err);
        test_failure_count++;
    }
    return saved;
}

/* Neither other numbers of processes nor of ranks can take the stores. */
static void refuse_others(const struct family *family) {
    static const struct {
        unsigned processes, ranks;
        const char *says;
    } others[] = {{3, 3, "is in the stores of 2 processes, which only as many can open; start 2, or name a"},
                  {1, 4, "is in the stores of 2 processes, which only as many can open; start 2, or name a"},
                  {2, 2, "--ranks 2: the stores of the run's 2 processes are divided among 4 ranks; give --ranks 4"}};
    for (int i = 0; i < 3; i++) {
        begin_stored(family, others[i].ranks, latest);
        run_processes(others[i].processes);
        const char *const error = strstr(process.outcome.err, "offload: ");
        if (process.outcome.exit_status != 2 || error == NULL || strstr(error + 1, "offload: ") != NULL ||
            strstr(error, others[i].says) == NULL) {
            printf("    %u processes with %u ranks on the stores of 2 with 4: ended with %d\n%s\n", others[i].processes,
                   others[i].ranks, process.outcome.exit_status, process.outcome.err);
            test_failure_count++;
        }
    }
}

static void refuse(const struct family *family, int exit_status, const char *words, const char *more) {
    begin_stored(family, 4, more);
    run_processes(2);
    if (process.outcome.exit_status != exit_status || !sys_said(&process, words)) {
        sys_complain(&process, words);
    }
    CHECK(files_exist("drive-0/process-0-of-2/offload-store-0.ox") && files_exist("ranks/metrics.jsonl"));
}

static void exchange(const char *a, const char *b) {
    const char *const away = test_path("away");
    CHECK(rename(test_path(a), away) == 0 && rename(test_path(b), test_path(a)) == 0 &&
          rename(away, test_path(b)) == 0);
}

/* Stores of two processes: taken by the wrong one, and in use while the run is to be deleted. */
static void test_stores(const struct family *family) {
    static const char *const own[] = {"drive-0/process-0-of-2", "drive-0/process-1-of-2"};
    exchange(own[0], own[1]);
    refuse(family, 2, "process-0-of-2: has the store of process 1, and this is process 0 of 2; ", latest);
    exchange(own[0], own[1]);
    const int fd = open(test_pathf("%s/offload-store-0.ox", own[1]), O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0 && flock(fd, LOCK_EX) == 0);
    refuse(family, 1, "in use by process ", "--from-scratch --sum-groups 8 --overwrite-output-dir");
    CHECK(files_exist("ranks/run.json") && close(fd) == 0);
}

/* Without run.json and checkpoints, the stores say which run this is. */
static void lose_records(void) {
    CHECK(unlink(test_path("ranks/run.json")) == 0 && unlink(test_path("ranks/run-copy.json")) == 0);
    while (files_count("ranks", "checkpoint-", "") > 0) {
        DIR *const folder = opendir(test_path("ranks"));
        for (const struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
            if (strncmp(entry->d_name, "checkpoint-", 11) == 0) {
                files_remove_folder(test_pathf("ranks/%s", entry->d_name));
            }
        }
        closedir(folder);
    }
}

/* What the refusal advises: another number of processes goes on from a checkpoint, to its own stores. One of these is
 * damaged, so all go on from the newest checkpoint. */
static void go_on_with_others(const struct family *family, long saved) {
    const char *const origin =
        plain_pathf("--resume-from-checkpoint=%s", test_pathf("ranks/checkpoint-%ld", saved));
    struct sys_mpi_run run = {0};
    begin_stored(family, 3, origin);
    launch(3);
    CHECK(sys_mpi_find(&process, 3, &run) && sys_await(&process, plain_pathf("\nstep %ld/", saved + 4)));
    kill(run.pids[1], SIGTERM);
    sys_mpi_wait(&process, &run, 0);
    CHECK(files_count(test_path("drive-0"), "process-", "-of-2") == 0);
    const uint64_t store_bytes = files_size("drive-0/process-1-of-3/offload-store-0.ox");
    char *const zeros = calloc(store_bytes, 1);
    files_write("drive-0/process-1-of-3/offload-store-0.ox", zeros, store_bytes);
    free(zeros);
    begin_stored(family, 3, latest);
    run_processes(3);
    CHECK(strstr(process.outcome.err, "the store is not used: process 1: ") != NULL);
    CHECK(sys_number_after(process.outcome.err, "resumed at step ", -1) >= saved + 4);
}

static void go_on(const struct family *family, const struct result *expected) {
    long saved = -1;
    int stop_count = 0;
    for (int i = 0; i < STOP_COUNT; i++) {
        if (sampled ? (unsigned)i % 3 != seed / PART_COUNT % 3 : !test_takes((unsigned)i, 3)) {
            continue;
        }
        const long step = stop_run(family, &stops[i], stop_count++);
        saved = stops[i].exit_status != 0 ? step : saved; /* the others may come to the end before they are told */
    }
    refuse_others(family);
    test_stores(family);
    const char *const newest = test_pathf("ranks/checkpoint-%ld", saved), *const away = test_path("saved");
    CHECK(rename(newest, away) == 0);
    lose_records();
    begin_stored(family, 4, latest);
    run_processes(2);
    CHECK(sys_said(&process, "run.json and its copy are damaged or missing; the run is known from its store"));
    CHECK(rename(away, newest) == 0);
    if (went_well("going on from the stores")) {
        compare("stopped and resumed", test_path("ranks"), expected);
    }
    go_on_with_others(family, saved);
    if (went_well("going on with other processes")) {
        CHECK(has_weights_of(expected, "ranks"));
    }
    files_remove_folder(test_path("ranks"));
    remove_drives(1);
}

/* The last save fails, and is tried again until any process is told to stop. */
static void end_unsaved(const struct family *family) {
    struct sys_mpi_run run = {0};
    begin(family, test_path("unsaved"), fresh);
    sys_args_add(&args, "--ranks=2 --max-steps=50");
    sys_args_add(&args, constant_words);
    launch(2);
    CHECK(sys_mpi_find(&process, 2, &run) && sys_await(&process, "\nstep 1/"));
    for (int i = 0; i < 2; i++) {
        CHECK(prlimit(run.pids[i], RLIMIT_FSIZE, &(struct rlimit){4096, RLIM_INFINITY}, NULL) == 0);
    }
    CHECK(sys_await(&process, "only memory has the state of step 50, and its checkpoint cannot be saved: ") &&
          kill(run.pids[1], SIGTERM) == 0);
    sys_wait(&process);
    alarm(0);
    if (process.outcome.exit_status != 1 || !sys_said(&process, "step 50 is not saved: there is no store ")) {
        sys_complain(&process, "a save that a signal to the second process ends");
    }
    files_remove_folder(test_path("unsaved"));
}

static void on_alarm(int signal_number) {
    static const char text[] = "the program hangs\n";
    (void)signal_number;
    kill(process.pid, SIGTERM); /* mpirun ends what it has started */
    _exit(write(STDOUT_FILENO, text, sizeof text - 1) > 0 ? 1 : 2);
}

static bool takes(enum part part) {
    return !sampled || seed % PART_COUNT == part;
}

static void try_others(const struct family *family) {
    struct result expected = run_one(family, STEPS, constant_words);
    if (takes(CHANGED_IN_MEMORY)) {
        if (sampled || test_all()) {
            change_in_memory(family, &expected);
        }
        end_unsaved(family);
    }
    if (takes(CHANGED_ON_DRIVES)) {
        change_on_drives(family, &expected);
    }
    if (takes(STOPPED)) {
        go_on(family, &expected);
    }
    end_one(&expected);
}

int main(int argc, char **argv) {
    const bool others_alone = argc == 2 && strcmp(argv[1], "--others") == 0;
    sys_mpi_require();
    all = test_deep();
    sampled = argc == 3 || (IS_SAMPLED && argc == 1 && !all);
    seed = sampled ? test_seed(argc, argv) : 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGALRM, on_alarm);
    text_path = sys_write_text(40000);
    for (int i = 0; i < FAMILY_COUNT && !others_alone && takes(COMPARED); i++) {
        run_family(&families[i], i);
    }
    for (int i = 0; i < (all ? FAMILY_COUNT : 1) && !(sampled && takes(COMPARED)); i++) {
        try_others(&families[i]);
    }
    printf("%d runs with the bits of one rank\n", run_count);
    return test_end();
}
