/* Random models, budgets and requests for tests of plans: small ones of 1 to 12 units that exercise every home, both
 * kinds of memory, tied and untied heads, parts of models, and all formats of optimizer state. */
#ifndef OX_TESTS_PLAN_SAMPLE_H
#define OX_TESTS_PLAN_SAMPLE_H

#include "offload/plan/rules.h"
#include "offload/search/placement.h"
#include "offload/sim/sim.h"
#include "tests/kit/plan/plan_model.h"

enum { PLAN_SAMPLE_UNITS_MAX = 24 };

struct plan_sample {
    uint64_t elems[PLAN_SAMPLE_UNITS_MAX];
    struct plan_model model;
    struct ox_plan_input in;
    struct ox_shard_table table; /* to be closed by the test */
    struct ox_placement_request request;
    struct ox_machine machine;
    struct ox_sim_setup setup;
    struct ox_low_rank low_rank; /* of its matrices, of which each unit has up to two */
    struct ox_low_rank_matrix matrices[2 * PLAN_SAMPLE_UNITS_MAX];
    uint32_t matrices_of[PLAN_SAMPLE_UNITS_MAX + 1];
};

/* The sample of a seed, always the same. It refers to itself: it must not be copied. In `make test` a choice for it is
 * rough, as these tests take any plan. */
void plan_sample_draw(struct plan_sample *s, uint64_t seed);

/* Draws the ranks that divide the sample's step, and how they divide the model. Which rank a plan is for is left to
 * the test, as are the rank's slices and micro-batches. */
struct ox_plan_ranks plan_sample_ranks(uint64_t seed);
/* Draws matrices within the units, and how copies exchange their gradients in low rank; NULL: they exchange whole sums,
 * as where these ranks make no copies. */
const struct ox_low_rank *plan_sample_low_rank(struct plan_sample *s, const struct ox_plan_ranks *ranks, uint64_t seed);
/* Makes the table's units that are not trained fixed, with or without lo. */
void plan_sample_fix(const struct ox_plan_model *model, struct ox_shard_table *table, bool with_lo);

/* Makes the sample that of the first of several ranks. */
void plan_sample_divide(struct plan_sample *s, uint64_t seed);

/* ---- for tests that draw samples of their own: numbers from a seed and a counter that advances ------ */

/* A whole number below `below`. */
uint64_t plan_sample_number(uint64_t seed, uint64_t *counter, uint64_t below);
/* Between `from` and `to`: evenly, or as often in each tenfold. */
double plan_sample_even(uint64_t seed, uint64_t *counter, double from, double to);
double plan_sample_wide(uint64_t seed, uint64_t *counter, double from, double to);
/* A machine with one drive, with or without a GPU, whose rates are those of small machines to large ones. */
void plan_sample_machine(uint64_t seed, uint64_t *counter, struct ox_machine *out);

#endif
