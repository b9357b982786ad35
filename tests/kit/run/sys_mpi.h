/* The `offload` program as several processes, started by mpirun of Open MPI. The words of one process are those of
 * sys_run.h; so are starting, waiting, and what a run leaves. */
#ifndef OX_TESTS_SYS_MPI_H
#define OX_TESTS_SYS_MPI_H

#include "tests/kit/run/sys_run.h"

#include <stdint.h>

enum { SYS_PROCESSES_MAX = 8 };

/* Returns why no processes can be started here, or NULL: there is no mpirun, or this build has no MPI plugin. */
const char *sys_mpi_missing(void);
/* Ends the test as skipped where something is missing. */
void sys_mpi_require(void);

/* Open MPI leaves memory behind when it starts and ends. From here on what the test starts says nothing of that, where
 * a sanitizer would tell of it as an error. sys_mpi_begin calls this too. */
void sys_mpi_allow_leaks(void);

/* What mpirun does when a process is killed: it ends the others after a second, as it always does, or at once, or
 * leaves that to them. */
enum sys_mpi_loss { SYS_MPI_END_OTHERS, SYS_MPI_END_AT_ONCE, SYS_MPI_KEEP_OTHERS };

/* Makes `out` start so many processes with the same words. sys_mpi_also adds processes of the same run with other
 * words. */
void sys_mpi_begin(struct sys_args *out, unsigned processes, const struct sys_args *each, enum sys_mpi_loss loss);
void sys_mpi_also(struct sys_args *out, unsigned processes, const struct sys_args *each);

/* The processes of a run. */
struct sys_mpi_run {
    pid_t launcher;
    unsigned count;
    pid_t pids[SYS_PROCESSES_MAX];
};

/* Waits until mpirun has started this many processes; false if it ended before. */
bool sys_mpi_find(const struct sys_process *process, unsigned count, struct sys_mpi_run *out);
/* Waits until no process of the run is left, and then as sys_wait does. Returns the seconds from `begin_ns` until the
 * last one has ended. */
double sys_mpi_wait(struct sys_process *process, const struct sys_mpi_run *run, uint64_t begin_ns);
/* Ends what is left; for handlers of signals too. */
void sys_mpi_end(const struct sys_mpi_run *run);

#endif
