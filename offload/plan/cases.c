#include "offload/plan/cases.h"

/* Facts of the update that the step before has left. If that step speculated, its transaction is open. */
static uint32_t facts_of_pending(bool speculates, bool written) {
    return OX_FACT_COUNTS_DUE | (written ? OX_FACT_COMMIT_DUE : 0u) |
           (written && !speculates ? OX_FACT_BEGIN_DUE : 0u);
}

struct ox_step_case ox_usual_case(const struct ox_plan_input *input, enum ox_plan_kind kind, struct ox_step_ways ways) {
    const bool speculates = input->placement.speculative_units > 0 && !ways.holds;
    const bool written = ox_plan_transacts(input, ways.stays || ox_plan_commits_between(input));
    struct ox_step_case usual = {.facts = OX_FACT_OWN_WORK | OX_FACT_FROM_MEMORY,
                                 .holds = ways.holds,
                                 .carries = input->placement.overlap && kind != OX_PLAN_EVAL};
    if (kind == OX_PLAN_TRAIN) {
        usual.facts |= (speculates ? OX_FACT_SPECULATES : 0u) | (written ? OX_FACT_COMMITS : 0u);
    }
    if (usual.carries) {
        usual.facts |= facts_of_pending(speculates, written);
    }
    return usual;
}

enum ox_due ox_case_due(struct ox_step_case usual, const struct ox_plan *plan, uint32_t unit_idx) {
    if (!usual.carries || unit_idx >= plan->unit_count || !plan->rules[unit_idx].updated) {
        return OX_DUE_NOTHING;
    }
    const struct ox_unit_rules *const rules = &plan->rules[unit_idx];
    return usual.holds || !rules->speculative ? OX_DUE_ALL : rules->goes_ahead ? OX_DUE_STATE : OX_DUE_NOTHING;
}
