/* Finds the fastest candidate by simulating its plan on the machine. Most candidates need no simulation, because the
 * busiest lane or resource of their plan alone takes longer than the best so far.
 *
 * The search starts with every number of tiles and every home of activation checkpoints, each in the largest form that
 * fits: these decide what is transferred. From the best start it changes one or two choices at a time as long as that
 * pays; what a change needs of memory, other choices give up. Then it does so from the best start of every other home
 * of checkpoints. A climb ends where several changes would be needed at once, so one choice after the other is also
 * forced: the rest is climbed while that one is held, as if it had been requested. Then it climbs from the best start
 * of every other group of starts. A climb compares times, not the bounds of what is slower than the best so far, which
 * say little about each other. The effort that is left goes to a few random changes at once, each followed by a climb
 * if the result is not far behind. Effort is counted in tasks, not seconds, and the random numbers are fixed, so that
 * the same input always has the same answer. */
#include "offload/search/placement_internal.h"

#include "base/bytes.h"
#include "base/prng/prng.h"

/* Largest effort, in tasks built: a fraction of a second; of one climb that must not take all of it; and of forcing one
 * choice after the other. */
static const uint64_t EFFORT_MAX = 12000000, EFFORT_CLIMB = 1400000, EFFORT_FORCED = 3000000;
/* Largest effort of a search whose choice is only compared; and of trying what is next to starts. */
static const uint64_t EFFORT_ROUGH = 6000000, EFFORT_BESIDE = 2000000;
/* Such a search ends when its climbs, without finding anything better, have taken this much and half of what was spent
 * before. One whose choice is taken, or told of as advice, goes on, which is worth up to 13 %, until choices have been
 * forced: what comes then gains seldom, and soon or not at all, so it ends after this much without gain. */
static const uint64_t EFFORT_IDLE = 1500000;
/* A run whose number of steps is known spends no more on the search than this share of its predicted seconds, of which
 * a task built takes about EFFORT_SECONDS, and at least EFFORT_LEAST: few runs gain more. */
static const uint64_t EFFORT_LEAST = 600000;
static const double EFFORT_SHARE = 0.02, EFFORT_SECONDS = 6e-8;
/* Up to this effort every number of tiles is tried. Beyond it, the series of doubled tiles ends when doubling has twice
 * not paid. */
static const uint64_t EFFORT_ALL_TRIED = 300000;
/* A start that takes less than this many times the best is still worth trying in other forms. */
static const double NEAR = 1.3;
/* One with another home of checkpoints may be this many times as slow. */
static const double FAR = 1.5;
/* Starts this many times as slow as what is to be beaten seldom lead to it, nor does the end of a climb that is as many
 * times as slow as the other says. */
static const double BEHIND_STARTS = 1.3, BEHIND_CLIMB = 1.1;
/* Times that differ by less than this share count as equal. */
static const double EQUAL = 2e-3;
/* The search ends after this many random draws in a row without gain. */
enum { DRAWS_IDLE = 100 };

/* How many candidates may be tried: more if units may live on the device, because that choice interacts with most
 * others. */
static uint32_t tried_max(const struct ox_search *s) {
    return ox_choice_device_units(s) ? OX_TRIED_MAX : OX_TRIED_MAX / 2;
}

/* ---- judging ------------------------------------------------------------------------------------ */

static bool better(const struct ox_tried *a, const struct ox_tried *b) {
    if (!a->fits || !b->fits || a->honors != b->honors) {
        return a->fits && (!b->fits || a->honors);
    }
    return a->seconds < b->seconds * (1 - EQUAL);
}

static bool honors(const struct ox_search *s) {
    return s->setup.stays || (s->request->persist_steps <= 1 && !s->crowded);
}

static void simulate(struct ox_search *s, struct ox_tried *tried) {
    tried->seconds = ox_search_seconds(s);
    tried->made.placement = s->in->placement;
    if (better(tried, &s->best)) {
        s->best = *tried;
        s->effort_gained = s->effort;
        for (uint32_t i = 0; i < s->table->unit_count; i++) {
            s->best_homes[i] = s->table->shards[i].homes;
        }
    }
}

/* Judges a candidate that is of use only if it is better than `than`: else a bound of its time will do. */
static struct ox_tried judge(struct ox_search *s, const struct ox_candidate *candidate, const struct ox_tried *than) {
    struct ox_tried tried = {.asked = *candidate, .made = *candidate};
    tried.fits = !(s->best.fits && ox_search_is_hopeless(s, candidate)) && ox_search_fit_train(s, candidate);
    if (!tried.fits) {
        return tried;
    }
    tried.honors = honors(s);
    tried.seconds = ox_search_least_seconds(s);
    tried.made.placement = s->in->placement;
    if (better(&tried, than)) {
        tried.seconds = ox_search_seconds(s);
    }
    if (better(&tried, than)) { /* few come to this, so that plans of evaluation are built for few */
        tried.settled = true;
        tried.fits = ox_search_fit_eval(s, candidate);
        tried.honors = honors(s);
        if (tried.fits) {
            simulate(s, &tried);
        }
    }
    return tried;
}

/* The place of the hash table where this candidate is, or belongs. */
static uint16_t *place_of(struct ox_search *s, const struct ox_candidate *candidate) {
    uint64_t at = ox_candidate_hash(candidate) % OX_TRIED_PLACES;
    while (s->tried_at[at] != 0 && !ox_candidate_same(&s->tried[s->tried_at[at] - 1].asked, candidate)) {
        at = (at + 1) % OX_TRIED_PLACES;
    }
    return &s->tried_at[at];
}

/* Whether the choice is not taken, nor told of, unless it beats another one. */
static bool is_compared(const struct ox_search *s) {
    return s->request->rough && s->request->beats > 0;
}

/* Whether the effort is used up: nothing new is tried then. The limit does not apply until one plan fits. */
static bool is_spent(const struct ox_search *s) {
    const uint64_t idle = EFFORT_IDLE + (s->seldom ? 0 : s->effort_gained / 2);
    const bool idles = (s->seldom || (is_compared(s) && s->begun)) && s->effort > s->effort_gained + idle;
    return s->best.fits && (s->first || s->effort >= s->effort_max || idles);
}

/* Nothing that fits: any candidate that does is better. */
static const struct ox_tried none_yet = {.fits = false};

/* Judges each candidate once, and again if what is known of it no longer tells, within the effort allowed. */
static struct ox_tried try_against(struct ox_search *s, const struct ox_candidate *asked, const struct ox_tried *than) {
    const struct ox_candidate candidate = ox_candidate_plain(s, *asked);
    uint16_t *const place = place_of(s, &candidate);
    struct ox_tried *const known = *place != 0 ? &s->tried[*place - 1] : NULL;
    if (known != NULL && (known->settled || !better(known, than))) {
        return *known;
    }
    const bool room = known != NULL || s->tried_count < tried_max(s);
    if (is_spent(s) || (s->best.fits && !room)) {
        return (struct ox_tried){.fits = false};
    }
    const struct ox_tried tried = judge(s, &candidate, than);
    if (known != NULL) {
        *known = tried;
    } else if (room) {
        s->tried[s->tried_count++] = tried;
        *place = (uint16_t)s->tried_count;
    }
    return tried;
}

static struct ox_tried try(struct ox_search *s, const struct ox_candidate *asked) {
    const struct ox_tried best = s->best;
    return try_against(s, asked, &best);
}

/* ---- one or two things at a time ----------------------------------------------------------------- */

/* Choices that depend on each other, and are changed together. A carried update reads its gradient back from its home,
 * a speculative one does not, so which planes should stay in memory depends on when the optimizer runs. Prefetch and
 * the optimizer's slots share free memory. More tiles keep fewer activations at a time. Kept activations, and those
 * alive at a time, compete with units on the device. */
static const enum ox_choice pairs[][2] = {
    {OX_CHOICE_ORDER, OX_CHOICE_OVERLAP}, {OX_CHOICE_DEPTH, OX_CHOICE_SLOTS}, {OX_CHOICE_OVERLAP, OX_CHOICE_SLOTS},
    {OX_CHOICE_OVERLAP, OX_CHOICE_SPREAD}, {OX_CHOICE_OVERLAP, OX_CHOICE_GENERATIONS},
    {OX_CHOICE_TILES, OX_CHOICE_KEPT}, {OX_CHOICE_DEVICE_UNITS, OX_CHOICE_KEPT},
    {OX_CHOICE_DEVICE_UNITS, OX_CHOICE_TILES}, {OX_CHOICE_DEVICE_UNITS, OX_CHOICE_ACT_TIER},
    {OX_CHOICE_DEVICE_UNITS, OX_CHOICE_DEVICE_FIRST}};

static bool is_held(const struct ox_search *s, enum ox_choice choice) {
    return (s->held >> choice & 1) != 0;
}

static bool stays(const struct ox_search *s, enum ox_choice changed, enum ox_choice choice) {
    return (choice == changed && s->held != 0) || is_held(s, choice);
}

/* Whether early updates may be fewer, which takes less memory where that keeps what they replace. */
static bool may_slim_early(const struct ox_search *s, const struct ox_placement *p) {
    return p->speculative_units > 0 && p->saves_replaced && s->in->budget.nvme_bytes == 0 &&
           s->request->speculative_units < 0 && s->request->overlap != 1;
}

/* Gives up memory that another choice of the candidate needs, one thing after the other, but nothing that is held or
 * requested; false if there is nothing left. Where a choice is forced, all gives way that can, but for the choice
 * `changed`: without a forced one that seldom pays. */
static bool slim(const struct ox_search *s, enum ox_choice changed, struct ox_candidate *candidate) {
    struct ox_placement *const p = &candidate->placement;
    const bool depth = stays(s, changed, OX_CHOICE_DEPTH), turns = stays(s, changed, OX_CHOICE_GRADS_ALTERNATE);
    const bool kept = stays(s, changed, OX_CHOICE_KEPT), units = stays(s, changed, OX_CHOICE_DEVICE_UNITS);
    if (p->prefetch_depth > 1 && s->request->prefetch_depth < 0 && !depth) {
        p->prefetch_depth = 1;
    } else if (p->grads_alternate && s->request->grads_alternate < 0 && !turns) {
        p->grads_alternate = false;
    } else if (p->kept_units > 0 && s->request->kept_units < 0 && !kept) {
        p->kept_units /= 2;
    } else if (s->held != 0 && may_slim_early(s, p)) {
        p->speculative_units /= 2;
    } else if (s->held != 0 && candidate->device_units > 0 && ox_choice_device_units(s) && !units) {
        candidate->device_units -= (candidate->device_units + 7) / 8;
    } else {
        return false;
    }
    return true;
}

/* Tries a candidate of which one choice was changed, and where it does not fit, with less of what else takes memory. */
static struct ox_tried try_slim(struct ox_search *s, enum ox_choice changed, struct ox_candidate candidate,
                                const struct ox_tried *than) {
    struct ox_tried tried = try_against(s, &candidate, than);
    while (!tried.fits && s->effort < s->effort_max && slim(s, changed, &candidate)) {
        tried = try_against(s, &candidate, than);
    }
    return tried;
}

static void try_all(struct ox_search *s, enum ox_choice changed, const struct ox_choices *choices,
                    struct ox_tried *at) {
    for (uint32_t i = 0; i < choices->count; i++) {
        const struct ox_tried tried = try_slim(s, changed, choices->at[i], at);
        if (better(&tried, at)) {
            *at = tried;
        }
    }
}

static void change_one(struct ox_search *s, enum ox_choice choice, const struct ox_candidate *from,
                       struct ox_tried *at) {
    struct ox_choices choices;
    choices.count = 0; /* to clear all of them takes as long as to look one candidate up */
    ox_choice_fns[choice](s, *from, &choices);
    try_all(s, choice, &choices, at);
}

static void change_two(struct ox_search *s, const enum ox_choice pair[2], struct ox_tried *at) {
    struct ox_choices choices = {.count = 0};
    ox_choice_fns[pair[0]](s, at->made, &choices);
    for (uint32_t i = 0; i < choices.count; i++) {
        change_one(s, pair[1], &choices.at[i], at);
    }
}

/* Changes one choice at a time, but for those that are held, until nothing helps. */
static void climb(struct ox_search *s, struct ox_tried *at) {
    for (double before = 0; before != at->seconds;) {
        before = at->seconds;
        for (int choice = 0; choice < OX_CHOICE_COUNT; choice++) {
            const struct ox_candidate from = at->made;
            if (!is_held(s, (enum ox_choice)choice)) {
                change_one(s, (enum ox_choice)choice, &from, at);
            }
        }
    }
}

/* Climbs from the best, and changes pairs of choices as well. */
static void climb_best(struct ox_search *s) {
    struct ox_tried at = s->best;
    for (double before = 0; before != at.seconds;) {
        climb(s, &at);
        before = at.seconds;
        for (unsigned i = 0; i < sizeof pairs / sizeof *pairs; i++) {
            change_two(s, pairs[i], &at);
        }
    }
}

static uint32_t draw(uint64_t *counter, uint32_t below) {
    return (uint32_t)(ox_uniform(1, 0, (*counter)++) * below);
}

/* Changes a few choices at random and climbs from there; returns when that has not paid for a while. */
static void climb_from_draws(struct ox_search *s) {
    const uint32_t sorts = ox_choice_device_units(s) ? OX_CHOICE_COUNT : OX_CHOICE_DEVICE_UNITS;
    uint64_t counter = 0;
    for (uint32_t idle = 0; idle < DRAWS_IDLE && s->effort < s->effort_max; idle++) {
        const double before = s->best.seconds;
        struct ox_candidate drawn = s->best.made;
        for (uint32_t i = 2 + draw(&counter, 3); i > 0; i--) {
            struct ox_choices choices = {.count = 0};
            ox_choice_fns[draw(&counter, sorts)](s, drawn, &choices);
            drawn = choices.count > 0 ? choices.at[draw(&counter, choices.count)] : drawn;
        }
        struct ox_tried at = try_against(s, &drawn, &none_yet);
        if (at.fits && at.seconds < NEAR * before) {
            climb(s, &at);
        }
        idle = s->best.seconds < before ? 0 : idle;
    }
}

/* ---- where to begin ------------------------------------------------------------------------------ */

static const struct rung {
    uint8_t depth, slots;
    bool overlap;
} rungs[] = {{2, OX_SLOTS_DEEP, true},    {2, OX_SLOTS_MIDDLE, true},  {2, OX_SLOTS_SHALLOW, true},
             {1, 2, true},             {2, OX_SLOTS_DEEP, false},   {2, OX_SLOTS_MIDDLE, false},
             {2, OX_SLOTS_SHALLOW, false}, {1, 2, false},           {0, 1, true},
             {0, 1, false}};
enum { RUNG_COUNT = sizeof rungs / sizeof *rungs };

/* A requested depth is tried only on the rungs of that depth, where 2 stands for all larger ones. */
static bool rung_allowed(const struct ox_search *s, const struct rung *rung) {
    const int32_t request = s->request->prefetch_depth;
    return ox_choice_overlap(s, rung->overlap) && (request < 0 || ox_min_u64((uint64_t)request, 2) == rung->depth);
}

/* Tries a start, and where it does not fit, without a second place for gradients. */
static struct ox_tried try_start(struct ox_search *s, struct ox_candidate *candidate) {
    const struct ox_tried tried = try(s, candidate);
    if (tried.fits || !candidate->placement.grads_alternate) {
        return tried;
    }
    candidate->placement.grads_alternate = false;
    return try(s, candidate);
}

/* The start for a rung. Backward is about three quarters of a step's compute, so three quarters of the units are
 * updated in it, where that takes no memory. */
static struct ox_candidate candidate_on(const struct ox_search *s, const struct rung *rung, uint32_t tiles,
                                        enum ox_tier act_tier) {
    const int32_t request = s->request->prefetch_depth;
    const uint32_t quarters = s->in->budget.nvme_bytes > 0 ? 3 : 0;
    return (struct ox_candidate){
        .device_weights = true,
        .device_units = ox_search_requested_device_units(s),
        .device_first = s->request->device_first,
        .generations = s->request->may_keep_three ? 2 : 0,
        .placement = {.tiles = tiles, .prefetch_depth = request >= 0 ? (uint32_t)request : rung->depth,
                      .act_tier = act_tier, .stream_slots = rung->slots, .overlap = rung->overlap,
                      .grads_alternate = rung->depth > 0,
                      .speculative_units = rung->overlap ? ox_choice_speculative_units(s, quarters) : 0,
                      .speculative_spread = rung->overlap && quarters > 0,
                      .kept_units = s->request->kept_units < 0 ? 0 : ox_choice_kept_units(s),
                      .schedule = s->in->placement.schedule, .chunks = s->in->placement.chunks,
                      .window = s->in->placement.window}};
}

static const struct rung *least_rung(const struct ox_search *s) {
    const struct rung *least = &rungs[RUNG_COUNT - 1];
    for (int i = 0; i < RUNG_COUNT; i++) {
        least = rung_allowed(s, &rungs[i]) ? &rungs[i] : least;
    }
    return least;
}

/* Whether this start can be skipped: some plan fits already, and not even the smallest form of this one does. */
static bool hopeless(struct ox_search *s, uint32_t tiles, enum ox_tier act_tier) {
    struct ox_candidate candidate = candidate_on(s, least_rung(s), tiles, act_tier);
    candidate.placement.grads_alternate = false;
    return s->best.fits && (ox_search_is_hopeless(s, &candidate) || !ox_search_fit_train(s, &candidate));
}

/* Finds by bisection the largest `*count`, up to `most`, with which the candidate fits, and leaves it there; `count`
 * points into the candidate. */
static void try_most(struct ox_search *s, struct ox_candidate *candidate, uint32_t *count, uint32_t most) {
    uint32_t least = 0, past = most + 1;
    for (*count = most; least + 1 < past; *count = least + (past - least) / 2) {
        if (try(s, candidate).fits) {
            least = *count;
        } else {
            past = *count;
        }
    }
    *count = least;
}

/* Also starts with the most kept activations. On a separate device they compete with planes for memory, and a climb
 * seldom finds its way from one extreme to the other. */
static void begin_kept(struct ox_search *s, struct ox_candidate candidate) {
    if (!s->in->budget.unified && s->request->kept_units < 0) {
        try_most(s, &candidate, &candidate.placement.kept_units, ox_choice_kept_units(s));
    }
}

/* Starts with all units on the device, in the largest form that fits, with overlap and without: no plane is transferred
 * then, which frees buffers that a few units fewer would still need. */
static bool begin_on_device(struct ox_search *s, uint32_t tiles, enum ox_tier act_tier) {
    bool found[2] = {false, false};
    for (int i = 0; i < RUNG_COUNT; i++) {
        struct ox_candidate candidate = candidate_on(s, &rungs[i], tiles, act_tier);
        candidate.device_units = s->table->unit_count;
        if (rung_allowed(s, &rungs[i]) && !found[rungs[i].overlap] && try(s, &candidate).fits) {
            found[rungs[i].overlap] = true;
            begin_kept(s, candidate);
        }
    }
    return found[0] || found[1];
}

/* Finds how many units must live on the device if neither device nor host memory can hold all, but both together can; 0
 * if they cannot. */
static uint32_t units_between(struct ox_search *s, struct ox_candidate candidate) {
    uint32_t least = 0, past = s->table->unit_count;
    while (least + 1 < past) {
        candidate.device_units = least + (past - least) / 2;
        if (ox_search_fit_train(s, &candidate)) {
            return candidate.device_units;
        }
        const bool host = ox_search_need(s, OX_TIER_HOST) > ox_search_budget(s, OX_TIER_HOST);
        const bool device = ox_search_need(s, OX_TIER_DEVICE) > ox_search_budget(s, OX_TIER_DEVICE);
        if (host == device) {
            return 0;
        }
        least = host ? candidate.device_units : least;
        past = device ? candidate.device_units : past;
    }
    return 0;
}

static struct ox_tried begin_between(struct ox_search *s, uint32_t tiles, enum ox_tier act_tier) {
    struct ox_candidate smallest = candidate_on(s, least_rung(s), tiles, act_tier);
    smallest.placement.grads_alternate = false;
    const uint32_t units = units_between(s, smallest);
    struct ox_tried outcome = {.fits = false};
    for (int i = 0; i < RUNG_COUNT && units > 0 && !outcome.fits; i++) {
        struct ox_candidate candidate = candidate_on(s, &rungs[i], tiles, act_tier);
        candidate.device_units = units;
        if (rung_allowed(s, &rungs[i])) {
            outcome = try_start(s, &candidate);
        }
    }
    if (outcome.fits) {
        begin_kept(s, outcome.made);
    }
    return outcome;
}

/* A number of tiles and a home of checkpoints, in the largest form that fits. */
struct start {
    struct ox_candidate candidate;
    double seconds; /* a lower bound where that was enough */
};
struct starts {
    struct start at[OX_STARTS_MAX];
    uint32_t count;
};

/* Other starts next to one that fits: with the most kept activations, with all units on the device, or with as many
 * units there as fit. */
static void begin_others(struct ox_search *s, struct ox_candidate candidate) {
    begin_kept(s, candidate);
    if (ox_choice_device_units(s) &&
        !begin_on_device(s, candidate.placement.tiles, candidate.placement.act_tier)) {
        try_most(s, &candidate, &candidate.device_units, s->table->unit_count - 1);
        begin_kept(s, candidate);
        candidate.device_first = true;
        (void)try(s, &candidate);
    }
}

/* Single choices off a start: each trades a buffer for an order, and what pays depends on all others, so it is tried
 * rather than guessed. */
static void begin_beside(struct ox_search *s, const struct start *start) {
    struct ox_candidate candidate = start->candidate;
    candidate.device_weights = false; /* saves the copies of weights between device and optimizer */
    if (start->seconds < NEAR * s->best.seconds && ox_choice_device_weights(s)) {
        (void)try(s, &candidate);
    }
    candidate.device_weights = true;
    const bool alternate = candidate.placement.grads_alternate;
    candidate.placement.grads_alternate = false; /* leaves room on the device */
    (void)try(s, &candidate);
    candidate.placement.grads_alternate = alternate;
    candidate.placement.speculative_spread = !candidate.placement.speculative_spread;
    (void)try(s, &candidate);
    candidate.placement.speculative_spread = !candidate.placement.speculative_spread;
    if (ox_choice_device_units(s) || start->seconds < NEAR * s->best.seconds) {
        begin_others(s, candidate);
    }
}

/* Starts with the largest form that fits, in which transfers run ahead and steps overlap as far as memory allows, and
 * adds it to the starts. */
static struct ox_tried begin(struct ox_search *s, uint32_t tiles, enum ox_tier act_tier, struct starts *starts) {
    struct ox_tried outcome = {.fits = false};
    bool failed = false;
    for (int i = 0; i < RUNG_COUNT && !outcome.fits && !is_spent(s); i++) {
        if (!rung_allowed(s, &rungs[i])) {
            continue;
        }
        struct ox_candidate candidate = candidate_on(s, &rungs[i], tiles, act_tier);
        outcome = try_start(s, &candidate);
        /* Asked once, when the largest form has failed: it costs a plan, and answers for all rungs. */
        if (!outcome.fits && !failed && hopeless(s, tiles, act_tier)) {
            break;
        }
        failed = true;
        if (outcome.fits && starts->count < OX_STARTS_MAX) {
            starts->at[starts->count++] = (struct start){.candidate = candidate, .seconds = outcome.seconds};
        }
    }
    if (!outcome.fits && ox_choice_device_units(s) && !is_spent(s)) {
        (void)begin_on_device(s, tiles, act_tier);
        outcome = begin_between(s, tiles, act_tier);
    }
    return outcome;
}

static void begin_series(struct ox_search *s, enum ox_tier act_tier, struct starts *starts) {
    const uint32_t most = ox_plan_tiles_max(s->in);
    double best = 0;
    uint32_t worse_count = 0;
    const uint32_t worse_most = s->tiers_begun == 0 ? 2 : 1;
    for (uint32_t tiles = 1; !is_spent(s) && (worse_count < worse_most || s->effort < EFFORT_ALL_TRIED);
         tiles *= 2) {
        const struct ox_tried outcome = begin(s, (uint32_t)ox_min_u64(tiles, most), act_tier, starts);
        if (outcome.fits) {
            worse_count = best > 0 && outcome.seconds >= best ? worse_count + 1 : 0;
            best = worse_count == 0 ? outcome.seconds : best;
        }
        if (tiles >= most) {
            return;
        }
    }
}

static void begin_all(struct ox_search *s, struct starts *starts) {
    static const enum ox_tier tiers[] = {OX_TIER_HOST, OX_TIER_DEVICE, OX_TIER_NVME};
    for (int i = 0; i < OX_TIER_COUNT; i++) {
        if (!ox_choice_act_tier(s, tiers[i])) {
            continue;
        }
        if (s->request->tiles > 0) {
            (void)begin(s, s->request->tiles, tiers[i], starts);
        } else {
            begin_series(s, tiers[i], starts);
        }
        s->tiers_begun++;
    }
}

/* Tries what is next to each start, the fastest start first: of a large model, whose candidates take long, only as many
 * as leave most of the effort to the climbs. */
static void begin_all_beside(struct ox_search *s, struct starts *starts) {
    const uint64_t most = s->effort + EFFORT_BESIDE;
    while (starts->count > 0 && !is_spent(s) && s->effort < most) {
        uint32_t first = 0;
        for (uint32_t i = 1; i < starts->count; i++) {
            first = starts->at[i].seconds < starts->at[first].seconds ? i : first;
        }
        begin_beside(s, &starts->at[first]);
        starts->at[first] = starts->at[--starts->count];
    }
}

/* ---- other starts -------------------------------------------------------------------------------- */

/* 0 for none, 1 for some, 2 for all. */
static uint32_t some_of(uint32_t units, uint32_t unit_count) {
    return units == 0 ? 0 : units < unit_count ? 1 : 2;
}

static bool alike(const struct ox_candidate *a, const struct ox_candidate *b, uint32_t unit_count) {
    return a->placement.tiles == b->placement.tiles && a->placement.act_tier == b->placement.act_tier &&
           a->device_weights == b->device_weights && a->device_first == b->device_first &&
           a->placement.grads_alternate == b->placement.grads_alternate &&
           a->placement.speculative_spread == b->placement.speculative_spread &&
           some_of(a->device_units, unit_count) == some_of(b->device_units, unit_count);
}

/* Lists the best tried candidate of each group of alike ones, the fastest first; returns their number. */
static uint32_t best_of_each(const struct ox_search *s, struct ox_tried *out) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->tried_count; i++) {
        const struct ox_tried *const tried = &s->tried[i];
        uint32_t at = 0;
        while (at < count && !alike(&out[at].made, &tried->made, s->table->unit_count)) {
            at++;
        }
        if (tried->fits && (at < count ? better(tried, &out[at]) : count < OX_STARTS_MAX)) {
            count += at == count;
            for (; at > 0 && better(tried, &out[at - 1]); at--) {
                out[at] = out[at - 1];
            }
            out[at] = *tried;
        }
    }
    return count;
}

/* Climbs from a start with at most this effort, and returns where that ends. A start may be known by a lower bound
 * alone, which is no time to climb from. */
static struct ox_tried climb_from(struct ox_search *s, const struct ox_tried *start, uint64_t effort) {
    const uint64_t most = s->effort_max;
    s->effort_max = ox_min_u64(most, s->effort + effort);
    struct ox_tried at = try_against(s, &start->made, &none_yet);
    if (at.fits) {
        climb(s, &at);
    }
    s->effort_max = most;
    return at;
}

/* Climbs from the best start of every other home of checkpoints, since a start tells little of what a climb makes of
 * it. Leaves where these end in `out`. */
static void climb_tiers(struct ox_search *s, struct ox_tried out[OX_TIER_COUNT]) {
    struct ox_tried starts[OX_STARTS_MAX];
    const uint32_t count = best_of_each(s, starts);
    const enum ox_tier best = s->best.made.placement.act_tier;
    for (uint32_t i = 0; i < count && starts[i].seconds < FAR * s->best.seconds; i++) {
        const enum ox_tier tier = starts[i].made.placement.act_tier;
        if (tier != best && !out[tier].fits) {
            out[tier] = climb_from(s, &starts[i], EFFORT_CLIMB);
        }
    }
}

/* ---- one choice forced --------------------------------------------------------------------------- */

/* Climbs from a candidate with one choice held. */
static struct ox_tried climb_forced(struct ox_search *s, enum ox_choice choice, const struct ox_candidate *candidate) {
    const uint64_t most = s->effort_max;
    const uint32_t held = s->held;
    s->effort_max = ox_min_u64(most, s->effort + EFFORT_CLIMB);
    s->held |= 1u << choice;
    struct ox_tried at = try_slim(s, choice, *candidate, &none_yet);
    if (at.fits && at.seconds < FAR * s->best.seconds) {
        climb(s, &at);
    }
    s->held = held;
    s->effort_max = most;
    return at;
}

/* The choices that are worth forcing, because others follow from them, and how many values of each. */
static const struct {
    enum ox_choice choice;
    uint32_t most;
} forces[] = {{OX_CHOICE_ACT_TIER, OX_TIER_COUNT}, {OX_CHOICE_TILES, OX_CHOICES_MAX}, {OX_CHOICE_DEPTH, 4},
              {OX_CHOICE_SPREAD, 1}, {OX_CHOICE_KEPT, 3}, {OX_CHOICE_GRADS_ALTERNATE, 1},
              {OX_CHOICE_DEVICE_WEIGHTS, 1}, {OX_CHOICE_DEVICE_FIRST, 1}, {OX_CHOICE_DEVICE_UNITS, 3}};

static void list_forced(const struct ox_search *s, enum ox_choice choice, struct ox_candidate from,
                        struct ox_choices *out) {
    const uint32_t most = ox_plan_tiles_max(s->in);
    *out = (struct ox_choices){.count = 0};
    if (choice != OX_CHOICE_TILES) {
        ox_choice_fns[choice](s, from, out);
    }
    for (uint32_t tiles = 1; choice == OX_CHOICE_TILES && tiles < 2 * most && s->request->tiles == 0; tiles *= 2) {
        from.placement.tiles = (uint32_t)ox_min_u64(tiles, most); /* not only the next ones */
        out->at[out->count++] = from;
    }
}

/* Forces one choice after the other, from the best of them so far, until no value of any helps. */
static void force_each(struct ox_search *s, struct ox_tried *at) {
    struct ox_choices choices;
    const uint64_t most = s->effort_max;
    s->effort_max = ox_min_u64(most, s->effort + EFFORT_FORCED);
    for (double before = 0; before != at->seconds && s->effort < s->effort_max;) {
        before = at->seconds;
        for (unsigned i = 0; i < sizeof forces / sizeof *forces; i++) {
            const struct ox_candidate from = at->made;
            list_forced(s, forces[i].choice, from, &choices);
            for (uint32_t k = 0; k < choices.count && k < forces[i].most && !is_held(s, forces[i].choice); k++) {
                const struct ox_candidate candidate = ox_candidate_plain(s, choices.at[k]);
                const struct ox_tried tried = ox_candidate_same(&candidate, &from)
                                                  ? *at : climb_forced(s, forces[i].choice, &candidate);
                *at = better(&tried, at) ? tried : *at;
            }
        }
        climb(s, at);
    }
    s->effort_max = most;
}

/* Forces each choice from the best, and from the best of every other home of checkpoints, with which it then stays:
 * what is kept and what moves follow from that home, so that no few changes lead from one to another. */
static void force_tiers(struct ox_search *s, const struct ox_tried *of_tiers) {
    struct ox_tried at = s->best;
    force_each(s, &at);
    for (int tier = 0; tier < OX_TIER_COUNT; tier++) {
        at = of_tiers[tier];
        if (at.fits && at.seconds < FAR * s->best.seconds) {
            s->held = 1u << OX_CHOICE_ACT_TIER;
            force_each(s, &at);
            s->held = 0;
        }
    }
}

/* ---- all of it ----------------------------------------------------------------------------------- */

/* The largest effort, once a plan that fits tells about how long the run takes. */
static uint64_t effort_worth(const struct ox_search *s) {
    const double seconds = s->best.seconds * (double)s->request->steps;
    const double worth = (double)(s->effort + EFFORT_LEAST) + EFFORT_SHARE * seconds / EFFORT_SECONDS;
    return s->request->steps == 0 || worth >= (double)s->effort_max ? s->effort_max : (uint64_t)worth;
}

/* Whether another choice is known that this one hardly gets to. */
static bool is_behind(const struct ox_search *s, double times) {
    return is_compared(s) && s->best.seconds > times * s->request->beats;
}

/* Begins with what was found for another rank of the pipeline; returns whether that is as good as needs be. */
static bool begin_found(struct ox_search *s) {
    const struct ox_found *const found = s->request->found;
    const bool fits = found != NULL && found->seconds > 0 && try(s, &found->candidate).fits;
    return fits && s->request->rough && s->best.seconds <= found->seconds;
}

void ox_search_run(struct ox_search *s) {
    struct ox_tried starts[OX_STARTS_MAX], of_tiers[OX_TIER_COUNT] = {{.fits = false}};
    struct starts begun = {.count = 0};
    s->effort_max = is_compared(s) ? EFFORT_ROUGH : EFFORT_MAX;
    if (begin_found(s)) {
        return;
    }
    begin_all(s, &begun);
    begin_all_beside(s, &begun);
    if (!s->best.fits || s->first || is_behind(s, BEHIND_STARTS)) {
        return;
    }
    s->effort_max = effort_worth(s);
    s->effort_gained = s->effort;
    s->begun = true;
    /* Up from the best start first: what it reaches bounds how far the others need to be followed. */
    climb_best(s);
    if (is_behind(s, BEHIND_CLIMB)) {
        return;
    }
    climb_tiers(s, of_tiers);
    climb_best(s);
    if (s->request->rough) {
        return;
    }
    /* Before choices are forced, after which the best of most groups are alike. */
    const uint32_t count = best_of_each(s, starts);
    /* A climb changes one thing at a time and does not cross a valley; forcing tiers and then single choices puts it
     * on the other side. */
    force_tiers(s, of_tiers);
    s->seldom = true;
    s->effort_gained = s->effort;
    for (uint32_t i = 0; i < count && starts[i].seconds < NEAR * s->best.seconds; i++) {
        (void)climb_from(s, &starts[i], EFFORT_MAX);
    }
    climb_best(s);
    struct ox_tried at = s->best;
    s->effort_gained = s->effort;
    force_each(s, &at);
    climb_from_draws(s);
}
