/* When a task works, and the usual case: the step for which a plan counts bytes and traffic, and which the simulator
 * prices. Builder, simulator and executor share these rules. The proof has its own (offload/proof/cases.h), which say
 * what every step can meet. */
#ifndef OX_OFFLOAD_CASES_H
#define OX_OFFLOAD_CASES_H

#include "offload/plan/rules.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether a task works. `due`: what of its unit the carried update has still to make; without a unit nothing. */
static inline bool ox_task_works(const struct ox_task *task, uint32_t facts, enum ox_due due) {
    const bool wanted = due == OX_DUE_ALL || (facts & OX_FACT_OWN_WORK) != 0;
    const uint32_t of_unit = (due == OX_DUE_ALL ? OX_FACT_DUE : due == OX_DUE_STATE ? OX_FACT_STATE_DUE : 0u) |
                             (wanted ? OX_FACT_WANTED : 0u);
    return (task->when & ~(facts | of_unit)) == 0;
}

struct ox_step_case {
    uint32_t facts; /* enum ox_fact, those of the step */
    bool carries;   /* the update of the step before is pending */
    bool holds;     /* of all units, because that step did not speculate */
};

/* What may differ from the usual case in this step and the one before. */
struct ox_step_ways {
    bool stays; /* they are not committed */
    bool holds; /* they do not speculate, though they may: the run is in the held order */
};

/* The usual case: updates are written if there is a store, steps speculate if they may, and the norm required no
 * clipping; or that which differs from it in `ways`. */
struct ox_step_case ox_usual_case(const struct ox_plan_input *input, enum ox_plan_kind kind, struct ox_step_ways ways);

/* What of a unit is due in the usual case; nothing for OX_NONE. */
enum ox_due ox_case_due(struct ox_step_case usual, const struct ox_plan *plan, uint32_t unit_idx);
/* Whether a task that updates on the host has something to update, and does not only bring planes to forward. */
static inline bool ox_task_has_due(const struct ox_task *task, enum ox_due due) {
    return !task->carried || due == ((task->when & OX_FACT_STATE_DUE) != 0 ? OX_DUE_STATE : OX_DUE_ALL);
}

#ifdef __cplusplus
}
#endif
#endif
