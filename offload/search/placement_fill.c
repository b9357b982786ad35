/* Turns a candidate into a placement with homes: it is first built with every plane in its farthest home; what remains
 * of each budget is then given to planes in the candidate's order. Plans alone decide whether it fits, never rates. */
#include "offload/search/placement_internal.h"

#include "base/assert.h"
#include "base/bytes.h"

#include <string.h>

const char *const ox_candidate_orders[OX_CANDIDATE_ORDERS] = {"wgs", "swg", "gws", "wsg", "sgw", "gsw", "wg", "sw",
                                                              "ws",  "gw",  "sg",  "gs",  "w",   "g",   "s",  ""};

enum { FILL_ROUNDS = 8, CREDITS = 3 };

enum ox_tier ox_search_requested(enum ox_tier tier, bool unified) {
    return unified && tier == OX_TIER_DEVICE ? OX_TIER_HOST : tier;
}

uint32_t ox_search_requested_device_units(const struct ox_search *s) {
    const uint32_t unit_count = s->table->unit_count;
    if (s->in->budget.unified || s->in->model.eval_only) {
        return 0;
    }
    return s->request->state_tier == OX_TIER_DEVICE ? unit_count
                                                 : (uint32_t)ox_min_u64(s->request->device_units, unit_count);
}

/* What is left of a unit that is not trained goes where its weights are; lo, which a device has behind hi where it
 * needs it, no nearer than host memory. */
static void follow_weights(struct ox_shard *shard, enum ox_tier far) {
    if (shard->fixed) {
        shard->homes.state = shard->homes.weights == OX_TIER_DEVICE ? far : shard->homes.weights;
        shard->homes.grad = far;
    }
}

void ox_search_farthest_homes(struct ox_search *s, uint32_t device_units, bool device_first) {
    const bool unified = s->in->budget.unified;
    const enum ox_tier far = s->in->budget.nvme_bytes > 0 ? OX_TIER_NVME : OX_TIER_HOST;
    const struct ox_placement_request *const request = s->request;
    for (uint32_t i = 0; i < s->table->unit_count; i++) {
        struct ox_homes *const homes = &s->table->shards[i].homes;
        if (!ox_plan_holds(s->in, i)) { /* whose homes are those that its own ranks chose */
            continue;
        }
        homes->weights =
            request->weights_tier < OX_TIER_COUNT ? ox_search_requested(request->weights_tier, unified) : far;
        homes->state = request->state_tier < OX_TIER_COUNT ? ox_search_requested(request->state_tier, unified) : far;
        homes->grad = request->grad_tier < OX_TIER_COUNT ? ox_search_requested(request->grad_tier, unified) : far;
        if (ox_plan_unit_rules(s->in, i).copied && far == OX_TIER_NVME) { /* in a store that others may write */
            homes->weights = homes->state = homes->grad = OX_TIER_HOST;
        }
        const uint32_t place = s->in->model.units[i].order_idx;
        if (device_first ? place < device_units : place + device_units >= s->in->model.unit_count) {
            homes->weights = homes->state = homes->grad = OX_TIER_DEVICE;
        }
        follow_weights(&s->table->shards[i], far);
    }
}

uint64_t ox_search_budget(const struct ox_search *s, enum ox_tier tier) {
    const struct ox_plan_budget *const given = &s->in->budget;
    return tier == OX_TIER_DEVICE ? (given->unified ? 0 : given->device_bytes)
           : tier == OX_TIER_HOST ? given->host_bytes : given->nvme_bytes;
}

static uint64_t over(const struct ox_search *s, enum ox_tier tier) {
    const uint64_t need = ox_search_need(s, tier), budget = ox_search_budget(s, tier);
    return need > budget ? need - budget : 0;
}

uint64_t ox_search_over_all(struct ox_search *s) {
    const uint64_t host = ox_search_budget(s, OX_TIER_HOST);
    s->host_short |= ox_search_need(s, OX_TIER_HOST) > host - host / 8; /* within which offsets are looked for */
    return over(s, OX_TIER_DEVICE) + over(s, OX_TIER_HOST) + over(s, OX_TIER_NVME);
}

/* ---- filling what remains --------------------------------------------------------------------- */

static enum ox_tier *home_of(struct ox_shard *shard, enum ox_home plane) {
    return plane == OX_HOME_WEIGHTS ? &shard->homes.weights
           : plane == OX_HOME_GRAD  ? &shard->homes.grad : &shard->homes.state;
}

/* Bytes of a plane of what the rank has of a unit. */
static uint64_t plane_bytes(const struct ox_search *s, uint32_t unit_idx, enum ox_home plane) {
    const struct ox_plan_model *const model = &s->in->model;
    const bool fixed = s->table->shards[unit_idx].fixed;
    if (fixed && plane != OX_HOME_WEIGHTS) {
        return 0;
    }
    if (plane == OX_HOME_GRAD) { /* one gradient for each use of the weights, in turn one for all */
        uint64_t slices = 0;
        for (uint32_t i = model->units[unit_idx].grad_idx; i != OX_NONE; i = model->grads[i].addend) {
            slices += ox_plan_goes_on(&model->grads[i]) ? 0 : ox_plan_grad_slice(s->in, i);
        }
        return slices * sizeof(float);
    }
    return plane == OX_HOME_STATE ? ox_shard_unit_state_bytes(s->table, unit_idx)
                                  : ox_plan_weight_bytes(s->in, unit_idx);
}

static bool is_requested(const struct ox_search *s, enum ox_home plane) {
    const enum ox_tier request = plane == OX_HOME_WEIGHTS ? s->request->weights_tier
                              : plane == OX_HOME_GRAD  ? s->request->grad_tier : s->request->state_tier;
    return request < OX_TIER_COUNT;
}

static uint64_t common_divisor(uint64_t a, uint64_t b) {
    while (b != 0) {
        const uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* The unit at this place of the ranking. OX_RANK_SPREAD takes steps of the golden section, so that any number of
 * units is spread evenly. */
static uint32_t ranked(enum ox_ranking ranking, uint32_t unit_count, uint32_t place) {
    const uint32_t last = unit_count - 1;
    switch (ranking) {
    case OX_RANK_FIRST:
        return place;
    case OX_RANK_ENDS:
        return place == 0 ? last : place == 1 ? 0 : last + 1 - place;
    case OX_RANK_SPREAD: {
        uint32_t step = (uint32_t)((uint64_t)unit_count * 618 / 1000) + 1;
        while (common_divisor(step, unit_count) != 1) {
            step++;
        }
        return (uint32_t)((last + (uint64_t)place * step) % unit_count);
    }
    default:
        return last - place;
    }
}

/* How many units may still have this plane moved nearer. */
static uint32_t may_move(const struct ox_search *s, const struct ox_candidate *candidate, enum ox_home plane) {
    const enum ox_tier far = s->in->budget.nvme_bytes > 0 ? OX_TIER_NVME : OX_TIER_HOST;
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->table->unit_count; i++) {
        const bool moves = (!s->table->shards[i].fixed || plane == OX_HOME_WEIGHTS) && ox_plan_holds(s->in, i);
        count += moves && *home_of(&s->table->shards[i], plane) == far;
    }
    return is_requested(s, plane) || count < candidate->away[plane] ? 0 : count - candidate->away[plane];
}

/* Moves this plane of units to `tier` while `left` bytes last; returns how many units moved. */
static uint32_t fill_plane(struct ox_search *s, const struct ox_candidate *candidate, enum ox_home plane,
                           enum ox_tier tier, uint64_t *left) {
    const struct ox_plan_model *const model = &s->in->model;
    const enum ox_tier far = s->in->budget.nvme_bytes > 0 ? OX_TIER_NVME : OX_TIER_HOST;
    const uint32_t most = may_move(s, candidate, plane);
    uint32_t moved = 0;
    for (uint32_t i = 0; i < model->unit_count && moved < most; i++) {
        const uint32_t at = model->order[ranked((enum ox_ranking)candidate->ranking, model->unit_count, i)];
        enum ox_tier *const home = home_of(&s->table->shards[at], plane);
        const bool moves = (!s->table->shards[at].fixed || plane == OX_HOME_WEIGHTS) && ox_plan_holds(s->in, at);
        const uint64_t lo_bytes = s->table->shards[at].fixed ? ox_shard_unit_state_bytes(s->table, at) : 0;
        const uint64_t bytes =
            ox_align_up(plane_bytes(s, at, plane) + lo_bytes, OX_IO_ALIGN_BYTES) + OX_IO_ALIGN_BYTES;
        s->host_short |= tier == OX_TIER_HOST && moves && *home > tier && bytes > *left;
        if (moves && *home > tier && bytes <= *left) { /* tiers are ordered near to far */
            *home = tier;
            follow_weights(&s->table->shards[at], far);
            *left -= bytes;
            moved++;
        }
    }
    return moved;
}

static uint32_t fill_planes(struct ox_search *s, const struct ox_candidate *candidate, enum ox_tier tier,
                            uint64_t left) {
    const char *const order = tier == OX_TIER_HOST ? ox_candidate_orders[candidate->order] : "w";
    uint32_t moved = 0;
    for (const char *at = order; *at != '\0'; at++) {
        const enum ox_home plane = *at == 'w' ? OX_HOME_WEIGHTS : *at == 'g' ? OX_HOME_GRAD : OX_HOME_STATE;
        moved += fill_plane(s, candidate, plane, tier, &left);
    }
    return moved;
}

static void save_homes(struct ox_search *s, struct ox_homes *homes) {
    for (uint32_t i = 0; i < s->table->unit_count; i++) {
        homes[i] = s->table->shards[i].homes;
    }
}

static void load_homes(struct ox_search *s, const struct ox_homes *homes) {
    for (uint32_t i = 0; i < s->table->unit_count; i++) {
        s->table->shards[i].homes = homes[i];
    }
}

/* How many bytes beyond the free ones may be tried, since a plane that is moved nearer frees its transfer buffers: at
 * most two of the largest unit in fp32. */
static uint64_t most_credit(const struct ox_search *s) {
    uint64_t elems_max = 0;
    for (uint32_t i = 0; i < s->table->unit_count; i++) {
        elems_max = ox_max_u64(elems_max, s->in->model.units[i].elem_count);
    }
    return 2 * elems_max * sizeof(float);
}

/* Gives the free bytes of a tier to planes. Moving a plane also frees its transfer buffers, so the free bytes are
 * measured again a few times. A move that needs more than expected, in this tier or another, is undone and tried with
 * less. In the end, if the candidate allows it, more than the free bytes is tried. */
static void fill_tier(struct ox_search *s, const struct ox_candidate *candidate, enum ox_tier tier) {
    uint64_t share = 1, credit = 0;
    uint32_t credits = 0;
    for (int round = 0; round < FILL_ROUNDS; round++) {
        const uint64_t need = ox_search_need(s, tier), budget = ox_search_budget(s, tier);
        if (need > budget) {
            return;
        }
        const uint64_t over_before = ox_search_over_all(s);
        save_homes(s, s->homes);
        const uint32_t moved = fill_planes(s, candidate, tier, (budget - need) / share + credit);
        if (moved > 0) {
            ox_search_build(s);
        }
        const bool worse = moved > 0 && ox_search_over_all(s) > over_before;
        if (worse) {
            load_homes(s, s->homes);
            ox_search_build(s);
        }
        if (credit == 0 && worse) {
            share *= 2;
        } else if (worse || moved == 0) {
            if (credits == (candidate->credit ? CREDITS : 0)) {
                return;
            }
            share = 1;
            credit = most_credit(s) >> credits++;
        }
    }
}

/* Lists the extents of the table. That of a rank leaves those of other ranks empty: this one needs no room for them. */
static void list_extents(struct ox_search *s) {
    ox_shard_extents(s->table, s->extents);
    s->extent_count = 0;
    for (uint32_t i = 0; i < 2 * s->table->chunk_count; i++) {
        if (s->extents[i].bytes > 0) {
            s->extents[s->extent_count++] = s->extents[i];
        }
    }
    s->extent_count += ox_low_rank_extents(s->in, s->extents + s->extent_count);
}

/* Each extent lies whole on one drive, so what fits in the sum of allowances may not fit in each. */
enum ox_status ox_search_check_drives(struct ox_search *s) {
    const struct ox_plan_budget *const given = &s->in->budget;
    if (given->drive_bytes == NULL || given->nvme_bytes == 0) {
        return OX_OK;
    }
    const struct ox_plan *const train = ox_search_plan(s, OX_PLAN_TRAIN);
    struct ox_store_config config = {
        .bytes_max = given->drive_bytes,
        .speeds = given->drive_speeds,
        .drive_count = given->drive_count,
        .extents = s->extents,
        .spool_bytes = train->spool_bytes,
        .spool_count = train->spool_count,
        .generations = ox_plan_generations(given),
    };
    struct ox_store_sums sums = ox_shard_extent_sums(s->table);
    const uint64_t residuals = ox_low_rank_stored_bytes(s->in);
    sums.bytes += residuals;
    sums.extent_bytes_max = ox_max_u64(sums.extent_bytes_max, residuals);
    sums.extent_count += s->in->model.grad_count;
    if (ox_store_surely_fits(&config, &sums)) {
        return OX_OK;
    }
    if (s->extent_count == 0) { /* only when needed: it takes long for a large model */
        list_extents(s);
    }
    config.extent_count = s->extent_count;
    return config.extent_count == 0 ? OX_OK : ox_store_fits(&config);
}

/* Whether the drives hold the store. Answers are remembered by spooled sizes, which most candidates share, because
 * dividing a large store over the drives takes long. */
static bool drives_hold(struct ox_search *s) {
    const uint64_t hash = ox_search_spool_key(s) ^ ox_plan_generations(&s->in->budget);
    for (uint32_t i = 0; i < s->drives_answer_count; i++) {
        if (s->drives_answers[i].hash == hash) {
            return s->drives_answers[i].fits;
        }
    }
    const bool fits = ox_search_check_drives(s) == OX_OK;
    if (s->drives_answer_count < OX_DRIVES_ANSWERS_MAX) {
        s->drives_answers[s->drives_answer_count++] = (struct ox_drives_answer){.hash = hash, .fits = fits};
    }
    return fits;
}

/* Whether any unit is updated in backward; those on the device are not. */
static bool updates_early(const struct ox_search *s) {
    bool any = false;
    for (uint32_t i = 0; i < s->table->unit_count && !any; i++) {
        any = ox_plan_unit_rules(s->in, i).speculative;
    }
    return any;
}

/* Decides whether steps stay uncommitted. Where every plane is in memory, such steps write nothing and save more than
 * speculative updates do that are taken back to the drives, so these are dropped if the carried update fits, unless
 * they are requested. Where planes live on drives, the simulation judges: with two generations a candidate with such
 * updates commits every step. */
static void let_stay(struct ox_search *s) {
    if (ox_plan_commits_between(s->in) && s->in->placement.speculative_units > 0 && !updates_early(s)) {
        s->in->placement.speculative_units = 0;
        ox_search_build(s);
    }
    const uint32_t speculative_units = s->in->placement.speculative_units;
    const bool fits = ox_search_over_all(s) == 0;
    s->crowded = false;
    s->setup.stays = false;
    if (!s->request->may_stay && !ox_plan_commits_between(s->in)) {
        return;
    }
    s->in->placement.speculative_units = 0;
    const bool may_drop = s->request->speculative_units <= 0 && s->request->overlap != 1;
    const bool in_memory = may_drop && !s->in->placement.saves_replaced && !ox_plan_transacts(s->in, true);
    const bool stays = ox_plan_stays(s->in, s->request->persist_steps);
    if (in_memory && stays && speculative_units > 0) {
        ox_search_build(s);
        s->setup.stays = !fits || ox_search_over_all(s) == 0;
        s->crowded = !s->setup.stays;
    } else if (speculative_units == 0) {
        s->setup.stays = stays;
    }
    if (!s->setup.stays && speculative_units > 0) {
        s->in->placement.speculative_units = speculative_units;
        s->setup.stays = ox_plan_stays(s->in, s->request->persist_steps);
        if (!s->setup.stays && may_drop && ox_plan_commits_between(s->in)) {
            s->in->placement.speculative_units = 0;
            s->setup.stays = stays;
        }
        ox_search_build(s);
    }
}

/* Whether steps may stay uncommitted where they must, because state lives on the device. */
static bool can_commit(const struct ox_search *s) {
    return s->setup.stays || !ox_plan_commits_between(s->in);
}

static void fill(struct ox_search *s, const struct ox_candidate *candidate) {
    if (!s->in->budget.unified && candidate->device_weights && !ox_plan_shares_host(s->in)) {
        fill_tier(s, candidate, OX_TIER_DEVICE);
    }
    fill_tier(s, candidate, OX_TIER_HOST);
}

/* Bytes that the units on the device have there, whatever else the plan needs. */
static uint64_t least_of_units(const struct ox_search *s) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->table->unit_count; i++) {
        const struct ox_homes *const homes = &s->table->shards[i].homes;
        if (ox_plan_holds(s->in, i) && homes->weights == OX_TIER_DEVICE) {
            bytes += ox_min_u64(s->table->shards[i].elem_count * OX_HI_BYTES, ox_plan_weight_bytes(s->in, i));
        }
        if (ox_plan_holds(s->in, i) && homes->state == OX_TIER_DEVICE && !s->in->model.eval_only) {
            bytes += ox_shard_unit_state_bytes(s->table, i);
        }
    }
    return bytes;
}

/* Bytes of activations that blocks have on the device at the end of a tile's forward. */
static uint64_t least_of_acts(const struct ox_search *s) {
    const struct ox_plan_model *const model = &s->in->model;
    const struct ox_placement *const p = &s->in->placement;
    uint32_t left = p->kept_units;
    uint64_t bytes = 0;
    for (uint32_t i = model->stage_count; i > ox_plan_first_back(model) && !model->eval_only; i--) {
        const struct ox_plan_stage *const stage = &model->stages[i - 1];
        if (stage->kind == OX_PLAN_BLOCK) {
            bytes += left > 0 ? stage->kept_bytes : 0;
            bytes += p->act_tier == OX_TIER_DEVICE && stage->saves_input ? stage->input_bytes : 0;
            left -= left > 0;
        }
    }
    return bytes * ox_div_up(model->micro_batches, p->tiles);
}

static void begin_fit(struct ox_search *s, const struct ox_candidate *candidate) {
    s->in->placement = candidate->placement;
    if (candidate->generations > 0) {
        s->in->budget.generations = candidate->generations;
    }
    ox_search_farthest_homes(s, candidate->device_units, candidate->device_first);
    ox_search_build(s);
}

/* Fills the candidate and checks budgets and drives. A gradient that was moved nearer may leave spooled extents that
 * are harder to divide over the drives; the candidate is then taken without any moved planes. */
static bool fit(struct ox_search *s, const struct ox_candidate *candidate) {
    begin_fit(s, candidate);
    fill(s, candidate);
    let_stay(s);
    if (ox_search_over_all(s) == 0 && !drives_hold(s)) {
        begin_fit(s, candidate);
        let_stay(s);
    }
    /* A plan that fits the drives' sum but not each drive counts as one byte short: the nearest miss. */
    const uint64_t over_bytes = ox_search_over_all(s);
    const uint64_t short_bytes = over_bytes > 0 ? over_bytes : !can_commit(s) || !drives_hold(s);
    if (short_bytes > 0 && short_bytes < s->nearest_short &&
        candidate->device_units == ox_search_requested_device_units(s)) {
        s->nearest_short = short_bytes;
        s->nearest = candidate->placement;
    }
    return short_bytes == 0;
}

bool ox_search_cannot_fit(const struct ox_search *s) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->table->unit_count && !s->in->model.eval_only; i++) {
        bytes += ox_plan_holds(s->in, i) ? ox_shard_unit_state_bytes(s->table, i) : 0;
    }
    return s->in->budget.nvme_bytes == 0 &&
           bytes > ox_search_budget(s, OX_TIER_HOST) + ox_search_budget(s, OX_TIER_DEVICE);
}

bool ox_search_is_hopeless(struct ox_search *s, const struct ox_candidate *candidate) {
    s->in->placement = candidate->placement;
    ox_search_farthest_homes(s, candidate->device_units, candidate->device_first);
    const bool counts = !s->in->budget.unified && ox_plan_pipe(s->in) == 1;
    return counts && least_of_units(s) + least_of_acts(s) > ox_search_budget(s, OX_TIER_DEVICE);
}

bool ox_search_fit_train(struct ox_search *s, const struct ox_candidate *candidate) {
    s->with_eval = false;
    return fit(s, candidate);
}

bool ox_search_fit_eval(struct ox_search *s, const struct ox_candidate *candidate) {
    ox_search_build_eval(s);
    return ox_search_over_all(s) == 0 || fit(s, candidate);
}
