/* Chooses the placement: the fastest one that fits the budgets. */
#ifndef OX_OFFLOAD_PLACEMENT_H
#define OX_OFFLOAD_PLACEMENT_H

#include "offload/plan/rules.h"
#include "offload/sim/sim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What of a unit has a home of its own. */
enum ox_home { OX_HOME_WEIGHTS, OX_HOME_GRAD, OX_HOME_STATE, OX_HOME_COUNT };

/* A placement, and the rule by which the memory that it leaves free is given to planes. */
struct ox_candidate {
    struct ox_placement placement;
    uint8_t order;   /* in which planes are moved to the host: index into ox_candidate_orders */
    uint8_t ranking; /* enum ox_ranking */
    bool device_weights; /* free device memory is given to weights */
    bool credit;         /* planes may be given more than is free, since moving them frees their transfer buffers */
    uint32_t away[OX_HOME_COUNT]; /* units whose plane stays in its farthest home, even with room nearer */
    uint32_t device_units; /* last units whose weights, gradients and state live on the device */
    bool device_first;     /* these are the first units instead */
    uint8_t generations;   /* of the state on drives; 0: as the budget has them */
};

/* What was chosen for a rank. */
struct ox_found {
    struct ox_candidate candidate;
    double seconds; /* of a step of that rank by itself, simulated; 0: nothing was chosen yet */
};

/* The user's requests; OX_TIER_COUNT = automatic. */
struct ox_placement_request {
    uint32_t tiles;        /* 0 = automatic */
    int32_t prefetch_depth; /* -1 = automatic */
    enum ox_tier act_tier, weights_tier, state_tier, grad_tier;
    int32_t overlap;        /* 0 or 1; -1 = automatic */
    int32_t speculative_units;    /* -1 = automatic */
    int32_t kept_units;     /* blocks; more than there are means all; -1 = automatic */
    bool may_stay; /* some steps may stay uncommitted, where the plan allows it (ox_plan_may_stay) */
    uint64_t persist_steps;  /* every how many steps one is committed then; 0: so rarely that it costs next to nothing,
                                where that saves bytes. If it is over 1, placements whose steps may stay uncommitted are
                                preferred to all others */
    bool state_off_device; /* the optimizer does not run there, so no unit's state lives there */
    uint32_t device_units; /* how many of the last units live and are updated on the device, while the tiers above are
                              for the others; 0 = automatic. A state tier of DEVICE means all units */
    bool device_first;     /* these are the first units instead */
    bool rough;            /* ends with the first climb, in a fraction of the time: for comparisons and advice */
    double beats;          /* seconds of a step that another choice takes already, 0: none: a rough search ends early
                              where it is far from that, with what it has by then */
    struct ox_found *found; /* if nothing was found yet, the search leaves its choice there; else another rank of the
                              same pipeline found it, and the search begins with it; a rough one ends if it takes no
                              longer here, because a step takes as long as its slowest rank. The caller's; NULL:
                              neither */
    uint64_t steps;        /* of the whole run, if it is known: a short run is not worth a long search; 0 = not known */
    bool may_keep_three;   /* the store may have three generations, where that pays: choosing sets the budget's */
    /* Without a store what a speculative update replaces can only be saved in memory, so that no `saves_replaced` means
     * no such updates then. */
    OX_SWITCH_ROWS(OX_SWITCH_REQUEST)
};

/* Chooses placement and homes, and writes them to input->placement and the table: among those that fit, the one whose
 * plan takes the least time in a simulation on the machine of `setup` (setup->input is ignored). On success `out` has
 * the plans of the choice, built and proven. If nothing fits, returns OX_E_CONFIG with a text that says what is short,
 * by how much, and which nearest budget fits; `out` has then the plans of that budget, for their ledger. The caller
 * closes `out` in any case. */
OX_MUST enum ox_status ox_placement_choose(struct ox_plan_input *input, struct ox_shard_table *table,
                                           const struct ox_placement_request *request, const struct ox_sim_setup *setup,
                                           struct ox_plans *out);

#ifdef __cplusplus
}
#endif
#endif
