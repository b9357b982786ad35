/* Random plans that fit, drawn without the planner over everything that it may choose: tiles, transfers ahead, slots,
 * kept activations, the home of checkpoints, when the optimizer of which units runs, and the home of each plane of each
 * unit, among them units that live on the device as a whole. */
#ifndef OX_TESTS_RANDOM_PLAN_H
#define OX_TESTS_RANDOM_PLAN_H

#include "offload/plan/plan.h"
#include "offload/sim/sim.h"

struct random_plan_move;

struct random_plan {
    struct ox_plan_input *in;     /* its placement and the homes of the table are those of the plan drawn last */
    struct ox_shard_table *table;
    const struct ox_sim_setup *setup;
    struct ox_plan *train, *eval;
    struct ox_sim *sim;
    struct random_plan_move *moves;
    uint64_t seed, counter;
};

void random_plan_open(struct ox_plan_input *in, struct ox_shard_table *table, const struct ox_sim_setup *setup,
                      struct random_plan *out);
void random_plan_close(struct random_plan *r);

/* Draws one: its simulated seconds, 0 where what was drawn does not fit even with every plane in its farthest home. */
double random_plan_draw(struct random_plan *r, uint64_t seed);

/* From the plan as it is, which takes `seconds`: changes a few things at random so many times, and keeps what fits and
 * takes no longer. Returns what the last one takes. */
double random_plan_climb(struct random_plan *r, uint64_t seed, uint32_t tries, double seconds);

#endif
