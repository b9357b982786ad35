/* Communication between ranks over MPI: this program starts itself under mpirun, with 2 and 4 processes of one or more
 * ranks, and runs the cases of every backend there; then a process is killed. */
#include "tests/kit/comm/comm_cases.h"
#include "tests/kit/files.h"
#include "tests/kit/run/sys_mpi.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HANG_SECONDS = 200 };

static char plugin[PATH_MAX];
static struct sys_process mpirun;

/* ---- where the processes of a launch meet: a barrier in a file, whose path they inherit -------------- */

static const char *const barrier_variable = "OX_TEST_BARRIER";

static pthread_barrier_t *barrier_map(const char *path) {
    const int fd = open(path, O_RDWR);
    CHECK(fd >= 0);
    void *const at = mmap(NULL, sizeof(pthread_barrier_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    close(fd);
    return at;
}

static void barrier_create(unsigned processes) {
    static const char zeros[sizeof(pthread_barrier_t)];
    const char *const path = files_write("barrier", zeros, sizeof zeros);
    pthread_barrier_t *const barrier = barrier_map(path);
    pthread_barrierattr_t attr;
    pthread_barrierattr_init(&attr);
    pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    CHECK(pthread_barrier_init(barrier, &attr, processes) == 0);
    pthread_barrierattr_destroy(&attr);
    munmap(barrier, sizeof *barrier);
    CHECK(setenv(barrier_variable, path, 1) == 0);
}

static void together(void) {
    static pthread_barrier_t *barrier;
    if (barrier == NULL) {
        barrier = barrier_map(getenv(barrier_variable));
    }
    pthread_barrier_wait(barrier);
}

/* ---- the processes of a launch ----------------------------------------------------------------------- */

static void open_mpi(struct comm_world *world, const struct ox_comm_limits *limits) {
    const struct ox_comm_local_config config = {.count = world->local, .limits = *limits};
    REQUIRE_OK(ox_comm_mpi_open(plugin, &config, world->comms));
}

static struct comm_world world_of(uint32_t local) {
    struct comm_world world;
    uint32_t process = 0, process_count = 0;
    memset(&world, 0, sizeof world);
    REQUIRE_OK(ox_comm_mpi_world(plugin, &process, &process_count));
    world.name = "mpi";
    world.count = process_count * local;
    world.first = process * local;
    world.local = local;
    world.open = open_mpi;
    world.adds = world.adds_on_host = true;
    return world;
}

static int run_cases(uint32_t local) {
    struct comm_world world = world_of(local);
    bool launched = false;
    for (uint32_t i = 0; ox_comm_mpi_variables[i] != NULL; i++) {
        launched = launched || getenv(ox_comm_mpi_variables[i]) != NULL;
    }
    CHECK(launched);
    world.together = together;
    comm_cases_calls(&world);
    comm_cases_random(&world, 200, world.count);
    comm_cases_failures(&world);
    comm_cases_groups(&world);
    comm_cases_faults(&world, 3);
    return test_end();
}

/* The last process kills itself; the others must end with its name, or be ended by the launcher. */
static void call_until_lost(struct comm_rank *rank) {
    enum ox_status status = OX_OK;
    for (uint32_t i = 0; status == OX_OK; i++) {
        if (i == 30 && rank->rank + 1 == rank->count) {
            raise(SIGKILL);
        }
        static const enum ox_comm_call kinds[] = {OX_COMM_GATHER, OX_COMM_REDUCE_SCATTER, OX_COMM_MEET};
        const struct comm_try call = {.kind = kinds[i % 3], .variant = i % 9};
        status = comm_try(rank, &call);
    }
    printf("rank %u ended: %s\n", rank->rank, ox_error_text());
    fflush(stdout);
}

static int run_lost(void) {
    struct comm_world world = world_of(1);
    comm_world_open(&world, 0, 60000);
    comm_each(&world, call_until_lost, NULL, NULL);
    return 3;
}

/* Every process has another number of ranks. */
static int run_unequal(void) {
    uint32_t process = 0, process_count = 0;
    struct ox_comm *comms[8];
    REQUIRE_OK(ox_comm_mpi_world(plugin, &process, &process_count));
    const struct ox_comm_local_config config = {.count = 1 + process};
    CHECK(ox_comm_mpi_open(plugin, &config, comms) == OX_E_CONFIG);
    CHECK(strstr(ox_error_text(), "has 2 ranks and process 0 has 1") != NULL);
    return test_end();
}

/* Runs this program under mpirun; returns its exit status. */
static int launch(unsigned processes, const char *mode) {
    static struct sys_args each, all;
    barrier_create(processes);
    sys_args_begin(&each, mode);
    each.program = "/proc/self/exe";
    sys_mpi_begin(&all, processes, &each, SYS_MPI_END_OTHERS);
    alarm(HANG_SECONDS); /* ends this program, and mpirun with it */
    sys_run(&all, &mpirun);
    alarm(0);
    printf("%s%s", mpirun.outcome.out, mpirun.outcome.err);
    return mpirun.outcome.exit_status;
}

int main(int argc, char **argv) {
    test_build_path("liboffload_mpi.so", plugin);
    if (argc == 2) {
        return strcmp(argv[1], "lost") == 0      ? run_lost()
               : strcmp(argv[1], "unequal") == 0 ? run_unequal()
                                                 : run_cases((uint32_t)strtoul(argv[1], NULL, 10));
    }
    struct ox_comm *none[1];
    const struct ox_comm_local_config alone = {.count = 1};
    CHECK(ox_comm_mpi_open("/nowhere/liboffload_mpi.so", &alone, none) == OX_E_COMM);
    CHECK(strstr(ox_error_text(), "install libopenmpi-dev") != NULL && none[0] == NULL);
    sys_mpi_require();
    CHECK(launch(2, "1") == 0);
    CHECK(launch(2, "2") == 0);
    CHECK(launch(4, "1") == 0);
    CHECK(launch(2, "unequal") == 0);
    CHECK(launch(2, "lost") != 0);
    CHECK(strstr(mpirun.outcome.out, "process 1 (pid") != NULL || sys_said(&mpirun, "signal 9"));
    return test_end();
}
