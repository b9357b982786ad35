/* Pipelines whose ranks are in several processes: the bytes of one rank; a process that is killed or stopped, and a run
 * that goes on from the stores of its processes; and a mesh that has other stores is refused with what to do. In `make
 * test` half of the meshes. */
#include "base/clock.h"
#include "tests/kit/run/sys_mpi.h"
#include "tests/kit/run/ranks.inc"

#include <signal.h>
#include <unistd.h>

enum { HANG_SECONDS = 300 };

static const struct family untied = {"llama with a head of its own", "untied", "--dtype fp32"};

static const struct mesh {
    unsigned processes;
    const char *words;
    bool tied; /* the head's table is the embedding's, which another process has */
} meshes[] = {
    {2, "--pipeline-parallel-size 2", false},
    {2, "--mesh dp=2,pp=2", false},
    {3, "--mesh pp=3 --pipeline-schedule 1f1b", true},
    {2, "--mesh pp=4 --pipeline-schedule gpipe", false},
    {4, "--mesh dp=2,pp=2 --sharding zero2", false},
    {4, "--mesh dp=2,pp=2 --pipeline-schedule gpipe", true},
    {2, "--mesh pp=2 --pipeline-schedule interleaved", false},
};
enum { MESHES = sizeof meshes / sizeof *meshes };

static struct sys_args launched;

static void launch(unsigned processes) {
    alarm(HANG_SECONDS); /* for this run */
    sys_mpi_begin(&launched, processes, &args, SYS_MPI_END_OTHERS);
    sys_start(&launched, &process);
}

static void run_processes(unsigned processes) {
    launch(processes);
    sys_wait(&process);
    alarm(0);
}

static void try_mesh(const struct family *family, const struct mesh *mesh, int place_idx,
                     const struct result *expected) {
    const struct place *const place = &places[place_idx % (PLACE_COUNT - 1)];
    begin_ranks(family, 0, place->words);
    sys_args_add(&args, mesh->words);
    add_drives(place->drives);
    run_processes(mesh->processes);
    end_ranks(plain_pathf("%u processes, %s", mesh->processes, mesh->words), place, expected);
}

/* ---- a run that is cut off ------------------------------------------------------------------------------- */

static void begin_stored(const struct family *family, const char *words, const char *origin) {
    begin(family, test_path("ranks"), origin);
    sys_args_add(&args, words);
    sys_args_word(&args, "--max-steps=%d", STEPS);
    sys_args_add(&args, "--state-tier nvme --grads-tier nvme --stop-grace-seconds 0 --comm-timeout 4s");
    sys_args_add(&args, constant_words);
    add_drives(1);
}

/* What happens to the second process. */
static const int stops[] = {SIGKILL, SIGSTOP, SIGTERM};
enum { STOPS = sizeof stops / sizeof *stops };

static void stop_run(const struct family *family, const char *words, int idx) {
    struct sys_mpi_run run = {0};
    begin_stored(family, words, idx == 0 ? fresh : latest);
    launch(2);
    CHECK(sys_mpi_find(&process, 2, &run) && sys_await(&process, plain_pathf("\nstep %d/", 6 * idx + 4)));
    kill(run.pids[1], stops[idx]);
    if (stops[idx] == SIGSTOP) {
        CHECK(sys_await(&process, "offload: "));
        kill(run.pids[1], SIGKILL);
    }
    sys_mpi_wait(&process, &run, ox_clock_ns());
    alarm(0);
    CHECK(process.outcome.exit_status != 0);
    if (stops[idx] == SIGSTOP && !sys_said(&process, "rank 1") && !sys_said(&process, "process 1")) {
        sys_complain(&process, "names the process that was stopped"); /* by the rank that waits for it, or as silent */
    }
}

static void refuse(const struct family *family, unsigned processes, const char *words, const char *says) {
    begin_stored(family, words, latest);
    run_processes(processes);
    if (process.outcome.exit_status != 2 || !sys_said(&process, says)) {
        sys_complain(&process, says);
    }
}

static void cut_off(const struct family *family, const char *words, const struct result *expected) {
    for (int i = 0; i < STOPS; i++) {
        stop_run(family, words, i);
    }
    refuse(family, 2, "--ranks 2", "--pipeline-parallel-size 1: the stores of the run's 2 processes are divided by a "
           "pipeline of 2; give --pipeline-parallel-size 2, or name a checkpoint");
    begin_stored(family, words, latest);
    run_processes(2);
    if (process.outcome.exit_status != 0) {
        sys_complain(&process, "going on from the stores");
    }
    compare(words, test_path("ranks"), expected);
    files_remove_folder(test_path("ranks"));
    remove_drives(1);
}

static void on_alarm(int signal_number) {
    static const char text[] = "the program hangs\n";
    (void)signal_number;
    kill(process.pid, SIGTERM); /* mpirun ends what it has started */
    _exit(write(STDOUT_FILENO, text, sizeof text - 1) > 0 ? 1 : 2);
}

int main(void) {
    sys_mpi_require();
    all = test_deep();
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGALRM, on_alarm);
    text_path = sys_write_text(40000);
    for (int tied = 0; tied < 2; tied++) {
        const struct family *const family = tied ? &families[0] : &untied;
        struct result expected = run_one(family, run_steps(), cosine_words);
        for (int i = 0; i < MESHES; i++) {
            if (meshes[i].tied == (tied > 0) && (all || test_takes((unsigned)i, 2))) {
                try_mesh(family, &meshes[i], i, &expected);
            }
        }
        end_one(&expected);
    }
    struct result expected = run_one(&families[0], STEPS, constant_words);
    cut_off(&families[0], "--pipeline-parallel-size 2 --pipeline-schedule 1f1b", &expected);
    end_one(&expected);
    printf("%d runs with the bits of one rank\n", run_count);
    return test_end();
}
