/* States each case by what it means, so that facts follow from meanings and not the other way round. */
#include "offload/proof/cases.h"

#include "offload/proof/proof.h"
#include "offload/proof/sizes.h"

#include <stdio.h>

/* ---- which cases there are ------------------------------------------------------------------------- */

struct ox_proof_case ox_proof_case_at(uint32_t number) {
    return (struct ox_proof_case){.pending = number & 1,
                                  .speculated = number >> 1 & 1,
                                  .clipped = number >> 2 & 1,
                                  .stayed = number >> 3 & 1,
                                  .stopped = number >> 4 & 1,
                                  .computes = number >> 5 & 1,
                                  .speculates = number >> 6 & 1,
                                  .stays = number >> 7 & 1,
                                  .exact = number >> 8 & 1};
}

static bool has_store(const struct ox_plan_input *input) {
    return input->budget.nvme_bytes > 0;
}

/* Whether units may be updated in backward. */
static bool may_speculate(const struct ox_plan_input *input) {
    return input->placement.overlap && input->placement.speculative_units > 0;
}

static bool all_in_memory(const struct ox_plan_input *input) {
    bool all = true;
    for (uint32_t i = 0; i < input->model.unit_count && all; i++) {
        const struct ox_homes *const homes = ox_proof_homes(input, i);
        all = !ox_proof_trained(input, i) || (homes->weights != OX_TIER_NVME && homes->state != OX_TIER_NVME);
    }
    return all;
}

/* Whether a speculative update may have to be taken back to what the drives have. */
static bool may_return(const struct ox_plan_input *input) {
    bool any = false;
    for (uint32_t i = 0; i < input->model.unit_count && may_speculate(input) && !any; i++) {
        any = ox_proof_is_speculative(input, i) && !ox_proof_saves(input, i);
    }
    return any;
}

/* Whether an update that stays uncommitted is written, as far as the drives must have what it makes: planes live there,
 * or a speculative update of the next step may have to be taken back to them. */
static bool writes_anyway(const struct ox_plan_input *input) {
    return !all_in_memory(input) || may_return(input);
}

/* Whether an update may stay uncommitted though there is a store. What it writes goes to slots that are not those of
 * the last commit; and where the update after it is speculative, that one goes to a third, because it may be taken
 * back to planes that are not in the last commit. */
static bool may_stay(const struct ox_plan_input *input) {
    const uint32_t slots = 1u + writes_anyway(input) + may_return(input);
    return has_store(input) && !input->model.eval_only && ox_proof_generations(input) >= slots;
}

/* Whether commits come between steps, each of which stays uncommitted: no task writes what lives on the device. */
static bool commits_between(const struct ox_plan_input *input) {
    bool any = false;
    for (uint32_t i = 0; i < input->model.unit_count && has_store(input) && !any; i++) {
        any = ox_proof_on_device(input, i);
    }
    return any;
}

/* Whether the step before can have ended so. An evaluation has a plan of its own where an update is pending. */
static bool can_be_left(const struct ox_plan *plan, const struct ox_plan_input *input, struct ox_proof_case at) {
    if (!at.pending) {
        return !at.speculated && !at.clipped && !at.stayed && !at.stopped && plan->kind != OX_PLAN_EVAL_AFTER_STEP;
    }
    const bool carries = plan->kind != OX_PLAN_EVAL && input->placement.overlap;
    return carries && (!at.speculated || may_speculate(input)) && (!at.clipped || at.speculated) &&
           (at.stayed ? may_stay(input) : !commits_between(input));
}

bool ox_proof_occurs(const struct ox_plan *plan, const struct ox_plan_input *input, struct ox_proof_case at) {
    const bool train = plan->kind == OX_PLAN_TRAIN;
    const bool finishes = train && at.pending && !at.speculates && !at.stays; /* what a step without forward is for */
    return can_be_left(plan, input, at) && (at.computes || finishes) &&
           (!at.exact || (train && at.computes && input->ranks.low_rank != NULL)) &&
           (!at.speculates || (train && may_speculate(input))) && (!at.stays || (train && may_stay(input))) &&
           (at.stays || !train || !at.computes || !commits_between(input));
}

struct ox_proof_case ox_proof_usual(const struct ox_plan *plan, const struct ox_plan_input *input) {
    const bool pending = plan->kind != OX_PLAN_EVAL && input->placement.overlap, between = commits_between(input);
    return (struct ox_proof_case){.pending = pending, .speculated = pending && may_speculate(input),
                                  .stayed = pending && between, .computes = true,
                                  .stays = plan->kind == OX_PLAN_TRAIN && between,
                                  .speculates = plan->kind == OX_PLAN_TRAIN && may_speculate(input)};
}

/* ---- what follows from a case ---------------------------------------------------------------------- */

bool ox_proof_writes_pending(const struct ox_plan_input *input, struct ox_proof_case at) {
    return at.pending && has_store(input) && (!at.stayed || writes_anyway(input));
}

bool ox_proof_is_open(const struct ox_plan_input *input, struct ox_proof_case at) {
    return ox_proof_writes_pending(input, at) && (at.speculated || at.stopped);
}

bool ox_proof_writes_own(const struct ox_plan *plan, const struct ox_plan_input *input, struct ox_proof_case at) {
    return plan->kind == OX_PLAN_TRAIN && at.computes && has_store(input) && (!at.stays || writes_anyway(input));
}

enum ox_due ox_proof_left(const struct ox_plan_input *input, struct ox_proof_case at, uint32_t unit_idx) {
    const bool holds = at.speculated && !at.clipped && ox_proof_is_speculative(input, unit_idx);
    if (!at.pending || !ox_proof_updates(input, unit_idx) || (holds && !ox_proof_goes_ahead(input, unit_idx))) {
        return OX_DUE_NOTHING;
    }
    return holds ? OX_DUE_STATE : OX_DUE_ALL;
}

uint32_t ox_proof_facts(const struct ox_plan *plan, const struct ox_plan_input *input, struct ox_proof_case at) {
    const bool writes_pending = ox_proof_writes_pending(input, at);
    uint32_t facts = 0;
    facts |= at.computes ? OX_FACT_OWN_WORK : 0;
    facts |= at.speculates ? OX_FACT_SPECULATES : 0;
    facts |= ox_proof_writes_own(plan, input, at) ? OX_FACT_COMMITS : 0;
    facts |= writes_pending && !ox_proof_is_open(input, at) ? OX_FACT_BEGIN_DUE : 0;
    facts |= writes_pending ? OX_FACT_COMMIT_DUE : 0;
    facts |= at.pending ? OX_FACT_COUNTS_DUE : 0;
    facts |= at.clipped ? 0 : OX_FACT_FROM_MEMORY;
    if (plan->kind == OX_PLAN_TRAIN && at.computes && input->ranks.low_rank != NULL) {
        facts |= at.exact ? OX_FACT_EXACT : OX_FACT_LOW_RANK;
    }
    return facts;
}

bool ox_proof_works(const struct ox_task *task, uint32_t facts, enum ox_due due) {
    for (uint32_t fact = 1; fact <= task->when; fact <<= 1) {
        const bool wanted = due == OX_DUE_ALL || (facts & OX_FACT_OWN_WORK) != 0;
        const bool holds = fact == OX_FACT_DUE         ? due == OX_DUE_ALL
                           : fact == OX_FACT_STATE_DUE ? due == OX_DUE_STATE
                           : fact == OX_FACT_WANTED    ? wanted : (facts & fact) != 0;
        if ((task->when & fact) != 0 && !holds) {
            return false;
        }
    }
    return true;
}

/* ---- the executor's question ----------------------------------------------------------------------- */

/* Whether `due` are units that the case can leave: exactly what the update left, or part of it if that was stopped. */
static bool fits_due(const struct ox_plan_input *input, struct ox_proof_case at, const uint8_t *due) {
    bool fits = true;
    for (uint32_t i = 0; i < input->model.unit_count && fits; i++) {
        const enum ox_due left = ox_proof_left(input, at, i);
        fits = due[i] == left || (at.stopped && due[i] == OX_DUE_NOTHING);
    }
    return fits;
}

bool ox_proof_covers(const struct ox_plan *plan, const struct ox_plan_input *input, uint32_t facts,
                     const uint8_t *due) {
    bool covered = false;
    for (uint32_t i = 0; i < OX_PROOF_CASES && !covered; i++) {
        const struct ox_proof_case at = ox_proof_case_at(i);
        covered = ox_proof_facts(plan, input, at) == facts && ox_proof_occurs(plan, input, at) &&
                  fits_due(input, at, due);
    }
    return covered;
}

/* ---- in words -------------------------------------------------------------------------------------- */

void ox_proof_case_text(const struct ox_plan *plan, struct ox_proof_case at, char text[OX_PROOF_CASE_TEXT]) {
    const char *const left = !at.pending     ? "nothing is pending"
                             : at.clipped    ? "an update is pending whose speculative part is repeated"
                             : at.speculated ? "the update of all but the speculative units is pending"
                             : at.stayed     ? "an update is pending that stays uncommitted"
                                             : "the update of all units is pending";
    const char *const own = !at.computes                   ? "it is finished alone"
                            : plan->kind != OX_PLAN_TRAIN ? "the step is an evaluation"
                            : at.speculates               ? "the step speculates"
                            : at.stays                    ? "the step stays uncommitted"
                                                          : "the step does not speculate";
    snprintf(text, OX_PROOF_CASE_TEXT, "%s%s and %s%s", left, at.stopped ? ", was stopped on its way," : "", own,
             at.exact ? ", with whole sums" : "");
}
