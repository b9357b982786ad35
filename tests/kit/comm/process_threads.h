/* Processes of a run that are threads of this one: what MPI would tell and give them comes from memory. So engines with
 * a team (engine/step/team.h) are tested without a launcher, and under sanitizers. What they say to each other goes
 * over a wire in memory (comm_hub.h) as it does over MPI: it takes time, and each process has a thread that serves it.
 * The Makefile lists the programs (PROCESSES_P), because the functions that open MPI are taken over in them. */
#ifndef OX_TESTS_PROCESS_THREADS_H
#define OX_TESTS_PROCESS_THREADS_H

#include "engine/step/team.h"

struct ox_comm;

/* Runs the function in a thread for each of `count` processes, with the team of each, and joins them. */
typedef void process_fn(struct ox_team *team, void *arg);
void processes_run(uint32_t count, process_fn *fn, void *arg);

/* Which process this thread is; 0 on threads that a process has started. */
uint32_t process_idx(void);

/* Is given each endpoint that a process opens, and returns the one to be used in its place: the endpoints with all
 * ranks on the thread of the process, `split` being PROCESS_WHOLE and the team's endpoint first; then those of groups,
 * with the number of their split, on any thread and after what was returned for the rank's endpoint with all, which is
 * `all` here. NULL: none is replaced. Set while no process runs. */
enum { PROCESS_WHOLE = UINT32_MAX };
typedef struct ox_comm *process_watch_fn(struct ox_comm *comm, struct ox_comm *all, uint32_t split);
extern process_watch_fn *process_watch;

/* From here on nothing that this process says reaches the others, who learn that it has ended, and it hears nothing
 * from them. Its thread goes on: the test keeps it from its files, and lets it close what is open. */
void process_lose(uint32_t idx);

#endif
