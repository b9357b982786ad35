#include "tests/kit/plan/random_plan.h"

#include "base/bytes.h"
#include "base/prng/prng.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>

enum plane { WEIGHTS, GRAD, STATE, PLANE_COUNT };

/* A plane of a unit that may move to a nearer tier; moves of smaller keys are made first. */
struct random_plan_move {
    double key;
    uint32_t unit_idx;
    enum plane plane;
};

static double uniform(struct random_plan *r) {
    return ox_uniform(r->seed, 11, r->counter++);
}

static uint32_t below(struct random_plan *r, uint32_t count) {
    return (uint32_t)(uniform(r) * count);
}

void random_plan_open(struct ox_plan_input *in, struct ox_shard_table *table, const struct ox_sim_setup *setup,
                      struct random_plan *out) {
    in->table = table;
    *out = (struct random_plan){.in = in, .table = table, .setup = setup};
    out->moves = calloc((size_t)table->unit_count * (PLANE_COUNT + 1), sizeof *out->moves);
    if (out->moves == NULL) {
        test_skip("no memory");
    }
    REQUIRE_OK(ox_plan_open(in, &out->train));
    REQUIRE_OK(ox_plan_open(in, &out->eval));
    REQUIRE_OK(ox_sim_open(out->train->task_cap, &out->sim));
}

void random_plan_close(struct random_plan *r) {
    ox_sim_close(&r->sim);
    ox_plan_close(&r->eval);
    ox_plan_close(&r->train);
    free(r->moves);
}

/* ---- what is drawn --------------------------------------------------------------------------------- */

static enum ox_tier draw_act_tier(struct random_plan *r) {
    const bool unified = r->in->budget.unified, store = r->in->budget.nvme_bytes > 0;
    return (enum ox_tier)(unified + below(r, 2 - unified + store)); /* near to far */
}

/* A unit that is updated in backward replaces what must still be held: by drives of two or three generations, or by
 * memory. */
static void draw_speculative_units(struct random_plan *r) {
    struct ox_placement *const placement = &r->in->placement;
    const bool store = r->in->budget.nvme_bytes > 0;
    const bool may = !store || ox_plan_generations(&r->in->budget) >= 2;
    placement->speculative_units =
        may && placement->overlap && below(r, 3) > 0 ? below(r, r->in->model.unit_count + 1) : 0;
    placement->speculative_spread = placement->speculative_units > 0 && below(r, 2) == 0;
    placement->saves_replaced = placement->speculative_units > 0 && (!store || below(r, 2) == 0);
    placement->weights_ahead = placement->saves_replaced && below(r, 2) == 0;
}

/* Whether units may live on the device with all their planes. */
static bool has_device_units(const struct random_plan *r) {
    return !r->in->budget.unified && r->in->budget.nvme_bytes == 0;
}

/* The first or the last units live on the device with all their planes, and no other unit's state does. */
static void put_on_device(struct random_plan *r, uint32_t count, bool first) {
    const struct ox_plan_model *const model = &r->in->model;
    for (uint32_t i = 0; i < r->table->unit_count; i++) {
        struct ox_homes *const homes = &r->table->shards[i].homes;
        const uint32_t place = model->units[i].order_idx;
        if (first ? place < count : place + count >= model->unit_count) {
            *homes = (struct ox_homes){OX_TIER_DEVICE, OX_TIER_DEVICE, OX_TIER_DEVICE};
        } else if (homes->state == OX_TIER_DEVICE) {
            *homes = (struct ox_homes){OX_TIER_HOST, OX_TIER_HOST, OX_TIER_HOST};
        }
    }
}

/* Draws one field of the placement anew. */
enum { FIELD_COUNT = 8 };
static void draw_field(struct random_plan *r, uint32_t field) {
    struct ox_placement *const placement = &r->in->placement;
    switch (field) {
    case 0:
        placement->tiles = 1 + below(r, ox_plan_tiles_max(r->in));
        break;
    case 1:
        placement->prefetch_depth = below(r, 5);
        break;
    case 2:
        placement->act_tier = draw_act_tier(r);
        break;
    case 3:
        placement->stream_slots = 1 + below(r, 1u << below(r, 6));
        break;
    case 4:
        placement->overlap = below(r, 4) > 0;
        placement->speculative_units = placement->overlap ? placement->speculative_units : 0;
        placement->saves_replaced = placement->saves_replaced && placement->overlap;
        break;
    case 5:
        placement->device_sums = below(r, 2);
        placement->grads_alternate = below(r, 2);
        break;
    case 6:
        placement->kept_units = below(r, 2) * below(r, ox_plan_block_count(&r->in->model) + 1);
        break;
    default:
        draw_speculative_units(r);
    }
}

static int by_key(const void *a, const void *b) {
    const struct random_plan_move *const x = a, *const y = b;
    return x->key < y->key ? -1 : x->key > y->key;
}

/* Lists the planes that may move nearer and returns their count. The order is drawn: all mixed, or plane by plane, in
 * each the first units first, the last ones first, or mixed. A plane may be left out. */
static uint32_t draw_moves(struct random_plan *r, bool device, struct random_plan_move *moves) {
    const uint32_t unit_count = r->table->unit_count;
    const bool mixed = below(r, 3) == 0;
    uint32_t count = 0;
    for (int plane = WEIGHTS; plane < (device ? WEIGHTS + 1 : PLANE_COUNT); plane++) {
        const uint32_t way = below(r, 3);
        const double rank = mixed ? 0 : uniform(r) * 100;
        if (below(r, 4) == 0) {
            continue;
        }
        for (uint32_t i = 0; i < unit_count; i++) {
            const double place = (double)i / unit_count;
            const double key = mixed || way == 0 ? uniform(r) : way == 1 ? place : 1 - place;
            moves[count++] = (struct random_plan_move){rank + key, i, (enum plane)plane};
        }
    }
    qsort(moves, count, sizeof *moves, by_key);
    return count;
}

/* ---- what fits ------------------------------------------------------------------------------------- */

/* How many moves of each list are made, beginning with the first; and which units live on the device in any case. */
struct made {
    const struct random_plan_move *lists[2]; /* to the device, to the host */
    uint32_t counts[2];
    uint32_t device_units;
    bool device_first;
};

static void set_homes(struct random_plan *r, const struct made *made) {
    const enum ox_tier far = r->in->budget.nvme_bytes > 0 ? OX_TIER_NVME : OX_TIER_HOST;
    for (uint32_t i = 0; i < r->table->unit_count; i++) {
        r->table->shards[i].homes = (struct ox_homes){far, far, far};
    }
    for (int tier = OX_TIER_HOST; tier >= OX_TIER_DEVICE; tier--) {
        for (uint32_t i = 0; i < made->counts[tier]; i++) {
            const struct random_plan_move *const move = &made->lists[tier][i];
            struct ox_homes *const homes = &r->table->shards[move->unit_idx].homes;
            *(move->plane == WEIGHTS ? &homes->weights : move->plane == GRAD ? &homes->grad : &homes->state) =
                (enum ox_tier)tier;
        }
    }
    put_on_device(r, made->device_units, made->device_first);
}

static bool within(const struct ox_plan_budget *budget, const struct ox_plan *plan) {
    return plan->peak_bytes[OX_TIER_DEVICE] <= (budget->unified ? 0 : budget->device_bytes) &&
           plan->peak_bytes[OX_TIER_HOST] <= budget->host_bytes && plan->peak_bytes[OX_TIER_NVME] <= budget->nvme_bytes;
}

/* Builds the plans of the placement and homes as they are. */
static bool all_fit(struct random_plan *r) {
    const enum ox_plan_kind last = r->in->placement.overlap ? OX_PLAN_EVAL_AFTER_STEP : OX_PLAN_EVAL;
    ox_plan_build(r->train, r->in, OX_PLAN_TRAIN);
    bool good = within(&r->in->budget, r->train);
    for (int kind = OX_PLAN_EVAL; kind <= (int)last && good; kind++) {
        ox_plan_build(r->eval, r->in, (enum ox_plan_kind)kind);
        good = within(&r->in->budget, r->eval);
    }
    return good;
}

static bool fits(struct random_plan *r, const struct made *made) {
    set_homes(r, made);
    return all_fit(r);
}

static double simulate(struct random_plan *r) {
    struct ox_sim_result result;
    ox_sim_run(r->sim, r->train, r->setup, &result);
    return result.seconds + ox_sim_between_seconds(r->setup);
}

/* Makes as many moves of a list as fit, and half of the time fewer. */
static void move_nearer(struct random_plan *r, struct made *made, enum ox_tier tier, uint32_t count) {
    uint32_t most = 0;
    for (uint32_t past = count + 1; past - most > 1;) {
        const uint32_t middle = past == count + 1 ? count : most + (past - most) / 2; /* all of them at first */
        made->counts[tier] = middle;
        *(fits(r, made) ? &most : &past) = middle;
    }
    made->counts[tier] = below(r, 2) == 0 ? most : below(r, most + 1);
}

double random_plan_draw(struct random_plan *r, uint64_t seed) {
    r->seed = seed;
    r->counter = 0;
    r->in->placement = (struct ox_placement){.tiles = 1};
    for (uint32_t field = 0; field < FIELD_COUNT; field++) {
        draw_field(r, field);
    }
    struct made made = {.lists = {r->moves, r->moves + r->table->unit_count}, .device_first = below(r, 2) == 0};
    made.device_units = has_device_units(r) ? below(r, 2) * below(r, r->table->unit_count + 1) : 0;
    while (!fits(r, &made)) {
        if (made.device_units + r->in->placement.kept_units == 0) {
            return 0;
        }
        made.device_units /= 2;
        r->in->placement.kept_units /= 2;
    }
    for (int tier = OX_TIER_DEVICE; tier <= OX_TIER_HOST; tier++) {
        if (tier == OX_TIER_HOST ? r->in->budget.nvme_bytes > 0 : !r->in->budget.unified) {
            struct random_plan_move *const list = tier == OX_TIER_DEVICE ? r->moves : r->moves + r->table->unit_count;
            move_nearer(r, &made, (enum ox_tier)tier, draw_moves(r, tier == OX_TIER_DEVICE, list));
        }
    }
    if (!fits(r, &made)) { /* with fewer moves a packing may be worse */
        return 0;
    }
    return simulate(r);
}

/* ---- near a plan ----------------------------------------------------------------------------------- */

/* Moves a plane of some neighbouring units to another tier. */
static void draw_homes(struct random_plan *r) {
    const uint32_t unit_count = r->table->unit_count, first = below(r, unit_count);
    if (has_device_units(r) && below(r, 4) == 0) {
        put_on_device(r, below(r, unit_count + 1), below(r, 2) == 0);
        return;
    }
    const enum plane plane = (enum plane)below(r, PLANE_COUNT);
    const bool store = r->in->budget.nvme_bytes > 0;
    const uint32_t nearest = plane == WEIGHTS && !r->in->budget.unified ? OX_TIER_DEVICE : OX_TIER_HOST;
    const enum ox_tier tier = (enum ox_tier)(nearest + below(r, OX_TIER_HOST + store - nearest + 1));
    for (uint32_t i = below(r, 3) > 0 ? 1 : 1 + below(r, unit_count); i > 0; i--) {
        struct ox_homes *const homes = &r->table->shards[(first + i) % unit_count].homes;
        if (homes->state != OX_TIER_DEVICE || r->in->budget.unified) {
            *(plane == WEIGHTS ? &homes->weights : plane == GRAD ? &homes->grad : &homes->state) = tier;
        }
    }
}

double random_plan_climb(struct random_plan *r, uint64_t seed, uint32_t tries, double seconds) {
    struct ox_homes *const homes = calloc(r->table->unit_count, sizeof *homes);
    if (homes == NULL) {
        test_skip("no memory");
    }
    r->seed = seed;
    r->counter = 0;
    for (uint32_t i = 0; i < tries; i++) {
        const struct ox_placement placement = r->in->placement;
        for (uint32_t u = 0; u < r->table->unit_count; u++) {
            homes[u] = r->table->shards[u].homes;
        }
        for (uint32_t k = 1 + below(r, 4); k > 0; k--) {
            if (below(r, 3) > 0) {
                draw_field(r, below(r, FIELD_COUNT));
            } else {
                draw_homes(r);
            }
        }
        const double tried = all_fit(r) ? simulate(r) : INFINITY;
        if (tried <= seconds) {
            seconds = tried;
            continue;
        }
        r->in->placement = placement;
        for (uint32_t u = 0; u < r->table->unit_count; u++) {
            r->table->shards[u].homes = homes[u];
        }
    }
    free(homes);
    return seconds;
}
