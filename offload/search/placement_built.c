/* Known plans of one search. Different candidates often lead to the same plan: when nothing more fits, when everything
 * fits, and before any plane has been moved nearer. What a plan needs and how long it takes follow from placement and
 * homes alone, so each plan is built and simulated once and then looked up, which counts as next to no effort. */
#include "offload/search/placement_internal.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/hash/hash.h"

#include <stddef.h>
#include <stdlib.h>

/* Effort in tasks built: of simulating a task, and of finding a known plan. */
enum { SIMULATED_COST = 3, LOOKED_UP_COST = 64 };
/* Plans that are remembered, and places of the hash table that finds them by key. */
enum { BUILT_MAX = 8192, PLACE_COUNT = 4 * BUILT_MAX };
/* Places for simulated times, each with the last one whose key leads there. */
enum { TIMED_COUNT = 4096 };

struct ox_built {
    uint64_t key;
    uint64_t need[OX_TIER_COUNT];
    uint64_t spool_key;
    uint32_t task_count;
    double least, seconds; /* negative: not computed yet */
};

/* A simulated time, by all that the simulation reads of a plan. */
struct timed {
    uint64_t key;
    double seconds;
};

enum { KIND_COUNT = OX_PLAN_EVAL_AFTER_STEP + 1 };

/* Which placement and homes the memory of a plan was last built for. */
struct held {
    uint64_t key;
    enum { MEASURED, ORDERED, COMPLETE } is; /* ordered: dependencies are built as well; complete: and offsets */
};

struct ox_built_table {
    struct ox_built *built;
    struct ox_homes *homes; /* per unit: the homes that are hashed, without gaps */
    uint32_t count;
    uint16_t places[PLACE_COUNT]; /* 1 + index; 0 = free */
    /* One per kind of plan. */
    struct ox_built beyond[KIND_COUNT]; /* takes the plan when the table is full */
    struct ox_built *now[KIND_COUNT];   /* for the placement and homes of the last ox_search_build() */
    struct held held[KIND_COUNT];
    uint64_t priced; /* the plan whose tasks' needs are known, */
    bool priced_stays; /* and in which kind of step */
    struct timed timed[TIMED_COUNT];
};

enum ox_status ox_built_open(uint32_t unit_count, struct ox_built_table **out) {
    struct ox_built_table *const table = *out = calloc(1, sizeof *table);
    if (table != NULL) {
        table->built = calloc(BUILT_MAX, sizeof *table->built);
        table->homes = calloc(unit_count, sizeof *table->homes);
    }
    if (table == NULL || table->built == NULL || table->homes == NULL) {
        ox_built_close(out);
        return ox_fail(OX_E_NOMEM, "planner: no memory for its candidates");
    }
    return OX_OK;
}

void ox_built_close(struct ox_built_table **table) {
    if (*table != NULL) {
        free((*table)->homes);
        free((*table)->built);
        free(*table);
    }
    *table = NULL;
}

/* Hashes all that determines a plan and changes during a search. */
static uint64_t key_of(const struct ox_search *s, enum ox_plan_kind kind) {
    struct ox_homes *const homes = s->built->homes;
    for (uint32_t i = 0; i < s->table->unit_count; i++) {
        homes[i] = s->table->shards[i].homes;
    }
    const uint64_t seed = (uint64_t)kind << 8 | s->in->budget.generations;
    const uint64_t key = ox_hash64(&s->in->placement, sizeof s->in->placement, seed);
    return ox_hash64(homes, s->table->unit_count * sizeof *homes, key);
}

static struct ox_plan *plan_of_kind(const struct ox_search *s, enum ox_plan_kind kind) {
    struct ox_plan *const plans[] = {s->plans.train, s->plans.eval, s->plans.eval_after_step};
    return plans[kind];
}

/* The plan without dependencies, built again if another has used its memory since. Placement and homes must be those
 * that `key` was made from. */
static const struct ox_plan *measured(struct ox_search *s, enum ox_plan_kind kind, uint64_t key) {
    struct ox_plan *const plan = plan_of_kind(s, kind);
    struct held *const held = &s->built->held[kind];
    if (held->key != key || plan->task_count == 0) {
        OX_ASSERT(key_of(s, kind) == key);
        ox_plan_measure(plan, s->in, s->in->model.eval_only ? OX_PLAN_EVAL : kind);
        *held = (struct held){.key = key, .is = MEASURED};
    }
    return plan;
}

static void learn(struct ox_search *s, enum ox_plan_kind kind, struct ox_built *built) {
    const struct ox_plan *const plan = measured(s, kind, built->key);
    for (int tier = 0; tier < OX_TIER_COUNT; tier++) {
        built->need[tier] = plan->peak_bytes[tier];
    }
    built->spool_key = ox_hash64(plan->spool_bytes, plan->spool_count * sizeof *plan->spool_bytes, 0);
    built->task_count = plan->task_count;
    built->least = built->seconds = -1;
}

static struct ox_built *find(struct ox_search *s, enum ox_plan_kind kind) {
    struct ox_built_table *const table = s->built;
    const uint64_t key = key_of(s, kind);
    uint32_t place = (uint32_t)(key % PLACE_COUNT);
    for (; table->places[place] != 0; place = (place + 1) % PLACE_COUNT) {
        struct ox_built *const built = &table->built[table->places[place] - 1];
        if (built->key == key) {
            return built;
        }
    }
    struct ox_built *built = &table->beyond[kind];
    if (table->count < BUILT_MAX) {
        built = &table->built[table->count++];
        table->places[place] = (uint16_t)table->count;
    }
    built->key = key;
    learn(s, kind, built);
    s->effort += built->task_count;
    return built;
}

static void ask(struct ox_search *s, enum ox_plan_kind kind) {
    struct ox_built *const built = find(s, kind);
    s->built->now[kind] = built;
    s->effort += LOOKED_UP_COST;
}

bool ox_search_overlaps(const struct ox_search *s) {
    return s->in->placement.overlap && !s->in->model.eval_only;
}

void ox_search_build_eval(struct ox_search *s) {
    s->with_eval = true;
    ask(s, OX_PLAN_EVAL);
    if (ox_search_overlaps(s)) {
        ask(s, OX_PLAN_EVAL_AFTER_STEP);
    }
}

void ox_search_build(struct ox_search *s) {
    ask(s, OX_PLAN_TRAIN);
    if (s->with_eval) {
        ox_search_build_eval(s);
    }
}

uint64_t ox_search_need(const struct ox_search *s, enum ox_tier tier) {
    struct ox_built *const *const now = s->built->now;
    uint64_t bytes = now[OX_PLAN_TRAIN]->need[tier];
    if (s->with_eval) {
        bytes = ox_max_u64(bytes, now[OX_PLAN_EVAL]->need[tier]);
    }
    if (s->with_eval && ox_search_overlaps(s)) {
        bytes = ox_max_u64(bytes, now[OX_PLAN_EVAL_AFTER_STEP]->need[tier]);
    }
    return bytes;
}

uint64_t ox_search_spool_key(const struct ox_search *s) {
    return s->built->now[OX_PLAN_TRAIN]->spool_key;
}

const struct ox_plan *ox_search_plan(struct ox_search *s, enum ox_plan_kind kind) {
    const struct ox_plan *const plan = measured(s, kind, s->built->now[kind]->key);
    struct held *const held = &s->built->held[kind];
    if (held->is != COMPLETE) {
        ox_plan_complete(plan_of_kind(s, kind), s->in, false);
        held->is = COMPLETE;
    }
    return plan;
}

/* The training plan with dependencies, to be simulated: of those that are compared many have too many buffers to look
 * for the best offsets of each. */
static const struct ox_plan *ordered(struct ox_search *s) {
    const struct ox_plan *const plan = measured(s, OX_PLAN_TRAIN, s->built->now[OX_PLAN_TRAIN]->key);
    struct held *const held = &s->built->held[OX_PLAN_TRAIN];
    if (held->is == MEASURED) {
        ox_plan_complete(plan_of_kind(s, OX_PLAN_TRAIN), s->in, true);
        held->is = ORDERED;
    }
    return plan;
}

/* Finds what the tasks of the plan need, and returns the bound that follows. */
static double price(struct ox_search *s, const struct ox_built *built) {
    s->built->priced = built->key;
    s->built->priced_stays = s->setup.stays;
    return ox_sim_least_seconds(&s->setup, measured(s, OX_PLAN_TRAIN, built->key), s->works);
}

double ox_search_least_seconds(struct ox_search *s) {
    struct ox_built *const built = s->built->now[OX_PLAN_TRAIN];
    if (built->least < 0) {
        built->least = price(s, built);
        s->effort += built->task_count / 4;
    }
    return built->least;
}

/* Simulates the plan that was priced. Many differ in what has no effect on it, as how many chunks are in flight where
 * none is, and take the time of another one. */
static double simulated(struct ox_search *s, const struct ox_plan *plan) {
    uint64_t key = ox_hash64(s->works, plan->task_count * sizeof *s->works, 0);
    for (uint32_t i = 0; i < plan->task_count; i++) {
        key = ox_hash64(&plan->tasks[i], offsetof(struct ox_task, uses), key);
    }
    struct timed *const timed = &s->built->timed[key % TIMED_COUNT];
    if (timed->key != key) {
        *timed = (struct timed){key, ox_sim_known_seconds(s->sim, plan, &s->setup, s->works)};
    }
    return timed->seconds;
}

double ox_search_seconds(struct ox_search *s) {
    struct ox_built *const built = s->built->now[OX_PLAN_TRAIN];
    if (built->seconds < 0) {
        if (s->built->priced != built->key || s->built->priced_stays != s->setup.stays) {
            (void)price(s, built);
        }
        built->seconds = simulated(s, ordered(s));
        const uint64_t every = s->request->may_stay ? s->request->persist_steps : 1;
        if (s->setup.stays && every > 0) { /* the mean of steps that stay and committed ones */
            struct ox_sim_setup written = s->setup;
            struct ox_sim_result result;
            written.stays = false;
            ox_sim_run(s->sim, ordered(s), &written, &result);
            built->seconds += (result.seconds - built->seconds + ox_sim_between_seconds(&s->setup)) /
                              (double)every;
        }
        s->effort += (uint64_t)built->task_count * SIMULATED_COST;
    }
    return built->seconds;
}
