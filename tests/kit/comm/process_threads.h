/* Processes of a run that are threads of this one: what MPI would tell and give them comes from memory. So engines with
 * a team (engine/step/team.h) are tested without a launcher, and under sanitizers. The Makefile lists the programs
 * (PROCESSES_P), because the functions that open MPI are taken over in them. */
#ifndef OX_TESTS_PROCESS_THREADS_H
#define OX_TESTS_PROCESS_THREADS_H

#include "engine/step/team.h"

/* Runs the function in a thread for each of `count` processes, with the team of each, and joins them. */
typedef void process_fn(struct ox_team *team, void *arg);
void processes_run(uint32_t count, process_fn *fn, void *arg);

/* Which process this thread is; 0 on threads that a process has started. */
uint32_t process_idx(void);

#endif
