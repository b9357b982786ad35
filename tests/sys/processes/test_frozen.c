/* A process of two that is stopped within a run, as by a machine that hangs. The other ends by itself soon after
 * --comm-timeout and says which one did not come; so does the stopped one where it is continued. The run goes on from
 * the last commit and ends with the bytes of the undisturbed run. A process that is stopped for a shorter time does no
 * harm, nor do all of them for a longer one, as by a scheduler that suspends a job.
 *
 * `make test` stops one of the two for good and the other one for a while. With OX_TEST_ALL=2 every process is stopped
 * ten times in each place. */
#include "base/clock.h"
#include "base/prng/prng.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_mpi.h"
#include "tests/kit/test.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { STEPS = 120, HANG_SECONDS = 200, ROUNDS_ALL = 10 };

static const char common_words[] =
    "--ranks 2 --max-steps 120 --global-batch-size 4 --sum-groups 4 --batch-size 1 --max-seq-length 16"
    " --eval-windows 4 --eval-steps 10 --compute-threads 1 --optimizer-threads 1 --chunk-elems 2048"
    " --save-steps 20 --save-total-limit 2";
static const char *const places[] = {"--persist-steps 1", "--state-tier nvme --optimizer-overlap speculative"};
enum { PLACE_COUNT = sizeof places / sizeof *places };

static struct sys_args args, launched;
static struct sys_process process;
static struct sys_mpi_run run;
static const char *model_path, *text_path;

static void on_alarm(int signal_number) {
    static const char text[] = "the program hangs\n";
    (void)signal_number;
    sys_mpi_end(&run);
    _exit(write(STDOUT_FILENO, text, sizeof text - 1) > 0 ? 1 : 2);
}

static void start(const char *place, const char *more, enum sys_mpi_loss loss) {
    sys_args_train(&args, model_path, text_path, "run");
    sys_args_add(&args, common_words);
    sys_args_add(&args, place);
    sys_args_add(&args, more);
    sys_args_drive(&args, "drive", "32MiB");
    sys_mpi_begin(&launched, 2, &args, loss);
    alarm(HANG_SECONDS);
    sys_start(&launched, &process);
}

/* Stops a process some steps after the run has begun, each time somewhere else within them. */
static void stop_one(unsigned victim, unsigned round) {
    uint32_t draw[4];
    ox_philox(93, victim, round, draw);
    CHECK(sys_mpi_find(&process, 2, &run));
    CHECK(sys_await(&process, plain_pathf("\nstep %u/", 2 + draw[0] % 60)));
    nanosleep(&(struct timespec){.tv_nsec = draw[1] % 20000000}, NULL);
    CHECK(kill(run.pids[victim], SIGSTOP) == 0);
}

/* Lets a run come to its end, which is that of the undisturbed one. */
static void finish(void) {
    sys_wait(&process);
    alarm(0);
    if (process.outcome.exit_status != 0 || !sys_same_runs("expected", "run", STEPS)) {
        sys_complain(&process, "it does not end as the undisturbed run");
    }
    files_remove_folder("run");
    files_remove_folder("drive");
}

static void test_frozen(unsigned victim, const char *place, unsigned round) {
    start(place, "--comm-timeout 4", SYS_MPI_KEEP_OTHERS);
    stop_one(victim, round);
    const uint64_t begin_ns = ox_clock_ns();
    CHECK(sys_await(&process, plain_pathf("offload: process %u of 2: ", 1 - victim)));
    const double seconds = (double)(ox_clock_ns() - begin_ns) * 1e-9;
    CHECK(kill(run.pids[victim], SIGCONT) == 0);
    sys_mpi_wait(&process, &run, begin_ns);
    printf("process %u stopped: the other ended after %.1f s, both were gone after %.1f s\n", victim, seconds,
           (double)(ox_clock_ns() - begin_ns) * 1e-9);
    const char *const named = plain_pathf("for rank %u, which did not come", victim);
    const char *const silent = plain_pathf("process %u (pid ", victim);
    if ((!sys_said(&process, named) && !sys_said(&process, silent)) || sys_said(&process, "Segmentation")) {
        sys_complain(&process, "it does not name the process that was stopped");
    }
    start(place, "--resume latest", SYS_MPI_END_OTHERS);
    finish();
}

static void test_paused(unsigned victim, const char *place) {
    start(place, "", SYS_MPI_END_OTHERS);
    stop_one(victim, 0);
    nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
    CHECK(kill(run.pids[victim], SIGCONT) == 0);
    finish();
}

static void test_suspended(const char *place) {
    start(place, "--comm-timeout 4", SYS_MPI_END_OTHERS);
    stop_one(0, 1);
    CHECK(kill(run.pids[1], SIGSTOP) == 0);
    nanosleep(&(struct timespec){.tv_sec = 7}, NULL);
    CHECK(kill(run.pids[0], SIGCONT) == 0 && kill(run.pids[1], SIGCONT) == 0);
    finish();
}

int main(void) {
    const unsigned rounds = test_deep() ? ROUNDS_ALL : 1;
    sys_mpi_require();
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGALRM, on_alarm);
    model_path = sys_write_model("llama");
    text_path = sys_write_text(20000);
    sys_args_train(&args, model_path, text_path, "expected");
    sys_args_add(&args, common_words);
    sys_run_well(&args, &process);
    for (unsigned i = 0; i < rounds; i++) {
        for (unsigned victim = 0; victim < 2; victim++) {
            if (test_takes(victim, 2)) {
                test_frozen(victim, places[(i + victim) % PLACE_COUNT], i);
            }
            if (test_takes(victim + 1, 2)) {
                test_paused(victim, places[(i + victim + 1) % PLACE_COUNT]);
            }
        }
        test_suspended(places[i % PLACE_COUNT]);
    }
    return test_end();
}
