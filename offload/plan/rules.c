#include "offload/plan/cases.h"
#include "offload/plan/internal.h"

#include "base/bytes.h"

/* Spread evenly, `count` steps of a unit each go round a circle of all units: the last unit, where the sum is 0, and
 * each where it begins another round. */
static bool is_early(const struct ox_plan_input *input, uint32_t unit_idx) {
    const uint32_t unit_count = input->model.update_count;
    const uint64_t after = unit_count - 1 - input->model.units[unit_idx].update_idx;
    const uint64_t count = input->placement.speculative_units;
    return (input->placement.speculative_spread ? after * count % unit_count : after) < count;
}

/* What follows for a unit that is trained. */
static void rule_update(const struct ox_plan_input *input, uint32_t unit_idx, struct ox_unit_rules *out) {
    const struct ox_placement *const placement = &input->placement;
    const struct ox_homes *const homes = &input->table->shards[unit_idx].homes;
    const bool train = !input->model.eval_only, store = input->budget.nvme_bytes > 0;
    const uint32_t grad_idx = input->model.units[unit_idx].grad_idx;
    out->updated = out->holds;
    out->state_on_device = homes->state == OX_TIER_DEVICE && train;
    out->sums_on_device = out->state_on_device || (placement->device_sums && !input->budget.unified && train &&
                                                   !ox_plan_adds_at_rest(&input->model.grads[grad_idx]));
    out->speculative = !out->state_on_device && (store || placement->saves_replaced) && is_early(input, unit_idx);
    out->saves_replaced = out->speculative && placement->saves_replaced && homes->weights != OX_TIER_NVME &&
                          homes->state == OX_TIER_HOST;
    out->goes_ahead = out->saves_replaced && placement->weights_ahead && !store &&
                      !input->model.precision->lo_travels && homes->weights == OX_TIER_HOST;
    out->returns_to_drives = placement->overlap && out->speculative && !out->saves_replaced;
    const bool on_drives = homes->weights == OX_TIER_NVME;
    out->on_drives = (struct ox_on_drives){.hi = on_drives || out->returns_to_drives,
                                           .state = homes->state == OX_TIER_NVME || out->returns_to_drives ||
                                                    (on_drives && input->model.precision->lo_travels)};
}

struct ox_unit_rules ox_plan_unit_rules(const struct ox_plan_input *input, uint32_t unit_idx) {
    const struct ox_shard *const shard = &input->table->shards[unit_idx];
    const struct ox_homes *const homes = &shard->homes;
    const struct ox_precision *const precision = input->model.precision;
    struct ox_unit_rules out = {.lo_travels = ox_plan_lo_travels(input, unit_idx), .cast_bytes = precision->cast_bytes};
    if (out.cast_bytes == 0 && ox_shard_is_narrow(shard)) {
        out.cast_bytes = ox_real_bytes(precision->activations);
    }
    out.holds = ox_plan_holds(input, unit_idx);
    out.gathers = ox_plan_gathers(input, unit_idx);
    out.lo_in_state = out.lo_travels && !input->model.eval_only && homes->weights != OX_TIER_NVME &&
                      homes->state == homes->weights;
    const bool from_host = homes->weights != OX_TIER_DEVICE && ox_plan_shares_host(input);
    out.copied = ox_plan_tensors(input) > 1 && ox_plan_tensor_owner(&input->ranks, unit_idx) == OX_NONE;
    out.stored = !out.copied || ox_plan_leads_store(input);
    out.gather_tier = input->budget.unified || from_host ? OX_TIER_HOST : OX_TIER_DEVICE;
    if (input->model.units[unit_idx].trained) {
        rule_update(input, unit_idx, &out);
    }
    out.replaced_state_offset = ox_align_up(shard->elem_count * OX_HI_BYTES, OX_IO_ALIGN_BYTES);
    out.replaced_bytes = out.replaced_state_offset +
                         (out.goes_ahead ? 0 : ox_shard_unit_state_bytes(input->table, unit_idx));
    return out;
}

struct ox_unit_counts ox_plan_count_units(const struct ox_plan *plan) {
    struct ox_unit_counts out = {0};
    for (uint32_t i = 0; i < plan->unit_count; i++) {
        out.saved += plan->rules[i].saves_replaced;
        out.ahead += plan->rules[i].goes_ahead;
        out.on_device += plan->rules[i].state_on_device;
    }
    out.device_first = plan->rules[0].state_on_device && out.on_device < plan->unit_count;
    return out;
}

/* ---- what follows for a step ------------------------------------------------------------------------- */

struct step_rules {
    bool some_there, some_not; /* the drives must have some plane of what is trained; they need not have one */
    bool returns, on_device;   /* ox_unit_rules: returns_to_drives and state_on_device of any unit */
};

static struct step_rules rules_of_all(const struct ox_plan_input *input) {
    struct step_rules out = {0};
    for (uint32_t i = 0; i < input->table->unit_count; i++) {
        const struct ox_unit_rules rules = ox_plan_unit_rules(input, i);
        out.some_there = out.some_there || rules.on_drives.hi || rules.on_drives.state;
        out.some_not = out.some_not ||
                       (input->model.units[i].trained && !(rules.on_drives.hi && rules.on_drives.state));
        out.returns = out.returns || rules.returns_to_drives;
        out.on_device = out.on_device || rules.state_on_device;
    }
    return out;
}

bool ox_plan_commits_between(const struct ox_plan_input *input) {
    return input->budget.nvme_bytes > 0 && rules_of_all(input).on_device;
}

bool ox_plan_may_stay(const struct ox_plan_input *input) {
    const struct step_rules rules = rules_of_all(input);
    const uint32_t slots = rules.returns ? 3 : rules.some_there ? 2 : 1;
    return input->budget.nvme_bytes > 0 && !input->model.eval_only && ox_plan_generations(&input->budget) >= slots;
}

bool ox_plan_stays(const struct ox_plan_input *input, uint64_t persist_steps) {
    const bool pays = persist_steps != 1 && (persist_steps > 0 || rules_of_all(input).some_not);
    return ox_plan_may_stay(input) && (pays || ox_plan_commits_between(input));
}

bool ox_plan_transacts(const struct ox_plan_input *input, bool stays) {
    return input->budget.nvme_bytes > 0 && (!stays || rules_of_all(input).some_there);
}

/* ---- the usual case (cases.h) -------------------------------------------------------------------------- */

/* Facts of the update that the step before has left. If that step speculated, its transaction is open. */
static uint32_t facts_of_pending(bool speculates, bool written) {
    return OX_FACT_COUNTS_DUE | (written ? OX_FACT_COMMIT_DUE : 0u) |
           (written && !speculates ? OX_FACT_BEGIN_DUE : 0u);
}

struct ox_step_case ox_usual_case(const struct ox_plan_input *input, enum ox_plan_kind kind, struct ox_step_ways ways) {
    const bool speculates = input->placement.speculative_units > 0 && !ways.holds;
    const bool written = ox_plan_transacts(input, ways.stays || ox_plan_commits_between(input));
    struct ox_step_case usual = {.facts = OX_FACT_OWN_WORK | OX_FACT_FROM_MEMORY,
                                 .holds = ways.holds,
                                 .carries = input->placement.overlap && kind != OX_PLAN_EVAL};
    if (kind == OX_PLAN_TRAIN) {
        usual.facts |= (speculates ? OX_FACT_SPECULATES : 0u) | (written ? OX_FACT_COMMITS : 0u);
    }
    usual.facts |= kind == OX_PLAN_TRAIN && input->ranks.low_rank != NULL ? OX_FACT_LOW_RANK : 0u;
    if (usual.carries) {
        usual.facts |= facts_of_pending(speculates, written);
    }
    return usual;
}

enum ox_due ox_case_due(struct ox_step_case usual, const struct ox_plan *plan, uint32_t unit_idx) {
    if (!usual.carries || unit_idx >= plan->unit_count || !plan->rules[unit_idx].updated) {
        return OX_DUE_NOTHING;
    }
    const struct ox_unit_rules *const rules = &plan->rules[unit_idx];
    return usual.holds || !rules->speculative ? OX_DUE_ALL : rules->goes_ahead ? OX_DUE_STATE : OX_DUE_NOTHING;
}

bool ox_plan_calls_on_device(const struct ox_plan_input *input, const struct ox_task *task) {
    if (task->kind != OX_TASK_MOVE || task->lane != OX_LANE_LINK || input->budget.unified) {
        return false;
    }
    switch ((enum ox_move)task->move) {
    case OX_MOVE_WEIGHTS:
    case OX_MOVE_GRAD:
    case OX_MOVE_SUM: return true;
    case OX_MOVE_ROWS: return ox_plan_task_cut(input, task)->kind != OX_CUT_ROUND;
    default: return false;
    }
}
