/* The processes of a run, as each of them sees it: what one decides for all, and how all learn that one has failed.
 *
 * Each process runs the same program with the same options. What they decide must be the same everywhere, so whatever
 * depends on a clock, a file, a signal or the machine is decided by the first process and shared, or gathered from
 * all. A process that ends with a failure aborts the team: the next call of every other process then returns that
 * failure, so nobody waits for a process that does not come.
 *
 * A team of one process is NULL. All functions accept it: nothing is to be agreed then. The functions are collective:
 * all processes call the same ones in the same order on a channel, from one thread each. */
#ifndef OX_ENGINE_STEP_TEAM_H
#define OX_ENGINE_STEP_TEAM_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a meeting belongs to. Those of a step come soon after each other on all processes: they warn after ten seconds
 * and fail at the time limit. Those of the run wait as long as another process works, because one may tokenize a large
 * text for all; they warn after ten minutes. The thread that completes a checkpoint beside the run has its own. */
enum ox_team_channel { OX_TEAM_RUN, OX_TEAM_STEP, OX_TEAM_SAVE, OX_TEAM_CHANNEL_COUNT };

enum { OX_TEAM_MAX = 64 };

struct ox_team;

/* Opens the team of the processes that an MPI launcher has started; *out is NULL if it is one process. All calls fail
 * soon if a process has ended, and after `limit_ns` if one is stopped or its machine is gone; 0: ten minutes. */
OX_MUST enum ox_status ox_team_open(uint64_t limit_ns, struct ox_team **out);
void ox_team_close(struct ox_team **team);

uint32_t ox_team_idx(const struct ox_team *team);   /* 0 when alone */
uint32_t ox_team_count(const struct ox_team *team); /* 1 when alone */
/* Whether this is the first process, which writes the run's folder and speaks for all. */
static inline bool ox_team_leads(const struct ox_team *team) {
    return ox_team_idx(team) == 0;
}
/* How many processes of the team run on a machine: the most of any, so that budgets of a machine can be divided. */
uint32_t ox_team_per_machine(const struct ox_team *team);
/* Which of the processes of its machine this one is, from 0. */
uint32_t ox_team_idx_on_machine(const struct ox_team *team);

/* Gives every process the `size` bytes that the first one has; at most OX_COMM_MEET_BYTES. */
OX_MUST enum ox_status ox_team_share(struct ox_team *team, void *bytes, uint32_t size, const char *what);
/* Collects `size` bytes of every process, in order, in `all`, which has room for ox_team_count of them. */
OX_MUST enum ox_status ox_team_gather(struct ox_team *team, enum ox_team_channel channel, const void *mine,
                                      uint32_t size, void *all, const char *what);
/* Replaces each number by its sum over all processes, modulo 2^64. */
OX_MUST enum ox_status ox_team_sum(struct ox_team *team, enum ox_team_channel channel, uint64_t *numbers,
                                   uint32_t count, const char *what);
/* Returns the same status everywhere: that of the first process that failed, with its text, which begins with
 * "process K: " unless it failed alone and is this one. A status of OX_E_ABORTED counts only if nothing else failed.
 * With OX_E_COMM it waits for half a minute at most, as a process that was not reached may never come. */
OX_MUST enum ox_status ox_team_agree(struct ox_team *team, enum ox_team_channel channel, enum ox_status status,
                                     const char *what);
/* Ends the calls of all processes, now and later, with this failure, whose text is this thread's. */
void ox_team_abort(struct ox_team *team, enum ox_status status);

#ifdef __cplusplus
}
#endif
#endif
