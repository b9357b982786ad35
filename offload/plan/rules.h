/* What homes, placement and budget decide about each unit, worked out once for a plan: builder, simulator and executor
 * read it there. The proof has its own derivation (offload/proof/sizes.h). */
#ifndef OX_OFFLOAD_RULES_H
#define OX_OFFLOAD_RULES_H

#include "offload/plan/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which planes of a unit the drives have, or have to have. */
struct ox_on_drives {
    bool hi, state;
};

struct ox_unit_rules {
    bool holds;             /* this rank has the unit, or a slice of it (ox_plan_holds) */
    bool gathers;           /* ranks have slices of it (ox_plan_gathers) */
    bool updated;           /* by this rank: it holds the unit, and something of it is trained */
    uint32_t cast_bytes;    /* of a weight in the format that blocks read, which CAST makes of the planes; 0: they read
                               hi in place, which nobody does of a narrow unit */
    bool lo_travels;        /* to compute with the unit's hi: compute reads it, and the unit has one */
    bool lo_in_state;       /* lo is read from the state, in the same memory as hi, and has no copy beside hi */
    bool state_on_device;   /* the unit is updated there. Its weights and gradient live there too, so that only the
                               partial sums of the norm cross the link */
    bool sums_on_device;    /* the device makes the square sums of its gradient: where it is updated there, and never of
                               tied weights that the host updates, because both uses are added on the host */
    bool copied;            /* several ranks of a coordinate have the unit, and update it alike: it is of no group of
                               features that they divide. It lives in memory */
    bool stored;            /* the rank writes the unit to its store: of several that have it there, the first */
    bool speculative;       /* it is updated in the backward of its own step, if steps overlap */
    bool saves_replaced;    /* what its update replaces then is saved in host memory; else it is on the drives */
    bool goes_ahead;        /* such an update makes hi ahead of the state: where compute reads hi alone, from host
                               memory, and there is no store, which would have to have both */
    bool returns_to_drives; /* such an update may have to be taken back to the planes on the drives */
    /* What the drives must have after every step, committed or not: a plane that lives there, lo where forward reads it
     * from there, and all to which a speculative update may have to be taken back. */
    struct ox_on_drives on_drives;
    /* The tier from which the unit is gathered: compute memory, to which each rank has brought its slice; or host
     * memory, from which every device takes the slices of all ranks. */
    enum ox_tier gather_tier;
    /* Bytes of what is saved: hi, up to the state behind it, which begins at a multiple of OX_IO_ALIGN_BYTES; without
     * the state where hi goes ahead. */
    uint64_t replaced_state_offset, replaced_bytes;
};

/* Of a unit that several ranks of a coordinate have, whether the rank is the first of those that share a store. */
bool ox_plan_leads_store(const struct ox_plan_input *input);
/* Works them out for an input of which no plan was built; ox_plan.rules has those of a plan. */
struct ox_unit_rules ox_plan_unit_rules(const struct ox_plan_input *input, uint32_t unit_idx);

/* How many units save what an update replaces, and of these go ahead; how many live on the device, which are the first
 * ones or, else or where these are all, the last. */
struct ox_unit_counts {
    uint32_t saved, ahead, on_device;
    bool device_first;
};
struct ox_unit_counts ox_plan_count_units(const struct ox_plan *plan);

/* Whether a step may stay uncommitted though there is a store: planes that live on drives have a second slot for it,
 * beside that of the last commit, and those that a speculative update replaces on the drives a third. */
bool ox_plan_may_stay(const struct ox_plan_input *input);
/* Whether steps stay uncommitted where one is committed every `persist_steps`; 0: as often as it pays, which is every
 * step unless the others write less. */
bool ox_plan_stays(const struct ox_plan_input *input, uint64_t persist_steps);
/* Whether every step stays uncommitted and commits come between steps, because some unit's state lives on the device,
 * from which no task writes. Requires ox_plan_may_stay. */
bool ox_plan_commits_between(const struct ox_plan_input *input);
/* Whether an update goes through a transaction of the store, committed or not: that of a step that stays uncommitted
 * does so only for planes that the drives must have. */
bool ox_plan_transacts(const struct ox_plan_input *input, bool stays);

/* Whether a GPU could make the calls of a task of lane LINK in its own order: their memory is the device's, and how
 * much travels is known to the plan, as it is not of rows that go to experts. */
bool ox_plan_calls_on_device(const struct ox_plan_input *input, const struct ox_task *task);

#ifdef __cplusplus
}
#endif
#endif
