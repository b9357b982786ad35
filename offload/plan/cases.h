/* What a step meets when it begins, and which of its tasks then do their work.
 *
 * One list of tasks serves every step of a run. Most tasks always work. Tasks of the optimizer depend on how the step
 * before ended and on what this one may assume. Each task names the facts that it requires (ox_task.when). The executor
 * determines the facts of a step once, when it begins, and compares masks from then on. The proof follows the list in
 * every case that the tables here allow, the simulator in the usual case. */
#ifndef OX_OFFLOAD_CASES_H
#define OX_OFFLOAD_CASES_H

#include "offload/plan/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A task works if all facts of its mask hold; else it does nothing when its lane comes to it. The last two are facts
 * about the task's unit, the others about the step. */
enum ox_fact {
    OX_FACT_OWN_WORK = 1 << 0,    /* a forward follows: the step does more than finish a pending update */
    OX_FACT_SPECULATES = 1 << 1,  /* the last units are updated in the step's own backward */
    OX_FACT_COMMITS = 1 << 2,     /* the step's own update is written to the store */
    OX_FACT_BEGIN_DUE = 1 << 3,   /* the carried update's transaction has still to begin */
    OX_FACT_COMMIT_DUE = 1 << 4,  /* that transaction has still to be committed */
    OX_FACT_COUNTS_DUE = 1 << 5,  /* counts of carried updates on the device have still to be copied */
    OX_FACT_FROM_MEMORY = 1 << 6, /* carried updates take planes from where they live, not from the last commit */
    OX_FACT_DUE = 1 << 7,         /* the unit's carried update has still to run */
    OX_FACT_WANTED = 1 << 8,      /* the unit's update is due, or a forward needs its planes */
    OX_FACTS_OF_UNIT = OX_FACT_DUE | OX_FACT_WANTED,
    OX_FACTS_OF_PENDING = OX_FACT_BEGIN_DUE | OX_FACT_COMMIT_DUE | OX_FACT_FROM_MEMORY,
    OX_FACTS_ALL = (1 << 9) - 1
};

const char *ox_fact_name(enum ox_fact fact); /* such as "commit-due" */

/* Whether a task works. `due`: the carried update of its unit has still to run; false for a task without unit. */
static inline bool ox_task_works(const struct ox_task *task, uint32_t facts, bool due) {
    const bool wanted = due || (facts & OX_FACT_OWN_WORK) != 0;
    const uint32_t of_unit = (due ? OX_FACT_DUE : 0u) | (wanted ? OX_FACT_WANTED : 0u);
    return (task->when & ~(facts | of_unit)) == 0;
}

/* What the step before has left to be carried. A case has two parts: this, and what the step does itself. */
enum ox_pending_kind {
    OX_PENDING_NOTHING,         /* the first step, or what was pending has been finished */
    OX_PENDING_REST,            /* all but the speculative units; the transaction is open */
    OX_PENDING_ALL,             /* all units; none was updated speculatively */
    OX_PENDING_AGAIN,           /* all units, from the last commit: the step was clipped after speculative updates */
    OX_PENDING_IN_MEMORY,       /* all units; nothing is written */
    OX_PENDING_PART,            /* REST or ALL, interrupted: any units; the transaction is open */
    OX_PENDING_PART_AGAIN,      /* AGAIN, interrupted */
    OX_PENDING_PART_IN_MEMORY,  /* IN_MEMORY, interrupted */
    OX_PENDING_COUNT
};

enum ox_own_kind {
    OX_OWN_SPECULATES, /* a step that updates its last units in backward, before its norm is known */
    OX_OWN_WAITS,      /* a step that updates no unit before its norm is known */
    OX_OWN_IN_MEMORY,  /* a step that waits likewise, and whose update is not written */
    OX_OWN_EVALUATES,  /* an evaluation */
    OX_OWN_NOTHING,    /* a pending update is finished, nothing else */
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

/* The usual case, for which a plan counts bytes and traffic: with a store the update is written, and the norm required
 * no clipping. */
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

/* Whether a unit's carried update is due in this case, which may not be OX_DUE_ANY; false for OX_NONE. */
static inline bool ox_case_is_due(struct ox_step_case at, const struct ox_plan_input *input, uint32_t unit_idx) {
    const enum ox_due due = ox_pending_cases[at.pending].due;
    return unit_idx < input->model.unit_count &&
           (due == OX_DUE_ALL || (due == OX_DUE_NOT_SPECULATIVE && !ox_plan_is_speculative(input, unit_idx)));
}

#ifdef __cplusplus
}
#endif
#endif
