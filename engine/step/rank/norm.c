/* The norm's sums: partial sums of each unit in order, then the totals of units. So ranks that hold other units need
 * eight bytes of a unit, and the norm does not depend on who holds which. */
#include "engine/step/rank/rank.h"

#include "base/bytes.h"

uint64_t ox_norm_partials_first(const struct ox_rank *rank, uint32_t unit_idx) {
    uint64_t first = 0;
    for (uint32_t i = 0; i < unit_idx; i++) {
        const bool counts = rank->plan->input.model.units[i].trained; /* the others have no gradient */
        first += counts ? ox_div_up(ox_unit_elems(rank, i), OX_GROUP_ELEMS) : 0;
    }
    return first;
}

struct norm_sum {
    const struct ox_rank *rank;
    const double *partials;
    double total; /* of the unit */
};

/* Adds the partial sums of a unit's elements [begin, end), if it has some. */
static void add_partials(struct norm_sum *sum, uint32_t unit_idx, uint64_t begin, uint64_t end) {
    const double *const of = sum->partials + ox_norm_partials_first(sum->rank, unit_idx);
    const bool counts = sum->rank->plan->input.model.units[unit_idx].trained;
    for (uint64_t i = begin / OX_GROUP_ELEMS; counts && i < ox_div_up(end, OX_GROUP_ELEMS); i++) {
        sum->total += of[i];
    }
}

/* Where the part of a block behind its experts begins, in the unit without them. */
static uint64_t behind_experts(const struct ox_unit *unit) {
    uint64_t begin = unit->elem_count;
    for (uint32_t role = OX_ROLE_SHARED_GATE_UP; role <= OX_ROLE_SHARED_GATE_BIAS; role++) {
        begin = ox_min_u64(begin, unit->role_offset[role]);
    }
    return begin;
}

/* Whether a unit has what Muon's matrices have left beside them. */
static bool is_beside_matrices(const struct ox_model *model, uint32_t unit_idx) {
    const struct ox_unit *const own = &model->units[model->units[unit_idx].own];
    return own->one_moment && own->next == unit_idx && model->units[unit_idx].trained;
}

/* Adds those of a block's experts role by role, the units of each in order, which are `nth` in their stages; `beside`:
 * of what is beside them. */
static void add_experts(struct norm_sum *sum, const uint32_t *unit_idxs, uint32_t count, uint32_t nth, bool beside) {
    const struct ox_model *const model = sum->rank->config.model;
    for (uint32_t role = OX_ROLE_EXPERT_GATE_UP; role <= OX_ROLE_EXPERT_DOWN_BIAS; role++) {
        for (uint32_t i = 0; i < count; i++) {
            const uint32_t unit_idx = beside ? model->units[unit_idxs[i]].next : unit_idxs[i] + nth;
            if (unit_idx == OX_NO_UNIT || (beside && !is_beside_matrices(model, unit_idx))) {
                continue;
            }
            const struct ox_unit *const unit = &model->units[unit_idx];
            uint64_t end = unit->elem_count;
            for (uint32_t next = OX_ROLE_EXPERT_DOWN_BIAS; next > role; next--) {
                end = ox_min_u64(end, unit->role_offset[next]);
            }
            if (unit->role_offset[role] != UINT64_MAX) {
                add_partials(sum, unit_idx, unit->role_offset[role], end);
            }
        }
    }
}

/* Whether the rank's coordinate has a unit, so that it knows its partial sums. */
static bool is_here(const struct ox_plan_input *input, uint32_t unit_idx) {
    const uint32_t tensor = ox_plan_tensor_owner(&input->ranks, unit_idx);
    return ox_plan_owner(&input->ranks, unit_idx) == ox_plan_pipe_at(input) &&
           (tensor == OX_NONE || tensor == ox_plan_tensor_at(input));
}

/* The unit of a layer's block that would have all experts, or those of a group of features. */
static uint32_t host_of(const struct ox_model *model, const struct ox_unit *unit) {
    uint32_t host = model->blocks[unit->layer];
    while (unit->group != OX_NO_GROUP && model->units[host].group != unit->group) {
        host = model->units[host].next;
    }
    return host;
}

/* The total of a block's unit with its experts, which are units of their own: that of the block's, but where this is
 * frozen, as no total of what is frozen travels, that of the first unit of experts that is trained. */
static uint32_t carrier_of(const struct ox_rank *rank, uint32_t host, uint32_t nth) {
    const struct ox_model *const model = rank->config.model;
    const struct ox_plan_unit *const units = rank->plan->input.model.units;
    uint32_t first = 0, carrier = host;
    const uint32_t count = ox_model_expert_units(model, model->units[host].own, &first);
    for (uint32_t i = 0; i < count && !units[carrier].trained; i++) {
        const uint32_t unit_idx = model->stages[first + i] + nth;
        carrier = units[unit_idx].trained ? unit_idx : carrier;
    }
    return carrier;
}

/* Adds the partial sums of a block's unit in the order that they would have with its experts in it. */
static void add_with_experts(struct norm_sum *sum, uint32_t host, uint32_t nth, bool beside) {
    const struct ox_model *const model = sum->rank->config.model;
    uint32_t first = 0;
    const uint32_t count = ox_model_expert_units(model, model->units[host].own, &first);
    const uint64_t behind = behind_experts(&model->units[host]);
    add_partials(sum, host, 0, behind);
    add_experts(sum, model->stages + first, count, nth, beside);
    add_partials(sum, host, behind, model->units[host].elem_count);
}

double ox_norm_total(const struct ox_rank *rank, const double *partials, uint32_t unit_idx) {
    const struct ox_model *const model = rank->config.model;
    const struct ox_unit *const unit = &model->units[unit_idx];
    struct norm_sum sum = {.rank = rank, .partials = partials};
    const bool beside = is_beside_matrices(model, unit_idx), of_group = unit->group != OX_NO_GROUP;
    const enum ox_unit_kind kind = beside || of_group ? model->units[unit->own].kind : unit->kind;
    if (!is_here(&rank->plan->input, unit_idx)) {
        const bool counts = rank->plan->input.model.units[unit_idx].trained;
        return counts ? partials[ox_norm_partials_first(rank, unit_idx)] : 0; /* as its holders have sent it */
    }
    /* that experts would be in it: of units with a group, the one that is no adapters' */
    const bool has_some = of_group ? unit->tensor_first < model->adapter_first : ox_model_groups(&model->config) == 1;
    const bool is_host = kind == OX_UNIT_BLOCK && has_some && model->config.mixture.per_unit > 0;
    const uint32_t nth = of_group ? unit->group : 0;
    if (beside && kind == OX_UNIT_EXPERTS) {
        return 0; /* that of what is beside their block's matrices */
    }
    if (beside && is_host) {
        add_with_experts(&sum, unit_idx, nth, true);
    } else if (is_host || kind == OX_UNIT_EXPERTS) {
        const uint32_t host = is_host ? unit_idx : host_of(model, unit);
        if (carrier_of(rank, host, nth) == unit_idx) {
            add_with_experts(&sum, host, nth, false);
        }
    } else {
        add_partials(&sum, unit_idx, 0, unit->elem_count);
    }
    return sum.total;
}

double ox_norm_square_sum(const struct ox_rank *rank, const double *partials) {
    double total = 0;
    for (uint32_t i = 0; i < rank->config.model->unit_count; i++) {
        total += ox_norm_total(rank, partials, i);
    }
    return total;
}
