/* The choice of a placement: what fits the budgets, and of that what is fastest. */
#ifndef OX_OFFLOAD_PLACEMENT_H
#define OX_OFFLOAD_PLACEMENT_H

#include "offload/plan/plan.h"
#include "offload/sim/sim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The user's requests; OX_TIER_COUNT = automatic. */
struct ox_placement_request {
    uint32_t tiles;        /* 0 = automatic */
    int32_t prefetch_depth; /* -1 = automatic */
    enum ox_tier act_tier, weights_tier, state_tier, grad_tier;
    int32_t overlap;        /* 0 or 1; -1 = automatic */
    int32_t speculative_units;    /* -1 = automatic */
    int32_t kept_units;     /* -1 = automatic; all blocks where it exceeds them */
    bool may_stay_in_memory; /* some steps, where all planes fit there: then no unit is early */
    uint64_t persist_steps;  /* of which every so many are written; 0: as rarely as costs next to nothing. With more
                                than 1 a placement whose steps stay in memory comes before all others */
    uint32_t device_units; /* so many of the last units live and are updated on the device, and the tiers above are for
                              the others; 0 = automatic. A state tier of DEVICE means all units */
    bool quick;         /* half the effort: for what a plan would be, not for one that is run */
};

/* Chooses placement and homes (written to input->placement and table): of those that fit, the one whose plan takes the
 * least time when it is simulated on the machine of `setup`, whose own input is not looked at. On success the plans of
 * the choice are built and checked. What does not fit is OX_E_CONFIG whose text says what is short by how much and the
 * nearest budget that fits; then out->train is that nearest plan, for its ledger, and there is no other. Close them in
 * any case. */
OX_MUST enum ox_status ox_placement_choose(struct ox_plan_input *input, struct ox_shard_table *table,
                                           const struct ox_placement_request *request, const struct ox_sim_setup *setup,
                                           struct ox_plans *out);

#ifdef __cplusplus
}
#endif
#endif
