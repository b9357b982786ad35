/* What a step meets when it begins, and which of its tasks then do their work.
 *
 * One list of tasks serves every step of a run. Most tasks always work; those of the optimizer depend on how the step
 * before ended and on what this one may assume. Each task names the facts that it asks for (ox_task.when). The executor
 * looks at the facts of a step once, when it begins, and compares masks from then on; the proof follows the list in
 * every case that the tables here allow; the simulator follows it in the usual one. */
#ifndef OX_OFFLOAD_CASES_H
#define OX_OFFLOAD_CASES_H

#include "offload/plan/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A task works where all facts of its mask hold, else it only keeps its place in its lane. The last two are facts of
 * the task's unit, the others of the step. */
enum ox_fact {
    OX_FACT_OWN_WORK = 1 << 0,    /* a forward follows: the step is more than the end of a pending update */
    OX_FACT_SPECULATES = 1 << 1,  /* the last units are updated in the step's own backward */
    OX_FACT_COMMITS = 1 << 2,     /* the step's own update is written, as it does not stay in memory */
    OX_FACT_BEGIN_DUE = 1 << 3,   /* the carried update's transaction has still to begin */
    OX_FACT_COMMIT_DUE = 1 << 4,  /* and to be committed */
    OX_FACT_COUNTS_DUE = 1 << 5,  /* what carried updates on the device count has still to come */
    OX_FACT_FROM_MEMORY = 1 << 6, /* carried updates take planes from where they live, not from the last commit */
    OX_FACT_DUE = 1 << 7,         /* the unit's carried update has still to run */
    OX_FACT_WANTED = 1 << 8,      /* it has, or a forward wants the unit's planes */
    OX_FACTS_OF_UNIT = OX_FACT_DUE | OX_FACT_WANTED,
    OX_FACTS_OF_PENDING = OX_FACT_BEGIN_DUE | OX_FACT_COMMIT_DUE | OX_FACT_FROM_MEMORY,
    OX_FACTS_ALL = (1 << 9) - 1
};

const char *ox_fact_name(enum ox_fact fact); /* of one: "commit-due" */

/* `due`: whether the carried update of the task's unit is; false for a task of no unit. */
static inline bool ox_task_works(const struct ox_task *task, uint32_t facts, bool due) {
    const bool wanted = due || (facts & OX_FACT_OWN_WORK) != 0;
    const uint32_t of_unit = (due ? OX_FACT_DUE : 0u) | (wanted ? OX_FACT_WANTED : 0u);
    return (task->when & ~(facts | of_unit)) == 0;
}

/* What the step before has left to be carried. A case is two parts: this, and what the step does itself. */
enum ox_pending_kind {
    OX_PENDING_NOTHING,         /* the first step, or what was pending has been finished */
    OX_PENDING_REST,            /* the last units were updated early, within the open transaction */
    OX_PENDING_ALL,             /* no unit was */
    OX_PENDING_AGAIN,           /* some were, but the step was clipped: all units once more, from the last commit */
    OX_PENDING_IN_MEMORY,       /* all units, and nothing is written */
    OX_PENDING_PART,            /* REST or ALL, stopped part of the way: any units, the transaction is open */
    OX_PENDING_PART_AGAIN,      /* AGAIN, likewise */
    OX_PENDING_PART_IN_MEMORY,  /* IN_MEMORY, likewise */
    OX_PENDING_COUNT
};

enum ox_own_kind {
    OX_OWN_SPECULATES, /* a step that updates its last units in backward */
    OX_OWN_WAITS,      /* a step that updates no unit before its norm is known */
    OX_OWN_IN_MEMORY,  /* the same, and its update is not written */
    OX_OWN_EVALUATES,  /* an evaluation */
    OX_OWN_NOTHING,    /* what is pending is finished alone */
    OX_OWN_COUNT
};

enum ox_due { OX_DUE_NONE, OX_DUE_NOT_SPECULATIVE, OX_DUE_ALL, OX_DUE_ANY };

struct ox_pending_case {
    const char *name; /* for messages: "nothing is pending" */
    uint32_t facts;
    enum ox_due due;  /* units whose carried update has still to run */
};
extern const struct ox_pending_case ox_pending_cases[OX_PENDING_COUNT];

struct ox_own_case {
    const char *name; /* "the step speculates" */
    uint32_t facts;
};
extern const struct ox_own_case ox_own_cases[OX_OWN_COUNT];

/* The usual case: the one that a plan's own bytes and traffic are of. Updates of units on the drives' side are written;
 * no norm asked for clipping. */
struct ox_step_case {
    enum ox_pending_kind pending;
    enum ox_own_kind own;
};
static inline struct ox_step_case ox_usual_case(const struct ox_plan_input *input, enum ox_plan_kind kind) {
    const bool speculates = input->placement.speculative_units > 0;
    const enum ox_own_kind own = kind != OX_PLAN_TRAIN ? OX_OWN_EVALUATES
                                 : speculates          ? OX_OWN_SPECULATES : OX_OWN_WAITS;
    const enum ox_pending_kind pending = !input->placement.overlap || kind == OX_PLAN_EVAL ? OX_PENDING_NOTHING
                                    : speculates                                      ? OX_PENDING_REST
                                    : input->budget.nvme_bytes > 0 ? OX_PENDING_ALL : OX_PENDING_IN_MEMORY;
    return (struct ox_step_case){pending, own};
}

static inline uint32_t ox_case_facts(struct ox_step_case at) {
    return ox_pending_cases[at.pending].facts | ox_own_cases[at.own].facts;
}

/* Whether a unit's carried update is due in a case that says which are; false for no unit. */
static inline bool ox_case_is_due(struct ox_step_case at, const struct ox_plan_input *input, uint32_t unit_idx) {
    const enum ox_due due = ox_pending_cases[at.pending].due;
    return unit_idx < input->model.unit_count &&
           (due == OX_DUE_ALL || (due == OX_DUE_NOT_SPECULATIVE && !ox_plan_is_speculative(input, unit_idx)));
}

#ifdef __cplusplus
}
#endif
#endif
