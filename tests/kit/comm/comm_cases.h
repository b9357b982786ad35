/* What every backend of communication promises, as cases that run on any world of ranks. */
#ifndef OX_TESTS_COMM_CASES_H
#define OX_TESTS_COMM_CASES_H

#include "tests/kit/comm/comm_world.h"

/* Calls that end well: contents of every kind, order, channels beside one another, counters. */
void comm_cases_calls(struct comm_world *world);
/* Random calls, the same on all ranks, beside meetings on other channels. */
void comm_cases_random(struct comm_world *world, uint32_t call_count, uint64_t seed);
/* Ranks that disagree, aborts, late and closed ranks: every rank returns the same cause, and a revival ends it. */
void comm_cases_failures(struct comm_world *world);
/* Groups of ranks, in rows and across them: calls of groups beside one another, and failures, which all ranks have. */
void comm_cases_groups(struct comm_world *world);
/* The K-th call of a rank fails, for every K and rank, in a mix of calls. */
void comm_cases_faults(struct comm_world *world, uint32_t call_count);

#endif
