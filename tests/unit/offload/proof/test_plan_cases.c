/* The proof follows a plan in every case that its steps can meet: a condition that is wrong in a case which can occur
 * is refused. Every bit of every task's mask is flipped, in a sample of plans, and in `make test` of every third task;
 * those flips that let no task work or rest where it did not before change nothing and are left out. The cases are
 * listed here once more, as facts, and the proof must cover these and no others. */
#include "offload/plan/cases.h"
#include "offload/proof/proof.h"
#include "tests/kit/plan/plan_sample.h"
#include "tests/kit/test.h"

#include <string.h>

enum { SAMPLES = 320, EVERY = 10, BITS = 16, QUICK = 6 };

struct tally {
    uint64_t plans, overlapped, made, found, harmless;
    uint64_t speculative, in_memory, beside, device, one_generation; /* of the plans, those with such updates or
                                                                        stores */
    uint64_t saved, ahead, ranks; /* that save what is replaced, or hi alone, or are for one of several ranks */
};

/* ---- the cases ------------------------------------------------------------------------------------- */

enum due { DUE_NONE, DUE_NOT_SPECULATIVE, DUE_ALL, DUE_ANY };

enum pending {
    NOTHING, REST, ALL, AGAIN, IN_MEMORY, PART, PART_AGAIN, PART_IN_MEMORY, REST_IN_MEMORY, AGAIN_IN_MEMORY,
    PART_AGAIN_IN_MEMORY, PENDING_COUNT
};
static const struct {
    uint32_t facts;
    enum due due;
} pending_cases[PENDING_COUNT] = {
    [NOTHING] = {OX_FACT_FROM_MEMORY, DUE_NONE},
    [REST] = {OX_FACT_FROM_MEMORY | OX_FACT_COMMIT_DUE | OX_FACT_COUNTS_DUE, DUE_NOT_SPECULATIVE},
    [ALL] = {OX_FACT_FROM_MEMORY | OX_FACT_BEGIN_DUE | OX_FACT_COMMIT_DUE | OX_FACT_COUNTS_DUE, DUE_ALL},
    [AGAIN] = {OX_FACT_COMMIT_DUE | OX_FACT_COUNTS_DUE, DUE_ALL},
    [IN_MEMORY] = {OX_FACT_FROM_MEMORY | OX_FACT_COUNTS_DUE, DUE_ALL},
    [PART] = {OX_FACT_FROM_MEMORY | OX_FACT_COMMIT_DUE | OX_FACT_COUNTS_DUE, DUE_ANY},
    [PART_AGAIN] = {OX_FACT_COMMIT_DUE | OX_FACT_COUNTS_DUE, DUE_ANY},
    [PART_IN_MEMORY] = {OX_FACT_FROM_MEMORY | OX_FACT_COUNTS_DUE, DUE_ANY},
    [REST_IN_MEMORY] = {OX_FACT_FROM_MEMORY | OX_FACT_COUNTS_DUE, DUE_NOT_SPECULATIVE},
    [AGAIN_IN_MEMORY] = {OX_FACT_COUNTS_DUE, DUE_ALL},
    [PART_AGAIN_IN_MEMORY] = {OX_FACT_COUNTS_DUE, DUE_ANY},
};

enum own { SPECULATES, SPECULATES_IN_MEMORY, WAITS, STAYS, EVALUATES, FINISHES, OWN_COUNT };
static const uint32_t own_facts[OWN_COUNT] = {
    [SPECULATES] = OX_FACT_OWN_WORK | OX_FACT_COMMITS | OX_FACT_SPECULATES,
    [SPECULATES_IN_MEMORY] = OX_FACT_OWN_WORK | OX_FACT_SPECULATES,
    [WAITS] = OX_FACT_OWN_WORK | OX_FACT_COMMITS,
    [STAYS] = OX_FACT_OWN_WORK,
    [EVALUATES] = OX_FACT_OWN_WORK,
    [FINISHES] = 0,
};

/* A case: what is pending, and what the step does itself. */
struct meets {
    enum pending pending;
    enum own own;
};

/* Whether memory keeps what a speculative update of the unit replaces; and whether the unit has such updates: drives or
 * memory keep it. */
static bool is_saved(const struct ox_plan_input *in, uint32_t unit_idx) {
    const struct ox_homes *const homes = &in->table->shards[unit_idx].homes;
    return in->placement.saves_replaced && homes->state == OX_TIER_HOST && homes->weights != OX_TIER_NVME;
}
static bool is_speculative(const struct ox_plan_input *in, uint32_t unit_idx) {
    const uint64_t unit_count = in->model.update_count, count = in->placement.speculative_units;
    const uint64_t after = unit_count - 1 - in->model.units[unit_idx].update_idx;
    const bool spread =
        after == 0 ? count > 0 : after * count / unit_count > (after - 1) * count / unit_count;
    const bool named = in->placement.speculative_spread ? spread : after < count;
    return in->model.units[unit_idx].trained && named && in->table->shards[unit_idx].homes.state != OX_TIER_DEVICE &&
           (in->budget.nvme_bytes > 0 || is_saved(in, unit_idx));
}

/* Whether such an update makes hi alone, so that the state is due in the next step. */
static bool is_ahead(const struct ox_plan_input *in, uint32_t unit_idx) {
    const bool may = in->placement.weights_ahead && in->budget.nvme_bytes == 0 && !in->model.precision->lo_travels;
    return may && is_speculative(in, unit_idx) && in->table->shards[unit_idx].homes.weights == OX_TIER_HOST;
}

/* Whether planes live on drives, or a speculative update may have to be taken back to them, so that an update which
 * stays uncommitted is written like any other. */
static bool writes_when_it_stays(const struct ox_plan_input *in) {
    bool any = false;
    for (uint32_t i = 0; i < in->model.unit_count; i++) {
        const struct ox_homes *const homes = &in->table->shards[i].homes;
        const bool there = homes->weights == OX_TIER_NVME || homes->state == OX_TIER_NVME;
        any = any || (there && in->model.units[i].trained) ||
              (in->placement.overlap && is_speculative(in, i) && !is_saved(in, i));
    }
    return any;
}

/* Whether all updates stay in memory until a commit between steps, because state lives on the device. */
static bool all_stay(const struct ox_plan_input *in) {
    bool any = false;
    for (uint32_t i = 0; i < in->model.unit_count; i++) {
        any = any || (in->model.units[i].trained && in->table->shards[i].homes.state == OX_TIER_DEVICE);
    }
    return any && in->budget.nvme_bytes > 0 && !in->model.eval_only && !writes_when_it_stays(in);
}

/* Whether a step of this plan can meet the case. */
static bool occurs(const struct ox_plan *plan, const struct ox_plan_input *in, struct meets at) {
    const bool carries = in->placement.overlap && plan->kind != OX_PLAN_EVAL, train = plan->kind == OX_PLAN_TRAIN;
    const bool early = in->placement.speculative_units > 0, store = in->budget.nvme_bytes > 0;
    const bool stays = !store || (ox_plan_may_stay(in) && !writes_when_it_stays(in));
    const bool nothing = at.pending == NOTHING, written = store && !all_stay(in);
    const bool again = at.pending == AGAIN || at.pending == PART_AGAIN;
    const bool early_in_memory =
        at.pending == REST_IN_MEMORY || at.pending == AGAIN_IN_MEMORY || at.pending == PART_AGAIN_IN_MEMORY;
    const bool in_memory = at.pending == IN_MEMORY || at.pending == PART_IN_MEMORY;
    const bool pending = nothing ? plan->kind != OX_PLAN_EVAL_AFTER_STEP
                                 : carries && (again || at.pending == REST ? early && written
                                               : early_in_memory           ? early && stays
                                               : in_memory                 ? stays : written);
    switch (at.own) {
    case SPECULATES:
        return pending && train && carries && early && !all_stay(in);
    case SPECULATES_IN_MEMORY:
        return pending && train && carries && early && store && stays;
    case WAITS:
        return pending && train && !all_stay(in);
    case STAYS:
        return pending && train && store && stays;
    case EVALUATES:
        return pending && !train;
    default:
        return pending && train && !nothing;
    }
}

static uint32_t facts_of(const struct ox_plan_input *in, struct meets at) {
    const uint32_t facts = pending_cases[at.pending].facts | own_facts[at.own];
    return in->budget.nvme_bytes > 0 ? facts : facts & ~(uint32_t)OX_FACT_COMMITS;
}

static enum ox_due due_of(const struct ox_plan_input *in, enum due due, uint32_t unit_idx) {
    if (!in->model.units[unit_idx].trained) {
        return OX_DUE_NOTHING;
    }
    if (due == DUE_ALL || (due == DUE_NOT_SPECULATIVE && !is_speculative(in, unit_idx))) {
        return OX_DUE_ALL;
    }
    return due == DUE_NOT_SPECULATIVE && is_ahead(in, unit_idx) ? OX_DUE_STATE : OX_DUE_NOTHING;
}

static bool is_again(enum pending pending) {
    return pending == PART_AGAIN || pending == PART_AGAIN_IN_MEMORY;
}

/* Whether an update that was stopped can leave these units: a part of all, or of what speculative updates leave. */
static bool is_part(const struct ox_plan_input *in, enum pending pending, const uint8_t *due) {
    bool of_all = true, of_rest = !is_again(pending);
    for (uint32_t i = 0; i < in->model.unit_count; i++) {
        of_all = of_all && due[i] != OX_DUE_STATE;
        of_rest = of_rest && (due[i] == OX_DUE_NOTHING || due[i] == due_of(in, DUE_NOT_SPECULATIVE, i));
    }
    return of_all || of_rest;
}

/* ---- the cases of the proof ------------------------------------------------------------------------ */

/* Ways to mark units as due: none, all, all that speculative updates leave, every other one, the first, the last in the
 * pass; of what they leave every other one, the state of all, the whole of every other one beside it. */
enum { MARKINGS = 9 };
static void mark(const struct ox_plan_input *in, uint32_t nth, uint8_t due[PLAN_SAMPLE_UNITS_MAX]) {
    for (uint32_t i = 0; i < in->model.unit_count; i++) {
        const bool first = i == in->model.order[0], last = i == in->model.order[in->model.unit_count - 1];
        const enum ox_due rest = due_of(in, DUE_NOT_SPECULATIVE, i);
        const enum ox_due marks[MARKINGS] = {
            OX_DUE_NOTHING, OX_DUE_ALL, rest, i % 2 == 0 ? OX_DUE_ALL : OX_DUE_NOTHING,
            first ? OX_DUE_ALL : OX_DUE_NOTHING, last ? OX_DUE_ALL : OX_DUE_NOTHING,
            i % 2 == 0 ? rest : OX_DUE_NOTHING, OX_DUE_STATE, i % 2 == 0 ? rest : OX_DUE_ALL};
        due[i] = (uint8_t)(in->model.units[i].trained ? marks[nth] : OX_DUE_NOTHING);
    }
}

static bool is_listed(const struct ox_plan *plan, const struct ox_plan_input *in, uint32_t facts,
                      const uint8_t *due) {
    bool listed = false;
    for (int nth = 0; nth < PENDING_COUNT * OWN_COUNT && !listed; nth++) {
        const struct meets at = {(enum pending)(nth / OWN_COUNT), (enum own)(nth % OWN_COUNT)};
        const enum due expected = pending_cases[at.pending].due;
        listed = occurs(plan, in, at) && facts_of(in, at) == facts &&
                 (expected != DUE_ANY || is_part(in, at.pending, due));
        for (uint32_t i = 0; i < in->model.unit_count && expected != DUE_ANY && listed; i++) {
            listed = due_of(in, expected, i) == due[i];
        }
    }
    return listed;
}

/* The proof covers what is listed here and nothing else. */
static void check_covered(const struct ox_plan *plan, const struct ox_plan_input *in) {
    uint8_t due[PLAN_SAMPLE_UNITS_MAX];
    for (uint32_t facts = 0; facts < OX_FACT_DUE; facts++) {
        for (uint32_t nth = 0; nth < MARKINGS; nth++) {
            mark(in, nth, due);
            const bool covered = ox_proof_covers(plan, in, facts, due), listed = is_listed(plan, in, facts, due);
            if (covered != listed) {
                printf("facts %#x, units marked in way %u: %s\n", facts, nth, covered ? "not listed" : "not covered");
            }
            CHECK(covered == listed);
        }
    }
}

/* The usual case of builder and simulator is one that the proof covers, in both orders of a run; if it stays
 * uncommitted and all planes live in memory, it is one that writes nothing. */
static void check_usual(const struct ox_plan *plan, const struct ox_plan_input *in) {
    const uint32_t of_store = OX_FACT_COMMITS | OX_FACT_BEGIN_DUE | OX_FACT_COMMIT_DUE;
    uint8_t due[PLAN_SAMPLE_UNITS_MAX];
    for (int way = 0; way < 4; way++) {
        const bool stays = way & 1, holds = way >> 1;
        if (stays && !ox_plan_may_stay(in)) {
            continue;
        }
        const struct ox_step_case usual =
            ox_usual_case(in, plan->kind, (struct ox_step_ways){.stays = stays, .holds = holds});
        CHECK(!holds || (usual.facts & OX_FACT_SPECULATES) == 0);
        for (uint32_t i = 0; i < in->model.unit_count; i++) {
            due[i] = (uint8_t)ox_case_due(usual, plan, i);
        }
        CHECK(ox_proof_covers(plan, in, usual.facts, due));
        CHECK(!stays || writes_when_it_stays(in) || (usual.facts & of_store) == 0);
    }
}

/* ---- wrong conditions ------------------------------------------------------------------------------ */

static bool works(const struct ox_task *task, uint32_t facts, enum ox_due due) {
    static const uint32_t of_unit[] = {
        [OX_DUE_NOTHING] = 0, [OX_DUE_ALL] = OX_FACT_DUE | OX_FACT_WANTED, [OX_DUE_STATE] = OX_FACT_STATE_DUE};
    const uint32_t wanted = (facts & OX_FACT_OWN_WORK) != 0 ? OX_FACT_WANTED : 0u;
    return (task->when & ~(facts | of_unit[due] | wanted)) == 0;
}

/* Whether the two tasks work differently in a case. */
static bool differs(const struct ox_plan_input *in, const struct ox_task *a, const struct ox_task *b, struct meets at,
                    bool of_unit) {
    const enum due expected = pending_cases[at.pending].due;
    const uint32_t facts = facts_of(in, at);
    bool differ = false;
    for (int nth = 0; nth <= OX_DUE_STATE; nth++) {
        const enum ox_due due = (enum ox_due)nth;
        const bool occurs = !of_unit              ? due == OX_DUE_NOTHING
                            : expected != DUE_ANY ? due == due_of(in, expected, a->unit_idx)
                                                  : due != OX_DUE_STATE ||
                                                        (is_ahead(in, a->unit_idx) && !is_again(at.pending));
        differ = differ || (occurs && works(a, facts, due) != works(b, facts, due));
    }
    return differ;
}

/* Whether the two tasks work in different cases. A case that leaves open which units are due stands for both. */
static bool changes_a_case(const struct plan_sample *s, const struct ox_plan *plan, const struct ox_task *a,
                           const struct ox_task *b) {
    const bool of_unit = a->unit_idx < plan->unit_count;
    for (int nth = 0; nth < PENDING_COUNT * OWN_COUNT; nth++) {
        const struct meets at = {(enum pending)(nth / OWN_COUNT), (enum own)(nth % OWN_COUNT)};
        if (occurs(plan, &s->in, at) && differs(&s->in, a, b, at, of_unit)) {
            return true;
        }
    }
    return false;
}

static void flip_masks(const struct plan_sample *s, struct ox_plan *plan, struct tally *tally) {
    const unsigned stride = test_stride(QUICK);
    for (uint32_t i = (uint32_t)tally->plans % stride; i < plan->task_count; i += stride) {
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

static void count_plan(const struct plan_sample *s, const struct ox_plan *plan, struct tally *tally) {
    tally->plans++;
    tally->overlapped += s->in.placement.overlap;
    tally->speculative += s->in.placement.speculative_units > 0;
    tally->saved += s->in.placement.saves_replaced;
    for (uint32_t i = 0; i < s->in.model.unit_count; i++) {
        if (is_ahead(&s->in, i)) {
            tally->ahead++;
            break;
        }
    }
    tally->in_memory += ox_plan_may_stay(&s->in) && !writes_when_it_stays(&s->in);
    tally->beside += ox_plan_may_stay(&s->in) && writes_when_it_stays(&s->in);
    tally->device += plan->counts_buf != OX_NONE;
    tally->one_generation += s->in.budget.nvme_bytes > 0 && s->in.budget.generations == 1;
    tally->ranks += s->in.ranks.count > 1;
}

int main(void) {
    struct tally tally = {0};
    for (uint64_t seed = 1; seed <= SAMPLES; seed++) {
        static struct plan_sample s;
        if (seed % EVERY != 0 && !test_takes((unsigned)seed, 4)) {
            continue;
        }
        plan_sample_draw(&s, seed);
        if (seed % (2 * EVERY) == 0) { /* every other sample whose conditions are flipped */
            plan_sample_divide(&s, seed);
        }
        struct ox_plans plans = {0};
        s.request.may_stay = seed % 2 == 0;
        const enum ox_status status = ox_placement_choose(&s.in, &s.table, &s.request, &s.setup, &plans);
        struct ox_plan *const all[] = {plans.train, plans.eval, plans.eval_after_step};
        for (int i = 0; i < 3 && status == OX_OK && all[i] != NULL; i++) {
            check_masks(all[i]);
            check_covered(all[i], &s.in);
            check_usual(all[i], &s.in);
            if (seed % EVERY == 0) {
                flip_masks(&s, all[i], &tally);
                count_plan(&s, all[i], &tally);
            }
        }
        if (status != OX_OK && strstr(ox_error_text(), "does not fit") == NULL) {
            printf("seed %llu: %s\n", (unsigned long long)seed, ox_error_text());
            CHECK(status == OX_E_CONFIG && strstr(ox_error_text(), "does not fit") != NULL);
        }
        ox_plans_close(&plans);
        ox_shard_table_close(&s.table);
    }
    printf("%llu of %llu wrong conditions found in %llu plans (%llu overlap, %llu update in backward, %llu may stay in "
           "memory, %llu beside the last commit, %llu update on the device, %llu have one generation, %llu save "
           "what is replaced, %llu hi alone, %llu are of ranks); %llu change no case\n",
           (unsigned long long)tally.found, (unsigned long long)tally.made, (unsigned long long)tally.plans,
           (unsigned long long)tally.overlapped, (unsigned long long)tally.speculative,
           (unsigned long long)tally.in_memory, (unsigned long long)tally.beside, (unsigned long long)tally.device,
           (unsigned long long)tally.one_generation, (unsigned long long)tally.saved, (unsigned long long)tally.ahead,
           (unsigned long long)tally.ranks,
           (unsigned long long)tally.harmless);
    CHECK(tally.found == tally.made && tally.made > 10000 / test_stride(QUICK));
    CHECK(tally.overlapped > 10 && tally.speculative > 5 && tally.in_memory > 2 && tally.beside > 1 &&
          tally.device > 1);
    CHECK(tally.one_generation > 5 && tally.saved > 2 && tally.ahead > 2 && tally.ranks > 10);
    return test_end();
}
