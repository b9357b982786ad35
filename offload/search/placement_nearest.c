/* How little more memory suffices where nothing fits. The candidate that exceeds the budgets least, with all planes in
 * their farthest homes, tells budgets that suffice; real searches, which move planes to where there is room, then find
 * out how much of each is needed. */
#include "offload/search/placement_internal.h"

#include "base/bytes.h"

#include <stdlib.h>
#include <string.h>

/* Searches for one tier, and effort of all together, in tasks built. */
enum { PROBES_MAX = 12 };
static const uint64_t EFFORT_ALL = 24000000;

struct nearest {
    struct ox_search *s;
    struct ox_plan_budget given;
    uint64_t drive_bytes; /* where there is one drive with an allowance */
    uint64_t effort;
    struct ox_homes *homes; /* of the last plan that was found */
    struct ox_placement placement;
    uint32_t generations;
    enum ox_status status;
};

/* Whether drives have one allowance. Several would have to divide what is looked for. */
static bool is_one(const struct ox_plan_budget *budget) {
    return budget->nvme_bytes > 0 && (budget->drive_bytes == NULL || budget->drive_count == 1);
}

/* Gives the search these budgets, where they are above the given ones. */
static void give(struct nearest *n, const uint64_t bytes[OX_TIER_COUNT]) {
    struct ox_plan_budget *const budget = &n->s->in->budget;
    *budget = n->given;
    budget->device_bytes = ox_max_u64(budget->device_bytes, bytes[OX_TIER_DEVICE]);
    budget->host_bytes = ox_max_u64(budget->host_bytes, bytes[OX_TIER_HOST]);
    if (bytes[OX_TIER_NVME] > budget->nvme_bytes && is_one(budget)) {
        n->drive_bytes = budget->nvme_bytes = bytes[OX_TIER_NVME];
        budget->drive_bytes = budget->drive_bytes != NULL ? &n->drive_bytes : NULL;
    }
}

/* Forgets what was found with other budgets. */
static void begin_again(struct nearest *n) {
    struct ox_search *const s = n->s;
    ox_built_close(&s->built);
    n->status = ox_built_open(s->table->unit_count, &s->built);
    memset(s->tried_at, 0, sizeof s->tried_at);
    s->best = (struct ox_tried){.fits = false};
    s->tried_count = s->drives_answer_count = s->tiers_begun = s->held = 0;
    s->effort = 0;
}

/* Whether a search finds a plan within these budgets; keeps it then. */
static bool fits_in(struct nearest *n, const uint64_t bytes[OX_TIER_COUNT]) {
    struct ox_search *const s = n->s;
    begin_again(n);
    if (n->status != OX_OK) {
        return false;
    }
    give(n, bytes);
    s->first = true;
    ox_search_run(s);
    s->first = false;
    n->effort += s->effort;
    if (s->best.fits) {
        memcpy(n->homes, s->best_homes, s->table->unit_count * sizeof *n->homes);
        n->placement = s->best.made.placement;
        n->generations = s->best.made.generations;
    }
    return s->best.fits;
}

/* Lowers one tier's budget by bisection, down to the given one, with which nothing need be named. */
static void lower(struct nearest *n, enum ox_tier tier, uint64_t named[OX_TIER_COUNT]) {
    uint64_t low = ox_search_budget(n->s, tier), high = named[tier];
    named[tier] = ox_min_u64(low, high);
    if (high <= low || fits_in(n, named)) {
        return;
    }
    for (uint32_t i = 0; i < PROBES_MAX && high - low > ox_max_u64(high / 128, OX_MIB) && n->effort < EFFORT_ALL; i++) {
        named[tier] = ox_align_up(low + (high - low) / 2, OX_MIB);
        *(fits_in(n, named) ? &high : &low) = named[tier];
    }
    named[tier] = high;
}

/* Leaves the plan that was found last, built as the refusal shows it. */
static enum ox_status leave(struct nearest *n) {
    struct ox_search *const s = n->s;
    begin_again(n);
    s->in->budget = n->given;
    s->in->budget.generations = n->generations > 0 ? n->generations : n->given.generations;
    s->in->placement = n->placement;
    s->with_eval = true;
    for (uint32_t i = 0; i < s->table->unit_count; i++) {
        s->table->shards[i].homes = n->homes[i];
    }
    if (n->status == OX_OK) {
        ox_search_build(s);
    }
    return n->status;
}

enum ox_status ox_search_tighten(struct ox_search *s, uint64_t named[OX_TIER_COUNT]) {
    static const enum ox_tier tiers[] = {OX_TIER_HOST, OX_TIER_NVME, OX_TIER_DEVICE};
    struct nearest n = {.s = s, .given = s->in->budget, .placement = s->in->placement,
                        .homes = calloc(s->table->unit_count, sizeof *n.homes)};
    if (n.homes == NULL) {
        return ox_fail(OX_E_NOMEM, "planner: no memory for %u units", s->table->unit_count);
    }
    for (uint32_t i = 0; i < s->table->unit_count; i++) {
        n.homes[i] = s->table->shards[i].homes;
    }
    const bool parts = ox_search_over_all(s) == 0; /* what is short is no tier's budget */
    const bool found = !parts && fits_in(&n, named);
    for (unsigned i = 0; i < sizeof tiers / sizeof *tiers && found && n.status == OX_OK; i++) {
        s->in->budget = n.given;
        if (tiers[i] != OX_TIER_NVME || is_one(&n.given)) {
            lower(&n, tiers[i], named);
        }
    }
    enum ox_status status = n.status;
    OX_THEN(status, leave(&n));
    free(n.homes);
    return status;
}
