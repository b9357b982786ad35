/* What tests of the planner's choices share: a request that asks for nothing, how long a plan takes, and what was
 * chosen in words. */
#ifndef OX_TESTS_PLAN_CHOICE_H
#define OX_TESTS_PLAN_CHOICE_H

#include "offload/search/placement.h"
#include "offload/sim/sim.h"

/* Leaves every choice to the planner. */
extern const struct ox_placement_request plan_choice_automatic;

/* Simulated seconds of the plan of a step. */
double plan_choice_seconds(const struct ox_plan *plan, const struct ox_sim_setup *setup);

/* Prints a placement, and how many units keep their weights, state and gradients in each tier. */
void plan_choice_print(const struct ox_plan_input *in);

#endif
