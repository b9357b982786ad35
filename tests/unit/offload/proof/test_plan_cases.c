/* The proof follows a plan in every case that its steps can meet: a condition that is wrong in a case which can occur
 * is refused. Every bit of every task's mask is flipped, in a sample of plans; those flips that let no task work or
 * rest where it did not before change nothing and are left out. */
#include "offload/plan/cases.h"
#include "offload/proof/proof.h"
#include "tests/kit/plan/plan_sample.h"
#include "tests/kit/test.h"

#include <string.h>

enum { SAMPLES = 250, EVERY = 10, BITS = 16 };

struct tally {
    uint64_t plans, overlapped, made, found, harmless;
    uint64_t speculative, in_memory, device; /* of the plans, those with such updates */
};

/* Whether a step of this plan can meet the case: what is pending before it, and what it does itself. */
static bool occurs(const struct ox_plan *plan, const struct ox_plan_input *in, struct ox_step_case at) {
    const bool carries = in->placement.overlap && plan->kind != OX_PLAN_EVAL, train = plan->kind == OX_PLAN_TRAIN;
    const bool early = in->placement.speculative_units > 0, store = in->budget.nvme_bytes > 0;
    const bool stays = !store || ox_plan_may_stay_in_memory(in);
    const bool nothing = at.pending == OX_PENDING_NOTHING;
    const bool again = at.pending == OX_PENDING_AGAIN || at.pending == OX_PENDING_PART_AGAIN;
    const bool in_memory = at.pending == OX_PENDING_IN_MEMORY || at.pending == OX_PENDING_PART_IN_MEMORY;
    const bool pending = nothing ? plan->kind != OX_PLAN_EVAL_AFTER_STEP
                                 : carries && (again || at.pending == OX_PENDING_REST ? early
                                               : in_memory                            ? stays : store);
    switch (at.own) {
    case OX_OWN_SPECULATES:
        return pending && train && carries && early;
    case OX_OWN_WAITS:
        return pending && train;
    case OX_OWN_IN_MEMORY:
        return pending && train && store && stays;
    case OX_OWN_EVALUATES:
        return pending && !train;
    default:
        return pending && train && !nothing;
    }
}

static bool differs(const struct ox_task *a, const struct ox_task *b, uint32_t facts, bool due) {
    return ox_task_works(a, facts, due) != ox_task_works(b, facts, due);
}

/* Whether the two tasks work in different cases. A case that leaves open which units are due stands for both. */
static bool changes_a_case(const struct plan_sample *s, const struct ox_plan *plan, const struct ox_task *a,
                           const struct ox_task *b) {
    const bool of_unit = a->unit_idx < plan->unit_count;
    for (int pending = 0; pending < OX_PENDING_COUNT; pending++) {
        for (int own = 0; own < OX_OWN_COUNT; own++) {
            const struct ox_step_case at = {(enum ox_pending_kind)pending, (enum ox_own_kind)own};
            const bool any = ox_pending_cases[pending].due == OX_DUE_ANY;
            const bool due = of_unit && (any || ox_case_is_due(at, &s->in, a->unit_idx));
            if (occurs(plan, &s->in, at) && (differs(a, b, ox_case_facts(at), due) ||
                                             (any && differs(a, b, ox_case_facts(at), false)))) {
                return true;
            }
        }
    }
    return false;
}

static void flip_masks(const struct plan_sample *s, struct ox_plan *plan, struct tally *tally) {
    for (uint32_t i = 0; i < plan->task_count; i++) {
        struct ox_task *const task = &plan->tasks[i];
        const struct ox_task kept = *task;
        for (int bit = 0; bit < BITS; bit++) {
            task->when = (uint16_t)(kept.when ^ (1u << bit));
            if (!changes_a_case(s, plan, &kept, task)) {
                tally->harmless++;
            } else if (ox_proof_check(plan, &s->in) != OX_OK) {
                tally->found++;
                tally->made++;
            } else {
                tally->made++;
                printf("accepted: task %u (%s%s, unit %d) asks for %#x instead of %#x\n", i,
                       ox_task_name(&kept), kept.carried ? "'" : "", (int)kept.unit_idx,
                       task->when, kept.when);
            }
        }
        *task = kept;
    }
    REQUIRE_OK(ox_proof_check(plan, &s->in));
}

/* Every task of a carried update asks for something that not every step has; and no task asks for what cannot be. */
static void check_masks(const struct ox_plan *plan) {
    for (uint32_t i = 0; i < plan->task_count; i++) {
        const struct ox_task *const task = &plan->tasks[i];
        CHECK(task->when != 0 && (task->when & ~OX_FACTS_ALL) == 0);
        CHECK(task->carried == ((task->when & OX_FACT_OWN_WORK) == 0));
    }
}

int main(void) {
    struct tally tally = {0};
    for (uint64_t seed = 1; seed <= SAMPLES; seed++) {
        struct plan_sample s;
        plan_sample_draw(&s, seed);
        struct ox_plans plans = {0};
        s.request.may_stay_in_memory = seed % 2 == 0;
        if (ox_placement_choose(&s.in, &s.table, &s.request, &s.setup, &plans) == OX_OK) {
            struct ox_plan *const all[] = {plans.train, plans.eval, plans.eval_after_step};
            for (int i = 0; i < 3 && all[i] != NULL; i++) {
                check_masks(all[i]);
                if (seed % EVERY == 0) {
                    flip_masks(&s, all[i], &tally);
                    tally.plans++;
                    tally.overlapped += s.in.placement.overlap;
                    tally.speculative += s.in.placement.speculative_units > 0;
                    tally.in_memory += ox_plan_may_stay_in_memory(&s.in);
                    tally.device += all[i]->counts_buf != OX_NONE;
                }
            }
        }
        ox_plans_close(&plans);
        ox_shard_table_close(&s.table);
    }
    printf("%llu of %llu wrong conditions found in %llu plans (%llu overlap, %llu update in backward, %llu may stay in "
           "memory, %llu update on the device); %llu change no case\n", (unsigned long long)tally.found,
           (unsigned long long)tally.made, (unsigned long long)tally.plans, (unsigned long long)tally.overlapped,
           (unsigned long long)tally.speculative, (unsigned long long)tally.in_memory, (unsigned long long)tally.device,
           (unsigned long long)tally.harmless);
    CHECK(tally.found == tally.made && tally.made > 10000);
    CHECK(tally.overlapped > 10 && tally.speculative > 5 && tally.in_memory > 2 && tally.device > 1);
    return test_end();
}
