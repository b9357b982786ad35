/* The cases that a step can meet, as tables: data alone, so that the proof can go through all of them. */
#include "offload/plan/cases.h"

const struct ox_pending_case ox_pending_cases[OX_PENDING_COUNT] = {
    [OX_PENDING_NOTHING] = {"nothing is pending", OX_FACT_FROM_MEMORY, OX_DUE_NONE},
    [OX_PENDING_REST] = {"the update of all but the speculative units is pending",
                         OX_FACT_FROM_MEMORY | OX_FACT_COMMIT_DUE | OX_FACT_COUNTS_DUE, OX_DUE_NOT_SPECULATIVE},
    [OX_PENDING_ALL] = {"the update of all units is pending",
                        OX_FACT_FROM_MEMORY | OX_FACT_BEGIN_DUE | OX_FACT_COMMIT_DUE | OX_FACT_COUNTS_DUE, OX_DUE_ALL},
    [OX_PENDING_AGAIN] = {"an update is pending that begins with the last commit again",
                          OX_FACT_COMMIT_DUE | OX_FACT_COUNTS_DUE, OX_DUE_ALL},
    [OX_PENDING_IN_MEMORY] = {"an update is pending that stays in memory", OX_FACT_FROM_MEMORY | OX_FACT_COUNTS_DUE,
                              OX_DUE_ALL},
    [OX_PENDING_PART] = {"part of an update is pending",
                         OX_FACT_FROM_MEMORY | OX_FACT_COMMIT_DUE | OX_FACT_COUNTS_DUE, OX_DUE_ANY},
    [OX_PENDING_PART_AGAIN] = {"part of an update is pending that begins with the last commit again",
                               OX_FACT_COMMIT_DUE | OX_FACT_COUNTS_DUE, OX_DUE_ANY},
    [OX_PENDING_PART_IN_MEMORY] = {"part of an update is pending that stays in memory",
                                   OX_FACT_FROM_MEMORY | OX_FACT_COUNTS_DUE, OX_DUE_ANY},
};

const struct ox_own_case ox_own_cases[OX_OWN_COUNT] = {
    [OX_OWN_SPECULATES] = {"the step speculates", OX_FACT_OWN_WORK | OX_FACT_COMMITS | OX_FACT_SPECULATES},
    [OX_OWN_WAITS] = {"the step does not speculate", OX_FACT_OWN_WORK | OX_FACT_COMMITS},
    [OX_OWN_IN_MEMORY] = {"the step stays in memory", OX_FACT_OWN_WORK},
    [OX_OWN_EVALUATES] = {"it is an evaluation", OX_FACT_OWN_WORK},
    [OX_OWN_NOTHING] = {"the update is finished alone", 0},
};
