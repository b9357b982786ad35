/* Which candidate is fastest: its plan is simulated on the machine. Most need not be, because the busiest lane or
 * resource of their plan alone takes longer than the best so far.
 *
 * The search begins with every number of tiles and home of checkpoints, each in the largest form that fits: these
 * decide what travels. From the best of them it changes one or two things at a time as long as that pays. Then it
 * begins once more with smaller forms. Its effort is counted in tasks, not seconds, so that the same input always has
 * the same answer. */
#include "offload/placement_internal.h"

#include "base/bytes.h"

#include <string.h>

/* Chunks in flight in the optimizer's stream: so many that a drive is busy while others are checked and updated. */
enum { SLOTS_DEEP = 32, SLOTS_MIDDLE = 8, SLOTS_SHALLOW = 3 };
/* A task simulated costs as much as so many built; so many in all are what the search may take, about a third of
 * a second. */
enum { SIMULATED_COST = 8 };
static const uint64_t EFFORT_MAX = 3000000;
/* Up to here every number of tiles is tried. Beyond, a series of ever more tiles ends where doubling them, with all it
 * lets come home and all it repeats, has twice not paid. */
static const uint64_t EFFORT_ALL_TRIED = 300000;
/* What may take this much longer than the best is still looked at in another form. */
static const double NEAR = 1.3;
/* What is better by less than this share is not better. */
static const double EQUAL = 1e-4;

/* ---- judging ------------------------------------------------------------------------------------ */

static bool same(const struct ox_candidate *a, const struct ox_candidate *b) {
    const struct ox_placement *const x = &a->placement, *const y = &b->placement;
    return x->tiles == y->tiles && x->prefetch_depth == y->prefetch_depth && x->act_tier == y->act_tier &&
           x->stage_slots == y->stage_slots && x->overlap == y->overlap && x->early_units == y->early_units &&
           a->order == b->order && a->ranking == b->ranking && a->device_weights == b->device_weights;
}

/* Of a series of candidates: what it has found last. */
struct outcome {
    bool fits;
    double seconds; /* simulated, or the least it can be where that is too long already */
};

static struct outcome judge(struct ox_search *s, const struct ox_candidate *candidate) {
    if (!ox_search_fit_train(s, candidate)) {
        return (struct outcome){.fits = false};
    }
    const double enough = s->best_seconds * (1 - EQUAL);
    double seconds = ox_sim_least_seconds(&s->setup, s->train);
    s->effort += s->train->task_count;
    if (s->found && seconds >= enough) {
        return (struct outcome){.fits = true, .seconds = seconds};
    }
    if (!ox_search_fit_eval(s, candidate)) {
        return (struct outcome){.fits = false};
    }
    struct ox_sim_result result;
    ox_sim_run(s->sim, s->train, &s->setup, &result);
    s->effort += (uint64_t)s->train->task_count * SIMULATED_COST;
    if (!s->found || result.seconds < enough) {
        s->found = true;
        s->best = *candidate;
        s->best.placement = s->in->placement; /* as it came to be */
        s->best_seconds = result.seconds;
        for (uint32_t i = 0; i < s->table->unit_count; i++) {
            s->best_homes[i] = s->table->shards[i].homes;
        }
    }
    return (struct outcome){.fits = true, .seconds = result.seconds};
}

/* ---- what may be chosen ------------------------------------------------------------------------- */

static bool act_tier_allowed(const struct ox_search *s, enum ox_tier tier) {
    const bool unified = s->in->budget.unified;
    if (s->wish->act_tier < OX_TIER_COUNT) {
        return ox_search_wished(s->wish->act_tier, unified) == ox_search_wished(tier, unified) &&
               !(unified && tier == OX_TIER_DEVICE);
    }
    return tier == OX_TIER_NVME ? s->in->budget.nvme_bytes > 0 : tier == OX_TIER_HOST || !unified;
}

static bool overlap_allowed(const struct ox_search *s, bool overlap) {
    return (s->wish->overlap < 0 || overlap == (s->wish->overlap == 1)) && !(overlap && s->in->model.eval_only);
}

/* How many of the last units are updated in backward, of QUARTERS choices: what the update replaces must stay on the
 * drives. */
enum { QUARTERS = 5 };
static uint32_t early_units(const struct ox_search *s, uint32_t quarters) {
    const uint32_t unit_count = s->table->unit_count;
    if (s->in->budget.nvme_bytes == 0 || ox_plan_generations(&s->in->budget) < 2) {
        return 0;
    }
    if (s->wish->early_units >= 0) {
        return (uint32_t)ox_min_u64((uint64_t)s->wish->early_units, unit_count);
    }
    /* Who asks for overlap and not for none of it means some. */
    const uint32_t least = s->wish->overlap == 1;
    return (uint32_t)ox_max_u64((uint64_t)unit_count * quarters / (QUARTERS - 1), least);
}

static bool order_allowed(const struct ox_search *s, const char *order) {
    return !(strchr(order, 'w') != NULL && s->wish->weights_tier < OX_TIER_COUNT) &&
           !(strchr(order, 'g') != NULL && (s->wish->grad_tier < OX_TIER_COUNT || s->in->model.eval_only)) &&
           !(strchr(order, 's') != NULL && (s->wish->state_tier < OX_TIER_COUNT || s->in->model.eval_only));
}

static void try(struct ox_search *s, const struct ox_candidate *candidate) {
    for (uint32_t i = 0; i < s->tried_count; i++) {
        if (same(&s->tried[i], candidate)) {
            return;
        }
    }
    if (s->tried_count < OX_TRIED_MAX && s->effort < EFFORT_MAX) {
        s->tried[s->tried_count++] = *candidate;
        (void)judge(s, candidate);
    }
}

/* Every way in which the optimizer may overlap, else like `from`. */
static void try_overlap(struct ox_search *s, struct ox_candidate from) {
    for (int quarters = 0; quarters < QUARTERS && overlap_allowed(s, true); quarters++) {
        from.placement.overlap = true;
        from.placement.early_units = early_units(s, (uint32_t)quarters);
        try(s, &from);
    }
    if (overlap_allowed(s, false)) {
        from.placement.overlap = false;
        from.placement.early_units = 0;
        try(s, &from);
    }
}

static bool device_weights_free(const struct ox_search *s) {
    return !s->in->budget.unified && s->wish->weights_tier == OX_TIER_COUNT;
}

/* ---- where to begin ------------------------------------------------------------------------------ */

static const struct rung {
    uint8_t depth, slots;
    bool overlap;
} rungs[] = {{2, SLOTS_DEEP, true},    {2, SLOTS_MIDDLE, true},  {2, SLOTS_SHALLOW, true},
             {1, 2, true},             {2, SLOTS_DEEP, false},   {2, SLOTS_MIDDLE, false},
             {2, SLOTS_SHALLOW, false}, {1, 2, false},           {0, 1, true},
             {0, 1, false}};
enum { RUNG_COUNT = sizeof rungs / sizeof *rungs };

/* A wished depth is on one size of rungs alone. */
static bool rung_allowed(const struct ox_search *s, const struct rung *rung) {
    const int32_t wish = s->wish->prefetch_depth;
    return overlap_allowed(s, rung->overlap) && (wish < 0 || ox_min_u64((uint64_t)wish, 2) == rung->depth);
}

/* Backward is about three quarters of a step's compute, so it takes as much of the optimizer. */
static struct ox_candidate candidate_on(const struct ox_search *s, const struct rung *rung, uint32_t tiles,
                                        enum ox_tier act_tier) {
    const int32_t wish = s->wish->prefetch_depth;
    return (struct ox_candidate){
        .device_weights = true,
        .placement = {.tiles = tiles, .prefetch_depth = wish >= 0 ? (uint32_t)wish : rung->depth,
                      .act_tier = act_tier, .stage_slots = rung->slots, .overlap = rung->overlap,
                      .early_units = rung->overlap ? early_units(s, 3) : 0}};
}

/* Whether it can be left: a plan is there, and this one's smallest form does not fit. */
static bool hopeless(struct ox_search *s, uint32_t tiles, enum ox_tier act_tier) {
    const struct rung *least = &rungs[RUNG_COUNT - 1];
    for (int i = 0; i < RUNG_COUNT; i++) {
        least = rung_allowed(s, &rungs[i]) ? &rungs[i] : least;
    }
    const struct ox_candidate candidate = candidate_on(s, least, tiles, act_tier);
    return s->found && !ox_search_fit_train(s, &candidate);
}

/* The largest form that fits: transfers run ahead and steps overlap as far as there is room for that. */
static struct outcome begin(struct ox_search *s, uint32_t tiles, enum ox_tier act_tier) {
    struct outcome outcome = {.fits = false};
    bool failed = false;
    for (int i = 0; i < RUNG_COUNT && !outcome.fits; i++) {
        if (!rung_allowed(s, &rungs[i])) {
            continue;
        }
        struct ox_candidate candidate = candidate_on(s, &rungs[i], tiles, act_tier);
        outcome = judge(s, &candidate);
        if (!outcome.fits && !failed && hopeless(s, tiles, act_tier)) {
            break;
        }
        failed = true;
        candidate.device_weights = false; /* without copies for the optimizer there and back */
        if (outcome.fits && outcome.seconds < NEAR * s->best_seconds && device_weights_free(s)) {
            try(s, &candidate);
        }
    }
    return outcome;
}

/* All forms: where little fits, one that leaves more room for planes may be faster. */
static struct outcome begin_again(struct ox_search *s, uint32_t tiles, enum ox_tier act_tier) {
    for (int i = 0; i < RUNG_COUNT; i++) {
        if (rung_allowed(s, &rungs[i]) && rungs[i].overlap) {
            try_overlap(s, candidate_on(s, &rungs[i], tiles, act_tier));
        }
    }
    return (struct outcome){.fits = false};
}

typedef struct outcome begin_fn(struct ox_search *s, uint32_t tiles, enum ox_tier act_tier);

static void begin_series(struct ox_search *s, enum ox_tier act_tier, begin_fn *begin_one) {
    const uint32_t micro_batches = s->in->model.micro_batches;
    double last = 0;
    uint32_t worse_count = 0;
    for (uint32_t tiles = 1; worse_count < 2 || s->effort < EFFORT_ALL_TRIED; tiles *= 2) {
        const struct outcome outcome = begin_one(s, (uint32_t)ox_min_u64(tiles, micro_batches), act_tier);
        if (outcome.fits) {
            worse_count = last > 0 && outcome.seconds >= last ? worse_count + 1 : 0;
            last = outcome.seconds;
        }
        if (tiles >= micro_batches) {
            return;
        }
    }
}

static void begin_all(struct ox_search *s, begin_fn *begin_one) {
    static const enum ox_tier tiers[] = {OX_TIER_HOST, OX_TIER_DEVICE, OX_TIER_NVME};
    for (int i = 0; i < OX_TIER_COUNT; i++) {
        if (!act_tier_allowed(s, tiers[i])) {
            continue;
        }
        if (s->wish->tiles > 0) {
            (void)begin_one(s, s->wish->tiles, tiers[i]);
        } else {
            begin_series(s, tiers[i], begin_one);
        }
    }
}

/* ---- one thing at a time ------------------------------------------------------------------------- */

/* What stays in memory and when the optimizer runs depend on each other: an early update needs its gradient only to be
 * kept, a late one reads it. */
static void try_homes(struct ox_search *s) {
    for (uint8_t order = 0; order < OX_CANDIDATE_ORDERS; order++) {
        struct ox_candidate other = s->best;
        other.order = order;
        if (order_allowed(s, ox_candidate_orders[order])) {
            try_overlap(s, other);
        }
    }
    for (uint8_t ranking = 0; ranking < OX_RANKING_COUNT; ranking++) {
        struct ox_candidate other = s->best;
        other.ranking = ranking;
        try(s, &other);
    }
    if (device_weights_free(s)) {
        struct ox_candidate other = s->best;
        other.device_weights = !other.device_weights;
        try(s, &other);
    }
}

/* A wished depth comes with the slots it began with. */
static void try_ahead(struct ox_search *s) {
    static const uint8_t slots[] = {1, 2, SLOTS_SHALLOW, SLOTS_MIDDLE, SLOTS_DEEP};
    for (uint32_t depth = 0; depth < 4 && s->wish->prefetch_depth < 0; depth++) {
        for (unsigned i = 0; i < sizeof slots; i++) {
            struct ox_candidate other = s->best;
            other.placement.prefetch_depth = depth;
            other.placement.stage_slots = slots[i];
            try(s, &other);
        }
    }
}

/* The number of early units more finely: how long the optimizer of a step takes beside its own backward, and how long
 * beside the next forward, is balanced by single units. */
static void try_early(struct ox_search *s) {
    const uint32_t unit_count = s->table->unit_count;
    for (uint32_t by = unit_count / 8; by > 0 && s->wish->early_units < 0; by /= 2) {
        for (int sign = -1; sign <= 1; sign += 2) {
            struct ox_candidate other = s->best;
            const uint32_t at = other.placement.early_units;
            other.placement.early_units = sign < 0 ? at - by : at + by;
            if (at > 0 && (sign < 0 ? at > by : at + by <= unit_count)) {
                try(s, &other);
            }
        }
    }
}

static void try_tiles(struct ox_search *s) {
    const uint32_t micro_batches = s->in->model.micro_batches, at = s->best.placement.tiles;
    const uint32_t others[] = {at - 1, at + 1, at / 2, at * 2};
    for (unsigned i = 0; i < sizeof others / sizeof *others && s->wish->tiles == 0; i++) {
        struct ox_candidate other = s->best;
        other.placement.tiles = others[i];
        if (others[i] >= 1 && others[i] <= micro_batches) {
            try(s, &other);
        }
    }
    for (int tier = OX_TIER_DEVICE; tier < OX_TIER_COUNT; tier++) {
        struct ox_candidate other = s->best;
        other.placement.act_tier = (enum ox_tier)tier;
        if (act_tier_allowed(s, (enum ox_tier)tier)) {
            try(s, &other);
        }
    }
}

static void climb(struct ox_search *s) {
    for (double before = 0; before != s->best_seconds;) {
        before = s->best_seconds;
        try_overlap(s, s->best);
        try_homes(s);
        try_early(s);
        try_ahead(s);
        try_tiles(s);
    }
}

void ox_search_run(struct ox_search *s) {
    begin_all(s, begin);
    if (s->found) {
        climb(s);
        begin_all(s, begin_again);
        climb(s);
    }
}
