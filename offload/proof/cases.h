/* What a step of a plan can meet, as the proof states it: how the step before ended, what this one does, and from both
 * the facts and the units whose carried update is due. Nothing here comes from offload/plan/cases.h, which has the
 * rules of builder and executor; if the two differ, plans are refused, or the executor stops at ox_proof_covers(). */
#ifndef OX_OFFLOAD_PROOF_CASES_H
#define OX_OFFLOAD_PROOF_CASES_H

#include "offload/plan/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ox_proof_case {
    /* How the step before ended, which has left an update if `pending`. The others are false without one. */
    bool pending;
    bool speculated; /* it updated units in its own backward, and left the transaction open */
    bool clipped;    /* its norm then required clipping: all units are updated again, those units from the drives */
    bool stayed;     /* it stayed uncommitted: its update is written only where the drives must have it */
    bool stopped;    /* the update has begun, in a step or evaluation that was stopped: any units may be done */

    /* What this step does. */
    bool computes;   /* a forward and, in training, a backward; else it finishes the pending update alone */
    bool speculates; /* it updates units in backward, before its norm is known */
    bool stays;      /* its own update will not be committed, though there is a store */
    bool exact;      /* copies that may exchange gradients in low rank exchange whole sums */
};

/* The case of a number; all numbers below OX_PROOF_CASES are all cases that can be written down. */
enum { OX_PROOF_CASES = 1 << 9 };
struct ox_proof_case ox_proof_case_at(uint32_t number);

/* Whether a step of this plan can meet the case. */
bool ox_proof_occurs(const struct ox_plan *plan, const struct ox_plan_input *input, struct ox_proof_case at);

/* The case for which a plan states bytes and traffic: steps overlap and speculate if they may, what has a store is
 * written to it, unless commits come between steps, and no norm required clipping. */
struct ox_proof_case ox_proof_usual(const struct ox_plan *plan, const struct ox_plan_input *input);

/* Whether the pending update has a transaction of the store, and whether that is open when the step begins. */
bool ox_proof_writes_pending(const struct ox_plan_input *input, struct ox_proof_case at);
bool ox_proof_is_open(const struct ox_plan_input *input, struct ox_proof_case at);
/* Whether an update of the step's own has one, in this step or, where steps overlap, in the next. */
bool ox_proof_writes_own(const struct ox_plan *plan, const struct ox_plan_input *input, struct ox_proof_case at);

/* What of this unit the update of the step before left to be made; if that was stopped, some units are done by now. */
enum ox_due ox_proof_left(const struct ox_plan_input *input, struct ox_proof_case at, uint32_t unit_idx);

/* The facts of the step (enum ox_fact), and whether a task works with them. `due`: what of its unit the carried update
 * has still to make. */
uint32_t ox_proof_facts(const struct ox_plan *plan, const struct ox_plan_input *input, struct ox_proof_case at);
bool ox_proof_works(const struct ox_task *task, uint32_t facts, enum ox_due due);

/* Writes the case in words for a message: "nothing is pending and the step speculates". */
enum { OX_PROOF_CASE_TEXT = 160 };
void ox_proof_case_text(const struct ox_plan *plan, struct ox_proof_case at, char text[OX_PROOF_CASE_TEXT]);

#ifdef __cplusplus
}
#endif
#endif
