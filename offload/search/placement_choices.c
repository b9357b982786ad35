/* What may be chosen: one function for each thing that a placement decides, which lists its other values. The search
 * changes one or two choices at a time and knows nothing else about them. A new choice of the placement is a row of
 * offload/plan/choices.h, and a function of the table at the end. */
#include "offload/search/placement_internal.h"

#include "base/assert.h"
#include "base/bytes.h"
#include "base/hash/hash.h"

#include <string.h>

bool ox_candidate_same(const struct ox_candidate *a, const struct ox_candidate *b) {
    const struct ox_placement *const x = &a->placement, *const y = &b->placement;
    bool same = x->act_tier == y->act_tier && x->overlap == y->overlap;
    for (int i = 0; i < OX_CHOICE_ROW_COUNT && same; i++) {
        same = ox_choice_value(x, &ox_choice_rows[i]) == ox_choice_value(y, &ox_choice_rows[i]);
    }
    return same && a->order == b->order && a->ranking == b->ranking && a->device_weights == b->device_weights &&
           a->credit == b->credit && a->device_units == b->device_units && a->device_first == b->device_first &&
           a->generations == b->generations && memcmp(a->away, b->away, sizeof a->away) == 0;
}

uint64_t ox_candidate_hash(const struct ox_candidate *candidate) {
    const struct ox_placement *const p = &candidate->placement;
    const uint32_t others[] = {(uint32_t)p->act_tier,
                               p->overlap,
                               candidate->order,
                               candidate->ranking,
                               candidate->device_weights,
                               candidate->credit,
                               candidate->device_units,
                               candidate->device_first,
                               candidate->generations,
                               candidate->away[OX_HOME_WEIGHTS],
                               candidate->away[OX_HOME_GRAD],
                               candidate->away[OX_HOME_STATE]};
    uint32_t values[OX_CHOICE_ROW_COUNT];
    for (int i = 0; i < OX_CHOICE_ROW_COUNT; i++) {
        values[i] = ox_choice_value(p, &ox_choice_rows[i]);
    }
    return ox_hash64(values, sizeof values, ox_hash64(others, sizeof others, 0));
}

/* Whether a gradient leaves a device that has a memory of its own. */
static bool some_gradient_leaves(const struct ox_search *s, const struct ox_candidate *candidate) {
    return !s->in->budget.unified && !s->in->model.eval_only && candidate->device_units < s->table->unit_count;
}

static void set_requested(int32_t request, bool *chosen) {
    *chosen = request < 0 ? *chosen : request == 1;
}

struct ox_candidate ox_candidate_plain(const struct ox_search *s, struct ox_candidate candidate) {
    if (candidate.device_units >= s->table->unit_count) {
        candidate.order = 0;
        candidate.ranking = OX_RANK_FIRST;
        candidate.device_weights = true;
        candidate.credit = false;
        memset(candidate.away, 0, sizeof candidate.away);
    }
    if (candidate.placement.speculative_units == 0 || s->request->saves_replaced == 0) {
        candidate.placement.saves_replaced = false;
    } else if (s->in->budget.nvme_bytes == 0 || s->request->saves_replaced == 1) {
        candidate.placement.saves_replaced = true;
    }
    if (!candidate.placement.saves_replaced || s->in->budget.nvme_bytes > 0 || s->in->model.precision->lo_travels) {
        candidate.placement.weights_ahead = false;
    } else {
        set_requested(s->request->weights_ahead, &candidate.placement.weights_ahead);
    }
    const uint32_t speculative_units = candidate.placement.speculative_units;
    if (speculative_units == 0 || speculative_units >= s->in->model.update_count) {
        candidate.placement.speculative_spread = false;
    } else {
        set_requested(s->request->speculative_spread, &candidate.placement.speculative_spread);
    }
    if (!some_gradient_leaves(s, &candidate)) {
        candidate.placement.device_sums = candidate.placement.grads_alternate = false;
    } else {
        set_requested(s->request->device_sums, &candidate.placement.device_sums);
        set_requested(s->request->grads_alternate, &candidate.placement.grads_alternate);
    }
    if (candidate.device_units == 0 || candidate.device_units >= s->table->unit_count) {
        candidate.device_first = false;
    }
    if (speculative_units == 0 && candidate.generations == 3) { /* no update needs a third slot */
        candidate.generations = 2;
    }
    return candidate;
}

static void add(struct ox_choices *out, const struct ox_candidate *candidate) {
    OX_ASSERT(out->count < OX_CHOICES_MAX);
    out->at[out->count++] = *candidate;
}

/* ---- what the request and the budget allow ---------------------------------------------------------- */

bool ox_choice_act_tier(const struct ox_search *s, enum ox_tier tier) {
    const bool unified = s->in->budget.unified;
    if (s->request->act_tier < OX_TIER_COUNT) {
        return ox_search_requested(s->request->act_tier, unified) == ox_search_requested(tier, unified) &&
               !(unified && tier == OX_TIER_DEVICE);
    }
    return tier == OX_TIER_NVME ? s->in->budget.nvme_bytes > 0 : tier == OX_TIER_HOST || !unified;
}

bool ox_choice_overlap(const struct ox_search *s, bool overlap) {
    if (s->in->model.eval_only) { /* there is no optimizer, whatever the request */
        return !overlap;
    }
    return s->request->overlap < 0 ? overlap || s->request->speculative_units <= 0 /* which need overlap */
                                   : overlap == (s->request->overlap == 1);
}

uint32_t ox_choice_speculative_units(const struct ox_search *s, uint32_t quarters) {
    const uint32_t unit_count = s->table->unit_count;
    const bool store = s->in->budget.nvme_bytes > 0;
    if (store ? ox_plan_generations(&s->in->budget) < 2 : s->request->saves_replaced == 0) {
        return 0;
    }
    if (s->request->speculative_units >= 0) {
        return (uint32_t)ox_min_u64((uint64_t)s->request->speculative_units, unit_count);
    }
    /* A request for overlap that names no number of units means at least one. */
    const uint32_t least = s->request->overlap == 1;
    return (uint32_t)ox_max_u64((uint64_t)unit_count * quarters / OX_CHOICE_QUARTERS, least);
}

uint32_t ox_choice_kept_units(const struct ox_search *s) {
    const struct ox_plan_model *const model = &s->in->model;
    const uint32_t block_count = ox_plan_block_count(model);
    bool may = false;
    for (uint32_t i = 0; i < model->stage_count && !model->eval_only; i++) {
        may = may || model->stages[i].kept_bytes > 0;
    }
    const uint64_t request = s->request->kept_units < 0 ? block_count : (uint64_t)s->request->kept_units;
    return may ? (uint32_t)ox_min_u64(request, block_count) : 0;
}

bool ox_choice_device_weights(const struct ox_search *s) {
    return !s->in->budget.unified && s->request->weights_tier == OX_TIER_COUNT && !ox_plan_shares_host(s->in);
}

bool ox_request_speculates(const struct ox_placement_request *request) {
    return request->speculative_units > 0 || (request->speculative_units < 0 && request->overlap == 1);
}

/* A unit on the device has its weights, gradients and state there, which no request may contradict. Nor is it updated
 * in backward, which with a store would leave a request for that to no unit. */
bool ox_choice_device_units(const struct ox_search *s) {
    const struct ox_placement_request *const request = s->request;
    if (s->in->budget.nvme_bytes > 0 && ox_request_speculates(request)) {
        return false;
    }
    return ox_choice_device_weights(s) && request->state_tier == OX_TIER_COUNT && request->grad_tier == OX_TIER_COUNT &&
           request->device_units == 0 && !request->state_off_device && !s->in->model.eval_only;
}

static bool order_allowed(const struct ox_search *s, const char *order) {
    return !(strchr(order, 'w') != NULL && s->request->weights_tier < OX_TIER_COUNT) &&
           !(strchr(order, 'g') != NULL && (s->request->grad_tier < OX_TIER_COUNT || s->in->model.eval_only)) &&
           !(strchr(order, 's') != NULL && (s->request->state_tier < OX_TIER_COUNT || s->in->model.eval_only));
}

/* ---- the choices --------------------------------------------------------------------------------- */

static void choose_tiles(const struct ox_search *s, struct ox_candidate from, struct ox_choices *out) {
    const uint32_t most = ox_plan_tiles_max(s->in), at = from.placement.tiles;
    const uint32_t others[] = {at - 1, at + 1, at / 2, at * 2};
    for (unsigned i = 0; i < sizeof others / sizeof *others && s->request->tiles == 0; i++) {
        from.placement.tiles = others[i];
        if (others[i] >= 1 && others[i] <= most) {
            add(out, &from);
        }
    }
}

static void choose_act_tier(const struct ox_search *s, struct ox_candidate from, struct ox_choices *out) {
    for (int tier = OX_TIER_DEVICE; tier < OX_TIER_COUNT; tier++) {
        from.placement.act_tier = (enum ox_tier)tier;
        if (ox_choice_act_tier(s, (enum ox_tier)tier)) {
            add(out, &from);
        }
    }
}

/* A requested depth fixes the slots too: they stay as they are at the start of the search. */
static void choose_depth(const struct ox_search *s, struct ox_candidate from, struct ox_choices *out) {
    for (uint32_t depth = 0; depth < 4 && s->request->prefetch_depth < 0; depth++) {
        from.placement.prefetch_depth = depth;
        add(out, &from);
    }
}

static void choose_slots(const struct ox_search *s, struct ox_candidate from, struct ox_choices *out) {
    static const uint8_t slots[] = {1, 2, OX_SLOTS_SHALLOW, OX_SLOTS_MIDDLE, OX_SLOTS_DEEP};
    for (unsigned i = 0; i < sizeof slots && s->request->prefetch_depth < 0; i++) {
        from.placement.stream_slots = slots[i];
        add(out, &from);
    }
}

static void choose_slots_fine(const struct ox_search *s, struct ox_candidate from, struct ox_choices *out) {
    const uint32_t at = from.placement.stream_slots;
    for (uint32_t by = at / 2; by > 0 && s->request->prefetch_depth < 0; by /= 2) {
        from.placement.stream_slots = at - by;
        add(out, &from);
        from.placement.stream_slots = at + by;
        if (at + by <= OX_SLOTS_DEEP) {
            add(out, &from);
        }
    }
}

/* Without overlap, or with each quarter of the units updated speculatively, which save what they replace or not, and
 * then as little as may be. */
static void choose_overlap(const struct ox_search *s, struct ox_candidate from, struct ox_choices *out) {
    for (uint32_t quarters = 0; quarters <= OX_CHOICE_QUARTERS && ox_choice_overlap(s, true); quarters++) {
        from.placement.overlap = true;
        from.placement.speculative_units = ox_choice_speculative_units(s, quarters);
        for (int saves = 0; saves < 2; saves++) {
            from.placement.saves_replaced = from.placement.weights_ahead = saves == 1;
            add(out, &from);
        }
    }
    if (ox_choice_overlap(s, false)) {
        from.placement.overlap = from.placement.saves_replaced = false;
        from.placement.speculative_spread = from.placement.weights_ahead = false;
        from.placement.speculative_units = 0;
        add(out, &from);
    }
}

/* Varies the number of speculative units in small steps, because the optimizer's time is split between its own backward
 * and the next forward, and single units decide the balance. */
static void choose_speculative(const struct ox_search *s, struct ox_candidate from, struct ox_choices *out) {
    const uint32_t unit_count = s->table->unit_count, at = from.placement.speculative_units;
    const bool may = from.placement.overlap && s->request->speculative_units < 0 &&
                     ox_choice_speculative_units(s, OX_CHOICE_QUARTERS) > 0;
    for (uint32_t by = unit_count / 8; by > 0 && may; by /= 2) {
        if (at > by) {
            from.placement.speculative_units = at - by;
            add(out, &from);
        }
        if (at + by <= unit_count) {
            from.placement.speculative_units = at + by;
            add(out, &from);
        }
    }
}

static void choose_spread(const struct ox_search *s, struct ox_candidate from, struct ox_choices *out) {
    from.placement.speculative_spread = !from.placement.speculative_spread;
    if (from.placement.speculative_units > 0 && s->request->speculative_spread < 0) {
        add(out, &from);
    }
}

static void choose_ahead(const struct ox_search *s, struct ox_candidate from, struct ox_choices *out) {
    from.placement.weights_ahead = !from.placement.weights_ahead;
    if (from.placement.saves_replaced && s->request->weights_ahead < 0) {
        add(out, &from);
    }
}

/* Varies `*number`, a member of `from`: none, all, and up and down from its value by half of all, by a quarter, and so
 * on. */
static void vary(struct ox_candidate *from, uint32_t *number, uint32_t most, struct ox_choices *out) {
    const uint32_t ends[] = {most, 0}, at = *number;
    for (unsigned i = 0; i < 2 && most > 0; i++) {
        *number = ends[i];
        add(out, from);
    }
    for (uint32_t by = most / 2; by > 0; by /= 2) {
        if (at + by < most) {
            *number = at + by;
            add(out, from);
        }
        if (at > by) {
            *number = at - by;
            add(out, from);
        }
    }
}

/* Varies the number of blocks that keep activations. */
static void choose_kept(const struct ox_search *s, struct ox_candidate from, struct ox_choices *out) {
    vary(&from, &from.placement.kept_units, s->request->kept_units < 0 ? ox_choice_kept_units(s) : 0, out);
}

static void choose_order(const struct ox_search *s, struct ox_candidate from, struct ox_choices *out) {
    for (uint8_t order = 0; order < OX_CANDIDATE_ORDERS; order++) {
        from.order = order;
        if (order_allowed(s, ox_candidate_orders[order])) {
            add(out, &from);
        }
    }
}

static void choose_ranking(const struct ox_search *s, struct ox_candidate from, struct ox_choices *out) {
    (void)s;
    for (uint8_t ranking = 0; ranking < OX_RANKING_COUNT; ranking++) {
        from.ranking = ranking;
        add(out, &from);
    }
}

static void choose_device_weights(const struct ox_search *s, struct ox_candidate from, struct ox_choices *out) {
    from.device_weights = !from.device_weights;
    if (ox_choice_device_weights(s)) {
        add(out, &from);
    }
}

/* Varies the number of units on the device. Updating there saves transfers, but takes device memory that other planes
 * and activations might use. */
static void choose_device_units(const struct ox_search *s, struct ox_candidate from, struct ox_choices *out) {
    vary(&from, &from.device_units, ox_choice_device_units(s) ? s->table->unit_count : 0, out);
}

/* The first units on the device let forward begin at once while the others are updated on the host; the last ones have
 * their gradients first. */
static void choose_device_first(const struct ox_search *s, struct ox_candidate from, struct ox_choices *out) {
    from.device_first = !from.device_first;
    if (ox_choice_device_units(s) && from.device_units > 0 && from.device_units < s->table->unit_count) {
        add(out, &from);
    }
}

/* Varies how many units keep a plane in its farthest home, which leaves memory for the next plane of the order, or uses
 * transfers that are hidden anyway. */
static void choose_away(const struct ox_search *s, struct ox_candidate from, struct ox_choices *out) {
    const uint32_t unit_count = s->table->unit_count;
    for (int plane = 0; plane < OX_HOME_COUNT; plane++) {
        const uint32_t at = from.away[plane];
        for (uint32_t by = unit_count / 2; by > 0; by /= 2) {
            from.away[plane] = at - by;
            if (at >= by) {
                add(out, &from);
            }
            from.away[plane] = at + by;
            if (at + by < unit_count) {
                add(out, &from);
            }
        }
        from.away[plane] = at;
    }
}

static void choose_device_sums(const struct ox_search *s, struct ox_candidate from, struct ox_choices *out) {
    from.placement.device_sums = !from.placement.device_sums;
    if (some_gradient_leaves(s, &from) && s->request->device_sums < 0) {
        add(out, &from);
    }
}

static void choose_grads_alternate(const struct ox_search *s, struct ox_candidate from, struct ox_choices *out) {
    from.placement.grads_alternate = !from.placement.grads_alternate;
    if (some_gradient_leaves(s, &from) && s->request->grads_alternate < 0) {
        add(out, &from);
    }
}

/* A third generation lets steps stay uncommitted whose updates in backward may be taken back to the drives. */
static void choose_generations(const struct ox_search *s, struct ox_candidate from, struct ox_choices *out) {
    from.generations = from.generations == 3 ? 2 : 3;
    if (s->request->may_keep_three && s->in->budget.nvme_bytes > 0 && from.placement.speculative_units > 0) {
        add(out, &from);
    }
}

static void choose_credit(const struct ox_search *s, struct ox_candidate from, struct ox_choices *out) {
    (void)s;
    from.credit = !from.credit;
    add(out, &from);
}

ox_choice_fn *const ox_choice_fns[OX_CHOICE_COUNT] = {
    [OX_CHOICE_OVERLAP] = choose_overlap,
    [OX_CHOICE_ORDER] = choose_order,
    [OX_CHOICE_RANKING] = choose_ranking,
    [OX_CHOICE_DEVICE_WEIGHTS] = choose_device_weights,
    [OX_CHOICE_CREDIT] = choose_credit,
    [OX_CHOICE_KEPT] = choose_kept,
    [OX_CHOICE_SPECULATIVE] = choose_speculative,
    [OX_CHOICE_SPREAD] = choose_spread,
    [OX_CHOICE_AHEAD] = choose_ahead,
    [OX_CHOICE_DEPTH] = choose_depth,
    [OX_CHOICE_SLOTS] = choose_slots,
    [OX_CHOICE_SLOTS_FINE] = choose_slots_fine,
    [OX_CHOICE_TILES] = choose_tiles,
    [OX_CHOICE_ACT_TIER] = choose_act_tier,
    [OX_CHOICE_AWAY] = choose_away,
    [OX_CHOICE_DEVICE_SUMS] = choose_device_sums,
    [OX_CHOICE_GRADS_ALTERNATE] = choose_grads_alternate,
    [OX_CHOICE_GENERATIONS] = choose_generations,
    [OX_CHOICE_DEVICE_UNITS] = choose_device_units,
    [OX_CHOICE_DEVICE_FIRST] = choose_device_first,
};
